"""Softmax, its logarithm, and the softmax of causal attention."""

import numpy as np

from ..blocks.softmax import BACKWARD, ROWS
from ..problems.norm import SoftmaxColumns
from ..table.registry import op
from ._layout import check, check_dim, product, rows


def _softmax_ref(input, dim):
    e = np.exp(input - input.max(dim, keepdims=True))
    return e / e.sum(dim, keepdims=True)


def _log_softmax_ref(input, dim):
    shifted = input - input.max(dim, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(dim, keepdims=True))


def _samples(rng):
    for size in (1, 3, 17, 257, 1024):
        yield (rng.standard_normal((5, size)) * 4,), {"dim": -1}
    yield (rng.standard_normal((2, 5000)) * 4,), {"dim": 1}
    yield (rng.standard_normal((3, 17, 5)) * 4,), {"dim": 1}
    yield (rng.standard_normal((33, 70)) * 4,), {"dim": 0}
    yield (rng.standard_normal((4, 3, 1)),), {"dim": -2}
    yield (np.array(2.0),), {"dim": 0}


def _rows(call, input, first, name, period=0):
    """Launch a kernel over rows that begin at dim `first`."""
    x, count, size, stride = rows(input, first)
    y = call.out(input.shape_, input.dtype, overlap="same")
    types = {"T": x.dtype.name}
    if name == "log_softmax":
        types["C"] = "float64" if x.dtype.itemsize == 8 else "float32"
    elif x.dtype.itemsize == 2:
        name = "softmax_narrow"
    if size:
        block = ROWS(x=x, y=y, size=size, stride=stride, period=period)
        call.launch(f"norm.softmax.{name}", types, block, count, size)
    return y


def _along(call, input, dim, name):
    check(call, input, "input")
    shape = input.shape_
    dim = check_dim(dim, len(shape))
    columns = product(shape[dim + 1 :])
    if columns == 1:
        return _rows(call, input, dim, name)
    x, outer, _, stride = rows(input, dim)  # the dim itself is contiguous with those behind it
    y = call.out(shape, input.dtype, overlap="same")
    if y.numel_:
        problem = SoftmaxColumns(x.dtype.name, outer, shape[dim], columns, stride, name == "log_softmax")
        call.run(problem, x=x, y=y)
    return y


def _backward(call, g, out, dim, logarithm):
    """The gradient of the input from that of the result and the result."""
    check(call, g, "g")
    check(call, out, "result")
    if g.shape_ != out.shape_ or g.dtype is not out.dtype:
        raise ValueError(
            f"`g` of `{call.op.name}` must have the shape and dtype of `result`, {out.shape_} {out.dtype.name}, got "
            f"{g.shape_} {g.dtype.name}"
        )
    shape = out.shape_
    dim = check_dim(dim, len(shape))
    columns, size = product(shape[dim + 1 :]), shape[dim] if shape else 1
    g, outer, _, g_stride = rows(g, dim)
    y, _, _, y_stride = rows(out, dim)
    dx = call.out(shape, out.dtype, overlap="same")
    if columns == 1:
        block = BACKWARD(g=g, y=y, dx=dx, size=size, columns=columns, g_stride=g_stride, y_stride=y_stride)
        call.launch("norm.softmax_grad.rows", {"T": y.dtype.name, "LOGARITHM": logarithm}, block, outer, size)
    elif dx.numel_:
        problem = SoftmaxColumns(y.dtype.name, outer, size, columns, y_stride, logarithm, True, g_stride)
        call.run(problem, g=g, x=y, y=dx)
    return dx


_TOLERANCE = {"bfloat16": (1e-2, 1e-6), "float16": (2e-3, 1e-6)}


@op(ref=_softmax_ref, samples=_samples, tolerance=_TOLERANCE)
def softmax(call, input, dim, dtype=None):
    """exp(input) / sum(exp(input)) along `dim`; a slice with a NaN, or of -inf only, gives NaN.

    The result has the shape and dtype of `input`, which it may overwrite; `dtype` converts the input first.
    """
    return _along(call, input if dtype is None else input.to(dtype=dtype), dim, "softmax")


@softmax.grad("input")
def _(f, g, out, dim, create_graph):
    if create_graph:
        return out * (g - f.sum(g * out, dim, True))
    return f.softmax_backward(g, out, dim)


def _backward_samples(rng):
    for (x,), options in _samples(rng):
        yield (rng.standard_normal(x.shape), np.asarray(_softmax_ref(x, **options))), options


def _log_backward_samples(rng):
    for (x,), options in _samples(rng):
        yield (rng.standard_normal(x.shape), np.asarray(_log_softmax_ref(x, **options))), options


_BACKWARD_TOLERANCE = {"bfloat16": (2e-2, 1e-3), "float16": (4e-3, 1e-4)}


@op(
    ref=lambda g, result, dim=-1: result * (g - (g * result).sum(dim, keepdims=True)),
    samples=_backward_samples,
    gradient=None,
    tolerance=_BACKWARD_TOLERANCE,
)
def softmax_backward(call, g, result, dim=-1):
    """result * (g - sum(g * result)) along `dim`: the gradient of the input of a softmax, causal or not.

    `g`, the gradient of `result`, has its shape and dtype, and the gradient too; it may overwrite either.
    """
    return _backward(call, g, result, dim, False)


@op(ref=_log_softmax_ref, samples=_samples)
def log_softmax(call, input, dim, dtype=None):
    """log(softmax(input, dim)), without the loss of small probabilities; `out` may be `input`.

    `dtype` converts the input first.
    """
    return _along(call, input if dtype is None else input.to(dtype=dtype), dim, "log_softmax")


@log_softmax.grad("input")
def _(f, g, out, dim, create_graph):
    if create_graph:
        return g - f.exp(out) * f.sum(g, dim, True)
    return f.log_softmax_backward(g, out, dim)


@op(
    ref=lambda g, result, dim=-1: g - np.exp(result) * g.sum(dim, keepdims=True),
    samples=_log_backward_samples,
    gradient=None,
    tolerance={"bfloat16": (2e-2, 2e-2), "float16": (4e-3, 4e-3)},
)
def log_softmax_backward(call, g, result, dim=-1):
    """g - exp(result) * sum(g) along `dim`: the gradient of the input of `log_softmax`.

    `g`, the gradient of `result`, has its shape and dtype, and the gradient too; it may overwrite either.
    """
    return _backward(call, g, result, dim, True)


def _causal_softmax_ref(input):
    num_rows, num_columns = input.shape[-2:]
    hidden = np.triu(np.ones((num_rows, num_columns), bool), num_columns - num_rows + 1)
    return _softmax_ref(np.where(hidden, -np.inf, input), -1)


def _causal_samples(rng):
    for shape in ((1, 1), (3, 3), (3, 17), (17, 257), (2, 5, 64), (2, 3, 4, 33)):
        yield (rng.standard_normal(shape) * 4,), {}


@op(ref=_causal_softmax_ref, samples=_causal_samples, tolerance=_TOLERANCE)
def causal_softmax(call, input):
    """Softmax of [..., S, T] (T >= S) along T, where row i sees columns j <= T - S + i and the rest is 0.

    The result has the shape and dtype of `input`, which it may overwrite.
    """
    check(call, input, "input")
    shape = input.shape_
    if len(shape) < 2:
        raise ValueError(f"`input` of `causal_softmax` must have at least two dims, [..., S, T], got shape {shape}")
    if shape[-1] < shape[-2]:
        raise ValueError(
            f"`input` of `causal_softmax` must be [..., S, T] with T >= S, got S = {shape[-2]} and T = {shape[-1]}"
        )
    return _rows(call, input, len(shape) - 1, "softmax", period=shape[-2])


@causal_softmax.grad("input")
def _(f, g, out, create_graph):
    if create_graph:
        return out * (g - f.sum(g * out, -1, True))
    return f.softmax_backward(g, out, -1)
