"""Small compressed batches in the form of plain ones, many in one buffer, so that a kernel reads them in one call.

Of batches of a hundred records, all columns took 6 times as long one by one: Python's calls took that. Large batches
are left as they are: copying them would cost more than the calls.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from topicfs.engine.batch.columns import records_of
from topicfs.engine.batch.table import Bytes, Longs
from topicfs.engine.format.batch_header import CODEC_MASK, CONTROL, HEADER_SIZE
from topicfs.engine.kernels.scan import ATTRIBUTES, POSITION, SIZE

_HEADER: Final = np.zeros(HEADER_SIZE, np.uint8)
"""In the place of a header, which is in the table."""

_LARGE: Final = 128 * 1024
"""Bytes of a batch that is large."""


def plain(buffer: Bytes, table: Longs, origin: int, most: int) -> Iterator[tuple[Bytes, Longs, int]]:
    """Yield the batches of a table with the small ones in plain form: buffers, each with its table and the table's
    position of its first byte. A buffer ends with the batch that brings it to `most` bytes."""
    squeezed = (table[:, ATTRIBUTES] & CODEC_MASK != 0) & (table[:, ATTRIBUTES] & CONTROL == 0)
    small = squeezed & (table[:, SIZE] < _LARGE)
    if not small.any():
        yield buffer, table, origin
        return
    # Runs of small batches, and of others, which take turns.
    ends = np.append(np.flatnonzero(np.diff(small)) + 1, len(table))
    first = 0
    for end in ends.tolist():
        if small[first]:
            yield from _plain_run(buffer, table[first:end], origin, most)
        else:
            yield buffer, table[first:end], origin
        first = end


def _plain_run(buffer: Bytes, table: Longs, origin: int, most: int) -> Iterator[tuple[Bytes, Longs, int]]:
    parts: list[Bytes] = []
    first = size = 0
    for at, row in enumerate(table):
        parts += (_HEADER, records_of(buffer, row, origin))
        size += HEADER_SIZE + parts[-1].size
        if size >= most or at == len(table) - 1:
            yield np.concatenate(parts), _rewritten(table[first : at + 1], parts), 0
            parts, first, size = [], at + 1, 0


def _rewritten(table: Longs, parts: list[Bytes]) -> Longs:
    """Return a table of the batches as they lie in a buffer of these parts, each a header and its records."""
    found = table.copy()
    found[:, SIZE] = [HEADER_SIZE + records.size for records in parts[1::2]]
    found[:, POSITION] = np.cumsum(found[:, SIZE]) - found[:, SIZE]
    found[:, ATTRIBUTES] &= ~CODEC_MASK
    return found
