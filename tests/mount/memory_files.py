"""A small file system in memory, for tests of the adapter: it remembers what it was asked, and misbehaves on demand.

/append               refuses to shrink, lines that begin with "bad", and whatever is behind a bar; its close fails
                      behind "unfinished"
/growing              is larger each time it is asked
/calls                what was asked so far, a line each. Lines of `calls` itself are left out
/threads              how many threads the process has, and how many thread states Python has
/wrong/<name>         asked for, it raises what `ERRORS` holds under that name
/blocked/wait         a read waits, and says "again" twice a second, until /go is made
everything else       files and directories as they are made
"""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import stat
import threading
from collections.abc import Iterable

from topicfs.engine.batch.table import Bytes
from topicfs.engine.errors import CorruptBatchError
from topicfs.fs.entry import Attributes
from topicfs.fs.errors import (
    AppendOnlyError,
    BadInputError,
    ExistsError,
    NoAttributeError,
    NotEmptyError,
    NotFoundError,
    TryAgainError,
)
from topicfs.fs.fuse.adapter import Opened

log = logging.getLogger(__name__)

MTIME_NS = 1_700_000_000_123_456_789

ERRORS: dict[str, BaseException] = {
    "missing": NotFoundError("there is no such thing"),
    "corrupt": CorruptBatchError("crc 1, expected 2"),
    "full": OSError(errno.ENOSPC, "no space left on device"),
    "bug": ZeroDivisionError("a bug"),
    "interrupt": KeyboardInterrupt(),
    "exit": SystemExit(3),
}


class File:
    """Bytes, extended attributes, and the number by which it is known."""

    def __init__(self, ino: int, mode: int) -> None:
        self.ino = ino
        self.mode = mode
        self.data = bytearray()
        self.xattrs: dict[str, bytes] = {}
        self.mtime_ns = MTIME_NS
        self.target = ""


class Small:
    """Files by path; handles are numbers of open files, which stay readable when their name goes."""

    def __init__(self) -> None:
        self.files: dict[str, File] = {}
        self.open_files: dict[int, tuple[str, File]] = {}
        self.calls: list[str] = []
        self.grown = 0
        self.lock = threading.Lock()
        self.next = 100
        for path in ("/", "/wrong", "/blocked"):
            self._make(path, stat.S_IFDIR | 0o755)
        for path in ("/calls", "/threads", "/blocked/wait", "/growing", "/append", "/secret"):
            self._make(path, stat.S_IFREG | (0o600 if path == "/secret" else 0o644))

    def _make(self, path: str, mode: int) -> File:
        if path in self.files:
            raise ExistsError(path)
        self.next += 1
        self.files[path] = File(self.next, mode)
        return self.files[path]

    def _find(self, path: str) -> File:
        if path.startswith("/wrong/"):
            raise ERRORS[path.removeprefix("/wrong/")]
        try:
            return self.files[path]
        except KeyError:
            raise NotFoundError(f"there is no {path}") from None

    def _note(self, *words: object) -> None:
        self.calls.append(" ".join(str(word) for word in words))

    # -- attributes -----------------------------------------------------------------------------------

    def getattr(self, path: str, handle: int | None, node: int = 0, caller: int = 0) -> Attributes:
        self._note("getattr", path, handle)
        file = self._find(path) if handle is None else self.open_files[handle][1]
        size = len(file.data)
        if path == "/growing":
            self.grown += 1
            size = self.grown
        links = 2 if stat.S_ISDIR(file.mode) else 1
        return Attributes(file.mode, file.ino, links, size, file.mtime_ns, 11, 12)

    def chmod(self, path: str, mode: int) -> None:
        self._find(path).mode = mode

    def chown(self, path: str, uid: int, gid: int) -> None:
        self._note("chown", path, uid, gid)

    def utimens(self, path: str, accessed_ns: int | None, modified_ns: int | None) -> None:
        self._note("utimens", path, accessed_ns, modified_ns)

    def statfs(self, path: str) -> os.statvfs_result:
        return os.statvfs_result((4096, 4096, 1000, 500, 400, 90, 80, 70, 0, 200))

    def getxattr(self, path: str, name: str, node: int = 0) -> bytes:
        self._note("getxattr", path, name)
        try:
            return self._find(path).xattrs[name]
        except KeyError:
            raise NoAttributeError(name) from None

    def listxattr(self, path: str, node: int = 0) -> list[str]:
        return list(self._find(path).xattrs)

    def setxattr(self, path: str, name: str, value: bytes, flags: int) -> None:
        self._find(path).xattrs[name] = value

    def removexattr(self, path: str, name: str) -> None:
        del self._find(path).xattrs[name]

    # -- names ----------------------------------------------------------------------------------------

    def readdir(self, path: str) -> Iterable[str]:
        self._note("readdir", path)
        start = path.rstrip("/") + "/"
        for other in list(self.files):
            name = other.removeprefix(start)
            if other.startswith(start) and name and "/" not in name:
                yield name

    def readlink(self, path: str) -> str:
        return self._find(path).target

    def symlink(self, target: str, path: str) -> None:
        self._make(path, stat.S_IFLNK | 0o777).target = target

    def mkdir(self, path: str, mode: int) -> None:
        self._make(path, stat.S_IFDIR | mode)

    def rmdir(self, path: str) -> None:
        if any(other.startswith(path + "/") for other in self.files):
            raise NotEmptyError(path)
        del self.files[path]

    def unlink(self, path: str) -> None:
        self._find(path)
        del self.files[path]

    def rename(self, old: str, new: str) -> None:
        for path in [path for path in self.files if path == old or path.startswith(old + "/")]:
            self.files[new + path.removeprefix(old)] = self.files.pop(path)

    # -- files ----------------------------------------------------------------------------------------

    def open(self, path: str, flags: int, node: int = 0, caller: int = 0) -> Opened:
        self._note("open", path, flags & (os.O_ACCMODE | os.O_APPEND))
        if flags & os.O_TRUNC:
            self.truncate(path, 0, None)
        file = self._find(path)
        if path == "/calls":
            # `readdir` and others ask for attributes: what counts is what came from outside.
            file.data[:] = "\n".join(call for call in self.calls if "/calls" not in call).encode()
        elif path == "/threads":
            file.data[:] = f"{len(os.listdir('/proc/self/task'))} {_thread_states()}".encode()
        return self._opened(path, file)

    def create(self, path: str, mode: int, flags: int) -> Opened:
        self._note("create", path, oct(mode))
        return self._opened(path, self._make(path, mode))

    def _opened(self, path: str, file: File) -> Opened:
        with self.lock:
            self.next += 1
            self.open_files[self.next] = (path, file)
            handle = self.next
        direct = path in {"/calls", "/threads", "/append"} or "direct" in path or path.startswith("/blocked")
        return Opened(handle, direct_io=direct, keep_cache="keep" in path)

    def read(self, handle: int, position: int, into: Bytes, for_pages: bool = False) -> int:
        path, file = self.open_files[handle]
        self._note("read", path, position, into.size)
        if "blocked" in path and "/go" not in self.files:
            threading.Event().wait(0.4)
            if "/go" not in self.files:
                raise TryAgainError("nothing yet")
        part = file.data[position : position + into.size]
        into[: len(part)] = memoryview(part)
        return len(part)

    def write(self, handle: int, data: Bytes, position: int) -> int:
        path, file = self.open_files[handle]
        self._note("write", path, data.size)
        given = data.tobytes()
        if path == "/append" and given.startswith(b"bad"):
            raise BadInputError("line 1: bad")
        if path == "/append" and b"|" in given:
            given = given[: given.index(b"|")]
        file.data += given
        return len(given)

    def flush(self, handle: int) -> None:
        path, file = self.open_files[handle]
        self._note("flush", path)
        if file.data.endswith(b"unfinished"):
            raise OSError(errno.ENOSPC, "no space left on device")

    def fsync(self, handle: int, datasync: bool) -> None:
        self._note("fsync", self.open_files[handle][0], datasync)

    def release(self, handle: int) -> None:
        path, _ = self.open_files.pop(handle)
        self._note("release", path)

    def truncate(self, path: str, length: int, handle: int | None) -> None:
        self._note("truncate", path, length, "with handle" if handle is not None else "by path")
        if path == "/append" or (handle is not None and self.open_files[handle][0] == "/append"):
            raise AppendOnlyError("/append only grows")
        file = self._find(path) if handle is None else self.open_files[handle][1]
        del file.data[length:]

    # -- life -----------------------------------------------------------------------------------------

    def initialised(self) -> None:
        log.info("served")

    def destroyed(self) -> None:
        log.info("ended")


class Passing(Small):
    """Nothing lasts: a directory that is renamed is gone, as one that is committed; each look at a file's name finds
    another file. The release of a file `held` lasts until a rename has begun, and each rename until such a one has
    ended, and what follows from it is done."""

    def __init__(self) -> None:
        super().__init__()
        self.looks = 0
        self.renaming = threading.Event()
        self.released = threading.Event()
        self.released.set()

    def getattr(self, path: str, handle: int | None, node: int = 0, caller: int = 0) -> Attributes:
        self.looks += 1
        found = super().getattr(path, handle)
        return found._replace(version=self.looks, fleeting=True) if stat.S_ISREG(found.mode) else found

    def rename(self, old: str, new: str) -> None:
        for path in [path for path in list(self.files) if path == old or path.startswith(old + "/")]:
            self.files.pop(path, None)
        if not self.released.is_set():
            self.renaming.set()
            self.released.wait()
            threading.Event().wait(0.2)

    def release(self, handle: int) -> None:
        path = self.open_files[handle][0]
        if path.endswith("/held"):
            self.released.clear()
            self.renaming.wait()
        super().release(handle)
        self.released.set()


class Stillborn(Small):
    """Fails in its first call."""

    def initialised(self) -> None:
        raise ValueError("stillborn")


def _thread_states() -> int:
    python = ctypes.PyDLL(None)
    for name in ("PyInterpreterState_Get", "PyInterpreterState_ThreadHead", "PyThreadState_Next"):
        function = python[name]
        function.restype = ctypes.c_void_p
        setattr(python, name, function)
    state = python.PyInterpreterState_ThreadHead(ctypes.c_void_p(python.PyInterpreterState_Get()))
    count = 0
    while state:
        count += 1
        state = python.PyThreadState_Next(ctypes.c_void_p(state))
    return count
