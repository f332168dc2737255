"""Variance, standard deviation, norms, and the logarithm of a sum of exponentials."""

import math

import numpy as np

from ..blocks.softmax import LOGSUMEXP
from ..lang import scalar_math as m
from ..problems.norm import LogSumExp
from ..problems.reduce import Variance
from ..table.registry import ALL, INEXACT, op
from ..table.rules import reduction_rule
from ._layout import check, product, rows
from ._rules import reduce_by, reduce_samples, reduced, reduced_dims, restored
from .reduce import add, larger, larger_of_three, shared, smaller, smaller_of_three, sum_

_TOLERANCE = {"bfloat16": (2e-2, 1e-2)}


def _reduced_rows(input, dim, keepdim):
    """(x, results, elements of each, row stride, shape of the result): the elements of a result are a row of x."""
    shape, ndim = input.shape_, len(input.shape_)
    dims, result = reduced(shape, tuple(dim) if type(dim) is list else dim, keepdim)
    kept = ndim - len(dims)
    if dims and dims[0] != kept:  # else they are the last ones, as they rise
        input = input.permute(*(d for d in range(ndim) if d not in dims), *dims)
    return *rows(input, kept), result


# ---- variance ----------------------------------------------------------------------------------


def _var_ref(input, dim=None, unbiased=True, keepdim=False, correction=None):
    with np.errstate(all="ignore"):
        ddof = int(unbiased) if correction is None else correction
        return np.var(input, axis=dim, ddof=ddof, keepdims=keepdim)


def _std_ref(input, dim=None, unbiased=True, keepdim=False, correction=None):
    return np.sqrt(_var_ref(input, dim, unbiased, keepdim, correction))


def _var_samples(rng):
    for shape, dim in (((4, 3), -1), ((257, 5), 0), ((3, 17, 7), None), ((3, 5, 7), (0, 2))):
        options = {} if dim is None else {"dim": dim}
        yield (rng.standard_normal(shape) + 2,), options
        yield (rng.standard_normal(shape) + 2,), {**options, "unbiased": False, "keepdim": True}
        yield (rng.standard_normal(shape) + 2,), {**options, "correction": 0}


def _grad_samples(rng):
    yield (rng.standard_normal((3, 5)) + 2,), {"dim": -1}
    yield (rng.standard_normal((3, 5, 2)) + 2,), {"dim": (0, 2), "keepdim": True}
    yield (rng.standard_normal((2, 7)) + 2,), {}


def _moments(x):
    """(mean, squares about it, how many) of one element."""
    return x, x * 0.0, x * 0.0 + 1.0


def _joined(a, b):
    n, d = a[2] + b[2], b[0] - a[0]
    share = m.divide(b[2], m.where(n == 0.0, 1.0, n))
    return a[0] + d * share, a[1] + b[1] + d * d * a[2] * share, n


moments = reduction_rule((0.0, 0.0, 0.0))(_moments)
moments_less_one = reduction_rule((0.0, 0.0, 0.0))(_moments)
mean_of_moments = reduction_rule((0.0, 0.0, 0.0))(_moments)
for _rule in (moments, moments_less_one, mean_of_moments):
    _rule.join(_joined)


@moments.finish
def _variance_of(mean, squares, n):
    return squares / n


@moments_less_one.finish
def _unbiased_of(mean, squares, n):
    return squares / (n - 1.0)


@mean_of_moments.finish
def _mean_of(mean, squares, n):
    return mean


def _variance(call, input, dim, unbiased, keepdim, correction, with_mean=False):
    """(the variance, the mean or None)."""
    check(call, input, "input")
    if isinstance(dim, bool):
        if not unbiased or keepdim or correction is not None:
            raise TypeError(f"`dim` of `{call.op.name}` must be an integer, several or None, got {dim}")
        dim, unbiased = None, dim
    dims, result = reduced(input.shape_, tuple(dim) if type(dim) is list else dim, keepdim)
    size, correction = product(input.shape_[d] for d in dims), int(bool(unbiased)) if correction is None else correction
    degrees = float(max(0, size - correction))
    call.save(degrees=degrees, dim=dim)
    y, mean = call.out(result, input.dtype), call.out(result, input.dtype, key="mean") if with_mean else None
    if y.numel_:
        rule, means = {0: moments, 1: moments_less_one}.get(correction), mean_of_moments if with_mean else None
        problem = Variance(rule, input.dtype.name, input.shape_, input.strides_, dims, degrees, means)
        call.run(problem, x=input, y=y, mean=mean)
    return y, mean


@op(ref=_var_ref, samples=_var_samples, grad_samples=_grad_samples, tolerance=_TOLERANCE, amp="float32", dtypes=INEXACT)
def var(call, input, dim=None, unbiased=True, keepdim: bool = False, correction=None):
    """Variance over `dim` (an int, several, or None for all): squares about the mean, summed.

    The sum is divided by the count less `correction`, by default 1 if `unbiased`, else 0. A bool in the place of `dim`
    is `unbiased`, over all dims.
    """
    return _variance(call, input, dim, unbiased, keepdim, correction)[0]


@var.grad("input")
def _(f, g, input, dim, keepdim, degrees):
    g = restored(f.mul(g, 2.0 / degrees if degrees else math.nan), input.shape_, dim, keepdim)
    return f.mul(g, f.sub(input, f.mean(input, dim, True)))


@op(ref=_std_ref, samples=_var_samples, grad_samples=_grad_samples, tolerance=_TOLERANCE, amp="float32", dtypes=INEXACT)
def std(call, input, dim=None, unbiased=True, keepdim: bool = False, correction=None):
    """Standard deviation over `dim`: the square root of `var`, with its arguments."""
    y, _ = _variance(call, input, dim, unbiased, keepdim, correction)
    call.elementwise("sqrt", y, out=y)
    return y


@std.grad("input")
def _(f, g, input, out, dim, keepdim, degrees):
    zero = f.eq(out, 0.0)
    g = f.where(zero, 0.0, f.div(g, f.where(zero, 1.0, out)))
    g = restored(f.mul(g, 1.0 / degrees if degrees else math.nan), input.shape_, dim, keepdim)
    return f.mul(g, f.sub(input, f.mean(input, dim, True)))


def _with_mean_ref(function):
    def ref(input, dim=None, unbiased=True, keepdim=False, correction=None):
        return function(input, dim, unbiased, keepdim, correction), np.mean(input, axis=dim, keepdims=keepdim)

    return ref


_with_mean = {
    "samples": _var_samples, "grad_samples": _grad_samples, "tolerance": _TOLERANCE, "amp": "float32",
    "dtypes": INEXACT, "outputs": ("out", "mean"),
}  # fmt: skip


def _from_moments(f, input, g, g_mean, dim, keepdim, factor):
    """The gradient of the input from `g`, that of squares about the mean times `factor`, and that of the mean."""
    dim, shape = None if isinstance(dim, bool) else dim, input.shape_
    found = None
    if g is not None:
        found = f.mul(restored(f.mul(g, factor), shape, dim, keepdim), f.sub(input, f.mean(input, dim, True)))
    if g_mean is not None:
        count = product(shape[d] for d in reduced_dims(dim, len(shape)))
        share = restored(f.mul(g_mean, 1.0 / count if count else math.nan), shape, dim, keepdim)
        found = share.expand(shape) if found is None else f.add(found, share)
    return found


@op(ref=_with_mean_ref(_var_ref), **_with_mean)
def var_mean(call, input, dim=None, unbiased=True, keepdim: bool = False, correction=None):
    """(variance, mean) over `dim`, by the arguments of `var`, in one pass."""
    return _variance(call, input, dim, unbiased, keepdim, correction, True)


@var_mean.grad("input")
def _(f, g, g_mean, input, dim, keepdim, degrees):
    return _from_moments(f, input, g, g_mean, dim, keepdim, 2.0 / degrees if degrees else math.nan)


@op(ref=_with_mean_ref(_std_ref), **_with_mean)
def std_mean(call, input, dim=None, unbiased=True, keepdim: bool = False, correction=None):
    """(standard deviation, mean) over `dim`, by the arguments of `var`, in one pass."""
    y, mean = _variance(call, input, dim, unbiased, keepdim, correction, True)
    call.elementwise("sqrt", y, out=y)
    return y, mean


@std_mean.grad("input")
def _(f, g, g_mean, input, out, dim, keepdim, degrees):
    if g is not None:
        zero = f.eq(out, 0.0)
        g = f.where(zero, 0.0, f.div(g, f.where(zero, 1.0, out)))
    return _from_moments(f, input, g, g_mean, dim, keepdim, 1.0 / degrees if degrees else math.nan)


# ---- norms -------------------------------------------------------------------------------------


def _norm_ref(input, p=2, dim=None, keepdim=False):
    x, axes = np.abs(input), tuple(dim) if isinstance(dim, list) else dim
    if p == math.inf:
        return x.max(axis=axes, keepdims=keepdim)
    if p == -math.inf:
        return x.min(axis=axes, keepdims=keepdim)
    if p == 0:
        return (x != 0).sum(axis=axes, keepdims=keepdim).astype(x.dtype)
    return (x**p).sum(axis=axes, keepdims=keepdim) ** (1 / p)


def _norm_samples(rng):
    for p in (2, 1, 3, 0, math.inf, -math.inf):
        yield (rng.uniform(0.5, 2, (4, 17)) * rng.choice([-1, 1], (4, 17)), p), {"dim": -1}
        yield (rng.uniform(0.5, 2, (3, 5, 7)), p, (0, 2), True), {}
        yield (rng.uniform(0.5, 2, (33, 3)), p), {"dim": 0}
    yield (rng.standard_normal((257, 33)),), {}


def _norm_grad_samples(rng):
    for p in (2, 1, 3, math.inf, -math.inf):
        yield (rng.permutation(24).reshape(4, 6) / 8.0 - 1.05, p), {"dim": -1}
    yield (rng.standard_normal((3, 5, 2)), 2, (0, 2), True), {}
    yield (rng.standard_normal((3, 5)),), {}
    yield (rng.standard_normal((3, 4)), "nuc"), {}
    yield (rng.standard_normal((3, 2, 4)), "nuc", (2, 0)), {}


@reduction_rule(start=0)
def root_of_squares(x):
    return x * x


@root_of_squares.finish
def _(total):
    return m.sqrt(total)


root_of_squares.join(add)


@reduction_rule(start=0)
def sum_of_magnitudes(x):
    return m.abs(x)


sum_of_magnitudes.join(add)


@reduction_rule(start=-math.inf)
def largest_magnitude(x):
    return m.abs(x)


largest_magnitude.join(larger)
largest_magnitude.absorb(larger_of_three)


@reduction_rule(start=math.inf)
def smallest_magnitude(x):
    return m.abs(x)


smallest_magnitude.join(smaller)
smallest_magnitude.absorb(smaller_of_three)


def _order(p):
    """`p` of a norm as a number."""
    if p == "fro":
        return 2.0
    if not hasattr(p, "__float__"):
        raise ValueError(f"`p` of `norm` must be a number, 'fro' or 'nuc', got {p!r}")
    return float(p)


@op(
    ref=_norm_ref,
    samples=_norm_samples,
    grad_samples=_norm_grad_samples,
    tolerance=_TOLERANCE,
    amp="float32",
    dtypes=INEXACT,
)
def norm(call, input, p=2, dim=None, keepdim=False):
    """The vector norm sum(|x|^p)^(1/p) over `dim` (an int, several, or None for all).

    `p` inf and -inf give the largest and smallest magnitude, 0 counts what is not zero. 16-bit floats are summed in
    float32 and rounded once. "nuc" is the sum of the singular values of matrices, in two dims.
    """
    if p == "nuc":
        check(call, input, "input")
        found = input.linalg_matrix_norm("nuc", range(input.ndim) if dim is None else dim, keepdim)
        return call.out(found.shape_, found.dtype).copy_(found)
    p = _order(p)
    check(call, input, "input")
    if p == 2.0:
        return reduce_by(call, root_of_squares, input, dim, keepdim)
    if p == 0.0:
        return reduce_by(call, sum_.rule, call.elementwise("ne", input, 0).to(dtype=input.dtype), dim, keepdim)
    if p == 1.0 or math.isinf(p):
        rule = sum_of_magnitudes if p == 1.0 else largest_magnitude if p > 0 else smallest_magnitude
        return reduce_by(call, rule, input, dim, keepdim, needs_elements=math.isinf(p))
    wide = input if input.dtype.itemsize > 2 else input.to(dtype="float32")
    powers = call.elementwise("pow", call.elementwise("abs", wide), p)
    total = reduce_by(call, sum_.rule, powers, dim, keepdim, make=call.empty)
    y = call.out(total.shape_, input.dtype)
    call.elementwise("mul", call.elementwise("pow", total, 1.0 / p), 1.0, out=y)
    return y


@norm.grad("input")
def _(f, g, input, out, p, dim, keepdim):
    if p == "nuc":
        rows, columns = (d % input.ndim for d in ((0, 1) if dim is None else dim))
        u, _, vh = f.linalg_svd(f.movedim(input, (rows, columns), (-2, -1)), False)
        g = g if keepdim else f.unsqueeze(f.unsqueeze(g, min(rows, columns)), max(rows, columns))
        return f.mul(g, f.movedim(f.matmul(u, vh), (-2, -1), (rows, columns)))
    p = _order(p)
    size = f.abs(input)
    sign = f.where(f.gt(input, 0.0), 1.0, f.where(f.lt(input, 0.0), -1.0, 0.0)).to(dtype=input.dtype)
    if math.isinf(p):
        return f.mul(shared(f, g, size, out, dim, keepdim, nans=True), sign)
    g, out = restored(g, input.shape_, dim, keepdim), restored(out, input.shape_, dim, keepdim)
    if p == 0.0:
        return f.mul(sign, 0.0)
    if p == 1.0:
        return f.mul(g, sign)
    zero = f.eq(out, 0.0)
    if p == 2.0:
        return f.mul(input, f.where(zero, 0.0, f.div(g, f.where(zero, 1.0, out))))
    scale = f.where(zero, 0.0, f.div(g, f.pow(f.where(zero, 1.0, out), p - 1.0)))
    nothing = f.eq(input, 0.0)
    powers = f.where(nothing, 0.0, f.pow(f.where(nothing, 1.0, size), p - 1.0))
    return f.mul(f.mul(sign, powers), scale)


# ---- logsumexp ---------------------------------------------------------------------------------


def _logsumexp_ref(input, dim, keepdim=False):
    axes = tuple(dim) if isinstance(dim, list) else dim
    top = input.max(axis=axes, keepdims=True)
    y = top + np.log(np.exp(input - top).sum(axis=axes, keepdims=True))
    return y if keepdim else np.squeeze(y, axes)


def _logsumexp_samples(rng):
    for (x,), options in reduce_samples(rng):
        if options and x.ndim:
            yield (x * 4,), options


@op(dtypes=ALL, ref=_logsumexp_ref, samples=_logsumexp_samples, tolerance={"float32": (1e-5, 1e-6)}, amp="float32")
def logsumexp(call, input, dim, keepdim=False):
    """log(sum(exp(input))) over `dim` (an int or several), without overflow; -inf of nothing or of -inf only."""
    check(call, input, "input")
    if not input.dtype.is_floating_point:
        input = call.elementwise("mul", input, 1.0)
    shape, (dims, result) = input.shape_, reduced(input.shape_, tuple(dim) if type(dim) is list else dim, keepdim)
    if dims and input.contiguous_ and input.numel_ and dims[-1] - dims[0] == len(dims) - 1 < len(shape) - 1 - dims[0]:
        y, size = call.out(result, input.dtype), product(shape[d] for d in dims)
        columns = product(shape[dims[-1] + 1 :])
        call.run(LogSumExp(input.dtype.name, product(shape[: dims[0]]), size, columns), x=input, y=y)
        return y
    x, count, size, stride, result = _reduced_rows(input, dim, keepdim)
    y = call.out(result, input.dtype)
    block = LOGSUMEXP(x=x, y=y, size=size, stride=stride)
    call.launch("norm.softmax.logsumexp", {"T": x.dtype.name}, block, count, size)
    return y


@logsumexp.grad("input")
def _(f, g, input, out, dim, keepdim):
    g, out = restored(g, input.shape_, dim, keepdim), restored(out, input.shape_, dim, keepdim)
    return f.mul(g, f.exp(f.sub(input, out)))
