"""Names of segments that compaction rewrites between a look-up and the open behind it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest
from compacted import cleaner
from tree_bench import TreeBench, remove_below, tree_bench, whole

from topicfs.engine.record import Record
from topicfs.fs import errors
from topicfs.fs.entry import Entry, Handle
from topicfs.fs.fuse.adapter import VERSION_SHIFT
from topicfs.fs.tree.segments import RawFile, SegmentFile

KINDS = {"log": RawFile, "jsonl": SegmentFile}


@pytest.fixture
def place(tmp_path: Path) -> Iterator[TreeBench]:
    with tree_bench(tmp_path) as made:
        views = made.create(cleanup_policy="compact", file_delete_delay_ms=0)
        for key in (b"a", b"b", b"a"):
            views.partition.append([Record(b"of " + key, key)])
            views.partition.roll()
        yield made


@pytest.mark.parametrize("suffix", KINDS)
def test_a_name_that_is_there_all_the_time_can_be_opened(place: TreeBench, suffix: str) -> None:
    """regression: ENOENT from a file that was listed, and is there"""
    log = place.views().partition.log
    plain, calls = KINDS[suffix].open, []

    def rewritten_before(entry: Entry, flags: int) -> Handle:
        if not calls:
            cleaner().clean(log, 0, log.chain.active.base_offset, place.clock.ms, lambda *_: None)
        calls.append(entry)
        return plain(entry, flags)  # type: ignore[arg-type]

    path = f"/t-0/segments/{0:020d}.{suffix}"
    with mock.patch.object(KINDS[suffix], "open", rewritten_before):
        handle = place.files.open(path, os.O_RDONLY).handle
    assert len(calls) == 2
    found = whole(lambda position, into: place.files.read(handle, position, into))
    place.files.release(handle)
    assert found == place.read(path) != b""


def test_a_sealed_name_is_there_while_its_segment_is_and_the_policy_stays(place: TreeBench) -> None:
    views = place.views()

    def listed() -> list[str]:
        return list(place.files.readdir("/t-0/sealed/txt"))

    def is_there(name: str) -> bool:
        try:
            place.files.getattr(f"/t-0/sealed/txt/{name}", None)
        except errors.NotFoundError:
            return False
        return True

    plain = [f"{base:020d}.txt" for base in range(3)]
    both = [f"{base:020d}-{base + 1:020d}.txt" for base in range(3)]
    assert listed() == both
    assert all(map(is_there, both))
    wrong = [*plain, f"{0:020d}-{2:020d}.txt", f"{0:020d}-1.txt", f"{0:020d}-.txt", f"{0:020d}-{1:020d}-.txt"]
    assert not any(map(is_there, wrong))
    place.store.configure("t", {"cleanup.policy": "delete"})
    assert listed() == plain
    assert all(map(is_there, plain))
    assert not any(map(is_there, both))
    place.store.configure("t", {"cleanup.policy": "compact"})
    assert not any(map(is_there, plain))
    log = views.partition.log
    cleaner().clean(log, 0, log.chain.active.base_offset, place.clock.ms, lambda *_: None)
    merged = f"{0:020d}-{3:020d}.txt"
    assert listed() == [merged]
    assert not any(map(is_there, both))
    assert place.read(f"/t-0/sealed/txt/{merged}") == b"of b\nof a\n"


@pytest.mark.parametrize("suffix", KINDS)
def test_a_name_that_is_gone_is_not_there(place: TreeBench, suffix: str) -> None:
    plain = KINDS[suffix].open

    def removed_before(entry: Entry, flags: int) -> Handle:
        remove_below(place.views().partition, 2)
        return plain(entry, flags)  # type: ignore[arg-type]

    with (
        mock.patch.object(KINDS[suffix], "open", removed_before),
        pytest.raises(errors.NotFoundError),
    ):
        place.files.open(f"/t-0/segments/{0:020d}.{suffix}", os.O_RDONLY)


def test_what_is_gone_before_its_version_is_known_stays_not_open(
    place: TreeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = f"/t-0/segments/{0:020d}.log"
    version = place.files.getattr(path, None).version

    def gone(_: object) -> int:
        raise errors.NotFoundError("segment 0 was removed")

    monkeypatch.setattr(RawFile, "version", property(gone))
    with pytest.raises(errors.NotFoundError):
        place.files.open(path, os.O_RDONLY, version << VERSION_SHIFT)
    assert [segment.pins for segment in place.views().partition.log.snapshot.segments] == [0, 0, 0, 0]
