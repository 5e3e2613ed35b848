"""Which partition is compacted next, and what stands in the way: KAFKA_FORMAT 8.3, 8.7, 8.8, KAFKA_CASES Q."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from cleaning import Cleaned, StandInCleaner
from houses import START, House, living

from topicfs import Record, Store
from topicfs.engine.cleaner.manager import RETRY_MS, Job
from topicfs.engine.cleaner.states import Phase
from topicfs.engine.errors import CleaningAbortedError, CorruptBatchError, UnknownPartitionError
from topicfs.engine.partition.partition import Partition

FILE = "cleaner-offset-checkpoint"
COMPACT = {"cleanup.policy": "compact", "internal.segment.bytes": "110", "min.cleanable.dirty.ratio": "0"}
"""One record a segment."""
SOON_S = 60.0


@pytest.fixture
def house(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Iterator[House]:
    with living(tmp_path / "backing", caplog) as made:
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


def compacted(house: House, topic: str, count: int = 5, **overrides: str) -> Partition:
    """A compacted topic of one partition, with a record in each segment."""
    more = {name.replace("_", "."): value for name, value in overrides.items()}
    partition = house.store.create(topic, overrides={**COMPACT, **more})
    append(partition, count)
    return partition


def append(partition: Partition, count: int) -> None:
    for number in range(count):
        partition.append(Record(b"%030d" % number, b"key", START))


def work(house: House, cleaner: StandInCleaner) -> str | None:
    """What was compacted."""
    return house.store.cleaning.work(cleaner, house.now).partition


def grabbed(house: House) -> Job:
    job = house.store.cleaning.grab_filthiest(house.now)
    assert job is not None
    return job


def state(house: House, topic: str) -> str:
    return house.store.cleaning.states.of((topic, 0)).value


def cleaning_in_a_thread(house: House, cleaner: StandInCleaner) -> threading.Thread:
    """A clean that goes on until it is aborted, or its `hold` is set."""
    cleaner.hold = cleaner.hold or threading.Event()
    thread = threading.Thread(target=work, args=(house, cleaner))
    thread.start()
    assert cleaner.begun.wait(SOON_S)
    return thread


# -- choosing ---------------------------------------------------------------------------------------------


def test_the_dirtiest_log_is_chosen(house: House, cleaner: StandInCleaner) -> None:
    for topic, clean in (("half", 2), ("dirty", 1), ("clean", 3)):
        compacted(house, topic)
        house.store.cleaning.offsets.put((topic, 0), clean)
    assert [work(house, cleaner) for _ in range(3)] == ["dirty-0", "half-0", "clean-0"]
    assert work(house, cleaner) is None
    assert cleaner.calls == [("dirty-0", 1, 4), ("half-0", 2, 4), ("clean-0", 3, 4)]


def test_one_in_progress_one_paused_and_one_set_aside_are_skipped(house: House) -> None:
    for topic in ("a", "b", "c", "d"):
        compacted(house, topic)
    cleaning = house.store.cleaning
    first = grabbed(house)
    left = [topic for topic in ("a", "b", "c", "d") if topic != first.slot.topic]
    cleaning.abort_and_pause((left[0], 0))
    cleaning.uncleanable[left[1], 0] = "damaged"
    assert grabbed(house).slot.topic == left[2]
    assert cleaning.grab_filthiest(house.now) is None
    assert [state(house, topic) for topic in left] == ["paused", "none", "in progress"]


def test_without_a_filthy_log_there_is_nothing_to_grab(house: House) -> None:
    compacted(house, "empty", 0)
    compacted(house, "one", 1)
    compacted(house, "mild", min_cleanable_dirty_ratio="1")
    house.store.create("other")
    assert house.store.cleaning.grab_filthiest(house.now) is None


def test_one_that_was_done_is_not_grabbed_again_until_it_is_dirty(
    house: House, cleaner: StandInCleaner
) -> None:
    partition = compacted(house, "orders")
    assert work(house, cleaner) == "orders-0"
    assert work(house, cleaner) is None
    append(partition, 1)
    assert work(house, cleaner) == "orders-0"
    assert cleaner.calls[-1] == ("orders-0", 4, 5)


def test_max_lag_forces_a_clean_despite_the_ratio(house: House, cleaner: StandInCleaner) -> None:
    compacted(house, "orders", min_cleanable_dirty_ratio="1", max_compaction_lag_ms="1000")
    assert work(house, cleaner) is None
    house.now += 1001
    assert work(house, cleaner) == "orders-0"
    assert work(house, cleaner) is None


def test_a_partition_that_is_not_in_use_is_loaded_only_to_be_compacted(
    house: House, cleaner: StandInCleaner
) -> None:
    compacted(house, "dirty")
    compacted(house, "clean", 1)
    house.reopen()
    assert work(house, cleaner) == "dirty-0"
    loaded = {slot.name: slot.partition is not None for slot in house.store.slots()}
    assert loaded == {"dirty-0": True, "clean-0": False}


def test_a_log_that_cannot_be_looked_at_is_named_and_the_others_go_on(
    house: House, cleaner: StandInCleaner, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    house.warnings = True
    bad = compacted(house, "bad", max_compaction_lag_ms="1000000")
    compacted(house, "good")

    def damaged(self: object) -> int:
        if "bad-0" in str(self):
            raise CorruptBatchError("no batch")
        return 0

    monkeypatch.setattr("topicfs.engine.segment.stored.StoredSegment.first_batch_timestamp", damaged)
    assert work(house, cleaner) == "good-0"
    assert bad.log.failure is None
    assert house.store.cleaning.uncleanable == {("bad", 0): "no batch"}
    assert "bad-0: cannot be compacted" in caplog.text


# -- how far ----------------------------------------------------------------------------------------------


def test_how_far_it_came_is_written_down(house: House, cleaner: StandInCleaner) -> None:
    compacted(house, "orders")
    work(house, cleaner)
    assert house._checkpoint(FILE) == {"orders-0": 4}
    store = house.reopen()
    assert store.cleaning.offsets.get(("orders", 0)) == 4
    assert work(house, cleaner) is None


@pytest.mark.parametrize("written", [1000, 0])
def test_a_checkpoint_outside_the_log_is_written_anew_even_if_the_log_is_not_chosen(
    house: House, written: int
) -> None:
    partition = compacted(house, "orders", min_cleanable_dirty_ratio="1")
    partition.log.raise_start_offset(2)
    house.store.cleaning.offsets.put(("orders", 0), written)
    house.store.cleaning.offsets.put(("else", 0), 7)
    house.store.configure("orders", {"min.compaction.lag.ms": "1000"})
    assert house.store.cleaning.grab_filthiest(house.now) is None
    assert house._checkpoint(FILE) == {"orders-0": 2, "else-0": 7}


def test_entries_are_added_lowered_and_removed(house: House) -> None:
    offsets = house.store.cleaning.offsets
    offsets.put(("a", 0), 10)
    offsets.put(("b", 0), 20)
    offsets.lower(("a", 0), 15)
    offsets.lower(("b", 0), 15)
    offsets.lower(("c", 0), 15)
    assert house._checkpoint(FILE) == {"a-0": 10, "b-0": 15}
    offsets.forget(("a", 0))
    assert house._checkpoint(FILE) == {"b-0": 15}


def test_entries_of_partitions_that_are_gone_are_dropped_at_the_opening(house: House) -> None:
    compacted(house, "orders")
    house.store.close()
    house.file(f"logs/{FILE}", "0\n2\norders 0 3\ngone 0 4\n")
    house.open()
    assert house._checkpoint(FILE) == {"orders-0": 3}


def test_a_write_that_failed_is_made_up_for_by_the_next(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    offsets = house.store.cleaning.offsets

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("topicfs.engine.files.checkpoint.write_atomically", fail)
    with pytest.raises(OSError, match="space"):
        offsets.put(("a", 0), 10)
    monkeypatch.undo()
    offsets.forget(("b", 0))
    assert house._checkpoint(FILE) == {"a-0": 10}


def test_a_truncation_below_lowers_it_to_the_active_base(house: House, cleaner: StandInCleaner) -> None:
    compacted(house, "orders", 8)
    work(house, cleaner)
    assert house._checkpoint(FILE) == {"orders-0": 7}
    house.store.truncate("orders", 0, 7)
    assert house._checkpoint(FILE) == {"orders-0": 7}
    house.store.truncate("orders", 0, 3)
    assert house._checkpoint(FILE) == {"orders-0": 3}
    house.store.restart_at("orders", 0, 100)
    append(house.store.partition("orders-0"), 4)
    assert grabbed(house).candidate.first_dirty == 100


def test_a_truncation_lowers_it_before_anything_is_cut(
    house: House, cleaner: StandInCleaner, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition = compacted(house, "orders", 8)
    work(house, cleaner)

    def crash(offset: int) -> bool:
        assert house._checkpoint(FILE) == {"orders-0": 3}
        raise KeyboardInterrupt

    monkeypatch.setattr(partition, "truncate_to", crash)
    with pytest.raises(KeyboardInterrupt):
        house.store.truncate("orders", 0, 3)
    assert state(house, "orders") == "none"


# -- states -----------------------------------------------------------------------------------------------


def test_done_without_work_under_way_is_an_error(house: House) -> None:
    compacted(house, "orders")
    job = grabbed(house)
    house.store.cleaning.done(job, Cleaned(4))
    assert house._checkpoint(FILE) == {"orders-0": 4}
    with pytest.raises(ValueError, match="none"):
        house.store.cleaning.done(job, Cleaned(4))
    house.store.cleaning.abort_and_pause(("orders", 0))
    with pytest.raises(ValueError, match="paused"):
        house.store.cleaning.done(job, Cleaned(4))


def test_done_after_an_abort_writes_nothing_down_and_leaves_it_paused(house: House) -> None:
    compacted(house, "orders")
    job, cleaning = grabbed(house), house.store.cleaning
    aborting = threading.Thread(target=cleaning.abort_and_pause, args=(("orders", 0),))
    aborting.start()
    while state(house, "orders") != "aborted":
        pass
    with pytest.raises(CleaningAbortedError):
        cleaning.states.check(("orders", 0))
    assert aborting.is_alive()
    cleaning.done(job, Cleaned(4))
    aborting.join(SOON_S)
    assert state(house, "orders") == "paused"
    assert not (house.logs / FILE).exists()
    cleaning.resume(("orders", 0))
    assert state(house, "orders") == "none"


def test_pauses_are_counted(house: House) -> None:
    compacted(house, "orders")
    cleaning, key = house.store.cleaning, ("orders", 0)
    for _ in range(3):
        cleaning.abort_and_pause(key)
    cleaning.abort(key)
    for _ in range(2):
        cleaning.resume(key)
        assert cleaning.grab_filthiest(house.now) is None
    cleaning.resume(key)
    with pytest.raises(ValueError, match="none"):
        cleaning.resume(key)
    assert grabbed(house).slot.key == key


def test_two_aborts_at_once_leave_no_state(house: House, cleaner: StandInCleaner) -> None:
    compacted(house, "orders")
    thread = cleaning_in_a_thread(house, cleaner)
    aborts = [threading.Thread(target=house.store.cleaning.abort, args=(("orders", 0),)) for _ in range(4)]
    for each in aborts:
        each.start()
    for each in (*aborts, thread):
        each.join(SOON_S)
    assert state(house, "orders") == "none"
    cleaner.hold = None
    assert work(house, cleaner) == "orders-0"


# -- what breaks a clean off ------------------------------------------------------------------------------


def test_deleting_the_partition_breaks_its_clean_off_and_forgets_it(
    house: House, cleaner: StandInCleaner
) -> None:
    compacted(house, "orders")
    house.store.cleaning.offsets.put(("orders", 0), 1)
    thread = cleaning_in_a_thread(house, cleaner)
    house.store.delete("orders-0")
    thread.join(SOON_S)
    assert state(house, "orders") == "none"
    assert house._checkpoint(FILE) == {}
    compacted(house, "orders")
    cleaner.hold = None
    assert work(house, cleaner) == "orders-0"
    assert cleaner.calls[-1] == ("orders-0", 0, 4)


def test_truncating_breaks_the_clean_off(house: House, cleaner: StandInCleaner) -> None:
    compacted(house, "orders")
    thread = cleaning_in_a_thread(house, cleaner)
    house.store.truncate("orders", 0, 2)
    thread.join(SOON_S)
    assert state(house, "orders") == "none"
    assert not (house.logs / FILE).exists()


@pytest.mark.parametrize("policy", ["delete", "compact,delete"])
def test_another_policy_breaks_the_clean_off(house: House, cleaner: StandInCleaner, policy: str) -> None:
    compacted(house, "orders")
    thread = cleaning_in_a_thread(house, cleaner)
    house.store.configure("orders", {"cleanup.policy": policy})
    thread.join(SOON_S)
    assert not thread.is_alive()
    assert state(house, "orders") == "none"


def test_another_policy_of_the_daemon_breaks_the_clean_off(house: House, cleaner: StandInCleaner) -> None:
    house.store.configure_daemon({"log.cleanup.policy": "compact"})
    partition = house.store.create(
        "orders", overrides={k: v for k, v in COMPACT.items() if "policy" not in k}
    )
    append(partition, 5)
    thread = cleaning_in_a_thread(house, cleaner)
    house.store.configure_daemon({"log.cleanup.policy": "delete"})
    thread.join(SOON_S)
    assert not thread.is_alive()
    assert house.store.cleaning.grab_filthiest(house.now) is None


def test_other_settings_leave_the_clean_alone(house: House, cleaner: StandInCleaner) -> None:
    compacted(house, "orders")
    thread = cleaning_in_a_thread(house, cleaner)
    house.store.configure("orders", {"retention.ms": "5"})
    assert state(house, "orders") == "in progress"
    assert cleaner.hold is not None
    cleaner.hold.set()
    thread.join(SOON_S)
    assert house._checkpoint(FILE) == {"orders-0": 4}


@pytest.mark.parametrize("how", [Store.close, Store.abandon])
def test_closing_the_store_breaks_cleans_off(house: House, cleaner: StandInCleaner, how: object) -> None:
    compacted(house, "orders")
    thread = cleaning_in_a_thread(house, cleaner)
    assert callable(how)
    how(house.store)
    thread.join(SOON_S)
    assert not thread.is_alive()
    assert house.store.cleaning.grab_filthiest(house.now) is None
    house.open()


# -- failures ---------------------------------------------------------------------------------------------


def test_a_damaged_partition_is_set_aside_and_the_others_are_compacted(
    house: House, cleaner: StandInCleaner
) -> None:
    house.warnings = True
    for topic in ("bad", "good"):
        compacted(house, topic)
    cleaner.failures["bad-0"] = CorruptBatchError("at position 7")
    outcomes = [house.store.cleaning.work(cleaner, house.now) for _ in range(4)]
    assert sorted(cleaner.names) == ["bad-0", "good-0"]
    assert [each.error for each in outcomes if each.partition == "bad-0"] == ["at position 7"]
    assert house.store.cleaning.uncleanable == {("bad", 0): "at position 7"}
    assert house._checkpoint(FILE) == {"good-0": 4}
    house.store.delete("bad-0")
    assert house.store.cleaning.uncleanable == {}


def test_what_was_set_aside_is_tried_again_after_a_restart(house: House, cleaner: StandInCleaner) -> None:
    house.warnings = True
    compacted(house, "bad")
    cleaner.failures["bad-0"] = CorruptBatchError("at position 7")
    work(house, cleaner)
    house.reopen()
    assert house.store.cleaning.uncleanable == {}
    assert work(house, cleaner) == "bad-0"


def test_an_error_of_the_disk_is_reported_and_tried_again_later(
    house: House, cleaner: StandInCleaner
) -> None:
    house.warnings = True
    partition = compacted(house, "full")
    compacted(house, "good")
    cleaner.failures["full-0"] = OSError(28, "No space left on device")
    for _ in range(4):
        work(house, cleaner)
    assert sorted(cleaner.names) == ["full-0", "good-0"]
    assert house.store.cleaning.uncleanable == {}
    assert partition.log.failure is None
    del cleaner.failures["full-0"]
    house.now += RETRY_MS + 1
    assert work(house, cleaner) == "full-0"
    assert house.store.cleaning.failing == {}


def test_a_mistake_comes_out_and_sets_the_partition_aside(house: House, cleaner: StandInCleaner) -> None:
    house.warnings = True
    compacted(house, "bad")
    cleaner.failures["bad-0"] = KeyError("x")
    with pytest.raises(KeyError):
        work(house, cleaner)
    assert state(house, "bad") == "none"
    assert work(house, cleaner) is None


def test_a_partition_that_goes_offline_is_let_go(house: House, cleaner: StandInCleaner) -> None:
    house.warnings = True
    house.verified = False
    partition = compacted(house, "gone")
    compacted(house, "good")
    partition.log.failure = OSError(5, "Input/output error")
    assert work(house, cleaner) == "good-0"
    assert work(house, cleaner) is None
    assert house.store.cleaning.uncleanable == {}


# -- retention --------------------------------------------------------------------------------------------


def limited(house: House, policy: str) -> Partition:
    partition = house.store.create(
        policy.replace(",", "_") or "keep",
        overrides={**COMPACT, "cleanup.policy": policy, "retention.bytes": "0"},
    )
    append(partition, 3)
    return partition


def test_cleaners_remove_from_compacted_topics_and_the_retention_job_from_the_others(house: House) -> None:
    both, deleted = limited(house, "compact,delete"), limited(house, "delete")
    compact, keep = limited(house, "compact"), limited(house, "")
    compact.log.raise_start_offset(1)
    keep.log.raise_start_offset(1)
    removed = house.store.cleaning.retain_compacted(house.now)
    assert removed.segments == 4
    assert [len(each.log.chain.segments) for each in (both, deleted, compact, keep)] == [1, 3, 2, 3]
    assert house.store.retain().segments == 4
    assert [len(each.log.chain.segments) for each in (both, deleted, compact, keep)] == [1, 1, 2, 2]
    assert house.store.retention.removed.segments == 8


def test_a_partition_set_aside_at_work_or_paused_is_left_alone_by_retention(house: House) -> None:
    limited(house, "compact,delete")
    deleted = limited(house, "delete")
    cleaning = house.store.cleaning
    cleaning.uncleanable["compact_delete", 0] = "damaged"
    assert cleaning.retain_compacted(house.now).segments == 0
    cleaning.uncleanable.clear()
    job = grabbed(house)
    assert cleaning.retain_compacted(house.now).segments == 0
    cleaning.done(job, None)
    cleaning.abort_and_pause(("delete", 0))
    assert house.store.retain().segments == 0
    cleaning.resume(("delete", 0))
    assert house.store.retain().segments == 3
    assert deleted.start_offset == 3


def test_a_policy_that_changes_is_followed_at_once(house: House, cleaner: StandInCleaner) -> None:
    partition = limited(house, "delete")
    house.store.configure("delete", {"cleanup.policy": "compact"})
    assert house.store.retain().segments == 0
    assert work(house, cleaner) == "delete-0"
    assert len(partition.log.chain.segments) == 3
    house.store.configure("delete", {"cleanup.policy": "delete"})
    append(partition, 2)
    assert work(house, cleaner) is None
    assert house.store.retain().segments == 5


def test_a_limit_that_changes_is_followed_at_once(house: House) -> None:
    partition = house.store.create("orders", overrides={"internal.segment.bytes": "110"})
    append(partition, 5)
    assert house.store.retain().segments == 0
    house.store.configure("orders", {"retention.bytes": "0"})
    assert house.store.retain().segments == 5


def test_a_compacted_topic_that_loses_its_policy_while_it_is_cleaned_is_not_checkpointed(
    house: House, cleaner: StandInCleaner
) -> None:
    compacted(house, "orders")
    thread = cleaning_in_a_thread(house, cleaner)
    house.store.configure("orders", {"cleanup.policy": "delete"})
    thread.join(SOON_S)
    assert not (house.logs / FILE).exists()


def test_partitions_that_are_not_in_use_get_retention_and_are_loaded_only_for_it(house: House) -> None:
    for topic in ("old", "young"):
        house.store.create(topic, overrides={"internal.segment.bytes": "110", "retention.ms": "1000"})
    append(house.store.partition("old-0"), 3)
    house.store.partition("young-0").append(Record(b"v", timestamp=START + 10_000))
    house.reopen()
    house.now += 1000
    assert house.store.retain().segments == 0
    house.now += 1
    assert house.store.retain().segments == 3
    assert {slot.name: slot.partition is not None for slot in house.store.slots()} == {
        "old-0": True,
        "young-0": False,
    }
    assert house.store.partition("old-0").start_offset == 3


def test_a_partition_whose_retention_fails_is_reported_once_and_the_others_go_on(
    house: House, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    house.warnings = True
    for topic in ("bad", "good"):
        append(
            house.store.create(topic, overrides={"internal.segment.bytes": "110", "retention.bytes": "0"}), 3
        )
    real = type(house.store.partition("bad-0").log).raise_start_offset

    def fail(self: object, offset: int) -> bool:
        if getattr(self, "name", "") == "bad-0":
            raise OSError(28, "No space left on device")
        return real(self, offset)  # type: ignore[arg-type]

    monkeypatch.setattr("topicfs.engine.partition.log.Log.raise_start_offset", fail)
    assert house.store.retain().segments == 3
    house.store.retain()
    assert list(house.store.retention.failing) == ["bad-0"]
    said = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert len(said) == 1
    monkeypatch.undo()
    house.store.retain()
    assert house.store.retention.failing == {}
    assert house.store.partition("bad-0").start_offset == 3


def test_a_partition_deleted_meanwhile_is_no_failure(house: House, cleaner: StandInCleaner) -> None:
    compacted(house, "orders")
    cleaner.failures["orders-0"] = UnknownPartitionError("gone")
    cleaner.also = lambda log: log._shut()
    house.store.partition("orders-0")
    slots = house.store.slots()
    house.store.delete("orders-0")
    assert slots[0].gone
    house.store.cleaning._slots = lambda: slots  # type: ignore[method-assign]
    assert work(house, cleaner) is None
    assert house.store.cleaning.uncleanable == {}
