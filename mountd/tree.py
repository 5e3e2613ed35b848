"""A store's tree, as commands use it: through the mount where the store has one, else opened by the command itself.

Both have the same names and the same promises, so that a command is written once. A command that only reads works also
beside another owner, such as a broker, and on a log directory by itself. A command that changes something needs the
mount, or a store that nobody has open. The engine is imported only where the store is opened.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shutil
import stat
import sys
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn
from weakref import WeakSet

from topicfs.engine.errors import EngineError
from topicfs.engine.files.place import DirectoryKind, kind_of
from topicfs.engine.record import now_ms
from topicfs.mountd import kernels, mounts
from topicfs.mountd.progress import say, words_of
from topicfs.mountd.targets import GROUPS, TOPICS, UnknownNameError

if TYPE_CHECKING:
    from topicfs.fs.operations import FileSystem

_PIECE: Final = 1 << 20
_CHANGES: Final = os.O_WRONLY | os.O_APPEND
_MAKES: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL
_MODE: Final = 0o666
_STATUS: Final = "status.json"
_REFUSED: Final = "# refused at "

_REASONS: Final = {
    errno.EPERM: "it is not allowed, by what it is or by a setting such as delete.topic.enable or log.cleaner.enable",
    errno.EROFS: "the mount is read-only",
    errno.EACCES: "the permissions do not allow it",
    errno.ENOENT: "it is not there, or not any more",
    errno.EEXIST: "it exists",
    errno.ENOTSUP: "the mount is served by a version that cannot do this",
    errno.ENOTCONN: "the daemon of the mount has ended: mount it again",
    errno.EIO: "it cannot be read or written; the daemon's log says why",
}


class RefusedError(Exception):
    """What was asked for cannot be done; the message says why.

    errno  the errno that the mount gave; None where this process knows the reason itself
    """

    def __init__(self, words: str, errno: int | None = None) -> None:
        super().__init__(words)
        self.errno = errno


class Tree(ABC):
    """A store's tree. Paths are relative to its root. Each method raises RefusedError with the reason in words.

    title    what was opened, in words
    backing  the store's directory
    """

    title: str
    backing: Path

    @abstractmethod
    def names(self, path: str) -> list[str]:
        """Return the names in a directory."""

    @abstractmethod
    def pieces(self, path: str) -> Iterator[bytes]:
        """Yield the bytes of a file, as they are read."""

    @abstractmethod
    def write(self, path: str, pieces: Iterable[bytes], durable: bool = False) -> None:
        """Append to a file, or have it carry out the lines, and close it. With `durable`, fsync it first."""

    @abstractmethod
    def make_directory(self, path: str) -> None:
        """Make a directory."""

    @abstractmethod
    def make_file(self, path: str, pieces: Iterable[bytes] = ()) -> None:
        """Make a file that is not there, and write it to its end."""

    @abstractmethod
    def move(self, path: str, new: str) -> None:
        """Rename a file or a directory."""

    @abstractmethod
    def remove(self, path: str) -> None:
        """Remove a directory that files can be removed from, with all that is in it. Nothing is done if it is not
        there."""

    @abstractmethod
    def attribute(self, path: str, name: str) -> bytes:
        """Return an extended attribute."""

    @abstractmethod
    def alone(self, path: str) -> AbstractContextManager[object]:
        """Wait until no other command does the same with a directory, and keep others waiting."""

    @abstractmethod
    def set_attribute(self, path: str, name: str, value: str, about: str = "") -> None:
        """Set an extended attribute, which does what it stands for. A refusal names the value, or what it is about."""

    def read(self, path: str) -> bytes:
        """Return the bytes of a small file."""
        return b"".join(self.pieces(path))

    def status(self, directory: str) -> dict[str, Any]:
        """Return what `status.json` of a partition or a group says."""
        found = json.loads(self.read(f"{directory}/{_STATUS}"))
        assert isinstance(found, dict)
        return found

    def topics(self) -> dict[str, list[int]]:
        """Return the numbers of each topic's partitions."""
        found: dict[str, list[int]] = {name: [] for name in self.names(TOPICS)}
        for name in self.names(""):
            topic, _, number = name.rpartition("-")
            if topic in found and number.isdecimal():
                found[topic].append(int(number))
        return {topic: sorted(numbers) for topic, numbers in sorted(found.items())}


class MountedTree(Tree):
    """The tree of a mount.

    point  the mount point
    """

    def __init__(self, point: Path, backing: Path) -> None:
        self.point = point
        self.backing = backing
        self.title = f"{backing}, mounted at {point}"

    def names(self, path: str) -> list[str]:
        with self._told(path):
            return sorted(os.listdir(self.point / path))

    def pieces(self, path: str) -> Iterator[bytes]:
        with self._told(path), (self.point / path).open("rb", buffering=0) as file:
            while piece := file.read(_PIECE):
                yield piece

    def write(self, path: str, pieces: Iterable[bytes], durable: bool = False) -> None:
        began_ms = now_ms()
        lines = 0
        descriptor = -1
        try:
            descriptor = os.open(self.point / path, _CHANGES)
            for piece in pieces:
                left = memoryview(piece)
                while left:
                    done = os.write(descriptor, left)
                    lines += bytes(left[:done]).count(b"\n")
                    left = left[done:]
            if durable:
                os.fsync(descriptor)
            closing, descriptor = descriptor, -1
            os.close(closing)
        except OSError as error:
            reason = self._refusal(path, began_ms) or _reason(error)
            raise RefusedError(f"{path}: {reason}{_before(lines)}", error.errno) from None
        finally:
            if descriptor >= 0:
                with contextlib.suppress(OSError):
                    os.close(descriptor)

    def make_directory(self, path: str) -> None:
        with self._refused(path):
            (self.point / path).mkdir()

    def make_file(self, path: str, pieces: Iterable[bytes] = ()) -> None:
        with self._refused(path), (self.point / path).open("xb", buffering=0) as file:
            for piece in pieces:
                left = memoryview(piece)
                while left:
                    left = left[file.write(left) :]

    def move(self, path: str, new: str) -> None:
        with self._refused(new):
            (self.point / path).rename(self.point / new)

    def remove(self, path: str) -> None:
        with self._refused(path), contextlib.suppress(FileNotFoundError):
            shutil.rmtree(self.point / path)

    def attribute(self, path: str, name: str) -> bytes:
        with self._told(path):
            return os.getxattr(self.point / path, name)

    @contextlib.contextmanager
    def alone(self, path: str) -> Iterator[None]:
        with self._told(path):
            descriptor = os.open(self.point / path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            # Whoever dies lets go of it.
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def set_attribute(self, path: str, name: str, value: str, about: str = "") -> None:
        began_ms = now_ms()
        try:
            os.setxattr(self.point / path, name, value.encode())
        except OSError as error:
            reason = self._refusal(path, began_ms) or _reason(error)
            raise RefusedError(f"{about or value}: {reason}", error.errno) from None

    @contextlib.contextmanager
    def _refused(self, path: str) -> Iterator[None]:
        """Tell why the daemon refuses something, in its own words where it has any."""
        began_ms = now_ms()
        try:
            yield
        except OSError as error:
            reason = self._refusal(path, began_ms) or _reason(error)
            raise RefusedError(f"{path}: {reason}", error.errno) from None

    @contextlib.contextmanager
    def _told(self, path: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise RefusedError(f"{self.point / path}: {_reason(error)}", error.errno) from None

    def _refusal(self, path: str, since_ms: int) -> str | None:
        """Return why the daemon has refused something just now, in its own words; None where it does not say."""
        first, _, rest = path.partition("/")
        topic, _, name = rest.partition("/")
        try:
            if name == "config":
                last = self.read(path).decode().splitlines()[-1:]
                return last[0].partition(": ")[2] if last and last[0].startswith(_REFUSED) else None
            directory = first
            if first == TOPICS:
                directory = f"{topic}-{min(self.topics()[topic])}"
            elif first == GROUPS:
                directory = f"{GROUPS}/{topic}"
            refusal = self.status(directory).get("last_refusal")
        except (RefusedError, KeyError, ValueError):
            return None
        return refusal["reason"] if refusal is not None and refusal["timestamp"] >= since_ms else None


class OpenedTree(Tree):
    """The tree of a store that this process has opened.

    store     the store
    _files    its file system, which is called directly
    _reading  what reads files: where a command ends in the middle, it has to end before the file system does
    """

    def __init__(self, files: FileSystem, title: str) -> None:
        self._files = files
        self._reading = WeakSet[Generator[bytes]]()
        self.store = files.context.store
        self.backing = self.store.backing
        self.title = title

    def names(self, path: str) -> list[str]:
        with _told(path):
            return list(self._files.readdir("/" + path))

    def close(self) -> None:
        """End what still reads files."""
        for each in tuple(self._reading):
            each.close()

    def pieces(self, path: str) -> Iterator[bytes]:
        reading = self._pieces(path)
        self._reading.add(reading)
        return reading

    def _pieces(self, path: str) -> Generator[bytes]:
        import numpy as np  # noqa: PLC0415 - the engine has loaded it

        with _told(path):
            handle = self._files.open("/" + path, os.O_RDONLY).handle
            try:
                into, position = np.empty(_PIECE, np.uint8), 0
                while done := self._files.read(handle, position, into):
                    yield into[:done].tobytes()
                    position += done
            finally:
                self._files.release(handle)

    def write(self, path: str, pieces: Iterable[bytes], durable: bool = False) -> None:
        import numpy as np  # noqa: PLC0415 - the engine has loaded it

        lines = 0
        try:
            handle = self._files.open("/" + path, _CHANGES).handle
            try:
                for piece in pieces:
                    left = np.frombuffer(piece, np.uint8)
                    while left.size:
                        done = self._files.write(handle, left)
                        lines += left[:done].tobytes().count(b"\n")
                        left = left[done:]
                if durable:
                    self._files.fsync(handle, False)
                self._files.flush(handle)
            finally:
                self._files.release(handle)
        except (EngineError, OSError) as error:
            raise RefusedError(f"{path}: {words_of(error)}{_before(lines)}") from None

    def make_directory(self, path: str) -> None:
        with _told(path):
            self._files.mkdir("/" + path, _MODE)

    def make_file(self, path: str, pieces: Iterable[bytes] = ()) -> None:
        import numpy as np  # noqa: PLC0415 - the engine has loaded it

        with _told(path):
            handle, position = self._files.create("/" + path, _MODE, _MAKES).handle, 0
            try:
                for piece in pieces:
                    left = np.frombuffer(piece, np.uint8)
                    while left.size:
                        done = self._files.write(handle, left, position)
                        left, position = left[done:], position + done
                self._files.flush(handle)
            finally:
                self._files.release(handle)

    def move(self, path: str, new: str) -> None:
        with _told(new):
            self._files.rename("/" + path, "/" + new)

    def remove(self, path: str) -> None:
        from topicfs.fs.errors import NotFoundError  # noqa: PLC0415 - the engine is loaded

        with _told(path), contextlib.suppress(NotFoundError):
            self._remove("/" + path)

    def _remove(self, path: str) -> None:
        for name in self._files.readdir(path):
            inner = f"{path}/{name}"
            if stat.S_ISDIR(self._files.getattr(inner, None).mode):
                self._remove(inner)
            else:
                self._files.unlink(inner)
        self._files.rmdir(path)

    def attribute(self, path: str, name: str) -> bytes:
        with _told(path):
            return self._files.getxattr("/" + path, name)

    def alone(self, path: str) -> AbstractContextManager[object]:
        # The store is this process's.
        return contextlib.nullcontext()

    def set_attribute(self, path: str, name: str, value: str, about: str = "") -> None:
        with _told(about or value):
            self._files.setxattr("/" + path, name, value.encode(), 0)


@contextlib.contextmanager
def _told(path: str) -> Iterator[None]:
    try:
        yield
    except (EngineError, OSError) as error:
        raise RefusedError(f"{path}: {words_of(error)}") from None


def _reason(error: OSError) -> str:
    return _REASONS.get(error.errno or 0) or error.strerror or str(error)


def _before(lines: int) -> str:
    """Return what became of the lines before the refused one."""
    if not lines:
        return ""
    return f"; the {lines} lines before are taken" if lines > 1 else "; the line before is taken"


@contextlib.contextmanager
def opened(where: Path, changes: bool = False) -> Iterator[Tree]:
    """Open the tree of a BACKING, a MOUNT, or for reading a log directory. `changes`: whether it will be changed."""
    place = mounts.real(where)
    mount = mounts.find(place)
    if mount is not None and mount.backing is not None:
        yield MountedTree(place, mount.backing)
        return
    kind = kind_of(place)
    if kind is not DirectoryKind.STORE and (changes or kind is not DirectoryKind.LOGS):
        raise RefusedError(
            f"{place}: expected a backing directory with logs/ in it, or a mount of topicfs, found {kind.value}"
        )
    owner = mounts.lock_owner(place)
    if owner is not None:
        point = next((point for point in mounts.points_of(place) if _serves(point)), None)
        if point is not None:
            if changes:
                say(f"{place} is mounted at {point}: done there")
            yield MountedTree(point, place)
            return
        if changes:
            raise RefusedError(
                f"{place}: process {owner} has it open, and no mount of it is to be seen from here: stop that process, "
                "or ask where it is mounted"
            )
    with kernels.loading():
        from topicfs.engine.store.store import Store  # noqa: PLC0415 - loads the engine
        from topicfs.fs.operations import FileSystem  # noqa: PLC0415 - loads the engine
        from topicfs.mountd.view_cache import ReadOnlyViewCache  # noqa: PLC0415 - loads the engine

    # Every name leads to its file: there is no kernel here that would follow links.
    with Store.open(place, {"list.all.views": "true"}, read_only=not changes) as store:
        files = FileSystem(store, ReadOnlyViewCache.of(place))
        tree = OpenedTree(files, f"{place}, not mounted" + (f", open in process {owner}" if owner else ""))
        try:
            yield tree
        finally:
            tree.close()
            files.close()


def _serves(point: Path) -> bool:
    mount = mounts.find(point)
    return mount is not None and not mount.read_only and not mounts.is_dead(point)


@contextlib.contextmanager
def refusals() -> Iterator[None]:
    """Turn refusals and failures of a command into messages and exit codes."""
    try:
        yield
    except BrokenPipeError:
        # `head` has seen enough. Python would complain about what is left in stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except (RefusedError, UnknownNameError, mounts.MountError, EngineError, OSError) as error:
        fail(words_of(error))


def fail(words: str) -> NoReturn:
    """Say what went wrong, and end with exit code 1."""
    say(words)
    sys.exit(1)
