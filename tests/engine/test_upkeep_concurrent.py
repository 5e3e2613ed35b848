"""Retention and compaction beside writers, readers, truncations and settings: nothing is lost, doubled or moved."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from store_bench import StoreBench, checked_store_bench

from topicfs import Record
from topicfs.engine.cleaner.clean import Cleaner
from topicfs.engine.errors import EngineError, OffsetOutOfRangeError
from topicfs.engine.partition.hold import Hold
from topicfs.engine.partition.partition import Partition

SMALL = {"internal.segment.bytes": "2000", "file.delete.delay.ms": "0", "min.cleanable.dirty.ratio": "0"}
WHILE_S = 1.5


@pytest.fixture
def store_bench(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Iterator[StoreBench]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    with checked_store_bench(tmp_path / "backing", caplog) as made:
        made.open()
        yield made
    sys.setswitchinterval(before)


def together(*tasks: Callable[[], None]) -> None:
    """Do each task again and again, in a thread of its own, for a while."""
    end = time.monotonic() + WHILE_S
    errors: list[BaseException] = []

    def repeat(task: Callable[[], None]) -> None:
        try:
            while time.monotonic() < end and not errors:
                task()
        except BaseException as error:  # noqa: BLE001 - raised again below
            errors.append(error)

    threads = [threading.Thread(target=repeat, args=(task,)) for task in tasks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads), "a thread hangs"
    if errors:
        raise errors[0]


def ignore(_: object) -> None:
    """What a task gives is of no interest."""


def cleaning(store_bench: StoreBench) -> Callable[[], None]:
    cleaner = Cleaner.create(24 * 1000, 0.9, 16_384, lambda _: None, bytes(16))

    def work() -> None:
        outcome = store_bench.store.cleaning.work(cleaner, store_bench.now)
        assert outcome.error is None

    return work


class Keyed:
    """Appends values to keys, and knows the latest of each."""

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.latest: dict[bytes, bytes] = {}
        self.count = 0

    def write(self) -> None:
        key, value = b"key %d" % (self.count % 50), b"value %d" % self.count
        self.partition.append(Record(value, key))
        self.latest[key] = value
        self.count += 1


def test_readers_that_hold_segments_read_all_of_them_while_retention_removes(store_bench: StoreBench) -> None:
    partition = store_bench.store.create("orders", overrides={**SMALL, "retention.bytes": "5000"})
    count = 0

    def write() -> None:
        nonlocal count
        partition.append(Record(b"%08d" % count))
        count += 1

    def read() -> None:
        try:
            found = [(record.offset, record.value) for record in partition.records()]
        except OffsetOutOfRangeError:
            return  # the start was raised between looking at it and reading there
        offsets = [offset for offset, _ in found]
        assert all(value == b"%08d" % offset for offset, value in found)
        assert offsets == list(range(offsets[0], offsets[0] + len(offsets))) if offsets else True

    together(
        write,
        read,
        read,
        lambda: ignore(store_bench.store.upkeep.retain()),
        lambda: ignore(store_bench.store.upkeep.retain()),
        lambda: ignore(store_bench.store.upkeep.remove_due(store_bench.now)),
    )
    assert store_bench.store.retention.removed.segments > 0
    assert store_bench.store.retention.failing == {}
    assert partition.end_offset == count


def test_latest_values_stay_and_offsets_do_not_move_while_two_cleaners_work(store_bench: StoreBench) -> None:
    keyed = [
        Keyed(store_bench.store.create(topic, overrides={**SMALL, "cleanup.policy": "compact"}))
        for topic in "abc"
    ]

    def read(each: Keyed) -> None:
        before = dict(each.latest)
        found = {record.key: (record.offset, record.value) for record in each.partition.records()}
        for key, value in before.items():
            if key in found:
                assert int((found[key][1] or b"").split()[1]) == found[key][0]
                assert int(value.split()[1]) <= found[key][0]
        offsets = [offset for offset, _ in found.values()]
        assert len(set(offsets)) == len(offsets)

    def write() -> None:
        for each in keyed:
            each.write()

    together(
        write,
        lambda: read(keyed[0]),
        lambda: read(keyed[1]),
        cleaning(store_bench),
        cleaning(store_bench),
        lambda: ignore(store_bench.store.upkeep.remove_due(store_bench.now)),
    )
    assert store_bench.store.cleaning.uncleanable == {}
    assert store_bench.store.cleaning.failing == {}
    for each in keyed:
        assert {record.key: record.value for record in each.partition.records()} == each.latest
        assert each.partition.end_offset == each.count
        assert store_bench.store.cleaning.offsets.get((each.partition.topic, 0)) is not None


def test_what_breaks_cleans_off_leaves_a_whole_log_and_no_state(store_bench: StoreBench) -> None:
    store = store_bench.store
    partition = store.create("orders", overrides={**SMALL, "cleanup.policy": "compact"})
    policies = ["compact", "delete", "compact,delete"]
    turns = 0

    def write() -> None:
        partition.append([Record(b"value", b"key %d" % key) for key in range(20)])

    def disturb() -> None:
        nonlocal turns
        turns += 1
        store.configure("orders", {"cleanup.policy": policies[turns % 3]})
        if turns % 5 == 0:
            store.truncate("orders", 0, max(partition.start_offset, partition.end_offset - 70))
        time.sleep(0.005)

    def come_and_go() -> None:
        other = store.create("other", overrides={**SMALL, "cleanup.policy": "compact"})
        for _ in range(10):
            other.append([Record(b"value", b"key %d" % key) for key in range(20)])
        store.delete_topic("other")

    def pin() -> None:
        with Hold.take(partition.log, partition.start_offset, partition.end_offset) as hold:
            for segment in hold.held:
                try:
                    segment.log.read(0, segment.size)
                except EngineError:
                    assert partition.log.snapshot.cuts

    together(
        write,
        disturb,
        come_and_go,
        pin,
        cleaning(store_bench),
        cleaning(store_bench),
        lambda: ignore(store.upkeep.retain()),
    )
    assert store.cleaning.states.of(("orders", 0)).value == "none"
    assert store.cleaning.uncleanable == {}
    assert partition.log.failure is None
    assert store.retention.failing == {}
