"""A mirror goes on while a broker says nothing of its topic."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from daemon_mount import append
from kafka.protocol.metadata import MetadataRequest
from patience import eventually
from test_semantics_link import Linked, a_link

NO_LEADER = 5
NOT_ALLOWED = 29


@pytest.fixture(scope="module")
def shared_link(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Linked]:
    options = ("-o", "link.create=true", "--link-topic", "exact", "--link-topic", "[!e]*")
    with a_link(tmp_path_factory.mktemp("waits"), *options) as linked:
        yield linked


@pytest.fixture
def linked(shared_link: Linked) -> Iterator[Linked]:
    yield shared_link
    shared_link.broker.twist.clear()


def untold(linked: Linked, name: str, code: int) -> None:
    """Have the broker say nothing of a topic but an error."""

    def twist(_: Any, told: Any) -> None:
        for topic in told.topics:
            if topic.name == name:
                topic.error_code, topic.partitions = code, []

    linked.broker.twist[MetadataRequest] = twist


def await_looks(linked: Linked, count: int = 4) -> None:
    """Wait until the cluster was asked some times: twice in a look of which something is missing."""
    end = linked.broker.asked[MetadataRequest] + count
    eventually(lambda: linked.broker.asked[MetadataRequest] >= end, "the cluster is asked")


@pytest.mark.parametrize("code", [NO_LEADER, NOT_ALLOWED])
def test_a_mirror_goes_on_where_a_broker_says_nothing_of_its_topic(linked: Linked, code: int) -> None:
    """regression: a line was EROFS until the next look, and nothing was mirrored"""
    name = f"untold-{code}"
    log = linked.topic(name, b"one").logs[0]
    linked.shows(f"{name}-0", b"one")
    eventually(lambda: linked.has(f"{name}-0"), "it is mirrored")
    untold(linked, name, code)
    await_looks(linked)
    append(linked.mount / f"{name}-0/log.txt", b"two\n")
    log.add(b"three")
    linked.shows(f"{name}-0", b"one", b"two", b"three")
    told = [line for line in (linked.mount / "metrics").read_text().splitlines() if "_problem{" in line]
    assert any(f'topic="{name}"' in line for line in told)


def test_mkdir_waits_for_a_topic_that_the_cluster_did_not_have_at_the_look_before(linked: Linked) -> None:
    """regression: it was EIO, as nothing was found under a name that `--link-topic` has in full"""
    metrics = linked.mount / "metrics"
    eventually(lambda: "has no topic of this name" in metrics.read_text(), "it is told")
    (linked.mount / "topics/exact").mkdir()
    append(linked.mount / "exact-0/log.txt", b"one\n")
    assert linked.broker.topics["exact"].logs[0].end == 1
