"""The note of the batch that a topic's inbox commits: which name and files a transaction stands for.

    BACKING/staging/<topic>/journal      {"state": …, "name": …, "partitions": [0, 1], "sources": [["q1-7"]],
                                          "content": …, "producer_id": …}

    transaction  the coordinator of this store knows how the transaction ends
    producing    a transaction in a Kafka cluster, whose commit was never asked for
    deciding     the cluster was perhaps asked to commit it, and knows how it has ended
    committed    the cluster has committed it

The note decides nothing that a coordinator decides. Without the file, no commit is under way. Versions before this one
had no coordinator here: their journal said `appending` until it said `committed`, and that rename was the commit point.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any, Final

from topicfs.engine.errors import CorruptCheckpointError
from topicfs.engine.files.atomic import make_directory, read_bounded, sync_directory, write_atomically
from topicfs.engine.format.paths import COMMITTED
from topicfs.engine.inbox.cluster import ClusterCommit
from topicfs.engine.staging.staging import Parts

_MOST_BYTES: Final = 64 << 20


class CommitState(Enum):
    """The state of a commit."""

    APPENDING = "appending"
    TRANSACTION = "transaction"
    PRODUCING = "producing"
    DECIDING = "deciding"
    COMMITTED = "committed"


@dataclass(frozen=True, slots=True)
class InFlight:
    """A commit that is under way.

    state        its state, which says who knows how it ends
    name         the name under which it is recorded afterwards
    partitions   the numbers of the partitions that may hold records of it; none where a coordinator knows them
    sources      its source files, and directories of them, which are removed or emptied when it is committed
    content      the fingerprint of its content, which is recorded with its name; None where it is not known
    cluster      the transaction in a Kafka cluster; None for one of this store
    producer_id  the producer of a transaction of this store, as its coordinator has it; None for another
    """

    state: CommitState
    name: str
    partitions: tuple[int, ...]
    sources: tuple[Parts, ...]
    content: str | None = None
    cluster: ClusterCommit | None = None
    producer_id: int | None = None

    def in_state(self, state: CommitState, cluster: ClusterCommit) -> InFlight:
        """Return the commit in another state."""
        return replace(self, state=state, cluster=cluster)


@dataclass(frozen=True, slots=True)
class Journal:
    """The journal of one topic.

    path  the path of its file
    """

    path: Path

    def read(self) -> InFlight | None:
        """Return the commit that is under way; None where there is none."""
        try:
            data = read_bounded(self.path, _MOST_BYTES)
        except FileNotFoundError:
            return None
        try:
            found = json.loads(data)
            return InFlight(
                CommitState(found["state"]),
                found["name"],
                tuple(map(int, found["partitions"])),
                tuple(tuple(source) for source in found["sources"]),
                found.get("content"),
                _cluster_commit(found.get("cluster")),
                _integer(found.get("producer_id")),
            )
        # Also for brackets that are nested thousands deep, and for a number that has no end.
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
            raise CorruptCheckpointError(f"{self.path}: expected a commit under way: {error!r}") from error

    def write(self, commit: InFlight) -> None:
        """Record the state of a commit, durably. After an error, `read` tells whether the old or new state holds."""
        make_directory(self.path.parent)
        if not self.path.with_name(COMMITTED).exists():
            # Who put the first files there has made the topic's directory, and not made sure that it lasts.
            sync_directory(self.path.parent.parent)
        document: dict[str, Any] = {
            "state": commit.state.value,
            "name": commit.name,
            "partitions": commit.partitions,
            "sources": commit.sources,
            "content": commit.content,
        }
        if commit.cluster is not None:
            document["cluster"] = asdict(commit.cluster)
        if commit.producer_id is not None:
            document["producer_id"] = commit.producer_id
        write_atomically(self.path, json.dumps(document).encode())

    def sync(self) -> None:
        """Make the result of `read` durable: a failed write may have failed after its rename."""
        sync_directory(self.path.parent)

    def remove(self) -> None:
        """Remove the journal, durably: if it came back, it would remove sources that were added later."""
        self.path.unlink(missing_ok=True)
        sync_directory(self.path.parent)


def _integer(told: object) -> int | None:
    return None if told is None else int(str(told))


def _cluster_commit(told: dict[str, Any] | None) -> ClusterCommit | None:
    if told is None:
        return None
    ranges = {int(number): (int(first), int(last)) for number, (first, last) in told["ranges"].items()}
    return ClusterCommit(str(told["transactional_id"]), int(told["producer_id"]), int(told["epoch"]), ranges)
