"""Making a cluster know topics that it did not create, under the ids that their directories carry.

A broker renames a partition directory to `-stray` when the cluster does not know its topic id, and a client
cannot choose the id of a topic. But a newly formatted cluster takes its first metadata from a file:

    bootstrap.checkpoint := header batch (control) · batch of metadata records · footer batch (control)

`introduce` puts one more batch of metadata records before the footer. Each is the value of a record:

    value     := frame version 1 · kind · version · fields · 0 (no tagged fields); numbers as uvarint
    TOPIC     2 v0   name, id
    PARTITION 3 v1   number, topic id, replicas, in-sync replicas, being removed, being added, leader,
                     leader epoch, partition epoch, directories (one id a replica)
    SETTING   4 v0   resource type (int8, 2 = topic), topic, name, value
    PRODUCERS 15 v0  node, epoch of the node, next producer id to give away
    string    := length + 1 · UTF-8        array := count + 1 · elements        id := 16 bytes
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from aiokafka.record.default_records import DefaultRecordBatchBuilder

TOPIC: Final = 2
PARTITION: Final = 3
SETTING: Final = 4
PRODUCERS: Final = 15
TOPIC_RESOURCE: Final = 2

# A new cluster gives away producer ids from 0 on, also those that the logs hold already. The first batch of
# such a producer is refused, for it does not continue the sequence of its namesake.
FIRST_PRODUCER_ID: Final = 1_000_000

BASE_OFFSET: Final = struct.Struct(">q")
LENGTH: Final = struct.Struct(">i")
LENGTH_AT: Final = 8
LEADER_EPOCH_AT: Final = 12
FIXED: Final = 12  # bytes of a batch that its length field does not count


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic as its directories tell of it.

    name        of the topic
    topic_id    16 bytes, from partition.metadata
    partitions  numbers of the partitions that have a directory
    overrides   topic settings that the cluster shall know too; log directories do not carry them
    """

    name: str
    topic_id: bytes
    partitions: tuple[int, ...]
    overrides: Mapping[str, str] = field(default_factory=dict)


def topics_of(log_dir: Path, overrides: Mapping[str, Mapping[str, str]]) -> list[Topic]:
    """The topics whose partitions lie in a directory; `overrides` by topic name."""
    numbers: dict[str, list[int]] = {}
    ids: dict[str, bytes] = {}
    for path in sorted(log_dir.glob("*/partition.metadata")):
        name, number = path.parent.name.rsplit("-", 1)
        numbers.setdefault(name, []).append(int(number))
        topic_id = _topic_id(path)
        if ids.setdefault(name, topic_id) != topic_id:
            raise ValueError(f"expected one topic id in all partitions of {name}, found another in {path}")
    return [Topic(name, ids[name], tuple(numbers[name]), overrides.get(name, {})) for name in ids]


def introduce(topics: Iterable[Topic], metadata_dir: Path, identity: Mapping[str, str]) -> None:
    """Write topics into the first metadata; `identity` is the log directory's meta.properties."""
    values = [value for topic in topics for value in _describe(topic, identity)]
    if not values:
        return
    values.append(_record(PRODUCERS, 0, struct.pack(">iqq", int(identity["node.id"]), -1, FIRST_PRODUCER_ID)))
    path = metadata_dir / "bootstrap.checkpoint"
    *batches, footer = _split(path.read_bytes())
    offset = BASE_OFFSET.unpack_from(footer)[0]
    ours = bytearray(_batch(values))
    ours[:8] = BASE_OFFSET.pack(offset)
    ours[LEADER_EPOCH_AT : LEADER_EPOCH_AT + 4] = footer[LEADER_EPOCH_AT : LEADER_EPOCH_AT + 4]
    # Base offset and leader epoch lie outside what a batch's checksum covers.
    moved_footer = BASE_OFFSET.pack(offset + len(values)) + footer[8:]
    path.write_bytes(b"".join([*batches, ours, moved_footer]))


def _describe(topic: Topic, identity: Mapping[str, str]) -> Iterator[bytes]:
    node = int(identity["node.id"])
    directory = _uuid(identity["directory.id"])
    yield _record(TOPIC, 0, _string(topic.name), topic.topic_id)
    for number in topic.partitions:
        yield _record(
            PARTITION,
            1,
            struct.pack(">i", number),
            topic.topic_id,
            _array([struct.pack(">i", node)]),
            _array([struct.pack(">i", node)]),
            _array([]),
            _array([]),
            struct.pack(">iii", node, 0, 0),
            _array([directory]),
        )
    for name, value in topic.overrides.items():
        yield _record(SETTING, 0, struct.pack(">b", TOPIC_RESOURCE), *map(_string, (topic.name, name, value)))


def _record(kind: int, version: int, *fields: bytes) -> bytes:
    return b"".join([_uvarint(1), _uvarint(kind), _uvarint(version), *fields, _uvarint(0)])


def _string(text: str) -> bytes:
    data = text.encode()
    return _uvarint(len(data) + 1) + data


def _array(elements: list[bytes]) -> bytes:
    return _uvarint(len(elements) + 1) + b"".join(elements)


def _uvarint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _uuid(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "==")


def _topic_id(path: Path) -> bytes:
    fields = dict(line.split(": ", 1) for line in path.read_text().splitlines())
    return _uuid(fields["topic_id"])


def _batch(values: list[bytes]) -> bytes:
    size = sum(len(value) + 64 for value in values) + 128
    builder = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, size)
    for number, value in enumerate(values):
        if builder.append(number, 0, None, value, []) is None:
            raise ValueError(
                f"expected {len(values)} metadata records to fit into {size} bytes, found {number}"
            )
    return bytes(builder.build())


def _split(data: bytes) -> list[bytes]:
    """A file's batches."""
    batches = []
    start = 0
    while start < len(data):
        end = start + FIXED + LENGTH.unpack_from(data, start + LENGTH_AT)[0]
        batches.append(data[start:end])
        start = end
    return batches
