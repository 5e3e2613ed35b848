"""Descriptors of segment files: few open at a time, and never closed under a reader or a writer.

Ten thousand segments must not need ten thousand descriptors, nor must thousands of partitions that are appended to. A
file is opened at its first use, and the least recently used ones are given up. Who reads or writes holds the
`Descriptor` object meanwhile: giving it up drops a reference, and the last reference to go closes it. So no use takes a
lock.

A `.log` that was written and not flushed is written back when its descriptor is given up. A later fsync through another
descriptor tells of an error that nobody has seen yet, but only as long as the kernel remembers the file: with no
descriptor open, it may drop the inode, and the error with it, as soon as the pages that could not be written are clean.
What that write-back tells is kept, and raised by the next append or flush. The files of indexes need none of that: what
they lose is found out, and made anew from the log.

pread, never mmap: a file that was cut short behind our back is then an error, not a SIGBUS.
"""

from __future__ import annotations

import errno
import logging
import os
import resource
import threading
from typing import Any, Final, Protocol, TypeVar

from topicfs.engine.errors import ClosedError, CorruptSegmentError, TooFewDescriptorsError
from topicfs.engine.files.regular import open_regular

log = logging.getLogger(__name__)

Buffer = bytes | bytearray | memoryview
T = TypeVar("T")


_OTHERS: Final = 192
_FEWEST: Final = 64

_MOST: Final = 16_384
"""With 512, a look-up among 10,000 segments took 1.5 times as long as among 10, as it had to open a file; now 1.2 times
as long."""


class Holder(Protocol):
    """What a cache fills and empties.

    cached   the value; None before it was loaded and after it was given up
    used     set by every use, cleared by the cache when it looks for something to give up
    """

    cached: Any
    used: bool


class SecondChance:
    """A bounded cache whose values stay with their holders: a use costs two attribute accesses, no lock.

    Values are given up in the order in which they came, but one that was used since the cache last looked
    goes to the end of the queue instead: close to least recently used, without moving anything on a use.

    limit     the weights' sum that is kept to, save for a single value that is heavier
    total     the weights' sum
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
        """Give the holder its value, unless another thread was first; gives what the holder has then."""
        with self._lock:
            if holder.cached is not None:
                present: T = holder.cached
                return present
            holder.cached = value
            holder.used = False
            self._weights[holder] = weight
            self.total += weight
            given_up = self._give_up(keep=holder)
        # Behind the lock: the last reference to a file closes it, which may take a while.
        del given_up
        return value

    def forget(self, holder: Holder, value: object = None) -> None:
        """Stop keeping the holder's value; from now on it has `value`, which is its own affair."""
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
    """An open file, closed when its last holder lets go of it.

    fd        its number
    flags     how it was opened
    is_dirty  written since the last flush: it is written back before it is closed
    failures  where an error of that is put
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
    """The descriptors of segment files that are open: at most `limit`, beside those in use.

    Files of other kinds that stay open as long as their user wants, such as those of an inbox, borrow places.
    """

    __slots__ = ()

    def __init__(self, limit: int = 512) -> None:
        super().__init__(limit)

    def lend(self) -> None:
        """Give a place to a file of another kind. OSError (EMFILE) where segments have no more than they need: that
        concerns the user of this one file, and nobody else."""
        with self._lock:
            if self.limit <= _FEWEST:
                raise OSError(
                    errno.EMFILE, "too many files of inboxes and tables are open; raise `ulimit -n`"
                )
            self.limit -= 1
            given_up = self._give_up()
        del given_up

    def take_back(self) -> None:
        """The file that a place was lent to is closed."""
        with self._lock:
            self.limit += 1


class WrittenFile:
    """A file that one appender writes, and nobody reads: it is opened when it is needed.

    cached, used  see Holder
    """

    __slots__ = ("_descriptors", "cached", "used")

    def __init__(self, descriptors: Descriptors) -> None:
        self.cached: Descriptor | None = None
        self.used = False
        self._descriptors = descriptors

    def descriptor(self, path: str) -> Descriptor:
        """The file, open for writing, and made where there is none. Hold on to it as long as its number is used."""
        found = self.cached
        if found is None:
            return self._descriptors.admit(self, Descriptor.open(path, os.O_RDWR | os.O_CREAT), 1)
        self.used = True
        return found

    def close(self) -> None:
        """Let go of the descriptor."""
        self._descriptors.forget(self)


class PinnedFile:
    """A file that some read while another renames and deletes it, and one may append to it.

    Who reads it for longer pins it: a pinned file stays readable to its end, whatever happens to its name.
    A read without a pin raises ClosedError once the file was condemned: its name may already belong to a
    later file with the same base offset.

    path      where the file is now
    cached    descriptor that all share; None until the first use, and after it was given up
    flags     how it is opened: for reading, and for writing too while it is appended to
    failures  errors of writing back what was written, which nobody was told yet
    used      see Holder
    gone      condemned or closed: no new pin, and no opening by name
    identity  device and inode that the file must have; None where nobody else replaces it
    _kept     descriptor that is held whatever the cache does: during a rename, and while condemned and pinned
    _pins     as many elements as pins; a list, because its append and pop are atomic and an int's += is not
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
        self.identity: tuple[int, int] | None = None
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
        """An empty file in memory, with a path by which this process finds it."""
        held = Descriptor(os.memfd_create("topicfs-empty"))
        file = cls(f"/proc/self/fd/{held.fd}", descriptors)
        file._kept = held
        return file

    @property
    def pins(self) -> int:
        return len(self._pins)

    def descriptor(self) -> Descriptor:
        """The file, open. Hold on to the object as long as its number is used."""
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
                opened = Descriptor.open(path, self.flags, self.failures)
            except FileNotFoundError:
                # A rename may have come in between: then there is a kept descriptor or another path.
                if self._kept is None and self.path == path and not self.gone:
                    if self.identity is not None:
                        raise CorruptSegmentError(
                            f"{path} was removed since it was opened read-only"
                        ) from None
                    raise
                continue
            if self.identity is not None:
                status = os.fstat(opened.fd)
                if (status.st_dev, status.st_ino) != self.identity:
                    raise CorruptSegmentError(f"{path} was replaced since it was opened read-only")
            found = self._descriptors.admit(self, opened, 1)
            if self.gone:
                # Condemned since: what was opened may be a later file of the same name.
                self._descriptors.forget(self)
                continue
            return found

    def begin_writing(self, create: bool = False) -> Descriptor:
        """Open the file for an appender too; FileExistsError where it is to be created and is there."""
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
            # A reader's, who had it opened before the appender came.
            self._descriptors.forget(self)

    def end_writing(self) -> None:
        """The appender is done. The descriptor goes on serving readers."""
        self.flags = os.O_RDONLY

    def written(self) -> Descriptor:
        """The file, for the appender. Hold on to the object as long as its number is used, and say that it `is_dirty`
        after a write. OSError where what was written before could not be brought onto the disk."""
        self._tell()
        return self._writable()

    def sync(self) -> None:
        """fsync. OSError also where that failed when a descriptor was given up."""
        self._tell()
        held = self.cached
        if held is None:
            sync_file(self.path)
            self._tell()
            return
        # Cleared first: what is appended during the fsync is for the next one.
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
        """Keep the file readable until unpin; ClosedError when it is too late for that."""
        self._pins.append(None)
        # Looked at after the pin is in place, as condemn looks at pins after it has set `gone`.
        if self.gone:
            self.unpin()
            raise ClosedError(f"{self.path} was deleted or closed")

    def unpin(self) -> None:
        """Take one pin back."""
        self._pins.pop()
        if self.gone and not self._pins:
            self.release()

    def rename(self, path: str) -> None:
        """Move the file; reads go on meanwhile."""
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
        """No new reader from here on; those that pinned the file keep it."""
        if self.gone:
            return
        try:
            self._kept = self.descriptor()
        except FileNotFoundError:
            log.warning(f"{self.path} is missing and was to be deleted")
        self.gone = True
        if not self._pins:
            self.release()

    def close(self) -> None:
        """No reader from here on, pinned or not, save for reads that are under way."""
        self.gone = True
        self.release()

    def release(self) -> None:
        """Let go of the descriptors. What was not flushed is left to the kernel: nobody counts on it."""
        for descriptor in (self._kept, self.cached):
            if descriptor is not None:
                descriptor.is_dirty = False
        self._kept = None
        self._descriptors.forget(self)


def read_exactly(fd: int, position: int, length: int, path: str) -> bytes:
    """Read that many bytes; CorruptSegmentError when the file ends before."""
    data = os.pread(fd, length, position)
    if len(data) == length:
        return data
    whole = bytearray(length)
    whole[: len(data)] = data
    _read_rest(fd, position, memoryview(whole), len(data), path)
    return bytes(whole)


def read_exactly_into(fd: int, position: int, into: memoryview, path: str) -> None:
    """Fill a buffer from the file; CorruptSegmentError when the file ends before."""
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
    """Write all of the bytes; an OSError leaves an unknown part of them in the file."""
    done = os.pwrite(fd, data, position)
    while done < len(data):
        done += os.pwrite(fd, data[done:], position + done)


def cut_file(fd: int, size: int) -> None:
    """Make the file this long, and leave it alone (and its mtime) when it is."""
    if os.fstat(fd).st_size != size:
        os.ftruncate(fd, size)


def sync_file(path: str) -> None:
    """fsync a file that nobody here has open for writing."""
    fd = open_regular(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def raise_descriptor_limit() -> int:
    """Lift the soft limit on open files to the hard one, and give the limit that holds then."""
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
    """How many of the files that the process may have open are for segments, and for the files that borrow places from
    them. The rest is for everything else: each command's and job's files, logs, and segments that were deleted under
    their readers."""
    bound = open_files - max(_OTHERS, open_files // 4)
    if bound < _FEWEST:
        raise TooFewDescriptorsError(
            f"the limit of open files is {open_files}, expected at least {_OTHERS + _FEWEST}: raise it, with "
            f"`ulimit -n` or LimitNOFILE="
        )
    return min(_MOST, bound)
