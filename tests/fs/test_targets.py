"""Where lines go: one partition, or a topic's partitions by key, by turns, or as a line says."""

from __future__ import annotations

import errno
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from partition_opening import NOW
from tree_bench import APPEND, TreeBench, array, tree_bench

from topicfs.engine.errors import EngineError, InvalidRecordError, RecordTooLargeError
from topicfs.engine.inbox.routing import choose
from topicfs.engine.inbox.rows import NO_PARTITION
from topicfs.engine.partition.partition import Partition
from topicfs.engine.partition.remote import Remote
from topicfs.engine.segment import appender
from topicfs.fs.appending.key_writer import columns_of
from topicfs.fs.appending.targets import PartitionTarget, TopicTarget
from topicfs.fs.errors import BadInputError
from topicfs.fs.formats import Format
from topicfs.fs.inbox.data_files import Topic

# Kafka's own test vectors of murmur2, and what `toPositive(hash) % 5` makes of them.
HASHES = {b"21": -973932308, b"foobar": -790332482, b"a-little-bit-long-string": -985981536,
          b"a-little-bit-longer-string": -1486304829, b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
          b"abc": 479470107}  # fmt: skip


@pytest.fixture
def place(tmp_path: Path) -> Iterator[TreeBench]:
    with tree_bench(tmp_path) as made:
        for number in range(5):
            made.create("t", number)
        yield made


def values(place: TreeBench, number: int, topic: str = "t") -> list[bytes | None]:
    return [record.value for record in place.views(topic, number).partition.records()]


def all_values(place: TreeBench, topic: str = "t") -> dict[int, list[bytes | None]]:
    return {number: values(place, number, topic) for number in place.store.topics()[topic]}


def target(place: TreeBench, fmt: Format = Format.JSONL, topic: str = "t", size: int = 0) -> TopicTarget:
    numbers = place.store.topics()[topic]
    parts = [PartitionTarget(place.views(topic, number).writers, fmt, size) for number in numbers]
    return TopicTarget(parts, place.files.context.turns(topic))


def waits(place: TreeBench, topic: str = "t") -> bool:
    return any(place.views(topic, number).writers.queue.holds_lines for number in place.store.topics()[topic])


# -- by key -------------------------------------------------------------------------------------------------


def test_keys_are_routed_as_kafkas_producers_do(place: TreeBench) -> None:
    place.append("/topics/t/in.tsv", b"".join(key + b"\t" + key + b"\n" for key in HASHES))
    for key, hashed in HASHES.items():
        assert key in values(place, (hashed & 0x7FFFFFFF) % 5)


@settings(max_examples=30)
@given(st.lists(st.sampled_from([b"a", b"b", b"c", b"dd", b"eee"]), min_size=1, max_size=30))
def test_the_order_of_a_keys_records_is_kept(
    tmp_path_factory: pytest.TempPathFactory, keys: list[bytes]
) -> None:
    with tree_bench(tmp_path_factory.mktemp("order")) as made:
        for number in range(3):
            made.create("t", number)
        made.append("/topics/t/in.tsv", b"".join(b"%s\t%d\n" % (key, at) for at, key in enumerate(keys)))
        for key in set(keys):
            found = [
                record.value
                for number in range(3)
                for record in made.views("t", number).partition.records()
                if record.key == key
            ]
            assert found == [b"%d" % at for at, each in enumerate(keys) if each == key]


def test_the_hash_chooses_among_the_partitions_that_there_are(place: TreeBench) -> None:
    """regression: where numbers have gaps, keys were refused for partitions that nobody named"""
    for number in (2, 5, 11):
        place.create("gaps", number)
    place.append("/topics/gaps/in.tsv", b"".join(b"key%d\t%d\n" % (n, n) for n in range(60)))
    found = all_values(place, "gaps")
    assert sorted(itertools.chain(*found.values()), key=lambda v: int(v or b"")) == [
        b"%d" % n for n in range(60)
    ]
    assert all(found.values())


class _Cluster:
    """Stands for what appends to a partition of a cluster."""


def test_keys_go_where_the_clusters_producers_put_them_where_a_group_divides_its_partitions(
    place: TreeBench,
) -> None:
    """regression: they went to those partitions that a daemon has, so the records of a key lay in two of them"""
    place.store.links.counts = {"t": 6}
    for number in range(5):
        place.views("t", number).partition.log.remote = cast("Remote", _Cluster())
    assert place.store.links.targets("t") == ([0, 1, 2, 3, 4], 6)
    here = {key: number for key, hashed in HASHES.items() if (number := (hashed & 0x7FFFFFFF) % 6) < 5}
    made = Topic.of(place.store, "t", itertools.count())
    for key, hashed in HASHES.items():
        columns = columns_of(key, b"v", NOW)
        chosen, known, error = choose(
            columns, np.array([NO_PARTITION], np.int32), made.numbers, 0, made.count
        )
        assert chosen[0] == (hashed & 0x7FFFFFFF) % 6
        assert known == (key in here)
        assert (error is None) == (key in here)
        if error is not None:
            assert f"partition {chosen[0]} of 6 is another daemon's" in str(error)
    assert 0 < len(here) < len(HASHES)
    # One whose lines go to the cluster no more is another daemon's by now.
    place.views("t", 2).partition.log.remote = None
    assert place.store.links.targets("t") == ([0, 1, 3, 4], 6)


def test_a_local_topic_with_the_name_of_one_of_the_cluster_has_its_own_partitions_only(
    place: TreeBench,
) -> None:
    place.store.links.counts = {"t": 6}
    place.append("/topics/t/in.tsv", b"".join(key + b"\t" + key + b"\n" for key in HASHES))
    for key, hashed in HASHES.items():
        assert key in values(place, (hashed & 0x7FFFFFFF) % 5)


# -- by turns -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "line"), [("in.txt", b"%d\n"), ("in.tsv", b"\\N\t%d\n"), ("in.jsonl", b'{"value":"%d"}\n')]
)
def test_writes_without_a_key_go_to_one_partition_after_the_other(
    place: TreeBench, name: str, line: bytes
) -> None:
    """regression: each `echo >>` opens the file anew, and all began with the same partition"""
    for number in range(20):
        place.append(f"/topics/t/{name}", line % number)
    assert [len(found) for found in all_values(place).values()] == [4] * 5


def test_lines_of_one_write_stay_together(place: TreeBench) -> None:
    place.append("/topics/t/in.txt", b"a\nb\nc\n")
    assert sorted(all_values(place).values()) == [[], [], [], [], [b"a", b"b", b"c"]]


def test_keyed_lines_take_no_turn(place: TreeBench) -> None:
    made = target(place, Format.TSV)
    made.add(array(b"\\N\tone\n"))
    made.add(array(b"key\tkeyed\n"))
    made.add(array(b"\\N\ttwo\n"))
    places = {value: number for number, found in all_values(place).items() for value in found}
    assert places[b"two"] == (places[b"one"] + 1) % 5


# -- by name ------------------------------------------------------------------------------------------------


def test_a_line_may_name_its_partition_whatever_its_key(place: TreeBench) -> None:
    lines = b"".join(b'{"key":"k","value":"%d","partition":%d}\n' % (n, n) for n in range(5))
    place.append("/topics/t/in.jsonl", lines)
    assert all_values(place) == {n: [b"%d" % n] for n in range(5)}


def test_the_log_of_a_partition_does_not_mind_what_partition_a_line_names(place: TreeBench) -> None:
    place.append("/t-1/log.jsonl", b'{"value":"v","partition":77}\n')
    assert values(place, 1) == [b"v"]


# -- refusals -----------------------------------------------------------------------------------------------


def test_a_partition_that_is_not_there_is_refused_and_the_lines_before_it_are_kept(place: TreeBench) -> None:
    made = target(place)
    good = b'{"value":"good","partition":3}\n'
    lines = good + b'{"value":"bad","partition":5}\n' + b'{"value":"behind","partition":0}\n'
    assert made.add(array(lines)) == len(good)
    assert isinstance(made.refusal, InvalidRecordError)
    assert "partition 5 is not one of 0 to 4" in str(made.refusal)
    assert all_values(place) == {0: [], 1: [], 2: [], 3: [b"good"], 4: []}


def refusals() -> Iterator[tuple[bytes, type[EngineError]]]:
    yield b'{"value":7,"partition":0}\n', BadInputError
    yield b'{"value":"%s","partition":0}\n' % (b"x" * 3000), RecordTooLargeError
    yield b'{"value":"v","timestamp":99,"partition":0}\n', InvalidRecordError


@pytest.mark.parametrize(("bad", "error"), list(refusals()))
def test_what_is_refused_is_found_before_anything_behind_it_is_taken(
    place: TreeBench, bad: bytes, error: type[EngineError]
) -> None:
    place.store.configure("t", {"max.message.bytes": "2000", "message.timestamp.before.max.ms": "1000000"})
    good = b'{"value":"good","partition":4}\n'
    behind = b'{"value":"behind","partition":1}\n'
    made = target(place)
    assert made.add(array(good + bad + behind)) == len(good)
    assert isinstance(made.refusal, error)
    assert all_values(place) == {0: [], 1: [], 2: [], 3: [], 4: [b"good"]}


def test_the_first_of_several_refusals_counts(place: TreeBench) -> None:
    place.store.configure("t", {"message.timestamp.before.max.ms": "1000000"})
    good, late = b'{"value":"good","partition":4}\n', b'{"value":"v","timestamp":99,"partition":0}\n'
    unknown = b'{"value":"v","partition":9}\n'
    for lines, kind in ((good + late + unknown, "timestamp 99"), (good + unknown + late, "partition 9")):
        made = target(place)
        assert made.add(array(lines)) == len(good)
        assert kind in str(made.refusal)


def test_a_compacted_topic_wants_keys(place: TreeBench) -> None:
    place.store.configure("t", {"cleanup.policy": "compact"})
    for name, line in (("txt", b"v\n"), ("tsv", b"\\N\tv\n"), ("jsonl", b'{"value":"v"}\n')):
        for path in (f"/topics/t/in.{name}", f"/t-0/log.{name}"):
            handle = place.files.open(path, APPEND).handle
            with pytest.raises(InvalidRecordError, match="needs a key"):
                place.files.write(handle, array(line))
    place.append("/t-0/log.tsv", b"k\tv\n")
    assert values(place, 0) == [b"v"]


def test_all_are_taken_and_nothing_is_refused(place: TreeBench) -> None:
    made = target(place)
    lines = b'{"key":"a","value":"1"}\n{"key":"b","value":"2"}\n'
    assert made.add(array(lines)) == len(lines)
    assert made.refusal is None


# -- when the disk is full ----------------------------------------------------------------------------------


ONE_EACH = b"".join(b'{"value":"%d","partition":%d}\n' % (n, n) for n in range(5))


def busy_target(place: TreeBench) -> TopicTarget:
    """One that each partition has an append of, so that lines gather."""
    made = target(place, size=1 << 20)
    made.add(array(ONE_EACH))
    return made


@contextmanager
def partition_1_fails() -> Iterator[None]:
    append = Partition.append_waiting

    def failing(self: Partition, batch, room):  # type: ignore[no-untyped-def]
        if self.number == 1:
            raise OSError(5, "broken")
        return append(self, batch, room)

    with mock.patch.object(Partition, "append_waiting", failing):
        yield


def test_a_partition_that_takes_nothing_does_not_hold_up_the_others(place: TreeBench) -> None:
    made = busy_target(place)
    made.add(array(ONE_EACH))
    assert all_values(place) == {n: [b"%d" % n] for n in range(5)}
    with partition_1_fails(), pytest.raises(OSError, match="broken"):
        made.flush()
    assert all_values(place) == {n: [b"%d" % n] * (1 if n == 1 else 2) for n in range(5)}
    # What flush told of is not tried again.
    made.flush()
    assert not waits(place)
    assert values(place, 1) == [b"1"]


def test_a_write_for_several_partitions_is_taken_whole_or_not_at_all(place: TreeBench) -> None:
    """Lines are appended partition by partition: no short write could say which ones."""
    made = target(place)
    full = OSError(28, "full")
    log = place.views("t", 3).partition.log
    with mock.patch.object(log, "promise", side_effect=full), pytest.raises(OSError, match="full"):
        made.add(array(ONE_EACH))
    assert all_values(place) == {n: [] for n in range(5)}
    with partition_1_fails():
        assert made.add(array(ONE_EACH)) == len(ONE_EACH)
        assert waits(place)
        assert all_values(place) == {n: [] if n == 1 else [b"%d" % n] for n in range(5)}
    made.flush()
    assert all_values(place) == {n: [b"%d" % n] for n in range(5)}


def test_an_unfinished_line_of_a_topic_has_room_until_it_is_known_where_it_goes(place: TreeBench) -> None:
    handle = place.files.open("/topics/t/in.tsv", APPEND).handle
    place.files.write(handle, array(b"key\tval"))
    promised = [place.views("t", number).partition.log.promised for number in range(5)]
    assert sorted(promised)[:4] == [0] * 4
    assert max(promised) > 0
    place.files.write(handle, array(b"ue\n"))
    assert not any(place.views("t", number).partition.log.promised for number in range(5))
    place.files.write(handle, array(b"key\tlast"))
    place.files.flush(handle)
    place.files.release(handle)
    assert sorted(itertools.chain(*all_values(place).values())) == [b"last", b"value"]
    assert not any(place.views("t", number).partition.log.promised for number in range(5))


@pytest.mark.parametrize("name", ["in.txt", "in.tsv", "in.jsonl"])
@pytest.mark.parametrize("key", [b"abc", b"21", b"foobar", None])
def test_the_last_line_of_a_topic_has_its_room_where_it_goes(
    place: TreeBench, name: str, key: bytes | None
) -> None:
    """regression: its room was given back in one partition before it was looked for in another"""
    value = b"x" * 9000
    line = {
        "in.txt": value,
        "in.tsv": (b"\\N" if key is None else key) + b"\t" + value,
        "in.jsonl": b'{"key":%s,"value":"%s"}' % (b"null" if key is None else b'"%s"' % key, value),
    }[name]
    for turn in range(5):
        handle = place.files.open(f"/topics/t/{name}", APPEND).handle
        place.files.write(handle, array(line))
        place.files.flush(handle)
        before = [place.views("t", number).partition.log.promised for number in range(5)]
        assert sorted(before)[:4] == [0] * 4
        assert max(before) > len(value)
        with mock.patch.object(appender, "allocate", side_effect=OSError(errno.ENOSPC, "full")):
            place.files.release(handle)
        assert len(values(place, before.index(max(before)))) == (turn + 1 if key and name != "in.txt" else 1)
    assert sum(len(found) for found in all_values(place).values()) == 5
    assert not any(place.views("t", number).partition.log.promised for number in range(5))


# -- one partition ------------------------------------------------------------------------------------------


def test_lines_go_into_as_many_batches_as_they_need(place: TreeBench) -> None:
    place.store.configure("t", {"max.message.bytes": "500"})
    for name in ("log.txt", "log.tsv"):
        place.append(f"/t-0/{name}", b"".join(b"\\N\t%050d\n" % n for n in range(100)))
    assert len(values(place, 0)) == 200


def test_a_new_limit_holds_from_the_next_batch_on(place: TreeBench) -> None:
    made = PartitionTarget(place.views("t", 0).writers, Format.TXT, 1 << 20)
    made.add(array(b"x" * 3000 + b"\n"))
    made.flush()
    place.store.configure("t", {"max.message.bytes": "1000"})
    assert made.add(array(b"y" * 3000 + b"\n")) == 0
    assert isinstance(made.refusal, RecordTooLargeError)
    place.store.configure("t", {"max.message.bytes": "5000"})
    assert made.add(array(b"z" * 3000 + b"\n")) == 3001


def test_log_append_time_is_the_time_of_the_append(place: TreeBench) -> None:
    place.store.configure("t", {"message.timestamp.type": "LogAppendTime"})
    made = PartitionTarget(place.views("t", 0).writers, Format.JSONL, 1 << 20)
    for _ in range(2):
        made.add(array(b'{"value":"v","timestamp":5}\n'))
    place.clock.ms += 1000
    made.flush()
    found = [record.timestamp for record in place.views("t", 0).partition.records()]
    assert found == [NOW, NOW + 1000]
