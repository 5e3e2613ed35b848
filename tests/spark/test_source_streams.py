"""The data source in streaming queries: every record once, in whatever steps, over restarts."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from partition_opening import NOW
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from sources import Logs, Row, in_order, logs, numbered

from topicfs import Record
from topicfs.engine.errors import InvalidSettingError, OffsetOutOfRangeError
from topicfs.engine.format.paths import log_file
from topicfs.engine.partition.partition import Producer
from topicfs.engine.spark.columns import columns
from topicfs.engine.spark.options import parse
from topicfs.engine.spark.stream import TopicStreamReader
from topicfs.spark import behind


@pytest.fixture
def log(spark: SparkSession, tmp_path: Path) -> Iterator[Logs]:
    (tmp_path / "log").mkdir()
    with logs(spark, tmp_path / "log") as made:
        yield made


class Query:
    """A streaming query whose batches are kept by their numbers, as one that replays a batch would overwrite it."""

    def __init__(self, log: Logs, place: Path, **options: object) -> None:
        self.log = log
        self.checkpoint = str(place / "checkpoint")
        self.options = {"startingOffsets": "earliest", "includeHeaders": "true", **options}
        self.batches: dict[int, list[Row]] = {}
        self.fails_at = -1

    def run(self) -> list[Row]:
        """Read what is there, and stop. Gives all rows so far."""
        stream = (
            self.log.spark.readStream.format("topicfs").options(**self.log.options(**self.options)).load()
        )
        query = (
            stream.writeStream.foreachBatch(self._keep)
            .option("checkpointLocation", self.checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        try:
            query.awaitTermination(60)
        finally:
            query.stop()
        return self.rows

    def _keep(self, frame: DataFrame, number: int) -> None:
        self.batches[number] = in_order(frame)
        if number == self.fails_at:
            self.fails_at = -1
            raise RuntimeError("as asked for")

    @property
    def rows(self) -> list[Row]:
        """All of them, by partition and offset."""
        found = [row for number in sorted(self.batches) for row in self.batches[number]]
        return sorted(found, key=lambda row: (row[2], row[3], row[4]))

    @property
    def sizes(self) -> list[int]:
        """Rows of each batch that had some."""
        return [len(self.batches[number]) for number in sorted(self.batches) if self.batches[number]]


def test_a_stream_waits_for_a_partition_that_is_assigned(log: Logs, tmp_path: Path) -> None:
    numbered(log.create("t", 0), 5)
    query = Query(log, tmp_path, assign='{"t":[0,1]}')
    assert query.run() == log.held()
    numbered(log.create("t", 1), 5)
    numbered(log.create("t", 2), 5)
    assert query.run() == [row for row in log.held() if row[3] < 2]
    assert query.sizes == [5, 5]


def test_wrong_options_of_a_stream_are_told_without_an_error_of_sparks_own(log: Logs, tmp_path: Path) -> None:
    log.create()
    query = Query(log, tmp_path, endingOffsets="latest")
    with pytest.raises(StreamingQueryException, match="a stream has no end") as raised:
        query.run()
    assert "UnboundLocalError" not in str(raised.value)


def test_each_record_comes_once_over_restarts_with_rolls_and_new_partitions(
    log: Logs, tmp_path: Path
) -> None:
    partition = log.create(segment_bytes=1000)
    query = Query(log, tmp_path)
    numbered(partition, 25)
    assert query.run() == log.held()
    assert query.run() == log.held()
    numbered(partition, 25, first=25)
    numbered(log.create("t", 1), 5)
    assert query.run() == log.held()
    assert query.sizes == [25, 30]
    log.reopen()
    numbered(log.store.partition("t", 1), 5, first=5)
    assert query.run() == log.held()
    assert len(query.rows) == 60


def test_a_limit_is_kept_and_shared_among_partitions(log: Logs, tmp_path: Path) -> None:
    numbered(log.create("t", 0), 30)
    numbered(log.create("t", 1), 10)
    query = Query(log, tmp_path, maxOffsetsPerTrigger=12)
    assert query.run() == log.held()
    assert query.sizes == [12, 12, 12, 4]
    assert [sum(row[3] for row in query.batches[number]) for number in range(3)] == [3, 3, 3]


def test_little_waits_for_more_but_not_for_ever(log: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    partition = log.create()
    numbered(partition, 2)
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    options = log.options(startingOffsets="earliest", minOffsetsPerTrigger=10, maxTriggerDelay="90s")
    reader = TopicStreamReader(parse(options, streaming=True), columns(include_headers=False))

    def reached(start: int) -> int:
        return reader.latestOffset({"t": {"0": start}}, reader.getDefaultReadLimit())["t"]["0"]

    assert reached(0) == 2, "the first is not kept waiting"
    numbered(partition, 9, first=2)
    assert reached(2) == 2
    numbered(partition, 1, first=11)
    assert reached(2) == 12, "there is enough"
    numbered(partition, 1, first=12)
    now[0] += 89
    assert reached(12) == 12
    now[0] += 1
    assert reached(12) == 13, "it has waited enough"
    numbered(partition, 1, first=13)
    reader.prepareForTriggerAvailableNow()
    assert reached(13) == 14, "what is available now does not wait"


def test_a_batch_that_failed_is_the_same_when_it_comes_again(log: Logs, tmp_path: Path) -> None:
    partition = log.create(segment_bytes=1000)
    numbered(partition, 20)
    query = Query(log, tmp_path, maxOffsetsPerTrigger=8)
    query.fails_at = 1
    with pytest.raises(StreamingQueryException, match="as asked for"):
        query.run()
    failed = query.batches[1]
    numbered(partition, 20, first=20)
    assert query.run() == log.held()
    assert query.batches[1] == failed
    assert sum(query.sizes) == 40


def test_a_new_query_begins_at_the_end_unless_told_otherwise(log: Logs, tmp_path: Path) -> None:
    partition = log.create()
    numbered(partition, 5)
    query = Query(log, tmp_path, startingOffsets="latest")
    assert query.run() == []
    numbered(partition, 5, first=5)
    assert query.run() == log.held()[5:]


def test_open_transactions_hold_the_stream_back_and_aborted_ones_never_show(
    log: Logs, tmp_path: Path
) -> None:
    partition = log.create(segment_bytes=1000)
    query = Query(log, tmp_path)
    numbered(partition, 5)
    partition.append([Record(b"x" * 100, b"k", NOW)] * 5, Producer(1, 0, 0, True))
    numbered(partition, 20, first=5)
    assert len(query.run()) == 5
    partition.end_transaction(1, 0, False)
    numbered(partition, 1, first=25)
    assert query.run() == log.held()
    assert len(query.rows) == 26


def test_what_retention_took_is_an_error_or_passed_over(log: Logs, tmp_path: Path) -> None:
    partition = log.create(segment_bytes=1000)
    numbered(partition, 20)
    query = Query(log, tmp_path)
    query.run()
    numbered(partition, 40, first=20)
    partition.delete_records(50)
    log.reopen()
    with pytest.raises(StreamingQueryException, match="expected offsets 20 to 60 within 50 to 60"):
        query.run()
    query.options["failOnDataLoss"] = "false"
    assert [row[4] for row in query.run()] == [*range(20), *range(50, 60)]


@pytest.mark.parametrize("count", [3, 20, 30])
def test_a_topic_that_was_made_again_is_an_error_or_read_from_its_start(
    log: Logs, tmp_path: Path, count: int
) -> None:
    numbered(log.create(), 20)
    query = Query(log, tmp_path)
    query.run()
    log.store.delete_topic("t")
    numbered(log.create(), count, first=100)
    words = "t: expected the topic with id .*: it was deleted and made again, .* failOnDataLoss=false reads the new"
    with pytest.raises(StreamingQueryException, match=words):
        query.run()
    query.options["failOnDataLoss"] = "false"
    query.run()
    assert query.batches.pop(1) == log.held()
    assert len(query.run()) == 20, "the new topic comes once"
    numbered(log.store.partition("t", 0), 5, first=200)
    query.options["failOnDataLoss"] = "true"
    query.run()
    assert query.batches[2] == log.held()[count:]


@pytest.mark.parametrize(
    "bound",
    [
        {"startingOffsets": "latest"},
        {"startingTimestamp": "99999999999999", "startingOffsetsByTimestampStrategy": "latest"},
    ],
)
def test_a_first_batch_that_was_planned_has_its_records_whenever_it_is_run_again(
    log: Logs, bound: dict[str, str]
) -> None:
    """A query that begins at the end is killed in its first batch, and the log grows before it is started again."""

    def started() -> tuple[TopicStreamReader, dict[str, dict[str, int]]]:
        options = parse(log.options(**bound), streaming=True)
        reader = TopicStreamReader(options, columns(include_headers=False))
        return reader, reader.initialOffset()

    def planned(reader: TopicStreamReader, start: object, end: object) -> list[tuple[int, int]]:
        return [(task.value.start, task.value.end) for task in reader.partitions(start, end)]  # type: ignore[arg-type]

    partition = log.create()
    numbered(partition, 5)
    reader, begin = started()
    assert reader.latestOffset(begin, ReadAllAvailable()) == begin, "nothing is new"
    numbered(partition, 3, first=5)
    end = reader.latestOffset(begin, ReadAllAvailable())
    numbered(partition, 2, first=8)
    again, begin_again = started()
    assert begin_again["t"] == {"0": 10}
    assert planned(again, begin_again, end) == planned(reader, begin, end) == [(5, 8)]
    following = again.latestOffset(end, ReadAllAvailable())
    assert planned(again, end, following) == [(8, 10)]
    assert not any(name.startswith("@") for name in following)
    # Also if the first batch had nothing: the next one begins where the query began.
    assert planned(again, begin_again, begin) == []
    assert planned(again, begin, again.latestOffset(begin, ReadAllAvailable())) == [(5, 10)]


def test_a_running_stream_notices_a_topic_that_was_made_again(log: Logs) -> None:
    """The new log has whole batches elsewhere than the old one, and a stream that runs has read a part of that."""
    options = log.options(startingOffsets="earliest", failOnDataLoss="false")
    reader = TopicStreamReader(parse(options, streaming=True), columns(include_headers=False))
    old = log.create()
    numbered(old, 20)
    numbered(log.create("t", 1), 5)
    first = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    assert first == {"t": {"0": 20, "1": 5}, f"t@{old.topic_id}": {}, '@from={"t":{"0":0,"1":0}}': {}}
    log.store.delete_topic("t")
    new = log.create()
    new.append([Record(b"x" * 5000, b"k", NOW)] * 30)
    again = reader.latestOffset(first, ReadMaxRows(10))
    assert again == {"t": {"0": 10}, f"t@{new.topic_id}": {}}
    assert [(task.value.start, task.value.end) for task in reader.partitions(first, again)] == [(0, 10)]
    assert reader.partitions(first, {**first, "t": {"0": 30}}) == [], "planned before: nothing of it is left"
    assert reader.latestOffset(again, ReadAllAvailable())["t"] == {"0": 30}


def test_a_task_reads_nothing_of_a_topic_that_is_made_again_after_it_was_planned(log: Logs) -> None:
    """A task may wait long for its turn."""
    for strict in ("true", "false"):
        options = log.options(startingOffsets="earliest", failOnDataLoss=strict)
        reader = TopicStreamReader(parse(options, streaming=True), columns(include_headers=False))
        numbered(log.create(), 20)
        begun = reader.initialOffset()
        (task,) = reader.partitions(begun, reader.latestOffset(begun, ReadAllAvailable()))
        assert sum(batch.num_rows for batch in reader.read(task)) == 20
        log.store.delete_topic("t")
        numbered(log.create(), 30)
        if strict == "true":
            with pytest.raises(
                OffsetOutOfRangeError, match=r"offsets 0 to 20 were removed, .* with the topic"
            ):
                list(reader.read(task))
        else:
            assert sum(batch.num_rows for batch in reader.read(task)) == 0
        log.store.delete_topic("t")


def test_what_is_available_now_of_a_topic_that_is_made_again_is_not_taken_from_the_new_one(log: Logs) -> None:
    options = log.options(startingOffsets="earliest", failOnDataLoss="false")
    reader = TopicStreamReader(parse(options, streaming=True), columns(include_headers=False))
    numbered(log.create(), 20)
    begun = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    log.store.delete_topic("t")
    numbered(log.create(), 30)
    target = reader.latestOffset(begun, ReadAllAvailable())
    assert reader.partitions(begun, target) == []
    later = TopicStreamReader(parse(options, streaming=True), columns(include_headers=False))
    now = later.latestOffset(target, ReadAllAvailable())
    assert [(task.value.start, task.value.end) for task in later.partitions(target, now)] == [(0, 30)]


def test_a_checkpoint_without_topic_ids_goes_on(log: Logs, tmp_path: Path) -> None:
    """Kafka's source writes such ones. It takes ours too: a topic without partitions means nothing to it."""
    partition = log.create()
    numbered(partition, 20)
    query = Query(log, tmp_path)
    query.run()
    offsets = Path(query.checkpoint, "offsets")
    *others, last = (offsets / "0").read_text().splitlines()
    assert json.loads(last) == {"t": {"0": 20}, f"t@{partition.topic_id}": {}, '@from={"t":{"0":0}}': {}}
    (offsets / "0").write_text("\n".join([*others, '{"t":{"0":20}}']))
    (offsets / ".0.crc").unlink()
    assert len(query.run()) == 20
    numbered(partition, 5, first=20)
    assert query.run() == log.held()
    log.store.delete_topic("t")
    numbered(log.create(), 40)
    with pytest.raises(StreamingQueryException, match="it was deleted and made again"):
        query.run()


def test_topics_without_ids_are_not_compared(log: Logs, tmp_path: Path) -> None:
    query = Query(log, tmp_path)
    for count in (20, 30):
        partition = log.create()
        numbered(partition, count)
        log.store.close()
        (log.place / "logs" / "t-0" / "partition.metadata").unlink()
        query.run()
        log.reopen()
        log.store.delete_topic("t")
    assert [row[4] for row in query.rows] == [*range(30)]
    numbered(log.create(), 10)
    with pytest.raises(StreamingQueryException, match="or the topic was made anew"):
        query.run()


def test_a_stream_has_no_end(log: Logs, tmp_path: Path) -> None:
    log.create()
    with pytest.raises(StreamingQueryException, match="a stream has no end"):
        Query(log, tmp_path, endingOffsets="latest").run()


def test_a_running_stream_follows_the_log(log: Logs, tmp_path: Path) -> None:
    partition = log.create(segment_bytes=1000)
    query = Query(log, tmp_path)
    stream = log.spark.readStream.format("topicfs").options(**log.options(**query.options)).load()
    writer = stream.writeStream.foreachBatch(query._keep).option("checkpointLocation", query.checkpoint)
    running = writer.start()
    try:
        for step in range(3):
            numbered(partition, 15, first=15 * step)
            running.processAllAvailable()
            assert query.rows == log.held()
    finally:
        running.stop()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"maxTriggerDelay": "soon"}, "expected a time as 15m, 30s or 500ms, found 'soon'"),
        ({"minOffsetsPerTrigger": 9, "maxOffsetsPerTrigger": 8}, "expected at most 8, found 9"),
    ],
)
def test_limits_that_mean_nothing_are_refused(log: Logs, options: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidSettingError, match=words):
        parse(log.options(**options), streaming=True)


def test_a_progress_tells_how_far_the_stream_is_behind(log: Logs, tmp_path: Path) -> None:
    numbered(log.create("t", 0), 30)
    numbered(log.create("t", 1), 10)
    stream = log.spark.readStream.format("topicfs").options(
        **log.options(startingOffsets="earliest", maxOffsetsPerTrigger=20)
    )
    query = (
        stream.load().writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint"))
    )
    running = query.start()
    try:
        running.processAllAvailable()
        first, second = (each["sources"][0] for each in running.recentProgress[:2])
    finally:
        running.stop()
    found = behind(first)
    size = (log.place / "logs/t-0" / log_file(0)).stat().st_size * 15 // 30
    assert abs(int(found.pop("estimatedTotalBytesBehindLatest")) - size * 4 // 3) < 2 * 4096
    assert found == {
        "minOffsetsBehindLatest": "5",
        "maxOffsetsBehindLatest": "15",
        "avgOffsetsBehindLatest": "10.0",
    }
    assert behind(second) == {
        "minOffsetsBehindLatest": "0",
        "maxOffsetsBehindLatest": "0",
        "avgOffsetsBehindLatest": "0.0",
        "estimatedTotalBytesBehindLatest": "0",
    }
    assert behind({"latestOffset": None, "endOffset": None}) == {}
