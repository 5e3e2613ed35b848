"""The clients of programs do the same through a mount and with a store that they open."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from daemon_mount import DaemonMount
from inboxes import TOPICS

from topicfs import IdempotentProducer, Record, Store, Transaction
from topicfs.engine.errors import InvalidProducerEpochError, PositionMovedError
from topicfs.engine.groups.groups import Groups

pytest_plugins = "shared_mount"

ODD = Record(b"\xff\n", b"k\xff", 1_700_000_000_000, (("h", b"\xfe"), ("h", None)))


class Place:
    """A place that clients are given, and what it shows."""

    def __init__(self, where: Store | Path, logs: Path) -> None:
        self.where = where
        self.logs = logs
        self.topic = next(TOPICS)

    def records(self) -> list[list[Record]]:
        if isinstance(self.where, Store):
            return [list(self.where.partition(self.topic, number).records()) for number in (0, 1)]
        with Store.open(self.logs, read_only=True) as store:
            return [list(store.partition(self.topic, number).records()) for number in (0, 1)]

    def values(self) -> list[list[bytes | None]]:
        return [[record.value for record in records] for records in self.records()]


@pytest.fixture(params=["mounted", "opened"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    if request.param == "mounted":
        mount: DaemonMount = request.getfixturevalue("mount")
        place = Place(mount.path, mount.backing)
        for number in (0, 1):
            (mount / f"{place.topic}-{number}").mkdir()
        # Some records are of 2023: retention would remove them.
        (mount / f"topics/{place.topic}/config").write_text("retention.ms=-1\n")
        yield place
    else:
        with Store.open(tmp_path, create=True) as store:
            place = Place(store, tmp_path)
            store.create_topic(place.topic, 2)
            yield place


def test_a_transaction_is_committed_whole_or_not_at_all(place: Place) -> None:
    name = f"of-{place.topic}"
    with Transaction(place.where, name) as transaction:
        transaction.send(place.topic, b"a", partition=0)
        transaction.send(place.topic, ODD.value, ODD.key, 1, ODD.timestamp, ODD.headers)
    assert place.values() == [[b"a"], [b"\xff\n"]]
    (odd,) = place.records()[1]
    assert (odd.key, odd.timestamp, odd.headers) == (ODD.key, ODD.timestamp, ODD.headers)
    given_up = Transaction(place.where, name)
    given_up.begin()
    given_up.send(place.topic, b"b", partition=0)
    given_up.__exit__(RuntimeError, RuntimeError(), None)
    with Transaction(place.where, name) as transaction:
        transaction.send(place.topic, b"c", key=b"k")
    first, second = place.values()
    assert sorted([*first, *second], key=str) == sorted([b"a", b"\xff\n", b"c"], key=str)


def test_who_begins_a_transaction_again_fences_its_earlier_holder(place: Place) -> None:
    name = f"of-{place.topic}"
    first, second = Transaction(place.where, name), Transaction(place.where, name)
    first.begin()
    first.send(place.topic, b"a", partition=0)
    second.begin()
    second.send(place.topic, b"b", partition=0)
    with pytest.raises(InvalidProducerEpochError):
        first.commit()
    second.commit()
    assert place.values() == [[b"b"], []]


def test_a_holder_that_is_fenced_while_it_commits_adds_nothing_to_what_another_commits(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, check = f"of-{place.topic}", Transaction._check_epoch
    first, second = Transaction(place.where, name), Transaction(place.where, name)
    first.begin()
    first.send(place.topic, b"a", partition=0)

    def late(self: Transaction, directory: Path) -> None:
        monkeypatch.setattr(Transaction, "_check_epoch", check)
        second.begin()

    monkeypatch.setattr(Transaction, "_check_epoch", late)
    if isinstance(place.where, Store):
        second.begin()
    with pytest.raises(InvalidProducerEpochError):
        first.commit()
    second.send(place.topic, b"b", partition=0)
    second.commit()
    assert place.values() == [[b"b"], []]


def test_positions_of_a_group_are_set_with_the_records_of_a_transaction_or_not_at_all(place: Place) -> None:
    name, key = f"of/{place.topic}", (place.topic, 0)
    if isinstance(place.where, Store):
        Groups.of(place.where).create(name)
    else:
        (place.where / "groups" / name.replace("/", "%2F")).mkdir()

    def transform(value: bytes, before: int | None) -> None:
        with Transaction(place.where, name.replace("/", "-")) as transaction:
            transaction.send(place.topic, value, partition=0)
            transaction.send_positions(name, {key: before or 0}, {key: before})

    transform(b"a", None)
    transform(b"b", 0)
    with pytest.raises((PositionMovedError, OSError)):
        transform(b"c", None)
    transform(b"d", 0)
    assert place.values() == [[b"a", b"b", b"d"], []]


def test_what_an_idempotent_producer_repeats_is_there_once(place: Place) -> None:
    name = f"of-{place.topic}"
    with IdempotentProducer(place.where, name) as producer:
        assert producer.append(place.topic, 0, 0, [Record(b"a"), Record(b"b")])
        assert not producer.append(place.topic, 0, 0, [Record(b"a"), Record(b"b")])
        assert producer.next_sequence(place.topic, 0) == 2
    with IdempotentProducer(place.where, name) as other:
        assert other.epoch == producer.epoch + 1
        with pytest.raises(InvalidProducerEpochError):
            producer.append(place.topic, 0, 2, [Record(b"of the earlier holder")])
        assert other.append(place.topic, 0, other.next_sequence(place.topic, 0), [Record(b"c")])
    assert place.values() == [[b"a", b"b", b"c"], []]


def test_clients_open_a_store_that_nobody_has_open(tmp_path: Path) -> None:
    with Store.open(tmp_path, create=True) as store:
        store.create_topic("t", 1)
    with Transaction(tmp_path, "x") as transaction:
        transaction.send("t", b"a")
    with IdempotentProducer(tmp_path, "p") as producer:
        assert producer.append("t", 0, 0, [Record(b"b")])
    with Store.open(tmp_path) as store:
        assert [record.value for record in store.partition("t", 0).records()] == [b"a", b"b"]
