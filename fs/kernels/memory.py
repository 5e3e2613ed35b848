"""Memory at an address, for kernels that are called by C, and numbers there that several threads change."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

_LONG = ir.IntType(64)
_BYTES = 8


def _pointer(kind: Any) -> Any:
    """A function of kernels that takes an address for an array of numbers of this kind."""

    @intrinsic
    def at(context, address):
        pointer = types.CPointer(kind)

        def convert(context, builder, signature, arguments):
            return builder.inttoptr(arguments[0], context.get_value_type(pointer))

        return pointer(types.uintp), convert

    return at


octets_at = _pointer(types.uint8)
words_at = _pointer(types.uint32)
longs_at = _pointer(types.uint64)
sizes_at = _pointer(types.uintp)


# All threads see these in one order ("seq_cst"): one that adds first and then loads, and another that stores first and
# then loads, cannot both miss what the other did.


@intrinsic
def add_atomically(_context, address, value):
    """Add to the number at an address."""

    def generate(_context, builder, _signature, arguments):
        place = builder.inttoptr(arguments[0], _LONG.as_pointer())
        return builder.atomic_rmw("add", place, arguments[1], "seq_cst")

    return types.int64(types.uintp, types.int64), generate


@intrinsic
def load_atomically(_context, address):
    """Return the number at an address."""

    def generate(_context, builder, _signature, arguments):
        place = builder.inttoptr(arguments[0], _LONG.as_pointer())
        return builder.load_atomic(place, "seq_cst", _BYTES)

    return types.int64(types.uintp), generate


@intrinsic
def store_atomically(_context, address, value):
    """Set the number at an address."""

    def generate(_context, builder, _signature, arguments):
        place = builder.inttoptr(arguments[0], _LONG.as_pointer())
        builder.store_atomic(arguments[1], place, "seq_cst", _BYTES)
        return _context.get_dummy_value()

    return types.void(types.uintp, types.int64), generate
