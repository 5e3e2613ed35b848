"""Positions of groups, called directly: no mount."""

from __future__ import annotations

import os

import numpy as np
import pytest
from partition_opening import Clock
from tree_bench import lines, tree_bench

from topicfs.engine.groups.groups import SESSION_TIMEOUT_MS
from topicfs.engine.groups.names import escaped
from topicfs.engine.groups.records import Position, position_records
from topicfs.fs import errors
from topicfs.fs.positions import Wanted, parse_position


def test_a_partition_that_is_made_again_is_read_from_its_start(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with tree_bench(tmp_path_factory.mktemp("groups")) as place:
        lines(place.create("t", 0).partition, b"a", b"b", b"c")
        lines(place.create("u", 0).partition, b"a")
        place.files.mkdir("/groups/readers", 0o777)
        for name, offset in (("t-0", 3), ("u-0", 1)):
            place.files.context.groups.commit("readers", {(name[0], 0): offset})
        place.delete("/t-0")
        lines(place.create("t", 0).partition, b"new")
        assert place.read("/groups/readers/t-0") == b"none\n"
        assert place.read("/groups/readers/t-0.pending.txt") == b"new\n"
        assert place.read("/groups/readers/u-0") == b"1\n"
        place.delete("/topics/u")
        assert place.files.readdir("/groups/readers") == ["status.json", "members"]


def test_names_that_kafka_s_clients_gave_do_not_hide_other_groups(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """The kernel gives EIO for a directory in which a name is empty, or has more than 1,024 bytes."""
    groups = ["", "x" * 1500, "x" * 1501, "/" * 400, "é" * 600, "%~" * 200, "%", "%~" + "0" * 32, "plain"]
    with tree_bench(tmp_path_factory.mktemp("groups")) as place:
        lines(place.create("t", 0).partition, b"a", b"b")
        place.files.mkdir("/groups/readers", 0o777)
        now = place.store.clock()
        for at, group in enumerate(groups):
            place.store.partition("__consumer_offsets", 0).append(
                position_records(group, {("t", 0): Position(at % 2, now)})
            )
        names = place.files.readdir("/groups")
        assert len(set(names)) == len(groups) + 1
        assert all(0 < len(name.encode()) <= 1024 and "/" not in name for name in names)
        for at, group in enumerate(groups):
            name = escaped(group)
            assert name in names
            assert place.read(f"/groups/{name}/t-0") == b"%d\n" % (at % 2)
            place.files.unlink(f"/groups/{name}/t-0")
        assert place.files.readdir("/groups") == ["readers"]


def test_a_member_that_reads_is_not_silent(tmp_path_factory: pytest.TempPathFactory) -> None:
    with tree_bench(tmp_path_factory.mktemp("groups")) as place:
        place.store.steady = steady = Clock()
        lines(place.create("t", 0).partition, b"a", b"b")
        place.files.mkdir("/groups/readers", 0o777)
        groups = place.files.context.groups
        groups.join("readers", "w1", ("t",))
        pending = place.files.open("/groups/readers/members/w1/t-0.pending.txt", os.O_RDWR).handle
        for position in (0, 2, 4):
            steady.ms += SESSION_TIMEOUT_MS
            place.files.read(pending, position, np.zeros(2, np.uint8))
        steady.ms += SESSION_TIMEOUT_MS
        place.files.write(pending, np.frombuffer(b"commit\n", np.uint8))
        assert place.read("/groups/readers/t-0") == b"2\n"
        steady.ms += SESSION_TIMEOUT_MS + 1
        place.files.read(pending, 0, np.zeros(2, np.uint8))
        assert groups.members("readers") == {}
        place.files.release(pending)


@pytest.mark.parametrize("topic", ["a.pending.b", "a.pending.txt", "a.lag", "a.next"])
def test_a_member_finds_its_partitions_whatever_the_topic_is_called(
    tmp_path_factory: pytest.TempPathFactory, topic: str
) -> None:
    with tree_bench(tmp_path_factory.mktemp("groups")) as place:
        lines(place.create(topic, 0).partition, b"a", b"b")
        place.files.mkdir("/groups/readers", 0o777)
        place.files.context.groups.join("readers", "w1", (topic,))
        directory = "/groups/readers/members/w1"
        assert place.files.readdir(directory) == [f"{topic}-0"]
        assert place.read(f"{directory}/{topic}-0") == b"none\n"
        assert place.read(f"{directory}/{topic}-0.lag") == b"2\n"
        assert place.read(f"{directory}/{topic}-0.pending.txt") == b"a\nb\n"


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("500", Wanted("500")),
        (" latest ", Wanted("latest")),
        ("500 if 480", Wanted("500", True, 480)),
        ("earliest if none", Wanted("earliest", True, None)),
        ("-15m  if  007", Wanted("-15m", True, 7)),
    ],
)
def test_a_line_is_a_place_and_what_is_expected(line: str, wanted: Wanted) -> None:
    assert parse_position(line) == wanted


@pytest.mark.parametrize("line", ["", "if 5", "5 if", "5 if -1", "5 if x", "5 5", "5 if 9223372036854775808"])
def test_any_other_line_is_refused(line: str) -> None:
    with pytest.raises(errors.BadInputError, match=r"^expected "):
        parse_position(line)
