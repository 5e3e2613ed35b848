"""Recovery of segments after a crash: what is kept, what is cut off, and that the rest agrees with it.

The random search for crashes that end otherwise is in tests/property and tests/crash.
"""

from __future__ import annotations

import errno
import logging
import os
import random
import struct
import threading
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from directory_check import (
    aborted_entries,
    bases,
    check_directory,
    check_rebuilt,
    content,
    parse,
    path_of,
    recoverable,
)
from partition_opening import NOW, Known, open_partition
from patience import PATIENCE_S

from topicfs.engine import batch as batches
from topicfs.engine.errors import ClosedError
from topicfs.engine.kernels import encode as encoding
from topicfs.engine.partition.partition import Partition, Producer
from topicfs.engine.record import Codec, Record

ROOM = 10485760


def fill(partition: Partition, count: int) -> None:
    for number in range(count):
        partition.append(Record(b"value %d" % number, b"key", NOW + partition.end_offset))


def values_of(partition: Partition) -> list[bytes | None]:
    return [record.value for record in partition.records()]


def crashed(directory: Path, count: int, flushed: int = 0) -> list[bytes | None]:
    """A partition of records, flushed up to an offset, and left as a crash leaves it. Gives the values."""
    partition = open_partition(directory)
    fill(partition, count)
    if flushed:
        partition.flush(flushed)
    values = values_of(partition)
    partition.log.abandon()
    return values


def expect_prefix(directory: Path, values: list[bytes | None], known: Known) -> int:
    """Open, compare with a plain reading of the files, open again: nothing is left to do. Gives the end."""
    kept = recoverable(directory, known.recovery_point)
    end = max((batch.last_offset + 1 for _, found in kept for batch in found), default=0)
    partition = open_partition(directory, known)
    assert partition.end_offset == end
    assert values_of(partition) == values[:end]
    partition.log.abandon()
    floor = max(base for base in bases(directory) if base <= known.recovery_point)
    check_rebuilt(directory, floor, 200, ROOM)
    before = {name: data for name, data in content(directory).items() if not name.endswith(".deleted")}
    again = open_partition(directory, known)
    assert again.end_offset == end
    fill(again, 3)
    assert values_of(again)[:end] == values[:end]
    again.truncate_to(end)
    again.log.abandon()
    after = content(directory)
    assert {name for name in before if name.endswith(".log")} <= set(after)
    check_directory(directory)
    return end


@pytest.mark.parametrize("seed", range(10))
def test_garbage_behind_log_and_index_is_cut_and_every_record_stays(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    count = chance.randrange(50, 100)
    values = crashed(tmp_path / "t-0", count, 50)
    for suffix in (".log", ".index"):
        path = path_of(tmp_path / "t-0", bases(tmp_path / "t-0")[-1], suffix)
        with path.open("ab") as file:
            file.write(chance.randbytes(chance.randrange(1, 2000)))
    assert expect_prefix(tmp_path / "t-0", values, Known(recovery_point=50)) == count


@pytest.mark.parametrize("seed", range(10))
def test_damage_from_the_middle_of_a_batch_on_keeps_exactly_the_batches_before(
    tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    directory = tmp_path / "t-0"
    values = crashed(directory, 60)
    base = chance.choice(bases(directory))
    path = path_of(directory, base, ".log")
    found, _ = parse(path.read_bytes(), base)
    batch = chance.choice(found)
    with path.open("r+b") as file:
        file.seek(batch.position + chance.randrange(21, batch.size))
        file.write(chance.randbytes(5000))
    assert expect_prefix(directory, values, Known()) == batch.base_offset


def test_zeros_behind_the_last_batch_are_cut_off(tmp_path: Path) -> None:
    values = crashed(tmp_path / "t-0", 20)
    with path_of(tmp_path / "t-0", bases(tmp_path / "t-0")[-1], ".log").open("ab") as file:
        file.write(bytes(4096))
    assert expect_prefix(tmp_path / "t-0", values, Known()) == 20


def test_a_batch_that_was_half_written_is_cut_off(tmp_path: Path) -> None:
    values = crashed(tmp_path / "t-0", 20)
    path = path_of(tmp_path / "t-0", bases(tmp_path / "t-0")[-1], ".log")
    for _ in range(3):
        os.truncate(path, path.stat().st_size - 1)
        values.pop()
        assert expect_prefix(tmp_path / "t-0", values, Known()) == len(values)


def test_a_cut_is_told_with_its_numbers(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    crashed(tmp_path / "t-0", 5)
    path = path_of(tmp_path / "t-0", 0, ".log")
    size = path.stat().st_size
    with path.open("ab") as file:
        file.write(b"garbage that is no batch")
    open_partition(tmp_path / "t-0").close()
    assert f"{path}: 24 of {size + 24} bytes cut off at position {size}" in caplog.text


def test_segments_behind_a_cut_are_removed_with_their_snapshots(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = tmp_path / "t-0"
    values = crashed(directory, 60)
    first, second, *later = bases(directory)
    path = path_of(directory, second, ".log")
    os.truncate(path, path.stat().st_size - 1)
    partition = open_partition(directory)
    assert bases(directory) == [first, second]
    assert f"{len(later)} segments with " in caplog.text
    assert values_of(partition) == values[: partition.end_offset]
    assert partition.end_offset == later[0] - 1
    assert bases(directory, ".snapshot") == [second, partition.end_offset]
    assert len(list(directory.glob("*.deleted"))) >= 3 * len(later)
    assert partition.log.chain.remove_due(2**62) >= len(later)
    assert not list(directory.glob("*.deleted"))
    partition.close()


def test_only_segments_from_the_recovery_point_on_are_recovered(tmp_path: Path) -> None:
    directory = tmp_path / "t-0"
    crashed(directory, 60, 60)
    second = bases(directory)[1]
    marks = {}
    for base in bases(directory):
        path = path_of(directory, base, ".index")
        path.write_bytes(path.read_bytes() + b"odd")
        marks[base] = path
    open_partition(directory, Known(recovery_point=second)).log.abandon()
    odd = [base for base, path in marks.items() if path.read_bytes().endswith(b"odd")]
    assert odd == [base for base in bases(directory) if base < second]


def test_segments_behind_a_cut_are_durably_gone_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file system may save the shorter log before the names: it would seem complete then, with a hole behind it."""
    directory = tmp_path / "t-0"
    crashed(directory, 60)
    damaged, last = path_of(directory, bases(directory)[0], ".log"), bases(directory)[-1]
    damaged.write_bytes(damaged.read_bytes()[:-3])
    done: list[tuple[str, Path]] = []

    def noted(name: str) -> Callable[..., object]:
        original = getattr(os, name)

        def call(what: int | str, *rest: object) -> object:
            path = Path(os.readlink(f"/proc/self/fd/{what}") if isinstance(what, int) else what)
            done.append((name, path))
            return original(what, *rest)

        return call

    for name in ("rename", "fsync", "ftruncate"):
        monkeypatch.setattr(os, name, noted(name))
    open_partition(directory).close()
    renamed = done.index(("rename", path_of(directory, last, ".log")))
    cut = done.index(("ftruncate", damaged))
    assert ("fsync", directory) in done[renamed:cut]


def test_snapshots_of_a_recovery_are_on_disk_before_the_recovery_point_lies_behind_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No later recovery looks at them again."""
    directory = tmp_path / "t-0"
    crashed(directory, 60)
    for path in directory.glob("*.snapshot"):
        path.unlink()
    synced: set[Path] = set()
    fsync = os.fsync

    def noted(descriptor: int) -> None:
        synced.add(Path(os.readlink(f"/proc/self/fd/{descriptor}")))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    partition = open_partition(directory)
    taken = set(directory.glob("*.snapshot"))
    assert len(taken) > 2
    assert not taken & synced
    partition.flush()
    assert taken <= synced
    partition.close()


@pytest.mark.parametrize("clean", [True, False])
def test_a_segment_that_is_recovered_for_its_missing_index_leaves_later_snapshots_as_they_are(
    tmp_path: Path, clean: bool
) -> None:
    """They are on disk. New ones in their place would not be, and are made of what the log still has."""
    directory = tmp_path / "t-0"
    crashed(directory, 60, 60)
    path_of(directory, bases(directory)[0], ".index").unlink()
    before = {path: path.stat().st_ino for path in directory.glob("*.snapshot")}
    assert len(before) > 2
    open_partition(directory, Known(clean, 60)).log.abandon()
    assert before.items() <= {path: path.stat().st_ino for path in directory.glob("*.snapshot")}.items()


def test_a_cut_in_a_segment_without_index_removes_what_lies_behind_it(tmp_path: Path) -> None:
    directory = tmp_path / "t-0"
    values = crashed(directory, 60)
    first = bases(directory)[0]
    path_of(directory, first, ".index").unlink()
    path = path_of(directory, first, ".log")
    os.truncate(path, path.stat().st_size - 1)
    # Found while it is recovered for its missing index, the cut would not be found a second time.
    assert expect_prefix(directory, values, Known()) == bases(directory)[0] + len(
        recoverable(directory, 0)[0][1]
    )
    assert bases(directory) == [first]


def test_offsets_that_fall_are_cut_off(tmp_path: Path) -> None:
    directory = tmp_path / "t-0"
    values = crashed(directory, 5)
    path = path_of(directory, 0, ".log")
    whole = path.read_bytes()
    path.write_bytes(whole + whole[: parse(whole)[0][0].size])
    assert expect_prefix(directory, values, Known()) == 5


def test_batches_below_the_segments_base_are_cut_off(tmp_path: Path) -> None:
    directory = tmp_path / "t-0"
    crashed(directory, 5)
    for path in directory.glob(f"{0:020d}.*"):
        path.rename(directory / path.name.replace(f"{0:020d}", f"{100:020d}"))
    partition = open_partition(directory)
    assert (partition.start_offset, partition.end_offset, partition.size) == (100, 100, 0)
    fill(partition, 2)
    partition.close()
    check_directory(directory)


@pytest.mark.parametrize("damage", ["missing", "garbage", "zeros", "short", "odd"])
@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".txnindex", ".snapshot"])
def test_whatever_befell_an_index_or_a_snapshot_it_is_whole_after_recovery(
    tmp_path: Path, suffix: str, damage: str
) -> None:
    directory = tmp_path / "t-0"
    partition = open_partition(directory)
    for round_ in range(20):
        partition.append(Record(b"doubtful", timestamp=NOW + round_), Producer(7, 0, 2 * round_, True))
        partition.append(Record(b"plain"))
        partition.append(Record(b"doubtful", timestamp=NOW), Producer(7, 0, 2 * round_ + 1, True))
        partition.end_transaction(7, 0, commit=round_ % 3 == 0)
    values = values_of(partition)
    partition.log.abandon()
    for path in directory.glob(f"*{suffix}"):
        whole = path.read_bytes()
        if damage == "missing":
            path.unlink()
        else:
            path.write_bytes(
                {
                    "garbage": b"\xfe\x01garbage" * 40,
                    "zeros": bytes(len(whole)),
                    "short": whole[: len(whole) // 2],
                    "odd": whole + b"x",
                }[damage]
            )
    partition = open_partition(directory)
    assert values_of(partition) == values
    assert partition.log.producers.producers[7].last_sequence == 39
    partition.log.abandon()
    check_rebuilt(directory, 0, 200, ROOM)
    check_directory(directory)


def test_the_transaction_index_names_transactions_that_began_in_earlier_segments(tmp_path: Path) -> None:
    directory = tmp_path / "t-0"
    partition = open_partition(directory)
    partition.append(Record(b"1"), Producer(1, 0, 0, True))
    fill(partition, 20)
    partition.append(Record(b"2"), Producer(2, 0, 0, True))
    partition.roll()
    fill(partition, 5)
    partition.end_transaction(2, 0, commit=False)
    partition.end_transaction(1, 0, commit=False)
    partition.log.abandon()
    for path in directory.glob("*.txnindex"):
        path.unlink()
    for path in directory.glob("*.snapshot"):
        path.unlink()
    open_partition(directory, Known(recovery_point=26)).log.abandon()
    last = bases(directory)[-1]
    assert path_of(directory, last, ".txnindex").read_bytes() == struct.pack(
        ">hqqqqhqqqq", 0, 2, 21, 27, 0, 0, 1, 0, 28, 29
    )


def test_many_transactions_in_one_pass_give_the_index_that_appends_gave(tmp_path: Path) -> None:
    directory = tmp_path / "t-0"
    partition = open_partition(directory, segment_bytes=100_000)
    chance = random.Random(1)
    sequences: dict[int, int] = {}
    ongoing: set[int] = set()
    for _ in range(300):
        producer = chance.randrange(5)
        if producer in ongoing and chance.random() < 0.4:
            ongoing.discard(producer)
            partition.end_transaction(producer, 0, commit=chance.random() < 0.3)
        else:
            sequence = sequences.get(producer, 0)
            sequences[producer] = sequence + 1
            ongoing.add(producer)
            partition.append(Record(b"x"), Producer(producer, 0, sequence, True))
    partition.log.abandon()
    appended = path_of(directory, 0, ".txnindex").read_bytes()
    assert len(appended) > 34 * 20
    assert aborted_entries([(0, parse(path_of(directory, 0, ".log").read_bytes())[0])]) == {0: appended}
    open_partition(directory, segment_bytes=100_000).log.abandon()
    assert path_of(directory, 0, ".txnindex").read_bytes() == appended


def test_epochs_are_rebuilt_from_recovered_batches(tmp_path: Path) -> None:
    partition = open_partition(tmp_path / "t-0")
    for base, epoch in ((104, 0), (106, 1), (108, 1), (110, 2), (112, 2)):
        data = batches.from_records([Record(b"x"), Record(b"y")], NOW).data
        encoding.stamp(data, 0, base, epoch)
        partition.append_raw(data)
    partition.log.abandon()
    (tmp_path / "t-0" / "leader-epoch-checkpoint").unlink()
    partition = open_partition(tmp_path / "t-0")
    assert partition.log.epochs.entries == ((0, 104), (1, 106), (2, 110))
    partition.close()


@pytest.mark.parametrize("codec", list(Codec))
def test_batches_of_every_codec_are_recovered(tmp_path: Path, codec: Codec) -> None:
    named = "uncompressed" if codec is Codec.NONE else codec.name.lower()
    partition = open_partition(tmp_path / "t-0", compression_type=named)
    for _ in range(20):
        partition.append([Record(b"value " * 10), Record(b"value " * 10, b"key")])
    values = values_of(partition)
    partition.log.abandon()
    assert expect_prefix(tmp_path / "t-0", values, Known()) == 40


def test_what_was_truncated_and_written_anew_is_not_taken_for_flushed(tmp_path: Path) -> None:
    """A flush that was under way while the log was cut must not vouch for what was appended after."""
    partition = open_partition(tmp_path / "t-0", segment_bytes=100_000)
    fill(partition, 50)
    log = partition.log
    reached, go_on = threading.Event(), threading.Event()
    sync = type(log.flusher)._sync

    def slow(self: object, *arguments: object) -> None:
        sync(log.flusher, *arguments)  # type: ignore[arg-type]
        reached.set()
        go_on.wait(PATIENCE_S)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(log.flusher), "_sync", slow)
        thread = threading.Thread(target=partition.flush)
        thread.start()
        assert reached.wait(PATIENCE_S)
        partition.truncate_to(20)
        fill(partition, 60)
        go_on.set()
        thread.join(PATIENCE_S)
    assert partition.recovery_point == 20
    partition.close()


@pytest.mark.parametrize("cut", [lambda partition: partition.truncate_to(5), lambda p: p.restart_at(500)])
def test_a_truncation_that_the_disk_stops_halfway_takes_the_partition_offline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cut: Callable[[Partition], object]
) -> None:
    """Segments that could not be removed are still there: an append would write offsets that they hold."""
    directory = tmp_path / "t-0"
    partition = open_partition(directory)
    fill(partition, 60)
    values = values_of(partition)
    rename = os.rename
    stubborn = str(path_of(directory, bases(directory)[-2], ".log"))

    def fails(old: str, new: str) -> None:
        if str(old) == stubborn:
            raise OSError(5, "Input/output error")
        rename(old, new)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", fails)
        with pytest.raises(OSError, match="Input/output"):
            cut(partition)
    with pytest.raises(ClosedError, match="offline"):
        partition.append(Record(b"refused"))
    partition.log.abandon()
    partition = open_partition(directory)
    assert values_of(partition) == values[: partition.end_offset]
    assert partition.end_offset > 5
    partition.close()
    check_directory(directory)


def test_an_empty_segment_does_not_hide_the_times_of_those_behind_it(tmp_path: Path) -> None:
    partition = open_partition(tmp_path / "t-0")
    data = batches.from_records([Record(b"far", timestamp=NOW)], NOW).data
    encoding.stamp(data, 0, 2**31, 0)
    partition.append_raw(data)
    assert bases(tmp_path / "t-0") == [0, 2**31]
    found = partition.offset_for_timestamp(NOW - 5)
    assert found is not None
    assert found.offset == 2**31
    partition.close()


def test_opening_takes_little_memory(tmp_path: Path) -> None:
    crashed(tmp_path / "t-0", 5)
    open_partition(tmp_path / "t-0").close()
    tracemalloc.start()
    open_partition(tmp_path / "t-0").close()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1024 * 1024


def test_stopping_waits_for_a_flush_that_is_under_way(tmp_path: Path) -> None:
    partition = open_partition(tmp_path / "t-0")
    fill(partition, 50)
    log = partition.log
    reached, go_on = threading.Event(), threading.Event()
    sync = type(log.flusher)._sync

    def slow(self: object, *arguments: object) -> None:
        reached.set()
        go_on.wait(PATIENCE_S)
        sync(log.flusher, *arguments)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(log.flusher), "_sync", slow)
        flushing = threading.Thread(target=partition.flush)
        flushing.start()
        assert reached.wait(PATIENCE_S)
        closing = threading.Thread(target=partition.close, daemon=True)
        closing.start()
        closing.join(0.05)
        assert closing.is_alive()
        go_on.set()
        flushing.join(PATIENCE_S)
        closing.join(PATIENCE_S)
        assert not closing.is_alive()


def test_recovery_of_many_batches_warns_of_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    values = crashed(tmp_path / "t-0", 100)
    assert expect_prefix(tmp_path / "t-0", values, Known()) == 100
    assert not caplog.records


def test_a_full_disk_keeps_no_record_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    partition = open_partition(tmp_path, index_interval_bytes=10)
    fill(partition, 60)
    written = values_of(partition)
    partition.delete_records(5)
    partition.log.abandon()
    # What is there already needs no room.
    for index in tmp_path.glob("*index"):
        index.write_bytes(b"")
    real = os.pwrite, os.write

    def pwrite(fd: int, data: bytes, position: int) -> int:
        if os.readlink(f"/proc/self/fd/{fd}").endswith("index"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real[0](fd, data, position)

    def write(fd: int, data: bytes) -> int:
        if "/proc" not in (path := os.readlink(f"/proc/self/fd/{fd}")) and str(tmp_path) in path:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real[1](fd, data)

    with monkeypatch.context() as full:
        full.setattr(os, "pwrite", pwrite)
        full.setattr(os, "write", write)
        again = open_partition(tmp_path, Known(start=5), index_interval_bytes=10)
        assert values_of(again) == written[5:]
        for segment in again.log.chain.segments:
            assert segment.offset_index.entries or segment.size < 100
            assert not (tmp_path / f"{segment.base_offset:020d}.index").exists()
    fill(again, 1)
    assert values_of(again)[:-1] == written[5:]
    again.log.close()
    check_directory(tmp_path)
    assert values_of(open_partition(tmp_path, Known(clean=True, start=5)))[:-1] == written[5:]
