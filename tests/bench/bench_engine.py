"""The engine beside plain system calls: encode, decode, append, read, look up, open, memory."""

from __future__ import annotations

import os
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from report import Report, Row, compare, gigabytes, limited, seconds
from workplace import folder, lines, rss

from topicfs import Isolation, Partition, Store
from topicfs.engine import batch as batches

MIB = 1 << 20
RECORDS = 10_000_000
PER_BATCH = 100
QUIET = {"flush.messages": str(2**62)}


def run(report: Report) -> None:
    report.show("Engine: kernels (one core, 100-byte values, uncompressed)", kernels())
    with folder() as place:
        report.show("Engine: append and read", transfers(place))
    with folder() as place:
        report.show(f"Engine: offset look-up in {RECORDS:,} records", lookups(place))
    with folder() as place:
        report.show("Engine: opening", openings(place))
    with folder() as place:
        report.show("Engine: memory", memory(place))


def kernels() -> list[Row]:
    source = lines(10_000)
    batch = batches.from_lines(source, 0)[0].data
    table = batches.scan(batch)
    copied = np.empty_like(batch)

    def rate(work: Callable[[], object]) -> float:
        def again() -> None:
            for _ in range(200):
                work()

        return 200 * batch.size / seconds(again) / 1e9

    encode = compare(
        lambda: rate(lambda: batches.from_lines(source, 0)), lambda: rate(lambda: np.copyto(copied, batch))
    )
    decode = statistics.median(rate(lambda: list(batches.columns(batch, table))) for _ in range(7))
    check = statistics.median(rate(lambda: batches.inspect(batch, table[0])) for _ in range(7))
    return [
        gigabytes("lines to batch, with checksum", encode, "memory copy"),
        limited("the same", encode.ours, "GB/s", least=1),
        limited("batch to columns", decode, "GB/s", least=1.5),
        limited("batch to check", check, "GB/s"),
    ]


def transfers(place: Path) -> list[Row]:
    count = 128
    batch, _ = batches.from_lines(lines(9_700), int(time.time() * 1000))
    data = batch.data.tobytes()
    number = iter(range(1000))

    def ours() -> float:
        with Store.open(place / f"store{next(number)}", create=True) as store:
            partition = store.create("bench", 0, {"max.message.bytes": str(2 * MIB)})
            return (
                count
                * len(data)
                / seconds(lambda: [partition.append_batch(data) for _ in range(count)])
                / 1e9
            )

    def lines_ours() -> float:
        source = lines(9_700)
        with Store.open(place / f"store{next(number)}", create=True) as store:
            partition = store.create("bench", 0, {"max.message.bytes": str(2 * MIB)})
            return (
                count
                * len(data)
                / seconds(lambda: [partition.append_lines(source) for _ in range(count)])
                / 1e9
            )

    def theirs() -> float:
        descriptor = os.open(place / f"plain{next(number)}", os.O_WRONLY | os.O_CREAT)
        try:
            return (
                count * len(data) / seconds(lambda: [os.write(descriptor, data) for _ in range(count)]) / 1e9
            )
        finally:
            os.fsync(descriptor)
            os.close(descriptor)

    appended, of_lines = compare(ours, theirs), compare(lines_ours, theirs)
    with Store.open(place / "read", create=True) as store:
        partition = store.create("bench", 0, {"max.message.bytes": str(2 * MIB)})
        for _ in range(count):
            partition.append_batch(data)
        log = partition.directory / f"{0:020d}.log"
        starts = range(0, partition.end_offset, 9_700)
        descriptor = os.open(log, os.O_RDONLY)
        read = compare(
            lambda: (
                log.stat().st_size / seconds(lambda: [partition.read(o, len(data)) for o in starts]) / 1e9
            ),
            lambda: (
                log.stat().st_size
                / seconds(lambda: [os.pread(descriptor, len(data), i * len(data)) for i in range(count)])
                / 1e9
            ),
            rounds=15,
        )
        os.close(descriptor)
        columns = statistics.median(
            log.stat().st_size / seconds(lambda: sum(len(part) for part in partition.columns())) / 1e9
            for _ in range(5)
        )
    return [
        gigabytes("append 1 MiB batches, validated", appended, "os.write", 0.5),
        gigabytes("append 1 MiB of lines", of_lines, "os.write", 0.5),
        gigabytes("sequential read, 1 MiB", read, "os.pread", 0.7),
        limited("read, check and decode to columns", columns, "GB/s"),
    ]


def _fill(partition: Partition, segments: int) -> None:
    """RECORDS records of 100 bytes in so many segments."""
    chunk = lines(PER_BATCH)
    per_segment = RECORDS // segments // PER_BATCH
    for segment in range(segments):
        if segment:
            partition.roll()
        for _ in range(per_segment):
            partition.append_lines(chunk)


def lookups(place: Path) -> list[Row]:
    cost = {}
    for segments in (10, 10_000):
        with Store.open(place / str(segments), create=True) as store:
            partition = store.create("bench", 0)
            _fill(partition, segments)
            offsets = [random.Random(7).randrange(RECORDS) for _ in range(30_000)]
            offsets = random.Random(8).sample(range(RECORDS), 30_000)
            for offset in range(0, RECORDS, RECORDS // segments):
                partition.read(offset, 1, Isolation.UNCOMMITTED)
            samples = []
            for offset in offsets:
                start = time.perf_counter()
                partition.read(offset, 1, Isolation.UNCOMMITTED)
                samples.append(time.perf_counter() - start)
            cost[segments] = statistics.median(samples) * 1e6
    growth = cost[10_000] / cost[10]
    return [
        limited("10 segments", cost[10], "us", most=60),
        limited("10,000 segments", cost[10_000], "us", most=60),
        limited("their ratio", growth, "x", most=1.5),
    ]


def openings(place: Path) -> list[Row]:
    line = lines(1)
    with Store.open(place / "many", create=True) as store:
        for number in range(1000):
            partition = store.create("bench", number)
            for segment in range(10):
                if segment:
                    partition.roll()
                partition.append_lines(line)
    with Store.open(place / "long", create=True) as store:
        partition = store.create("bench", 0)
        for segment in range(10_000):
            if segment:
                partition.roll()
            partition.append_lines(line)

    def open_many() -> None:
        with Store.open(place / "many", create=True) as opened:
            assert len(opened.partitions()) == 1000

    def open_and_use_many() -> None:
        with Store.open(place / "many", create=True) as opened:
            assert sum(opened.partition(*name).end_offset for name in opened.partitions()) == 10_000

    def open_long() -> None:
        with Store.open(place / "long", create=True) as opened:
            assert opened.partition("bench", 0).end_offset == 10_000

    many, used, long = seconds(open_many), seconds(open_and_use_many), seconds(open_long)
    return [
        limited("1,000 partitions x 10 segments, open and close", many, "s", most=1),
        limited("the same, and the end offset of each", used, "s"),
        limited("one partition of 10,000 segments", long, "s", most=1),
    ]


def memory(place: Path) -> list[Row]:
    total = 4 << 30
    source = lines(9_700)
    with Store.open(place, create=True) as store:
        partition = store.create("bench", 0, {"segment.bytes": str(256 * MIB)})
        highest = rss()
        while partition.size < total:
            partition.append_lines(source)
            highest = max(highest, rss())
        appending = highest
        highest = 0
        for part in partition.columns():
            assert len(part)
            highest = max(highest, rss())
    return [
        limited("appending 4 GiB", appending / 1e6, "MB RSS", most=200),
        limited("reading 4 GiB", highest / 1e6, "MB RSS", most=200),
    ]
