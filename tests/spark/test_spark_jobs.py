"""The jobs on Spark: verify, import, export."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from partition_opening import NOW
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from sources import Logs, in_order, logs, numbered

sys.path.append(str(Path(__file__).parents[1] / "engine"))  # verify.py: a check written from the format alone

from verify import verify_files

from topicfs import Record, Store
from topicfs.engine.errors import InvalidSettingError, PartitionExistsError, StoreLockedError
from topicfs.engine.partition.partition import Producer
from topicfs.engine.spark.jobs.exporting import export
from topicfs.engine.spark.jobs.importing import import_rows
from topicfs.engine.spark.jobs.sources import rows_of
from topicfs.engine.spark.jobs.verify import VerifyPiece, verify
from topicfs.engine.spark.jobs.verify import rows_of as report_of
from topicfs.engine.unlocked.place import place_of
from topicfs.mountd.cli import main


@pytest.fixture
def log(spark: SparkSession, tmp_path: Path) -> Iterator[Logs]:
    (tmp_path / "log").mkdir()
    with logs(spark, tmp_path / "log") as made:
        yield made


# -- verify -------------------------------------------------------------------------------------------


def problems(log: Logs) -> dict[tuple[int, int], list[str]]:
    """What is wrong, by partition and segment."""
    rows = verify(log.spark, place_of(str(log.place))).collect()
    return {(row["partition"], row["segment"]): row["problems"] for row in rows if row["problems"]}


def test_a_segment_that_went_is_passed_over_and_a_log_that_a_machine_does_not_see_is_not(
    tmp_path: Path,
) -> None:
    (tmp_path / "logs").mkdir()
    assert list(report_of(VerifyPiece("t", 0, tmp_path / "logs" / "t-0", 0, None))) == []
    with pytest.raises(FileNotFoundError):
        list(report_of(VerifyPiece("t", 0, tmp_path / "away" / "t-0", 0, None)))


def test_a_good_log_has_no_problems_also_while_it_is_open(log: Logs) -> None:
    partition = log.create(segment_bytes=1000, index_interval_bytes=100, compression_type="zstd")
    numbered(partition, 40)
    partition.append(Record(b"x", b"k", NOW), Producer(1, 0, 0, True))
    partition.end_transaction(1, 0, False)
    log.create("t", 1)
    rows = verify(log.spark, place_of(str(log.place))).collect()
    assert problems(log) == {}
    assert len(rows) == len(partition.log.chain.segments) + 1
    # The aborted record is there, though nobody sees it; the marker is no record.
    assert sum(row["records"] for row in rows) == 41
    assert max(row["next_offset"] for row in rows) == 42


def damage(path: Path, at: int, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY)
    os.pwrite(descriptor, data, at)
    os.close(descriptor)


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (lambda base: damage(base.with_suffix(".log"), 200, b"\xff\xff"), "checksum"),
        (lambda base: os.truncate(base.with_suffix(".log"), 650), "bytes end inside a batch"),
        (lambda base: damage(base.with_suffix(".index"), 4, b"\0\0\0\7"), "position 7 for offset"),
        (
            lambda base: damage(base.with_suffix(".timeindex"), 7, b"\1"),
            "expected the largest timestamp up to offset",
        ),
        (lambda base: os.truncate(base.with_suffix(".timeindex"), 13), "expected a multiple of 12 bytes"),
        (lambda base: base.with_suffix(".index").unlink(), "expected an index, found none"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(log: Logs, harm: Callable[[Path], None], words: str) -> None:
    numbered(log.create(segment_bytes=1000, index_interval_bytes=100), 20)
    log.store.close()
    segments = sorted((log.place / "logs" / "t-0").glob("*.log"))
    harm(segments[1])
    found = problems(log)
    assert list(found) == [(0, int(segments[1].stem))]
    assert any(words in problem for problem in found[0, int(segments[1].stem)]), found


# -- import -------------------------------------------------------------------------------------------


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    place = tmp_path / "new"
    Store.open(place, create=True).close()
    return place


def records(backing: Path, topic: str = "t") -> dict[int, list[Record]]:
    """What the engine reads, and the files as they should be."""
    with Store.open(backing, create=True) as store:
        assert store.stopped_clean
        found = {number: list(store.partition(topic, number).records()) for number in store.topics()[topic]}
        interval = store.topic_settings(topic).index_interval_bytes
    for number in found:
        problems = verify_files(
            backing / "logs" / f"{topic}-{number}", interval=interval, history=False
        ).problems
        assert not problems, problems
    return found


def test_rows_become_segments_as_appends_would_have_made_them(spark: SparkSession, empty: Path) -> None:
    rows = spark.range(0, 3000, 1, 4).selectExpr(
        "cast(id % 50 as string) as key",
        "lpad(cast(id as string), 100, '0') as value",
        f"timestamp_millis({NOW} + id) as timestamp",
        "array(struct('h' as key, cast('x' as binary) as value)) as headers",
    )
    settings = {"internal.segment.bytes": "5000", "compression.type": "lz4", "index.interval.bytes": "1000"}
    made = import_rows(spark, rows, empty, "t", 2, settings)
    found = records(empty)
    assert made.records == 3000
    assert made.partitions == 2
    for number, held in found.items():
        assert [record.offset for record in held] == list(range(len(held)))
        # In the order of the frame.
        assert [record.value for record in held] == sorted(record.value or b"" for record in held)
        assert len(list((empty / "logs" / f"t-{number}").glob("*.log"))) > 1
    every = sorted(
        (record for held in found.values() for record in held), key=lambda record: record.value or b""
    )
    assert [(r.key, r.value, r.timestamp, r.headers) for r in every] == [
        (b"%d" % (n % 50), b"%0100d" % n, NOW + n, (("h", b"x"),)) for n in range(3000)
    ]
    with Store.open(empty, create=True) as store:
        other = store.create_topic("other", 2)
        for record in every[:50]:
            other[0].append(record)  # the first of all keys
        assert store.partition("t", 0).append(Record(b"more", b"k")).first_offset == len(found[0])
    times = [path.stat().st_mtime_ns // 1_000_000 for path in sorted((empty / "logs" / "t-0").glob("*.log"))]
    assert times == sorted(set(times))


def test_rows_that_name_a_partition_go_there_and_nothing_else_is_made_up(
    spark: SparkSession, empty: Path
) -> None:
    rows = spark.createDataFrame(
        [(b"a", 1), (None, 1), (b"c", None)], "value binary, partition int"
    ).coalesce(1)
    import_rows(spark, rows, empty, "t", 3)
    found = records(empty)
    assert [record.value for record in found[1]][:2] == [b"a", None]
    assert sum(len(held) for held in found.values()) == 3


def test_an_import_that_is_refused_leaves_nothing(spark: SparkSession, empty: Path) -> None:
    rows = spark.createDataFrame([("a", 0), ("b", 9)], "value string, partition int")
    with pytest.raises(PySparkException, match="partition 9 is not one of 0 to 1"):
        import_rows(spark, rows, empty, "t", 2)
    assert not list((empty / "staging").rglob("*-*"))
    with pytest.raises(InvalidSettingError, match="column id bigint"):
        import_rows(spark, spark.range(3), empty, "t", 2)
    with Store.open(empty, create=True) as store:
        assert store.topics() == {}
        store.create("t", 0)
        with pytest.raises(StoreLockedError):
            import_rows(spark, rows, empty, "u", 2)
    with pytest.raises(PartitionExistsError, match="topic t exists"):
        import_rows(spark, rows, empty, "t", 2)


def test_a_publication_that_was_broken_off_is_completed(
    spark: SparkSession, empty: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = spark.createDataFrame([("a", 0), ("b", 1)], "value string, partition int")
    rename, count = Path.rename, 0

    def broken(self: Path, target: Path) -> Path:
        nonlocal count
        count += self.parent.name == "publishing"
        if count > 1:
            raise KeyboardInterrupt
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", broken)
    with pytest.raises(KeyboardInterrupt):
        import_rows(spark, rows, empty, "t", 2)
    monkeypatch.setattr(Path, "rename", rename)
    assert [len(held) for held in records(empty).values()] == [1]
    with pytest.raises(PartitionExistsError, match="is completed now"):
        import_rows(spark, rows, empty, "t", 2)
    assert [len(held) for held in records(empty).values()] == [1, 1]


# -- export -------------------------------------------------------------------------------------------


def test_what_is_exported_can_be_imported_again(log: Logs, tmp_path: Path, empty: Path) -> None:
    for number in range(2):
        numbered(log.create("t", number, **({} if number else {"segment_bytes": 1000})), 20)
    target = str(tmp_path / "parquet")
    export(log.spark, place_of(str(log.place)), "t", target, {})
    found = log.spark.read.parquet(target)
    assert in_order(found.select(*log.read(includeHeaders="true").columns)) == log.held()
    import_rows(log.spark, rows_of(log.spark, "parquet", [target], ["partition", "offset"]), empty, "t", 2)
    for number, held in records(empty).items():
        assert held == list(log.store.partition("t", number).records())
    with pytest.raises(PySparkException, match="exist"):
        export(log.spark, place_of(str(log.place)), "t", target, {})


def test_jsonl_is_imported_as_the_views_write_it(spark: SparkSession, empty: Path, tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(
        '{"topic":"x","partition":0,"offset":7,"timestamp":1700000000000,"key":"k","value":"v","headers":'
        '[{"key":"h","value":"x"}]}\n{"key":null,"value_base64":"/wA=","timestamp":1700000000001}\n{"value":null,"key":"k"}\n'
    )
    import_rows(spark, rows_of(spark, "json", [str(file)]).coalesce(1), empty, "t", 1)
    first, second, third = records(empty)[0]
    assert first == Record(b"v", b"k", NOW, (("h", b"x"),), 0)
    assert second == Record(b"\xff\0", None, NOW + 1, (), 1)
    assert (third.key, third.value) == (b"k", None)


# -- commands -----------------------------------------------------------------------------------------


@pytest.fixture
def run(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, str]]:
    """`topicfs spark …` in this process, on the session that is there."""
    monkeypatch.setattr(type(spark), "stop", lambda self: None)

    def command(*words: object) -> tuple[int, str]:
        result = CliRunner().invoke(main, ["spark", *map(str, words)])
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result.exit_code, result.output

    return command


def test_the_commands_do_the_jobs(run: Callable[..., tuple[int, str]], empty: Path, tmp_path: Path) -> None:
    text = tmp_path / "lines.txt"
    text.write_text("b\na\nc\n")
    code, said = run("import", empty, "t", text, "--sort-by", "value", "-o", "cleanup.policy=delete")
    assert (code, said.split(",")[0]) == (0, "t: 3 records")
    assert [record.value for record in records(empty)[0]] == [b"a", b"b", b"c"]
    code, said = run("import", empty, "t", text)
    assert code == 1
    assert "topic t exists" in said
    assert run("verify", empty) == (
        0, "1 partitions, 1 segments, 3 records, 85 bytes: 0 segments with problems\n"
    )  # fmt: skip
    assert run("export", empty, tmp_path / "out", "--topic", "t")[0] == 0
    assert list((tmp_path / "out" / "topic=t" / "partition=0").glob("*.parquet"))
    code, said = run("export", empty, tmp_path / "other", "--topic", "none")
    assert code == 1
    assert "expected a topic none" in said
    damage(empty / "logs" / "t-0" / f"{0:020d}.log", 70, b"\xff")
    code, said = run("verify", empty)
    assert code == 1
    assert "t-0 segment 0:" in said
    assert "1 segments with problems" in said
