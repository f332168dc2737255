"""Normalisations over the last dims. Statistics in float32 (float64 for float64), one rounding at the end."""

import numpy as np

from ..registry import op
from ._layout import check, check_factor, rows

_GRAIN = 65536  # elements: 8 us for float32


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
    args = [x.address, weight.address, y.address, size, stride, size, call.float_bits(eps)]
    types = {"T": x.dtype.name, "W": weight.dtype.name}
    call.launch("norm.rms_norm", types, args, count, max(1, _GRAIN // (size or 1)), (x, weight, y))
    return y


def _add_rms_norm_ref(a, b, weight, epsilon=1e-5):
    return _rms_norm_ref(a + b, weight, epsilon), a + b


def _add_rms_norm_samples(rng):
    for shape in ((5, 1), (5, 3), (2, 3, 17), (4, 257), (3, 1024)):
        yield tuple(rng.standard_normal(s) for s in (shape, shape, shape[-1:])), {}


@op(
    ref=_add_rms_norm_ref,
    samples=_add_rms_norm_samples,
    outputs=("out", "residual"),
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
    args = [first.address, second.address, weight.address, y.address, total.address, size]
    args += [a_stride, b_stride, size, size, call.float_bits(epsilon)]
    types = {"T": a.dtype.name, "W": weight.dtype.name}
    keep = (first, second, weight, y, total)
    call.launch("norm.add_rms_norm", types, args, count, max(1, _GRAIN // (size or 1)), keep)
    return y, total


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
    addresses = [0 if f is None else f.address for f in factors]
    args = [x.address, *addresses, y.address, size, stride, size, call.float_bits(eps)]
    names = ("T", "W", "B")
    types = {n: input.dtype.name if f is None else f.dtype.name for n, f in zip(names, (x, weight, bias))}
    call.launch("norm.layer_norm", types, args, count, max(1, _GRAIN // (size or 1)), (x, weight, bias, y))
    return y
