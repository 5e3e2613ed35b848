"""Every block of Python that the pages show for Spark, and for tables, runs as it stands, on a mount called mnt."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import pytest
from patience import PATIENCE_S
from pyspark.sql import DataFrame, SparkSession

sys.path.append(str(Path(__file__).parent.parent / "mount"))

from daemon_mount import DaemonMount, append, eventually
from harness import missing

ROOT = Path(__file__).parents[2]
PARTS = (
    ("README.md", "## Spark\n"),
    ("engine/spark/SPARK.md", "## Spark\n"),
    ("fs/GUIDE.md", "## Whole files and batches\n"),
    ("engine/sql/TABLES.md", "## A topic as a table\n"),
)
COUNT = 1001
"""Records of a partition: the pages begin at offset 1000."""


def blocks() -> list[str]:
    """The blocks, in their order."""
    pages = {page: (ROOT / page).read_text() for page, _ in PARTS}
    parts = [pages[page][pages[page].index(part) :].partition("\n## ")[0] for page, part in PARTS]
    return [block.partition("```")[0] for part in parts for block in part.split("```python\n")[1:]]


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[DaemonMount]:
    lack = missing()
    if lack is not None:
        pytest.skip(lack)
    served = DaemonMount(tmp_path)
    try:
        served.start("-o", "log.parquet.enable=true", "-o", "num.partitions=2")
        (served / "topics/orders").mkdir()
        for number in (0, 1):
            (served / f"orders-{number}").mkdir(exist_ok=True)
            append(served / f"orders-{number}/log.txt", b"line\n" * COUNT)
            served.steer("roll", served / f"orders-{number}")
            table = served / f"topics/orders/table/partition={number}"
            eventually(lambda table=table: table.exists() and any(table.iterdir()), str(table))  # type: ignore[misc]
        yield served
        assert served.stop() == 0
        assert served.alarms() == []
    finally:
        served.clear()


def run(block: str, names: dict[str, Any]) -> int:
    """Run a block, and each query that it would only show. Gives their number."""
    queries = 0
    for statement in ast.parse(block).body:
        if not isinstance(statement, ast.Expr):
            exec(compile(ast.Module([statement], []), "page", "exec"), names)
            continue
        found = eval(compile(ast.Expression(statement.value), "page", "eval"), names)
        if isinstance(found, DataFrame) and not found.isStreaming:
            found.collect()
            queries += 1
    return queries


def test_all_python_of_the_pages_runs(mount: DaemonMount, spark: SparkSession, tmp_path: Path) -> None:
    # Tasks of this session run in another directory than a shell that is started for one job.
    texts = [block.replace('"mnt', f'"{mount.path}').replace("'mnt", f"'{mount.path}") for block in blocks()]
    texts = [text.replace('"checkpoint"', f'"{tmp_path}/checkpoint-{at}"') for at, text in enumerate(texts)]
    (tmp_path / "lines").mkdir()
    (tmp_path / "lines/a.txt").write_text("streamed\n")
    names = {
        "spark": spark,
        "stream": spark.readStream.text(str(tmp_path / "lines")),
        "duckdb": duckdb,
        "pandas": pd,
    }
    queries = 0
    for text in texts:
        queries += run(text, names)
        for query in spark.streams.active:
            query.processAllAvailable()
            query.stop()
            assert query.awaitTermination(int(PATIENCE_S))
    assert len(texts) >= 7
    assert queries >= 6
    rows = spark.read.format("topicfs").option("path", str(mount.path)).option("subscribe", "orders").load()
    assert rows.where("value = cast('streamed' as binary)").count() == 2, (
        "by the data source, and by the inbox"
    )
    spark.sql("DROP TABLE topicfs_orders")
    spark.catalog.dropTempView("orders")
