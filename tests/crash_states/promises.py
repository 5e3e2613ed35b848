"""What must be found after a crash, of what was acknowledged, and of what was brought onto the disk.

A process that dies: what was acknowledged is there, and nothing else; of an operation in the middle all or nothing,
or, where it consists of several steps, the first ones.

A machine that loses power: what was fsynced is there, and what was removed since may be. Of the rest anything may be
missing, also from the middle (`fs/SEMANTICS.md`, under Durability), but no record stands twice, at another offset or in
another order, and a batch, a transaction and an inbox's batch are there as a whole or not at all.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from operations import OPERATIONS, Seen, Shown

Unit = frozenset[tuple[str, Shown]]


@dataclass(frozen=True)
class Step:
    """One operation of a sequence that was done.

    name    its name
    end     how many calls were made when it was done
    before  what showed then
    after   what showed when it was done
    """

    name: str
    end: int
    before: Seen
    after: Seen

    @property
    def appended(self) -> Unit:
        return frozenset(_each(self.after) - _each(self.before))

    @property
    def removed(self) -> Unit:
        return frozenset(_each(self.before) - _each(self.after))


def _each(seen: Seen) -> set[tuple[str, Shown]]:
    return {(name, record) for name, records in seen.records.items() for record in records}


@dataclass
class _Disk:
    """What is known to be on disk.

    records    records that must be there
    starts     by partition: no offset below is there
    positions  the values that the group's position may have
    keys       by key of k-0: the offset from which on there must be a record of it
    """

    records: set[tuple[str, Shown]]
    starts: dict[str, int]
    positions: list[int | None]
    keys: dict[bytes, int]

    @classmethod
    def of(cls, seen: Seen) -> _Disk:
        return cls(_each(seen), dict(seen.starts), [seen.position], _keys(seen))

    def copy(self) -> _Disk:
        return _Disk(set(self.records), dict(self.starts), list(self.positions), dict(self.keys))

    def begin(self, step: Step) -> None:
        """An operation is under way: what it removes may be gone, what it sets may be set."""
        self.records -= step.removed
        if step.after.position not in self.positions:
            self.positions.append(step.after.position)

    def end(self, step: Step) -> None:
        """It is done."""
        synced = OPERATIONS[step.name].synced
        for name in synced & step.after.records.keys():
            self.records = {each for each in self.records if each[0] != name}
            self.records |= {(name, record) for record in step.after.records[name]}
            if name == "k-0":
                self.keys = _keys(step.after)
        if "position" in synced:
            self.positions = [step.after.position]
        if step.name in ("delete_records", "restart"):
            self.starts = dict(step.after.starts)


def _keys(seen: Seen) -> dict[bytes, int]:
    return {key: offset for offset, key, _ in seen.records.get("k-0", ()) if key is not None}


@dataclass
class History:
    """A sequence that was done, and what each of its last operation's states may show.

    steps      its operations
    sequences  by value: the sequence number of the idempotent producer's records
    """

    steps: Sequence[Step]
    sequences: Mapping[bytes, int]
    _under_way: _Disk = field(init=False)
    _done: _Disk = field(init=False)

    def __post_init__(self) -> None:
        disk = _Disk.of(self.steps[0].before)
        for step in self.steps[:-1]:
            disk.begin(step)
            disk.end(step)
        disk.begin(self.last)
        self._under_way = disk.copy()
        disk.end(self.last)
        self._done = disk
        self._ever = _each(self.steps[0].before).union(*(_each(step.after) for step in self.steps))
        self._removed = frozenset[tuple[str, Shown]]().union(*(step.removed for step in self.steps))
        self._units = [
            step.appended
            for step in self.steps
            if OPERATIONS[step.name].whole and step.name not in ("undelete", "create")
        ]

    @property
    def last(self) -> Step:
        return self.steps[-1]

    # -- the process dies -----------------------------------------------------------------------------

    def process(self, found: Seen, whole: bool, done: bool) -> Iterator[str]:
        """Yield what breaks a promise where the process has died in the last operation, or when it was done."""
        before, after = self.last.before, self.last.after
        if not whole:
            before, after = only(before, found.records), only(after, found.records)
        if done:
            yield from unlike(found, after)
        elif OPERATIONS[self.last.name].whole:
            if any(unlike(found, after)) and any(unlike(found, before)):
                yield f"neither as before nor as behind {self.last.name}: {found}"
        else:
            yield from _between(before, after, found)

    # -- power is lost --------------------------------------------------------------------------------

    def power(self, found: Seen, whole: bool, done: bool) -> Iterator[str]:
        """Yield what breaks a promise where power was lost."""
        disk = self._done if done else self._under_way
        after = self.last.after
        there = _each(found)
        required = {each for each in disk.records if whole or each[0] in found.records}
        if not done:
            required = {each for each in required if each[0] in found.records or each[0] in after.records}
        yield from (f"fsynced, and gone: {each}" for each in sorted(required - there, key=str))
        yield from (f"from nowhere: {each}" for each in sorted(there - self._ever, key=str))
        yield from _disordered(found)
        for name, start in found.starts.items():
            if start < disk.starts.get(name, 0):
                yield f"{name} starts at {start}, and its records were deleted up to {disk.starts[name]}"
        for unit in self._units:
            left = {each for each in unit - self._removed if whole or each[0] in found.records}
            if not left <= there and left & there:
                yield f"a part alone: {sorted(left & there, key=str)} without {sorted(left - there, key=str)}"
        for key, offset in disk.keys.items():
            newest = max((each[0] for each in found.records.get("k-0", ()) if each[1] == key), default=-1)
            if newest < offset and key in _keys(after):
                yield f"the value of {key!r} that was fsynced, and all newer ones, are gone"
        yield from self._sequences(found)
        if whole:
            yield from self._others(found, disk, done)

    def _sequences(self, found: Seen) -> Iterator[str]:
        shown = [self.sequences.get(value or b"", -1) for _, _, value in found.records.get("t-0", ())]
        gone = {self.sequences.get(record[2] or b"", -1) for _, record in self._removed}
        # A transaction whose marker was cut off hides what is behind it, also where nothing has crashed.
        there = {
            self.sequences.get(value or b"", -1) for _, _, value in self.last.after.records.get("t-0", ())
        }
        hidden = {*self.sequences.values()} - there
        last, known = max(shown, default=-1), found.sequences.get("t-0", -1)
        if known != last and known not in gone | hidden:
            yield f"the idempotent producer is known up to {known}, and its records show up to {last}"

    def _others(self, found: Seen, disk: _Disk, done: bool) -> Iterator[str]:
        before, after = self.last.before, self.last.after
        if found.position not in disk.positions:
            yield f"position {found.position}, expected one of {disk.positions}"
        states = (after,) if done else (before, after)
        if all(found.setting != each.setting for each in states):
            yield f"setting {found.setting}, expected {[each.setting for each in states]}"
        if all(found.committed != each.committed for each in states):
            yield f"committed {set(found.committed)}, expected {[set(each.committed) for each in states]}"
        if all(found.records.keys() != each.records.keys() for each in states):
            yield f"partitions {[*found.records]}, expected {[[*each.records] for each in states]}"
        if not done:
            for name in OPERATIONS[self.last.name].synced & found.records.keys() - before.records.keys():
                if found.records[name] != after.records[name]:
                    yield f"{name} is back with {found.records[name]}"


def only(seen: Seen, partitions: Container[str]) -> Seen:
    """The same of some partitions alone."""
    return Seen(
        {name: each for name, each in seen.records.items() if name in partitions},
        {name: each for name, each in seen.starts.items() if name in partitions},
        {name: each for name, each in seen.sequences.items() if name in partitions},
    )


def unlike(found: Seen, expected: Seen) -> Iterator[str]:
    """Yield in what something differs from what it should show."""
    for name in ("records", "starts", "sequences", "position", "committed", "setting"):
        mine, other = getattr(found, name), getattr(expected, name)
        if mine != other:
            yield f"{name}: found {mine}, expected {other}"


def _between(before: Seen, after: Seen, found: Seen) -> Iterator[str]:
    yield from _disordered(found)
    if not before.records.keys() == found.records.keys() == after.records.keys():
        yield f"partitions {[*found.records]}"
        return
    for name, records in found.records.items():
        old, new, there = set(before.records[name]), set(after.records[name]), set(records)
        if missing := (old & new) - there:
            yield f"{name}: acknowledged, and gone: {sorted(missing, key=str)}"
        if strange := there - old - new:
            yield f"{name}: from nowhere: {sorted(strange, key=str)}"
        added = [each for each in after.records[name] if each not in old]
        if [each for each in added if each in there] != added[: len(there & set(added))]:
            yield f"{name}: not the first of what was appended: {records}"
        if not before.starts[name] <= found.starts[name] <= after.starts[name]:
            yield f"{name}: starts at {found.starts[name]}"
        if found.sequences[name] not in (before.sequences[name], after.sequences[name]):
            yield f"{name}: sequence {found.sequences[name]}"
    for what in ("position", "committed", "setting"):
        if getattr(found, what) not in (getattr(before, what), getattr(after, what)):
            yield f"{what}: {getattr(found, what)}"


def _disordered(found: Seen) -> Iterator[str]:
    for name, records in found.records.items():
        if any(a[0] >= b[0] for a, b in pairwise(records)):
            yield f"{name}: out of order: {records}"
