"""A stream over a mounted topic: clicks become sessions, and sessions go to another topic, each exactly once.

    python examples/stream.py                        on a mount and data of its own; kills the job, and resumes it
    python examples/stream.py --mount MOUNT --once   on yours, from the topic `clicks` to the topic `sessions`

A session ends when a user has not clicked for half an hour. Spark's checkpoint knows what was read; the topic knows
which of the query's batches it has taken: a batch that comes again after a crash adds nothing.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import clicks
import workplace

CLICK = "at LONG, page STRING, ms LONG, status INT"
_BATCHES = 8


def main() -> None:
    once = {"action": "store_true", "help": "run the job once; do not kill it"}
    given = workplace.arguments(__doc__.partition("\n")[0], once=once)
    checkpoint = given.output / "sessions-checkpoint"
    if given.once:
        run(given.mount, checkpoint, given.events)
        return
    shutil.rmtree(checkpoint, ignore_errors=True)
    with workplace.mounted(given.mount) as mount:
        topic = workplace.topic(mount, "clicks")
        workplace.topic(mount, "sessions")
        clicks.write(topic / "in.jsonl", given.events)
        job = command(mount, given.output, given.events)
        print("the job begins, and is killed when it has written its first sessions", flush=True)
        kill_after_first_batch(mount, job)
        print(f"killed; {count(mount):,} sessions so far. It resumes", flush=True)
        subprocess.run(job, check=True)
        sessions = read(mount)
    written = sum(each["clicks"] for each in sessions)
    print(f"{len(sessions):,} sessions of {len({each['user'] for each in sessions}):,} users")
    print(f"clicks in them: {written:,}")
    print(f"clicks of sessions that have not ended yet: {given.events - written:,}")
    twice = len(sessions) - len({(each["user"], each["start"]) for each in sessions})
    print(f"sessions that are there twice: {twice}")


def run(mount: Path, checkpoint: Path, events: int) -> None:
    """The job: all clicks that are there by now, in several batches."""
    from pyspark.sql import functions as f

    from topicfs.spark import register

    session = workplace.spark("sessions")
    register(session)
    records = (
        session.readStream.format("topicfs")
        .option("path", str(mount))
        .option("subscribe", "clicks")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", events // _BATCHES)
        .load()
    )
    click = f.from_json(f.col("value").cast("string"), CLICK).alias("click")
    sessions = (
        records.select(f.col("key").cast("string").alias("user"), click)
        .select("user", f.timestamp_millis("click.at").alias("at"))
        .withWatermark("at", "10 minutes")
        .groupBy("user", f.session_window("at", "30 minutes").alias("window"))
        .agg(f.count("*").alias("clicks"))
        .select("user", f.col("window.start").alias("start"), f.col("window.end").alias("end"), "clicks")
    )
    query = (
        sessions.select(f.col("user").alias("key"), f.to_json(f.struct("*")).alias("value"))
        .writeStream.format("topicfs")
        .option("path", str(mount))
        .option("topic", "sessions")
        .option("checkpointLocation", checkpoint.absolute().as_uri())
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    session.stop()


def command(mount: Path, output: Path, events: int) -> list[str]:
    """This example, as a job of its own."""
    places = ["--mount", str(mount), "--output", str(output)]
    return [sys.executable, __file__, "--once", *places, "--events", str(events)]


def kill_after_first_batch(mount: Path, command: list[str]) -> None:
    """As a crash would: kill -9 in the middle of its work."""
    with subprocess.Popen(command, start_new_session=True) as job:
        while count(mount) == 0 and job.poll() is None:
            time.sleep(0.05)
        if job.poll() is None:
            subprocess.run(["pkill", "-KILL", "-s", str(job.pid)], check=True)
            job.send_signal(signal.SIGKILL)


def count(mount: Path) -> int:
    """How many sessions there are."""
    status = json.loads((mount / "sessions-0/status.json").read_text())
    return int(status["stable_offset"] - status["start_offset"])


def read(mount: Path) -> list[dict[str, object]]:
    """The sessions."""
    with (mount / "sessions-0/log.txt").open() as lines:
        return [json.loads(line) for line in lines]


if __name__ == "__main__":
    main()
