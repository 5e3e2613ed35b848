"""What a check has found: where, what was expected, what it means for a reader."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Final

MOST_TOLD: Final = 20
"""The most findings of one kind in one file that are told one by one."""


PAUSE_S: Final = 0.1
"""The time between two looks: an append, and the index entries that follow it, take microseconds."""

_LOOKS: Final = 5
"""The most looks at files that change again and again."""


class Severity(Enum):
    """How bad a finding is.

    DAMAGE      records cannot be read, or are not what was written
    REPAIRABLE  no record is lost: a recovery or a rebuild mends it, or only an index or a bound is wrong
    NOTE        nothing is wrong now, but worth knowing
    """

    DAMAGE = "damage"
    REPAIRABLE = "repairable"
    NOTE = "note"


class Kind(Enum):
    """The kind of the thing in which something was found."""

    BATCH = "batch"
    SEGMENT = "segment"
    OFFSET_INDEX = "offset index"
    TIME_INDEX = "time index"
    TRANSACTION_INDEX = "transaction index"
    LEADER_EPOCHS = "leader epochs"
    PRODUCER_SNAPSHOT = "producer snapshot"
    CHECKPOINT = "checkpoint"
    METADATA = "metadata"
    DIRECTORY = "directory"
    MIN_TIMESTAMPS = "min timestamps"
    PARQUET = "parquet"
    SIZE_MAP = "size map"
    KEYS = "keys"
    STAGING = "staging"
    CREATED_TOPICS = "created topics"
    LINKED_TOPICS = "linked topics"
    DELETION = "deletion"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong.

    severity  how bad it is
    kind      the kind of thing
    file      the file or directory
    at        the place in it, in words: `position 61`, `entry 3`; empty for all of it
    expected  what should be there
    found     what is there
    effect    what that means for who reads the log
    """

    severity: Severity
    kind: Kind
    file: Path
    at: str
    expected: str
    found: str
    effect: str

    def __str__(self) -> str:
        place = f"{self.file}, {self.at}" if self.at else str(self.file)
        return f"{place}: expected {self.expected}, found {self.found}: {self.effect}"


@dataclass(slots=True)
class Findings:
    """Findings that are gathered. Their number is bounded: a file of garbage has one in each byte.

    told  those that are told one by one
    more  how many there are beyond these, with the last of them, by file and kind
    """

    told: list[Finding] = field(default_factory=list)
    more: dict[tuple[Path, Kind], tuple[int, Finding]] = field(default_factory=dict)
    _counts: dict[tuple[Path, Kind], int] = field(default_factory=dict)

    def add(self, finding: Finding) -> None:
        """Add one."""
        key = finding.file, finding.kind
        self._counts[key] = count = self._counts.get(key, 0) + 1
        if count <= MOST_TOLD:
            self.told.append(finding)
        else:
            self.more[key] = count - MOST_TOLD, finding

    def extend(self, findings: Iterable[Finding]) -> None:
        """Add several."""
        for each in findings:
            self.add(each)

    def __iter__(self) -> Iterator[Finding]:
        yield from self.told
        for (file, kind), (count, last) in self.more.items():
            yield Finding(
                last.severity,
                kind,
                file,
                "",
                "nothing wrong",
                f"{count} more findings of this kind",
                last.effect,
            )


def confirmed(look: Callable[[], Iterable[Finding]]) -> tuple[Finding, ...]:
    """Return what several looks at the same files have found: what somebody was just writing is no fault."""
    found = tuple(look())
    for _ in range(_LOOKS):
        if not found:
            break
        time.sleep(PAUSE_S)
        again = set(look())
        both = tuple(each for each in found if each in again)
        if both == found:
            break
        found = both
    return found
