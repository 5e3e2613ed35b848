"""Kafka's dump tool finds no fault in any file that the engine writes.

Transaction indexes and producer snapshots of the engine's are dumped in test_adopt.py, where a broker's
transactions make it write some.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from broker_written import Written
from engine_written import WORKLOAD, expected, write_and_close, write_and_die
from kafka_broker import complaints, dump, files_of

INDEX_ENTRY = {".index": 8, ".timeindex": 12}


@pytest.fixture(scope="module", params=["clean", "killed"])
def backing(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("dump") / "backing"
    return write_and_close(root) if request.param == "clean" else write_and_die(root)


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_and_close(tmp_path_factory.mktemp("dump") / "backing")


def all_files(backing: Path) -> list[Path]:
    return [path for topic in WORKLOAD for path in files_of(backing / "logs" / f"{topic}-0")]


def indexes(backing: Path) -> list[Path]:
    return [path for path in all_files(backing) if path.suffix in INDEX_ENTRY]


def sections(output: str) -> Iterator[tuple[Path, list[str]]]:
    """What the tool printed of each file."""
    for section in output.split("Dumping ")[1:]:
        name, *lines = section.splitlines()
        yield Path(name), lines


def test_every_file_is_dumped_without_complaint(backing: Path) -> None:
    files = all_files(backing)
    output = dump(files, "--deep-iteration", "--print-data-log")
    assert complaints(output) == []
    assert [name for name, _ in sections(output)] == files


def test_the_dump_shows_every_record_that_was_appended(backing: Path) -> None:
    for topic, script in WORKLOAD.items():
        files = [path for path in files_of(backing / "logs" / f"{topic}-0") if path.suffix == ".log"]
        offsets = re.findall(r"^\| offset: (\d+) ", dump(files, "--deep-iteration"), re.MULTILINE)
        assert list(map(int, offsets)) == list(range(len(expected(script)))), topic


def test_the_indexes_agree_with_the_logs(backing: Path) -> None:
    assert complaints(dump(indexes(backing), "--verify-index-only")) == []


def test_the_indexes_pass_the_sanity_check(clean: Path) -> None:
    files = indexes(clean)
    output = dump(files, "--index-sanity-check")
    assert complaints(output) == []
    for path, lines in sections(output):
        assert lines in ([f"{path} passed sanity check."], [f"{path} is empty."]), path


def test_after_a_clean_stop_every_index_is_trimmed_to_its_entries(clean: Path) -> None:
    """The tool stops at an entry of zeros without a word; a broker that sees the marker believes it."""
    for path, lines in sections(dump(indexes(clean))):
        entries = [line for line in lines if re.match(r"(offset|timestamp): ", line)]
        assert len(entries) * INDEX_ENTRY[path.suffix] == path.stat().st_size, path


def test_the_workload_has_several_segments_with_index_entries(clean: Path) -> None:
    """Without them the tests above would find no fault in nothing."""
    folder = clean / "logs" / "segments-0"
    assert len(list(folder.glob("*.log"))) >= 3
    assert all(path.stat().st_size >= 10 * 8 for path in sorted(folder.glob("*.index"))[:-1])


@pytest.mark.parametrize(
    ("suffix", "position"),
    [
        (".log", 30),
        (".log", -1),
        (".index", 3),
        (".index", 7),
        (".timeindex", 7),
        (".timeindex", 11),
        (".snapshot", 5),
    ],
)
def test_one_wrong_bit_is_complained_about(
    written_by_broker: Written, tmp_path: Path, suffix: str, position: int
) -> None:
    """The tests above can fail. On a broker's own files, which have no fault."""
    folder = written_by_broker.copy("clean", tmp_path / "backing") / "logs" / "codecs-0"
    files = files_of(folder)
    assert complaints(dump(files, "--deep-iteration")) == []
    damaged = [path for path in files if path.suffix == suffix and path.stat().st_size][-1]
    data = bytearray(damaged.read_bytes())
    data[position] ^= 1
    damaged.write_bytes(data)
    assert complaints(dump(files, "--deep-iteration")) != []
