"""Small promises of what partitions and topics show: names, links, times, merged logs, what stays while it is open, and
what is refused. One row looks at some of them."""

from __future__ import annotations

import errno
import json
import mmap
import os
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from daemon_mount import opened
from details import KINDS, Detail, fails_with, first_of
from details import detail as detail_in
from oracle import Shown, promise
from reading import chosen, plain, unmoved
from rows import Numbers, Table
from world import World

STEPS: Final = Table()
VIEWS: Final[dict[str, Detail]] = {}
APPEND: Final = os.O_WRONLY | os.O_APPEND


def detail(label: str) -> Callable[[Detail], Detail]:
    """Put a function into the table of these."""
    return detail_in(label, VIEWS)


def topic_of(at: Path) -> Path:
    """The topic's directory."""
    return at.parent / "topics" / at.name.rpartition("-")[0]


@detail("N3")
def names_in_directories(_: list[Shown], at: Path) -> str | None:
    names, of_topic = set(os.listdir(at)), set(os.listdir(topic_of(at)))
    fixed = {f"{stem}.{kind}" for stem in ("log", "current") for kind in KINDS}
    fixed |= {"offset", "time", "segments", "sealed", "start", "status.json"}
    named = {f"{stem}.{kind}" for stem in ("in", "log") for kind in KINDS} | {"config", "inbox"}
    if names - {"keys"} != fixed or of_topic - {"keys", "table"} != named:
        return f"{at.name} lists {sorted(names)}, its topic {sorted(of_topic)}"
    return None


@detail("N12")
def ways_to_write_times(shown: list[Shown], at: Path) -> str | None:
    if not shown:
        return None
    first = shown[len(shown) // 2].timestamp
    when = datetime.fromtimestamp(first / 1000, UTC)
    seconds = when.strftime("%Y-%m-%dT%H:%M:%S")
    wanted = [each for each in shown if each.timestamp >= first]
    # A range begins at the first record that is not earlier.
    wanted = shown[next(n for n, each in enumerate(shown) if each.timestamp >= first) :] if wanted else []
    for name in (f"{seconds}.{first % 1000:03}Z", f"{seconds}.{first % 1000:03}", f"{first}"):
        if (at / f"time/{name}--.jsonl").read_bytes() != plain(wanted, "jsonl"):
            return f"time/{name}--.jsonl is not what is from {first} on"
    return None


@detail("N14")
def names_that_are_not_listed(_: list[Shown], at: Path) -> str | None:
    names = set(os.listdir(at)) | set(os.listdir(topic_of(at)))
    hidden = {"views", *(f"follow.{kind}" for kind in KINDS)}
    if names & hidden:
        return f"{names & hidden} are listed"
    return next((name for name in hidden if not (at / name).exists()), None)


@detail("N15")
def links_to_views(_: list[Shown], at: Path) -> str | None:
    for directory, names in (
        (at, ("log.tsv", "log.jsonl", "offset", "time", "segments", "sealed")),
        (topic_of(at), [f"{stem}.{kind}" for stem in ("in", "log") for kind in KINDS]),
    ):
        for name in names:
            if os.readlink(directory / name) != f"views/{name}":
                return f"{directory / name} leads to {os.readlink(directory / name)}"
    return None


@detail("R4")
def reading_and_writing(shown: list[Shown], at: Path) -> str | None:
    with opened(at / "log.jsonl", os.O_RDWR | os.O_APPEND) as one, opened(at / "log.jsonl") as other:
        size = os.fstat(other).st_size
        found = [os.pread(each, size // 2, size // 3) for each in (one, other)]
    return None if found[0] == found[1] else f"read and written {found[0]!r}, read {found[1]!r}"


@detail("L6")
def files_that_come_to_an_end(_: list[Shown], at: Path) -> str | None:
    names = [name for name in os.listdir(at) if name.startswith("follow")]
    return f"{names} are listed, and wait" if names else None


@detail("T4")
def inodes(shown: list[Shown], at: Path) -> str | None:
    names = ["log.txt", "status.json", "start", "offset", "segments", "views/log.jsonl"]
    found = [os.stat(at / name).st_ino for name in names]
    again = [os.stat(at / name).st_ino for name in names]
    if found != again or len(set(found)) != len(found):
        return f"the inodes of {names} are {found}, and {again} a moment later"
    return None


@detail("T7")
def sizes_right_now(shown: list[Shown], at: Path) -> str | None:
    sizes = {name: os.stat(at / name).st_size for name in ("log.txt", "log.jsonl", "log.tsv")}
    wrong = [name for name, size in sizes.items() if size != len((at / name).read_bytes())]
    return f"the sizes are {sizes}, {wrong} have another number of bytes" if wrong else None


@detail("S5")
def a_log_that_is_opened_anew(shown: list[Shown], at: Path) -> str | None:
    with opened(at / "log.jsonl") as file:
        head = os.read(file, 1 << 16).split(b"\n")[0]
    start = int((at / "start").read_text())
    first = json.loads(head)["offset"] if head else None
    wanted = next((each.offset for each in shown if each.offset >= start), None)
    return None if first == wanted else f"it begins at {first}, the first record is at {wanted}"


@detail("S7")
def ranges_that_are_open(shown: list[Shown], at: Path) -> str | None:
    if not shown:
        return None
    name = f"offset/{shown[0].offset}-{shown[-1].offset}.jsonl"
    with opened(at / name) as file:
        before = os.fstat(file).st_size, os.pread(file, 1 << 20, 0)
        time.sleep(0.01)
        after = os.fstat(file).st_size, os.pread(file, 1 << 20, 0)
    return None if before == after else f"{name} had {before[0]} bytes, has {after[0]}"


@detail("S8")
def files_that_are_made_when_opened(_: list[Shown], at: Path) -> str | None:
    for path in (at / "status.json", at.parent / "metrics", topic_of(at) / "config", at / "start"):
        with opened(path) as file:
            before = os.pread(file, 1 << 20, 0)
            time.sleep(0.01)
            after = os.pread(file, 1 << 20, 0)
        if before != after:
            return f"{path.name} was {before!r}, is {after!r}"
    return None


@detail("Y2")
def one_moment(shown: list[Shown], at: Path) -> str | None:
    with opened(topic_of(at) / "log.jsonl") as file:
        size, data = os.fstat(file).st_size, os.pread(file, 1 << 24, 0)
        again = os.pread(file, 1 << 24, 0)
    return None if size == len(data) and data == again else f"{size} bytes, {len(data)} and {len(again)} read"


@detail("Y3")
def merged_from_any_place(shown: list[Shown], at: Path) -> str | None:
    with opened(topic_of(at) / "log.txt") as file:
        size, data = os.fstat(file).st_size, os.pread(file, 1 << 24, 0)
        middle = os.pread(file, 500, size // 2)
        if middle != data[size // 2 :][:500]:
            return f"from {size // 2} on it gave {middle!r}, expected {data[size // 2 :][:500]!r}"
        if not size:
            return None
        with mmap.mmap(file, size, mmap.MAP_PRIVATE, mmap.PROT_READ) as view:
            return None if view[:] == data else "a mapping has other bytes"


@detail("Y5")
def merged_is_read_only(_: list[Shown], at: Path) -> str | None:
    log = topic_of(at) / "log.txt"
    return first_of(*(fails_with(errno.EPERM, os.open, log, flags) for flags in (APPEND, os.O_RDWR)))


@detail("E8")
def names_of_nothing(_: list[Shown], at: Path) -> str | None:
    return first_of(
        *(fails_with(errno.EINVAL, os.mkdir, at.parent / name) for name in ("x", "x-01", "a b-0", "x:0")),
        fails_with(errno.EEXIST, os.mkdir, at),
        fails_with(errno.EEXIST, os.mkdir, topic_of(at)),
        fails_with(errno.ENOENT, os.rmdir, at.parent / "none-0"),
        fails_with(errno.ENOENT, os.rmdir, at.parent / "topics/none"),
    )


@detail("E10")
def what_is_not_supported(_: list[Shown], at: Path) -> str | None:
    with opened(at / "log.txt", os.O_RDWR | os.O_APPEND) as file:
        if os.fstat(file).st_size < 3:
            return None
        return first_of(
            fails_with(errno.ENOTSUP, os.open, at, os.O_TMPFILE | os.O_RDWR),
            fails_with(errno.ENODEV, mmap.mmap, file, 3, mmap.MAP_SHARED, mmap.PROT_READ),
            fails_with(errno.ENODATA, os.getxattr, at / "log.txt", "user.none"),
            fails_with(errno.EISDIR, os.open, at, APPEND),
            fails_with(errno.EINVAL, os.readlink, at / "log.txt"),
        )


@detail("E4")
def lines_without_a_key(_: list[Shown], at: Path) -> str | None:
    config = (topic_of(at) / "config").read_text()
    policy = next(line for line in config.splitlines() if line.startswith("cleanup.policy="))
    if "compact" not in policy:
        return None
    for name, line in (("log.txt", b"v\n"), ("log.tsv", b"\\N\tv\n"), ("log.jsonl", b'{"value":"v"}\n')):
        with opened(at / name, APPEND) as file:
            words = fails_with(errno.EINVAL, os.write, file, line)
        if words:
            return words
    return None


@detail("E15")
def the_last_refusal(_: list[Shown], at: Path) -> str | None:
    words = fails_with(errno.EPERM, os.mkdir, at / "refused")
    told = json.loads((at / "status.json").read_bytes())["last_refusal"]
    path = f"/{at.name}/refused"
    return words or (None if told["path"] == path else f"last_refusal is {told}, expected {path}")


@detail("P4")
def modes_and_umask(_: list[Shown], at: Path) -> str | None:
    before = os.umask(0o777)
    try:
        directory = at.parent / "transactions" / f"umask{os.getpid()}"
        directory.mkdir(0o000)
    finally:
        os.umask(before)
    mode = directory.stat().st_mode & 0o700
    directory.rmdir()
    return None if mode == 0o700 else f"a directory that was made with the mode 0 has {mode:o}"


@detail("W11")
def saving_by_a_rename(_: list[Shown], at: Path) -> str | None:
    config = topic_of(at) / "config"
    return first_of(
        fails_with(errno.EPERM, os.open, config.with_name("sedAbCdEf"), os.O_WRONLY | os.O_CREAT | os.O_EXCL),
        fails_with(errno.EPERM, os.rename, config, config.with_name("config~")),
        fails_with(errno.EPERM, os.unlink, config),
    )


@detail("W3")
def settings_that_are_none(_: list[Shown], at: Path) -> str | None:
    config = topic_of(at) / "config"

    def settings() -> list[str]:
        return [line for line in config.read_text().splitlines() if not line.startswith("#")]

    before = settings()
    with opened(config, os.O_WRONLY) as file:
        words = first_of(
            fails_with(errno.EINVAL, os.write, file, b"retention.bytes=soon\n"),
            fails_with(errno.EINVAL, os.write, file, b"segment.ms=77\n"),
        )
    return words or (None if settings() == before else f"config was {before}, is {settings()}")


@detail("U5")
def what_upkeep_tells(_: list[Shown], at: Path) -> str | None:
    told = json.loads((at / "status.json").read_bytes())
    missing = {"next_removal", "cleaning", "pinned_bytes", "pinned_segments"} - set(told)
    return f"status.json has no {missing}: {sorted(told)}" if missing else None


@detail("U8")
def names_of_compacted_segments(_: list[Shown], at: Path) -> str | None:
    config = (topic_of(at) / "config").read_text()
    policy = next(line for line in config.splitlines() if line.startswith("cleanup.policy="))
    names = os.listdir(at / "sealed/txt/")
    wrong = [name for name in names if ("-" in name) != ("compact" in policy)]
    return f"sealed lists {wrong}, by {policy}" if wrong else None


@detail("H13")
def groups_are_there(_: list[Shown], at: Path) -> str | None:
    names = os.listdir(at.parent / "groups")
    missing = [name for name in names if not (at.parent / "groups" / name / "status.json").exists()]
    return f"{missing} have no status.json" if missing else None


@STEPS.row(6)
def look_at_views(world: World, numbers: Numbers) -> None:
    """Some of the small promises of a partition and its topic."""
    topic, number = chosen(world, numbers)
    for _ in range(3):
        label = numbers.pick(list(VIEWS))
        merged = label in ("Y2", "Y3") and not world.are_sound(topic)
        if not world.alive or world.is_limited or world.trouble or world.may_die or merged:
            return
        if world.held and label in ("S5", "T7", "R4"):
            # While somebody holds a log its positions go on counting.
            continue
        world.say(f"{VIEWS[label].__name__} of {topic}-{number}")
        unmoved(world, topic, number, label, VIEWS[label])


@STEPS.row(1)
def deleted_list(world: World, numbers: Numbers) -> None:
    """What can be taken back is told, and a topic without records is removed by rmdir."""
    if world.trouble or world.may_die or world.is_limited:
        return
    name = world.name("gone")
    world.say(f"make {name}, and remove it")
    topics = world.served / "topics"
    (topics / name).mkdir()
    told = json.loads(os.getxattr(topics, "user.topicfs.deleted"))
    promise("G6", all("topic" in each for each in told), f"what can be taken back is {told}")
    promise("G6", os.listxattr(topics) == [], f"topics lists {os.listxattr(topics)}")
    (world.served / f"{name}-0/log.txt").open("ab").close()
    if numbers.below(2):
        with (world.served / f"{name}-0/log.txt").open("ab") as file:
            file.write(b"x\n")
        words = fails_with(errno.ENOTEMPTY, os.rmdir, topics / name)
        promise("G1", words is None, f"{words}")
        with (world.served / f"{name}-0/start").open("wb") as file:
            file.write(b"-1\n")
    (topics / name).rmdir()
    promise("G2", not (topics / name).exists(), f"{name} is there, though it was removed")
    names = [each for each in os.listdir(world.served.path) if each.startswith(f"{name}-")]
    promise("G2", not names, f"{names} are there, though the topic was removed")


@STEPS.row(2)
def compact_now(world: World, numbers: Numbers) -> None:
    """A compaction that is asked for is done, however little is dirty."""
    number = numbers.below(max(1, world.counts["table"]))
    if world.trouble or world.may_die or world.is_limited or not world.are_sound("table"):
        return
    at = world.served / f"table-{number}"
    if not at.exists():
        return
    config = (world.served / "topics/table/config").read_text()
    policy = next(line for line in config.splitlines() if line.startswith("cleanup.policy="))
    world.say(f"compact {at.name}, {policy}")
    if "compact" not in policy.split("#")[0]:
        words = fails_with(
            errno.EPERM, os.setxattr, world.served.path, "user.topicfs.compact", at.name.encode()
        )
        promise("U9", words is None, f"{words}, by {policy}")
        return
    os.setxattr(world.served.path, "user.topicfs.compact", at.name.encode())
    end = time.monotonic() + 60
    while json.loads((at / "status.json").read_bytes())["cleaning"]["asked"]:
        promise("U9", time.monotonic() < end, f"{at.name} is not compacted in a minute")
        time.sleep(0.02)


@STEPS.row(2)
def hold_size(world: World, numbers: Numbers) -> None:
    """While somebody holds a log its size never shrinks, whatever is removed at its beginning or compacted."""
    topic, number = chosen(world, numbers)
    if len(world.readers) >= 4:
        return
    world.say(f"hold log.txt of {topic}-{number} for its size")
    incarnation = world.incarnation(topic)
    with world.attempt(()):
        descriptor = os.open(world.served / f"{topic}-{number}/log.txt", os.O_RDONLY)
        before, cuts = os.fstat(descriptor).st_size, world.cut
        world.held += 1

        def look() -> None:
            world.held = max(0, world.held - 1)
            try:
                if world.alive and incarnation == world.incarnation(topic) and cuts == world.cut:
                    after = os.fstat(descriptor).st_size
                    promise("S4", after >= before, f"log.txt of {topic}-{number} had {before}, has {after}")
            finally:
                os.close(descriptor)

        world.readers.append(look)


@STEPS.row(2)
def set_and_take_away(world: World, numbers: Numbers) -> None:
    """A setting by one of several ways, also without its newline, is taken away again: the value is the one before."""
    if world.trouble or world.may_die or world.is_limited:
        return
    config = world.served / "topics/plain/config"
    way, flags = numbers.below(3), numbers.pick((os.O_TRUNC, os.O_APPEND, 0))

    def told() -> str:
        lines = config.read_text().splitlines()
        return next(line for line in lines if line.startswith("delete.retention.ms="))

    before = told()
    world.say(f"plain: delete.retention.ms is set by way {way}, flags {flags:o}, and taken away")
    with opened(config, os.O_WRONLY | flags) as file:
        data = b"\n# a comment\ndelete.retention.ms=77" + (b"\n" if way else b"")
        if way == 1:
            os.pwrite(file, data, 5)
        else:
            os.write(file, data)
    promise("W6" if way == 0 else "W1", told().startswith("delete.retention.ms=77"), f"config has {told()}")
    with opened(config, os.O_WRONLY | os.O_TRUNC) as file:
        os.write(file, b"delete.retention.ms=default\n")
    promise("W4", told() == before, f"config had {before!r}, has {told()!r}")
