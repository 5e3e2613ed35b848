"""What is appended to a mirrored topic waits while its mirror is not ready, and is refused where it never will be."""

from __future__ import annotations

import errno
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from daemon_mount import append, refused
from kafka.protocol.consumer import JoinGroupRequest, ListOffsetsRequest
from kafka.protocol.metadata import MetadataRequest
from patience import PATIENCE_S, eventually
from test_semantics_link import Linked, a_link

LONG_MS = 600_000
NO_LEADER = 5
NOT_LEADER = 6
NOT_ALLOWED = 29
UNKNOWN_MEMBER = 25


@pytest.fixture(scope="module")
def shared_link(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Linked]:
    options = ("-o", "link.create=true", "--link-topic", "exact", "--link-topic", "[!e]*")
    with a_link(tmp_path_factory.mktemp("waits"), *options, timeout_ms=LONG_MS) as linked:
        yield linked


@pytest.fixture
def linked(shared_link: Linked) -> Iterator[Linked]:
    yield shared_link
    shared_link.broker.twist.clear()


def no_beginning(linked: Linked, code: int) -> None:
    """Have the leader refuse to tell where its logs begin."""

    def twist(_: Any, told: Any) -> None:
        for topic in told.topics:
            for part in topic.partitions:
                part.error_code, part.offset = code, -1

    linked.broker.twist[ListOffsetsRequest] = twist


def untold(linked: Linked, name: str, code: int) -> None:
    """Have the broker say nothing of a topic but an error."""

    def twist(_: Any, told: Any) -> None:
        for topic in told.topics:
            if topic.name == name:
                topic.error_code, topic.partitions = code, []

    linked.broker.twist[MetadataRequest] = twist


def await_looks(linked: Linked, count: int = 4) -> None:
    """Wait until the cluster was asked some times: twice in a look of which something is missing."""
    end = linked.broker.asked[MetadataRequest] + count
    eventually(lambda: linked.broker.asked[MetadataRequest] >= end, "the cluster is asked")


@contextmanager
def soon(work: Callable[[], object]) -> Iterator[None]:
    """Do something in a moment, while something waits for it."""
    timer = threading.Timer(0.3, work)
    timer.start()
    try:
        yield
    finally:
        timer.join()


def within(seconds: float) -> Iterator[None]:
    """Some turns, for so long."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        yield


def reason(linked: Linked, partition: str) -> str:
    """Why something was refused last."""
    return str(linked.mount.status(linked.mount / partition)["last_refusal"]["reason"])


def put(linked: Linked, path: str, topic: str) -> None:
    """Append a line in one of the ways."""
    to = linked.mount / path
    if to.parent.name == "inbox":
        staged = to.with_name(".x")
        staged.write_text("line\n")
        staged.rename(to)
    elif to.parent.name == "transactions":
        staged = to.with_suffix("")
        staged.mkdir()
        (staged / f"{topic}-0.txt").write_text("line\n")
        staged.rename(to)
    elif to.parent.name == "keys":
        to.write_text("line")
    else:
        append(to, b"line\n")


WAYS = ("{}-0/log.txt", "topics/{}/in.txt", "topics/{}/inbox/x.txt", "transactions/{}.commit")
KEYS = "{}-0/keys/key"


@pytest.mark.parametrize("way", [*WAYS, KEYS])
def test_a_line_waits_until_its_mirror_knows_where_to_begin(linked: Linked, way: str) -> None:
    """regression: it was EROFS, as without a link, for as long as the leader of a new topic could not be asked"""
    name = f"begins-{[*WAYS, KEYS].index(way)}"
    no_beginning(linked, NOT_LEADER)
    log = linked.topic(name, **({"cleanup_policy": "compact"} if way == KEYS else {})).logs[0]
    file = linked.mount / f"{name}-0/log.txt"
    eventually(file.exists, "the topic is here")
    with soon(linked.broker.twist.clear):
        put(linked, way.format(name), name)
    assert file.read_bytes() == b"line\n"
    assert log.end


def test_a_line_for_a_topic_that_this_user_may_not_read_does_not_wait(linked: Linked) -> None:
    no_beginning(linked, NOT_ALLOWED)
    linked.topic("secret")
    file = linked.mount / "secret-0/log.txt"
    eventually(file.exists, "the topic is here")
    with refused(errno.EACCES):
        append(file, b"one\n")
    assert "this user needs" in reason(linked, "secret-0")
    linked.broker.twist.clear()
    eventually(lambda: linked.has("secret-0"), "it is mirrored")
    append(file, b"two\n")
    assert file.read_bytes() == b"two\n"


@pytest.mark.parametrize("code", [NO_LEADER, NOT_ALLOWED])
def test_a_mirror_goes_on_where_a_broker_says_nothing_of_its_topic(linked: Linked, code: int) -> None:
    """regression: a line was EROFS until the next look, and nothing was mirrored"""
    name = f"untold-{code}"
    log = linked.topic(name, b"one").logs[0]
    linked.shows(f"{name}-0", b"one")
    eventually(lambda: linked.has(f"{name}-0"), "it is mirrored")
    untold(linked, name, code)
    await_looks(linked)
    append(linked.mount / f"{name}-0/log.txt", b"two\n")
    log.add(b"three")
    linked.shows(f"{name}-0", b"one", b"two", b"three")
    told = [line for line in (linked.mount / "metrics").read_text().splitlines() if "_problem{" in line]
    assert any(f'topic="{name}"' in line for line in told)


def test_mkdir_waits_for_a_topic_that_the_cluster_did_not_have_at_the_look_before(linked: Linked) -> None:
    """regression: it was EIO, as nothing was found under a name that `--link-topic` has in full"""
    metrics = linked.mount / "metrics"
    eventually(lambda: "has no topic of this name" in metrics.read_text(), "it is told")
    (linked.mount / "topics/exact").mkdir()
    append(linked.mount / "exact-0/log.txt", b"one\n")
    assert linked.broker.topics["exact"].logs[0].end == 1


def test_a_line_waits_for_its_mirror_no_longer_than_for_an_acknowledgement(tmp_path: Path) -> None:
    with a_link(tmp_path, timeout_ms=400) as linked:
        no_beginning(linked, NOT_LEADER)
        linked.topic("never")
        file = linked.mount / "never-0/log.txt"
        eventually(file.exists, "the topic is here")
        for path in (file, linked.mount / "topics/never/in.txt"):
            with refused(errno.ETIMEDOUT):
                append(path, b"one\n")
            assert "nothing was sent" in reason(linked, "never-0")
            assert "where to begin is not known" in reason(linked, "never-0")
        assert "where to begin is not known" in linked.told("never-0")["last_error"]
        linked.broker.go()
        with refused(errno.ETIMEDOUT):
            append(file, b"two\n")
        assert "127.0.0.1" in reason(linked, "never-0")


def test_a_start_finds_a_topic_of_which_a_broker_says_nothing(tmp_path: Path) -> None:
    with a_link(tmp_path, timeout_ms=LONG_MS) as linked:
        linked.topic("untold", b"one")
        linked.shows("untold-0", b"one")
        file = linked.mount / "untold-0/log.txt"
        assert linked.mount.stop() == 0
        untold(linked, "untold", NOT_ALLOWED)
        linked.start()
        with refused(errno.EACCES):
            append(file, b"two\n")
        assert "this user needs" in reason(linked, "untold-0")
        untold(linked, "untold", NO_LEADER)
        await_looks(linked)
        with soon(linked.broker.twist.clear):
            append(file, b"three\n")
        assert file.read_bytes() == b"one\nthree\n"
        ends_early(linked)


def ends_early(linked: Linked) -> None:
    """The wait for a mirror ends with a signal for who waits, and with the mount."""
    no_beginning(linked, NOT_LEADER)
    linked.topic("waits")
    file = linked.mount / "waits-0/log.txt"
    eventually(file.exists, "the topic is here")
    for stops in (False, True):
        writer = subprocess.Popen(["bash", "-c", f"echo one >> {file}"], stderr=subprocess.DEVNULL)
        try:
            time.sleep(0.3)
            assert writer.poll() is None
            if stops:
                assert linked.mount.stop() == 0
            else:
                writer.send_signal(signal.SIGINT)
            assert writer.wait(PATIENCE_S / 2)
        finally:
            writer.kill()
    linked.start()


def test_a_line_for_what_the_link_does_not_reach_is_refused_at_once(tmp_path: Path) -> None:
    with a_link(tmp_path, timeout_ms=LONG_MS) as linked:
        linked.topic("ended", b"one")
        linked.topic("kept", b"one")
        linked.shows("ended-0", b"one")
        linked.shows("kept-0", b"one")
        del linked.broker.topics["ended"]
        eventually(lambda: linked.told("ended-0")["ended"], "it is told")
        for way in WAYS:
            with refused(errno.EROFS):
                put(linked, way.format("ended"), "ended")
        assert "the topic was deleted in the cluster" in reason(linked, "ended-0")
        assert linked.mount.stop() == 0
        linked.start("--link-topic", "other*")
        with refused(errno.EROFS):
            append(linked.mount / "kept-0/log.txt", b"two\n")
        assert "link.topics (--link-topic) does not have the topic" in reason(linked, "kept-0")
        assert linked.mount.stop() == 0

        def renamed(_: Any, told: Any) -> None:
            told.cluster_id = "AnotherStandInCluster0"

        linked.broker.twist[MetadataRequest] = renamed
        linked.start()
        with refused(errno.EROFS):
            append(linked.mount / "kept-0/log.txt", b"two\n")
        assert "it is of another cluster" in reason(linked, "kept-0")


def test_a_line_waits_for_the_group_and_not_for_what_it_has_given_to_others(tmp_path: Path) -> None:
    with a_link(tmp_path, "--link-group", "daemons", timeout_ms=LONG_MS) as linked:
        linked.mount.expect("mirrors nothing until")
        linked.mount.expect("the group of daemons cannot be asked")
        topic = linked.topic("divided")
        topic.logs[1] = type(topic.logs[0])()
        eventually(lambda: all(linked.has(f"divided-{each}") for each in (0, 1)), "it is mirrored")
        joined = linked.broker.asked[JoinGroupRequest]
        untold(linked, "divided", NO_LEADER)
        await_looks(linked)
        append(linked.mount / "divided-0/log.txt", b"one\n")
        assert linked.broker.asked[JoinGroupRequest] == joined, "regression: the group divided anew"
        linked.broker.twist.clear()
        linked.broker.beats = [UNKNOWN_MEMBER]
        for _ in within(PATIENCE_S):
            append(linked.mount / "divided-0/log.txt", b"one\n")
            if not linked.broker.beats and linked.broker.asked[JoinGroupRequest] > joined:
                break
        assert linked.broker.asked[JoinGroupRequest] > joined, "it has joined anew"
        append(linked.mount / "divided-0/log.txt", b"one\n")
        linked.broker.other = frozenset()
        eventually(lambda: len(linked.broker.other or ()) == 1, "the other one has half")
        ((_, lost),) = linked.broker.other or ()
        eventually(
            lambda: "another daemon" in str(linked.told(f"divided-{lost}")["last_error"]), "it is told"
        )
        with refused(errno.EROFS):
            append(linked.mount / f"divided-{lost}/log.txt", b"two\n")
        assert "another daemon of link.group=daemons mirrors it" in reason(linked, f"divided-{lost}")
        end = topic.logs[1 - lost].end
        append(linked.mount / "topics/divided/in.txt", b"two\n")
        assert topic.logs[1 - lost].end == end + 1
