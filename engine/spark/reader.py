"""Batch queries. The plan is made from names and indexes, and one task reads each range of offsets."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, InputPartition

from topicfs.engine.format.paths import VIEWS
from topicfs.engine.spark.columns import arrow_schema
from topicfs.engine.spark.filters import EVERYTHING, Filters, TimeBounds
from topicfs.engine.spark.offset_range import OffsetRange
from topicfs.engine.spark.options import Options
from topicfs.engine.spark.place import place_of
from topicfs.engine.spark.ranges import (
    TopicPartition,
    checked,
    chosen,
    found,
    resolved,
    tasks,
    within_times,
)

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql.datasource import Filter
    from pyspark.sql.types import StructType


class ReadTask(InputPartition):
    """A range of offsets, in the form that Spark sends to a worker. None reads nothing."""

    def __init__(self, value: OffsetRange | None) -> None:
        super().__init__(value)


class _Pushing:
    """The method `pushFilters` of a reader that accepts filters.

    Spark refuses a reader whose class overrides that method while `spark.sql.python.filterPushdown.enabled` is off,
    and does not tell the reader whether it is. Spark checks `__func__`. So this object looks like the method that
    was not overridden, and is called when filters are pushed.
    """

    __func__ = staticmethod(DataSourceReader.pushFilters)

    def __init__(self, filters: Filters) -> None:
        self.filters = filters

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        return self.filters.push(filters)


class TopicReader(DataSourceReader):
    """The reader of one batch query.

    options  options of the query
    schema   columns that the query needs
    filters  bounds from Spark's filters
    """

    def __init__(self, options: Options, schema: StructType) -> None:
        self.options = options
        self.schema = schema
        self.filters = Filters()
        if options.push_filters:
            self.pushFilters: Any = _Pushing(self.filters)

    def partitions(self) -> list[InputPartition]:
        """Return a task for each range, and at least one: without any, Spark would make a task without a value."""
        place = place_of(self.options.path)
        options, filters = self.options, self.filters
        partitions = found(place, chosen(place, options))
        starts = resolved(partitions, options.starting, "startingOffsets", options.late_is_latest)
        ends = resolved(partitions, options.ending, "endingOffsets", True)
        spans = [
            (key, *span)
            for key, partition in partitions.items()
            if filters.takes(*key)
            for span in self._spans(
                partition, place.backing / VIEWS, *checked(partition, starts[key], ends[key], options)
            )
        ]
        planned = tasks(partitions, spans, options)
        return [ReadTask(part) for part in planned] or [ReadTask(None)]

    def _spans(
        self, partition: TopicPartition, views: Path, start: int, end: int
    ) -> Iterator[tuple[int, int]]:
        offsets, times = self.filters.offsets, self.filters.of_records
        start, end = max(start, offsets.first), min(end, offsets.last + 1)
        if times == EVERYTHING:
            yield start, end
        elif start < end:
            yield from within_times(partition, views, start, end, times)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return the records of a task."""
        return read(partition.value, self.schema, self.filters.of_records)


def read(part: OffsetRange | None, schema: StructType, times: TimeBounds) -> Iterator[pa.RecordBatch]:
    """Return the records of a range, with the columns of a schema."""
    first = "topicfs.engine.spark.scan" not in sys.modules
    from topicfs.engine.spark.scan import record_batches  # noqa: PLC0415 - loads the kernels, in tasks only

    if first:
        # Between tasks Spark's worker runs a garbage collection over all objects. Those of the compiler alone took
        # 60 ms, a tenth of the time of a task of TASK_BYTES.
        gc.freeze()

    return iter(()) if part is None else record_batches(part, arrow_schema(schema), times)
