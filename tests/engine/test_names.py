"""Names of topics, directories and files: KAFKA_FORMAT 1.2, 1.3, and the naming lines of KAFKA_CASES N.

Not here, but with the store: creating and deleting the longest topic on disk, choosing among directories.
"""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topicfs.engine.errors import InvalidNameError
from topicfs.engine.format import paths
from topicfs.engine.format.paths import (
    deletion_directory,
    offset_of_file,
    parse_partition_directory,
    partition_directory,
    validate_topic,
)
from topicfs.engine.record import MAX_INT32, MAX_INT64

UUID = "0123456789abcdef0123456789abcdef"
TOPICS = st.text(
    alphabet="abcXYZ0189._-", min_size=1, max_size=244
).filter(lambda topic: topic not in (".", ".."))  # fmt: skip


@pytest.mark.parametrize("topic", ["a", "...", "a.b_c-D9", "-", "x" * 249, "__consumer_offsets", "t-0"])
def test_topic_of_kafkas_letters_is_valid(topic: str) -> None:
    assert validate_topic(topic) == topic


@pytest.mark.parametrize(
    ("topic", "reason"),
    [
        ("", "other than"),
        (".", "other than"),
        ("..", "other than"),
        ("x" * 250, "at most 249 characters, found 250"),
        ("a b", "found ' '"),
        ("a/b", "found '/'"),
        ("a\n", r"found '\\n'"),
        ("a\0", r"found '\\x00'"),
        ("é", "found 'é'"),
        ("x٣", "found '٣'"),
    ],
)
def test_other_topic_is_refused_with_the_reason(topic: str, reason: str) -> None:
    with pytest.raises(InvalidNameError, match=reason):
        validate_topic(topic)
    with pytest.raises(InvalidNameError, match=reason):
        partition_directory(topic, 0)
    with pytest.raises(InvalidNameError, match=reason):
        deletion_directory(topic, 0)


def test_partition_directory_is_topic_dash_number() -> None:
    assert partition_directory("orders", 0) == "orders-0"
    assert partition_directory("a-b.c", MAX_INT32) == "a-b.c-2147483647"


@pytest.mark.parametrize("partition", [-1, MAX_INT32 + 1])
def test_partition_outside_int32_is_refused(partition: int) -> None:
    with pytest.raises(InvalidNameError, match=f"found {partition}"):
        partition_directory("orders", partition)
    with pytest.raises(InvalidNameError, match=f"found {partition}"):
        deletion_directory("orders", partition)


def test_partition_directory_that_no_file_system_holds_is_refused() -> None:
    assert len(partition_directory("x" * 249, 99999)) == 255
    with pytest.raises(InvalidNameError, match="at most 255 characters, found 256"):
        partition_directory("x" * 249, 100000)


@given(TOPICS, st.integers(0, MAX_INT32))
def test_partition_directory_is_parsed_back(topic: str, partition: int) -> None:
    assert parse_partition_directory(partition_directory(topic, partition)) == (topic, partition, "")


@given(TOPICS, st.integers(0, MAX_INT32))
def test_deletion_directory_is_parsed_back(topic: str, partition: int) -> None:
    found = parse_partition_directory(deletion_directory(topic, partition))
    assert topic.startswith(found.topic)
    assert (found.partition, found.suffix) == (partition, "-delete")


@pytest.mark.parametrize("length", [1, 204, 205, 206, 249])
def test_deletion_directory_has_at_most_255_characters_and_keeps_its_end(length: int) -> None:
    name = deletion_directory("x" * length, 123)
    assert re.fullmatch(r"x+-123\.[0-9a-f]{32}-delete", name)
    assert len(name) == min(length + 4 + 33 + 7, 255)


def test_deletion_directory_is_new_at_each_call() -> None:
    assert deletion_directory("orders", 0) != deletion_directory("orders", 0)


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("topic-0", ("topic", 0, "")),
        ("a-b-12", ("a-b", 12, "")),
        ("--1", ("-", 1, "")),
        ("a.b-0", ("a.b", 0, "")),
        (f"a.b-0.{UUID}-delete", ("a.b", 0, "-delete")),
        (f"a-delete-3.{UUID}-stray", ("a-delete", 3, "-stray")),
        (f"{'x' * 249}-7.{UUID}-future", ("x" * 249, 7, "-future")),
        (f"t.{UUID}-delete-1", (f"t.{UUID}-delete", 1, "")),
    ],
)
def test_directory_name_is_split_at_the_last_dash_and_dot(name: str, parts: tuple[str, int, str]) -> None:
    assert parse_partition_directory(name) == parts


@pytest.mark.parametrize(
    "name",
    [
        "",
        "-",
        "topic",
        "-0",
        "topic-",
        "topic-a",
        "topic--1x",
        "topic-+1",
        "topic-1 ",
        "topic-1\n",
        "topic-1_0",
        "topic-٣",
        "topic-2147483648",
        "topic-" + "9" * 5000,
        "lost+found",
        ".-0",
        "..-0",
        "a b-0",
        "x" * 250 + "-0",
        "topic-0.stray",
        "topic-0-delete",
        "topic-0.-delete",
        "topic-0.backup-delete",
        f"topic-0.{UUID.upper()}-delete",
        f"topic-0.{UUID}0-delete",
        f"topic-0.{UUID}-deleted",
        f"topic-0{UUID}-future",
        f"topic.{UUID}-future",
        f"-0.{UUID}-stray",
        f"topic-x.{UUID}-stray",
    ],
)
def test_other_directory_name_is_refused_and_named(name: str) -> None:
    with pytest.raises(InvalidNameError) as caught:
        parse_partition_directory(name)
    assert repr(name[:80])[:-1] in str(caught.value)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("name", ["t-01", "t-00", f"t-007.{UUID}-delete"])
def test_leading_zero_of_a_partition_is_refused_lest_two_names_mean_one(name: str) -> None:
    with pytest.raises(InvalidNameError, match=rf"'{name}'.*without leading zeros"):
        parse_partition_directory(name)


@pytest.mark.parametrize(
    ("name", "suffix"),
    [
        (paths.log_file, ".log"),
        (paths.index_file, ".index"),
        (paths.time_index_file, ".timeindex"),
        (paths.transaction_index_file, ".txnindex"),
        (paths.snapshot_file, ".snapshot"),
    ],
)
def test_file_name_is_the_offset_with_20_digits_and_is_parsed_back(name, suffix: str) -> None:  # type: ignore[no-untyped-def]
    assert name(0) == "0" * 20 + suffix
    assert name(MAX_INT64) == "09223372036854775807" + suffix
    for offset in (0, 5, MAX_INT64):
        assert offset_of_file(name(offset)) == offset
        assert offset_of_file(name(offset) + ".deleted") == offset
    for offset in (-1, MAX_INT64 + 1):
        with pytest.raises(InvalidNameError, match=f"found {offset}"):
            name(offset)


@pytest.mark.parametrize(
    "name",
    ["", ".log", "00000000000000000005", "5.log", "+0000000000000000005.log", "0000000000000000000a.log",
     "000000000000000000005.log", "09223372036854775808.log", "99999999999999999999.log",
     "0000000000000000000٣.log", "leader-epoch-checkpoint", "partition.metadata"],
)  # fmt: skip
def test_file_name_without_a_canonical_offset_is_refused_and_named(name: str) -> None:
    with pytest.raises(InvalidNameError, match=f"found '{re.escape(name)}'"):
        offset_of_file(name)


def test_an_offset_is_found_before_its_suffix_alone() -> None:
    name = paths.log_file(7)
    assert paths.offset_before(".log", name) == 7
    for other in (f"{name}.swap", "7.log", f"x{name}", paths.index_file(7), ".log"):
        assert paths.offset_before(".log", other) is None
