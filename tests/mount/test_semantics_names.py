"""`fs/SEMANTICS.md`: names and formats, listing."""

from __future__ import annotations

import base64
import errno
import glob
import json
import os
import struct
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
from daemon_mount import ROOT, DaemonMount, append, eventually, own_mount, refused
from shell import output

from topicfs.engine.record import MAX_INT64

pytest_plugins = ["shared_mount"]

T0 = 1_746_057_600_000
"""2025-05-01, 00:00 UTC."""

HOUR = 3_600_000
TXT, TSV, JSONL = "log.txt", "log.tsv", "log.jsonl"
FORMATS = ("txt", "tsv", "jsonl")


def lines(*records: dict[str, object]) -> bytes:
    """As jsonl."""
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


def hourly(mount: DaemonMount) -> Path:
    """A partition with a record for each of 48 hours from T0 on; values 0 to 47."""
    partition = mount.new("hourly")
    # The records are of years ago: retention would remove them.
    (mount / "topics/hourly/config").write_text("retention.ms=-1\n")
    records = [{"value": str(hour), "timestamp": T0 + hour * HOUR} for hour in range(48)]
    append(partition / JSONL, lines(*records))
    return partition


def numbers(file: Path) -> list[int]:
    return [int(line) for line in file.read_text().split()]


def is_missing(path: Path) -> bool:
    with pytest.raises(OSError) as caught:  # noqa: PT011 - the errno is looked at
        path.stat()
    return caught.value.errno == errno.ENOENT


def test_root(mount: DaemonMount) -> None:
    """N1. The root lists `README.txt`, `metrics`, `topics`, `groups`, `transactions`, `producers` and
    one directory for each partition, named `<topic>-<number>`.
    """
    partition = mount.new()
    names = set(os.listdir(mount.path))
    about = {"README.txt", "metrics", "topics", "groups", "transactions", "producers"}
    assert {*about, partition.name} <= names
    topics = os.listdir(mount / "topics")
    rest = names - about
    assert {name.rpartition("-")[0] for name in rest} == set(topics)
    assert all(name.rpartition("-")[2].isdigit() and (mount / name).is_dir() for name in rest)


def test_mkdir_and_rmdir(mount: DaemonMount) -> None:
    """N2. `mkdir orders-0` makes a partition and `mkdir topics/orders` makes a topic with `num.partitions`
    partitions; `rmdir` removes either where it holds nothing: see G1.
    """
    (mount / "topics/fruit").mkdir()
    assert (mount / "fruit-0").is_dir()
    (mount / "fruit-3").mkdir()
    append(mount / "fruit-0/log.txt", b"pear\n")
    with refused(errno.ENOTEMPTY):
        (mount / "fruit-0").rmdir()
    (mount / "fruit-0/start").write_text("-1\n")
    (mount / "fruit-0").rmdir()
    assert not (mount / "fruit-0").exists()
    assert (mount / "fruit-3").is_dir()
    (mount / "fruit-0").mkdir()
    assert (mount / "fruit-0/log.txt").read_bytes() == b""
    (mount / "topics/fruit").rmdir()
    assert not [name for name in os.listdir(mount.path) if name.startswith("fruit")]
    assert not (mount / "topics/fruit").exists()


def test_what_directories_have(mount: DaemonMount) -> None:
    """N3. A topic's directory has `config`, `in.<fmt>`, `log.<fmt>` and `inbox`, and `follow.<fmt>` and `views`
    unlisted; a partition's has `log.<fmt>`, `current.<fmt>`, `offset`, `time`, `segments`, `sealed`, `start` and
    `status.json`, and `follow.<fmt>` and `views` unlisted.
    """
    partition = mount.new()
    kinds = {f"{kind}.{suffix}" for kind in ("log", "current") for suffix in FORMATS}
    others = {"offset", "time", "segments", "sealed", "start", "status.json"}
    assert set(os.listdir(partition)) == kinds | others
    assert all((partition / f"follow.{suffix}").is_file() for suffix in FORMATS)
    assert (partition / "views").is_dir()
    topic = mount / "topics" / partition.name.rpartition("-")[0]
    assert set(os.listdir(topic)) == {f"{stem}.{suffix}" for stem in ("in", "log") for suffix in FORMATS} | {
        "config",
        "inbox",
    }
    assert "cleanup.policy=delete " in (topic / "config").read_text()


def test_txt(mount: DaemonMount) -> None:
    """N4. `txt` is the value and a newline; a null value is an empty line."""
    partition = mount.new()
    append(partition / JSONL, lines({"key": "k", "value": "v"}, {"value": None}, {"value": "w"}))
    assert (partition / TXT).read_bytes() == b"v\n\nw\n"


def test_tsv(mount: DaemonMount) -> None:
    r"""N5. `tsv` is key TAB value, with `\N` for null and with backslash, TAB, newline and carriage return
    written `\\`, `\t`, `\n` and `\r`.
    """
    partition = mount.new()
    append(partition / JSONL, lines({"key": "a\tb", "value": "c\\d\ne\rf"}, {"value": None}))
    assert (partition / TSV).read_bytes() == b"a\\tb\tc\\\\d\\ne\\rf\n\\N\t\\N\n"


def test_jsonl(mount: DaemonMount) -> None:
    """N6. `jsonl` is one object a line with `topic`, `partition`, `offset`, `timestamp`, `key`, `value` and
    `headers` in this order; bytes that are not UTF-8 are base64 in `key_base64` and `value_base64`.
    """
    partition = mount.new()
    odd = base64.b64encode(b"\xff\x00").decode()
    given = {"key": 'q"', "value_base64": odd, "timestamp": T0, "headers": [{"key": "h", "value": "x"}]}
    append(partition / JSONL, lines(given, {"key_base64": odd, "value": "v", "timestamp": T0}))
    first, second = (json.loads(line) for line in (partition / JSONL).read_text().splitlines())
    common = {"topic": partition.name.rpartition("-")[0], "partition": int(partition.name.rpartition("-")[2])}
    assert list(first.items()) == list(
        (
            common
            | {"offset": 0, "timestamp": T0, "key": 'q"', "value_base64": odd, "headers": given["headers"]}
        ).items()
    )
    assert list(second.items()) == list(
        (common | {"offset": 1, "timestamp": T0, "key_base64": odd, "value": "v", "headers": []}).items()
    )


def test_round_trips(mount: DaemonMount) -> None:
    """N7. What `log.tsv` or `log.jsonl` gives can be appended to the same name of another partition, and
    gives equal records.
    """
    source = mount.new()
    values = [bytes([byte]) + b"x" for byte in range(256)]
    records = [
        {"key_base64": base64.b64encode(v[::-1]).decode(), "value_base64": base64.b64encode(v).decode()}
        | {"timestamp": T0 + at, "headers": [{"key": "ü", "value": None}]}
        for at, v in enumerate(values)
    ]
    append(source / JSONL, lines(*records, {"key": None, "value": None, "timestamp": T0}))
    for name in (TSV, JSONL):
        target = mount.new()
        append(target / name, (source / name).read_bytes())
        assert (target / TSV).read_bytes() == (source / TSV).read_bytes()
    places = (f'"partition":{p.name.rpartition("-")[2]},' for p in (target, source))
    assert (target / JSONL).read_text().replace(*places) == (source / JSONL).read_text()


def test_values(mount: DaemonMount) -> None:
    """N8. `offset/<N>` is the exact bytes of one value, without a newline; a null value is an empty file."""
    partition = mount.new()
    value = base64.b64encode(b"\0\xff\n\n").decode()
    append(partition / JSONL, lines({"value_base64": value}, {"value": None}, {"value": "v"}))
    assert [(partition / f"offset/{n}").read_bytes() for n in range(3)] == [b"\0\xff\n\n", b"", b"v"]


def test_ranges(mount: DaemonMount) -> None:
    """N9. `offset/<A>-<B>.<fmt>` has both ends, `offset/<A>-.<fmt>` goes on to the end,
    `offset/-<N>.<fmt>` is the last N records, as many as there are, and `offset/<N>.<fmt>` is one record.
    """
    partition = hourly(mount)
    for first, last in ((0, 0), (3, 7), (40, 47)):
        assert numbers(partition / f"offset/{first}-{last}.txt") == list(range(first, last + 1))
    assert numbers(partition / "offset/45-.txt") == [45, 46, 47]
    assert numbers(partition / "offset/-2.txt") == [46, 47]
    for suffix in FORMATS:
        assert len((partition / f"offset/5-9.{suffix}").read_text().splitlines()) == 5
        assert (partition / f"offset/7.{suffix}").read_text() == (
            partition / f"offset/7-7.{suffix}"
        ).read_text()
    assert numbers(partition / "offset/7.txt") == [7]
    # Each batch of an inbox leaves a marker, which has an offset and is no record.
    batches = mount.new()
    topic, _, own = batches.name.rpartition("-")
    inbox = mount / "topics" / topic / "inbox"
    for number in range(4):
        (inbox / ".new").write_bytes(lines({"value": f"{number}", "partition": int(own)}))
        (inbox / ".new").rename(inbox / f"last-{number}.jsonl")
    for count in range(1, 6):
        assert numbers(batches / f"offset/-{count}.txt") == list(range(max(0, 4 - count), 4))


def test_ranges_of_what_is_not_there(mount: DaemonMount) -> None:
    """N10. A range of offsets is cut to what is there, and is an empty file where nothing is;
    `offset/<N>`, with or without a format, of a record that is not there is ENOENT.
    """
    partition = hourly(mount)
    assert numbers(partition / "offset/46-99.txt") == [46, 47]
    assert numbers(partition / "offset/-99.txt") == list(range(48))
    for name in ("48-.txt", "99-100.txt", "60-.jsonl"):
        assert (partition / "offset" / name).read_bytes() == b""
    for name in ("48", "48.txt", "99.jsonl"):
        assert is_missing(partition / "offset" / name)
    mount.steer("raise_start", partition, 10)
    assert is_missing(partition / "offset/9")
    assert is_missing(partition / "offset/9.txt")
    assert numbers(partition / "offset/5-11.txt") == [10, 11]
    assert (partition / "offset/3-4.txt").read_bytes() == b""


def test_times(mount: DaemonMount) -> None:
    """N11. `time/<T1>--<T2>.<fmt>` begins at the first record at or after T1 and ends before the first
    at or after T2; either may be left out; `time/<T>.<fmt>` is the year, month, day, hour, minute or
    second that T names; `last-15m` and `last-1d12h` are from that long ago on.
    """
    partition = hourly(mount)
    day = numbers(partition / "time/2025-05-01--2025-05-02.txt")
    assert day == list(range(24))
    assert numbers(partition / f"time/{T0 + HOUR}--{T0 + 3 * HOUR}.txt") == [1, 2]
    assert numbers(partition / f"time/{T0 + HOUR + 1}--{T0 + 3 * HOUR + 1}.txt") == [2, 3]
    assert numbers(partition / "time/2025-05-02T22--.txt") == [46, 47]
    assert numbers(partition / "time/--2025-05-01T02.txt") == [0, 1]
    for name, first, end in (
        ("2025", 0, 48),
        ("2025-05", 0, 48),
        ("2025-06", 0, 0),
        ("2025-05-02", 24, 48),
        ("20250502", 24, 48),
        ("2025-05-02T05", 29, 30),
        ("2025-05-02T05:00", 29, 30),
        ("2025-05-02T0530", 0, 0),
        ("2025-05-02T05:00:00", 29, 30),
        ("2025-05-02T07+02", 29, 30),
        ("2025-05--2025-06", 0, 48),
    ):
        assert numbers(partition / f"time/{name}.txt") == list(range(first, end)), name
    now = int(time.time() * 1000)
    late = [{"value": value, "timestamp": now - 1000 * s} for value, s in (("100", 1200), ("101", 60))]
    append(partition / JSONL, lines(*late))
    assert numbers(partition / "time/last-15m.txt") == [101]
    for name in ("last-1h", "last-20m30s", "last-1d12h", "last-1w2d3h4m5s"):
        assert numbers(partition / f"time/{name}.txt") == [100, 101]
    assert numbers(partition / "time/last-15m30s.txt") == [101]
    assert numbers(partition / "time/last-9999w.txt")[:2] == [0, 1]


def test_ways_to_write_times(mount: DaemonMount) -> None:
    """N12. Times are ISO 8601, with or without `-` and `:`, in UTC where no zone is given, with a `+`
    before a year above 9999, or milliseconds since 1970; `time/<day>/<hour>.<fmt>` is an hour in UTC.
    """
    partition = hourly(mount)
    wanted = list(range(6, 30))
    ways = [
        "2025-05-01T06",
        "20250501T06",
        "2025-05-01T0600",
        "2025-05-01T06:00:00Z",
        "2025-05-01T08:00+02:00",
    ]
    ways += ["2025-05-01T06:00:00.000", str(T0 + 6 * HOUR)]
    for start in ways:
        assert numbers(partition / f"time/{start}--20250502T06.txt") == wanted, start
    assert numbers(partition / "time/2025-05-02/09.txt") == [33]
    assert (partition / "time/2024-01-01/09.txt").read_bytes() == b""


def test_other_names(mount: DaemonMount) -> None:
    """N13. Every other name is ENOENT, at once, also `.NAME.crc` and `_spark_metadata`, and ENAMETOOLONG where it has
    more than 255 bytes.
    """
    partition = hourly(mount)
    names = ["log", "log.xml", "log.parquet", ".log.txt.crc", "_spark_metadata", "end", "keys", "offset/00"]
    names += [
        "offset/5-4.txt",
        "offset/0-1",
        "offset/00.txt",
        "offset/0.xml",
        "offset/99999999999999999999",
        "offset/-0.txt",
    ]
    names += ["time/2025-13-01--.txt", "time/--.txt", "time/last-0m.txt", "time/2025-05-01/24.txt", "time/x"]
    names += [
        "time/2025-13.txt",
        "time/last-1h1d.txt",
        "time/2025-05-01.xml",
        "time/2025-05-02--2025-05-01.txt",
        "segments/0.txt",
        f"segments/{7:020}.txt",
        "sealed/parquet",
    ]
    names += [
        f"sealed/txt/{0:020}.txt",
        "sealed/txt/.x.crc",
        "sealed/txt/_spark_metadata",
        "sealed/txt/_SUCCESS",
    ]
    for name in names:
        assert is_missing(partition / name), name
    for name in (
        "orders",
        "orders-",
        "-0",
        "a-00",
        "none-0",
        ".hidden",
        "topics/none",
        "topics/plain/in.xml",
    ):
        assert is_missing(mount / name), name
    for directory in (partition, partition / "offset", mount.path, mount / "topics", mount / "groups"):
        assert is_missing(directory / ("n" * 255))
        for name in ("n" * 256, "n" * 1000, "ü" * 128):
            with refused(errno.ENAMETOOLONG):
                os.stat(directory / name)


def test_names_that_are_not_listed(mount: DaemonMount) -> None:
    """N14. A name may be opened that is not listed."""
    partition = hourly(mount)
    for name in ("offset/7", "offset/3-4.tsv", "time/last-3d.txt", "time/2020-01-01/00.txt"):
        directory, base = (partition / name).parent, (partition / name).name
        assert base not in (os.listdir(directory) if directory.name != "2020-01-01" else [])
        (partition / name).read_bytes()


def test_links(mount: DaemonMount, tmp_path: Path) -> None:
    """N15. What shows records that `log.txt` has too, and `in.<fmt>`, `log.<fmt>` and `table` of a topic, is a relative
    symbolic link to the same name in `views` beside it; with `list.all.views=true` each is a file or directory itself.
    """
    partition = mount.new()
    append(partition / JSONL, lines({"key": "k", "value": "v"}))
    topic = mount / "topics" / partition.name.rpartition("-")[0]
    linked = {TSV, JSONL, "offset", "time", "segments", "sealed"}
    plain = {TXT, "start", "status.json"}
    for directory, links, others in (
        (partition, linked, plain),
        (topic, {f"{stem}.{suffix}" for stem in ("in", "log") for suffix in FORMATS}, {"config", "inbox"}),
    ):
        for name in links:
            assert os.readlink(directory / name) == f"views/{name}"
            assert (directory / name).stat().st_ino == (directory / "views" / name).lstat().st_ino
        assert not [name for name in others if (directory / name).is_symlink()]
        assert set(os.listdir(directory / "views")) == links
        assert "views" not in os.listdir(directory)
        for name in (*others, "x", "views", ".x.crc"):
            assert is_missing(directory / "views" / name)
    with own_mount(tmp_path, "-o", "list.all.views=true", "-o", "log.parquet.enable=true") as other:
        partition = other.new()
        append(partition / JSONL, lines({"key": "k", "value": "v"}))
        topic = other / "topics" / partition.name.rpartition("-")[0]
        assert not [name for name in linked if (partition / name).is_symlink()]
        assert not [name for name in os.listdir(topic) if (topic / name).is_symlink()]
        assert (topic / "table").is_dir()
        assert other.stop() == 0
        other.start("-o", "log.parquet.enable=true")
        assert os.readlink(topic / "table") == "views/table"
        assert os.listdir(topic / "table") == ["partition=0"]
        assert (partition / TSV).read_bytes() == b"k\tv\n"


# -- listing ------------------------------------------------------------------------------------------


def test_far_times(mount: DaemonMount) -> None:
    """N16. Days and times reach as far as timestamps do, from 1970 to the year 292278994; a record
    without a timestamp begins no day and no range of times.
    """
    partition = mount.new("far")
    append(mount / "topics/far/config", b"message.timestamp.after.max.ms=%d\n" % MAX_INT64)
    year_10000, last = 253_402_300_800_000, MAX_INT64
    times = [-1, 0, T0, year_10000 - 1, year_10000, last - 1, last, -1]
    append(partition / JSONL, lines(*({"value": str(n), "timestamp": at} for n, at in enumerate(times))))
    days = ["1970-01-01", "2025-05-01", "9999-12-31", "+10000-01-01", "+292278994-08-17"]
    assert os.listdir(partition / "time") == days
    for name, wanted in (
        ("1970-01-01", [1]),
        ("2025", [2]),
        ("9999-12-31", [3]),
        ("+10000", [4]),
        ("+10000-01-01T00:00:00Z", [4]),
        ("+292278994-08-17", [5, 6, 7]),
        (f"{last}--", [6, 7]),
        (f"--{year_10000}", [0, 1, 2, 3]),
        ("last-1h", [3, 4, 5, 6, 7]),
    ):
        assert numbers(partition / f"time/{name}.txt") == wanted, name
    assert numbers(partition / "time/+10000-01-01/00.txt") == [4]
    assert os.listdir(partition / "time/+292278994-08-17")[:1] == ["07.txt"]
    for offset, at in enumerate(times):
        assert (partition / f"offset/{offset}").stat().st_mtime_ns == max(0, at) * 1_000_000
    output("ls -lR . > /dev/null; find . -newermt 2020-01-01 > /dev/null", partition)
    mount.status(partition)
    mount.steer("roll", partition)
    assert os.listdir(partition / "time") == days
    mount.status(partition)
    plan = output(f"{sys.executable} -m topicfs.mountd.cli plan {mount.path}", ROOT)
    assert b"far-0" in plan


def test_topics_of_kafkas_own(tmp_path: Path) -> None:
    """N17. In `__consumer_offsets`, `__transaction_state` and `__share_group_state` a key or value that is a
    message of Kafka's is an object in jsonl, as Kafka's own formatters print it: `{"type":1,"data":{…}}` and
    `{"version":3,"data":{…}}`. What it is not, or of a version that is not known, is shown as by N6. Lines with
    such an object are EINVAL when they are appended; tsv has the bytes, and N7 is true of it.
    """
    key = struct.pack(">hh7sh6si", 1, 7, b"readers", 6, b"orders", 2)
    value = struct.pack(">hqihq", 3, 42, 7, 0, T0)
    records = [
        {"key_base64": base64.b64encode(key).decode(), "value_base64": base64.b64encode(each).decode()}
        for each in (value, value + b"\xff", b"text")
    ]
    with own_mount(tmp_path) as mount:
        partition, other = mount / "__consumer_offsets-0", mount / "__consumer_offsets-1"
        partition.mkdir()
        other.mkdir()
        append(partition / JSONL, lines(*records, {"key_base64": records[0]["key_base64"], "value": None}))
        found = [json.loads(line) for line in (partition / JSONL).read_text().splitlines()]
        for line in found:
            assert line["key"] == {"type": 1, "data": {"group": "readers", "topic": "orders", "partition": 2}}
        commit = {"offset": 42, "leaderEpoch": 7, "metadata": "", "commitTimestamp": T0}
        assert found[0]["value"] == {"version": 3, "data": commit}
        assert found[1]["value_base64"] == records[1]["value_base64"]
        assert [line["value"] for line in found[2:]] == ["text", None]
        for name in ("offset/0.jsonl", f"time/{datetime.now(UTC):%Y}.jsonl", f"segments/{0:020}.jsonl"):
            assert json.loads((partition / name).read_text().splitlines()[0]) == found[0]
        with refused(errno.EINVAL):
            append(other / JSONL, (partition / JSONL).read_bytes())
        reason = json.loads((other / "status.json").read_text())["last_refusal"]["reason"]
        assert "appended as tsv or base64" in reason
        append(other / TSV, (partition / TSV).read_bytes())
        assert (other / JSONL).read_text().count('"commitTimestamp":') == 1
        assert (other / TSV).read_bytes() == (partition / TSV).read_bytes()


def test_what_offset_and_time_list(mount: DaemonMount) -> None:
    """L1. `offset` lists the first and the last record and the whole range; `time` lists the days that hold
    records, and a day its hours.
    """
    partition = hourly(mount)
    assert set(os.listdir(partition / "offset")) == {"0", "47"} | {f"0-47.{suffix}" for suffix in FORMATS}
    assert os.listdir(partition / "time") == ["2025-05-01", "2025-05-02"]
    hours = {f"{hour:02}.{suffix}" for hour in range(24) for suffix in FORMATS}
    assert set(os.listdir(partition / "time/2025-05-02")) == hours
    assert os.listdir(partition / "time/2025-05-03") == []
    empty = mount.new()
    assert os.listdir(empty / "offset") == os.listdir(empty / "time") == []
    now = datetime.now(tz=UTC)
    append(empty / TXT, b"now\n")
    assert os.listdir(empty / "time") in ([f"{now:%Y-%m-%d}"], [f"{datetime.now(tz=UTC):%Y-%m-%d}"])


def test_segments(mount: DaemonMount) -> None:
    """L2. `segments` lists each segment in every format and as `.log`; `<base>.log` has the bytes of
    Kafka's segment file.
    """
    partition = mount.new()
    append(partition / TXT, b"one\ntwo\n")
    mount.steer("roll", partition)
    append(partition / TXT, b"three\n")
    listed = {f"{base:020}.{suffix}" for base in (0, 2) for suffix in (*FORMATS, "log")}
    assert set(os.listdir(partition / "segments")) == listed
    assert (partition / f"segments/{0:020}.txt").read_bytes() == b"one\ntwo\n"
    assert (partition / f"segments/{2:020}.tsv").read_bytes() == b"\\N\tthree\n"
    on_disk = Path(mount.steer("files", partition))
    for base in (0, 2):
        raw = (partition / f"segments/{base:020}.log").read_bytes()
        assert raw
        assert raw == (on_disk / f"{base:020}.log").read_bytes()[: len(raw)]


def test_sealed(mount: DaemonMount) -> None:
    """L3. `sealed/<fmt>` lists, in the order of offsets, the segments that can change no more and have a
    visible record, and nothing else.
    """
    partition = mount.new()
    for value in (b"a\n", b"b\n"):
        append(partition / TXT, value)
        mount.steer("roll", partition)
    mount.steer("write", partition, 1, 0, [b"never"])
    mount.steer("end", partition, 1, False)
    mount.steer("roll", partition)
    mount.steer("write", partition, 2, 0, [b"later"])
    mount.steer("roll", partition)
    append(partition / TXT, b"active\n")
    for suffix in FORMATS:
        assert os.listdir(partition / "sealed" / suffix) == [f"{0:020}.{suffix}", f"{1:020}.{suffix}"]
    mount.steer("end", partition, 2, True)
    assert os.listdir(partition / "sealed/txt") == [f"{base:020}.txt" for base in (0, 1, 4)]
    assert (partition / f"sealed/txt/{4:020}.txt").read_bytes() == b"later\n"


def test_listed_names(mount: DaemonMount) -> None:
    """L4. No listed name has a colon, and no name of data begins with `.` or `_` unless its topic does."""
    partition = hourly(mount)
    mount.steer("roll", partition)
    for _, directories, files in os.walk(partition):
        for name in (*directories, *files):
            assert ":" not in name
            assert name[0] not in "._"


def test_current(mount: DaemonMount) -> None:
    """L5. `current.<fmt>` is a symbolic link to the active segment's file, and leads to the next one after
    a roll.
    """
    partition = mount.new()
    append(partition / TXT, b"one\n")
    assert os.readlink(partition / "current.txt") == f"segments/{0:020}.txt"
    assert (partition / "current.txt").read_bytes() == b"one\n"
    mount.steer("roll", partition)
    append(partition / TXT, b"two\n")
    assert os.readlink(partition / "current.tsv") == f"segments/{1:020}.tsv"
    assert (partition / "current.txt").read_bytes() == b"two\n"


def test_no_listed_file_waits(mount: DaemonMount) -> None:
    """L6. No listed file waits when it is read: a program that reads all files below a partition's directory
    comes to an end.
    """
    partition = mount.new()
    append(partition / TXT, b"one\n")
    mount.steer("roll", partition)
    append(partition / TXT, b"two\n")
    found = [Path(top) / name for top, _, names in os.walk(partition, followlinks=True) for name in names]
    assert sum(b"two" in path.read_bytes() for path in found) > len(FORMATS)
    assert not [path for path in found if path.name.startswith("follow")]


def test_old_segments_are_sealed(mount: DaemonMount) -> None:
    """L7. A segment is sealed when it is full, or when its first record is older than `segment.ms`, though nothing
    more is appended.
    """
    partition = mount.new("aged")
    append(partition / TXT, b"alone\n")
    assert os.listdir(partition / "sealed/txt") == []
    (mount / "topics/aged/config").write_text("segment.ms=300\n")
    eventually(lambda: os.listdir(partition / "sealed/txt") == [f"{0:020d}.txt"], "the sealed segment")


# The count of calls in `metrics` changes with each call, of which tar would complain.
TREE = """
    grep -r TOKEN . | sort
    grep -rc TOKEN . | grep -v ':0$'
    find . -type f -exec grep -l TOKEN {} +
    cp -a . $OUT/cp; grep -rh TOKEN $OUT/cp
    rsync -a ./ $OUT/rsync/; grep -rh TOKEN $OUT/rsync
    tar cf $OUT/all.tar --exclude=./metrics . ; tar xOf $OUT/all.tar | grep TOKEN
    tar -cSf $OUT/sparse.tar --exclude=./metrics . ; tar xOf $OUT/sparse.tar | grep TOKEN
"""


def test_tools_meet_each_record_once(tmp_path: Path) -> None:
    """L8. A tool that goes through a whole tree and follows no links, such as `grep -r`, `find`, `cp -a`, `rsync
    -a`, `tar` and `du`, meets each record once, and each file that it meets can be read.
    """
    with own_mount(tmp_path, "-o", "log.parquet.enable=true", "-o", "linger.ms=0") as mount:
        partition = mount.new("orders")
        for number in range(3):
            append(partition / JSONL, lines({"key": "k", "value": f"TOKEN {number} " + "x" * 30_000}))
            mount.steer("roll", partition)
        for place in (mount.path, partition):
            name = "orders-0/log.txt" if place == mount.path else "log.txt"
            expected = [
                3,
                [f"./{name}:3"],
                [f"./{name}"],
                *[3] * 4,
            ]
            for at, (script, count) in enumerate(zip(TREE.strip().splitlines(), expected, strict=True)):
                out = tmp_path / f"out-{place.name}-{at}"
                out.mkdir()
                # Any complaint, and any status but 0, fails here.
                said = output(f"OUT={out}\n{script.strip()}", place).decode().splitlines()
                assert said == count or len(said) == count, (script, said)
            copied = int(output(f"du -s --block-size=1 {tmp_path}/out-{place.name}-3/cp", place).split()[0])
            assert copied < 2 * 90_000
        here = int(output(f"du -s --block-size=1 {partition}", mount.path).split()[0])
        assert mount.status(partition)["log_bytes"] <= here < mount.status(partition)["log_bytes"] + 6 * 512


def test_paths_lead_through_links(tmp_path: Path) -> None:
    """L9. Globs of shells and of Python lead through links, and so do `cd`, `ls`, `cat` and `>>`; `find`, `cp -a`,
    `rsync -a` and `du` that are given a link itself follow it with a slash behind its name, and `tar` with `/.`.
    """
    with own_mount(tmp_path) as mount:
        partition = mount.new("orders")
        append(partition / TXT, b"one\n")
        mount.steer("roll", partition)
        append(partition / TXT, b"two\n")
        first, second = (f"{base:020d}.txt" for base in (0, 1))
        there = ["orders-0", "segments"]
        for script, said in (
            ("echo */segments/*.txt", f"orders-0/segments/{first} orders-0/segments/{second}\n"),
            ("cat orders-*/sealed/txt/*", "one\n"),
            ("cd orders-0/segments && ls *.txt && cd .. && cat log.txt", f"{first}\n{second}\none\ntwo\n"),
            ("ls orders-0/sealed/txt", f"{first}\n"),
            ("find orders-0/segments/ -name '*.txt' | wc -l", "2\n"),
            (f"cp -a orders-0/sealed/ {tmp_path}/copy && cat {tmp_path}/copy/txt/*", "one\n"),
            ("tar cf - orders-0/sealed/. | tar tf - | grep -c 'txt/0'", "1\n"),
            ("du -s --apparent-size --block-size=1 orders-0/sealed/txt | cut -f1", "4\n"),
            ("grep -r one orders-0/segments/*.txt orders-0/offset/0", "one"),
        ):
            found = output(script, mount.path).decode()
            assert (said in found) if said == "one" else (found == said), script
        assert sorted(glob.glob(str(mount.path / "*/segments/*.txt"))) == [
            str(mount.path.joinpath(*there, name)) for name in (first, second)
        ]
        assert sorted(path.name for path in mount.path.glob("*/sealed/jsonl/*")) == [f"{0:020d}.jsonl"]
        assert output("echo 'k	three' >> orders-0/log.tsv; tail -n 1 orders-0/log.jsonl", mount.path)
        assert json.loads((partition / JSONL).read_text().splitlines()[-1])["value"] == "three"
        with (mount / "topics/orders/in.jsonl").open("ab", buffering=0) as file:
            file.write(b'{"value":"four"}\n')
        assert (partition / TXT).read_bytes() == b"one\ntwo\nthree\nfour\n"
