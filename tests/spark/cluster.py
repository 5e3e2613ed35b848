"""Run the recipe of engine/spark/CLUSTER.md as it stands, with a master and two workers whose Python has no packages:
`make cluster`. It installs and packs half a gigabyte, so CI does not.

    python cluster.py PYTHON
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

import pyspark
from matrix import PLACE, built

from topicfs import Record, Store

ROOT: Final = Path(__file__).resolve().parents[2]
PAGE: Final = ROOT / "engine" / "spark" / "CLUSTER.md"
COUNT: Final = 100
MASTER: Final = "local-cluster[2,1,1024]"
LIMIT_S: Final = 1800


def main(python: str) -> None:
    """All of it; an assertion fails where the recipe does."""
    PLACE.mkdir(parents=True, exist_ok=True)
    bare = subprocess.run([python, "-c", "import topicfs"], capture_output=True, check=False, timeout=LIMIT_S)
    assert bare.returncode, f"expected a Python without topicfs, found {python}"
    with tempfile.TemporaryDirectory() as made:
        place = Path(made)
        with Store.open(place / "store", create=True) as store:
            for topic in "tu":
                store.create_topic(topic, 2)
            for number in range(COUNT):
                store.partition("t", number % 2).append(Record(b"v%d" % number))
        shutil.copy(Path(__file__).with_name("cluster_job.py"), place / "job.py")
        (recipe,) = (block.partition("```")[0] for block in PAGE.read_text().split("```sh\n")[1:])
        # The package is not on an index, and its wheel needs pyarrow and numpy from one.
        recipe = recipe.replace("'topicfs'", f"'{built()}'")
        home = Path(str(pyspark.__file__)).parent
        variables = {
            "PYTHON": python,
            "MASTER": MASTER,
            "STORE": str(place / "store"),
            "SPARK_HOME": str(home),
            # Otherwise workers keep their directories within pyspark.
            "SPARK_WORKER_DIR": str(place / "work"),
            "PATH": f"{home / 'bin'}:{os.environ['PATH']}",
        }
        done = subprocess.run(
            ["sh", "-e", "-c", recipe],
            cwd=place,
            env={**os.environ, **variables},
            capture_output=True,
            text=True,
            check=False,
            timeout=LIMIT_S,
        )
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout.splitlines()[-1])
    assert found["written"] == COUNT, found
    assert len(found["workers"]) == 2, found
    for interpreter, package, compiled in found["workers"]:
        assert interpreter == python, found
        assert "/environment/topicfs" in package, found
        assert compiled == 0, found
    sys.stdout.write(f"{COUNT} records read and written by two workers, whose Python is {python}\n")


if __name__ == "__main__":
    main(sys.argv[1])
