"""Numbers taken apart: 16 bytes for a thread."""

from numba import types

from ...blocks.array import FREXP
from ...build import jit
from ...cpu.array.parts import parts
from ...lang.simd import load, ptr
from ..block import read, vector, write


@jit.inline
def frexp(args, lo, hi, T):
    """Elements [lo, hi) as mantissas and exponents."""
    x, mantissa = ptr(load(args, FREXP.x), T), ptr(load(args, FREXP.mantissa), T)
    m, e = parts(read(x, lo, hi - lo, vector(x, 0)))
    write(mantissa, lo, m, hi - lo)
    write(ptr(load(args, FREXP.exponent), types.int32), lo, e, hi - lo)
    return 0
