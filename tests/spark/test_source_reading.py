"""The data source in batch queries: rows are the engine's records, whatever they are stored like."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest
from partition_opening import NOW
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.types import BinaryType, StructField, StructType
from sources import Logs, in_order, logs, numbered, pushing

from topicfs import Record
from topicfs.engine.errors import EngineError, InvalidSettingError, OffsetOutOfRangeError
from topicfs.engine.partition.partition import Producer
from topicfs.engine.spark import ranges
from topicfs.engine.spark.options import parse
from topicfs.engine.unlocked.limits import Limit
from topicfs.spark import read


@pytest.fixture
def log(spark: SparkSession, tmp_path: Path) -> Iterator[Logs]:
    with logs(spark, tmp_path) as made:
        yield made


VARIED = [
    Record(b"value", b"key", NOW),
    Record(None, b"key", NOW + 1),
    Record(b"", b"", NOW + 2),
    Record(b"\xff\x00\n", None, -1),
    Record("grün".encode(), b"k", NOW - 5, (("a", b"1"), ("a", None), ("ü", b""))),
]


def test_rows_are_the_records_whatever_the_codec(log: Logs) -> None:
    codecs = ("uncompressed", "gzip", "snappy", "lz4", "zstd")
    for codec in codecs:
        partition = log.create(codec, compression_type=codec)
        for _ in range(3):
            partition.append(VARIED)
    held = sorted((row for codec in codecs for row in log.held(codec)), key=lambda row: row[2:5])
    assert log.rows(subscribePattern=".*") == held
    assert len(held) == 75


def test_the_columns_are_those_of_sparks_kafka_source(log: Logs) -> None:
    log.create()
    assert log.read(includeHeaders="true").schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,"
        "timestampType:int,headers:array<struct<key:string,value:binary>>>"
    )
    assert "headers" not in log.read().columns


def test_the_time_of_the_append_is_told_from_the_producers(log: Logs) -> None:
    log.create(message_timestamp_type="LogAppendTime").append(VARIED)
    assert {row[5:7] for row in log.rows()} == {row[5:7] for row in log.held()}
    assert {row[6] for row in log.rows()} == {1}


def test_many_batches_in_many_segments_of_many_partitions(log: Logs) -> None:
    for number in range(3):
        numbered(log.create("t", number, **({"segment_bytes": 1000} if not number else {})), 40 + number)
    numbered(log.create("other"), 5)
    assert log.rows() == log.held()
    assert log.rows(topic="t,other") == log.held("other") + log.held()
    assert log.rows(subscribePattern="o.*r") == log.held("other")
    assert log.rows(assign='{"t":[1]}') == [row for row in log.held() if row[3] == 1]


def test_an_empty_topic_has_no_rows(log: Logs) -> None:
    log.create()
    assert log.rows() == []


def test_only_committed_records_show(log: Logs) -> None:
    partition = log.create(segment_bytes=1000)
    numbered(partition, 5)
    for producer, commit in ((1, True), (2, False), (3, True)):
        partition.append([Record(b"%d" % producer * 50, b"k", NOW)] * 6, Producer(producer, 0, 0, True))
        numbered(partition, 3)
        partition.end_transaction(producer, 0, commit)
    numbered(partition, 3)
    partition.append(Record(b"open", b"k", NOW), Producer(4, 0, 0, True))
    partition.append(Record(b"behind it", b"k", NOW))
    partition.append(Record(b"aborted behind it", b"k", NOW), Producer(5, 0, 0, True))
    partition.end_transaction(5, 0, False)
    assert log.rows() == log.held()
    assert len(log.rows()) == 29
    partition.end_transaction(4, 0, True)
    assert log.rows() == log.held()
    assert len(log.rows()) == 31
    log.store.close()
    held = log.rows()
    log.reopen()
    assert held == log.held()


def test_a_transaction_that_spans_a_roll_is_still_open(log: Logs) -> None:
    partition = log.create()
    partition.append(Record(b"a", b"k", NOW))
    partition.append(Record(b"open", b"k", NOW), Producer(4, 0, 0, True))
    partition.roll()
    partition.append(Record(b"b", b"k", NOW))
    assert [row[1] for row in log.rows()] == [b"a"]
    partition.end_transaction(4, 0, False)
    assert [row[1] for row in log.rows()] == [b"a", b"b"]


def test_only_the_columns_asked_for_are_read(log: Logs) -> None:
    numbered(log.create(), 3)
    reader = log.spark.read.format("topicfs").options(**log.options()).schema("offset long, value binary")
    assert [tuple(row) for row in reader.load().select("offset").collect()] == [(0,), (1,), (2,)]
    wrong = log.spark.read.format("topicfs").options(**log.options()).schema("offset int")
    with pytest.raises(AnalysisException, match="expected columns among"):
        wrong.load().collect()
    never = StructType([StructField("value", BinaryType(), nullable=False)])
    with pytest.raises(AnalysisException, match="expected a nullable value, which may be null"):
        log.spark.read.format("topicfs").options(**log.options()).schema(never).load().collect()


def test_all_columns_may_be_null_as_those_of_kafkas_source(log: Logs) -> None:
    numbered(log.create(), 3)
    fields = log.read(includeHeaders="true").schema.fields
    assert [field.name for field in fields if not field.nullable] == []
    assert len(fields) == 8


def test_a_pattern_finds_topics_as_a_java_one_does(log: Logs) -> None:
    for topic in ("orders", "orders-eu", "o.x", "__consumer_offsets"):
        numbered(log.create(topic), 1)
    found = {
        ".*": ["o.x", "orders", "orders-eu"],
        "orders": ["orders", "orders-eu"],
        "^orders$": ["orders"],
        r"(?i)ORDERS(?<region>-[a-z]{2})$": ["orders-eu"],
        r"o\.[x\[]|__.*": ["o.x"],
        "^[]o]rders++$": ["orders"],
    }
    for pattern, topics in found.items():
        assert sorted({row[2] for row in log.found(subscribePattern=pattern)}) == topics, pattern
    assert len(log.found(subscribe="__consumer_offsets")) == 1


@pytest.mark.parametrize(
    "pattern",
    [
        "[a-z&&[^t]]",
        "[a-d[m-t]]",
        "[[:alpha:]]",
        r"\p{Lower}",
        r"\Qt\E",
        "(?P<n>t)",
        "t{,2}",
        "(t",
        "a**",
        "(?L:t)",
    ],
)
def test_a_pattern_that_java_and_python_read_differently_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidSettingError, match="option subscribePattern"):
        parse({"path": "/", "subscribePattern": pattern}, streaming=None)


def test_a_machine_that_does_not_see_the_log_has_not_lost_its_records(log: Logs) -> None:
    numbered(log.create(), 3)
    reader = log.planned(failOnDataLoss="false")
    (task,) = reader.partitions()
    (log.place / "logs").rename(log.place / "away")
    try:
        with pytest.raises(FileNotFoundError):
            list(reader.read(task))
    finally:
        (log.place / "away").rename(log.place / "logs")
    assert sum(len(batch) for batch in reader.read(task)) == 3


# -- limits -------------------------------------------------------------------------------------------


@pytest.fixture
def two(log: Logs) -> Logs:
    numbered(log.create("t", 0, segment_bytes=1000), 40)
    numbered(log.create("t", 1), 20)
    return log


def offsets(log: Logs, **options: object) -> list[list[int]]:
    """First offset and the one behind the last, of each partition that has any."""
    spans: dict[int, list[int]] = {}
    for row in log.found(**options):
        span = spans.setdefault(row[3], [row[4], row[4]])
        assert row[4] == span[1]
        span[1] += 1
    return [spans.get(number, []) for number in (0, 1)]


def test_a_query_begins_and_ends_where_it_says(two: Logs) -> None:
    both = '{"t":{"0":%d,"1":%d}}'
    assert offsets(two, startingOffsets=both % (15, -2)) == [[15, 40], [0, 20]]
    assert offsets(two, endingOffsets=both % (15, -1)) == [[0, 15], [0, 20]]
    assert offsets(two, startingOffsets=both % (5, 7), endingOffsets=both % (6, 7)) == [[5, 6], []]
    assert offsets(two, startingTimestamp=NOW + 10) == [[10, 40], [10, 20]]
    assert offsets(two, endingTimestamp=NOW + 30) == [[0, 30], [0, 20]]
    by_time = both % (NOW + 35, NOW + 5)
    assert offsets(two, startingOffsetsByTimestamp=by_time) == [[35, 40], [5, 20]]
    assert offsets(two, endingOffsetsByTimestamp=by_time) == [[0, 35], [0, 5]]
    late = {"startingTimestamp": NOW + 25, "startingOffsetsByTimestampStrategy": "latest"}
    assert offsets(two, **late) == [[25, 40], []]


def test_a_time_leads_to_no_marker_and_to_no_aborted_record(log: Logs) -> None:
    """regression: of records of years ago, in transactions, a query ended at the first marker"""
    partition = log.create("t")
    for turn, commit in enumerate((True, False, True)):
        records = [Record(b"v", timestamp=NOW - 900 + 100 * turn)] * 2
        partition.append(records, Producer(turn + 1, 0, 0, True))
        partition.end_transaction(turn + 1, 0, commit)
    assert offsets(log, endingTimestamp=NOW - 850) == [[0, 2], []]
    assert offsets(log, startingTimestamp=NOW - 850) == [[6, 8], []]
    found = [row[4] for row in log.found(endingTimestamp=NOW - 650)]
    assert found == [0, 1, 6, 7]


def test_start_offsets_are_followed(two: Logs) -> None:
    two.store.partition("t", 0).delete_records(17)
    two.reopen()
    assert offsets(two) == [[17, 40], [0, 20]]
    with pytest.raises(OffsetOutOfRangeError, match="expected offsets 3 to 40 within 17 to 40"):
        two.found(startingOffsets='{"t":{"0":3,"1":0}}')
    assert offsets(two, startingOffsets='{"t":{"0":3,"1":0}}', failOnDataLoss="false") == [[17, 40], [0, 20]]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"topic": "none"}, "expected a topic none"),
        ({"topic": "t", "assign": '{"t":[0]}'}, "found topic, assign"),
        ({"assign": '{"t":[9]}'}, "expected a partition t-9"),
        ({"startingOffsets": "latest"}, "reads nothing in a batch query"),
        ({"endingOffsets": "earliest"}, "reads nothing in a batch query"),
        ({"startingOffsets": "first"}, "option startingOffsets: expected earliest, latest, an offset or {"),
        ({"startingOffsets": '{"t":{"0":1}}'}, "found t-1 left out, and named but not read none"),
        ({"startingOffsets": '{"t":{"0":1,"1":1,"2":1}}'}, "found none left out, and named but not read t-2"),
        ({"startingOffsets": '{"t":{"0":1,"1":-3}}'}, "found -3"),
        ({"startingTimestamp": NOW + 1000}, "expected a record from timestamp"),
        ({"maxOffsetsPerTrigger": 5}, "expected in streams only"),
        ({"minOffsetsPerTrigger": 5}, "expected in streams only"),
        ({"minPartitions": 0}, "option minPartitions: expected a number from 1"),
        ({"failOnDataLoss": "maybe"}, "expected true or false"),
        ({"kafka.isolation.level": "read_uncommitted"}, "only committed records are read"),
        ({"kafka.auto.offset.reset": "earliest"}, "option kafka.auto.offset.reset: not supported"),
        ({"kafka.key.deserializer": "x"}, "option kafka.key.deserializer: not supported"),
        ({"subscribe": " , "}, "option subscribe: expected names of topics"),
        ({"assign": '{"none":[0]}'}, "expected a topic none"),
        ({"maxRecordsPerPartition": 0}, "option maxRecordsPerPartition: expected a number from 1"),
        ({"startingTimestamp": 10**30}, "option startingTimestamp: expected a number from 0"),
        (
            {"startingOffsetsByTimestamp": '{"t":{"0":1%s,"1":1}}' % ("0" * 30)},
            "option startingOffsetsByTimestamp",
        ),
        ({"compression": "zstd"}, "option compression: expected one of path"),
        ({"pushFilters": "true"}, "option pushfilters: .* bounded by starting…, ending…, sinceTimestamp"),
    ],
)
def test_what_would_change_the_meaning_is_refused(two: Logs, options: dict[str, object], words: str) -> None:
    with pytest.raises(EngineError, match=words):
        two.found(**options)


def test_a_refusal_comes_out_of_spark_in_words(two: Logs) -> None:
    with pytest.raises(
        AnalysisException, match="option startingOffsets: latest \\(-1\\) reads nothing in a batch query"
    ):
        two.rows(startingOffsets="latest")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "expected one of the options topic, subscribe, subscribePattern and assign, found none"),
        ({"topic": "t", "tpoic": "u"}, "option tpoic: expected one of path, topic"),
        (
            {"topic": "t", "minPartitions": "x"},
            "option minPartitions: expected a number from 1 on, found 'x'",
        ),
        (
            {"topic": "t", "path": ""},
            "option path: expected a backing directory or a mount of topicfs, found none",
        ),
        (
            {"topic": "t", "path": "/none"},
            "path /none: expected a backing directory .* found no such directory",
        ),
        ({"topic": "t", "path": "/proc"}, "path /proc: expected a backing directory .* found a directory"),
        ({"topic": "t,u"}, "expected a topic u, found none of this name"),
    ],
)
def test_wrong_options_are_refused_when_a_read_is_made(
    two: Logs, options: dict[str, str], words: str
) -> None:
    for reader in (two.spark.read, two.spark.readStream):
        with pytest.raises(AnalysisException, match=words) as raised:
            reader.format("topicfs").options(**{"path": str(two.place), **options}).load()
        assert "UnboundLocalError" not in str(raised.value)


def test_how_a_broker_is_reached_is_passed_over(two: Logs) -> None:
    options = {
        "kafka.bootstrap.servers": "localhost:9092",
        "kafka.isolation.level": "read_committed",
        "kafka.group.id": "a",
        "groupIdPrefix": "b",
        "kafka.security.protocol": "SASL_SSL",
    }
    assert len(two.found(**options)) == 60


def test_a_path_that_is_no_log_is_refused(two: Logs, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="expected a backing directory with logs/ in it"):
        two.found(path=tmp_path / "logs")


# -- tasks and bounds ----------------------------------------------------------------------------------


def test_more_tasks_are_made_when_asked_for(two: Logs) -> None:
    assert two.read().rdd.getNumPartitions() == 2
    for least in (3, 8, 50):
        assert least <= len(two.planned(minPartitions=least).partitions()) <= 2 * least
        assert sorted(two.found(minPartitions=least), key=lambda row: row[2:5]) == two.held()


def test_a_long_log_is_read_by_an_even_number_of_tasks(log: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    numbered(log.create(segment_bytes=1000), 100)
    held = log.held()
    [whole] = log.planned().partitions()
    for pieces, tasks in ((1, 1), (2, 2), (3, 4), (4, 4), (5, 6)):
        monkeypatch.setattr(ranges, "TASK_BYTES", -(-whole.value.size // pieces))
        assert len(log.planned().partitions()) == tasks
        assert log.found() == held


def test_no_task_reads_more_records_than_asked_for(two: Logs) -> None:
    for options in ({}, {"minPartitions": 3}, {"minPartitions": 20}):
        parts = [task.value for task in two.planned(maxRecordsPerPartition=7, **options).partitions()]
        assert {part.end - part.start <= 7 for part in parts} == {True}
        assert sum(part.end - part.start for part in parts) == 60
        assert len(parts) >= options.get("minPartitions", 9)
    assert sorted(two.found(maxRecordsPerPartition=7), key=lambda row: row[2:5]) == two.held()


Bounds = tuple[Limit, Limit]


def test_a_read_is_bounded_by_offsets_or_times(two: Logs) -> None:
    half = moment(NOW + 10) + timedelta(microseconds=500)
    text = moment(NOW + 33).isoformat()
    cases: dict[Bounds, Callable[[int, int], bool]] = {
        (None, None): lambda _, __: True,
        (12, 31): lambda _, offset: 12 <= offset < 31,
        (None, 3): lambda _, offset: offset < 3,
        (38, None): lambda _, offset: offset >= 38,
        (1000, 2000): lambda _, __: False,
        (moment(NOW + 10), text): lambda _, at: 10 <= at < 33,
        (half, None): lambda _, at: at > 10,
        (None, half): lambda _, at: at <= 10,
        ("2020-01-01", moment(NOW).astimezone(timezone(timedelta(hours=2))).isoformat()): lambda _, __: False,
        (moment(NOW + 15).replace(tzinfo=None).isoformat(), 17): lambda _, at: 15 <= at < 17,
    }
    held = two.held()
    for (start, end), wanted in cases.items():
        rows = in_order(read(two.spark, two.place, "t", start, end))
        assert rows == [row[:7] for row in held if wanted(row[3], row[4])], (start, end)
    rows = in_order(read(two.spark, str(two.place), "t", {0: 35, 1: 4}, {0: 38, 1: 4}))
    assert [row[3:5] for row in rows] == [(0, 35), (0, 36), (0, 37)]


@pytest.mark.parametrize(
    ("bounds", "error", "words"),
    [
        (({0: 5}, None), AnalysisException, "found t-1 left out, and named but not read none"),
        ((None, {0: 41, 1: 1}), AnalysisException, "expected offsets 0 to 41 within 0 to 40"),
        ((-1, None), AnalysisException, "option startingOffsets: expected .* found '-1'"),
        (("yesterday", None), ValueError, "yesterday"),
        ((datetime(2020, 1, 1), None), ValueError, "expected a time with a zone, found 2020-01-01"),  # noqa: DTZ001
    ],
)
def test_a_bound_that_means_nothing_is_refused(
    two: Logs, bounds: Bounds, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        read(two.spark, two.place, "t", *bounds).collect()


def test_a_table_may_be_used_twice_in_one_query(log: Logs) -> None:
    """Spark 4.3 has one reader for both uses: what it pushes into that for the one would apply to the other too."""
    log.create().append([Record(b"%d" % number, None, NOW) for number in range(2000)])
    for conf in ("false", "true"):
        with pushing(log.spark, conf):
            table = log.read()
            ends = table.where("offset < 5").union(table.where("offset >= 1990"))
            assert [row[4] for row in in_order(ends)] == [*range(5), *range(1990, 2000)]
            assert table.where("offset >= 15").count() == 1985
            assert table.count() == 2000


def moment(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


def test_records_out_of_their_times_order_are_found(log: Logs) -> None:
    partition = log.create(segment_bytes=600, index_interval_bytes=0)
    for at in (50, 10, 90, 20, 20, 70, 5, 100, 1, 60):
        partition.append([Record(b"%0100d" % at, b"k", NOW + at), Record(b"x" * 99, b"k", NOW + at - 1)])
    times = [record.timestamp or 0 for record in partition.records()]
    for first in range(0, 102, 3):
        for last in (first, first + 20, 200):
            rows = log.found(sinceTimestamp=NOW + first, beforeTimestamp=NOW + last + 1)
            assert [row[4] for row in rows] == [
                at for at, time in enumerate(times) if NOW + first <= time <= NOW + last
            ]


def test_a_bound_that_leaves_few_offsets_or_times_reads_few_bytes(log: Logs) -> None:
    partition = log.create(segment_bytes=20_000, index_interval_bytes=200)
    numbered(partition, 1000)

    def size(**options: object) -> int:
        return sum(task.value.size for task in log.planned(**options).partitions())

    whole = size()
    assert whole == pytest.approx(partition.size, rel=0.01)
    assert size(startingOffsets=500, endingOffsets=510) < 0.02 * whole
    assert size(sinceTimestamp=NOW + 990) < 0.02 * whole


def test_planning_loads_no_kernel_where_a_mount_tells_the_ends(two: Logs) -> None:
    """It takes a second, in a process that Spark starts for each query."""
    program = (
        "import sys\n"
        "from topicfs.engine.unlocked import partitions\n"
        "from topicfs.engine.unlocked.bounds import Bounds\n"
        "from topicfs.engine.spark.source import TopicSource\n"
        "partitions.told = lambda *_: Bounds(0, 20)\n"
        "source = TopicSource({'path': sys.argv[1], 'topic': 't'})\n"
        "assert len(source.reader(source.schema()).partitions()) == 2\n"
        "reader = source.streamReader(source.schema())\n"
        "assert reader.partitions({'t': {'0': 0}}, reader.reportLatestOffset())\n"
        "assert 'numba' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program, str(two.place)], check=True)
