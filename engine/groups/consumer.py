"""A consumer of topics, with the names of Kafka's clients: local, on an open store, or through a mount.

    with Consumer("mnt", "readers") as consumer:
        consumer.subscribe(["orders"])
        for record in consumer.poll(1000):
            print(record.topic, record.partition, record.offset, record.value)
        consumer.commit()

It is a member of its group: what it reads is nobody else's in the group. A call of `poll` is its sign of life. If it
was silent for too long, what it has read cannot be committed any more; the next `poll` joins anew, and goes on from the
group's positions.
"""

from __future__ import annotations

import base64
import json
import os
import time
import uuid
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Protocol, Self

from topicfs.engine.errors import (
    ClosedError,
    EngineError,
    InvalidNameError,
    NotOwnerError,
    OffsetOutOfRangeError,
    PositionMovedError,
    UnknownPartitionError,
)
from topicfs.engine.groups.groups import SESSION_TIMEOUT_MS, Groups, Worker
from topicfs.engine.groups.names import check_name, escaped
from topicfs.engine.partition.partition import Partition
from topicfs.engine.record import Header
from topicfs.engine.store.store import Store
from topicfs.engine.unlocked.place import place_of

TopicPartition = tuple[str, int]
"""A topic and the number of one of its partitions."""

_LOOKS_EACH_S: Final = 0.1

_GONE: Final = (UnknownPartitionError, ClosedError, OffsetOutOfRangeError, FileNotFoundError)
"""What a partition, or a part of it, gives that was deleted just now."""


@dataclass(frozen=True, slots=True)
class ConsumerRecord:
    """A record that was read, with its place."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] = ()


class _Log(Protocol):
    """What a consumer asks of a store, or of a mount of one."""

    def join(self, topics: Collection[str]) -> None: ...

    def heartbeat(self) -> set[TopicPartition] | None:
        """Give a sign of life. Return the partitions that are this member's own, None if it is a member no longer."""

    def incarnation(self, key: TopicPartition) -> object:
        """Return what tells a partition from one that is made again under its name."""

    def position(self, key: TopicPartition) -> int | None: ...

    def bounds(self, key: TopicPartition) -> tuple[int, int]:
        """Return the first offset, and the end that readers see."""

    def records(self, key: TopicPartition, start: int, end: int) -> Iterator[ConsumerRecord]: ...

    def commit(
        self, offsets: Mapping[TopicPartition, int], incarnations: Mapping[TopicPartition, object]
    ) -> None:
        """Set positions, where the partitions are still those that were read."""

    def leave(self) -> None: ...


class Consumer:
    """A member of a group that reads the partitions which it is given.

    where               an open store, or the path of a mount
    group_id            the group, which is made if it is not there
    group_instance_id   the name of this member; one that is started again under its name finds its share, and what had
                        the name before is fenced. Without it the member has a new name, and leaves at `close`
    auto_offset_reset   where to begin without a position: `earliest` or `latest`
    """

    def __init__(
        self,
        where: Store | Path | str,
        group_id: str,
        group_instance_id: str | None = None,
        auto_offset_reset: str = "earliest",
        session_timeout_ms: int = SESSION_TIMEOUT_MS,
    ) -> None:
        if auto_offset_reset not in ("earliest", "latest"):
            raise ValueError(f"auto_offset_reset: expected earliest or latest, found {auto_offset_reset!r}")
        name = group_instance_id or f"consumer-{uuid.uuid4()}"
        check_name(group_id)
        check_name(name)
        self._log: _Log = (
            _Local(where, group_id, name, session_timeout_ms)
            if isinstance(where, Store)
            else _Mounted(Path(where), group_id, name, session_timeout_ms)
        )
        self._is_lasting = group_instance_id is not None
        self._reset = auto_offset_reset
        self._next: dict[TopicPartition, int] = {}
        self._incarnations: dict[TopicPartition, object] = {}
        self._topics: tuple[str, ...] = ()
        self._is_member = False
        self._cut_at: TopicPartition = ("", 0)
        self._failure: tuple[TopicPartition, Exception] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def subscribe(self, topics: Collection[str]) -> None:
        """Join the group, for partitions of these topics."""
        if isinstance(topics, str):
            raise TypeError(f"subscribe: expected a list of topics, found the text {topics!r}")
        self._topics = tuple(topics)
        self._log.join(self._topics)
        self._is_member = True

    def assignment(self) -> set[TopicPartition]:
        """Return the partitions that were this member's own at the last `poll`."""
        return set(self._next)

    def poll(self, timeout_ms: int = 0, max_records: int = 500) -> list[ConsumerRecord]:
        """Return the records that come next in its partitions, at most so many; wait for some as long as that. What
        the call before has returned counts as done: partitions that are to be another's are given up now. Where there
        were more records than that, the next call begins with the partitions that had no turn. Where a partition cannot
        be read, what was read before is returned, and the next call raises the error."""
        if not self._is_member:
            raise NotOwnerError("poll: expected `subscribe` before, which joins the group")
        deadline = time.monotonic() + timeout_ms / 1000
        while True:
            self._take_up(self._heartbeat())
            self._raise_failure()
            found = self._read_some(max_records)
            left = deadline - time.monotonic()
            if found or left <= 0:
                return found
            time.sleep(min(left, _LOOKS_EACH_S))

    def _raise_failure(self) -> None:
        """Raise the error that the call before has met behind the records that it returned."""
        failure, self._failure = self._failure, None
        if failure is not None and failure[0] in self._next:
            raise failure[1]

    def _read_some(self, most: int) -> list[ConsumerRecord]:
        """Read what comes next. Positions move on only when it is returned: what an error, or a signal, keeps from the
        caller comes again."""
        found: list[ConsumerRecord] = []
        behind: dict[TopicPartition, int] = {}
        for key in sorted(self._next, key=lambda key: (key <= self._cut_at, key)):
            try:
                self._read(key, most, found, behind)
            except (EngineError, OSError) as error:
                # The others have their turn first next time.
                self._cut_at = key
                if not found:
                    raise
                self._failure = key, error
                break
            if len(found) >= most:
                self._cut_at = key
                break
        self._next |= behind
        return found

    def position(self, partition: TopicPartition) -> int:
        """Return the offset of the record that the next `poll` gives first."""
        self._check_assigned(partition)
        return self._next[partition]

    def committed(self, partition: TopicPartition) -> int | None:
        """Return the position of the group, None for none."""
        return self._log.position(partition)

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Have the next `poll` go on from an offset."""
        self._check_assigned(partition)
        self._next[partition] = offset
        self._failure = None

    def commit(self, offsets: Mapping[TopicPartition, int] | None = None) -> None:
        """Set the group's positions: behind all that was returned, or to these. NotOwnerError, or through a mount
        OSError, where a partition is another's by now; PositionMovedError where one was deleted since it was read."""
        wanted = dict(self._next if offsets is None else offsets)
        changed = {key: offset for key, offset in wanted.items() if self._log.position(key) != offset}
        if changed:
            self._log.commit(changed, self._incarnations)

    def close(self) -> None:
        """Stop. A member without a lasting name leaves its group."""
        if self._is_member and not self._is_lasting:
            self._log.leave()
        self._is_member = False
        self._next.clear()

    def _check_assigned(self, key: TopicPartition) -> None:
        if key not in self._next:
            raise OffsetOutOfRangeError(f"{key[0]}-{key[1]} is not assigned to this consumer")

    def _heartbeat(self) -> set[TopicPartition]:
        given = self._log.heartbeat()
        if given is None:
            # Others may have read on meanwhile: it goes on from what the group has committed.
            self._next.clear()
            self._log.join(self._topics)
            given = self._log.heartbeat()
        return given or set()

    def _take_up(self, given: set[TopicPartition]) -> None:
        for key in self._next.keys() - given:
            del self._next[key]
        for key in given:
            try:
                incarnation = self._log.incarnation(key)
                if key in self._next and self._incarnations[key] == incarnation:
                    continue
                self._next.pop(key, None)
                position = self._log.position(key)
                start, end = self._log.bounds(key)
            except _GONE:
                self._next.pop(key, None)  # It was deleted; the group will know soon.
                continue
            self._next[key] = (start if self._reset == "earliest" else end) if position is None else position
            self._incarnations[key] = incarnation

    def _read(
        self, key: TopicPartition, most: int, found: list[ConsumerRecord], behind: dict[TopicPartition, int]
    ) -> None:
        """Add records of a partition to those that were found, up to so many, and note the offset behind them."""
        # Where it was deleted, or its first records were, since it was asked for, the next look knows.
        with suppress(*_GONE):
            start, end = self._log.bounds(key)
            first = max(self._next[key], start)
            if first >= end or len(found) >= most:
                return
            for record in self._log.records(key, first, end):
                found.append(record)
                behind[key] = record.offset + 1
                if len(found) >= most:
                    return
            # Behind the last record there may be markers.
            behind[key] = end


class _Local:
    """A store that this process has open."""

    def __init__(self, store: Store, group: str, name: str, timeout_ms: int) -> None:
        self._store, self._groups = store, Groups.of(store)
        self._group, self._name, self._timeout_ms = group, name, timeout_ms
        self._worker: Worker | None = None
        if group not in self._groups:
            self._groups.create(group)

    def join(self, topics: Collection[str]) -> None:
        member = self._groups.members(self._group).get(self._name)
        if member is not None and self._worker is not None:
            self._groups.subscribe(self._group, self._worker, topics, self._timeout_ms)
        elif member is None:
            self._worker = self._groups.join(self._group, self._name, topics, self._timeout_ms)
        else:
            # It was started again.
            self._worker = self._groups.replace(self._group, self._name)
            self._groups.subscribe(self._group, self._worker, topics, self._timeout_ms)

    def heartbeat(self) -> set[TopicPartition] | None:
        assert self._worker is not None, "it has subscribed"
        if self._name not in self._groups.members(self._group):
            return None
        return set(self._groups.heartbeat(self._group, self._worker))

    def incarnation(self, key: TopicPartition) -> object:
        return self._store.partition(*key)

    def position(self, key: TopicPartition) -> int | None:
        found = self._groups.position(self._group, key)
        return None if found is None else found.offset

    def bounds(self, key: TopicPartition) -> tuple[int, int]:
        now = self._store.partition(*key).offsets
        return now.start, now.stable

    def records(self, key: TopicPartition, start: int, end: int) -> Iterator[ConsumerRecord]:
        for record in self._store.partition(*key).records(start, end):
            yield ConsumerRecord(
                *key, record.offset, record.timestamp or 0, record.key, record.value, record.headers
            )

    def commit(
        self, offsets: Mapping[TopicPartition, int], incarnations: Mapping[TopicPartition, object]
    ) -> None:
        read = [found for key in offsets if isinstance(found := incarnations.get(key), Partition)]
        self._groups.commit(self._group, offsets, worker=self._worker, partitions=read)

    def leave(self) -> None:
        try:
            self._groups.leave(self._group, self._name)
        except EngineError:
            return  # Its session was over.


class _Mounted:
    """A mount, through its files."""

    def __init__(self, mount: Path, group: str, name: str, timeout_ms: int) -> None:
        if place_of(str(mount)).mount is None:
            raise InvalidNameError(
                f"path {mount}: expected a mount of topicfs, or an open store, found a directory that is not mounted: "
                "Store.open opens it"
            )
        self._mount, self._timeout_ms = mount, timeout_ms
        group_directory = mount / "groups" / escaped(group)
        group_directory.mkdir(exist_ok=True)
        self._group = group_directory
        self._named = group_directory / "members" / escaped(name)
        # Nobody else has this name of the directory: it goes when another worker begins under the member's name.
        own_id = uuid.uuid4()
        self._me = group_directory / "members" / f".{own_id}"
        self._place = group_directory
        self._subscription = f"session.timeout.ms={timeout_ms} member.id={own_id}"

    def join(self, topics: Collection[str]) -> None:
        self._named.mkdir(exist_ok=True)
        _write(self._named / "subscription", f"{' '.join(topics)} {self._subscription}")
        self._place = self._me

    def heartbeat(self) -> set[TopicPartition] | None:
        try:
            os.utime(self._me)
            names = [name.rpartition("-") for name in os.listdir(self._me)]
        except FileNotFoundError:
            if self._named.exists():
                raise NotOwnerError(f"{self._named.name}: another worker has begun under this name") from None
            return None
        return {(topic, int(number)) for topic, _, number in names}

    def incarnation(self, key: TopicPartition) -> object:
        # A name that is made again has another inode, that of a control file no other does.
        return (self._mount / f"{key[0]}-{key[1]}" / "start").stat().st_ino

    def position(self, key: TopicPartition) -> int | None:
        text = (self._group / f"{key[0]}-{key[1]}").read_text().strip()
        return None if text == "none" else int(text)

    def bounds(self, key: TopicPartition) -> tuple[int, int]:
        directory = self._mount / f"{key[0]}-{key[1]}"
        first, end = (
            int(os.getxattr(directory, f"user.topicfs.{name}_offset")) for name in ("first", "next")
        )
        return first, end

    def records(self, key: TopicPartition, start: int, end: int) -> Iterator[ConsumerRecord]:
        with (self._mount / f"{key[0]}-{key[1]}" / "offset" / f"{start}-{end - 1}.jsonl").open("rb") as lines:
            for line in lines:
                yield _record(json.loads(line))

    def commit(
        self, offsets: Mapping[TopicPartition, int], incarnations: Mapping[TopicPartition, object]
    ) -> None:
        for key, offset in offsets.items():
            if incarnations.get(key) not in (None, self.incarnation(key)):
                raise PositionMovedError(f"{key[0]}-{key[1]} was deleted since it was read")
            _write(self._place / f"{key[0]}-{key[1]}", str(offset))

    def leave(self) -> None:
        try:
            self._named.rmdir()
        except FileNotFoundError:
            return  # Its session was over.


def _record(fields: dict[str, Any]) -> ConsumerRecord:
    headers = tuple((each["key"], _bytes(each, "value")) for each in fields.get("headers", ()))
    return ConsumerRecord(
        fields["topic"],
        fields["partition"],
        fields["offset"],
        fields["timestamp"],
        _bytes(fields, "key"),
        _bytes(fields, "value"),
        headers,
    )


def _bytes(fields: dict[str, Any], name: str) -> bytes | None:
    encoded = fields.get(f"{name}_base64")
    if encoded is not None:
        return base64.b64decode(encoded)
    text = fields.get(name)
    return None if text is None else str(text).encode()


def _write(file: Path, line: str) -> None:
    # Unbuffered: the error is that of the write.
    with file.open("wb", buffering=0) as opened:
        opened.write(f"{line}\n".encode())
