"""Who is at work on a partition: one cleaner at most, and none while somebody has it paused.

free → in progress → free
       in progress → aborted → paused
free or paused → paused once more; each pause is taken back by one resume
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from enum import Enum

from topicfs.engine.errors import CleaningAbortedError
from topicfs.engine.files.listing import PartitionKey


class Phase(Enum):
    """What is the matter with a partition."""

    FREE = "none"
    IN_PROGRESS = "in progress"
    ABORTED = "aborted"
    PAUSED = "paused"


@dataclass(frozen=True, slots=True)
class _PartitionState:
    """Of one partition that is not free.

    phase   IN_PROGRESS, ABORTED or PAUSED
    pauses  how many have it paused, or wait for that
    """

    phase: Phase
    pauses: int = 0


class CleaningStates:
    """The partitions that are not free.

    _states    by topic and number
    _stopping  no work begins any more, and what is under way is to end
    _changed   guards both; told of each end
    """

    def __init__(self) -> None:
        self._states: dict[PartitionKey, _PartitionState] = {}
        self._stopping = False
        self._changed = threading.Condition()

    def of(self, key: PartitionKey) -> Phase:
        """The partition's phase. Takes no lock."""
        state = self._states.get(key)
        return Phase.FREE if state is None else state.phase

    def begin(self, key: PartitionKey) -> bool:
        """Begin work on a partition. False where it is not free."""
        with self._changed:
            if self._stopping or key in self._states:
                return False
            self._states[key] = _PartitionState(Phase.IN_PROGRESS)
            return True

    def end(self, key: PartitionKey) -> None:
        """End it. Who waits for the abort goes on. ValueError where no work was under way."""
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
        """CleaningAbortedError where the work is to end. Called again and again by who does it, without a lock."""
        if self._stopping or self.of(key) is Phase.ABORTED:
            raise CleaningAbortedError(f"{key[0]}-{key[1]}: the compaction is broken off")

    @property
    def some_is_to_end(self) -> bool:
        """Whether some work is to end."""
        return self._stopping or any(state.phase is Phase.ABORTED for state in tuple(self._states.values()))

    # -- by others ------------------------------------------------------------------------------------

    def abort_and_pause(self, key: PartitionKey) -> None:
        """Let no work be done on the partition, from when this returns until `resume`."""
        with self._changed:
            state = self._states.get(key)
            if state is None or state.phase is Phase.PAUSED:
                self._states[key] = _PartitionState(Phase.PAUSED, 1 if state is None else state.pauses + 1)
                return
            self._states[key] = _PartitionState(Phase.ABORTED, state.pauses + 1)
            self._changed.wait_for(lambda: self.of(key) == Phase.PAUSED)

    def pause_free(self, key: PartitionKey) -> bool:
        """Pause the partition if it is free. False where it is not."""
        with self._changed:
            if key in self._states:
                return False
            self._states[key] = _PartitionState(Phase.PAUSED, 1)
            return True

    def resume(self, key: PartitionKey) -> None:
        """Take one pause back. ValueError where there is none."""
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
        """End the work on a partition, and return when it has ended."""
        self.abort_and_pause(key)
        self.resume(key)

    def stop(self) -> None:
        """End all work, let none begin any more, and return when all has ended."""
        with self._changed:
            self._stopping = True
            self._changed.wait_for(
                lambda: not any(state.phase is not Phase.PAUSED for state in self._states.values())
            )
