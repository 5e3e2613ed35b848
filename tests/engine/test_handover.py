"""A partition moves from the store of one daemon of a group to that of another."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from two_stores import TOPIC, Two, batch_of

from topicfs import Store
from topicfs.engine.errors import LinkError
from topicfs.engine.files.place import stores_in
from topicfs.engine.link.client import ClientSettings
from topicfs.engine.link.cluster import Cluster
from topicfs.engine.link.connection import Address
from topicfs.engine.link.following import Following
from topicfs.engine.link.group import Group
from topicfs.engine.link.options import Beginning, LinkOptions
from topicfs.engine.linked.topics import LinkedTopic
from topicfs.engine.unlocked.place import place_of


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Two]:
    with ExitStack() as held:
        yield Two(tmp_path, held)


def test_what_one_has_given_up_the_other_takes_whole(two: Two) -> None:
    two.one.delete_records("t", 0, 7)
    two.one.links.give_up(("t", 0), two.one.cleaning)
    assert two.one.topics() == {}
    two.take()
    assert two.offsets() == list(range(7, 30))
    two.append(two.two, 30)
    assert two.offsets() == list(range(7, 40))
    two.two.links.give_up(("t", 0), two.two.cleaning)
    two.one.links.take(TOPIC, 0, two.place / "two" / "logs")
    assert two.one.partition("t", 0).end_offset == 40
    assert two.one.partition("t", 0).start_offset == 7


def test_what_a_crash_has_left_is_taken_and_recovered(two: Two) -> None:
    two.one.abandon()
    two.take()
    assert two.offsets() == list(range(30))


def test_who_was_stopped_writes_into_files_that_have_no_name_any_more(two: Two) -> None:
    stopped = two.one.partition("t", 0)
    two.take()
    two.append(two.two, 30)
    shown = [file.read_bytes() for file in sorted((two.place / "two/logs/t-0").glob("*.log"))]
    stopped.append_raw(batch_of(30, 500))
    assert stopped.end_offset == 40
    assert [file.read_bytes() for file in sorted((two.place / "two/logs/t-0").glob("*.log"))] == shown
    two.append(two.two, 40)
    assert two.offsets() == list(range(50))
    two.one.links.give_up(("t", 0), two.one.cleaning)
    assert two.one.topics() == {}
    assert two.offsets() == list(range(50))


def test_of_two_who_take_it_one_has_it(two: Two) -> None:
    two.one.abandon()
    two.take()
    with Store.open(two.place / "three", create=True) as three, pytest.raises(FileNotFoundError):
        three.links.take(TOPIC, 0, two.place / "one" / "logs")
    assert two.offsets() == list(range(30))


def test_another_topic_of_the_name_is_not_taken(two: Two) -> None:
    other = LinkedTopic("AAAgF__USIy1e43ss1bohg", "t", "a cluster")
    with pytest.raises(LinkError, match="expected topic id AAAgF"):
        two.two.links.take(other, 0, two.place / "one" / "logs")


def test_a_reader_of_the_directory_sees_the_partitions_of_all(two: Two) -> None:
    two.two.create("local")
    assert [logs.parent.name for logs in stores_in(two.place)] == ["one", "two"]
    place = place_of(str(two.place))
    assert {name: logs.parent.name for (name, _), logs in place.partitions().items()} == {
        "t": "one",
        "local": "two",
    }
    two.one.links.give_up(("t", 0), two.one.cleaning)
    two.take()
    assert place.logs_of("t-0").parent.name == "two"


def test_who_wakes_up_lets_go_of_what_others_have_taken(two: Two) -> None:
    """Also of what is its own again by now: it is taken back then, as from any other."""
    client = ClientSettings()
    address = Address("127.0.0.1", 1)
    options = LinkOptions((address,), ("*",), Beginning(), client, group="g", directory=two.place)
    group = Group.of("g", client, [address])
    following = Following(two.one, Cluster([address], client), options, group)
    group._was_told, group._assigned = True, frozenset({("t", 0)})
    following.let_go()
    assert two.one.topics() == {"t": [0]}
    two.take()
    following.let_go()
    assert two.one.topics() == {}
    group.close()
