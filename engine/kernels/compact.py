"""Compaction of batches: which records stay, and the batches that they make.

A batch keeps its offsets, sequence, producer, leader epoch and flags, whichever of its records go. One of which all
records stay is copied byte for byte. Otherwise the records that stay are written behind a new header; an offset delta
does not change, and a timestamp delta only where the base timestamp does: it is the first record's that stays, or the
delete horizon once there is one.
"""

from __future__ import annotations

from typing import Final

from numba import types

from topicfs.engine.format.batch_header import (
    CODEC_MASK,
    CONTROL,
    DELETE_HORIZON,
    HEADER_SIZE,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
)
from topicfs.engine.kernels.compile import INT, LONGS, READ, TABLE, WRITE, inline, kernel, results
from topicfs.engine.kernels.decode import BAD_OFFSET, GOOD, TOO_FEW, TOO_MANY, walk_record
from topicfs.engine.kernels.encode import write_header
from topicfs.engine.kernels.hash import (
    COMPRESSED,
    FULL,
    RING,
    RING_SIZE,
    find,
    hash_of,
    into_ring,
    is_outdated,
)
from topicfs.engine.kernels.scan import (
    ATTRIBUTES,
    BASE_OFFSET,
    BASE_SEQUENCE,
    BASE_TIMESTAMP,
    COUNT,
    LAST_OFFSET,
    LEADER_EPOCH,
    MAX_TIMESTAMP,
    POSITION,
    PRODUCER_EPOCH,
    PRODUCER_ID,
    SIZE,
)
from topicfs.engine.kernels.varint import copy, read_varint, read_varlong, varint_size, write_varint

DISCARD: Final = 1
RETAIN_EMPTY: Final = 2
EMPTY_TRANSACTION: Final = 4
"""What is known of a batch before its records are looked at, a bit each: all of its records go; its header stays
when no record does; it is a marker of a transaction of which nothing is left."""

GROWTH: Final = 10
"""Bytes that a record may grow by when its timestamp delta changes."""

_DROP: Final = 0
_INVALID: Final = 1  # it has no key, and goes
_KEEP: Final = 2
_TOMBSTONE: Final = 3  # and it stays


@inline
def _append_time(table, row):
    return (table[row, ATTRIBUTES] & LOG_APPEND_TIME) != 0


@inline
def _settle(ring, place, slots, keep):
    """Drop the record at a place of the ring if its key has a higher offset in the table."""
    at = (place % RING) * 5
    if find(slots, ring[at + 2], ring[at], ring[at + 1]) > ring[at + 3]:
        keep[ring[at + 4]] = _DROP


@inline
def _decide(
    buffer, origin, table, first, end_row, flags, now, latest, secret, slots, keep, ring, outdated, base
):
    """For each record of the rows from `first` up to `end_row`, whether it stays. Batches that are discarded have
    no place in `keep`. Gives status, row, record index, position."""
    waiting = types.int64(0)
    done = types.int64(0)
    at_record = types.int64(0)
    for row in range(first, end_row):
        if flags[row] & DISCARD:
            continue
        attributes = table[row, ATTRIBUTES]
        position = table[row, POSITION] - origin + HEADER_SIZE
        end = position + table[row, SIZE] - HEADER_SIZE
        count = table[row, COUNT]
        last_delta = table[row, LAST_OFFSET] - table[row, BASE_OFFSET]
        if position < HEADER_SIZE or end > buffer.size or count < 0:
            return TOO_FEW, row, 0, position
        if count > keep.size - at_record:
            return TOO_MANY, row, 0, position
        keeps_tombstones = (attributes & DELETE_HORIZON) == 0 or now < table[row, BASE_TIMESTAMP]
        last = types.int64(-1)
        for index in range(count):
            if position >= end:
                return TOO_FEW, row, index, position
            found, at, body, _, place, key, key_size, _, value_size, _ = walk_record(buffer, position, end)
            if found != GOOD:
                return found, row, index, at
            if place <= last or place > last_delta:
                return BAD_OFFSET, row, index, position
            last = place
            position = body
            offset = table[row, BASE_OFFSET] + place
            verdict = _KEEP
            if (attributes & CONTROL) == 0:
                if value_size < 0:
                    verdict = _TOMBSTONE
                if offset <= latest:
                    if key_size < 0:
                        verdict = _INVALID
                    elif value_size < 0 and not keeps_tombstones:
                        verdict = _DROP
                    else:
                        known = is_outdated(outdated, base, offset)
                        if known == 1:
                            verdict = _DROP
                        if known >= 0:
                            keep[at_record] = verdict
                            at_record += 1
                            continue
                        if waiting - done == RING:
                            _settle(ring, done, slots, keep)
                            done += 1
                        low, high = hash_of(buffer, key, key_size, secret)
                        into_ring(ring, waiting, slots, low, high, offset, at_record)
                        waiting += 1
            keep[at_record] = verdict
            at_record += 1
        if position != end:
            return TOO_MANY, row, count, position
    while done < waiting:
        _settle(ring, done, slots, keep)
        done += 1
    return GOOD, end_row, 0, 0


@inline
def _timestamp(buffer, position, end, base):
    """Of the record at `position`, which was walked before."""
    _, at = read_varint(buffer, position, end)
    delta, _ = read_varlong(buffer, at + 1, end)
    return base + delta


@inline
def _moved(buffer, position, body, timestamp, base, out, to):
    """Write a record with its timestamp relative to another base. Gives the position behind it."""
    _, at = read_varint(buffer, position, body)
    _, rest = read_varlong(buffer, at + 1, body)
    delta = timestamp - base
    to = write_varint(out, to, 1 + varint_size(delta) + body - rest)
    out[to] = buffer[at]
    to = write_varint(out, to + 1, delta)
    copy(out, to, buffer, rest, body - rest)
    return to + body - rest


@inline
def _rewrite(buffer, start, end, table, row, keep, at_record, horizon, out, position):
    """Write the batch that the records which stay make. `horizon` is the delete horizon to set; -1 leaves it.
    Gives the position behind it. The caller has made sure of the room."""
    attributes = table[row, ATTRIBUTES]
    old_base = table[row, BASE_TIMESTAMP]
    of_append = _append_time(table, row)
    largest = table[row, MAX_TIMESTAMP]
    base = old_base
    is_based = (attributes & DELETE_HORIZON) != 0
    if horizon >= 0 and not is_based:
        base = horizon
        is_based = True
        attributes |= DELETE_HORIZON
    maximum = types.int64(-(2**63))
    kept = types.int64(0)
    to = position + HEADER_SIZE
    at = start
    for index in range(table[row, COUNT]):
        length, behind = read_varint(buffer, at, end)
        body = behind + length
        if keep[at_record + index] >= _KEEP:
            timestamp = largest if of_append else _timestamp(buffer, at, body, old_base)
            if not is_based:
                base = timestamp
                is_based = True
            maximum = max(maximum, timestamp)
            if base == old_base and not of_append:
                copy(out, to, buffer, at, body - at)
                to += body - at
            else:
                to = _moved(buffer, at, body, timestamp, base, out, to)
            kept += 1
        at = body
    write_header(
        out,
        position,
        to,
        table[row, BASE_OFFSET],
        table[row, LEADER_EPOCH],
        attributes,
        table[row, LAST_OFFSET] - table[row, BASE_OFFSET],
        base,
        largest if of_append else maximum,
        table[row, PRODUCER_ID],
        table[row, PRODUCER_EPOCH],
        table[row, BASE_SEQUENCE],
        kept,
    )
    return to


@inline
def _write_empty(table, row, out, position):
    """Write the header that remains of a batch without records. Gives the position behind it."""
    write_header(
        out,
        position,
        position + HEADER_SIZE,
        table[row, BASE_OFFSET],
        table[row, LEADER_EPOCH],
        table[row, ATTRIBUTES] & (LOG_APPEND_TIME | TRANSACTIONAL | CONTROL),
        table[row, LAST_OFFSET] - table[row, BASE_OFFSET],
        -1,
        table[row, MAX_TIMESTAMP],
        table[row, PRODUCER_ID],
        table[row, PRODUCER_EPOCH],
        table[row, BASE_SEQUENCE],
        0,
    )
    return position + HEADER_SIZE


@kernel(
    results(INT, INT, INT, INT, INT, INT, INT, INT),
    READ, INT, TABLE, INT, READ, INT, INT, INT, LONGS, LONGS, WRITE, LONGS, READ, INT, WRITE, INT,
)  # fmt: skip
def compact(
    buffer,
    origin,
    table,
    first,
    flags,
    now,
    horizon,
    latest,
    secret,
    slots,
    keep,
    ring,
    outdated,
    base,
    out,
    position,
):
    """Write what remains of the batches that `table` names, from row `first` on, to out[position:].

    `flags` has a byte a row. `now` is held against delete horizons, `horizon` is set where there is none.
    Records above the offset `latest` stay. `secret` and `slots` are a table of keys, `outdated` its bitmap from
    `base` on; `keep` is room for a byte a record. Stops before a compressed batch that is not discarded
    (COMPRESSED), and where `out` has no room (FULL). `origin` is the table's position of buffer[0]. Gives
    status, the next row, record index, position in `buffer`, position behind what was written, then: records
    that stay, records without a key, batches that are not as they were."""
    if flags.size < table.shape[0] or ring.size < RING_SIZE or first < 0 or position < 0:
        return TOO_MANY, first, 0, 0, position, 0, 0, 0
    end_row = first
    while end_row < table.shape[0] and (
        (table[end_row, ATTRIBUTES] & CODEC_MASK) == 0 or flags[end_row] & DISCARD
    ):
        end_row += 1
    status, row, index, at = _decide(
        buffer, origin, table, first, end_row, flags, now, latest, secret, slots, keep, ring, outdated, base
    )
    if status != GOOD:
        return status, row, index, at, position, 0, 0, 0
    at_record = types.int64(0)
    total = types.int64(0)
    invalid = types.int64(0)
    changed = types.int64(0)
    for row in range(first, end_row):
        without_key = types.int64(0)
        kept = types.int64(0)
        tombstones = False
        count = types.int64(0)
        if (flags[row] & DISCARD) == 0:
            count = table[row, COUNT]
            for each in range(at_record, at_record + count):
                if keep[each] >= _KEEP:
                    kept += 1
                    if keep[each] == _TOMBSTONE:
                        tombstones = True
                elif keep[each] == _INVALID:
                    without_key += 1
        start = table[row, POSITION] - origin
        size = table[row, SIZE]
        # What a discarded batch says of itself was not checked: no more counts here than what is written of it.
        room = HEADER_SIZE + size + GROWTH * kept if kept else HEADER_SIZE
        if room > out.size - position:
            return FULL, row, 0, 0, position, total, invalid, changed
        if kept == 0:
            if flags[row] & RETAIN_EMPTY:
                position = _write_empty(table, row, out, position)
            if table[row, COUNT] or (flags[row] & RETAIN_EMPTY) == 0:
                changed += 1
        else:
            has_horizon = (table[row, ATTRIBUTES] & DELETE_HORIZON) != 0
            sets_horizon = (tombstones or (flags[row] & EMPTY_TRANSACTION) != 0) and not has_horizon
            if kept == count and not sets_horizon:
                copy(out, position, buffer, start, size)
                position += size
            else:
                position = _rewrite(
                    buffer,
                    start + HEADER_SIZE,
                    start + size,
                    table,
                    row,
                    keep,
                    at_record,
                    horizon if sets_horizon else types.int64(-1),
                    out,
                    position,
                )
                changed += 1
        at_record += count
        total += kept
        invalid += without_key
    return (
        (COMPRESSED if end_row < table.shape[0] else GOOD),
        end_row,
        0,
        0,
        position,
        total,
        invalid,
        changed,
    )
