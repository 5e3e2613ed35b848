"""The commands of README's first steps do what it says, one after the other."""

from __future__ import annotations

import html
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import missing

from topicfs.mountd import mounts

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    path
    for path in ROOT.glob("**/*.md")
    if not {".venv", ".tools", "build"} & {*path.relative_to(ROOT).parts}
)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    lack = missing()
    if lack is not None:
        pytest.skip(lack)
    yield tmp_path
    while mounts.find(tmp_path / "mnt") is not None:
        mounts.detach(tmp_path / "mnt")


def test_the_first_steps_work_as_they_are_printed(place: Path) -> None:
    part = (ROOT / "README.md").read_text().partition("## Read, append, operate\n")[2].partition("\n## ")[0]
    commands = [line.strip() for line in part.splitlines() if line.startswith("    ")]
    assert len(commands) >= 8
    (place / "clicks.jsonl").write_text('{"key":"ann","value":"home"}\n')
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    script = "set -ex\n" + "\n".join([*commands, "topicfs umount mnt"])
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=place,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert '"value":"home"' in done.stdout


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_each_file_that_a_page_names_is_there(page: Path) -> None:
    words = {word for line in page.read_text().splitlines() for word in line.split("`")[1::2]}
    named = {
        word
        for word in words
        if word.startswith(("engine/", "fs/", "mountd/", "tests/", "examples/"))
        and " " not in word
        and "*" not in word
    }
    missed = [word for word in named if not ((ROOT / word).exists() or (page.parent / word).exists())]
    assert sorted(word for word in missed if "<" not in word) == []


def test_the_picture_of_a_session_is_what_a_session_gives(place: Path) -> None:
    script = ROOT / "examples/picture.py"
    subprocess.run([sys.executable, script, place / "now.svg"], check=True, capture_output=True, timeout=180)

    def shown(path: Path) -> list[str]:
        """What is to be read in a picture. Times differ, and have as many digits."""
        texts = re.findall(r"<text[^>]*>(.*?)</text>", path.read_text())
        return [re.sub(r"\d{13}", "TIME", html.unescape(text)) for text in texts]

    now = shown(place / "now.svg")
    assert shown(ROOT / "examples/session.svg") == now
    assert any("pears" in text for text in now)
