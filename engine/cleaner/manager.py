"""Deciding which partition is compacted next, and keeping how far each one is compacted.

Cleaner threads call `work` again and again. The log with the largest dirty part comes first. A log whose bytes are
damaged is set aside until the store is opened again, so that the others go on. A log whose files cannot be read or
written is tried again after a while. Retention of compacted partitions runs here too, between compactions.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Protocol

from topicfs.engine.cleaner.candidates import Candidate, assess, look
from topicfs.engine.cleaner.checkpoint import CleanerOffsets
from topicfs.engine.cleaner.states import CleaningStates, Phase
from topicfs.engine.errors import (
    CleaningAbortedError,
    ClosedError,
    EngineError,
    PolicyViolationError,
    UnknownPartitionError,
)
from topicfs.engine.files.listing import PartitionKey
from topicfs.engine.partition.log import Log
from topicfs.engine.partition.partition import Partition
from topicfs.engine.partition.slot import Slot
from topicfs.engine.record import Clock
from topicfs.engine.retention.partitions import Retention
from topicfs.engine.retention.removal import NOTHING, Removed
from topicfs.engine.settings.topic import TopicSettings

log = logging.getLogger(__name__)

RETRY_MS: Final = 60_000
"""Time for which a partition whose files could not be read or written is left alone: the others come first."""


class Result(Protocol):
    """The result of a clean."""

    @property
    def end_offset(self) -> int:
        """Return the offset below which everything is clean."""

    @property
    def bytes_read(self) -> int:
        """Return how many bytes were read."""

    @property
    def bytes_written(self) -> int:
        """Return how many bytes were written into the new segments."""


class Cleans(Protocol):
    """An object that compacts a part of a log."""

    def clean(
        self, log: Log, first_dirty: int, first_uncleanable: int, now: int, check: Callable[[], None]
    ) -> Result:
        """Compact a part of the log. `check` is called now and then, and an error in it leaves the log as it was."""


@dataclass(frozen=True, slots=True)
class CleaningJob:
    """One clean that has begun, and has to be ended by `done`.

    slot       slot of the partition
    log        log of the partition
    candidate  assessment of the log
    """

    slot: Slot
    log: Log
    candidate: Candidate


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one call of `work`.

    partition  name of the partition that was compacted, None if none was
    cleaned    result of the clean, None if it did not succeed
    advanced   whether the partition is now clean up to a higher offset than before
    aborted    whether the clean was aborted
    error      why it failed
    removed    what the retention of compacted partitions removed
    """

    partition: str | None = None
    cleaned: Result | None = None
    advanced: bool = False
    aborted: bool = False
    error: str | None = None
    removed: Removed = NOTHING


class CleaningManager:
    """The compaction of a store's partitions.

    states        the work that runs on each partition
    offsets       offset where the next compaction of each partition begins
    uncleanable   why a partition is set aside, by topic and number
    failing       why a partition could not be read or written, and when it is tried again, by the steady clock
    asked         partitions that somebody wants compacted now, however small their dirty part is
    _answering    those of them that are being compacted; who asks for one meanwhile means what has come since
    wake          has a cleaner thread look for work now
    why_idle      the setting by which there is no cleaner thread; None where there are some
    _slots        gives all partitions
    _use          loads a slot's partition
    _settings     gives the settings of a topic
    _retention    removes records that are due
    _steady       gives milliseconds for waits
    """

    def __init__(
        self,
        logs: Path,
        slots: Callable[[], Iterable[Slot]],
        use: Callable[[Slot], Partition],
        settings: Callable[[str], TopicSettings],
        retention: Retention,
        steady: Clock,
    ) -> None:
        self._steady = steady
        self.states = CleaningStates()
        self.offsets = CleanerOffsets(logs)
        self.uncleanable: dict[PartitionKey, str] = {}
        self.failing: dict[PartitionKey, tuple[str, int]] = {}
        self.asked: set[PartitionKey] = set()
        self._answering: set[PartitionKey] = set()
        self.wake: Callable[[], None] = lambda: None
        self.why_idle: str | None = None
        self._slots = slots
        self._use = use
        self._settings = settings
        self._retention = retention

    # -- cleaner threads ------------------------------------------------------------------------------

    def work(self, cleaner: Cleans, now: int) -> Outcome:
        """Compact the log with the largest dirty part, if that is large enough. Then remove what is due from
        compacted logs."""
        job = self.grab_filthiest(now)
        outcome = Outcome() if job is None else self._clean(job, cleaner, now)
        return replace(outcome, removed=self.retain_compacted(now))

    def work_asked(self, cleaner: Cleans, now: int) -> Outcome | None:
        """Compact one of the logs that were asked for. Return None if there is none left of them."""
        job = self.grab_filthiest(now, only_asked=True)
        return None if job is None else self._clean(job, cleaner, now)

    def _clean(self, job: CleaningJob, cleaner: Cleans, now: int) -> Outcome:
        candidate, key = job.candidate, job.slot.key
        outcome = Outcome(job.slot.name)
        cleaned: Result | None = None
        if is_asked := key in self.asked:
            self._answering.add(key)
            self.asked.discard(key)
        try:
            cleaned = cleaner.clean(
                job.log,
                candidate.first_dirty,
                candidate.first_uncleanable,
                now,
                lambda: self.states.check(key),
            )
            advanced = cleaned.end_offset > candidate.first_dirty
            outcome = replace(outcome, cleaned=cleaned, advanced=advanced)
            self.failing.pop(key, None)
        except CleaningAbortedError:
            outcome = replace(outcome, aborted=True)
        except ClosedError as error:
            # It was deleted or closed in the meantime, or is offline, which was logged when it happened.
            outcome = replace(outcome, error=str(error))
        except (OSError, MemoryError) as error:
            self._put_off(job.slot, error)
            outcome = replace(outcome, error=str(error) or repr(error))
        except EngineError as error:
            self._set_aside(job.slot, error)
            outcome = replace(outcome, error=str(error))
        except BaseException as error:
            # A bug in one clean is raised, but not again and again: otherwise no other log would get its turn.
            self._set_aside(job.slot, error)
            raise
        finally:
            # One clean goes as far as its map of keys reaches, and one that was aborted begins anew.
            is_part = (
                outcome.advanced and cleaned is not None and cleaned.end_offset < candidate.first_uncleanable
            )
            if is_asked and (is_part or outcome.aborted):
                self.asked.add(key)
            self.done(job, cleaned)
            self._answering.discard(key)
        return outcome

    def grab_filthiest(self, now: int, only_asked: bool = False) -> CleaningJob | None:
        """Begin to compact one of the logs that were asked for, or else the eligible log with the largest dirty part.
        Return None if there is neither."""
        found = []
        for slot in self._slots():
            if self._is_free(slot) and (slot.key in self.asked or not only_asked):
                candidate = self._look(slot, now)
                if candidate is not None and candidate.checkpoint_is_off and self.states.begin(slot.key):
                    try:
                        candidate = self._look(slot, now, is_mine=True)
                    finally:
                        self.states.end(slot.key)
                if self._is_due(slot, candidate):
                    assert candidate is not None
                    found.append(((slot.key in self.asked, candidate.ratio), slot))
        for _, slot in sorted(found, key=lambda each: each[0], reverse=True):
            job = self._begin(slot, now)
            if job is not None:
                return job
        return None

    def done(self, job: CleaningJob, cleaned: Result | None) -> None:
        """End a job. Save how far it came, unless it was aborted."""
        key = job.slot.key
        try:
            if cleaned is not None and self.states.of(key) is Phase.IN_PROGRESS:
                self.offsets.put(key, cleaned.end_offset)
        except OSError as error:
            log.error(f"{job.slot.name}: how far it is compacted cannot be written down: {error}")
        finally:
            self.states.end(key)

    def retain_compacted(self, now: int) -> Removed:
        """Remove what is due from compacted partitions, except those that are busy, paused or set aside."""
        removed = NOTHING
        for slot in self._slots():
            if self._settings(slot.topic).compact and slot.key not in self.uncleanable:
                if not self.states.begin(slot.key):
                    continue
                try:
                    removed += self._retention.retain(slot, now)
                finally:
                    self.states.end(slot.key)
        return removed

    def retain_others(self, now: int) -> Removed:
        """Remove what is due from partitions that are not compacted. They are paused during this: a cleaner thread
        must not begin with one whose cleanup.policy changes."""
        removed = NOTHING
        for slot in self._slots():
            if not self._settings(slot.topic).compact and self.states.pause_free(slot.key):
                try:
                    removed += self._retention.retain(slot, now)
                finally:
                    self.states.resume(slot.key)
        return removed

    def _is_free(self, slot: Slot) -> bool:
        retry = self.failing.get(slot.key)
        return (
            self._settings(slot.topic).compact
            and slot.key not in self.uncleanable
            and self.states.of(slot.key) is Phase.FREE
            and (retry is None or retry[1] < self._steady())
        )

    def _is_due(self, slot: Slot, candidate: Candidate | None) -> bool:
        """Return whether a log is to be compacted now. One that was asked for, and has nothing that could be compacted,
        is done, and no longer among them."""
        if candidate is not None and candidate.cleanable_bytes and slot.key in self.asked:
            return True
        self.asked.discard(slot.key)
        return candidate is not None and candidate.eligible

    def _look(self, slot: Slot, now: int, is_mine: bool = False) -> Candidate | None:
        """Assess a slot's log. Return None if that is not possible. Errors are logged. With `is_mine` the caller has
        begun work on the slot, and a checkpoint outside the log is corrected: nobody can cut the log and lower it at
        the same time."""
        checkpointed = self.offsets.get(slot.key)
        try:
            unused = self._retention.look(slot)
            if unused is not None:
                settings = self._settings(slot.topic)
                return assess(unused.segments, unused.offsets, settings, checkpointed, now)
            if slot.partition is None:
                return None
            candidate = look(slot.partition.log, checkpointed, now)
            if candidate.checkpoint_is_off and is_mine:
                log.info(
                    f"{slot.name}: was compacted up to offset {checkpointed}, which is not in the log: "
                    f"compaction begins at {candidate.first_dirty}"
                )
                self.offsets.put(slot.key, candidate.first_dirty)
        except (ClosedError, UnknownPartitionError):
            return None
        except OSError as error:
            if not slot.gone:
                self._put_off(slot, error)
            return None
        except EngineError as error:
            self._set_aside(slot, error)
            return None
        return candidate

    def _begin(self, slot: Slot, now: int) -> CleaningJob | None:
        """Begin work on a log. Return None if it is no longer eligible."""
        if not self.states.begin(slot.key):
            return None
        job = None
        try:
            partition = self._use(slot)
            # It is assessed again: since the first time it may have been cut, or another thread compacted it. And one
            # that was not in use may have an open transaction, which the names of its files do not show.
            candidate = self._look(slot, now, is_mine=True)
            if self._is_due(slot, candidate):
                assert candidate is not None
                job = CleaningJob(slot, partition.log, candidate)
        except (ClosedError, UnknownPartitionError):
            pass
        finally:
            if job is None:
                self.states.end(slot.key)
        return job

    def _put_off(self, slot: Slot, error: OSError | MemoryError) -> None:
        why = str(error) or repr(error)
        if self.failing.get(slot.key, ("", 0))[0] != why:
            log.error(f"{slot.name}: cannot be compacted, tried again in {RETRY_MS // 1000} s: {error!r}")
        self.failing[slot.key] = why, self._steady() + RETRY_MS

    def _set_aside(self, slot: Slot, error: BaseException) -> None:
        log.error(f"{slot.name}: cannot be compacted, set aside until the next start: {error!r}")
        self.uncleanable[slot.key] = str(error) or repr(error)

    # -- by others ------------------------------------------------------------------------------------

    def load(self, present: Collection[PartitionKey], read_only: bool = False) -> None:
        """Read how far each partition is compacted. With `read_only` nothing is ever compacted."""
        self.offsets.read(present, read_only)
        if read_only:
            self.states.stop()

    def follow_recovery(self) -> None:
        """Lower the saved offsets to the ends of logs that recovery has cut. New records there are not compacted,
        although their offsets were: a tombstone among them would be removed before the values that it deletes."""
        for slot in self._slots():
            if slot.partition is None:
                continue
            try:
                self.offsets.lower(slot.key, slot.partition.end_offset)
            except OSError as error:
                log.error(f"{slot.name}: how far it is compacted cannot be written down: {error}")

    def ask(self, key: PartitionKey) -> None:
        """Have a partition compacted soon, however small its dirty part is. PolicyViolationError if it is not one that
        is compacted, or nobody compacts."""
        if not self._settings(key[0]).compact:
            policy = self._settings(key[0]).cleanup_policy_text
            raise PolicyViolationError(
                f"{key[0]}: cleanup.policy is {policy or 'empty'}: only topics with compact in it are compacted"
            )
        if self.why_idle is not None:
            raise PolicyViolationError(f"{key[0]}: {self.why_idle}: nothing is compacted")
        self.failing.pop(key, None)
        self.asked.add(key)
        self.wake()

    def is_asked(self, key: PartitionKey) -> bool:
        """Tell whether somebody wants the partition compacted, and that is not done yet."""
        return key in self.asked or key in self._answering

    def abort_and_pause(self, key: PartitionKey) -> None:
        """Stop compaction and removal in the partition. They stay stopped from the return of this call until
        `resume`."""
        self.states.abort_and_pause(key)

    def resume(self, key: PartitionKey) -> None:
        """End one pause."""
        self.states.resume(key)

    def abort(self, key: PartitionKey) -> None:
        """Abort the running work on the partition, and return when it has ended."""
        self.states.abort(key)

    @contextlib.contextmanager
    def paused(self, key: PartitionKey) -> Iterator[None]:
        """Keep compaction and removal in the partition stopped during the `with` block."""
        self.states.abort_and_pause(key)
        try:
            yield
        finally:
            self.states.resume(key)

    def forget(self, key: PartitionKey) -> None:
        """Forget everything about the partition, because it was deleted or is about to be created."""
        self.uncleanable.pop(key, None)
        self.failing.pop(key, None)
        self.asked.discard(key)
        self.offsets.forget(key)

    def stop(self) -> None:
        """Abort all work, let no more begin, and return when all has ended."""
        self.states.stop()
