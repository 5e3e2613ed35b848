"""Topics as tables of SQL: a view for each, which looks at the log anew with every query.

A view made by `CREATE TEMPORARY VIEW … USING topicfs OPTIONS (…)`, or of a DataFrame, gives for ever what its first
query found: Spark plans a source in Python once. And of `CREATE TABLE … USING topicfs OPTIONS (…)` the reader is not
given the options. What does work is a table without options, which gets them in the query, and views of such queries:

    CREATE TABLE topicfs (key BINARY, value BINARY, …) USING topicfs
    CREATE TEMPORARY VIEW orders AS SELECT * FROM topicfs WITH (path = '/data', subscribe = 'orders')
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from topicfs.engine.errors import InvalidNameError
from topicfs.engine.spark.columns import COLUMNS
from topicfs.engine.spark.options import INTERNAL
from topicfs.engine.unlocked.place import place_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TABLE: Final = "topicfs"


def tables(spark: SparkSession, path: str | os.PathLike[str]) -> list[str]:
    """Make a temporary view of each topic, under its name, and return these names. See `topicfs.spark.tables`."""
    given = os.fspath(path).removeprefix("file://")
    present = {topic for topic, _ in place_of(given).partitions()}
    topics = sorted(present - INTERNAL)
    _refuse_one_name(topics)
    columns = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in COLUMNS.fields)
    spark.sql(f"CREATE TABLE IF NOT EXISTS {TABLE} ({columns}) USING topicfs")
    for topic in topics:
        # Names of topics have no character that could end the quotes.
        options = f"path = {_quoted(os.path.abspath(given))}, subscribe = '{topic}'"
        spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW `{topic}` AS SELECT * FROM {TABLE} WITH ({options})")
    return topics


def _refuse_one_name(topics: list[str]) -> None:
    """Raise InvalidNameError for names that Spark does not tell apart: one view would replace the other."""
    seen = {TABLE: TABLE}
    for topic in topics:
        other = seen.setdefault(topic.lower(), topic)
        if other != topic or topic == TABLE:
            raise InvalidNameError(
                f"topic {topic}: expected names that differ by more than their case, and none like the table "
                f"{TABLE}, found {other} too: make the views with CREATE TEMPORARY VIEW yourself"
            )


def _quoted(text: str) -> str:
    """Return a literal of SQL."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
