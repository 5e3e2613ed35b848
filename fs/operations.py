"""The operations of the file system: they turn paths and handles into calls of entries."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

from topicfs.engine.batch.table import Bytes
from topicfs.engine.errors import ClosedError, EngineError
from topicfs.engine.jobs import LASTS, TICK_MS, Job
from topicfs.engine.keys.index import KeyIndex
from topicfs.engine.store.store import Store
from topicfs.fs import errors
from topicfs.fs.context import Context
from topicfs.fs.entry import Attributes, DirectoryListing, Entry, Handle, Owner
from topicfs.fs.fuse.adapter import VERSION_SHIFT, Opened
from topicfs.fs.fuse.windows import Windows
from topicfs.fs.tree.root import RootDirectory
from topicfs.fs.views.rendered_segments import ViewCache

log = logging.getLogger(__name__)

_MOST_KNOWN: Final = 4096
"""How many entries are kept by path: each takes some 1 KiB, with what it refers to."""

_LOOKS_AGAIN: Final = 0.1
"""Seconds in which a call that was told to look a name up again does so, also on a busy machine."""


@dataclass(frozen=True, slots=True, eq=False)
class _Open:
    """An open file: the entry that was opened, and the handle that reads and writes.

    node  the kernel's number of the inode, which contains its version
    kept  the attributes at the open, without the size, if retention or compaction may remove the entry; else None
    late  whether it is newer than the version that the kernel looked up: it can be read, and mapped only unshared
    """

    entry: Entry
    handle: Handle
    node: int
    kept: Attributes | None
    late: bool

    @property
    def version(self) -> int:
        """Return the version, as in `Attributes`."""
        return self.node >> VERSION_SHIFT

    def attributes(self, owner: Owner) -> Attributes:
        """Return what fstat reports, also when the name is gone or stands for another file."""
        size = self.handle.size()
        if self.kept is not None and size is not None and not self.entry.is_there:
            return self.kept._replace(size=size)
        return self.entry.attributes(owner, size)


class FileSystem:
    """A store as a tree of files. Each method is a file operation, and may raise any error.

    context   what the whole tree shares
    owner     the owner of all files
    _root     the root of the tree
    _known    entries by path, valid while they are current: each call looks up a path, and the paths above it
    closing   whether the mount is going away, so that long work must end
    _handles  open files by number
    _held     open files that have versions, by the kernel's number of the inode
    _paged    by number, for open files with bytes in pages that others may share: what those bytes depend on
    _guard    guards changes of _held and _paged
    _stale    by path and thread: when the kernel was told to look a name up again, and the call has not come back
    _drop     makes the kernel drop the pages of an inode
    windows   rendered blocks of open files, from which reads are answered without a call of `read`
    """

    def __init__(self, store: Store, view_cache: ViewCache, metrics: Callable[[], bytes] = bytes) -> None:
        status = os.stat(store.backing)
        self.context = Context(store, view_cache)
        self.owner = Owner(status.st_uid, status.st_gid, status.st_mode & 0o777)
        self._root = RootDirectory("/", self.context, metrics)
        self._known: dict[str, Entry] = {"/": self._root}
        self._handles: dict[int, _Open] = {}
        self._held: dict[int, list[_Open]] = {}
        self._paged: dict[int, Hashable] = {}
        self._guard = threading.Lock()
        self._stale: dict[tuple[str, int], float] = {}
        self._drop: Callable[[int], object] = lambda node: None
        self.context.overtaken = self._drop_overtaken
        self.windows = Windows()
        self._numbers = itertools.count(1)
        self.closing = False

    def connected(self, given_up: Callable[[], bool], drop: Callable[[int], object]) -> None:
        """Set the function that a waiting read calls now and then, to learn whether its caller has given up, and the
        one that makes the kernel drop the pages of an inode."""
        self.context.given_up = self.context.store.links.given_up = given_up
        self._drop = drop

    def refused(self, error: Exception, paths: Iterable[str], handle: int | None) -> None:
        """Note a call that has failed. If it was a refusal, the status of the partitions concerned shows the reason."""
        opened = None if handle is None else self._handles.get(handle)
        if errors.is_refusal(error):
            any(
                self.context.note_refusal(error, path)
                for path in (paths if opened is None else [opened.entry.path])
            )

    def _drop_overtaken(self) -> None:
        """Show nothing of open files of deleted partitions, and of logs that were cut: close their windows, and drop
        their pages. The kernel then asks, and is told what has become of them."""
        for number, opened in list(self._handles.items()):
            if opened.entry.is_overtaken:
                self.windows.close(number)
                if opened.node:
                    self._drop(opened.node)

    # -- names ----------------------------------------------------------------------------------------

    def _entry(self, path: str) -> Entry:
        known = self._known.get(path)
        if known is not None:
            known.catch_up()
            if known.is_current:
                return known
        parent, name = self._parent(path)
        entry = parent.lookup(name)
        if entry.is_current:
            if len(self._known) >= _MOST_KNOWN:
                self._known = {"/": self._root}
            self._known[path] = entry
        return entry

    def _parent(self, path: str) -> tuple[Entry, str]:
        directory, _, name = path.rpartition("/")
        return self._entry(directory or "/"), name

    def getattr(self, path: str, handle: int | None, node: int = 0, caller: int = 0) -> Attributes:
        if handle is not None and not path:
            opened = self._handles[handle]
            opened.entry.catch_up()
            _refuse_deleted(opened.entry)
            return opened.attributes(self.owner)
        version = node >> VERSION_SHIFT
        for held in tuple(self._held.get(node, ())) if version else ():
            # libfuse 2 asks by name for an open file too, and the kernel asks before it reads through its page cache.
            held.entry.catch_up()
            if not held.entry.is_deleted:
                return held.attributes(self.owner)
        found = self._entry(path).at(version)
        if version not in (0, found.version):
            self._look_again(path, caller)
        return found.attributes(self.owner)

    def _look_again(self, path: str, caller: int) -> None:
        """Raise StaleError to have the kernel look a name up again, because it stands for other bytes now. The kernel
        does so once per call. If the bytes change again in the meantime, the call has to take the newest ones."""
        now = time.monotonic()
        last = self._stale.pop((path, caller), None)
        if last is not None and now - last < _LOOKS_AGAIN:
            return
        if len(self._stale) >= _MOST_KNOWN:
            self._stale = {}
        self._stale[path, caller] = now
        raise errors.StaleError(f"{path} has come to stand for other bytes")

    def access(self, path: str, mask: int) -> None:
        mode = self._entry(path).at(0).attributes(self.owner).mode
        for asked, bits in ((os.R_OK, 0o444), (os.W_OK, 0o222), (os.X_OK, 0o111)):
            if mask & asked and not mode & bits:
                raise errors.NoAccessError(f"{path} has no bits of {bits:o} in {mode:o}")

    def readdir(self, path: str) -> Iterable[str]:
        return list(self._entry(path).names())

    def listing(self, path: str) -> DirectoryListing | None:
        return self._entry(path).listing()

    def readlink(self, path: str) -> str:
        return self._entry(path).target()

    def mkdir(self, path: str, mode: int) -> None:
        parent, name = self._parent(path)
        parent.create_directory(name)

    def rmdir(self, path: str) -> None:
        parent, name = self._parent(path)
        parent.remove_directory(name)

    def getxattr(self, path: str, name: str, node: int = 0) -> bytes:
        value = self._open_or_named(path, node).xattr(name)
        if value is None:
            raise errors.NoAttributeError(f"{path} has no attribute {name}")
        return value

    def listxattr(self, path: str, node: int = 0) -> list[str]:
        return list(self._open_or_named(path, node).xattrs())

    def _open_or_named(self, path: str, node: int) -> Entry:
        """Return what is open as this inode, else what has the name: attributes of a descriptor go with its bytes. Of
        several that is the first, so nobody is told of a later record than the one that they have read."""
        for held in tuple(self._held.get(node, ())) if node >> VERSION_SHIFT else ():
            if not held.entry.is_deleted and held.entry.is_there:
                return held.entry
        return self._entry(path)

    def statfs(self, path: str) -> os.statvfs_result:
        return os.statvfs(self.context.store.backing)

    # -- open files -----------------------------------------------------------------------------------

    def open(self, path: str, flags: int, node: int = 0, caller: int = 0) -> Opened:
        with self._counted():
            return self._open(path, flags, node, caller)

    @contextlib.contextmanager
    def _counted(self) -> Iterator[None]:
        """Count an open file, unless it comes to nothing."""
        files = self.context.holdings.open_files
        files.take()
        try:
            yield
        except BaseException:
            files.give()
            raise

    def _open(self, path: str, flags: int, node: int, caller: int) -> Opened:
        version = node >> VERSION_SHIFT
        try:
            entry = self._entry(path)
        except errors.TakenError as error:
            # The kernel remembers a name that was removed here. After ESTALE it looks again, and may create the file.
            raise errors.StaleError(str(error)) from None
        try:
            found = entry.at(version)
            if flags & os.O_TRUNC and not found.can_empty:
                found.truncate(0)
            opened = found.open(flags)
        except errors.NotFoundError:
            if entry.is_current:
                raise
            # Compaction has just replaced the segment. The new one has the same name, which has existed all the time.
            found = self._entry(path).at(version)
            opened = found.open(flags)
        # The version is asked for after the open: what was opened may be newer than what the kernel looked up.
        try:
            late = version not in (0, found.version)
            if late:
                self._look_again(path, caller)
        except BaseException:
            opened.release()
            raise
        if not late and self._stale:
            self._stale.pop((path, caller), None)
        return self._opened(found, opened, node, late)

    def create(self, path: str, mode: int, flags: int) -> Opened:
        parent, name = self._parent(path)
        with self._counted():
            return self._opened(*parent.create_file(name, flags))

    def _opened(self, entry: Entry, opened: Handle, node: int = 0, late: bool = False) -> Opened:
        number = next(self._numbers)
        try:
            kept = entry.attributes(self.owner, 0) if entry.can_go else None
            if opened.waits:
                self.context.holdings.followers.take()
        except BaseException:
            opened.release()
            raise
        made = self._handles[number] = _Open(entry, opened, node, kept, late)
        opened.settle = partial(self.windows.settle, number)
        opened.settle(opened.is_settled)
        if made.version:
            with self._guard:
                self._held.setdefault(node, []).append(made)
        whole = opened.whole()
        if whole is not None:
            self.windows.open_whole(number, whole)
            if entry.is_overtaken:
                # As in `_show_window`.
                self.windows.close(number)
        return Opened(number, opened.direct_io or late, opened.keep_cache and not late)

    def read(self, handle: int, position: int, into: Bytes, for_pages: bool = False) -> int:
        opened = self._handles[handle]
        opened.entry.catch_up()
        _refuse_deleted(opened.entry)
        is_final = opened.handle.keep_cache and not opened.late
        if is_final or not for_pages:
            done = opened.handle.read(position, into)
            if done == into.size:
                self._show_window(handle, opened, position + done - 1, is_final)
            return done
        opened.handle.is_paged = True
        done = opened.handle.read(position, into)
        self._share_pages(handle, opened)
        return done

    def _show_window(self, handle: int, opened: _Open, position: int, for_pages: bool) -> None:
        """Have the next reads near a position answered from memory. At the end of a file there is nothing to read."""
        window = opened.handle.window(position)
        if window is not None:
            self.windows.open(handle, *window, for_pages)
            if opened.entry.is_overtaken:
                # It was deleted or cut since it was read: whoever closes the windows of that may have been here.
                self.windows.close(handle)

    def _share_pages(self, handle: int, opened: _Open) -> None:
        """Refuse bytes for pages that another open file shares, if that file shows other bytes."""
        if opened.late and opened.handle.keep_cache:
            raise errors.SharedPagesError(f"{opened.entry.path} changed while it was opened: open it again")
        content = handle if opened.late else opened.handle.content()
        # Files in an inbox can be written anywhere, and have no versions: each has its own bytes.
        if self._paged.get(handle, self) == content or (content is None and not opened.version):
            return
        with self._guard:
            for number, other in self._paged.items():
                found = self._handles.get(number)
                if found is not None and found.node == opened.node and other != content:
                    raise errors.SharedPagesError(
                        f"{opened.entry.path} is mapped by another descriptor, and shows other bytes there"
                    )
            self._paged[handle] = content

    def write(self, handle: int, data: Bytes, position: int = 0) -> int:
        return self._handles[handle].handle.write(data, position)

    def flush(self, handle: int) -> None:
        self._handles[handle].handle.flush()

    def fsync(self, handle: int, datasync: bool) -> None:
        self._handles[handle].handle.persist()

    def release(self, handle: int) -> None:
        self._release(handle, False)

    def _release(self, handle: int, at_end: bool) -> None:
        opened = self._handles.pop(handle)
        self.windows.close(handle)
        if opened.version:
            with self._guard:
                held = self._held[opened.node]
                held.remove(opened)
                if not held:
                    del self._held[opened.node]
        if handle in self._paged:
            with self._guard:
                del self._paged[handle]
            self._drop(opened.node)
        try:
            if at_end:
                opened.handle.release_at_end()
            else:
                opened.handle.release()
        finally:
            self.context.holdings.open_files.give()
            if opened.handle.waits:
                self.context.holdings.followers.give()

    def jobs(self) -> list[Job]:
        """Return the background jobs. For a read-only store these do not include any upkeep of it."""
        context = self.context
        ahead = Job("read-ahead", LASTS, context.read_ahead.run, 0, "ahead")
        if context.store.read_only:
            return [
                ahead,
                Job("following", TICK_MS, self.follow, TICK_MS, "following"),
                Job("size maps", TICK_MS, self.keep_maps, TICK_MS, "maps"),
                Job("indexes of keys", TICK_MS, self.keep_keys, TICK_MS, "maps"),
            ]
        return [
            ahead,
            Job("late transactions", TICK_MS, self.abort_late, TICK_MS, "inboxes"),
            Job("linger", LASTS, context.linger.run, 0, "linger"),
            Job("write-behind", LASTS, context.write_behind.run, 0, "behind"),
            # A large log takes minutes, and no other job should wait for it.
            Job("size maps", TICK_MS, self.keep_maps, TICK_MS, "views"),
            *context.groups.jobs(),
            Job("indexes of keys", TICK_MS, self.keep_keys, TICK_MS, "views"),
        ]

    def follow(self) -> None:
        """Take up what another process has changed in the files of open views, so that nothing is removed of which they
        hold nothing. Show nothing more of partitions that it has removed, and of logs that it has cut. Here, as the
        kernel must not be asked to drop pages by the very call that reads them."""
        for views in self.context.looked_at():
            if views.rendered.open_views:
                views.partition.catch_up()
        if any(opened.entry.is_overtaken for opened in list(self._handles.values())):
            self._drop_overtaken()

    def abort_late(self) -> None:
        """Abort the transactions that were not committed in time."""
        self.context.transactions.abort_late()

    def keep_maps(self) -> None:
        """Save the size maps of sealed segments in the view cache, and remove those of segments that are gone."""
        for views in self.context.looked_at():
            views.forget_removed()
            views.rendered.keep_complete(lambda: self.closing)

    def keep_keys(self) -> None:
        """Put what was appended into the indexes of keys that are in use, and save those that have changed much."""
        self._each_index(KeyIndex.save_if_due)

    def _each_index(self, save: Callable[[KeyIndex], bool]) -> None:
        for views in self.context.looked_at():
            index = views.known_keys
            try:
                if index is not None and views.partition.is_open:
                    index.catch_up()
                    save(index)
            except (EngineError, OSError) as error:
                log.warning(f"{views.partition.name}: the index of its keys is not saved: {error}")

    def end_commits(self) -> None:
        """Begin no more commits of inboxes; return when those that have begun are done and answered."""
        self.context.commits.end()

    def close(self) -> None:
        """End the jobs, and append what open handles still hold: no more calls will come."""
        self.closing = True
        self.context.linger.stop()
        self.context.write_behind.stop()
        self.context.read_ahead.stop()
        self.close_all()
        self._each_index(KeyIndex.save)

    def close_all(self) -> None:
        """Release all open files, as the mount goes away. Their unfinished lines are appended as complete lines."""
        for number in list(self._handles):
            self._release(number, True)

    # -- what logs do not have ------------------------------------------------------------------------

    def mknod(self, path: str, mode: int, device: int) -> None:
        raise errors.NotSupportedError(
            f"{path}: files are not made here; partitions and topics are made by mkdir"
        )

    def link(self, existing: str, path: str) -> None:
        raise errors.NotSupportedError(f"{path}: links are not made here")

    symlink = link

    def truncate(self, path: str, length: int, handle: int | None) -> None:
        entry = self._entry(path) if handle is None or path else self._handles[handle].entry
        entry.truncate(length)

    def unlink(self, path: str) -> None:
        entry = self._entry(path)
        entry.remove()

    def rename(self, old: str, new: str) -> None:
        entry = self._entry(old)
        entry.move(*self._parent(new))

    def chmod(self, path: str, mode: int) -> None:
        self._entry(path).set_mode()

    def chown(self, path: str, uid: int, gid: int) -> None:
        self._entry(path).set_owner()

    def utimens(self, path: str, accessed_ns: int | None, modified_ns: int | None) -> None:
        self._entry(path).set_times(accessed_ns, modified_ns)

    def setxattr(self, path: str, name: str, value: bytes, flags: int) -> None:
        self._entry(path).set_xattr(name, value)

    def removexattr(self, path: str, name: str) -> None:
        raise errors.AttributeNotSupportedError(f"{path}: attributes cannot be removed")


def _refuse_deleted(entry: Entry) -> None:
    """Raise ClosedError if an open entry was deleted, even if some of it is still in memory."""
    if entry.is_deleted:
        raise ClosedError(f"{entry.path} was deleted while it was open")
