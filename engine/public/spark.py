"""The Spark data source `topicfs`: `from topicfs.spark import read, register, tables`. See `topicfs.engine.spark`."""

from topicfs.engine.spark import read, register, tables

__all__ = ["read", "register", "tables"]
