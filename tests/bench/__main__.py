"""`make bench`: every measurement beside its baseline, in one run. Takes some minutes and 12 GB of disk."""

from __future__ import annotations

import bench_engine
import bench_mount
import bench_nothing
import bench_spark
import bench_upkeep

# The do-nothing file system runs in a process of its own, which imports this module again.
if __name__ == "__main__":
    bench_nothing.run()
    bench_mount.run()
    bench_engine.run()
    bench_upkeep.run()
    bench_spark.run()
