"""A hash of many records that does not depend on their order: the sum of the records' own hashes.

The hash of a record is that of its value, then of its key and of its headers where it has them. Each is SipHash, with
the result of the one before as its secret. The first secret is the seed, mixed with the timestamp, the partition and
what is null, so that a key is never taken for headers, nor an empty value for none.
"""

from __future__ import annotations

from numba import types

from topicfs.engine.kernels.compile import INT, INTS, LONGS, READ, inline, kernel
from topicfs.engine.kernels.hash import hash_of

_NO_VALUE = 1
_KEY = 2
_HEADERS = 4
_FLAGS = 3
"""Bits of the flags."""


@inline
def _is_outside(buffer, start, length):
    return length > 0 and (start < 0 or length > buffer.size - start)


@kernel(INT, READ, LONGS, INTS, INTS, INTS, INTS, INTS, INTS, INTS, LONGS, LONGS)
def add_records(
    buffer,
    timestamps,
    key_start,
    key_length,
    value_start,
    value_length,
    headers_start,
    headers_length,
    partitions,
    seed,
    sums,
):
    """Add records to `sums`: their number, and both halves of their hashes' sum, modulo 2^64. Gives how many were
    added; fewer than all where a span lies outside the buffer, -1 where an array is too short."""
    rows = timestamps.size
    shortest = min(key_start.size, key_length.size, value_start.size, value_length.size)
    shortest = min(shortest, headers_start.size, headers_length.size, partitions.size)
    if shortest < rows or seed.size < 2 or sums.size < 3:
        return -1
    for row in range(rows):
        key = types.int64(key_length[row])
        value = types.int64(value_length[row])
        headers = types.int64(headers_length[row])
        if (
            _is_outside(buffer, types.int64(key_start[row]), key)
            or _is_outside(buffer, types.int64(value_start[row]), value)
            or _is_outside(buffer, types.int64(headers_start[row]), headers)
        ):
            return row
        # One byte of headers says that there are none.
        flags = (_NO_VALUE if value < 0 else 0) | (_KEY if key >= 0 else 0) | (_HEADERS if headers > 1 else 0)
        secret = (seed[0] ^ timestamps[row], seed[1] ^ (types.int64(partitions[row]) << _FLAGS | flags))
        secret = hash_of(buffer, types.int64(value_start[row]), max(value, 0), secret)
        if key >= 0:
            secret = hash_of(buffer, types.int64(key_start[row]), key, secret)
        if headers > 1:
            secret = hash_of(buffer, types.int64(headers_start[row]), headers, secret)
        sums[1] += secret[0]
        sums[2] += secret[1]
        sums[0] += 1
    return rows
