"""`producers/`: files that are appended once, however often they are tried again.

mkdir producers/p                                makes a producer
cat producers/p/orders-0/next                    the sequence of its next record: how many it has appended there
… > producers/p/orders-0/.x.jsonl                a file as on any disk
mv producers/p/orders-0/.x.jsonl producers/p/orders-0/500.jsonl     appends it, or is EEXIST if that was done before
cat producers/p/epoch;  echo 4 > producers/p/epoch    takes the producer over
mv …/.x.jsonl …/4-500.jsonl                      appends it unless another epoch has begun
rmdir producers/p                                forgets it
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from topicfs.engine.errors import InvalidNameError, LinkedTopicError
from topicfs.engine.format.paths import INBOX, parse_partition_directory
from topicfs.engine.staging.staging import Parts
from topicfs.fs import errors
from topicfs.fs.entry import Directory, Entry, FleetingFile, Handle
from topicfs.fs.inbox.paths import LONGEST, is_hidden
from topicfs.fs.transactions.producer_files import ProducerFiles
from topicfs.fs.tree.control_files import ControlFile, TakeBack
from topicfs.fs.tree.scratch import ScratchFile, ScratchHandle, as_told
from topicfs.fs.tree.store_entry import StoreEntry

_EPOCH: Final = "epoch"
_NEXT: Final = "next"
_MOST_DIGITS: Final = 20


@dataclass(eq=False)
class ProducersDirectory(StoreEntry, Directory):
    """All named producers."""

    permissions = 0o777

    def names(self) -> Iterable[str]:
        return self.context.store.producers.names()

    def lookup(self, name: str) -> Entry:
        if not self.context.store.producers.knows(name):
            raise self.missing(name)
        return ProducerDirectory(self.child(name), self.context, self.context.producer_files(name))

    def create_directory(self, name: str) -> None:
        if is_hidden(name) or len(os.fsencode(name)) > LONGEST or not name.isprintable():
            raise errors.BadInputError(
                f"producer {name!r}: expected at most {LONGEST} bytes of text that begins with neither . nor _"
            )
        if self.context.store.producers.knows(name):
            raise errors.ExistsError(f"producer {name} exists")
        self.context.store.producers.init(name)

    def remove_directory(self, name: str) -> None:
        staged = self.context.store.producers.staged
        if name in staged.names(()):
            if any(True for _ in staged.files((name,))):
                raise errors.NotEmptyError(f"{self.child(name)} has files that are not appended")
            staged.destroy((name,))
        self.context.store.producers.forget(name)


@dataclass(eq=False)
class ProducerDirectory(StoreEntry, Directory):
    """One producer: its epoch, and a directory for each partition."""

    place: ProducerFiles

    def names(self) -> Iterable[str]:
        yield _EPOCH
        for topic, number in self.context.store.partitions():
            yield f"{topic}-{number}"

    def lookup(self, name: str) -> Entry:
        if name == _EPOCH:
            return EpochFile(self.child(name), self.context, self.place.name)
        try:
            parse_partition_directory(name)
        except InvalidNameError:
            raise self.missing(name) from None
        if name not in self.context.store:
            raise self.missing(name)
        return SequenceDirectory(self.child(name), self.context, self.place, (self.place.name, name))


@dataclass(eq=False)
class EpochFile(StoreEntry, ControlFile):
    """The epoch of a producer. Writing the next one takes the producer over."""

    name: str

    def content(self) -> bytes:
        return b"%d\n" % self.context.store.producers.holder(self.name).epoch

    def apply(self, lines: Sequence[str]) -> TakeBack | None:
        for line in lines:
            if not line.strip().isdecimal():
                raise errors.BadInputError(f"{self.path}: expected the next epoch, found {line[:80]!r}")
            # Python refuses to read thousands of digits. The first ones tell too that it is another number.
            digits = line.strip().lstrip("0")[:_MOST_DIGITS]
            self.context.store.producers.take_over(self.name, int(digits or "0"))
        return None


@dataclass(eq=False)
class SequenceDirectory(StoreEntry, Directory):
    """What a producer appends to one partition: the sequence of its next record, and files that are not appended."""

    place: ProducerFiles
    parts: Parts

    permissions = 0o777
    absent = errors.TakenError

    def _check_own(self) -> None:
        """Refuse what could not be appended later."""
        partition = self.parts[1]
        if self.context.store.links.topic(parse_partition_directory(partition)[0]) is not None:
            raise LinkedTopicError(
                f"{partition}: mirrors a partition of a Kafka cluster, which forgets a producer that is idle for a "
                f"day, and then would take a sequence twice. Use {INBOX}/<batch> of the topic, which is there once "
                f"under its name, or a transaction with the position of a group in what is read"
            )

    def mtime_ns(self) -> int:
        try:
            return self.place.staging.status(self.parts).st_mtime_ns
        except FileNotFoundError:
            return super().mtime_ns()

    def _staged(self) -> list[str]:
        try:
            return self.place.staging.names(self.parts)
        except FileNotFoundError:
            return []

    def names(self) -> Iterable[str]:
        return [_NEXT, *self._staged()]

    def lookup(self, name: str) -> Entry:
        if name == _NEXT:
            return NextFile(self.child(name), self.context, *self.parts)
        if name not in self._staged():
            raise self.missing(name)
        return ProducerFile(self.child(name), self.place, (*self.parts, name))

    def create_file(self, name: str, flags: int) -> tuple[Entry, Handle]:
        if not is_hidden(name):
            raise errors.NotSupportedError(
                f"{self.child(name)}: whether all of it has come cannot be known; write to a name that begins with a "
                "dot, and rename it then"
            )
        self._check_own()
        for depth in (1, 2):
            place = self.parts[:depth]
            if place[-1] not in self.place.staging.names(place[:-1]):
                self.place.staging.make_directory(place)
        file = ProducerFile(self.child(name), self.place, (*self.parts, name))
        return file, ScratchHandle(file, flags | os.O_CREAT)


@dataclass(eq=False)
class ProducerFile(ScratchFile):
    """A file of a producer that is not appended yet."""

    place: ProducerFiles

    def move(self, parent: Entry, name: str) -> None:
        if not isinstance(parent, SequenceDirectory) or parent.parts != self.parts[:2]:
            raise errors.NotSupportedError(f"{self.path} can only be renamed within its directory")
        if not is_hidden(name):
            self.place.append(self.parts, name)
            return
        new = (*parent.parts, name)
        with self.place.claims.changing(self.parts, new), as_told(self.path):
            self.place.staging.move(self.parts, new)


@dataclass(eq=False)
class NextFile(StoreEntry, FleetingFile):
    """The sequence of a producer's next record in a partition."""

    producer: str
    partition: str

    def make(self) -> bytes:
        topic, number, _ = parse_partition_directory(self.partition)
        return b"%d\n" % self.context.store.producers.next_sequence(self.producer, topic, number)
