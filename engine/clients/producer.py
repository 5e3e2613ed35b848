"""An idempotent producer of a program: what it appends again after a failure is there once."""

from __future__ import annotations

import contextlib
import errno
import uuid
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from topicfs.engine import batch as batches
from topicfs.engine.clients.lines import lines
from topicfs.engine.errors import DuplicateSequenceError, InvalidProducerEpochError
from topicfs.engine.record import Record
from topicfs.engine.store.store import Store
from topicfs.engine.unlocked.place import place_of


class IdempotentProducer:
    """A named producer, of a store that is opened here, of one at a path, or of one that is mounted there.

        with IdempotentProducer("data", "importer") as producer:
            done = producer.next_sequence("orders", 0)
            producer.append("orders", 0, done, records[done:])

    Opening it takes the name over: an earlier holder is fenced. Errors of a mount other than these are OSErrors.
    """

    def __init__(self, where: Store | Path | str, name: str) -> None:
        self._name = name
        self._held = contextlib.ExitStack()
        self._store: Store | None = None
        self._directory: Path | None = None
        if isinstance(where, Store):
            self._store = where
        else:
            place = place_of(str(where))
            if place.mount is not None:
                self._directory = place.mount / "producers" / name
                self.epoch = self._take_over(self._directory)
                return
            self._store = self._held.enter_context(Store.open(place.backing))
        self._holder = self._store.producers.init(name)
        self.epoch = self._holder.epoch

    @staticmethod
    def _take_over(directory: Path) -> int:
        try:
            directory.mkdir()
        except FileExistsError:
            following = int((directory / "epoch").read_bytes()) + 1
            with (directory / "epoch").open("wb", buffering=0) as file:
                file.write(b"%d\n" % following)
            return following
        return 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the store if it was opened for this producer. The name and its sequences stay."""
        self._held.close()

    def next_sequence(self, topic: str, partition: int) -> int:
        """Return how many records the name has appended to a partition: the sequence of the next one."""
        if self._directory is not None:
            return int((self._directory / f"{topic}-{partition}" / "next").read_bytes())
        assert self._store is not None, "one of both is there"
        return self._store.producers.next_sequence(self._name, topic, partition)

    def append(self, topic: str, partition: int, sequence: int, records: Sequence[Record]) -> bool:
        """Append records whose first one has this sequence, as one batch; return when they are on disk. False if they
        were appended before. InvalidProducerEpochError if another holder has the name by now."""
        try:
            if self._directory is None:
                assert self._store is not None, "one of both is there"
                found = batches.columns_of_records(list(records), self._store.clock())
                self._store.producers.append(self._holder, topic, partition, sequence, [found])
            else:
                self._rename(self._directory / f"{topic}-{partition}", sequence, records)
        except (DuplicateSequenceError, FileExistsError):
            return False
        return True

    def _rename(self, place: Path, sequence: int, records: Sequence[Record]) -> None:
        scratch = place / f".{uuid.uuid4().hex}.jsonl"
        scratch.write_bytes(lines((record, None) for record in records))
        try:
            scratch.rename(place / f"{self.epoch}-{sequence}.jsonl")
        except OSError as error:
            scratch.unlink(missing_ok=True)
            if error.errno == errno.EPERM:
                raise InvalidProducerEpochError(f"{self._name}: another holder has taken it over") from error
            raise
