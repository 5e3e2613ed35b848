"""`topicfs umount`: who keeps it from unmounting, and who does not."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from daemon_place import ROOT, Place, alive
from patience import eventually

from topicfs.mountd import mounts


def test_who_uses_the_mount_is_named_and_nothing_happens(place: Place) -> None:
    process = place.up()
    with (place.mount / "metrics").open("rb"):
        code, said = place.run("umount", place.mount)
        assert code == 1
        assert f"process {os.getpid()} (" in said
        assert f"): {place.mount}/metrics" in said
    assert alive(process)
    assert "metrics" in os.listdir(place.mount)
    place.down()
    assert not alive(process)
    assert place.stopped_clean


def test_many_users_are_counted(place: Place) -> None:
    place.up()
    users = [subprocess.Popen(["sleep", "1000"], cwd=place.mount) for _ in range(11)]
    code, said = place.run("umount", place.mount)
    for user in users:
        with user:
            user.kill()
    assert code == 1
    assert said.count("(sleep): working directory") == 8
    assert "and 3 more" in said
    place.down()


def test_a_program_that_leaves_at_once_is_waited_for(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.up()
    monkeypatch.setattr(mounts, "users_of", lambda *_: [])  # as for a user who may not look at the program
    monkeypatch.setattr(mounts, "_MOMENT_S", 60)
    monkeypatch.chdir("/")
    with subprocess.Popen(["sleep", "0.3"], cwd=place.mount):
        mounts.leave(place.mount, lambda _: pytest.fail("waited"))
    assert not place.mounted


def test_a_user_who_cannot_be_seen_is_told_of(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    process = place.up()
    monkeypatch.setattr(mounts, "users_of", lambda *_: [])
    monkeypatch.setattr(mounts, "_MOMENT_S", 0.1)
    monkeypatch.chdir("/")
    with (
        (place.mount / "metrics").open("rb"),
        pytest.raises(mounts.BusyMountError, match="somebody whom this user does not see"),
    ):
        mounts.leave(place.mount, lambda _: pytest.fail("waited"))
    assert alive(process)
    place.down()


def test_the_command_may_stand_in_the_mount_itself(place: Place) -> None:
    place.up()
    done = subprocess.run(
        [sys.executable, "-m", "topicfs.mountd.cli", "umount", "."],
        cwd=place.mount,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert not place.mounted


def test_force_tells_from_whom_it_is_taken(place: Place) -> None:
    process = place.up()
    with subprocess.Popen(["sleep", "1000"], cwd=place.mount) as user:
        code, said = place.run("umount", "--force", place.mount)
        user.kill()
    assert code == 0
    assert f"process {user.pid} (sleep): working directory {place.mount}" in said
    assert not alive(process)
    assert place.stopped_clean


def test_a_listener_who_is_gone_does_not_stop_it_half_way(place: Place) -> None:
    process = place.up()
    reading, writing = os.pipe()
    os.close(reading)
    with subprocess.Popen(["sleep", "1000"], cwd=place.mount) as user:
        done = subprocess.run(
            [sys.executable, "-m", "topicfs.mountd.cli", "umount", "--force", place.mount],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stderr=writing,
            stdout=writing,
            check=False,
        )
        user.kill()
    os.close(writing)
    assert done.returncode == 0
    assert not alive(process)
    assert not place.mounted


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("unshare") is None, reason="only root makes namespaces")
def test_a_user_in_another_namespace_is_named_and_the_daemon_ends_all_the_same(place: Place) -> None:
    process = place.up()
    script = 'exec 3< "$1/metrics"; echo; exec cat'
    with subprocess.Popen(
        ["unshare", "--mount", "sh", "-c", script, "sh", place.mount],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"\n"
        code, said = place.run("umount", place.mount)
        assert code == 1
        assert f"process {other.pid} (cat): {place.mount}/metrics" in said
        other.kill()
    # One that only has a copy of the mount keeps nobody.
    with subprocess.Popen(
        ["unshare", "--mount", "sh", "-c", "echo; exec cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"\n"
        place.down()
        assert not alive(process)
        other.kill()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts")
def test_a_mount_of_the_same_store_that_is_dead_costs_the_living_one_nothing(place: Place) -> None:
    os.kill(place.up(), signal.SIGKILL)
    eventually(lambda: mounts.is_dead(place.mount), "dead mount")
    living = Path(f"{place.mount}-2")
    code, said = place.run("mount", place.backing, living)
    assert code == 0, said
    try:
        place.down()
        assert not place.mounted
        assert "metrics" in os.listdir(living)
    finally:
        code, said = place.run("umount", living)
    assert code == 0, said
