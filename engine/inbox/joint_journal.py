"""The note of a batch of several topics while it is committed: which names and files its transaction stands for.

    BACKING/transactions/inboxes/journal           {"producer_id": …, "parts": [{"topic": "orders", "name": …,
    BACKING/transactions/inboxes/linked/journal     "sources": [["q1-7"]], "content": …}, …]}

The second one is of mirrored topics, whose transaction is in the Kafka cluster. A note decides nothing. Without the
file, no batch of several topics is being committed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from topicfs.engine.errors import CorruptCheckpointError
from topicfs.engine.files.atomic import make_directory, read_bounded, sync_directory, write_atomically
from topicfs.engine.format.paths import INBOXES, JOURNAL, LINKED, TRANSACTIONS
from topicfs.engine.staging.staging import Parts

_MOST_BYTES: Final = 64 << 20


@dataclass(frozen=True, slots=True)
class Part:
    """One topic's part of the batch: see `topicfs.engine.inbox.journal.InFlight`.

    topic_id  the id of the topic, which one that is made again under its name does not have; None where it is not known
    """

    topic: str
    name: str
    sources: tuple[Parts, ...]
    content: str | None
    topic_id: str | None = None


@dataclass(frozen=True, slots=True)
class JointNote:
    """A commit of several topics that is under way.

    parts        what each topic gets
    producer_id  the producer of its transaction, as the coordinator of this store has it; None for one in a cluster
    """

    parts: tuple[Part, ...]
    producer_id: int | None

    @property
    def topics(self) -> frozenset[str]:
        """Return the topics of the batch."""
        return frozenset(part.topic for part in self.parts)


@dataclass(frozen=True, slots=True)
class JointJournal:
    """The journal of commits of several topics.

    path  the path of its file
    """

    path: Path

    def read(self) -> JointNote | None:
        """Return the commit that is under way; None where there is none."""
        try:
            data = read_bounded(self.path, _MOST_BYTES)
        except FileNotFoundError:
            return None
        try:
            found = json.loads(data)
            producer_id = found["producer_id"]
            return JointNote(
                tuple(
                    Part(
                        str(part["topic"]),
                        str(part["name"]),
                        tuple(tuple(map(str, source)) for source in part["sources"]),
                        None if part["content"] is None else str(part["content"]),
                        None if part.get("topic_id") is None else str(part["topic_id"]),
                    )
                    for part in found["parts"]
                ),
                None if producer_id is None else int(producer_id),
            )
        # Also for brackets that are nested thousands deep, and for a number that has no end.
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
            raise CorruptCheckpointError(f"{self.path}: expected a commit under way: {error!r}") from error

    def write(self, note: JointNote) -> None:
        """Note a commit, durably."""
        make_directory(self.path.parent)
        write_atomically(self.path, json.dumps(asdict(note)).encode())

    def remove(self) -> None:
        """Remove the note, durably: if it came back, it would be taken for that of a later commit."""
        if self.path.parent.is_dir():
            self.path.unlink(missing_ok=True)
            sync_directory(self.path.parent)


def journals(backing: Path) -> Iterator[JointJournal]:
    """Give both journals of a store: of its own topics, and of mirrored ones."""
    place = backing / TRANSACTIONS / INBOXES
    yield JointJournal(place / JOURNAL)
    yield JointJournal(place / LINKED / JOURNAL)
