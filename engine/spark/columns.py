"""The columns of the data source. They are those of Spark's Kafka source, in its order, and may all be null there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from topicfs.engine.errors import InvalidSettingError

if TYPE_CHECKING:
    import pyarrow as pa

_HEADER: Final = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
COLUMNS: Final = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestampType", IntegerType()),
    ]
)
HEADERS: Final = StructField("headers", ArrayType(_HEADER))
RECORDS: Final = StructField("records", LongType())
"""The column of a count. A row then tells of a part of a log how many records are in it, see `count`."""
_OF_COUNTS: Final = frozenset({"topic", "partition", RECORDS.name})
_NULL: Final = ("key", "value", "headers")
"""The columns in which nulls occur."""


def columns(include_headers: bool) -> StructType:
    """Return the schema of a query that names no columns."""
    return StructType([*COLUMNS.fields, HEADERS]) if include_headers else COLUMNS


def check(schema: StructType) -> StructType:
    """Return a query's schema if each of its columns is one of the data source's. Only these columns are then read."""
    known = {field.name: field.dataType for field in (*COLUMNS.fields, HEADERS)}
    if RECORDS.name in schema.names and _OF_COUNTS.issuperset(schema.names):
        known[RECORDS.name] = RECORDS.dataType
    for field in schema.fields:
        if known.get(field.name) != field.dataType:
            ours = ", ".join(f"{name} {kind.simpleString()}" for name, kind in known.items())
            raise InvalidSettingError(
                f"schema: expected columns among {ours}, found {field.name} {field.dataType.simpleString()}"
            )
        if not field.nullable and field.name in _NULL:
            # Spark would not check whether a value is null.
            raise InvalidSettingError(f"schema: expected a nullable {field.name}, which may be null")
    return schema


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the schema in Arrow, with exactly the names and nullability that Spark compares with."""
    from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415 - pyarrow, in tasks only

    return to_arrow_schema(schema, timezone="UTC")
