"""Appends for ever, and says after each append what was acknowledged: <first offset> <end> <recovery point>."""

import sys
from pathlib import Path

from topicfs.engine.partition.loading import Known, load
from topicfs.engine.partition.partition import Producer
from topicfs.engine.record import Record, now_ms
from topicfs.engine.segment.descriptors import Descriptors
from topicfs.engine.settings.topic import resolve_topic

directory, point = Path(sys.argv[1]), int(sys.argv[2])
settings = resolve_topic({"internal.segment.bytes": "20000", "index.interval.bytes": "300"}, {})
partition = load("t", 0, directory, settings, 2**62, Known(recovery_point=point), now_ms, Descriptors(8))
known = partition.log.producers.producers.get(7)
sequence = known.last_sequence + 1 if known else 0
while True:
    first = partition.end_offset
    values = [b"value %d" % (first + at) for at in range(first % 4 + 1)]
    appended = partition.append([Record(value) for value in values], Producer(7, 0, sequence))
    sequence += len(values)
    if first % 11 == 0:
        partition.flush()
    end = appended.last_offset + 1
    sys.stdout.write(f"{appended.first_offset} {end} {partition.recovery_point}\n")
    sys.stdout.flush()
