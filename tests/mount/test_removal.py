"""Segments that are rolled and removed under open readers: what was promised is delivered, and nothing is kept
for longer than somebody needs it.

What retention will do is asked of the engine here: raise the start offset, take the segments below it out of the
log, remove their files.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest
from daemon_mount import DaemonMount, append, eventually, opened

pytest_plugins = ["shared_mount"]

SIZE = 30
"""Bytes of a line."""

COUNT = 100
"""Lines of a segment."""


def lines(first: int, last: int) -> bytes:
    """Lines with the numbers from `first` to before `last`: the records with these offsets."""
    return b"".join(f"{number:029d}\n".encode() for number in range(first, last))


def fill(mount: DaemonMount, partition: Path, segments: int, first: int = 0) -> None:
    """Append whole segments, each sealed."""
    for number in range(segments):
        start = first + number * COUNT
        append(partition / "log.txt", lines(start, start + COUNT))
        mount.steer("roll", partition)


def remove_below(mount: DaemonMount, partition: Path, offset: int) -> None:
    """As retention will, but with no delay for the files."""
    mount.steer("raise_start", partition, offset)
    mount.steer("sweep", partition)


def read_all(file: int, position: int, request: int = 1000) -> bytes:
    """From a position to the end."""
    found = b""
    while part := os.pread(file, request, position + len(found)):
        found += part
    return found


def logs(mount: DaemonMount, partition: Path) -> list[str]:
    """The `.log` files on disk, deleted ones too."""
    return sorted(
        path.name for path in Path(mount.steer("files", partition)).iterdir() if ".log" in path.name
    )


@pytest.fixture
def partition(mount: DaemonMount) -> Path:
    """Five sealed segments and an empty active one."""
    made = mount.new()
    fill(mount, made, 5)
    return made


# -- the whole log ------------------------------------------------------------------------------------------


def test_a_reader_of_the_log_gets_what_was_removed_before_it_came_there(
    mount: DaemonMount, partition: Path
) -> None:
    with opened(partition / "log.txt") as file:
        assert os.pread(file, 10, 0) == lines(0, 1)[:10]
        remove_below(mount, partition, 400)
        fill(mount, partition, 1, 500)
        assert read_all(file, 10) == lines(0, 600)[10:]


def test_the_size_of_a_held_log_never_shrinks_and_its_positions_stay(
    mount: DaemonMount, partition: Path
) -> None:
    log = partition / "log.txt"
    with opened(log) as file:
        os.pread(file, SIZE, 200 * SIZE)
        sizes = [log.stat().st_size]
        for offset in (100, 250, 300, 499):
            remove_below(mount, partition, offset)
            append(log, lines(500, 501))
            sizes.append(log.stat().st_size)
            assert os.fstat(file).st_size == sizes[-1]
            assert os.pread(file, SIZE, 499 * SIZE) == lines(499, 500)
        assert sizes == [(500 + number) * SIZE for number in range(5)]


def test_a_handle_that_begins_at_byte_0_starts_at_the_first_record_that_exists(
    mount: DaemonMount, partition: Path
) -> None:
    log = partition / "log.txt"
    with opened(log) as holder, opened(log) as late:
        assert os.pread(holder, SIZE, 0) == lines(0, 1)
        remove_below(mount, partition, 250)
        assert read_all(late, 0) == lines(250, 500)
        assert log.read_bytes() == lines(250, 500)
        assert read_all(holder, SIZE) == lines(1, 500)


def test_with_nobody_holding_it_the_log_begins_at_the_start_offset(
    mount: DaemonMount, partition: Path
) -> None:
    log = partition / "log.txt"
    with opened(log):
        remove_below(mount, partition, 250)
        assert log.stat().st_size == 500 * SIZE
    eventually(lambda: log.stat().st_size == 250 * SIZE, "the origin is the start offset")
    assert log.read_bytes() == lines(250, 500)


def test_formats_have_origins_of_their_own(mount: DaemonMount, partition: Path) -> None:
    with opened(partition / "log.jsonl"):
        size = (partition / "log.jsonl").stat().st_size
        remove_below(mount, partition, 300)
        assert (partition / "log.jsonl").stat().st_size == size
        assert (partition / "log.txt").stat().st_size == 200 * SIZE


def test_tail_sees_no_truncation_and_every_line(mount: DaemonMount, partition: Path, tmp_path: Path) -> None:
    log, out, libfuse_stderr = partition / "log.txt", tmp_path / "out", tmp_path / "complaints"
    with out.open("wb") as stream, libfuse_stderr.open("wb") as errors:
        tail = subprocess.Popen(["tail", "-n", "+1", "-f", "-s", "0.02", log], stdout=stream, stderr=errors)
    try:
        eventually(lambda: out.stat().st_size == 500 * SIZE, "tail shows what there is")
        for turn in range(10):
            first = 500 + turn * COUNT
            fill(mount, partition, 1, first)
            eventually(lambda size=(first + COUNT) * SIZE: out.stat().st_size == size, "tail goes on")
            remove_below(mount, partition, first)
            assert log.stat().st_size == (first + COUNT) * SIZE
    finally:
        tail.terminate()
        tail.wait()
    assert out.read_bytes() == lines(0, 1500)
    assert libfuse_stderr.read_bytes() == b""


def test_what_a_reader_of_the_log_has_read_past_is_let_go(mount: DaemonMount, partition: Path) -> None:
    with opened(partition / "log.txt") as file, opened(partition / "log.txt") as behind:
        assert len(os.pread(file, SIZE, 450 * SIZE)) == SIZE
        assert len(os.pread(behind, SIZE, 250 * SIZE)) == SIZE
        remove_below(mount, partition, 500)
        assert [int(name[:20]) for name in logs(mount, partition)] == [200, 300, 400, 500]
        assert read_all(behind, 250 * SIZE) == lines(250, 500)
        mount.steer("sweep", partition)
        assert [int(name[:20]) for name in logs(mount, partition)] == [400, 500]
    eventually(lambda: mount.steer("sweep", partition) or len(logs(mount, partition)) == 1, "all are let go")


def test_a_reader_that_goes_back_to_what_it_let_go_gets_an_error_and_no_wrong_byte(
    mount: DaemonMount, partition: Path
) -> None:
    with opened(partition / "log.txt") as file:
        os.pread(file, SIZE, 0)
        os.pread(file, SIZE, 450 * SIZE)
        # As long as it is there, it can be read again.
        assert os.pread(file, SIZE, 0) == lines(0, 1)
        os.pread(file, SIZE, 450 * SIZE)
        remove_below(mount, partition, 500)
        with suppress(OSError):
            # Rendered bytes may be kept for a while.
            assert os.pread(file, SIZE, 0) == lines(0, 1)
        os.pread(file, SIZE, 450 * SIZE)
        with pytest.raises(OSError, match="Input/output"):
            os.pread(file, SIZE, 0)
        mount.expect("byte 0 was read past, then removed")
        assert os.pread(file, SIZE, 450 * SIZE) == lines(450, 451)


# -- other views --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["segments/{}.txt", "segments/{}.jsonl", "segments/{}.log", "sealed/txt/{}.txt"]
)
def test_a_segment_that_is_open_is_delivered_whole(mount: DaemonMount, partition: Path, name: str) -> None:
    path = partition / name.format(f"{100:020d}")
    expected = (partition / name.format(f"{100:020d}")).read_bytes()
    os.posix_fadvise(fd := os.open(path, os.O_RDONLY), 0, 0, os.POSIX_FADV_DONTNEED)
    with os.fdopen(fd, "rb", buffering=0) as file:
        assert os.pread(file.fileno(), 10, 0) == expected[:10]
        remove_below(mount, partition, 500)
        assert path.name not in os.listdir(path.parent)
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        assert read_all(file.fileno(), 0) == expected
        # Like `cat`: what it asks for at the end goes beyond the size.
        assert file.read() == expected
    eventually(lambda: not path.exists(), "it is gone when nobody has it open")


@pytest.mark.parametrize(
    ("name", "first", "last"),
    [
        ("offset/50-349.txt", 50, 350),
        ("offset/150-.txt", 150, 600),
        ("offset/-450.txt", 50, 500),
        ("time/last-1h.txt", 0, 600),
    ],
)
def test_a_range_that_is_open_is_delivered_whole(
    mount: DaemonMount, partition: Path, name: str, first: int, last: int
) -> None:
    with opened(partition / name) as file:
        remove_below(mount, partition, 500)
        fill(mount, partition, 1, 500)
        assert read_all(file, 0, 777) == lines(first, last)
    eventually(lambda: mount.steer("sweep", partition) or len(logs(mount, partition)) == 2, "its segments go")


def test_new_opens_show_what_is_left(mount: DaemonMount, partition: Path) -> None:
    with opened(partition / "log.txt"), opened(partition / "offset/0-499.txt"):
        remove_below(mount, partition, 300)
        assert (partition / "offset/0-499.txt").read_bytes() == lines(300, 500)
        assert (partition / "offset/0-.txt").read_bytes() == lines(300, 500)
        assert (partition / "time/last-1h.txt").read_bytes() == lines(300, 500)
        assert not (partition / "offset/299").exists()
        assert (partition / "offset/300").read_bytes() == lines(300, 301)[:-1]
        assert len(os.listdir(partition / "segments")) == 3 * 4
        assert len(os.listdir(partition / "sealed/txt")) == 2


def test_a_follower_that_is_slow_gets_what_was_removed_behind_it(mount: DaemonMount) -> None:
    partition = mount.new()
    with opened(partition / "follow.txt") as file:
        fill(mount, partition, 4)
        remove_below(mount, partition, 400)
        found = b""
        while len(found) < 400 * SIZE:
            found += os.read(file, 5000)
        assert found == lines(0, 400)
        append(partition / "log.txt", lines(400, 401))
        assert os.read(file, 5000) == lines(400, 401)
        mount.steer("sweep", partition)
        assert [int(name[:20]) for name in logs(mount, partition)] == [400]


def test_the_status_tells_what_readers_pin(mount: DaemonMount, partition: Path) -> None:
    with opened(partition / "log.txt") as file:
        os.pread(file, SIZE, 150 * SIZE)
        remove_below(mount, partition, 400)
        status = mount.status(partition)
        assert status["open_logs"] == 1
        assert status["start_offset"] == 400
        assert status["pinned_segments"] >= 3
        assert status["pinned_bytes"] > 3 * COUNT * SIZE
    eventually(lambda: mount.status(partition)["pinned_segments"] == 0, "nothing is pinned")


# -- for ever -----------------------------------------------------------------------------------------------


def usage(mount: DaemonMount) -> tuple[int, int, int]:
    """Memory in KiB, descriptors and threads of the daemon."""
    process = Path(f"/proc/{mount.process.pid}")
    status = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines())
    return int(status["VmRSS"].split()[0]), len(os.listdir(process / "fd")), int(status["Threads"])


def test_rolls_and_removals_under_readers_leave_nothing_behind(mount: DaemonMount) -> None:
    partition = mount.new()
    fill(mount, partition, 1)
    names = ("log.txt", "log.jsonl", "offset/0-.txt", "follow.txt")
    files = [os.open(partition / name, os.O_RDONLY) for name in names]
    payload = b"".join(json.dumps({"value": "x" * 1000}).encode() + b"\n" for _ in range(200))
    before = (0, 0, 0)
    try:
        for turn in range(60):
            append(partition / "log.jsonl", payload)
            mount.steer("roll", partition)
            for file in files:
                # A reader at rest in follow.txt would wait: there is always more than what is asked for.
                os.read(file, 1 << 20)
            offset = mount.status(partition)["end_offset"]
            (partition / f"offset/{offset - 10}-{offset - 1}.jsonl").read_bytes()
            (partition / f"sealed/txt/{offset - 200:020d}.txt").read_bytes()
            remove_below(mount, partition, offset)
            if turn == 20:
                before = usage(mount)
        mount.steer("sweep", partition)
        assert len(logs(mount, partition)) <= 4
        memory, descriptors, threads = usage(mount)
        assert descriptors <= before[1] + 8
        assert threads <= before[2] + 8
        assert memory <= before[0] + 16 * 1024
    finally:
        for file in files:
            os.close(file)


@pytest.mark.busy
def test_readers_beside_a_writer_and_removals_get_whole_lines_in_order(mount: DaemonMount) -> None:
    partition = mount.new()
    fill(mount, partition, 1)
    end = time.monotonic() + 3
    script = (
        "import os, sys, time\n"
        "end = float(sys.argv[2])\n"
        "rounds = 0\n"
        "while time.monotonic() < end:\n"
        "    with open(sys.argv[1], 'rb') as file: found = file.read()\n"
        "    numbers = [int(line) for line in found.splitlines()]\n"
        "    assert all(len(line) == 30 for line in found.splitlines(True)), found[-100:]\n"
        "    assert numbers == list(range(numbers[0], numbers[0] + len(numbers))), numbers[:3]\n"
        "    rounds += 1\n"
        "assert rounds > 3\n"
    )
    readers = [
        subprocess.Popen(["python3", "-c", script, partition / name, str(end)], stderr=subprocess.PIPE)
        for name in ("log.txt", "offset/0-.txt")
    ]
    first = COUNT
    while time.monotonic() < end:
        fill(mount, partition, 1, first)
        first += COUNT
        remove_below(mount, partition, first - 2 * COUNT)
    for reader in readers:
        _, libfuse_stderr = reader.communicate(timeout=60)
        assert reader.returncode == 0, libfuse_stderr.decode()
