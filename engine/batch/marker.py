"""Control batches: the markers that end a transaction. `topicfs.engine.format.batch_header` draws them."""

from __future__ import annotations

from dataclasses import dataclass

from topicfs.engine.batch.build import from_records, write_header
from topicfs.engine.batch.columns import columns
from topicfs.engine.batch.table import Batch, Bytes, Longs
from topicfs.engine.errors import CorruptBatchError, InvalidRecordError
from topicfs.engine.format.batch_header import ABORT, COMMIT, CONTROL, MARKER_KEY, MARKER_VALUE, TRANSACTIONAL
from topicfs.engine.kernels.scan import ATTRIBUTES, COUNT
from topicfs.engine.record import NO_SEQUENCE, Record


def end_marker(
    producer_id: int, producer_epoch: int, kind: int, coordinator_epoch: int, timestamp: int
) -> Batch:
    """Return the control batch that ends a producer's transaction: one record, 78 bytes."""
    if kind not in (ABORT, COMMIT):
        raise InvalidRecordError(
            f"a transaction ends with {ABORT} (abort) or {COMMIT} (commit), found {kind}"
        )
    key, value = MARKER_KEY.pack(0, kind), MARKER_VALUE.pack(0, coordinator_epoch)
    plain = from_records([Record(key=key, value=value, timestamp=timestamp)], timestamp)
    return write_header(
        plain.data,
        attributes=TRANSACTIONAL | CONTROL,
        last_offset_delta=0,
        base_timestamp=timestamp,
        max_timestamp=timestamp,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=NO_SEQUENCE,
        count=1,
    )


@dataclass(frozen=True, slots=True)
class Marker:
    """The end of a transaction, from its control record: kind (ABORT or COMMIT) and coordinator epoch."""

    kind: int
    coordinator_epoch: int


def marker(buffer: Bytes, row: Longs, origin: int = 0) -> Marker | None:
    """Return the marker in a control batch, or None if the batch is empty or of another kind."""
    if row[COUNT] == 0:
        return None
    plain = row.copy()
    plain[ATTRIBUTES] = int(row[ATTRIBUTES]) & ~CONTROL
    for part in columns(buffer, plain.reshape(1, -1), origin):
        record = next(part.records())
        key, value = record.key or b"", record.value or b""
        if len(key) < 4 or key[0] & 0x80:
            raise CorruptBatchError(
                f"control record at offset {record.offset} has the key {key.hex() or 'null'}, "
                "expected a version of at least 0 and a type"
            )
        _, kind = MARKER_KEY.unpack_from(key)
        if kind not in (ABORT, COMMIT):
            return None
        if len(value) < 6 or value[0] & 0x80:
            raise CorruptBatchError(
                f"transaction marker at offset {record.offset} has the value {value.hex() or 'null'}, "
                "expected a version of at least 0 and a coordinator epoch"
            )
        return Marker(kind, MARKER_VALUE.unpack_from(value)[1])
    return None
