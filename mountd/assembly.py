"""The daemon's parts, as they are outside tests: the file system over a store, served by libfuse."""

from __future__ import annotations

from typing import Final

from topicfs.engine.batch.table import Bytes
from topicfs.engine.files.views import VIEWS
from topicfs.engine.store.store import Store
from topicfs.fs.fuse import adapter
from topicfs.fs.operations import FileSystem
from topicfs.mountd.daemon import Assembly
from topicfs.mountd.metrics import Counts, Metrics
from topicfs.mountd.min_timestamps import MinTimestampsJob
from topicfs.mountd.parquet import ParquetUpkeep
from topicfs.mountd.view_cache import DirectoryViewCache, ReadOnlyViewCache


class CountedFileSystem(FileSystem):
    """The file system, as the daemon wants it: counted, and with an end.

    counts    goes into the metrics
    view_cache  where size maps are kept
    earliest  makes the files that say how early records are
    parquet   makes the Parquet files
    """

    counts: Counts
    view_cache: DirectoryViewCache
    earliest: MinTimestampsJob
    parquet: ParquetUpkeep

    @classmethod
    def over(cls, store: Store, metrics: Metrics) -> CountedFileSystem:
        """Of a store."""
        view_cache = (ReadOnlyViewCache if store.read_only else DirectoryViewCache)(store.backing / VIEWS)
        made = cls(store, view_cache, store.daemon.batch_size, store.daemon.linger_ms, metrics.render)
        made.counts = metrics.counts
        made.view_cache = view_cache
        made.earliest = MinTimestampsJob(store, view_cache.directory, lambda: made.closing)
        made.parquet = ParquetUpkeep(store, made.context.tables, lambda: made.closing)
        metrics.tell_of(made.context.tables)
        return made

    def read(self, handle: int, position: int, into: Bytes, for_pages: bool = False) -> int:
        size = super().read(handle, position, into, for_pages)
        self.counts.read(size)
        return size

    def write(self, handle: int, data: Bytes, position: int = 0) -> int:
        size = super().write(handle, data, position)
        self.counts.wrote(size)
        return size

    def sweep_maps(self) -> None:
        """Forget the size maps of partitions and segments that are gone."""
        self.view_cache.sweep(self.context.store.logs)
        store = self.context.store
        store.inboxes.sweep(store.clock(), store.steady())

    def keep_earliest(self) -> None:
        """Find out how early the records of sealed segments are."""
        self.earliest.run()

    def keep_tables(self) -> None:
        """Make the Parquet files that are missing, and remove those that are not needed."""
        self.parquet.run()

    def flush_lingering(self) -> None:
        """Append what has lingered long enough, until `close`."""
        self.context.writers.linger.run()

    def read_ahead(self) -> None:
        """Render what readers will want next, until `close`."""
        self.context.read_ahead.run()

    def close(self) -> None:
        """Append what open handles still hold, and let `flush_lingering` and `read_ahead` return."""
        self.closing = True
        self.context.writers.linger.stop()
        self.context.read_ahead.stop()
        self.close_all()
        self.context.writers.flush_all()


ASSEMBLY: Final = Assembly(CountedFileSystem.over, adapter.serve)
