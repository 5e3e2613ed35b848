"""`topics/<topic>/inbox/`: files that are appended completely, and exactly once.

    mkdir inbox/b; write inbox/b/…; touch inbox/b/_SUCCESS      a batch, as Spark's committers write it
    cp x.jsonl inbox/.x; mv inbox/.x inbox/x.jsonl              a file that is renamed here
    mv /elsewhere/x.jsonl inbox/                                a file that mv copies here: mv sets the file's times
                                                                when it is complete, and close(2) reports the result
    getfattr -n user.topicfs.committed.b inbox                  how many records were committed as b; empty if none were

A plain copy to a name that is not hidden is refused: nothing tells whether its writer has come to its end, or was
killed. The meaning of the names is in `topicfs.fs.inbox.paths`. Everything else works as on any disk.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from topicfs.engine.batch.table import Bytes
from topicfs.engine.inbox.inbox import batch_name
from topicfs.engine.mount_attributes import COMMITTED, WARNING
from topicfs.engine.staging.staging import Parts
from topicfs.fs import errors
from topicfs.fs.entry import Attributes, Entry, Handle, Owner, wants_writing
from topicfs.fs.inbox.data_files import DataFile, is_whole
from topicfs.fs.inbox.paths import (
    LONGEST,
    SUCCESS,
    TEMPORARY,
    PathKind,
    is_hidden,
    job_of,
    kind_of,
    partition_of,
)
from topicfs.fs.inbox.topic_inbox import TopicInbox
from topicfs.fs.tree.scratch import Scratch, ScratchDirectory, ScratchFile, ScratchHandle, as_told

INBOX: Final = "inbox"

_STREAMS: Final = (
    "the sink of a stream writes into its directory for ever, and never says that all is there: use foreachBatch, with "
    "a batch's directory of its own in each call"
)


@dataclass(eq=False)
class InboxEntry(Scratch):
    """What all entries of an inbox have in common."""

    place: TopicInbox

    def move(self, parent: Entry, name: str) -> None:
        if not isinstance(parent, InboxDirectory):
            raise errors.NotSupportedError(f"{self.path} can only be renamed within its inbox")
        if parent.place is not self.place:
            raise errors.OtherInboxError(f"{self.path} and {parent.path} are of two topics")
        new = (*parent.parts, name)
        place = kind_of(new)
        is_directory = self.kind == stat.S_IFDIR
        check_name(new, is_directory)
        if place is PathKind.SUCCESS:
            raise errors.NotSupportedError(f"{parent.child(name)} is made, not renamed")
        if place is PathKind.TOP and is_directory and SUCCESS in self.names():
            raise errors.NotSupportedError(
                f"{self.path} has {SUCCESS} in it: make that when {name} has its name"
            )
        if place is PathKind.TOP and not is_directory and not self._is_of_a_job(name):
            self.place.commit_file(self.parts, new)
            return
        if is_directory and len(self.parts) == 1 and len(new) == 2 and name == self.parts[0]:
            # mv(1) found the emptied directory of a committed batch, and would move this directory into it.
            new = new[:1] if self.place.inbox.is_spent(new[0]) else new
        with self.place.claims.changing(self.parts, new), as_told(self.path):
            if is_directory and len(new) == 1 and self.place.inbox.is_spent(new[0]):
                self.place.staging.discard(new)
            self.place.staging.move(self.parts, new)

    def _is_of_a_job(self, name: str) -> bool:
        return kind_of(self.parts) is PathKind.WORK and job_of(name) is not None


class InboxDirectory(InboxEntry, ScratchDirectory):
    """The inbox itself, or a directory in it."""

    def attributes(self, owner: Owner, size: int | None = None) -> Attributes:
        # The inbox itself is shown before anything is in it.
        return super().attributes(owner) if self.parts else Entry.attributes(self, owner)

    def mtime_ns(self) -> int:
        return self.place.mtime_ns()

    def xattr(self, name: str) -> bytes | None:
        if not self.parts and name.startswith(WARNING):
            return self.place.warning(batch_name(name.removeprefix(WARNING))).encode()
        if self.parts or not name.startswith(COMMITTED):
            return super().xattr(name)
        records = self.place.inbox.records_of(batch_name(name.removeprefix(COMMITTED)))
        return b"" if records is None else b"%d" % records

    def names(self) -> Iterable[str]:
        with as_told(self.path):
            names = self.place.staging.names(self.parts)
        if self.parts:
            return names
        return [
            name for name in names if not self.place.inbox.is_spent(name) and not self.place.is_refused(name)
        ]

    def lookup(self, name: str) -> Entry:
        inner = (*self.parts, name)
        if not self.parts and self.place.is_refused(name):
            raise self.missing(name)
        try:
            is_directory = self.place.staging.is_directory(inner)
        except (FileNotFoundError, NotADirectoryError):
            raise self.missing(name) from None
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:
                raise self.missing(name) from None
            raise
        kind = InboxDirectory if is_directory else InboxFile
        return kind(self.child(name), self.place, inner)

    def check_directory(self, new: Parts) -> None:
        self.place.check_leads()
        check_name(new, is_directory=True)
        if kind_of(new) is PathKind.SUCCESS:
            raise errors.NotSupportedError(f"{self.child(new[-1])} is a file")

    def create_file(self, name: str, flags: int) -> tuple[Entry, Handle]:
        new = (*self.parts, name)
        self.place.check_leads()
        check_name(new, is_directory=False)
        file = InboxFile(self.child(name), self.place, new)
        place = kind_of(new)
        if place is PathKind.TOP:
            # mv and cp ask for a file that did not exist before, `>` does not: its writer would not check close(2).
            if not flags & os.O_EXCL or job_of(name) is not None:
                raise errors.NotSupportedError(
                    f"{file.path}: whether all of it has come cannot be known; write to a name that begins with a dot, "
                    "and rename it then"
                )
            if self.place.is_refused(name):
                self.place.staging.discard(new)
            return file, ArrivingHandle(file, flags | os.O_CREAT)
        if place is PathKind.WORK and not is_hidden(name):
            self.place.admit(new)
        if place is PathKind.SUCCESS:
            self.place.commit_batch(self.parts)
            return file, SuccessHandle(file, flags | os.O_CREAT)
        return file, ScratchHandle(file, flags | os.O_CREAT)


class InboxFile(InboxEntry, ScratchFile):
    """A file in an inbox."""

    @property
    def is_guarded(self) -> bool:
        return kind_of(self.parts) is not PathKind.SUCCESS

    def open(self, flags: int) -> Handle:
        if wants_writing(flags) and kind_of(self.parts) is PathKind.SUCCESS:
            # Spark does not make the file anew if an earlier job has left one.
            directory = self.parts[:-1]
            if self.place.holds_new(directory) or not self.place.is_known(directory):
                self._commit_again()
            return SuccessHandle(self, flags)
        if wants_writing(flags):
            self._check_is_nobodys()
        return ScratchHandle(self, flags)

    def truncate(self, length: int) -> None:
        if self.file is None:
            self._check_is_nobodys()
        super().truncate(length)

    def _check_is_nobodys(self) -> None:
        """Refuse to change a file of a name that is not hidden: what was changed would not be appended, or would be
        with another's."""
        if kind_of(self.parts) is not PathKind.TOP or job_of(self.parts[-1]) is not None:
            return
        if self.parts[-1] in self.place.arriving:
            raise errors.BusyError(f"{self.path} is being copied by another program")
        raise errors.NotSupportedError(f"{self.path} was left by a copy that was broken off: remove it first")

    def _commit_again(self) -> None:
        self.place.commit_batch(self.parts[:-1])
        with as_told(self.path):
            self.place.staging.open(self.parts, os.O_WRONLY | os.O_CREAT).close()

    def set_times(self, accessed_ns: int | None, modified_ns: int | None) -> None:
        if kind_of(self.parts) is PathKind.SUCCESS and self.place.holds_new(self.parts[:-1]):
            # Python's touch sets the times of an existing file without opening it.
            self._commit_again()
        super().set_times(accessed_ns, modified_ns)
        arrival = self.place.arriving.get(self.parts[-1])
        if arrival is not None and len(self.parts) == 1:
            arrival.is_whole = True


class SuccessHandle(ScratchHandle):
    """`_SUCCESS`, open after its batch was committed: a daemon that stops waits for its close, for a while."""

    def __init__(self, entry: InboxFile, flags: int) -> None:
        super().__init__(entry, flags)
        self._commits = entry.place.commits
        self._commits.opened(self)

    def release(self) -> None:
        super().release()
        self._commits.closed(self)


class ArrivingHandle(ScratchHandle):
    """A file that is copied to a name that is not hidden. It is appended at close(2), if its times were set after the
    last write, or if it was written in order and its end says that it is one. Otherwise close(2) returns an error, and
    the file is removed.

    is_whole    whether its times were set, and nothing was written after that
    is_refused  whether its close(2) was refused, and nothing was written after that
    _next       the position behind what was written; None if it was not written in order
    _is_taken   whether it was appended
    """

    def __init__(self, entry: InboxFile, flags: int) -> None:
        super().__init__(entry, flags)
        self.is_whole = self.is_refused = False
        self._next: int | None = 0
        self._is_taken = False
        self._inbox = entry.place
        self._inbox.arriving[entry.parts[0]] = self

    def write(self, data: Bytes, position: int = 0) -> int:
        if self._is_taken:
            raise errors.NotSupportedError(
                f"{self._entry.path} was appended when it was closed: nothing is added"
            )
        self._check_is_there()
        self.is_whole = self.is_refused = False
        done = super().write(data, position)
        self._next = position + done if position == self._next else None
        return done

    def flush(self) -> None:
        super().flush()
        if self._is_taken:
            return
        try:
            self._take()
        except BaseException:
            self.is_refused = True
            raise
        self._is_taken = True

    def _take(self) -> None:
        self._check_is_there()
        if not self.is_whole and not self._has_its_end():
            raise errors.NotSupportedError(
                f"{self._entry.path} is not appended, since whether all of it has come cannot be known; use mv, or "
                "copy it to a name that begins with a dot, and rename it then"
            )
        self._inbox.commits.opened(self)
        self._inbox.commit_file(self._entry.parts, self._entry.parts, self.writing)

    def _check_is_there(self) -> None:
        if self._inbox.arriving.get(self._entry.parts[0]) is not self:
            raise errors.NotSupportedError(
                f"{self._entry.path} was removed or refused, and made anew, since it was opened"
            )

    def _has_its_end(self) -> bool:
        """Tell whether all of it was written, up to an end that says so."""
        file = DataFile.of(self._entry.parts)
        return self._next == self._entry.size() and is_whole(self._inbox.staging, file)

    def release(self) -> None:
        arriving = self._inbox.arriving
        name = self._entry.parts[0]
        if arriving.get(name) is self:
            del arriving[name]
            self._inbox.staging.discard((name,))
        super().release()
        self._inbox.commits.closed(self)


def check_name(parts: Parts, is_directory: bool) -> None:
    """Refuse a name early, with a reason, if what it stands for could not be appended."""
    place = kind_of(parts)
    name, shown = parts[-1], "/".join(parts)
    if place is PathKind.MANIFEST:
        raise errors.NotSupportedError(f"{shown}: {_STREAMS}")
    if place is PathKind.SCRATCH or is_hidden(name):
        return
    if not is_directory:
        DataFile.of(parts)
    elif "=" in name:
        top = parts[0] == TEMPORARY or place is PathKind.TOP
        if top or partition_of(name) is None:
            raise errors.BadInputError(
                f"{shown}: partitionBy takes the column out of the rows, and only `partition` is one that a topic has "
                "a place for, in a batch's directory; leave the column in the rows"
            )
    elif place is PathKind.DATA:
        raise errors.NotSupportedError(f"{shown}: a batch has no directories but partition=<number>")
    if place is PathKind.TOP and len(os.fsencode(name)) > LONGEST:
        raise errors.BadInputError(f"{shown}: expected a name of at most {LONGEST} bytes")
