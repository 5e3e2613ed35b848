"""The topics that coordinators keep for themselves, and the partition of them that a name leads to."""

from __future__ import annotations

from typing import Final

from topicfs.engine.record import MAX_INT32

OFFSETS: Final = "__consumer_offsets"
TRANSACTIONS: Final = "__transaction_state"


def partition_of(name: str, count: int) -> int:
    """Return the number of the partition that a broker's coordinator chooses for a group or a transactional id, of so
    many: by the hash of Java's strings, which are units of UTF-16."""
    found = 0
    units = name.encode("utf-16-be", "surrogatepass")
    for high, low in zip(units[::2], units[1::2], strict=True):
        found = (31 * found + (high << 8 | low)) & 0xFFFFFFFF
    signed = found - (1 << 32) if found > MAX_INT32 else found
    # Java has no positive number for its smallest one, and Kafka takes 0 in its place.
    return (0 if signed < -MAX_INT32 else abs(signed)) % count
