"""A connection to one broker: a question, and its answer. One thread uses it at a time; any may close it.

    frame := length (int32) · header · message

Messages and SASL are those of kafka-python, the socket is our own: its connections read 4 KiB at a time, retry by
themselves and log on their own, and keep a refusal for ever; here each wait has a limit, and each error goes to who
asked. What comes is not believed: a frame has a largest size, and a message that breaks its format ends the connection.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import select
import socket
import ssl
import struct
import time
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, Self

import numpy as np
from kafka.errors import KafkaError, for_code
from kafka.net.sasl import get_sasl_mechanism
from kafka.protocol.metadata import ApiVersionsRequest
from kafka.protocol.sasl import SaslAuthenticateRequest, SaslHandshakeRequest

from topicfs.engine.batch.table import Bytes
from topicfs.engine.errors import ClusterAwayError, LinkError, LinkRefusedError
from topicfs.engine.link.client import ClientSettings
from topicfs.engine.segment.walk import Room, room

log = logging.getLogger(__name__)

_LENGTH: Final = struct.Struct(">i")
_HEADER_BYTES: Final = 1024
"""The header of an answer is read from this many bytes: it has 4, and tagged fields of which no broker sends any."""

_LEAST_BYTES: Final = 64 * 1024
"""An answer that is longer comes in pieces of at least this size, each within the time of a request: a broker that
sends a byte now and then would hold up its reader for days."""

_BROKEN: Final = (ValueError, KeyError, IndexError, TypeError, OverflowError, struct.error, KafkaError)
"""What kafka-python raises for a message that breaks its format."""

_OLD: Final = "Kafka 3.1 or later is needed, whose topics have ids"
_HINT: Final = (
    "a listener for TLS, or one that wants a password, ends connections like this: see security.protocol"
)


class Address(NamedTuple):
    """The address of a broker."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class Connection:
    """A connection to a broker that has taken our password, if it wanted one.

    address    the broker's
    _socket    the socket, perhaps with TLS
    _client    the settings
    _waiting   the requests that were sent and not answered, the oldest first
    _sent      how many requests were sent: each has its number, which its answer repeats
    versions   the lowest and the highest version of each request that the broker knows, by its key
    """

    def __init__(self, address: Address, connected: socket.socket, client: ClientSettings) -> None:
        self.address = address
        self._socket = connected
        self._client = client
        self._waiting: list[Any] = []
        self._sent = 0
        self.versions: Mapping[int, tuple[int, int]] = {}

    @classmethod
    def open(cls, address: Address, client: ClientSettings, tls: ssl.SSLContext | None) -> Self:
        """Connect, within the settings' time: `begin` comes next. ClusterAwayError where nobody answers;
        LinkRefusedError where the certificate is not good."""
        try:
            connected = socket.create_connection(address, client.connect_timeout_ms / 1000)
        except OSError as error:
            raise ClusterAwayError(f"{address}: cannot be reached: {error}") from error
        try:
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if tls is not None:
                connected = _with_tls(tls, connected, address, client)
            connected.settimeout(client.request_timeout_ms / 1000)
        except BaseException:
            connected.close()
            raise
        return cls(address, connected, client)

    def close(self) -> None:
        """End the connection, also while another thread waits for an answer: that fails then."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    @property
    def waits(self) -> bool:
        """Tell whether an answer is still to come."""
        return bool(self._waiting)

    # -- questions and answers ------------------------------------------------------------------------

    def ask(self, request: Any) -> Any:
        """Send a request, and return its answer."""
        self.send(request)
        return self.receive()

    def send(self, request: Any) -> None:
        """Send a request, whose answer `receive` returns. ClusterAwayError where the connection is gone."""
        self._sent = (self._sent + 1) & 0x7FFFFFFF
        request.with_header(correlation_id=self._sent, client_id=self._client.client_id)
        try:
            self._socket.sendall(request.encode(framed=True, header=True))
        except OSError as error:
            raise self._gone(error) from error
        self._waiting.append(request)

    def is_ready(self, wake: int, timeout_s: float) -> bool:
        """Wait until an answer begins to come, or `wake`, an eventfd, is written to, which is reset. Return whether an
        answer comes."""
        if isinstance(self._socket, ssl.SSLSocket) and self._socket.pending():
            return True
        poll = select.poll()
        poll.register(wake, select.POLLIN)
        try:
            poll.register(self._socket, select.POLLIN)
        except (OSError, ValueError) as error:
            raise ClusterAwayError(f"{self.address}: the connection is closed") from error
        found = [descriptor for descriptor, _ in poll.poll(timeout_s * 1000)]
        if wake in found:
            os.eventfd_read(wake)
        return any(descriptor != wake for descriptor in found)

    def receive(self) -> Any:
        """Return the answer to the oldest request that has none. ClusterAwayError where none comes in time, LinkError
        where it breaks the protocol: then the connection must be closed."""
        request, data, start = self._receive(room)
        try:
            return request.header.get_response_class().decode(memoryview(data)[start:])
        except _BROKEN as error:
            raise self.broken(request, repr(error)) from error

    def receive_raw(self, buffer: Room) -> Bytes:
        """Receive as `receive` does, into a buffer that is given, and return the message as it came."""
        _, data, start = self._receive(buffer)
        return data[start:]

    def broken(self, request: Any, words: str) -> LinkError:
        """Return the error of an answer that breaks its format."""
        return LinkError(f"{self.address}: an answer to {request.name} breaks its format: {words}")

    def _receive(self, buffer: Room) -> tuple[Any, Bytes, int]:
        """Return the oldest request that has no answer, what came, and where the answer begins in it."""
        length = np.empty(_LENGTH.size, np.uint8)
        self._fill(length)
        size = _LENGTH.unpack(length)[0]
        if not 4 <= size <= self._client.receive_max_bytes:
            raise LinkError(
                f"{self.address}: expected an answer of at most {self._client.receive_max_bytes} bytes "
                f"(receive.message.max.bytes), found a length of {size}: {_HINT}"
            )
        data = buffer(size)
        self._fill(data)
        request = self._waiting.pop(0)
        try:
            head = io.BytesIO(data[:_HEADER_BYTES].tobytes())
            number = request.header.get_response_class().parse_header(head).correlation_id
        except _BROKEN as error:
            raise self.broken(request, repr(error)) from error
        if number != request.header.correlation_id:
            raise LinkError(
                f"{self.address}: expected the answer to request {request.header.correlation_id}, "
                f"found that to {number}"
            )
        return request, data, head.tell()

    def _fill(self, data: Bytes) -> None:
        """Receive so many bytes as there is room for."""
        rest = memoryview(data)
        limit_s = self._client.request_timeout_ms / 1000
        deadline, left = time.monotonic() + limit_s, len(rest) - _LEAST_BYTES
        try:
            while rest:
                count = self._socket.recv_into(rest)
                if not count:
                    raise ConnectionResetError("the broker has closed the connection")
                rest = rest[count:]
                if len(rest) <= left:
                    deadline, left = time.monotonic() + limit_s, len(rest) - _LEAST_BYTES
                elif rest and time.monotonic() > deadline:
                    raise TimeoutError
        except OSError as error:
            raise self._gone(error) from error

    def _gone(self, error: OSError) -> ClusterAwayError:
        if isinstance(error, TimeoutError):
            return ClusterAwayError(
                f"{self.address}: no answer, or too little of it, within {self._client.request_timeout_ms} ms "
                f"(request.timeout.ms)"
            )
        return ClusterAwayError(f"{self.address}: the connection is lost: {error}")

    # -- the beginning --------------------------------------------------------------------------------

    def begin(self) -> None:
        """Ask which versions the broker knows, and give it the password if it wants one. LinkRefusedError where the
        password is not good; LinkError where the broker is too old."""
        self._greet()
        if self._client.uses_sasl:
            self._authenticate()

    def _greet(self) -> None:
        """Ask which versions the broker knows. It must know those that are used here."""
        try:
            answer = self.ask(
                ApiVersionsRequest[3](client_software_name="topicfs", client_software_version="1")
            )
        except ClusterAwayError as error:
            raise ClusterAwayError(f"{error}; {_HINT}") from error
        if answer.error_code:
            raise LinkError(f"{self.address}: {words_of(answer.error_code)}: {_OLD}")
        known = {each.api_key: (each.min_version, each.max_version) for each in answer.api_keys}
        self.versions = known
        for key, (name, version) in VERSIONS.items():
            least, most = known.get(key, (0, -1))
            if not least <= version <= most:
                raise LinkError(
                    f"{self.address}: expected {name} in version {version}, found {least} to {most}: {_OLD}"
                )

    def _authenticate(self) -> None:
        client = self._client
        shaken = self.ask(SaslHandshakeRequest[1](mechanism=client.sasl_mechanism))
        if shaken.error_code:
            raise LinkRefusedError(
                f"{self.address}: sasl.mechanism={client.sasl_mechanism} is not one of this broker's: "
                f"{', '.join(shaken.mechanisms) or words_of(shaken.error_code)}"
            )
        try:
            mechanism = get_sasl_mechanism(client.sasl_mechanism)(
                host=self.address.host,
                security_protocol=client.security_protocol,
                sasl_mechanism=client.sasl_mechanism,
                sasl_plain_username=client.sasl_username,
                sasl_plain_password=client.sasl_password,
            )
            while not mechanism.is_done():
                answer = self.ask(SaslAuthenticateRequest[2](auth_bytes=mechanism.auth_bytes()))
                if answer.error_code:
                    raise LinkRefusedError(
                        f"{self.address}: the cluster refuses user {client.sasl_username!r}: "
                        f"{answer.error_message or words_of(answer.error_code)}. Check sasl.username, sasl.password "
                        f"and sasl.mechanism in {client.place}"
                    )
                mechanism.receive(bytes(answer.auth_bytes))
        except _BROKEN as error:
            raise LinkRefusedError(
                f"{self.address}: {client.sasl_mechanism} failed, perhaps as the broker does not know the password: "
                f"{error}"
            ) from error


VERSIONS: Final[Mapping[int, tuple[str, int]]] = {
    1: ("Fetch", 13),
    2: ("ListOffsets", 7),
    3: ("Metadata", 12),
    22: ("InitProducerId", 4),
    32: ("DescribeConfigs", 4),
}
"""The version in which each request is sent, by its key. From version 13 on Fetch names topics by their ids."""


def words_of(code: int) -> str:
    """Return what an error code of the protocol means."""
    kind = for_code(code)
    return f"{getattr(kind, 'message', kind.__name__)} ({code})"


def _with_tls(
    tls: ssl.SSLContext, connected: socket.socket, address: Address, client: ClientSettings
) -> socket.socket:
    try:
        return tls.wrap_socket(connected, server_hostname=address.host)
    except ssl.SSLCertVerificationError as error:
        raise LinkRefusedError(
            f"{address}: its certificate is not good: {error.verify_message}. Check ssl.cafile in {client.place}, now "
            f"{client.ssl_cafile or 'the certificates of the system'}"
        ) from error
    except ssl.SSLError as error:
        raise LinkRefusedError(
            f"{address}: TLS failed: {error.reason or error}. Check security.protocol and the certificates in "
            f"{client.place}"
        ) from error
    except OSError as error:
        raise ClusterAwayError(f"{address}: the connection is lost while TLS begins: {error}") from error
