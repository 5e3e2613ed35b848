"""The targets of `fuzz_targets.py` that are files of the backing directory: what is read of one comes back when it is
written, and what is written first is read again as it was."""

from __future__ import annotations

import atexit
import io
import shutil
import struct
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import google_crc32c
import numpy as np
from partition_opening import without_fsync

from topicfs.engine.column_files import kcat
from topicfs.engine.errors import CorruptCheckpointError, CorruptIndexError, InvalidSettingError
from topicfs.engine.files.checkpoint import OffsetCheckpoint
from topicfs.engine.files.metadata import CleanShutdown, MetaProperties, PartitionMetadata
from topicfs.engine.files.properties import edit_properties, read_properties, write_properties
from topicfs.engine.format.index import OFFSET_ENTRY, TIME_ENTRY, Index
from topicfs.engine.format.paths import LINKED_TOPICS, PARQUET_LIST
from topicfs.engine.format.transaction_index import aborted_in
from topicfs.engine.inbox.joint_journal import JointJournal
from topicfs.engine.inbox.journal import Journal
from topicfs.engine.keys import checkpoint as key_checkpoint
from topicfs.engine.linked.topics import LinkedTopics
from topicfs.engine.parquet.table import listed_in
from topicfs.engine.partition.epochs import LeaderEpochs
from topicfs.engine.producer import snapshot
from topicfs.engine.producer.entry import BatchMetadata, ProducerEntry
from topicfs.engine.segment.transaction_index import TransactionIndex
from topicfs.engine.settings.broker import split_lines
from topicfs.engine.settings.daemon import resolve_daemon
from topicfs.engine.settings.topic import resolve_topic
from topicfs.engine.store.deletion import Deletion
from topicfs.engine.transactions.linked import LinkedTransactions
from topicfs.fs.tree.config import read_line
from topicfs.fs.tree.creating import read as read_creation

ROOM: Final = Path(tempfile.mkdtemp(prefix="topicfs-fuzz-"))
atexit.register(shutil.rmtree, ROOM, ignore_errors=True)
NOW: Final = 1_700_000_000_000


@dataclass(frozen=True)
class File:
    """A kind of file.

    check  reads bytes as such a file
    seeds  files of this kind
    """

    check: Callable[[bytes], Any]
    seeds: tuple[bytes, ...]


def placed(data: bytes, name: str = "file") -> Path:
    """A file with these bytes."""
    path = ROOM / name
    path.unlink(missing_ok=True)
    path.write_bytes(data)
    return path


def written(write: Callable[[Path], Any]) -> bytes:
    """What is written to a file."""
    path = ROOM / "seed"
    path.unlink(missing_ok=True)
    with without_fsync():
        write(path)
    return path.read_bytes()


def read_checkpoints(data: bytes) -> Any:
    offsets = OffsetCheckpoint(placed(data)).read()
    with without_fsync():
        OffsetCheckpoint(ROOM / "again").write(offsets)
    assert OffsetCheckpoint(ROOM / "again").read() == offsets
    return len(offsets).bit_length()


def read_epochs(data: bytes) -> Any:
    epochs = LeaderEpochs.look(placed(data)).entries
    assert all(a < b for a, b in pairwise(epochs))
    return len(epochs).bit_length()


def read_identities(data: bytes) -> Any:
    """The three small files that say what a directory is."""
    (ROOM / "identity").mkdir(exist_ok=True)
    for name in ("meta.properties", ".kafka_cleanshutdown", "partition.metadata"):
        placed(data, f"identity/{name}")
    epoch = CleanShutdown.of(ROOM / "identity").broker_epoch()
    errors = []
    for read in (
        lambda: PartitionMetadata.load(ROOM / "identity"),
        lambda: MetaProperties.load_or_create(ROOM / "identity", lambda: NOW, read_only=True),
    ):
        try:
            read()
        except CorruptCheckpointError as error:
            errors.append(str(error).partition(": ")[2])
    return epoch is None, [shape(each) for each in errors]


def read_settings(data: bytes) -> Any:
    """Properties: of a daemon, and of a topic."""
    values = read_properties(placed(data))
    with without_fsync():
        write_properties(ROOM / "again", values, clock=lambda: NOW)
        assert read_properties(ROOM / "again") == values
        edit_properties(ROOM / "file", {"a": "b", "c": None})
    assert read_properties(ROOM / "file") == {**{n: v for n, v in values.items() if n != "c"}, "a": "b"}
    found: list[Any] = [len(values).bit_length()]
    for resolve in (
        lambda: resolve_daemon(split_lines(values)[0]),
        lambda: resolve_topic(values, {}),
    ):
        try:
            resolve()
        except InvalidSettingError as error:
            found.append(shape(str(error)))
    return found


def read_config_lines(data: bytes) -> Any:
    """A line of a topic's `config`, and the text that makes a topic."""
    text = data.decode("utf-8", "surrogateescape")
    if text.startswith("{"):
        return len(read_creation(data).settings)
    line = read_line(text)
    return None if line is None else (line.name, line.value is None)


def read_links(data: bytes) -> Any:
    placed(data, LINKED_TOPICS)
    found = LinkedTopics.load(ROOM)
    return len(found.by_id).bit_length()


def read_journals(data: bytes) -> Any:
    found = Journal(placed(data)).read()
    return None if found is None else (found.state, found.cluster is None, found.producer_id is None)


def read_joint_journals(data: bytes) -> Any:
    found = JointJournal(placed(data)).read()
    return None if found is None else (len(found.topics), found.producer_id is None)


def read_linked_journals(data: bytes) -> Any:
    (ROOM / "linked").mkdir(exist_ok=True)
    placed(data, "linked/n.json")
    found = LinkedTransactions(ROOM / "linked", lambda _: None)._read("n")
    return None if found is None else (found.state, len(found.commit.ranges))


def read_tables(data: bytes) -> Any:
    """The list of a partition's Parquet files: where it is none, there are no files."""
    placed(data, PARQUET_LIST)
    return len(listed_in(ROOM).files)


def read_kcat(data: bytes) -> Any:
    return [(batch.num_rows, batch.schema.names) for batch in kcat.batches(io.BytesIO(data))]


def read_deletions(data: bytes) -> Any:
    found = Deletion.from_json("d", data)
    assert Deletion.from_json("d", found.to_json()) == found
    return len(found.partitions)


def read_snapshots(data: bytes) -> Any:
    """A snapshot of producers. Its checksum is made right, if the first byte says so."""
    made = data[1:]
    if data[:1] != b"\0" and len(made) >= 6:
        made = made[:2] + struct.pack(">I", google_crc32c.value(made[6:])) + made[6:]
    entries = snapshot.read(placed(made))
    snapshot.write(ROOM / "again", entries, fsync=False)
    assert snapshot.read(ROOM / "again") == entries
    return len(entries).bit_length()


def read_key_checkpoints(data: bytes) -> Any:
    """The checkpoint of keys. Its checksum is right."""
    sealed = data + struct.pack("<Q", google_crc32c.value(data))
    found = key_checkpoint.decode(sealed)
    if found is None:
        return None
    assert key_checkpoint.encode(found) == sealed
    return len(found.witnesses), found.table.slots.size.bit_length()


def read_indexes(data: bytes) -> Any:
    """The first byte names the kind of index. Kept in a file or in memory, the aborted transactions are the same."""
    kind, rest = data[:1], data[1:]
    if kind in (b"\0", b"\1"):
        index = Index.of(100, OFFSET_ENTRY if kind == b"\0" else TIME_ENTRY, rest)
        counts = [index.count_up_to(0, limit) for limit in (-(2**63), 0, 100, 2**63 - 1)]
        return counts == sorted(counts), index.last() is None
    plain = list(aborted_in(rest))
    try:
        opened = TransactionIndex.open(placed(rest), 0)
        opened.sanity_check()
        found = opened.all()
    except CorruptIndexError as error:
        return shape(str(error))
    assert found == plain
    return len(found)


def shape(text: str) -> str:
    """A message without its numbers and what it quotes."""
    return "".join(each for each in text.partition("found")[0] if not each.isdigit())


def _key_checkpoint() -> bytes:
    table = key_checkpoint.KeyTable(0, np.zeros(2, np.int64), np.zeros(16, np.int64), np.zeros(2, np.int64))
    witness = key_checkpoint.Witness((1, 2), 3)
    return key_checkpoint.encode(key_checkpoint.Checkpoint(table, 5, [witness]))[:-8]


def _snapshot() -> bytes:
    entry = ProducerEntry(4, 1, 0, NOW, 9, (BatchMetadata(3, 12, 2, NOW),))
    return b"\1" + written(lambda path: snapshot.write(path, [entry], fsync=False))


_UUID: Final = b"AAAAAAAAAAAAAAAAAAAAAQ"
_PART: Final = (
    b'{"number":0,"directory":"t-0.0123456789abcdef0123456789abcdef-delete","start":0,"end":5,"size":9,'
    b'"recovery_point":5,"high_watermark":null,"cleaned":null}'
)
FILES: Final = {
    "checkpoints": File(read_checkpoints, (b"0\n1\nt 0 5\n", b"0\n", b"", b"0\r\n2\r\na 1 2\rb 3 4")),
    "epochs": File(read_epochs, (b"0\n2\n0 0\n5 100\n",)),
    "identities": File(
        read_identities,
        (
            b"version: 0\ntopic_id: " + _UUID,
            b"version=1\ncluster.id=c\nnode.id=1\ndirectory.id=" + _UUID + b"\n",
            b'{"version":0,"brokerEpoch":7}',
        ),
    ),
    "settings": File(
        read_settings,
        (
            b"# c\nretention.ms=5\ncleanup.policy: compact\nsegment.bytes 1048576\n",
            b"log.retention.hours = \\\n  7\nname=\\u00e9\\t\\=\n",
        ),
    ),
    "config_lines": File(
        read_config_lines,
        (b"retention.ms=5 # default", b'{"topic":"t","partitions":3,"settings":{"retention.ms":"5"}}'),
    ),
    "links": File(
        read_links,
        (
            b'{"version":1,"topics":{"' + _UUID + b'":{"name":"t","cluster":"c","settings":{"a":"b"},'
            b'"broker":{},"begins":{"0":5},"ended":null}}}',
        ),
    ),
    "journals": File(
        read_journals,
        (
            b'{"state":"appending","name":"n","partitions":[0,1],"sources":[["a",1]],"content":null}',
            b'{"state":"committed","name":"n","partitions":[],"sources":[],"content":"x","producer_id":7}',
            b'{"state":"committed","name":"n","partitions":[Infinity],"sources":[]}',
            b"[" * 3000,
        ),
    ),
    "joint_journals": File(
        read_joint_journals,
        (
            b'{"producer_id":7,"parts":[{"topic":"t","name":"n","sources":[["a"]],"content":null}]}',
            b'{"producer_id":null,"parts":[{"topic":"t","name":"n","sources":[],"content":"1:1:0"}]}',
            b'{"producer_id":1e999,"parts":[]}',
            b"[" * 3000,
        ),
    ),
    "linked_journals": File(
        read_linked_journals,
        (
            b'{"state":"deciding","transactional_id":"x","producer_id":7,"epoch":1,"ranges":{"t-0":[1,2]}}',
            b"[" * 3000,
        ),
    ),
    "tables": File(read_tables, (b'{"topic_id":"' + _UUID + b'","files":[]}', b"[" * 3000)),
    "kcat": File(
        read_kcat,
        (
            b'{"topic":"t","partition":0,"offset":1,"tstype":"create","ts":7,"broker":1,"headers":["a","b"],'
            b'"key":"k","payload":null}\n',
        ),
    ),
    "deletions": File(
        read_deletions,
        (
            b'{"version":1,"topic":"t","deleted_at":1,"removed_at":2,"restoring":false,"partitions":['
            + _PART
            + b"]}",
            b"[" * 3000,
        ),
    ),
    "snapshots": File(read_snapshots, (_snapshot(),)),
    "key_checkpoints": File(read_key_checkpoints, (_key_checkpoint(),)),
    "indexes": File(
        read_indexes,
        (
            b"\0" + struct.pack(">iiii", 5, 0, 9, 100),
            b"\1" + struct.pack(">qiqi", 7, 1, 9, 4),
            b"\2" + struct.pack(">hqqqq", 0, 4, 1, 9, 10),
        ),
    ),
}
"""Each kind of file by its name."""
