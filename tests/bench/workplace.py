"""Where benchmarks put their files, and what they put there."""

from __future__ import annotations

import os
import resource
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt

VALUE = b"x" * 99
"""A line of 100 bytes with its newline."""


@contextmanager
def folder() -> Iterator[Path]:
    """A new folder on a real file system: /tmp may be memory. Removed afterwards."""
    path = Path(tempfile.mkdtemp(prefix="topicfs-bench-", dir=os.environ.get("BENCH_DIR", "/var/tmp")))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def lines(count: int) -> npt.NDArray[np.uint8]:
    """So many lines of 100 bytes."""
    return np.frombuffer((VALUE + b"\n") * count, np.uint8)


def rss() -> int:
    """Bytes of memory that this process holds now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()
