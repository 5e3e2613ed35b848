"""Every error that the file system raises on purpose, and the errno of every error that can occur.

A program sees only an errno, so each one is chosen for what its reader will conclude, with the reason beside it.
The words go to the daemon's log, at the level of the row:

    QUIET     an ordinary answer: programs probe for names all day (Spark looks for a `.crc` beside each file)
    TOLD      a refusal that the user will want explained: one line at level info
    WRONG     something is broken, in a known way: one line at level error
    UNKNOWN   something is broken, in an unforeseen way: level error with the traceback. The daemon goes on

Lines about what is broken are limited by an error budget, per kind and time (`fs/error_budget.py`).
"""

from __future__ import annotations

import errno
import logging
import time
from collections.abc import Hashable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from topicfs.engine import errors as engine
from topicfs.engine.errors import EngineError
from topicfs.engine.files.regular import NotRegularError
from topicfs.fs.error_budget import ERRORS, WHILE_S, Telling

log = logging.getLogger(__name__)


class FileSystemError(EngineError):
    """The base of all errors that the file system raises on purpose."""


class NotFoundError(FileSystemError):
    """A name does not exist, or no longer exists."""


class TakenError(NotFoundError):
    """A name does not exist, but the kernel may remember it, since the daemon removed it without the kernel."""


class NameTooLongError(NotFoundError):
    """A name is longer than any name can be."""


class StaleError(FileSystemError):
    """What the kernel remembers of a name is no longer true: it must look again."""


class OvertakenError(FileSystemError):
    """A key is to be set if its last record is the one that was read, and another has become its last one."""


class SharedPagesError(FileSystemError):
    """Bytes are asked for pages that another open file shares and has filled with other bytes."""


class FileTooLargeError(FileSystemError):
    """A file is to be larger than any file of the disk can be."""


class BusyError(FileSystemError):
    """Two jobs write into one directory, or a file is still being written, or is being committed."""


class GoingAwayError(FileSystemError):
    """A call is refused before it begins, because the mount is being taken away."""


class OtherInboxError(FileSystemError):
    """A file is to be renamed from one topic's inbox into another's."""


class ExistsError(FileSystemError):
    """A name exists already."""


class NotADirectoryError(FileSystemError):
    """A path continues behind a name that is no directory."""


class IsADirectoryError(FileSystemError):
    """A directory is used as a file."""


class NotEmptyError(FileSystemError):
    """A directory cannot be removed because it holds something."""


class NotALinkError(FileSystemError):
    """The target of a link is asked of something that is no link."""


class AppendOnlyError(FileSystemError):
    """Bytes of a log cannot be cut, overwritten, renamed or removed, and a view cannot be written."""


class NotSupportedError(FileSystemError):
    """This entry, or the whole file system, does not support the operation."""


class NoAccessError(FileSystemError):
    """access(2) asks for what the permission bits do not allow."""


class NotReadableError(FileSystemError):
    """A handle that was opened for writing only is read."""


class NotWritableError(FileSystemError):
    """A handle that was opened for reading only is written."""


class BadInputError(FileSystemError):
    """Written bytes violate the format of the file that they were written to."""


class EmptyBatchError(FileSystemError):
    """A batch is to be committed that has no file of records."""


class NoAttributeError(FileSystemError):
    """An extended attribute does not exist."""


class AttributeNotSupportedError(FileSystemError):
    """An extended attribute cannot be set, or its namespace is not supported."""


class TooManyOpenError(FileSystemError):
    """Programs have as many files of this mount open as they may."""


class TooMuchUnfinishedError(FileSystemError):
    """Lines whose newline has not come have as many bytes as they may."""


class TryAgainError(FileSystemError):
    """A waiting read ends, as its caller may have been interrupted."""


class MountRefusedError(Exception):
    """libfuse could not mount, or lost the mount; the message is libfuse's own."""


class Loudness(Enum):
    """How loudly an error goes into the log."""

    QUIET = "not at all"
    TOLD = "one line, info"
    WRONG = "one line, error"
    UNKNOWN = "error, with the traceback"


@dataclass(frozen=True, slots=True)
class Answer:
    """What an error becomes: the errno for the program, the loudness for the log."""

    errno: int
    loudness: Loudness


_QUIET, _TOLD, _WRONG, _UNKNOWN = Loudness.QUIET, Loudness.TOLD, Loudness.WRONG, Loudness.UNKNOWN

# A class also stands for derived classes that have no row of their own.
ANSWERS: Final[dict[type[BaseException], Answer]] = {
    # -- names
    NotFoundError: Answer(errno.ENOENT, _QUIET),
    # As on any disk. The kernel looks a name up before it makes it, so this is what all calls give.
    NameTooLongError: Answer(errno.ENAMETOOLONG, _QUIET),
    engine.UnknownPartitionError: Answer(errno.ENOENT, _QUIET),
    # `offset/500` of a log that ends at 400: the file does not exist yet, or no longer exists.
    engine.OffsetOutOfRangeError: Answer(errno.ENOENT, _QUIET),
    # open(2) and similar calls then look the name up anew, and never give this errno to a program.
    StaleError: Answer(errno.ESTALE, _QUIET),
    # Somebody else was first, as with a group's position: EAGAIN would have programs try the same again.
    OvertakenError: Answer(errno.ECANCELED, _TOLD),
    ExistsError: Answer(errno.EEXIST, _QUIET),
    engine.PartitionExistsError: Answer(errno.EEXIST, _QUIET),
    # A batch was committed under this name before. Spark's committer, touch(1) and Python's `touch` fail on this errno,
    # and "File exists" describes the problem.
    engine.BatchExistsError: Answer(errno.EEXIST, _TOLD),
    # A file of a named producer with this sequence was appended before, so its name exists, though it is not listed.
    engine.DuplicateSequenceError: Answer(errno.EEXIST, _TOLD),
    engine.UnknownProducerError: Answer(errno.ENOENT, _QUIET),
    NotADirectoryError: Answer(errno.ENOTDIR, _QUIET),
    IsADirectoryError: Answer(errno.EISDIR, _QUIET),
    NotEmptyError: Answer(errno.ENOTEMPTY, _QUIET),
    # It is logged, since the message says how to delete records that are meant to go.
    engine.PartitionNotEmptyError: Answer(errno.ENOTEMPTY, _TOLD),
    # No deletion of that name can be taken back.
    engine.NothingDeletedError: Answer(errno.ENOENT, _TOLD),
    # readlink(2) gives this errno for anything that is no link.
    NotALinkError: Answer(errno.EINVAL, _QUIET),
    # mkdir of a name that no topic can have: the name itself is the bad argument. ENOENT would mislead users.
    engine.InvalidNameError: Answer(errno.EINVAL, _TOLD),
    # -- refusals
    # Linux gives this errno for a file with chattr +a: tools that know append-only files know it.
    AppendOnlyError: Answer(errno.EPERM, _TOLD),
    # link(2), symlink(2) and mknod(2) document EPERM for a file system without such things; ENOSYS is for kernels.
    NotSupportedError: Answer(errno.EPERM, _TOLD),
    # `delete.topic.enable=false`, or a cleanup policy: an administrator decided so, as with permissions.
    engine.PolicyViolationError: Answer(errno.EPERM, _TOLD),
    # The kernel refuses changes of a read-only mount by itself. A call that arrives anyway gets the same errno.
    engine.ReadOnlyError: Answer(errno.EROFS, _TOLD),
    NoAccessError: Answer(errno.EACCES, _QUIET),
    # The kernel checks the mode of a descriptor first, so this handle cannot do what its mode says.
    NotReadableError: Answer(errno.EBADF, _TOLD),
    NotWritableError: Answer(errno.EBADF, _TOLD),
    # Somebody else has this producer or transaction by now: an administrator's refusal would look the same.
    engine.InvalidProducerEpochError: Answer(errno.EPERM, _TOLD),
    # A second attempt of a Spark job would meet it too: its commit fails, and says what the device is busy with.
    BusyError: Answer(errno.EBUSY, _TOLD),
    # Not ENOTCONN or ECONNABORTED: a call gets these when its outcome is unknown. Here nothing was done.
    GoingAwayError: Answer(errno.ESHUTDOWN, _TOLD),
    # mv then copies the file, as between any two file systems.
    OtherInboxError: Answer(errno.EXDEV, _QUIET),
    # -- consumer groups
    engine.UnknownGroupError: Answer(errno.ENOENT, _QUIET),
    engine.GroupExistsError: Answer(errno.EEXIST, _QUIET),
    engine.GroupNotEmptyError: Answer(errno.ENOTEMPTY, _TOLD),
    # What was to be done is not done, since somebody else was first. EAGAIN would have programs try the same again.
    engine.PositionMovedError: Answer(errno.ECANCELED, _TOLD),
    # Somebody else works on the partition, as on a device.
    engine.NotOwnerError: Answer(errno.EBUSY, _TOLD),
    engine.GroupLimitError: Answer(errno.EDQUOT, _TOLD),
    # -- what was written
    BadInputError: Answer(errno.EINVAL, _TOLD),
    engine.InvalidRecordError: Answer(errno.EINVAL, _TOLD),
    engine.InvalidSettingError: Answer(errno.EINVAL, _TOLD),
    # No coordinator can decide for both: the topics that were named together are the bad argument.
    engine.MixedTopicsError: Answer(errno.EINVAL, _TOLD),
    # A file's name has a sequence that others come before.
    engine.OutOfOrderSequenceError: Answer(errno.EINVAL, _TOLD),
    # A program chose this position: nothing is broken, though the disk says so by an error of its own.
    FileTooLargeError: Answer(errno.EFBIG, _TOLD),
    # "Message too long" is the only errno whose text says what happened.
    engine.RecordTooLargeError: Answer(errno.EMSGSIZE, _TOLD),
    engine.RecordBatchTooLargeError: Answer(errno.EMSGSIZE, _TOLD),
    # "No data available" is what happened. EINVAL would send its reader to look for a bad line.
    EmptyBatchError: Answer(errno.ENODATA, _TOLD),
    # -- a Kafka cluster
    # What a socket gives whose peer does not answer: whether it has what was sent is not known.
    engine.DeliveryTimeoutError: Answer(errno.ETIMEDOUT, _TOLD),
    engine.LinkRefusedError: Answer(errno.EACCES, _TOLD),
    engine.LinkError: Answer(errno.EIO, _WRONG),
    # -- what programs hold
    # EMFILE would blame the program that asks: the mount is full, of everybody's files.
    TooManyOpenError: Answer(errno.ENFILE, _TOLD),
    # "No buffer space available" is what happened. ENOSPC would send its reader to look for a full disk.
    TooMuchUnfinishedError: Answer(errno.ENOBUFS, _TOLD),
    # -- extended attributes
    NoAttributeError: Answer(errno.ENODATA, _QUIET),
    # cp -a, rsync -X and tar ignore this errno, and warn after any other.
    AttributeNotSupportedError: Answer(errno.ENOTSUP, _QUIET),
    # -- waiting
    # Programs read again after EINTR, and a signal that came meanwhile is handled first. So Ctrl-C works.
    TryAgainError: Answer(errno.EINTR, _QUIET),
    InterruptedError: Answer(errno.EINTR, _QUIET),
    # -- broken
    # These bytes are bad, but others of the same file may be readable.
    engine.CorruptError: Answer(errno.EIO, _WRONG),
    # Somebody has put a link, a FIFO or a device under BACKING in the place of a file: it is not opened.
    NotRegularError: Answer(errno.EIO, _WRONG),
    # A page that cannot be had has no other answer: a mapping gets SIGBUS, sendfile(2) gets this.
    SharedPagesError: Answer(errno.EIO, _TOLD),
    # The partition went offline after an I/O error, or was deleted while a handle was open.
    engine.ClosedError: Answer(errno.EIO, _WRONG),
    MemoryError: Answer(errno.ENOMEM, _UNKNOWN),
    BaseException: Answer(errno.EIO, _UNKNOWN),
}

# System errors that mean the same for the user of the mount: a full disk is full for both. All other system errors are
# about files and descriptors of the backing directory: a segment that vanished is no ENOENT of the view that shows it.
_PASSED_ON: Final = frozenset(
    {
        errno.ENOSPC,
        errno.EDQUOT,
        errno.EFBIG,
        errno.EROFS,
        errno.EACCES,
        errno.EPERM,
        errno.ENOMEM,
        errno.EMFILE,
        errno.ENFILE,
    }
)


def answer(error: BaseException) -> Answer:
    """Return the errno and the loudness of an error."""
    for kind in type(error).__mro__:
        row = ANSWERS.get(kind)
        if row is not None and kind is not BaseException:
            return row
    if isinstance(error, OSError):
        return Answer(error.errno if error.errno in _PASSED_ON else errno.EIO, _WRONG)
    return ANSWERS[BaseException]


def is_refusal(error: BaseException) -> bool:
    """Tell whether an error refuses a request with a reason that the user will want. It is False if a name does not
    exist, and if something is broken."""
    found = answer(error)
    return found.loudness is Loudness.TOLD or found.errno in (errno.ENOSPC, errno.EDQUOT)


def errno_of(error: BaseException, operation: str, place: str) -> int:
    """Return the errno of an error that ended an operation; count and log it. `place` is the path, or the handle."""
    found = answer(error)
    name = errno.errorcode[found.errno]
    ERRORS.note(name)
    if found.loudness is not Loudness.QUIET:
        message = f"{operation} {place!r}: {name}: {error}"
        if found.loudness is Loudness.TOLD:
            log.info(message)
        else:
            _tell_what_is_broken(error, found, (operation, name, type(error)), message)
    return found.errno


def _tell_what_is_broken(error: BaseException, found: Answer, kind: Hashable, message: str) -> None:
    telling = ERRORS.telling(kind, time.monotonic())
    if telling is Telling.LEFT_OUT:
        return
    if telling is Telling.LAST:
        message += f" (more lines like this are left out for {WHILE_S:g} s; `metrics` counts on)"
    log.error(message, exc_info=error if found.loudness is Loudness.UNKNOWN else None)
