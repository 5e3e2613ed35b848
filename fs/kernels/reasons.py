"""What can be wrong with a line: the codes that parsing gives, and their words."""

from __future__ import annotations

GOOD = 0
NO_ROOM = 1
NO_TAB = 2
TABS = 3
RETURN = 4
LONE_BACKSLASH = 5
EMPTY = 6
NO_OBJECT = 7
NO_NAME = 8
NO_COLON = 9
NO_COMMA = 10
TRAILING = 11
UNKNOWN = 12
DUPLICATE = 13
UNCLOSED = 14
CONTROL = 15
ESCAPE = 16
SURROGATE = 17
NOT_UTF8 = 18
NOT_BASE64 = 19
NO_TEXT = 20
NO_NUMBER = 21
BAD_TIMESTAMP = 22
BAD_PARTITION = 23
NO_HEADERS = 24
NO_HEADER = 25
NO_HEADER_NAME = 26
NO_HEADER_VALUE = 27
NO_VALUE = 28
DECODED = 29

REASONS = {
    NO_TAB: "expected a TAB between key and value",
    TABS: "expected one TAB, found another: within key or value it is written \\t",
    RETURN: "found a bare carriage return: within key or value it is written \\r",
    LONE_BACKSLASH: "a backslash ends the line: a backslash is written \\\\, a newline \\n",
    EMPTY: "expected an object, found an empty line",
    NO_OBJECT: "expected an object",
    NO_NAME: "expected a member's name in quotes",
    NO_COLON: "expected a colon behind the member's name",
    NO_COMMA: "expected a comma or the end of the object or array",
    TRAILING: "expected nothing behind the object",
    UNKNOWN: "unknown member",
    DUPLICATE: "a second member",
    UNCLOSED: "a string is not closed",
    CONTROL: "a control character in a string must be escaped",
    ESCAPE: "no escape of JSON",
    SURROGATE: "half of a surrogate pair",
    NOT_UTF8: "not UTF-8: such bytes are written as base64, in key_base64 or value_base64",
    NOT_BASE64: "not base64 (standard alphabet, padded)",
    NO_TEXT: "expected a string or null",
    NO_NUMBER: "expected a whole number of up to 63 bits, or null",
    BAD_TIMESTAMP: "expected a timestamp in milliseconds of at least -1 (none)",
    BAD_PARTITION: "expected a partition of at least 0 and below 2147483648",
    NO_HEADERS: "expected headers as an array of objects, an object, or null",
    NO_HEADER: 'expected a header as an object: {"key":"name","value":"text"}',
    NO_HEADER_NAME: "a header has no key: expected a string",
    NO_HEADER_VALUE: "a header has no value: expected a string or null",
    NO_VALUE: "the value is missing: a tombstone is written null",
    DECODED: "expected a string or null, found an object: what Kafka's own topics show so is appended as tsv or base64",
}
"""What a status other than GOOD and NO_ROOM means, for messages."""
