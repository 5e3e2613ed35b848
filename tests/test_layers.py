"""The layers: mountd → fs → engine, never upward; Spark in one folder; files of the backing directory in one layer."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from topicfs.engine.format import paths
from topicfs.engine.kernels.compile import FORMATS

ROOT = Path(__file__).parents[1]
MAY_IMPORT = {
    "engine": {"engine"},
    "fs": {"engine", "fs"},
    "mountd": {"engine", "fs", "mountd"},
}
OURS = {"engine", "fs", "mountd", "tests", "examples"}
ROOMS = {
    "pyspark": {"engine/spark"},
    "pyarrow": {"engine/spark", "engine/parquet", "engine/arrow", "engine/column_files", "engine/sql"},
    "duckdb": {"engine/sql"},
}
FOLDERS = ("engine", "fs", "mountd", "tests", "examples", ".ci")
TEXTS = {".py", ".md", ".sh", ".toml"}
PUBLIC = "engine/public"
"""What is imported as `topicfs` itself."""

USE_SPARK = {"mountd/spark_commands.py", "engine/public/spark.py"}
"""The jobs' command line, which loads them when one is run, and what users import."""

LIMIT_S = 120.0
"""Only a program that hangs, or waits for a network that does not answer, takes that long."""

DYNAMIC = ("importlib.import_module", "__import__")

# What opens, lists or changes a file that is named by a path.
OPENING = {"open", "fdopen", "read_bytes", "read_text", "write_bytes", "write_text", "mkdir", "makedirs",
"unlink", "remove", "rename",
           "replace", "rmdir", "touch", "truncate", "iterdir", "glob", "rglob", "scandir", "listdir",
           "symlink_to", "link_to", "rmtree",
           "copyfile", "memmap", "fromfile", "tofile"}  # fmt: skip


def sources(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def imports(source: Path, for_types: bool = True) -> Iterator[str]:
    """The modules that a file imports, wherever it does so."""
    tree = ast.parse(source.read_text())
    left_out = (
        set()
        if for_types
        else {each for node in ast.walk(tree) if only_for_types(node) for each in ast.walk(node)}
    )
    for node in ast.walk(tree):
        if node in left_out:
            continue
        if isinstance(node, ast.Import):
            yield from (short(alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{source}: a relative import"
            yield short(node.module or "")
            yield from (short(f"{node.module}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in DYNAMIC:
            name = node.args[0]
            # The kernels' compiler names the modules of a package that it is given.
            if ast.unparse(name) != "f'{package.__name__}.{name}'":
                yield ast.literal_eval(name)


def only_for_types(node: ast.AST) -> bool:
    """Whether only a type checker reads it."""
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def short(name: str) -> str:
    """The name of a module as its folder has it. The folders alone are no packages: see `bare_imports`."""
    return name.removeprefix("topicfs.")


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
        or (name.startswith("engine.spark") and str(source.relative_to(ROOT)) not in USE_SPARK)
    ]
    assert not wrong


def is_at_home(package: str, source: Path) -> bool:
    """Whether a package may be imported there: most may be anywhere."""
    return package not in ROOMS or any(ROOT / room in source.parents for room in ROOMS[package])


def test_the_daemon_starts_without_pyarrow() -> None:
    modules = ", ".join(f"topicfs.mountd.{name}" for name in ("assembly", "cli", "daemon"))
    program = f"import sys; sys.modules['pyarrow'] = None; import {modules}"
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT, timeout=LIMIT_S)


def test_the_engine_knows_nothing_of_fuse_or_the_command_line() -> None:
    wrong = [
        f"{source.relative_to(ROOT)} imports {name}"
        for source in sources("engine")
        for name in imports(source)
        if name.split(".")[0] in {"fuse", "click", "rich", "prometheus_client"}
    ]
    assert not wrong


def test_the_file_system_opens_no_file_by_itself() -> None:
    """It reads through the engine, and keeps through the view cache: `os.open` and `open` are not its own words."""
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
    harmless = {"integers", "birth"}
    # Of a module that does open files: an error.
    parts = {"regular", "regular.NotRegularError"}
    wrong = [
        f"{source.relative_to(ROOT)} imports {name}"
        for source in sources("fs")
        for name in imports(source)
        if name.split(".")[0] in {"shutil", "tempfile", "io", "mmap", "glob"}
        or (
            name.startswith("engine.files.")
            and name.split(".")[2] not in harmless
            and name.removeprefix("engine.files.") not in parts
        )
    ]
    assert not wrong


# -- formats ------------------------------------------------------------------------------------------


def test_formats_need_nothing_but_the_standard_library() -> None:
    """The planning of Spark's queries reads them, and loads neither numpy nor the kernels for that."""
    ours = ("engine.format", "engine.errors", "engine.record")
    wrong = [
        f"{source.relative_to(ROOT)} imports {name}"
        for source in sources("engine/format")
        for name in imports(source)
        if name.split(".")[0] not in {*sys.stdlib_module_names, "numpy"} and not name.startswith(ours)
    ]
    assert not wrong
    modules = ", ".join(f"topicfs.engine.format.{source.stem}" for source in sources("engine/format"))
    program = f"import sys; sys.modules['numpy'] = None; import {modules}"
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT, timeout=LIMIT_S)


def test_the_stamp_of_compiled_kernels_knows_the_formats_that_they_use() -> None:
    todo = [*sources("engine/kernels"), *sources("fs/kernels")]
    used: set[Path] = set()
    while todo:
        names = {name for name in imports(todo.pop()) if name.startswith("engine.format.")}
        found = {ROOT / "engine" / "format" / f"{name.split('.')[2]}.py" for name in names} - used
        used |= found
        todo += found
    assert used == set(FORMATS)


def test_names_of_files_are_written_in_one_place() -> None:
    names = {value for value in vars(paths).values() if isinstance(value, str) and set(value) & set(".-")}
    names -= {paths.__doc__, paths.__file__, paths.LOG_SUFFIX}  # what a program logs ends in `.log` too
    wrong = [
        f"{source.relative_to(ROOT)}:{node.lineno}: {node.value!r}"
        for package in MAY_IMPORT
        for source in sources(package)
        if source != Path(paths.__file__)
        for node in ast.walk(ast.parse(source.read_text()))
        if isinstance(node, ast.Constant) and node.value in names
    ]
    assert {".timeindex", "meta.properties"} <= names
    assert not wrong


# -- one name to import -------------------------------------------------------------------------------


def test_nobody_imports_the_folders_by_their_bare_names() -> None:
    """`fs` alone is another library's name. Only `topicfs.fs` is ours, and so it is with the two others."""
    bare = re.compile(r"\b(?:from|import) (?:engine|fs|mountd)\b(?!\w| =)|-m (?:engine|fs|mountd)\.")
    files = [source for folder in FOLDERS for source in (ROOT / folder).rglob("*") if source.suffix in TEXTS]
    wrong = [
        f"{file.relative_to(ROOT)}: {line.strip()}"
        for file in [*files, ROOT / "README.md", ROOT / "Makefile", ROOT / "pyproject.toml"]
        if file != Path(__file__)
        for line in file.read_text().splitlines()
        if bare.search(line)
    ]
    assert len(files) > 300
    assert not wrong


def test_the_list_of_packages_is_complete() -> None:
    """A package that is not in the list is missing in the wheel, though everything works from a checkout."""
    told = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    folders = {file.parent.relative_to(ROOT) for package in MAY_IMPORT for file in sources(package)}
    names = {"topicfs" if str(each) == PUBLIC else "topicfs." + ".".join(each.parts) for each in folders}
    assert sorted(told["packages"]) == sorted(names)
    assert told["package-dir"] == {"topicfs": PUBLIC, **{f"topicfs.{name}": name for name in MAY_IMPORT}}


def test_nothing_is_kept_that_can_be_downloaded_or_built() -> None:
    """A commit of all that lies about once took along nine wheels, of which one had 7 MB."""
    git = ["git", "-C", str(ROOT), "ls-files", "-z"]
    kept = subprocess.run(git, capture_output=True, check=True, timeout=LIMIT_S).stdout.decode().split("\0")
    assert len(kept) > 300
    assert not [name for name in kept if Path(name).suffix in {".whl", ".gz", ".zip", ".jar", ".pyc", ".so"}]
    assert not [name for name in kept if (ROOT / name).is_file() and (ROOT / name).stat().st_size > 500_000]


def take_compiled(installed: Path) -> None:
    """Take over the kernels that are compiled here: to compile them takes 20 s, and tests/engine looks at that."""
    for folder in ("engine/kernels", "fs/kernels"):
        shutil.copytree(ROOT / folder / "__pycache__", installed / folder / "__pycache__", dirs_exist_ok=True)
        for source in (ROOT / folder).glob("*.py"):
            shutil.copystat(source, installed / folder / source.name)  # numba looks at its time


def test_the_wheel_lives_beside_another_library_named_fs(tmp_path: Path) -> None:
    """The wheel takes one name in site-packages. PyFilesystem, which is imported as `fs`, works beside it."""
    source, site = tmp_path / "source", tmp_path / "site"
    left_out = shutil.ignore_patterns(".*", "__pycache__", "build", "tests", "data", "mnt", "*.egg-info")
    shutil.copytree(ROOT, source, ignore=left_out)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    subprocess.run([*pip, "wheel", "--no-deps", "--wheel-dir", tmp_path, source], check=True, timeout=LIMIT_S)
    (wheel,) = tmp_path.glob("topicfs-*.whl")
    with zipfile.ZipFile(wheel) as packed:
        names = packed.namelist()
    beside = [name for name in names if not name.startswith("topicfs/") and ".dist-info/" not in name]
    assert [name.split(".data/")[1] for name in beside] == ["data/share/man/man1/topicfs.1"]
    assert {"topicfs/__init__.py", "topicfs/py.typed", "topicfs/spark.py", "topicfs/mountd/cli.py"} <= set(
        names
    )
    assert {"topicfs/mountd/ui/templates/base.html", "topicfs/mountd/ui/static/page.js"} <= set(names)
    # Of setuptools, PyFilesystem needs a part that later ones do not have.
    others = ["fs==2.4.16", "six", "appdirs", "setuptools<80"]
    subprocess.run(
        [*pip, "install", "--no-deps", "--target", site, wheel, *others], check=True, timeout=LIMIT_S
    )
    take_compiled(site / "topicfs")
    program = (
        "import fs.memoryfs, topicfs, topicfs.fs.selections, topicfs.mountd.cli\n"
        "from topicfs import Record, Store\n"
        "from topicfs.spark import register\n"
        "files = fs.memoryfs.MemoryFS()\n"
        "files.writetext('x', 'text')\n"
        "with Store.open('store', create=True) as store:\n"
        "    store.create('t').append(Record(files.readbytes('x')))\n"
        "    print(fs.__file__, topicfs.__file__, [each.value for each in store.partition('t-0').records()])\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        env={**os.environ, "PYTHONPATH": str(site)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
    )
    assert done.stdout == f"{site}/fs/__init__.py {site}/topicfs/__init__.py [b'text']\n", done.stderr


# -- no circles ---------------------------------------------------------------------------------------


def modules() -> dict[str, Path]:
    """Every module of the product by its name, without what is imported as `topicfs` itself."""
    found = {}
    for package in MAY_IMPORT:
        for source in sources(package):
            if ROOT / PUBLIC not in source.parents:
                name = ".".join(source.relative_to(ROOT).with_suffix("").parts)
                found[name.removesuffix(".__init__")] = source
    return found


def dependencies() -> dict[str, set[str]]:
    """The modules that each module imports when it runs. What only a type checker reads does not count, nor does a
    package of which only a module is imported."""
    known = modules()
    found = {}
    for name, source in known.items():
        others = {other for other in imports(source, for_types=False) if other in known and other != name}
        found[name] = {other for other in others if not any(each.startswith(f"{other}.") for each in others)}
    return found


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """The groups of nodes that lead to each other, by the nodes that each node reaches."""
    reached: dict[str, set[str]] = {}
    for start, first in graph.items():
        seen: set[str] = set()
        waiting = list(first)
        while waiting:
            node = waiting.pop()
            if node not in seen:
                seen.add(node)
                waiting.extend(graph.get(node, ()))
        reached[start] = seen
    groups = {frozenset(b for b in graph if b in reached[a] and a in reached[b]) for a in graph}
    return sorted(sorted(group) for group in groups if len(group) > 1)


def test_a_circle_is_found() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": set()}) == [["b", "c"]]


def test_modules_import_each_other_in_no_circle() -> None:
    assert len(modules()) > 200
    assert not circles(dependencies())


def test_packages_import_each_other_in_no_circle() -> None:
    """A package may be read after those that it imports, and needs none that import it."""
    packages: dict[str, set[str]] = {}
    for name, others in dependencies().items():
        mine = ".".join(name.split(".")[:2])
        packages.setdefault(mine, set()).update(
            other for other in (".".join(each.split(".")[:2]) for each in others) if other != mine
        )
    assert not circles(packages)


def test_the_page_on_architecture_names_files_that_are_there() -> None:
    page = (ROOT / "engine/ARCHITECTURE.md").read_text()
    named = set(re.findall(r"`((?:engine|fs|mountd)/[\w/]+\.(?:py|md))`", page))
    assert len(named) > 40
    assert not sorted(name for name in named if not (ROOT / name).is_file())


def test_no_two_files_of_tests_have_one_name() -> None:
    """Tests are imported by their file names, without packages: pytest refuses to collect the second of two."""
    names = [
        file.name
        for file in (ROOT / "tests").rglob("*.py")
        if file.name not in ("conftest.py", "__main__.py")
    ]
    assert len(names) > 150
    assert sorted({name for name in names if names.count(name) > 1}) == []


def test_what_must_come_soon_is_tested_on_a_busy_machine() -> None:
    """What uses `promptly` is marked, or all of its file is."""
    users = [
        file
        for file in (ROOT / "tests").rglob("test_*.py")
        if re.search(r"^from patience import .*\bpromptly\b", file.read_text(), re.MULTILINE)
    ]
    assert len(users) > 4
    unmarked = [
        f"{file.name}: {made.name}"
        for file in users
        for made in ast.parse(file.read_text()).body
        if isinstance(made, ast.FunctionDef) and "promptly(" in ast.unparse(made)
        if "pytest.mark.busy" not in map(ast.unparse, made.decorator_list)
        if "\npytestmark = pytest.mark.busy\n" not in file.read_text()
    ]
    assert not unmarked
    outside = [file.name for file in users if file.parent.name not in ("mount", "mountd")]
    assert not outside, "`make test` looks for such tests in these two folders only"
