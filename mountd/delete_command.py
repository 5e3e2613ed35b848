"""`topicfs delete` and `topicfs undelete`: records are deleted by name, and a deletion is taken back.

If the store is mounted, both go through the mount, with the attributes that `fs/tree/deleting.py` lists. Otherwise they
open the store, which keeps daemons away meanwhile. The engine is imported only then.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn, Protocol

import click
from rich.console import Console

from topicfs.engine.format.paths import LOGS
from topicfs.mountd import kernels, mounts
from topicfs.mountd.tables import show_line, show_table, size_text, time_text

_OUT: Final = Console(highlight=False)
_ERRORS: Final = Console(stderr=True, highlight=False)
_TOPICS: Final = "topics"
_PREFIX: Final = "user.topicfs."
_WHERE: Final = click.argument("where", metavar="BACKING|MOUNT", type=click.Path(path_type=Path))

_REASONS: Final = {
    errno.EPERM: "delete.topic.enable is false",
    errno.EROFS: "the mount is read-only",
    errno.EACCES: "the permissions do not allow it",
    errno.ENOENT: "it is not there, or not any more",
    errno.EEXIST: "it was made again: delete that before what it was is taken back",
    errno.ENOTSUP: "the mount is served by a version that cannot do this",
}


class _RefusedError(Exception):
    """The command cannot be carried out; the message says why."""


@dataclass(frozen=True, slots=True)
class _Target:
    """The topic or partition that a name stands for.

    topic   the topic
    number  the number of one partition; None for the whole topic
    """

    topic: str
    number: int | None

    @property
    def name(self) -> str:
        return self.topic if self.number is None else f"{self.topic}-{self.number}"

    @property
    def title(self) -> str:
        return f"the topic {self.topic}" if self.number is None else f"the partition {self.name}"


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


class _Store(Protocol):
    """A store to delete from, mounted or not."""

    def topics(self) -> dict[str, list[int]]:
        """Return the numbers of each topic's partitions."""

    def look(self, topic: str, number: int) -> _PartitionPart:
        """Return what a partition holds."""

    def delete(self, target: _Target) -> None: ...

    def undelete(self, target: _Target, deletion: str) -> None: ...

    def deletions(self) -> list[dict[str, Any]]:
        """Return what can be taken back, the newest first, as the attribute shows it."""


@dataclass(frozen=True, slots=True)
class _Mounted:
    """A store, used through its mount."""

    point: Path

    def topics(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {name: [] for name in os.listdir(self.point / _TOPICS)}
        for name in os.listdir(self.point):
            topic, _, number = name.rpartition("-")
            if topic in found and number.isdigit():
                found[topic].append(int(number))
        return {topic: sorted(numbers) for topic, numbers in found.items()}

    def look(self, topic: str, number: int) -> _PartitionPart:
        place = self.point / f"{topic}-{number}"
        try:
            status = json.loads((place / "status.json").read_bytes())
            records = status["end_offset"] - status["start_offset"]
            oldest = None
            if records:
                with (place / "log.jsonl").open("rb") as lines:
                    first = lines.readline()
                oldest = json.loads(first)["timestamp"] if first else None
            return _PartitionPart(place.name, records, status["log_bytes"], oldest)
        except (OSError, ValueError):
            # The partition is damaged or offline. It can be deleted anyway.
            return _PartitionPart(place.name, None, 0, None)

    def delete(self, target: _Target) -> None:
        self._set("delete", target.name, is_topic=target.number is None)

    def undelete(self, target: _Target, deletion: str) -> None:
        self._set("undelete", deletion if target.number is None else target.name, target.number is None)

    def _set(self, verb: str, name: str, is_topic: bool) -> None:
        place = self.point / _TOPICS if is_topic else self.point
        try:
            os.setxattr(place, _PREFIX + verb, name.encode())
        except OSError as error:
            number = error.errno or 0
            raise _RefusedError(f"{name}: {_REASONS.get(number, os.strerror(number))}") from None

    def deletions(self) -> list[dict[str, Any]]:
        found = json.loads(os.getxattr(self.point / _TOPICS, _PREFIX + "deleted"))
        assert isinstance(found, list)
        return found


class _Unmounted:
    """A store that no daemon has open. This process has it open meanwhile."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def topics(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = self._store.topics()
        return found

    def look(self, topic: str, number: int) -> _PartitionPart:
        from topicfs.engine.errors import EngineError  # noqa: PLC0415 - loads the engine

        try:
            partition = self._store.partition(topic, number)
            first = next(partition.records(), None)
        except (EngineError, OSError):
            return _PartitionPart(f"{topic}-{number}", None, 0, None)
        records = partition.end_offset - partition.start_offset
        return _PartitionPart(
            partition.name, records, partition.size, None if first is None else first.timestamp
        )

    def delete(self, target: _Target) -> None:
        if target.number is None:
            self._store.delete_topic(target.topic)
        else:
            self._store.delete(target.topic, target.number)

    def undelete(self, target: _Target, deletion: str) -> None:
        self._store.undelete(target.topic, target.number, deletion)

    def deletions(self) -> list[dict[str, Any]]:
        return [each.told() for each in self._store.deletions()]


@contextlib.contextmanager
def _opened(where: Path) -> Iterator[_Store]:
    """Open the store at a path, through its mount if there is one."""
    place = mounts.real(where)
    mount = mounts.find(place)
    if mount is not None and mount.backing is not None:
        yield _Mounted(place)
        return
    if not (place / LOGS).is_dir():
        raise _RefusedError(
            f"{place}: expected a backing directory with logs/ in it, or a mount of topicfs, found neither"
        )
    owner = mounts.lock_owner(place)
    if owner is not None:
        points = [point for point in mounts.points_of(place) if not mounts.is_dead(point)]
        if not points:
            raise _RefusedError(
                f"{place}: process {owner} has it open, and no mount of it is to be seen from here: stop that process, "
                "or ask where it is mounted"
            )
        show_line(_ERRORS, f"topicfs: {place} is mounted at {points[0]}: done there")
        yield _Mounted(points[0])
        return
    with kernels.loading():
        from topicfs.engine.store.store import Store  # noqa: PLC0415 - loads the engine

    with Store.open(place) as store:
        yield _Unmounted(store)


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """Turn refusals and failures into messages."""
    try:
        yield
    except (_RefusedError, mounts.MountError, OSError) as error:
        _fail(str(error))
    except Exception as error:
        from topicfs.engine.errors import EngineError  # noqa: PLC0415 - loads the engine

        if not isinstance(error, EngineError):
            raise
        _fail(str(error))


def _fail(words: str) -> NoReturn:
    show_line(_ERRORS, f"topicfs: {words}")
    sys.exit(1)


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
    with _told(), _opened(where) as store:
        target = _found(name, store.topics())
        numbers = store.topics()[target.topic] if target.number is None else [target.number]
        parts = [store.look(target.topic, number) for number in numbers]
        _show(parts)
        if not yes and not _agreed(f"Delete {target.title} with {_sum(parts)}?"):
            _fail("nothing is deleted")
        store.delete(target)
        _show_way_back(where, target, store.deletions())


def _found(name: str, topics: dict[str, list[int]]) -> _Target:
    """Return the topic or partition that a name stands for."""
    if name.startswith(f"{_TOPICS}/"):
        topic = name.removeprefix(f"{_TOPICS}/").rstrip("/")
        if topic not in topics:
            raise _RefusedError(f"there is no topic {topic}")
        return _Target(topic, None)
    is_path = name.startswith("./")
    name = name.removeprefix("./").rstrip("/")
    topic, _, digits = name.rpartition("-")
    partition = _Target(topic, int(digits)) if digits.isdecimal() and digits.isascii() else None
    is_partition = partition is not None and partition.number in topics.get(topic, ())
    if name in topics and is_partition and not is_path:
        raise _RefusedError(
            f"{name} is a topic, and also a partition of {topic}: write {_TOPICS}/{name} for the topic, ./{name} for "
            "the partition"
        )
    if name in topics and not is_path:
        return _Target(name, None)
    if partition is None or not is_partition:
        raise _RefusedError(f"there is no topic and no partition {name}")
    return partition


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
        raise _RefusedError("nobody has answered: nothing is deleted; --yes does not ask") from None


def _show_way_back(where: Path, target: _Target, deletions: list[dict[str, Any]]) -> None:
    newest = next(
        (
            each
            for each in deletions
            if each["topic"] == target.topic and target.number in (None, *each["partitions"])
        ),
        None,
    )
    if newest is None:
        show_line(_OUT, f"{target.name} is deleted, and cannot be taken back")
        return
    until = time_text(newest["removed_at"])
    show_line(_OUT, f"{target.name} is deleted; until {until} this takes it back:")
    name = f"{_TOPICS}/{target.name}" if target.number is None else target.name
    show_line(_OUT, f"    topicfs undelete {where} {name}")


# -- undelete -----------------------------------------------------------------------------------------


@click.command("undelete")
@_WHERE
@click.argument("name", metavar="[TOPIC[-PARTITION]|ID]", required=False)
def undelete_command(where: Path, name: str | None) -> None:
    """Take back the newest deletion of a topic, or of one partition; or a certain one, by its ID. Without a name, list
    what can be taken back.

    Records, offsets, settings and the inbox are then what they were. A topic of that name that was made since has to go
    first."""
    with _told(), _opened(where) as store:
        deletions = store.deletions()
        if name is None:
            _list(deletions)
            return
        target, deletion = _found_deleted(name, deletions)
        store.undelete(target, deletion["id"])
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


def _found_deleted(name: str, deletions: list[dict[str, Any]]) -> tuple[_Target, dict[str, Any]]:
    """Return the newest deletion of what has this name, and what of it comes back."""
    by_id = next((each for each in deletions if each["id"] == name), None)
    if by_id is not None:
        return _Target(by_id["topic"], None), by_id
    topics: dict[str, list[int]] = {}
    for each in deletions:
        topics.setdefault(each["topic"], []).extend(each["partitions"])
    try:
        target = _found(name, topics)
    except _RefusedError as error:
        raise _RefusedError(f"{error}, of which a deletion can be taken back") from None
    for each in deletions:
        if each["topic"] == target.topic and target.number in (None, *each["partitions"]):
            return target, each
    raise AssertionError(f"{name} is of one of the deletions")
