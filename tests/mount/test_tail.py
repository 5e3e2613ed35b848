"""tail, and `follow.*`: readers that wait for what comes."""

from __future__ import annotations

import os
import platform
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest
from daemon_mount import DaemonMount, append, eventually, opened
from patience import PATIENCE_S, promptly
from shell import ENVIRONMENT, output, run, start

pytest_plugins = ["shared_mount"]
pytestmark = pytest.mark.busy

FAST = ["-s", "0.05"]
"""tail looks once a second otherwise."""

READ = {"x86_64": "0", "aarch64": "63"}[platform.machine()]
"""The number of read(2)."""


def shows(out: Path, expected: bytes) -> None:
    """Wait until a command has printed this, and nothing else."""
    eventually(lambda: out.read_bytes() == expected or len(out.read_bytes()) > len(expected), repr(expected))
    assert out.read_bytes() == expected


def ended(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    process.wait()


def reading(process: subprocess.Popen[bytes]) -> bool:
    """Whether it has opened `follow.*`, and waits inside the file system."""
    place = Path(f"/proc/{process.pid}")
    try:
        opened = any("/follow." in os.readlink(each) for each in (place / "fd").iterdir())
        return opened and "request_wait_answer" in (place / "wchan").read_text()
    except OSError:
        return False


def call_of(process: subprocess.Popen[bytes]) -> str:
    """The number of the system call that it waits in."""
    return Path(f"/proc/{process.pid}/syscall").read_text().split()[0]


def follow(command: list[str | Path], out: Path) -> subprocess.Popen[bytes]:
    """Begin a command that reads `follow.*`, and wait until it does."""
    process = start(command, out)
    eventually(lambda: reading(process) or process.poll() is not None, f"{command[0]} waits")
    return process


# -- tail ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["log.txt", "offset/0-.txt"])
def test_tail_f_shows_what_comes_over_rolls(mount: DaemonMount, tmp_path: Path, name: str) -> None:
    partition, out = mount.new(), tmp_path / "out"
    append(partition / "log.txt", b"1\n2\n3\n")
    tail = start(["tail", *FAST, "-n", "2", "-f", partition / name], out)
    try:
        shows(out, b"2\n3\n")
        expected = b"2\n3\n"
        for number in range(4, 9):
            append(partition / "log.txt", b"%d\n" % number)
            expected += b"%d\n" % number
            shows(out, expected)
            mount.steer("roll", partition)
    finally:
        ended(tail)


def test_tail_of_an_empty_log_shows_the_first_line(mount: DaemonMount, tmp_path: Path) -> None:
    partition, out = mount.new(), tmp_path / "out"
    tail = start(["tail", *FAST, "-f", partition / "log.txt"], out)
    try:
        time.sleep(0.2)
        append(partition / "log.txt", b"first\n")
        shows(out, b"first\n")
    finally:
        ended(tail)


def test_tail_capital_f_of_current_moves_on_with_a_roll(mount: DaemonMount, tmp_path: Path) -> None:
    partition, out = mount.new(), tmp_path / "out"
    append(partition / "log.txt", b"1\n")
    tail = start(["tail", *FAST, "-q", "--max-unchanged-stats=2", "-F", partition / "current.txt"], out)
    try:
        shows(out, b"1\n")
        mount.steer("roll", partition)
        append(partition / "log.txt", b"2\n")
        eventually(lambda: out.read_bytes().endswith(b"\n2\n"), "tail moved on")
        said = out.read_bytes().splitlines()
        assert said[0] == b"1"
        assert said[-1] == b"2"
        assert len(said) == 3
        assert b"has been replaced" in said[1]
    finally:
        ended(tail)


def test_tail_with_a_pid_ends_with_that_process(mount: DaemonMount, tmp_path: Path) -> None:
    partition = mount.new()
    writer = subprocess.Popen(["sleep", "0.3"])
    tail = start(["tail", *FAST, f"--pid={writer.pid}", "-f", partition / "log.txt"], tmp_path / "out")
    writer.wait()
    assert tail.wait(PATIENCE_S) == 0


def test_two_tails_and_a_writer(mount: DaemonMount, tmp_path: Path) -> None:
    partition = mount.new("small")
    lines = [b"line %05d %s\n" % (number, b"y" * 50) for number in range(400)]
    outs = [tmp_path / "one", tmp_path / "two"]
    tails = [start(["tail", *FAST, "-n", "+1", "-f", partition / "log.txt"], out) for out in outs]
    try:
        for first in range(0, 400, 10):
            append(partition / "log.txt", b"".join(lines[first : first + 10]))
        for out in outs:
            shows(out, b"".join(lines))
    finally:
        for tail in tails:
            ended(tail)


# -- follow -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "suffix", "expected"),
    [
        (["cat"], "txt", b"one\ntwo\n"),
        (["grep", "--line-buffered", "o"], "txt", b"one\ntwo\n"),
        (["sed", "-u", "s/o/0/"], "txt", b"0ne\ntw0\n"),
        (["gawk", '{ print $1 "!"; fflush() }'], "txt", b"one!\ntwo!\n"),
        (["jq", "--unbuffered", "-r", ".value"], "jsonl", b"one\ntwo\n"),
        (["tee", "/dev/null"], "txt", b"one\ntwo\n"),
        (["head", "-n", "2"], "txt", b"one\ntwo\n"),
        (["xargs", "-n", "1", "echo", "got"], "txt", b"got one\ngot two\n"),
        (["stdbuf", "-oL", "cut", "-f", "2"], "tsv", b"one\ntwo\n"),
        (["dd", "bs=64", "status=none"], "txt", b"one\ntwo\n"),
        (["bash", "-c", 'while read -r line; do echo "<$line>"; done'], "txt", b"<one>\n<two>\n"),
        (
            [sys.executable, "-uc", "import sys\nfor line in sys.stdin: print(line, end='')"],
            "txt",
            b"one\ntwo\n",
        ),
    ],
    ids=lambda value: value[0].rpartition("/")[2] if isinstance(value, list) else "",
)
def test_a_pipeline_waits_for_as_long_as_it_takes(
    mount: DaemonMount, tmp_path: Path, command: list[str], suffix: str, expected: bytes
) -> None:
    partition, out = mount.new(), tmp_path / "out"
    append(partition / "log.txt", b"before\n")
    with (partition / f"follow.{suffix}").open("rb", buffering=0) as file, out.open("wb") as stream:
        process = subprocess.Popen(
            command, env=ENVIRONMENT, stdin=file, stdout=stream, stderr=subprocess.STDOUT
        )
    try:
        eventually(lambda: reading(process), "it waits")
        append(partition / "log.txt", b"one\n")
        # Longer than any turn of waiting: it must not come to an end, or to an error, by itself.
        time.sleep(0.8)
        assert process.poll() is None, out.read_bytes()
        append(partition / "log.txt", b"two\n")
        shows(out, expected)
    finally:
        ended(process)


def test_records_are_followed_within_milliseconds(mount: DaemonMount) -> None:
    partition = mount.new()
    script = (
        "import os, sys, time\n"
        "file = os.open(sys.argv[1], os.O_RDONLY)\n"
        "print('open', flush=True)\n"
        "while True:\n"
        "    sent = os.read(file, 100)\n"
        "    print(time.monotonic_ns() - int(sent), flush=True)\n"
    )
    reader = subprocess.Popen(
        [sys.executable, "-c", script, partition / "follow.txt"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert reader.stdout is not None
        assert reader.stdout.readline() == "open\n"
        late = []
        for _ in range(30):
            append(partition / "log.txt", b"%d\n" % time.monotonic_ns())
            late.append(int(reader.stdout.readline()) / 1e6)
        # A busy machine makes some of them late; a turn of waiting is 200 ms, and would hold up most.
        assert statistics.quantiles(late, n=4)[0] < 50, late
    finally:
        ended(reader)
        assert reader.stdout is not None
        reader.stdout.close()


def test_a_writer_that_stays_open_is_followed_within_the_linger_time(mount: DaemonMount) -> None:
    partition = mount.new()
    with (
        opened(partition / "follow.txt") as file,
        opened(partition / "log.txt", os.O_WRONLY | os.O_APPEND) as log,
    ):
        numbers = iter(range(100))

        def follow_one() -> None:
            line = b"%d\n" % next(numbers)
            os.write(log, line)
            assert os.read(file, 100) == line

        for _ in range(5):
            promptly(1, follow_one)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL, signal.SIGHUP])
def test_a_signal_ends_a_blocked_reader_within_a_second(
    mount: DaemonMount, tmp_path: Path, number: signal.Signals
) -> None:
    partition = mount.new()

    def end() -> float:
        reader = follow(["cat", partition / "follow.txt"], tmp_path / "out")
        time.sleep(0.3)
        begin = time.monotonic()
        reader.send_signal(number)
        assert reader.wait(PATIENCE_S) == -number
        return time.monotonic() - begin

    promptly(1, end)


def test_a_signal_that_a_program_handles_interrupts_its_read(mount: DaemonMount, tmp_path: Path) -> None:
    partition, out = mount.new(), tmp_path / "out"
    script = "import sys\ntry:\n  open(sys.argv[1]).read()\nexcept KeyboardInterrupt:\n  print('bye')\n"
    reader = follow([sys.executable, "-c", script, partition / "follow.txt"], out)
    # Before the read Python asks for the size, which waits for the daemon too. A signal then would not be looked at.
    eventually(lambda: call_of(reader) == READ, "it is in read(2)")
    reader.send_signal(signal.SIGINT)
    assert reader.wait(PATIENCE_S) == 0
    assert out.read_bytes() == b"bye\n"


def test_a_reader_goes_on_after_it_was_stopped(mount: DaemonMount, tmp_path: Path) -> None:
    partition, out = mount.new(), tmp_path / "out"
    reader = follow(["cat", partition / "follow.txt"], out)
    try:
        reader.send_signal(signal.SIGSTOP)
        state = Path(f"/proc/{reader.pid}/stat")
        eventually(lambda: state.read_text().rpartition(")")[2].split()[0] == "T", "it stops")
        append(partition / "log.txt", b"meanwhile\n")
        reader.send_signal(signal.SIGCONT)
        shows(out, b"meanwhile\n")
    finally:
        ended(reader)


def test_timeout_ends_a_blocked_cat(mount: DaemonMount) -> None:
    partition = mount.new()

    def time_out() -> None:
        assert run("timeout 1 cat follow.txt", partition).returncode == 124

    promptly(2.5, time_out)


def test_a_pipeline_of_a_shell_follows(mount: DaemonMount, tmp_path: Path) -> None:
    partition = mount.new()
    script = (
        f"(timeout 100 cat follow.txt | grep --line-buffered ERR | head -n 2 > {tmp_path}/out) & \n"
        "sleep 0.5\n"
        'for i in $(seq 6); do echo "ERR $i" >> log.txt; echo fine >> log.txt; sleep 0.02; done\n'
        f"for i in $(seq 1000); do [ $(wc -l < {tmp_path}/out) = 2 ] && break; sleep 0.05; done\n"
        "echo done >> log.txt\n"
        f"cat {tmp_path}/out\n"
    )
    found = run(script, partition)
    assert found.stdout.splitlines() == [b"ERR 1", b"ERR 2"]


def test_many_blocked_readers_hold_up_nobody_and_go_when_told(mount: DaemonMount, tmp_path: Path) -> None:
    partition = mount.new()
    readers = [follow(["cat", partition / "follow.txt"], tmp_path / str(number)) for number in range(25)]
    written = bytearray()

    def work() -> None:
        written.extend(b"here\n")
        append(partition / "log.txt", b"here\n")
        assert output("cat log.txt", partition) == written

    promptly(2, work)
    for number in range(25):
        shows(tmp_path / str(number), bytes(written))
    for reader in readers:
        reader.terminate()
    assert [reader.wait(PATIENCE_S) for reader in readers] == [-signal.SIGTERM] * 25


# -- the end ------------------------------------------------------------------------------------------------


@pytest.fixture
def own(tmp_path: Path) -> object:
    """A mount of its own, to take away."""
    served = DaemonMount(tmp_path)
    try:
        served.start()
        with served.watched():
            yield served
    finally:
        served.clear()


def test_unmounting_releases_blocked_readers(own: DaemonMount, tmp_path: Path) -> None:
    partition = own.new()
    readers = [follow(["cat", partition / "follow.txt"], tmp_path / f"out{n}") for n in range(3)]
    readers.append(follow(["tail", "-f", partition / "follow.txt"], tmp_path / "out3"))
    assert own.stop() == 0, own.said()
    assert all(reader.wait(PATIENCE_S) != 0 for reader in readers[:3])
    ended(readers[3])
    assert not own.is_mounted
    assert not own.alarms()


def test_the_death_of_the_daemon_releases_blocked_readers(own: DaemonMount, tmp_path: Path) -> None:
    partition = own.new()
    reader = follow(["cat", partition / "follow.txt"], tmp_path / "out")
    own.kill()
    assert reader.wait(PATIENCE_S) == 1


def test_deleting_a_partition_ends_who_follows_it(own: DaemonMount, tmp_path: Path) -> None:
    partition = own.new()
    reader = follow(["cat", partition / "follow.txt"], tmp_path / "out")
    partition.rmdir()
    assert reader.wait(PATIENCE_S) == 1
    assert b"Input/output error" in (tmp_path / "out").read_bytes()
    assert own.stop() == 0
