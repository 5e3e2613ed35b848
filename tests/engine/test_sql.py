"""SQL over the topics of a store: what its views have, whether Parquet files or segments hold it."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq
import pytest
from partition_opening import NOW, Clock

from topicfs import Partition, Producer, Record, Store
from topicfs.engine.arrow import dataset
from topicfs.engine.cleaner.clean import Cleaner
from topicfs.engine.min_timestamps.upkeep import MinTimestampsUpkeep
from topicfs.engine.parquet.present import present
from topicfs.engine.parquet.table import Tables
from topicfs.engine.parquet.upkeep import TableUpkeep
from topicfs.engine.sql import output
from topicfs.engine.sql.output import Format, as_text, to_file
from topicfs.engine.sql.query import Query, QueryError
from topicfs.engine.unlocked import pieces
from topicfs.engine.unlocked.place import place_of
from topicfs.engine.unlocked.planning import partitions_of

SMALL = {
    "internal.segment.bytes": "2000",
    "index.interval.bytes": "300",
    "file.delete.delay.ms": "0",
    "parquet.enable": "true",
}
"""Segments of some fifteen records."""

Rows = list[tuple[Any, ...]]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "data", clock=Clock(), create=True) as opened:
        yield opened


def sql(store: Store, query: str) -> Rows:
    """The rows of a query, as text."""
    with Query.open(place_of(str(store.backing)), query) as opened:
        return as_text(opened, None)[2]


def values(store: Store, query: str) -> list[str | None]:
    return [each[0] for each in sql(store, query)]


def numbered(partition: Partition, numbers: range, keys: int = 7) -> None:
    """Records of some 100 bytes, each a batch of its own, a millisecond apart."""
    for number in numbers:
        partition.append(Record(b"%060d" % number, b"key-%d" % (number % keys), NOW + number))


def offsets(store: Store, where: str = "true", topic: str = "t") -> list[tuple[int, int]]:
    found = sql(store, f'SELECT partition, "offset" FROM "{topic}" WHERE {where} ORDER BY ALL')
    return [(int(partition), int(offset)) for partition, offset in found]


def tabled(partition: Partition, store: Store) -> None:
    """Have the Parquet files made."""
    TableUpkeep(Tables(store.backing / "views"), store.clock).bring_up_to_date(partition, lambda: False)


def noted(partition: Partition, store: Store) -> None:
    """Have the files made that say how early records are. A segment that was just written is looked at once."""
    steady = store.clock
    upkeep = MinTimestampsUpkeep(store.backing / "views", lambda: time.time_ns() // 1_000_000, steady)
    upkeep.bring_up_to_date(partition, lambda: False)


def of_files(store: Store) -> list[tuple[int, int]]:
    """The spans of offsets that are read from Parquet files."""
    with ExitStack() as held:
        return [
            (file.start, file.end)
            for partition in partitions_of(place_of(str(store.backing)), "t")
            for file in present(partition, store.backing / "views", 1000, held)
        ]


def compact(partition: Partition) -> None:
    log = partition.log
    cleaner = Cleaner.create(1 << 20, 0.75, 1 << 20, lambda _: None, bytes(16))
    cleaner.clean(log, 0, log.chain.active.base_offset, log.clock(), lambda: None)
    log.chain.remove_due(log.clock() + 1)


# -- what the views have ------------------------------------------------------------------------------


def test_values_are_text_that_can_be_searched_and_taken_apart(store: Store) -> None:
    partition = store.create("orders", 0)
    partition.append(
        [Record(json.dumps({"user": name, "n": n}).encode()) for n, name in enumerate(("ann", "bob", "é"))]
    )
    assert values(store, "SELECT value FROM orders WHERE value LIKE '%bob%'") == ['{"user": "bob", "n": 1}']
    assert values(store, "SELECT value->>'$.user' FROM orders WHERE (value->>'$.n')::INT <> 1") == [
        "ann",
        "é",
    ]


def test_bytes_that_are_no_text_are_shown_and_are_exact_in_the_schema_bytes(store: Store) -> None:
    partition = store.create("orders", 0)
    partition.append(
        [Record(b"a\xff", b"k"), Record(b"\xe2\x82\xac", None), Record(None, b"\x00"), Record(b"", b"")]
    )
    assert sql(store, "SELECT key, value FROM orders") == [
        ("k", "a\\xFF"),
        (None, "€"),
        ("\0", None),
        ("", ""),
    ]
    assert values(store, "SELECT hex(value) FROM bytes.orders") == ["61FF", "E282AC", None, ""]
    assert values(store, "SELECT count(*) FROM bytes.orders WHERE value = '\\xE2\\x82\\xAC'::BLOB") == ["1"]


def test_columns_are_those_of_the_table(store: Store) -> None:
    partition = store.create("t", 3, SMALL)
    partition.append(Record(b"v", b"k", NOW, (("h", b"x"),)))
    expected = ("t", "3", "0", "2023-11-14 22:13:20+00", "k", "v", "[{'key': h, 'value': x}]")
    assert sql(store, "SELECT * FROM t") == [expected]
    described = sql(store, "DESCRIBE bytes.t")
    partition.roll()
    tabled(partition, store)
    assert of_files(store) == [(0, 1)]
    assert sql(store, "SELECT * FROM t") == [expected]
    assert sql(store, "DESCRIBE bytes.t") == described


def test_topics_are_listed_and_described_without_being_read(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("orders", "web-clicks", "a.b", "_0"):
        store.create(name, 0)
    assert values(store, "SHOW TABLES") == ["_0", "a.b", "orders", "web-clicks"]
    described = sql(store, "DESCRIBE orders")
    monkeypatch.setattr("topicfs.engine.sql.topics._unnamed", lambda name: 1 / 0)
    assert sql(store, "DESCRIBE orders; -- web-clicks a.b _0") == described
    assert sql(store, 'SELECT * FROM orders, "web-clicks", "a.b", _0') == []


def test_a_topic_that_the_query_does_not_name_is_an_error_and_not_empty(store: Store) -> None:
    store.create("orders", 0).append(Record(b"v"))
    with pytest.raises(
        QueryError, match="the query reads the topic orders, and does not have its name in it"
    ):
        sql(store, "FROM query_table('or' || 'ders')")


def test_topics_whose_names_differ_in_case_alone_are_one_view(store: Store) -> None:
    store.create("Orders", 0).append(Record(b"upper"))
    store.create("orders", 0).append(Record(b"lower"))
    assert values(store, "SHOW TABLES") == ["Orders"]
    assert values(store, "SELECT value FROM orders WHERE topic = 'orders'") == ["lower"]
    assert sorted(values(store, "SELECT value FROM ORDERS")) == ["lower", "upper"]


def test_only_committed_records_are_in_them(store: Store) -> None:
    partition = store.create("t", 0, SMALL)
    for number in range(10):
        numbered(partition, range(3))
        partition.append([Record(b"x", timestamp=NOW)] * 3, Producer(1, 0, 3 * number, True))
        partition.end_transaction(1, 0, commit=number % 2 == 0)
    partition.append(Record(b"open", timestamp=NOW), Producer(1, 0, 30, True))
    expected = [(0, record.offset) for record in partition.records()]
    assert len(expected) == 45
    assert offsets(store) == expected
    tabled(partition, store)
    assert of_files(store)
    assert offsets(store) == expected


# -- Parquet files and segments -----------------------------------------------------------------------


def test_no_record_is_missing_or_doubled_whatever_has_a_file(store: Store) -> None:
    for number in (0, 1):
        partition = store.create("t", number, SMALL)
        numbered(partition, range(100))
        if number == 0:
            tabled(partition, store)
        numbered(partition, range(100, 150))
    every = [(number, offset) for number in (0, 1) for offset in range(150)]
    files = of_files(store)
    assert 3 < len(files) < 10
    assert offsets(store) == every
    # A file that somebody removed, and one that was cut short.
    made = sorted((store.backing / "views/t-0").glob("*.parquet"))
    made[1].unlink()
    made[3].write_bytes(made[3].read_bytes()[:-1])
    assert len(of_files(store)) == len(files) - 2
    assert offsets(store) == every
    # No more than may be open.
    with ExitStack() as held:
        partition = partitions_of(place_of(str(store.backing)), "t")[0]
        assert len(list(present(partition, store.backing / "views", 2, held))) == 2


def test_a_file_of_a_segment_that_was_compacted_since_is_not_read(store: Store) -> None:
    partition = store.create("t", 0, {**SMALL, "cleanup.policy": "compact"})
    numbered(partition, range(100))
    partition.roll()
    tabled(partition, store)
    assert of_files(store)[0][0] == 0
    assert offsets(store) == [(0, offset) for offset in range(100)]
    compact(partition)
    assert all(start >= 93 for start, _ in of_files(store))
    assert offsets(store) == [(0, offset) for offset in range(93, 100)]
    tabled(partition, store)
    files = of_files(store)
    assert (files[0][0], files[-1][1]) == (0, 100)
    assert offsets(store) == [(0, offset) for offset in range(93, 100)]


def test_a_file_below_the_start_offset_or_of_a_former_topic_is_not_read(store: Store) -> None:
    partition = store.create("t", 0, SMALL)
    numbered(partition, range(100))
    tabled(partition, store)
    files = of_files(store)
    partition.delete_records(20)
    store.close()
    assert of_files(store) == [file for file in files if file[0] >= 20]
    assert offsets(store) == [(0, offset) for offset in range(20, 100)]
    with Store.open(store.backing, clock=store.clock) as again:
        again.delete_topic("t")
        numbered(again.create("t", 0, SMALL), range(1000, 1003))
        assert of_files(again) == []
        assert offsets(again) == [(0, 0), (0, 1), (0, 2)]


def test_a_query_reads_to_its_end_what_is_compacted_or_removed_meanwhile(store: Store) -> None:
    partition = store.create("t", 0, {**SMALL, "cleanup.policy": "compact"})
    numbered(partition, range(100))
    partition.roll()
    tabled(partition, store)
    numbered(partition, range(100, 110))
    query = 'SELECT count(*), max("offset") FROM t'
    with Query.open(place_of(str(store.backing)), query) as opened:
        compact(partition)
        tabled(partition, store)
        numbered(partition, range(110, 120))
        assert as_text(opened, None)[2] == [("110", "109")]
    assert sql(store, query) == [("27", "119")]


# -- what is read for a filter ------------------------------------------------------------------------


def test_filters_on_partition_offset_and_time_leave_over_little_to_read(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pieces, "PIECE_BYTES", 500)
    for number in (0, 1):
        partition = store.create("t", number, SMALL)
        numbered(partition, range(200))
        partition.roll()
        noted(partition, store)
    read: list[tuple[int, int, int]] = []
    made = dataset.range_of

    def watched(partition: Any, start: int, end: int) -> Any:
        read.append((partition.number, start, end))
        return made(partition, start, end)

    monkeypatch.setattr(dataset, "range_of", watched)

    def found(where: str) -> list[tuple[int, int]]:
        read.clear()
        return offsets(store, where)

    assert found('"offset" = 77') == [(0, 77), (1, 77)]
    assert [number for number, _, _ in read] == [0, 1]
    assert all(start <= 77 < end <= start + 10 for _, start, end in read)
    assert found("partition = 1 AND timestamp < '2023-11-14 22:13:20.005+00'") == [(1, n) for n in range(5)]
    assert [(number, start) for number, start, _ in read] == [(1, 0)]
    assert read[0][2] <= 20
    assert found("timestamp >= TIMESTAMPTZ '2023-11-14 22:13:20.195Z'") == [
        (number, n) for number in (0, 1) for n in range(195, 200)
    ]
    assert all(start > 180 for _, start, _ in read)
    assert found("partition = 7") == []
    assert read == []


def test_any_filter_takes_exactly_the_records_that_it_is_true_of(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pieces, "PIECE_BYTES", 500)
    times = [*range(50), -1 - NOW, 3, 49, 50, *range(20, 90)]
    for number in (0, 1):
        partition = store.create("t", number, SMALL)
        for at in times:
            partition.append(Record(b"v" * 60 if at % 3 else None, b"%d" % (at % 5), NOW + at))
        if number:
            tabled(partition, store)
        noted(partition, store)
    moment = "epoch_ms(timestamp)"
    some = f'"offset", partition, value IS NULL, key, {moment}'
    every = sql(store, f"SELECT {some} FROM t")
    assert len(every) == 2 * len(times)

    def at(ms: int) -> str:
        return f"make_timestamptz({(NOW + ms) * 1000})"

    conditions = [
        ('"offset" > 60', lambda row: int(row[0]) > 60),
        ('"offset" IN (3, 51, 400)', lambda row: int(row[0]) in (3, 51, 400)),
        ('"offset" BETWEEN 10 AND 30', lambda row: 10 <= int(row[0]) <= 30),
        ('NOT ("offset" < 100)', lambda row: int(row[0]) >= 100),
        ("partition <> 0", lambda row: row[1] != "0"),
        ("value IS NULL", lambda row: row[2] == "true"),
        ("key = '3'", lambda row: row[3] == "3"),
        (f"timestamp <= {at(3)}", lambda row: int(row[4]) <= NOW + 3),
        (f"timestamp > {at(49)}", lambda row: int(row[4]) > NOW + 49),
        (f"timestamp = {at(50)}", lambda row: int(row[4]) == NOW + 50),
        ("timestamp < '2000-01-01'", lambda row: int(row[4]) < 0),
    ]
    for (one, takes_one), (other, takes_other) in itertools.combinations(conditions, 2):
        found = sql(store, f"SELECT {some} FROM t WHERE {one} AND {other}")
        assert sorted(found) == sorted(row for row in every if takes_one(row) and takes_other(row)), (
            one,
            other,
        )
    (one, takes_one), (other, takes_other) = conditions[1], conditions[9]
    found = sql(store, f"SELECT {some} FROM t WHERE {one} OR {other}")
    assert sorted(found) == sorted(row for row in every if takes_one(row) or takes_other(row))


def test_columns_that_a_query_does_not_name_are_not_read(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbered(store.create("t", 0, SMALL), range(50))
    asked: list[list[str]] = []
    made = dataset.record_batches

    def watched(parts: Any, schema: Any, shaped: Any = None) -> Any:
        asked.append(schema.names)
        return made(parts, schema, shaped)

    monkeypatch.setattr(dataset, "record_batches", watched)
    assert values(store, 'SELECT max("offset") FROM t') == ["49"]
    assert values(store, 'SELECT key FROM t WHERE "offset" = 3') == ["key-3"]
    assert asked[0] == ["offset"]
    assert set(asked[1]) == {"offset", "key"}


# -- refusals -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "words"),
    [
        (
            "COPY (SELECT 1) TO 'file'",
            "expected a query, which reads, found COPY: topics are not changed by SQL",
        ),
        ("EXPLAIN ANALYZE COPY (SELECT 1) TO 'file'", "expected a query, which reads, found COPY"),
        ("CREATE TABLE x (a INT)", "found CREATE"),
        ("INSERT INTO orders VALUES (1)", "found INSERT"),
        ("DROP VIEW orders", "found DROP"),
        ("SELECT 1; SELECT 2", "expected one query, found 2"),
        (";", "expected one query, found 0"),
        ("SELEC value FROM orders", "^Parser Error: syntax error at or near .SELEC.$"),
        ("SELECT value FROM ordres", "^Catalog Error: Table with name ordres does not exist!.* Did you mean"),
        ("SELECT offset FROM orders", 'the column offset is written in double quotes, "offset"'),
        ("SELECT valu FROM orders", "^Binder Error: .*valu"),
        ("SELECT value->>'$.user' FROM orders", "Malformed JSON"),
        ("SELECT error('x' || chr(10) || 'y')", "x y"),
    ],
)
def test_what_is_no_query_or_fails_is_said_in_one_line(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, query: str, words: str
) -> None:
    store.create("orders", 0).append(Record(b"{no json"))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(QueryError, match=words) as refused:
        sql(store, query)
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "file").exists()


def test_a_duckdb_that_is_too_old_is_refused(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duckdb, "__version__", "1.5.1")
    with pytest.raises(
        QueryError, match=r"expected DuckDB 1.5.2 or later, found 1.5.1: pip install --upgrade"
    ):
        sql(store, "SELECT 1")


def test_explain_shows_what_a_query_would_do(store: Store) -> None:
    store.create("orders", 0)
    assert "PROJECTION" in str(sql(store, 'EXPLAIN SELECT "offset" + 1 FROM orders')).upper()


def test_a_damaged_segment_fails_a_query_in_the_engines_words(store: Store) -> None:
    partition = store.create("t", 0)
    numbered(partition, range(10))
    store.close()
    (log,) = (store.backing / "logs/t-0").glob("*.log")
    data = bytearray(log.read_bytes())
    data[500] ^= 1
    log.write_bytes(data)
    with pytest.raises(QueryError, match=r"batch at position .* checksum"):
        sql(store, "SELECT count(value) FROM t")


def test_a_file_is_there_when_all_rows_are_in_it(store: Store, tmp_path: Path) -> None:
    numbered(store.create("t", 0), range(3))
    kept = tmp_path / "kept.csv"
    for kind, query in ((Format.PARQUET, "SELECT * FROM bytes.t"), (Format.CSV, 'SELECT "offset" FROM t')):
        with Query.open(place_of(str(store.backing)), query) as opened:
            to_file(opened, kind, kept.with_suffix(f".{kind.name.lower()}"))
    assert pq.read_table(kept.with_suffix(".parquet"))["offset"].to_pylist() == [0, 1, 2]
    assert kept.read_text() == "offset\n0\n1\n2\n"
    failing = 'SELECT "offset", if("offset" = 2, error(\'late\'), 1) FROM t'
    with Query.open(place_of(str(store.backing)), failing) as opened, pytest.raises(QueryError, match="late"):
        to_file(opened, output.Format.CSV, kept)
    assert kept.read_text() == "offset\n0\n1\n2\n"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["data", "kept.csv", "kept.parquet"]
