"""Walking a file of batches in chunks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import numpy as np

from topicfs.engine.batch.table import Bytes, Longs
from topicfs.engine.format.batch_header import HEADER_SIZE, size_of
from topicfs.engine.kernels.scan import COLUMNS, DONE, FULL, scan

_ROWS: Final = 16384
"""The most rows of a batch table that is filled at once."""

NOTHING: Final = np.empty(0, np.uint8)

Room = Callable[[int], Bytes]
"""Gives a buffer of so many bytes."""


def room(size: int) -> Bytes:
    """Return a buffer of so many bytes."""
    return np.empty(size, np.uint8)


def walk(
    fill: Callable[[int, memoryview], None],
    start: int,
    end: int,
    check: bool,
    chunk: int,
    reuse: bool,
    room: Room = room,
) -> Iterator[tuple[Bytes, Longs, int]]:
    """Yield complete batches between two positions of a file, in chunks: bytes, table, and FULL for "more follows".

    The last chunk has neither bytes nor rows, and has the status that ended the walk. A chunk grows for one larger
    batch, but never beyond `end`. With `reuse` a chunk is overwritten by the next one. `room` gives the buffers."""
    position = start
    buffer = room(max(0, min(chunk, end - start)))
    table = np.empty((min(_ROWS, buffer.size // HEADER_SIZE + 1), COLUMNS), np.int64)
    status = DONE
    while position < end:
        length = min(buffer.size, end - position)
        fill(position, memoryview(buffer)[:length])
        at, status = 0, FULL
        while status == FULL:
            rows, used, status = scan(buffer, at, length, position, int(check), table)
            if rows:
                yield buffer[at : at + used], table[:rows], FULL
                at += used
                if not reuse:
                    table = np.empty_like(table)
        if status > FULL:
            break
        if at == 0:
            total = size_of(buffer.data)
            if length == end - position or total > end - position:
                break
            buffer = room(max(total, chunk))
        elif not reuse or buffer.size > chunk:
            # One large batch does not make all chunks behind it large.
            buffer = room(min(buffer.size, chunk))
        position += at
    yield NOTHING, table[:0], status
