"""A batch that grows: lines and columns are added until it is full, and then it is finished."""

from __future__ import annotations

from typing import Final

import numpy as np

from topicfs.engine.batch.build import Shape, finish
from topicfs.engine.batch.columns import Columns
from topicfs.engine.batch.table import Batch, Bytes
from topicfs.engine.errors import RecordTooLargeError
from topicfs.engine.format.batch_header import HEADER_SIZE
from topicfs.engine.kernels import encode as encoding
from topicfs.engine.record import NO_TIMESTAMP

_SMALLEST: Final = 4096


class BatchBuilder:
    """Collects records for one batch.

    limit           the largest batch, in bytes before compression
    count           number of records so far
    base_timestamp  timestamp of the first record
    max_timestamp   largest timestamp of all records so far
    text_size       bytes of all values, and a newline for each
    _out, _end      bytes of the records, behind room for the header, and where they end
    """

    __slots__ = ("_end", "_out", "base_timestamp", "count", "limit", "max_timestamp", "text_size")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.count = self.text_size = 0
        self.base_timestamp = self.max_timestamp = NO_TIMESTAMP
        self._out = np.empty(min(limit, _SMALLEST), np.uint8)
        self._end = HEADER_SIZE

    @property
    def size(self) -> int:
        """Return the bytes that the batch would have now, uncompressed."""
        return self._end

    def add_lines(self, lines: Bytes, start: int, now: int) -> int:
        """Add lines[start:], each as a record, as far as they fit. Return the position of the first one that did not
        fit.

        RecordTooLargeError if even an empty batch could not hold the first line."""
        if self.count == 0:
            self.base_timestamp = self.max_timestamp = now
        # This is enough for lines of 76 bytes. If it is not enough, the rest is added in another round.
        self._make_room((lines.size - start) * 5 // 4 + _SMALLEST)
        added, used, self._end = encoding.encode_lines(
            lines, start, lines.size, self.count, self._out, self._end, self._out.size
        )
        self.count += added
        self.text_size += int(used) - start
        if not added and not self.count and self._out.size >= self.limit:
            raise RecordTooLargeError(f"a line exceeds a batch of {self.limit} bytes")
        if used < lines.size and self._out.size < self.limit:
            return self.add_lines(lines, used, now)
        return int(used)

    def add_columns(self, columns: Columns) -> int:
        """Add records as far as they fit. Return how many were added.

        RecordTooLargeError if even an empty batch could not hold the first one."""
        if not len(columns):
            return 0
        if self.count == 0:
            self.base_timestamp = self.max_timestamp = int(columns.timestamps[0])
        spans = (
            np.maximum(columns.key_length, 0) + np.maximum(columns.value_length, 0) + columns.headers_length
        )
        self._make_room(int(spans.sum(dtype=np.int64)) + encoding.RECORD_OVERHEAD * len(columns))
        arrays = tuple(np.ascontiguousarray(array) for array in columns.arrays[1:])
        offsets = np.arange(self.count, self.count + len(columns), dtype=np.int64)
        added, self._end = encoding.encode_columns(
            columns.buffer, offsets, *arrays, 0, self.base_timestamp, self._out, self._end
        )
        if added:
            self.max_timestamp = max(self.max_timestamp, int(columns.timestamps[:added].max()))
            self.text_size += int(np.maximum(columns.value_length[:added], 0).sum(dtype=np.int64)) + int(
                added
            )
            self.count += added
        elif not self.count:
            raise RecordTooLargeError(f"a record exceeds a batch of {self.limit} bytes")
        return int(added)

    def finish(self, shape: Shape, append_time: int | None) -> Batch:
        """Return the batch, ready to be appended. The builder is empty afterwards. `append_time` becomes every
        record's timestamp if the shape says so."""
        latest = self.max_timestamp if append_time is None else append_time
        batch = finish(self._out, self._end, self.count, self.base_timestamp, latest, shape)
        self.count = self.text_size = 0
        self.base_timestamp = self.max_timestamp = NO_TIMESTAMP
        self._out = np.empty(min(self._out.size, self.limit), np.uint8)
        self._end = HEADER_SIZE
        return batch

    def _make_room(self, more: int) -> None:
        wanted = min(self.limit, self._end + more)
        if wanted > self._out.size:
            grown = np.empty(min(self.limit, max(wanted, 2 * self._out.size)), np.uint8)
            grown[: self._end] = self._out[: self._end]
            self._out = grown
