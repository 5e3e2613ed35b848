"""`topicfs import`: files of records into a topic, each one whole and once.

A file becomes a batch of the topic's inbox, whose name is made of what the file holds. So an import that is made again
finds its batch committed, and adds nothing.
"""

from __future__ import annotations

import contextlib
import errno
import gzip
import hashlib
import json
import secrets
import shutil
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from io import BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, cast

import click
from rich.console import Console

from topicfs.engine.errors import EngineError
from topicfs.engine.format.paths import IMPORT_SCRATCH
from topicfs.engine.mount_attributes import COMMITTED, WARNING
from topicfs.mountd import kernels
from topicfs.mountd.file_formats import KCAT, LINES, PARQUET, ZIPPED, format_of, require_pyarrow
from topicfs.mountd.progress import CONSOLE, Progress, say
from topicfs.mountd.tables import show_line, size_text
from topicfs.mountd.targets import TOPICS, Target, found
from topicfs.mountd.termination import unwound
from topicfs.mountd.tree import MountedTree, RefusedError, Tree, opened, refusals

if TYPE_CHECKING:
    from topicfs.engine.inbox.rows import Rows

Tell = Callable[[int], None]

_OUT: Final = Console(highlight=False)
_STDIN: Final = "-"
_ARROW: Final = "arrow"
_FORMATS: Final = (*LINES, PARQUET, _ARROW, KCAT)
_PIECE: Final = 1 << 20
_LINE_BYTES: Final = 256 << 20
"""Bytes of a line, at most; the topic's own limit of a record is lower."""
_DIGEST_CHARACTERS: Final = 32
_OF_KCAT: Final = ('unknown member "tstype"', 'unknown member "payload"')


@dataclass(frozen=True, slots=True)
class _Imported:
    """What became of a file.

    records  the records of it that the topic has now
    added    whether this import has added them; False where an earlier one had
    """

    file: str
    records: int
    added: bool


@click.command("import")
@click.argument("where", metavar="BACKING|MOUNT", type=click.Path(path_type=Path))
@click.argument("name", metavar="TOPIC[-PARTITION]")
@click.argument("files", metavar="FILE...", nargs=-1, required=True)
@click.option(
    "--format", "kind", type=click.Choice(_FORMATS), help="What the files' names say, if not given."
)
@click.option("--by-key", is_flag=True, help="Choose partitions by keys also for records that name one.")
@click.option("--again", is_flag=True, help="Add also what was imported before, once more.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def import_command(
    where: Path,
    name: str,
    files: tuple[str, ...],
    kind: str | None,
    by_key: bool,
    again: bool,
    as_json: bool,
) -> None:
    """Add the records of files to a topic, or to one partition: each file whole, or nothing of it.

    \b
    jsonl      lines of jsonl, as exported: with timestamps, keys, values and headers
    tsv        key TAB value
    txt        the value, a line each
    parquet    the columns value, key, headers, timestamp and partition, of which only value must be there
    arrow      the same
    kcat-json  the lines of kcat -J

    A file of lines may be compressed, with a name that ends in .gz or .zst; - is standard input, and a pipe may be
    named too. A record goes to the partition that it names, else to that of its key, else to the partitions in turn.
    Records without a timestamp get the time of the import. Of those that are older than the topic's retention.ms it
    says so: retention removes them soon. `topicfs create … -o retention.ms=-1`, or that line in config, keeps them.

    The same file is not added twice: to import it again, after an interruption too, adds what is missing, and nothing
    else. So a long list of files can be imported until all is done. kcat-json and .zst need pyarrow: pip install
    'topicfs[sql]'."""
    kinds = [kind or format_of(file) for file in files]
    for file, each in zip(files, kinds, strict=True):
        if not file:
            raise click.UsageError("expected the name of a file, found an empty one")
        if each is None:
            raise click.UsageError(
                f"{file}: expected --format, or a name that ends in .jsonl or another format's name"
            )
        if each in (PARQUET, _ARROW) and Path(file).suffix in ZIPPED:
            raise click.UsageError(f"{file}: expected a file of {each} that is not compressed, by its name")
    done = []
    with refusals(), unwound(), opened(where, changes=True) as tree, Progress() as progress:
        target = found(name, tree.topics())
        for file, each in zip(files, kinds, strict=True):
            assert each is not None
            imported = _Import(tree, target, file, each, by_key, again, progress).run()
            done.append(imported)
            if not as_json:
                progress.close()
                show_line(_OUT, f"{file}: {_became(imported)}")
    if as_json:
        click.echo(json.dumps([asdict(each) for each in done], indent=2))


def _became(imported: _Imported) -> str:
    """Return what became of the records of a file, in words."""
    one = imported.records == 1
    records = "1 record" if one else f"{imported.records} records"
    if imported.added:
        return f"{records} {'is' if one else 'are'} added"
    return f"{records} {'was' if one else 'were'} imported before: nothing is added"


class _Import:
    """The import of one file.

    _file     the name of the file
    _kind     its format
    _apart    whether records do not go where they themselves say
    _inbox    the topic's inbox, in the tree
    """

    def __init__(
        self,
        tree: Tree,
        target: Target,
        file: str,
        kind: str,
        by_key: bool,
        again: bool,
        progress: Progress,
    ) -> None:
        self._tree = tree
        self._target = target
        self._file = file
        self._kind = kind
        self._apart = (by_key or target.number is not None) and kind not in ("txt", "tsv")
        self._again = again
        self._progress = progress
        self._inbox = f"{TOPICS}/{target.topic}/inbox"

    def run(self) -> _Imported:
        """Add the records, unless that was done before."""
        with _opened(self._file) as file:
            digest = hashlib.file_digest(file, hashlib.blake2b).hexdigest()[:_DIGEST_CHARACTERS]
            size = file.tell()
            file.seek(0)
            batch = f"import-{self._kind}-{digest}"
            if self._target.number is not None:
                batch += f"-{self._target.number}"
            batch += "-by-key" if self._apart and self._target.number is None else ""
            if self._again:
                batch += f"-{secrets.token_hex(4)}"
            records = self._committed(batch)
            if records is not None:
                return _Imported(self._file, records, added=False)
            added = self._add(file, size, batch)
        if added:
            self._warn(batch)
        return _Imported(self._file, self._committed(batch) or 0, added)

    def _committed(self, batch: str) -> int | None:
        """Return how many records were committed under a name; None if there was no such batch."""
        records = self._tree.attribute(self._inbox, COMMITTED + batch)
        return int(records) if records else None

    def _warn(self, batch: str) -> None:
        """Say what the daemon has to say of a batch. What this process itself logs is on standard error already."""
        if not isinstance(self._tree, MountedTree):
            return
        with contextlib.suppress(RefusedError):  # a daemon of an earlier version has no such attribute
            words = self._tree.attribute(self._inbox, WARNING + batch).decode()
            if words:
                self._progress.close()
                say(f"{self._file}: {words}")

    def _add(self, file: BufferedReader, size: int, batch: str) -> bool:
        """Add the records. Return False if another import of the file has done so meanwhile."""
        staged = f"{self._inbox}/{IMPORT_SCRATCH}{secrets.token_hex(8)}"
        place = staged if self._target.number is None else f"{staged}/partition={self._target.number}"
        kind = _ARROW if self._apart or self._kind == KCAT else self._kind

        def tell(done: int) -> None:
            if CONSOLE.is_terminal:
                self._progress.progress(f"{self._file}: {size_text(done)} of {size_text(size)} read")

        self._tree.make_directory(staged)
        try:
            if place != staged:
                self._tree.make_directory(place)
            self._tree.make_file(f"{place}/records.{kind}", self._pieces(file, size, tell))
            with self._tree.alone(self._inbox):
                if self._committed(batch) is not None:
                    self._tree.remove(staged)
                    return False
                # What an import has left that could not be ended is this file, too.
                self._tree.remove(f"{self._inbox}/{batch}")
                self._tree.move(staged, f"{self._inbox}/{batch}")
                staged = f"{self._inbox}/{batch}"
                if CONSOLE.is_terminal:
                    self._progress.progress(f"{self._file}: its records are appended")
                self._tree.make_file(f"{staged}/_SUCCESS")
        except BaseException as error:
            self._tree.remove(staged)
            if isinstance(error, (RefusedError, EngineError)):
                raise RefusedError(self._told(str(error))) from None
            raise
        return True

    def _told(self, words: str) -> str:
        """Return why the file is refused, with its name in place of those in the inbox."""
        reason = words.rpartition("/records.")[2].partition(": ")[2] if self._inbox in words else words
        hint = (
            f": --format {KCAT} is for the lines of kcat"
            if any(member in words for member in _OF_KCAT)
            else ""
        )
        return f"{self._file}: nothing of it is added: {reason}{hint}"

    # -- what is put into the inbox --------------------------------------------------------------------

    def _pieces(self, file: BufferedReader, size: int, tell: Tell) -> Iterator[bytes]:
        read = cast(BinaryIO, _Read(file, size, tell))
        if self._kind in (PARQUET, _ARROW):
            yield from self._of_rows(file) if self._apart else _pieces(read)
            return
        unzipped = _unzipped(read, Path(self._file).suffix)
        try:
            if self._kind == KCAT:
                yield from self._of_kcat(unzipped)
            else:
                yield from self._of_lines(unzipped) if self._apart else _pieces(unzipped)
        except (EOFError, OSError, zlib.error) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise  # of the disk, not of what the file holds
            raise RefusedError(f"it cannot be unpacked: {error}") from None

    def _of_kcat(self, file: BinaryIO) -> Iterator[bytes]:
        require_pyarrow()
        from topicfs.engine.column_files import kcat, streams  # noqa: PLC0415 - loads pyarrow

        rows = kcat.batches(file)
        dropped = (batch.drop_columns(["partition"]) for batch in rows) if self._apart else rows
        return streams.stream_of(dropped)

    def _of_rows(self, file: BufferedReader) -> Iterator[bytes]:
        with kernels.loading():
            from topicfs.engine.column_files import streams  # noqa: PLC0415 - loads pyarrow and the engine

        rows = streams.rows_of_file(self._kind, Path(f"/proc/self/fd/{file.fileno()}"))
        return streams.stream_of(streams.without_partitions(rows))

    def _of_lines(self, file: BinaryIO) -> Iterator[bytes]:
        require_pyarrow()
        with kernels.loading():
            from topicfs.engine.column_files import streams  # noqa: PLC0415 - loads pyarrow and the engine

        return streams.stream_of(streams.without_partitions(self._rows_of_lines(file)))

    def _rows_of_lines(self, file: BinaryIO) -> Iterator[Rows]:
        import numpy as np  # noqa: PLC0415 - the engine has loaded it

        from topicfs.engine.inbox.rows import UNDATED, Rows  # noqa: PLC0415 - the engine is loaded
        from topicfs.fs.formats import Format  # noqa: PLC0415
        from topicfs.fs.inbox.data_files import whole_lines  # noqa: PLC0415

        passed = 0
        blocks = (np.frombuffer(piece, np.uint8) for piece in _pieces(file))
        for lines in whole_lines(blocks, _LINE_BYTES, self._file):
            parsed = Format.JSONL.parse(lines, UNDATED)
            if parsed.error is not None:
                line = passed + parsed.error.line
                raise RefusedError(f"line {line}: byte {parsed.error.position}: {parsed.error.reason}")
            passed += len(parsed.columns)
            yield Rows(parsed.columns, parsed.partitions)


class _Read:
    """A file that tells how far it was read. Of one that grows it has what the name of the batch was made of."""

    closed = False

    def __init__(self, file: BinaryIO, size: int, tell: Tell) -> None:
        self._file = file
        self._size = size
        self._tell = tell
        self._done = 0

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes."""
        left = self._size - self._done
        found = self._file.read(left if size < 0 else min(size, left))
        self._done += len(found)
        self._tell(self._done)
        return found

    def close(self) -> None:
        """Leave the file open: it is not this object's."""


@contextlib.contextmanager
def _opened(name: str) -> Iterator[BufferedReader]:
    """Open a file that can be read twice. What comes through a pipe is kept in a file meanwhile."""
    with contextlib.ExitStack() as stack:
        given = sys.stdin.buffer if name == _STDIN else stack.enter_context(Path(name).open("rb"))
        if name != _STDIN and given.seekable():
            yield cast(BufferedReader, given)
            return
        file = stack.enter_context(tempfile.TemporaryFile())
        try:
            shutil.copyfileobj(given, file, _PIECE)
            file.seek(0)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            raise RefusedError(
                f"{name}: nothing of it is added: what comes through a pipe is kept in {tempfile.gettempdir()} "
                "meanwhile, and there is no room: TMPDIR names another directory"
            ) from None
        yield cast(BufferedReader, file)


def _pieces(file: BinaryIO) -> Iterator[bytes]:
    while piece := file.read(_PIECE):
        yield piece


def _unzipped(file: BinaryIO, suffix: str) -> BinaryIO:
    """Return a file as it was before it was compressed, as the suffix of its name says."""
    if suffix == ".gz":
        return cast(BinaryIO, gzip.GzipFile(fileobj=file, mode="rb"))
    if suffix == ".zst":
        require_pyarrow()
        from topicfs.engine.column_files.streams import unzipped  # noqa: PLC0415 - loads pyarrow

        return unzipped(file)
    return file
