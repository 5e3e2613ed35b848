"""`groups/`: consumer groups, how far each has read, and the workers that share its partitions.

    groups/<group>/                      mkdir makes a group, rmdir removes an empty one
        <topic>-<n>                      its positions; beside each, not listed, what `topicfs.fs.tree.positions` has
        status.json                      members, assignment, generation, positions and lag
        members/<worker>/                mkdir joins, touch is a sign of life, rmdir leaves
            <topic>-<n>                  each partition that is the worker's own
            subscription                 not listed: the topics, session.timeout.ms, partition.assignment.strategy

A name that cannot be a file's is percent-escaped.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from topicfs.engine.errors import InvalidNameError, NotOwnerError, shown
from topicfs.engine.files.integers import parse_int32
from topicfs.engine.format.paths import parse_partition_directory, validate_topic
from topicfs.engine.groups.groups import Worker
from topicfs.engine.groups.names import escaped, named, named_among
from topicfs.engine.groups.records import Member
from topicfs.fs import errors
from topicfs.fs.context import Context
from topicfs.fs.entry import Directory, Entry, FleetingFile
from topicfs.fs.formats import Format
from topicfs.fs.tree.control_files import ControlFile, TakeBack
from topicfs.fs.tree.positions import LagFile, NextFile, PendingFile, PositionFile, Reader
from topicfs.fs.tree.store_entry import StoreEntry

MEMBERS: Final = "members"
STATUS: Final = "status.json"
SUBSCRIPTION: Final = "subscription"
_TIMEOUT: Final = "session.timeout.ms"
_MEMBER_ID: Final = "member.id"
_STRATEGY: Final = "partition.assignment.strategy"


@dataclass(eq=False)
class GroupsDirectory(StoreEntry, Directory):
    """All groups."""

    permissions = 0o777

    @property
    def is_current(self) -> bool:
        return True

    def names(self) -> Iterable[str]:
        return sorted(map(escaped, self.context.groups.names()))

    def lookup(self, name: str) -> Entry:
        group = named_among(name, self.context.groups.names)
        if group is None or group not in self.context.groups:
            raise self.missing(name)
        return GroupDirectory(self.child(name), self.context, group)

    def create_directory(self, name: str) -> None:
        self.context.groups.create(named(name))

    def remove_directory(self, name: str) -> None:
        group = named_among(name, self.context.groups.names)
        if group is None:
            raise self.missing(name)
        self.context.groups.remove(group)
        self.context.group_refusals.pop(name, None)


@dataclass(eq=False)
class GroupDirectory(StoreEntry, Directory):
    """One group. Its positions are listed; each partition's can be set."""

    group: str

    permissions = 0o777

    @property
    def is_current(self) -> bool:
        return self.group in self.context.groups

    def names(self) -> Iterable[str]:
        yield from (STATUS, MEMBERS)
        for topic, number in sorted(self.context.groups.positions(self.group)):
            yield f"{topic}-{number}"

    def lookup(self, name: str) -> Entry:
        if name == STATUS:
            return GroupStatusFile(self.child(name), self.context, self.group)
        if name == MEMBERS:
            return MembersDirectory(self.child(name), self.context, self.group)
        found = entry_beside(self, name, self.context, self.group, None)
        if found is None:
            raise self.missing(name)
        return found

    def remove_directory(self, name: str) -> None:
        raise errors.NotSupportedError(f"{self.child(name)} cannot be removed")


def entry_beside(
    directory: Directory, name: str, context: Context, group: str, worker: Worker | None
) -> Entry | None:
    """Return the entry of a position, or of what lies beside it; None where the name is of neither."""
    found = _place(name)
    if found is None:
        return None
    key, rest = found
    path = directory.child(name)
    reader = Reader(context, group, key, worker)
    if key not in context.store and (rest or reader.position() is None):
        return None
    return _BESIDE[rest](path, reader) if rest else PositionFile(path, reader)


def _place(name: str) -> tuple[tuple[str, int], str] | None:
    """Return the partition that a position is of, and by which end of the name what lies beside it is meant."""
    rest = next((suffix for suffix in _BESIDE if name.endswith(suffix)), "")
    try:
        topic, number, unwanted = parse_partition_directory(name.removesuffix(rest))
    except InvalidNameError:
        return None
    return None if unwanted else ((topic, number), rest)


def _pending(path: str, reader: Reader, format: Format) -> Entry:
    return PendingFile(path, reader.context.views(*reader.key), reader, format)


_BESIDE: Final[Mapping[str, Callable[[str, Reader], Entry]]] = {
    ".next": lambda path, reader: NextFile(path, reader.context, reader),
    ".lag": lambda path, reader: LagFile(path, reader.context, reader),
    **{f".pending.{fmt.suffix}": partial(_pending, format=fmt) for fmt in Format},
}
"""What lies beside a position, by the end of its name."""


@dataclass(eq=False)
class GroupStatusFile(FleetingFile):
    """The status of a group as JSON."""

    context: Context
    group: str

    def make(self) -> bytes:
        refusal = self.context.group_refusals.get(escaped(self.group))
        status = {**self.context.groups.status(self.group), "last_refusal": refusal}
        return json.dumps(status, indent=2).encode() + b"\n"


@dataclass(eq=False)
class MembersDirectory(StoreEntry, Directory):
    """The members of a group."""

    group: str

    permissions = 0o777

    def names(self) -> Iterable[str]:
        return sorted(map(escaped, self.context.groups.members(self.group)))

    def lookup(self, name: str) -> Entry:
        members = self.context.groups.members(self.group)
        by_id = {f".{_own_id(each)}": each for each in members.values()}
        member = members.get(named_among(name, lambda: members) or "") or by_id.get(name)
        if member is None:
            raise self.missing(name)
        worker = Worker(member.name, member.member_id)
        return MemberDirectory(self.child(name), self.context, self.group, worker)

    def create_directory(self, name: str) -> None:
        self.context.groups.join(self.group, named(name))

    def remove_directory(self, name: str) -> None:
        self.context.groups.leave(self.group, named(name))


@dataclass(eq=False)
class MemberDirectory(StoreEntry, Directory):
    """A member of a group, with the partitions that are its own."""

    group: str
    worker: Worker

    permissions = 0o777

    def set_times(self, accessed_ns: int | None, modified_ns: int | None) -> None:
        """Take a sign of life."""
        self.context.groups.heartbeat(self.group, self.worker)

    def names(self) -> Iterable[str]:
        member = _member(self.context, self.group, self.worker)
        for topic, number in sorted(self.context.groups.owned(self.group, member)):
            yield f"{topic}-{number}"

    def lookup(self, name: str) -> Entry:
        if name == SUBSCRIPTION:
            return SubscriptionFile(self.child(name), self.context, self.group, self.worker)
        found, place = entry_beside(self, name, self.context, self.group, self.worker), _place(name)
        member = _member(self.context, self.group, self.worker)
        own = member.given | self.context.groups.owned(self.group, member)
        if found is None or place is None or place[0] not in own:
            raise self.missing(name)
        return found

    def remove_directory(self, name: str) -> None:
        raise errors.NotSupportedError(f"{self.child(name)} cannot be removed")


@dataclass(eq=False)
class SubscriptionFile(StoreEntry, ControlFile):
    """What a member has subscribed to: a line for each topic, and its settings."""

    group: str
    worker: Worker

    def content(self) -> bytes:
        member = _member(self.context, self.group, self.worker)
        metadata = self.context.groups.state(self.group).metadata
        lines = [*sorted(member.topics), f"{_TIMEOUT}={member.session_timeout_ms}"]
        if metadata is not None:
            lines.append(f"{_STRATEGY}={metadata.strategy}")
        lines.append(f"{_MEMBER_ID}={_own_id(member)}")
        return "".join(f"{line}\n" for line in lines).encode()

    def apply(self, lines: Sequence[str]) -> TakeBack | None:
        before = _member(self.context, self.group, self.worker)
        words = [word for line in lines for word in line.split()]
        topics = {word for word in words if "=" not in word}
        for topic in topics:
            validate_topic(topic)
        timeout, strategy, own_id = None, None, None
        for name, _, value in (word.partition("=") for word in words if "=" in word):
            if name == _TIMEOUT and parse_int32(value) is not None:
                timeout = parse_int32(value)
            elif name == _STRATEGY:
                strategy = value
            elif name == _MEMBER_ID:
                own_id = value
            else:
                raise errors.BadInputError(
                    f"expected topics, {_TIMEOUT}=<number>, {_STRATEGY}=<name> or {_MEMBER_ID}=<id>, found "
                    f"{shown(f'{name}={value}')}"
                )
        if own_id is not None:
            self.worker = self.context.groups.replace(self.group, self.worker.name, own_id)
        if words:
            self.context.groups.subscribe(self.group, self.worker, topics or before.topics, timeout, strategy)
        return None  # Partitions were given by it.

    def persist(self) -> None:
        self.context.groups.flush(self.group)


def _own_id(member: Member) -> str:
    return member.member_id.removeprefix(f"{member.name}-")


def _member(context: Context, group: str, worker: Worker) -> Member:
    """Return the member that a worker is. NotOwnerError where it is one no longer."""
    found = context.groups.members(group).get(worker.name)
    if found is None or found.member_id != worker.member_id:
        raise NotOwnerError(f"group {group}: {worker.name} is a member no longer")
    return found
