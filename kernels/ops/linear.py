"""Linear layers: `linear` with its derivative, and `linear_packed` with weights packed once."""

import math

import numpy as np

from ..problems.gemm import ActivationGrad, PackWeight, Product, allows_tf32
from ..table.registry import OPS, op
from . import _layout
from ._products import TOLERANCE, check, check_alpha, foldable, product, save_operands

_ACTIVATIONS = ("relu", "silu", "gelu", "gelu_tanh")  # elementwise ops of one input


def _linear_samples(rng):
    for rows, k, n in [((5,), 48, 33), ((2, 20), 64, 40), ((), 31, 50), ((1,), 257, 5), ((40,), 30, 3)]:
        yield (rng.standard_normal((*rows, k)), rng.standard_normal((n, k)), rng.standard_normal(n)), {}
    yield (rng.standard_normal((30, 16)), rng.standard_normal((20, 16))), {"alpha": 2.0}
    yield (rng.standard_normal((3, 16)), rng.standard_normal((20, 16))), {"activation": "silu"}


def _silu(x):
    return x / (1.0 + np.exp(-x))


def _linear_ref(input, weight, bias=0.0, alpha=1.0, activation=None):
    y = alpha * np.matmul(input, weight.T) + (0.0 if bias is None else bias)
    return _silu(y) if activation == "silu" else y


def _residual(call, residual, shape, dtype):
    """The residual, row-major, of the shape of the result and its dtype, or float32 where that is a 16-bit one."""
    fits = hasattr(residual, "address") and residual.shape_ == shape
    if not fits or (residual.dtype is not dtype and (residual.dtype.name != "float32" or dtype.itemsize != 2)):
        got = f"{tuple(residual.shape)} {residual.dtype}" if hasattr(residual, "address") else type(residual).__name__
        raise ValueError(f"`residual` of `{call.op.name}` must be a {dtype.name} tensor of shape {shape}, got {got}")
    return residual.contiguous()


def _activation(call, activation):
    """The op of an activation."""
    if activation not in _ACTIVATIONS:
        choices = ", ".join(f"{a!r}" for a in (None, *_ACTIVATIONS))
        raise ValueError(f"`activation` of `{call.op.name}` must be one of {choices}, got {activation!r}")
    return OPS[activation]


def _layer(call, input, weight, layout, bias, alpha, activation=None, residual=None):
    """`residual + activation(alpha * input @ weight.T + bias)`; `activation` is an op.

    `layout` says of the weight: its shape [N, K], strides (or None: it is packed).
    """
    (n, k), strides = layout
    shape, dtype = input.shape_, input.dtype
    if not shape or shape[-1] != k:
        raise ValueError(f"`{call.op.name}` needs `input` [..., K] and `weight` [N, K], got {shape} and {(n, k)}")
    if bias is not None:
        if bias.shape_ != (n,):
            raise ValueError(f"`bias` of `{call.op.name}` must have shape ({n},), got {bias.shape_}")
        bias = bias if bias.contiguous_ else bias.contiguous()
    if alpha != 1.0:
        alpha = check_alpha(call, alpha, dtype)
    result = dtype
    if residual is not None:
        residual = _residual(call, residual, (*shape[:-1], n), dtype)
        result = residual.dtype
    y = call.out((*shape[:-1], n), result)
    if not y.numel_:
        return y
    if not (input.contiguous_ or (input.strides_[-1] == 1 and foldable(input))):
        input = input.contiguous()
    problem = Product(
        dtype.name, input.shape_, input.strides_, (k, n), (1, k) if strides is None else strides[::-1], result.name,
        alpha, bias is not None, activation, residual is not None, False, strides is None,
        allows_tf32(dtype.name),
    )  # fmt: skip
    call.run(problem, a=input, b=weight, c=y, bias=bias, residual=residual)
    return y


@op(ref=_linear_ref, samples=_linear_samples, tolerance=TOLERANCE, amp="lower")
def linear(call, input, weight, bias=None, *, alpha=1.0, activation=None, residual=None):
    """`residual + activation(alpha * input @ weight.T + bias)` for input [..., K], weight [N, K] -> [..., N].

    `bias` is [N], `residual` has the shape of the result (a float32 one beside 16-bit operands makes the result
    float32), and `activation` is None, "relu", "silu", "gelu" or "gelu_tanh"; all are applied before the sum is rounded
    once. Raises ValueError for sizes that do not match and
    for other activations, TypeError for dtypes that differ.
    """
    if isinstance(weight, PackedWeight):
        raise TypeError("`weight` of `linear` must be a tensor, got a PackedWeight; use `linear_packed`")
    check(call, ("input", "weight", "bias"), input, weight, optional=bias)
    if len(weight.shape_) != 2:
        shapes = f"{input.shape_} and {weight.shape_}"
        raise ValueError(f"`linear` needs `input` [..., K] and `weight` [N, K], got {shapes}")
    layout = weight.shape_, weight.strides_
    if activation is not None:
        activation = _activation(call, activation)
        if call.training:
            before = _layer(call, input, weight, layout, bias, alpha)
            return _activated(call, before, activation, residual)
    if call.training:
        call.save(before=None)
        save_operands(call, input=input, weight=weight)
    return _layer(call, input, weight, layout, bias, alpha, activation, residual)


def _activated(call, before, activation, residual):
    """`residual + activation(before)`, keeping `before` for the derivative.

    A pass of its own: with gelu_tanh in float32, 256 x 768 x 3072 takes 6.2 ms so, and 6.8 where the product stores
    both (1024 rows in bfloat16: 12.5 and 13.0).
    """
    call.save(before=before)
    if residual is not None:
        residual = _residual(call, residual, before.shape_, before.dtype)
    y = call.elementwise(activation.name, before)
    return y if residual is None else call.elementwise("add", y, residual)


@linear.grad("input", "weight", "bias", "residual")
def _(f, g, input, weight, bias, alpha, activation, before, need, into, create_graph):
    """With z = alpha x w^T + b and g' = g activation'(z): dx = alpha g' w, dw = alpha g'^T x, db = the sum of g'."""
    (n, k), count = weight.shape_, math.prod(g.shape_[:-1])
    flat = len(g.shape_) == 2
    dz, db, residual = g if flat else g.reshape(count, n), None, g
    dz = dz if dz.dtype is input.dtype else f.cast(dz, input.dtype)
    if activation is not None and create_graph:
        dz = _activation_grad(f, dz, f.linear(input, weight, bias, alpha=alpha).reshape(count, n), activation)
    elif activation is not None:
        dz, db = f.activation_backward(dz, before.reshape(count, n), activation, bias="bias" in need)
    if "bias" in need and db is None:
        db = f.sum(dz, 0)
    dx = dw = None
    if "input" in need:
        dx = product(f, dz, weight, alpha, into("input"), input.shape_)
    if "weight" in need:
        dw = product(f, dz.T, input if flat else input.reshape(count, k), alpha, into("weight"))
    return dx, dw, db, residual


def _activation_grad(f, g, z, activation):
    """The gradient of z for the gradient g of `activation(z)`, by ops that have derivatives themselves."""
    rule = OPS[activation].gradients["input"]
    out = getattr(f, activation)(z) if "out" in rule.parameters else None
    values = {"g": g, "input": z, "out": out}
    return f.on_tensors(rule.function)(*[values[p] for p in rule.parameters])


def _slope_samples(rng):
    for rows, activation in ((33, "relu"), (2, "silu"), (9, "gelu"), (40, "gelu_tanh")):
        yield (rng.standard_normal((rows, 70)), rng.standard_normal((rows, 70)), activation), {"bias": True}
    yield (rng.standard_normal((6, 1100)), rng.standard_normal((6, 1100)), "gelu_tanh"), {"bias": True}


def _slope_ref(grad, before, activation, bias=False):
    x, c = before, np.sqrt(2 / np.pi)
    t, cdf = np.tanh(c * (x + 0.044715 * x**3)), 0.5 * (1 + np.vectorize(math.erf)(x / np.sqrt(2)))
    s = 1 / (1 + np.exp(-x))
    slopes = {
        "relu": x > 0,
        "silu": s * (1 + x * (1 - s)),
        "gelu": cdf + x * np.exp(-x * x / 2) / np.sqrt(2 * np.pi),
        "gelu_tanh": 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * c * (1 + 3 * 0.044715 * x * x),
    }
    y = grad * slopes[activation]
    return (y, y.sum(0)) if bias else (y, None)


@op(
    outputs=("out", "bias_grad"),
    ref=_slope_ref,
    samples=_slope_samples,
    tolerance=TOLERANCE,
    gradient=None,
)
def activation_backward(call, grad, before, activation, *, bias=False):
    """(`grad * activation'(before)`, the sums of its columns or, unless `bias`, None) for matrices of one shape.

    `activation` is one of those of `linear`. Raises ValueError for other activations and shapes, TypeError for dtypes
    that differ.
    """
    check(call, ("grad", "before"), grad, before)
    shape = grad.shape_
    if len(shape) != 2 or before.shape_ != shape or activation is None:
        raise ValueError(
            f"`activation_backward` needs `grad` and `before` [M, N] and an activation, got {shape}, "
            f"{before.shape_} and {activation!r}"
        )
    activation, before = _activation(call, activation), before.contiguous()
    grad, count, columns, stride = _layout.rows(grad, 1)
    y = call.out(shape, grad.dtype, overlap="same")
    total = call.out((columns,), grad.dtype, "bias_grad") if bias else None
    if y.numel_:
        problem = ActivationGrad(grad.dtype.name, count, columns, stride, activation, bool(bias))
        call.run(problem, g=grad, before=before, out=y, db=total)
    elif bias:
        total.fill_(0)
    return y, total


class PackedWeight:
    """The weight [N, K] of a linear layer, in the order in which the blocked product reads it."""

    def __init__(self, data, shape, dtype):
        self.data, self.device = data, data.device  # uint8 tensor
        self.address = data.address
        self.shape = shape
        self.dtype = dtype

    def __repr__(self):
        return f"PackedWeight({self.shape}, {self.dtype.name})"


@op(gradient=None)
def pack_weight(call, weight):
    """The `PackedWeight` of a weight [N, K], for `linear_packed`; `weight` itself is no longer needed.

    It saves packing in each call of many rows and reads as fast in calls of few. float16, and bfloat16 on
    CPUs without its dot product, are widened to float32: twice the memory.
    """
    check(call, ("weight",), weight)
    if weight.ndim != 2:
        raise ValueError(f"`weight` must be [N, K], got shape {weight.shape_}")
    panels = call.run(PackWeight(weight.dtype.name, *weight.shape_, weight.strides_), w=weight)["panels"]
    return PackedWeight(panels, weight.shape_, weight.dtype)


@op(gradient="missing")
def linear_packed(call, input, weight, bias=None, *, alpha=1.0, activation=None, residual=None):
    """As `linear`, with the `PackedWeight` that `pack_weight` made of the weight [N, K]; it has no derivative."""
    if not isinstance(weight, PackedWeight):
        raise TypeError(f"`weight` must come from `pack_weight`, got {type(weight).__name__}; use `linear` for tensors")
    check(call, ("input", "weight", "bias"), input, weight, optional=bias)
    activation = None if activation is None else _activation(call, activation)
    return _layer(call, input, weight.data, (weight.shape, None), bias, alpha, activation, residual)
