"""A session for a command."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def session(name: str, master: str | None, settings: Mapping[str, str]) -> SparkSession:
    """The session of this process, made where there is none. Workers run this interpreter, which has our packages,
    unless PYSPARK_PYTHON names another."""
    from pyspark.sql import SparkSession  # noqa: PLC0415 - takes a while

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(name).config("spark.sql.session.timeZone", "UTC")
    if master is not None:
        builder = builder.master(master)
    for setting, value in settings.items():
        builder = builder.config(setting, value)
    return builder.getOrCreate()


def failure() -> type[Exception]:
    """What Spark raises where a query fails."""
    from pyspark.errors import PySparkException  # noqa: PLC0415

    return PySparkException
