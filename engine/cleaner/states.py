"""The state of work on each partition: at most one cleaner works on it, and none while somebody has it paused.

free → in progress → free
       in progress → aborted → paused
free or paused → paused once more; each pause is ended by one resume
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from enum import Enum

from topicfs.engine.errors import CleaningAbortedError
from topicfs.engine.files.listing import PartitionKey


class Phase(Enum):
    """The phase of a partition."""

    FREE = "none"
    IN_PROGRESS = "in progress"
    ABORTED = "aborted"
    PAUSED = "paused"


@dataclass(frozen=True, slots=True)
class _PartitionState:
    """The state of one partition that is not free.

    phase   IN_PROGRESS, ABORTED or PAUSED
    pauses  number of callers that have it paused, or wait for that
    """

    phase: Phase
    pauses: int = 0


class CleaningStates:
    """The partitions that are not free.

    _states    their states, by topic and number
    _stopping  whether all work has to end and no more begins
    _changed   guards both, and is notified of each end
    """

    def __init__(self) -> None:
        self._states: dict[PartitionKey, _PartitionState] = {}
        self._stopping = False
        self._changed = threading.Condition()

    def of(self, key: PartitionKey) -> Phase:
        """Return the partition's phase. Takes no lock."""
        state = self._states.get(key)
        return Phase.FREE if state is None else state.phase

    def begin(self, key: PartitionKey) -> bool:
        """Begin work on a partition. Return False if it is not free."""
        with self._changed:
            if self._stopping or key in self._states:
                return False
            self._states[key] = _PartitionState(Phase.IN_PROGRESS)
            return True

    def end(self, key: PartitionKey) -> None:
        """End work on a partition. Callers that wait for its abort go on. ValueError if no work was running."""
        with self._changed:
            state = self._states.get(key)
            if state is not None and state.phase is Phase.IN_PROGRESS:
                del self._states[key]
            elif state is not None and state.phase is Phase.ABORTED:
                self._states[key] = _PartitionState(Phase.PAUSED, state.pauses)
            else:
                raise ValueError(
                    f"{key[0]}-{key[1]}: expected work in progress or aborted, found state {self.of(key).value}"
                )
            self._changed.notify_all()

    def check(self, key: PartitionKey) -> None:
        """Raise CleaningAbortedError if the work has to end. The worker calls this again and again, without a lock."""
        if self._stopping or self.of(key) is Phase.ABORTED:
            raise CleaningAbortedError(f"{key[0]}-{key[1]}: the compaction is broken off")

    @property
    def some_is_to_end(self) -> bool:
        """Return whether any work has to end."""
        return self._stopping or any(state.phase is Phase.ABORTED for state in tuple(self._states.values()))

    # -- by others ------------------------------------------------------------------------------------

    def abort_and_pause(self, key: PartitionKey) -> None:
        """Abort the work on the partition. No more begins from the return of this call until `resume`."""
        with self._changed:
            state = self._states.get(key)
            if state is None or state.phase is Phase.PAUSED:
                self._states[key] = _PartitionState(Phase.PAUSED, 1 if state is None else state.pauses + 1)
                return
            self._states[key] = _PartitionState(Phase.ABORTED, state.pauses + 1)
            self._changed.wait_for(lambda: self.of(key) == Phase.PAUSED)

    def pause_free(self, key: PartitionKey) -> bool:
        """Pause the partition if it is free. Return False if it is not."""
        with self._changed:
            if key in self._states:
                return False
            self._states[key] = _PartitionState(Phase.PAUSED, 1)
            return True

    def resume(self, key: PartitionKey) -> None:
        """End one pause. ValueError if there is none."""
        with self._changed:
            state = self._states.get(key)
            if state is None or state.phase is not Phase.PAUSED:
                raise ValueError(
                    f"{key[0]}-{key[1]}: expected a pause to take back, found state {self.of(key).value}"
                )
            if state.pauses > 1:
                self._states[key] = _PartitionState(Phase.PAUSED, state.pauses - 1)
            else:
                del self._states[key]

    def abort(self, key: PartitionKey) -> None:
        """Abort the work on a partition, and return when it has ended."""
        self.abort_and_pause(key)
        self.resume(key)

    def stop(self) -> None:
        """Abort all work, let no more begin, and return when all has ended."""
        with self._changed:
            self._stopping = True
            self._changed.wait_for(
                lambda: not any(state.phase is not Phase.PAUSED for state in self._states.values())
            )
