"""`fs/SEMANTICS.md`: keys."""

from __future__ import annotations

import errno
import json
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from pathlib import Path

from daemon_mount import DaemonMount, append, fill, full_disk, opened, own_mount, refused
from shell import output

pytest_plugins = ["shared_mount"]


def compacted(mount: DaemonMount, topic: str, count: int = 1, settings: str = "") -> Path:
    """A compacted topic of its own, with so many partitions. The first of them."""
    for number in range(count):
        os.mkdir(mount / f"{topic}-{number}")
    (mount / f"topics/{topic}/config").write_text(f"cleanup.policy=compact\n{settings}")
    return mount / f"{topic}-0"


def records(partition: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (partition / "log.jsonl").read_bytes().splitlines()]


def test_where_keys_are(mount: DaemonMount) -> None:
    """V1. Where `cleanup.policy` has `compact`, a partition and its topic have `keys`, always a link to `views/keys`,
    and in it a file for each key whose last record is no tombstone; elsewhere `keys` is ENOENT.
    """
    partition, plain = compacted(mount, "seenkeys"), mount.new("plain")
    append(partition / "log.tsv", b"a\t1\nb\t2\na\t3\nc\t4\nc\t\\N\n")
    assert os.readlink(partition / "keys") == "views/keys"
    assert os.listdir(partition / "keys") == ["b", "a"]
    assert (partition / "keys/a").read_bytes() == b"3"
    with refused(errno.ENOENT):
        (partition / "keys/c").read_bytes()
    assert "keys" in os.listdir(partition)
    assert "keys" not in os.listdir(plain)
    with refused(errno.ENOENT):
        os.listdir(plain / "keys")
    topic = mount / "topics" / partition.name.rpartition("-")[0]
    assert os.readlink(topic / "keys") == "views/keys"
    assert (topic / "keys/b").read_bytes() == b"2"


def test_setting(mount: DaemonMount) -> None:
    """V2. What is written to a key's file between open and close is one record, whose value is the whole of it: `>` and
    `cp` set it, `>>` adds to what it was, and an empty file is an empty value. The record has no headers, and the time
    at which it was closed.
    """
    partition = mount.new("compacted")
    output("echo one > a && echo two >> a && : > empty && cp /etc/hostname b", partition / "keys")
    assert [(each["key"], each["value"]) for each in records(partition)] == [
        ("a", "one\n"),
        ("a", "one\ntwo\n"),
        ("empty", ""),
        ("b", Path("/etc/hostname").read_text()),
    ]
    large = os.urandom(300_000)
    (partition / "keys/large").write_bytes(large)
    assert (partition / "keys/large").read_bytes() == large
    with opened(partition / "keys/a", os.O_RDWR) as file:
        os.pwrite(file, b"ONE", 0)
        assert (partition / "keys/a").read_bytes() == b"one\ntwo\n"
    assert (partition / "keys/a").read_bytes() == b"ONE\ntwo\n"
    os.truncate(partition / "keys/a", 3)
    assert (partition / "keys/a").read_bytes() == b"ONE"
    assert len(records(partition)) == 7


def test_removing(mount: DaemonMount) -> None:
    """V3. `rm` appends a tombstone; the key is gone, and can be set again. `rm -r` of a partition or a topic removes no
    key.
    """
    partition = mount.new("compacted")
    (partition / "keys/a").write_text("1")
    (partition / "keys/b").write_text("2")
    os.unlink(partition / "keys/a")
    assert records(partition)[-1]["value"] is None
    assert os.listdir(partition / "keys") == ["b"]
    with refused(errno.ENOENT):
        os.unlink(partition / "keys/a")
    subprocess.run(["rm", "-rf", partition], check=False, capture_output=True)
    assert os.listdir(partition / "keys") == ["b"]
    assert len(records(partition)) == 3
    (partition / "keys/a").write_text("3")
    assert (partition / "keys/a").read_text() == "3"


def test_read_your_writes(mount: DaemonMount) -> None:
    """V4. After close a key's file has the new value, whoever asks and whichever way it was set; a file that was open
    before keeps the value that it was opened on, and so does a mapping of it.
    """
    partition = compacted(mount, "toldkeys")
    topic = mount / "topics/toldkeys"
    for number in range(20):
        output(f"echo {number} > keys/k", partition)
        with opened(partition / "keys/k") as file:
            append(topic / "in.jsonl", b'{"key":"k","value":"in %d"}\n' % number)
            assert (partition / "keys/k").read_text() == f"in {number}"
            assert os.pread(file, 100, 0) == b"%d\n" % number
            assert os.fstat(file).st_size == len(f"{number}\n")


def test_names(mount: DaemonMount) -> None:
    """V5. A name is the key's bytes. In it `%` and two hexadecimal digits stand for `/`, `%`, control characters, bytes
    that are not UTF-8, and `.` or `_` at its beginning; a colon is listed as `%3A`, and may be given as it is. `%`
    alone is the empty key.
    """
    partition = mount.new("compacted")
    keys = [
        b"apples",
        b"a/b",
        b"100%",
        b"user:42",
        b".hidden",
        b"_x",
        b"a\0\n",
        b"\xff\xfe",
        "ä€".encode(),
        b"",
        b"a.b",
    ]
    for key in keys:
        name = {b"a/b": "a%2Fb", b"100%": "100%25", b".hidden": "%2Ehidden", b"_x": "%5Fx", b"": "%"}.get(key)
        name = name or {b"a\0\n": "a%00%0A", b"\xff\xfe": "%FF%FE"}.get(key) or os.fsdecode(key)
        (partition / "keys" / name).write_bytes(b"of " + key)
        assert os.getxattr(partition / "keys" / name, "user.topicfs.key") == key
    listed = os.listdir(partition / "keys")
    expected = [
        "apples",
        "a%2Fb",
        "100%25",
        "user%3A42",
        "%2Ehidden",
        "%5Fx",
        "a%00%0A",
        "%FF%FE",
        "ä€",
        "%",
        "a.b",
    ]
    assert listed == expected
    assert [(partition / "keys" / name).read_bytes() for name in listed] == [b"of " + key for key in keys]


def test_long_names(mount: DaemonMount) -> None:
    """V6. A key whose name would have more than 255 bytes has the beginning of it, `%~` and 32 digits of its hash as
    its name; it is looked for in all keys. It can be set again and removed, and made through `in.jsonl` and `log.jsonl`
    only: EINVAL, and by N13 ENAMETOOLONG.
    """
    partition = mount.new("compacted")
    key = "é" * 200
    append(partition / "log.jsonl", json.dumps({"key": key, "value": "1"}).encode() + b"\n")
    (name,) = os.listdir(partition / "keys")
    assert len(os.fsencode(name)) <= 255
    assert name.startswith("é" * 90)
    (partition / "keys" / name).write_text("2")
    assert (partition / "keys" / name).read_text() == "2"
    assert records(partition)[-1]["key"] == key
    os.unlink(partition / "keys" / name)
    assert os.listdir(partition / "keys") == []
    with refused(errno.EINVAL):
        (partition / "keys" / name).write_text("3")
    for name, number in (
        (":" * 100, errno.EINVAL),
        ("a" * 256, errno.ENAMETOOLONG),
        ("%61" * 86, errno.ENAMETOOLONG),
    ):
        with refused(number):
            (partition / "keys" / name).write_text("4")
    assert os.listdir(partition / "keys") == []
    (partition / "keys" / ("a" * 255)).write_text("5")
    (partition / "keys" / f"{'a' * 255}%@{len(records(partition)) - 1}").write_text("6")
    assert os.listdir(partition / "keys") == ["a" * 255]


def test_refused_names(mount: DaemonMount) -> None:
    """V7. Making a name that begins with `.` or `_` is EPERM, as editors and `rsync` make such files beside the one
    that they write; any other that is no name of a key is EINVAL. mkdir, mv and links are EPERM.
    """
    partition = mount.new("compacted")
    for name, number in (
        (".a.swp", errno.EPERM),
        ("_a", errno.EPERM),
        ("50%", errno.EINVAL),
        ("a%@x", errno.EINVAL),
    ):
        with refused(number):
            (partition / "keys" / name).write_text("v")
        with refused(errno.ENOENT):
            (partition / "keys" / name).read_text()
    (partition / "keys/a").write_text("v")
    for change in (
        lambda: os.mkdir(partition / "keys/d"),
        lambda: os.rename(partition / "keys/a", partition / "keys/b"),
        lambda: os.link(partition / "keys/a", partition / "keys/b"),
        lambda: os.symlink("a", partition / "keys/b"),
    ):
        with refused(errno.EPERM):
            change()
    assert len(records(partition)) == 1


def test_attributes(mount: DaemonMount) -> None:
    """V8. A key's file has the time of its record as mtime, and the attributes `user.topicfs.key`,
    `user.topicfs.offset`, `user.topicfs.partition`, and those of a view. Each record of a key has another inode, and an
    open file the attributes of the record that it was opened on.
    """
    partition = mount.new("compacted")
    append(partition / "log.jsonl", b'{"key":"a","value":"1","timestamp":1600000000123}\n')
    file = partition / "keys/a"
    first = file.stat()
    assert first.st_mtime_ns == 1600000000123 * 1_000_000
    names = ("key", "offset", "partition", "first_offset", "next_offset", "max_timestamp")
    values = [os.getxattr(file, f"user.topicfs.{name}") for name in names]
    assert values == [b"a", b"0", partition.name.rpartition("-")[2].encode(), b"0", b"1", b"1600000000123"]
    file.write_text("2")
    assert os.getxattr(file, "user.topicfs.offset") == b"1"
    assert file.stat().st_ino != first.st_ino
    with opened(file) as before, opened(file, os.O_RDWR) as setting:
        file.write_text("3")
        with opened(file) as behind:
            for each, value, offset in ((before, b"2", b"1"), (setting, b"2", b"1"), (behind, b"3", b"2")):
                assert os.pread(each, 10, 0) == value
                assert os.getxattr(each, "user.topicfs.offset") == offset
                assert os.getxattr(each, "user.topicfs.next_offset") == b"%d" % (int(offset) + 1)
                assert "user.topicfs.offset" in os.listxattr(each)
        assert os.getxattr(file, "user.topicfs.offset") == b"2"


def test_optimistic_updates(mount: DaemonMount) -> None:
    """V9. `keys/<key>%@<offset>` is the key as long as its last record has that offset: reading another is ENOENT,
    setting it is ECANCELED at open, write or close, removing it is either, and nothing is appended. `%@none`, and
    O_EXCL, set a key that is not there. Of several that set it so at the same time one does well; any other `>` does
    well also while somebody else removes the key.
    """
    partition = mount.new("compacted")
    keys = partition / "keys"
    (keys / "a%@none").write_text("1")
    assert (keys / "a%@0").read_text() == "1"
    (keys / "a%@0").write_text("2")
    for name in ("a%@0", "a%@none"):
        with refused(errno.ECANCELED):
            (keys / name).write_text("3")
        with refused(errno.ENOENT):
            (keys / name).read_text()
    with refused(errno.EEXIST):
        os.open(keys / "a", os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    first, second = (os.open(keys / "a%@1", os.O_WRONLY | os.O_TRUNC) for _ in range(2))
    os.write(first, b"first")
    os.write(second, b"second")
    os.close(second)
    with refused(errno.ECANCELED):
        os.close(first)
    assert (keys / "a").read_text() == "second"
    made = os.open(keys / "new", os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    (keys / "new").write_text("other")
    with refused(errno.ECANCELED):
        os.write(made, b"mine")
    with refused(errno.ECANCELED):
        os.close(made)
    assert (keys / "new").read_text() == "other"
    with refused(errno.ENOENT):
        os.unlink(keys / "a%@0")
    os.unlink(keys / "a%@2")
    assert [each["value"] for each in records(partition)] == ["1", "2", "second", "other", None]
    (keys / "log").write_text("")
    with ThreadPoolExecutor(5) as pool:
        workers = [pool.submit(add_tokens, keys, f"{number}.") for number in range(3)]
        setting = [pool.submit((keys / "coming").write_text, str(number)) for number in range(100)]
        removing = [pool.submit(remove, keys / "coming") for _ in range(100)]
        tokens = [token for worker in workers for token in worker.result()]
        for each in setting + removing:
            each.result()
    assert sorted((keys / "log").read_text().split()) == sorted(tokens)


def add_tokens(keys: Path, name: str) -> list[str]:
    """Add forty words to a value that others change too, without a lock."""
    tokens = [f"{name}{number}" for number in range(40)]
    for token in tokens:
        while True:
            with opened(keys / "log") as file:
                value, offset = os.read(file, 10_000), os.getxattr(file, "user.topicfs.offset").decode()
            try:
                (keys / f"log%@{offset}").write_bytes(value + f"{token} ".encode())
                break
            except OSError as error:
                if error.errno != errno.ECANCELED:
                    raise
    return tokens


def remove(file: Path) -> None:
    with suppress(FileNotFoundError):
        os.unlink(file)


def test_transactions(mount: DaemonMount) -> None:
    """V10. Records of open and of aborted transactions do not show in `keys`, nor does any behind an open one: C1, C2.
    Whoever opens a key with such a record to keep a part of its value, as `>>` does, waits until that is decided, and
    gets EBUSY after five seconds.
    """
    partition = mount.new("compacted")
    (partition / "keys/a").write_text("1")
    mount.steer("begin_keyed", partition, 7, "a", "of a transaction")
    (partition / "keys/a").write_text("2")
    assert (partition / "keys/a").read_text() == "1"
    mount.steer("end", partition, 7, False)
    assert (partition / "keys/a").read_text() == "2"
    mount.steer("begin_keyed", partition, 8, "b", "of a transaction")
    for name in "ac":
        (partition / "keys" / name).write_text("3")
    with refused(errno.EBUSY):
        os.truncate(partition / "keys/a", 1)
    script = (
        "; ".join(f"(printf 4 >> {name} || echo {name}) &" for name in "abcd") + " touch c || echo c; wait"
    )
    adding = subprocess.Popen(
        ["bash", "-c", script.replace("&;", "&")], cwd=partition / "keys", stdout=subprocess.PIPE
    )
    mount.steer("end", partition, 8, True)
    assert adding.communicate(timeout=60)[0] == b""
    values = [(partition / "keys" / name).read_text() for name in "abcd"]
    assert values == ["34", "of a transaction4", "34", "4"]


def test_listing(mount: DaemonMount) -> None:
    """V11. `ls` lists the keys that were live when the directory was opened, each once, in the order of their last
    records, whatever is set and removed meanwhile; the daemon reads a page of them at a time.
    """
    partition = mount.new("compacted")
    append(partition / "log.tsv", b"".join(b"key%04d\tv\n" % number for number in range(2000)))
    names = []
    with os.scandir(partition / "keys") as listing:
        for number, entry in enumerate(listing):
            names.append(entry.name)
            if number % 200 == 0:
                (partition / f"keys/key{1999 - number:04}").write_text("new")
                (partition / f"keys/other{number}").write_text("new")
                os.unlink(partition / f"keys/key{number + 1:04}")
    assert names == [f"key{number:04}" for number in range(2000)]
    assert len(os.listdir(partition / "keys")) == 2000


def test_topics(mount: DaemonMount) -> None:
    """V12. `topics/<topic>/keys` has the keys of all partitions that lie where Kafka's default partitioner sends them,
    and sets each there; a key that lies in another partition shows in that partition's `keys` only.
    """
    compacted(mount, "spreadkeys", 3)
    topic = mount / "topics/spreadkeys"
    for number in range(30):
        (topic / f"keys/u{number}").write_text(f"{number}")
    assert sorted(os.listdir(topic / "keys")) == sorted(f"u{number}" for number in range(30))
    parts = [set(os.listdir(mount / f"spreadkeys-{number}/keys")) for number in range(3)]
    assert sum(map(len, parts)) == 30
    assert all(parts)
    append(topic / "in.jsonl", b'{"key":"u7","value":"in"}\n')
    assert (topic / "keys/u7").read_text() == "in"
    stranger = next(number for number in range(3) if "u7" not in parts[number])
    (mount / f"spreadkeys-{stranger}/keys/u7").write_text("elsewhere")
    assert (topic / "keys/u7").read_text() == "in"
    assert os.listdir(topic / "keys").count("u7") == 1
    assert (mount / f"spreadkeys-{stranger}/keys/u7").read_text() == "elsewhere"


def test_refused_values(mount: DaemonMount, tmp_path: Path) -> None:
    """V13. A value that is too large is EMSGSIZE at the write(2) or truncate(2) that makes it so, and one that the disk
    has no room for ENOSPC: `echo x > keys/a` fails in every shell then. After a write, fsync or close that failed
    nothing is set that was not set by then; what is written through that open file fails again, and so does its close,
    until it is cut to length 0. Of a file that is open when the mount ends nothing is set that was not set by then.
    """
    partition = compacted(mount, "tightkeys", settings="max.message.bytes=1000\n")
    value = partition / "keys/a"
    value.write_bytes(b"before")
    file = os.open(value, os.O_WRONLY | os.O_TRUNC)
    os.write(file, b"x" * 500)
    for _ in range(2):
        with refused(errno.EMSGSIZE):
            os.write(file, b"y" * 1000)
    with refused(errno.EMSGSIZE):
        os.close(file)
    assert value.read_bytes() == b"before"
    with opened(value, os.O_WRONLY | os.O_TRUNC) as file:
        with refused(errno.EMSGSIZE):
            os.write(file, b"y" * 1000)
        os.ftruncate(file, 0)
        os.write(file, b"anew")
    assert value.read_bytes() == b"anew"
    # What is taken fits: the overhead of a record counts, to the byte.
    largest = 0
    for size in range(900, 1000):
        file = os.open(value, os.O_WRONLY | os.O_TRUNC)
        with suppress(OSError):
            largest = os.write(file, b"z" * size)
        with refused(errno.EMSGSIZE) if largest < size else nullcontext():
            os.close(file)
    assert 900 < largest < 939
    with refused(errno.EMSGSIZE):
        os.truncate(value, 1 << 40)
    assert value.stat().st_size == largest
    with full_disk(tmp_path) as (served, filler):
        served.expect("No space left on device")
        keys = compacted(served, "c") / "keys"
        (keys / "a").write_bytes(b"before")
        fill(filler)
        with refused(errno.ENOSPC):
            for number in range(10_000):
                (keys / "b").write_bytes(b"%1000d" % number)
        assert (keys / "b").read_bytes() == b"%1000d" % (number - 1)
        for command in ("echo important > a", "printf important >> a", ": > a", "{ cat /etc/passwd; } > new"):
            for shell in ("bash", "dash"):
                done = subprocess.run([shell, "-c", command], cwd=keys, capture_output=True, check=False)
                assert done.returncode != 0, (shell, command)
                assert done.stderr
        assert (keys / "a").read_bytes() == b"before"
        assert sorted(os.listdir(keys)) == ["a", "b"]
        filler.unlink()
        output("echo after > a", keys)
        assert (keys / "a").read_bytes() == b"after\n"
    end_under_open_files(tmp_path / "own")


def end_under_open_files(place: Path) -> None:
    """End a mount while programs have keys open that they are about to write, or have written a part of."""
    with own_mount(place) as mount:
        keys = compacted(mount, "c") / "keys"
        for name in ("emptied", "begun", "expected"):
            (keys / name).write_bytes(b"before")
        files = [
            os.open(keys / name, os.O_WRONLY | os.O_TRUNC) for name in ("emptied", "begun", "expected%@2")
        ]
        files += [os.open(keys / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL) for name in ("new", "other")]
        for file in (files[1], files[4]):
            os.write(file, b"a part")
        assert mount.stop() == 0
        for file in files:
            with refused(errno.ENOTCONN, errno.ECONNABORTED):
                os.close(file)
        mount.start()
        assert {name: (keys / name).read_bytes() for name in os.listdir(keys)} == dict.fromkeys(
            ("emptied", "begun", "expected"), b"before"
        )


def test_several_programs(mount: DaemonMount) -> None:
    """V14. Where several programs write through one open file, the close of each sets what has come so far: the last
    one the whole. fsync sets it too, and brings it onto the disk.
    """
    partition = mount.new("compacted")
    output("{ /bin/echo a; /bin/echo b; } > keys/k", partition)
    assert (partition / "keys/k").read_text() == "a\nb\n"
    with opened(partition / "keys/f", os.O_WRONLY | os.O_CREAT) as file:
        os.write(file, b"v")
        os.fsync(file)
        assert (partition / "keys/f").read_text() == "v"
        assert mount.status(partition)["recovery_point"] == len(records(partition))


def test_restarts(tmp_path: Path) -> None:
    """V15. The index of keys goes on from where it was when the mount was taken away; after `kill -9` of the daemon it
    reads what came since it was last written down. It takes 24 bytes a key.
    """
    with own_mount(tmp_path) as mount:
        compacted(mount, "c")
        append(mount / "c-0/log.tsv", b"".join(b"k%d\tv\n" % number for number in range(1000)))
        assert len(os.listdir(mount / "c-0/keys")) == 1000
        mount.stop()
        assert (mount.backing / "views/c-0/keys.checkpoint").stat().st_size < 1024 * 24
        mount.start()
        (mount / "c-0/keys/k7").write_text("new")
        mount.kill()
        mount.start()
        assert (mount / "c-0/keys/k7").read_text() == "new"
        assert len(os.listdir(mount / "c-0/keys")) == 1000


def test_read_only(tmp_path: Path) -> None:
    """V16. On a mount made with `--read-only` keys are read, and follow the log; setting and removing one is EROFS."""
    with own_mount(tmp_path) as mount:
        compacted(mount, "c")
        (mount / "c-0/keys/a").write_text("1")
        mount.stop()
        mount.start("--read-only")
        assert (mount / "c-0/keys/a").read_text() == "1"
        assert os.listdir(mount / "c-0/keys") == ["a"]
        for change in (
            lambda: (mount / "c-0/keys/a").write_text("2"),
            lambda: os.unlink(mount / "c-0/keys/a"),
        ):
            with refused(errno.EROFS):
                change()


def test_attributes_of_a_key(mount: DaemonMount, tmp_path: Path) -> None:
    """V17. `chmod`, `chown` and `touch` of a key do well and change nothing of it, and so does what `cp -a` sets behind
    the value: mode and owner are those of all keys, and the time is that of the record. `touch` of a key that is not
    there sets it, to an empty value.
    """
    partition = mount.new("compacted")
    keys, source = partition / "keys", tmp_path / "a"
    source.write_text("1")
    source.chmod(0o600)
    os.utime(source, (1, 1))
    output(f"cp -a {source} {keys}/a", mount.path)
    before = (keys / "a").stat()
    output(
        f"chmod 600 {keys}/a && chown $(id -u) {keys}/a && touch {keys}/a && touch -d 2020-01-01 {keys}/a",
        mount.path,
    )
    after = (keys / "a").stat()
    assert (after.st_mode, after.st_mtime_ns, after.st_ino) == (
        before.st_mode,
        before.st_mtime_ns,
        before.st_ino,
    )
    output(f"touch {keys}/b", mount.path)
    assert [(each["key"], each["value"]) for each in records(partition)] == [("a", "1"), ("b", "")]
