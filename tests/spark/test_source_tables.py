"""Topics in SQL: views that are live, and what Spark cannot do, in words."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from sources import Logs, logs, numbered

from topicfs.engine.errors import InvalidNameError
from topicfs.spark import tables


@pytest.fixture
def log(spark: SparkSession, tmp_path: Path) -> Iterator[Logs]:
    place = tmp_path / "a user's logs"
    place.mkdir()
    with logs(spark, place) as made:
        yield made
        for view in spark.catalog.listTables():
            spark.sql(f"DROP {'VIEW' if view.tableType == 'TEMPORARY' else 'TABLE'} IF EXISTS `{view.name}`")


def answer(spark: SparkSession, query: str) -> Any:
    return spark.sql(query).collect()[0][0]


def test_each_topic_is_a_table_that_every_query_looks_at_anew(spark: SparkSession, log: Logs) -> None:
    orders = log.create("orders")
    numbered(orders, 3)
    numbered(log.create("orders.eu-west"), 2)
    numbered(log.create("__consumer_offsets"), 1)
    assert tables(spark, log.place) == ["orders", "orders.eu-west"]
    assert answer(spark, "SELECT count(*) FROM orders WHERE offset > 0") == 2
    numbered(orders, 1)
    assert answer(spark, "SELECT count(*) FROM orders WHERE offset > 0") == 3
    assert answer(spark, "SELECT count(*) FROM orders o JOIN `orders.eu-west` e USING (offset)") == 2
    log.create("later")
    assert tables(spark, log.place) == ["later", "orders", "orders.eu-west"]


def test_the_table_topicfs_gives_any_topic_and_permanent_views_of_it(spark: SparkSession, log: Logs) -> None:
    log.create("empty")
    numbered(log.create("orders"), 5)
    tables(spark, log.place)
    place = str(log.place).replace("'", "\\'")
    chosen = f"topicfs WITH (path = '{place}', subscribe = 'orders', startingOffsets = '2')"
    assert answer(spark, f"SELECT count(*) FROM {chosen}") == 3
    spark.sql(f"CREATE VIEW late AS SELECT CAST(value AS STRING) AS text FROM {chosen}")
    assert answer(spark, "SELECT max(text) FROM late") == f"{4:090d}"
    spark.sql("DROP VIEW late")


def test_a_frame_that_is_used_again_keeps_what_it_found(spark: SparkSession, log: Logs) -> None:
    """As Spark plans a source in Python once. Kafka's source looks again."""
    orders = log.create("orders")
    numbered(orders, 3)
    frame = log.read(topic="orders")
    assert frame.count() == 3
    numbered(orders, 1)
    assert frame.count() == 3
    assert log.read(topic="orders").count() == 4


def test_a_table_with_options_says_what_to_do_instead(spark: SparkSession, log: Logs) -> None:
    log.create("orders")
    options = "OPTIONS (path '/', subscribe 'orders')"
    with pytest.raises(AnalysisException, match=r"name the columns in it, .* WITH \(path = '…'"):
        spark.sql(f"CREATE TABLE wrong USING topicfs {options}")
    spark.sql(f"CREATE TABLE half (value BINARY) USING topicfs {options}")
    with pytest.raises(AnalysisException, match=r"found none; of CREATE TABLE, .* WITH \(path = '…'"):
        spark.sql("SELECT * FROM half").collect()


def test_topics_that_spark_would_take_for_one_are_named(spark: SparkSession, log: Logs) -> None:
    log.create("orders")
    log.create("Orders")
    with pytest.raises(
        InvalidNameError, match=r"topic orders: expected names that differ .* found Orders too"
    ):
        tables(spark, log.place)


def test_a_topic_that_is_called_as_the_table_is_named(spark: SparkSession, log: Logs) -> None:
    log.create("topicfs")
    with pytest.raises(InvalidNameError, match="topic topicfs: expected"):
        tables(spark, log.place)
