"""Topics of the cluster that mkdir makes, and rmdir deletes while they are empty, where the settings allow it.

    link.create=true    mkdir topics/<name> makes the topic there, if link.topics has the name, and waits for the mirror
    link.delete=true    rmdir topics/<name> deletes a topic there that has no record, neither there nor here

Without the second one rmdir refuses a topic that is mirrored: it would be here again a moment later.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any, Final, TypeVar

from kafka.protocol.admin import CreateTopicsRequest, DeleteTopicsRequest

from topicfs.engine.errors import (
    ClusterAwayError,
    DeliveryTimeoutError,
    EngineError,
    InvalidNameError,
    InvalidSettingError,
    LinkError,
    LinkRefusedError,
    PartitionExistsError,
    PartitionNotEmptyError,
    PolicyViolationError,
)
from topicfs.engine.files.metadata import uuid_bytes
from topicfs.engine.format.paths import validate_topic
from topicfs.engine.link.cluster import EARLIEST, LATEST, Cluster, DescribedTopic
from topicfs.engine.link.connection import words_of
from topicfs.engine.link.fetch import delay_s
from topicfs.engine.link.options import LinkOptions
from topicfs.engine.link.waiting import answer_of
from topicfs.engine.linked.topics import LinkedTopic
from topicfs.engine.store.new_topic import NewTopic
from topicfs.engine.store.store import Store

log = logging.getLogger(__name__)

_CREATE: Final = 7
_DELETE: Final = 6
"""The versions of the requests. From the sixth on a topic is deleted by its id: never another one of its name."""

_PASSING: Final = frozenset({5, 7, 13, 14, 15, 16, 41, 89})
"""Errors that pass: there is no controller at the moment, or it is too busy."""

_EXISTS: Final = 36
_GONE: Final = frozenset({3, 100})
_DISABLED: Final = 73
_BAD_NAME: Final = 17
_REFUSED: Final = frozenset({29, 31})
_INVALID: Final = frozenset({37, 38, 39, 40, 42, 44})

_LOOK_S: Final = 0.05
"""How often a wait looks whether the mirror is here, the link ends, or its caller has given up."""


T = TypeVar("T")


class Administration:
    """What makes and deletes topics in the cluster. Several threads may use it.

    cluster    the cluster
    options    what is mirrored, and what may be made and deleted
    _store     the store with the mirrors
    _moved     has the cluster looked at soon
    _stopping  set when the link ends: then nobody waits any more
    """

    def __init__(
        self,
        store: Store,
        cluster: Cluster,
        options: LinkOptions,
        moved: Callable[[], None],
        stopping: threading.Event,
    ) -> None:
        self.cluster = cluster
        self.options = options
        self._store = store
        self._moved = moved
        self._stopping = stopping

    def create(self, new: NewTopic) -> bool:
        """Make a topic in the cluster, and return when it is mirrored. Return False where it is to be a local one.

        PartitionExistsError where the cluster has it; InvalidNameError or InvalidSettingError where the cluster refuses
        the name or the numbers, LinkRefusedError where it refuses the user, DeliveryTimeoutError without an answer."""
        topic = new.topic
        if not (self.options.create and self.options.wants(topic)):
            return False
        validate_topic(topic)
        deadline = self._deadline()
        if self._until(deadline, topic, lambda: self._found(topic)) is not None:
            raise PartitionExistsError(f"topic {topic}: the cluster has one of this name")
        self._until(deadline, topic, lambda: self._create(new))
        log.info(f"topic {topic}: made in the cluster")
        words = f"topic {topic} was made in the cluster, and is not mirrored yet"
        if self.options.group:
            # All daemons see it, the group divides it, and perhaps a daemon is gone that is to be waited for.
            client = self.cluster.client
            deadline = time.monotonic() + (2 * client.metadata_max_age_ms + client.session_timeout_ms) / 1000
            words = f"topic {topic} was made in the cluster, and no partition of it is this daemon's"
        while not self._is_here(deadline, topic):
            self._moved()
            problem = self._store.links.problems.get(topic)
            # A broker that has not heard of the topic yet says that there is none, or that it has no leader.
            if problem is not None and not isinstance(problem, ClusterAwayError):
                kind = LinkRefusedError if isinstance(problem, LinkRefusedError) else LinkError
                raise kind(f"topic {topic} was made in the cluster, and is not mirrored: {problem}")
            self._wait(_LOOK_S, deadline, words)
        return True

    def delete(self, topic: LinkedTopic, number: int | None = None) -> None:
        """Delete a mirrored topic in the cluster before it is deleted here. PolicyViolationError where that is not
        allowed, as for a partition alone, PartitionNotEmptyError where the cluster has records of it."""
        if topic.ended is not None or not self.options.wants(topic.name):
            return
        if number is not None:
            raise PolicyViolationError(
                f"{topic.name}-{number}: mirrors a partition of the cluster, which deletes topics as a whole; the "
                f"mirror would be here again at once"
            )
        if not self.options.delete:
            raise PolicyViolationError(
                f"topic {topic.name}: mirrors one of the cluster, where link.delete=false lets nobody delete it from "
                f"here; without it there the mirror would be here again at once"
            )
        deadline = self._deadline()
        found = self._until(deadline, topic.name, lambda: self._found(topic.name))
        if found is not None and found.topic_id == topic.topic_id:
            self._until(deadline, topic.name, lambda: self._check_empty(found))
            self._until(deadline, topic.name, lambda: self._delete(topic))
            log.info(f"topic {topic.name}: deleted in the cluster, where it had no record")
        # A broker that has not heard of it yet would bring the mirror back.
        self._store.links.gone.add(topic.topic_id)

    # -- steps ----------------------------------------------------------------------------------------

    def _found(self, topic: str) -> DescribedTopic | None:
        return self.cluster.describe((topic,)).topics.get(topic)

    def _is_here(self, deadline: float, topic: str) -> bool:
        if self.options.group:
            # Of a group others may mirror the rest.
            return topic in self._store.topics()
        return self._asked(deadline, lambda: self._is_mirrored(topic))

    def _is_mirrored(self, topic: str) -> bool:
        """Tell whether all partitions of a new topic are here, and take lines."""
        numbers = self._store.topics().get(topic, ())
        try:
            found = self._found(topic) if numbers else None
        except ClusterAwayError:
            return False
        return (
            found is not None
            and found.partitions.keys() == {*numbers}
            and all(self._store.partition(topic, number).log.remote is not None for number in numbers)
        )

    def _create(self, new: NewTopic) -> None:
        topic = new.topic
        wanted = CreateTopicsRequest.CreatableTopic(
            version=_CREATE,
            name=topic,
            num_partitions=self.options.create_partitions if new.partitions is None else new.partitions,
            replication_factor=self.options.create_replication_factor,
            assignments=[],
            configs=[
                CreateTopicsRequest.CreatableTopic.CreatableTopicConfig(
                    version=_CREATE, name=name, value=value
                )
                for name, value in new.settings.items()
            ],
        )
        request = CreateTopicsRequest[_CREATE](
            topics=[wanted], timeout_ms=self._timeout_ms, validate_only=False
        )
        told = _only(self.cluster.ask_any(request).topics, topic)
        # It was not there a moment ago. An attempt whose answer was lost has made it.
        if told.error_code != _EXISTS:
            _check(told, topic, "Create on the topic or the cluster")

    def _check_empty(self, topic: DescribedTopic) -> None:
        for number, leader in sorted(topic.partitions.items()):
            if leader.leader < 0:
                raise ClusterAwayError(f"{topic.name}-{number}: has no leader")
            first, end = (self.cluster.offset_at(topic.name, number, leader, at) for at in (EARLIEST, LATEST))
            if (first or 0) < (end or 0):
                raise PartitionNotEmptyError(
                    f"{topic.name}-{number}: expected no records in the cluster, found offsets {first} to "
                    f"{(end or 0) - 1}"
                )

    def _delete(self, topic: LinkedTopic) -> None:
        wanted = DeleteTopicsRequest.DeleteTopicState(
            version=_DELETE, name=None, topic_id=uuid.UUID(bytes=uuid_bytes(topic.topic_id))
        )
        request = DeleteTopicsRequest[_DELETE](topics=[wanted], timeout_ms=self._timeout_ms)
        answers = self.cluster.ask_any(request).responses
        if len(answers) != 1:
            raise ClusterAwayError(f"topic {topic.name}: the answer to its deletion is about others")
        if answers[0].error_code == _DISABLED:
            raise PolicyViolationError(f"topic {topic.name}: {words_of(_DISABLED)} in the cluster")
        # It was there a moment ago. An attempt whose answer was lost has deleted it.
        if answers[0].error_code not in _GONE:
            _check(answers[0], topic.name, "Delete on the topic")

    # -- waiting --------------------------------------------------------------------------------------

    @property
    def _timeout_ms(self) -> int:
        return self.cluster.client.request_timeout_ms * 4 // 5

    def _deadline(self) -> float:
        return time.monotonic() + self.cluster.client.delivery_timeout_ms / 1000

    def _until(self, deadline: float, topic: str, step: Callable[[], T]) -> T:
        """Try a step until the cluster answers."""
        failures = 0
        while True:
            try:
                return self._asked(deadline, step)
            except ClusterAwayError as error:
                self._wait(delay_s(self.cluster.client, failures), deadline, f"topic {topic}: {error}")
                failures += 1

    def _asked(self, deadline: float, step: Callable[[], T]) -> T:
        """Return what a step finds. ClusterAwayError where nobody waits for it any more."""
        return answer_of(step, lambda: time.monotonic() >= deadline or self._has_given_up())

    def _has_given_up(self) -> bool:
        return self._stopping.is_set() or self._store.links.given_up()

    def _wait(self, wait_s: float, deadline: float, words: str) -> None:
        end = time.monotonic() + wait_s
        while (left_s := end - time.monotonic()) > 0:
            if end >= deadline or self._has_given_up() or self._stopping.wait(min(left_s, _LOOK_S)):
                raise DeliveryTimeoutError(
                    f"no answer within {self.cluster.client.delivery_timeout_ms} ms (delivery.timeout.ms), or before "
                    f"the mount or the caller ends: {words}"
                )


def _only(answers: Any, topic: str) -> Any:
    if len(answers) != 1 or answers[0].name != topic:
        raise ClusterAwayError(f"topic {topic}: the answer to its making is about others")
    return answers[0]


def _check(told: Any, topic: str, needed: str) -> None:
    """Raise the error that an answer tells of."""
    code = told.error_code
    if not code:
        return
    words = f"topic {topic}: {words_of(code)}{f': {told.error_message}' if told.error_message else ''}"
    if code in _PASSING:
        raise ClusterAwayError(words)
    if code in _REFUSED:
        raise LinkRefusedError(f"{words}: this user needs {needed}")
    kinds: dict[int, type[EngineError]] = {_BAD_NAME: InvalidNameError}
    kind = InvalidSettingError if code in _INVALID else kinds.get(code, LinkError)
    raise kind(words)
