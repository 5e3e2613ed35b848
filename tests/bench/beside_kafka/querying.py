"""Whole logs in other programs: Spark, SQL, and the dump of a segment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from bench_mount import TOPICFS
from contest import Contest, Contests, Result, Taken, Way
from sides import broker, fill, mounted, tool

from topicfs import Store

_SPARK_ROUNDS = 3
_CLICKS_AT_ONCE = 10_000


def spark(contests: Contests, place: Path, scale: float) -> None:
    """Spark with its default settings: the sum of the values' lengths, by each way to the same records. Each way has a
    session of its own, whose first query does not count."""
    records = int(10_000_000 * scale)
    backing = place / "spark"
    fill(backing, "bench", records, 100, parquet=True)
    with mounted(backing, place / "mnt") as ours:
        _until_tables_are_made(backing)
        mine = {way: _query(way, str(ours.root)) for way in ("data source", "sealed/txt", "table")}
    with broker(place / "broker", backing / "logs") as theirs:
        kafka = Result("Spark's Kafka source", _query("kafka", theirs.bootstrap))
    for way, goal in (("data source", 5), ("sealed/txt", None), ("table", None)):
        contests.add(
            Contest(
                f"Spark, {records:,} records of 100 bytes: {way}",
                Result(way, mine[way]),
                (kafka,),
                goal,
                records * 100,
            )
        )


def _query(way: str, source: str) -> tuple[Taken, ...]:
    script = Path(__file__).with_name("spark_query.py")
    words = [sys.executable, script, way, source, str(_SPARK_ROUNDS)]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True)
    return tuple(Taken(**json.loads(line)) for line in done.stdout.splitlines() if line.startswith("{"))


def _until_tables_are_made(backing: Path) -> None:
    """Wait for the Parquet files of all segments but the active one."""
    sealed = len(list((backing / "logs/bench-0").glob("*.log"))) - 1
    while len(list((backing / "views/bench-0").glob("*.parquet"))) < sealed:
        time.sleep(0.5)


def sql(contests: Contests, place: Path, scale: float) -> None:
    """Records of JSON, counted by one of their fields."""
    records = int(1_000_000 * scale)
    random = np.random.default_rng(1)
    backing = place / "sql"
    with Store.open(backing, create=True) as store:
        store.create_topic("clicks", overrides={"segment.bytes": str(64 << 20), "parquet.enable": "true"})
        partition = store.partition("clicks-0")
        for _ in range(0, records, _CLICKS_AT_ONCE):
            users, pages = random.integers(0, 1000, (2, _CLICKS_AT_ONCE))
            partition.append_lines(
                "".join(
                    f'{{"user": "u{user}", "page": "/products/{page}", "agent": "Mozilla/5.0 (X11; Linux)"}}\n'
                    for user, page in zip(users, pages, strict=True)
                ).encode()
            )
    query = "SELECT value->>'$.user' AS name, count(*) FROM clicks GROUP BY 1 ORDER BY 2 DESC LIMIT 3"
    with (
        broker(place / "broker", backing / "logs") as theirs,
        mounted(backing, place / "mnt", "--read-only") as ours,
    ):
        consume = f"kcat -C -b {theirs.bootstrap} -t clicks -p 0 -o beginning -e -q"
        contests.hold(
            f"count {records:,} records of JSON by a field",
            Way.command(
                "topicfs sql", f'{TOPICFS} sql {ours.root} "{query}" --format csv > /dev/null', ours.pid
            ),
            [
                Way.command(
                    "kcat -C | jq | sort | uniq -c",
                    f"{consume} | jq -r .user | sort | uniq -c | sort -rn | head -n 3 > /dev/null",
                    theirs.process.pid,
                )
            ],
            None,
            rounds=3,
        )


def dump(contests: Contests, place: Path, scale: float) -> None:
    """One segment, printed record by record."""
    records = int(1_000_000 * scale)
    fill(place / "dump", "bench", records, 100, segment_bytes=1 << 30)
    (log,) = (place / "dump/logs/bench-0").glob("*.log")
    theirs = tool("org.apache.kafka.tools.DumpLogSegments", "--print-data-log", "--files", str(log))
    contests.hold(
        f"dump {records:,} records of 100 bytes",
        Way.command("topicfs dump", f"{TOPICFS} dump --print-data-log {log} > /dev/null"),
        [Way.command("kafka-dump-log", f"{theirs} > /dev/null")],
        None,
        amount=os.stat(log).st_size,
        rounds=3,
    )
