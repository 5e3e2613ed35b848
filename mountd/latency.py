"""How long calls of the mount took: counts by powers of four, which a call adds to in a fraction of a microsecond.

A read that is answered from a window never comes here: it takes no Python, and some microseconds.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Final

from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

OPERATIONS: Final = ("open", "read", "write", "flush", "fsync")
"""What is timed. A flush is what close(2) waits for."""

_FIRST_BITS: Final = 10
"""The first limit is 2**10 nanoseconds, about a microsecond; each further one is four times the last."""

_LIMITS: Final = 13
"""The last limit is 17 seconds."""


class Latencies(Collector):
    """The times that calls took, by operation. Every thread adds to them.

    _counts  by operation: how many calls took at most each limit, and more than the last
    _sums    by operation: nanoseconds in all
    """

    def __init__(self) -> None:
        self._counts = {name: [0] * (_LIMITS + 1) for name in OPERATIONS}
        self._sums = dict.fromkeys(OPERATIONS, 0)
        self._guard = threading.Lock()

    def note(self, operation: str, nanoseconds: int) -> None:
        """Count one call."""
        place = (max(nanoseconds - 1, 0).bit_length() - _FIRST_BITS + 1) // 2
        with self._guard:
            self._counts[operation][0 if place < 0 else min(place, _LIMITS)] += 1
            self._sums[operation] += nanoseconds

    def collect(self) -> Iterator[Metric]:
        """Yield the histogram, as Prometheus counts: each limit has all calls that took no longer."""
        family = HistogramMetricFamily(
            "topicfs_call_duration_seconds", "How long calls that succeeded took.", labels=("operation",)
        )
        with self._guard:
            found = {name: (list(counts), self._sums[name]) for name, counts in self._counts.items()}
        for name, (counts, total) in found.items():
            so_far = 0
            buckets = []
            for at, count in enumerate(counts):
                so_far += count
                limit = "+Inf" if at == _LIMITS else repr((1 << (_FIRST_BITS + 2 * at)) / 1e9)
                buckets.append((limit, float(so_far)))
            family.add_metric((name,), buckets, total / 1e9)
        yield family
