"""Orthogonal polynomials on vectors, by their three-term recurrences (DLMF 18.9.1), in float64."""

from ..build import isa, jit
from .simd import convert, reduce_or, select
from .special import wide
from .vmath import F32, F64, NAN, trunc

MOST = 1000000.0  # the largest degree: a step takes about a nanosecond a lane


def _recurrence(name, first, step, quick=None):
    """The polynomial p_n(x) with p_0 = 1, p_1 = first(x) and p_{k+1} = step(x, k, p_k, p_{k-1}).

    `quick(x, k, p, before, 1 / (k + 1))` is the same step without a quotient, where it has one.

    n is taken without its fraction; below 0 the polynomial is 0, and NaN beyond degree `MOST`.
    """
    first, step = jit.inline(first), jit.inline(step)

    def value(x, n):
        n = trunc(n)
        last = select(n > MOST, 0.0, n)
        before, p, k = 1.0 + 0.0 * last, first(x), 1.0
        while reduce_or(last > k):
            more = last > k
            after = step(x, k, p, before)
            before, p = select(more, p, before), select(more, after, p)
            k += 1.0
        p = select(last < 1.0, select(last < 0.0, 0.0, 1.0 + 0.0 * last), p)
        return select((n > MOST) | (n != n), NAN, p)

    quick = jit.inline(quick or (lambda x, k, p, before, inverse: step(x, k, p, before)))

    def float32(x, y):
        # On a GPU: each lane takes the polynomial of its degree when the recurrence is there, which is half as many
        # selections of float64 as holding it from there on; degrees are float32, and a step has one quotient for all.
        last, wide_x = trunc(y), convert(x, F64)
        most = select(last > MOST, 0.0, last)
        before, p, k = 1.0 + 0.0 * wide_x, first(wide_x), 1.0
        found = select(last == 0.0, before, select(last == 1.0, p, 0.0))
        while reduce_or(most > k):
            before, p = p, quick(wide_x, k, p, before, 1.0 / (k + 1.0))
            k += 1.0
            found = select(most == k, p, found)
        return select((last > MOST) | (last != last), NAN, convert(found, F32))

    return wide(value, name, 2, float32=float32 if isa.is_gpu() else None)


def _chebyshev(x, k, p, before):
    return 2.0 * x * p - before


def _shifted(x, k, p, before):
    return (4.0 * x - 2.0) * p - before


chebyshev_t = _recurrence("chebyshev_t", lambda x: x, _chebyshev)
chebyshev_u = _recurrence("chebyshev_u", lambda x: 2.0 * x, _chebyshev)
chebyshev_v = _recurrence("chebyshev_v", lambda x: 2.0 * x - 1.0, _chebyshev)
chebyshev_w = _recurrence("chebyshev_w", lambda x: 2.0 * x + 1.0, _chebyshev)
shifted_t = _recurrence("shifted_t", lambda x: 2.0 * x - 1.0, _shifted)
shifted_u = _recurrence("shifted_u", lambda x: 4.0 * x - 2.0, _shifted)
shifted_v = _recurrence("shifted_v", lambda x: 4.0 * x - 3.0, _shifted)
shifted_w = _recurrence("shifted_w", lambda x: 4.0 * x - 1.0, _shifted)
hermite_h = _recurrence("hermite_h", lambda x: 2.0 * x, lambda x, k, p, before: 2.0 * (x * p - k * before))
hermite_he = _recurrence("hermite_he", lambda x: x, lambda x, k, p, before: x * p - k * before)
laguerre_l = _recurrence(
    "laguerre_l",
    lambda x: 1.0 - x,
    lambda x, k, p, before: ((2.0 * k + 1.0 - x) * p - k * before) / (k + 1.0),
    lambda x, k, p, before, inverse: ((2.0 * k + 1.0 - x) * p - k * before) * inverse,
)
legendre_p = _recurrence(
    "legendre_p",
    lambda x: x,
    lambda x, k, p, before: ((2.0 * k + 1.0) * x * p - k * before) / (k + 1.0),
    lambda x, k, p, before, inverse: ((2.0 * k + 1.0) * x * p - k * before) * inverse,
)
