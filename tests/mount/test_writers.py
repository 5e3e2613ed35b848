"""Programs that append: no line is lost, doubled or torn, and each writer's lines keep their order."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
from daemon_mount import DaemonMount, append
from patience import PATIENCE_S
from shell import output, run, start

pytest_plugins = ["shared_mount"]
pytestmark = pytest.mark.busy


@pytest.fixture
def partition(mount: DaemonMount) -> Path:
    """A new one."""
    return mount.new()


def check_writers(text: bytes, counts: dict[bytes, int]) -> None:
    """Each line is `<writer> <number> <tail made of the number>`; of each writer all are there, in order."""
    found: dict[bytes, list[int]] = {writer: [] for writer in counts}
    for line in text.splitlines():
        writer, number, tail = line.split(b" ")
        assert tail == tail_of(int(number)), line
        found[writer].append(int(number))
    for writer, count in counts.items():
        assert found[writer] == list(range(count)), writer


def tail_of(number: int) -> bytes:
    """Of some length or other, and different from those beside it."""
    return b"%d" % number * (1 + number * 7919 % 40)


def lines_of(writer: bytes, numbers: Iterable[int]) -> bytes:
    return b"".join(b"%s %d %s\n" % (writer, number, tail_of(number)) for number in numbers)


# -- one writer ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("echo a >> log.txt; echo b >> log.txt", b"a\nb\n"),
        ("printf a >> log.txt; printf b >> log.txt", b"a\nb\n"),
        ("printf 'a\\nb' >> log.txt; printf 'c\\n' >> log.txt", b"a\nb\nc\n"),
        ("( echo a; echo b ) >> log.txt", b"a\nb\n"),
        ("( printf a; printf b; /bin/echo c ) >> log.txt", b"abc\n"),
        ("{ echo a; (echo b); /bin/echo c; } >> log.txt", b"a\nb\nc\n"),
        ("{ printf 'a '; /bin/true; /bin/printf 'b '; (printf c); } >> log.txt", b"a b c\n"),
        ("{ sleep 0.1; echo a; } >> log.txt & wait", b"a\n"),
        (
            "exec 3>> log.txt; echo a >&3; /bin/echo b >&3; (printf c >&3); echo d >&3; exec 3>&-",
            b"a\nb\ncd\n",
        ),
        ("exec 3>> log.txt 4>&3; echo a >&3; exec 3>&-; echo b >&4", b"a\nb\n"),
        ("exec 3>> log.txt; printf a >&3; cat /dev/null; exec 3>&-", b"a\n"),
        ("echo a | tee -a log.txt > /dev/null; seq 3 | tee -a log.txt log.txt > /dev/null", None),
        ("seq 3 | tee -a log.txt", b"1\n2\n3\n"),
        ("seq 3 | dd of=log.txt conv=notrunc oflag=append status=none", b"1\n2\n3\n"),
        ("seq 3 | dd of=log.txt conv=fsync,notrunc oflag=append status=none", b"1\n2\n3\n"),
        ("seq 3 | dd of=log.txt bs=1 conv=fdatasync,notrunc oflag=append,dsync status=none", b"1\n2\n3\n"),
        ("seq 3 > >(cat >> log.txt); wait $!", b"1\n2\n3\n"),
        ("seq 5 | split -l 2 --filter='cat >> log.txt'", b"1\n2\n3\n4\n5\n"),
        ("seq 4 | xargs -n 2 echo >> log.txt", b"1 2\n3 4\n"),
        ("seq 4 | xargs -I{} sh -c 'echo got {} >> log.txt'", b"got 1\ngot 2\ngot 3\ngot 4\n"),
        ("seq 3 | awk '{ print $1 * 2 >> \"log.txt\" }'", b"2\n4\n6\n"),
        ("seq 3 | sed -n '2w /dev/stdout' >> log.txt", b"2\n"),
        ("cat <<< 'here' >> log.txt; cat >> log.txt <<END\ndocument\nEND", b"here\ndocument\n"),
        ("echo err 2>> log.txt >&2", b"err\n"),
        ("ls /nowhere &>> log.txt || true", b"ls: cannot access '/nowhere': No such file or directory\n"),
        ("set -o noclobber; echo a >> log.txt", b"a\n"),
        ("sort -r <(seq 3) >> log.txt", b"3\n2\n1\n"),
        ('python3 -c \'print("a\\nb", end="", file=open("log.txt", "a"))\'', b"a\nb\n"),
        ("echo before >> log.txt; head -n 1 log.txt >> log.txt", b"before\nbefore\n"),
        ("seq 2 >> log.txt; sync log.txt; seq 2 >> log.txt; sync -f log.txt", b"1\n2\n1\n2\n"),
        (": >> log.txt; printf '' >> log.txt; printf '\\n' >> log.txt", b"\n"),
        ("touch -c /dev/null; [ -w log.txt ] && echo yes >> log.txt", b"yes\n"),
    ],
)
def test_a_shell_appends(partition: Path, script: str, expected: bytes | None) -> None:
    output(f"{{ {script}\n}} > /dev/null", partition)
    found = (partition / "log.txt").read_bytes()
    if expected is None:
        # tee has it open twice: two writers, whose lines may lie in either order.
        assert sorted(found.split()) == sorted(b"a 1 2 3 1 2 3".split())
    else:
        assert found == expected


@pytest.mark.parametrize(
    "script",
    [
        "echo new > log.txt",
        "cp /etc/hostname log.txt",
        "mv log.txt other",
        "rm -f log.txt",
        "sed -i s/k/x/ log.txt",
        "truncate -s 0 log.txt",
        "dd if=/dev/zero of=log.txt bs=1 count=1 status=none",
        "dd if=/dev/zero of=log.txt bs=1 seek=1 count=1 conv=notrunc status=none",
        "seq 3 | tee log.txt > /dev/null",
        "ln log.txt other",
        "chmod 600 log.txt",
        "touch -d yesterday log.txt",
        "echo x <> log.txt 1<> log.txt",
        "echo x > new.txt",
        "mkdir new",
        "rsync /etc/hostname log.txt",
        "python3 -c 'import fileinput; [print(1) for _ in fileinput.input(\"log.txt\", inplace=True)]'",
        "sort -o log.txt log.txt",
    ],
)
def test_what_would_change_records_fails_and_changes_nothing(partition: Path, script: str) -> None:
    append(partition / "log.txt", b"kept\n")
    done = run(script, partition)
    assert done.returncode != 0
    assert b"not permitted" in done.stderr, done.stderr
    assert (partition / "log.txt").read_bytes() == b"kept\n"


def test_a_line_shows_after_each_command(partition: Path) -> None:
    script = (
        "for i in $(seq 100); do\n"
        "  printf $i >> log.txt\n"
        '  [ $(tail -n 1 log.txt) = $i ] || echo "lost $i"\n'
        '  [ $(wc -l < log.txt) = $i ] || echo "count $i"\n'
        "done\n"
    )
    assert output(script, partition) == b""


# -- several writers ----------------------------------------------------------------------------------------


def test_two_thousand_echoes_from_eight_shells(partition: Path) -> None:
    # Pieces of a line come in writes of their own, with forks between them.
    script = (
        "for w in 0 1 2 3 4 5 6 7; do\n"
        '  for i in $(seq 0 249); do echo "w$w $i" >> log.txt; done &\n'
        "done\n"
        "wait\n"
    )
    output(script, partition)
    found = (partition / "log.txt").read_bytes().decode().splitlines()
    assert len(found) == 2000
    for writer in range(8):
        mine = [line for line in found if line.startswith(f"w{writer} ")]
        assert mine == [f"w{writer} {number}" for number in range(250)]


def test_lines_in_pieces_from_several_shells_stay_whole(partition: Path) -> None:
    script = (
        "for w in 0 1 2 3; do\n"
        '  ( for i in $(seq 0 39); do printf "w$w "; (printf $i); /bin/true; echo " end"; done ) >> log.txt &\n'
        "done\n"
        "wait\n"
    )
    output(script, partition)
    found = (partition / "log.txt").read_bytes().decode().splitlines()
    for writer in range(4):
        mine = [line for line in found if line.startswith(f"w{writer} ")]
        assert mine == [f"w{writer} {number} end" for number in range(40)]
    assert len(found) == 160


def test_large_files_from_several_processes_keep_whole_lines(partition: Path, tmp_path: Path) -> None:
    counts = {b"a": 30_000, b"b": 30_000, b"c": 30_000, b"d": 30_000}
    for writer, count in counts.items():
        (tmp_path / writer.decode()).write_bytes(lines_of(writer, range(count)))
    output(f"for w in a b c d; do cat {tmp_path}/$w >> log.txt & done; wait", partition)
    text = (partition / "log.txt").read_bytes()
    assert len(text) == sum(path.stat().st_size for path in tmp_path.iterdir() if len(path.name) == 1)
    check_writers(text, counts)


def test_odd_sizes_of_writes_over_rolls_keep_whole_lines(mount: DaemonMount, tmp_path: Path) -> None:
    partition = mount.new("small")
    counts = {b"a": 1500, b"b": 1500, b"c": 1500}
    sizes = {b"a": "1009", b"b": "4096", b"c": "313"}
    writers = []
    for writer, count in counts.items():
        source = tmp_path / writer.decode()
        source.write_bytes(lines_of(writer, range(count)))
        command = ["dd", f"if={source}", f"of={partition / 'log.txt'}", f"bs={sizes[writer]}"]
        command += ["oflag=append", "conv=notrunc", "status=none"]
        writers.append(start([*command], tmp_path / f"out-{writer.decode()}"))
    assert [writer.wait(PATIENCE_S) for writer in writers] == [0, 0, 0]
    check_writers((partition / "log.txt").read_bytes(), counts)
    assert len(os.listdir(partition / "segments")) > 100


def test_the_three_formats_are_appended_to_side_by_side(partition: Path) -> None:
    script = (
        'for i in $(seq 0 99); do echo "t $i" >> log.txt; done &\n'
        "for i in $(seq 0 99); do printf 'v\\tv %s\\n' $i >> log.tsv; done &\n"
        'for i in $(seq 0 99); do echo "{\\"key\\":\\"j\\",\\"value\\":\\"j $i\\"}" >> log.jsonl; done &\n'
        "wait\n"
    )
    output(script, partition)
    found = (partition / "log.txt").read_bytes().decode().splitlines()
    for kind in "tvj":
        assert [line for line in found if line[0] == kind] == [f"{kind} {number}" for number in range(100)]
    assert len(found) == 300


def test_a_topic_takes_lines_from_several_shells_for_all_its_partitions(mount: DaemonMount) -> None:
    topic = "spread"
    for number in range(3):
        (mount / f"{topic}-{number}").mkdir()
    script = (
        "for w in 0 1 2 3; do\n"
        "  for i in $(seq 0 49); do printf 'k%s\\tw%s %s\\n' $((i % 7)) $w $i >> in.tsv; done &\n"
        "done\n"
        "wait\n"
    )
    output(script, mount / "topics" / topic)
    places: dict[str, int] = {}
    found: list[str] = []
    for number in range(3):
        for line in (mount / f"{topic}-{number}/log.tsv").read_text().splitlines():
            key, value = line.split("\t")
            assert places.setdefault(key, number) == number
            found.append(value)
    assert sorted(found) == sorted(f"w{writer} {number}" for writer in range(4) for number in range(50))


def test_killed_writers_leave_whole_lines_and_the_beginning_of_one(partition: Path, tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(lines_of(b"a", range(2000)))
    command = (
        f"exec dd if={tmp_path}/source of={partition}/log.txt bs=777 oflag=append conv=notrunc status=none"
    )
    for _ in range(3):
        run(f"timeout -s KILL 0.02 bash -c '{command}'", partition)
    output(f"cat {tmp_path}/source >> log.txt", partition)
    text = (partition / "log.txt").read_bytes()
    whole = lines_of(b"a", range(2000))
    assert text.endswith(whole)
    for line in text[: -len(whole)].splitlines():
        # The last one that a killed writer began is what it had written of it.
        assert line + b"\n" in whole or any(known.startswith(line) for known in whole.splitlines()), line


# -- logging ------------------------------------------------------------------------------------------------

LOGGING = """
import logging, logging.handlers, sys
kind, name, path = sys.argv[1:]
handler = {"file": logging.FileHandler, "watched": logging.handlers.WatchedFileHandler}[kind](path)
handler.setFormatter(logging.Formatter("%(message)s"))
log = logging.getLogger()
log.addHandler(handler)
log.setLevel(logging.INFO)
for number in range(300):
    log.info("%s %d %s", name, number, str(number) * (1 + number * 7919 % 40))
logging.raiseExceptions = True
"""


@pytest.mark.parametrize("kind", ["file", "watched"])
def test_python_logs_from_two_processes(partition: Path, tmp_path: Path, kind: str) -> None:
    names = ("a", "b")
    writers = [
        start([sys.executable, "-c", LOGGING, kind, name, partition / "log.txt"], tmp_path / name)
        for name in names
    ]
    assert [writer.wait(PATIENCE_S) for writer in writers] == [0, 0]
    assert [(tmp_path / name).read_bytes() for name in names] == [b"", b""]
    check_writers((partition / "log.txt").read_bytes(), {b"a": 300, b"b": 300})


def test_a_program_that_logs_through_a_rotation_tool_keeps_its_lines(partition: Path, tmp_path: Path) -> None:
    # RotatingFileHandler renames, which is refused: it complains, and goes on appending.
    script = (
        "import logging, logging.handlers, sys\n"
        "handler = logging.handlers.RotatingFileHandler(sys.argv[1], maxBytes=100, backupCount=1)\n"
        "logging.getLogger().addHandler(handler)\n"
        "logging.warning('x' * 80)\n"
    )
    append(partition / "log.txt", b"y" * 80 + b"\n")
    done = subprocess.run(
        [sys.executable, "-c", script, partition / "log.txt"], cwd=tmp_path, capture_output=True, check=False
    )
    assert b"not permitted" in done.stderr
    assert (partition / "log.txt").read_bytes().startswith(b"y" * 80 + b"\n")


# -- the order of writes ------------------------------------------------------------------------------------

LOCK_STEP = """
import os, sys
file = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND)
for turn in sys.stdin:
    os.write(file, turn.encode())
    print("written", flush=True)
"""


def test_processes_in_lock_step_leave_their_lines_in_the_order_of_their_writes(partition: Path) -> None:
    """regression: each open file kept its lines by itself, and five of 400 lay before lines that were older"""
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", LOCK_STEP, partition / "log.txt"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]
    for at in range(400):
        writer = writers[at * 7 % 4 if at % 3 else at % 2]
        assert writer.stdin is not None
        assert writer.stdout is not None
        writer.stdin.write(f"{at}\n")
        writer.stdin.flush()
        assert writer.stdout.readline() == "written\n"
    # Each close is waited for, the last writer's first.
    for writer in reversed(writers):
        writer.communicate(timeout=60)
        assert writer.returncode == 0
    assert (partition / "log.txt").read_bytes() == b"".join(b"%d\n" % at for at in range(400))


def test_eight_logging_processes(partition: Path, tmp_path: Path) -> None:
    names = [bytes([letter]).decode() for letter in b"abcdefgh"]
    writers = [
        start([sys.executable, "-c", LOGGING, "file", name, partition / "log.txt"], tmp_path / name)
        for name in names
    ]
    assert [writer.wait(60) for writer in writers] == [0] * 8
    assert [(tmp_path / name).read_bytes() for name in names] == [b""] * 8
    check_writers((partition / "log.txt").read_bytes(), {name.encode(): 300 for name in names})
