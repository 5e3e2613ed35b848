"""the guide's shell lines on transactions and producers run as they stand, twice, with a mount that is called mnt."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

from daemon_mount import own_mount

GUIDE = Path(__file__).parents[2] / "fs" / "GUIDE.md"


def lines_of(title: str, block: int = 0) -> str:
    """A block of a section."""
    section = GUIDE.read_text().split(f"## {title}\n", 1)[1]
    return re.findall(r"\n((?:    .*\n)+)", section)[block]


def test_the_lines_of_readme_append_once_and_to_both_topics(tmp_path: Path) -> None:
    with own_mount(tmp_path) as mount:
        place = tmp_path / "work"
        place.mkdir()
        (place / "mnt").symlink_to(mount.path)
        (place / "orders.txt").write_text("a\nb\n")
        for topic in ("orders", "audit"):
            (mount / "topics" / topic).mkdir()

        def run(title: str, block: int = 0) -> str:
            done = subprocess.run(
                ["bash", "-ec", lines_of(title, block)], cwd=place, check=True, capture_output=True, text=True
            )
            assert done.stderr == ""
            return done.stdout

        told = [json.loads(run("Several topics, all or none")) for _ in range(2)]
        assert [each["state"] for each in told] == ["CompleteCommit"] * 2
        assert (mount / "audit-0" / "log.txt").read_text() == "ann has ordered\n" * 2
        assert (mount / "orders-0" / "log.txt").read_text() == "10 apples\n" * 2
        run("Several topics, all or none", 1)
        with (mount / "orders-0" / "log.txt").open("a") as file:
            file.write("10 apples\n")
        run("Several topics, all or none", 1)
        assert (mount / "audit-0" / "log.txt").read_text() == "ann has ordered\n" * 2 + "2\n1\n"
        run("Once, whatever fails")
        with (place / "orders.txt").open("a") as file:
            file.write("c\n")
        run("Once, whatever fails")
        assert (mount / "orders-0" / "log.txt").read_text() == "10 apples\n" * 3 + "a\nb\nc\n"
