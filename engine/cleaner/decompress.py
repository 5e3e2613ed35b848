"""Batches in the form that the kernels of compaction need: compressed ones are decompressed first."""

from __future__ import annotations

from typing import NoReturn

import numpy as np

from topicfs.engine.batch.columns import records_of
from topicfs.engine.batch.table import Bytes, Longs
from topicfs.engine.errors import CorruptBatchError
from topicfs.engine.format.batch_header import CODEC_MASK, HEADER_SIZE
from topicfs.engine.kernels.decode import PROBLEMS
from topicfs.engine.kernels.scan import ATTRIBUTES, BASE_OFFSET, COUNT, POSITION, SIZE


def decompressed(buffer: Bytes, row: Longs, origin: int, where: str) -> tuple[Bytes, Longs]:
    """Return a compressed batch with its records decompressed, behind room for a header, and a table of that batch
    alone.

    `origin` is the table's position of buffer[0]. `where` is for messages."""
    try:
        records = records_of(buffer, row, origin)
    except CorruptBatchError as error:
        raise CorruptBatchError(f"{where}: batch at position {row[POSITION]}: {error}") from error
    whole = np.empty(HEADER_SIZE + records.size, np.uint8)
    whole[HEADER_SIZE:] = records
    one = row.reshape(1, -1).copy()
    one[0, POSITION] = 0
    one[0, SIZE] = whole.size
    one[0, ATTRIBUTES] &= ~CODEC_MASK
    return whole, one


def refuse(status: int, row: Longs, index: int, at: int, where: str) -> NoReturn:
    """Raise an error that says what a kernel found wrong with a batch."""
    raise CorruptBatchError(
        f"{where}: batch at position {row[POSITION]}, offset {row[BASE_OFFSET]}, record {index} of {row[COUNT]}, "
        f"byte {at}: {PROBLEMS[status]}"
    )
