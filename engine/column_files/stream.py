"""Files and streams of Arrow, checked message by message before pyarrow decodes them.

    file      "ARROW1" 0 0, stream, footer, int32 length of the footer, "ARROW1"
    stream    messages, and at its end int32 -1, int32 0
    message   int32 -1, int32 length of the metadata, metadata, body

The metadata is a flatbuffer. Of its tables these fields are read, by their numbers:

    Message           1 kind, 2 header, 3 bytes of the body
    DictionaryBatch   1 data, which is a RecordBatch
    RecordBatch       2 buffers, a vector of int64 position in the body and int64 length; 3 compression

A compressed buffer begins with the int64 number of bytes that it unpacks to, or -1 if it is not compressed.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Final

import pyarrow as pa

from topicfs.engine.column_files.rows import LARGEST
from topicfs.engine.column_files.source import CUT_SHORT, File, Source
from topicfs.engine.errors import InvalidRecordError

_MAGIC: Final = b"ARROW1"
_START: Final = _MAGIC + b"\0\0"
_FOOTER: Final = struct.Struct(f"<i{len(_MAGIC)}s")
_FRAME: Final = struct.Struct("<iI")
_CONTINUATION: Final = -1
_DICTIONARY: Final = 2
_RECORDS: Final = 3
"""Kinds of messages."""


def is_whole(file: File, size: int) -> bool:
    """Tell whether a file ends as one that was written to its end. The last bytes of a stream may be any."""
    source = Source(file, 0, size)
    return source.at(0, len(_START)).tobytes() == _START and _ends(source)


def _ends(source: Source) -> bool:
    return source.at(source.end - len(_MAGIC), len(_MAGIC)).tobytes() == _MAGIC


def batches(
    file: File, size: int, names: frozenset[str], check: Callable[[pa.Schema], None]
) -> Iterator[pa.RecordBatch]:
    """Give the batches of rows of a file or stream, each with all columns that have one of these names.
    `check` gets the schema before. InvalidRecordError, ArrowException or OSError for what is damaged."""
    source = _Checked(file, *_bounds(file, size))
    with pa.PythonFile(source, mode="r") as opened:
        schema = pa.ipc.read_schema(opened)
        check(schema)
        opened.seek(0)
        wanted = [place for place, name in enumerate(schema.names) if name in names]
        options = pa.ipc.IpcReadOptions(included_fields=wanted)
        yield from pa.ipc.open_stream(opened, options=options)
        if not source.is_ended and not source.start:
            raise InvalidRecordError(f"expected a stream of Arrow to tell its end: {CUT_SHORT}")


def _bounds(file: File, size: int) -> tuple[int, int]:
    """Return where the stream of a file begins and ends."""
    source = Source(file, 0, size)
    if source.at(0, len(_START)).tobytes() != _START:
        return 0, size
    end = source.at(size - _FOOTER.size, _FOOTER.size)
    length, magic = _FOOTER.unpack(end) if end.size == _FOOTER.size else (-1, b"")
    if magic != _MAGIC or not 0 <= length <= size - len(_START) - _FOOTER.size:
        raise InvalidRecordError(f"expected a file of Arrow to end in {_MAGIC.decode()}: {CUT_SHORT}")
    return len(_START), size - _FOOTER.size - length


class _Checked(Source):
    """A stream of which no byte is given away before its message was checked.

    is_ended       whether the mark of the end was found
    _checked       where the next message to be checked begins
    _dictionaries  bytes of all dictionaries so far: a reader keeps them
    """

    def __init__(self, file: File, start: int, end: int) -> None:
        super().__init__(file, start, end)
        self.is_ended = False
        self._checked = start
        self._dictionaries = 0

    def read(self, size: int = -1) -> memoryview:
        """Return the next bytes."""
        while self._checked < min(self._position + max(size, 1), self.end):
            self._check_next()
        return super().read(size)

    def _check_next(self) -> None:
        at = self._checked
        frame = self.at(at, _FRAME.size)
        mark, length = _FRAME.unpack(frame) if frame.size == _FRAME.size else (0, 0)
        if mark != _CONTINUATION:
            raise InvalidRecordError(f"expected a message of Arrow at byte {at}: {CUT_SHORT}")
        if not length:
            self.end = self._checked = at + _FRAME.size
            self.is_ended = True
            return
        try:
            kind, body, unpacked = self._sizes(at + _FRAME.size, length)
        except (struct.error, RecursionError):
            raise InvalidRecordError(f"malformed message of Arrow at byte {at}: {CUT_SHORT}") from None
        self._dictionaries += unpacked if kind == _DICTIONARY else 0
        if max(body, unpacked, self._dictionaries) > LARGEST:
            raise InvalidRecordError(
                f"expected up to {LARGEST} bytes in a batch of rows, found {max(body, unpacked, self._dictionaries)}: "
                "write fewer rows at once"
            )
        self._checked = at + _FRAME.size + length + body
        if body < 0 or self._checked > self.end:
            raise InvalidRecordError(f"message of Arrow at byte {at} goes beyond the end: {CUT_SHORT}")

    def _sizes(self, at: int, length: int) -> tuple[int, int, int]:
        """Return the kind of a message, the bytes of its body, and to how many these unpack."""
        metadata = self.at(at, length).tobytes()
        message = _Table(metadata, _table_at(metadata, 0))
        kind, body = message.number(1, "<B"), message.number(3, "<q")
        header = message.table(2)
        if header is not None and kind == _DICTIONARY:
            header = header.table(1)
        if header is None or kind not in (_DICTIONARY, _RECORDS):
            return kind, body, 0
        if header.table(3) is None:
            return kind, body, body
        unpacked = 0
        for position, size in header.pairs(2):
            if size:
                (told,) = struct.unpack("<q", self.at(at + length + position, 8))
                unpacked += size if told == -1 else told if told >= 0 else LARGEST + 1
        return kind, body, unpacked


class _Table:
    """A table of a flatbuffer: at its start the distance back to the positions of its fields. struct.error where it is
    damaged."""

    def __init__(self, data: bytes, at: int) -> None:
        self._data = data
        self._at = at

    def _field(self, number: int) -> int:
        """Return the position of a field, or 0 if it is not there."""
        (back,) = struct.unpack_from("<i", self._data, self._at)
        fields = _inside(self._data, self._at - back)
        (size,) = struct.unpack_from("<H", self._data, fields)
        if 4 + 2 * number >= size:
            return 0
        (offset,) = struct.unpack_from("<H", self._data, fields + 4 + 2 * number)
        return self._at + offset if offset else 0

    def number(self, field: int, kind: str) -> int:
        """Return a number, 0 if it is not there."""
        at = self._field(field)
        return int(struct.unpack_from(kind, self._data, at)[0]) if at else 0

    def table(self, field: int) -> _Table | None:
        """Return the table that a field leads to."""
        at = self._field(field)
        return _Table(self._data, _table_at(self._data, at)) if at else None

    def pairs(self, field: int) -> Iterator[tuple[int, int]]:
        """Give the pairs of int64 of a vector."""
        at = self._field(field)
        if at:
            vector = _table_at(self._data, at)
            (count,) = struct.unpack_from("<I", self._data, vector)
            if 16 * count > len(self._data):
                raise struct.error("a vector beyond the end")
            yield from struct.iter_unpack("<qq", self._data[vector + 4 : vector + 4 + 16 * count])


def _table_at(data: bytes, at: int) -> int:
    (forward,) = struct.unpack_from("<I", data, at)
    return _inside(data, at + forward)


def _inside(data: bytes, at: int) -> int:
    """Return a position. A negative one would count from the end."""
    if not 0 <= at < len(data):
        raise struct.error("a position beyond the end")
    return at
