"""`transactions/`: files that are appended to several topics together, all or none.

mkdir transactions/t1                        begins a transaction, or is EEXIST where it is open
… > transactions/t1/orders-0.jsonl           records for a partition; a file as on any disk
… > transactions/t1/audit.tsv                records for a topic, where `in.tsv` would send them
mkdir -p transactions/t1/groups/readers      for positions of a group:
echo 9 > transactions/t1/groups/readers/t-0  one of them
mv transactions/t1 transactions/t1.commit    appends all of it
rm -r transactions/t1                        aborts it: nothing was appended
cat transactions/t1.json                     what has become of it
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from topicfs.engine.segment.descriptors import OtherFile
from topicfs.engine.staging.staging import Parts
from topicfs.fs import errors
from topicfs.fs.context import Context
from topicfs.fs.entry import Directory, Entry, FleetingFile, Handle
from topicfs.fs.inbox.claims import Writing
from topicfs.fs.transactions.staged import ALL, COMMIT, STATUS, StagedTransactions
from topicfs.fs.tree.scratch import ScratchDirectory, ScratchFile, ScratchHandle, as_told
from topicfs.fs.tree.store_entry import StoreEntry

_COMMITTED: Final = re.compile(rf"(?:\.(\d{{1,5}}))?{re.escape(COMMIT)}", re.ASCII)
"""What is behind the name of a transaction where it is renamed to be committed."""

_SHOWN: Final = 1000
"""How many transactions `status.json` shows."""


@dataclass(eq=False)
class TransactionsDirectory(Directory):
    """All open transactions, and a file with the states of all that are known."""

    context: Context

    permissions = 0o777
    absent = errors.TakenError

    def mtime_ns(self) -> int:
        try:
            return self.context.transactions.staging.status(()).st_mtime_ns
        except FileNotFoundError:
            return self.context.mtime_ns()

    def names(self) -> Iterable[str]:
        return [*self.context.transactions.names(), f"{ALL}{STATUS}"]

    def lookup(self, name: str) -> Entry:
        path, staged = self.child(name), self.context.transactions
        if name == f"{ALL}{STATUS}":
            return AllStatusFile(path, self.context)
        if name in staged.names():
            return TransactionDirectory(path, staged, (name,))
        wanted = name.removesuffix(STATUS)
        if wanted != name and self.context.store.transactions.transaction(wanted) is not None:
            return StatusFile(path, self.context, wanted)
        raise self.missing(name)

    def create_directory(self, name: str) -> None:
        self.context.transactions.begin(name)

    def remove_directory(self, name: str) -> None:
        if name not in self.context.transactions.names():
            raise self.missing(name)
        with as_told(self.child(name)):
            self.context.transactions.abort(name)


@dataclass(eq=False)
class TransactionDirectory(ScratchDirectory):
    """An open transaction, or a directory of groups' positions in it."""

    place: StagedTransactions

    def names(self) -> Iterable[str]:
        with as_told(self.path):
            return self.place.staging.names(self.parts)

    def lookup(self, name: str) -> Entry:
        if name not in self.names():
            raise self.missing(name)
        inner = (*self.parts, name)
        with as_told(self.child(name)):
            kind = TransactionDirectory if self.place.staging.is_directory(inner) else TransactionFile
        return kind(self.child(name), self.place, inner)

    def check_directory(self, new: Parts) -> None:
        self.place.positions.check_directory(new)

    def create_file(self, name: str, flags: int) -> tuple[Entry, Handle]:
        parts = (*self.parts, name)
        self.place.check_file(parts)
        file = TransactionFile(self.child(name), self.place, parts)
        return file, ScratchHandle(file, flags | os.O_CREAT)

    def move(self, parent: Entry, name: str) -> None:
        own = self.parts[0]
        found = _COMMITTED.fullmatch(name.removeprefix(own))
        if (
            self.parts[1:]
            or not isinstance(parent, TransactionsDirectory)
            or found is None
            or not name.startswith(own)
        ):
            raise errors.NotSupportedError(
                f"{self.path} can only be renamed to {own}{COMMIT} beside it, which commits it, or to "
                f"{own}.<epoch>{COMMIT}, which does so if that is its epoch"
            )
        self.place.commit(own, None if found[1] is None else int(found[1]))


@dataclass(eq=False)
class TransactionFile(ScratchFile):
    """A file of an open transaction."""

    place: StagedTransactions

    def opened(self, flags: int) -> tuple[OtherFile, Writing | None]:
        file, writing = super().opened(flags)
        if writing is not None:
            self.place.positions.note(self.parts)
        return file, writing

    def move(self, parent: Entry, name: str) -> None:
        if not isinstance(parent, TransactionDirectory) or parent.parts != self.parts[:-1]:
            raise errors.NotSupportedError(f"{self.path} can only be renamed within its directory")
        new = (*parent.parts, name)
        self.place.check_file(new)
        with self.place.claims.changing(self.parts, new), as_told(self.path):
            self.place.staging.move(self.parts, new)
            self.place.positions.note(new)


@dataclass(eq=False)
class StatusFile(StoreEntry, FleetingFile):
    """The state of a transaction, as JSON."""

    transaction: str

    def make(self) -> bytes:
        found = self.context.store.transactions.transaction(self.transaction)
        if found is None:
            raise errors.NotFoundError(f"there is no {self.path}")
        return _json(self.context.transactions.told(found))


@dataclass(eq=False)
class AllStatusFile(StoreEntry, FleetingFile):
    """The states of all transactions that are known, as JSON: those of the last change first."""

    def make(self) -> bytes:
        staged = self.context.transactions
        found = [
            each
            for each in self.context.store.transactions.transactions()
            if "/" not in each.transactional_id
        ]
        found.sort(key=lambda each: -each.updated_ms)
        return _json([staged.told(each) for each in found[:_SHOWN]])


def _json(found: object) -> bytes:
    return json.dumps(found, indent=1).encode() + b"\n"
