"""Norms over the channels of [N, C, *]: batch norm and group norm. Statistics in float32 (float64 for float64)."""

import numpy as np

from ..blocks.channels import BATCH, BATCH_GRAD, GROUP, GROUP_GRAD
from ..problems.norm import ChunkSums
from ..table.registry import op
from ._layout import check, check_factor, product
from .copy import copy_into, fill

_TOLERANCE = {"bfloat16": (2e-2, 1e-2), "float16": (3e-3, 2e-3)}


def _statistics(dtype):
    """The dtype of means and deviations."""
    return dtype if dtype.itemsize >= 4 else "float32"


def _factors(call, x, channels, **factors):
    """Weights by name, contiguous, each [C] or None."""
    found = []
    for name, factor in factors.items():
        if factor is not None:
            check_factor(call, factor, name, x, (channels,))
            factor = factor.contiguous()
        found.append(factor)
    return found


def _name(factor, x):
    """The dtype that a kernel reads a factor as."""
    return (x if factor is None else factor).dtype.name


# ---- batch norm --------------------------------------------------------------------------------


def _by_channel(x):
    """`x` [N, C, *] as contiguous memory of (N, C, L) with L > 1 where it can be: [N, C] becomes [1, C, N]."""
    shape = x.shape_
    if len(shape) == 2:
        return x.permute(1, 0).contiguous(), (1, shape[1], shape[0])
    return x.contiguous(), (shape[0], shape[1], product(shape[2:]))


def _running(call, x, running_mean, running_var, training):
    """Refuse running statistics that do not fit."""
    given = [s is not None for s in (running_mean, running_var)]
    if given[0] != given[1]:
        raise ValueError(f"`{call.op.name}` needs both `running_mean` and `running_var`, or neither")
    if not given[0]:
        if not training:
            raise ValueError(f"`{call.op.name}` needs `running_mean` and `running_var` unless `training`")
        return
    for name, s in (("running_mean", running_mean), ("running_var", running_var)):
        check_factor(call, s, name, x, (x.shape_[1],))
        if not s.contiguous_:
            raise ValueError(f"`{name}` of `{call.op.name}` must be contiguous, it is updated in place: give a copy")
    if running_mean.dtype is not running_var.dtype:
        raise TypeError(
            f"`running_mean` and `running_var` of `{call.op.name}` need one dtype, got {running_mean.dtype.name} and "
            f"{running_var.dtype.name}"
        )


def _batch_norm_ref(input, running_mean, running_var, weight=None, bias=None, training=False, momentum=0.1, eps=1e-5):
    axes, shape = (0, *range(2, input.ndim)), (1, -1, *(1,) * (input.ndim - 2))
    mean, var = running_mean, running_var
    if training:
        mean, var = input.mean(axes), input.var(axes)
    y = (input - mean.reshape(shape)) / np.sqrt(var.reshape(shape) + eps)
    y = y if weight is None else y * weight.reshape(shape)
    return y if bias is None else y + bias.reshape(shape)


def _batch_norm_samples(rng):
    for shape in ((5, 3), (4, 5, 7), (2, 3, 5, 9), (3, 17, 12, 11)):
        c = shape[1]
        running = rng.standard_normal(c), rng.uniform(0.5, 2, c)
        factors = rng.standard_normal(c), rng.standard_normal(c)
        yield (rng.standard_normal(shape) * 2 + 1, *running, *factors), {"training": True}
        yield (rng.standard_normal(shape), *running, *factors), {"eps": 1e-3}
    yield (rng.standard_normal((3, 4, 6)), None, None), {"training": True}


@op(ref=_batch_norm_ref, samples=_batch_norm_samples, tolerance=_TOLERANCE)
def batch_norm(call, input, running_mean, running_var, weight=None, bias=None, training=False, momentum=0.1, eps=1e-5):
    """(input - mean) / sqrt(variance + eps) * weight + bias by channels (Ioffe and Szegedy, arXiv 1502.03167).

    `input` [N, C, *], the others [C] or None, of its dtype or float32 beside a 16-bit one. When `training`, the
    statistics are those of the batch, and the running ones (if given) move towards them in place: running = (1 -
    momentum) running + momentum batch, the variance divided by the count less one. Else the running ones are used.
    """
    check(call, input, "input")
    shape = input.shape_
    if len(shape) < 2:
        raise ValueError(f"`input` of `batch_norm` must be [N, C, *], got shape {shape}")
    _running(call, input, running_mean, running_var, training)
    weight, bias = _factors(call, input, shape[1], weight=weight, bias=bias)
    if training and shape[0] * product(shape[2:]) == 1:
        raise ValueError(f"`batch_norm` needs more than one value for each channel when training, got shape {shape}")
    x, sizes = _by_channel(input)
    flat = len(shape) == 2
    y = call.empty(x.shape_, x.dtype) if flat else call.out(shape, x.dtype, overlap="same")
    statistics = _statistics(x.dtype)
    mean, inverse = call.empty(shape[1:2], statistics), call.empty(shape[1:2], statistics)
    types = {"T": x.dtype.name, "W": _name(weight, x), "B": _name(bias, x), "R": _name(running_mean, x)}
    types["TRAINING"] = bool(training)
    n, c, length = sizes
    block = BATCH(
        x=x, w=weight, b=bias, y=y, running_mean=running_mean, running_var=running_var, mean=mean, inverse=inverse,
        n=n, c=c, length=length, momentum=momentum, eps=eps,
    )  # fmt: skip
    if y.numel_ or not training:
        call.launch("norm.channels.batch_norm", types, block, c, n * length)
    if call.training:
        call.save(mean=mean, inverse=inverse)
    return _transposed(call, y) if flat else y


def _transposed(call, y):
    """The result [N, C] from [C, N]."""
    out = call.out(y.shape_[::-1], y.dtype)
    copy_into(call, out, y.permute(1, 0))
    return out


@batch_norm.grad("input", "weight", "bias")
def _(f, g, input, weight, mean, inverse, training, eps, need, create_graph):
    if not create_graph:
        dx, dw, db = f.batch_norm_backward(g, input, weight, mean, inverse, training)
    else:
        axes, shape = (0, *range(2, input.ndim)), (1, -1, *(1,) * (input.ndim - 2))
        if training:
            centered = input - f.mean(input, axes, True)
            inverse = f.rsqrt(f.mean(centered * centered, axes, True) + eps)
        else:
            centered, inverse = input - mean.reshape(shape), inverse.reshape(shape)
        x_hat = centered * inverse
        h = g if weight is None else g * weight.reshape(shape)
        dx = h
        if training:
            dx = h - f.mean(h, axes, True) - x_hat * f.mean(h * x_hat, axes, True)
        dx, dw, db = dx * inverse, f.sum(g * x_hat, axes), f.sum(g, axes)
    return tuple(value if name in need else None for name, value in (("input", dx), ("weight", dw), ("bias", db)))


@op(gradient=None, outputs=("out", "dw", "db"))
def batch_norm_backward(call, g, input, weight, mean, inverse, training):
    """(gradient of `input`, of `weight`, of `bias`) of `batch_norm` for the gradient `g` of its result.

    `mean` and `inverse` (1 / sqrt(variance + eps)) are the statistics that were used; where they are those of the
    batch (`training`), the gradient goes through them too.
    """
    check(call, g, "g")
    check(call, input, "input")
    channels = input.shape_[1]
    (weight,) = _factors(call, input, channels, weight=weight)
    x, sizes = _by_channel(input)
    g, _ = _by_channel(g)
    flat = len(input.shape_) == 2
    dx = call.empty(x.shape_, x.dtype) if flat else call.out(input.shape_, x.dtype)
    kind = _name(weight, x)
    dw, db = call.out((channels,), kind, key="dw"), call.out((channels,), kind, key="db")
    n, c, length = sizes
    block = BATCH_GRAD(g=g, x=x, w=weight, mean=mean, inverse=inverse, dx=dx, dw=dw, db=db, n=n, c=c, length=length)
    types = {"T": x.dtype.name, "W": kind, "TRAINING": bool(training)}
    call.launch("norm.channels.batch_norm_backward", types, block, c, 2 * n * length)
    return (_transposed(call, dx) if flat else dx), dw, db


# ---- group norm --------------------------------------------------------------------------------


def _group_norm_ref(input, num_groups, weight=None, bias=None, eps=1e-5):
    shape = (1, -1, *(1,) * (input.ndim - 2))
    x = input.reshape(input.shape[0], int(num_groups), -1)
    y = ((x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + eps)).reshape(input.shape)
    y = y if weight is None else y * weight.reshape(shape)
    return y if bias is None else y + bias.reshape(shape)


def _group_norm_samples(rng):
    for shape, groups in (((3, 6), 2), ((2, 6, 7), 3), ((2, 8, 5, 9), 4), ((1, 4, 12, 11), 1)):
        yield (rng.standard_normal(shape) + 1, groups, *rng.standard_normal((2, shape[1]))), {}
    yield (rng.standard_normal((2, 4, 9)), 4), {"eps": 1e-3}
    yield (rng.standard_normal((2, 4, 9)), 2), {"bias": rng.standard_normal(4)}


@op(ref=_group_norm_ref, samples=_group_norm_samples, tolerance=_TOLERANCE)
def group_norm(call, input, num_groups, weight=None, bias=None, eps=1e-5):
    """(input - mean) / sqrt(variance + eps) * weight + bias by groups of channels (Wu and He, arXiv 1803.08494).

    `input` [N, C, *] with C a multiple of `num_groups`; the statistics are those of each group of each image. `weight`
    and `bias` are [C] or None, of its dtype or float32 beside a 16-bit one. The result may overwrite `input`.
    """
    check(call, input, "input")
    shape = input.shape_
    if len(shape) < 2 or num_groups < 1 or shape[1] % num_groups:
        raise ValueError(
            f"`input` of `group_norm` must be [N, C, *] with C a multiple of `num_groups`, got shape {shape} and "
            f"{num_groups} groups"
        )
    weight, bias = _factors(call, input, shape[1], weight=weight, bias=bias)
    x, units = input.contiguous(), shape[0] * num_groups
    y = call.out(shape, x.dtype, overlap="same")
    statistics = _statistics(x.dtype)
    mean, inverse = call.empty((units,), statistics), call.empty((units,), statistics)
    channels, length = shape[1] // num_groups, product(shape[2:])
    types = {"T": x.dtype.name, "W": _name(weight, x), "B": _name(bias, x)}
    if y.numel_:
        block = GROUP(
            x=x, w=weight, b=bias, y=y, mean=mean, inverse=inverse, groups=num_groups, channels=channels,
            length=length, eps=eps,
        )  # fmt: skip
        call.launch("norm.channels.group_norm", types, block, units, channels * length)
    if call.training:
        call.save(mean=mean, inverse=inverse)
    return y


@group_norm.grad("input", "weight", "bias")
def _(f, g, input, num_groups, weight, mean, inverse, eps, need, create_graph):
    if not create_graph:
        dx, dw, db = f.group_norm_backward(g, input, num_groups, weight, mean, inverse)
    else:
        shape, axes = (1, -1, *(1,) * (input.ndim - 2)), (0, *range(2, input.ndim))
        grouped = (input.shape[0], num_groups, -1)
        x = input.reshape(grouped)
        centered = x - f.mean(x, -1, True)
        scale = f.rsqrt(f.mean(centered * centered, -1, True) + eps)
        x_hat = centered * scale
        h = (g if weight is None else g * weight.reshape(shape)).reshape(grouped)
        dx = (h - f.mean(h, -1, True) - x_hat * f.mean(h * x_hat, -1, True)) * scale
        dx, dw, db = dx.reshape(input.shape), f.sum(g * x_hat.reshape(input.shape), axes), f.sum(g, axes)
    return tuple(value if name in need else None for name, value in (("input", dx), ("weight", dw), ("bias", db)))


@op(gradient=None, outputs=("out", "dw", "db"))
def group_norm_backward(call, g, input, num_groups, weight, mean, inverse):
    """(gradient of `input`, of `weight`, of `bias`) of `group_norm` for the gradient `g` of its result.

    `mean` and `inverse` (1 / sqrt(variance + eps)) are the statistics [N * num_groups] that were used.
    """
    check(call, g, "g")
    check(call, input, "input")
    n, c = input.shape_[:2]
    (weight,) = _factors(call, input, c, weight=weight)
    x, g = input.contiguous(), g.contiguous()
    kind, statistics = _name(weight, x), _statistics(x.dtype)
    dx = call.out(input.shape_, x.dtype)
    dw, db = call.out((c,), kind, key="dw"), call.out((c,), kind, key="db")
    if not x.numel_:
        fill(call, dw, 0)
        fill(call, db, 0)
        return dx, dw, db
    parts_w, parts_b = call.empty((n, c), statistics), call.empty((n, c), statistics)
    channels, length = c // num_groups, product(input.shape_[2:])
    block = GROUP_GRAD(
        g=g, x=x, w=weight, mean=mean, inverse=inverse, dx=dx, dw=parts_w, db=parts_b, groups=num_groups,
        channels=channels, length=length,
    )  # fmt: skip
    types = {"T": x.dtype.name, "W": kind}
    call.launch("norm.channels.group_norm_backward", types, block, n * num_groups, 2 * channels * length)
    sums = ChunkSums(parts_w.dtype.name, kind, n, c)
    call.run(sums, parts_w=parts_w, parts_b=parts_b, dw=dw, db=db)
    return dx, dw, db
