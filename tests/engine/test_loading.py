"""Opening a partition's directory: what is there after a clean stop, after a crash, and after worse.

Cases that do not apply here: the marker of a clean stop, its removal before logs are loaded, and a directory that
goes offline on an I/O error (testLogRecoveryIsCalledUponBrokerCrash) are the store's, as is a late transaction's
flag. Indexes are never preallocated, so none is re-extended. Recovery is in test_recovery, leader epochs in
test_loading_epochs, what a crash leaves of a swap in test_leftovers, segments with offsets too far up in test_split.
"""

from __future__ import annotations

import errno
import logging
import shutil
from pathlib import Path

import pytest
from directory_check import bases, check_directory, check_rebuilt, content, parse
from partition_opening import CLEAN, NOW, Clock, open_partition

from topicfs.engine.errors import (
    CorruptBatchError,
    CorruptError,
    OutOfOrderSequenceError,
)
from topicfs.engine.errors import TransactionCoordinatorFencedError as CoordinatorFencedError
from topicfs.engine.format.paths import log_file
from topicfs.engine.partition.cutting import retire
from topicfs.engine.partition.loading import Known
from topicfs.engine.partition.offsets import Isolation
from topicfs.engine.partition.partition import Partition, Producer
from topicfs.engine.record import Record
from topicfs.engine.segment.batch_file import BatchFile
from topicfs.engine.segment.offset_index import IndexFile


def fill(partition: Partition, count: int, first: int = 0) -> list[bytes]:
    """Append records one by one; gives their values."""
    values = [b"value %d" % number for number in range(first, first + count)]
    for number, value in enumerate(values, first):
        partition.append(Record(value, b"key", NOW + number))
    return values


def values_of(partition: Partition) -> list[bytes | None]:
    return [record.value for record in partition.records()]


def snapshots(directory: Path) -> list[int]:
    return bases(directory, ".snapshot")


def marked(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.glob("*.deleted"))


# -- how much is looked at ----------------------------------------------------------------------------


def test_a_clean_stop_spares_recovery_even_with_recovery_point_0(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition = open_partition(tmp_path / "t-0")
    values = fill(partition, 30)
    partition.close()
    monkeypatch.setattr("topicfs.engine.partition.recovery.Recovery._recover", None)
    caplog.set_level(logging.WARNING)
    partition = open_partition(tmp_path / "t-0", CLEAN)
    assert partition.recovery_point == partition.end_offset == 30
    assert values_of(partition) == values
    partition.close()
    assert not caplog.records


def test_recovering_alone_does_not_advance_the_recovery_point(tmp_path: Path) -> None:
    partition = open_partition(tmp_path / "t-0")
    fill(partition, 30)
    partition.flush(20)
    partition.log.abandon()
    partition = open_partition(tmp_path / "t-0", Known(recovery_point=20))
    assert (partition.recovery_point, partition.end_offset) == (20, 30)
    partition.close()


def test_recovery_leaves_the_end_and_the_number_of_index_entries_as_they_were(tmp_path: Path) -> None:
    partition = open_partition(tmp_path / "t-0")
    fill(partition, 60)
    partition.close()
    before = content(tmp_path / "t-0")
    for known in (Known(recovery_point=60), Known(recovery_point=0), Known(recovery_point=30)):
        partition = open_partition(tmp_path / "t-0", known)
        assert (partition.end_offset, partition.recovery_point) == (60, known.recovery_point)
        partition.log.abandon()
        after = content(tmp_path / "t-0")
        assert {name: after[name] for name in before if not name.endswith(".snapshot")} == {
            name: data for name, data in before.items() if not name.endswith(".snapshot")
        }


def test_a_recovery_point_above_the_end_is_cut_to_the_end(tmp_path: Path) -> None:
    partition = open_partition(tmp_path / "t-0")
    fill(partition, 5)
    partition.log.abandon()
    partition = open_partition(tmp_path / "t-0", Known(recovery_point=500))
    assert partition.recovery_point == partition.end_offset == 5
    partition.close()


def test_a_recovery_point_below_the_start_is_raised_to_it(tmp_path: Path) -> None:
    partition = open_partition(tmp_path / "t-0")
    fill(partition, 30)
    partition.log.abandon()
    partition = open_partition(tmp_path / "t-0", Known(recovery_point=3, start=20))
    assert (partition.start_offset, partition.recovery_point) == (20, 20)
    partition.close()


@pytest.mark.parametrize("clean", [True, False])
def test_a_directory_without_segments_gets_an_empty_one_at_the_start_offset(
    tmp_path: Path, clean: bool
) -> None:
    partition = open_partition(tmp_path / "t-0", Known(clean=clean, start=500))
    assert (partition.start_offset, partition.high_watermark, partition.end_offset) == (500, 500, 500)
    names = {path.name for path in (tmp_path / "t-0").iterdir()}
    assert {f"{500:020d}{suffix}" for suffix in (".log", ".index", ".timeindex")} <= names
    assert fill(partition, 3) == values_of(partition)
    partition.close()


def test_a_clean_stop_of_an_emptied_directory_does_not_count_for_the_recovery_point(tmp_path: Path) -> None:
    partition = open_partition(tmp_path / "t-0", Known(clean=True, recovery_point=700, start=500))
    assert partition.recovery_point == 500
    partition.close()


def test_the_start_offset_is_the_first_base_where_none_above_it_is_known(tmp_path: Path) -> None:
    partition = open_partition(tmp_path / "t-0", Known(start=500))
    fill(partition, 3)
    partition.close()
    partition = open_partition(tmp_path / "t-0", CLEAN)
    assert (partition.start_offset, partition.end_offset) == (500, 503)
    partition.close()


def test_the_high_watermark_lies_between_start_and_end(tmp_path: Path) -> None:
    partition = open_partition(tmp_path / "t-0")
    fill(partition, 10)
    partition.close()
    for known, expected in ((None, 2), (1, 2), (7, 7), (99, 10)):
        again = open_partition(tmp_path / "t-0", Known(clean=True, start=2, high_watermark=known), lone=False)
        assert again.high_watermark == expected
        again.close()


def test_an_empty_active_segment_recovers(tmp_path: Path) -> None:
    partition = open_partition(tmp_path / "t-0")
    values = fill(partition, 5)
    partition.roll()
    partition.log.abandon()
    partition = open_partition(tmp_path / "t-0", Known(recovery_point=0))
    assert bases(tmp_path / "t-0") == [0, 5]
    assert partition.end_offset == 5
    values += fill(partition, 2, 5)
    assert values_of(partition) == values
    partition.close()


def test_reopening_and_truncating_leaves_one_segment_and_that_end(tmp_path: Path) -> None:
    partition = open_partition(tmp_path / "t-0")
    values = fill(partition, 60)
    partition.close()
    partition = open_partition(tmp_path / "t-0", CLEAN)
    partition.truncate_to(3)
    assert bases(tmp_path / "t-0") == [0]
    assert partition.end_offset == 3
    assert values_of(partition) == values[:3]
    partition.close()


def test_a_preallocated_segment_is_cut_to_its_records_after_a_crash(tmp_path: Path) -> None:
    partition = open_partition(tmp_path / "t-0", preallocate="true", segment_bytes=4000)
    values = fill(partition, 5)
    assert partition.log.chain.active.path.stat().st_size == 4000
    partition.log.abandon()
    partition = open_partition(tmp_path / "t-0", preallocate="true", segment_bytes=4000)
    assert values_of(partition) == values
    assert partition.log.chain.active.path.stat().st_size == partition.size < 4000
    partition.close()


def test_a_log_that_a_recovery_begins_anew_holds_no_preallocated_zeros(tmp_path: Path) -> None:
    directory = tmp_path / "t-0"
    partition = open_partition(directory, preallocate="true", segment_bytes=4000)
    fill(partition, 1)
    partition.log.abandon()
    (directory / log_file(0)).write_bytes(b"")
    for _ in range(2):
        partition = open_partition(directory, Known(start=1), preallocate="true", segment_bytes=4000)
        assert (directory / log_file(1)).read_bytes() == b""
        partition.log.abandon()


# -- index files --------------------------------------------------------------------------------------


@pytest.mark.parametrize("clean", [True, False])
def test_deleted_indexes_are_rebuilt(tmp_path: Path, clean: bool) -> None:
    directory = tmp_path / "t-0"
    partition = open_partition(directory)
    values = fill(partition, 60)
    partition.close()
    for path in [*directory.glob("*.index"), *directory.glob("*.timeindex")]:
        path.unlink()
    partition = open_partition(directory, Known(clean=clean))
    assert values_of(partition) == values
    for offset in range(60):
        found = partition.offset_for_timestamp(NOW + offset)
        assert found is not None
        assert found.offset == offset
        assert partition.read(offset, 1).data
    partition.close()
    check_rebuilt(directory, 0, 200, 10485760)


def test_a_segment_without_its_offset_index_is_recovered_after_a_clean_stop(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = tmp_path / "t-0"
    partition = open_partition(directory)
    values = fill(partition, 60)
    partition.close()
    middle = bases(directory)[1]
    (directory / f"{middle:020d}.index").unlink()
    partition = open_partition(directory, CLEAN)
    assert f"{middle:020d}.log: has no offset index" in caplog.text
    assert values_of(partition) == values
    partition.close()
    check_rebuilt(directory, 0, 200, 10485760)


def test_what_lies_behind_a_segment_that_was_cut_for_its_missing_index_stays_after_a_clean_stop(
    tmp_path: Path,
) -> None:
    directory = tmp_path / "t-0"
    partition = open_partition(directory)
    fill(partition, 60)
    partition.close()
    first, second = bases(directory)[:2]
    (directory / f"{first:020d}.index").unlink()
    with (directory / f"{first:020d}.log").open("ab") as file:
        file.write(b"garbage behind the records")
    partition = open_partition(directory, CLEAN)
    assert (bases(directory)[1], partition.end_offset) == (second, 60)
    partition.close()


@pytest.mark.parametrize("damage", [".timeindex is missing", ".timeindex is cut", ".index is cut"])
def test_indexes_of_a_wrong_length_are_made_anew_by_a_clean_stop(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    """regression: those of a sealed segment that nobody had looked up anything in stayed as they were"""
    directory = tmp_path / "t-0"
    partition = open_partition(directory)
    values = fill(partition, 60)
    partition.close()
    middle = bases(directory)[1]
    suffix, _, how = damage.partition(" is ")
    path = directory / f"{middle:020d}{suffix}"
    before = path.read_bytes()
    if how == "missing":
        path.unlink()
    else:
        path.write_bytes(before[:-3])
    partition = open_partition(directory, CLEAN)
    assert values_of(partition) == values
    partition.close()
    assert path.read_bytes() == before
    assert f"{path}: does not fit its log, both indexes are made anew from it" in caplog.text
    check_rebuilt(directory, 0, 200, 10485760)


def test_a_clean_stop_without_room_leaves_indexes_of_a_wrong_length_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    directory = tmp_path / "t-0"
    partition = open_partition(directory)
    values = fill(partition, 60)
    partition.close()
    path = directory / f"{bases(directory)[1]:020d}.timeindex"
    before = path.read_bytes()
    path.unlink()
    partition = open_partition(directory, CLEAN)
    with monkeypatch.context() as patch:
        patch.setattr(IndexFile, "keep_mended", no_room)
        partition.close()
    assert "its indexes cannot be made anew on disk" in caplog.text
    assert not path.exists()
    partition = open_partition(directory, CLEAN)
    assert values_of(partition) == values
    partition.close()
    assert path.read_bytes() == before


def no_room(index: IndexFile) -> None:
    raise OSError(errno.ENOSPC, "no room", index.path)


def test_a_missing_time_index_is_made_anew_after_a_crash(tmp_path: Path) -> None:
    directory = tmp_path / "t-0"
    partition = open_partition(directory)
    values = fill(partition, 60)
    partition.close()
    path = directory / f"{0:020d}.timeindex"
    before = path.read_bytes()
    path.unlink()
    partition = open_partition(directory, Known(recovery_point=60))
    assert path.read_bytes() == before != b""
    assert values_of(partition) == values
    partition.close()


def test_garbage_in_indexes_is_gone_after_recovery_from_0(tmp_path: Path) -> None:
    directory = tmp_path / "t-0"
    partition = open_partition(directory)
    values = fill(partition, 60)
    partition.log.abandon()
    for path in [*directory.glob("*.index"), *directory.glob("*.timeindex")]:
        path.write_bytes(b"garbage " * 20)
    partition = open_partition(directory)
    assert values_of(partition) == values
    assert [partition.offset_for_timestamp(NOW + at).offset for at in range(60)] == list(range(60))  # type: ignore[union-attr]
    partition.close()
    check_rebuilt(directory, 0, 200, 10485760)


@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".txnindex"])
@pytest.mark.parametrize("clean", [True, False])
def test_an_index_without_its_log_is_removed(tmp_path: Path, suffix: str, clean: bool) -> None:
    directory = tmp_path / "t-0"
    partition = open_partition(directory)
    fill(partition, 5)
    partition.close()
    for base in (1, 77):
        (directory / f"{base:020d}{suffix}").write_bytes(bytes(24))
    open_partition(directory, Known(clean=clean)).close()
    assert bases(directory, suffix) in ([0], [])


def test_a_damaged_transaction_index_is_rebuilt_after_a_clean_stop(tmp_path: Path) -> None:
    directory = tmp_path / "t-0"
    partition = open_partition(directory)
    partition.append(Record(b"aborted"), Producer(7, 0, 0, True))
    partition.end_transaction(7, 0, commit=False)
    fill(partition, 60)
    partition.close()
    index = directory / f"{0:020d}.txnindex"
    good = index.read_bytes()
    assert len(good) == 34
    for damaged in (good[:33], b"\xff" * 34, good + good, good + b"\x00"):
        index.write_bytes(damaged)
        partition = open_partition(directory, CLEAN)
        assert b"aborted" not in values_of(partition)
        partition.close()
        assert index.read_bytes() == good


def test_a_flipped_bit_of_a_transaction_index_shows_nothing_aborted_and_hides_nothing(tmp_path: Path) -> None:
    directory = tmp_path / "t-0"
    with open_partition(directory, segment_bytes=10**6) as partition:
        partition.append(Record(b"committed"), Producer(7, 0, 0, True))
        partition.end_transaction(7, 0, commit=True)
        partition.append(Record(b"aborted"), Producer(7, 0, 1, True))
        partition.append(Record(b"aborted"), Producer(7, 0, 2, True))
        partition.end_transaction(7, 0, commit=False)
        partition.append(Record(b"committed"), Producer(7, 0, 3, True))
        partition.end_transaction(7, 0, commit=True)
        fill(partition, 5)
        expected = values_of(partition)
    assert expected.count(b"committed") == 2
    index = directory / f"{0:020d}.txnindex"
    good = index.read_bytes()
    for bit in range(8 * len(good)):
        changed = bytearray(good)
        changed[bit // 8] ^= 1 << bit % 8
        index.write_bytes(changed)
        with open_partition(directory, CLEAN, segment_bytes=10**6) as partition:
            assert values_of(partition) == expected, bit


# -- below the start offset ---------------------------------------------------------------------------


def test_a_log_that_ends_below_its_start_offset_is_emptied(tmp_path: Path) -> None:
    directory = tmp_path / "t-0"
    partition = open_partition(directory)
    partition.append(Record(b"of a producer"), Producer(5, 0, 0))
    fill(partition, 60, 1)
    partition.delete_records(50)
    partition.log.abandon()
    with (directory / f"{0:020d}.log").open("r+b") as file:
        file.write(b"\xff" * 64)
    partition = open_partition(directory, Known(start=50))
    assert (partition.start_offset, partition.end_offset) == (50, 50)
    assert bases(directory) == [50]
    assert {f"{50:020d}{suffix}" for suffix in (".log", ".index", ".timeindex")} <= set(content(directory))
    assert partition.log.epochs.entries == ()
    assert not partition.log.producers.producers
    values = fill(partition, 10, 50)
    partition.roll()
    # What waits for its removal must not take new files with it.
    partition.log.remove_due(2**62)
    assert values_of(partition) == values
    assert marked(directory) == []
    assert snapshots(directory) == [60]
    partition.close()
    partition = open_partition(directory, Known(clean=True, start=50))
    assert values_of(partition) == values
    partition.close()
    check_directory(directory)


def test_a_log_that_ends_exactly_at_its_start_offset_stays(tmp_path: Path) -> None:
    partition = open_partition(tmp_path / "t-0")
    fill(partition, 5)
    partition.close()
    partition = open_partition(tmp_path / "t-0", Known(clean=True, start=5))
    assert (bases(tmp_path / "t-0"), partition.start_offset, partition.end_offset) == ([0], 5, 5)
    partition.close()


# -- producers ----------------------------------------------------------------------------------------


def with_producer(directory: Path, batches: int = 30, **settings: object) -> Partition:
    """A partition with batches of producer 7: sequences 0, 1, 2 …"""
    partition = open_partition(directory, **settings)
    for sequence in range(batches):
        partition.append(Record(b"%d" % sequence, timestamp=NOW), Producer(7, 0, sequence))
    return partition


def knows_producer(partition: Partition, batches: int = 30) -> bool:
    """Whether the partition recognises the last batch, and takes no other sequence than the next."""
    end = partition.end_offset
    if 7 not in partition.log.producers.producers:
        return False
    repeated = partition.append(Record(b"again", timestamp=NOW), Producer(7, 0, batches - 1))
    assert repeated.duplicate
    with pytest.raises(OutOfOrderSequenceError):
        partition.append(Record(b"gap"), Producer(7, 0, batches + 1))
    assert partition.end_offset == end
    return True


def test_a_clean_load_without_snapshots_replays_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "t-0"
    partition = open_partition(directory)
    fill(partition, 60)
    partition.close()
    for path in directory.glob("*.snapshot"):
        path.unlink()
    monkeypatch.setattr("topicfs.engine.partition.replay._replay_segment", None)
    monkeypatch.setattr("topicfs.engine.producer.manager.ProducerStates.truncate_and_reload", None)
    partition = open_partition(directory, CLEAN)
    assert snapshots(directory) == [*bases(directory)[-2:], 60]
    partition.close()


def test_missing_snapshots_are_made_anew_for_the_last_two_segments_and_the_end(tmp_path: Path) -> None:
    directory = tmp_path / "t-0"
    with_producer(directory, 60).close()
    last_two = bases(directory)[-2:]
    for known, expected in (
        (Known(clean=True), [*last_two, 60]),
        (Known(recovery_point=60), [*last_two, 60]),
        (Known(recovery_point=0), [*bases(directory)[1:], 60]),
    ):
        for path in directory.glob("*.snapshot"):
            path.unlink()
        open_partition(directory, known).log.abandon()
        assert snapshots(directory) == expected


def test_only_segments_behind_the_newest_snapshot_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "t-0"
    with_producer(directory, 60).log.abandon()
    all_bases = bases(directory)
    read: list[int] = []
    original = BatchFile.batches

    def spy(self: BatchFile, *arguments: object, **named: object) -> object:
        read.append(self.base_offset)
        return original(self, *arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(BatchFile, "batches", spy)
    partition = open_partition(directory, Known(recovery_point=60))
    # Recovery of the last segment reads that by another way, and leaves a snapshot at the end.
    assert read == []
    partition.log.abandon()
    (directory / f"{60:020d}.snapshot").unlink()
    (directory / f"{all_bases[-1]:020d}.snapshot").unlink()
    partition = open_partition(directory, CLEAN)
    assert read == all_bases[-2:]
    assert knows_producer(partition, 60)
    partition.close()


def test_the_newest_stray_snapshot_stays_and_others_go(tmp_path: Path) -> None:
    directory = tmp_path / "t-0"
    partition = with_producer(directory, 4)
    partition.close()
    whole = (directory / f"{4:020d}.snapshot").read_bytes()
    for offset in (1, 2, 3):
        (directory / f"{offset:020d}.snapshot").write_bytes(whole)
    partition = open_partition(directory, CLEAN)
    assert snapshots(directory) == [4]
    assert knows_producer(partition, 4)
    partition.close()


def test_snapshots_behind_the_end_are_removed(tmp_path: Path) -> None:
    directory = tmp_path / "t-0"
    with_producer(directory, 4).close()
    whole = (directory / f"{4:020d}.snapshot").read_bytes()
    for clean in (True, False):
        (directory / f"{99:020d}.snapshot").write_bytes(whole)
        partition = open_partition(directory, Known(clean=clean))
        assert max(snapshots(directory)) == 4
        assert knows_producer(partition, 4)
        partition.close()


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("damage", ["empty", "truncated", "flipped", "missing"])
def test_a_damaged_snapshot_is_dropped_and_the_one_before_it_used(
    tmp_path: Path, damage: str, clean: bool
) -> None:
    directory = tmp_path / "t-0"
    with_producer(directory, 30).close()
    assert len(snapshots(directory)) > 2
    for offset in snapshots(directory)[-2:]:
        path = directory / f"{offset:020d}.snapshot"
        whole = path.read_bytes()
        if damage == "missing":
            path.unlink()
            continue
        path.write_bytes(
            {"empty": b"", "truncated": whole[:-1], "flipped": whole[:-1] + bytes([whole[-1] ^ 1])}[damage]
        )
    partition = open_partition(directory, Known(clean=clean, recovery_point=30))
    assert knows_producer(partition)
    partition.close()


def test_a_clean_stop_keeps_producers(tmp_path: Path) -> None:
    with_producer(tmp_path / "t-0").close()
    partition = open_partition(tmp_path / "t-0", CLEAN)
    assert knows_producer(partition)
    assert partition.append(Record(b"next"), Producer(7, 0, 30)).first_offset == 30
    partition.close()


def test_a_producer_that_expired_is_forgotten_on_reload_and_may_begin_anywhere(tmp_path: Path) -> None:
    with_producer(tmp_path / "t-0").close()
    partition = open_partition(tmp_path / "t-0", CLEAN, clock=Clock(NOW + 1000), expiration_ms=1000)
    assert not knows_producer(partition)
    assert partition.append(Record(b"later"), Producer(7, 0, 55)).first_offset == 30
    partition.close()


def test_a_producer_that_has_not_expired_is_kept_on_reload(tmp_path: Path) -> None:
    with_producer(tmp_path / "t-0").close()
    partition = open_partition(tmp_path / "t-0", CLEAN, clock=Clock(NOW + 999), expiration_ms=1000)
    assert knows_producer(partition)
    partition.close()


@pytest.mark.parametrize("clean", [True, False])
def test_an_open_transaction_is_open_again(tmp_path: Path, clean: bool) -> None:
    directory = tmp_path / "t-0"
    partition = open_partition(directory)
    fill(partition, 3)
    partition.append(Record(b"open"), Producer(7, 0, 0, True))
    fill(partition, 40, 4)
    (partition.close if clean else partition.log.abandon)()
    partition = open_partition(
        directory, Known(clean=clean, recovery_point=40), clock=Clock(NOW + 10**6), expiration_ms=1
    )
    assert (partition.stable_offset, partition.end_offset) == (3, 44)
    assert len(values_of(partition)) == 3
    partition.append(Record(b"more"), Producer(7, 0, 1, True))
    partition.end_transaction(7, 0, commit=True)
    assert partition.stable_offset == partition.end_offset
    assert b"open" in values_of(partition)
    assert b"more" in values_of(partition)
    partition.close()


@pytest.mark.parametrize("clean", [True, False])
def test_an_aborted_transaction_stays_aborted_and_its_producer_known(tmp_path: Path, clean: bool) -> None:
    directory = tmp_path / "t-0"
    partition = open_partition(directory)
    partition.append(Record(b"aborted"), Producer(7, 0, 0, True))
    fill(partition, 40)
    partition.end_transaction(7, 0, commit=False)
    (partition.close if clean else partition.log.abandon)()
    partition = open_partition(directory, Known(clean=clean))
    assert partition.stable_offset == partition.end_offset == 42
    assert b"aborted" not in values_of(partition)
    assert b"aborted" in [record.value for record in partition.records(isolation=Isolation.UNCOMMITTED)]
    assert knows_producer_sequence(partition, 0)
    partition.close()


def knows_producer_sequence(partition: Partition, last: int) -> bool:
    return partition.log.producers.producers[7].last_sequence == last


@pytest.mark.parametrize("clean", [True, False])
def test_an_older_coordinator_is_fenced_after_a_reload(tmp_path: Path, clean: bool) -> None:
    partition = open_partition(tmp_path / "t-0")
    partition.append(Record(b"a"), Producer(7, 0, 0, True))
    partition.end_transaction(7, 0, commit=True, coordinator_epoch=5)
    (partition.close if clean else partition.log.abandon)()
    partition = open_partition(tmp_path / "t-0", Known(clean=clean))
    with pytest.raises(CoordinatorFencedError):
        partition.end_transaction(7, 0, commit=True, coordinator_epoch=4)
    partition.close()


@pytest.mark.parametrize("clean", [True, False])
def test_deleted_records_do_not_take_their_producer_along_inside_a_segment(
    tmp_path: Path, clean: bool
) -> None:
    directory = tmp_path / "t-0"
    partition = open_partition(directory)
    partition.append(Record(b"first"), Producer(1, 0, 0))
    partition.append(Record(b"second"), Producer(2, 0, 0))
    partition.delete_records(1)
    partition.close()
    partition = open_partition(directory, Known(clean=clean, recovery_point=2, start=1))
    assert set(partition.log.producers.producers) == {1, 2}
    partition.close()


@pytest.mark.parametrize("start", [0, 1])
def test_producers_of_removed_segments_are_known_after_each_recovery(tmp_path: Path, start: int) -> None:
    """A checkpoint tells the start offset only where it is not the first segment's base."""
    directory = tmp_path / "t-0"
    partition = open_partition(directory)
    partition.append(Record(b"first"), Producer(1, 0, 0))
    partition.roll()
    partition.append(Record(b"second"), Producer(2, 0, 0))
    partition.delete_records(1)
    retire(partition.log, (partition.log.chain.segments.first,))
    for _ in range(3):
        assert set(partition.log.producers.producers) == {1, 2}
        partition.log.abandon()
        partition = open_partition(directory, Known(recovery_point=0, start=start))
    assert set(partition.log.producers.producers) == {1, 2}
    partition.close()


@pytest.mark.parametrize("clean", [True, False])
def test_a_coordinator_epoch_that_falls_in_the_log_is_replayed(tmp_path: Path, clean: bool) -> None:
    directory = tmp_path / "t-0"
    copy = open_partition(tmp_path / "t-1")
    copy.append(Record(b"a"), Producer(7, 0, 0, True))
    copy.end_transaction(7, 0, commit=True, coordinator_epoch=5)
    data = copy.read(0, 10**6).data
    copy.close()
    other = open_partition(tmp_path / "t-2")
    fill(other, 2)
    other.append(Record(b"b"), Producer(7, 0, 1, True))
    other.end_transaction(7, 0, commit=True, coordinator_epoch=3)
    more = other.read(2, 10**6).data
    other.close()
    partition = open_partition(directory)
    partition.append_raw(data)
    partition.append_raw(more)
    partition.close()
    for path in directory.glob("*.snapshot"):
        path.unlink()
    partition = open_partition(directory, Known(clean=clean))
    assert partition.end_offset == partition.stable_offset == 4
    partition.close()


# -- damage that nobody looks for ---------------------------------------------------------------------


def test_damage_below_the_recovery_point_is_not_looked_for(tmp_path: Path) -> None:
    directory = tmp_path / "t-0"
    partition = open_partition(directory)
    fill(partition, 60)
    partition.close()
    path = directory / f"{bases(directory)[0]:020d}.log"
    with path.open("r+b") as file:
        file.seek(65)
        file.write(b"\xff")
    size = path.stat().st_size
    partition = open_partition(directory, Known(recovery_point=60))
    assert (partition.end_offset, path.stat().st_size) == (60, size)
    with pytest.raises(CorruptBatchError):
        values_of(partition)
    partition.close()


def test_an_error_of_the_disk_during_recovery_deletes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "t-0"
    partition = open_partition(directory)
    values = fill(partition, 60)
    partition.log.abandon()
    kept = tmp_path / "kept"
    shutil.copytree(directory, kept)

    def broken(*_: object) -> int:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr("os.preadv", broken)
        with pytest.raises(OSError, match="Input/output"):
            open_partition(directory)
    for base in bases(kept):
        name = f"{base:020d}.log"
        assert (directory / name).read_bytes() == (kept / name).read_bytes()
    partition = open_partition(directory)
    assert values_of(partition) == values
    partition.close()


# -- damage after a clean stop ------------------------------------------------------------------------


def stopped(directory: Path) -> int:
    """A log of 20 records that was stopped cleanly; gives its end."""
    with open_partition(directory, segment_bytes=10**6) as partition:
        for number in range(20):
            partition.append(Record(b"%d" % number))
        return partition.end_offset


def test_a_start_offset_above_the_end_of_a_clean_log_is_not_believed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """regression: one digit of a checkpoint, which has no checksum, and every record was removed"""
    end = stopped(tmp_path / "t-0")
    known = Known(clean=True, recovery_point=end, start=9000)
    with open_partition(tmp_path / "t-0", known) as partition:
        assert (partition.start_offset, partition.end_offset) == (0, end)
        assert len(list(partition.records())) == end
    assert "taken for damage of the checkpoint" in caplog.text


@pytest.mark.parametrize("cut", [False, True])
def test_a_damaged_last_batch_does_not_take_the_log_offline(
    tmp_path: Path, cut: bool, caplog: pytest.LogCaptureFixture
) -> None:
    end = stopped(tmp_path / "t-0")
    path = tmp_path / "t-0" / f"{0:020d}.log"
    data = path.read_bytes()
    last = len(data) - int.from_bytes(data[8:12]) - 13
    path.write_bytes(data[:-10] if cut else data[:last] + bytes(len(data) - last))
    known = Known(clean=True, recovery_point=end)
    with open_partition(tmp_path / "t-0", known) as partition:
        assert partition.end_offset == end
        assert partition.append(Record(b"after")).first_offset == end
        for offset in range(end - 2):
            record = partition.record(offset)
            assert record is not None
            assert record.value == b"%d" % offset
        with pytest.raises(CorruptError):
            partition.record(end - 1)
        record = partition.record(end)
        assert record is not None
        assert record.value == b"after"
    assert "its end is damaged, it goes on at 20" in caplog.text


def test_a_log_that_lost_its_end_after_a_clean_stop_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    end = stopped(tmp_path / "t-0")
    path = tmp_path / "t-0" / f"{0:020d}.log"
    data = path.read_bytes()
    path.write_bytes(data[: 5 * (int.from_bytes(data[8:12]) + 12)])
    with open_partition(tmp_path / "t-0", Known(clean=True, recovery_point=end)) as partition:
        assert partition.end_offset == 5
    assert "was stopped cleanly at offset 20 and ends at 5: records are missing" in caplog.text


@pytest.mark.parametrize("lost", ["snapshot", "leader-epoch-checkpoint"])
def test_a_state_is_made_anew_beside_damaged_batches(
    tmp_path: Path, lost: str, caplog: pytest.LogCaptureFixture
) -> None:
    """regression: of a damaged batch and a lost snapshot, or damaged leader epochs, the partition went offline"""
    directory = tmp_path / "t-0"
    with open_partition(directory) as partition:
        for number in range(30):
            partition.append([Record(b"%d" % number)], Producer(number % 2, 0, number // 2))
        end = partition.end_offset
    for path in directory.glob("*.snapshot") if lost == "snapshot" else [directory / lost]:
        path.write_bytes(b"of nobody")
    first = directory / f"{bases(directory)[0]:020d}.log"
    batch = parse(first.read_bytes())[0][1]
    with first.open("r+b") as file:
        file.seek(batch.position + 8)
        file.write(b"\x7f")
    known = Known(clean=True, recovery_point=end)
    with open_partition(directory, known) as partition:
        assert partition.end_offset == end
        assert partition.record(end - 1) is not None
        partition.append([Record(b"after")], Producer(0, 0, 15))
    assert "are passed over" in caplog.text
