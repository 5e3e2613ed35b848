"""A daemon of an ordinary user: started by root for the tests, as `nobody`, with a copy of the program that is his.

Each script runs in namespaces of its own: with a /dev/fuse that everybody may open, as machines have it, and an
/etc/fuse.conf of the test's; its mounts and processes end with it.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from harness import missing
from patience import eventually

from topicfs import Record

sys.path.append(str(Path(__file__).parents[1] / "interop"))  # kafka_broker.py: a real broker
import kafka_broker
from kafka_clients import create_topics, produce

ROOT = Path(__file__).parents[2]
PACKAGES = Path(np.__file__).parents[1]
BASE = Path(sys.base_prefix)
USER, OTHER = 65534, 1
LIMIT_S = 300
"""Where the interpreter is not the one that the kernels were compiled for, they are compiled here."""

NO_NAMESPACE = 77
PRELUDE = f"""
set -e
fail() {{ echo "$1"; exit 1; }}
user() {{ setpriv --reuid {USER} --regid {USER} --clear-groups -- "$@"; }}
other() {{ setpriv --reuid {OTHER} --regid {OTHER} --clear-groups -- "$@"; }}
topicfs() {{ user "$PYTHON" -m topicfs.mountd.cli "$@"; }}
{{
    mount --bind "$BASE" python && mount --bind "$PACKAGES" packages &&
        mount -t tmpfs topicfs-test dev && chmod 755 dev && mknod -m 666 dev/fuse c 10 229 &&
        mount --bind dev/fuse /dev/fuse && printf "$CONF" > dev/fuse.conf &&
        mount --bind dev/fuse.conf /etc/fuse.conf
}} || exit {NO_NAMESPACE}
cd home
"""

Script = Callable[..., tuple[int, str]]


@pytest.fixture(scope="module")
def interpreter() -> str:
    """This one, from where the scripts have it: it may be installed where only root gets to."""
    lack = missing()
    if lack is not None:
        pytest.skip(lack)
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    if shutil.which("unshare") is None or shutil.which("setpriv") is None:
        pytest.skip("unshare or setpriv is missing: apt-get install util-linux")
    try:
        pwd.getpwuid(USER)
    except KeyError:
        pytest.skip(f"there is no user {USER}")
    return str(Path("python", *Path(os.path.realpath(sys.executable)).relative_to(BASE).parts))


@pytest.fixture(scope="module")
def place(interpreter: str) -> Iterator[Path]:
    """Where every user can get to, with a home that is the user's, and the program in it."""
    with tempfile.TemporaryDirectory() as name:
        made = Path(name)
        made.chmod(0o755)
        for directory in ("dev", "python", "packages", "home"):
            (made / directory).mkdir()
        # As a wheel lays it out.
        program = made / "home/program/topicfs"
        shutil.copytree(ROOT / "engine/public", program)
        for package in ("engine", "fs", "mountd"):
            shutil.copytree(ROOT / package, program / package)
        subprocess.run(["chown", "-R", f"{USER}:{USER}", made / "home"], check=True)
        yield made


@pytest.fixture
def script(place: Path, interpreter: str) -> Iterator[Script]:
    """Runs a script; gives its exit code and all that it said."""

    def run(text: str, fuse_conf: str = "") -> tuple[int, str]:
        done = subprocess.run(
            [
                "unshare",
                "--mount",
                "--pid",
                "--fork",
                "--kill-child",
                "--mount-proc",
                "sh",
                "-c",
                PRELUDE + text,
            ],
            cwd=place,
            env={
                "PATH": os.environ["PATH"],
                "LC_ALL": "C",
                "HOME": str(place / "home"),
                "PYTHONPATH": f"{place / 'home/program'}:{place / 'packages'}",
                "PYTHON": str(place / interpreter),
                "LD_LIBRARY_PATH": str(place / "python/lib"),
                "BASE": str(BASE),
                "PACKAGES": str(PACKAGES),
                "CONF": fuse_conf,
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=LIMIT_S,
        )
        if done.returncode == NO_NAMESPACE:
            pytest.skip(f"namespaces cannot be had here: {done.stdout}")
        return done.returncode, done.stdout

    yield run
    for left in ("data", "mnt"):
        shutil.rmtree(place / "home" / left, ignore_errors=True)


def test_a_read_only_mount_needs_no_right_to_write(script: Script) -> None:
    """Of a store that another user owns, after a crash."""
    code, said = script(
        """
        topicfs mount --create data mnt
        user sh -c 'mkdir mnt/t-0; seq 1000 >> mnt/t-0/log.txt'
        daemon=$(sed -n 's/.*is mounted at .*, by process //p' data/topicfs.log)
        kill -9 $daemon
        while [ -e /proc/$daemon/cwd ]; do sleep 0.1; done
        chown -R root:root data; chmod -R go-w,a+rX data
        ! user touch data/logs/x 2>/dev/null || fail "it may write"
        before=$(find data -printf '%p %s %T@ %C@\\n' | sort)
        topicfs mount --read-only data mnt
        test "$(user tail -n 1 mnt/t-0/log.txt)" = 1000 || fail "its end is missing"
        test "$(user sh -c 'wc -l < mnt/t-0/log.txt')" = 1000 || fail "lines are missing"
        topicfs umount mnt
        homeless() { user env HOME=/nonexistent "$PYTHON" -m topicfs.mountd.cli "$@"; }
        homeless mount --read-only data mnt
        test "$(user tail -n 1 mnt/t-0/log.txt)" = 1000 || fail "it needs a home"
        homeless umount mnt
        test "$before" = "$(find data -printf '%p %s %T@ %C@\\n' | sort)" || fail "something changed"
        test -s .local/state/topicfs/*mnt.log || fail "no log"
        """
    )
    assert code == 0, said


def test_the_directory_of_a_running_broker_is_followed_without_the_right_to_write(
    place: Path, script: Script
) -> None:
    """It is another user's, and he reads in the mount what comes meanwhile."""
    lack = kafka_broker.missing()
    if lack is not None:
        pytest.skip(lack)
    asked = place / "home/asked"
    with kafka_broker.Broker.start(place / "broker", place / "broker-home") as broker:
        create_topics(broker.bootstrap, {"orders": {}})
        produce(broker.bootstrap, "orders", [Record(b"one"), Record(b"two")])

        def produce_when_asked() -> None:
            eventually(asked.exists, "the script", LIMIT_S)
            produce(broker.bootstrap, "orders", [Record(b"three")])

        producer = threading.Thread(target=produce_when_asked, daemon=True)
        producer.start()
        code, said = script(
            """
            ! user touch ../broker/x ../broker/orders-0/x 2>/dev/null || fail "it may write"
            topicfs mount --read-only ../broker followed
            [ "$(user cat followed/orders-0/log.txt | xargs)" = "one two" ] || fail "what was produced is not there"
            touch asked
            for _ in $(seq 600); do
                [ "$(user cat followed/orders-0/log.txt | xargs)" = "one two three" ] && break
                sleep 0.1
            done
            [ "$(user tail -n 1 followed/orders-0/log.txt)" = three ] || fail "what came later is not there"
            topicfs umount followed
            ! grep ' ERROR \\| WARNING ' .local/state/topicfs/*followed.log || fail "something was wrong"
            """
        )
        assert code == 0, said
        producer.join()
        assert broker.complaints() == []


def test_mount_append_read_and_unmount(script: Script) -> None:
    code, said = script(
        """
        topicfs mount --create data mnt
        user mkdir mnt/orders-0
        user sh -c 'echo one >> mnt/orders-0/log.txt'
        [ "$(user cat mnt/orders-0/log.txt)" = one ] || fail "what was appended is not there"
        [ "$(user stat -c %u mnt/orders-0/log.txt)" = 65534 ] || fail "the file is not the user's"
        [ "$(user stat -c %u data/topicfs.log)" = 65534 ] || fail "the log is not the user's"
        ! cat mnt/orders-0/log.txt 2> /dev/null || fail "root could read"
        ! other ls mnt 2> /dev/null || fail "another user could look"
        topicfs umount mnt
        ! grep -q "$PWD" /proc/mounts || fail "it is still mounted"
        topicfs mount --create data mnt
        user sh -c 'echo two >> mnt/orders-0/log.txt'
        [ "$(user cat mnt/orders-0/log.txt | tr '\\n' ' ')" = "one two " ] || fail "not the same after a remount"
        ! user rmdir mnt/orders-0 2> /dev/null || fail "rmdir removed records"
        topicfs delete mnt orders-0 --yes > said
        [ -z "$(user ls mnt | grep orders)" ] || fail "it is still there"
        grep -q 'topicfs undelete mnt orders-0' said || fail "nobody said how to take it back"
        topicfs umount mnt
        ! grep ' ERROR \\| WARNING ' data/topicfs.log || fail "something was wrong"
        """
    )
    assert code == 0, said


def test_a_dead_mount_is_cleared_away_by_the_next_one(script: Script) -> None:
    code, said = script(
        """
        topicfs mount --create data mnt
        user mkdir mnt/orders-0
        user sh -c 'echo one >> mnt/orders-0/log.txt'
        daemon=$(sed -n 's/.*is mounted at .*, by process //p' data/topicfs.log)
        user kill -9 $daemon
        while [ -e /proc/$daemon/cwd ]; do sleep 0.1; done
        ! user ls mnt 2> /dev/null || fail "it still answers"
        topicfs mount --create data mnt
        [ "$(user cat mnt/orders-0/log.txt)" = one ] || fail "what was acknowledged is lost"
        topicfs umount mnt
        ! grep -q "$PWD" /proc/mounts || fail "it is still mounted"
        """
    )
    assert code == 0, said


def test_a_user_without_a_home_has_the_kernels_that_were_compiled_at_installation(script: Script) -> None:
    code, said = script(
        """
        chown -R root:root program
        "$PYTHON" -m topicfs.mountd.kernels 2> /dev/null
        mkdir elsewhere
        chown 65534:65534 elsewhere
        cd elsewhere
        for home in "" HOME=/nonexistent; do
            user env -u HOME -u XDG_CACHE_HOME $home "$PYTHON" -m topicfs.mountd.cli mount --create data mnt
            user mkdir mnt/orders-0
            user sh -c 'echo one >> mnt/orders-0/log.txt'
            [ "$(user cat mnt/orders-0/log.txt)" = one ] || fail "what was appended is not there"
            user sh -c 'echo -1 > mnt/orders-0/start'
            user rmdir mnt/orders-0
            user env -u HOME "$PYTHON" -m topicfs.mountd.cli umount mnt
        done
        ! grep ' ERROR \\| WARNING ' data/topicfs.log || fail "something was wrong"
        cd ..
        chown -R 65534:65534 program
        """
    )
    assert code == 0, said
    assert "compiling" not in said


def test_allow_other_is_refused_in_words_where_the_machine_does_not_grant_it(script: Script) -> None:
    code, said = script(
        """
        ! topicfs mount --create --allow-other data mnt || fail "it was mounted"
        ! grep -q "$PWD" /proc/mounts || fail "something is mounted"
        [ ! -e mnt ] || fail "the directory that was made for it is left"
        [ ! -e data ] || fail "the store that was made for it is left"
        topicfs mount --create data mnt
        topicfs umount mnt
        """,
        fuse_conf="# user_allow_other\\n",
    )
    assert code == 0, said
    assert "option allow_other only allowed if 'user_allow_other' is set in /etc/fuse.conf" in said


def test_allow_other_lets_others_in_where_the_machine_grants_it(script: Script) -> None:
    code, said = script(
        """
        topicfs mount --create --allow-other data mnt
        user mkdir mnt/orders-0
        user sh -c 'echo one >> mnt/orders-0/log.txt'
        [ "$(other cat mnt/orders-0/log.txt)" = one ] || fail "another user could not read"
        [ "$(cat mnt/orders-0/log.txt)" = one ] || fail "root could not read"
        told='import os; print(os.getxattr("mnt", "user.topicfs.backing").decode())'
        [ "$(other "$PYTHON" -c "$told")" = "$PWD/data" ] || fail "another user is not told of data"
        ! other sh -c 'echo x >> mnt/orders-0/log.txt' 2> /dev/null || fail "another user could append"
        ! other "$PYTHON" -m topicfs.mountd.cli umount mnt || fail "another user could unmount"
        topicfs umount mnt
        """,
        fuse_conf="user_allow_other\\n",
    )
    assert code == 0, said
    assert "another user's" in said
