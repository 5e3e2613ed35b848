"""One Spark session for all tests of this folder: starting the JVM takes longer than most of them.

Warm-up compilers and a serial collector: quick to start, slow in bulk. Nothing here is a benchmark.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from kafka_beside import KafkaBeside
    from pyspark.sql import SparkSession

sys.path.append(str(Path(__file__).parents[1] / "mount"))  # daemon_mount.py: a real daemon
sys.path.append(str(Path(__file__).parents[1] / "interop"))  # kafka_broker.py: a real broker

CONNECTOR = Path(__file__).parents[2] / ".tools" / "spark-kafka"


@pytest.fixture(scope="session", autouse=True)
def _spark_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Spark without the archive of its Python package, which would come before the package that is installed. Each
    process compiles anew what is in an archive: to start a worker takes 0.5 s of a processor by it, and 0.1 s without.
    """
    found = importlib.util.find_spec("pyspark")
    assert found is not None
    assert found.origin is not None
    home = tmp_path_factory.mktemp("spark-home")
    for part in Path(found.origin).parent.iterdir():
        if part.name != "python":
            (home / part.name).symlink_to(part)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_HOME", str(home))
        yield


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A local session whose workers run this interpreter. Two tasks at a time."""
    from pyspark.sql import SparkSession  # noqa: PLC0415 - the other folders' tests need no Spark

    place = tmp_path_factory.mktemp("spark")
    # Otherwise workers are the first python3 on the PATH, which knows nothing of our packages.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    settings: dict[str, bool | float | int | str] = {
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.default.parallelism": "2",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(place / "warehouse"),
        "spark.local.dir": str(place / "local"),
        # Kafka's source and sink, where they are installed.
        "spark.driver.extraClassPath": f"{CONNECTOR}/*",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    }
    session = SparkSession.builder.master("local[2]").appName("tests").config(map=settings).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def kafka_beside(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBeside]:
    """A broker, and Kafka's source and ours on its log."""
    import kafka_broker  # noqa: PLC0415 - see above
    from kafka_beside import KafkaBeside  # noqa: PLC0415

    if kafka_broker.missing() or not any(CONNECTOR.glob("*.jar")):
        pytest.skip(kafka_broker.missing() or "no Spark's Kafka source: run `make test`")
    beside = KafkaBeside.start(spark, tmp_path_factory.mktemp("broker"))
    yield beside
    beside.broker.stop(clean=False)
