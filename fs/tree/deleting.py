"""Deletion of records by name through the mount, with extended attributes that no tool sets by itself.

    setfattr -n user.topicfs.delete -v orders mnt/topics        a topic, with all that it holds
    setfattr -n user.topicfs.delete -v orders-0 mnt             a partition
    setfattr -n user.topicfs.undelete -v orders mnt/topics      take back a topic's newest deletion, or one by id
    setfattr -n user.topicfs.undelete -v orders-0 mnt           take back a partition's
    getfattr --only-values -n user.topicfs.deleted mnt/topics   what can be taken back, as JSON

The attribute belongs to the directory that contains the name, so that the kernel checks the permission to write there,
as for rmdir. `topicfs delete` and `topicfs undelete` set it. None of the attributes is listed, so tools that copy
attributes do not see them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from topicfs.fs import errors
from topicfs.fs.context import Context
from topicfs.fs.entry import Directory

DELETE: Final = "user.topicfs.delete"
UNDELETE: Final = "user.topicfs.undelete"
DELETED: Final = "user.topicfs.deleted"


class Deleting(Directory):
    """A directory whose names can be deleted with all that they hold, and taken back.

    context  the context that the tree shares
    """

    context: Context

    def xattr(self, name: str) -> bytes | None:
        return self.context.deletions() if name == DELETED else super().xattr(name)

    def set_xattr(self, name: str, value: bytes) -> None:
        tasks: dict[str, Callable[[str], None]] = {DELETE: self.delete, UNDELETE: self.undelete}
        task = tasks.get(name)
        if task is None:
            super().set_xattr(name, value)
            return
        try:
            wanted = value.decode("ascii")
        except UnicodeDecodeError:
            raise errors.NotFoundError(f"there is no {self.path.rstrip('/')}/{value!r}") from None
        task(wanted)

    def delete(self, name: str) -> None:
        """Delete what has this name, with all that it holds."""
        raise NotImplementedError

    def undelete(self, name: str) -> None:
        """Take back the newest deletion of what had this name."""
        raise NotImplementedError
