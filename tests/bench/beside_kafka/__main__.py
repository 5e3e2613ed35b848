"""`make bench-kafka`: topicfs beside Kafka's own tools and kcat, in one run, with the same records.

`make bench-kafka ROWS="scan find"` does only those groups; `SCALE=0.25` has a quarter of the records, which
takes 6 minutes. A whole run is kept in `tests/bench/results`, group by group.
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
from report import chosen
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
    scale = float(os.environ.get("SCALE", "1"))
    contests, start = Contests(), time.monotonic()
    for hold in chosen(GROUPS, wanted).values():
        with folder() as place:
            hold(contests, place, scale)
        if not wanted:
            results.save(contests, time.monotonic() - start)


main(sys.argv[1:])
