"""Reductions that are written with others."""

import math

import numpy as np

from ..lang import scalar_math as m
from ..problems.reduce import Ends
from ..table.composite import composite
from ..table.registry import ALL, ANY, INEXACT, elementwise, op
from ..table.rules import reduction_rule
from ._layout import check
from ._rules import SUM_TOLERANCE, need_elements, over, reduce_samples, reduced, reduction, restored
from .reduce import add, amax, amin, shared
from .statistics import _TOLERANCE


def _nan_samples(rng):
    for (x,), options in list(reduce_samples(rng))[2:]:
        yield (np.where(rng.uniform(size=x.shape) < 0.2, np.nan, x) if x.ndim else x,), options


def _no_nan_samples(rng):
    yield (rng.standard_normal((3, 5)),), {"dim": 1}
    yield (rng.standard_normal((3, 5)),), {}


def _ignoring(ref):
    return {"ref": over(ref), "samples": _nan_samples, "grad_samples": _no_nan_samples, "tolerance": SUM_TOLERANCE}


@reduction(
    start=0,
    ref=np.nansum,
    integers="int64",
    converts=True,
    samples=_nan_samples,
    grad_samples=_no_nan_samples,
    tolerance=SUM_TOLERANCE,
    amp="float32",
)
def nansum(x):
    """Sum over `dim` of what is not NaN, under the rules of `sum`."""
    return m.where(x == x, x, 0)


nansum.join(add)


@nansum.grad("input")
def _(f, g, input, input_dtype, dim, keepdim):
    g = restored(g, input.shape_, dim, keepdim).expand(input.shape_).to(dtype=input_dtype)
    return f.where(f.eq(input, input), g, 0.0)


@composite(**_ignoring(np.nanmean), amp="float32")
def nanmean(f, input, dim=None, keepdim=False, *, dtype=None):
    """Mean over `dim` of what is not NaN; NaN where nothing is left."""
    check(f, input, "input")
    x = input if dtype is None else input.to(dtype=dtype)
    if not x.dtype.is_floating_point:
        raise TypeError(f"`dtype` of `nanmean` must be a float one, got {x.dtype}")
    wide = x.to(dtype="float32") if x.dtype.itemsize == 2 else x
    count = f.sum(f.eq(wide, wide), dim, keepdim)
    return f.div(f.nansum(wide, dim, keepdim), count).to(dtype=x.dtype)


def _zeros(rng):
    for (x,), options in reduce_samples(rng):
        if not options.pop("keepdim", False):
            yield (np.where(x > 1.2, x, 0),), options


def _count_ref(input, dim=None):
    return np.asarray(np.count_nonzero(input, axis=tuple(dim) if isinstance(dim, list) else dim))


@composite(dtypes=ANY, ref=_count_ref, samples=_zeros, gradient=None)
def count_nonzero(f, input, dim=None):
    """How many elements over `dim` (an int, several, or None for all) are not 0: int64."""
    return f.sum(f.ne(input, 0), dim)


def _aminmax_ref(input, dim=None, keepdim=False):
    return np.min(input, axis=dim, keepdims=keepdim), np.max(input, axis=dim, keepdims=keepdim)


def _aminmax_samples(rng):
    yield (rng.standard_normal((3, 5)),), {}
    yield (rng.standard_normal((3, 5)),), {"dim": 1, "keepdim": True}


def _low_and_high(x):
    """(the smallest, the largest) of one element."""
    return x, x


def _further(a, b):
    low = m.where(a[0] != a[0], a[0], m.where(a[0] < b[0], a[0], b[0]))
    return low, m.where(a[1] != a[1], a[1], m.where(a[1] > b[1], a[1], b[1]))


lowest = reduction_rule((math.inf, -math.inf))(_low_and_high)
highest = reduction_rule((math.inf, -math.inf))(_low_and_high)
for _rule in (lowest, highest):
    _rule.join(_further)


@lowest.finish
def _lowest_of(low, high):
    return low


@highest.finish
def _highest_of(low, high):
    return high


@op(dtypes=ALL, ref=_aminmax_ref, samples=_aminmax_samples, outputs=("out", "high"), fields=("low", "high"), step=True)
def ends(call, input, dim=None, keepdim: bool = False):
    """(low, high): the smallest and the largest element over one `dim` or all; NaN if one element is."""
    check(call, input, "input")
    dims, result = reduced(input.shape_, dim, keepdim)
    if not input.numel_:
        need_elements(call, input.shape_, dims, result)
    low, high = call.out(result, input.dtype), call.out(result, input.dtype, key="high")
    if low.numel_:
        rules = (amin.rule, amax.rule), (lowest, highest)
        call.run(Ends(*rules, input.dtype.name, input.shape_, input.strides_, dims), x=input, low=low, high=high)
    return low, high


@ends.grad("input")
def _(f, g, g_high, input, out, high, dim, keepdim):
    found = None if g is None else shared(f, g, input, out, dim, keepdim)
    if g_high is not None:
        other = shared(f, g_high, input, high, dim, keepdim)
        found = other if found is None else f.add(found, other)
    return found


@composite(dtypes=ALL, ref=_aminmax_ref, samples=_aminmax_samples, fields=("min", "max"))
def aminmax(f, input, *, dim=None, keepdim=False):
    """(min, max) over one `dim` or all elements; NaN if one element is."""
    return f.ends(input, dim, keepdim)


def _dist_samples(rng):
    for p in (2, 1, 3, math.inf):
        yield (rng.standard_normal((3, 5)), rng.standard_normal(5), p), {}


def _dist_ref(x, y, p=2):
    return np.asarray(np.linalg.norm((x - y).reshape(-1), p))


@composite(ref=_dist_ref, samples=_dist_samples, tolerance=_TOLERANCE, amp="float32", dtypes=INEXACT)
def dist(f, input, other, p: float = 2):
    """The norm of order `p` of input - other."""
    return f.norm(f.sub(input, other), p)


@elementwise(ref=lambda x, maxnorm: np.where(x > maxnorm, maxnorm / (x + 1e-7), 1.0), domain=(0.5, 1.9), step=True)
def renorm_scale(input, maxnorm=1.2):
    """What `renorm` multiplies slices of these norms by: maxnorm / (input + 1e-7) where input > maxnorm, else 1."""
    return m.where(input > maxnorm, maxnorm / (input + 1e-7), 1.0)


@renorm_scale.grad("input")
def _(g, input, maxnorm):
    return m.where(input > maxnorm, -g * maxnorm / ((input + 1e-7) * (input + 1e-7)), 0.0)


def _renorm_ref(x, p, dim, maxnorm):
    axes = tuple(d for d in range(x.ndim) if d != dim % x.ndim)
    norm = (np.abs(x) ** p).sum(axes, keepdims=True) ** (1 / p)
    return np.where(norm > maxnorm, x * (maxnorm / (norm + 1e-7)), x)


def _renorm_samples(rng):
    yield (rng.standard_normal((3, 17)), 2, 0, 3.0), {}
    yield (rng.standard_normal((2, 5, 3)), 1, 1, 4.0), {}


@composite(ref=_renorm_ref, samples=_renorm_samples, tolerance=_TOLERANCE, amp="float32", dtypes=INEXACT)
def renorm(f, input, p: float, dim, maxnorm: float):
    """Each slice along `dim` scaled down to a norm of order `p` of at most `maxnorm`."""
    check(f, input, "input")
    ndim = len(input.shape_)
    if ndim < 2 or p <= 0 or maxnorm < 0:
        raise ValueError(
            f"`renorm` takes at least 2 dims, a positive `p` and `maxnorm`, got {input.shape_}, {p}, {maxnorm}"
        )
    norm = f.norm(input, p, [d for d in range(ndim) if d != dim % ndim], True)
    return f.mul(input, f.renorm_scale(norm, maxnorm))
