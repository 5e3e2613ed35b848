"""A table of keys: for each key that was put, the offset it was put with last. In memory only.

    secret   16 bytes; without them nobody can make keys whose hashes collide
    slot     3 × int64: the two halves of the key's hash, offset + 1; an empty slot is zero

The hash is SipHash-2-4 with 128 bits. Keys themselves are not kept: two keys with the same hash are one, which at a
thousand million keys happens to one table in 10^20. A key is looked for in `probes` slots, from the one on that the
hash names; where none of them is free, the table is full.

Beside it a bitmap says of which offsets, from the first one on that was put, the key was put again. It is small and
in order, where the table is large and at random: whoever goes through the same records a second time need not hash
them.

A table is larger than the CPU's caches, so a look-up waits for memory. Hashes therefore go through a ring: a key's
slot is fetched when its hash is known, and looked at when `RING` more keys were hashed.
"""

from __future__ import annotations

from typing import Any, Final

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from topicfs.engine.format.batch_header import CODEC_MASK, CONTROL, HEADER_SIZE
from topicfs.engine.kernels.compile import INT, LONGS, READ, TABLE, WRITE, inline, kernel, results
from topicfs.engine.kernels.decode import BAD_OFFSET, GOOD, TOO_FEW, TOO_MANY, walk_record
from topicfs.engine.kernels.scan import ATTRIBUTES, BASE_OFFSET, COUNT, LAST_OFFSET, POSITION, SIZE

SLOT: Final = 3
"""Numbers a slot."""

RING: Final = 16
RING_SIZE: Final = RING * 5
"""Numbers a ring: the two halves of the hash, home slot, offset, and what its user likes."""

PROBES: Final = 4096
"""Slots that a key is looked for in, at most. With nine of ten slots taken a search ends after some fifty."""

FULL: Final = 100
"""Beside the statuses of `topicfs.engine.kernels.decode`: no more keys fit."""

COMPRESSED: Final = 101
"""The batch has to be decompressed first."""


@intrinsic
def _prefetch(_context: Any, address: Any) -> Any:
    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> None:
        pointer = builder.inttoptr(arguments[0], ir.IntType(8).as_pointer())
        number = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [pointer.type, number, number, number])
        function = builder.module.declare_intrinsic("llvm.prefetch", [pointer.type], kind)
        builder.call(function, [pointer, number(1), number(3), number(1)])

    return types.void(address), generate


@intrinsic
def _word(_context: Any, address: Any) -> Any:
    """64 bits at an address, wherever it lies. Byte by byte, as arrays are indexed, it takes ten times as long."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], ir.IntType(64).as_pointer())
        return builder.load(pointer, align=1)

    return types.uint64(address), generate


@inline
def _rotated(x, bits):
    return (x << types.uint64(bits)) | (x >> types.uint64(64 - bits))


@inline
def _round(v0, v1, v2, v3):
    v0 += v1
    v1 = _rotated(v1, 13) ^ v0
    v0 = _rotated(v0, 32)
    v2 += v3
    v3 = _rotated(v3, 16) ^ v2
    v0 += v3
    v3 = _rotated(v3, 21) ^ v0
    v2 += v1
    v1 = _rotated(v1, 17) ^ v2
    v2 = _rotated(v2, 32)
    return v0, v1, v2, v3


@inline
def hash_of(buffer, start, length, secret):
    """SipHash-2-4-128 of buffer[start:start+length], as two halves; the caller has checked the bounds."""
    k0 = types.uint64(secret[0])
    k1 = types.uint64(secret[1])
    v0 = k0 ^ types.uint64(0x736F6D6570736575)
    v1 = k1 ^ types.uint64(0x646F72616E646F6D) ^ types.uint64(0xEE)
    v2 = k0 ^ types.uint64(0x6C7967656E657261)
    v3 = k1 ^ types.uint64(0x7465646279746573)
    at = types.uintp(buffer.ctypes.data + start)
    left = length
    while left >= 8:
        word = _word(at)
        v3 ^= word
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
        v0 ^= word
        at += types.uintp(8)
        left -= 8
    word = types.uint64(length) << types.uint64(56)
    if length >= 8:
        if left:
            word |= _word(at + types.uintp(left) - types.uintp(8)) >> types.uint64(64 - 8 * left)
    else:
        for i in range(length):
            word |= types.uint64(buffer[start + i]) << types.uint64(8 * i)
    v3 ^= word
    v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    v0 ^= word
    v2 ^= types.uint64(0xEE)
    for _ in range(4):
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    low = v0 ^ v1 ^ v2 ^ v3
    v1 ^= types.uint64(0xDD)
    for _ in range(4):
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    return types.int64(low), types.int64(v0 ^ v1 ^ v2 ^ v3)


@inline
def _home(low, count):
    """The slot that a hash names. The caller has made sure that there are fewer than 2^31."""
    return types.int64(((types.uint64(low) >> types.uint64(32)) * types.uint64(count)) >> types.uint64(32))


@inline
def into_ring(ring, place, slots, low, high, offset, note):
    """Keep a hash at a place of the ring, and have its slot fetched."""
    home = _home(low, slots.size // SLOT)
    _prefetch(types.uintp(slots.ctypes.data + home * SLOT * 8))
    at = (place % RING) * 5
    ring[at] = low
    ring[at + 1] = high
    ring[at + 2] = home
    ring[at + 3] = offset
    ring[at + 4] = note


@inline
def find(slots, home, low, high):
    """The offset of a key; -1 where it is not in the table."""
    count = slots.size // SLOT
    slot = home
    for _ in range(min(count, PROBES)):
        at = slot * SLOT
        if slots[at + 2] == 0:
            return types.int64(-1)
        if slots[at] == low and slots[at + 1] == high:
            return slots[at + 2] - 1
        slot += 1
        if slot == count:
            slot = types.int64(0)
    return types.int64(-1)


@inline
def is_outdated(outdated, base, offset):
    """1 where the key of an offset was put again, 0 where it was not; -1 where the bitmap does not reach."""
    place = offset - base
    if place < 0 or place >= 8 * outdated.size:
        return -1
    return (outdated[types.uintp(place >> 3)] >> (place & 7)) & 1


@inline
def _note_outdated(outdated, base, offset):
    place = offset - base
    if 0 <= place < 8 * outdated.size:
        outdated[types.uintp(place >> 3)] |= types.uint8(1 << (place & 7))


@inline
def _put(slots, home, low, high, offset, outdated, base):
    """1 for a key that is new, 0 for one that was there; -1, and nothing done, where no slot is free."""
    count = slots.size // SLOT
    slot = home
    for _ in range(min(count, PROBES)):
        at = slot * SLOT
        if slots[at + 2] == 0:
            slots[at] = low
            slots[at + 1] = high
            slots[at + 2] = offset + 1
            return 1
        if slots[at] == low and slots[at + 1] == high:
            _note_outdated(outdated, base, slots[at + 2] - 1)
            slots[at + 2] = offset + 1
            return 0
        slot += 1
        if slot == count:
            slot = types.int64(0)
    return -1


@inline
def _put_oldest(ring, place, slots, size, most, outdated, base):
    """Put what is at a place of the ring. Gives how many keys the table has then; -1 where it is full."""
    if size >= most:
        return types.int64(-1)
    at = (place % RING) * 5
    added = _put(slots, ring[at + 2], ring[at], ring[at + 1], ring[at + 3], outdated, base)
    return types.int64(-1) if added < 0 else size + added


@kernel(results(INT, INT), READ, LONGS)
def hash_key(key, secret):
    """The hash of a whole buffer, as two halves."""
    return hash_of(key, 0, key.size, secret)


@kernel(INT, READ, LONGS, LONGS)
def get(key, secret, slots):
    """The offset of a key; -1 where it is not in the table."""
    low, high = hash_of(key, 0, key.size, secret)
    return find(slots, _home(low, slots.size // SLOT), low, high)


@kernel(INT, READ, INT, LONGS, LONGS, WRITE, INT)
def put(key, offset, secret, slots, outdated, base):
    """1 for a key that is new, 0 for one that was there; -1, and nothing done, where no slot is free."""
    low, high = hash_of(key, 0, key.size, secret)
    return _put(slots, _home(low, slots.size // SLOT), low, high, offset, outdated, base)


@inline
def _full_at(ring, place, table, first, latest):
    """Behind which offset everything is in the table, when the entry at a place of the ring did not fit."""
    row = ring[(place % RING) * 5 + 4]
    return max(latest, table[row - 1, LAST_OFFSET]) if row > first else latest


@kernel(
    results(INT, INT, INT, INT, INT, INT),
    READ, INT, TABLE, INT, READ, INT, LONGS, LONGS, INT, INT, INT, LONGS, WRITE, INT,
)  # fmt: skip
def put_batches(
    buffer, origin, table, first, skipped, start, secret, slots, size, most, latest, ring, outdated, base
):
    """Put the keys of the batches that `table` names, from row `first` on, with their offsets.

    Control batches, those that are `skipped` (a byte a row), records without a key and offsets below `start` are
    passed over. Stops before a compressed batch, and at the first key when the table has `most`. `origin` is the
    table's position of buffer[0]; `size` and `latest` are those of the table. Gives status, the batch's row, record
    index, position in `buffer`, and the new size and latest offset, which count where the status is GOOD,
    COMPRESSED or FULL. `outdated` is the bitmap, from offset `base` on."""
    if skipped.size < table.shape[0] or ring.size < RING_SIZE or first < 0:
        return TOO_MANY, first, 0, 0, size, latest
    waiting = types.int64(0)  # hashes that went into the ring
    done = types.int64(0)  # of those, how many were put
    before = latest
    status = types.int64(GOOD)
    row = first
    while row < table.shape[0]:
        attributes = table[row, ATTRIBUTES]
        if (attributes & CONTROL) == 0 and skipped[row] == 0 and table[row, LAST_OFFSET] >= start:
            if attributes & CODEC_MASK:
                status = types.int64(COMPRESSED)
                break
            position = table[row, POSITION] - origin + HEADER_SIZE
            end = position + table[row, SIZE] - HEADER_SIZE
            last_delta = table[row, LAST_OFFSET] - table[row, BASE_OFFSET]
            if position < HEADER_SIZE or end > buffer.size:
                return TOO_FEW, row, 0, position, size, latest
            last = types.int64(-1)
            for index in range(table[row, COUNT]):
                if position >= end:
                    return TOO_FEW, row, index, position, size, latest
                found, at, body, _, place, key, key_size, _, _, _ = walk_record(buffer, position, end)
                if found != GOOD:
                    return found, row, index, at, size, latest
                if place <= last or place > last_delta:
                    return BAD_OFFSET, row, index, position, size, latest
                last = place
                offset = table[row, BASE_OFFSET] + place
                if key_size >= 0 and offset >= start:
                    if waiting - done == RING:
                        added = _put_oldest(ring, done, slots, size, most, outdated, base)
                        if added < 0:
                            return FULL, row, 0, 0, size, _full_at(ring, done, table, first, before)
                        size = added
                        before = ring[(done % RING) * 5 + 3]
                        done += 1
                    low, high = hash_of(buffer, key, key_size, secret)
                    into_ring(ring, waiting, slots, low, high, offset, row)
                    waiting += 1
                position = body
            if position != end:
                return TOO_MANY, row, table[row, COUNT], position, size, latest
        row += 1
    while done < waiting:
        added = _put_oldest(ring, done, slots, size, most, outdated, base)
        if added < 0:
            return FULL, row, 0, 0, size, _full_at(ring, done, table, first, before)
        size = added
        before = ring[(done % RING) * 5 + 3]
        done += 1
    if row > first and table[row - 1, LAST_OFFSET] >= start:
        latest = max(latest, table[row - 1, LAST_OFFSET])
    return status, row, 0, 0, size, latest
