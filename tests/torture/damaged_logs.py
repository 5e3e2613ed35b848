"""Damage to `.log` files: what it excuses, and how a log is read around it.

A batch that was damaged may be EIO, or what it was, and never anything else. Batches beside it are as they were, but
for those of which nobody can know any more where they begin. A recovery may cut a log there, if it had to look there,
and says so.
"""

from __future__ import annotations

import errno
import os
import re
import struct
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

sys.path.append(str(Path(__file__).parents[1]))

from directory_check import Batch, parse
from oracle import MAX, Hit, Known, Range, Shown, promise
from rows import Numbers

if TYPE_CHECKING:
    from world import World

SOUND: Final = 3
"""So many partitions stay without damage: the other steps want some."""

CHECKED: Final = 17
"""From this byte of a batch on a checksum tells of damage, its own bytes included, and the batch can be measured."""


LAST: Final = range(23, 27)
"""Where in a batch it says which its last offset is."""


@dataclass
class Wound:
    """A place in a segment that was damaged.

    file      the `.log`; by its inode it is known whether it has been replaced
    base      of the segment
    first     the offset behind the batch before: that of a damaged one is as uncertain as the rest of it
    end       the offset behind them, where they can be measured
    position  where the first of these batches begins
    behind    the first position at which nothing was damaged
    places    the first offset of each batch that was there, by its position
    written   the bytes that were put at `at`; None where the file was cut there
    """

    file: Path
    inode: int
    base: int
    first: int
    end: int | None
    position: int
    behind: int
    places: dict[int, int]
    at: int
    written: bytes | None

    @property
    def name(self) -> str:
        """Return the partition's name."""
        return self.file.parent.name

    def range(self, vague: bool) -> Range:
        """Return the offsets that it excuses: to the end of its segment where its index is damaged too."""
        if self.end is not None:
            return Range(self.first, self.end)
        bases = sorted(int(log.stem) for log in self.file.parent.glob("*.log"))
        last = next((base for base in bases if base > self.base), MAX)
        for offset, position in [] if vague else entries(self.file.with_suffix(".index"), self.base):
            if position >= self.behind and offset >= self.first:
                last = min(last, self.places.get(position, offset + 1))
                break
        return Range(self.first, max(last, self.first))

    def is_there(self) -> bool:
        """Whether the file has the damage still."""
        with suppress(OSError), self.file.open("rb") as log:
            if os.fstat(log.fileno()).st_ino != self.inode:
                return False
            if self.written is None:
                return os.fstat(log.fileno()).st_size == self.at
            return os.pread(log.fileno(), len(self.written), self.at) == self.written
        return False


def entries(file: Path, base: int) -> list[tuple[int, int]]:
    """The entries of an offset index: last offset of a batch, and its position."""
    with suppress(OSError):
        data = file.read_bytes()
        return [
            (base + offset, position)
            for offset, position in struct.iter_unpack(">ii", data[: len(data) // 8 * 8])
        ]
    return []


@dataclass
class Damage:
    """All wounds of a run.

    wounds   by topic with incarnation, and partition
    views    where views are kept of partitions with damage
    vague    index files that were damaged too: what they named is not found any more
    begun    how much of the daemon's log was there at its last start
    pending  offsets that a recovery may have cut off, for the next look at a partition
    recovered  partitions of which a recovery may have cut off something
    """

    wounds: dict[tuple[str, int], list[Wound]] = field(default_factory=dict)
    views: set[Path] = field(default_factory=set)
    vague: set[Path] = field(default_factory=set)
    begun: int = 0
    pending: dict[tuple[str, int], list[Range]] = field(default_factory=dict)
    recovered: set[tuple[str, int]] = field(default_factory=set)

    def of(self, topic: str, number: int) -> list[Wound]:
        """Those of a partition."""
        return self.wounds.get((topic, number), [])

    def ranges(self, topic: str, number: int) -> list[Range]:
        """The offsets that they excuse, in their order and joined."""
        found: list[Range] = []
        for each in sorted(self._range(wound) for wound in self.of(topic, number)):
            if found and each.first <= found[-1].end:
                found[-1] = Range(found[-1].first, max(found[-1].end, each.end))
            else:
                found.append(each)
        return found

    def _range(self, wound: Wound) -> Range:
        return wound.range(wound.file.with_suffix(".index") in self.vague)

    # -- `topicfs verify` -----------------------------------------------------------------------------

    def told(self, output: str) -> list[str]:
        """The files of which verify should tell, and does not."""
        files = {str(wound.file) for wounds in self.wounds.values() for wound in wounds if wound.is_there()}
        return [file for file in sorted(files) if f": {file}" not in output]

    def excused(self) -> list[str]:
        """How the lines begin that it may tell of partitions with damage."""
        directories = {wound.file.parent for wounds in self.wounds.values() for wound in wounds}
        # Maps of a damaged segment were made before, or are not made anew.
        places = [f"{each}/" for each in self.views]
        places += [f"{each}" for each in directories]
        places += [
            f"{each.parent}/{kind}-offset-checkpoint, {each.name}: "
            for each in directories
            for kind in ("recovery-point", "replication", "cleaner")
        ]
        return [f"{kind}: {place}" for kind in ("damage", "repairable") for place in places]

    # -- recovery -------------------------------------------------------------------------------------

    def before_start(self, backing: Path, said: int) -> None:
        """Note what the recovery of the next start may cut off: after a clean stop nothing but what is damaged in a
        segment without its index; else all from the first damage on that it has to look at."""
        self.begun = said
        logs = backing / "logs"
        clean = (logs / ".kafka_cleanshutdown").exists()
        points = checkpoint(logs / "recovery-point-offset-checkpoint")
        for key, wounds in self.wounds.items():
            for wound in wounds:
                bases = sorted(int(log.stem) for log in wound.file.parent.glob("*.log"))
                point = points.get(wound.name, 0)
                floor = max((base for base in bases if base <= point), default=0)
                if not clean and wound.base >= floor:
                    self.pending.setdefault(key, []).append(Range(wound.first, MAX))
                elif not all(wound.file.with_suffix(kind).exists() for kind in (".index", ".timeindex")):
                    last = next((base for base in bases if base > wound.base), MAX)
                    self.pending.setdefault(key, []).append(Range(wound.first, last))

    def taken_back(self, topic: str) -> None:
        """A deleted topic is there again, which a recovery has looked at."""
        for (name, number), wounds in self.wounds.items():
            if name == topic and wounds:
                self.pending.setdefault((name, number), []).append(
                    Range(min(wound.first for wound in wounds), MAX)
                )

    def settled(self, world: World, topic: str, number: int, known: Known, end: int) -> None:
        """A partition was looked at after a recovery: what was cut off was told, and is damaged no more."""
        ranges = self.pending.pop((topic, number), None)
        if ranges:
            self.recovered.add((topic, number))
        if not ranges or not known.cut_off:
            return
        known.cut_off = False
        wounds = self.wounds[topic, number]
        self.wounds[topic, number] = [wound for wound in wounds if wound.first < end and wound.is_there()]
        said = world.served.said()[self.begun :]
        name = wounds[0].name if wounds else topic
        told = re.search(rf" (WARNING|ERROR) .*{re.escape(name)}", said)
        promise(
            "log",
            told or not world.can_tell,
            f"records of {name} were cut off, and the log says nothing: {said[-2000:]}",
        )


def checkpoint(file: Path) -> dict[str, int]:
    """What Kafka's checkpoint says, by the partitions' names."""
    with suppress(OSError):
        lines = (line.split() for line in file.read_text().splitlines()[2:])
        return {f"{topic}-{number}": int(offset) for topic, number, offset in lines}
    return {}


# -- damaging -----------------------------------------------------------------------------------------


def hurt(world: World, numbers: Numbers) -> None:
    """Damage one batch of a log, or some. What programs hold of the partitions is looked at before."""
    found = numbers.pick(list(candidates(world)) or [None])
    if found is None:
        return
    topic, number, file = found
    world.let_go()
    # It may be compacted or removed in this moment, and a full disk has no room for damage.
    with suppress(OSError), file.open("r+b") as log:
        data = log.read()
        base = int(file.stem)
        batches, size = parse(data, base)
        if not batches:
            return
        batch = numbers.pick(batches)
        how = numbers.pick(("flipped", "length", "overwritten", "cut"))
        at, end = batch.position + 1 + numbers.below(batch.size - 1), size
        written: bytes | None = None
        if how == "flipped":
            at = batch.position + CHECKED - 1 + numbers.below(batch.size - CHECKED + 1)
            written = bytes([data[at] ^ 1 << numbers.below(8)])
        elif how == "length":
            at = batch.position + 8 + numbers.below(4)
            written = bytes([data[at] ^ 1 << numbers.below(8)])
        elif how == "overwritten":
            at = max(at, batch.position + 8)
            written = bytes([numbers.pick((0, 255, 32))]) * min(1 + numbers.below(200), size - at)
        if written is not None:
            end = at + len(written)
        if written == data[at:end]:
            return
        world.say(
            f"{file.parent.name}/{file.name}, offset {batch.base_offset}, is damaged: {how} at {at} of {size}"
        )
        place = batches.index(batch)
        before = batches[place - 1].last_offset + 1 if place else base
        # Behind a batch whose last offset is damaged nobody knows which offset is next, but by the next batch.
        measured = how == "flipped" and at >= batch.position + CHECKED and at - batch.position not in LAST
        world.damage.views.add(world.served.backing / "views" / file.parent.name)
        key = world.incarnation(topic), number
        world.damage.wounds.setdefault(key, []).append(
            Wound(
                file,
                os.fstat(log.fileno()).st_ino,
                base,
                before,
                end_of(file, batches, batch) if measured else None,
                batch.position,
                end,
                {each.position: each.base_offset for each in batches},
                at,
                written,
            )
        )
        world.faulty = True
        if written is None:
            os.truncate(log.fileno(), at)
        else:
            os.pwrite(log.fileno(), written, at)


def end_of(file: Path, batches: list[Batch], batch: Batch) -> int:
    """The first offset that is surely behind a batch: that of the next one."""
    bases = [each.base_offset for each in batches]
    bases += sorted(int(log.stem) for log in file.parent.glob("*.log"))
    return min((base for base in bases if base > batch.last_offset), default=batch.last_offset + 1)


def candidates(world: World) -> Iterator[tuple[str, int, Path]]:
    """The logs that may be damaged: not all partitions, and no file twice."""
    damage, places = world.damage, list(world.partitions())
    sick = {place for place in places if damage.of(world.incarnation(place[0]), place[1])}
    for topic, number in places:
        if (topic, number) in sick or len(places) - len(sick) > SOUND:
            done = {wound.file for wound in damage.of(world.incarnation(topic), number)}
            for file in sorted((world.served.backing / f"logs/{topic}-{number}").glob("*.log")):
                # It may be removed in this moment.
                with suppress(FileNotFoundError):
                    if file not in done and file.stat().st_size:
                        yield topic, number, file


# -- reading around it --------------------------------------------------------------------------------


def read_around(world: World, topic: str, number: int) -> list[Shown]:
    """What a partition with damage shows: all that was not hit can be read (E11, E12), and what was hit is what it
    was, or EIO (E16)."""
    directory, incarnation = world.served / f"{topic}-{number}", world.incarnation(topic)
    known = world.oracle.known(incarnation, number)
    pending = world.damage.pending.get((incarnation, number), [])
    start = int((directory / "start").read_text())
    end = int(os.getxattr(directory, "user.topicfs.next_offset"))
    texts: list[bytes] = []
    hidden: list[Range] = []
    for part, is_hit in parts(world.damage.ranges(incarnation, number), start, end):
        name = f"offset/{part.first}-{part.end - 1}.jsonl"
        try:
            lines = world.read(directory / name).splitlines()
        except OSError as error:
            if error.errno != errno.EIO or errno.EIO in world.trouble or world.died():
                raise
            told = world.refusals("EIO")
            words = f"{directory.name}: {name} is beside the damage, and is EIO: {told[-1:]}"
            # E12 and E16 say where the damage ends.
            promise("E11", is_hit, words)
            promise("E11", told or not world.can_tell, f"{name} is EIO, and the log says nothing")
            hidden.append(part)
            continue
        texts += lines
    # What retention or a command has removed meanwhile is missed by nobody.
    start = max(start, int((directory / "start").read_text()))
    shown = world.oracle.look(incarnation, number, start, texts, Hit(hidden, pending, end))
    world.damage.settled(world, incarnation, number, known, end)
    return shown


def parts(ranges: list[Range], start: int, end: int) -> Iterator[tuple[Range, bool]]:
    """A log's offsets, in parts that are damaged and others."""
    at = start
    for each in ranges:
        first, last = max(each.first, at), min(each.end, end)
        if first >= last:
            continue
        if at < first:
            yield Range(at, first), False
        yield Range(first, last), True
        at = last
    if at < end:
        yield Range(at, end), False
