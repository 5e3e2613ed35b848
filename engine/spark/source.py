"""The data source `topicfs`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from topicfs.engine.spark.columns import check, columns
from topicfs.engine.spark.options import parse

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from topicfs.engine.spark.reader import TopicReader
    from topicfs.engine.spark.stream import TopicStreamReader
    from topicfs.engine.spark.writer import TopicStreamWriter, TopicWriter


class TopicSource(DataSource):
    """A log as a table and as a stream, read from its segment files."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format`."""
        return "topicfs"

    def schema(self) -> StructType:
        """Return the columns, which are those of Spark's Kafka source."""
        return columns(self.options.get("includeHeaders", "false").lower() == "true")

    def reader(self, schema: StructType) -> TopicReader:
        """Return the reader of one batch query."""
        from topicfs.engine.spark.reader import TopicReader  # noqa: PLC0415 - each process loads its own part

        return TopicReader(parse(dict(self.options), streaming=False), check(schema))

    def streamReader(self, schema: StructType) -> TopicStreamReader:  # noqa: N802 - Spark's name
        """Return the reader of one streaming query."""
        from topicfs.engine.spark.stream import TopicStreamReader  # noqa: PLC0415

        return TopicStreamReader(parse(dict(self.options), streaming=True), check(schema))

    def writer(self, schema: StructType, overwrite: bool) -> TopicWriter:
        """Return the writer of one batch query."""
        from topicfs.engine.spark import writer  # noqa: PLC0415

        writer.refuse_overwriting(overwrite)
        return writer.TopicWriter(writer.target_of(self.options, schema), writer.batch_name_of(self.options))

    def streamWriter(self, schema: StructType, overwrite: bool) -> TopicStreamWriter:  # noqa: N802
        """Return the writer of one streaming query."""
        from topicfs.engine.spark import writer  # noqa: PLC0415

        writer.refuse_overwriting(overwrite)
        return writer.TopicStreamWriter(writer.target_of(self.options, schema))
