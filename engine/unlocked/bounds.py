"""The start and end of a partition for a reader. Only committed records are read, as through the mount.

If a query names a mount, attributes of the partition's directory there give both. Otherwise the files do: see `tail`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from topicfs.engine.format.transaction_index import AbortedTransaction
from topicfs.engine.mount_attributes import FIRST_OFFSET, NEXT_OFFSET
from topicfs.engine.unlocked.place import Place


@dataclass(frozen=True, slots=True)
class Bounds:
    """The readable part of a partition.

    start    first offset
    end      offset behind the last one; every open transaction begins at or above it
    aborted  transactions that ended so recently that no index has them yet
    """

    start: int
    end: int
    aborted: tuple[AbortedTransaction, ...] = ()


def told(place: Place, topic: str, number: int) -> Bounds | None:
    """Return the bounds that the daemon gives, or None without a daemon. Call this before files are listed, because
    they may have more by then."""
    if place.mount is None:
        return None
    directory = place.mount / f"{topic}-{number}"
    try:
        return Bounds(int(os.getxattr(directory, FIRST_OFFSET)), int(os.getxattr(directory, NEXT_OFFSET)))
    except OSError:  # removed, not readable, or the daemon has ended: then the files are used
        return None
