"""One of each kind of entry on a mount."""

from __future__ import annotations

from pathlib import Path

from daemon_mount import DaemonMount, append


def letters(mount: DaemonMount, topic: str = "plain") -> Path:
    """A partition with two sealed records and one more."""
    partition = mount.new(topic)
    append(partition / "log.tsv", b"k\ta\nl\tb\n")
    mount.steer("roll", partition)
    append(partition / "log.tsv", b"m\tc\n")
    return partition


def read(partition: Path) -> bytes:
    """All values."""
    return (partition / "log.txt").read_bytes()


def files(mount: DaemonMount, partition: Path) -> list[Path]:
    """One of each kind, but for those that can be written."""
    names = [
        "follow.txt",
        "offset/0",
        "offset/0-1.txt",
        "time/last-1h.txt",
        f"segments/{0:020}.txt",
        "status.json",
    ]
    names += [
        f"segments/{0:020}.log",
        f"segments/{2:020}.txt",
        f"sealed/txt/{0:020}.txt",
        "time/2030-01-01/00.txt",
    ]
    return [partition / name for name in names] + [mount / name for name in ("README.txt", "metrics")]


def writable(mount: DaemonMount, partition: Path) -> list[Path]:
    """What can be appended to."""
    topic = mount / "topics" / partition.name.rpartition("-")[0]
    stems = (partition / "log", topic / "in")
    return [stem.with_suffix(f".{suffix}") for stem in stems for suffix in ("txt", "tsv", "jsonl")]


def commands(mount: DaemonMount, partition: Path) -> list[Path]:
    """What does the lines that are written to it."""
    return [mount / "topics" / partition.name.rpartition("-")[0] / "config", partition / "start"]


def everything(mount: DaemonMount, partition: Path) -> list[Path]:
    """All of these, and directories."""
    directories = [partition, partition / "offset", partition / "sealed/txt", mount / "topics", mount.path]
    written = writable(mount, partition) + commands(mount, partition)
    return files(mount, partition) + written + directories
