"""The memory of the process. Each test has a process of its own: what is put away is put away for all of it."""

from __future__ import annotations

import subprocess
import sys

KERNELS = """
import numpy as np
from pathlib import Path
from topicfs.engine.kernels.lines import last_newline
from topicfs.mountd.memory import put_compiler_away

def library_kib():
    total, counted = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        words = line.split()
        if len(words) >= 5 and "-" in words[0]:
            counted = len(words) > 5 and "libllvmlite" in words[5]
        elif counted and words[0] == "Rss:":
            total += int(words[1])
    return total
"""


def said(script: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", KERNELS + script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_compiler_is_put_away_once_the_kernels_are_loaded_also_beside_a_process_that_maps_it() -> None:
    script = "a = library_kib(); put_compiler_away(); print(a, library_kib())"
    # The second process is started by the first, which has the compiler's library in memory meanwhile.
    inner = (
        f"import subprocess, sys; subprocess.run([sys.executable, '-c', {KERNELS + script!r}], check=True)"
    )
    before, after = map(int, said(inner).split())
    assert before > 40_000
    assert after < before / 10


def test_kernels_run_and_can_be_compiled_when_the_compiler_was_put_away() -> None:
    script = """
put_compiler_away()
print(last_newline(np.frombuffer(b"a\\nb", np.uint8), 0, 3))
import numba
print(numba.njit(lambda x: x + 1)(41))
"""
    assert said(script).split() == ["1", "42"]
