"""`sealed/parquet/` and `topics/<topic>/table/`: sealed segments as Parquet files, which the daemon makes.

Only those of a topic with `parquet.enable` are there: without it the names are not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from engine.batch.table import Bytes
from engine.errors import UnknownPartitionError
from engine.files.integers import parse_int32
from engine.parquet.table import OpenTableFile, TableFile, Tables
from fs import errors
from fs.entry import Attributes, Directory, Entry, Handle, Owner, inode, refuse_writing
from fs.house import House
from fs.kept_pages import Kept
from fs.names import base_name, parse_base
from fs.shown import ShownPartition
from fs.tree.of_partition import OfPartition
from fs.tree.of_topic import OfTopic

PARQUET: Final = "parquet"
TABLE: Final = "table"
_PARTITION: Final = "partition="


class ParquetHandle(Handle):
    """An open file: it stays readable when another one has replaced it.

    _closed  told of the close, where the kernel keeps what was read; None where nothing is kept
    """

    def __init__(self, file: OpenTableFile, closed: Callable[[], None] | None) -> None:
        self._file = file
        self.direct_io = closed is None
        self.keep_cache = closed is not None
        self._closed = closed

    def read(self, position: int, into: Bytes) -> int:
        return self._file.read_into(position, into)

    def release(self) -> None:
        self._file.close()
        if self._closed is not None:
            self._closed()


class ParquetFile(OfPartition):
    """A sealed segment as a Parquet file. It is as old as the segment's `.log`."""

    outlives_its_name = True

    def __init__(self, path: str, shown: ShownPartition, tables: Tables, file: TableFile) -> None:
        super().__init__(path, shown)
        self.tables = tables
        self.file = file

    @property
    def is_current(self) -> bool:
        partition = self.shown.partition
        return partition.is_open and self.tables.find(partition, self.file.base_offset) == self.file

    @property
    def generation(self) -> int:
        return self.file.generation

    def size(self) -> int:
        return self.file.size

    def mtime_ns(self) -> int:
        return self.file.mtime_ns

    def attributes(self, owner: Owner) -> Attributes:
        found = super().attributes(owner)
        kept = self.shown.kept.before(self.path, self.file)
        return found if kept is None else found._replace(size=kept.size, ino=kept.ino, mtime_ns=kept.mtime_ns)

    def xattrs(self) -> dict[str, bytes]:
        return {
            "user.topicfs.first_offset": str(self.file.base_offset).encode(),
            "user.topicfs.next_offset": str(self.file.next_offset).encode(),
            "user.topicfs.max_timestamp": str(self.file.max_timestamp).encode(),
        }

    def open(self, flags: int) -> Handle:
        refuse_writing(self, flags)
        try:
            file = self.tables.open(self.shown.partition, self.file)
        except FileNotFoundError:
            raise errors.NotFoundError(f"{self.path} was removed") from None
        return ParquetHandle(file, self._keep())

    def _keep(self) -> Callable[[], None] | None:
        """As segments' files: what compaction may rewrite goes past the kernel's cache."""
        if self.shown.partition.settings.compact:
            return None
        now = Kept(self.file, self.size(), inode(self.path, self.generation), self.mtime_ns())
        return partial(self.shown.kept.close, self.path) if self.shown.kept.open(self.path, now) else None


class ParquetDirectory(OfPartition, Directory):
    """A partition's Parquet files. A name is there only when its bytes are final, and hold a record."""

    def __init__(self, path: str, shown: ShownPartition, tables: Tables) -> None:
        super().__init__(path, shown)
        self.tables = tables

    @property
    def is_current(self) -> bool:
        return super().is_current and self.shown.partition.settings.parquet_enable

    def names(self) -> Iterable[str]:
        for file in self.tables.files(self.shown.partition):
            yield f"{base_name(file.base_offset)}.{PARQUET}"

    def lookup(self, name: str) -> Entry:
        stem, _, suffix = name.partition(".")
        base = parse_base(stem)
        found = None if base is None else self.tables.find(self.shown.partition, base)
        if found is None or suffix != PARQUET:
            raise self.missing(name)
        return ParquetFile(self.child(name), self.shown, self.tables, found)


class TableDirectory(OfTopic, Directory):
    """A topic as a table: a directory for each partition, as Spark and others name those of a column."""

    def names(self) -> Iterable[str]:
        for number in self.house.store.topics().get(self.topic, ()):
            yield f"{_PARTITION}{number}"

    def lookup(self, name: str) -> Entry:
        number = parse_int32(name.removeprefix(_PARTITION)) if name.startswith(_PARTITION) else None
        if number is None or name != f"{_PARTITION}{number}":
            raise self.missing(name)
        try:
            shown = self.house.shown(self.topic, number)
        except UnknownPartitionError:
            raise self.missing(name) from None
        return ParquetDirectory(self.child(name), shown, self.house.tables)


def table_of(path: str, house: House, topic: str) -> TableDirectory | None:
    """A topic's table; None where it wants none."""
    try:
        wanted = house.store.topic_settings(topic).parquet_enable
    except UnknownPartitionError:
        return None
    return TableDirectory(path, house, topic) if wanted else None
