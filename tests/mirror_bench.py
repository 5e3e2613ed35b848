"""A store that mirrors a topic of a stand-in for a broker, step by step: no thread goes on by itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from stand_in_broker import Log, StandInBroker, Topic, values_of

from topicfs import Store
from topicfs.engine.link.client import ClientSettings
from topicfs.engine.link.cluster import Cluster
from topicfs.engine.link.fetch import Fetching
from topicfs.engine.link.following import Following
from topicfs.engine.link.options import LinkOptions
from topicfs.engine.partition.partition import Partition

BATCHES = [(b"one", b"two"), (b"three",), (b"four", b"five")]
ALL = [value for batch in BATCHES for value in batch]


@dataclass
class Bench:
    """A store whose topic `t` mirrors that of a stand-in for a broker, step by step.

    broker  the stand-in
    store   the store
    moves   grows when a leader is no longer the right one to ask
    """

    broker: StandInBroker
    store: Store
    following: Following
    fetching: Fetching
    moves: list[bool]

    def look(self) -> None:
        """Look at the cluster, and give the mirrors to the one fetcher."""
        self.following.look()
        for key, leader in self.following.leaders.items():
            self.following.mirrors[key].assign(self.fetching, leader)

    def fetch(self, times: int = 3) -> None:
        """Ask, and take the answer, a few times."""
        cluster = self.following.cluster
        mirrors = list(self.following.mirrors.values())
        connection = cluster.connect(cluster.address_of(1))
        self.fetching.forget()
        try:
            for _ in range(times):
                for mirror in mirrors:
                    mirror.retry_at = 0.0
                self.fetching.exchange(connection, mirrors)
        finally:
            cluster.let_go(connection)

    @property
    def log(self) -> Log:
        """The leader's log."""
        return self.broker.topics["t"].logs[0]

    @property
    def partition(self) -> Partition:
        """The mirror's."""
        return self.store.partition("t", 0)

    @property
    def values(self) -> list[bytes | None]:
        """What the mirror shows."""
        return values_of(list(self.partition.records()))

    @property
    def error(self) -> str:
        """What the mirror says is wrong."""
        return self.store.links.mirrors["t", 0].error or ""


@contextmanager
def mirroring(broker: StandInBroker, store: Store, client: ClientSettings | None = None) -> Iterator[Bench]:
    """A bench of a store that is open, and names the broker in its settings."""
    options = LinkOptions.of(store.daemon, store.backing)
    assert options is not None
    cluster = Cluster(options.bootstrap, client or ClientSettings(fetch_max_wait_ms=1))
    moves: list[bool] = []
    fetching = Fetching(cluster, lambda: moves.append(True))
    try:
        yield Bench(broker, store, Following(store, cluster, options), fetching, moves)
    finally:
        cluster.close()


@contextmanager
def a_bench(place: Path, client: ClientSettings | None = None, **settings: str) -> Iterator[Bench]:
    """A bench with a new store, and BATCHES in the leader's log."""
    with StandInBroker.running() as broker:
        broker.topics["t"] = Topic()
        for batch in BATCHES:
            broker.topics["t"].logs[0].add(*batch)
        given = {"link.bootstrap.servers": broker.bootstrap, **settings}
        with (
            Store.open(place / "store", given, create=True) as store,
            mirroring(broker, store, client) as bench,
        ):
            yield bench
