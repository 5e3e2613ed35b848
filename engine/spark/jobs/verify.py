"""Checking a log: every batch by its checksum, every record by the format, every index entry by the batch that it
names.

There is one task for each segment. Nothing is changed or locked, so it works beside a daemon. Batches that a daemon
appends behind the last one in the meantime are not checked.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from topicfs.engine.files.listing import Listing
from topicfs.engine.spark.jobs.spread import spread
from topicfs.engine.unlocked.files import listed, offset_index, time_index
from topicfs.engine.unlocked.place import Place

if TYPE_CHECKING:
    import numpy as np
    from pyspark.sql import DataFrame, SparkSession

    from topicfs.engine.batch.table import Longs
    from topicfs.engine.segment.segment import Segment

REPORT: Final[pa.Schema] = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("segment", pa.int64()),
        ("next_offset", pa.int64()),
        ("bytes", pa.int64()),
        ("batches", pa.int64()),
        ("records", pa.int64()),
        ("problems", pa.list_(pa.string())),
    ]
)
_MOST_TOLD: Final = 20
"""The most problems of a segment that are listed; the report says how many more there are."""


@dataclass(frozen=True, slots=True)
class VerifyPiece:
    """One segment.

    topic, number, directory  topic, number and directory of its partition
    base                      its base offset
    end                       base offset of the next segment, None for the last one
    """

    topic: str
    number: int
    directory: Path
    base: int
    end: int | None


def verify(spark: SparkSession, place: Place, topics: Collection[str] | None = None) -> DataFrame:
    """Return a row for each segment of all topics, or of these, with all of its problems. A good segment has none."""
    pieces = []
    for topic, number in sorted(Listing.of(place.logs).partitions):
        if topics is None or topic in topics:
            directory = place.logs / f"{topic}-{number}"
            bases = listed(directory).bases
            pieces += [
                VerifyPiece(topic, number, directory, base, end)
                for base, end in zip(bases, (*bases[1:], None), strict=True)
            ]
    return spread(spark, pieces, rows_of, REPORT)


def rows_of(piece: VerifyPiece) -> Iterator[dict[str, Any]]:
    """Yield the report's row of a segment. There is none if the segment was removed or replaced after it was listed."""
    from topicfs.engine.errors import EngineError  # noqa: PLC0415 - the kernels, in tasks only
    from topicfs.engine.record import now_ms  # noqa: PLC0415
    from topicfs.engine.segment.descriptors import Descriptors  # noqa: PLC0415
    from topicfs.engine.segment.segment import Segment  # noqa: PLC0415
    from topicfs.engine.segment.settings import SegmentSettings  # noqa: PLC0415

    check = _PieceCheck(piece)
    segment = Segment(piece.directory, piece.base, SegmentSettings(), now_ms, Descriptors())
    try:
        try:
            opened = segment.log.file.descriptor()
            try:
                check.run(segment)
            except EngineError as error:
                check.say(str(error))
            if not os.path.samestat(os.fstat(opened.fd), os.stat(segment.log.path)):
                # The replacement is checked when it is listed: its indexes are not those that were read.
                return
        except FileNotFoundError:
            if not piece.directory.parent.is_dir():
                raise  # nothing was removed: this machine cannot see the log
            return
        yield {
            "topic": piece.topic,
            "partition": piece.number,
            "segment": piece.base,
            "next_offset": check.next_offset,
            "bytes": segment.size,
            "batches": check.batches,
            "records": check.records,
            "problems": check.told(),
        }
    finally:
        segment.abandon()


class _PieceCheck:
    """The check of one segment, and its results.

    next_offset  offset behind the last batch
    problems     the first problems, in words
    more         number of problems that were left out
    """

    def __init__(self, piece: VerifyPiece) -> None:
        self.piece = piece
        self.next_offset = piece.base
        self.batches = 0
        self.records = 0
        self.problems: list[str] = []
        self.more = 0

    def say(self, problem: str) -> None:
        if len(self.problems) < _MOST_TOLD:
            self.problems.append(problem)
        else:
            self.more += 1

    def told(self) -> list[str]:
        return [*self.problems, f"and {self.more} more"] if self.more else self.problems

    def run(self, segment: Segment) -> None:
        from topicfs.engine import batch as batches  # noqa: PLC0415 - the kernels, in tasks only
        from topicfs.engine.kernels.scan import BASE_OFFSET, LAST_OFFSET, POSITION  # noqa: PLC0415

        tables: list[Longs] = []
        try:
            for buffer, table in segment.log.batches(partial_ok=self.piece.end is None, ordered=False):
                tables.append(table)
                self.batches += len(table)
                for columns in batches.columns(buffer, table, int(table[0, POSITION])):
                    self.records += len(columns)
                for at in range(len(table)):
                    if table[at, BASE_OFFSET] < self.next_offset:
                        self.say(
                            f"batch at position {table[at, POSITION]}: expected an offset from {self.next_offset} on, "
                            f"found {table[at, BASE_OFFSET]}"
                        )
                    self.next_offset = int(table[at, LAST_OFFSET]) + 1
        finally:
            self._check_indexes(segment, tables)
        if self.piece.end is not None and self.next_offset > self.piece.end:
            self.say(
                f"expected offsets below the next segment's {self.piece.end}, found {self.next_offset - 1}"
            )

    def _check_indexes(self, segment: Segment, tables: list[Longs]) -> None:
        import numpy as np  # noqa: PLC0415

        from topicfs.engine.kernels.scan import COLUMNS  # noqa: PLC0415

        table = np.concatenate(tables) if tables else np.empty((0, COLUMNS), np.int64)
        # The index files of an active segment are created with their first entries.
        if self.piece.end is not None and not segment.offset_index.exists():
            self.say("there is no offset index")
        self._check_offsets(table)
        self._check_times(table)
        segment.offset_index.check_length()
        segment.time_index.check_length()
        segment.transactions.sanity_check()

    def _check_offsets(self, table: Longs) -> None:
        """Check that each entry names the last offset of a batch, and the position where the batch begins."""
        from topicfs.engine.kernels.scan import LAST_OFFSET, POSITION  # noqa: PLC0415

        places = {int(position): int(last) for position, last in table[:, (POSITION, LAST_OFFSET)].tolist()}
        index, before = offset_index(self.piece.directory, self.piece.base), -1
        for number in range(index.entries):
            relative, position = index.at(number)
            found = places.get(position)
            # An entry behind the batches that were read belongs to a later append.
            if found != self.piece.base + relative and position <= max(places, default=-1):
                self.say(
                    f"offset index, entry {number}: expected a batch at position {position} that ends with offset "
                    f"{self.piece.base + relative}, found {'none' if found is None else found}"
                )
            if relative <= before:
                self.say(
                    f"offset index, entry {number}: expected offsets that rise above {before}, found {relative}"
                )
            before = relative

    def _check_times(self, table: Longs) -> None:
        """Check that each entry has the largest timestamp so far, and the last offset of a batch that has this
        timestamp."""
        import numpy as np  # noqa: PLC0415

        from topicfs.engine.kernels.scan import LAST_OFFSET, MAX_TIMESTAMP  # noqa: PLC0415

        lasts, times = table[:, LAST_OFFSET], table[:, MAX_TIMESTAMP]
        largest: np.ndarray[Any, Any] = np.maximum.accumulate(times) if len(times) else times
        index, before = time_index(self.piece.directory, self.piece.base), -1
        for number in range(index.entries):
            timestamp, relative = index.at(number)
            offset = self.piece.base + relative
            row = int(np.searchsorted(lasts, offset))
            if timestamp <= before:
                self.say(
                    f"time index, entry {number}: expected timestamps that rise above {before}, found {timestamp}"
                )
            before = timestamp
            if len(lasts) and offset > lasts[-1]:
                continue  # it belongs to a later append, or to a part that could not be read
            if (
                row == len(lasts)
                or lasts[row] != offset
                or times[row] != timestamp
                or largest[row] != timestamp
            ):
                found = f"{times[row]} of {largest[row]} so far" if row < len(lasts) else "none"
                self.say(
                    f"time index, entry {number}: expected a batch that ends with offset {offset} and has the largest "
                    f"timestamp so far, {timestamp}, found {found}"
                )
