"""Run a small job with each version of Spark, Python, pandas and pyarrow that is supported, each in an environment of
its own: `make matrix`. It takes a quarter of an hour and 5 GB, so CI does not.

Prints the table that README shows. Environments stay in .tools/matrix. A Python that is not there is left out.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
PLACE: Final = ROOT / ".tools" / "matrix"
JOB: Final = Path(__file__).with_name("matrix_job.py")
LIMIT_S: Final = 1800


@dataclass(frozen=True, slots=True)
class Environment:
    """What is installed, and what the job says where that is too old."""

    python: str
    spark: str
    pandas: str
    pyarrow: str
    refusal: str = ""

    @property
    def path(self) -> Path:
        """Where it is."""
        name = f"python{self.python}-spark{self.spark}-pandas{self.pandas}-pyarrow{self.pyarrow}"
        return PLACE / name.replace(".*", "")


ENVIRONMENTS: Final = (
    Environment("3.11", "4.1.4", "2.*", "18.*", "expected pyspark 4.2 or later, found 4.1.4"),
    Environment("3.11", "4.2.1", "2.*", "18.*"),
    Environment("3.12", "4.2.1", "3.*", "26.*"),
    Environment("3.13", "4.2.1", "3.*", "26.*"),
    Environment("3.11", "4.3.0", "3.*", "26.*"),
    Environment("3.12", "4.3.0", "2.*", "18.*"),
    Environment("3.13", "4.3.0", "2.*", "26.*"),
)


def main() -> int:
    """All environments; 1 if one of them fails."""
    PLACE.mkdir(parents=True, exist_ok=True)
    wheel = built()
    failed = 0
    say("| Python | Spark | pandas | pyarrow | |")
    say("|---|---|---|---|---|")
    for each in ENVIRONMENTS:
        python = interpreter(each.python)
        if python is None:
            say(f"| {each.python} | {each.spark} | | | no such Python here |")
            continue
        install(each, python, wheel)
        error = tried(each)
        failed += bool(error)
        versions = installed(each)
        found = error or ("refused in words" if each.refusal else "works")
        say(
            f"| {versions['python']} | {' | '.join(versions[n] for n in ('pyspark', 'pandas', 'pyarrow'))} | {found} |"
        )
    return int(failed > 0)


def say(line: str) -> None:
    """Print a line of the table."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def built() -> Path:
    """The wheel of this working copy, built in another place, so that nothing is left here."""
    with tempfile.TemporaryDirectory() as place:
        source = Path(place) / "source"
        left_out = shutil.ignore_patterns(".*", "__pycache__", "build", "tests", "data", "mnt", "*.egg-info")
        shutil.copytree(ROOT, source, ignore=left_out)
        command = ["-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(PLACE), str(source)]
        run(sys.executable, *command)
    (wheel,) = PLACE.glob("topicfs-*.whl")
    return wheel


def interpreter(version: str) -> str | None:
    """A Python of this version, on the path or among those of pyenv."""
    there = sorted((Path.home() / ".pyenv" / "versions").glob(f"{version}.*/bin/python"))
    for each in [*map(str, reversed(there)), f"python{version}"]:
        path = shutil.which(each)
        if path is not None and run(path, "-V", check=False).stdout.startswith(f"Python {version}."):
            return path
    return None


def install(each: Environment, python: str, wheel: Path) -> None:
    """Make the environment, or bring the one of an earlier run up to date."""
    if not (each.path / "bin" / "python").exists():
        run(python, "-m", "venv", str(each.path))
    pip = (str(each.path / "bin" / "python"), "-m", "pip", "install", "--quiet")
    pinned = (f"pandas=={each.pandas}", f"pyarrow=={each.pyarrow}", f"pyspark[pipelines]=={each.spark}")
    # What is too old is not what the wheel asks for, so its needs are named here.
    needs = ("numpy", "numba", "google-crc32c", "cramjam", "fusepy", "click", "rich", "prometheus-client")
    run(*pip, *pinned, *needs)
    run(*pip, "--no-deps", "--force-reinstall", str(wheel))


def tried(each: Environment) -> str:
    """What is wrong; nothing if the job does, or says, what it should."""
    with tempfile.TemporaryDirectory() as place:
        done = run(str(each.path / "bin" / "python"), str(JOB), place, check=False)
    kept = Path(f"{each.path}.log")
    kept.write_text(done.stdout + done.stderr)
    if each.refusal:
        return "" if done.returncode and each.refusal in done.stderr else f"not refused: {kept}"
    return f"ended with {done.returncode}: {kept}" if done.returncode else ""


def installed(each: Environment) -> dict[str, str]:
    """The versions that are really there."""
    names = "('pyspark', 'pandas', 'pyarrow')"
    program = (
        "import json, platform; from importlib.metadata import version\n"
        f"print(json.dumps({{'python': platform.python_version(), **{{n: version(n) for n in {names}}}}}))"
    )
    found = json.loads(run(str(each.path / "bin" / "python"), "-c", program).stdout)
    assert isinstance(found, dict)
    return found


def run(*command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run a program, and show what it says only where it fails."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False, cwd=PLACE)
    if check and done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return done


if __name__ == "__main__":
    sys.exit(main())
