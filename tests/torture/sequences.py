"""Named producers, whose files are appended once however often they are tried, and transactions that are refused and
mended."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from details import fails_with, first_of
from oracle import Line, State, promise
from rows import Numbers, Table
from together import text, whole
from world import World, put

STEPS: Final = Table()
PRODUCERS: Final = ("q1", "q2")
TOPICS: Final = ("plain", "rows", "short")


@dataclass
class Sequence:
    """What a producer has appended to a partition.

    upcoming  the sequence of its next file
    unsure    the lines of the last file, of which nobody has heard; and the name of the file that was renamed
    """

    upcoming: int = 0
    unsure: list[Line] = field(default_factory=list)
    scratch: Path | None = None


class Sequences:
    """All of them, by producer, topic and partition."""

    def __init__(self) -> None:
        self.known: dict[tuple[str, str, int], Sequence] = {}

    def power_cut(self) -> None:
        """A file is on the disk when its rename returns. One that was not renamed may be gone."""
        for each in self.known.values():
            each.scratch = None

    def look(self, world: World) -> None:
        """`next` is behind what was acknowledged. A file of which nobody has heard is appended, or there."""
        for (name, topic, number), known in list(self.known.items()):
            if not is_whole(world, topic, number):
                # A recovery may have cut off what a producer has appended.
                del self.known[name, topic, number]
                continue
            if world.late:
                continue
            place = world.served / "producers" / name / f"{topic}-{number}"
            with world.attempt(()) as failed:
                if not known.upcoming and not place.parent.exists():
                    continue
                found = int((place / "next").read_text())
                wanted = [known.upcoming, *([known.upcoming + len(known.unsure)] if known.unsure else [])]
                promise("Z4", found in wanted, f"{place}: next is {found}, expected {wanted}")
                if known.unsure:
                    self._decide(world, known, found)
            if failed:
                return

    def _decide(self, world: World, known: Sequence, found: int) -> None:
        done = found != known.upcoming
        missing = [line for line in known.unsure if not world.oracle.is_placed(line)]
        gone = known.scratch is not None and not known.scratch.exists()
        shown = not missing or any(line.state in (State.KEPT, State.SAFE) for line in known.unsure)
        # What retention took before anybody has looked was not seen.
        if known.unsure[0].topic.startswith("short#"):
            shown = done
        promise("Z4", shown == done, f"next is {found} of {known}, and {len(missing)} lines are missing")
        # Appended, it may be there still: tried again it is refused.
        promise("Z4", done or not gone, f"{known.scratch} is gone, and next is {found}")
        known.upcoming, known.unsure, known.scratch = found, [], None


def sequences_of(world: World) -> Sequences:
    """The sequences of a run."""
    known = world.models.setdefault("sequences", Sequences())
    assert isinstance(known, Sequences)
    return known


def refused(world: World, label: str, number: int, source: Path, target: Path) -> None:
    """A rename that has to be refused, and leaves the file; with trouble it may be refused for that."""
    words = fails_with(number, source.rename, target)
    excused = bool(world.trouble or world.may_die)
    promise(label, words is None or (excused and "did well" not in words), f"{words}")
    if words is None:
        promise(label, source.exists(), f"{source} is gone, though it was refused")


BAD: Final = (
    ("jsonl", b'{"value":\n', errno.EINVAL),
    ("txt", b"", errno.ENODATA),
    ("doc", b"x\n", errno.EINVAL),
)


def is_whole(world: World, topic: str, number: int) -> bool:
    """Whether nothing of a partition was damaged, nor cut off as damaged."""
    return world.is_sound(topic, number) and (world.incarnation(topic), number) not in world.damage.recovered


@STEPS.row(4)
def producer_again(world: World, numbers: Numbers) -> None:
    """A file of a named producer: under its sequence, with what has to be refused before or behind it, and by another
    epoch."""
    topic, partition, kind = world.where(numbers, TOPICS)
    number, name = partition or 0, numbers.pick(PRODUCERS)
    how = numbers.pick(("next", "again", "later", "bad", "epoch", "next"))
    if not is_whole(world, topic, number) or world.late:
        return
    known = sequences_of(world).known.setdefault((name, topic, number), Sequence())
    lines = whole(world, numbers, topic, number, kind)
    place = world.served / "producers" / name / f"{topic}-{number}"
    world.say(
        f"producer {name}, {how}, {len(lines)} lines {lines[0].number}… to {place.name}, {known.upcoming}"
    )
    world.oracle.refuse(lines)
    scratch, prefix = place / f".{world.name('s')}.{kind}", ""
    with world.attempt(lines) as failed:
        if not place.parent.exists():
            place.parent.mkdir()
        scratch.write_bytes(text(lines, kind))
        if how == "again" and known.upcoming:
            refused(world, "Z3", errno.EEXIST, scratch, place / f"0.{kind}")
        elif how == "later":
            refused(world, "Z3", errno.EINVAL, scratch, place / f"{known.upcoming + 1}.{kind}")
        elif how == "bad":
            ending, data, code = numbers.pick(BAD)
            bad = place / f".{world.name('s')}.{ending}"
            bad.write_bytes(data)
            refused(world, "Z6", code, bad, place / f"{known.upcoming}.{ending}")
            bad.unlink()
        elif how == "epoch":
            epoch = int((place.parent / "epoch").read_text())
            words = fails_with(errno.EPERM, put, place.parent / "epoch", f"{epoch}")
            promise("Z5", words is None or world.trouble or world.may_die, f"{words}")
            put(place.parent / "epoch", f"{epoch + 1}")
            refused(world, "Z5", errno.EPERM, scratch, place / f"{epoch}-{known.upcoming}.{kind}")
            prefix = f"{epoch + 1}-"
    if failed or not world.alive or world.died():
        return
    world.accepted(lines)
    world.late |= bool(world.trouble)
    for line in lines:
        line.state = State.PENDING
    with world.attempt(lines, errno.EMSGSIZE) as failed:
        scratch.rename(place / f"{prefix}{known.upcoming}.{kind}")
    if not failed:
        world.oracle.acknowledge(lines, State.SAFE)
        known.upcoming += len(lines)
    elif not world.alive or errno.EIO in failed:
        known.unsure, known.scratch = lines, scratch
    else:
        with world.attempt(()):
            scratch.unlink()


@STEPS.row(3)
def transaction_mended(world: World, numbers: Numbers) -> None:
    """A transaction with a bad line is refused, as is one with an open file; mended, it is committed. What no
    transaction takes is refused."""
    topic, partition, _ = world.where(numbers, ("plain", "rows"))
    number, is_open = partition or 0, numbers.below(2)
    if world.trouble or world.may_die:
        return
    lines = whole(world, numbers, topic, number, "jsonl")
    world.oracle.refuse(lines)
    if any(line.length >= 200 for line in lines):
        return
    directory = world.served / "transactions" / world.name("m")
    commit = directory.with_name(f"{directory.name}.commit")
    world.say(
        f"{directory.name} with lines {lines[0].number}… of {topic}-{number}, {len(lines)}, and a bad one"
    )
    with world.attempt(lines) as failed:
        directory.mkdir()
        file, bad = directory / f"{topic}-{number}.jsonl", directory / f"{topic}.jsonl"
        file.write_bytes(text(lines, "jsonl"))
        bad.write_bytes(b'{"value":"x"}\n{"value":\n')
        words = fails_with(errno.EINVAL, directory.rename, commit)
        promise("J5", words is None, f"{words}")
        reason = status(directory)["last_refusal"]["reason"]
        promise("J5", f"{bad.name}: line 2" in reason, f"{directory.name}: {reason}")
        words = first_of(
            fails_with(errno.EEXIST, directory.mkdir),
            fails_with(errno.ENOENT, (directory / "nobody-0.txt").write_bytes, b"x\n"),
            fails_with(errno.EPERM, (directory / "d").mkdir),
            fails_with(errno.EPERM, directory.rename, directory.with_name("other")),
            fails_with(errno.ENOTEMPTY, directory.rmdir),
        )
        promise("J6", words is None, f"{words}")
        told = status(directory)
        promise("J7", told["open"] and told["state"] in ("Empty", "Ongoing"), f"{directory.name}: {told}")
        bad.unlink()
        if is_open:
            with file.open("ab"):
                words = fails_with(errno.EBUSY, directory.rename, commit)
                promise("J6", words is None, f"{words}")
        promise("J5", file.read_bytes() == text(lines, "jsonl"), f"{file} has changed, though it was refused")
    if failed:
        return
    world.accepted(lines)
    for line in lines:
        line.state = State.PENDING
    with world.attempt(lines) as failed:
        directory.rename(commit)
    if not failed:
        world.oracle.acknowledge(lines, State.SAFE)
        told = status(directory)
        promise("J7", told["state"] == "CompleteCommit" and not told["open"], f"{directory.name}: {told}")
        promise("J2", not os.path.exists(directory), f"{directory} is there, though it was committed")


def status(directory: Path) -> dict[str, Any]:
    """What is told of a transaction."""
    found = json.loads(directory.with_name(f"{directory.name}.json").read_bytes())
    assert isinstance(found, dict)
    return found


@STEPS.row(1)
def producer_forgotten(world: World, numbers: Numbers) -> None:
    """A producer is removed when nothing of it waits; made again, it begins at 0."""
    if world.trouble or world.may_die or world.is_limited:
        return
    producer = world.served / "producers" / world.name("f")
    place = producer / "plain-0"
    line = world.oracle.line(world.incarnation("plain"), 0, None, 20, world.oracle.writer())
    world.say(f"producer {producer.name} with line {line.number} is removed")
    world.accepted([line])
    with world.attempt([line]) as failed:
        producer.mkdir()
        (place / ".a").write_bytes(line.encoded("txt"))
        (place / ".a").rename(place / "0.txt")
        world.oracle.acknowledge([line], State.SAFE)
        (place / ".x").write_bytes(b"x")
        words = fails_with(errno.ENOTEMPTY, producer.rmdir)
        promise("Z7", words is None, f"{words}")
        (place / ".x").unlink()
        producer.rmdir()
        producer.mkdir()
        upcoming = int((place / "next").read_text())
        promise("Z7", upcoming == 0, f"{producer.name} was made again, and its next sequence is {upcoming}")
        producer.rmdir()
    if failed:
        world.say("it failed")
