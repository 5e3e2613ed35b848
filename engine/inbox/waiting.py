"""Batches that lie in an inbox and are not committed: `_SUCCESS` has not come, or was refused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

ITSELF: Final = "."
"""Stands for the inbox itself, where jobs may put files without a directory of their own."""


@dataclass(frozen=True, slots=True)
class WaitingBatch:
    """A batch that is not committed.

    since_ms   when something was last changed in it, by the clock that dates files
    directory  the name of its directory in the inbox; ITSELF for files that lie there without one
    files      how many files of records it has
    """

    since_ms: int
    directory: str
    files: int
