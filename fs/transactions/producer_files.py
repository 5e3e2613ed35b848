"""Files of named producers, which are appended once when they are renamed to a sequence."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from topicfs.engine.batch.columns import Columns
from topicfs.engine.errors import InvalidProducerEpochError
from topicfs.engine.format.paths import parse_partition_directory
from topicfs.engine.record import MAX_INT32
from topicfs.engine.staging.staging import Parts, Staging
from topicfs.engine.store.store import Store
from topicfs.fs import errors
from topicfs.fs.inbox.claims import Claims
from topicfs.fs.inbox.commits import Commits
from topicfs.fs.inbox.data_files import DataFile, Topic, check_closed, chunks

_NAME: Final = re.compile(r"(?:(?P<epoch>\d{1,5})-)?(?P<sequence>\d{1,10})\.[a-z.]+")


@dataclass(frozen=True, slots=True)
class ProducerFiles:
    """The staged files of one producer.

    name    the producer's name
    store   the store
    claims  the files that are being changed or appended, and those that are open for writing
    commits the commits in progress, also of inboxes
    _turns  returns the counter that says which partition of a topic is next for records without a key
    """

    name: str
    store: Store
    commits: Commits
    _turns: Callable[[str], Iterator[int]]
    claims: Claims = field(default_factory=Claims)

    @property
    def staging(self) -> Staging:
        return self.store.producers.staged

    def append(self, source: Parts, name: str) -> None:
        """Append a file under a name that has its sequence, and remove it."""
        found = _NAME.fullmatch(name)
        if found is None or int(found["sequence"]) > MAX_INT32:
            raise errors.BadInputError(
                f"{name}: expected <sequence>.<format> or <epoch>-<sequence>.<format>, sequences up to {MAX_INT32}"
            )
        store = self.store
        topic, number, _ = parse_partition_directory(source[1])
        with self.commits.one(), self.claims.taken(source):
            holder = store.producers.holder(self.name)
            if found["epoch"] is not None and int(found["epoch"]) != holder.epoch:
                raise InvalidProducerEpochError(
                    f"{name}: producer {self.name} has epoch {holder.epoch}: another holder has taken it over"
                )
            named = DataFile.of(source, (name,))
            file = DataFile(source, name, named.format, named.zipped, number)
            check_closed(self.staging, self.claims, [file], None)
            routed = Topic.of(store, topic, self._turns(topic))
            parts = list[Columns]()
            for to, columns in chunks(self.staging, [file], routed):
                if to != number:
                    raise errors.BadInputError(
                        f"{name}: expected records for partition {number}, found one for {to}"
                    )
                parts.append(columns)
            if not parts:
                raise errors.EmptyBatchError(f"{name}: expected records, found none")
            store.producers.append(holder, topic, number, int(found["sequence"]), parts)
            self.staging.discard(source)
