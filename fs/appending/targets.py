"""The targets of lines: one partition, or the partitions of a topic, chosen by the keys."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import numpy as np

from topicfs.engine.batch.columns import Columns
from topicfs.engine.batch.table import Bytes, Ints
from topicfs.engine.errors import EngineError, InvalidRecordError, LinkedTopicError
from topicfs.engine.inbox.routing import choose
from topicfs.engine.inbox.rows import NO_PARTITION
from topicfs.engine.partition.validate import batch_limit, check_records, first_refused
from topicfs.engine.retention.old_records import OldRecords
from topicfs.engine.settings.topic import TopicSettings
from topicfs.fs.appending.line_queue import LineQueue, Sender
from topicfs.fs.appending.partition_writers import PartitionWriters
from topicfs.fs.error_budget import ERRORS, Telling
from topicfs.fs.formats import Format

log = logging.getLogger(__name__)

LINE_GROWTH: Final = 6
"""A line is at most this many times as long as its record: `\\u0041` in jsonl is one byte of a value."""

LINE_FRAME: Final = 1024

NOTHING: Final = np.empty(0, np.uint8)

_NEWLINE: Final = np.frombuffer(b"\n", np.uint8)


class PartitionTarget(Sender):
    """A writer's target in one partition: it is one of the senders of the partition's queue.

    format   the format of the lines
    number   the number of the partition
    writers  the writing sides of all partitions that it may append to
    refusal  why the last `add` did not take everything; None if it did
    _old     tells of records that retention removes soon
    """

    def __init__(self, writers: PartitionWriters, fmt: Format, batch_size: int) -> None:
        super().__init__(batch_size)
        self.format = fmt
        self.number = writers.partition.number
        self.writers: tuple[PartitionWriters, ...] = (writers,)
        self.refusal: EngineError | None = None
        self._partition = writers.partition
        self._queue = writers.queue
        self._old = _OldLines(writers.partition.topic)
        self._queue.join()

    def line_limit(self) -> int:
        """Return the longest line in bytes. A longer line is refused before its end has come."""
        return LINE_GROWTH * batch_limit(self._partition.settings) + LINE_FRAME

    def add(self, lines: Bytes, head: Bytes = NOTHING) -> int:
        """Take complete lines; `head` is the first of them. Return how many bytes were taken: all up to the first line
        that is refused, or that does not fit on the disk. After an error nothing was taken."""
        now = self._partition.log.clock()
        if self.format != Format.TXT:
            lines = joined(head, lines)
            parsed = self.format.parse(lines, now)
            taken = self.add_columns(parsed.columns, now)
            self._old.look(parsed.columns.rows(0, taken), self._partition.settings, now)
            if taken < len(parsed.columns):
                return line_start(lines, taken)
            self.refusal = parsed.error
            return parsed.used
        self.refusal = self.refusal_of_all()
        if self.refusal is not None:
            return 0
        taken, self.refusal = self._queue.put_lines(self, head, lines, now)
        return taken

    def add_columns(self, columns: Columns, now: int) -> int:
        """Take records. Return how many were taken: all up to the first that is refused."""
        wanted, self.refusal = first_refused(columns, self._partition.settings, now)
        if not wanted:
            return 0
        return self._queue.put_columns(self, columns.rows(0, wanted), now)

    def add_columns_if(self, columns: Columns, now: int, check: Callable[[], None]) -> tuple[int, int]:
        """Take records unless `check` raises an error, with nothing appended in between. Return how many were taken,
        and the end offset then."""
        if not isinstance(self._queue, LineQueue):
            raise LinkedTopicError(
                f"{self._partition.name}: only a Kafka cluster knows what others append to this topic"
            )
        wanted, self.refusal = first_refused(columns, self._partition.settings, now)
        if not wanted:
            return 0, self._partition.end_offset
        return self._queue.put_columns_if(self, columns.rows(0, wanted), check)

    def find_room(self, columns: Columns) -> None:
        """Raise OSError if there is no room for records, as far as that can be known."""
        self._queue.find_room(self, columns)

    def keep_columns(self, columns: Columns, now: int) -> None:
        """Take records that were checked, while others of their write are appended elsewhere. They may wait."""
        self._queue.keep_columns(self, columns, now)

    def refusal_of_all(self) -> EngineError | None:
        """Return why every line is refused, whatever is in it: a line of txt has no key. None if some may be taken."""
        settings = self._partition.settings
        if self.format == Format.TXT and settings.compact:
            now = self._partition.log.clock()
            try:
                check_records(np.array([now]), np.ones(1, np.bool_), settings, now)
            except EngineError as error:
                return error
        return None

    def refusal_at_end(self, line: Bytes) -> EngineError | None:
        """Return why an unfinished line is refused whatever follows it. None if it may be taken, or is no whole record
        yet."""
        now = self._partition.log.clock()
        parsed = self.format.parse(joined(line, _NEWLINE), now)
        return first_refused(parsed.columns, self._partition.settings, now)[1]

    def hold_room(self, size: int) -> None:
        """Make sure that there is room for an unfinished line of this many bytes, as far as that is possible. OSError
        if there is no room."""
        self._queue.hold(self, size)

    def hold_line(self, line: Bytes) -> None:
        """Make sure that there is room for a line that is probably at its end, as a descriptor is closed."""
        self._queue.hold(self, line.size)

    def give_room_back(self) -> None:
        """Give back the room of an unfinished line, which has ended and goes to another partition."""
        self._queue.give_room_back(self)

    @property
    def waits(self) -> bool:
        """Tell whether lines wait, be they its own or another writer's, or it is to be told of lines that are lost."""
        # In this order: lines that are lost meanwhile by the flusher are noted as lost before they no longer wait.
        return self._queue.holds_lines or self.sent is not None or self.lost is not None

    def flush(self) -> None:
        """Append the waiting lines. After an error they no longer wait: the caller knows that they are lost."""
        self._queue.flush(self)

    def persist(self) -> None:
        """Append the waiting lines, and bring them onto the disk."""
        self._queue.flush(self)
        self._partition.flush()

    def leave(self) -> None:
        """Note that the writer is closed."""
        self._queue.leave(self)


class TopicTarget:
    """A writer's target in a topic, with the same methods. A record goes to the partition that its jsonl line names,
    or that the hash of its key gives, as with Kafka's producers. Records without a key go to the partitions in turn.

    writers  the writing sides of all partitions that it may append to
    refusal  why the last `add` did not take everything; None if it did
    _parts   the target in each partition, by its number
    _turns   a counter that all writers of the topic share: it says which partition is next for records without a key
    _count   how many partitions the cluster has of which some are here; None where keys go to those that are here
    _held    the partition that holds room for an unfinished line: the one that the line goes to, as far as that is
             known; else the first, as all partitions are on one disk
    _chosen  the partition of that line, if it has no key and is probably complete: its turn is taken
    _old     tells of records that retention removes soon
    """

    def __init__(
        self, parts: Sequence[PartitionTarget], turns: Iterator[int], count: int | None = None
    ) -> None:
        self.format = parts[0].format
        self.writers = tuple(writers for part in parts for writers in part.writers)
        self.refusal: EngineError | None = None
        self._parts = {part.number: part for part in parts}
        self._numbers = sorted(self._parts)
        self._turns = turns
        self._count = count
        self._held: PartitionTarget | None = None
        self._chosen: PartitionTarget | None = None
        self._old = _OldLines(self.writers[0].partition.topic)

    def line_limit(self) -> int:
        return max(part.line_limit() for part in self._parts.values())

    def add(self, lines: Bytes, head: Bytes = NOTHING) -> int:
        self.refusal = None
        if self.format == Format.TXT:
            part = self._held or self._next_part()
            taken = part.add(lines, head)
            self.refusal = part.refusal
            return taken
        lines = joined(head, lines)
        now = self.writers[0].partition.log.clock()
        parsed = self.format.parse(lines, now)
        # Refused records are found before anything is taken: what went to one partition cannot be taken back when
        # another partition refuses an earlier line.
        taken, refusal = first_refused(parsed.columns, self.writers[0].partition.settings, now)
        chosen, known, unknown = self._choose(parsed.columns, parsed.partitions)
        if known < taken:
            taken, refusal = known, unknown
        numbers = np.unique(chosen[:taken]).tolist()
        if self._held is not None and numbers not in ([], [self._held.number]):
            self._held.give_room_back()
            self._held = None
        if len(numbers) == 1:
            part = self._parts[numbers[0]]
            done = part.add_columns(parsed.columns.rows(0, taken), now)
            if done < taken:
                taken, refusal = done, part.refusal
        elif numbers:
            self._spread(parsed.columns, chosen[:taken], numbers, now)
        self._old.look(parsed.columns.rows(0, taken), self.writers[0].partition.settings, now)
        if taken < len(parsed.columns):
            self.refusal = refusal
            return line_start(lines, taken)
        self.refusal = parsed.error
        return parsed.used

    def _spread(self, columns: Columns, chosen: Ints, numbers: list[int], now: int) -> None:
        """Take records for several partitions: all or, with an error, none. Room is found for all before any append."""
        shares = {number: columns.take(np.flatnonzero(chosen == number)) for number in numbers}
        for number, share in shares.items():
            self._parts[number].find_room(share)
        for number, share in shares.items():
            self._parts[number].keep_columns(share, now)

    def _next_part(self) -> PartitionTarget:
        return self._parts[self._numbers[next(self._turns) % len(self._numbers)]]

    def _choose(self, columns: Columns, named: Ints) -> tuple[Ints, int, EngineError | None]:
        """Return the partition of each record, how many records come before the first that names an unknown partition,
        and why that one is refused."""
        keyless = (columns.key_length < 0) & (named == NO_PARTITION)
        turn = self._numbers[0]
        if keyless.any():
            turn = (self._chosen or self._next_part()).number
        chosen, known, unknown = choose(columns, named, self._numbers, turn, self._count)
        if unknown is not None:
            unknown = InvalidRecordError(f"line {known + 1}: {unknown}")
        return chosen, known, unknown

    def refusal_of_all(self) -> EngineError | None:
        return next(iter(self._parts.values())).refusal_of_all()

    def refusal_at_end(self, line: Bytes) -> EngineError | None:
        now = self.writers[0].partition.log.clock()
        parsed = self.format.parse(joined(line, _NEWLINE), now)
        refusal = first_refused(parsed.columns, self.writers[0].partition.settings, now)[1]
        return (
            refusal
            or choose(parsed.columns, parsed.partitions, self._numbers, self._numbers[0], self._count)[2]
        )

    def hold_room(self, size: int) -> None:
        if not size:
            if self._held is not None:
                self._held.hold_room(0)
            self._held = self._chosen = None
        elif self._held is not None:
            self._held.hold_room(size)
        else:
            part = self._next_part() if self.format == Format.TXT else self._parts[self._numbers[0]]
            part.hold_room(size)
            self._held = part

    def hold_line(self, line: Bytes) -> None:
        part = self._part_of(line)
        if part is None or part is self._held:
            self.hold_room(line.size)
            return
        part.hold_room(line.size)
        if self._held is not None:
            self._held.give_room_back()
        self._held = part

    def _part_of(self, line: Bytes) -> PartitionTarget | None:
        """Return where an unfinished line goes if it is complete as it is. None if that is not known, as the line will
        be refused."""
        if self.format == Format.TXT:
            return self._held
        parsed = self.format.parse(joined(line, _NEWLINE), self.writers[0].partition.log.clock())
        if not len(parsed.columns):
            return None
        chosen, known, _ = self._choose(parsed.columns, parsed.partitions)
        if not known:
            return None
        part = self._parts[int(chosen[0])]
        if parsed.columns.key_length[0] < 0 and parsed.partitions[0] == NO_PARTITION:
            self._chosen = part
        return part

    @property
    def waits(self) -> bool:
        return any(part.waits for part in self._parts.values())

    def flush(self) -> None:
        self._each(PartitionTarget.flush)

    def persist(self) -> None:
        self._each(PartitionTarget.persist)

    def leave(self) -> None:
        self._each(PartitionTarget.leave)

    def _each(self, call: Callable[[PartitionTarget], None]) -> None:
        """Do it for every partition, then raise the first error: a failure does not keep the others from being done."""
        failures: list[EngineError | OSError] = []
        for part in self._parts.values():
            try:
                call(part)
            except (EngineError, OSError) as error:
                failures.append(error)
        if failures:
            raise failures[0]


Target = PartitionTarget | TopicTarget
"""The place that complete lines go to."""


class _OldLines:
    """What is logged of the records that one writer appends and retention removes soon: once, at the first of them.

    _topic  the name of the topic
    _told   whether it was logged
    """

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self._told = False

    def look(self, columns: Columns, settings: TopicSettings, now: int) -> None:
        """Look at records that were taken."""
        if self._told:
            return
        old = OldRecords()
        old.add(columns.timestamps, settings, now)
        if old.count:
            self._told = True
            # Each line of a script may come from a writer of its own.
            if ERRORS.telling((self._topic, "old records"), now / 1000) is not Telling.LEFT_OUT:
                log.warning(f"{self._topic}: of lines that are appended {old.words(self._topic, settings)}")


def joined(head: Bytes, lines: Bytes) -> Bytes:
    """Join a first line and the lines behind it."""
    return np.concatenate((head, lines)) if head.size else lines


def line_start(lines: Bytes, line: int) -> int:
    """Return where the line with this number, counted from 0, begins."""
    return 0 if line == 0 else int(np.flatnonzero(lines == ord("\n"))[line - 1]) + 1
