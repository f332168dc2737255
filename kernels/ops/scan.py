"""Running sums, products and extremes, differences and areas."""

import math

import numpy as np

from ..lang import scalar_math as m
from ..problems.reduce import Running
from ..table.composite import composite
from ..table.registry import ALL, ANY, FLOATS, INEXACT, alias, op
from ._layout import check, check_dim, product
from ._rules import along_dim, scan
from .special import wider

ROUGH = {"float32": (1e-5, 1e-5), "bfloat16": (2e-2, 2e-2), "float16": (2e-3, 2e-3)}


@scan(start=0, ref=np.cumsum, dtypes=ALL, tolerance=ROUGH, amp="float32")
def cumsum(a, b):
    """Running sums along `dim`: each element is the sum of those up to it (from it on, if `reverse`).

    Integers and bools sum to int64; `dtype` converts the input first, and the result has it. Floats are summed in
    float64 (where many threads share a row, in float32, float64 of float64) and rounded once; the result has the shape
    of `input`.
    """
    return a + b


@cumsum.grad("input")
def _(f, g, input_dtype, dim, reverse):
    return f.cumsum(g, dim, reverse=not reverse).to(dtype=input_dtype)


def _near_one(rng):
    for (x, dim), options in along_dim(rng):
        yield (1 + x / 16, dim), options


@scan(start=1, ref=np.cumprod, dtypes=ALL, samples=_near_one, tolerance=ROUGH, amp="float32")
def cumprod(a, b):
    """Running products along `dim`, under the rules of `cumsum`.

    Where many threads share a row, as PyTorch's do, they multiply what lies between two elements first: products of
    these may overflow where those in turn do not, and NaN follows if one before is 0.
    """
    return a * b


@cumprod.grad("input")
def _(f, g, input, out, input_dtype, dim, dtype, reverse):
    x = input if dtype is None else input.to(dtype=dtype)
    zero = f.eq(x, 0.0)
    if not zero.shape_:
        return g
    rest = f.where(zero, 1.0, x)
    # Behind a first zero, products without it follow from those of what is left; behind a second one all are 0.
    seen = f.cumsum(zero, dim, reverse=reverse)
    before = f.where(f.eq(seen, 0), 1.0, 0.0).to(dtype=x.dtype)
    plain = f.div(f.cumsum(f.mul(f.mul(g, out), before), dim, reverse=not reverse), rest)
    after = f.where(f.eq(seen, 1), f.cumprod(rest, dim, reverse=reverse), 0.0)
    there = f.cumsum(f.mul(g, after), dim, reverse=not reverse)
    first = f.logical_and(zero, f.eq(seen, 1))
    return f.where(first, there, f.where(zero, 0.0, plain)).to(dtype=input_dtype)


@scan(start=-math.inf, ref=np.logaddexp.accumulate, dtypes=FLOATS, tolerance=ROUGH, amp="float32")
def logcumsumexp(a, b):
    """Logarithms of running sums of exponentials along `dim`, without overflow."""
    top, d = m.maximum(a, b), m.abs(a - b)
    return m.where(a == b, top + 0.6931471805599453, top + m.log1p_exp(-d))


@logcumsumexp.grad("input")
def _(f, g, input, out, input_dtype, dim, reverse):
    # sums of g exp(input - out), of positive and of negative g by themselves, as logarithms
    g, x, out = wider(g), wider(input), wider(out)

    def part(there, size):
        logs = f.where(there, f.sub(f.log(f.where(there, size, 1.0)), out), -1e30)
        return f.exp(f.add(f.logcumsumexp(logs, dim, reverse=not reverse), x))

    return f.sub(part(f.gt(g, 0.0), g), part(f.lt(g, 0.0), f.neg(g))).to(dtype=input_dtype)


# ---- running extremes --------------------------------------------------------------------------


def _extreme_ref(accumulate, better):
    def ref(x, dim):
        values = accumulate(x, dim) if x.ndim else x
        if not x.ndim:
            return values, np.zeros((), np.int64)
        x, at = np.moveaxis(x, dim, 0), np.zeros(x.shape, np.int64)
        places, best = np.moveaxis(at, dim, 0), x[:1].copy()
        for k in range(len(x)):
            new = better(x[k], best[0])
            best[0] = np.where(new, x[k], best[0])
            places[k] = np.where(new, k, places[k - 1] if k else 0)
        return values, at

    return ref


def _extreme_samples(rng):
    yield (np.round(rng.standard_normal((5, 17)) * 4), 1), {}
    yield (np.round(rng.standard_normal((17, 3)) * 4), 0), {}
    yield (np.array(1.5), 0), {}


def _distinct(rng):
    yield (rng.permutation(24).reshape(4, 6) / 8.0, 1), {}


def _running(call, input, dim, largest):
    check(call, input, "input")
    shape, dim = input.shape_, check_dim(dim, len(input.shape_))
    x, values, indices = input.contiguous(), call.out(shape, input.dtype), call.out(shape, "int64", key="indices")
    size, columns = shape[dim] if shape else 1, product(shape[dim + 1 :])
    if x.numel_:
        problem = Running(x.dtype.name, product(shape[:dim]), size, columns, largest)
        call.run(problem, x=x, values=values, indices=indices)
    call.save(where=indices, input_shape=shape)
    return values, indices


def _extreme(ref):
    given = {"samples": _extreme_samples, "grad_samples": _distinct, "fields": ("values", "indices")}
    return op(dtypes=ALL, ref=ref, outputs=("out", "indices"), **given)


@_extreme(_extreme_ref(np.maximum.accumulate, np.greater_equal))
def cummax(call, input, dim):
    """(values, int64 indices): the largest element up to each one along `dim`, and where it is, the last of equal ones.

    NaN counts as the largest.
    """
    return _running(call, input, dim, True)


@_extreme(_extreme_ref(np.minimum.accumulate, np.less_equal))
def cummin(call, input, dim):
    """(values, int64 indices): the smallest element up to each one along `dim`, under the rules of `cummax`."""
    return _running(call, input, dim, False)


for _row in (cummax, cummin):

    @_row.grad("input")
    def _(f, g, dim, where, input_shape):
        return f.gather_backward(g, dim, where, input_shape)


# ---- differences and areas ---------------------------------------------------------------------


def _diff_samples(rng):
    yield (rng.standard_normal((3, 7)),), {}
    yield (rng.standard_normal((7, 3)),), {"n": 2, "dim": 0}
    yield (
        (rng.standard_normal((3, 4)),),
        {"prepend": rng.standard_normal((3, 1)), "append": rng.standard_normal((3, 2))},
    )


def _diff_ref(x, n=1, dim=-1, prepend=None, append=None):
    x = np.concatenate([a for a in (prepend, x, append) if a is not None], dim)
    return np.diff(x, n, dim)


@composite(dtypes=ANY, ref=_diff_ref, samples=_diff_samples)
def diff(f, input, n: int = 1, dim=-1, prepend=None, append=None):
    """The differences of neighbours along `dim`, `n` times; `prepend` and `append` are joined to `input` first."""
    check(f, input, "input")
    if not input.shape_:
        raise ValueError("`input` of `diff` must have at least one dim, got a 0-dim tensor")
    if n < 0:
        raise ValueError(f"`n` of `diff` must not be negative, got {n}")
    dim = check_dim(dim, len(input.shape_))
    if n == 0:
        return f.rearrange(input)
    parts = [x for x in (prepend, input, append) if x is not None]
    y = f.cat(parts, dim) if len(parts) > 1 else input
    for _ in range(n):
        size = y.shape_[dim]
        if size < 2:
            return f.rearrange(y.narrow(dim, 0, 0))
        late, early = y.narrow(dim, 1, size - 1), y.narrow(dim, 0, size - 1)
        y = f.logical_xor(late, early) if y.dtype.kind == "b" else f.sub(late, early)
    return y


def _areas(f, y, x, dx, dim):
    """The areas between neighbours of y along `dim`."""
    check(f, y, "y", integers=True)
    dim = check_dim(dim, len(y.shape_))
    size = y.shape_[dim] if y.shape_ else 0
    pairs = (
        f.add(y.narrow(dim, 1, size - 1), y.narrow(dim, 0, size - 1)) if size > 1 else f.rearrange(y.narrow(dim, 0, 0))
    )
    if x is None:
        return f.mul(pairs, dx / 2), dim
    if dx is not None:
        raise TypeError(f"`{f.op.name}` takes one of `x` and `dx`, got both")
    own = x.shape_[0 if len(x.shape_) == 1 else dim]
    if own != size:
        raise ValueError(
            f"`x` of `{f.op.name}` must have {size} points along `dim` {dim}, as `y`, got shape {x.shape_}"
        )
    steps = f.diff(x, dim=0 if len(x.shape_) == 1 else dim)
    if len(x.shape_) == 1:
        steps = steps.reshape([-1] + [1] * (len(y.shape_) - dim - 1))
    return f.mul(f.mul(pairs, steps), 0.5), dim


def _area_samples(rng):
    yield (rng.standard_normal((3, 7)),), {"dx": 0.5}
    yield (rng.standard_normal((3, 7)), np.sort(rng.standard_normal(7))), {}
    yield (rng.standard_normal((7, 3)), np.sort(rng.standard_normal((7, 3)), 0)), {"dim": 0}


def _area_ref(function):
    def ref(y, x=None, dx=None, dim=-1):
        if x is not None and x.ndim == 1 and y.ndim > 1:
            x = x.reshape([-1] + [1] * (y.ndim - dim % y.ndim - 1))
        y = np.moveaxis(y, dim, 0)
        steps = (
            (1.0 if dx is None else dx)
            if x is None
            else np.diff(np.moveaxis(np.broadcast_to(x, np.moveaxis(y, 0, dim).shape), dim, 0), axis=0)
        )
        return function((y[1:] + y[:-1]) / 2 * steps, dim)

    return ref


@composite(
    ref=_area_ref(lambda a, dim: a.sum(0)), samples=_area_samples, tolerance=ROUGH, amp="float32", dtypes=INEXACT
)
def trapezoid(f, y, x=None, *, dx=None, dim=-1):
    """The area below `y` along `dim` by the trapezoidal rule, at the points `x`, or `dx` (1) apart."""
    check(f, y, "y", integers=True)
    if x is None and y.shape_ and y.shape_[check_dim(dim, len(y.shape_))] > 1:  # all but half of both ends
        ends = f.add(y.select(dim, 0), y.select(dim, -1))
        return f.mul(f.sub(f.sum(y, dim), f.mul(ends, 0.5)), 1.0 if dx is None else dx)
    areas, dim = _areas(f, y, x, 1.0 if dx is None and x is None else dx, dim)
    return f.sum(areas, dim)


alias(trapezoid, "trapz")


def _running_area(a, dim):
    return np.moveaxis(np.cumsum(a, 0), 0, dim)


@composite(ref=_area_ref(_running_area), samples=_area_samples, tolerance=ROUGH, amp="float32", dtypes=INEXACT)
def cumulative_trapezoid(f, y, x=None, *, dx=None, dim=-1):
    """The area up to each point but the first, as `trapezoid`."""
    areas, dim = _areas(f, y, x, 1.0 if dx is None and x is None else dx, dim)
    return f.cumsum(areas, dim)
