"""Batches and their records → the lines of a dump, as Kafka's tool prints them, or as JSON.

Text
    baseOffset: 0 lastOffset: 1 count: 2 … isvalid: true           a batch
    | offset: 0 CreateTime: 17… keySize: 1 … headerKeys: []        a record, where DEEP is asked for
    … key: k payload: v                                            with CONTENT; null is left out
    … key: {"type":"2","data":{…}} payload: {"version":"3",…}      with CONTENT and a TOPIC; <DELETE> for null
Bytes that are no UTF-8 become U+FFFD, as many as Java makes of them.

JSON
    {"type":"batch","baseOffset":0,…}
    {"type":"record","offset":0,…,"headers":[{"key":"h"}]}         with CONTENT key and value, also of headers
    … "key":{"type":2,"data":{…}},"value":{"version":3,…}}         with CONTENT and a TOPIC

A line is written only where the most that it may take has room. Behind it, up to 15 bytes may have been written.
"""

from __future__ import annotations

import numpy as np
from numba import types

from topicfs.engine.format.batch_header import (
    ABORT,
    CODEC_MASK,
    COMMIT,
    CONTROL,
    DELETE_HORIZON,
    HEADER_SIZE,
    LOG_APPEND_TIME,
    SIZE_OVERHEAD,
    TRANSACTIONAL,
)
from topicfs.engine.kernels.compile import INT, LONGS, READ, WRITE, inline, kernel, results
from topicfs.engine.kernels.crc import crc32c_of
from topicfs.engine.kernels.decode import BAD_LENGTH, BAD_OFFSET, GOOD, TOO_FEW, TOO_MANY, walk_record
from topicfs.engine.kernels.escapes import QUOTE, utf8_end
from topicfs.engine.kernels.members import MOST_OF_A_BYTE, put_literal, put_member
from topicfs.engine.kernels.messages import CLUSTER, NONE, measure, write_key, write_value
from topicfs.engine.kernels.numbers import put_base64, put_decimal
from topicfs.engine.kernels.scan import (
    BAD_CRC,
    BAD_OFFSETS,
    DONE,
    PARTIAL,
    int16_at,
    int32_at,
    int64_at,
    offsets_are_possible,
    status_of_head,
)
from topicfs.engine.kernels.varint import MALFORMED, copy, read_varint

DEEP = 1
CONTENT = 2
NO_METADATA = 4
JSON = 8
SILENT = 16
"""What is written: records too, their keys and values, nothing but these, JSON, or nothing at all."""

AT = 0
INDEX = 1
PLACE = 2
BEFORE = 3
PENDING = 4
FIRST_OFFSET = 5
END_OFFSET = 6
FIRST_TIME = 7
END_TIME = 8
TOPIC = 9
STATE = 10
"""The state of a walk, an array of numbers.

AT            where the batch begins in the buffer
INDEX         the next of its records, -1 before its own line was written
PLACE         where that record begins in the records
BEFORE        the offset delta of the record before it
PENDING       where in `out` the batch's line begins, while it may be taken back as no record of it was wanted; else -1
FIRST_OFFSET  the lowest wanted offset
END_OFFSET    the lowest offset behind the wanted ones
FIRST_TIME    the lowest wanted timestamp
END_TIME      the lowest timestamp behind the wanted ones
TOPIC         whose messages keys and values are, see `messages.topic_of`
"""

ENDED = 0
COMPRESSED = 1
NO_ROOM = 2
BAD_BATCH = 3
BAD_RECORD = 4
"""Why a walk stopped: no whole batch is left, the records of a batch have to be decompressed, `out` is full; a batch or
record has a problem, of `scan` or of `decode`. A walk that goes on passes over a record's problem, and over a batch's
where its line was written."""

LEADER_CHANGE = 2
SNAPSHOT_HEADER = 3
SNAPSHOT_FOOTER = 4
KRAFT_VERSION = 5
KRAFT_VOTERS = 6
"""Kinds of control records that only a controller writes."""

_MAX_INT32 = 2**31 - 1
_MAX_INT64 = 2**63 - 1
_MIN_INT64 = -(2**63)
_NO_SEQUENCE = -1

_MOST_OF_A_BATCH = 1024
_MOST_BESIDE_CONTENT = 512
_MOST_OF_A_TEXT_BYTE = 3  # U+FFFD
_MOST_OF_A_HEADERS_BYTE = 18  # no name, null: {"key":"","value":null} and a comma, 24 bytes of 2

_MOST_OF_A_VOTERS_BYTE = 6  # {"voterId":-2147483648} and a comma of 5

_NEWLINE = 10
_COMMA = 44
_CLOSING_BRACE = 125


@inline
def _malformed_size(source, at, end):
    """How many of the bytes source[at:end], which begin with none of UTF-8's, Java shows as one U+FFFD."""
    first = source[at]
    left = end - at
    if first < 0xE0 or first > 0xF4 or left == 1:
        return 1
    second = source[at + 1]
    if second & 0xC0 != 0x80:
        return 1
    if first < 0xF0:
        if first == 0xE0 and second < 0xA0:
            return 1
        # A surrogate is three bytes of a good form.
        return 3 if left > 2 and source[at + 2] & 0xC0 == 0x80 else 2
    if (first == 0xF0 and second < 0x90) or (first == 0xF4 and second > 0x8F):
        return 1
    return 3 if left > 2 and source[at + 2] & 0xC0 == 0x80 else 2


@inline
def _put_utf8(out, position, source, at, length):
    """Write source[at:at+length]; what is no UTF-8 becomes U+FFFD."""
    end = at + length
    while at < end:
        good = utf8_end(source, at, end)
        copy(out, position, source, at, good - at)
        position += good - at
        at = good
        if at < end:
            out[position] = 0xEF
            out[position + 1] = 0xBF
            out[position + 2] = 0xBD
            position += 3
            at += _malformed_size(source, at, end)
    return position


@inline
def _sequence(base, by):
    """The sequence number `by` records behind another one: after 2^31-1 comes 0."""
    return by - (_MAX_INT32 - base) - 1 if base > _MAX_INT32 - by else base + by


@inline
def _put_codec(to, position, codec):
    if codec == 0:
        return put_literal(to, position, "none")
    if codec == 1:
        return put_literal(to, position, "gzip")
    if codec == 2:
        return put_literal(to, position, "snappy")
    if codec == 3:
        return put_literal(to, position, "lz4")
    if codec == 4:
        return put_literal(to, position, "zstd")
    return put_literal(to, position, "unknown")


@inline
def _put_truth(to, position, truth):
    return put_literal(to, position, "true") if truth else put_literal(to, position, "false")


@inline
def _put_time_type(to, position, attributes):
    if attributes & LOG_APPEND_TIME:
        return put_literal(to, position, "LogAppendTime")
    return put_literal(to, position, "CreateTime")


@inline
def _put_batch(out, position, buffer, at, size, file_position, is_valid):
    to = types.uintp(out.ctypes.data)
    base, last = int64_at(buffer, at), int32_at(buffer, at + 23)
    attributes = int16_at(buffer, at + 21)
    sequence = int32_at(buffer, at + 53)
    position = put_decimal(out, put_literal(to, position, "baseOffset: "), base)
    position = put_decimal(out, put_literal(to, position, " lastOffset: "), base + last)
    position = put_decimal(out, put_literal(to, position, " count: "), int32_at(buffer, at + 57))
    position = put_decimal(out, put_literal(to, position, " baseSequence: "), sequence)
    sequence = sequence if sequence == _NO_SEQUENCE else _sequence(sequence, last)
    position = put_decimal(out, put_literal(to, position, " lastSequence: "), sequence)
    position = put_decimal(out, put_literal(to, position, " producerId: "), int64_at(buffer, at + 43))
    position = put_decimal(out, put_literal(to, position, " producerEpoch: "), int16_at(buffer, at + 51))
    position = put_decimal(
        out, put_literal(to, position, " partitionLeaderEpoch: "), int32_at(buffer, at + 12)
    )
    position = _put_truth(
        to, put_literal(to, position, " isTransactional: "), attributes & TRANSACTIONAL != 0
    )
    position = _put_truth(to, put_literal(to, position, " isControl: "), attributes & CONTROL != 0)
    if attributes & DELETE_HORIZON:
        position = put_literal(to, position, " deleteHorizonMs: OptionalLong[")
        position = put_literal(to, put_decimal(out, position, int64_at(buffer, at + 27)), "]")
    else:
        position = put_literal(to, position, " deleteHorizonMs: OptionalLong.empty")
    position = put_decimal(out, put_literal(to, position, " position: "), file_position)
    position = _put_time_type(to, put_literal(to, position, " "), attributes)
    position = put_decimal(out, put_literal(to, position, ": "), int64_at(buffer, at + 35))
    position = put_decimal(out, put_literal(to, position, " size: "), size)
    position = _put_codec(to, put_literal(to, position, " magic: 2 compresscodec: "), attributes & CODEC_MASK)
    position = put_decimal(out, put_literal(to, position, " crc: "), int32_at(buffer, at + 17) & 0xFFFFFFFF)
    position = _put_truth(to, put_literal(to, position, " isvalid: "), is_valid)
    return put_literal(to, position, "\n")


@inline
def _put_json_batch(out, position, buffer, at, size, file_position, is_valid):
    to = types.uintp(out.ctypes.data)
    base, last = int64_at(buffer, at), int32_at(buffer, at + 23)
    attributes = int16_at(buffer, at + 21)
    sequence = int32_at(buffer, at + 53)
    position = put_decimal(out, put_literal(to, position, '{"type":"batch","baseOffset":'), base)
    position = put_decimal(out, put_literal(to, position, ',"lastOffset":'), base + last)
    position = put_decimal(out, put_literal(to, position, ',"count":'), int32_at(buffer, at + 57))
    position = put_decimal(out, put_literal(to, position, ',"baseSequence":'), sequence)
    sequence = sequence if sequence == _NO_SEQUENCE else _sequence(sequence, last)
    position = put_decimal(out, put_literal(to, position, ',"lastSequence":'), sequence)
    position = put_decimal(out, put_literal(to, position, ',"producerId":'), int64_at(buffer, at + 43))
    position = put_decimal(out, put_literal(to, position, ',"producerEpoch":'), int16_at(buffer, at + 51))
    position = put_decimal(
        out, put_literal(to, position, ',"partitionLeaderEpoch":'), int32_at(buffer, at + 12)
    )
    position = _put_truth(
        to, put_literal(to, position, ',"isTransactional":'), attributes & TRANSACTIONAL != 0
    )
    position = _put_truth(to, put_literal(to, position, ',"isControl":'), attributes & CONTROL != 0)
    position = put_literal(to, position, ',"deleteHorizonMs":')
    if attributes & DELETE_HORIZON:
        position = put_decimal(out, position, int64_at(buffer, at + 27))
    else:
        position = put_literal(to, position, "null")
    position = put_decimal(out, put_literal(to, position, ',"position":'), file_position)
    position = _put_time_type(to, put_literal(to, position, ',"timestampType":"'), attributes)
    position = put_decimal(out, put_literal(to, position, '","maxTimestamp":'), int64_at(buffer, at + 35))
    position = put_decimal(out, put_literal(to, position, ',"size":'), size)
    position = _put_codec(
        to, put_literal(to, position, ',"magic":2,"compresscodec":"'), attributes & CODEC_MASK
    )
    position = put_decimal(out, put_literal(to, position, '","crc":'), int32_at(buffer, at + 17) & 0xFFFFFFFF)
    position = _put_truth(to, put_literal(to, position, ',"isvalid":'), is_valid)
    return put_literal(to, position, "}\n")


@inline
def _put_kind(to, position, kind):
    """The name of a control record's kind."""
    if kind == ABORT:
        return put_literal(to, position, "ABORT")
    if kind == COMMIT:
        return put_literal(to, position, "COMMIT")
    if kind == LEADER_CHANGE:
        return put_literal(to, position, "LEADER_CHANGE")
    if kind == SNAPSHOT_HEADER:
        return put_literal(to, position, "SNAPSHOT_HEADER")
    if kind == SNAPSHOT_FOOTER:
        return put_literal(to, position, "SNAPSHOT_FOOTER")
    if kind == KRAFT_VERSION:
        return put_literal(to, position, "KRAFT_VERSION")
    if kind == KRAFT_VOTERS:
        return put_literal(to, position, "KRAFT_VOTERS")
    return put_literal(to, position, "UNKNOWN")


@inline
def _put_voters(out, position, body, at, end, version):
    """A list of a controller's voters, as JSON, and where it ends; -1 where its bytes are none. Lists of a hundred and
    more are taken for none."""
    to = types.uintp(out.ctypes.data)
    position = put_literal(to, position, "[")
    # An id, from version 1 on a directory's, and no further fields.
    size = 5 if version == 0 else 21
    if at >= end or body[at] == 0 or body[at] > 100 or (body[at] - 1) * size > end - at - 1:
        return position, -1
    count = types.int64(body[at]) - 1
    at += 1
    for index in range(count):
        if index > 0:
            position = put_literal(to, position, ",")
        position = put_decimal(out, put_literal(to, position, '{"voterId":'), int32_at(body, at))
        if version > 0:
            position = put_literal(to, position, ',"voterDirectoryId":"')
            # Kafka's ids are base64 for URLs, without padding.
            done = put_base64(out, position, body, at + 4, at + 20)
            for i in range(position, done):
                out[i] = 45 if out[i] == 43 else 95 if out[i] == 47 else out[i]
            position = put_literal(to, done - 2, '"')
        position = put_literal(to, position, "}")
        at += size
        if body[at - 1] != 0:
            return position, -1
    return put_literal(to, position, "]"), at


@inline
def _put_of_controller(out, position, body, kind, value, end, is_json):
    """What a controller's own record says, as JSON; -1 for one of another kind or form."""
    to = types.uintp(out.ctypes.data)
    if end - value < 3 or body[end - 1] != 0:
        return -1
    version = int16_at(body, value)
    if kind == LEADER_CHANGE and end - value > 6 and 0 <= version <= 1:
        if is_json:
            position = put_literal(to, position, ',"leaderChange":{"version":')
        else:
            position = put_literal(to, position, ' LeaderChange: {"version":')
        position = put_decimal(out, position, version)
        position = put_decimal(out, put_literal(to, position, ',"leaderId":'), int32_at(body, value + 2))
        position = put_literal(to, position, ',"voters":')
        position, at = _put_voters(out, position, body, value + 6, end - 1, version)
        if at < 0:
            return -1
        position = put_literal(to, position, ',"grantingVoters":')
        position, at = _put_voters(out, position, body, at, end - 1, version)
        return put_literal(to, position, "}") if at == end - 1 else -1
    if kind == SNAPSHOT_HEADER and end - value == 11 and version == 0:
        if is_json:
            position = put_literal(to, position, ',"snapshotHeader":')
        else:
            position = put_literal(to, position, " SnapshotHeader ")
        position = put_literal(to, position, '{"version":0,"lastContainedLogTimestamp":')
        return put_literal(to, put_decimal(out, position, int64_at(body, value + 2)), "}")
    if kind == SNAPSHOT_FOOTER and end - value == 3 and version == 0:
        if is_json:
            position = put_literal(to, position, ',"snapshotFooter":')
        else:
            position = put_literal(to, position, " SnapshotFooter ")
        return put_literal(to, position, '{"version":0}')
    if kind == KRAFT_VERSION and end - value == 5 and version == 0:
        if is_json:
            position = put_literal(to, position, ',"kRaftVersion":')
        else:
            position = put_literal(to, position, " KRaftVersion ")
        position = put_decimal(
            out, put_literal(to, position, '{"version":0,"kRaftVersion":'), int16_at(body, value + 2)
        )
        return put_literal(to, position, "}")
    return -1


@inline
def _put_control(out, position, body, key, key_length, value, value_length, is_json):
    """What a control record says: nothing where it is too short for it."""
    if key_length < 4:
        return position
    to = types.uintp(out.ctypes.data)
    kind = int16_at(body, key + 2)
    if kind in (ABORT, COMMIT):
        if value_length < 6:
            return position
        position = (
            put_literal(to, position, ',"endTxnMarker":"')
            if is_json
            else put_literal(to, position, " endTxnMarker: ")
        )
        position = _put_kind(to, position, kind)
        position = (
            put_literal(to, position, '","coordinatorEpoch":')
            if is_json
            else put_literal(to, position, " coordinatorEpoch: ")
        )
        return put_decimal(out, position, int32_at(body, value + 2))
    done = _put_of_controller(out, position, body, kind, value, value + value_length, is_json)
    if done >= 0:
        return done
    if is_json:
        position = _put_kind(to, put_literal(to, position, ',"controlType":"'), kind)
        return put_decimal(out, put_literal(to, position, '","controlTypeId":'), kind)
    position = _put_kind(to, put_literal(to, position, " controlType: "), kind)
    position = put_decimal(out, put_literal(to, position, "("), kind)
    return put_literal(to, position, ")")


@inline
def _put_names(out, position, body, at, end):
    """The names of a record's headers, whose section at body[at:end] has been walked, with commas between them."""
    count, at = read_varint(body, at, end)
    for index in range(count):
        if index > 0:
            out[position] = _COMMA
            position += 1
        length, at = read_varint(body, at, end)
        position = _put_utf8(out, position, body, at, length)
        at += length
        length, at = read_varint(body, at, end)
        at += max(length, 0)
    return position


@inline
def _quote_number(out, position, name_size):
    """Move the name that an object begins with two bytes back, to `position`, and have its number in quotes."""
    for at in range(position, position + name_size):
        out[at] = out[at + 2]
    at = position + name_size
    out[at] = QUOTE
    at += 1
    while out[at + 1] != _COMMA:
        out[at] = out[at + 1]
        at += 1
    out[at] = QUOTE


@inline
def _put_message_key(out, position, topic, body, key, key_length):
    """A key that is a message, as Kafka's tool prints it: {"type":"2","data":{…}}."""
    end = write_key(topic, body, key, key_length, out, position + 2)
    _quote_number(out, position, 8)
    return end


@inline
def _put_message_value(out, position, topic, body, key, value, value_length):
    """A value that is a message, as Kafka's tool prints it: {"version":"3","data":{…}}; the metadata of a cluster has
    no quotes there."""
    if topic == CLUSTER:
        return write_value(topic, body, key, value, value_length, out, position)
    end = write_value(topic, body, key, value, value_length, out, position + 2)
    _quote_number(out, position, 11)
    return end


@inline
def _put_json_headers(out, position, body, at, end, with_values):
    to = types.uintp(out.ctypes.data)
    count, at = read_varint(body, at, end)
    for index in range(count):
        if index > 0:
            out[position] = _COMMA
            position += 1
        length, at = read_varint(body, at, end)
        position = put_member(out, put_literal(to, position, '{"key'), body, at, length)
        at += length
        length, at = read_varint(body, at, end)
        if with_values:
            position = put_member(out, put_literal(to, position, ',"value'), body, at, length)
        at += max(length, 0)
        out[position] = _CLOSING_BRACE
        position += 1
    return position


@inline
def _put_record(
    out, position, body, options, attributes, offset, timestamp, sequence,
    key, key_length, value, value_length, headers, end, topic, is_key, is_value,
):  # fmt: skip
    to = types.uintp(out.ctypes.data)
    if options & NO_METADATA == 0:
        position = put_decimal(out, put_literal(to, position, "| offset: "), offset)
        if attributes & LOG_APPEND_TIME:
            position = put_literal(to, position, " LogAppendTime: ")
        else:
            position = put_literal(to, position, " CreateTime: ")
        position = put_decimal(out, position, timestamp)
        position = put_decimal(out, put_literal(to, position, " keySize: "), key_length)
        position = put_decimal(out, put_literal(to, position, " valueSize: "), value_length)
        position = put_decimal(out, put_literal(to, position, " sequence: "), sequence)
        position = put_literal(to, position, " headerKeys: [")
        if end - headers > 1:
            position = _put_names(out, position, body, headers, end)
        position = put_literal(to, position, "]")
        if attributes & CONTROL:
            position = _put_control(out, position, body, key, key_length, value, value_length, False)
    if options & CONTENT and attributes & CONTROL == 0:
        is_first = options & NO_METADATA != 0
        if key_length >= 0:
            position = (
                put_literal(to, position, "| key: ") if is_first else put_literal(to, position, " key: ")
            )
            if is_key:
                position = _put_message_key(out, position, topic, body, key, key_length)
            else:
                position = _put_utf8(out, position, body, key, key_length)
            is_first = False
        if value_length >= 0:
            position = put_literal(to, position, "|") if is_first else position
            position = put_literal(to, position, " payload: ")
            if is_value:
                position = _put_message_value(out, position, topic, body, key, value, value_length)
            else:
                position = _put_utf8(out, position, body, value, value_length)
        elif is_key:
            position = put_literal(to, position, " payload: <DELETE>")
    out[position] = _NEWLINE
    return position + 1


@inline
def _put_json_record(
    out, position, body, options, attributes, offset, timestamp, sequence,
    key, key_length, value, value_length, headers, end, topic, is_key, is_value,
):  # fmt: skip
    to = types.uintp(out.ctypes.data)
    position = put_literal(to, position, '{"type":"record"')
    if options & NO_METADATA == 0:
        position = put_decimal(out, put_literal(to, position, ',"offset":'), offset)
        position = _put_time_type(to, put_literal(to, position, ',"timestampType":"'), attributes)
        position = put_decimal(out, put_literal(to, position, '","timestamp":'), timestamp)
        position = put_decimal(out, put_literal(to, position, ',"keySize":'), key_length)
        position = put_decimal(out, put_literal(to, position, ',"valueSize":'), value_length)
        position = put_decimal(out, put_literal(to, position, ',"sequence":'), sequence)
        position = put_literal(to, position, ',"headers":[')
        if end - headers > 1:
            position = _put_json_headers(out, position, body, headers, end, options & CONTENT != 0)
        position = put_literal(to, position, "]")
        if attributes & CONTROL:
            position = _put_control(out, position, body, key, key_length, value, value_length, True)
    if options & CONTENT and attributes & CONTROL == 0:
        position = put_literal(to, position, ',"key')
        if is_key:
            position = write_key(topic, body, key, key_length, out, put_literal(to, position, '":'))
        else:
            position = put_member(out, position, body, key, key_length)
        position = put_literal(to, position, ',"value')
        if is_value:
            position = put_literal(to, position, '":')
            position = write_value(topic, body, key, value, value_length, out, position)
        else:
            position = put_member(out, position, body, value, value_length)
    return put_literal(to, position, "}\n")


@inline
def _put_records(buffer, body, end, options, state, out, position):
    """The lines of the records body[state[PLACE]:end] of a batch, whose header is in the buffer: see `walk`."""
    at = state[AT]
    attributes = int16_at(buffer, at + 21)
    base_offset = int64_at(buffer, at)
    last = int32_at(buffer, at + 23)
    base_timestamp = int64_at(buffer, at + 27)
    max_timestamp = int64_at(buffer, at + 35)
    base_sequence = int32_at(buffer, at + 53)
    count = int32_at(buffer, at + 57)
    first_offset, end_offset = state[FIRST_OFFSET], state[END_OFFSET]
    first_time, end_time = state[FIRST_TIME], state[END_TIME]
    topic = state[TOPIC]
    place, before, pending = state[PLACE], state[BEFORE], state[PENDING]
    what, code, where = ENDED, GOOD, place
    index = state[INDEX]
    while index < count:
        if place >= end:
            what, code, where = BAD_RECORD, TOO_FEW, place
            break
        status, found, body_end, delta, step, key, key_length, value, value_length, headers = walk_record(
            body, place, end
        )
        if status != GOOD:
            what, code, where = BAD_RECORD, status, found
            break
        if step <= before or step > last:
            what, code, where = BAD_RECORD, BAD_OFFSET, place
            break
        offset = base_offset + step
        timestamp = max_timestamp if attributes & LOG_APPEND_TIME else base_timestamp + delta
        if (
            options & SILENT == 0
            and first_offset <= offset < end_offset
            and first_time <= timestamp < end_time
        ):
            key_length, value_length = max(key_length, -1), max(value_length, -1)
            is_json = options & JSON != 0
            most = _MOST_BESIDE_CONTENT
            most += (_MOST_OF_A_HEADERS_BYTE if is_json else _MOST_OF_A_TEXT_BYTE) * (body_end - headers)
            if attributes & CONTROL:
                most += _MOST_OF_A_VOTERS_BYTE * max(value_length, 0)
            elif options & CONTENT:
                most += (MOST_OF_A_BYTE if is_json else _MOST_OF_A_TEXT_BYTE) * (
                    max(key_length, 0) + max(value_length, 0)
                )
            is_key, is_value = False, False
            if options & CONTENT and attributes & CONTROL == 0 and topic != NONE:
                key_size, value_size = measure(topic, body, key, key_length, value, value_length)
                is_key, is_value = key_size != MALFORMED, value_size != MALFORMED
                most += max(key_size, 0) + max(value_size, 0)
            if out.size - position < most:
                what, code, where = NO_ROOM, most, place
                break
            sequence = _sequence(base_sequence, step) if base_sequence >= 0 else _NO_SEQUENCE
            if is_json:
                position = _put_json_record(
                    out, position, body, options, attributes, offset, timestamp, sequence,
                    key, key_length, value, value_length, headers, body_end, topic, is_key, is_value,
                )  # fmt: skip
            else:
                position = _put_record(
                    out, position, body, options, attributes, offset, timestamp, sequence,
                    key, key_length, value, value_length, headers, body_end, topic, is_key, is_value,
                )  # fmt: skip
            pending = -1
        before = step
        place = body_end
        index += 1
    if what == ENDED and place != end:
        what, code, where = BAD_RECORD, TOO_MANY, place
    state[INDEX], state[PLACE], state[BEFORE] = index, place, before
    if what == NO_ROOM:
        if pending >= 0:
            # The line of the batch goes where its first record goes.
            position = pending
            code += _MOST_OF_A_BATCH
            state[INDEX] = -1
    else:
        if pending >= 0 and (count > 0 or what != ENDED):
            position = pending
        state[INDEX] = -1
        state[AT] = at + int32_at(buffer, at + 8) + SIZE_OVERHEAD
    state[PENDING] = pending
    return what, code, where, position


@kernel(results(INT, INT, INT, INT), READ, INT, INT, INT, LONGS, WRITE, INT)
def walk(buffer, end, origin, options, state, out, position):
    """Write the lines of the batches from buffer[state[AT]:end] on, at out[position:]. `origin` is the file's position
    of buffer[0]. Where it stopped, a walk goes on with the same state and buffer.

    Gives why it stopped, then the code of the problem or for NO_ROOM how many bytes it lacks, where in the buffer, and
    the position in `out` behind the last line."""
    if state.size < STATE or state[AT] < 0 or end > buffer.size or position < 0 or position > out.size:
        return BAD_BATCH, PARTIAL, 0, position
    # Without limits the line of a batch stays.
    is_limited = (
        state[FIRST_OFFSET] != _MIN_INT64
        or state[END_OFFSET] != _MAX_INT64
        or state[FIRST_TIME] != _MIN_INT64
        or state[END_TIME] != _MAX_INT64
    )
    while True:
        at = state[AT]
        status = status_of_head(buffer, at, end) if at < end else PARTIAL
        if status != DONE:
            return ENDED if status == PARTIAL else BAD_BATCH, status, at, position
        size = int32_at(buffer, at + 8) + SIZE_OVERHEAD
        if size > end - at:
            return ENDED, PARTIAL, at, position
        attributes = int16_at(buffer, at + 21)
        if state[INDEX] < 0:
            base = int64_at(buffer, at)
            last = int32_at(buffer, at + 23)
            is_possible = offsets_are_possible(base, last)
            if is_possible and (
                base >= state[END_OFFSET]
                or base + last < state[FIRST_OFFSET]
                or int64_at(buffer, at + 35) < state[FIRST_TIME]
                or (options & DEEP == 0 and int64_at(buffer, at + 27) >= state[END_TIME])
            ):
                state[AT] = at + size
                continue
            if out.size - position < _MOST_OF_A_BATCH:
                return NO_ROOM, _MOST_OF_A_BATCH, at, position
            is_valid = crc32c_of(buffer, at + 21, at + size) == int32_at(buffer, at + 17) & 0xFFFFFFFF
            state[PENDING] = position if is_limited and options & DEEP else -1
            if options & SILENT == 0:
                if options & JSON:
                    position = _put_json_batch(out, position, buffer, at, size, origin + at, is_valid)
                else:
                    position = _put_batch(out, position, buffer, at, size, origin + at, is_valid)
            state[INDEX] = 0
            state[PLACE] = at + HEADER_SIZE if attributes & CODEC_MASK == 0 else 0
            state[BEFORE] = -1
            if not is_valid or not is_possible:
                return BAD_BATCH, BAD_CRC if not is_valid else BAD_OFFSETS, at, position
        if options & DEEP and (attributes & CODEC_MASK == 0 or int32_at(buffer, at + 57) != 0):
            if attributes & CODEC_MASK:
                return COMPRESSED, 0, at, position
            what, code, where, position = _put_records(
                buffer, buffer, at + size, options, state, out, position
            )
            if what != ENDED:
                return what, code, where, position
        else:
            state[INDEX] = -1
            state[AT] = at + size


@kernel(results(INT, INT, INT, INT), READ, READ, INT, LONGS, WRITE, INT)
def records(buffer, body, options, state, out, position):
    """Write the lines of the batch's records, which were decompressed into `body`, after `walk` has stopped for it.
    Gives what `walk` gives; where is a place in `body`."""
    if state.size < STATE or state[AT] < 0 or state[AT] > buffer.size - HEADER_SIZE:
        return BAD_RECORD, BAD_LENGTH, 0, position
    if state[PLACE] < 0 or position < 0 or position > out.size:
        return BAD_RECORD, BAD_LENGTH, 0, position
    return _put_records(buffer, body, np.int64(body.size), options, state, out, position)
