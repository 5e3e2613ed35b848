"""What the pages know of a store: looked at when somebody reads a page, at most every two seconds.

A look must stay cheap where there are thousands of partitions. The metrics of a mount tell the offsets and sizes of all
that are in use at once: 0.14 s for 1,000. What only `status.json` tells, above all what is wrong, is read for a few
partitions at each look, in turn: 0.2 to 1 ms each, and more for one that is loaded for it.
"""

from __future__ import annotations

import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from topicfs.mountd.status_command import state, troubles
from topicfs.mountd.tree import RefusedError, Tree

EVERY_S: Final = 2.0
"""How old a look may be; also how often a page asks again."""

BUDGET_S: Final = 0.06
"""How long statuses are read at a look."""

_REST: Final = 8
"""So many times as long as a look has taken there is no other: 10,000 partitions cost a daemon no more than 1,000."""

_LEAST_S: Final = 0.5
"""Between two looks that give a rate."""

REMEMBERED: Final = 90
"""How many looks the lines of rates show: three minutes."""

_PARTITION_METRIC: Final = re.compile(
    r"^topicfs_partition_(start_offset|end_offset|size_bytes|segments)"
    r'\{partition="(\d+)",topic="([^"]*)"\} (\S+)$',
    re.MULTILINE,
)
_DAEMON_METRIC: Final = re.compile(r"^(process_\w+|topicfs_\w+_total)(?:\{[^}]*\})? (\S+)$", re.MULTILINE)

_TOLD: Final = {"start_offset", "end_offset", "size_bytes", "segments"}

Key = tuple[str, int]


@dataclass(slots=True)
class Seen:
    """What was seen of a partition last.

    start, end, bytes, segments  as in its status; None as long as they are not known
    status                       its status; empty before it was read
    status_at                    when that was, by the steady clock; 0 before
    records_per_s, bytes_per_s   what came between the last two looks
    at                           when the numbers were seen
    in_metrics                   whether the metrics tell its numbers
    """

    start: int | None = None
    end: int | None = None
    bytes: int = 0
    segments: int = 0
    status: Mapping[str, Any] = field(default_factory=dict)
    status_at: float = 0.0
    records_per_s: float = 0.0
    bytes_per_s: float = 0.0
    at: float = 0.0
    in_metrics: bool = False

    @property
    def records(self) -> int:
        """Return how many offsets it has."""
        return (self.end or 0) - (self.start or 0)

    @property
    def wrong(self) -> str:
        """Return what is wrong with it, in words."""
        return "; ".join(troubles(self.status))

    @property
    def said(self) -> str:
        """Return what there is to say of it."""
        return state(self.status) if self.status else "not looked at yet"

    def take(self, at: float, start: int, end: int, size: int, segments: int) -> None:
        """Take new numbers, and tell the rates by the old ones."""
        seconds = at - self.at
        if self.end is not None and seconds > 0:
            self.records_per_s = max(0, end - self.end) / seconds
            self.bytes_per_s = max(0, size - self.bytes) / seconds
        self.start, self.end, self.bytes, self.segments, self.at = start, end, size, segments, at


@dataclass(slots=True)
class TopicLook:
    """A topic in a table.

    unseen  how many of its partitions were not looked at
    wrong   what is wrong with its partitions, by their names
    """

    name: str
    numbers: list[int]
    records: int = 0
    bytes: int = 0
    records_per_s: float = 0.0
    bytes_per_s: float = 0.0
    unseen: int = 0
    wrong: list[str] = field(default_factory=list)
    line: list[float] = field(default_factory=list)


class Looks:
    """The looks at a store, shared by all readers of the pages.

    tree     the store's tree
    topics   the numbers of each topic's partitions, at the last look
    rates    by topic: records per second at the last looks
    totals   the same for the whole store
    daemon   the rates of the daemon's counters, and its gauges
    problem  why the last look has failed; None where it did well
    _took    seconds that the last look took
    _guard   one reader looks at a time
    """

    def __init__(self, tree: Tree, steady: Callable[[], float] = time.monotonic) -> None:
        self.tree = tree
        self.topics: dict[str, list[int]] = {}
        self.rates: dict[str, deque[float]] = {}
        self.totals: deque[float] = deque(maxlen=REMEMBERED)
        self.daemon: dict[str, float] = {}
        self.problem: str | None = None
        self._steady = steady
        self._seen: dict[Key, Seen] = {}
        self._counters: dict[str, float] = {}
        self._looked: float | None = None
        self._took = 0.0
        self._guard = threading.Lock()

    def refresh(self) -> None:
        """Look again, if the last look is old."""
        with self._guard:
            now = self._steady()
            if self._looked is not None and now - self._looked < max(EVERY_S * 0.9, _REST * self._took):
                return
            before, self._looked = self._looked, now
            try:
                self.topics = self.tree.topics()
                self._read_metrics(now, before)
                self._read_some()
                self.problem = None
            except RefusedError as error:
                self.problem = str(error)
            self._note_rates()
            self._took = self._steady() - now

    def seen(self, topic: str, number: int) -> Seen:
        """Return what was seen of a partition."""
        return self._seen.get((topic, number)) or Seen()

    def read(self, keys: Iterable[Key], budget_s: float = BUDGET_S) -> None:
        """Read the statuses of these partitions now, as far as the time allows."""
        with self._guard:
            end = self._steady() + budget_s
            for key in keys:
                self._read(key)
                if self._steady() > end:
                    return

    def all_topics(self) -> list[TopicLook]:
        """Return the topics, by name."""
        return [self.topic(name) for name in self.topics]

    def topic(self, name: str) -> TopicLook:
        """Return one topic."""
        found = TopicLook(name, self.topics.get(name, []), line=list(self.rates.get(name, ())))
        for number in found.numbers:
            seen = self.seen(name, number)
            found.unseen += seen.end is None and not seen.status
            found.records += seen.records
            found.bytes += seen.bytes
            found.records_per_s += seen.records_per_s
            found.bytes_per_s += seen.bytes_per_s
            if seen.wrong:
                found.wrong.append(f"{name}-{number}: {seen.wrong}")
        return found

    def _read_metrics(self, now: float, before: float | None) -> None:
        text = self.tree.read("metrics").decode()
        numbers: dict[Key, dict[str, int]] = {}
        for metric, number, topic, value in _PARTITION_METRIC.findall(text):
            numbers.setdefault((topic, int(number)), {})[metric] = int(float(value))
        self._seen = {
            (topic, number): self._seen.get((topic, number)) or Seen()
            for topic, all_numbers in self.topics.items()
            for number in all_numbers
        }
        for key, seen in self._seen.items():
            found = numbers.get(key, {})
            seen.in_metrics = found.keys() >= _TOLD
            if seen.in_metrics:
                seen.take(
                    now, *(found[name] for name in ("start_offset", "end_offset", "size_bytes", "segments"))
                )
        counters: dict[str, float] = {}
        for metric, value in _DAEMON_METRIC.findall(text):
            counters[metric] = counters.get(metric, 0.0) + float(value)
        if before is not None and self._counters:
            seconds = max(now - before, 1e-6)
            self.daemon = {
                name: max(0.0, value - self._counters.get(name, value)) / seconds
                if name.endswith("_total")
                else value
                for name, value in counters.items()
            }
        else:
            self.daemon = {name: value for name, value in counters.items() if not name.endswith("_total")}
        self._counters = counters

    def _read_some(self) -> None:
        """Read the statuses that are oldest, those of partitions without numbers first."""
        end = self._steady() + BUDGET_S
        for key in sorted(
            self._seen, key=lambda key: (self._seen[key].end is not None, self._seen[key].status_at)
        ):
            self._read(key)
            if self._steady() > end:
                return

    def _read(self, key: Key) -> None:
        seen = self._seen.get(key)
        if seen is None:
            return
        try:
            seen.status = self.tree.status(f"{key[0]}-{key[1]}")
        except (RefusedError, ValueError) as error:
            seen.status = {"topic": key[0], "partition": key[1], "offline": str(error)}
        seen.status_at = now = self._steady()
        status = seen.status
        # A rate over a short time would be none: what the metrics tell is taken once in a look.
        is_new = seen.end is None or (not seen.in_metrics and now - seen.at >= _LEAST_S)
        if is_new and "end_offset" in status:
            seen.take(
                now, status["start_offset"], status["end_offset"], status["log_bytes"], status["segments"]
            )

    def _note_rates(self) -> None:
        total = 0.0
        for topic, numbers in self.topics.items():
            rate = sum(self.seen(topic, number).records_per_s for number in numbers)
            self.rates.setdefault(topic, deque(maxlen=REMEMBERED)).append(rate)
            total += rate
        for topic in self.rates.keys() - self.topics.keys():
            del self.rates[topic]
        self.totals.append(total)
