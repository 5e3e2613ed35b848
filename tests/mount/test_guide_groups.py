"""The commands of the guide's part on consumer groups do what it says, one after the other."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from daemon_mount import DaemonMount, append

pytest_plugins = ["shared_mount"]

GUIDE = Path(__file__).parents[2] / "fs" / "GUIDE.md"


def commands() -> str:
    """The indented lines, as one script."""
    part = GUIDE.read_text().partition("## Consumer groups\n")[2].partition("\n## ")[0]
    shell = re.sub(r"```python\n.*?```", "", part, flags=re.DOTALL)
    return "\n".join(line for line in shell.splitlines() if line.startswith("    ") or not line)


def program() -> str:
    """The block of Python, with where it is run."""
    part = GUIDE.read_text().partition("## Consumer groups\n")[2].partition("\n## ")[0]
    return part.partition("```python\n")[2].partition("```")[0]


def test_the_commands_of_readme_read_each_record_once_in_each_group(
    mount: DaemonMount, tmp_path: Path
) -> None:
    (mount / "topics/orders").mkdir()
    append(mount / "orders-0/log.txt", b"10 apples\n3 pears\n")
    (tmp_path / "mnt").symlink_to(mount.path)
    script = f"""set -eu
work() {{ cat >> taken; }}
{commands()}
"""
    more = script.replace("    read -r from", "    echo '5 figs' >> mnt/orders-0/log.txt\n    read -r from")
    assert more != script
    done = subprocess.run(
        ["bash", "-c", more],
        cwd=tmp_path,
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = "10 apples\n3 pears\n5 figs\n"
    assert done.stdout.startswith("2\n10 apples\n3 pears\n")
    assert (tmp_path / "taken").read_text() == lines * 2
    assert '"group": "readers"' in done.stdout
    listed = [line.split() for line in done.stdout.splitlines() if line.startswith(("readers ", "workers "))]
    assert ["readers", "Empty", "0", "1", "0"] in listed
    assert ["workers", "Stable", "1", "1", "0"] in listed
    assert "readers" not in os.listdir(mount / "groups")
    done = subprocess.run(
        [sys.executable, "-c", program()], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.stdout.splitlines() == [
        f"0 {at} {line.encode()}" for at, line in enumerate(lines.splitlines())
    ]
    assert (mount / "groups/programs/orders-0").read_bytes() == b"3\n", done.stderr
