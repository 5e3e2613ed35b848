"""Producer snapshot files and entries: KAFKA_FORMAT 2.1 (sequences), 2.6 (vector S), 3.6, and
testReadWriteSnapshot of KAFKA_CASES G.
"""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path

import google_crc32c
import pytest

from topicfs.engine.errors import CorruptSnapshotError
from topicfs.engine.producer import snapshot
from topicfs.engine.producer.entry import (
    BatchMetadata,
    ProducerEntry,
    decrement,
    increment,
    last_sequence_of,
)

MAXI = 2**31 - 1
VECTOR = bytes.fromhex(
    "00011073e326000000010000000000000fa0000300000009000000000000000700000002"
    "0000018bcfe568050000000fffffffffffffffff"
)
VECTOR_ENTRY = ProducerEntry(4000, 3, 15, 1700000000005, -1, (BatchMetadata(9, 7, 2, 1700000000005),))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "00000000000000000008.snapshot"


def file_of(body: bytes, count: int, version: int = 1) -> bytes:
    checked = count.to_bytes(4, "big", signed=True) + body
    checksum: int = google_crc32c.value(checked)
    return version.to_bytes(2, "big") + checksum.to_bytes(4, "big") + checked


def row(
    producer_id: int = 1,
    *,
    epoch: int = 0,
    sequence: int = 0,
    offset: int = 0,
    delta: int = 0,
    timestamp: int = 5,
    coordinator_epoch: int = -1,
    first_offset: int = -1,
) -> bytes:
    fields = [
        (producer_id, 8),
        (epoch, 2),
        (sequence, 4),
        (offset, 8),
        (delta, 4),
        (timestamp, 8),
        (coordinator_epoch, 4),
        (first_offset, 8),
    ]
    return b"".join(number.to_bytes(size, "big", signed=True) for number, size in fields)


def test_snapshot_has_the_bytes_of_the_format(path: Path) -> None:
    snapshot.write(path, [VECTOR_ENTRY], fsync=True)
    assert path.read_bytes() == VECTOR


def test_snapshot_of_the_format_is_read(path: Path) -> None:
    path.write_bytes(VECTOR)
    assert snapshot.read(path) == [VECTOR_ENTRY]


def test_empty_state_is_ten_bytes(path: Path) -> None:
    snapshot.write(path, [], fsync=False)
    assert path.read_bytes() == file_of(b"", 0)
    assert path.stat().st_size == 10
    assert snapshot.read(path) == []


def test_entries_are_read_back(path: Path) -> None:
    entries = [
        VECTOR_ENTRY,
        ProducerEntry(5),
        ProducerEntry(6, 2, 9, 44),
        ProducerEntry(7, 32767, MAXI, 2**62, 17, (BatchMetadata(MAXI, 2**62, MAXI, 2**62),)),
        ProducerEntry(2**63 - 1, 0, -1, -1, 0, (BatchMetadata(-1, 0, 0, -1),)),
    ]
    snapshot.write(path, entries, fsync=False)
    assert path.stat().st_size == 10 + 46 * 5
    assert snapshot.read(path) == entries


def test_only_the_last_batch_is_kept(path: Path) -> None:
    batches = tuple(BatchMetadata(sequence, 10 + sequence, 0, 100 + sequence) for sequence in range(5))
    snapshot.write(path, [ProducerEntry(1, 0, -1, 104, -1, batches)], fsync=False)
    assert snapshot.read(path) == [ProducerEntry(1, 0, -1, 104, -1, batches[-1:])]


def test_negative_offsets_mean_none(path: Path) -> None:
    path.write_bytes(file_of(row(offset=-7, sequence=4, first_offset=-9), 1))
    assert snapshot.read(path) == [ProducerEntry(1, 0, -1, 5)]


def test_longer_snapshot_of_the_same_name_is_replaced_whole(path: Path) -> None:
    snapshot.write(path, [ProducerEntry(number) for number in range(10)], fsync=False)
    snapshot.write(path, [ProducerEntry(3)], fsync=False)
    assert snapshot.read(path) == [ProducerEntry(3)]


@pytest.mark.parametrize("size", [0, 1, 9, 11, 55, 57, 10])
def test_wrong_length_is_corrupt(path: Path, size: int) -> None:
    path.write_bytes((VECTOR + b"x")[:size])
    with pytest.raises(CorruptSnapshotError, match=path.name):
        snapshot.read(path)


@pytest.mark.parametrize("at", range(len(VECTOR)))
def test_any_changed_byte_is_corrupt(path: Path, at: int) -> None:
    path.write_bytes(VECTOR[:at] + bytes([VECTOR[at] ^ 0x40]) + VECTOR[at + 1 :])
    with pytest.raises(CorruptSnapshotError):
        snapshot.read(path)


@pytest.mark.parametrize("version", [0, 2])
def test_other_version_is_corrupt(path: Path, version: int) -> None:
    path.write_bytes(file_of(b"", 0, version))
    with pytest.raises(CorruptSnapshotError, match=f"expected version 1, found {version}"):
        snapshot.read(path)


@pytest.mark.parametrize("count", [MAXI, -1, -(2**31), 0, 2])
def test_count_is_compared_with_the_length_before_it_is_used(path: Path, count: int) -> None:
    path.write_bytes(file_of(row(), count))
    with pytest.raises(CorruptSnapshotError, match=f"expected {count} entries as declared, found 1"):
        snapshot.read(path)


def test_huge_file_is_refused_unread(path: Path) -> None:
    count = 2 * 10**9
    with path.open("wb") as file:
        file.write(bytes([0, 1, 0, 0, 0, 0]) + count.to_bytes(4, "big"))
        file.truncate(10 + 46 * count)
    with pytest.raises(CorruptSnapshotError, match="10 to 268435456 bytes, found 92000000010"):
        snapshot.read(path)


def test_contradicting_entries_are_corrupt_in_spite_of_the_checksum(path: Path) -> None:
    path.write_bytes(file_of(row(3) + row(2) + row(3), 3))
    with pytest.raises(CorruptSnapshotError, match="each producer id once, found 3"):
        snapshot.read(path)
    path.write_bytes(file_of(row(1, first_offset=9) + row(2) + row(3, first_offset=9), 3))
    with pytest.raises(CorruptSnapshotError, match="each transaction's first offset once, found 9"):
        snapshot.read(path)
    path.write_bytes(file_of(row(-1), 1))
    with pytest.raises(CorruptSnapshotError, match="at least 0, found -1"):
        snapshot.read(path)


@pytest.mark.parametrize("failing", ["fsync", "replace"])
def test_failed_write_leaves_the_old_snapshot_and_no_other_file(
    path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    snapshot.write(path, [VECTOR_ENTRY], fsync=False)

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(*((os, "fsync", fail) if failing == "fsync" else (Path, "replace", fail)))
    with pytest.raises(OSError, match="no space"):
        snapshot.write(path, [], fsync=True)
    assert path.read_bytes() == VECTOR
    assert os.listdir(path.parent) == [path.name]


def test_durable_write_syncs_the_file_before_it_is_renamed_and_the_directory_after(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append((_name_of(descriptor), path.exists())))
    snapshot.write(path, [], fsync=True)
    assert synced == [(path.name + ".tmp", False), (path.parent.name, True)]


def test_flush_makes_an_earlier_write_durable(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(_name_of(descriptor)))
    snapshot.write(path, [], fsync=False)
    assert synced == []
    snapshot.flush(path)
    assert synced == [path.name, path.parent.name]


def test_flush_of_a_deleted_snapshot_is_no_error(path: Path) -> None:
    snapshot.flush(path)


def test_many_producers_are_written_and_read_in_bulk(path: Path) -> None:
    entries = [
        ProducerEntry(number, 0, -1, number, -1, (BatchMetadata(0, number, 0, number),))
        for number in range(20_000)
    ]
    started = time.process_time()
    snapshot.write(path, entries, fsync=False)
    assert snapshot.read(path) == entries
    assert time.process_time() - started < 2  # 0.1 s here: a slip into quadratic work is what fails it


# -- sequence numbers -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sequence", "by", "expected"),
    [(0, 1, 1), (5, 0, 5), (MAXI - 1, 1, MAXI), (MAXI, 1, 0), (MAXI - 2, 5, 2), (MAXI, MAXI, MAXI - 1)],
)
def test_sequences_go_on_at_zero_after_the_largest(sequence: int, by: int, expected: int) -> None:
    assert increment(sequence, by) == expected
    assert decrement(expected, by) == sequence


def test_last_sequence_counts_from_the_first_and_is_none_without_one() -> None:
    assert last_sequence_of(7, 2) == 9
    assert last_sequence_of(MAXI, 1) == 0
    assert last_sequence_of(-1, 2) == -1


def test_batch_knows_where_it_begins() -> None:
    batch = BatchMetadata(last_sequence=1, last_offset=20, offset_delta=3, timestamp=0)
    assert batch.first_offset == 17
    assert batch.first_sequence == MAXI - 1


def _name_of(descriptor: int) -> str:
    return os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}"))
