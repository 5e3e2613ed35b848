"""The Spark session of a command."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def session(name: str, master: str | None, settings: Mapping[str, str]) -> SparkSession:
    """Return the session of this process, and create it if needed. Workers run this Python interpreter, which has
    the packages, unless PYSPARK_PYTHON names another one."""
    from pyspark.sql import SparkSession  # noqa: PLC0415 - takes a while

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(name).config("spark.sql.session.timeZone", "UTC")
    if master is not None:
        builder = builder.master(master)
    for setting, value in settings.items():
        builder = builder.config(setting, value)
    return builder.getOrCreate()


def failure() -> type[Exception]:
    """Return the error class that Spark raises when a query fails."""
    from pyspark.errors import PySparkException  # noqa: PLC0415

    return PySparkException
