"""Views: spans over segments, growth, removal, and what is kept for who has them open."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from compacted import cleaner
from hypothesis import given, settings
from hypothesis import strategies as st
from tree_bench import ALL, TreeBench, lines, remove_below, tree_bench, view_of

from topicfs.engine.errors import ClosedError, CorruptError
from topicfs.engine.partition.partition import Producer
from topicfs.engine.record import Record
from topicfs.fs.formats import Format
from topicfs.fs.views.partition_views import PartitionViews
from topicfs.fs.views.rendered_segment import RenderedSegment
from topicfs.fs.views.view import View

TXT = Format.TXT


@pytest.fixture
def place(tmp_path: Path) -> Iterator[TreeBench]:
    with tree_bench(tmp_path) as made:
        yield made


@pytest.fixture
def views(place: TreeBench) -> PartitionViews:
    return place.create(file_delete_delay_ms=0)


def numbered(views: PartitionViews, first: int, end: int, each: int = 2) -> None:
    """Records `r0`, `r1` …, a segment for so many."""
    for number in range(first, end):
        lines(views.partition, b"r%d" % number)
        if (number + 1) % each == 0:
            views.partition.roll()


def text(first: int, end: int) -> bytes:
    return b"".join(b"r%d\n" % number for number in range(first, end))


def test_a_view_spans_segments(views: PartitionViews) -> None:
    numbered(views, 0, 9)
    for start in range(10):
        for end in (None, *range(12)):
            with View.open(views.rendered, TXT, start, end) as view:
                assert view_of(view) == text(start, 9 if end is None else min(end, 9))


def test_a_window_of_a_view_has_its_bytes_and_none_of_another(views: PartitionViews) -> None:
    numbered(views, 0, 9)
    for start in range(10):
        for end in (None, *range(start, 12)):
            with View.open(views.rendered, TXT, start, end) as view:
                whole = view_of(view)
                for position in range(len(whole)):
                    found = view.window(position)
                    assert found is not None
                    begin, data = found
                    assert begin <= position < begin + data.size
                    assert data.tobytes() == whole[begin : begin + data.size]
                beyond = view.window(len(whole))
                assert beyond is None or whole.endswith(beyond[1].tobytes())


def test_where_a_view_with_an_end_ends_is_measured_once(views: PartitionViews) -> None:
    numbered(views, 0, 9, each=20)
    with View.open(views.rendered, TXT, 2, 7) as view:
        assert view_of(view) == text(2, 7)
        with mock.patch.object(RenderedSegment, "position_of", side_effect=AssertionError("measured again")):
            assert view_of(view) == text(2, 7)
            assert view.window(0) is not None


def test_a_view_has_no_window_on_what_is_not_in_memory(views: PartitionViews) -> None:
    numbered(views, 0, 9)
    with View.open(views.rendered, TXT, 0) as view:
        assert view.window(0) is None
        view_of(view)
        assert view.window(0) is not None


def test_reads_of_any_size_at_any_place(views: PartitionViews) -> None:
    numbered(views, 0, 9)
    whole = text(1, 8)
    with View.open(views.rendered, TXT, 1, 8) as view:
        for position in range(len(whole) + 3):
            for length in range(0, 12):
                into = np.zeros(length, np.uint8)
                done = view.read(position, into)
                assert into[:done].tobytes() == whole[position : position + length]


@pytest.mark.parametrize("fmt", ALL)
def test_an_open_end_grows_over_rolls_and_a_set_end_stops_there(views: PartitionViews, fmt: Format) -> None:
    numbered(views, 0, 3)
    with View.open(views.rendered, fmt, 1) as growing, View.open(views.rendered, fmt, 1, 5) as ending:
        sizes = []
        for number in range(3, 9):
            numbered(views, number, number + 1)
            sizes.append((growing.size(), ending.size()))
            assert len(view_of(growing).splitlines()) == number
            assert len(view_of(ending).splitlines()) == min(number, 4)
    assert sizes == sorted(sizes)


@pytest.mark.parametrize("rolled", [False, True])
@pytest.mark.parametrize("end", [None, 8])
def test_a_view_that_begins_behind_the_end_shows_only_what_comes_from_there_on(
    views: PartitionViews, end: int | None, rolled: bool
) -> None:
    """regression: what came next was shown, whatever its offset"""
    numbered(views, 0, 3, each=100)
    with View.open(views.rendered, TXT, 6, end) as view:
        assert view_of(view) == b""
        for number in range(3, 10):
            numbered(views, number, number + 1, each=2 if rolled else 100)
            assert view_of(view) == text(6, min(number + 1, end or 99))


def test_a_segments_view_ends_with_the_segment(views: PartitionViews) -> None:
    """regression: opened on the active segment, it went on in the next one"""
    numbered(views, 0, 3, each=100)
    segment = views.partition.log.chain.active
    with View.of_segment(views.rendered, TXT, segment) as view:
        numbered(views, 3, 4, each=100)
        assert view_of(view) == text(0, 4)
        views.partition.roll()
        numbered(views, 4, 6, each=100)
        assert view_of(view) == text(0, 4)
        remove_below(views.partition, 5)
        assert view_of(view) == text(0, 4)


def test_a_segment_that_is_gone_cannot_be_opened(place: TreeBench, views: PartitionViews) -> None:
    numbered(views, 0, 4)
    segment = views.partition.log.chain.segments.first
    remove_below(views.partition, 3)
    with pytest.raises(ClosedError):
        View.of_segment(views.rendered, TXT, segment)


def test_what_is_removed_stays_for_who_has_it_open(views: PartitionViews) -> None:
    numbered(views, 0, 8)
    with View.open(views.rendered, TXT, 1) as view:
        remove_below(views.partition, 7)
        views.partition.log.remove_due(2**60)
        assert view_of(view) == text(1, 8)
        numbered(views, 8, 11)
        assert view_of(view) == text(1, 11)
    assert views.partition.log.remove_due(2**60) > 0
    assert not list(views.partition.directory.glob("*.deleted"))


def test_segments_that_come_while_it_is_open_are_kept_as_well(views: PartitionViews) -> None:
    with View.open(views.rendered, TXT, 0) as view:
        for number in range(8):
            numbered(views, number, number + 1)
            assert view.size() == len(text(0, number + 1))
        remove_below(views.partition, 8)
        views.partition.log.remove_due(2**60)
        assert view_of(view) == text(0, 8)


def test_what_was_read_past_can_be_let_go(views: PartitionViews) -> None:
    numbered(views, 0, 8)
    with View.open(views.rendered, TXT, 0) as view:
        assert view.size() == len(text(0, 8))
        view.release_below(len(text(0, 5)))
        remove_below(views.partition, 8)
        views.partition.log.remove_due(2**60)
        left = {int(path.name[:20]) for path in views.partition.directory.glob("*.log.deleted")}
        assert left == {4, 6}
        into = np.zeros(100, np.uint8)
        done = view.read(len(text(0, 4)), into)
        assert into[:done].tobytes() == text(4, 8)


def test_a_closed_view_holds_nothing(views: PartitionViews) -> None:
    numbered(views, 0, 4)
    View.open(views.rendered, TXT, 0).close()
    assert [segment.pins for segment in views.partition.log.chain.segments] == [0, 0, 0]


def test_the_place_of_an_offset(views: PartitionViews) -> None:
    numbered(views, 0, 9)
    with View.open(views.rendered, TXT, 2) as view:
        for offset in range(12):
            assert view.position_of(offset) == len(text(2, max(2, min(offset, 9))))


# -- transactions -------------------------------------------------------------------------------------------


def test_an_open_transaction_stops_the_view_until_it_ends(views: PartitionViews) -> None:
    partition = views.partition
    lines(partition, b"before")
    with View.open(views.rendered, TXT, 0) as view:
        partition.append(Record(b"in one"), Producer(7, 0, 0, True))
        partition.roll()
        lines(partition, b"after")
        assert view_of(view) == b"before\n"
        partition.end_transaction(7, 0, commit=True)
        assert view_of(view) == b"before\nin one\nafter\n"


def test_an_aborted_transaction_never_shows(views: PartitionViews) -> None:
    partition = views.partition
    with View.open(views.rendered, TXT, 0) as view:
        partition.append(Record(b"one"), Producer(7, 0, 0, True))
        partition.roll()
        partition.append(Record(b"two"), Producer(7, 0, 1, True))
        lines(partition, b"beside")
        partition.roll()
        partition.end_transaction(7, 0, commit=False)
        assert view_of(view) == b"beside\n"
    with View.open(views.rendered, TXT, 0) as view:
        assert view_of(view) == b"beside\n"


# -- any span -----------------------------------------------------------------------------------------------


@settings(max_examples=30)
@given(
    counts=st.lists(st.integers(1, 5), min_size=1, max_size=8),
    start=st.integers(0, 40),
    length=st.integers(0, 40) | st.none(),
    fmt=st.sampled_from(ALL),
)
def test_any_span_is_its_records(
    tmp_path_factory: pytest.TempPathFactory,
    counts: list[int],
    start: int,
    length: int | None,
    fmt: Format,
) -> None:
    with tree_bench(tmp_path_factory.mktemp("span")) as made:
        views = made.create()
        for number, count in enumerate(counts):
            views.partition.append([Record(b"v%d" % each, b"k") for each in range(count)])
            if number % 3 == 2:
                views.partition.roll()
        total = sum(counts)
        each = []
        for offset in range(total):
            with View.open(views.rendered, fmt, offset, offset + 1) as view:
                each.append(view_of(view))
        end = None if length is None else start + length
        with View.open(views.rendered, fmt, start, end) as view:
            assert view_of(view) == b"".join(each[start : total if end is None else end])


@pytest.fixture
def compacting(place: TreeBench) -> PartitionViews:
    """A compacted partition."""
    return place.create(cleanup_policy="compact", file_delete_delay_ms=0)


def keyed(views: PartitionViews, keys: str) -> None:
    """A record for each key, each in a segment of its own."""
    for key in keys:
        views.partition.append([Record(b"of %s" % key.encode(), key.encode())])
        views.partition.roll()


def compact(views: PartitionViews) -> None:
    """Make one segment of those that are sealed."""
    log = views.partition.log
    cleaner().clean(log, 0, log.chain.active.base_offset, log.clock(), lambda *_: None)


def test_a_rewritten_segment_keeps_its_records_while_what_took_its_place_is_rewritten(
    compacting: PartitionViews,
) -> None:
    """regression: before the second clean, records of the segment in its place were counted to it"""
    keyed(compacting, "abc")
    first, second = compacting.partition.log.chain.segments.non_active[:2]
    with (
        View.of_segment(compacting.rendered, TXT, first) as one,
        View.of_segment(compacting.rendered, TXT, second) as two,
    ):
        assert one.size() == two.size() == 5
        for more in ("d", "ef"):
            compact(compacting)
            keyed(compacting, more)
        assert (view_of(one), view_of(two)) == (b"of a\n", b"of b\n")


def test_a_list_that_a_rewritten_segment_has_left_adds_nothing_to_its_text(
    compacting: PartitionViews,
) -> None:
    keyed(compacting, "abc")
    log = compacting.partition.log
    first = log.chain.segments.first
    with View.of_segment(compacting.rendered, TXT, first) as view:
        assert view.size() == 5
        compact(compacting)
        keyed(compacting, "d")
        text_of = compacting.rendered.of(first, TXT)
        assert text_of.size(log.snapshot) == 5
        assert view_of(view) == b"of a\n"


@pytest.mark.parametrize("failing", ["shows_all_from", "size"])
def test_an_open_of_the_log_that_fails_keeps_nothing(
    views: PartitionViews, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    """What an open has pinned goes with its error: else it would stay on disk until the daemon ends."""
    numbered(views, 0, 6)

    def fail(*_: object) -> int:
        raise OSError(errno.EMFILE, "no descriptor is free")

    first = views.shared_log.join(TXT)
    with monkeypatch.context() as patch:
        patch.setattr(View, failing, fail)
        if failing == "size":
            # Something was rewritten, so the next reader needs a view of its own.
            patch.setattr(View, "shows_all_from", lambda *_: False)
        for _ in range(3):
            with pytest.raises(OSError, match="no descriptor is free"):
                views.shared_log.join(TXT)
    assert len(views.rendered.open_views) == 1
    assert views.shared_log.readers == 1
    first.close()
    assert [segment.pins for segment in views.partition.log.snapshot.segments] == [0, 0, 0, 0]


def test_bytes_that_are_missing_are_an_error_and_no_endless_search(
    views: PartitionViews, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The view holds a segment that is gone, and an undecided transaction keeps it from taking up the last ones."""
    numbered(views, 0, 6)
    with View.open(views.rendered, TXT, 0) as view:
        views.partition.append(Record(b"undecided"), Producer(7, 0, 0, transactional=True))
        numbered(views, 7, 12)
        remove_below(views.partition, 2)
        assert view.size() == len(text(0, 6))
        reads: list[int] = []

        def nothing(*_: object) -> int:
            reads.append(0)
            assert len(reads) < 100, "it is read again and again"
            return 0

        monkeypatch.setattr(RenderedSegment, "read", nothing)
        with pytest.raises(CorruptError, match="is missing"):
            view.read(0, np.zeros(10, np.uint8))
