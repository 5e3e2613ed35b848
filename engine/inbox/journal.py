"""The journal of the commit under way in a topic's inbox. It makes the commit atomic, however the process ends.

    BACKING/staging/<topic>/journal      {"state": …, "name": …, "partitions": [0, 1], "sources": [["q1-7"]],
                                          "content": …}

    appending   the transaction is to be aborted, and nothing was committed
    committed   the transaction is to be committed, the name recorded and the sources removed

The change from one state to the other is one rename: the commit point. Without the file, no commit is under way.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

from topicfs.engine.errors import CorruptCheckpointError
from topicfs.engine.files.atomic import read_bounded, sync_directory, write_atomically
from topicfs.engine.inbox.staging import Parts

_MOST_BYTES: Final = 64 << 20


class CommitState(Enum):
    """The state of a commit."""

    APPENDING = "appending"
    COMMITTED = "committed"


@dataclass(frozen=True, slots=True)
class InFlight:
    """A commit that is under way.

    state       its state, which says how it is to be finished
    name        the name under which it is recorded afterwards
    partitions  the numbers of the partitions that may hold records of it
    sources     its source files, and directories of them, which are removed or emptied when it is committed
    content     the fingerprint of its content, which is recorded with its name; None where it is not known
    """

    state: CommitState
    name: str
    partitions: tuple[int, ...]
    sources: tuple[Parts, ...]
    content: str | None = None


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
            )
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptCheckpointError(f"{self.path}: expected a commit under way: {error!r}") from error

    def write(self, commit: InFlight) -> None:
        """Record the state of a commit, durably. After an error, `read` tells whether the old or new state holds."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        document = {
            "state": commit.state.value,
            "name": commit.name,
            "partitions": commit.partitions,
            "sources": commit.sources,
            "content": commit.content,
        }
        write_atomically(self.path, json.dumps(document).encode())

    def sync(self) -> None:
        """Make the result of `read` durable: a failed write may have failed after its rename."""
        sync_directory(self.path.parent)

    def remove(self) -> None:
        """Remove the journal, durably: if it came back, it would remove sources that were added later."""
        self.path.unlink(missing_ok=True)
        sync_directory(self.path.parent)
