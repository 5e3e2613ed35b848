"""`make bench`: every measurement beside its baseline, in one run of many minutes, with 15 GB of disk.

`make bench ROWS="tools follow"` measures only those groups, and prints them; a whole run is also kept in `results/`.
"""

from __future__ import annotations

import sys
import time

import bench_daemon
import bench_engine
import bench_mount
import bench_nothing
import bench_spark
import bench_sql
import bench_tools
import bench_upkeep
from report import Report, chosen

GROUPS = {
    "nothing": bench_nothing.run,
    "tools": bench_tools.run,
    "transfers": bench_mount.run_transfers,
    "records": bench_mount.run_records,
    "lookups": bench_mount.run_lookups,
    "keys": bench_mount.run_keys,
    "groups": bench_mount.run_groups,
    "start": bench_daemon.run_start,
    "follow": bench_daemon.run_follow,
    "engine": bench_engine.run,
    "upkeep": bench_upkeep.run,
    "sql": bench_sql.run,
    "spark": bench_spark.run,
}


def main(wanted: list[str]) -> None:
    report, start = Report(), time.monotonic()
    for measure in chosen(GROUPS, wanted).values():
        measure(report)
    if not wanted:
        report.save(time.monotonic() - start)


# The do-nothing file system runs in a process of its own, which imports this module again.
if __name__ == "__main__":
    main(sys.argv[1:])
