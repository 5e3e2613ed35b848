"""Small promises, each looked at by one function: names, attributes, refusals. One row looks at one or some of them."""

from __future__ import annotations

import errno
import fcntl
import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from oracle import Shown, State, promise
from reading import chosen, plain, unmoved
from rows import Numbers, Table
from world import World, put

STEPS: Final = Table()
KINDS: Final = ("txt", "tsv", "jsonl")
Detail = Callable[[list[Shown], Path], str | None]
DETAILS: Final[dict[str, Detail]] = {}
"""By label: looks at a partition, of which it is told what it shows, and says what is wrong."""


def detail(label: str, table: dict[str, Detail] = DETAILS) -> Callable[[Detail], Detail]:
    """Put a function into a table."""

    def put_in(function: Detail) -> Detail:
        table[label] = function
        return function

    return put_in


def fails_with(number: int, call: Callable[..., object], *arguments: object) -> str | None:
    """None where a call fails with this errno."""
    words = f"{getattr(call, '__name__', call)}{arguments[:2]}"
    try:
        call(*arguments)
    except OSError as error:
        return None if error.errno == number else f"{words}: {error}, expected {errno.errorcode[number]}"
    return f"{words} did well, expected {errno.errorcode[number]}"


def first_of(*words: str | None) -> str | None:
    """The first that says something."""
    return next((each for each in words if each), None)


@detail("N1")
def names_of_the_root(_: list[Shown], at: Path) -> str | None:
    names = set(os.listdir(at.parent))
    fixed = {"README.txt", "metrics", "topics", "groups", "transactions", "producers"}
    return None if fixed <= names and at.name in names else f"the root lists {sorted(names)}"


@detail("N10")
def ranges_of_what_is_not_there(shown: list[Shown], at: Path) -> str | None:
    end = int(os.getxattr(at / "log.jsonl", "user.topicfs.next_offset")) + 5
    if (at / f"offset/{end}-{end + 3}.txt").read_bytes():
        return "a range behind the end has bytes"
    return first_of(
        fails_with(errno.ENOENT, (at / f"offset/{end}").read_bytes),
        fails_with(errno.ENOENT, (at / f"offset/{end}.jsonl").read_bytes),
    )


@detail("N13")
def names_that_mean_nothing(_: list[Shown], at: Path) -> str | None:
    names = (
        ".log.txt.crc",
        "_spark_metadata",
        "log.csv",
        "offset/x",
        "sealed/txt/.x.txt.crc",
        "segments/1.log",
    )
    return first_of(*(fails_with(errno.ENOENT, os.stat, at / name) for name in names))


@detail("N6")
def members_of_an_object(shown: list[Shown], at: Path) -> str | None:
    for each in shown:
        names = [name.removesuffix("_base64") for name in json.loads(each.text)]
        if names != ["topic", "partition", "offset", "timestamp", "key", "value", "headers"]:
            return f"{each.text!r} has {names}"
    return None


@detail("L1")
def listed_offsets(shown: list[Shown], at: Path) -> str | None:
    start, end = (int(os.getxattr(at, f"user.topicfs.{name}_offset")) for name in ("first", "next"))
    names = os.listdir(at / "offset")
    wanted = {f"{shown[at].offset}" for at in (0, -1)} if shown else set()
    wanted |= {f"{start}-{end - 1}.{kind}" for kind in KINDS} if shown else set()
    return None if wanted <= set(names) else f"offset lists {names}, expected {sorted(wanted)}"


@detail("L2")
def bytes_of_segments(shown: list[Shown], at: Path) -> str | None:
    backing = Path(os.getxattr(at.parent, "user.topicfs.backing").decode()) / "logs" / at.name
    names = [name for name in os.listdir(at / "segments") if name.endswith(".log")]
    for name in sorted(names)[:-1]:
        with suppress(FileNotFoundError):
            if (at / "segments" / name).read_bytes() != (backing / name).read_bytes():
                return f"segments/{name} is not what Kafka's file is"
    formats = {name.partition(".")[2] for name in os.listdir(at / "segments")}
    return None if formats == {*KINDS, "log"} else f"segments have the formats {formats}"


@detail("L4")
def names_of_data(_: list[Shown], at: Path) -> str | None:
    listed = [name for _, directories, files in os.walk(at) for name in (*directories, *files)]
    wrong = [name for name in listed if ":" in name or name[0] in "._"]
    return f"listed are {wrong}" if wrong else None


@detail("L5")
def link_to_the_active_segment(_: list[Shown], at: Path) -> str | None:
    last = max(name for name in os.listdir(at / "segments") if name.endswith(".txt"))
    target = os.readlink(at / "current.txt")
    return None if target == f"segments/{last}" else f"current.txt leads to {target}, the last one is {last}"


@detail("R5")
def seeking(shown: list[Shown], at: Path) -> str | None:
    with (at / "log.txt").open("rb", buffering=0) as file:
        size, log = file.seek(0, os.SEEK_END), plain(shown, "txt")
        if not size:
            return None
        # No hole: data is at each place, and the only hole is the end.
        data, hole = (
            os.lseek(file.fileno(), size // 2, os.SEEK_DATA),
            os.lseek(file.fileno(), 0, os.SEEK_HOLE),
        )
        if (data, hole) != (size // 2, size):
            return f"of {size} bytes data is at {data}, a hole at {hole}"
        middle = os.pread(file.fileno(), 300, len(log) // 2)
    wanted = log[len(log) // 2 :][:300]
    return None if size != len(log) or middle == wanted else f"pread gave {middle!r}, expected {wanted!r}"


@detail("B1")
def the_end_of_a_log(_: list[Shown], at: Path) -> str | None:
    with (at / "log.jsonl").open("rb") as file:
        file.read()
        return "there are bytes behind the end" if file.seek(1 << 40) and file.read() else None


@detail("T2")
def blocks(_: list[Shown], at: Path) -> str | None:
    for path in (at / "log.jsonl", at / "log.tsv"):
        told = path.stat()
        if told.st_blocks != -(-told.st_size // 512):
            return f"{path.name} of {told.st_size} bytes has {told.st_blocks} blocks"
    return None if not at.stat().st_blocks else "a directory has blocks"


@detail("T3")
def times_of_segments(_: list[Shown], at: Path) -> str | None:
    names = sorted(name for name in os.listdir(at / "segments") if name.endswith(".txt"))
    times = []
    for name in names:
        with suppress(FileNotFoundError):
            times.append(os.stat(at / "segments" / name).st_mtime_ns)
    return None if times == sorted(times) else f"the times of segments do not rise: {names}, {times}"


@detail("T5")
def attributes(shown: list[Shown], at: Path) -> str | None:
    if not shown:
        return None
    first = int(os.getxattr(at / "log.txt", "user.topicfs.first_offset"))
    behind = int(os.getxattr(at / "log.txt", "user.topicfs.next_offset"))
    if first <= shown[0].offset and behind > shown[-1].offset:
        return None
    return f"log.txt is told to have {first} to {behind}, and shows {shown[0].offset} to {shown[-1].offset}"


@detail("T6")
def room_of_the_file_system(_: list[Shown], at: Path) -> str | None:
    backing = os.getxattr(at.parent, "user.topicfs.backing").decode()
    mine, theirs = os.statvfs(at), os.statvfs(backing)
    same = mine.f_blocks * mine.f_frsize == theirs.f_blocks * theirs.f_frsize
    return None if same else f"the mount has {mine}, BACKING {theirs}"


@detail("T8")
def where_it_is(_: list[Shown], at: Path) -> str | None:
    told = (
        int(os.getxattr(at, "user.topicfs.next_offset")),
        int(os.getxattr(at / "log.txt", "user.topicfs.next_offset")),
    )
    return None if told[0] == told[1] else f"the directory ends at {told[0]}, its log at {told[1]}"


@detail("O2")
def writing_without_append(_: list[Shown], at: Path) -> str | None:
    return first_of(*(fails_with(errno.EPERM, os.open, at / f"log.{kind}", os.O_WRONLY) for kind in KINDS))


@detail("O4")
def changing_attributes(_: list[Shown], at: Path) -> str | None:
    return first_of(
        fails_with(errno.EPERM, os.chmod, at / "log.txt", 0o777),
        fails_with(errno.EPERM, os.utime, at / "log.txt", (1, 1)),
        fails_with(errno.ENOTSUP, os.setxattr, at / "log.txt", "user.mine", b"x"),
    )


@detail("O5")
def writing_into_views(_: list[Shown], at: Path) -> str | None:
    names = [at / "status.json", at.parent / "metrics", at / "offset/0-.txt"]
    return first_of(*(fails_with(errno.EPERM, os.open, name, os.O_WRONLY | os.O_APPEND) for name in names))


@detail("O6")
def making_directories(_: list[Shown], at: Path) -> str | None:
    return first_of(
        fails_with(errno.EPERM, os.mkdir, at / "made"),
        fails_with(errno.EPERM, os.rmdir, at / "views/offset"),
        fails_with(errno.EPERM, os.rmdir, at / "views"),
    )


@detail("G1")
def removing_what_holds_records(shown: list[Shown], at: Path) -> str | None:
    return fails_with(errno.ENOTEMPTY, os.rmdir, at) if shown else None


@detail("P2")
def permissions(_: list[Shown], at: Path) -> str | None:
    modes = {name: os.stat(at / name).st_mode & 0o222 for name in ("status.json", "follow.txt")}
    wrong = [name for name, mode in modes.items() if mode]
    if os.stat(at.parent / f"topics/{at.name.rpartition('-')[0]}/in.txt").st_mode & 0o444:
        wrong.append("in.txt")
    return f"{wrong} have bits that mean nothing" if wrong else None


@detail("W8")
def starts_that_are_none(_: list[Shown], at: Path) -> str | None:
    end = int(os.getxattr(at / "log.jsonl", "user.topicfs.next_offset"))
    number = errno.EPERM if not deletes(at) else errno.EINVAL
    return first_of(
        fails_with(number, put, at / "start", f"{end + 1000}"),
        fails_with(errno.EINVAL, put, at / "start", "soon") if number == errno.EINVAL else None,
    )


def deletes(at: Path) -> bool:
    """Whether records of its topic may be deleted by command."""
    return "delete" in setting(at.parent / f"topics/{at.name.rpartition('-')[0]}/config", "cleanup.policy")


def setting(config: Path, name: str) -> str:
    """A value of a topic's settings."""
    lines = (line.partition("=") for line in config.read_text().splitlines())
    return next(value for key, _, value in lines if key.strip() == name)


@detail("W5")
def settings_written_back(_: list[Shown], at: Path) -> str | None:
    config = at.parent / f"topics/{at.name.rpartition('-')[0]}/config"
    before = config.read_text()
    put(config, before)
    after = config.read_text()
    return None if before == after else f"config was {before!r}, and written back it is {after!r}"


@detail("B6")
def locks(_: list[Shown], at: Path) -> str | None:
    with (at / "log.txt").open("rb") as one, (at / "log.txt").open("rb") as other:
        fcntl.flock(one, fcntl.LOCK_EX)
        return fails_with(errno.EWOULDBLOCK, fcntl.flock, other, fcntl.LOCK_EX | fcntl.LOCK_NB)


@STEPS.row(6)
def details(world: World, numbers: Numbers) -> None:
    """Some details of a partition."""
    topic, number = chosen(world, numbers)
    # What is refused of a partition without records would be done.
    for _ in range(3):
        label = numbers.pick(list(DETAILS))
        if not world.alive or world.is_limited or (label == "W8" and world.trouble):
            return
        world.say(f"{DETAILS[label].__name__} of {topic}-{number}")
        unmoved(world, topic, number, label, DETAILS[label])


BAD: Final = (b'{"value":"x"', b"nothing", b'{"value":7}', b'{"value":"x","partition":-3}', b"[]")


@STEPS.row(3)
def bad_line(world: World, numbers: Numbers) -> None:
    """Good lines, a bad one, and more, in one write: those before it are kept, and the next write says why."""
    topic, partition, _ = world.where(numbers, ("plain", "rows", "again"))
    if partition is None or world.trouble:
        return
    file = world.path(topic, partition, "jsonl")
    writer = world.oracle.writer()
    good, lost = (world.new_lines(Numbers(()), topic, partition, "jsonl", 2, writer) for _ in range(2))
    bad = numbers.pick(BAD)
    world.say(f"lines {good[0].number}…, {bad!r}, and lines {lost[0].number}… to {topic}-{partition}")
    head, tail = (b"".join(line.encoded("jsonl") for line in lines) for lines in (good, lost))
    world.accepted(good)
    world.oracle.refuse(lost)
    with world.attempt(good):
        descriptor = os.open(file, os.O_WRONLY | os.O_APPEND)
        try:
            done = os.write(descriptor, head + bad + b"\n" + tail)
            promise("E2", done == len(head), f"{done} bytes were taken, {len(head)} are before the bad line")
            words = fails_with(errno.EINVAL, os.write, descriptor, bad + b"\n" + tail)
            promise("E1", words is None or world.died(), f"{bad!r}: {words}")
            more = world.new_lines(Numbers(()), topic, partition, "jsonl", 1, writer)
            world.accepted(more)
            good += more
            promise("E5", os.write(descriptor, more[0].encoded("jsonl")), "nothing is taken after a refusal")
        finally:
            os.close(descriptor)
    if world.alive:
        world.closed([line for line in good if line.state is State.PENDING], False)
