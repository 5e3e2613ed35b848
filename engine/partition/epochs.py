"""Leader epochs: the offset from which each epoch's leader wrote. File `leader-epoch-checkpoint`.

0\\n                     version            a checkpoint, see engine.files.checkpoint
<entry count>\\n
<epoch> <start offset>\\n ...               both rise from line to line
"""

from __future__ import annotations

import logging
import os
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from topicfs.engine.errors import CorruptCheckpointError, lacks_room
from topicfs.engine.files.checkpoint import read_lines, write_lines, write_lines_if_directory_exists
from topicfs.engine.files.integers import parse_int32, parse_int64
from topicfs.engine.files.regular import open_regular
from topicfs.engine.record import NO_LEADER_EPOCH, NO_OFFSET

log = logging.getLogger(__name__)


class EpochEntry(NamedTuple):
    """An epoch, and the offset of the first batch that its leader wrote."""

    epoch: int
    start_offset: int


_epoch = attrgetter("epoch")
_start_offset = attrgetter("start_offset")


class LeaderEpochs:
    """The leader epochs of one partition. Look-ups need no lock: each reads `entries` once. Changes need it.

    path     path of the checkpoint file
    entries  epochs and start offsets, both rising; replaced in one step
    dirty    whether `entries` differ from the file: a truncation was not flushed yet
    unwritten  whether the file also lacks epochs that a recovery found, which is so while there is no room for them
    read_only  changes are made in memory only
    """

    __slots__ = ("dirty", "entries", "path", "read_only", "unwritten")

    def __init__(self, path: Path, entries: tuple[EpochEntry, ...], read_only: bool = False) -> None:
        self.path = path
        self.entries = entries
        self.dirty = False
        self.unwritten = False
        self.read_only = read_only

    @classmethod
    def open(cls, path: Path) -> LeaderEpochs:
        """Read the file, or create an empty one, where there is room: its first epoch creates it too.
        CorruptCheckpointError if the file breaks the format."""
        try:
            # Not Path.touch, which would also change the time of a file that exists.
            os.close(open_regular(path, os.O_RDONLY | os.O_CREAT, 0o644))
        except OSError as error:
            if not lacks_room(error):
                raise
        return cls(path, _parse(path, read_lines(path)))

    @classmethod
    def lost(cls, path: Path) -> LeaderEpochs:
        """Begin without epochs, because the file is damaged. It stays so until `flush` writes those that the log has:
        a crash before then must not leave a file that looks complete."""
        epochs = cls(path, ())
        epochs.dirty = epochs.unwritten = True
        return epochs

    @classmethod
    def look(cls, path: Path) -> LeaderEpochs:
        """Read the file without ever changing it. Without a file there are no epochs."""
        return cls(path, _parse(path, read_lines(path)), read_only=True)

    # -- look-ups -----------------------------------------------------------------------------------

    @property
    def latest_epoch(self) -> int | None:
        """Return the newest epoch, or None if there is none."""
        entries = self.entries
        return entries[-1].epoch if entries else None

    def epoch_for_offset(self, offset: int) -> int | None:
        """Return the epoch in which the record at `offset` was written, or None below the first entry."""
        entries = self.entries
        at = bisect_right(entries, offset, key=_start_offset)
        return entries[at - 1].epoch if at else None

    def end_offset_for(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """Return the largest epoch that is not above `epoch`, and where it ends; (−1, −1) if that is not known.

        For an epoch below the first entry, return that epoch and the first entry's start."""
        entries = self.entries
        if epoch < 0 or not entries or epoch > entries[-1].epoch:
            return NO_LEADER_EPOCH, NO_OFFSET
        if epoch == entries[-1].epoch:
            return epoch, log_end_offset
        at = bisect_right(entries, epoch, key=_epoch)
        return (entries[at - 1].epoch if at else epoch), entries[at].start_offset

    # -- changes ------------------------------------------------------------------------------------

    def assign(self, epoch: int, start_offset: int) -> bool:
        """Record that a leader of `epoch` writes from `start_offset` on. Return whether that is new.

        This is called before each append. Entries at the end that contradict it are removed. The file is written at
        once."""
        return self.assign_all(((epoch, start_offset),))

    def assign_all(self, pairs: Iterable[tuple[int, int]]) -> bool:
        """Assign each pair of epoch and start offset, and write the file once. Used to replay a log."""
        changed = self._with(pairs)
        if changed is None:
            return False
        self._store(changed)
        return True

    def assign_where_there_is_room(self, pairs: Iterable[tuple[int, int]]) -> None:
        """Assign as `assign_all` does what a recovery found. If there is no room to write it, it stays in memory until
        the next `flush`."""
        changed = self._with(pairs)
        if changed is None:
            return
        if not self.unwritten:
            try:
                self._store(changed)
            except OSError as error:
                if not lacks_room(error):
                    raise
                log.warning(f"{self.path}: no room to write it: {error}")
                self.unwritten = True
        if self.unwritten:
            self._replace(changed)

    def _with(self, pairs: Iterable[tuple[int, int]]) -> tuple[EpochEntry, ...] | None:
        """Return the entries with these pairs of epoch and start offset; None if they stay as they are."""
        latest = self.entries[-1] if self.entries else None
        changed: list[EpochEntry] | None = None
        removed = 0
        for epoch, start_offset in pairs:
            if epoch < 0 or start_offset < 0:
                raise ValueError(
                    f"{self.path}: expected an epoch and a start offset of at least 0, "
                    f"found {epoch} and {start_offset}"
                )
            if latest is not None and latest.epoch == epoch and latest.start_offset <= start_offset:
                continue
            if changed is None:
                changed = list(self.entries)
            while changed and (changed[-1].epoch >= epoch or changed[-1].start_offset >= start_offset):
                changed.pop()
                removed += 1
            latest = EpochEntry(epoch, start_offset)
            changed.append(latest)
        if changed is None:
            return None
        if removed:
            log.info(f"{self.path}: {removed} epochs gave way to newer ones, the latest is {changed[-1]}")
        return tuple(changed)

    def truncate_from_end(self, end_offset: int) -> None:
        """Remove the entries that start at or behind `end_offset`. A negative one removes none. The file is not
        written."""
        if end_offset >= 0:
            entries = self.entries
            self._replace(entries[: bisect_left(entries, end_offset, key=_start_offset)])

    def truncate_from_start(self, start_offset: int) -> None:
        """Make the epoch at `start_offset` begin there, and remove the entries before it. The file is not written."""
        entries = self.entries
        at = bisect_right(entries, start_offset, key=_start_offset)
        if at:
            self._replace((EpochEntry(entries[at - 1].epoch, start_offset), *entries[at:]))

    def clear(self) -> None:
        """Remove all entries. The file is written at once."""
        self._store(())

    def flush(self) -> None:
        """Write the file if a truncation, or what a recovery found, has not been written yet."""
        if self.dirty and not self.read_only:
            # The write was delayed, so the partition's directory may no longer exist.
            self.dirty = not write_lines_if_directory_exists(self.path, _lines(self.entries))
            self.unwritten = False

    def _replace(self, entries: tuple[EpochEntry, ...]) -> None:
        if entries != self.entries:
            self.entries = entries
            self.dirty = True

    def _store(self, entries: tuple[EpochEntry, ...]) -> None:
        # The file is written first: if that fails, nothing has changed.
        if not self.read_only:
            write_lines(self.path, _lines(entries))
        self.entries = entries
        self.dirty = self.unwritten = False


def _lines(entries: tuple[EpochEntry, ...]) -> list[str]:
    return [f"{epoch} {start_offset}" for epoch, start_offset in entries]


def _parse(path: Path, lines: list[list[str]]) -> tuple[EpochEntry, ...]:
    entries: list[EpochEntry] = []
    for number, fields in enumerate(lines, start=3):
        epoch = parse_int32(fields[0]) if len(fields) == 2 else None
        start_offset = parse_int64(fields[1]) if len(fields) == 2 else None
        if epoch is None or start_offset is None or epoch < 0 or start_offset < 0:
            raise CorruptCheckpointError(
                f"{path}: line {number}: expected <epoch> <start offset>, numbers not negative, "
                f"found {' '.join(fields)[:80]!r}"
            )
        if entries and (epoch <= entries[-1].epoch or start_offset <= entries[-1].start_offset):
            raise CorruptCheckpointError(
                f"{path}: line {number}: expected an epoch above {entries[-1].epoch} that starts behind "
                f"offset {entries[-1].start_offset}, found epoch {epoch} from offset {start_offset}"
            )
        entries.append(EpochEntry(epoch, start_offset))
    return tuple(entries)
