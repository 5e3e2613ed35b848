"""`groups/<group>/<topic>-<n>` and what lies beside it: how far a group has read a partition, and what it has not read.

    <topic>-<n>                    the position: read it, or write another one; `topicfs.fs.positions` has the grammar
    <topic>-<n>.next               position and end, two numbers: `read -r from to < orders-0.next`
    <topic>-<n>.lag                how many offsets lie between the two
    <topic>-<n>.pending.<fmt>      the records between the two, as they were when the file was opened. Opened for
                                   reading and writing it takes the line `commit`, when it was read to its end

The same files in a member's directory speak for that member: they set positions only of what is its own.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from topicfs.engine.batch.table import Bytes
from topicfs.engine.errors import OffsetOutOfRangeError, shown
from topicfs.engine.files.integers import parse_int64
from topicfs.engine.groups.groups import Groups, Worker
from topicfs.engine.partition.partition import Partition
from topicfs.fs import errors
from topicfs.fs.context import Context
from topicfs.fs.entry import SERIALS, Entry, FleetingFile, Handle, version_of, wants_writing
from topicfs.fs.formats import Format
from topicfs.fs.positions import NONE, offset_of, parse_position
from topicfs.fs.tree.control_files import ControlFile, TakeBack
from topicfs.fs.tree.partition_entry import PartitionEntry
from topicfs.fs.tree.ranges import ResolvedRange
from topicfs.fs.views.handle import ViewHandle
from topicfs.fs.views.view import View

COMMIT = "commit"
"""The line by which what was read of a pending file is committed."""


@dataclass(frozen=True, slots=True)
class Reader:
    """Who reads a partition in a group.

    worker  the member that it is; None for nobody of the group's members
    """

    context: Context
    group: str
    key: tuple[str, int]
    worker: Worker | None = None

    @property
    def groups(self) -> Groups:
        return self.context.groups

    def position(self) -> int | None:
        """Return the present position, None for none."""
        found = self.groups.position(self.group, self.key)
        return None if found is None else found.offset

    def pending(self) -> tuple[int, int]:
        """Return the first offset that is not read, and the end that readers see."""
        now = self.context.store.partition(*self.key).offsets
        return min(max(self.position() or 0, now.start), now.stable), now.stable

    def commit(
        self, offset: int, expected: dict[tuple[str, int], int | None] | None, read: Partition
    ) -> None:
        """Set the position, of the partition that was read."""
        try:
            self.groups.commit(self.group, {self.key: offset}, expected, self.worker, partitions=(read,))
        except OffsetOutOfRangeError as error:
            # Here the offset is not a name that was looked up, but what was written.
            raise errors.BadInputError(str(error)) from None

    def mtime_ns(self) -> int:
        """Return when the position was set, or was first seen in a cluster."""
        found = self.groups.seen(self.group, self.key)
        return 0 if found is None else max(0, found.committed_ms) * 1_000_000


@dataclass(eq=False)
class PositionFile(ControlFile):
    """A position; `none` where nobody has set one. rm removes it."""

    reader: Reader

    @property
    def is_current(self) -> bool:
        # Each commit asks for the name several times: to look it up again takes as long as the commit itself.
        reader = self.reader
        return reader.worker is None and reader.key in reader.context.store and reader.group in reader.groups

    def mtime_ns(self) -> int:
        return self.reader.mtime_ns()

    def content(self) -> bytes:
        found = self.reader.position()
        return f"{NONE if found is None else found}\n".encode()

    def apply(self, lines: Sequence[str]) -> TakeBack | None:
        if len(lines) > 1:
            raise errors.BadInputError(f"expected one position, found {len(lines)} lines")
        reader, wanted = self.reader, parse_position(lines[0])
        views = reader.context.views(*reader.key)
        views.writers.await_closing()
        offset = offset_of(wanted.place, views.partition)
        reader.commit(offset, {reader.key: wanted.expected} if wanted.is_guarded else None, views.partition)
        return None  # Somebody may have gone on from there.

    def persist(self) -> None:
        self.reader.groups.flush(self.reader.group)

    def remove(self) -> None:
        if self.reader.worker is not None:
            super().remove()
        self.reader.groups.forget(self.reader.group, self.reader.key)


@dataclass(eq=False)
class NextFile(FleetingFile):
    """The first offset that is not read, and the end, with a space between them."""

    context: Context
    reader: Reader

    def make(self) -> bytes:
        self.context.views(*self.reader.key).writers.await_closing()
        return b"%d %d\n" % self.reader.pending()


@dataclass(eq=False)
class LagFile(FleetingFile):
    """How many offsets are not read."""

    context: Context
    reader: Reader

    def make(self) -> bytes:
        self.context.views(*self.reader.key).writers.await_closing()
        first, end = self.reader.pending()
        return b"%d\n" % (end - first)


@dataclass(eq=False)
class PendingFile(PartitionEntry):
    """The records that are not read. Each look-up of the name gives a new file, of what there is then."""

    reader: Reader
    format: Format

    permissions = 0o666

    def at(self, version: int) -> Entry:
        known = self.views.ranges.get(version)
        if known is not None and known.path == self.path:
            return known
        self.views.writers.await_closing()
        position = self.reader.position()
        first, end = self.reader.pending()
        found = PendingRecords(
            self.path, self.views, self.format, first, end, True, reader=self.reader, position=position
        )
        self.views.ranges.keep(found.version, found)
        return found

    def size(self) -> int:
        return self.at(0).size()

    def xattrs(self) -> dict[str, bytes]:
        return self.at(0).xattrs()

    def open(self, flags: int) -> Handle:
        return self.at(0).open(flags)


@dataclass(eq=False, kw_only=True)
class PendingRecords(ResolvedRange):
    """The records that were not read at a look-up.

    position  what the position was then
    """

    reader: Reader
    position: int | None

    permissions = 0o666

    def open(self, flags: int) -> Handle:
        if not wants_writing(flags):
            return super().open(flags)
        if flags & os.O_ACCMODE != os.O_RDWR or flags & os.O_TRUNC:
            raise errors.AppendOnlyError(
                f"{self.path}: opened for reading and writing, by <>, it takes the line {COMMIT}"
            )
        return PendingHandle(self, self._view())


class PendingHandle(ViewHandle):
    """A reader of pending records that may commit them. What was there at its open is what it commits.

    _records   what it reads
    _position  the position that it goes on from: it commits only if that is still the position
    _read_to   how many bytes were read
    """

    def __init__(self, records: PendingRecords, view: View) -> None:
        super().__init__(view, content=version_of("pending", next(SERIALS)))
        self._records = records
        self._position = records.position
        self._read_to = 0

    def read(self, position: int, into: Bytes) -> int:
        done = super().read(position, into)
        self._read_to = max(self._read_to, position + done)
        reader = self._records.reader
        if reader.worker is not None:
            reader.groups.hear(reader.group, reader.worker)
        return done

    def window(self, position: int) -> None:
        # Each read counts: what was not read is not committed.
        return None

    def write(self, data: Bytes, position: int = 0) -> int:
        for line in data.tobytes().decode("utf-8", "replace").split("\n"):
            if line.strip():
                self._commit(line.strip())
        return int(data.size)

    def persist(self) -> None:
        self._records.reader.groups.flush(self._records.reader.group)

    def _commit(self, word: str) -> None:
        records = self._records
        assert records.end is not None, "pending records have an end"
        offset = records.end if word == COMMIT else parse_int64(word)
        if offset is None or not records.start <= offset <= records.end:
            raise errors.BadInputError(
                f"expected {COMMIT}, or an offset from {records.start} to {records.end}, found {shown(word)}"
            )
        size = self._view.size()
        if word == COMMIT and self._read_to < size:
            raise errors.BadInputError(
                f"expected that all {size} bytes were read before they are committed, found {self._read_to}"
            )
        if word == COMMIT and self._position is not None and self._position > offset:
            # Somebody has read further than is shown here, as in a mirror that is behind. That is not taken back.
            return
        records.reader.commit(offset, {records.reader.key: self._position}, records.views.partition)
        self._position = offset
