"""Which partition is compacted next, by whom, and how far each one is.

Cleaner threads call `work` again and again. The filthiest log is taken first. One whose bytes are damaged is set
aside until the store is opened anew, so that the others go on; one whose files cannot be read or written is tried
again after a while. Compacted partitions get their retention here too, between compactions.
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
from topicfs.engine.errors import CleaningAbortedError, ClosedError, EngineError, UnknownPartitionError
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
"""A partition whose files could not be read or written is left alone for so long: the others come before it."""


class Result(Protocol):
    """What a clean gives."""

    @property
    def end_offset(self) -> int:
        """Everything below is clean."""

    @property
    def bytes_read(self) -> int:
        """In both passes."""

    @property
    def bytes_written(self) -> int:
        """Into the new segments."""


class Cleans(Protocol):
    """What compacts a part of a log."""

    def clean(
        self, log: Log, first_dirty: int, first_uncleanable: int, now: int, check: Callable[[], None]
    ) -> Result:
        """Compact; `check` is called now and then, and what it raises leaves the log as it was."""


@dataclass(frozen=True, slots=True)
class CleaningJob:
    """One clean that has begun, and has to be ended by `done`.

    slot       the partition's
    log        its log
    candidate  what was found in it
    """

    slot: Slot
    log: Log
    candidate: Candidate


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one call of `work` did.

    partition  name of the one that was compacted, None where none was
    cleaned    what came of it, None where it did not end well
    advanced   the partition is clean up to a higher offset than before
    aborted    it was broken off
    error      why it failed
    removed    by the retention of compacted partitions
    """

    partition: str | None = None
    cleaned: Result | None = None
    advanced: bool = False
    aborted: bool = False
    error: str | None = None
    removed: Removed = NOTHING


class CleaningManager:
    """The compaction of a store's partitions.

    states        who is at work on which partition
    offsets       where the next compaction of each begins
    uncleanable   why a partition is set aside, by topic and number
    failing       why a partition could not be read or written, and when it is tried again, by the steady clock
    _slots        gives the partitions that there are
    _use          loads a slot's partition
    _settings     of a topic
    _retention    removes what is due
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
        self._slots = slots
        self._use = use
        self._settings = settings
        self._retention = retention

    # -- cleaner threads ------------------------------------------------------------------------------

    def work(self, cleaner: Cleans, now: int) -> Outcome:
        """Compact the filthiest log, if one is filthy enough; then remove what is due from compacted ones."""
        job = self.grab_filthiest(now)
        outcome = Outcome() if job is None else self._clean(job, cleaner, now)
        return replace(outcome, removed=self.retain_compacted(now))

    def _clean(self, job: CleaningJob, cleaner: Cleans, now: int) -> Outcome:
        candidate, key = job.candidate, job.slot.key
        outcome = Outcome(job.slot.name)
        cleaned: Result | None = None
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
            # Deleted or closed meanwhile, or offline, which was said when it happened.
            outcome = replace(outcome, error=str(error))
        except (OSError, MemoryError) as error:
            self._put_off(job.slot, error)
            outcome = replace(outcome, error=str(error) or repr(error))
        except EngineError as error:
            self._set_aside(job.slot, error)
            outcome = replace(outcome, error=str(error))
        except BaseException as error:
            # A mistake in one clean comes out, but not again and again: the others would never have their turn.
            self._set_aside(job.slot, error)
            raise
        finally:
            self.done(job, cleaned)
        return outcome

    def grab_filthiest(self, now: int) -> CleaningJob | None:
        """Begin to compact the log that is the filthiest of those that are to be; None where there is none."""
        found = []
        for slot in self._slots():
            if self._is_free(slot):
                candidate = self._look(slot, now)
                if candidate is not None and candidate.checkpoint_is_off and self.states.begin(slot.key):
                    try:
                        candidate = self._look(slot, now, is_mine=True)
                    finally:
                        self.states.end(slot.key)
                if candidate is not None and candidate.eligible:
                    found.append((candidate.ratio, slot))
        for _, slot in sorted(found, key=lambda each: each[0], reverse=True):
            job = self._begin(slot, now)
            if job is not None:
                return job
        return None

    def done(self, job: CleaningJob, cleaned: Result | None) -> None:
        """The job has ended: how far it came is written down, unless it was to be broken off."""
        key = job.slot.key
        try:
            if cleaned is not None and self.states.of(key) is Phase.IN_PROGRESS:
                self.offsets.put(key, cleaned.end_offset)
        except OSError as error:
            log.error(f"{job.slot.name}: how far it is compacted cannot be written down: {error}")
        finally:
            self.states.end(key)

    def retain_compacted(self, now: int) -> Removed:
        """Remove what is due from compacted partitions, save those that are at work, paused or set aside."""
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
        """Remove what is due from partitions that are not compacted. They are paused meanwhile: a cleaner thread
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

    def _look(self, slot: Slot, now: int, is_mine: bool = False) -> Candidate | None:
        """What is found in a slot's log; None where nobody can tell. What fails is reported. A checkpoint that is off
        is set where the slot `is_mine`, the work on it begun: nobody cuts the log, and lowers it, meanwhile."""
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
        """Begin with a log; None where it is not to be compacted any more."""
        if not self.states.begin(slot.key):
            return None
        job = None
        try:
            partition = self._use(slot)
            # Looked at anew: since the first look it may have been cut, or another thread was done with it. And one
            # that was not in use may have an open transaction, which its files' names do not tell.
            candidate = self._look(slot, now, is_mine=True)
            if candidate is not None and candidate.eligible:
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
        """Read how far each partition is compacted. Where that is read-only, nothing is ever compacted."""
        self.offsets.read(present, read_only)
        if read_only:
            self.states.stop()

    def follow_recovery(self) -> None:
        """Recovery may have cut logs off below where compaction had come to. What is appended there is not compacted,
        although its offsets were: a tombstone among it would go before the values that it deletes."""
        for slot in self._slots():
            if slot.partition is None:
                continue
            try:
                self.offsets.lower(slot.key, slot.partition.end_offset)
            except OSError as error:
                log.error(f"{slot.name}: how far it is compacted cannot be written down: {error}")

    def abort_and_pause(self, key: PartitionKey) -> None:
        """Let nothing be compacted or removed in the partition, from when this returns until `resume`."""
        self.states.abort_and_pause(key)

    def resume(self, key: PartitionKey) -> None:
        """Take one pause back."""
        self.states.resume(key)

    def abort(self, key: PartitionKey) -> None:
        """Break off what is under way in the partition, and return when it has ended."""
        self.states.abort(key)

    @contextlib.contextmanager
    def paused(self, key: PartitionKey) -> Iterator[None]:
        """Nothing is compacted or removed in the partition meanwhile."""
        self.states.abort_and_pause(key)
        try:
            yield
        finally:
            self.states.resume(key)

    def forget(self, key: PartitionKey) -> None:
        """The partition is gone, or one is about to come: nothing that is known belongs to it."""
        self.uncleanable.pop(key, None)
        self.failing.pop(key, None)
        self.offsets.forget(key)

    def stop(self) -> None:
        """Break off everything, let nothing begin any more, and return when all has ended."""
        self.states.stop()
