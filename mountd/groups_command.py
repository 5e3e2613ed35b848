"""`topicfs groups`: consumer groups, their members and lag, and positions that are set anew."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console

from topicfs.engine.groups.names import escaped
from topicfs.mountd.tables import show_line, show_table, time_text
from topicfs.mountd.targets import GROUPS
from topicfs.mountd.tree import RefusedError, Tree, opened, refusals

_OUT: Final = Console(highlight=False)


@click.command("groups")
@click.argument("where", metavar="BACKING|MOUNT", type=click.Path(path_type=Path))
@click.argument("group", required=False)
@click.option("as_json", "--json", is_flag=True, help="One object a line, as in status.json.")
@click.option(
    "place", "--reset", metavar="PLACE", help="Set positions: an offset, earliest, latest, -15m or a time."
)
@click.option(
    "topic", "--topic", metavar="TOPIC", help="With --reset, of this topic; else of all with a position."
)
def groups_command(
    where: Path, group: str | None, as_json: bool, place: str | None, topic: str | None
) -> None:
    """List consumer groups with their lag, or one of them with its members and positions, or set its positions anew.

    While a group has members its positions are theirs, and --reset is refused."""
    with refusals(), opened(where, changes=place is not None) as tree:
        statuses = _statuses(tree)
        if group is None:
            if place is not None:
                raise RefusedError("--reset sets the positions of one group: name it")
            _show(statuses, as_json, _list)
            return
        if place is not None:
            _reset(tree, _one(statuses, group), place, topic)
            statuses = _statuses(tree)
        _show([_one(statuses, group)], as_json, _describe)


def _statuses(tree: Tree) -> list[dict[str, Any]]:
    """Return the status of each group."""
    return [json.loads(tree.read(f"{GROUPS}/{name}/status.json")) for name in tree.names(GROUPS)]


def _one(statuses: list[dict[str, Any]], group: str) -> dict[str, Any]:
    found = next((status for status in statuses if status["group"] == group), None)
    if found is None:
        raise RefusedError(f"there is no group {group}")
    return found


def _reset(tree: Tree, status: dict[str, Any], place: str, topic: str | None) -> None:
    keys = [(each["topic"], each["partition"]) for each in status["positions"]]
    if topic is not None:
        keys = [(topic, number) for number in tree.topics().get(topic, ())]
    if not keys:
        raise RefusedError(
            f"the group {status['group']} has no position: --topic names the topic"
            if topic is None
            else f"there is no topic {topic}"
        )
    for name, number in keys:
        tree.write(f"{GROUPS}/{escaped(status['group'])}/{name}-{number}", [f"{place}\n".encode()])


def _show(
    statuses: list[dict[str, Any]], as_json: bool, show: Callable[[list[dict[str, Any]]], None]
) -> None:
    if not as_json:
        show(statuses)
        return
    for status in statuses:
        show_line(_OUT, json.dumps(status))


def _list(statuses: list[dict[str, Any]]) -> None:
    rows = [
        (
            status["group"],
            status["state"],
            str(len(status["members"])),
            str(len(status["positions"])),
            str(sum(each["lag"] or 0 for each in status["positions"])),
        )
        for status in statuses
    ]
    titles = ("group", "state", "members", "positions", "lag")
    show_table(_OUT, titles, rows, right=("members", "positions", "lag"))


def _describe(statuses: list[dict[str, Any]]) -> None:
    for status in statuses:
        rows = [
            (
                f"{each['topic']}-{each['partition']}",
                str(each["position"]),
                "-" if each["end"] is None else str(each["end"]),
                "-" if each["lag"] is None else str(each["lag"]),
                each["owner"] or "-",
                time_text(each["committed_at"]),
            )
            for each in status["positions"]
        ]
        titles = ("partition", "position", "end", "lag", "member", "committed")
        show_table(_OUT, titles, rows, right=("position", "end", "lag"))
        members = [
            (each["name"], " ".join(each["assigned"]) or "-", " ".join(each["gives_up"]) or "-")
            for each in status["members"]
        ]
        if members:
            show_table(_OUT, ("member", "assigned", "gives up"), members)
