"""`fs/SEMANTICS.md`: batches of several topics' inboxes, and imports."""

from __future__ import annotations

import errno
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from daemon_mount import DaemonMount, eventually, opened, own_mount, refused
from inboxes import Topic, commit

pytest_plugins = ["shared_mount"]

DAY = 86_400_000
THOROUGH = os.environ.get("HYPOTHESIS_PROFILE") == "thorough"


def several(*topics: Topic, batch: str, x: str) -> Path:
    """A batch of several topics, with the same lines for each, ready to be committed. Return its directory in the first
    one."""
    for topic in topics:
        topic.batch(batch, x=x)
    first = topics[0].inbox / batch
    (first / "_topics").write_text("".join(f"{topic.name}\n" for topic in topics[1:]))
    return first


def test_a_batch_of_several_topics(mount: DaemonMount) -> None:
    """I26. `_topics` in a batch's directory names topics, a line each: `_SUCCESS` there appends the batches of that
    name in the inboxes of all of them and of its own topic, in one transaction, all or none; a batch that one of the
    topics has committed before is left out. I1, I7, I8, I16, I18 and I21 hold for each. A name of no topic is EINVAL,
    and so are topics that mirror those of a Kafka cluster together with others: no coordinator decides for both in one
    step.
    """
    one, other, third = Topic(mount), Topic(mount), Topic(mount)
    topics = (one, other, third)

    def values() -> list[list[str]]:
        return [topic.values() for topic in topics]

    batch = several(*topics, batch="b", x="a\n")
    commit(batch)
    assert values() == [["a"], ["a"], ["a"]]
    assert [os.listdir(topic.inbox) for topic in topics] == [[], [], []]
    # It comes again whole, and with other records in one of the topics.
    for topic in topics:
        (topic.inbox / "b").mkdir(exist_ok=True)
        (topic.inbox / "b/x.txt").write_text("a\n")
    (batch / "_topics").write_text(f"{other.name}\n{third.name}\n")
    commit(batch)
    for topic, text in zip(topics, ("a\n", "other\n", "a\n"), strict=True):
        (topic.inbox / "b").mkdir(exist_ok=True)
        (topic.inbox / "b/x.txt").write_text(text)
    (batch / "_topics").write_text(f"{other.name}\n{third.name}\n")
    with refused(errno.EEXIST):
        commit(batch)
    assert [(topic.inbox / "b/x.txt").exists() for topic in topics] == [True, True, True]
    assert values() == [["a"], ["a"], ["a"]]
    # One of the topics has its batch already.
    batch = several(*topics, batch="c", x="b\n")
    commit(third.inbox / "c")
    commit(batch)
    assert values() == [["a", "b"]] * 3
    # What one topic refuses, and what is not whole, leaves all as it was.
    batch = several(*topics, batch="d", x="c\n")
    (other.inbox / "d/y.jsonl").write_text("no json\n")
    with refused(errno.EINVAL):
        commit(batch)
    assert f"{other.name}/d/y.jsonl: line 1" in mount.status(one.partition())["last_refusal"]["reason"]
    (other.inbox / "d/y.jsonl").unlink()
    with opened(third.inbox / "d/z.txt", os.O_WRONLY | os.O_CREAT), refused(errno.EBUSY):
        commit(batch)
    (third.inbox / "d/z.txt").unlink()
    (third.inbox / "d/x.txt").unlink()
    with refused(errno.ENODATA):
        commit(batch)
    (batch / "_topics").write_text("no-such-topic\n")
    with refused(errno.EINVAL):
        commit(batch)
    assert "'no-such-topic', which is none" in mount.status(one.partition())["last_refusal"]["reason"]
    assert values() == [["a", "b"]] * 3
    (batch / "_topics").write_text(f"{other.name}\n")
    commit(batch)
    assert values() == [["a", "b", "c"], ["a", "b", "c"], ["a", "b"]]


# Steps, behind a new producer and Ongoing: note, two appends, PrepareCommit; two markers, names, files, note, its end.
@pytest.mark.parametrize(
    "steps", [[step] for step in range(2, 13)] if THOROUGH else [range(2, 6), range(6, 13)], ids=str
)
def test_crashes_of_a_batch_of_several_topics(tmp_path: Path, steps: Sequence[int]) -> None:
    """I27. After `kill -9` of the daemon at any step of such a commit all of the topics have their batch or none,
    before anybody can read; committed again, together or one by one, each is there once.
    """
    step = random.choice(steps)
    served = DaemonMount(tmp_path)
    try:
        served.start()
        with served.watched():
            one, other = Topic(served, "t"), Topic(served, "u")
            batch = several(one, other, batch="b", x="a\n")
            served.steer("die_in_commit", one.partition(), step)
            with refused(errno.ECONNABORTED, errno.ENOTCONN):
                commit(batch)
            served.process.wait()
            served.process = None
            served.start()
            expected = ["a"] if step > 5 else []
            assert [one.values(), other.values()] == [expected, expected]
            for topic in (one, other):
                assert os.listdir(topic.inbox) == ([] if expected else ["b"])
                (topic.inbox / "b").mkdir(exist_ok=True)
                (topic.inbox / "b/x.txt").write_text("a\n")
            commit(other.inbox / "b")
            (batch / "_topics").write_text("u\n")
            commit(batch)
            assert [one.values(), other.values()] == [["a"], ["a"]]
        assert served.stop() == 0
        assert served.alarms() == []
    finally:
        served.clear()


def test_imports_that_die_and_that_meet(tmp_path: Path) -> None:
    """I28. What a `topicfs import` that was killed has left in `inbox`, under a name that begins with `.import-`, is
    removed ten minutes after its last change, once nobody has a file of it open for writing; of several imports of
    one file at once one says that it adds the records.
    """
    with own_mount(tmp_path) as served:
        topic = Topic(served, "t")
        command = [sys.executable, "-m", "topicfs.mountd.cli", "import", str(served.path), "t"]
        (tmp_path / "large.txt").touch()
        os.truncate(tmp_path / "large.txt", 400 << 20)
        staged = served.backing / "staging" / "t" / "inbox"
        large = subprocess.Popen([*command, str(tmp_path / "large.txt")])
        while not list(staged.glob(".import-*/records.txt")):
            assert large.poll() is None
            time.sleep(0.001)
        large.send_signal(signal.SIGSTOP)
        assert [name for name in os.listdir(topic.inbox) if name.startswith(".import-")]
        assert served.steer("sweep_inboxes", topic.partition(), 0) == 0
        assert served.steer("sweep_inboxes", topic.partition(), 8 * DAY) == 0
        assert len(os.listdir(topic.inbox)) == 1
        large.kill()
        large.wait()
        eventually(lambda: served.steer("sweep_inboxes", topic.partition(), 8 * DAY) == 1, "a sweep")
        assert os.listdir(topic.inbox) == []
        (tmp_path / "small.txt").write_bytes(b"line\n" * 1000)
        imports = [
            subprocess.Popen([*command, str(tmp_path / "small.txt")], stdout=subprocess.PIPE, text=True)
            for _ in range(4)
        ]
        said = sorted(each.communicate()[0].partition(": ")[2] for each in imports)
        assert [each.returncode for each in imports] == [0] * 4
        assert (
            said
            == ["1000 records are added\n"] + ["1000 records were imported before: nothing is added\n"] * 3
        )
        assert len(topic.records()) == 1000
