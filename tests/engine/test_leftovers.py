"""What a crash leaves of a swap, and of removals: dropped or completed, never half.

A swap goes through: write `.cleaned`, rename all to `.swap` from the highest base down, rename the originals to
`.deleted`, strip `.swap` from the lowest base up. Each test puts a directory into one of these states by hand.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from directory_check import bases, check_directory, content, path_of
from partition_opening import NOW, Known, open_partition, without_fsync

from topicfs.engine.partition.leftovers import remove_temporary
from topicfs.engine.partition.partition import Partition
from topicfs.engine.record import Record

SUFFIXES = (".log", ".index", ".timeindex", ".txnindex")
SEGMENT = 500


@pytest.fixture(autouse=True)
def _fast() -> Iterator[None]:
    with without_fsync():
        yield


def values_of(partition: Partition) -> list[bytes | None]:
    return [record.value for record in partition.records()]


class Swap:
    """A directory whose first two segments were compacted into `count` new ones, and that crashes on its way.

    before, after   what a reader sees of it without and with the swap
    originals       base offsets of the segments that are replaced
    outputs         base offsets of those that replace them
    """

    def __init__(self, root: Path, count: int) -> None:
        self.directory = root / "t-0"
        partition = open_partition(self.directory, segment_bytes=SEGMENT)
        for number in range(40):
            partition.append(Record(b"value %d" % number, timestamp=NOW + number))
        self.before = values_of(partition)
        partition.close()
        self.originals = bases(self.directory)[:2]
        end = bases(self.directory)[2]
        # What compaction leaves: every other batch of the first two segments, in one segment or in two.
        made = root / "made-0"
        kept: dict[int, list[int]] = {0: []} if count == 1 else {0: [], self.originals[1]: []}
        for offset in range(0, end, 2):
            kept[max(base for base in kept if base <= offset)].append(offset)
        self.outputs = sorted(kept)
        self.after = [value for offset, value in enumerate(self.before) if offset >= end or offset % 2 == 0]
        source = open_partition(self.directory, Known(clean=True), segment_bytes=SEGMENT)
        for base, offsets in kept.items():
            copy = open_partition(made, Known(start=base))
            for offset in offsets:
                copy.append_raw(source.read(offset, 1).data)
            copy.close()
            for suffix in SUFFIXES:
                if path_of(made, base, suffix).exists():
                    shutil.move(
                        path_of(made, base, suffix), f"{path_of(self.directory, base, suffix)}.cleaned"
                    )
            shutil.rmtree(made)
        source.close()

    def rename(self, base: int, old: str, new: str, suffixes: tuple[str, ...] = SUFFIXES) -> None:
        for suffix in suffixes:
            path = path_of(self.directory, base, suffix)
            if Path(f"{path}{old}").exists():
                os.rename(f"{path}{old}", f"{path}{new}")

    def steps(self) -> list[Callable[[], None]]:
        """The swap's renames, one file at a time."""
        return [
            partial(self.rename, base, old, new, (suffix,))
            for old, new, which in (
                (".cleaned", ".swap", self.outputs[::-1]),
                ("", ".deleted", self.originals),
                (".swap", "", self.outputs),
            )
            for base in which
            for suffix in SUFFIXES
        ]

    def expect(self, values: list[bytes | None], known: Known) -> None:
        partition = open_partition(self.directory, known, segment_bytes=SEGMENT)
        assert values_of(partition) == values
        partition.append(Record(b"after"))
        partition.close()
        again = open_partition(self.directory, Known(clean=True), segment_bytes=SEGMENT)
        assert values_of(again) == [*values, b"after"]
        again.close()
        check_directory(self.directory)
        assert not list(self.directory.glob("*.deleted"))


KNOWN = (Known(), Known(recovery_point=40), Known(clean=True))


@pytest.mark.parametrize("known", KNOWN)
@pytest.mark.parametrize("count", [1, 2])
def test_cleaned_segments_alone_are_dropped(tmp_path: Path, count: int, known: Known) -> None:
    swap = Swap(tmp_path, count)
    swap.expect(swap.before, known)


@pytest.mark.parametrize("known", KNOWN)
def test_cleaned_beside_swap_files_drops_both(tmp_path: Path, known: Known) -> None:
    swap = Swap(tmp_path, 2)
    swap.rename(swap.outputs[1], ".cleaned", ".swap")
    swap.expect(swap.before, known)


@pytest.mark.parametrize("known", KNOWN)
@pytest.mark.parametrize("count", [1, 2])
def test_swap_files_alone_are_completed(tmp_path: Path, count: int, known: Known) -> None:
    swap = Swap(tmp_path, count)
    for base in swap.outputs:
        swap.rename(base, ".cleaned", ".swap")
    swap.expect(swap.after, known)


@pytest.mark.parametrize("count", [1, 2])
def test_a_crash_after_any_rename_leaves_the_swap_undone_or_done(tmp_path: Path, count: int) -> None:
    total = len(Swap(tmp_path / "0", count).steps())
    undone = len(SUFFIXES) * count  # the last rename away from `.cleaned` decides
    seen = set()
    for stop in range(total + 1):
        swap = Swap(tmp_path / str(stop + 1), count)
        for step in swap.steps()[:stop]:
            step()
        decided = not list(swap.directory.glob("*.cleaned"))
        assert not decided or stop >= undone - len(SUFFIXES) + 3
        seen.add(decided)
        swap.expect(swap.after if decided else swap.before, KNOWN[stop % 3])
    assert seen == {True, False}


@pytest.mark.parametrize("suffix", SUFFIXES[1:3])
@pytest.mark.parametrize("known", KNOWN)
def test_an_index_that_got_its_last_name_before_its_log_did_is_made_anew(
    tmp_path: Path, known: Known, suffix: str
) -> None:
    """A file system may save names in another order than they were given."""
    swap = Swap(tmp_path, 1)
    swap.rename(0, ".cleaned", ".swap")
    for base in swap.originals:
        swap.rename(base, "", ".deleted")
    swap.rename(0, ".swap", "", (suffix,))
    open_partition(swap.directory, known, segment_bytes=SEGMENT).log.abandon()
    for each in SUFFIXES[:3]:
        assert path_of(swap.directory, 0, each).stat().st_size
    swap.expect(swap.after, known)


def test_swap_files_below_the_lowest_cleaned_one_are_completed(tmp_path: Path) -> None:
    """They are of an earlier swap, which had come further."""
    swap = Swap(tmp_path, 1)
    swap.rename(0, ".cleaned", ".swap")
    path_of(swap.directory, swap.originals[1] + 1, ".log.cleaned").write_bytes(b"of another swap")
    swap.expect(swap.after, Known())


def test_snapshots_within_a_swaps_range_go_with_the_segments(tmp_path: Path) -> None:
    swap = Swap(tmp_path, 1)
    assert swap.originals[1] in bases(swap.directory, ".snapshot")
    swap.rename(0, ".cleaned", ".swap")
    partition = open_partition(swap.directory, Known(recovery_point=40), segment_bytes=SEGMENT)
    assert swap.originals[1] not in bases(swap.directory, ".snapshot")
    partition.close()


def test_files_marked_for_removal_and_temporary_ones_are_removed(tmp_path: Path) -> None:
    partition = open_partition(tmp_path / "t-0")
    partition.append(Record(b"value"))
    partition.close()
    for name in (
        f"{5:020d}.log.deleted",
        f"{5:020d}.index.deleted",
        f"{5:020d}.snapshot.deleted",
        "leader-epoch-checkpoint.tmp",
        "partition.metadata.tmp",
        f"{1:020d}.snapshot.tmp",
    ):
        (tmp_path / "t-0" / name).write_bytes(b"x")
    partition = open_partition(tmp_path / "t-0", Known(clean=True))
    assert values_of(partition) == [b"value"]
    partition.close()
    check_directory(tmp_path / "t-0")
    assert not list((tmp_path / "t-0").glob("*.deleted"))


def test_a_crash_while_an_undecided_swap_is_dropped_does_not_decide_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without its `.cleaned` files, what is left of the `.swap` ones would look like a swap to complete."""

    class Crash(BaseException):
        pass

    def unlink(path: Path, missing_ok: bool = False) -> None:
        nonlocal left
        if not left:
            raise Crash
        left -= 1
        os.unlink(path)

    total = len(list(Swap(tmp_path / "count", 2).directory.glob("*.cleaned")))
    for stop in range(total):
        swap = Swap(tmp_path / str(stop), 2)
        swap.rename(swap.outputs[1], ".cleaned", ".swap")
        left = stop
        names = set(content(swap.directory))
        with monkeypatch.context() as patch:
            patch.setattr(Path, "unlink", unlink)
            with pytest.raises(Crash):
                remove_temporary(swap.directory, names)
        swap.expect(swap.before, Known())


def test_an_undecided_swap_is_durably_gone_before_what_tells_that_it_is_undecided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file system may save removals in another order: a `.swap` name that is back alone would be completed."""
    swap = Swap(tmp_path, 2)
    swap.rename(swap.outputs[1], ".cleaned", ".swap")
    names = set(content(swap.directory))
    done: list[str] = []
    unlink = os.unlink

    def noted(path: Path) -> None:
        done.append(Path(path).suffix)
        unlink(path)

    monkeypatch.setattr(os, "unlink", noted)
    monkeypatch.setattr(
        "topicfs.engine.partition.leftovers.sync_directory", lambda _: done.append("directory")
    )
    remove_temporary(swap.directory, names)
    synced = done.index("directory")
    assert set(done[:synced]) == {".swap"}
    assert set(done[synced + 1 :]) == {".cleaned"}


@pytest.mark.parametrize("name", ["x.log.swap", "x.swap", "1.log.swap"])
def test_swap_files_without_an_offset_are_left_alone(tmp_path: Path, name: str) -> None:
    swap = Swap(tmp_path, 1)
    (swap.directory / name).write_bytes(b"of nobody")
    partition = open_partition(swap.directory, segment_bytes=SEGMENT)
    assert values_of(partition) == swap.before
    partition.close()
    assert (swap.directory / name).read_bytes() == b"of nobody"


@pytest.mark.parametrize("name", ["x.log.cleaned", "x.cleaned"])
def test_a_cleaned_file_without_an_offset_does_not_undo_a_decided_swap(tmp_path: Path, name: str) -> None:
    """The originals may be gone by then: dropping the swap would lose records."""
    swap = Swap(tmp_path, 1)
    for step in swap.steps()[: 3 * len(SUFFIXES)]:
        step()
    assert not list(swap.directory.glob("*.cleaned"))
    (swap.directory / name).write_bytes(b"of nobody")
    swap.expect(swap.after, Known())
