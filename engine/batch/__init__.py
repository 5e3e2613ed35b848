"""Record batches: built from lines, records or columns; read as columns or records.

`topicfs.engine.kernels.encode` draws the bytes. A batch is an array of bytes, and a row of the batch table
(`topicfs.engine.kernels.scan`) describes it. Reading gives `Columns`: arrays of offsets, timestamps and spans into
a buffer. So Python does no work per record, unless somebody asks for `Record` objects.
"""

from topicfs.engine.batch.build import (
    PLAIN,
    Shape,
    columns_of_records,
    emptied,
    from_columns,
    from_lines,
    from_records,
    several_from_lines,
    shape_of,
)
from topicfs.engine.batch.builder import BatchBuilder
from topicfs.engine.batch.columns import (
    Columns,
    Inspection,
    columns,
    first_record_at_or_after,
    inspect,
    record_at,
)
from topicfs.engine.batch.marker import Marker, end_marker, marker
from topicfs.engine.batch.table import Batch, Batches, scan, scan_whole
from topicfs.engine.format.batch_header import ABORT, COMMIT

__all__ = [
    "ABORT",
    "COMMIT",
    "PLAIN",
    "Batch",
    "BatchBuilder",
    "Batches",
    "Columns",
    "Inspection",
    "Marker",
    "Shape",
    "columns",
    "columns_of_records",
    "emptied",
    "end_marker",
    "first_record_at_or_after",
    "from_columns",
    "from_lines",
    "from_records",
    "inspect",
    "marker",
    "record_at",
    "scan",
    "scan_whole",
    "several_from_lines",
    "shape_of",
]
