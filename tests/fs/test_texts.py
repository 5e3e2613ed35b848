"""The texts of a partition: one for each segment and format, and their size maps on the shelf."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest
from compacted import cleaner
from furnished import Furnished, furnished, lines, remove_below, view_of

from topicfs.engine.record import Record
from topicfs.fs.formats import Format
from topicfs.fs.shown import ShownPartition
from topicfs.fs.text import SegmentText
from topicfs.fs.view import View

TXT, JSONL = Format.TXT, Format.JSONL


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Furnished]:
    with furnished(tmp_path) as made:
        yield made


def never() -> bool:
    return False


def sealed(place: Furnished, segments: int = 3) -> ShownPartition:
    """A partition with so many sealed segments, two records each."""
    shown = place.create(file_delete_delay_ms=0)
    for number in range(segments):
        lines(shown.partition, b"a%d" % number, b"b%d" % number)
        shown.partition.roll()
    return shown


def look(shown: ShownPartition, *formats: Format) -> None:
    for fmt in formats:
        shown.log_size(fmt)


def test_the_same_segment_and_format_have_one_text(place: Furnished) -> None:
    shown = sealed(place)
    first, second = list(shown.partition.log.chain.segments)[:2]
    assert shown.texts.of(first, TXT) is shown.texts.of(first, TXT)
    assert shown.texts.of(first, TXT) is not shown.texts.of(first, JSONL)
    assert shown.texts.of(first, TXT) is not shown.texts.of(second, TXT)


def test_maps_are_kept_of_sealed_segments_in_the_formats_that_were_looked_at(place: Furnished) -> None:
    shown = sealed(place)
    assert shown.texts.keep_complete(never) == 0
    look(shown, TXT)
    assert shown.texts.keep_complete(never) == 3
    assert sorted(place.shelf.kept) == [("t-0", f"{base:020d}.txt.map") for base in (0, 2, 4)]
    look(shown, JSONL)
    assert shown.texts.keep_complete(never) == 3
    assert shown.texts.keep_complete(never) == 0


def test_keeping_ends_when_told(place: Furnished) -> None:
    shown = sealed(place)
    look(shown, TXT)
    answers = iter([False, True])
    assert shown.texts.keep_complete(lambda: next(answers)) == 1


def test_kept_maps_are_used_after_a_remount_and_nothing_is_read_for_them(place: Furnished) -> None:
    shown = sealed(place)
    look(shown, TXT, JSONL)
    sizes = [shown.log_size(fmt) for fmt in (TXT, JSONL)]
    shown.texts.keep_complete(never)
    place.reopen()
    shown = place.shown()
    with mock.patch.object(SegmentText, "_sizes", side_effect=AssertionError("a batch was looked at")):
        assert [shown.log_size(fmt) for fmt in (TXT, JSONL)] == sizes
    assert shown.texts.keep_complete(never) == 0
    assert place.read("/t-0/log.txt") == b"a0\nb0\na1\nb1\na2\nb2\n"


@pytest.mark.parametrize("damage", [b"", b"topicfs1", bytes(100)])
def test_a_damaged_map_is_made_anew(place: Furnished, damage: bytes) -> None:
    shown = sealed(place)
    look(shown, TXT)
    shown.texts.keep_complete(never)
    good = dict(place.shelf.kept)
    for key in good:
        place.shelf.kept[key] = damage
    place.reopen()
    shown = place.shown()
    assert place.read("/t-0/log.txt") == b"a0\nb0\na1\nb1\na2\nb2\n"
    assert shown.texts.keep_complete(never) == 3
    assert place.shelf.kept == good


def test_a_map_of_another_file_is_made_anew(place: Furnished) -> None:
    shown = sealed(place)
    look(shown, TXT)
    shown.texts.keep_complete(never)
    first, second, third = sorted(place.shelf.kept)
    place.shelf.kept[first], place.shelf.kept[third] = place.shelf.kept[second], place.shelf.kept[first]
    place.reopen()
    assert place.read("/t-0/log.txt") == b"a0\nb0\na1\nb1\na2\nb2\n"


def test_the_active_segment_has_no_map_on_the_shelf(place: Furnished) -> None:
    shown = place.create()
    lines(shown.partition, b"one")
    look(shown, TXT)
    assert shown.texts.keep_complete(never) == 0
    place.shelf.kept["t-0", f"{0:020d}.txt.map"] = b"old"
    place.reopen()
    assert place.read("/t-0/log.txt") == b"one\n"


def test_what_is_gone_is_forgotten_with_its_map(place: Furnished) -> None:
    shown = sealed(place)
    look(shown, TXT)
    shown.texts.keep_complete(never)
    remove_below(shown.partition, 4)
    shown.texts.forget_removed()
    assert sorted(place.shelf.kept) == [("t-0", f"{4:020d}.txt.map")]
    assert sorted(shown.texts._texts) == [(4, "txt"), (6, "txt")]
    assert place.read("/t-0/log.txt") == b"a2\nb2\n"


def test_what_is_there_is_not_forgotten(place: Furnished) -> None:
    shown = sealed(place)
    look(shown, TXT)
    shown.texts.keep_complete(never)
    before = dict(shown.texts._texts)
    shown.texts.forget_removed()
    assert shown.texts._texts == before
    assert len(place.shelf.kept) == 3


def test_a_segment_that_was_rewritten_twice_is_not_read_by_the_map_of_its_successor(place: Furnished) -> None:
    """regression: its file's name, with `.deleted`, was that of its successor, whose map fitted that file"""
    shown = place.create("keyed", cleanup_policy="compact", file_delete_delay_ms=1_000_000)
    log, by = shown.partition.log, cleaner()

    def put(value: bytes, *keys: bytes) -> None:
        shown.partition.append([Record(value, key) for key in keys])
        shown.partition.roll()

    def compact() -> None:
        by.clean(log, 0, log.chain.active.base_offset, place.clock.ms, lambda *_: None)

    put(b"x", b"a", b"b", b"c")
    with View.of_segment(shown.texts, Format.JSONL, log.chain.segments.first) as view:
        put(b"later", b"a")
        compact()
        shown.texts.of(log.chain.segments.first, Format.JSONL)
        assert shown.texts.keep_complete(never) == 1
        put(b"latest", b"b")
        compact()
        assert [b'"value":"x"' in line for line in view_of(view).splitlines()] == [True, True, True]
