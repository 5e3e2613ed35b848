"""A leader's answer to a fetch, taken apart without a copy of its batches."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from topicfs.engine.batch.table import Bytes
from topicfs.engine.errors import LinkError
from topicfs.engine.kernels import fetched
from topicfs.engine.link.connection import words_of

_ID_BYTES = 16


@dataclass(frozen=True, slots=True)
class PartitionAnswer:
    """What a leader answers about one partition.

    topic_id        the 16 bytes of the topic's id
    number          the number of the partition
    error_code      why there is nothing else; 0 where all is well
    high_watermark  the leader's high watermark
    stable_offset   the leader's stable offset
    epoch           the largest epoch of the leader that is not above that of our last batch, where the logs part; −1
                    where they do not
    epoch_end       where that epoch ends
    records         batches, in the buffer of the answer; the last one may be cut off
    """

    topic_id: bytes
    number: int
    error_code: int
    high_watermark: int
    stable_offset: int
    epoch: int
    epoch_end: int
    records: Bytes


def partitions_of(data: Bytes, most: int) -> list[PartitionAnswer]:
    """Return what an answer says of each partition. LinkError where it breaks its format, says more than that of `most`
    partitions, or is an error itself."""
    table = np.empty((most, fetched.COLUMNS), np.int64)
    rows, error = fetched.partitions(data, table)
    if rows == fetched.BROKEN:
        raise LinkError(f"an answer of {data.size} bytes to a fetch breaks its format")
    if error:
        raise LinkError(f"fetch: {words_of(error)}")
    found = []
    for row in table[:rows].tolist():
        topic = row[fetched.TOPIC]
        found.append(
            PartitionAnswer(
                data[topic : topic + _ID_BYTES].tobytes(),
                row[fetched.NUMBER],
                row[fetched.ERROR],
                row[fetched.HIGH_WATERMARK],
                row[fetched.STABLE_OFFSET],
                row[fetched.EPOCH],
                row[fetched.EPOCH_END],
                data[row[fetched.RECORDS] : row[fetched.RECORDS_END]],
            )
        )
    return found
