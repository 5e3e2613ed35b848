"""`topicfs topics`, `topicfs create` and `topicfs config`: topics and their settings."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console

from topicfs.engine.format.paths import validate_topic
from topicfs.engine.store.new_topic import NewTopic
from topicfs.fs.tree.creating import CREATE, text_of
from topicfs.mountd.tables import show_line, show_table, shown_path, size_text
from topicfs.mountd.targets import TOPICS, Target, found
from topicfs.mountd.tree import RefusedError, Tree, opened, refusals

_OUT: Final = Console(highlight=False)
_WHERE: Final = click.argument("where", metavar="BACKING|MOUNT", type=click.Path(path_type=Path))
_JSON: Final = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
_OWN: Final = "topic"


@click.command("topics")
@_WHERE
@_JSON
def topics_command(where: Path, as_json: bool) -> None:
    """List the topics: how many partitions, records and bytes each has.

    Records are counted by their offsets: compaction and transactions leave fewer."""
    with refusals(), opened(where) as tree:
        rows = [_about(tree, topic, numbers) for topic, numbers in tree.topics().items()]
    if as_json:
        click.echo(json.dumps(rows, indent=2))
        return
    titles = ["topic", "partitions", "records", "size"]
    table = [
        [each["topic"], str(each["partitions"]), str(each["records"]), size_text(each["bytes"])]
        for each in rows
    ]
    if any(each["offline"] for each in rows):
        titles.append("offline")
        for row, each in zip(table, rows, strict=True):
            row.append("; ".join(each["offline"]))
    show_table(_OUT, titles, table, right=("partitions", "records", "size"))
    if not rows:
        show_line(_OUT, f"no topics; this makes one: topicfs create {shown_path(where)} orders")


def _about(tree: Tree, topic: str, numbers: Sequence[int]) -> dict[str, Any]:
    records = size = 0
    offline = []
    for number in numbers:
        status = tree.status(f"{topic}-{number}")
        if status.get("offline"):
            offline.append(f"{topic}-{number}: {status['offline']}")
        records += status.get("end_offset", 0) - status.get("start_offset", 0)
        size += status.get("log_bytes", 0)
    return {
        "topic": topic,
        "partitions": len(numbers),
        "records": records,
        "bytes": size,
        "offline": offline,
    }


@click.command("create")
@_WHERE
@click.argument("topic")
@click.option(
    "--partitions", type=click.IntRange(1), metavar="N", help="How many; `num.partitions` if not given."
)
@click.option(
    "settings", "-o", metavar="NAME=VALUE", multiple=True, help="A setting of the topic; again for more."
)
def create_command(where: Path, topic: str, partitions: int | None, settings: tuple[str, ...]) -> None:
    """Make a topic, with its partitions and settings: all of it or, where something is refused, nothing.

    `topicfs config` lists the settings."""
    with refusals():
        validate_topic(topic)
        chosen = dict(_change(text) for text in settings)
        made = NewTopic(
            topic, partitions, {name: value for name, value in chosen.items() if value is not None}
        )
        with opened(where, changes=True) as tree:
            tree.set_attribute(TOPICS, CREATE, text_of(made), topic)


@click.command("config")
@_WHERE
@click.argument("topic")
@click.argument("changes", metavar="[NAME=VALUE]...", nargs=-1)
@click.option(
    "--unset", "unset", metavar="NAME", multiple=True, help="Take away the topic's own value; again for more."
)
@click.option("--own", is_flag=True, help="Show only what the topic itself sets.")
@_JSON
def config_command(
    where: Path, topic: str, changes: tuple[str, ...], unset: tuple[str, ...], own: bool, as_json: bool
) -> None:
    """Show a topic's settings and where each comes from, or change some: all of them or, where one is refused, none."""
    with refusals():
        wanted = dict(_change(text) for text in changes) | dict.fromkeys(unset)
        _refuse_unknown(wanted)
        with opened(where, changes=bool(wanted)) as tree:
            target = found(topic, tree.topics())
            if target.number is not None:
                target = Target(target.topic, None)
            path = f"{TOPICS}/{target.topic}/config"
            if wanted:
                lines = "".join(
                    f"{name}={'default' if value is None else value}\n" for name, value in wanted.items()
                )
                tree.write(path, [lines.encode()])
                return
            _show_config(tree.read(path).decode(), own, as_json)


def _show_config(text: str, own: bool, as_json: bool) -> None:
    """Show the lines of `config`, or JSON of them."""
    shown: dict[str, Mapping[str, str]] = {}
    for line in text.splitlines():
        setting, _, source = line.rpartition(" # ")
        name, equals, value = setting.rstrip().partition("=")
        if not equals or (own and source != _OWN):
            continue
        shown[name] = {"value": value, "source": source}
        if not as_json:
            show_line(_OUT, line)
    if as_json:
        click.echo(json.dumps(shown, indent=2))


def _change(text: str) -> tuple[str, str | None]:
    """Return the name and the value of a change; None takes the topic's own value away. What no topic has, and a value
    that it cannot have, is refused here, where the reason can be told."""
    name, equals, value = (part.strip() for part in text.partition("="))
    if not equals or not name:
        raise RefusedError(f"expected NAME=VALUE, found {text!r}")
    _refuse_unknown((name,))
    if value == "default":
        return name, None
    from topicfs.engine.settings.lookup import TOPIC_BY_NAME  # noqa: PLC0415 - it loads all settings

    TOPIC_BY_NAME[name].parse(value)
    return name, value


def _refuse_unknown(names: Iterable[str]) -> None:
    from topicfs.engine.settings.lookup import TOPIC_BY_NAME, TOPIC_HINTS  # noqa: PLC0415 - it loads all settings
    from topicfs.engine.settings.setting import refuse_unknown  # noqa: PLC0415

    refuse_unknown("topic", names, TOPIC_BY_NAME, TOPIC_HINTS)
