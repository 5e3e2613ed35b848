"""The names of what was committed in a topic's inbox, so that nothing is appended twice.

    BACKING/staging/<topic>/committed      ["name", "content"] a line, in JSON, the oldest first

The content is that of `topicfs.engine.inbox.content`. A line that is a name alone is of a time when it was not noted.
The newest KEPT names are remembered.
"""

from __future__ import annotations

import errno
import json
import os
import threading
from pathlib import Path
from typing import Final

from topicfs.engine.files.atomic import sync_directory, write_atomically
from topicfs.engine.files.regular import open_regular, read_regular

KEPT: Final = 10_000


class CommittedNames:
    """One topic's.

    path     of its file
    _names   those that are remembered, the oldest first, with the content of each where it is known; None until they
             were read
    _lines   lines in the file
    _is_torn  behind the last line is half of one, which goes before another is written
    _lock    held while the file is read or written
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._names: dict[str, str | None] | None = None
        self._lines = 0
        self._is_torn = False
        self._lock = threading.RLock()

    def _loaded(self) -> dict[str, str | None]:
        if self._names is None:
            try:
                with read_regular(self.path) as file:
                    lines = file.read().split(b"\n")
            except FileNotFoundError:
                lines = [b""]
            # Behind the last newline is what a crash left half-written: its journal brings it again. Who only asks
            # for a name writes nothing: there may be no room.
            names = dict(found for line in lines[:-1] if (found := _read(line)) is not None)
            self._is_torn = bool(lines[-1])
            self._lines = len(lines) - 1
            self._names = names
            _forget_oldest(names)
        return self._names

    def __contains__(self, name: str) -> bool:
        # Who lists the inbox asks this, and does not wait for a commit.
        with self._lock:
            return name in self._loaded()

    def content(self, name: str) -> str | None:
        """What was committed under a name; None where that is not known."""
        with self._lock:
            return self._loaded().get(name)

    def add(self, name: str, content: str | None = None) -> None:
        """Remember a name and what was committed under it, durably."""
        with self._lock:
            if name not in self._loaded():
                self._append(name, content, self._loaded())

    def _append(self, name: str, content: str | None, names: dict[str, str | None]) -> None:
        if self._is_torn or self._lines > 2 * KEPT:
            write_atomically(self.path, b"".join(_written(*each) for each in names.items()))
            self._is_torn, self._lines = False, len(names)
        new = self._lines == 0
        descriptor = open_regular(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            line = _written(name, content)
            if os.write(descriptor, line) < len(line):
                # No room for all of it: the next load drops the half, and so does the next `add`.
                self._names = None
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if new:
            sync_directory(self.path.parent)
        names[name] = content
        self._lines += 1
        _forget_oldest(names)


def _forget_oldest(names: dict[str, str | None]) -> None:
    while len(names) > KEPT:
        del names[next(iter(names))]


def _written(name: str, content: str | None) -> bytes:
    """The line of a name."""
    return json.dumps(name if content is None else [name, content]).encode() + b"\n"


def _read(line: bytes) -> tuple[str, str | None] | None:
    """The name on a line, and its content; None where a crash has left something else there."""
    try:
        found = json.loads(line)
    except ValueError:
        return None
    match found:
        case str(name):
            return name, None
        case [str(name), str(content)]:
            return name, content
    return None
