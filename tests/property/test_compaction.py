"""Compaction compared with a plain list of records, under random appends, transactions, cleans, stops and crashes.

Whatever is cleaned: a reader sees records as they were written, in their order, at their offsets; of each key the last
committed value; and a tombstone for at least delete.retention.ms after the first clean that may have seen it.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from compacted import Cleaning, cleaner
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from partition_opening import NEVER, without_fsync

from topicfs.engine.errors import CleaningAbortedError

RETENTION = 1000

keys = st.integers(0, 5)
values = st.none() | st.integers(0, 999)
pairs = st.lists(st.tuples(keys, values), min_size=1, max_size=4)
producers = st.integers(1, 3)
codecs = st.sampled_from(["producer", "gzip", "snappy", "lz4", "zstd"])


@dataclass
class Written:
    """A record as it was appended.

    transaction   None outside of one
    seen          when a clean may first have seen it, None before
    last_seen     when the last one may have
    """

    key: int
    value: int | None
    timestamp: int
    transaction: int | None = None
    seen: int | None = None
    last_seen: int | None = None


class CompactionMachine(RuleBasedStateMachine):
    """Records by offset, and what became of transactions."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp())
        self.written: dict[int, Written] = {}
        self.open: dict[int, int] = {}
        self.aborted: set[int] = set()
        self.transactions = 0
        self.fast = without_fsync()
        self.fast.__enter__()

    def teardown(self) -> None:
        self.topic.check()
        self.fast.__exit__(None, None, None)
        shutil.rmtree(self.root)

    @initialize(codec=codecs, append_time=st.booleans(), size=st.sampled_from([300, 800]))
    def begin(self, codec: str, append_time: bool, size: int) -> None:
        self.topic = Cleaning(
            self.root / "t-0",
            compression_type=codec,
            message_timestamp_type="LogAppendTime" if append_time else "CreateTime",
            delete_retention_ms=RETENTION,
            segment_bytes=size,
            index_interval_bytes=60,
        )

    # -- writing --------------------------------------------------------------------------------------

    def _wrote(self, first: int, batch: list[tuple[int, int | None]], transaction: int | None = None) -> None:
        for offset, (key, value) in enumerate(batch, first):
            self.written[offset] = Written(key, value, self.topic.clock.ms, transaction)

    @rule(batch=pairs)
    def append(self, batch: list[tuple[int, int | None]]) -> None:
        self._wrote(self.topic.put(*batch), batch)

    @rule(producer=producers, batch=pairs)
    def append_in_transaction(self, producer: int, batch: list[tuple[int, int | None]]) -> None:
        if producer not in self.open:
            self.transactions += 1
            self.open[producer] = self.transactions
        first = self.topic.produce(producer, *batch, transactional=True)
        self._wrote(first, batch, self.open[producer])

    @precondition(lambda self: self.open)
    @rule(commit=st.booleans(), data=st.data())
    def end_transaction(self, commit: bool, data: st.DataObject) -> None:
        producer = data.draw(st.sampled_from(sorted(self.open)))
        transaction = self.open.pop(producer)
        self.topic.end(producer, commit)
        if not commit:
            self.aborted.add(transaction)

    @rule(producer=st.integers(4, 5), batch=pairs)
    def append_as_idempotent_producer(self, producer: int, batch: list[tuple[int, int | None]]) -> None:
        self._wrote(self.topic.produce(producer, *batch), batch)

    @rule()
    def roll(self) -> None:
        self.topic.partition.roll()

    @rule(ms=st.sampled_from([1, 300, RETENTION, 3 * RETENTION, -200]))
    def step_the_clock(self, ms: int) -> None:
        self.topic.clock.ms += ms

    # -- cleaning -------------------------------------------------------------------------------------

    def _clean(self, room: int, check: Callable[[], None]) -> None:
        offsets = self.topic.partition.offsets
        for offset, record in self.written.items():
            if offset < offsets.active_base:
                record.seen = self.topic.clock.ms if record.seen is None else record.seen
                record.last_seen = max(record.last_seen or 0, self.topic.clock.ms)
        self.topic.clean(cleaner(room, 8192), until=offsets.stable, check=check, roll=False)

    @rule(room=st.sampled_from([1, 2, 4, 100]), roll=st.booleans())
    def clean(self, room: int, roll: bool) -> None:
        if roll:
            self.topic.partition.roll()
        before = self.topic.dirty
        self._clean(room, lambda: None)
        assert self.topic.dirty >= before

    @rule(room=st.sampled_from([2, 100]), calls=st.integers(0, 20))
    def break_a_clean_off(self, room: int, calls: int) -> None:
        left = [calls]

        def check() -> None:
            left[0] -= 1
            if left[0] < 0:
                raise CleaningAbortedError("enough")

        try:
            self._clean(room, check)
        except CleaningAbortedError:
            names = [path.name for path in self.topic.directory.iterdir()]
            assert not [name for name in names if name.endswith((".cleaned", ".swap"))]

    @rule(crash=st.booleans())
    def stop_and_open(self, crash: bool) -> None:
        self.topic.reopen(crash)

    @rule()
    def remove_what_was_deleted(self) -> None:
        self.topic.partition.log.remove_due(NEVER)

    # -- what must hold -------------------------------------------------------------------------------

    def _committed(self) -> dict[int, Written]:
        stable = self.topic.partition.stable_offset
        return {
            offset: record
            for offset, record in self.written.items()
            if offset < stable and record.transaction not in self.aborted
        }

    @invariant()
    def records_are_as_they_were_written(self) -> None:
        committed = self._committed()
        read = list(self.topic.partition.records())
        offsets = [record.offset for record in read]
        assert offsets == sorted(set(offsets))
        for record in read:
            written = committed[record.offset]
            assert record.key == b"%d" % written.key
            assert record.value == (None if written.value is None else b"%d" % written.value)
            assert record.timestamp == written.timestamp
        found = set(offsets)
        self._check_what_is_gone(committed, found)
        cleaned = [record.key for record in read if record.offset < self.topic.dirty]
        assert len(cleaned) == len(set(cleaned)), "a key twice in the part that was cleaned"

    def _check_what_is_gone(self, committed: dict[int, Written], found: set[int]) -> None:
        last = {record.key: offset for offset, record in sorted(committed.items())}
        for offset, record in committed.items():
            if offset in found:
                continue
            assert record.seen is not None, f"{offset} is gone, and nothing was cleaned"
            if last[record.key] != offset:
                continue
            assert record.value is None, f"the last value of {record.key}, at {offset}, is gone"
            assert record.last_seen is not None
            assert record.last_seen >= record.seen + RETENTION, f"the tombstone at {offset} is gone too early"

    @invariant()
    def the_offsets_are_those_of_the_log(self) -> None:
        partition = self.topic.partition
        assert partition.end_offset > max(self.written, default=-1)
        in_open = [at for at, record in self.written.items() if record.transaction in self.open.values()]
        assert partition.stable_offset == min(in_open, default=partition.end_offset)


CompactionMachine.TestCase.settings = settings(
    max_examples=100 if settings().max_examples <= 100 else settings().max_examples // 10,
    stateful_step_count=40,
    suppress_health_check=list(HealthCheck),
    deadline=None,
)
TestCompaction = CompactionMachine.TestCase
