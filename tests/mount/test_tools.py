"""Tools that read files: on the mount each says what it says of the same bytes in an ordinary file."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from daemon_mount import DaemonMount, append
from patience import PATIENCE_S
from shell import output, run

pytest_plugins = ["shared_mount"]

COUNT = 700
TEXT = b"".join(
    b"%04d the %s fox %s\n"
    % (number, random.Random(number).choice([b"quick", b"brown", b"lazy"]), b"x" * (number % 60))
    for number in range(COUNT)
)


@pytest.fixture(scope="module")
def places(shared: DaemonMount, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A partition of many segments, and a directory with the same bytes in an ordinary file of that name."""
    partition = shared.new("small")
    lines = TEXT.splitlines(keepends=True)
    for first in range(0, COUNT, 20):
        append(partition / "log.txt", b"".join(lines[first : first + 20]))
    ordinary = tmp_path_factory.mktemp("ordinary")
    (ordinary / "log.txt").write_bytes(TEXT)
    assert len(os.listdir(partition / "sealed/txt")) > 10
    return partition, ordinary


@pytest.mark.parametrize(
    "command",
    [
        "cat log.txt",
        "cat -n log.txt",
        "head -n 3 log.txt",
        "head -n -650 log.txt",
        "head -c 1000 log.txt",
        "head -c -1000 log.txt",
        "tail -n 3 log.txt",
        "tail -n +690 log.txt",
        "tail -c 100 log.txt",
        "tail -c +40000 log.txt",
        "tail -n 5 < log.txt",
        "grep -c quick log.txt",
        "grep -n '^069' log.txt",
        "grep -v fox log.txt || true",
        "grep -B1 -A1 0350 log.txt",
        "grep -m 2 lazy log.txt",
        "wc log.txt",
        "wc -l < log.txt",
        "wc -c log.txt",
        "sort -r log.txt",
        "sort -k 3 log.txt",
        "tac log.txt",
        "sed -n '100,110p' log.txt",
        "sed -n '$p' log.txt",
        "sed 's/quick/slow/;5q' log.txt",
        "awk '{ n[$3]++ } END { for (w in n) print w, n[w] }' log.txt | sort",
        "gawk 'NR % 100 == 0 { print FNR, length }' log.txt",
        "cut -d ' ' -f 1,3 log.txt",
        "nl log.txt",
        "cut -d ' ' -f 3 log.txt | sort | uniq -c",
        "md5sum log.txt",
        "sha256sum < log.txt",
        "cksum log.txt",
        "od -A d -c log.txt | tail -n 5",
        "tr a-z A-Z < log.txt",
        "rev log.txt | tail -n 2",
        "fold -w 40 log.txt | wc -l",
        "paste - - < log.txt | wc -l",
        "base64 log.txt | md5sum",
        "gzip -c log.txt | gzip -dc | md5sum",
        "xargs -n 50 echo < log.txt | wc -l",
        "xargs -a log.txt -d '\\n' -n 100 printf '%s|' | md5sum",
        "split -l 100 --filter='md5sum' log.txt",
        "split -n 3/7 log.txt",
        "csplit -s -f $OUT/part log.txt 101 301 && wc -l < $OUT/part01",
        "dd if=log.txt bs=100 skip=7 count=3 status=none",
        "dd if=log.txt bs=1 skip=4096 count=10 status=none",
        "dd if=log.txt bs=64K iflag=skip_bytes,count_bytes skip=39999 count=1234 status=none",
        "dd if=log.txt bs=4096 iflag=fullblock status=none | md5sum",
        "cmp log.txt log.txt && echo same",
        "diff log.txt <(sed 3d log.txt) || true",
        "comm -12 <(sort log.txt) <(head -n 3 log.txt | sort)",
        "join <(sort log.txt) <(sort log.txt) | wc -l",
        "while read -r number rest; do [ $number != 0042 ] || echo $rest; done < log.txt",
        "mapfile -t lines < log.txt; echo ${#lines[@]} ${lines[699]}",
        "{ read -r one; read -r two; cat; } < log.txt | md5sum",
        "exec 3< log.txt; head -c 10 <&3 > /dev/null; head -n 1 <&3",
        "stat -c '%s %F' log.txt",
        "find log.txt -size +30k -type f -printf '%s\\n'",
        "python3 -c 'print(sum(len(line) for line in open(\"log.txt\")))'",
        "awk 'NR == 300' log.txt",
        "tee /dev/null < log.txt | md5sum",
        "shuf --random-source=log.txt -n 3 log.txt",
        "test -s log.txt && test -r log.txt && ! test -x log.txt && echo yes",
    ],
)
def test_it_says_the_same_as_of_an_ordinary_file(
    mount: DaemonMount, places: tuple[Path, Path], tmp_path: Path, command: str
) -> None:
    partition, ordinary = places
    prefix = f"OUT={tmp_path}\n"
    name = command.split(maxsplit=1)[0]
    if run(f"type {name}", ordinary).returncode:
        pytest.skip(f"{name} is not installed")
    assert output(prefix + command, partition) == output(prefix + command, ordinary)


# -- copies -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command",
    [
        "cp log.txt $OUT/copy",
        "cp -a log.txt $OUT/copy",
        "cp --sparse=always log.txt $OUT/copy",
        "cp --reflink=auto -p log.txt $OUT/copy",
        "rsync -a log.txt $OUT/copy",
        "rsync -c --inplace log.txt $OUT/copy",
        "install -m 600 log.txt $OUT/copy",
        "tar cf - log.txt | tar xf - -C $OUT -O > $OUT/copy",
        "dd if=log.txt of=$OUT/copy bs=1M status=none",
        "cat log.txt > $OUT/copy",
        "split -b 5000 log.txt $OUT/part. && cat $OUT/part.* > $OUT/copy",
    ],
)
def test_a_copy_out_of_the_mount_is_exact(
    mount: DaemonMount, places: tuple[Path, Path], tmp_path: Path, command: str
) -> None:
    output(f"OUT={tmp_path}\n{command}", places[0])
    assert (tmp_path / "copy").read_bytes() == TEXT


def test_copies_of_whole_directories_are_exact(
    mount: DaemonMount, places: tuple[Path, Path], tmp_path: Path
) -> None:
    partition, _ = places
    script = (
        f"OUT={tmp_path}\n"
        "cp -a sealed/ $OUT/cp\n"
        "rsync -a sealed/ $OUT/rsync\n"
        "mkdir $OUT/tar && tar cf - sealed/. segments/. current.* | tar xf - -C $OUT/tar\n"
        "diff -r sealed $OUT/cp && diff -r sealed $OUT/rsync\n"
        "diff -r sealed $OUT/tar/sealed && diff -r segments $OUT/tar/segments\n"
    )
    assert output(script, partition) == b""
    for path in (partition / "sealed/txt").iterdir():
        for copy in (tmp_path / "cp/txt", tmp_path / "rsync/txt", tmp_path / "tar/sealed/txt"):
            assert int((copy / path.name).stat().st_mtime) == int(path.stat().st_mtime)
    assert (tmp_path / "tar/current.txt").is_symlink()


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("grep -rl '^0042 ' . | grep -c 'log.txt$'", b"1"),
        ("tar cf - . | tar tf - | grep -c '^./log.txt$'", b"1"),
        ("cp -a . $OUT/cp && cat $OUT/cp/log.txt | wc -l", b"700"),
        ("rsync -a . $OUT/rsync && cat $OUT/rsync/log.txt | wc -l", b"700"),
        ("find . -type f -exec wc -l {} + | grep -c ' ./log.txt$'", b"1"),
        ("find . -type f -print0 | xargs -0 md5sum | grep -c 'log.txt$'", b"1"),
        ("wc -l *.txt | tail -n 1 | awk '{print ($1 >= 700)}'", b"1"),
    ],
)
def test_what_reads_all_of_a_partition_comes_to_an_end(
    mount: DaemonMount, places: tuple[Path, Path], tmp_path: Path, command: str, says: bytes
) -> None:
    assert output(f"OUT={tmp_path}\n{command}", places[0]).strip() == says


def test_a_second_rsync_finds_nothing_to_do(
    mount: DaemonMount, places: tuple[Path, Path], tmp_path: Path
) -> None:
    partition, _ = places
    command = f"rsync -ai sealed/ {tmp_path}/copy"
    assert output(command, partition)
    assert output(command, partition) == b""


# -- what describes files -----------------------------------------------------------------------------------


def test_ls_find_and_du_agree_about_sizes(mount: DaemonMount, places: tuple[Path, Path]) -> None:
    partition, _ = places
    size = len(TEXT)
    assert output("ls -l log.txt", partition).split()[4] == str(size).encode()
    # What is stored, T2: these are uncompressed batches.
    stored = -(-mount.status(partition)["log_bytes"] // 512)
    assert stored > size // 512
    assert output("ls -s --block-size=512 log.txt", partition).split()[0] == b"%d" % stored
    assert output("du --block-size=1 --apparent-size log.txt", partition).split()[0] == str(size).encode()
    assert output("du --block-size=512 log.txt", partition).split()[0] == b"%d" % stored
    listed = output("ls -1 sealed/txt", partition).split()
    found = output("find sealed/txt -type f -printf '%f\\n' | sort", partition).split()
    assert listed == found
    total = sum(map(int, output("find segments/ -name '*.txt' -printf '%s\\n'", partition).split()))
    assert total == size


@pytest.fixture(scope="module")
def zipped(shared: DaemonMount) -> tuple[Path, bytes]:
    """A partition that takes a small part of its views' sizes on disk, and its values."""
    partition = shared.new("zipped")
    (shared / "topics/zipped/config").write_text("compression.type=zstd\n")
    lines = b"".join(b"%06d %s\n" % (number, b"\0" * 4000) for number in range(200))
    append(partition / "log.txt", lines)
    status = (partition / "log.txt").stat()
    assert 0 < status.st_blocks * 512 < status.st_size // 10
    return partition, lines


@pytest.mark.parametrize(
    "script",
    [
        "cp log.txt $OUT/x",
        "cp --sparse=always log.txt $OUT/x",
        "cp -a ./log.txt $OUT/x",
        "tar cSf $OUT/t log.txt; tar xSf $OUT/t -C $OUT; mv $OUT/log.txt $OUT/x",
        "tar cf $OUT/t log.txt; tar xf $OUT/t -C $OUT; mv $OUT/log.txt $OUT/x",
        "rsync -S log.txt $OUT/x",
        "rsync -a log.txt $OUT/x",
        "dd if=log.txt of=$OUT/x conv=sparse status=none",
        "grep -a . log.txt > $OUT/x",
        "cat log.txt > $OUT/x",
    ],
)
def test_what_is_stored_in_less_room_is_taken_for_no_hole(
    zipped: tuple[Path, bytes], tmp_path: Path, script: str
) -> None:
    partition, lines = zipped
    assert output(f"OUT={tmp_path}\n{script}", partition) == b""
    assert (tmp_path / "x").read_bytes() == lines
    with (partition / "log.txt").open("rb") as file:
        assert os.lseek(file.fileno(), 0, os.SEEK_HOLE) == len(lines)
        assert os.lseek(file.fileno(), 5000, os.SEEK_DATA) == 5000


def test_find_walks_everything_and_each_name_it_finds_can_be_asked_for(
    mount: DaemonMount, places: tuple[Path, Path]
) -> None:
    partition, _ = places
    names = output("find -L . -print0", partition).split(b"\0")
    assert b"./log.txt" in names
    assert b"./sealed/jsonl" in names
    assert output("find -L . -type f -newermt '1 hour ago' | wc -l", partition).strip() != b"0"
    assert output("ls -lR > /dev/null; ls -laiZ > /dev/null; stat * > /dev/null", partition) == b""


def test_inodes_are_steady_and_no_two_files_share_one(mount: DaemonMount, places: tuple[Path, Path]) -> None:
    partition, _ = places
    once, again = (output("find . -printf '%i %p\\n' | sort", partition) for _ in range(2))
    assert once == again
    numbers = [line.split()[0] for line in once.splitlines()]
    assert len(numbers) == len(set(numbers))


# -- formats ------------------------------------------------------------------------------------------------


def test_jq_reads_jsonl(mount: DaemonMount, places: tuple[Path, Path]) -> None:
    partition, _ = places
    assert output("jq -j '.value + \"\\n\"' log.jsonl", partition) == TEXT
    assert output("jq -s 'map(.offset) == [range(700)]' log.jsonl", partition) == b"true\n"
    chosen = output("jq -c 'select(.offset >= 698) | [.topic, .key, .headers]' log.jsonl", partition)
    assert chosen == b'["small",null,[]]\n' * 2


def test_jsonl_and_tsv_read_out_of_one_partition_can_be_appended_to_another(
    mount: DaemonMount, places: tuple[Path, Path]
) -> None:
    partition, _ = places
    for suffix in ("jsonl", "tsv"):
        copy = mount.new()
        output(f"cat {partition}/log.{suffix} >> log.{suffix}", copy)
        assert (copy / "log.txt").read_bytes() == TEXT
        assert (copy / "log.tsv").read_bytes() == (partition / "log.tsv").read_bytes()
    jsonl = mount.new()
    output(f"jq -c '.key = \"k\\(.offset % 3)\"' {partition}/log.jsonl >> log.jsonl", jsonl)
    assert (
        output("cut -f 1 log.tsv | sort | uniq -c | awk '{print $2, $1}'", jsonl)
        == b"k0 234\nk1 233\nk2 233\n"
    )


# -- partial readers ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["log.txt", "log.jsonl", "offset/100-.tsv", "offset/-300.jsonl"])
def test_reads_at_random_places_agree_with_a_read_from_the_front(
    mount: DaemonMount, places: tuple[Path, Path], name: str
) -> None:
    expected = (places[0] / name).read_bytes()
    chance = random.Random(1)
    file = os.open(places[0] / name, os.O_RDONLY)
    try:
        assert os.fstat(file).st_size == len(expected)
        for _ in range(400):
            position, size = chance.randrange(len(expected) + 100), chance.choice([1, 16, 100, 4096, 30_000])
            assert os.pread(file, size, position) == expected[position : position + size]
    finally:
        os.close(file)


def test_a_sealed_view_can_be_mapped_into_memory(mount: DaemonMount, places: tuple[Path, Path]) -> None:
    partition, _ = places
    # In a process of its own: a page that could not be had would be its death.
    script = (
        "import mmap, sys, pathlib\n"
        "for path in sorted(pathlib.Path('sealed/txt').iterdir()):\n"
        "    with path.open('rb') as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as view:\n"
        "        assert len(view) == path.stat().st_size\n"
        "        assert view[-1:] == b'\\n' and view.find(b'fox') > 0\n"
        "        assert bytes(view) == path.read_bytes()\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=partition, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()


def test_several_readers_of_one_descriptor_share_its_position(
    mount: DaemonMount, places: tuple[Path, Path]
) -> None:
    script = 'exec 3< log.txt; for i in $(seq 700); do (IFS= read -r line <&3; echo "$line"); done'
    # `read` seeks back to the end of its line, as it may in an ordinary file.
    assert output(script, places[0]) == TEXT


def test_many_readers_at_once_get_the_same(mount: DaemonMount, places: tuple[Path, Path]) -> None:
    script = "for i in $(seq 12); do cat log.txt | md5sum & done; wait"
    assert len(set(output(script, places[0]).splitlines())) == 1


def test_a_reader_that_stops_early_leaves_nothing_behind(
    mount: DaemonMount, places: tuple[Path, Path]
) -> None:
    partition, _ = places
    for _ in range(20):
        assert (
            run("cat log.txt log.txt log.txt | head -n 1", partition).stdout == TEXT[: TEXT.index(b"\n") + 1]
        )
    mount.await_releases()
    assert json.loads((partition / "status.json").read_bytes())["open_logs"] <= 1


@pytest.mark.parametrize("words", ["{mount} {name}", "{mount}/{name}"])
def test_a_dump_of_a_mounted_partition_shows_its_files_beside_the_running_daemon(
    places: tuple[Path, Path], words: str
) -> None:
    partition, _ = places
    chosen = words.format(mount=partition.parent, name=partition.name).split()
    done = subprocess.run(
        [sys.executable, "-m", "topicfs.mountd.cli", "dump", "--print-data-log", *chosen],
        capture_output=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    records = [line for line in done.stdout.splitlines(keepends=True) if line.startswith(b"| offset: ")]
    assert b"".join(line.partition(b" payload: ")[2] for line in records) == TEXT
