"""`fs/SEMANTICS.md`, making a store, and read-only mounts: K."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cluster_metadata import NO_OP, changed, partition, shown, topic, write
from daemon_mount import ROOT, DaemonMount, append, eventually, own_mount

from topicfs import Record, Store
from topicfs.engine.partition.partition import Producer

pytest_plugins = ("shared_mount",)

Held = dict[str, tuple[object, ...]]


def topicfs(*arguments: str | Path) -> tuple[int, str]:
    """A command's exit code, and what it said."""
    done = subprocess.run(
        [sys.executable, "-m", "topicfs.mountd.cli", *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "XDG_STATE_HOME": "/nowhere"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return done.returncode, " ".join((done.stdout + done.stderr).split())


def held(directory: Path) -> Held:
    """All that is in a directory: names, contents, modes, and the times of changes."""
    found: Held = {}
    for path in (directory, *sorted(directory.rglob("*"))):
        status = path.lstat()
        content = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        found[str(path.relative_to(directory))] = (
            content,
            status.st_ino,
            status.st_mode,
            status.st_size,
            status.st_mtime_ns,
            status.st_ctime_ns,
        )
    return found


def look_everywhere(mount: DaemonMount) -> dict[str, bytes]:
    """Read every file that the mount lists, apart from those that tell of the moment."""
    contents = {}
    for folder, _, names in os.walk(mount.path):
        for name in names:
            path = Path(folder, name)
            if not name.startswith("in.") and name not in ("metrics", "status.json"):
                contents[str(path.relative_to(mount.path))] = path.read_bytes()
    return contents


OLD = {"internal.segment.bytes": "2000", "retention.ms": "1", "file.delete.delay.ms": "0"}
COMPACTED = {"internal.segment.bytes": "2000", "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
AT_ONCE = ("-o", "log.initial.task.delay.ms=0", "-o", "log.retention.check.interval.ms=1")
AT_ONCE += ("-o", "log.cleaner.backoff.ms=1", "-o", "log.flush.offset.checkpoint.interval.ms=1")

UPKEEP = {"scheduler", "flush", "views", "sealed", "cleaner-0", "linger", "behind"}
"""The threads that change something without being asked."""


def furnish(backing: Path, *, crash: bool) -> None:
    """A store with much to do for upkeep; after a crash also for a recovery."""
    store = Store.open(backing, create=True)
    old = store.create("old", 0, OLD)
    keys = store.create("keys", 0, COMPACTED)
    store.create("empty")
    for number in range(40):
        old.append([Record(b"v" * 200, timestamp=1_600_000_000_000 + number)])
        keys.append([Record(b"%d" % number * 50, b"key-%d" % (number % 3))])
    gone = store.create("gone")
    gone.append(Record(b"gone"))
    store.delete("gone", 0)
    if not crash:
        store.close()
        return
    store.upkeep.checkpoint_recovery_points()
    old.append([Record(b"last", timestamp=1_600_000_001_000)])
    store.abandon()
    active = max((backing / "logs" / "old-0").glob("*.log"))
    with active.open("ab") as file:
        file.write(b"half a batch")
    for name in ("00000000000000000000.timeindex", "00000000000000000000.index"):
        (backing / "logs" / "old-0" / name).unlink()
    (backing / "logs" / "old-0" / "00000000000000000003.log.deleted").write_bytes(b"x")
    (backing / "logs" / "keys-0" / "leader-epoch-checkpoint").write_bytes(b"not a checkpoint")
    (backing / "logs" / "replication-offset-checkpoint").write_bytes(b"0\n1\nnobody 0 5\n")
    (backing / "staging" / "old").mkdir()
    (backing / "staging" / "old" / "committed").write_bytes(b'"a"\n"half')
    (backing / "staging" / "nobody").mkdir()


@contextmanager
def read_only(place: Path, backing: Path, *options: str) -> Iterator[DaemonMount]:
    """A read-only mount of a backing directory, which nothing is expected of but warnings."""
    mount = DaemonMount(place)
    mount.backing = backing
    try:
        mount.start("--read-only", *options)
        with mount.watched():
            yield mount
        assert mount.stop() == 0
    finally:
        mount.clear()


def test_a_store_is_made_where_that_is_asked_for(tmp_path: Path) -> None:
    """K1. `topicfs init BACKING` and `topicfs mount --create` make a store in a directory that is empty or not
    there; `topicfs mount` of what is no store, such as a directory with a `logs` that holds something else, is refused
    in words that name both, and makes nothing.
    """
    for name in ("missing", "empty"):
        place = tmp_path / name
        if name == "empty":
            place.mkdir()
        before = held(tmp_path)
        code, said = topicfs("mount", place, tmp_path / "mnt")
        assert code == 1
        assert f"`topicfs init {place}` makes a store there, and so does `topicfs mount --create`" in said
        assert held(tmp_path) == before
        assert topicfs("init", place) == (0, "")
        assert sorted(os.listdir(place)) == ["logs"]
        code, said = topicfs("init", place)
        assert code == 1
        assert "is a store already" in said
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "letter.txt").write_text("Dear")
    (tmp_path / "program" / "logs").mkdir(parents=True)
    (tmp_path / "program" / "logs" / "server.log").write_text("started")
    before = held(tmp_path)
    for place, words in (
        (foreign, "a directory with something else in it"),
        (tmp_path / "program", "one with something else than partitions in its logs/"),
    ):
        for arguments in (("init", place), ("mount", place, tmp_path / "mnt")):
            code, said = topicfs(*arguments)
            assert code == 1
            assert words in said
    assert topicfs("mount", "--create", foreign, tmp_path / "mnt")[0] == 1
    assert topicfs("mount", "--read-only", foreign, tmp_path / "mnt")[0] == 1
    assert topicfs("mount", "--read-only", "--create", tmp_path / "new", tmp_path / "mnt")[0] == 2
    assert held(tmp_path) == before
    with own_mount(tmp_path) as mount:  # with --create
        assert (mount.new()).is_dir()
        assert "recover" not in mount.said()
    assert topicfs("mount", mount.backing / "logs", tmp_path / "other")[0] == 1


def test_a_log_directory_is_not_made_a_store_of(tmp_path: Path) -> None:
    """K2. A broker's log directory is never made a store of: `topicfs init`, `--create` and a mount that may write
    refuse it, say how it is adopted, and leave nothing in it.
    """
    furnish(tmp_path / "store", crash=False)
    whole, bare = tmp_path / "kafka-logs", tmp_path / "bare"
    (tmp_path / "store" / "logs").rename(whole)
    bare.mkdir()
    shutil.copytree(whole / "old-0", bare / "old-0")
    for logs in (whole, bare):
        before = held(tmp_path)
        commands: list[tuple[str | Path, ...]] = [("init", logs), ("mount", logs, tmp_path / "mnt")]
        commands.append(("mount", "--create", logs, tmp_path / "mnt"))
        for arguments in commands:
            code, said = topicfs(*arguments)
            assert code == 1
            assert "found a Kafka log directory" in said
            assert f"move or copy {logs} into that as logs" in said
        assert held(tmp_path) == before
    # As the words say.
    (tmp_path / "adopted").mkdir()
    whole.rename(tmp_path / "adopted" / "logs")
    with Store.open(tmp_path / "adopted") as store:
        assert store.partition("old", 0).end_offset == 40


def test_settings_are_looked_at_first(tmp_path: Path) -> None:
    """K3. Options, settings and the mount point are looked at before anything is made: one that is refused leaves no
    trace. A store that was made for a mount which then fails is taken back.
    """
    (tmp_path / "prepared").mkdir()
    (tmp_path / "prepared" / "server.properties").write_text("linger.ms=soon\n")
    before = held(tmp_path)
    new, mnt = tmp_path / "new", tmp_path / "mnt"
    for backing, options in (
        (new, ("-o", "foo=bar")),
        (new, ("-o", "linger.ms=soon")),
        (new, ("-o", "num.partitons=3")),
        (new, ("-o", "linger.ms")),
        (tmp_path / "prepared", ()),
        (new, ("--nonsense",)),
    ):
        code, said = topicfs("mount", "--create", *options, backing, mnt)
        assert code != 0, (options, said)
        assert held(tmp_path) == before, options
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    for point in (tmp_path / "full", tmp_path / "full" / "x" / "y", tmp_path / "a" / ("b" * 256)):
        assert topicfs("mount", "--create", new, point)[0] == 1
        assert not new.exists()
    (tmp_path / "prepared" / "server.properties").write_text("")
    limited = ["prlimit", "--nofile=200", sys.executable, "-m", "topicfs.mountd.cli", "mount", "--create"]
    for backing in (new, tmp_path / "prepared"):
        done = subprocess.run([*limited, backing, mnt], capture_output=True, text=True, check=False)
        assert done.returncode == 1
        assert "256" in done.stderr, "too few files may be open, which shows when the store is opened"
    assert sorted(os.listdir(tmp_path)) == ["full", "prepared"]
    assert os.listdir(tmp_path / "prepared") == ["server.properties"]


@pytest.mark.parametrize("crash", [False, True], ids=["stopped", "crashed"])
def test_a_read_only_mount_changes_nothing(tmp_path: Path, crash: bool) -> None:
    """K4. A mount made with `--read-only` changes not a byte, a name or a time of modification under BACKING, also
    after a crash and whatever is due to retention and compaction; nothing is locked there, and its log is elsewhere.
    Times of access change as with any reader, unless that file system is mounted with `noatime`.
    """
    backing = tmp_path / "store"
    furnish(backing, crash=crash)
    for path in (backing / "logs/old-0").glob("*.log"):
        os.utime(path, ns=(0, path.stat().st_mtime_ns))  # relatime: so the next reader sets it
    is_noted = not os.statvfs(backing).f_flag & os.ST_NOATIME
    before = held(backing)
    with read_only(tmp_path, backing, *AT_ONCE) as mount:
        process = mount.process
        assert process is not None
        end = time.monotonic() + 3
        first = look_everywhere(mount)
        assert first["old-0/log.txt"].count(b"\n") == (41 if crash else 40)
        assert first["keys-0/log.txt"].count(b"\n") == 40
        assert first["empty-0/log.txt"] == b""
        while (
            time.monotonic() < end
        ):  # a mount that may write has removed all by now, as K2's sibling below shows
            time.sleep(0.1)
        assert look_everywhere(mount) == first
        assert not UPKEEP & set(mount.steer("threads", mount / "empty-0"))
        assert held(backing) == before
        targets = [os.readlink(each) for each in Path(f"/proc/{process.pid}/fd").iterdir()]
        assert not [target for target in targets if target.endswith((".lock", "topicfs.log"))]
    assert held(backing) == before
    assert is_noted == any(path.stat().st_atime_ns for path in (backing / "logs/old-0").glob("*.log"))
    assert list((tmp_path / "state" / "topicfs").glob("*mnt.log"))
    with own_mount_of(tmp_path, backing) as mount:  # the same options, without --read-only
        end = time.monotonic() + 20
        while (mount / "old-0/log.txt").stat().st_size and time.monotonic() < end:
            time.sleep(0.05)
        assert (mount / "old-0/log.txt").read_bytes() == b""
        assert set(mount.steer("threads", mount / "empty-0")) >= UPKEEP


@contextmanager
def own_mount_of(place: Path, backing: Path) -> Iterator[DaemonMount]:
    mount = DaemonMount(place)
    mount.backing = backing
    try:
        mount.start(*AT_ONCE)
        with mount.watched():
            yield mount
        assert mount.stop() == 0
    finally:
        mount.clear()


def test_what_a_recovery_would_do_is_done_in_memory(tmp_path: Path) -> None:
    """K5. What a recovery would cut off does not show in it, and what a recovery would rebuild is rebuilt in memory:
    after `kill -9` every record that was acknowledged is there.
    """
    with_writer = DaemonMount(tmp_path)
    with_writer.configure("small", internal_segment_bytes=2000)
    try:
        with_writer.start()
        partition = with_writer.new("small")
        for number in range(300):
            append(partition / "log.jsonl", b'{"key":"%d","value":"line %d"}\n' % (number % 7, number))
        os.mkdir(with_writer / "topics/small/inbox/batch")
        (with_writer / "topics/small/inbox/batch/a.txt").write_bytes(b"whole\n" * 10)
        (with_writer / "topics/small/inbox/batch/_SUCCESS").touch()
        expected = (partition / "log.jsonl").read_bytes()
        with_writer.kill()
    finally:
        with_writer.clear()
    logs = with_writer.backing / "logs" / partition.name
    for path in (*logs.glob("*.index"), *logs.glob("*.timeindex")):
        path.write_bytes(path.read_bytes()[:-3] if path.stat().st_size > 3 else b"\1\2\3\4\5")
    with max(logs.glob("*.log")).open("ab") as file:
        file.write(bytes(100))
    (with_writer.backing / "logs" / "recovery-point-offset-checkpoint").unlink(missing_ok=True)
    before = held(with_writer.backing)
    with read_only(tmp_path, with_writer.backing) as mount:
        shown = mount / partition.name
        assert (shown / "log.jsonl").read_bytes() == expected
        assert (shown / "offset/250").read_bytes() == b"line 250"
        assert (shown / "time/last-1h.jsonl").read_bytes() == expected
        assert (
            b"".join(
                (shown / "segments" / name).read_bytes()
                for name in sorted(os.listdir(shown / "segments"))
                if name.endswith(".jsonl")
            )
            == expected
        )
    assert held(with_writer.backing) == before
    with own_mount_of(tmp_path, with_writer.backing) as mount:  # which recovers
        assert (mount / partition.name / "log.jsonl").read_bytes() == expected


def test_a_read_only_mount_of_a_read_only_file_system(tmp_path: Path) -> None:
    """K6. It works where BACKING is on a file system that is mounted read-only."""
    furnish(tmp_path / "store", crash=True)
    bound = tmp_path / "bound"
    bound.mkdir()
    done = subprocess.run(["mount", "--bind", tmp_path / "store", bound], check=False, capture_output=True)
    if done.returncode:
        pytest.skip(f"nothing can be mounted here: {done.stderr.decode().strip()}")
    try:
        subprocess.run(["mount", "-o", "remount,ro,bind", bound], check=True)
        with pytest.raises(OSError, match="Read-only file system"):
            (bound / "x").touch()
        with read_only(tmp_path, bound) as mount:
            assert (mount / "old-0/log.txt").read_bytes().endswith(b"\nlast\n")
            assert (mount / "keys-0/offset/39").read_bytes() == b"39" * 50
        code, said = topicfs("mount", bound, tmp_path / "mnt")
        assert code == 1
        assert "Read-only file system" in said
    finally:
        subprocess.run(["umount", "-l", bound], check=True)


def test_a_read_only_mount_beside_a_daemon(tmp_path: Path) -> None:
    """K7. It works beside a daemon or a broker that has the directory open, and follows it: within a second files,
    sizes, look-ups, `status.json`, `tail -f` and `follow.<fmt>` show what was appended, removed and compacted there,
    and topics that were made and deleted. Half a batch does not show. It changes nothing for that daemon: neither its
    writers nor its stop.
    """
    for name in ("writer", "reader"):
        (tmp_path / name).mkdir()
    with own_mount(tmp_path / "writer") as writer:
        partition = writer.new()
        topic = partition.name.rpartition("-")[0]
        append(partition / "log.txt", b"one\n")
        with read_only(tmp_path / "reader", writer.backing) as reader:
            shown = reader / partition.name
            assert (shown / "log.txt").read_bytes() == b"one\n"
            with (
                (shown / "follow.txt").open("rb", buffering=0) as follow,
                (shown / "log.txt").open("rb", buffering=0) as tail,
            ):
                assert tail.read(100) == b"one\n"
                append(partition / "log.txt", b"two\n")
                assert (shown / "log.txt").stat().st_size == os.fstat(tail.fileno()).st_size == 8
                assert tail.read(100) == b"two\n"
                assert follow.read(100) == b"two\n"
                later = threading.Timer(0.3, append, (partition / "log.txt", b"three\n"))
                later.start()
                assert follow.read(100) == b"three\n"
                later.join()
            assert (shown / "offset/2").read_bytes() == b"three"
            assert (shown / "time/last-1h.txt").read_bytes() == b"one\ntwo\nthree\n"
            (partition / "start").write_text("2\n")
            eventually(
                lambda: json.loads((shown / "status.json").read_bytes())["start_offset"] == 2,
                "the start offset",
            )
            assert (shown / "log.txt").read_bytes() == b"three\n"
            assert not (shown / "offset/1").exists()
            os.mkdir(writer / "later-0")
            eventually((reader / "later-0").exists, "a new topic")
            append(writer / "later-0/log.txt", b"new\n")
            assert (reader / "later-0/log.txt").read_bytes() == b"new\n"
            os.setxattr(writer / "topics", "user.topicfs.delete", b"later")
            eventually(lambda: "later-0" not in os.listdir(reader.path), "a topic that goes")
            os.mkdir(writer / "later-0")
            append(writer / "later-0/log.txt", b"again\n")
            eventually((reader / "later-0").exists, "the topic that was made again")
            assert (reader / "later-0/log.txt").read_bytes() == b"again\n"
            assert sorted(os.listdir(reader / "topics")) == sorted([topic, "later"])
        assert (partition / "log.txt").read_bytes() == b"three\n"
    assert (writer.backing / "logs" / ".kafka_cleanshutdown").exists()


def test_a_log_directory_by_itself(tmp_path: Path) -> None:
    """K8. It shows a log directory by itself, as a broker has it under `log.dirs`, as it stands."""
    furnish(tmp_path / "store", crash=True)
    logs = tmp_path / "kafka-logs"
    (tmp_path / "store" / "logs").rename(logs)
    before = held(logs)
    with read_only(tmp_path, logs) as mount:
        assert (mount / "old-0/log.txt").read_bytes().endswith(b"\nlast\n")
        assert (mount / "topics/keys/config").read_bytes()
        look_everywhere(mount)
        code, said = topicfs("plan", mount.path)
        assert code == 0, said
        assert "old-0" in said
    assert held(logs) == before
    assert topicfs("plan", logs)[0] == 0
    assert held(logs) == before


def test_a_brokers_server_properties(tmp_path: Path) -> None:
    """K9. A broker's `server.properties` is taken as it is: names that mean nothing here are passed over, and named
    in the log. A name that is likely one of ours misspelt is refused.
    """
    backing = tmp_path / "backing"
    backing.mkdir()
    properties = backing / "server.properties"
    properties.write_text(
        "node.id=1\nlisteners=PLAINTEXT://:9092\nlog.dirs=/var/kafka\nlog.retention.hours=1\n"
    )
    with own_mount(tmp_path, keeps=False) as mount:
        partition = mount.new()
        config = (mount / "topics" / partition.name.rpartition("-")[0] / "config").read_text()
        assert "retention.ms=3600000 " in config
        assert "passed over, as they mean nothing here: listeners, log.dirs, node.id" in mount.said()
    properties.write_text("node.id=1\nlog.retention.hour=1\n")
    before = held(backing)
    code, said = topicfs("mount", backing, tmp_path / "mnt")
    assert code == 1
    assert "did you mean log.retention.hours?" in said
    assert held(backing) == before


def test_several_log_directories(tmp_path: Path) -> None:
    """K10. All log directories of one broker show together where they are named before the mount point: `topicfs
    mount --read-only DIRECTORY… MOUNT`. A partition that its broker is moving from one to the other shows once; of one
    that is in two of them that in the first is shown, and the log names both. `topicfs plan`, `sql`, `verify` and
    `dump`, `topicfs.arrow` and Spark, given the mount, see all of them.
    """
    furnish(tmp_path / "store", crash=True)
    one, two = tmp_path / "store" / "logs", tmp_path / "two"
    two.mkdir()
    (one / "keys-0").rename(two / "keys-0")
    shutil.copytree(one / "old-0", two / f"old-0.{'0' * 32}-future")
    shutil.copytree(one / "empty-0", two / "empty-0")
    before = held(tmp_path / "store"), held(two)
    with read_only(tmp_path, two, str(one)) as mount:
        assert (mount / "old-0/log.txt").read_bytes().endswith(b"\nlast\n")
        assert (mount / "keys-0/offset/39").read_bytes() == b"39" * 50
        assert f"empty-0 is in {one} and in {two}: that in {one} is shown" in mount.said()
        names = ["empty-0", "keys-0", "old-0"]
        assert sorted(each for each in os.listdir(mount.path) if each.endswith("-0")) == names
        # `test_two_directories` and `test_two_directories_mounted` look at each of the others.
        plans = json.loads(topicfs("plan", "--json", mount.path)[1])
        assert [each["partition"] for each in plans] == names
    assert (held(tmp_path / "store"), held(two)) == before
    assert topicfs("mount", one, two, tmp_path / "mnt")[0] == 2
    assert topicfs("mount", "--read-only", one, one, tmp_path / "mnt")[0] == 1


def test_what_is_removed_under_an_open_file(tmp_path: Path) -> None:
    """K11. Bytes never shift under who reads a read-only mount: what another process removed or rewrote under an open
    file is read on, if the mount finds it open or under its name with `.deleted` within a second; else it is EIO, as is
    a topic that was deleted, and what follows where a log was cut.
    """
    for name in ("writer", "reader"):
        (tmp_path / name).mkdir()
    settings = tmp_path / "writer" / "backing" / "topics"
    settings.mkdir(parents=True)
    (settings / "t.properties").write_text("internal.segment.bytes=2000\n")
    with own_mount(tmp_path / "writer") as writer:
        os.mkdir(writer / "t-0")
        for number in range(200):
            append(writer / "t-0/log.txt", b"line %d\n" % number)
        expected = (writer / "t-0/log.txt").read_bytes()
        with read_only(tmp_path / "reader", writer.backing) as reader:
            with (reader / "t-0/log.txt").open("rb", buffering=0) as opened:
                assert opened.read(7) == b"line 0\n"
                writer.steer("raise_start", writer / "t-0", 190)
                # The mount looks once a second at what open files show, and at once at what somebody asks for.
                eventually(lambda: not (reader / "t-0/offset/10").exists(), "the removal")
                assert writer.steer("sweep", writer / "t-0")
                first = min(int(path.stem) for path in (writer.backing / "logs/t-0").glob("*.log*"))
                assert opened.read(100_000) == expected[7:]
            assert first > 100
            assert (reader / "t-0/log.txt").read_bytes() == expected[expected.index(b"line %d\n" % first) :]
            with (reader / "t-0/log.txt").open("rb", buffering=0) as opened:
                os.setxattr(writer / "topics", "user.topicfs.delete", b"t")
                with pytest.raises(OSError, match="Input/output error"):
                    opened.read(100)


def test_the_end_of_a_log_with_replicas_elsewhere(tmp_path: Path) -> None:
    """K12. Where a cluster's metadata beside the partitions says that other brokers have replicas of one, its records
    show up to the high watermark that its broker last wrote down, which it does each 5 s; else up to the end of the
    log. In both cases records of open transactions are hidden.
    """
    with Store.open(tmp_path / "store", create=True) as store:
        for name in ("a", "b"):
            written = store.create(name, 0)
            for number in range(5):
                written.append(Record(b"%d" % number))
            written.append(Record(b"open"), Producer(1, 0, 0, transactional=True))
        store.abandon()
    logs = tmp_path / "store" / "logs"
    for name in ("a", "b"):
        (logs / f"{name}-0/partition.metadata").write_text(f"version: 0\ntopic_id: {shown(name)}")
    write(logs, topic("a"), topic("b"), partition("a", 0), partition("b", 0), changed("a", 0, 3))
    (logs / "replication-offset-checkpoint").write_text("0\n2\na 0 2\nb 0 2\n")
    with read_only(tmp_path, logs) as mount:
        assert (mount / "a-0/log.txt").read_bytes() == b"0\n1\n"
        assert (mount / "b-0/log.txt").read_bytes() == b"0\n1\n2\n3\n4\n"
        (logs / "replication-offset-checkpoint").write_text("0\n2\na 0 6\nb 0 2\n")
        eventually(lambda: (mount / "a-0/log.txt").read_bytes() == b"0\n1\n2\n3\n4\n", "the high watermark")


def test_a_terabyte_of_many_partitions(tmp_path: Path) -> None:
    """K13. A mount of many partitions reads none of them: each is read when it is first looked at, and then only what
    comes. Size maps are kept in `$XDG_CACHE_HOME/topicfs/views` or `~/.cache/topicfs/views`, 256 MiB at most for all
    read-only mounts, and may be removed at any time; where that cannot be written they are in memory.
    """
    with Store.open(tmp_path / "store", create=True) as store:
        written = store.create("t", 0)
        for number in range(20):
            written.append(Record(b"%d" % number))
            if number == 9:
                written.roll()
        store.abandon()
    logs = tmp_path / "store" / "logs"
    for number in range(1, 1000):
        shutil.copytree(logs / "t-0", logs / f"t-{number}")
        for path in (logs / f"t-{number}").glob("*.log"):
            os.truncate(path, 1 << 29)
            # What was changed within the last two seconds is looked at again and again.
            os.utime(path, (time.time() - 60,) * 2)
    with read_only(tmp_path, logs) as mount:
        assert mount.process is not None
        assert taken(mount.process.pid)["VmRSS"] < 250_000
        assert taken(mount.process.pid)["rchar"] < 100 << 20
        names = [
            entry.name for entry in os.scandir(mount.path) if entry.stat().st_mtime and entry.name[:2] == "t-"
        ]
        assert len(names) == 1000
        before = taken(mount.process.pid)["rchar"]
        assert (mount / "t-77/follow.txt").stat().st_size == 0
        assert (mount / "t-77/offset/3").read_bytes() == b"3"
        assert (mount / "t-0/log.txt").read_bytes() == b"".join(b"%d\n" % number for number in range(20))
        assert taken(mount.process.pid)["rchar"] - before < 32 << 20
        assert taken(mount.process.pid)["VmRSS"] < 250_000
        eventually(lambda: [*tmp_path.glob("cache/topicfs/views/*/t-0/*.txt.map")], "a size map")
    assert not list((tmp_path / "store").rglob("*.map"))


def test_a_controllers_log(tmp_path: Path) -> None:
    """K14. A controller's log, `__cluster_metadata-0`, shows in a mount made with `--read-only`, and in no other: up to
    its end, as a controller writes down nowhere how far it is committed. Where several controllers vote, its last
    records may be taken back. Its snapshots do not show.
    """
    backing = tmp_path / "backing"
    with Store.open(backing, create=True) as store:
        store.create("t", 0)
    logs = backing / "logs"
    write(logs, topic("a"), NO_OP)
    (logs / "__cluster_metadata-0" / f"{1:020}-{1:010}.checkpoint").write_bytes(b"a snapshot")
    with read_only(tmp_path, logs) as mount:
        rows = (mount / "__cluster_metadata-0/log.jsonl").read_bytes().splitlines()
        assert [json.loads(row)["value"]["type"] for row in rows] == ["TOPIC_RECORD", "NO_OP_RECORD"]
        assert len(os.listdir(mount / "__cluster_metadata-0/segments")) == len(
            os.listdir(mount / "t-0/segments")
        )
        assert topicfs("sql", mount.path, "SELECT * FROM __cluster_metadata")[0] != 0
        look_everywhere(mount)
    (logs / "__cluster_metadata-0" / f"{1:020}-{1:010}.checkpoint").unlink()
    with own_mount_of(tmp_path, backing) as mount:
        assert "t-0" in os.listdir(mount.path)
        assert "__cluster_metadata-0" not in os.listdir(mount.path)
        assert "__cluster_metadata" not in os.listdir(mount / "topics")


def test_the_version_of_a_store(tmp_path: Path) -> None:
    """K15. `BACKING/layout.properties` holds the version of what topicfs keeps beside `logs`. A mount brings a store of
    an older version up to its own; a store of a newer one is refused in words and stays as it is. With `--read-only`
    its logs show.
    """
    backing, point = tmp_path / "backing", tmp_path / "mount"
    point.mkdir()
    with Store.open(backing, create=True) as store:
        store.create("t", 0).append_lines(b"one\n")
    layout = backing / "layout.properties"
    layout.unlink()
    with own_mount_of(tmp_path, backing) as mount:
        assert (mount / "t-0/log.txt").read_bytes() == b"one\n"
        assert layout.read_text().endswith("\nversion=1\n")
    layout.write_text("version=2\n")
    before = held(backing / "logs" / "t-0")
    code, said = topicfs("mount", backing, point)
    assert code != 0
    assert f"{layout}: version: expected 1 or less, found '2'" in said
    assert held(backing / "logs" / "t-0") == before
    assert (backing / "logs" / ".kafka_cleanshutdown").exists()
    with read_only(tmp_path, backing) as mount:
        assert (mount / "t-0/log.txt").read_bytes() == b"one\n"
    assert layout.read_text() == "version=2\n"


def taken(pid: int) -> dict[str, int]:
    """What a process has taken: KiB of memory, and bytes that it has read."""
    told = Path(f"/proc/{pid}/status").read_text() + Path(f"/proc/{pid}/io").read_text()
    fields = (line.partition(":") for line in told.splitlines())
    return {name: int(value.split()[0]) for name, _, value in fields if name in ("VmRSS", "rchar")}
