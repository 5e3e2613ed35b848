"""Shell commands in tests, in the C locale, never for longer than a while."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

LIMIT_S = 120
ENVIRONMENT = {**os.environ, "LC_ALL": "C", "TZ": "UTC"}


def run(script: str, place: Path, limit_s: float = LIMIT_S) -> subprocess.CompletedProcess[bytes]:
    """What bash makes of a script in a directory."""
    return subprocess.run(
        ["bash", "-c", script],
        cwd=place,
        env=ENVIRONMENT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        timeout=limit_s,
    )


def output(script: str, place: Path) -> bytes:
    """What a script prints, which must do well, and complain of nothing."""
    done = run(f"set -eo pipefail\n{script}", place)
    assert done.returncode == 0, (script, done.stderr.decode())
    assert done.stderr == b"", (script, done.stderr.decode())
    return done.stdout


def start(command: list[str | Path], out: Path) -> subprocess.Popen[bytes]:
    """Begin a command; what it prints and what it complains of goes into one file."""
    with out.open("wb") as stream:
        return subprocess.Popen(
            command, env=ENVIRONMENT, stdin=subprocess.DEVNULL, stdout=stream, stderr=subprocess.STDOUT
        )
