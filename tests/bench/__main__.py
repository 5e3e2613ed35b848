"""`make bench`: every measurement beside its baseline, in one run. Takes some minutes and 12 GB of disk."""

from __future__ import annotations

import bench_engine
import bench_mount
import bench_nothing

bench_nothing.run()
bench_mount.run()
bench_engine.run()
