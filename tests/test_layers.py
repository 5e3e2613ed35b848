"""The layers: mountd → fs → engine, never upward; Spark in one folder; files of the backing directory in one layer."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MAY_IMPORT = {
    "engine": {"engine"},
    "fs": {"engine", "fs"},
    "mountd": {"engine", "fs", "mountd"},
}
OURS = {"engine", "fs", "mountd", "tests", "examples"}
ROOMS = {"pyspark": {"engine/spark"}, "pyarrow": {"engine/spark", "engine/parquet"}}
COMMANDS = "mountd/spark_commands.py"
"""The jobs' command line, which loads them when one is run."""

DYNAMIC = ("importlib.import_module", "__import__")

# What opens, lists or changes a file that is named by a path.
OPENING = {"open", "fdopen", "read_bytes", "read_text", "write_bytes", "write_text", "mkdir", "makedirs",
"unlink", "remove", "rename",
           "replace", "rmdir", "touch", "truncate", "iterdir", "glob", "rglob", "scandir", "listdir",
           "symlink_to", "link_to", "rmtree",
           "copyfile", "memmap", "fromfile", "tofile"}  # fmt: skip


def sources(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def imports(source: Path) -> Iterator[str]:
    """The modules that a file imports, wherever it does so."""
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{source}: a relative import"
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in DYNAMIC:
            name = node.args[0]
            # The kernels' compiler names the modules of a package that it is given.
            if ast.unparse(name) != "f'{package.__name__}.{name}'":
                yield ast.literal_eval(name)


def called(source: Path) -> Iterator[tuple[int, str]]:
    """The calls in a file: line, and what is called."""
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.Call):
            yield node.lineno, ast.unparse(node.func)


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_imports_point_one_way(package: str) -> None:
    assert sources(package)
    wrong = [
        f"{source.relative_to(ROOT)} imports {name}"
        for source in sources(package)
        for name in imports(source)
        if name.split(".")[0] in OURS - MAY_IMPORT[package]
    ]
    assert not wrong


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_nothing_but_its_own_folder_imports_spark(package: str) -> None:
    wrong = [
        f"{source.relative_to(ROOT)} imports {name}"
        for source in sources(package)
        if (ROOT / "engine" / "spark") not in source.parents
        for name in imports(source)
        if not is_at_home(name.split(".")[0], source)
        or (name.startswith("engine.spark") and str(source.relative_to(ROOT)) != COMMANDS)
    ]
    assert not wrong


def is_at_home(package: str, source: Path) -> bool:
    """Whether a package may be imported there: most may be anywhere."""
    return package not in ROOMS or any(ROOT / room in source.parents for room in ROOMS[package])


def test_the_daemon_starts_without_pyarrow() -> None:
    program = "import sys; sys.modules['pyarrow'] = None; import mountd.assembly, mountd.cli, mountd.daemon"
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT)


def test_the_engine_knows_nothing_of_fuse_or_the_command_line() -> None:
    wrong = [
        f"{source.relative_to(ROOT)} imports {name}"
        for source in sources("engine")
        for name in imports(source)
        if name.split(".")[0] in {"fuse", "click", "rich", "prometheus_client"}
    ]
    assert not wrong


def test_the_file_system_opens_no_file_by_itself() -> None:
    """It reads through the engine, and keeps through the shelf: `os.open` and `open` are not its own words."""
    wrong = []
    for source in sources("fs"):
        for line, call in called(source):
            receiver, _, name = call.rpartition(".")
            # Entries, handles and views of its own have methods of these names; `os`, `shutil`, paths and numpy do not.
            foreign = (
                receiver in ("", "os", "io", "shutil", "np", "Path", "pathlib") or "path" in receiver.lower()
            )
            if name in OPENING and foreign:
                wrong.append(f"{source.relative_to(ROOT)}:{line}: {call}")
    assert not wrong


def test_the_file_system_imports_nothing_that_opens_files() -> None:
    allowed = {"fs/kernels/__init__.py"}
    wrong = [
        f"{source.relative_to(ROOT)} imports {name}"
        for source in sources("fs")
        for name in imports(source)
        if name.split(".")[0] in {"shutil", "tempfile", "io", "mmap", "glob"}
        or (name.startswith("engine.store.files") and str(source.relative_to(ROOT)) not in allowed)
    ]
    assert not wrong
