"""The daemon's small parts: events, the way into the background, the log, the view cache, the command line."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from topicfs.engine.files import place
from topicfs.engine.kernels import compile as compiled
from topicfs.mountd import kernels, logs
from topicfs.mountd import view_cache as view_cache_module
from topicfs.mountd.background import CRASHED, FAILED, READY, WAITS, Message
from topicfs.mountd.cli import main
from topicfs.mountd.events import Events
from topicfs.mountd.progress import Progress
from topicfs.mountd.view_cache import DirectoryViewCache, ReadOnlyViewCache

SOON_S = 60.0
pytestmark = pytest.mark.busy

# -- events -------------------------------------------------------------------------------------------


@pytest.fixture
def events() -> Iterator[Events]:
    before = signal.getsignal(signal.SIGUSR1)
    yield Events.open([signal.SIGUSR1])
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGUSR1, before)


def test_events_come_in_order(events: Events) -> None:
    events.tell("first")
    events.tell("second")
    assert [events.wait(), events.wait()] == ["first", "second"]


def test_wait_ends_with_an_event_from_another_thread(events: Events) -> None:
    threading.Timer(0.05, lambda: events.tell("late")).start()
    assert events.wait() == "late"


def test_signal_is_an_event(events: Events) -> None:
    threading.Timer(0.05, lambda: os.kill(os.getpid(), signal.SIGUSR1)).start()
    assert events.wait() is signal.SIGUSR1


def test_signal_that_another_thread_receives_wakes_the_main_thread(events: Events) -> None:
    # What makes a queue hang: the wait itself is not interrupted.
    def interrupt_itself() -> None:
        time.sleep(0.05)
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)
        time.sleep(0.5)

    thread = threading.Thread(target=interrupt_itself)
    thread.start()
    assert events.wait() is signal.SIGUSR1
    thread.join()


def test_signal_before_the_wait_is_not_lost(events: Events) -> None:
    os.kill(os.getpid(), signal.SIGUSR1)
    assert events.wait() is signal.SIGUSR1


def test_full_pipe_loses_no_event(events: Events) -> None:
    for number in range(70_000):
        events.tell(number)
    assert [events.wait() for _ in range(70_000)] == list(range(70_000))


def test_that_an_event_came_can_be_asked_without_a_wait(events: Events) -> None:
    assert not events.came()
    events.tell("something")
    assert events.came()
    assert events.wait() == "something"
    assert not events.came()
    os.kill(os.getpid(), signal.SIGUSR1)
    assert events.came()
    assert events.wait() is signal.SIGUSR1


# -- kernels that are compiled ------------------------------------------------------------------------


def test_compiling_is_told_with_how_far_it_is() -> None:
    lines: list[str] = []
    log = logging.getLogger("topicfs.engine.kernels.compile")
    with kernels.told(lines.append):
        log.info("compiling a", extra={"ready": 3, "is_kept": True})
        log.info("compiling b", extra={"ready": 4, "is_kept": False})
    log.info("compiling c", extra={"ready": 5, "is_kept": True})
    kernels.compile_all()
    count = len(compiled._READY)
    assert lines[0] == f"compiling, once: 3 of {count} kernels are ready after 0 s"
    assert lines[1].startswith("compiling, for this run alone, as there is no place to keep them")
    assert lines[1].endswith(f": 4 of {count} kernels are ready after 0 s")
    assert len(lines) == 2


COMPILING = """
import logging, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "topicfs.engine.kernels.compile":
            logging.getLogger(name).info("compiling a", extra={"ready": 0, "is_kept": True})
sys.meta_path.insert(0, Finder())
from topicfs.mountd.cli import main
main(sys.argv[1:])
"""
"""The command, where the kernels seem to be compiled when they are loaded."""


@pytest.mark.parametrize(
    "words",
    [
        ("plan", "store"),
        ("delete", "store", "orders", "--yes"),
        ("undelete", "store"),
        ("spark", "verify", "store", "--master", "nonsense"),
    ],
    ids=" ".join,
)
def test_each_command_that_loads_kernels_tells_that_they_are_compiled(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    place.make(tmp_path / "store")
    done = subprocess.run(
        [sys.executable, "-c", COMPILING, *words], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert "topicfs: compiling, once: 0 of" in done.stderr


LOADED = """
import os
from topicfs.mountd import kernels
with kernels.loading():
    import topicfs.engine.kernels.crc
print(len(os.listdir("/proc/self/task")), os.environ.get("OPENBLAS_NUM_THREADS"))
"""


def test_numpy_starts_no_threads_in_a_command_but_may_in_programs_that_it_starts() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    for given, told in (({}, "1 None"), ({"OPENBLAS_NUM_THREADS": "1"}, "1 1")):
        done = subprocess.run(
            [sys.executable, "-c", LOADED],
            env=environment | given,
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.strip() == told


def test_work_that_goes_on_is_told_of_now_and_then_where_there_is_no_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr("topicfs.mountd.progress.time.monotonic", lambda: now)
    with Progress() as shown:
        for _ in range(25):
            shown.progress(f"at {now}")
            now += 1
    assert capsys.readouterr().err.splitlines() == [
        "topicfs: at 1000.0",
        "topicfs: at 1011.0",
        "topicfs: at 1022.0",
    ]


# -- into the background ------------------------------------------------------------------------------


def told(run_in_child: str) -> list[Message]:
    """What a child told its parent; the parent is a process of its own, as pytest is not to be forked."""
    program = f"""
import os, sys, time, signal
from topicfs.mountd import background
def run(teller):
{run_in_child}
child = background.start(run)
while True:
    message = child.next(60)
    print(message.kind, message.text.encode(), flush=True)
    if message.kind != background.WAITS:
        break
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=SOON_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = (line.split(" ", 1) for line in done.stdout.splitlines())
    return [Message(kind, eval(text).decode()) for kind, text in lines]


def test_child_tells_what_it_waits_for_until_it_is_ready() -> None:
    assert told("    teller.waits('one'); teller.waits('two'); teller.ready(); return 0") == [
        Message(WAITS, "one"),
        Message(WAITS, "two"),
        Message(READY, ""),
    ]


def test_child_that_fails_tells_why_with_what_it_printed() -> None:
    [message] = told("    os.write(2, b'fuse: no device\\n'); teller.failed('two\\nlines'); return 1")
    assert message == Message(FAILED, "two\nlines\nfuse: no device")


def test_child_that_exits_in_silence_has_failed() -> None:
    assert told("    return 3") == [Message(CRASHED, "the daemon ended with exit code 3 before it was ready")]


def test_child_that_is_killed_has_failed() -> None:
    assert told("    os.kill(os.getpid(), signal.SIGKILL)") == [
        Message(CRASHED, "the daemon was killed by SIGKILL before it was ready")
    ]


def test_child_outlives_its_parent_once_it_is_ready(tmp_path: Path) -> None:
    program = f"""
import time
from topicfs.mountd import background
def run(teller):
    teller.ready()
    time.sleep(0.3)
    open({str(tmp_path / "lived")!r}, 'w').close()
    return 0
assert background.start(run).next(10).kind == background.READY
"""
    subprocess.run([sys.executable, "-c", program], cwd=Path(__file__).parents[2], check=True, timeout=SOON_S)
    end = time.monotonic() + SOON_S
    while not (tmp_path / "lived").exists():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_start_that_nobody_waits_for_any_more_is_broken_off(tmp_path: Path) -> None:
    program = f"""
import time
from topicfs.mountd import background
def run(teller):
    time.sleep(0.3)
    try:
        teller.ready()
    except BrokenPipeError:
        teller.failed('also heard by nobody')
        open({str(tmp_path / "broken off")!r}, 'w').close()
    return 1
background.start(run)
"""
    subprocess.run([sys.executable, "-c", program], cwd=Path(__file__).parents[2], check=True, timeout=SOON_S)
    end = time.monotonic() + SOON_S
    while not (tmp_path / "broken off").exists():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_failure_after_ready_is_told_to_nobody() -> None:
    assert told("    teller.ready(); teller.failed('late'); return 1") == [Message(READY, "")]


# -- the log ------------------------------------------------------------------------------------------


def logged(tmp_path: Path, program: str, foreground: bool) -> tuple[str, str]:
    """What a process wrote: its log file, its stderr."""
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            f"import logging; from pathlib import Path; from topicfs.mountd import logs\n"
            f"counter = logs.set_up(Path({str(tmp_path / 'topicfs.log')!r}), {foreground})\n"
            f"log = logging.getLogger('a.b')\n{program}",
        ],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
        timeout=SOON_S,
    )
    return (tmp_path / "topicfs.log").read_text(), done.stderr


def test_log_line_has_time_level_thread_and_name(tmp_path: Path) -> None:
    written, printed = logged(tmp_path, "log.info('100% {plain}')", foreground=False)
    stamp, rest = written[:23], written[23:]
    assert time.strptime(stamp.split(",")[0], "%Y-%m-%d %H:%M:%S")
    assert rest == " INFO [MainThread] a.b: 100% {plain}\n"
    assert printed == ""


def test_foreground_logs_to_stderr_too(tmp_path: Path) -> None:
    written, printed = logged(tmp_path, "log.warning('look')", foreground=True)
    assert written == printed


def test_name_that_is_not_utf8_is_logged(tmp_path: Path) -> None:
    written, printed = logged(tmp_path, "log.error('bad-\\udcff')", foreground=False)
    assert "bad-\\udcff" in written
    assert printed == ""


def test_a_name_in_a_message_begins_no_other_message(tmp_path: Path) -> None:
    written, _ = logged(
        tmp_path, "log.info('group a\\n2026-03-01 ERROR \\x1b[2J: created')", foreground=False
    )
    assert written.splitlines()[0].endswith("group a\\n2026-03-01 ERROR \\x1b[2J: created")
    assert len(written.splitlines()) == 1


def test_noise_of_libraries_is_not_logged(tmp_path: Path) -> None:
    written, _ = logged(tmp_path, "logging.getLogger('numba.core').info('byteflow')", foreground=False)
    assert written == ""


def test_log_is_bounded(tmp_path: Path) -> None:
    program = "logs.logging.getLogger().handlers[0].maxBytes = 1000\nfor n in range(100): log.info('x' * 100)"
    logged(tmp_path, program, foreground=False)
    files = sorted(path.name for path in tmp_path.iterdir())
    assert files == ["topicfs.log", "topicfs.log.1", "topicfs.log.2", "topicfs.log.3"]
    assert all((tmp_path / name).stat().st_size <= 1000 for name in files)


@pytest.mark.parametrize("gone", ["os.rename('topicfs.log', 'moved')", "os.remove('topicfs.log')"])
def test_log_that_was_moved_away_begins_anew_under_its_name(tmp_path: Path, gone: str) -> None:
    program = (
        f"import os, faulthandler; os.chdir({str(tmp_path)!r}); log.info('before')\n{gone}; log.info('behind')\n"
        "child = os.fork()\nif not child: faulthandler._sigsegv()\nos.waitpid(child, 0)"
    )
    written, printed = logged(tmp_path, program, foreground=False)
    assert "before" not in written
    assert "behind" in written
    assert "Segmentation fault" in written
    assert printed == ""
    if (tmp_path / "moved").exists():
        assert (tmp_path / "moved").read_text().endswith(": before\n")


def test_warnings_and_errors_are_counted() -> None:
    counter = logs.LevelCounter()
    logger = logging.Logger("counted")
    logger.addHandler(counter)
    logger.info("no")
    logger.warning("one")
    logger.error("two")
    logger.error("three")
    assert counter.taken() == {"WARNING": 1, "ERROR": 2}


# -- the view cache -----------------------------------------------------------------------------------


def test_shelf_gives_back_what_was_saved_last(tmp_path: Path) -> None:
    view_cache = DirectoryViewCache(tmp_path / "views")
    assert view_cache.load("t-0", "a.map") is None
    view_cache.save("t-0", "a.map", b"one")
    view_cache.save("t-0", "a.map", b"two")
    assert view_cache.load("t-0", "a.map") == b"two"
    assert [path.name for path in (tmp_path / "views" / "t-0").iterdir()] == ["a.map"]


def test_shelf_forgets(tmp_path: Path) -> None:
    view_cache = DirectoryViewCache(tmp_path)
    view_cache.save("t-0", "a.map", b"one")
    view_cache.remove("t-0", "a.map")
    view_cache.remove("t-0", "a.map")
    assert view_cache.load("t-0", "a.map") is None


def test_a_read_only_mount_keeps_in_the_users_cache_directory_what_the_store_has_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    backing = tmp_path / "backing"
    DirectoryViewCache(backing / "views").save("t-0", "a.map", b"of the store")
    first = ReadOnlyViewCache.of(backing)
    first.save("t-0", "b.map", b"own")
    assert [path.name for path in (backing / "views").rglob("*.map")] == ["a.map"]
    again = ReadOnlyViewCache.of(backing)
    assert (again.load("t-0", "a.map"), again.load("t-0", "b.map")) == (b"of the store", b"own")
    assert ReadOnlyViewCache.of(tmp_path / "other").load("t-0", "b.map") is None
    again.remove("t-0", "a.map")
    again.remove("t-0", "b.map")
    assert (first.load("t-0", "a.map"), first.load("t-0", "b.map")) == (b"of the store", None)


@pytest.mark.parametrize("place", ["nothing", "a file", "under the backing directory"])
def test_a_read_only_mount_without_a_cache_directory_keeps_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    (tmp_path / "file").touch()
    backing = tmp_path / "backing"
    backing.mkdir()
    homes = {
        "nothing": "/proc/none",
        "a file": str(tmp_path / "file"),
        "under the backing directory": str(backing),
    }
    monkeypatch.setenv("XDG_CACHE_HOME", homes[place])
    view_cache = ReadOnlyViewCache.of(backing)
    view_cache.save("t-0", "a.map", b"one")
    assert view_cache.load("t-0", "a.map") is None
    assert view_cache.sweep(backing) == 0
    assert list(backing.iterdir()) == []


def test_the_users_cache_directory_is_bounded_over_all_backing_directories(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(view_cache_module, "MOST_KEPT_BYTES", 2500)
    caches = [ReadOnlyViewCache.of(tmp_path / name) for name in ("one", "two")]
    logs = tmp_path / "logs"
    (logs / "t-0").mkdir(parents=True)
    for number, base in enumerate((0, 5, 9)):
        (logs / "t-0" / f"{base:020d}.log").touch()
        view_cache = caches[number % 2]
        view_cache.save("t-0", f"{base:020d}.txt.map", bytes(1000))
        assert view_cache.own is not None
        os.utime(view_cache.own.directory / "t-0" / f"{base:020d}.txt.map", (number, number))
    caches[0].save("t-0", f"{7:020d}.txt.map", bytes(1))
    assert caches[0].sweep(logs) == 2, "one of a segment that is gone, and the oldest"
    left = sorted(path.name for path in (tmp_path / "cache").rglob("*.map"))
    assert left == [f"{5:020d}.txt.map", f"{9:020d}.txt.map"]


def test_file_too_large_for_the_shelf_is_none(tmp_path: Path) -> None:
    view_cache = DirectoryViewCache(tmp_path)
    view_cache.save("t-0", "a.map", b"")
    os.truncate(tmp_path / "t-0" / "a.map", 1 << 40)
    assert view_cache.load("t-0", "a.map") is None


def test_sweep_of_the_shelf_leaves_what_is_of_segments_that_are_there(tmp_path: Path) -> None:
    view_cache = DirectoryViewCache(tmp_path / "views")
    assert view_cache.sweep(tmp_path / "logs") == 0
    first, second = f"{0:020d}", f"{7:020d}"
    for partition in ("kept-0", "deleted-0"):
        for base in (first, second):
            for suffix in ("txt", "jsonl"):
                view_cache.save(partition, f"{base}.{suffix}.map", b"map")
    (tmp_path / "views" / "kept-0" / f"{first}.txt.map.tmp").write_bytes(b"from a crash")
    (tmp_path / "logs" / "kept-0").mkdir(parents=True)
    (tmp_path / "logs" / "kept-0" / f"{first}.log.deleted").touch()
    (tmp_path / "logs" / "kept-0" / f"{second}.log").touch()
    assert view_cache.sweep(tmp_path / "logs") == 7
    left = sorted(path.relative_to(tmp_path / "views") for path in (tmp_path / "views").rglob("*"))
    assert [str(path) for path in left] == [
        "kept-0",
        f"kept-0/{second}.jsonl.map",
        f"kept-0/{second}.txt.map",
    ]
    assert view_cache.sweep(tmp_path / "logs") == 0


# -- the command line ---------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["retention", "=5", " =5"])
def test_setting_without_name_or_value_is_refused(tmp_path: Path, text: str) -> None:
    result = CliRunner().invoke(main, ["mount", "-o", text, str(tmp_path / "b"), str(tmp_path / "m")])
    assert result.exit_code == 2
    assert "expected name=value" in result.output
    assert not (tmp_path / "m").exists()


def test_help_names_the_commands_and_says_what_is_made() -> None:
    runner = CliRunner()
    assert {"init", "mount", "umount"} <= set(runner.invoke(main, ["--help"]).output.split())
    assert "MOUNT is made where it does not exist" in runner.invoke(main, ["mount", "--help"]).output


def test_command_loads_neither_kernels_nor_spark() -> None:
    program = (
        "import sys, topicfs.mountd.cli; "
        "heavy = ('topicfs.engine.store.store', 'numba', 'numpy', 'fuse', 'pyspark'); "
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "[]\n"
