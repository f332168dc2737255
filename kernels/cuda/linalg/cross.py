"""Vector products of triples that lie one behind the other: as many for a thread as fill vectors."""

from ...blocks.linalg import CROSS
from ...build import jit
from ...lang.by_type import by_type
from ...lang.shuffle import dealt, picked, queued
from ...lang.simd import address, load, ptr, store, vload_aligned, vstore_aligned
from ..block import width


@by_type
def _split(x, at, lanes):
    """The three elements of `lanes` triples from `at` on, in a vector each."""
    count = 16 // max(1, x.dtype.bitwidth // 8)

    def implementation(x, at, lanes):
        parts = (
            vload_aligned(x, at, count),
            vload_aligned(x, at + count, count),
            vload_aligned(x, at + 2 * count, count),
        )
        v = queued(parts)
        return picked(v, 0, 3, count), picked(v, 1, 3, count), picked(v, 2, 3, count)

    return implementation


@by_type
def _join(y, at, lanes, parts):
    """Store three vectors as triples."""
    count = 16 // max(1, y.dtype.bitwidth // 8)
    twice = 2 * count

    def implementation(y, at, lanes, parts):
        v = dealt(parts)
        vstore_aligned(y, at, picked(v, 0, 1, count))
        vstore_aligned(y, at + count, picked(v, count, 1, count))
        vstore_aligned(y, at + 2 * count, picked(v, twice, 1, count))

    return implementation


@jit.inline
def product(a, b):
    """The vector product of two triples, of numbers or vectors."""
    return a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]


@jit.inline
def triples(args, lo, hi, T):
    """Triples [lo, hi), at most as many as 16 bytes have elements."""
    a, b, y = ptr(load(args, CROSS.a), T), ptr(load(args, CROSS.b), T), ptr(load(args, CROSS.y), T)
    lanes, at = width(y), 3 * lo
    if hi - lo == lanes and (address(a + at) | address(b + at) | address(y + at)) & 15 == 0:
        _join(y, at, lanes, product(_split(a, at, lanes), _split(b, at, lanes)))
    else:
        for k in range(at, 3 * hi, 3):
            one = load(a, k), load(a, k + 1), load(a, k + 2)
            c = product(one, (load(b, k), load(b, k + 1), load(b, k + 2)))
            store(y, k, c[0])
            store(y, k + 1, c[1])
            store(y, k + 2, c[2])
    return 0
