"""The settings of the link's connections, under the names of Kafka's own clients: a `client.properties`.

Java's names and those of librdkafka are both known for certificates, keys and passwords: see `_NAMES`.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from topicfs.engine.errors import InvalidSettingError, shown
from topicfs.engine.files.atomic import read_bounded
from topicfs.engine.files.integers import parse_int32
from topicfs.engine.files.properties import read_properties

_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_MOST_PASSWORD_BYTES: Final = 4096

_NAMES: Final[Mapping[str, str]] = {
    "security.protocol": "security_protocol",
    "sasl.mechanism": "sasl_mechanism",
    "sasl.mechanisms": "sasl_mechanism",
    "sasl.username": "sasl_username",
    "sasl.password": "sasl_password",
    "sasl.password.file": "sasl_password_file",
    "sasl.jaas.config": "sasl_jaas_config",
    "ssl.cafile": "ssl_cafile",
    "ssl.ca.location": "ssl_cafile",
    "ssl.certfile": "ssl_certfile",
    "ssl.certificate.location": "ssl_certfile",
    "ssl.keyfile": "ssl_keyfile",
    "ssl.key.location": "ssl_keyfile",
    "ssl.password": "ssl_password",
    "ssl.key.password": "ssl_password",
    "ssl.endpoint.identification.algorithm": "ssl_endpoint_identification_algorithm",
    "client.id": "client_id",
    "request.timeout.ms": "request_timeout_ms",
    "socket.connection.setup.timeout.ms": "connect_timeout_ms",
    "reconnect.backoff.ms": "reconnect_backoff_ms",
    "reconnect.backoff.max.ms": "reconnect_backoff_max_ms",
    "metadata.max.age.ms": "metadata_max_age_ms",
    "acks": "acks",
    "transaction.timeout.ms": "transaction_timeout_ms",
    "delivery.timeout.ms": "delivery_timeout_ms",
    "fetch.max.bytes": "fetch_max_bytes",
    "max.partition.fetch.bytes": "partition_max_bytes",
    "fetch.max.wait.ms": "fetch_max_wait_ms",
    "receive.message.max.bytes": "receive_max_bytes",
    "session.timeout.ms": "session_timeout_ms",
    "group.instance.id": "group_instance_id",
}
_ACKS: Final[Mapping[str, int]] = {"all": -1, "-1": -1, "1": 1}
_HINTS: Final[Mapping[str, str]] = {
    "ssl.truststore.location": "a Java key store cannot be read here: give the certificates as PEM in ssl.cafile",
    "ssl.keystore.location": "a Java key store cannot be read here: give PEM in ssl.certfile and ssl.keyfile",
    "bootstrap.servers": "it is given with --link, or as link.bootstrap.servers in server.properties",
}
_JAAS: Final = re.compile(r'\b(username|password)\s*=\s*"((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """The settings of the link's connections.

    place                the file that they come from, for messages
    *_ms                 milliseconds
    fetch_max_bytes      bytes of one fetch's answer, as the broker counts them: a single batch may be larger
    partition_max_bytes  the same for each partition in it: what fits into the buffers of a connection comes while the
                         answer before is appended
    acks                 −1: an append is acknowledged when all replicas in sync have it; 1: when the leader has it
    receive_max_bytes    an answer that claims to be larger is refused, and the connection ends
    session_timeout_ms   after this time without a sign of it a daemon of a group counts as dead
    group_instance_id    this daemon's name in its group: after a restart it gets its partitions back
    ssl_cafile           certificates that are trusted, as PEM; empty: those of the system
    """

    place: str = "the link's settings"
    security_protocol: str = "PLAINTEXT"
    sasl_mechanism: str = ""
    sasl_username: str = ""
    sasl_password: str = ""
    ssl_cafile: str = ""
    ssl_certfile: str = ""
    ssl_keyfile: str = ""
    ssl_password: str = ""
    ssl_endpoint_identification_algorithm: str = "https"
    client_id: str = "topicfs"
    request_timeout_ms: int = 10_000
    connect_timeout_ms: int = 5_000
    reconnect_backoff_ms: int = 100
    reconnect_backoff_max_ms: int = 5_000
    metadata_max_age_ms: int = 5_000
    delivery_timeout_ms: int = 120_000
    acks: int = -1
    transaction_timeout_ms: int = 60_000
    fetch_max_bytes: int = 16 * 1024 * 1024
    partition_max_bytes: int = 4 * 1024 * 1024
    fetch_max_wait_ms: int = 500
    receive_max_bytes: int = 128 * 1024 * 1024
    session_timeout_ms: int = 10_000
    group_instance_id: str = ""

    @classmethod
    def load(cls, path: Path) -> ClientSettings:
        """Read a `client.properties`. InvalidSettingError, with the file's name, where something in it is refused."""
        try:
            lines = read_properties(path)
        except OSError as error:
            raise InvalidSettingError(
                f"link.config: {path} cannot be read: {error.strerror or error}"
            ) from error
        try:
            return cls.of(lines, path)
        except InvalidSettingError as error:
            raise InvalidSettingError(f"{path}: {error}") from None

    @classmethod
    def of(cls, lines: Mapping[str, str], path: Path) -> ClientSettings:
        """Return the settings of these lines; `path` is the file that they were in."""
        found: dict[str, str | int] = {"place": str(path)}
        given: dict[str, str] = {}
        for name, value in lines.items():
            if name in _HINTS:
                raise InvalidSettingError(f"{name}: {_HINTS[name]}")
            if name not in _NAMES:
                raise InvalidSettingError(f"unknown setting {shown(name)}: known are {', '.join(_NAMES)}")
            found[_NAMES[name]] = value.strip()
            given[_NAMES[name]] = name
        for field in [each for each in found if each.endswith(("_ms", "_bytes"))]:
            number = parse_int32(str(found[field]))
            if number is None or number < 1:
                raise InvalidSettingError(
                    f"{given[field]}: expected a number above 0, found {shown(str(found[field]))}"
                )
            found[field] = number
        if "acks" in found:
            found["acks"] = _acks(str(found["acks"]))
        _fill_in_user(found, path)
        settings = cls(**found)  # type: ignore[arg-type]  # the names are those of _NAMES
        settings._check()
        return settings

    def _check(self) -> None:
        if self.security_protocol not in _PROTOCOLS:
            raise InvalidSettingError(
                f"security.protocol: expected one of {', '.join(_PROTOCOLS)}, found {shown(self.security_protocol)}"
            )
        if self.uses_sasl and self.sasl_mechanism not in _MECHANISMS:
            raise InvalidSettingError(
                f"sasl.mechanism: expected one of {', '.join(_MECHANISMS)}, found {shown(self.sasl_mechanism)}"
            )
        if self.uses_sasl and not (self.sasl_username and self.sasl_password):
            raise InvalidSettingError(
                "sasl.username and sasl.password (or sasl.password.file, or sasl.jaas.config) are needed with "
                f"security.protocol={self.security_protocol}"
            )

        if self.fetch_max_wait_ms >= self.request_timeout_ms:
            raise InvalidSettingError(
                f"fetch.max.wait.ms: expected less than request.timeout.ms, {self.request_timeout_ms}, found "
                f"{self.fetch_max_wait_ms}: the answer of a leader that has nothing new would come too late"
            )

    @property
    def uses_sasl(self) -> bool:
        """Tell whether a user and a password are given to the brokers."""
        return self.security_protocol.startswith("SASL_")

    def tls(self) -> ssl.SSLContext | None:
        """Return the context for TLS, None without it. InvalidSettingError where a file of it cannot be used."""
        if not self.security_protocol.endswith("SSL"):
            return None
        try:
            context = ssl.create_default_context(cafile=self.ssl_cafile or None)
            context.check_hostname = bool(self.ssl_endpoint_identification_algorithm)
            if self.ssl_certfile:
                # Without a password OpenSSL would ask for one on the terminal; an empty one fails.
                context.load_cert_chain(self.ssl_certfile, self.ssl_keyfile or None, self.ssl_password)
        except (OSError, ValueError) as error:
            files = ", ".join(filter(None, (self.ssl_cafile, self.ssl_certfile, self.ssl_keyfile)))
            hint = "" if self.ssl_password else ". A key that is encrypted needs ssl.password"
            raise InvalidSettingError(f"{self.place}: {files}: not usable for TLS: {error}{hint}") from error
        return context


def _acks(text: str) -> int:
    if text not in _ACKS:
        raise InvalidSettingError(
            f"acks: expected all or 1, found {shown(text)}: without an answer close(2) could not tell of an error"
        )
    return _ACKS[text]


def _fill_in_user(found: dict[str, str | int], path: Path) -> None:
    """Put the user and the password in their place, wherever they were given."""
    jaas = str(found.pop("sasl_jaas_config", ""))
    for name, value in _JAAS.findall(jaas):
        found.setdefault(f"sasl_{name}", re.sub(r"\\(.)", r"\1", value))
    file = found.pop("sasl_password_file", None)
    if file is not None:
        # A name in a file is meant beside that file.
        place = path.parent / str(file)
        try:
            found["sasl_password"] = read_bounded(place, _MOST_PASSWORD_BYTES, follow=True).decode().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidSettingError(f"sasl.password.file: {place} cannot be read: {error}") from error
