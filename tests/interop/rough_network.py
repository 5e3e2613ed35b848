"""A network between a client and a broker that delays, cuts and resets connections, as a test wants it to."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

PIECE: Final = 16 * 1024
RESET: Final = struct.pack("ii", 1, 0)
"""SO_LINGER of a socket whose close resets its connection."""


@dataclass(slots=True, eq=False)
class RoughNetwork:
    """A port that leads to a broker's.

    port        where clients connect
    target      where the broker listens
    delay_s     how long each piece of an answer waits
    pieces      pieces of answers that went through
    """

    port: int
    target: int
    delay_s: float = 0.0
    pieces: int = 0
    _server: socket.socket | None = None
    _pairs: set[tuple[socket.socket, socket.socket]] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    @contextlib.contextmanager
    def between(cls, port: int, target: int) -> Iterator[RoughNetwork]:
        """A network that is up."""
        network = cls(port, target)
        network.come()
        try:
            yield network
        finally:
            network.go()

    def come(self) -> None:
        """Take connections."""
        self._server = socket.create_server(("127.0.0.1", self.port))
        threading.Thread(target=self._accept, args=(self._server,), daemon=True).start()

    def go(self, reset: bool = False) -> None:
        """Take none any more, and end those that there are: in order, or by a reset in the middle of whatever comes."""
        server, self._server = self._server, None
        if server is not None:
            with contextlib.suppress(OSError):
                server.shutdown(socket.SHUT_RDWR)
            server.close()
        self.cut(reset)

    def cut(self, reset: bool = False) -> None:
        """End all connections; others may come at once."""
        with self._lock:
            pairs, self._pairs = self._pairs, set()
        for pair in pairs:
            for end in pair:
                with contextlib.suppress(OSError):
                    if reset:
                        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                    end.shutdown(socket.SHUT_RDWR)
                end.close()

    def _accept(self, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = server.accept()
                try:
                    broker = socket.create_connection(("127.0.0.1", self.target))
                except OSError:
                    client.close()
                    continue
                with self._lock:
                    self._pairs.add((client, broker))
                for source, sink in ((client, broker), (broker, client)):
                    threading.Thread(
                        target=self._pass_on, args=(source, sink, source is broker), daemon=True
                    ).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket, slow: bool) -> None:
        with contextlib.suppress(OSError):
            while piece := source.recv(PIECE):
                if slow:
                    self.pieces += 1
                    time.sleep(self.delay_s)
                sink.sendall(piece)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
