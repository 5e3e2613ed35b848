"""What a leader's answer to a batch means: the error codes of Produce, and what follows from each.

APPENDED    the leader has the batch
AGAIN       it does not have it, which passes: the batch is sent again
LATE        the same, but it may have appended it
UNORDERED   a batch before it is missing: it is sent again behind that one. Of the first batch that is under way it
            means FORGOTTEN
FORGOTTEN   the leader does not know where this producer was, or has another one of its id: a new one is needed
REFUSED     it never takes the batch
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from topicfs.engine.errors import (
    EngineError,
    InvalidRecordError,
    LinkError,
    LinkRefusedError,
    RecordTooLargeError,
)
from topicfs.engine.link.connection import words_of


class Outcome(Enum):
    """What becomes of a batch."""

    APPENDED = "appended"
    AGAIN = "again"
    LATE = "late"
    UNORDERED = "unordered"
    FORGOTTEN = "forgotten"
    REFUSED = "refused"


_DUPLICATE: Final = 46
"""The leader has the batch from an earlier attempt, and does not know any more at which offset."""

_OUTCOMES: Final = {
    Outcome.APPENDED: (0, _DUPLICATE),
    # No leader, another one, one that loads, too few replicas in sync before anything was appended, a transaction that
    # is just ending.
    Outcome.AGAIN: (3, 5, 6, 9, 14, 15, 16, 19, 51, 72, 74, 75, 100, 103),
    # Not all replicas in sync had it in time, the network failed within the cluster, the leader's disk failed.
    Outcome.LATE: (7, 13, 20, 56),
    Outcome.UNORDERED: (45,),
    Outcome.FORGOTTEN: (47, 59, 90),
}
_BY_CODE: Final = {code: outcome for outcome, codes in _OUTCOMES.items() for code in codes}

MOVED: Final = frozenset({3, 5, 6, 9, 72, 74, 75, 100, 103})
"""Codes after which another broker may be the leader."""

_TOO_LARGE: Final = frozenset({10, 18})
NOT_ALLOWED: Final = frozenset({29, 31, 53})
"""Codes that tell what this user may not do."""

_INVALID: Final = frozenset({2, 32, 44, 76, 87})


def outcome_of(code: int) -> Outcome:
    """Return what becomes of a batch after an error code; 0 is none."""
    return _BY_CODE.get(code, Outcome.REFUSED)


def refusal_of(code: int, name: str, message: str | None) -> EngineError:
    """Return the error of a batch that a leader refuses for good. `name` is the partition's, `message` the leader's."""
    words = f"{words_of(code)}{f': {message}' if message else ''}"
    if code in _TOO_LARGE:
        return RecordTooLargeError(f"{name}: the cluster refuses the size of a batch: {words}")
    if code in NOT_ALLOWED:
        return LinkRefusedError(f"{name}: {words}: this user needs Write on the topic")
    if code in _INVALID:
        return InvalidRecordError(f"{name}: the cluster refuses the lines: {words}")
    return LinkError(f"{name}: the cluster does not append: {words}")
