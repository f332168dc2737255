"""Orthogonal polynomials on vectors, by their three-term recurrences (DLMF 18.9.1), in float64."""

from ..build import jit
from .simd import reduce_or, select
from .special import wide
from .vmath import NAN, trunc

MOST = 1000000.0  # the largest degree: a step takes about a nanosecond a lane


def _recurrence(name, first, step):
    """The polynomial p_n(x) with p_0 = 1, p_1 = first(x) and p_{k+1} = step(x, k, p_k, p_{k-1}).

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

    return wide(value, name, 2)


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
    "laguerre_l", lambda x: 1.0 - x, lambda x, k, p, before: ((2.0 * k + 1.0 - x) * p - k * before) / (k + 1.0)
)
legendre_p = _recurrence(
    "legendre_p", lambda x: x, lambda x, k, p, before: ((2.0 * k + 1.0) * x * p - k * before) / (k + 1.0)
)
