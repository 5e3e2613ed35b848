"""Readers of the soak, each a process of its own: `python soak_readers.py <role in JSON>`.

A stream reader goes on to the last line of its log; the others until the file `stop-reading` is there. They then
print what went wrong, how much they saw, and some records by offset, for comparison with what others saw.
"""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
import time
from array import array
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from soak_lines import END, Compacted, Faults, Keys, Numbered, read_keyed

LIMIT_S = 120.0
"""Only a program that hangs takes that long."""

REMOVED = re.compile(rb"^(?:grep|cp|cat): (?:cannot (?:open|stat) ')?(.*?)'?(?: for reading)?: No such file")


class Reader:
    """What a reader found.

    role     what it was asked for
    faults   what went wrong
    counts   how often it did what
    samples  offset, writer and number of some records
    """

    def __init__(self, role: dict[str, Any]) -> None:
        self.role = role
        self.faults = Faults()
        self.counts: dict[str, int] = {}
        self.samples: list[tuple[int, str, int]] = []
        self.random = random.Random(role.get("seed", 1))

    def turns(self, pause_s: float) -> Iterator[None]:
        """Turns, with a pause after each, until readers are to stop."""
        stop = Path(self.role["place"]) / "stop-reading"
        while not stop.exists():
            yield
            self.count("turns")
            time.sleep(pause_s)

    def count(self, what: str, by: int = 1) -> None:
        """It did that once more."""
        self.counts[what] = self.counts.get(what, 0) + by

    def sample(self, offset: int, found: tuple[bytes, int] | None) -> None:
        """Remember a record, for comparison at the end."""
        if found is not None:
            self.samples.append((offset, found[0].decode(), found[1]))

    @contextmanager
    def failing(self, what: str) -> Iterator[None]:
        """An error of the file system is a fault."""
        try:
            yield
        except OSError as error:
            self.faults.add(f"{what}: {error} (at {time.strftime('%H:%M:%S')})")

    def start_of(self, partition: Path) -> int:
        """The start offset now."""
        return int((partition / "start").read_bytes())

    def output(self, *command: str | Path, good: tuple[int, ...] = (0,)) -> bytes:
        """What a program prints. What it complains of is a fault, but for files that were removed."""
        try:
            done = subprocess.run(command, capture_output=True, check=False, timeout=LIMIT_S)
        except subprocess.TimeoutExpired as error:
            self.faults.add(f"it does not end: {error}")
            return b""
        libfuse_stderr = done.stderr.splitlines()
        for complaint in libfuse_stderr:
            match = REMOVED.match(complaint)
            if match is None or can_be_opened(match[1]):
                self.faults.add(f"{' '.join(map(str, command))}: {complaint.decode(errors='replace')}")
            else:
                self.count("removed meanwhile")
        if done.returncode not in good and not libfuse_stderr:
            self.faults.add(f"{' '.join(map(str, command))}: exit {done.returncode}")
        return done.stdout

    def report(self) -> dict[str, Any]:
        """For the conductor."""
        return {
            "faults": self.faults.first,
            "fault_count": self.faults.count,
            "counts": self.counts,
            "samples": self.samples[:: 1 + len(self.samples) // 20_000],
        }


def can_be_opened(path: bytes) -> bool:
    """Whether a file is there. stat does not tell: it finds a removed segment as long as somebody has it open."""
    try:
        os.close(os.open(path, os.O_RDONLY))
    except FileNotFoundError:
        return False
    return True


# -- streams ------------------------------------------------------------------------------------------------


def stream(reader: Reader) -> dict[str, Any]:
    """Numbered lines that come on stdin from `tail` or `follow.txt`: each once, in order. Their order is put in a
    file, as pairs of writer and number."""
    role = reader.role
    lines = Numbered(reader.faults, role["source"], role["complete"], role["jumping"])
    order = array("q")
    names: list[str] = []
    for line in _lines(sys.stdin.buffer, reader):
        found = lines.add(line)
        reader.count("lines")
        if found is None:
            continue
        if found[0] == END:
            break
        if role.get("order"):
            name = found[0].decode()
            if name not in names:
                names.append(name)
            order.append(names.index(name))
            order.append(found[1])
    else:
        reader.faults.add(f"{role['source']}: ended before the last line")
    if role.get("order"):
        Path(role["order"]).write_bytes(order.tobytes())
    return {"names": names, "last": {name.decode(): number for name, number in lines.last.items()}}


def stream_keyed(reader: Reader) -> dict[str, Any]:
    """Keyed records that come on stdin: all that were written since the first, though compaction runs."""
    role = reader.role
    last: dict[str, int] = {}
    keys: dict[str, dict[str, None]] = {}
    offset = -1
    for line in _lines(sys.stdin.buffer, reader):
        try:
            record = read_keyed(line)
        except (ValueError, KeyError, IndexError, TypeError):
            reader.faults.add(f"{role['source']}: expected a keyed record, found {line[:200]!r}")
            continue
        reader.count("lines")
        if record.writer == END.decode():
            break
        # Nothing is missing: it was opened before the first record, and keeps what it has not read.
        if record.offset != offset + 1:
            reader.faults.add(f"{role['source']}: expected offset {offset + 1}, found {record.offset}")
        if record.number <= last.get(record.writer, -1):
            reader.faults.add(f"{role['source']}: {record} came behind number {last[record.writer]}")
        offset, last[record.writer] = record.offset, record.number
        keys.setdefault(record.writer, {})[record.key] = None
        if record.offset % 50 == 0:
            reader.samples.append((record.offset, record.writer, record.number))
    else:
        reader.faults.add(f"{role['source']}: ended before the last record")
    return {"last": last, "keys": {writer: list(seen) for writer, seen in keys.items()}}


def _lines(source: IO[bytes], reader: Reader) -> Iterator[bytes]:
    for line in source:
        if not line.endswith(b"\n"):
            reader.faults.add(f"{reader.role['source']}: ended in the middle of {line[:200]!r}")
            return
        yield line[:-1]


# -- plain logs ---------------------------------------------------------------------------------------------


def whole_text(reader: Reader) -> None:
    """The whole log in txt, again and again: a run of lines without a gap."""
    path = Path(reader.role["partition"]) / "log.txt"
    for _ in reader.turns(0.8):
        lines = Numbered(reader.faults, f"cat {path}")
        for line in reader.output("cat", path).splitlines():
            lines.add(line)
            reader.count("lines")


def whole_json(reader: Reader) -> None:
    """The whole log in jsonl, again and again: offsets without a gap, from the start offset on."""
    partition = Path(reader.role["partition"])
    for turn, _ in enumerate(reader.turns(1.5)):
        lines = Numbered(reader.faults, f"cat {partition}/log.jsonl")
        expected = None
        with reader.failing("start"):
            before = reader.start_of(partition)
            found = reader.output("cat", partition / "log.jsonl").splitlines()
            after = reader.start_of(partition)
        for line in found:
            record = json.loads(line)
            offset = record["offset"]
            if expected is None:
                if not before <= offset <= after:
                    reader.faults.add(f"cat log.jsonl began at {offset}, with a start of {before} to {after}")
            elif offset != expected:
                reader.faults.add(f"cat log.jsonl: expected offset {expected}, found {offset}")
            expected = offset + 1
            views = lines.add(record["value"].encode())
            if offset % 97 == turn % 97:
                reader.sample(offset, views)
            reader.count("lines")


def look_up(reader: Reader) -> None:
    """Single records by offset: there, or below the start offset by now."""
    partition = Path(reader.role["partition"])
    for _ in reader.turns(0.02):
        with reader.failing("status.json"):
            status = json.loads((partition / "status.json").read_bytes())
            start, end = status["start_offset"], status["stable_offset"]
            # Often where retention is at work.
            span = (end - start) // 20 if reader.random.random() < 0.5 else end - start
            if not span:
                continue
            offset = start + reader.random.randrange(span)
            try:
                value = (partition / "offset" / str(offset)).read_bytes()
            except FileNotFoundError:
                if offset >= reader.start_of(partition):
                    reader.faults.add(f"offset/{offset} is not there, of {start} to {end}")
                reader.count("removed meanwhile")
                continue
            reader.sample(offset, Numbered(reader.faults, f"offset/{offset}").add(value))


def ranges(reader: Reader) -> None:
    """A range with an end stays what it was when it was opened, wherever it is read, though retention removes it."""
    partition = Path(reader.role["partition"])
    for turn, _ in enumerate(reader.turns(0.1)):
        with reader.failing(f"ranges, turn {turn}"):
            status = json.loads((partition / "status.json").read_bytes())
            start, end = status["start_offset"], status["stable_offset"]
            if end - start < 100:
                continue
            first = start + reader.random.randrange((end - start) // 3)
            last = min(end - 1, first + reader.random.randrange(50, 8000))
            suffix = reader.random.choice(("txt", "jsonl"))
            descriptor = os.open(partition / "offset" / f"{first}-{last}.{suffix}", os.O_RDONLY)
            try:
                _look_around(reader, descriptor, f"offset/{first}-{last}.{suffix}", suffix, last)
            finally:
                os.close(descriptor)


def _look_around(reader: Reader, descriptor: int, name: str, suffix: str, last: int) -> None:
    whole = _whole(descriptor)
    lines = Numbered(reader.faults, name)
    count = 0
    for line in whole.splitlines():
        lines.add(line if suffix == "txt" else json.loads(line)["value"].encode())
        count += 1
    if suffix == "jsonl" and whole:
        newest = json.loads(whole.splitlines()[-1])["offset"]
        if newest != last:
            reader.faults.add(f"{name} ends with offset {newest}")
    reader.count("lines", count)
    until = time.monotonic() + 3
    while time.monotonic() < until:
        at = reader.random.randrange(len(whole) + 10)
        size = reader.random.randrange(1, 20_000)
        found = os.pread(descriptor, size, at)
        if found != whole[at : at + size]:
            reader.faults.add(f"{name}: {size} bytes at {at} are not what they were")
        reader.count("preads")
        time.sleep(0.03)


def hold(reader: Reader) -> None:
    """It opens the log, reads a little, sleeps, and reads on: all is there, though it was removed meanwhile."""
    partition = Path(reader.role["partition"])
    for turn, _ in enumerate(reader.turns(0.1)):
        lines = Numbered(reader.faults, f"a held {partition}/log.txt, turn {turn}")
        with reader.failing(lines.source), open(partition / "log.txt", "rb", buffering=0) as file:
            rest = file.read(1000)
            _sleep(reader, 2 + reader.random.random() * reader.role["hold_s"])
            size = os.fstat(file.fileno()).st_size
            seen = len(rest)
            while part := file.read(64 * 1024):
                *whole, rest = (rest + part).split(b"\n")
                for line in whole:
                    lines.add(line)
                    reader.count("lines")
                seen += len(part)
                if seen > size + 2_000_000:
                    break
            # It may end within a line only where it stopped by itself.
            if rest and seen <= size + 2_000_000:
                reader.faults.add(f"{lines.source}: ends in the middle of {rest[:200]!r}")


def _sleep(reader: Reader, seconds: float) -> None:
    stop = Path(reader.role["place"]) / "stop-reading"
    until = time.monotonic() + seconds
    while time.monotonic() < until and not stop.exists():
        time.sleep(0.1)


def sealed(reader: Reader) -> None:
    """Copies of sealed segments: whole, and of the size that was told. A copy of a removed one may fail at once."""
    partition = Path(reader.role["partition"])
    target = Path(reader.role["place"]) / "copy"
    for turn, _ in enumerate(reader.turns(0.2)):
        suffix = ("txt", "jsonl")[turn % 2]
        folder = partition / "sealed" / suffix
        with reader.failing("sealed"):
            names = os.listdir(folder)
            if not names:
                continue
            # Often one that is about to go.
            name = names[0] if reader.random.random() < 0.5 else reader.random.choice(names)
            with suppress(FileNotFoundError):
                target.unlink()
            reader.output("cp", folder / name, target, good=(0, 1))
            if not target.exists():
                continue
            data = target.read_bytes()
            lines = Numbered(reader.faults, f"cp sealed/{suffix}/{name}")
            if not data.endswith(b"\n"):
                reader.faults.add(f"{lines.source}: {len(data)} bytes, which end with {data[-50:]!r}")
            for number, line in enumerate(data.splitlines()):
                found = lines.add(line if suffix == "txt" else json.loads(line)["value"].encode())
                if number % 301 == 0:
                    reader.sample(int(name[:20]) + number, found)
            reader.count("copies")


# -- compacted logs -----------------------------------------------------------------------------------------


def compacted(reader: Reader) -> None:
    """The whole of each compacted partition, again and again; every third time with a rest in the middle."""
    checks = [
        (
            Path(each["partition"]),
            Compacted(
                reader.faults,
                f"{each['partition']}/log.jsonl",
                {name: Keys(name, count, renewed) for name, count, renewed in each["writers"]},
            ),
        )
        for each in reader.role["partitions"]
    ]
    for turn, _ in enumerate(reader.turns(0.3)):
        for number, (partition, check) in enumerate(checks):
            path = partition / "log.jsonl"
            whole = reader.output("cat", path) if (turn + number) % 3 else _read_with_a_rest(reader, path)
            reader.count("lines", check.check(whole.splitlines()))
            found = sorted(check.known)
            reader.samples.extend(
                (offset, *check.known[offset]) for offset in found[-5:] if partition.name == "compact-0"
            )


def _read_with_a_rest(reader: Reader, path: Path) -> bytes:
    data = b""
    with reader.failing(f"a held {path}"), open(path, "rb", buffering=0) as file:
        data = file.read(5000)
        _sleep(reader, reader.random.random() * reader.role["hold_s"])
        while part := file.read(100_000):
            data += part
            reader.count("reads")
    if not data.endswith(b"\n") and data:
        reader.faults.add(f"a held {path} ends with {data[-100:]!r}")
    return data


@dataclass(frozen=True, slots=True)
class _Kept:
    """An open file, and its bytes when it was opened: `grows` says whether more may come behind them."""

    path: Path
    descriptor: int
    data: bytes
    grows: bool


def segments(reader: Reader) -> None:
    """Segments and ranges of compacted partitions: what is open keeps its bytes, whatever becomes of its name.
    Some are always open."""
    partitions = [Path(each) for each in reader.role["partitions"]]
    kept: list[_Kept] = []
    for _ in reader.turns(0.1):
        with reader.failing("what a compacted partition lists"):
            opened = _open_some(reader, reader.random.choice(partitions))
            if opened is not None:
                kept.append(opened)
        if kept:
            _look_again(reader, reader.random.choice(kept))
        if len(kept) > 8:
            os.close(kept.pop(reader.random.randrange(4)).descriptor)
    for each in kept:
        _look_again(reader, each)
        os.close(each.descriptor)


def _open_some(reader: Reader, partition: Path) -> _Kept | None:
    folder = partition / reader.random.choice(("segments", "sealed/jsonl", "sealed/txt", "offset", "time"))
    if folder.name == "offset":
        status = json.loads((partition / "status.json").read_bytes())
        first = reader.random.randrange(status["start_offset"], status["stable_offset"])
        path = folder / f"{first}-{reader.random.randrange(first, status['stable_offset'])}.jsonl"
    elif folder.name == "time":
        # Times with an end: one without lets go of what was read past.
        now = time.time_ns() // 1_000_000
        path = folder / f"{now - reader.random.randrange(1000, 10_000)}--{now}.jsonl"
    else:
        names = os.listdir(folder)
        if not names:
            return None
        # Not the newest: those that are about to be rewritten.
        path = folder / reader.random.choice(names[: max(1, len(names) * 2 // 3)])
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        reader.count("removed meanwhile")
        return None
    reader.count(folder.name)
    kept = _Kept(path, descriptor, _whole(descriptor), folder.name == "segments")
    if path.suffix == ".jsonl":
        offsets = [read_keyed(line).offset for line in kept.data.splitlines()]
        if offsets != sorted(set(offsets)):
            reader.faults.add(f"{path}: its offsets are {offsets}")
    return kept


def _look_again(reader: Reader, kept: _Kept) -> None:
    with reader.failing(str(kept.path)):
        found = _whole(kept.descriptor)
        if found != kept.data and not (kept.grows and found.startswith(kept.data)):
            reader.faults.add(f"{kept.path}: {len(kept.data)} bytes changed under a reader, to {len(found)}")
        reader.count("looks")


def _whole(descriptor: int) -> bytes:
    data = b""
    while part := os.pread(descriptor, 1 << 17, len(data)):
        data += part
    return data


def grep(reader: Reader) -> None:
    """`grep -r` over everything that is listed comes to an end, and complains of nothing but removed files."""
    partitions = [Path(each) for each in reader.role["partitions"]]
    for turn, _ in enumerate(reader.turns(1.0)):
        partition = partitions[turn % len(partitions)]
        reader.output("grep", "-rac", "--", "no such text", partition, good=(0, 1, 2))


# -- settings -----------------------------------------------------------------------------------------------


def settings(reader: Reader) -> None:
    """Settings that change at run time, by `echo`."""
    for turn, _ in enumerate(reader.turns(1.7)):
        for topic, name, *values in reader.role["changes"]:
            with reader.failing(f"{topic}/config"):
                path = Path(reader.role["mount"]) / "topics" / topic / "config"
                value = values[turn % len(values)]
                descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
                try:
                    os.write(descriptor, f"{name}={value}\n".encode())
                finally:
                    os.close(descriptor)
                if f"{name}={value} ".encode() not in path.read_bytes():
                    reader.faults.add(f"{topic}: {name}={value} does not hold")


ROLES = {
    role.__name__: role
    for role in (
        stream,
        stream_keyed,
        whole_text,
        whole_json,
        look_up,
        ranges,
        hold,
        sealed,
        compacted,
        segments,
        grep,
        settings,
    )
}

if __name__ == "__main__":
    one = Reader(json.loads(sys.argv[1]))
    result = ROLES[one.role["role"]](one) or {}
    print(json.dumps({**one.report(), **result}))  # noqa: T201 - its report
