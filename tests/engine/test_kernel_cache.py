"""Where compiled kernels are kept: `topicfs.engine.kernels.cache`, with a folder of one small kernel."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
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
# For each line that it reads it forks a process, which says what the kernel gives, and whether it had to be compiled,
# and if so whether it is kept. To load and warm the compiler takes 0.6 s of a processor, and there are fifty of them.
NURSERY = """
import json, logging, os, sys, traceback
from pathlib import Path
import numba
from topicfs.engine.kernels.cache import prepare
class Told(logging.Handler):
    def emit(self, record):
        print("compiled", "kept" if record.is_kept else "for this run")
import topicfs.engine.kernels.compile
logging.getLogger("topicfs.engine.kernels.compile").setLevel(logging.INFO)
logging.getLogger("topicfs.engine.kernels.compile").addHandler(Told())
numba.njit("int64(int64)")(lambda number: number)

def live(folder, environment):
    os.environ.update(environment)
    sys.path.insert(0, folder)
    prepare(Path(folder))
    from twice import twice_more
    print(twice_more(5))

for line in sys.stdin:
    if os.fork() == 0:
        try:
            live(*json.loads(line))
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
    os.wait()
    print(flush=True)
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
        (made / "twice.py").write_text(KERNEL)
        yield made


@cache
def nursery(stranger: bool) -> subprocess.Popen[str]:
    """The process that others are forked from, with nothing in its environment but this."""
    started = subprocess.Popen(
        [*(STRANGER if stranger else []), sys.executable, "-B", "-c", NURSERY],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)},
        cwd="/",
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    atexit.register(started.communicate)
    return started


def run(folder: Path, *, stranger: bool = False, **environment: str) -> list[str]:
    """What a new process says, with this in its environment."""
    process = nursery(stranger)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps([str(folder), environment]) + "\n")
    process.stdin.flush()
    said = []
    while (line := process.stdout.readline().rstrip("\n")) or not said:
        assert line, "the process ended without a word"
        said.append(line)
    return said


def test_what_is_compiled_once_is_kept_beside_the_sources(folder: Path) -> None:
    assert run(folder) == ["compiled kept", "7"]
    assert run(folder) == ["7"]
    assert list((folder / "__pycache__").glob("*.nbc"))


# Says how many kernels of the engine were loaded by the import alone, and after many threads have called one.
LAZY = """
import sys
import threading
import numpy as np
import topicfs.engine.batch
from topicfs.engine.kernels import compile
from topicfs.engine.kernels.lines import last_newline
kept = len(compile._PENDING)
compiles = last_newline._can_compile
given, text = [], np.frombuffer(b"a\\nb", np.uint8)
threads = [threading.Thread(target=lambda: given.append(last_newline(text, 0, 3))) for _ in range(20)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(kept == len(compile._READY), given == [1] * 20, kept - len(compile._PENDING))
# Who calls while that changes gets an error for arguments that need a conversion, such as a writable array.
print(compiles, last_newline._can_compile)
import topicfs.mountd.kernels
topicfs.mountd.kernels.compile_all()
compile.load_all()
print(len(compile._PENDING), last_newline(text, 0, 3))
print([name for name in ("numba.typed.typeddict", "numba.np.linalg") if name in sys.modules])
"""


def test_a_kept_kernel_is_loaded_by_its_first_call_without_the_compiler_also_of_many_threads() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LAZY], capture_output=True, text=True, check=False, timeout=5 * PATIENCE_S
    )
    assert done.stdout.splitlines() == ["True True 1", "False False", "0 1", "[]"], done.stderr
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


def test_damaged_machine_code_is_not_run(folder: Path) -> None:
    run(folder)
    [file] = (folder / "__pycache__").glob("*.nbc")
    data = bytearray(file.read_bytes())
    code = data.index(b"\x7fELF") + 64
    data[code : code + 256] = bytes(byte ^ 0xFF for byte in data[code : code + 256])
    file.write_bytes(data)
    assert run(folder) == ["compiled kept", "7"]
    assert run(folder) == ["7"]


# A kernel that calls another one with a type that is not the other one's own.
CALLING = """
from topicfs.engine.kernels.compile import INT, kernel

@kernel(INT, INT)
def same(number):
    return number

@kernel(INT, INT)
def is_large(number):
    return same(number > 3)

def twice_more(number):
    return is_large(number), same(number)
"""


def test_a_damaged_kernel_is_compiled_for_the_types_of_those_that_it_calls(folder: Path) -> None:
    (folder / "twice.py").write_text(CALLING)
    run(folder)
    [file] = (folder / "__pycache__").glob("*is_large*.nbc")
    file.write_bytes(b"")
    assert run(folder) == ["compiled kept", "(1, 5)"]
    assert run(folder) == ["(1, 5)"]
