"""`fs/SEMANTICS.md`, a linked store: M. Its cluster is a stand-in; tests/interop has real ones."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from daemon_mount import ROOT, DaemonMount, append, delete, opened, refused
from harness import missing
from kafka.protocol.admin import CreateTopicsRequest, ListGroupsRequest
from kafka.protocol.consumer import OffsetFetchRequest
from kafka.protocol.producer import EndTxnRequest, InitProducerIdRequest, ProduceRequest
from patience import PATIENCE_S, eventually
from rich.console import Console
from stand_in_broker import StandInBroker, Topic

from topicfs import arrow
from topicfs.engine.record import Codec
from topicfs.engine.unlocked.place import place_of
from topicfs.mountd import plans

WARNINGS = (
    "a local topic has this name",
    "deleted in the cluster",
    "is not mirrored",
    "is mirrored as before",
    "cannot be asked",
    "nothing is mirrored from broker",
    "were lost in the cluster",
    "was truncated",
    "cannot be aborted yet, and is tried again",
    "a commit that stopped half way is tried again",
)


class Linked:
    """A mount that is linked to a stand-in for a broker.

    broker  the stand-in
    mount   the mount
    """

    def __init__(
        self, broker: StandInBroker, mount: DaemonMount, place: Path, timeout_ms: int = 1500
    ) -> None:
        self.broker = broker
        self.mount = mount
        self.client = place / "client.properties"
        self.client.write_text(
            "metadata.max.age.ms=200\nreconnect.backoff.max.ms=200\nfetch.max.wait.ms=50\n"
            f"delivery.timeout.ms={timeout_ms}\nsession.timeout.ms=2000\n"
        )
        for words in WARNINGS:
            mount.expect(words)

    def start(self, *options: str) -> None:
        """Mount with the link."""
        self.mount.start("--link", self.broker.bootstrap, "--link-config", str(self.client), *options)

    def topic(self, name: str, *values: bytes, **settings: str) -> Topic:
        """A new topic in the cluster, with a record for each value."""
        topic = self.broker.topics[name] = Topic(
            {key.replace("_", "."): each for key, each in settings.items()}
        )
        if values:
            topic.logs[0].add(*values)
        return topic

    def shows(self, partition: str, *values: bytes) -> None:
        """Wait until the mirror shows these values."""
        expected = b"".join(value + b"\n" for value in values)

        def is_shown() -> bool:
            # A file that was opened before a cut gives EIO.
            with suppress(OSError):
                return (self.mount / partition / "log.txt").read_bytes() == expected
            return False

        eventually(is_shown, f"{partition} has {expected!r}")

    def has(self, partition: str) -> bool:
        """Whether this daemon mirrors a partition now, and has all of it."""
        with suppress(FileNotFoundError):
            told = self.told(partition)
            return told["last_error"] is None and told["lag_records"] == 0
        return False

    def told(self, partition: str) -> dict[str, Any]:
        """What `status.json` says of the link."""
        found = self.mount.status(self.mount / partition)["link"]
        assert isinstance(found, dict)
        return found


def told_by(console: Console) -> str:
    """What was written."""
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


@contextmanager
def a_link(place: Path, *options: str, timeout_ms: int = 1500) -> Iterator[Linked]:
    lack = missing()
    if lack is not None:
        pytest.skip(lack)
    mount = DaemonMount(place)
    with StandInBroker.running() as broker:
        linked = Linked(broker, mount, place, timeout_ms)
        try:
            linked.start(*options)
            with mount.watched():
                yield linked
            assert mount.stop() == 0
            assert mount.alarms() == []
        finally:
            mount.clear()


@pytest.fixture(scope="module")
def shared_link(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Linked]:
    with a_link(tmp_path_factory.mktemp("linked")) as linked:
        yield linked


@pytest.fixture
def linked(shared_link: Linked) -> Linked:
    return shared_link


def test_a_linked_topic_shows_like_any_other(linked: Linked) -> None:
    """M1. With `--link HOST:PORT` the topics of a Kafka cluster that match `--link-topic`, or all, show like
    any others: the partitions, the offsets and timestamps, and the bytes in `segments/<base>.log` are those of
    the leader, and views end where those of a consumer with `read_committed` do."""
    topic = linked.topic("like", b"one", b"two")
    topic.logs[0].add(b"three")
    linked.shows("like-0", b"one", b"two", b"three")
    place = linked.mount / "like-0"
    assert (place / "segments/00000000000000000000.log").read_bytes() == topic.logs[0].data()
    assert (place / "offset/1").read_bytes() == b"two"
    assert linked.mount.status(place)["stable_offset"] == 3
    assert (linked.mount / "topics/like").is_dir()


def test_what_comes_later_is_mirrored_too(linked: Linked) -> None:
    """M2. A topic that comes later, and a partition that is added, is mirrored too. A local topic of the same
    name stays what it is, and `metrics` says so."""
    linked.topic("late", b"here")
    linked.shows("late-0", b"here")
    linked.broker.topics["late"].logs[1] = type(linked.broker.topics["late"].logs[0])()
    linked.broker.topics["late"].logs[1].add(b"added")
    linked.shows("late-1", b"added")
    (linked.mount / "topics/local").mkdir()
    append(linked.mount / "local-0/log.txt", b"ours\n")
    linked.topic("local", b"theirs")
    metrics = linked.mount / "metrics"
    eventually(
        lambda: 'topicfs_link_problem{error="a local topic has this name' in metrics.read_text(), "it is told"
    )
    append(linked.mount / "local-0/log.txt", b"still ours\n")
    linked.shows("local-0", b"ours", b"still ours")


def test_an_append_goes_to_the_cluster(tmp_path: Path) -> None:
    """M3. An append to `log.<fmt>` or `in.<fmt>` of a mirrored topic is one in the cluster: when close(2) or fsync
    returns, its leader and all replicas in sync have acknowledged it, and every view here shows it; so it is when
    write(2) of whole lines returns that is the first of its open file, or before which nothing was under way for
    `linger.ms`. While its mirror is not ready, as that of a topic that was just linked, an append waits as for an
    acknowledgement. mkdir of a partition is EROFS; so is an append to a topic that has ended in the cluster, that
    `--link-topic` does not have, or that another cluster had, and to a partition that is another daemon's; without
    `--link` every append is, and what is made in `inbox`; and `last_refusal` says why."""
    with a_link(tmp_path) as linked:
        mount = linked.mount
        log = linked.topic("appended", b"one").logs[0]
        linked.shows("appended-0", b"one")
        eventually(lambda: linked.told("appended-0")["lag_records"] == 0, "the mirror has begun")
        append(mount / "appended-0/log.txt", b"two\nthree\n")
        assert log.end == 3
        assert (mount / "appended-0/log.txt").read_bytes() == b"one\ntwo\nthree\n"
        append(mount / "topics/appended/in.jsonl", b'{"key":"k","value":"four"}\n')
        assert (mount / "appended-0/offset/-1.tsv").read_bytes() == b"k\tfour\n"
        with opened(mount / "appended-0/log.txt", os.O_WRONLY | os.O_APPEND) as writer:
            for number in range(20):
                os.write(writer, b"line %d\n" % number)
                if not number:
                    assert log.end == 5
                    assert (mount / "appended-0/offset/-1.txt").read_bytes() == b"line 0\n"
            os.fsync(writer)
            assert log.end == 24
            assert (mount / "appended-0/offset/-1.txt").read_bytes() == b"line 19\n"
        shown = (mount / "appended-0/log.txt").read_bytes()
        assert shown.endswith(b"".join(b"line %d\n" % number for number in range(20)))
        assert (mount / "appended-0/segments/00000000000000000000.log").read_bytes() == log.data()
        log = linked.topic("just").logs[0]
        eventually((mount / "just-0/log.txt").exists, "it is linked")
        append(mount / "just-0/log.txt", b"at once\n")
        assert log.end == 1
        del linked.broker.topics["just"]
        eventually(lambda: linked.told("just-0")["ended"], "it is told")
        with refused(errno.EROFS):
            append(mount / "just-0/log.txt", b"too late\n")
        assert "deleted in the cluster" in mount.status(mount / "just-0")["last_refusal"]["reason"]
        with refused(errno.EROFS):
            (mount / "appended-1").mkdir()
        assert mount.stop() == 0
        mount.start()
        with refused(errno.EROFS):
            (mount / "topics/appended/inbox/batch").mkdir()
        with refused(errno.EROFS):
            (mount / "topics/appended/inbox/.file").write_bytes(b"two\n")
        with refused(errno.EROFS):
            (mount / "appended-1").mkdir()
        for name in ("appended-0/log.txt", "appended-0/log.jsonl", "topics/appended/in.tsv"):
            with refused(errno.EROFS):
                append(mount / name, b"two\n")
        assert "mirrors" in mount.status(mount / "appended-0")["last_refusal"]["reason"]
        assert "no --link" in linked.told("appended-0")["last_error"]
        assert (mount / "appended-0/log.txt").read_bytes() == shown


def test_a_mirror_has_the_clusters_settings(linked: Linked) -> None:
    """M4. `config` shows the cluster's settings with the source `cluster`, as they are now; a value that the
    topic gets here outranks them, so a mirror may be kept for longer or shorter than its topic."""
    topic = linked.topic("settings", b"one", cleanup_policy="compact")
    linked.shows("settings-0", b"one")
    config = linked.mount / "topics/settings/config"

    def says(line: str) -> bool:
        return line in [" ".join(each.split()) for each in config.read_text().splitlines()]

    assert says("cleanup.policy=compact # cluster")
    assert says("retention.ms=604800000 # cluster:log.retention.hours")
    topic.settings = {"cleanup.policy": "delete", "retention.ms": "7777777777777"}
    eventually(lambda: says("retention.ms=7777777777777 # cluster"), "the change is followed")
    config.write_text("retention.ms=-1\n")
    assert says("retention.ms=-1 # topic")
    config.write_text("retention.ms=default\n")
    assert says("retention.ms=7777777777777 # cluster")


def test_reading_goes_on_while_the_cluster_is_away(tmp_path: Path) -> None:
    """M5. While the cluster is away all that was mirrored is read; `link` in `status.json`, `metrics` and
    `topicfs plan` tell what is wrong and how far the mirror is behind, in records, bytes and seconds; it goes on by
    itself when the cluster is back, and behind a `kill -9` where it was."""
    with a_link(tmp_path) as linked:
        mount = linked.mount
        log = linked.topic("away", b"one", b"two").logs[0]
        linked.shows("away-0", b"one", b"two")
        eventually(lambda: linked.told("away-0")["lag_records"] == 0, "the mirror is not behind")
        assert linked.told("away-0")["lag_seconds"] == 0
        linked.broker.go()
        eventually(lambda: "127.0.0.1" in str(linked.told("away-0")["last_error"]), "the error is told")
        eventually(lambda: "topicfs_link_up 0.0" in (mount / "metrics").read_text(), "metrics tell of it")
        assert linked.told("away-0")["lag_seconds"] > 0
        assert linked.told("away-0")["lag_bytes"] == 0
        assert linked.told("away-0")["errors"] > 0
        (planned,) = json.loads(plans.as_json(plans.make(mount.path, {})))
        assert planned["link"]["leader"] == 1
        assert "127.0.0.1" in planned["link"]["last_error"]
        shown = Console(file=StringIO(), width=400)
        plans.show(plans.make(mount.path, {}), shown)
        assert (
            "away-0: mirrors cluster StandInForACluster0000; leader 1, epoch 0; 0 records behind"
            in told_by(shown)
        )
        linked.shows("away-0", b"one", b"two")
        log.add(b"three")
        linked.broker.come()
        linked.shows("away-0", b"one", b"two", b"three")
        eventually(lambda: linked.told("away-0")["last_error"] is None, "all is well")
        mount.kill()
        log.add(b"four")
        linked.start()
        linked.shows("away-0", b"one", b"two", b"three", b"four")
        mount.kill()
        linked.broker.go()
        linked.start()
        linked.shows("away-0", b"one", b"two", b"three", b"four")
        eventually(lambda: "127.0.0.1" in str(linked.told("away-0")["last_error"]), "the error is told")
        linked.broker.come()
        eventually(lambda: linked.told("away-0")["lag_records"] == 0, "the mirror goes on")


def test_a_topic_that_is_deleted_in_the_cluster_stays(linked: Linked) -> None:
    """M6. A topic that is deleted in the cluster stays readable, and `ended` says so. One that is made anew
    there under its name never mixes with it: it is mirrored when the old one is deleted here."""
    old = linked.topic("gone", b"old")
    linked.shows("gone-0", b"old")
    del linked.broker.topics["gone"]
    eventually(lambda: "deleted in the cluster" in str(linked.told("gone-0")["ended"]), "it is told")
    linked.shows("gone-0", b"old")
    new = linked.topic("gone", b"new", b"newer")
    eventually(lambda: "made anew" in str(linked.told("gone-0")["ended"]), "it is told")
    linked.shows("gone-0", b"old")
    # A broker that has not heard of it yet changes nothing of that.
    linked.broker.topics["gone"] = old
    linked.topic("after", b"that")
    linked.shows("after-0", b"that")
    assert "made anew" in str(linked.told("gone-0")["ended"])
    linked.broker.topics["gone"] = new
    delete(linked.mount / "topics/gone")
    linked.shows("gone-0", b"new", b"newer")
    assert linked.told("gone-0")["ended"] is None
    delete(linked.mount / "topics/gone")
    linked.shows("gone-0", b"new", b"newer")


def test_what_the_cluster_has_lost_is_cut_off(linked: Linked) -> None:
    """M7. What an unclean election has lost in the cluster is cut off here too; `truncated_records`, the log
    and `metrics` tell of it. A file that was open and reaches behind the cut gives EIO, never a mixture; one
    that ends before it goes on."""
    log = linked.topic("unclean", b"one", b"two").logs[0]
    log.add(b"lost", b"lost too")
    linked.shows("unclean-0", b"one", b"two", b"lost", b"lost too")
    place = linked.mount / "unclean-0"
    raw = "segments/00000000000000000000.log"
    behind = [opened(place / name) for name in ("log.txt", "log.jsonl", "offset/2-3.txt", raw)]
    with opened(place / "offset/0-1.txt") as before:
        files = [each.__enter__() for each in behind]
        try:
            assert all(os.pread(file, 4096, 0) for file in files)
            # Reads that are filled are answered from memory the next time.
            assert [os.pread(files[0], 4, 0), os.pread(files[0], 4, 4)] == [b"one\n", b"two\n"]
            log.cut(2, epoch=1)
            log.add(b"instead")
            linked.shows("unclean-0", b"one", b"two", b"instead")
            for file in files:
                with refused(errno.EIO):
                    os.pread(file, 4, 4)
            assert os.pread(before, 4096, 0) == b"one\ntwo\n"
        finally:
            for each in behind:
                each.__exit__(None, None, None)
    assert (place / raw).read_bytes() == log.data()
    assert (place / "offset/2").read_bytes() == b"instead"
    assert linked.told("unclean-0")["truncated_records"] == 2
    sample = 'topicfs_link_truncated_records{partition="0",topic="unclean"} 2.0'
    assert sample in (linked.mount / "metrics").read_text()
    assert "unclean-0: offsets 2 to 3 were lost in the cluster" in linked.mount.said()


@pytest.mark.parametrize(
    ("beginning", "values"), [("earliest", [b"a", b"b", b"c"]), ("1", [b"b", b"c"]), ("latest", [])]
)
def test_a_mirror_begins_where_it_is_told(tmp_path: Path, beginning: str, values: list[bytes]) -> None:
    """M8. `--link-from` says where a new mirror begins: `earliest`, `latest`, an offset, an age such as `-7d`,
    or a time. It begins with the batch that holds that record."""
    with a_link(tmp_path, "--link-from", beginning, "--link-topic", "begin*") as linked:
        topic = Topic()
        for value in (b"a", b"b", b"c"):
            topic.logs[0].add(value)
        linked.broker.topics |= {"begins": topic, "other": Topic()}
        linked.shows("begins-0", *values)
        eventually(lambda: linked.told("begins-0")["lag_records"] == 0, "the mirror has begun")
        topic.logs[0].add(b"d")
        linked.shows("begins-0", *values, b"d")
        assert not (linked.mount / "topics/other").exists()


def test_a_link_that_cannot_be_right_makes_no_mount(tmp_path: Path) -> None:
    """M9. Settings of a link that cannot be right make no mount, and the words name file and line: an address
    without a port, a beginning that is none, a client's setting that is not known, certificates that cannot be
    read."""
    client = tmp_path / "client.properties"
    for options, line, words in (
        (["--link", "here"], "", "link.bootstrap.servers: expected host:port, found 'here'"),
        (["--link", "h:1", "--link-from", "soon"], "", "link.from: expected earliest, latest, an offset"),
        (["--link", "h:1"], "fetch.max.byte=1", f"{client}: unknown setting 'fetch.max.byte'"),
        (["--link", "h:1"], "security.protocol=SSL\nssl.cafile=/nowhere", "/nowhere: not usable for TLS"),
    ):
        client.write_text(line)
        command = [
            "topicfs.mountd.cli",
            "mount",
            "--create",
            tmp_path / "b",
            tmp_path / "m",
            "--link-config",
            client,
        ]
        done = subprocess.run(
            [sys.executable, "-m", *command, *options],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == 1
        assert words in " ".join(done.stderr.split())
        assert not (tmp_path / "m").exists()


@pytest.mark.parametrize(
    ("codes", "number", "words"),
    [
        ([19] * 500, errno.ETIMEDOUT, "does not have the lines"),
        ([7] * 500, errno.ETIMEDOUT, "may have the lines, or not"),
        ([10], errno.EMSGSIZE, "the cluster refuses"),
        ([29], errno.EACCES, "this user needs Write"),
        ([44], errno.EINVAL, "the cluster refuses the lines"),
    ],
)
def test_an_append_that_the_cluster_does_not_take_fails(
    linked: Linked, codes: list[int], number: int, words: str
) -> None:
    """M10. An append that the cluster does not acknowledge within `delivery.timeout.ms` is ETIMEDOUT, and the words
    in `last_refusal` say whether it may have the lines; what is too large there is EMSGSIZE, what this user may not
    do EACCES, what a rule of the topic forbids EINVAL. Until then `append_error` of `link` in `status.json` says
    what is tried again."""
    name = f"refused-{codes[0]}"
    log = linked.topic(name, b"one").logs[0]
    linked.shows(f"{name}-0", b"one")
    eventually(lambda: linked.told(f"{name}-0")["lag_records"] == 0, "the mirror has begun")
    linked.broker.refuse = codes
    file = linked.mount / f"{name}-0/log.txt"
    with refused(number):
        append(file, b"two\n")
    linked.broker.refuse = []
    assert words in linked.mount.status(linked.mount / f"{name}-0")["last_refusal"]["reason"]
    assert log.end == 1
    append(file, b"three\n")
    assert file.read_bytes() == b"one\nthree\n"


def test_a_signal_ends_the_wait_for_the_cluster(tmp_path: Path) -> None:
    """M11. A signal for who writes ends the wait for the cluster: the write fails as if its time were over. What
    was not sent yet is not sent any more, and what was is not sent again. So it is for who makes or removes a
    topic there, commits a batch of an inbox, or looks at a group or a position, also while no broker answers. The
    kernel has one write(2) into a file at a time: another writer of the same file waits there, where no signal
    reaches it, until the write before it returns."""
    with a_link(tmp_path) as linked:
        client = linked.client.read_text().replace("1500", "600000") + "request.timeout.ms=120000\n"
        linked.client.write_text(client)
        assert linked.mount.stop() == 0
        linked.start("-o", "link.create=true")
        log = linked.topic("waits", b"one").logs[0]
        linked.shows("waits-0", b"one")
        eventually(lambda: linked.told("waits-0")["lag_records"] == 0, "the mirror has begun")
        linked.broker.refuse = [19] * 10_000
        # Who has died of the signal already can be told of nothing.
        linked.mount.expect("lines are lost at the last close")
        command = f"echo two >> {linked.mount / 'waits-0/log.txt'}"
        writer = subprocess.Popen(["bash", "-c", command], stderr=subprocess.DEVNULL)
        try:
            eventually(lambda: linked.broker.asked.get(ProduceRequest, 0) > 2, "it is sent again and again")
            assert "NOT_ENOUGH_REPLICAS" in linked.told("waits-0")["append_error"]
            writer.send_signal(signal.SIGINT)
            assert writer.wait(PATIENCE_S)
        finally:
            writer.kill()
        linked.broker.refuse = []
        append(linked.mount / "waits-0/log.txt", b"three\n")
        linked.shows("waits-0", b"one", b"three")
        eventually(lambda: linked.told("waits-0")["append_error"] is None, "nothing is tried again")
        assert log.end == 2
        asked, answer = threading.Event(), threading.Event()

        def late(*_: Any) -> None:
            asked.set()
            answer.wait(PATIENCE_S)

        linked.broker.twist[CreateTopicsRequest] = late
        maker = subprocess.Popen(["mkdir", linked.mount / "topics/late"], stderr=subprocess.DEVNULL)
        try:
            assert asked.wait(PATIENCE_S)
            maker.send_signal(signal.SIGINT)
            assert maker.wait(PATIENCE_S / 2)
        finally:
            answer.set()
            maker.kill()
        batch = linked.mount / "topics/waits/inbox/batch"
        batch.mkdir()
        (batch / "x.txt").write_text("four\n")
        asked.clear()
        answer.clear()
        linked.broker.twist[EndTxnRequest] = late
        committer = subprocess.Popen(["touch", batch / "_SUCCESS"], stderr=subprocess.DEVNULL)
        try:
            assert asked.wait(PATIENCE_S)
            committer.send_signal(signal.SIGINT)
            assert committer.wait(PATIENCE_S / 2), "regression: the signal of who makes a file reached nobody"
        finally:
            answer.set()
            committer.kill()
        (linked.mount / "groups/waits").mkdir()
        linked.broker.twist |= {OffsetFetchRequest: late, ListGroupsRequest: late}
        for command in ("cat groups/waits/waits-0", "ls groups"):
            asked.clear()
            answer.clear()
            looker = subprocess.Popen(command.split(), cwd=linked.mount.path, stderr=subprocess.DEVNULL)
            try:
                assert asked.wait(PATIENCE_S)
                looker.send_signal(signal.SIGINT)
                assert looker.wait(PATIENCE_S / 2), (
                    "regression: the signal of who looks up a name reached nobody"
                )
            finally:
                answer.set()
                looker.kill()
    for state in ("producing", "deciding"):
        (tmp_path / state).mkdir()
        a_signal_ends_the_wait_of_who_begins_what_has_stopped_half_way(tmp_path / state, state)


def a_signal_ends_the_wait_of_who_begins_what_has_stopped_half_way(place: Path, state: str) -> None:
    """There is a journal of the transaction, so the cluster has to be asked first how it has ended."""
    with a_link(place) as linked:
        client = linked.client.read_text().replace("1500", "600000") + "request.timeout.ms=120000\n"
        linked.client.write_text(client)
        linked.topic("waits", b"one")
        linked.shows("waits-0", b"one")
        assert linked.mount.stop() == 0
        journal = linked.mount.backing / "transactions/linked/t1.json"
        journal.parent.mkdir(parents=True, exist_ok=True)
        known = {"transactional_id": "t1", "producer_id": 5, "epoch": 0, "ranges": {"waits-0": [0, 0]}}
        journal.write_text(json.dumps({"state": state} | known))
        asked, answer = threading.Event(), threading.Event()

        def late(*_: Any) -> None:
            asked.set()
            answer.wait(PATIENCE_S)

        linked.broker.twist |= {EndTxnRequest: late, InitProducerIdRequest: late}
        linked.start()
        maker = subprocess.Popen(["mkdir", linked.mount / "transactions/t1"], stderr=subprocess.DEVNULL)
        try:
            assert asked.wait(PATIENCE_S)
            maker.send_signal(signal.SIGINT)
            assert maker.wait(PATIENCE_S / 2), (
                "regression: the signal of who makes a directory reached nobody"
            )
        finally:
            answer.set()
            maker.kill()


def test_mkdir_makes_a_topic_in_the_cluster(tmp_path: Path) -> None:
    """M12. With `link.create=true`, mkdir in `topics` of a name that `--link-topic` matches makes the topic in the
    cluster, with `link.create.partitions` partitions and `link.create.replication.factor` replicas, and returns when it
    is mirrored; other names, and all without it, are local topics. A name that the cluster has is EEXIST, what it
    refuses EINVAL or EACCES, no answer within `delivery.timeout.ms` ETIMEDOUT. So it is where the topic is made, and of
    a `link.group` only other daemons have its partitions."""
    options = ("--link-topic", "made*", "-o", "link.create=true")
    numbers = ("-o", "link.create.partitions=3", "-o", "link.create.replication.factor=2")
    with a_link(tmp_path, *options) as linked:
        topics = linked.mount / "topics"
        for code, number in ((38, errno.EINVAL), (44, errno.EINVAL), (29, errno.EACCES)):
            linked.broker.refuse = [code]
            with refused(number):
                (topics / "made-not").mkdir()
        linked.broker.refuse = [7] * 100
        with refused(errno.ETIMEDOUT):
            (topics / "made-not").mkdir()
        assert linked.mount.stop() == 0
        # A busy machine takes its time.
        linked.client.write_text(linked.client.read_text().replace("=1500", "=60000"))
        linked.start(*options, *numbers)
        wanted: list[Any] = []
        linked.broker.twist[CreateTopicsRequest] = lambda request, _: wanted.append(request.topics[0])
        linked.broker.refuse = [41]
        (topics / "made").mkdir()
        assert sorted(linked.broker.topics["made"].logs) == [0, 1, 2]
        assert (wanted[-1].num_partitions, wanted[-1].replication_factor) == (3, 2)
        assert linked.told("made-2")["cluster"]
        eventually(lambda: linked.told("made-2")["lag_records"] == 0, "the mirror has begun")
        append(linked.mount / "made-2/log.txt", b"one\n")
        assert linked.broker.topics["made"].logs[2].end == 1
        with refused(errno.EEXIST):
            (topics / "made").mkdir()
        (topics / "other").mkdir()
        assert "other" not in linked.broker.topics


def test_rmdir_deletes_in_the_cluster_only_where_it_is_told_to(tmp_path: Path) -> None:
    """M13. rmdir of a mirrored topic, or of a partition of it, is EPERM while the link is there, or ENOTEMPTY where it
    holds records; with `link.delete=true` rmdir of a topic deletes it in the cluster too, if it has no record there and
    none here, else it is ENOTEMPTY. `topicfs delete` never deletes in the cluster, and what is written into `config`
    never changes it there."""
    with a_link(tmp_path) as linked:
        linked.topic("empty")
        linked.shows("empty-0")
        for name in ("topics/empty", "empty-0"):
            with refused(errno.EPERM):
                (linked.mount / name).rmdir()
        (linked.mount / "topics/empty/config").write_text("retention.ms=-1\n")
        delete(linked.mount / "topics/empty")
        linked.shows("empty-0")
        assert linked.broker.topics["empty"].settings == {}
        assert linked.mount.stop() == 0
        linked.start("-o", "link.delete=true")
        eventually(lambda: linked.told("empty-0")["lag_records"] == 0, "the mirror has begun")
        with refused(errno.EPERM):
            (linked.mount / "empty-0").rmdir()
        linked.topic("full", b"one")
        linked.shows("full-0", b"one")
        with refused(errno.ENOTEMPTY):
            (linked.mount / "topics/full").rmdir()
        (linked.mount / "topics/empty").rmdir()
        assert "empty" not in linked.broker.topics
        assert not (linked.mount / "topics/empty").exists()
        assert "full" in linked.broker.topics


def test_lines_that_come_fast_are_under_way_together(linked: Linked) -> None:
    """M14. Lines that come faster than that are under way together, up to five batches of a partition, and lie
    there in the order of their write(2)s, once each, whatever becomes of the connection and the leader. Where one
    of the batches is refused, or its time is over, the next write, fsync or close of each of its writers says so,
    and takes nothing; what such a writer wrote behind it is lost with it, and what others wrote is not, unless it
    may have reached the leader: then their error says that the cluster may have the lines. Each batch is compressed
    as the topic's `compression.type` says."""
    log = linked.topic("fast", b"one").logs[0]
    linked.shows("fast-0", b"one")
    eventually(lambda: linked.told("fast-0")["lag_records"] == 0, "the mirror has begun")
    file = linked.mount / "fast-0/log.txt"
    wide = [b"%06d " % number + b"x" * 60_000 for number in range(40)]
    with opened(file, os.O_WRONLY | os.O_APPEND) as writer:
        for number, line in enumerate(wide):
            if number == 3:
                linked.broker.refuse = [19, 20, 6]
            if number == 20:
                linked.broker.go()
                linked.broker.come()
            os.write(writer, line + b"\n")
    assert file.read_bytes().splitlines() == [b"one", *wide]
    requests = linked.broker.asked[ProduceRequest]
    with opened(file, os.O_WRONLY | os.O_APPEND) as other, opened(file, os.O_WRONLY | os.O_APPEND) as writer:
        os.write(other, b"other 0\n")
        os.write(writer, b"first\n")
        linked.broker.refuse = [29]
        with refused(errno.EACCES):
            for line in wide:
                os.write(writer, line + b"\n")
            os.fsync(writer)
        linked.broker.refuse = []
        os.write(other, b"other 1\n")
        os.write(writer, b"again\n")
    assert linked.broker.asked[ProduceRequest] > requests
    assert log.end == len(wide) + 5
    assert file.read_bytes().splitlines()[-4:] == [b"other 0", b"first", b"other 1", b"again"]
    packed = linked.topic("packed", compression_type="lz4").logs[0]
    linked.shows("packed-0")
    eventually(lambda: linked.told("packed-0")["lag_records"] == 0, "the mirror has begun")
    append(linked.mount / "packed-0/log.txt", b"one\ntwo\n")
    assert [Codec(data[22] & 7) for _, data in packed.batches] == [Codec.LZ4]
    assert (linked.mount / "packed-0/log.txt").read_bytes() == b"one\ntwo\n"


def test_a_batch_of_an_inbox_is_a_transaction_of_the_cluster(linked: Linked) -> None:
    """M15. A batch, or a file, in the `inbox` of a mirrored topic is one transaction of the cluster over its
    partitions: what asks for it returns when it is committed and every view shows it, and nothing of it shows
    before. I1 to I24 hold, after `kill -9` of the daemon, of a leader or of the coordinator at any step too. Where
    the coordinator does not answer within `delivery.timeout.ms`, or before the mount ends, the call
    is ETIMEDOUT: the batch's files stay, no other batch of the topic is taken before it is known how it has ended,
    and making `_SUCCESS` again tells, or commits it."""
    topic = linked.topic("batches")
    topic.logs[1] = type(topic.logs[0])()
    linked.shows("batches-1")
    for number in (0, 1):
        name = f"batches-{number}"
        eventually(lambda name=name: linked.told(name)["lag_records"] == 0, "the mirror has begun")  # type: ignore[misc]
    inbox = linked.mount / "topics/batches/inbox"

    def shown() -> list[bytes]:
        files = [linked.mount / f"batches-{number}/log.txt" for number in (0, 1)]
        return sorted(line for file in files for line in file.read_bytes().splitlines())

    def lay(batch: str, *lines: str) -> None:
        (inbox / batch).mkdir()
        for number, line in enumerate(lines):
            text = f'{{"value":"{line}","partition":{number}}}\n'
            (inbox / batch / f"part-{number}.jsonl").write_text(text)

    lay("b1", "one", "two")
    assert shown() == []
    (inbox / "b1/_SUCCESS").touch()
    assert shown() == [b"one", b"two"]
    assert [log.end for log in topic.logs.values()] == [2, 2]
    lay("b2", "three", "four")

    def away(_: Any, told: Any) -> None:
        told.error_code = 15

    linked.broker.twist[EndTxnRequest] = away
    with refused(errno.ETIMEDOUT):
        (inbox / "b2/_SUCCESS").touch()
    assert sorted(each.name for each in (inbox / "b2").iterdir()) == ["part-0.jsonl", "part-1.jsonl"]
    del linked.broker.twist[EndTxnRequest]
    (inbox / "b2/_SUCCESS").touch()
    assert shown() == [b"four", b"one", b"three", b"two"]


def test_daemons_of_one_group_divide_the_partitions(tmp_path: Path) -> None:
    """M16. Daemons with the same `link.group` divide the partitions by Kafka's group protocol: each is mirrored by
    one of them, and no more by the others, whose `last_error` says so. When one dies, or is stopped for longer than
    `session.timeout.ms`, others go on with its partitions, and it writes nothing to them until it has joined anew.
    `metrics` tells how many a daemon has, and of how many."""
    with a_link(tmp_path, "--link-group", "daemons", "-o", "link.create=true") as linked:
        linked.mount.expect("mirrors nothing until")
        linked.mount.expect("the group of daemons cannot be asked")
        (linked.mount / "topics/made").mkdir()
        assert (linked.mount / "topics/made").is_dir(), "regression: ENOENT, as the group had not divided it"
        del linked.broker.topics["made"]
        delete(linked.mount / "topics/made")
        topic = linked.topic("divided", b"one")
        topic.logs[1] = type(topic.logs[0])()
        for number in (0, 1):
            eventually(lambda at=number: linked.has(f"divided-{at}"), "it is mirrored")
        # Another one joins. What this one is to give up is not given to the other before it has.
        linked.broker.other = frozenset()
        eventually(lambda: len(linked.broker.other or ()) == 1, "the other one has half")
        ((_, lost),) = linked.broker.other or ()
        eventually(
            lambda: "another daemon" in str(linked.told(f"divided-{lost}")["last_error"]), "it says so"
        )
        assert linked.has(f"divided-{1 - lost}")
        told = (linked.mount / "metrics").read_text()
        for line in ("up 1.0", "members 2.0", "given_partitions 1.0", "wanted_partitions 2.0"):
            assert f"topicfs_link_group_{line}\n" in told
        topic.logs[lost].add(b"theirs")
        topic.logs[1 - lost].add(b"ours")
        eventually(lambda: linked.told(f"divided-{1 - lost}")["lag_records"] == 0, "its own goes on")
        assert b"theirs" not in (linked.mount / f"divided-{lost}/log.txt").read_bytes()
        # The other one dies.
        linked.broker.other = None
        eventually(lambda: linked.has(f"divided-{lost}"), "it is taken over")
        linked.shows(f"divided-{lost}", *([b"one"] if lost == 0 else []), b"theirs")
        # The coordinator has given it up: it joins as another.
        linked.broker.beats = [25]
        eventually(lambda: not linked.broker.beats, "it hears of it")
        topic.logs[0].add(b"more")
        eventually(lambda: (linked.mount / "divided-0/offset/-1.txt").read_bytes() == b"more\n", "it goes on")


# Kafka's own test vectors of murmur2, by `toPositive(hash) % 4`.
KEYS_OF_FOUR = ("21", "lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", "foobar", "abc")


def _keys_of_others_are_refused(linked: Linked) -> None:
    """Another daemon has some of four partitions: a key is in the partition of all producers, or nowhere."""
    topic = linked.topic("keyed", cleanup_policy="compact")
    for number in (1, 2, 3):
        topic.logs[number] = type(topic.logs[0])()
    eventually(lambda: all(linked.has(f"keyed-{number}") for number in range(4)), "all are here")
    linked.broker.other = frozenset()
    eventually(lambda: len(linked.broker.other or ()) >= 2, "the other one has half")
    theirs = {number for name, number in linked.broker.other or () if name == "keyed"}
    eventually(lambda: not any((linked.mount / f"keyed-{each}").exists() for each in theirs), "given up")
    assert 0 < len(theirs) < 4
    for number, key in enumerate(KEYS_OF_FOUR):
        line = f'{{"key":"{key}","value":"v"}}\n'.encode()
        if number in theirs:
            with refused(errno.EINVAL):
                append(linked.mount / "topics/keyed/in.jsonl", line)
            staged = linked.mount / "topics/keyed/inbox/.lines"
            staged.write_bytes(line)
            with refused(errno.EINVAL):
                staged.rename(staged.with_name(f"{key}.jsonl"))
            with refused(errno.EINVAL):
                (linked.mount / "topics/keyed/keys" / key).write_bytes(b"v")
        else:
            append(linked.mount / "topics/keyed/in.jsonl", line)
    assert {number for number, log in topic.logs.items() if log.end} == {0, 1, 2, 3} - theirs
    linked.broker.other = None


def test_a_partition_moves_to_the_daemon_that_takes_it_over(tmp_path: Path) -> None:
    """M17. With `link.group.directory`, the directory in which the stores of a group's daemons lie side by side, a
    partition moves with all that was mirrored into the store of the daemon that takes it over, and shows there alone.
    Whoever reads that directory, as Spark's data source and `topicfs.arrow` do, finds the partitions of all of
    them. Where a group divides a topic, a key belongs to the partition that all producers of the cluster choose for
    it: where that is another daemon's, a line in `in.<fmt>`, a file in `inbox` and setting it in `keys` are EINVAL."""
    stores = tmp_path / "stores"
    options = ("--link-group", "daemons", "-o", f"link.group.directory={stores}")
    lack = missing()
    if lack is not None:
        pytest.skip(lack)
    mounts = {name: DaemonMount(tmp_path / name) for name in ("one", "two")}
    with StandInBroker.running() as broker:
        try:
            daemons: dict[str, Linked] = {}
            for name, mount in mounts.items():
                mount.backing = stores / name
                daemons[name] = Linked(broker, mount, tmp_path / name)
            one, two = daemons["one"], daemons["two"]
            one.start(*options)
            topic = one.topic("moved", b"one", b"two")
            one.shows("moved-0", b"one", b"two")
            assert mounts["one"].stop() == 0
            # What the cluster has deleted since can only come from the store that had it.
            topic.logs[0].start = 2
            topic.logs[0].add(b"three")
            two.start(*options)
            two.shows("moved-0", b"one", b"two", b"three")
            mounts["two"].kill()
            assert set(place_of(str(stores)).partitions()) == {("moved", 0)}
            assert arrow(stores, "moved").read_all()["value"].to_pylist() == [b"one", b"two", b"three"]
            topic.logs[0].add(b"four")
            one.start(*options)
            one.shows("moved-0", b"one", b"two", b"three", b"four")
            assert not (stores / "two/logs/moved-0").exists()
            _keys_of_others_are_refused(one)
            assert mounts["one"].stop() == 0
            assert mounts["one"].alarms() == mounts["two"].alarms() == []
        finally:
            for mount in mounts.values():
                mount.clear()
