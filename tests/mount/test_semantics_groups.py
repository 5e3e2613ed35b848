"""`fs/SEMANTICS.md`: consumer groups."""

from __future__ import annotations

import errno
import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from daemon_mount import DaemonMount, append, opened, own_mount, refused
from patience import eventually
from shell import output

pytest_plugins = ["shared_mount"]


def group_of(mount: DaemonMount, name: str, records: int = 5) -> tuple[Path, Path]:
    """A new group, and a new partition with records."""
    partition = mount.new("plain")
    if records:
        append(partition / "log.txt", b"".join(b"v%d\n" % number for number in range(records)))
    group = mount / "groups" / name
    group.mkdir()
    return group, group / partition.name


def write(file: Path, text: str) -> None:
    """As `echo` does it."""
    with opened(file, os.O_WRONLY | os.O_TRUNC) as descriptor:
        os.write(descriptor, f"{text}\n".encode())


def status(group: Path) -> dict[str, Any]:
    found = json.loads((group / "status.json").read_bytes())
    assert isinstance(found, dict)
    return found


def test_groups_are_directories(mount: DaemonMount) -> None:
    """H1. `mkdir groups/readers` makes a group, and `groups` lists all; a group lists its positions, `members` and
    `status.json`. rmdir removes a group that has neither positions nor members; else it is ENOTEMPTY.
    """
    group, position = group_of(mount, "made")
    (mount / "groups" / "50%25%2F2").mkdir()
    assert {"made", "50%25%2F2"} <= set(os.listdir(mount / "groups"))
    assert status(mount / "groups" / "50%25%2F2")["group"] == "50%/2"
    with refused(errno.EEXIST):
        group.mkdir()
    with refused(errno.ENOENT):
        os.stat(mount / "groups" / "other")
    assert set(os.listdir(group)) == {"members", "status.json"}
    write(position, "2")
    assert set(os.listdir(group)) == {"members", "status.json", position.name}
    with refused(errno.ENOTEMPTY):
        group.rmdir()
    position.unlink()
    (group / "members" / "w1").mkdir()
    with refused(errno.ENOTEMPTY):
        group.rmdir()
    (group / "members" / "w1").rmdir()
    group.rmdir()
    (mount / "groups" / "50%25%2F2").rmdir()
    assert "made" not in os.listdir(mount / "groups")


def test_a_position_is_read_and_written(mount: DaemonMount) -> None:
    """H2. `groups/readers/orders-0` is a position, the first offset that the group has not read; `none` is read where
    there is no position. What is written sets it: an offset, `earliest`, `latest`, an age such as `-15m`, or a time,
    which both mean the first record that is not earlier. What is none of these, and an offset above the end, is EINVAL.
    """
    _, position = group_of(mount, "set", records=0)
    old = "".join(json.dumps({"value": "old", "timestamp": 1_700_000_000_000 + at}) + "\n" for at in range(3))
    append(mount / position.name / "log.jsonl", old.encode())
    append(mount / position.name / "log.txt", b"new\n")
    assert position.read_bytes() == b"none\n"
    for place, expected in (
        ("2", 2),
        ("latest", 4),
        ("earliest", 0),
        ("-15m", 3),
        ("2023-11-14T22:13:20.001Z", 1),
        ("2000-01-01", 0),
        ("-1d12h", 3),
    ):
        output(f"echo {place} > {position}", mount.path)
        assert position.read_text() == f"{expected}\n", place
    for wrong in ("5", "-5", "later", "2 if", "2 if x", "2 3", ""):
        with refused(errno.EINVAL):
            write(position, wrong)
    with opened(position, os.O_WRONLY) as file, refused(errno.EINVAL):
        os.write(file, b"1\n2\n")
    assert position.read_bytes() == b"3\n"


def test_positions_are_compared(mount: DaemonMount) -> None:
    """H3. `500 if 480` sets a position only if it is 480, and `500 if none` only if there is none; else the write is
    ECANCELED and changes nothing. Of several that expect the same, one does well.
    """
    group, position = group_of(mount, "compared")
    write(position, "0 if none")
    with refused(errno.ECANCELED):
        write(position, "3 if none")
    assert "expected the position none, found 0" in status(group)["last_refusal"]["reason"]

    def attempt(number: int) -> int:
        """The errno of an attempt, 0 for none."""
        try:
            write(position, f"{number % 5 + 1} if 0")
        except OSError as error:
            return error.errno or -1
        return 0

    with ThreadPoolExecutor(8) as pool:
        done = list(pool.map(attempt, range(40)))
    assert sorted(done) == [0, *[errno.ECANCELED] * 39]
    assert position.read_text() == f"{done.index(0) % 5 + 1}\n"


def test_what_lies_beside_a_position(mount: DaemonMount) -> None:
    """H4. Beside a position, not listed, `.next` gives it and the end, two numbers with a space between them, `.lag`
    their difference, and `.pending.<fmt>` the records between them; these do not change while they are open. Without a
    position they begin at the start offset, and so they do where the records at the position were removed.
    """
    group, position = group_of(mount, "beside")
    log = mount / position.name / "log.txt"

    def beside(suffix: str) -> str:
        return position.with_name(f"{position.name}.{suffix}").read_text()

    assert (beside("next"), beside("lag"), beside("pending.txt")) == ("0 5\n", "5\n", "v0\nv1\nv2\nv3\nv4\n")
    write(position, "3")
    with opened(position.with_name(f"{position.name}.pending.txt")) as pending:
        append(log, b"v5\n")
        write(position, "4")
        assert os.read(pending, 100) == b"v3\nv4\n"
        assert os.fstat(pending).st_size == 6
    assert (beside("next"), beside("lag"), beside("pending.txt")) == ("4 6\n", "2\n", "v4\nv5\n")
    assert [json.loads(line)["offset"] for line in beside("pending.jsonl").splitlines()] == [4, 5]
    assert beside("pending.tsv") == "\\N\tv4\n\\N\tv5\n"
    write(mount / position.name / "start", "5")
    assert (beside("next"), beside("lag"), beside("pending.txt")) == ("5 6\n", "1\n", "v5\n")
    assert set(os.listdir(group)) == {"members", "status.json", position.name}


def test_pending_records_are_committed_by_who_has_read_them(mount: DaemonMount) -> None:
    """H5. `.pending.<fmt>` that is opened for reading and writing takes the line `commit`: the position is then behind
    the records that it shows. Before all of them were read that is EINVAL, and where somebody else has set the position
    since the open, or the partition was deleted, it is ECANCELED.
    """
    group, position = group_of(mount, "pending")
    pending = position.with_name(f"{position.name}.pending.txt")
    with opened(pending, os.O_RDWR) as one, opened(pending, os.O_RDWR) as other:
        append(mount / position.name / "log.txt", b"later\n")
        with refused(errno.EINVAL):
            os.write(one, b"commit\n")
        assert os.read(one, 100) == os.read(other, 100) == b"v0\nv1\nv2\nv3\nv4\n"
        os.write(one, b"commit\n")
        assert position.read_bytes() == b"5\n"
        with refused(errno.ECANCELED):
            os.write(other, b"commit\n")
    with refused(errno.EPERM):
        os.open(pending, os.O_WRONLY)
    taken = mount.path.parent / "taken"
    loop = f"{{ cat <&3 > {taken} && echo commit >&3; }} 3<>{pending}"
    output(loop, mount.path)
    assert taken.read_bytes() == b"later\n"
    assert position.read_bytes() == b"6\n"
    output(loop, mount.path)
    assert taken.read_bytes() == b""
    group.joinpath(position.name).unlink()
    group.rmdir()
    refuse_what_was_read_of_a_deleted_partition(mount)


def refuse_what_was_read_of_a_deleted_partition(mount: DaemonMount) -> None:
    """Records that were read of a partition are not committed in one that is made again under its name."""
    _, position = group_of(mount, "incarnations")
    partition = mount / position.name
    with opened(position.with_name(f"{position.name}.pending.txt"), os.O_RDWR) as pending:
        assert len(os.read(pending, 100).splitlines()) == 5
        os.setxattr(mount.path, "user.topicfs.delete", position.name.encode())
        partition.mkdir()
        append(partition / "log.txt", b"n\n" * 5)
        with refused(errno.ECANCELED):
            os.write(pending, b"commit\n")
    assert position.with_name(f"{position.name}.next").read_bytes() == b"0 5\n"


def test_positions_are_removed(mount: DaemonMount) -> None:
    """H6. rm removes a position; nothing else of a group is removed by rm."""
    group, position = group_of(mount, "removed")
    write(position, "3")
    for name in ("status.json", f"{position.name}.lag", f"{position.name}.pending.txt"):
        with refused(errno.EPERM):
            os.unlink(group / name)
    position.unlink()
    assert position.read_bytes() == b"none\n"
    with refused(errno.ENOENT):
        position.unlink()


def test_members_share_partitions(mount: DaemonMount) -> None:
    """H7. `mkdir groups/readers/members/w1` joins the group, and rmdir leaves it. A member's directory lists the
    partitions that are its own, of the topics that were written to `subscription` in it, a word each; without any these
    are the topics in which the group has positions. `session.timeout.ms=…` and `partition.assignment.strategy=…` can be
    written there too.

    H8. A partition is one member's own at most. One that is to be another's is listed nowhere until the member that has
    had it gives a sign of life, by `touch` of its directory, or leaves, or is silent for its `session.timeout.ms`.
    Who reads `.pending` or commits is not silent.
    """
    group, _ = group_of(mount, "shared", records=0)
    for number in range(4):
        (mount / f"divided-{number}").mkdir()
    write(group / "divided-0", "0")
    one, two, three = (group / "members" / name for name in ("w1", "w2", "w3"))
    one.mkdir()
    assert os.listdir(one) == [f"divided-{number}" for number in range(4)]
    two.mkdir()
    write(two / "subscription", "divided session.timeout.ms=6000")
    assert (two / "subscription").read_text().split()[:2] == ["divided", "session.timeout.ms=6000"]
    assert os.listdir(one) == ["divided-0", "divided-1"]
    assert os.listdir(two) == []
    output(f"touch {one}", mount.path)
    assert os.listdir(two) == ["divided-2", "divided-3"]
    for wrong in ("session.timeout.ms=1", "partition.assignment.strategy=roundrobin", "x=y", "no/topic"):
        with refused(errno.EINVAL):
            write(two / "subscription", wrong)
    two.rmdir()
    os.utime(one)
    assert os.listdir(one) == [f"divided-{number}" for number in range(4)]
    three.mkdir()
    assert os.listdir(three) == []
    one.rmdir()
    assert os.listdir(three) == [f"divided-{number}" for number in range(4)]
    three.rmdir()


def test_owners_alone_set_positions(tmp_path: Path) -> None:
    """H9. The files beside a partition in a member's directory are those of the group. While a group has members,
    positions are set there alone, and by J10: anywhere else, and in a file that a member opened before it was silent
    for too long, the write is EBUSY.
    """
    with own_mount(tmp_path, "-o", "group.min.session.timeout.ms=1") as mount:
        group, position = group_of(mount, "fenced")
        member = group / "members" / "w1"
        member.mkdir()
        write(member / "subscription", "plain")
        own = member / position.name
        assert own.with_name(f"{own.name}.pending.txt").read_bytes() == b"v0\nv1\nv2\nv3\nv4\n"
        write(own, "3")
        assert position.read_bytes() == own.read_bytes() == b"3\n"
        with refused(errno.EBUSY):
            write(position, "4")
        with refused(errno.EBUSY):
            position.unlink()
        with opened(own, os.O_WRONLY) as file:
            write(member / "subscription", "session.timeout.ms=100")
            eventually(lambda: not os.listdir(group / "members"), "the member's session ends")
            with refused(errno.EBUSY):
                os.write(file, b"4\n")
            member.mkdir()
            write(member / "subscription", "plain session.timeout.ms=60000")
            with opened(own, os.O_WRONLY) as again:
                os.write(again, b"5\n")
        assert position.read_bytes() == b"5\n"


def test_a_group_tells_its_state(mount: DaemonMount) -> None:
    """H10. `status.json` of a group tells its members, what is their own and what they are to give up, the generation,
    each position with the end and the lag, and the last refusal.
    """
    group, position = group_of(mount, "reported")
    write(position, "2")
    with refused(errno.EINVAL):
        write(position, "9")
    (mount / "reported-0").mkdir()
    (mount / "reported-1").mkdir()
    for name in ("w1", "w2"):
        (group / "members" / name).mkdir()
        write(group / "members" / name / "subscription", "reported")
    found = status(group)
    assert found["state"] == "Rebalancing"
    assert found["generation"] == 4
    assert [(each["name"], each["assigned"]) for each in found["members"]] == [
        ("w1", ["reported-0"]),
        ("w2", []),
    ]
    assert found["members"][0]["gives_up"][-1] == "reported-1"
    (place,) = found["positions"]
    assert (place["position"], place["end"], place["lag"]) == (2, 5, 3)
    assert found["last_refusal"]["path"] == f"/groups/reported/{position.name}"
    assert "from 0 to the end 5, found 9" in found["last_refusal"]["reason"]


def test_positions_survive(tmp_path: Path) -> None:
    """H11. A position that close acknowledged is there after `kill -9` of the daemon; fsync brings it onto the disk.
    All of it is in the topic `__consumer_offsets`, in the format of Kafka.

    H12. Members, and what is their own, are the same after a restart of the daemon; a worker that begins anew finds its
    directory and its share, unless it was silent for too long.

    H13. A read-only mount shows groups too.
    """
    with own_mount(tmp_path) as mount:
        group, position = group_of(mount, "kept")
        offsets = mount / "__consumer_offsets-0"
        with opened(position, os.O_WRONLY) as file:
            os.write(file, b"2\n")
            os.fsync(file)
            told = mount.status(offsets)
            assert told["recovery_point"] == told["end_offset"]
        write(position, "3")
        members = [group / "members" / name for name in ("w1", "w2")]
        for member in members:
            member.mkdir()
        last = [json.loads(line) for line in (offsets / "log.jsonl").read_text().splitlines()]
        assert [line["key"]["type"] for line in last] == [2, 1, 1, 2, 2]
        assert last[2]["value"]["data"]["offset"] == 3
        before = [os.listdir(member) for member in members]
        mount.kill()
        mount.clear()
        mount.start()
        assert position.read_bytes() == b"3\n"
        assert [os.listdir(member) for member in members] == before
        with refused(errno.EEXIST):
            members[0].mkdir()
        assert mount.stop() == 0
        mount.start("--read-only")
        assert position.read_bytes() == b"3\n"
        assert os.listdir(members[0]) == before[0]
        assert os.listdir(mount / "groups") == ["kept"]
        with refused(errno.EROFS):
            write(position, "4")


def test_two_who_work_as_one_member(mount: DaemonMount) -> None:
    """H14. `member.id=a7` written to `subscription` of `members/w1` makes `members/.a7` another name of that directory,
    which is not listed, until somebody else writes another id: it is ENOENT then, so that of two who work as `w1` the
    earlier one is told.
    """
    group, position = group_of(mount, "told-apart", records=1)
    members, name = group / "members", position.name
    (members / "w1").mkdir()
    write(members / "w1" / "subscription", f"{name.rpartition('-')[0]} member.id=a7")
    write(members / ".a7" / name, "1")
    assert os.listdir(members) == ["w1"]
    assert os.listdir(members / ".a7") == os.listdir(members / "w1")
    assert (members / "w1" / "subscription").read_text().split()[-1] == "member.id=a7"
    with refused(errno.EINVAL):
        write(members / "w1" / "subscription", "member.id=a/7")
    write(members / "w1" / "subscription", "member.id=b2")
    with refused(errno.ENOENT):
        os.utime(members / ".a7")
    with refused(errno.ENOENT):
        write(members / ".a7" / name, "0")
    write(members / ".b2" / name, "0")
    (members / "w1").rmdir()
    with refused(errno.ENOENT):
        os.utime(members / ".b2")
