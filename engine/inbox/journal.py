"""The commit that is under way in a topic's inbox, so that whatever ends the process leaves all of it or nothing.

    BACKING/staging/<topic>/journal      {"state": …, "name": …, "partitions": [0, 1], "sources": [["q1-7"]],
                                          "content": …}

    appending   its transaction is to be aborted, and nothing has happened
    committed   its transaction is to be committed, its name noted and its sources removed

The change from one to the other is one rename: the commit point. No file: no commit is under way.
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
    """How far a commit is."""

    APPENDING = "appending"
    COMMITTED = "committed"


@dataclass(frozen=True, slots=True)
class InFlight:
    """A commit that is under way.

    state       what is to become of it
    name        by which it is known afterwards
    partitions  those that may hold records of it
    sources     files, and directories whose content, it has taken: to be removed when it is committed
    content     what it holds, to be remembered with its name; None where that is not known
    """

    state: CommitState
    name: str
    partitions: tuple[int, ...]
    sources: tuple[Parts, ...]
    content: str | None = None


@dataclass(frozen=True, slots=True)
class Journal:
    """One topic's.

    path  of its file
    """

    path: Path

    def read(self) -> InFlight | None:
        """The commit that is under way; None where none is."""
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
        """Say so durably. After an error `read` tells which of the old and the new state holds."""
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
        """Make what `read` gave durable: the error of a write may have come after its rename."""
        sync_directory(self.path.parent)

    def remove(self) -> None:
        """No commit is under way any more, durably: else it would take sources that came later."""
        self.path.unlink(missing_ok=True)
        sync_directory(self.path.parent)
