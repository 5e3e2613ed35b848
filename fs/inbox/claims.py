"""Claims on the files of an inbox: a commit takes files as they are, and nothing is added to them meanwhile.

    changing(places)    around each change by name: it is refused if a commit has taken the place, or one above or
                        below it
    taken(place)        around a commit: it waits until the changes that have begun are done
    writing             the files that are open for writing

Bytes that a program still holds back, in a buffer or in a shared mapping, are not in the file yet. So a file that is
open for writing is not appended.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from topicfs.engine.staging.staging import Parts
from topicfs.fs.errors import BusyError

Identity = tuple[int, int]
"""Device and inode of a file: they stay the same when the file is renamed."""

GRACE_S: Final = 2.0
"""Seconds that a closed file still counts as open, at most: the kernel reports the last close only after close(2) has
returned. A duplicate, a forked child's copy or a mapping keeps the file open for longer."""


@dataclass(slots=True, eq=False)
class Writing:
    """A file that is open for writing, by one open(2).

    is_closed  whether a descriptor was closed, and nothing was written since
    """

    identity: Identity
    is_closed: bool = False


class Claims:
    """The claims in one topic's inbox.

    _taken     the places that commits have taken
    _changing  the places that are being changed, and by how many calls
    _writing   the files that are open for writing
    _changed   the condition that guards all of it; it is notified when a claim ends
    """

    def __init__(self) -> None:
        self._taken: set[Parts] = set()
        self._changing: Counter[Parts] = Counter()
        self._writing: dict[Identity, list[Writing]] = {}
        self._changed = threading.Condition()

    @contextlib.contextmanager
    def changing(self, *places: Parts) -> Iterator[None]:
        """Claim places while something there is made, renamed, cut or removed, or opened for writing."""
        with self._changed:
            for place in places:
                if _meet(place, self._taken):
                    raise BusyError(f"{'/'.join(place)} is being committed")
            self._changing.update(places)
        try:
            yield
        finally:
            with self._changed:
                self._changing.subtract(places)
                self._changing += Counter()
                self._changed.notify_all()

    @contextlib.contextmanager
    def taken(self, *places: Parts) -> Iterator[None]:
        """Claim places for a commit of what they hold."""
        with self._changed:
            self._changed.wait_for(lambda: not any(_meet(place, self._taken) for place in places))
            self._taken.update(places)
            self._changed.wait_for(lambda: not any(_meet(place, self._changing) for place in places))
        try:
            yield
        finally:
            with self._changed:
                self._taken.difference_update(places)
                self._changed.notify_all()

    # -- files that are open for writing --------------------------------------------------------------

    def begin_writing(self, identity: Identity) -> Writing:
        """Note that a file was opened for writing."""
        writing = Writing(identity)
        with self._changed:
            self._writing.setdefault(identity, []).append(writing)
        return writing

    def end_writing(self, writing: Writing) -> None:
        """Note that its last descriptor and its last mapping are gone."""
        with self._changed:
            others = self._writing[writing.identity]
            others.remove(writing)
            if not others:
                del self._writing[writing.identity]
            self._changed.notify_all()

    def is_writing(self, identity: Identity) -> bool:
        """Tell whether a file is open for writing, or mapped so."""
        with self._changed:
            return identity in self._writing

    def await_closed(self, identity: Identity, own: Writing | None, name: str) -> None:
        """Raise BusyError if others than `own` have a file open for writing; wait for a close that is in progress."""
        end = time.monotonic() + GRACE_S
        with self._changed:
            while others := [each for each in self._writing.get(identity, ()) if each is not own]:
                left = end - time.monotonic()
                if left <= 0 or not all(each.is_closed for each in others):
                    raise BusyError(
                        f"{name} is open for writing, or mapped: not all of it may be in the file yet; close it first"
                    )
                self._changed.wait(left)


def _meet(place: Parts, others: Iterable[Parts]) -> bool:
    """Tell whether a place is one of the others, or lies below or above one."""
    return any(place[: len(other)] == other[: len(place)] for other in others)
