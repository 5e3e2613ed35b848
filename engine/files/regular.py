"""Opening files of the store: only regular files, and never through a symbolic link.

A user who may write into BACKING can put a symbolic link, a FIFO or a device where a file of ours is expected. To
follow the link would read or overwrite a file of somebody else with the daemon's rights; a FIFO would make the daemon
wait for ever. Directories that an operator may move to another disk may be links: BACKING itself, `logs`, `staging`
and the ones beside them, and a partition's directory. So may the settings files, which some tools manage as links.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO, Final

_KINDS: Final = {
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a directory",
}


class NotRegularError(OSError):
    """Something else was found where a regular file is expected."""


def open_regular(
    path: Path | str, flags: int, mode: int = 0o666, directory: int | None = None, follow: bool = False
) -> int:
    """Open a regular file as open(2) does, without waiting. Return its descriptor; NotRegularError for anything else.

    directory  the descriptor of the directory to which `path` is relative
    follow     whether the last name may be a link to a regular file"""
    guarded = flags | os.O_CLOEXEC | os.O_NONBLOCK | (0 if follow else os.O_NOFOLLOW)
    # The file is also checked before it is opened: opening a device may already have an effect.
    check_regular(path, directory, follow)
    try:
        beside = {} if directory is None else {"dir_fd": directory}
        descriptor = os.open(path, guarded, mode, **beside)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            check_regular(path, directory, follow)
        raise
    try:
        _check(os.fstat(descriptor).st_mode, path)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def read_regular(path: Path | str, follow: bool = False) -> BinaryIO:
    """Open a regular file for reading."""
    return os.fdopen(open_regular(path, os.O_RDONLY, follow=follow), "rb")


def check_regular(path: Path | str, directory: int | None = None, follow: bool = False) -> None:
    """Raise NotRegularError where there is something other than a regular file. A missing file is allowed."""
    try:
        found = os.stat(path, dir_fd=directory, follow_symlinks=follow)
    except FileNotFoundError:
        return
    _check(found.st_mode, path)


def _check(mode: int, path: Path | str) -> None:
    if not stat.S_ISREG(mode):
        kind = _KINDS.get(stat.S_IFMT(mode), "something else")
        raise NotRegularError(errno.EINVAL, f"expected a regular file, found {kind}", str(path))
