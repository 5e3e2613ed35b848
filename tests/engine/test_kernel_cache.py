"""Where compiled kernels are kept: `topicfs.engine.kernels.cache`, with a folder of one small kernel."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from patience import PATIENCE_S

ROOT = Path(__file__).parents[2]
NOBODY = 65534

HELPER = """
from topicfs.engine.kernels.compile import inline

@inline
def more(number):
    return number + 1
"""
KERNEL = """
from topicfs.engine.kernels.compile import INT, kernel
from helper import more

@kernel(INT, INT)
def twice_more(number):
    return more(more(number))
"""
# Says what the kernel gives, and whether it had to be compiled, and if so whether it is kept.
PROGRAM = """
import logging, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
class Told(logging.Handler):
    def emit(self, record):
        print("compiled", "kept" if record.is_kept else "for this run")
import topicfs.engine.kernels.compile
from topicfs.engine.kernels.cache import prepare
logging.getLogger("topicfs.engine.kernels.compile").setLevel(logging.INFO)
logging.getLogger("topicfs.engine.kernels.compile").addHandler(Told())
prepare(Path(sys.argv[1]))
from memory_files import twice_more
print(twice_more(5))
"""
STRANGER = ["setpriv", "--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups"]
STRANGER += ["--inh-caps", "+dac_read_search", "--ambient-caps", "+dac_read_search", "--"]
"""Who may read everything, as where Python is installed for all, and write nothing."""

needs_root = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("setpriv") is None, reason="only root can become another user"
)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder of sources that all may read. Not in pytest's directories, where others do not get."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        made = Path(name) / "sources"
        made.mkdir()
        (made / "helper.py").write_text(HELPER)
        (made / "memory_files.py").write_text(KERNEL)
        yield made


def run(folder: Path, *, stranger: bool = False, **environment: str) -> list[str]:
    """What the program says, with nothing in its environment but this."""
    done = subprocess.run(
        [*(STRANGER if stranger else []), sys.executable, "-B", "-c", PROGRAM, folder],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), **environment},
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
        timeout=5 * PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_what_is_compiled_once_is_kept_beside_the_sources(folder: Path) -> None:
    assert run(folder) == ["compiled kept", "7"]
    assert run(folder) == ["7"]
    assert list((folder / "__pycache__").glob("*.nbc"))


# Says how many kernels of the engine were loaded by the import alone, and after many threads have called one.
LAZY = """
import threading
import numpy as np
import topicfs.engine.batch
from topicfs.engine.kernels import compile
from topicfs.engine.kernels.lines import last_newline
kept = len(compile._PENDING)
given, text = [], np.frombuffer(b"a\\nb", np.uint8)
threads = [threading.Thread(target=lambda: given.append(last_newline(text, 0, 3))) for _ in range(20)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(kept == len(compile._READY), given == [1] * 20, kept - len(compile._PENDING))
compile.load_all()
print(len(compile._PENDING), last_newline(text, 0, 3))
"""


def test_a_kept_kernel_is_loaded_by_its_first_call_also_if_many_threads_make_it() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LAZY], capture_output=True, text=True, check=False, timeout=5 * PATIENCE_S
    )
    assert done.stdout.splitlines() == ["True True 1", "0 1"], done.stderr
    assert not done.stderr


@needs_root
def test_what_one_user_compiled_serves_another_who_has_no_home(folder: Path) -> None:
    run(folder)
    assert run(folder, stranger=True) == ["7"]
    assert run(folder, stranger=True, HOME="/nonexistent") == ["7"]


@needs_root
def test_without_a_place_it_is_compiled_for_the_run_alone(folder: Path) -> None:
    for _ in range(2):
        assert run(folder, stranger=True) == ["compiled for this run", "7"]
    assert not (folder / "__pycache__").exists()


@needs_root
@pytest.mark.parametrize("name", ["XDG_CACHE_HOME", "HOME", "NUMBA_CACHE_DIR"])
def test_where_the_sources_cannot_be_written_the_users_own_directory_is_used(folder: Path, name: str) -> None:
    mine = folder.parent / "mine"
    mine.mkdir()
    os.chown(mine, NOBODY, NOBODY)
    assert run(folder, stranger=True, **{name: str(mine)}) == ["compiled kept", "7"]
    assert run(folder, stranger=True, **{name: str(mine)}) == ["7"]
    kept = mine / ".cache/topicfs" if name == "HOME" else mine / "topicfs"
    [place] = kept.iterdir()
    assert list(place.glob("*.nbc"))
    assert [each.stat().st_mode & 0o777 for each in (kept, place)] == [0o700, 0o700]


@needs_root
def test_a_relative_cache_directory_means_nothing(folder: Path) -> None:
    assert run(folder, stranger=True, XDG_CACHE_HOME="tmp") == ["compiled for this run", "7"]


@needs_root
def test_what_others_may_write_is_neither_read_nor_written(folder: Path) -> None:
    mine = folder.parent / "mine"
    mine.mkdir()
    os.chown(mine, NOBODY, NOBODY)
    assert run(folder, stranger=True, XDG_CACHE_HOME=str(mine)) == ["compiled kept", "7"]
    [place] = (mine / "topicfs").iterdir()
    for directory in (mine, mine / "topicfs", place):
        for change in (0o777, 0o770):
            before = directory.stat().st_mode
            directory.chmod(change)
            assert run(folder, stranger=True, XDG_CACHE_HOME=str(mine)) == ["compiled for this run", "7"]
            directory.chmod(before)
        os.chown(directory, 1, 1)
        assert run(folder, stranger=True, XDG_CACHE_HOME=str(mine)) == ["compiled for this run", "7"]
        os.chown(directory, NOBODY, NOBODY)
    # A link there is as good as where it leads.
    link = folder.parent / "link"
    link.symlink_to(mine)
    assert run(folder, stranger=True, XDG_CACHE_HOME=str(link)) == ["7"]
    mine.chmod(0o1777)
    assert run(folder, stranger=True, XDG_CACHE_HOME=str(link)) == ["7"]
    mine.chmod(0o777)
    assert run(folder, stranger=True, XDG_CACHE_HOME=str(link)) == ["compiled for this run", "7"]


def test_a_change_of_a_helper_in_another_file_compiles_anew(folder: Path) -> None:
    run(folder)
    (folder / "helper.py").write_text(HELPER.replace("+ 1", "+ 2"))
    assert run(folder) == ["compiled kept", "9"]
    assert run(folder) == ["9"]


@needs_root
def test_what_was_compiled_of_other_sources_is_not_used(folder: Path) -> None:
    run(folder)
    (folder / "helper.py").write_text(HELPER.replace("+ 1", "+ 2"))
    assert run(folder, stranger=True) == ["compiled for this run", "9"]


@pytest.mark.parametrize("ending", ["nbi", "nbc"])
@pytest.mark.parametrize("damage", ["cut", "empty", "other"])
def test_what_is_damaged_is_compiled_anew(folder: Path, ending: str, damage: str) -> None:
    run(folder)
    [file] = (folder / "__pycache__").glob(f"*.{ending}")
    data = file.read_bytes()
    file.write_bytes({"cut": data[:-7], "empty": b"", "other": b"something else"}[damage])
    assert run(folder) == ["compiled kept", "7"]
    assert run(folder) == ["7"]
