"""A topic as a table: DuckDB asks Parquet files that the daemon makes of sealed segments. No Spark, no import job.

python examples/table.py                         on a mount and data of its own
python examples/table.py --mount MOUNT           on yours, the topic `clicks` with `parquet.enable=true`
"""

from __future__ import annotations

import time
from pathlib import Path

import clicks
import duckdb
import workplace

QUERIES = {
    "clicks in each partition": """
        SELECT partition, count(*) AS clicks, min(timestamp) AS first, max(timestamp) AS last
        FROM clicks GROUP BY partition ORDER BY partition""",
    "the slowest pages": """
        SELECT json_extract_string(decode(value), '$.page') AS page,
               count(*) AS views,
               round(quantile_cont(json_extract(decode(value), '$.ms')::DOUBLE, 0.99)) AS p99_ms
        FROM clicks GROUP BY page HAVING views > 100 ORDER BY p99_ms DESC LIMIT 5""",
    "one range of offsets, of which only that is read": """
        SELECT count(*) AS clicks FROM clicks WHERE partition = 0 AND "offset" BETWEEN 1000 AND 1999""",
}


def main() -> None:
    given = workplace.arguments(__doc__.partition("\n")[0])
    with workplace.mounted(given.mount, "num.partitions=2") as mount:
        topic = workplace.topic(
            mount, "clicks", segment_bytes=8 << 20, segment_ms=1000, parquet_enable="true"
        )
        if given.mount is None:
            clicks.write(topic / "in.jsonl", given.events, live=True)
            for number in range(2):
                workplace.wait_until_sealed(mount / f"clicks-{number}")
                wait_for_parquet(mount / f"clicks-{number}/sealed")
        database = duckdb.connect()
        database.sql(
            f"CREATE VIEW clicks AS SELECT * FROM read_parquet('{topic}/table/*/*.parquet', hive_partitioning = true)"
        )
        for title, query in QUERIES.items():
            print(f"\n{title}")
            print(database.sql(query))


def wait_for_parquet(sealed: Path) -> None:
    """Until every sealed segment has its file."""
    while {path.stem for path in (sealed / "parquet").iterdir()} < {
        path.stem for path in (sealed / "txt").iterdir()
    }:
        time.sleep(0.2)


if __name__ == "__main__":
    main()
