"""A table of a partition's keys: where the last record of each key is, and whether it is a tombstone.

    secret   16 bytes; without them nobody can make keys whose hashes collide
    slot     2 × int64; an empty one is zero
             0   64 bits of the key's hash
             1   bits 48 to 62: 15 more bits of it · bit 47: the record is a tombstone · bits 0 to 46: offset − base + 1

The hash is SipHash-2-4 with 128 bits, of which 79 are kept: two keys of one partition have the same ones in one table
of 10^12 at a million keys, and in one of 10^8 at a hundred million. Keys themselves are not kept: a record is compared
with the key that was asked for when it is read. A key is looked for from the slot on that its hash names, up to the
first empty one.
"""

from __future__ import annotations

from typing import Final

from numba import types

from topicfs.engine.kernels.compile import INT, INTS, LONGS, READ, WRITE, inline, kernel
from topicfs.engine.kernels.hash import hash_of

SLOT: Final = 2
"""Numbers a slot."""

TOMBSTONE: Final = 1 << 47
PLACES: Final = TOMBSTONE - 1
"""The bits of a slot's second number that are the place: offset − base + 1."""

BAD: Final = -1
"""A span goes beyond its buffer, or an offset is further from the base than a slot can say."""

USED: Final = 0
LIVE: Final = 1
REPLACED: Final = 2
COUNTS: Final = 3
"""Numbers that a table counts: its slots that are used, those of them that are no tombstones, and the rows of
`replaced` that the last `put` has filled."""

_STATE: Final = (1 << 48) - 1


@inline
def _mark(high):
    """The bits of the hash's second half that are kept, in their place."""
    return (types.int64(high) & types.int64(0x7FFF)) << types.int64(48)


@inline
def _slot(slots, low, mark):
    """The position in `slots` of a key's slot, or of the empty one where it would be."""
    count = slots.size // SLOT
    slot = types.int64(((types.uint64(low) >> types.uint64(32)) * types.uint64(count)) >> types.uint64(32))
    # A table is never full, so there is an empty slot.
    for _ in range(count):
        at = slot * SLOT
        word = slots[at + 1]
        if word == 0 or (slots[at] == low and (word & ~types.int64(_STATE)) == mark):
            return at
        slot += 1
        if slot == count:
            slot = types.int64(0)
    return types.int64(0)


@kernel(INT, READ, LONGS, LONGS)
def find(key, secret, slots):
    """The lower 48 bits of a key's slot: place and tombstone; 0 where the key is not in the table."""
    low, high = hash_of(key, 0, key.size, secret)
    return slots[_slot(slots, low, _mark(high)) + 1] & types.int64(_STATE)


@kernel(INT, READ, LONGS, INTS, INTS, INTS, INT, LONGS, LONGS, INT, LONGS, LONGS)
def put(buffer, offsets, key_start, key_length, value_length, base, secret, slots, most, counts, replaced):
    """Put records, by rising offset. Those without a key are passed over.

    Gives how many rows were put: fewer than all where a new key would be more than `most`; BAD where something is wrong
    with the next one. `replaced` gets the offsets of the live records that others have taken the place of."""
    rows = offsets.size
    counts[REPLACED] = 0
    if key_start.size < rows or key_length.size < rows or value_length.size < rows or replaced.size < rows:
        return BAD
    for row in range(rows):
        length = types.int64(key_length[row])
        if length < 0:
            continue
        start = types.int64(key_start[row])
        place = offsets[row] - base + 1
        if start < 0 or length > buffer.size - start or place < 1 or place > PLACES:
            return BAD
        low, high = hash_of(buffer, start, length, secret)
        mark = _mark(high)
        at = _slot(slots, low, mark)
        before = slots[at + 1]
        if before == 0:
            if counts[USED] >= most:
                return row
            counts[USED] += 1
        elif not before & types.int64(TOMBSTONE):
            counts[LIVE] -= 1
            replaced[counts[REPLACED]] = (before & types.int64(PLACES)) - 1 + base
            counts[REPLACED] += 1
        slots[at] = low
        if value_length[row] < 0:
            slots[at + 1] = mark | types.int64(TOMBSTONE) | place
        else:
            slots[at + 1] = mark | place
            counts[LIVE] += 1
    return rows


@kernel(INT, READ, LONGS, INTS, INTS, INTS, INT, LONGS, LONGS, WRITE)
def choose_latest(buffer, offsets, key_start, key_length, value_length, base, secret, slots, chosen):
    """Set a byte for each record: 1 where it is the last of its key and no tombstone, else 0. Gives how many are, or
    BAD."""
    rows = offsets.size
    if key_start.size < rows or key_length.size < rows or value_length.size < rows or chosen.size < rows:
        return BAD
    found = types.int64(0)
    for row in range(rows):
        chosen[row] = 0
        length = types.int64(key_length[row])
        if length < 0 or value_length[row] < 0:
            continue
        start = types.int64(key_start[row])
        if start < 0 or length > buffer.size - start:
            return BAD
        low, high = hash_of(buffer, start, length, secret)
        word = slots[_slot(slots, low, _mark(high)) + 1]
        if word & types.int64(_STATE) == offsets[row] - base + 1:
            chosen[row] = 1
            found += 1
    return found


@kernel(INT, LONGS, LONGS, INT)
def move(slots, fresh, least):
    """Put what is live, and at a place of at least `least`, into another table, which is empty. Gives how many that
    are, or BAD where they are more than fit."""
    moved = types.int64(0)
    count = fresh.size // SLOT
    for slot in range(slots.size // SLOT):
        word = slots[SLOT * slot + 1]
        if word == 0 or word & types.int64(TOMBSTONE) or (word & types.int64(PLACES)) < least:
            continue
        if moved + 1 >= count:
            return BAD
        at = _slot(fresh, slots[SLOT * slot], word & ~types.int64(_STATE))
        fresh[at] = slots[SLOT * slot]
        fresh[at + 1] = word
        moved += 1
    return moved
