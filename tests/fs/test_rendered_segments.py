"""Rendered segments of a partition: one for each segment and format, and their size maps in the view cache."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest
from compacted import cleaner
from memory_view_cache import MemoryViewCache
from tree_bench import TreeBench, lines, remove_below, tree_bench, view_of

from topicfs import Store
from topicfs.engine.record import Record
from topicfs.fs.formats import Format
from topicfs.fs.operations import FileSystem
from topicfs.fs.views.partition_views import PartitionViews
from topicfs.fs.views.rendered_segment import RenderedSegment
from topicfs.fs.views.view import View

TXT, JSONL = Format.TXT, Format.JSONL


@pytest.fixture
def place(tmp_path: Path) -> Iterator[TreeBench]:
    with tree_bench(tmp_path) as made:
        yield made


def never() -> bool:
    return False


def sealed(place: TreeBench, segments: int = 3) -> PartitionViews:
    """A partition with so many sealed segments, two records each."""
    views = place.create(file_delete_delay_ms=0)
    for number in range(segments):
        lines(views.partition, b"a%d" % number, b"b%d" % number)
        views.partition.roll()
    return views


def look(views: PartitionViews, *formats: Format) -> None:
    for fmt in formats:
        views.log_size(fmt)


def test_the_same_segment_and_format_have_one_text(place: TreeBench) -> None:
    views = sealed(place)
    first, second = list(views.partition.log.chain.segments)[:2]
    assert views.rendered.of(first, TXT) is views.rendered.of(first, TXT)
    assert views.rendered.of(first, TXT) is not views.rendered.of(first, JSONL)
    assert views.rendered.of(first, TXT) is not views.rendered.of(second, TXT)


def test_maps_are_kept_of_sealed_segments_in_the_formats_that_were_looked_at(place: TreeBench) -> None:
    views = sealed(place)
    assert views.rendered.keep_complete(never) == 0
    look(views, TXT)
    assert views.rendered.keep_complete(never) == 3
    assert sorted(place.view_cache.kept) == [("t-0", f"{base:020d}.txt.map") for base in (0, 2, 4)]
    look(views, JSONL)
    assert views.rendered.keep_complete(never) == 3
    assert views.rendered.keep_complete(never) == 0


def test_keeping_ends_when_told(place: TreeBench) -> None:
    views = sealed(place)
    look(views, TXT)
    answers = iter([False, True])
    assert views.rendered.keep_complete(lambda: next(answers)) == 1


def test_kept_maps_are_used_after_a_remount_and_nothing_is_read_for_them(place: TreeBench) -> None:
    views = sealed(place)
    look(views, TXT, JSONL)
    sizes = [views.log_size(fmt) for fmt in (TXT, JSONL)]
    views.rendered.keep_complete(never)
    place.reopen()
    views = place.views()
    with mock.patch.object(RenderedSegment, "_batches", side_effect=AssertionError("a batch was looked at")):
        assert [views.log_size(fmt) for fmt in (TXT, JSONL)] == sizes
    assert views.rendered.keep_complete(never) == 0
    assert place.read("/t-0/log.txt") == b"a0\nb0\na1\nb1\na2\nb2\n"


@pytest.mark.parametrize("damage", [b"", b"topicfs2", bytes(100)])
def test_a_damaged_map_is_made_anew(place: TreeBench, damage: bytes) -> None:
    views = sealed(place)
    look(views, TXT)
    views.rendered.keep_complete(never)
    good = dict(place.view_cache.kept)
    for key in good:
        place.view_cache.kept[key] = damage
    place.reopen()
    views = place.views()
    assert place.read("/t-0/log.txt") == b"a0\nb0\na1\nb1\na2\nb2\n"
    assert views.rendered.keep_complete(never) == 3
    assert place.view_cache.kept == good


def test_a_map_of_another_file_is_made_anew(place: TreeBench) -> None:
    views = sealed(place)
    look(views, TXT)
    views.rendered.keep_complete(never)
    first, second, third = sorted(place.view_cache.kept)
    place.view_cache.kept[first], place.view_cache.kept[third] = (
        place.view_cache.kept[second],
        place.view_cache.kept[first],
    )
    place.reopen()
    assert place.read("/t-0/log.txt") == b"a0\nb0\na1\nb1\na2\nb2\n"


def test_the_active_segment_has_no_map_on_the_shelf(place: TreeBench) -> None:
    views = place.create()
    lines(views.partition, b"one")
    look(views, TXT)
    assert views.rendered.keep_complete(never) == 0
    place.view_cache.kept["t-0", f"{0:020d}.txt.map"] = b"old"
    place.reopen()
    assert place.read("/t-0/log.txt") == b"one\n"


def test_what_is_gone_is_forgotten_with_its_map(place: TreeBench) -> None:
    views = sealed(place)
    look(views, TXT)
    views.rendered.keep_complete(never)
    remove_below(views.partition, 4)
    views.rendered.forget_removed()
    assert sorted(place.view_cache.kept) == [("t-0", f"{4:020d}.txt.map")]
    assert sorted(views.rendered._rendered) == [(4, "txt"), (6, "txt")]
    assert place.read("/t-0/log.txt") == b"a2\nb2\n"


def test_what_is_there_is_not_forgotten(place: TreeBench) -> None:
    views = sealed(place)
    look(views, TXT)
    views.rendered.keep_complete(never)
    before = dict(views.rendered._rendered)
    views.rendered.forget_removed()
    assert views.rendered._rendered == before
    assert len(place.view_cache.kept) == 3


def test_a_segment_that_was_rewritten_twice_is_not_read_by_the_map_of_its_successor(place: TreeBench) -> None:
    """regression: its file's name, with `.deleted`, was that of its successor, whose map fitted that file"""
    views = place.create("keyed", cleanup_policy="compact", file_delete_delay_ms=1_000_000)
    log, by = views.partition.log, cleaner()

    def put(value: bytes, *keys: bytes) -> None:
        views.partition.append([Record(value, key) for key in keys])
        views.partition.roll()

    def compact() -> None:
        by.clean(log, 0, log.chain.active.base_offset, place.clock.ms, lambda *_: None)

    put(b"x", b"a", b"b", b"c")
    with View.of_segment(views.rendered, Format.JSONL, log.chain.segments.first) as view:
        put(b"later", b"a")
        compact()
        views.rendered.of(log.chain.segments.first, Format.JSONL)
        assert views.rendered.keep_complete(never) == 1
        put(b"latest", b"b")
        compact()
        assert [b'"value":"x"' in line for line in view_of(view).splitlines()] == [True, True, True]


def test_no_map_is_saved_for_a_file_that_took_the_name_of_a_segment_beside_a_read_only_store(
    place: TreeBench,
) -> None:
    written = sealed(place).partition
    with Store.open(place.place, place.settings, place.clock, read_only=True) as store:
        view_cache = MemoryViewCache()
        files = FileSystem(store, view_cache)
        shown = files.context.views("t", 0)
        look(shown, TXT)
        first, *_, last = written.log.chain.segments.non_active
        other = place.place / "other"
        other.write_bytes(last.path.read_bytes())
        other.rename(first.path)
        files.keep_maps()
        assert ("t-0", f"{first.base_offset:020d}.txt.map") not in view_cache.kept
        assert ("t-0", f"{last.base_offset:020d}.txt.map") in view_cache.kept
        files.close()
