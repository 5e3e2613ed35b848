"""`make bench-kafka`: topicfs beside Kafka's own tools and kcat, in one run, with the same records.

`make bench-kafka ROWS="scan find"` does only those groups; `SCALE=0.1` has a tenth of the records. A whole run at full
scale takes most of an hour and 30 GB of disk. A whole run is kept in `tests/bench/results`, group by group.
"""

from __future__ import annotations

import os
import sys
import time

import finding
import keeping
import moving
import querying
import results
from contest import Contests
from workplace import folder

GROUPS = {
    "append": moving.append,
    "scan": moving.scan,
    "find": finding.find,
    "follow": finding.follow,
    "compact": keeping.compact,
    "recover": keeping.recover,
    "start": keeping.start,
    "spark": querying.spark,
    "dump": querying.dump,
    "sql": querying.sql,
}


def main(wanted: list[str]) -> None:
    unknown = sorted(set(wanted) - set(GROUPS))
    if unknown:
        sys.exit(f"ROWS: expected some of {', '.join(GROUPS)}, found {', '.join(unknown)}")
    scale = float(os.environ.get("SCALE", "1"))
    contests, start = Contests(), time.monotonic()
    for name, hold in GROUPS.items():
        if not wanted or name in wanted:
            with folder() as place:
                hold(contests, place, scale)
            if not wanted:
                results.save(contests, time.monotonic() - start)


main(sys.argv[1:])
