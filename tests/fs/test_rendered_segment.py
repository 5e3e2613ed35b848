"""One segment in one format: sizes, places and bytes, with marks and blocks that are far smaller than in life."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from patience import PATIENCE_S
from plain_formats import CODECS
from tree_bench import TreeBench, lines, tree_bench, whole

from topicfs.engine.partition.partition import Producer
from topicfs.engine.partition.snapshot import Snapshot
from topicfs.engine.record import Codec, Record
from topicfs.fs.formats import Format
from topicfs.fs.views import rendered_segment as texts_module
from topicfs.fs.views import size_map as sizemap
from topicfs.fs.views.partition_views import PartitionViews
from topicfs.fs.views.rendered_segment import RenderedSegment


@pytest.fixture
def place(tmp_path: Path) -> Iterator[TreeBench]:
    with (
        tree_bench(tmp_path) as made,
        mock.patch.object(sizemap, "GRAIN", 200),
        mock.patch.object(texts_module, "BLOCK", 500),
    ):
        yield made


def text_of(views: PartitionViews, fmt: Format = Format.TXT) -> RenderedSegment:
    return views.rendered.of(views.partition.log.chain.segments.first, fmt)


def now(views: PartitionViews) -> Snapshot:
    return views.partition.log.snapshot


def read_all(views: PartitionViews, text: RenderedSegment, chunk: int = 1000) -> bytes:
    return whole(lambda position, into: text.read(position, into, now(views)), chunk)


def test_it_grows_with_its_segment_and_no_further(place: TreeBench) -> None:
    views = place.create()
    text = text_of(views)
    for number in range(1, 30):
        lines(views.partition, b"x" * number)
        assert text.size(now(views)) == sum(each + 1 for each in range(1, number + 1))
        assert not text.is_complete(now(views))
    views.partition.roll()
    before = text.size(now(views))
    lines(views.partition, b"next")
    assert text.size(now(views)) == before
    assert text.is_complete(now(views))


def test_it_is_complete_only_when_nothing_in_it_is_undecided(place: TreeBench) -> None:
    views = place.create()
    text = text_of(views)
    lines(views.partition, b"plain")
    views.partition.append(Record(b"open"), Producer(7, 0, 0, True))
    views.partition.roll()
    assert not text.is_complete(now(views))
    assert read_all(views, text) == b"plain\n"
    views.partition.end_transaction(7, 0, commit=True)
    assert text.is_complete(now(views))
    assert read_all(views, text) == b"plain\nopen\n"


@settings(max_examples=25)
@given(
    sizes=st.lists(st.lists(st.integers(0, 60), min_size=1, max_size=6), min_size=1, max_size=30),
    fmt=st.sampled_from(list(Format)),
    codec=CODECS,
    places=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 900)), max_size=12),
)
def test_any_part_is_that_part_of_the_whole(
    tmp_path_factory: pytest.TempPathFactory,
    sizes: list[list[int]],
    fmt: Format,
    codec: Codec,
    places: list[tuple[float, int]],
) -> None:
    with (
        tree_bench(tmp_path_factory.mktemp("text")) as made,
        mock.patch.object(sizemap, "GRAIN", 200),
        mock.patch.object(texts_module, "BLOCK", 500),
    ):
        name = {Codec.NONE: "uncompressed"}.get(codec, codec.name.lower())
        views = made.create(compression_type=name)
        for each in sizes:
            views.partition.append([Record(b"v" * size, b"k") for size in each])
        text = text_of(views, fmt)
        expected = read_all(views, RenderedSegment(views.partition, text.segment, fmt, None))
        assert text.size(now(views)) == len(expected)
        assert expected.count(b"\n") == sum(map(len, sizes))
        for part, length in places:
            position = round(part * (len(expected) + 2))
            into = np.full(length, 0xA5, np.uint8)
            done = text.read(position, into, now(views))
            assert into[:done].tobytes() == expected[position : position + length]
            assert (into[done:] == 0xA5).all()
        assert read_all(views, text, chunk=173) == expected
        starts = np.cumsum([0] + [len(line) for line in expected.splitlines(keepends=True)])
        for offset, start in enumerate(starts):
            assert text.position_of(offset, now(views)) == start


def test_an_offset_behind_the_segment_is_its_end(place: TreeBench) -> None:
    """regression: what the next segment holds below the offset was counted, where it was mapped with an older list"""
    views = place.create()
    text = text_of(views)
    lines(views.partition, b"one", b"two")
    older = views.partition.log.chain.segments
    views.partition.roll()
    lines(views.partition, b"three", b"four", b"five")
    assert text.size(now(views).of(older)) == 8
    for offset in (2, 3, 4, 5, 9):
        assert text.position_of(offset, now(views)) == 8


def test_a_reader_whose_offsets_are_older_than_the_map_comes_to_an_end(place: TreeBench) -> None:
    """regression: it asked for the same block again and again"""
    views = place.create()
    text = text_of(views)
    lines(views.partition, b"a" * 50)
    older = now(views)
    lines(views.partition, b"b" * 50)
    text.size(now(views))
    found: list[int] = []
    reader = threading.Thread(
        target=lambda: found.append(text.read(0, np.zeros(500, np.uint8), older)), daemon=True
    )
    reader.start()
    reader.join(PATIENCE_S)
    assert found == [51]
    assert read_all(views, text) == b"a" * 50 + b"\n" + b"b" * 50 + b"\n"


def test_what_was_rendered_is_forgotten_when_told(place: TreeBench) -> None:
    views = place.create()
    lines(views.partition, b"x" * 100)
    text = text_of(views)
    assert read_all(views, text)
    assert text._blocks
    text.forget_blocks()
    assert not text._blocks
    assert read_all(views, text) == b"x" * 100 + b"\n"


def test_a_batch_that_is_noted_is_mapped_as_if_it_were_read(place: TreeBench) -> None:
    views = place.create()
    text = text_of(views)
    for number in range(40):
        # Through a file: its writer notes each batch.
        place.append("/t-0/log.txt", b"y" * number + b"\n")
    assert text.map.next_offset == 40
    read = RenderedSegment(views.partition, text.segment, Format.TXT, None)
    read.size(now(views))
    assert text.map.marks.tolist() == read.map.marks.tolist()
    assert text.map.rendered == read.map.rendered
