"""Which partition is compacted next, and what stands in the way: KAFKA_FORMAT 8.3, 8.7, 8.8, KAFKA_CASES Q."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from cleaning import Cleaned, StandInCleaner
from store_bench import START, StoreBench, checked_store_bench

from topicfs import Record, Store
from topicfs.engine.cleaner.manager import RETRY_MS, CleaningJob
from topicfs.engine.cleaner.states import Phase
from topicfs.engine.errors import (
    CleaningAbortedError,
    CorruptBatchError,
    PolicyViolationError,
    UnknownPartitionError,
)
from topicfs.engine.partition.partition import Partition

FILE = "cleaner-offset-checkpoint"
COMPACT = {"cleanup.policy": "compact", "internal.segment.bytes": "110", "min.cleanable.dirty.ratio": "0"}
"""One record a segment."""
SOON_S = 60.0


@pytest.fixture
def store_bench(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Iterator[StoreBench]:
    with checked_store_bench(tmp_path / "backing", caplog) as made:
        made.open()
        yield made
        # A job that a test has grabbed and not ended would keep the store from closing.
        states = made.store.cleaning.states
        for key in made.store.partitions():
            if states.of(key) is Phase.IN_PROGRESS:
                states.end(key)


@pytest.fixture
def cleaner() -> StandInCleaner:
    return StandInCleaner()


def compacted(store_bench: StoreBench, topic: str, count: int = 5, **overrides: str) -> Partition:
    """A compacted topic of one partition, with a record in each segment."""
    more = {name.replace("_", "."): value for name, value in overrides.items()}
    partition = store_bench.store.create(topic, overrides={**COMPACT, **more})
    append(partition, count)
    return partition


def append(partition: Partition, count: int) -> None:
    for number in range(count):
        partition.append(Record(b"%030d" % number, b"key", START))


def work(store_bench: StoreBench, cleaner: StandInCleaner) -> str | None:
    """What was compacted."""
    return store_bench.store.cleaning.work(cleaner, store_bench.now).partition


def grabbed(store_bench: StoreBench) -> CleaningJob:
    job = store_bench.store.cleaning.grab_filthiest(store_bench.now)
    assert job is not None
    return job


def state(store_bench: StoreBench, topic: str) -> str:
    return store_bench.store.cleaning.states.of((topic, 0)).value


def cleaning_in_a_thread(store_bench: StoreBench, cleaner: StandInCleaner) -> threading.Thread:
    """A clean that goes on until it is aborted, or its `hold` is set."""
    cleaner.hold = cleaner.hold or threading.Event()
    thread = threading.Thread(target=work, args=(store_bench, cleaner))
    thread.start()
    assert cleaner.begun.wait(SOON_S)
    return thread


# -- choosing ---------------------------------------------------------------------------------------------


def test_the_dirtiest_log_is_chosen(store_bench: StoreBench, cleaner: StandInCleaner) -> None:
    for topic, clean in (("half", 2), ("dirty", 1), ("clean", 3)):
        compacted(store_bench, topic)
        store_bench.store.cleaning.offsets.put((topic, 0), clean)
    assert [work(store_bench, cleaner) for _ in range(3)] == ["dirty-0", "half-0", "clean-0"]
    assert work(store_bench, cleaner) is None
    assert cleaner.calls == [("dirty-0", 1, 4), ("half-0", 2, 4), ("clean-0", 3, 4)]


def test_what_is_asked_for_comes_first_however_little_of_it_is_dirty(
    store_bench: StoreBench, cleaner: StandInCleaner
) -> None:
    compacted(store_bench, "dirty")
    compacted(store_bench, "asked", min_cleanable_dirty_ratio="1.0")
    cleaning, woken = store_bench.store.cleaning, threading.Event()
    cleaning.wake = woken.set
    cleaning.offsets.put(("asked", 0), 3)
    cleaning.ask(("asked", 0))
    assert woken.is_set()
    assert work(store_bench, cleaner) == "asked-0"
    assert cleaning.asked == set()
    assert [work(store_bench, cleaner) for _ in range(2)] == ["dirty-0", None]
    # Where nothing can be compacted, what was asked for is done.
    cleaning.ask(("asked", 0))
    assert cleaning.work_asked(cleaner, store_bench.now) is None
    assert cleaning.asked == set()


def test_what_is_asked_for_stays_asked_for_until_it_is_done(
    store_bench: StoreBench, cleaner: StandInCleaner
) -> None:
    compacted(store_bench, "asked", min_cleanable_dirty_ratio="1.0")
    cleaning, key = store_bench.store.cleaning, ("asked", 0)
    cleaning.offsets.put(key, 3)
    cleaning.ask(key)
    thread = cleaning_in_a_thread(store_bench, cleaner)
    assert cleaning.is_asked(key)
    # What breaks it off does not answer it.
    with cleaning.paused(key):
        thread.join()
        assert cleaning.is_asked(key)
    cleaner.begun.clear()
    thread = cleaning_in_a_thread(store_bench, cleaner)
    # Who asks meanwhile means what has come since.
    cleaning.ask(key)
    assert cleaner.hold is not None
    cleaner.hold.set()
    thread.join()
    assert cleaning.is_asked(key)
    assert work(store_bench, cleaner) is None
    assert not cleaning.is_asked(key)


def test_what_is_asked_for_is_done_alone_and_only_of_topics_that_are_compacted(
    store_bench: StoreBench, cleaner: StandInCleaner
) -> None:
    for topic in ("dirty", "asked"):
        compacted(store_bench, topic)
    compacted(store_bench, "other", cleanup_policy="delete")
    cleaning = store_bench.store.cleaning
    with pytest.raises(PolicyViolationError, match=r"other: cleanup\.policy is delete"):
        cleaning.ask(("other", 0))
    cleaning.ask(("asked", 0))
    outcome = cleaning.work_asked(cleaner, store_bench.now)
    assert outcome is not None
    assert outcome.partition == "asked-0"
    assert cleaning.work_asked(cleaner, store_bench.now) is None
    assert work(store_bench, cleaner) == "dirty-0"


def test_what_is_asked_for_is_not_done_before_all_of_it_is_compacted(
    store_bench: StoreBench, cleaner: StandInCleaner
) -> None:
    """One clean goes as far as its map of keys reaches, and one may be aborted."""
    compacted(store_bench, "asked")
    cleaning = store_bench.store.cleaning
    cleaning.ask(("asked", 0))
    cleaner.failures["asked-0"] = CleaningAbortedError("the log was cut")
    assert work(store_bench, cleaner) == "asked-0"
    cleaner.failures.clear()
    cleaner.reach = 3
    assert cleaning.asked
    assert work(store_bench, cleaner) == "asked-0"
    assert cleaning.asked
    assert work(store_bench, cleaner) == "asked-0"
    assert cleaner.calls == [("asked-0", 0, 4), ("asked-0", 0, 4), ("asked-0", 3, 4)]
    assert not cleaning.asked
    # One that comes no further is done too: it would be asked for ever.
    append(store_bench.store.partition("asked-0"), 1)
    cleaner.reach = 0
    cleaning.ask(("asked", 0))
    assert work(store_bench, cleaner) == "asked-0"
    assert not cleaning.asked


def test_one_in_progress_one_paused_and_one_set_aside_are_skipped(store_bench: StoreBench) -> None:
    for topic in ("a", "b", "c", "d"):
        compacted(store_bench, topic)
    cleaning = store_bench.store.cleaning
    first = grabbed(store_bench)
    left = [topic for topic in ("a", "b", "c", "d") if topic != first.slot.topic]
    cleaning.abort_and_pause((left[0], 0))
    cleaning.uncleanable[left[1], 0] = "damaged"
    assert grabbed(store_bench).slot.topic == left[2]
    assert cleaning.grab_filthiest(store_bench.now) is None
    assert [state(store_bench, topic) for topic in left] == ["paused", "none", "in progress"]


def test_without_a_filthy_log_there_is_nothing_to_grab(store_bench: StoreBench) -> None:
    compacted(store_bench, "empty", 0)
    compacted(store_bench, "one", 1)
    compacted(store_bench, "mild", min_cleanable_dirty_ratio="1")
    store_bench.store.create("other")
    assert store_bench.store.cleaning.grab_filthiest(store_bench.now) is None


def test_one_that_was_done_is_not_grabbed_again_until_it_is_dirty(
    store_bench: StoreBench, cleaner: StandInCleaner
) -> None:
    partition = compacted(store_bench, "orders")
    assert work(store_bench, cleaner) == "orders-0"
    assert work(store_bench, cleaner) is None
    append(partition, 1)
    assert work(store_bench, cleaner) == "orders-0"
    assert cleaner.calls[-1] == ("orders-0", 4, 5)


def test_max_lag_forces_a_clean_despite_the_ratio(store_bench: StoreBench, cleaner: StandInCleaner) -> None:
    compacted(store_bench, "orders", min_cleanable_dirty_ratio="1", max_compaction_lag_ms="1000")
    assert work(store_bench, cleaner) is None
    store_bench.now += 1001
    assert work(store_bench, cleaner) == "orders-0"
    assert work(store_bench, cleaner) is None


def test_a_partition_that_is_not_in_use_is_loaded_only_to_be_compacted(
    store_bench: StoreBench, cleaner: StandInCleaner
) -> None:
    compacted(store_bench, "dirty")
    compacted(store_bench, "clean", 1)
    store_bench.reopen()
    assert work(store_bench, cleaner) == "dirty-0"
    loaded = {slot.name: slot.partition is not None for slot in store_bench.store.slots()}
    assert loaded == {"dirty-0": True, "clean-0": False}


def test_a_log_that_cannot_be_looked_at_is_named_and_the_others_go_on(
    store_bench: StoreBench,
    cleaner: StandInCleaner,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    store_bench.warnings = True
    bad = compacted(store_bench, "bad", max_compaction_lag_ms="1000000")
    compacted(store_bench, "good")

    def damaged(self: object) -> int:
        if "bad-0" in str(self):
            raise CorruptBatchError("no batch")
        return 0

    monkeypatch.setattr("topicfs.engine.segment.segment.Segment.first_batch_timestamp", damaged)
    assert work(store_bench, cleaner) == "good-0"
    assert bad.log.failure is None
    assert store_bench.store.cleaning.uncleanable == {("bad", 0): "no batch"}
    assert "bad-0: cannot be compacted" in caplog.text


# -- how far ----------------------------------------------------------------------------------------------


def test_how_far_it_came_is_written_down(store_bench: StoreBench, cleaner: StandInCleaner) -> None:
    compacted(store_bench, "orders")
    work(store_bench, cleaner)
    assert store_bench._checkpoint(FILE) == {"orders-0": 4}
    store = store_bench.reopen()
    assert store.cleaning.offsets.get(("orders", 0)) == 4
    assert work(store_bench, cleaner) is None


@pytest.mark.parametrize("written", [1000, 0])
def test_a_checkpoint_outside_the_log_is_written_anew_even_if_the_log_is_not_chosen(
    store_bench: StoreBench, written: int
) -> None:
    partition = compacted(store_bench, "orders", min_cleanable_dirty_ratio="1")
    partition.log.raise_start_offset(2)
    store_bench.store.cleaning.offsets.put(("orders", 0), written)
    store_bench.store.cleaning.offsets.put(("else", 0), 7)
    store_bench.store.configure("orders", {"min.compaction.lag.ms": "1000"})
    assert store_bench.store.cleaning.grab_filthiest(store_bench.now) is None
    assert store_bench._checkpoint(FILE) == {"orders-0": 2, "else-0": 7}


def test_entries_are_added_lowered_and_removed(store_bench: StoreBench) -> None:
    offsets = store_bench.store.cleaning.offsets
    offsets.put(("a", 0), 10)
    offsets.put(("b", 0), 20)
    offsets.lower(("a", 0), 15)
    offsets.lower(("b", 0), 15)
    offsets.lower(("c", 0), 15)
    assert store_bench._checkpoint(FILE) == {"a-0": 10, "b-0": 15}
    offsets.forget(("a", 0))
    assert store_bench._checkpoint(FILE) == {"b-0": 15}


def test_entries_of_partitions_that_are_gone_are_dropped_at_the_opening(store_bench: StoreBench) -> None:
    compacted(store_bench, "orders")
    store_bench.store.close()
    store_bench.file(f"logs/{FILE}", "0\n2\norders 0 3\ngone 0 4\n")
    store_bench.open()
    assert store_bench._checkpoint(FILE) == {"orders-0": 3}


def test_a_write_that_failed_is_made_up_for_by_the_next(
    store_bench: StoreBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    offsets = store_bench.store.cleaning.offsets

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("topicfs.engine.files.checkpoint.write_atomically", fail)
    with pytest.raises(OSError, match="space"):
        offsets.put(("a", 0), 10)
    monkeypatch.undo()
    offsets.forget(("b", 0))
    assert store_bench._checkpoint(FILE) == {"a-0": 10}


def test_a_truncation_below_lowers_it_to_the_active_base(
    store_bench: StoreBench, cleaner: StandInCleaner
) -> None:
    compacted(store_bench, "orders", 8)
    work(store_bench, cleaner)
    assert store_bench._checkpoint(FILE) == {"orders-0": 7}
    store_bench.store.truncate("orders", 0, 7)
    assert store_bench._checkpoint(FILE) == {"orders-0": 7}
    store_bench.store.truncate("orders", 0, 3)
    assert store_bench._checkpoint(FILE) == {"orders-0": 3}
    store_bench.store.restart_at("orders", 0, 100)
    append(store_bench.store.partition("orders-0"), 4)
    assert grabbed(store_bench).candidate.first_dirty == 100


def test_a_truncation_lowers_it_before_anything_is_cut(
    store_bench: StoreBench, cleaner: StandInCleaner, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition = compacted(store_bench, "orders", 8)
    work(store_bench, cleaner)

    def crash(offset: int) -> bool:
        assert store_bench._checkpoint(FILE) == {"orders-0": 3}
        raise KeyboardInterrupt

    monkeypatch.setattr(partition, "truncate_to", crash)
    with pytest.raises(KeyboardInterrupt):
        store_bench.store.truncate("orders", 0, 3)
    assert state(store_bench, "orders") == "none"


# -- states -----------------------------------------------------------------------------------------------


def test_done_without_work_under_way_is_an_error(store_bench: StoreBench) -> None:
    compacted(store_bench, "orders")
    job = grabbed(store_bench)
    store_bench.store.cleaning.done(job, Cleaned(4))
    assert store_bench._checkpoint(FILE) == {"orders-0": 4}
    with pytest.raises(ValueError, match="none"):
        store_bench.store.cleaning.done(job, Cleaned(4))
    store_bench.store.cleaning.abort_and_pause(("orders", 0))
    with pytest.raises(ValueError, match="paused"):
        store_bench.store.cleaning.done(job, Cleaned(4))


def test_done_after_an_abort_writes_nothing_down_and_leaves_it_paused(store_bench: StoreBench) -> None:
    compacted(store_bench, "orders")
    job, cleaning = grabbed(store_bench), store_bench.store.cleaning
    aborting = threading.Thread(target=cleaning.abort_and_pause, args=(("orders", 0),))
    aborting.start()
    while state(store_bench, "orders") != "aborted":
        pass
    with pytest.raises(CleaningAbortedError):
        cleaning.states.check(("orders", 0))
    assert aborting.is_alive()
    cleaning.done(job, Cleaned(4))
    aborting.join(SOON_S)
    assert state(store_bench, "orders") == "paused"
    assert not (store_bench.logs / FILE).exists()
    cleaning.resume(("orders", 0))
    assert state(store_bench, "orders") == "none"


def test_pauses_are_counted(store_bench: StoreBench) -> None:
    compacted(store_bench, "orders")
    cleaning, key = store_bench.store.cleaning, ("orders", 0)
    for _ in range(3):
        cleaning.abort_and_pause(key)
    cleaning.abort(key)
    for _ in range(2):
        cleaning.resume(key)
        assert cleaning.grab_filthiest(store_bench.now) is None
    cleaning.resume(key)
    with pytest.raises(ValueError, match="none"):
        cleaning.resume(key)
    assert grabbed(store_bench).slot.key == key


def test_two_aborts_at_once_leave_no_state(store_bench: StoreBench, cleaner: StandInCleaner) -> None:
    compacted(store_bench, "orders")
    thread = cleaning_in_a_thread(store_bench, cleaner)
    aborts = [
        threading.Thread(target=store_bench.store.cleaning.abort, args=(("orders", 0),)) for _ in range(4)
    ]
    for each in aborts:
        each.start()
    for each in (*aborts, thread):
        each.join(SOON_S)
    assert state(store_bench, "orders") == "none"
    cleaner.hold = None
    assert work(store_bench, cleaner) == "orders-0"


# -- what breaks a clean off ------------------------------------------------------------------------------


def test_deleting_the_partition_breaks_its_clean_off_and_forgets_it(
    store_bench: StoreBench, cleaner: StandInCleaner
) -> None:
    compacted(store_bench, "orders")
    store_bench.store.cleaning.offsets.put(("orders", 0), 1)
    thread = cleaning_in_a_thread(store_bench, cleaner)
    store_bench.store.delete("orders-0")
    thread.join(SOON_S)
    assert state(store_bench, "orders") == "none"
    assert store_bench._checkpoint(FILE) == {}
    compacted(store_bench, "orders")
    cleaner.hold = None
    assert work(store_bench, cleaner) == "orders-0"
    assert cleaner.calls[-1] == ("orders-0", 0, 4)


def test_truncating_breaks_the_clean_off(store_bench: StoreBench, cleaner: StandInCleaner) -> None:
    compacted(store_bench, "orders")
    thread = cleaning_in_a_thread(store_bench, cleaner)
    store_bench.store.truncate("orders", 0, 2)
    thread.join(SOON_S)
    assert state(store_bench, "orders") == "none"
    assert not (store_bench.logs / FILE).exists()


@pytest.mark.parametrize("policy", ["delete", "compact,delete"])
def test_another_policy_breaks_the_clean_off(
    store_bench: StoreBench, cleaner: StandInCleaner, policy: str
) -> None:
    compacted(store_bench, "orders")
    thread = cleaning_in_a_thread(store_bench, cleaner)
    store_bench.store.configure("orders", {"cleanup.policy": policy})
    thread.join(SOON_S)
    assert not thread.is_alive()
    assert state(store_bench, "orders") == "none"


def test_other_settings_leave_the_clean_alone(store_bench: StoreBench, cleaner: StandInCleaner) -> None:
    compacted(store_bench, "orders")
    thread = cleaning_in_a_thread(store_bench, cleaner)
    store_bench.store.configure("orders", {"retention.ms": "5"})
    assert state(store_bench, "orders") == "in progress"
    assert cleaner.hold is not None
    cleaner.hold.set()
    thread.join(SOON_S)
    assert store_bench._checkpoint(FILE) == {"orders-0": 4}


@pytest.mark.parametrize("how", [Store.close, Store.abandon])
def test_closing_the_store_breaks_cleans_off(
    store_bench: StoreBench, cleaner: StandInCleaner, how: object
) -> None:
    compacted(store_bench, "orders")
    thread = cleaning_in_a_thread(store_bench, cleaner)
    assert callable(how)
    how(store_bench.store)
    thread.join(SOON_S)
    assert not thread.is_alive()
    assert store_bench.store.cleaning.grab_filthiest(store_bench.now) is None
    store_bench.open()


# -- failures ---------------------------------------------------------------------------------------------


def test_a_damaged_partition_is_set_aside_and_the_others_are_compacted(
    store_bench: StoreBench, cleaner: StandInCleaner
) -> None:
    store_bench.warnings = True
    for topic in ("bad", "good"):
        compacted(store_bench, topic)
    cleaner.failures["bad-0"] = CorruptBatchError("at position 7")
    outcomes = [store_bench.store.cleaning.work(cleaner, store_bench.now) for _ in range(4)]
    assert sorted(cleaner.names) == ["bad-0", "good-0"]
    assert [each.error for each in outcomes if each.partition == "bad-0"] == ["at position 7"]
    assert store_bench.store.cleaning.uncleanable == {("bad", 0): "at position 7"}
    assert store_bench._checkpoint(FILE) == {"good-0": 4}
    store_bench.store.delete("bad-0")
    assert store_bench.store.cleaning.uncleanable == {}


def test_what_was_set_aside_is_tried_again_after_a_restart(
    store_bench: StoreBench, cleaner: StandInCleaner
) -> None:
    store_bench.warnings = True
    compacted(store_bench, "bad")
    cleaner.failures["bad-0"] = CorruptBatchError("at position 7")
    work(store_bench, cleaner)
    store_bench.reopen()
    assert store_bench.store.cleaning.uncleanable == {}
    assert work(store_bench, cleaner) == "bad-0"


def test_an_error_of_the_disk_is_reported_and_tried_again_later(
    store_bench: StoreBench, cleaner: StandInCleaner
) -> None:
    store_bench.warnings = True
    partition = compacted(store_bench, "full")
    compacted(store_bench, "good")
    cleaner.failures["full-0"] = OSError(28, "No space left on device")
    for _ in range(4):
        work(store_bench, cleaner)
    assert sorted(cleaner.names) == ["full-0", "good-0"]
    assert store_bench.store.cleaning.uncleanable == {}
    assert partition.log.failure is None
    del cleaner.failures["full-0"]
    store_bench.now += RETRY_MS + 1
    assert work(store_bench, cleaner) == "full-0"
    assert store_bench.store.cleaning.failing == {}


def test_a_mistake_comes_out_and_sets_the_partition_aside(
    store_bench: StoreBench, cleaner: StandInCleaner
) -> None:
    store_bench.warnings = True
    compacted(store_bench, "bad")
    cleaner.failures["bad-0"] = KeyError("x")
    with pytest.raises(KeyError):
        work(store_bench, cleaner)
    assert state(store_bench, "bad") == "none"
    assert work(store_bench, cleaner) is None


def test_a_partition_that_goes_offline_is_let_go(store_bench: StoreBench, cleaner: StandInCleaner) -> None:
    store_bench.warnings = True
    store_bench.verified = False
    partition = compacted(store_bench, "gone")
    compacted(store_bench, "good")
    partition.log.failure = OSError(5, "Input/output error")
    assert work(store_bench, cleaner) == "good-0"
    assert work(store_bench, cleaner) is None
    assert store_bench.store.cleaning.uncleanable == {}


# -- retention --------------------------------------------------------------------------------------------


def limited(store_bench: StoreBench, policy: str) -> Partition:
    partition = store_bench.store.create(
        policy.replace(",", "_") or "keep",
        overrides={**COMPACT, "cleanup.policy": policy, "retention.bytes": "0"},
    )
    append(partition, 3)
    return partition


def test_cleaners_remove_from_compacted_topics_and_the_retention_job_from_the_others(
    store_bench: StoreBench,
) -> None:
    both, deleted = limited(store_bench, "compact,delete"), limited(store_bench, "delete")
    compact, keep = limited(store_bench, "compact"), limited(store_bench, "")
    compact.log.raise_start_offset(1)
    keep.log.raise_start_offset(1)
    removed = store_bench.store.cleaning.retain_compacted(store_bench.now)
    assert removed.segments == 4
    assert [len(each.log.chain.segments) for each in (both, deleted, compact, keep)] == [1, 3, 2, 3]
    assert store_bench.store.upkeep.retain().segments == 4
    assert [len(each.log.chain.segments) for each in (both, deleted, compact, keep)] == [1, 1, 2, 2]
    assert store_bench.store.retention.removed.segments == 8


def test_a_partition_set_aside_at_work_or_paused_is_left_alone_by_retention(store_bench: StoreBench) -> None:
    limited(store_bench, "compact,delete")
    deleted = limited(store_bench, "delete")
    cleaning = store_bench.store.cleaning
    cleaning.uncleanable["compact_delete", 0] = "damaged"
    assert cleaning.retain_compacted(store_bench.now).segments == 0
    cleaning.uncleanable.clear()
    job = grabbed(store_bench)
    assert cleaning.retain_compacted(store_bench.now).segments == 0
    cleaning.done(job, None)
    cleaning.abort_and_pause(("delete", 0))
    assert store_bench.store.upkeep.retain().segments == 0
    cleaning.resume(("delete", 0))
    assert store_bench.store.upkeep.retain().segments == 3
    assert deleted.start_offset == 3


def test_a_policy_that_changes_is_followed_at_once(store_bench: StoreBench, cleaner: StandInCleaner) -> None:
    partition = limited(store_bench, "delete")
    store_bench.store.configure("delete", {"cleanup.policy": "compact"})
    assert store_bench.store.upkeep.retain().segments == 0
    assert work(store_bench, cleaner) == "delete-0"
    assert len(partition.log.chain.segments) == 3
    store_bench.store.configure("delete", {"cleanup.policy": "delete"})
    append(partition, 2)
    assert work(store_bench, cleaner) is None
    assert store_bench.store.upkeep.retain().segments == 5


def test_a_limit_that_changes_is_followed_at_once(store_bench: StoreBench) -> None:
    partition = store_bench.store.create("orders", overrides={"internal.segment.bytes": "110"})
    append(partition, 5)
    assert store_bench.store.upkeep.retain().segments == 0
    store_bench.store.configure("orders", {"retention.bytes": "0"})
    assert store_bench.store.upkeep.retain().segments == 5


def test_a_compacted_topic_that_loses_its_policy_while_it_is_cleaned_is_not_checkpointed(
    store_bench: StoreBench, cleaner: StandInCleaner
) -> None:
    compacted(store_bench, "orders")
    thread = cleaning_in_a_thread(store_bench, cleaner)
    store_bench.store.configure("orders", {"cleanup.policy": "delete"})
    thread.join(SOON_S)
    assert not (store_bench.logs / FILE).exists()


def test_partitions_that_are_not_in_use_get_retention_and_are_loaded_only_for_it(
    store_bench: StoreBench,
) -> None:
    for topic in ("old", "young"):
        store_bench.store.create(topic, overrides={"internal.segment.bytes": "110", "retention.ms": "1000"})
    append(store_bench.store.partition("old-0"), 3)
    store_bench.store.partition("young-0").append(Record(b"v", timestamp=START + 10_000))
    store_bench.reopen()
    store_bench.now += 1000
    assert store_bench.store.upkeep.retain().segments == 0
    store_bench.now += 1
    assert store_bench.store.upkeep.retain().segments == 3
    assert {slot.name: slot.partition is not None for slot in store_bench.store.slots()} == {
        "old-0": True,
        "young-0": False,
    }
    assert store_bench.store.partition("old-0").start_offset == 3


def test_a_partition_whose_retention_fails_is_reported_once_and_the_others_go_on(
    store_bench: StoreBench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store_bench.warnings = True
    for topic in ("bad", "good"):
        append(
            store_bench.store.create(
                topic, overrides={"internal.segment.bytes": "110", "retention.bytes": "0"}
            ),
            3,
        )
    real = type(store_bench.store.partition("bad-0").log).raise_start_offset

    def fail(self: object, offset: int) -> bool:
        if getattr(self, "name", "") == "bad-0":
            raise OSError(28, "No space left on device")
        return real(self, offset)  # type: ignore[arg-type]

    monkeypatch.setattr("topicfs.engine.partition.log.Log.raise_start_offset", fail)
    assert store_bench.store.upkeep.retain().segments == 3
    store_bench.store.upkeep.retain()
    assert list(store_bench.store.retention.failing) == ["bad-0"]
    said = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert len(said) == 1
    monkeypatch.undo()
    store_bench.store.upkeep.retain()
    assert store_bench.store.retention.failing == {}
    assert store_bench.store.partition("bad-0").start_offset == 3


def test_a_partition_deleted_meanwhile_is_no_failure(
    store_bench: StoreBench, cleaner: StandInCleaner
) -> None:
    compacted(store_bench, "orders")
    cleaner.failures["orders-0"] = UnknownPartitionError("gone")
    cleaner.also = lambda log: log._shut()
    store_bench.store.partition("orders-0")
    slots = store_bench.store.slots()
    store_bench.store.delete("orders-0")
    assert slots[0].gone
    store_bench.store.cleaning._slots = lambda: slots  # type: ignore[method-assign]
    assert work(store_bench, cleaner) is None
    assert store_bench.store.cleaning.uncleanable == {}
