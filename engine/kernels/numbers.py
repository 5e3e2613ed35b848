"""Whole numbers in decimal, and bytes as base64 (RFC 4648 §4: standard alphabet, padded), inside kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from topicfs.engine.kernels.compile import inline

_ALPHABET = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", np.uint8)
_NO_DIGIT = 255
_DIGITS = np.full(256, _NO_DIGIT, np.uint8)
_DIGITS[_ALPHABET] = np.arange(64, dtype=np.uint8)
_PAD = 61

_POWERS = np.array([10**exponent for exponent in range(20)], np.uint64)
_MINUS = 45
_ZERO = 48


_FOURS = np.frombuffer(b"".join(b"%04d" % number for number in range(10_000)), np.uint8)


@inline
def _magnitude(value):
    # In unsigned arithmetic the smallest number, which has no positive counterpart, comes out right too.
    return types.uint64(0) - types.uint64(value) if value < 0 else types.uint64(value)


@intrinsic
def _bits(_context, value):
    """How many bits a number has, 64 at most; at least 1."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        long = ir.IntType(64)
        odd = builder.or_(arguments[0], ir.Constant(long, 1))
        return builder.sub(ir.Constant(long, 64), builder.ctlz(odd, ir.Constant(ir.IntType(1), 1)))

    return types.uintp(types.uint64), generate


@inline
def _digits(value):
    """How many digits a number has that is not negative."""
    # 1233/4096 is a little more than log10(2): this is the number of digits, or one less.
    fewest = _bits(value) * types.uintp(1233) >> types.uintp(12)
    return types.int64(fewest) + types.int64(value >= _POWERS[fewest])


@inline
def decimal_size(value):
    """Bytes that a number takes in decimal."""
    size = max(_digits(_magnitude(value)), 1)
    return size + 1 if value < 0 else size


@inline
def put_decimal(out, position, value):
    """Write a number; gives the position behind it. The caller has made room."""
    end = position + decimal_size(value)
    rest = _magnitude(value)
    at = end
    # Four digits at a time: a division takes longer than all that a digit takes besides.
    while rest >= types.uint64(10_000):
        at -= 4
        more = rest // types.uint64(10_000)
        four = types.uintp(rest - more * types.uint64(10_000)) * types.uintp(4)
        for i in range(4):
            out[types.uintp(at + i)] = _FOURS[four + types.uintp(i)]
        rest = more
    while rest >= types.uint64(10):
        at -= 1
        tens = rest // types.uint64(10)
        out[types.uintp(at)] = types.uint8(types.uint64(_ZERO) + rest - tens * types.uint64(10))
        rest = tens
    out[types.uintp(at - 1)] = types.uint8(types.uint64(_ZERO) + rest)
    if value < 0:
        out[position] = _MINUS
    return end


@inline
def base64_size(length):
    """Bytes that `length` bytes take in base64."""
    return (length + 2) // 3 * 4


@inline
def put_base64(out, position, source, at, end):
    """Write source[at:end] in base64; gives the position behind it. The caller has made room."""
    while at + 3 <= end:
        group = types.int64(source[at]) << 16 | types.int64(source[at + 1]) << 8 | types.int64(source[at + 2])
        out[position] = _ALPHABET[group >> 18]
        out[position + 1] = _ALPHABET[group >> 12 & 63]
        out[position + 2] = _ALPHABET[group >> 6 & 63]
        out[position + 3] = _ALPHABET[group & 63]
        position += 4
        at += 3
    if at < end:
        group = types.int64(source[at]) << 16
        if at + 1 < end:
            group |= types.int64(source[at + 1]) << 8
        out[position] = _ALPHABET[group >> 18]
        out[position + 1] = _ALPHABET[group >> 12 & 63]
        out[position + 2] = _ALPHABET[group >> 6 & 63] if at + 1 < end else _PAD
        out[position + 3] = _PAD
        position += 4
    return position


@inline
def decoded_size(source, at, end):
    """Bytes that the base64 of source[at:end] stands for, by its length and padding; -1 where it cannot be."""
    length = end - at
    if length % 4 != 0:
        return -1
    size = length // 4 * 3
    if length > 0 and source[end - 1] == _PAD:
        size -= 2 if source[end - 2] == _PAD else 1
    return size


@inline
def decode_base64(buffer, position, at, size):
    """Decode the base64 at buffer[at:] to the `size` bytes, its `decoded_size`, at buffer[position:], which may
    overlap it when position <= at. False where a character or a bit is none of base64's."""
    end = position + size
    while position < end:
        group = 0
        wanted = min(end - position, 3)
        for i in range(wanted + 1):
            digit = _DIGITS[buffer[at + i]]
            if digit == _NO_DIGIT:
                return False
            group |= types.int64(digit) << (18 - 6 * i)
        if group & ((1 << (24 - 8 * wanted)) - 1) != 0:
            return False
        for i in range(wanted):
            buffer[position + i] = types.uint8(group >> (16 - 8 * i) & 255)
        position += wanted
        at += 4
    return True
