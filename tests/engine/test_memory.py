"""Memory stays flat however much is appended and read. `make bench` does the same with 10 GiB."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import sys
from pathlib import Path
from topicfs import Store

def own():
    # Without pages of files: how much of a library is mapped depends on who else has used it on this machine.
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["RssAnon"].split()[0]) * 1024

chunk = (b"x" * 99 + b"\\n") * 9_700
with Store.open(sys.argv[1], create=True) as store:
    partition = store.create("t", 0, {"segment.bytes": str(64 << 20), "compression.type": sys.argv[2]})
    highest = 0
    for _ in range(512):
        partition.append_lines(chunk)
        highest = max(highest, own())
    count = 0
    for part in partition.columns():
        count += len(part)
        highest = max(highest, own())
assert count == 512 * 9_700
print(highest)
"""


@pytest.mark.parametrize("codec", ["uncompressed", "zstd"])
def test_appending_and_reading_half_a_gigabyte_keeps_own_memory_below_110_mb(
    tmp_path: Path, codec: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path), codec],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 110e6
