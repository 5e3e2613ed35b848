"""`sealed/parquet/` and `topics/<topic>/table/`: sealed segments as Parquet files, which the daemon makes.

The names exist only for topics with `parquet.enable`.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Final

from topicfs.engine.batch.table import Bytes
from topicfs.engine.errors import UnknownPartitionError
from topicfs.engine.files.integers import parse_int32
from topicfs.engine.parquet.table import TableFile
from topicfs.engine.segment.descriptors import OtherFile
from topicfs.fs import errors
from topicfs.fs.context import Context
from topicfs.fs.entry import Directory, Entry, Handle, refuse_writing, version_of
from topicfs.fs.selections import parse_sealed, sealed_name
from topicfs.fs.tree.partition_entry import PartitionEntry, range_xattrs
from topicfs.fs.tree.topic_entry import TopicEntry
from topicfs.fs.views.partition_views import PartitionViews

PARQUET: Final = "parquet"
TABLE: Final = "table"
_PARTITION: Final = "partition="


class ParquetHandle(Handle):
    """An open Parquet file. It stays readable after another one has replaced it."""

    direct_io = False
    keep_cache = True
    is_settled = True

    def __init__(self, file: OtherFile, size: int) -> None:
        self._file = file
        self._size = size

    def size(self) -> int:
        return self._size

    def read(self, position: int, into: Bytes) -> int:
        return self._file.read(position, into)

    def release(self) -> None:
        self._file.close()


@dataclass(eq=False)
class ParquetFile(PartitionEntry):
    """A sealed segment as a Parquet file. Its modification time is that of the segment's `.log`."""

    file: TableFile

    can_go = True

    @property
    def is_there(self) -> bool:
        partition = self.views.partition
        return partition.is_open and self.context.tables.find(partition, self.file.base_offset) == self.file

    @property
    def is_current(self) -> bool:
        return self.is_there and self.path.endswith(f"/{_name(self.views, self.file)}")

    @property
    def generation(self) -> Hashable:
        return super().generation, self.file.name, self.file.size

    @property
    def version(self) -> int:
        return version_of(self.views.serial, self.file)

    @property
    def fleeting(self) -> bool:  # type: ignore[override]
        # As with segments, compaction may cause another file to be made.
        return self.views.partition.settings.compact

    def size(self) -> int:
        return self.file.size

    def mtime_ns(self) -> int:
        return self.file.mtime_ns

    def xattrs(self) -> dict[str, bytes]:
        return range_xattrs(self.file.base_offset, self.file.next_offset, self.file.max_timestamp)

    def open(self, flags: int) -> Handle:
        refuse_writing(self, flags)
        try:
            file = self.context.tables.open(self.views.partition, self.file)
        except FileNotFoundError:
            raise errors.NotFoundError(f"{self.path} was removed") from None
        return ParquetHandle(file, self.file.size)


class ParquetDirectory(PartitionEntry, Directory):
    """A partition's Parquet files. A name exists only when its bytes are final, and contain a record."""

    @property
    def is_current(self) -> bool:
        return super().is_current and self.views.partition.settings.parquet_enable

    def names(self) -> Iterable[str]:
        for file in self.context.tables.files(self.views.partition):
            yield _name(self.views, file)

    def lookup(self, name: str) -> Entry:
        base = parse_sealed(name.partition(".")[0])
        found = None if base is None else self.context.tables.find(self.views.partition, base)
        if found is None or name != _name(self.views, found):
            raise self.missing(name)
        return ParquetFile(self.child(name), self.views, found)


def _name(views: PartitionViews, file: TableFile) -> str:
    return f"{sealed_name(file.base_offset, file.next_offset, views.partition.settings.compact)}.{PARQUET}"


class TableDirectory(TopicEntry, Directory):
    """A topic as a table: a directory for each partition, named as Spark and others name those of a column."""

    def names(self) -> Iterable[str]:
        for number in self.context.store.topics().get(self.topic, ()):
            yield f"{_PARTITION}{number}"

    def lookup(self, name: str) -> Entry:
        number = parse_int32(name.removeprefix(_PARTITION)) if name.startswith(_PARTITION) else None
        if number is None or name != f"{_PARTITION}{number}":
            raise self.missing(name)
        try:
            views = self.context.views(self.topic, number)
        except UnknownPartitionError:
            raise self.missing(name) from None
        return ParquetDirectory(self.child(name), views)


def has_table(context: Context, topic: str) -> bool:
    """Tell whether a topic is there, and its settings ask for a table."""
    try:
        return context.store.topic_settings(topic).parquet_enable
    except UnknownPartitionError:
        return False
