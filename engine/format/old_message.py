"""A message of the formats 0 and 1, as segments have them that Kafka before 0.11 wrote. They are recognised, not read.

    0   int64  offset
    8   int32  size of all that follows
    12  int32  CRC-32 of all that follows
    16  int8   magic: 0 or 1, in the place where a record batch has 2
    17  …      attributes, in format 1 a timestamp, key and value; in a compressed message the value has messages

Numbers are big-endian.
"""

from __future__ import annotations

from typing import Final

from topicfs.engine.format.layout import Layout

OLD_MESSAGE: Final = Layout(offset="q", size="i", checksum="I", magic="b")
OLD_FORMATS: Final = (0, 1)

CHECKED_FROM: Final = 16
"""Where the bytes begin that the checksum covers."""

SMALLEST: Final = 14
"""The size of a message without key and value: checksum, magic, attributes and two lengths."""
