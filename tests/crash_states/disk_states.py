"""The states in which a crash may leave a disk, built of a recording.

A process that dies leaves all that it has written: the calls up to one, and of that one the whole or half a write.

A machine that loses power leaves what was fsynced. Of the rest of each file there is any prefix of its changes, also
half of the last write, or zeros in its place. Of names that were made, renamed and removed since their directory was
fsynced there are the first ones, all but one, or one alone: a file system may save them in another order than they were
given. All combinations would be too many: where names are missing, of the contents there is all or nothing, and the
other way round; and some that are drawn.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

from recording import Data, Entry, Name, Recording, Sync, Tree, apply

_DRAWN = 4
"""Combinations of names and contents that are drawn at each call."""


class Loss(Enum):
    """What is lost in a crash."""

    PROCESS = "the process dies"
    POWER = "power is lost"


@dataclass(frozen=True, slots=True)
class DiskState:
    """A state of the disk.

    loss   by what it came about
    calls  so many calls were made before
    tree   what is there
    torn   the half of a write behind these calls, where the process died in the middle of one
    """

    loss: Loss
    calls: int
    tree: Tree
    torn: Data | None = None


@dataclass
class _Disk:
    """A disk, as programs see it and as it is.

    names, contents  as programs see it
    safe             the entries that are surely on disk
    waiting          changes of names since
    versions         by inode: the content that is surely on disk, and each one since
    torn             by inode: the newest content, if half of its last write is missing
    """

    recording: Recording
    names: dict[Entry, int]
    contents: dict[int, bytes]
    safe: dict[Entry, int]
    waiting: list[Name] = field(default_factory=list)
    versions: dict[int, list[bytes]] = field(default_factory=dict)
    torn: dict[int, bytes] = field(default_factory=dict)

    @classmethod
    def of(cls, recording: Recording) -> _Disk:
        names, contents = dict(recording.names), dict(recording.contents)
        return cls(recording, names, contents, dict(names))

    def do(self, call: Name | Data | Sync) -> None:
        if isinstance(call, Name):
            apply(self.names, call)
            self.waiting.append(call)
        elif isinstance(call, Data):
            self.versions.setdefault(call.inode, [self.contents[call.inode]]).append(call.content)
            self.torn[call.inode] = call.torn
            self.contents[call.inode] = call.content
        elif call.inode in self.recording.directories:
            left = []
            for each in self.waiting:
                if any(entry[0] == call.inode for entry, _ in each.changes):
                    apply(self.safe, each)
                else:
                    left.append(each)
            self.waiting = left
        else:
            self.versions.pop(call.inode, None)

    def tree(self, names: dict[Entry, int], contents: dict[int, bytes]) -> Tree:
        return Tree.of(self.recording.number, names, contents, self.recording.directories)

    # -- what power leaves ----------------------------------------------------------------------------

    def possible_names(self) -> Iterator[dict[Entry, int]]:
        count = len(self.waiting)
        chosen = {tuple(range(first)) for first in range(count + 1)}
        chosen |= {(one,) for one in range(count)}
        chosen |= {tuple(each for each in range(count) if each != one) for one in range(count)}
        for numbers in sorted(chosen):
            yield self.with_names(numbers)

    def with_names(self, numbers: tuple[int, ...]) -> dict[Entry, int]:
        names = dict(self.safe)
        for number in numbers:
            apply(names, self.waiting[number])
        return names

    def oldest(self) -> dict[int, bytes]:
        return {**self.contents, **{inode: found[0] for inode, found in self.versions.items()}}

    def of_file(self, inode: int) -> list[bytes]:
        """The contents that one file may have."""
        found = list(self.versions[inode])
        before, after = found[-2:]
        return [*found, self.torn[inode], before + bytes(max(0, len(after) - len(before)))]

    def possible_contents(self) -> Iterator[dict[int, bytes]]:
        nothing = self.oldest()
        yield self.contents
        yield nothing
        for inode in self.versions:
            for content in self.of_file(inode):
                yield {**self.contents, inode: content}
                yield {**nothing, inode: content}

    def drawn(self, chance: random.Random) -> tuple[dict[Entry, int], dict[int, bytes]]:
        numbers = tuple(each for each in range(len(self.waiting)) if chance.random() < 0.5)
        contents = dict(self.contents)
        for inode in self.versions:
            contents[inode] = chance.choice(self.of_file(inode))
        return self.with_names(numbers), contents


def states(recording: Recording, first: int, chance: random.Random) -> Iterator[DiskState]:
    """Yield the states behind each of the calls from `first` on."""
    disk = _Disk.of(recording)
    for number, call in enumerate(recording.calls):
        if number >= first and isinstance(call, Data) and call.torn != call.content:
            torn = {**disk.contents, call.inode: call.torn}
            half = Data(call.inode, call.torn, call.torn)
            yield DiskState(Loss.PROCESS, number, disk.tree(disk.names, torn), half)
        disk.do(call)
        if number < first:
            continue
        yield DiskState(Loss.PROCESS, number + 1, disk.tree(disk.names, disk.contents))
        for tree in _powerless(disk, chance):
            yield DiskState(Loss.POWER, number + 1, tree)


def _powerless(disk: _Disk, chance: random.Random) -> Iterator[Tree]:
    for contents in disk.possible_contents():
        yield disk.tree(disk.names, contents)
        if disk.waiting:
            yield disk.tree(disk.safe, contents)
    if disk.waiting:
        oldest = disk.oldest()
        for names in disk.possible_names():
            yield disk.tree(names, disk.contents)
            if disk.versions:
                yield disk.tree(names, oldest)
        for _ in range(_DRAWN):
            yield disk.tree(*disk.drawn(chance))
