"""`log.<format>`, `current.<format>` and `follow.<format>`: a partition's records as one file."""

from __future__ import annotations

import os
from collections.abc import Hashable
from typing import Final

from topicfs.engine.batch.table import Bytes
from topicfs.engine.errors import ClosedError
from topicfs.fs import errors
from topicfs.fs.appending.handle import AppendHandle
from topicfs.fs.appending.targets import PartitionTarget
from topicfs.fs.context import Context
from topicfs.fs.entry import Attributes, Entry, Handle, Link, Owner, wants_writing
from topicfs.fs.formats import Format
from topicfs.fs.selections import base_name
from topicfs.fs.tree.partition_entry import PartitionEntry, offset_xattrs
from topicfs.fs.views.partition_views import PartitionViews
from topicfs.fs.views.view import View

FOLLOW_WAIT: Final = 0.2
"""Seconds after which a waiting read checks whether its caller still waits: Ctrl-C works within that time."""


class LogHandle(Handle):
    """A reader of the shared log view, which all who have the log open share.

    _shift  what is added to positions of this handle to get positions of the view: see `views/shared_log_view.py`; None
            before the first read
    _base   the base offset of the segment that was read last
    """

    def __init__(self, views: PartitionViews, fmt: Format) -> None:
        self._views = views
        self._format = fmt
        self._shared = views.shared_log.join(fmt, self)
        self._view = self._shared.view
        self._shift: int | None = None
        self._base = -1

    def content(self) -> Hashable:
        # Size and positions count from the origin. The file has one set of pages, so they cannot begin elsewhere.
        if self._shift:
            raise errors.SharedPagesError("the log was opened behind its origin, which somebody holds")
        return id(self._view)

    def read(self, position: int, into: Bytes) -> int:
        if self._shift is None:
            first = self._view.position_of(self._views.partition.start_offset)
            self._shift = first if position == 0 else -self._shared.excess
        if self._shift + position < 0:
            raise ClosedError(f"byte {position} was there before compaction: nobody keeps it")
        done = self._view.read(self._shift + position, into)
        base = self._view.base_at(self._shift + position)
        if base != self._base and not self.is_paged:
            self._base = base
            self._views.shared_log.move(self, self._shared, self._shift + position)
        return done

    def persist(self) -> None:
        self._views.partition.flush()

    def release(self) -> None:
        self._views.shared_log.leave(self._format, self, self._shared)


class WriterHandle(Handle):
    """A writer, with a reader if the file was opened for both.

    _synced  whether each write is brought onto the disk: with direct_io the kernel leaves O_SYNC and O_DSYNC to the
             daemon
    """

    def __init__(self, writer: AppendHandle, flags: int, reader: LogHandle | None = None) -> None:
        self._writer = writer
        self._reader = reader
        self._synced = bool(flags & os.O_DSYNC)

    def read(self, position: int, into: Bytes) -> int:
        return super().read(position, into) if self._reader is None else self._reader.read(position, into)

    def write(self, data: Bytes) -> int:
        return self._writer.write_through(data) if self._synced else self._writer.write(data)

    def flush(self) -> None:
        self._writer.flush()

    def persist(self) -> None:
        self._writer.persist()

    def release(self) -> None:
        try:
            self._writer.release()
        finally:
            if self._reader is not None:
                self._reader.release()


class LogFile(PartitionEntry):
    """The whole log from its start offset on; `>>` appends."""

    permissions = 0o666

    def __init__(self, path: str, context: Context, views: PartitionViews, fmt: Format) -> None:
        super().__init__(path, views)
        self.format = fmt
        self.context = context

    def size(self) -> int:
        self.views.writers.await_closing()
        return self.views.log_size(self.format)

    def attributes(self, owner: Owner, size: int | None = None) -> Attributes:
        found = super().attributes(owner, size)
        if self.format != Format.TXT or not found.size:
            return found
        # `du` of a partition's directory meets no other file of records, so this file reports the bytes that are
        # stored. They are never 0 if there are bytes to read, since tar takes 0 for a file without data.
        return found._replace(stored=max(self.views.stored(), 1))

    def xattrs(self) -> dict[str, bytes]:
        return offset_xattrs(self.views)

    def open(self, flags: int) -> Handle:
        if not wants_writing(flags):
            self.views.writers.await_closing()
            return LogHandle(self.views, self.format)
        require_append(self, flags)
        # A line that ends with a close in progress was written before what will be written here.
        self.views.writers.await_closing()
        target = PartitionTarget(self.views.writers, self.format, batch_size_for(flags, self.context))
        reader = LogHandle(self.views, self.format) if flags & os.O_ACCMODE == os.O_RDWR else None
        return WriterHandle(self.context.writers.open(target), flags, reader)


def batch_size_for(flags: int, context: Context) -> int:
    """Return how many bytes of lines may gather: none if each write is brought onto the disk, so that its error is
    about its own lines."""
    return 0 if flags & os.O_DSYNC else context.batch_size


def require_append(entry: Entry, flags: int) -> None:
    """Refuse an open that would overwrite or cut, with EPERM."""
    if flags & os.O_TRUNC or not flags & os.O_APPEND:
        raise errors.AppendOnlyError(f"{entry.path} can only be appended to: use >>")


class CurrentLink(PartitionEntry, Link):
    """A link to the active segment. It leads to the next one as soon as that begins."""

    def __init__(self, path: str, views: PartitionViews, fmt: Format) -> None:
        super().__init__(path, views)
        self.format = fmt

    def target(self) -> str:
        return f"segments/{base_name(self.views.partition.log.snapshot.active_base)}.{self.format.suffix}"


class FollowHandle(Handle):
    """A reader of the records that come after the open. A read waits while there are none."""

    def __init__(self, context: Context, views: PartitionViews, fmt: Format) -> None:
        self._context = context
        self._views = views
        self._view = View.open(views.rendered, fmt, views.partition.stable_offset)

    def read(self, position: int, into: Bytes) -> int:
        # The kernel's position is its own count of what was read. It equals ours, since nothing is skipped. The kernel
        # also lets only one thread at a time read from a descriptor.
        log = self._views.partition.log
        while True:
            seen = log.snapshot.stable
            done = self._view.read(position, into)
            if done:
                self._view.release_below(position)
                return done
            if not log.wait_for(seen, FOLLOW_WAIT) and self._context.given_up():
                raise errors.TryAgainError("no new record yet")

    def release(self) -> None:
        self._view.close()


class FollowFile(PartitionEntry):
    """New records as they come, like a pipe."""

    def __init__(self, path: str, context: Context, views: PartitionViews, fmt: Format) -> None:
        super().__init__(path, views)
        self.context = context
        self.format = fmt

    def open(self, flags: int) -> Handle:
        if wants_writing(flags):
            raise errors.AppendOnlyError(f"{self.path} can only be read")
        return FollowHandle(self.context, self.views, self.format)
