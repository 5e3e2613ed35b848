"""A Spark job that is killed: a session of processes of its own, driver, JVM and workers.

    python killed_job.py PLACE [DOOR:QUERY:MOMENT]

It writes through two doors, the log PLACE/closed that nobody has open and the mount PLACE/mnt: the topic `in` goes to
the topics `a` and `b` by a stream, and to `c` and `d` as a batch with a name. And it does what the guide says of
`foreachBatch`, with the files of PLACE/files.

Where a moment is named, it only begins what the guide says, and that query; and all of the job is ended as kill -9 ends
it, in the first batch that Spark does not know to be done. A moment is `staged` (a task has written its file),
`between` (of a mount all files have their names, and it is not asked for the commit; of a closed log the commit is
decided, and neither topic knows the batch's name) or `after` (all of the batch is committed, and Spark is not told).
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery
    from pyspark.sql.types import StructType

GUIDE = Path(__file__).parents[2] / "fs" / "GUIDE.md"
ROWS = 40
A_TIME = 20


def main(place: Path, moment: str = "") -> None:
    """All of the job; what is done already adds nothing."""
    if os.getsid(0) != os.getpid():
        os.setsid()  # all of the session is killed
    os.chdir(place)  # the guide's paths
    spark = session(place)
    register_dying(spark, moment)
    start_readme(spark, place)
    doors = {"closed": place / "closed", "mounted": place / "mnt"}
    if moment:
        door, kind, _ = moment.split(":")
        if kind == "batch":
            write_batch(spark, doors[door])
        else:
            start_stream(spark, door, doors[door]).awaitTermination()
        return
    for query in [start_stream(spark, *each) for each in doors.items()]:
        query.awaitTermination()
    for path in doors.values():
        write_batch(spark, path)
    for query in spark.streams.active:
        query.processAllAvailable()
        query.stop()
    sys.stdout.write("done\n")


def session(place: Path) -> SparkSession:
    """Quick to start, slow in bulk."""
    from pyspark.sql import SparkSession  # noqa: PLC0415 - the test imports this module

    os.environ["PYSPARK_PYTHON"] = sys.executable
    settings: dict[str, bool | float | int | str] = {
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.local.dir": str(place / "local"),
        "spark.sql.warehouse.dir": str(place / "warehouse"),
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    }
    return SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()


def start_stream(spark: SparkSession, door: str, path: Path) -> StreamingQuery:
    """From `in` to `a` and `b`."""
    rows = spark.readStream.format("topicfs").option("path", str(path)).option("topic", "in")
    rows = rows.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", A_TIME).load()
    sink = rows.selectExpr("key", "value", "if(partition = 0, 'a', 'b') as topic").repartition(2).writeStream
    sink = sink.format("topicfs").option("path", str(path)).option("checkpointLocation", f"checkpoint-{door}")
    return sink.trigger(availableNow=True).start()


def write_batch(spark: SparkSession, path: Path) -> None:
    """From `in` to `c` and `d`."""
    rows = spark.read.format("topicfs").option("path", str(path)).option("topic", "in").load()
    sink = rows.selectExpr("key", "value", "if(partition = 0, 'c', 'd') as topic").write.format("topicfs")
    sink.option("path", str(path)).option("batch", "once").mode("append").save()


def start_readme(spark: SparkSession, place: Path) -> None:
    """The words of the guide."""
    stream = spark.readStream.option("maxFilesPerTrigger", 1).text(str(place / "files"))
    exec(for_each_batch(), {"stream": stream})


def for_each_batch() -> str:
    """The guide's code that writes a stream into an inbox."""
    (code,) = (
        block.partition("```")[0]
        for block in GUIDE.read_text().split("```python\n")[1:]
        if "foreachBatch" in block.partition("```")[0]
    )
    return code


# -- dying --------------------------------------------------------------------------------------------


def end_session(number: int) -> None:
    """Kill all processes of a session that was begun for a job; the caller, if it is one of them, at last."""
    for name in os.listdir("/proc"):
        if name.isdecimal() and int(name) != os.getpid():
            with contextlib.suppress(ProcessLookupError):
                if os.getsid(int(name)) == number:
                    os.kill(int(name), signal.SIGKILL)
    if os.getsid(0) == number:
        os.kill(os.getpid(), signal.SIGKILL)


def register_dying(spark: SparkSession, wanted: str) -> None:
    """The data source, with writers that end everything at a moment. What is defined here goes to workers whole."""
    from topicfs.engine.inbox import joint  # noqa: PLC0415
    from topicfs.engine.spark import writer  # noqa: PLC0415
    from topicfs.engine.spark.source import TopicSource  # noqa: PLC0415

    def reached(target: writer.WriteTarget, kind: str, moment: str) -> None:
        door = "closed" if target.place.mount is None else "mounted"
        if wanted == f"{door}:{kind}:{moment}":
            end_session(os.getsid(0))

    @contextlib.contextmanager
    def committing(target: writer.WriteTarget, kind: str) -> Iterator[None]:
        def dying(whole: Callable[..., None]) -> Callable[..., None]:
            def call(*arguments: Any) -> None:
                reached(target, kind, "between")
                whole(*arguments)

            return call

        with contextlib.ExitStack() as patches:
            for owner, name in ((writer.MountedInboxes, "_commit"), (joint.LocalJoint, "end")):
                patches.enter_context(mock.patch.object(owner, name, dying(getattr(owner, name))))
            yield
        reached(target, kind, "after")

    class Batch(writer.TopicWriter):
        def write(self, iterator: Iterator[pa.RecordBatch]) -> Any:
            staged = super().write(iterator)
            reached(self.target, "batch", "staged")
            return staged

        def commit(self, messages: list[Any]) -> None:
            with committing(self.target, "batch"):
                super().commit(messages)

    class Stream(writer.TopicStreamWriter):
        def write(self, iterator: Iterator[pa.RecordBatch]) -> Any:
            staged = super().write(iterator)
            reached(self.target, "stream", "staged")
            return staged

        def commit(self, messages: list[Any], batchId: int) -> None:  # noqa: N803
            with committing(self.target, "stream"):
                super().commit(messages, batchId)

    class Source(TopicSource):
        def writer(self, schema: StructType, overwrite: bool) -> Batch:
            made = super().writer(schema, overwrite)
            return Batch(made.target, made.name)

        def streamWriter(self, schema: StructType, overwrite: bool) -> Stream:  # noqa: N802
            return Stream(super().streamWriter(schema, overwrite).target)

    spark.dataSource.register(Source)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
