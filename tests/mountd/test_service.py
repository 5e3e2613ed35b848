"""A mount as a service: what systemd is told, the unit that starts it, and what mount(8) runs for a line of fstab."""

from __future__ import annotations

import configparser
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from daemon_place import ROOT, Place, cleared
from patience import PATIENCE_S

from topicfs.mountd import mount_helper
from topicfs.mountd.cli import main
from topicfs.mountd.service import ALIVE, READY, STOPPING, Service

UNIT = ROOT / "examples" / "topicfs@.service"


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    yield from cleared(Place(tmp_path))


def told(listener: socket.socket) -> str:
    return listener.recv(100).decode()


@pytest.mark.parametrize("name", ["/{}", "@{}"])
def test_a_manager_of_services_is_told_when_the_mount_answers_that_it_does_and_when_it_stops(
    place: Place, tmp_path: Path, name: str
) -> None:
    address = name.format(f"{tmp_path}/socket".lstrip("/"))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.settimeout(PATIENCE_S)
        listener.bind(address.replace("@", "\0", 1))
        command = place.start(
            *("mount", "--foreground", "--create", place.backing, place.mount),
            NOTIFY_SOCKET=address,
            WATCHDOG_USEC="100000",
        )
        assert told(listener) == READY
        assert place.mounted
        assert [told(listener) for _ in range(3)] == [ALIVE] * 3
        command.send_signal(signal.SIGTERM)
        while (state := told(listener)) == ALIVE:
            pass
        assert state == STOPPING
        assert command.wait(PATIENCE_S) == 0


def test_nobody_is_told_where_nobody_listens() -> None:
    assert Service.of({}) == Service(None, None)
    assert Service.of({"NOTIFY_SOCKET": "relative", "WATCHDOG_USEC": "x"}) == Service(None, None)
    assert (
        Service.of({"NOTIFY_SOCKET": "/s", "WATCHDOG_USEC": "2000000", "WATCHDOG_PID": "1"}).every_s is None
    )
    Service("/nobody/listens", None).tell(READY)


def test_the_unit_starts_what_the_command_takes() -> None:
    unit = configparser.ConfigParser(interpolation=None, strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(UNIT)
    assert unit["Service"]["Type"] == "notify"
    program, name, verb, *words = shlex.split(unit["Service"]["ExecStart"])
    assert (program, name) == ("/usr/bin/env", "topicfs")
    options = [option for parameter in main.commands[verb].params for option in parameter.opts]
    # Unlike ${OPTIONS}, which would be one word, and an empty one where nothing is set.
    assert words[-3:] == ["$OPTIONS", "${BACKING}", "${MOUNT}"]
    assert [word for word in words if word.startswith("-") and word not in options] == []
    if shutil.which("systemd-analyze") is not None:
        checked = subprocess.run(
            ["systemd-analyze", "verify", UNIT], capture_output=True, text=True, check=False
        )
        assert "topicfs@" not in checked.stderr, checked.stderr


def test_a_line_of_fstab_becomes_the_words_of_topicfs_mount() -> None:
    line = "rw,allow_other,log.retention.hours=48,_netdev,nofail,x-systemd.automount"
    assert mount_helper.words_of(["/b", "/m", "-n", "-o", line]) == [
        *("mount", "--allow-other", "-o", "log.retention.hours=48", "--", "/b", "/m")
    ]
    assert mount_helper.words_of(["/b", "/m", "-o", "ro"]) == ["mount", "--read-only", "--", "/b", "/m"]
    assert mount_helper.words_of(["-r", "/b", "/m"]) == ["mount", "--read-only", "--", "/b", "/m"]
    assert mount_helper.words_of(["/b", "/m", "-f"]) is None
    assert mount_helper.words_of(["/b", "/m", "-o", "rw,noexec,user=ann,strictatime"]) == [
        "mount",
        "--",
        "/b",
        "/m",
    ]
    for words in (
        ["/b"],
        ["/b", "/m", "-o"],
        ["/b", "/m", "-o", "alow_other"],
        ["/b", "/m", "-o", "remount"],
    ):
        with pytest.raises(mount_helper.UsageError):
            mount_helper.words_of(words)


@pytest.mark.parametrize(
    "written", ['log.cleanup.policy="compact,delete"', r"log.cleanup.policy=compact\,delete"]
)
def test_a_comma_in_quotes_or_behind_a_backslash_is_part_of_a_value_in_fstab(written: str) -> None:
    assert mount_helper.words_of(["/b", "/m", "-o", f"rw,{written},nofail"]) == [
        *("mount", "-o", "log.cleanup.policy=compact,delete", "--", "/b", "/m")
    ]


@pytest.mark.skipif(
    os.geteuid() != 0, reason="mount(8) runs helpers from /sbin alone, which only root writes"
)
def test_mount_of_the_type_mounts(place: Place) -> None:
    helper = Path("/sbin/mount.fuse.topicfs")
    if helper.exists():
        pytest.skip(f"{helper} is there already: an installation's own is left alone")
    place.real = True
    try:
        helper.symlink_to(Path(sys.executable).with_name("mount.fuse.topicfs"))
    except OSError as error:
        pytest.skip(f"{helper} cannot be made: {error}")
    try:
        words = [
            "-t",
            "fuse.topicfs",
            "-o",
            'create,nofail,num.partitions=2,log.cleanup.policy="compact,delete"',
            place.backing,
            place.mount,
        ]
        place.mount.mkdir()
        done = subprocess.run(["mount", *map(str, words)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        (place.mount / "topics/t").mkdir()
        assert (place.mount / "t-1").is_dir()
        assert "cleanup.policy=compact,delete" in (place.mount / "topics/t/config").read_text()
        # What is mounted by mount(8) is unmounted by umount(8).
        subprocess.run(["umount", place.mount], check=True)
    finally:
        helper.unlink()
