"""What the kernel takes for one file has one content: pages and mappings never show the bytes of another one, though
libfuse 2 knows files by their paths, and paths come to stand for other bytes.
"""

from __future__ import annotations

import errno
import functools
import mmap
import os
import shutil
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from daemon_mount import DaemonMount, append, eventually, opened, own_mount, refused
from test_semantics_upkeep import BASE, compacted, keyed, policy, upkeep

pytest_plugins = ["shared_mount"]

COUNT = 4000
"""Records: some 100 KiB, so that more than one page is in play."""

FINAL = [
    f"segments/{BASE}.txt",
    f"segments/{BASE}.jsonl",
    f"segments/{BASE}.log",
    f"sealed/txt/{BASE}.txt",
    f"sealed/tsv/{BASE}.tsv",
]


def fill(mount: DaemonMount, partition: Path, what: str, count: int = COUNT) -> None:
    """A sealed segment of records that have the same width whatever they are filled with."""
    append(partition / "log.txt", "".join(f"{what} {number:020d}\n" for number in range(count)).encode())
    mount.steer("roll", partition)


def mapped(file: int, kind: int = mmap.MAP_PRIVATE, length: int = 0) -> mmap.mmap:
    return mmap.mmap(file, length or os.fstat(file).st_size, kind, mmap.PROT_READ)


def in_a_child(test: Callable[..., None]) -> Callable[..., None]:
    """Run a test in a process of its own: a page that could not be had would be its death."""

    @functools.wraps(test)
    def run(*fixtures: object, **named: object) -> None:
        child = os.fork()
        if not child:
            try:
                test(*fixtures, **named)
            except BaseException:  # noqa: BLE001 - the parent fails for it
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0

    return run


def rest(file: int) -> bytes:
    """From byte 0 to the end, in pieces."""
    found = b""
    while part := os.pread(file, 100_000, len(found)):
        found += part
    return found


def in_a_process(script: str, *words: object) -> subprocess.CompletedProcess[bytes]:
    """Run a script that a missing page would kill."""
    return subprocess.run(
        [sys.executable, "-c", script, *map(str, words)], capture_output=True, check=False, timeout=60
    )


def by_topic(mount: DaemonMount, partition: Path) -> None:
    mount.steer("delete_topic", partition)
    (mount / "topics" / partition.name.rpartition("-")[0]).mkdir()


def by_partition(mount: DaemonMount, partition: Path) -> None:
    mount.steer("delete", partition)
    partition.mkdir()


@pytest.fixture
def lone(mount: DaemonMount, request: pytest.FixtureRequest) -> Path:
    """The one partition of a topic of its own."""
    made: Path = mount / f"lone{abs(hash(request.node.name))}-0"
    made.mkdir()
    return made


@pytest.mark.parametrize("replace", [by_topic, by_partition])
@pytest.mark.parametrize("held", [False, True])
def test_what_was_deleted_and_made_again_shows_the_new_records(
    mount: DaemonMount, lone: Path, replace: Callable[[DaemonMount, Path], None], held: bool
) -> None:
    mount.expect("EIO: ")
    fill(mount, lone, "old")
    whole = {name: (lone / name).read_bytes() for name in FINAL}
    before = {name: (lone / name).stat() for name in FINAL}
    files = [os.open(lone / name, os.O_RDONLY) for name in FINAL] if held else []
    replace(mount, lone)
    fill(mount, lone, "new")
    for name in FINAL:
        new, after = (lone / name).read_bytes(), (lone / name).stat()
        assert len(new) == len(whole[name]) == after.st_size
        assert b"old" not in new, name
        assert b"new" in new, name
        assert after.st_ino != before[name].st_ino, name
    for file in files:
        os.close(file)


def test_a_table_that_was_deleted_and_made_again_shows_the_new_records(tmp_path: Path) -> None:
    with own_mount(tmp_path, "-o", "log.parquet.enable=true") as mount:
        mount.expect("EIO: ")
        partition = mount.new("orders")
        file = mount / f"topics/orders/table/partition=0/{BASE}.parquet"
        fill(mount, partition, "old")
        eventually(file.exists, "a table")
        assert values(file)[0].startswith(b"old ")
        before = file.stat()
        with opened(file) as held:
            assert len(rest(held)) == before.st_size
            by_topic(mount, partition)
            assert not file.exists()
            with refused(errno.EIO):
                os.pread(held, 100, 0)
            fill(mount, partition, "new")
            eventually(file.exists, "a table")
            assert {value[:4] for value in values(file)} == {b"new "}
            assert file.stat().st_ino != before.st_ino
            with refused(errno.EIO):
                os.pread(held, 100, 0)


def values(file: Path) -> list[bytes]:
    """Of a Parquet file: read as it is, since pyarrow closes what it opens when it likes."""
    table = pq.read_table(pa.BufferReader(file.read_bytes()))
    return table.column("value").to_pylist()  # type: ignore[no-any-return]


def test_what_a_backup_brings_back_has_inodes_of_its_own(tmp_path: Path) -> None:
    """Of equal size, time and place: rsync and tar would take it for what was there before."""
    place = DaemonMount(tmp_path)
    try:
        place.start()
        partition = place.new("orders")
        fill(place, partition, "old")
        assert place.stop() == 0
        logs = place.backing / "logs"
        shutil.copytree(logs, place.backing / "backup", copy_function=shutil.copy2)
        place.start()
        before = {name: (partition / name).stat() for name in (*FINAL, "log.txt")}
        assert place.stop() == 0
        logs.rename(place.backing / "lost")
        (place.backing / "backup").rename(logs)
        place.start()
        for name, old in before.items():
            new = (partition / name).stat()
            assert new.st_size == old.st_size
            assert new.st_ino != old.st_ino
        assert place.stop() == 0
    finally:
        place.clear()


def test_inodes_stay_over_a_restart_and_differ_after_a_deletion(tmp_path: Path) -> None:
    place = DaemonMount(tmp_path)
    try:
        place.start()
        partition = place.new("orders")
        fill(place, partition, "old")
        names = [*FINAL, "log.txt", "offset/0-9.txt", "offset/-5.txt", "offset/7", "start", "."]
        before = {name: (partition / name).stat().st_ino for name in names}
        assert place.stop() == 0
        place.start()
        assert {name: (partition / name).stat().st_ino for name in names} == before
        by_partition(place, partition)
        fill(place, partition, "new")
        after = {name: (partition / name).stat().st_ino for name in names}
        same = [name for name in names if before[name] == after[name]]
        assert same == ["."], "to a copier a file of equal inode, size and time is the same file"
        assert place.stop() == 0
    finally:
        place.clear()


@pytest.mark.parametrize("name", [f"sealed/tsv/{BASE}.tsv", f"segments/{BASE}.log"])
def test_a_mapped_segment_outlives_its_compaction(tmp_path: Path, name: str) -> None:
    """Also shared mappings, which die of SIGBUS where the kernel hears of a smaller size."""
    with upkeep(tmp_path) as mount:
        partition = mount.new("keys")
        keyed(partition, mount)
        file = partition / name
        old = file.read_bytes()
        script = (
            "import mmap, os, sys\n"
            "file = os.open(sys.argv[1], os.O_RDONLY)\n"
            "size = os.fstat(file).st_size\n"
            "seen = [mmap.mmap(file, size, kind, mmap.PROT_READ) for kind in (mmap.MAP_SHARED, mmap.MAP_PRIVATE)]\n"
            "first = [each[:] for each in seen]\n"
            "print('mapped', flush=True)\n"
            "input()\n"
            "os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)\n"
            "assert os.fstat(file).st_size == size\n"
            "assert [each[:] for each in seen] == first\n"
            "fresh = mmap.mmap(file, size, mmap.MAP_SHARED, mmap.PROT_READ)\n"
            "assert fresh[:] == first[0]\n"
            "sys.stdout.buffer.write(first[0])\n"
        )
        with subprocess.Popen(
            [sys.executable, "-c", script, file], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as mapper:
            assert mapper.stdout is not None
            assert mapper.stdout.readline() == b"mapped\n"
            policy(mount, partition, "compact")
            compacted(mount, partition)

            def shown() -> Path:
                """The file now: in a compacted log a name below `sealed` has the end of its segment too."""
                (found,) = file.parent.glob(f"{BASE}*{file.suffix}")
                return found

            # That the topic is a compacted one is new to the kernel, which remembers names for a second.
            eventually(lambda: shown().stat().st_size < len(old), "the new size, though the old file is open")
            found = shown().read_bytes()
            assert len(found) == shown().stat().st_size
            with opened(shown()) as again, mapped(again, mmap.MAP_SHARED) as view:
                assert view[:] == found
            seen, _ = mapper.communicate(b"\n", timeout=60)
        assert mapper.returncode == 0
        assert seen == old


def test_compaction_that_comes_back_to_an_equal_size_shows_the_new_records(tmp_path: Path) -> None:
    with upkeep(tmp_path) as mount:
        partition = mount.new("keys")
        policy(mount, partition, "compact")
        found = []
        for turn in range(4):
            lines = "".join(f"k{key:03d}\tturn {turn} {'x' * 200}\n" for key in range(100))
            append(partition / "log.tsv", lines.encode())
            mount.steer("roll", partition)
            end = (turn + 1) * 100

            def is_done(end: int = end) -> bool:
                cleaning = mount.status(partition)["cleaning"]
                return bool(cleaning) and cleaning["from_offset"] >= end

            eventually(is_done, "a compaction")
            names = sorted(os.listdir(partition / "sealed/tsv"))
            found.append(b"".join((partition / "sealed/tsv" / name).read_bytes() for name in names))
            assert found[-1] == lines.encode(), names
        assert len(set(map(len, found))) == 1


# -- names that stand for other records each time --------------------------------------------------------------


@pytest.mark.parametrize("name", ["offset/-2000.txt", "time/last-1h.txt", "time/2000-01-01--2100-01-01.txt"])
@pytest.mark.parametrize("kind", [mmap.MAP_PRIVATE])
@in_a_child
def test_open_ranges_do_not_share_pages(mount: DaemonMount, lone: Path, name: str, kind: int) -> None:
    fill(mount, lone, "old")
    with opened(lone / name) as one, mapped(one, kind) as first:
        before = first[:]
        fill(mount, lone, "new")
        with opened(lone / name) as two, mapped(two, kind) as second:
            assert first[:] == before == rest(one)[: len(before)]
            assert second[:] == rest(two)
            assert b"new" in second[-100:]
            assert first[:] == before
        if "last" not in name:
            assert os.fstat(one).st_size == len(before)


@in_a_child
def test_open_ranges_do_not_share_pages_when_records_are_removed(mount: DaemonMount, lone: Path) -> None:
    fill(mount, lone, "old")
    fill(mount, lone, "new")
    name = f"offset/0-{2 * COUNT - 1}.txt"
    with opened(lone / name) as one, mapped(one) as first:
        before = first[:]
        mount.steer("raise_start", lone, COUNT)
        with opened(lone / name) as two, mapped(two) as second:
            assert second[:] == rest(two)
            assert second[:4] == b"new "
            assert first[:] == before
            assert os.fstat(one).st_size == len(before)
            assert os.fstat(two).st_size == len(second[:])


@in_a_child
def test_each_open_of_the_status_has_pages_of_its_own(mount: DaemonMount, lone: Path) -> None:
    with opened(lone / "status.json") as one, mapped(one) as first:
        before = first[:]
        fill(mount, lone, "new")
        with opened(lone / "status.json") as two, mapped(two) as second:
            assert second[:] == rest(two) != before
            assert first[:] == before == rest(one)
            assert os.fstat(one).st_size == len(before)


def test_sendfile_of_two_that_differ(mount: DaemonMount, lone: Path, tmp_path: Path) -> None:
    """sendfile(2) reads through pages, whatever else the kernel is told."""
    fill(mount, lone, "old")
    with opened(lone / "offset/-2000.txt") as one, (tmp_path / "out").open("wb") as out:
        os.sendfile(out.fileno(), one, 0, 8000)
        fill(mount, lone, "new")
        with opened(lone / "offset/-2000.txt") as two:
            os.sendfile(out.fileno(), two, 0, 8000)
            expected = os.pread(one, 8000, 0) + os.pread(two, 8000, 0)
    assert (tmp_path / "out").read_bytes() == expected


def test_sendfile_sends_what_has_come_once_somebody_has_asked_for_the_size(
    mount: DaemonMount, lone: Path, tmp_path: Path
) -> None:
    """open(2) alone does not ask, within a second of an earlier one."""
    append(lone / "log.txt", b"first\n")
    assert (lone / "log.txt").stat().st_size == 6
    append(lone / "log.jsonl", b'{"value":"second"}\n')
    with opened(lone / "log.txt") as log, (tmp_path / "out").open("wb") as out:
        os.fstat(log)
        assert os.sendfile(out.fileno(), log, 0, 100) == 13


# -- what grows -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["log.txt", f"segments/{BASE}.txt", f"segments/{BASE}.log", "offset/0-.txt"])
@in_a_child
def test_a_mapping_of_what_grows_has_no_bytes_that_nobody_wrote(
    mount: DaemonMount, lone: Path, name: str
) -> None:
    file = lone / name
    with opened(lone / "log.txt", os.O_WRONLY | os.O_APPEND) as writer:
        os.write(writer, b"begin\n")
        os.fsync(writer)
        older, checked = [], 0
        for number in range(300):
            os.write(writer, b"%0*d\n" % (number % 40, number))
            os.fsync(writer)
            reader = os.open(file, os.O_RDONLY)
            size = os.fstat(reader).st_size
            view = mapped(reader, length=size)
            assert view[:] == os.pread(reader, size, 0)
            assert name.endswith(".log") or b"\0" not in view[:]
            older.append((reader, view, view[:]))
            for _, seen, expected in older:
                assert seen[:] == expected
                checked += 1
            if len(older) > 20:
                os.close(older[0][0])
                older.pop(0)[1].close()
        assert checked > 5000
        for reader, view, _ in older:
            view.close()
            os.close(reader)


@in_a_child
def test_a_log_that_begins_elsewhere_is_not_mapped_beside_another(mount: DaemonMount, lone: Path) -> None:
    """Its pages are shared by all who have it open: an error, and no byte of the other."""
    fill(mount, lone, "old")
    fill(mount, lone, "new")
    script = (
        "import mmap, os, sys\n"
        "file = os.open(sys.argv[1], os.O_RDONLY)\n"
        "os.pread(file, 10, 0)\n"
        "mmap.mmap(file, 4096, mmap.MAP_PRIVATE, mmap.PROT_READ)[:]\n"
    )
    with opened(lone / "log.txt") as holder, mapped(holder) as first:
        before = first[:]
        mount.steer("raise_start", lone, COUNT)
        assert (lone / "log.txt").read_bytes()[:4] == b"new "
        assert in_a_process(script, lone / "log.txt").returncode == -signal.SIGBUS
        assert first[:] == before
    eventually(lambda: (lone / "log.txt").stat().st_size == COUNT * 25, "nobody holds it")
    assert in_a_process(script, lone / "log.txt").returncode == 0
    with opened(lone / "log.txt") as file, mapped(file) as view:
        assert view[:] == rest(file)


@in_a_child
def test_numpy_and_pyarrow_map(mount: DaemonMount, lone: Path) -> None:
    fill(mount, lone, "old")
    final, growing = lone / f"sealed/txt/{BASE}.txt", lone / "log.txt"
    whole = final.read_bytes()
    for mode in ("r", "c"):
        assert np.memmap(final, np.uint8, mode).tobytes() == whole
    with pa.memory_map(str(final)) as found:
        assert found.read() == whole
    assert np.memmap(growing, np.uint8, "c").tobytes() == whole
    with refused(errno.ENODEV):
        np.memmap(growing, np.uint8, "r")


def test_ripgrep_maps(mount: DaemonMount, lone: Path) -> None:
    fill(mount, lone, "old")
    growing = lone / "log.txt"

    def count(path: Path, *options: str) -> int:
        words = ["rg", "--no-config", "--mmap", "--text", "--count", *options, r"^old \d{20}$", path]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert done.stderr == ""
        return int(done.stdout or 0)

    for name in (f"segments/{BASE}.txt", f"sealed/txt/{BASE}.txt"):
        assert (count(lone / name), count(lone / name, "--invert-match")) == (COUNT, 0)
    write = f"for number in $(seq 500); do printf 'old %020d\\n' $number >> {growing}; done"
    with subprocess.Popen(["bash", "-c", write]) as writer:
        counts = [COUNT]
        while writer.poll() is None:
            counts.append(count(growing))
            assert count(growing, "--invert-match") == 0
    assert counts == sorted(counts)
    assert count(growing) == COUNT + 500


# -- what was deleted while it was open -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        *FINAL,
        "log.txt",
        "log.jsonl",
        "offset/0-99.txt",
        "offset/-5.txt",
        "offset/7",
        "time/last-1h.txt",
        "follow.txt",
        "status.json",
        "start",
    ],
)
@pytest.mark.parametrize("again", [False, True])
def test_a_descriptor_of_a_deleted_partition_gives_nothing(
    mount: DaemonMount, lone: Path, name: str, again: bool
) -> None:
    mount.expect("EIO: ")
    fill(mount, lone, "old")
    with opened(lone / name) as file:
        if name != "follow.txt":
            # All of it is rendered, in the kernel's pages where it keeps them, and reads are answered from memory.
            assert rest(file)
            assert os.pread(file, 10, 0)
        mount.steer("delete", lone)
        if again:
            lone.mkdir()
            fill(mount, lone, "new")
            assert b"old 0" not in (lone / name).read_bytes() if name != "follow.txt" else True
        for position in (0, 10, 1 << 16):
            with refused(errno.EIO):
                os.pread(file, 100, position)


@pytest.mark.parametrize("name", [FINAL[0], "log.txt"])
def test_a_mapping_of_a_deleted_partition_gives_nothing(mount: DaemonMount, lone: Path, name: str) -> None:
    mount.expect("EIO: ")
    fill(mount, lone, "old")
    script = (
        "import mmap, os, sys\n"
        "file = os.open(sys.argv[1], os.O_RDONLY)\n"
        "view = mmap.mmap(file, 4096, mmap.MAP_PRIVATE, mmap.PROT_READ)\n"
        "view[:]\n"
        "print('mapped', flush=True)\n"
        "input()\n"
        "print(view[:])\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, lone / name], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as mapper:
        assert mapper.stdout is not None
        assert mapper.stdout.readline() == b"mapped\n"
        mount.steer("delete", lone)
        seen, _ = mapper.communicate(b"\n", timeout=60)
    assert mapper.returncode == -signal.SIGBUS
    assert seen == b""
