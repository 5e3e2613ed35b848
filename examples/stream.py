"""A stream over a mounted topic: clicks become sessions, and sessions go to another topic, each exactly once.

    python examples/stream.py                        on a mount and data of its own; kills the job, and resumes it
    python examples/stream.py --mount MOUNT --once   on yours, from the topic `clicks` to the topic `sessions`

A session ends when a user has not clicked for half an hour. Spark's checkpoint knows which segments were read; the
inbox of the topic knows which batches it has taken: a batch that comes again after a crash adds nothing.
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

RECORD = "partition INT, offset LONG, timestamp LONG, key STRING, value STRING"
CLICK = "at LONG, page STRING, ms LONG, status INT"
_SEGMENTS_A_BATCH = 2


def main() -> None:
    once = {"action": "store_true", "help": "run the job once; do not kill it"}
    given = workplace.arguments(__doc__.partition("\n")[0], once=once)
    checkpoint = given.output / "sessions-checkpoint"
    if given.once:
        run(given.mount, checkpoint)
        return
    shutil.rmtree(checkpoint, ignore_errors=True)
    with workplace.mounted(given.mount) as mount:
        topic = workplace.topic(mount, "clicks", segment_bytes=1 << 20, segment_ms=1000)
        workplace.topic(mount, "sessions")
        clicks.write(topic / "in.jsonl", given.events, live=True)
        workplace.wait_until_sealed(mount / "clicks-0")
        print("the job begins, and is killed when it has written its first sessions")
        kill_after_first_batch(mount, given.output)
        print(f"killed; {count(mount):,} sessions so far. It resumes")
        subprocess.run(command(mount, given.output), check=True)
        sessions = read(mount)
        print(f"{len(sessions):,} sessions of {len({each['user'] for each in sessions}):,} users")
        print(f"clicks in them: {sum(each['clicks'] for each in sessions):,}")
        twice = len(sessions) - len({(each["user"], each["start"]) for each in sessions})
        print(f"sessions that are there twice: {twice}")


def run(mount: Path, checkpoint: Path) -> None:
    """The job: all segments that are sealed by now, some in each batch."""
    from pyspark.sql import functions as f

    session = workplace.spark("sessions")
    records = (
        session.readStream.schema(RECORD)
        .option("maxFilesPerTrigger", _SEGMENTS_A_BATCH)
        .json(f"{mount}/clicks-*/sealed/jsonl")
    )
    click = records.select(f.col("key").alias("user"), f.from_json("value", CLICK).alias("click")).select(
        "user", f.timestamp_millis("click.at").alias("at")
    )
    sessions = (
        click.withWatermark("at", "10 minutes")
        .groupBy("user", f.session_window("at", "30 minutes").alias("window"))
        .agg(f.count("*").alias("clicks"))
        .select("user", f.col("window.start").alias("start"), f.col("window.end").alias("end"), "clicks")
    )

    def append(batch: object, number: int) -> None:
        rows = batch.select(f.col("user").alias("key"), f.to_json(f.struct("*")).alias("value"))  # type: ignore[attr-defined]
        # The name makes it exactly once: what Spark sends again after a crash has the name that it had before.
        rows.write.mode("overwrite").json(f"{mount}/topics/sessions/inbox/sessions-{number}")

    query = (
        sessions.writeStream.foreachBatch(append)
        .outputMode("append")
        .option("checkpointLocation", checkpoint.absolute().as_uri())
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    session.stop()


def command(mount: Path, output: Path) -> list[str]:
    """This example, as a job of its own."""
    return [sys.executable, __file__, "--once", "--mount", str(mount), "--output", str(output)]


def kill_after_first_batch(mount: Path, output: Path) -> None:
    """As a crash would: kill -9 in the middle of its work."""
    with subprocess.Popen(command(mount, output), start_new_session=True) as job:
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
