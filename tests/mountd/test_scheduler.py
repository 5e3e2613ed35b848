"""Background jobs and their threads: on time, failures kept to themselves, a prompt stop."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from patience import eventually, promptly

from topicfs.engine.errors import ClosedError
from topicfs.engine.jobs import LASTS, Job, Jobs
from topicfs.engine.record import MAX_INT64, Record, steady_ms
from topicfs.engine.store.store import Store
from topicfs.mountd.scheduler import Scheduler

SOON_S = 60.0
pytestmark = pytest.mark.busy


def fails(error: Exception) -> Callable[[], object]:
    def function() -> object:
        raise error

    return function


def started(*jobs: Job) -> tuple[Scheduler, Jobs]:
    listed = Jobs(jobs, lambda: 1234)
    scheduler = Scheduler(listed)
    scheduler.start()
    return scheduler, listed


def test_job_runs_when_its_delay_is_over() -> None:
    ran = threading.Event()
    scheduler, jobs = started(Job("soon", 60_000, ran.set, 20))
    assert ran.wait(SOON_S)
    scheduler.stop()
    assert jobs.states["soon"].runs == 1
    assert jobs.states["soon"].last_run == 1234


def test_job_that_is_not_due_does_not_run() -> None:
    scheduler, jobs = started(Job("later", 60_000, lambda: pytest.fail("ran"), 60_000))
    time.sleep(0.05)
    scheduler.stop()
    assert jobs.states["later"].runs == 0
    assert jobs.states["later"].healthy


def test_job_is_next_due_a_period_after_its_start() -> None:
    jobs = Jobs([Job("slow", 60_000, lambda: time.sleep(0.05), 0)])
    before = steady_ms()
    jobs.run("slow")
    state = jobs.states["slow"]
    assert state.duration_s >= 0.05
    assert before + 60_000 <= state.due_ms <= steady_ms() + 60_001 - state.duration_s * 1000


def test_no_period_is_shorter_than_a_second() -> None:
    jobs = Jobs([Job("eager", 0, lambda: None, 0)])
    before = steady_ms()
    jobs.run("eager")
    assert jobs.states["eager"].due_ms >= before + 1000


def test_longest_period_means_never() -> None:
    scheduler, jobs = started(Job("never", MAX_INT64, lambda: pytest.fail("ran"), MAX_INT64))
    time.sleep(0.02)
    scheduler.stop()
    assert jobs.states["never"].runs == 0


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), ClosedError("t-0 is closed")])
def test_expected_failure_is_told_in_words_and_leaves_the_others(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    ran = threading.Event()
    scheduler, jobs = started(Job("bad", 60_000, fails(error), 0), Job("good", 60_000, ran.set, 1))
    assert ran.wait(SOON_S)
    scheduler.stop()
    state = jobs.states["bad"]
    assert (state.runs, state.errors, state.error, state.healthy) == (1, 1, str(error), False)
    assert jobs.states["good"].healthy
    [record] = caplog.records
    assert record.getMessage() == f"bad failed, tried again when it is next due: {error}"
    assert record.exc_info is None


def test_mistake_in_a_job_is_logged_with_its_stack_and_leaves_the_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ran = threading.Event()
    scheduler, jobs = started(Job("bad", 60_000, fails(KeyError("x")), 0), Job("good", 60_000, ran.set, 1))
    assert ran.wait(SOON_S)
    scheduler.stop()
    assert jobs.states["bad"].error == "KeyError('x')"
    assert caplog.records[0].exc_info is not None


def test_job_that_works_again_is_healthy_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    answers = iter([OSError("full"), None])

    def function() -> None:
        if (error := next(answers)) is not None:
            raise error

    jobs = Jobs([Job("fickle", 1000, function, 0)])
    jobs.run("fickle")
    jobs.run("fickle")
    state = jobs.states["fickle"]
    assert (state.runs, state.errors, state.healthy) == (2, 1, True)
    assert caplog.records[-1].getMessage() == "fickle: works again"


def test_stop_is_prompt_between_jobs() -> None:
    def stop() -> float:
        scheduler, _ = started(Job("later", 60_000, lambda: None, 60_000))
        before = time.monotonic()
        scheduler.stop()
        return time.monotonic() - before

    promptly(1, stop)


def test_stop_waits_for_the_running_job_and_begins_no_other() -> None:
    running, may_end = threading.Event(), threading.Event()

    def work() -> None:
        running.set()
        assert may_end.wait(SOON_S)

    scheduler, jobs = started(
        Job("long", 60_000, work, 0), Job("next", 60_000, lambda: pytest.fail("ran"), 1)
    )
    assert running.wait(SOON_S)
    assert scheduler.running == "long"
    stopping = threading.Thread(target=scheduler.stop)
    stopping.start()
    time.sleep(0.05)
    assert stopping.is_alive()
    may_end.set()
    stopping.join(SOON_S)
    assert not stopping.is_alive()
    assert jobs.states["long"].runs == 1
    assert jobs.states["next"].runs == 0


def test_stop_twice_and_stop_without_start_do_nothing() -> None:
    scheduler = Scheduler(Jobs([]))
    scheduler.stop()
    scheduler, _ = started(Job("later", 60_000, lambda: None, 60_000))
    scheduler.stop()
    scheduler.stop()


def test_a_thread_does_its_own_jobs_only() -> None:
    ran: list[str] = []

    def note() -> None:
        ran.append(threading.current_thread().name)

    jobs = Jobs(
        [
            Job("one", 60_000, note, 0, "a"),
            Job("two", 60_000, note, 0, "b"),
            Job("three", 60_000, note, 0, "a"),
        ]
    )
    schedulers = [Scheduler(jobs, name) for name in jobs.threads()]
    for scheduler in schedulers:
        scheduler.start()
    eventually(lambda: len(ran) == 3, "all jobs")
    for scheduler in schedulers:
        scheduler.stop()
    assert sorted(ran) == ["a", "a", "b"]


def test_work_that_lasts_begins_anew_where_it_fails_and_is_healthy_from_then_on() -> None:
    again, may_end = threading.Event(), threading.Event()
    begins = iter([OSError("full"), None])

    def work() -> None:
        if (error := next(begins, None)) is not None:
            raise error
        again.set()
        assert may_end.wait(SOON_S)

    scheduler, jobs = started(Job("lasts", LASTS, work, 0))
    assert again.wait(SOON_S)
    state = jobs.states["lasts"]
    assert (state.errors, state.healthy) == (1, True)
    may_end.set()
    scheduler.stop()


# -- what a store wants done --------------------------------------------------------------------------


def test_periods_come_from_the_stores_settings(tmp_path: Path) -> None:
    settings = {
        "log.flush.offset.checkpoint.interval.ms": "7000",
        "log.flush.start.offset.checkpoint.interval.ms": "8000",
        "replica.high.watermark.checkpoint.interval.ms": "9000",
        "producer.id.expiration.check.interval.ms": "10000",
        "log.flush.scheduler.interval.ms": "11000",
        "log.initial.task.delay.ms": "12000",
        "log.retention.check.interval.ms": "13000",
    }
    with Store.open(tmp_path, settings, create=True) as store:
        found = {job.name: (job.interval_ms, job.delay_ms) for job in store.upkeep.jobs()}
    assert found == {
        "flush of sealed segments": (1000, 1000),
        "flush.ms": (11000, 11000),
        "removal of deleted files": (1000, 1000),
        "segment.ms": (1000, 1000),
        "checkpoint of recovery points": (7000, 12000),
        "checkpoint of start offsets": (8000, 12000),
        "checkpoint of high watermarks": (9000, 9000),
        "expiry of producers": (10000, 10000),
        "retention": (13000, 12000),
        "commits of inboxes": (1000, 1000),
        "removal of old files of inboxes": (60_000, 60_000),
        "transactions": (1000, 1000),
        "expiry of transactions": (10_000, 10_000),
    }


def test_flushes_are_looked_for_each_second_where_no_interval_is_set(tmp_path: Path) -> None:
    with Store.open(tmp_path, create=True) as store:
        assert {job.name: job.interval_ms for job in store.upkeep.jobs()}["flush.ms"] == 1000


def test_jobs_do_what_they_are_named_for(tmp_path: Path) -> None:
    with Store.open(tmp_path, create=True) as store:
        partition = store.create("t", overrides={"flush.ms": "0"})
        partition.append_lines(b"a\nb\n")
        jobs = Jobs(store.upkeep.jobs())
        for name in jobs.states:
            jobs.run(name)
        assert all(state.healthy for state in jobs.states.values())
        assert partition.recovery_point == 2
        assert "t 0 2" in (tmp_path / "logs" / "recovery-point-offset-checkpoint").read_text()
        assert "t 0 2" in (tmp_path / "logs" / "replication-offset-checkpoint").read_text()


def test_retention_removes_what_is_due_from_topics_that_are_not_compacted(tmp_path: Path) -> None:
    small = {"internal.segment.bytes": "110", "retention.bytes": "0"}
    with Store.open(tmp_path, create=True) as store:
        deleted = store.create("d", overrides=small)
        compacted = store.create("c", overrides={**small, "cleanup.policy": "compact,delete"})
        for partition in (deleted, compacted):
            for _ in range(3):
                partition.append(Record(b"value", b"key"))
        jobs = Jobs(store.upkeep.jobs())
        jobs.run("retention")
        assert jobs.states["retention"].healthy
        assert (deleted.start_offset, compacted.start_offset) == (3, 0)
