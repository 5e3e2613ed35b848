"""Reading files of rows for an import. Columns with other names are left out; times and bytes get their types."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from topicfs.engine.errors import InvalidSettingError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FORMATS: Final = ("text", "json", "parquet", "csv")
_JSON: Final = (
    "key string, value string, key_base64 string, value_base64 string, partition int, timestamp bigint, "
    "headers array<struct<key:string,value:string,key_base64:string,value_base64:string>>"
)
_MEANT: Final = {
    "key": "coalesce(cast(key as binary), unbase64(key_base64)) as key",
    "value": "coalesce(cast(value as binary), unbase64(value_base64)) as value",
    "partition": "partition",
    "timestamp": "timestamp_millis(timestamp) as timestamp",
    "headers": "transform(headers, h -> struct(coalesce(h.key, cast(unbase64(h.key_base64) as string)) as key, "
    "coalesce(cast(h.value as binary), unbase64(h.value_base64)) as value)) as headers",
}
"""The expression for each column from members of jsonl, as the topic's own views write them."""

_TYPES: Final = {
    "key": "binary",
    "value": "binary",
    "partition": "int",
    "timestamp": "timestamp",
    "headers": "array<struct<key:string,value:binary>>",
}


def rows_of(spark: SparkSession, kind: str, paths: Sequence[str], sort_by: Sequence[str] = ()) -> DataFrame:
    """Return the rows of some files. Lines of text are values, json is as in jsonl views, and parquet and csv have
    the data source's column names."""
    if kind == "json":
        frame = spark.read.schema(_JSON).json(list(paths)).selectExpr(*_MEANT.values())
    elif kind == "text":
        frame = spark.read.text(list(paths))
    elif kind in FORMATS:
        reader = spark.read.option("header", "true") if kind == "csv" else spark.read
        loaded = reader.format(kind).load(list(paths))
        frame = loaded.selectExpr(
            *(f"cast({name} as {_TYPES[name]}) as {name}" for name in loaded.columns if name in _TYPES)
        )
    else:
        raise InvalidSettingError(f"format: expected one of {', '.join(FORMATS)}, found {kind}")
    return frame.sort(*sort_by) if sort_by else frame
