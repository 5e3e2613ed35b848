"""The wheel: what is in it, and what it does in an environment that has nothing else of topicfs."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from topicfs.mountd import cli

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
FOLDERS = {
    "engine/public": "topicfs",
    "engine": "topicfs/engine",
    "fs": "topicfs/fs",
    "mountd": "topicfs/mountd",
}
SHIPPED = {".py", ".typed", ".html", ".css", ".js", ".svg", ".1"}
"""Documents stay with the sources."""


@pytest.fixture(scope="module")
def wheel() -> Iterator[Path]:
    """The wheel of this working copy, built from a copy of it, so that nothing is left here."""
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        left_out = shutil.ignore_patterns(".*", "__pycache__", "build", "tests", "data", "mnt", "*.egg-info")
        shutil.copytree(ROOT, place / "source", ignore=left_out)
        command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", name]
        subprocess.run([*command, str(place / "source")], check=True, timeout=300)
        (made,) = place.glob("topicfs-*.whl")
        yield made


def test_a_wheel_has_every_module_and_all_that_it_reads(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if name.startswith("topicfs/")}
    expected = set()
    for folder, package in FOLDERS.items():
        for path in (ROOT / folder).rglob("*"):
            inside = path.relative_to(ROOT / folder)
            if path.suffix not in SHIPPED or "__pycache__" in inside.parts or inside.parts[0] == "public":
                continue
            expected.add(f"{package}/{inside}")
    assert packed == expected


def test_no_package_of_another_project_lies_among_the_sources() -> None:
    assert not [*ROOT.glob("*.whl"), *ROOT.glob("*.tar.gz")]


def test_a_wheel_says_its_version_its_licence_and_that_it_is_typed(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        told = archive.read(metadata).decode()
    assert f"\nVersion: {PROJECT['version']}\n" in told
    assert "\nLicense-Expression: Apache-2.0\n" in told
    assert any(name.endswith("/LICENSE") for name in names)
    assert "topicfs/py.typed" in names


def test_the_changelog_begins_with_the_version_of_now() -> None:
    versions = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert versions[0] == PROJECT["version"]
    assert len(versions) == len(set(versions))


def test_a_wheel_works_in_a_clean_environment(wheel: Path, tmp_path: Path) -> None:
    clean = tmp_path / "clean"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(clean)], check=True, timeout=120)
    python = clean / "bin/python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "install", "--no-deps", str(wheel)], check=True, timeout=120)
    # Its dependencies are those of this environment: to fetch them again would take a minute.
    (packages,) = clean.glob("lib/python3*/site-packages")
    beside = importlib.metadata.distribution("numpy").locate_file("")
    # A path in such a file is not looked through for further ones, so the sources of this copy stay out of reach.
    (packages / "dependencies.pth").write_text(f"{beside}\n")

    def said(*command: str | Path) -> list[str]:
        environment = {"PATH": os.environ["PATH"]}
        done = subprocess.run(
            command, env=environment, cwd="/", capture_output=True, text=True, check=False, timeout=120
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.split()

    assert said(clean / "bin/topicfs", "--version")[-1] == PROJECT["version"]
    where = "import topicfs, topicfs.fs, topicfs.mountd; print(topicfs.__file__, topicfs.mountd.__file__)"
    assert all(Path(each).is_relative_to(clean) for each in said(python, "-c", where))
    assert (clean / "bin/mount.fuse.topicfs").exists()


def test_the_recipe_of_a_container_copies_what_a_wheel_is_built_of() -> None:
    lines = (ROOT / ".containerignore").read_text().split()
    assert lines[0] == "*"
    copied = {line.removeprefix("!") for line in lines if line.startswith("!")}
    assert all((ROOT / name).exists() for name in copied)
    folders = {folder.partition("/")[0] for folder in FOLDERS}
    assert copied == folders | {"pyproject.toml", PROJECT["readme"], *PROJECT["license-files"]}


def test_the_recipe_of_a_container_installs_what_topicfs_needs_and_starts_what_it_takes() -> None:
    recipe = (ROOT / "examples/Containerfile").read_text()
    needed = {"venv", "fuse", "libfuse2"}
    installed = re.search(r"--no-install-recommends (.*?) \\", recipe)
    assert installed is not None
    assert {name.removeprefix("python3-") for name in installed[1].split()} >= needed
    extras = re.search(r"'/source\[(.*?)\]'", recipe)
    assert extras is not None
    assert set(extras[1].split(",")) <= set(PROJECT["optional-dependencies"])
    entry = re.search(r"^ENTRYPOINT (\[.*\])$", recipe, re.MULTILINE)
    assert entry is not None
    words = json.loads(entry[1])
    assert words[0] in PROJECT["scripts"]
    options = {option for parameter in cli.main.commands[words[1]].params for option in parameter.opts}
    assert {word for word in words[2:] if word.startswith("-")} <= options
    assert f"VOLUME {words[-2]}\n" in recipe
