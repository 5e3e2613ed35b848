"""Groups of a store: positions that are compared and set, members that share partitions, and what a restart finds."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from partition_opening import Clock, without_fsync
from store_bench import StoreBench, checked_store_bench

from topicfs import Producer, Record, Store
from topicfs.engine.cleaner.clean import Cleaner
from topicfs.engine.errors import (
    GroupExistsError,
    GroupLimitError,
    GroupNotEmptyError,
    InvalidNameError,
    InvalidSettingError,
    NotOwnerError,
    OffsetOutOfRangeError,
    PolicyViolationError,
    PositionMovedError,
    UnknownGroupError,
)
from topicfs.engine.groups.groups import Groups, PositionCommit, Worker
from topicfs.engine.groups.log import GroupLog
from topicfs.engine.groups.records import Position, position_records
from topicfs.engine.messages import writing
from topicfs.engine.messages.topics import OFFSETS

KEY = ("orders", 0)
DAY = 86_400_000
SESSION = 10_000


@pytest.fixture
def store_bench(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Iterator[StoreBench]:
    with checked_store_bench(tmp_path / "backing", caplog) as made:
        yield made


def groups_of(bench: StoreBench, partitions: int = 2, **settings: str) -> Groups:
    """The groups of a new store, whose topic `orders` has ten records in its first partition."""
    store = bench.open({name.replace("_", "."): value for name, value in settings.items()})
    store.create_topic("orders", partitions)
    store.partition("orders", 0).append_lines(b"x\n" * 10)
    found = Groups.of(store)
    found.create("readers")
    return found


def offset(groups: Groups, group: str = "readers") -> int | None:
    found = groups.position(group, KEY)
    return None if found is None else found.offset


def test_who_waits_for_a_transaction_compares_with_the_position_that_it_has_set(
    store_bench: StoreBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups, looked = groups_of(store_bench), threading.Event()
    holder = store_bench.store.transactions.init_producer("a", 60_000)
    wanted = PositionCommit("readers", {KEY: 2}, {KEY: None})

    def second() -> None:
        with pytest.raises(PositionMovedError):
            groups.commit("readers", {KEY: 3}, {KEY: None})

    def catch_up(log: GroupLog, before: Callable[[GroupLog], None] = GroupLog.catch_up) -> None:
        before(log)
        looked.set()

    with ThreadPoolExecutor() as others:
        with (
            store_bench.store.transactions.writing(holder),
            groups.in_transaction([wanted]) as positions,
        ):
            monkeypatch.setattr(GroupLog, "catch_up", catch_up)
            waiting = others.submit(second)
            assert looked.wait(10)
            keys = [key for key, _ in positions]
            assert store_bench.store.transactions.run(holder, keys, positions) == 1
        waiting.result()
    assert offset(groups) == 2
    with pytest.raises(PositionMovedError), groups.in_transaction([wanted]):
        pass
    with pytest.raises(OffsetOutOfRangeError), groups.in_transaction([PositionCommit("readers", {KEY: 11})]):
        pass


def test_a_transaction_of_an_earlier_worker_or_of_a_deleted_partition_is_refused(
    store_bench: StoreBench,
) -> None:
    groups = groups_of(store_bench)
    read = store_bench.store.partition(*KEY)
    earlier = groups.join("readers", "w", [KEY[0]])
    worker = groups.replace("readers", "w")

    def wanted(member_id: str) -> PositionCommit:
        return PositionCommit("readers", {KEY: 0}, {}, "w", member_id, (read,))

    with pytest.raises(NotOwnerError), groups.in_transaction([wanted(earlier.member_id)]):
        pass
    with groups.in_transaction([wanted(worker.member_id)]) as positions:
        assert len(positions) == 1
    store_bench.store.delete(*KEY)
    store_bench.store.create(*KEY)
    with pytest.raises(PositionMovedError), groups.in_transaction([wanted(worker.member_id)]):
        pass


@pytest.mark.parametrize("whole", [False, True])
def test_positions_go_with_a_partition_that_a_program_deletes(store_bench: StoreBench, whole: bool) -> None:
    groups_of(store_bench).commit("readers", {KEY: 3, ("orders", 1): 0})
    store = store_bench.reopen()
    # Nobody has asked this store for groups yet.
    if whole:
        store.delete_topic("orders")
        store.create_topic("orders", 2)
    else:
        store.delete(*KEY)
        store.create(*KEY)
    found = Groups.of(store_bench.crash()).positions("readers")
    assert sorted(found) == ([] if whole else [("orders", 1)])


def test_a_position_is_there_after_a_restart_and_a_crash(store_bench: StoreBench) -> None:
    groups = groups_of(store_bench)
    assert offset(groups) is None
    groups.commit("readers", {KEY: 3, ("orders", 1): 0})
    before = groups.positions("readers")
    assert Groups.of(store_bench.reopen()).positions("readers") == before
    found = Groups.of(store_bench.store)
    found.commit("readers", {KEY: 4})
    found = Groups.of(store_bench.crash())
    assert offset(found) == 4
    found.forget("readers", KEY)
    assert offset(Groups.of(store_bench.crash())) is None


def test_a_store_without_groups_has_no_topic_of_them(store_bench: StoreBench) -> None:
    store = store_bench.open()
    groups = Groups.of(store)
    assert groups.names() == []
    assert "readers" not in groups
    with pytest.raises(UnknownGroupError):
        groups.commit("readers", {})
    assert store.topics() == {}
    groups.create("readers")
    assert store.topics() == {OFFSETS: [0]}
    assert store.topic_settings(OFFSETS).compact
    assert groups.names() == ["readers"]
    with pytest.raises(GroupExistsError):
        groups.create("readers")
    with pytest.raises(InvalidNameError):
        groups.create("")


def test_of_two_that_expect_the_same_position_one_is_refused(store_bench: StoreBench) -> None:
    groups = groups_of(store_bench)
    groups.commit("readers", {KEY: 5}, {KEY: None})
    with pytest.raises(PositionMovedError, match=r"expected the position none, found 5"):
        groups.commit("readers", {KEY: 5}, {KEY: None})
    groups.commit("readers", {KEY: 7}, {KEY: 5})
    with pytest.raises(PositionMovedError, match=r"expected the position 5, found 7"):
        groups.commit("readers", {KEY: 6}, {KEY: 5})
    assert offset(groups) == 7


def test_a_position_lies_in_its_log(store_bench: StoreBench) -> None:
    groups = groups_of(store_bench)
    groups.commit("readers", {KEY: 10})
    for wrong in (11, -1):
        with pytest.raises(OffsetOutOfRangeError, match=f"from 0 to the end 10, found {wrong}"):
            groups.commit("readers", {("orders", 1): 0, KEY: wrong})
    assert groups.positions("readers").keys() == {KEY}


def test_a_group_is_removed_when_it_is_empty(store_bench: StoreBench) -> None:
    groups = groups_of(store_bench)
    groups.commit("readers", {KEY: 1})
    with pytest.raises(GroupNotEmptyError, match="found 1: rm removes each"):
        groups.remove("readers")
    groups.forget("readers", KEY)
    with pytest.raises(UnknownGroupError, match="no position in orders-0"):
        groups.forget("readers", KEY)
    groups.remove("readers")
    assert groups.names() == []
    assert Groups.of(store_bench.crash()).names() == []


def test_positions_of_a_transaction_count_when_it_is_committed(store_bench: StoreBench) -> None:
    groups = groups_of(store_bench)
    partition = store_bench.store.partition(OFFSETS, 0)
    for at, commit in enumerate((True, False)):
        producer = Producer(7, at, 0, transactional=True)
        partition.append(
            position_records("readers", {KEY: Position(4 + at, 1), ("orders", 1): Position(0, 1)}), producer
        )
        before = offset(groups)
        assert before == (4 if at else None)
        groups.commit("others" if "others" in groups else "readers", {("orders", 1): 0})
        partition.end_transaction(7, at, commit)
        assert offset(groups) == 4


def test_a_commit_behind_an_open_transaction_counts_at_once_and_stays(store_bench: StoreBench) -> None:
    groups = groups_of(store_bench)
    partition = store_bench.store.partition(OFFSETS, 0)
    partition.append(
        position_records("readers", {KEY: Position(4, 1)}), Producer(7, 0, 0, transactional=True)
    )
    groups.commit("readers", {KEY: 9})
    assert offset(groups) == 9
    assert offset(Groups.of(store_bench.crash())) == 9
    store_bench.store.partition(OFFSETS, 0).end_transaction(7, 0, True)
    assert offset(Groups.of(store_bench.store)) == 9


def test_what_others_append_to_the_log_is_seen(store_bench: StoreBench) -> None:
    groups = groups_of(store_bench)
    partition = store_bench.store.partition(OFFSETS, 0)
    partition.append(position_records("others", {KEY: Position(2, 1)}))
    assert offset(groups, "others") == 2
    partition.append(Record(b"no message", b"neither"))
    groups.commit("others", {KEY: 3})
    assert offset(groups, "others") == 3


def test_a_compacted_log_has_the_same_groups(store_bench: StoreBench) -> None:
    groups = groups_of(store_bench)
    for number in range(10):
        groups.commit("readers", {KEY: number})
    groups.forget("readers", KEY)
    groups.commit("readers", {("orders", 1): 0})
    expected, store = groups.positions("readers"), store_bench.store
    partition = store.partition(OFFSETS, 0)
    partition.roll()
    cleaner = Cleaner.create(1 << 20, 0.9, 1 << 20, lambda _: None, bytes(16))
    assert store.cleaning.work(cleaner, store_bench.now).partition == partition.name
    assert len(list(partition.records())) < 5
    assert Groups.of(store_bench.reopen()).positions("readers") == expected


def test_old_positions_go_and_then_their_group(store_bench: StoreBench) -> None:
    groups = groups_of(store_bench, offsets_retention_minutes="60")
    groups.commit("readers", {KEY: 1})
    store_bench.now += 59 * 60_000
    groups.commit("readers", {("orders", 1): 0})
    assert groups.expire_positions() == 0
    store_bench.now += 2 * 60_000
    assert groups.expire_positions() == 1
    assert groups.positions("readers").keys() == {("orders", 1)}
    store_bench.now += 60 * 60_000
    assert groups.expire_positions() == 2
    assert groups.names() == []


def test_positions_of_topics_that_members_read_stay(store_bench: StoreBench) -> None:
    groups = groups_of(store_bench, offsets_retention_minutes="60", group_max_session_timeout_ms="2000000000")
    groups.commit("readers", {KEY: 1})
    groups.join("readers", "w1", ["orders"], 2_000_000_000)
    store_bench.now += DAY
    assert groups.expire_positions() == 0
    groups.leave("readers", "w1")
    # They count from the moment on at which the last member left.
    assert groups.expire_positions() == 0
    store_bench.now += 61 * 60_000
    assert groups.expire_positions() == 2


# -- members ------------------------------------------------------------------------------------------


def test_members_share_the_partitions_and_the_rest_is_divided_when_one_goes(store_bench: StoreBench) -> None:
    groups = groups_of(store_bench, 4)
    first = groups.join("readers", "w1", ["orders"], SESSION)
    assert groups.heartbeat("readers", first) == {("orders", number) for number in range(4)}
    second = groups.join("readers", "w2", ["orders"], SESSION)
    # Until the first says that it has given them up, the second has nothing.
    assert groups.heartbeat("readers", second) == set()
    assert groups.status("readers")["state"] == "Rebalancing"
    assert groups.heartbeat("readers", first) == {("orders", 0), ("orders", 1)}
    assert groups.heartbeat("readers", second) == {("orders", 2), ("orders", 3)}
    assert groups.status("readers")["state"] == "Stable"
    groups.leave("readers", "w1")
    assert groups.heartbeat("readers", second) == {("orders", number) for number in range(4)}


def test_who_is_silent_for_its_session_loses_its_share_and_is_fenced(store_bench: StoreBench) -> None:
    groups = groups_of(store_bench)
    first = groups.join("readers", "w1", ["orders"], SESSION)
    second = groups.join("readers", "w2", ["orders"], SESSION)
    groups.commit("readers", {KEY: 3}, worker=first)
    store_bench.now += SESSION
    groups.heartbeat("readers", second)
    assert groups.members("readers").keys() == {"w1", "w2"}
    store_bench.now += 1
    groups.look_after_members()
    assert groups.heartbeat("readers", second) == {("orders", 0), ("orders", 1)}
    again = groups.join("readers", "w1", ["orders"], SESSION)
    for call in (
        lambda: groups.commit("readers", {KEY: 4}, worker=first),
        lambda: groups.heartbeat("readers", first),
    ):
        with pytest.raises(NotOwnerError, match="w1 is a member no longer"):
            call()
    with pytest.raises(NotOwnerError, match="orders-0 is not w1's"):
        groups.commit("readers", {KEY: 4}, worker=again)
    groups.commit("readers", {KEY: 5}, worker=second)
    assert offset(groups) == 5


def test_a_group_with_members_takes_positions_from_their_owners_only(store_bench: StoreBench) -> None:
    groups = groups_of(store_bench)
    worker = groups.join("readers", "w1", ["orders"], SESSION)
    for call in (lambda: groups.commit("readers", {KEY: 1}), lambda: groups.forget("readers", KEY)):
        with pytest.raises(NotOwnerError, match="has members, which alone set its positions: w1"):
            call()
    with pytest.raises(GroupNotEmptyError, match="found w1"):
        groups.remove("readers")
    groups.commit("readers", {KEY: 1}, worker=worker)
    groups.leave("readers", "w1")
    groups.commit("readers", {KEY: 2})


def test_members_keep_their_shares_over_a_restart(store_bench: StoreBench) -> None:
    groups = groups_of(store_bench)
    workers = [groups.join("readers", name, ["orders"], SESSION) for name in ("w1", "w2")]
    for worker in workers * 2:
        groups.heartbeat("readers", worker)
    before, generation = groups.members("readers"), groups.status("readers")["generation"]
    store_bench.now += SESSION // 2
    groups = Groups.of(store_bench.crash())
    assert groups.members("readers") == before
    store_bench.now += SESSION
    for worker in workers:
        groups.commit("readers", dict.fromkeys(before[worker.name].given, 0), worker=worker)
    assert groups.status("readers")["generation"] == generation


def test_a_member_without_topics_takes_those_of_the_positions(store_bench: StoreBench) -> None:
    groups = groups_of(store_bench)
    store_bench.store.create_topic("audit", 1)
    groups.commit("readers", {KEY: 0})
    worker = groups.join("readers", "w1", session_timeout_ms=SESSION)
    assert groups.heartbeat("readers", worker) == {("orders", 0), ("orders", 1)}
    groups.subscribe("readers", worker, ["audit"])
    assert groups.heartbeat("readers", worker) == {("audit", 0)}


def test_a_partition_that_is_added_is_divided(store_bench: StoreBench) -> None:
    groups = groups_of(store_bench)
    worker = groups.join("readers", "w1", ["orders", "later"], SESSION)
    store_bench.store.create("orders", 2)
    store_bench.store.create("later", 0)
    groups.look_after_members()
    assert groups.heartbeat("readers", worker) == {("later", 0), *(("orders", number) for number in range(3))}


def test_a_member_is_refused_that_does_not_fit(store_bench: StoreBench) -> None:
    groups = groups_of(store_bench)
    groups.join("readers", "w1", ["orders"], SESSION, "roundrobin")
    for arguments, words in (
        ((["orders"], SESSION, "range"), "expected roundrobin, which the group readers has, found range"),
        ((["orders"], SESSION, "lots"), "expected range, roundrobin, cooperative-sticky, found 'lots'"),
        ((["orders"], 5_999, None), "expected 6000 to 1800000, found 5999"),
    ):
        with pytest.raises(InvalidSettingError, match=words):
            groups.join("readers", "w2", *arguments)
    with pytest.raises(GroupExistsError):
        groups.join("readers", "w1", ["orders"], SESSION)
    with pytest.raises(UnknownGroupError):
        groups.leave("readers", "w2")


def test_a_group_of_a_newer_protocol_keeps_its_broker(store_bench: StoreBench) -> None:
    groups = groups_of(store_bench)
    key = writing.key(OFFSETS, 3, {"groupId": "newer"})
    partition = store_bench.store.partition(OFFSETS, 0)
    partition.append(Record(writing.value(OFFSETS, 3, 0, {"epoch": 5}), key))
    assert groups.status("newer")["protocol"] == "consumer"
    groups.commit("newer", {KEY: 1})
    for call in (lambda: groups.join("newer", "w1"), lambda: groups.remove("newer", only_empty=False)):
        with pytest.raises(PolicyViolationError, match="the newer protocol of consumer groups"):
            call()
    partition.append(Record(None, key))
    groups.join("newer", "w1")


# -- a model ------------------------------------------------------------------------------------------

WORKERS = ("w1", "w2", "w3")
STRATEGY = st.sampled_from(["range", "roundrobin", "cooperative-sticky"])


class Machine(RuleBasedStateMachine):
    """Workers that come, go, fall silent and commit, and a store that crashes. The model: what each worker that still
    acts was told to have, and the position that was acknowledged last."""

    open: Callable[[], Store]

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock(1_700_000_000_000)
        self.quiet = without_fsync()
        self.quiet.__enter__()
        self.place = self.directory()
        self.store = Store.open(self.place, None, self.clock, create=True)
        self.store.create_topic("orders", 5)
        for number in range(5):
            self.store.partition("orders", number).append_lines(b"x\n" * 50)
        self.groups = Groups.of(self.store)
        self.groups.create("g")
        self.workers: dict[str, tuple[Worker, int]] = {}
        self.working: dict[str, frozenset[tuple[str, int]]] = {}
        self.positions: dict[tuple[str, int], int] = {}

    def directory(self) -> str:
        raise NotImplementedError

    @rule(name=st.sampled_from(WORKERS), strategy=STRATEGY)
    def join(self, name: str, strategy: str) -> None:
        present = self.groups.state("g").metadata
        if name in self.groups.members("g"):
            return
        if present is not None and self.groups.members("g"):
            strategy = self.groups.state("g").metadata.strategy or strategy
        self.workers[name] = self.groups.join("g", name, ["orders"], SESSION, strategy), self.clock()
        self.working[name] = frozenset()

    @rule(name=st.sampled_from(WORKERS))
    def leave(self, name: str) -> None:
        if name in self.groups.members("g"):
            self.groups.leave("g", name)
        self.working.pop(name, None)

    @rule(name=st.sampled_from(WORKERS))
    def look(self, name: str) -> None:
        """A worker has ended a round of its work, and begins another one."""
        if name in self.working:
            try:
                self.working[name] = self.groups.heartbeat("g", self.workers[name][0])
            except NotOwnerError:
                del self.working[name]

    @rule(milliseconds=st.integers(1, SESSION))
    def wait(self, milliseconds: int) -> None:
        self.clock.ms += milliseconds
        self.groups.look_after_members()

    @rule(name=st.sampled_from(WORKERS), number=st.integers(0, 4), offset=st.integers(0, 50))
    def commit(self, name: str, number: int, offset: int) -> None:
        if name not in self.workers:
            return
        key, worker = ("orders", number), self.workers[name][0]
        members = self.groups.members("g")
        is_member = name in members and members[name].member_id == worker.member_id
        owns = is_member and key in members[name].given
        try:
            self.groups.commit("g", {key: offset}, worker=worker)
        except NotOwnerError:
            assert not owns
        else:
            assert owns
            self.positions[key] = offset

    @rule(clean=st.booleans())
    def restart(self, clean: bool) -> None:
        if clean:
            self.store.close()
        else:
            self.store.abandon()
        self.store = Store.open(self.place, None, self.clock)
        self.groups = Groups.of(self.store)

    @invariant()
    def no_partition_has_two_owners(self) -> None:
        members = self.groups.members("g")
        given = [key for member in members.values() for key in member.given]
        assert len(given) == len(set(given))
        # Who works on something and was not fenced is who has it.
        for name, keys in self.working.items():
            member = members.get(name)
            if member is not None and member.member_id == self.workers[name][0].member_id:
                assert keys <= member.given

    @invariant()
    def no_position_is_lost(self) -> None:
        found = self.groups.positions("g")
        assert {key: position.offset for key, position in found.items()} == self.positions

    @invariant()
    def what_nobody_gives_up_is_divided(self) -> None:
        members = self.groups.members("g")
        if members and not any(self.groups.to_give_up("g", member) for member in members.values()):
            given = {key for member in members.values() for key in member.given}
            assert given == {("orders", number) for number in range(5)}

    def teardown(self) -> None:
        self.store.close()
        self.quiet.__exit__(None, None, None)


def test_random_workers_and_crashes_leave_one_owner_and_no_lost_position(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    from hypothesis.stateful import run_state_machine_as_test  # noqa: PLC0415 - with this test's directories

    class Placed(Machine):
        def directory(self) -> str:
            return str(tmp_path_factory.mktemp("groups"))

    run_state_machine_as_test(
        Placed, settings=settings(max_examples=15, stateful_step_count=30, deadline=None)
    )


class Full:
    """A cluster in whose groups this mount has as many workers as it may."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def want(self, group: str, name: str, topics: frozenset[str], timeout_ms: int, strategy: str) -> None:
        self.asked.append(f"{group}/{name}")
        raise GroupLimitError("one too many")

    def __getattr__(self, _: str) -> Callable[..., tuple[()]]:
        return lambda *_: ()


def test_a_worker_that_is_one_too_many_for_a_cluster_is_none_here_either(
    store_bench: StoreBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups, full = groups_of(store_bench), Full()
    worker = groups.join("readers", "local", ["orders"])
    groups.create("others")
    groups.join("others", "local", ["orders"])
    monkeypatch.setattr(groups.linked, "topics", lambda topics: frozenset(topics) & {"mirrored"})
    monkeypatch.setattr(groups.linked, "members", full)
    monkeypatch.setattr(groups.linked, "positions", full)
    with pytest.raises(GroupLimitError):
        groups.join("readers", "second", ["mirrored"])
    assert groups.members("readers").keys() == {"local"}
    with pytest.raises(GroupLimitError):
        groups.subscribe("readers", worker, ["mirrored"], 7000)
    found = groups.members("readers")["local"]
    assert (found.topics, found.session_timeout_ms) == ({"orders"}, 45_000)
    monkeypatch.setattr(groups.linked, "topics", frozenset)
    full.asked.clear()
    groups.look_after_members()
    assert sorted(full.asked) == ["others/local", "readers/local"]
