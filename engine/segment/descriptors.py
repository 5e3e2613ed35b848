"""Descriptors of segment files: few are open at a time, and none is closed while a reader or writer uses it.

Ten thousand segments must not need ten thousand descriptors, nor must thousands of partitions that are appended to.
A file is opened at its first use, and the least recently used ones are given up. A reader or writer holds the
`Descriptor` object during its work: giving it up drops one reference, and the last reference to go closes it. So no
use takes a lock.

A `.log` that was written and not flushed is written back when its descriptor is given up. A later fsync through
another descriptor reports an error that nobody has seen yet, but only while the kernel remembers the file: with no
descriptor open it may drop the inode, and the error with it, once the pages that could not be written are clean. So
an error of that write-back is kept, and raised by the next append or flush. Index files need none of this: what they
lose is detected, and rebuilt from the log.

pread is used, never mmap: a file that another process cut short then gives an error, not a SIGBUS.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import resource
import threading
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

from topicfs.engine.batch.table import Bytes
from topicfs.engine.errors import ClosedError, CorruptSegmentError, TooFewDescriptorsError
from topicfs.engine.files.atomic import sync_file
from topicfs.engine.files.regular import open_regular
from topicfs.engine.format.paths import DELETED_SUFFIX, SWAP_SUFFIX

log = logging.getLogger(__name__)

Buffer = bytes | bytearray | memoryview
T = TypeVar("T")


_OTHERS: Final = 192
_FEWEST: Final = 64

_MOST: Final = 16_384
"""With 512, a look-up among 10,000 segments took 1.5 times as long as among 10, because it had to open a file. Now it
takes 1.2 times as long."""


class Holder(Protocol):
    """An object whose value a cache fills and empties.

    cached  the value; None before it was loaded and after it was given up
    used    set by every use, cleared by the cache when it looks for a value to give up
    """

    cached: Any
    used: bool


class SecondChance:
    """A bounded cache whose values stay with their holders: a use costs two attribute accesses, no lock.

    Values are given up in the order in which they came, but one that was used since the cache last looked
    goes to the end of the queue instead: close to least recently used, without moving anything on a use.

    limit     the most that the weights may add up to, except for a single value that is heavier
    total     the sum of the weights
    _weights  holder → weight, in the order in which they will be looked at
    _lock     guards all of it; held for bookkeeping only, never while a file is read
    """

    __slots__ = ("_lock", "_weights", "limit", "total")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.total = 0
        self._weights: dict[Holder, int] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._weights)

    def admit(self, holder: Holder, value: T, weight: int) -> T:
        """Give the holder its value, unless another thread did so first. Return the value that the holder has then."""
        with self._lock:
            if holder.cached is not None:
                present: T = holder.cached
                return present
            holder.cached = value
            holder.used = False
            self._weights[holder] = weight
            self.total += weight
            given_up = self._give_up(keep=holder)
        # Outside the lock: the last reference to a file closes it, which may take a while.
        del given_up
        return value

    def forget(self, holder: Holder, value: object = None) -> None:
        """Drop the holder's value from the cache. From now on the holder has `value`, which the cache does not
        manage."""
        with self._lock:
            self.total -= self._weights.pop(holder, 0)
            before, holder.cached = holder.cached, value
        del before

    def _give_up(self, keep: Holder | None = None) -> list[object]:
        given_up: list[object] = []
        chances = len(self._weights)
        while self.total > self.limit and len(self._weights) > 1:
            holder = next(iter(self._weights))
            weight = self._weights.pop(holder)
            if holder is keep or (holder.used and chances > 0):
                holder.used = False
                chances -= 1
                self._weights[holder] = weight
            else:
                given_up.append(holder.cached)
                holder.cached = None
                self.total -= weight
        return given_up


class Descriptor:
    """An open file that is closed when its last holder releases it.

    fd        its number
    flags     the flags that it was opened with
    is_dirty  whether it was written since the last flush: then it is written back before it is closed
    failures  list that receives an error of that write-back
    """

    __slots__ = ("failures", "fd", "flags", "is_dirty")

    def __init__(self, fd: int, flags: int = os.O_RDONLY, failures: list[OSError] | None = None) -> None:
        self.fd = fd
        self.flags = flags
        self.is_dirty = False
        self.failures = failures

    @classmethod
    def open(cls, path: str, flags: int = os.O_RDONLY, failures: list[OSError] | None = None) -> Descriptor:
        return cls(open_regular(path, flags, 0o644), flags, failures)

    def __del__(self) -> None:
        try:
            if self.is_dirty:
                os.fdatasync(self.fd)
        except OSError as error:
            log.error(f"what was written could not be brought onto the disk: {error}")
            if self.failures is not None:
                self.failures.append(error)
        finally:
            os.close(self.fd)


class Descriptors(SecondChance):
    """The open descriptors of segment files: at most `limit`, besides those in use.

    Files of other kinds, such as those of an inbox, stay open as long as their user wants. They borrow places here.
    """

    __slots__ = ()

    def __init__(self, limit: int = 512) -> None:
        super().__init__(limit)

    def open_other(self, path: Path | str, flags: int, directory: int | None = None) -> OtherFile:
        """Open a file of another kind as `open_regular` does, and lend it a place until it is closed."""
        self.lend()
        try:
            return OtherFile(open_regular(path, flags, directory=directory), self)
        except BaseException:
            self.take_back()
            raise

    def lend(self) -> None:
        """Lend a place to a file of another kind. OSError (EMFILE) if segments have no more places than they need:
        the error concerns the user of this one file only."""
        with self._lock:
            if self.limit <= _FEWEST:
                raise OSError(
                    errno.EMFILE, "too many files of inboxes and tables are open; raise `ulimit -n`"
                )
            self.limit -= 1
            given_up = self._give_up()
        del given_up

    def take_back(self) -> None:
        """Return a lent place: its file is closed."""
        with self._lock:
            self.limit += 1


class OtherFile:
    """An open file of another kind than segments', which has borrowed a place.

    descriptor  the file descriptor; closed by `close`
    _places     where the place is borrowed
    """

    __slots__ = ("_places", "descriptor")

    def __init__(self, descriptor: int, places: Descriptors) -> None:
        self.descriptor = descriptor
        self._places = places

    def read(self, position: int, into: Bytes) -> int:
        """Read into `into` from a position on. Return the number of bytes, which is less at the end of the file."""
        done = 0
        while done < into.size:
            size = os.preadv(self.descriptor, [memoryview(into)[done:]], position + done)
            if not size:
                break
            done += size
        return done

    def write(self, position: int, data: Bytes) -> int:
        """Write at a position. Return the number of bytes that were written, which is less on a full disk."""
        return os.pwrite(self.descriptor, memoryview(data), position)

    def status(self) -> os.stat_result:
        return os.fstat(self.descriptor)

    def truncate(self, length: int) -> None:
        os.ftruncate(self.descriptor, length)

    def sync(self) -> None:
        os.fsync(self.descriptor)

    def close(self) -> None:
        os.close(self.descriptor)
        self._places.take_back()


class WrittenFile:
    """A file that one appender writes and nobody reads. It is opened when it is needed.

    cached, used  see Holder
    """

    __slots__ = ("_descriptors", "cached", "used")

    def __init__(self, descriptors: Descriptors) -> None:
        self.cached: Descriptor | None = None
        self.used = False
        self._descriptors = descriptors

    def descriptor(self, path: str) -> Descriptor:
        """Return the file, open for writing, and create it if needed. Keep the object while its number is used."""
        found = self.cached
        if found is None:
            return self._descriptors.admit(self, Descriptor.open(path, os.O_RDWR | os.O_CREAT), 1)
        self.used = True
        return found

    def close(self) -> None:
        """Release the descriptor."""
        self._descriptors.forget(self)


class PinnedFile:
    """A file that can be read while another thread renames or deletes it, and while one appends to it.

    Long reads pin it: a pinned file stays readable to its end, whatever happens to its name.
    A read without a pin raises ClosedError once the file was condemned: its name may already belong to a
    later file with the same base offset.

    path      present path of the file
    cached    shared descriptor; None until the first use, and after it was given up
    flags     flags to open it with: for reading, and for writing too while it is appended to
    failures  errors of write-backs that were not reported yet
    used      see Holder
    gone      whether it was condemned or closed: no new pin, and no opening by name
    identity  device and inode that the file must have; None if nobody else replaces it
    _kept     descriptor that the cache cannot give up: during a rename, and while condemned and pinned
    _pins     list with one element for each pin: its append and pop are atomic, and += of an int is not
    """

    __slots__ = (
        "_descriptors",
        "_kept",
        "_pins",
        "cached",
        "failures",
        "flags",
        "gone",
        "identity",
        "path",
        "used",
    )

    def __init__(self, path: str, descriptors: Descriptors) -> None:
        self.path = path
        self.identity: Identity | None = None
        self.cached: Descriptor | None = None
        self.used = False
        self.gone = False
        self.flags = os.O_RDONLY
        self.failures: list[OSError] = []
        self._kept: Descriptor | None = None
        self._pins: list[None] = []
        self._descriptors = descriptors

    @classmethod
    def anonymous(cls, descriptors: Descriptors) -> PinnedFile:
        """Return an empty file in memory, with a path by which this process can open it."""
        held = Descriptor(os.memfd_create("topicfs-empty"))
        file = cls(f"/proc/self/fd/{held.fd}", descriptors)
        file._kept = held
        return file

    @property
    def pins(self) -> int:
        return len(self._pins)

    def may_be(self, status: os.stat_result) -> bool:
        """Return whether a status that was found by its path is its own: another process may have replaced it."""
        return self.identity is None or identity_of(status) == self.identity

    def descriptor(self) -> Descriptor:
        """Return the open file. Keep the object while its number is used."""
        found = self.cached
        if found is None:
            return self._open()
        self.used = True
        return found

    def _open(self) -> Descriptor:
        while True:
            kept = self._kept
            if kept is not None:
                return kept
            if self.gone:
                raise ClosedError(f"{self.path} was deleted or closed")
            path = self.path
            try:
                if self.identity is None:
                    opened = Descriptor.open(path, self.flags, self.failures)
                else:
                    opened = Descriptor(open_identical(path, self.identity))
            except FileNotFoundError:
                # A rename may have come in between: then there is a kept descriptor or another path.
                if self._kept is None and self.path == path and not self.gone:
                    raise
                continue
            found = self._descriptors.admit(self, opened, 1)
            if self.gone:
                # It was condemned in the meantime: the opened file may be a later one of the same name.
                self._descriptors.forget(self)
                continue
            return found

    def begin_writing(self, create: bool = False) -> Descriptor:
        """Open the file for an appender too. FileExistsError if it must be created and exists already."""
        self.flags = os.O_RDWR
        if create:
            opened = Descriptor.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL, self.failures)
            return self._descriptors.admit(self, opened, 1)
        return self._writable()

    def _writable(self) -> Descriptor:
        while True:
            found = self.descriptor()
            if found.flags != os.O_RDONLY:
                return found
            # A reader opened this descriptor before the appender came.
            self._descriptors.forget(self)

    def end_writing(self) -> None:
        """End the appender's use. The descriptor goes on serving readers."""
        self.flags = os.O_RDONLY

    def written(self) -> Descriptor:
        """Return the file for the appender. Keep the object while its number is used, and set `is_dirty` after a
        write. OSError if earlier data could not be written to disk."""
        self._tell()
        return self._writable()

    def sync(self) -> None:
        """fsync the file. OSError also if a write-back failed when a descriptor was given up."""
        self._tell()
        held = self.cached
        if held is None:
            sync_file(self.path)
            self._tell()
            return
        # Cleared first: appends during the fsync belong to the next one.
        was_dirty, held.is_dirty = held.is_dirty, False
        try:
            os.fsync(held.fd)
        except OSError:
            held.is_dirty = was_dirty
            raise

    def _tell(self) -> None:
        if self.failures:
            raise self.failures[0]

    def pin(self) -> None:
        """Keep the file readable until `unpin`. ClosedError if it is already condemned or closed."""
        self._pins.append(None)
        # Checked after the pin is set, because condemn checks the pins after it has set `gone`.
        if self.gone:
            self.unpin()
            raise ClosedError(f"{self.path} was deleted or closed")

    def unpin(self) -> None:
        """Release one pin."""
        self._pins.pop()
        if self.gone and not self._pins:
            self.release()

    def rename(self, path: str) -> None:
        """Rename the file. Reads go on in the meantime."""
        if self.gone:
            os.rename(self.path, path)
            self.path = path
            return
        self._kept = self.descriptor()
        try:
            os.rename(self.path, path)
            self.path = path
        finally:
            self._kept = None

    def condemn(self) -> None:
        """Allow no new reader from here on. Readers that pinned the file keep it."""
        if self.gone:
            return
        try:
            self._kept = self.descriptor()
        except FileNotFoundError:
            log.warning(f"{self.path} is missing and was to be deleted")
        self.gone = True
        if not self._pins:
            self.release()

    def adopt(self, path: str) -> None:
        """Become a file that exists by now, instead of an empty one in memory."""
        self.identity = identity_of(os.stat(path))
        self.path = path
        self.release()

    def depart(self) -> None:
        """Allow no new reader from here on: another process has removed the file. Readers that pinned it keep it, if it
        can still be opened."""
        if self._pins:
            with contextlib.suppress(CorruptSegmentError):
                self._kept = self.descriptor()
        self.gone = True
        if not self._pins:
            self.release()

    def close(self) -> None:
        """Allow no reader from here on, pinned or not. Reads that are running can finish."""
        self.gone = True
        self.release()

    def release(self) -> None:
        """Release the descriptors. Unflushed data is left to the kernel: nobody relies on it."""
        for descriptor in (self._kept, self.cached):
            if descriptor is not None:
                descriptor.is_dirty = False
        self._kept = None
        self._descriptors.forget(self)


Identity = tuple[int, int]
"""The device and the inode of a file."""


def identity_of(status: os.stat_result) -> Identity:
    """Return which file a status is of."""
    return status.st_dev, status.st_ino


def open_identical(path: str, identity: Identity) -> int:
    """Open a file that another process may rename, for reading. CorruptSegmentError if it has none of the names that a
    file of a segment gets."""
    problem = f"{path} was removed since it was opened read-only"
    for name in (path, path.removesuffix(SWAP_SUFFIX), path + DELETED_SUFFIX):
        try:
            found = open_regular(name, os.O_RDONLY)
        except FileNotFoundError:
            continue
        if identity_of(os.fstat(found)) == identity:
            return found
        os.close(found)
        problem = f"{path} was replaced since it was opened read-only"
    raise CorruptSegmentError(problem)


def read_exactly(fd: int, position: int, length: int, path: str) -> bytes:
    """Read exactly `length` bytes. CorruptSegmentError if the file ends before."""
    data = os.pread(fd, length, position)
    if len(data) == length:
        return data
    whole = bytearray(length)
    whole[: len(data)] = data
    _read_rest(fd, position, memoryview(whole), len(data), path)
    return bytes(whole)


def read_exactly_into(fd: int, position: int, into: memoryview, path: str) -> None:
    """Fill a buffer from the file. CorruptSegmentError if the file ends before."""
    _read_rest(fd, position, into, 0, path)


def _read_rest(fd: int, position: int, into: memoryview, done: int, path: str) -> None:
    while done < len(into):
        count = os.preadv(fd, [into[done:]], position + done)
        if count == 0:
            raise CorruptSegmentError(
                f"expected {len(into)} bytes at position {position}, found {done}: {path} was cut short"
            )
        done += count


def write_exactly(fd: int, position: int, data: memoryview) -> None:
    """Write all of the bytes. After an OSError an unknown part of them is in the file."""
    done = os.pwrite(fd, data, position)
    while done < len(data):
        done += os.pwrite(fd, data[done:], position + done)


def cut_file(fd: int, size: int) -> bool:
    """Set the file's length, and leave the file (and its mtime) alone if it has that length. Return whether it was
    changed."""
    if os.fstat(fd).st_size == size:
        return False
    os.ftruncate(fd, size)
    return True


def raise_descriptor_limit() -> int:
    """Raise the soft limit on open files to the hard one. Return the limit that is then in force."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == hard:
        return soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError) as error:
        log.warning(f"the limit of open files stays at {soft}: {error}")
        return soft
    return hard


def descriptors_for_segments(open_files: int) -> int:
    """Return how many of the process's open files may be segment files, and files that borrow places from them. The
    rest is for everything else: the files of commands, jobs and logs, and segments that were deleted while they had
    readers."""
    bound = open_files - max(_OTHERS, open_files // 4)
    if bound < _FEWEST:
        raise TooFewDescriptorsError(
            f"the limit of open files is {open_files}, expected at least {_OTHERS + _FEWEST}: raise it, with "
            f"`ulimit -n` or LimitNOFILE="
        )
    return min(_MOST, bound)
