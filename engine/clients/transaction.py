"""A transaction of a program: records for several topics, which are appended all or none."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from topicfs.engine import batch as batches
from topicfs.engine.clients.lines import lines
from topicfs.engine.errors import (
    InvalidProducerEpochError,
    InvalidTransactionStateError,
    UnknownPartitionError,
)
from topicfs.engine.files.listing import PartitionKey
from topicfs.engine.groups.groups import Groups, PositionCommit, Worker
from topicfs.engine.groups.names import escaped
from topicfs.engine.inbox.routing import by_partition, choose
from topicfs.engine.inbox.rows import NO_PARTITION
from topicfs.engine.partition.partition import Partition
from topicfs.engine.record import Record
from topicfs.engine.store.store import Store
from topicfs.engine.transactions.coordinator import Chunk
from topicfs.engine.transactions.states import Transaction as Holder
from topicfs.engine.unlocked.place import place_of

Sent = list[tuple[Record, int | None]]
"""Records for a topic, each with the partition that it names, or None."""


class Transaction:
    """A transaction, of a store that is opened here, of one at a path, or of one that is mounted there.

        with Transaction("data", "t1") as transaction:
            transaction.send("orders", b"10 apples", key=b"ann")
            transaction.send("audit", b"ann ordered", partition=1)

    What the block has sent is committed at its end, and nothing of it if it raises. The records are in memory until
    then. Beginning it fences whoever began one of this name before: his commit is an InvalidProducerEpochError. Other
    errors of a mount are OSErrors, with the errnos of its contract.
    """

    def __init__(self, where: Store | Path | str, transactional_id: str) -> None:
        self._where = where
        self._id = transactional_id
        self._sent: dict[str, Sent] = {}
        self._positions: list[PositionCommit] = []
        self._held = contextlib.ExitStack()
        self._store: Store | None = None
        self._holder: Holder | None = None
        self._directory: Path | None = None
        self._epoch = self._opened = -1

    def __enter__(self) -> Self:
        self.begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.commit()
        else:
            self.abort()

    def begin(self) -> None:
        """Begin the transaction."""
        if self._store is not None or self._directory is not None:
            raise InvalidTransactionStateError(
                f"{self._id}: expected a transaction that is to begin, found it begun"
            )
        if isinstance(self._where, Store):
            self._store = self._where
        else:
            place = place_of(str(self._where))
            if place.mount is not None:
                directory = place.mount / "transactions" / self._id
                if directory.exists():
                    shutil.rmtree(directory)
                directory.mkdir()
                self._opened = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
                self._held.callback(os.close, self._opened)
                self._directory, self._epoch = directory, self._present_epoch(directory)
                return
            self._store = self._held.enter_context(Store.open(place.backing))
        try:
            timeout = self._store.daemon.transaction_timeout_ms
            self._holder = self._store.transactions.init_producer(self._id, timeout)
        except BaseException:
            self._end()
            raise

    def send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        partition: int | None = None,
        timestamp: int | None = None,
        headers: tuple[tuple[str, bytes | None], ...] = (),
    ) -> None:
        """Add a record: for a partition, or for the one that Kafka's default partitioner gives its key."""
        if self._store is None and self._directory is None:
            raise InvalidTransactionStateError(f"{self._id}: expected a transaction that is begun")
        self._sent.setdefault(topic, []).append((Record(value, key, timestamp, headers), partition))

    def send_positions(
        self,
        group: str,
        offsets: Mapping[PartitionKey, int],
        expected: Mapping[PartitionKey, int | None] | None = None,
        member: str | Worker | None = None,
        partitions: Iterable[Partition] = (),
    ) -> None:
        """Add positions of a group, which are set with the records, or not at all.

        expected    positions that must be what is told here, None for none: else the commit is a PositionMovedError,
                    and of a mount an OSError with ECANCELED
        member      the member of the group whose partitions these are; None where it has no members. A Worker, which
                    `Groups.join` gives, is fenced when another one has begun under its name
        partitions  those that were read: the commit is a PositionMovedError where one was deleted since, also where
                    there is another under its name"""
        if self._store is None and self._directory is None:
            raise InvalidTransactionStateError(f"{self._id}: expected a transaction that is begun")
        name, member_id = member if isinstance(member, Worker) else (member, None)
        self._positions.append(
            PositionCommit(group, dict(offsets), dict(expected or {}), name, member_id, tuple(partitions))
        )

    def commit(self) -> None:
        """Append all records, or none, and return when they are on disk and show."""
        try:
            if self._directory is not None:
                self._commit_directory(self._directory)
            elif self._store is not None and self._holder is not None:
                numbers = self._store.topics()
                keys = [(topic, number) for topic in self._sent for number in numbers.get(topic, ())]
                groups = Groups.of(self._store)
                transactions = self._store.transactions
                transactions.make_log()
                # A mount's transactions take the locks in this order too.
                with (
                    transactions.writing(self._holder),
                    groups.in_transaction(self._positions) as positions,
                ):
                    keys += [key for key, _ in positions]
                    chunks = itertools.chain(self._chunks(self._store), positions)
                    transactions.run(self._holder, keys, chunks)
            else:
                raise InvalidTransactionStateError(f"{self._id}: expected a transaction that is begun")
        except BaseException:
            self.abort()
            raise
        self._end()

    def _commit_directory(self, directory: Path) -> None:
        self._check_epoch(directory)
        try:
            for topic, sent in self._sent.items():
                self._write(f"{topic}.jsonl", lines(sent))
            for each in self._positions:
                self._write_positions(each)
            directory.rename(directory.with_name(f"{self._id}.{self._epoch}.commit"))
        except OSError:
            # Somebody may have begun it anew after the first look.
            self._check_epoch(directory)
            raise

    def _write_positions(self, commit: PositionCommit) -> None:
        place = ["groups", escaped(commit.group)]
        if commit.member is not None:
            place += ["members", escaped(commit.member)]
        for depth in range(1, len(place) + 1):
            with contextlib.suppress(FileExistsError):
                os.mkdir("/".join(place[:depth]), dir_fd=self._opened)
        for key, offset in commit.offsets.items():
            words = f"{offset}"
            if key in commit.expected:
                expected = commit.expected[key]
                words += f" if {'none' if expected is None else expected}"
            self._write("/".join([*place, f"{key[0]}-{key[1]}"]), f"{words}\n".encode())

    def _write(self, name: str, data: bytes) -> None:
        """Write a file of the directory that was opened: one of its name that is made anew is another holder's."""
        with open(name, "wb", opener=lambda path, flags: os.open(path, flags, dir_fd=self._opened)) as file:
            file.write(data)

    def abort(self) -> None:
        """Drop all records."""
        if self._directory is not None:
            with contextlib.suppress(FileNotFoundError, InvalidProducerEpochError):
                self._check_epoch(self._directory)
                shutil.rmtree(self._directory)
        self._end()

    @staticmethod
    def _present_epoch(directory: Path) -> int:
        return int(json.loads(directory.with_name(f"{directory.name}.json").read_bytes())["epoch"])

    def _check_epoch(self, directory: Path) -> None:
        """Leave the directory of a later holder alone."""
        found = self._present_epoch(directory)
        if found != self._epoch:
            raise InvalidProducerEpochError(
                f"{self._id}: expected epoch {self._epoch}, found {found}: another holder has taken it over"
            )

    def _end(self) -> None:
        self._sent, self._positions = {}, []
        self._store = self._holder = self._directory = None
        self._held.close()

    def _chunks(self, store: Store) -> Iterator[Chunk]:
        for topic, sent in self._sent.items():
            numbers = store.topics().get(topic)
            if not numbers:
                raise UnknownPartitionError(f"there is no topic {topic}")
            found = batches.columns_of_records([record for record, _ in sent], store.clock())
            named = np.array([NO_PARTITION if to is None else to for _, to in sent], np.int32)
            chosen, _, error = choose(found, named, numbers, numbers[next(_TURNS) % len(numbers)])
            if error is not None:
                raise error
            for number, part in by_partition(found, chosen):
                yield (topic, number), part


_TURNS = itertools.count()
"""Says which partition is next for records without a key."""
