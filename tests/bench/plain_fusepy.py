"""A do-nothing file system on fusepy as it is installed, without our adapter: `python plain_fusepy.py MOUNT SIZE`.

`MOUNT/lines` has lines of 100 bytes, and each read of it reaches this process, past the page cache.
"""

from __future__ import annotations

import stat
import sys
from typing import Any

import fuse

_LINES = (b"x" * 99 + b"\n") * 4_000


class PlainFusepy(fuse.Operations):  # type: ignore[misc]  # fusepy has no types
    """Answers each read with a slice of bytes."""

    def __init__(self, size: int) -> None:
        self._size = size

    def getattr(self, path: str, fh: Any = None) -> dict[str, int]:
        if path == "/":
            return {"st_mode": stat.S_IFDIR | 0o755, "st_nlink": 2}
        return {"st_mode": stat.S_IFREG | 0o644, "st_nlink": 1, "st_size": self._size}

    def open(self, path: str, info: Any) -> int:
        info.direct_io = True
        return 0

    def read(self, path: str, size: int, offset: int, info: Any) -> bytes:
        start = offset % 100
        return _LINES[start : start + min(size, max(0, self._size - offset))]

    def write(self, path: str, data: bytes, offset: int, info: Any) -> int:
        return len(data)

    def truncate(self, path: str, length: int, fh: Any = None) -> int:
        return 0


if __name__ == "__main__":
    fuse.FUSE(PlainFusepy(int(sys.argv[2])), sys.argv[1], foreground=True, raw_fi=True, big_writes=True)
