"""What is appended as a whole, and what is set: inboxes, transactions, producers, keys, groups, settings, start
offsets, topics that are made, deleted and made again."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Final

from daemon_mount import delete, undelete
from oracle import Line, State, promise
from rows import Numbers, Table
from world import TOPICS, World, put

STEPS: Final = Table()


def whole(world: World, numbers: Numbers, topic: str, partition: int | None, kind: str) -> list[Line]:
    """Lines that show together or not at all. One whose file is not committed yet is as good as refused."""
    lines = world.new_lines(numbers, topic, partition, kind, numbers.pick((2, 1, 9)), world.oracle.writer())
    for line in lines:
        line.whole = True
    return lines


def text(lines: list[Line], kind: str) -> bytes:
    """A file of lines."""
    return b"".join(line.encoded(kind) for line in lines)


def commit(world: World, lines: list[Line], source: Path, target: Path | None, *expected: int) -> bool:
    """Rename, or make `_SUCCESS` in, what is to be appended. Whether that did well."""
    world.accepted(lines)
    world.late |= bool(world.trouble)
    for line in lines:
        line.state = State.PENDING
    with world.attempt(lines, *expected) as failed:
        if target is None:
            os.close(os.open(source / "_SUCCESS", os.O_WRONLY | os.O_CREAT))
        else:
            source.rename(target)
    if failed:
        return False
    world.oracle.acknowledge(lines, State.SAFE)
    return True


@STEPS.row(3)
def inbox_file(world: World, numbers: Numbers) -> None:
    """A file that gets its name in an inbox."""
    topic, _, kind = world.where(numbers)
    lines = whole(world, numbers, topic, None, kind)
    name = world.name("f")
    inbox = world.served / "topics" / topic / "inbox"
    world.say(f"{name}.{kind} with {len(lines)} lines {lines[0].number}… into the inbox of {topic}")
    with world.attempt(lines) as failed:
        (inbox / f".{name}.{kind}").write_bytes(text(lines, kind))
    if not failed:
        commit(world, lines, inbox / f".{name}.{kind}", inbox / f"{name}.{kind}")


@STEPS.row(3)
def inbox_batch(world: World, numbers: Numbers) -> None:
    """A batch of files; it may be committed a second time, which changes nothing."""
    topic, _, kind = world.where(numbers)
    lines = whole(world, numbers, topic, None, kind)
    batch = world.served / "topics" / topic / "inbox" / world.name("b")
    world.say(f"{batch.name} with {len(lines)} lines {lines[0].number}… into the inbox of {topic}")
    with world.attempt(lines) as failed:
        batch.mkdir()
        for at, line in enumerate(lines):
            (batch / f"part-{at:05}.{kind}").write_bytes(line.encoded(kind))
    if failed or not commit(world, lines, batch, None):
        return
    if numbers.below(2):
        world.say("and again")
        with world.attempt(()) as failed:
            os.makedirs(batch, exist_ok=True)
            for at, line in enumerate(lines):
                (batch / f"part-{at:05}.{kind}").write_bytes(line.encoded(kind))
        if not failed:
            with world.attempt(()):
                os.close(os.open(batch / "_SUCCESS", os.O_WRONLY | os.O_CREAT))


@STEPS.row(4)
def transaction(world: World, numbers: Numbers) -> None:
    """Files for two topics that are committed together, or given up."""
    name = numbers.pick(("t1", "t2", "t3"))
    directory = world.served / "transactions" / name
    lines: list[Line] = []
    files: list[tuple[str, list[Line], str]] = []
    for _ in range(2):
        topic, partition, kind = world.where(numbers)
        some = whole(world, Numbers((1, numbers.below(5))), topic, partition, kind)
        files.append((f"{topic}{'' if partition is None else f'-{partition}'}.{kind}", some, kind))
        lines += some
    world.say(f"transaction {name} with {[name for name, _, _ in files]}, lines {lines[0].number}…")
    # What an earlier one of this name has left: nobody has heard how it ended, but it is there, so nothing of it shows.
    with world.attempt(lines) as failed:
        if directory.exists():
            for file in sorted(directory.rglob("*")):
                file.unlink()
            directory.rmdir()
        directory.mkdir()
        for file_name, some, kind in files:
            with (directory / file_name).open("ab") as file:
                file.write(text(some, kind))
    if failed:
        return
    if numbers.below(4) == 3:
        world.say("aborted")
        with world.attempt(()):
            for file in sorted(directory.iterdir()):
                file.unlink()
            directory.rmdir()
        world.oracle.refuse(lines)
        return
    commit(world, lines, directory, directory.with_name(f"{name}.commit"))


@STEPS.row(2)
def producer(world: World, numbers: Numbers) -> None:
    """A file of a named producer, tried until it is known to be there once."""
    topic, partition, kind = world.where(numbers, ("plain", "rows", "short"))
    partition = partition or 0
    lines = whole(world, numbers, topic, partition, kind)
    name = numbers.pick(("p1", "p2"))
    place = world.served / "producers" / name / f"{topic}-{partition}"
    world.say(f"producer {name}, {len(lines)} lines {lines[0].number}… to {topic}-{partition}")
    with world.attempt(lines) as failed:
        if not place.parent.exists():
            place.parent.mkdir()
        sequence = int((place / "next").read_text())
        scratch = place / f".{world.name('s')}.{kind}"
        scratch.write_bytes(text(lines, kind))
    if failed or not commit(world, lines, scratch, place / f"{sequence}.{kind}", errno.EMSGSIZE):
        return
    upcoming = int((place / "next").read_text())
    promise("Z2", upcoming == sequence + len(lines), f"{place}: next was {sequence}, is {upcoming}")


def compacts(world: World) -> bool:
    """Whether the table has keys as files now. A daemon that dies meanwhile has none."""
    with world.attempt(()):
        config = (world.served / "topics/table/config").read_text()
        return any(line.startswith("cleanup.policy=") and "compact" in line for line in config.splitlines())
    return False


@STEPS.row(3)
def key(world: World, numbers: Numbers) -> None:
    """A key is set, or removed."""
    if not compacts(world):
        return
    name, removed = f"k{numbers.below(7)}", numbers.below(4) == 3
    partition = numbers.below(world.counts["table"])
    line = world.oracle.line(
        world.incarnation("table"), partition, name, numbers.below(200), world.oracle.writer()
    )
    line.tombstone = removed
    file = world.served / f"table-{partition}" / "keys" / name
    world.say(f"{'remove' if removed else 'set'} {name} in table-{partition}, line {line.number}")
    world.accepted([line])
    # Nobody knows which keys are in records that are damaged.
    hurt = [] if world.is_sound("table", partition) else [errno.EIO]
    with world.attempt([line], *hurt, *([errno.ENOENT] if removed else [])) as failed:
        if removed:
            file.unlink()
        else:
            file.write_bytes(line.value)
    if not failed:
        world.oracle.acknowledge([line])
        with world.attempt((), *hurt):
            if removed:
                promise("V4", not file.exists(), f"{file} is there, though it was removed")
            else:
                promise(
                    "V4",
                    file.read_bytes() == line.value,
                    f"{file} has {file.read_bytes()!r}, not {line.value!r}",
                )


@STEPS.row(2)
def position(world: World, numbers: Numbers) -> None:
    """A group's position is set, and is there."""
    topic, partition = numbers.pick([place for place in world.partitions() if place[0] != "again"])
    group = world.served / "groups" / numbers.pick(("g1", "g2"))
    world.say(f"a position of {group.name} in {topic}-{partition}")
    with world.attempt(()):
        if not group.exists():
            group.mkdir()
        known = world.oracle.known(world.incarnation(topic), partition)
        wanted = known.start + (known.end - known.start) // 2
        world.positions.pop((group.name, f"{topic}-{partition}"), None)
        put(group / f"{topic}-{partition}", f"{wanted}")
        world.positions[group.name, f"{topic}-{partition}"] = wanted


@STEPS.row(1)
def start(world: World, numbers: Numbers) -> None:
    """Records below an offset are deleted."""
    topic, partition, _ = world.where(numbers, ("plain", "rows", "short"))
    name = f"{topic}-{partition or 0}"
    known = world.oracle.known(world.incarnation(topic), partition or 0)
    share = numbers.pick((2, 3, 1))
    offset = known.start + (known.end - known.start) // share
    world.say(f"{name} begins at {offset}, of {known.start} to {known.end}")
    with world.attempt(()) as failed:
        put(world.served / name / "start", f"{offset}")
    if not failed:
        known.start = max(known.start, offset)
        told = int((world.served / name / "start").read_text())
        promise("W7", told >= offset, f"{name} begins at {told}, not at {offset}")
    elif not world.alive:
        # Nobody was told: it may be either.
        known.start = max(known.start, offset)


CHANGES: Final = (
    ("plain", "internal.segment.bytes", ("1500", "4000", "700")),
    ("plain", "compression.type", ("zstd", "gzip", "uncompressed", "lz4")),
    ("plain", "parquet.enable", ("true", "false")),
    ("short", "retention.bytes", ("4000", "1000", "20000")),
    ("short", "segment.ms", ("100", "604800000")),
    ("short", "file.delete.delay.ms", ("0", "300", "60000")),
    ("table", "segment.ms", ("100", "604800000")),
    ("table", "cleanup.policy", ("compact", "delete", "compact,delete")),
    ("table", "delete.retention.ms", ("0", "86400000")),
    ("table", "compression.type", ("lz4", "snappy", "producer")),
    ("rows", "parquet.enable", ("false", "true")),
    ("rows", "internal.segment.bytes", ("300", "3000")),
)


@STEPS.row(3)
def change(world: World, numbers: Numbers) -> None:
    """A setting, and what `config` tells of it."""
    topic, name, values = numbers.pick(CHANGES)
    value = numbers.pick(values)
    world.say(f"{topic}: {name}={value}")
    config = world.served / "topics" / topic / "config"
    with world.attempt(()) as failed:
        put(config, f"{name}={value}")
    if not failed:
        told = config.read_text()
        promise("W2", f"{name}={value}" in told, f"{config} does not tell {name}={value}: {told}")


@STEPS.row(2)
def make_again(world: World, numbers: Numbers) -> None:
    """A topic is deleted with its records and made again, and gets records of the same sizes; the deletion may be taken
    back in between."""
    topic = "again"
    directory = world.served / "topics" / topic
    back = numbers.below(3) == 2 and world.has_records(topic)
    if not world.counts[topic]:
        with world.attempt(()):
            world.make(topic, TOPICS[topic][0])
        return
    world.say(f"delete {topic}{', and take it back' if back else ', and make it again'}")
    for writer in [writer for writer in world.writers if writer.topic == topic]:
        world.close(writer)
    # A full disk has no room to note what can be taken back.
    with world.attempt((), *([errno.ENOENT] if world.trouble else [])) as failed:
        delete(directory)
        if back:
            undelete(directory)
            world.damage.taken_back(world.incarnation(topic))
    if failed and not world.alive and not world.trouble:
        world.deleting.add(topic)
    if failed or back:
        world.gone_if_missing(topic)
        return
    world.renew(topic)
    with world.attempt(()):
        world.make(topic, TOPICS[topic][0])


@STEPS.row(2)
def roll(world: World, numbers: Numbers) -> None:
    """A segment is sealed."""
    topic, partition = numbers.pick(list(world.partitions()))
    world.say(f"roll {topic}-{partition}")
    with world.attempt(()):
        world.steer("roll", partition=f"{topic}-{partition}")


@STEPS.row(2)
def dies_in_commit(world: World, numbers: Numbers) -> None:
    """The daemon dies in the next commit, before one of its steps."""
    step = numbers.below(14)
    world.say(f"die before step {step} of the next commit")
    world.armed = True
    world.steer("die_in_commit", step)
