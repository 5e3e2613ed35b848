"""What is on disk, and when: KAFKA_FORMAT 9 and 9.1, of KAFKA_CASES J the flush after a roll, of M the flush lines.

Not here: who calls `flush` by the clock (testTimeBasedFlush) is the store's scheduler; `flush_is_due` is here.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from partition_bench import NOW, Bench, batch, values

from topicfs.engine.errors import ClosedError
from topicfs.engine.record import Record
from topicfs.engine.segment import descriptors, offset_index, segment, transaction_index

HOUR = 3_600_000


class Synced:
    """The names of the files and directories that were fsynced, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.names: list[str] = []
        self.failing = False
        real = os.fsync

        def fsync(fd: int) -> None:
            if self.failing:
                raise OSError(5, "Input/output error")
            self.names.append(Path(os.readlink(f"/proc/self/fd/{fd}")).name.lstrip("0"))
            real(fd)

        monkeypatch.setattr(os, "fsync", fsync)

    def since(self) -> list[str]:
        names, self.names = self.names, []
        return names


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> Synced:
    return Synced(monkeypatch)


def test_the_modules_fsync_through_os() -> None:
    """Else the fixture above would see nothing."""
    for module in (descriptors, offset_index, segment, transaction_index):
        assert "fsync" not in vars(module)


# -- flush ----------------------------------------------------------------------------------------------


def test_a_flush_syncs_log_and_indexes_and_raises_the_recovery_point(bench: Bench, synced: Synced) -> None:
    partition = bench.open()
    partition.append_batch(batch(3))
    assert partition.recovery_point == 0
    synced.since()
    partition.flush()
    assert {".log", ".index", ".timeindex", "topic-0"} <= set(synced.since())
    assert partition.recovery_point == 3


def test_an_index_is_synced_when_it_has_changed_since_its_last_fsync(bench: Bench, synced: Synced) -> None:
    partition = bench.open()
    partition.append_batch(batch(3))
    partition.flush()
    synced.since()
    partition.append_batch(batch(1))
    partition.flush()
    assert synced.since() == [".log"]
    index = partition.log.chain.segments.last.finder.offset_index
    entries = index.entries
    while index.entries == entries:
        partition.append_batch(batch(3))
    synced.failing = True
    with pytest.raises(OSError, match="Input/output"):
        index.sync()
    synced.failing = False
    partition.flush()
    assert sorted(synced.since()) == [".index", ".log", ".timeindex"]


def test_a_flush_syncs_the_transaction_index(bench: Bench, synced: Synced) -> None:
    partition = bench.open()
    partition.append_batch(batch(1, producer=1, transactional=True))
    partition.end_transaction(1, 0, commit=False)
    synced.since()
    partition.flush()
    assert ".txnindex" in synced.since()


def test_a_second_flush_has_nothing_to_do(bench: Bench, synced: Synced) -> None:
    partition = bench.open()
    partition.append_batch(batch(3))
    partition.flush()
    synced.since()
    partition.flush()
    assert synced.since() == []


def test_a_flush_syncs_the_segments_from_the_recovery_point_on(bench: Bench, synced: Synced) -> None:
    partition = bench.open()
    for _ in range(4):
        partition.append_batch(batch(3))
        partition.roll()
    partition.flush(6)
    logs = [name for name in synced.since() if name.endswith(".log")]
    assert logs == [".log", "3.log"]
    assert partition.recovery_point == 6
    partition.append_batch(batch(1))
    partition.flush()
    logs = [name for name in synced.since() if name.endswith(".log")]
    assert logs == ["6.log", "9.log", "12.log"]


def test_the_directory_is_synced_only_when_segments_are_new(bench: Bench, synced: Synced) -> None:
    partition = bench.open()
    partition.append_batch(batch(3))
    partition.flush()
    partition.append_batch(batch(3))
    synced.since()
    partition.flush()
    assert "topic-0" not in synced.since()
    partition.roll()
    partition.append_batch(batch(3))
    partition.flush()
    assert "topic-0" in synced.since()


def test_a_flush_below_the_recovery_point_changes_nothing(bench: Bench, synced: Synced) -> None:
    partition = bench.open()
    partition.append_batch(batch(3))
    partition.flush()
    synced.since()
    partition.flush(2)
    assert (synced.since(), partition.recovery_point) == ([], 3)


def test_a_flush_beyond_the_end_reaches_the_end(bench: Bench) -> None:
    partition = bench.open()
    partition.append_batch(batch(3))
    partition.flush(100)
    assert partition.recovery_point == 3


# -- by count and by time -------------------------------------------------------------------------------


@pytest.mark.parametrize("by", ["leader", "follower", "lines"])
def test_flush_messages_flushes_after_so_many_records(bench: Bench, by: str) -> None:
    partition = bench.open(flush_messages=3)
    points = []
    for _ in range(5):
        match by:
            case "leader":
                partition.append_batch(batch(1))
            case "follower":
                partition.append_raw(batch(1, base=partition.end_offset))
            case _:
                partition.append_lines(b"line")
        points.append(partition.recovery_point)
    assert points == [0, 0, 3, 3, 3]


def test_without_flush_messages_an_append_does_not_flush(bench: Bench, synced: Synced) -> None:
    partition = bench.open()
    partition.append_batch(batch(1))
    synced.since()
    for _ in range(50):
        partition.append_batch(batch(1))
    assert (synced.since(), partition.recovery_point) == ([], 0)


def test_flush_ms_is_due_once_the_time_is_over_and_there_is_something(bench: Bench) -> None:
    partition = bench.open(flush_ms=1000)
    assert not partition.log.flush_is_due(bench.clock.advance(2000))
    partition.append_batch(batch(1))
    partition.flush()
    assert not partition.log.flush_is_due(bench.clock.advance(1000))
    partition.append_batch(batch(1))
    assert partition.log.flush_is_due(bench.clock())
    partition.flush()
    partition.append_batch(batch(1))
    assert not partition.log.flush_is_due(bench.clock.advance(999))
    assert partition.log.flush_is_due(bench.clock.advance(1))


def test_without_flush_ms_a_flush_is_never_due(bench: Bench) -> None:
    partition = bench.open()
    partition.append_batch(batch(1))
    assert not partition.log.flush_is_due(bench.clock.advance(10_000 * HOUR))


# -- after a roll ---------------------------------------------------------------------------------------


def test_a_roll_waits_for_a_flush_up_to_the_new_base(bench: Bench, synced: Synced) -> None:
    partition = bench.open()
    partition.append_batch(batch(3, producer=1))
    assert not partition.log.flusher.has_rolled
    partition.roll()
    partition.append_batch(batch(1))
    assert partition.log.flusher.has_rolled
    assert partition.recovery_point == 0
    synced.since()
    assert partition.log.flush_sealed()
    names = synced.since()
    assert "3.snapshot" in names
    assert ".log" in names
    assert "3.log" not in names
    assert partition.recovery_point == partition.log.chain.active.base_offset == 3
    assert not partition.log.flusher.has_rolled


def test_an_empty_active_segment_has_a_log_only_until_the_close_flushes_it(bench: Bench) -> None:
    partition = bench.open()
    partition.append_batch(batch(3))
    partition.roll()
    partition.flush()
    assert bench.names(".log") == [".log", "3.log"]
    assert bench.names(".index") == [".index"]
    partition.close()
    assert bench.names(".log") == [".log", "3.log"]
    assert bench.names(".index") == [".index", "3.index"]
    bench.reopen_closed(3)


# -- a clean stop ---------------------------------------------------------------------------------------


def test_a_close_brings_everything_onto_the_disk(bench: Bench, synced: Synced) -> None:
    partition = bench.open(segment_bytes=10_000, preallocate=True)
    partition.append([Record(b"v", timestamp=NOW + 5), Record(b"v", timestamp=NOW)])
    partition.append_batch(batch(1, producer=1))
    synced.since()
    partition.close()
    names = synced.since()
    assert {".log", ".index", ".timeindex", "topic-0"} <= set(names)
    assert names.index(".log") < names.index("3.snapshot.tmp")
    assert partition.recovery_point == 3
    assert (bench.directory / f"{0:020d}.log").stat().st_size == partition.log.chain.active.size
    assert (bench.directory / f"{0:020d}.timeindex").stat().st_size == 12
    bench.reopen_closed(3)


def test_a_close_takes_a_snapshot_at_the_end_also_without_producers(bench: Bench) -> None:
    partition = bench.open()
    partition.append(values(2))
    partition.close()
    assert bench.names(".snapshot") == ["2.snapshot"]
    bench.reopen_closed(2)


def test_closing_twice_is_closing_once(bench: Bench, synced: Synced) -> None:
    partition = bench.open()
    partition.append(values(2))
    partition.close()
    synced.since()
    partition.close()
    assert synced.since() == []
    bench.reopen_closed(2)


def test_epochs_that_a_new_start_changed_are_written_by_the_close(bench: Bench) -> None:
    partition = bench.open()
    partition.append(values(4))
    partition.delete_records(2)
    partition.close()
    assert (bench.directory / "leader-epoch-checkpoint").read_text() == "0\n1\n0 2\n"
    bench.partition = None


# -- a disk that fails ----------------------------------------------------------------------------------


def test_a_failed_flush_takes_the_partition_offline(bench: Bench, synced: Synced) -> None:
    partition = bench.open()
    partition.append(values(4))
    synced.failing = True
    with pytest.raises(OSError, match="Input/output"):
        partition.flush()
    synced.failing = False
    assert partition.recovery_point == 0
    for refused in (
        lambda: partition.append(values(1)),
        lambda: partition.read(0, 100),
        partition.flush,
    ):
        with pytest.raises(ClosedError, match="Input/output"):
            refused()
    assert partition.log.failure is not None
    partition = bench.crash()
    assert [record.value for record in partition.records()] == [b"v0", b"v1", b"v2", b"v3"]
    bench.warnings = True  # the error that took it offline is logged


@pytest.mark.parametrize(
    ("suffix", "number", "flags"),
    [
        (".index", errno.EMFILE, os.O_CREAT),
        (".timeindex", errno.EMFILE, os.O_CREAT),
        (".timeindex", errno.ENFILE, 0),
        (".snapshot", errno.EMFILE, 0),
        ("topic-0", errno.EMFILE, 0),
    ],
)
def test_a_flush_that_lacks_a_descriptor_has_lost_nothing(
    bench: Bench, synced: Synced, monkeypatch: pytest.MonkeyPatch, suffix: str, number: int, flags: int
) -> None:
    partition = bench.open()
    partition.append_batch(batch(3, producer=1))
    partition.roll()
    partition.append(values(4))
    real = os.open
    synced.since()

    def refused(path: str | os.PathLike[str], how: int, mode: int = 0o777) -> int:
        if str(path).endswith(suffix) and how & flags == flags:
            raise OSError(number, os.strerror(number))
        return real(path, how, mode)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refused)
        for _ in range(2):
            with pytest.raises(OSError, match=os.strerror(number)):
                partition.flush()
    assert partition.recovery_point == 0
    partition.append(values(1))
    synced.since()
    partition.flush()
    assert {"3.log", "3.index", "3.timeindex", "3.snapshot", "topic-0"} <= set(synced.since())
    assert partition.recovery_point == partition.end_offset == 8


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_flush_needs_no_room(bench: Bench, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """regression: without room for an index's file it failed, and who wrote the records again had them twice"""
    partition = bench.open(index_interval_bytes=100)
    partition.append(values(3))
    partition.roll()
    partition.append(values(1))
    real = os.open

    def refused(path: str | os.PathLike[str], how: int, mode: int = 0o777) -> int:
        if str(path).endswith("index") and how & os.O_CREAT:
            raise OSError(number, os.strerror(number))
        return real(path, how, mode)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refused)
        partition.flush()
    assert partition.recovery_point == 4
    assert not {"3.index", "3.timeindex"} & set(bench.names("index"))
    partition = bench.crash()
    assert [record.value for record in partition.records()] == [b"v0", b"v1", b"v2", b"v0"]
    partition.append(values(1))
    partition.flush()
    assert {"3.index", "3.timeindex"} <= set(bench.names("index"))
    bench.warnings = True  # that the files have to wait is logged
