"""Checking a log on Spark: the check of `topicfs verify`, with a task for each segment.

What lies beside the segments is small, and is left to `topicfs verify`. Nothing is changed or locked, so it works
beside a daemon. Batches that a daemon appends behind the last one in the meantime are not checked.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from topicfs.engine.format.paths import VIEWS
from topicfs.engine.spark.jobs.spread import spread
from topicfs.engine.unlocked.files import listed
from topicfs.engine.unlocked.place import Place

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

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


@dataclass(frozen=True, slots=True)
class VerifyPiece:
    """One segment.

    topic, number, directory  topic, number and directory of its partition
    base                      its base offset
    end                       base offset of the next segment, None for the last one
    views                     directory of what is made from the partition's segments
    """

    topic: str
    number: int
    directory: Path
    base: int
    end: int | None
    views: Path | None = None


def verify(spark: SparkSession, place: Place, topics: Collection[str] | None = None) -> DataFrame:
    """Return a row for each segment of all topics, or of these, with all of its problems. A good segment has none."""
    pieces = []
    for (topic, number), logs in sorted(place.partitions().items()):
        if topics is None or topic in topics:
            directory = logs / f"{topic}-{number}"
            views = place.backing / VIEWS / directory.name
            bases = listed(directory).bases
            pieces += [
                VerifyPiece(topic, number, directory, base, end, views)
                for base, end in zip(bases, (*bases[1:], None), strict=True)
            ]
    return spread(spark, pieces, rows_of, REPORT)


def rows_of(piece: VerifyPiece) -> Iterator[dict[str, Any]]:
    """Yield the report's row of a segment. There is none if the segment was removed after it was listed."""
    from topicfs.engine.verify.segment import SegmentPiece, check  # noqa: PLC0415 - the kernels, in tasks only

    # Nobody can tell a task whether the log is open somewhere, so what is being appended is never a problem.
    wanted = SegmentPiece(piece.directory, piece.base, piece.end, growing=True, views=piece.views)
    report = check(wanted)
    if report is None:
        if not piece.directory.parent.is_dir():
            raise FileNotFoundError(f"{piece.directory.parent}: this machine cannot see the log")
        return
    yield {
        "topic": piece.topic,
        "partition": piece.number,
        "segment": piece.base,
        "next_offset": report.gathered.next_offset,
        "bytes": report.size,
        "batches": report.gathered.batches,
        "records": report.gathered.records,
        "problems": [str(finding) for finding in report.findings],
    }
