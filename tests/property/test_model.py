"""A partition compared with a plain list of batches, under random operations, stops and crashes.

A crash leaves the directory as it lies: it is copied while the partition is open, and then files are damaged that
no flush has vouched for: the log behind the recovery point, indexes of the segments from there on, snapshots, the
epoch file. What is kept must be a prefix of what was written, in whole batches, and as long as a plain reading of
the files says; nothing that was flushed may be missing.

Two kinds of damage are left out, as they cannot be told from what compaction leaves: a segment that ends exactly
behind one of its batches while others follow it, and offsets (which no checksum covers) that still rise.
"""

from __future__ import annotations

import logging
import random
import shutil
import tempfile
from itertools import pairwise
from pathlib import Path

import pytest
from directory_check import bases, check_directory, check_rebuilt, content, parse, path_of, recoverable
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from model import ABORT, COMMIT, Batch, Model
from partition_opening import NOW, Clock, open_partition, without_fsync

from topicfs.engine import batch as batches
from topicfs.engine.errors import (
    OffsetOutOfRangeError,
    OutOfOrderSequenceError,
    RecordTooLargeError,
)
from topicfs.engine.kernels import encode as encoding
from topicfs.engine.partition.loading import Known
from topicfs.engine.partition.offsets import Isolation
from topicfs.engine.partition.partition import Partition, Producer
from topicfs.engine.record import Record

ROOM = 10485760

rendered = st.binary(max_size=12)
fields = st.none() | rendered | st.binary(min_size=100, max_size=180)
headers = st.lists(st.tuples(st.text(max_size=4), st.none() | rendered), max_size=2).map(tuple)
records = st.builds(
    Record,
    value=fields,
    key=st.none() | rendered,
    timestamp=st.integers(NOW - 500, NOW + 500),
    headers=headers,
)
batches_of_records = st.lists(records, min_size=1, max_size=4)
producers = st.integers(0, 3)
isolations = st.sampled_from(list(Isolation))
codecs = st.sampled_from(["producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"])
damages = st.lists(
    st.tuples(
        st.sampled_from(["log", "log", "index", "timeindex", "txnindex", "snapshot", "epochs"]),
        st.sampled_from(["cut", "garbage behind", "zeros behind", "zeroed", "garbage", "missing"]),
        st.integers(0, 2**32),
    ),
    max_size=4,
)


class PartitionMachine(RuleBasedStateMachine):
    """Every rule does the same to the partition and to the model; the invariants compare them."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp())
        self.generation = 0
        self.model = Model()
        self.partition: Partition | None = None
        self.sequences: dict[int, int] = {}
        self.fast = without_fsync()
        self.fast.__enter__()

    def teardown(self) -> None:
        if self.partition is not None:
            self.partition.close()
            check_directory(self.directory)
        self.fast.__exit__(None, None, None)
        shutil.rmtree(self.root)

    @property
    def directory(self) -> Path:
        return self.root / f"t-{self.generation}"

    @initialize(
        segment_bytes=st.sampled_from([700, 1500, 10_000]),
        interval=st.sampled_from([0, 100, 300, 4096]),
        room=st.sampled_from([24, 60, ROOM]),
        codec=codecs,
        preallocate=st.booleans(),
    )
    def begin(self, segment_bytes: int, interval: int, room: int, codec: str, preallocate: bool) -> None:
        self.interval, self.room = interval, room
        self.settings = {
            "segment_bytes": segment_bytes,
            "index_interval_bytes": interval,
            "segment_index_bytes": room,
            "compression_type": codec,
            "preallocate": str(preallocate).lower(),
            "file_delete_delay_ms": 0,
        }
        self.clock = Clock()
        self.partition = self.open(Known())

    def open(self, known: Known) -> Partition:
        return open_partition(self.directory, known, self.clock, **self.settings)

    @property
    def open_one(self) -> Partition:
        assert self.partition is not None
        return self.partition

    # -- appends --------------------------------------------------------------------------------------

    @rule(chosen=batches_of_records)
    def append(self, chosen: list[Record]) -> None:
        self._append(chosen, None)

    @rule(
        count=st.integers(5, 15), chosen=batches_of_records, producer=producers, transactional=st.booleans()
    )
    def append_many(self, count: int, chosen: list[Record], producer: int, transactional: bool) -> None:
        """Several appends, by nobody and by a producer in turn."""
        for number in range(count):
            self._append(chosen[number % len(chosen) :][:2], None)
            if number % 3 == 0 and (transactional or producer not in self.model.ongoing()):
                sequence = self.sequences.get(producer, 0)
                self._append(chosen[:1], Producer(producer, 0, sequence, transactional))

    @rule(chosen=st.lists(st.tuples(producers, st.booleans()), min_size=1, max_size=8), commit=st.booleans())
    def run_transactions(self, chosen: list[tuple[int, bool]], commit: bool) -> None:
        """Producers begin and end transactions in turn, each in the middle of the others'."""
        for producer, end in chosen:
            if end:
                self.end_transaction(producer, commit)
            else:
                self.append_in_transaction(producer, [Record(b"in turn", timestamp=NOW)])

    @rule(producer=producers, chosen=batches_of_records)
    def append_as_producer(self, producer: int, chosen: list[Record]) -> None:
        if producer not in self.model.ongoing():
            self._append(chosen, Producer(producer, 0, self.sequences.get(producer, 0)))

    @rule(producer=producers, chosen=batches_of_records)
    def append_in_transaction(self, producer: int, chosen: list[Record]) -> None:
        self._append(chosen, Producer(producer, 0, self.sequences.get(producer, 0), True))

    def _append(self, chosen: list[Record], producer: Producer | None) -> None:
        try:
            appended = self.open_one.append(chosen, producer)
        except RecordTooLargeError:
            return
        # An append that is too large for one batch becomes several; the offsets are the same.
        assert not appended.duplicate
        assert appended.first_offset == self.model.end
        assert appended.last_offset == self.model.end + len(chosen) - 1
        made = self._written(appended.first_offset)
        placed = [record for _, last in made for record in [last]]
        assert placed[-1] == appended.last_offset
        first, rest = appended.first_offset, list(chosen)
        for base, last in made:
            assert base == first
            count = last - base + 1
            extra: dict[str, object] = {}
            if producer is not None:
                extra = {
                    "producer_id": producer.producer_id,
                    "producer_epoch": producer.epoch,
                    "base_sequence": producer.sequence + base - appended.first_offset,
                    "transactional": producer.transactional,
                }
            self.model.append_records(rest[:count], base, **extra)
            rest = rest[count:]
            first = last + 1
        if producer is not None:
            self.sequences[producer.producer_id] = producer.sequence + len(chosen)

    def _written(self, offset: int) -> list[tuple[int, int]]:
        """Base and last offset of the batches on disk from an offset on."""
        found = []
        for base in bases(self.directory):
            data = path_of(self.directory, base, ".log").read_bytes()
            found += [(b.base_offset, b.last_offset) for b in parse(data, base)[0] if b.base_offset >= offset]
        return found

    @rule(
        lines=st.lists(
            st.binary(max_size=20).map(lambda line: line.replace(b"\n", b"")), min_size=1, max_size=5
        )
    )
    def append_lines(self, lines: list[bytes]) -> None:
        self.open_one.append_lines(b"".join(line + b"\n" for line in lines))
        self.model.append_records([Record(line, timestamp=self.clock()) for line in lines], self.model.end)

    @rule(chosen=batches_of_records, gap=st.sampled_from([0, 0, 1, 1000, 2**31]))
    def append_raw(self, chosen: list[Record], gap: int) -> None:
        data = batches.from_records(chosen, NOW).data
        if data.size > self.settings["segment_bytes"]:
            return
        encoding.stamp(data, 0, self.model.end + gap, self.open_one.log.leader_epoch)
        self.open_one.append_raw(data)
        self.model.append_records(chosen, self.model.end + gap)

    @rule(producer=producers, commit=st.booleans())
    def end_transaction(self, producer: int, commit: bool) -> None:
        if producer in self.model.ongoing():
            offset = self.open_one.end_transaction(producer, 0, commit).first_offset
            kind = COMMIT if commit else ABORT
            self.model.append(Batch(offset, offset, (), producer, 0, kind=kind, timestamp=self.clock()))

    @rule(producer=producers)
    def repeat_the_last_batch(self, producer: int) -> None:
        last = self.model.last_of(producer)
        if last is None or producer not in self.sequences or last.base_offset < self.model.start:
            return
        again = Producer(producer, 0, last.base_sequence, last.transactional)
        appended = self.open_one.append(list(last.records), again)
        assert appended.duplicate
        assert (appended.first_offset, appended.last_offset) == (last.base_offset, last.last_offset)

    @rule(producer=producers)
    def leave_a_gap_in_the_sequence(self, producer: int) -> None:
        last = self.model.last_of(producer)
        if last is None or producer not in self.sequences or last.base_offset < self.model.start:
            return
        transactional = producer in self.model.ongoing()
        with pytest.raises(OutOfOrderSequenceError):
            self.open_one.append(Record(b"x"), Producer(producer, 0, last.last_sequence + 2, transactional))

    # -- other changes --------------------------------------------------------------------------------

    @rule()
    def roll(self) -> None:
        self.open_one.roll()

    @rule()
    def become_leader(self) -> None:
        self.open_one.log.become_leader(self.open_one.log.leader_epoch + 1)

    @rule()
    def flush(self) -> None:
        self.open_one.flush()
        self.model.flushed = self.model.end

    @rule(back=st.integers(0, 15))
    def flush_up_to(self, back: int) -> None:
        offset = max(self.model.start, self.model.end - back)
        self.open_one.flush(offset)
        self.model.flushed = max(self.model.flushed, offset)

    @rule(back=st.integers(0, 12))
    def truncate(self, back: int) -> None:
        offset = max(0, self.model.end - back)
        first_base = self.open_one.log.chain.segments.first.base_offset
        self.open_one.truncate_to(offset)
        if offset < first_base:
            self.model.restart(offset)
        else:
            self.model.truncate(offset)
        self._learn_producers()

    @rule(forward=st.integers(-5, 50), really=st.integers(0, 3))
    def restart(self, forward: int, really: int) -> None:
        if really:
            return
        offset = max(0, self.model.end + forward)
        self.open_one.restart_at(offset)
        self.model.restart(offset)
        self.sequences.clear()

    @rule(forward=st.integers(0, 9))
    def delete_records(self, forward: int) -> None:
        offset = min(self.model.end, self.model.start + forward)
        assert self.open_one.delete_records(offset) == offset
        self.model.start = offset

    @rule()
    def remove_due(self) -> None:
        self.open_one.log.remove_due(self.clock())
        assert not list(self.directory.glob("*.deleted"))

    # -- reads ----------------------------------------------------------------------------------------

    @rule(
        forward=st.integers(0, 60),
        max_bytes=st.sampled_from([0, 1, 61, 200, 1000, 10**6]),
        isolation=isolations,
        at_least_one=st.booleans(),
    )
    def read(self, forward: int, max_bytes: int, isolation: Isolation, at_least_one: bool) -> None:
        offset = self.model.start + forward
        if offset > self.model.end:
            with pytest.raises(OffsetOutOfRangeError):
                self.open_one.read(offset, max_bytes, isolation, at_least_one)
            return
        limit = self.open_one.offsets.limit(isolation)
        expected = self.model.fetched(offset, limit) if offset < limit else []
        fetched = self.open_one.read(offset, max_bytes, isolation, at_least_one)
        found, whole = parse(fetched.data, fetched.segment_base)
        assert [(b.base_offset, b.last_offset) for b in found] == expected[: len(found)]
        if not expected:
            assert not fetched.data
        elif at_least_one:
            assert found
        if max_bytes == 10**6 and at_least_one:
            assert whole == len(fetched.data)
        largest = max([max_bytes, *(found[0].size for _ in [0] if at_least_one and found)])
        assert len(fetched.data) <= largest

    @rule(forward=st.integers(0, 60), count=st.integers(0, 60), isolation=isolations)
    def read_records(self, forward: int, count: int, isolation: Isolation) -> None:
        start = min(self.model.start + forward, self.model.end)
        found = list(self.open_one.records(start, start + count, isolation))
        assert found == self.model.records(start, start + count, isolation is Isolation.COMMITTED)

    @rule(timestamp=st.integers(NOW - 600, NOW + 600))
    def look_up_a_time(self, timestamp: int) -> None:
        found = self.open_one.offset_for_timestamp(timestamp, Isolation.LOG_END)
        later = [each for each in self.model.times() if each[1] >= timestamp]
        if found is not None:
            assert (found.offset, found.timestamp) in later
        first_base = self.open_one.log.chain.segments.first.base_offset
        if self.model.start == first_base:
            assert (found and found.offset) == (later[0][0] if later else None)

    # -- stops and crashes ----------------------------------------------------------------------------

    @rule()
    def stop_and_reopen(self) -> None:
        self.open_one.close()
        check_directory(self.directory)
        self.model.reopen(len(self.model.batches), bases(self.directory), self.model.start)
        self.partition = self.open(Known(clean=True, start=self.model.start))
        self.model.flushed = self.model.end
        assert self.partition.recovery_point == self.model.end
        self._learn_producers()

    @precondition(lambda self: self.partition is not None)
    @rule(chosen=damages, know_point=st.booleans(), know_start=st.booleans())
    def crash(self, chosen: list[tuple[str, str, int]], know_point: bool, know_start: bool) -> None:
        partition = self.open_one
        point = partition.recovery_point
        assert point <= max(self.model.flushed, self.model.start)
        known = Known(recovery_point=point if know_point else 0, start=self.model.start if know_start else 0)
        before = self.directory
        self.generation += 1
        shutil.copytree(before, self.directory)
        partition.log.abandon()
        shutil.rmtree(before)
        for what, how, seed in chosen:
            damage(self.directory, what, how, random.Random(seed), point)
        self._reopen_after_a_crash(known)

    def _reopen_after_a_crash(self, known: Known) -> None:
        kept_segments = recoverable(self.directory, known.recovery_point)
        kept = [batch for _, found in kept_segments for batch in found]
        written = [(batch.base_offset, batch.last_offset) for batch in self.model.batches]
        assert [(b.base_offset, b.last_offset) for b in kept] == written[: len(kept)], (
            "the damage left a hole"
        )
        flushed = [batch for batch in self.model.batches if batch.last_offset < self.model.flushed]
        assert len(kept) >= len(flushed), "the damage went too far"
        partition = self.partition = self.open(known)
        self.model.reopen(len(kept), [base for base, _ in kept_segments], known.start)
        self.model.flushed = min(max(known.recovery_point, self.model.start), self.model.end)
        assert partition.recovery_point == self.model.flushed
        self._learn_producers()
        self.agree()
        if self.room == ROOM:
            floor = max((base for base in bases(self.directory) if base <= known.recovery_point), default=0)
            check_rebuilt(self.directory, floor, self.interval, self.room)
        self._open_again(known)

    def _open_again(self, known: Known) -> None:
        """A second opening finds nothing to do."""
        self.open_one.log.abandon()
        before = content(self.directory)
        warned: list[str] = []
        handler = logging.Handler(logging.WARNING)
        handler.emit = lambda record: warned.append(record.getMessage())  # type: ignore[method-assign]
        logging.getLogger("engine").addHandler(handler)
        try:
            self.partition = self.open(known)
        finally:
            logging.getLogger("engine").removeHandler(handler)
        after = content(self.directory)
        for name in set(before) | set(after):
            # An empty log's epochs begin at its end, and an opening removes what begins there, as Kafka does.
            emptied = name == "leader-epoch-checkpoint" and self.model.start == self.model.end
            if name.endswith(".deleted") or emptied:
                continue
            assert before.get(name) == after.get(name) or name.endswith(".snapshot"), name
        assert not warned
        self.agree()

    def _learn_producers(self) -> None:
        """Producers go on behind their last batch that is left. Of those whose batches were deleted nothing is
        promised: they go on from what the partition knows."""
        for producer in list(self.sequences):
            last = self.model.last_of(producer)
            state = self.open_one.log.producers.producers.get(producer)
            self.sequences[producer] = 0 if state is None else state.last_sequence + 1
            if last is not None and last.base_offset >= self.model.start:
                assert state is not None
                assert state.last_sequence == last.last_sequence
                assert state.last_data_offset == last.last_offset

    # -- what always holds ----------------------------------------------------------------------------

    @invariant()
    def agree(self) -> None:
        if self.partition is None:
            return
        offsets = self.partition.offsets
        assert (offsets.start, offsets.high_watermark, offsets.end) == (
            self.model.start,
            self.model.end,
            self.model.end,
        )
        assert offsets.start <= offsets.stable <= offsets.end
        if all(first >= self.model.start for first in self.model.ongoing().values()):
            assert offsets.stable == self.model.stable()
            assert list(self.partition.records()) == self.model.records(0, 2**63, committed=True)
        found = list(self.partition.records(isolation=Isolation.UNCOMMITTED))
        assert found == self.model.records(0, 2**63, committed=False)
        epochs = self.partition.log.epochs.entries
        assert all(a.epoch < b.epoch and a.start_offset < b.start_offset for a, b in pairwise(epochs))
        assert self.partition.recovery_point <= self.model.end


def damage(directory: Path, what: str, how: str, chance: random.Random, flushed: int) -> None:
    """Do to a file what losing power may do to what was not flushed."""
    floor = max((base for base in bases(directory) if base <= flushed), default=0)
    if what == "epochs":
        paths = list(directory.glob("leader-epoch-checkpoint"))
    elif what == "snapshot":
        paths = list(directory.glob("*.snapshot"))
    else:
        paths = [path for path in directory.glob(f"*.{what}") if int(path.name[:20]) >= floor]
    if not paths:
        return
    path = chance.choice(sorted(paths))
    data = path.read_bytes()
    least = 0
    if what == "log":
        base = int(path.name[:20])
        found, used = parse(data, base)
        least = max((b.position + b.size for b in found if b.base_offset < flushed), default=0)
        if how == "missing":
            return
        if how == "cut" and base != bases(directory)[-1]:
            # Not exactly behind a batch: see the module's head.
            inside = [b for b in found if b.position >= least]
            if not inside:
                return
            batch = chance.choice(inside)
            path.write_bytes(data[: batch.position + chance.randrange(1, batch.size)])
            return
        if how in ("zeroed", "garbage") and found:
            # From a batch's size on: no checksum covers the offset before it.
            starts = [b.position + 8 for b in found if b.position >= least] or [used]
            least = chance.choice(starts)
            length = len(data) - least
            filler = bytes(length) if how == "zeroed" else b"\x7f\xff" + chance.randbytes(length)
            path.write_bytes((data[:least] + filler)[: len(data)])
            return
    if how == "missing":
        path.unlink()
    elif how == "cut":
        path.write_bytes(data[: chance.randint(least, max(least, len(data)))])
    elif how == "garbage behind":
        path.write_bytes(data + b"\xff" + chance.randbytes(chance.randrange(1, 100)))
    elif how == "zeros behind":
        path.write_bytes(data + bytes(chance.randrange(1, 5000)))
    elif how == "zeroed":
        path.write_bytes(bytes(len(data)))
    else:
        path.write_bytes(chance.randbytes(len(data)))


# hypothesis keeps the profile's number of examples for each machine: fewer of them, with more steps each.
PROFILE = settings.default
assert PROFILE is not None
TestPartition = PartitionMachine.TestCase
TestPartition.settings = settings(
    max_examples=max(40, PROFILE.max_examples // 2) if PROFILE.max_examples > 100 else 40,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
