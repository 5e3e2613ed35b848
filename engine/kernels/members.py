"""Text and members of JSON objects inside kernels.

A member's name is written without its end: `,"key` and its like. Where its bytes are not UTF-8, the name ends in
_base64.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from topicfs.engine.kernels.compile import inline
from topicfs.engine.kernels.escapes import QUOTE, put_json, put_json_ascii, utf8_end
from topicfs.engine.kernels.numbers import put_base64
from topicfs.engine.kernels.varint import copy


def piece(text: bytes) -> np.ndarray:
    """Bytes that every line has."""
    return np.frombuffer(text, np.uint8)


_BYTE = ir.IntType(8)
_LONG = ir.IntType(64)


@intrinsic(prefer_literal=True)
def put_literal(_context, address, position, text):
    """Write a text of the program itself behind an address and a position; gives the position behind it. The caller has
    made room. Its length is known to the compiler, which makes it a few stores: a call of memcpy takes ten times as
    long."""
    data = text.literal_value.encode()

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        kind = ir.ArrayType(_BYTE, len(data))
        source = ir.GlobalVariable(builder.module, kind, builder.module.get_unique_name("literal"))
        source.linkage = "internal"
        source.global_constant = True
        source.initializer = ir.Constant(kind, bytearray(data))
        pointer = _BYTE.as_pointer()
        copy_it = builder.module.declare_intrinsic("llvm.memcpy", [pointer, pointer, _LONG])
        target = builder.inttoptr(builder.add(arguments[0], arguments[1]), pointer)
        size = ir.Constant(_LONG, len(data))
        builder.call(copy_it, [target, builder.bitcast(source, pointer), size, ir.Constant(ir.IntType(1), 0)])
        return builder.add(arguments[1], size)

    return types.int64(types.uintp, types.int64, text), generate


MOST_OF_A_BYTE = 6
"""Bytes that a byte can take in a JSON string, as \\u0000."""

NULL = piece(b'":null')
TEXT = piece(b'":"')
BASE64 = piece(b'_base64":"')


@inline
def put(out, position, text):
    """Write a piece of text; gives the position behind it. The caller has made room."""
    copy(out, position, text, 0, text.size)
    return position + text.size


@inline
def put_member(out, position, source, start, length):
    """Write what follows `,"key` and its like: the end of the name, and the value, null where the length is negative.
    Bytes are taken for ASCII until one is not; the others are looked at before they are written, and make it begin
    again when not UTF-8."""
    if length < 0:
        return put(out, position, NULL)
    end = start + length
    done, at = put(out, position, TEXT), start
    # Escaped, bytes that turn out to be no UTF-8 may take more than as base64, for which there is room.
    if MOST_OF_A_BYTE * length <= out.size - done or utf8_end(source, start, end) == end:
        done, at = put_json_ascii(out, done, source, start, end)
    if at < end:
        if utf8_end(source, at, end) == end:
            done = put_json(out, done, source, at, end)
        else:
            done = put_base64(out, put(out, position, BASE64), source, start, end)
    out[done] = QUOTE
    return done + 1
