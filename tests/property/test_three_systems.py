"""The engine, the operations object and a real mount agree with one plain model, under random operations.

The model is a list of batches for each partition (`model.py`), and a plain rendering of records as lines
(`tests/fs/plain_formats.py`). After each step every file has the size of what is read from it, any part of it is that
part of the whole, and the whole is what the model says: of the log, and of every file that is held open, whatever
was rolled, removed and remounted meanwhile.

Where a segment ends is the system's own business, as batches differ: it is asked for, and then taken at its word.
"""

from __future__ import annotations

import errno
import itertools
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from model import ABORT, COMMIT, Batch, Model
from partition_opening import NOW

from topicfs.engine.partition.partition import Producer
from topicfs.engine.record import Record
from topicfs.fs.formats import FORMATS, Format

sys.path += [str(Path(__file__).parents[1] / folder) for folder in ("fs", "mount")]
from harness import missing
from plain_formats import PARTITION, TOPIC, copy_field, line_of
from systems import Mounted, running

PARTITIONS = 3
PRODUCERS = (7, 8)
REMOUNTS = 5
"""Real ones: each takes a second."""

_SYSTEMS: list[Any] = []
_topics = itertools.count()
_remounts = itertools.count()


# -- plain words --------------------------------------------------------------------------------------------


def murmur2(key: bytes) -> int:
    """As Kafka's producers hash keys, written from its description."""
    m, word = 0x5BD1E995, 0xFFFFFFFF
    h = 0x9747B28C ^ len(key)
    whole = len(key) & ~3
    for at in range(0, whole, 4):
        k = int.from_bytes(key[at : at + 4], "little") * m & word
        h = (h * m & word) ^ ((k ^ k >> 24) * m & word)
    if len(key) > whole:
        h = (h ^ int.from_bytes(key[whole:], "little")) * m & word
    h = (h ^ h >> 13) * m & word
    return h ^ h >> 15


def rendered(fmt: Format, records: list[Record], topic: str, partition: int) -> bytes:
    """The records as lines, of this partition."""
    lines = [line_of(fmt, record) for record in records]
    if fmt == Format.JSONL:
        old = f'{{"topic":"{TOPIC}","partition":{PARTITION},'.encode()
        new = f'{{"topic":"{topic}","partition":{partition},'.encode()
        assert all(line.startswith(old) for line in lines)
        lines = [new + line[len(old) :] for line in lines]
    return b"".join(lines)


@dataclass(frozen=True)
class Line:
    """A line that is written: its bytes without the newline, and what it means; None where it is refused."""

    data: bytes
    record: Record | None
    partition: int | None = None


def spelled(fmt: Format, record: Record, partition: int | None, with_time: bool) -> Line:
    """A line for a record, as somebody might write it."""
    if fmt == Format.TXT:
        return Line(
            (record.value or b"").replace(b"\n", b""), Record((record.value or b"").replace(b"\n", b""))
        )
    if fmt == Format.TSV:
        return Line(
            copy_field(record.key) + b"\t" + copy_field(record.value), Record(record.value, record.key)
        )
    # Each member on its own way: an object of headers stands for the list, and what is not UTF-8 is base64.
    line = line_of(fmt, replace(record, offset=999))[:-1]
    members = json.loads(line)
    for name in ("topic", "partition", "offset"):
        del members[name]
    if not with_time:
        del members["timestamp"]
    if partition is not None:
        members["partition"] = partition
    data = json.dumps(members, ensure_ascii=partition is None).encode()
    return Line(data, record if with_time else replace(record, timestamp=None), partition)


values = st.none() | st.binary(max_size=30) | st.text(max_size=12).map(str.encode) | st.just(b"x" * 90)
keys = st.none() | st.sampled_from([b"", b"a", b"key", b"\x00\xff", b"longer than four"])
times = st.integers(NOW - 500, NOW + 500)
headers = st.lists(st.tuples(st.text(max_size=3), values), max_size=2).map(tuple)
records = st.builds(Record, value=values, key=keys, timestamp=times, headers=headers)
some_records = st.lists(records, min_size=1, max_size=4)
BAD = {
    Format.TXT: [],
    Format.TSV: [b"no key", b"one\ttwo\tthree", b""],
    Format.JSONL: [b"{", b"", b'{"value":7}', b'{"wrong":"member"}', b'{"value":"v"} x', b"\xff"],
}
formats = st.sampled_from(list(Format))
partitions = st.integers(0, PARTITIONS - 1)


# -- what is open -------------------------------------------------------------------------------------------


@dataclass
class Writer:
    """A file that is open for appending, in each system that has files.

    partition  None for a topic's in.*
    tail       the beginning of a line
    written    partitions that it has written to: the first write to each does not wait
    unwritten  the rest of the bytes that are to be written
    known      what each line means
    """

    fmt: Format
    partition: int | None
    handles: dict[str, int]
    tail: bytes = b""
    written: set[int] = field(default_factory=set)
    unwritten: bytes = b""
    known: dict[bytes, Line] = field(default_factory=dict)


@dataclass
class Held:
    """A file that is open for reading: the records in [start, end) as they come, whatever is removed.

    eager    it is read on after each step, others only now and then
    done     where it is read on
    furthest how far it was ever read: a segment that lies wholly before that, and was removed, may be gone
    """

    system: str
    handle: int
    fmt: Format
    partition: int
    start: int
    end: int | None
    eager: bool
    log: bool = False
    base: int | None = None
    done: int = 0
    furthest: int = 0


_WEIGHTED: list[str] = []
_ARGUMENTS: dict[str, st.SearchStrategy[dict[str, Any]]] = {}
Step = tuple[str, dict[str, Any]]


def step(weight: int, **arguments: st.SearchStrategy[Any]) -> Callable[[Callable[..., None]], Any]:
    """Make a method a step of an example, that comes so often. A state machine of hypothesis would leave out most
    kinds of steps in each example: then hardly anything is ever read that was written."""

    def register(method: Callable[..., None]) -> Callable[..., None]:
        _WEIGHTED.extend([method.__name__] * weight)
        _ARGUMENTS[method.__name__] = st.fixed_dictionaries(arguments)
        return method

    return register


class Agreement:
    """Every step does the same to each system and to the model; `agree` compares them after it.

    seen  how often something worth looking at was looked at, over all examples: that this is not about empty files
    """

    seen: Counter[str] = Counter()  # noqa: RUF012 - of all examples

    def __init__(self) -> None:
        self.systems = _SYSTEMS
        self.with_files = [system for system in _SYSTEMS if system.files is not None]
        self.models = [Model() for _ in range(PARTITIONS)]
        self.writers: list[Writer] = []
        # Of each partition: whose record waits, and whether it is a plain line, which has the time of its batch.
        self.queues: list[list[tuple[Writer, bool, Record]]] = [[] for _ in range(PARTITIONS)]
        self.held: list[Held] = []
        self.origins: dict[tuple[str, int, Format], int] = {}
        self.sequences: dict[tuple[int, int], int] = {}
        self.bases: dict[tuple[str, int], set[int]] = {}
        self.topic = ""
        self.now = NOW

    def run(self, begin: dict[str, Any], steps: list[Step]) -> None:
        self.begin(**begin)
        try:
            for name, arguments in steps:
                getattr(self, name)(**arguments)
                self.agree()
            self.look_at_everything()
            while self.held:
                self._let_go(self.held[-1])
            while self.writers:
                self._close(self.writers[-1])
            self.agree()
            self.look_at_everything()
        finally:
            self._abandon()

    def _abandon(self) -> None:
        """Close what a failure left open: the next example goes on with the same systems."""
        for system in self.with_files:
            for held in self.held:
                if held.system == system.name:
                    system.files.close(held.handle)
            for writer in self.writers:
                system.files.close(writer.handles[system.name])
            if isinstance(system, Mounted):
                system.await_writers(0)
        # An opening of the store is not to become slower with each example.
        self._all("delete", self.topic)

    def look_at_everything(self) -> None:
        place = (0.37, 71)
        for partition, kind, fmt in itertools.product(
            range(PARTITIONS), ("log", "segments", "sealed"), Format
        ):
            self.look(partition, fmt, kind, 0, None, place)
        for partition, model in enumerate(self.models):
            self.look_at_names(partition)
            self.seen["records"] += model.end
            self.seen["raised starts"] += model.start > 0
            self.seen["aborted batches"] += len(model.aborted())
            self.seen["examples"] += partition == 0

    def begin(self, codec: str, stamped: bool, each_write: bool, segment_bytes: int) -> None:
        self.topic = f"t{next(_topics)}"
        self.stamped = stamped
        self.each_write = each_write
        overrides = {
            "compression.type": codec,
            "message.timestamp.type": "LogAppendTime" if stamped else "CreateTime",
            # Where lines wait, nothing but a close may send them: no batch may become full, and a segment has room for
            # unfinished lines beside a batch.
            "internal.segment.bytes": str(segment_bytes if each_write else 10_000_000),
            "index.interval.bytes": "200",
            "file.delete.delay.ms": "0",
        }
        self._all("set_clock", self.now)
        self._all("create", self.topic, PARTITIONS, overrides, 0 if each_write else 1 << 20)
        for system in self.systems:
            if isinstance(system, Mounted):
                system.batch_size = 0 if each_write else 1 << 20

    # -- all of them ----------------------------------------------------------------------------------

    def _all(self, name: str, *arguments: object) -> list[Any]:
        return [getattr(system.hand, name)(*arguments) for system in self.systems]

    def _name(self, partition: int) -> str:
        return f"{self.topic}-{partition}"

    def _path(self, partition: int, rest: str) -> str:
        return f"/{self._name(partition)}/{rest}"

    # -- appending ------------------------------------------------------------------------------------

    def _writer(self, number: int, fmt: Format, partition: int | None) -> Writer:
        """The one with this number, or a new one."""
        if number < len(self.writers):
            return self.writers[number]
        if partition is None:
            if fmt == Format.TXT:
                fmt = Format.TSV  # lines without a key go to one partition after the other: test_targets
            path = f"/topics/{self.topic}/in.{fmt.suffix}"
        else:
            path = self._path(partition, f"log.{fmt.suffix}")
        handles = {
            system.name: system.files.open(path, os.O_WRONLY | os.O_APPEND) for system in self.with_files
        }
        assert min(handles.values()) >= 0
        self.writers.append(Writer(fmt, partition, handles))
        return self.writers[-1]

    @step(
        7,
        chosen=st.integers(0, 3),
        fmt=formats,
        partition=st.sampled_from([0, 0, 0, 1, None]),
        lines=st.lists(st.tuples(records, st.booleans(), partitions | st.none()), max_size=5),
        worst=st.none() | st.integers(0, 12),
        cut=st.just(1.0) | st.floats(0, 1),
    )
    def write(
        self,
        chosen: int,
        fmt: Format,
        partition: int | None,
        lines: list[tuple[Record, bool, int | None]],
        worst: int | None,
        cut: float,
    ) -> None:
        """Some of the bytes of some lines, one of which may be bad."""
        writer = self._writer(chosen, fmt, partition)
        made = []
        for record, with_time, named in lines:
            # Without a key it is anybody's turn.
            keyed = replace(record, key=record.key or b"key") if writer.partition is None else record
            made.append(spelled(writer.fmt, keyed, named if writer.fmt == Format.JSONL else None, with_time))
        bad = BAD[writer.fmt]
        if worst is not None and bad and made:
            made.insert(worst % (len(made) + 1), Line(bad[worst % len(bad)], None))
        for line in made:
            writer.known[line.data] = line
        writer.unwritten += b"".join(line.data + b"\n" for line in made)
        self._write_part(writer, round(len(writer.unwritten) * cut))

    def _write_part(self, writer: Writer, length: int) -> None:
        part = writer.unwritten[:length]
        expected = self._written(writer, part)
        for system in self.with_files:
            assert system.files.write(writer.handles[system.name], part) == expected, system.name
        # Who is refused gives up, in the middle of a line or not.
        writer.unwritten = writer.unwritten[len(part) :] if expected == len(part) else b""

    def _written(self, writer: Writer, part: bytes) -> int:
        """What a write gives: bytes taken, or an errno."""
        taken: list[tuple[int, Record]] = []
        done = 0
        ends = part.rfind(b"\n") + 1
        while done < ends:
            end = part.index(b"\n", done) + 1
            line = writer.known[writer.tail + part[done : end - 1]]
            writer.tail = b""
            if line.record is None:
                self._take(writer, taken)
                return done if done else -errno.EINVAL
            taken.append(self._placed(writer, line))
            done = end
        writer.tail += part[ends:]
        self._take(writer, taken)
        return len(part)

    def _placed(self, writer: Writer, line: Line) -> tuple[int, Record]:
        """The partition that a line goes to, and its record."""
        record = line.record
        assert record is not None
        if record.timestamp is None:
            record = replace(record, timestamp=self.now)
        partition = writer.partition
        if partition is None:
            partition = line.partition
        if partition is None:
            assert record.key is not None
            partition = (murmur2(record.key) & 0x7FFFFFFF) % PARTITIONS
        return partition, record

    def _take(self, writer: Writer, taken: list[tuple[int, Record]]) -> None:
        """What one write brought waits behind what came before, or is appended with it."""
        for partition in range(PARTITIONS):
            mine = [record for where, record in taken if where == partition]
            if mine:
                waits = partition in writer.written and not self.each_write
                if not waits and writer.fmt != Format.TXT:
                    self._flush(partition)
                self.queues[partition] += [(writer, writer.fmt == Format.TXT, record) for record in mine]
                if not waits:
                    self._flush(partition)
                writer.written.add(partition)

    def _flush(self, partition: int) -> None:
        """What waits for a partition is appended now."""
        waiting, self.queues[partition] = self.queues[partition], []
        for is_plain, run in itertools.groupby(waiting, lambda each: each[1]):
            records = [record for _, _, record in run]
            if is_plain:
                # Plain lines have the time of their batch's first one, which waits for `linger.ms` at most.
                records = [replace(record, timestamp=records[0].timestamp) for record in records]
            self._append(partition, records, None, ("engine",))

    def _send(self, writer: Writer) -> None:
        """What waits of a writer is appended now, with all that waits where it does."""
        for partition in range(PARTITIONS):
            if any(whose is writer for whose, _, _ in self.queues[partition]):
                self._flush(partition)

    def _append(
        self, partition: int, chosen: list[Record], producer: Producer | None, names: tuple[str, ...]
    ) -> None:
        """Into the model, and by the engine's call into the systems that have these names."""
        model = self.models[partition]
        for system in self.systems:
            if system.name in names:
                found = system.hand.append(self._name(partition), chosen, producer)
                assert found == (model.end, model.end + len(chosen) - 1)
        if self.stamped:
            chosen = [replace(record, timestamp=self.now) for record in chosen]
        extra: dict[str, Any] = {}
        if producer is not None:
            extra = {"producer_id": producer.producer_id, "transactional": producer.transactional}
        model.append_records(chosen, model.end, **extra)

    @step(1, chosen=st.integers(0, 3))
    def close_a_duplicate(self, chosen: int) -> None:
        """Whole lines are appended then, and an unfinished one is not."""
        if not self.writers:
            return
        writer = self.writers[chosen % len(self.writers)]
        for system in self.with_files:
            system.files.flush(writer.handles[system.name])
        self._send(writer)

    @step(1, chosen=st.integers(0, 3))
    def sync(self, chosen: int) -> None:
        if not self.writers:
            return
        writer = self.writers[chosen % len(self.writers)]
        for system in self.with_files:
            system.files.sync(writer.handles[system.name])
        self._send(writer)

    @step(2, chosen=st.integers(0, 3))
    def close(self, chosen: int) -> None:
        if self.writers:
            self._close(self.writers[chosen % len(self.writers)])

    def _close(self, writer: Writer) -> None:
        if writer.tail and writer.fmt != Format.TXT:
            # Of a line that is cut off nobody could be told that it is none: its rest comes, but for the newline.
            end = writer.unwritten.index(b"\n")
            good = writer.known[writer.tail + writer.unwritten[:end]].record is not None
            self._write_part(writer, end if good else end + 1)
        self.writers.remove(writer)
        for system in self.with_files:
            system.files.close(writer.handles[system.name])
            if isinstance(system, Mounted):
                system.await_writers(len(self.writers))
        if writer.tail:
            # The last close ends an unfinished line; what waits was sent by the close before it.
            self._send(writer)
            known = writer.known.get(writer.tail)
            self._take(writer, [self._placed(writer, known or Line(writer.tail, Record(writer.tail)))])
        self._send(writer)

    @step(3, partition=partitions, chosen=some_records)
    def append_in_the_engine(self, partition: int, chosen: list[Record]) -> None:
        self._flush(partition)
        self._append(partition, chosen, None, ("engine", "operations", "mount"))

    # -- transactions ---------------------------------------------------------------------------------

    @step(3, partition=st.sampled_from([0, 0, 1]), producer=st.sampled_from(PRODUCERS), chosen=some_records)
    def append_in_a_transaction(self, partition: int, producer: int, chosen: list[Record]) -> None:
        self._flush(partition)
        sequence = self.sequences.get((partition, producer), 0)
        self._append(
            partition, chosen, Producer(producer, 0, sequence, True), ("engine", "operations", "mount")
        )
        self.sequences[partition, producer] = sequence + len(chosen)

    @step(3, partition=st.sampled_from([0, 0, 1]), producer=st.sampled_from(PRODUCERS), commit=st.booleans())
    def end_a_transaction(self, partition: int, producer: int, commit: bool) -> None:
        model = self.models[partition]
        if producer in model.ongoing():
            self._flush(partition)
            assert self._all("end", self._name(partition), producer, commit) == [model.end] * len(
                self.systems
            )
            model.append(Batch(model.end, model.end, (), producer, 0, kind=COMMIT if commit else ABORT))

    # -- other changes --------------------------------------------------------------------------------

    @step(4, partition=st.sampled_from([0, 0, 0, 1]))
    def roll(self, partition: int) -> None:
        self._flush(partition)
        self._all("roll", self._name(partition))
        for found in self._all("bases", self._name(partition)):
            assert found[-1] == self.models[partition].end

    @step(
        4,
        partition=st.sampled_from([0, 0, 1]),
        part=st.sampled_from([0.3, 0.6, 0.9, 1.0]),
        remove=st.sampled_from([True, True, False]),
    )
    def raise_the_start(self, partition: int, part: float, remove: bool) -> None:
        """As retention does. Above an open transaction retention does not go."""
        model = self.models[partition]
        offset = model.start + round((model.stable() - model.start) * part)
        self._all("raise_start", self._name(partition), offset, remove)
        model.start = offset

    @step(1, ms=st.integers(1, 100))
    def time_passes(self, ms: int) -> None:
        self.now += ms
        self._all("set_clock", self.now)
        for system in self.systems:
            if isinstance(system, Mounted):
                system.ms = self.now

    @step(1)
    def keep_maps(self) -> None:
        self._all("keep_maps")

    @step(1, which=st.integers(0, 3))
    def remount(self, which: int) -> None:
        """Everything is closed, and opened again. The mount a few times only."""
        while self.writers:
            self._close(self.writers[-1])
        # The line that a close ends may have begun a segment.
        for system, partition in itertools.product(self.with_files, range(PARTITIONS)):
            self._segments(system, partition)
        for held in list(self.held):
            self._let_go(held)
        for system in self.systems:
            if not isinstance(system, Mounted) or (which == 0 and next(_remounts) < REMOUNTS):
                system.remount()
        self._all("set_clock", self.now)

    # -- reading --------------------------------------------------------------------------------------

    def _views(self, partition: int, fmt: Format, start: int, end: int | None) -> bytes:
        """The records in [start, end) as lines, of those that the start offset hides as well."""
        whole = replace(self.models[partition], start=0)
        found = whole.records(start, whole.end if end is None else end, committed=True)
        return rendered(fmt, found, self.topic, partition)

    def _first_at(self, partition: int, timestamp: int) -> int:
        """The first offset of a record that shows and is not earlier."""
        model = self.models[partition]
        shown = model.records(model.start, model.stable(), committed=True)
        return min(
            (record.offset for record in shown if (record.timestamp or 0) >= timestamp),
            default=model.stable(),
        )

    def _segments(self, system: Any, partition: int) -> list[tuple[int, int | None]]:
        """The segments that there are: base offset, and that of the next one."""
        found = system.hand.bases(self._name(partition))
        self.bases.setdefault((system.name, partition), set()).update(found)
        return [*itertools.pairwise(found), (found[-1], None)]

    def _held_size(self, system: Any, partition: int, fmt: Format) -> bytes:
        origin = self.origins.get((system.name, partition, fmt), self.models[partition].start)
        return self._views(partition, fmt, origin, None)

    def _read_all(self, system: Any, handle: int, position: int = 0) -> bytes:
        found = b""
        while part := system.files.read(handle, position + len(found), 1000):
            found += part
        return found

    def _check(
        self,
        system: Any,
        path: str,
        expected: bytes,
        place: tuple[float, int],
        from_origin: bytes | None = None,
    ) -> None:
        """A file by its path: its size, all of it, and a part of it."""
        by_origin = expected if from_origin is None else from_origin
        assert system.files.size(path) == len(by_origin), (system.name, path)
        handle = system.files.open(path, os.O_RDONLY)
        assert handle >= 0, (system.name, path, errno.errorcode[-handle])
        assert self._read_all(system, handle) == expected, (system.name, path)
        system.files.close(handle)
        # A handle of the log whose first read is not at byte 0 counts from the origin.
        handle = system.files.open(path, os.O_RDONLY)
        self.seen["bytes read"] += len(expected)
        position, length = round(place[0] * (len(by_origin) + 3)), place[1]
        whole = expected if position == 0 else by_origin
        try:
            assert system.files.read(handle, position, length) == whole[position : position + length]
        except OSError as error:
            # It was opened on what there is from the start offset on: what was removed before may be gone.
            if (
                error.errno != errno.EIO
                or from_origin is None
                or not self._was_removed(system, path, position)
            ):
                raise
            self.seen["opened after it was gone"] += 1
        system.files.close(handle)
        if from_origin is not None:
            self._await_release(system, path)

    def _was_removed(self, system: Any, path: str, position: int) -> bool:
        """Whether a byte of the log, counted from where its holders began, was of a segment that is removed."""
        _, partition, fmt = _log_of(path)
        origin = self.origins.get((system.name, partition, fmt), self.models[partition].start)
        return self._end_of_removed(system, partition, fmt, origin, position) is not None

    def _await_release(self, system: Any, path: str) -> None:
        """The release comes after the close; until then the log keeps its origin."""
        name, partition, fmt = _log_of(path)
        if isinstance(system, Mounted) and (system.name, partition, fmt) not in self.origins:
            system.await_logs(name, fmt.suffix)

    @step(
        3,
        partition=st.sampled_from([0, 0, 0, 1, 2]),
        fmt=formats,
        kind=st.sampled_from(["log", "segments", "sealed", "range", "last", "time", "recent"]),
        a=st.integers(0, 40),
        b=st.integers(0, 40) | st.none(),
        place=st.tuples(st.floats(0, 1), st.integers(1, 300)),
    )
    def look(
        self, partition: int, fmt: Format, kind: str, a: int, b: int | None, place: tuple[float, int]
    ) -> None:
        for system in self.with_files:
            for path, start, end in self._chosen(system, partition, fmt, kind, a, b):
                origin = self._held_size(system, partition, fmt) if kind == "log" else None
                expected = self._views(partition, fmt, start, end)
                self._check(system, self._path(partition, path), expected, place, origin)

    def _chosen(
        self, system: Any, partition: int, fmt: Format, kind: str, a: int, b: int | None
    ) -> Iterator[tuple[str, int, int | None]]:
        """Paths, each with the offsets that it means now."""
        model = self.models[partition]
        suffix = fmt.suffix
        if kind == "log":
            yield f"log.{suffix}", model.start, None
        elif kind in ("segments", "sealed"):
            for base, following in self._segments(system, partition):
                final = following is not None and model.stable() >= following
                if kind == "segments":
                    yield f"segments/{base:020d}.{suffix}", base, following
                elif final and self._views(partition, fmt, base, following):
                    yield f"sealed/{suffix}/{base:020d}.{suffix}", base, following
        elif kind == "range":
            last = "" if b is None else a + b
            yield f"offset/{a}-{last}.{suffix}", max(a, model.start), None if b is None else a + b + 1
        elif kind == "last":
            shown = model.records(model.start, model.stable(), committed=True)
            first = shown[-a - 1].offset if len(shown) > a else model.start
            yield f"offset/-{a + 1}.{suffix}", first, model.stable()
        elif kind == "time":
            first = NOW + 30 * (a - 20)
            start = self._first_at(partition, first)
            if b is None:
                yield f"time/{first}--.{suffix}", start, None
            else:
                end = max(start, self._first_at(partition, first + b * 20))
                yield f"time/{first}--{first + b * 20}.{suffix}", start, end
        else:
            span = (a + 1) * 1000
            yield f"time/last-{a + 1}s.{suffix}", self._first_at(partition, self.now - span), None

    @step(1, partition=st.sampled_from([0, 0, 1]), offset=st.integers(0, 60))
    def look_at_a_value(self, partition: int, offset: int) -> None:
        model = self.models[partition]
        found = model.records(offset, offset + 1, committed=True)
        path = self._path(partition, f"offset/{offset}")
        for system in self.with_files:
            if found:
                self._check(system, path, found[0].value or b"", (0.3, 7))
            else:
                assert system.files.open(path, os.O_RDONLY) == -errno.ENOENT

    @step(1, partition=st.sampled_from([0, 0, 1]))
    def look_at_names(self, partition: int) -> None:
        for system in self.with_files:
            segments = self._segments(system, partition)
            stems = [f"{base:020d}" for base, _ in segments]
            names = system.files.names(self._path(partition, "segments"))
            assert sorted(names) == sorted(f"{stem}.{s}" for stem in stems for s in (*FORMATS, "log"))
            for fmt in Format:
                names = system.files.names(self._path(partition, f"sealed/{fmt.suffix}"))
                chosen = self._chosen(system, partition, fmt, "sealed", 0, 0)
                assert names == [path.rpartition("/")[2] for path, _, _ in chosen]
            for folder in ("offset", "time"):
                for name in system.files.names(self._path(partition, folder)):
                    assert system.files.size(self._path(partition, f"{folder}/{name}")) >= 0, name

    # -- files that are held open ---------------------------------------------------------------------

    @step(
        4,
        partition=st.sampled_from([0, 0, 0, 1]),
        fmt=formats,
        kind=st.sampled_from(["log", "log", "segments", "range", "last", "time"]),
        a=st.integers(0, 60),
        b=st.integers(0, 20) | st.none(),
        eager=st.booleans(),
    )
    def hold(self, partition: int, fmt: Format, kind: str, a: int, b: int | None, eager: bool) -> None:
        if len(self.held) > 7:
            return
        for system in self.with_files:
            path, start, end = list(self._chosen(system, partition, fmt, kind, a, b))[-1]
            handle = system.files.open(self._path(partition, path), os.O_RDONLY)
            assert handle >= 0
            held = Held(system.name, handle, fmt, partition, start, end, eager, kind == "log")
            if kind == "segments":
                held.base = start
            if held.log:
                # The first read says where it begins: at the first record that there still is.
                held.furthest = len(system.files.read(handle, 0, 1))
                self.origins.setdefault((system.name, partition, fmt), self.models[partition].start)
            self.held.append(held)

    @step(1, chosen=st.integers(0, 11))
    def let_go(self, chosen: int) -> None:
        if self.held:
            self._let_go(self.held[chosen % len(self.held)])

    def _let_go(self, held: Held) -> None:
        self.held.remove(held)
        system = next(system for system in self.systems if system.name == held.system)
        self._read_on(system, held)
        system.files.close(held.handle)
        same = [h for h in self.held if (h.system, h.partition, h.fmt, h.log) == _key(held)]
        if held.log and not same:
            del self.origins[held.system, held.partition, held.fmt]
            self._await_release(system, self._path(held.partition, f"log.{held.fmt.suffix}"))

    @step(5, chosen=st.integers(0, 11), place=st.tuples(st.floats(0, 1), st.integers(1, 400)))
    def read_what_is_held(self, chosen: int, place: tuple[float, int]) -> None:
        if not self.held:
            return
        held = self.held[chosen % len(self.held)]
        system = next(system for system in self.systems if system.name == held.system)
        whole = self._of_held(held)
        position = round(place[0] * (len(whole) + 3))
        try:
            found = system.files.read(held.handle, position, place[1])
        except OSError as error:
            # What has no end and was read past is let go: that, and nothing else.
            gone = self._end_of_removed(system, held.partition, held.fmt, held.start, position)
            endless = held.end is None and held.base is None
            if error.errno != errno.EIO or not endless or gone is None or gone > held.furthest:
                raise
            self.seen["read past and gone"] += 1
            return
        assert found == whole[position : position + place[1]]
        self.seen["gone back"] += position < held.furthest
        held.done = held.furthest = max(held.furthest, min(len(whole), position) + len(found))

    def _read_on(self, system: Any, held: Held) -> None:
        expected = self._of_held(held)[held.done :]
        model = self.models[held.partition]
        self.seen["bytes of held files"] += len(expected)
        self.seen["held below the start"] += held.start < model.start and bool(expected)
        self.seen["held above the end"] += held.start > model.end
        assert self._read_all(system, held.handle, held.done) == expected, held
        held.done += len(expected)
        held.furthest = max(held.furthest, held.done)

    def _end_of_removed(
        self, system: Any, partition: int, fmt: Format, start: int, position: int
    ) -> int | None:
        """Where the segment ends that a byte of the records from `start` on lies in, if it was removed from the log."""
        bases = sorted(self.bases[system.name, partition])
        there = system.hand.bases(self._name(partition))
        for base, following in reversed([*itertools.pairwise(bases)]):
            begins = len(self._views(partition, fmt, start, max(start, base)))
            if begins <= position:
                ends = len(self._views(partition, fmt, start, max(start, following)))
                return ends if base not in there and position < ends else None
        return None

    def _of_held(self, held: Held) -> bytes:
        end = held.end
        if held.base is not None:
            later = [base for base in self.bases[held.system, held.partition] if base > held.base]
            end = min(later, default=None)
        return self._views(held.partition, held.fmt, held.start, end)

    # -- what always holds ----------------------------------------------------------------------------

    def agree(self) -> None:
        for partition, model in enumerate(self.models):
            name = self._name(partition)
            expected = (model.start, model.stable(), model.end)
            assert self._all("offsets", name) == [expected] * len(self.systems), name
            for system in self.with_files:
                self._segments(system, partition)
        self._agree_on_files(0)
        for held in self.held:
            system = next(system for system in self.systems if system.name == held.system)
            if held.eager:
                self._read_on(system, held)

    def _agree_on_files(self, partition: int) -> None:
        model = self.models[partition]
        name = self._name(partition)
        assert self.systems[0].hand.records(name) == model.records(0, model.end, committed=True)
        for system in self.with_files:
            for fmt in Format:
                expected = self._views(partition, fmt, model.start, None)
                by_origin = self._held_size(system, partition, fmt)
                place = ((model.end * 7 % 11) / 10, 50)
                self._check(system, self._path(partition, f"log.{fmt.suffix}"), expected, place, by_origin)


def _log_of(path: str) -> tuple[str, int, Format]:
    """The partition's name and number, and the format."""
    name, _, file = path[1:].partition("/")
    return name, int(name.rpartition("-")[2]), FORMATS[file.rpartition(".")[2]]


def _key(held: Held) -> tuple[str, int, Format, bool]:
    return held.system, held.partition, held.fmt, held.log


BEGIN = st.fixed_dictionaries(
    {
        "codec": st.sampled_from(["producer", "gzip", "snappy", "lz4", "zstd"]),
        "stamped": st.booleans(),
        "each_write": st.booleans(),
        "segment_bytes": st.sampled_from([900, 2000, 100_000]),
    }
)
STEPS = st.lists(
    st.sampled_from(_WEIGHTED).flatmap(lambda name: st.tuples(st.just(name), _ARGUMENTS[name])),
    min_size=40,
    max_size=60,
)


@pytest.mark.parametrize(
    ("with_mount", "examples"),
    [
        (False, 50),
        pytest.param(True, 25, marks=pytest.mark.skipif(missing() is not None, reason=str(missing()))),
    ],
    ids=["called", "mounted"],
)
def test_the_systems_agree(with_mount: bool, examples: int, tmp_path: Path) -> None:
    thorough = max(1, settings().max_examples // 50 - 1)  # the default is 100

    @settings(max_examples=examples * thorough, deadline=None, suppress_health_check=list(HealthCheck))
    @given(BEGIN, STEPS)
    def agree(begin: dict[str, Any], steps: list[Step]) -> None:
        Agreement().run(begin, steps)

    Agreement.seen.clear()
    with running(tmp_path, with_mount) as systems:
        _SYSTEMS[:] = systems
        agree()
    seen = Agreement.seen
    print(dict(seen))  # noqa: T201 - told where it fails
    assert seen["records"] > 10 * seen["examples"]
    assert seen["bytes of held files"] > 10 * seen["examples"]  # 34 is the least that was seen
    if with_mount:
        return  # a few examples need not have seen everything
    for each in (
        "raised starts",
        "aborted batches",
        "held below the start",
        "held above the end",
        "gone back",
    ):
        assert seen[each], each
