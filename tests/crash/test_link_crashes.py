"""A mirror that dies, or whose disk is full or broken, at each of the system calls of making and following it.

Whatever call is the last one: what is here after the next start is the beginning of a log that the leader had, and when
the mirror has gone on it is the leader's log, byte for byte.
"""

from __future__ import annotations

import contextlib
import errno
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from directory_check import check_directory
from mirror_bench import Bench, mirroring
from stand_in_broker import Log, StandInBroker, Topic
from syscalls import Calls, Crash, sample

from topicfs import Store
from topicfs.engine.errors import EngineError

STRIDE = 9
LARGE = bytes(300_000)
"""Three of them fill a segment."""


class Leader:
    """A broker whose topic `t` goes through what topics go through, and the logs that it had on the way."""

    def __init__(self, broker: StandInBroker) -> None:
        self.broker = broker
        self.topic = broker.topics["t"] = Topic({"segment.bytes": "1048576"})
        self.had: list[tuple[bytes, ...]] = []
        self.log.add(b"one", b"two")
        self._keep()

    @property
    def log(self) -> Log:
        return self.topic.logs[0]

    def _keep(self) -> None:
        self.had.append(tuple(data for _, data in self.log.batches))

    def steps(self) -> Iterator[Callable[[], object]]:
        """What happens to it, one after the other."""
        yield self.grow
        yield self.elect
        yield self.transact
        yield self.lose
        yield self.divide
        yield self.grow

    def grow(self) -> None:
        """Several segments more."""
        for _ in range(5):
            self.log.add(LARGE)
        self._keep()

    def elect(self) -> None:
        """Another leader, without a loss."""
        self.log.epoch += 1
        self.log.add(b"of another epoch")
        self._keep()

    def transact(self) -> None:
        """A transaction that is aborted, one that is committed, and one that is open."""
        for producer, commit in ((71, False), (72, True), (73, None)):
            self.log.transact(producer, [b"of producer %d" % producer], commit)
        self._keep()

    def lose(self) -> None:
        """An unclean election: all but the first segment is lost."""
        self.log.cut(4, self.log.epoch + 1)
        self.log.add(b"instead")
        self._keep()

    def divide(self) -> None:
        """A partition more."""
        self.topic.logs[1] = Log()
        self.topic.logs[1].add(b"in the new one")


def mirror(store: Store, leader: Leader, keep_on: bool = False) -> None:
    """The workload: the leader's log changes, and each change is followed."""
    with mirroring(leader.broker, store) as bench:
        follow(bench, keep_on)
        for step in leader.steps():
            step()
            follow(bench, keep_on)


def follow(bench: Bench, keep_on: bool = False) -> None:
    """Look at the cluster, and fetch what there is."""
    with contextlib.suppress(*((EngineError, OSError) if keep_on else ())):
        bench.look()
        bench.fetch(4)


def settled(bench: Bench) -> None:
    """Follow until there is nothing new, also where a topic begins in one look and is fetched in the next."""
    for _ in range(3):
        follow(bench)


def check(root: Path, leader: Leader, given: dict[str, str]) -> None:
    """After a start, and when it has gone on."""
    with Store.open(root, given, create=True) as store, mirroring(leader.broker, store) as bench:
        if ("t", 0) in store:
            found = bytes_of(root / "logs/t-0")
            assert any(b"".join(had).startswith(found) for had in leader.had), (
                "a log that the leader never had"
            )
        settled(bench)
        for number, log in leader.topic.logs.items():
            partition = store.partition("t", number)
            assert bytes_of(partition.directory) == log.data()
            assert store.links.mirrors["t", number].error is None
            assert partition.end_offset == log.end
            open_ones = log.open_since
            assert partition.stable_offset == min(open_ones.values(), default=log.end)
    for number in leader.topic.logs:
        check_directory(root / f"logs/t-{number}")


def bytes_of(directory: Path) -> bytes:
    return b"".join(file.read_bytes() for file in sorted(directory.glob("*.log")))


def attempt(root: Path, calls: Calls) -> None:
    """The workload in a store that ends as a crash ends it, and what is there then."""
    with StandInBroker.running() as broker:
        leader = Leader(broker)
        given = {"link.bootstrap.servers": broker.bootstrap}
        store = Store.open(root, given, create=True)
        try:
            with calls.patched(), contextlib.suppress(Crash):
                mirror(store, leader, keep_on=calls.error is not None)
        finally:
            store.abandon()
        check(root, leader, given)


@pytest.fixture(scope="module")
def total(tmp_path_factory: pytest.TempPathFactory) -> int:
    """How many calls the workload makes."""
    counting = Calls()
    attempt(tmp_path_factory.mktemp("counted"), counting)
    return counting.count


@pytest.mark.parametrize("torn", [False, True])
def test_a_mirror_goes_on_where_it_died(tmp_path: Path, total: int, torn: bool) -> None:
    for stop in sample(total, STRIDE, shift=torn):
        root = tmp_path / str(stop)
        attempt(root, Calls(stop, torn=torn))
        shutil.rmtree(root)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_mirror_goes_on_when_the_disk_does(tmp_path: Path, total: int, number: int) -> None:
    for stop in sample(total, STRIDE, shift=number):
        root = tmp_path / str(stop)
        attempt(root, Calls(stop, error=number))
        shutil.rmtree(root)
