"""`topicfs status` and `topicfs top`: how a store's partitions are, once or again and again."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from topicfs.mountd.tables import show_line, show_table, size_text
from topicfs.mountd.targets import Target, found
from topicfs.mountd.tree import MountedTree, RefusedError, Tree, opened, refusals

_OUT: Final = Console(highlight=False)
_WHERE: Final = click.argument("where", metavar="BACKING|MOUNT", type=click.Path(path_type=Path))
_NAMES: Final = click.argument("names", metavar="[TOPIC[-PARTITION]]...", nargs=-1)
_TITLES: Final = ("partition", "first", "next", "records", "size", "segments", "state")
_NUMBERS: Final = _TITLES[1:-1]
_FINE: Final = "fine"


@click.command("status")
@_WHERE
@_NAMES
@click.option(
    "--json", "as_json", is_flag=True, help="Print what status.json says of each partition, as JSON."
)
def status_command(where: Path, names: tuple[str, ...], as_json: bool) -> None:
    """Show how partitions are: their offsets, sizes, and what is wrong with them.

    Ends with exit code 1 if something is wrong with one of them, so that a script can ask."""
    with refusals(), opened(where) as tree:
        statuses = _statuses(tree, names)
        if as_json:
            click.echo(json.dumps(statuses, indent=2))
        else:
            show_line(_OUT, tree.title)
            show_table(_OUT, _TITLES, [_row(each) for each in statuses], right=_NUMBERS)
    sys.exit(any(_is_wrong(each) for each in statuses))


def _statuses(tree: Tree, names: Sequence[str]) -> list[dict[str, Any]]:
    """Return what `status.json` says of the partitions that were named, or of all."""
    topics = tree.topics()
    targets = [found(name, topics) for name in names] or [Target(topic, None) for topic in topics]
    return [
        tree.status(f"{target.topic}-{number}") for target in targets for number in target.numbers(topics)
    ]


def _row(status: Mapping[str, Any]) -> tuple[str, ...]:
    name = f"{status['topic']}-{status['partition']}"
    if "start_offset" not in status:
        return (name, "", "", "", "", "", state(status))
    first, after = status["start_offset"], status["end_offset"]
    return (
        name,
        str(first),
        str(after),
        str(after - first),
        size_text(status["log_bytes"]),
        str(status["segments"]),
        state(status),
    )


def state(status: Mapping[str, Any]) -> str:
    """Return what there is to be said of a partition, in words."""
    words = list(troubles(status))
    link = status.get("link") or {}
    if link.get("lag"):
        words.append(f"{link['lag']} records behind its leader")
    if status.get("open_transactions"):
        words.append(
            f"{status['open_transactions']} open transactions from offset {status['stable_offset']} on"
        )
    return "; ".join(words) or _FINE


def troubles(status: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is wrong with a partition."""
    for key, title in (
        ("offline", "offline"),
        ("upkeep_error", "upkeep"),
        ("retention_error", "retention"),
    ):
        if status.get(key):
            yield f"{title}: {status[key]}"
    set_aside = (status.get("cleaning") or {}).get("set_aside")
    if set_aside:
        yield f"compaction: {set_aside}"
    error = (status.get("link") or {}).get("error")
    if error:
        yield f"link: {error}"


def _is_wrong(status: Mapping[str, Any]) -> bool:
    return any(troubles(status))


# -- top ----------------------------------------------------------------------------------------------


_UNCUT: Final = 10_000
"""More characters than a line has."""


@dataclass(frozen=True, slots=True)
class Look:
    """What a mount says at one moment.

    at_s      when, in seconds
    statuses  what `status.json` says of each partition
    metrics   the metrics without labels, and the sums of those that have some
    """

    at_s: float
    statuses: Sequence[Mapping[str, Any]]
    metrics: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def at(cls, tree: Tree, names: Sequence[str]) -> Look:
        """Look at a mount now."""
        # It loads a server of HTTP, a sixth of what `topicfs --help` took of the processor.
        from prometheus_client.parser import text_string_to_metric_families  # noqa: PLC0415

        sums: dict[str, float] = {}
        for family in text_string_to_metric_families(tree.read("metrics").decode()):
            for sample in family.samples:
                sums[sample.name] = sums.get(sample.name, 0) + sample.value
        return cls(time.monotonic(), _statuses(tree, names), sums)


@click.command("top")
@click.argument("mount", type=click.Path(path_type=Path))
@_NAMES
@click.option(
    "--interval", type=click.FloatRange(0.1), default=1.0, metavar="S", help="Seconds; 1, if not given."
)
@click.option(
    "--count", type=click.IntRange(1), metavar="N", help="End after so many looks; Ctrl-C ends it too."
)
def top_command(mount: Path, names: tuple[str, ...], interval: float, count: int | None) -> None:
    """Show what a mount is doing, and show it anew every second: the busiest partitions first.

    Where standard output is no terminal, each look is printed below the last."""
    with refusals(), opened(mount) as tree:
        if not isinstance(tree, MountedTree):
            raise RefusedError(
                f"{tree.title}: nothing happens where no daemon serves it; topicfs status shows it"
            )
        before = Look.at(tree, names)
        is_terminal = _OUT.is_terminal
        with Live(console=_OUT, screen=True, auto_refresh=False) if is_terminal else _Printed() as live:
            looks = 0
            while count is None or looks < count:
                time.sleep(interval)
                now = Look.at(tree, names)
                live.update(
                    _screen(tree.title, before, now, _OUT.height if is_terminal else None), refresh=True
                )
                before = now
                looks += 1


class _Printed:
    """A terminal that is none: each screen is printed below the last, and nothing of its lines is cut off."""

    def __init__(self) -> None:
        self._console = Console(highlight=False, width=_UNCUT)

    def __enter__(self) -> _Printed:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def update(self, screen: Group, refresh: bool) -> None:
        """Print a screen."""
        del refresh
        self._console.print(screen)


def _screen(title: str, before: Look, now: Look, height: int | None) -> Group:
    """Return the lines about the daemon, and the table of partitions, as many as there is room for."""
    seconds = max(now.at_s - before.at_s, 1e-6)

    def rate(name: str) -> float:
        return max(0.0, now.metrics.get(name, 0) - before.metrics.get(name, 0)) / seconds

    memory = size_text(int(now.metrics.get("process_resident_memory_bytes", 0)))
    head = [
        title,
        f"{len(now.statuses)} partitions   {rate('process_cpu_seconds_total'):.0%} of a processor   {memory} resident"
        f"   {now.metrics.get('process_open_fds', 0):.0f} open files",
        f"read {size_text(int(rate('topicfs_read_bytes_total')))}/s in {rate('topicfs_reads_total'):.0f} calls"
        f"   written {size_text(int(rate('topicfs_written_bytes_total')))}/s in "
        f"{rate('topicfs_writes_total'):.0f} calls   {rate('topicfs_errors_total'):.0f} errors/s",
        "",
    ]
    ends = {(each["topic"], each["partition"]): each for each in before.statuses}
    rows = sorted(
        (
            (_records_per_s(ends.get((each["topic"], each["partition"])), each, seconds), each)
            for each in now.statuses
        ),
        key=lambda row: -row[0],
    )
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in (*_TITLES[:-1], "records/s", _TITLES[-1]):
        table.add_column(name, justify="right" if name in (*_NUMBERS, "records/s") else "left", no_wrap=True)
    for speed, status in rows[: None if height is None else max(1, height - len(head) - 2)]:
        *cells, said = _row(status)
        table.add_row(*map(Text, (*cells, f"{speed:.0f}", said)))
    return Group(*map(Text, head), table)


def _records_per_s(before: Mapping[str, Any] | None, now: Mapping[str, Any], seconds: float) -> float:
    if before is None or "end_offset" not in now or "end_offset" not in before:
        return 0.0
    return float(max(0, now["end_offset"] - before["end_offset"]) / seconds)
