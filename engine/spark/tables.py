"""Topics as tables of SQL: a view for each, which looks at the log anew with every query.

A view made by `CREATE TEMPORARY VIEW … USING topicfs OPTIONS (…)`, or of a DataFrame, gives for ever what its first
query found: Spark plans a source in Python once. And of `CREATE TABLE … USING topicfs OPTIONS (…)` the reader is not
given the options. What does work is a table without options, which gets them in the query, and views of such queries:

    CREATE TABLE topicfs_orders (key BINARY, value BINARY, …) USING topicfs
    CREATE TEMPORARY VIEW orders AS SELECT * FROM topicfs_orders WITH (path = '/data', subscribe = 'orders')

Each topic has a table of its own. Where a query names one table twice, Spark may plan the source once, and give both
the records of whichever was planned first: of two topics that were joined through one table, both sides were the same
topic in one run of five.
"""

from __future__ import annotations

import hashlib
import os
import re
from typing import TYPE_CHECKING, Final

from topicfs.engine.errors import InvalidNameError
from topicfs.engine.spark.columns import COLUMNS
from topicfs.engine.spark.options import INTERNAL
from topicfs.engine.unlocked.place import place_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PREFIX: Final = "topicfs_"


def tables(spark: SparkSession, path: str | os.PathLike[str]) -> list[str]:
    """Make a temporary view of each topic, under its name, and return these names. See `topicfs.spark.tables`."""
    given = os.fspath(path).removeprefix("file://")
    present = {topic for topic, _ in place_of(given).partitions()}
    topics = sorted(present - INTERNAL)
    _refuse_one_name(topics)
    columns = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in COLUMNS.fields)
    # With its database's name, a table is not taken for a view that has the same name.
    database = f"`{spark.catalog.currentCatalog()}`.`{spark.catalog.currentDatabase()}`"
    for topic in topics:
        table = f"{database}.{_table_of(topic)}"
        spark.sql(f"CREATE TABLE IF NOT EXISTS {table} ({columns}) USING topicfs")
        # Names of topics have no character that could end the quotes.
        options = f"path = {_quoted(os.path.abspath(given))}, subscribe = '{topic}'"
        spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW `{topic}` AS SELECT * FROM {table} WITH ({options})")
    return topics


def _table_of(topic: str) -> str:
    """Return the name of a topic's table. Tables have letters, digits and underscores in their names only."""
    plain = re.sub(r"\W", "_", topic.lower())
    digest = hashlib.sha256(topic.encode()).hexdigest()[:8]
    return f"{_PREFIX}{plain}" if plain == topic.lower() else f"{_PREFIX}{plain}_{digest}"


def _refuse_one_name(topics: list[str]) -> None:
    """Raise InvalidNameError for names that Spark does not tell apart: one view would replace the other."""
    seen: dict[str, str] = {}
    for topic in topics:
        other = seen.setdefault(topic.lower(), topic)
        if other != topic:
            raise InvalidNameError(
                f"topic {topic}: expected names that differ by more than their case, found {other} too: make the views "
                f"with CREATE TEMPORARY VIEW yourself"
            )


def _quoted(text: str) -> str:
    """Return a literal of SQL."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
