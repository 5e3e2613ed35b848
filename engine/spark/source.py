"""The data source `topicfs`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceStreamReader

from topicfs.engine.errors import InvalidSettingError
from topicfs.engine.spark.columns import check, columns
from topicfs.engine.spark.options import parse
from topicfs.engine.spark.ranges import refuse_missing_topics
from topicfs.engine.unlocked.place import place_of

if TYPE_CHECKING:
    from typing import Any

    from pyspark.sql.types import StructType

    from topicfs.engine.spark.reader import TopicReader
    from topicfs.engine.spark.writer import TopicStreamWriter, TopicWriter


class _Refused(DataSourceStreamReader):
    """The reader of a stream whose options are refused."""

    def __init__(self, error: InvalidSettingError) -> None:
        self.error = error

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise self.error

    initialOffset = latestOffset = partitions = read = _refuse  # noqa: N815 - Spark's names


class TopicSource(DataSource):
    """A log as a table and as a stream, read from its segment files."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format`."""
        return "topicfs"

    def schema(self) -> StructType:
        """Return the columns, which are those of Spark's Kafka source. Spark asks for them in `load`, so wrong options
        and topics are refused there. If the query names its columns, Spark asks nothing before it runs."""
        options = parse(dict(self.options), streaming=None)
        place = place_of(options.path)
        if options.fail_on_data_loss:
            refuse_missing_topics(place, options)
        return columns(options.include_headers)

    def reader(self, schema: StructType) -> TopicReader:
        """Return the reader of one batch query."""
        from topicfs.engine.spark.reader import TopicReader  # noqa: PLC0415 - each process loads its own part

        return TopicReader(parse(dict(self.options), streaming=False), check(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Return the reader of one streaming query. If its options are refused, the reader's first use says so: Spark
        4.3 would show an error of this method below an UnboundLocalError of its own."""
        from topicfs.engine.spark.stream import TopicStreamReader  # noqa: PLC0415

        try:
            return TopicStreamReader(parse(dict(self.options), streaming=True), check(schema))
        except InvalidSettingError as error:
            return _Refused(error)

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
