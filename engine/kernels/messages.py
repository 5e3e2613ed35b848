"""Kafka's own messages as JSON. `topicfs.engine.format.messages` draws them, and lists their fields.

    key      {"type":1,"data":{"group":"readers","topic":"orders","partition":0}}
    value    {"version":3,"data":{"offset":5,…}}
    value    {"type":"TOPIC_RECORD","version":0,"data":{…}} in the metadata of a cluster

These are the lines that Kafka's own tools print. One interpreter goes through a message by the table of its fields, and
writes as it reads; where it is given no `out` it only counts, by the same code. A message that does not end where its
bytes end is none: the caller shows the bytes.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from topicfs.engine.format.messages import (
    CONSUMER_PROTOCOL,
    OF_TOPICS,
    Field,
    Message,
    messages_of,
    protocols,
)
from topicfs.engine.kernels.compile import INT, READ, WRITE, inline, kernel, results
from topicfs.engine.kernels.escapes import QUOTE, json_size, put_json
from topicfs.engine.kernels.numbers import base64_size, decimal_size, put_base64, put_decimal
from topicfs.engine.kernels.scan import int16_at, int32_at, int64_at
from topicfs.engine.kernels.varint import MALFORMED, copy, read_unsigned

NONE = 0
"""In place of a topic's number: its records are not Kafka's own."""

_TOPICS = tuple(OF_TOPICS)
CLUSTER = 1 + _TOPICS.index("__cluster_metadata")
"""The number of the metadata of a cluster, whose values name their type, and whose records have no keys."""

# -- the tables ---------------------------------------------------------------------------------------

_TYPES = (
    "bool", "int8", "int16", "uint16", "int32", "int64", "float64",
    "uuid", "string", "protocol", "bytes", "{}",
)  # fmt: skip
_BOOL, _INT8, _INT16, _UINT16, _INT32, _INT64, _FLOAT64 = range(7)
_UUID, _STRING, _PROTOCOL, _BYTES, _STRUCTURE = range(7, 12)
_SIZES = np.array([1, 1, 2, 2, 4, 8, 8, 16, 0, 0, 0, 0])
"""Bytes of a value of each type; 0 where these differ."""

_TYPE, _IS_ARRAY, _MAY_BE_NULL, _FIRST, _LAST, _TAG, _INNER, _NAME, _NAME_SIZE = range(9)
"""The columns of a field. _INNER is the row of its structure, or of the message that its bytes are; -1 for none. _NAME
is where its name lies in _TEXT, with its quotes and the colon."""

_FIELDS_FROM, _FIELDS_END, _LATEST, _FLEXIBLE, _LABEL, _LABEL_SIZE = range(6)
"""The columns of a structure, and of a message, which is one."""


class _Tables:
    """The tables while they grow.

    text    names of fields and messages, one behind the other
    fields  a row for each field; those of a shape lie together
    shapes  a row for each message and each structure
    rows    the row of each message, by its name
    """

    def __init__(self) -> None:
        self.text = bytearray()
        self.fields: list[tuple[int, ...]] = []
        self.shapes: list[tuple[int, ...]] = []
        self.rows: dict[str, int] = {}

    def add(self, message: Message) -> int:
        """Add a message, and return its row."""
        label = re.sub(r"\B(?=[A-Z])", "_", message.name).upper()
        row = self._add_shape(message.fields, message.last, message.flexible, f'"{label}"')
        self.rows[message.name] = row
        return row

    def _add_shape(self, fields: tuple[Field, ...], latest: int, flexible: int, label: str) -> int:
        row, first = len(self.shapes), len(self.fields)
        end = first + len(fields)
        self.shapes.append((first, end, latest, flexible, *self._add_text(label)))
        self.fields += [()] * len(fields)
        for at, field in enumerate(fields, first):
            inner = -1 if field.message is None else self.rows[field.message]
            if field.type == "{}":
                inner = self._add_shape(field.fields, latest, flexible, "")
            tag = -1 if field.tag is None else field.tag
            self.fields[at] = (
                _TYPES.index(field.type), field.is_array, field.may_be_null, field.first, field.last, tag, inner,
                *self._add_text(f'"{field.name}":'),
            )  # fmt: skip
        return row

    def _add_text(self, text: str) -> tuple[int, int]:
        start = len(self.text)
        self.text += text.encode()
        return start, len(text)


def _tables() -> tuple[Any, ...]:
    """Return the tables: fields, shapes, text, and the rows of keys and of values by topic and type, -1 for none."""
    tables = _Tables()
    for message in protocols():
        tables.add(message)
    most = 1 + max(message.type or 0 for topic in _TOPICS for message in messages_of(topic))
    rows = np.full((2, 1 + len(_TOPICS), most), -1)
    for number, topic in enumerate(_TOPICS, 1):
        for message in messages_of(topic):
            rows[0 if message.name.endswith("Key") else 1, number, message.type] = tables.add(message)
    text = np.frombuffer(bytes(tables.text), np.uint8)
    return np.array(tables.fields), np.array(tables.shapes), text, rows[0].copy(), rows[1].copy()


_FIELDS, _SHAPES, _TEXT, _KEYS, _VALUES = _tables()


def topic_of(name: str) -> int:
    """The number by which these kernels know a topic; NONE for one that is not Kafka's own."""
    return 1 + _TOPICS.index(name) if name in _TOPICS else NONE


# -- writing, or counting where `out` is None -----------------------------------------------------------

_COMMA, _OPENING, _CLOSING, _ARRAY, _ARRAY_END = b",{}[]"
_CONSUMER = np.frombuffer(CONSUMER_PROTOCOL.encode(), np.uint8)
_TRUE = np.frombuffer(b"true", np.uint8)
_FALSE = np.frombuffer(b"false", np.uint8)
_NULL = np.frombuffer(b"null", np.uint8)
_TYPE_IS = np.frombuffer(b'{"type":', np.uint8)
_VERSION_IS = np.frombuffer(b'{"version":', np.uint8)
_AND_VERSION = np.frombuffer(b',"version":', np.uint8)
_DATA_IS = np.frombuffer(b',"data":', np.uint8)
_URL_SAFE = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_", np.uint8)
_UUID_BYTES = 16
_UUID_DIGITS = 22


@inline
def _fits(out, position, size):
    """Whether there is room for so many bytes. Bytes that should be a message may turn out to be none when more
    has been written than they take as bytes: what goes beyond `out` is counted only, and taken back."""
    return size <= out.size - position


@inline
def _put_byte(out, position, byte):
    if out is not None and _fits(out, position, 1):
        out[position] = byte
    return position + 1


@inline
def _put_piece(out, position, piece, start, size):
    if out is not None and _fits(out, position, size):
        copy(out, position, piece, start, size)
    return position + size


@inline
def _put(out, position, piece):
    return _put_piece(out, position, piece, 0, piece.size)


@inline
def _put_number(out, position, value):
    size = decimal_size(value)
    if out is not None and _fits(out, position, size):
        put_decimal(out, position, value)
    return position + size


@inline
def _put_text(out, position, buffer, at, end):
    """The text in quotes; MALFORMED where it is not UTF-8."""
    size = json_size(buffer, at, end)
    if size < 0:
        return np.int64(MALFORMED)
    position = _put_byte(out, position, QUOTE)
    if out is not None and _fits(out, position, size):
        put_json(out, position, buffer, at, end)
    return _put_byte(out, position + size, QUOTE)


@inline
def _put_bytes(out, position, buffer, at, end):
    """The bytes as base64, in quotes."""
    position = _put_byte(out, position, QUOTE)
    size = base64_size(end - at)
    if out is not None and _fits(out, position, size):
        put_base64(out, position, buffer, at, end)
    return _put_byte(out, position + size, QUOTE)


@inline
def _put_uuid(out, position, buffer, at):
    """A uuid as Kafka shows it: base64 of the alphabet for URLs, without padding."""
    position = _put_byte(out, position, QUOTE)
    for digit in range(_UUID_DIGITS):
        bit = 6 * digit
        first = at + bit // 8
        pair = types.int64(buffer[first]) << 8
        if first + 1 < at + _UUID_BYTES:
            pair |= types.int64(buffer[first + 1])
        position = _put_byte(out, position, _URL_SAFE[pair >> (10 - bit % 8) & 63])
    return _put_byte(out, position, QUOTE)


@inline
def _put_float(out, position, bits):
    """A number of up to 15 decimals and 53 bits; MALFORMED for others, such as infinity."""
    value = np.int64(bits).view(np.float64)
    if not (-9007199254740992.0 < value < 9007199254740992.0):
        return np.int64(MALFORMED)
    scale, decimals = 1.0, 0
    whole = np.rint(value)
    # The quotient of two integers that a double holds exactly is the double next to the decimal number.
    while whole / scale != value:
        scale *= 10.0
        decimals += 1
        whole = np.rint(value * scale)
        if decimals > 15 or not (-9007199254740992.0 < whole < 9007199254740992.0):
            return np.int64(MALFORMED)
    if value < 0 or bits < 0:
        position = _put_byte(out, position, 45)
    number = types.int64(abs(whole))
    power = types.int64(scale)
    position = _put_number(out, position, number // power)
    if decimals > 0:
        position = _put_byte(out, position, 46)
        rest = number % power
        for _ in range(decimals):
            power //= 10
            position = _put_byte(out, position, types.uint8(48 + rest // power % 10))
    return position


_NO_FIELD = -1
_NO_TAGS = -1

_SHAPE, _FIELD, _TAGS, _LAST_TAG, _END, _LIMIT, _VERSION, _IS_FLEXIBLE, _OF_CONSUMERS, _LEFT = range(10)
_BYTES_AT, _BYTES_END, _POSITION, _WIDTH = range(10, 14)
"""What is kept around a structure, and the number of these. _BYTES_AT and _BYTES_END are of bytes that may be a
message, with _POSITION of where they go; a structure has MALFORMED."""

_DEEPEST = 8
_LONG = ir.IntType(64)


@intrinsic
def _stack(_context):
    """Room for what is around structures that lie so deep in each other."""

    def generate(_context, builder, _signature, _arguments):
        room = cgutils.alloca_once(builder, ir.ArrayType(_LONG, _DEEPEST * _WIDTH))
        return builder.bitcast(room, _LONG.as_pointer())

    return types.CPointer(types.int64)(), generate


# -- reading ----------------------------------------------------------------------------------------------


@inline
def _read_length(buffer, at, end, is_flexible, wide):
    """A length or a number of elements, -1 for null, and the position behind it; else MALFORMED. Not more than there
    are bytes, of which each element has at least one. `wide`: in fixed versions it has 32 bits, else 16."""
    if is_flexible == 1:
        length, at = read_unsigned(buffer, at, end)
        length -= 1
    elif end - at < (4 if wide else 2):
        return np.int64(0), np.int64(MALFORMED)
    elif wide:
        length = int32_at(buffer, at)
        at += 4
    else:
        length = int16_at(buffer, at)
        at += 2
    if at == MALFORMED or length < -1 or length > end - at:
        return np.int64(0), np.int64(MALFORMED)
    return length, at


@inline
def _is_consumer(buffer, at, end):
    same = 0
    while same < min(end - at, _CONSUMER.size) and buffer[at + same] == _CONSUMER[same]:
        same += 1
    return same == end - at == _CONSUMER.size


@inline
def _tagged(shape, tag, version):
    """The row of a field with this tag; _NO_FIELD where none is known."""
    for field in range(_SHAPES[shape, _FIELDS_FROM], _SHAPES[shape, _FIELDS_END]):
        if _FIELDS[field, _TAG] == tag and _FIELDS[field, _FIRST] <= version <= _FIELDS[field, _LAST]:
            return field
    return _NO_FIELD


@inline
def _before_fields(shape):
    return _SHAPES[shape, _FIELDS_FROM] - 1


@inline
def _next_field(buffer, at, end, shape, field, version, is_flexible, tags, tag):
    """The field behind `field` that this version has, or _NO_FIELD at the end; how many tagged ones are to come,
    _NO_TAGS before them; the tag of the last; position of the field, or MALFORMED; and where a tagged one must end."""
    while tags == _NO_TAGS:
        field += 1
        if field < _SHAPES[shape, _FIELDS_END]:
            if _FIELDS[field, _TAG] < 0 and _FIELDS[field, _FIRST] <= version <= _FIELDS[field, _LAST]:
                return field, tags, tag, at, end
        elif is_flexible:
            tags, at = read_unsigned(buffer, at, end)
            if at == MALFORMED:
                return _NO_FIELD, tags, tag, at, end
        else:
            tags = np.int64(0)
    while tags > 0:
        tags -= 1
        before = tag
        tag, at = read_unsigned(buffer, at, end)
        if at == MALFORMED or tag <= before:
            return _NO_FIELD, tags, tag, np.int64(MALFORMED), end
        size, at = read_unsigned(buffer, at, end)
        if at == MALFORMED or size > end - at:
            return _NO_FIELD, tags, tag, np.int64(MALFORMED), end
        field = _tagged(shape, tag, version)
        if field != _NO_FIELD:
            return field, tags, tag, at, at + size
        at += size
    return _NO_FIELD, tags, tag, at, end


@inline
def _count_values(buffer, at, end, field, is_flexible):
    """How many values a field has, -1 where the array or the structure is null, and position behind their number, or
    MALFORMED."""
    may_be_null = _FIELDS[field, _MAY_BE_NULL] == 1
    count = np.int64(1)
    if _FIELDS[field, _IS_ARRAY] == 1:
        count, at = _read_length(buffer, at, end, is_flexible, True)
    elif _FIELDS[field, _TYPE] == _STRUCTURE and may_be_null:
        if at == end:
            return count, np.int64(MALFORMED)
        # Null is -1, and 0 in a tagged field.
        if not 0 < buffer[at] < 128:
            count = np.int64(-1)
        at += 1
    if count < 0 and not may_be_null:
        at = np.int64(MALFORMED)
    return count, at


@inline
def _find_value(buffer, at, end, kind, is_flexible):
    """Where the bytes of a value begin, MALFORMED for null, and where they end, or MALFORMED."""
    length = _SIZES[kind]
    if length == 0:
        length, at = _read_length(buffer, at, end, is_flexible, kind == _BYTES)
        if at == MALFORMED:
            return at, at
        if length < 0:
            return np.int64(MALFORMED), at
    if length > end - at:
        return at, np.int64(MALFORMED)
    return at, at + length


@inline
def _put_value(buffer, at, end, kind, out, position):
    """A value that has no fields, in buffer[at:end]: position behind it in `out`, or MALFORMED."""
    if kind == _BYTES:
        return _put_bytes(out, position, buffer, at, end)
    if kind in (_STRING, _PROTOCOL):
        return _put_text(out, position, buffer, at, end)
    if kind == _UUID:
        return _put_uuid(out, position, buffer, at)
    if kind == _FLOAT64:
        return _put_float(out, position, int64_at(buffer, at))
    if kind == _BOOL:
        return _put(out, position, _TRUE) if buffer[at] != 0 else _put(out, position, _FALSE)
    if kind == _INT64:
        number = int64_at(buffer, at)
    elif kind == _INT32:
        number = int32_at(buffer, at)
    elif kind == _INT8:
        number = types.int64(buffer[at]) - (256 if buffer[at] > 127 else 0)
    else:
        number = int16_at(buffer, at)
        if kind == _UINT16:
            number &= 0xFFFF
    return _put_number(out, position, number)


@inline
def _put_message(buffer, at, end, message, version, out, position):
    """A message as an object: position behind it, or MALFORMED, and position behind the object in `out`.

    Each turn of the loop reads one value, or begins or ends a field, a structure or a message in a field. What is
    around a structure is kept in a stack while its fields are read: numba does not keep the code of functions that call
    themselves. Tagged fields that are not known are passed over, as Kafka does. Bytes that should be a message and are
    none are shown as bytes."""
    if not 0 <= version <= _SHAPES[message, _LATEST]:
        return np.int64(MALFORMED), position
    frames, depth = _stack(), 0
    shape, is_flexible, of_consumers = message, version >= _SHAPES[message, _FLEXIBLE], False
    field, tags, tag, limit = _before_fields(shape), _NO_TAGS, _NO_TAGS, end
    is_field, is_array, has_fields, has_values, left = False, False, False, False, np.int64(0)
    position = _put_byte(out, position, _OPENING)
    while True:
        top = _WIDTH * (depth - 1)
        if at == MALFORMED:
            while depth > 0 and frames[top + _BYTES_AT] == MALFORMED:
                depth -= 1
                top -= _WIDTH
            if depth == 0:
                return at, position
            at = frames[top + _BYTES_END]
            position = _put_bytes(out, frames[top + _POSITION], buffer, frames[top + _BYTES_AT], at)
        elif left > 0:
            left -= 1
            if has_values:
                position = _put_byte(out, position, _COMMA)
            has_values = True
            kind, bytes_at, begun = _FIELDS[field, _TYPE], np.int64(MALFORMED), position
            if kind != _STRUCTURE:
                start, at = _find_value(buffer, at, limit, kind, is_flexible)
                if at == MALFORMED:
                    continue
                if start == MALFORMED:  # null
                    if is_array or _FIELDS[field, _MAY_BE_NULL] == 0:
                        at = np.int64(MALFORMED)
                    position = _put(out, position, _NULL)
                    continue
                if kind == _PROTOCOL:
                    of_consumers = _is_consumer(buffer, start, at)
                is_message = of_consumers and _FIELDS[field, _INNER] >= 0 and at - start >= 2
                if not is_message:
                    position = _put_value(buffer, start, at, kind, out, position)
                    if position == MALFORMED:
                        at = np.int64(MALFORMED)
                    continue
                bytes_at = start
            if depth == _DEEPEST:
                at = np.int64(MALFORMED)
                continue
            top += _WIDTH
            depth += 1
            frames[top + _SHAPE] = shape
            frames[top + _FIELD] = field
            frames[top + _TAGS] = tags
            frames[top + _LAST_TAG] = tag
            frames[top + _END] = end
            frames[top + _LIMIT] = limit
            frames[top + _VERSION] = version
            frames[top + _IS_FLEXIBLE] = is_flexible
            frames[top + _OF_CONSUMERS] = of_consumers
            frames[top + _LEFT] = left
            frames[top + _BYTES_AT] = bytes_at
            frames[top + _BYTES_END] = at
            frames[top + _POSITION] = begun
            shape, end = _FIELDS[field, _INNER], limit
            if bytes_at != MALFORMED:
                end = at
                version, is_flexible, of_consumers = int16_at(buffer, bytes_at), False, False
                at = bytes_at + 2 if 0 <= version <= _SHAPES[shape, _LATEST] else np.int64(MALFORMED)
            field, tags, tag, limit = _before_fields(shape), _NO_TAGS, _NO_TAGS, end
            is_field, has_fields, left = False, False, np.int64(0)
            position = _put_byte(out, position, _OPENING)
            continue
        elif is_field:
            is_field = False
            if is_array:
                position = _put_byte(out, position, _ARRAY_END)
            if tags >= 0 and at != limit:
                at = np.int64(MALFORMED)
            continue
        else:
            field, tags, tag, at, limit = _next_field(
                buffer, at, end, shape, field, version, is_flexible, tags, tag
            )
            if at == MALFORMED:
                continue
            if field != _NO_FIELD:
                if has_fields:
                    position = _put_byte(out, position, _COMMA)
                is_field, has_fields, has_values = True, True, False
                position = _put_piece(out, position, _TEXT, _FIELDS[field, _NAME], _FIELDS[field, _NAME_SIZE])
                left, at = _count_values(buffer, at, limit, field, is_flexible)
                is_array = _FIELDS[field, _IS_ARRAY] == 1 and left >= 0
                if left < 0:
                    position = _put(out, position, _NULL)
                elif is_array:
                    position = _put_byte(out, position, _ARRAY)
                continue
            position = _put_byte(out, position, _CLOSING)
            if depth == 0:
                return at, position
            if frames[top + _BYTES_AT] != MALFORMED and at != frames[top + _BYTES_END]:
                at = np.int64(MALFORMED)
                continue
        # A structure or a message has ended.
        depth -= 1
        shape = frames[top + _SHAPE]
        field = frames[top + _FIELD]
        tags = frames[top + _TAGS]
        tag = frames[top + _LAST_TAG]
        end = frames[top + _END]
        limit = frames[top + _LIMIT]
        version = frames[top + _VERSION]
        is_flexible = frames[top + _IS_FLEXIBLE] == 1
        of_consumers = frames[top + _OF_CONSUMERS] == 1
        left = frames[top + _LEFT]
        is_field, has_fields, has_values = True, True, True
        is_array = _FIELDS[field, _IS_ARRAY] == 1


@inline
def _row_of(rows, topic, kind):
    return rows[topic, kind] if 0 <= kind < rows.shape[1] else -1


@inline
def _put_data(buffer, at, end, message, version, out, position):
    """The message that ends a key or value, and the end of its object: position behind it in `out`, or MALFORMED."""
    behind, position = _put_message(buffer, at, end, message, version, out, _put(out, position, _DATA_IS))
    return _put_byte(out, position, _CLOSING) if behind == end else np.int64(MALFORMED)


@inline
def _put_key(topic, buffer, key, key_length, out, position):
    if key_length < 2:
        return np.int64(MALFORMED)
    kind = int16_at(buffer, key)
    message = _row_of(_KEYS, topic, kind)
    if message < 0:
        return np.int64(MALFORMED)
    position = _put_number(out, _put(out, position, _TYPE_IS), kind)
    return _put_data(buffer, key + 2, key + key_length, message, np.int64(0), out, position)


@inline
def _put_record_value(topic, buffer, kind, value, value_length, out, position):
    """A value. `kind` is the type that its key tells; a value of the metadata tells its own."""
    end = value + max(value_length, 0)
    at = value
    if topic == CLUSTER:
        frame, at = read_unsigned(buffer, at, end)
        if at == MALFORMED or frame != 1:
            return np.int64(MALFORMED)
        kind, at = read_unsigned(buffer, at, end)
        if at == MALFORMED:
            return at
        version, at = read_unsigned(buffer, at, end)
    elif value_length < 2:
        return np.int64(MALFORMED)
    else:
        version, at = int16_at(buffer, at), at + 2
    message = _row_of(_VALUES, topic, kind)
    if at == MALFORMED or message < 0:
        return np.int64(MALFORMED)
    if topic == CLUSTER:
        position = _put(out, position, _TYPE_IS)
        position = _put_piece(out, position, _TEXT, _SHAPES[message, _LABEL], _SHAPES[message, _LABEL_SIZE])
        position = _put(out, position, _AND_VERSION)
    else:
        position = _put(out, position, _VERSION_IS)
    return _put_data(buffer, at, end, message, version, out, _put_number(out, position, version))


@inline
def _are_spans(buffer, key, key_length, value, value_length):
    return (
        0 <= key <= buffer.size
        and key_length <= buffer.size - key
        and 0 <= value <= buffer.size
        and value_length <= buffer.size - value
    )


@kernel(results(INT, INT), INT, READ, INT, INT, INT, INT)
def measure(topic, buffer, key, key_length, value, value_length):
    """Bytes that a record's key and value take as JSON; MALFORMED for one that is no message, or null. A value is none
    where its key is none, except in the metadata of a cluster."""
    bad = np.int64(MALFORMED)
    if not 0 < topic < _KEYS.shape[0] or not _are_spans(buffer, key, key_length, value, value_length):
        return bad, bad
    key_size = _put_key(topic, buffer, key, key_length, None, np.int64(0))
    if key_size == MALFORMED and topic != CLUSTER:
        return bad, bad
    kind = int16_at(buffer, key) if key_size != MALFORMED else np.int64(0)
    return key_size, _put_record_value(topic, buffer, kind, value, value_length, None, np.int64(0))


@kernel(INT, INT, READ, INT, INT, WRITE, INT)
def write_key(topic, buffer, key, key_length, out, position):
    """Write a key of which `measure` gave a size: there is room for it. Gives the position behind it."""
    return _put_key(topic, buffer, key, key_length, out, position)


@kernel(INT, INT, READ, INT, INT, INT, WRITE, INT)
def write_value(topic, buffer, key, value, value_length, out, position):
    """Write a value of which `measure` gave a size: there is room for it. Gives the position behind it."""
    kind = int16_at(buffer, key) if topic != CLUSTER else np.int64(0)
    return _put_record_value(topic, buffer, kind, value, value_length, out, position)
