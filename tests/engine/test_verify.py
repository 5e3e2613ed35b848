"""The check of `topicfs verify`: it finds each kind of damage, in the right file, and nothing where nothing is wrong.

That it finds nothing behind any other test of the engine is part of the benches' own checks.
"""

from __future__ import annotations

import os
import shutil
import struct
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from old_messages import old_messages
from plain_batches import HEADER, batch, batch_of, body, entries, entry
from verify import checked

from topicfs import Record, Store
from topicfs.engine.batch.compression import compress
from topicfs.engine.batch.marker import end_marker
from topicfs.engine.batch.table import scan
from topicfs.engine.format.batch_header import ABORT
from topicfs.engine.kernels.decode import BAD_LENGTH
from topicfs.engine.kernels.scan import LAST_OFFSET, MAX_TIMESTAMP
from topicfs.engine.kernels.verify import VERDICT_COLUMNS, verify_batches, verify_records
from topicfs.engine.partition.partition import Producer
from topicfs.engine.record import Codec
from topicfs.engine.verify.finding import MOST_TOLD, Finding, Findings, Kind, Severity
from topicfs.engine.verify.run import Check

NOW = 1_700_000_000_000
SETTINGS = {"log.segment.bytes": "1048576", "log.index.interval.bytes": "300"}


@pytest.fixture(autouse=True, scope="module")
def _nobody_writes() -> Iterator[None]:
    """No second look has to wait for somebody who is just writing."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("topicfs.engine.verify.finding.PAUSE_S", 0.0)
        yield


def found(backing: Path, growing: bool = False) -> list[Finding]:
    return list(Check(backing, lambda _: True, growing).findings())


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store that was stopped cleanly: five segments, plain and compressed batches, an aborted transaction in one that
    is sealed, and producers in snapshots."""
    backing = tmp_path_factory.mktemp("verify") / "store"
    with Store.open(backing, SETTINGS, lambda: NOW, create=True) as store:
        partition = store.create("t", 0)
        store.configure("t", {"internal.segment.bytes": "3000", "index.interval.bytes": "300"})
        for number in range(30):
            if number == 10:
                store.configure("t", {"compression.type": "zstd"})
            if number == 20:
                store.configure("t", {"compression.type": "producer"})
            values = [
                Record(b"value %d of %d " % (each, number) * 9, b"k", NOW + number) for each in range(3)
            ]
            partition.append(values, Producer(7, 0, 3 * number, False))
            if number in (5, 15, 25):
                partition.append(Record(b"aborted", b"k", NOW + number), Producer(9, 0, number // 10, True))
                partition.end_transaction(9, 0, False)
    return backing


@pytest.fixture
def store(written: Path, tmp_path: Path) -> Path:
    """A copy of it, to be damaged."""
    shutil.copytree(written, tmp_path / "store")
    return tmp_path / "store"


def partition(backing: Path) -> Path:
    return backing / "logs" / "t-0"


def segments(backing: Path) -> list[Path]:
    return sorted(partition(backing).glob("*.log"))


def batches(log: Path) -> list[tuple[int, int]]:
    """Position and size of each batch."""
    data, at, places = log.read_bytes(), 0, []
    while at < len(data):
        size = HEADER.unpack_from(data, at)[1] + 12
        places.append((at, size))
        at += size
    return places


def overwrite(path: Path, at: int, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.pwrite(descriptor, data, at)
    finally:
        os.close(descriptor)


def flip(path: Path, at: int, bit: int = 0) -> None:
    overwrite(path, at, bytes([path.read_bytes()[at] ^ (1 << bit)]))


def test_a_good_store_has_no_findings_and_its_totals_are_those_of_its_files(written: Path) -> None:
    check = Check(written, lambda _: True, growing=False)
    assert list(check.findings()) == []
    totals = check.totals
    assert totals.partitions == 1
    assert totals.segments == len(segments(written)) > 3
    assert totals.batches == sum(len(batches(log)) for log in segments(written))
    assert totals.records == 30 * 3 + 3
    assert totals.bytes > sum(log.stat().st_size for log in segments(written))


# -- batches ------------------------------------------------------------------------------------------

FIELDS = {
    "base offset": 7,
    "size": 11,
    "leader epoch": 15,
    "magic": 16,
    "checksum": 18,
    "attributes": 22,
    "last offset delta": 26,
    "base timestamp": 34,
    "max timestamp": 42,
    "producer id": 50,
    "producer epoch": 52,
    "base sequence": 56,
    "count": 60,
    "records": 70,
}


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("segment", [0, 1])
def test_a_bit_that_is_flipped_in_a_field_of_a_batch_is_found(store: Path, field: str, segment: int) -> None:
    log = segments(store)[segment]
    at, _ = batches(log)[2]
    flip(log, at + FIELDS[field])
    told = found(store)
    assert {each.file for each in told if each.kind is Kind.BATCH} == {log}
    assert any(f"position {at}" in each.at for each in told), told
    expected = Severity.REPAIRABLE if field == "leader epoch" else Severity.DAMAGE
    assert expected in {each.severity for each in told}


def test_the_batches_behind_damage_are_checked_too(store: Path) -> None:
    log = segments(store)[0]
    places = batches(log)
    overwrite(
        log, places[1][0] + 8, b"\0" * 9
    )  # no size, no magic: nobody can tell where the next one begins
    flip(log, places[-1][0] + 65)
    told = [each for each in found(store) if each.kind is Kind.BATCH]
    assert [each.file for each in told] == [log, log]
    assert told[0].at.startswith(f"position {places[1][0]} ")
    assert f"position {places[-1][0]} " in told[1].at


def cut_inside(store: Path) -> tuple[Path, Kind]:
    log = segments(store)[1]
    os.truncate(log, log.stat().st_size - 5)
    return log, Kind.BATCH


def zeros_inside(store: Path) -> tuple[Path, Kind]:
    log = segments(store)[1]
    overwrite(log, batches(log)[1][0], bytes(200))
    return log, Kind.BATCH


def swapped(store: Path) -> tuple[Path, Kind]:
    log = segments(store)[0]
    data = log.read_bytes()
    (first, one), (second, two) = batches(log)[1:3]
    log.write_bytes(
        data[:first] + data[second : second + two] + data[first : first + one] + data[second + two :]
    )
    return log, Kind.BATCH


def twice(store: Path) -> tuple[Path, Kind]:
    log = segments(store)[-1]
    data = log.read_bytes()
    at, size = batches(log)[-1]
    log.write_bytes(data + data[at : at + size])
    return log, Kind.BATCH


def beyond_the_next_segment(store: Path) -> tuple[Path, Kind]:
    log = segments(store)[0]
    at, _ = batches(log)[-1]
    overwrite(log, at, struct.pack(">q", int(segments(store)[1].stem) + 5))
    return log, Kind.BATCH


def end_lost(store: Path) -> tuple[Path, Kind]:
    log = segments(store)[-1]
    os.truncate(log, batches(log)[-1][0])
    return store / "logs" / "recovery-point-offset-checkpoint", Kind.CHECKPOINT


def a_link(store: Path) -> tuple[Path, Kind]:
    log = segments(store)[1]
    log.rename(store / "elsewhere")
    log.symlink_to(store / "elsewhere")
    return log, Kind.SEGMENT


@pytest.mark.parametrize(
    "harm", [cut_inside, zeros_inside, swapped, twice, beyond_the_next_segment, end_lost, a_link]
)
def test_a_log_that_is_not_what_was_written_is_damage(
    store: Path, harm: Callable[[Path], tuple[Path, Kind]]
) -> None:
    file, kind = harm(store)
    assert any(
        each.file == file and each.kind is kind and each.severity is Severity.DAMAGE for each in found(store)
    ), found(store)


def test_an_append_that_a_crash_cut_short_is_repairable_and_no_fault_while_somebody_writes(
    store: Path,
) -> None:
    log = segments(store)[-1]
    end = log.stat().st_size
    with log.open("ab") as file:
        file.write(log.read_bytes()[:50])
    told = found(store)
    assert [(each.file, each.severity) for each in told] == [(log, Severity.REPAIRABLE)]
    assert told[0].at == f"position {end} of {end + 50}"
    assert found(store, growing=True) == []
    os.truncate(log, end)
    os.truncate(log, end + 5000)  # room that a broker made
    assert [each.severity for each in found(store)] == [Severity.REPAIRABLE]
    assert found(store, growing=True) == []


def log_of(tmp_path: Path, data: bytes) -> list[Finding]:
    """What is found in a partition whose only segment has these bytes."""
    directory = tmp_path / "t-0"
    directory.mkdir()
    (directory / f"{0:020d}.log").write_bytes(data)
    return checked(directory)


RECORDS = [Record(b"value", b"key", NOW), Record(b"other", None, NOW + 5)]
STREAM = entries(RECORDS, NOW)
MARKER = entry(body(Record(b"\0\0\0\0\0\1", b"\0\0\0\1", NOW), 0, NOW))
SHAPE = {"base_timestamp": NOW, "max_timestamp": NOW, "producer_id": 1, "producer_epoch": 0}


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (batch_of(RECORDS), None),
        (batch_of(RECORDS, attributes=8, max_timestamp=7), None),
        (batch_of(RECORDS, last_offset_delta=9), None),
        (batch(last_offset_delta=3, count=0, base_timestamp=-1, max_timestamp=NOW), None),
        (batch(MARKER, attributes=0x30, **SHAPE), None),
        (batch_of(RECORDS, max_timestamp=NOW), "largest timestamp"),
        (batch_of(RECORDS, count=1, last_offset_delta=1), "bytes remain"),
        (batch_of(RECORDS, count=3, last_offset_delta=5), "fewer records"),
        (batch_of(RECORDS, last_offset_delta=0), "more records than"),
        (batch_of(RECORDS, count=-1), "more records than"),
        (batch_of(RECORDS, count=2**31 - 1, last_offset_delta=2**31 - 1), "more records than"),
        (batch_of(RECORDS, attributes=5), "no codec"),
        (batch_of(RECORDS, attributes=2), "can be decompressed"),
        (batch_of(RECORDS, attributes=0x10), "transaction without a producer"),
        (batch_of(RECORDS, producer_id=1), "producer without an epoch"),
        (batch_of(RECORDS, base_sequence=-2), "negative sequence"),
        (batch_of(RECORDS, attributes=0x30, producer_id=1, producer_epoch=0), "control record"),
        (batch(MARKER, attributes=0x34, **SHAPE), "control record"),
        (
            batch(entry(body(Record(b"\0\0", b"\0\0\0\1", NOW), 0, NOW)), attributes=0x30, **SHAPE),
            "control record",
        ),
        (batch(entry(body(RECORDS[0], 0, NOW, value_length=90)), **SHAPE), "value's length"),
        (batch(entry(body(RECORDS[0], 0, NOW), length=90), **SHAPE), "goes beyond the batch"),
        (
            batch(entry(body(RECORDS[0], 1, NOW)) + entry(body(RECORDS[0], 0, NOW)), count=2, **SHAPE),
            "do not rise",
        ),
        (old_messages(1), "Kafka before 0.11"),
    ],
)
def test_a_batch_whose_checksum_fits_is_checked_for_what_is_in_it(
    tmp_path: Path, data: bytes, words: str | None
) -> None:
    told = log_of(tmp_path, data)
    assert [each.severity for each in told] == ([Severity.DAMAGE] if words else [])
    assert words is None or words in str(told[0])


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_the_records_of_a_compressed_batch_are_checked_too(tmp_path: Path, codec: str) -> None:
    kind = Codec[codec.upper()]
    stream = bytes(compress(kind, np.frombuffer(STREAM, np.uint8)))
    good = batch(stream, attributes=kind.value, count=2, base_timestamp=NOW, max_timestamp=NOW + 5)
    assert log_of(tmp_path, good) == []
    (tmp_path / "other").mkdir()
    bad = batch(stream, attributes=kind.value, count=2, base_timestamp=NOW, max_timestamp=NOW + 6)
    assert [each.severity for each in log_of(tmp_path / "other", bad)] == [Severity.DAMAGE]


def test_a_kernel_refuses_tables_that_do_not_fit_their_bytes() -> None:
    data = np.frombuffer(batch_of(RECORDS), np.uint8)
    table = scan(data)
    verdicts = np.empty((1, VERDICT_COLUMNS), np.int64)
    assert verify_batches(data, 0, table, verdicts) == 0
    assert verify_batches(data[:-1], 0, table, verdicts) == -1
    assert verify_batches(data, 1, table, verdicts) == -1
    assert verify_batches(data, -1, table, verdicts) == -1
    assert verify_batches(data, 0, table, verdicts[:0]) == -1
    assert verify_batches(data, 0, table, np.empty((1, 1), np.int64)) == -1
    assert verify_records(data, table[0][:3])[0] == BAD_LENGTH


# -- the files beside the log -------------------------------------------------------------------------


@dataclass(frozen=True)
class Harm:
    """Damage to one file.

    pattern  which file: the first of this pattern
    do       the damage
    """

    pattern: str
    kind: Kind
    do: Callable[[Path], object]


def replaced(old: bytes, new: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(path.read_bytes().replace(old, new, 1))


HARMS = {
    "an offset of the index": Harm("t-0/*.index", Kind.OFFSET_INDEX, lambda path: flip(path, 3)),
    "a position of the index": Harm("t-0/*.index", Kind.OFFSET_INDEX, lambda path: flip(path, 7)),
    "an entry behind the end": Harm(
        "t-0/*.index", Kind.OFFSET_INDEX, lambda path: path.write_bytes(path.read_bytes() + b"\0\0\1\0\0\0\xff\0")
    ),
    "a cut index": Harm("t-0/*.index", Kind.OFFSET_INDEX, lambda path: os.truncate(path, 5)),
    "zeros behind a sealed index": Harm(
        "t-0/*.index", Kind.OFFSET_INDEX, lambda path: os.truncate(path, path.stat().st_size + 80)
    ),
    "no index": Harm("t-0/*.index", Kind.OFFSET_INDEX, lambda path: path.unlink()),
    "an index of nothing": Harm(
        "t-0/*.index", Kind.OFFSET_INDEX, lambda path: path.rename(path.with_name("9" * 17 + "123.index"))
    ),
    "a timestamp of the index": Harm("t-0/*.timeindex", Kind.TIME_INDEX, lambda path: flip(path, 7)),
    "an offset of the time index": Harm("t-0/*.timeindex", Kind.TIME_INDEX, lambda path: flip(path, 11)),
    "no time index": Harm("t-0/*.timeindex", Kind.TIME_INDEX, lambda path: path.unlink()),
    "a producer of the transaction index": Harm(
        "t-0/*.txnindex", Kind.TRANSACTION_INDEX, lambda path: flip(path, 9)
    ),
    "a first offset of the transaction index": Harm(
        "t-0/*.txnindex", Kind.TRANSACTION_INDEX, lambda path: flip(path, 17)
    ),
    "a stable offset of the transaction index": Harm(
        "t-0/*.txnindex", Kind.TRANSACTION_INDEX, lambda path: flip(path, 33)
    ),
    "no transaction index": Harm("t-0/*.txnindex", Kind.TRANSACTION_INDEX, lambda path: path.unlink()),
    "a cut transaction index": Harm(
        "t-0/*.txnindex", Kind.TRANSACTION_INDEX, lambda path: os.truncate(path, 30)
    ),
    "a bit of a snapshot": Harm("t-0/*.snapshot", Kind.PRODUCER_SNAPSHOT, lambda path: flip(path, 20)),
    "a cut snapshot": Harm("t-0/*.snapshot", Kind.PRODUCER_SNAPSHOT, lambda path: os.truncate(path, 8)),
    "leader epochs": Harm("t-0/leader-epoch-checkpoint", Kind.LEADER_EPOCHS, replaced(b"0 0", b"0 x")),
    "the number of leader epochs": Harm("t-0/leader-epoch-checkpoint", Kind.LEADER_EPOCHS, replaced(b"\n1", b"\n2")),
    "the topic's id": Harm("t-0/partition.metadata", Kind.METADATA, replaced(b"topic_id", b"topic_ix")),
    "a recovery point": Harm("recovery-point-offset-checkpoint", Kind.CHECKPOINT, replaced(b"t 0 ", b"t 0 9")),
    "a high watermark": Harm("replication-offset-checkpoint", Kind.CHECKPOINT, replaced(b"t 0 ", b"t 0 x")),
    "the ids of the directory": Harm("meta.properties", Kind.METADATA, replaced(b"version=1", b"version=7")),
}  # fmt: skip


@pytest.mark.parametrize("harm", HARMS.values(), ids=list(HARMS))
def test_damage_beside_the_log_is_found_in_its_file(store: Path, harm: Harm) -> None:
    path = sorted((store / "logs").glob(harm.pattern))[0]
    harm.do(path)
    told = found(store)
    assert told
    assert {each.kind for each in told} <= {harm.kind}
    assert harm.pattern == "t-0/*.index" or {each.file for each in told} == {path}


def test_a_snapshot_that_is_well_formed_and_says_something_else_than_the_log_is_found(store: Path) -> None:
    snapshots = sorted(partition(store).glob("*.snapshot"))
    shutil.copy(snapshots[0], snapshots[-1])
    told = found(store)
    assert {each.file for each in told} == {snapshots[-1]}
    assert {each.kind for each in told} == {Kind.PRODUCER_SNAPSHOT}


def test_a_snapshot_may_tell_of_batches_that_compaction_has_removed_with_all_of_their_segment(
    store: Path,
) -> None:
    for file in (segments(store)[0], *partition(store).glob(f"{segments(store)[0].stem}.*index")):
        os.truncate(file, 0)
    assert [each for each in found(store) if each.kind is Kind.PRODUCER_SNAPSHOT] == []


def test_an_abort_marker_without_its_index_entry_is_damage_as_readers_get_what_was_aborted(
    store: Path,
) -> None:
    log = segments(store)[-1]
    with Store.open(store, SETTINGS, lambda: NOW) as opened:
        opened.partition("t", 0).append(Record(b"x"), Producer(9, 0, 3, True))
        end = opened.partition("t", 0).end_offset
    marker = bytearray(end_marker(9, 0, ABORT, 0, NOW).data.tobytes())
    struct.pack_into(">q", marker, 0, end)
    with log.open("ab") as file:
        file.write(marker)
    told = [each for each in found(store) if each.kind is Kind.TRANSACTION_INDEX]
    assert [each.severity for each in told] == [Severity.DAMAGE]


def test_a_directory_that_is_no_partition_is_told_and_the_others_are_checked(store: Path) -> None:
    (store / "logs" / "nonsense").mkdir()
    flip(segments(store)[0], 65)
    assert {each.kind for each in found(store)} == {Kind.DIRECTORY, Kind.BATCH}


# -- all at once --------------------------------------------------------------------------------------


def test_the_findings_of_a_file_of_garbage_are_bounded(tmp_path: Path) -> None:
    findings = Findings()
    for number in range(1000):
        findings.add(Finding(Severity.DAMAGE, Kind.BATCH, tmp_path, str(number), "a", "b", "c"))
    told = list(findings)
    assert len(told) == MOST_TOLD + 1
    assert f"{1000 - MOST_TOLD} more" in told[-1].found


@given(
    data=st.binary(max_size=2000),
    name=st.sampled_from([".log", ".index", ".timeindex", ".txnindex", ".snapshot"]),
)
def test_whatever_is_in_a_file_the_check_ends(
    written: Path, tmp_path_factory: pytest.TempPathFactory, data: bytes, name: str
) -> None:
    backing = tmp_path_factory.mktemp("garbage") / "store"
    shutil.copytree(written, backing)
    path = sorted(partition(backing).glob(f"*{name}"))[0]
    before = path.read_bytes()
    path.write_bytes(data)
    assert bool(found(backing)) or data == before or name in (".index", ".timeindex")
    shutil.rmtree(backing)


@pytest.mark.parametrize("suffix", [".log", ".index", ".timeindex", ".txnindex", ".snapshot"])
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: os.symlink("/dev/zero", path)])
def test_what_is_no_file_is_told_and_neither_waited_for_nor_followed(
    store: Path, suffix: str, make: Callable[[Path], None]
) -> None:
    path = sorted(partition(store).glob(f"*{suffix}"))[0]
    path.unlink()
    make(path)
    told = [each for each in found(store) if each.file == path]
    assert told
    assert all("regular file" in each.found for each in told)


def test_an_index_that_names_one_large_batch_again_and_again_makes_no_long_search(tmp_path: Path) -> None:
    size = 64 << 20
    good = batch_of(RECORDS)
    directory = tmp_path / "t-0"
    directory.mkdir()
    with (directory / f"{0:020d}.log").open("wb") as file:
        file.write(good + bytes(100))
        for at in range(
            1000
        ):  # heads of batches that reach almost to the end of the file, each with a wrong checksum
            file.write(struct.pack(">qiib", at, size - 200_000, 0, 2) + bytes(50))
        file.truncate(size)
    first = len(good) + 100
    entries = b"".join(struct.pack(">ii", at + 1, first + 67 * at) for at in range(1000))
    (directory / f"{0:020d}.index").write_bytes(entries)
    began = time.process_time()
    assert [each.severity for each in checked(directory) if each.kind is Kind.BATCH] == [Severity.DAMAGE]
    assert time.process_time() - began < 5


CHECKED = (".log", ".index", ".timeindex", ".txnindex", ".snapshot")


@example(choice=35110, bit=0)
@given(choice=st.integers(0, 2**32), bit=st.integers(0, 7))
def test_any_bit_that_is_flipped_in_a_checked_file_is_found(
    written: Path, tmp_path_factory: pytest.TempPathFactory, choice: int, bit: int
) -> None:
    files = sorted(path for path in partition(written).iterdir() if path.name.endswith(CHECKED))
    sizes = [path.stat().st_size for path in files]
    at = choice % sum(sizes)
    ends = list(accumulate(sizes))
    number = bisect_right(ends, at)
    path, at = files[number], at - ends[number] + sizes[number]
    backing = tmp_path_factory.mktemp("flipped") / "store"
    shutil.copytree(written, backing)
    damaged = partition(backing) / path.name
    flip(damaged, at, bit)
    told = found(backing)
    assert any(each.file == damaged for each in told) or harmless(damaged, at), (damaged.name, at, told)
    shutil.rmtree(backing)


def harmless(damaged: Path, at: int) -> bool:
    """Whether nothing can tell the bit from a right one: one of a base offset, which is not in the checksum, of a batch
    without a neighbour behind it; or one by which an entry of a time index names another batch of the same time."""
    log = damaged.with_suffix(".log")
    if damaged.suffix == ".timeindex":
        time, offset = struct.unpack_from(">qi", damaged.read_bytes(), at // 12 * 12)
        table = scan(np.frombuffer(log.read_bytes(), np.uint8))
        row = np.flatnonzero(table[:, LAST_OFFSET] == int(log.stem) + offset)
        largest = np.maximum.accumulate(table[:, MAX_TIMESTAMP])
        return bool(row.size) and table[row[0], MAX_TIMESTAMP] == largest[row[0]] == time
    if damaged.suffix != ".log":
        return False
    start, _ = batches(log)[-1]
    return start <= at < start + 16 and not start + 8 <= at < start + 12
