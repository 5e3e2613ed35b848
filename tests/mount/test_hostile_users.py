"""Users who mean harm, on a mount with `--allow-other`: no name leads out of it, and no bytes are another topic's."""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from daemon_mount import DaemonMount, append, delete, own_mount
from patience import ended

pytest_plugins = ["shared_mount"]

NOBODY = 65534
ROUNDS = 200 if os.environ.get("HYPOTHESIS_PROFILE") == "thorough" else 12
NAMES = (
    "..%2F..%2Foutside", "%2E%2E", "%2e%2e%2foutside", "..\\..\\outside", "%2Ftmp%2Foutside", ". .", "\u2025", "%00",
    "....", "..-0", "%2E%2E%2Foutside-0", "-0", "a%2F..%2Fb", "outside\n", "0" * 250 + "-0", "%252E%252E",
)  # fmt: skip
"""What some program, somewhere, has taken for a way upward."""


@pytest.fixture
def open_place() -> Iterator[Path]:
    """A place that every user can get to; pytest's own are root's alone."""
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        place.chmod(0o777)
        yield place


@contextlib.contextmanager
def as_nobody() -> Iterator[None]:
    """This thread's calls are another user's."""
    os.setegid(NOBODY)
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)


def snapshot(place: Path) -> dict[Path, bytes]:
    """All files there, but for what a mount shows and keeps."""
    return {
        path: path.read_bytes()
        for path in place.rglob("*")
        if not path.is_symlink()
        and path.is_file()
        and not {"mnt", "backing"} & set(path.relative_to(place).parts)
    }


def test_no_name_leads_out_of_the_mount(open_place: Path) -> None:
    """Whatever another user makes, the store keeps it inside, and opens again."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    (open_place / "outside").write_bytes(b"untouched")
    mount = DaemonMount(open_place)
    mount.backing.chmod(0o777)
    mount.configure("compacted", cleanup_policy="compact")
    with own_mount(open_place, "--allow-other") as mount:
        partition = mount.new("compacted")
        topic = mount / "topics/compacted"
        places = [mount.path, *(mount / name for name in ("topics", "groups", "producers", "transactions"))]
        (mount / "transactions/t").mkdir()
        (mount / "groups/g").mkdir()
        places += [
            mount / "transactions/t",
            mount / "groups/g",
            topic / "inbox",
            partition,
            partition / "keys",
        ]
        before, made = snapshot(open_place), 0
        with as_nobody():
            for place in places:
                for name in NAMES:
                    with contextlib.suppress(OSError):
                        (place / name).mkdir()
                        made += 1
                    for write in (f"{name}", f".{name}"):
                        with contextlib.suppress(OSError):
                            (place / write).write_bytes(b"x\n")
                            made += 1
                    with contextlib.suppress(OSError):
                        os.symlink(open_place / "outside", place / f".{name}")
                        pytest.fail(f"a link was made: {place / name}")
        assert made > 20
        assert {path: data for path, data in snapshot(open_place).items() if path in before} == before
        assert (open_place / "outside").read_bytes() == b"untouched"
        assert not [path for path in mount.backing.rglob("*") if path.is_symlink()]
    with own_mount(open_place, "--allow-other") as mount:
        assert (mount / "compacted-0" / "status.json").read_bytes()


def test_nobody_is_shown_the_bytes_of_another_topic(mount: DaemonMount) -> None:
    """Topics of equal sizes come and go under readers, who hold some of their files. What a name of one topic leads to
    is of that topic, or an error."""
    mount.expect("hostile")
    letters = "xyz"
    lines = {letter: f"{letter * 20}\n".encode() * 50 for letter in letters}
    wrong: list[str] = []
    seen = dict.fromkeys(letters, 0)
    is_over = threading.Event()

    def check(letter: str, data: bytes, what: str) -> None:
        seen[letter] += len(data)
        if set(data) - set(lines[letter]):
            wrong.append(f"{what} of {letter}: {data[:60]!r}")

    def read_on(letter: str) -> None:
        held: list[int] = []
        place = mount / f"hostile{letter}-0"
        while not is_over.is_set():
            for name in ("log.txt", "offset/3", "views/current.txt", "segments/00000000000000000000.txt"):
                with contextlib.suppress(OSError):
                    check(letter, (place / name).read_bytes(), name)
            with contextlib.suppress(OSError):
                held.append(os.open(place / "log.txt", os.O_RDONLY))
            for each in held:
                with contextlib.suppress(OSError):
                    check(letter, os.pread(each, 100, 500), "a held file")
            while len(held) > 5:
                os.close(held.pop(0))
        for each in held:
            os.close(each)

    readers = [threading.Thread(target=read_on, args=(letter,)) for letter in letters]
    for reader in readers:
        reader.start()
    try:
        for turn in range(ROUNDS):
            for letter in letters[turn % 2 :]:
                place = mount / f"hostile{letter}-0"
                with contextlib.suppress(FileExistsError):
                    place.mkdir()
                append(place / "log.txt", lines[letter])
            for letter in letters[: 2 + turn % 2]:
                with contextlib.suppress(OSError):
                    delete(mount / f"topics/hostile{letter}")
    finally:
        is_over.set()
        ended(*readers)
    assert wrong == []
    assert min(seen.values()) > 0
