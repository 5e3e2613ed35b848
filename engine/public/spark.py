"""The Spark data source `topicfs`: `from topicfs.spark import read, register`. See `topicfs.engine.spark`."""

from topicfs.engine.spark import count, read, register, tables
from topicfs.engine.spark.behind import behind

__all__ = ["behind", "count", "read", "register", "tables"]
