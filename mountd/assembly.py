"""The daemon's parts as they are outside of tests: the file system over a store, served by libfuse."""

from __future__ import annotations

from dataclasses import replace
from time import perf_counter_ns
from typing import Final

from topicfs.engine.batch.table import Bytes
from topicfs.engine.format.paths import VIEWS
from topicfs.engine.jobs import TICK_MS, Job
from topicfs.engine.store.store import Store
from topicfs.fs.fuse import adapter
from topicfs.fs.fuse.adapter import Opened
from topicfs.fs.operations import FileSystem
from topicfs.mountd.daemon import Assembly
from topicfs.mountd.metrics import Metrics
from topicfs.mountd.min_timestamps import MinTimestampsJob
from topicfs.mountd.parquet import ParquetUpkeep
from topicfs.mountd.view_cache import DirectoryViewCache, ReadOnlyViewCache


class CountedFileSystem(FileSystem):
    """The daemon's file system: it counts reads and writes, and also keeps what is derived from segments.

    counts      the counts, which the metrics show
    view_cache  the view cache, where size maps are kept
    """

    def __init__(self, store: Store, metrics: Metrics) -> None:
        self.counts = metrics.counts
        backing = store.backing
        self.view_cache: DirectoryViewCache | ReadOnlyViewCache = (
            ReadOnlyViewCache.of(backing) if store.read_only else DirectoryViewCache(backing / VIEWS)
        )
        super().__init__(store, self.view_cache, metrics.render)
        self.counts.windows = self.windows
        self.counts.holdings = self.context.holdings
        metrics.tell_of(self.context.tables)
        metrics.tell_of_keys(self.context.key_indexes)
        metrics.tell_of_groups(self.context.groups)

    def jobs(self) -> list[Job]:
        store = self.context.store
        sweep = Job("removal of old size maps", 60_000, self.sweep_maps, 60_000, "views")
        if isinstance(self.view_cache, ReadOnlyViewCache):
            return [*super().jobs(), replace(sweep, thread="maps")]
        min_timestamps = MinTimestampsJob(store, self.view_cache.directory, lambda: self.closing)
        parquet = ParquetUpkeep(store, self.context.tables, lambda: self.closing)
        return [
            *super().jobs(),
            sweep,
            Job("earliest timestamps", TICK_MS, min_timestamps.run, TICK_MS, "sealed"),
            Job("Parquet files", TICK_MS, parquet.run, TICK_MS, "sealed"),
        ]

    def open(self, path: str, flags: int, node: int = 0, caller: int = 0) -> Opened:
        began = perf_counter_ns()
        opened = super().open(path, flags, node, caller)
        self.counts.latencies.note("open", perf_counter_ns() - began)
        return opened

    def read(self, handle: int, position: int, into: Bytes, for_pages: bool = False) -> int:
        began = perf_counter_ns()
        size = super().read(handle, position, into, for_pages)
        self.counts.read(size)
        self.counts.latencies.note("read", perf_counter_ns() - began)
        return size

    def write(self, handle: int, data: Bytes, position: int = 0) -> int:
        began = perf_counter_ns()
        size = super().write(handle, data, position)
        self.counts.wrote(size)
        self.counts.latencies.note("write", perf_counter_ns() - began)
        return size

    def flush(self, handle: int) -> None:
        began = perf_counter_ns()
        super().flush(handle)
        self.counts.latencies.note("flush", perf_counter_ns() - began)

    def fsync(self, handle: int, datasync: bool) -> None:
        began = perf_counter_ns()
        super().fsync(handle, datasync)
        self.counts.latencies.note("fsync", perf_counter_ns() - began)

    def sweep_maps(self) -> None:
        """Remove the size maps of partitions and segments that are gone from the view cache."""
        self.view_cache.sweep(*self.context.store.log_directories)


ASSEMBLY: Final = Assembly(CountedFileSystem, adapter.serve)
