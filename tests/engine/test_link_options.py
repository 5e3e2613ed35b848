"""The settings of the link: what is mirrored, from where on, and how brokers are met; and the file of linked topics."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from topicfs import Store
from topicfs.engine.errors import CorruptCheckpointError, InvalidSettingError
from topicfs.engine.link.client import ClientSettings
from topicfs.engine.link.cluster import EARLIEST, LATEST
from topicfs.engine.link.options import Beginning, LinkOptions
from topicfs.engine.linked.topics import LinkedTopic, LinkedTopics
from topicfs.engine.settings.daemon import resolve_daemon

ID = "J6pgF__USIy1e43ss1bohg"
TOPIC = LinkedTopic(
    ID, "orders", "a cluster", {"retention.ms": "1"}, {"log.retention.hours": "2"}, {0: 5, 7: 0}
)


@pytest.mark.parametrize(
    ("text", "beginning"),
    [
        ("earliest", Beginning(timestamp=EARLIEST)),
        ("latest", Beginning(timestamp=LATEST)),
        ("0", Beginning(offset=0)),
        ("9223372036854775807", Beginning(offset=2**63 - 1)),
        ("-7d", Beginning(age_ms=7 * 86_400_000)),
        ("-90s", Beginning(age_ms=90_000)),
        ("2026-05-01", Beginning(timestamp=1_777_593_600_000)),
        ("2026-05-01T06:30:00+02:00", Beginning(timestamp=1_777_609_800_000)),
    ],
)
def test_where_a_mirror_begins_is_read(text: str, beginning: Beginning) -> None:
    assert Beginning.parse(text) == beginning


@pytest.mark.parametrize("text", ["", "soon", "-7", "-0d", "7d", "9223372036854775808", "2026-13-01", "-7d "])
def test_other_beginnings_are_refused(text: str) -> None:
    with pytest.raises(InvalidSettingError, match=r"link\.from: expected earliest"):
        Beginning.parse(text)


def options(**settings: str) -> LinkOptions:
    lines = {f"link.{name.replace('_', '.')}": value for name, value in settings.items()}
    found = LinkOptions.of(resolve_daemon({"link.bootstrap.servers": "here:1", **lines}), Path("/nowhere"))
    assert found is not None
    return found


def test_patterns_choose_topics_and_kafkas_own_only_by_their_beginning() -> None:
    assert options().wants("orders")
    assert not options().wants("__consumer_offsets")
    some = options(topics="orders-*,__consumer*,exactly")
    assert [
        some.wants(name) for name in ("orders-1", "orders", "exactly", "__consumer_offsets", "__other")
    ] == [
        True,
        False,
        True,
        True,
        False,
    ]
    assert some.exact() == ["exactly"]


def test_without_brokers_nothing_is_mirrored(tmp_path: Path) -> None:
    assert LinkOptions.of(resolve_daemon({}), tmp_path) is None


@pytest.mark.parametrize("text", ["here", "here:0", "here:70000", ":9092", "a b:9092", "here:9092x"])
def test_addresses_need_a_port(text: str) -> None:
    with pytest.raises(InvalidSettingError, match="expected host:port"):
        options(bootstrap_servers=text)


def test_the_file_of_a_client_is_found_beside_server_properties(tmp_path: Path) -> None:
    (tmp_path / "client.properties").write_text("client.id=from here\n")
    lines = {"link.bootstrap.servers": "here:1", "link.config": "client.properties"}
    found = LinkOptions.of(resolve_daemon(lines), tmp_path)
    assert found is not None
    assert found.client.client_id == "from here"


def test_several_brokers_are_known_and_addresses_of_version_six_too() -> None:
    found = options(bootstrap_servers="one:1, [::1]:2")
    assert [str(each) for each in found.bootstrap] == ["one:1", "::1:2"]


def client(place: Path, text: str) -> ClientSettings:
    (place / "client.properties").write_text(text)
    return ClientSettings.load(place / "client.properties")


def test_settings_have_the_names_of_kafkas_clients(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("from a file\n")
    found = client(
        tmp_path,
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-512\nsasl.username=ann\n"
        "sasl.password.file=secret\nrequest.timeout.ms=777\n",
    )
    assert (found.sasl_username, found.sasl_password, found.request_timeout_ms) == ("ann", "from a file", 777)
    java = (
        "security.protocol=SASL_SSL\nsasl.mechanism=PLAIN\n"
        'sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required username="bob" '
        'password="a\\\\"b";\n'
    )
    assert (client(tmp_path, java).sasl_username, client(tmp_path, java).sasl_password) == ("bob", 'a"b')


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("security.protocol=TLS", "expected one of PLAINTEXT, SSL"),
        ("security.protocol=SASL_SSL", "sasl.mechanism: expected one of PLAIN"),
        ("security.protocol=SASL_SSL\nsasl.mechanism=PLAIN", "sasl.username and sasl.password"),
        ("ssl.truststore.location=x.jks", "PEM in ssl.cafile"),
        ("bootstrap.servers=x:1", "--link"),
        ("fetch.max.byte=1", "unknown setting 'fetch.max.byte'"),
        ("acks=0", "acks: expected all or 1, found '0'"),
        ("fetch.max.bytes=none", "expected a number above 0"),
        ("max.partition.fetch.bytes=0", "max.partition.fetch.bytes: expected a number above 0"),
        ("fetch.max.wait.ms=10000", "fetch.max.wait.ms: expected less than request.timeout.ms, 10000"),
        ("sasl.password.file=missing", "cannot be read"),
    ],
)
def test_what_is_wrong_in_the_file_is_said_in_words(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(InvalidSettingError, match=f"client.properties: .*{words}"):
        client(tmp_path, text)


def test_certificates_that_cannot_be_read_are_said_in_words(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("no certificate")
    found = client(tmp_path, f"security.protocol=SSL\nssl.cafile={tmp_path}/ca.pem\n")
    with pytest.raises(InvalidSettingError, match=r"ca\.pem: not usable for TLS"):
        found.tls()


def test_a_key_that_is_encrypted_needs_its_password_in_the_file(tmp_path: Path) -> None:
    place = tmp_path / "both.pem"
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-passout", "pass:secret", "-subj", "/CN=x"]
    subprocess.run([*made, "-keyout", place, "-out", tmp_path / "cert.pem"], check=True, capture_output=True)
    place.write_text(place.read_text() + (tmp_path / "cert.pem").read_text())
    text = f"security.protocol=SSL\nssl.certfile={place}\nssl.keyfile={place}\n"
    with pytest.raises(InvalidSettingError, match=r"A key that is encrypted needs ssl\.password"):
        client(tmp_path, text).tls()
    assert client(tmp_path, f"{text}ssl.password=secret\n").tls() is not None


def test_a_file_that_is_not_there_is_told_by_the_name_of_the_setting(tmp_path: Path) -> None:
    with pytest.raises(InvalidSettingError, match=r"link\.config: .*missing cannot be read: No such file"):
        ClientSettings.load(tmp_path / "missing")


# -- the file of linked topics --------------------------------------------------------------------------------


def test_linked_topics_come_back_from_their_file(tmp_path: Path) -> None:
    topics = LinkedTopics.load(tmp_path)
    assert topics.by_id == {}
    topics.put((TOPIC,))
    topics.put((replace(TOPIC, topic_id=ID[::-1], settings=None, begins={}, ended="gone"),))
    topics.begin({ID: {1: 9}})
    found = LinkedTopics.load(tmp_path)
    assert found.by_id == topics.by_id
    assert found.by_id[ID].begins == {0: 5, 7: 0, 1: 9}
    assert found.of([None, "unknown", ID]) == found.by_id[ID]
    assert found.of([None]) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"version": 2, "topics": {}}',
        '{"version": 1}',
        '{"version": 1, "topics": {"x": {}}}',
        '{"version": 1, "topics": []}',
        "[" * 100_000,
        json.dumps(
            {"version": 1, "topics": {ID: {"name": "t", "cluster": "c", "settings": {}, "broker": {}}}}
        ),
        json.dumps(
            {
                "version": 1,
                "topics": {
                    ID: {
                        "name": "t",
                        "cluster": "c",
                        "settings": {},
                        "broker": {},
                        "begins": {"0": -1},
                        "ended": None,
                    }
                },
            }
        ),
    ],
)
def test_a_damaged_file_of_linked_topics_is_refused_in_words(tmp_path: Path, text: str) -> None:
    (tmp_path / "linked-topics").write_text(text)
    with pytest.raises(CorruptCheckpointError, match="linked-topics: expected"):
        LinkedTopics.load(tmp_path)


def test_linked_topics_have_their_clusters_settings_until_they_get_their_own(tmp_path: Path) -> None:
    with Store.open(tmp_path, create=True) as store:
        store.links.link(TOPIC, (0, 1))
        assert store.topics() == {"orders": [0, 1]}
        assert store.topic_settings("orders").retention_ms == 1
        store.links.link(replace(TOPIC, settings={"retention.ms": "7"}), (0, 1))
        assert store.topic_settings("orders").retention_ms == 7
        assert store.partition("orders", 0).settings.retention_ms == 7
        store.configure("orders", {"retention.ms": "-1"})
        assert store.topic_settings("orders").retention_ms == -1
    with Store.open(tmp_path) as store:
        assert store.topic_settings("orders").retention_ms == -1
        store.configure("orders", {"retention.ms": None})
        assert store.topic_settings("orders").retention_ms == 7
        sources = {each.name: each.source for each in store.explain("orders")}
        assert sources["retention.ms"] == "cluster"


def test_records_whose_settings_in_the_cluster_are_not_known_are_kept(tmp_path: Path) -> None:
    with Store.open(tmp_path, {"log.retention.ms": "1"}, create=True) as store:
        store.links.link(replace(TOPIC, settings=None), (0,))
        assert store.topic_settings("orders").retention_ms == -1
        assert store.topic_settings("orders").cleanup_policy == frozenset()
