"""Positions of groups: set, compared, removed, committed with what was read and with the records of a transaction, and
shared by members. What was acknowledged stays."""

from __future__ import annotations

import errno
import json
import os
import threading
from contextlib import suppress
from pathlib import Path
from typing import Final

from daemon_mount import opened
from details import fails_with
from known_keys import Value
from oracle import Line, Shown, State, promise
from reading import plain, unmoved
from rows import Numbers, Table
from world import World, put

STEPS: Final = Table()
TOPICS: Final = ("plain", "rows", "short", "table")
"""Topics that nobody deletes."""

GROUPS: Final = ("h1", "h2")
LIMIT_S: Final = 120.0


class Positions:
    """The positions of these groups.

    values  by group and partition
    joint   a line and a position that one transaction has set, what it was set to, and what it was before
    """

    def __init__(self) -> None:
        self.values: dict[tuple[str, str], Value] = {}
        self.joint: list[tuple[Line, tuple[str, str], bytes, bytes | None]] = []

    def power_cut(self) -> None:
        """Only what was brought onto the disk is sure to be there."""
        self.joint.clear()
        for value in self.values.values():
            value.cut = True

    def look(self, world: World) -> None:
        """Read all of them."""
        for (group, name), value in list(self.values.items()):
            with world.attempt(()) as failed:
                found = told(world.served / "groups" / group / name)
                self._both_or_none(found, group, name)
                value.seen(found, f"the position of {group} in {name}")
            if failed:
                return

    def _both_or_none(self, found: bytes | None, group: str, name: str) -> None:
        for each in list(self.joint):
            line, place, new, old = each
            if place != (group, name) or line.state in (State.PENDING, State.UNKNOWN):
                continue
            self.joint.remove(each)
            there = line.state is not State.REFUSED
            words = f"{group} in {name} is at {found!r}, was {old!r}, {new!r} belongs to {line}"
            promise("J9", line.hurt or found == (new if there else old), words)

    def value(self, group: str, name: str) -> Value:
        """What is known of a position."""
        return self.values.setdefault((group, name), Value())


def told(file: Path) -> bytes | None:
    """A position; None where there is none."""
    try:
        text = file.read_bytes().strip()
    except FileNotFoundError:
        return None
    return None if text == b"none" else text


def positions_of(world: World) -> Positions:
    """The positions of a run."""
    known = world.models.setdefault("positions", Positions())
    assert isinstance(known, Positions)
    return known


def place_of(world: World, numbers: Numbers) -> tuple[str, int, Path] | None:
    """Choose a partition and a group, which is made where it is not there, without members; None where that fails."""
    topic, number = numbers.pick([place for place in world.partitions() if place[0] in TOPICS])
    group = world.served / "groups" / numbers.pick(GROUPS)
    if not world.alive:
        return None
    with world.attempt(()) as failed:
        if not group.exists():
            group.mkdir()
        for member in os.listdir(group / "members"):
            # What a step has left in whose middle the daemon died.
            (group / "members" / member).rmdir()
    return None if failed else (topic, number, group / f"{topic}-{number}")


def ends(world: World, topic: str, number: int) -> tuple[int, int]:
    """The start offset and the end of a partition."""
    at = world.served / f"{topic}-{number}"
    return int((at / "start").read_text()), int(os.getxattr(at / "log.txt", "user.topicfs.next_offset"))


def refused(world: World, label: str, number: int, file: Path, text: str) -> None:
    """A position that has to be refused; with trouble it may be refused for that."""
    words = fails_with(number, put, file, text)
    excused = bool(world.trouble or world.may_die)
    promise(label, words is None or (excused and "did well" not in words), f"{words}, {text!r} into {file}")


MANNERS: Final = ("plain", "guarded", "wrong", "earliest", "latest", "removed", "fsync", "beyond", "race")


@STEPS.row(4)
def set_positions(world: World, numbers: Numbers) -> None:
    """Positions are set, by themselves or only if they are what was read."""
    known = positions_of(world)
    for _ in range(3):
        place, manner = place_of(world, numbers), numbers.pick(MANNERS)
        if place is None:
            return
        topic, number, file = place
        value, before, wanted = known.value(file.parent.name, file.name), None, 0
        with world.attempt(()) as failed:
            start, end = ends(world, topic, number)
            wanted = start + numbers.below(end - start + 1)
            before = told(file)
        world.say(f"{manner}: {wanted} for {file.parent.name} in {file.name}")
        if failed:
            return
        value.seen(before, f"the position of {file}")
        set_one(world, file, manner, wanted, before, value)


def set_one(world: World, file: Path, manner: str, wanted: int, before: bytes | None, value: Value) -> None:
    """Set a position in some manner."""
    if manner == "race":
        race(world, file, wanted, before, value)
        return
    if manner in ("wrong", "beyond"):
        with world.attempt(()):
            if manner == "wrong":
                refused(world, "H3", errno.ECANCELED, file, f"{wanted} if {10**9}")
                if before is not None:
                    refused(world, "H3", errno.ECANCELED, file, f"{wanted} if none")
            else:
                refused(world, "H2", errno.EINVAL, file, f"{10**9}")
                refused(world, "H2", errno.EINVAL, file, "soon")
            found = told(file)
            promise("H3", found == before, f"{file} was {before!r}, is {found!r}, though {manner}")
        return
    state = State.KEPT
    with world.attempt(()) as failed:
        if manner == "removed":
            if before is None:
                return
            value.history.append((None, State.UNKNOWN))
            file.unlink()
        else:
            start, end = ends(world, *parted(file.name))
            offset = {"earliest": start, "latest": end}.get(manner, wanted)
            text = manner if manner in ("earliest", "latest") else f"{wanted}"
            expected = "none" if before is None else before.decode()
            value.history.append((b"%d" % offset, State.UNKNOWN))
            with opened(file, os.O_WRONLY | os.O_TRUNC) as descriptor:
                os.write(
                    descriptor, (f"{text} if {expected}" if manner == "guarded" else text).encode() + b"\n"
                )
                if manner == "fsync":
                    os.fsync(descriptor)
                    state = State.SAFE
    value.answered(failed, not world.alive, state)
    if not failed and world.alive:
        with world.attempt(()):
            value.seen(told(file), f"{file} right after it was set, {manner}")


def parted(name: str) -> tuple[str, int]:
    """The topic and the number of a partition."""
    topic, _, number = name.rpartition("-")
    return topic, int(number)


def race(world: World, file: Path, wanted: int, before: bytes | None, value: Value) -> None:
    """Several expect the same: one does well."""
    expected = "none" if before is None else before.decode()
    if f"{wanted}" == expected:
        # Who sets what is there already does well each time.
        return
    errors: list[int] = []

    def run() -> None:
        try:
            put(file, f"{wanted} if {expected}")
        except OSError as error:
            errors.append(error.errno or -1)
        else:
            errors.append(0)

    value.history.append((b"%d" % wanted, State.UNKNOWN))
    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
        promise("B4", not thread.is_alive(), "who sets a position hangs")
    if world.died() or world.trouble or world.may_die:
        return
    promise("H3", sorted(errors) == [0, *[errno.ECANCELED] * 3], f"of four who expect {expected}: {errors}")
    value.answered([], False)


@STEPS.row(3)
def commit_pending(world: World, numbers: Numbers) -> None:
    """What was read of `.pending` is committed by who has read it, unless somebody has set the position meanwhile."""
    place = place_of(world, numbers)
    known, overtaken = positions_of(world), numbers.below(3) == 1
    if place is None or not world.is_sound(*place[:2]):
        return
    topic, number, file = place
    value, pending = known.value(file.parent.name, file.name), file.with_name(f"{file.name}.pending.jsonl")
    world.say(f"read {pending.name} of {file.parent.name}{', overtaken' if overtaken else ''}")
    with world.attempt((), *([errno.EIO] if errno.EIO in world.trouble else [])) as failed:
        before = told(file)
        value.seen(before, f"{file}")
        with opened(pending, os.O_RDWR) as descriptor:
            data = b""
            if os.fstat(descriptor).st_size:
                words = fails_with(errno.EINVAL, os.write, descriptor, b"commit\n")
                promise("H5", words is None or world.trouble or world.may_die, f"{words}, nothing was read")
            while piece := os.read(descriptor, 1000):
                data += piece
            start, end = ends(world, topic, number)
            if overtaken:
                other = b"%d" % (start if before != b"%d" % start else end)
                value.history.append((other, State.UNKNOWN))
                put(file, other.decode())
                value.answered([], False)
                words = fails_with(errno.ECANCELED, os.write, descriptor, b"commit\n")
                moved = words is None or other == before or world.trouble or world.may_die
                promise("H5", moved, f"{words}, the position was set from {before!r} to {other!r}")
            else:
                # Behind the records that it shows: markers and what was aborted may be there.
                value.history.append((b"%d" % end, State.UNKNOWN))
                os.write(descriptor, b"commit\n")
                value.answered([], False)
    if failed or not world.alive or overtaken:
        return
    offsets = [json.loads(line)["offset"] for line in data.splitlines()]
    with world.attempt(()):
        found = told(file)
        value.seen(found, f"{file} behind a commit of what was read")
        since = int(before or 0)
        shown = [each.offset for each in world.records(topic, number) if each.offset >= since]
        # Compaction and retention may have taken some of them since.
        missing = [offset for offset in shown if offset not in offsets]
        promise("H4", not missing, f"{pending} gave {offsets}, the log has {shown} from {since} on")


@STEPS.row(2)
def beside_positions(world: World, numbers: Numbers) -> None:
    """`.next`, `.lag` and `.pending` are what the position and the log say; what a group lists, and what rm leaves."""
    place = place_of(world, numbers)
    kind = numbers.pick(("txt", "tsv", "jsonl"))
    if place is None or not world.is_sound(*place[:2]):
        return
    topic, number, file = place
    world.say(f"look beside {file.parent.name}/{file.name}")

    def check(shown: list[Shown], at: Path) -> str | None:
        start, end = ends(world, topic, number)
        first = min(max(int(told(file) or 0), start), end)
        beside = {name: file.with_name(f"{file.name}.{name}").read_bytes() for name in ("next", "lag")}
        if beside != {"next": b"%d %d\n" % (first, end), "lag": b"%d\n" % (end - first)}:
            return f"beside {file} is {beside}, the position is {told(file)!r}, the log {start} to {end}"
        found = file.with_name(f"{file.name}.pending.{kind}").read_bytes()
        wanted = plain([each for each in shown if each.offset >= first], kind)
        return None if found == wanted else f"pending.{kind} is {found[:300]!r}, expected {wanted[:300]!r}"

    unmoved(world, topic, number, "H4", check)
    if not world.alive or world.trouble:
        return
    group = file.parent
    names = set(os.listdir(group))
    there = {name for (each, name), _ in positions_of(world).values.items() if each == group.name}
    wanted = {name for name in there if told(group / name) is not None} | {"members", "status.json"}
    promise("H1", names == wanted, f"{group} lists {sorted(names)}, expected {sorted(wanted)}")
    words = fails_with(errno.EPERM, os.unlink, group / "status.json")
    promise("H6", words is None or world.may_die, f"{words}")
    told_places = {
        f"{each['topic']}-{each['partition']}" if "topic" in each else each["name"]: each["position"]
        for each in json.loads((group / "status.json").read_bytes())["positions"]
    }
    found = {name: int(told(group / name) or 0) for name in wanted - {"members", "status.json"}}
    promise("H10", told_places == found, f"status.json of {group} tells {told_places}, they are {found}")


@STEPS.row(3)
def position_in_transaction(world: World, numbers: Numbers) -> None:
    """A record and a position are committed together, the position only if it is what was read: as a worker does it
    that takes each record once."""
    chosen = place_of(world, numbers)
    known, wrong = positions_of(world), numbers.below(4) == 3
    if chosen is None or world.late:
        return
    topic, number, file = chosen
    value = known.value(file.parent.name, file.name)
    line = world.oracle.line(world.incarnation("plain"), 0, None, 30, world.oracle.writer())
    directory = world.served / "transactions" / world.name("h")
    world.say(f"{directory.name}: line {line.number} and a position of {file.parent.name} in {file.name}")
    before, wanted = None, 0
    with world.attempt([line]) as failed:
        before = told(file)
        value.seen(before, f"{file}")
        start, end = ends(world, topic, number)
        wanted = start + numbers.below(end - start + 1)
        place = directory / "groups" / file.parent.name
        directory.mkdir()
        (directory / "groups").mkdir()
        place.mkdir()
        expected = "7777777" if wrong else "none" if before is None else before.decode()
        (place / file.name).write_text(f"{wanted} if {expected}\n")
        (directory / "plain-0.txt").write_bytes(line.encoded("txt"))
    if failed:
        return
    world.accepted([line])
    world.late |= bool(world.trouble)
    line.whole = True
    commit = directory.with_name(f"{directory.name}.commit")
    if wrong:
        world.oracle.refuse([line])
        with world.attempt([line]):
            words = fails_with(errno.ECANCELED, directory.rename, commit)
            excused = world.trouble or world.may_die
            promise("J9", words is None or (excused and "did well" not in words), f"{words}")
        return
    value.history.append((b"%d" % wanted, State.UNKNOWN))
    if b"%d" % wanted != before:
        known.joint.append((line, (file.parent.name, file.name), b"%d" % wanted, before))
    with world.attempt([line]) as failed:
        directory.rename(commit)
    value.answered(failed, not world.alive, State.SAFE)
    if not failed:
        world.oracle.acknowledge([line], State.SAFE)


@STEPS.row(2)
def members(world: World, numbers: Numbers) -> None:
    """Two members share the partitions of a topic, each of which is one's own at most; they alone set positions; and
    they are the same after `kill -9`."""
    killed = numbers.below(2)
    if world.trouble or world.may_die:
        return
    group = world.served / "groups" / "h3"
    workers = [group / "members" / name for name in ("w1", "w2")]
    world.say(f"two members of {group.name}{', killed' if killed else ''}")
    with suppress(FileExistsError):
        group.mkdir()
    for worker in workers:
        with suppress(FileExistsError):
            worker.mkdir()
        put(worker / "subscription", "plain")
    for _ in range(3):
        for worker in workers:
            os.utime(worker)
    shares = [own(worker) for worker in workers]
    every = [f"plain-{number}" for number in range(world.counts["plain"])]
    promise("H7", sorted(shares[0] + shares[1]) == every, f"the shares are {shares}, of {every}")
    if killed:
        world.say("kill")
        world.served.kill()
        world.bury()
        world.start()
        again = [own(worker) for worker in workers]
        promise("H12", again == shares, f"the shares were {shares}, are {again} after a restart")
    for at, worker in enumerate(workers):
        for name in shares[at]:
            wanted = ends(world, *parted(name))[1]
            put(worker / name, f"{wanted}")
            found = told(group / name)
            promise("H9", found == b"%d" % wanted, f"{group / name} is {found!r}, {worker.name} set {wanted}")
            words = fails_with(errno.EBUSY, put, group / name, "0")
            promise("H9", words is None, f"{words}")
    put(workers[0] / "subscription", "plain member.id=a7")
    named = workers[0].with_name(".a7")
    promise("H14", os.listdir(named) == os.listdir(workers[0]), f"{named} lists {os.listdir(named)}")
    put(workers[0] / "subscription", "member.id=b2")
    words = fails_with(errno.ENOENT, os.utime, named)
    promise("H14", words is None, f"{words}")
    for worker in workers:
        worker.rmdir()
    promise("H8", not os.listdir(group / "members"), f"{group} has {os.listdir(group / 'members')}")


def own(worker: Path) -> list[str]:
    """The partitions that are a member's own."""
    return sorted(name for name in os.listdir(worker) if name.startswith("plain-"))
