"""The transaction index: KAFKA_FORMAT 3.5 and KAFKA_CASES D."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topicfs.engine.errors import CorruptIndexError, InvalidOffsetError
from topicfs.engine.format.transaction_index import NOT_KNOWN, AbortedTransaction
from topicfs.engine.segment import transaction_index
from topicfs.engine.segment.transaction_index import TransactionIndex

FOUR = [
    AbortedTransaction(0, 0, 10, 11),
    AbortedTransaction(1, 5, 15, 13),
    AbortedTransaction(2, 18, 35, 25),
    AbortedTransaction(3, 32, 50, 40),
]
VECTOR = bytes.fromhex("00000000000000000fa0000000000000000500000000000000080000000000000009")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "00000000000000000000.txnindex"


def index_with(path: Path, entries: list[AbortedTransaction]) -> TransactionIndex:
    index = TransactionIndex.open(path, 0)
    for entry in entries:
        index.append(entry)
    return index


def stored(entries: list[AbortedTransaction]) -> bytes:
    return b"".join(entry.to_bytes() for entry in entries)


def many(count: int) -> list[AbortedTransaction]:
    return [AbortedTransaction(n, 10 * n, 10 * n + 5, 10 * n + 6) for n in range(count)]


def test_entry_has_the_bytes_of_the_format(path: Path) -> None:
    index_with(path, [AbortedTransaction(4000, 5, 8, 9)])
    assert path.read_bytes() == VECTOR


def test_entry_is_read_back_with_all_fields(path: Path) -> None:
    path.write_bytes(VECTOR)
    assert TransactionIndex.open(path, 0).all() == [AbortedTransaction(4000, 5, 8, 9)]


def test_extreme_numbers_are_read_back(path: Path) -> None:
    entry = AbortedTransaction(2**63 - 1, 2**63 - 3, 2**63 - 2, 2**63 - 1)
    index_with(path, [entry])
    assert TransactionIndex.open(path, 0).all() == [entry]


def test_file_comes_into_being_with_the_first_entry(path: Path) -> None:
    index = TransactionIndex.open(path, 0)
    assert index.all() == []
    assert index.collect(0, 100) == ([], False)
    index.sanity_check()
    index.truncate_to(0)
    index.replace(b"")
    index.flush()
    index.close()
    assert not index.delete_if_exists()
    assert not path.exists()
    index.append(FOUR[0])
    assert path.stat().st_size == 34
    assert index.entries == 1


def test_reopened_index_continues_at_its_end(path: Path) -> None:
    index_with(path, FOUR[:2]).close()
    index = TransactionIndex.open(path, 0)
    assert index.entries == 2
    index.append(FOUR[2])
    index.append(FOUR[3])
    assert index.all() == FOUR


@pytest.mark.parametrize("last_offset", [10, 9])
@pytest.mark.parametrize("reopened", [False, True])
def test_last_offset_must_rise(path: Path, last_offset: int, reopened: bool) -> None:
    index = index_with(path, FOUR[:1])
    if reopened:
        index = TransactionIndex.open(path, 0)
    for _ in range(2):
        with pytest.raises(InvalidOffsetError, match="above 10"):
            index.append(AbortedTransaction(1, 5, last_offset, 11))
    assert index.all() == FOUR[:1]


def test_last_offset_below_the_segment_is_refused(path: Path) -> None:
    with pytest.raises(InvalidOffsetError, match="above 99"):
        TransactionIndex.open(path, 100).append(AbortedTransaction(1, 5, 99, 100))
    assert not path.exists()


@pytest.mark.parametrize(
    ("fetch_offset", "upper", "expected", "complete"),
    [
        (0, 100, FOUR, False),
        (0, 32, FOUR[:3], True),
        (0, 35, FOUR, True),
        (10, 35, FOUR, True),
        (11, 35, FOUR[1:], True),
        (20, 41, FOUR[2:], False),
        (51, 100, [], False),
    ],
)
def test_collect_gives_what_overlaps_and_whether_that_is_all(
    path: Path, fetch_offset: int, upper: int, expected: list[AbortedTransaction], complete: bool
) -> None:
    assert index_with(path, FOUR).collect(fetch_offset, upper) == (expected, complete)


@given(st.data())
def test_collect_by_search_equals_a_walk_over_all(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    lasts = sorted(data.draw(st.sets(st.integers(0, 60), max_size=20)))
    entries = [
        AbortedTransaction(n, data.draw(st.integers(0, last)), last, data.draw(st.integers(0, last + 1)))
        for n, last in enumerate(lasts)
    ]
    fetch_offset = data.draw(st.integers(0, 60))
    upper = data.draw(st.integers(fetch_offset + 1, 70))
    expected, complete = [], False
    for entry in entries:
        if entry.last_offset >= fetch_offset and entry.first_offset < upper:
            expected.append(entry)
        if entry.last_stable_offset >= upper:
            complete = True
            break
    index = index_with(tmp_path_factory.mktemp("index") / "0.txnindex", entries)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transaction_index, "CHUNK_ENTRIES", 2)
        assert index.collect(fetch_offset, upper) == (expected, complete)


def test_collect_in_a_large_index_reads_little_of_it(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = many(100)
    path.write_bytes(b"".join(_bytes(entry) for entry in entries))
    index = TransactionIndex.open(path, 0)
    monkeypatch.setattr(transaction_index, "CHUNK_ENTRIES", 4)
    read = []
    pread = os.pread

    def counting(descriptor: int, length: int, position: int) -> bytes:
        read.append(length)
        return pread(descriptor, length, position)

    monkeypatch.setattr(os, "pread", counting)
    assert index.collect(700, 716) == (entries[70:72], True)
    assert sum(read) <= 34 * 16


def test_collect_below_an_open_long_transaction_goes_on(path: Path) -> None:
    held = [AbortedTransaction(n, 10 * n, 10 * n + 5, 3) for n in range(1, 5)]
    assert index_with(path, held).collect(12, 22) == (held[:2], False)


@pytest.mark.parametrize(("offset", "left"), [(51, 4), (50, 3), (36, 3), (35, 2), (11, 1), (10, 0), (0, 0)])
def test_truncation_drops_what_ends_at_or_behind_the_offset(path: Path, offset: int, left: int) -> None:
    index = index_with(path, FOUR)
    index.truncate_to(offset)
    assert index.all() == FOUR[:left]
    assert path.stat().st_size == 34 * left
    for entry in FOUR[left:]:
        index.append(entry)
    assert TransactionIndex.open(path, 0).all() == FOUR


def test_truncation_across_chunks(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = many(7)
    monkeypatch.setattr(transaction_index, "CHUNK_ENTRIES", 2)
    index = index_with(path, entries)
    index.truncate_to(45)
    assert index.all() == entries[:4]


@pytest.mark.parametrize(
    "found",
    [
        b"",
        bytes(NOT_KNOWN),
        stored(FOUR[:2]),
        stored(FOUR),
        stored(FOUR)[:70],
        stored(FOUR) + b"torn",
        stored([AbortedTransaction(9, 0, 200, 200)]),
        b"garbage " * 200,
    ],
)
@pytest.mark.parametrize("entries", [[], FOUR[:2], FOUR])
def test_what_was_rebuilt_replaces_what_a_file_has(
    path: Path, found: bytes, entries: list[AbortedTransaction]
) -> None:
    path.write_bytes(found)
    index = TransactionIndex.open(path, 0)
    index.replace(stored(entries))
    assert path.read_bytes() == stored(entries)
    assert index.all() == entries
    index.append(AbortedTransaction(1, 300, 310, 311))
    assert TransactionIndex.open(path, 0).entries == len(entries) + 1


def test_entries_that_a_file_has_are_not_written_again(path: Path) -> None:
    index_with(path, FOUR)
    before = path.stat()
    TransactionIndex.open(path, 0).replace(stored(FOUR))
    assert (path.stat().st_mtime_ns, path.stat().st_ino) == (before.st_mtime_ns, before.st_ino)


def test_entries_without_room_are_in_memory_and_their_file_says_so(path: Path) -> None:
    index = index_with(path, FOUR[:1])
    index.hold(stored(FOUR[:3]))
    assert path.stat().st_size == NOT_KNOWN
    with pytest.raises(CorruptIndexError, match="multiple of 34"):
        TransactionIndex.open(path, 0).sanity_check()
    index.make_room(1)
    index.append(FOUR[3])
    assert index.all() == FOUR
    index.truncate_to(FOUR[2].last_offset)
    index.flush()
    index.close()
    moved = path.with_name("elsewhere")
    index.rename(moved)
    assert (index.all(), moved.stat().st_size) == (FOUR[:2], NOT_KNOWN)
    index.write_out()
    assert TransactionIndex.open(moved, 0).all() == index.all() == FOUR[:2]


def test_truncation_that_fails_changes_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = index_with(path, FOUR)

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "input/output error")

    monkeypatch.setattr(os, "truncate", fail)
    with pytest.raises(OSError, match="input/output error"):
        index.truncate_to(0)
    assert index.all() == FOUR


def test_append_that_fails_midway_changes_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = index_with(path, FOUR[:1])
    pwrite = os.pwrite

    def fill_disk(descriptor: int, data: bytes, position: int) -> int:
        if position > 34:
            raise OSError(errno.ENOSPC, "no space")
        return pwrite(descriptor, data[:9], position)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", fill_disk)
        with pytest.raises(OSError, match="no space"):
            index.append(FOUR[1])
    assert path.stat().st_size == 34
    assert index.all() == FOUR[:1]
    index.append(FOUR[1])
    assert TransactionIndex.open(path, 0).all() == FOUR[:2]


def test_short_writes_are_continued(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pwrite = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, position: pwrite(fd, data[:5], position))
    assert index_with(path, FOUR).all() == FOUR


# -- files that break the format --------------------------------------------------------------------


def test_entry_below_the_base_is_corrupt(path: Path) -> None:
    index_with(path, FOUR)
    index = TransactionIndex.open(path, 11)
    with pytest.raises(CorruptIndexError, match=r"entry 0.*above 10.*found 10"):
        index.sanity_check()
    TransactionIndex.open(path, 10).sanity_check()


@pytest.mark.parametrize("version", [1, 256, -1])
def test_entry_of_another_version_is_corrupt(path: Path, version: int) -> None:
    index_with(path, FOUR[:1])
    with path.open("ab") as file:
        file.write(version.to_bytes(2, "big", signed=True) + _bytes(FOUR[1])[2:])
    index = TransactionIndex.open(path, 0)
    for read in (index.sanity_check, index.all, lambda: index.collect(0, 100)):
        with pytest.raises(CorruptIndexError, match=f"entry 1: expected version 0, found {version}"):
            read()


@pytest.mark.parametrize("size", [1, 33, 35, 67])
def test_odd_length_is_corrupt(path: Path, size: int) -> None:
    path.write_bytes((VECTOR * 2)[:size])
    index = TransactionIndex.open(path, 0)
    for use in (index.sanity_check, index.all, lambda: index.append(FOUR[3])):
        with pytest.raises(CorruptIndexError, match=f"multiple of 34 bytes, found {size}"):
            use()
    assert path.stat().st_size == size


def test_last_offsets_that_do_not_rise_are_corrupt(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction_index, "CHUNK_ENTRIES", 2)
    for wrong in ([FOUR[1], FOUR[0]], [FOUR[0], FOUR[1], FOUR[1]]):
        path.write_bytes(b"".join(map(_bytes, wrong)))
        with pytest.raises(CorruptIndexError, match="above 15"):
            TransactionIndex.open(path, 0).sanity_check()


def test_huge_file_of_zeros_is_refused_at_its_first_entries(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(34 * 10**9)
    index = TransactionIndex.open(path, 0)
    for read in (index.sanity_check, index.all, lambda: index.collect(0, 1)):
        with pytest.raises(CorruptIndexError, match="entry 1: expected a last offset above 0"):
            read()


def test_file_cut_behind_our_back_is_corrupt(path: Path) -> None:
    index = index_with(path, FOUR)
    os.truncate(path, 40)
    with pytest.raises(CorruptIndexError, match="expected 136 bytes as published, found 40"):
        index.all()


def test_file_removed_behind_our_back_is_an_error_of_the_system(path: Path) -> None:
    index = index_with(path, FOUR)
    path.unlink()
    with pytest.raises(FileNotFoundError, match="expected 136 bytes"):
        index.all()


# -- names, and readers beside changes --------------------------------------------------------------


def test_rename_keeps_reads_and_appends_working(path: Path) -> None:
    index = index_with(path, FOUR[:2])
    renamed = path.with_name(path.name + ".swap")
    index.rename(renamed)
    assert not path.exists()
    index.append(FOUR[2])
    assert index.path == renamed
    assert index.all() == FOUR[:3]
    assert TransactionIndex.open(renamed, 0).all() == FOUR[:3]


def test_rename_without_a_file_makes_none(path: Path) -> None:
    index = TransactionIndex.open(path, 0)
    renamed = path.with_name(path.name + ".deleted")
    index.rename(renamed)
    assert not renamed.exists()
    index.append(FOUR[0])
    assert renamed.exists()


def test_rename_of_a_file_that_is_gone_is_no_error(path: Path) -> None:
    index = index_with(path, FOUR)
    path.unlink()
    index.rename(path.with_name(path.name + ".deleted"))
    assert index.path.name.endswith(".deleted")


def test_deleted_index_is_read_on_when_its_name_is_used_again(path: Path) -> None:
    old = index_with(path, FOUR)
    deleted = path.with_name(path.name + ".deleted")
    old.rename(deleted)
    new = index_with(path, FOUR[:1])
    new.rename(deleted)
    assert old.all() == FOUR
    assert new.all() == FOUR[:1]


def test_delete_if_exists(path: Path) -> None:
    index = index_with(path, FOUR)
    assert index.delete_if_exists()
    assert not path.exists()
    assert not index.delete_if_exists()
    assert index.all() == []


def test_reader_that_opens_during_a_rename_finds_the_file(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = index_with(path, FOUR)
    opening = os.open
    targets = iter([path.with_name(path.name + ".swap"), path.with_name(path.name + ".deleted")])

    def rename_first(name: Path, flags: int, mode: int = 0o777) -> int:
        target = next(targets, None)
        if target is not None:
            with monkeypatch.context() as patch:
                patch.setattr(os, "open", opening)
                index.rename(target)
        return opening(name, flags, mode)

    monkeypatch.setattr(os, "open", rename_first)
    assert index.all() == FOUR


def test_reader_beside_a_truncation_ends_early(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction_index, "CHUNK_ENTRIES", 1)
    index = index_with(path, FOUR)
    chunks = index._chunks(-1)
    assert next(chunks)["producer_id"].tolist() == [0]
    index.truncate_to(20)
    assert [chunk["producer_id"].tolist() for chunk in chunks] == [[1]]


def test_reader_beside_a_deletion_finds_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = index_with(path, FOUR)
    opening = os.open

    def delete_first(name: Path, flags: int, *mode: int) -> int:
        index.delete_if_exists()
        return opening(name, flags)

    monkeypatch.setattr(os, "open", delete_first)
    assert index.all() == []


def test_flush_syncs_once_after_a_change(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    index = index_with(path, FOUR)
    index.flush()
    index.flush()
    assert len(synced) == 1
    index.truncate_to(20)
    index.flush()
    assert len(synced) == 2


def test_flush_that_fails_is_tried_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = index_with(path, FOUR)

    def fail(_: int) -> None:
        raise OSError(errno.EIO, "input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(OSError, match="input/output error"):
            index.flush()
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    index.flush()
    assert len(synced) == 1


def test_no_descriptor_stays_open(path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    index = index_with(path, FOUR)
    index.all()
    index.collect(0, 100)
    index.flush()
    assert len(os.listdir("/proc/self/fd")) == before
    index.rename(path.with_name(path.name + ".deleted"))
    assert len(os.listdir("/proc/self/fd")) == before + 1
    index.close()
    assert len(os.listdir("/proc/self/fd")) == before


def _bytes(entry: AbortedTransaction) -> bytes:
    numbers = (entry.producer_id, entry.first_offset, entry.last_offset, entry.last_stable_offset)
    return bytes(2) + b"".join(number.to_bytes(8, "big") for number in numbers)
