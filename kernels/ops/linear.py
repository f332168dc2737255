"""Linear layers: `linear` with its derivative, and `linear_packed` with weights packed once."""

import math

import numpy as np

from ..cpu.gemm import blocking
from ..table.registry import FLOATS, op
from ._chunks import join_chunks
from ._products import (
    TOLERANCE,
    alpha_bits,
    check,
    foldable,
    know,
    known,
    launch_for,
    product,
    remember,
    run_tensors,
    save_operands,
)

_ACTIVATIONS = {None: 0, "relu": 1, "silu": 2, "gelu": 3, "gelu_tanh": 4}  # by the numbers of cpu/epilogue.py


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


def _residual(name, residual, shape, dtype):
    """The residual, row-major, of the shape of the result and its dtype, or float32 where that is a 16-bit one."""
    fits = hasattr(residual, "address") and tuple(residual.shape) == shape
    if not fits or (residual.dtype is not dtype and (residual.dtype.name != "float32" or dtype.itemsize != 2)):
        got = f"{tuple(residual.shape)} {residual.dtype}" if hasattr(residual, "address") else type(residual).__name__
        raise ValueError(f"`residual` of `{name}` must be a {dtype.name} tensor of shape {shape}, got {got}")
    return residual.contiguous()


def _activation(name, activation):
    """The number of an activation."""
    number = _ACTIVATIONS.get(activation)
    if number is None:
        known = ", ".join(f"{a!r}" for a in _ACTIVATIONS)
        raise ValueError(f"`activation` of `{name}` must be one of {known}, got {activation!r}")
    return number


def _linear(call, name, input, weight, weight_strides, bias, alpha, activation, residual, panel=0, new=None):
    """The body of `linear`: `weight` has an address, a shape, and strides unless it is packed.

    `new` makes the result; it is the caller's `out` by default.
    """
    shape, (n, k) = tuple(input.shape), weight.shape
    if not shape or shape[-1] != k:
        raise ValueError(f"`{name}` needs `input` [..., K] and `weight` [N, K], got {shape} and {tuple(weight.shape)}")
    given = input, bias, residual
    if bias is not None:
        if tuple(bias.shape) != (n,):
            raise ValueError(f"`bias` of `{name}` must have shape ({n},), got {tuple(bias.shape)}")
        bias = bias.contiguous()
    number = _activation(name, activation)
    if residual is not None:
        residual = _residual(name, residual, (*shape[:-1], n), input.dtype)
    result = input.dtype if residual is None else residual.dtype
    y = (new or call.out)((*shape[:-1], n), result)
    count = y.numel()
    if count == 0:
        return y
    stride = k
    if not input.is_contiguous():
        if input.strides[-1] == 1 and foldable(input):
            stride = next((step for size, step in zip(shape[-2::-1], input.strides[-2::-1]) if size != 1), k)
        else:
            input = input.contiguous()
    plain = bias is None and residual is None and not number
    layout = count // n, n, k, stride, 1, *weight_strides
    launch = launch_for(input.dtype.name, *layout, (), call.threads, panel, plain, result=y.dtype.name)
    as_given = not isinstance(weight, PackedWeight) and given[0] is input and given[1] is bias and given[2] is residual
    if as_given:
        key = _linear_key(call, input, weight, bias, activation, residual)
        remember(key, y.shape_, y.dtype, number, launch)
    bits = alpha_bits(call, name, alpha, y.dtype)
    run_tensors(call, launch, input, weight, y, bias, bits, number, residual)
    if as_given and not number and residual is None:
        know(call, launch, y, (input, weight, bias))
    return y


def _activated(call, before, activation, residual):
    """`residual + activation(before)`, keeping `before` for the derivative.

    A pass of its own: with gelu_tanh in float32, 256 x 768 x 3072 takes 6.2 ms so, and 6.8 where the product stores
    both (1024 rows in bfloat16: 12.5 and 13.0).
    """
    call.save(before=before)
    if residual is not None:
        residual = _residual("linear", residual, before.shape_, before.dtype)
    if residual is None:
        return call.elementwise(activation, before, out=call.out(before.shape_, before.dtype))
    return call.elementwise(
        "add", call.elementwise(activation, before), residual, out=call.out(before.shape_, residual.dtype)
    )


def _linear_key(call, input, weight, bias, activation, residual):
    """All that `linear` needs to know of its arguments, but for addresses."""
    return (
        input.dtype, input.shape_, input.strides_, weight.dtype, weight.shape_, weight.strides_, call.threads,
        activation, None if bias is None else (bias.dtype, bias.shape_, bias.strides_),
        None if residual is None else (residual.dtype, residual.shape_, residual.strides_),
    )  # fmt: skip


@op(ref=_linear_ref, samples=_linear_samples, tolerance=TOLERANCE, amp="lower")
def linear(call, input, weight, bias=None, *, alpha=1.0, activation=None, residual=None):
    """`residual + activation(alpha * input @ weight.T + bias)` for input [..., K], weight [N, K] -> [..., N].

    `bias` is [N], `residual` has the shape of the result (a float32 one beside 16-bit operands makes the result
    float32), and `activation` is None, "relu", "silu", "gelu" or "gelu_tanh"; all are applied before the sum is rounded
    once. Raises ValueError for sizes that do not match and
    for other activations, TypeError for dtypes that differ.
    """
    if call.training:
        if activation is not None:
            _activation("linear", activation)
            before = _linear_from(call, input, weight, bias, alpha, None, None, call.empty)
            return _activated(call, before, activation, residual)
        call.save(before=None)
        y = _linear_from(call, input, weight, bias, alpha, None, residual, call.out)
        save_operands(call, input=input, weight=weight)
        return y
    return _linear_from(call, input, weight, bias, alpha, activation, residual, call.out)


def _linear_from(call, input, weight, bias, alpha, activation, residual, new):
    """`linear` for layouts that are known, or else the whole of it."""
    try:
        shape, result, number, launch = known[_linear_key(call, input, weight, bias, activation, residual)]
    except (AttributeError, KeyError, TypeError):
        pass
    else:
        y = new(shape, result)
        run_tensors(call, launch, input, weight, y, bias, alpha_bits(call, "linear", alpha, y.dtype), number, residual)
        return y
    if isinstance(weight, PackedWeight):
        raise TypeError("`weight` of `linear` must be a tensor, got a PackedWeight; use `linear_packed`")
    check("linear", FLOATS, ("input", input), ("weight", weight), ("bias", bias))
    if weight.ndim != 2:
        shapes = f"{tuple(input.shape)} and {tuple(weight.shape)}"
        raise ValueError(f"`linear` needs `input` [..., K] and `weight` [N, K], got {shapes}")
    strides = weight.strides[::-1]
    return _linear(call, "linear", input, weight, strides, bias, alpha, activation, residual, new=new)


@linear.grad("input", "weight", "bias", "residual")
def _(f, g, input, weight, bias, alpha, activation, before, need, into, create_graph):
    """With z = alpha x w^T + b and g' = g activation'(z): dx = alpha g' w, dw = alpha g'^T x, db = the sum of g'."""
    (n, k), count = weight.shape_, math.prod(g.shape_[:-1])
    flat = len(g.shape_) == 2
    rows, db, residual = g if flat else g.reshape(count, n), None, g
    rows = rows if rows.dtype is input.dtype else f.cast(rows, input.dtype)
    if activation is not None and create_graph:
        rows = rows * _slope(f, f.linear(input, weight, bias, alpha=alpha).reshape(count, n), activation)
    elif activation is not None:
        rows, db = f.activation_backward(rows, before.reshape(count, n), activation, bias="bias" in need)
    if "bias" in need and db is None:
        db = f.sum(rows, 0)
    dx = dw = None
    if "input" in need:
        dx = product(f, rows, weight, alpha, into("input"), input.shape_)
    if "weight" in need:
        dw = product(f, rows.T, input if flat else input.reshape(count, k), alpha, into("weight"))
    return dx, dw, db, residual


def _slope(f, z, activation):
    """The derivative of an activation in terms of ops that have derivatives themselves."""
    if activation == "relu":
        return f.cast(z > 0.0, z.dtype)
    if activation == "silu":
        s = f.sigmoid(z)
        return s * (1.0 + z * (1.0 - s))
    if activation == "gelu":
        return 0.5 * (1.0 + f.erf(z * 0.7071067811865476)) + 0.3989422804014327 * z * f.exp(-0.5 * z * z)
    t = f.tanh(0.7978845608028654 * (z + 0.044715 * z * z * z))
    return 0.5 * (1.0 + t) + 0.3989422804014327 * z * (1.0 - t * t) * (1.0 + 0.134145 * z * z)


_CHUNKS, _CHUNK = 32, 16384  # chunks of rows at most, elements of a chunk at least


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
    check("activation_backward", FLOATS, ("grad", grad), ("before", before))
    shape, number = tuple(grad.shape), _activation("activation_backward", activation)
    if len(shape) != 2 or tuple(before.shape) != shape or not number:
        raise ValueError(
            f"`activation_backward` needs `grad` and `before` [M, N] and an activation, got {shape}, "
            f"{tuple(before.shape)} and {activation!r}"
        )
    (rows, columns), before = shape, before.contiguous()
    if columns > 1 and grad.strides[1] != 1:
        grad = grad.contiguous()
    y = call.out(shape, grad.dtype, overlap="same")
    total = call.out((columns,), grad.dtype, "bias_grad") if bias else None
    if columns and not rows and bias:
        total.fill_(0)
    if not y.numel():
        return y, total
    compute = "float64" if grad.dtype.name == "float64" else "float32"
    chunk = max(-(-rows // _CHUNKS), -(-_CHUNK // columns))
    chunks, step = -(-rows // chunk), -(-columns // blocking.LANES) * blocking.LANES
    sums = call.empty((chunks, step), compute)
    args = [grad.address, before.address, y.address, sums.address, rows, columns, grad.strides[0], chunk, step]
    types, keep = {"T": grad.dtype.name, "ACT": number}, (grad, before, y, sums)
    call.launch_at("gemm.epilogue.backward", types, args, chunks, 1 + _CHUNK // (chunk * columns), keep)
    if bias:
        join_chunks(call, sums, (0, sums.address), step, chunks, (None, total))
    return y, total


class PackedWeight:
    """The weight [N, K] of a linear layer, in the order in which the blocked product reads it."""

    def __init__(self, data, shape, dtype, panel):
        self.data = data  # uint8 tensor
        self.address = data.address
        self.shape = shape
        self.dtype = dtype
        self.panel = panel  # elements of one panel

    def __repr__(self):
        return f"PackedWeight({self.shape}, {self.dtype.name})"


@op(gradient=None)
def pack_weight(call, weight):
    """The `PackedWeight` of a weight [N, K], for `linear_packed`; `weight` itself is no longer needed.

    It saves packing in each call of many rows and reads as fast in calls of few. float16, and bfloat16 on
    CPUs without its dot product, are widened to float32: twice the memory.
    """
    check("pack_weight", FLOATS, ("weight", weight))
    if weight.ndim != 2:
        raise ValueError(f"`weight` must be [N, K], got shape {tuple(weight.shape)}")
    n, k = weight.shape
    dtype = weight.dtype.name
    panel = -(-k // (2 if blocking.pairs(dtype) else 1)) * blocking.across(dtype)
    panels = -(-n // blocking.across(dtype))
    data = call.scratch(max(1, panels * panel * blocking.panel_bytes(dtype)))
    args, grain = [weight.address, data.address, n, k, *weight.strides], 1 + (1 << 18) // (panel + 1)
    call.launch_at("gemm.pack.pack_weight", {"T": dtype}, args, n=panels, grain=grain, keep=(weight, data))
    return PackedWeight(data, (n, k), weight.dtype, panel)


@op(gradient="missing")
def linear_packed(call, input, weight, bias=None, *, alpha=1.0, activation=None, residual=None):
    """As `linear`, with the `PackedWeight` that `pack_weight` made of the weight [N, K]; it has no derivative."""
    if not isinstance(weight, PackedWeight):
        raise TypeError(f"`weight` must come from `pack_weight`, got {type(weight).__name__}; use `linear` for tensors")
    check("linear_packed", FLOATS, ("input", input), ("weight", weight), ("bias", bias))
    return _linear(call, "linear_packed", input, weight, (0, 0), bias, alpha, activation, residual, weight.panel)
