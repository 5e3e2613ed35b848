"""`fs/SEMANTICS.md`, a linked store: M. Its cluster is a stand-in; tests/interop has real ones."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from daemon_mount import ROOT, DaemonMount, append, delete, opened, refused
from harness import missing
from kafka.protocol.producer import ProduceRequest
from patience import PATIENCE_S, eventually
from stand_in_broker import StandInBroker, Topic

WARNINGS = (
    "a local topic has this name",
    "deleted in the cluster",
    "is not mirrored",
    "cannot be asked",
    "nothing is mirrored from broker",
    "were lost in the cluster",
    "was truncated",
)


class Linked:
    """A mount that is linked to a stand-in for a broker.

    broker  the stand-in
    mount   the mount
    """

    def __init__(self, broker: StandInBroker, mount: DaemonMount, place: Path) -> None:
        self.broker = broker
        self.mount = mount
        self.client = place / "client.properties"
        self.client.write_text(
            "metadata.max.age.ms=200\nreconnect.backoff.max.ms=200\nfetch.max.wait.ms=50\ndelivery.timeout.ms=1500\n"
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

    def told(self, partition: str) -> dict[str, Any]:
        """What `status.json` says of the link."""
        found = self.mount.status(self.mount / partition)["link"]
        assert isinstance(found, dict)
        return found


@contextmanager
def a_link(place: Path, *options: str) -> Iterator[Linked]:
    lack = missing()
    if lack is not None:
        pytest.skip(lack)
    mount = DaemonMount(place)
    with StandInBroker.running() as broker:
        linked = Linked(broker, mount, place)
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
    """M3. An append to `log.<fmt>` or `in.<fmt>` of a mirrored topic is one in the cluster: when the write(2) of whole
    lines returns, or close(2), its leader and all replicas in sync have acknowledged it, and every view here shows it.
    What is made in `inbox`, and mkdir of a partition, are EROFS; without `--link` every append is, and `last_refusal`
    says why."""
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
                assert log.end == 5 + number
        shown = (mount / "appended-0/log.txt").read_bytes()
        assert shown.endswith(b"".join(b"line %d\n" % number for number in range(20)))
        assert (mount / "appended-0/segments/00000000000000000000.log").read_bytes() == log.data()
        for again in (False, True):
            with refused(errno.EROFS):
                (mount / "topics/appended/inbox/batch").mkdir()
            with refused(errno.EROFS):
                (mount / "topics/appended/inbox/.file").write_bytes(b"two\n")
            with refused(errno.EROFS):
                (mount / "appended-1").mkdir()
            if not again:
                assert mount.stop() == 0
                mount.start()
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
    """M5. While the cluster is away all that was mirrored is read; `link` in `status.json` and `metrics` tell
    what is wrong and how far the mirror is behind; it goes on by itself when the cluster is back, and behind a
    `kill -9` where it was."""
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
    linked.topic("gone", b"old")
    linked.shows("gone-0", b"old")
    del linked.broker.topics["gone"]
    eventually(lambda: "deleted in the cluster" in str(linked.told("gone-0")["ended"]), "it is told")
    linked.shows("gone-0", b"old")
    linked.topic("gone", b"new", b"newer")
    eventually(lambda: "made anew" in str(linked.told("gone-0")["ended"]), "it is told")
    linked.shows("gone-0", b"old")
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
    """M10. An append that the cluster does not acknowledge within `delivery.timeout.ms` is ETIMEDOUT, and the words in
    `last_refusal` say whether it may have the lines; what is too large there is EMSGSIZE, what this user may not do
    EACCES, what a rule of the topic forbids EINVAL."""
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
    """M11. A signal for who writes ends the wait for the cluster, at the latest when `request.timeout.ms` of a request
    under way is over: the write fails as if its time were over."""
    with a_link(tmp_path) as linked:
        linked.client.write_text(linked.client.read_text().replace("1500", "600000"))
        assert linked.mount.stop() == 0
        linked.start()
        log = linked.topic("waits", b"one").logs[0]
        linked.shows("waits-0", b"one")
        eventually(lambda: linked.told("waits-0")["lag_records"] == 0, "the mirror has begun")
        linked.broker.refuse = [19] * 10_000
        command = f"echo two >> {linked.mount / 'waits-0/log.txt'}"
        writer = subprocess.Popen(["bash", "-c", command], stderr=subprocess.DEVNULL)
        try:
            eventually(lambda: linked.broker.asked.get(ProduceRequest, 0) > 2, "it is sent again and again")
            writer.send_signal(signal.SIGINT)
            assert writer.wait(PATIENCE_S)
        finally:
            writer.kill()
        assert log.end == 1
