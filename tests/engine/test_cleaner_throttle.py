"""How fast compactions may read and write: KAFKA_FORMAT 8.8, KAFKA_CASES P (throttle)."""

from __future__ import annotations

import threading
import time

import pytest
from patience import ended

from topicfs.engine.cleaner.throttle import Throttle


class Time:
    """Seconds that pass when somebody sleeps or works."""

    def __init__(self) -> None:
        self.now = 100.0

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_the_average_rate_stays_at_the_limit() -> None:
    passing = Time()
    throttle = Throttle(lambda: 1000.0, passing.clock, passing.sleep)
    began = passing.now
    total = 0
    for _ in range(200):
        passing.now += 0.01  # would be 10,000 bytes a second
        throttle(100)
        total += 100
    # What came since the last look, at most 0.3 s of it, has not been paid for yet.
    assert total - 3100 <= 1000 * (passing.now - began)
    assert total / (passing.now - began) == pytest.approx(1000, rel=0.15)


def test_below_the_limit_nobody_sleeps() -> None:
    passing = Time()
    throttle = Throttle(lambda: 1000.0, passing.clock, lambda _: pytest.fail("slept"))
    for _ in range(100):
        passing.now += 0.2
        throttle(100)


def test_a_new_limit_holds_from_the_next_look_on() -> None:
    passing = Time()
    rate = 1e300
    throttle = Throttle(lambda: rate, passing.clock, passing.sleep)
    throttle(10_000)
    passing.now += 1
    throttle(10_000)
    assert passing.now == 101.0
    rate = 1000.0
    passing.now += 1
    throttle(5000)
    assert passing.now == pytest.approx(101 + 5)


def test_a_long_sleep_ends_when_a_compaction_is_to_end() -> None:
    passing = Time()
    throttle = Throttle(lambda: 1.0, passing.clock, passing.sleep, lambda: passing.now > 103)
    throttle(0)
    passing.now += 1
    throttle(1_000_000)
    assert passing.now < 103.2


def test_all_threads_share_one_meter() -> None:
    # Alone each would be done in 0.4 s.
    throttle = Throttle(lambda: 150_000.0, time.monotonic, time.sleep)
    began = time.monotonic()

    def work() -> None:
        for _ in range(40):
            throttle(1000)
            time.sleep(0.01)

    threads = [threading.Thread(target=work, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    ended(*threads)
    assert time.monotonic() - began > 0.7
