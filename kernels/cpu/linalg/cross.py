"""Vector products of triples that lie one behind the other."""

from numba import types

from ...blocks.linalg import CROSS
from ...build import jit
from ...lang.simd import load, ptr, ramp, select, store, vload, vstore
from .rows import LANES

U32 = types.uint32
BLOCK = 3 * LANES  # elements of LANES triples


@jit.inline
def part(a, b, y, at, first):
    """LANES elements of the result from `at` on, where `first` is the phase of a triple: 0, 1 or 2.

    With element i of a triple go i + 1 and i + 2, modulo 3: what lies behind it, or 3 elements before that.
    """
    place = ramp(first, U32, LANES)
    phase = place - place // 3 * 3
    one = select(phase == 2, vload(a, at - 2, LANES), vload(a, at + 1, LANES))
    two = select(phase == 0, vload(a, at + 2, LANES), vload(a, at - 1, LANES))
    three = select(phase == 2, vload(b, at - 2, LANES), vload(b, at + 1, LANES))
    four = select(phase == 0, vload(b, at + 2, LANES), vload(b, at - 1, LANES))
    vstore(y, at, one * four - two * three)


@jit.inline
def triples(args, lo, hi, T):
    """Blocks [lo, hi) of LANES triples; the first and the last ones, which have nothing around them, one by one."""
    size = load(args, CROSS.size)
    a, b, y = ptr(load(args, CROSS.a), T), ptr(load(args, CROSS.b), T), ptr(load(args, CROSS.y), T)
    for block in range(lo, hi):
        at = block * BLOCK
        if block > 0 and at + BLOCK + 2 <= size:
            part(a, b, y, at, 0)
            part(a, b, y, at + LANES, LANES % 3)
            part(a, b, y, at + 2 * LANES, 2 * LANES % 3)
        else:
            for k in range(at, min(at + BLOCK, size), 3):
                a0, a1, a2 = load(a, k), load(a, k + 1), load(a, k + 2)
                b0, b1, b2 = load(b, k), load(b, k + 1), load(b, k + 2)
                store(y, k, a1 * b2 - a2 * b1)
                store(y, k + 1, a2 * b0 - a0 * b2)
                store(y, k + 2, a0 * b1 - a1 * b0)
    return 0
