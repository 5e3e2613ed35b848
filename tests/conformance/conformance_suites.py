"""Suites of tests for file systems that others have written, each run in a directory of ordinary files.

A suite gives what came of each of its cases. What it prints lies in a file of its own in the room.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from conformance_lists import Outcome

LIMIT_S: Final = 900.0
"""Only what hangs takes that long."""

Outcomes = dict[str, Outcome]


def run(room: Path, name: str, *command: str | Path, **variables: str) -> tuple[int, str]:
    """Run a command in a room of its own. Gives its exit code, and what it said, which is kept too."""
    room.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        command,
        cwd=room,
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
        timeout=LIMIT_S,
    )
    (room / f"{name}.out").write_text(done.stdout)
    return done.returncode, done.stdout


# -- pjdfstest ----------------------------------------------------------------------------------------

USERS: Final = ("nobody", "daemon")
"""Two users that each Debian has, whose calls are checked against modes and owners."""

_CASE: Final = re.compile(r"^(\S+) +(ok|FAILED|skipped)$", re.MULTILINE)
_ENDS: Final = {"ok": Outcome.PASSED, "FAILED": Outcome.FAILED, "skipped": Outcome.SKIPPED}


def pjdfstest(program: Path, place: Path, room: Path) -> Outcomes:
    """System calls and their errors, as root and as two other users."""
    # The group of a user has its number, and may have another name.
    entries = [[user, _group_of(user)] for user in USERS]
    room.mkdir(parents=True, exist_ok=True)
    configuration = room / "pjdfstest.toml"
    configuration.write_text(
        "[features]\n"
        f'secondary_fs = "{room}"\n'
        "posix_fallocate = {}\nutime_now = {}\nutimensat = {}\n"
        "[settings]\nnaptime = 0.01\n"
        f"[dummy_auth]\nentries = {entries}\n".replace("'", '"')
    )
    _, said = run(room, "pjdfstest", program, "-c", configuration, "-p", place, NO_COLOR="1")
    found = {name: _ENDS[end] for name, end in _CASE.findall(said)}
    total = re.search(r"^Summary: .* (\d+) total$", said, re.MULTILINE)
    if total is None or int(total[1]) != len(found):
        raise RuntimeError(f"pjdfstest came to no end: {said[-2000:]}")
    return found


def _group_of(user: str) -> str:
    import grp  # noqa: PLC0415
    import pwd  # noqa: PLC0415

    return grp.getgrgid(pwd.getpwnam(user).pw_gid).gr_name


# -- fsx ----------------------------------------------------------------------------------------------

_FSX: Final = """
flen = 1048576
[opsize]
max = 140000
[weights]
close_open = 2
read = 10
write = 10
mapread = 10
mapwrite = 10
invalidate = 2
truncate = 4
fsync = 1
fdatasync = 1
posix_fallocate = 2
sendfile = 4
posix_fadvise = 2
copy_file_range = 4
"""
"""All that it can do, but for holes: libfuse 2 is asked for no FALLOC_FL_PUNCH_HOLE, and says EOPNOTSUPP."""


def fsx(program: Path, file: Path, room: Path, seed: int, steps: int) -> Outcome:
    """Random operations on one file beside a model in memory."""
    room.mkdir(parents=True, exist_ok=True)
    configuration = room / "fsx.toml"
    configuration.write_text(_FSX)
    arguments = ("-f", configuration, "-N", str(steps), "-S", str(seed), "-P", room)
    code, said = run(room, "fsx", program, *arguments, file)
    file.unlink(missing_ok=True)
    return Outcome.PASSED if code == 0 and "A-OK" in said else Outcome.FAILED


# -- fio ----------------------------------------------------------------------------------------------

ENGINES: Final = ("sync", "psync", "vsync", "pvsync2", "mmap", "splice", "libaio", "io_uring")
JOBS: Final = ("write", "randwrite", "randrw")


def fio_jobs() -> Iterator[str]:
    """Yield the names of jobs: how bytes are moved, in which order, and whether past the page cache."""
    for engine in ENGINES:
        for job in JOBS:
            yield f"{engine}:{job}"
            if engine != "mmap":
                yield f"{engine}:{job}:direct"


def fio(job: str, file: Path, room: Path, seed: int) -> Outcome:
    """Write blocks with checksums, read all of them."""
    engine, kind, *direct = job.split(":")
    code, said = run(
        room,
        job.replace(":", "-"),
        *("fio", "--name=verify", f"--filename={file.name}", f"--directory={file.parent}", "--size=8m"),
        *(f"--ioengine={engine}", f"--rw={kind}", "--bsrange=4k-256k", "--iodepth=8"),
        *(f"--direct={int(bool(direct))}", "--fsync=64", "--fallocate=none", f"--randseed={seed}"),
        *("--verify=crc32c", "--do_verify=1", "--verify_fatal=1", "--verify_state_save=0"),
    )
    file.unlink(missing_ok=True)
    return Outcome.PASSED if code == 0 and "err= 0" in said else Outcome.FAILED


# -- stress-ng ----------------------------------------------------------------------------------------

STRESSORS: Final[Mapping[str, tuple[str, ...]]] = {
    **dict.fromkeys(
        (
            "access", "chdir", "chmod", "chown", "dentry", "dir", "dirmany", "dup", "fallocate", "fcntl", "fiemap",
            "file-ioctl", "filename", "flock", "fpunch", "fsize", "fstat", "getdent", "handle", "lease", "link",
            "locka", "lockf", "lockofd", "mknod", "msync", "open", "rename", "sendfile", "splice", "symlink",
            "sync-file", "touch", "utime", "xattr",
        ),
        (),
    ),
    "copy-file": ("--copy-file-bytes", "128m"),
    "dirdeep": ("--dirdeep-inodes", "200"),
    "hdd": ("--hdd-bytes", "16m"),
    "iomix": ("--iomix-bytes", "16m"),
    "mmap": ("--mmap-bytes", "8m", "--mmap-file"),
    "readahead": ("--readahead-bytes", "16m"),
    "revio": ("--revio-bytes", "16m"),
    "seek": ("--seek-size", "8m"),
}  # fmt: skip
"""The stressors that use files, and how large those are."""


def stress(stressor: str, place: Path, room: Path) -> Outcome:
    """One call of the file system again and again, by two processes, whose results are checked."""
    code, said = run(
        room,
        f"stress-ng-{stressor}",
        *("stress-ng", f"--{stressor}", "2", f"--{stressor}-ops", "200", "--timeout", "4", "--verify"),
        *("--temp-path", place, *STRESSORS[stressor]),
    )
    if "skipp" in said:
        return Outcome.SKIPPED
    return Outcome.PASSED if code == 0 and "fail:" not in said else Outcome.FAILED
