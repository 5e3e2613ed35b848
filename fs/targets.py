"""Where lines go: into one partition, or into a topic's partitions by their keys."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

import numpy as np

from engine import batch as batches
from engine.batch.columns import Columns
from engine.batch.table import Bytes, Ints
from engine.errors import EngineError, InvalidRecordError, RecordTooLargeError
from engine.inbox.routing import NO_PARTITION, choose, first_refused
from engine.partition.partition import Partition
from engine.partition.validate import batch_limit, check_records, shape_for
from engine.record import TimestampType
from fs.formats import Format
from fs.shown import ShownPartition

LINE_GROWTH: Final = 6
"""No line is longer than its record times this: `\\u0041` in jsonl is one byte of a value."""

LINE_FRAME: Final = 1024


class PartitionTarget:
    """Lines on their way into one partition.

    format     in which they are written
    refusal    why the last `add` did not take everything
    _builder   the batch that grows
    _unsent    batches that could not be appended yet, as the disk was full; and the sizes of their texts
    _since     when the first line that waits came
    """

    def __init__(self, shown: ShownPartition, fmt: Format, batch_size: int) -> None:
        self.format = fmt
        self.refusal: EngineError | None = None
        self._shown = shown
        self._partition: Partition = shown.partition
        self._batch_size = batch_size
        self._builder = batches.BatchBuilder(batch_limit(self._partition.settings))
        self._unsent: deque[tuple[Bytes, int]] = deque()
        self._since: int | None = None

    def shown(self) -> tuple[ShownPartition, ...]:
        return (self._shown,)

    def line_limit(self) -> int:
        return LINE_GROWTH * batch_limit(self._partition.settings) + LINE_FRAME

    def waiting_since(self) -> int | None:
        return self._since

    def add(self, lines: Bytes) -> int:
        self.retry()
        now = self._partition.log.clock()
        if self.format != Format.TXT:
            parsed = self.format.parse(lines, now)
            taken = self.add_columns(parsed.columns, now)
            if taken < len(parsed.columns):
                return line_start(lines, taken)
            self.refusal = parsed.error
            return parsed.used
        self.refusal = None
        try:
            if self._partition.settings.compact:
                check_records(np.array([now]), np.ones(1, np.bool_), self._partition.settings, now)
            return self._add_plain(lines, now)
        except EngineError as error:
            self.refusal = error
            return 0

    def _add_plain(self, lines: Bytes, now: int) -> int:
        at = 0
        while at < lines.size:
            self._begin(now)
            try:
                at = self._builder.add_lines(lines, at, now)
            except RecordTooLargeError as error:
                self.refusal = error
                if not self._unsent and not self._builder.count:
                    self._since = None
                return at
            if at < lines.size or self._builder.size >= self._batch_size:
                self._send_or_keep()
        return at

    def add_columns(self, columns: Columns, now: int) -> int:
        """Take records. Gives how many were taken: up to the first that is refused."""
        wanted, self.refusal = first_refused(columns, self._partition.settings, now)
        at = 0
        while at < wanted:
            self._begin(now)
            at += self._builder.add_columns(columns.rows(at, wanted))
            if at < wanted or self._builder.size >= self._batch_size:
                self._send_or_keep()
        return at

    def _begin(self, now: int) -> None:
        if self._since is None:
            self._since = now
        if not self._builder.count:
            limit = batch_limit(self._partition.settings)
            if self._builder.limit != limit:
                self._builder = batches.BatchBuilder(limit)

    def retry(self) -> None:
        """Append what could not be appended before. While that fails nothing more is taken."""
        if self._unsent:
            self._send()

    def _send_or_keep(self) -> None:
        """Append what waits, or keep it: its lines are taken, and who wrote them must not write them again. So a
        failure is told by the next call, which meets it anew."""
        self._finish()
        with contextlib.suppress(EngineError, OSError):
            self._send()

    def _send(self) -> None:
        """Append what waits. What the log could not take stays, and is tried again."""
        self._finish()
        while self._unsent:
            batch, size = self._unsent[0]
            appended = self._partition.append_built(batch)
            self._unsent.popleft()
            self._shown.texts.note(appended, size)
        self._since = None

    def _finish(self) -> None:
        """End the batch that grows."""
        if self._builder.count:
            settings = self._partition.settings
            stamped = settings.message_timestamp_type == TimestampType.LOG_APPEND_TIME
            append_time = self._partition.log.clock() if stamped else None
            size = self._builder.text_size
            self._unsent.append((self._builder.finish(shape_for(settings), append_time), size))

    def flush(self) -> None:
        self._send()

    def persist(self) -> None:
        self._send()
        self._partition.flush()


class TopicTarget:
    """Lines on their way into a topic: by the key's hash, as Kafka's producers do, else to one partition after
    the other, or to the one that a jsonl line names.

    refusal  why the last `add` did not take everything
    _parts   a target for each partition, by its number
    _turns   counts for all who append to the topic: whose turn it is to get records without a key
    """

    def __init__(self, parts: dict[int, PartitionTarget], fmt: Format, turns: Iterator[int]) -> None:
        self.format = fmt
        self.refusal: EngineError | None = None
        self._parts = parts
        self._numbers = sorted(parts)
        self._turns = turns

    def shown(self) -> tuple[ShownPartition, ...]:
        return tuple(shown for part in self._parts.values() for shown in part.shown())

    def line_limit(self) -> int:
        return max(part.line_limit() for part in self._parts.values())

    def waiting_since(self) -> int | None:
        times = [since for part in self._parts.values() if (since := part.waiting_since()) is not None]
        return min(times, default=None)

    def add(self, lines: Bytes) -> int:
        self.refusal = None
        for part in self._parts.values():
            part.retry()
        if self.format == Format.TXT:
            part = self._next_part()
            taken = part.add(lines)
            self.refusal = part.refusal
            return taken
        now = self.shown()[0].partition.log.clock()
        parsed = self.format.parse(lines, now)
        # What is refused is found before anything is taken: what went to one partition cannot be called back
        # for a line before it that another refuses.
        taken, refusal = first_refused(parsed.columns, self.shown()[0].partition.settings, now)
        chosen, known, unknown = self._choose(parsed.columns, parsed.partitions)
        if known < taken:
            taken, refusal = known, unknown
        for number in np.unique(chosen[:taken]).tolist():
            rows = np.flatnonzero(chosen[:taken] == number)
            self._parts[number].add_columns(parsed.columns.take(rows), now)
        if taken < len(parsed.columns):
            self.refusal = refusal
            return line_start(lines, taken)
        self.refusal = parsed.error
        return parsed.used

    def _next_part(self) -> PartitionTarget:
        return self._parts[self._numbers[next(self._turns) % len(self._numbers)]]

    def _choose(self, columns: Columns, named: Ints) -> tuple[Ints, int, EngineError | None]:
        """The partition of each record; how many there are before the first that names one that is not there,
        and why that is refused."""
        keyless = (columns.key_length < 0) & (named == NO_PARTITION)
        turn = self._next_part().shown()[0].partition.number if keyless.any() else self._numbers[0]
        chosen, known, unknown = choose(columns, named, self._numbers, turn)
        if unknown is not None:
            unknown = InvalidRecordError(f"line {known + 1}: {unknown}")
        return chosen, known, unknown

    def flush(self) -> None:
        self._each(PartitionTarget.flush)

    def persist(self) -> None:
        self._each(PartitionTarget.persist)

    def _each(self, call: Callable[[PartitionTarget], None]) -> None:
        """Do it for every partition, then raise the first error: one that fails does not hold up the others."""
        failures: list[EngineError | OSError] = []
        for part in self._parts.values():
            try:
                call(part)
            except (EngineError, OSError) as error:
                failures.append(error)
        if failures:
            raise failures[0]


def line_start(lines: Bytes, line: int) -> int:
    """Where the line with a number, counted from 0, begins."""
    return 0 if line == 0 else int(np.flatnonzero(lines == ord("\n"))[line - 1]) + 1
