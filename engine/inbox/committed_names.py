"""The names of the batches that were committed in a topic's inbox, so that none is appended twice.

    BACKING/staging/<topic>/committed      one line of JSON for each: ["name", "content"], the oldest first

The content is that of `topicfs.engine.inbox.content`. A line with a name alone is from an older version, which did not
record the content. The newest KEPT names are remembered.
"""

from __future__ import annotations

import errno
import json
import os
import threading
from pathlib import Path
from typing import Final

from topicfs.engine.files.atomic import sync_directory, sync_file, write_atomically
from topicfs.engine.files.regular import open_regular, read_regular

KEPT: Final = 10_000


class CommittedNames:
    """The committed names of one topic.

    path      the path of the file
    _names    the remembered names, the oldest first, each with its content, or None where that is not known; None
              until the file was read
    _lines    the number of lines in the file
    _is_torn  whether the file ends with an incomplete line, which is removed before the next one is written
    _is_on_disk  whether this process has made sure that all of the file is on the disk
    _lock     held while the file is read or written
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._names: dict[str, str | None] | None = None
        self._lines = 0
        self._is_torn = self._is_on_disk = False
        self._lock = threading.RLock()

    def _loaded(self) -> dict[str, str | None]:
        if self._names is None:
            try:
                with read_regular(self.path) as file:
                    lines = file.read().split(b"\n")
            except FileNotFoundError:
                lines = [b""]
            # A crash may have left an incomplete line behind the last newline. The journal still has that commit, and
            # its name is added again. A look-up does not repair the file: the disk may be full.
            names = dict(found for line in lines[:-1] if (found := _read(line)) is not None)
            self._is_torn = bool(lines[-1])
            self._lines = len(lines) - 1
            self._names = names
            _forget_oldest(names)
        return self._names

    def __contains__(self, name: str) -> bool:
        # A listing of the inbox asks this. The lock is not the one of commits, so it does not wait for them.
        with self._lock:
            return name in self._loaded()

    def content(self, name: str) -> str | None:
        """Return the content that was committed under a name; None where it is not known."""
        with self._lock:
            return self._loaded().get(name)

    def add(self, name: str, content: str | None = None) -> None:
        """Record a committed name and its content, durably."""
        with self._lock:
            if name not in self._loaded():
                self._append(name, content, self._loaded())
            elif not self._is_on_disk:
                # It was read: who wrote it may have died before it was on the disk.
                sync_file(self.path)
                sync_directory(self.path.parent)
                self._is_on_disk = True

    def _append(self, name: str, content: str | None, names: dict[str, str | None]) -> None:
        if self._is_torn or self._lines > 2 * KEPT:
            write_atomically(self.path, b"".join(_written(*each) for each in names.items()))
            self._is_torn, self._lines = False, len(names)
        new = self._lines == 0
        if new:
            # Who put the first files there has made the topic's directory, and not made sure that it lasts.
            self.path.parent.mkdir(parents=True, exist_ok=True)
            sync_directory(self.path.parent.parent)
        descriptor = open_regular(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            line = _written(name, content)
            if os.write(descriptor, line) < len(line):
                # The disk is full. The next load ignores the incomplete line, and the next `add` removes it.
                self._names = None
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if new:
            sync_directory(self.path.parent)
        self._is_on_disk = True
        names[name] = content
        self._lines += 1
        _forget_oldest(names)


def _forget_oldest(names: dict[str, str | None]) -> None:
    while len(names) > KEPT:
        del names[next(iter(names))]


def _written(name: str, content: str | None) -> bytes:
    """Return the line for a name and its content."""
    return json.dumps(name if content is None else [name, content]).encode() + b"\n"


def is_written(line: bytes) -> bool:
    """Return whether a line is one that was written here, whole."""
    return _read(line) is not None


def _read(line: bytes) -> tuple[str, str | None] | None:
    """Return the name and content on a line; None where a crash has left something else there."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    match found:
        case str(name):
            return name, None
        case [str(name), str(content)]:
            return name, content
    return None
