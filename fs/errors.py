"""Every error that the file system raises on purpose, and the errno of every error there is: the one place for both.

An errno is all that a program sees, so each is chosen for what its reader will make of it, with the reason beside it.
The words go to the daemon's log, as loudly as a row says:

    QUIET     asked and answered: programs probe for names all day (Spark looks for a `.crc` beside each file)
    TOLD      a refusal that the user will want explained: one line at level info
    WRONG     something is broken, and known: one line at level error
    UNKNOWN   something is broken, and not foreseen: level error with the traceback. The daemon goes on

Of what is broken some lines of a kind are told in a while, and no more (`fs/error_budget.py`).
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
    """Base of all errors that the file system raises on purpose."""


class NotFoundError(FileSystemError):
    """A name means nothing, or nothing any more."""


class TakenError(NotFoundError):
    """A name that the kernel may remember, since we took it away ourselves."""


class StaleError(FileSystemError):
    """What the kernel remembers of a name holds no more: it is to look again."""


class SharedPagesError(FileSystemError):
    """Bytes for the kernel's pages, which another open file shares and has filled with others."""


class BusyError(FileSystemError):
    """Two jobs write into one directory, or a file is still being written, or being committed."""


class GoingAwayError(FileSystemError):
    """What was asked for is not begun, as the mount is being taken away."""


class OtherInboxError(FileSystemError):
    """A file is to be renamed from one topic's inbox into another's."""


class ExistsError(FileSystemError):
    """A name is taken."""


class NotADirectoryError(FileSystemError):
    """A path goes on behind a name that is no directory."""


class IsADirectoryError(FileSystemError):
    """A directory is used as a file."""


class NotEmptyError(FileSystemError):
    """A directory that holds something is to be removed."""


class NotALinkError(FileSystemError):
    """A link's target is asked of something else."""


class AppendOnlyError(FileSystemError):
    """Bytes of a log are to be cut, overwritten, renamed or removed; or a view is to be written."""


class NotSupportedError(FileSystemError):
    """An operation that this entry, or the whole file system, does not have."""


class NoAccessError(FileSystemError):
    """access(2) asks for what the permission bits do not give."""


class NotReadableError(FileSystemError):
    """A handle is read that was opened for writing only."""


class NotWritableError(FileSystemError):
    """A handle is written that was opened for reading only."""


class BadInputError(FileSystemError):
    """Written bytes break the format of the file that they were written to."""


class NoAttributeError(FileSystemError):
    """An extended attribute is not there."""


class AttributeNotSupportedError(FileSystemError):
    """An extended attribute that cannot be set, or of a namespace that is not kept."""


class TryAgainError(FileSystemError):
    """A read that waits for records has waited long enough to see whether its reader was interrupted."""


class MountRefusedError(Exception):
    """libfuse could not mount, or lost the mount; the message is libfuse's own."""


class Loudness(Enum):
    """How an error is told in the log."""

    QUIET = "not at all"
    TOLD = "one line, info"
    WRONG = "one line, error"
    UNKNOWN = "error, with the traceback"


@dataclass(frozen=True, slots=True)
class Answer:
    """What an error becomes: the number for the program, the loudness for the log."""

    errno: int
    loudness: Loudness


_QUIET, _TOLD, _WRONG, _UNKNOWN = Loudness.QUIET, Loudness.TOLD, Loudness.WRONG, Loudness.UNKNOWN

# A class stands for those derived from it that have no row of their own.
ANSWERS: Final[dict[type[BaseException], Answer]] = {
    # -- names
    NotFoundError: Answer(errno.ENOENT, _QUIET),
    engine.UnknownPartitionError: Answer(errno.ENOENT, _QUIET),
    # `offset/500` of a log that ends at 400: the file is not there yet, or not any more.
    engine.OffsetOutOfRangeError: Answer(errno.ENOENT, _QUIET),
    # open(2) and its like then look the name up anew, and never give this errno to a program.
    StaleError: Answer(errno.ESTALE, _QUIET),
    ExistsError: Answer(errno.EEXIST, _QUIET),
    engine.PartitionExistsError: Answer(errno.EEXIST, _QUIET),
    # A batch's name is taken by what was committed under it. Spark's committer, touch(1) and Python's `touch` fail on
    # it, and "File exists" is what is wrong.
    engine.BatchExistsError: Answer(errno.EEXIST, _TOLD),
    NotADirectoryError: Answer(errno.ENOTDIR, _QUIET),
    IsADirectoryError: Answer(errno.EISDIR, _QUIET),
    NotEmptyError: Answer(errno.ENOTEMPTY, _QUIET),
    # Told, since it says how records are deleted that are meant to go.
    engine.PartitionNotEmptyError: Answer(errno.ENOTEMPTY, _TOLD),
    # There is no deletion of that name to take back.
    engine.NothingDeletedError: Answer(errno.ENOENT, _TOLD),
    # What readlink(2) says of anything that is no link.
    NotALinkError: Answer(errno.EINVAL, _QUIET),
    # mkdir of a name that no topic can have: the name itself is the bad argument. ENOENT would send people looking.
    engine.InvalidNameError: Answer(errno.EINVAL, _TOLD),
    # -- refusals
    # What Linux says of a file with chattr +a: tools that know append-only files know this one.
    AppendOnlyError: Answer(errno.EPERM, _TOLD),
    # link(2), symlink(2) and mknod(2) name EPERM for a file system that has no such thing; ENOSYS is for kernels.
    NotSupportedError: Answer(errno.EPERM, _TOLD),
    # `delete.topic.enable=false`, or a cleanup policy: somebody decided so, as with permissions.
    engine.PolicyViolationError: Answer(errno.EPERM, _TOLD),
    # The kernel refuses changes of a read-only mount before they come here. What comes all the same gets the same.
    engine.ReadOnlyError: Answer(errno.EROFS, _TOLD),
    NoAccessError: Answer(errno.EACCES, _QUIET),
    # The kernel checks the mode of a descriptor first, so this is a handle that cannot do what its mode says.
    NotReadableError: Answer(errno.EBADF, _TOLD),
    NotWritableError: Answer(errno.EBADF, _TOLD),
    # A Spark job's second attempt would meet it too: its commit fails, and says what the device is busy with.
    BusyError: Answer(errno.EBUSY, _TOLD),
    # Not ENOTCONN or ECONNABORTED, which a call gets when nobody knows what became of it: here nothing was done.
    GoingAwayError: Answer(errno.ESHUTDOWN, _TOLD),
    # mv then copies, as between any two file systems.
    OtherInboxError: Answer(errno.EXDEV, _QUIET),
    # -- what was written
    BadInputError: Answer(errno.EINVAL, _TOLD),
    engine.InvalidRecordError: Answer(errno.EINVAL, _TOLD),
    engine.InvalidSettingError: Answer(errno.EINVAL, _TOLD),
    # "Message too long": the one errno whose text says what happened.
    engine.RecordTooLargeError: Answer(errno.EMSGSIZE, _TOLD),
    engine.RecordBatchTooLargeError: Answer(errno.EMSGSIZE, _TOLD),
    # -- extended attributes
    NoAttributeError: Answer(errno.ENODATA, _QUIET),
    # cp -a, rsync -X and tar go on after this one, and warn after any other.
    AttributeNotSupportedError: Answer(errno.ENOTSUP, _QUIET),
    # -- waiting
    # Programs read again after EINTR, and a signal that came meanwhile is handled first: so Ctrl-C works.
    TryAgainError: Answer(errno.EINTR, _QUIET),
    InterruptedError: Answer(errno.EINTR, _QUIET),
    # -- broken
    # These bytes are bad; others of the same file may be read.
    engine.CorruptError: Answer(errno.EIO, _WRONG),
    # A link, a FIFO or a device that somebody has put under BACKING, where a file was expected: nobody looks into it.
    NotRegularError: Answer(errno.EIO, _WRONG),
    # There is no other answer to a page that cannot be had: the mapping gets SIGBUS, sendfile(2) this.
    SharedPagesError: Answer(errno.EIO, _TOLD),
    # The partition went offline after an I/O error, or was deleted under an open handle.
    engine.ClosedError: Answer(errno.EIO, _WRONG),
    MemoryError: Answer(errno.ENOMEM, _UNKNOWN),
    BaseException: Answer(errno.EIO, _UNKNOWN),
}

# Errors of the system that mean the same to whoever uses the mount: what is full, is full for both. All others speak of
# files and descriptors of the backing directory: a segment that vanished is no ENOENT of the view that shows it.
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
    """What an error becomes."""
    for kind in type(error).__mro__:
        row = ANSWERS.get(kind)
        if row is not None and kind is not BaseException:
            return row
    if isinstance(error, OSError):
        return Answer(error.errno if error.errno in _PASSED_ON else errno.EIO, _WRONG)
    return ANSWERS[BaseException]


def is_refusal(error: BaseException) -> bool:
    """Whether an error says no to what was asked for, in words that who asked will want: not that a name is not there,
    and not that something is broken."""
    found = answer(error)
    return found.loudness is Loudness.TOLD or found.errno in (errno.ENOSPC, errno.EDQUOT)


def errno_of(error: BaseException, operation: str, place: str) -> int:
    """The errno of an error that ended an operation; counts it, and tells the log about it. `place` is the path, or the
    handle."""
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
