"""The hash by which Kafka's producers choose a partition for a key: murmur2, 32 bits, seed 0x9747b28c."""

from __future__ import annotations

import numpy as np

from topicfs.engine.kernels.compile import INT, INTS, READ, inline, kernel

_SEED = np.uint32(0x9747B28C)
_M = np.uint32(0x5BD1E995)


@inline
def murmur2_of(buffer, start, length):
    """The hash of buffer[start:start+length]; the caller has checked the bounds."""
    h = np.uint32(_SEED ^ np.uint32(length))
    end = start + (length & ~3)
    at = start
    while at < end:
        k = np.uint32(
            np.uint32(buffer[at])
            | (np.uint32(buffer[at + 1]) << np.uint32(8))
            | (np.uint32(buffer[at + 2]) << np.uint32(16))
            | (np.uint32(buffer[at + 3]) << np.uint32(24))
        )
        k = np.uint32(k * _M)
        k = np.uint32(k ^ (k >> np.uint32(24)))
        k = np.uint32(k * _M)
        h = np.uint32(np.uint32(h * _M) ^ k)
        at += 4
    left = length & 3
    if left == 3:
        h = np.uint32(h ^ (np.uint32(buffer[at + 2]) << np.uint32(16)))
    if left >= 2:
        h = np.uint32(h ^ (np.uint32(buffer[at + 1]) << np.uint32(8)))
    if left >= 1:
        h = np.uint32(h ^ np.uint32(buffer[at]))
        h = np.uint32(h * _M)
    h = np.uint32(h ^ (h >> np.uint32(13)))
    h = np.uint32(h * _M)
    return np.uint32(h ^ (h >> np.uint32(15)))


@kernel(INT, READ)
def murmur2(key):
    """The hash of a whole buffer, as an unsigned number."""
    return np.int64(murmur2_of(key, 0, key.size))


@kernel(INT, READ, INTS, INTS, INT, INTS)
def partitions_of_keys(buffer, key_start, key_length, partitions, chosen):
    """The partition of each key, −1 for null keys. Gives how many keys are not null; −1 where a span lies
    outside the buffer."""
    if chosen.size < key_start.size or key_length.size < key_start.size or partitions < 1:
        return -1
    keyed = 0
    for index in range(key_start.size):
        length = np.int64(key_length[index])
        start = np.int64(key_start[index])
        if length < 0:
            chosen[index] = -1
            continue
        if start < 0 or start + length > buffer.size:
            return -1
        chosen[index] = (np.int64(murmur2_of(buffer, start, length)) & 0x7FFFFFFF) % partitions
        keyed += 1
    return keyed
