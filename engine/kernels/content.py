"""A hash of many lines that does not depend on their order: the sum of the lines' own hashes."""

from __future__ import annotations

from topicfs.engine.kernels.compile import INT, LONGS, READ, kernel
from topicfs.engine.kernels.hash import hash_of
from topicfs.engine.kernels.lines import NEWLINE
from topicfs.engine.kernels.varint import find_byte


@kernel(INT, READ, LONGS, LONGS)
def add_lines(lines, seed, sums):
    """Add whole lines to `sums`: their number, and both halves of their hashes' sum, modulo 2^64. Gives the bytes that
    were taken, up to the last newline; −1 where `seed` or `sums` is too short."""
    if seed.size < 2 or sums.size < 3:
        return -1
    start = 0
    while start < lines.size:
        end = find_byte(lines, start, lines.size, NEWLINE)
        if end >= lines.size:
            break
        low, high = hash_of(lines, start, end - start, seed)
        sums[1] += low
        sums[2] += high
        sums[0] += 1
        start = end + 1
    return start
