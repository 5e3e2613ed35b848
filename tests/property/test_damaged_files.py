"""Files that somebody made up: either an error that the engine raises on purpose, or correct operation.

Never another exception, a hang, or memory in proportion to a number in a file. Checksums are repaired after the
damage, so that what they guard is reached.
"""

from __future__ import annotations

import contextlib
import random
import shutil
import signal
import struct
import tempfile
import tracemalloc
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import google_crc32c
import pytest
from directory_check import bases, parse, path_of
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from partition_opening import NOW, Known, open_partition, without_fsync

from topicfs.engine.errors import EngineError
from topicfs.engine.partition.offsets import Isolation
from topicfs.engine.partition.partition import Partition, Producer
from topicfs.engine.record import Record

SETTINGS = {"segment_bytes": 1200, "index_interval_bytes": 100, "file_delete_delay_ms": 0}
MEMORY = 48 * 1024 * 1024
"""Recovery reads 4 MiB at once and its batch table is as large; more than this is somebody's number."""

NUMBERS = (0, 1, -1, 5, 13, 14, 60, 61, 2**15, 2**31 - 1, -(2**31), 2**31, 2**62, 2**63 - 1, -(2**63))


class TooLong(BaseException):
    """The engine hangs."""


@contextlib.contextmanager
def bounded() -> Iterator[None]:
    """Little memory and little time."""

    def alarm(*_: object) -> None:
        raise TooLong

    before = signal.signal(signal.SIGALRM, alarm)
    signal.setitimer(signal.ITIMER_REAL, 30)
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
        assert peak < MEMORY, f"{peak} bytes of memory"
    finally:
        tracemalloc.stop()
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@cache
def whole() -> Path:
    """A directory with everything in it, made once."""
    directory = Path(tempfile.mkdtemp()) / "t-0"
    with without_fsync():
        partition = open_partition(directory, **SETTINGS)
        partition.log.metadata.record("6nvQZvMFS0iPlCsFQmrGpQ")
        for number in range(30):
            pid = number % 3
            partition.append(
                [Record(b"value", b"key", NOW + number, (("h", b"x"),)), Record(None, timestamp=NOW)],
                Producer(pid, 0, number // 3 * 2, True),
            )
            if number % 7 > 4:
                partition.end_transaction(pid, 0, commit=number % 2 == 0)
            if number % 10 == 9:
                partition.log.become_leader(number)
        partition.append_lines(b"a\nb\nc\n")
        partition.close()
    return directory


@contextlib.contextmanager
def copied() -> Iterator[Path]:
    root = Path(tempfile.mkdtemp())
    try:
        with without_fsync():
            yield shutil.copytree(whole(), root / "t-0")
    finally:
        shutil.rmtree(root)


def damaged(data: bytes, chance: random.Random) -> bytes:
    """The bytes with one or some things wrong."""
    kind = chance.randrange(7)
    if kind == 0:
        return chance.randbytes(chance.choice([0, 1, 7, len(data), len(data) + 5]))
    out = bytearray(data)
    for _ in range(chance.choice([1, 1, 1, 3])):
        at = chance.randrange(len(out) + 1)
        if kind == 1:
            out[at : at + 1] = bytes([chance.randrange(256)])
        elif kind == 2:
            del out[at : at + chance.randrange(1, 50)]
        elif kind == 3:
            out[at:at] = chance.randbytes(chance.randrange(1, 50))
        elif kind == 4:
            number, size = chance.choice(NUMBERS), chance.choice([1, 2, 4, 8])
            out[at : at + size] = (number % 2 ** (8 * size)).to_bytes(size, "big")
        elif kind == 5:
            out[at:] = bytes(len(out) - at)
        else:
            out[at:] = out[: len(out) - at]
    return bytes(out)


def header_field(data: bytes, base: int, chance: random.Random) -> bytes:
    """One field of one batch's header, set to a number that matters."""
    batch = chance.choice(parse(data, base)[0])
    at, code = chance.choice(
        [(0, ">q"), (12, ">i"), (21, ">h"), (23, ">i"), (27, ">q"), (35, ">q"), (43, ">q"), (51, ">h"),
         (53, ">i"), (57, ">i")]
    )  # fmt: skip
    low, high = {"h": (-(2**15), 2**15 - 1), "i": (-(2**31), 2**31 - 1), "q": (-(2**63), 2**63 - 1)}[code[1]]
    number = chance.choice([n for n in NUMBERS if low <= n <= high] + [batch.base_offset + 1])
    out = bytearray(data)
    struct.pack_into(code, out, batch.position + at, max(low, min(high, number)))
    return bytes(out)


def with_checksums(original: bytes, data: bytes, base: int) -> bytes:
    """The log with the checksum repaired of every batch that still has its size."""
    out = bytearray(data)
    for batch in parse(original, base)[0]:
        end = batch.position + batch.size
        if len(out) >= end and struct.unpack_from(">i", out, batch.position + 8)[0] == batch.size - 12:
            crc = google_crc32c.value(bytes(out[batch.position + 21 : end]))
            struct.pack_into(">I", out, batch.position + 17, crc)
    return bytes(out)


def use(directory: Path, known: Known) -> None:
    """Do everything that is done with a partition; errors of the engine's own are what is expected."""
    opened: list[Partition] = []
    try:
        opened.append(open_partition(directory, known, **SETTINGS))
    except EngineError:
        return
    partition = opened[0]
    try:
        for step in steps(partition):
            with contextlib.suppress(EngineError):
                step()
        offsets = partition.offsets
        assert 0 <= offsets.start <= offsets.stable <= offsets.high_watermark <= offsets.end
    finally:
        with contextlib.suppress(EngineError):
            partition.close()
    with contextlib.suppress(EngineError):
        open_partition(directory, Known(clean=True, start=partition.start_offset), **SETTINGS).close()


def steps(partition: Partition) -> Iterator[Callable[[], object]]:
    start, end = partition.start_offset, partition.end_offset
    for isolation in Isolation:
        yield lambda isolation=isolation: list(partition.records(isolation=isolation))
        for offset in {start, (start + end) // 2, max(start, end - 1), end}:
            yield lambda offset=offset, isolation=isolation: partition.read(offset, 500, isolation)
    for timestamp in (-5, -4, -3, -2, -1, 0, NOW, NOW + 15, 2**63 - 1):
        yield lambda timestamp=timestamp: partition.offset_for_timestamp(timestamp)
    yield lambda: partition.append(Record(b"value"))
    yield lambda: partition.append(Record(b"value"), Producer(1, 0, 20, True))
    yield lambda: partition.end_transaction(1, 0, commit=False)
    yield partition.roll
    yield partition.flush
    yield lambda: partition.delete_records((start + end) // 2)
    yield lambda: partition.truncate_to(max(0, end - 10))
    yield lambda: partition.append(Record(b"value"))
    yield lambda: partition.log.remove_due(2**62)


FEW = settings(
    max_examples=(settings.default or settings()).max_examples // 8,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
knowns = st.sampled_from([Known(), Known(recovery_point=40), Known(clean=True), Known(clean=True, start=20)])
seeds = st.integers(0, 2**64)
STRANGERS = [
    *(".log", ".index", ".timeindex", ".txnindex", ".snapshot", ".log.swap", ".log.cleaned", ".index.swap"),
    *(".log.deleted", ".snapshot.tmp", ".log.swap.swap", ".txt"),
]


@pytest.mark.parametrize(
    "pattern",
    ["*.index", "*.timeindex", "*.txnindex", "*.snapshot", "leader-epoch-checkpoint", "partition.metadata"],
)
@FEW
@given(seed=seeds, known=knowns)
def test_small_files(pattern: str, seed: int, known: Known) -> None:
    chance = random.Random(seed)
    with copied() as directory, bounded():
        for path in directory.glob(pattern):
            if chance.random() < 0.5:
                path.write_bytes(damaged(path.read_bytes(), chance))
        use(directory, known)


@FEW
@given(seed=seeds, known=knowns)
def test_snapshots_with_a_right_checksum(seed: int, known: Known) -> None:
    chance = random.Random(seed)
    with copied() as directory, bounded():
        for path in directory.glob("*.snapshot"):
            data = bytearray(damaged(path.read_bytes(), chance))
            if len(data) >= 10:
                data[2:6] = google_crc32c.value(bytes(data[6:])).to_bytes(4, "big")
            path.write_bytes(data)
        use(directory, known)


@FEW
@given(seed=seeds, known=knowns, repair=st.booleans(), without_index=st.booleans())
def test_logs(seed: int, known: Known, repair: bool, without_index: bool) -> None:
    chance = random.Random(seed)
    with copied() as directory, bounded():
        base = chance.choice(bases(directory))
        path = path_of(directory, base, ".log")
        data = path.read_bytes()
        changed = damaged(data, chance)
        path.write_bytes(with_checksums(data, changed, base) if repair else changed)
        if without_index:
            path_of(directory, base, ".index").unlink()
        use(directory, known)


@FEW
@given(seed=seeds, known=knowns, count=st.integers(1, 3), without_index=st.booleans())
@example(seed=1, known=Known(), count=1, without_index=True)
def test_batch_headers(seed: int, known: Known, count: int, without_index: bool) -> None:
    chance = random.Random(seed)
    with copied() as directory, bounded():
        base = chance.choice(bases(directory))
        path = path_of(directory, base, ".log")
        for _ in range(count):
            data = path.read_bytes()
            if parse(data, base)[0]:
                path.write_bytes(with_checksums(data, header_field(data, base, chance), base))
        if without_index:
            path_of(directory, base, ".index").unlink()
        use(directory, known)


@FEW
@given(seed=seeds, known=knowns)
# An index whose offsets do not rise with its positions, asked for the next batch behind damage.
@example(seed=5382655, known=Known(clean=True, recovery_point=0, start=0, high_watermark=None))
def test_all_files_at_once(seed: int, known: Known) -> None:
    chance = random.Random(seed)
    with copied() as directory, bounded():
        for path in sorted(directory.iterdir()):
            if path.name != "partition.metadata" and chance.random() < 0.4:
                path.write_bytes(damaged(path.read_bytes(), chance))
        use(directory, known)


@FEW
@given(
    names=st.lists(st.tuples(st.integers(-1, 70), st.sampled_from(STRANGERS)), max_size=5),
    seed=seeds,
    known=knowns,
)
def test_files_that_do_not_belong_there(names: list[tuple[int, str]], seed: int, known: Known) -> None:
    chance = random.Random(seed)
    with copied() as directory, bounded():
        for offset, suffix in names:
            source = chance.choice(sorted(directory.iterdir()))
            name = f"{offset:020d}{suffix}" if offset >= 0 else f"x{suffix}"
            if source.name != name:
                shutil.copyfile(source, directory / name)
        use(directory, known)
