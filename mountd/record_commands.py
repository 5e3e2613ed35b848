"""`topicfs cat`, `topicfs append` and `topicfs offsets`: records, without a path to be put together."""

from __future__ import annotations

import errno
import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from io import FileIO
from pathlib import Path
from typing import BinaryIO, Final

import click
from rich.console import Console

from topicfs.engine.mount_attributes import FIRST_OFFSET
from topicfs.mountd.tables import show_table
from topicfs.mountd.targets import TOPICS, Target, found
from topicfs.mountd.tree import MountedTree, RefusedError, Tree, opened, refusals

_OUT: Final = Console(highlight=False)
_WHERE: Final = click.argument("where", metavar="BACKING|MOUNT", type=click.Path(path_type=Path))
_FORMATS: Final = ("txt", "tsv", "jsonl")
_PIECE: Final = 1 << 20
_NEWLINE: Final = b"\n"
_OFFSET_FORMS: Final = "42, 100-199, 100- or -10, the lower offset first"
_TIME_FORMS: Final = "ISO 8601 as in 2026-05-01T0630Z, 2026-05-01--2026-05-02 or 2026-05-01--, or last-1d12h"
_POLL_S: Final = 0.05


@click.command("cat")
@_WHERE
@click.argument("names", metavar="TOPIC[-PARTITION]...", nargs=-1, required=True)
@click.option("--format", "suffix", type=click.Choice(_FORMATS), default="txt", help="txt, if not given.")
@click.option(
    "--offset", metavar="A-B|A-|-N", help="Only these offsets: from A to B, from A on, the last N records."
)
@click.option(
    "--time", "when", metavar="T1--T2|T1--|--T2|T|last-15m", help="Only records of this time, in ISO 8601."
)
@click.option("--follow", "-f", is_flag=True, help="Then show what comes, until Ctrl-C. Needs the mount.")
def cat_command(
    where: Path, names: tuple[str, ...], suffix: str, offset: str | None, when: str | None, follow: bool
) -> None:
    """Write the records of topics or partitions to standard output, a line each: one partition behind the other.

    txt is the value, tsv key TAB value, jsonl everything. --offset and --time take what `offset/` and `time/` of a
    mount take as names."""
    if offset is not None and when is not None:
        raise click.UsageError("--offset and --time: expected one of them, found both")
    _check_selections(offset, when)
    selection = f"offset/{offset}" if offset is not None else f"time/{when}" if when is not None else "log"
    if follow and selection != "log":
        raise click.UsageError(
            "--follow shows what comes behind the whole log: expected no --offset or --time"
        )
    with refusals(), opened(where) as tree:
        topics = tree.topics()
        targets = [found(name, topics) for name in names]
        partitions = [f"{target.topic}-{number}" for target in targets for number in target.numbers(topics)]
        paths = [f"{partition}/{selection}.{suffix}" for partition in partitions]
        if follow:
            _follow(tree, paths)
            return
        for path in paths:
            for piece in tree.pieces(path):
                sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()


def _check_selections(offset: str | None, when: str | None) -> None:
    """Refuse what selects no records, before a missing file would be all there is to say about it."""
    from topicfs.fs import selections  # noqa: PLC0415 - most commands do without

    if offset is not None and selections.parse_offsets(offset) is None:
        raise click.UsageError(f"--offset: expected {_OFFSET_FORMS}, found {offset!r}")
    if when is not None and selections.parse_times(when) is None:
        raise click.UsageError(f"--time: expected {_TIME_FORMS}, found {when!r}")


def _follow(tree: Tree, paths: Sequence[str]) -> None:
    """Write whole lines of several growing files as they come."""
    if not isinstance(tree, MountedTree):
        raise RefusedError(f"{tree.title}: nothing comes where no daemon serves it: mount it to follow it")
    with ExitStack() as stack:
        files = [stack.enter_context((tree.point / path).open("rb", buffering=0)) for path in paths]
        unfinished = [b""] * len(files)
        while True:
            is_quiet = True
            for at, file in enumerate(files):
                while piece := _read(tree, paths[at], file):
                    is_quiet = False
                    whole, newline, unfinished[at] = (unfinished[at] + piece).rpartition(b"\n")
                    sys.stdout.buffer.write(whole + newline)
            sys.stdout.buffer.flush()
            if is_quiet:
                time.sleep(_POLL_S)


def _read(tree: MountedTree, path: str, file: FileIO) -> bytes:
    try:
        return file.read(_PIECE)
    except OSError as error:
        if error.errno == errno.EIO:
            partition = path.partition("/")[0]
            reason = "it was deleted meanwhile, or its bytes are damaged: `topicfs status` and `topicfs verify` tell"
            raise RefusedError(f"{partition}: {reason}", error.errno) from None
        raise RefusedError(f"{tree.point / path}: {error.strerror}", error.errno) from None


@click.command("append")
@_WHERE
@click.argument("name", metavar="TOPIC[-PARTITION]")
@click.argument("files", metavar="[FILE]...", nargs=-1, type=click.File("rb"))
@click.option(
    "--format",
    "suffix",
    type=click.Choice(_FORMATS),
    help="What the lines are; what FILE's suffix says, else txt.",
)
@click.option("--fsync", is_flag=True, help="Return when the records would survive a power cut.")
def append_command(
    where: Path, name: str, files: tuple[BinaryIO, ...], suffix: str | None, fsync: bool
) -> None:
    """Append the lines of FILE..., or of standard input, as records.

    Those of a topic go to the partitions that their keys give, or to the partitions in turn. When this returns with 0,
    all are there. A line that is refused ends it: what is before it is there, and the message says how many lines."""
    with refusals(), opened(where, changes=True) as tree:
        target = found(name, tree.topics())
        for file in files or (sys.stdin.buffer,):
            tree.write(_appended(target, suffix or _suffix_of(file)), _pieces(file), fsync)


def _appended(target: Target, suffix: str) -> str:
    """Return the path that takes lines for a topic or a partition."""
    return f"{TOPICS}/{target.topic}/in.{suffix}" if target.number is None else f"{target.name}/log.{suffix}"


def _suffix_of(file: BinaryIO) -> str:
    suffix = Path(str(getattr(file, "name", ""))).suffix.removeprefix(".")
    return suffix if suffix in _FORMATS else _FORMATS[0]


def _pieces(file: BinaryIO) -> Iterator[bytes]:
    # read1 returns what is there: lines that are typed, or come through a pipe, are appended as they come.
    read = getattr(file, "read1", file.read)
    last = _NEWLINE
    while piece := read(_PIECE):
        yield piece
        last = piece[-1:]
    # A line that only close completes may be refused when nobody listens any more: then 0 would be no promise.
    if last != _NEWLINE:
        yield _NEWLINE


@click.command("offsets")
@_WHERE
@click.argument("names", metavar="[TOPIC[-PARTITION]]...", nargs=-1)
@click.option(
    "--time",
    "when",
    metavar="earliest|latest|T|last-15m",
    help="The offset of the first record of this time or later, in ISO 8601.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def offsets_command(where: Path, names: tuple[str, ...], when: str | None, as_json: bool) -> None:
    """Show the offsets of partitions: the first, the one behind the last committed record, or that of a time."""
    if when not in (None, "earliest", "latest"):
        _check_selections(None, _from(when))
    with refusals(), opened(where) as tree:
        topics = tree.topics()
        targets = [found(name, topics) for name in names] or [Target(topic, None) for topic in topics]
        rows = [
            (f"{target.topic}-{number}", *_offsets(tree, f"{target.topic}-{number}", when))
            for target in targets
            for number in target.numbers(topics)
        ]
    titles = ("partition", "earliest", "latest") if when is None else ("partition", "offset")
    if as_json:
        click.echo(json.dumps([dict(zip(titles, row, strict=True)) for row in rows], indent=2))
    else:
        show_table(_OUT, titles, [tuple(map(str, row)) for row in rows], right=titles[1:])


def _offsets(tree: Tree, partition: str, when: str | None) -> tuple[int, ...]:
    if when not in (None, "earliest", "latest"):
        return (int(tree.attribute(f"{partition}/time/{_from(when)}.txt", FIRST_OFFSET)),)
    status = tree.status(partition)
    if status.get("offline"):
        raise RefusedError(f"{partition}: {status['offline']}")
    earliest, latest = status["start_offset"], status["stable_offset"]
    return (earliest, latest) if when is None else (earliest if when == "earliest" else latest,)


def _from(when: str) -> str:
    """Return the name, in `time/`, of the records of a time or later."""
    return when if when.startswith("last-") else f"{when}--"
