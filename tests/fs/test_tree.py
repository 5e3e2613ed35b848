"""The tree: what is listed, what is found, what is refused. Called directly: no mount."""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from partition_opening import NOW
from tree_bench import APPEND, TreeBench, array, lines, remove_below, tree_bench

from topicfs.engine.partition import cutting
from topicfs.engine.partition.partition import Producer
from topicfs.engine.record import MAX_INT64, Record
from topicfs.fs import errors
from topicfs.fs.formats import FORMATS


@pytest.fixture
def place(tmp_path: Path) -> Iterator[TreeBench]:
    with tree_bench(tmp_path) as made:
        yield made


def names(place: TreeBench, path: str) -> list[str]:
    return list(place.files.readdir(path))


def refused(call: Callable[[], object]) -> str:
    """The errno of a call that fails."""
    with pytest.raises(Exception) as caught:  # noqa: PT011 - its errno is looked at
        call()
    found = errors.answer(caught.value)
    assert found.loudness is not errors.Loudness.UNKNOWN, caught.value
    return errno.errorcode[found.errno]


def walk(place: TreeBench, path: str = "/") -> Iterator[str]:
    yield path
    if stat.S_ISDIR(place.files.getattr(path, None).mode):
        for name in names(place, path):
            yield from walk(place, f"{path.rstrip('/')}/{name}")


# -- listing ------------------------------------------------------------------------------------------------


def test_the_root_lists_partitions_topics_and_texts(place: TreeBench) -> None:
    place.create("orders", 1)
    place.create("orders", 0)
    place.create("a-b", 3)
    assert names(place, "/") == [
        "README.txt",
        "metrics",
        "topics",
        "groups",
        "transactions",
        "producers",
        "a-b-3",
        "orders-0",
        "orders-1",
    ]
    assert names(place, "/topics") == ["a-b", "orders"]
    assert names(place, "/topics/orders") == [
        "config",
        *(f"{stem}.{suffix}" for stem in ("in", "log") for suffix in ("txt", "tsv", "jsonl")),
        "inbox",
    ]


def test_a_partition_lists_its_files(place: TreeBench) -> None:
    place.create()
    kinds = [f"{kind}.{suffix}" for kind in ("log", "current") for suffix in FORMATS]
    assert names(place, "/t-0") == [*kinds, "offset", "time", "segments", "sealed", "start", "status.json"]
    assert names(place, "/t-0/sealed") == list(FORMATS)


def test_follow_is_there_by_name_only(place: TreeBench) -> None:
    place.create()
    for suffix in FORMATS:
        assert f"follow.{suffix}" not in names(place, "/t-0")
        assert stat.S_ISREG(place.files.getattr(f"/t-0/follow.{suffix}", None).mode)
        place.files.release(place.files.open(f"/t-0/follow.{suffix}", os.O_RDONLY).handle)


def test_an_empty_partition_has_one_empty_segment_and_nothing_else(place: TreeBench) -> None:
    place.create()
    assert names(place, "/t-0/segments") == [f"{0:020d}.{suffix}" for suffix in (*FORMATS, "log")]
    assert names(place, "/t-0/offset") == names(place, "/t-0/time") == names(place, "/t-0/sealed/txt") == []
    assert place.read("/t-0/log.txt") == b""


def test_sealed_lists_final_segments_with_records_in_offset_order(place: TreeBench) -> None:
    partition = place.create().partition
    lines(partition, b"one")
    partition.roll()
    partition.append(Record(b"gone"), Producer(7, 0, 0, True))
    partition.end_transaction(7, 0, commit=False)
    partition.roll()
    lines(partition, b"two")
    partition.append(Record(b"open"), Producer(7, 0, 1, True))
    partition.roll()
    assert names(place, "/t-0/sealed/txt") == [f"{0:020d}.txt"]
    partition.end_transaction(7, 0, commit=True)
    assert names(place, "/t-0/sealed/txt") == [f"{0:020d}.txt", f"{3:020d}.txt"]
    assert place.read(f"/t-0/sealed/txt/{3:020d}.txt") == b"two\nopen\n"
    # A segment that shows nothing, the active one, other spellings, and what Spark looks for.
    for name in (
        f"{1:020d}.txt",
        f"{5:020d}.txt",
        f"{0:020d}.tsv",
        "0.txt",
        f".{0:020d}.txt.crc",
        "_spark_metadata",
    ):
        assert refused(lambda name=name: place.files.getattr(f"/t-0/sealed/txt/{name}", None)) == "ENOENT"


def test_offset_lists_the_first_and_the_last_record_and_no_marker(place: TreeBench) -> None:
    """regression: a marker was listed, which is no record, and stopped find and tar"""
    partition = place.create().partition
    lines(partition, b"one", b"two", b"three")
    ranges = [f"0-2.{suffix}" for suffix in FORMATS]
    assert names(place, "/t-0/offset") == ["0", "2", *ranges]
    partition.append(Record(b"last"), Producer(7, 0, 0, True))
    partition.end_transaction(7, 0, commit=True)
    assert names(place, "/t-0/offset") == ["0", "3", *(f"0-4.{suffix}" for suffix in FORMATS)]
    partition.log.raise_start_offset(4)
    assert names(place, "/t-0/offset") == [f"4-4.{suffix}" for suffix in FORMATS]


def test_time_lists_days_and_hours_that_hold_records(place: TreeBench) -> None:
    partition = place.create().partition
    day, hour = 86_400_000, 3_600_000
    start = NOW - NOW % day
    place.store.configure("t", {"message.timestamp.after.max.ms": str(9 * day)})
    for at in (start, start + hour, start + 3 * hour + 5, start + 2 * day):
        partition.append(Record(b"%d" % at, timestamp=at))
    assert names(place, "/t-0/time") == ["2023-11-14", "2023-11-16"]
    assert names(place, "/t-0/time/2023-11-14") == [f"{h}.{s}" for h in ("00", "01", "03") for s in FORMATS]
    assert names(place, "/t-0/time/2023-11-15") == []
    assert place.read("/t-0/time/2023-11-14/03.txt") == b"%d\n" % (start + 3 * hour + 5)
    assert place.read("/t-0/time/2023-11-14/02.txt") == b""


def test_every_name_that_is_listed_leads_somewhere_and_has_the_size_of_its_content(place: TreeBench) -> None:
    partition = place.create("t", 0, internal_segment_bytes=300).partition
    for number in range(12):
        partition.append(Record(b"%d" % number, b"k"), Producer(7, 0, number, True))
        partition.end_transaction(7, 0, commit=number % 3 > 0)
    partition.log.raise_start_offset(5)
    for path in walk(place):
        found = place.files.getattr(path, None)
        assert ":" not in path
        if stat.S_ISLNK(found.mode):
            assert place.files.getattr(f"/t-0/{place.files.readlink(path)}", None)
        elif stat.S_ISREG(found.mode) and found.mode & 0o444 and "status" not in path:
            assert len(place.read(path)) == found.size


def test_inode_numbers_differ_and_stay(place: TreeBench) -> None:
    lines(place.create().partition, b"one")
    numbers = {path: place.files.getattr(path, None).ino for path in walk(place)}
    assert len(set(numbers.values())) == len(numbers)
    place.reopen()
    assert {path: place.files.getattr(path, None).ino for path in walk(place)} == numbers


# -- looking up ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    ["/x", "/t", "/t-1", "/t-00", "/T-0", "/t-0.", "/.t-0", "/topics/x", "/topics/t/x", "/topics/t/in",
     "/topics/t/in.", "/topics/t/in.log",
     "/topics/t/out.txt", "/t-0/log", "/t-0/log.", "/t-0/log.log", "/t-0/log.txt.crc", "/t-0/.log.txt.crc",
     "/t-0/x.txt", "/t-0/follow",
     "/t-0/current.parquet", "/t-0/offset/9", "/t-0/offset/-1", "/t-0/offset/9.txt", "/t-0/offset/0-1",
     "/t-0/offset/1-0.txt",
     "/t-0/offset/0-1.log", "/t-0/time/x", "/t-0/time/last-1m", "/t-0/time/2023-11-32.txt",
     "/t-0/time/2023-11-14/24.txt",
     "/t-0/time/2023-11-14/1.txt", "/t-0/time/2023-11-14/01", "/t-0/segments/0.txt",
     "/t-0/segments/00000000000000000001.txt",
     "/t-0/segments/00000000000000000000", "/t-0/segments/00000000000000000000.index", "/t-0/sealed/log",
     "/t-0/sealed/parquet",
     "/t-0/sealed/txt/00000000000000000000.txt", "/t-0/_spark_metadata"],
)  # fmt: skip
def test_names_that_mean_nothing(place: TreeBench, path: str) -> None:
    lines(place.create().partition, b"one", b"two")
    assert refused(lambda: place.files.getattr(path, None)) == "ENOENT"
    assert refused(lambda: place.files.open(path, os.O_RDONLY)) == "ENOENT"


@pytest.mark.parametrize(
    ("path", "content"),
    [
        ("offset/1", b"two"),
        ("offset/0-1.txt", b"one\ntwo\n"),
        ("offset/1-.txt", b"two\nthree\n"),
        ("offset/-1.tsv", b"\\N\tthree\n"),
        ("offset/-99.txt", b"one\ntwo\nthree\n"),
        ("offset/7-9.txt", b""),
        ("offset/9223372036854775807-.txt", b""),
        ("offset/0-9999999999999999999.txt", b"one\ntwo\nthree\n"),
        ("offset/-9999999999999999999.txt", b"one\ntwo\nthree\n"),
        ("time/last-1m.txt", b"one\ntwo\nthree\n"),
        ("time/--1700000000000.txt", b""),
        ("time/1700000000000--.txt", b"one\ntwo\nthree\n"),
        ("time/2023-11-14T22:13--2023-11-14T22:14.txt", b"one\ntwo\nthree\n"),
        ("time/1970-01-01--1970-01-02.txt", b""),
        ("time/9999-12-31--.txt", b""),
        (f"segments/{0:020d}.txt", b"one\ntwo\nthree\n"),
    ],
)
def test_names_need_not_be_listed_to_be_there(place: TreeBench, path: str, content: bytes) -> None:
    lines(place.create().partition, b"one", b"two", b"three")
    assert place.read(f"/t-0/{path}") == content


def test_times_lead_to_records_above_the_start_offset(place: TreeBench) -> None:
    """regression: where the first segment with that time has it only below the start, nothing was found"""
    partition = place.create().partition
    for number in range(3):
        partition.append(Record(b"%d" % number, timestamp=NOW + number))
        partition.append(Record(b"early %d" % number, timestamp=NOW - 900))
        partition.roll()
    partition.log.raise_start_offset(1)
    assert place.read(f"/t-0/time/{NOW}--.txt") == b"1\nearly 1\n2\nearly 2\n"
    assert place.read(f"/t-0/time/{NOW + 2}--.txt") == b"2\nearly 2\n"
    assert place.read(f"/t-0/time/{NOW + 3}--.txt") == b""
    # Wholly below the start; the one that the start lies in has it as well.
    partition.log.raise_start_offset(3)
    assert place.read(f"/t-0/time/{NOW}--.txt") == b"2\nearly 2\n"
    partition.log.raise_start_offset(4)
    assert place.read(f"/t-0/time/{NOW}--.txt") == b"2\nearly 2\n"
    partition.append(Record(b"4", timestamp=NOW))
    partition.append(Record(b"5", timestamp=NOW))
    partition.log.raise_start_offset(7)
    assert place.read(f"/t-0/time/{NOW}--.txt") == b"5\n"


def test_a_path_does_not_go_on_behind_a_file(place: TreeBench) -> None:
    lines(place.create().partition, b"one")
    for path in ("/README.txt/x", "/t-0/log.txt/x", "/t-0/offset/0/x", "/t-0/status.json/x"):
        assert refused(lambda path=path: place.files.getattr(path, None)) == "ENOTDIR"
        assert refused(lambda path=path: place.files.mkdir(path, 0o755)) == "EPERM"


# -- making and removing ------------------------------------------------------------------------------------


def test_mkdir_and_rmdir_make_and_delete_partitions_and_topics(place: TreeBench) -> None:
    place.files.mkdir("/orders-1", 0o755)
    place.files.mkdir("/topics/clicks", 0o755)
    assert place.store.topics() == {"clicks": [0], "orders": [1]}
    place.files.rmdir("/orders-1")
    place.files.rmdir("/topics/clicks")
    assert place.store.topics() == {}


def test_what_cannot_be_made_or_removed(place: TreeBench) -> None:
    place.create()
    make, remove = (lambda path: place.files.mkdir(path, 0o755)), place.files.rmdir
    assert refused(lambda: make("/t-0")) == "EEXIST"
    assert refused(lambda: make("/topics/t")) == "EEXIST"
    for path in (
        "/x",
        "/topics/a b",
        "/topics/..x/",
        "/-0",
        "/t-00",
        "/t-2147483648",
        "/t-1.0123456789abcdef0123456789abcdef-delete",
    ):
        if not path.endswith("/"):
            assert refused(lambda path=path: make(path)) == "EINVAL", path
    for path in ("/t-0/x", "/t-0/offset/x", "/t-0/sealed/x", "/topics/t/x"):
        assert refused(lambda path=path: make(path)) == "EPERM"
    assert refused(lambda: remove("/t-1")) == "ENOENT"
    assert refused(lambda: remove("/topics/x")) == "ENOENT"
    for path in ("/t-0/offset", "/t-0/segments", "/topics/t/in.txt"):
        assert refused(lambda path=path: remove(path)) == "EPERM"


def test_deleting_can_be_forbidden(tmp_path: Path) -> None:
    with tree_bench(tmp_path, delete_topic_enable="false") as place:
        place.create()
        assert refused(lambda: place.files.rmdir("/t-0")) == "EPERM"
        assert refused(lambda: place.files.rmdir("/topics/t")) == "EPERM"
        assert refused(lambda: place.delete("/t-0")) == "EPERM"
        assert refused(lambda: place.delete("/topics/t")) == "EPERM"
        assert place.store.topics() == {"t": [0]}


def test_a_deletion_that_fails_halfway_shows_nothing_of_what_is_deleted(place: TreeBench) -> None:
    logs = [place.create(number=number).partition.log for number in range(2)]
    files = [place.files.open(f"/t-{number}/log.txt", os.O_RDONLY).handle for number in range(2)]
    for number, file in enumerate(files):
        place.append(f"/t-{number}/log.txt", b"one\ntwo\n")
        assert place.files.read(file, 0, np.zeros(4, np.uint8)) == 4
    with mock.patch.object(logs[1], "rename", side_effect=OSError(errno.EIO, "broken")):
        assert refused(lambda: place.delete("/topics/t")) == "EIO"
    assert [log.is_closed for log in logs] == [True, False]
    shown = {handle for handle, _ in place.files.windows._kept.values()}
    assert shown == {files[1]}


def test_a_partition_of_the_same_name_is_another_one(place: TreeBench) -> None:
    lines(place.create().partition, b"old")
    assert place.read("/t-0/log.txt") == b"old\n"
    place.delete("/t-0")
    place.files.mkdir("/t-0", 0o755)
    assert place.read("/t-0/log.txt") == b""
    assert refused(lambda: place.files.getattr("/t-0/offset/0", None)) == "ENOENT"


# -- refusals -----------------------------------------------------------------------------------------------


def test_what_logs_do_not_have_is_refused(place: TreeBench) -> None:
    lines(place.create().partition, b"one")
    files = place.files
    for path in ("/t-0/log.txt", "/t-0/offset/0", f"/t-0/segments/{0:020d}.txt", "/README.txt"):
        assert refused(lambda path=path: files.truncate(path, 0, None)) == "EPERM"
        assert refused(lambda path=path: files.unlink(path)) == "EPERM"
        assert refused(lambda path=path: files.rename(path, "/t-0/other")) == "EPERM"
        assert refused(lambda path=path: files.chmod(path, 0o600)) == "EPERM"
        assert refused(lambda path=path: files.chown(path, 1, 1)) == "EPERM"
        assert refused(lambda path=path: files.utimens(path, 1, 1)) == "EPERM"
        assert refused(lambda path=path: files.link(path, "/t-0/other")) == "EPERM"
        assert refused(lambda path=path: files.setxattr(path, "user.x", b"", 0)) == "ENOTSUP"
        assert refused(lambda path=path: files.removexattr(path, "user.x")) == "ENOTSUP"
        assert refused(lambda path=path: files.getxattr(path, "user.x")) == "ENODATA"
        assert refused(lambda path=path: files.readlink(path)) == "EINVAL"
        assert refused(lambda path=path: files.readdir(path)) == "ENOTDIR"
    assert refused(lambda: files.symlink("log.txt", "/t-0/other")) == "EPERM"
    assert refused(lambda: files.mknod("/t-0/other", 0o644, 0)) == "EPERM"
    assert refused(lambda: files.create("/t-0/other", 0o644, APPEND)) == "EPERM"
    assert refused(lambda: files.unlink("/t-0/missing")) == "ENOENT"
    assert place.read("/t-0/log.txt") == b"one\n"


def test_what_can_only_be_read_is_not_opened_for_writing(place: TreeBench) -> None:
    partition = place.create().partition
    lines(partition, b"one")
    partition.roll()
    for path in (
        "/README.txt", "/metrics", "/t-0/status.json", "/t-0/follow.txt", "/t-0/offset/0", "/t-0/offset/0-.txt",
        "/t-0/time/last-1m.txt", f"/t-0/segments/{0:020d}.txt", f"/t-0/segments/{0:020d}.log",
        f"/t-0/sealed/txt/{0:020d}.txt",
    ):  # fmt: skip
        for flags in (os.O_WRONLY, os.O_RDWR, APPEND):
            assert refused(lambda path=path, flags=flags: place.files.open(path, flags)) == "EPERM", path
    for flags in (os.O_WRONLY, os.O_RDWR, APPEND | os.O_TRUNC):
        assert refused(lambda flags=flags: place.files.open("/t-0/log.txt", flags)) == "EPERM"
        assert refused(lambda flags=flags: place.files.open("/topics/t/in.txt", flags)) == "EPERM"
    assert refused(lambda: place.files.open("/topics/t/in.txt", os.O_RDONLY)) == "EPERM"
    assert refused(lambda: place.files.open("/t-0", os.O_RDONLY)) == "EISDIR"


def test_a_handle_does_only_what_it_was_opened_for(place: TreeBench) -> None:
    place.create()
    reader = place.files.open("/t-0/log.txt", os.O_RDONLY).handle
    writer = place.files.open("/t-0/log.txt", APPEND).handle
    both = place.files.open("/t-0/log.txt", os.O_RDWR | os.O_APPEND).handle
    assert refused(lambda: place.files.write(reader, array(b"x\n"))) == "EBADF"
    assert refused(lambda: place.files.read(writer, 0, array(b"x").copy())) == "EBADF"
    assert place.files.write(both, array(b"x\n")) == 2
    place.files.flush(both)
    into = array(bytes(10)).copy()
    assert place.files.read(both, 0, into) == 2
    assert into[:2].tobytes() == b"x\n"


# -- attributes ---------------------------------------------------------------------------------------------


def test_kinds_permissions_and_owners(place: TreeBench) -> None:
    lines(place.create().partition, b"one")
    backing = os.stat(place.place)
    kinds = {
        "/": stat.S_IFDIR,
        "/t-0": stat.S_IFDIR,
        "/t-0/log.txt": stat.S_IFREG,
        "/t-0/current.txt": stat.S_IFLNK,
    }
    for path, kind in kinds.items():
        found = place.files.getattr(path, None)
        assert stat.S_IFMT(found.mode) == kind
        assert (found.uid, found.gid) == (backing.st_uid, backing.st_gid)
        assert found.mode & 0o777 & ~backing.st_mode == 0
    log = place.files.getattr("/t-0/log.txt", None)
    assert (log.size, log.blocks) == (4, 1)


def test_a_segments_files_have_the_time_of_its_log(place: TreeBench) -> None:
    partition = place.create().partition
    lines(partition, b"one")
    partition.roll()
    lines(partition, b"two")
    for base in (0, 1):
        real = os.stat(partition.directory / f"{base:020d}.log").st_mtime_ns
        for suffix in (*FORMATS, "log"):
            assert place.files.getattr(f"/t-0/segments/{base:020d}.{suffix}", None).mtime_ns == real


def test_extended_attributes_tell_offsets(place: TreeBench) -> None:
    partition = place.create().partition
    lines(partition, b"one", b"two", b"three")
    partition.log.raise_start_offset(1)
    expected = {
        "/t-0/log.txt": (1, 3),
        "/t-0/offset/0-1.txt": (1, 2),
        "/t-0/offset/2": (2, 3),
        f"/t-0/segments/{0:020d}.txt": (0, 3),
    }
    for path, (first, end) in expected.items():
        assert place.files.getxattr(path, "user.topicfs.first_offset") == b"%d" % first
        assert place.files.getxattr(path, "user.topicfs.next_offset") == b"%d" % end
        assert "user.topicfs.first_offset" in place.files.listxattr(path)


def test_current_leads_to_the_active_segment(place: TreeBench) -> None:
    partition = place.create().partition
    lines(partition, b"one")
    assert place.files.readlink("/t-0/current.txt") == f"segments/{0:020d}.txt"
    partition.roll()
    assert place.files.readlink("/t-0/current.jsonl") == f"segments/{1:020d}.jsonl"


def test_the_raw_log_is_the_segments_bytes(place: TreeBench) -> None:
    partition = place.create().partition
    lines(partition, b"one", b"two")
    assert place.read(f"/t-0/segments/{0:020d}.log") == (partition.directory / f"{0:020d}.log").read_bytes()


def test_status_and_config_can_be_read(place: TreeBench) -> None:
    partition = place.create("t", 0, retention_ms=12345).partition
    lines(partition, b"one", b"two")
    status = json.loads(place.read("/t-0/status.json"))
    assert (status["start_offset"], status["end_offset"], status["segments"]) == (0, 2, 1)
    config = place.read("/topics/t/config").decode().splitlines()
    assert any(line.startswith("retention.ms=12345 ") and line.endswith("# topic") for line in config)


def test_the_status_is_there_while_a_log_begins_anew(place: TreeBench) -> None:
    lines(place.create("t", 0).partition, b"one", b"two")
    assert place.read("/t-0/status.json")
    rebuild, seen = cutting._rebuild, []

    def look_first(*arguments: Any) -> None:
        seen.append(json.loads(place.read("/t-0/status.json"))["start_offset"])
        rebuild(*arguments)

    with mock.patch.object(cutting, "_rebuild", look_first):
        place.store.restart_at("t", 0, 7)
    assert seen == [7]
    assert json.loads(place.read("/t-0/status.json"))["end_offset"] == 7


# -- the log keeps its origin -------------------------------------------------------------------------------


def test_the_log_counts_from_one_origin_while_somebody_has_it_open(place: TreeBench) -> None:
    partition = place.create().partition
    for number in range(4):
        lines(partition, b"%d" % number)
        partition.roll()
    held = place.files.open("/t-0/log.txt", os.O_RDONLY).handle
    remove_below(partition, 2)
    assert place.files.getattr("/t-0/log.txt", None).size == 8
    into = array(bytes(20)).copy()
    later = place.files.open("/t-0/log.txt", os.O_RDONLY).handle
    assert into[: place.files.read(later, 0, into)].tobytes() == b"2\n3\n"
    middle = place.files.open("/t-0/log.txt", os.O_RDONLY).handle
    assert into[: place.files.read(middle, 2, into)].tobytes() == b"1\n2\n3\n"
    for handle in (later, middle, held):
        place.files.release(handle)
    assert place.read("/t-0/log.txt") == b"2\n3\n"


def test_who_opens_the_log_behind_another_reader_is_promised_what_that_one_has_read_past(
    place: TreeBench,
) -> None:
    partition = place.create().partition
    for number in range(20):
        lines(partition, b"%02d" % number)
        partition.roll()
    into = array(bytes(100)).copy()
    ahead = place.files.open("/t-0/log.txt", os.O_RDONLY).handle
    for position in range(0, 60, 3):
        place.files.read(ahead, position, into[:3])
    behind = place.files.open("/t-0/log.txt", os.O_RDONLY).handle
    place.files.read(behind, 0, into[:1])
    remove_below(partition, 19)
    partition.log.remove_due(MAX_INT64)
    assert into[: place.files.read(behind, 0, into)].tobytes() == b"".join(b"%02d\n" % n for n in range(20))
    # When both have read past them, they can go.
    place.files.read(behind, 57, into)
    assert partition.log.remove_due(MAX_INT64) == 19
    for handle in (ahead, behind):
        place.files.release(handle)
