"""What programs hold of a mount: each kind is counted, bounded by a setting, and shown in the metrics.

A user can open any number of files from any number of processes. Without bounds the daemon would pay for all of them
with its memory and its threads, and all others with it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from topicfs.engine.settings.daemon import DaemonSettings
from topicfs.fs import errors


class Holding:
    """How much programs hold of one kind, and how much they may.

    held     how much it is now
    most     how much it may be
    _refuse  makes the error for who wants more
    _guard   held while it is counted
    """

    def __init__(self, most: int, refuse: Callable[[int], Exception]) -> None:
        self.held = 0
        self.most = most
        self._refuse = refuse
        self._guard = threading.Lock()

    def take(self, count: int = 1) -> None:
        """Count more that is held, or raise the error where that is too much: then nothing is counted."""
        with self._guard:
            if self.held + count > self.most:
                raise self._refuse(self.most)
            self.held += count

    def give(self, count: int = 1) -> None:
        """Count what is not held any more."""
        with self._guard:
            self.held -= count


@dataclass(frozen=True, slots=True)
class Holdings:
    """What programs hold of one mount.

    open_files        open files. Each takes some KiB
    followers         those of them whose reads wait for records to come, each in a thread of its own
    unfinished_bytes  bytes of lines whose newline has not come
    """

    open_files: Holding
    followers: Holding
    unfinished_bytes: Holding

    @classmethod
    def of(cls, daemon: DaemonSettings) -> Holdings:
        """Return what is held of a mount that nobody has used yet."""
        return cls(
            Holding(daemon.max_open_files, lambda most: _too_many(most, "files", "max.open.files")),
            Holding(daemon.max_followers, lambda most: _too_many(most, "files that wait", "max.followers")),
            Holding(
                daemon.max_unfinished_bytes,
                lambda most: errors.TooMuchUnfinishedError(
                    f"lines whose newline has not come have {most} bytes: end some first, or raise max.unfinished.bytes"
                ),
            ),
        )


def _too_many(most: int, what: str, setting: str) -> Exception:
    return errors.TooManyOpenError(f"{most} {what} are open: close some first, or raise {setting}")
