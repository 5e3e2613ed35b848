"""Random operations on one file, as fsx makes them, beside a model in memory: a file of an inbox, which can be written
anywhere, and a log, which can only be appended to. `SEED` chooses them, and is told when a test fails."""

from __future__ import annotations

import errno
import mmap
import os
import random
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from daemon_mount import DaemonMount
from inboxes import Topic

pytest_plugins = ["shared_mount"]

SEED = int(os.environ.get("SEED") or time.time_ns() % 1_000_000)
STEPS = 20_000 if os.environ.get("HYPOTHESIS_PROFILE") == "thorough" else 150
LARGEST = 300_000


def test_a_file_of_an_inbox_is_as_a_model_of_it(mount: DaemonMount) -> None:
    chance, model = random.Random(SEED), bytearray()
    path = Topic(mount).inbox / ".file"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        for step in range(STEPS):
            at = chance.randrange(LARGEST)
            size = chance.choice((1, 100, 4096, 5000, 70_000))
            where = f"SEED={SEED}, step {step}"
            match chance.randrange(9):
                case 0 | 1 | 2:
                    data = chance.randbytes(size)
                    assert os.pwrite(descriptor, data, at) == size, where
                    model.extend(bytes(max(0, at - len(model))))
                    model[at : at + size] = data
                case 3 | 4:
                    assert os.pread(descriptor, size, at) == model[at : at + size], where
                case 5:
                    os.ftruncate(descriptor, at)
                    model[at:] = bytes(max(0, at - len(model)))
                case 6:
                    os.close(descriptor)
                    descriptor = os.open(path, os.O_RDWR | chance.choice((0, os.O_SYNC)))
                case 7:
                    with path.open("ab") as stream:
                        stream.write(b"appended")
                    model += b"appended"
                case 8 if model:
                    with mmap.mmap(descriptor, 0, prot=mmap.PROT_READ, flags=mmap.MAP_PRIVATE) as mapped:
                        assert mapped[at : at + size] == model[at : at + size], where
            assert os.fstat(descriptor).st_size == path.stat().st_size == len(model), where
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    assert path.read_bytes() == model, f"SEED={SEED}"


@pytest.mark.parametrize("name", ["log.txt", "in.txt"])
def test_an_append_only_file_is_as_a_model_of_it(mount: DaemonMount, name: str) -> None:
    """Each writer has an unfinished line of its own. Whole lines come in the order of the writes."""
    chance, shown = random.Random(SEED + 1), bytearray()
    partition = mount.new(f"random-{name[:2]}")
    path = (
        partition / name if name == "log.txt" else mount / "topics" / partition.name.rpartition("-")[0] / name
    )
    log = partition / "log.txt"
    writers = [os.open(path, os.O_WRONLY | os.O_APPEND) for _ in range(3)]
    begun = [bytearray() for _ in writers]
    try:
        for step in range(STEPS):
            where = f"SEED={SEED}, step {step}"
            one = chance.randrange(len(writers))
            match chance.randrange(8):
                case 0 | 1 | 2:
                    data = b"".join(
                        chance.choice((b"a", b"bc", b"\n", b"d" * 3000, b"\n\n"))
                        for _ in range(chance.randrange(1, 6))
                    )
                    assert os.write(writers[one], data) == len(data), where
                    whole, newline, rest = (begun[one] + data).rpartition(b"\n")
                    shown += whole + newline
                    begun[one] = bytearray(rest)
                case 3:
                    copy = os.dup(writers[one])
                    os.close(writers[one])
                    writers[one] = copy
                case 4:
                    os.fsync(writers[one])
                case 5:
                    os.close(writers[one])
                    if begun[one]:
                        shown += begun[one] + b"\n"
                        begun[one] = bytearray()
                    writers[one] = os.open(path, os.O_WRONLY | os.O_APPEND)
                case 6:
                    for call in (
                        lambda: os.truncate(path, chance.randrange(100)),
                        lambda: os.open(path, os.O_WRONLY),
                    ):
                        with pytest.raises(OSError, match="not permitted") as caught:
                            call()
                        assert caught.value.errno == errno.EPERM, where
                case 7:
                    _show(writers)
                    at, size = chance.randrange(len(shown) + 10), chance.choice((1, 100, 5000))
                    assert _read(log, size, at) == shown[at : at + size], where
            if step % 20 == 0:
                _show(writers)
                assert log.read_bytes() == shown, where
    finally:
        for writer in writers:
            os.close(writer)


def _show(writers: list[int]) -> None:
    """Lines that come fast gather for `linger.ms`: fsync ends that."""
    for writer in writers:
        os.fsync(writer)


def _read(path: Path, size: int, at: int) -> bytes:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return os.pread(descriptor, size, at)
    finally:
        os.close(descriptor)


@pytest.mark.skipif(
    shutil.which("fio") is None, reason="there is no fio here: `apt-get install fio` brings it"
)
@pytest.mark.parametrize(
    "job",
    [
        ("--rw=randwrite", "--bs=4k", "--verify=crc32c"),
        ("--rw=write", "--bs=128k", "--verify=md5"),
        ("--rw=randrw", "--bsrange=1k-64k", "--verify=crc32c"),
    ],
    ids=lambda job: job[0],
)
def test_fio_reads_from_an_inbox_what_it_has_written(
    mount: DaemonMount, tmp_path: Path, job: tuple[str, ...]
) -> None:
    fixed = (
        "--name=verify",
        "--filename=.fio",
        "--size=4m",
        "--ioengine=psync",
        "--fsync=64",
        "--fallocate=none",
    )
    place = f"--directory={Topic(mount).inbox}"
    verify = ("--do_verify=1", "--verify_fatal=1", f"--randseed={SEED}")
    command = ["fio", *fixed, place, *job, *verify]
    # It leaves a file of its state where it runs.
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "err= 0" in done.stdout
