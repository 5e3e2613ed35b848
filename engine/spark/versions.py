"""The versions of Spark that the data source works with. tests/spark/matrix.py tries them."""

from __future__ import annotations

import re
from typing import Final

OLDEST: Final = (4, 2)
"""The first with limits of a micro-batch for data sources in Python (pyspark.sql.streaming.datasource)."""


def refuse_older() -> None:
    """Raise ImportError, in words, if the installed pyspark is too old. An import would only name a module of it."""
    import pyspark  # noqa: PLC0415 - whoever asks is about to load it

    if tuple(int(part) for part in re.findall(r"\d+", pyspark.__version__)[:2]) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise ImportError(
            f"topicfs: expected pyspark {oldest} or later, found {pyspark.__version__}: "
            f"pip install 'pyspark[pipelines]>={oldest}'"
        )
