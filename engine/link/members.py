"""Workers of this mount that are members of a cluster's groups, beside consumers: Kafka's classic group protocol.

A worker joins when its directory is made, and a thread of its own sends heartbeats for it as long as it gives signs of
life itself. When the group divides anew, a strategy says who gives up what:

    range, roundrobin    all give up all. So the worker's next sign of life is waited for before its part is joined
                         anew: until then it works on what it had, and others wait for it, a session's time at most
    cooperative-sticky   what stays goes on. What is to be another's is no more listed, and given on with the next sign

The name of a worker is its `group.instance.id`: after a restart of the daemon it has its partitions again.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from topicfs.engine.errors import EngineError, GroupLimitError, NotOwnerError
from topicfs.engine.files.listing import PartitionKey
from topicfs.engine.groups.assignment import assign
from topicfs.engine.link.client import ClientSettings
from topicfs.engine.link.cluster import Cluster
from topicfs.engine.link.connection import Address
from topicfs.engine.link.division import Claim, divided
from topicfs.engine.link.fetch import delay_s
from topicfs.engine.link.group import Group
from topicfs.engine.transactions.cluster import Identity

log = logging.getLogger(__name__)

_COOPERATIVE: Final = "cooperative-sticky"

_BEAT_S: Final = 3.0
"""The time between two heartbeats, at most, as consumers have it: so soon a member notices that others come."""

_MOST: Final = 200
"""So many workers may be members: each has a thread and two connections."""

_INSTANCE: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}", re.ASCII)
"""What Kafka takes for a `group.instance.id`. A worker of another name is a new member after a restart."""


class Members:
    """The workers of one mount that are members of a cluster's groups. Several threads may use it.

    _numbers  returns how many partitions a topic has
    _run      starts a thread that runs a function, under a name
    _workers  by group and name
    _guard    guards them
    """

    def __init__(
        self,
        bootstrap: Sequence[Address],
        client: ClientSettings,
        numbers: Callable[[str], int],
        run: Callable[[Callable[[], None], str], None],
    ) -> None:
        self._bootstrap = tuple(bootstrap)
        self._client = client
        self._numbers = numbers
        self._run = run
        self._workers: dict[tuple[str, str], _Worker] = {}
        self._guard = threading.Lock()
        self._is_ended = False

    def want(
        self, group: str, name: str, topics: frozenset[str], session_timeout_ms: int, strategy: str
    ) -> None:
        """Have a worker be a member, for partitions of these topics."""
        with self._guard:
            if self._is_ended:
                return
            known = self._workers.get((group, name))
            if known is not None and known.terms == (session_timeout_ms, strategy):
                known.subscribe(topics)
                return
            if known is None and len(self._workers) >= _MOST:
                raise GroupLimitError(
                    f"group {group}: {name} cannot join: expected at most {_MOST} workers of one mount in groups of "
                    f"the cluster"
                )
            if known is not None:
                known.end(for_good=True)
            instance = name if _INSTANCE.fullmatch(name) else ""
            client = replace(self._client, session_timeout_ms=session_timeout_ms, group_instance_id=instance)
            worker = _Worker(group, strategy, client, self._bootstrap, self._numbers, known)
            worker.subscribe(topics)
            self._workers[group, name] = worker
        self._run(worker.work, f"member-{group}-{name}")

    def leave(self, group: str, name: str) -> None:
        """Have a worker leave, if it is a member."""
        with self._guard:
            known = self._workers.pop((group, name), None)
        if known is not None:
            known.end(for_good=True)

    def of_group(self, group: str) -> list[str]:
        """Return the names of those that are or become members."""
        with self._guard:
            return [name for of, name in self._workers if of == group]

    def owned(self, group: str, name: str) -> frozenset[PartitionKey]:
        """Return the partitions that are a worker's own at this moment."""
        known = self._workers.get((group, name))
        return frozenset() if known is None else known.owned

    def alive(self, group: str, name: str) -> None:
        """Take a sign of life of a worker."""
        known = self._workers.get((group, name))
        if known is not None:
            known.hear()

    def identity(self, group: str, name: str) -> Identity:
        """Return who a worker is. NotOwnerError where it is no member now."""
        known = self._workers.get((group, name))
        if known is None or known.group.generation < 0:
            raise NotOwnerError(f"group {group}: {name} is no member in the cluster now")
        return Identity(known.group.generation, known.group.member_id, known.group.instance or None)

    def told(self, group: str, name: str) -> str | None:
        """Return why a worker is no member, in words."""
        known = self._workers.get((group, name))
        return None if known is None else known.group.error

    def end(self) -> None:
        """End all threads. Workers with names that last stay members until their sessions are over."""
        with self._guard:
            self._is_ended = True
            workers, self._workers = list(self._workers.values()), {}
        for worker in workers:
            worker.end(for_good=False)
        for worker in workers:
            worker.over.wait()


class _Worker:
    """One worker's membership. A thread of its own runs `work`.

    group     what is said to the coordinator
    terms     the session timeout and the strategy that it joined with
    over      set when the thread has ended
    _before   the worker of this name that ends first; None for none
    _heard    set by a sign of life since it was last told what it has
    _wake     set when there is something to do
    _ended    set when the thread is to end
    _gave_up_all  whether it has given up all that it had, and is to join anew
    _leaves   whether it leaves the group then
    """

    def __init__(
        self,
        group: str,
        strategy: str,
        client: ClientSettings,
        bootstrap: Sequence[Address],
        numbers: Callable[[str], int],
        before: _Worker | None,
    ) -> None:
        self.terms = client.session_timeout_ms, strategy
        self.over = threading.Event()
        self._client = client
        self._numbers = numbers
        self._before = before
        self._cluster = Cluster(tuple(bootstrap), client)
        self.group = Group.of(group, client, bootstrap)
        self.group.protocol = strategy
        self.group.divide = partial(self._divide, strategy)
        self.group.works = "a worker of this mount has"
        self._topics: frozenset[str] = frozenset()
        self._heard = threading.Event()
        self._wake = threading.Event()
        self._ended = threading.Event()
        self._leaves = False
        self._gave_up_all = False

    @property
    def _is_eager(self) -> bool:
        return self.terms[1] != _COOPERATIVE

    @property
    def owned(self) -> frozenset[PartitionKey]:
        """Return the partitions that are its own at this moment."""
        if self._gave_up_all:
            return frozenset()
        return frozenset(key for key in self.group.given if self.group.may_write(key))

    def subscribe(self, topics: frozenset[str]) -> None:
        """Have it ask for partitions of these topics."""
        if topics != self._topics:
            self._topics = topics
            self._wake.set()

    def hear(self) -> None:
        """Take a sign of life: what was to be given up is not worked on any more."""
        if self._is_eager and self.group.must_join:
            self._gave_up_all = True
        self._heard.set()
        self._wake.set()

    def end(self, for_good: bool) -> None:
        """Have the thread end, also where it waits for others."""
        self._leaves = for_good
        self._ended.set()
        self._wake.set()
        self._cluster.close()
        # Who only goes away with the mount waits for no broker.
        (self.group.end if for_good else self.group.close)()

    def work(self) -> None:
        """Be a member until the end."""
        failures = 0
        try:
            if self._before is not None:
                self._before.over.wait()
                self._before = None
            while not self._ended.is_set():
                self._wake.clear()
                try:
                    wait_s, failures = self._step(), 0
                except (EngineError, OSError) as error:
                    wait_s, failures = delay_s(self._client, failures), failures + 1
                    log.info(f"group {self.group.name}: a worker of this mount is no member now: {error}")
                self._wake.wait(wait_s)
        finally:
            self.group.leave(self._leaves)
            self.group.close()
            self.over.set()

    def _step(self) -> float:
        """Do what is to be done now, and return after how many seconds to come again."""
        group = self.group
        group.topics = self._topics
        group.wanted = frozenset((topic, n) for topic in self._topics for n in range(self._numbers(topic)))
        if self._is_eager:
            group.held = frozenset()
            # It may still work on what is to be divided.
            group.may_join = not self.owned
        elif self._heard.is_set():
            group.let_go(group.held & group.given)
        joins = group.must_join and group.may_join
        wait_s = min(group.step(), _BEAT_S)
        if joins and not group.must_join:
            # What it has lost it sees from now on, so only the next sign of life is about that.
            self._heard.clear()
            self._gave_up_all = False
        if not self._is_eager:
            group.held |= group.given
        return wait_s

    def _divide(
        self, strategy: str, _: Collection[PartitionKey], claims: Mapping[str, Claim]
    ) -> Mapping[str, Collection[PartitionKey]]:
        """Say what each member is to have, as the leader. Others may read topics that are not mirrored here."""
        topics = {member: claim.topics for member, claim in claims.items()}
        described = self._cluster.describe(sorted(frozenset().union(*topics.values()))).topics
        if strategy == _COOPERATIVE:
            wanted = frozenset().union(*topics.values())
            return divided(
                [(topic, n) for topic, each in described.items() if topic in wanted for n in each.partitions],
                claims,
            )
        partitions = {topic: sorted(each.partitions) for topic, each in sorted(described.items())}
        return assign(strategy, topics, partitions, {member: claim.owned for member, claim in claims.items()})
