"""The formats of records as lines: txt, tsv, jsonl. `topicfs.fs.kernels.sizes` describes their lines."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from typing import Final

import numpy as np

from topicfs.engine.batch.columns import Columns, records_of
from topicfs.engine.batch.table import Bytes, Ints, Longs
from topicfs.engine.errors import CorruptBatchError, RecordTooLargeError
from topicfs.engine.format.batch_header import CODEC_MASK, CONTROL, HEADER_SIZE
from topicfs.engine.kernels import decode as decoding
from topicfs.engine.kernels.messages import topic_of
from topicfs.engine.kernels.scan import ATTRIBUTES, BASE_OFFSET, COUNT, LAST_OFFSET, POSITION, SIZE
from topicfs.engine.record import MAX_INT32, MAX_INT64
from topicfs.fs.errors import BadInputError
from topicfs.fs.kernels import parse as parsing
from topicfs.fs.kernels import reasons
from topicfs.fs.kernels import render as rendering
from topicfs.fs.kernels import sizes as sizing
from topicfs.fs.kernels.parse import NO_PARTITION

MAX_LINES: Final = (MAX_INT32 - parsing.SLACK) // 2
"""Bytes of lines that one parse takes, at most: positions in its output are 32 bits wide."""

_NEWLINE: Final = 10
_MOST_SHOWN: Final = 24
_NAME: Final = re.compile(r'"(?:[^"\\]|\\.)*"')
_EXPECTATIONS: Final = frozenset(
    {
        reasons.NO_OBJECT, reasons.NO_NAME, reasons.NO_COLON, reasons.NO_COMMA, reasons.TRAILING, reasons.NO_TEXT,
        reasons.NO_NUMBER, reasons.BAD_TIMESTAMP, reasons.BAD_PARTITION, reasons.NO_HEADERS, reasons.NO_HEADER,
        reasons.ESCAPE, reasons.SURROGATE, reasons.CONTROL,
    }
)  # fmt: skip
"""Statuses whose message also says what was found."""


class InputError(BadInputError):
    """A line violates its format. `line` counts from 1 in what was parsed, `position` from 1 in the line's bytes."""

    def __init__(self, line: int, position: int, reason: str) -> None:
        super().__init__(f"line {line}, byte {position}: {reason}")
        self.line = line
        self.position = position
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Parsed:
    """The records of parsed lines.

    columns     a row for each good line, with offsets 0, 1, 2 …
    partitions  the partition that each line names, or NO_PARTITION if it names none
    used        bytes of the good lines
    error       what is wrong with the line behind them; None if all lines are good
    """

    columns: Columns
    partitions: Ints
    used: int
    error: InputError | None


class Format(IntEnum):
    """A way to show records as lines. The kernels use the same numbers, and others for messages of Kafka's own."""

    TXT = sizing.TXT
    TSV = sizing.TSV
    JSONL = sizing.JSONL

    @property
    def suffix(self) -> str:
        """Return the suffix of a file name, without the dot."""
        return _SUFFIXES[self]

    # -- records → lines ------------------------------------------------------------------------------

    def sizes(
        self, buffer: Bytes, table: Longs, origin: int, labels: Labels, first: int = 0, end: int = MAX_INT64
    ) -> Longs:
        """Return how many bytes each batch of `table` takes: its records of the offsets [first, end), 0 for a control
        batch. `origin` is the table's position of buffer[0]."""
        found = np.zeros(len(table), np.int64)
        for row, data, rows, start in _plain_parts(buffer, table, origin, first, end):
            sizes = found[row : row + len(rows)]
            problem = sizing.sizes(
                self._form(labels), data, start, rows, first, end, labels.prefix.size, sizes
            )
            _raise_if_bad(rows, *problem)
        return found

    def render(
        self,
        buffer: Bytes,
        table: Longs,
        origin: int,
        first: int,
        end: int,
        out: Bytes,
        at: int,
        labels: Labels,
    ) -> int:
        """Write the records of the offsets [first, end) of the batches of `table` at out[at:]. Return the position
        behind them. Bytes of `out` behind it are undefined. ValueError if `out` is too small."""
        for _, data, rows, start in _plain_parts(buffer, table, origin, first, end):
            *problem, at = rendering.render(
                self._form(labels), data, start, rows, first, end, labels.prefix, out, at
            )
            if problem[0] == rendering.NO_ROOM:
                raise ValueError(
                    f"{self.suffix}: a line from byte {at} on does not fit into {out.size} bytes"
                )
            _raise_if_bad(rows, *problem)
        return at

    def _form(self, labels: Labels) -> int:
        """Return the number by which the kernels know the format of these lines."""
        return int(self) + (labels.messages if self == Format.JSONL else 0)

    # -- lines → records ------------------------------------------------------------------------------

    def parse(self, lines: Bytes, now: int) -> Parsed:
        """Parse the records of these lines, up to the first bad one. A last line without a newline counts. `now` is the
        timestamp of records whose line gives none."""
        if lines.size > MAX_LINES:
            raise RecordTooLargeError(f"{lines.size} bytes of lines at once: expected up to {MAX_LINES}")
        rows = int(np.count_nonzero(lines == _NEWLINE))
        if lines.size and lines[-1] != _NEWLINE:
            rows += 1
        offsets, partitions = np.arange(rows, dtype=np.int64), np.full(rows, NO_PARTITION, np.int32)
        timestamps, spans = np.full(rows, now, np.int64), np.zeros((parsing.SPANS_ROWS, rows), np.int32)
        if self == Format.TXT:
            _span_lines(lines, spans)
            return Parsed(Columns(lines, offsets, timestamps, *spans), partitions, lines.size, None)
        if self == Format.TSV:
            out = np.empty(lines.size, np.uint8)
            status, good, start, at, used = parsing.parse_tsv(lines, 0, lines.size, out, spans)
        else:
            out = np.empty(2 * lines.size + parsing.SLACK, np.uint8)
            status, good, start, at, used = parsing.parse_jsonl(
                lines, 0, lines.size, now, out, timestamps, partitions, spans
            )
        error = None if status == reasons.GOOD else _input_error(lines, status, good, start, at)
        found = Columns(out[:used], offsets, timestamps, *spans).rows(0, good)
        return Parsed(found, partitions[:good], start, error)


_SUFFIXES: Final = {fmt: fmt.name.lower() for fmt in Format}


@dataclass(frozen=True, slots=True, eq=False)
class Labels:
    """What all jsonl lines of a partition have in common.

    prefix    the beginning of a line, up to its offset
    messages  whose messages keys and values are: the number of a topic of Kafka's own, or NONE
    """

    prefix: Bytes
    messages: int


@lru_cache(maxsize=1024)
def labels_of(topic: str, partition: int) -> Labels:
    """Return the labels of this partition."""
    name = json.dumps(topic, ensure_ascii=False)
    prefix = f'{{"topic":{name},"partition":{partition},"offset":'
    return Labels(np.frombuffer(prefix.encode(), np.uint8), topic_of(topic))


# -- batches ------------------------------------------------------------------------------------------


def _plain_parts(
    buffer: Bytes, table: Longs, origin: int, first_offset: int, end_offset: int
) -> Iterator[tuple[int, Bytes, Longs, int]]:
    """Split the table into parts whose records are plain bytes: a run of uncompressed batches as it is, or one batch
    decompressed. A part is the index of its first row, the bytes, the rows, and their origin."""
    attributes = table[:, ATTRIBUTES]
    views = (table[:, LAST_OFFSET] >= first_offset) & (table[:, BASE_OFFSET] < end_offset)
    squeezed = (attributes & CODEC_MASK != 0) & (attributes & CONTROL == 0) & views
    first = 0
    for batch in np.flatnonzero(squeezed).tolist():
        if batch > first:
            yield first, buffer, np.ascontiguousarray(table[first:batch]), origin
        data = records_of(buffer, table[batch], origin)
        row = table[batch : batch + 1].copy()
        row[0, POSITION], row[0, SIZE] = -HEADER_SIZE, HEADER_SIZE + data.size
        row[0, ATTRIBUTES] &= ~CODEC_MASK
        yield batch, data, row, 0
        first = batch + 1
    if first < len(table):
        yield first, buffer, np.ascontiguousarray(table[first:]), origin


def _raise_if_bad(table: Longs, status: int, batch: int, index: int, at: int) -> None:
    if status != decoding.GOOD:
        row = table[batch]
        raise CorruptBatchError(
            f"batch at offset {row[BASE_OFFSET]}, record {index} of {row[COUNT]}, byte {at}: "
            f"{decoding.PROBLEMS[status]}"
        )


# -- lines --------------------------------------------------------------------------------------------


def _span_lines(lines: Bytes, spans: Ints) -> None:
    """Set the spans of records whose values are these lines, without copying the bytes."""
    ends = np.full(spans.shape[1], lines.size)
    newlines = np.flatnonzero(lines == _NEWLINE)
    ends[: newlines.size] = newlines
    starts = spans[parsing.VALUE_START]
    starts[1:] = ends[:-1] + 1
    spans[parsing.VALUE_LENGTH] = ends - starts
    spans[parsing.KEY_LENGTH] = -1


def _input_error(lines: Bytes, status: int, good: int, start: int, at: int) -> InputError:
    reason = reasons.REASONS[status]
    behind = lines[at : at + 8 * _MOST_SHOWN].tobytes().split(b"\n", 1)[0].decode("utf-8", "replace")
    if status in (reasons.UNKNOWN, reasons.DUPLICATE):
        name = _NAME.match(behind)
        reason = f"{reason} {_shown(behind if name is None else name[0])}"
    elif status in _EXPECTATIONS:
        reason = f"{reason}, found {repr(_shown(behind)) if behind else 'the end of the line'}"
    return InputError(good + 1, at - start + 1, reason)


def _shown(text: str) -> str:
    """Cut a text to the length that a message can carry."""
    return text if len(text) <= _MOST_SHOWN else text[:_MOST_SHOWN] + "…"


FORMATS: Final = {each.suffix: each for each in Format}
"""Every format by its suffix."""
