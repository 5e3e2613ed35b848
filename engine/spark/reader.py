"""Batch queries. The plan is made from names and indexes, and one task reads each range of offsets."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from topicfs.engine.format.paths import VIEWS
from topicfs.engine.spark.acknowledge import SentToWorkers
from topicfs.engine.spark.columns import arrow_schema
from topicfs.engine.spark.options import Options
from topicfs.engine.spark.ranges import checked, chosen, resolved, tasks
from topicfs.engine.unlocked.offset_range import EVERYTHING, OffsetRange
from topicfs.engine.unlocked.partitions import TopicPartition, found
from topicfs.engine.unlocked.place import place_of
from topicfs.engine.unlocked.times import within_times

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql.types import StructType


class ReadTask(InputPartition):
    """A range of offsets, in the form that Spark sends to a worker. None reads nothing."""

    def __init__(self, value: OffsetRange | None) -> None:
        super().__init__(value)


class TopicReader(SentToWorkers, DataSourceReader):
    """The reader of one batch query.

    options  options of the query
    schema   columns that the query needs
    """

    def __init__(self, options: Options, schema: StructType) -> None:
        self.options = options
        self.schema = schema

    def partitions(self) -> list[InputPartition]:
        """Return a task for each range, and at least one: without any, Spark would make a task without a value."""
        place = place_of(self.options.path)
        options = self.options
        partitions = found(place, chosen(place, options))
        starts = resolved(partitions, options.starting, "startingOffsets", options.late_is_latest)
        ends = resolved(partitions, options.ending, "endingOffsets", True)
        spans = [
            (key, *span)
            for key, partition in partitions.items()
            for span in self._spans(
                partition, place.backing / VIEWS, *checked(partition, starts[key], ends[key], options)
            )
        ]
        planned = tasks(partitions, spans, options)
        return [ReadTask(part) for part in planned] or [ReadTask(None)]

    def _spans(
        self, partition: TopicPartition, views: Path, start: int, end: int
    ) -> Iterator[tuple[int, int]]:
        if self.options.times == EVERYTHING:
            yield start, end
        else:
            yield from within_times(partition, views, start, end, self.options.times)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return the records of a task."""
        return read(partition.value, self.schema)


def read(part: OffsetRange | None, schema: StructType) -> Iterator[pa.RecordBatch]:
    """Return the records of a range, with the columns of a schema."""
    first = "topicfs.engine.spark.scan" not in sys.modules
    from topicfs.engine.spark.scan import record_batches  # noqa: PLC0415 - loads the kernels, in tasks only

    if first:
        # Between tasks Spark's worker runs a garbage collection over all objects. Those of the compiler alone took
        # 60 ms, a tenth of the time of a task of TASK_BYTES.
        gc.freeze()

    return iter(()) if part is None else record_batches(part, arrow_schema(schema))
