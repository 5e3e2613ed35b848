"""A state of the disk, written down and opened again: what shows, and what is wrong with it whatever was promised.

a second recovery shows something else, or changes a file      the first one was not complete; see `_OF_STORES`
a record cannot be appended, or not behind all others          the log does not go on
`topicfs verify` finds something after the next clean stop     recovery has left damage
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

sys.path += [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "engine")]

from operations import SETTINGS, START, TOPICS, Seen, Shown, determined, records_of, sequence_of
from recording import Recording, Tree
from recovering import Recovery
from verify import checked

from topicfs import Isolation, Record, Store
from topicfs.engine.errors import EngineError
from topicfs.engine.files.checkpoint import OffsetCheckpoint
from topicfs.engine.files.metadata import CleanShutdown
from topicfs.engine.partition.loading import Known, load
from topicfs.engine.partition.partition import Partition
from topicfs.engine.segment.descriptors import Descriptors
from topicfs.engine.settings.topic import resolve_topic
from topicfs.engine.verify.run import Check

Files = Mapping[str, bytes | None]
Contents = Mapping[str, bytes | None]

_CHECKPOINTS = (
    "recovery-point-offset-checkpoint",
    "log-start-offset-checkpoint",
    "replication-offset-checkpoint",
)
_MARKER = "logs/.kafka_cleanshutdown"
_SETTINGS = {name: resolve_topic(settings, {}) for name, settings in TOPICS.items()}
_OF_PARTITIONS = (".deleted",)
_OF_STORES = (".deleted", ".snapshot", ".index", ".timeindex", "-checkpoint")
"""What a second recovery may change. It removes what the first one has set aside. The first one of a store also ends
what had no end, behind the recovery of its partitions: it appends markers. The second one finds them in the log, and
takes down where the log ends now, in a snapshot of producers and in checkpoints, and makes indexes of one pass over all
batches. A third one changes nothing at all."""
_LARGEST = 1 << 20
ALONE = ("t", "k")
EXPIRATION_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a state.

    seen      what showed; of some partitions only, where only they were opened
    whole     whether all of the store was opened
    wrong     what is wrong, whatever was promised
    unclean   hashes of what was opened behind no clean stop, by topic; of a whole store by an empty name
    """

    seen: Seen
    whole: bool
    wrong: tuple[str, ...]
    unclean: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class _Found:
    records: tuple[Shown, ...]
    start: int
    sequence: int
    wrong: tuple[str, ...]
    key: int = 0


class _AtOnce(Executor):
    """Does in the calling thread what it is given: to start threads takes longer than what they do here."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def submit(self, work: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(work(*arguments, **named))
        except Exception as error:  # noqa: BLE001 - the future raises it
            future.set_exception(error)
        return future


@contextlib.contextmanager
def without_threads() -> Iterator[None]:
    """Recover and check in one thread."""
    with (
        mock.patch("topicfs.engine.store.partitions.ThreadPoolExecutor", _AtOnce),
        mock.patch("topicfs.engine.verify.run.ThreadPoolExecutor", _AtOnce),
        mock.patch("os.fsync"),
    ):
        yield


def write(place: Path, files: Files) -> None:
    """Have this directory hold these files, and nothing else."""
    shutil.rmtree(place, ignore_errors=True)
    os.makedirs(place)
    root = f"{place}/"
    for path, content in sorted(files.items()):
        if content is None:
            os.mkdir(root + path)
        else:
            descriptor = os.open(root + path, os.O_WRONLY | os.O_CREAT, 0o644)
            os.write(descriptor, content)
            os.close(descriptor)


def contents(place: str) -> Contents:
    """By path: the content of each file, and None for a directory."""
    found: dict[str, bytes | None] = {}
    waiting = [place]
    while waiting:
        above = waiting.pop()
        with os.scandir(above) as entries:
            for entry in entries:
                if entry.is_dir():
                    found[entry.path] = None
                    waiting.append(entry.path)
                else:
                    descriptor = os.open(entry.path, os.O_RDONLY)
                    found[entry.path] = os.read(descriptor, _LARGEST)
                    os.close(descriptor)
    return found


class Reopening:
    """Opens states in a directory of its own, and remembers what became of them.

    place        the directory
    _stores      by hash of a state: what became of it
    _partitions  the same of single partitions
    _records     lists of records that were seen: many states show the same ones
    _news        hashes of what was opened since somebody last asked
    """

    def __init__(self, place: Path) -> None:
        self.place = place
        self._stores: dict[int, Outcome] = {}
        self._partitions: dict[int, _Found] = {}
        self._records: dict[tuple[Shown, ...], tuple[Shown, ...]] = {}
        self._news: set[int] = set()

    def news(self) -> set[int]:
        """Hashes of all that was opened since this was last called."""
        found, self._news = self._news, set()
        return found

    def _same(self, records: tuple[Shown, ...]) -> tuple[Shown, ...]:
        return self._records.setdefault(records, records)

    def outcome(self, tree: Tree, alone: bool) -> Outcome:
        """What becomes of a state; with `alone` of the partitions t-0 and k-0 only, which takes less time."""
        return self._alone(tree.files) if alone else self._whole(tree.files)

    def key(self, tree: Tree, alone: bool) -> object:
        """What is equal for states that are opened once."""
        files = tree.files
        return tuple(_hash(topic, files)[0] for topic in ALONE) if alone else hash(frozenset(files.items()))

    # -- partitions -----------------------------------------------------------------------------------

    def _alone(self, files: Files) -> Outcome:
        found = {topic: self._partition(topic, files) for topic in ALONE}
        return Outcome(
            Seen(
                {f"{topic}-0": each.records for topic, each in found.items()},
                {f"{topic}-0": each.start for topic, each in found.items()},
                {f"{topic}-0": each.sequence for topic, each in found.items()},
            ),
            False,
            tuple(wrong for each in found.values() for wrong in each.wrong),
            {} if _MARKER in files else {topic: each.key for topic, each in found.items()},
        )

    def _partition(self, topic: str, files: Files) -> _Found:
        key, own, known = _hash(topic, files)
        if key not in self._partitions:
            self._partitions[key] = replace(self._load(topic, own, known), key=key)
            self._news.add(key)
        return self._partitions[key]

    def _load(self, topic: str, files: Files, known: Known) -> _Found:
        place = self.place / f"{topic}-0"
        write(place, files)
        found: _Found | None = None
        try:
            partition = _loaded(topic, place, known)
            records = self._same(records_of(partition))
            found = _Found(records, partition.start_offset, sequence_of(partition), ())
            after = _left_by(partition)
            partition.log.abandon()
            return replace(found, wrong=tuple(self._again(topic, place, after, found)))
        except Exception as error:  # noqa: BLE001 - whatever it is, it is what is looked for
            return replace(found or _Found((), 0, -1, ()), wrong=(f"{topic}-0 cannot be used: {error!r}",))

    def _again(self, topic: str, place: Path, known: Known, found: _Found) -> Iterator[str]:
        """Recover it once more, append, stop cleanly, and verify."""
        first = contents(str(place))
        partition = _loaded(topic, place, known)
        again = records_of(partition), partition.start_offset, sequence_of(partition)
        if again != (found.records, found.start, found.sequence):
            yield f"{topic}-0: a second recovery shows {again}, the first one {found}"
        second = contents(str(place))
        if second != first:
            partition.log.abandon()
            partition = _loaded(topic, place, known)
            yield from _differences(_OF_PARTITIONS, first, second, contents(str(place)))
        yield from _goes_on(partition, found.records)
        partition.close()
        for each in checked(place):
            yield f"verify: {each}"

    # -- stores ---------------------------------------------------------------------------------------

    def _whole(self, files: Files) -> Outcome:
        key = hash(frozenset(files.items()))
        if key not in self._stores:
            unclean = {} if _MARKER in files else {"": key}
            self._stores[key] = replace(self._open(files), unclean=unclean)
            self._news.add(key)
        return self._stores[key]

    def _open(self, files: Files) -> Outcome:
        write(self.place, files)
        found: Seen | None = None
        try:
            found = self._opened_once()
            kept = replace(found, records={name: self._same(each) for name, each in found.records.items()})
            return Outcome(kept, True, tuple(self._open_again(found)), {})
        except Exception as error:  # noqa: BLE001 - whatever it is, it is what is looked for
            return Outcome(found or Seen({}, {}, {}), True, (f"the store cannot be used: {error!r}",), {})

    def _open_again(self, found: Seen) -> Iterator[str]:
        """Recover it once more, append, stop cleanly, and verify."""
        for each in found.offline:
            yield f"offline: {each}"
        first = contents(str(self.place))
        store = _store(self.place)
        again = Seen.of(store)
        if again != found:
            yield f"a second recovery shows {again}, the first one {found}"
        second = contents(str(self.place))
        if second != first:
            store.abandon()
            store = _store(self.place)
            yield from _differences(_OF_STORES, first, second, contents(str(self.place)))
        for name, records in found.records.items():
            yield from _goes_on(store.partition(name), records)
        store.close()
        for each in Check(self.place, lambda _: True, growing=False).findings():
            yield f"verify: {each}"

    def _opened_once(self) -> Seen:
        store = _store(self.place)
        try:
            return Seen.of(store)
        finally:
            store.abandon()

    # -- recoveries -----------------------------------------------------------------------------------

    def recovery(self, files: Files, topic: str) -> Recovery | None:
        """Record the recovery of a state, of one partition or of the whole store, and a flush of what was recovered.
        None where it fails: the outcome of the state tells that."""
        place = self.place.with_name("recovered")
        if topic:
            own = {"logs", *(f"logs/{name}" for name in _CHECKPOINTS), f"logs/{topic}-0"}
            within = f"logs/{topic}-0/"
            files = {path: each for path, each in files.items() if path in own or path.startswith(within)}
        write(place, files)
        recording = Recording.of(place)
        opened: Store | Partition | None = None
        try:
            with recording.running(), determined():
                if topic:
                    opened = _recovered(place / "logs", files, topic)
                    opened.flush()
                    flushed = len(recording.calls)
                    _write_checkpoints(place / "logs", opened)
                else:
                    opened = _store(place)
                    for each in ALONE:
                        opened.partition(each, 0).flush()
                    flushed = len(recording.calls)
                    opened.upkeep.checkpoint_recovery_points()
            recording.check()
        except (EngineError, OSError):
            return None
        finally:
            if opened is not None:
                (opened if isinstance(opened, Store) else opened.log).abandon()
        return Recovery(recording, (topic,) if topic else ALONE, flushed)


def _store(place: Path) -> Store:
    return Store.open(place, SETTINGS, lambda: START)


def _loaded(topic: str, place: Path, known: Known) -> Partition:
    return load(topic, 0, place, _SETTINGS[topic], EXPIRATION_MS, known, lambda: START, Descriptors(64))


def _recovered(logs: Path, files: Files, topic: str) -> Partition:
    """Recover a partition as a store does, which has no marker of a clean stop first, and writes checkpoints behind."""
    CleanShutdown.of(logs).remove()
    partition = _loaded(topic, logs / f"{topic}-0", _known(files, topic))
    _write_checkpoints(logs, partition)
    return partition


def _write_checkpoints(logs: Path, partition: Partition) -> None:
    left, key = _left_by(partition), (partition.topic, partition.number)
    for name, offset in zip(
        _CHECKPOINTS, (left.recovery_point, left.start or None, left.high_watermark), strict=True
    ):
        checkpoint = OffsetCheckpoint(logs / name)
        before = checkpoint.read()
        after = {of: each for of, each in before.items() if of != key}
        if offset is not None:
            after[key] = offset
        if after != before:
            checkpoint.write(after)


def _hash(topic: str, files: Files) -> tuple[int, Files, Known]:
    """A hash of all that is opened of a partition, its files, and what a store knows of it."""
    prefix = f"logs/{topic}-0/"
    own = {path.removeprefix(prefix): each for path, each in files.items() if path.startswith(prefix)}
    known = _known(files, topic)
    return hash((topic, known, frozenset(own.items()))), own, known


def _known(files: Files, topic: str) -> Known:
    """What a store knows of a partition that it finds."""
    point, start, mark = (_checkpoint(files.get(f"logs/{name}"), topic) for name in _CHECKPOINTS)
    return Known(_MARKER in files, point or 0, start or 0, mark)


def _left_by(partition: Partition) -> Known:
    """What the checkpoints of a store say of a partition: its start offset only where that is no segment's first."""
    start = partition.start_offset
    is_raised = start > partition.log.chain.segments.first.base_offset
    return Known(False, partition.recovery_point, start if is_raised else 0, partition.high_watermark)


def _checkpoint(content: bytes | None, topic: str) -> int | None:
    """The entry of a partition in an offset checkpoint: a version, a number of lines, and lines of three words."""
    for line in (content or b"").decode().splitlines()[2:]:
        name, number, offset = line.split()
        if (name, number) == (topic, "0"):
            return int(offset)
    return None


def _differences(inherent: tuple[str, ...], first: Contents, second: Contents, third: Contents) -> list[str]:
    return [
        *(
            f"a second recovery changes {path}"
            for path in _changed(first, second)
            if not path.endswith(inherent)
        ),
        *(f"a third recovery changes {path}" for path in _changed(second, third)),
    ]


def _changed(before: Contents, after: Contents) -> list[str]:
    return sorted(path for path in before.keys() | after.keys() if before.get(path, 0) != after.get(path, 0))


def _goes_on(partition: Partition, records: tuple[Shown, ...]) -> list[str]:
    end = partition.end_offset
    if records and records[-1][0] >= end:
        return [f"{partition.name}: ends at {end}, and shows {records[-1]}"]
    appended = partition.append(Record(b"after", b"after", START))
    # Behind a transaction whose marker was cut off it does not show yet.
    last = [(each.offset, each.value) for each in partition.records(isolation=Isolation.UNCOMMITTED)][-1:]
    if appended.first_offset != end or last != [(end, b"after")]:
        return [f"{partition.name}: what is appended at {end} is there as {last}"]
    return []
