"""Variable-length integers inside kernels, and the C library's fast copy and search.

varint    zigzag: 0, -1, 1, -2 … become 0, 1, 2, 3 …; then groups of 7 bits, lowest first,
          each but the last with its high bit set; at most 5 bytes
varlong   the same for 64 bits; at most 10 bytes

unsigned  the same groups of a number from 0 on, which is not folded; at most 5 bytes

A number of more than 32 or 64 bits is malformed, not cut down to fit.

Places are cast to unsigned: a signed index may count from the end, and asking for that doubled the time of a walk over
records.
"""

from __future__ import annotations

from numba import types

from topicfs.engine.kernels.compile import INT, READ, WRITE, inline, kernel, results

MALFORMED = -1
"""Position that a read gives when the number is cut short or too long."""

_memcpy = types.ExternalFunction("memcpy", types.uintp(types.uintp, types.uintp, types.uintp))
_memchr = types.ExternalFunction("memchr", types.uintp(types.uintp, types.int32, types.uintp))


@inline
def copy(target, position, source, start, length):
    """Copy source[start:start+length] to target[position:]; the caller has checked both bounds."""
    _memcpy(
        types.uintp(target.ctypes.data + position),
        types.uintp(source.ctypes.data + start),
        types.uintp(length),
    )


@inline
def find_byte(source, start, end, byte):
    """Position of the first `byte` in source[start:end], or `end`."""
    begin = source.ctypes.data + start
    found = _memchr(types.uintp(begin), types.int32(byte), types.uintp(end - start))
    if found == types.uintp(0):
        return end
    return start + types.int64(found - types.uintp(begin))


@inline
def varint_size(value):
    """Bytes that a number takes."""
    folded = types.uint64((value << 1) ^ (value >> 63))
    size = 1
    while folded >= types.uint64(0x80):
        folded >>= types.uint64(7)
        size += 1
    return size


@inline
def write_varint(out, position, value):
    """Write a number; gives the position behind it. The caller has checked that there is room."""
    folded = types.uint64((value << 1) ^ (value >> 63))
    while folded >= types.uint64(0x80):
        out[types.uintp(position)] = types.uint8(folded & types.uint64(0x7F) | types.uint64(0x80))
        folded >>= types.uint64(7)
        position += 1
    out[types.uintp(position)] = types.uint8(folded)
    return position + 1


@inline
def _read(buffer, position, end, bits):
    folded = types.uint64(0)
    shift = 0
    while position < end and shift < bits:
        byte = types.uint64(buffer[types.uintp(position)])
        position += 1
        folded |= (byte & types.uint64(0x7F)) << types.uint64(shift)
        if byte < types.uint64(0x80):
            if shift == 63 and byte > types.uint64(1):
                break  # more than 64 bits
            half = types.int64(folded >> types.uint64(1))
            return (half ^ -types.int64(folded & types.uint64(1))), position
        shift += 7
    return types.int64(0), types.int64(MALFORMED)


@inline
def read_varlong(buffer, position, end):
    """A 64-bit number and the position behind it, or (0, MALFORMED)."""
    if position < end and buffer[types.uintp(position)] < 0x80:
        byte = types.int64(buffer[types.uintp(position)])
        return (byte >> 1) ^ -(byte & 1), position + 1
    return _read(buffer, position, end, 70)


@inline
def read_varint(buffer, position, end):
    """A 32-bit number and the position behind it, or (0, MALFORMED)."""
    if position < end and buffer[types.uintp(position)] < 0x80:
        byte = types.int64(buffer[types.uintp(position)])
        return (byte >> 1) ^ -(byte & 1), position + 1
    value, position = _read(buffer, position, end, 35)
    if value > 2147483647 or value < -2147483648:
        return types.int64(0), types.int64(MALFORMED)
    return value, position


@inline
def read_unsigned(buffer, position, end):
    """A number of up to 31 bits that is not folded, and the position behind it, or (0, MALFORMED)."""
    value = types.int64(0)
    shift = 0
    while position < end and shift < 35:
        byte = types.int64(buffer[types.uintp(position)])
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value > 2147483647:
                break
            return value, position
        shift += 7
    return types.int64(0), types.int64(MALFORMED)


@kernel(INT, WRITE, INT, INT)
def encode_varint(out, position, value):
    """Write one number for callers outside kernels; MALFORMED where it does not fit into `out`."""
    if position < 0 or position > out.size - varint_size(value):
        return MALFORMED
    return write_varint(out, position, value)


@kernel(results(INT, INT), READ, INT, INT)
def decode_varint(buffer, position, bits):
    """Read one number of 32 or 64 bits for callers outside kernels."""
    if position < 0:
        return 0, MALFORMED
    if bits == 32:
        return read_varint(buffer, position, buffer.size)
    return read_varlong(buffer, position, buffer.size)
