"""A recovery in which any write, or each one from some write on, finds no room: it opens the partition, and shows what
it showed before. What the disk then lacks is not believed by a later start, and is there when there is room.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from directory_check import bases, check_directory, path_of
from partition_opening import NOW, open_partition
from syscalls import Calls, sample
from verify import checked

from topicfs import Store
from topicfs.engine import batch as batches
from topicfs.engine.batch.columns import Columns, columns
from topicfs.engine.errors import CorruptSegmentError
from topicfs.engine.format.transaction_index import NOT_KNOWN
from topicfs.engine.groups.groups import Groups
from topicfs.engine.inbox.inbox import Batch
from topicfs.engine.partition.loading import Known
from topicfs.engine.partition.offsets import Isolation
from topicfs.engine.partition.partition import Partition, Producer
from topicfs.engine.record import Record
from topicfs.engine.segment.offset_index import IndexFile
from topicfs.engine.segment.segment import Segment
from topicfs.engine.segment.transaction_index import TransactionIndex
from topicfs.engine.unlocked.files import listed

SETTINGS: Final = {"segment_bytes": 600, "index_interval_bytes": 100}
STRIDE: Final = 13


def fill(partition: Partition) -> None:
    """Append transactions, of which every third is aborted, in five segments and three leader epochs. The last one is
    open."""
    sequence = 0
    for number in range(12):
        producer = 7 + number % 2
        for part in range(2):
            values = [b"transaction %d, part %d" % (number, part)]
            partition.append(
                [Record(value, timestamp=NOW + 10 * number) for value in values],
                Producer(producer, 0, 2 * (number // 2) + part, True),
            )
        partition.append([Record(b"plain %d" % number, timestamp=NOW + 10 * number + sequence)])
        if number < 11:
            partition.end_transaction(producer, 0, commit=number % 3 != 0)
        if number in (3, 7):
            partition.log.become_leader(number)
        if number == 5:
            partition.flush()


def shown(partition: Partition) -> dict[str, Any]:
    """Return all that users see of a partition."""
    end = partition.end_offset
    return {
        "committed": [(each.offset, each.value) for each in partition.records()],
        "all": [(r.offset, r.value) for r in partition.records(isolation=Isolation.UNCOMMITTED)],
        "single": [partition.record(offset) for offset in range(end)],
        "times": [partition.offset_for_timestamp(NOW + at) for at in range(0, 130, 7)],
        "offsets": (partition.start_offset, partition.stable_offset, end),
        "epochs": partition.log.epochs.entries,
        "producers": {
            key: (each.epoch, each.last_sequence, each.current_transaction_first_offset)
            for key, each in partition.log.producers.producers.items()
        },
    }


def files_of(directory: Path, suffix: str) -> list[Path]:
    return [path_of(directory, base, suffix) for base in bases(directory, suffix)]


def nothing(_: Path) -> None:
    """A process that was killed leaves its files as they are."""


def no_indexes(directory: Path) -> None:
    for suffix in (".index", ".timeindex", ".txnindex", ".snapshot"):
        for path in files_of(directory, suffix):
            path.unlink()
    (directory / "leader-epoch-checkpoint").unlink()


def empty_indexes(directory: Path) -> None:
    for suffix in (".index", ".timeindex", ".txnindex"):
        for path in files_of(directory, suffix):
            path.write_bytes(b"")


def short_indexes(directory: Path) -> None:
    for path in files_of(directory, ".txnindex"):
        path.write_bytes(path.read_bytes()[:-34])
    for path in files_of(directory, ".timeindex"):
        path.write_bytes(path.read_bytes()[:12])


def wrong_indexes(directory: Path) -> None:
    for path in files_of(directory, ".txnindex"):
        path.write_bytes(b"\0\0" + b"garbage " * 4 + path.read_bytes())
    for path in files_of(directory, ".index"):
        path.write_bytes(b"garbage " * 50)
    for path in files_of(directory, ".snapshot"):
        path.write_bytes(b"garbage")
    (directory / "leader-epoch-checkpoint").write_bytes(b"garbage")


FOUND: Final[tuple[Callable[[Path], None], ...]] = (
    nothing,
    no_indexes,
    empty_indexes,
    short_indexes,
    wrong_indexes,
)


class Place:
    """A partition that was killed, what it showed, and what is known of its last run."""

    def __init__(self, root: Path, found: Callable[[Path], None]) -> None:
        self.root = root
        self.directory = root / "killed"
        partition = open_partition(self.directory, **SETTINGS)
        fill(partition)
        self.shown = shown(partition)
        assert len(partition.log.chain.segments) > 4
        assert len({value for _, value in self.shown["all"]} - {v for _, v in self.shown["committed"]}) > 7
        self.point = partition.recovery_point
        partition.log.abandon()
        found(self.directory)
        # What a crash leaves below the recovery point is whole, or visibly damaged.
        self.known = Known(recovery_point=self.point if found in (nothing, wrong_indexes) else 0)

    def copy(self) -> Path:
        gc.collect()
        shutil.rmtree(self.root / "copy", ignore_errors=True)
        return shutil.copytree(self.directory, self.root / "copy")

    def open(self, directory: Path, known: Known) -> Partition:
        partition = open_partition(directory, known, **SETTINGS)
        assert shown(partition) == self.shown
        return partition

    def writes(self) -> int:
        """Count the calls of a recovery that a full disk refuses."""
        counted = Calls(error=errno.ENOSPC)
        directory = self.copy()
        with counted.patched():
            self.open(directory, self.known).log.abandon()
        return counted.count

    def check_with_room(self, directory: Path, known: Known) -> None:
        """All of it is on disk after a clean stop with room."""
        with Calls().patched():
            partition = self.open(directory, known)
            partition.append(Record(b"after", timestamp=NOW + 1000))
            partition.end_transaction(8, 0, commit=True)
            expected = shown(partition)
            partition.close()
            check_directory(directory)
            assert checked(directory) == []
            assert not any(path.stat().st_size == NOT_KNOWN for path in files_of(directory, ".txnindex"))
            again = open_partition(
                directory, Known(clean=True, recovery_point=partition.end_offset), **SETTINGS
            )
            assert shown(again) == expected
            again.close()


@pytest.fixture(params=FOUND, ids=lambda found: found.__name__)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    with Calls().patched():
        return Place(tmp_path, request.param)


@pytest.mark.parametrize("lasting", [False, True])
def test_a_recovery_that_has_no_room_for_a_write_shows_all_records(place: Place, lasting: bool) -> None:
    for stop in sample(place.writes(), STRIDE, lasting):
        directory = place.copy()
        full = Calls(stop, True, errno.ENOSPC, lasting)
        with full.patched():
            partition = place.open(directory, place.known)
            assert full.failed
            point = partition.recovery_point
            with contextlib.suppress(OSError):
                # What it writes is no record: they are durable.
                partition.flush()
                point = partition.recovery_point
            partition.log.abandon()
            # Another kill, and another start on a full disk.
            partition = place.open(directory, Known(recovery_point=point))
            stopped_cleanly = False
            with contextlib.suppress(OSError):
                partition.close()
                stopped_cleanly = True
            point = partition.recovery_point
            place.open(directory, Known(clean=stopped_cleanly, recovery_point=point)).log.abandon()
        place.check_with_room(directory, Known(clean=stopped_cleanly, recovery_point=point))


def test_a_recovery_writes_no_index_that_is_there_already(tmp_path: Path) -> None:
    with Calls().patched():
        place = Place(tmp_path, nothing)
    directory = place.copy()
    place.open(directory, place.known).close()
    before = {path: path.stat() for path in directory.iterdir() if path.name.endswith("index")}
    assert len(before) > 12
    counted = Calls(error=errno.ENOSPC)
    with counted.patched():
        place.open(directory, Known()).log.abandon()
    after = {path: path.stat() for path in directory.iterdir() if path.name.endswith("index")}
    assert {path: (found.st_ino, found.st_mtime_ns) for path, found in after.items()} == {
        path: (found.st_ino, found.st_mtime_ns) for path, found in before.items()
    }


@contextlib.contextmanager
def no_room_for_indexes() -> Iterator[None]:
    """Let everything be written but what was rebuilt of indexes."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(IndexFile, "write_out", full)
        patch.setattr(TransactionIndex, "replace", full)
        yield


def test_a_segment_whose_indexes_have_no_room_is_recovered_by_every_start_until_they_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Calls().patched():
        place = Place(tmp_path, empty_indexes)
    directory = place.copy()
    with no_room_for_indexes():
        partition = place.open(directory, Known())
        segments = partition.log.chain.segments
        incomplete = [each.base_offset for each in segments if each.unwritten]
        assert len(incomplete) == len(segments)
        assert bases(directory, ".index") == []
        aborting = [each.base_offset for each in segments if each.transactions.entries]
        assert [
            b for b in aborting if path_of(directory, b, ".txnindex").stat().st_size == NOT_KNOWN
        ] == aborting
        partition.close()
    # Who reads the files alone is refused, and is not shown what was aborted.
    with pytest.raises(CorruptSegmentError, match="the disk was full"):
        list(listed(directory).aborted(0, place.shown["offsets"][2]))
    recovered: list[int] = []
    recover = Segment.recover

    def noted(segment: Segment, *arguments: Any) -> int:
        recovered.append(segment.base_offset)
        return recover(segment, *arguments)

    monkeypatch.setattr(Segment, "recover", noted)
    place.open(directory, Known(clean=True, recovery_point=place.shown["offsets"][2])).close()
    assert recovered == incomplete
    assert checked(directory) == []
    recovered.clear()
    place.open(directory, Known(clean=True, recovery_point=place.shown["offsets"][2])).close()
    assert recovered == []


def test_appends_and_aborts_go_on_in_a_segment_whose_indexes_have_no_room(tmp_path: Path) -> None:
    with Calls().patched():
        place = Place(tmp_path, empty_indexes)
    directory = place.copy()
    with Calls().patched(), no_room_for_indexes():
        partition = place.open(directory, Known())
        active = partition.log.chain.active
        partition.end_transaction(8, 0, commit=False)
        partition.append(Record(b"more", timestamp=NOW + 500))
        assert [r.value for r in partition.records()][-1] == b"more"
        expected = shown(partition)
        partition.log.abandon()
        assert active.base_offset not in bases(directory, ".index")
    with Calls().patched():
        again = open_partition(directory, Known(recovery_point=partition.end_offset), **SETTINGS)
        assert shown(again) == expected
        again.close()
    assert checked(directory) == []


def column(count: int) -> Columns:
    batch = batches.from_records([Record(b"in a column")] * count, NOW)
    (found,) = columns(batch.data, batch.row.reshape(1, -1))
    return found


def prepared_store(root: Path) -> Path:
    """A store that was killed, with transactions, a position of a group, and a batch from an inbox."""
    store = Store.open(root, create=True)
    store.create_topic("t", 2)
    for number in range(6):
        store.partition("t", 0).append([Record(b"%d" % number)], Producer(7, 0, number, True))
        store.partition("t", 0).end_transaction(7, 0, commit=number % 2 == 0)
    chunks = [(("t", number), column(3)) for number in range(2)]
    store.transactions.run(store.transactions.init_producer("a", 60_000), [("t", 0), ("t", 1)], chunks)
    store.inboxes.commit({"t": Batch("b", [(number, column(2)) for number in range(2)], ())})
    groups = Groups.of(store)
    groups.create("readers")
    groups.commit("readers", {("t", 0): 3})
    store.abandon()
    for index in (root / "logs").glob("t-*/*.index"):
        index.unlink()
    return root


def shown_by(store: Store) -> dict[str, Any]:
    found: dict[str, Any] = {
        f"{topic}-{number}": [(r.offset, r.key, r.value) for r in store.partition(topic, number).records()]
        for topic, number in store.partitions()
    }
    positions = Groups.of(store).positions("readers")
    return found | {"positions": {key: each.offset for key, each in positions.items()}}


@pytest.mark.parametrize("lasting", [False, True])
def test_a_start_that_has_no_room_for_a_write_shows_all_records(tmp_path: Path, lasting: bool) -> None:
    with Calls().patched():
        root = prepared_store(tmp_path / "prepared")

    def start(stop: int) -> tuple[dict[str, Any], int]:
        copy = shutil.copytree(root, tmp_path / "copy")
        full = Calls(stop, True, errno.ENOSPC, lasting)
        with full.patched():
            store = Store.open(copy)
            found = shown_by(store)
            store.abandon()
        gc.collect()
        with Calls().patched(), Store.open(copy) as store:
            assert shown_by(store) == found
        shutil.rmtree(copy)
        return found, full.count

    expected, count = start(-1)
    assert [len(expected[name]) for name in ("t-0", "t-1")] == [3 + 3 + 2, 3 + 2]
    assert expected["positions"] == {("t", 0): 3}
    for stop in sample(count, STRIDE, lasting):
        assert start(stop)[0] == expected
