"""Small reads, which are mostly answered without Python: see `topicfs.fs.kernels.windows`."""

from __future__ import annotations

import contextlib
import os

from daemon_mount import DaemonMount, append, opened

pytest_plugins = ["shared_mount"]


def test_many_readers_at_once_have_the_bytes_of_their_places(mount: DaemonMount) -> None:
    """Memory answers only some of them at a time."""
    partition = mount.new("crowded")
    lines = b"".join(b"%07d\n" % n for n in range(300_000))
    append(partition / "log.txt", lines)
    before, read_bytes = _reads(mount), 0
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(opened(partition / "log.txt")) for _ in range(40)]
        starts = [number * (len(lines) // 40) for number in range(40)]
        for at in range(100):
            for file, start in zip(files, starts, strict=True):
                position = start + at * 3000
                piece = os.pread(file, 3000, position)
                assert piece == lines[position : position + 3000]
                read_bytes += len(piece)
        append(partition / "log.txt", b"the last\n")
        for file in files:
            position = len(lines) - 5000
            while position < len(lines) + 9:
                piece = os.pread(file, 1000, position)
                assert piece == (lines + b"the last\n")[position : position + 1000]
                position += len(piece)
            assert os.pread(file, 1000, position) == b""
    after = _reads(mount)
    assert after[0] - before[0] >= 4000
    assert after[1] - before[1] >= read_bytes > 10_000_000


def _reads(mount: DaemonMount) -> tuple[float, float]:
    """Return how many reads the daemon has answered, and their bytes."""
    told = dict(
        line.rsplit(" ", 1) for line in (mount / "metrics").read_text().splitlines() if line[0] != "#"
    )
    return float(told["topicfs_reads_total"]), float(told["topicfs_read_bytes_total"])
