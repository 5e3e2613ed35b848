"""`make bench-kafka`: topicfs beside Kafka's own tools and kcat, in one run, with the same records.

`make bench-kafka ROWS="scan find"` does only those groups; `SCALE=0.25` has a quarter of the records, which
takes 6 minutes. When a group is done, it is kept in `tests/bench/results`, in place of what it found before with as
many records or fewer: so a run with all records can be made in parts. Of fewer records only a whole run is kept.
"""

from __future__ import annotations

import os
import sys
import time

import finding
import keeping
import linking
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
    "mirror": linking.mirror,
    "produce": linking.produce,
    "latency": linking.latency,
}


def main(wanted: list[str]) -> None:
    scale = float(os.environ.get("SCALE", "1"))
    for group, hold in chosen(GROUPS, wanted).items():
        contests, start = Contests(), time.monotonic()
        with folder() as place:
            hold(contests, place, scale)
        if scale >= 1 or not wanted:
            results.keep(group, contests.done, scale, time.monotonic() - start, tuple(GROUPS))


main(sys.argv[1:])
