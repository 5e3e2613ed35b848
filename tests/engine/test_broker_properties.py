"""A broker's server.properties is taken as it is; what is likely misspelt is refused."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from topicfs import Store
from topicfs.engine.errors import InvalidSettingError
from topicfs.engine.settings.broker import BROKERS, split_lines
from topicfs.engine.settings.lookup import DAEMON_BY_NAME

STOCK = """\
# As Kafka delivers it.
process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=localhost:9093
listeners=PLAINTEXT://:9092,CONTROLLER://:9093
inter.broker.listener.name=PLAINTEXT
advertised.listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_SSL:SASL_SSL
num.network.threads=3
num.io.threads=8
socket.send.buffer.bytes=102400
log.dirs=/tmp/kraft-combined-logs
num.partitions=4
num.recovery.threads.per.data.dir=2
offsets.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
transaction.state.log.min.isr=1
log.retention.hours=336
log.segment.bytes=1073741824
log.retention.check.interval.ms=300000
listener.name.internal.ssl.keystore.location=/x
zookeeper.connect=localhost:2181
log.message.format.version=3.0
confluent.metrics.reporter.bootstrap.servers=x:1
my.plugin.colour=blue
"""


def test_a_stock_file_is_taken(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "server.properties").write_text(STOCK)
    with caplog.at_level(logging.INFO), Store.open(tmp_path, create=True) as store:
        assert store.daemon.num_partitions == 4
        assert store.create("t").settings.retention_ms == 336 * 3_600_000
    (told,) = [line for line in caplog.messages if "mean nothing here" in line]
    for name in ("listeners", "my.plugin.colour", "log.dirs", "zookeeper.connect"):
        assert name in told
    assert "num.partitions" not in told
    assert (tmp_path / "server.properties").read_text() == STOCK


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("log.retention.hour", "did you mean log.retention.hours"),
        ("log.retenion.ms", "did you mean log.retention.ms"),
        ("log.cleanup.policies", "did you mean log.cleanup.policy"),
        ("num.partitons", "did you mean num.partitions"),
        ("retention.ms", "in server.properties it is log.retention.ms"),
        ("cleanup.policy", "in server.properties it is log.cleanup.policy"),
    ],
)
def test_what_is_likely_misspelt_is_refused(tmp_path: Path, name: str, words: str) -> None:
    (tmp_path / "server.properties").write_text(f"node.id=1\n{name}=5\n")
    with pytest.raises(InvalidSettingError, match=r"server\.properties: unknown daemon setting") as caught:
        Store.open(tmp_path, create=True)
    assert words in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["server.properties"]


def test_a_value_that_is_not_allowed_is_refused_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "server.properties").write_text("listeners=x\nlog.retention.ms=soon\n")
    with pytest.raises(
        InvalidSettingError, match=r"server\.properties: log\.retention\.ms: expected a whole number"
    ):
        Store.open(tmp_path, create=True)


def test_names_of_the_command_line_are_refused_as_ever(tmp_path: Path) -> None:
    with pytest.raises(InvalidSettingError, match="unknown daemon setting 'listeners'"):
        Store.open(tmp_path, {"listeners": "x"}, create=True)


def test_no_name_of_a_broker_is_taken_for_one_of_ours() -> None:
    assert BROKERS.isdisjoint(DAEMON_BY_NAME)
    assert split_lines(dict.fromkeys(BROKERS, "x")) == ({}, list(BROKERS))
