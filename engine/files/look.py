"""Telling whether a file or directory of another process has changed since it was looked at, by its time of change."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Final, Self

_SETTLED_NS: Final = 2_000_000_000
"""A time of modification that is older tells of every later change: file systems count it in steps of up to 2 s."""


@dataclass(frozen=True, slots=True)
class Look:
    """A look at a file or directory.

    inode, size, modified_ns  what it was before the look
    is_settled                whether any later change shows in these
    at                        when it was looked at, by a clock that nobody can set
    """

    inode: int
    size: int
    modified_ns: int
    is_settled: bool
    at: float

    @classmethod
    def begin(cls, status: os.stat_result) -> Self:
        """Return the look that begins now. The status is from before it."""
        is_settled = abs(time.time_ns() - status.st_mtime_ns) > _SETTLED_NS
        return cls(status.st_ino, status.st_size, status.st_mtime_ns, is_settled, time.monotonic())

    def holds(self, status: os.stat_result, again_s: float = 0.0) -> bool:
        """Return whether what was seen is still so, by the present status. What had changed just before the look is
        looked at again after `again_s` seconds."""
        return (self.inode, self.size, self.modified_ns) == (
            status.st_ino,
            status.st_size,
            status.st_mtime_ns,
        ) and (self.is_settled or time.monotonic() - self.at < again_s)
