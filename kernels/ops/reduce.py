"""Reductions over one dim, several, or all. Sums of 16-bit floats are taken in float32."""

import math

import numpy as np

from ..lang import scalar_math as m
from ..problems.reduce import Position
from ..table.registry import ALL, FLOATS, op
from ._layout import check, check_dim, product
from ._rules import (
    SUM_TOLERANCE,
    need_elements,
    reduce_by,
    reduce_samples,
    reduced,
    reduced_dims,
    reduction,
    restored,
)
from .view import shown_once

INF = math.inf

# ---- sums and products ---------------------------------------------------------------------------


def add(a, b):
    return a + b


@reduction(start=0, ref=np.sum, integers="int64", converts=True, tolerance=SUM_TOLERANCE, amp="float32")
def sum_(x):
    """Sum over `dim` (an int, several, or None for all); integers and bools sum to int64.

    16-bit floats are summed in float32 and rounded once. `dtype` converts the input first, and the result has it. A
    sum of nothing is 0.
    """
    return x


sum_.join(add)


@sum_.grad("input")
def _(g, input_shape, input_dtype, dim, keepdim):
    return restored(g, input_shape, dim, keepdim).expand(input_shape).to(dtype=input_dtype)


@reduction(start=0, ref=np.mean, dtypes=FLOATS, converts=True, tolerance=SUM_TOLERANCE, amp="float32")
def mean(x):
    """Mean over `dim` (an int, several, or None for all) of a floating-point tensor; NaN of nothing.

    `dtype` converts the input first: an integer tensor has no mean of its own dtype.
    """
    return x


mean.join(add)


@mean.finish
def _(total, count):
    return total / count


@mean.grad("input")
def _(f, g, input_shape, input_dtype, dim, keepdim):
    count = product(input_shape[d] for d in reduced_dims(dim, len(input_shape)))
    g = f.mul(g, 1.0 / count) if count else g
    return restored(g, input_shape, dim, keepdim).expand(input_shape).to(dtype=input_dtype)


@reduction(start=1, ref=np.prod, integers="int64", converts=True, tolerance=SUM_TOLERANCE, amp="float32")
def prod(x):
    """Product over `dim`, under the rules of `sum`; the product of nothing is 1."""
    return x


@prod.join
def _(a, b):
    return a * b


def _others(f, x):
    """For each element the product of the others along the last dim, of any order of derivative: n^2 products."""
    n = x.shape_[-1]
    zero = f.eq(x, 0.0)
    ones = f.logical_or(zero, f.logical_not(zero)).unsqueeze(-1).expand(*x.shape_, n)
    own = f.tril(f.triu(ones))
    return f.prod(f.masked_fill(x.unsqueeze(-2).expand(*x.shape_, n), own, 1.0), -1)


@prod.grad("input")
def _(f, g, input, dim, keepdim, dtype, create_graph):
    x = input if dtype is None else input.to(dtype=dtype)
    shape, dims = x.shape_, reduced_dims(dim, len(x.shape_))
    g = restored(g, shape, dim, keepdim)
    if create_graph:
        order = [*(d for d in range(len(shape)) if d not in dims), *dims]
        moved = x.permute(order)
        others = _others(f, moved.reshape(*moved.shape_[: len(shape) - len(dims)], -1)).reshape(moved.shape_)
        back = [order.index(d) for d in range(len(shape))]
        return f.mul(g, others.permute(back)).to(dtype=input.dtype)
    zero = f.eq(x, 0.0)
    zeros, rest = f.sum(zero, dims, True), f.where(zero, 1.0, x)
    product_of_rest = f.prod(rest, dims, True)
    of_others = f.where(f.eq(zeros, 1), f.mul(product_of_rest, 0.0), 0.0)  # one zero among them: NaN if one is infinite
    elsewhere = f.div(f.where(f.eq(zeros, 0), product_of_rest, of_others), rest)
    there = f.where(f.eq(zeros, 1), product_of_rest, 0.0)
    return f.mul(g, f.where(zero, there, elsewhere)).to(dtype=input.dtype)


# ---- extreme values ------------------------------------------------------------------------------

# Of three, one test for NaN is enough: a comparison with a NaN in `top` leaves it there.


def larger(a, b):
    return m.maximum(a, b)


def larger_of_three(top, a, b):
    best = m.where(a > b, a, b)
    best = m.where(best > top, best, top)
    return m.where((a != a) | (b != b), a + b, best)


def smaller(a, b):
    return m.minimum(a, b)


def smaller_of_three(low, a, b):
    best = m.where(a < b, a, b)
    best = m.where(best < low, best, low)
    return m.where((a != a) | (b != b), a + b, best)


@reduction(start=-INF, ref=np.max, needs_elements=True)
def amax(x):
    """Maximum over `dim` (an int, several, or None for all); NaN if one element is."""
    return x


amax.join(larger)
amax.absorb(larger_of_three)


@reduction(start=INF, ref=np.min, needs_elements=True)
def amin(x):
    """Minimum over `dim` (an int, several, or None for all); NaN if one element is."""
    return x


amin.join(smaller)
amin.absorb(smaller_of_three)


def shared(f, g, input, out, dim, keepdim, nans=False):
    """The gradient of an extreme value: shared evenly by the elements that equal it.

    Where it is NaN, by those that are (`nans`), or NaN for all.
    """
    g, out = restored(g, input.shape_, dim, keepdim), restored(out, input.shape_, dim, keepdim)
    equal = f.isclose(input, out, 0.0, 0.0, True) if nans else f.eq(input, out)
    count = f.sum(equal, reduced_dims(dim, len(input.shape_)), True)
    share = f.div(g, count.to(dtype=g.dtype))
    return f.where(equal, share, f.mul(share, 0.0))  # NaN where none is equal


@amax.grad("input")
def _(f, g, input, out, dim, keepdim):
    return shared(f, g, input, out, dim, keepdim)


@amin.grad("input")
def _(f, g, input, out, dim, keepdim):
    return shared(f, g, input, out, dim, keepdim)


# ---- any and all ---------------------------------------------------------------------------------


def _truth_samples(rng):
    for (x,), options in reduce_samples(rng):
        yield (np.asarray(x > 1.2, dtype=np.float64),), options


@reduction(start=False, ref=np.any, state="bool", samples=_truth_samples, gradient=None)
def any_(x):
    """Whether any element over `dim` is not zero (NaN is not); False of nothing.

    bool, but uint8 for uint8. No dims, `dim=()`, are none here: the result is whether each element is not zero.
    """
    return x != 0


@any_.join
def _(a, b):
    return a | b


@reduction(start=True, ref=np.all, state="bool", samples=_truth_samples, gradient=None)
def all_(x):
    """Whether all elements over `dim` are not zero, under the rules of `any`; True of nothing."""
    return x != 0


@all_.join
def _(a, b):
    return a & b


# ---- positions ---------------------------------------------------------------------------------


def _search(call, input, dim, keepdim, largest, values=False):
    """(values or None, positions) of the maximum or minimum along `dim`, or (None) of the flattened tensor."""
    check(call, input, "input")
    if dim is not None:
        dim = check_dim(dim, len(input.shape_))
    dims, result = reduced(input.shape_, dim, keepdim)
    if not input.numel_:
        need_elements(call, input.shape_, dims, result)
    best = call.out(result, input.dtype) if values else None
    where = call.out(result, "int64", key="indices" if values else "out")
    x = input.contiguous() if dim is None else input
    dtype = "uint8" if x.dtype.name == "bool" else x.dtype.name
    call.run(Position(dtype, x.shape_, x.strides_, dims, largest, values), x=x, values=best, indices=where)
    return best, where


def _position_ref(function):
    def ref(input, dim=None, keepdim=False):
        return function(input, axis=dim, keepdims=keepdim)

    return ref


def _position_samples(rng):
    for (x,), options in reduce_samples(rng):
        if not isinstance(options.get("dim"), tuple):
            # values with ties, exact in every float
            yield (np.asarray(np.round(x * 8 + rng.integers(-8, 8, x.shape))),), options


def _distinct_samples(rng):
    for (x,), options in reduce_samples(rng):
        if not isinstance(options.get("dim"), tuple):
            yield (x,), options


@op(dtypes=ALL, ref=_position_ref(np.argmax), samples=_position_samples, gradient=None)
def argmax(call, input, dim=None, keepdim=False):
    """int64 position of the maximum along `dim`, or in the flattened tensor; the first of equal ones.

    NaN counts as the maximum.
    """
    return _search(call, input, dim, keepdim, True)[1]


@op(dtypes=ALL, ref=_position_ref(np.argmin), samples=_position_samples, gradient=None)
def argmin(call, input, dim=None, keepdim=False):
    """int64 position of the minimum, under the rules of `argmax`."""
    return _search(call, input, dim, keepdim, False)[1]


def _value_and_position(call, input, dim, keepdim, rule, largest):
    """max or min: a value over all dims, or (values, indices) along one; of two tensors, the larger elements."""
    if hasattr(dim, "strides_"):
        if keepdim:
            raise TypeError(f"`keepdim` of `{call.op.name}` goes with a `dim`, not with a second tensor: leave it out")
        call.save(kept=input, where=None, input_shape=None)
        return call.elementwise("maximum" if largest else "minimum", input, dim, out=(call.given or {}).get("out"))
    if dim is None:
        call.save(kept=input, where=None, input_shape=None)
        return reduce_by(call, rule, input, None, keepdim, needs_elements=True)
    values, indices = _search(call, input, dim, keepdim, largest, True)
    call.save(kept=None, where=indices, input_shape=input.shape_)
    return values, indices


def _half_of(f, g, input, other, out):
    """The gradient of `input`, one of the two tensors that `out` has the extreme values of."""
    mine = f.where(f.eq(input, other), f.mul(g, 0.5), f.where(f.eq(input, out), g, 0.0))
    return shown_once(input.shape_, mine)


def _value_gradient(f, g, kept, out, dim, keepdim, where, shape):
    """The gradient of max or min: to the element that the index `where` names, or shared among equal ones."""
    if hasattr(dim, "strides_"):
        return _half_of(f, g, kept, dim, out)
    if dim is None:
        return shared(f, g, kept, out, None, keepdim, nans=True)
    if not shape:
        return g
    return f.gather_backward(restored(g, shape, dim, keepdim), dim, restored(where, shape, dim, keepdim), shape)


def _pair_ref(value, position):
    def ref(input, dim=None, keepdim=False):
        found = value(input, axis=dim, keepdims=keepdim)
        return found if dim is None else (found, position(input, axis=dim, keepdims=keepdim))

    return ref


@op(
    dtypes=ALL,
    ref=_pair_ref(np.max, np.argmax),
    samples=_position_samples,
    grad_samples=_distinct_samples,
    outputs=("out", "indices"),
    fields=("values", "indices"),
)
def max_(call, input, dim=None, keepdim=False):
    """The maximum of all elements, or along `dim` a pair (values, int64 indices of the first ones).

    Of two tensors, `max(input, other)`, the larger of each two elements, as `maximum`. NaN counts as the maximum.
    Raises ValueError for a maximum of nothing.
    """
    return _value_and_position(call, input, dim, keepdim, amax.rule, True)


@max_.grad("input")
def _(f, g, kept, out, dim, keepdim, where, input_shape):
    return _value_gradient(f, g, kept, out, dim, keepdim, where, input_shape)


@max_.grad("dim")
def _(f, g, kept, out, dim):
    return _half_of(f, g, dim, kept, out)


@op(
    dtypes=ALL,
    ref=_pair_ref(np.min, np.argmin),
    samples=_position_samples,
    grad_samples=_distinct_samples,
    outputs=("out", "indices"),
    fields=("values", "indices"),
)
def min_(call, input, dim=None, keepdim=False):
    """The minimum, under the rules of `max`."""
    return _value_and_position(call, input, dim, keepdim, amin.rule, False)


@min_.grad("input")
def _(f, g, kept, out, dim, keepdim, where, input_shape):
    return _value_gradient(f, g, kept, out, dim, keepdim, where, input_shape)


@min_.grad("dim")
def _(f, g, kept, out, dim):
    return _half_of(f, g, dim, kept, out)
