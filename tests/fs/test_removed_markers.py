"""What is asked for while segments are removed: aborted records do not show, also where the segment that tells of their
end was removed under an open file, and the log's size is that of what is left.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tree_bench import TreeBench, lines, remove_below, tree_bench, whole

from topicfs.engine.errors import CorruptError
from topicfs.engine.partition.partition import Producer
from topicfs.engine.record import MAX_INT64, Record
from topicfs.engine.segment.segment import Segment
from topicfs.fs.formats import Format
from topicfs.fs.views.rendered_segment import RenderedSegment


@pytest.fixture
def place(tmp_path: Path) -> Iterator[TreeBench]:
    with tree_bench(tmp_path) as made:
        yield made


@pytest.mark.parametrize("name", ["offset/0-1.txt", f"segments/{0:020d}.txt"])
def test_an_aborted_record_does_not_show_when_the_segment_of_its_marker_is_gone(
    place: TreeBench, name: str
) -> None:
    views = place.create()
    partition = views.partition
    lines(partition, b"one")
    partition.append(Record(b"never"), Producer(8, 0, 0, True))
    handle = place.files.open(f"/t-0/{name}", os.O_RDONLY).handle
    partition.roll()
    partition.end_transaction(8, 0, commit=False)
    partition.roll()
    views.rendered.keep_for_readers()
    remove_below(partition, 3)
    partition.log.remove_due(MAX_INT64)
    found = whole(lambda position, into: place.files.read(handle, position, into))
    place.files.release(handle)
    assert found == b"one\n"


def test_the_size_of_a_log_whose_first_segments_go_while_it_is_measured_is_that_of_the_rest(
    place: TreeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """regression: it was EIO where `file.delete.delay.ms` is 0"""
    views = place.create()
    partition, rendered = views.partition, views.rendered
    for value in (b"one", b"two", b"three"):
        lines(partition, value)
        partition.roll()
    find = rendered.of

    def remove_first(segment: Segment, fmt: Format) -> RenderedSegment:
        monkeypatch.setattr(rendered, "of", find)
        remove_below(partition, 2)
        partition.log.remove_due(MAX_INT64)
        return find(segment, fmt)

    monkeypatch.setattr(rendered, "of", remove_first)
    assert place.files.getattr("/t-0/log.txt", None).size == len(b"three\n")


def test_a_view_that_cannot_keep_up_holds_up_neither_the_others_nor_the_removal(
    place: TreeBench, caplog: pytest.LogCaptureFixture
) -> None:
    views = place.create()
    partition = views.partition
    lines(partition, b"one")
    damaged = place.files.open("/t-0/offset/0-0.txt", os.O_RDONLY).handle
    good = place.files.open("/t-0/offset/0-1.txt", os.O_RDONLY).handle
    (broken,) = [view for view in views.rendered.open_views if view.end_offset == 1]

    def fail() -> None:
        raise CorruptError("damaged")

    broken.keep_up = fail  # type: ignore[method-assign]
    partition.roll()
    lines(partition, b"two")
    partition.roll()
    views.before_removal(())
    assert "t-0: an open view may lack what is removed now: damaged" in caplog.text
    remove_below(partition, 2)
    partition.log.remove_due(MAX_INT64)
    assert whole(lambda position, into: place.files.read(good, position, into)) == b"one\ntwo\n"
    for handle in (damaged, good):
        place.files.release(handle)


def test_the_first_and_the_last_record_are_listed_where_the_log_begins_and_ends_with_none(
    place: TreeBench,
) -> None:
    views = place.create()
    partition = views.partition

    sequence = itertools.count()

    def ended(commit: bool, *values: bytes) -> None:
        for value in values:
            partition.append(Record(value), Producer(8, 0, next(sequence), True))
        partition.end_transaction(8, 0, commit)

    ended(False, b"never")
    assert set(place.files.readdir("/t-0/offset")) == {f"0-1.{fmt.suffix}" for fmt in Format}
    ended(True, b"one")
    ended(True, b"two", b"three")
    ended(False, b"never")
    listed = {"2", "5", *(f"0-8.{fmt.suffix}" for fmt in Format)}
    assert set(place.files.readdir("/t-0/offset")) == listed
    remove_below(partition, 3)
    listed = {"4", "5", *(f"3-8.{fmt.suffix}" for fmt in Format)}
    assert set(place.files.readdir("/t-0/offset")) == listed
    lines(partition, b"four")
    assert {"4", "9"} < set(place.files.readdir("/t-0/offset"))
