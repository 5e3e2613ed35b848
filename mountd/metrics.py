"""The metrics of the daemon: the file MOUNT/metrics, in Prometheus' text format.

They include only partitions that are loaded: reading the metrics must not load the others.
"""

from __future__ import annotations

import threading
from collections import Counter as Counted
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from topicfs.engine.groups.groups import Groups
from topicfs.engine.jobs import Jobs
from topicfs.engine.keys.index import KeyIndex
from topicfs.engine.linked.state import MirrorState
from topicfs.engine.parquet.table import Tables
from topicfs.engine.partition.partition import Partition
from topicfs.engine.partition.slot import Slot
from topicfs.engine.retention.rules import Reason
from topicfs.engine.store.store import Store
from topicfs.fs.error_budget import ERRORS
from topicfs.fs.fuse.windows import Windows
from topicfs.fs.holdings import Holdings
from topicfs.mountd.cleaners import Cleaners, CleanerState
from topicfs.mountd.latency import Latencies

if TYPE_CHECKING:
    from topicfs.engine.link.group import Group
    from topicfs.mountd.link import Link

_PARTITION = ("topic", "partition")
_MOST_GROUPS = 100
"""Groups that have a line of their own: programs may make any number of them."""


class Counts:
    """The counts of the mount. Every thread updates them, at every request, with a lock and an addition each.

    reads, read_bytes      calls of read, and the bytes that they returned
    windows                counts the reads that were answered without a call; None before there is a file system
    holdings               what programs hold of the mount; None before there is a file system
    writes, written_bytes  calls of write, and the bytes that they took. Records are counted by the end offsets
    latencies              how long calls took
    """

    def __init__(self) -> None:
        self.reads = 0
        self.read_bytes = 0
        self.windows: Windows | None = None
        self.holdings: Holdings | None = None
        self.writes = 0
        self.written_bytes = 0
        self.latencies = Latencies()
        self._guard = threading.Lock()

    def all_reads(self) -> tuple[int, int]:
        """Return the number of all answered reads, and their bytes."""
        if self.windows is None:
            return self.reads, self.read_bytes
        return self.reads + self.windows.reads, self.read_bytes + self.windows.read_bytes

    def read(self, size: int) -> None:
        """Count one read that returned so many bytes."""
        with self._guard:
            self.reads += 1
            self.read_bytes += size

    def wrote(self, size: int) -> None:
        """Count one write that took so many bytes."""
        with self._guard:
            self.writes += 1
            self.written_bytes += size


class Metrics:
    """All metrics. They are gathered when they are read.

    counts  the counts of the mount
    """

    def __init__(
        self,
        store: Store,
        jobs: Jobs,
        logged: Callable[[], Mapping[str, int]],
        cleaners: Cleaners | None = None,
    ) -> None:
        self.counts = Counts()
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(_Partitions(store))
        self._registry.register(_Mount(self.counts, logged))
        self._registry.register(self.counts.latencies)
        self._registry.register(_Jobs(jobs))
        self._registry.register(_Shape(store))
        self._registry.register(_Inboxes(store))
        self._registry.register(_Transactions(store))
        if cleaners is not None:
            self._registry.register(_Cleaners(cleaners))
        ProcessCollector(registry=self._registry)

    def tell_of(self, tables: Tables) -> None:
        """Add the metrics of the Parquet files."""
        self._registry.register(_Parquet(tables))

    def tell_of_keys(self, indexes: Callable[[], Iterable[KeyIndex]]) -> None:
        """Add the metrics of the indexes of keys that are in use."""
        self._registry.register(_Keys(indexes))

    def tell_of_groups(self, groups: Groups) -> None:
        """Add the metrics of consumer groups."""
        self._registry.register(_Groups(groups))

    def tell_of_link(self, store: Store, link: Link) -> None:
        """Add the metrics of the link to a Kafka cluster."""
        self._registry.register(_Link(store, link))

    def render(self) -> bytes:
        """Return the content of MOUNT/metrics."""
        return generate_latest(self._registry)

    def serve(self, port: int) -> Callable[[], None]:
        """Serve them over HTTP on this machine alone; return what ends that. OSError where the port is taken."""
        server, thread = start_http_server(port, "127.0.0.1", self._registry)

        def end() -> None:
            server.shutdown()
            server.server_close()
            thread.join()

        return end


class _Partitions(Collector):
    """The metrics of each loaded partition, and the number of partitions."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def collect(self) -> Iterator[Metric]:
        slots = self._store.slots()
        loaded = [slot.partition for slot in slots if slot.partition is not None]
        states = GaugeMetricFamily(
            "topicfs_partitions", "Partitions, by whether they are in use.", labels=("state",)
        )
        offline = sum(_is_offline(slot) for slot in slots)
        states.add_metric(
            ("loaded",), sum(slot.partition is not None and not _is_offline(slot) for slot in slots)
        )
        states.add_metric(("offline",), offline)
        states.add_metric(("unused",), sum(slot.partition is None and slot.error is None for slot in slots))
        yield states
        offsets = [(partition, partition.offsets) for partition in loaded]
        yield _gauge("start_offset", "First offset that may be read.", [(p, o.start) for p, o in offsets])
        yield _gauge("end_offset", "Offset of the next record.", [(p, o.end) for p, o in offsets])
        yield _gauge("stable_offset", "Below every open transaction.", [(p, o.stable) for p, o in offsets])
        yield _gauge(
            "recovery_point",
            "Offsets below are known to be on disk.",
            [(p, p.recovery_point) for p in loaded],
        )
        yield _gauge("size_bytes", "Bytes in .log files.", [(p, p.size) for p in loaded])
        yield _gauge("segments", "Segments.", [(p, len(p.log.snapshot.segments)) for p in loaded])
        yield _gauge(
            "pinned_bytes",
            "Bytes of removed segments that readers still hold.",
            [(p, sum(s.size for s in p.log.chain.doomed_segments if s.pins)) for p in loaded],
        )


def _is_offline(slot: Slot) -> bool:
    partition = slot.partition
    return slot.error is not None or (partition is not None and partition.log.failure is not None)


def _gauge(name: str, text: str, values: Iterable[tuple[Partition, int]]) -> Metric:
    family = GaugeMetricFamily(f"topicfs_partition_{name}", text, labels=_PARTITION)
    for partition, value in values:
        family.add_metric((partition.topic, str(partition.number)), value)
    return family


class _Mount(Collector):
    """The counts of the mount, and the numbers of log messages."""

    def __init__(self, counts: Counts, logged: Callable[[], Mapping[str, int]]) -> None:
        self._counts = counts
        self._logged = logged

    def collect(self) -> Iterator[Metric]:
        counts = self._counts
        reads, read_bytes = counts.all_reads()
        yield CounterMetricFamily("topicfs_reads", "Reads answered.", value=reads)
        yield CounterMetricFamily("topicfs_read_bytes", "Bytes read.", value=read_bytes)
        yield CounterMetricFamily("topicfs_writes", "Writes accepted.", value=counts.writes)
        yield CounterMetricFamily("topicfs_written_bytes", "Bytes written.", value=counts.written_bytes)
        if counts.holdings is not None:
            for name, text, holding in (
                ("open_files", "Files of the mount that programs have open.", counts.holdings.open_files),
                ("followers", "Those of them that wait for records to come.", counts.holdings.followers),
                (
                    "unfinished_bytes",
                    "Bytes of lines whose newline has not come.",
                    counts.holdings.unfinished_bytes,
                ),
            ):
                held = GaugeMetricFamily(f"topicfs_{name}", text)
                held.add_metric((), holding.held)
                yield held
        yield _counter("topicfs_errors", "Calls that failed.", "errno", ERRORS.counts())
        yield _counter("topicfs_log_messages", "Warnings and errors logged.", "level", self._logged())


class _Jobs(Collector):
    """The results of the background jobs."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs

    def collect(self) -> Iterator[Metric]:
        states = self._jobs.states
        yield _counter(
            "topicfs_job_runs", "Starts.", "job", {name: each.runs for name, each in states.items()}
        )
        yield _counter(
            "topicfs_job_errors", "Failures.", "job", {name: each.errors for name, each in states.items()}
        )
        last = GaugeMetricFamily("topicfs_job_last_run_timestamp_seconds", "Last start.", labels=("job",))
        duration = GaugeMetricFamily("topicfs_job_last_duration_seconds", "The last run's.", labels=("job",))
        healthy = GaugeMetricFamily("topicfs_job_healthy", "0 when the last run failed.", labels=("job",))
        for name, state in states.items():
            healthy.add_metric((name,), state.healthy)
            if state.last_run is not None:
                last.add_metric((name,), state.last_run / 1000)
                duration.add_metric((name,), state.duration_s)
        yield from (last, duration, healthy)


class _Shape(Collector):
    """The metrics of upkeep: what retention removed, and what compaction cannot handle."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def collect(self) -> Iterator[Metric]:
        removed = self._store.retention.removed.by_reason
        counts = {reason.value: removed.get(reason, (0, 0)) for reason in Reason}
        segments = {reason: count for reason, (count, _) in counts.items()}
        sizes = {reason: size for reason, (_, size) in counts.items()}
        yield _counter("topicfs_removed_segments", "Segments that retention removed.", "reason", segments)
        yield _counter("topicfs_removed_bytes", "Their bytes.", "reason", sizes)
        failing = GaugeMetricFamily(
            "topicfs_retention_failing_partitions", "Partitions whose retention failed last time."
        )
        failing.add_metric((), len(self._store.retention.failing))
        yield failing
        unreadable = GaugeMetricFamily(
            "topicfs_compaction_failing_partitions",
            "Partitions whose files compaction could not read or write.",
        )
        unreadable.add_metric((), len(self._store.cleaning.failing))
        yield unreadable
        uncleanable = GaugeMetricFamily(
            "topicfs_uncleanable_partitions", "Partitions that compaction has set aside."
        )
        uncleanable.add_metric((), len(self._store.cleaning.uncleanable))
        yield uncleanable
        why = GaugeMetricFamily(
            "topicfs_uncleanable", "Why a partition is set aside.", labels=(*_PARTITION, "error")
        )
        for (topic, number), error in sorted(dict(self._store.cleaning.uncleanable).items()):
            why.add_metric((topic, str(number), error), 1)
        yield why


class _Inboxes(Collector):
    """The metrics of inboxes: what lies in them and is not committed, of each topic that has some."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def collect(self) -> Iterator[Metric]:
        batches = GaugeMetricFamily(
            "topicfs_inbox_waiting_batches", "Batches that are not committed.", labels=("topic",)
        )
        files = GaugeMetricFamily("topicfs_inbox_waiting_files", "Their files.", labels=("topic",))
        since = GaugeMetricFamily(
            "topicfs_inbox_waiting_since_timestamp_seconds",
            "Last change of the one that was left alone for the longest.",
            labels=("topic",),
        )
        for topic, waiting in self._store.inboxes.waiting().items():
            batches.add_metric((topic,), len(waiting))
            files.add_metric((topic,), sum(batch.files for batch in waiting))
            since.add_metric((topic,), waiting[0].since_ms / 1000)
        yield from (batches, files, since)


class _Transactions(Collector):
    """The metrics of transactions, also those of inboxes: how many ids are in which state, and how many cannot end."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def collect(self) -> Iterator[Metric]:
        coordinator = self._store.transactions
        known = GaugeMetricFamily(
            "topicfs_transactional_ids", "Transactional ids that are known, by state.", labels=("state",)
        )
        for state, count in sorted(Counted(each.state.title for each in coordinator.transactions()).items()):
            known.add_metric((state,), count)
        unsettled = GaugeMetricFamily(
            "topicfs_transactions_unsettled", "Transactions that could not be completed yet."
        )
        unsettled.add_metric((), coordinator.unsettled)
        yield from (known, unsettled)


class _Keys(Collector):
    """The metrics of the indexes of keys that are in use. No lock is taken: an index may be read for minutes."""

    def __init__(self, indexes: Callable[[], Iterable[KeyIndex]]) -> None:
        self._indexes = indexes

    def collect(self) -> Iterator[Metric]:
        labels = ("topic", "partition")
        live = GaugeMetricFamily("topicfs_keys_live", "Keys that have a value.", labels=labels)
        size = GaugeMetricFamily("topicfs_keys_index_bytes", "Memory of their index.", labels=labels)
        behind = GaugeMetricFamily(
            "topicfs_keys_behind_records", "Offsets that the index has still to read.", labels=labels
        )
        lookups = CounterMetricFamily("topicfs_keys_lookups", "Keys looked up.", labels=labels)
        read = CounterMetricFamily("topicfs_keys_read_records", "Records read for the index.", labels=labels)
        seconds = CounterMetricFamily("topicfs_keys_read_seconds", "Time that this took.", labels=labels)
        for index in self._indexes():
            place = index.partition.topic, str(index.partition.number)
            for family, value in (
                (live, index.table.live),
                (size, index.table.nbytes),
                (behind, index.behind),
                (lookups, index.lookups),
                (read, index.read),
                (seconds, index.seconds),
            ):
                family.add_metric(place, value)
        yield from (live, size, behind, lookups, read, seconds)


class _Parquet(Collector):
    """The metrics of Parquet files: what was made of sealed segments, and what could not be made."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    def collect(self) -> Iterator[Metric]:
        count, size = self._tables.made
        yield CounterMetricFamily("topicfs_parquet_files", "Parquet files made.", value=count)
        yield CounterMetricFamily("topicfs_parquet_bytes", "Their bytes.", value=size)
        failing = GaugeMetricFamily(
            "topicfs_parquet_failing", "Parquet files that could not be made.", labels=("partition",)
        )
        for partition, failures in sorted(dict(self._tables.failures).items()):
            failing.add_metric((partition,), len(failures))
        yield failing


class _Groups(Collector):
    """The metrics of consumer groups: how many there are, and the lag of those that are behind the most."""

    def __init__(self, groups: Groups) -> None:
        self._groups = groups

    def collect(self) -> Iterator[Metric]:
        lags = self._groups.lags()
        count = GaugeMetricFamily("topicfs_groups", "Consumer groups, once somebody has asked for one.")
        count.add_metric((), len(lags))
        yield count
        total = GaugeMetricFamily(
            "topicfs_groups_lag_records", "Offsets that groups have not read, of all together."
        )
        total.add_metric((), sum(lags.values()))
        yield total
        lag = GaugeMetricFamily(
            "topicfs_group_lag_records",
            f"Offsets that a group has not read: of the {_MOST_GROUPS} groups with the most.",
            labels=("group",),
        )
        for group in sorted(lags, key=lambda name: (-lags[name], name))[:_MOST_GROUPS]:
            lag.add_metric((group,), lags[group])
        yield lag


class _Link(Collector):
    """The metrics of the link to a Kafka cluster, and of each mirror."""

    def __init__(self, store: Store, link: Link) -> None:
        self._store = store
        self._link = link

    def collect(self) -> Iterator[Metric]:
        link, now = self._link, self._store.clock()
        states = sorted(dict(self._store.links.mirrors).items())
        answers = GaugeMetricFamily("topicfs_link_up", "1 while the cluster answers.")
        answers.add_metric((), link.error is None)
        yield answers
        yield CounterMetricFamily("topicfs_link_looks", "Looks at the cluster.", value=link.looks)
        problem = GaugeMetricFamily(
            "topicfs_link_problem",
            "What is wrong; without a topic, with the cluster.",
            labels=("topic", "error"),
        )
        if link.error is not None:
            problem.add_metric(("", link.error), 1)
        for topic, why in sorted(dict(self._store.links.problems).items()):
            problem.add_metric((topic, str(why)), 1)
        yield problem

        def of_each(family: Metric, value: Callable[[MirrorState], float | None]) -> Metric:
            for (topic, number), state in states:
                found = value(state)
                if found is not None:
                    family.add_sample(family.name, {"topic": topic, "partition": str(number)}, found)
            return family

        def gauge(name: str, text: str, value: Callable[[MirrorState], float | None]) -> Metric:
            return of_each(GaugeMetricFamily(f"topicfs_link_{name}", text), value)

        yield gauge("leader", "The broker that leads the partition.", lambda state: state.leader)
        yield gauge("leader_epoch", "The leader's epoch.", lambda state: state.leader_epoch)
        yield gauge("lag_records", "Offsets that are not mirrored yet.", lambda state: state.lag_records)
        yield gauge(
            "lag_bytes", "Their size, by the mean of mirrored records.", lambda state: state.lag_bytes
        )
        yield gauge("lag_seconds", "Time since nothing was lacking.", lambda state: state.lag_seconds(now))
        yield gauge("bytes_per_second", "Bytes mirrored lately.", lambda state: state.bytes_per_second)
        yield gauge("mirrored_bytes", "Bytes mirrored since the mount.", lambda state: state.mirrored_bytes)
        yield gauge(
            "truncated_records",
            "Offsets cut off since the mount, as the cluster has lost them.",
            lambda state: state.truncated_records,
        )
        yield gauge("errors", "Errors since the mount; each was tried again.", lambda state: state.errors)
        yield gauge("failing", "1 while something is wrong.", lambda state: state.error is not None)
        if link.group is not None:
            yield from _of_membership(link.group)


def _of_membership(group: Group) -> Iterator[Metric]:
    """Tell how this daemon is in its group."""

    def gauge(name: str, text: str, value: float) -> Metric:
        return GaugeMetricFamily(f"topicfs_link_group_{name}", text, value=value)

    yield gauge("up", "1 while the coordinator of the daemons' group answers well.", group.error is None)
    yield gauge("generation", "The division that this daemon knows; -1 without one.", group.generation)
    yield gauge("members", "Daemons in the group; 0 where another one divides.", group.members)
    yield gauge("wanted_partitions", "Partitions that the group has to divide.", len(group.wanted))
    yield gauge("given_partitions", "Partitions that are this daemon's.", len(group.given))
    yield gauge("held_partitions", "Partitions that it works on, until it gives them up.", len(group.held))
    yield gauge("lease_seconds", "For how long it may write without an answer.", group.lease_s)


class _Cleaners(Collector):
    """The metrics of the cleaner threads, for each thread by its name and for all together."""

    def __init__(self, cleaners: Cleaners) -> None:
        self._cleaners = cleaners

    def collect(self) -> Iterator[Metric]:
        states = dict(self._cleaners.states)

        def counter(name: str, text: str, values: Mapping[str, float]) -> Iterator[Metric]:
            yield _counter(f"topicfs_cleaner_{name}", text, "thread", values)
            yield CounterMetricFamily(
                f"topicfs_cleaners_{name}", f"{text} By all threads.", value=sum(values.values())
            )

        def each(of: Callable[[CleanerState], float]) -> dict[str, float]:
            return {name: of(state) for name, state in states.items()}

        yield from counter("runs", "Looks for something to do.", each(lambda state: state.runs))
        yield from counter("cleans", "Compactions that ended well.", each(lambda state: state.cleans))
        yield from counter("errors", "Runs that failed.", each(lambda state: state.errors))
        yield from counter("read_bytes", "Bytes read.", each(lambda state: state.bytes_read))
        yield from counter("written_bytes", "Bytes written.", each(lambda state: state.bytes_written))
        yield from counter("seconds", "Time in runs that compacted.", each(lambda state: state.seconds))
        yield from counter(
            "removed_segments", "Segments removed.", each(lambda state: state.removed.segments)
        )
        yield from counter("removed_bytes", "Their bytes.", each(lambda state: state.removed.bytes))
        last = GaugeMetricFamily(
            "topicfs_cleaner_last_run_timestamp_seconds", "Last start.", labels=("thread",)
        )
        duration = GaugeMetricFamily(
            "topicfs_cleaner_last_duration_seconds", "The last run's.", labels=("thread",)
        )
        healthy = GaugeMetricFamily(
            "topicfs_cleaner_healthy", "0 when the last run failed.", labels=("thread",)
        )
        why = GaugeMetricFamily("topicfs_cleaner_last_error", "What last failed.", labels=("thread", "error"))
        for name, state in sorted(states.items()):
            healthy.add_metric((name,), state.healthy)
            if state.last_run is not None:
                last.add_metric((name,), state.last_run / 1000)
                duration.add_metric((name,), state.duration_s)
            if state.last_error is not None:
                why.add_metric((name, state.last_error), 1)
        yield from (last, duration, healthy, why)


def _counter(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    family = CounterMetricFamily(name, text, labels=(label,))
    for value, count in sorted(values.items()):
        family.add_metric((value,), count)
    return family
