"""The threads of the link to a Kafka cluster.

    link          asks the cluster again and again which topics there are, and gives each mirror to its leader's fetcher
    link-<node>   fetches from one broker, and appends: while it appends, the next answer is on its way

A broker that does not answer holds up its own thread only; when others lead its partitions, theirs go on with them.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from topicfs.engine.errors import EngineError, LinkError
from topicfs.engine.link.cluster import Cluster
from topicfs.engine.link.fetch import Fetching, delay_s
from topicfs.engine.link.following import Following
from topicfs.engine.link.mirror import Mirror
from topicfs.engine.link.options import LinkOptions
from topicfs.engine.link.produce import Producer
from topicfs.engine.store.store import Store

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
        """Start the thread."""
        self._thread.start()

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
    _no_appends  set when nobody may wait for the cluster any more
    _wake      guards _is_woken and _stopping; the thread waits on it between looks
    """

    def __init__(self, store: Store, options: LinkOptions) -> None:
        self.options = options
        self.cluster = Cluster(options.bootstrap, options.client)
        self.following = Following(store, self.cluster, options)
        self._store = store
        self.looks = 0
        self.failures = 0
        self._fetchers: dict[int, Fetcher] = {}
        self._wake = threading.Condition()
        self._is_woken = False
        self._stopping = False
        self._no_appends = threading.Event()
        self._thread = threading.Thread(target=self._work, name="link")

    @property
    def error(self) -> str | None:
        """Return why the cluster could not be asked last, in words; None if it could."""
        return self._store.link_error

    def start(self) -> None:
        """Start the threads."""
        self._store.link_error = "the cluster was not asked yet"
        self._thread.start()

    def stop(self) -> None:
        """End the threads, whatever they wait for. Nothing is appended after that."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        self.end_appends()
        for fetcher in list(self._fetchers.values()):
            fetcher.end()
        self.cluster.close()
        if self._thread.is_alive():
            self._thread.join()
        for fetcher in self._fetchers.values():
            # The thread may have started one since.
            fetcher.end()
            fetcher.join()

    def end_appends(self) -> None:
        """Have who waits for an acknowledgement of the cluster wait no longer: the mount is going away."""
        self._no_appends.set()

    def _has_given_up(self) -> bool:
        return self._store.given_up()

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

    def _look(self) -> None:
        """Look at the cluster once, and give each mirror to the fetcher of its leader."""
        self.looks += 1
        try:
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
            self._store.link_error, self.failures = None, 0

    def _note(self, words: str) -> None:
        if self._stopping:
            return
        if words != self.error:
            log.warning(f"the cluster cannot be asked or followed, which is tried again: {words}")
        self._store.link_error = words
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
            if fetcher is None:
                mirror.fail("the partition has no leader in the cluster", 0.0)
            else:
                by_node.setdefault(leader.leader, []).append(mirror)
                if mirror.partition.log.remote is None:
                    producer = Producer(
                        mirror, self.cluster, self.moved, self._no_appends, self._has_given_up
                    )
                    mirror.partition.log.remote = producer.append
        for node, fetcher in self._fetchers.items():
            fetcher.give(by_node.get(node, ()))

    def _fetcher(self, node: int) -> Fetcher:
        found = self._fetchers.get(node)
        if found is None:
            found = self._fetchers[node] = Fetcher(node, self.cluster, self.moved)
            found.start()
        return found
