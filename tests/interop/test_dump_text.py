"""`topicfs dump` shows the text that Kafka's own dump tool prints, byte by byte."""

from __future__ import annotations

import random
from collections.abc import Iterable
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final

import pytest
from broker_written import Written
from dumping import dumped
from engine_written import write_and_close
from kafka_broker import dump_bytes, files_of

from topicfs import Record, Store

OPTIONS: Final[dict[tuple[str, ...], dict[str, Any]]] = {
    (): {},
    ("--deep-iteration",): {"records": True},
    ("--print-data-log",): {"content": True},
    ("--print-data-log", "--skip-record-metadata"): {"content": True, "metadata": False},
    ("--deep-iteration", "--max-bytes", "40000"): {"records": True, "max_bytes": 40_000},
}
ODD: Final = bytes.fromhex("61 0a 7f 80 8f 90 9f a0 bf c0 c2 df e0 e1 ed ef f0 f1 f4 f5 ff")
"""Bytes at which the rules of UTF-8 change."""


def odd_bytes(backing: Path) -> Path:
    """A topic whose keys, values and names of headers are UTF-8 only now and then."""
    chosen = random.Random(3)

    def odd() -> bytes:
        return bytes(chosen.choices(ODD, k=chosen.randrange(9)))

    with Store.open(backing, create=True) as store:
        partition = store.create("odd")
        for _ in range(4):
            partition.append(
                [
                    Record(odd(), odd(), 5, ((odd().decode("utf-8", "surrogateescape"), odd()),))
                    for _ in range(1000)
                ]
            )
    return backing


def partitions(logs: Path) -> Iterable[Path]:
    return (path for path in sorted(logs.iterdir()) if path.is_dir())


@pytest.fixture(scope="module")
def files(written_by_broker: Written, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    root = tmp_path_factory.mktemp("dump-text")
    backings = [
        written_by_broker.clean,
        written_by_broker.killed,
        write_and_close(root / "engine"),
        odd_bytes(root / "odd"),
    ]
    found = [path for backing in backings for logs in partitions(backing / "logs") for path in files_of(logs)]
    found += written_by_broker.clean.rglob("*.checkpoint")
    return [path for path in found if not ends_kafkas_tool(path)]


def ends_kafkas_tool(path: Path) -> bool:
    """Whether the tool breaks off there: at room that a broker has reserved in the index of an empty log."""
    return (
        path.suffix == ".index" and path.stat().st_size > 0 and path.with_suffix(".log").stat().st_size == 0
    )


@pytest.mark.parametrize("options", OPTIONS)
def test_each_line_is_the_one_of_kafkas_tool(files: list[Path], options: tuple[str, ...]) -> None:
    lines, problems = dumped(files, **OPTIONS[options])
    assert problems == []
    pairs = zip_longest(lines.split(b"\n"), dump_bytes(files, *options).split(b"\n"))
    assert [(ours, kafkas) for ours, kafkas in pairs if ours != kafkas][:3] == []


def test_the_files_have_something_of_everything(files: list[Path]) -> None:
    """Without it the test above would compare nothing."""
    lines, _ = dumped(files, content=True)
    for word in (
        *(f"compresscodec: {codec} ".encode() for codec in ("none", "gzip", "snappy", "lz4", "zstd")),
        *(
            b"endTxnMarker: COMMIT",
            b"endTxnMarker: ABORT",
            b"LogAppendTime: ",
            b"keySize: -1",
            b"valueSize: -1",
        ),
        *(b"isTransactional: true", b"sequence: 1", b"headerKeys: [name,", b"\nversion: 0 producerId: "),
        *(b"OptionalLong.empty lastTimestamp", b" lastTimestamp: ", b"\xef\xbf\xbd", b" is empty.\n"),
        *(b"KRaft bootstrap snapshot", b" LeaderChange: ", b" SnapshotHeader ", b" SnapshotFooter "),
        *(b"\nposition: ", b"\noffset: ", b"\ntimestamp: ", b"\nproducerId: ")[1:],
    ):
        assert word in lines, word
