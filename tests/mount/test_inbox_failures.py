"""The inbox when the daemon is killed, or its disk is full."""

from __future__ import annotations

import errno
from pathlib import Path

from daemon_mount import DaemonMount, append, eventually, fill, full_disk, refused
from inboxes import Topic, commit


def test_a_file_whose_rename_was_broken_off_is_there_still_or_appended(tmp_path: Path) -> None:
    served = DaemonMount(tmp_path)
    try:
        served.start()
        with served.watched():
            topic = Topic(served, "t")
            for step, is_there in ((2, True), (5, False)):
                (topic.inbox / ".x").write_text("a\n")
                served.steer("die_in_commit", topic.partition(), step)
                with refused(errno.ECONNABORTED, errno.ENOTCONN):
                    (topic.inbox / ".x").rename(topic.inbox / "x.txt")
                served.process.wait()
                served.process = None
                served.start()
                assert (topic.inbox / ".x").exists() is is_there
                if is_there:
                    (topic.inbox / ".x").rename(topic.inbox / "x.txt")
            assert topic.values() == ["a", "a"]
        assert served.stop() == 0
        assert served.alarms() == []
    finally:
        served.clear()


def test_without_room_nothing_is_appended_and_nothing_is_held_up(tmp_path: Path) -> None:
    with full_disk(tmp_path) as (served, filler):
        topic = Topic(served, "t")
        served.expect("No space left")
        served.expect("cannot be aborted yet")
        served.expect("tried again")
        batch = topic.batch("b", x="x" * 100 + "\n" + "y" * 500_000 + "\n")
        fill(filler)
        with refused(errno.ENOSPC):
            commit(batch)
        filler.unlink()
        append(topic.partition() / "log.txt", b"meanwhile\n")
        eventually(lambda: "meanwhile" in topic.values(), "what was appended later shows")
        assert len(topic.values()) == 1
        commit(batch)
        assert len(topic.values()) == 3
