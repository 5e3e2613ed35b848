"""Kernels of the mounted face: records → bytes of a format, and back. `python -m fs.kernels` compiles them.

Helpers of `engine.kernels` are compiled into these kernels as well, which numba does not see: so their cached
code is dropped, before the first of them is loaded, when a file of either folder has changed.
"""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import Path

import engine.kernels


def _drop_outdated_code(folder: Path, *sources: Path) -> None:
    digest = hashlib.sha256()
    for source in sources:
        for file in sorted(source.glob("*.py")):
            digest.update(file.read_bytes())
    cache = folder / "__pycache__"
    stamp = cache / "kernels.sha256"
    if stamp.exists() and stamp.read_text() == digest.hexdigest():
        return
    # Where the folder cannot be written, it was installed by somebody else, and its sources do not change.
    with contextlib.suppress(OSError):
        for outdated in (*cache.glob("*.nbi"), *cache.glob("*.nbc")):
            outdated.unlink(missing_ok=True)
        cache.mkdir(exist_ok=True)
        stamp.write_text(digest.hexdigest())


_HERE = Path(__file__).parent
_drop_outdated_code(_HERE, _HERE, *map(Path, engine.kernels.__path__))
