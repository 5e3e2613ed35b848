"""The data source as a sink: rows become records, each batch once, through a mount and without one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from daemon_mount import DaemonMount, delete, eventually
from partition_opening import NOW
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from topicfs import Record, Store
from topicfs.engine.errors import EngineError
from topicfs.engine.inbox.inbox import Inbox
from topicfs.engine.kernels.murmur import murmur2
from topicfs.engine.spark import register, writer
from topicfs.engine.spark.source import TopicSource

AT = datetime.fromtimestamp(NOW / 1000, UTC)
HEADERS = "headers array<struct<key:string,value:binary>>"
ALL = f"key binary, value binary, topic string, partition int, timestamp timestamp, {HEADERS}"


class Door:
    """A log with a topic, as somebody writes to it who has a session: closed, or mounted.

    place  the path that is given to Spark
    """

    def __init__(self, spark: SparkSession, place: Path, backing: Path) -> None:
        self.spark = spark
        self.place = place
        self.backing = backing
        register(spark)

    def write(self, rows: DataFrame, **options: str) -> None:
        """One batch query, into t unless the rows or the options name a topic."""
        default = {} if "topic" in rows.columns else {"topic": "t"}
        given = {"path": str(self.place), **default, **options}
        rows.write.format("topicfs").options(**given).mode("append").save()

    def frame(self, rows: list[tuple[Any, ...]], schema: str, tasks: int = 1) -> DataFrame:
        return self.spark.createDataFrame(rows, schema).coalesce(1).repartition(tasks)

    def held(self, *options: str) -> dict[str, list[Record]]:
        """The records of each partition that has any, as they are read behind everybody's back."""
        query = (
            self.spark.read.format("topicfs").option("path", str(self.place)).option("includeHeaders", "true")
        )
        found: dict[str, list[Record]] = {}
        for row in (
            query.option("subscribePattern", ".*").load().orderBy("topic", "partition", "offset").collect()
        ):
            headers = tuple((each.key, each.value and bytes(each.value)) for each in row.headers or ())
            found.setdefault(f"{row.topic}-{row.partition}", []).append(
                Record(
                    row.value if row.value is None else bytes(row.value),
                    row.key if row.key is None else bytes(row.key),
                    round(row.timestamp.timestamp() * 1000),
                    headers,
                    row.offset,
                )
            )
        return found

    def values(self) -> list[bytes]:
        """All values of all partitions, sorted."""
        return sorted(record.value or b"" for records in self.held().values() for record in records)

    def staged(self) -> list[Path]:
        """What is left on its way in."""
        return [
            path
            for path in (self.backing / "staging").rglob("*")
            if path.is_file() and path.name not in ("committed", "journal", "_SUCCESS")
        ]


@pytest.fixture(scope="module")
def mount(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonMount]:
    served = DaemonMount(tmp_path_factory.mktemp("written"))
    try:
        served.start()
        yield served
        assert served.stop() == 0
        assert served.alarms() == []
    finally:
        served.clear()


@pytest.fixture(params=["closed", "mounted"])
def door(
    request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path, mount: DaemonMount
) -> Iterator[Door]:
    if request.param == "closed":
        with Store.open(tmp_path, create=True) as store:
            store.create_topic("t", 2)
            store.create_topic("u", 1)
        yield Door(spark, tmp_path, tmp_path)
    else:
        with mount.watched():
            for name in ("t-0", "t-1", "u-0"):
                (mount / name).mkdir()
            yield Door(spark, mount.path, mount.backing)
            for name in ("t-0", "t-1", "u-0"):
                delete(mount / name)


def test_all_that_a_record_has_is_written(door: Door) -> None:
    rows = [
        (b"k1", b"v1", "t", 1, AT, [("h", b"x"), ("h", None), ("ü", b"\xff")]),
        (None, b"\xff\n", "t", 1, AT, None),
        (b'q"\\\t', None, "t", 1, AT, []),
        (b"", b"", "u", None, AT, None),
    ]
    door.write(door.frame(rows, ALL))
    found = door.held()
    assert found["t-1"] == [
        Record(b"v1", b"k1", NOW, (("h", b"x"), ("h", None), ("ü", b"\xff")), 0),
        Record(b"\xff\n", None, NOW, (), 1),
        Record(None, b'q"\\\t', NOW, (), 2),
    ]
    assert found["u-0"] == [Record(b"", b"", NOW, (), 0)]
    assert door.staged() == []


def test_keys_are_routed_as_kafka_routes_them(door: Door) -> None:
    rows = [(f"key-{number}", f"v{number}") for number in range(40)]
    door.write(door.frame(rows, "key string, value string", tasks=2))
    found = door.held()
    assert {len(records) > 5 for records in found.values()} == {True}
    by_key = {record.key: name for name, records in found.items() for record in records}
    for key, name in by_key.items():
        hashed = murmur2(np.frombuffer(key or b"", np.uint8)) & 0x7FFFFFFF
        assert name == f"t-{hashed % 2}"
    door.write(door.frame(rows, "key string, value string", tasks=1))
    again = {record.key: name for name, records in door.held().items() for record in records}
    assert again == by_key


def test_a_named_batch_is_appended_once(door: Door) -> None:
    rows = door.frame([("a",), ("b",)], "value string", tasks=2)
    for _ in range(2):
        door.write(rows, batch="monday")
    assert door.values() == [b"a", b"b"]
    door.write(rows, batch="tuesday")
    door.write(rows)
    door.write(rows)
    assert len(door.values()) == 8


def test_other_rows_under_the_name_of_a_batch_that_was_appended_are_an_error(door: Door) -> None:
    rows = [("k1", "a", 0), ("k1", "b", None), (None, "a", 1)]
    schema = "key string, value string, partition int"
    door.write(door.frame(rows, schema), batch="monday")
    for other in (rows[:2], [*rows, rows[0]], [*rows[:2], (None, "c", 1)]):
        with pytest.raises(PySparkException, match="was committed before with other records"):
            door.write(door.frame(other, schema), batch="monday")
    door.write(door.frame(rows[::-1], schema, tasks=3), batch="monday")
    assert door.values() == [b"a", b"a", b"b"]
    assert door.staged() == []


def test_a_batch_that_comes_again_when_there_is_no_daemon_any_more_is_known(
    spark: SparkSession, tmp_path: Path
) -> None:
    served = DaemonMount(tmp_path)
    try:
        served.start()
        for name in ("t-0", "t-1", "u-0"):
            (served / name).mkdir()
        rows = [(b"k", b"v\n", "t", 1, AT, [("h", b"x")]), (b"", None, "u", None, None, None)]
        mounted = Door(spark, served.path, served.backing)
        mounted.write(mounted.frame(rows, ALL), batch="once")
        assert served.stop() == 0
        closed = Door(spark, served.backing, served.backing)
        closed.write(closed.frame(rows[::-1], ALL), batch="once")
        assert closed.values() == [b"", b"v\n"]
        with pytest.raises(PySparkException, match="was committed before with other records"):
            closed.write(closed.frame(rows[:1] * 2, ALL), batch="once")
        assert served.alarms() == []
    finally:
        served.clear()


def test_rows_of_the_sink_are_known_when_they_come_as_files(
    spark: SparkSession, mount: DaemonMount, tmp_path: Path
) -> None:
    """And the other way round: a batch is the same by whatever door and format it comes."""
    with mount.watched():
        for name in ("t-0", "t-1"):
            (mount / name).mkdir()
        door, inbox = Door(spark, mount.path, mount.backing), mount / "topics/t/inbox"
        rows = [
            (b"k", b"v\n", 1, AT, [("h", b"x")]),
            (b"", None, None, None, None),
            (None, b"\xff", 0, None, []),
        ]
        frame = door.frame(rows, f"key binary, value binary, partition int, timestamp timestamp, {HEADERS}")
        line = b'{"key":"k","value":"v\\n","partition":1,"timestamp":%d,"headers":{"h":"x"}}\n' % NOW
        line += b'{"key":"","value":null}\n{"value_base64":"/w==","partition":0}\n'

        def put_lines(batch: str) -> None:
            (inbox / batch).mkdir(exist_ok=True)
            (inbox / batch / "x.jsonl").write_bytes(line)
            (inbox / batch / "_SUCCESS").touch()

        doors: list[Callable[[str], None]] = [
            lambda batch: door.write(frame, batch=batch),
            lambda batch: frame.write.mode("overwrite").parquet(str(inbox / batch)),
            put_lines,
        ]
        for number, first in enumerate(doors):
            first(f"b{number}")
            for again in doors:
                again(f"b{number}")
            assert len(door.values()) == 3 * (number + 1)
        assert door.values() == sorted([b"v\n", b"", b"\xff"] * 3)
        for name in ("t-0", "t-1"):
            delete(mount / name)


def test_large_rows_are_written_in_batches_that_an_inbox_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "MOST_BYTES", 1000)
    rows = pa.record_batch({"value": [b"x" * 100] * 50 + [b"y" * 2000]})
    path = tmp_path / "x.arrow"
    sink = writer.Sink(path.open("xb"), rows.schema)
    sink.add(rows)
    sink.close()
    with pa.ipc.open_file(path) as file:
        written = [file.get_batch(number) for number in range(file.num_record_batches)]
    assert pa.Table.from_batches(written) == pa.Table.from_batches([rows])
    assert all(each.nbytes <= 1000 or each.num_rows == 1 for each in written)


def test_a_task_that_fails_leaves_nothing(door: Door) -> None:
    rows = door.spark.range(100).selectExpr(
        "if(id = 90, raise_error('as asked for'), cast(id as string)) as value"
    )
    with pytest.raises(PySparkException, match="as asked for"):
        door.write(rows.repartition(4))
    assert door.values() == []
    assert door.staged() == []


def test_a_batch_that_is_given_up_while_nothing_is_mounted_keeps_the_error_that_ended_it(
    tmp_path: Path,
) -> None:
    target = writer.WriteTarget(str(tmp_path), "t")
    given_up = writer.Staged("batch", 0, {"t": ".part-00000.arrow"})
    writer.TopicWriter(target, "batch").abort([given_up, None])
    writer.TopicStreamWriter(target).abort([given_up, None], 1)


def test_what_the_topic_refuses_is_refused_as_a_whole(door: Door) -> None:
    rows = door.frame([("a", 0), ("b", 7)], "value string, partition int")
    with pytest.raises(PySparkException, match="partition 7 is not one of 0 to 1"):
        door.write(rows, batch="bad")
    assert door.values() == []
    door.write(door.frame([("a", 0)], "value string, partition int"), batch="bad")
    assert door.values() == [b"a"]


def test_what_one_topic_refuses_is_appended_to_none(door: Door) -> None:
    schema = "value string, topic string, partition int"
    rows = [("a", "t", 0), ("b", "u", 0), ("c", "u", 7)]
    with pytest.raises(PySparkException, match="partition 7 is not one of 0 to 0"):
        door.write(door.frame(rows, schema, tasks=2), batch="bad")
    assert door.values() == []
    door.write(door.frame(rows[:2], schema, tasks=2), batch="bad")
    assert door.values() == [b"a", b"b"]
    with pytest.raises(PySparkException, match="was committed before with other records"):
        door.write(door.frame([("x", "t", 0), ("b", "u", 0)], schema), batch="bad")
    door.write(door.frame(rows[:2], schema), batch="bad")
    assert door.values() == [b"a", b"b"]
    assert door.staged() == []


def test_a_batch_that_one_of_its_topics_has_already_is_added_to_the_others(door: Door) -> None:
    rows = [("a", "t"), ("b", "u")]
    door.write(door.frame(rows[:1], "value string, topic string"), batch="again")
    for _ in range(2):
        door.write(door.frame(rows, "value string, topic string", tasks=2), batch="again")
        assert door.values() == [b"a", b"b"]
    assert door.staged() == []


def producers(log: Path) -> set[int]:
    """The ids in the headers of a segment's batches."""
    data, found, at = log.read_bytes(), set(), 0
    while at < len(data):
        found.add(int.from_bytes(data[at + 43 : at + 51], "big"))
        at += 12 + int.from_bytes(data[at + 8 : at + 12], "big")
    return found


def test_a_batch_of_several_topics_is_one_transaction(door: Door) -> None:
    """Also behind one of which only the beginning is there, as a driver that was killed has left it."""
    inboxes = writer.WriteTarget(str(door.place), None).inboxes
    for topic in ("t", "u"):
        (inboxes.directory(topic, "left") / "part-00000.arrow").write_bytes(b"of a task that does not count")
    if door.place != door.backing:
        (inboxes.directory("t", "left") / "_topics").write_text("u\n")
    door.write(door.frame([("a",)], "value string"), batch="left")
    assert door.values() == [b"a"]
    rows = [("a", "t", 0), ("b", "t", 1), ("c", "u", 0)]
    door.write(door.frame(rows, "value string, topic string, partition int", tasks=3), batch="left-2")
    assert door.values() == [b"a", b"a", b"b", b"c"]
    logs = [door.backing / "logs" / name / f"{0:020}.log" for name in ("t-0", "t-1", "u-0")]
    assert set.intersection(*map(producers, logs)), "no transaction is in all of the partitions"


class KilledError(BaseException):
    """The driver ends here."""


@pytest.mark.parametrize("topics", [("t",), ("t", "u")])
def test_a_driver_that_is_killed_behind_the_decision_takes_no_files_of_the_next_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, topics: tuple[str, ...]
) -> None:
    with Store.open(tmp_path, create=True) as store:
        for topic in topics:
            store.create_topic(topic, 1)
    inboxes = writer.ClosedInboxes(tmp_path)

    def attempt(number: int) -> None:
        files = {topic: [f".part-0000{number}.arrow"] for topic in topics}
        for topic, (file,) in files.items():
            rows = pa.record_batch({"value": [b"a"]})
            sink = writer.Sink((inboxes.directory(topic, "b") / file).open("xb"), rows.schema)
            sink.add(rows)
            sink.close()
        inboxes.commit("b", files)

    def killed(*_: object) -> None:
        raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(Inbox, "note_committed", killed)
        with pytest.raises(KilledError):
            attempt(1)
    attempt(2)
    with Store.open(tmp_path) as store:
        for topic in topics:
            assert [record.value for record in store.partition(topic, 0).records()] == [b"a"]
            assert store.inboxes.of(topic).staging.names(()) == []


def test_nothing_to_write_writes_nothing(door: Door) -> None:
    door.write(door.spark.range(0).selectExpr("cast(id as string) as value"))
    assert door.values() == []


def test_the_option_topic_outranks_the_column(door: Door) -> None:
    rows = [("a", "u"), ("b", None), ("c", "t"), ("d", "not there")]
    door.write(door.frame(rows, "value string, topic string"), topic=" t ")
    assert door.values() == [b"a", b"b", b"c", b"d"]
    assert {name.rpartition("-")[0] for name in door.held()} == {"t"}


def test_a_row_without_a_topic_is_refused_if_no_option_names_one(door: Door) -> None:
    rows = door.frame([("a", "u"), ("b", None)], "value string, topic string")
    with pytest.raises(PySparkException, match="found a null topic"):
        door.write(rows)
    assert door.values() == []


def test_columns_that_the_sink_does_not_know_are_passed_over(door: Door) -> None:
    door.write(
        door.frame([("a", 7, [("h", b"x")], 0, 1)], f"value string, id long, {HEADERS}, partition int, n int")
    )
    assert door.held() == {"t-0": [Record(b"a", None, door.held()["t-0"][0].timestamp, (("h", b"x"),), 0)]}
    read = door.spark.read.format("topicfs").option("path", str(door.place)).option("subscribe", "t")
    door.write(read.load(), topic="u")  # offset and timestampType are only read
    assert [record.value for record in door.held()["u-0"]] == [b"a"]


@pytest.mark.parametrize("said", ["true", "false"])
def test_headers_are_written_whatever_is_said_about_including_them(door: Door, said: str) -> None:
    options = {"includeHeaders": said, "kafka.bootstrap.servers": "localhost:9092", "kafka.acks": "all"}
    door.write(door.frame([("a", 0, [("h", b"x")])], f"value string, partition int, {HEADERS}"), **options)
    assert [record.headers for record in door.held()["t-0"]] == [(("h", b"x"),)]


@pytest.mark.parametrize(
    ("schema", "options", "words"),
    [
        ("value int", {}, "column value int: expected columns among"),
        ("value string, timestamp long", {}, "column timestamp bigint: expected columns among"),
        ("value string, headers map<string,binary>", {}, "column headers map<string,binary>: expected"),
        ("value string, Key string", {}, "column Key string: expected columns among"),
        ("value string", {"kafka.value.serializer": "x"}, "option kafka.value.serializer: not supported"),
        ("key string", {}, "expected a column value"),
        ("value string", {"topic": "a/b"}, "expected ASCII letters"),
        ("value string", {"acks": "all"}, "option acks: expected one of path, topic, batch"),
        ("value string", {"batch": "a/b"}, "option batch: expected up to 180 letters"),
    ],
)
def test_what_cannot_be_written_is_refused_in_words(
    spark: SparkSession, tmp_path: Path, schema: str, options: dict[str, str], words: str
) -> None:
    Store.open(tmp_path, create=True).close()
    source = TopicSource({"path": str(tmp_path), "topic": "t", **options})
    with pytest.raises(EngineError, match=words):
        source.writer(spark.createDataFrame([], schema).schema, overwrite=False)


def test_a_topic_that_is_not_there_is_refused(door: Door) -> None:
    with pytest.raises(PySparkException, match="topic none"):
        door.write(door.frame([("a",)], "value string"), topic="none")


def test_a_log_is_not_overwritten(door: Door) -> None:
    rows = door.frame([("a",)], "value string")
    with pytest.raises(AnalysisException, match="a log can only be appended to"):
        rows.write.format("topicfs").option("path", str(door.place)).option("topic", "t").mode(
            "overwrite"
        ).save()


# -- streams ------------------------------------------------------------------------------------------


def stream(door: Door, checkpoint: Path, broken: str = "false") -> StreamingQuery:
    """Everything of u, into t. Spark hands the name of a query to the sink as an option."""
    source = door.spark.readStream.format("topicfs").option("path", str(door.place)).option("topic", "u")
    rows = source.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", 10).load()
    rows = rows.selectExpr(f"if({broken}, raise_error('as asked for'), value) as value")
    sink = (
        rows.repartition(2).writeStream.format("topicfs").option("path", str(door.place)).option("topic", "t")
    )
    return (
        sink.option("checkpointLocation", str(checkpoint))
        .queryName("u to t")
        .trigger(availableNow=True)
        .start()
    )


def test_a_stream_writes_each_row_once_whatever_is_tried_again(door: Door, tmp_path: Path) -> None:
    wanted = [b"%03d" % number for number in range(25)]
    door.write(door.frame([(value,) for value in wanted], "value binary"), topic="u")
    checkpoint = tmp_path / "checkpoint"
    broken = stream(door, checkpoint, "value = cast('014' as binary)")
    with pytest.raises(PySparkException, match="as asked for"):
        broken.awaitTermination(60)
    assert sorted(door.values()) == sorted([*wanted, *wanted[:10]])
    # As a crash of the driver leaves it behind the sink's commit, and before its own: the batch comes again.
    (checkpoint / "commits" / "0").unlink()
    (checkpoint / "commits" / ".0.crc").unlink(missing_ok=True)
    stream(door, checkpoint).awaitTermination(60)
    assert sorted(door.values()) == sorted([*wanted, *wanted])
    assert door.staged() == []


def test_a_log_that_somebody_has_open_is_not_written_behind_his_back(
    spark: SparkSession, tmp_path: Path
) -> None:
    with Store.open(tmp_path, create=True) as store:
        store.create("t", 0)
        door = Door(spark, tmp_path, tmp_path)
        with pytest.raises(PySparkException, match="give its mount as path"):
            door.write(door.frame([("a",)], "value string"))
    assert door.values() == []


def test_a_log_that_somebody_has_open_for_a_moment_is_waited_for(spark: SparkSession, tmp_path: Path) -> None:
    door = Door(spark, tmp_path, tmp_path)
    store = Store.open(tmp_path, create=True)  # as another query does that commits
    store.create("t", 0)

    def close() -> None:
        eventually(door.staged, "the task has written", 60)
        time.sleep(0.5)  # the driver comes to its commit, most of the time
        store.close()

    with ThreadPoolExecutor(1) as pool:
        closed = pool.submit(close)
        door.write(door.frame([("a",)], "value string"))
        closed.result()
    assert door.values() == [b"a"]
    assert door.staged() == []
