"""How programs read: each way is a function in a table. What they see is compared with `log.jsonl`, and with itself."""

from __future__ import annotations

import errno
import json
import mmap
import os
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from oracle import Shown, promise
from rows import Numbers, Table
from together import compacts
from world import World

STEPS: Final = Table()
TRIES: Final = 6
WAIT_S: Final = 30.0


def chosen(world: World, numbers: Numbers) -> tuple[str, int]:
    """Choose a partition of which no record was damaged: of one with damage `records` sees all there is to see."""
    return numbers.pick([place for place in world.partitions() if world.is_sound(*place)])


def plain(shown: list[Shown], kind: str) -> bytes:
    """Records in a format."""
    if kind == "jsonl":
        return b"".join(each.text + b"\n" for each in shown)
    if kind == "txt":
        return b"".join((each.value or b"") + b"\n" for each in shown)
    pieces = []
    for each in shown:
        text = b"\\N" if each.value is None else each.value.replace(b"\\", b"\\\\").replace(b"\t", b"\\t")
        pieces.append((b"\\N" if each.key is None else each.key.encode()) + b"\t" + text + b"\n")
    return b"".join(pieces)


def unmoved(
    world: World, topic: str, number: int, label: str, check: Callable[[list[Shown], Path], str | None]
) -> None:
    """Compare something with what a partition shows, in a moment in which upkeep has changed nothing in between."""
    directory = world.served / f"{topic}-{number}"
    words = None
    with world.attempt((), *([errno.EIO] if errno.EIO in world.trouble else [])):
        for _ in range(TRIES):
            before = world.records(topic, number)
            try:
                words = check(before, directory)
            except FileNotFoundError as error:
                words = f"{error!r}"
            if words is None or world.died():
                return
            if world.records(topic, number) == before:
                time.sleep(0.02)
        promise(label, words is None, f"{directory.name}: {words}")


def difference(what: str, found: bytes, expected: bytes) -> str | None:
    """Where two texts part, in words."""
    if found == expected:
        return None
    at = next(
        (at for at, (a, b) in enumerate(zip(found, expected, strict=False)) if a != b),
        min(len(found), len(expected)),
    )
    near = slice(max(0, at - 60), at + 100)
    return (
        f"{what} has {len(found)} bytes, expected {len(expected)}; from byte {at} on they differ: "
        f"found {found[near]!r}, expected {expected[near]!r}"
    )


@STEPS.row(3)
def formats(world: World, numbers: Numbers) -> None:
    """The log in another format."""
    topic, number = chosen(world, numbers)
    kind = numbers.pick(("txt", "tsv"))
    world.say(f"read log.{kind} of {topic}-{number}")
    unmoved(
        world,
        topic,
        number,
        "N7",
        lambda shown, at: difference(f"log.{kind}", world.read(at / f"log.{kind}"), plain(shown, kind)),
    )


@STEPS.row(3)
def segments(world: World, numbers: Numbers) -> None:
    """All segments one behind the other are the log; those that are sealed are the first of them."""
    topic, number = chosen(world, numbers)
    kind = numbers.pick(("jsonl", "txt", "tsv"))
    world.say(f"read segments of {topic}-{number} as {kind}")

    def check(shown: list[Shown], at: Path) -> str | None:
        start = int((at / "start").read_text())
        log = plain([each for each in shown if each.offset >= start], kind)
        names = sorted(name for name in os.listdir(at / "segments/") if name.endswith(f".{kind}"))
        joined = b"".join(world.read(at / "segments" / name) for name in names)
        words = difference(f"segments {names}", joined[max(0, len(joined) - len(log)) :], log)
        if words:
            return words
        sealed = sorted(os.listdir(at / "sealed" / kind))
        first = b"".join(world.read(at / "sealed" / kind / name) for name in sealed)
        head = joined.find(first) if first else 0
        return None if head >= 0 else f"sealed {sealed} are not among the segments"

    unmoved(world, topic, number, "L3", check)


@STEPS.row(3)
def range_of_offsets(world: World, numbers: Numbers) -> None:
    """A range of offsets, and the last ones."""
    topic, number = chosen(world, numbers)
    kind, first, count = numbers.pick(("jsonl", "txt", "tsv")), numbers.below(50), numbers.below(30)
    world.say(f"read a range of {topic}-{number}")

    def check(shown: list[Shown], at: Path) -> str | None:
        if not shown:
            return None
        low = shown[min(first, len(shown) - 1)].offset
        high = low + count
        named = [each for each in shown if low <= each.offset <= high]
        words = difference(
            f"offset/{low}-{high}", world.read(at / f"offset/{low}-{high}.{kind}"), plain(named, kind)
        )
        if words:
            return words
        last = shown[-count - 1 :]
        name = f"offset/-{count + 1}.{kind}"
        words = difference(name, world.read(at / name), plain(last, kind))
        if words:
            return words
        each = named[0]
        name = f"offset/{each.offset}"
        return difference(name, world.read(at / name), each.value or b"")

    unmoved(world, topic, number, "N9", check)


@STEPS.row(3)
def range_of_time(world: World, numbers: Numbers) -> None:
    """A range of time: from the first record that is not earlier on."""
    topic, number = chosen(world, numbers)
    first, other = numbers.below(500), numbers.below(500)
    world.say(f"read a range of time of {topic}-{number}")

    def check(shown: list[Shown], at: Path) -> str | None:
        if not shown:
            return None
        times = sorted((shown[first % len(shown)].timestamp, shown[other % len(shown)].timestamp))
        low = next(n for n, each in enumerate(shown) if each.timestamp >= times[0])
        high = next((n for n, each in enumerate(shown) if each.timestamp >= times[1]), len(shown))
        name = f"time/{times[0]}--{times[1]}.jsonl"
        words = difference(name, world.read(at / name), plain(shown[low:high], "jsonl"))
        if words:
            return words
        name = f"time/{times[0]}--.jsonl"
        return difference(name, world.read(at / name), plain(shown[low:], "jsonl"))

    unmoved(world, topic, number, "N11", check)


@STEPS.row(2)
def merged(world: World, numbers: Numbers) -> None:
    """All partitions of a topic, by time."""
    topics = [topic for topic, _ in world.partitions() if world.are_sound(topic)]
    topic = numbers.pick(topics or [""])
    if not topic:
        return
    world.say(f"read log.jsonl of {topic}")

    def check(shown: list[Shown], at: Path) -> str | None:
        found = world.read(world.served / f"topics/{topic}/log.jsonl").splitlines()
        others = [each.text for number in range(world.counts[topic]) for each in world.records(topic, number)]
        return (
            None
            if sorted(found) == sorted(others)
            else f"{len(found)} records, in the partitions {len(others)}"
        )

    unmoved(world, topic, 0, "Y1", check)


@STEPS.row(2)
def hold_log(world: World, numbers: Numbers) -> None:
    """Open a log, read some of it, and read on when much has happened: every record comes once, in order."""
    if len(world.readers) >= 4:
        return
    topic, number = chosen(world, numbers)
    some = numbers.below(3000)
    world.say(f"hold log.jsonl of {topic}-{number}, read {some} bytes")
    incarnation = world.incarnation(topic)
    with world.attempt(()):
        before = world.records(topic, number)
        descriptor = os.open(world.served / f"{topic}-{number}/log.jsonl", os.O_RDONLY)
        data = os.read(descriptor, some) if some else b""
        world.held += 1

        def look() -> None:
            nonlocal data
            with suppress(ValueError):
                world.held -= 1
            try:
                if not world.alive or incarnation != world.incarnation(topic):
                    return
                while piece := os.read(descriptor, 5000):
                    data += piece
            finally:
                os.close(descriptor)
            offsets = [json.loads(line)["offset"] for line in data.splitlines()]
            promise("S3", offsets == sorted(set(offsets)), f"{topic}-{number}: a held log gave {offsets}")
            missing = {each.offset for each in before} - set(offsets)
            if incarnation not in world.oracle.compacted:
                promise("S3", not missing, f"{topic}-{number}: a held log did not give {sorted(missing)}")

        world.readers.append(look)


@STEPS.row(2)
def hold_sealed(world: World, numbers: Numbers) -> None:
    """Map a sealed segment, or keep it open; later its bytes are the same."""
    if len(world.readers) >= 4:
        return
    topic, number = chosen(world, numbers)
    mapped = numbers.below(2) and not world.is_limited
    incarnation = world.incarnation(topic)
    with world.attempt((), errno.ENOENT):
        directory = world.served / f"{topic}-{number}/sealed/txt"
        names = os.listdir(directory)
        if not names:
            return
        name = numbers.pick(names)
        world.say(f"{'map' if mapped else 'hold'} {name} of {topic}-{number}")
        descriptor = os.open(directory / name, os.O_RDONLY)
        data = os.pread(descriptor, 1 << 20, 0)
        if not data:
            os.close(descriptor)
            return
        view = (
            mmap.mmap(
                descriptor, 0, mmap.MAP_SHARED if numbers.below(2) else mmap.MAP_PRIVATE, mmap.PROT_READ
            )
            if mapped
            else None
        )

        def look() -> None:
            try:
                if not world.alive or incarnation != world.incarnation(topic):
                    return
                again = os.pread(descriptor, 1 << 20, 0) if view is None else view[:]
                promise("S2", again == data, f"{name} of {topic}-{number} has changed under who holds it")
            finally:
                if view is not None:
                    view.close()
                os.close(descriptor)

        world.readers.append(look)


@STEPS.row(3)
def look_at_held(world: World, numbers: Numbers) -> None:
    """Look again at what is held open, and let it go."""
    if world.readers:
        look = numbers.pick(world.readers)
        world.readers.remove(look)
        world.say("look at what is held")
        with world.attempt((), *([errno.EIO] if errno.EIO in world.trouble else [])):
            look()


@STEPS.row(2)
def copies(world: World, numbers: Numbers) -> None:
    """sendfile and a private mapping of a log."""
    topic, number = chosen(world, numbers)
    if world.held or world.is_limited:
        return
    world.say(f"sendfile and mmap of {topic}-{number}")

    def check(shown: list[Shown], at: Path) -> str | None:
        log = plain(shown, "txt")
        descriptor = os.open(at / "log.txt", os.O_RDONLY)
        target = os.memfd_create("copy")
        try:
            # sendfile(2) goes as far as the kernel knows, which asks for the size in stat(2), and not in open(2).
            os.fstat(descriptor)
            while os.sendfile(target, descriptor, None, 1 << 20):
                pass
            words = spliced(at / "log.txt", log) or difference(
                "sendfile", os.pread(target, len(log) + 1000, 0), log
            )
            if words or not log:
                return words
            with mmap.mmap(descriptor, 0, mmap.MAP_PRIVATE, mmap.PROT_READ) as view:
                return difference("mmap", view[:], log)
        finally:
            os.close(descriptor)
            os.close(target)

    unmoved(world, topic, number, "R6", check)


def spliced(file: Path, log: bytes) -> str | None:
    """What is wrong with a log that comes through a pipe by splice(2)."""
    into, out = os.pipe()
    try:
        with file.open("rb", buffering=0) as opened:
            os.fstat(opened.fileno())
            data = b""
            while count := os.splice(opened.fileno(), out, 4096):
                data += os.read(into, count)
    finally:
        os.close(into)
        os.close(out)
    return difference("splice", data, log)


@STEPS.row(2)
def follow(world: World, numbers: Numbers) -> None:
    """A program follows a log, or its tail, for later steps: it gets every record once, in order, and a signal ends
    it."""
    if len(world.readers) >= 4:
        return
    topic, number = chosen(world, numbers)
    name = numbers.pick(("follow.jsonl", "log.jsonl"))
    path, incarnation = world.served / f"{topic}-{number}/{name}", world.incarnation(topic)
    command = ["cat", str(path)] if name == "follow.jsonl" else ["tail", "-n", "+1", "-f", str(path)]
    world.say(f"{command[0]} {name} of {topic}-{number}")
    output = world.place / world.name("followed")
    with output.open("wb") as out:
        program = subprocess.Popen(command, stdout=out, stderr=subprocess.DEVNULL)
    before: list[Shown] = []
    with world.attempt((), *([errno.EIO] if errno.EIO in world.trouble else [])):
        if eventually_opened(program, path):
            before = world.records(topic, number)
    world.held += name == "log.jsonl"

    def offsets() -> list[int]:
        whole = output.read_bytes().rpartition(b"\n")[0].splitlines()
        return [json.loads(line)["offset"] for line in whole]

    def look() -> None:
        world.held -= name == "log.jsonl"
        gone = (
            not world.alive
            or incarnation != world.incarnation(topic)
            or world.trouble
            or program.poll() is not None
        )
        try:
            # Of a compacted log who is slower gets what is left.
            if not gone and incarnation not in world.oracle.compacted:
                behind = before[-1].offset if before else -1
                wanted = {each.offset for each in world.records(topic, number) if each.offset > behind}
                end = time.monotonic() + WAIT_S
                while not wanted <= set(offsets()) and time.monotonic() < end:
                    time.sleep(0.05)
                missing = wanted - set(offsets())
                words = f"{path} did not give {sorted(missing)} to who follows it"
                promise("R3", world.died() or not missing, words)
        finally:
            program.terminate()
            promise("B2", program.wait(WAIT_S) is not None, "who follows does not end")
        told = offsets()
        promise("R3", told == sorted(set(told)), f"{path} gave {told} to who follows it")

    world.readers.append(look)


def eventually_opened(program: subprocess.Popen[bytes], path: Path) -> bool:
    """Wait until a program has a file open; whether it has."""
    end = time.monotonic() + WAIT_S
    while program.poll() is None and time.monotonic() < end:
        with suppress(OSError):
            opened = [os.readlink(link) for link in Path(f"/proc/{program.pid}/fd").iterdir()]
            if str(path) in opened:
                return True
        time.sleep(0.01)
    return False


@STEPS.row(2)
def list_like_spark(world: World, numbers: Numbers) -> None:
    """The names under `sealed` are taken once each: what was read of a name is what it has later."""
    topic, number = chosen(world, numbers)
    if topic == "table":
        return
    world.say(f"list sealed of {topic}-{number} like Spark")
    with world.attempt((), errno.ENOENT):
        directory = world.served / f"{topic}-{number}/sealed/jsonl"
        for name in os.listdir(directory):
            data = world.read(directory / name)
            known = world.listed.setdefault((world.incarnation(topic), number, name), data)
            inside = known.endswith(data) if data else False
            promise("S2", inside, f"{name} of {topic}-{number} was {known[:300]!r}, is {data[:300]!r}")


@STEPS.row(1)
def tables(world: World, numbers: Numbers) -> None:
    """A topic's Parquet files have records that it has, and each once."""
    topic = "rows"
    if not world.are_sound(topic):
        return
    world.say("read the table")
    with world.attempt((), errno.ENOENT):
        from pyarrow import parquet  # noqa: PLC0415

        directory = world.served / f"{topic}-0/sealed/parquet"
        if not directory.exists():
            return
        offsets = []
        for name in sorted(os.listdir(directory)):
            with (directory / name).open("rb") as file:
                offsets += parquet.read_table(file, columns=["offset"]).column("offset").to_pylist()
        promise("Q3", offsets == sorted(set(offsets)), f"the table's offsets are {offsets}")
        there = {each.offset for each in world.records(topic, 0)}
        known = world.oracle.known(world.incarnation(topic), 0)
        strange = [each for each in offsets if each not in there and each >= known.start]
        promise("Q3", not strange, f"the table has {strange}, which the log has not")


@STEPS.row(1)
def positions(world: World, numbers: Numbers) -> None:
    """Positions are what they were set to."""
    world.say("read positions")
    for (group, name), wanted in list(world.positions.items()):
        with world.attempt(()):
            told = (world.served / "groups" / group / name).read_text().strip()
            promise("H11", told == str(wanted), f"{group} is at {told} of {name}, not at {wanted}")


@STEPS.row(1)
def keys(world: World, numbers: Numbers) -> None:
    """The keys of a compacted partition are those of its records."""
    number = numbers.below(world.counts["table"])
    if not compacts(world) or not world.are_sound("table"):
        return
    world.say(f"list keys of table-{number}")

    def check(shown: list[Shown], at: Path) -> str | None:
        newest = {each.key: each.value for each in shown}
        live = {key: value for key, value in newest.items() if value is not None}
        names = set(os.listdir(at / "keys/"))
        if names != set(live):
            return f"keys {sorted(names)}, expected {sorted(map(str, live))}"
        for key, value in live.items():
            found = (at / "keys" / str(key)).read_bytes()
            if found != value:
                return f"{key} is {found!r}, expected {value!r}"
        return None

    unmoved(world, "table", number, "V1", check)


@STEPS.row(1)
def tree_walk(world: World, numbers: Numbers) -> None:
    """Everything that is listed can be read."""
    world.say("walk through the tree")
    with world.attempt((), *([errno.EIO] if errno.EIO in world.trouble else [])):
        for directory, _, files in os.walk(world.served.path):
            for name in files:
                path = Path(directory, name)
                if name.startswith("in.") or path.is_symlink():
                    continue
                try:
                    path.read_bytes()
                except OSError as error:
                    hurt = [errno.EIO] if world.damage.wounds else []
                    promise(
                        "L8",
                        error.errno in (errno.ENOENT, *world.trouble, errno.ENOTCONN, *hurt),
                        f"{path}: {error}",
                    )
