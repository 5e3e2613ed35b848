"""A segment: one `.log` file of batches, and the indexes that say where to search in it.

    <base offset, 20 digits>.log        engine.segment.batch_file
    <base offset, 20 digits>.index      engine.segment.offset_index
    <base offset, 20 digits>.timeindex  engine.segment.time_index
    <base offset, 20 digits>.txnindex   engine.segment.transaction_index, which the partition fills

A suffix behind the complete name shows the state of the files: `.cleaned`, `.swap`, `.deleted`.

This module has the life of these files: creation, names, rolling, sealing, pins, deletion. What is in them is found
by `engine.segment.finder`, appended by `engine.segment.appender`, and recovered by `engine.segment.recovery`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

from topicfs.engine.batch.table import Bytes, Longs
from topicfs.engine.errors import ClosedError, CorruptSegmentError, ReadOnlyError, lacks_room
from topicfs.engine.files.atomic import sync_directory
from topicfs.engine.format.paths import (
    DELETED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    file_of,
)
from topicfs.engine.format.transaction_index import AbortedTransaction
from topicfs.engine.record import MAX_INT32, NO_TIMESTAMP, Clock
from topicfs.engine.segment import recovery
from topicfs.engine.segment.appender import Appender
from topicfs.engine.segment.batch_file import BatchFile, Found
from topicfs.engine.segment.descriptors import Buffer, Descriptors, PinnedFile
from topicfs.engine.segment.finder import Finder
from topicfs.engine.segment.offset_index import OffsetIndex
from topicfs.engine.segment.settings import SegmentSettings
from topicfs.engine.segment.time_index import TimeIndex
from topicfs.engine.segment.transaction_index import TransactionIndex

log = logging.getLogger(__name__)

_building = threading.Lock()


class Segment:
    """One `.log` file with its indexes. It has one appender at a time and any number of readers.

    An instance begins with what is in its files. None of them is opened, nor its size read, before that is needed.

    directory, base_offset, suffix  make up the files' names
    settings       the settings of the segment
    created_ms     time when it was created, reopened or emptied: without timestamps its age counts from here
    filled_ms      time when its first batch was appended, or it was reopened: without appends its age counts from here
    jitter         a number drawn at opening; modulo the setting it says how much earlier to roll
    log            the batches in the `.log`
    appender       appends to the log and to the indexes; None unless the segment is active
    unwritten      whether rebuilt indexes are in memory only, for want of room: see `write_rebuilt`
    _finder        finds offsets and times by both indexes; None until needed
    _transactions  the index of aborted transactions; None until needed
    """

    __slots__ = (
        "_clock",
        "_descriptors",
        "_finder",
        "_transactions",
        "appender",
        "base_offset",
        "created_ms",
        "directory",
        "filled_ms",
        "jitter",
        "log",
        "settings",
        "suffix",
        "unwritten",
    )

    def __init__(
        self,
        directory: Path,
        base_offset: int,
        settings: SegmentSettings,
        clock: Clock,
        descriptors: Descriptors,
        size: int | None = None,
        suffix: str = "",
    ) -> None:
        self.directory = directory
        self.base_offset = base_offset
        self.settings = settings
        self.suffix = suffix
        self.created_ms = self.filled_ms = clock()
        self.jitter = random.getrandbits(31)
        self.log = BatchFile(PinnedFile(self.path_of(LOG_SUFFIX), descriptors), base_offset, size)
        self.appender: Appender | None = None
        self.unwritten = False
        self._clock = clock
        self._descriptors = descriptors
        self._finder: Finder | None = None
        self._transactions: TransactionIndex | None = None

    @classmethod
    def create(
        cls,
        directory: Path,
        base_offset: int,
        settings: SegmentSettings,
        clock: Clock,
        descriptors: Descriptors,
        suffix: str = "",
    ) -> Segment:
        """Return a new, empty, active segment. FileExistsError if its `.log` exists."""
        segment = cls(directory, base_offset, settings, clock, descriptors, 0, suffix)
        opened = segment.log.file.begin_writing(create=True)
        for index in segment.finder.indexes:
            index.begin()
        segment.finder.largest = (NO_TIMESTAMP, base_offset)
        segment.appender = Appender(segment.finder)
        if settings.preallocate:
            os.ftruncate(opened.fd, settings.segment_bytes)
        return segment

    @classmethod
    def empty(
        cls,
        directory: Path,
        base_offset: int,
        settings: SegmentSettings,
        clock: Clock,
        descriptors: Descriptors,
    ) -> Segment:
        """Return an empty segment without files. A read-only partition shows it instead of creating one."""
        segment = cls(directory, base_offset, settings, clock, descriptors)
        segment.log = BatchFile(PinnedFile.anonymous(descriptors), base_offset)
        recovery.hide(segment.finder)
        return segment

    def __repr__(self) -> str:
        return f"Segment({self.log.path})"

    # -- its parts ------------------------------------------------------------------------------------

    def path_of(self, extension: str) -> str:
        """Return the path of its file with an extension."""
        return f"{self.directory}/{file_of(self.base_offset, extension)}{self.suffix}"

    @property
    def path(self) -> Path:
        """Return the path of the `.log` file."""
        return Path(self.log.path)

    @property
    def size(self) -> int:
        """Return the published bytes of the `.log`."""
        return self.log.size

    @property
    def mended(self) -> bool:
        """Return whether its indexes were rebuilt from the log, because they did not fit it."""
        return self._finder is not None and self._finder.mended

    @property
    def finder(self) -> Finder:
        """Return what finds offsets and times in the log."""
        finder = self._finder
        if finder is None:
            with _building:
                if self._finder is None:
                    base, settings, descriptors = self.base_offset, self.settings, self._descriptors
                    most = settings.max_index_bytes
                    self._finder = Finder(
                        self.log,
                        OffsetIndex(self.path_of(INDEX_SUFFIX), base, most, descriptors=descriptors),
                        TimeIndex(self.path_of(TIME_INDEX_SUFFIX), base, most, descriptors=descriptors),
                        settings.index_interval_bytes,
                    )
                finder = self._finder
        return finder

    @property
    def offset_index(self) -> OffsetIndex:
        return self.finder.offset_index

    @property
    def time_index(self) -> TimeIndex:
        return self.finder.time_index

    @property
    def transactions(self) -> TransactionIndex:
        """Return the index of transactions that were aborted by a marker in this segment."""
        index = self._transactions
        if index is None:
            with _building:
                if self._transactions is None:
                    self._transactions = TransactionIndex.open(
                        Path(self.path_of(TRANSACTION_INDEX_SUFFIX)), self.base_offset
                    )
                index = self._transactions
        return index

    def freeze(self) -> None:
        """Fix the files as they are now: see `BatchFile.freeze`. They belong to another process."""
        self.log.freeze()
        self._transactions = self._frozen_transactions()

    def _frozen_transactions(self) -> TransactionIndex:
        return TransactionIndex.frozen(Path(self.path_of(TRANSACTION_INDEX_SUFFIX)), self.base_offset)

    def detach(self) -> None:
        """Keep the entries of both indexes in memory, as far as they are about the published bytes: another process
        appends to the files."""
        offsets, times = self.finder.indexes
        if not offsets.in_memory:
            offsets.detach(offsets.entries_before(self.size))
            times.detach(times.entries_below(self.next_offset()))

    def reattach(self) -> None:
        """Use the files of the indexes again: whoever has them has sealed the segment."""
        for index in self.finder.indexes:
            index.reattach()
        self._transactions = self._frozen_transactions()

    def hold_transactions(self, aborted: Iterable[AbortedTransaction]) -> None:
        """Use these aborted transactions instead of those in the file. The file is not changed."""
        self._transactions = TransactionIndex.in_memory(self.base_offset, aborted)

    # -- what is where --------------------------------------------------------------------------------

    def position_of(self, offset: int, start_position: int | None = None) -> Found | None:
        """Return the first batch whose last offset is `offset` or above: see `Finder.position_of`."""
        return self.finder.position_of(offset, start_position)

    def next_offset(self) -> int:
        """Return the offset behind the last batch, or the base offset without a batch."""
        return self.finder.next_offset()

    @property
    def max_timestamp(self) -> int:
        """Return the largest timestamp of its batches, or -1 if there is none."""
        return self.finder.latest()[0]

    @property
    def offset_of_max_timestamp(self) -> int:
        """Return the last offset of the first batch that has the largest timestamp, or the base offset if there is
        none."""
        return self.finder.latest()[1]

    @property
    def largest_timestamp(self) -> int:
        """Return the largest timestamp. If its batches have none, return the time when the `.log` was last written."""
        largest = self.max_timestamp
        return largest if largest >= 0 else os.stat(self.log.path).st_mtime_ns // 1_000_000

    def first_batch_timestamp(self) -> int | None:
        """Return the max timestamp of the first batch, or None if there is no batch."""
        return self.log.first_batch_timestamp()

    # -- appending ------------------------------------------------------------------------------------

    def _activate(self) -> Appender:
        if self.settings.read_only:
            raise ReadOnlyError(f"{self.log.path}: opened read-only")
        if self.log.file.gone:
            raise ClosedError(f"{self.log.path} was deleted or closed")
        self.settle()
        self.appender = appender = Appender.begin(self.finder)
        return appender

    def append(self, data: Buffer | Bytes, table: Longs, promised: bool = False, keep: int = 0) -> None:
        """Append complete batches: see `Appender.append`. A sealed segment becomes active."""
        appender = self.appender or self._activate()
        if self.log.size == 0:
            self.filled_ms = self._clock()
        appender.append(data, table, promised, keep)

    def make_room(self, length: int) -> bool:
        """Allocate blocks for appends: see `Appender.make_room`. A sealed segment becomes active."""
        return (self.appender or self._activate()).make_room(length)

    def truncate_to(self, offset: int) -> int:
        """Remove the batches that reach `offset`, and make the segment active. Return how many bytes were removed."""
        found = None if offset <= self.base_offset else self.position_of(offset)
        size = self.size
        cut = 0 if offset <= self.base_offset else size if found is None else found[0]
        appender = self.appender or self._activate()
        if cut == 0:
            self.created_ms = self._clock()
        appender.cut(cut, offset)
        return size - cut

    def recover(
        self,
        visit: recovery.Visit,
        before_cut: Callable[[int], None] | None = None,
        aborted: bytearray | None = None,
    ) -> int:
        """Keep the good batches and rebuild the indexes. Return how many bytes were cut off. `before_cut` is called
        with their number while they still exist, to remove what must not outlive them. `visit` fills `aborted` with
        the entries of the transaction index, as they are stored; without it that index stays as it is.

        `visit` gets every chunk of good batches, valid during the call only. Its errors are passed on. So is
        OffsetOverflowError for a good batch too far above the base: the segment can then be truncated, or read and
        split. Nothing else may read it during the recovery."""
        self.log.size = os.stat(self.log.path).st_size
        if self.appender is None:
            self.log.file.begin_writing()
            self.appender = Appender(self.finder)
        cut = recovery.recover(self.appender, visit, before_cut)
        self.appender = None
        self.write_rebuilt(aborted)
        return cut

    # -- rebuilt indexes ------------------------------------------------------------------------------

    def write_rebuilt(self, aborted: bytearray | None) -> None:
        """Write what a recovery has rebuilt, as far as the files differ from it: both indexes, which are in memory, and
        the entries of the transaction index, unless they are None.

        The offset index comes last: a segment without one is recovered by every start, also a broker's. If there is no
        room for all of them, the rest stays in memory, and the segment has no offset index on disk until there is."""
        is_new = aborted is not None
        try:
            if aborted is not None:
                self.transactions.replace(bytes(aborted))
                is_new = False
            self._write_out()
        except OSError as error:
            if not lacks_room(error):
                raise
            self._leave_unwritten(error, bytes(aborted or b"") if is_new else None)

    def hold_aborted(self, error: OSError) -> None:
        """Keep the indexes in memory only from here on: there is no room for another entry of the transaction index.
        The segment has no offset index on disk then, as after a recovery without room."""
        for index in self.finder.indexes:
            index.detach(index.entries)
        self._leave_unwritten(error, b"".join(entry.to_bytes() for entry in self.transactions.all()))

    def _leave_unwritten(self, error: OSError, aborted: bytes | None) -> None:
        log.warning(f"{self.log.path}: no room for its indexes, they are in memory: {error}")
        self.unwritten = self.finder.mended = True
        if aborted is not None:
            self.transactions.hold(aborted)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path_of(INDEX_SUFFIX))
        sync_directory(self.directory)

    def _write_out(self) -> None:
        offset_index, time_index = self.finder.indexes
        self.transactions.write_out()
        time_index.write_out()
        if offset_index.exists():
            offset_index.write_out()
            return
        # Where it is there, no start looks at a segment below the recovery point: so all of them are on disk by then.
        time_index.sync()
        offset_index.write_out(whole=True)

    def settle(self) -> bool:
        """Write rebuilt indexes to disk that are in memory only, if there are. Return False if there is still no
        room."""
        if self.unwritten:
            try:
                self._write_out()
                for index in self.finder.indexes:
                    index.sync()
                sync_directory(self.directory)
            except OSError as error:
                if not lacks_room(error):
                    raise
                log.debug(f"{self.log.path}: still no room for its indexes: {error}")
                return False
            self.unwritten = False
            log.info(f"{self.log.path}: its indexes, for which there was no room, are on disk")
        return True

    # -- rolling --------------------------------------------------------------------------------------

    def time_waited(self, now: int, incoming_timestamp: int) -> int:
        """Return the milliseconds between the first batch and an incoming one, or by the clock if there are no
        timestamps."""
        first = self.log.first_batch_timestamp()
        return now - self.created_ms if first is None or first < 0 else incoming_timestamp - first

    def should_roll(
        self,
        incoming_size: int,
        incoming_max_timestamp: int,
        incoming_last_offset: int,
        now: int,
        segment_bytes: int,
        segment_ms: int,
    ) -> bool:
        """Return whether an append has to go into a new segment."""
        size, finder = self.log.size, self.finder
        return (
            size > segment_bytes - incoming_size
            or not 0 <= incoming_last_offset - self.base_offset <= MAX_INT32
            or finder.offset_index.is_full
            or finder.time_index.is_full
            or (size > 0 and self.time_waited(now, incoming_max_timestamp) > self._patience(segment_ms))
        )

    def has_waited(self, now: int, segment_ms: int) -> bool:
        """Return whether its first batch is so old that the segment must be sealed even without a new append."""
        return self.size > 0 and now - self.filled_ms > self._patience(segment_ms)

    def _patience(self, segment_ms: int) -> int:
        most = min(self.settings.jitter_ms, segment_ms)
        return segment_ms - (self.jitter % most if most > 0 else 0)

    def seal(self) -> None:
        """End an active segment: write the last time entry, cut the files to their content, and close them for
        writing."""
        if self.appender is not None:
            self.settle()
            self.appender.seal()
            self.appender = None

    def date_behind(self, before: Segment) -> None:
        """Make the `.log` at least a millisecond younger than the one before. A reader that takes segments in the
        order of their times, as Spark's file streams do, then reads them in the order of their offsets."""
        earlier = os.stat(before.log.path).st_mtime_ns // 1_000_000
        mine = os.stat(self.log.path)
        if mine.st_mtime_ns // 1_000_000 <= earlier:
            os.utime(self.log.path, ns=(mine.st_atime_ns, (earlier + 1) * 1_000_000))

    # -- files ----------------------------------------------------------------------------------------

    def keep_mended(self) -> None:
        """Write the rebuilt indexes to disk, also those that nobody has looked at and whose length is wrong. The caller
        must be the only one that changes the segment's files. An error leaves them to the next stop: nothing is lost
        without them."""
        if self.settings.read_only:
            return
        try:
            if not self.settle():
                return
            self._mend_lengths()
            if self.mended:
                for index in self.finder.indexes:
                    index.keep_mended()
        except OSError as error:
            log.warning(f"{self.log.path}: its indexes cannot be made anew on disk: {error}")

    def _mend_lengths(self) -> None:
        """Rebuild the indexes if a file is missing or ends within an entry: that shows without reading any. Those of an
        appender get their length when it seals them."""
        if self.appender is not None:
            return
        for kind, suffix in ((OffsetIndex, INDEX_SUFFIX), (TimeIndex, TIME_INDEX_SUFFIX)):
            path = self.path_of(suffix)
            wrong = kind.wrong_length(path)
            if wrong:
                self.finder.mend(path, wrong)

    def flush(self) -> None:
        """fsync the `.log` and both indexes."""
        self.log.file.sync()
        for index in self.finder.indexes:
            index.flush()

    def close(self) -> None:
        """Seal it if it is active, and close everything. Reads raise ClosedError from here on."""
        self.seal()
        self.abandon()

    def abandon(self) -> None:
        """Close everything, and leave the files as they are. Reads raise ClosedError from here on."""
        self._end_appending()
        self.log.file.close()
        self._abandon_indexes()

    def _end_appending(self) -> None:
        if self.appender is not None:
            self.appender.end()
            self.appender = None

    def _abandon_indexes(self) -> None:
        if self._finder is not None:
            for index in self._finder.indexes:
                index.abandon()
        if self._transactions is not None:
            self._transactions.close()

    def change_suffix(self, old: str, new: str) -> None:
        """Rename the files that exist. Reads go on in the meantime."""
        if self.suffix != old:
            raise ValueError(f"{self.log.path}: expected the suffix {old!r}, found {self.suffix!r}")
        for index in self.finder.indexes:
            index.hold()
        self._rename(new)
        for index in self.finder.indexes:
            index.release()

    def follow_name(self, suffix: str) -> None:
        """Use the names that another process has given to the files."""
        if suffix != self.suffix:
            self.suffix = suffix
            self.log.file.path = self.path_of(LOG_SUFFIX)
            self.finder.offset_index.path = self.path_of(INDEX_SUFFIX)
            self.finder.time_index.path = self.path_of(TIME_INDEX_SUFFIX)

    def _rename(self, suffix: str) -> None:
        # All index objects exist from here on, so that none is created for a name that is about to disappear.
        finder, transactions = self.finder, self.transactions
        self.suffix = suffix
        self.log.file.rename(self.path_of(LOG_SUFFIX))
        finder.offset_index.rename(self.path_of(INDEX_SUFFIX))
        finder.time_index.rename(self.path_of(TIME_INDEX_SUFFIX))
        transactions.rename(Path(self.path_of(TRANSACTION_INDEX_SUFFIX)))

    @property
    def pins(self) -> int:
        """Return how many readers hold the segment."""
        return self.log.file.pins

    def pin(self) -> None:
        """Keep the segment readable until `unpin`. ClosedError if it was deleted or closed before."""
        self.log.file.pin()

    def unpin(self) -> None:
        """Release one pin."""
        self.log.file.unpin()
        if self.log.file.gone and not self.pins:
            self._abandon_indexes()

    def mark_deleted(self) -> None:
        """Rename the files to `.deleted`. Only readers that pinned the segment can still read it, even when a later
        segment's files take its names. Others get ClosedError."""
        if self.log.file.gone:
            return
        self._end_appending()
        self.log.file.condemn()
        self._abandon_indexes()
        if self.pins:
            for index in self.finder.indexes:
                index.hold()
        self._rename(self.suffix + DELETED_SUFFIX)
        if not self.pins:
            self.transactions.close()

    def depart(self) -> None:
        """Another process has removed or replaced the files. Only readers that pinned the segment can still read it, as
        far as it is open, or its files are to be found under their names with `.deleted`."""
        if self.log.file.gone:
            return
        try:
            self.transactions.keep()
        except CorruptSegmentError:
            # Without it nobody knows which records were aborted.
            self.log.file.close()
        self.log.file.depart()
        if not self.pins:
            self._abandon_indexes()
            return
        for index in self.finder.indexes:
            index.path += DELETED_SUFFIX
            index.hold()

    def delete(self) -> bool:
        """Remove the files. Return False, and do nothing, while the segment is pinned."""
        if self.pins:
            return False
        self._end_appending()
        self.log.file.close()
        for index in self.finder.indexes:
            index.delete()
        self.transactions.delete_if_exists()
        if os.path.exists(self.log.path):
            os.unlink(self.log.path)
        return True
