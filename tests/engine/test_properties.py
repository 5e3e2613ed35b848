"""Java properties files: the rules of their reader, and that what is written is read back.

No line of KAFKA_CASES is about them; the text of `meta.properties` is in test_metadata.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topicfs.engine.errors import CorruptCheckpointError
from topicfs.engine.files import properties
from topicfs.engine.files.properties import read_properties, write_properties


def read(tmp_path: Path, content: bytes) -> dict[str, str]:
    path = tmp_path / "a.properties"
    path.write_bytes(content)
    return read_properties(path)


@pytest.mark.parametrize(
    ("content", "values"),
    [
        (b"", {}),
        (b"a=b", {"a": "b"}),
        (b"a=b\n", {"a": "b"}),
        (b"a : b\n", {"a": "b"}),
        (b"a b\n", {"a": "b"}),
        (b"a\t\f b\n", {"a": "b"}),
        (b"  \ta = b c  \n", {"a": "b c  "}),
        (b"a\n", {"a": ""}),
        (b"a=\n", {"a": ""}),
        (b"=b\n", {"": "b"}),
        (b"a==b\n", {"a": "=b"}),
        (b"a = = b\n", {"a": "= b"}),
        (b"a  :  =b\n", {"a": "=b"}),
        (b"a=b=c:d\n", {"a": "b=c:d"}),
        (b"a=1\na=2\n", {"a": "2"}),
        (b"a=1\rb=2\r\nc=3", {"a": "1", "b": "2", "c": "3"}),
        (b"\n \t\n\f\na=b\n", {"a": "b"}),
        (b"# a=1\n! b=2\n  # c=3\nd=4 # no comment\n", {"d": "4 # no comment"}),
        (b"# no continuation \\\na=1\n", {"a": "1"}),
    ],
)
def test_lines_separators_and_comments(tmp_path: Path, content: bytes, values: dict[str, str]) -> None:
    assert read(tmp_path, content) == values


@pytest.mark.parametrize(
    ("content", "values"),
    [
        (b"a=b\\\nc", {"a": "bc"}),
        (b"a=b, \\\r\n   \tc\n", {"a": "b, c"}),
        (b"a=b\\\n#c\n", {"a": "b#c"}),
        (b"a\\\n=b\n", {"a": "b"}),
        (b"a=b\\\\\nc=d\n", {"a": "b\\", "c": "d"}),
        (b"a=b\\\\\\\nc=d\n", {"a": "b\\c=d"}),
        (b"a=b\\\n\nc=d\n", {"a": "b", "c": "d"}),
        (b"a=b\\", {"a": "b"}),
        (b"a=b\\\n", {"a": "b"}),
        (b"\\\n#a=b\nc=d\n", {"c": "d"}),
        (b"\\\n\nc=d\n", {"c": "d"}),
    ],
)
def test_backslash_at_the_end_continues_a_line(
    tmp_path: Path, content: bytes, values: dict[str, str]
) -> None:
    assert read(tmp_path, content) == values


@pytest.mark.parametrize(
    ("content", "values"),
    [
        (rb"a\=b\:c\ d=e", {"a=b:c d": "e"}),
        (rb"\#a=\!b", {"#a": "!b"}),
        (rb"a=\ b", {"a": " b"}),
        (rb"a=1\t2\n3\r4\f5\\6\q7\"", {"a": '1\t2\n3\r4\f5\\6q7"'}),
        (rb"\u0061=\u00e9\u4E2D", {"a": "é中"}),
        (rb"a=\uD83D\uDE00", {"a": "😀"}),
        (rb"a=\uD83Dx", {"a": "\ud83dx"}),
        (rb"a=\\u0061", {"a": r"\u0061"}),
        (rb"a=\U0061", {"a": "U0061"}),
        (b"a=\xe9\xff", {"a": "éÿ"}),
        (b"a=\x85b\xa0c", {"a": "\x85b\xa0c"}),
    ],
)
def test_escapes_and_bytes(tmp_path: Path, content: bytes, values: dict[str, str]) -> None:
    assert read(tmp_path, content) == values


@pytest.mark.parametrize("broken", [rb"a=\u", rb"a=\u12", rb"a=\u12g4", rb"\uzzzz=a", b"a=\\u00\\\n"])
def test_broken_escape_is_refused_with_path_and_line(tmp_path: Path, broken: bytes) -> None:
    with pytest.raises(CorruptCheckpointError, match=r"a\.properties: line 3: expected 4 hexadecimal digits"):
        read(tmp_path, b"x=y\n\n" + broken)


def test_missing_file_is_the_operating_systems_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_properties(tmp_path / "a.properties")


def test_file_above_the_bound_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CorruptCheckpointError, match="at most 1048576 bytes, found 1048577"):
        read(tmp_path, b"a" * (properties.MAX_BYTES + 1))


@pytest.mark.parametrize("pattern", [b"a\\\n", b"\\", b"\\\\\\\n", b" ", b"=:", b"\\u0041"])
def test_largest_file_of_any_pattern_is_read_in_no_time(tmp_path: Path, pattern: bytes) -> None:
    start = time.process_time()
    read(tmp_path, pattern * (properties.MAX_BYTES // len(pattern)))
    assert time.process_time() - start < 3


def test_written_file_is_comment_date_and_values_in_order(tmp_path: Path) -> None:
    path = tmp_path / "a.properties"
    write_properties(path, {"version": "1", "node.id": "0"}, clock=lambda: 1762598400000)
    assert path.read_bytes() == b"#\n#Sat Nov 08 10:40:00 UTC 2025\nversion=1\nnode.id=0\n"
    write_properties(path, {}, comment="two\nlines é", clock=lambda: 0)
    assert path.read_bytes() == b"#two\n#lines \\u00E9\n#Thu Jan 01 00:00:00 UTC 1970\n"
    assert read_properties(path) == {}


def test_written_names_and_values_are_escaped_as_java_does(tmp_path: Path) -> None:
    path = tmp_path / "a.properties"
    write_properties(path, {"a b=c:#!": "  d =\t\n\r\f\\é😀\x01", "": ""}, clock=lambda: 0)
    assert path.read_bytes().splitlines()[2:] == [
        rb"a\ b\=c\:\#\!=\  d \=\t\n\r\f\\\u00E9\uD83D\uDE00\u0001",
        b"=",
    ]


@given(st.dictionaries(st.text(), st.text(), max_size=4), st.text())
def test_what_is_written_is_read_back(tmp_path_factory, values: dict[str, str], comment: str) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path_factory.getbasetemp() / "round-trip.properties"
    write_properties(path, values, comment)
    assert read_properties(path) == values
