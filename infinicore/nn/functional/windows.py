"""Windows as columns and back, and the pools that are written with other ops."""

import math
from numbers import Integral

import numpy as np

import infinicore

from ...dispatch.generator import default_generator
from .checks import integers


def _each(value, dims, name, least=1):
    values = tuple(value) if isinstance(value, (tuple, list)) else (value,) * dims
    values = values * dims if len(values) == 1 else values
    if len(values) != dims or not all(isinstance(v, Integral) for v in values) or min(values) < least:
        raise ValueError(f"`{name}` must be an integer of at least {least}, or {dims} of them, got {value!r}")
    return integers(values, name)


# ---- columns ---------------------------------------------------------------------------------------


def _columns(size, kernel_size, dilation, padding, stride, device):
    """(positions [taps * windows] in an image with its padding, sizes of that, windows) of an image of `size`."""
    kernel, dilation = _each(kernel_size, 2, "kernel_size"), _each(dilation, 2, "dilation")
    padding, stride = _each(padding, 2, "padding", 0), _each(stride, 2, "stride")
    padded = [n + 2 * p for n, p in zip(size, padding)]
    counts = [(n - d * (k - 1) - 1) // s + 1 for n, k, d, s in zip(padded, kernel, dilation, stride)]
    if min(counts) < 1:
        raise ValueError(
            f"`kernel_size` {kernel} with `dilation` {dilation} must fit into the image with its padding, {padded}"
        )
    y, x = (np.arange(k)[:, None] * d + np.arange(c)[None] * s for k, d, c, s in zip(kernel, dilation, counts, stride))
    at = y[:, None, :, None] * padded[1] + x[None, :, None, :]  # [KH, KW, OH, OW]
    return infinicore.from_numpy(at.reshape(-1), device=device), padded, padding, math.prod(kernel), math.prod(counts)


def unfold(input, kernel_size, dilation=1, padding=0, stride=1):
    """The windows of `input` [N, C, H, W] or [C, H, W] as columns [N, C KH KW, windows] (im2col)."""
    if input.ndim not in (3, 4) or 0 in input.shape_[-3:]:
        raise ValueError(f"`input` must be [N, C, H, W] or [C, H, W] with elements, got shape {input.shape_}")
    at, padded, (down, right), taps, count = _columns(
        input.shape_[-2:], kernel_size, dilation, padding, stride, input.device
    )
    lead = input.shape_[:-3]
    if down or right:
        input = infinicore.pad(input, (right, right, down, down))
    columns = infinicore.index_select(input.reshape(*lead, input.shape_[-3], math.prod(padded)), -1, at)
    return columns.reshape(*lead, columns.shape_[-2] * taps, count)


def fold(input, output_size, kernel_size, dilation=1, padding=0, stride=1):
    """Columns [N, C KH KW, windows] or [C KH KW, windows] added up to images [N, C, H, W] of `output_size`.

    The gradient of `unfold` as a map of its own: elements that lie in several windows get their sum.
    """
    height, width = _each(output_size, 2, "output_size")
    at, padded, (down, right), taps, count = _columns(
        (height, width), kernel_size, dilation, padding, stride, input.device
    )
    if input.ndim not in (2, 3) or input.shape_[-2] % taps or input.shape_[-1] != count or not input.shape_[-2]:
        raise ValueError(
            f"`input` must be [N, C * {taps}, {count}] or [C * {taps}, {count}] for these windows, got {input.shape_}"
        )
    lead = (*input.shape_[:-2], input.shape_[-2] // taps)
    zeros = infinicore.zeros((*lead, padded[0] * padded[1]), dtype=input.dtype, device=input.device)
    image = infinicore.index_add(zeros, len(lead), at, input.reshape(*lead, taps * count)).reshape(*lead, *padded)
    return infinicore.pad(image, (-right, -right, -down, -down)) if down or right else image


# ---- pools -----------------------------------------------------------------------------------------


def _lp_pool(input, norm_type, kernel_size, stride, ceil_mode, dims):
    kernel, pools = _each(kernel_size, dims, "kernel_size"), (infinicore.avg_pool1d, infinicore.avg_pool2d)
    pool = (*pools, infinicore.avg_pool3d)[dims - 1]
    means = pool(input.pow(norm_type), kernel, stride, 0, ceil_mode)
    means = infinicore.where(means == 0, 0.0, means)  # where no gradient flows: that of the root is infinite
    return (means * float(math.prod(kernel))).pow(1.0 / norm_type)


def lp_pool1d(input, norm_type, kernel_size, stride=None, ceil_mode=False):
    """(sum of x^p)^(1/p) of each window of [N, C, L] or [C, L], with p = `norm_type`."""
    return _lp_pool(input, norm_type, kernel_size, stride, ceil_mode, 1)


def lp_pool2d(input, norm_type, kernel_size, stride=None, ceil_mode=False):
    """(sum of x^p)^(1/p) of each window of [N, C, H, W] or [C, H, W], with p = `norm_type`."""
    return _lp_pool(input, norm_type, kernel_size, stride, ceil_mode, 2)


def lp_pool3d(input, norm_type, kernel_size, stride=None, ceil_mode=False):
    """(sum of x^p)^(1/p) of each window of [N, C, D, H, W] or [C, D, H, W], with p = `norm_type`."""
    return _lp_pool(input, norm_type, kernel_size, stride, ceil_mode, 3)


def _unpool(input, indices, kernel_size, stride, padding, output_size, dims):
    kernel = _each(kernel_size, dims, "kernel_size")
    stride = kernel if stride is None else _each(stride, dims, "stride")
    padding = _each(padding, dims, "padding", 0)
    if input.ndim not in (dims + 1, dims + 2) or input.shape_ != indices.shape_:
        raise ValueError(
            f"`input` and `indices` must have {dims + 1} or {dims + 2} dims and one shape, got {input.shape_} and "
            f"{indices.shape_}"
        )
    lead, space = input.shape_[:-dims], input.shape_[-dims:]
    usual = [(n - 1) * s - 2 * p + k for n, s, p, k in zip(space, stride, padding, kernel)]
    if output_size is not None:
        size = tuple(output_size)[-dims:]
        if len(output_size) not in (dims, dims + len(lead)) or any(
            not u - s < n < u + s for n, u, s in zip(size, usual, stride)
        ):
            raise ValueError(f"`output_size` must be within a stride of {usual}, got {tuple(output_size)}")
        usual = [int(n) for n in size]
    count = math.prod(usual)
    flat = indices.reshape(*lead, -1)
    if flat.numel() and not (int(flat.min()) >= 0 and int(flat.max()) < count):
        raise ValueError(f"`indices` must be from 0 to {count - 1}, the places of a result of size {tuple(usual)}")
    zeros = infinicore.zeros((*lead, count), dtype=input.dtype, device=input.device)
    return infinicore.scatter(zeros, -1, flat, input.reshape(*lead, -1)).reshape(*lead, *usual)


def max_unpool1d(input, indices, kernel_size, stride=None, padding=0, output_size=None):
    """Zeros with the maxima `input` [N, C, L] at their places `indices`, as `max_pool1d` returns them."""
    return _unpool(input, indices, kernel_size, stride, padding, output_size, 1)


def max_unpool2d(input, indices, kernel_size, stride=None, padding=0, output_size=None):
    """Zeros with the maxima `input` [N, C, H, W] at their places `indices`, as `max_pool2d` returns them.

    `output_size` chooses among the sizes that have as many windows; else there is nothing behind the last one.
    """
    return _unpool(input, indices, kernel_size, stride, padding, output_size, 2)


def max_unpool3d(input, indices, kernel_size, stride=None, padding=0, output_size=None):
    """Zeros with the maxima `input` [N, C, D, H, W] at their places `indices`, as `max_pool3d` returns them."""
    return _unpool(input, indices, kernel_size, stride, padding, output_size, 3)


def _starts(sample, n, m, kernel):
    """Where the windows of fractional pooling begin: [planes, m] for a random number in [0, 1) of each plane."""
    if m == 1:
        return np.full((len(sample), 1), n - kernel)
    alpha = sample.dtype.type(n - kernel) / sample.dtype.type(m - 1)
    steps = (np.arange(m - 1, dtype=sample.dtype)[None] + sample[:, None]) * alpha
    starts = steps.astype(np.int64) - (sample * alpha).astype(np.int64)[:, None]
    return np.concatenate([starts, np.full((len(sample), 1), n - kernel)], 1)


def _fractional(input, kernel_size, output_size, output_ratio, return_indices, samples, dims):
    kernel = _each(kernel_size, dims, "kernel_size")
    if input.ndim not in (dims + 1, dims + 2):
        raise ValueError(f"`input` must have {dims + 1} or {dims + 2} dims, got shape {input.shape_}")
    if (output_size is None) == (output_ratio is None):
        raise ValueError(f"one of `output_size` and `output_ratio` must be given, got {output_size} and {output_ratio}")
    lead, space = input.shape_[:-dims], input.shape_[-dims:]
    if output_size is None:
        ratios = tuple(output_ratio) if isinstance(output_ratio, (tuple, list)) else (output_ratio,) * dims
        if len(ratios) != dims or not all(0 < r < 1 for r in ratios):
            raise ValueError(f"`output_ratio` must be {dims} numbers between 0 and 1, got {output_ratio}")
        output_size = tuple(int(n * r) for n, r in zip(space, ratios))
    sizes = _each(output_size, dims, "output_size")
    if any(m + k - 1 > n for m, k, n in zip(sizes, kernel, space)):
        raise ValueError(f"`kernel_size` {kernel} and `output_size` {sizes} are too large for an input of {space}")
    planes, batch = math.prod(lead), (*lead[:-1], 1)[0]
    if samples is None:
        draws = default_generator().uniforms((planes, dims))
    else:
        if samples.ndim != 3 or samples.shape_[1:] != (lead[-1], dims) or samples.shape_[0] < batch:
            raise ValueError(f"`_random_samples` must be {(batch, lead[-1], dims)}, got {samples.shape_}")
        draws = samples[:batch].detach().cpu().numpy().reshape(planes, dims)
    draws = np.asarray(draws, np.float64 if input.dtype is infinicore.float64 else np.float32)
    order = range(dims) if dims == 3 else (1, 0)  # of images the first number is for the columns, as in PyTorch
    starts = [_starts(draws[:, i], n, m, k) for i, n, m, k in zip(order, space, sizes, kernel)]
    at = np.zeros((planes, *(1,) * (2 * dims)), np.int64)
    for d in range(dims):
        rows = starts[d][:, :, None] + np.arange(kernel[d])  # [planes, results, taps]
        shape = [planes, *(1,) * (2 * dims)]
        shape[1 + d], shape[1 + dims + d] = sizes[d], kernel[d]
        at = at * space[d] + rows.reshape(shape)
    cells, taps = math.prod(sizes), math.prod(kernel)
    at = infinicore.from_numpy(at.reshape(planes, cells * taps), device=input.device)
    windows = infinicore.gather(input.reshape(planes, math.prod(space)), 1, at).reshape(planes, cells, taps)
    y, best = infinicore.max(windows, -1)
    y = y.reshape(*lead, *sizes)
    if not return_indices:
        return y
    return y, infinicore.gather(at.reshape(windows.shape_), -1, best.unsqueeze(-1)).reshape(y.shape_)


def fractional_max_pool2d(
    input, kernel_size, output_size=None, output_ratio=None, return_indices=False, _random_samples=None
):
    """Maxima of windows of [N, C, H, W] that lie at random so that `output_size` of them cover the image.

    Or as many as `output_ratio` times its size (Graham, arXiv 1412.6071). `_random_samples` [N, C, 2] are the random
    numbers. With `return_indices`, a pair with the places of the maxima in their planes.
    """
    return _fractional(input, kernel_size, output_size, output_ratio, return_indices, _random_samples, 2)


def fractional_max_pool3d(
    input, kernel_size, output_size=None, output_ratio=None, return_indices=False, _random_samples=None
):
    """As `fractional_max_pool2d`, of [N, C, D, H, W]; `_random_samples` are [N, C, 3]."""
    return _fractional(input, kernel_size, output_size, output_ratio, return_indices, _random_samples, 3)


def local_response_norm(input, size, alpha=1e-4, beta=0.75, k=1.0):
    """`input` / (k + alpha * mean of the squares of `size` neighbouring channels)^beta, of [N, C, *].

    Krizhevsky, Sutskever and Hinton, NIPS 2012.
    """
    if input.ndim < 3:
        raise ValueError(f"`input` must be [N, C, *] with 3 or more dims, got shape {input.shape_}")
    if not input.numel_:
        return input
    n, c = input.shape_[:2]
    squares = (input * input).reshape(n, 1, c, -1)
    squares = infinicore.pad(squares, (0, 0, size // 2, (size - 1) // 2))
    means = infinicore.avg_pool2d(squares, (size, 1), 1).reshape(input.shape_)
    return input / (means * alpha + k).pow(beta)
