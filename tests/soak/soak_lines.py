"""What the writers of the soak write: each line follows from its writer and its number, so that a reader can tell
alone whether a line is whole, in its place, and the last one of its key.

    numbered lines   "<writer> <number> <tail>", the numbers of a writer without a gap
    keyed records    {"key": …, "value": "<writer> <number> <tail>" or null, "headers": {"n": "<writer> <number>"}}

A writer of keys goes over all of them in rounds, in another order each time. Every fifth record of a key is a
tombstone. After some rounds the keys are new ones: nobody writes the old ones again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field

END = b"end"
"""The writer of the last line of a log: who reads that has read all."""

ROUNDS_OF_A_KEY = 20


def tail_of(number: int) -> bytes:
    """Of some length or other, and different from those beside it."""
    return (b"%d." % number * 50)[: 40 + number % 57]


def line_of(writer: bytes, number: int) -> bytes:
    """A numbered line, with its newline."""
    return b"%s %d %s\n" % (writer, number, tail_of(number))


@dataclass(frozen=True)
class Keys:
    """The keys of a writer.

    writer   its name, which all its keys begin with
    count    keys of a round, a prime: any order then comes to each of them
    renewed  old keys give way to new ones
    """

    writer: str
    count: int
    renewed: bool = False

    def key(self, number: int) -> str:
        """Of the record with a number."""
        turn, within = divmod(number, self.count)
        key = (within * (1 + turn % (self.count - 1)) + turn) % self.count
        return f"{self.writer}{key}.{turn // ROUNDS_OF_A_KEY}" if self.renewed else f"{self.writer}{key}"

    def is_tombstone(self, number: int) -> bool:
        """Whether the record with a number deletes its key."""
        return number % 5 == 3

    def value(self, number: int) -> str | None:
        """Of the record with a number."""
        if self.is_tombstone(number):
            return None
        return f"{self.writer} {number} {tail_of(number).decode()}"

    def line(self, number: int) -> bytes:
        """The record, as a line to append."""
        record = {
            "key": self.key(number),
            "value": self.value(number),
            "headers": {"n": f"{self.writer} {number}"},
        }
        return json.dumps(record, separators=(",", ":")).encode() + b"\n"

    def latest(self, number: int, oldest: int) -> dict[str, int]:
        """The number of each key's last record, once the record with `number` is written; where keys are renewed,
        of those that were written since the record `oldest`."""
        # A round comes to every key once, so that the last two hold every key that is still written.
        first = oldest if self.renewed else max(0, number - 2 * self.count)
        return {self.key(each): each for each in range(first, number + 1)}


@dataclass
class Faults:
    """What went wrong, in words: the first of it, and how much there was."""

    first: list[str] = field(default_factory=list)
    count: int = 0

    def add(self, words: str) -> None:
        """One more."""
        self.count += 1
        if len(self.first) < 20:
            self.first.append(words)


@dataclass
class Numbered:
    """Numbered lines in the order of their log.

    faults    what is wrong with them
    source    whose lines they are, in words
    complete  they are all that was written: each writer's first one is its number 0
    jumping   lines may be missing: what comes has to come after what came
    last      the number of each writer's last line
    """

    faults: Faults
    source: str
    complete: bool = False
    jumping: bool = False
    last: dict[bytes, int] = field(default_factory=dict)

    def add(self, line: bytes) -> tuple[bytes, int] | None:
        """One more line, without its newline: its writer and number, None where it is no such line."""
        try:
            writer, number_text, tail = line.split(b" ")
            number = int(number_text)
        except ValueError:
            self.faults.add(f"{self.source}: expected a numbered line, found {line[:200]!r}")
            return None
        if tail != tail_of(number):
            self.faults.add(f"{self.source}: expected the line of {writer!r} {number}, found {line[:200]!r}")
        before = self.last.get(writer, -1)
        wanted = before + 1
        may_jump = self.jumping or (before == -1 and not self.complete)
        if number < wanted or (number > wanted and not may_jump):
            self.faults.add(f"{self.source}: of {writer!r} expected number {wanted}, found {number}")
        self.last[writer] = number
        return writer, number


@dataclass(frozen=True, slots=True)
class Keyed:
    """A record of a keyed writer, as a line of jsonl shows it."""

    offset: int
    writer: str
    number: int
    key: str
    value: str | None


def read_keyed(line: bytes) -> Keyed:
    """A line of `log.jsonl`. ValueError, KeyError where it is none."""
    record = json.loads(line)
    writer, number = record["headers"][0]["value"].split(" ")
    return Keyed(record["offset"], writer, int(number), record["key"], record["value"])


@dataclass
class Compacted:
    """What readers of one compacted partition found, one pass after the other.

    writers   those that append to it, by name
    known     writer and number of every offset that was seen
    keys      of each writer, those that were seen in this partition
    """

    faults: Faults
    source: str
    writers: dict[str, Keys]
    known: dict[int, tuple[str, int]] = field(default_factory=dict)
    keys: dict[str, set[str]] = field(default_factory=dict)

    def check(self, lines: Iterable[bytes]) -> int:
        """The lines of the whole log, as a reader got them. Gives how many there were."""
        offset, count = -1, 0
        numbers: dict[str, list[int]] = {}
        for line in lines:
            count += 1
            try:
                record = read_keyed(line)
            except (ValueError, KeyError, IndexError, TypeError):
                self.faults.add(f"{self.source}: expected a keyed record, found {line[:200]!r}")
                continue
            if record.offset <= offset:
                self.faults.add(f"{self.source}: offset {record.offset} came behind {offset}")
            offset = record.offset
            mark = (record.writer, record.number)
            if self.known.setdefault(offset, mark) != mark:
                self.faults.add(f"{self.source}: offset {offset} was {self.known[offset]}, and is {mark}")
            keys = self.writers.get(record.writer)
            if keys is None:
                if record.writer != END.decode():
                    self.faults.add(f"{self.source}: {record.writer} writes elsewhere")
                continue
            if (keys.key(record.number), keys.value(record.number)) != (record.key, record.value):
                self.faults.add(f"{self.source}: expected {keys.line(record.number)!r}, found {record}")
            mine = numbers.setdefault(record.writer, [])
            if mine and record.number <= mine[-1]:
                self.faults.add(f"{self.source}: {mark} came behind number {mine[-1]}")
            mine.append(record.number)
        for writer, mine in numbers.items():
            self._check_last(self.writers[writer], mine, mine[-1])
        return count

    def _check_last(self, keys: Keys, numbers: list[int], newest: int) -> None:
        """The last value of each key is the one that was written last, up to the newest record that is there."""
        seen = self.keys.setdefault(keys.writer, set())
        found = {keys.key(number): number for number in numbers}
        seen.update(found)
        for key, number in keys.latest(newest, numbers[0]).items():
            if key not in seen or found.get(key) == number:
                continue
            # A tombstone goes after its time. One that was the very last record may have gone as well, with the
            # value before it.
            if key not in found and (keys.is_tombstone(number) or self._deleted_next(keys, key, newest)):
                continue
            self.faults.add(
                f"{self.source}: the last record of {key} is number {found.get(key)}, expected {number}, "
                f"up to {newest}"
            )

    def _deleted_next(self, keys: Keys, key: str, newest: int) -> bool:
        """Whether a tombstone for the key was written soon after."""
        following = range(newest + 1, newest + 2 * keys.count)
        return any(keys.is_tombstone(number) for number in following if keys.key(number) == key)
