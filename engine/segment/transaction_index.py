"""The transaction index of a segment. Its file is drawn in `topicfs.engine.format.transaction_index`.

A reader opens the file, reads up to the published size, and closes it: so no descriptor is kept for each of
thousands of segments. Once the index is marked deleted a descriptor is kept instead, because a new segment of the
same base may use the name while a reader still reads the old file.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from topicfs.engine.errors import CorruptIndexError, InvalidOffsetError
from topicfs.engine.files.atomic import write_atomically
from topicfs.engine.files.regular import open_regular
from topicfs.engine.format.paths import DELETED_SUFFIX
from topicfs.engine.format.transaction_index import ENTRY, NOT_KNOWN, VERSION, AbortedTransaction, aborted_in
from topicfs.engine.record import NO_OFFSET
from topicfs.engine.segment.allocation import allocate
from topicfs.engine.segment.descriptors import Identity, identity_of, open_identical

log = logging.getLogger(__name__)

ENTRY_SIZE: Final = ENTRY.size
_ROWS: Final = ENTRY.dtype()
CHUNK_ENTRIES: Final = 2048  # 68 KiB: a read of this size costs little more than a smaller one

Entries = npt.NDArray[Any]


class _Descriptor:
    """An open file that is closed when nobody refers to it any more, so never during a read."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number

    def __del__(self) -> None:
        os.close(self.number)


class TransactionIndex:
    """The aborted transactions of one segment. Readers need no lock; changes are the appender's alone.

    path         path of the file, which exists from the first append on
    base_offset  base offset of the segment; no entry's last offset is below it
    _size        published bytes, which readers see; a multiple of 34 unless the file was not when opened
    _last_offset last offset of the last entry, or the offset before the segment's first; None until needed
    _kept        the open file, once the index is marked deleted
    _unwritten   the entries, in memory, while the file does not have them: see `hold`
    _is_dirty    whether something was written since the last flush
    _identity    the file that it must be, if another process may replace it; else None
    """

    __slots__ = (
        "_identity",
        "_is_dirty",
        "_kept",
        "_last_offset",
        "_size",
        "_unwritten",
        "base_offset",
        "path",
    )

    def __init__(self, path: Path, base_offset: int, size: int, identity: Identity | None = None) -> None:
        self.path = path
        self.base_offset = base_offset
        self._size = size
        self._identity = identity
        self._last_offset: int | None = None
        self._kept: _Descriptor | None = None
        self._unwritten: _Descriptor | None = None
        self._is_dirty = False

    @classmethod
    def open(cls, path: Path, base_offset: int) -> TransactionIndex:
        """Return the index at `path`, whose file need not exist. Nothing is read: see `sanity_check`."""
        try:
            size = os.stat(path).st_size
        except FileNotFoundError:
            size = 0
        return cls(path, base_offset, size)

    @classmethod
    def frozen(cls, path: Path, base_offset: int) -> TransactionIndex:
        """Return the index at `path` as it is now, which another process may replace or remove."""
        try:
            status = os.stat(path)
        except FileNotFoundError:
            return cls.in_memory(base_offset, ())
        return cls(path, base_offset, status.st_size, identity_of(status))

    @classmethod
    def in_memory(cls, base_offset: int, aborted: Iterable[AbortedTransaction]) -> TransactionIndex:
        """Return an index of these entries that is in no directory. If there are entries, its file is in memory."""
        entries = list(aborted)
        if not entries:
            return cls(Path(os.devnull), base_offset, 0)
        data = b"".join(entry.to_bytes() for entry in entries)
        kept = _in_memory(data)
        index = cls(Path(f"/proc/self/fd/{kept.number}"), base_offset, len(data))
        index._kept = kept
        return index

    @property
    def entries(self) -> int:
        """Return how many entries there are."""
        return self._size // ENTRY_SIZE

    # -- reading ------------------------------------------------------------------------------------

    def all(self) -> list[AbortedTransaction]:
        """Return every entry, by rising last offset."""
        return [entry for chunk in self._chunks(NO_OFFSET) for entry in aborted_in(chunk.tobytes())]

    def collect(self, fetch_offset: int, upper: int) -> tuple[list[AbortedTransaction], bool]:
        """Return the aborted transactions that overlap [fetch_offset, upper), and whether these are all of them.

        If they are not, the next segment's index may hold more."""
        found: list[AbortedTransaction] = []
        for chunk in self._chunks(fetch_offset):
            decided = np.flatnonzero(chunk["last_stable_offset"] >= upper)
            searched = chunk[: decided[0] + 1] if decided.size else chunk
            found += aborted_in(searched[searched["first_offset"] < upper].tobytes())
            if decided.size:
                return found, True
        return found, False

    def sanity_check(self) -> None:
        """Read everything once. CorruptIndexError if the file breaks the format."""
        for _ in self._chunks(NO_OFFSET):
            pass

    def _chunks(self, offset: int) -> Iterator[Entries]:
        """Yield the checked entries with a last offset of at least `offset`, about two thousand at a time."""
        size = self._size
        if size == 0:
            return
        count = self._count(size)
        descriptor = self._descriptor()
        if descriptor is None:
            return
        at = self._search(descriptor, count, offset)
        previous = self.base_offset - 1
        while at < count:
            chunk = self._read(descriptor, at, min(at + CHUNK_ENTRIES, count))
            self._check(chunk, at, previous)
            if not chunk.size:
                return
            at += chunk.size
            previous = int(chunk["last_offset"][-1])
            if chunk["last_offset"][0] < offset:
                chunk = chunk[np.searchsorted(chunk["last_offset"], offset) :]
            if chunk.size:
                yield chunk

    def _search(self, descriptor: _Descriptor, count: int, offset: int) -> int:
        """Return the entry to begin with: at most a chunk before the first one with a last offset of at least
        `offset`."""
        low, high = 0, count
        while offset > self.base_offset and high - low > CHUNK_ENTRIES:
            middle = (low + high) // 2
            entry = self._read(descriptor, middle, middle + 1)
            if entry.size and entry["last_offset"][0] < offset:
                low = middle + 1
            else:
                high = middle
        return low

    def _read(self, descriptor: _Descriptor, start: int, end: int) -> Entries:
        """Return the entries [start, end), or fewer if the index was cut in the meantime."""
        data = bytearray()
        while len(data) < (end - start) * ENTRY_SIZE:
            position = start * ENTRY_SIZE + len(data)
            part = os.pread(descriptor.number, end * ENTRY_SIZE - position, position)
            if not part:
                break
            data += part
        if len(data) < (end - start) * ENTRY_SIZE and self._size >= end * ENTRY_SIZE:
            found = os.fstat(descriptor.number).st_size
            raise CorruptIndexError(f"{self.path}: expected {self._size} bytes as published, found {found}")
        return np.frombuffer(data, _ROWS, len(data) // ENTRY_SIZE)

    def _check(self, chunk: Entries, number: int, previous: int) -> None:
        """Refuse entries of another version, and last offsets that do not rise above `previous`."""
        wrong = np.flatnonzero(chunk["version"] != VERSION)
        if wrong.size:
            raise CorruptIndexError(
                f"{self.path}: entry {number + wrong[0]}: expected version {VERSION}, "
                f"found {chunk['version'][wrong[0]]}"
            )
        last_offsets = chunk["last_offset"]
        floors = np.concatenate(([previous], last_offsets[:-1]))
        wrong = np.flatnonzero(last_offsets <= floors[: last_offsets.size])
        if wrong.size:
            raise CorruptIndexError(
                f"{self.path}: entry {number + wrong[0]}: expected a last offset above {floors[wrong[0]]}, "
                f"found {last_offsets[wrong[0]]}"
            )

    def _count(self, size: int) -> int:
        if size % ENTRY_SIZE:
            raise CorruptIndexError(f"{self.path}: expected a multiple of {ENTRY_SIZE} bytes, found {size}")
        return size // ENTRY_SIZE

    def _descriptor(self) -> _Descriptor | None:
        """Return the file, open for reading, or None if the index was emptied in the meantime.

        A rename publishes `_kept` before it moves the file, and `path` afterwards; `hold` publishes `_unwritten` before
        it removes the file. So the opened file is the right one if none has changed by then."""
        while True:
            kept = self._unwritten or self._kept
            if kept is not None:
                return kept
            path = self.path
            if self._identity is not None:
                return _Descriptor(open_identical(os.fspath(path), self._identity))
            try:
                opened = _Descriptor(open_regular(path, os.O_RDONLY))
            except FileNotFoundError:
                opened = None
            kept = self._unwritten or self._kept
            if kept is not None:
                return kept
            if self.path is not path:
                continue
            if opened is None and self._size:
                raise FileNotFoundError(f"{path}: expected {self._size} bytes, found no file")
            return opened

    def keep(self) -> None:
        """Keep the file open until `close`, because another process is about to remove it. CorruptSegmentError if it is
        gone."""
        if self._size:
            self._kept = self._descriptor()

    # -- changes, by the appender alone -------------------------------------------------------------

    def make_room(self, entries: int) -> None:
        """Make sure of room for more entries, where the file system can. OSError if there is none: nothing has changed
        then."""
        descriptor = self._writer()
        try:
            allocate(descriptor.number, self._size, entries * ENTRY_SIZE)
        except OSError:
            if not self._size and self._unwritten is None:
                with contextlib.suppress(OSError):
                    os.unlink(self.path)
            raise

    def _writer(self) -> _Descriptor:
        return self._unwritten or _Descriptor(open_regular(self.path, os.O_WRONLY | os.O_CREAT, 0o644))

    def append(self, entry: AbortedTransaction) -> None:
        """Add an entry. Its last offset must be above every earlier one. After an error nothing has changed."""
        size = self._size
        self._count(size)
        last_offset = self._find_last_offset()
        if entry.last_offset <= last_offset:
            raise InvalidOffsetError(
                f"{self.path}: expected a last offset above {last_offset}, found {entry.last_offset}"
            )
        data = entry.to_bytes()
        descriptor = self._writer()
        try:
            _write(descriptor, data, size)
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(descriptor.number, size)
            raise
        self._is_dirty = True
        self._last_offset = entry.last_offset
        self._size = size + ENTRY_SIZE

    def truncate_to(self, offset: int) -> None:
        """Remove the entries whose last offset is at or above `offset`."""
        remaining = 0
        for chunk in self._chunks(NO_OFFSET):
            below = int(np.searchsorted(chunk["last_offset"], offset))
            remaining += below
            if below < chunk.size:
                break
        self._cut(remaining * ENTRY_SIZE)

    # -- rebuilding ---------------------------------------------------------------------------------

    def replace(self, data: bytes) -> None:
        """Have these entries, as they are stored, instead of those in the file, and have them on disk. What the file
        has already is not written again. OSError if there is no room for the rest: the file may have lost entries
        then, see `hold`."""
        size = os.stat(self.path).st_size if os.path.exists(self.path) else 0
        if size or data:
            self._bring(data, size)
        self._size = len(data)
        self._last_offset = None
        self._unwritten = None

    def _bring(self, data: bytes, size: int) -> None:
        descriptor = _Descriptor(open_regular(self.path, os.O_RDWR | os.O_CREAT, 0o644))
        same = min(size, len(data))
        if size % ENTRY_SIZE or os.pread(descriptor.number, same, 0) != data[:same]:
            # A crash leaves the old file, which does not fit the log, or the new one, and nothing in between.
            write_atomically(self.path, data)
            return
        if size > len(data):
            os.ftruncate(descriptor.number, len(data))
        _write(descriptor, data[size:], size)
        # Also what was there already: the process before this one may not have brought it onto the disk.
        os.fsync(descriptor.number)

    def hold(self, data: bytes) -> None:
        """Have these entries, in memory only, until `write_out`: there is no room for them. The file must not be
        believed from here on, so another one takes its name, of the length that says so, which takes no room. Readers
        that have opened the old one go on."""
        self._unwritten = _in_memory(data)
        self._size = len(data)
        self._last_offset = None
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.path)
            descriptor = _Descriptor(open_regular(self.path, os.O_WRONLY | os.O_CREAT, 0o644))
            os.ftruncate(descriptor.number, NOT_KNOWN)
        except OSError as error:
            log.warning(f"{self.path}: cannot be marked as incomplete: {error}")

    def write_out(self) -> None:
        """Write the entries to the file, if they are in memory only. After an error they stay there."""
        held = self._unwritten
        if held is not None:
            self.replace(os.pread(held.number, self._size, 0))

    def flush(self) -> None:
        """fsync the file. To make a new file's name durable, the directory has to be synced."""
        if self._is_dirty:
            # Cleared first: appends during the fsync belong to the next one.
            self._is_dirty = False
            try:
                descriptor = self._descriptor()
                if descriptor is not None:
                    os.fsync(descriptor.number)
            except OSError:
                self._is_dirty = True
                raise

    def rename(self, path: Path) -> None:
        """Move the file to `path`, if it exists. Readers go on reading; appends go to the new name."""
        with contextlib.suppress(FileNotFoundError):
            if self._size:
                self._kept = self._descriptor()
            os.rename(self.path, path)
        self.path = path
        if not path.name.endswith(DELETED_SUFFIX):
            self._kept = None

    def delete_if_exists(self) -> bool:
        """Remove the file. Return whether it existed."""
        self._size = 0
        self._last_offset = None
        self._kept = self._unwritten = None
        self._is_dirty = False
        try:
            os.unlink(self.path)
        except FileNotFoundError:
            return False
        return True

    def close(self) -> None:
        """Close the file."""
        self._kept = None

    def _find_last_offset(self) -> int:
        """Return the last offset of the last entry. For an empty index, return the offset before the segment's
        first."""
        last_offset = self._last_offset
        if last_offset is None:
            last_offset = self.base_offset - 1
            descriptor = self._descriptor() if self._size else None
            if descriptor is not None:
                last = self._count(self._size) - 1
                entry = self._read(descriptor, last, last + 1)
                self._check(entry, last, last_offset)
                last_offset = int(entry["last_offset"][0])
            self._last_offset = last_offset
        return last_offset

    def _cut(self, size: int) -> None:
        before = self._size
        if size == before:
            return
        # Readers see the smaller size first, so a short read tells them of the cut.
        self._size = size
        held = self._unwritten
        try:
            os.truncate(self.path if held is None else held.number, size)
        except OSError:
            self._size = before
            raise
        self._last_offset = None
        self._is_dirty = True


def _in_memory(data: bytes) -> _Descriptor:
    descriptor = _Descriptor(os.memfd_create("topicfs-txnindex"))
    _write(descriptor, data, 0)
    return descriptor


def _write(descriptor: _Descriptor, data: bytes, position: int) -> None:
    written = 0
    while written < len(data):
        written += os.pwrite(descriptor.number, data[written:], position + written)
