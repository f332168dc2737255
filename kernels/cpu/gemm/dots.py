"""The product of two long vectors: sums of chunks, which all threads share, and the sum of these.

16-bit floats are read as they lie. As a tile of a matrix 1M of float32 took 4 ms, so 0.1.
"""

from numba import types

from ...blocks.gemm import LONG_DOT
from ...build import jit
from ...lang.simd import fill, load, muladd, ptr, reduce_add, store, vload, vload_first, vstore

LANES = 16
CHUNK = 16384  # elements


@jit.inline
def chunk(a, b, size, A):
    """The sum of a[i] b[i] over `size` elements."""
    s = t = u = v = fill(0.0, A, LANES)
    i = 0
    while i + 4 * LANES <= size:
        s = muladd(vload(a, i, LANES), vload(b, i, LANES), s)
        t = muladd(vload(a, i + LANES, LANES), vload(b, i + LANES, LANES), t)
        u = muladd(vload(a, i + 2 * LANES, LANES), vload(b, i + 2 * LANES, LANES), u)
        v = muladd(vload(a, i + 3 * LANES, LANES), vload(b, i + 3 * LANES, LANES), v)
        i += 4 * LANES
    while i < size:
        s = muladd(vload_first(a, i, LANES, size - i), vload_first(b, i, LANES, size - i), s)
        i += LANES
    return reduce_add((s + t) + (u + v))


@jit.inline
def sums(args, lo, hi, T, A):
    """The sums of chunks [lo, hi)."""
    a, b = ptr(load(args, LONG_DOT.a), T), ptr(load(args, LONG_DOT.b), T)
    parts, k = ptr(load(args, LONG_DOT.parts), A), load(args, LONG_DOT.k)
    for i in range(lo, hi):
        store(parts, i, chunk(a + i * CHUNK, b + i * CHUNK, min(CHUNK, k - i * CHUNK), A))
    return 0


@jit.inline
def total(args, lo, hi, R, A):
    """The result, of the sums of all chunks."""
    parts, k = ptr(load(args, LONG_DOT.parts), A), load(args, LONG_DOT.k)
    found = types.float64(0.0)
    for i in range((k + CHUNK - 1) // CHUNK):
        found += load(parts, i)
    vstore(ptr(load(args, LONG_DOT.c), R), 0, fill(A(found), A, 1))
    return 0
