"""A pass whose groups are written anew elsewhere gives what one in a single process gives: each file, byte for byte."""

from __future__ import annotations

import os
import pickle
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from compacted import DAY, Cleaning, cleaner, nothing
from partition_opening import without_fsync

from topicfs.engine.cleaner.clean import Cleaned, Work
from topicfs.engine.cleaner.distributed import (
    LastOffsets,
    Portion,
    Rewritten,
    passage,
    portions,
    rewritten,
    stretches,
    take,
)
from topicfs.engine.cleaner.rewrite import RewriteCounts
from topicfs.engine.errors import ClosedError, CorruptError
from topicfs.engine.segment.segment import Segment


@pytest.fixture(autouse=True)
def _fast() -> Iterator[None]:
    with without_fsync():
        yield


class Apart:
    """A pass over a topic, whose groups are written anew in a directory that is not the log's.

    place  where that is done
    end    offset behind what may be cleaned
    last   the offset of each key's last record
    """

    def __init__(self, topic: Cleaning, place: Path) -> None:
        self.topic = topic
        self.place = place
        self.end = uncleanable(topic)
        self.work = Work.take(topic.partition.log, self.end, nothing)
        self.groups: list[list[Segment]] = self.work.groups(self.work.sources)
        self.last = self._last()

    def portions(self) -> list[Portion]:
        """As they come where they are wanted."""
        lie = stretches(self.work, self.groups)
        passages = [pickle.loads(pickle.dumps(passage(each))) for each in lie[:-1]]
        made = portions(self.work, lie, passages, self.topic.clock.ms)
        return [pickle.loads(pickle.dumps(each)) for each in made]

    def rewritten(self, portion: Portion, name: str) -> Rewritten:
        start, end = portion.stretch.start, portion.stretch.end
        last = sorted(self.last.values())
        mine = np.array([offset - start for offset in last if start <= offset < end], np.uint32)
        (self.place / name).mkdir(parents=True)
        return rewritten(portion, [mine[::2], mine[1::2]], self.place / name)

    def _last(self) -> dict[bytes, int]:
        records = self.topic.partition.records()
        return {r.key: r.offset for r in records if r.key is not None and r.offset < self.end}  # type: ignore[misc]

    def clean(self) -> Cleaned:
        # The last group first: nobody waits for anybody.
        made = [self.rewritten(each, f"{number}") for number, each in reversed([*enumerate(self.portions())])]
        after = sum(take(self.work, group, each) for group, each in zip(self.groups, made[::-1], strict=True))
        counts = sum((each.counts for each in made), RewriteCounts())
        return Cleaned.of(counts, self.end, len(self.work.sources), after)


def uncleanable(topic: Cleaning) -> int:
    """The last segment's base below which all transactions are decided."""
    log = topic.partition.log
    floor = log.chain.segments.floor(min(log.chain.active.base_offset, log.snapshot.stable))
    assert floor is not None
    return floor.base_offset


def date(topic: Cleaning) -> None:
    """Segments get times that say which they are."""
    for segment in topic.partition.log.chain.segments:
        for path in topic.directory.glob(f"{segment.base_offset:020d}.*"):
            when = (1_600_000_000 + segment.base_offset) * 10**9
            os.utime(path, ns=(when, when))


def state(topic: Cleaning) -> dict[str, tuple[bytes, int]]:
    """All files of segments, and the times of those that have times of their own."""
    active = f"{topic.bases[-1]:020d}"

    def time(name: str) -> int:
        timed = not name.startswith(active) and not name.endswith(".txnindex")
        return (topic.directory / name).stat().st_mtime_ns if timed else 0

    return {name: (data, time(name)) for name, data in topic.files().items()}


class Both:
    """Two topics with the same records. One is cleaned in one process, the other apart.

    groups   of each clean
    """

    def __init__(self, place: Path, **settings: object) -> None:
        self.place = place
        self.one = Cleaning(place / "one" / "t-0", **settings)
        self.two = Cleaning(place / "two" / "t-0", **settings)
        self.groups: list[int] = []

    @property
    def topics(self) -> tuple[Cleaning, Cleaning]:
        return self.one, self.two

    def clean(self) -> Cleaned:
        for topic in self.topics:
            topic.partition.roll()
            date(topic)
            topic.clock.ms += 1
        before = state(self.one)
        assert state(self.two) == before
        segments = self.one.partition.log.chain.segments
        apart = Apart(self.two, self.place / f"{len(self.groups)}")
        end = uncleanable(self.one)
        if end == segments.first.base_offset:
            return Cleaned(end)
        self.groups.append(len(apart.groups))
        expected = cleaner().clean(
            self.one.partition.log, segments.first.base_offset, end, self.one.clock.ms, nothing
        )
        found = apart.clean()
        assert state(self.two) == state(self.one)
        assert (found.end_offset, found.segments_before, found.segments_after) == (
            expected.end_offset, expected.segments_before, expected.segments_after,
        )  # fmt: skip
        assert (found.bytes_read, found.bytes_written) == (expected.bytes_read, expected.bytes_written)
        assert (found.records_read, found.records_kept, found.invalid_records) == (
            expected.records_read, expected.records_kept, expected.invalid_records,
        )  # fmt: skip
        assert not [path for path in apart.place.rglob("*") if path.is_file()]
        return found

    def larger(self, **settings: object) -> None:
        """Other settings from here on."""
        for topic in self.topics:
            topic.settings.update(settings)
            topic.reopen()

    def check(self) -> None:
        for topic in self.topics:
            topic.check()


@pytest.fixture
def both(tmp_path: Path) -> Iterator[Both]:
    made = Both(tmp_path)
    yield made
    made.check()


@pytest.mark.parametrize("codec", ["uncompressed", "zstd", "lz4", "gzip", "snappy"])
def test_groups_of_any_codec_become_the_same_segments(tmp_path: Path, codec: str) -> None:
    both = Both(tmp_path, compression_type=codec)
    for topic in both.topics:
        for number in range(0, 200, 4):
            topic.put(*((f"key-{at % 23}", f"{at}" * 5) for at in range(number, number + 4)))
            topic.clock.ms += 10
    cleaned = both.clean()
    assert cleaned.records_kept == 23
    assert both.groups[0] > 2
    both.larger(segment_bytes=3000)
    for topic in both.topics:
        topic.put(("key-1", None), ("key-2", "x"))
    both.clean()
    both.check()


def test_tombstones_and_records_without_a_key_go_at_the_same_time(both: Both) -> None:
    for topic in both.topics:
        topic.unkeyed(b"x" * 100, b"y" * 100)
        for number in range(40):
            topic.put((number, "x" * 60), (number - 3, None))
        topic.unkeyed(b"z")
    first = both.clean()
    assert first.invalid_records == 3
    assert first.records_kept > 35
    for topic in both.topics:
        topic.put(("more", 1))
        topic.clock.ms += DAY
    assert both.clean().records_kept == 4, "three values that nothing deletes, and the one more"


def spanning(topic: Cleaning) -> None:
    """Transactions whose batches, and whose markers, are in different groups."""
    for producer in (1, 2, 3):
        topic.produce(producer, *((f"{producer}-{at}", "v" * 90) for at in range(3)), transactional=True)
    for number in range(40):
        topic.put((number % 5, "x" * 100))
    topic.produce(3, ("late", 1), transactional=True)
    topic.end(1, commit=True)
    for number in range(20):
        topic.put((number % 5, "y" * 100))
    topic.end(2, commit=False)
    topic.produce(1, ("second", 1), transactional=True)
    for number in range(20):
        topic.put((number % 5, "z" * 100))
    topic.end(3, commit=False)
    topic.end(1, commit=False)
    topic.put(("end", 1))


def test_a_marker_is_known_to_be_needed_where_its_batches_are_in_a_group_before(both: Both) -> None:
    for topic in both.topics:
        spanning(topic)
    both.clean()
    assert both.groups[0] > 4
    assert [producer for producer, _, _ in both.two.aborted()] == [2, 3, 1]
    assert len(both.two.markers()) == 4
    # What was aborted is gone, but for producers' last batches. With others behind those, the markers get their
    # horizons, and then go.
    for wait in (0, 0, DAY):
        for topic in both.topics:
            topic.clock.ms += wait
            for producer in (1, 2, 3):
                topic.produce(producer, ("end", wait))
        both.clean()
    assert both.two.aborted() == []
    assert len(both.two.markers()) == 1


def test_the_passages_of_groups_tell_whose_transactions_are_pending(both: Both) -> None:
    for topic in both.topics:
        spanning(topic)
        topic.partition.roll()
    apart = Apart(both.two, both.place / "work")
    found = [set(portion.pending) for portion in apart.portions()]
    assert found[0] == set()
    assert {1, 2, 3} in found
    assert found[-1] < {1, 2, 3}
    assert all(len(portion.aborted) <= 3 for portion in apart.portions())


def test_an_open_transaction_ends_what_is_cleaned(both: Both) -> None:
    for topic in both.topics:
        for number in range(30):
            topic.put((number % 3, "x" * 100))
        topic.produce(9, ("a", 1), transactional=True)
        for number in range(30):
            topic.put((number % 3, "x" * 100))
        topic.partition.roll()
    assert both.clean().end_offset <= 30


def do(topic: Cleaning, seed: int) -> None:
    """Some records of every kind, the same ones for the same seed."""
    chance = random.Random(seed)
    running: set[int] = set()
    for _ in range(chance.randrange(40, 160)):
        topic.clock.ms += chance.randrange(3)
        pairs = [
            (f"k{chance.randrange(30)}", None if chance.random() < 0.1 else "v" * chance.randrange(80))
            for _ in range(chance.randrange(1, 5))
        ]
        what = chance.random()
        producer = chance.randrange(1, 5)
        if what < 0.4:
            topic.put(*pairs)
        elif what < 0.75:
            running.add(producer)
            topic.produce(producer, *pairs, transactional=True)
        elif what < 0.85:
            topic.produce(producer + 10, *pairs)
        elif what < 0.88:
            topic.unkeyed(b"u" * 30)
        elif running:
            producer = chance.choice(sorted(running))
            running.discard(producer)
            topic.end(producer, commit=chance.random() < 0.5)
    for producer in sorted(running):
        if chance.random() < 0.8:
            topic.end(producer, commit=chance.random() < 0.5)


@pytest.mark.parametrize("seed", range(5))
def test_any_log_becomes_the_same_over_several_passes(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    both = Both(
        tmp_path,
        compression_type=chance.choice(["uncompressed", "uncompressed", "lz4"]),
        message_timestamp_type=chance.choice(["CreateTime", "LogAppendTime"]),
        segment_bytes=chance.choice([600, 1000, 2500]),
        delete_retention_ms=chance.choice([0, 50, DAY]),
    )
    for number in range(4):
        for topic in both.topics:
            do(topic, seed * 10 + number)
        both.clean()
    assert max(both.groups) > 1
    # Whoever's transaction is still open at the end: recovery agrees.
    both.check()


# -- attempts -----------------------------------------------------------------------------------------


def some(topic: Cleaning) -> Apart:
    for number in range(60):
        topic.put((number % 7, "x" * 100))
    topic.partition.roll()
    return Apart(topic, topic.directory.parent / "work")


def test_nothing_in_the_log_changes_before_what_was_made_is_taken(both: Both) -> None:
    apart = some(both.two)
    before = state(both.two)
    share = apart.portions()[0]
    first, second = apart.rewritten(share, "first"), apart.rewritten(share, "second")
    assert state(both.two) == before
    names = [path.name for path in sorted(first.directory.iterdir())]
    assert names == [path.name for path in sorted(second.directory.iterdir())]
    shutil.rmtree(first.directory)  # an attempt that was not the one that counts
    left = both.two.directory / f"{second.bases[0]:020d}.txnindex.cleaned"
    left.write_bytes(b"of another attempt")
    take(apart.work, apart.groups[0], second)
    assert not list(second.directory.iterdir())
    assert not left.with_suffix("").exists()
    assert both.two.values()[0] == "x" * 100


def test_what_is_lost_before_it_is_taken_leaves_the_log_as_it_is(both: Both) -> None:
    apart = some(both.two)
    before = state(both.two)
    made = apart.rewritten(apart.portions()[0], "first")
    next(made.directory.glob("*.timeindex.*")).unlink()
    with pytest.raises(FileNotFoundError):
        take(apart.work, apart.groups[0], made)
    assert state(both.two) == before


def test_a_log_that_was_closed_takes_nothing(both: Both) -> None:
    apart = some(both.two)
    made = apart.rewritten(apart.portions()[0], "first")
    both.two.reopen()
    before = state(both.two)
    with pytest.raises(ClosedError):
        take(apart.work, apart.groups[0], made)
    assert state(both.two) == before


def test_an_attempt_that_fails_leaves_nothing_of_its_group(both: Both) -> None:
    apart = some(both.two)
    share = apart.portions()[0]
    path = both.two.directory / f"{share.stretch.start:020d}.log"
    good = path.read_bytes()
    path.write_bytes(good[:-1] + b"\xff")
    with pytest.raises(CorruptError):
        apart.rewritten(share, "first")
    assert not list((apart.place / "first").iterdir())
    assert not [each for each in both.two.directory.iterdir() if ".cleaned" in each.name]
    path.write_bytes(good)
    date(both.two)
    take(apart.work, apart.groups[0], apart.rewritten(share, "second"))


def test_a_gap_behind_a_group_takes_no_memory() -> None:
    last = LastOffsets.of(5, 10**15, [np.array([0, 9], np.int64)])
    assert last.outdated.size == 2**31 // 8
    assert [int(last.outdated[at >> 3]) >> (at & 7) & 1 for at in range(10)] == [0, *[1] * 8, 0]
