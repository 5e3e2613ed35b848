"""The Spark data source `topicfs`: `from topicfs.spark import register`. See `topicfs.engine.spark`."""

from topicfs.engine.spark import register

__all__ = ["register"]
