"""Parquet files of sealed segments, made, published and removed: `topicfs.engine.parquet`."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from directory_check import identity
from store_bench import START, StoreBench, checked_store_bench

import topicfs.engine.parquet.upkeep
from topicfs.engine.cleaner.clean import Cleaner
from topicfs.engine.format.paths import PARQUET_LIST
from topicfs.engine.parquet import write
from topicfs.engine.parquet.table import Tables
from topicfs.engine.parquet.upkeep import RETRY_MS, TableUpkeep
from topicfs.engine.partition.cutting import retire
from topicfs.engine.partition.partition import Producer
from topicfs.engine.record import Record

WANTED = {"parquet.enable": "true"}


def never() -> bool:
    return False


class Keeping:
    """A partition of a topic that wants Parquet files, and what keeps them."""

    def __init__(self, store_bench: StoreBench) -> None:
        self.store_bench = store_bench
        self.partition = store_bench.store.create("orders", overrides=WANTED)
        self.start()

    def start(self) -> None:
        """As a new process begins."""
        self.partition = self.store_bench.store.partition("orders-0")
        self.tables = Tables(self.store_bench.root / "views")
        self.upkeep = TableUpkeep(self.tables, self.store_bench.clock)

    @property
    def directory(self) -> Path:
        return self.tables.directory / "orders-0"

    def segment(self, *values: str, key: str = "k") -> None:
        """A sealed segment of one batch."""
        self.partition.append([Record(value.encode(), key.encode(), START) for value in values])
        self.partition.roll()

    def run(self, stop: Callable[[], bool] = never) -> None:
        self.upkeep.bring_up_to_date(self.partition, stop)

    def compact(self) -> None:
        """Rewrite all sealed segments."""
        self.store_bench.store.configure("orders", {"cleanup.policy": "compact"})
        cleaner = Cleaner.create(1 << 20, 0.9, 1 << 16, lambda size: None, bytes(16))
        end = self.partition.log.chain.active.base_offset
        cleaner.clean(self.partition.log, 0, end, self.store_bench.now, lambda: None)

    @property
    def bases(self) -> list[int]:
        return [file.base_offset for file in self.tables.files(self.partition)]

    def rows(self) -> list[dict[str, Any]]:
        """What the table shows."""
        return [row for path in self.paths() for row in pq.read_table(path).to_pylist()]

    def values(self) -> list[str]:
        return [row["value"].decode() for row in self.rows()]

    def paths(self) -> list[Path]:
        return [self.tables.path("orders-0", file.name) for file in self.tables.files(self.partition)]

    def on_disk(self) -> set[str]:
        return {path.name for path in self.directory.iterdir()} if self.directory.exists() else set()


@pytest.fixture
def store_bench(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Iterator[StoreBench]:
    with checked_store_bench(tmp_path / "backing", caplog) as made:
        made.open()
        yield made


@pytest.fixture
def kept(store_bench: StoreBench) -> Keeping:
    return Keeping(store_bench)


# -- what is in them --------------------------------------------------------------------------------


def test_each_sealed_segment_has_a_file_with_its_records_and_the_active_one_has_none(kept: Keeping) -> None:
    kept.segment("a", "b")
    kept.segment("c")
    kept.partition.append(Record(b"d", None, START))
    kept.run()
    assert kept.bases == [0, 2]
    assert kept.values() == ["a", "b", "c"]
    assert kept.rows()[2] | {"timestamp": 0} == {
        "topic": "orders", "offset": 2, "timestamp": 0, "key": b"k", "value": b"c", "headers": None,
    }  # fmt: skip
    assert kept.on_disk() == {PARQUET_LIST, *(path.name for path in kept.paths())}


def test_records_of_aborted_transactions_and_markers_are_left_out(kept: Keeping) -> None:
    for number, commit in enumerate((False, True)):
        kept.partition.append([Record(f"t{number}".encode())], Producer(number, 0, 0, transactional=True))
        kept.segment(f"between {number}")
        kept.partition.end_transaction(number, 0, commit)
    kept.partition.roll()
    kept.run()
    assert kept.values() == ["between 0", "t1", "between 1"]


def test_a_segment_with_an_open_transaction_has_no_file_until_it_ends(kept: Keeping) -> None:
    kept.segment("a")
    kept.partition.append([Record(b"open")], Producer(1, 0, 0, transactional=True))
    kept.segment("b")
    kept.segment("c")
    kept.run()
    assert kept.values() == ["a"]
    kept.partition.end_transaction(1, 0, True)
    kept.run()
    assert kept.values() == ["a", "open", "b", "c"]


def test_a_segment_without_visible_records_is_not_shown_and_has_no_file(kept: Keeping) -> None:
    kept.partition.append([Record(b"gone")], Producer(1, 0, 0, transactional=True))
    kept.partition.end_transaction(1, 0, False)
    kept.partition.roll()
    kept.segment("a")
    kept.run()
    assert kept.bases == [2]
    assert len(kept.on_disk()) == 2
    assert kept.tables.status(kept.partition) == {
        "files": 1, "bytes": kept.paths()[0].stat().st_size, "next_offset": 3, "error": None,
    }  # fmt: skip


def test_row_groups_have_the_ranges_of_offsets_and_timestamps(
    kept: Keeping, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write, "ROW_GROUP_ROWS", 100)
    kept.partition.append([Record(b"%d" % number, None, START + number) for number in range(1000)])
    kept.partition.roll()
    kept.run()
    (path,) = kept.paths()
    metadata = pq.ParquetFile(path).metadata
    offset, timestamp = (metadata.schema.names.index(name) for name in ("offset", "timestamp"))
    assert metadata.num_row_groups == 10
    for number in range(10):
        group = metadata.row_group(number)
        first, last = number * 100, number * 100 + 99
        assert (group.column(offset).statistics.min, group.column(offset).statistics.max) == (first, last)
        times = group.column(timestamp).statistics
        assert (times.min.timestamp(), times.max.timestamp()) == pytest.approx(
            ((START + first) / 1000, (START + last) / 1000)
        )
        assert group.column(offset).compression == "ZSTD"
        assert group.column(offset).has_column_index
        assert group.sorting_columns == (pq.SortingColumn(metadata.schema.names.index("offset")),)
    (file,) = kept.tables.files(kept.partition)
    assert (file.records, file.max_timestamp) == (1000, START + 999)


def test_memory_is_bounded_by_a_row_group(kept: Keeping) -> None:
    value = np.random.default_rng(1).bytes(1000)
    for _ in range(60):
        kept.partition.append([Record(value, None, START)] * 1000)
    kept.partition.roll()
    pool = pa.default_memory_pool()
    if pool.max_memory() is None:
        pytest.skip("this memory pool does not say how much was in use")
    before = pool.max_memory()
    kept.run()
    assert pool.max_memory() - before < 2.5 * write.ROW_GROUP_BYTES
    assert sum(pq.ParquetFile(path).metadata.num_rows for path in kept.paths()) == 60_000


# -- what is published ------------------------------------------------------------------------------


def test_compaction_does_not_take_records_from_the_table_before_the_new_files_are_there(
    kept: Keeping, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        kept.segment(f"old {number}", key="same")
    kept.segment("last", key="other")
    kept.run()
    before, names = kept.values(), kept.on_disk()
    kept.compact()
    assert kept.values() == before
    kept.run(lambda: True)
    assert kept.values() == before
    kept.run()
    assert kept.values() == ["old 2", "last"]
    assert kept.on_disk().isdisjoint(names - {PARQUET_LIST})


def test_the_table_of_before_a_compaction_is_there_after_a_restart(kept: Keeping) -> None:
    for number in range(3):
        kept.segment(f"old {number}", key="same")
    kept.run()
    kept.compact()
    kept.store_bench.reopen()
    kept.start()
    assert kept.values() == ["old 0", "old 1", "old 2"]
    kept.run()
    assert kept.values() == ["old 2"]


def test_a_removed_segment_is_gone_at_once_and_its_file_at_the_next_run(kept: Keeping) -> None:
    for value in "abc":
        kept.segment(value)
    kept.run()
    gone = kept.paths()[0]
    log = kept.partition.log
    log.raise_start_offset(1)
    with log.lock:
        retire(log, (log.chain.segments.first,))
    assert kept.values() == ["b", "c"]
    kept.run()
    assert not gone.exists()
    assert kept.values() == ["b", "c"]


def test_a_truncated_log_shows_what_is_left(kept: Keeping) -> None:
    for value in "abc":
        kept.segment(value)
    kept.run()
    kept.store_bench.store.truncate("orders", 0, 1)
    kept.segment("other")
    kept.run()
    assert kept.values() == ["a", "other"]
    kept.store_bench.store.truncate("orders", 0, 0)
    kept.run()
    assert kept.values() == []


def test_files_are_made_once_also_over_a_restart(kept: Keeping) -> None:
    kept.segment("a")
    kept.run()
    (path,) = kept.paths()
    before = identity(path)
    kept.store_bench.reopen()
    kept.start()
    kept.run()
    kept.run()
    assert identity(path) == before
    assert kept.tables.made == (0, 0)


def test_a_topic_that_takes_the_name_of_a_deleted_one_does_not_show_its_records(kept: Keeping) -> None:
    kept.segment("secret")
    kept.run()
    kept.store_bench.store.delete_topic("orders")
    kept.partition = kept.store_bench.store.create("orders", overrides=WANTED)
    assert kept.bases == []
    kept.segment("mine")
    kept.run()
    assert kept.values() == ["mine"]
    kept.start()
    assert kept.values() == ["mine"]


def test_nothing_is_shown_where_it_is_not_wanted(kept: Keeping) -> None:
    kept.segment("a")
    kept.run()
    kept.store_bench.store.configure("orders", {"parquet.enable": "false"})
    assert kept.bases == []
    assert kept.tables.status(kept.partition) is None
    assert kept.tables.has_files("orders-0")
    kept.tables.clear("orders-0")
    assert kept.on_disk() == set()
    assert not kept.tables.has_files("orders-0")
    kept.store_bench.store.configure("orders", {"parquet.enable": "true"})
    kept.run()
    assert kept.values() == ["a"]


def test_a_file_that_is_open_can_be_read_though_it_was_replaced(kept: Keeping) -> None:
    for number in range(2):
        kept.segment(f"old {number}", key="same")
    kept.run()
    file = kept.tables.files(kept.partition)[0]
    whole = kept.paths()[0].read_bytes()
    reader = kept.tables.open(kept.partition, file)
    kept.compact()
    kept.run()
    found = np.empty(file.size + 10, np.uint8)
    assert reader.read(0, found) == file.size
    assert found[: file.size].tobytes() == whole
    assert reader.read(file.size, found) == 0
    reader.close()


# -- what goes wrong --------------------------------------------------------------------------------


def damage(kept: Keeping, base: int) -> Callable[[], None]:
    """Change a byte in a segment, so that its time stays; gives what repairs it."""
    path = kept.partition.directory / f"{base:020d}.log"
    data, status = path.read_bytes(), path.stat()

    def put(content: bytes) -> None:
        path.write_bytes(content)
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))

    put(data[:-1] + bytes([data[-1] ^ 1]))
    return lambda: put(data)


def test_a_damaged_segment_is_reported_and_the_others_have_files(kept: Keeping) -> None:
    kept.store_bench.warnings = True
    for value in "abc":
        kept.segment(value)
    repair = damage(kept, 1)
    kept.run()
    assert kept.values() == ["a", "c"]
    status = kept.tables.status(kept.partition)
    assert status is not None
    assert str(status["error"]).startswith("segment 1: ")
    repair()
    kept.run()
    assert kept.values() == ["a", "c"]
    kept.store_bench.now += RETRY_MS
    kept.run()
    assert kept.values() == ["a", "b", "c"]
    assert kept.tables.failures == {}


def test_a_full_disk_leaves_nothing_half_and_is_tried_again(
    kept: Keeping, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept.store_bench.warnings = True
    kept.segment("a")

    def full(group: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(write, "_latest_ms", full)
        kept.run()
    assert kept.bases == []
    assert not [name for name in kept.on_disk() if name != PARQUET_LIST]
    status = kept.tables.status(kept.partition)
    assert status is not None
    assert "No space left" in str(status["error"])
    kept.store_bench.now += RETRY_MS
    kept.run()
    assert kept.values() == ["a"]


def test_what_a_crash_left_half_written_is_removed(kept: Keeping) -> None:
    kept.segment("a")
    kept.directory.mkdir(parents=True)
    (kept.directory / f"{0:020d}.1-2-3.parquet.tmp").write_bytes(b"half")
    (kept.directory / f"{0:020d}.1-2-3.parquet").write_bytes(b"of another segment")
    (kept.directory / f"{0:020d}.txt.map").write_bytes(b"not of the table")
    kept.run()
    assert kept.on_disk() == {PARQUET_LIST, kept.paths()[0].name, f"{0:020d}.txt.map"}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[" * 100_000,
        b"[]",
        b'{"topic_id": "x"}',
        b'{"topic_id": 1, "files": [{"name": 1}]}',
        b"\xff\xfe",
    ],
)
def test_a_list_that_is_no_list_counts_as_none(kept: Keeping, content: bytes) -> None:
    kept.segment("a")
    kept.run()
    (kept.directory / PARQUET_LIST).write_bytes(content)
    kept.start()
    assert kept.bases == []
    kept.run()
    assert kept.values() == ["a"]


def test_a_file_that_somebody_deleted_is_made_again(kept: Keeping) -> None:
    kept.segment("a")
    kept.segment("b")
    kept.run()
    file = kept.tables.files(kept.partition)[0]
    kept.paths()[0].unlink()
    with pytest.raises(FileNotFoundError):
        kept.tables.open(kept.partition, file)
    kept.run()
    assert kept.values() == ["a", "b"]


def test_a_stop_breaks_off_within_a_segment(kept: Keeping) -> None:
    for _ in range(4):
        kept.partition.append([Record(bytes(1000), None, START)] * 1000)
    kept.partition.roll()
    asked = 0

    def stop() -> bool:
        nonlocal asked
        asked += 1
        return asked > 2

    kept.run(stop)
    assert kept.bases == []
    assert not [name for name in kept.on_disk() if name != PARQUET_LIST]
    kept.run()
    assert sum(file.records for file in kept.tables.files(kept.partition)) == 4000


def test_a_run_without_anything_to_do_asks_no_file(kept: Keeping, monkeypatch: pytest.MonkeyPatch) -> None:
    kept.segment("a")
    kept.run()

    def refuse(*_: object) -> Any:
        raise AssertionError("nothing has changed")

    monkeypatch.setattr(topicfs.engine.parquet.upkeep, "file_name", refuse)
    kept.run()


def test_the_list_says_what_each_file_is(kept: Keeping) -> None:
    kept.segment("a", "b")
    kept.run()
    content = json.loads((kept.directory / PARQUET_LIST).read_bytes())
    status = (kept.partition.directory / f"{0:020d}.log").stat()
    assert content["topic_id"] == kept.partition.topic_id
    (file,) = content["files"]
    assert file == {
        "name": kept.paths()[0].name, "base_offset": 0, "next_offset": 2, "records": 2,
        "size": kept.paths()[0].stat().st_size, "max_timestamp": START, "mtime_ns": status.st_mtime_ns,
    }  # fmt: skip
