"""Segments in a directory of their own, for the tests of one segment."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from test_scan import table_of

from topicfs.engine.kernels.scan import BASE_OFFSET, POSITION, SIZE
from topicfs.engine.segment.descriptors import Descriptors
from topicfs.engine.segment.segment import Segment
from topicfs.engine.segment.settings import SegmentSettings

MAX_INT32 = 2**31 - 1


class Now:
    """A clock that stands still until moved."""

    def __init__(self) -> None:
        self.ms = 1_000_000

    def __call__(self) -> int:
        return self.ms


class SegmentBench:
    """Segments in a directory of their own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.clock = Now()
        self.descriptors = Descriptors(8)
        self.opened: list[Segment] = []

    def create(self, base: int = 0, suffix: str = "", **settings: object) -> Segment:
        chosen = SegmentSettings(**{"index_interval_bytes": 100, "max_index_bytes": 1000, **settings})  # type: ignore[arg-type]
        segment = Segment.create(self.directory, base, chosen, self.clock, self.descriptors, suffix)
        self.opened.append(segment)
        return segment

    def load(self, segment: Segment, suffix: str = "") -> Segment:
        again = Segment(
            self.directory, segment.base_offset, segment.settings, self.clock, self.descriptors, suffix=suffix
        )
        self.opened.append(again)
        return again

    def reopen(self, segment: Segment) -> Segment:
        segment.close()
        return self.load(segment)

    def names(self) -> list[str]:
        return sorted(path.name.lstrip("0") for path in self.directory.iterdir())


def add(segment: Segment, *data: bytes) -> None:
    joined = b"".join(data)
    segment.append(joined, table_of(joined))


def bases(segment: Segment) -> list[int]:
    return [int(base) for _, table in segment.log.batches() for base in table[:, BASE_OFFSET]]


def check_lookups(segment: Segment) -> None:
    """Every offset and timestamp is found where a plain walk finds it."""
    for _, table in segment.log.batches():
        for row in table.tolist():
            assert segment.position_of(row[3]) == (row[POSITION], row[SIZE], row[2], row[3])
            found = segment.finder.offset_by_timestamp(row[7], segment.base_offset)
            assert found is not None
            assert found[0] >= row[7]


def segment_bench(directory: Path) -> Iterator[SegmentBench]:
    """A bench whose segments are closed at the end."""
    made = SegmentBench(directory)
    yield made
    for segment in made.opened:
        if not segment.log.file.gone:
            segment.close()
