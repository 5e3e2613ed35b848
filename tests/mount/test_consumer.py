"""`topicfs.Consumer`: the same on an open store and through a mount."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from daemon_mount import DaemonMount, append

from topicfs import Consumer, ConsumerRecord, Record, Store
from topicfs.engine.errors import InvalidNameError, NotOwnerError, OffsetOutOfRangeError, PositionMovedError
from topicfs.engine.groups.groups import Groups

pytest_plugins = ["shared_mount"]


@pytest.fixture(params=["store", "mount"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Store | Path, str]]:
    """An open store, or a mount, and a topic in it whose two partitions have ten records each."""
    if request.param == "store":
        with Store.open(tmp_path, create=True) as store:
            for number in range(2):
                store.create("consumed", number).append(
                    [Record(b"%d" % at, b"\xff", 5, (("h", b"x"), ("n", None))) for at in range(10)]
                )
            yield store, "consumed"
        return
    mount: DaemonMount = request.getfixturevalue("mount")
    topic = f"consumed-{request.node.name.partition('[')[0].replace('_', '-')[:60]}"
    for number in range(2):
        (mount / f"{topic}-{number}").mkdir()
        # The records are of 1970: retention would remove them.
        (mount / f"topics/{topic}/config").write_text("retention.ms=-1\n")
        headers = '[{"key":"h","value":"x"},{"key":"n","value":null}]'
        line = '{"timestamp":5,"key_base64":"/w==","value":"%d","headers":' + headers + "}\n"
        append(mount / f"{topic}-{number}/log.jsonl", "".join(line % at for at in range(10)).encode())
    yield mount.path, topic


def test_a_group_reads_each_record_and_goes_on_from_its_positions(place: tuple[Store | Path, str]) -> None:
    where, topic = place
    with Consumer(where, "programs") as consumer:
        consumer.subscribe([topic])
        found = consumer.poll(max_records=15)
        assert [(each.partition, each.offset) for each in found] == [
            *((0, at) for at in range(10)),
            *((1, at) for at in range(5)),
        ]
        assert found[3] == ConsumerRecord(topic, 0, 3, 5, b"\xff", b"3", (("h", b"x"), ("n", None)))
        assert consumer.assignment() == {(topic, 0), (topic, 1)}
        assert consumer.committed((topic, 1)) is None
        consumer.commit()
        assert (consumer.position((topic, 1)), consumer.committed((topic, 1))) == (5, 5)
        assert len(consumer.poll(max_records=2)) == 2
    with Consumer(where, "programs") as consumer:
        consumer.subscribe([topic])
        assert [each.offset for each in consumer.poll()] == [5, 6, 7, 8, 9]
        assert consumer.poll(timeout_ms=1) == []
        consumer.seek((topic, 0), 8)
        assert [(each.partition, each.offset) for each in consumer.poll()] == [(0, 8), (0, 9)]
        consumer.commit({(topic, 0): 9})
        assert consumer.committed((topic, 0)) == 9
        assert consumer.committed((topic, 1)) == 5


def test_two_consumers_share_and_who_lost_a_partition_commits_nothing(
    place: tuple[Store | Path, str],
) -> None:
    where, topic = place
    with Consumer(where, "sharing") as first, Consumer(where, "sharing", "second") as second:
        first.subscribe([topic])
        assert len(first.poll()) == 20
        second.subscribe([topic])
        assert second.poll() == []
        first.commit()
        first.poll()
        assert first.assignment() == {(topic, 0)} or first.assignment() == {(topic, 1)}
        second.poll()
        assert second.assignment() == {(topic, 0), (topic, 1)} - first.assignment()
        (lost,) = second.assignment()
        with pytest.raises((NotOwnerError, FileNotFoundError)):
            first.commit({lost: 0})
        first.close()
        second.poll()
        assert second.assignment() == {(topic, 0), (topic, 1)}
    again = Consumer(where, "sharing", "second")
    again.subscribe([topic])
    again.poll()
    assert again.assignment() == {(topic, 0), (topic, 1)}


def test_a_consumer_that_was_started_again_fences_the_one_before(place: tuple[Store | Path, str]) -> None:
    where, topic = place
    first, again = (Consumer(where, "lasting", "w1") for _ in range(2))
    first.subscribe([topic])
    assert len(first.poll()) == 20
    again.subscribe([topic])
    assert len(again.poll()) == 20
    with pytest.raises((NotOwnerError, FileNotFoundError)):
        first.commit()
    with pytest.raises(NotOwnerError, match="w1"):
        first.poll()
    again.commit()
    assert again.committed((topic, 0)) == 10
    again.subscribe([topic])
    assert again.poll() == []


def test_a_consumer_that_was_silent_for_too_long_goes_on_from_the_positions_of_its_group(
    place: tuple[Store | Path, str],
) -> None:
    where, topic = place
    with Consumer(where, "silent", "w1") as consumer, Consumer(where, "silent", "w2") as other:
        consumer.subscribe([topic])
        assert len(consumer.poll(max_records=15)) == 15
        leave(where, "silent", "w1")
        other.subscribe([topic])
        assert len(other.poll(max_records=3)) == 3
        other.commit()
        with pytest.raises((NotOwnerError, FileNotFoundError)):
            consumer.commit()
        leave(where, "silent", "w2")
        assert [(each.partition, each.offset) for each in consumer.poll(max_records=8)] == [
            (0, at) for at in range(3, 10)
        ] + [(1, 0)]


def test_a_topic_that_is_made_again_is_read_from_its_start(place: tuple[Store | Path, str]) -> None:
    where, topic = place
    with Consumer(where, "anew") as consumer:
        consumer.subscribe([topic])
        assert len(consumer.poll()) == 20
        make_again(where, topic, 0)
        with pytest.raises(PositionMovedError, match="was deleted since it was read"):
            consumer.commit({(topic, 0): 10})
        assert [(each.partition, each.value) for each in consumer.poll()] == [(0, b"new")] * 10
        consumer.commit()
        assert consumer.committed((topic, 0)) == 10


def test_a_partition_with_many_records_leaves_the_others_their_turn(place: tuple[Store | Path, str]) -> None:
    where, topic = place
    with Consumer(where, "turns") as consumer:
        consumer.subscribe([topic])
        assert [each.partition for _ in range(4) for each in consumer.poll(max_records=2)] == [
            *(0, 0, 1, 1),
            *(0, 0, 1, 1),
        ]


def test_any_name_is_that_of_a_group(place: tuple[Store | Path, str]) -> None:
    where, topic = place
    for group in ("a/b", "100%", ".", "..", "two\nlines", "日本"):
        with Consumer(where, group, group) as consumer:
            consumer.subscribe([topic])
            consumer.poll()
            consumer.commit()
            assert consumer.committed((topic, 1)) == 10


def test_mistakes_of_a_program_are_told(place: tuple[Store | Path, str]) -> None:
    where, topic = place
    with pytest.raises(InvalidNameError, match="expected a name of 1 to 249 bytes"):
        Consumer(where, "")
    with Consumer(where, "mistaken") as consumer:
        with pytest.raises(NotOwnerError, match="expected `subscribe` before"):
            consumer.poll()
        with pytest.raises(TypeError, match="expected a list of topics"):
            consumer.subscribe(topic)
        for call in (consumer.position, lambda key: consumer.seek(key, 1)):
            with pytest.raises(OffsetOutOfRangeError, match="is not assigned to this consumer"):
                call((topic, 0))
        consumer.commit({(topic, 0): 4})
        assert consumer.committed((topic, 0)) == 4


def leave(where: Store | Path, group: str, name: str) -> None:
    """What happens to a member that is silent for too long."""
    if isinstance(where, Store):
        Groups.of(where).leave(group, name)
    else:
        (where / "groups" / group / "members" / name).rmdir()


def make_again(where: Store | Path, topic: str, number: int) -> None:
    """Delete a partition, and make one with as many other records."""
    if isinstance(where, Store):
        where.delete(topic, number)
        where.create(topic, number).append_lines(b"new\n" * 10)
    else:
        os.setxattr(where, "user.topicfs.delete", f"{topic}-{number}".encode())
        (where / f"{topic}-{number}").mkdir()
        append(where / f"{topic}-{number}/log.txt", b"new\n" * 10)


def test_a_consumer_begins_where_it_is_told(tmp_path: Path) -> None:
    with Store.open(tmp_path, create=True) as store:
        partition = store.create("consumed")
        partition.append_lines(b"x\n")
        with Consumer(store, "late", auto_offset_reset="latest") as consumer:
            consumer.subscribe(["consumed"])
            assert consumer.poll() == []
            partition.append_lines(b"y\n")
            assert [each.value for each in consumer.poll()] == [b"y"]
        with pytest.raises(ValueError, match="expected earliest or latest, found 'soon'"):
            Consumer(store, "late", auto_offset_reset="soon")


def test_a_path_that_is_no_mount_is_refused_in_words(tmp_path: Path) -> None:
    Store.open(tmp_path / "store", create=True).close()
    for name, words in (
        ("store", "a directory that is not mounted: Store.open opens it"),
        (
            "missing",
            "expected a backing directory with logs/ in it, or a mount of topicfs, found no such directory",
        ),
    ):
        before = sorted(tmp_path.rglob("*"))
        with pytest.raises(InvalidNameError, match=words):
            Consumer(tmp_path / name, "programs")
        assert sorted(tmp_path.rglob("*")) == before
