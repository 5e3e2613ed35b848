"""What brokers answer is checked before anything is appended: damaged, lying and broken answers harm nothing."""

from __future__ import annotations

import errno
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from kafka.protocol.consumer import FetchRequest
from kafka.protocol.metadata import MetadataRequest
from lock_order import another_thread
from mirror_bench import ALL, Bench, a_bench, mirroring
from patience import eventually
from stand_in_broker import StandInBroker, Topic, damaged

from topicfs import Store
from topicfs.engine.batch.table import Bytes, Longs
from topicfs.engine.errors import ClosedError, ClusterAwayError, LinkError
from topicfs.engine.files.atomic import write_atomically
from topicfs.engine.link import following
from topicfs.engine.link.answer import PartitionAnswer
from topicfs.engine.link.client import ClientSettings
from topicfs.engine.link.cluster import Cluster
from topicfs.engine.link.connection import Address
from topicfs.engine.link.fetch import Fetching
from topicfs.engine.linked import topics
from topicfs.engine.partition.offsets import Appended
from topicfs.engine.store.links import Links


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with a_bench(tmp_path) as bench:
        bench.look()
        yield bench


def twist(bench: Bench, change: Callable[[Any], None]) -> None:
    """Have the broker change what it answers about the partition, from now on."""

    def each(_: Any, answer: Any) -> None:
        for topic in answer.responses:
            for part in topic.partitions:
                change(part)

    bench.broker.twist[FetchRequest] = each


def all_of(bench: Bench) -> PartitionAnswer:
    """The answer of a leader that gives all that it has."""
    return PartitionAnswer(b"", 0, 0, 5, 5, -1, -1, np.frombuffer(bench.log.data(), np.uint8))


def mended(bench: Bench) -> None:
    """The broker tells the truth again: all of it comes, once."""
    bench.broker.twist.clear()
    bench.broker.garble = lambda _, data: data
    bench.fetch()
    assert bench.values == ALL
    assert bench.error == ""


def test_the_bytes_of_the_leader_are_mirrored(bench: Bench) -> None:
    bench.fetch()
    files = sorted(bench.partition.directory.glob("*.log"))
    assert b"".join(file.read_bytes() for file in files) == bench.log.data()
    assert bench.store.links.mirrors["t", 0].lag_records == 0
    assert bench.partition.log.epochs.entries[0].epoch == 0


@pytest.mark.parametrize("at", [20, 30, 63])
def test_a_batch_with_a_wrong_checksum_is_not_appended(bench: Bench, at: int) -> None:
    twist(bench, lambda part: setattr(part, "records", damaged(part.records, at)))
    bench.fetch()
    assert bench.values == []
    assert "checksum" in bench.error
    mended(bench)


def test_nothing_of_an_answer_with_one_bad_batch_is_appended(bench: Bench) -> None:
    twist(bench, lambda part: setattr(part, "records", damaged(part.records, len(part.records) - 1)))
    bench.fetch()
    assert bench.values == []
    mended(bench)


def test_a_batch_that_is_cut_off_waits_for_the_next_answer(bench: Bench) -> None:
    twist(bench, lambda part: setattr(part, "records", part.records[:-3]))
    bench.fetch(2)
    assert bench.values == ALL[:3]
    assert bench.error == ""
    mended(bench)


def test_batches_that_do_not_rise_are_not_appended(bench: Bench) -> None:
    twist(bench, lambda part: setattr(part, "records", part.records + part.records))
    bench.fetch()
    assert bench.values == []
    assert "expected one above" in bench.error
    mended(bench)


def test_what_lies_above_the_high_watermark_is_not_appended(bench: Bench) -> None:
    twist(bench, lambda part: setattr(part, "high_watermark", 3))
    bench.fetch()
    assert bench.values == ALL[:3]
    mended(bench)


def test_a_batch_of_an_epoch_above_the_leaders_is_not_appended(bench: Bench) -> None:
    bench.log.add(b"later", epoch=7)
    bench.fetch()
    assert bench.values == []
    assert "epoch 7" in bench.error


def test_batches_again_that_are_here_already_are_not_appended_again(bench: Bench) -> None:
    bench.fetch()
    twist(bench, lambda part: setattr(part, "records", bench.log.data()))
    bench.fetch()
    assert bench.values == ALL


def test_answers_that_nobody_asked_for_are_passed_over(bench: Bench) -> None:
    twist(bench, lambda part: setattr(part, "partition_index", 5))
    bench.fetch()
    assert bench.values == []
    mended(bench)


def test_an_answer_that_claims_too_much_ends_the_connection(tmp_path: Path) -> None:
    client = ClientSettings(fetch_max_wait_ms=1, receive_max_bytes=2000)
    with a_bench(tmp_path, client) as bench:
        bench.look()
        bench.log.add(bytes(4000))
        with pytest.raises(Exception, match=r"at most 2000 bytes \(receive.message.max.bytes\)"):
            bench.fetch()
        assert bench.values == []


@pytest.mark.parametrize("keep", [4, 6, 20, 50])
def test_an_answer_that_breaks_its_format_ends_the_connection(bench: Bench, keep: int) -> None:
    bench.broker.garble = lambda kind, data: data[:keep] if kind is FetchRequest else data
    with pytest.raises(Exception, match=r"breaks its format|expected the answer"):
        bench.fetch()
    assert bench.values == []
    mended(bench)


def test_an_answer_that_claims_many_parts_takes_no_memory_for_them(bench: Bench) -> None:
    many = struct.pack(">I", 0xFFFFFF7F)

    def garble(kind: Any, data: bytes) -> bytes:
        return data[:15] + many + data[19:] if kind is FetchRequest else data

    bench.broker.garble = garble
    with pytest.raises(Exception, match="breaks its format"):
        bench.fetch()
    mended(bench)


def test_an_answer_to_another_request_ends_the_connection(bench: Bench) -> None:
    bench.broker.garble = lambda kind, data: b"\0\0\0\x7f" + data[4:] if kind is FetchRequest else data
    with pytest.raises(Exception, match="expected the answer to request"):
        bench.fetch()
    mended(bench)


# -- when logs part ---------------------------------------------------------------------------------------


def test_what_the_leader_does_not_have_is_cut_off(bench: Bench) -> None:
    bench.fetch()
    bench.log.cut(2, epoch=1)
    bench.log.add(b"instead")
    bench.look()
    bench.fetch(5)
    assert bench.values == [b"one", b"two", b"instead"]
    state = bench.store.links.mirrors["t", 0]
    assert state.truncated_records == 3
    assert "unclean election" in state.notes[0]


def test_several_epochs_that_the_leader_does_not_have_are_cut_off(bench: Bench) -> None:
    for epoch in (1, 3):
        bench.log.epoch = epoch
        bench.log.add(b"of epoch %d" % epoch)
    bench.look()
    bench.fetch()
    assert len(bench.values) == len(ALL) + 2
    bench.log.cut(len(ALL), epoch=4)
    bench.log.add(b"of epoch 4")
    bench.look()
    bench.fetch(6)
    assert bench.values == [*ALL, b"of epoch 4"]


@pytest.mark.parametrize("had", [b"mirrored", b""])
def test_a_mirror_goes_on_below_its_beginning_where_the_cluster_lost_what_was_there(
    tmp_path: Path, had: bytes
) -> None:
    with a_bench(tmp_path, **{"link.from": "latest"}) as bench:
        bench.look()
        if had:
            bench.log.add(had)
        bench.fetch()
        assert bench.partition.end_offset == len(ALL) + bool(had)
        bench.log.cut(2, epoch=1)
        bench.look()
        bench.fetch(4)
        bench.look()
        for number in range(5):
            bench.log.add(b"%d" % number)
        bench.fetch(5)
        assert bench.values == [b"%d" % number for number in range(5)]
        assert bench.partition.start_offset == 2
        assert bench.error == ""


@pytest.mark.parametrize(("epoch", "end"), [(0, 900), (0, 5), (9, 2), (-2, 3), (0, -7)])
def test_a_leader_that_cannot_tell_where_logs_part_has_nothing_cut_off(
    bench: Bench, epoch: int, end: int
) -> None:
    bench.fetch()

    def lie(part: Any) -> None:
        part.diverging_epoch = type(part).EpochEndOffset(version=13, epoch=epoch, end_offset=end)
        part.records = b""

    twist(bench, lie)
    bench.fetch()
    assert bench.values == ALL
    mended(bench)


def test_a_log_that_ends_below_the_mirror_without_a_word_is_an_error(bench: Bench) -> None:
    bench.fetch()
    twist(bench, lambda part: setattr(part, "error_code", 1))
    bench.fetch()
    assert bench.values == ALL
    assert "nothing is removed or added" in bench.error
    mended(bench)


def test_offsets_that_were_deleted_before_they_came_leave_a_gap(bench: Bench) -> None:
    bench.fetch()
    bench.log.add(b"deleted")
    bench.log.start = bench.log.end
    bench.log.add(b"kept")
    bench.fetch(4)
    assert bench.values == [*ALL, b"kept"]
    assert (
        "were deleted in the cluster before they were mirrored" in bench.store.links.mirrors["t", 0].notes[0]
    )


def test_a_leader_that_has_moved_is_looked_for(bench: Bench) -> None:
    bench.log.epoch = 3
    bench.fetch()
    assert bench.moves
    assert bench.values == []
    bench.look()
    bench.fetch()
    assert bench.values == ALL


def test_a_broker_that_is_behind_the_others_brings_no_former_leader_back(bench: Bench) -> None:
    bench.log.epoch = 3
    bench.look()
    bench.log.epoch = 2
    bench.look()
    assert bench.following.leaders["t", 0].leader_epoch == 3
    bench.log.epoch = 4
    bench.look()
    assert bench.following.leaders["t", 0].leader_epoch == 4


def test_all_brokers_are_asked_in_turn_and_those_that_do_not_answer_last() -> None:
    cluster = Cluster((), ClientSettings())
    cluster.brokers = {number: Address("here", number) for number in (1, 2, 3)}
    asked: list[int] = []

    def ask(address: Address, _: object) -> str:
        asked.append(address.port)
        if address.port == 2:
            raise ClusterAwayError("frozen")
        return "answer"

    with mock.patch.object(cluster, "ask", ask):
        for _ in range(60):
            assert cluster.ask_any(None) == "answer"
    assert asked.count(2) == 1
    assert min(asked.count(1), asked.count(3)) >= 10


def test_kafkas_own_topics_are_mirrored_by_a_pattern(tmp_path: Path) -> None:
    with a_bench(tmp_path, **{"link.topics": "t,__c*"}) as bench:
        bench.broker.topics["__consumer_offsets"] = Topic()
        bench.broker.topics["__share_group_state"] = Topic()
        bench.look()
        assert sorted(bench.store.topics()) == ["__consumer_offsets", "t"]


# -- many topics ------------------------------------------------------------------------------------------


def test_a_look_makes_some_topics_and_writes_the_file_of_all_of_them_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "_NEW_AT_ONCE", 10)
    writes: list[Path] = []

    def write(path: Path, data: bytes) -> None:
        writes.append(path)
        write_atomically(path, data)

    monkeypatch.setattr(topics, "write_atomically", write)
    with a_bench(tmp_path) as bench:
        bench.broker.topics = {f"t{number}": Topic() for number in range(25)}
        for made, rest in ((10, 15), (20, 5), (25, 0), (25, 0)):
            bench.look()
            assert len(bench.following.mirrors) == made
            assert bench.following.rest == rest
        assert len(writes) == 6
        assert len(topics.LinkedTopics.load(bench.store.backing).by_id) == 25


def test_topics_that_cannot_be_made_hold_up_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "_NEW_AT_ONCE", 2)
    with a_bench(tmp_path) as bench:
        link = Links.link

        def fail(links: Links, topic: topics.LinkedTopic, numbers: Iterable[int]) -> None:
            if topic.name.startswith("a"):
                raise OSError(errno.ENOSPC, "No space left on device")
            link(links, topic, numbers)

        bench.broker.topics = {f"{word}{number}": Topic() for word in "az" for number in range(3)}
        with mock.patch.object(Links, "link", fail):
            for _ in range(4):
                bench.look()
            assert sorted(bench.store.topics()) == ["z0", "z1", "z2"]
            assert sorted(bench.store.links.problems) == ["a0", "a1", "a2"]
            assert bench.following.rest == 0
        for _ in range(2):
            bench.look()
        assert len(bench.store.topics()) == 6
        assert bench.store.links.problems == {}


def test_more_linked_topics_than_their_file_may_have_are_refused(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topics, "_MOST_BYTES", 300)
    bench.broker.topics["other"] = Topic({"segment.ms": "7" * 19})
    with pytest.raises(LinkError, match="mirror fewer of them"):
        bench.look()
    assert bench.store.topics() == {"t": [0]}


# -- where a mirror begins, and goes on -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("beginning", "shown", "start"),
    [("earliest", ALL, 0), ("latest", [], 5), ("2", ALL[2:], 2), ("4", ALL[3:], 3), ("900", [], 5)],
)
def test_a_mirror_begins_where_it_is_told_to(
    tmp_path: Path, beginning: str, shown: list[bytes], start: int
) -> None:
    with a_bench(tmp_path, **{"link.from": beginning}) as bench:
        bench.look()
        bench.fetch()
        assert bench.values == shown
        assert bench.partition.start_offset == start
        bench.log.add(b"more")
        bench.fetch()
        assert bench.values == [*shown, b"more"]


def test_a_look_empties_no_log_that_is_being_fetched(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with a_bench(tmp_path, **{"link.from": "4"}) as bench:
        bench.look()
        append = bench.partition.append_scanned

        def look_first(data: Bytes, table: Longs) -> Appended:
            with another_thread():
                bench.following.look()
            return append(data, table)

        with mock.patch.object(bench.following.mirrors["t", 0].partition, "append_scanned", look_first):
            bench.fetch()
        assert bench.values == ALL[3:]
        assert [each.message for each in caplog.records if each.levelname == "WARNING"] == []


def test_a_log_that_was_emptied_behind_the_mirror_is_fetched_again_without_news(bench: Bench) -> None:
    bench.fetch()
    bench.store.restart_at("t", 0, 2)
    bench.fetch(4)
    assert bench.values == ALL[2:]


def test_a_mirror_of_nothing_yet_goes_on_where_it_began(tmp_path: Path) -> None:
    with StandInBroker.running() as broker:
        broker.topics["t"] = Topic()
        broker.topics["t"].logs[0].add(*ALL)
        given = {"link.bootstrap.servers": broker.bootstrap, "link.from": "latest"}
        for more in (b"", b"while it was away"):
            if more:
                broker.topics["t"].logs[0].add(more)
            with (
                Store.open(tmp_path / "store", given, create=not more) as store,
                mirroring(broker, store) as bench,
            ):
                bench.look()
                bench.fetch()
                assert bench.values == ([more] if more else [])


def test_a_partition_that_is_deleted_here_is_mirrored_anew(bench: Bench) -> None:
    bench.fetch()
    bench.store.delete("t", 0)
    bench.fetch()
    bench.look()
    bench.fetch()
    assert bench.values == ALL


def test_what_came_is_appended_though_the_connection_fails_with_the_next_request(bench: Bench) -> None:
    cluster, mirrors = bench.following.cluster, list(bench.following.mirrors.values())
    connection = cluster.connect(cluster.address_of(1))
    assert bench.fetching.exchange(connection, mirrors)
    with (
        mock.patch.object(connection, "send", side_effect=ClusterAwayError("gone")),
        pytest.raises(ClusterAwayError),
    ):
        bench.fetching.exchange(connection, mirrors)
    cluster.let_go(connection)
    assert bench.values == ALL


def test_a_partition_that_is_offline_is_told_of_once(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.following.mirrors.pop(("t", 0)).release()
    with mock.patch.object(bench.store, "partition", side_effect=ClosedError("t-0 is offline")):
        for _ in range(3):
            bench.following.look()
    assert len([each for each in caplog.messages if "t-0 is offline" in each]) == 1
    bench.look()
    bench.fetch()
    assert bench.values == ALL


def test_what_cannot_be_appended_is_told_once_and_tried_more_and_more_slowly(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    mirror = bench.following.mirrors["t", 0]
    full = OSError(errno.ENOSPC, "No space left on device")
    with mock.patch.object(mirror.partition, "append_scanned", side_effect=full):
        bench.fetch(8)
        assert mirror.failures >= 3
        assert f"{bench.store.logs / 't-0'}: No space left" in bench.error
        state = bench.store.links.mirrors["t", 0]
        assert (state.lag_records, state.lag_bytes) == (5, None)
        assert state.errors >= 3
    assert len([each for each in caplog.messages if "No space left" in each]) == 1
    mended(bench)
    assert mirror.failures == 0


def test_a_batch_that_is_larger_than_a_segment_here_is_mirrored(bench: Bench) -> None:
    bench.store.configure("t", {"segment.bytes": "1048576"})
    large = b"x" * 1_500_000, b"small", b"y" * 1_200_000
    for value in large:
        bench.log.add(value)
    bench.fetch(5)
    assert bench.error == ""
    assert bench.values == [*ALL, *large]


@contextmanager
def a_slow_broker(pause_s: float) -> Iterator[Address]:
    """A broker that says how long its answer is, and then sends a byte of it after each pause."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with suppress(OSError), connection:
                connection.sendall(struct.pack(">i", 100_000))
                while True:
                    connection.sendall(b"\0")
                    time.sleep(pause_s)

        serving = threading.Thread(target=serve)
        serving.start()
        yield Address("127.0.0.1", server.getsockname()[1])
        serving.join()


def test_an_answer_that_comes_a_byte_at_a_time_is_not_waited_for() -> None:
    with a_slow_broker(0.01) as address:
        cluster = Cluster((address,), ClientSettings(request_timeout_ms=200))
        with pytest.raises(ClusterAwayError, match="or too little of it, within 200 ms"):
            cluster.describe()


def test_a_link_that_ends_waits_for_no_broker_that_is_slow_to_begin() -> None:
    with a_slow_broker(0.01) as address:
        cluster = Cluster((address,), ClientSettings(request_timeout_ms=600_000))

        def ask() -> None:
            with suppress(ClusterAwayError):
                cluster.describe()

        asking = threading.Thread(target=ask)
        asking.start()
        eventually(lambda: bool(cluster._open), "it is connected")
        cluster.close()
        asking.join(60)
        assert not asking.is_alive()


def test_what_comes_behind_a_gap_is_not_appended_but_asked_for_anew(bench: Bench) -> None:
    mirror = bench.following.mirrors["t", 0]
    asked = mirror.asks(bench.fetching)
    assert asked is not None
    answer = all_of(bench)
    assert mirror.take(bench.fetching, asked, answer) is not None
    bench.log.add(b"behind")
    bench.fetch(4)
    assert bench.values == [*ALL, b"behind"]


def test_who_fetched_before_appends_nothing_any_more(bench: Bench) -> None:
    mirror = bench.following.mirrors["t", 0]
    asked = mirror.asks(bench.fetching)
    assert asked is not None
    answer = all_of(bench)
    chunk = mirror.take(bench.fetching, asked, answer)
    assert chunk is not None
    other = Fetching(bench.following.cluster, list)
    mirror.assign(other, mirror.leader)
    mirror.append(bench.fetching, chunk)
    assert bench.values == []
    assert mirror.take(bench.fetching, asked, answer) is None
    eventually(lambda: mirror.asks(other) == asked, "the other one asks for the same")


def test_a_topic_that_rmdir_deletes_while_the_cluster_is_asked_is_no_error_of_the_cluster(
    bench: Bench,
) -> None:
    """regression: the whole look failed, and `metrics` and the log said that the cluster cannot be asked"""
    bench.broker.topics["other"] = Topic()
    known = bench.store.links.topic("t")
    assert known is not None

    def deleted(*_: Any) -> None:
        bench.store.links.gone.add(known.topic_id)

    del bench.broker.topics["t"]
    bench.broker.twist[MetadataRequest] = deleted
    bench.following.look()
    found = bench.store.links.topic("t")
    assert found is not None
    assert found.ended is None
    assert bench.store.topics() == {"t": [0], "other": [0]}
    assert bench.store.links.problems == {}
