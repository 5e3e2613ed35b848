"""The daemon on a real mount: start, stop in every way, and what happens when either goes wrong."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import pytest
from daemon_place import Place, alive, children
from patience import PATIENCE_S, eventually

from topicfs.mountd import mounts

LONG = "60"


def write(place: Place, text: str) -> None:
    with open(place.mount / "log", "a") as log:
        log.write(text)


# -- start and stop -----------------------------------------------------------------------------------


def test_mount_returns_when_the_mount_answers_and_umount_when_all_is_gone(place: Place) -> None:
    process = place.up()
    assert sorted(os.listdir(place.mount)) == ["follow", "log", "metrics"]
    assert not place.stopped_clean
    place.down()
    assert not alive(process)
    assert not place.mounted
    assert place.stopped_clean


@pytest.mark.busy
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signal_does_the_same_as_umount_and_loses_no_accepted_line(place: Place, number: int) -> None:
    process = place.up(STAND_IN_LINGER=LONG)
    write(place, "accepted\n")
    os.kill(process, number)
    place.wait_until_gone(process)
    assert place.stopped_clean
    assert place.values() == [b"accepted"]


def test_umount_appends_what_lingers(place: Place) -> None:
    place.up(STAND_IN_LINGER=LONG)
    write(place, "accepted\n")
    place.down()
    assert place.values() == [b"accepted"]


def test_umount_from_outside_stops_the_daemon_cleanly(place: Place) -> None:
    process = place.up(STAND_IN_LINGER=LONG)
    write(place, "accepted\n")
    mounts.unmount(place.mount)
    place.wait_until_gone(process)
    assert place.stopped_clean
    assert place.values() == [b"accepted"]


@pytest.mark.busy
def test_many_signals_are_one(place: Place) -> None:
    process = place.up()
    for _ in range(5):
        os.kill(process, signal.SIGTERM)
        os.kill(process, signal.SIGINT)
    place.wait_until_gone(process)
    assert place.stopped_clean


@pytest.mark.busy
def test_umount_releases_a_blocked_reader_and_an_open_file(place: Place) -> None:
    place.up()
    opened = os.open(place.mount / "log", os.O_WRONLY | os.O_APPEND)
    reader = subprocess.Popen(["cat", place.mount / "follow"], stderr=subprocess.PIPE)
    time.sleep(0.2)
    assert reader.poll() is None
    place.down("--force")
    with pytest.raises(OSError, match="not connected"):
        os.close(opened)
    _, complaint = reader.communicate(timeout=PATIENCE_S)
    assert reader.returncode == 1
    assert b"cat:" in complaint


@pytest.mark.busy
def test_lingering_lines_show_without_a_stop(place: Place) -> None:
    place.up()
    write(place, "shown\n")
    with open(place.mount / "log") as log:
        eventually(lambda: (log.seek(0), log.read(6))[1] == "shown\n", "the line")
    place.down()


def test_flusher_outlives_a_mistake(place: Place) -> None:
    place.up()
    write(place, "panic\n")
    eventually(lambda: "linger failed, and begins anew" in place.log, "the mistake")
    write(place, "after\n")
    with open(place.mount / "log") as log:
        eventually(lambda: (log.seek(0), log.read(6))[1] == "after\n", "the line")
    place.down()
    assert "RuntimeError: a mistake in the file system" in place.log


def test_read_only_mount_refuses_changes(place: Place) -> None:
    place.up()
    place.down()
    code, said = place.run("mount", "--read-only", place.backing, place.mount)
    assert code == 0, said
    with pytest.raises(OSError, match="Read-only file system"):
        write(place, "no\n")
    place.down()


def test_daemon_lets_go_of_its_callers_terminal_directory_and_descriptors(place: Place) -> None:
    with tempfile.NamedTemporaryFile() as held:
        os.set_inheritable(held.fileno(), True)
        process = place.up()
        targets = {link.name: os.readlink(link) for link in Path(f"/proc/{process}/fd").iterdir()}
        assert [targets[str(number)] for number in range(3)] == ["/dev/null"] * 3
        assert held.name not in targets.values()
    assert os.getsid(process) == process
    assert os.readlink(f"/proc/{process}/cwd") == "/"
    place.down()


def test_metrics_are_served(place: Place) -> None:
    place.up()
    write(place, "one\ntwo\n")
    eventually(
        lambda: 'end_offset{partition="0",topic="t"} 2.0' in (place.mount / "metrics").read_text(),
        "2 records",
    )
    place.down()


def test_foreground_stays_until_ctrl_c_and_logs_to_stderr(place: Place) -> None:
    command = place.start("mount", "--create", "--foreground", place.backing, place.mount)
    eventually(lambda: place.mounted or command.poll() is not None, "mount")
    assert "metrics" in os.listdir(place.mount)
    assert command.poll() is None
    command.send_signal(signal.SIGINT)
    _, complaint = command.communicate(timeout=PATIENCE_S)
    assert command.returncode == 0
    assert "is mounted at" in complaint
    assert "stopped cleanly" in complaint
    assert "stopped cleanly" in place.log
    assert not place.mounted


# -- after a crash ------------------------------------------------------------------------------------


def test_mount_after_a_kill_cleans_the_mount_point_and_recovers(place: Place) -> None:
    process = place.up()
    write(place, "before\n")
    eventually(
        lambda: b"before" in (place.backing / "logs/t-0/00000000000000000000.log").read_bytes(), "append"
    )
    os.kill(process, signal.SIGKILL)
    eventually(lambda: mounts.is_dead(place.mount), "dead mount")
    place.up()
    write(place, "after\n")
    place.down()
    assert "after an unclean stop" in place.log
    assert place.values() == [b"before", b"after"]


def test_umount_of_a_dead_mount_removes_it(place: Place) -> None:
    process = place.up()
    os.kill(process, signal.SIGKILL)
    eventually(lambda: mounts.is_dead(place.mount), "dead mount")
    place.down()
    assert not place.mounted


def test_umount_tells_of_a_stop_that_was_not_clean(place: Place) -> None:
    place.up()
    write(place, "lost\n")
    (place.backing / "logs" / "t-0").rename(place.backing / "logs" / "elsewhere")
    code, said = place.run("umount", place.mount)
    assert code == 1
    assert "was not stopped cleanly" in said
    assert str(place.backing / "topicfs.log") in said
    assert not place.mounted


# -- starts that fail ---------------------------------------------------------------------------------


def check_refused(place: Place, code: int, said: str, *words: str) -> None:
    assert code == 1
    for each in words:
        assert each in said
    assert not place.mounted
    assert mounts.lock_owner(place.backing) is None


def test_second_daemon_on_a_backing_directory_is_refused(place: Place) -> None:
    process = place.up()
    other = place.mount.with_name("other")
    code, said = place.run("mount", "--create", place.backing, other)
    assert code == 1
    assert f"{place.backing}: expected no owner, found process {process}" in said
    assert not other.exists()
    code, said = place.run("mount", "--create", place.backing, place.mount)
    assert code == 1
    assert f"{place.backing} is mounted there already, served by process {process}" in said
    assert "log" in os.listdir(place.mount)
    place.down()


def test_unknown_setting_is_refused_by_its_name_and_the_directory_made_is_taken_back(place: Place) -> None:
    code, said = place.run("mount", "--create", "-o", "num.partitons=3", place.backing, place.mount)
    check_refused(place, code, said, "num.partitons", "did you mean num.partitions?")
    assert not place.mount.exists()


def test_setting_is_refused_by_its_value(place: Place) -> None:
    code, said = place.run("mount", "--create", "-o", "linger.ms=soon", place.backing, place.mount)
    check_refused(place, code, said, "linger.ms: expected a whole number of 64 bits", "'soon'")


def test_settings_outrank_server_properties(place: Place) -> None:
    place.backing.mkdir()
    (place.backing / "server.properties").write_text("log.flush.offset.checkpoint.interval.ms=3600000\n")
    options = ("-o", "log.flush.offset.checkpoint.interval.ms=1000", "-o", "log.initial.task.delay.ms=0")
    place.up(*options)
    runs = re.compile(r'^topicfs_job_runs_total\{job="checkpoint of recovery points"\} ([0-9.]+)$', re.M)

    def checkpoints() -> float:
        found = runs.search((place.mount / "metrics").read_text())
        return float(found[1]) if found else 0.0

    eventually(lambda: checkpoints() >= 2, "a second checkpoint, which would be an hour away")
    place.down()


def test_file_system_that_cannot_be_built_leaves_a_clean_store(place: Place) -> None:
    assert place.run("init", place.backing)[0] == 0
    code, said = place.run("mount", "--create", place.backing, place.mount, STAND_IN_FAILS="no such luck")
    check_refused(place, code, said, "topicfs: no such luck")
    assert place.stopped_clean
    assert not place.mount.exists()


@pytest.mark.parametrize("options", [(), ("--foreground",)])
def test_store_that_was_made_for_a_mount_that_failed_is_taken_back(
    place: Place, options: tuple[str, ...]
) -> None:
    above = place.backing.parent
    place.backing, place.mount = above / "new/a/data", above / "new/a/mount"
    arguments = ("mount", "--create", *options, place.backing, place.mount)
    code, said = place.run(*arguments, STAND_IN_FAILS="no such luck")
    check_refused(place, code, said, "no such luck")
    assert not (above / "new").exists()
    place.backing.mkdir(parents=True)
    (place.backing / "server.properties").touch()
    (place.backing / "topics").mkdir()
    assert place.run(*arguments, STAND_IN_FAILS="no such luck")[0] == 1
    assert sorted(os.listdir(place.backing)) == ["server.properties", "topics"]


def test_store_that_somebody_else_has_put_something_into_stays(place: Place) -> None:
    command = place.start(
        "mount", "--create", place.backing, place.mount, STAND_IN_FAILS="no such luck", STAND_IN_OPENING="2"
    )
    kept = place.backing / "logs" / "orders-0" / "00000000000000000000.log"
    eventually(kept.parent.parent.exists, "the store")
    kept.parent.mkdir()
    kept.touch()
    command.communicate(timeout=PATIENCE_S)
    assert command.returncode == 1
    assert kept.exists()
    assert place.stopped_clean


def test_mistake_at_start_is_told_and_logged_with_its_stack(place: Place) -> None:
    code, said = place.run("mount", "--create", place.backing, place.mount, STAND_IN_FAILS="mistake")
    check_refused(place, code, said, "RuntimeError: a mistake in the file system")
    assert "Traceback" in place.log, "the store that was made is not taken back: its log tells more"
    assert not place.mount.exists()


def test_daemon_that_is_killed_at_start_is_told_of(place: Place) -> None:
    code, said = place.run("mount", "--create", place.backing, place.mount, STAND_IN_FAILS="killed")
    check_refused(place, code, said, "the daemon was killed by SIGKILL before it was ready")


def test_libfuses_own_words_are_passed_on(place: Place) -> None:
    code, said = place.run("mount", "--create", place.backing, place.mount, STAND_IN_OPTION="nonsense")
    check_refused(place, code, said, "unknown option `nonsense'")
    assert place.stopped_clean


@pytest.mark.busy
def test_slow_start_says_what_it_waits_for(place: Place) -> None:
    code, said = place.run("mount", "--create", place.backing, place.mount, STAND_IN_SERVING="2.5")
    assert code == 0
    assert f"topicfs: mounting {place.mount}" in said
    place.down()


@pytest.mark.busy
@pytest.mark.parametrize("phase", ["STAND_IN_OPENING", "STAND_IN_SERVING"])
def test_signal_during_the_start_leaves_nothing_mounted(place: Place, phase: str) -> None:
    # The first start makes a store, so that there is one to be found unclean.
    place.up()
    place.down()
    command = place.start("mount", "--create", place.backing, place.mount, **{phase: "4"})
    waits = "opening" if phase == "STAND_IN_OPENING" else "mounting"
    eventually(lambda: waits in _line(command), "the phase")
    os.kill(children(command.pid)[0], signal.SIGTERM)
    _, complaint = command.communicate(timeout=PATIENCE_S)
    assert command.returncode == 1
    if phase == "STAND_IN_OPENING":
        assert "stopped by SIGTERM while" in complaint
    assert not place.mounted
    assert mounts.lock_owner(place.backing) is None
    assert place.stopped_clean


@pytest.mark.busy
def test_ctrl_c_while_waiting_for_the_start_ends_the_daemon(place: Place) -> None:
    command = place.start("mount", "--create", place.backing, place.mount, STAND_IN_SERVING="3")
    eventually(lambda: "mounting" in _line(command), "the phase")
    child = children(command.pid)[0]
    command.send_signal(signal.SIGINT)
    command.communicate(timeout=PATIENCE_S)
    assert command.returncode == 1
    assert not alive(child)
    assert not place.mount.exists()
    assert not place.mounted
    assert place.stopped_clean


@pytest.mark.busy
def test_start_whose_command_is_killed_mounts_nothing(place: Place) -> None:
    command = place.start("mount", "--create", place.backing, place.mount, STAND_IN_SERVING="2")
    eventually(lambda: "mounting" in _line(command), "the phase")
    child = children(command.pid)[0]
    command.kill()
    place.wait_until_gone(child)
    assert place.stopped_clean


def _line(command: subprocess.Popen[str]) -> str:
    assert command.stderr is not None
    return command.stderr.readline()
