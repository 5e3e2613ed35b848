"""Which files' bytes the kernel keeps in its page cache, and of which segment.

libfuse 2 knows an inode by its path. A segment that compaction rewrote has the path of the one before, and so its
pages, and its size: both must stay those of the old one for whoever has that open, and must not reach who opens the
new one. So what may be rewritten goes past the cache; and where a topic becomes a compacted one while a file of it is
open, that file keeps its attributes until it is closed, and its name goes past the cache from then on.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from engine.parquet.table import TableFile
from engine.segment.segment import Segment
from fs.names import parse_base


@dataclass(slots=True)
class Kept:
    """A path whose pages the kernel may have.

    segment              what they were made of, or the Parquet file whose they are
    size, ino, mtime_ns  of the file then
    handles              how many are open that read through the cache
    """

    segment: Segment | TableFile
    size: int
    ino: int
    mtime_ns: int
    handles: int = 0


class KeptPages:
    """The paths of one partition's final files that were opened so that the kernel keeps their pages.

    _kept  by path; for the life of the mount, as the kernel may have the pages as long
    """

    def __init__(self) -> None:
        self._kept: dict[str, Kept] = {}
        self._lock = threading.Lock()

    def open(self, path: str, now: Kept) -> bool:
        """Whether a file may be opened so. Then `close` is called when it is closed."""
        with self._lock:
            kept = self._kept.setdefault(path, now)
            if kept.segment != now.segment:
                return False
            kept.handles += 1
            return True

    def close(self, path: str) -> None:
        """A handle that reads through the cache is gone."""
        with self._lock:
            self._kept[path].handles -= 1

    def before(self, path: str, segment: Segment | TableFile) -> Kept | None:
        """What a segment's path meant before, while somebody still reads that through the cache."""
        kept = self._kept.get(path)
        return None if kept is None or kept.segment == segment or not kept.handles else kept

    def forget(self, is_there: Callable[[int], bool]) -> None:
        """Let go of files whose segments are gone: their names do not come back. `is_there` knows base offsets."""
        with self._lock:
            for path, kept in list(self._kept.items()):
                base = parse_base(path.rpartition("/")[2].partition(".")[0])
                if not kept.handles and (base is None or not is_there(base)):
                    del self._kept[path]
