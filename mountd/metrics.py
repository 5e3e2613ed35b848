"""What the daemon tells about itself: the file MOUNT/metrics, in Prometheus' text format.

Of partitions only those that are loaded are told about: reading the metrics must not load the others.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from engine.partition.partition import Partition
from engine.store.slot import Slot
from engine.store.store import Store
from mountd.scheduler import Scheduler

_PARTITION = ("topic", "partition")


class Counts:
    """What the mount counts. Called from every thread, at every request: a lock and an addition each.

    reads, read_bytes      calls of read, and what they gave
    writes, written_bytes  calls of write, and what they took. Records are counted by the end offsets
    errors                 calls that ended in an errno, by its name
    """

    def __init__(self) -> None:
        self.reads = 0
        self.read_bytes = 0
        self.writes = 0
        self.written_bytes = 0
        self.errors: Counter[str] = Counter()
        self._guard = threading.Lock()

    def read(self, size: int) -> None:
        """One read gave so many bytes."""
        with self._guard:
            self.reads += 1
            self.read_bytes += size

    def wrote(self, size: int) -> None:
        """One write took so many bytes."""
        with self._guard:
            self.writes += 1
            self.written_bytes += size

    def failed(self, name: str) -> None:
        """One call ended in the errno of this name."""
        with self._guard:
            self.errors[name] += 1

    def errors_so_far(self) -> dict[str, int]:
        """A copy of `errors`."""
        with self._guard:
            return dict(self.errors)


class Metrics:
    """Everything that is told, gathered when it is asked for.

    counts  what the mount counts
    """

    def __init__(
        self, store: Store, schedulers: Sequence[Scheduler], logged: Callable[[], Mapping[str, int]]
    ) -> None:
        self.counts = Counts()
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(_Partitions(store))
        self._registry.register(_Mount(self.counts, logged))
        self._registry.register(_Jobs(schedulers))
        ProcessCollector(registry=self._registry)

    def render(self) -> bytes:
        """The text of MOUNT/metrics."""
        return generate_latest(self._registry)


class _Partitions(Collector):
    """Of each partition that is loaded, and how many there are."""

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
        yield _gauge("segments", "Segments.", [(p, len(p.log.chain.segments)) for p in loaded])


def _is_offline(slot: Slot) -> bool:
    partition = slot.partition
    return slot.error is not None or (partition is not None and partition.log.failure is not None)


def _gauge(name: str, text: str, values: Iterable[tuple[Partition, int]]) -> Metric:
    family = GaugeMetricFamily(f"topicfs_partition_{name}", text, labels=_PARTITION)
    for partition, value in values:
        family.add_metric((partition.topic, str(partition.number)), value)
    return family


class _Mount(Collector):
    """What the mount counted, and what was logged."""

    def __init__(self, counts: Counts, logged: Callable[[], Mapping[str, int]]) -> None:
        self._counts = counts
        self._logged = logged

    def collect(self) -> Iterator[Metric]:
        counts = self._counts
        yield CounterMetricFamily("topicfs_reads", "Reads answered.", value=counts.reads)
        yield CounterMetricFamily("topicfs_read_bytes", "Bytes read.", value=counts.read_bytes)
        yield CounterMetricFamily("topicfs_writes", "Writes accepted.", value=counts.writes)
        yield CounterMetricFamily("topicfs_written_bytes", "Bytes written.", value=counts.written_bytes)
        yield _counter("topicfs_errors", "Calls that failed.", "errno", counts.errors_so_far())
        yield _counter("topicfs_log_messages", "Warnings and errors logged.", "level", self._logged())


class _Jobs(Collector):
    """How the schedulers' jobs fare."""

    def __init__(self, schedulers: Sequence[Scheduler]) -> None:
        self._schedulers = schedulers

    def collect(self) -> Iterator[Metric]:
        states = {name: state for each in self._schedulers for name, state in each.states.items()}
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


def _counter(name: str, text: str, label: str, values: Mapping[str, int]) -> Metric:
    family = CounterMetricFamily(name, text, labels=(label,))
    for value, count in sorted(values.items()):
        family.add_metric((value,), count)
    return family
