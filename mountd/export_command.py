"""`topicfs export`: the records of a topic as files for other programs.

Lines are those of a topic's views, and come through the mount where there is one. Parquet and kcat's lines are made of
the segments themselves, up to the same offsets.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, Protocol

import click

from topicfs.engine.files.atomic import replacing
from topicfs.engine.format.paths import TEMPORARY_SUFFIX
from topicfs.engine.mount_attributes import FIRST_OFFSET
from topicfs.mountd import kernels
from topicfs.mountd.file_formats import KCAT, LINES, PARQUET, ZIPPED, format_of, require_pyarrow, suffix_of
from topicfs.mountd.limits import LIMIT
from topicfs.mountd.progress import CONSOLE, Progress, say
from topicfs.mountd.tables import size_text
from topicfs.mountd.targets import Target, found
from topicfs.mountd.termination import unwound
from topicfs.mountd.tree import MountedTree, RefusedError, Tree, opened, refusals

if TYPE_CHECKING:
    from topicfs.engine.unlocked.offset_range import OffsetRange

Limit = tuple[str, int]

_FORMATS: Final = (*LINES, PARQUET, KCAT)
_STDOUT: Final = "-"
_GZIP_LEVEL: Final = 6
"""What gzip itself uses: level 9, Python's own, takes several times as long for a percent less."""


@dataclass(frozen=True, slots=True)
class _Span:
    """The records of one partition that are exported: those at the offsets [start, end)."""

    number: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class _Written:
    """A file that was written, with its records and its bytes."""

    file: Path
    records: int
    size: int


class _Takes(Protocol):
    """An object that takes bytes."""

    def write(self, data: bytes, /) -> object: ...

    def close(self) -> None: ...


@click.command("export")
@click.argument("where", metavar="BACKING|MOUNT", type=click.Path(path_type=Path))
@click.argument("name", metavar="TOPIC[-PARTITION]")
@click.option(
    "--format",
    "kind",
    type=click.Choice(_FORMATS),
    help="What the file's name says, if not given, else jsonl.",
)
@click.option(
    "--from",
    "start",
    metavar="OFFSET|TIME",
    type=LIMIT,
    help="Begin at this offset, or the first of this time.",
)
@click.option("--to", "end", metavar="OFFSET|TIME", type=LIMIT, help="End before this offset or time.")
@click.option(
    "-o", "--output", metavar="FILE|DIRECTORY/",
    help="Write to FILE, or to a file for each partition in DIRECTORY; standard output if not given, or if it is -.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print JSON about what was written to --output.")
def export_command(
    where: Path,
    name: str,
    kind: str | None,
    start: Limit | None,
    end: Limit | None,
    output: str | None,
    as_json: bool,
) -> None:
    """Write the committed records of a topic, or of one partition, to files: one partition behind the other.

    \b
    jsonl      everything: offset, timestamp, key, value and headers
    tsv        key TAB value
    txt        the value, a line each
    parquet    everything, in the columns of `topicfs sql`
    kcat-json  everything, in the lines of kcat -J

    A FILE is there when all of it is written, and is compressed if its name ends in .gz or .zst. `topicfs import` reads
    all of these. TIME is as in 2026-05-01T06:30, in UTC if it has no zone; a whole number is an offset. What is
    appended later is not exported. parquet and kcat-json need pyarrow: pip install 'topicfs[sql]'."""
    output = None if output == _STDOUT else output
    target_path = None if output is None else Path(output)
    is_directory = output is not None and (output.endswith("/") or Path(output).is_dir())
    chosen = kind or ("jsonl" if target_path is None or is_directory else _named(target_path))
    if chosen == PARQUET and target_path is None and sys.stdout.isatty():
        raise click.UsageError("--format parquet: expected --output FILE or a pipe, found a terminal")
    if chosen == PARQUET and target_path is not None and target_path.suffix in ZIPPED:
        raise click.UsageError(
            f"{target_path}: Parquet is compressed by itself: expected no {target_path.suffix}"
        )
    if as_json and target_path is None:
        raise click.UsageError("--json is about files: expected --output")
    with refusals(), unwound(), opened(where) as tree:
        topics = tree.topics()
        target = found(name, topics)
        if chosen not in LINES:
            require_pyarrow()
            with kernels.loading():
                import topicfs.engine.arrow.exporting  # noqa: F401, PLC0415 - loads pyarrow and the engine
        spans = [_span(tree, target.topic, number, start, end) for number in target.numbers(topics)]
        with Progress() as progress:
            export = _Export(
                tree, where, target, chosen, progress, sum(span.end - span.start for span in spans)
            )
            if target_path is None:
                export.write(spans, sys.stdout.buffer)
                sys.stdout.buffer.flush()
                return
            if is_directory:
                target_path.mkdir(parents=True, exist_ok=True)
                files = [
                    export.to_file([span], target_path / f"{target.topic}-{span.number}{suffix_of(chosen)}")
                    for span in spans
                ]
            else:
                files = [export.to_file(spans, target_path)]
    _show(target, files, as_json)


def _named(file: Path) -> str:
    """Return the format that the name of a file says, jsonl if it has no suffix. click.UsageError for other names:
    nobody expects lines of JSON in a file that is called orders.csv."""
    kind = format_of(file.name)
    if kind in _FORMATS:
        return kind
    stem = file.name.removesuffix(file.suffix) if file.suffix in ZIPPED else file.name
    if Path(stem).suffix:
        raise click.UsageError(
            f"{file}: expected --format, or a name that ends in that of a format, as .jsonl does"
        )
    return "jsonl"


def _span(tree: Tree, topic: str, number: int, start: Limit | None, end: Limit | None) -> _Span:
    partition = f"{topic}-{number}"
    status = tree.status(partition)
    if status.get("offline"):
        raise RefusedError(f"{partition}: {status['offline']}")
    first, behind = status["start_offset"], status["stable_offset"]

    def offset(limit: Limit | None, otherwise: int) -> int:
        if limit is None:
            return otherwise
        which, value = limit
        if which == "time":
            value = int(tree.attribute(f"{partition}/time/{max(0, value):010d}--.txt", FIRST_OFFSET))
        return int(min(max(value, first), behind))

    return _Span(number, offset(start, first), offset(end, behind))


class _Export:
    """The export of one topic or partition.

    _expected  the number of offsets in all that is exported
    _done      the records so far
    """

    def __init__(
        self, tree: Tree, where: Path, target: Target, kind: str, progress: Progress, expected: int
    ) -> None:
        self._tree = tree
        self._where = where
        self._target = target
        self._kind = kind
        self._progress = progress
        self._expected = expected
        self._done = 0

    def to_file(self, spans: list[_Span], path: Path) -> _Written:
        """Write the records into a file, which is there when it is complete."""
        if path.exists() and not path.is_file():
            raise RefusedError(f"{path}: expected the name of a file, found something else that is there")
        if not path.parent.is_dir():
            raise RefusedError(f"{path}: there is no directory {path.parent}")
        with replacing(path, temporary=f".{os.getpid()}{TEMPORARY_SUFFIX}") as descriptor:
            with os.fdopen(descriptor, "wb", closefd=False) as file:
                records = self.write(spans, file, path.suffix)
            size = os.fstat(descriptor).st_size
        return _Written(path, records, size)

    def write(self, spans: list[_Span], file: BinaryIO, suffix: str = "") -> int:
        """Write the records, and return their number: of txt, that of the lines."""
        before = self._done
        if self._kind == PARQUET:
            from topicfs.engine.arrow.exporting import parquet_rows  # noqa: PLC0415 - loads pyarrow and the engine

            for rows in parquet_rows(self._parts(spans), file):
                self._count(rows)
            return self._done - before
        with contextlib.closing(_zipped(file, suffix)) as taker:
            pieces = self._of_segments(spans) if self._kind == KCAT else self._of_views(spans)
            for piece in pieces:
                taker.write(piece)
                self._count(piece.count(b"\n"))
        return self._done - before

    def _of_views(self, spans: list[_Span]) -> Iterator[bytes]:
        for span in spans:
            if span.start < span.end:
                partition = f"{self._target.topic}-{span.number}"
                yield from self._tree.pieces(f"{partition}/offset/{span.start}-{span.end - 1}.{self._kind}")

    def _of_segments(self, spans: list[_Span]) -> Iterator[bytes]:
        from topicfs.engine.arrow.exporting import kcat_lines  # noqa: PLC0415 - loads pyarrow and the engine

        return kcat_lines(self._parts(spans))

    def _parts(self, spans: list[_Span]) -> list[OffsetRange]:
        from topicfs.engine.arrow.exporting import parts_of  # noqa: PLC0415 - loads pyarrow and the engine
        from topicfs.engine.unlocked.place import place_of  # noqa: PLC0415

        where = self._tree.point if isinstance(self._tree, MountedTree) else self._where
        wanted = {span.number: (span.start, span.end) for span in spans}
        return parts_of(place_of(str(where), or_logs=True), self._target.topic, wanted)

    def _count(self, records: int) -> None:
        self._done += records
        if CONSOLE.is_terminal:
            self._progress.progress(f"exported {self._done} of {self._expected} records")


class _Plain:
    """Bytes as they are. The file stays open."""

    def __init__(self, file: BinaryIO) -> None:
        self.write = file.write

    def close(self) -> None:
        """Do nothing: nothing is held back."""


class _Zstandard:
    """Bytes as one frame of Zstandard. The file stays open."""

    def __init__(self, file: BinaryIO) -> None:
        import cramjam  # noqa: PLC0415 - most files are not compressed

        self._file = file
        self._frame = cramjam.zstd.Compressor()

    def write(self, data: bytes) -> None:
        """Compress bytes."""
        self._frame.compress(data)
        self._file.write(bytes(self._frame.flush()))

    def close(self) -> None:
        """End the frame."""
        self._file.write(bytes(self._frame.finish()))


def _zipped(file: BinaryIO, suffix: str) -> _Takes:
    """Return what compresses into a file, as the suffix of its name says."""
    if suffix == ".gz":
        return gzip.GzipFile("", "wb", _GZIP_LEVEL, file, mtime=0)
    return _Zstandard(file) if suffix == ".zst" else _Plain(file)


def _show(target: Target, files: list[_Written], as_json: bool) -> None:
    records = sum(file.records for file in files)
    if as_json:
        fields = {
            "topic": target.topic,
            "records": records,
            "files": [
                {"file": str(file.file), "records": file.records, "bytes": file.size} for file in files
            ],
        }
        click.echo(json.dumps(fields, indent=2))
        return
    size = size_text(sum(file.size for file in files))
    place = str(files[0].file) if len(files) == 1 else f"{len(files)} files"
    say(f"{target.name}: {records} records, {size} in {place}")
