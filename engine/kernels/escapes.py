"""Bytes that a format cannot have bare: found 16 at a time, counted, and written escaped.

tsv     \\b \\t \\n \\v \\f \\r and the backslash, as in PostgreSQL's COPY text
jsonl   the quote, the backslash and all below a space; from 0x80 on the bytes must be UTF-8

What is clean is moved 16 bytes at once, so up to 15 bytes behind the position that is given back may have been
written; never behind the end of the array. Sources are read in the same steps, never behind their end either.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from topicfs.engine.kernels.compile import inline

WIDTH = 16
BACKSLASH = 92
QUOTE = 34
_SMALL_U = 117

_LONG = ir.IntType(64)
_CHUNK = ir.VectorType(ir.IntType(8), WIDTH)


def _at(builder: Any, address: Any) -> Any:
    return builder.inttoptr(address, _CHUNK.as_pointer())


def _every(byte: int) -> Any:
    return ir.Constant(_CHUNK, [byte] * WIDTH)


def _mask(select: Any) -> Any:
    """A function of kernels: bit i tells whether `select` picks byte i of the 16 at an address."""

    @intrinsic
    def mask(_context, address):
        def generate(_context, builder, _signature, arguments):
            chunk = builder.load(_at(builder, arguments[0]), align=1)
            return builder.zext(builder.bitcast(select(builder, chunk), ir.IntType(WIDTH)), _LONG)

        return types.int64(types.uintp), generate

    return mask


def _is_special_to_tsv(builder: Any, chunk: Any) -> Any:
    control = builder.icmp_unsigned("<", builder.sub(chunk, _every(8)), _every(6))
    return builder.or_(control, builder.icmp_unsigned("==", chunk, _every(BACKSLASH)))


def _is_mark(builder: Any, chunk: Any) -> Any:
    quote = builder.icmp_unsigned("==", chunk, _every(QUOTE))
    return builder.or_(quote, builder.icmp_unsigned("==", chunk, _every(BACKSLASH)))


def _is_special_to_json(builder: Any, chunk: Any) -> Any:
    return builder.or_(builder.icmp_unsigned("<", chunk, _every(32)), _is_mark(builder, chunk))


def _is_special_or_high(builder: Any, chunk: Any) -> Any:
    # As a signed number, a byte from 0x80 on is below a space too.
    return builder.or_(builder.icmp_signed("<", chunk, _every(32)), _is_mark(builder, chunk))


def _is_high(builder: Any, chunk: Any) -> Any:
    return builder.icmp_signed("<", chunk, _every(0))


_tsv_mask = _mask(_is_special_to_tsv)
_json_mask = _mask(_is_special_to_json)
_ascii_mask = _mask(_is_special_or_high)
_high_mask = _mask(_is_high)


@intrinsic
def _move(_context, target, source):
    """Move 16 bytes from one address to another."""

    def generate(context, builder, _signature, arguments):
        chunk = builder.load(_at(builder, arguments[1]), align=1)
        builder.store(chunk, _at(builder, arguments[0]), align=1)
        return context.get_dummy_value()

    return types.void(types.uintp, types.uintp), generate


@intrinsic
def _lowest(_context, bits):
    """Number of the lowest bit that is set; bits is not 0."""

    def generate(_context, builder, _signature, arguments):
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.int64), generate


@intrinsic
def _ones(_context, bits):
    """How many bits are set."""

    def generate(_context, builder, _signature, arguments):
        return builder.ctpop(arguments[0])

    return types.int64(types.int64), generate


_ALL_CLEAN = 1 << WIDTH


@inline
def _clean(mask):
    """How many bytes come before the first that the mask picks, 16 at most."""
    return _lowest(mask | _ALL_CLEAN)


# -- tables -------------------------------------------------------------------------------------------


def _letters(pairs: dict[bytes, bytes]) -> Any:
    table = np.zeros(256, np.uint8)
    for byte, letter in pairs.items():
        table[byte[0]] = letter[0]
    return table


_SHORT = {b"\b": b"b", b"\t": b"t", b"\n": b"n", b"\f": b"f", b"\r": b"r", b"\\": b"\\"}
TSV_LETTERS = _letters(_SHORT | {b"\v": b"v"})
"""The letter that stands for a byte behind a backslash; 0: the byte stands for itself."""

JSON_LETTERS = _letters({bytes([code]): b"u" for code in range(32)} | _SHORT | {b'"': b'"'})
"""The same for JSON, where u means four hexadecimal digits."""

JSON_EXTRA = np.where(JSON_LETTERS == _SMALL_U, 5, JSON_LETTERS != 0).astype(np.uint8)
"""Bytes that a byte takes more than itself."""

HEX_DIGITS = np.frombuffer(b"0123456789abcdef", np.uint8)


def _bytes_of(letters: Any) -> Any:
    table = np.zeros(256, np.uint8)
    for byte in np.flatnonzero(letters):
        table[letters[byte]] = byte
    return table


TSV_BYTES = _bytes_of(TSV_LETTERS)
JSON_BYTES = _bytes_of(JSON_LETTERS)
"""The byte that a letter behind a backslash stands for; 0 for none."""

JSON_BYTES[_SMALL_U] = 0
JSON_BYTES[ord("/")] = ord("/")

HEX_VALUES = np.full(256, 255, np.uint8)
"""What a hexadecimal digit counts; 255 for no digit."""

for _value, _digit in enumerate("0123456789abcdef"):
    HEX_VALUES[[ord(_digit), ord(_digit.upper())]] = _value


# -- finding and counting -----------------------------------------------------------------------------


@inline
def find_tsv(source, at, end):
    """Position of the first byte of source[at:end] that tsv escapes, or `end`."""
    base = source.ctypes.data
    while at < end:
        if at + WIDTH <= source.size:
            mask = _tsv_mask(types.uintp(base + at))
            if mask != 0:
                at += _lowest(mask)
                break
            at += WIDTH
        elif TSV_LETTERS[source[at]] != 0:
            break
        else:
            at += 1
    return min(at, end)


@inline
def count_tsv(source, at, end):
    """How many bytes of source[at:end] tsv escapes."""
    base = source.ctypes.data
    count = 0
    while at + WIDTH <= source.size and at < end:
        mask = _tsv_mask(types.uintp(base + at))
        if end - at < WIDTH:
            mask &= (1 << (end - at)) - 1
        count += _ones(mask)
        at += WIDTH
    while at < end:
        if TSV_LETTERS[source[at]] != 0:
            count += 1
        at += 1
    return count


@inline
def find_json(source, at, end):
    """Position of the first byte of source[at:end] that JSON escapes, or `end`."""
    base = source.ctypes.data
    while at < end:
        if at + WIDTH <= source.size:
            mask = _json_mask(types.uintp(base + at))
            if mask != 0:
                at += _lowest(mask)
                break
            at += WIDTH
        elif JSON_LETTERS[source[at]] != 0:
            break
        else:
            at += 1
    return min(at, end)


@inline
def find_json_or_high(source, at, end):
    """Position of the first byte of source[at:end] that JSON escapes or that is not ASCII, or `end`."""
    base = source.ctypes.data
    while at < end:
        if at + WIDTH <= source.size:
            mask = _ascii_mask(types.uintp(base + at))
            if mask != 0:
                at += _lowest(mask)
                break
            at += WIDTH
        elif source[at] >= 0x80 or JSON_LETTERS[source[at]] != 0:
            break
        else:
            at += 1
    return min(at, end)


@inline
def _find_high(source, at, end):
    """Position of the first byte of source[at:end] that is not ASCII, or `end`."""
    base = source.ctypes.data
    while at < end:
        if at + WIDTH <= source.size:
            mask = _high_mask(types.uintp(base + at))
            if mask != 0:
                at += _lowest(mask)
                break
            at += WIDTH
        elif source[at] >= 0x80:
            break
        else:
            at += 1
    return min(at, end)


@inline
def utf8_end(source, at, end):
    """Position of the first byte of source[at:end] where UTF-8 ends, or `end`. No overlong form, no surrogate,
    nothing beyond U+10FFFF passes: those show in the second byte."""
    while at < end:
        first = source[at]
        if first < 0x80:
            at = _find_high(source, at, end)
            continue
        lowest, highest = 0x80, 0xBF
        if first < 0xC2:
            return at
        if first < 0xE0:
            more = 1
        elif first < 0xF0:
            more = 2
            if first == 0xE0:
                lowest = 0xA0
            elif first == 0xED:
                highest = 0x9F
        elif first < 0xF5:
            more = 3
            if first == 0xF0:
                lowest = 0x90
            elif first == 0xF4:
                highest = 0x8F
        else:
            return at
        if more >= end - at or source[at + 1] < lowest or source[at + 1] > highest:
            return at
        for i in range(2, more + 1):
            if source[at + i] & 0xC0 != 0x80:
                return at
        at += more + 1
    return end


@inline
def json_size(source, at, end):
    """Bytes that source[at:end] takes in a JSON string, without its quotes; -1 where it is not UTF-8."""
    size = end - at
    at = find_json_or_high(source, at, end)
    while at < end and source[at] < 0x80:
        size += JSON_EXTRA[source[at]]
        at = find_json_or_high(source, at + 1, end)
    if at == end:
        return size
    if utf8_end(source, at, end) != end:
        return np.int64(-1)
    at = find_json(source, at, end)
    while at < end:
        size += JSON_EXTRA[source[at]]
        at = find_json(source, at + 1, end)
    return size


# -- writing escaped ----------------------------------------------------------------------------------
# The caller has made room for the escaped bytes. A clean chunk advances by a constant, not by a number computed
# from it: the processor then need not wait for the one to begin with the next, which doubles the speed.


@inline
def put_tsv(out, position, source, at, end):
    """Write source[at:end] escaped for tsv; gives the position behind it."""
    read, write = source.ctypes.data, out.ctypes.data
    while at < end:
        if at + WIDTH <= source.size and position + WIDTH <= out.size:
            mask = _tsv_mask(types.uintp(read + at))
            _move(types.uintp(write + position), types.uintp(read + at))
            if mask == 0 and end - at >= WIDTH:
                at += WIDTH
                position += WIDTH
                continue
            clean = min(_clean(mask), end - at)
            at += clean
            position += clean
            if at == end:
                break
        letter = TSV_LETTERS[source[at]]
        if letter == 0:
            out[position] = source[at]
        else:
            out[position] = BACKSLASH
            position += 1
            out[position] = letter
        position += 1
        at += 1
    return position


@inline
def _put_json_byte(out, position, byte):
    letter = JSON_LETTERS[byte]
    if letter == 0:
        out[position] = byte
        return position + 1
    out[position] = BACKSLASH
    out[position + 1] = letter
    if letter != _SMALL_U:
        return position + 2
    out[position + 2] = 48
    out[position + 3] = 48
    out[position + 4] = HEX_DIGITS[byte >> 4]
    out[position + 5] = HEX_DIGITS[byte & 15]
    return position + 6


@inline
def put_json(out, position, source, at, end):
    """Write source[at:end], which is UTF-8, escaped for JSON; gives the position behind it."""
    read, write = source.ctypes.data, out.ctypes.data
    while at < end:
        if at + WIDTH <= source.size and position + WIDTH <= out.size:
            mask = _json_mask(types.uintp(read + at))
            _move(types.uintp(write + position), types.uintp(read + at))
            if mask == 0 and end - at >= WIDTH:
                at += WIDTH
                position += WIDTH
                continue
            clean = min(_clean(mask), end - at)
            at += clean
            position += clean
            if at == end:
                break
        position = _put_json_byte(out, position, source[at])
        at += 1
    return position


@inline
def put_json_ascii(out, position, source, at, end):
    """Write source[at:end] escaped for JSON up to the first byte that is not ASCII; gives the position behind
    what was written, and that byte's, or `end`."""
    read, write = source.ctypes.data, out.ctypes.data
    while at < end:
        if at + WIDTH <= source.size and position + WIDTH <= out.size:
            mask = _ascii_mask(types.uintp(read + at))
            _move(types.uintp(write + position), types.uintp(read + at))
            if mask == 0 and end - at >= WIDTH:
                at += WIDTH
                position += WIDTH
                continue
            clean = min(_clean(mask), end - at)
            at += clean
            position += clean
            if at == end:
                break
        if source[at] >= 0x80:
            break
        position = _put_json_byte(out, position, source[at])
        at += 1
    return position, at
