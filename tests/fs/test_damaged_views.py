"""Views beside damage: what they give is right, or an error. Never other records, nor a part of a line, nor nothing.

A partition's files are damaged, after a clean stop or while they are open, and each view of it is compared with what it
gave before: a plain list of records.
"""

from __future__ import annotations

import contextlib
import random
import shutil
import struct
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from partition_opening import NOW
from tree_bench import TreeBench, tree_bench

from topicfs.engine.errors import CorruptError
from topicfs.engine.record import Record
from topicfs.fs.views import rendered_segment as texts_module
from topicfs.fs.views import size_map as sizemap

SETTINGS = {"internal_segment_bytes": 3000, "index_interval_bytes": 300, "file_delete_delay_ms": 0}
FORMATS = ("txt", "tsv", "jsonl")
RECORDS = 160


@dataclass(frozen=True)
class Made:
    """A store as it was stopped, and what its views gave.

    batches  of each segment: position, size, first offset, last offset
    lines    of each format, by offset
    times    by offset
    """

    place: Path
    batches: dict[int, list[tuple[int, int, int, int]]]
    lines: dict[str, list[bytes]]
    times: list[int]


@contextlib.contextmanager
def small() -> Iterator[None]:
    with mock.patch.object(sizemap, "GRAIN", 600), mock.patch.object(texts_module, "BLOCK", 1000):
        yield


@cache
def made(seed: int) -> Made:
    chance = random.Random(seed)
    place = Path(tempfile.mkdtemp()) / "whole"
    at, times = 0, []
    with small(), tree_bench(place) as store:
        views = store.create(**SETTINGS)
        while at < RECORDS:
            records = []
            for number in range(at, at + chance.choice([1, 1, 2, 5, 9])):
                late = chance.choice([0, 0, 0, 5, 40, -60])
                times.append(NOW + (number // 3) * 10 + late)
                records.append(
                    Record(b"%d:" % number + b"x" * chance.randrange(60), b"k%d" % number, times[-1])
                )
            at += len(records)
            views.partition.append(records)
        lines = {fmt: store.read(f"/t-0/log.{fmt}").splitlines(keepends=True) for fmt in FORMATS}
        batches = {}
        for segment in views.partition.log.chain.segments:
            table = [table for _, table in segment.log.batches()]
            batches[segment.base_offset] = [tuple(row) for part in table for row in part[:, :4].tolist()]
    return Made(place, batches, lines, times)


@contextlib.contextmanager
def copied(seed: int, view_cache: bool) -> Iterator[tuple[Made, Path]]:
    found = made(seed)
    root = Path(tempfile.mkdtemp())
    try:
        yield found, shutil.copytree(found.place, root / "copy")
    finally:
        shutil.rmtree(root)


def damaged(data: bytes, batches: list[tuple[int, int, int, int]], kind: str, chance: random.Random) -> bytes:
    """A log with something wrong in it."""
    out = bytearray(data)
    position, size, first, _ = chance.choice(batches)
    at = chance.randrange(len(out))
    match kind:
        case "payload":
            out[position + chance.randrange(61, size)] ^= 1 << chance.randrange(8)
        case "zeroed":
            length = chance.choice([1, 10, 100, 400, 900])
            out[at : at + length] = bytes(min(length, len(out) - at))
        case "bits":
            for _ in range(chance.choice([1, 1, 1, 4])):
                out[chance.randrange(len(out))] ^= 1 << chance.randrange(8)
        case "header":
            out[position + chance.randrange(61)] ^= 1 << chance.randrange(8)
        case "length":
            number = chance.choice([0, 1, 13, 49, size, size - 13, size + 100, 2**31 - 1, 2**32 - 1])
            out[position + 8 : position + 12] = number.to_bytes(4, "big")
        case "base":
            number = chance.choice([0, first + 1, max(0, first - 1), first + 7, first + 1000, 2**63 - 1])
            out[position : position + 8] = number.to_bytes(8, "big")
        case "cut":
            del out[at:]
        case "cut at a batch":
            del out[position:]
    return bytes(out)


KINDS = ["payload", "zeroed", "bits", "header", "length", "base", "cut", "cut at a batch"]


def points_behind(log: Path, size: int) -> bool:
    """Whether the offset index has an entry of a batch behind a size, and another one of a batch before it."""
    index = log.with_suffix(".index").read_bytes()
    positions = [position for _, position in struct.iter_unpack(">ii", index)]
    return positions[-1] >= size > positions[0] or size == 0


def outcome(store: TreeBench, path: str) -> bytes | Exception:
    """What a reader gets: all of a file, or an error."""
    try:
        return store.read(path)
    except (CorruptError, OSError) as error:
        return error


def ranges(found: Made, chance: random.Random) -> Iterator[tuple[int, int]]:
    bounds = [at for rows in found.batches.values() for _, _, first, last in rows for at in (first, last)]
    for _ in range(25):
        first = chance.choice([chance.randrange(RECORDS), chance.choice(bounds)])
        last = chance.choice([first, first + chance.randrange(40), chance.choice(bounds)])
        yield first, max(first, last)


def check_views(store: TreeBench, found: Made, gone: set[int], chance: random.Random, strict: bool) -> None:
    """`gone` are the offsets in batches that were changed; where `strict`, nothing else may be an error."""
    count = len(found.times)
    for fmt in FORMATS:
        lines = found.lines[fmt]
        for first, last in ranges(found, chance):
            got = outcome(store, f"/t-0/offset/{first}-{last}.{fmt}")
            if isinstance(got, bytes):
                assert got == b"".join(lines[first : last + 1]), f"offset/{first}-{last}.{fmt}"
            elif strict:
                assert gone & set(range(first, last + 1)), f"offset/{first}-{last}.{fmt}: {got}"
        first = chance.randrange(count)
        for path, begin, end in [
            (f"log.{fmt}", 0, count),
            (f"offset/{first}-.{fmt}", first, count),
            (f"offset/-{count - first}.{fmt}", first, count),
            *(
                (f"{folder}/{base:020d}.{fmt}", rows[0][2], rows[-1][3] + 1)
                for base, rows in found.batches.items()
                for folder in (["segments", f"sealed/{fmt}"] if base != max(found.batches) else ["segments"])
            ),
        ]:
            got = outcome(store, f"/t-0/{path}")
            if isinstance(got, bytes):
                assert got == b"".join(lines[begin:end]), path
            elif strict:
                assert gone & set(range(begin, end)), f"{path}: {got}"
    for offset in range(count):
        if strict and offset not in gone:
            record = store.views().record(offset)
        else:
            try:
                record = store.views().record(offset)
            except CorruptError:
                continue
        assert record is not None, f"offset/{offset}"
        assert record.value == found.lines["txt"][offset][:-1], f"offset/{offset}"
        assert record.timestamp == found.times[offset], f"offset/{offset}"
    for at in {NOW - 100, NOW + 10**6, *(time + more for time in found.times for more in (0, 1))}:
        first = next((offset for offset, time in enumerate(found.times) if time >= at), None)
        try:
            record = store.views().partition.offset_for_timestamp(at)
        except CorruptError:
            continue
        assert (None if record is None else record.offset) == first, f"time {at}"
        if chance.random() < 0.05:
            got = outcome(store, f"/t-0/time/{at}--.txt")
            if isinstance(got, bytes):
                assert got == b"".join(found.lines["txt"][count if first is None else first :])


FEW = settings(
    max_examples=max(10, (settings.default or settings()).max_examples // 10),
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("when", ["stopped", "open", "mapped"])
@FEW
@given(seed=st.integers(0, 2**64), store=st.integers(0, 3))
def test_views_of_a_damaged_log(kind: str, when: str, seed: int, store: int) -> None:
    chance = random.Random(seed)
    with small(), copied(store, False) as (found, place), contextlib.ExitStack() as stack:
        base = chance.choice(sorted(found.batches)[:-1])
        path = place / f"logs/t-0/{base:020d}.log"

        def damage() -> set[int]:
            data = path.read_bytes()
            changed = damaged(data, found.batches[base], kind, chance)
            with path.open("r+b") as file:
                file.write(changed)
                file.truncate()
            return {
                offset
                for position, size, first, last in found.batches[base]
                if data[position : position + size] != changed[position : position + size]
                for offset in range(first, last + 1)
            }

        if kind == "cut at a batch":
            # Of what was cut off behind the last entries of both indexes nothing tells: a compaction leaves a log so.
            assume(points_behind(path, len(damaged(path.read_bytes(), found.batches[base], kind, chance))))
            chance = random.Random(seed)
            chance.choice(sorted(found.batches)[:-1])
        gone = damage() if when == "stopped" else set()
        opened = stack.enter_context(tree_bench(place))
        if when != "stopped":
            opened.views()
            if when == "mapped":
                for fmt in FORMATS:
                    opened.read(f"/t-0/log.{fmt}")
            gone = damage()
        check_views(opened, found, gone, chance, strict=kind == "payload" and len(gone) > 0)


def test_a_time_whose_records_have_an_offset_that_is_far_off_is_an_error() -> None:
    """regression: where a base offset was further above the segment's than an index can say, the indexes that were made
    anew left out all batches that were scanned with it, and a time led behind them"""
    with small(), copied(0, False) as (found, place):
        base = min(found.batches)
        rows = found.batches[base]
        path = place / f"logs/t-0/{base:020d}.log"
        data = bytearray(path.read_bytes())
        damaged_offsets = set[int]()
        for position, _, first, last in (rows[0], rows[2], rows[-3]):
            data[position + 97] ^= 0x10
            damaged_offsets.update(range(first, last + 1))
        position, _, first, last = rows[-1]
        data[position] ^= 0x20
        damaged_offsets.update(range(first, last + 1))
        path.write_bytes(data)
        with tree_bench(place) as store:
            partition = store.views().partition
            for time in sorted(set(found.times)):
                wanted = next(at for at, stamp in enumerate(found.times) if stamp >= time)
                try:
                    record = partition.offset_for_timestamp(time)
                except CorruptError:
                    assert wanted <= max(damaged_offsets)
                else:
                    assert record is not None
                    assert record.offset == wanted
