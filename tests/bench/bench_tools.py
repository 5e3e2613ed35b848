"""Tools over a growing log, beside do-nothing file systems past the page cache and a plain file of the same bytes.

The goal is a share of what a tool takes on fusepy as it is. Our own adapter, when it does nothing, shows what
is left to gain.
"""

from __future__ import annotations

import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from bench_mount import mount
from bench_nothing import nothing
from nothing import Nothing
from report import Report, Row, compared, seconds
from workplace import VALUE, folder

from topicfs.engine.batch.table import Bytes
from topicfs.fs.entry import Attributes
from topicfs.fs.fuse.adapter import Opened

SIZE = 500_000_000
ROUNDS = 2
_GOAL = 0.75
_PATIENCE_S = 30.0

PYTHON = "import sys\nfor line in open(sys.argv[1], 'rb'): pass"
TOOLS = {
    "cat": "cat {}",
    "wc -l": "wc -l {}",
    "head -c": "head -c 499999999 {}",
    "dd bs=4k": "dd bs=4k status=none if={}",
    "cut -c1-3": "cut -c1-3 {}",
    "sort -c": "sort -c {}",
    "sed -n '$p'": "sed -n '$p' {}",
    "grep -c": "grep -c nothing {}",
    "md5sum": "md5sum {}",
    "python, lines": f"{shlex.quote(sys.executable)} -S -c {shlex.quote(PYTHON)} {{}}",
}


class Lines(Nothing):
    """Answers each read with lines at once: a copy out of memory is all that it does."""

    def __init__(self) -> None:
        self._lines = np.frombuffer((VALUE + b"\n") * 20_000, np.uint8)

    def getattr(self, path: str, handle: int | None, node: int = 0, caller: int = 0) -> Attributes:
        return super().getattr(path, handle, node, caller)._replace(**({} if path == "/" else {"size": SIZE}))

    def open(self, path: str, flags: int, node: int = 0, caller: int = 0) -> Opened:
        return Opened(2, direct_io=True)

    def read(self, handle: int, position: int, into: Bytes, for_pages: bool = False) -> int:
        size = min(into.size, max(0, SIZE - position))
        start = position % (len(VALUE) + 1)
        into[:size] = self._lines[start : start + size]
        return size


@contextmanager
def plain_fusepy(mnt: Path) -> Iterator[Path]:
    """A file of lines on fusepy as it is, in a process of its own."""
    mnt.mkdir()
    script = Path(__file__).with_name("plain_fusepy.py")
    with subprocess.Popen([sys.executable, script, mnt, str(SIZE)]) as process:
        try:
            deadline = time.monotonic() + _PATIENCE_S
            while not (mnt / "lines").exists():
                assert process.poll() is None, "fusepy has ended"
                assert time.monotonic() < deadline, "fusepy does not mount"
                time.sleep(0.05)
            yield mnt / "lines"
        finally:
            subprocess.run(["fusermount", "-u", mnt], check=False)


def run(report: Report) -> None:
    with (
        folder() as place,
        nothing(Lines) as idle,
        plain_fusepy(place / "fusepy") as fusepy,
        mount(place / "backing", place / "mnt") as root,
    ):
        plain, log = place / "plain", root / "bench-0/log.txt"
        log.parent.mkdir()
        (root / "topics/bench/config").write_text(f"segment.bytes={512 << 20}\n")
        plain.write_bytes((VALUE + b"\n") * (SIZE // (len(VALUE) + 1)))
        with plain.open("rb") as source, log.open("ab", buffering=0) as target:
            while block := source.read(128 << 10):
                target.write(block)
        report.show(
            "Tools on log.txt, 500 MB of 100-byte lines, the second of two runs",
            [_row(name, command, log, plain, fusepy, idle.path / "lines") for name, command in TOOLS.items()],
        )
        segment = min((log.parent / "sealed/txt").iterdir())
        plain.write_bytes(segment.read_bytes())
        report.show(
            "The same on its first segment, which the kernel caches",
            [_row(name, command, segment, plain) for name, command in TOOLS.items()],
        )


def _row(
    name: str, command: str, ours: Path, plain: Path, fusepy: Path | None = None, idle: Path | None = None
) -> Row:
    places = [path for path in (ours, plain, fusepy, idle) if path is not None]
    for path in places:
        _took(command, path)
    rounds = [[_took(command, path) for path in places] for _ in range(ROUNDS)]
    found = compared([(taken[0], taken[1] if fusepy is None else taken[2]) for taken in rounds])
    middle = [f"{statistics.median(taken):.2f} s" for taken in zip(*rounds, strict=True)]
    names = ("plain file", "fusepy", "our adapter")
    baseline = ", ".join(f"{each} {taken}" for each, taken in zip(names, middle[1:], strict=False))
    return Row(name, middle[0], baseline, *found.goal(most=None if fusepy is None else _GOAL))


def _took(command: str, path: Path) -> float:
    words = shlex.split(command.format(shlex.quote(str(path))))
    # Standard output is a pipe that is thrown away: some tools notice /dev/null, and do nothing.
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as sink:
        assert sink.stdin is not None
        taken = seconds(lambda: subprocess.run(words, stdout=sink.stdin, check=False))
        sink.stdin.close()
    return taken
