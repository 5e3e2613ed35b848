"""Files of a segment read without a kernel: they say what those say that the engine reads and writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from topicfs.engine.format.index import OFFSET_ENTRY, TIME_ENTRY, Index
from topicfs.engine.format.transaction_index import AbortedTransaction, aborted_in
from topicfs.engine.segment.offset_index import OffsetIndex
from topicfs.engine.segment.time_index import TimeIndex
from topicfs.engine.segment.transaction_index import TransactionIndex

BASE = 40


@pytest.mark.parametrize("count", [0, 1, 2, 3, 70])
@pytest.mark.parametrize("behind", [0, 1, 500, 5])
def test_indexes_are_read_alike_also_where_a_broker_gave_them_their_full_size(
    tmp_path: Path, count: int, behind: int
) -> None:
    offsets = OffsetIndex(f"{tmp_path}/index", BASE, 1000)
    times = TimeIndex(f"{tmp_path}/timeindex", BASE, 1000)
    offsets.begin()
    times.begin()
    for at in range(count):
        offsets.append(BASE + 3 * at + 1, 100 * at)
        times.maybe_append(1000 + at, BASE + 3 * at)
    offsets.close()
    times.close()
    by_offset, by_time = (
        Index.of(BASE, layout, Path(index.path).read_bytes() + bytes(behind))
        for index, layout in ((offsets, OFFSET_ENTRY), (times, TIME_ENTRY))
    )
    for found in (by_offset, by_time):
        assert found.entries == count
        assert found.last() == (found.at(count - 1) if count else None)
    for number in range(count):
        assert (BASE + by_offset.at(number)[0], by_offset.at(number)[1]) == offsets.entry(number)
        assert (by_time.at(number)[0], BASE + by_time.at(number)[1]) == times.entry(number)
    for target in range(-1, 3 * count + 2):
        assert by_offset.count_up_to(0, target) == offsets.floor(BASE + target)[0] + 1


def test_an_index_that_is_cut_off_while_it_is_read_has_no_last_entry() -> None:
    data = bytearray(TIME_ENTRY.struct.pack(7, 1) + TIME_ENTRY.struct.pack(9, 2))
    index = Index(BASE, TIME_ENTRY, len(data), lambda at, length: bytes(data[at : at + length]))
    assert index.last() == (9, 2)
    del data[12:]
    assert index.last() is None


def test_aborted_transactions_are_read_alike(tmp_path: Path) -> None:
    entries = [AbortedTransaction(at, 10 * at, 10 * at + 5, 3 * at) for at in range(5)]
    index = TransactionIndex.open(tmp_path / "txnindex", 0)
    for entry in entries:
        index.append(entry)
    data = index.path.read_bytes()
    assert list(aborted_in(data)) == list(aborted_in(data + b"half")) == index.all() == entries
    for start in range(60):
        found = index.collect(start, start + 3)[0]
        assert [each for each in entries if each.overlaps(start, start + 3)] == found
