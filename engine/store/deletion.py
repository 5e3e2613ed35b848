"""Deletions that can still be taken back, each with a directory BACKING/deleted/<id>.

    deleted/<id>/
    ├── deletion.json       what was deleted, when, and until when it is kept
    ├── topic.properties    the topic's settings, where the whole topic was deleted
    └── staging/            its inbox, where no partition was left: journal, committed names, files on their way

The partitions' own files stay in the log directory, under the name that Kafka gives to what waits for its removal.
`deletion.json` is written before the first of them is renamed, and removed before the first of them is removed: what it
names is whole, or not begun.
"""

from __future__ import annotations

import contextlib
import json
import logging
import shutil
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Self

from topicfs.engine.errors import CorruptCheckpointError, InvalidNameError
from topicfs.engine.files.atomic import read_bounded, sync_directory, write_atomically
from topicfs.engine.format.paths import (
    DELETE_SUFFIX,
    DELETED,
    DELETION_RECORD,
    parse_partition_directory,
    partition_directory,
    validate_topic,
)
from topicfs.engine.partition.loading import Known
from topicfs.engine.record import MAX_INT64
from topicfs.engine.store.removal import Removals

log = logging.getLogger(__name__)

_LONGEST_RECORD: Final = 64 << 20
"""Bytes of a record: some 300 for each partition."""


@dataclass(frozen=True, slots=True)
class DeletedPartition:
    """A partition that was deleted.

    number          of the partition
    directory       where its files are now, in the log directory
    start, end      its offsets
    size            bytes in `.log` files
    recovery_point  below it, everything is on disk
    high_watermark  None where it is not known
    cleaned         where the next compaction begins; None before the first one
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
        """What loading it again has to know. It was not stopped cleanly: from the recovery point on it is checked."""
        return Known(False, self.recovery_point, self.start, self.high_watermark)

    @property
    def records(self) -> int:
        """How many offsets it had; compaction may have left fewer records."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Deletion:
    """What one call has deleted.

    id          names the deletion
    topic       whose partitions they are
    at, due     when it was asked for, and from when on the files are removed: milliseconds since the epoch
    partitions  in the order of their numbers
    restoring   it is being taken back: where a directory has its old name again, that is a restored partition
    """

    id: str
    topic: str
    at: int
    due: int
    partitions: tuple[DeletedPartition, ...]
    restoring: bool = False

    @property
    def delay(self) -> int:
        """Milliseconds for which it can be taken back: the topic's `file.delete.delay.ms` when it was deleted. What the
        topic's name has now says nothing of it, as its settings went with it."""
        return max(0, self.due - self.at)

    def told(self) -> dict[str, object]:
        """What people and programs are told of it."""
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
        """CorruptCheckpointError where it is not what `to_json` writes."""
        try:
            fields = json.loads(data)
            if fields["version"] != 1:
                raise ValueError(f"version {fields['version']}")
            topic = validate_topic(fields["topic"])
            parts = tuple(_partition(topic, each) for each in fields["partitions"])
            at, due = _number(fields["deleted_at"]), _number(fields["removed_at"])
            return cls(deletion, topic, at, due, parts, fields["restoring"] is True)
        except (ValueError, KeyError, TypeError, InvalidNameError) as error:
            raise CorruptCheckpointError(f"expected the record of a deletion: {error!r}") from None


def _partition(topic: str, fields: Mapping[str, Any]) -> DeletedPartition:
    number, directory = _number(fields["number"]), str(fields["directory"])
    partition_directory(topic, number)
    named, found, suffix = parse_partition_directory(directory)
    # Of a long topic the renamed directory has the beginning only.
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
    """The deletions of one store that can still be taken back. Who adds or restores one holds the store's guard.

    directory  BACKING/deleted; made with the first deletion
    _logs      the log directory
    _known     by id, in the order in which they were asked for
    _due       by id: when its files are to be removed, by the store's steady clock
    _lock      guards the list against the thread that removes what is due; held while one is restored
    """

    def __init__(self, backing: Path, logs: Path) -> None:
        self.directory = backing / DELETED
        self._logs = logs
        self._known: dict[str, Deletion] = {}
        self._due: dict[str, int] = {}
        self._lock = threading.RLock()

    def load(self, now: int, steady_now: int, read_only: bool = False) -> None:
        """Read what an earlier run has left. What cannot be read is no deletion that can be taken back: its
        directories are removed like any others that wait for it. A clock that was set back makes no wait longer.

        read_only  nothing is removed here"""
        if not self.directory.is_dir():
            return
        found = []
        for place in sorted(self.directory.iterdir()):
            try:
                deletion = Deletion.from_json(
                    place.name, read_bounded(place / DELETION_RECORD, _LONGEST_RECORD)
                )
            except (FileNotFoundError, NotADirectoryError):
                # Its removal, or its making, was under way.
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
        """Those that can be taken back, the newest first, each with the partitions that can."""
        with self._lock:
            present = [self._present(each) for each in reversed(self._known.values())]
        return [each for each in present if each.partitions]

    def every(self) -> list[Deletion]:
        """All that are known, also those of which nothing is left."""
        with self._lock:
            return list(self._known.values())

    def newest(self, topic: str, number: int | None = None, deletion: str | None = None) -> Deletion | None:
        """The newest one of a topic, or of a partition with that one alone; None where there is none."""
        for found in self.all():
            if found.topic != topic or deletion not in (None, found.id):
                continue
            if number is None:
                return found
            parts = tuple(each for each in found.partitions if each.number == number)
            if parts:
                return replace(found, partitions=parts)
        return None

    def _present(self, deletion: Deletion) -> Deletion:
        parts = tuple(each for each in deletion.partitions if (self._logs / each.directory).is_dir())
        return replace(deletion, partitions=parts)

    def place(self, deletion: Deletion) -> Path:
        """Where its record is, the topic's settings and its inbox."""
        return self.directory / deletion.id

    def waiting(self) -> set[str]:
        """Names of directories that a deletion answers for."""
        return {part.directory for each in self._known.values() for part in each.partitions}

    def restored(self) -> list[tuple[Deletion, DeletedPartition]]:
        """Partitions that have their names again, while a crash has kept them from being known again."""
        return [
            (each, part)
            for each in self._known.values()
            if each.restoring
            for part in each.partitions
            if not (self._logs / part.directory).exists()
        ]

    # -- changing -------------------------------------------------------------------------------------

    def add(self, deletion: Deletion, due: int) -> None:
        """Write down what is about to be deleted; `due` is the time of the removal, by the steady clock."""
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
                    # What it has brought back is deleted again, or was: it knows nothing of what is there later.
                    self._forget(before)
            self._known[deletion.id] = deletion
            self._due[deletion.id] = due

    def _is_unfinished(self, deletion: Deletion) -> bool:
        """Whether all of its partitions are back, and an error has stopped what comes behind that."""
        return deletion.restoring and not self._present(deletion).partitions

    @contextlib.contextmanager
    def restoring(self, deletion: Deletion) -> Iterator[None]:
        """While this goes on, nothing is removed; it is written down, so that a crash does not lose what is known."""
        with self._lock:
            if deletion.id not in self._known:
                raise FileNotFoundError(f"{deletion.id} is removed already")
            self._write(replace(self._known[deletion.id], restoring=True))
            try:
                yield
            except BaseException:
                # With its inbox perhaps: where every partition has its name again, the next start does the rest.
                if self._present(self._known[deletion.id]).partitions:
                    self.settle(deletion.id)
                raise
            self.settle(deletion.id)

    def settle(self, deletion: str) -> None:
        """Forget what has been restored of it; all of it, where nothing is left."""
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
        # What cannot be removed now, is at the next start.
        with contextlib.suppress(OSError):
            shutil.rmtree(place)

    def hand_over(self, now: int, removals: Removals) -> None:
        """What is due cannot be taken back any more: its directories are to be removed."""
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
