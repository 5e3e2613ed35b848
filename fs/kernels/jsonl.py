"""The parts of a line of jsonl: white space, strings, numbers, members, headers.

What is read is checked first, with what it becomes in size, and written then without looking again. Each
function gives a status, and the position behind what it read or of what is wrong.
"""

from __future__ import annotations

import numpy as np
from numba import types

from topicfs.engine.kernels.compile import inline
from topicfs.engine.kernels.escapes import HEX_VALUES, JSON_BYTES, find_json
from topicfs.engine.kernels.numbers import decode_base64, decoded_size
from topicfs.engine.kernels.varint import copy, varint_size, write_varint
from topicfs.fs.kernels.reasons import (
    CONTROL,
    DUPLICATE,
    ESCAPE,
    GOOD,
    NO_COLON,
    NO_COMMA,
    NO_HEADER,
    NO_HEADER_NAME,
    NO_HEADER_VALUE,
    NO_HEADERS,
    NO_NAME,
    NO_NUMBER,
    NO_ROOM,
    NO_TEXT,
    NOT_BASE64,
    SURROGATE,
    UNCLOSED,
    UNKNOWN,
)

_MAX_INT64 = 2**63 - 1
MOST_OF_A_VARINT = 5
_QUOTE = 34
_BACKSLASH = 92
_SMALL_U = 117

# -- strings and numbers ----------------------------------------------------------------------------------


@inline
def skip_space(source, at, end):
    """Position of the first byte of source[at:end] that is no white space, or `end`."""
    while at < end and (source[at] == 32 or source[at] == 9 or source[at] == 13 or source[at] == 10):
        at += 1
    return at


@inline
def is_at(source, at, end, byte):
    return at < end and source[at] == byte


@inline
def _is_null(source, at, end):
    return (
        at + 4 <= end
        and source[at] == 110
        and source[at + 1] == 117
        and source[at + 2] == 108
        and source[at + 3] == 108
    )


@inline
def _hex4(source, at, end):
    """The number of four hexadecimal digits, or -1."""
    if at + 4 > end:
        return np.int64(-1)
    code = np.int64(0)
    for i in range(4):
        digit = HEX_VALUES[source[at + i]]
        if digit > 15:
            return np.int64(-1)
        code = code << 4 | types.int64(digit)
    return code


@inline
def _utf8_size(code):
    if code < 0x80:
        return 1
    return 2 if code < 0x800 else 3


@inline
def _string(source, at, end):
    """Check the string whose opening quote is source[at], in a line that is UTF-8: status, position behind its
    closing quote or of what is wrong, and its length when unescaped."""
    opening = at
    at += 1
    saved = 0
    while True:
        at = find_json(source, at, end)
        if at == end:
            return UNCLOSED, opening, np.int64(0)
        if source[at] == _QUOTE:
            return GOOD, at + 1, at - opening - 1 - saved
        if source[at] != _BACKSLASH:
            return CONTROL, at, np.int64(0)
        if at + 1 == end:
            return UNCLOSED, opening, np.int64(0)
        if source[at + 1] != _SMALL_U:
            if JSON_BYTES[source[at + 1]] == 0:
                return ESCAPE, at, np.int64(0)
            saved += 1
            at += 2
            continue
        code = _hex4(source, at + 2, end)
        if code < 0:
            return ESCAPE, at, np.int64(0)
        if code < 0xD800 or code > 0xDFFF:
            saved += 6 - _utf8_size(code)
            at += 6
            continue
        if code > 0xDBFF or not (
            is_at(source, at + 6, end, _BACKSLASH) and is_at(source, at + 7, end, _SMALL_U)
        ):
            return SURROGATE, at, np.int64(0)
        low = _hex4(source, at + 8, end)
        if low < 0xDC00 or low > 0xDFFF:
            return SURROGATE, at, np.int64(0)
        saved += 8
        at += 12


@inline
def _put_code(out, position, code):
    """Write a code point as UTF-8; gives the position behind it."""
    if code < 0x80:
        out[position] = types.uint8(code)
        return position + 1
    if code < 0x800:
        out[position] = types.uint8(0xC0 | code >> 6)
    else:
        if code < 0x10000:
            out[position] = types.uint8(0xE0 | code >> 12)
        else:
            out[position] = types.uint8(0xF0 | code >> 18)
            position += 1
            out[position] = types.uint8(0x80 | code >> 12 & 0x3F)
        position += 1
        out[position] = types.uint8(0x80 | code >> 6 & 0x3F)
    out[position + 1] = types.uint8(0x80 | code & 0x3F)
    return position + 2


@inline
def _unescape(source, at, end, out, position):
    """Write what the checked string source[at:end], without its quotes, stands for."""
    while True:
        clean = find_json(source, at, end)
        copy(out, position, source, at, clean - at)
        position += clean - at
        at = clean
        if at == end:
            return
        if source[at + 1] != _SMALL_U:
            out[position] = JSON_BYTES[source[at + 1]]
            position += 1
            at += 2
            continue
        code = _hex4(source, at + 2, end)
        at += 6
        if 0xD800 <= code <= 0xDBFF:
            code = 0x10000 + ((code - 0xD800) << 10) + _hex4(source, at + 2, end) - 0xDC00
            at += 6
        position = _put_code(out, position, code)


@inline
def check_text(source, at, end):
    """Check the string or null at source[at:]: status, position behind it or of what is wrong, length when
    unescaped (-1 = null)."""
    if is_at(source, at, end, _QUOTE):
        return _string(source, at, end)
    if _is_null(source, at, end):
        return GOOD, at + 4, np.int64(-1)
    return NO_TEXT, at, np.int64(0)


@inline
def put_text(source, at, behind, length, encoded, prefixed, out, position):
    """Write the checked string or null of source[at:behind] at out[position:]; `encoded` 1: what its base64
    stands for; `prefixed` 1: behind a varint of its length. Status, position behind it, length (-1 = null)."""
    if length + 2 * MOST_OF_A_VARINT > out.size - position:
        return NO_ROOM, position, length
    if length < 0:
        if prefixed == 1:
            position = write_varint(out, position, length)
        return GOOD, position, length
    if encoded == 0:
        if prefixed == 1:
            position = write_varint(out, position, length)
        _unescape(source, at + 1, behind - 1, out, position)
        return GOOD, position + length, length
    # How many bytes it stands for shows only when it is unescaped: that is done a little ahead.
    ahead = position + MOST_OF_A_VARINT
    _unescape(source, at + 1, behind - 1, out, ahead)
    size = decoded_size(out, ahead, ahead + length)
    if size < 0:
        return NOT_BASE64, position, length
    if prefixed == 1:
        position = write_varint(out, position, size)
    if not decode_base64(out, position, ahead, size):
        return NOT_BASE64, position, length
    return GOOD, position + size, size


@inline
def read_number(source, at, end):
    """The whole number or null at source[at:]: status, position behind it or its own, number, 1 unless null."""
    if _is_null(source, at, end):
        return GOOD, at + 4, np.int64(0), 0
    start = at
    negative = is_at(source, at, end, 45)
    if negative:
        at += 1
    first = at
    value = np.int64(0)
    while at < end and 48 <= source[at] <= 57:
        digit = types.int64(source[at]) - 48
        if value > (_MAX_INT64 - digit) // 10:
            return NO_NUMBER, start, np.int64(0), 0
        value = value * 10 + digit
        at += 1
    has_leading_zero = at - first > 1 and source[first] == 48
    has_more = at < end and (source[at] == 46 or source[at] == 69 or source[at] == 101)  # . E e
    if at == first or has_leading_zero or has_more:
        return NO_NUMBER, start, np.int64(0), 0
    return GOOD, at, (-value if negative else value), 1


# -- members and headers ------------------------------------------------------------------------------------

KEY = 0
VALUE = 1
HEADERS = 2
TIMESTAMP = 3
PARTITION = 4
OFFSET = 5
TOPIC = 6

_NAMES = (
    (b"key", KEY, 0),
    (b"value", VALUE, 0),
    (b"headers", HEADERS, 0),
    (b"timestamp", TIMESTAMP, 0),
    (b"partition", PARTITION, 0),
    (b"offset", OFFSET, 0),
    (b"topic", TOPIC, 0),
    (b"key_base64", KEY, 1),
    (b"value_base64", VALUE, 1),
)
_NAME_BYTES = np.frombuffer(b"".join(name for name, _, _ in _NAMES), np.uint8)
_NAME_LENGTHS = np.array([len(name) for name, _, _ in _NAMES])
_NAME_MEMBERS = np.array([member for _, member, _ in _NAMES])
_NAME_ENCODED = np.array([encoded for _, _, encoded in _NAMES])
_LONGEST_NAME = int(_NAME_LENGTHS.max())


@inline
def read_member(source, at, end, out, position):
    """The member whose name is the string at source[at:], up to its value: status, position of the value or of
    what is wrong, member, 1 when its value is base64."""
    if not is_at(source, at, end, _QUOTE):
        return NO_NAME, at, 0, 0
    status, behind, length = _string(source, at, end)
    if status != GOOD:
        return status, behind, 0, 0
    if length > _LONGEST_NAME:
        return UNKNOWN, at, 0, 0
    if length > out.size - position:
        return NO_ROOM, at, 0, 0
    # A name may be escaped as any string: what is compared is what it stands for.
    _unescape(source, at + 1, behind - 1, out, position)
    first = 0
    for i in range(_NAME_LENGTHS.size):
        if _NAME_LENGTHS[i] == length:
            same = 0
            while same < length and out[position + same] == _NAME_BYTES[first + same]:
                same += 1
            if same == length:
                colon = skip_space(source, behind, end)
                if not is_at(source, colon, end, 58):
                    return NO_COLON, colon, 0, 0
                return GOOD, skip_space(source, colon + 1, end), _NAME_MEMBERS[i], _NAME_ENCODED[i]
        first += _NAME_LENGTHS[i]
    return UNKNOWN, at, 0, 0


@inline
def next_element(source, at, end, closing):
    """What follows an element: status, position of the next element, or behind `closing`, or of what is wrong;
    1 when it is the end."""
    at = skip_space(source, at, end)
    if is_at(source, at, end, closing):
        return GOOD, at + 1, 1
    if is_at(source, at, end, 44):
        return GOOD, skip_space(source, at + 1, end), 0
    return NO_COMMA, at, 0


@inline
def _header(source, at, end, out, position):
    """One header {"key":…,"value":…}, members in any order, to out[position:]: status, position behind it or of
    what is wrong, position behind it in `out`."""
    opening = at
    if not is_at(source, at, end, 123):
        return NO_HEADER, at, position
    at = skip_space(source, at + 1, end)
    seen = 0
    name_at = name_behind = name_length = name_encoded = 0
    value_at = value_behind = value_length = value_encoded = 0
    ended = 0
    if is_at(source, at, end, 125):
        return NO_HEADER_NAME, opening, position
    while ended == 0:
        quote = at
        status, at, member, encoded = read_member(source, at, end, out, position)
        if status != GOOD:
            return status, at, position
        if member > VALUE:
            return UNKNOWN, quote, position
        if seen & 1 << member:
            return DUPLICATE, quote, position
        seen |= 1 << member
        status, behind, length = check_text(source, at, end)
        if status != GOOD:
            return status, behind, position
        if member == KEY:
            if length < 0:
                return NO_HEADER_NAME, at, position
            name_at, name_behind, name_length, name_encoded = at, behind, length, encoded
        else:
            value_at, value_behind, value_length, value_encoded = at, behind, length, encoded
        status, at, ended = next_element(source, behind, end, 125)
        if status != GOOD:
            return status, at, position
    if not seen & 1 << KEY:
        return NO_HEADER_NAME, opening, position
    if not seen & 1 << VALUE:
        return NO_HEADER_VALUE, opening, position
    status, position, _ = put_text(source, name_at, name_behind, name_length, name_encoded, 1, out, position)
    if status != GOOD:
        return status, name_at, position
    status, position, _ = put_text(
        source, value_at, value_behind, value_length, value_encoded, 1, out, position
    )
    return status, (at if status == GOOD else value_at), position


@inline
def _short_header(source, at, end, out, position):
    """One header "name":"text" of an object of headers, as `_header`. A name may come twice, as it may in a
    record: to look for that would take a time that grows with the square of the line."""
    if not is_at(source, at, end, _QUOTE):
        return NO_NAME, at, position
    status, behind, length = _string(source, at, end)
    if status != GOOD:
        return status, behind, position
    status, position, _ = put_text(source, at, behind, length, 0, 1, out, position)
    if status != GOOD:
        return status, at, position
    at = skip_space(source, behind, end)
    if not is_at(source, at, end, 58):
        return NO_COLON, at, position
    at = skip_space(source, at + 1, end)
    status, behind, length = check_text(source, at, end)
    if status != GOOD:
        return status, behind, position
    status, position, _ = put_text(source, at, behind, length, 0, 1, out, position)
    return status, (behind if status == GOOD else at), position


@inline
def read_headers(source, at, end, out, position):
    """The headers at source[at:] to out[position:]: status, position behind them or of what is wrong, start and
    length in `out`, and position behind them there. No headers have the length 0."""
    if _is_null(source, at, end):
        return GOOD, at + 4, position, 0, position
    is_array = is_at(source, at, end, 91)
    if not is_array and not is_at(source, at, end, 123):
        return NO_HEADERS, at, position, 0, position
    closing = 93 if is_array else 125
    at = skip_space(source, at + 1, end)
    if is_at(source, at, end, closing):
        return GOOD, at + 1, position, 0, position
    # Their number comes first, and is known last: it is written right before the first of them.
    if out.size - position < MOST_OF_A_VARINT:
        return NO_ROOM, at, position, 0, position
    entries = position + MOST_OF_A_VARINT
    position = entries
    count = 0
    ended = 0
    while ended == 0:
        if is_array:
            status, at, position = _header(source, at, end, out, position)
        else:
            status, at, position = _short_header(source, at, end, out, position)
        if status != GOOD:
            return status, at, position, 0, position
        count += 1
        status, at, ended = next_element(source, at, end, closing)
        if status != GOOD:
            return status, at, position, 0, position
    start = entries - varint_size(count)
    write_varint(out, start, count)
    return GOOD, at, start, position - start, position
