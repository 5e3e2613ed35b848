"""A run in which the daemon, and everybody who uses it, is an ordinary user.

Where root tortures, the whole run is another process, in namespaces of its own: with a /dev/fuse that everybody may
open, as machines have it, and its mounts and processes end with it. The user may read what only root may, as the
program and the interpreter may lie there, and write what is his.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import rows as scripts
from rows import Row

USER: Final = 65534
NO_NAMESPACE: Final = 77
CAPABILITY: Final = "+dac_read_search"
NAMESPACES: Final = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
PRELUDE: Final = f"""
{{
    mount -t tmpfs topicfs-torture dev && chmod 755 dev && mknod -m 666 dev/fuse c 10 229 &&
        mount --bind dev/fuse /dev/fuse
}} || exit {NO_NAMESPACE}
sed -n 's|^/dev/loop[^ ]* \\([^ ]*\\) .*|\\1|p' /proc/mounts | xargs -r umount -l
cd home
exec setpriv --reuid {USER} --regid {USER} --clear-groups \\
    --inh-caps {CAPABILITY} --ambient-caps {CAPABILITY} -- "$@"
"""
"""The disks of others, who may torture beside us, are let go of: what stays mounted here is not gone when they cut its
power."""


@dataclass
class Outcome:
    """What became of a run.

    label   of the promise that was broken; None for none
    words   how it was broken
    said    what the steps did
    done    how often each step was done
    lines   how many were written
    """

    label: str | None = None
    words: str = ""
    said: list[str] = field(default_factory=list)
    done: Counter[str] = field(default_factory=Counter)
    lines: int = 0

    def write(self, file: Path) -> None:
        """Write it down for another process."""
        file.write_text(json.dumps(vars(self)))

    @classmethod
    def read(cls, file: Path) -> Outcome:
        """Read what another process has written down."""
        told: dict[str, Any] = json.loads(file.read_text())
        return cls(**{**told, "done": Counter(told["done"])})


def lacks() -> str | None:
    """What this machine lacks for such a run; None for nothing."""
    if os.geteuid():
        return None
    missing = [name for name in ("unshare", "setpriv") if shutil.which(name) is None]
    return f"{missing} is missing: apt-get install util-linux" if missing else None


def run(rows: Sequence[Row]) -> Outcome:
    """Do the rows as that user."""
    with tempfile.TemporaryDirectory(prefix="topicfs-torture-") as made:
        place = Path(made)
        place.chmod(0o755)
        for name in ("dev", "home"):
            (place / name).mkdir()
        shutil.chown(place / "home", USER, USER)
        scripts.write(place / "rows", rows, "")
        outcome = place / "home/outcome"
        command = [sys.executable, Path(__file__).parent, "--replay", place / "rows", "--outcome", outcome]
        done = subprocess.run(
            [*NAMESPACES, "sh", "-c", PRELUDE, "sh", *command],
            cwd=place,
            env={"PATH": os.environ["PATH"], "HOME": str(place / "home"), "TMPDIR": str(place / "home")},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode == NO_NAMESPACE:
            return Outcome("namespace", f"namespaces cannot be had here: {done.stdout}")
        if not outcome.exists():
            return Outcome(
                "step", f"the run of user {USER} has ended with {done.returncode}: {done.stdout[-3000:]}"
            )
        return Outcome.read(outcome)
