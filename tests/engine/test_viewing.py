"""A partition that is opened read-only shows what opening it would make of the same files, and changes none."""

from __future__ import annotations

import random
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from partition_opening import NEVER, Clock, open_partition, without_fsync

from topicfs import Isolation, Record
from topicfs.engine.errors import EngineError, ReadOnlyError
from topicfs.engine.partition.loading import Known
from topicfs.engine.partition.partition import Partition, Producer
from topicfs.engine.partition.viewing import view
from topicfs.engine.segment.descriptors import Descriptors
from topicfs.engine.settings.topic import resolve_topic

NAMED = {"internal.segment.bytes": "1000", "index.interval.bytes": "200"}
Files = dict[str, tuple[bytes, int, int]]


def look(directory: Path, known: Known) -> Partition:
    return view("t", 0, directory, resolve_topic(NAMED, {}), NEVER, known, Clock(), Descriptors(64))


def files(directory: Path) -> Files:
    return {
        path.name: (path.read_bytes(), path.stat().st_mtime_ns, path.stat().st_ctime_ns)
        for path in directory.iterdir()
    }


def told(partition: Partition) -> dict[str, Any]:
    """What a reader can learn."""
    now = partition.offsets
    found: dict[str, Any] = {
        "start": now.start,
        "stable": now.stable,
        "end": now.end,
        "bases": [segment.base_offset for segment in partition.log.chain.segments],
        "epochs": partition.log.epochs.entries,
        "producers": set(partition.log.producers.producers),
        "open": partition.log.producers.ongoing,
    }
    for isolation in (Isolation.COMMITTED, Isolation.UNCOMMITTED):
        found[isolation.name] = list(partition.records(isolation=isolation))
    found["single"] = [partition.record(offset) for offset in range(now.start, min(now.end, 200))]
    times = {record.timestamp for record in found["UNCOMMITTED"]}
    found["times"] = [
        None if at is None else (at.offset, at.timestamp)
        for at in (
            partition.offset_for_timestamp(time) for time in sorted(times, key=str) if time is not None
        )
    ]
    return found


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Many segments, with transactions that were committed, aborted and left open, and two leader epochs."""
    directory = tmp_path_factory.mktemp("written") / "t-0"
    chance = random.Random(5)
    with without_fsync():
        partition = open_partition(directory)
        for number in range(60):
            record = Record(b"%d" % number * chance.randrange(1, 40), b"key", 1_700_000_000_000 + number)
            if number == 30:
                partition.log.become_leader(3)
            if number % 5 == 0:
                producer = number % 3
                partition.append([record], Producer(producer, 0, _next(partition, producer), True))
                if number < 50:
                    partition.append(record)
                    partition.end_transaction(producer, 0, commit=number % 2 == 0)
            else:
                partition.append([record, record])
        partition.close()
    return directory


def _next(partition: Partition, producer: int) -> int:
    entry = partition.log.producers.producers.get(producer)
    return 0 if entry is None else entry.last_sequence + 1


def both(directory: Path, known: Known) -> None:
    """Look at the files, then open them, and compare."""
    before = files(directory)
    seen: dict[str, Any] | None
    failure: EngineError | None = None
    try:
        partition = look(directory, known)
        seen = told(partition)
        with pytest.raises(ReadOnlyError):
            partition.append(Record(b"x"))
        partition.close()
    except EngineError as error:
        seen, failure = None, error
    assert files(directory) == before
    if seen is None and "has to be split" in str(failure):
        return  # the one state that is refused, in these words, where opening it would make new files
    with without_fsync():
        try:
            opened = open_partition(directory, known)
        except EngineError:
            assert seen is None, "opening it fails, looking does not"
            return
        # No checksum covers a base offset: what a recovery lets pass is met by readers, of both.
        met: EngineError | None = None
        try:
            expected = told(opened)
        except EngineError as error:
            met = error
        finally:
            opened.log.abandon()
        if met is not None:
            assert str(failure) == str(met)
            return
    assert seen is not None, failure
    assert seen == expected


@pytest.mark.parametrize("known", [Known(clean=True), Known(), Known(recovery_point=40), Known(start=33)])
def test_whole_files_are_shown(written: Path, tmp_path: Path, known: Known) -> None:
    shutil.copytree(written, tmp_path / "t-0")
    both(tmp_path / "t-0", known)


DAMAGES = st.lists(
    st.tuples(
        st.sampled_from(["cut", "flip", "remove", "zeros", "swap", "cleaned", "deleted", "swap index"]),
        st.integers(0, 1000),
        st.floats(0, 1, exclude_max=True),
    ),
    max_size=3,
)


@example([("flip", 889, 0.8618), ("swap", 447, 0.85), ("flip", 396, 0.8618)], 46, True, 35)
@example([("cleaned", 400, 0.9889), ("swap index", 497, 0.5548), ("cut", 365, 0.1429)], 38, True, 35)
@given(DAMAGES, st.integers(0, 130), st.booleans(), st.sampled_from([0, 0, 35, 200]))
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_damaged_files_are_shown_as_a_recovery_would_leave_them(
    written: Path, damages: list[tuple[str, int, float]], point: int, clean: bool, start: int
) -> None:
    with tempfile.TemporaryDirectory() as place:
        directory = Path(place) / "t-0"
        shutil.copytree(written, directory)
        for kind, number, at in damages:
            _damage(directory, kind, number, at, only_logs=clean)
        both(directory, Known(clean=False, recovery_point=point if not damages else 0, start=start))


def _damage(directory: Path, kind: str, number: int, at: float, *, only_logs: bool) -> None:
    every = sorted(directory.glob("*.log" if only_logs else "*.*"))
    if not every:
        return
    path = every[number % len(every)]
    data = path.read_bytes()
    place = int(len(data) * at)
    if kind == "cut":
        path.write_bytes(data[:place])
    elif kind == "zeros":
        path.write_bytes(data + bytes(place))
    elif kind == "flip" and data:
        path.write_bytes(data[:place] + bytes([data[place] ^ 0x41]) + data[place + 1 :])
    elif kind == "remove":
        path.unlink()
    elif kind in ("swap", "cleaned", "deleted"):
        for name in (".log", ".index", ".timeindex"):
            file = path.with_name(path.name[:20] + name)
            if file.exists() and at < 0.7:
                shutil.copy2(file, file.with_name(file.name + f".{kind}"))
            elif file.exists():
                file.rename(file.with_name(file.name + f".{kind}"))
    elif kind == "swap index":
        file = path.with_name(path.name[:20] + ".index")
        if file.exists():
            file.rename(file.with_name(file.name + ".swap"))


def test_an_empty_directory_is_shown_as_an_empty_log(tmp_path: Path) -> None:
    partition = look(tmp_path, Known(start=7))
    assert (partition.start_offset, partition.end_offset) == (7, 7)
    assert list(partition.records()) == []
    assert partition.log.chain.active.path.stat().st_size == 0
    assert partition.log.chain.active.log.read(0, 10) == b""
    assert list(tmp_path.iterdir()) == []
    partition.close()


def test_a_file_that_takes_a_segments_name_later_is_refused(written: Path, tmp_path: Path) -> None:
    directory = tmp_path / "t-0"
    shutil.copytree(written, directory)
    partition = look(directory, Known(clean=True))
    first = min(directory.glob("*.log"))
    shutil.copy(first, tmp_path / "other")
    (tmp_path / "other").rename(first)
    with pytest.raises(EngineError, match="was replaced since it was opened read-only"):
        list(partition.records(0, 1))
    first.unlink()
    with pytest.raises(EngineError, match="was removed since it was opened read-only"):
        list(partition.records(0, 1))
