"""`mount.fuse.topicfs`: what mount(8) runs for a line of /etc/fstab, once there is a link to it in /sbin.

    /srv/topicfs  /mnt/logs  fuse.topicfs  allow_other,log.cleanup.policy="compact,delete",_netdev,nofail  0  0

mount(8) calls it as `mount.fuse.topicfs BACKING MOUNT [-sfnv] [-o OPTION,…]`. `ro` and `allow_other` stand for the
options of `topicfs mount`; a name with a dot is a setting; what is meant for mount(8) and systemd is passed over. A
comma in double quotes, or with a backslash before it, is part of a value.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from typing import Final

_FLAGS: Final = {"ro": "--read-only", "allow_other": "--allow-other", "create": "--create"}
_FOR_OTHERS: Final = frozenset(
    (
        *("rw", "defaults", "auto", "noauto", "user", "nouser", "users", "owner"),
        *("group", "_netdev", "nofail", "exec", "noexec", "suid", "nosuid"),
        *("dev", "nodev", "async", "relatime", "norelatime", "atime", "noatime", "diratime", "nodiratime"),
        *("strictatime", "nostrictatime", "lazytime", "nolazytime", "silent", "loud"),
    )
)
_PART: Final = re.compile(r'(?:"[^"]*"|\\.|[^,"\\])+|["\\]')
_QUOTES: Final = re.compile(r'"([^"]*)"|\\(.)')
_USAGE: Final = "expected BACKING MOUNT [-sfnv] [-o OPTION,…]"


class UsageError(Exception):
    """The words are not those of mount(8)."""


def words_of(arguments: Sequence[str]) -> list[str] | None:
    """Return the words of `topicfs` that do what mount(8) asks for; None where it asks for nothing (-f)."""
    places: list[str] = []
    options: list[str] = []
    fake = False
    left = list(arguments)
    while left:
        word = left.pop(0)
        if word in ("-o", "-t"):
            if not left:
                raise UsageError(f"{word}: {_USAGE}")
            value = left.pop(0)
            options += _options_of(value) if word == "-o" else []
        elif word.startswith("-") and set(word[1:]) <= set("sfnvrw") and len(word) > 1:
            fake |= "f" in word
            options += ["ro"] if "r" in word else []
        else:
            places.append(word)
    if len(places) != 2:
        raise UsageError(f"found {len(places)} places: {_USAGE}")
    words = ["mount"]
    for option in filter(None, options):
        name, equals, _ = option.partition("=")
        if option in _FLAGS:
            words.append(_FLAGS[option])
        elif equals and "." in name and not name.startswith("x-"):
            words += ["-o", option]
        elif option == "remount":
            raise UsageError("remount: a mount keeps its options: unmount it, and mount it anew")
        elif option not in _FOR_OTHERS and not name.startswith(("x-", "X-", "comment")) and name != "user":
            raise UsageError(
                f"option {option!r}: expected ro, allow_other, create or a setting such as log.retention.ms=…"
            )
    return None if fake else [*words, "--", *places]


def _options_of(text: str) -> list[str]:
    """Return the options between the commas, without their quotes and backslashes."""
    return [_QUOTES.sub(r"\1\2", part) for part in _PART.findall(text)]


def main() -> None:
    """Mount as mount(8) asks for it, and return when the mount answers."""
    try:
        words = words_of(sys.argv[1:])
    except UsageError as error:
        sys.stderr.write(f"mount.fuse.topicfs: {error}\n")
        sys.exit(1)
    if words is not None:
        # mount(8) gives few variables; the command beside this one has the right Python.
        os.execv(sys.executable, [sys.executable, "-m", "topicfs.mountd.cli", *words])
