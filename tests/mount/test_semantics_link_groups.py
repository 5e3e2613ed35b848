"""`fs/SEMANTICS.md`, a linked store: groups, and what several topics share, M18 and on. Its cluster is a stand-in."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from daemon_mount import append, opened, refused
from kafka.protocol.admin import ListGroupsRequest
from kafka.protocol.consumer import HeartbeatRequest, JoinGroupRequest, LeaveGroupRequest, OffsetFetchRequest
from kafka.protocol.producer import EndTxnRequest
from patience import eventually
from test_semantics_link import Linked, a_link


@pytest.fixture(scope="module")
def linked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Linked]:
    place = tmp_path_factory.mktemp("groups")
    with a_link(place) as linked:
        linked.mount.expect("nothing until it has joined anew")
        linked.mount.expect("cannot be settled yet, and is tried again")
        yield linked


def a_topic(linked: Linked, name: str) -> Path:
    """A mirrored topic of five records, and a group of its name. Gives the position."""
    linked.topic(name, *(b"v%d" % number for number in range(5)))
    linked.shows(f"{name}-0", *(b"v%d" % number for number in range(5)))
    (linked.mount / "groups" / name).mkdir()
    return linked.mount / "groups" / name / f"{name}-0"


def write(file: Path, text: str) -> None:
    """As `echo` does it."""
    with opened(file, os.O_WRONLY | os.O_TRUNC) as descriptor:
        os.write(descriptor, f"{text}\n".encode())


def error_of(step: Callable[[], object]) -> int:
    """The errno of what is done; 0 where it is done."""
    try:
        step()
    except OSError as error:
        return error.errno or 0
    return 0


def metric(linked: Linked, name: str) -> float:
    lines = (linked.mount / "metrics").read_text().splitlines()
    return next(float(line.split()[-1]) for line in lines if line.startswith(f"{name} "))


def status(group: Path) -> dict[str, Any]:
    found = json.loads((group / "status.json").read_bytes())
    assert isinstance(found, dict)
    return found


def test_a_position_in_a_mirrored_topic_is_the_cluster_s(linked: Linked) -> None:
    """M18. A position of a group in a mirrored topic is the one that the cluster's coordinator has: what is written to
    it is committed there when write(2) returns, and what a consumer commits is read here. `groups` lists the
    cluster's groups that have such positions, as they were a second ago at most. H2 to H5 hold; the end is that of the
    mirror."""
    position = a_topic(linked, "placed")
    assert position.read_text() == "none\n"
    groups = linked.broker.groups.positions
    write(position, "2")
    assert groups["placed"] == {("placed", 0): 2}
    assert position.with_name("placed-0.next").read_text() == "2 5\n"
    assert position.with_name("placed-0.lag").read_text() == "3\n"
    with position.with_name("placed-0.pending.txt").open("r+b", buffering=0) as pending:
        assert pending.read() == b"v2\nv3\nv4\n"
        pending.write(b"commit\n")
    assert groups["placed"] == {("placed", 0): 5}
    write(position, "earliest")
    assert position.read_text() == "0\n"
    with refused(errno.EINVAL):
        write(position, "6")
    groups["theirs"] = {("placed", 0): 4, ("not-mirrored", 0): 1}
    groups["others"] = {("not-mirrored", 0): 1}
    place = linked.mount / "groups"
    eventually(lambda: "theirs" in os.listdir(place), "it is listed")
    assert "others" not in os.listdir(place)
    assert (place / "theirs/placed-0").read_text() == "4\n"
    assert set(os.listdir(place / "theirs")) == {"members", "status.json", "placed-0"}
    with refused(errno.EEXIST):
        (place / "theirs").mkdir()
    (linked.mount / "topics/beside").mkdir()
    append(linked.mount / "beside-0/log.txt", b"ours\n")
    write(place / "theirs/beside-0", "1")
    assert (place / "theirs/beside-0").read_text() == "1\n"
    assert ("beside", 0) not in groups["theirs"]
    assert metric(linked, 'topicfs_group_lag_records{group="theirs"}') == 1

    def begin_transaction(request: Any, answer: Any) -> None:
        for topic in answer.groups[0].topics if request.require_stable else ():
            topic.partitions[0].error_code = 88 if topic.name == "not-mirrored" else 0

    def load(_: Any, answer: Any) -> None:
        answer.error_code, answer.groups = 14, []

    linked.broker.twist |= {OffsetFetchRequest: begin_transaction, ListGroupsRequest: load}
    asked = linked.broker.asked[ListGroupsRequest]
    groups["theirs"]["placed", 0] = 3
    eventually(lambda: (place / "theirs/placed-0").read_text() == "3\n", "no other position is waited for")
    groups["theirs"]["placed", 0] = 4
    listed = set(os.listdir(place))
    eventually(
        lambda: (os.listdir(place), linked.broker.asked[ListGroupsRequest] > asked)[1], "it is asked again"
    )
    assert set(os.listdir(place)) == listed, "regression: none were listed while the coordinator loaded them"
    linked.broker.twist.clear()
    groups["theirs"]["placed", 0] = 7
    eventually(lambda: (place / "theirs/placed-0").read_text() == "7\n", "another client goes on")
    with (place / "theirs/placed-0.pending.txt").open("r+b", buffering=0) as pending:
        assert pending.read() == b""
        pending.write(b"commit\n")
    assert groups["theirs"]["placed", 0] == 7, "regression: a mirror that is behind has set the position back"
    groups["theirs"]["placed", 0] = 4
    eventually(lambda: (place / "theirs/placed-0").read_text() == "4\n", "it is set back")
    assert [(each["topic"], each["lag"]) for each in status(place / "theirs")["positions"]] == [
        ("beside", 0),
        ("placed", 1),
    ]


def test_the_daemon_compares_before_it_commits(linked: Linked) -> None:
    """M19. Kafka has no commit that compares, so the daemon looks before it commits: of several writers of one mount
    that expect the same position one does well, but what another client commits in between is overwritten. While the
    group has members in the cluster, a write is EBUSY."""
    position = a_topic(linked, "compared")
    groups = linked.broker.groups
    write(position, "1 if none")

    def race(number: int) -> int:
        return error_of(lambda: write(position, f"{number} if 1"))

    with ThreadPoolExecutor(4) as racers:
        assert sorted(racers.map(race, range(2, 6))) == sorted([0, *[errno.ECANCELED] * 3])
    groups.positions["compared"]["compared", 0] = 2

    def come_between() -> None:
        groups.positions["compared"]["compared", 0] = 4

    groups.before = come_between
    write(position, "3 if 2")
    groups.before = lambda: None
    assert groups.positions["compared"] == {("compared", 0): 3}
    groups.taken.add("compared")
    with refused(errno.EBUSY):
        write(position, "4")
    assert "members in the cluster" in status(position.parent)["last_refusal"]["reason"]


def test_a_position_is_never_an_old_one(tmp_path: Path) -> None:
    """M20. While the cluster is away, reading such a position, or `.next`, `.lag` and `.pending.<fmt>` beside it, is
    ETIMEDOUT after `request.timeout.ms` and never an old position, and a write after `delivery.timeout.ms`. `ls` and
    `status.json` show what was last seen, and `cluster_error` there says what is wrong."""
    with a_link(tmp_path) as linked:
        assert linked.mount.stop() == 0
        linked.client.write_text(
            linked.client.read_text() + "request.timeout.ms=500\nreconnect.backoff.ms=50\n"
        )
        linked.start()
        position = a_topic(linked, "away")
        write(position, "2")
        assert position.read_text() == "2\n"
        quiet = linked.mount / "groups/quiet"
        quiet.mkdir()
        linked.broker.go()
        eventually(lambda: linked.told("away-0")["last_error"] is not None, "the cluster is away")
        eventually(lambda: error_of(position.read_bytes) == errno.ETIMEDOUT, "it is not told")
        for name in ("", ".next", ".lag", ".pending.txt"):
            with refused(errno.ETIMEDOUT):
                position.with_name(f"away-0{name}").read_bytes()
        with refused(errno.ETIMEDOUT):
            write(position, "3 if 2")
        assert os.listdir(linked.mount / "groups") == ["away", "quiet"]
        assert "away-0" in os.listdir(position.parent)
        told = status(position.parent)
        assert [each["position"] for each in told["positions"]] == [2]
        assert "does not answer" in told["cluster_error"]
        assert linked.broker.bootstrap in status(quiet)["cluster_error"], "nobody has asked for this one"
        linked.broker.come()

        eventually(lambda: error_of(position.read_bytes) == 0, "it is told again")
        assert position.read_text() == "2\n"


def test_nothing_of_a_group_is_removed_in_the_cluster_unasked(tmp_path: Path) -> None:
    """M21. rm of such a position, and rmdir of a group that has some, is EPERM; with `link.delete=true` rm removes the
    position in the cluster, and rmdir a group that has none there, in topics that are not mirrored either. Mounted
    without `--link`, and in a topic that the cluster has no more, positions are this store's own."""
    with a_link(tmp_path) as linked:
        position = a_topic(linked, "removed")
        groups = linked.broker.groups.positions
        write(position, "2")
        for remove in (position.unlink, position.parent.rmdir):
            with refused(errno.EPERM):
                remove()
        assert groups == {"removed": {("removed", 0): 2}}
        assert linked.mount.stop() == 0
        linked.start("-o", "link.delete=true")
        eventually(lambda: linked.has("removed-0"), "it is linked")
        with refused(errno.ENOTEMPTY):
            position.parent.rmdir()
        position.unlink()
        assert groups == {"removed": {}}
        groups["removed"] = {("not-mirrored", 0): 1}
        position.parent.rmdir()
        assert groups == {"removed": {("not-mirrored", 0): 1}}, (
            "regression: another topic's position was lost"
        )
        position.parent.mkdir()
        groups["removed"].clear()
        position.parent.rmdir()
        assert groups == {}
        del linked.broker.topics["removed"]
        eventually(lambda: linked.told("removed-0")["ended"] is not None, "it is told")
        groups["removed"] = {("removed", 0): 4}
        position.parent.mkdir()
        assert "removed-0" not in os.listdir(position.parent)
        position.parent.rmdir()
        assert groups.pop("removed") == {("removed", 0): 4}, (
            "regression: the position is in another topic of that name"
        )
        assert linked.mount.stop() == 0
        linked.mount.start()
        position.parent.mkdir()
        write(position, "3")
        assert position.read_text() == "3\n"
        assert groups == {}


def test_a_transaction_over_mirrored_topics_is_the_cluster_s(linked: Linked) -> None:
    """M22. A transaction whose files are all of mirrored topics, and its positions in them, is one of the cluster: when
    `mv` returns it is committed there and every view here shows it, and nothing of it shows before. J1 to J10 hold,
    after `kill -9` of the daemon at any step too, but for this: what was being decided is known when the cluster
    answers, and until then `mv` again tells, or commits it. Where the coordinator does not answer within
    `delivery.timeout.ms` it is ETIMEDOUT. One that has topics or positions of the cluster and of this store is EINVAL:
    no coordinator decides for both in one step."""
    mount, groups = linked.mount, linked.broker.groups
    position = a_topic(linked, "source")
    linked.topic("target", b"first")
    linked.shows("target-0", b"first")
    place = mount / "transactions/t1"
    place.mkdir()

    def lay(value: str, offset: str) -> None:
        (place / "groups/source").mkdir(parents=True, exist_ok=True)
        (place / "source-0.txt").write_text(f"{value}\n")
        (place / "target.jsonl").write_text(f'{{"value":"{value}"}}\n')
        (place / "groups/source/source-0").write_text(f"{offset}\n")

    def commit() -> int:
        return error_of(lambda: place.rename(mount / "transactions/t1.commit"))

    def told() -> list[bytes]:
        return [(mount / f"{name}-0/log.txt").read_bytes().split()[-1] for name in ("source", "target")]

    write(position, "1")
    lay("made", "3 if 2")
    assert commit() == errno.ECANCELED
    assert told() == [b"v4", b"first"]
    lay("made", "3 if 1")
    assert commit() == 0
    assert told() == [b"made", b"made"]
    assert groups.positions["source"] == {("source", 0): 3}
    assert position.read_text() == "3\n"
    assert json.loads((mount / "transactions/t1.json").read_bytes())["state"] == "CompleteCommit"
    assert not place.exists()
    (mount / "topics/own").mkdir()
    place.mkdir()
    lay("both", "4")
    (place / "own-0.txt").write_text("ours\n")
    assert commit() == errno.EINVAL
    reason = json.loads((mount / "transactions/t1.json").read_bytes())["last_refusal"]["reason"]
    assert "not in both" in reason
    (place / "own-0.txt").unlink()
    for members in (groups.taken, groups.newer):
        members.add("source")
        assert commit() == errno.EBUSY
        members.clear()

    def away(_: Any, answer: Any) -> None:
        answer.error_code = 15

    linked.broker.twist[EndTxnRequest] = away
    assert commit() == errno.ETIMEDOUT
    assert place.is_dir()
    mount.kill()
    del linked.broker.twist[EndTxnRequest]
    linked.start()
    eventually(lambda: linked.has("target-0"), "it is linked")
    # The coordinator had done what it did not tell, and the daemon finds that out by itself.
    eventually(lambda: not place.exists(), "it is settled")
    assert told() == [b"both", b"both"]
    assert groups.positions["source"] == {("source", 0): 4}


def test_a_named_producer_has_no_sequences_in_a_cluster(linked: Linked) -> None:
    """M23. A file in `producers/p/<topic>-<n>` of a mirrored topic is EROFS when it is made, and `last_refusal` of the
    partition names what to use instead: a cluster forgets the sequences of a producer that is idle."""
    linked.topic("sequenced", b"one")
    linked.shows("sequenced-0", b"one")
    place = linked.mount / "producers/p"
    place.mkdir()
    with refused(errno.EROFS):
        (place / "sequenced-0/.batch.txt").write_text("two\n")
    assert "inbox/<batch>" in linked.mount.status(linked.mount / "sequenced-0")["last_refusal"]["reason"]


def test_a_worker_is_a_member_in_the_cluster(linked: Linked) -> None:
    """M24. `mkdir groups/readers/members/w1` joins the cluster's group for the mirrored topics of its `subscription`,
    beside consumers and the workers of other mounts: the directory lists what the cluster has given it, and positions
    that are set there are the member's. H7 to H9 and H12 hold. When such a group divides anew by `range` or
    `roundrobin`, a worker has nothing from its next sign of life on until all have given up theirs; by
    `cooperative-sticky` it keeps what stays its own. While the mount is cut off from the cluster for its
    `session.timeout.ms` it has nothing."""
    broker = linked.broker
    topic = linked.topic("joined", b"one")
    topic.logs[1] = type(topic.logs[0])()
    topic.logs[1].add(b"one")
    linked.shows("joined-0", b"one")
    linked.shows("joined-1", b"one")
    group = linked.mount / "groups/joined"
    group.mkdir()
    me = group / "members/w1"
    me.mkdir()
    assert os.listdir(me) == []

    def subscribe(words: str) -> None:
        with opened(me / "subscription", os.O_WRONLY | os.O_TRUNC) as descriptor:
            os.write(descriptor, f"{words} session.timeout.ms=6000\n".encode())

    both = ["joined-0", "joined-1"]
    subscribe("joined")
    eventually(lambda: sorted(os.listdir(me)) == both, "both are its own")
    broker.groups.taken.add("joined")
    write(me / "joined-1", "1")
    assert broker.groups.positions["joined"] == {("joined", 1): 1}
    with refused(errno.EBUSY):
        write(group / "joined-0", "1")
    (told,) = status(group)["members"]
    assert (told["assigned"], told["cluster_error"]) == (both, None)
    # Another one comes: what this one has stays its own until it gives a sign of life.
    joined = broker.asked[JoinGroupRequest]
    broker.other = frozenset()
    beats = broker.asked.get(HeartbeatRequest, 0)
    eventually(lambda: broker.asked.get(HeartbeatRequest, 0) > beats, "it is told to join anew")
    assert sorted(os.listdir(me)) == both
    assert broker.asked[JoinGroupRequest] == joined
    eventually(lambda: (os.utime(me), len(os.listdir(me)))[1] == 1, "the other one has half")
    ((_, theirs),) = broker.other
    assert os.listdir(me) == [f"joined-{1 - theirs}"]
    with refused(errno.ENOENT):
        os.stat(me / f"joined-{theirs}")
    # It is the same one after a restart.
    linked.mount.kill()
    linked.start()
    eventually(lambda: os.listdir(me) == [f"joined-{1 - theirs}"], "it has its half again")
    broker.beats = [25]
    eventually(lambda: not broker.beats, "it hears that it is none any more")
    eventually(lambda: os.listdir(me) == [f"joined-{1 - theirs}"], "it has joined anew")
    broker.go()
    eventually(lambda: (os.utime(me), os.listdir(me))[1] == [], "it is cut off")
    broker.other = None
    broker.come()
    eventually(lambda: (os.utime(me), sorted(os.listdir(me)))[1] == both, "it is back")
    # A partition is added: the leader too goes on with what it has until its sign of life.
    topic.logs[2] = type(topic.logs[0])()
    topic.logs[2].add(b"one")
    linked.shows("joined-2", b"one")
    joined, beats = broker.asked[JoinGroupRequest], broker.asked[HeartbeatRequest]
    eventually(lambda: broker.asked[HeartbeatRequest] > beats + 1, "it sees that")
    assert (broker.asked[JoinGroupRequest], sorted(os.listdir(me))) == (joined, both)
    three = [*both, "joined-2"]
    eventually(lambda: (os.utime(me), sorted(os.listdir(me)))[1] == three, "all are its own")
    me.rmdir()
    eventually(lambda: LeaveGroupRequest in broker.asked, "it has left")
    broker.groups.taken.clear()


def test_a_batch_of_several_mirrored_topics_is_a_transaction_of_the_cluster(linked: Linked) -> None:
    """M25. Batches of several mirrored topics, by I26, are one transaction of the cluster over all their partitions,
    as by M15: where the coordinator does not answer, the files of all stay, no other batch of any of these topics is
    taken before it is known how it has ended, and making `_SUCCESS` again tells, or commits them."""
    linked.mount.expect("transaction _inboxes cannot be settled yet, and is tried again")
    linked.mount.expect("a commit of several topics that stopped half way is tried again")
    topics = {name: linked.topic(name) for name in ("joint-a", "joint-b")}
    for name in topics:
        linked.shows(f"{name}-0")
        eventually(lambda name=name: linked.told(f"{name}-0")["lag_records"] == 0, "the mirror has begun")  # type: ignore[misc]
    inboxes = [linked.mount / f"topics/{name}/inbox" for name in topics]

    def shown() -> list[bytes]:
        return [(linked.mount / f"{name}-0/log.txt").read_bytes() for name in topics]

    def lay(batch: str, *lines: str, together: str = "joint-b") -> Path:
        for inbox, line in zip(inboxes, lines, strict=False):
            (inbox / batch).mkdir()
            (inbox / batch / "x.txt").write_text(f"{line}\n")
        (inboxes[0] / batch / "_topics").write_text(f"{together}\n")
        return inboxes[0] / batch / "_SUCCESS"

    lay("b1", "one", "two").touch()
    assert shown() == [b"one\n", b"two\n"]
    assert [topic.logs[0].end for topic in topics.values()] == [2, 2]
    again = lay("b2", "three", "four")

    def away(_: Any, told: Any) -> None:
        told.error_code = 15

    linked.broker.twist[EndTxnRequest] = away
    with refused(errno.ETIMEDOUT):
        again.touch()
    assert [(inbox / "b2/x.txt").exists() for inbox in inboxes] == [True, True]
    (inboxes[1] / "other").mkdir()
    (inboxes[1] / "other/x.txt").write_text("five\n")
    with refused(errno.ETIMEDOUT):
        (inboxes[1] / "other/_SUCCESS").touch()
    del linked.broker.twist[EndTxnRequest]
    again.touch()
    assert shown() == [b"one\nthree\n", b"two\nfour\n"]
    (inboxes[1] / "other/_SUCCESS").touch()
    assert shown() == [b"one\nthree\n", b"two\nfour\nfive\n"]
    (linked.mount / "solo-0").mkdir()
    (linked.mount / "topics/solo/inbox/b3").mkdir()
    (linked.mount / "topics/solo/inbox/b3/x.txt").write_text("six\n")
    with refused(errno.EINVAL):
        lay("b3", "six", together="solo").touch()
    reason = linked.mount.status(linked.mount / "joint-a-0")["last_refusal"]["reason"]
    assert "joint-a is the cluster's, solo this store's own" in reason
