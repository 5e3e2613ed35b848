"""The contract's section on transactions."""

from __future__ import annotations

import errno
import itertools
import json
import os
from pathlib import Path
from typing import Any

import pytest
from daemon_mount import DaemonMount, append, eventually, own_mount, refused
from inboxes import Topic
from shell import output

from topicfs import Store

pytest_plugins = "shared_mount"

NAMES = (f"t{number}" for number in itertools.count())


def begin(mount: DaemonMount, name: str | None = None, **files: str) -> Path:
    """An open transaction with files of lines; a name has `__` in place of the dash."""
    directory = mount / "transactions" / (name or next(NAMES))
    directory.mkdir()
    for stem, text in files.items():
        (directory / f"{stem.replace('__', '-')}.txt").write_text(text)
    return directory


def commit(directory: Path) -> None:
    directory.rename(directory.with_name(f"{directory.name}.commit"))


def status(directory: Path) -> dict[str, Any]:
    found = json.loads(directory.with_name(f"{directory.name}.json").read_bytes())
    assert isinstance(found, dict)
    return found


def test_begin(mount: DaemonMount) -> None:
    """J1. `mkdir transactions/t1` begins a transaction: `transactions/t1/<topic>-<n>.<ext>` is of
    records for that partition, `transactions/t1/<topic>.<ext>` of records that go where `in.<fmt>` sends
    them; names end as those of I4, and any other that begins with `.` is scratch. Until it is committed they
    are files as on any disk, nothing of them shows in a view, and nobody else's records wait.
    """
    one, other = Topic(mount), Topic(mount)
    hidden = [Topic(mount, "_under"), Topic(mount, ".dotted")]
    directory = begin(mount, **{f"{one.name}__1": "a\n", f".{one.name}": "scratch", "_under": "u\n"})
    (directory / ".dotted-1.txt").write_text("d\n")
    assert directory.name in os.listdir(mount / "transactions")
    (directory / f"{other.name}.jsonl").write_text('{"partition":1,"key":"k","value":"x"}\n')
    (directory / f"{other.name}-0.tsv").write_text("k\tb\n")
    with (directory / f"{one.name}-1.txt").open("r+") as file:
        file.seek(2)
        file.write("b\nc\n")
        file.truncate(4)
    (directory / f"{other.name}-0.tsv").rename(directory / f"{other.name}-1.tsv")
    append(one.partition(1) / "log.txt", b"meanwhile\n")
    assert one.values() == ["meanwhile"]
    assert other.values() == []
    commit(directory)
    assert (one.partition(1) / "log.txt").read_text() == "meanwhile\na\nb\n"
    assert sorted(record["partition"] for record in other.records()) == [1, 1]
    assert [topic.values() for topic in hidden] == [["u"], ["d"]]


def test_commit(mount: DaemonMount) -> None:
    """J2. `mv transactions/t1 transactions/t1.commit` appends all records of all files, or none: when it
    returns all of it is on disk and shows, and `transactions/t1` is gone; an error means that nothing
    was appended.
    """
    one, other = Topic(mount), Topic(mount)
    name = next(NAMES)
    said = output(
        f"cd {mount / 'transactions'} && mkdir {name} && echo a > {name}/{one.name}-0.txt && "
        f"seq 1000 > {name}/{other.name}.txt && mv {name} {name}.commit && ls",
        mount.path,
    )
    assert b"status.json" in said.split()
    assert not {name.encode(), f"{name}.commit".encode()} & {*said.split()}
    assert (one.values(), len(other.values())) == (["a"], 1000)
    other.configure("max.message.bytes=100")
    directory = begin(mount, name, **{f"{one.name}__0": "b\n", f"{other.name}__0": "x" * 200 + "\n"})
    with refused(errno.EMSGSIZE):
        commit(directory)
    assert one.values() == ["a"]


def test_abort(mount: DaemonMount, tmp_path: Path) -> None:
    """J3. `rm -r transactions/t1` aborts it, and so does the daemon when `transaction.timeout.ms` are
    over since its mkdir: 15 minutes unless that is set, and at most `transaction.max.timeout.ms`. A
    restart changes nothing of that.
    """
    topic = Topic(mount)
    directory = begin(mount, **{f"{topic.name}__0": "a\n"})
    assert status(directory)["timeout_ms"] == 900_000
    assert 890 < status(directory)["seconds_left"] <= 900
    output(f"rm -r {directory}", mount.path)
    assert not directory.exists()
    with own_mount(tmp_path, "-o", "transaction.timeout.ms=1500") as own:
        Topic(own, "t")
        directory = begin(own, "late", t__0="a\n")
        eventually(lambda: not directory.exists(), "it is aborted")
        with refused(errno.ENOENT):
            commit(directory)
        assert "within 1500 ms" in status(directory)["last_refusal"]["reason"]
        assert (own / "t-0" / "log.txt").read_text() == ""


@pytest.mark.parametrize("step", range(8))
def test_crashes(tmp_path: Path, step: int) -> None:
    """J4. After `kill -9` of the daemon at any step of a commit all of the transaction is there or
    nothing, before anybody can read, and `transactions/t1` is there where nothing is: it can be
    committed again.
    """
    served = DaemonMount(tmp_path)
    try:
        served.start()
        with served.watched():
            one, other = Topic(served, "t"), Topic(served, "u")
            directory = begin(served, "a", t__0="a\n", u__1="b\n")
            served.steer("die_in_commit", one.partition(), step)
            with refused(errno.ECONNABORTED, errno.ENOTCONN):
                commit(directory)
            served.process.wait()
            served.process = None
            served.start()
            is_committed = step > 3
            assert one.values() + other.values() == (["a", "b"] if is_committed else [])
            assert directory.exists() is not is_committed
            if not is_committed:
                commit(directory)
            assert one.values() + other.values() == ["a", "b"]
            append(one.partition() / "log.txt", b"c\n")
            assert one.values() == ["a", "c"]
        assert served.stop() == 0
        assert served.alarms() == []
    finally:
        served.clear()


def test_bad_lines(mount: DaemonMount) -> None:
    """J5. A bad line or row in any file refuses the commit: EINVAL, or EMSGSIZE where a record is too
    large, with file and line under `last_refusal` in `transactions/t1.json`. The files stay; when they
    are mended mv commits them.
    """
    one, other = Topic(mount), Topic(mount)
    directory = begin(mount, **{f"{one.name}__0": "a\n"})
    bad = directory / f"{other.name}.jsonl"
    bad.write_text('{"value":"b"}\n{"value":\n')
    with refused(errno.EINVAL):
        commit(directory)
    assert f"{bad.name}: line 2" in status(directory)["last_refusal"]["reason"]
    assert one.values() == other.values() == []
    bad.write_text('{"value":"b"}\n')
    commit(directory)
    assert one.values() + other.values() == ["a", "b"]


def test_refusals(mount: DaemonMount) -> None:
    """J6. A file for a partition or topic that is not there is ENOENT when it gets its name, and any
    other name is EINVAL; a file for `__transaction_state`, a directory in a transaction but those of J9,
    and its rename to any other name, is EPERM; mkdir of one that is open is EEXIST; a commit with a file
    that is open for writing is EBUSY. Each changes nothing.
    """
    topic = Topic(mount)
    directory = begin(mount, **{f"{topic.name}__0": "a\n"})
    with refused(errno.ENOENT):
        (directory / "nobody-0.txt").write_text("x")
    for name in (f"{topic.name}-0.doc", "_x"):
        with refused(errno.EINVAL):
            (directory / name).write_text("x")
    with refused(errno.EPERM):
        (directory / "__transaction_state-0.tsv").write_text("k\tv\n")
    with refused(errno.EPERM):
        (directory / "d").mkdir()
    with refused(errno.EPERM):
        directory.rename(directory.with_name("other"))
    for name in ("other.commit", f"{directory.name}.1.commit"):
        with refused(errno.EPERM):
            directory.rename(directory.with_name(name))
    with refused(errno.EEXIST):
        directory.mkdir()
    for name in ("x.commit", "x.json", "status", ".x"):
        with refused(errno.EINVAL):
            directory.with_name(name).mkdir()
    with refused(errno.ENOTEMPTY):
        directory.rmdir()
    with (directory / f"{topic.name}-1.txt").open("w") as file:
        file.write("b\n")
        file.flush()
        with refused(errno.EBUSY):
            commit(directory)
        assert topic.values() == []
    directory.rename(directory.with_name(f"{directory.name}.0.commit"))
    assert topic.values() == ["a", "b"]


def test_status(mount: DaemonMount) -> None:
    """J7. `transactions/t1.json` tells the state by the name that Kafka's tools show, the producer id
    and epoch, and how long an open one has left; `transactions/status.json` tells it of all that are
    known, the last change first.
    """
    topic = Topic(mount)
    directory = begin(mount, **{f"{topic.name}__0": "a\n"})
    before = status(directory)
    assert (before["state"], before["open"], before["epoch"]) == ("Empty", True, 0)
    commit(directory)
    after = status(directory)
    assert (after["state"], after["open"], after["seconds_left"]) == ("CompleteCommit", False, None)
    assert json.loads((mount / "transactions" / "status.json").read_bytes())[0] == after
    begin(mount, directory.name)
    again = status(directory)
    assert (again["state"], again["epoch"], again["producer_id"]) == ("Empty", 1, before["producer_id"])
    assert not (mount / "transactions" / "nobody.json").exists()


def test_log(tmp_path: Path) -> None:
    """J8. The log has transactional batches and markers, and `__transaction_state` the states, as a
    broker writes them; that topic is made with the first transaction or batch, with
    `transaction.state.log.num.partitions` partitions, one by default.
    """
    with own_mount(tmp_path) as own:
        topic = Topic(own, "t")
        assert not (own / "__transaction_state-0").exists()
        directory = begin(own, "a", t__0="a\n", t__1="b\n")
        commit(directory)
        lines = (own / "__transaction_state-0" / "log.jsonl").read_text().splitlines()
        states = [json.loads(line)["value"]["data"]["transactionStatus"] for line in lines]
        assert states == [0, 1, 2, 4]
        assert topic.values() == ["a", "b"]
        assert not (own / "__transaction_state-1").exists()
    with Store.open(tmp_path / "backing", read_only=True) as store:
        for number in (0, 1):
            partition = store.partition("t", number)
            assert (partition.end_offset, len(list(partition.records()))) == (2, 1)


def test_positions(mount: DaemonMount) -> None:
    """J9. `transactions/t1/groups/readers/orders-0`, in directories that mkdir makes, is a position of a
    group, as by H2 and H3: the commit sets it with the records, or nothing of both. Until then the group
    has its earlier position. What is no position refuses the commit: EINVAL; so does another position
    than the expected one: ECANCELED. A group or partition that is not there is ENOENT, of a group when
    its directory is made.
    """
    topic = Topic(mount)
    append(topic.partition() / "log.txt", b"a\nb\n")
    readers = mount / "groups" / f"of%25{topic.name}"
    readers.mkdir()
    position = readers / f"{topic.name}-0"
    directory = begin(mount, **{f"{topic.name}__1": "made\n"})
    staged = directory / "groups" / readers.name / position.name
    staged.parent.mkdir(parents=True)
    staged.with_name(".scratch").write_text("1\n2\n")
    for words, number in (("none", "EINVAL"), ("99", "EINVAL"), ("", "EINVAL"), ("1 if 0", "ECANCELED")):
        staged.write_text(f"{words}\n")
        with refused(getattr(errno, number)):
            commit(directory)
        assert (topic.values(), position.read_text()) == (["a", "b"], "none\n")
    assert "expected the position 0" in status(directory)["last_refusal"]["reason"]
    with refused(errno.ENOENT):
        staged.with_name("nobody-0").write_text("1\n")
    with refused(errno.ENOENT):
        (directory / "groups" / "nobody").mkdir()
    staged.write_text("latest if none\n")
    append(topic.partition() / "log.txt", b"c\n")
    commit(directory)
    assert (topic.values(), position.read_text()) == (["a", "b", "c", "made"], "3\n")
    given_up = begin(mount)
    (given_up / "groups" / readers.name).mkdir(parents=True)
    (given_up / "groups" / readers.name / position.name).write_text("0\n")
    output(f"rm -r {given_up}", mount.path)
    assert position.read_text() == "3\n"


def test_positions_of_members(mount: DaemonMount) -> None:
    """J10. Where the group has members, a position of a member's own partition is
    `transactions/t1/groups/readers/members/w1/orders-0`; a commit with any other is EBUSY, as by H9,
    and so it is where the member has left since the position was written, or was silent for too long,
    also if another has its name.
    """
    topic = Topic(mount)
    append(topic.partition() / "log.txt", b"a\nb\n")
    readers = mount / "groups" / f"of-{topic.name}"
    (readers / "members" / "w1").mkdir(parents=True)
    (readers / "members" / "w1" / "subscription").write_text(f"{topic.name}\n")
    directory = begin(mount, **{f"{topic.name}__1": "made\n"})
    members = directory / "groups" / readers.name / "members"
    with refused(errno.ENOENT):
        (members / "w2").mkdir(parents=True)
    (members.parent / f"{topic.name}-0").write_text("1\n")
    with refused(errno.EBUSY):
        commit(directory)
    (members / "w1").mkdir()
    (members.parent / f"{topic.name}-0").rename(members.parent / ".put-away")
    (members / "w1" / f"{topic.name}-0").write_text("2 if none\n")
    (readers / "members" / "w1").rmdir()
    with refused(errno.EBUSY):
        commit(directory)
    (readers / "members" / "w1").mkdir()
    (readers / "members" / "w1" / "subscription").write_text(f"{topic.name}\n")
    with refused(errno.EBUSY):
        commit(directory)
    (members / "w1" / f"{topic.name}-0").write_text("2 if none\n")
    commit(directory)
    assert (readers / f"{topic.name}-0").read_text() == "2\n"
    assert topic.values() == ["a", "b", "made"]


@pytest.mark.parametrize("restarted", [False, True])
def test_a_partition_that_is_made_again(tmp_path: Path, restarted: bool) -> None:
    """J11. A position in a partition that was deleted since it was written makes the commit ECANCELED,
    also where there is another partition of that name: nothing is appended.
    """
    with own_mount(tmp_path) as own:
        topic, other = Topic(own, "t"), Topic(own, "u")
        append(topic.partition() / "log.txt", b"a\n")
        (own.path / "groups" / "readers").mkdir()
        directory = begin(own, u__0="made\n")
        (directory / "groups" / "readers").mkdir(parents=True)
        (directory / "groups" / "readers" / "t-0").write_text("0\n")
        if restarted:
            assert own.stop() == 0
            own.start()
        own.steer("delete", topic.partition())
        with refused(errno.ECANCELED):
            commit(directory)
        (own.path / "t-0").mkdir()
        with refused(errno.ECANCELED):
            commit(directory)
        assert other.values() == []
        (directory / "groups" / "readers" / "t-0").write_text("0\n")
        commit(directory)
        assert other.values() == ["made"]
