"""Asking the coordinators of a cluster: each group, and each transactional id, has a broker that answers for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from kafka.protocol.metadata import FindCoordinatorRequest

from topicfs.engine.errors import ClusterAwayError, DeliveryTimeoutError, LinkRefusedError
from topicfs.engine.link.cluster import Cluster
from topicfs.engine.link.connection import Address, words_of
from topicfs.engine.link.fetch import delay_s
from topicfs.engine.link.outcomes import NOT_ALLOWED
from topicfs.engine.link.waiting import answer_of

GROUP: Final = 0
TRANSACTION: Final = 1
"""The types of coordinators."""

_FIND: Final = 3

PASSING: Final = frozenset({3, 6, 7, 13, 14, 15, 16, 51, 88})
"""Errors that pass: there is no coordinator, or it loads, or it is just ending the transaction before."""

_GROUP_NOT_ALLOWED: Final = 30
_REFUSED: Final = NOT_ALLOWED | {_GROUP_NOT_ALLOWED}

_LOOK_S: Final = 0.2

_MOST_KNOWN: Final = 10_000
"""Of so many groups the coordinators are remembered."""


@dataclass(frozen=True, slots=True)
class Coordinated:
    """What a coordinator answers for.

    kind    GROUP or TRANSACTION
    key     the name of the group, or the transactional id
    name    what it is called in messages
    who     what its coordinator is called there
    rights  what its user needs
    """

    kind: int
    key: str
    name: str
    who: str
    rights: str

    @classmethod
    def group(cls, group: str) -> Coordinated:
        """Return what the coordinator of a group answers for."""
        return cls(GROUP, group, f"group {group}", "its coordinator", "Read on the group and on its topics")

    @classmethod
    def transaction(cls, name: str, transactional_id: str) -> Coordinated:
        """Return what the coordinator of a transactional id answers for; `name` is what it is called in messages."""
        rights = f"Write and Describe on {transactional_id}"
        return cls(TRANSACTION, transactional_id, name, "the coordinator of its transactions", rights)


class Coordinators:
    """The coordinators of one cluster. Several threads may use it.

    cluster    the cluster
    _stopping  set when the link ends: then nobody waits any more
    _given_up  tells whether the caller waits no longer, as a signal has come for it
    _known     where coordinators of groups were when they last answered
    """

    def __init__(self, cluster: Cluster, stopping: threading.Event, given_up: Callable[[], bool]) -> None:
        self.cluster = cluster
        self._stopping = stopping
        self._given_up = given_up
        self._known: dict[str, Address] = {}

    def has_given_up(self) -> bool:
        """Tell whether nobody waits any more."""
        return self._stopping.is_set() or self._given_up()

    def ask(
        self,
        of: Coordinated,
        request: Callable[[], Any],
        code_of: Callable[[Any], int],
        timeout_ms: int | None = None,
        since: float | None = None,
    ) -> Any:
        """Ask a coordinator, again and again while its errors pass. Return its answer. LinkRefusedError where this user
        may not, DeliveryTimeoutError where that takes longer than `timeout_ms`, or else `delivery.timeout.ms`, from
        `since` on by time.monotonic, or else from now on."""
        client = self.cluster.client
        limit_ms, setting = (
            (client.delivery_timeout_ms, "delivery.timeout.ms")
            if timeout_ms is None
            else (timeout_ms, "request.timeout.ms")
        )
        deadline, failures = (time.monotonic() if since is None else since) + limit_ms / 1000, 0
        while True:
            try:
                answer = answer_of(
                    lambda: self.cluster.ask(self._coordinator(of), request()),
                    lambda: time.monotonic() >= deadline or self.has_given_up(),
                )
                code = code_of(answer)
                if code in _REFUSED:
                    raise LinkRefusedError(f"{of.name}: {words_of(code)}: this user needs {of.rights}")
                if code not in PASSING:
                    return answer
                words = words_of(code)
            except ClusterAwayError as error:
                words = str(error)
            # Another broker may be the coordinator by now.
            self._known.pop(of.key, None)
            end = time.monotonic() + delay_s(client, failures)
            failures += 1
            while (left_s := end - time.monotonic()) > 0:
                if end >= deadline or self.has_given_up() or self._stopping.wait(min(left_s, _LOOK_S)):
                    raise DeliveryTimeoutError(
                        f"{of.name}: {of.who} does not answer within {limit_ms} ms ({setting}), or before the mount or "
                        f"the writer ends: {words}"
                    )

    def _coordinator(self, of: Coordinated) -> Address:
        known = self._known.get(of.key)
        if known is not None and of.kind == GROUP:
            return known
        answer = self.cluster.ask_any(FindCoordinatorRequest[_FIND](key=of.key, key_type=of.kind))
        if answer.error_code in _REFUSED:
            raise LinkRefusedError(f"{of.name}: {words_of(answer.error_code)}: this user needs {of.rights}")
        if answer.error_code or not answer.host:
            raise ClusterAwayError(f"{of.name}: no coordinator: {words_of(answer.error_code)}")
        found = Address(answer.host, answer.port)
        # Transactions ask seldom, and each of their keys may be new.
        if of.kind == GROUP:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[of.key] = found
        return found
