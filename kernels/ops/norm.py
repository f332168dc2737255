"""Normalisations over the last dims. Statistics in float32 (float64 for float64), one rounding at the end."""

import numpy as np

from ..blocks.norm import ADD_RMS, LAYER, RMS
from ..problems.norm import NormBackward
from ..table.registry import op
from ._layout import check, check_factor, rows

# ---- what the backward passes share --------------------------------------------------------------


def _same_as(call, g, input, name="g"):
    """Refuse a gradient that does not have the shape and dtype of the tensor that it belongs to."""
    check(call, g, name)
    if g.shape_ != input.shape_ or g.dtype is not input.dtype:
        raise ValueError(
            f"`{name}` of `{call.op.name}` must have the shape and dtype of `input`, {input.shape_} "
            f"{input.dtype.name}, got {g.shape_} {g.dtype.name}"
        )


def _backward(call, g, input, dims, eps, weight, bias=None, residual=None, center=False):
    """(gradient of the input, of the weight, of the bias) of a norm over the last `dims` dims.

    The sums over rows are the same for any number of threads.
    """
    _same_as(call, g, input)
    shape = input.shape_
    last = shape[len(shape) - dims :]
    first = len(shape) - dims
    x, count, size, x_stride = rows(input, first)
    g, _, _, g_stride = rows(g, first)
    for name, factor in (("weight", weight), ("bias", bias)):
        if factor is not None:
            check_factor(call, factor, name, input, last)
    if weight is not None:
        weight = weight.contiguous()
    residual_stride = None
    if residual is not None:
        _same_as(call, residual, input, "g_residual")
        residual, _, _, residual_stride = rows(residual, first)
    dx = call.out(shape, input.dtype, overlap="same")
    dw = None if weight is None else call.out(last, weight.dtype, key="dw")
    db = None if bias is None else call.out(last, bias.dtype, key="db")
    dtypes = [None if factor is None else factor.dtype.name for factor in (weight, bias)]
    problem = NormBackward(input.dtype.name, count, size, g_stride, x_stride, residual_stride, *dtypes, center, eps)
    call.run(problem, g=g, x=x, w=weight, dx=dx, dw=dw, db=db, residual=residual)
    return dx, dw, db


def _formula(f, g, input, dims, eps, weight, center):
    """(gradients of input, weight, bias) out of differentiable ops, for derivatives of derivatives."""
    axes = tuple(range(len(input.shape_) - dims, len(input.shape_)))
    leading = tuple(range(len(input.shape_) - dims))
    d = input - f.mean(input, axes, True) if center else input
    scale = f.rsqrt(f.mean(d * d, axes, True) + eps)
    x_hat = d * scale
    h = g if weight is None else g * weight
    dx = h - x_hat * f.mean(h * x_hat, axes, True)
    if center:
        dx = dx - f.mean(h, axes, True)
    dw, db = g * x_hat, g
    if leading:
        dw, db = f.sum(dw, leading), f.sum(db, leading)
    return dx * scale, dw, db


def _wanted(need, **gradients):
    """The gradients whose names are in `need`, None for the others."""
    return tuple(gradient if name in need else None for name, gradient in gradients.items())


def _added(place, g):
    """The arguments of a backward op that add the input's gradient to what is there, if `place` has that."""
    fits = place is not None and place[1] and place[0].dtype is g.dtype
    return {"out": place[0], "g_residual": place[0]} if fits else {}


# ---- norms ---------------------------------------------------------------------------------------


def _rms_norm_ref(input, weight, eps=1e-5):
    return input / np.sqrt(np.mean(input**2, axis=-1, keepdims=True) + eps) * weight


def _rms_norm_samples(rng):
    for size in (1, 3, 17, 257, 1024):
        yield (rng.standard_normal((5, size)), rng.standard_normal(size)), {}
    yield (rng.standard_normal((2, 3, 64)) * 10, rng.standard_normal(64)), {"eps": 1e-6}
    yield (rng.standard_normal(33), rng.standard_normal(33)), {}


@op(ref=_rms_norm_ref, samples=_rms_norm_samples, tolerance={"bfloat16": (1e-2, 1e-3)})
def rms_norm(call, input, weight, eps=1e-5):
    """input / sqrt(mean(input^2) + eps) * weight over the last dim (Zhang and Sennrich, arXiv 1910.07467).

    `input` [..., D], `weight` [D] of the same dtype, or float32 beside a 16-bit `input`. The result has
    the shape and dtype of `input`, which it may overwrite.
    """
    check(call, input, "input")
    shape = input.shape_
    if not shape:
        raise ValueError("`input` of `rms_norm` must have at least one dim, got a 0-dim tensor: reshape it to (1,)")
    check_factor(call, weight, "weight", input, shape[-1:])
    x, count, size, stride = rows(input, len(shape) - 1)
    weight = weight.contiguous()
    y = call.out(shape, input.dtype, overlap="same")
    block = RMS(x=x, w=weight, y=y, size=size, x_stride=stride, y_stride=size, eps=eps)
    call.launch("norm.rows.rms_norm", {"T": x.dtype.name, "W": weight.dtype.name}, block, count, size)
    return y


@rms_norm.grad("input", "weight")
def _(f, g, input, weight, eps, need, into, create_graph):
    if create_graph:
        dx, dw, _ = _formula(f, g, input, 1, eps, weight, False)
    else:
        dx, dw = f.rms_norm_backward(g, input, weight, eps, **_added(into("input"), g))
    return _wanted(need, input=dx, weight=dw)


def _rms_backward_ref(g, input, weight, eps=1e-5, g_residual=0.0):
    scale = 1 / np.sqrt(np.mean(input**2, axis=-1, keepdims=True) + eps)
    x_hat, h = input * scale, g * weight
    dx = scale * (h - x_hat * np.mean(h * x_hat, axis=-1, keepdims=True)) + g_residual
    return dx, (g * x_hat).reshape(-1, input.shape[-1]).sum(0)


def _rms_backward_samples(rng):
    for size in (1, 3, 17, 257, 1024):
        yield (rng.standard_normal((5, size)), rng.standard_normal((5, size)), rng.standard_normal(size)), {}
    args = (rng.standard_normal((2, 3, 64)), rng.standard_normal((2, 3, 64)), rng.standard_normal(64))
    yield args, {"eps": 1e-6, "g_residual": rng.standard_normal((2, 3, 64))}


@op(
    ref=_rms_backward_ref,
    samples=_rms_backward_samples,
    outputs=("out", "dw"),
    gradient=None,
    tolerance={"bfloat16": (2e-2, 2e-2), "float16": (3e-3, 3e-3)},
)
def rms_norm_backward(call, g, input, weight, eps=1e-5, g_residual=None):
    """(gradient of `input`, gradient of `weight`) of `rms_norm` for the gradient `g` of its result.

    `g`, `input` [..., D] of one shape and dtype, `weight` [D]. `g_residual`, of the shape of `input`, is added to the
    first: the other way of the gradient in `add_rms_norm`. The second is summed in float32 (float64 for float64),
    the same way for any number of threads.
    """
    check(call, input, "input")
    if not input.shape_:
        raise ValueError("`input` of `rms_norm_backward` must have at least one dim, got a 0-dim tensor")
    return _backward(call, g, input, 1, eps, weight, residual=g_residual)[:2]


def _add_rms_norm_ref(a, b, weight, epsilon=1e-5):
    return _rms_norm_ref(a + b, weight, epsilon), a + b


def _add_rms_norm_samples(rng):
    for shape in ((5, 1), (5, 3), (2, 3, 17), (4, 257), (3, 1024)):
        yield tuple(rng.standard_normal(s) for s in (shape, shape, shape[-1:])), {}


@op(
    ref=_add_rms_norm_ref,
    samples=_add_rms_norm_samples,
    outputs=("out", "residual"),
    amp="promote",
    tolerance={"bfloat16": (2e-2, 1e-2), "float16": (3e-3, 1e-3)},
)
def add_rms_norm(call, a, b, weight, epsilon=1e-5):
    """(rms_norm(a + b, weight), a + b) in one pass: the residual stream of a transformer and its norm.

    `a`, `b` [..., D] of one shape and dtype, `weight` [D] as for `rms_norm`. The norm is taken of the
    sum rounded to the dtype. `out=` and `residual=` (or `out=` a pair) name where the two results go;
    each may be `a` or `b`.
    """
    check(call, a, "a")
    check(call, b, "b")
    shape = a.shape_
    if b.shape_ != shape or b.dtype is not a.dtype:
        raise ValueError(
            f"`a` and `b` of `add_rms_norm` must have one shape and dtype, got {shape} {a.dtype.name} and "
            f"{b.shape_} {b.dtype.name}"
        )
    if not shape:
        raise ValueError("`a` of `add_rms_norm` must have at least one dim, got a 0-dim tensor: reshape it to (1,)")
    check_factor(call, weight, "weight", a, shape[-1:])
    first, count, size, a_stride = rows(a, len(shape) - 1)
    second, _, _, b_stride = rows(b, len(shape) - 1)
    weight = weight.contiguous()
    y = call.out(shape, a.dtype, overlap="same")
    total = call.out(shape, a.dtype, key="residual", overlap="same")
    if y.address == total.address and y.numel_:
        raise ValueError("`out` and `residual` of `add_rms_norm` are the same memory, give two tensors")
    block = ADD_RMS(
        a=first, b=second, w=weight, y=y, total=total, size=size, a_stride=a_stride, b_stride=b_stride, y_stride=size,
        total_stride=size, eps=epsilon,
    )  # fmt: skip
    call.launch("norm.rows.add_rms_norm", {"T": a.dtype.name, "W": weight.dtype.name}, block, count, size)
    return y, total


@add_rms_norm.grad("a", "b", "weight")
def _(f, g, g_residual, residual, weight, epsilon, need, create_graph):
    if g is None:
        return _wanted(need, a=g_residual, b=g_residual, weight=None)
    if create_graph:
        dx, dw, _ = _formula(f, g, residual, 1, epsilon, weight, False)
        dx = dx if g_residual is None else dx + g_residual
    else:
        dx, dw = f.rms_norm_backward(g, residual, weight, epsilon, g_residual)
    return _wanted(need, a=dx, b=dx, weight=dw)


def _layer_norm_ref(input, normalized_shape, weight=None, bias=None, eps=1e-5):
    axes = tuple(range(input.ndim - len(normalized_shape), input.ndim))
    centered = input - input.mean(axes, keepdims=True)
    y = centered / np.sqrt((centered**2).mean(axes, keepdims=True) + eps)
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


def _layer_norm_samples(rng):
    for size in (1, 3, 17, 257, 1024):
        yield (rng.standard_normal((5, size)), (size,), rng.standard_normal(size), rng.standard_normal(size)), {}
    yield (rng.standard_normal((2, 3, 64)) + 3, (3, 64), rng.standard_normal((3, 64))), {"eps": 1e-6}
    yield (rng.standard_normal((4, 33)), (33,)), {}
    yield (rng.standard_normal((4, 33)), (33,)), {"bias": rng.standard_normal(33)}


@op(ref=_layer_norm_ref, samples=_layer_norm_samples, tolerance={"bfloat16": (1.6e-2, 1e-2)})
def layer_norm(call, input, normalized_shape, weight=None, bias=None, eps=1e-5):
    """(input - mean) / sqrt(variance + eps) * weight + bias (Ba et al., arXiv 1607.06450).

    Mean and variance (divided by the count) are over the last dims, which `normalized_shape` (an int or
    a sequence) repeats; `weight` and `bias` have that shape, each may be None, and are of the dtype of
    `input` or float32 beside a 16-bit one. The result may overwrite `input`.
    """
    check(call, input, "input")
    shape = input.shape_
    last = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
    if not last or shape[-len(last) :] != last:
        raise ValueError(f"`normalized_shape` of `layer_norm` must be the last dims of `input` {shape}, got {last}")
    x, count, size, stride = rows(input, len(shape) - len(last))
    factors = []
    for name, factor in (("weight", weight), ("bias", bias)):
        if factor is not None:
            check_factor(call, factor, name, input, last)
            factor = factor.contiguous()
        factors.append(factor)
    weight, bias = factors
    y = call.out(shape, input.dtype, overlap="same")
    block = LAYER(x=x, w=weight, b=bias, y=y, size=size, x_stride=stride, y_stride=size, eps=eps)
    names = ("T", "W", "B")
    types = {n: input.dtype.name if f is None else f.dtype.name for n, f in zip(names, (x, weight, bias))}
    call.launch("norm.rows.layer_norm", types, block, count, size)
    return y


@layer_norm.grad("input", "weight", "bias")
def _(f, g, input, normalized_shape, weight, bias, eps, need, into, create_graph):
    if create_graph:
        dims = 1 if isinstance(normalized_shape, int) else len(normalized_shape)
        gradients = _formula(f, g, input, dims, eps, weight, True)
    else:
        bias = bias if "bias" in need else None
        gradients = f.layer_norm_backward(g, input, normalized_shape, weight, bias, eps, **_added(into("input"), g))
    return _wanted(need, input=gradients[0], weight=gradients[1], bias=gradients[2])


def _layer_backward_ref(g, input, normalized_shape, weight, bias, eps=1e-5, g_residual=0.0):
    axes = tuple(range(input.ndim - len(normalized_shape), input.ndim))
    leading = tuple(range(axes[0]))
    d = input - input.mean(axes, keepdims=True)
    scale = 1 / np.sqrt((d**2).mean(axes, keepdims=True) + eps)
    x_hat, h = d * scale, g * weight
    dx = scale * (h - h.mean(axes, keepdims=True) - x_hat * (h * x_hat).mean(axes, keepdims=True))
    return dx + g_residual, (g * x_hat).sum(leading), g.sum(leading)


def _layer_backward_samples(rng):
    for shape, dims in (((5, 1), 1), ((5, 3), 1), ((5, 17), 1), ((5, 257), 1), ((5, 1024), 1), ((2, 4, 3, 64), 2)):
        last = shape[-dims:]
        args = (rng.standard_normal(shape), rng.standard_normal(shape) + 3, last, *rng.standard_normal((2, *last)))
        yield args, {"g_residual": rng.standard_normal(shape)} if dims == 2 else {}


@op(
    ref=_layer_backward_ref,
    samples=_layer_backward_samples,
    outputs=("out", "dw", "db"),
    gradient=None,
    tolerance={"bfloat16": (2e-2, 2e-2), "float16": (3e-3, 3e-3)},
)
def layer_norm_backward(call, g, input, normalized_shape, weight=None, bias=None, eps=1e-5, g_residual=None):
    """(gradient of `input`, of `weight`, of `bias`) of `layer_norm` for the gradient `g` of its result.

    `g` and `input` have one shape and dtype. The gradient of `weight` or `bias` is None where that is None; `bias`
    says only that its gradient is wanted, and in which dtype. `g_residual`, of the shape of `input`, is added to the
    first. Sums over rows are float32 (float64 for float64), and the same for any number of threads.
    """
    check(call, input, "input")
    last = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
    if not last or input.shape_[-len(last) :] != last:
        raise ValueError(
            f"`normalized_shape` of `layer_norm_backward` must be the last dims of `input` {input.shape_}, got {last}"
        )
    return _backward(call, g, input, len(last), eps, weight, bias, g_residual, center=True)
