"""A link to a broker with TLS, passwords and permissions, and over a network that fails: what is wrong is said in
words, and tried again, slowly; what is right goes on."""

from __future__ import annotations

import random
import re
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from kafka.admin import (
    ACL,
    ACLOperation,
    ACLPermissionType,
    KafkaAdminClient,
    ResourcePattern,
    ResourceType,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from kafka_broker import Broker, free_ports
from kafka_clients import consume, create_topics, produce
from linked import LinkedMount, log_bytes
from patience import eventually
from rough_network import RoughNetwork

from topicfs import Record

ROUNDS = 6
USER = {
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "SCRAM-SHA-512",
    "sasl.username": "ann",
    "sasl.password": "right",
}
LOGIN = "org.apache.kafka.common.security"


@dataclass
class Secured:
    """A broker with three listeners: for who may do everything, for users with a password, and behind a bad network.

    broker   the broker
    secure   the address for users with a password, over TLS
    network  leads to the third
    ca       the certificate that the broker's is signed by: itself
    """

    broker: Broker
    secure: str
    network: RoughNetwork
    ca: Path


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    place = tmp_path_factory.mktemp("secured")
    certificate(place, "broker")
    plain, controller, secure, behind, before = free_ports(5)
    settings = {
        "listeners": f"PLAINTEXT://127.0.0.1:{plain},CONTROLLER://127.0.0.1:{controller},"
        f"SECURE://127.0.0.1:{secure},ROUGH://127.0.0.1:{behind}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{plain},SECURE://127.0.0.1:{secure},ROUGH://127.0.0.1:{before}",
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SECURE:SASL_SSL,ROUGH:PLAINTEXT",
        "listener.name.secure.sasl.enabled.mechanisms": "SCRAM-SHA-512,PLAIN",
        "listener.name.secure.scram-sha-512.sasl.jaas.config": f"{LOGIN}.scram.ScramLoginModule required;",
        "listener.name.secure.plain.sasl.jaas.config": f"{LOGIN}.plain.PlainLoginModule required "
        'user_bob="open sesame";',
        "listener.name.secure.ssl.keystore.type": "PEM",
        "listener.name.secure.ssl.keystore.location": str(place / "broker.pem"),
        "connection.failed.authentication.delay.ms": "50",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    with (
        Broker.start(place / "logs", place / "home", settings=settings) as broker,
        RoughNetwork.between(before, behind) as network,
    ):
        broker.bootstrap = f"127.0.0.1:{plain}"
        admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
        admin.alter_user_scram_credentials(
            [UserScramCredentialUpsertion("ann", ScramMechanism.SCRAM_SHA_512, "right", iterations=4096)]
        )
        admin.close()
        allow(broker, "ann", "open")
        allow(broker, "bob", "open")
        create_topics(broker.bootstrap, {"open": {}})
        produce(broker.bootstrap, "open", [Record(b"value %d" % number) for number in range(100)])
        yield Secured(broker, f"127.0.0.1:{secure}", network, place / "broker.crt")


def certificate(place: Path, name: str) -> None:
    """A key and a certificate that it has signed itself, for 127.0.0.1."""
    options = "-x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=127.0.0.1 -addext subjectAltName=IP:127.0.0.1"
    files = ["-keyout", str(place / f"{name}.key"), "-out", str(place / f"{name}.crt")]
    subprocess.run(["openssl", "req", *options.split(), *files], check=True, capture_output=True)
    both = (place / f"{name}.key").read_text() + (place / f"{name}.crt").read_text()
    (place / f"{name}.pem").write_text(both)


def allow(broker: Broker, user: str, topic: str) -> None:
    """Let a user describe and read a topic."""
    operations = (ACLOperation.DESCRIBE, ACLOperation.DESCRIBE_CONFIGS, ACLOperation.READ)
    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    admin.create_acls(
        [
            ACL(
                f"User:{user}",
                "*",
                operation,
                ACLPermissionType.ALLOW,
                ResourcePattern(ResourceType.TOPIC, topic),
            )
            for operation in operations
        ]
    )
    admin.close()


@contextmanager
def a_link(place: Path, bootstrap: str, client: dict[str, str], *options: str) -> Iterator[LinkedMount]:
    mount = LinkedMount(place, bootstrap, client)
    for words in (
        "cannot be asked",
        "is not mirrored",
        "is mirrored as before",
        "nothing is mirrored from broker",
    ):
        mount.expect(words)
    with mount.to_its_end():
        mount.link(*options)
        yield mount


def test_scram_over_tls_is_mirrored(secured: Secured, tmp_path: Path) -> None:
    with a_link(tmp_path, secured.secure, {**USER, "ssl.cafile": str(secured.ca)}) as mount:
        mount.await_end("open-0", 100)
        assert mount.log_bytes("open-0") == log_bytes(secured.broker.log_dir / "open-0")
        assert {path.name for path in (mount / "topics").iterdir()} <= {"open", "closed"}, "what ann may see"


def test_plain_over_tls_is_mirrored(secured: Secured, tmp_path: Path) -> None:
    login = f'{LOGIN}.plain.PlainLoginModule required username="bob" password="open sesame";'
    client = {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.jaas.config": login}
    with a_link(tmp_path, secured.secure, {**client, "ssl.ca.location": str(secured.ca)}) as mount:
        mount.await_end("open-0", 100)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sasl.password": "wrong"}, "the cluster refuses user 'ann'"),
        ({"sasl.mechanism": "SCRAM-SHA-256"}, "sasl.mechanism=SCRAM-SHA-256 is not one of this broker's"),
        ({"ssl.cafile": "other.crt"}, "its certificate is not good: self-signed certificate"),
        ({"security.protocol": "PLAINTEXT"}, "see security.protocol"),
    ],
)
def test_what_is_wrong_is_said_in_words_and_tried_again_slowly(
    secured: Secured, tmp_path: Path, changes: dict[str, str], words: str
) -> None:
    certificate(tmp_path, "other")
    client = {**USER, "ssl.cafile": str(secured.ca), "reconnect.backoff.max.ms": "5000", **changes}
    if changes.get("ssl.cafile"):
        client["ssl.cafile"] = str(tmp_path / changes["ssl.cafile"])
    with a_link(tmp_path, secured.secure, client) as mount:

        def told() -> str:
            return (mount / "metrics").read_text()

        eventually(lambda: words.replace("\\", "") in told(), words)
        assert any(words in line and "cannot be asked" in line for line in mount.said().splitlines())
        time.sleep(1.0)
        looks = re.search(r"^topicfs_link_looks_total (\S+)$", told(), re.MULTILINE)
        assert looks is not None
        assert float(looks[1]) < 10


def test_a_topic_that_may_not_be_read_is_told_and_mirrored_when_it_may(
    secured: Secured, tmp_path: Path
) -> None:
    create_topics(secured.broker.bootstrap, {"closed": {}})
    produce(secured.broker.bootstrap, "closed", [Record(b"value")])
    client = {**USER, "ssl.cafile": str(secured.ca)}
    with a_link(tmp_path, secured.secure, client, "--link-topic", "closed", "--link-topic", "open") as mount:
        mount.await_end("open-0", 100)
        assert "this user needs Describe, DescribeConfigs and Read" in (mount / "metrics").read_text()
        assert not (mount / "closed-0").exists()
        allow(secured.broker, "ann", "closed")
        mount.await_end("closed-0", 1)


def test_a_mirror_goes_on_over_a_network_that_fails(secured: Secured, tmp_path: Path) -> None:
    create_topics(secured.broker.bootstrap, {"rough": {"segment.bytes": "1048576"}}, 2)
    stopping = threading.Event()
    value = random.Random(7).randbytes(2000)

    def fill() -> None:
        while not stopping.is_set():
            for partition in range(2):
                produce(secured.broker.bootstrap, "rough", [Record(value)] * 100, None, partition)

    producer = threading.Thread(target=fill)
    with a_link(tmp_path, f"127.0.0.1:{secured.network.port}", {}, "--link-topic", "rough") as mount:
        producer.start()
        try:
            for number in range(ROUNDS):
                before = secured.network.pieces
                eventually(lambda known=before: secured.network.pieces > known + 20, "answers go through")
                secured.network.delay_s = 0.01 * (number % 3)
                if number % 2:
                    secured.network.cut(reset=number % 4 == 1)
                else:
                    secured.network.go(reset=True)
                    time.sleep(0.5)
                    secured.network.come()
        finally:
            stopping.set()
            producer.join()
            secured.network.delay_s = 0.0
        for partition in range(2):
            name = f"rough-{partition}"
            theirs = log_bytes(secured.broker.log_dir / name)
            eventually(lambda name=name, theirs=theirs: mount.log_bytes(name) == theirs, "all of it is here")
        records = consume(secured.broker.bootstrap, "rough")
        assert (mount / "rough-0/log.txt").read_bytes().count(b"\n") >= len(records)
        assert (mount / f"rough-0/offset/{len(records) - 1}").read_bytes() == value
