"""The batches of a `.log`, with their records."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import numpy as np

from topicfs.engine.batch.compression import DECOMPRESSED_LIMIT, decompress
from topicfs.engine.batch.table import Bytes, Longs
from topicfs.engine.dump.report import Report
from topicfs.engine.dump.wanted import Wanted
from topicfs.engine.errors import CorruptBatchError
from topicfs.engine.format.batch_header import (
    CODEC_MASK,
    HEAD_TO_MAGIC,
    HEADER_SIZE,
    SIZE_OVERHEAD,
    BatchHeader,
    size_of,
)
from topicfs.engine.kernels import decode as decoding
from topicfs.engine.kernels import dump as dumping
from topicfs.engine.kernels import scan as scanning
from topicfs.engine.kernels.messages import NONE, topic_of
from topicfs.engine.record import Codec

_WINDOW: Final = 8 << 20

LARGEST_BATCH: Final = DECOMPRESSED_LIMIT
"""A larger batch is passed over: it would have to be in memory as a whole."""


LARGEST_LINE: Final = 1 << 30
"""The rest of a batch is passed over from a record on whose line may take more."""


class Batches:
    """The walk over the batches of one file.

    _size    bytes of the file that are looked at
    _is_cut  whether the file may be longer
    _origin  the file's position of the window's first byte
    _valid   the file's position behind the batches that were passed
    _buffer  memory of windows
    _window  bytes of the file, with the batch that is looked at
    _state   the state of the walk, see `kernels.dump`
    _told    the batch whose problem was told last, by its position
    _plain   the records of the compressed batch that is looked at, and its position
    """

    def __init__(self, descriptor: int, path: Path, wanted: Wanted, report: Report) -> None:
        self._descriptor = descriptor
        self._path = path
        self._report = report
        size = os.fstat(descriptor).st_size
        self._is_cut = wanted.max_bytes is not None
        self._size = size if wanted.max_bytes is None else min(size, wanted.max_bytes)
        self._options = _options(wanted)
        self._origin = 0
        self._valid = 0
        self._buffer: Bytes = np.empty(0, np.uint8)
        self._window = self._buffer
        self._state: Longs = np.zeros(dumping.STATE, np.int64)
        self._state[dumping.INDEX] = self._state[dumping.PENDING] = -1
        self._state[dumping.FIRST_OFFSET] = wanted.first_offset
        self._state[dumping.END_OFFSET] = wanted.end_offset
        self._state[dumping.FIRST_TIME] = wanted.first_time
        self._state[dumping.END_TIME] = wanted.end_time
        self._state[dumping.TOPIC] = NONE if wanted.topic is None else topic_of(wanted.topic)
        self._told = -1
        self._plain: tuple[int, Bytes] = (-1, self._window)

    def show(self) -> None:
        """Show all batches; what cannot be shown is told."""
        position: int | None = 0
        while position is not None and position < self._size:
            self._valid = position
            position = self._show_from(position, _WINDOW)
        rest = self._size - self._valid
        if position is None and rest > 0 and not self._is_cut:
            text = f"Found {rest} invalid bytes at the end of {self._path.name}"
            self._report.line(text, "invalid", position=self._valid, bytes=rest)

    def _show_from(self, position: int, size: int) -> int | None:
        """Show the whole batches of the next bytes, which begin with a batch. Return where the one behind them begins,
        None where none can be found."""
        self._read(position, size)
        while True:
            why, code, where = self._walk()
            self._valid = self._origin + int(self._state[dumping.AT])
            if why == dumping.BAD_BATCH:
                self._tell(self._origin + where, scanning.PROBLEMS[code])
                if code == scanning.BAD_SIZE:
                    return None
                if code == scanning.BAD_MAGIC:
                    return self._behind(self._valid)
            elif why == dumping.BAD_RECORD:
                self._report.problem(self._path, f"position {self._origin + where}", decoding.PROBLEMS[code])
            elif self._valid > position:
                return self._valid
            else:
                return self._longer(position)

    def _longer(self, position: int) -> int | None:
        """Show a batch that is longer than the window. Return where the next one begins, None where that is the end."""
        left = self._size - position
        size = size_of(self._window[:SIZE_OVERHEAD].tobytes()) if left > HEAD_TO_MAGIC else left + 1
        if size > left:
            if not self._is_cut:
                self._tell(position, scanning.PROBLEMS[scanning.PARTIAL])
            return None
        if size <= LARGEST_BATCH:
            return self._show_from(position, size)
        self._tell(
            position, f"expected a batch of at most {LARGEST_BATCH} bytes, found {size}: it is passed over"
        )
        return position + size

    def _behind(self, position: int) -> int | None:
        """Return where a batch ends that is not shown, by its size; None where that is behind the end."""
        at = position - self._origin
        end = position + size_of(self._window[at : at + SIZE_OVERHEAD].tobytes())
        return end if end <= self._size else None

    def _read(self, position: int, size: int) -> None:
        """Make a window of the next bytes of the file."""
        size = min(size, self._size - position)
        if self._buffer.size < size:
            self._buffer = np.empty(size, np.uint8)
        done = 0
        while done < size:
            more = os.preadv(self._descriptor, [memoryview(self._buffer)[done:size]], position + done)
            if more == 0:
                # It was cut off meanwhile.
                self._size = position + done
                break
            done += more
        self._origin = position
        self._window = self._buffer[:done]
        self._state[dumping.AT] = 0
        self._state[dumping.INDEX] = self._state[dumping.PENDING] = -1

    def _walk(self) -> tuple[int, int, int]:
        """Go on until the window's end or a problem. Return which, its code, and where in the window."""
        report = self._report
        while True:
            why, code, where, report.position = dumping.walk(
                self._window,
                self._window.size,
                self._origin,
                self._options,
                self._state,
                report.out,
                report.position,
            )
            if why == dumping.COMPRESSED:
                why, code = self._show_compressed()
            if why == dumping.NO_ROOM and code > LARGEST_LINE:
                at = int(self._state[dumping.AT])
                what = f"expected records whose lines take at most {LARGEST_LINE} bytes, found one that may take {code}"
                self._report.problem(self._path, f"batch at position {self._origin + at}", what)
                self._pass()
            elif why == dumping.NO_ROOM:
                report.flush()
                report.make_room(code)
            elif why != dumping.COMPRESSED:
                return why, code, where

    def _show_compressed(self) -> tuple[int, int]:
        """Show the records of a compressed batch. Return NO_ROOM and how much is wanted, or COMPRESSED where it is
        done."""
        at = int(self._state[dumping.AT])
        position = self._origin + at
        end = at + size_of(self._window[at : at + SIZE_OVERHEAD].tobytes())
        codec = BatchHeader.read(memoryview(self._window), at).attributes & CODEC_MASK
        if self._plain[0] != position:
            try:
                self._plain = position, decompress(Codec(codec), self._window[at + HEADER_SIZE : end])
            except (CorruptBatchError, ValueError) as error:
                self._report.problem(self._path, f"batch at position {position}", str(error))
                self._pass()
                return dumping.COMPRESSED, 0
        report = self._report
        why, code, where, report.position = dumping.records(
            self._window, self._plain[1], self._options, self._state, report.out, report.position
        )
        if why == dumping.NO_ROOM:
            return why, code
        if why == dumping.BAD_RECORD:
            what = f"{decoding.PROBLEMS[code]}, at byte {where} of its decompressed records"
            self._report.problem(self._path, f"batch at position {position}", what)
        return dumping.COMPRESSED, 0

    def _pass(self) -> None:
        """Go on behind the batch."""
        at = int(self._state[dumping.AT])
        self._state[dumping.AT] = at + size_of(self._window[at : at + SIZE_OVERHEAD].tobytes())
        self._state[dumping.INDEX] = self._state[dumping.PENDING] = -1

    def _tell(self, position: int, what: str) -> None:
        """Tell a problem of a batch, once: where `out` was full, its line is made again."""
        if position > self._told:
            self._told = position
            self._report.problem(self._path, f"batch at position {position}", what)


def _options(wanted: Wanted) -> int:
    chosen = (
        (wanted.records or wanted.content or wanted.only_check, dumping.DEEP),
        (wanted.content, dumping.CONTENT),
        (not wanted.metadata, dumping.NO_METADATA),
        (wanted.as_json, dumping.JSON),
        (wanted.only_check, dumping.SILENT),
    )
    return sum(option for is_chosen, option in chosen if is_chosen)
