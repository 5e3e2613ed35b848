"""Finding the earliest timestamps in a sealed segment. The segment is read once completely, and checked.

Records of aborted transactions count too, and so do markers: a record that nobody sees makes a bound looser, never
wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from topicfs.engine.batch.columns import records_of
from topicfs.engine.batch.table import Bytes, Longs
from topicfs.engine.cleaner.rewrite import check_offsets
from topicfs.engine.errors import CorruptBatchError
from topicfs.engine.kernels import min_timestamps as kernels
from topicfs.engine.kernels.decode import GOOD, PROBLEMS
from topicfs.engine.kernels.scan import BASE_OFFSET, BASE_TIMESTAMP, COUNT, LAST_OFFSET, POSITION
from topicfs.engine.min_timestamps.file import MinTimestamps
from topicfs.engine.segment.batch_file import CHUNK
from topicfs.engine.segment.segment import Segment


def build(
    segment: Segment, end_offset: int, stop: Callable[[], bool], chunk: int = CHUNK
) -> MinTimestamps | None:
    """Return the earliest timestamps of a segment whose records lie below `end_offset`, with an entry for each chunk
    of bytes. Return None if told to stop. Damage raises an error."""
    found: list[tuple[int, int]] = []
    base, last = segment.base_offset, segment.base_offset - 1
    for buffer, table in segment.log.batches(chunk=chunk, reuse=True):
        if stop():
            return None
        check_offsets(table, segment, last, end_offset)
        last = int(table[-1, LAST_OFFSET])
        found.append((min_timestamp_in(buffer, table), int(table[0, BASE_OFFSET]) - base))
    rising = tuple(_from_each_on(reversed(found)))
    return MinTimestamps(base, end_offset, rising[::-1])


def min_timestamp_in(buffer: Bytes, table: Longs) -> int:
    """Return the smallest timestamp of a chunk of batches. Without records it is the largest possible one."""
    origin = int(table[0, POSITION])
    least, row = kernels.NONE, 0
    while True:
        status, row, index, at, found = kernels.min_timestamps(buffer, origin, table, row)
        _raise_if_bad(status, table, row, index, at)
        least = min(least, int(found))
        if row == len(table):
            return least
        data = records_of(buffer, table[row], origin)
        count, base_timestamp = table[row, COUNT], table[row, BASE_TIMESTAMP]
        status, index, at, found = kernels.min_timestamp_record(data, 0, data.size, count, base_timestamp)
        _raise_if_bad(status, table, row, index, at)
        least = min(least, int(found))
        row += 1


def _raise_if_bad(status: int, table: Longs, row: int, index: int, at: int) -> None:
    if status != GOOD:
        raise CorruptBatchError(
            f"batch at offset {table[row, BASE_OFFSET]}, record {index} of {table[row, COUNT]}, byte {at}: "
            f"{PROBLEMS[status]}"
        )


def _from_each_on(backwards: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield the smallest timestamp from each chunk on, from the last chunk to the first. Entries with the same
    timestamp as one at a lower offset are left out."""
    waiting: tuple[int, int] | None = None
    for timestamp, offset in backwards:
        if waiting is not None and timestamp < waiting[0]:
            yield waiting
            waiting = (timestamp, offset)
        else:
            waiting = (timestamp if waiting is None else waiting[0], offset)
    if waiting is not None:
        yield waiting
