"""Whether what is appended to a mirrored partition goes to the cluster: it does, it will, or it never does.

it does     the partition's log has a `remote`
it will     the cluster has the topic, as far as is known, and the mirror is not ready: nobody was asked yet, the
            cluster is away, a leader does not tell where to begin, a broker has not heard of the topic yet. Who
            appends waits for `delivery.timeout.ms`, as for an acknowledgement
it never    the topic has ended, is of another cluster, is not wanted here, or the partition is another daemon's.
  does      Who appends is told so at once; and where the cluster says that this user may not use the topic
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from topicfs.engine.errors import (
    ClosedError,
    DeliveryTimeoutError,
    EngineError,
    LinkedTopicError,
    LinkRefusedError,
    UnknownPartitionError,
)
from topicfs.engine.link.following import Following

_LOOK_S: Final = 0.05
"""How often a wait looks whether the mirror is ready, the link ends, or its caller has given up."""


class Readiness:
    """What knows of the mirrored partitions of one store whether they take lines. Several threads may use it.

    _following  the topics that are mirrored
    _moved      has the cluster looked at soon
    _stopping   set when the link ends: then nobody waits any more
    _given_up   tells whether the caller waits no longer, as a signal has come for it
    """

    def __init__(
        self,
        following: Following,
        moved: Callable[[], None],
        stopping: threading.Event,
        given_up: Callable[[], bool],
    ) -> None:
        self._following = following
        self._store = following.store
        self._moved = moved
        self._stopping = stopping
        self._given_up = given_up

    @property
    def timeout_ms(self) -> int:
        """Return for how long lines wait."""
        return self._following.cluster.client.delivery_timeout_ms

    @property
    def is_divided(self) -> bool:
        """Tell whether others may have some of a topic's partitions."""
        return self._following.group is not None

    def wait(self, topic: str, numbers: Sequence[int]) -> None:
        """Wait until lines for these partitions go to the cluster, but for those that are never to: where all are, the
        error says why. LinkRefusedError where this user may not use the topic, DeliveryTimeoutError where it takes too
        long, or the caller has given up."""
        end, has_asked = time.monotonic() + self.timeout_ms / 1000, False
        while missing := [number for number in numbers if not self._is_ready(topic, number)]:
            refusals = self._refusals(topic, missing)
            refused = next((each for each in refusals.values() if isinstance(each, LinkRefusedError)), None)
            if refused is not None or len(refusals) == len(numbers):
                raise refused or refusals[missing[0]]
            awaited = next((number for number in missing if number not in refusals), None)
            if awaited is None:
                return
            if not has_asked:
                # What was missing at the last look may be known by now.
                self._moved()
                has_asked = True
            if self._has_given_up() or time.monotonic() >= end or self._stopping.wait(_LOOK_S):
                raise self.timeout(topic, awaited)

    def _is_ready(self, topic: str, number: int) -> bool:
        try:
            return self._store.partition(topic, number).log.remote is not None
        except (ClosedError, UnknownPartitionError):
            return False

    def _has_given_up(self) -> bool:
        return self._stopping.is_set() or self._given_up()

    def refusal(self, topic: str, number: int) -> EngineError | None:
        """Return why lines for a partition do not go to the cluster, where waiting is no use; None where it may be."""
        return self._refusals(topic, (number,)).get(number)

    def _refusals(self, topic: str, numbers: Sequence[int]) -> dict[int, EngineError]:
        """Return why lines for partitions do not go to the cluster, for those where waiting is no use."""
        # Once for all of them, as it is read from a file.
        of_all = self._why_none(topic)
        found: dict[int, EngineError] = {}
        for number in numbers:
            try:
                self._store.partition(topic, number)
                error = self._refusal(topic, number, of_all)
            except (ClosedError, UnknownPartitionError) as gone:
                error = gone
            if error is not None:
                found[number] = error
        return found

    def _refusal(self, topic: str, number: int, of_all: str | None) -> EngineError | None:
        following, problem = self._following, self._store.links.problems.get(topic)
        others = f"another daemon of link.group={following.options.group} mirrors it"
        why = others if of_all is None and following.is_others((topic, number)) else of_all
        if why is not None:
            return LinkedTopicError(
                f"{topic}-{number}: mirrors a partition of a Kafka cluster, and is only read here: {why}"
            )
        return LinkRefusedError(f"{topic}: {problem}") if isinstance(problem, LinkRefusedError) else None

    def _why_none(self, topic: str) -> str | None:
        """Return why no lines of a topic go to the cluster; None where they may."""
        linked, following = self._store.links.topic(topic), self._following
        if linked is None:
            return "there is no link to it"
        if linked.ended is not None:
            return linked.ended
        if linked.topic_id in self._store.links.gone:
            return "the topic was deleted in the cluster by rmdir here"
        if not following.options.wants(topic):
            return "link.topics (--link-topic) does not have the topic"
        if following.cluster_id not in (None, linked.cluster):
            return f"it is of another cluster, {linked.cluster}, and the link is to {following.cluster_id}"
        return None

    def timeout(self, topic: str, number: int) -> EngineError:
        """Return the error of who has waited for a partition in vain: DeliveryTimeoutError."""
        links, group = self._store.links, self._following.group
        state, problem = links.mirrors.get((topic, number)), links.problems.get(topic)
        why = (
            links.error
            or (problem and str(problem))
            or (state and state.error)
            or (group and group.error)
            or "the cluster was asked, and the mirror begins"
        )
        return DeliveryTimeoutError(
            f"{topic}-{number}: nothing was sent within {self.timeout_ms} ms (delivery.timeout.ms), or before the "
            f"mount or the writer ends, as its mirror is not ready: {why}"
        )
