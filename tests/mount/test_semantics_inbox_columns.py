"""`fs/SEMANTICS.md`: the inbox, of files of columns."""

from __future__ import annotations

import errno
import json
import os
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
from daemon_mount import DaemonMount, refused
from inboxes import Topic, arrow, commit, parquet

pytest_plugins = ["shared_mount"]


def test_columns(mount: DaemonMount) -> None:
    """I23. In `.arrow`, a file or a stream of Arrow, and in `.parquet` a column `value` of text or bytes has
    to be there, in which null is a tombstone; `key`, `headers`, `timestamp`, which is one or a number of
    milliseconds, and `partition` may be there; `offset`, `topic` and `timestampType` are ignored. Any other
    column or type is EINVAL. So the files of a topic's `table` give equal records in another topic.
    """
    topic = Topic(mount)
    # The rows are of 1970 and 2023: retention would remove them.
    topic.configure("retention.ms=-1")
    (topic.inbox / ".x").write_bytes(
        parquet(
            value=["v", None, b"\xff"],
            key=[b"k", "ü".encode(), None],
            headers=pa.array([[("h", b"x"), ("h", None)], [], None], pa.map_(pa.string(), pa.binary())),
            timestamp=pa.array([1_700_000_000_123_999, 5000, 7000], pa.timestamp("us")),
            partition=pa.array([1, 0, 0]),
            offset=pa.array([7, 7, 7]),
            topic=["another"] * 3,
            timestampType=[0] * 3,
        )
    )
    (topic.inbox / ".x").rename(topic.inbox / "x.parquet")
    first, last = (topic.partition(number) / "log.jsonl" for number in (0, 1))
    name = topic.name
    assert last.read_text() == (
        f'{{"topic":"{name}","partition":1,"offset":0,"timestamp":1700000000123,"key":"k","value":"v",'
        '"headers":[{"key":"h","value":"x"},{"key":"h","value":null}]}\n'
    )
    assert [json.loads(line) for line in first.read_text().splitlines()] == [
        {
            "topic": name,
            "partition": 0,
            "offset": 0,
            "timestamp": 5,
            "key": "ü",
            "value": None,
            "headers": [],
        },
        {
            "topic": name,
            "partition": 0,
            "offset": 1,
            "timestamp": 7,
            "key": None,
            "value_base64": "/w==",
            "headers": [],
        },
    ]
    batch = topic.batch("b")
    for columns in (
        {"value": ["x"], "colour": ["blue"]},
        {"key": ["x"]},
        {"value": [7]},
        {"value": ["x"], "timestamp": ["2026"]},
        {"value": ["x"], "partition": [-1]},
        {"value": ["x"], "headers": [[{"key": None, "value": b"x"}]]},
    ):
        for file, write in (("x.parquet", parquet), ("x.arrow", arrow)):
            (batch / file).write_bytes(write(**columns))
            with refused(errno.EINVAL):
                commit(batch)
            assert f"b/{file}: " in mount.status(topic.partition())["last_refusal"]["reason"]
            (batch / file).unlink()
    table = pa.table({"value": pa.array([b"last"]), "timestamp": pa.array([9])})
    with pa.OSFile(str(batch / "x.arrow"), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table)
    commit(batch)
    assert sorted(record["timestamp"] for record in topic.records() if record.get("value") == "last") == [9]


def most_memory_mib(mount: DaemonMount) -> int:
    """What the daemon had in memory at most."""
    assert mount.process is not None
    (line,) = re.findall(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{mount.process.pid}/status").read_text())
    return int(line) // 1024


def test_damaged_columns(mount: DaemonMount) -> None:
    """I24. A file of columns that is damaged or cut short is EINVAL, and so is one of which more than 256 MiB
    would have to be in memory at once: a batch of Arrow, a page of Parquet, the headers of one of its row
    groups. However much a small file unpacks to, the daemon takes no more for it.
    """
    topic = Topic(mount)
    topic.configure("max.message.bytes=1000")
    batch = topic.batch("b")
    whole = {"x.parquet": parquet(value=["x"] * 1000), "x.arrow": arrow(value=["x"] * 1000)}

    def refuse(name: str, data: bytes, words: str, number: int = errno.EINVAL) -> None:
        (batch / name).write_bytes(data)
        with refused(number):
            commit(batch)
        reason = mount.status(topic.partition())["last_refusal"]["reason"]
        assert f"b/{name}: " in reason
        assert words in reason
        (batch / name).unlink()

    for name, data in whole.items():
        for end in (0, 4, len(data) // 2, len(data) - 1):
            refuse(name, data[:end], "damaged, or not all of it has come")
        refuse(name, data[: len(data) // 2] + b"\xff" * 100 + data[len(data) // 2 + 100 :], "damaged")
    # 300 MB in 30 KB, and 20 GB in 100 KB.
    most = most_memory_mib(mount)
    sizes = pa.py_buffer(np.array([0, 300 << 20], np.int32))
    zeros = pa.Array.from_buffers(pa.binary(), 1, [None, sizes, pa.py_buffer(bytes(300 << 20))])
    refuse("x.parquet", parquet(dictionary=False, value=zeros), "expected a page of up to 268435456 bytes")
    refuse("x.arrow", arrow(value=zeros), "expected up to 268435456 bytes in a batch of rows")
    repeated = pa.DictionaryArray.from_arrays(pa.array([0] * 20_000, pa.int32()), pa.array(["x" * (1 << 20)]))
    refuse("x.parquet", parquet(value=repeated), "row 1: a record exceeds", errno.EMSGSIZE)
    assert most_memory_mib(mount) - most < 200
    assert topic.values() == []
    (batch / "x.parquet").write_bytes(whole["x.parquet"])
    commit(batch)
    assert len(topic.values()) == 1000


def test_what_a_name_was_committed_with(mount: DaemonMount) -> None:
    """I25. The attribute `user.topicfs.committed.<batch>` of `inbox`, which is not listed, is the number of records
    that were committed under that name, in digits, and is empty where none is remembered: the last 10,000 names of a
    topic are.
    """
    topic = Topic(mount)
    attribute = "user.topicfs.committed.b"
    assert os.getxattr(topic.inbox, attribute) == b""
    batch = topic.batch("b", x="a\nb\n", y="c\n")
    assert os.getxattr(topic.inbox, attribute) == b""
    commit(batch)
    assert os.getxattr(topic.inbox, attribute) == b"3"
    assert os.listxattr(topic.inbox) == []
