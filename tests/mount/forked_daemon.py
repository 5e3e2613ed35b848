"""Daemons that are forked from a process that has loaded the engine: a start takes 0.05 s in place of a second.

Each process of tests has one such nursery, `steered_daemon.py nursery`. It reads orders, lines of JSON, and answers
each by a line: to fork a daemon, which gives the number of its process, and to collect one that has ended, which gives
its exit code. How a daemon starts on its own is looked at in tests/mountd.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from topicfs.engine.kernels.compile import load_all

ROOT = Path(__file__).parents[2]
TESTED = f"{ROOT}:{ROOT / 'tests'}"
"""Where steered daemons find what they are made of."""

STEERED = str(Path(__file__).with_name("steered_daemon.py"))


class ForkedDaemon:
    """A daemon, with what tests use of `subprocess.Popen`.

    pid         its process
    returncode  None while it runs
    """

    def __init__(self, nursery: Nursery, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._nursery = nursery
        self._ended = os.pidfd_open(pid)
        # Not select(2): a process of tests has had more than 1,024 files open.
        self._poll = select.poll()
        self._poll.register(self._ended, select.POLLIN)

    def poll(self) -> int | None:
        """The exit code, None while it runs."""
        return self._collected(0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end, and give the exit code."""
        code = self._collected(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(STEERED, timeout or 0)
        return code

    def _collected(self, timeout: float | None) -> int | None:
        if self.returncode is None and self._poll.poll(None if timeout is None else timeout * 1000):
            self.returncode = self._nursery.order("collect", self.pid)
            os.close(self._ended)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Nothing if it has ended. Its number is nobody else's until it is collected."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Nursery:
    """The process that daemons are forked from."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, STEERED, "nursery"],
            env={**os.environ, "PYTHONPATH": TESTED},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._lock = threading.Lock()
        atexit.register(self._end)

    def start(self, arguments: Sequence[str], environment: Mapping[str, str]) -> ForkedDaemon:
        """Fork a daemon."""
        return ForkedDaemon(self, self.order("fork", list(arguments), dict(environment)))

    def order(self, *order: object) -> int:
        """Have something done, and give what it gives."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._lock:
            self._process.stdin.write(json.dumps([*order, os.getcwd()]) + "\n")
            self._process.stdin.flush()
            return int(self._process.stdout.readline())

    def _end(self) -> None:
        self._process.communicate()


@cache
def nursery() -> Nursery:
    """The one of this process."""
    return Nursery()


# -- in the nursery -----------------------------------------------------------------------------------


def serve(run: Callable[[list[str]], Any]) -> None:
    """Fork and collect daemons, until there are no more orders. In a daemon `run` gets the arguments."""
    load_all()
    gc.freeze()
    orders, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    for line in orders:
        kind, *given, place = json.loads(line)
        if kind == "fork":
            answer = os.fork()
            if answer == 0:
                os.close(orders.fileno())
                os.close(answers.fileno())
                _become(run, place, *given)
        else:
            answer = os.waitstatus_to_exitcode(os.waitpid(given[0], 0)[1])
        answers.write(f"{answer}\n")
        answers.flush()


def _become(
    run: Callable[[list[str]], Any], place: str, arguments: list[str], environment: dict[str, str]
) -> None:
    """Be the daemon, and end."""
    code = 1
    try:
        null = os.open(os.devnull, os.O_RDWR)
        for number in range(3):
            os.dup2(null, number)
        os.close(null)
        os.chdir(place)
        os.environ.clear()
        os.environ.update(environment)
        run(arguments)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    finally:
        os._exit(code)
