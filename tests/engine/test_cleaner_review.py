"""Compaction where something goes wrong beside it: power that fails, files that are not what they should be, memory
that is short. Each of these once lost a record, brought one back, or kept the other partitions waiting."""

from __future__ import annotations

import os
import struct
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import google_crc32c
import numpy as np
import pytest
from cleaning import StandInCleaner
from compacted import DAY, NOW, Cleaning, cleaner
from directory_check import path_of
from partition_opening import Known, open_partition, without_fsync
from patience import ended
from store_bench import START, StoreBench, checked_store_bench

from topicfs import Record
from topicfs.engine import batch as batches
from topicfs.engine.cleaner import clean
from topicfs.engine.cleaner.offset_map import OffsetMap
from topicfs.engine.errors import CleaningAbortedError, CorruptError, OffsetOverflowError
from topicfs.engine.kernels import encode as encoding
from topicfs.engine.record import MAX_INT32
from topicfs.engine.segment.segment import Segment

FILE = "cleaner-offset-checkpoint"
COMPACT = {
    "cleanup.policy": "compact",
    "internal.segment.bytes": "400",
    "min.cleanable.dirty.ratio": "0",
    "delete.retention.ms": "0",
}


@pytest.fixture
def topic(tmp_path: Path) -> Iterator[Cleaning]:
    with without_fsync():
        made = Cleaning(tmp_path / "t-0")
        yield made
        if made.partition.log.is_open:
            made.check()


@pytest.fixture
def store_bench(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Iterator[StoreBench]:
    with checked_store_bench(tmp_path / "backing", caplog) as made:
        made.open()
        yield made


# -- the checkpoint ---------------------------------------------------------------------------------------


def test_a_log_that_lost_its_end_with_the_power_is_not_clean_where_it_is_written_anew(
    store_bench: StoreBench,
) -> None:
    """A tombstone there would go in time, and the value that it deletes would be back."""
    store_bench.warnings = True
    partition = store_bench.store.create("orders", overrides=COMPACT)
    for number in range(20):
        partition.append(Record(b"%030d" % number, b"key %d" % number, START))
    partition.roll()
    store_bench.store.cleaning.work(cleaner(), store_bench.now)
    assert store_bench._checkpoint(FILE) == {"orders-0": 20}
    bases = [segment.base_offset for segment in partition.log.chain.segments]
    store_bench.store.abandon()
    # What was not flushed is gone: the recovery point is still 0.
    directory = store_bench.logs / "orders-0"
    for base in bases[-3:]:
        for path in directory.glob(f"{base:020d}.*"):
            path.unlink()
    partition = store_bench.open().partition("orders-0")
    lost = partition.end_offset
    assert lost < 20
    partition.append(Record(None, b"key 0", START))
    for number in range(20):
        partition.append(Record(b"new", b"other %d" % number, START))
    partition.roll()
    for _ in range(3):
        store_bench.store.cleaning.work(cleaner(), store_bench.now)
        partition.append(Record(b"more", b"more", START))
        partition.roll()
        store_bench.now += 1
    assert [record for record in partition.records() if record.key == b"key 0"] == []


# -- splitting --------------------------------------------------------------------------------------------


def batch_at(offset: int, key: bytes, value: bytes, producer: int = -1, sequence: int = -1) -> bytes:
    """A batch of one record; in a transaction, where there is a producer."""
    data = batches.from_records([Record(value, key, NOW)], NOW).data
    if producer >= 0:
        struct.pack_into(">h", data, 21, 0x10)
        struct.pack_into(">qhi", data, 43, producer, 0, sequence)
        struct.pack_into(">I", data, 17, google_crc32c.value(data[21:].tobytes()))
    encoding.stamp(data, 0, offset, 0)
    return data.tobytes()


def marker_at(offset: int, producer: int, kind: int) -> bytes:
    data = batches.end_marker(producer, 0, kind, 0, NOW).data
    encoding.stamp(data, 0, offset, 0)
    return data.tobytes()


def test_splitting_a_segment_in_the_middle_of_a_log_keeps_its_aborted_transactions(topic: Cleaning) -> None:
    far = MAX_INT32 + 10
    topic.put(("a", 1))
    topic.partition.close()
    content = [
        batch_at(0, b"a", b"good"),
        batch_at(1, b"a", b"aborted", 7, 0),
        marker_at(2, 7, 0),
        batch_at(far, b"a", b"aborted too", 7, 1),
        marker_at(far + 1, 7, 0),
        batch_at(far + 2, b"b", b"good"),
    ]
    path_of(topic.directory, 0, ".log").write_bytes(b"".join(content))
    entries = [(0, 7, 1, 2, 3), (0, 7, far, far + 1, far + 2)]
    path_of(topic.directory, 0, ".txnindex").write_bytes(
        b"".join(struct.pack(">hqqqq", *entry) for entry in entries)
    )
    path_of(topic.directory, 0, ".index").write_bytes(b"")
    path_of(topic.directory, 0, ".timeindex").write_bytes(b"")
    for path in topic.directory.glob("*.snapshot"):
        path.unlink()
    topic.partition = open_partition(topic.directory, Known(clean=True), topic.clock, **topic.settings)
    expected = [(0, "a", "good"), (far + 2, "b", "good")]
    assert topic.pairs() == expected
    topic.partition.append(Record(b"in the active one", b"c", NOW))
    topic.partition.roll()
    with pytest.raises(CleaningAbortedError):
        topic.clean(roll=False)
    assert len(topic.bases) > 2
    expected.append((far + 3, "c", "in the active one"))
    assert topic.pairs() == expected
    topic.clean(roll=False)
    assert topic.pairs() == expected


# -- the swap, and power that fails -----------------------------------------------------------------------


class Steps:
    """What a clean does to names, in order: `sync` for the directory, else the suffix that a file gets."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.seen: list[str] = []

    def __enter__(self) -> list[str]:
        rename, fsync = os.rename, os.fsync

        def renamed(source: Any, target: Any, **named: Any) -> None:
            self.seen.append(Path(target).suffix)
            rename(source, target, **named)

        def synced(descriptor: int) -> None:
            if os.path.samestat(os.fstat(descriptor), os.stat(self.directory)):
                self.seen.append("sync")
            fsync(descriptor)

        self.patches = [mock.patch("os.rename", renamed), mock.patch("os.fsync", synced)]
        for patch in self.patches:
            patch.start()
        return self.seen

    def __exit__(self, *_: object) -> None:
        for patch in self.patches:
            patch.stop()


def test_new_segments_are_durable_under_their_swap_names_before_an_old_one_loses_its_own(
    tmp_path: Path,
) -> None:
    """A file system may make names durable in another order than that in which they were given."""
    topic = Cleaning(tmp_path / "t-0", segment_bytes=300)
    for number in range(20):
        topic.put((number % 3, number))
    topic.partition.roll()
    topic.settings["segment_bytes"] = 100_000
    topic.partition.close()
    topic.partition = open_partition(topic.directory, Known(clean=True), topic.clock, **topic.settings)
    with Steps(topic.directory) as seen:
        topic.clean(roll=False)
    seen = [step for step in seen if step != ".snapshot"]
    swap, gone = seen.index(".swap"), seen.index(".deleted")
    assert "sync" in seen[:swap], "created"
    assert "sync" in seen[swap:gone], "renamed"
    assert ".swap" not in seen[gone:]
    assert seen[-1] == "sync"
    topic.check()


def test_old_names_are_durably_gone_before_the_new_segments_get_their_last_ones(tmp_path: Path) -> None:
    """Else a power cut could leave a new segment beside an old one that has the same records."""
    topic = Cleaning(tmp_path / "t-0", segment_bytes=300)
    for number in range(20):
        topic.put((number % 3, number))
    topic.partition.roll()
    topic.partition.close()
    topic.settings["segment_bytes"] = 100_000
    topic.partition = open_partition(topic.directory, Known(clean=True), topic.clock, **topic.settings)
    with Steps(topic.directory) as seen:
        topic.clean(roll=False)
    gone = [number for number, step in enumerate(seen) if step == ".deleted"]
    last = seen.index(".log")
    before = [number for number in gone if number < last]
    assert before
    assert "sync" in seen[before[-1] : last]
    topic.check()


def test_a_swap_to_an_empty_segment_leaves_nothing_of_the_old_one_behind(topic: Cleaning) -> None:
    topic.produce(1, ("a", 1), transactional=True)
    topic.end(1, commit=False)
    topic.partition.roll()
    topic.put(("b", 2))
    directory = topic.directory
    topic.partition.close()
    assert path_of(directory, 0, ".txnindex").exists()
    for suffix in (".log", ".index", ".timeindex"):
        path_of(directory, 0, suffix + ".swap").touch()
    topic.partition = open_partition(directory, Known(clean=True), topic.clock, **topic.settings)
    assert topic.aborted() == []
    assert topic.pairs() == [(2, "b", 2)]


# -- bytes that are not what they should be ---------------------------------------------------------------


@pytest.mark.parametrize("grouped", [True, False])
def test_segments_that_overlap_are_refused_rather_than_written_into_one(
    topic: Cleaning, grouped: bool
) -> None:
    topic.put(("a", 1))
    topic.partition.roll()
    topic.put(("b", 2))
    topic.partition.roll()
    topic.put(("c", 3))
    topic.partition.close()
    path = path_of(topic.directory, 0, ".log")
    path.write_bytes(path.read_bytes() + batch_at(1, b"x", b"from a crash of another broker"))
    if not grouped:
        topic.settings["segment_bytes"] = 100
    topic.partition = open_partition(topic.directory, Known(clean=True), topic.clock, **topic.settings)
    before = topic.files()
    with pytest.raises(CorruptError, match=r"00000000000000000000\.log: batch at position \d+"):
        topic.clean(roll=False)
    assert topic.files() == before
    topic.partition.log.abandon()


@pytest.mark.parametrize("count", [-2000, MAX_INT32])
def test_an_aborted_batch_that_declares_any_number_of_records_is_removed_unread(
    topic: Cleaning, count: int
) -> None:
    """It may be larger than the buffer: room is made for what is written of it, not for what it says."""
    topic.settings["segment_bytes"] = 100_000
    topic.partition.log.abandon()
    data = bytearray(batch_at(0, b"a", b"x" * 30_000, 7, 0))
    struct.pack_into(">i", data, 57, count)
    struct.pack_into(">I", data, 17, google_crc32c.value(bytes(data[21:])))
    path_of(topic.directory, 0, ".log").write_bytes(bytes(data) + marker_at(1, 7, 0))
    path_of(topic.directory, 0, ".index").write_bytes(b"")
    path_of(topic.directory, 0, ".txnindex").write_bytes(struct.pack(">hqqqq", 0, 7, 0, 1, 2))
    topic.partition = open_partition(topic.directory, Known(clean=True), topic.clock, **topic.settings)
    topic.put(("a", 1))
    with mock.patch("numpy.empty", side_effect=_sized(np.empty)):
        topic.clean()
    assert topic.pairs() == [(2, "a", 1)]


def _sized(empty: Any) -> Any:
    def made(shape: Any, *more: Any, **named: Any) -> Any:
        assert np.prod(shape) < 2**24, shape
        return empty(shape, *more, **named)

    return made


def test_a_segment_that_cannot_be_split_is_reported_once_and_not_tried_for_ever(
    topic: Cleaning, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic.put(("a", 1))
    topic.partition.roll()

    def overflow(*_: object) -> None:
        raise OffsetOverflowError("too far up")

    with monkeypatch.context() as patched:
        patched.setattr(clean, "check_offsets", overflow)
        with pytest.raises(OffsetOverflowError, match="too far up"):
            topic.clean(roll=False)


def test_control_records_of_other_kinds_stay_whatever_happens_around_them(topic: Cleaning) -> None:
    plain = batches.from_records([Record(b"\0\0voters", struct.pack(">hh", 0, 2), NOW)], NOW).data
    struct.pack_into(">h", plain, 21, 0x20)
    struct.pack_into(">I", plain, 17, google_crc32c.value(plain[21:].tobytes()))
    topic.put(("a", 1))
    encoding.stamp(plain, 0, 1, 0)
    topic.partition.append_raw(plain.tobytes())
    topic.put(("a", 2))
    for _ in range(3):
        topic.clean()
        assert topic.markers() == [1]
        topic.clock.ms += 2 * DAY
        topic.put(("b", 1))
    assert topic.values() == {"a": 2, "b": 1}


# -- memory, and other partitions -------------------------------------------------------------------------


def test_a_map_that_found_too_little_memory_asks_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cleaner thread has one map for its life."""
    offsets = OffsetMap.create(24 * 1000, 0.9, bytes(16))
    zeros = np.zeros

    def too_little(shape: int, *more: Any) -> Any:
        if shape > 100:
            raise MemoryError
        return zeros(shape, *more)

    assert offsets.put(b"key", 1)
    with monkeypatch.context() as patched:
        patched.setattr(np, "zeros", too_little)
        offsets.clear()
        assert (offsets.get(b"key"), offsets.utilization) == (-1, 0)
        with pytest.raises(MemoryError):
            offsets.expect(0, 800)
    offsets.expect(0, 800)
    assert all(offsets.put(b"%d" % number, number) for number in range(800))


def test_a_partition_for_which_memory_was_too_short_is_tried_again(store_bench: StoreBench) -> None:
    store_bench.warnings = True
    partition = store_bench.store.create("orders", overrides=COMPACT)
    for number in range(20):
        partition.append(Record(b"%030d" % number, b"key", START))
    failing = StandInCleaner(failures={"orders-0": MemoryError()})
    assert store_bench.store.cleaning.work(failing, store_bench.now).error == "MemoryError()"
    assert store_bench.store.cleaning.uncleanable == {}
    store_bench.now += 61_000
    assert store_bench.store.cleaning.work(cleaner(), store_bench.now).partition == "orders-0"


def test_a_checkpoint_that_is_off_is_set_while_nobody_may_cut_the_log(
    store_bench: StoreBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that was put back after a cut would say of what is written then that it is compacted."""
    partition = store_bench.store.create("orders", overrides=COMPACT)
    for number in range(20):
        partition.append(Record(b"%030d" % number, b"key", START))
    cleaning = store_bench.store.cleaning
    cleaning.offsets.put(("orders", 0), 3)
    partition.log.raise_start_offset(5)
    phases: list[str] = []
    put = cleaning.offsets.put

    def watched(key: tuple[str, int], offset: int) -> None:
        phases.append(cleaning.states.of(key).value)
        put(key, offset)

    monkeypatch.setattr(cleaning.offsets, "put", watched)
    job = cleaning.grab_filthiest(store_bench.now)
    assert job is not None
    cleaning.done(job, None)
    assert phases == ["in progress"]
    assert store_bench._checkpoint(FILE) == {"orders-0": 5}
    store_bench.store.cleaning.work(cleaner(), store_bench.now)


def test_a_large_batch_does_not_make_the_chunks_behind_it_large(tmp_path: Path) -> None:
    """With few and large chunks what is decided of a chunk would be decided again for each buffer that is written."""
    topic = Cleaning(tmp_path / "t-0", segment_bytes=400_000, max_message_bytes=300_000)
    with without_fsync():
        topic.put(("large", "x" * 200_000))
        for number in range(500):
            topic.put((number, "y" * 100))
        told: list[int] = []
        topic.clean(cleaner(io_buffer=8192, throttle=told.append))
        large = [size for size in told if size > 10_000]
        assert len(large) == 3, "read twice and written once"
        topic.check()


def test_readers_are_told_of_a_swap_before_appends_have_to_wait_for_them(topic: Cleaning) -> None:
    """Who promised segments to readers may have to read them first."""
    for number in range(20):
        topic.put((number % 3, number))
    topic.partition.roll()
    log = topic.partition.log
    told: list[tuple[bool, list[int]]] = []

    def before_removal(segments: Sequence[Segment]) -> None:
        appends_go_on: list[bool] = []

        def try_the_lock() -> None:
            free = log.lock.acquire(blocking=False)
            appends_go_on.append(free)
            if free:
                log.lock.release()

        thread = threading.Thread(target=try_the_lock, daemon=True)
        thread.start()
        ended(thread)
        told.append((appends_go_on[0], [each.base_offset for each in segments if each in log.chain.segments]))

    log.register_reader(before_removal)
    topic.clean(roll=False)
    without, with_lock = told[::2], told[1::2]
    assert [bases for _, bases in without] == [bases for _, bases in with_lock]
    assert all(bases for _, bases in told)
    assert not any(free for free, _ in with_lock)
    assert all(free for free, _ in without)
