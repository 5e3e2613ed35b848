"""`log.<format>`, `current.<format>` and `follow.<format>`: a partition's records as one file."""

from __future__ import annotations

import os
from dataclasses import dataclass

from topicfs.fs.appending.handle import AppendHandle
from topicfs.fs.appending.targets import PartitionTarget
from topicfs.fs.entry import Attributes, Handle, Link, Owner, refuse_writing, require_append, wants_writing
from topicfs.fs.formats import Format
from topicfs.fs.selections import base_name
from topicfs.fs.tree.partition_entry import PartitionEntry, offset_xattrs
from topicfs.fs.views.handle import FollowHandle, ViewHandle
from topicfs.fs.views.view import View


@dataclass(eq=False)
class LogFile(PartitionEntry):
    """The whole log from its start offset on; `>>` appends."""

    format: Format

    permissions = 0o666

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
        if wants_writing(flags):
            require_append(self, flags)
            self.context.store.links.await_partition(self.views.partition)
            self.views.partition.log.check_takes_lines()
        # A line that ends with a close in progress was written before what will be written here.
        self.views.writers.await_closing()
        reads = flags & os.O_ACCMODE != os.O_WRONLY
        reader = ViewHandle(self.views.shared_log.join(self.format)) if reads else Handle()
        if not wants_writing(flags):
            return reader
        target = PartitionTarget(self.views.writers, self.format, self.context.batch_size_for(flags))
        return AppendHandle.open(target, flags, self.context.holdings.unfinished_bytes, reader)


@dataclass(eq=False)
class CurrentLink(PartitionEntry, Link):
    """A link to the active segment. It leads to the next one as soon as that begins."""

    format: Format

    def target(self) -> str:
        return f"segments/{base_name(self.views.partition.log.snapshot.active_base)}.{self.format.suffix}"


@dataclass(eq=False)
class FollowFile(PartitionEntry):
    """New records as they come, like a pipe."""

    format: Format

    def open(self, flags: int) -> Handle:
        refuse_writing(self, flags)
        view = View.open(self.views.rendered, self.format, self.views.partition.stable_offset)
        return FollowHandle(view, self.context.given_up)
