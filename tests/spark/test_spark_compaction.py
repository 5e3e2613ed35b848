"""Compaction by Spark: what the cleaner gives, whatever becomes of attempts and jobs. Which files a group becomes, of
logs of every kind, is in tests/engine/test_cleaner_portion: there no Spark is needed."""

from __future__ import annotations

import pickle
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from partition_opening import NOW
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from sources import Logs, logs

sys.path.append(str(Path(__file__).parents[1] / "engine"))  # verify.py: a check written from the format alone

from verify import verify_files

from topicfs import Record, Store
from topicfs.engine.cleaner.clean import Cleaned, Cleaner, Work
from topicfs.engine.cleaner.distributed import portions, stretches
from topicfs.engine.errors import EngineError
from topicfs.engine.partition.partition import Producer
from topicfs.engine.spark.jobs import compact as module
from topicfs.engine.spark.jobs.compact import Rewriting, _last_offsets, compact

SETTINGS = {"cleanup_policy": "compact", "segment_bytes": 2000, "index_interval_bytes": 300}


def furnish(log: Logs) -> None:
    """A compacted topic with all that a cleaner looks at, in several groups of segments."""
    partition = log.create(compression_type="uncompressed", **SETTINGS)
    # Of one transaction the end is far from the beginning, and so it is of the other, which is aborted.
    for producer in (4, 5):
        partition.append([Record(b"x", b"of-%d" % producer, NOW)], Producer(producer, 0, 0, True))
    for round_ in range(6):
        for key in range(12):
            partition.append(Record(b"%d:%d" % (round_, key) * 5, b"key-%d" % key, NOW + round_))
        partition.append(Record(None, b"key-%d" % round_, NOW + round_))
        for producer, commit in ((1, True), (2, False)):
            rows = [Record(b"%d" % round_ * 9, b"of-%d" % producer, NOW), Record(b"y", b"key-11", NOW)]
            partition.append(rows, Producer(producer, 0, 2 * round_, True))
            if round_ == 3:
                partition.append(Record(b"between", b"key-10", NOW))
            partition.end_transaction(producer, 0, commit)
        partition.append(Record(b"z" * 200, b"lone-%d" % round_, NOW + round_), Producer(6, 0, round_))
    partition.end_transaction(4, 0, True)
    partition.end_transaction(5, 0, False)
    log.store.configure("t", {"compression.type": "zstd"})
    for round_ in range(5):
        rows = [Record(b"%d" % (round_ * at) * 40, b"key-%d" % at, NOW) for at in range(12)]
        partition.append(rows)
    partition.append(Record(b"open", b"key-3", NOW), Producer(3, 0, 0, True))
    partition.roll()
    partition.append(Record(b"last", b"key-4", NOW))


def files(backing: Path) -> dict[str, tuple[bytes, int]]:
    """Segments and their indexes, and the times of those that are sealed and timed."""
    place = backing / "logs" / "t-0"
    paths = [
        path
        for path in sorted(place.iterdir())
        if path.suffix in (".log", ".index", ".timeindex", ".txnindex")
    ]
    active = max(path.stem for path in paths)
    return {
        path.name: (
            path.read_bytes(),
            0 if path.stem == active or path.suffix == ".txnindex" else path.stat().st_mtime_ns,
        )
        for path in paths
    }


def staged(backing: Path) -> list[Path]:
    return list((backing / "staging").glob("t/compact"))


@pytest.fixture
def furnished(spark: SparkSession, tmp_path: Path) -> Iterator[Logs]:
    """A furnished log, that nobody has open."""
    (tmp_path / "log").mkdir()
    with logs(spark, tmp_path / "log") as log:
        furnish(log)
        log.store.close()
        yield log


def cleaned(log: Logs, place: Path) -> tuple[Cleaned, int]:
    """What the cleaner makes of a copy of the log, and of how many groups."""
    shutil.copytree(log.place, place)
    with Store.open(place, clock=log.clock, create=True) as store:
        one = store.partition("t", 0).log
        end = one.snapshot.segments.floor(one.snapshot.stable)
        assert end is not None
        work = Work.take(one, end.base_offset, lambda: None)
        cleaner = Cleaner.create(1 << 20, 0.75, 1 << 20, lambda _: None, bytes(16))
        found = cleaner.clean(one, 0, end.base_offset, log.clock(), lambda: None)
        return found, len(work.groups(work.sources))


def test_compaction_gives_what_the_cleaner_gives(
    spark: SparkSession, furnished: Logs, tmp_path: Path
) -> None:
    expected, groups = cleaned(furnished, tmp_path / "cleaner")
    assert groups > 4
    attempts: list[int] = []
    take = module.take

    def counting(*given: object) -> int:
        attempts.append(len([*staged(furnished.place)[0].glob("*/*")]))
        return take(*given)  # type: ignore[arg-type]

    with mock.patch.object(module, "take", counting):
        found = compact(spark, furnished.place, ["t"], clock=furnished.clock)["t-0"]
    assert found == Cleaned(
        **{**{name: getattr(expected, name) for name in Cleaned.__slots__}, "map_utilization": 0}
    )
    assert attempts == [groups] * groups
    assert files(furnished.place) == files(tmp_path / "cleaner")
    assert not staged(furnished.place)
    assert found.records_kept < 80
    with Store.open(tmp_path / "cleaner", clock=furnished.clock, create=True) as other:
        held = list(other.partition("t", 0).records())
    furnished.reopen()
    assert furnished.store.stopped_clean
    assert list(furnished.store.partition("t", 0).records()) == held
    assert not verify_files(furnished.place / "logs" / "t-0", interval=300, history=False).problems


def test_all_of_a_log_is_compacted_when_asked(spark: SparkSession, tmp_path: Path) -> None:
    with Store.open(tmp_path, create=True) as store:
        partition = store.create("t", 0, {"cleanup.policy": "compact"})
        for number in range(500):
            partition.append(Record(b"%d" % number, b"%d" % (number % 7)))
    assert compact(spark, tmp_path, ["t"])["t-0"].records_read == 0
    assert compact(spark, tmp_path, ["t"], everything=True)["t-0"].records_kept == 7
    with Store.open(tmp_path, create=True) as store:
        assert [record.offset for record in store.partition("t", 0).records()] == list(range(493, 500))


def test_a_log_of_which_nothing_counts_is_compacted(spark: SparkSession, tmp_path: Path) -> None:
    with logs(spark, tmp_path) as log:
        partition = log.create(**{**SETTINGS, "cleanup_policy": "delete"})
        for number in range(60):
            partition.append(Record(b"%0100d" % number, None, NOW))
        log.store.configure("t", {"cleanup.policy": "compact"})
        partition.roll()
        log.store.close()
        found = compact(spark, log.place, ["t"], clock=log.clock)["t-0"]
        assert (found.records_read, found.records_kept, found.invalid_records) == (60, 0, 60)
        log.reopen()
        assert log.held() == []
        assert log.store.partition("t", 0).end_offset == 60


def test_only_topics_that_are_compacted_are(spark: SparkSession, tmp_path: Path) -> None:
    with Store.open(tmp_path, create=True) as store:
        for topic, policy in (("compacted", "compact"), ("kept", "delete")):
            store.create(topic, 0, {"cleanup.policy": policy})
            for _ in range(3):
                store.partition(topic, 0).append(Record(b"v", b"k"))
    for topic, words in (
        ("kept", "expected a cleanup.policy with compact"),
        ("none", "expected a topic none"),
    ):
        with pytest.raises(EngineError, match=words):
            compact(spark, tmp_path, ["compacted", topic], everything=True)
    with Store.open(tmp_path, create=True) as store:
        assert [len(list(store.partition(topic, 0).records())) for topic in ("compacted", "kept")] == [3, 3]


def test_what_a_task_does_not_see_is_not_taken_for_outdated(spark: SparkSession, furnished: Logs) -> None:
    furnished.reopen()
    log = furnished.store.partition("t", 0).log
    start, end = log.snapshot.start, min(log.snapshot.stable, log.snapshot.active_base)
    last = _last_offsets(spark, furnished.place, ("t", 0), start, end)
    assert last.count() > 12
    (furnished.place / "logs" / "t-0").rename(furnished.place / "away")
    try:
        with pytest.raises(PySparkException, match="were removed, by retention or with the topic"):
            last.collect()
    finally:
        (furnished.place / "away").rename(furnished.place / "logs" / "t-0")


# -- attempts and jobs that come to nothing -----------------------------------------------------------


def of_one_group(log: Logs) -> pa.RecordBatch:
    """What the task of the first group is sent."""
    with Store.open(log.place, clock=log.clock, create=True) as store:
        work = Work.take(store.partition("t", 0).log, 30, lambda: None)
        lie = stretches(work, work.groups(work.sources))
        share = portions(work, lie[:1], [], log.clock())[0]
    last = np.arange(0, 20, 3, np.uint32).tobytes()
    rows = [
        {"group": 0, "last": last, "portion": None},
        {"group": 0, "last": None, "portion": pickle.dumps(share)},
    ]
    return pa.RecordBatch.from_pylist(rows, module._OF_GROUPS)


def test_an_attempt_that_failed_is_made_again_in_a_directory_of_its_own(
    furnished: Logs, tmp_path: Path
) -> None:
    given = of_one_group(furnished)
    before = files(furnished.place)
    place = tmp_path / "attempts"
    place.mkdir()
    attempt = Rewriting(place)
    with (
        mock.patch("topicfs.engine.cleaner.rewrite.sync_directory", side_effect=OSError),
        pytest.raises(OSError),  # noqa: PT011
    ):
        list(attempt(iter([given])))
    (first,) = place.iterdir()
    assert not list(first.iterdir())
    (first / "half").write_bytes(b"of an attempt that was killed")
    (told,) = [row for batch in attempt(iter([given])) for row in batch.to_pylist()]
    assert Path(told["directory"]) != first
    assert told["bases"] == [0]
    # Of two attempts at once each has its own, and they are the same.
    (twin,) = [row for batch in attempt(iter([given])) for row in batch.to_pylist()]
    assert twin["counts"] == told["counts"]
    for path in Path(told["directory"]).iterdir():
        assert path.read_bytes() == (Path(twin["directory"]) / path.name).read_bytes()
    assert files(furnished.place) == before
    shutil.rmtree(place)
    with pytest.raises(FileNotFoundError):
        list(attempt(iter([given])))  # its job is over


def test_a_job_that_fails_leaves_the_log_as_it_was(spark: SparkSession, furnished: Logs) -> None:
    segment = sorted((furnished.place / "logs" / "t-0").glob("*.log"))[2]
    data = bytearray(segment.read_bytes())
    data[-1] ^= 0xFF
    segment.write_bytes(data)
    before = files(furnished.place)
    with pytest.raises(PySparkException, match=str(segment)):
        compact(spark, furnished.place, ["t"], clock=furnished.clock)
    assert files(furnished.place) == before
    assert not staged(furnished.place)


def test_what_a_killed_job_has_left_goes_with_the_next_job_and_at_the_next_start(
    spark: SparkSession, furnished: Logs
) -> None:
    def leave() -> None:
        left = furnished.place / "staging" / "t" / "compact" / "job" / "attempt"
        left.mkdir(parents=True)
        (left / f"{0:020d}.log.cleaned").write_bytes(b"half")

    leave()
    furnished.reopen()
    assert not staged(furnished.place)
    furnished.store.close()
    leave()
    open_store = Store.open

    def opened(*given: object, **named: object) -> Store:
        store = open_store(*given, **named)  # type: ignore[arg-type]
        leave()
        return store

    with mock.patch.object(Store, "open", opened):
        compact(spark, furnished.place, ["t"], clock=furnished.clock)
    assert not staged(furnished.place)


def test_a_job_that_dies_between_two_groups_is_done_again(
    spark: SparkSession, furnished: Logs, tmp_path: Path
) -> None:
    expected, _ = cleaned(furnished, tmp_path / "cleaner")
    take, count = module.take, 0

    def dying(*given: object) -> int:
        nonlocal count
        count += 1
        if count == 3:
            raise KeyboardInterrupt
        return take(*given)  # type: ignore[arg-type]

    with mock.patch.object(module, "take", dying), pytest.raises(KeyboardInterrupt):
        compact(spark, furnished.place, ["t"], clock=furnished.clock)
    found = compact(spark, furnished.place, ["t"], clock=furnished.clock)["t-0"]
    assert found.records_kept == expected.records_kept
    furnished.reopen()
    with Store.open(tmp_path / "cleaner", clock=furnished.clock, create=True) as other:
        held = list(other.partition("t", 0).records())
    assert list(furnished.store.partition("t", 0).records()) == held
