"""Checkpoint files: KAFKA_FORMAT 1.4, and the checkpoint lines of KAFKA_CASES F and N.

Not here: which partitions go into the log-start checkpoint (N), a matter of the store that writes it; leader
epochs (F) have their own tests.
"""

from __future__ import annotations

import errno
import logging
import os
from pathlib import Path

import pytest

from topicfs.engine.errors import CorruptCheckpointError
from topicfs.engine.files import checkpoint
from topicfs.engine.files.atomic import read_bounded, write_atomically
from topicfs.engine.files.checkpoint import (
    OffsetCheckpoint,
    read_lines,
    write_lines,
    write_lines_if_directory_exists,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "recovery-point-offset-checkpoint"


def test_written_file_is_version_count_and_entries(path: Path) -> None:
    write_lines(path, ["orders 0 17", "orders 1 4"])
    assert path.read_bytes() == b"0\n2\norders 0 17\norders 1 4\n"


def test_written_file_without_entries_has_two_lines(path: Path) -> None:
    write_lines(path, [])
    assert path.read_bytes() == b"0\n0\n"
    assert read_lines(path) == []


def test_offsets_are_written_overwritten_and_read_again(path: Path) -> None:
    file = OffsetCheckpoint(path)
    file.write({("orders", 0): 5, ("orders", 1): 2**63 - 1})
    assert file.read() == {("orders", 0): 5, ("orders", 1): 2**63 - 1}
    file.write({("a.b-c_d", 2**31 - 1): 7})
    assert file.read() == {("a.b-c_d", 2**31 - 1): 7}


def test_many_offsets_are_read_as_written(path: Path) -> None:
    offsets = {(f"topic-{number % 10}", number): number * 1000 for number in range(5000)}
    OffsetCheckpoint(path).write(offsets)
    assert OffsetCheckpoint(path).read() == offsets


@pytest.mark.parametrize("content", [None, b"", b"0", b"0\n"])
def test_missing_empty_or_cut_after_the_version_holds_no_entries(path: Path, content: bytes | None) -> None:
    if content is not None:
        path.write_bytes(content)
    assert read_lines(path) == []
    assert OffsetCheckpoint(path).read() == {}


@pytest.mark.parametrize(
    ("content", "line", "expected"),
    [
        (b"1\n0\n", 1, "version 0"),
        (b"x\n0\n", 1, "version 0"),
        (b"\n", 1, "version 0"),
        (b" 0\n0\n", 1, "version 0"),
        (b"0\n\n", 2, "number of entries"),
        (b"0\n-1\n", 2, "number of entries"),
        (b"0\n99999999999\na 0 0\n", 2, "number of entries"),
        (b"0\n2147483647\na 0 0\n", 2, "2147483647 entries"),
        (b"0\n2\na 0 0\n", 2, "2 entries"),
        (b"0\n1\na 0 0\nb 0 0\n", 4, "the end of the file"),
        (b"0\n1\na 0 0\n\n", 4, "the end of the file"),
        (b"0\n1\n\n", 3, "first field"),
        (b"0\n1\n a 0 0\n", 3, "first field"),
    ],
)
def test_malformed_file_is_refused_with_path_line_and_expectation(
    path: Path, content: bytes, line: int, expected: str
) -> None:
    path.write_bytes(content)
    with pytest.raises(CorruptCheckpointError) as caught:
        read_lines(path)
    assert str(caught.value).startswith(f"{path}: line {line}: expected ")
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    "entry",
    [
        "a 0",
        "a 0 0 0",
        "a b c",
        "a 0 x",
        "a 0 1_0",
        "a 0 ١",
        "a -1 0",
        "a 0 -1",
        "a 2147483648 0",
        "a 0 9223372036854775808",
        "a 0 " + "9" * 5000,
    ],
)
def test_malformed_offset_entry_is_refused_with_its_line(path: Path, entry: str) -> None:
    path.write_text(f"0\n2\nok 0 0\n{entry}\n", encoding="utf-8")
    with pytest.raises(CorruptCheckpointError, match="line 4: expected <topic> <partition> <offset>"):
        OffsetCheckpoint(path).read()


def test_long_garbage_is_cut_short_in_the_message(path: Path) -> None:
    path.write_bytes(b"x" * 100_000)
    with pytest.raises(CorruptCheckpointError) as caught:
        read_lines(path)
    assert len(str(caught.value)) < 400 + len(str(path))


def test_fields_are_split_on_runs_of_white_space(path: Path) -> None:
    path.write_bytes(b"0\n2\na \t 0   5 \nb\x0b1\x0c6")
    assert OffsetCheckpoint(path).read() == {("a", 0): 5, ("b", 1): 6}


def test_only_ascii_white_space_separates(path: Path) -> None:
    path.write_text("0\n1\na\u00a00 1 2\u20282\n", encoding="utf-8")
    assert read_lines(path) == [["a\u00a00", "1", "2\u20282"]]


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_line_ends_of_every_platform_are_read(path: Path, end: bytes) -> None:
    path.write_bytes(end.join([b"0", b"1", b"a 0 5", b""]))
    assert OffsetCheckpoint(path).read() == {("a", 0): 5}


def test_later_entry_of_one_partition_counts(path: Path) -> None:
    path.write_bytes(b"0\n2\na 0 5\na 0 6\n")
    assert OffsetCheckpoint(path).read() == {("a", 0): 6}


def test_bytes_that_are_not_utf8_are_refused_with_their_place(path: Path) -> None:
    path.write_bytes(b"0\n1\na\xff 0 5\n")
    with pytest.raises(CorruptCheckpointError, match=r"byte 5: expected UTF-8 text, found 0xff"):
        read_lines(path)


def test_file_above_the_bound_is_refused_unread(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "MAX_BYTES", 10)
    path.write_bytes(b"0\n1\na 0 5\n")
    assert OffsetCheckpoint(path).read() == {("a", 0): 5}
    path.write_bytes(b"0\n1\na 0 55\n")
    with pytest.raises(CorruptCheckpointError, match="at most 10 bytes, found 11"):
        read_lines(path)


def test_bound_stops_reading_a_huge_sparse_file(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(CorruptCheckpointError, match="at most 100 bytes"):
        read_bounded(path, 100)


def test_put_off_write_to_a_directory_that_is_gone_is_no_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gone = tmp_path / "orders-0" / "leader-epoch-checkpoint"
    with caplog.at_level(logging.WARNING):
        assert not write_lines_if_directory_exists(gone, ["0 0"])
    assert "its directory is gone" in caplog.text
    with pytest.raises(FileNotFoundError):
        write_lines(gone, ["0 0"])
    assert write_lines_if_directory_exists(tmp_path / "leader-epoch-checkpoint", ["0 0"])


def test_temporary_file_is_gone_after_a_write(path: Path) -> None:
    write_lines(path, ["a 0 0"])
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_stale_temporary_file_is_overwritten(path: Path) -> None:
    path.with_name(path.name + ".tmp").write_bytes(b"longer than what is written below, and stale")
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_failed_write_leaves_the_old_content_and_no_temporary_file(
    path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    write_atomically(path, b"old")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(*((os, "fsync") if call == "fsync" else (Path, "replace")), full)
    with pytest.raises(OSError, match="no space"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_write_syncs_the_file_before_the_rename_and_the_directory_after(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = []
    real_fsync, real_replace = os.fsync, Path.replace

    def fsync(descriptor: int) -> None:
        target = Path(f"/proc/self/fd/{descriptor}").readlink()
        steps.append(f"fsync {target.name if target != path.parent else 'directory'}")
        real_fsync(descriptor)

    def replace(self: Path, target: Path) -> Path:
        steps.append(f"rename {self.name}")
        return real_replace(self, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "replace", replace)
    write_lines(path, ["a 0 0"])
    assert steps == [f"fsync {path.name}.tmp", f"rename {path.name}.tmp", "fsync directory"]
