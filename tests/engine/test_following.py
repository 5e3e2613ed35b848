"""A partition that is opened read-only follows its files while another process changes them."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from compacted import Cleaning, cleaner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from partition_opening import NEVER, NOW, without_fsync
from test_viewing import files, told

from topicfs.engine.errors import CorruptError, EngineError
from topicfs.engine.files.birth import birth
from topicfs.engine.format.paths import log_file
from topicfs.engine.partition import following
from topicfs.engine.partition.cutting import retire
from topicfs.engine.partition.following import Follower
from topicfs.engine.partition.hold import Hold
from topicfs.engine.partition.loading import Known
from topicfs.engine.partition.offsets import Isolation
from topicfs.engine.partition.partition import Partition
from topicfs.engine.partition.reader import read_columns
from topicfs.engine.partition.viewing import view
from topicfs.engine.segment.descriptors import Descriptors
from topicfs.engine.settings.topic import resolve_topic

NAMED = {"internal.segment.bytes": "1000", "index.interval.bytes": "200", "cleanup.policy": "compact"}


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(following, "_AGAIN_S", 0.0)
    with without_fsync():
        yield


class Beside:
    """A partition that is written, and the same directory opened read-only beside it.

    start  the start offset, as the checkpoint has it
    mark   the high watermark there
    gone   how often the reader was told that the directory is gone
    is_cut whether the log was cut
    """

    def __init__(
        self, directory: Path, lone: bool = True, clean: bool = False, start: int = 0, **more: object
    ) -> None:
        self.written = Cleaning(directory, index_interval_bytes=200, **more)
        self.directory = directory
        self.lone = lone
        self.start = start
        self.mark: int | None = None
        self.gone = 0
        self.is_cut = False
        if clean:
            self.written.reopen()
        self.begin(clean)

    def begin(self, clean: bool = False) -> None:
        """Open the directory read-only."""
        born = birth(self.directory)
        self.reader = self._open(clean)
        self.reader.log.catch_up = Follower(
            self.reader.log, born, self._known, lambda: self._open(False), self._left
        ).catch_up

    def _known(self, clean: bool = False) -> Known:
        return Known(clean, start=self.start, high_watermark=self.mark)

    def _open(self, clean: bool) -> Partition:
        found = resolve_topic(NAMED, {})
        known = self._known(clean)
        clock, descriptors = self.written.clock, Descriptors(64)
        return view("t", 0, self.directory, found, NEVER, known, clock, descriptors, self.lone)

    def _left(self) -> None:
        self.gone += 1

    def check(self) -> None:
        """Both show the same, and the look has changed nothing."""
        before = files(self.directory)
        self.reader.catch_up()
        found, expected = told(self.reader), told(self.written.partition)
        for each in (found, expected):
            # The epoch of records that nobody has written yet is in memory only.
            each["epochs"] = [entry for entry in each["epochs"] if entry.start_offset < each["end"]]
            # Idle producers are known from snapshots. Of those of a log that is read anew, some may be gone.
            del each["producers"]
            if self.is_cut:
                # Epochs of which no batch is left are known from the file, which lags behind the writer's memory.
                del each["epochs"]
        assert found == expected
        assert files(self.directory) == before


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(1, 30)),
        st.tuples(st.just("produce"), st.integers(1, 3)),
        st.tuples(st.just("end"), st.booleans()),
        st.tuples(st.just("roll"), st.none()),
        st.tuples(st.just("clean"), st.none()),
        st.tuples(st.just("delete"), st.integers(0, 40)),
        st.tuples(st.just("truncate"), st.integers(1, 25)),
        st.tuples(st.just("lead"), st.none()),
        st.tuples(st.just("look"), st.none()),
    ),
    min_size=3,
    max_size=40,
)


@given(STEPS, st.booleans())
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_after_any_changes_it_shows_what_the_writer_shows(
    steps: list[tuple[str, int | bool | None]], clean: bool
) -> None:
    with tempfile.TemporaryDirectory() as place:
        beside = Beside(Path(place) / "t-0", clean=clean)
        beside.written.put(*((number, number) for number in range(7)))
        open_of: set[int] = set()
        for kind, number in steps:
            _do(beside, kind, number, open_of)
            if kind == "look":
                beside.check()
        beside.check()
        beside.written.partition.log.abandon()
        beside.reader.log.abandon()


def _do(beside: Beside, kind: str, number: int | bool | None, open_of: set[int]) -> None:
    written = beside.written
    log = written.partition.log
    if kind == "put" and number:
        written.put(*((each % 4, "x" * each) for each in range(number)))
    elif kind == "produce" and number:
        written.produce(number, (1, "in"), (2, "transaction"), transactional=True)
        open_of.add(number)
    elif kind == "end" and open_of:
        written.end(open_of.pop(), bool(number))
    elif kind == "roll":
        written.partition.roll()
    elif kind == "clean":
        written.clean(cleaner(), until=min(log.snapshot.stable, log.snapshot.active_base), roll=False)
    elif kind == "delete" and number is not None:
        beside.start = min(log.snapshot.start + number, log.snapshot.stable)
        log.raise_start_offset(beside.start)
        while (
            len(log.chain.segments) > 1
            and log.chain.segments.end_of(log.chain.segments.first) <= beside.start
        ):
            retire(log, [log.chain.segments.first])
    elif kind == "truncate" and number:
        found = log.chain.active.position_of(log.snapshot.end - number)
        # Where a cut falls into a batch, no file tells where the log ends. A broker cuts no transaction that has ended.
        end = log.snapshot.end if found is None else found[2]
        if end > max(log.snapshot.start, written.dirty) and not open_of and _no_markers(written, end):
            written.partition.truncate_to(end)
            beside.is_cut = True
    elif kind == "lead":
        log.become_leader(log.leader_epoch + 1)
        written.put((9, "of the new leader"))


def _no_markers(written: Cleaning, end: int) -> bool:
    return all(last < end for last in written.markers())


# -- what is not whole ----------------------------------------------------------------------------------


def active_of(beside: Beside) -> Path:
    return beside.directory / log_file(beside.written.partition.offsets.active_base)


def seen(beside: Beside) -> list[int]:
    beside.reader.catch_up()
    return [record.offset for record in beside.reader.records()]


def test_half_a_batch_is_not_shown_before_it_is_whole(tmp_path: Path) -> None:
    beside = Beside(tmp_path / "t-0")
    beside.written.put((1, "one"))
    assert seen(beside) == [0]
    before = active_of(beside).stat().st_size
    beside.written.put((2, "two"))
    whole = active_of(beside).read_bytes()
    for length in range(before + 1, len(whole), 7):
        os.truncate(active_of(beside), length)
        assert seen(beside) == [0], length
    active_of(beside).write_bytes(whole)
    assert seen(beside) == [0, 1]


def test_a_batch_with_a_wrong_checksum_waits_and_is_no_cut(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    beside = Beside(tmp_path / "t-0")
    beside.written.put((1, "one"))
    assert seen(beside) == [0]
    beside.written.put((2, "two"))
    whole = active_of(beside).read_bytes()
    active_of(beside).write_bytes(whole[:-1] + b"?")
    with caplog.at_level(logging.WARNING):
        assert seen(beside) == seen(beside) == [0]
    active_of(beside).write_bytes(whole)
    assert seen(beside) == [0, 1]
    assert caplog.messages == []


def test_batches_that_are_written_into_allocated_zeros_show_without_a_change_of_the_size(
    tmp_path: Path,
) -> None:
    beside = Beside(tmp_path / "t-0")
    beside.written.put((1, "one"))
    whole = active_of(beside).read_bytes()
    os.truncate(active_of(beside), 100_000)
    assert seen(beside) == [0]
    beside.written.put((2, "two"))
    after = active_of(beside).read_bytes()
    assert len(after) == 100_000
    assert after.startswith(whole)
    assert seen(beside) == [0, 1]


@pytest.mark.parametrize("clean", [True, False])
def test_indexes_that_end_in_zeros_are_used_as_they_are(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, clean: bool
) -> None:
    written = Cleaning(tmp_path / "t-0", index_interval_bytes=200, segment_bytes=100_000)
    for number in range(100):
        written.put((number, "x" * 50))
    written.reopen()
    for index in (tmp_path / "t-0").glob("*.*index"):
        os.truncate(index, 120_000)
    before = files(tmp_path / "t-0")
    found = resolve_topic(NAMED, {})
    with caplog.at_level(logging.WARNING):
        reader = view("t", 0, tmp_path / "t-0", found, NEVER, Known(clean), written.clock, Descriptors(64))
        entries = [index.entries for index in reader.log.chain.active.finder.indexes]
        assert entries[0] > 10
        assert [record.offset for record in reader.records(57)] == list(range(57, 100))
        assert reader.offset_for_timestamp(NOW) is not None
    assert caplog.messages == []
    assert not reader.log.chain.active.mended
    assert files(tmp_path / "t-0") == before


def test_growth_reads_only_what_came(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    beside = Beside(tmp_path / "t-0", segment_bytes=1_000_000)
    beside.written.put(*((1, "x" * 1000) for _ in range(300)))
    beside.reader.catch_up()
    taken: list[int] = []
    read = following.read_exactly_into

    def counted(fd: int, position: int, into: memoryview, path: str) -> None:
        taken.append(len(into))
        read(fd, position, into, path)

    monkeypatch.setattr(following, "read_exactly_into", counted)
    beside.written.put((2, "two"))
    beside.reader.catch_up()
    assert sum(taken) < 200
    taken.clear()
    beside.reader.catch_up()
    assert taken == []


# -- what goes ------------------------------------------------------------------------------------------


def test_a_reader_reads_on_what_was_removed_under_it(tmp_path: Path) -> None:
    beside = Beside(tmp_path / "t-0", file_delete_delay_ms=0)
    written = beside.written
    for number in range(40):
        written.produce(1, (number % 3, "x" * 30), transactional=True)
        written.end(1, commit=number % 4 != 0)
    expected = list(written.partition.records())
    beside.reader.catch_up()
    with Hold.take(beside.reader.log) as hold:
        written.clean(cleaner())
        beside.reader.catch_up()
        written.partition.log.remove_due(NEVER)
        assert not list(beside.directory.glob("*.deleted"))
        held = hold.snapshot
        found = [
            record
            for part in read_columns(held, 0, held.stable, Isolation.COMMITTED)
            for record in part.records()
        ]
    assert found == expected
    beside.check()


def test_a_deleted_directory_closes_the_log_and_is_told(tmp_path: Path) -> None:
    beside = Beside(tmp_path / "t-0")
    beside.written.put((1, "one"))
    assert seen(beside) == [0]
    beside.directory.rename(tmp_path / "t-0.0123456789abcdef0123456789abcdef-delete")
    beside.reader.catch_up()
    assert (beside.gone, beside.reader.is_open) == (1, False)


def test_a_directory_that_was_made_again_is_another_one(tmp_path: Path) -> None:
    beside = Beside(tmp_path / "t-0")
    beside.written.put((1, "one"))
    assert seen(beside) == [0]
    beside.directory.rename(tmp_path / "old")
    (tmp_path / "t-0").mkdir()
    beside.reader.catch_up()
    assert (beside.gone, beside.reader.is_open) == (1, False)


def test_of_a_log_with_several_replicas_records_show_up_to_the_high_watermark(tmp_path: Path) -> None:
    beside = Beside(tmp_path / "t-0", lone=False)
    beside.written.put(*((number, number) for number in range(10)))
    beside.written.put(*((number, number) for number in range(10)))
    assert seen(beside) == []
    beside.mark = 10
    assert seen(beside) == list(range(10))
    beside.mark = 9
    assert seen(beside) == list(range(10)), "it never falls"
    beside.mark = 25
    assert seen(beside) == list(range(20))


DAMAGES = st.lists(
    st.tuples(
        st.sampled_from(["put", "roll", "look", "flip", "cut", "remove", "zeros"]),
        st.integers(0, 1000),
        st.floats(0, 1, exclude_max=True),
    ),
    min_size=4,
    max_size=25,
)


@given(DAMAGES)
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_of_a_log_that_is_damaged_meanwhile_only_records_that_were_written_show(
    steps: list[tuple[str, int, float]],
) -> None:
    """Or an error. No checksum covers a base offset: a record is known by its value."""
    with tempfile.TemporaryDirectory() as place:
        beside = Beside(Path(place) / "t-0")
        written: set[bytes | None] = set()
        for number, (kind, choice, at) in enumerate(steps):
            if kind == "put":
                pairs = [(each, f"{each} of {number}") for each in range(1 + choice % 7)]
                written |= {value.encode() for _, value in pairs}
                with suppress(EngineError, OSError):
                    beside.written.put(*pairs)
            elif kind == "roll":
                with suppress(EngineError, OSError):
                    beside.written.partition.roll()
            elif kind == "look":
                with suppress(EngineError, OSError):
                    beside.reader.catch_up()
                    assert {record.value for record in beside.reader.records()} <= written
            else:
                damage(beside.directory, kind, choice, at)
        beside.written.partition.log.abandon()
        beside.reader.log.abandon()


def damage(directory: Path, kind: str, number: int, at: float) -> None:
    every = sorted(directory.glob("0*.*"))
    if not every:
        return
    path = every[number % len(every)]
    size = path.stat().st_size
    if kind == "remove":
        path.unlink()
    elif kind == "cut":
        os.truncate(path, int(size * at))
    elif kind == "zeros":
        os.truncate(path, size + number)
    elif size:
        with path.open("r+b") as file:
            file.seek(int(size * at))
            byte = file.read(1)[0]
            file.seek(int(size * at))
            file.write(bytes([byte ^ 0x41]))


def test_a_cut_is_known_as_one_and_a_compaction_is_none(tmp_path: Path) -> None:
    beside = Beside(tmp_path / "t-0")
    for number in range(30):
        beside.written.put((number % 3, "x" * 30))
    beside.check()
    beside.written.put((1, "one"))
    beside.written.clean(cleaner())
    beside.written.put((2, "two"))
    beside.written.clean(cleaner())
    beside.check()
    assert beside.reader.log.snapshot.cuts == 0
    end = beside.written.put((3, "three"))
    beside.check()
    beside.written.partition.truncate_to(end)
    beside.is_cut = True
    beside.written.put((4, "four"))
    beside.check()
    assert beside.reader.log.snapshot.cuts == 1
    with pytest.raises(CorruptError, match="truncated"):
        beside.reader.log.check_uncut(0, end + 1)


def test_a_log_that_ends_below_its_start_offset_stays_empty_without_a_word(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    beside = Beside(tmp_path / "t-0", start=7)
    beside.written.put((1, "one"))
    beside.begin()
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        assert seen(beside) == seen(beside) == []
    assert beside.reader.start_offset == 7
    assert caplog.messages == []


def test_an_active_segment_that_was_replaced_is_a_cut(tmp_path: Path) -> None:
    beside = Beside(tmp_path / "t-0")
    beside.written.put((1, "one"))
    assert seen(beside) == [0]
    beside.written.partition.restart_at(0)
    beside.written.put((2, "two"), (3, "three"))
    beside.is_cut = True
    beside.check()
    assert beside.reader.log.snapshot.cuts == 1
