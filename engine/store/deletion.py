"""Deletions that can still be undone. Each has a directory BACKING/deleted/<id>.

    deleted/<id>/
    ├── deletion.json       what was deleted, when, and until when it is kept
    ├── ended               how transactions have ended that were open in a partition: a line `0 4711 commit` or `abort`
    │                       each, of partition and producer. Of several lines of both the first one counts
    ├── topic.properties    the topic's settings, if the whole topic was deleted
    └── staging/            the topic's inbox, if no partition was left: journal, committed names, uncommitted files

The partitions' own files stay in the log directory, under the name that Kafka gives to directories that wait for
their removal. `deletion.json` is written before the first of them is renamed, and removed before the first of them is
removed. So while the record exists, the files of its partitions are complete.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Self

from topicfs.engine.errors import CorruptCheckpointError, InvalidNameError
from topicfs.engine.files.atomic import read_bounded, sync_directory, write_atomically
from topicfs.engine.files.regular import open_regular
from topicfs.engine.format.paths import (
    DELETE_SUFFIX,
    DELETED,
    DELETED_ENDED,
    DELETION_RECORD,
    parse_partition_directory,
    partition_directory,
    validate_topic,
)
from topicfs.engine.partition.loading import Known
from topicfs.engine.record import MAX_INT64
from topicfs.engine.store.removal import Removals

log = logging.getLogger(__name__)

_COMMIT: Final = "commit"
_ABORT: Final = "abort"

_LONGEST_RECORD: Final = 64 << 20
"""The largest `deletion.json` that is read, in bytes. A record has some 300 bytes for each partition."""


@dataclass(frozen=True, slots=True)
class DeletedPartition:
    """A partition that was deleted.

    number          the partition's number
    directory       the name that its directory has now, in the log directory
    start, end      its start offset and end offset
    size            the bytes of its `.log` files
    recovery_point  the offset below which all records are on disk
    high_watermark  its high watermark; None where it is not known
    cleaned         the offset at which the next compaction begins; None before the first one
    """

    number: int
    directory: str
    start: int
    end: int
    size: int
    recovery_point: int
    high_watermark: int | None
    cleaned: int | None

    @property
    def known(self) -> Known:
        """Return what is known for loading it again. It counts as unclean: it is checked from the recovery point on."""
        return Known(False, self.recovery_point, self.start, self.high_watermark)

    @property
    def records(self) -> int:
        """The number of offsets that it had; compaction may have left fewer records."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Deletion:
    """A deletion: the partitions of one topic that one call has deleted.

    id          the name of the deletion
    topic       the topic of the partitions
    at, due     when it was asked for, and when the files are removed: milliseconds since the epoch
    partitions  the deleted partitions, in the order of their numbers
    restoring   whether it is being undone: a partition whose directory has its old name again is restored
    """

    id: str
    topic: str
    at: int
    due: int
    partitions: tuple[DeletedPartition, ...]
    restoring: bool = False

    @property
    def delay(self) -> int:
        """The milliseconds for which it can be undone: the topic's `file.delete.delay.ms` when it was deleted. The
        current settings under the topic's name do not matter, as the topic's own were deleted with it."""
        return max(0, self.due - self.at)

    def told(self) -> dict[str, object]:
        """Return the description of the deletion that people and programs get."""
        return {
            "id": self.id,
            "topic": self.topic,
            "partitions": [each.number for each in self.partitions],
            "records": sum(each.records for each in self.partitions),
            "bytes": sum(each.size for each in self.partitions),
            "deleted_at": self.at,
            "removed_at": self.due,
        }

    def to_json(self) -> bytes:
        fields = {
            "version": 1,
            "topic": self.topic,
            "deleted_at": self.at,
            "removed_at": self.due,
            "restoring": self.restoring,
            "partitions": [
                {name: getattr(each, name) for name in DeletedPartition.__slots__} for each in self.partitions
            ],
        }
        return json.dumps(fields, indent=1).encode() + b"\n"

    @classmethod
    def from_json(cls, deletion: str, data: bytes) -> Self:
        """Read what `to_json` has written; CorruptCheckpointError where it is something else."""
        try:
            fields = json.loads(data)
            if fields["version"] != 1:
                raise ValueError(f"version {fields['version']}")
            topic = validate_topic(fields["topic"])
            parts = tuple(_partition(topic, each) for each in fields["partitions"])
            at, due = _number(fields["deleted_at"]), _number(fields["removed_at"])
            return cls(deletion, topic, at, due, parts, fields["restoring"] is True)
        # RecursionError is raised for brackets that are nested thousands deep.
        except (ValueError, KeyError, TypeError, RecursionError, InvalidNameError) as error:
            raise CorruptCheckpointError(f"expected the record of a deletion: {error!r}") from None


def _partition(topic: str, fields: Mapping[str, Any]) -> DeletedPartition:
    number, directory = _number(fields["number"]), str(fields["directory"])
    partition_directory(topic, number)
    named, found, suffix = parse_partition_directory(directory)
    # The renamed directory of a long topic has only the beginning of its name.
    if suffix != DELETE_SUFFIX or found != number or not topic.startswith(named):
        raise ValueError(f"directory {directory!r} of {topic}-{number}")
    start, end, size, point = (_number(fields[name]) for name in ("start", "end", "size", "recovery_point"))
    mark, cleaned = fields["high_watermark"], fields["cleaned"]
    return DeletedPartition(
        number,
        directory,
        start,
        end,
        size,
        point,
        None if mark is None else _number(mark),
        None if cleaned is None else _number(cleaned),
    )


def _number(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_INT64:
        raise ValueError(f"expected a number from 0 on, found {value!r}")
    return value


class Deletions:
    """The deletions of one store that can still be undone. Adding and restoring need the store's guard.

    directory  BACKING/deleted; made with the first deletion
    _logs      the log directory
    _known     the deletions by id, in the order in which they were asked for
    _due       by id: when the files are to be removed, by the store's steady clock
    unwritten  by topic: when the newest of its deletions was that could not be written down, as on a full disk
    _lock      guards both tables against the thread that removes due files; held while a deletion is undone
    """

    def __init__(self, backing: Path, logs: Path) -> None:
        self.directory = backing / DELETED
        self._logs = logs
        self._known: dict[str, Deletion] = {}
        self._due: dict[str, int] = {}
        self.unwritten: dict[str, int] = {}
        self._lock = threading.RLock()

    def load(self, now: int, steady_now: int, read_only: bool = False) -> None:
        """Read the deletions of earlier runs. One that cannot be read cannot be undone: its partitions' directories
        are removed like all others that wait for it. A clock that was set back makes no wait longer.

        read_only  whether nothing may be removed here"""
        if not self.directory.is_dir():
            return
        found = []
        for place in sorted(self.directory.iterdir()):
            try:
                deletion = Deletion.from_json(
                    place.name, read_bounded(place / DELETION_RECORD, _LONGEST_RECORD)
                )
            except (FileNotFoundError, NotADirectoryError):
                # It was being made or removed when the process ended.
                if not read_only:
                    shutil.rmtree(place, ignore_errors=True)
                continue
            except (CorruptCheckpointError, OSError) as error:
                log.warning(f"{place}: this deletion cannot be taken back: {error}")
                continue
            found.append(replace(deletion, due=min(deletion.due, now + deletion.delay)))
        self._known = {each.id: each for each in sorted(found, key=lambda each: (each.at, each.id))}
        self._due = {each.id: steady_now + max(0, each.due - now) for each in found}

    # -- looking --------------------------------------------------------------------------------------

    def all(self) -> list[Deletion]:
        """Return the deletions that can be undone, the newest first, each with the partitions that can be restored."""
        with self._lock:
            present = [self._present(each) for each in reversed(self._known.values())]
        return [each for each in present if each.partitions]

    def every(self) -> list[Deletion]:
        """Return all known deletions, also those of which no partition is left."""
        with self._lock:
            return list(self._known.values())

    def newest(self, topic: str, number: int | None = None, deletion: str | None = None) -> Deletion | None:
        """Return the newest deletion of a topic, or of one partition and then with that one alone. None without one.
        One that had records comes before those that had none: a topic that was made again and removed empty is not
        what anybody wants back.

        deletion  the id that it must have; None for any"""
        newest = None
        for found in self.all():
            if found.topic != topic or deletion not in (None, found.id):
                continue
            parts = tuple(each for each in found.partitions if number in (None, each.number))
            if any(each.records for each in parts):
                return replace(found, partitions=parts)
            if parts and newest is None:
                newest = replace(found, partitions=parts)
        return newest

    def _present(self, deletion: Deletion) -> Deletion:
        parts = tuple(each for each in deletion.partitions if (self._logs / each.directory).is_dir())
        return replace(deletion, partitions=parts)

    def place(self, deletion: Deletion) -> Path:
        """Return the directory that has the record of a deletion, and the topic's settings and inbox."""
        return self.directory / deletion.id

    def waiting(self) -> set[str]:
        """Return the names of the partition directories that belong to a deletion."""
        return {part.directory for each in self._known.values() for part in each.partitions}

    def restored(self) -> list[tuple[Deletion, DeletedPartition]]:
        """Return the partitions of unfinished restores whose directories have their names back. A crash came between
        that renaming and the rest of the restore."""
        return [
            (each, part)
            for each in self._known.values()
            if each.restoring
            for part in each.partitions
            if not (self._logs / part.directory).exists()
        ]

    def ended(self, deletion: Deletion, number: int) -> dict[int, bool]:
        """Return how transactions have ended since a partition was deleted: by producer, whether it was a commit."""
        found: dict[int, bool] = {}
        for line in self._ended(self.place(deletion)):
            with contextlib.suppress(ValueError):
                of, producer_id, end = line.split()
                if int(of) == number and end in (_COMMIT, _ABORT):
                    found.setdefault(int(producer_id), end == _COMMIT)
        return found

    def _ended(self, place: Path) -> list[str]:
        try:
            return read_bounded(place / DELETED_ENDED, _LONGEST_RECORD).decode(errors="replace").splitlines()
        except FileNotFoundError:
            return []

    # -- changing -------------------------------------------------------------------------------------

    def note_ended(self, topic: str, number: int, producer_id: int, commit: bool) -> None:
        """Note, durably, how a producer's transaction has ended, in each deletion of a partition. No lock is taken:
        who undoes a deletion holds `_lock`, and may wait for the transaction."""
        line = f"{number} {producer_id} {_COMMIT if commit else _ABORT}"
        for deletion in list(self._known.values()):
            if deletion.topic == topic and any(part.number == number for part in deletion.partitions):
                # What is removed meanwhile cannot be undone any more.
                with contextlib.suppress(FileNotFoundError):
                    self._add_ended(self.place(deletion), line)

    def _add_ended(self, place: Path, line: str) -> None:
        known = line in self._ended(place)
        with os.fdopen(
            open_regular(place / DELETED_ENDED, os.O_WRONLY | os.O_CREAT | os.O_APPEND), "wb"
        ) as file:
            if not known:
                # A crash, or a full disk, may have left a part of a line.
                file.write(f"\n{line}\n".encode())
                file.flush()
            # Also what is known: who wrote it may have died before it was on the disk.
            os.fsync(file.fileno())
        sync_directory(place)

    def add(self, deletion: Deletion, due: int) -> None:
        """Record a deletion before it begins. `due` is the time of the removal, by the steady clock."""
        place = self.place(deletion)
        try:
            place.mkdir(parents=True)
            write_atomically(place / DELETION_RECORD, deletion.to_json())
            sync_directory(self.directory)
            sync_directory(self.directory.parent)
        except OSError:
            with contextlib.suppress(OSError):
                shutil.rmtree(place)
            raise
        with self._lock:
            for before in [each for each in self._known.values() if each.topic == deletion.topic]:
                if self._is_unfinished(before):
                    # Its restored partitions are deleted again: its record must not apply to what comes later.
                    self._forget(before)
            self._known[deletion.id] = deletion
            self._due[deletion.id] = due

    def _is_unfinished(self, deletion: Deletion) -> bool:
        """Whether all of its partitions are back, but an error has stopped the rest of the restore."""
        return deletion.restoring and not self._present(deletion).partitions

    @contextlib.contextmanager
    def restoring(self, deletion: Deletion) -> Iterator[None]:
        """Mark a deletion as being undone. Nothing is removed meanwhile. The mark is on disk, so that the offsets of
        its partitions survive a crash."""
        with self._lock:
            if deletion.id not in self._known:
                raise FileNotFoundError(f"{deletion.id} is removed already")
            self._write(replace(self._known[deletion.id], restoring=True))
            try:
                yield
            except BaseException:
                # If every partition has its name again, the next start does the rest, which may include the inbox.
                if self._present(self._known[deletion.id]).partitions:
                    self.settle(deletion.id)
                raise
            self.settle(deletion.id)

    def settle(self, deletion: str) -> None:
        """Drop the restored partitions from a deletion; forget the deletion if no partition is left."""
        with self._lock:
            left = self._present(self._known[deletion])
            if left.partitions:
                self._write(replace(left, restoring=False))
            else:
                self._forget(left)

    def _write(self, deletion: Deletion) -> None:
        write_atomically(self.place(deletion) / DELETION_RECORD, deletion.to_json())
        self._known[deletion.id] = deletion

    def _forget(self, deletion: Deletion) -> None:
        place = self.place(deletion)
        (place / DELETION_RECORD).unlink(missing_ok=True)
        sync_directory(place)
        del self._known[deletion.id]
        self._due.pop(deletion.id, None)
        # What cannot be removed now is removed at the next start.
        with contextlib.suppress(OSError):
            shutil.rmtree(place)

    def hand_over(self, now: int, removals: Removals) -> None:
        """Give the directories of due deletions to `removals`. These deletions cannot be undone any more."""
        with self._lock:
            for deletion in [each for each in self._known.values() if self._due[each.id] <= now]:
                if self._is_unfinished(deletion):
                    continue
                try:
                    self._forget(deletion)
                except OSError as error:
                    log.error(f"{self.place(deletion)}: cannot be removed, stays until the next try: {error}")
                    continue
                for part in self._present(deletion).partitions:
                    removals.add(self._logs / part.directory, now)
