"""What is known of all lines that were written: which were acknowledged, which were refused, and what was shown.

A line that was written is in one of these states:

    PENDING    write(2) took it; neither close nor fsync has answered
    KEPT       acknowledged by close: it survives the death of the daemon
    SAFE       acknowledged by fsync, or by what brings its records onto the disk: it survives a power cut
    UNKNOWN    nobody was told: it is there or not, and the next look at its topic tells which for ever
    REFUSED    what wrote it failed, or a look after a crash did not find it: it never shows
"""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

LETTERS: Final = bytes(range(97, 123))
MAX: Final = 1 << 62
MARKERS: Final = 8
"""Of transactions, at most, that a partition gets anew when a recovery has cut them off."""

ODD: Final = b"\xff\t\\\x00\xc3\xa9"
"""In one value of seven: no UTF-8, and what tsv and jsonl escape."""


class BrokenPromiseError(AssertionError):
    """A promise is broken: its label in `fs/SEMANTICS.md`, and how."""

    def __init__(self, label: str, words: str) -> None:
        super().__init__(f"{label}: {words}")
        self.label = label


def promise(label: str, holds: object, words: str) -> None:
    """Fail where a promise does not hold."""
    if not holds:
        raise BrokenPromiseError(label, words)


class State(Enum):
    """What is known of a line."""

    PENDING = "pending"
    KEPT = "kept"
    SAFE = "safe"
    UNKNOWN = "unknown"
    REFUSED = "refused"


@dataclass
class Line:
    """A record that somebody writes.

    number     names it; its value begins with it
    topic      the topic, with the number of its incarnation
    partition  None where the daemon chooses it
    key        None for none
    length     of the value's padding
    rank       its place in the order in which writes were accepted; 0 where that is not known
    writer     who wrote it: one open file, or one commit
    whole      whether all lines of the writer show together or not at all
    tombstone  whether the value is null
    hurt       whether damage may have taken it: nobody misses it any more
    """

    number: int
    topic: str
    partition: int | None
    key: str | None
    length: int
    writer: int
    rank: int = 0
    whole: bool = False
    tombstone: bool = False
    state: State = State.PENDING
    hurt: bool = False

    @property
    def value(self) -> bytes:
        padding = (LETTERS * (self.length // len(LETTERS) + 1))[: self.length]
        return b"%d:" % self.number + (ODD if self.number % 7 == 0 else b"") + padding

    def encoded(self, kind: str) -> bytes:
        """The line as it is appended in this format."""
        value = self.value
        if kind == "txt":
            return value + b"\n"
        if kind == "tsv":
            text = b"\\N" if self.tombstone else _escaped(value)
            return (b"\\N" if self.key is None else self.key.encode()) + b"\t" + text + b"\n"
        told: dict[str, Any] = {} if self.key is None else {"key": self.key}
        if self.tombstone:
            told["value"] = None
        else:
            try:
                told["value"] = value.decode()
            except UnicodeDecodeError:
                from base64 import b64encode  # noqa: PLC0415

                told["value_base64"] = b64encode(value).decode()
        return json.dumps(told).encode() + b"\n"


def _escaped(value: bytes) -> bytes:
    for plain, written in ((b"\\", b"\\\\"), (b"\t", b"\\t"), (b"\n", b"\\n"), (b"\r", b"\\r")):
        value = value.replace(plain, written)
    return value


@dataclass(frozen=True)
class Shown:
    """A record as `log.jsonl` shows it.

    text  the whole line
    """

    offset: int
    timestamp: int
    key: str | None
    value: bytes | None
    text: bytes

    @classmethod
    def parsed(cls, text: bytes) -> Shown:
        """Take a line apart."""
        told = json.loads(text)
        value = b64decode(told["value_base64"]) if "value_base64" in told else told["value"]
        value = value.encode() if isinstance(value, str) else value
        return cls(told["offset"], told["timestamp"], told.get("key"), value, text)

    @property
    def number(self) -> int:
        """Of the line that it is of; 0 for a tombstone."""
        return int(self.value.partition(b":")[0]) if self.value else 0


@dataclass(frozen=True, order=True)
class Range:
    """Offsets from the first one on, up to but without the end."""

    first: int
    end: int

    def __contains__(self, offset: int) -> bool:
        return self.first <= offset < self.end


@dataclass(frozen=True)
class Hit:
    """What a look met of damage to the log.

    hidden  the offsets that are EIO
    cut     the offsets that a recovery may have cut off since the last look
    end     the end of the log
    """

    hidden: Sequence[Range]
    cut: Sequence[Range]
    end: int

    def hides(self, offset: int) -> bool:
        """Whether an offset is EIO."""
        return any(offset in each for each in self.hidden)


WHOLE: Final = Hit((), (), 0)
"""No damage."""


@dataclass
class Known:
    """What was shown of a partition.

    shown    all records ever shown, by their offsets, but for those that a power cut or damage took
    start    the highest start offset that is known
    end      the highest offset ever shown, and one more
    cut      whether there was a power cut since the last look
    hidden   offsets that nobody has seen yet, as they are in what is damaged
    missed   how many of these are not explained by lines yet
    cut_off  whether a recovery has cut the log at damage, of which nobody was told yet
    """

    shown: dict[int, Shown] = field(default_factory=dict)
    start: int = 0
    end: int = 0
    cut: bool = False
    hidden: set[int] = field(default_factory=set)
    missed: int = 0
    cut_off: bool = False


class Oracle:
    """All lines and all that was shown of them.

    lines       by their numbers
    partitions  what was shown, by topic with incarnation, and number
    compacted   topics in which a record may go when a later one has its key
    together    lines of several topics that are all there or none, and the promise; until somebody has looked
    """

    def __init__(self) -> None:
        self.lines: dict[int, Line] = {}
        self.partitions: dict[tuple[str, int], Known] = {}
        self.compacted: set[str] = set()
        self.together: list[tuple[str, list[Line]]] = []
        self._rank = 0
        self._writer = 0
        self._places: dict[int, tuple[str, int, int]] = {}
        self._looked: set[int] = set()

    # -- what is written ------------------------------------------------------------------------------

    def writer(self) -> int:
        """A number for who writes."""
        self._writer += 1
        return self._writer

    def rank(self) -> int:
        """The place of a write in the order of all."""
        self._rank += 1
        return self._rank

    def line(self, topic: str, partition: int | None, key: str | None, length: int, writer: int) -> Line:
        """A new line, which nobody has written yet."""
        line = Line(len(self.lines) + 1, topic, partition, key, length, writer)
        self.lines[line.number] = line
        return line

    def acknowledge(self, lines: Iterable[Line], state: State = State.KEPT) -> None:
        """Close or fsync has told that they are there. What is safe stays so."""
        for line in lines:
            if line.state is not State.SAFE:
                line.state = state

    def refuse(self, lines: Iterable[Line], state: State = State.REFUSED) -> None:
        """Their write has failed; UNKNOWN where the daemon died meanwhile."""
        for line in lines:
            if line.state is State.PENDING:
                line.state = state

    def power_cut(self) -> None:
        """Only what is safe is sure to be there."""
        self.together.clear()
        for line in self.lines.values():
            if line.state is State.KEPT:
                line.state = State.UNKNOWN
        for known in self.partitions.values():
            known.cut = True

    def make_safe(self, topic: str, partition: int) -> None:
        """All of a partition that was acknowledged is on disk."""
        known = self.partitions.get((topic, partition), Known())
        for line in self.lines.values():
            if line.topic == topic and line.state is State.KEPT:
                place = self._places.get(line.number)
                if line.partition == partition or (place is not None and place[1] == partition):
                    line.state = State.SAFE
        for shown in known.shown.values():
            line_shown = self.lines.get(shown.number)
            if line_shown is not None and line_shown.state is State.UNKNOWN:
                line_shown.state = State.SAFE

    # -- what is shown --------------------------------------------------------------------------------

    def known(self, topic: str, partition: int) -> Known:
        """What was shown of a partition so far."""
        return self.partitions.setdefault((topic, partition), Known())

    def look(
        self, topic: str, partition: int, start: int, texts: Sequence[bytes], hit: Hit = WHOLE
    ) -> list[Shown]:
        """Compare what a partition shows with what is known, and remember it."""
        known, name = self.known(topic, partition), f"{topic}-{partition}"
        end = known.end
        now = [Shown.parsed(text) for text in texts]
        known.start = max(known.start, start)
        offsets = [shown.offset for shown in now]
        promise("R2", offsets == sorted(set(offsets)), f"{name}: offsets do not rise: {offsets}")
        there = {shown.offset: shown for shown in now}
        if hit.cut:
            self._after_recovery(topic, partition, known, there, hit)
        if known.cut:
            self._after_cut(name, topic, known, there, hit)
        for offset, before in known.shown.items():
            after = there.get(offset)
            if after is not None:
                same = after.text == before.text
                promise("S1", same, f"{name}: offset {offset} was {before.text!r}, is {after.text!r}")
            elif offset >= known.start and topic not in self.compacted and not hit.hides(offset):
                raise BrokenPromiseError(
                    "D1", f"{name}: offset {offset} was shown, and is gone: {before.text!r}"
                )
        for shown in now:
            if shown.offset not in known.shown:
                later = shown.offset >= min(end, known.end) or shown.offset in known.hidden
                promise("C1", later, f"{name}: {shown.text!r} shows below {known.end}, which was shown")
                self._take(name, topic, partition, shown)
        ranks = [self.lines[shown.number].rank for shown in now if shown.number]
        ranks = [rank for rank in ranks if rank]
        promise("A3", ranks == sorted(ranks), f"{name}: not in the order of their writes: {ranks}")
        known.shown.update(there)
        unseen = {
            offset
            for each in hit.hidden
            for offset in range(max(each.first, known.end), min(each.end, hit.end))
            if offset not in known.hidden
        }
        known.hidden |= unseen
        known.missed += len(unseen)
        known.end = max([known.end, *(offset + 1 for offset in there)])
        if topic in self.compacted:
            self._newest_of_keys(name, known, there, hit)
        return now

    def settle(self, topic: str, partitions: Iterable[int]) -> None:
        """All partitions of a topic were looked at: what was acknowledged has to have been among it, and what is
        not there of what was unknown never comes."""
        numbers = set(partitions)
        whole: dict[int, list[Line]] = {}
        lines_here = [line for line in self.of(topic) if line.partition is None or line.partition in numbers]
        for line in lines_here:
            if line.state is State.UNKNOWN:
                if line.number in self._places:
                    line.state = State.KEPT
                elif any(known.hidden for known in self._where(line)):
                    line.hurt = True
                else:
                    line.state = State.REFUSED
        for line in lines_here:
            seen = line.number in self._places
            if line.whole:
                whole.setdefault(line.writer, []).append(line)
            if line.state in (State.KEPT, State.SAFE):
                label = "D1" if line.state is State.KEPT else "D2"
                held = seen or line.tombstone or line.hurt or self._excused(line) or self._hidden(line)
                promise(label, held, f"{topic}: an acknowledged line is not there: {line}")
        for lines in whole.values():
            count = sum(line.number in self._places for line in lines)
            if topic not in self.compacted and not any(line.hurt or self._excused(line) for line in lines):
                words = f"{topic}: {count} of {len(lines)} lines that belong together: {lines[0]}"
                promise("I6", count in (0, len(lines)), words)

    def settle_together(self) -> None:
        """All topics were looked at: of lines that belong together all have come, or none."""
        undecided = []
        for label, lines in self.together:
            if any(line.state in (State.PENDING, State.UNKNOWN) for line in lines):
                undecided.append((label, lines))
                continue
            there = sum(line.state is not State.REFUSED for line in lines)
            hurt = any(line.hurt for line in lines)
            words = f"{there} of {len(lines)} lines that belong together: {lines}"
            promise(label, hurt or there in (0, len(lines)), words)
        self.together = undecided

    def is_placed(self, line: Line) -> bool:
        """Whether it was shown."""
        return line.number in self._places

    def _where(self, line: Line) -> list[Known]:
        """The partitions that a line may be in."""
        return [
            known
            for (topic, number), known in self.partitions.items()
            if topic == line.topic and line.partition in (None, number)
        ]

    def _hidden(self, line: Line) -> bool:
        """Whether an acknowledged line that nobody has seen may be in what is damaged, where each offset is one."""
        known = next((known for known in self._where(line) if known.missed), None)
        if known is not None:
            known.missed -= 1
            line.hurt = True
        return line.hurt

    def _after_recovery(
        self, topic: str, partition: int, known: Known, there: dict[int, Shown], hit: Hit
    ) -> None:
        """A recovery may have cut the log at what is damaged. What is gone then never comes back."""
        gone = [
            offset
            for offset in known.shown
            if offset >= known.start
            and offset not in there
            and any(offset in each for each in hit.cut)
            and not hit.hides(offset)
        ]
        ends = [each.first for each in hit.cut if each.end == MAX]
        shortened = bool(ends) and (hit.end < known.end or min(ends) + MARKERS >= hit.end)
        if not gone and not shortened:
            return
        # Of a compacted topic records go without a cut too.
        lost = gone and topic not in self.compacted
        known.cut_off = not known.cut and bool(lost or hit.end < known.end)
        keys = {known.shown[offset].key for offset in gone}
        for offset in gone:
            line = self.lines.get(known.shown.pop(offset).number)
            if line is not None:
                line.state, line.hurt = State.REFUSED, True
                self._places.pop(line.number, None)
        if topic in self.compacted:
            # Values that these had replaced may have been compacted away before.
            for offset in [offset for offset, each in known.shown.items() if each.key in keys]:
                if offset not in there and not hit.hides(offset):
                    del known.shown[offset]
        if shortened:
            known.end = min(known.end, hit.end)
            known.hidden = {offset for offset in known.hidden if offset < hit.end}
            for line in self.of(topic):
                if line.partition in (None, partition) and line.number not in self._places:
                    line.hurt = True

    def _after_cut(self, name: str, topic: str, known: Known, there: dict[int, Shown], hit: Hit) -> None:
        """A power cut may have taken what was not safe, also from the middle: of two files that nobody has synced the
        later one may be on the disk alone. On xfs that was seen, before the daemon was started again: the first segment
        and the last one had no bytes, and all between them were whole."""
        known.cut = False
        end = max([known.start, hit.end, *(offset + 1 for offset in there)])
        missing = [offset for offset in known.shown if offset >= known.start and offset not in there]
        for offset in [offset for offset in missing if not hit.hides(offset)]:
            shown = known.shown.pop(offset)
            line = self.lines.get(shown.number)
            if line is not None:
                safe = line.state is State.SAFE
                safe &= topic not in self.compacted
                promise("D2", not safe, f"{name}: a power cut has taken {shown.text!r}")
                line.state = State.REFUSED
                self._places.pop(line.number, None)
        known.end = end

    def _take(self, name: str, topic: str, partition: int, shown: Shown) -> None:
        """A record that shows for the first time."""
        if shown.value is None:
            return
        line = self.lines.get(shown.number)
        words = f"{name}: {shown.text!r}"
        if line is None:
            raise BrokenPromiseError("A3", f"{words} was never written")
        mine = line.topic == topic and line.partition in (None, partition)
        promise("A1", mine, f"{words} was written to {line.topic}-{line.partition}")
        same = shown.value == line.value and shown.key == line.key
        promise("A3", same, f"{words} was written as {line.value!r} with the key {line.key!r}")
        promise("D6", line.state is not State.REFUSED, f"{words} was reported as failed, or not there once")
        place = self._places.get(line.number)
        promise("D6", place is None, f"{words} is also at {place}")
        self._places[line.number] = (topic, partition, shown.offset)

    def _excused(self, line: Line) -> bool:
        """Whether a line that never showed may have gone before anybody looked."""
        if line.topic in self.compacted and line.key is not None:
            # Of lines of one rank, or without any, nobody knows which came first.
            return any(
                other.key == line.key
                and (other.number > line.number or (other is not line and other.rank == line.rank))
                for other in self.lines.values()
                if other.topic == line.topic and other.state is not State.REFUSED
            )
        return any(
            known.start > 0
            and all(
                self.lines[shown.number].rank >= line.rank
                for offset, shown in known.shown.items()
                if shown.number and offset >= known.start and self.lines[shown.number].rank
            )
            for (topic, number), known in self.partitions.items()
            if topic == line.topic and line.partition in (None, number)
        )

    def _newest_of_keys(self, name: str, known: Known, there: dict[int, Shown], hit: Hit) -> None:
        """Compaction keeps the last record of each key."""
        newest: dict[str | None, int] = {}
        for offset, shown in sorted(known.shown.items()):
            newest[shown.key] = offset
        for key, offset in newest.items():
            gone = offset not in there and known.shown[offset].value is not None and offset >= known.start
            gone &= not hit.hides(offset)
            promise("U2", not gone, f"{name}: the last record of {key!r}, at {offset}, is gone")
        for offset in [offset for offset in known.shown if offset not in there and not hit.hides(offset)]:
            # Gone for good: if it comes back, that is a fault.
            if offset < known.end and newest[known.shown[offset].key] != offset:
                del known.shown[offset]

    # -- for steps ------------------------------------------------------------------------------------

    def of(self, topic: str) -> Iterator[Line]:
        """The lines of a topic."""
        return (line for line in self.lines.values() if line.topic == topic)
