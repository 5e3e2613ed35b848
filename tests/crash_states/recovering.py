"""A recovery that is cut short in its turn: its calls, recorded, behind those that led to the state that it finds.

What the process had written when it died may still wait to be brought onto the disk when the recovery begins, which
looks at it as any program does. So a loss of power in the recovery of such a state loses that too. A state that a loss
of power has left is all on disk.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

from disk_states import DiskState, Loss, states
from recording import Call, Data, Name, Recording, Sync, Tree, apply


@dataclass(frozen=True, slots=True)
class Unrecovered:
    """A state that needs a recovery.

    state    the state
    topic    whose partition is recovered; empty for a whole store
    """

    state: DiskState
    topic: str


@dataclass(frozen=True, slots=True)
class Recovery:
    """A recovery that was recorded.

    recording  its calls, and those of a flush behind it
    topics     the topics whose partitions were flushed
    flushed    how many calls were made when they were
    """

    recording: Recording
    topics: Sequence[str]
    flushed: int


T = TypeVar("T")


@dataclass
class Sample(Generic[T]):
    """A random sample of different things, each as likely as any other, whatever their number.

    size    how many are kept
    chance  chooses them
    kept    those that are
    """

    size: int
    chance: random.Random
    kept: list[T] = field(default_factory=list)
    _seen: set[object] = field(default_factory=set)

    def offer(self, key: object, each: T) -> None:
        """Keep it perhaps, if nothing with this key was offered before."""
        if not self.size or key in self._seen:
            return
        self._seen.add(key)
        if len(self.kept) < self.size:
            self.kept.append(each)
        elif (at := self.chance.randrange(len(self._seen))) < self.size:
            self.kept[at] = each


def states_of_recovery(
    recording: Recording, found: DiskState, recovery: Recovery, chance: random.Random
) -> Iterator[tuple[int, DiskState]]:
    """Yield the states behind each call of the recovery of a state that was built of `recording`, and how many of the
    recovery's calls were made."""
    base, done = (
        (_on_disk(found.tree), []) if found.loss is Loss.POWER else (recording, _calls_to(recording, found))
    )
    for state in states(_behind(base, done, recovery.recording), len(done), chance):
        yield state.calls - len(done), state


def _calls_to(recording: Recording, found: DiskState) -> list[Call]:
    """The calls that were made when the process died; the last one may be half of a write."""
    done = recording.calls[: found.calls]
    return done if found.torn is None else [*done, found.torn]


def _on_disk(tree: Tree) -> Recording:
    """A recording that begins with these files, and does nothing."""
    numbers = itertools.count(2)
    found = Recording(Path(), 1, directories={1})
    directories = {"": 1}
    for path, content in sorted(tree.files.items()):
        above, _, name = path.rpartition("/")
        inode = found.names[directories[above], name] = next(numbers)
        if content is None:
            directories[path] = inode
            found.directories.add(inode)
        else:
            found.contents[inode] = content
    return found


def _behind(base: Recording, done: list[Call], recovery: Recording) -> Recording:
    """The calls of a recovery behind others. It was recorded in a copy, whose inode numbers are others."""
    names = dict(base.names)
    for call in done:
        if isinstance(call, Name):
            apply(names, call)
    numbers = {recovery.number: base.number}
    for (above, name), inode in recovery.names.items():
        numbers[inode] = names[numbers[above], name]
    made = (recovery.contents.keys() | recovery.directories) - numbers.keys()
    numbers |= {inode: -inode for inode in made}
    return Recording(
        base.root,
        base.number,
        base.names,
        {**base.contents, **{numbers[inode]: b"" for inode in made & recovery.contents.keys()}},
        base.directories | {numbers[inode] for inode in recovery.directories},
        [*done, *(_renumbered(call, numbers) for call in recovery.calls)],
    )


def _renumbered(call: Call, numbers: dict[int, int]) -> Call:
    if isinstance(call, Data):
        return Data(numbers[call.inode], call.content, call.torn)
    if isinstance(call, Sync):
        return Sync(numbers[call.inode])
    return Name(
        tuple(
            ((numbers[above], name), None if inode is None else numbers[inode])
            for (above, name), inode in call.changes
        )
    )
