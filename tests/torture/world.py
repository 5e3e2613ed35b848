"""A mounted store under torture: the daemon, what is open, and the oracle that is asked after every step."""

from __future__ import annotations

import errno
import json
import os
import re
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

sys.path += [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "mount")]

from click.testing import CliRunner
from daemon_mount import DaemonMount, delete, fill, undelete
from damaged_logs import Damage, read_around
from oracle import Line, Oracle, Shown, State, promise
from rows import Numbers

from topicfs.mountd.cli import main

OPTIONS: Final = (
    "log.cleaner.backoff.ms=50",
    "log.cleaner.dedupe.buffer.size=4194304",
    "log.retention.check.interval.ms=200",
    "log.initial.task.delay.ms=100",
    "log.flush.offset.checkpoint.interval.ms=300",
    "log.flush.start.offset.checkpoint.interval.ms=300",
)
SMALL: Final = {"internal_segment_bytes": 1500, "index_interval_bytes": 200, "file_delete_delay_ms": 300}
TOPICS: Final[dict[str, tuple[int, dict[str, object]]]] = {
    "plain": (2, {**SMALL}),
    "short": (1, {**SMALL, "retention_bytes": 4000}),
    "table": (2, {**SMALL, "cleanup_policy": "compact", "min_cleanable_dirty_ratio": 0.01}),
    "rows": (1, {**SMALL, "parquet_enable": "true"}),
    "again": (2, {**SMALL, "file_delete_delay_ms": 60_000}),
}
"""Topics with their partitions and settings. Everything happens often in them: they are small."""

DEAD: Final = {errno.ENOTCONN, errno.ECONNABORTED, errno.ENODEV}
"""What a program hears whose daemon is gone."""

LIMIT_S: Final = 60.0
PIECE: Final = 100_000

SPARE: Final = (4 << 20, 16 << 20, 64 << 20)
"""Memory that a daemon may have beside what it has at its start, in bytes."""

TRACEBACK: Final = re.compile(r"^Traceback .*\n(?:[ \t].*\n)*(\S.*)\n", re.MULTILINE)
"""A traceback in a log, and its last line. One that is being written has none yet."""

NO_MEMORY: Final = re.compile(
    r"MemoryError|Errno 12\]|can't start new thread|failed to map segment|[Cc]annot allocate memory"
)
"""How a traceback ends that a lack of memory explains."""


def put(file: Path, text: str) -> None:
    """One write, as `echo` makes it. Python's own files write again what a write has refused."""
    descriptor = os.open(file, os.O_WRONLY | os.O_TRUNC)
    try:
        os.write(descriptor, f"{text}\n".encode())
    finally:
        os.close(descriptor)


@dataclass
class Writer:
    """A file that somebody has open to append to.

    number      for the oracle
    descriptor  open
    topic, partition, kind  what it appends to; no partition for a topic's `in.<fmt>`
    incarnation  of the topic when it was opened
    lines       that were accepted and are not acknowledged
    rest        what is missing of the last line, which is its newline, and the line
    """

    number: int
    descriptor: int
    topic: str
    partition: int | None
    kind: str
    incarnation: str
    lines: list[Line] = field(default_factory=list)
    rest: tuple[bytes, Line] | None = None


class Model(Protocol):
    """What is known of what no line with a number tells of."""

    def look(self, world: World) -> None:
        """Compare it with what shows, after each step."""

    def power_cut(self) -> None:
        """Only what is on the disk is sure to be there."""


@dataclass
class World:
    """One run.

    served       the daemon; its `process` is None while it is dead
    oracle       what is known
    writers      that are open
    readers      functions that look at what somebody has open, and close it
    trouble      errno that may come of a fault which is there: a full or broken disk
    expecting    errno that may come of the step at hand only
    incarnations  of topics, by their names
    said         what the steps have done, in words
    image, kind  a file with a file system of this kind, under the backing directory; None for none
    late         whether a commit met a full or broken disk: it shows at the next start, and what is behind it too
    cut          whether there was a power cut
    deleting     topics in whose deletion the daemon has died
    armed        whether the daemon was told to die of something that comes
    lacks_room   whether it was told that there is no room when something comes
    faulty       whether the daemon was hurt in a way that it has to report
    counts       of the partitions of each topic
    positions    of groups, by group and partition
    listed       what was read of a name under `sealed`
    held         how many readers keep a log open
    is_little    whether each daemon may have little memory
    is_limited   whether the present one may
    was_limited  whether any of them might
    load         other programs, which want the processors
    far          the cluster that a topic is mirrored of; None for none
    damage       what was done to `.log` files
    models       what some steps know of topics of their own, by name
    unnoticed    files with a wrong entry, and snapshots, which count when somebody needs them: beginnings of findings
    """

    place: Path
    served: DaemonMount
    oracle: Oracle = field(default_factory=Oracle)
    writers: list[Writer] = field(default_factory=list)
    readers: list[Callable[[], None]] = field(default_factory=list)
    trouble: set[int] = field(default_factory=set)
    incarnations: dict[str, int] = field(default_factory=dict)
    said: list[str] = field(default_factory=list)
    image: Path | None = None
    kind: str = ""
    faulty: bool = False
    counts: dict[str, int] = field(default_factory=dict)
    positions: dict[tuple[str, str], int] = field(default_factory=dict)
    listed: dict[tuple[str, int, str], bytes] = field(default_factory=dict)
    deleting: set[str] = field(default_factory=set)
    armed: bool = False
    lacks_room: bool = False
    cut: bool = False
    late: bool = False
    held: int = 0
    load: list[subprocess.Popen[bytes]] = field(default_factory=list)
    far: Any = None
    damage: Damage = field(default_factory=Damage)
    unnoticed: set[str] = field(default_factory=set)
    models: dict[str, Model] = field(default_factory=dict)
    is_little: bool = False
    is_limited: bool = False
    was_limited: bool = False
    serial: int = 0

    def say(self, words: str) -> None:
        """Tell what is done."""
        self.said.append(words)

    def name(self, prefix: str) -> str:
        """A name that nothing has had."""
        self.serial += 1
        return f"{prefix}{self.serial}"

    # -- life -----------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Make the store and its topics."""
        for topic, (_, settings) in TOPICS.items():
            self.served.configure(topic, **settings)
        if self.image is not None:
            # These files were not written by the daemon, which would have made them safe.
            subprocess.run(["sync", "-f", self.served.backing], check=True)
        self.start()
        for topic, (partitions, settings) in TOPICS.items():
            self.make(topic, partitions)
            if "compact" in str(settings.get("cleanup_policy")):
                self.oracle.compacted.add(self.incarnation(topic))

    def start(self) -> None:
        """Mount it, and see that all is there."""
        link = () if self.far is None else self.far.options
        self.damage.before_start(self.served.backing, len(self.served.said()))
        self.served.start(*link, *(word for option in OPTIONS for word in ("-o", option)))
        self.trouble = {errno.ENOSPC} if self.filler.exists() else set()
        for topic, count in self.counts.items():
            # Whether a topic is there whose making or deletion was cut short nobody has said.
            if topic in self.deleting:
                self.take_back(topic)
            there = sum((self.served / f"{topic}-{number}").exists() for number in range(TOPICS[topic][0]))
            whole = there >= count or topic not in self.deleting or not self.has_records(topic)
            promise(
                "G4",
                whole,
                f"{topic} has {there} partitions when its deletion, that was cut short, is taken back",
            )
            if topic in self.deleting and there < count:
                with self.attempt((), errno.ENOENT):
                    delete(self.served / "topics" / topic)
                there = 0
            if count and not there:
                self.renew(topic)
            self.counts[topic] = there
        self.deleting.clear()
        self.armed = self.late = self.lacks_room = False
        if self.is_little:
            self.little_memory()

    def make(self, topic: str, partitions: int) -> None:
        """Make the partitions of a topic."""
        for number in range(partitions):
            with suppress(FileExistsError):
                (self.served / f"{topic}-{number}").mkdir()
            self.counts[topic] = number + 1

    def incarnation(self, topic: str) -> str:
        """The topic's name, with the number of how often it was made."""
        return f"{topic}#{self.incarnations.get(topic, 0)}"

    def renew(self, topic: str) -> None:
        """A topic is gone with all that was in it."""
        self.incarnations[topic] = self.incarnations.get(topic, 0) + 1
        self.counts[topic] = 0

    def has_records(self, topic: str) -> bool:
        """Whether a topic has had records. The deletion of one without any is not what is taken back by its name."""
        return any(
            self.oracle.known(self.incarnation(topic), number).end for number in range(TOPICS[topic][0])
        )

    def take_back(self, topic: str) -> None:
        """Take the deletion of a topic back, if it can be."""
        if self.has_records(topic):
            with suppress(OSError):
                undelete(self.served / "topics" / topic)
            self.damage.taken_back(self.incarnation(topic))

    def gone_if_missing(self, topic: str) -> None:
        """After a deletion that was taken back the topic is there. One that has failed may have taken part of it,
        which can be taken back; what a full or broken disk does not give back is made again."""
        if not self.alive:
            return
        partitions = [self.served / f"{topic}-{number}" for number in range(TOPICS[topic][0])]
        with self.attempt(()):
            if not all(each.exists() for each in partitions) and self.trouble:
                self.take_back(topic)
            if all(each.exists() for each in partitions):
                return
            promise("G4", self.trouble, f"{topic} is not there, though its deletion was taken back")
            if (self.served / "topics" / topic).exists():
                delete(self.served / "topics" / topic)
            self.renew(topic)
            self.make(topic, TOPICS[topic][0])

    @property
    def alive(self) -> bool:
        """Whether there is a daemon."""
        return self.served.process is not None

    @property
    def may_die(self) -> bool:
        """Whether the daemon may die in any moment."""
        return self.armed or self.is_limited

    def bury(self) -> None:
        """The daemon is dead: what is open comes to nothing, and nobody has heard what became of it."""
        self.served.process = None
        self.is_limited = False
        for writer in self.writers:
            with suppress(OSError):
                os.close(writer.descriptor)
            self.oracle.refuse(writer.lines, State.UNKNOWN)
            if writer.rest is not None:
                # Where the daemon had come to its end in order, it came behind all others.
                writer.rest[1].state, writer.rest[1].rank = State.UNKNOWN, 0
        self.writers.clear()
        for look in self.readers:
            with suppress(OSError):
                look()
        self.readers.clear()
        self.held = 0

    def died(self) -> bool:
        """Whether the daemon has died, as it was told to."""
        process = self.served.process
        if process is None or process.poll() is None:
            return False
        promise("B3", self.may_die, f"the daemon died by itself, with {process.poll()}")
        self.bury()
        return True

    def dying(self, error: OSError) -> bool:
        """Whether this is what a program hears of a daemon that dies."""
        process = self.served.process
        if error.errno in (*DEAD, errno.EIO) and process is not None and self.may_die:
            with suppress(subprocess.TimeoutExpired):
                process.wait(1 if error.errno == errno.EIO else LIMIT_S)
        return self.died()

    def steer(self, call: str, *arguments: object, partition: str = "plain-0") -> None:
        """Have something done inside the daemon, which may die meanwhile."""
        try:
            self.served.steer(call, self.served / partition, *arguments)
        except (EOFError, ConnectionError):
            end = time.monotonic() + LIMIT_S
            while self.may_die and not self.died() and time.monotonic() < end:
                time.sleep(0.01)
            if self.alive:
                raise

    # -- the environment ------------------------------------------------------------------------------

    def make_disk(self, kind: str, megabytes: int) -> None:
        """Have the backing directory on a file system of its own."""
        self.kind = kind
        if kind != "tmpfs":
            self.image = self.place / "disk"
            with self.image.open("wb") as image:
                image.truncate(megabytes << 20)
            subprocess.run([f"mkfs.{kind}", "-q", self.image], check=True, capture_output=True)
        self.mount_disk(megabytes)

    def mount_disk(self, megabytes: int = 24) -> None:
        """Mount that file system."""
        if self.image is None:
            command = ["-t", "tmpfs", "-o", f"size={megabytes}m", "topicfs-torture"]
        else:
            command = ["-o", "loop", str(self.image)]
        subprocess.run(["mount", *command, self.served.backing], check=True, capture_output=True)

    def umount_disk(self) -> None:
        """Take it away."""
        end = time.monotonic() + LIMIT_S
        while subprocess.run(["umount", self.served.backing], check=False, capture_output=True).returncode:
            assert time.monotonic() < end, "the file system under BACKING stays in use"
            time.sleep(0.02)

    @property
    def filler(self) -> Path:
        """The file that takes up all room."""
        return self.served.backing / "filler"

    def room(self) -> None:
        """Give back the room that a step has taken."""
        self.filler.unlink(missing_ok=True)
        if not self.lacks_room:
            self.trouble.discard(errno.ENOSPC)

    def no_room(self) -> None:
        """Take up all room."""
        fill(self.filler)
        self.trouble.add(errno.ENOSPC)

    def little_memory(self) -> None:
        """Let the daemon have little more memory than it has. It may die of that, as of `kill -9`."""
        process = self.served.process
        assert process is not None
        # A mapping of what cannot be read is SIGBUS.
        self.let_go()
        told = Path(f"/proc/{process.pid}/status").read_text()
        has = next(int(line.split()[1]) << 10 for line in told.splitlines() if line.startswith("VmSize:"))
        self.serial += 1
        spare = SPARE[self.serial % len(SPARE)]
        self.say(f"no more memory than {has >> 20} MiB and {spare >> 10} KiB")
        resource.prlimit(process.pid, resource.RLIMIT_AS, (has + spare, resource.RLIM_INFINITY))
        self.is_limited = self.was_limited = self.faulty = True
        self.trouble |= {errno.ENOMEM, errno.EIO}

    def much_memory(self) -> None:
        """Let it have as much as it wants: it goes on, and nothing is wrong any more."""
        process = self.served.process
        assert process is not None
        self.say("as much memory as it wants")
        with suppress(ProcessLookupError):
            resource.prlimit(
                process.pid, resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
            )
        if not self.died():
            self.is_limited = False
            self.trouble -= {errno.ENOMEM, errno.EIO}

    @contextmanager
    def short_of_memory(self) -> Iterator[None]:
        """With little memory each call may fail, also those of which a step expects it at no other time."""
        try:
            yield
        except OSError as error:
            if not self.is_limited or not (error.errno in self.trouble or self.dying(error)):
                raise
            self.oracle.refuse(self.oracle.lines.values(), State.UNKNOWN)

    def let_go(self) -> None:
        """Look at what programs hold, and let them end."""
        for look in self.readers:
            with self.attempt((), *({errno.EIO} & self.trouble)):
                look()
        self.readers.clear()

    def load_or_not(self) -> None:
        """Begin programs that want the processors, or end them."""
        if not self.load:
            self.load = [subprocess.Popen(["sh", "-c", "while :; do :; done"]) for _ in range(3)]
            return
        for program in self.load:
            program.kill()
            program.wait(LIMIT_S)
        self.load.clear()

    def clear(self) -> None:
        """Leave nothing behind."""
        if self.load:
            self.load_or_not()
        self.bury_quietly()
        self.served.clear()
        if self.far is not None:
            self.far.clear()
        if self.kind:
            subprocess.run(["umount", "-l", self.served.backing], check=False, capture_output=True)

    def bury_quietly(self) -> None:
        """End the daemon, so that nothing that is open holds anybody up."""
        process = self.served.process
        if process is not None:
            process.kill()
            process.wait(LIMIT_S)
            self.bury()

    # -- writing --------------------------------------------------------------------------------------

    @contextmanager
    def attempt(self, lines: Sequence[Line], *expected: int) -> Iterator[list[int]]:
        """Do something that writes these lines. Where it fails, it has to be for a reason that is known; then the
        lines are refused, or unknown where the daemon has died. Gives a list, which has the errno afterwards."""
        failed: list[int] = []
        try:
            yield failed
        except OSError as error:
            number = error.errno or 0
            failed.append(number)
            # Where not even a callback can begin, libfuse answers with what lies in its place.
            is_any = self.is_limited
            dead = self.dying(error)
            # A record, or the batch of a producer's file, does not fit into a segment.
            if any(line.length >= 200 for line in lines):
                expected = (*expected, errno.EMSGSIZE)
            allowed = {*self.trouble, *expected, *(DEAD | {errno.EIO, errno.EINTR} if dead else ())}
            self.say(f"… {errno.errorcode.get(number)}{', the daemon is dead' if dead else ''}")
            why = self.refusals(errno.errorcode.get(number))[-1:]
            promise("E6", is_any or number in allowed, f"an unexpected {error!r} of {self.said[-2:]}: {why}")
            is_told = not dead and number != errno.EIO and number in allowed
            self.oracle.refuse(lines, State.REFUSED if is_told else State.UNKNOWN)

    def path(self, topic: str, partition: int | None, kind: str) -> Path:
        """What is appended to."""
        if partition is None:
            return self.served / f"topics/{topic}/in.{kind}"
        return self.served / f"{topic}-{partition}/log.{kind}"

    def where(self, numbers: Numbers, topics: Iterable[str] = TOPICS) -> tuple[str, int | None, str]:
        """Choose what is appended to: topic, partition or none, format."""
        topic = numbers.pick([topic for topic in topics if self.counts[topic]])
        choice = numbers.below(self.counts[topic] + 1)
        partition = None if choice == self.counts[topic] else choice
        kinds = ("jsonl", "tsv") if topic == "table" else ("txt", "jsonl", "tsv")
        return topic, partition, numbers.pick(kinds)

    def new_lines(
        self, numbers: Numbers, topic: str, partition: int | None, kind: str, count: int, writer: int
    ) -> list[Line]:
        """New lines that suit a topic."""
        size = numbers.pick((20, 0, 300, 90, 1400))
        keyed = kind != "txt" and (topic == "table" or numbers.below(2))
        key = numbers.below(7)
        return [
            self.oracle.line(
                self.incarnation(topic),
                partition,
                f"k{(key + at) % 7}" if keyed else None,
                size + at if size else 0,
                writer,
            )
            for at in range(count)
        ]

    def accepted(self, lines: Iterable[Line]) -> None:
        """Their write(2) has done well: this is their place."""
        rank = self.oracle.rank()
        for line in lines:
            line.rank = rank

    def closed(self, lines: Sequence[Line], without_newline: bool, dying: bool = False) -> None:
        """Close has done well, which acknowledges lines. One without its newline comes with the last close, of which
        the kernel tells afterwards: a daemon that dies in that moment, or a disk that fails, takes it along."""
        unsure = lines[-1:] if without_newline and (dying or self.may_die or self.trouble) else []
        self.oracle.acknowledge(line for line in lines if line not in unsure)
        self.oracle.refuse(unsure, State.UNKNOWN)

    # -- looking --------------------------------------------------------------------------------------

    def partitions(self) -> Iterator[tuple[str, int]]:
        """All that there are."""
        return ((topic, number) for topic, count in self.counts.items() for number in range(count))

    def is_sound(self, topic: str, number: int) -> bool:
        """Whether no record of a partition was damaged."""
        return not self.damage.of(self.incarnation(topic), number)

    def are_sound(self, topic: str) -> bool:
        """Whether no record of a topic was."""
        return all(self.is_sound(topic, number) for number in range(self.counts[topic]))

    def read(self, path: Path) -> bytes:
        """All bytes of a file, which are as many as its size says."""
        descriptor = os.open(path, os.O_RDONLY)
        try:
            pieces = []
            while piece := os.read(descriptor, PIECE):
                pieces.append(piece)
            size = os.fstat(descriptor).st_size
        finally:
            os.close(descriptor)
        data = b"".join(pieces)
        if not self.held and not self.writers:
            promise("T1", size >= len(data), f"{path}: {len(data)} bytes were read, its size is {size}")
        return data

    def records(self, topic: str, number: int) -> list[Shown]:
        """What a partition shows, compared with what is known."""
        if self.damage.of(self.incarnation(topic), number):
            return read_around(self, topic, number)
        directory = self.served / f"{topic}-{number}"
        data = self.read(directory / "log.jsonl")
        start = int((directory / "start").read_text())
        whole = not data or data.endswith(b"\n")
        promise("R1", whole, f"{directory.name}: the last line is cut short: {data[-200:]!r}")
        return self.oracle.look(self.incarnation(topic), number, start, data.splitlines())

    def look(self) -> None:
        """Look at all there is."""
        for topic, count in self.counts.items():
            broken = False
            for number in range(count):
                try:
                    self.records(topic, number)
                except OSError as error:
                    if self.dying(error):
                        return
                    told = errno.errorcode.get(error.errno or 0)
                    # Where not even a callback can begin, libfuse answers with what lies in its place.
                    known = self.is_limited or error.errno in {errno.EIO, errno.ENOMEM} & self.trouble
                    promise(
                        "E11",
                        known,
                        f"{topic}-{number} cannot be read: {told}, {self.offline(topic, number)}, "
                        f"{self.refusals(told)[-1:]}",
                    )
                    broken = True
            if not broken and not self.late:
                self.oracle.settle(self.incarnation(topic), range(count))
        self.oracle.settle_together()
        for model in self.models.values():
            if self.alive:
                model.look(self)
        self.check_log()

    @property
    def can_tell(self) -> bool:
        """Whether there is room for a line in the daemon's log."""
        return errno.ENOSPC not in self.trouble

    def refusals(self, name: str | None) -> list[str]:
        """The lines of the daemon's log that tell of errors with this name."""
        return [line for line in self.served.said().splitlines() if f" {name}: " in line]

    def offline(self, topic: str, number: int) -> Any:
        """Why a partition is offline, as `status.json` tells it."""
        with suppress(OSError):
            return json.loads((self.served / f"{topic}-{number}/status.json").read_bytes()).get("offline")
        return "status.json cannot be read"

    def check_log(self) -> None:
        """The daemon may tell of faults, in words."""
        said = self.served.said()
        for found in TRACEBACK.finditer(said):
            at = found.start()
            # A call that began without memory leaves what later ones trip over.
            known = self.was_limited and NO_MEMORY.search(said[: found.end()])
            promise("log", known, f"the daemon's log has a traceback: {said[max(0, at - 500) : at + 3000]}")
        if not self.faulty:
            alarms = self.served.alarms()
            promise("log", not alarms, f"the daemon's log warns of what nobody did: {alarms[:5]}")

    def verify(self) -> None:
        """`topicfs verify` finds nothing."""
        done = CliRunner().invoke(main, ["verify", str(self.served.backing)])
        # A note is no finding, and what a power cut leaves of indexes, snapshots and caches is repairable; so is what a
        # daemon without memory does not mend.
        harmless = ("note: ", "repairable: ") if self.cut or self.was_limited else ("note: ",)
        harmless = (*harmless, *(f"repairable: {words}" for words in self.unnoticed))
        told = self.damage.told(done.output)
        promise("verify", not told, f"`topicfs verify` does not tell of the damage of {told}: {done.output}")
        harmless = (*harmless, *self.damage.excused())
        found = [line for line in done.output.splitlines()[:-1] if not line.startswith(harmless)]
        promise("verify", done.exit_code == 0 or not found, f"`topicfs verify` says: {found}")

    def finish(self) -> None:
        """End it in order, check it all from outside, and once more from inside."""
        for writer in list(self.writers):
            if writer in self.writers:
                self.close(writer)
        self.room()
        self.is_little = False
        # What was armed may strike until the daemon is a new one.
        while self.may_die or self.trouble or not self.alive:
            if self.alive:
                self.stop()
            self.start()
        self.look()
        self.stop()
        self.verify()
        self.start()
        self.look()
        self.stop()

    def stop(self) -> None:
        """As SIGTERM ends it."""
        assert self.served.process is not None
        struck = self.may_die or self.trouble
        code = self.served.stop()
        self.bury()
        promise("B8", code == 0 or struck, f"the daemon ended with {code}")

    # -- open writers ---------------------------------------------------------------------------------

    def close(self, writer: Writer) -> None:
        """Close a writer, which acknowledges its lines. A last line gets no newline."""
        self.writers.remove(writer)
        lines = [*writer.lines, *([writer.rest[1]] if writer.rest else [])]
        gone = (errno.EIO,) if writer.incarnation != self.incarnation(writer.topic) else ()
        # What waits has its place already; only the line that close completes gets one.
        if writer.rest:
            self.accepted([writer.rest[1]])
        with self.attempt((), *gone) as failed:
            os.close(writer.descriptor)
        if failed:
            self.oracle.refuse(lines, State.UNKNOWN)
        else:
            self.closed(lines, writer.rest is not None)
