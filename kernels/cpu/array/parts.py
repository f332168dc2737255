"""Numbers taken apart."""

from numba import types

from ...blocks.array import FREXP
from ...build import isa, jit
from ...lang.by_type import by_type
from ...lang.simd import bitcast, convert, load, ptr, select, vload, vload_first, vstore, vstore_first

LANES = isa.lanes()


@by_type
def parts(x):
    """(mantissa, exponent) of every lane."""
    integer, bits, most = (types.int32, 23, 255) if x.dtype == types.float32 else (types.int64, 52, 2047)
    half, fraction, floating = most // 2 - 1, (1 << bits) - 1, x.dtype
    sign = -1 << (integer.bitwidth - 1)

    def taken_apart(x):
        tiny = ((bitcast(x, integer) >> bits) & most) == 0  # below the normal numbers: made larger first
        word = bitcast(select(tiny, x * 2.0**bits, x), integer)
        stored = (word >> bits) & most
        itself = (x == 0.0) | (stored == most)
        mantissa = bitcast(word & (fraction | sign) | (half << bits), floating)
        exponent = stored - select(tiny, half + bits + 0 * stored, half + 0 * stored)
        return select(itself, x, mantissa), convert(select(itself, 0 * stored, exponent), types.int32)

    return taken_apart


@jit.inline
def frexp(args, lo, hi, T):
    """Elements [lo, hi) as mantissas of 0.5 <= |m| < 1 and exponents of 2; zeros, infinity and NaN stay, with 0."""
    x, mantissa = ptr(load(args, FREXP.x), T), ptr(load(args, FREXP.mantissa), T)
    exponent = ptr(load(args, FREXP.exponent), types.int32)
    i = lo
    while i + LANES <= hi:
        m, e = parts(vload(x, i, LANES))
        vstore(mantissa, i, m)
        vstore(exponent, i, e)
        i += LANES
    if i < hi:
        m, e = parts(vload_first(x, i, LANES, hi - i))
        vstore_first(mantissa, i, m, hi - i)
        vstore_first(exponent, i, e, hi - i)
    return 0
