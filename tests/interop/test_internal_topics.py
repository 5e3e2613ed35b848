"""Kafka's own topics in jsonl say what Kafka's dump tool says of them: of what a broker wrote, and of every message."""

from __future__ import annotations

import asyncio
import json
import random
import re
import zipfile
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from aiokafka import AIOKafkaConsumer
from dumping import dumped as lines_of
from kafka_broker import JARS, Broker, dump, run_tool
from kafka_clients import create_topics, produce, transact
from plain_messages import CASES, METADATA, record_of

from topicfs import Record, Store
from topicfs.engine import batch as batches
from topicfs.engine.format.messages import OF_TOPICS, messages_of, protocols
from topicfs.engine.format.paths import log_file
from topicfs.fs.formats import Format, labels_of

DECODERS = {
    "__consumer_offsets": "--offsets-decoder",
    "__transaction_state": "--transaction-log-decoder",
    "__share_group_state": "--share-group-state-decoder",
    "__cluster_metadata": "--cluster-metadata-decoder",
}
JARS_WITH_MESSAGES = (
    "group-coordinator", "transaction-coordinator", "share-coordinator", "metadata", "clients"
)  # fmt: skip
NONE = "none"


def dumped(log: Path, topic: str) -> dict[int, tuple[Any, Any]]:
    """Key and value of each record, by offset, as the dump tool shows them; control records are left out."""
    found = {}
    for line in dump([log], DECODERS[topic]).splitlines():
        # A control record has another word in place of these two.
        record = re.match(r"\| offset: (\d+) .*? headerKeys: \[\] (?:key: (?=\{)|payload: )(.*)", line)
        if record is None:
            continue
        key, end = (None, 0) if topic == METADATA else json.JSONDecoder().raw_decode(record[2])
        rest = record[2][end:].removeprefix(" payload: ")
        value = None if rest == "<DELETE>" else json.loads(rest)
        # The dump tool quotes these two numbers; Kafka's formatters for consumers do not.
        for part, name in ((key, "type"), (value, "version")):
            if part is not None:
                part[name] = int(part[name])
        found[int(record[1])] = key, value
    return found


def shown(log: Path) -> dict[int, tuple[Any, Any]]:
    """The same as our lines show them; NONE for bytes that are shown as bytes."""
    data = np.fromfile(log, np.uint8)
    table = batches.scan(data)
    labels = labels_of(log.parent.name.removesuffix("-0"), 0)
    sizes = Format.JSONL.sizes(data, table, 0, labels)
    out = np.empty(int(sizes.sum()), np.uint8)
    assert Format.JSONL.render(data, table, 0, 0, 2**62, out, 0, labels) == out.size
    lines = [json.loads(line) for line in out.tobytes().splitlines()]
    return {line["offset"]: (line.get("key", NONE), line.get("value", NONE)) for line in lines}


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log directory of a broker that has had groups of each protocol, and transactions."""
    root = tmp_path_factory.mktemp("internal")
    with Broker.start(
        root / "logs", root / "home", settings={"share.coordinator.state.topic.num.partitions": "1"}
    ) as broker:
        create_topics(broker.bootstrap, {"orders": {}})
        produce(broker.bootstrap, "orders", [Record(b"v")] * 5)
        ends = ("commit", "abort", "commit")
        transact(broker.bootstrap, "orders", "größe", [(end, [Record(b"w")]) for end in ends])
        asyncio.run(join(broker.bootstrap))
        for tool, *options in (
            ("ConsoleConsumer", "--from-beginning", "--command-property", "group.protocol=consumer"),
            ("ConsoleShareConsumer", "--timeout-ms", "2000"),
        ):
            run_tool(
                f"org.apache.kafka.tools.consumer.{tool}",
                *("--bootstrap-server", broker.bootstrap, "--topic", "orders", "--group", tool),
                *("--max-messages", "1", *options),
            )
    return root / "logs"


async def join(bootstrap: str) -> None:
    consumer = AIOKafkaConsumer(
        "orders", bootstrap_servers=bootstrap, group_id="classic", auto_offset_reset="earliest"
    )
    async with consumer:
        await consumer.getone()
        await consumer.commit()


def test_what_a_broker_wrote_is_shown_as_the_dump_tool_shows_it(logs: Path) -> None:
    kinds = {}
    for topic in DECODERS:
        log = logs / f"{topic}-0" / log_file(0)
        found = shown(log)
        assert found == dumped(log, topic), topic
        kinds[topic] = {key["type"] if key else value["type"] for key, value in found.values()}
    assert kinds["__consumer_offsets"] >= {1, 2, 3, 5, 6, 7, 8, 10, 11, 12, 13, 14}
    assert kinds["__transaction_state"] == {0}
    assert kinds["__cluster_metadata"] >= {"TOPIC_RECORD", "PARTITION_RECORD", "REGISTER_BROKER_RECORD"}


def parsed(line: str) -> list[Any]:
    """The line of a dump, with its messages read: they are equal where their members have another order."""
    parts = re.split(r" (?:key|payload): (?=\{|<DELETE>)", line)
    return [json.loads(part) if part.startswith("{") else part for part in parts]


def pairs(files: list[Path], topic: str) -> list[tuple[str, str]]:
    """Each line of ours, with the one of Kafka's tool."""
    lines, problems = lines_of(files, content=True, topic=topic)
    assert problems == []
    kafkas = dump(files, DECODERS[topic])
    return list(zip_longest(lines.decode().split("\n"), kafkas.split("\n"), fillvalue=NONE))


@pytest.mark.parametrize("topic", DECODERS)
def test_a_dump_with_a_decoder_has_the_lines_of_kafkas_tool(logs: Path, topic: str) -> None:
    log = logs / f"{topic}-0" / log_file(0)
    found = pairs([log], topic)
    assert [(parsed(ours), parsed(kafkas)) for ours, kafkas in found if parsed(ours) != parsed(kafkas)] == []
    if topic != "__transaction_state":  # of whose messages some fields with tags are in another order
        assert [(ours, kafkas) for ours, kafkas in found if ours != kafkas] == []
    lines, _ = lines_of([log], content=True, topic=topic, as_json=True)
    rows = {row["offset"]: row for row in map(json.loads, lines.splitlines()) if "key" in row}
    messages = shown(log)
    assert {offset: (rows[offset]["key"], rows[offset]["value"]) for offset in messages} == messages


def test_a_controllers_log_is_read_to_its_end_in_a_read_only_store_alone(logs: Path) -> None:
    with Store.open(logs, read_only=True) as store:
        found = [record.offset for record in store.partition(METADATA, 0).records(start=0)]
    assert found == list(dumped(logs / f"{METADATA}-0" / log_file(0), METADATA))


def test_the_members_of_a_classic_group_are_shown_with_their_assignment(logs: Path) -> None:
    values = [
        value["data"]
        for key, value in shown(logs / "__consumer_offsets-0" / log_file(0)).values()
        if key == {"type": 2, "data": {"group": "classic"}}
    ]
    (member,) = next(value["members"] for value in values if value["members"])
    assert member["subscription"]["topics"] == ["orders"]
    assert member["assignment"]["assignedPartitions"] == [{"topic": "orders", "partitions": [0]}]


@pytest.mark.parametrize("topic", DECODERS)
def test_every_message_in_every_version_is_shown_as_the_dump_tool_shows_it(
    topic: str, tmp_path: Path
) -> None:
    chance = random.Random(random.getrandbits(32))
    made = [
        record_of(each, message, version, chance) for each, message, version in CASES * 3 if each == topic
    ]
    log = tmp_path / f"{topic}-0" / log_file(0)
    log.parent.mkdir()
    records = [Record(value, key, 1_700_000_000_000) for key, value, *_ in made]
    log.write_bytes(batches.from_records(records, 0).data.tobytes())
    assert shown(log) == dumped(log, topic) == dict(enumerate((key, value) for *_, key, value in made))
    assert [pair for pair in pairs([log], topic) if parsed(pair[0]) != parsed(pair[1])] == []


def test_each_message_of_kafkas_is_known_in_each_version() -> None:
    known = {
        (message.name, message.last)
        for messages in (*map(messages_of, OF_TOPICS), protocols())
        for message in messages
    }
    kafkas = set()
    for jar in JARS_WITH_MESSAGES:
        (path,) = JARS.glob(f"kafka-{jar}-[0-9]*.jar")
        with zipfile.ZipFile(path) as files:
            for name in files.namelist():
                if not re.fullmatch(r"common/(message|metadata)/\w+\.json", name):
                    continue
                told = json.loads(re.sub(r"(?m)^\s*//.*$", "", files.read(name).decode()))
                is_ours = told["type"] in {"coordinator-key", "coordinator-value", "metadata"}
                if is_ours or told["name"].startswith("ConsumerProtocol"):
                    kafkas.add((told["name"], int(told["validVersions"].split("-")[-1])))
    assert known == kafkas
