"""Every example runs with one command, and does what its first lines say."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from sampling import sample

EXAMPLES = Path(__file__).parents[2] / "examples"
LIMIT_S = 480


# Spark Connect then takes a port that is free, and not always the same.
OWN_PORT = {"SPARK_TESTING": "1"}


def run(name: str, place: Path, *arguments: str, **variables: str) -> str:
    """What an example prints."""
    script = EXAMPLES / name
    words = [str(script)] if script.suffix == ".sh" else [sys.executable, str(script)]
    output = [] if script.suffix == ".sh" else ["--output", str(place / "output")]
    environment = {
        **os.environ,
        "TMPDIR": str(place),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        **variables,
    }
    done = subprocess.run(
        [*words, *output, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert not any(f" {place}" in line for line in Path("/proc/mounts").read_text().splitlines()), (
        "left mounted"
    )
    return done.stdout


def test_a_shell_session(tmp_path: Path) -> None:
    said = run("session.sh", tmp_path)
    assert "\nann\t3 pears\n" in said
    assert '{"offset":3,"key":"ann","value":"5 figs","headers":[{"key":"shop","value":"north"}]}' in said
    assert "\na late order\n" in said
    assert "until" in said
    assert "\norders is back\n" in said
    assert said.rstrip().endswith("README.txt\ngroups\nmetrics\nproducers\ntopics\ntransactions")


def test_keys_as_files(tmp_path: Path) -> None:
    said = run("keys.sh", tmp_path)
    assert '$ cat topics/users/keys/ann\n{"mail":"ann@example.org"}\n' in said
    assert "$ ls topics/users/keys/\nann\n" in said
    assert '\n{"mail":"anna@example.com"}\n' in said
    assert said.rstrip().endswith("somebody was faster: read again")


def test_a_batch_job_with_a_plot(tmp_path: Path) -> None:
    said = run("batch.py", tmp_path, "--events", "20000")
    assert "20,000 clicks" in said
    assert (tmp_path / "output/clicks-an-hour.png").read_bytes().startswith(b"\x89PNG")


def pipeline(place: Path) -> None:
    """Each record is read once over two runs."""
    said = run("pipeline.py", place, "--events", "4000", **OWN_PORT)
    assert "clicks: 4,000, different ones: 4,000" in said
    assert "clicks: 6,000, different ones: 6,000" in said


def stream(place: Path) -> None:
    """It is killed, goes on, and has written each session once."""
    said = run("stream.py", place, "--events", "60000")
    assert "It resumes" in said
    written, waiting, twice = (
        int(line.rpartition(" ")[2].replace(",", "")) for line in said.splitlines()[-3:]
    )
    assert written > 0
    assert written + waiting == 60_000
    assert twice == 0


def cluster(place: Path) -> None:
    """A broker of its own is mirrored, queried and appended to."""
    said = run("cluster.sh", place)
    assert "|        0| 1058|" in said
    assert "0,1058\n1,942\n" in said
    assert said.rstrip().endswith("a line from a shell")


def test_examples_that_take_long(tmp_path: Path) -> None:
    for example in sample((pipeline, stream, cluster)):
        place = tmp_path / example.__name__
        place.mkdir()
        example(place)


def test_a_table_for_duckdb(tmp_path: Path) -> None:
    said = run("table.py", tmp_path, "--events", "20000")
    assert "the slowest pages" in said
    assert "1000" in said.rpartition("one range of offsets")[2]


@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.glob("*.py")))
def test_each_example_says_what_it_is_and_how_it_is_run(name: str) -> None:
    said = (EXAMPLES / name).read_text()
    assert said.startswith('"""')
    assert name == "workplace.py" or f"python examples/{name}" in said
