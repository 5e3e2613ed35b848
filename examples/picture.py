"""The picture of README's first screen: a real session on a mount, as a terminal shows it.

    .venv/bin/python examples/picture.py [FILE.svg]

mounts a store of its own with a small sample topic, runs the commands below in a shell, and draws what they said.
Without a file it draws `examples/session.svg`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

TOPICFS = Path(sys.executable).with_name("topicfs")
COLUMNS = 124
SAMPLE = r"""
mkdir mnt/topics/orders
for n in 1 2 3 4 5 6 7 8 9 10; do
    printf '{"key":"customer-%s","value":"%s apples"}\n' $((n % 3)) $n
done >> mnt/orders-0/log.jsonl
"""

COMMANDS = (
    "ls -C mnt mnt/orders-0/",
    "tail -n 2 mnt/orders-0/log.jsonl",
    "echo '11 pears' >> mnt/orders-0/log.txt",
    "grep -n pears mnt/orders-0/log.txt",
    "cat mnt/orders-0/offset/-2.tsv",
    "wc -l mnt/orders-0/time/last-15m.txt",
    "mkdir mnt/groups/readers && echo 8 > mnt/groups/readers/orders-0",
    "cat mnt/groups/readers/orders-0.lag mnt/groups/readers/orders-0.pending.txt",
    "topicfs sql mnt 'SELECT key, count(*) AS times FROM orders GROUP BY key ORDER BY key LIMIT 3'",
    "ls -C data/logs/orders-0",
)
"""The last one shows that what is behind the mount is Kafka's."""

THEME = TerminalTheme(
    (24, 26, 33),
    (222, 224, 230),
    [(60, 64, 76), (224, 108, 117), (152, 195, 121), (229, 192, 123), (97, 175, 239), (198, 120, 221),
     (86, 182, 194), (222, 224, 230)],
)  # fmt: skip


def main(arguments: list[str]) -> None:
    """Run the session, and draw it."""
    target = Path(arguments[0]) if arguments else Path(__file__).with_name("session.svg")
    screen = Console(record=True, width=COLUMNS, file=StringIO(), force_terminal=True, legacy_windows=False)
    with tempfile.TemporaryDirectory() as place:
        run(place, "topicfs mount --create data mnt")
        try:
            run(place, SAMPLE)
            for command in COMMANDS:
                screen.print(Text.assemble(("$ ", "bold green"), (command, "bold")))
                screen.print(Text(run(place, command), overflow="fold"), end="")
        finally:
            run(place, "topicfs umount mnt")
    drawn = screen.export_svg(title="topicfs", theme=THEME, unique_id="topicfs")
    # Fonts from elsewhere are not fetched: a terminal's own will do.
    target.write_text(re.sub(r"<!--.*?-->|@font-face \{.*?\}\s*", "", drawn, flags=re.DOTALL))
    print(f"drew {target}")


def run(place: str, command: str) -> str:
    """Run a command in a shell, and return what it said. An error ends the program."""
    environment = {
        "PATH": f"{TOPICFS.parent}:{os.environ['PATH']}",
        "HOME": os.environ.get("HOME", place),
        "LC_ALL": "C.UTF-8",
        "COLUMNS": str(COLUMNS),
        "TZ": "UTC",
    }
    done = subprocess.run(
        ["sh", "-ec", command],
        cwd=place,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    if done.returncode:
        sys.exit(f"{command}: {done.stderr or done.stdout}")
    return done.stdout


if __name__ == "__main__":
    main(sys.argv[1:])
