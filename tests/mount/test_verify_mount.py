"""`topicfs verify` on a mount whose daemon is running, and is written to and read meanwhile."""

from __future__ import annotations

import json
import subprocess
import sys
import threading

import pytest
from daemon_mount import DaemonMount, append
from patience import PATIENCE_S

pytest_plugins = ["shared_mount"]


@pytest.mark.busy
def test_nothing_is_found_on_a_mount_that_is_written_to_and_read(mount: DaemonMount) -> None:
    partition = mount.new("small")
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            append(partition / "log.txt", b"a line of some length\n" * 20)
            sealed = sorted((partition / "segments").glob("*.txt"))
            sealed[0].read_bytes()

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(2):
            done = subprocess.run(
                [
                    sys.executable,
                    "-m",
                    "topicfs.mountd.cli",
                    "verify",
                    str(mount.path),
                    partition.name,
                    "--json",
                ],
                capture_output=True,
                text=True,
                check=False,
                timeout=PATIENCE_S,
            )
            assert done.returncode == 0, done.stdout + done.stderr
            (summary,) = map(json.loads, done.stdout.splitlines())
            assert summary["summary"]["partitions"] == 1
    finally:
        stop.set()
        writer.join()
