"""The Spark session of a command."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from topicfs.engine.spark.versions import refuse_older

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def session(name: str, master: str | None, settings: Mapping[str, str]) -> SparkSession:
    """Return the session of this process, and create it if needed. Workers run this Python interpreter, which has
    the packages, unless PYSPARK_PYTHON names another one."""
    refuse_older()
    from pyspark.sql import SparkSession  # noqa: PLC0415 - takes a while

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(name).config("spark.sql.session.timeZone", "UTC")
    if master is not None:
        builder = builder.master(master)
    for setting, value in settings.items():
        builder = builder.config(setting, value)
    return builder.getOrCreate()


def failures() -> tuple[type[Exception], ...]:
    """Return the error classes that Spark raises when a query fails. Errors of its JVM are not all made its own."""
    from py4j.protocol import Py4JJavaError  # noqa: PLC0415 - comes with Spark
    from pyspark.errors import PySparkException  # noqa: PLC0415

    return PySparkException, Py4JJavaError


def words_of(error: Exception) -> str:
    """Return what a failure says, without the stack of the JVM, but with the causes that are named in it."""
    text = str(error)
    told = text.partition("\n\nJVM stacktrace")[0].partition("\n\tat ")[0].strip()
    causes = (
        line.removeprefix("Caused by: ").strip()
        for line in text.splitlines()
        if line.startswith("Caused by: ")
    )
    return "\n".join([told, *(f"caused by {cause}" for cause in dict.fromkeys(causes) if cause not in told)])
