"""`BACKING/views/`: things that were made of the logs and can be made again. Losing any of them costs time only."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path
from typing import Final

from engine.errors import CorruptCheckpointError
from engine.store.files import read_bounded

_LARGEST: Final = 64 << 20


class Views:
    """Files under `views/<partition>/`.

    root  the directory
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def load(self, partition: str, name: str) -> bytes | None:
        """What was saved under this name; None where there is nothing that can be used."""
        try:
            return read_bounded(self.root / partition / name, _LARGEST)
        except (FileNotFoundError, CorruptCheckpointError):
            return None

    def save(self, partition: str, name: str, data: bytes) -> None:
        """Keep it. Not made durable: after a crash it is old, new or damaged, and its reader finds that out."""
        directory = self.root / partition
        directory.mkdir(exist_ok=True)
        temporary = directory / f"{name}.tmp"
        temporary.write_bytes(data)
        os.replace(temporary, directory / name)

    def remove(self, partition: str, name: str) -> None:
        """Forget it."""
        (self.root / partition / name).unlink(missing_ok=True)

    def remove_partition(self, partition: str) -> None:
        """Forget all that is of a partition: another one may come to have its name."""
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(self.root / partition)
