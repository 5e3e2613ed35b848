"""`topicfs.arrow`: a topic as Arrow record batches, read from its files beside whoever has the log open."""

from __future__ import annotations

import contextlib
import gc
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from partition_opening import NOW, Clock

import topicfs
from topicfs import Producer, Record, Store
from topicfs.engine.arrow import reader as reading
from topicfs.engine.cleaner.clean import Cleaner
from topicfs.engine.errors import (
    CorruptError,
    InvalidNameError,
    InvalidSettingError,
    OffsetOutOfRangeError,
    UnknownPartitionError,
)
from topicfs.engine.parquet import schema
from topicfs.engine.partition.cutting import retire
from topicfs.engine.partition.partition import Partition
from topicfs.engine.unlocked import scan

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SMALL = {"internal.segment.bytes": "2000", "index.interval.bytes": "300", "file.delete.delay.ms": "0"}
"""Segments of some fifteen records."""

Row = dict[str, Any]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "data", clock=Clock(), create=True) as opened:
        yield opened


def rows(store: Store, topic: str = "t", **options: Any) -> list[Row]:
    found: list[Row] = topicfs.arrow(store.backing, topic, **options).read_all().to_pylist()
    return found


def row(number: int, offset: int, record: Record, topic: str = "t") -> Row:
    """What a record is in Arrow."""
    return {
        "topic": topic,
        "partition": number,
        "offset": offset,
        "timestamp": EPOCH + timedelta(milliseconds=record.timestamp or 0),
        "key": record.key,
        "value": record.value,
        "headers": [{"key": name, "value": value} for name, value in record.headers] or None,
    }


def of(partition: Partition) -> list[Row]:
    """What a partition's own reader finds, record by record."""
    return [row(partition.number, record.offset or 0, record) for record in partition.records()]


def numbered(partition: Partition, numbers: Sequence[int], keys: int = 7) -> None:
    """Records of some 100 bytes, each a batch of its own, a millisecond apart."""
    for number in numbers:
        partition.append(Record(b"%060d" % number, b"key-%d" % (number % keys), NOW + number))


def offsets(found: list[Row]) -> list[int]:
    return [each["offset"] for each in found]


def compact(partition: Partition) -> None:
    log = partition.log
    cleaner = Cleaner.create(1 << 20, 0.75, 1 << 20, lambda _: None, bytes(16))
    cleaner.clean(log, 0, log.chain.active.base_offset, log.clock(), lambda: None)
    log.chain.remove_due(log.clock() + 1)


def open_files(below: Path) -> list[str]:
    """The files below a directory that this process has open."""
    found = []
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            found.append(os.readlink(f"/proc/self/fd/{number}"))
    return sorted(path for path in found if path.startswith(str(below)))


# -- what it gives ------------------------------------------------------------------------------------


def test_no_file_stays_open_behind_a_read(tmp_path: Path) -> None:
    """Without a run of the garbage collector: a process that reads all day would have too many open files."""
    with Store.open(tmp_path / "data", clock=Clock(), create=True) as store:
        partition = store.create("t", 0)
        for first in range(0, 60, 10):
            numbered(partition, range(first, first + 10))
            partition.roll()
    gc.collect()
    gc.disable()
    try:
        assert len(rows(store)) == 60
        assert len(rows(store, start=EPOCH + timedelta(milliseconds=NOW + 35))) == 25
        reader = topicfs.arrow(store.backing, "t")
        reader.read_next_batch()
        del reader
        assert open_files(store.backing) == []
    finally:
        gc.enable()


def test_each_record_of_each_partition_has_all_that_it_has(store: Store) -> None:
    records = [
        Record(b"value", b"key", NOW),
        Record(b"", b"", NOW + 1, (("name", b"v"), ("empty", b""), ("null", None), ("name", b"again"))),
        Record(None, b"tombstone", NOW - 5),
        Record(b"\xff\x00\n", None, NOW + 2, (("é", b"\xff"),)),
        Record(b"x" * 5000, b"large", 0),
    ]
    expected = []
    for number, codec in enumerate(("uncompressed", "gzip", "snappy", "lz4", "zstd")):
        partition = store.create("t", number, {"compression.type": codec} if number == 0 else None)
        store.configure("t", {"compression.type": codec})
        for first in (0, 2, 4):
            partition.append(records[first : first + 2])
        partition.roll()
        partition.append(records)
        expected += [row(number, offset, each) for offset, each in enumerate([*records, *records])]
    assert rows(store) == expected


def test_names_and_types_are_those_of_the_parquet_tables(store: Store) -> None:
    store.create("t", 0).append(Record(b"v"))
    found = topicfs.arrow(store.backing, "t")
    assert found.schema.names == ["topic", "partition", "offset", "timestamp", "key", "value", "headers"]
    assert pa.schema([each for each in found.schema if each.name != "partition"]) == schema.FILE_SCHEMA
    found.read_all().validate(full=True)


def test_only_committed_records_are_read(store: Store) -> None:
    partition = store.create("t", 0, SMALL)
    partition.append(Record(b"0"))
    partition.append([Record(b"aborted")] * 3, Producer(1, 0, 0, True))
    partition.append(Record(b"4"))
    partition.append(Record(b"5"), Producer(2, 0, 0, True))
    partition.end_transaction(1, 0, False)
    partition.end_transaction(2, 0, True)
    assert [(each["offset"], each["value"]) for each in rows(store)] == [(0, b"0"), (4, b"4"), (5, b"5")]
    partition.append(Record(b"open"), Producer(1, 0, 3, True))
    partition.append(Record(b"behind an open transaction"))
    partition.roll()
    assert offsets(rows(store)) == [0, 4, 5]
    partition.end_transaction(1, 0, True)
    assert offsets(rows(store)) == [0, 4, 5, 8, 9]


def test_a_compacted_topic_has_gaps_and_the_last_value_of_each_key(store: Store) -> None:
    partition = store.create("t", 0, {**SMALL, "cleanup.policy": "compact"})
    numbered(partition, range(100))
    partition.roll()
    compact(partition)
    numbered(partition, range(100, 103))
    found = rows(store)
    assert found == of(partition)
    assert offsets(found) == [*range(93, 103)]


def test_small_compressed_batches_are_joined(store: Store) -> None:
    partition = store.create("t", 0, {"compression.type": "zstd"})
    numbered(partition, range(200))
    (batch,) = topicfs.arrow(store.backing, "t")
    assert batch.to_pylist() == of(partition)


def test_a_topic_without_records_has_its_columns_for_every_reader(store: Store) -> None:
    store.create_topic("t", 3)
    found = topicfs.arrow(store.backing, "t")
    assert found.schema == schema.TABLE_SCHEMA
    assert found.read_all().num_rows == 0
    frame = pl.from_arrow(topicfs.arrow(store.backing, "t"))
    assert isinstance(frame, pl.DataFrame)
    assert frame.columns == schema.TABLE_SCHEMA.names


def test_a_log_directory_is_read_as_its_store_is(store: Store) -> None:
    numbered(store.create("t", 0), range(5))
    store.close()
    assert (
        topicfs.arrow(store.backing / "logs", "t").read_all() == topicfs.arrow(store.backing, "t").read_all()
    )


def test_memory_is_bounded_by_some_chunks(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    partition = store.create("t", 0)
    for _ in range(64):
        partition.append([Record(bytes(1000))] * 32)
    monkeypatch.setattr(scan, "CHUNK", 64 * 1024)
    before = pa.total_allocated_bytes()
    held = []
    for batch in topicfs.arrow(store.backing, "t", columns=["value"]):
        held.append(pa.total_allocated_bytes() - before)
        del batch
    assert len(held) > 20
    assert max(held) < 1_000_000 < partition.size // 2


# -- columns ------------------------------------------------------------------------------------------


def test_columns_come_in_the_order_in_which_they_are_asked_for(store: Store) -> None:
    store.create("t", 0, {"message.timestamp.type": "LogAppendTime"}).append(Record(b"v", b"k"))
    found = topicfs.arrow(store.backing, "t", columns=["timestampType", "value", "partition"])
    assert found.read_all().to_pydict() == {"timestampType": [1], "value": [b"v"], "partition": [0]}


def test_columns_that_are_left_out_are_not_made(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    numbered(store.create("t", 0), range(5))

    def refused(*_: object) -> int:
        raise AssertionError("a key or value was copied")

    monkeypatch.setattr(schema.gathering, "gather", refused)
    found = topicfs.arrow(store.backing, "t", columns=["offset", "timestamp", "partition", "topic"])
    assert found.read_all().column("offset").to_pylist() == [*range(5)]
    with pytest.raises(AssertionError):
        topicfs.arrow(store.backing, "t", columns=["offset", "value"]).read_all()


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        (["value", "vlaue"], "columns: expected some of topic, .*, headers, found 'vlaue'"),
        ("value", "expected a list of names, found the text 'value'"),
        (["key", "key"], "each once, found key, key"),
        ([], "found none"),
    ],
)
def test_an_unknown_column_is_refused_in_words(store: Store, columns: Any, words: str) -> None:
    store.create("t", 0)
    with pytest.raises(InvalidSettingError, match=words):
        topicfs.arrow(store.backing, "t", columns=columns)


# -- limits -------------------------------------------------------------------------------------------


def test_limits_are_offsets_of_all_partitions_or_of_each(store: Store) -> None:
    for number, count in enumerate((40, 20)):
        numbered(store.create("t", number, SMALL), range(count))
    every = [(0, offset) for offset in range(40)] + [(1, offset) for offset in range(20)]

    def found(**limits: Any) -> list[tuple[int, int]]:
        return [(each["partition"], each["offset"]) for each in rows(store, **limits)]

    assert found() == every
    assert found(start=30, end=35) == [(0, offset) for offset in range(30, 35)]
    assert found(start=18) == [each for each in every if each[1] >= 18]
    assert found(start={0: 39, 1: 3}, end={0: 40, 1: 5}) == [(0, 39), (1, 3), (1, 4)]
    assert found(start=7, end=7) == []
    assert found(start=9, end=7) == []


def test_limits_are_times_of_the_records_themselves(store: Store) -> None:
    partition = store.create("t", 0, SMALL)
    times = [*range(50), 3, 49, 50, *range(20, 90)]
    for number in times:
        partition.append([Record(b"v" * 50, timestamp=NOW + number)] * 2)
    every = of(partition)

    def expected(first: int, behind: int) -> list[Row]:
        return [
            each
            for each, number in zip(every, [n for n in times for _ in range(2)], strict=True)
            if first <= number < behind
        ]

    start, end = EPOCH + timedelta(milliseconds=NOW + 10), EPOCH + timedelta(milliseconds=NOW + 30)
    assert rows(store, start=start, end=end) == expected(10, 30)
    assert rows(store, start=start.isoformat(), end=end.replace(tzinfo=None).isoformat()) == expected(10, 30)
    assert rows(store, start=start + timedelta(microseconds=1)) == expected(11, 90)
    assert rows(store, start=50, end=end) == [each for each in expected(0, 30) if each["offset"] >= 50]


@pytest.mark.parametrize(
    ("limits", "error", "words"),
    [
        ({"start": -1}, InvalidSettingError, "start: expected an offset from 0 on, found -1"),
        ({"end": {0: 1, 1: 1}}, InvalidSettingError, "end: .* each of the partitions 0, found 0, 1"),
        ({"start": {}}, InvalidSettingError, "found none"),
        ({"start": {0: 11}}, OffsetOutOfRangeError, "t-0: expected an offset within 2 to 10, .*, found 11"),
        ({"start": {0: 1}}, OffsetOutOfRangeError, "within 2 to 10"),
        ({"start": 1.5}, InvalidSettingError, "start: expected an offset.* found 1.5"),
        ({"start": "yesterday"}, ValueError, "expected a time .* found 'yesterday'"),
        ({"start": datetime(2026, 5, 1)}, ValueError, "expected a time with a zone"),  # noqa: DTZ001
    ],
)
def test_a_limit_that_cannot_be_meant_is_refused_in_words(
    store: Store, limits: Any, error: type[Exception], words: str
) -> None:
    partition = store.create("t", 0)
    numbered(partition, range(10))
    partition.delete_records(2)
    store.close()
    with pytest.raises(error, match=words):
        topicfs.arrow(store.backing, "t", **limits)


def test_no_such_topic_and_no_such_place_are_said_in_words(store: Store, tmp_path: Path) -> None:
    with pytest.raises(UnknownPartitionError, match="expected a topic missing, found no partition of it"):
        topicfs.arrow(store.backing, "missing")
    with pytest.raises(InvalidNameError, match="found no such directory"):
        topicfs.arrow(tmp_path / "nowhere", "t")
    (tmp_path / "other").mkdir()
    (tmp_path / "other/file").touch()
    with pytest.raises(InvalidNameError, match="found a directory with something else in it"):
        topicfs.arrow(str(tmp_path / "other"), "t")


# -- while the log changes ----------------------------------------------------------------------------


def slowly(store: Store, monkeypatch: pytest.MonkeyPatch, **options: Any) -> Iterator[Row]:
    """A reader that has read nothing beyond what it has given, but for some hundred bytes."""
    monkeypatch.setattr(scan, "CHUNK", 200)
    monkeypatch.setattr(reading, "_THREADS", 1)
    for batch in topicfs.arrow(store.backing, "t", **options):
        yield from batch.to_pylist()


def test_what_is_appended_after_the_call_is_not_read(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    partition = store.create("t", 0, SMALL)
    numbered(partition, range(50))
    reader = slowly(store, monkeypatch)
    first = next(reader)
    numbered(partition, range(50, 100))
    assert offsets([first, *reader]) == [*range(50)]


def test_a_writer_beside_it_never_shows_less_than_a_prefix(store: Store) -> None:
    partition = store.create("t", 0, {**SMALL, "internal.segment.bytes": "20000"})
    writer = threading.Thread(target=numbered, args=(partition, range(3000)))
    writer.start()
    seen = [0]
    while writer.is_alive():
        found = rows(store, columns=["offset", "value"])
        assert [(each["offset"], int(each["value"])) for each in found] == [(n, n) for n in range(len(found))]
        assert len(found) >= seen[-1]
        seen.append(len(found))
    writer.join()
    assert len(rows(store)) == 3000
    assert len(set(seen)) > 2


def test_a_compaction_in_mid_read_loses_no_last_value(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    partition = store.create("t", 0, {**SMALL, "cleanup.policy": "compact"})
    numbered(partition, range(200), keys=20)
    before = of(partition)
    reader = slowly(store, monkeypatch)
    found = [next(reader) for _ in range(40)]
    partition.roll()
    compact(partition)
    found += reader
    assert offsets(found) == sorted(set(offsets(found)))
    assert all(each in before for each in found)
    assert all(each in found for each in of(partition))
    assert len(found) < len(before)


def test_retention_in_mid_read_is_an_error_in_words(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    partition = store.create("t", 0, SMALL)
    numbered(partition, range(200))
    reader = slowly(store, monkeypatch)
    assert next(reader)["offset"] == 0
    segments = partition.log.chain.segments
    retire(partition.log, list(segments)[:-1])
    partition.log.chain.remove_due(partition.log.clock() + 1)
    with pytest.raises(OffsetOutOfRangeError, match="were removed, by retention or with the topic"):
        list(reader)


@pytest.mark.parametrize("again", [False, True])
def test_a_topic_that_is_deleted_in_mid_read_is_an_error_also_when_it_is_made_again(
    store: Store, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    partition = store.create("t", 0, SMALL)
    numbered(partition, range(200))
    reader = slowly(store, monkeypatch)
    found = [next(reader)]
    store.delete_topic("t")
    if again:
        numbered(store.create("t", 0, SMALL), range(1000, 1200))
    with pytest.raises(OffsetOutOfRangeError, match="were removed, by retention or with the topic"):
        found += reader
    assert not [each for each in found if int(each["value"]) >= 1000]


# -- damage -------------------------------------------------------------------------------------------


def test_a_damaged_segment_is_an_error_and_never_a_wrong_record(store: Store) -> None:
    partition = store.create("t", 0)
    for first in range(0, 60, 3):
        partition.append([Record(b"%05d" % n, b"k", NOW, (("h", b"v"),)) for n in range(first, first + 3)])
    expected = of(partition)
    store.close()
    (log,) = (store.backing / "logs/t-0").glob("*.log")
    sound = log.read_bytes()
    random = np.random.default_rng(7)
    # No checksum covers a base offset. That of the last batch has no batch behind it that it would have to be below.
    last = len(sound) * 19 // 20
    places = [at for at in range(len(sound)) if not last <= at < last + 8]
    refused = 0
    for _ in range(300):
        damaged = bytearray(sound)
        for at in random.choice(places, random.integers(1, 4)):
            damaged[at] ^= 1 << random.integers(0, 8)
        log.write_bytes(damaged[: random.integers(1, len(sound))] if random.random() < 0.2 else damaged)
        try:
            found = rows(store)
        except CorruptError:
            refused += 1
        else:
            # A cut at the end of the file may be that of an append. No checksum covers a leader's epoch either.
            assert found == expected[: len(found)]
    assert refused > 150


# -- who reads it -------------------------------------------------------------------------------------


def filled(store: Store) -> None:
    for number in range(2):
        numbered(store.create("t", number, SMALL), range(50))


def test_duckdb_reads_it_by_name_and_as_a_relation(store: Store) -> None:
    filled(store)
    records = topicfs.arrow(store.backing, "t", columns=["partition", "value"])
    by_name = duckdb.sql(
        "SELECT partition, count(*), max(decode(value))::INT FROM records GROUP BY ALL ORDER BY ALL"
    )
    assert by_name.fetchall() == [(0, 50, 49), (1, 50, 49)]
    assert records.read_all().num_rows == 0, "a reader is read once"
    relation = duckdb.from_arrow(topicfs.arrow(store.backing, "t", start=48))
    assert relation.filter("key IS NOT NULL").count("*").fetchall() == [(4,)]


def test_polars_reads_it(store: Store) -> None:
    filled(store)
    frame = pl.from_arrow(topicfs.arrow(store.backing, "t"))
    assert isinstance(frame, pl.DataFrame)
    assert (
        frame.filter(pl.col("offset") >= 48)["value"].cast(pl.String).cast(pl.Int64).to_list() == [48, 49] * 2
    )
    assert frame.schema["timestamp"] == pl.Datetime("us", "UTC")


def test_pandas_reads_it(store: Store) -> None:
    filled(store)
    frame = topicfs.arrow(store.backing, "t").read_pandas()
    assert frame.groupby("partition")["offset"].max().to_dict() == {0: 49, 1: 49}
    assert frame["timestamp"].max() == pd.Timestamp(NOW + 49, unit="ms", tz="UTC")


# -- what it costs to import --------------------------------------------------------------------------


def test_importing_topicfs_loads_neither_arrow_nor_the_kernels() -> None:
    program = "import sys, topicfs; print({'pyarrow', 'numba', 'numpy'} & set(sys.modules))"
    assert subprocess.check_output([sys.executable, "-c", program], text=True) == "set()\n"


def test_without_pyarrow_it_says_what_to_install() -> None:
    program = "import sys; sys.modules['pyarrow'] = None; from topicfs import arrow"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1].endswith("expected pyarrow, found none: pip install 'topicfs[sql]'")
