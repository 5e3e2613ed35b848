"""The threads of the link to a Kafka cluster.

    link          asks the cluster again and again which topics there are, and gives each mirror to its leader's fetcher
    link-<node>   fetches from one broker, and appends: while it appends, the next answer is on its way
    append-<partition>   sends what is appended to a partition, to its leader; it ends when nothing has come for a while
    member-<group>-<name>  stays a member of a group, for a worker of this mount
    link-group    with link.group: heartbeats, and which partitions are this daemon's

A broker that does not answer holds up its own thread only; when others lead its partitions, theirs go on with them.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from topicfs.engine.errors import EngineError, LinkError
from topicfs.engine.groups.groups import Groups
from topicfs.engine.link.administration import Administration
from topicfs.engine.link.cluster import Cluster
from topicfs.engine.link.coordinators import Coordinators
from topicfs.engine.link.fetch import Fetching, delay_s
from topicfs.engine.link.following import Following
from topicfs.engine.link.group import Group
from topicfs.engine.link.members import Members
from topicfs.engine.link.mirror import Mirror
from topicfs.engine.link.options import LinkOptions
from topicfs.engine.link.positions import Positions
from topicfs.engine.link.produce import Producer
from topicfs.engine.link.readiness import Readiness
from topicfs.engine.link.transactions import Transactions
from topicfs.engine.store.store import Store
from topicfs.engine.threads import start

log = logging.getLogger(__name__)

_SHORTEST_S: Final = 0.1
"""The time between two looks at the cluster, at least, however many partitions have moved."""

_IDLE_S: Final = 0.05
"""How long a fetcher waits that has nothing to ask for: all of its mirrors have failed, and wait for their delay."""


class Fetcher:
    """The thread that fetches from one broker.

    node        the id of the broker
    fetching    what is asked, and what becomes of the answers
    mirrors     the mirrors that the broker leads; replaced as a whole
    stopping    set when it must end
    _has_some   set while there is a mirror, or the thread must end
    _told       the last error that was logged
    _thread     the thread
    """

    def __init__(self, node: int, cluster: Cluster, moved: Callable[[], None]) -> None:
        self.node = node
        self.fetching = Fetching(cluster, moved)
        self.mirrors: Sequence[Mirror] = ()
        self.stopping = threading.Event()
        self._has_some = threading.Event()
        self._told = ""
        self._thread = threading.Thread(target=self._work, name=f"link-{node}")

    def start(self) -> None:
        """Start the thread. OSError where none can be had."""
        start(self._thread)

    def give(self, mirrors: Sequence[Mirror]) -> None:
        """Have these mirrors fetched, and no others."""
        self.mirrors = mirrors
        if mirrors:
            self._has_some.set()
        else:
            self._has_some.clear()

    def end(self) -> None:
        """Have the thread end when its connection does."""
        self.stopping.set()
        self._has_some.set()

    def join(self) -> None:
        """Wait until the thread has ended."""
        self._thread.join()

    def _work(self) -> None:
        failures = 0
        while not self.stopping.is_set():
            if not self.mirrors:
                self._has_some.wait()
                continue
            began = time.monotonic()
            try:
                self._fetch()
            except (EngineError, OSError) as error:
                self._fail(str(error), failures)
            except Exception as error:
                log.exception(f"link to broker {self.node} failed unexpectedly, and begins again")
                self._fail(repr(error), failures)
            # Who was connected for longer than the longest wait does not wait for longer than at first.
            lasted_ms = (time.monotonic() - began) * 1000
            failures = (
                0 if lasted_ms > self.fetching.cluster.client.reconnect_backoff_max_ms else failures + 1
            )

    def _fetch(self) -> None:
        """Fetch until an error, or until there is no mirror."""
        cluster, fetching = self.fetching.cluster, self.fetching
        connection = cluster.connect(cluster.address_of(self.node))
        try:
            fetching.forget()
            while self.mirrors and not self.stopping.is_set():
                if not fetching.exchange(connection, self.mirrors):
                    self.stopping.wait(_IDLE_S)
        finally:
            cluster.let_go(connection)

    def _fail(self, words: str, failures: int) -> None:
        if self.stopping.is_set():
            return
        wait_s = delay_s(self.fetching.cluster.client, failures)
        if words != self._told:
            log.warning(f"nothing is mirrored from broker {self.node}, which is tried again: {words}")
            self._told = words
        for mirror in self.mirrors:
            if mirror.owner is self.fetching:
                mirror.fail(words, wait_s)
        self.fetching.moved()
        self.stopping.wait(wait_s)


class Link:
    """The link of one store to a cluster.

    following  the topics that are mirrored
    looks      how often it was asked
    failures   how many looks failed one after the other
    _fetchers  the fetchers, by the ids of their brokers
    _workers   the members that groups of the cluster have in this mount
    _readiness  knows which partitions take lines
    _no_appends  set when no call of a user may wait for the cluster any more
    _wake      guards _is_woken and _stopping; the thread waits on it between looks
    """

    def __init__(self, store: Store, options: LinkOptions) -> None:
        self.options = options
        self.cluster = Cluster(options.bootstrap, options.client)
        self.group = Group.of(options.group, options.client, options.bootstrap) if options.group else None
        self.following = Following(store, self.cluster, options, self.group)
        self._store = store
        self.looks = 0
        self.failures = 0
        self._fetchers: dict[int, Fetcher] = {}
        self._wake = threading.Condition()
        self._is_woken = False
        self._stopping = False
        self._no_appends = threading.Event()
        self._readiness = Readiness(self.following, self.moved, self._no_appends, self._has_given_up)
        self._workers = Members(options.bootstrap, options.client, self._numbers, self._run)
        self._thread = threading.Thread(target=self._work, name="link")
        self._members = threading.Thread(target=self._belong, name="link-group")

    @property
    def error(self) -> str | None:
        """Return why the cluster could not be asked last, in words; None if it could."""
        return self._store.links.error

    def start(self) -> None:
        """Start the threads."""
        self._store.links.error = "the cluster was not asked yet"
        self._store.links.readiness = self._readiness
        transactions = Transactions(
            self.cluster,
            str(self._store.meta.directory_id),
            lambda topic, number: self.following.mirrors.get((topic, number)),
            self.moved,
            self._no_appends,
            self._has_given_up,
            self._run,
            self._readiness.wait,
        )
        self._store.inboxes.cluster = self._store.linked_transactions.cluster = transactions
        self._store.inboxes.linked_joint.transactions.cluster = transactions
        self._store.links.remote = Administration(
            self._store, self.cluster, self.options, self.moved, self._no_appends
        )
        groups = Groups.of(self._store).linked
        groups.members = self._workers
        groups.positions = Positions(
            Coordinators(self.cluster, self._no_appends, self._has_given_up),
            self._is_mirrored,
            lambda: self.error,
            self._store.clock,
            self.options.delete,
        )
        if self.group is not None:
            self._members.start()
        self._thread.start()

    def stop(self) -> None:
        """End the threads, whatever they wait for. Nothing is appended after that."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        self.end_appends()
        self._workers.end()
        for fetcher in list(self._fetchers.values()):
            fetcher.end()
        self.cluster.close()
        if self.group is not None:
            self.group.end()
            if self._members.is_alive():
                self._members.join()
        if self._thread.is_alive():
            self._thread.join()
        for fetcher in self._fetchers.values():
            # The thread may have started one since.
            fetcher.end()
            fetcher.join()
        if self.group is not None:
            # What it had is given to others, who find nothing half done.
            self.following.give_up()
            self.group.leave()
            self.group.close()

    def end_appends(self) -> None:
        """Have who waits for an acknowledgement of the cluster wait no longer: the mount is going away."""
        self._no_appends.set()

    def _run(self, work: Callable[[], None], name: str) -> None:
        """Start a thread that appends. It ends by itself. OSError where none can be had."""
        start(threading.Thread(target=work, name=name))

    def _numbers(self, topic: str) -> int:
        """Return how many partitions the cluster has of a mirrored topic, as it was last seen."""
        links = self._store.links
        return links.counts.get(topic) or len(self._store.topics().get(topic, ()))

    def _is_mirrored(self, topic: str) -> bool:
        """Tell whether a topic mirrors one that the cluster has. One made there anew under its name is another."""
        found = self._store.links.topic(topic)
        return found is not None and found.ended is None

    def _has_given_up(self) -> bool:
        return self._store.links.given_up()

    def moved(self) -> None:
        """Look at the cluster soon: a leader is no longer the right one to ask."""
        with self._wake:
            self._is_woken = True
            self._wake.notify()

    def _work(self) -> None:
        while True:
            began = time.monotonic()
            self._look()
            client = self.options.client
            wait_s = delay_s(client, self.failures) if self.failures else client.metadata_max_age_ms / 1000
            with self._wake:
                shortest = began + max(_SHORTEST_S, 0 if self.error is None else wait_s)
                while not self._stopping:
                    now = time.monotonic()
                    due = shortest if self._is_woken else began + wait_s
                    if now >= max(due, shortest):
                        break
                    self._wake.wait(max(due, shortest) - now)
                self._is_woken = False
                if self._stopping:
                    return

    def _belong(self) -> None:
        """Stay a member of the group, and have the partitions looked at when others are this daemon's."""
        group, failures, told = self.group, 0, ""
        assert group is not None
        while not self._no_appends.is_set():
            wait_s = 0.0
            try:
                # It joins with what it wants: that is known when the cluster was asked.
                wait_s = group.step() if group.topics else _SHORTEST_S
                failures, told = 0, ""
            except (EngineError, OSError) as error:
                wait_s = delay_s(self.options.client, failures)
                failures += 1
                if str(error) != told:
                    log.warning(f"the group of daemons cannot be asked, which is tried again: {error}")
                    told = str(error)
            who = f"another daemon of link.group={group.name} mirrors it"
            self._store.links.group = who if group.error is None else group.error
            if group.changed.is_set() or group.is_surplus:
                group.changed.clear()
                self.moved()
            self._no_appends.wait(wait_s)

    def _look(self) -> None:
        """Look at the cluster once, and give each mirror to the fetcher of its leader."""
        self.looks += 1
        try:
            self.following.let_go()
            self.following.look()
            self._assign()
            if self.following.rest:
                self.moved()
        except LinkError as error:
            self._note(str(error))
        except (EngineError, OSError) as error:
            self._note(f"the mount's own store: {error}")
        except Exception as error:
            log.exception("the link failed unexpectedly, and looks at the cluster again")
            self._note(repr(error))
        else:
            if self.failures:
                log.info("the cluster answers again")
            self._store.links.error, self.failures = None, 0

    def _note(self, words: str) -> None:
        if self._stopping:
            return
        if words != self.error:
            log.warning(f"the cluster cannot be asked or followed, which is tried again: {words}")
        self._store.links.error = words
        self.failures += 1

    def _assign(self) -> None:
        following = self.following
        by_node: dict[int, list[Mirror]] = {}
        for key, leader in following.leaders.items():
            mirror = following.mirrors[key]
            fetcher = self._fetcher(leader.leader) if leader.leader >= 0 else None
            try:
                mirror.assign(None if fetcher is None else fetcher.fetching, leader)
            except (EngineError, OSError) as error:
                mirror.fail(str(error), 0.0)
                continue
            if mirror.partition.log.remote is None:
                mirror.partition.log.remote = Producer(
                    mirror, self.cluster, self.moved, self._no_appends, self._has_given_up, self._run
                )
            if fetcher is None:
                mirror.fail("the partition has no leader in the cluster", 0.0)
            else:
                by_node.setdefault(leader.leader, []).append(mirror)
        for node, fetcher in self._fetchers.items():
            fetcher.give(by_node.get(node, ()))

    def _fetcher(self, node: int) -> Fetcher:
        found = self._fetchers.get(node)
        if found is None:
            found = Fetcher(node, self.cluster, self.moved)
            found.start()
            self._fetchers[node] = found
        return found
