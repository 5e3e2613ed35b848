"""What a workload does to a directory, recorded call by call: names, contents and fsync.

Files and directories are known by their inode numbers, so that a file keeps its history under each name. A recording is
complete or an error: `Recording.check` compares what it says with what is there.

    name   entries of directories that change in one step: made, renamed, removed
    data   the content of a file behind a write, or a cut; and what half of that write would have left
    sync   a file or a directory is fsynced
"""

from __future__ import annotations

import contextlib
import os
import stat
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

Entry = tuple[int, str]
"""A name in a directory: the directory's inode number, and the name."""


@dataclass(frozen=True, slots=True)
class Name:
    """Entries that change in one step. None: the entry goes."""

    changes: tuple[tuple[Entry, int | None], ...]


@dataclass(frozen=True, slots=True)
class Data:
    """The content of a file from now on; `torn`, where only half of the write was done."""

    inode: int
    content: bytes
    torn: bytes


@dataclass(frozen=True, slots=True)
class Sync:
    """A file, or a directory, is on disk."""

    inode: int


Call = Name | Data | Sync


@dataclass
class Recording:
    """A directory as it was, and all calls that have changed it.

    root         its path
    number       its inode number
    names        the entries that it began with, of all directories below it
    contents     the contents that its files began with
    directories  the inode numbers of all directories that were there, now or once
    calls        what was done, in order
    now          contents as they are now
    """

    root: Path
    number: int
    names: dict[Entry, int] = field(default_factory=dict)
    contents: dict[int, bytes] = field(default_factory=dict)
    directories: set[int] = field(default_factory=set)
    calls: list[Call] = field(default_factory=list)
    now: dict[int, bytes] = field(default_factory=dict)
    _lock: threading.RLock = field(default_factory=threading.RLock)

    @classmethod
    def of(cls, root: Path) -> Recording:
        """Read what is there."""
        found = cls(root, os.stat(root).st_ino)
        found._read(str(root), found.number)
        found.now = dict(found.contents)
        return found

    def _read(self, path: str, number: int) -> None:
        self.directories.add(number)
        with os.scandir(path) as entries:
            for entry in entries:
                inode = entry.inode()
                self.names[number, entry.name] = inode
                if entry.is_dir(follow_symlinks=False):
                    self._read(entry.path, inode)
                else:
                    with open(entry.path, "rb") as file:
                        self.contents[inode] = file.read()

    # -- recording ------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Record what this process does."""
        with contextlib.ExitStack() as stack:
            for name in (
                "open", "write", "pwrite", "ftruncate", "truncate", "fsync", "fdatasync", "mkdir", "rmdir", "unlink",
                "remove", "rename", "replace",
            ):  # fmt: skip
                original = getattr(os, name)
                stack.enter_context(mock.patch.object(os, name, self._wrapped(name, original)))
            yield

    def _wrapped(self, name: str, original: Any) -> Any:
        record = getattr(self, f"_{_SAME.get(name, name)}")

        def call(*arguments: Any, **named: Any) -> Any:
            # What comes first on disk comes first here too.
            with self._lock:
                return record(original, *arguments, **named)

        return call

    def _open(self, original: Any, path: Any, flags: int, *rest: Any, **named: Any) -> int:
        if not flags & (os.O_CREAT | os.O_TRUNC):
            return int(original(path, flags, *rest, **named))
        entry = self._entry(path, named.get("dir_fd"))
        descriptor: int = original(path, flags, *rest, **named)
        if entry is not None:
            inode = os.fstat(descriptor).st_ino
            if inode not in self.now:
                self.now[inode] = self.contents[inode] = b""
                self.calls.append(Name(((entry, inode),)))
            elif flags & os.O_TRUNC and self.now[inode]:
                self._changed(inode, b"")
        return descriptor

    def _write(self, original: Any, descriptor: int, data: Any) -> int:
        written: int = original(descriptor, data)
        inode = os.fstat(descriptor).st_ino
        if inode in self.now:
            self._put(inode, os.lseek(descriptor, 0, os.SEEK_CUR) - written, bytes(data)[:written])
        return written

    def _pwrite(self, original: Any, descriptor: int, data: Any, position: int) -> int:
        written: int = original(descriptor, data, position)
        inode = os.fstat(descriptor).st_ino
        if inode in self.now:
            self._put(inode, position, bytes(data)[:written])
        return written

    def _put(self, inode: int, position: int, data: bytes) -> None:
        half = _overwritten(self.now[inode], position, data[: len(data) // 2])
        self._changed(inode, _overwritten(self.now[inode], position, data), half)

    def _changed(self, inode: int, content: bytes, torn: bytes | None = None) -> None:
        self.calls.append(Data(inode, content, content if torn is None else torn))
        self.now[inode] = content

    def _truncate(self, original: Any, what: Any, size: int) -> None:
        original(what, size)
        inode = (os.fstat(what) if isinstance(what, int) else os.stat(what)).st_ino
        if inode in self.now and len(self.now[inode]) != size:
            self._changed(inode, self.now[inode][:size].ljust(size, b"\0"))

    def _sync(self, original: Any, descriptor: int) -> None:
        inode = os.fstat(descriptor).st_ino
        if inode in self.now or inode in self.directories:
            self.calls.append(Sync(inode))

    def _mkdir(self, original: Any, path: Any, *rest: Any, dir_fd: int | None = None, **named: Any) -> None:
        original(path, *rest, dir_fd=dir_fd, **named)
        entry = self._entry(path, dir_fd)
        if entry is not None:
            inode = os.stat(path, dir_fd=dir_fd).st_ino
            self.directories.add(inode)
            self.calls.append(Name(((entry, inode),)))

    def _remove(self, original: Any, path: Any, *, dir_fd: int | None = None) -> None:
        entry = self._entry(path, dir_fd)
        original(path, dir_fd=dir_fd)
        if entry is not None:
            self.calls.append(Name(((entry, None),)))

    def _rename(
        self,
        original: Any,
        source: Any,
        target: Any,
        *,
        src_dir_fd: int | None = None,
        dst_dir_fd: int | None = None,
    ) -> None:
        before, after = self._entry(source, src_dir_fd), self._entry(target, dst_dir_fd)
        inode = os.stat(source, dir_fd=src_dir_fd, follow_symlinks=False).st_ino if before else 0
        original(source, target, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
        if before is not None and after is not None:
            self.calls.append(Name(((before, None), (after, inode))))

    def _entry(self, path: Any, directory: int | None) -> Entry | None:
        """The entry that a path names; None where it is not below the root."""
        above, _, name = os.fspath(path).rpartition("/")
        if directory is None or above.startswith("/"):
            number = os.stat(above or "/").st_ino
        else:
            number = os.stat(above or ".", dir_fd=directory).st_ino
        return (number, name) if number in self.directories else None

    # -- looking --------------------------------------------------------------------------------------

    def check(self) -> None:
        """What was recorded leads to what is there now."""
        names = dict(self.names)
        for call in self.calls:
            if isinstance(call, Name):
                apply(names, call)
        expected = Tree.of(self.number, names, self.now, self.directories)
        found: dict[str, bytes | None] = {}
        for above, directories, files in os.walk(self.root):
            place = os.path.relpath(above, self.root)
            for name in directories:
                found[os.path.normpath(f"{place}/{name}")] = None
            for name in files:
                path = Path(above) / name
                assert stat.S_ISREG(path.lstat().st_mode)
                found[os.path.normpath(f"{place}/{name}")] = path.read_bytes()
        assert expected.files == found, sorted(
            path
            for path in expected.files.keys() | found.keys()
            if expected.files.get(path, 0) != found.get(path, 0)
        )


_SAME = {"ftruncate": "truncate", "fsync": "sync", "fdatasync": "sync", "rmdir": "remove", "unlink": "remove",
"replace": "rename"}  # fmt: skip


def apply(names: dict[Entry, int], call: Name) -> None:
    """Change entries as a call does."""
    for entry, inode in call.changes:
        if inode is None:
            names.pop(entry, None)
        else:
            names[entry] = inode


@dataclass(frozen=True, slots=True)
class Tree:
    """Files by their paths, and their contents; None for a directory."""

    files: dict[str, bytes | None]

    @classmethod
    def of(
        cls, root: int, names: dict[Entry, int], contents: dict[int, bytes], directories: set[int]
    ) -> Tree:
        """Build what can be reached from the root."""
        below: dict[int, list[tuple[str, int]]] = {}
        for (above, name), inode in names.items():
            below.setdefault(above, []).append((name, inode))
        files: dict[str, bytes | None] = {}
        waiting = [("", root)]
        while waiting:
            place, number = waiting.pop()
            for name, inode in below.get(number, ()):
                path = place + name
                if inode in directories:
                    files[path] = None
                    waiting.append((path + "/", inode))
                else:
                    files[path] = contents[inode]
        return cls(files)


def _overwritten(content: bytes, position: int, data: bytes) -> bytes:
    return content[:position].ljust(position, b"\0") + data + content[position + len(data) :]
