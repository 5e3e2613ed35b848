"""The Spark data source `topicfs`: `from topicfs.spark import read, register`. See `topicfs.engine.spark`."""

from topicfs.engine.spark import read, register

__all__ = ["read", "register"]
