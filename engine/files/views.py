"""What is made of segments, can be made again, and may be deleted at any time.

    BACKING/views/<partition>/<base>.<inode>-<size>-<mtime>.<what>   made of one `.log` file

The name has that very file's identity, in hexadecimal: a segment that compaction rewrote is another file, and what was
made of the one before is not taken for its own.
"""

from __future__ import annotations

import os
from typing import Final

VIEWS: Final = "views"


def made_of(base_offset: int, log: os.stat_result, suffix: str) -> str:
    """The name of what is made of a segment's `.log`. The suffix begins with a dot."""
    return f"{base_offset:020d}.{log.st_ino:x}-{log.st_size:x}-{log.st_mtime_ns:x}{suffix}"
