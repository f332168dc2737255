"""Products of one row and one column: sums of products, which are only read.

A team of threads has a part of k, four vectors of either operand on their way at once; sums of parts are added up by a
second launch. As tiles of a matrix, of which one element is there, 64 Mi elements took 15.1 ms (H100).
"""

from numba import types

from ...blocks.cuda import PRODUCT
from ...build import jit
from ...cpu.gemm.epilogue import activate
from ...lang.pieces import span_places, vgather_span, vload_span, vpiece
from ...lang.ptx import WARP, barrier, from_lane, shared, thread, threads
from ...lang.simd import fill, lane, load, muladd, ptr, reduce_add, select, store, vload, vstore
from ..block import width
from ..reduce.scan import offset
from .epilogue import alpha_of
from .tiled import place

I32 = types.int32
WARPS = 8  # of a block


@jit.inline
def products(a, b, own, size, A, W, TEAM):
    """What thread `own` of TEAM has of the sum of a[i] b[i] over `size` elements."""
    low, apart, begin = offset(a, W), TEAM * W, own * W
    x, y, high, lined = a + -low, b + -low, low + size, offset(b, W) == low
    even, odd = fill(0.0, A, W), fill(0.0, A, W)
    while begin - own * W < high:
        u = vload_span(x, begin, apart, high, W, 4)
        if lined:
            v = vload_span(y, begin, apart, high, W, 4)
        else:
            v = vgather_span(y, begin, apart, low, high, W, 4)
        if begin == own * W or begin - own * W + 4 * apart > high:
            at = span_places(begin, apart, I32, 1, W, 4)
            there = (at >= I32(low)) & (at < I32(high))
            u, v = select(there, u, 0.0), select(there, v, 0.0)
        even, odd = muladd(vpiece(u, 0, W), vpiece(v, 0, W), even), muladd(vpiece(u, 1, W), vpiece(v, 1, W), odd)
        even, odd = muladd(vpiece(u, 2, W), vpiece(v, 2, W), even), muladd(vpiece(u, 3, W), vpiece(v, 3, W), odd)
        begin += 4 * apart
    return reduce_add(even + odd)


@jit.inline
def over_team(total, A, TEAM):
    """The sum of a number of each thread of a team, in the same order each time."""
    for apart in (1, 2, 4, 8, 16):
        if apart < TEAM:
            total += from_lane(total, apart)
    if TEAM > WARP:
        sums = ptr(shared(64), A)
        if thread() % WARP == 0:
            store(sums, thread() // WARP, total)
        barrier()
        total = load(sums, 0)
        for k in range(1, WARPS):
            total += load(sums, k)
        barrier()
    return total


@jit.inline
def finish(args, total, at, R, A, ACT):
    """The epilogue of result number `at`."""
    value = fill(total * alpha_of(load(args, PRODUCT.alpha), A), A, 1)
    if load(args, PRODUCT.bias) != 0:
        value = value + vload(ptr(load(args, PRODUCT.bias), R), 0, 1)
    value = activate(value, ACT)
    if load(args, PRODUCT.residual) != 0:
        value = value + vload(ptr(load(args, PRODUCT.residual), R), at, 1)
    vstore(ptr(load(args, PRODUCT.c), R), at, value)


@jit.inline
def product(args, lo, hi, T, R, A, ACT, TEAM, CUT):
    """As many parts of results as a block has teams; of `CUT` ones, the sums go to c."""
    splits, part = load(args, PRODUCT.splits), load(args, PRODUCT.part)
    count = load(args, PRODUCT.tiles) * splits
    unit = lo * (threads() // TEAM) + thread() // TEAM
    own = min(unit, count - 1)
    index = own // splits
    start = (own - index * splits) * part
    in_a, in_b, _ = place(args, index, PRODUCT.dims, load(args, PRODUCT.ndim))
    a, b = ptr(load(args, PRODUCT.a), T) + (in_a + start), ptr(load(args, PRODUCT.b), T) + (in_b + start)
    size = min(part, load(args, PRODUCT.k) - start)
    total = over_team(products(a, b, thread() % TEAM, size, A, width(a), TEAM), A, TEAM)
    if thread() % TEAM == 0 and unit < count:
        if CUT:
            store(ptr(load(args, PRODUCT.c), A), unit, total)
        else:
            finish(args, total, unit, R, A, ACT)
    return 0


@jit.inline
def join(args, lo, hi, R, A, ACT, TEAM):
    """A result, of the sums of its parts at a."""
    splits, total = load(args, PRODUCT.splits), lane(fill(0.0, A, 1), 0)
    sums = ptr(load(args, PRODUCT.a), A) + lo * splits
    for i in range(thread(), splits, TEAM):
        total += load(sums, i)
    total = over_team(total, A, TEAM)
    if thread() == 0:
        finish(args, total, lo, R, A, ACT)
    return 0
