"""What `topicfs dump` shows of files, and what it tells of damaged ones."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import cramjam
import google_crc32c
import numpy as np
import pytest
from dumping import dumped
from hypothesis import given
from hypothesis import strategies as st

from topicfs import Record, Store
from topicfs.engine.dump import batches
from topicfs.engine.dump.files import files_of, show
from topicfs.engine.dump.report import Report
from topicfs.engine.dump.wanted import Wanted
from topicfs.engine.errors import InvalidNameError
from topicfs.engine.partition.partition import Producer

NOW: Final = 1_700_000_000_000
RECORDS: Final = 60


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log directory: plain and compressed batches, one segment and an aborted transaction each."""
    backing = tmp_path_factory.mktemp("dump") / "backing"
    with Store.open(backing, create=True) as store:
        for topic, codec in (("plain", "uncompressed"), ("zstd", "zstd")):
            overrides = {"index.interval.bytes": "100", "compression.type": codec}
            partition = store.create(topic, overrides=overrides)
            for start in range(0, RECORDS, 10):
                partition.append([_record(number) for number in range(start, start + 10)])
            partition.append([Record(b"gone", None, NOW + 99)], Producer(7, 0, 0, True))
            partition.end_transaction(7, 0, False)
    return backing / "logs"


def _record(number: int) -> Record:
    key = None if number % 5 == 4 else b"key %d" % number
    value = b'a "value"\n\xff' if number % 7 == 3 else None if number % 7 == 5 else "größer".encode()
    headers = (("name", b"x"), ("größe", None), ("\udcff", b"\xfe")) if number % 3 == 0 else ()
    return Record(value, key, NOW + number, headers)


def every_file(logs: Path) -> list[Path]:
    return list(files_of([str(logs / "plain-0"), str(logs / "zstd-0"), str(logs)]))


def log_of(logs: Path, topic: str = "plain") -> Path:
    return min((logs / f"{topic}-0").glob("*.log"))


def copied(path: Path, place: Path) -> Path:
    """A copy of a file, with all that lies beside it."""
    shutil.copytree(path.parent, place / "copy", dirs_exist_ok=True)
    return place / "copy" / path.name


# -- JSON ----------------------------------------------------------------------------------------------

FRAMES: Final[dict[str, Callable[[dict[str, Any]], str]]] = {
    "file": lambda it: f"Dumping {it['file']}",
    "log": lambda it: f"Log starting offset: {it['startOffset']}",
    "empty": lambda it: f"{it['file']} is empty.",
    "property": lambda it: f"{it['name']}: {it['value']}",
}


def as_text(it: dict[str, Any]) -> str:
    """The line of text that says what an object says."""
    kind = it.pop("type")
    if kind in FRAMES:
        return FRAMES[kind](it)
    if kind == "batch":
        it["deleteHorizonMs"] = _optional(it["deleteHorizonMs"])
        it = _with(it, "timestampType", lambda: {it["timestampType"]: it["maxTimestamp"]})
        del it["maxTimestamp"]
    if kind == "record":
        names = ",".join(_text(header, "key") or "" for header in it.pop("headers"))
        it = _with(it, "timestampType", lambda: {it["timestampType"]: it["timestamp"]})
        del it["timestamp"]
        more = {name: it.pop(name) for name in ("endTxnMarker", "coordinatorEpoch") if name in it}
        key, value = _text(it, "key"), _text(it, "value")
        for name in ("key", "value", "key_base64", "value_base64"):
            it.pop(name, None)
        it["headerKeys"] = f"[{names}]"
        it |= more
        it |= {name: text for name, text in (("key", key), ("payload", value)) if text is not None}
    if "currentTxnFirstOffset" in it:
        it["currentTxnFirstOffset"] = _optional(it["currentTxnFirstOffset"])
    words = " ".join(f"{name}: {_word(value)}" for name, value in it.items())
    return f"| {words}" if kind == "record" else words


def _with(it: dict[str, Any], name: str, instead: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    pairs = [list(instead().items()) if key == name else [(key, value)] for key, value in it.items()]
    return dict(pair for each in pairs for pair in each)


def _optional(value: int | None) -> str:
    return "OptionalLong.empty" if value is None else f"OptionalLong[{value}]"


def _word(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _text(it: dict[str, Any], name: str) -> str | None:
    if f"{name}_base64" in it:
        return base64.b64decode(it[f"{name}_base64"]).decode(errors="replace")
    found = it.get(name)
    return found if found is None else str(found)


def test_each_object_of_json_says_what_the_line_of_text_says(logs: Path) -> None:
    text, told = dumped(every_file(logs), content=True)
    objects, _ = dumped(every_file(logs), content=True, as_json=True)
    assert told == []
    lines = [as_text(json.loads(line)) for line in objects.splitlines()]
    assert "\n".join(lines) + "\n" == text.decode()
    kinds = {json.loads(line)["type"] for line in objects.splitlines()}
    assert kinds == {"file", "log", "batch", "record", "entry", "empty", "property"}


# -- what is wanted ------------------------------------------------------------------------------------


def shown(path: Path, **wanted: Any) -> tuple[list[int], list[int]]:
    """Base offsets of the batches, and offsets of the records, that are shown."""
    lines, told = dumped([path], as_json=True, **wanted)
    assert told == []
    found = [json.loads(line) for line in lines.splitlines()]
    return (
        [each["baseOffset"] for each in found if each["type"] == "batch"],
        [each["offset"] for each in found if each["type"] == "record"],
    )


@pytest.mark.parametrize("topic", ["plain", "zstd"])
@pytest.mark.parametrize("by_time", [False, True])
def test_only_records_between_limits_are_shown_with_their_batches(
    logs: Path, topic: str, by_time: bool
) -> None:
    first, end = (NOW + 17, NOW + 32) if by_time else (17, 32)
    limits = {"first_time": first, "end_time": end} if by_time else {"first_offset": first, "end_offset": end}
    assert shown(log_of(logs, topic), records=True, **limits) == ([10, 20, 30], list(range(17, 32)))
    assert shown(log_of(logs, topic), **limits) == ([10, 20, 30], [])


def test_only_index_entries_between_limits_are_shown(logs: Path) -> None:
    path = log_of(logs).with_suffix(".index")
    lines, _ = dumped([path], first_offset=20, end_offset=40, as_json=True)
    assert [json.loads(line)["offset"] for line in lines.splitlines()[1:]] == [29, 39]


def test_of_a_log_no_more_than_wanted_is_looked_at(logs: Path) -> None:
    size = json.loads(dumped([log_of(logs)], as_json=True)[0].splitlines()[2])["size"]
    assert shown(log_of(logs), max_bytes=size) == ([0], [])
    assert shown(log_of(logs), max_bytes=size - 1) == ([], [])


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize("limits", [{}, {"first_offset": 17, "end_offset": 32}])
def test_little_room_for_lines_and_bytes_changes_nothing(
    logs: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, as_json: bool, limits: dict[str, int]
) -> None:
    wanted = Wanted(content=True, as_json=as_json, **limits)
    expected, _ = dumped(every_file(logs), content=True, as_json=as_json, **limits)
    monkeypatch.setattr(batches, "_WINDOW", 100)
    with (tmp_path / "lines").open("wb") as out:
        report = Report(out.fileno(), pytest.fail, wanted)
        report.out = np.empty(1100, np.uint8)
        for path in every_file(logs):
            show(path, wanted, report)
        report.flush()
    assert (tmp_path / "lines").read_bytes() == expected


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("00000000000000000012-0000000003.checkpoint", b"Snapshot end offset: 12, epoch: 3"),
        ("bootstrap.checkpoint", b"KRaft bootstrap snapshot"),
    ],
)
def test_snapshots_of_a_controller_are_shown_as_logs(
    logs: Path, tmp_path: Path, name: str, line: bytes
) -> None:
    shutil.copy(log_of(logs), tmp_path / name)
    lines, _ = dumped([tmp_path / name], content=True)
    expected, _ = dumped([log_of(logs)], content=True)
    assert lines.split(b"\n")[1] == line
    assert lines.split(b"\n")[2:] == expected.split(b"\n")[2:]


# -- damage --------------------------------------------------------------------------------------------


def sealed(data: bytearray, start: int = 0) -> bytearray:
    """The bytes with the checksum of the batch that begins there made right again."""
    end = start + 12 + struct.unpack_from(">i", data, start + 8)[0]
    struct.pack_into(">I", data, start + 17, google_crc32c.value(bytes(data[start + 21 : end])))
    return data


def _bit(at: int) -> Callable[[bytearray], bytearray]:
    def change(data: bytearray) -> bytearray:
        data[at] ^= 1
        return data

    return change


def _number(at: int, form: str, number: int, seal: bool = False) -> Callable[[bytearray], bytearray]:
    def change(data: bytearray) -> bytearray:
        struct.pack_into(form, data, at, number)
        return sealed(data) if seal else data

    return change


DAMAGE: Final[dict[str, tuple[str, str, Callable[[bytearray], bytearray], str]]] = {
    "a bit of a record": ("plain", ".log", _bit(70), "batch at position 0: the checksum does not fit the bytes"),
    "a bit of compressed records": ("zstd", ".log", _bit(90), "batch at position 0: the checksum does not fit"),
    "a size of 0": ("plain", ".log", _number(8, ">i", 0), "batch at position 0: the size field is impossible"),
    "a size of 2 GiB": ("plain", ".log", _number(8, ">i", 2**31 - 13), "batch at position 0: the bytes end inside"),
    "message format 1": ("plain", ".log", _number(16, ">b", 1), "batch at position 0: the magic is not 2"),
    "too many records": ("plain", ".log", _number(57, ">i", 11, True), "fewer records than the header declares"),
    "too few records": ("zstd", ".log", _number(57, ">i", 9, True), "bytes remain behind the declared number"),
    "an unknown codec": ("plain", ".log", _number(21, ">h", 7, True), "batch at position 0: 7 is not a valid Codec"),
    "a stream of another codec": ("plain", ".log", _number(21, ">h", 1, True), "batch at position 0: gzip stream"),
    "a record that is too long": ("plain", ".log", _number(61, ">B", 0x7E, True), "position "),
    "a negative offset": ("plain", ".log", _number(0, ">q", -5), "batch at position 0: an offset is negative"),
    "a cut": ("plain", ".log", lambda data: data[:-1], ": the bytes end inside a batch"),
    "an index of another offset": ("plain", ".index", _bit(3), "entry 0: expected last offset 19"),
    "an index of another position": ("plain", ".index", _bit(7), "entry 0: expected a batch at position"),
    "half an entry of an index": ("plain", ".index", lambda data: data[:-1], "the bytes end inside an entry"),
    "a time index of another time": ("plain", ".timeindex", _bit(7), "entry 0: expected timestamp"),
    "a time index of another offset": ("plain", ".timeindex", _bit(11), "entry 0: expected the last offset of a batch"),
    "aborted transactions of another version": ("plain", ".txnindex", _bit(1), "entry 0: expected version 0, found 1"),
    "a bit of a snapshot": ("plain", ".snapshot", _bit(20), "expected checksum"),
    "half a snapshot": ("plain", ".snapshot", lambda data: data[:-1], "expected 1 entries as declared"),
    "a checkpoint of words": ("plain", "-checkpoint", lambda data: bytearray(b"0\n1\na b\n"), "line 3: expected"),
    "no topic": ("plain", ".metadata", lambda data: bytearray(b"version: 0\n"), "line 2: expected"),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGE)
def test_what_is_wrong_is_told_with_its_place(logs: Path, tmp_path: Path, name: str) -> None:
    topic, suffix, change, expected = DAMAGE[name]
    path = copied(
        next(each for each in sorted((logs / f"{topic}-0").iterdir()) if each.name.endswith(suffix)), tmp_path
    )
    assert dumped([path], only_check=True) == (b"", [])
    path.write_bytes(change(bytearray(path.read_bytes())))
    for wanted in ({"only_check": True}, {"content": True}):
        _, told = dumped([path], **wanted)
        assert told
        assert told[0].startswith(f"{path}: ")
        assert expected in told[0]


@pytest.mark.parametrize(("suffix", "first"), [(".log", 16), (".snapshot", 0)])
def test_a_bit_that_a_checksum_guards_is_missed_nowhere(
    logs: Path, tmp_path: Path, suffix: str, first: int
) -> None:
    path = copied(
        next(path for path in sorted((logs / "zstd-0").glob(f"*{suffix}")) if path.stat().st_size > 20),
        tmp_path,
    )
    good = path.read_bytes()
    for at in range(first, min(len(good), 200)):
        path.write_bytes(_bit(at)(bytearray(good)))
        assert dumped([path], only_check=True)[1], at


@pytest.mark.parametrize(
    "name", ["a bit of a record", "message format 1", "too many records", "a stream of another codec"]
)
def test_what_is_behind_a_damaged_batch_is_shown(logs: Path, tmp_path: Path, name: str) -> None:
    path = copied(log_of(logs), tmp_path)
    path.write_bytes(DAMAGE[name][2](bytearray(path.read_bytes())))
    lines, told = dumped([path], records=True)
    assert len(told) == 1
    assert b"\nbaseOffset: 10 " in lines
    assert b"\n| offset: 59 " in lines
    assert b"invalid bytes" not in lines


def test_bytes_behind_the_last_batch_are_counted_as_kafkas_tool_does(logs: Path, tmp_path: Path) -> None:
    path = copied(log_of(logs), tmp_path)
    path.write_bytes(path.read_bytes() + bytes(5))
    lines, told = dumped([path])
    assert lines.endswith(b"\nFound 5 invalid bytes at the end of 00000000000000000000.log\n")
    assert len(told) == 1


def test_a_batch_that_becomes_too_large_is_not_decompressed(logs: Path, tmp_path: Path) -> None:
    path = copied(log_of(logs, "zstd"), tmp_path)
    records = bytes(cramjam.zstd.compress(bytes(batches.LARGEST_BATCH + 1)))
    header = bytearray(path.read_bytes()[:61])
    struct.pack_into(">i", header, 8, 49 + len(records))
    path.write_bytes(sealed(header + records))
    _, told = dumped([path], records=True)
    assert [each for each in told if "becomes more than 268435456 bytes" in each] == told


def test_a_record_whose_line_may_become_too_large_is_not_shown(
    logs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    wanted = Wanted(content=True)
    with open(os.devnull, "wb") as nowhere:
        report = Report(nowhere.fileno(), told.append, wanted)
        report.out = np.empty(1100, np.uint8)
        # The line of a batch has room, and that of a record none.
        monkeypatch.setattr(batches, "LARGEST_LINE", 500)
        show(log_of(logs), wanted, report)
    assert report.problems > 1
    assert "batch at position 0: expected records whose lines take at most 500 bytes" in told[0]


def test_an_index_without_its_log_is_shown_and_told(logs: Path, tmp_path: Path) -> None:
    path = copied(log_of(logs).with_suffix(".index"), tmp_path)
    path.with_suffix(".log").unlink()
    lines, told = dumped([path])
    assert b"\noffset: 19 position: " in lines
    assert told == [f"{path}: cannot be compared with 00000000000000000000.log: No such file or directory"]


def test_many_problems_of_a_file_are_counted(logs: Path, tmp_path: Path) -> None:
    path = copied(log_of(logs).with_suffix(".index"), tmp_path)
    path.write_bytes(b"".join(struct.pack(">ii", number, 1) for number in range(1, 1001)))
    _, told = dumped([path], only_check=True)
    assert len(told) == 101
    assert told[-1] == f"{path}: 900 more problems are not shown"


@pytest.mark.parametrize("name", ["unknown.txt", "missing.log"])
def test_a_file_that_cannot_be_shown_is_told(tmp_path: Path, name: str) -> None:
    (tmp_path / "unknown.txt").touch()
    _, told = dumped([tmp_path / name])
    assert len(told) == 1


def test_a_fifo_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "0.log")
    _, told = dumped([tmp_path / "0.log"])
    assert told == [f"{tmp_path}/0.log: expected a regular file, found a FIFO"]


def test_a_directory_without_such_files_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidNameError):
        list(files_of([str(tmp_path)]))


# -- anything at all -----------------------------------------------------------------------------------

NUMBERS: Final = (0, 1, -1, 13, 14, 48, 49, 2**15, 2**31 - 1, -(2**31), 2**62, 2**63 - 1, -(2**63))


@pytest.fixture(scope="module")
def contents(logs: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in every_file(logs) if path.stat().st_size}


@st.composite
def damaged(draw: st.DrawFn, data: bytes, may_seal: bool) -> bytes:
    changed = bytearray(data)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, min(len(changed) - 1, 200)) | st.integers(0, len(changed) - 1))
        match draw(st.sampled_from(("bytes", "number", "cut", "insert"))):
            case "bytes":
                some = draw(st.binary(min_size=1, max_size=8))
                changed[at : at + len(some)] = some
            case "number":
                form = draw(st.sampled_from((">q", ">i", ">h")))
                size = struct.calcsize(form)
                number = draw(st.sampled_from(NUMBERS)) & (1 << 8 * size) - 1
                changed[at : at + size] = number.to_bytes(size, "big")
            case "cut":
                del changed[at + 1 :]
            case "insert":
                changed[at:at] = draw(st.binary(max_size=40))
    if may_seal and draw(st.booleans()):
        with contextlib.suppress(struct.error):
            sealed(changed)
    return bytes(changed)


@given(draws=st.data())
def test_no_damage_ends_a_dump(logs: Path, contents: dict[Path, bytes], draws: st.DataObject) -> None:
    """Nothing is raised, and it comes to an end."""
    path = draws.draw(st.sampled_from(sorted(contents)))
    data = draws.draw(damaged(contents[path], path.suffix == ".log"))
    place = logs.parent / "damaged"
    other = copied(path, place) if path.parent != logs else place / path.name
    other.parent.mkdir(parents=True, exist_ok=True)
    other.write_bytes(data)
    wanted = draws.draw(st.sampled_from(list(_forms())))
    lines, _ = dumped([other], **wanted)
    if wanted.get("as_json"):
        assert all(isinstance(json.loads(line), dict) for line in lines.splitlines())
    if wanted.get("only_check"):
        assert lines == b""


def _forms() -> Iterator[dict[str, Any]]:
    yield {}
    yield {"records": True, "first_offset": 15, "end_time": NOW + 40}
    yield {"content": True}
    yield {"content": True, "as_json": True}
    yield {"content": True, "metadata": False}
    yield {"only_check": True}
