"""Where compiled kernels are kept, so that they are compiled once.

Looked for in this order:

1. the directory that NUMBA_CACHE_DIR names, where somebody has set it;
2. beside the sources, in `__pycache__`: compiled at installation, they serve every user;
3. the user's own cache by the rules of XDG: $XDG_CACHE_HOME/topicfs, else ~/.cache/topicfs.

What has to be compiled goes into the first of them that can be written, and stays in memory alone where none can.

What is read from there is executed. Beside the sources it is trusted as they are. Any other directory is used only if
nobody but root and this user can write into it, or put another one in its place.

numba takes cached code for current while the kernel's own file is unchanged, but helpers and constants of other files
are compiled into it: so a directory counts only for the very sources that its stamp names, and is emptied for others.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import pickle
import stat
import zlib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

from llvmlite.binding import add_symbol
from numba.core import caching
from numba.core.runtime._nrt_python import c_helpers

log = logging.getLogger(__name__)

STAMP: Final = "kernels.sha256"

# By the folder of a kernel's source.
_DIRECTORIES: Final[dict[Path, Directories]] = {}

_CHECKSUM_BYTES: Final = 4


class Directories:
    """Where the compiled kernels of one folder of sources are looked for, and go.

    folder  of the sources
    digest  of these, and of all whose helpers they use
    found   directories whose stamp names the digest, in the order in which they are looked into
    target  where new ones go; None before the first, and where there is no such place
    """

    def __init__(self, folder: Path, digest: str) -> None:
        self.folder = folder
        self.digest = digest
        self.candidates = list(_candidates(folder))
        self.found = [place for place in self.candidates if _stamp_of(place) == digest]
        self._target: Path | None = None
        self._looked = False

    def target(self) -> Path | None:
        """Where what is compiled now is kept, made ready for it; None where it cannot be kept."""
        if not self._looked:
            self._looked = True
            self._target = next((place for place in self.candidates if self._is_ready(place)), None)
            if self._target is not None and self._target not in self.found:
                self.found.append(self._target)
        return self._target

    def _is_ready(self, place: Path) -> bool:
        try:
            if place == _beside(self.folder):
                place.mkdir(exist_ok=True)
            else:
                for missing in reversed([each for each in (place, *place.parents) if not each.exists()]):
                    missing.mkdir(mode=0o700, exist_ok=True)
                if not _is_safe(place):
                    return False
            if _stamp_of(place) != self.digest:
                for outdated in (*place.glob("*.nbi"), *place.glob("*.nbc")):
                    outdated.unlink(missing_ok=True)
                (place / STAMP).write_text(self.digest)
        except OSError:
            return False
        return os.access(place, os.W_OK | os.X_OK)


def prepare(folder: Path, *also: Path) -> None:
    """Settle where the kernels of a folder are kept, whose helpers and constants come from the folders and files `also`
    too. Called before the first of them is imported."""
    digest = hashlib.sha256()
    for place in (folder, *also):
        for source in sorted(place.glob("*.py")) if place.is_dir() else (place,):
            digest.update(source.read_bytes())
    _DIRECTORIES[folder] = Directories(folder, digest.hexdigest())


def kept() -> list[Path | None]:
    """Return, for each folder of sources, where its compiled kernels are kept; None where none are."""
    return [next(iter(each.found), None) for each in _DIRECTORIES.values()]


class KernelCache(caching._Cache):
    """What numba asks for one kernel's compiled code, and gives it to.

    A directory that cannot be read or written, or holds what is damaged, is as if it were not there: the kernel is
    compiled, which takes longer and gives the same.

    begun  called before it is compiled
    kept   whether what is compiled now can be kept
    """

    def __init__(self, function: Callable[..., Any], begun: Callable[[bool], None]) -> None:
        self._function = function
        self._begun = begun
        self._directories = _DIRECTORIES[Path(function.__code__.co_filename).parent]

    @property
    def cache_path(self) -> str:
        return str(self._directories.folder)

    def load_overload(self, signature: Any, target: Any) -> Any:
        for place in self._directories.found:
            kept = _cache_in(place, self._function)
            try:
                # Not by `load_overload`, which first makes the compiler ready for whatever types there are: that takes
                # 140 ms, and finished machine code needs nothing of it but addresses. The compiler does it for itself.
                _name_functions_of_runtime()
                found = kept._load_overload(signature, target)
            except Exception as error:  # noqa: BLE001 - unpickling what is cut short raises anything
                log.info(
                    f"{place}: {self._function.__name__} cannot be read, and is compiled anew: {error!r}"
                )
                # A damaged index is in the way of a new one. Where it cannot be changed, nothing is kept there.
                with contextlib.suppress(OSError):
                    kept.flush()
                continue
            if found is not None:
                return found
        self._begun(self._directories.target() is not None)
        return None

    def holds(self, signature: Any, target: Any) -> bool:
        """Tell whether the compiled code is on disk, without loading it."""
        for place in self._directories.found:
            kept = _cache_in(place, self._function)
            with contextlib.suppress(Exception):  # what `load_overload` will tell of
                if kept._index_key(signature, target.codegen()) in kept._cache_file._load_index():
                    return True
        return False

    def save_overload(self, signature: Any, compiled: Any) -> None:
        place = self._directories.target()
        if place is None:
            return
        try:
            _cache_in(place, self._function).save_overload(signature, compiled)
        except OSError as error:
            log.info(f"{place}: {self._function.__name__} cannot be kept: {error}")

    def enable(self) -> None:
        """It always is."""

    def disable(self) -> None:
        """It always is enabled."""

    def flush(self) -> None:
        """Nothing waits."""


@cache
def _name_functions_of_runtime() -> None:
    """Tell the linker where those functions of numba's runtime are that machine code may name, as the runtime does it
    when something is compiled. A name that is not known would end the process."""
    for name, address in c_helpers.items():
        add_symbol(name if name.startswith("_") else f"NRT_{name}", address)


def _cache_in(place: Path, function: Callable[..., Any]) -> Any:
    """numba's own cache, in this directory."""

    class Locator(caching.InTreeCacheLocator):
        def __init__(self, function: Any, file: str) -> None:
            super().__init__(function, file)
            self._cache_path = str(place)

        def ensure_cache_path(self) -> None:
            """It was looked at before."""

    class Implementation(caching.CompileResultCacheImpl):
        _locator_classes = [Locator]  # noqa: RUF012 - as numba has it

    class Cache(caching.FunctionCache):
        _impl_class = Implementation

        def __init__(self, function: Any) -> None:
            super().__init__(function)
            files = self._cache_file
            self._cache_file = _CheckedFiles(files._cache_path, self._impl.filename_base, files._source_stamp)

    return Cache(function)


class _CheckedFiles(caching.IndexDataCacheFile):
    """numba's files of one kernel, of which those with machine code begin with a CRC32 of what is behind it. Machine
    code that a disk or a power cut has damaged would end the process of each command without a word."""

    def _save_data(self, name: str, data: Any) -> None:
        dumped = self._dump(data)
        with self._open_for_write(self._data_path(name)) as file:
            file.write(zlib.crc32(dumped).to_bytes(_CHECKSUM_BYTES))
            file.write(dumped)

    def _load_data(self, name: str) -> Any:
        whole = memoryview(Path(self._data_path(name)).read_bytes())
        expected, dumped = int.from_bytes(whole[:_CHECKSUM_BYTES]), whole[_CHECKSUM_BYTES:]
        if (found := zlib.crc32(dumped)) != expected:
            raise ValueError(f"{name}: expected the checksum {expected:08x}, found {found:08x}")
        return pickle.loads(dumped)


def _beside(folder: Path) -> Path:
    return folder / "__pycache__"


def _candidates(folder: Path) -> Iterator[Path]:
    # Two installations of one user must not empty each other's.
    name = f"{folder.parent.name}-{hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]}"
    if given := os.environ.get("NUMBA_CACHE_DIR"):
        yield Path(given).absolute() / "topicfs" / name
    yield _beside(folder)
    home = cache_home()
    if home is not None:
        yield home / "topicfs" / name


def cache_home() -> Path | None:
    """The user's directory for what can be made again; None where there is none, as for many a service."""
    given = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if given.is_absolute():
        return given
    # From $HOME, else from the list of users.
    with contextlib.suppress(RuntimeError):
        home = Path.home()
        if home.is_absolute() and home.is_dir():
            return home / ".cache"
    return None


def _stamp_of(place: Path) -> str | None:
    """The sources that a directory's kernels were made of; None where it is not to be used."""
    try:
        # Everything but `__pycache__` may be where others write.
        if place.name != "__pycache__" and not _is_safe(place):
            return None
        return (place / STAMP).read_text()
    except (OSError, UnicodeDecodeError):
        return None


def _is_safe(place: Path) -> bool:
    """Whether only root and this user can change what is in a directory, or put another in its place."""
    real = place.resolve(strict=True)
    trusted = {0, os.geteuid()}
    for directory in (real, *real.parents):
        status = directory.stat()
        if status.st_uid not in trusted:
            return False
        others = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        # In a sticky directory such as /tmp, nobody removes what is another's.
        if others and (directory == real or not status.st_mode & stat.S_ISVTX):
            return False
    return True
