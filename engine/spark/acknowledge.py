"""Readers that Spark sends to its workers, and the socket on which they arrive.

A task comes in two writes: what is to be done, and its range of offsets. The kernel on Spark's side holds the second
one back until the first is acknowledged, and the kernel on our side delays that by 40 ms, in the hope of sending it
along with an answer. That was half of what a micro-batch of ten records took. A reader is unpickled between the two.

A Unix socket, as of `spark.python.unix.domain.socket.enabled`, knows no such delay."""

from __future__ import annotations

import os
import socket
import stat
import sys
from typing import Any


class SentToWorkers:
    """An object that Spark sends to its workers, whose kernel acknowledges at once when it has arrived."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        acknowledge()


def acknowledge() -> None:
    """Have what this process has received over TCP acknowledged now. Later data are delayed as before."""
    if sys.platform != "linux":
        return
    for name in os.listdir("/proc/self/fd"):
        try:
            if not stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                continue
            with socket.socket(fileno=os.dup(int(name))) as copy:
                if copy.family in (socket.AF_INET, socket.AF_INET6) and copy.type == socket.SOCK_STREAM:
                    copy.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
        except OSError:  # closed meanwhile: that of the listing itself always is
            continue
