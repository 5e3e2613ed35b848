"""Single records: found by offset and by time, and seen as soon as they are written."""

from __future__ import annotations

import resource
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from contest import Contest, Contests, Result, Taken, Way, cpu_of, memory_of
from kafka_clients import create_topics
from sides import HOUR_MS, broker, fill, mounted

_FINDS = 20
_FIRST = 200  # lines that are not counted: a producer connects meanwhile

# Of 1 KiB each: kcat reads its standard input in such pieces, and shorter lines would wait for others.
_WRITER = """
import sys, time
for _ in range(int(sys.argv[1])):
    sys.stdout.write("%-1023d\\n" % time.monotonic_ns())
    sys.stdout.flush()
    time.sleep(0.01)
"""


def find(contests: Contests, place: Path, scale: float) -> None:
    """One record of many, each time with a new process, as a user does it."""
    records = int(10_000_000 * scale)
    first = fill(place / "find", "bench", records, 100)
    with (
        broker(place / "broker", place / "find/logs") as theirs,
        mounted(place / "find", place / "mnt", "--read-only") as ours,
    ):
        partition, server = ours.root / "bench-0", theirs.process.pid
        one = f"kcat -C -b {theirs.bootstrap} -t bench -p 0 -c 1 -q -o"
        offsets = [str(records * (n + 1) // (_FINDS + 2)) for n in range(_FINDS)]
        times = [first + HOUR_MS * (n + 1) // (_FINDS + 2) for n in range(_FINDS)]
        contests.hold(
            f"{_FINDS} records of {records:,} by offset",
            Way.command("cat offset/N", _each(f"cat {partition}/offset/$each", offsets), ours.pid),
            [Way.command("kcat -o N -c 1", _each(f"{one} $each", offsets), server)],
            None,
        )
        contests.hold(
            f"{_FINDS} records of {records:,} by time",
            Way.command(
                "head -n 1 time/T--.txt",
                _each(f"head -n 1 {partition}/time/$each--.txt", map(_iso, times)),
                ours.pid,
            ),
            [Way.command("kcat -o s@T -c 1", _each(f"{one} s@$each", map(str, times)), server)],
            None,
        )


def _each(command: str, words: Iterable[str]) -> str:
    """The shell's loop over some words."""
    return f"for each in {' '.join(words)}; do {command} > /dev/null; done"


def _iso(milliseconds: int) -> str:
    """A time as names of files have it."""
    return time.strftime("%Y-%m-%dT%H%M%S", time.gmtime(milliseconds / 1000)) + f".{milliseconds % 1000:03d}Z"


def follow(contests: Contests, place: Path, scale: float) -> None:
    """From the moment before a line is written to the moment when a reader has it, a hundred lines a second."""
    count = int(3000 * scale)
    with (
        mounted(place / "backing", place / "mnt", "--create") as ours,
        broker(place, place / "kafka") as theirs,
    ):
        (ours.root / "bench-0").mkdir()
        create_topics(theirs.bootstrap, {"bench": {}})
        log, to = ours.root / "bench-0/log.txt", f"-b {theirs.bootstrap} -t bench -p 0"
        consume, server = f"exec kcat -C {to} -o end -u -q", theirs.process.pid
        mine = waited(f"exec cat {ours.root}/bench-0/follow.txt", f"cat >> {log}", count, [ours.pid])
        kcat = waited(consume, f"kcat -P {to} -X linger.ms=0", count, [server])
        usual = waited(consume, f"kcat -P {to}", count, [server])
    for name, part in (("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999)):
        results = [
            Result(tool, (each.at(part),))
            for tool, each in (
                ("cat >> log.txt to cat follow.txt", mine),
                ("kcat to kcat, linger.ms=0", kcat),
                ("kcat to kcat", usual),
            )
        ]
        contests.add(
            Contest(f"a line of 1 KiB is written and seen, {name}", results[0], tuple(results[1:]), 1)
        )


@dataclass(frozen=True, slots=True)
class Waited:
    """What readers waited for lines.

    ns         the nanoseconds until each line was seen, rising
    cpu_s      processor seconds of writer, reader and servers, for all lines
    memory_mb  resident memory of the servers at the end
    """

    ns: Sequence[int]
    cpu_s: float
    memory_mb: float

    def at(self, part: float) -> Taken:
        """The time within which such a part of the lines was seen."""
        return Taken(self.ns[int(len(self.ns) * part)] / 1e9, self.cpu_s, self.memory_mb)


def waited(reader: str, writer: str, count: int, servers: Sequence[int]) -> Waited:
    """Have a hundred lines a second written by one shell command, and read by another."""
    waits: list[int] = []
    before = sum(map(cpu_of, servers)) + _cpu_of_tools()
    with subprocess.Popen(["sh", "-c", reader], stdout=subprocess.PIPE) as follower:
        assert follower.stdout is not None

        def read() -> None:
            while len(waits) < _FIRST + count:
                line = follower.stdout.readline()
                waits.append(time.monotonic_ns() - int(line))

        thread = threading.Thread(target=read)
        thread.start()
        # A consumer looks for the end of the log first: what comes before that it does not see.
        time.sleep(3)
        command = f'"$0" -S -c "$1" {_FIRST + count} | {writer}'
        subprocess.run(["sh", "-c", command, sys.executable, _WRITER], check=True)
        thread.join(60)
        assert len(waits) == _FIRST + count, f"{reader}: {len(waits)} lines came"
        follower.terminate()
    cpu = sum(map(cpu_of, servers)) + _cpu_of_tools() - before
    return Waited(sorted(waits[_FIRST:]), cpu, sum(map(memory_of, servers)))


def _cpu_of_tools() -> float:
    """Processor seconds of all commands that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
