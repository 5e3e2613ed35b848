"""Bounds on time: what is surely too early or too late is not read, and nothing else is missing."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from partition_opening import NOW
from pyspark.sql import SparkSession
from sources import Logs, logs, numbered

from topicfs import Record
from topicfs.engine.cleaner.clean import Cleaner
from topicfs.engine.min_timestamps.upkeep import MinTimestampsUpkeep
from topicfs.engine.partition.partition import Partition
from topicfs.engine.unlocked import partitions
from topicfs.engine.unlocked.files import Files


@pytest.fixture
def log(spark: SparkSession, tmp_path: Path) -> Iterator[Logs]:
    with logs(spark, tmp_path) as made:
        yield made


def between(first: int | None, end: int | None) -> dict[str, object]:
    """The options for first <= timestamp < end, in ms from NOW on."""
    since = {} if first is None else {"sinceTimestamp": NOW + first}
    return since if end is None else {**since, "beforeTimestamp": NOW + end}


def keep(log: Logs, *partitions: Partition) -> None:
    """Find out how early the records are, as the daemon does."""
    upkeep = MinTimestampsUpkeep(log.place / "views", lambda: 0, lambda: 0)
    for partition in partitions:
        upkeep.bring_up_to_date(partition, lambda: False)


def spans(log: Logs, **options: object) -> list[tuple[int, int]]:
    """What is read of a log with one partition."""
    tasks = log.planned(**options).partitions()
    return [(task.value.start, task.value.end) for task in tasks if task.value is not None]


def size(log: Logs, **options: object) -> int:
    """Bytes of the log that are read, about."""
    tasks = log.planned(**options).partitions()
    return sum(task.value.size for task in tasks if task.value is not None)


def disordered(log: Logs, seed: int) -> Partition:
    """Many segments, later ones mostly later; in some batches the append's time, or none."""
    chance = random.Random(seed)
    partition = log.create(segment_bytes=900, index_interval_bytes=0)
    for number in range(60):
        times = [NOW + number + chance.choice((0, 0, 1, -3, 15, -20)) for _ in range(chance.randint(1, 3))]
        if chance.random() < 0.02:
            times[-1] = -1
        partition.append([Record(b"%080d" % number, b"k", at) for at in times])
    return partition


@pytest.mark.parametrize("seed", range(3))
def test_rows_are_the_same_with_and_without_what_is_known(log: Logs, seed: int) -> None:
    partition = disordered(log, seed)
    pairs = [(first, first + width) for first in range(-25, 80, 8) for width in (0, 1, 5, 30)]
    conditions = [
        between(*pair) for pair in [*pairs, *((None, end) for end in range(-25, 90, 6)), (20, None)]
    ]
    before = [log.found(**each) for each in conditions]
    planned = [sum(end - start for start, end in spans(log, **each)) for each in conditions]
    keep(log, partition)
    assert [log.found(**each) for each in conditions] == before
    times = [(record.offset, (record.timestamp or 0) - NOW) for record in partition.records()]
    for (first, end), rows in zip(pairs, before, strict=False):
        assert [row[4] for row in rows] == [offset for offset, at in times if first <= at < end]
    less = [sum(end - start for start, end in spans(log, **each)) for each in conditions]
    assert all(now <= then for now, then in zip(less, planned, strict=True))
    assert sum(less) < 0.75 * sum(planned)


def test_a_narrow_range_in_the_middle_of_a_log_reads_a_small_part_of_it(log: Logs) -> None:
    partition = log.create(segment_bytes=3000, index_interval_bytes=0)
    numbered(partition, 1000)
    partition.roll()
    whole = size(log)
    assert size(log, **between(500, 510)) > 0.45 * whole, "nothing is known of how early a record may come"
    keep(log, partition)
    assert 0 < size(log, **between(500, 510)) < 0.05 * whole
    assert size(log, **between(None, 10)) < 0.05 * whole
    assert size(log, **between(None, 300)) == pytest.approx(0.3 * whole, rel=0.2)


def test_what_is_left_of_neighbours_is_read_as_one(log: Logs) -> None:
    partition = log.create(segment_bytes=1000, index_interval_bytes=0)
    numbered(partition, 100)
    keep(log, partition)
    bases = [each.base_offset for each in partition.log.chain.segments]
    (first, active) = spans(log, **between(None, 50))
    assert first == (0, next(base for base in bases if base >= 50))
    assert active == (bases[-1], 100), "it may grow"
    assert len(spans(log, **between(5, None))) == 1
    assert spans(log, **between(None, 1000)) == [(0, 100)]


def test_offsets_and_times_are_met_together(log: Logs) -> None:
    partition = log.create(segment_bytes=1000, index_interval_bytes=0)
    numbered(partition, 100)
    keep(log, partition)
    found = log.found(**between(None, 50), startingOffsets=43)
    assert [row[4] for row in found] == list(range(43, 50))


def test_damaged_files_and_missing_ones_leave_out_nothing(log: Logs) -> None:
    partition = log.create(segment_bytes=1000, index_interval_bytes=0)
    numbered(partition, 60)
    keep(log, partition)
    files = sorted((log.place / "views" / "t-0").iterdir())
    assert len(files) > 4
    files[0].unlink()
    files[1].write_bytes(b"")
    files[2].write_bytes(files[3].read_bytes()[:-1] + b"x")
    for end in range(0, 60, 7):
        assert [row[4] for row in log.found(**between(None, end))] == list(range(end))


# -- beside a daemon that compacts --------------------------------------------------------------------


def compact(log: Logs, partition: Partition) -> None:
    """Put all sealed segments into one, without the records of keys that came again."""
    log.store.configure("t", {"cleanup.policy": "compact", "internal.segment.bytes": "100000"})
    cleaner = Cleaner.create(1 << 20, 0.9, 1 << 16, lambda size: None, bytes(16))
    cleaner.clean(partition.log, 0, partition.log.chain.active.base_offset, log.clock.ms, lambda: None)


def compactable(log: Logs) -> Partition:
    """Three sealed segments; of the second one later records are earlier than those of the first."""
    partition = log.create(index_interval_bytes=0)
    for times in ((50, 51), (10, 11), (60, 61)):
        partition.append([Record(b"%03d" % at, b"key %d" % at, NOW + at) for at in times])
        partition.roll()
    partition.append([Record(b"active", b"key 60", NOW + 99)])
    return partition


def test_after_a_compaction_what_was_known_before_counts_no_more(log: Logs) -> None:
    partition = compactable(log)
    keep(log, partition)
    assert spans(log, **between(None, 20)) == [(2, 4), (6, 7)]
    compact(log, partition)
    assert len(partition.log.chain.segments) == 2
    assert spans(log, **between(None, 20)) == [(0, 7)]
    assert [row[4] for row in log.found(**between(None, 20))] == [2, 3]
    keep(log, partition)
    assert [row[4] for row in log.found(**between(None, 20))] == [2, 3]
    assert spans(log, **between(None, 5)) == [(6, 7)]


@pytest.mark.parametrize(("end", "wanted"), [(20, [2, 3]), (52, [0, 1, 2, 3])])
@pytest.mark.parametrize("kept_first", [True, False])
@pytest.mark.parametrize("kept_after", [True, False])
def test_a_compaction_while_a_query_is_planned_hides_nothing(
    log: Logs,
    monkeypatch: pytest.MonkeyPatch,
    kept_first: bool,
    kept_after: bool,
    end: int,
    wanted: list[int],
) -> None:
    """Behind the listing of segments, before what is known of them is looked at."""
    partition = compactable(log)
    if kept_first:
        keep(log, partition)
    listed = partitions.listed

    def late(directory: Path) -> Files:
        found = listed(directory)
        monkeypatch.undo()
        compact(log, partition)
        if kept_after:
            keep(log, partition)
        return found

    monkeypatch.setattr(partitions, "listed", late)
    assert [row[4] for row in log.found(**between(None, end))] == wanted


def test_a_compaction_between_planning_and_reading_hides_nothing(log: Logs) -> None:
    partition = compactable(log)
    keep(log, partition)
    reader = log.planned(**between(None, 20))
    tasks = reader.partitions()
    compact(log, partition)
    keep(log, partition)
    rows = [row for task in tasks for made in reader.read(task) for row in made.to_pylist()]
    assert [row["offset"] for row in rows] == [2, 3]


def test_a_file_that_tells_of_fewer_offsets_than_were_listed_is_not_believed(
    log: Logs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A segment may have been divided, or cut and filled again, since the list was made."""
    partition = compactable(log)
    keep(log, partition)
    listed = partitions.listed

    def before(directory: Path) -> Files:
        """As if the first two segments had been one."""
        found = listed(directory)
        bases = (found.bases[0], *found.bases[2:])
        sizes = (found.sizes[0] + found.sizes[1], *found.sizes[2:])
        return Files(directory, bases, sizes, found.snapshots, found.aborting)

    monkeypatch.setattr(partitions, "listed", before)
    assert spans(log, **between(None, 20)) == [(0, 4), (6, 7)]
    assert [row[4] for row in log.found(**between(None, 20))] == [2, 3]
