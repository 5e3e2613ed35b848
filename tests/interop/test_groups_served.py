"""Groups that topicfs wrote are Kafka's: its dump tool, a broker, its group tool and a consumer read them, and back."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest
from kafka_broker import Broker, complaints, dump, files_of, run_tool
from kafka_topics import topics_of
from test_internal_topics import parsed

from topicfs import Store
from topicfs.engine.groups.groups import Groups
from topicfs.engine.messages.topics import OFFSETS

COMPACTED = {"cleanup.policy": "compact"}


@dataclass(frozen=True, slots=True)
class Served:
    """What a broker made of a directory with groups.

    dumped     the lines of the dump tool, by their offsets
    listed     the groups that its tool lists
    described  what it describes of the group `readers`
    members    and of the members of the group `workers`
    taken      what a consumer of the group `readers` got
    positions  the group's positions afterwards, as our own store reads them
    """

    dumped: dict[int, list[Any]]
    complaints: list[str]
    listed: list[str]
    described: list[list[str]]
    members: str
    taken: str
    positions: dict[tuple[str, int], int]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Served:
    root = tmp_path_factory.mktemp("groups")
    backing = root / "backing"
    with Store.open(backing, create=True) as store:
        store.create_topic("orders", 2)
        for number in range(2):
            store.partition("orders", number).append_lines(b"".join(b"v%d\n" % at for at in range(10)))
        groups = Groups.of(store)
        for name in ("readers", "workers", "größe", "gone"):
            groups.create(name)
        groups.commit("readers", {("orders", 0): 7, ("orders", 1): 9}, metadata="by a shell")
        groups.commit("größe", {("orders", 0): 1})
        for name in ("w1", "w2"):
            groups.join("workers", name, ["orders"])
        groups.remove("gone")
    logs = backing / "logs"
    offsets = logs / f"{OFFSETS}-0"
    text = dump(files_of(offsets), "--offsets-decoder")
    lines = [line for line in text.splitlines() if line.startswith("| offset: ")]
    topics = topics_of(logs, {"orders": {}, OFFSETS: COMPACTED})
    with Broker.start(logs, root / "home", metadata_dir=root / "metadata", topics=topics) as broker:

        def tool(name: str, *options: str) -> str:
            done = run_tool(
                f"org.apache.kafka.tools.consumer.{name}", "--bootstrap-server", broker.bootstrap, *options
            )
            return done.stdout + done.stderr

        listed = tool("group.ConsumerGroupCommand", "--list").split()
        described = tool("group.ConsumerGroupCommand", "--describe", "--group", "readers").splitlines()
        members = tool("group.ConsumerGroupCommand", "--describe", "--members", "--group", "workers")
        taken = tool(
            "ConsoleConsumer", "--topic", "orders", "--group", "readers", "--timeout-ms", "8000",
            "--max-messages", "4",
        )  # fmt: skip
        told = [*complaints(text), *broker.complaints()]
    with Store.open(backing) as store:
        found = Groups.of(store).positions("readers")
    return Served(
        {at: parsed(line) for at, line in enumerate(lines)},
        told,
        listed,
        [line.split() for line in described if line.startswith("readers")],
        members,
        taken,
        {key: position.offset for key, position in found.items()},
    )


def test_the_dump_tool_reads_each_record(served: Served) -> None:
    assert served.complaints == []
    texts = [json.dumps(line) for line in served.dumped.values()]
    assert any('"offset": 7' in text and "by a shell" in text for text in texts)
    assert any("w2" in text and "assignedPartitions" in text for text in texts)


def test_a_broker_knows_the_groups_and_describes_their_positions(served: Served) -> None:
    assert {"readers", "workers"} <= set(served.listed)
    assert "gone" not in served.listed
    assert sorted(line[1:6] for line in served.described) == [
        ["orders", "0", "7", "10", "3"],
        ["orders", "1", "9", "10", "1"],
    ]


def test_a_broker_knows_the_members_and_what_each_has(served: Served) -> None:
    assert "w1" in served.members
    assert "w2" in served.members
    assert "topicfs" in served.members


def test_a_consumer_goes_on_from_our_positions_and_we_from_its(served: Served) -> None:
    assert sorted(line for line in served.taken.splitlines() if line.startswith("v")) == [
        "v7",
        "v8",
        "v9",
        "v9",
    ]
    assert served.positions == {("orders", 0): 10, ("orders", 1): 10}
