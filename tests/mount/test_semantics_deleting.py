"""`fs/SEMANTICS.md`: deleting."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from daemon_mount import DaemonMount, append, delete, eventually, opened, own_mount, refused, undelete
from entries import letters, read
from shell import output, run

pytest_plugins = ["shared_mount"]

APPEND = os.O_WRONLY | os.O_APPEND
TOPICFS = Path(sys.executable).with_name("topicfs")


def topicfs(*words: object, answer: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [TOPICFS, *map(str, words)], input=answer, capture_output=True, text=True, check=False, timeout=60
    )


def test_rmdir_deletes_no_records(tmp_path: Path) -> None:
    """G1. rmdir of a partition or a topic that holds a record, committed or not, is ENOTEMPTY, and so it is with
    lines on their way into it or files in a topic's inbox: neither `rmdir --ignore-fail-on-non-empty`, `find -depth
    -type d -exec rmdir {} +`, `rm -rf` nor `rsync -a --delete` deletes records. A copy over a partition may: W7.
    """
    with own_mount(tmp_path) as mount:
        partition = letters(mount)
        topic = mount / "topics/plain"
        (tmp_path / "empty").mkdir()
        for path in (partition, topic):
            with refused(errno.ENOTEMPTY):
                path.rmdir()
        for script in (
            "rmdir --ignore-fail-on-non-empty *-0 topics/*",
            "find . -depth -type d -exec rmdir {} +",
            "rm -r plain-0 topics/plain",
            "rm -rf ./* plain-0",
            f"rsync -a --delete {tmp_path}/empty/ ./",
            f"rsync -a --delete {tmp_path}/empty/ plain-0/",
            f"rsync -a --delete {tmp_path}/empty/ topics/",
        ):
            run(script, mount.path)
            assert read(partition) == b"a\nb\nc\n", script
        assert "expected no records, found offsets 0 to 2" in mount.said()
        # A record that is not committed yet.
        other = mount.new("other")
        mount.steer("write", other, 7, 0, [b"x"])
        assert read(other) == b""
        with refused(errno.ENOTEMPTY):
            other.rmdir()
        # The beginning of a line.
        waiting = mount.new("waiting")
        with opened(waiting / "log.txt", APPEND) as file:
            os.write(file, b"not yet a li")
            with refused(errno.ENOTEMPTY):
                waiting.rmdir()
        eventually(lambda: read(waiting) == b"not yet a li\n", "the last line")
        # What somebody has put into an inbox.
        mount.new("boxed")
        boxed = mount / "topics/boxed"
        (boxed / "inbox/batch").mkdir()
        (boxed / "inbox/batch/x.txt").write_text("x\n")
        for path in (boxed, mount / "boxed-0"):
            with refused(errno.ENOTEMPTY):
                path.rmdir()
        assert (boxed / "inbox/batch/x.txt").read_text() == "x\n"


def test_rmdir_removes_what_is_empty(mount: DaemonMount) -> None:
    """G2. What holds none is removed by rmdir, also when it had some, as after `echo -1 > start`."""
    never, emptied = mount.new(), letters(mount)
    never.rmdir()
    assert not never.exists()
    output("echo -1 > start", emptied)
    emptied.rmdir()
    assert not emptied.exists()
    (mount / "topics/passing").mkdir()
    append(mount / "passing-0/log.txt", b"x\n")
    output("echo -1 > passing-0/start; rmdir topics/passing", mount.path)
    assert not (mount / "passing-0").exists()
    assert not (mount / "topics/passing").exists()


def test_deleting_by_name(tmp_path: Path) -> None:
    """G3. `topicfs delete` tells what a topic or a partition holds, asks, and deletes it, through a mount or in a
    backing directory that is not mounted; through a mount it sets `user.topicfs.delete` to the name, on the
    directory that lists it, which needs the permission to write there.
    """
    with own_mount(tmp_path) as mount:
        partitions = [letters(mount, "orders") for _ in range(2)]
        refusal = topicfs("delete", mount.path, "orders", answer="n\n")
        assert refusal.returncode == 1
        assert "nothing is deleted" in refusal.stderr
        assert "2 partitions, 6 records" in refusal.stderr
        first = json.loads((partitions[0] / "log.jsonl").read_text().splitlines()[0])["timestamp"]
        day = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(first / 1000))
        assert refusal.stdout.splitlines()[1].split()[:2] == ["orders-0", "3"]
        assert day in refusal.stdout.splitlines()[1]
        assert "nobody has answered" in topicfs("delete", mount.path, "orders").stderr
        assert [read(partition) for partition in partitions] == [b"a\nb\nc\n"] * 2
        assert topicfs("delete", mount.path, "orders-1", "--yes").returncode == 0
        assert os.listdir(mount / "topics") == ["orders"]
        assert not partitions[1].exists()
        # The backing directory leads to its mount.
        done = topicfs("delete", mount.backing, "orders", answer="y\n")
        assert (done.returncode, os.listdir(mount / "topics")) == (0, [])
        assert f"is mounted at {mount.path}" in done.stderr
        for name in ("orders", "orders-0", "topics/orders", "../backing", ""):
            gone = topicfs("delete", mount.path, name, "--yes")
            assert gone.returncode == 1
            assert "there is no" in gone.stderr
        for path in (mount / "topics/orders", mount / "orders-0", mount / "topicsx-0"):
            with refused(errno.ENOENT):
                delete(path)
        again = letters(mount, "more")
        assert mount.stop() == 0
        assert topicfs("delete", mount.backing, again.name, "--yes").returncode == 0
        mount.start()
        assert not again.exists()
        mount.path.joinpath("kept-0").mkdir()
        append(mount / "kept-0/log.txt", b"x\n")
    if os.geteuid() == 0:
        tmp_path.chmod(0o755)
        with own_mount(tmp_path, "--allow-other") as mount:
            script = "import os; os.setxattr('.', 'user.topicfs.delete', b'kept-0')"
            done = subprocess.run(
                ["python3", "-c", script], cwd=mount.path, user=65534, check=False, capture_output=True
            )
            assert b"PermissionError" in done.stderr
            assert read(mount / "kept-0") == b"x\n"


@pytest.mark.parametrize("between", ["nothing", "stop", "kill"])
def test_taking_a_deletion_back(tmp_path: Path, between: str) -> None:
    """G4. `topicfs undelete` takes the newest deletion that had records back, or else the newest, until
    `file.delete.delay.ms` after it, in the same ways and by `user.topicfs.undelete`: records, offsets and settings are
    there again, and the inbox with the names of what was committed; a restart or `kill -9` of the daemon changes
    nothing of that.
    """
    with own_mount(tmp_path) as mount:
        partition = letters(mount, "orders")
        topic = mount / "topics/orders"
        (topic / "config").write_text("file.delete.delay.ms=600000\nretention.ms=77000000\n")
        (partition / "start").write_text("1\n")
        batch = topic / "inbox/q1"
        batch.mkdir()
        (batch / "x.txt").write_text("from a batch\n")
        (batch / "_SUCCESS").touch()
        (topic / "inbox/pending").mkdir()
        (topic / "inbox/pending/y.txt").write_text("pending\n")
        before = (partition / "log.jsonl").read_bytes()
        assert before.count(b"\n") == 3
        assert topicfs("delete", mount.path, "orders", "--yes").returncode == 0
        assert not partition.exists()
        if between == "stop":
            assert mount.stop() == 0
            assert "orders is back" in topicfs("undelete", mount.backing, "orders").stdout
            mount.start()
        else:
            if between == "kill":
                mount.kill()
                mount.start()
            listed = topicfs("undelete", mount.path).stdout.splitlines()
            # By offsets: three records, and the marker of the batch.
            assert listed[1].split()[1:4] == ["orders", "0", "4"]
            identity = listed[1].split()[0]
            assert "orders is back" in topicfs("undelete", mount.path, identity).stdout
        assert (partition / "log.jsonl").read_bytes() == before
        assert (partition / "start").read_text() == "1\n"
        assert "retention.ms=77000000 " in (topic / "config").read_text()
        assert (topic / "inbox/pending/y.txt").read_text() == "pending\n"
        (batch / "x.txt").write_text("from a batch\n")
        (batch / "_SUCCESS").touch()
        append(partition / "log.txt", b"new\n")
        assert read(partition) == b"b\nc\nfrom a batch\nnew\n"
        # One partition, by the attribute, and only in time.
        delete(partition)
        undelete(partition)
        assert read(partition) == b"b\nc\nfrom a batch\nnew\n"
        (topic / "config").write_text("file.delete.delay.ms=0\n")
        delete(partition)
        eventually(lambda: list((mount.backing / "deleted").iterdir()) == [], "the deletion's end")
        with refused(errno.ENOENT):
            undelete(partition)
        late = topicfs("undelete", mount.path, "orders-0")
        assert late.returncode == 1
        assert "of which a deletion can be taken back" in late.stderr
        # What is made again, and removed without a record, is in nobody's way.
        kept = letters(mount, "kept")
        topicfs("delete", mount.path, "kept", "--yes")
        (mount / "topics/kept").mkdir()
        told = topicfs("delete", mount.path, "kept", "--yes").stdout.splitlines()
        again = json.loads(os.getxattr(mount / "topics", "user.topicfs.deleted"))[0]
        assert again["records"] == 0
        assert told[-1].endswith(f"undelete {mount.path} {again['id']}")
        (mount / "topics/kept").mkdir()
        (mount / "topics/kept").rmdir()
        assert "kept is back" in topicfs("undelete", mount.path, "kept").stdout
        assert read(kept) == b"a\nb\nc\n"


def test_names_that_are_used_again(mount: DaemonMount) -> None:
    """G5. What is made again under a deleted name is empty and of its own: while it is there, taking back is EEXIST
    and changes nothing.
    """
    (mount / "topics/twice").mkdir()
    (mount / "topics/twice/config").write_text("retention.ms=77000000\n")
    append(mount / "twice-0/log.txt", b"old\n")
    delete(mount / "topics/twice")
    (mount / "topics/twice").mkdir()
    assert read(mount / "twice-0") == b""
    assert "retention.ms=77000000" not in (mount / "topics/twice/config").read_text()
    append(mount / "twice-0/log.txt", b"new\n")
    for path in (mount / "topics/twice", mount / "twice-0"):
        with refused(errno.EEXIST):
            undelete(path)
    assert "made again" in topicfs("undelete", mount.path, "twice").stderr
    (mount / "twice-1").mkdir()
    delete(mount / "twice-0")
    # The number is free, but it was a partition of another topic of that name.
    listed = json.loads(os.getxattr(mount / "topics", "user.topicfs.deleted"))
    oldest = [each["id"] for each in listed if each["topic"] == "twice"][-1]
    with refused(errno.EEXIST):
        os.setxattr(mount / "topics", "user.topicfs.undelete", oldest.encode())
    undelete(mount / "twice-0")
    assert read(mount / "twice-0") == b"new\n"
    delete(mount / "topics/twice")
    os.setxattr(mount / "topics", "user.topicfs.undelete", oldest.encode())
    assert read(mount / "twice-0") == b"old\n"
    assert "retention.ms=77000000 " in (mount / "topics/twice/config").read_text()
    assert not (mount / "twice-1").exists()


def test_the_attributes_are_set_on_purpose_only(mount: DaemonMount, tmp_path: Path) -> None:
    """G6. `user.topicfs.deleted` of `topics` tells in JSON what can be taken back; none of these attributes is
    listed, so nothing that copies attributes sets them, and the daemon's log tells which process and user set one.
    """
    partition = letters(mount, "marked")
    delete(partition)
    (told, *_) = json.loads(os.getxattr(mount / "topics", "user.topicfs.deleted"))
    assert (told["topic"], told["partitions"], told["records"]) == ("marked", [0], 3)
    assert told["removed_at"] - told["deleted_at"] == 60_000
    assert f"'{partition.name}' by process {os.getpid()} of user {os.geteuid()}" in mount.said()
    undelete(partition)
    for path in (mount.path, mount / "topics", mount / "topics/marked"):
        assert os.listxattr(path) == []
        with refused(errno.ENOTSUP):
            os.setxattr(path, "user.topicfs.deleted", b"marked")
    with refused(errno.ENOTSUP):
        os.setxattr(partition, "user.topicfs.delete", b"log.txt")
    source = tmp_path / "topics"
    source.mkdir()
    for script in (
        f"cp -a {source} .",
        f"rsync -aX {source}/ topics/",
        f"cp -a --attributes-only {source}/. topics/",
    ):
        run(script, mount.path)
    assert read(partition) == b"a\nb\nc\n"
