"""A cleaner for tests of who cleans what and when: it changes nothing, and does what it is told."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from topicfs.engine.partition.log import Log
from topicfs.engine.record import MAX_INT64


@dataclass(frozen=True)
class Cleaned:
    """What a clean gives."""

    end_offset: int
    bytes_read: int = 100
    bytes_written: int = 50


@dataclass
class StandInCleaner:
    """Says that it has cleaned everything that it was asked to, or as much as `reach` says.

    calls     name, first dirty and first uncleanable offset of each clean
    failures  what a clean of a log raises, by the log's name
    reach     how many offsets one clean comes forward at the most
    begun     set when a clean has begun
    hold      a clean waits for this, calling `check` all the time; None: it does not
    """

    calls: list[tuple[str, int, int]] = field(default_factory=list)
    failures: dict[str, BaseException] = field(default_factory=dict)
    reach: int = MAX_INT64
    begun: threading.Event = field(default_factory=threading.Event)
    hold: threading.Event | None = None
    also: Callable[[Log], None] = lambda log: None

    def clean(
        self, log: Log, first_dirty: int, first_uncleanable: int, now: int, check: Callable[[], None]
    ) -> Cleaned:
        self.calls.append((log.name, first_dirty, first_uncleanable))
        self.begun.set()
        while self.hold is not None and not self.hold.wait(0.001):
            check()
        check()
        self.also(log)
        if log.name in self.failures:
            raise self.failures[log.name]
        return Cleaned(min(first_uncleanable, first_dirty + self.reach))

    @property
    def names(self) -> list[str]:
        """The logs that were cleaned, in order."""
        return [name for name, _, _ in self.calls]
