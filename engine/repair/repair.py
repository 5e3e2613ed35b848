"""What a recovery from the first batch on would do to partitions, and doing it.

    1. `planned` copies a partition into a scratch directory, and recovers the copy: nothing of the store is changed
    2. `applied` copies the files that would be changed or removed into BACKING/repaired/<time>/<partition>, and then
       recovers these partitions in their places. A start after a crash would recover all others too, and cut off what
       nobody has named

A start after a crash recovers what is behind the recovery point, and one after a clean stop recovers nothing: damage
further back stays where it is, and records behind it can be read. A repair cuts it off, with all that is behind it in
the partition. So it is never done unasked, and every byte that goes is kept.
"""

from __future__ import annotations

import contextlib
import filecmp
import logging
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

from topicfs.engine.errors import CorruptCheckpointError, EngineError
from topicfs.engine.files.atomic import sync_directory, sync_file
from topicfs.engine.files.checkpoint import OffsetCheckpoint
from topicfs.engine.files.listing import PartitionKey
from topicfs.engine.files.lock import DirectoryLock
from topicfs.engine.format.paths import (
    CLEANER_OFFSETS,
    DELETED_SUFFIX,
    HIGH_WATERMARKS,
    LOG_STARTS,
    LOG_SUFFIX,
    LOGS,
    RECOVERY_POINTS,
    partition_directory,
)
from topicfs.engine.partition.leftovers import remove_temporary
from topicfs.engine.partition.loading import Known, load
from topicfs.engine.record import now_ms
from topicfs.engine.segment.descriptors import Descriptors
from topicfs.engine.store.store import Store
from topicfs.engine.verify.finding import Finding, Severity
from topicfs.engine.verify.run import Check, Totals

REPAIRED: Final = "repaired"
"""The directory in BACKING that keeps what repairs have changed."""


class Action(Enum):
    """What becomes of a file."""

    CUT = "cut"
    REMOVED = "removed"
    REBUILT = "rebuilt"
    MADE = "made"


@dataclass(frozen=True, slots=True)
class Change:
    """What becomes of one file of a partition, with its bytes before and after."""

    action: Action
    file: Path
    before: int
    after: int


@dataclass(frozen=True, slots=True)
class Plan:
    """What a recovery makes of a partition.

    changes         what becomes of its files
    words           what the recovery says
    records_before  the records that can be read now
    records_after   those that can be read then
    left            what is wrong with it then
    error           why it cannot be recovered; None if it can
    """

    key: PartitionKey
    changes: Sequence[Change]
    words: Sequence[str]
    records_before: int
    records_after: int
    left: Sequence[Finding]
    error: str | None = None

    @property
    def name(self) -> str:
        """Return the name of the partition."""
        return partition_directory(*self.key)

    @property
    def bytes_lost(self) -> int:
        """Return the bytes of logs that are cut off or removed."""
        return sum(
            change.before - change.after
            for change in self.changes
            if change.file.suffix == LOG_SUFFIX and change.action is not Action.MADE
        )


def bytes_of(backing: Path, keys: Iterable[PartitionKey]) -> int:
    """Return the bytes of the largest of some partitions, which a plan needs in the scratch directory."""
    sizes = (
        sum(file.stat().st_size for file in (backing / LOGS / partition_directory(*key)).iterdir())
        for key in keys
    )
    return max(sizes, default=0)


def planned(backing: Path, keys: Iterable[PartitionKey], scratch: Path) -> Iterator[Plan]:
    """Yield what a recovery would make of each of these partitions. Only `scratch` is written to."""
    starts = _offsets(backing / LOGS / LOG_STARTS)
    with Store.open(backing, read_only=True) as store:
        for key in keys:
            copy = scratch / LOGS / partition_directory(*key)
            shutil.copytree(backing / LOGS / copy.name, copy)
            try:
                yield _plan(store, key, copy, starts.get(key, 0))
            finally:
                shutil.rmtree(copy)


def _plan(store: Store, key: PartitionKey, copy: Path, start: int) -> Plan:
    original = store.backing / LOGS / copy.name
    before, _ = _checked(store.backing, key)
    error = None
    with _told() as words:
        try:
            _recover(store, key, copy, start)
        except (EngineError, OSError) as refused:
            error = str(refused)
    after, left = _checked(copy.parent.parent, key)

    def real(text: str) -> str:
        return text.replace(str(copy), str(original))

    return Plan(
        key,
        tuple(_changes(original, copy)),
        tuple(map(real, words)),
        before,
        after,
        tuple(each for each in left if each.severity is not Severity.NOTE and copy in each.file.parents),
        None if error is None else real(error),
    )


def _checked(backing: Path, key: PartitionKey) -> tuple[int, list[Finding]]:
    """Return the number of records of a partition that can be read, and what is wrong in its log directory."""
    totals = Totals()
    findings = list(Check(backing, lambda each: each == key, False, totals=totals).findings())
    return totals.records, findings


def _changes(original: Path, copy: Path) -> Iterator[Change]:
    old = {file.name: file.stat().st_size for file in original.iterdir()}
    new = {
        file.name: file.stat().st_size for file in copy.iterdir() if not file.name.endswith(DELETED_SUFFIX)
    }
    for name in sorted(old.keys() | new.keys()):
        file, before, after = original / name, old.get(name, 0), new.get(name, 0)
        if name not in new:
            yield Change(Action.REMOVED, file, before, 0)
        elif name not in old:
            yield Change(Action.MADE, file, 0, after)
        elif file.suffix == LOG_SUFFIX:
            # A recovery writes nothing into a log that it keeps.
            if before != after:
                yield Change(Action.CUT, file, before, after)
        elif before != after or not filecmp.cmp(file, copy / name, shallow=False):
            yield Change(Action.REBUILT, file, before, after)


def applied(backing: Path, plans: Sequence[Plan], saved: Path) -> list[str]:
    """Recover partitions as planned, and no others. Return what the recovery says. What it changes or removes is in
    `saved` before."""
    repaired = {plan.key for plan in plans}
    lock = DirectoryLock.acquire(backing / LOGS)
    try:
        for plan in plans:
            _save(
                [change.file for change in plan.changes if change.action is not Action.MADE],
                saved / plan.name,
            )
        # A log may be shorter than they say. Without them the end counts, and compaction begins anew.
        for name in (RECOVERY_POINTS, HIGH_WATERMARKS, CLEANER_OFFSETS):
            file = OffsetCheckpoint(backing / LOGS / name)
            file.write({key: at for key, at in _offsets(file.path).items() if key not in repaired})
        starts = _offsets(backing / LOGS / LOG_STARTS)
        with _told() as words, Store.open(backing, read_only=True) as store:
            for plan in plans:
                directory = backing / LOGS / plan.name
                _recover(store, plan.key, directory, starts.get(plan.key, 0))
                remove_temporary(directory, set(os.listdir(directory)))
        return words
    finally:
        lock.release()


def _recover(store: Store, key: PartitionKey, directory: Path, start: int) -> None:
    """Recover a partition in its directory, or a copy of it, from the first batch on."""
    settings, expiration_ms = store.topic_settings(key[0]), store.daemon.producer_id_expiration_ms
    load(*key, directory, settings, expiration_ms, Known(False, 0, start), now_ms, Descriptors()).close()


def _save(files: Iterable[Path], directory: Path) -> None:
    directory.mkdir(parents=True)
    for file in files:
        shutil.copy2(file, directory / file.name)
        sync_file(directory / file.name)
    for made in (directory, directory.parent, directory.parent.parent, directory.parent.parent.parent):
        sync_directory(made)


def _offsets(path: Path) -> dict[PartitionKey, int]:
    try:
        return OffsetCheckpoint(path).read()
    except CorruptCheckpointError:
        return {}


class _Gathering(logging.Handler):
    """A handler that keeps the words of warnings and errors."""

    def __init__(self, words: list[str]) -> None:
        super().__init__(logging.WARNING)
        self._words = words

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the words of one message."""
        self._words.append(record.getMessage())


@contextlib.contextmanager
def _told() -> Iterator[list[str]]:
    """Gather what the engine logs, instead of having it shown."""
    words: list[str] = []
    handler = _Gathering(words)
    logger = logging.getLogger("topicfs.engine")
    was = logger.propagate
    logger.addHandler(handler)
    logger.propagate = False
    try:
        yield words
    finally:
        logger.removeHandler(handler)
        logger.propagate = was
