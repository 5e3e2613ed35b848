"""Lines of a format → columns that `encode_columns` makes records of. The formats are drawn in `sizes`.

Unescaped keys and values go into `out`, and headers as records have them:

    varint   number of headers, each: varint name length, name, varint value length (-1 = null), value

A record's spans are a column each of `spans`, whose rows are KEY_START … HEADERS_LENGTH; length -1 is null, and
a headers length of 0 is "no headers". Of a wrong line, its start, the place in it and one of the codes are
given; the lines before it are whole.

tsv     \\b \\f \\n \\r \\t \\v, \\ and one to three octal digits, \\x and one or two hexadecimal digits stand for a
        byte; a backslash before anything else is dropped. A bare carriage return is refused, as COPY does
jsonl   members in any order. `value` must be there, so that no record becomes a tombstone by omission; `key`,
        `headers`, `timestamp` and `partition` need not; `topic` and `offset` are checked and passed over
"""

from __future__ import annotations

import numpy as np
from numba import types

from topicfs.engine.kernels.compile import INT, INTS, LONGS, READ, WRITE, inline, kernel, results
from topicfs.engine.kernels.escapes import HEX_VALUES, TSV_BYTES, find_tsv, utf8_end
from topicfs.engine.kernels.varint import copy, find_byte
from topicfs.fs.kernels.jsonl import (
    HEADERS,
    KEY,
    PARTITION,
    TIMESTAMP,
    TOPIC,
    VALUE,
    check_text,
    is_at,
    next_element,
    put_text,
    read_headers,
    read_member,
    read_number,
    skip_space,
)
from topicfs.fs.kernels.reasons import (
    BAD_PARTITION,
    BAD_TIMESTAMP,
    DECODED,
    DUPLICATE,
    EMPTY,
    GOOD,
    LONE_BACKSLASH,
    NO_OBJECT,
    NO_ROOM,
    NO_TAB,
    NO_VALUE,
    NOT_UTF8,
    RETURN,
    TABS,
    TRAILING,
)

KEY_START = 0
KEY_LENGTH = 1
VALUE_START = 2
VALUE_LENGTH = 3
HEADERS_START = 4
HEADERS_LENGTH = 5
SPANS_ROWS = 6

SPANS = types.Array(types.int32, 2, "C")

NO_PARTITION = -1
"""In place of a partition: the line names none."""

_TAB = 9
_NEWLINE = 10
_RETURN = 13
_BACKSLASH = 92
_CAPITAL_N = 78
_SMALL_X = 120

_MAX_INT32 = 2**31 - 1

SLACK = 64
"""Bytes that `out` must have beyond twice the input. A string of n bytes and two quotes becomes at most n bytes
and a varint, no more than 2 (n + 2); and base64 is unescaped a little ahead of where it is decoded to."""


# -- tsv ----------------------------------------------------------------------------------------------


@inline
def _tsv_escape(source, at, end):
    """The byte that a backslash stands for with what is behind it, from source[at] on, and the position behind."""
    letter = source[at]
    at += 1
    if 48 <= letter <= 55:
        code = letter - 48
        for _ in range(2):
            if at < end and 48 <= source[at] <= 55:
                code = code * 8 + source[at] - 48
                at += 1
        return types.uint8(code & 255), at
    if letter == _SMALL_X and at < end and HEX_VALUES[source[at]] < 16:
        code = types.int64(HEX_VALUES[source[at]])
        at += 1
        if at < end and HEX_VALUES[source[at]] < 16:
            code = code * 16 + HEX_VALUES[source[at]]
            at += 1
        return types.uint8(code), at
    if TSV_BYTES[letter] != 0:
        return types.uint8(TSV_BYTES[letter]), at
    return types.uint8(letter), at


@inline
def _tsv_field(source, at, end, out, position):
    """Unescape the field of tsv at source[at:] into out: status, where it ended (TAB, newline, `end`) or is
    wrong, length (-1 = null)."""
    if at + 2 <= end and source[at] == _BACKSLASH and source[at + 1] == _CAPITAL_N:
        behind = at + 2
        if behind == end or source[behind] == _TAB or source[behind] == _NEWLINE:
            return GOOD, behind, np.int64(-1)
    start = position
    while True:
        clean = find_tsv(source, at, end)
        copy(out, position, source, at, clean - at)
        position += clean - at
        at = clean
        if at == end or source[at] == _TAB or source[at] == _NEWLINE:
            return GOOD, at, position - start
        if source[at] == _RETURN:
            return RETURN, at, np.int64(0)
        if source[at] == _BACKSLASH:
            at += 1
            if at == end or source[at] == _NEWLINE:
                return LONE_BACKSLASH, at - 1, np.int64(0)
            out[position], at = _tsv_escape(source, at, end)
        else:
            out[position] = source[at]
            at += 1
        position += 1


@kernel(results(INT, INT, INT, INT, INT), READ, INT, INT, WRITE, SPANS)
def parse_tsv(source, start, end, out, spans):
    """Read the lines of source[start:end]; a last one without a newline counts. `out` must have as many bytes
    as the lines, `spans` a column for each.

    Gives status, number of good lines, start of the line behind them, place of what is wrong in it, and how
    many bytes of `out` are used."""
    position = 0
    rows = 0
    if start < 0 or end > source.size or out.size < end - start:
        return NO_ROOM, rows, start, start, position
    while start < end:
        if rows == spans.shape[1]:
            return NO_ROOM, rows, start, start, position
        status, at, length = _tsv_field(source, start, end, out, position)
        if status != GOOD:
            return status, rows, start, at, position
        if at == end or source[at] == _NEWLINE:
            return NO_TAB, rows, start, at, position
        value = position + max(length, 0)
        status, at, value_length = _tsv_field(source, at + 1, end, out, value)
        if status != GOOD:
            return status, rows, start, at, position
        if at < end and source[at] == _TAB:
            return TABS, rows, start, at, position
        spans[KEY_START, rows] = position
        spans[KEY_LENGTH, rows] = length
        spans[VALUE_START, rows] = value
        spans[VALUE_LENGTH, rows] = value_length
        spans[HEADERS_START, rows] = 0
        spans[HEADERS_LENGTH, rows] = 0
        position = value + max(value_length, 0)
        rows += 1
        start = min(at + 1, end)
    return GOOD, rows, start, start, position


# -- jsonl --------------------------------------------------------------------------------------


@inline
def _line(source, at, end, out, position, row, timestamps, partitions, spans):
    """The object that is the line source[at:end], to row `row`: status, place of what is wrong, position behind
    it in `out`."""
    bad = utf8_end(source, at, end)
    if bad != end:
        return NOT_UTF8, bad, position
    at = skip_space(source, at, end)
    if at == end:
        return EMPTY, at, position
    if source[at] != 123:
        return NO_OBJECT, at, position
    opening = at
    at = skip_space(source, at + 1, end)
    if is_at(source, at, end, 125):
        return NO_VALUE, opening, position
    seen = 0
    ended = 0
    while ended == 0:
        quote = at
        status, at, member, encoded = read_member(source, at, end, out, position)
        if status != GOOD:
            return status, at, position
        if seen & 1 << member:
            return DUPLICATE, quote, position
        seen |= 1 << member
        if member <= VALUE:
            if is_at(source, at, end, 123):
                return DECODED, at, position
            status, behind, length = check_text(source, at, end)
            if status != GOOD:
                return status, behind, position
            start = position
            status, position, length = put_text(source, at, behind, length, encoded, 0, out, position)
            if status != GOOD:
                return status, at, position
            spans[KEY_START if member == KEY else VALUE_START, row] = start
            spans[KEY_LENGTH if member == KEY else VALUE_LENGTH, row] = length
        elif member == HEADERS:
            status, behind, start, length, position = read_headers(source, at, end, out, position)
            if status != GOOD:
                return status, behind, position
            spans[HEADERS_START, row] = start
            spans[HEADERS_LENGTH, row] = length
        elif member == TOPIC:
            status, behind, _ = check_text(source, at, end)
            if status != GOOD:
                return status, behind, position
        else:
            status, behind, number, given = read_number(source, at, end)
            if status != GOOD:
                return status, behind, position
            if given == 1 and member == TIMESTAMP:
                if number < -1:
                    return BAD_TIMESTAMP, at, position
                timestamps[row] = number
            elif given == 1 and member == PARTITION:
                if number < 0 or number > _MAX_INT32:
                    return BAD_PARTITION, at, position
                partitions[row] = number
        status, at, ended = next_element(source, behind, end, 125)
        if status != GOOD:
            return status, at, position
    at = skip_space(source, at, end)
    if at != end:
        return TRAILING, at, position
    if not seen & 1 << VALUE:
        return NO_VALUE, opening, position
    return GOOD, at, position


@kernel(results(INT, INT, INT, INT, INT), READ, INT, INT, INT, WRITE, LONGS, INTS, SPANS)
def parse_jsonl(source, start, end, now, out, timestamps, partitions, spans):
    """Read the lines of source[start:end]; a last one without a newline counts. `now` is the timestamp of lines
    that give none, NO_PARTITION the partition. `out` must have twice the bytes of the lines and SLACK, at most
    2 GiB; the columns a row for each line.

    Gives status, number of good lines, start of the line behind them, place of what is wrong in it, and how
    many bytes of `out` are used."""
    position = 0
    rows = 0
    if start < 0 or end > source.size or out.size > _MAX_INT32:
        return NO_ROOM, rows, start, start, position
    while start < end:
        if rows >= min(spans.shape[1], timestamps.size, partitions.size):
            return NO_ROOM, rows, start, start, position
        timestamps[rows] = now
        partitions[rows] = NO_PARTITION
        spans[:, rows] = 0
        spans[KEY_LENGTH, rows] = -1
        newline = find_byte(source, start, end, _NEWLINE)
        status, at, behind = _line(source, start, newline, out, position, rows, timestamps, partitions, spans)
        if status != GOOD:
            return status, rows, start, at, position
        position = behind
        rows += 1
        start = min(newline + 1, end)
    return GOOD, rows, start, start, position
