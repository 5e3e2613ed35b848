"""The soak: a real daemon under writers, readers, retention, compaction and changes of settings, all at once.

    delete      one partition of numbered lines; retention keeps some MB of it
    compact     two partitions of keyed records; whoever writes to `in.jsonl` writes to both
    both        one partition that is compacted, and whose old records go after some seconds

What readers saw while it ran, they compare with what each line must be, see `soak_lines`. At the end all of it is
compared with each other, and with what was acknowledged; then the daemon is stopped, started, killed and started
again, and everything has to be there still.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from array import array
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path += [str(Path(__file__).parents[1] / "mount")]

from daemon_mount import DaemonMount, append, eventually
from harness import missing as lacking
from patience import PATIENCE_S
from soak_lines import Compacted, Faults, Keys, line_of

HERE = Path(__file__).parent
OPTIONS = (
    "log.cleaner.backoff.ms=50",
    "log.cleaner.threads=2",
    "log.cleaner.dedupe.buffer.size=4194304",
    "log.retention.check.interval.ms=1000",
    "log.initial.task.delay.ms=500",
    "log.flush.offset.checkpoint.interval.ms=5000",
    "log.flush.start.offset.checkpoint.interval.ms=5000",
)
RETENTION = 3_000_000
NUMBERED = {"held": 90, "opened": 60, "pieces": 40}
"""Manners of writers, and the lines of a turn."""

KEYED = (
    ("a", "topics/compact/in.jsonl", 307, 12, False),
    ("b", "compact-0/log.jsonl", 211, 8, False),
    ("c", "topics/both/in.jsonl", 101, 12, True),
)
"""Writers of keys: name, file, keys, records of a turn, whether keys are renewed."""

WRITERS_OF = {"compact-0": "ab", "compact-1": "a", "both-0": "c"}
CHANGES = (
    ("delete", "file.delete.delay.ms", 100, 1000, 400),
    ("delete", "retention.bytes", RETENTION, RETENTION * 3 // 4),
    ("delete", "internal.segment.bytes", 200_000, 150_000, 250_000),
    ("compact", "delete.retention.ms", 100, 1000),
    ("compact", "segment.ms", 1000, 600_000, 300_000),
    ("compact", "min.cleanable.dirty.ratio", 0.01, 0.2, 0.01),
    ("both", "cleanup.policy", "compact,delete", "compact", "compact,delete", "delete,compact"),
    ("both", "retention.ms", 8000, 12000),
)
TOPICS: dict[str, dict[str, object]] = {
    "delete": {"cleanup_policy": "delete", "retention_bytes": RETENTION, "internal_segment_bytes": 200_000},
    "compact": {"cleanup_policy": "compact", "delete_retention_ms": 500, "internal_segment_bytes": 40_000},
    "both": {
        "cleanup_policy": "compact,delete",
        "retention_ms": 8000,
        "delete_retention_ms": 500,
        "segment_ms": 1000,
        # Small ones: what compaction groups is removed together, once its newest record is old.
        "internal_segment_bytes": 20_000,
    },
}
JUMPS = ("has been replaced", "has become inaccessible", "has appeared", "following new file")
"""What `tail -F` says where a link moves on."""


@dataclass
class Worker:
    """A process that writes or reads.

    name      for people
    process   gives a report on stdout
    libfuse_stderr  the file that its stderr goes to; anything in it is a fault
    source    what it reads from, None where it reads by itself
    report    what it said at its end
    """

    name: str
    process: subprocess.Popen[bytes]
    libfuse_stderr: Path
    source: subprocess.Popen[bytes] | None = None
    report: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Sample:
    """The daemon's size at a moment.

    rss          bytes in memory
    descriptors  that it has open
    threads      that it has
    disk         bytes of the log directory
    """

    rss: int
    descriptors: int
    threads: int
    disk: int


class Soak:
    """One run of it.

    served    the daemon
    faults    everything that went wrong
    samples   of the daemon's size, one a second
    writers, streams, readers  the workers; streams go on to the last line, readers until they are told
    acknowledged  the last number that each writer was told is appended; set by `compare`
    """

    def __init__(self, place: Path) -> None:
        self.place = place
        self.served = DaemonMount(place)
        self.faults = Faults()
        self.samples: list[Sample] = []
        self.writers: list[Worker] = []
        self.readers: list[Worker] = []
        self.streams: list[Worker] = []
        self.acknowledged: dict[str, int] = {}

    # -- life -----------------------------------------------------------------------------------------

    def start(self) -> None:
        """The daemon, with its topics."""
        for topic, own in TOPICS.items():
            self.served.configure(
                topic,
                file_delete_delay_ms=300,
                min_cleanable_dirty_ratio=0.01,
                index_interval_bytes=1000,
                **own,
            )
        self._start_daemon()
        for partition in ("delete-0", *WRITERS_OF):
            (self.served / partition).mkdir()

    def _start_daemon(self) -> None:
        self.served.start(*(word for option in OPTIONS for word in ("-o", option)))

    def run(self, seconds: float) -> None:
        """All at once, for some time, and to the end of what was written."""
        self._begin_streams()
        self._begin_writers()
        self._begin_readers(seconds)
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.samples.append(self._sample())
            self._expect_running()
            time.sleep(1)
        (self.place / "stop-writing").touch()
        self._finish(self.writers)
        append(self.served / "delete-0/log.txt", line_of(b"end", 0))
        append(self.served / "compact-0/log.jsonl", b'{"key":"end","value":"","headers":{"n":"end 0"}}\n')
        (self.place / "stop-reading").touch()
        self._finish(self.streams)
        self._finish(self.readers)

    def clear(self) -> None:
        """Leave nothing running."""
        for worker in (*self.writers, *self.streams, *self.readers):
            for process in (worker.process, worker.source):
                if process is not None and process.poll() is None:
                    process.kill()
        self.served.clear()
        for worker in (*self.writers, *self.streams, *self.readers):
            for process in (worker.process, worker.source):
                if process is not None:
                    process.wait(PATIENCE_S)
                    for pipe in (process.stdout, process.stdin):
                        if pipe is not None:
                            pipe.close()

    # -- workers --------------------------------------------------------------------------------------

    def _begin(self, program: str, name: str, command: list[str | Path] | None = None, **role: Any) -> Worker:
        libfuse_stderr = self.place / f"{name}.err"
        role = {"role": role.pop("role"), "place": str(self.place), "mount": str(self.served.path), **role}
        began = None
        with libfuse_stderr.open("ab") as errors:
            if command is not None:
                with (self.place / f"{name}.source.err").open("wb") as source_errors:
                    began = subprocess.Popen(
                        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=source_errors
                    )
            process = subprocess.Popen(
                [sys.executable, HERE / program, json.dumps(role, default=str)],
                stdin=subprocess.DEVNULL if began is None else began.stdout,
                stdout=subprocess.PIPE,
                stderr=errors,
            )
        if began is not None:
            assert began.stdout is not None
            began.stdout.close()
        return Worker(name, process, libfuse_stderr, began)

    def _begin_streams(self) -> None:
        delete, compact = self.served / "delete-0", self.served / "compact-0"
        plain: dict[str, tuple[list[str | Path], dict[str, Any]]] = {
            "tail": (["tail", "-c", "+1", "-s", "0.2", "-f", delete / "log.txt"], {"complete": True}),
            "follow": (["cat", delete / "follow.txt"], {"complete": True}),
            "tail-F": (["tail", "-s", "0.2", "-F", delete / "current.txt"], {"jumping": True}),
        }
        for name, (source, manner) in plain.items():
            role = {"complete": False, "jumping": False, **manner}
            order = self.place / f"{name}.order" if role["complete"] else None
            self.streams.append(
                self._begin("soak_readers.py", name, source, role="stream", source=name, order=order, **role)
            )
        keyed: dict[str, list[str | Path]] = {
            "keyed-follow": ["cat", compact / "follow.jsonl"],
            "keyed-tail": ["tail", "-c", "+1", "-s", "0.2", "-f", compact / "log.jsonl"],
        }
        for name, source in keyed.items():
            self.streams.append(
                self._begin("soak_readers.py", name, source, role="stream_keyed", source=name)
            )
        # They have opened their files before anything is written.
        eventually(lambda: self.served.status(delete)["open_logs"] == 1, "tail has opened its log")
        eventually(lambda: self.served.status(compact)["open_logs"] == 1, "tail has opened its log")
        eventually(self._following, "cat has opened what it follows")

    def _following(self) -> bool:
        return all(
            any("/follow." in os.readlink(entry) for entry in Path(f"/proc/{pid}/fd").iterdir())
            for pid in (each.source.pid for each in self.streams if each.source and "follow" in each.name)
        )

    def _begin_writers(self) -> None:
        log = self.served / "delete-0/log.txt"
        for number, (manner, rate) in enumerate(NUMBERED.items()):
            path = self.served / "topics/delete/in.txt" if manner == "opened" else log
            self.writers.append(
                self._begin(
                    "soak_writers.py",
                    f"writer-{manner}",
                    role="numbered",
                    path=path,
                    writer=f"w{number}",
                    manner=manner,
                    rate=rate,
                )
            )
        for name, path, keys, rate, renewed in KEYED:
            logs = [self.served / each / "log.jsonl" for each, names in WRITERS_OF.items() if name in names]
            self.writers.append(
                self._begin(
                    "soak_writers.py",
                    f"writer-{name}",
                    role="keyed",
                    path=self.served / path,
                    logs=[str(log) for log in logs],
                    writer=name,
                    keys=keys,
                    rate=rate,
                    renewed=renewed,
                    look_s=1.5,
                )
            )
        script = (
            f"i=0; while [ ! -e {self.place}/stop-writing ]; do "
            # The tail of `soak_lines.tail_of`.
            f"t=; while [ ${{#t}} -lt 100 ]; do t=$t$i.; done; "
            f'echo "sh $i ${{t:0:$((40 + i % 57))}}" >> {log} || exit 1; i=$((i + 1)); sleep 0.05; done; '
            'echo "{\\"writer\\": \\"sh\\", \\"acknowledged\\": $((i - 1))}"'
        )
        libfuse_stderr = self.place / "writer-shell.err"
        with libfuse_stderr.open("wb") as errors:
            shell = subprocess.Popen(
                ["bash", "-c", script], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors
            )
        self.writers.append(Worker("writer-shell", shell, libfuse_stderr))

    def _begin_readers(self, seconds: float) -> None:
        delete = self.served / "delete-0"
        compacted = [
            {
                "partition": str(self.served / partition),
                "writers": [each for each in _keyed_writers() if each[0] in names],
            }
            for partition, names in WRITERS_OF.items()
        ]
        partitions = [str(self.served / partition) for partition in WRITERS_OF]
        hold_s = min(20.0, seconds / 6)
        more: dict[str, dict[str, Any]] = {
            "hold": {"hold_s": hold_s},
            "compacted": {"partitions": compacted, "hold_s": 3.0},
            "compacted-slow": {"partitions": compacted, "hold_s": hold_s, "seed": 2},
            "segments": {"partitions": partitions},
            "grep": {"partitions": [*partitions, str(delete)]},
            "settings": {"changes": CHANGES},
        }
        for name in ("whole_text", "whole_json", "look_up", "ranges", "sealed", *more):
            role = {"role": name.partition("-")[0], "partition": str(delete), **more.get(name, {})}
            self.readers.append(self._begin("soak_readers.py", name, **role))

    def _expect_running(self) -> None:
        for worker in (*self.writers, *self.streams, *self.readers):
            if worker.process.poll() is not None and "ended early" not in worker.report:
                worker.report["ended early"] = True
                self.faults.add(f"{worker.name} ended early: {worker.complaints.read_text()[-2000:]}")

    def _finish(self, workers: list[Worker]) -> None:
        for worker in workers:
            try:
                out, _ = worker.process.communicate(timeout=60)
            except subprocess.TimeoutExpired:
                self.faults.add(f"{worker.name} does not end")
                worker.process.kill()
                worker.process.communicate(timeout=PATIENCE_S)
                out = b""
            if worker.source is not None:
                worker.source.terminate()
                worker.source.wait(20)
                self._expect_silence(worker)
            words = worker.libfuse_stderr.read_text()
            if worker.process.returncode or words:
                self.faults.add(f"{worker.name}: exit {worker.process.returncode}: {words[-2000:]}")
            if out:
                worker.report = json.loads(out)
                for fault in worker.report.get("faults", ()):
                    self.faults.add(f"{worker.name}: {fault}")

    def _expect_silence(self, worker: Worker) -> None:
        for line in (self.place / f"{worker.name}.source.err").read_text().splitlines():
            if worker.name != "tail-F" or not any(words in line for words in JUMPS):
                self.faults.add(f"{worker.name}: {line}")

    # -- the daemon's size ----------------------------------------------------------------------------

    def _sample(self) -> Sample:
        assert self.served.process is not None
        process = Path(f"/proc/{self.served.process.pid}")
        status = dict(
            line.split(":", 1) for line in (process / "status").read_text().splitlines() if ":" in line
        )
        return Sample(
            int(status["VmRSS"].split()[0]) * 1024,
            len(os.listdir(process / "fd")),
            int(status["Threads"]),
            sum(_sizes(self.served.backing / "logs")),
        )

    def medians(self) -> tuple[Sample, Sample]:
        """Of the first third, when caches have filled, and of the last one."""
        third = max(1, len(self.samples) // 3)
        return _median(self.samples[third // 2 : third]), _median(self.samples[-third:])

    # -- what must be -----------------------------------------------------------------------------------

    def compare(self) -> None:
        """What the workers saw, with each other and with what was acknowledged."""
        by_name = {worker.name: worker.report for worker in (*self.writers, *self.streams, *self.readers)}
        self.acknowledged = acknowledged = {
            report["writer"]: report["acknowledged"] for report in by_name.values() if "writer" in report
        }
        self._expect(len(acknowledged) == len(self.writers), f"writers reported {acknowledged}")
        order = self._order(by_name["tail"])
        self._expect(order == self._order(by_name["follow"]), "tail and follow saw lines in another order")
        for name in ("tail", "follow", "keyed-tail", "keyed-follow"):
            last = {writer: number for writer, number in by_name[name]["last"].items() if writer != "end"}
            wanted = {writer: number for writer, number in acknowledged.items() if writer in last}
            if "keyed" in name:
                wanted = {
                    writer: _last_of(writer, seen, wanted) for writer, seen in by_name[name]["keys"].items()
                }
            self._expect(last == wanted, f"{name} saw up to {last}, acknowledged were {wanted}")
            self._expect(len(last) == (2 if "keyed" in name else 4), f"{name} saw only {last}")
        for name in ("whole_json", "look_up", "sealed"):
            for offset, writer, number in by_name[name]["samples"]:
                seen = order[offset] if offset < len(order) else ("end", 0)
                self._expect(
                    seen == (writer, number), f"{name}: offset {offset} is {writer} {number}, tail: {seen}"
                )
        streamed = {offset: (writer, number) for offset, writer, number in by_name["keyed-tail"]["samples"]}
        for name in ("keyed-follow", "compacted", "compacted-slow"):
            for offset, *mark in by_name[name]["samples"]:
                self._expect(
                    streamed.get(offset, tuple(mark)) == tuple(mark),
                    f"{name}: offset {offset} is {mark}, tail: {streamed.get(offset)}",
                )

    def _order(self, report: dict[str, Any]) -> list[tuple[str, int]]:
        name = "tail" if report is self.streams[0].report else "follow"
        found = array("q")
        found.frombytes((self.place / f"{name}.order").read_bytes())
        names = report["names"]
        return [(names[found[at]], found[at + 1]) for at in range(0, len(found), 2)]

    def check_logs(self) -> None:
        """The logs as they are now: everything that was acknowledged and has to be there."""
        lines = (self.served / "delete-0/log.txt").read_bytes().splitlines()
        last: dict[str, int] = {}
        for line in lines:
            writer, number, _ = line.decode().split(" ")
            self._expect(last.setdefault(writer, int(number)) <= int(number), f"{line!r} is out of order")
            last[writer] = int(number)
        self._expect(lines[-1] == line_of(b"end", 0)[:-1], f"the last line is {lines[-1]!r}")
        for writer, number in last.items():
            if writer != "end":
                wanted = self.acknowledged[writer]
                self._expect(number == wanted, f"the last line of {writer} is {number}, expected {wanted}")
        by_writer: dict[str, dict[str, int]] = {}
        for partition, names in WRITERS_OF.items():
            keys = {each[0]: Keys(*each) for each in _keyed_writers() if each[0] in names}
            check = Compacted(self.faults, f"{partition} at the end", keys)
            check.check((self.served / partition / "log.jsonl").read_bytes().splitlines())
            for writer, number in check.known.values():
                if writer in keys:
                    found = by_writer.setdefault(writer, {})
                    key = keys[writer].key(number)
                    found[key] = max(number, found.get(key, -1))
        for writer, count, renewed in _keyed_writers():
            if renewed:
                continue  # by now time may have removed all of it
            keys_of = Keys(writer, count)
            for key, number in keys_of.latest(self.acknowledged[writer], 0).items():
                seen = by_writer.get(writer, {}).get(key)
                self._expect(
                    seen == number or (seen is None and keys_of.is_tombstone(number)),
                    f"the last record of {key} is {seen}, acknowledged was {number}",
                )

    def restart(self, end: Callable[[], int | None]) -> None:
        """Stop the daemon in some way, and start it again."""
        before = {each: self.served.status(self.served / each) for each in ("delete-0", *WRITERS_OF)}
        code = end()
        self._expect(not code, f"the daemon ended with {code}")
        self._start_daemon()
        for partition, was in before.items():
            now = self.served.status(self.served / partition)
            self._expect(
                now["end_offset"] == was["end_offset"] and now["start_offset"] >= was["start_offset"],
                f"{partition} was {was}, and is {now} after a restart",
            )

    def _expect(self, holds: bool, words: str) -> None:
        if not holds:
            self.faults.add(words)


def missing() -> str | None:
    """What this machine lacks for mounting, in words; None if it lacks nothing."""
    return lacking()


def _keyed_writers() -> list[tuple[str, int, bool]]:
    return [(name, keys, renewed) for name, _, keys, _, renewed in KEYED]


def _last_of(writer: str, seen: list[str], acknowledged: Mapping[str, int]) -> int:
    """The last record of a writer in the partition where these of its keys are."""
    keys = next(Keys(*each) for each in _keyed_writers() if each[0] == writer)
    return next(number for number in range(acknowledged[writer], -1, -1) if keys.key(number) in seen)


def _sizes(folder: Path) -> Iterator[int]:
    for root, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):
                yield os.stat(os.path.join(root, name)).st_blocks * 512


def _median(samples: list[Sample]) -> Sample:
    return Sample(
        *(
            int(statistics.median(getattr(each, name) for each in samples))
            for name in ("rss", "descriptors", "threads", "disk")
        )
    )
