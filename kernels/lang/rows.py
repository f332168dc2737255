"""Contiguous elements set to one value, for jitted code."""

from ..build import isa
from .by_type import by_type
from .simd import fill, vstore, vstore_first

LANES = isa.lanes()
_WIDE = 4 * LANES


@by_type
def fill_row(y, size, value):
    """y[:size] = value."""
    dtype = y.dtype

    def implementation(y, size, value):
        wide, i = fill(value, dtype, _WIDE), 0
        while i + _WIDE <= size:
            vstore(y, i, wide)
            i += _WIDE
        while i < size:
            vstore_first(y, i, fill(value, dtype, LANES), size - i)
            i += LANES

    return implementation


@by_type
def clear(x, size):
    """Zero `size` elements of scratch; writes whole registers."""
    dtype = x.dtype

    def implementation(x, size):
        for i in range(0, size, LANES):
            vstore(x, i, fill(0, dtype, LANES))

    return implementation
