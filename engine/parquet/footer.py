"""The footer of a Parquet file of a table."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow.parquet as pq

from topicfs.engine.files.regular import read_regular


def rows_in(path: Path) -> tuple[int, int, int]:
    """Return the number of rows, and the smallest and the largest offset. ValueError or OSError where it is no Parquet
    file, or has no column of offsets."""
    with read_regular(os.fspath(path)) as opened:
        metadata = pq.ParquetFile(opened).metadata
        column = metadata.schema.names.index("offset")
        groups = (metadata.row_group(group).column(column) for group in range(metadata.num_row_groups))
        known = [group.statistics for group in groups if group.statistics is not None]
        first = min((each.min for each in known if each.has_min_max), default=0)
        last = max((each.max for each in known if each.has_min_max), default=-1)
        return int(metadata.num_rows), int(first), int(last)
