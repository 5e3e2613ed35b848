"""A file system that does nothing: the limit that transfers and calls through the same adapter are compared with.

Every name but a hidden one is a file of 1 GiB. Names that begin with `direct` go past the page cache; pages of those
that begin with a digit are kept from one open to the next.
"""

from __future__ import annotations

import stat
from collections.abc import Iterable

from topicfs.engine.batch.table import Bytes
from topicfs.fs.entry import Attributes
from topicfs.fs.errors import NotFoundError
from topicfs.fs.fuse.adapter import Opened

SIZE = 1 << 30

_ROOT = Attributes(stat.S_IFDIR | 0o755, 1, 2, 0, 0, 0, 0)
_FILE = Attributes(stat.S_IFREG | 0o666, 2, 1, SIZE, 0, 0, 0)
_CACHED = Opened(1)
_DIRECT = Opened(2, direct_io=True)
_KEPT = Opened(3, keep_cache=True)


class Nothing:
    """Answers everything at once: read with what was in the buffer, write with thanks."""

    def getattr(self, path: str, handle: int | None, node: int = 0, caller: int = 0) -> Attributes:
        if path == "/":
            return _ROOT
        if path.startswith("/."):
            raise NotFoundError(f"there is no {path}")
        return _FILE

    def readdir(self, path: str) -> Iterable[str]:
        return ["direct", "cached"]

    def open(self, path: str, flags: int, node: int = 0, caller: int = 0) -> Opened:
        if path[1:2].isdigit():
            return _KEPT
        return _DIRECT if path.startswith("/direct") else _CACHED

    def read(self, handle: int, position: int, into: Bytes, for_pages: bool = False) -> int:
        return min(into.size, max(0, SIZE - position))

    def write(self, handle: int, data: Bytes, position: int) -> int:
        return data.size

    def truncate(self, path: str, length: int, handle: int | None) -> None:
        pass

    def flush(self, handle: int) -> None:
        pass

    def release(self, handle: int) -> None:
        pass
