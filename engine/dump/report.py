"""Where the lines and the problems of a dump go."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np

from topicfs.engine.batch.table import Bytes
from topicfs.engine.dump.wanted import Wanted

_ROOM: Final = 4 << 20
_MOST_TOLD: Final = 100
"""Problems of one file that are told. A damaged file may have one in each of its millions of entries."""


class Report:
    """Lines on their way to a descriptor, and what is told of problems.

    out        the bytes of lines; kernels write behind `position`
    position   the end of the lines in `out`
    problems   how many problems there were
    is_broken  whether lines could not be written down
    _tell      called with each problem
    _of_file   how many the file has that is shown now
    """

    def __init__(self, descriptor: int, tell: Callable[[str], None], wanted: Wanted) -> None:
        self.out: Bytes = np.empty(_ROOM, np.uint8)
        self.position = 0
        self.problems = 0
        self.is_broken = False
        self._of_file = 0
        self._descriptor = descriptor
        self._tell = tell
        self._wanted = wanted

    def line(self, text: str, kind: str, **fields: str | int | None) -> None:
        """Add a line that no kernel writes: its text, or its JSON object."""
        if self._wanted.only_check:
            return
        as_json = self._wanted.as_json
        line = json.dumps({"type": kind, **fields}, separators=(",", ":")) if as_json else text
        data = np.frombuffer(line.encode("utf-8", "surrogateescape") + b"\n", np.uint8)
        self.make_room(data.size)
        self.out[self.position : self.position + data.size] = data
        self.position += data.size

    def problem(self, path: Path, where: str, what: str) -> None:
        """Tell a problem of a file, and where it is in there. The lines before it are shown first."""
        self.problems += 1
        self._of_file += 1
        if self._of_file <= _MOST_TOLD:
            self.flush()
            self._tell(f"{path}: {where}: {what}" if where else f"{path}: {what}")

    def end_file(self, path: Path) -> None:
        """Tell how many problems of a file were not told."""
        if self._of_file > _MOST_TOLD:
            self.flush()
            self._tell(f"{path}: {self._of_file - _MOST_TOLD} more problems are not shown")
        self._of_file = 0

    def make_room(self, size: int) -> None:
        """Make sure of room for so many bytes behind `position`."""
        if self.out.size - self.position < size:
            self.flush()
        if self.out.size < size:
            self.out = np.empty(size, np.uint8)

    def flush(self) -> None:
        """Write the lines down."""
        rest = memoryview(self.out[: self.position])
        self.position = 0
        try:
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
        except OSError:
            self.is_broken = True
            raise
