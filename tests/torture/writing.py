"""How programs write lines: each manner and each step is a function in a table."""

from __future__ import annotations

import errno
import json
import logging
import os
import signal
import subprocess
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from daemon_mount import opened
from oracle import Line, State, promise
from rows import Numbers, Table
from world import World, Writer

STEPS: Final = Table()
APPENDING: Final = os.O_WRONLY | os.O_APPEND
Manner = Callable[[Path, list[bytes]], None]
MANNERS: Final[dict[str, Manner]] = {}


def manner(function: Manner) -> Manner:
    """Put a function into the table of manners: it appends lines to a file, and returns when they are acknowledged."""
    MANNERS[function.__name__] = function
    return function


def write_all(descriptor: int, data: bytes) -> None:
    """All of it, in as many writes as it takes."""
    while data:
        data = data[os.write(descriptor, data) :]


@manner
def write(file: Path, lines: list[bytes]) -> None:
    """One write."""
    with opened(file, APPENDING) as descriptor:
        write_all(descriptor, b"".join(lines))


@manner
def line_by_line(file: Path, lines: list[bytes]) -> None:
    """A write for each line, as a shell's loop makes them; the last one has no newline."""
    with opened(file, APPENDING) as descriptor:
        for line in lines[:-1]:
            write_all(descriptor, line)
        write_all(descriptor, lines[-1][:-1])


@manner
def writev(file: Path, lines: list[bytes]) -> None:
    """The pieces of a vector, which are no lines."""
    data = b"".join(lines)
    with opened(file, APPENDING) as descriptor:
        middle = len(data) // 2
        written = os.writev(descriptor, [data[: middle // 2], data[middle // 2 : middle], data[middle:]])
        write_all(descriptor, data[written:])


@manner
def pwrite(file: Path, lines: list[bytes]) -> None:
    """At positions that mean nothing."""
    with opened(file, APPENDING) as descriptor:
        for line in lines:
            done = os.pwrite(descriptor, line, 7)
            write_all(descriptor, line[done:])


@manner
def halves(file: Path, lines: list[bytes]) -> None:
    """Writes that end inside of lines."""
    data = b"".join(lines)
    with opened(file, APPENDING) as descriptor:
        for at in range(0, len(data), 700):
            write_all(descriptor, data[at : at + 700])


@manner
def duplicate(file: Path, lines: list[bytes]) -> None:
    """Through a duplicate, when the first descriptor is closed."""
    descriptor = os.open(file, APPENDING)
    copy = os.dup(descriptor)
    try:
        write_all(descriptor, lines[0])
        os.close(descriptor)
        write_all(copy, b"".join(lines[1:]))
    finally:
        os.close(copy)


@manner
def fork(file: Path, lines: list[bytes]) -> None:
    """The first lines by a child, the others by its parent."""
    with opened(file, APPENDING) as descriptor:
        middle = len(lines) // 2
        done = subprocess.run(
            ["cat"], input=b"".join(lines[:middle]), stdout=descriptor, stderr=subprocess.PIPE, check=False
        )
        if done.returncode:
            raise OSError(said_errno(done.stderr), f"the child says {done.stderr.decode()}")
        write_all(descriptor, b"".join(lines[middle:]))


def said_errno(words: bytes) -> int:
    """The errno of a program's message."""
    for number in errno.errorcode:
        if os.strerror(number).encode() in words:
            return number
    return errno.EINVAL


@manner
def synchronous(file: Path, lines: list[bytes]) -> None:
    """With O_SYNC."""
    descriptor = os.open(file, APPENDING | os.O_SYNC)
    try:
        for line in lines:
            write_all(descriptor, line)
    finally:
        os.close(descriptor)


@manner
def handler(file: Path, lines: list[bytes]) -> None:
    """A handler of Python's logging, of which a program has no answer but at its end."""
    made = logging.FileHandler(file, mode="a", delay=False, encoding="latin-1")
    try:
        made.terminator = ""
        made.stream.reconfigure(newline="\n")
        for line in lines:
            made.stream.write(line.decode("latin-1"))
            made.stream.flush()
    finally:
        made.close()


@manner
def tee(file: Path, lines: list[bytes]) -> None:
    """By a program of the shell."""
    done = subprocess.run(["tee", "-a", file], input=b"".join(lines), capture_output=True, check=False)
    if done.returncode:
        raise OSError(said_errno(done.stderr), f"tee says {done.stderr.decode()}")


@manner
def direct(file: Path, lines: list[bytes]) -> None:
    """With O_DIRECT."""
    descriptor = os.open(file, APPENDING | os.O_DIRECT)
    try:
        write_all(descriptor, b"".join(lines))
    finally:
        os.close(descriptor)


# -- steps --------------------------------------------------------------------------------------------


def settle_failed(world: World, lines: list[Line]) -> None:
    """Of several writes some may have done well before the one that failed: a look tells which."""
    for line in lines:
        if line.state is State.REFUSED:
            line.state = State.UNKNOWN


@STEPS.row(12)
def append(world: World, numbers: Numbers) -> None:
    """Open a file, append lines in some manner, close it."""
    topic, partition, kind = world.where(numbers)
    count, how = numbers.pick((1, 3, 12)), numbers.pick(list(MANNERS))
    lines = world.new_lines(numbers, topic, partition, kind, count, world.oracle.writer())
    file = world.path(topic, partition, kind)
    world.say(
        f"{how} {count} lines {lines[0].number}… of {len(lines[0].value)} bytes to {file.name} of {topic}-{partition}"
    )
    world.accepted(lines)
    with world.attempt(lines) as failed:
        MANNERS[how](file, [line.encoded(kind) for line in lines])
    if failed:
        settle_failed(world, lines)
    else:
        world.closed(lines, how == "line_by_line")


@STEPS.row(3)
def append_much(world: World, numbers: Numbers) -> None:
    """So many lines that they fill several segments, in one write."""
    topic, partition, kind = world.where(numbers)
    lines = [
        line
        for _ in range(30)
        for line in world.new_lines(Numbers(()), topic, partition, kind, 5, world.oracle.writer())
    ]
    world.say(f"write {len(lines)} lines {lines[0].number}… to {kind} of {topic}-{partition}")
    world.accepted(lines)
    with world.attempt(lines) as failed:
        write(world.path(topic, partition, kind), [line.encoded(kind) for line in lines])
    if failed:
        settle_failed(world, lines)
    else:
        world.oracle.acknowledge(lines)


@STEPS.row(3)
def open_writer(world: World, numbers: Numbers) -> None:
    """Open a file, for later steps."""
    if len(world.writers) >= 4:
        return
    topic, partition, kind = world.where(numbers)
    flags = APPENDING | numbers.pick((0, 0, os.O_DSYNC))
    with world.attempt(()):
        descriptor = os.open(world.path(topic, partition, kind), flags)
        number = world.oracle.writer()
        world.writers.append(Writer(number, descriptor, topic, partition, kind, world.incarnation(topic)))
        world.say(f"open {number} for {kind} of {topic}-{partition}, flags {flags:o}")


@STEPS.row(2)
def named_partitions(world: World, numbers: Numbers) -> None:
    """Lines of `in.jsonl` that name their partition, with members in any order, of which some mean nothing."""
    topic, _, _ = world.where(numbers, ("plain", "table", "again"))
    count = numbers.pick((1, 5))
    data, lines = b"", []
    for _ in range(count):
        (line,) = world.new_lines(
            numbers, topic, numbers.below(world.counts[topic]), "jsonl", 1, world.oracle.writer()
        )
        told = {
            "partition": line.partition,
            "offset": 77,
            "topic": "other",
            **json.loads(line.encoded("jsonl")),
        }
        members = list(told.items())
        data += json.dumps(dict(members[::-1] if numbers.below(2) else members)).encode() + b"\n"
        lines.append(line)
    world.say(f"{count} lines {lines[0].number}… that name their partitions to in.jsonl of {topic}")
    world.accepted(lines)
    with world.attempt(lines) as failed:
        write(world.path(topic, None, "jsonl"), [data])
    if failed:
        settle_failed(world, lines)
    else:
        world.closed(lines, False)


@STEPS.row(2)
def first_write_shows(world: World, numbers: Numbers) -> None:
    """Whole lines show when the first write of an open file returns, before it is closed."""
    topic, partition, kind = world.where(numbers, ("plain", "rows", "again"))
    number = partition or 0
    if world.trouble or world.may_die or world.late or not world.is_sound(topic, number):
        return
    lines = world.new_lines(Numbers(()), topic, number, kind, 2, world.oracle.writer())
    world.say(f"lines {lines[0].number}… show in {topic}-{number} before they are closed")
    world.accepted(lines)
    with world.attempt(lines) as failed, opened(world.path(topic, number, kind), APPENDING) as descriptor:
        write_all(descriptor, b"".join(line.encoded(kind) for line in lines))
        shown = {each.number for each in world.records(topic, number)}
        missing = [line.number for line in lines if line.number not in shown]
        promise(
            "A7",
            not missing,
            f"lines {missing} do not show in {topic}-{number}, though write(2) has returned",
        )
    if not failed:
        world.oracle.acknowledge(lines)


def gone(world: World, writer: Writer) -> tuple[int, ...]:
    """What a writer hears whose topic was deleted."""
    return (errno.EIO,) if writer.incarnation != world.incarnation(writer.topic) else ()


@STEPS.row(8)
def write_on(world: World, numbers: Numbers) -> None:
    """Write into an open file: whole lines, or all but the newline of the last one."""
    if not world.writers:
        return
    writer = numbers.pick(world.writers)
    count, partial = numbers.pick((1, 2, 40)), numbers.below(3) == 1
    if gone(world, writer):
        return
    lines = world.new_lines(numbers, writer.topic, writer.partition, writer.kind, count, writer.number)
    data = b"".join(line.encoded(writer.kind) for line in lines)
    before, writer.rest = writer.rest, None
    if before is not None:
        data = before[0] + data
        lines.insert(0, before[1])
    if partial:
        data = data[:-1]
    world.say(
        f"writer {writer.number} writes {len(lines)} lines {lines[0].number}…{' but a newline' if partial else ''}"
    )
    world.accepted(lines)
    with world.attempt(lines) as failed:
        # A write is short where a line that it has is refused, and then the next one says why.
        write_all(writer.descriptor, data)
    if failed:
        # A line whose beginning was taken before is gone with the write that was to complete it, or waits for its rest.
        settle_failed(world, lines)
        if writer in world.writers:
            abandon(world, writer, lines)
        return
    if partial:
        writer.rest = (b"\n", lines.pop())
    writer.lines += lines


def abandon(world: World, writer: Writer, lines: list[Line]) -> None:
    """Close a writer of which a write has failed, and see what has become of all its lines."""
    world.writers.remove(writer)
    for line in lines:
        if line.state is State.PENDING:
            line.state = State.UNKNOWN
    try:
        os.close(writer.descriptor)
    except OSError:
        world.oracle.refuse(writer.lines, State.UNKNOWN)
    else:
        world.oracle.acknowledge(writer.lines)


@STEPS.row(3)
def sync_writer(world: World, numbers: Numbers) -> None:
    """fsync or fdatasync of an open file."""
    if not world.writers:
        return
    writer, call = numbers.pick(world.writers), numbers.pick((os.fsync, os.fdatasync))
    world.say(f"{call.__name__} of writer {writer.number}")
    if gone(world, writer):
        return
    with world.attempt(()) as failed:
        call(writer.descriptor)
    if failed:
        if writer in world.writers:
            for line in writer.lines:
                line.state = State.UNKNOWN
            writer.lines.clear()
            rest = [writer.rest[1]] if writer.rest else []
            writer.rest = None
            abandon(world, writer, rest)
        return
    world.oracle.acknowledge(writer.lines, State.SAFE)
    writer.lines.clear()
    if writer.partition is not None:
        world.oracle.make_safe(writer.incarnation, writer.partition)


@STEPS.row(4)
def close_writer(world: World, numbers: Numbers) -> None:
    """Close an open file."""
    if world.writers:
        writer = numbers.pick(world.writers)
        world.say(f"close writer {writer.number}")
        world.close(writer)


REWRITES: Final = (
    "sed -i s/a/b/ {0}",
    ": > {0}",
    "truncate -s 0 {0}",
    "truncate -s +9 {0}",
    "rm -f {0}",
    "mv {0} {0}.old",
    "dd if=/dev/zero of={0} bs=9 count=1 conv=notrunc",
    "ln {0} {0}.link",
    "cp /etc/hostname {0}",
)
REMOVALS: Final = (
    "rm -rf {0}",
    "d=$(mktemp -d); rsync -a --delete $d/ {0}/",
    "find {0} -depth -type d -exec rmdir {{}} +",
)
"""Of what holds records. They remove a partition that holds none."""


@STEPS.row(2)
def rewrite(world: World, numbers: Numbers) -> None:
    """What an append-only log refuses."""
    topic, partition, _ = world.where(numbers, ("plain", "table"))
    directory = world.served / f"{topic}-{partition or 0}"
    command = numbers.pick(REWRITES).format(directory / "log.txt")
    if not numbers.below(4) and world.records(topic, partition or 0):
        command = numbers.pick(REMOVALS).format(directory)
    world.say(command)
    with world.attempt(()):
        done = subprocess.run(["sh", "-c", command], capture_output=True, check=False, timeout=60)
        promise("O1", done.returncode, f"{command} did well")
        promise("O3", directory.is_dir(), f"{directory} is gone")


@STEPS.row(3)
def beside_each_other(world: World, numbers: Numbers) -> None:
    """Several threads append at once, each in a manner of its own; in some rows the daemon is killed or stopped
    meanwhile."""
    fault, after = numbers.pick(("", "kill", "pause", "kill", "term")), numbers.below(60) / 1000
    places = [world.where(numbers, ("plain", "table", "rows")) for _ in range(3)]
    work: list[list[list[Line]]] = []
    for topic, partition, kind in places:
        work.append(
            [
                world.new_lines(Numbers(()), topic, partition, kind, 2, world.oracle.writer())
                for _ in range(12)
            ]
        )
    world.say(f"threads append to {places}{', ' + fault if fault else ''} after {after} s")
    manners = [MANNERS[name] for name in ("write", "line_by_line", "synchronous")]

    def run(at: int) -> None:
        topic, partition, kind = places[at]
        for turn in work[at]:
            try:
                manners[at](world.path(topic, partition, kind), [line.encoded(kind) for line in turn])
            except OSError:
                world.oracle.refuse(turn, State.UNKNOWN)
            else:
                world.closed(turn, at == 1, dying=fault in ("kill", "term"))

    threads = [threading.Thread(target=run, args=(at,)) for at in range(len(places))]
    for thread in threads:
        thread.start()
    ending(world, fault, after)
    for thread in threads:
        thread.join(120)
        promise("B4", not thread.is_alive(), "a writer hangs")
    if fault in ("kill", "term"):
        world.bury()


def ending(world: World, fault: str, after: float) -> None:
    """Hurt the daemon a moment later."""
    process = world.served.process
    assert process is not None
    pause = threading.Event()
    pause.wait(after)
    if fault == "pause":
        process.send_signal(signal.SIGSTOP)
        pause.wait(0.05)
        process.send_signal(signal.SIGCONT)
    elif fault:
        process.send_signal(signal.SIGKILL if fault == "kill" else signal.SIGTERM)
        with suppress(OSError):
            process.wait(120)
