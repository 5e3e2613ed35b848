"""A declarative pipeline over a mounted topic: a streaming table, and two views over it in Python and in SQL.

    python examples/pipeline.py                      on a mount and data of its own, two runs
    python examples/pipeline.py --mount MOUNT        on yours, the topic `clicks`

The tables are in `pipeline/transformations`. The first run reads all sealed segments; the second only what came since.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import clicks
import pyspark
import workplace

HERE = Path(__file__).parent / "pipeline"


def main() -> None:
    given = workplace.arguments(__doc__.partition("\n")[0])
    place = given.output / "pipeline"
    if given.mount is None:
        shutil.rmtree(place, ignore_errors=True)  # tables of an earlier run, over a mount that is gone
    place.mkdir(exist_ok=True)
    with workplace.mounted(given.mount) as mount:
        topic = workplace.topic(mount, "clicks", segment_bytes=4 << 20, segment_ms=1000)
        for run in (1, 2):
            if given.mount is None:
                clicks.write(topic / "in.jsonl", given.events // run, seed=run, live=True)
                workplace.wait_until_sealed(mount / "clicks-0")
            print(f"\nrun {run}")
            execute(place, mount)
            show(place)


def execute(place: Path, mount: Path) -> None:
    """Bring the tables up to date."""
    spec = place / "spark-pipeline.yml"
    spec.write_text(
        f"name: clicks\nstorage: {(place / 'storage').absolute().as_uri()}\n"
        f"libraries:\n  - glob:\n      include: {HERE.name}/transformations/**\n"
    )
    link = place / HERE.name
    if not link.exists():
        link.symlink_to(HERE.absolute(), target_is_directory=True)
    # The catalog that is in memory forgets its tables, and a second run finds their files in its way.
    settings = {
        "spark.sql.catalogImplementation": "hive",
        "spark.sql.warehouse.dir": (place / "warehouse").absolute().as_uri(),
        "spark.driver.extraJavaOptions": f"-Dderby.system.home={place.absolute()}",
        "spark.ui.enabled": "false",
    }
    words = [f"{name}={value}" for name, value in settings.items()]
    environment = {
        **os.environ,
        "TOPICFS_MOUNT": str(mount),
        "SPARK_HOME": str(Path(pyspark.__file__).parent),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }
    options = [option for word in words for option in ("--conf", word)]
    command = [Path(sys.executable).with_name("spark-pipelines"), *options, "run", "--spec", spec]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    for line in (done.stdout + done.stderr).splitlines():
        if "COMPLETED" in line or done.returncode:
            print(line)
    done.check_returncode()


def show(place: Path) -> None:
    """The tables, as they lie in the warehouse."""
    import pyarrow.parquet as pq

    for name in ("pages", "slow"):
        rows = pq.read_table(place / "warehouse" / name).to_pylist()
        print(f"\n{name}")
        for row in sorted(rows, key=lambda row: -row["views"])[:5]:
            print("  " + "  ".join(f"{key} {value}" for key, value in row.items()))
    table = pq.read_table(place / "warehouse/clicks", columns=["partition", "offset"])
    once = table.group_by(["partition", "offset"]).aggregate([])
    print(f"\nclicks: {table.num_rows:,}, different ones: {once.num_rows:,}")


if __name__ == "__main__":
    main()
