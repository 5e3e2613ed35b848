"""The adapter to libfuse 2: it translates C callbacks into calls of the operations object, and does nothing else.

fusepy knows libfuse's structures and prototypes. Its own callbacks are not used, since they copy what is read and
written and make Python objects for each pointer. Here pointers come as plain addresses, and a callback reads from them
what it needs: read and write pass on arrays over libfuse's own buffers.

libfuse runs a pool of threads that grows while calls wait for each other, so operations may block. Paths are given
only if there is no handle (`nopath`). Otherwise libfuse would lock the whole path while a call runs, and a read that
waits for records would hold up every rename and rmdir above it.
"""

from __future__ import annotations

import ctypes
import errno
import itertools
import logging
import os
import stat as modes
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any, Final, Protocol

import fuse

from topicfs.engine.batch.table import Bytes
from topicfs.fs.entry import Attributes, DirectoryListing
from topicfs.fs.errors import MountRefusedError, errno_of
from topicfs.fs.fuse import interrupts
from topicfs.fs.fuse.libfuse import (
    ENCODING,
    File,
    OperationsTable,
    StatVfs,
    Times,
    asked,
    bytes_at,
    copy_out,
    drop_pages,
    fill,
    is_callback,
    path_of,
    refuse_handles,
    run,
    this_handle,
    time_of,
)
from topicfs.fs.fuse.libfuse_stderr import LibfuseStderr
from topicfs.fs.fuse.thread_states import ThreadStates
from topicfs.fs.kernels.requests import FOR_PAGES, NOBODY

log = logging.getLogger(__name__)

OPTIONS: Final[Mapping[str, str | bool]] = {
    "fsname": "topicfs",
    "subtype": "topicfs",
    # Programs see the st_ino that getattr gives; else they see libfuse's own numbers.
    "use_ino": True,
    # Write requests have more than 4 KiB, which makes writes 15 times as fast: up to 128 KiB with libfuse 2 alone, and
    # 1 MiB as `topicfs.fs.kernels.requests` answers the kernel. Reads need no option.
    "big_writes": True,
    # A removed file disappears at once; libfuse would rename it to .fuse_hidden… while it is open. Open files can still
    # be read. Only fstat no longer finds them, since libfuse 2 asks for attributes by path.
    "hard_remove": True,
    # Files grow without the kernel's knowledge, and a size must never be stale. So each stat asks, also for each
    # directory on the way: 12 us each, where a remembered answer costs 1 us.
    "attr_timeout": "0",
    # The kernel may remember for a second that a name exists: open and stat ask for the file itself again. With 0, a
    # stat costs 1.5 times as much.
    "entry_timeout": "1",
    # It may not remember that a name does not exist: the name can appear at any moment, by an append or a rename.
    "negative_timeout": "0",
    # O_TRUNC comes with the open. A file whose value is all that is written to it, a key, has to know then.
    "atomic_o_trunc": True,
    # A read that waits for records learns of its caller's signals.
    **interrupts.OPTIONS,
}
"""The options of every mount."""


_DOTS: Final = (b".", b"..")

_LIFE: Final = frozenset({"init", "destroy"})
"""Callbacks that do not come from a call of a program."""

_PLAIN: Final = frozenset(
    {"access", "chmod", "link", "mkdir", "mknod", "removexattr", "rename", "rmdir", "symlink", "unlink"}
)
"""Callbacks whose arguments are names and numbers, which the operations get as they are."""

_ANY: Final = Attributes(modes.S_IFDIR, 0, 0, 0, 0, 0, 0)
"""Attributes for nobody."""


@dataclass(frozen=True, slots=True)
class Opened:
    """An open file.

    handle      the number by which the operations know it
    direct_io   whether reads and writes bypass the kernel's page cache, in the sizes that the program asks for
    keep_cache  whether pages of earlier opens are still valid
    """

    handle: int
    direct_io: bool = False
    keep_cache: bool = False


VERSION_SHIFT: Final = 32
"""The version of an inode is in the bits of its number from this one on: see `Attributes.version`."""


class FileOperations(Protocol):
    """The operations that are served. Each method is looked for once, at the mount. If it is missing or None, the
    callback stays null in libfuse's table: the kernel then gets ENOSYS and asks no more. Only `getattr` is required.

    Two more methods are called if they exist. `connected(given_up, drop)` is called before all others, with a function
    that tells a waiting call whether to give up, and one that makes the kernel drop the pages of an inode, given by the
    kernel's number. `refused(error, paths, handle)` is called after a call that failed, with its paths, or with its
    handle if it has no path.

    If they have `listing(path)`, it is called when a directory is opened. What it returns gives the names then, a page
    at a time, and is closed with the directory; for None `readdir` is called.

    If they have `windows`, reads that lie in one are answered from it, and `read` is not called for them.

    Any error may be raised: `topicfs.fs.errors` chooses the errno. Calls come from many threads at once.
    """

    def getattr(self, path: str, handle: int | None, node: int = 0, caller: int = 0) -> Attributes:
        """Return what stat reports. With a handle, the path is empty. `node` is the kernel's number of the inode that
        it asks for, with its version, or 0 if it asks by name. `StaleError` if the path stands for another version now.
        `caller` is the thread that the kernel asks for."""

    def readdir(self, path: str) -> Iterable[str]:
        """Return the names in a directory, without `.` and `..`."""

    def access(self, path: str, mask: int) -> None:
        """Check access(2) and chdir(2), if the kernel does not check permissions itself."""

    def readlink(self, path: str) -> str: ...

    def open(self, path: str, flags: int, node: int = 0, caller: int = 0) -> Opened:
        """Open the version that `node` gives, as in `getattr`; else raise `StaleError`, and the kernel looks again. An
        open with O_TRUNC empties the file: `truncate` is not called."""

    def create(self, path: str, mode: int, flags: int) -> Opened: ...

    def read(self, handle: int, position: int, into: Bytes, for_pages: bool = False) -> int:
        """Fill `into` from a position on; return the bytes filled, fewer only at the end. `into` is libfuse's memory,
        which is gone when the call returns. `for_pages`: the kernel keeps the bytes, and shows them to all who have
        this version of the file open: for a mapping, for sendfile(2), or as it reads through its cache."""

    def write(self, handle: int, data: Bytes, position: int) -> int:
        """Write, and return the bytes taken. `data` is libfuse's memory, which is gone when the call returns. The
        position is the kernel's: it is out of date for a file that grows without the kernel's knowledge."""

    def flush(self, handle: int) -> None:
        """Called at each close of a descriptor, also of duplicates and forked ones. close(2) returns its error."""

    def release(self, handle: int) -> None:
        """Called after the last close. Errors reach no caller."""

    def fsync(self, handle: int, datasync: bool) -> None: ...

    def truncate(self, path: str, length: int, handle: int | None) -> None:
        """Cut the file to a length. With a handle, the path is empty."""

    def mkdir(self, path: str, mode: int) -> None: ...

    def rmdir(self, path: str) -> None: ...

    def unlink(self, path: str) -> None: ...

    def rename(self, old: str, new: str) -> None: ...

    def symlink(self, target: str, path: str) -> None:
        """Make a link at `path` that leads to `target`."""

    def link(self, existing: str, path: str) -> None: ...

    def mknod(self, path: str, mode: int, device: int) -> None: ...

    def chmod(self, path: str, mode: int) -> None: ...

    def chown(self, path: str, uid: int, gid: int) -> None:
        """Change the owner; -1 keeps a part as it is."""

    def utimens(self, path: str, accessed_ns: int | None, modified_ns: int | None) -> None:
        """Set the times; None keeps a time as it is."""

    def getxattr(self, path: str, name: str, node: int = 0) -> bytes:
        """Return an extended attribute, of the version that `node` gives where that is open. It is called only for
        names in `user.`."""

    def listxattr(self, path: str, node: int = 0) -> list[str]: ...

    def setxattr(self, path: str, name: str, value: bytes, flags: int) -> None: ...

    def removexattr(self, path: str, name: str) -> None: ...

    def statfs(self, path: str) -> os.statvfs_result: ...


class Session(Protocol):
    """The object that is told of the start and the end of a mount, in libfuse's threads."""

    def initialised(self) -> None:
        """Called before the first call. Threads may be started, and an error ends the mount."""

    def destroyed(self) -> None:
        """Called after the last call."""


def serve(
    operations: FileOperations,
    mountpoint: Path,
    options: Mapping[str, str | bool],
    session: Session | None = None,
) -> None:
    """Mount, answer calls until the mount is gone, then return. `options` extend and override `OPTIONS`.

    With `allow_other` the kernel checks permissions by what getattr says. Without it only the daemon's own user has
    access, who may do here what the daemon may do. The kernel then does not ask for the attributes of a file and of
    each directory above it at every open, which is a third of what an `echo >>` costs.

    The caller handles signals. For SIGINT, SIGTERM and SIGHUP without a handler, libfuse sets handlers of its own,
    which unmount.
    """
    states = _thread_states()
    states.leave_alone()
    checks = {"default_permissions": options.get("allow_other", False)}
    words = ["topicfs", "-f", "-o", ",".join(_words({**OPTIONS, **checks, **options})), str(mountpoint)]
    libfuse_stderr = LibfuseStderr.begin()
    try:
        adapter = Adapter(operations, session, states, libfuse_stderr)
        table = adapter.table()
        windows = getattr(operations, "windows", None)
        went_well = run(words, table, 0 if windows is None else windows.address)
    finally:
        said = libfuse_stderr.end()
    if adapter.failure is not None:
        raise adapter.failure
    if not went_well and not adapter.answered:
        raise MountRefusedError(said or "libfuse ended with an error, and did not say why")
    if not went_well:
        # After a lazy unmount with a file open, the kernel may break the connection off instead of ending it.
        log.info("the mount was broken off: libfuse ended with an error")


@cache
def _thread_states() -> ThreadStates:
    return ThreadStates.create()


def _words(options: Mapping[str, str | bool]) -> Iterable[str]:
    for name, value in options.items():
        if value is True:
            yield name
        elif value is not False:
            yield f"{name}={value}"


@dataclass(slots=True)
class Adapter:
    """libfuse's callbacks. A method with the name of a member of struct fuse_operations is called for that member, with
    the arguments that fuse.h states. Members in `_PLAIN` need none.

    operations       the operations that answer
    failure          why `init` failed; None if it did not
    _session         the object that is told of `init` and `destroy`
    _states          keeps the Python states of libfuse's threads
    answered         whether the mount was there: `init` was called
    _libfuse_stderr  catches what libfuse prints, until the mount answers
    _directories     the paths of open directories, by number, or what lists those that may have many names
    """

    operations: Any
    _session: Session | None
    _states: ThreadStates
    _libfuse_stderr: LibfuseStderr
    failure: BaseException | None = None
    answered: bool = False
    _directories: dict[int, str | DirectoryListing] = field(default_factory=dict)
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def table(self) -> OperationsTable:
        """Make the struct fuse_operations. It must live as long as libfuse runs."""
        table = OperationsTable(flag_nullpath_ok=1, flag_nopath=1, flag_utime_omit_ok=1)
        for name, kind in [member[:2] for member in OperationsTable._fields_]:
            if is_callback(kind) and self._is_offered(name):
                function = self._plain(name) if name in _PLAIN else getattr(self, name)
                setattr(table, name, kind(self._guarded(name, function)))
        return table

    def _plain(self, name: str) -> Callable[..., int]:
        operation = getattr(self.operations, name)

        def call(*arguments: bytes | int) -> int:
            operation(*(path_of(each) if isinstance(each, bytes) else each for each in arguments))
            return 0

        return call

    def _is_offered(self, name: str) -> bool:
        if name in _LIFE:
            return True
        if name not in _PLAIN and not hasattr(self, name):
            return False
        needed = {
            "fgetattr": "getattr",
            "ftruncate": "truncate",
            "opendir": "readdir",
            "releasedir": "readdir",
        }
        return getattr(self.operations, needed.get(name, name), None) is not None

    def _guarded(self, name: str, function: Callable[..., int]) -> Callable[..., int]:
        """Make a callback that keeps its thread's state, and turns every error into an errno. Behind it is C, where an
        error would be lost, and the answer would be whatever lies in its place."""
        keep = self._states.keep

        def callback(*arguments: Any) -> int:
            try:
                keep()
                return function(*arguments)
            except BaseException as error:  # noqa: BLE001
                return -self._number_of(error, name, arguments)

        return callback

    def _number_of(self, error: BaseException, name: str, arguments: tuple[Any, ...]) -> int:
        """Tell of an error, and return its errno. Without memory nothing can be told, and there is an answer still."""
        number = errno.ENOMEM if isinstance(error, MemoryError) else errno.EIO
        try:
            number = errno_of(error, name, _place(name, arguments))
            self._tell(error, name, arguments)
        except BaseException:  # noqa: BLE001
            return number
        return number

    def _tell(self, error: BaseException, name: str, arguments: tuple[Any, ...]) -> None:
        """Tell the operations about an error, if they have `refused`."""
        if not hasattr(self.operations, "refused") or not isinstance(error, Exception) or name in _LIFE:
            return
        paths = [path_of(argument) for argument in arguments if isinstance(argument, bytes)]
        try:
            self.operations.refused(error, paths, None if paths else File.from_address(arguments[-1]).fh)
        except Exception:
            log.exception(f"{name}: what was refused could not be told")

    # -- life -------------------------------------------------------------------------------------------

    def init(self, connection: int) -> int:
        self.answered = True
        refuse_handles(connection)
        said = self._libfuse_stderr.end()
        if said:
            log.warning(f"libfuse: {said}")
        try:
            if hasattr(self.operations, "connected"):
                self.operations.connected(interrupts.given_up, partial(drop_pages, this_handle()))
            if self._session is not None:
                self._session.initialised()
        except BaseException as error:  # noqa: BLE001 - `serve` raises it
            self.failure = error
            fuse.fuse_exit()
        return 0

    def destroy(self, private: int) -> int:
        if self._session is not None:
            self._session.destroyed()
        return 0

    # -- attributes -------------------------------------------------------------------------------------

    def getattr(self, path: bytes, stat: int) -> int:
        node, caller = asked()
        if caller == NOBODY:
            fill(stat, _ANY)
        else:
            fill(stat, self.operations.getattr(path_of(path), None, node, caller))
        return 0

    def fgetattr(self, path: bytes | None, stat: int, file: int) -> int:
        fill(stat, self.operations.getattr(path_of(path), File.from_address(file).fh, *asked()))
        return 0

    def chown(self, path: bytes, uid: int, gid: int) -> int:
        self.operations.chown(path_of(path), ctypes.c_int(uid).value, ctypes.c_int(gid).value)
        return 0

    def utimens(self, path: bytes, times: int) -> int:
        both = Times.from_address(times)
        self.operations.utimens(path_of(path), time_of(both.actime), time_of(both.modtime))
        return 0

    def statfs(self, path: bytes, buffer: int) -> int:
        found = self.operations.statfs(path_of(path))
        filled = StatVfs.from_address(buffer)
        for name in ("bsize", "frsize", "blocks", "bfree", "bavail", "files", "ffree", "favail", "namemax"):
            setattr(filled, f"f_{name}", getattr(found, f"f_{name}"))
        return 0

    # -- extended attributes ----------------------------------------------------------------------------

    def getxattr(self, path: bytes, name: bytes, buffer: int, size: int) -> int:
        # The kernel asks for security.capability before each write that goes through the page cache, and `ls -l` asks
        # for ACLs. Both are answered here, without a look at the path.
        if not name.startswith(b"user."):
            return -errno.ENOTSUP
        node, _ = asked()
        return copy_out(self.operations.getxattr(path_of(path), path_of(name), node), buffer, size)

    def listxattr(self, path: bytes, buffer: int, size: int) -> int:
        node, _ = asked()
        names = self.operations.listxattr(path_of(path), node)
        return copy_out(b"".join(name.encode(*ENCODING) + b"\0" for name in names), buffer, size)

    def setxattr(self, path: bytes, name: bytes, value: int | None, size: int, flags: int) -> int:
        given = b"" if value is None else ctypes.string_at(value, size)
        if name.startswith(b"user.topicfs."):
            # Setting an attribute can delete records, so the log shows who asked for it.
            user, _, process = fuse.fuse_get_context()
            log.info(
                f"{path_of(path)}: {path_of(name)} is set to {given[:256]!r} by process {process} of user {user}"
            )
        self.operations.setxattr(path_of(path), path_of(name), given, flags)
        return 0

    # -- names ------------------------------------------------------------------------------------------

    def opendir(self, path: bytes, file: int) -> int:
        name, listing = path_of(path), None
        if hasattr(self.operations, "listing"):
            listing = self.operations.listing(name)
        number = File.from_address(file).fh = next(self._numbers)
        self._directories[number] = name if listing is None else listing
        return 0

    def readdir(self, path: bytes | None, buffer: int, filler: Any, offset: int, file: int) -> int:
        found = self._directories[File.from_address(file).fh]
        if isinstance(found, str):
            for name in (".", "..", *self.operations.readdir(found)):
                filler(buffer, name.encode(*ENCODING), None, 0)
            return 0
        # With the position behind each name, libfuse keeps one page of them, and asks for the next from there.
        for at, name in enumerate(_DOTS[offset:], offset + 1):
            if filler(buffer, name, None, at):
                return 0
        for name, behind in found.names(max(0, offset - len(_DOTS))):
            if filler(buffer, name.encode(*ENCODING), None, behind + len(_DOTS)):
                break
        return 0

    def releasedir(self, path: bytes | None, file: int) -> int:
        found = self._directories.pop(File.from_address(file).fh)
        if not isinstance(found, str):
            found.close()
        return 0

    def readlink(self, path: bytes, buffer: int, size: int) -> int:
        target = self.operations.readlink(path_of(path)).encode(*ENCODING)[: size - 1] + b"\0"
        ctypes.memmove(buffer, target, len(target))
        return 0

    # -- files ------------------------------------------------------------------------------------------

    def open(self, path: bytes, file: int) -> int:
        info = File.from_address(file)
        _answer_open(info, self.operations.open(path_of(path), info.flags, *asked()))
        return 0

    def create(self, path: bytes, mode: int, file: int) -> int:
        info = File.from_address(file)
        _answer_open(info, self.operations.create(path_of(path), mode, info.flags))
        return 0

    def read(self, path: bytes | None, buffer: int, size: int, position: int, file: int) -> int:
        filled: int = self.operations.read(
            File.from_address(file).fh,
            position & (FOR_PAGES - 1),
            bytes_at(buffer, size),
            position < 0,
        )
        return filled

    def write(self, path: bytes | None, buffer: int, size: int, position: int, file: int) -> int:
        taken: int = self.operations.write(File.from_address(file).fh, bytes_at(buffer, size), position)
        return taken

    def truncate(self, path: bytes, length: int) -> int:
        self.operations.truncate(path_of(path), length, None)
        return 0

    def ftruncate(self, path: bytes | None, length: int, file: int) -> int:
        self.operations.truncate(path_of(path), length, File.from_address(file).fh)
        return 0

    def flush(self, path: bytes | None, file: int) -> int:
        self.operations.flush(File.from_address(file).fh)
        return 0

    def release(self, path: bytes | None, file: int) -> int:
        self.operations.release(File.from_address(file).fh)
        return 0

    def fsync(self, path: bytes | None, datasync: int, file: int) -> int:
        self.operations.fsync(File.from_address(file).fh, bool(datasync))
        return 0


def _answer_open(info: Any, opened: Opened) -> None:
    info.fh = opened.handle
    info.direct_io = opened.direct_io
    info.keep_cache = opened.keep_cache


def _place(name: str, arguments: tuple[Any, ...]) -> str:
    """Describe where an operation failed: the path, or the handle if there is no path."""
    if isinstance(arguments[0], bytes):
        return path_of(arguments[0])
    if name in {"init", "destroy"}:
        return "the mount"
    return f"handle {File.from_address(arguments[-1]).fh}"
