"""Mount points: what the kernel's table says, what may be mounted where, who serves a mount."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from topicfs import Store
from topicfs.engine.errors import NoStoreError
from topicfs.engine.files import place
from topicfs.mountd import mounts
from topicfs.mountd.mounts import Mount, MountError

TABLE = (
    b"22 1 8:1 / / rw,relatime - ext4 /dev/vda rw\n"
    b"36 22 0:32 / /mnt/my\\040logs rw,nosuid shared:1 master:2 - fuse.topicfs topicfs:/data/a%20b rw,user_id=0\n"
    b"37 22 0:33 / /mnt/back\\134slash rw - fuse.sshfs host:/x rw\n"
    b"38 36 0:34 / /mnt/my\\040logs rw - tmpfs tmpfs rw\n"
)


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "mountinfo"
    path.write_bytes(TABLE)
    monkeypatch.setattr(mounts, "_TABLE", path)
    return path


def test_escapes_in_the_kernels_table_are_undone(table: Path) -> None:
    expected = Mount(Path("/mnt/back\\slash"), "fuse.sshfs", "host:/x", "0:33")
    assert mounts.find(Path("/mnt/back\\slash")) == expected


def test_uppermost_mount_at_a_path_counts(table: Path) -> None:
    found = mounts.find(Path("/mnt/my logs"))
    assert found is not None
    assert found.kind == "tmpfs"


def test_path_below_a_mount_is_no_mount(table: Path) -> None:
    assert mounts.find(Path("/mnt/my logs/orders-0")) is None


@pytest.mark.parametrize(
    "backing",
    ["/data", "/with blank", "/comma,and\\back", "/100%", "/grün", "/not-utf8-\udcff", "/new\nline"],
)
def test_source_of_a_mount_names_its_backing_directory(backing: str) -> None:
    source = mounts.source_of(Path(backing))
    assert not set(source) & set(", \\\n")
    assert source.isascii()
    assert Mount(Path("/m"), "fuse.topicfs", source).backing == Path(backing)


@pytest.mark.parametrize(("kind", "source"), [("fuse.sshfs", "topicfs:/data"), ("fuse.topicfs", "elsewhere")])
def test_other_mounts_have_no_backing_directory(kind: str, source: str) -> None:
    assert Mount(Path("/m"), kind, source).backing is None


# -- before mounting ----------------------------------------------------------------------------------


def test_a_machine_without_the_device_is_told_what_mends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mounts, "_DEVICE", tmp_path / "fuse")
    with pytest.raises(MountError, match=r"modprobe fuse.*--device /dev/fuse"):
        mounts.check_machine()


def test_a_machine_without_fusermount_is_told_what_mends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mounts, "_HELPERS", ("no-such-program",))
    with pytest.raises(MountError, match="apt-get install fuse"):
        mounts.check_machine()


def test_a_machine_without_libfuse_is_told_what_mends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mounts, "_has_libfuse", lambda: False)
    with pytest.raises(MountError, match="apt-get install libfuse2"):
        mounts.check_machine()


def test_what_the_machine_lacks_is_told_before_anything_slow_or_lasting(tmp_path: Path) -> None:
    program = (
        "import sys\nfrom pathlib import Path\nfrom topicfs.mountd import mounts\nfrom topicfs.mountd.cli import main\n"
        "mounts._DEVICE = Path('/nonexistent/fuse')\n"
        "try:\n    main(['mount', 'backing', 'mnt'])\n"
        "finally:\n    assert not {'numba', 'topicfs.engine.kernels'} & set(sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("topicfs: /nonexistent/fuse is missing: ")
    assert os.listdir(tmp_path) == []


def test_missing_mount_point_is_made(tmp_path: Path) -> None:
    point = tmp_path / "a" / "b"
    place.make(tmp_path / "backing")
    made = mounts.prepare(tmp_path / "backing", point)
    assert point.is_dir()
    made.take_back()
    assert os.listdir(tmp_path) == ["backing"]


@pytest.mark.parametrize("point", ["file/mnt", "a/b/" + "x" * 256, "/proc/mnt"])
def test_a_mount_point_that_cannot_be_made_leaves_no_store_and_no_directory(
    tmp_path: Path, point: str
) -> None:
    (tmp_path / "file").touch()
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(OSError, match=re.escape(Path(point).name)):
        mounts.prepare(tmp_path / "new", tmp_path / point, create=True)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_store_that_cannot_be_made_leaves_no_mount_point(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="File name too long"):
        mounts.prepare(tmp_path / ("x" * 256), tmp_path / "a" / "b", create=True)
    assert list(tmp_path.iterdir()) == []


def test_empty_mount_point_is_taken(tmp_path: Path) -> None:
    (tmp_path / "point").mkdir()
    place.make(tmp_path / "backing")
    mounts.prepare(tmp_path / "backing", tmp_path / "point").take_back()
    assert (tmp_path / "point").is_dir()
    assert (tmp_path / "backing/logs").is_dir()


@pytest.mark.parametrize(
    ("backing", "point", "words"),
    [
        ("same", "same", "are one directory"),
        ("data", "data/mnt", "lies inside the backing directory"),
        ("mnt/data", "mnt", "lies inside the mount point"),
        ("file", "mnt", "expected a store, which has logs/ in it, found a file"),
        ("data", "file", "expected a directory to mount at, found a file"),
        ("data", "full", "expected an empty directory to mount at, found 'x' in it"),
    ],
)
def test_unfit_directories_are_refused_in_words(tmp_path: Path, backing: str, point: str, words: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    place.make(tmp_path / "data")
    with pytest.raises((MountError, NoStoreError), match=words):
        mounts.prepare(tmp_path / backing, tmp_path / point)


@pytest.mark.parametrize("name", ["server.log", "2024/x", "app-0/server.log", "clicks-0/1.log"])
@pytest.mark.parametrize("create", [False, True])
@pytest.mark.parametrize("read_only", [False, True])
def test_a_directory_with_logs_of_something_else_is_no_store(
    tmp_path: Path, name: str, create: bool, read_only: bool
) -> None:
    foreign = tmp_path / "kafka" / "logs" / name
    foreign.parent.mkdir(parents=True)
    foreign.touch()
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(NoStoreError, match=r"kafka: expected .*, found one with something else"):
        mounts.prepare(tmp_path / "kafka", tmp_path / "point", {}, read_only, create)
    with pytest.raises(NoStoreError, match="kafka: expected a store"):
        Store.open(tmp_path / "kafka")
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    "name", ["", "lost+found/", ".lock", "meta.properties", "clicks-0/00000000000000000000.log"]
)
def test_logs_that_are_new_or_of_a_broker_make_a_store(tmp_path: Path, name: str) -> None:
    path = tmp_path / "store" / "logs" / name
    path.parent.mkdir(parents=True)
    path.mkdir() if path.suffix == "" and name != ".lock" else path.touch()
    assert place.kind_of(tmp_path / "store") is place.DirectoryKind.STORE


def test_mount_of_something_else_is_left_alone(tmp_path: Path, table: Path) -> None:
    point = tmp_path / "point"
    point.mkdir()
    table.write_text(f"36 22 0:32 / {point} rw - fuse.sshfs host:/x rw\n")
    place.make(tmp_path / "backing")
    with pytest.raises(MountError, match=r"expected no mount, found a mount of type fuse\.sshfs"):
        mounts.prepare(tmp_path / "backing", point)


def test_umount_of_what_is_not_mounted_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MountError, match="expected a mount of topicfs, found none"):
        mounts.leave(tmp_path, lambda _: pytest.fail("waited"))


def test_umount_of_something_else_is_refused(table: Path) -> None:
    with pytest.raises(MountError, match=r"expected a mount of topicfs, found fuse\.sshfs"):
        mounts.leave(Path("/mnt/back\\slash"), lambda _: pytest.fail("waited"))


# -- the lock -----------------------------------------------------------------------------------------


def test_lock_owner_is_the_process_that_has_the_store_open(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from topicfs.engine.files.lock import DirectoryLock\n"
        "lock = DirectoryLock.acquire(Path(sys.argv[1])); print('locked', flush=True); sys.stdin.read()"
    )
    (tmp_path / "logs").mkdir()
    with subprocess.Popen(
        [sys.executable, "-c", program, tmp_path / "logs"],
        cwd=Path(__file__).parents[2],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"locked\n"
        assert mounts.lock_owner(tmp_path) == owner.pid
        with pytest.raises(MountError, match=f"expected no owner, found process {owner.pid}"):
            mounts.prepare(tmp_path, tmp_path.with_name("point"))
        owner.communicate()
    assert mounts.lock_owner(tmp_path) is None


def test_lock_of_a_store_that_is_not_there_has_no_owner(tmp_path: Path) -> None:
    assert mounts.lock_owner(tmp_path / "nothing") is None


def test_directory_is_not_dead(tmp_path: Path) -> None:
    assert not mounts.is_dead(tmp_path)
    assert not mounts.is_dead(tmp_path / "missing")


def test_link_to_a_mount_point_is_followed(tmp_path: Path) -> None:
    os.symlink(tmp_path / "target", tmp_path / "link")
    assert mounts.real(tmp_path / "link" / "x") == mounts.real(tmp_path) / "target" / "x"
