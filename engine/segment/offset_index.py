"""The offset index, and the base class of both indexes of a segment. `topicfs.engine.format.index` draws their
files.

A loaded index is *sealed*: its file is read completely at the first look-up, and the content may be given up again.
The first change makes it *active*: its entries stay in memory, and every change goes to the file at once.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from functools import partial
from pathlib import Path
from typing import ClassVar, Final

import numpy as np
import numpy.typing as npt

from topicfs.engine.errors import CorruptIndexError, IndexFullError, InvalidOffsetError, OffsetOverflowError
from topicfs.engine.files.atomic import sync_file, write_atomically
from topicfs.engine.files.regular import read_regular
from topicfs.engine.format.index import OFFSET_ENTRY
from topicfs.engine.kernels.search import floor_slot, lookup_offset
from topicfs.engine.record import MAX_INT32
from topicfs.engine.segment.descriptors import (
    Descriptor,
    Descriptors,
    SecondChance,
    WrittenFile,
    cut_file,
    write_exactly,
)

IndexBytes = npt.NDArray[np.uint8]

LARGEST_FILE: Final = 256 * 1024 * 1024
"""A longer index file is not loaded, unless the settings ask for indexes of that size."""

_FIRST_CAPACITY: Final = 64
_POSITION_AT: Final = OFFSET_ENTRY.place_of("position")


class IndexCache(SecondChance):
    """Contents of sealed indexes, bounded by their bytes."""

    __slots__ = ()


INDEX_CACHE: Final = IndexCache(64 * 1024 * 1024)
"""The cache that all indexes of the process share."""

ALONE: Final = Descriptors()
"""Descriptors of indexes that belong to no segment."""


class IndexFile:
    """A file of entries of one size, in memory while it is used.

    An instance begins with the entries of its file, which is not opened before they are needed.

    path         path of the file
    base_offset  base offset of the segment; entries store offsets relative to it
    max_bytes    size that the settings allow; only decides when the index is full
    cached       (bytes, number of entries) for look-ups, replaced by one assignment; the bytes of published
                 entries never change. None while a sealed index is not loaded
    used         see descriptors.Holder
    active       whether it keeps its entries in memory and may be changed
    held         whether it is sealed, but keeps its entries: another file may overwrite its file
    in_memory    whether its file is left as it is: it is another process's, there is none, or the entries are being
                 rebuilt, or have no room: see `write_out`
    doubt        what is wrong with the loaded file, in words; empty if nothing is
    mended       whether its entries were rebuilt, and the file does not have them yet: see `replace`
    is_dirty     whether the file may have changed since its last fsync
    _file        the file, for changes
    _is_trimmed  whether the file was cut to its entries since the index was loaded
    """

    __slots__ = (
        "_cache",
        "_file",
        "_is_trimmed",
        "active",
        "base_offset",
        "cached",
        "doubt",
        "held",
        "in_memory",
        "is_dirty",
        "max_bytes",
        "mended",
        "path",
        "used",
    )

    ENTRY_SIZE: ClassVar[int]
    FIELDS: ClassVar[np.dtype[np.void]]
    """The two fields of an entry. Both rise, the first one strictly."""

    def __init__(
        self,
        path: str,
        base_offset: int,
        max_bytes: int,
        cache: IndexCache = INDEX_CACHE,
        descriptors: Descriptors = ALONE,
    ) -> None:
        if max_bytes < self.ENTRY_SIZE:
            raise ValueError(
                f"{path}: expected room for one entry of {self.ENTRY_SIZE} bytes, found {max_bytes}"
            )
        self.path = path
        self.base_offset = base_offset
        self.max_bytes = max_bytes
        self.cached: tuple[IndexBytes, int] | None = None
        self.used = False
        self.active = False
        self.held = False
        self.in_memory = False
        self.doubt = ""
        self.mended = False
        self.is_dirty = True
        self._file = WrittenFile(descriptors)
        self._is_trimmed = False
        self._cache = cache

    @property
    def entries(self) -> int:
        return self.view()[1]

    @property
    def max_entries(self) -> int:
        return self.max_bytes // self.ENTRY_SIZE

    @property
    def room(self) -> int:
        """Return how many entries can still be appended."""
        return max(0, self.max_entries - self.view()[1])

    @property
    def is_full(self) -> bool:
        return self.room == 0

    def exists(self) -> bool:
        return os.path.exists(self.path)

    # -- in memory ----------------------------------------------------------------------------------

    def view(self) -> tuple[IndexBytes, int]:
        """Return the bytes, and the number of valid entries in them."""
        found = self.cached
        if found is None:
            return self._load()
        self.used = True
        return found

    def _load(self) -> tuple[IndexBytes, int]:
        try:
            data = self._read()
        except FileNotFoundError:
            # Without an index a look-up begins at position 0. This is not cached: a rename may be running.
            return self.cached or (np.empty(0, np.uint8), 0)
        self.doubt = self._doubt_of(data)
        return self._cache.admit(self, (data, data.size // self.ENTRY_SIZE), data.size + 256)

    def _doubt_of(self, data: IndexBytes) -> str:
        """Return what is wrong with the bytes of a file, as far as the bytes alone show it."""
        wrong = self._wrong_size(data.size)
        if wrong:
            return wrong
        table = data.view(self.FIELDS)
        first, second = (table[name] for name in self.FIELDS.names or ())
        if len(table) and (first[0] < 0 or second[0] < 0):
            return f"expected entries of 0 or more, found {first[0]}, {second[0]}"
        falling = np.flatnonzero((first[1:] <= first[:-1]) | (second[1:] < second[:-1]))
        return f"entry {falling[0] + 1} is not above the one before" if falling.size else ""

    def replace(self, data: IndexBytes) -> None:
        """Use entries that were rebuilt from the log instead of the present ones. The file gets them with the next
        change, or by `keep_mended`. Until then they stay in memory."""
        entries = data.size // self.ENTRY_SIZE
        if self.active:
            self._own(data, entries)
        else:
            self._cache.forget(self, (data, entries))
        self.doubt = ""
        self.mended = True

    def keep_mended(self) -> None:
        """Write rebuilt entries to the file, and fsync it. A crash in between leaves a mix of both kinds, which is
        detected as the damage was."""
        if self.mended and not self.in_memory:
            opened = self._writer()
            os.fsync(opened.fd)
            if not self.active:
                self.abandon()

    def _read(self) -> IndexBytes:
        with read_regular(self.path) as file:
            size = os.fstat(file.fileno()).st_size
            largest = max(self.max_bytes, LARGEST_FILE)
            if size > largest:
                raise CorruptIndexError(f"{self.path}: expected at most {largest} bytes, found {size}")
            return np.frombuffer(file.read(self._used(file.fileno(), size)), np.uint8)

    def _used(self, fd: int, size: int) -> int:
        """Return the length without the zeros at the end. A broker gives the index of its active segment the largest
        size at once, 10 MiB, and writes its entries into it: no entry but the first can be all zeros."""
        last = size // self.ENTRY_SIZE - 1
        if size % self.ENTRY_SIZE or last < 0 or not self._is_zero(fd, last):
            return size
        return bisect_left(range(last), True, key=partial(self._is_zero, fd)) * self.ENTRY_SIZE

    def _is_zero(self, fd: int, number: int) -> bool:
        return not any(os.pread(fd, self.ENTRY_SIZE, number * self.ENTRY_SIZE))

    def activate(self) -> None:
        """Make the index changeable. Its file is not touched before the first change."""
        if not self.active:
            data, entries = self.view()
            self._own(data, entries)

    def _own(self, data: IndexBytes, entries: int) -> None:
        size = entries * self.ENTRY_SIZE
        copy = np.empty(max(2 * size, _FIRST_CAPACITY * self.ENTRY_SIZE), np.uint8)
        copy[:size] = data[:size]
        self.active = True
        self._cache.forget(self, (copy, entries))

    def begin(self) -> None:
        """Start with no entries. A new file is created with the first entry, flush or seal."""
        self.doubt, self.mended = "", False
        self._own(np.empty(0, np.uint8), 0)

    def begin_in_memory(self) -> None:
        """Start with no entries, and keep new ones in memory only. If there is a file, it is neither read nor
        changed."""
        self.in_memory = True
        self.begin()

    def write_out(self, whole: bool = False) -> None:
        """Write the entries that are in memory only, unless the file has them already, and use the file from here on.
        After an error they stay in memory, and the file may have some of them; `whole` it has all of them or is not
        there, on disk too."""
        if not self.in_memory:
            return
        data, entries = self.view()
        content = memoryview(data[: entries * self.ENTRY_SIZE])
        if whole:
            write_atomically(Path(self.path), content)
        elif not self._has(content):
            try:
                opened = self._file.descriptor(self.path)
                write_exactly(opened.fd, 0, content)
                cut_file(opened.fd, len(content))
            except OSError:
                self._file.close()
                raise
        self.is_dirty = True
        self.in_memory = False
        self.abandon()

    def _has(self, content: memoryview) -> bool:
        try:
            if os.stat(self.path).st_size != len(content):
                return False
            with read_regular(self.path) as file:
                return file.read() == content
        except FileNotFoundError:
            return False

    def detach(self, entries: int) -> None:
        """Keep the first entries in memory, and add further ones there only: the file belongs to another process, which
        adds to it."""
        data, present = self.view()
        self.in_memory = True
        self._own(data, min(entries, present))

    def reattach(self) -> None:
        """Use the entries of the file again: its owner has added the last one."""
        self.in_memory = False
        self.abandon()

    def hold(self) -> None:
        """Keep the entries in memory until `release`, because the file is about to lose its name."""
        self._cache.forget(self, self.view())
        self.held = True

    def release(self) -> None:
        """End a `hold`."""
        self.held = False
        if not self.active and not self.mended:
            self._cache.forget(self)

    # -- changes ------------------------------------------------------------------------------------

    def _writer(self) -> Descriptor:
        """Return the file, open for writing and cut to its entries: extra bytes behind them are removed."""
        opened = self._file.descriptor(self.path)
        if self._is_trimmed and not self.mended:
            return opened
        data, entries = self.view()
        size = entries * self.ENTRY_SIZE
        if self.mended:
            write_exactly(opened.fd, 0, memoryview(data[:size]))
        cut_file(opened.fd, size)
        self._is_trimmed, self.mended = True, False
        self.is_dirty = True
        return opened

    def _cut(self, size: int) -> None:
        if self.in_memory:
            return
        opened = self._writer()
        if cut_file(opened.fd, size):
            self.is_dirty = True

    def append_bytes(self, data: memoryview) -> None:
        """Append entries in their stored form. The caller has already checked the index's rules."""
        self.activate()
        present, entries = self.view()
        start = entries * self.ENTRY_SIZE
        end = start + len(data)
        if end > present.size:
            grown = np.empty(2 * end, np.uint8)
            grown[:start] = present[:start]
            present = grown
        if not self.in_memory:
            opened = self._writer()
            write_exactly(opened.fd, start, data)
            # Set after the write: a running fsync may have cleared it before, without these bytes.
            self.is_dirty = True
        present[start:end] = np.frombuffer(data, np.uint8)
        self.cached = (present, entries + len(data) // self.ENTRY_SIZE)

    def keep(self, entries: int) -> None:
        """Remove every entry behind the first `entries`."""
        self.activate()
        data, present = self.view()
        if entries < present:
            # A new array is used: a look-up may still search the old one, which appends must not change.
            self._own(data, entries)
        self._cut(min(entries, present) * self.ENTRY_SIZE)

    def trim(self) -> None:
        """Make the file exist, with the length of its entries."""
        if not self.in_memory:
            self._cut(self.entries * self.ENTRY_SIZE)

    def flush(self) -> None:
        """fsync the file. The file of an active index exists afterwards."""
        if self.active and not self.in_memory:
            opened = self._writer()
            os.fsync(opened.fd)
        elif self.exists():
            sync_file(self.path)

    def sync(self) -> None:
        """fsync the file by its name, if it exists and has changed since the last time. Most appends add no entry, and
        an fsync costs a disk as much as one with data."""
        if not self.is_dirty or not self.exists():
            return
        # Cleared first: entries that are added during the fsync belong to the next one.
        self.is_dirty = False
        try:
            sync_file(self.path)
        except OSError:
            self.is_dirty = True
            raise

    def seal(self) -> None:
        """Trim the file, and release the descriptor and the memory. Look-ups load the file again. Entries that are in
        memory only stay there."""
        if not self.in_memory:
            self.trim()
            self.abandon()

    def abandon(self) -> None:
        """Release the descriptor and the memory. The file stays as it is."""
        self._file.close()
        self._is_trimmed = False
        self.active = self.held = self.mended = False
        self._cache.forget(self)

    def close(self) -> None:
        """Seal an active index, or release a loaded one."""
        if self.active:
            self.trim()
        self.abandon()

    def rename(self, path: str) -> None:
        """Move the file if it exists. Look-ups during the move need `hold` before and `release` after it."""
        if self.exists():
            os.rename(self.path, path)
        self.path = path

    def delete(self) -> None:
        """Remove the file if it exists."""
        self.abandon()
        if self.exists():
            os.unlink(self.path)

    # -- checks -------------------------------------------------------------------------------------

    def _relative(self, offset: int) -> int:
        relative = offset - self.base_offset
        if not 0 <= relative <= MAX_INT32:
            raise OffsetOverflowError(
                f"{self.path}: expected an offset from {self.base_offset} to {self.base_offset + MAX_INT32}, "
                f"found {offset}"
            )
        return relative

    def entry(self, number: int) -> tuple[int, int]:
        """Return the two fields of one entry. IndexError if there is no such entry."""
        raise NotImplementedError

    def entry_or_none(self, number: int) -> tuple[int, int] | None:
        """Return the two fields of one entry, or None if there is no such entry. A truncation may have removed it."""
        try:
            return self.entry(number)
        except IndexError:
            return None

    def _place_of(self, entry: int) -> tuple[IndexBytes, int]:
        data, entries = self.view()
        if not 0 <= entry < entries:
            raise IndexError(f"{self.path}: expected an entry from 0 to {entries - 1}, found {entry}")
        return data, entry * self.ENTRY_SIZE

    def _refuse_when_full(self) -> None:
        if self.is_full:
            raise IndexFullError(f"{self.path}: holds {self.entries} entries, at most {self.max_entries} fit")

    def check_length(self) -> None:
        """Raise CorruptIndexError if the file does not consist of complete entries."""
        wrong = self.wrong_length(self.path) if self.exists() else ""
        if wrong:
            raise CorruptIndexError(f"{self.path}: {wrong}")

    @classmethod
    def wrong_length(cls, path: str) -> str:
        """Return what is wrong with the length of a file, or that there is none; empty if nothing is."""
        try:
            return cls._wrong_size(os.stat(path).st_size)
        except FileNotFoundError:
            return "expected a file, found none"

    @classmethod
    def _wrong_size(cls, size: int) -> str:
        return f"expected a multiple of {cls.ENTRY_SIZE} bytes, found {size}" if size % cls.ENTRY_SIZE else ""


class OffsetIndex(IndexFile):
    """Maps the last offset of a batch to the position of its first byte. Its fields are those of IndexFile."""

    __slots__ = ()

    ENTRY_SIZE: ClassVar[int] = OFFSET_ENTRY.size
    FIELDS: ClassVar[np.dtype[np.void]] = OFFSET_ENTRY.dtype()

    @property
    def last_offset(self) -> int:
        """Return the offset of the last entry, or the base offset without an entry."""
        entries = self.entries
        return self.entry(entries - 1)[0] if entries else self.base_offset

    def floor(self, offset: int) -> tuple[int, int, int]:
        """Return number, offset and position of the last entry at or below an offset; (-1, base, 0) without one."""
        data, entries = self.view()
        slot, relative, position = lookup_offset(data, entries, offset - self.base_offset)
        return int(slot), self.base_offset + int(relative), int(position)

    def entry(self, number: int) -> tuple[int, int]:
        """Return offset and position of one entry."""
        relative, position = OFFSET_ENTRY.struct.unpack_from(*self._place_of(number))
        return self.base_offset + relative, position

    def lookup(self, offset: int) -> tuple[int, int]:
        """Return offset and position of the last entry at or below an offset; (base, 0) without one."""
        return self.floor(offset)[1:]

    def upper_bound(self, start_position: int, size: int) -> tuple[int, int] | None:
        """Return the first entry at or behind position `start_position + size`, or None."""
        data, entries = self.view()
        slot = floor_slot(data, entries, OFFSET_ENTRY.size, _POSITION_AT, start_position + size - 1) + 1
        return self.entry(slot) if slot < entries else None

    def entries_before(self, position: int) -> int:
        """Return how many entries are of batches before a position of the log."""
        data, entries = self.view()
        return int(floor_slot(data, entries, OFFSET_ENTRY.size, _POSITION_AT, position - 1)) + 1

    def append(self, offset: int, position: int) -> None:
        """Add an entry behind the last one."""
        self._refuse_when_full()
        relative = self._relative(offset)
        if self.entries and offset <= self.last_offset:
            raise InvalidOffsetError(
                f"{self.path}: expected an offset above {self.last_offset}, found {offset}"
            )
        self.append_bytes(memoryview(OFFSET_ENTRY.struct.pack(relative, position)))

    def truncate_to(self, offset: int) -> None:
        """Keep the entries below `offset`."""
        data, entries = self.view()
        self.keep(floor_slot(data, entries, OFFSET_ENTRY.size, 0, offset - 1 - self.base_offset) + 1)

    def sanity_check(self) -> None:
        """Raise CorruptIndexError if the file cannot be an index of this segment."""
        self.check_length()
        if self.entries and self.last_offset < self.base_offset:
            raise CorruptIndexError(
                f"{self.path}: expected a last offset from {self.base_offset} on, found {self.last_offset}"
            )
