"""A mount as a service of systemd: it tells when it answers, when it stops, and again and again that it still answers.

systemd names a socket in NOTIFY_SOCKET and, where it has a watchdog, its interval in WATCHDOG_USEC: `man sd_notify`.
Without these variables nothing is done.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

log = logging.getLogger(__name__)

_SOCKET: Final = "NOTIFY_SOCKET"
_INTERVAL: Final = "WATCHDOG_USEC"
_PROCESS: Final = "WATCHDOG_PID"
READY: Final = "READY=1"
STOPPING: Final = "STOPPING=1"
ALIVE: Final = "WATCHDOG=1"


@dataclass(frozen=True, slots=True)
class Service:
    """What the manager of services wants to be told.

    address   the socket on which it listens; None where nobody does
    every_s   how often it is told that the mount answers; None where it does not ask
    """

    address: str | None
    every_s: float | None

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Self:
        """Return what the environment of this process asks for."""
        address = environment.get(_SOCKET)
        interval = environment.get(_INTERVAL, "")
        is_ours = environment.get(_PROCESS, str(os.getpid())) == str(os.getpid())
        # An address that begins with @ has no name in the file system.
        found = address.replace("@", "\0", 1) if address and address[0] in "/@" else None
        # As its manual says: twice as often as it looks.
        return cls(found, int(interval) / 2e6 if interval.isdecimal() and int(interval) and is_ours else None)

    def tell(self, state: str) -> None:
        """Tell a state. A manager that is gone is no reason to end."""
        if self.address is None:
            return
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:
            end.connect(self.address)
            end.sendall(state.encode())

    def ready(self, mount: Path) -> None:
        """Tell that a mount answers, and go on telling it as long as it does."""
        self.tell(READY)
        if self.address is not None and self.every_s is not None:
            threading.Thread(
                target=self._watch, args=(mount, self.every_s), name="watchdog", daemon=True
            ).start()

    def _watch(self, mount: Path, every_s: float) -> None:
        pause = threading.Event()
        while not pause.wait(every_s):
            try:
                # The kernel remembers nothing of this: it asks the daemon each time. A daemon that hangs never answers,
                # and then nothing is told.
                os.statvfs(mount)
            except OSError as error:
                log.info(f"the watchdog ends: {mount}: {error.strerror}")
                return
            self.tell(ALIVE)
