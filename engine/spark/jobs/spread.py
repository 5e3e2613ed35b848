"""Running one task for each piece of work, and the schema that Spark needs for frames made by tasks."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

T = TypeVar("T")


def spread(
    spark: SparkSession, pieces: Sequence[T], work: Callable[[T], Iterable[dict[str, Any]]], schema: pa.Schema
) -> DataFrame:
    """Return the rows that `work` gives for each piece, with the columns of the schema. The frame is lazy: each
    action does the work again."""

    def each(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                yield pa.RecordBatch.from_pylist(list(work(pieces[number])), schema)

    return map_in_arrow(spark.range(0, len(pieces), 1, max(1, len(pieces))), each, schema)


def map_in_arrow(
    frame: DataFrame, work: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]], schema: pa.Schema
) -> DataFrame:
    """Call `mapInArrow`. Spark asks for pandas there, and warns of its newer versions: only Arrow is used here."""
    from pyspark.sql.pandas.types import from_arrow_schema  # noqa: PLC0415 - tasks need no more than pyarrow

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
        return frame.mapInArrow(work, from_arrow_schema(schema))
