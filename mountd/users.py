"""The users of a mount: the programs that have a file or directory of it open, run in it, or have mapped a file.

The mount itself is not asked, as it would not answer if its daemon hangs. The kernel shows each process in /proc:

    fdinfo/<n>     mnt_id of each open file; fd/<n> is a link to its path
    mountinfo      the numbers of all mounts that the process sees, with their devices: it may be in another namespace
    cwd, root, exe links to its working directory, its root and its program
    maps           each mapping, with device and path

Only root sees all that for the processes of other users.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_PROCESSES: Final = Path("/proc")

# People read the refusal, so the list is short.
_MOST_SHOWN: Final = 8

_LINKS: Final = {"cwd": "working directory", "root": "root directory", "exe": "program"}


@dataclass(frozen=True, slots=True)
class User:
    """One process that keeps a mount busy.

    process  the process id
    program  the name of the program, as the kernel shows it
    uses     what it uses, in words: "working directory /mnt/logs", "/mnt/logs/orders-0/log.txt"
    """

    process: int
    program: str
    uses: tuple[str, ...]

    def __str__(self) -> str:
        more = f" and {len(self.uses) - 1} more" if len(self.uses) > 1 else ""
        return f"process {self.process} ({self.program}): {self.uses[0]}{more}"


def users_of(point: Path, device: str) -> list[User]:
    """Return the processes that use the mount at `point`, whose device has this number, except the calling one."""
    found = []
    for entry in sorted(_numbers(_PROCESSES)):
        if entry == os.getpid():
            continue
        uses = tuple(dict.fromkeys(_uses(_PROCESSES / str(entry), point, device)))
        if uses:
            found.append(User(entry, _program(entry), uses))
    return found


def in_words(users: list[User]) -> str:
    """Return a line for each user, and how many more there are than the lines show."""
    lines = [f"    {user}" for user in users[:_MOST_SHOWN]]
    if len(users) > _MOST_SHOWN:
        lines.append(f"    and {len(users) - _MOST_SHOWN} more")
    return "\n".join(lines)


def _uses(process: Path, point: Path, device: str) -> Iterator[str]:
    for name, words in _LINKS.items():
        path = _target(process / name)
        if path is not None and _is_below(path, point):
            yield f"{words} {path}"
    numbers = _mounts_of(process, device)
    for descriptor in _numbers(process / "fdinfo") if numbers else ():
        if _mount_of(process / "fdinfo" / str(descriptor)) in numbers:
            yield _target(process / "fd" / str(descriptor)) or f"descriptor {descriptor}"
    for line in _lines(process / "maps"):
        # Address, permissions, offset, device, inode, path. Here both parts of the device are hexadecimal.
        fields = line.split(None, 5)
        if len(fields) == 6 and _decimal(fields[3]) == device:
            yield f"mapping of {fields[5]}"


def _mounts_of(process: Path, device: str) -> set[str]:
    """Return the numbers under which a process sees the mount."""
    fields = (line.split(" ", 3) for line in _lines(process / "mountinfo"))
    return {each[0] for each in fields if len(each) > 3 and each[2] == device}


def _mount_of(description: Path) -> str | None:
    """Return the number of the mount that an open file is on."""
    for line in _lines(description):
        name, _, value = line.partition(":")
        if name == "mnt_id":
            return value.strip()
    return None


def _decimal(device: str) -> str:
    major, _, minor = device.partition(":")
    return f"{int(major, 16)}:{int(minor, 16)}"


def _is_below(path: str, point: Path) -> bool:
    return path == str(point) or path.startswith(f"{point}/")


def _program(process: int) -> str:
    return next(iter(_lines(_PROCESSES / str(process) / "comm")), "?")


# A process may end at any time, and another user's process cannot be read: such errors mean that there is no use to
# show.


def _numbers(directory: Path) -> list[int]:
    try:
        return [int(name) for name in os.listdir(directory) if name.isdecimal()]
    except OSError:
        return []


def _target(link: Path) -> str | None:
    try:
        return os.readlink(link)
    except OSError:
        return None


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return []
