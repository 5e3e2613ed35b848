"""A Spark that is too old is refused in words, and not by the name of a module that it does not have."""

from __future__ import annotations

import tomllib
from pathlib import Path
from unittest.mock import Mock

import pyspark
import pytest

from topicfs.engine.spark.session import session
from topicfs.engine.spark.versions import OLDEST, refuse_older
from topicfs.spark import register

TOLD = r"expected pyspark 4\.2 or later, found 4\.1\.4: pip install 'pyspark\[pipelines\]>=4\.2'"


def test_an_older_spark_is_refused_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyspark, "__version__", "4.1.4")
    with pytest.raises(ImportError, match=TOLD):
        register(Mock())
    with pytest.raises(ImportError, match=TOLD):
        session("verify", None, {})


@pytest.mark.parametrize("version", ["4.2.0", "4.10.0.dev1", "5.0.0"])
def test_a_later_one_is_not(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setattr(pyspark, "__version__", version)
    refuse_older()


def test_the_package_asks_for_the_same_one() -> None:
    told = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    assert f"pyspark[pipelines]>={OLDEST[0]}.{OLDEST[1]}" in told["project"]["optional-dependencies"]["spark"]
