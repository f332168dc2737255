"""Norms with the statistics that they used, by the names of PyTorch's inner functions."""

import numpy as np

from ..table.composite import composite
from ._layout import check

_ROUGH = {"float32": (1e-4, 1e-5), "bfloat16": (5e-2, 5e-2), "float16": (5e-3, 5e-3)}


def _statistics(f, x, dims, eps, keepdim):
    """(means, 1 / sqrt(variances + eps)) over dims."""
    return f.mean(x, dims, keepdim), f.rsqrt(f.var(x, dims, False, keepdim) + eps)


def _layer_ref(input, normalized_shape, weight, bias, eps):
    axes = tuple(range(input.ndim - len(normalized_shape), input.ndim))
    mean, rstd = input.mean(axes, keepdims=True), 1 / np.sqrt(input.var(axes, keepdims=True) + eps)
    return (input - mean) * rstd * weight + bias, mean, rstd


def _layer_samples(rng):
    yield (rng.standard_normal((3, 7)), (7,), rng.uniform(0.5, 1.5, 7), rng.standard_normal(7), 1e-5), {}


@composite(ref=_layer_ref, samples=_layer_samples, tolerance=_ROUGH, amp="float32")
def native_layer_norm(f, input, normalized_shape, weight, bias, eps: float):
    """(`layer_norm`, means, 1 / standard deviations) over the last dims `normalized_shape`; gradients flow through the
    first alone, as PyTorch's.
    """
    check(f, input, "input")
    dims = tuple(range(-len(normalized_shape), 0))
    y = f.layer_norm(input, tuple(normalized_shape), weight, bias, eps)
    return y, *_statistics(f, input.detach(), dims, eps, True)


def _group_ref(input, weight, bias, N, C, HxW, group, eps):
    x = input.reshape(N, group, -1)
    mean, rstd = x.mean(-1), 1 / np.sqrt(x.var(-1) + eps)
    y = ((x - mean[..., None]) * rstd[..., None]).reshape(N, C, -1) * weight[:, None] + bias[:, None]
    return y.reshape(input.shape), mean, rstd


def _group_samples(rng):
    x, w, b = rng.standard_normal((2, 6, 3)), rng.uniform(0.5, 1.5, 6), rng.standard_normal(6)
    yield (x, w, b, 2, 6, 3, 3, 1e-5), {}


@composite(ref=_group_ref, samples=_group_samples, tolerance=_ROUGH, amp="float32")
def native_group_norm(f, input, weight, bias, N: int, C: int, HxW: int, group: int, eps: float):
    """(`group_norm`, means [N, group], 1 / standard deviations [N, group]) of `input` [N, C, *]."""
    check(f, input, "input")
    y = f.group_norm(input, group, weight, bias, eps)
    return y, *_statistics(f, input.reshape(N, group, C // group * HxW), -1, eps, False)


def _batch_ref(input, weight, bias, running_mean, running_var, training, momentum, eps):
    axes = (0, *range(2, input.ndim))
    mean, rstd = input.mean(axes), 1 / np.sqrt(input.var(axes) + eps)
    across = lambda v: v.reshape(-1, *(1,) * (input.ndim - 2))
    return (input - across(mean)) * across(rstd) * across(weight) + across(bias), mean, rstd


def _batch_samples(rng):
    x, w, b = rng.standard_normal((4, 3, 5)), rng.uniform(0.5, 1.5, 3), rng.standard_normal(3)
    yield (x, w, b, None, None, True, 0.1, 1e-5), {}


@composite(ref=_batch_ref, samples=_batch_samples, tolerance=_ROUGH, amp="float32")
def native_batch_norm(
    f, input, weight, bias, running_mean, running_var, training: bool, momentum: float, eps: float
):  # fmt: skip
    """(`batch_norm`, means [C], 1 / standard deviations [C]); without `training` the last two are empty."""
    check(f, input, "input")
    saved = input.detach().new_zeros(0), input.detach().new_zeros(0)
    if training:
        saved = _statistics(f, input.detach(), (0, *range(2, len(input.shape_))), eps, False)
    return f.batch_norm(input, running_mean, running_var, weight, bias, training, momentum, eps), *saved
