"""Where an example works: a mount that is there, or one of its own that is taken away at the end.

Every example here runs with one command and no arguments; with `--mount PATH` it works on a mount of yours.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOPICFS = Path(sys.executable).with_name("topicfs")
OUTPUT = Path(__file__).parent / "output"


def arguments(description: str, **extra: dict[str, object]) -> argparse.Namespace:
    """The command line: `--mount`, `--output`, `--events`, and what the example adds."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--mount", type=Path, help="a mount of topicfs; a new one is made without it")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="where results go")
    parser.add_argument("--events", type=int, default=200_000, help="events to generate where there are none")
    for name, options in extra.items():
        parser.add_argument(f"--{name}", **options)  # type: ignore[arg-type]
    given = parser.parse_args()
    given.output.mkdir(parents=True, exist_ok=True)
    return given


@contextmanager
def mounted(mount: Path | None, *settings: str) -> Iterator[Path]:
    """The given mount, or a new one over a new backing directory."""
    if mount is not None:
        yield mount
        return
    with tempfile.TemporaryDirectory(
        prefix="topicfs-example-", dir=os.environ.get("TMPDIR", "/var/tmp")
    ) as place:
        backing, path = Path(place, "backing"), Path(place, "mnt")
        backing.mkdir()
        options = [word for setting in settings for word in ("-o", setting)]
        subprocess.run([TOPICFS, "mount", "--create", *options, backing, path], check=True)
        try:
            yield path
        finally:
            subprocess.run([TOPICFS, "umount", path], check=True)


def topic(mount: Path, name: str, **settings: object) -> Path:
    """A topic's directory; made, with these settings, where it is not there."""
    directory = mount / "topics" / name
    if not directory.exists():
        directory.mkdir()
        lines = "".join(f"{key.replace('_', '.')}={value}\n" for key, value in settings.items())
        if lines:
            (directory / "config").write_text(lines)
    return directory


def wait_until_sealed(partition: Path) -> None:
    """Until segment.ms is over: a stream reads segments that change no more."""
    log, sealed = partition / "log.jsonl", partition / "sealed/jsonl"
    while log.stat().st_size > sum(each.stat().st_size for each in sealed.iterdir()):
        time.sleep(0.2)


def spark(name: str) -> SparkSession:
    """A local session: small, quiet, and with this interpreter in its workers."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # else it warns of the machine's name
    from pyspark.sql import SparkSession

    print(f"{name}: Spark starts", file=sys.stderr)
    # Spark reads what it logs from this file: a level that is set later does not reach what it says as it starts.
    logging = (
        f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties').absolute().as_uri()}"
    )
    return (
        SparkSession.builder.appName(name)
        .master(os.environ.get("SPARK_MASTER", "local[2]"))
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.driver.extraJavaOptions", logging)
        .getOrCreate()
    )
