"""A topic in other programs: `topicfs.arrow` and `topicfs sql`, beside DuckDB over plain Parquet of the same rows."""

from __future__ import annotations

import resource
from collections.abc import Callable
from functools import partial
from pathlib import Path

import duckdb
import numpy as np
import pyarrow.parquet as pq
from report import Report, Row, compare, gigabytes, limited
from workplace import folder

import topicfs
from topicfs import Store
from topicfs.engine.sql.query import Query
from topicfs.engine.unlocked.place import place_of

RECORDS = 10_000_000
AT_ONCE = 10_000
BYTES = RECORDS * 100
LENGTHS = "sum(octet_length(value))"


def run(report: Report) -> None:
    with folder() as place:
        title = "Arrow and SQL: 10 M records of 100 bytes, in GB for each second of a processor"
        report.show(title, scans(place))


def fill(backing: Path) -> None:
    """The log, of values that no codec makes much smaller."""
    random = np.random.default_rng(1)
    with Store.open(backing, create=True) as store:
        partition = store.create("bench")
        for _ in range(0, RECORDS, AT_ONCE):
            lines = random.integers(33, 127, (AT_ONCE, 100), np.uint8)
            lines[:, -1] = ord("\n")
            partition.append_lines(lines.reshape(-1))


def scans(place: Path) -> list[Row]:
    backing, parquet = place / "backing", place / "bench.parquet"
    fill(backing)
    reader = topicfs.arrow(backing, "bench")
    with pq.ParquetWriter(parquet, reader.schema, compression="zstd", use_dictionary=["topic"]) as writer:
        for batch in reader:
            writer.write_batch(batch)
    few = f'{LENGTHS} FROM $ WHERE "offset" >= {RECORDS // 2} AND "offset" < {RECORDS // 2 + 1000}'
    like = "count(*) FROM $ WHERE value LIKE '%zzz%'"
    decoded = "count(*) FROM $ WHERE decode(value) LIKE '%zzz%'"
    plainly = f"'{parquet}'"
    ways: dict[str, tuple[Callable[[], object], str]] = {
        "arrow, value only": (lambda: read(backing, ["value"]), f"{LENGTHS} FROM $"),
        "arrow, all columns": (
            lambda: read(backing, None),
            f'{LENGTHS}, max(timestamp), max("offset") FROM $',
        ),
        "arrow, value only, in DuckDB": (lambda: relation(backing), f"{LENGTHS} FROM $"),
        "sql, lengths of values": (lambda: sql(backing, f"{LENGTHS} FROM bytes.bench"), f"{LENGTHS} FROM $"),
        "sql, LIKE on text": (lambda: sql(backing, like.replace("$", "bench")), decoded),
        "sql, a thousand records by offset": (lambda: sql(backing, few.replace("$", "bytes.bench")), few),
    }
    rows = []
    for name, (ours, theirs) in ways.items():
        query = f"SELECT {theirs.replace('$', plainly)}"
        found = compare(partial(rate, ours), partial(rate, partial(plain, query)), 5)
        if name in ("arrow, value only", "arrow, all columns"):
            rows.append(limited(name, found.ours, "GB a processor second", least=1.0))
        rows.append(gigabytes(name, found, "DuckDB over Parquet"))
    return rows


def rate(work: Callable[[], object]) -> float:
    """GB of records for each second of a processor, in all threads. Other programs disturb it less than a clock."""
    before = used_s()
    work()
    return BYTES / 1e9 / max(used_s() - before, 1e-3)


def used_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def read(backing: Path, columns: list[str] | None) -> int:
    return sum(len(batch) for batch in topicfs.arrow(backing, "bench", columns=columns))


def relation(backing: Path) -> object:
    return duckdb.from_arrow(topicfs.arrow(backing, "bench", columns=["value"])).aggregate(LENGTHS).fetchall()


def sql(backing: Path, query: str) -> object:
    text = f"SELECT {query}"
    with Query.open(place_of(str(backing)), text) as opened:
        return opened.run(lambda: opened.connection.sql(text).fetchall())


def plain(query: str) -> object:
    with duckdb.connect() as connection:
        return connection.sql(query.replace("max(timestamp)", "max(timestamp)::VARCHAR")).fetchall()
