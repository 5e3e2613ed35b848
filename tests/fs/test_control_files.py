"""Command files, called directly: no mount."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tree_bench import APPEND, TreeBench, array, lines, tree_bench

from topicfs.engine.errors import EngineError, InvalidSettingError
from topicfs.engine.settings.topic import Explained
from topicfs.fs import errors
from topicfs.fs.tree.config import Line, changes_of, read_line
from topicfs.fs.tree.control_files import LINE_LIMIT, LINES_LIMIT

CONFIG, START = "/topics/t/config", "/t-0/start"


@pytest.fixture
def place(tmp_path: Path) -> Iterator[TreeBench]:
    with tree_bench(tmp_path) as made:
        lines(made.create().partition, b"a", b"b", b"c")
        yield made


def own(place: TreeBench) -> dict[str, str]:
    return {name: value for name, value, source in place.store.explain("t") if source == "topic"}


def opened(place: TreeBench, path: str, flags: int = os.O_WRONLY) -> int:
    return place.files.open(path, flags).handle


def failing(call: Callable[[], object], kind: type[EngineError] = errors.BadInputError) -> str:
    with pytest.raises(kind) as caught:
        call()
    return str(caught.value)


# -- lines of a config ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("retention.ms=5", Line("retention.ms", "5", False)),
        ("  retention.ms = 5 \r", Line("retention.ms", "5", False)),
        ("retention.ms=5    # default", Line("retention.ms", "5", True)),
        ("retention.ms=5    # daemon:log.retention.hours", Line("retention.ms", "5", True)),
        ("retention.ms=5    # topic", Line("retention.ms", "5", False)),
        ("retention.ms=5\t# five", Line("retention.ms", "5", False)),
        ("retention.ms=default", Line("retention.ms", None, False)),
        ("retention.ms=", Line("retention.ms", None, False)),
        ("cleanup.policy=compact, delete", Line("cleanup.policy", "compact, delete", False)),
        ("cleanup.policy=      # topic", Line("cleanup.policy", "", False)),
        ("cleanup.policy=default", Line("cleanup.policy", None, False)),
        ("", None),
        (" \t\r", None),
        ("# retention.ms=5", None),
        ("  #", None),
    ],
)
def test_a_line_says_what_is_set(text: str, line: Line | None) -> None:
    assert read_line(text) == line


@pytest.mark.parametrize("text", ["retention.ms", "=5", "retention.ms # =5", "retention.ms: 5"])
def test_a_line_that_sets_nothing_is_refused(text: str) -> None:
    assert "expected name=value" in failing(lambda: read_line(text))


@pytest.mark.parametrize(
    "text", ["retention.ms=5#", "retention.ms=#", "retention.ms=5=5", "ms=default", "x=y"]
)
def test_a_setting_that_cannot_be_is_refused(text: str) -> None:
    failing(lambda: read_line(text), InvalidSettingError)


HOLDING = {
    "retention.ms": Explained("retention.ms", "5", "topic"),
    "segment.ms": Explained("segment.ms", "6", "default"),
}


@pytest.mark.parametrize(
    ("texts", "changes"),
    [
        (["retention.ms=5"], {}),
        (["retention.ms=6"], {"retention.ms": "6"}),
        (["retention.ms=default"], {"retention.ms": None}),
        (["segment.ms=6 # default"], {}),
        (["segment.ms=6 # daemon:log.roll.ms"], {}),
        (["segment.ms=6"], {"segment.ms": "6"}),
        (["segment.ms=6 # topic"], {"segment.ms": "6"}),
        (["segment.ms=7 # default"], {"segment.ms": "7"}),
        (["segment.ms=default"], {}),
        (["internal.segment.bytes=default"], {}),
        (["segment.ms=7", "segment.ms=8"], {"segment.ms": "8"}),
        (["segment.ms=7", "segment.ms=default"], {}),
        (["retention.ms=default", "retention.ms=5"], {}),
    ],
)
def test_only_what_differs_from_what_holds_is_changed(
    texts: list[str], changes: dict[str, str | None]
) -> None:
    found = [line for line in map(read_line, texts) if line is not None]
    assert changes_of(found, HOLDING) == changes


@given(st.text())
def test_any_text_is_a_line_nothing_or_refused(text: str) -> None:
    try:
        line = read_line(text)
    except (errors.BadInputError, InvalidSettingError):
        return
    assert line is None or text.lstrip().startswith(line.name)


@given(
    st.dictionaries(
        st.sampled_from(["retention.ms", "segment.ms", "delete.retention.ms", "file.delete.delay.ms"]),
        st.tuples(st.integers(1, 10**9).map(str), st.sampled_from(["topic", "default", "daemon:log.x"])),
    )
)
def test_what_is_read_changes_nothing_when_it_is_written(held: dict[str, tuple[str, str]]) -> None:
    holding = {name: Explained(name, *rest) for name, rest in held.items()}
    found = [
        read_line(f"{name}={value}".ljust(50) + f" # {source}") for name, value, source in holding.values()
    ]
    assert changes_of([line for line in found if line is not None], holding) == {}


# -- handles ----------------------------------------------------------------------------------------------


def test_a_line_may_come_in_pieces(place: TreeBench) -> None:
    file = opened(place, CONFIG)
    for piece in (b"retention.ms=50", b"00\nsegment", b".ms=", b"6000\n"):
        assert place.files.write(file, array(piece)) == len(piece)
    assert own(place) == {"retention.ms": "5000", "segment.ms": "6000"}


def test_a_refused_write_takes_back_what_came_through_its_open_file(place: TreeBench) -> None:
    place.append(CONFIG, b"segment.ms=6000\n")
    file = opened(place, CONFIG)
    place.files.write(file, array(b"segment.ms=7000\nretention.ms=5000\n"))
    place.files.write(file, array(b"segment.ms=8000\nretention.ms="))
    assert own(place) == {"segment.ms": "8000", "retention.ms": "5000"}
    failing(lambda: place.files.write(file, array(b"x\nsegment.ms=9000\nret")), InvalidSettingError)
    assert own(place) == {"segment.ms": "6000"}
    for _ in range(2):
        assert "open the file again" in failing(lambda: place.files.write(file, array(b"segment.ms=9000\n")))
    place.files.flush(file)
    place.files.release(file)
    assert own(place) == {"segment.ms": "6000"}


def test_what_is_taken_back_is_what_nobody_has_changed_since(place: TreeBench) -> None:
    file = opened(place, CONFIG)
    place.files.write(file, array(b"segment.ms=7000\nretention.ms=5000\n"))
    place.append(CONFIG, b"segment.ms=8000\n")
    failing(lambda: place.files.write(file, array(b"x\n")))
    assert own(place) == {"segment.ms": "8000"}


def test_what_was_synced_is_not_taken_back(place: TreeBench) -> None:
    file = opened(place, CONFIG)
    place.files.write(file, array(b"segment.ms=7000\n"))
    place.files.fsync(file, False)
    place.files.write(file, array(b"retention.ms=5000\n"))
    failing(lambda: place.files.write(file, array(b"x\n")))
    assert own(place) == {"segment.ms": "7000"}


def test_a_close_that_meets_half_a_line_takes_back_until_the_rest_comes(place: TreeBench) -> None:
    file = opened(place, CONFIG)
    place.files.write(file, array(b"segment.ms=7000\nretention"))
    failing(lambda: place.files.flush(file))
    assert own(place) == {}
    place.files.write(file, array(b".ms=50"))
    assert own(place) == {}
    place.files.flush(file)
    assert own(place) == {"segment.ms": "7000", "retention.ms": "50"}
    place.files.write(file, array(b"00\n"))
    assert own(place) == {"segment.ms": "7000", "retention.ms": "5000"}


def test_a_close_in_mid_line_takes_nothing_from_the_line(place: TreeBench) -> None:
    file = opened(place, START)
    place.files.write(file, array(b"1"))
    place.files.flush(file)
    place.files.flush(file)
    assert place.read(START) == b"1\n"
    place.files.write(file, array(b"\n"))
    assert place.read(START) == b"1\n"
    place.files.write(file, array(b"-"))
    failing(lambda: place.files.flush(file))
    place.files.write(file, array(b"1"))
    place.files.flush(file)
    assert place.read(START) == b"3\n"


def test_no_more_than_a_line_is_kept(place: TreeBench) -> None:
    file = opened(place, CONFIG)
    place.files.write(file, array(b"#" * LINE_LIMIT))
    assert "at most" in failing(lambda: place.files.write(file, array(b"#")))
    file = opened(place, CONFIG)
    place.files.write(file, array(b"retention.ms=5000\n"))
    assert "at most" in failing(
        lambda: [
            place.files.write(file, array(b"#" * 10_000 + b"\n")) for _ in range(LINES_LIMIT // 10_000 + 2)
        ]
    )
    assert own(place) == {}


def test_a_handle_reads_what_held_when_it_was_opened(place: TreeBench) -> None:
    file = opened(place, START, os.O_RDWR)
    place.files.write(file, array(b"2\n"))
    into = array(bytes(10)).copy()
    assert place.files.read(file, 0, into) == 2
    assert into[:2].tobytes() == b"0\n"
    only_written = opened(place, START, APPEND)
    failing(lambda: place.files.read(only_written, 0, into), errors.NotReadableError)


def test_only_to_nothing_is_a_command_file_cut(place: TreeBench) -> None:
    for path in (CONFIG, START):
        place.files.truncate(path, 0, None)
        place.files.truncate("", 0, opened(place, path))
        failing(lambda path=path: place.files.truncate(path, 1, None), errors.AppendOnlyError)
    assert place.read(START) == b"0\n"


def test_a_reason_is_told_until_a_setting_is_accepted_or_the_topic_is_gone(place: TreeBench) -> None:
    for _ in range(2):
        file = opened(place, CONFIG)
        failing(lambda file=file: place.files.write(file, array(b"retention.ms=x\n")), InvalidSettingError)
        assert place.read(CONFIG).splitlines()[-1].endswith(b"at least -1, found 'x'")
        file = opened(place, CONFIG)
        place.files.write(file, array(b"# still\n"))
        assert b"refused" in place.read(CONFIG)
        place.files.write(file, array(b"retention.ms=5000\n"))
        assert b"refused" not in place.read(CONFIG)
    failing(lambda: place.files.write(opened(place, CONFIG), array(b"x\n")))
    place.delete("/topics/t")
    place.files.mkdir("/topics/t", 0o755)
    assert b"refused" not in place.read(CONFIG)


def test_a_start_offset_is_written_down_at_once(place: TreeBench) -> None:
    file = opened(place, START)
    place.files.write(file, array(b"2\n"))
    assert (place.store.logs / "log-start-offset-checkpoint").read_bytes() == b"0\n1\nt 0 2\n"
    place.files.release(file)
    place.store.abandon()
    place.open()
    assert place.read(START) == b"2\n"
