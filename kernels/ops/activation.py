"""Activations that are more than a rule: gated halves, limits."""

import numpy as np

from ..blocks.array import SILU_AND_MUL_BACKWARD
from ..lang import scalar_math as m
from ..table.registry import ALL, FLOATS, alias, op
from ._layout import broadcast, check, rows
from .view import shown_once


def _halves(rng):
    for shape in ((2,), (3, 34), (17, 2, 514)):
        yield (rng.standard_normal(shape),), {}


def _silu_and_mul(x):
    gate, value = np.split(x, 2, axis=-1)
    return gate * m.sigmoid(gate) * value


@op(dtypes=FLOATS, ref=_silu_and_mul, samples=_halves)
def silu_and_mul(call, input):
    """silu(input[..., :d]) * input[..., d:] for input [..., 2 d]; the result is [..., d].

    Raises ValueError when the last dim has an odd size.
    """
    if not input.ndim or input.shape[-1] % 2:
        raise ValueError(f"`input` of `silu_and_mul` needs an even last size, got shape {tuple(input.shape)}")
    half = input.shape[-1] // 2
    out = call.out((*input.shape[:-1], half), input.dtype)
    return call.elementwise("swiglu", input.narrow(-1, half, half), input.narrow(-1, 0, half), out=out)


@silu_and_mul.grad("input")
def _(f, g, input, create_graph):
    if not create_graph:
        return f.silu_and_mul_backward(g, input)
    half = input.shape[-1] // 2
    gate, value = input.narrow(-1, 0, half), input.narrow(-1, half, half)
    s = f.sigmoid(gate)
    return f.cat([g * value * s * (gate * (1.0 - s) + 1.0), g * gate * s], -1)


def _silu_and_mul_backward(g, input):
    gate, value = np.split(input, 2, axis=-1)
    s = m.sigmoid(gate)
    return np.concatenate([g * value * s * (1 + gate * (1 - s)), g * gate * s], -1)


def _gradient_and_halves(rng):
    for (x,), _ in _halves(rng):
        yield (rng.standard_normal((*x.shape[:-1], x.shape[-1] // 2)), x), {}


@op(dtypes=FLOATS, ref=_silu_and_mul_backward, samples=_gradient_and_halves, gradient=None)
def silu_and_mul_backward(call, g, input):
    """The gradient of `input` [..., 2 d] of `silu_and_mul` for the gradient `g` [..., d] of its result.

    One pass writes both halves; the result may overwrite `input`.
    """
    check(call, g, "g")
    check(call, input, "input")
    shape = input.shape_
    if not shape or g.shape_ != (*shape[:-1], shape[-1] // 2) or shape[-1] % 2 or g.dtype is not input.dtype:
        raise ValueError(
            f"`g` of `silu_and_mul_backward` must be [..., d] for `input` [..., 2 d] of its dtype, got {g.shape_} "
            f"{g.dtype.name} and {shape} {input.dtype.name}"
        )
    g, count, half, g_stride = rows(g, len(shape) - 1)
    x, _, _, x_stride = rows(input, len(shape) - 1)
    dx = call.out(shape, input.dtype, overlap="same")
    block = SILU_AND_MUL_BACKWARD(g=g, x=x, dx=dx, size=half, g_stride=g_stride, x_stride=x_stride)
    call.launch("array.activation_grad.silu_and_mul", {"T": x.dtype.name}, block, count, half)
    return dx


def _limits(rng):
    for size in (1, 3, 17, 257):
        yield (rng.uniform(-4, 4, size),), {"min": -1.5, "max": 2.0}
    yield (rng.uniform(-4, 4, 5),), {"max": 0.5}


def _limit(value, dtype, name):
    """A limit as a number of an integer dtype, where it is one: 300 is the same as 255 for uint8, as a maximum."""
    if dtype.kind not in "iu" or value is None or hasattr(value, "strides_"):
        return value
    ends = np.iinfo(dtype.numpy)
    nearest = max(ends.min, min(ends.max, int(value)))
    if (value > nearest) if name == "min" else (value < nearest):
        raise ValueError(f"`{name}` of `clamp` is {value}, which {dtype} cannot hold: cast `input` to a wider dtype")
    return nearest


@op(dtypes=ALL, ref=lambda x, min=None, max=None: np.clip(x, min, max), samples=_limits)
def clamp(call, input, min=None, max=None):
    """`input` limited to [min, max] (numbers, or tensors that broadcast with it; None: no limit). NaN stays NaN.

    The result has the dtype that `input + min + max` has. Raises ValueError when both limits are None, or where the
    limit is beyond the range of the dtype and the result would be as well.
    """
    check(call, input, "input")
    limits = [x for x in (min, max) if x is not None]
    if not limits:
        raise ValueError("`min` and `max` of `clamp` must not both be None")
    for name, limit in (("min", min), ("max", max)):
        if not (limit is None or hasattr(limit, "strides_") or isinstance(limit, (int, float, np.number, np.bool_))):
            raise TypeError(f"`{name}` of `clamp` must be a tensor or a number, got {type(limit).__name__}")
    dtype = call.result_type(input, *limits)
    tensors = [x.shape_ for x in limits if hasattr(x, "strides_")]
    out = call.out(broadcast(input.shape_, *tensors), dtype, overlap="same", casts=True, like=input)
    low, high = _limit(min, dtype, "min"), _limit(max, dtype, "max")
    if len(limits) == 2 and not tensors and dtype is input.dtype and dtype.kind != "b":
        return call.elementwise("hardtanh", input, low, high, out=out)  # which is the same of numbers, in one pass
    if low is not None:  # where `max` is a tensor, `out` may be its memory, or of a larger shape
        input = call.elementwise("maximum", input, low, out=None if high is not None and tensors else out)
    return input if high is None else call.elementwise("minimum", input, high, out=out)


alias(clamp, "clip")


@clamp.grad("input")
def _(f, g, input, min, max):
    inside = None if min is None else f.ge(input, min)
    if max is not None:
        below = f.le(input, max)
        inside = below if inside is None else f.logical_and(inside, below)
    return shown_once(input.shape_, f.where(inside, g, 0.0))


@clamp.grad("min")
def _(f, g, input, min, max):
    low = f.lt(input, min)
    return shown_once(min.shape_, f.where(low if max is None else f.logical_and(low, f.lt(min, max)), g, 0.0))


@clamp.grad("max")
def _(f, g, input, min, max):
    high = f.gt(input, max)
    return shown_once(max.shape_, f.where(high if min is None else f.logical_or(high, f.lt(max, min)), g, 0.0))
