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
        for each in spark.catalog.listTables():
            if each.tableType == "TEMPORARY":
                spark.catalog.dropTempView(each.name)
        for each in spark.catalog.listTables():
            spark.sql(f"DROP {'VIEW' if each.tableType == 'VIEW' else 'TABLE'} IF EXISTS `{each.name}`")


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
    spark.sql("CREATE TABLE topicfs (value BINARY, offset BIGINT) USING topicfs")
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


def test_topics_may_be_called_as_their_tables_are(spark: SparkSession, log: Logs) -> None:
    for count, name in enumerate(("topicfs", "orders", "topicfs_orders", "web-clicks", "web.clicks"), 1):
        numbered(log.create(name), count)
    assert len(tables(spark, log.place)) == 5
    for count, name in enumerate(("topicfs", "orders", "topicfs_orders", "web-clicks", "web.clicks"), 1):
        assert answer(spark, f"SELECT count(*) FROM `{name}`") == count


def test_topics_that_are_joined_are_each_read_by_themselves(spark: SparkSession, log: Logs) -> None:
    """When all of them rested on one table, each fifth query took both sides from the same topic."""
    numbered(log.create("orders"), 4)
    numbered(log.create("clicks"), 2)
    tables(spark, log.place)
    query = "SELECT o.topic, c.topic, offset FROM orders o JOIN clicks c USING (offset)"
    for _ in range(15):
        assert sorted(spark.sql(query).collect()) == [("orders", "clicks", 0), ("orders", "clicks", 1)]
