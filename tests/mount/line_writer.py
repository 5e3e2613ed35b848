"""A writer that appends lines, whatever becomes of the daemon, and remembers which of them were acknowledged."""

from __future__ import annotations

import itertools
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from daemon_mount import append

END_S = 120.0
"""Only a write that hangs takes that long."""


@dataclass(kw_only=True)
class SteadyWriter(ABC):
    """A thread that writes until a block ends."""

    _stopping: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def running(self) -> Iterator[Self]:
        """Write until the block ends, and what was begun to its end."""
        thread = threading.Thread(target=self._write, name=type(self).__name__)
        thread.start()
        try:
            yield self
        finally:
            self._stopping.set()
            thread.join(END_S)
            assert not thread.is_alive(), "a write hangs"

    @abstractmethod
    def _write(self) -> None:
        """Write until `_stopping` is set."""


@dataclass
class LineWriter(SteadyWriter):
    """A thread that appends lines to a file, as `echo >>` does, also while there is no mount.

    acknowledged  the lines whose close has done well, in their order
    failed        the others: the cluster may have them, or not
    """

    file: Path
    acknowledged: list[str] = field(default_factory=list)
    failed: set[str] = field(default_factory=set)

    def check(self, there: list[str]) -> None:
        """Compare with the lines that there are: each that was acknowledged is there, in its order, and none twice."""
        assert len(set(there)) == len(there), "a line is there twice"
        assert [line for line in there if line not in self.failed] == self.acknowledged

    def _write(self) -> None:
        for number in itertools.count():
            if self._stopping.wait(0.01):
                return
            line = f"line-{number}"
            try:
                append(self.file, f"{line}\n".encode())
            except OSError:
                self.failed.add(line)
            else:
                self.acknowledged.append(line)
