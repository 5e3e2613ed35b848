"""Indexes that are damaged while nobody runs: every look-up gives what it gives by sound ones, and they are mended."""

from __future__ import annotations

import logging
import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from partition_opening import NOW
from test_damaged_views import FORMATS, Made, copied, small
from tree_bench import TreeBench, lines, tree_bench

FEW = settings(
    max_examples=max(10, (settings.default or settings()).max_examples // 10),
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


def damaged(data: bytes, kind: str, entry: int, chance: random.Random) -> bytes:
    out = bytearray(data)
    match kind:
        case "bits":
            entries = range(0, len(out), entry)
            for at in chance.sample(entries, min(len(entries), chance.choice([1, 1, 2, 5]))):
                out[at + chance.randrange(entry)] ^= 1 << chance.randrange(8)
        case "cut":
            del out[chance.randrange(len(out) + 1) :]
        case "cut at an entry":
            del out[chance.randrange(len(out) // entry + 1) * entry :]
        case "emptied":
            out.clear()
        case "zeros behind":
            out += bytes(entry * chance.randrange(1, 5))
        case "of another":
            out[:] = chance.randbytes(len(out))
        case "an entry twice":
            at = chance.randrange(len(out) // entry + 1) * entry
            out[at:at] = out[at : at + entry]
        case "another entry's":
            count = len(out) // entry
            if count:
                into, of = (chance.randrange(count) * entry for _ in range(2))
                out[into : into + entry] = out[of : of + entry]
    return bytes(out)


KINDS = [
    "bits",
    "cut",
    "cut at an entry",
    "emptied",
    "zeros behind",
    "of another",
    "an entry twice",
    "another entry's",
]


def check_all(store: TreeBench, found: Made, chance: random.Random) -> None:
    """Every look-up, in any order."""
    count = len(found.times)
    offsets, times = list(range(count)), sorted({time + more for time in found.times for more in (-1, 0, 1)})
    chance.shuffle(offsets)
    chance.shuffle(times)
    asked = [(offset, None) for offset in offsets] + [(None, time) for time in times]
    if chance.random() < 0.5:
        chance.shuffle(asked)
    partition = store.views().partition
    for offset, time in asked:
        if offset is not None:
            record = partition.record(offset)
            assert record is not None, offset
            assert record.value == found.lines["txt"][offset][:-1]
        if time is not None:
            first = next((at for at, stamp in enumerate(found.times) if stamp >= time), None)
            record = partition.offset_for_timestamp(time)
            assert (None if record is None else record.offset) == first, f"time {time - NOW}"
    latest = partition.offset_for_timestamp(-3)
    assert latest is not None
    assert (latest.timestamp, latest.offset) == (max(found.times), found.times.index(max(found.times)))
    for fmt in FORMATS:
        assert store.read(f"/t-0/log.{fmt}") == b"".join(found.lines[fmt])
        first, last = sorted(chance.randrange(count) for _ in range(2))
        assert store.read(f"/t-0/offset/{first}-{last}.{fmt}") == b"".join(found.lines[fmt][first : last + 1])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("suffix", [".index", ".timeindex", "both"])
@FEW
@given(seed=st.integers(0, 2**64), number=st.integers(0, 3))
def test_look_ups_by_damaged_indexes(suffix: str, kind: str, seed: int, number: int) -> None:
    chance = random.Random(seed)
    with small(), copied(number, False) as (found, place):
        logs = place / "logs/t-0"
        for path in sorted(logs.glob("*.index")) + sorted(logs.glob("*.timeindex")):
            if suffix in {path.suffix, "both"} and chance.random() < 0.5:
                path.write_bytes(
                    damaged(path.read_bytes(), kind, 8 if path.suffix == ".index" else 12, chance)
                )
        with tree_bench(place) as store:
            if chance.random() < 0.3:
                # An append comes first: it goes by the active segment's indexes.
                lines(store.views().partition, b"late")
                store.views().partition.truncate_to(len(found.times))
            check_all(store, found, chance)
        with tree_bench(place) as store:
            check_all(store, found, chance)


def test_the_latest_time_of_a_segment_is_not_taken_from_an_index_that_was_made_anew_meanwhile() -> None:
    """regression: a late time in a damaged time index stayed, where the look-up that found it out met a damaged offset
    index first and had both made anew: records of later segments were not found by their times"""
    with small(), copied(0, False) as (found, place):
        logs = place / "logs/t-0"
        offsets, times = logs / f"{0:020d}.index", logs / f"{0:020d}.timeindex"
        data = bytearray(offsets.read_bytes())
        data[3 * 8 + 5] ^= 2
        offsets.write_bytes(data)
        data = bytearray(times.read_bytes())
        data[-12 + 6] ^= 2
        times.write_bytes(data)
        with tree_bench(place) as store:
            partition = store.views().partition
            for time in found.times:
                record = partition.offset_for_timestamp(time)
                assert record is not None
                assert record.offset == next(at for at, stamp in enumerate(found.times) if stamp >= time)


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_mended_indexes_are_kept(tmp_path: Path, suffix: str, caplog: pytest.LogCaptureFixture) -> None:
    with small(), copied(0, False) as (found, place):
        paths = sorted((place / "logs/t-0").glob(f"*{suffix}"))
        before = [path.read_bytes() for path in paths]
        for path in paths:
            data = bytearray(path.read_bytes())
            if data:
                data[-1] ^= 64
                path.write_bytes(data)
        with tree_bench(place) as store, caplog.at_level(logging.WARNING):
            check_all(store, found, random.Random(1))
        assert "does not fit its log" in caplog.text
        assert [path.read_bytes() for path in paths] == before
        caplog.clear()
        with tree_bench(place) as store:
            check_all(store, found, random.Random(2))
        assert "does not fit" not in caplog.text


def test_legal_indexes_are_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    """What a broker may leave: a time index whose last entry is missing, or without entries; an empty offset index."""
    for index, times in [(None, 12), (None, 10**6), (10**6, 0), (8, 12)]:
        with small(), copied(1, False) as (found, place):
            for path, cut in [(p, index) for p in (place / "logs/t-0").glob("*.index")] + [
                (p, times) for p in (place / "logs/t-0").glob("*.timeindex")
            ]:
                if cut:
                    data = path.read_bytes()
                    path.write_bytes(data[: max(0, len(data) - cut)])
            with tree_bench(place) as store:
                check_all(store, found, random.Random(1))
            assert "does not fit" not in caplog.text
