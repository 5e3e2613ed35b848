"""The daemon is killed under Spark jobs and started again: rows are neither lost nor doubled, on the way in or out."""

from __future__ import annotations

import json
import os
import random
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from daemon_mount import DaemonMount, append, eventually
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from topicfs.engine.errors import ClosedError
from topicfs.engine.spark import register
from topicfs.engine.spark.writer import MountedInboxes

LIMIT_S = 180.0
COUNT = 30
THOROUGH = os.environ.get("HYPOTHESIS_PROFILE") == "thorough"
STEPS = (2, 5, 8)
"""Steps of a commit before which a daemon is killed. A quick run tries one; tests/mount tries all, without Spark."""


class Gate:
    """Where the tasks of a query wait, in the middle of their rows.

    reached, opened  files that say so
    """

    def __init__(self, place: Path) -> None:
        self.reached = place / "reached"
        self.opened = place / "opened"

    def through(self, rows: DataFrame) -> DataFrame:
        """The rows; each task waits behind its first one until the gate is opened."""
        reached, opened = self.reached, self.opened

        def slowly(batches):  # type: ignore[no-untyped-def]
            end = time.monotonic() + LIMIT_S
            for batch in batches:
                yield batch.slice(0, 1)
                reached.touch()
                while not opened.exists():  # workers know no module of the tests
                    assert time.monotonic() < end, "the gate was not opened"
                    time.sleep(0.01)
                yield batch.slice(1)

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # that pandas is newer than PySpark knows
            return rows.mapInArrow(slowly, rows.schema)

    def kill_behind(self, mount: DaemonMount) -> None:
        """Kill the daemon when a task waits, and let it go on."""
        eventually(self.reached.exists, "a task is in the middle of its rows", LIMIT_S)
        mount.kill()
        self.opened.touch()


@pytest.fixture
def mount(tmp_path: Path, spark: SparkSession) -> Iterator[DaemonMount]:
    register(spark)
    served = DaemonMount(tmp_path)
    try:
        served.start()
        for name in ("in-0", "a-0", "b-0"):
            (served / name).mkdir()
        yield served
        with served.watched():
            assert served.stop() == 0
        assert served.alarms() == []
    finally:
        served.clear()


def add(mount: DaemonMount, first: int) -> None:
    """So many records more in the topic `in`."""
    lines = [f"k{n % 7}\tv{n:03d}\n" for n in range(first, first + COUNT)]
    append(mount / "in-0" / "log.tsv", "".join(lines).encode())


def held(mount: DaemonMount, topic: str) -> list[str]:
    """The values of a topic, in order of offsets, as the mount shows them."""
    return [
        json.loads(line)["value"] for line in (mount / f"{topic}-0" / "log.jsonl").read_text().splitlines()
    ]


def wanted(count: int) -> list[str]:
    return [f"v{n:03d}" for n in range(count)]


def read(spark: SparkSession, path: Path) -> DataFrame:
    """A batch query."""
    rows = spark.read.format("topicfs").option("path", str(path)).option("topic", "in").load()
    return rows.selectExpr("key", "cast(value as string) as value", "offset")


def values(rows: DataFrame) -> list[str]:
    return [row.value for row in sorted(rows.collect(), key=lambda row: row.offset)]


def write(
    spark: SparkSession, mount: DaemonMount, checkpoint: Path, gate: Gate | None = None
) -> StreamingQuery:
    """A stream from `in` to `a` and `b`, which ends when it has written what is there."""
    rows = spark.readStream.format("topicfs").option("path", str(mount.path)).option("topic", "in")
    rows = rows.option("startingOffsets", "earliest").load()
    chosen = rows.selectExpr("key", "value", "if(offset % 2 = 0, 'a', 'b') as topic")
    chosen = (gate.through(chosen) if gate is not None else chosen).repartition(2)
    sink = chosen.writeStream.format("topicfs").option("path", str(mount.path))
    return sink.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()


def test_a_stream_whose_tasks_write_while_the_daemon_is_killed_says_so_and_goes_on(
    spark: SparkSession, mount: DaemonMount, tmp_path: Path
) -> None:
    add(mount, 0)
    gate = Gate(tmp_path)
    query = write(spark, mount, tmp_path / "checkpoint", gate)
    gate.kill_behind(mount)
    with pytest.raises(PySparkException, match="the daemon of this mount has ended"):
        query.awaitTermination(LIMIT_S)
    mount.start()
    write(spark, mount, tmp_path / "checkpoint", gate).awaitTermination(LIMIT_S)
    assert sorted(held(mount, "a") + held(mount, "b")) == wanted(COUNT)
    assert not list((mount.backing / "staging").rglob("*part-*"))


def test_a_task_does_not_take_its_topic_for_missing_when_its_mount_has_gone(mount: DaemonMount) -> None:
    inboxes = MountedInboxes(mount.path)
    directory = inboxes.directory("a", "batch")
    mount.stop()
    with pytest.raises(ClosedError, match="the daemon of this mount has ended"):
        inboxes.directory("a", "batch")
    with pytest.raises(ClosedError, match="the daemon of this mount has ended"), inboxes.served():
        (directory / "part-00000.arrow").touch()
    mount.start()


@pytest.mark.parametrize("step", STEPS if THOROUGH else [None])
def test_a_stream_writes_each_row_once_and_to_all_topics_or_none_when_the_daemon_is_killed_in_a_commit(
    spark: SparkSession, mount: DaemonMount, tmp_path: Path, step: int | None
) -> None:
    step = random.choice(STEPS) if step is None else step
    add(mount, 0)
    mount.steer("die_in_commit", mount / "a-0", step)
    query = write(spark, mount, tmp_path / "checkpoint")
    with pytest.raises(PySparkException, match="is appended to a, b is not known before that"):
        query.awaitTermination(LIMIT_S)
    assert mount.process is not None
    mount.process.wait(LIMIT_S)
    mount.start()
    assert sorted(held(mount, "a") + held(mount, "b")) in ([], wanted(COUNT))
    write(spark, mount, tmp_path / "checkpoint").awaitTermination(LIMIT_S)
    assert sorted(held(mount, "a")) == wanted(COUNT)[::2]
    assert sorted(held(mount, "b")) == wanted(COUNT)[1::2]
    assert not list((mount.backing / "staging").rglob("*part-*"))


def test_reading_goes_on_by_the_files_while_there_is_no_daemon(
    spark: SparkSession, mount: DaemonMount, tmp_path: Path
) -> None:
    add(mount, 0)
    gate = Gate(tmp_path)
    stream = spark.readStream.format("topicfs").option("path", str(mount.path)).option("topic", "in")
    rows = stream.option("startingOffsets", "earliest").load().selectExpr("cast(value as string)", "offset")
    query = rows.writeStream.format("memory").queryName("followed").start()
    followed = spark.table("followed")
    try:
        query.processAllAvailable()
        with ThreadPoolExecutor(1) as pool:
            under_way = pool.submit(values, gate.through(read(spark, mount.path)))
            gate.kill_behind(mount)
            assert under_way.result(LIMIT_S) == wanted(COUNT)
        with pytest.raises(PySparkException, match="mount it again, or give its backing directory"):
            read(spark, mount.path).collect()
        assert values(read(spark, mount.backing)) == wanted(COUNT)
        query.processAllAvailable()
        mount.clear()  # as it is for a moment when the next daemon clears the dead mount away
        query.processAllAvailable()
        mount.start()
        add(mount, COUNT)
        assert values(read(spark, mount.path)) == wanted(2 * COUNT)
        query.processAllAvailable()
        assert values(followed) == wanted(2 * COUNT)
    finally:
        query.stop()
