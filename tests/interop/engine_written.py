"""Directories that our engine wrote, one topic for each thing that Kafka has to understand.

The same at every run, so that a process which was killed and the test that reads its files agree.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from topicfs import Record, Store

WRITING_S: Final = 300
BASE_TIME: Final = 1_700_000_000_000
random_bytes: Final = random.Random(20).randbytes

ROLL: Final = "roll"
Step = Sequence[Record] | bytes | str
"""One call: records for `append`, bytes for `append_lines`, or ROLL."""


@dataclass(frozen=True, slots=True)
class Script:
    """What is done to one topic.

    steps      in order
    overrides  the topic's settings
    timed      whether records keep the timestamps they were given
    """

    steps: Sequence[Step]
    overrides: Mapping[str, str] = field(default_factory=dict)
    timed: bool = True


def _codec(name: str) -> Script:
    texts = [
        [
            Record(b"a text that repeats, number %d. " % number * 20, b"key %d" % number, BASE_TIME + number)
            for number in range(start, start + 100)
        ]
        for start in range(0, 500, 100)
    ]
    noise = [Record(random_bytes(70_000), None, BASE_TIME + 1_000 + number) for number in range(5)]
    return Script([*texts, noise, [Record(None, b"key", BASE_TIME)]], {"compression.type": name})


def _segments() -> Script:
    """About 3.5 MB, in appends that exceed the index interval and in ones far below it."""
    numbers = iter(range(1_000_000))
    large = [
        [Record(random_bytes(1_000), b"k", BASE_TIME + next(numbers)) for _ in range(30)] for _ in range(100)
    ]
    small = [[Record(random_bytes(1_000), b"k", BASE_TIME + next(numbers))] for _ in range(500)]
    return Script([*large, *small], {"segment.bytes": "1048576"})


SHAPES: Final[Sequence[Record]] = (
    Record(b"value", b"key", BASE_TIME),
    Record(b"value", None, BASE_TIME + 9),
    Record(None, b"key", BASE_TIME - 9),
    Record(None, None, BASE_TIME),
    Record(b"", b"", BASE_TIME + 2**40),
    Record(
        b"value",
        b"key",
        BASE_TIME,
        (("name", b"x"), ("name", b"y"), ("null", None), ("", b""), ("größe", b"\xff")),
    ),
    Record(bytes(range(256)), b"\x00\xff", 0),
    Record(random_bytes(300_000), random_bytes(70_000), BASE_TIME),
)

WORKLOAD: Final[Mapping[str, Script]] = {
    "uncompressed": _codec("uncompressed"),
    "gzip": _codec("gzip"),
    "snappy": _codec("snappy"),
    "lz4": _codec("lz4"),
    "zstd": _codec("zstd"),
    "segments": _segments(),
    "shapes": Script(
        [SHAPES, *([record] for record in SHAPES)], {"message.timestamp.after.max.ms": str(2**62)}
    ),
    "lines": Script([b"one\ntwo\n\n", b"three\n"], timed=False),
    "append-time": Script(
        [[Record(b"a", b"k", BASE_TIME)] * 3] * 3, {"message.timestamp.type": "LogAppendTime"}, False
    ),
    "rolled": Script(
        [[Record(b"a", b"k", BASE_TIME)] * 5, ROLL, [Record(b"b", b"k", BASE_TIME + 1)] * 5, ROLL]
    ),
    "empty": Script([]),
}


def write(store: Store) -> None:
    """Create the topics of the workload, one partition each, and fill them."""
    for topic, script in WORKLOAD.items():
        partition = store.create(topic, 0, overrides=dict(script.overrides))
        for step in script.steps:
            if isinstance(step, bytes):
                partition.append_lines(step)
            elif isinstance(step, str):
                partition.roll()
            else:
                partition.append(list(step))


def write_and_close(backing: Path) -> Path:
    """Write the workload and stop cleanly; gives `backing`."""
    with Store.open(backing, create=True) as store:
        write(store)
    return backing


def write_and_die(backing: Path) -> Path:
    """Write the workload in a process that ends as by kill -9; gives `backing`."""
    script = Path(__file__).with_name("killed_writer.py")
    done = subprocess.run(
        [sys.executable, str(script), str(backing)],
        capture_output=True,
        text=True,
        check=False,
        timeout=WRITING_S,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    return backing


def expected(script: Script) -> list[Record]:
    """What the topic holds afterwards; a timestamp that the engine gave is None."""
    records = [record for step in script.steps for record in _records(step)]
    return [
        replace(record, offset=offset, timestamp=record.timestamp if script.timed else None)
        for offset, record in enumerate(records)
    ]


def comparable(found: Iterable[Record], script: Script) -> list[Record]:
    """Records that were read, with the timestamps that the engine gave as None."""
    return [record if script.timed else replace(record, timestamp=None) for record in found]


def _records(step: Step) -> Iterator[Record]:
    if isinstance(step, bytes):
        yield from (Record(line) for line in step.split(b"\n")[:-1])
    elif not isinstance(step, str):
        yield from step
