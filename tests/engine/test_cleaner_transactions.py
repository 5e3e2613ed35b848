"""Compaction of transactions: KAFKA_FORMAT 8.6, KAFKA_CASES P."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from compacted import DAY, NOW, Cleaning, cleaner
from partition_opening import without_fsync

from topicfs.engine.kernels import encode as encoding
from topicfs.engine.partition.offsets import Isolation


@pytest.fixture(autouse=True)
def _fast() -> Iterator[None]:
    with without_fsync():
        yield


@pytest.fixture
def topic(tmp_path: Path) -> Iterator[Cleaning]:
    made = Cleaning(tmp_path / "t-0")
    yield made
    made.check()


def begin(topic: Cleaning, producer: int, *pairs: tuple[object, object]) -> int:
    return topic.produce(producer, *pairs, transactional=True)


def all_offsets(topic: Cleaning) -> list[int]:
    """Of the records that are there, committed or not."""
    return [record.offset for record in topic.partition.records(isolation=Isolation.UNCOMMITTED)]


def empty(topic: Cleaning) -> list[int]:
    return [base for base, _, _, count in topic.batches() if not count]


def test_records_of_aborted_transactions_go_and_those_of_committed_ones_count(topic: Cleaning) -> None:
    begin(topic, 1, ("a", 1), ("b", 2))  # 0, 1
    begin(topic, 2, ("b", 3), ("c", 4))  # 2, 3
    begin(topic, 1, ("c", 5))  # 4
    topic.end(1, commit=False)  # 5
    begin(topic, 2, ("d", 6))  # 6
    topic.end(2, commit=True)  # 7
    topic.clean()
    assert all_offsets(topic) == [2, 3, 6]
    assert topic.values() == {"b": 3, "c": 4, "d": 6}
    assert topic.markers() == [5, 7]
    assert topic.aborted() == [(1, 0, 5)]
    # The producers' last batches tell their sequences.
    assert empty(topic) == [4]


def test_an_aborted_value_does_not_shadow_the_committed_one_before_it(topic: Cleaning) -> None:
    topic.put(("a", 1))
    begin(topic, 1, ("a", 2))
    topic.end(1, commit=False)
    topic.clean()
    assert topic.pairs() == [(0, "a", 1)]


def test_the_index_lists_an_aborted_transaction_while_a_batch_or_its_marker_needs_it(topic: Cleaning) -> None:
    begin(topic, 1, ("a", 1))  # 0
    topic.end(1, commit=False)  # 1
    begin(topic, 1, ("b", 2))  # 2
    topic.end(1, commit=True)  # 3
    topic.clean()
    assert (topic.aborted(), topic.markers()) == ([(1, 0, 1)], [1, 3])
    topic.put(("c", 3))
    topic.clean()
    assert (topic.aborted(), topic.markers()) == ([], [1, 3]), (
        "no batch was seen any more: the horizon is set"
    )
    topic.clock.ms += DAY
    topic.put(("c", 4))
    topic.clean()
    assert (topic.aborted(), topic.markers()) == ([], [3])


def test_an_abort_marker_goes_a_horizon_after_the_pass_that_found_its_transaction_empty(
    topic: Cleaning,
) -> None:
    begin(topic, 1, ("a", 1))
    topic.end(1, commit=False)
    begin(topic, 1, ("a", 2))
    topic.end(1, commit=True)
    expected = [[1, 3], [1, 3], [1, 3], [3]]
    for number, waited in enumerate((0, 0, DAY - 1, 1)):
        topic.clock.ms += waited
        topic.put(("other", number))
        topic.clean()
        assert topic.markers() == expected[number]


def test_an_abort_marker_stays_with_the_empty_batch_of_its_transaction(topic: Cleaning) -> None:
    begin(topic, 1, ("a", 1))  # 0: the producer's last batch
    topic.end(1, commit=False)  # 1
    topic.put(("b", 1))
    for _ in range(3):
        topic.clock.ms += DAY
        topic.put(("b", 2))
        topic.clean()
        assert (empty(topic), topic.markers(), topic.aborted()) == ([0], [1], [(1, 0, 1)])
    begin(topic, 1, ("c", 3))
    topic.end(1, commit=True)
    last = topic.partition.end_offset - 1
    topic.clean()
    assert (empty(topic), topic.markers()) == ([], [1, last])
    for waited in (0, DAY):
        topic.clock.ms += waited
        topic.put(("b", 4))
        topic.clean()
    assert topic.markers() == [last]


def test_a_commit_marker_stays_while_a_record_of_its_transaction_does(topic: Cleaning) -> None:
    begin(topic, 1, ("a", 1), ("b", 2))  # 0, 1
    topic.end(1, commit=True)  # 2
    begin(topic, 1, ("z", 0))  # 3
    topic.end(1, commit=True)  # 4
    for number in range(3):
        topic.clock.ms += 2 * DAY
        topic.put(("a", number))
        topic.clean()
        assert topic.markers() == [2, 4]
    topic.put(("b", 9))
    topic.clean()
    assert topic.markers() == [2, 4], "its last record goes in this pass"
    topic.put(("x", 1))
    topic.clean()
    assert topic.markers() == [2, 4], "this pass saw none: the horizon is set"
    topic.clock.ms += DAY - 1
    topic.put(("x", 2))
    topic.clean()
    assert topic.markers() == [2, 4]
    topic.clock.ms += 1
    topic.put(("x", 3))
    topic.clean()
    assert topic.markers() == [4]


def test_a_commit_marker_stays_with_the_empty_batch_of_its_transaction(topic: Cleaning) -> None:
    begin(topic, 1, ("a", 1))  # 0
    topic.end(1, commit=True)  # 1
    for number in range(4):
        topic.clock.ms += 2 * DAY
        topic.put(("a", number))
        topic.clean()
        assert (empty(topic), topic.markers()) == ([0], [1])


def test_batches_that_are_discarded_are_not_read(topic: Cleaning) -> None:
    """A record in an aborted batch may break the format: nobody looks at it."""
    begin(topic, 1, ("a", 1))
    topic.end(1, commit=False)
    begin(topic, 1, ("b", 2))
    topic.end(1, commit=True)
    topic.partition.roll()
    path = topic.partition.log.chain.segments.first.path
    data = np.frombuffer(path.read_bytes(), np.uint8).copy()
    end = 12 + int.from_bytes(data[8:12].tobytes(), "big")
    data[61] = 0x7E
    encoding.restamp(data, 0, end, 0x10, NOW)
    path.write_bytes(data.tobytes())
    topic.clean(roll=False)
    assert topic.pairs() == [(2, "b", 2)]


@pytest.mark.parametrize("commit", [True, False])
def test_a_transaction_over_several_segments_is_cleaned_as_one(topic: Cleaning, commit: bool) -> None:
    topic.put(("a", 0))
    begin(topic, 1, ("a", 1))  # 1
    topic.partition.roll()
    begin(topic, 1, ("b", 2))  # 2
    topic.partition.roll()
    begin(topic, 1, ("c", 3))  # 3
    topic.partition.roll()
    topic.end(1, commit)  # 4
    for number in range(2):
        topic.put(("z", number))
        topic.clean()
        assert topic.values() == {**({"a": 1, "b": 2, "c": 3} if commit else {"a": 0}), "z": number}
        assert topic.markers() == [4]
        assert topic.aborted() == ([] if commit else [(1, 1, 4)])
    assert empty(topic) == ([] if commit else [3])


@pytest.mark.parametrize("commit", [True, False])
def test_a_marker_behind_what_is_cleaned_decides_the_records_before_it(topic: Cleaning, commit: bool) -> None:
    topic.put(("a", 0))
    begin(topic, 1, ("a", 1))
    topic.partition.roll()
    topic.end(1, commit)
    begin(topic, 1, ("b", 2))
    topic.clean(roll=False)
    assert topic.values() == ({"a": 1} if commit else {"a": 0})
    assert topic.markers() == [2]
    topic.end(1, commit=True)


def test_passes_with_a_small_map_clean_aborted_transactions_too(topic: Cleaning) -> None:
    for number in range(12):
        begin(topic, 1, (number % 4, number))
        topic.end(1, commit=number % 3 != 0)
    expected = topic.values()
    topic.partition.roll()
    while topic.dirty < topic.partition.end_offset:
        before = topic.dirty
        topic.clean(cleaner(keys=2), roll=False)
        assert topic.dirty > before
        assert topic.values() == expected
    assert len(topic.offsets()) == 4


def test_an_emptied_marker_of_a_live_producer_is_cleaned_without_error(topic: Cleaning) -> None:
    """A producer that wrote nothing in its epoch: of the marker that fences, the header stays."""
    topic.partition.end_transaction(1, 5, commit=False)
    topic.put(("a", 1))
    topic.clean()
    for waited in (DAY, DAY, 0):
        topic.clock.ms += waited
        topic.put(("a", 2))
        topic.clean()
    assert topic.batches()[0] == (0, 0, 0x30, 0)
    assert topic.partition.log.producers.producers[1].epoch == 5


def test_keys_that_look_like_a_markers_key_do_not_shadow_it(topic: Cleaning) -> None:
    begin(topic, 1, ("a", 1))
    topic.end(1, commit=True)
    begin(topic, 1, ("\0\0\0\0", 2), ("\0\0\0\1", 3))
    topic.end(1, commit=True)
    begin(topic, 1, ("\0\0\0\0", 4), ("\0\0\0\1", 5))
    topic.end(1, commit=True)
    topic.clean()
    assert topic.markers() == [1, 4, 7]
    assert topic.offsets() == [0, 5, 6]


def test_the_last_sequence_of_an_aborted_transaction_is_kept(topic: Cleaning) -> None:
    begin(topic, 1, ("a", 1))
    begin(topic, 1, ("b", 2), ("c", 3))
    topic.end(1, commit=False)
    topic.put(("z", 1))
    topic.clean()
    assert empty(topic) == [1]
    assert topic.reopen(crash=True).log.producers.producers[1].last_sequence == 2


def test_no_transaction_is_open_after_its_records_and_marker_were_cleaned(topic: Cleaning) -> None:
    for number in range(10):
        begin(topic, number % 3, ("a", number))
        topic.end(number % 3, commit=number % 2 == 0)
    for _ in range(4):
        topic.clock.ms += DAY
        topic.put(("b", 1))
        topic.clean()
        partition = topic.reopen(crash=True)
        assert partition.stable_offset == partition.end_offset
