"""`topicfs delete` and `topicfs undelete`: records are deleted by name, and a deletion is taken back.

Both use the attributes that `fs/tree/deleting.py` lists.
"""

from __future__ import annotations

import errno
import itertools
import json
from collections.abc import Container
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console

from topicfs.mountd.tables import show_line, show_table, shown_path, size_text, time_text
from topicfs.mountd.targets import TOPICS, Target, UnknownNameError, found
from topicfs.mountd.tree import RefusedError, Tree, opened, refusals

_OUT: Final = Console(highlight=False)
_PREFIX: Final = "user.topicfs."
_WHERE: Final = click.argument("where", metavar="BACKING|MOUNT", type=click.Path(path_type=Path))

_REASONS: Final = {
    errno.EPERM: "delete.topic.enable is false",
    errno.EEXIST: "it was made again: delete that before what it was is taken back",
}


@dataclass(frozen=True, slots=True)
class _PartitionPart:
    """What a partition holds.

    records  the number of records; None if it cannot be read
    oldest   the first record's timestamp in milliseconds; None if there is no record, or it cannot be read
    """

    name: str
    records: int | None
    size: int
    oldest: int | None


def _look(tree: Tree, partition: str) -> _PartitionPart:
    """Return what a partition holds. One that is damaged or offline can be deleted too."""
    try:
        status = tree.status(partition)
        records = status["end_offset"] - status["start_offset"]
        first = b"".join(itertools.islice(tree.pieces(f"{partition}/log.jsonl"), 1)) if records else b""
        oldest = json.loads(first.partition(b"\n")[0])["timestamp"] if first else None
        return _PartitionPart(partition, records, status["log_bytes"], oldest)
    except (RefusedError, ValueError, KeyError):
        return _PartitionPart(partition, None, 0, None)


def _set(tree: Tree, verb: str, target: Target, name: str) -> None:
    try:
        tree.set_attribute(TOPICS if target.number is None else "", _PREFIX + verb, name)
    except RefusedError as error:
        if error.errno in _REASONS:
            raise RefusedError(f"{target.name}: {_REASONS[error.errno]}") from None
        raise


def _deletions(tree: Tree) -> list[dict[str, Any]]:
    """Return what can be taken back, the newest first."""
    found = json.loads(tree.attribute(TOPICS, _PREFIX + "deleted"))
    assert isinstance(found, list)
    return found


# -- delete -------------------------------------------------------------------------------------------


@click.command("delete")
@_WHERE
@click.argument("name", metavar="TOPIC[-PARTITION]")
@click.option("--yes", is_flag=True, help="Do not ask.")
def delete_command(where: Path, name: str, yes: bool) -> None:
    """Delete a topic, or one partition, with all of its records. Shows what will go, and asks.

    Works through the mount, and on a BACKING that is not mounted. Until `file.delete.delay.ms` are over (a minute,
    where nothing else is set), `topicfs undelete` takes it back. Records are counted by their offsets: compaction and
    transactions leave fewer. Where a topic has the name of another one's
    partition, topics/NAME is the topic and ./NAME the partition."""
    with refusals(), opened(where, changes=True) as tree:
        topics = tree.topics()
        target = found(name, topics)
        parts = [_look(tree, f"{target.topic}-{number}") for number in target.numbers(topics)]
        _show(parts)
        if not yes and not _agreed(f"Delete {target.title} with {_sum(parts)}?"):
            raise RefusedError("nothing is deleted")
        before = {each["id"] for each in _deletions(tree)}
        _set(tree, "delete", target, target.name)
        _show_way_back(where, target, _deletions(tree), before)


def _show(parts: list[_PartitionPart]) -> None:
    rows = [
        (
            part.name,
            "not known" if part.records is None else str(part.records),
            size_text(part.size),
            "-" if part.oldest is None else time_text(part.oldest),
        )
        for part in parts
    ]
    show_table(_OUT, ("partition", "records", "size", "oldest"), rows, right=("records", "size"))


def _sum(parts: list[_PartitionPart]) -> str:
    records = sum(part.records or 0 for part in parts)
    more = "" if all(part.records is not None for part in parts) else " and what cannot be read"
    since = min((part.oldest for part in parts if part.oldest is not None), default=None)
    return (
        f"{_count(len(parts), 'partition')}, {_count(records, 'record')}{more}, "
        f"{size_text(sum(part.size for part in parts))}"
        + ("" if since is None else f", the oldest of {time_text(since)}")
    )


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _agreed(question: str) -> bool:
    try:
        return click.confirm(question, err=True)
    except click.Abort:
        raise RefusedError("nobody has answered: nothing is deleted; --yes does not ask") from None


def _show_way_back(
    where: Path, target: Target, deletions: list[dict[str, Any]], before: Container[str]
) -> None:
    of_target = _deletions_of(target, deletions)
    if not of_target or of_target[0]["id"] in before:
        # As on a full disk, where it could not be written down.
        show_line(_OUT, f"{target.name} is deleted, and cannot be taken back")
        return
    newest = of_target[0]
    until = time_text(newest["removed_at"])
    show_line(_OUT, f"{target.name} is deleted; until {until} this takes it back:")
    name = f"{TOPICS}/{target.name}" if target.number is None else target.name
    if newest != _with_records(of_target):
        name = newest["id"]
    show_line(_OUT, f"    topicfs undelete {shown_path(where)} {name}")


# -- undelete -----------------------------------------------------------------------------------------


@click.command("undelete")
@_WHERE
@click.argument("name", metavar="[TOPIC[-PARTITION]|ID]", required=False)
def undelete_command(where: Path, name: str | None) -> None:
    """Take back the newest deletion of a topic, or of one partition, that had records; or a certain one, by its ID.
    Without a name, list what can be taken back.

    Records, offsets, settings and the inbox are then what they were. A topic of that name that was made since has to go
    first."""
    with refusals(), opened(where, changes=True) as tree:
        deletions = _deletions(tree)
        if name is None:
            _list(deletions)
            return
        target, deletion = _found_deleted(name, deletions)
        # By name, the store knows whether there was a newer one that cannot be taken back.
        _set(tree, "undelete", target, deletion["id"] if name == deletion["id"] else target.name)
        show_line(_OUT, f"{target.name} is back")


def _list(deletions: list[dict[str, Any]]) -> None:
    rows = [
        (
            each["id"],
            each["topic"],
            ",".join(map(str, each["partitions"])),
            str(each["records"]),
            size_text(each["bytes"]),
            time_text(each["deleted_at"]),
            time_text(each["removed_at"]),
        )
        for each in deletions
    ]
    titles = ("id", "topic", "partitions", "records", "size", "deleted", "kept until")
    show_table(_OUT, titles, rows, right=("records", "size"))
    if not rows:
        show_line(_OUT, "no deletions that can be taken back")


def _found_deleted(name: str, deletions: list[dict[str, Any]]) -> tuple[Target, dict[str, Any]]:
    """Return the deletion of what has this name that is taken back, and what of it comes back."""
    by_id = next((each for each in deletions if each["id"] == name), None)
    if by_id is not None:
        return Target(by_id["topic"], None), by_id
    topics: dict[str, list[int]] = {}
    for each in deletions:
        topics.setdefault(each["topic"], []).extend(each["partitions"])
    try:
        target = found(name, topics)
    except UnknownNameError as error:
        raise RefusedError(f"{error}, of which a deletion can be taken back") from None
    return target, _with_records(_deletions_of(target, deletions))


def _deletions_of(target: Target, deletions: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the deletions of a topic or a partition, the newest first."""
    return [
        each
        for each in deletions
        if each["topic"] == target.topic and target.number in (None, *each["partitions"])
    ]


def _with_records(deletions: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the newest deletion that had records, or else the newest: it is taken back where only a name is given."""
    return next((each for each in deletions if each["records"]), deletions[0])
