"""Which segments have a file that says how early their records are: `topicfs.engine.min_timestamps.upkeep`."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from directory_check import identity
from store_bench import START, StoreBench, checked_store_bench

import topicfs.engine.min_timestamps.upkeep as upkeeping
from topicfs.engine.cleaner.clean import Cleaner
from topicfs.engine.format.paths import MIN_TIMESTAMPS_SUFFIX
from topicfs.engine.min_timestamps.file import MinTimestamps, load
from topicfs.engine.min_timestamps.upkeep import RECENT_MS, RETRY_MS, MinTimestampsUpkeep
from topicfs.engine.record import Record

SMALL = {"internal.segment.bytes": "100000", "retention.ms": "-1"}


def never() -> bool:
    return False


class Keeping:
    """A partition, and what keeps its files."""

    def __init__(self, store_bench: StoreBench) -> None:
        self.store_bench = store_bench
        self.store_bench.now = 1000 * int(os.stat(store_bench.root).st_mtime)
        self.partition = store_bench.store.create("orders", overrides=SMALL)
        self.start()

    def start(self) -> None:
        """As a new process begins."""
        self.partition = self.store_bench.store.partition("orders-0")
        self.upkeep = MinTimestampsUpkeep(
            self.store_bench.root / "views", self.store_bench.clock, self.store_bench.clock
        )

    @property
    def directory(self) -> Path:
        return self.store_bench.root / "views" / "orders-0"

    def log(self, base: int) -> Path:
        return self.partition.directory / f"{base:020d}.log"

    def segment(self, *times: int, key: str = "k") -> None:
        """A sealed segment of one batch."""
        self.partition.append([Record(b"v%d" % at, key.encode(), START + at) for at in times])
        self.partition.roll()

    def run(self, stop: Callable[[], bool] = never) -> None:
        self.upkeep.bring_up_to_date(self.partition, stop)

    def compact(self) -> None:
        """Rewrite all sealed segments."""
        self.store_bench.store.configure("orders", {"cleanup.policy": "compact"})
        cleaner = Cleaner.create(1 << 20, 0.9, 1 << 16, lambda size: None, bytes(16))
        end = self.partition.log.chain.active.base_offset
        cleaner.clean(self.partition.log, 0, end, self.store_bench.now, lambda: None)

    def known(self, base: int) -> MinTimestamps | None:
        return load(self.directory, self.log(base), base)

    @property
    def bases(self) -> list[int]:
        """The segments of which something is known."""
        segments = self.partition.log.chain.segments
        return [each.base_offset for each in segments if self.known(each.base_offset) is not None]

    def on_disk(self) -> list[str]:
        return sorted(os.listdir(self.directory)) if self.directory.exists() else []


@pytest.fixture
def store_bench(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Iterator[StoreBench]:
    with checked_store_bench(tmp_path / "backing", caplog) as made:
        made.open()
        yield made


@pytest.fixture
def kept(store_bench: StoreBench) -> Keeping:
    return Keeping(store_bench)


def test_each_sealed_segment_has_a_file_and_the_active_one_has_none(kept: Keeping) -> None:
    kept.segment(5, 3)
    kept.segment(9)
    kept.partition.append(Record(b"active", None, START))
    kept.run()
    assert kept.bases == [0, 2]
    assert len(kept.on_disk()) == 2
    assert kept.known(0) == MinTimestamps(0, 2, ((START + 3, 0),))
    kept.partition.roll()
    kept.run()
    assert kept.bases == [0, 2, 3]


def test_what_compaction_rewrote_has_a_file_of_its_own_and_the_one_before_is_gone(kept: Keeping) -> None:
    for at in (1, 5, 3):
        kept.segment(at)
    kept.run()
    before = kept.on_disk()
    for base in (0, 1, 2):
        os.utime(kept.log(base), (1, 1))
    kept.compact()
    assert kept.bases == [], "the one before is of another file"
    kept.run()
    assert kept.bases == [0]
    assert len(kept.on_disk()) == 1
    assert not set(before) & set(kept.on_disk())
    known = kept.known(0)
    assert known is not None
    assert (known.end_offset, known.all_later_from(START + 2)) == (3, 2)


def test_what_retention_removes_has_no_file(kept: Keeping) -> None:
    for at in range(3):
        kept.segment(at)
    kept.run()
    kept.partition.delete_records(2)
    kept.store_bench.store.upkeep.retain()
    kept.run()
    assert kept.bases == [2]
    assert len(kept.on_disk()) == 1


def test_a_truncated_segment_has_none_until_it_is_sealed_again(kept: Keeping) -> None:
    kept.segment(4)
    kept.segment(8)
    kept.run()
    kept.store_bench.store.truncate("orders", 0, 1)
    kept.run()
    assert kept.bases == [0]
    kept.segment(6)
    kept.run()
    known = kept.known(1)
    assert known is not None
    assert known.entries == ((START + 6, 0),)
    assert len(kept.on_disk()) == 2


def test_files_are_made_once_also_over_a_restart(kept: Keeping) -> None:
    kept.segment(1)
    kept.run()
    before = identity(kept.directory / kept.on_disk()[0])
    kept.store_bench.reopen()
    kept.start()
    kept.run()
    assert identity(kept.directory / kept.on_disk()[0]) == before


def test_of_the_segments_that_are_found_old_ones_stay_without(kept: Keeping) -> None:
    for at in range(3):
        kept.segment(at)
    old = kept.store_bench.now - RECENT_MS - 1
    os.utime(kept.log(1), ns=(old * 1_000_000,) * 2)
    kept.run()
    assert kept.bases == [0, 2]
    kept.segment(3)
    kept.run()
    assert kept.bases == [0, 2, 3], "also later on"
    kept.store_bench.reopen()
    kept.start()
    kept.store_bench.now += 2 * RECENT_MS
    kept.run()
    assert kept.bases == [0, 2, 3], "those that have one keep it"
    kept.segment(4)
    kept.store_bench.now += 2 * RECENT_MS
    kept.run()
    assert kept.bases == [0, 2, 3, 4], "what is sealed since has one, however late it is looked at"


def test_a_damaged_file_is_made_again_and_what_a_crash_left_is_removed(kept: Keeping) -> None:
    kept.segment(1)
    kept.segment(2)
    kept.run()
    first, second = kept.on_disk()
    (kept.directory / first).write_bytes(b"")
    (kept.directory / f"{second}.tmp").write_bytes(b"half")
    (kept.directory / f"{0:020d}.1-2-3{MIN_TIMESTAMPS_SUFFIX}").write_bytes(b"of another file")
    (kept.directory / f"{0:020d}.txt.map").write_bytes(b"not ours")
    kept.start()
    kept.run()
    assert kept.bases == [0, 1]
    assert kept.on_disk() == sorted([first, second, f"{0:020d}.txt.map"])


def test_a_run_without_anything_to_do_asks_no_file(kept: Keeping, monkeypatch: pytest.MonkeyPatch) -> None:
    kept.segment(1)
    kept.run()
    kept.partition.append(Record(b"active", None, START))

    def refuse(*_: object) -> Any:
        raise AssertionError("nothing has changed")

    with monkeypatch.context() as patch:
        patch.setattr(upkeeping, "_sealed", refuse)
        kept.run()
    reads: list[int] = []
    build = upkeeping.build

    def counted(segment: Any, end: int, stop: Callable[[], bool]) -> Any:
        reads.append(segment.base_offset)
        return build(segment, end, stop)

    monkeypatch.setattr(upkeeping, "build", counted)
    kept.partition.roll()
    kept.run()
    assert reads == [1]


def test_a_stop_breaks_off_and_the_rest_is_made_later(kept: Keeping) -> None:
    for at in range(4):
        kept.segment(at)
    asked = 0

    def stop() -> bool:
        nonlocal asked
        asked += 1
        return asked > 4

    kept.run(stop)
    assert 0 < len(kept.bases) < 4
    kept.store_bench.now += 2 * RECENT_MS
    kept.run()
    assert kept.bases == [0, 1, 2, 3]


def test_a_segment_that_is_removed_while_it_is_read_is_no_failure(
    kept: Keeping, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept.segment(1)
    kept.segment(2)
    build = upkeeping.build

    def removing(segment: Any, end: int, stop: Callable[[], bool]) -> Any:
        if segment.base_offset == 0:
            kept.store_bench.store.upkeep.retain()
        return build(segment, end, stop)

    kept.partition.delete_records(1)
    monkeypatch.setattr(upkeeping, "build", removing)
    kept.run()
    kept.run()
    assert kept.bases == [1]
    assert len(kept.on_disk()) == 1


# -- what goes wrong ----------------------------------------------------------------------------------


def test_a_damaged_segment_is_logged_once_and_the_others_have_files(
    kept: Keeping, caplog: pytest.LogCaptureFixture
) -> None:
    kept.store_bench.warnings = True
    for at in range(3):
        kept.segment(at)
    path = kept.log(1)
    data, status = path.read_bytes(), path.stat()

    def write(content: bytes) -> None:
        path.write_bytes(content)
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))

    write(data[:-1] + bytes([data[-1] ^ 1]))
    kept.run()
    assert kept.bases == [0, 2]
    kept.store_bench.now += RETRY_MS
    kept.run()
    kept.segment(3)
    kept.run()
    assert kept.bases == [0, 2, 3]
    said = [record.getMessage() for record in caplog.records if "segment 1" in record.getMessage()]
    assert len(said) == 1
    write(data)
    kept.run()
    assert kept.bases == [0, 2, 3], "not tried again yet"
    kept.store_bench.now += RETRY_MS
    kept.run()
    assert kept.bases == [0, 1, 2, 3]


def test_a_full_disk_leaves_nothing_half_and_is_tried_again(
    kept: Keeping, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept.store_bench.warnings = True
    kept.segment(1)

    def full(path: Path, target: Path) -> Path:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", full)
        kept.run()
    assert kept.on_disk() == []
    kept.store_bench.now += RETRY_MS
    kept.run()
    assert kept.bases == [0]


def test_a_topic_that_takes_the_name_of_a_deleted_one_has_files_of_its_own(kept: Keeping) -> None:
    kept.segment(9)
    kept.run()
    kept.store_bench.store.delete_topic("orders")
    kept.partition = kept.store_bench.store.create("orders", overrides=SMALL)
    assert kept.bases == []
    kept.segment(2)
    kept.run()
    known = kept.known(0)
    assert known is not None
    assert known.entries == ((START + 2, 0),)
    assert len(kept.on_disk()) == 1
