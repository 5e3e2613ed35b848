"""`topicfs compact`: the cleaner's work on certain topics now, whatever the share of what is dirty.

A running daemon is asked, and its cleaner threads do it. On a store that nobody has open this process does it itself.
"""

from __future__ import annotations

import errno
import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console

from topicfs.mountd import kernels
from topicfs.mountd.progress import CONSOLE, Progress
from topicfs.mountd.tables import show_table, size_text
from topicfs.mountd.targets import TOPICS, Target, found
from topicfs.mountd.tree import OpenedTree, RefusedError, Tree, opened, refusals

_OUT: Final = Console(highlight=False)
_COMPACT: Final = "user.topicfs.compact"
_POLL_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class _Compacted:
    """What compaction has made of a partition.

    bytes_before, bytes_after  the sizes of its log
    offset                     the offset below which it is compacted now
    left                       why the rest is left as it is
    """

    partition: str
    bytes_before: int
    bytes_after: int
    offset: int
    left: str | None


@click.command("compact")
@click.argument("where", metavar="BACKING|MOUNT", type=click.Path(path_type=Path))
@click.argument("names", metavar="TOPIC[-PARTITION]...", nargs=-1, required=True)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def compact_command(where: Path, names: tuple[str, ...], as_json: bool) -> None:
    """Compact topics now, and return when it is done: of each key the newest record stays.

    The daemon does by itself what is worth it: see `topicfs plan`. This does not wait for min.cleanable.dirty.ratio,
    and keeps all other rules: the active segment, what min.compaction.lag.ms protects and what open transactions hold
    are left. A topic whose cleanup.policy is without compact is refused, and nothing is done.

    On a mount, Ctrl-C ends the waiting, and the daemon goes on."""
    with refusals(), opened(where, changes=True) as tree:
        topics = tree.topics()
        targets = [found(name, topics) for name in names]
        before = {
            partition: _status(tree, partition)
            for target in targets
            for partition in (f"{target.topic}-{number}" for number in target.numbers(topics))
        }
        for target in targets:
            if isinstance(tree, OpenedTree) and not tree.store.daemon.log_cleaner_enable:
                raise RefusedError(f"{target.name}: log.cleaner.enable is false: nothing is compacted")
            _ask(tree, target)
        with Progress() as progress:
            if isinstance(tree, OpenedTree):
                _work(tree, progress)
            done = [_awaited(tree, partition, status, progress) for partition, status in before.items()]
    _show(done, as_json)


def _status(tree: Tree, partition: str) -> dict[str, Any]:
    """Return what the status of a partition that can be compacted says."""
    status = tree.status(partition)
    why = status.get("offline") or status.get("upkeep_error")
    cleaning = status.get("cleaning")
    if why is None and cleaning is not None and cleaning["set_aside"]:
        why = f"{cleaning['set_aside']}; it is set aside until the next start"
    if why is None and cleaning is None:
        policy = status["cleanup_policy"] or "empty"
        why = (
            f"cleanup.policy is {policy}: nothing is compacted. `topicfs config` sets it: with cleanup.policy=compact "
            "only the newest record of each key is kept"
        )
    if why is not None:
        raise RefusedError(f"{partition}: {why}")
    return status


def _ask(tree: Tree, target: Target) -> None:
    """Have what is to be compacted, by its policy, compacted now."""
    try:
        tree.set_attribute(TOPICS if target.number is None else "", _COMPACT, target.name)
    except RefusedError as error:
        if error.errno != errno.EPERM:
            raise
        raise RefusedError(
            f"{target.name}: the daemon compacts nothing: expected log.cleaner.enable=true and log.cleaner.threads of "
            "1 or more, found another setting of the store"
        ) from None


def _awaited(tree: Tree, partition: str, before: dict[str, Any], progress: Progress) -> _Compacted:
    """Wait until a partition is compacted."""
    while (status := _status(tree, partition))["cleaning"]["asked"]:
        _tell(progress, partition, before["log_bytes"])
        time.sleep(_POLL_S)
    cleaning = status["cleaning"]
    if cleaning["failing"]:
        raise RefusedError(f"{partition}: {cleaning['failing']}")
    return _Compacted(
        partition, before["log_bytes"], status["log_bytes"], cleaning["from_offset"], cleaning["why_not"]
    )


def _work(tree: OpenedTree, progress: Progress) -> None:
    """Do what a daemon's cleaner threads would do, for what was asked for alone."""
    with kernels.loading():
        from topicfs.mountd.cleaners import make_cleaner  # noqa: PLC0415 - loads the engine

    store = tree.store
    done = 0

    def passed(size: int) -> None:
        nonlocal done
        done += size
        if CONSOLE.is_terminal:
            progress.progress(f"compacting: {size_text(done)} read and written")

    cleaner = make_cleaner(store, passed)
    while (outcome := store.cleaning.work_asked(cleaner, store.clock())) is not None:
        if outcome.error is not None:
            raise RefusedError(f"{outcome.partition}: {outcome.error}")


def _tell(progress: Progress, partition: str, size: int) -> None:
    if CONSOLE.is_terminal:
        progress.progress(f"{partition}: compacting {size_text(size)}")


def _show(done: list[_Compacted], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps([asdict(each) for each in done], indent=2))
        return
    rows = [
        (
            each.partition,
            size_text(each.bytes_before),
            size_text(each.bytes_after),
            str(each.offset),
            each.left or "",
        )
        for each in done
    ]
    titles = ("partition", "before", "after", "compacted up to", "what is left")
    show_table(_OUT, titles, rows, right=("before", "after", "compacted up to"))
