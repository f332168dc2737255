"""Convolution, pooling, and moves between channels and space. Images are [N, C, H, W], also without N."""

import math

import infinicore


def _batched(function, input, dims):
    """`function` of an input with a batch dim; without one, a dim of size 1 is lent to it."""
    if input.ndim == dims + 1:
        result = function(input.unsqueeze(0))
        return tuple(r.squeeze(0) for r in result) if isinstance(result, tuple) else result.squeeze(0)
    return function(input)


def conv1d(input, weight, bias=None, stride=1, padding=0, dilation=1, groups=1):
    """Cross-correlation of [N, C, L] with `weight` [out, C / groups, K]; `padding` may be "same" or "valid"."""
    return _batched(lambda x: infinicore.conv1d(x, weight, bias, stride, padding, dilation, groups), input, 1)


def conv2d(input, weight, bias=None, stride=1, padding=0, dilation=1, groups=1):
    """Cross-correlation of [N, C, H, W] with `weight` [out, C / groups, R, S]; `padding` may be "same" or "valid"."""
    return _batched(lambda x: infinicore.conv2d(x, weight, bias, stride, padding, dilation, groups), input, 2)


def max_pool1d(input, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False, return_indices=False):
    """The largest of each window of [N, C, L]; with `return_indices` also where it was."""
    options = (kernel_size, stride, padding, dilation, ceil_mode, return_indices)
    return _batched(lambda x: infinicore.max_pool1d(x, *options), input, 1)


def max_pool2d(input, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False, return_indices=False):
    """The largest of each window of [N, C, H, W]; with `return_indices` also where it was."""
    options = (kernel_size, stride, padding, dilation, ceil_mode, return_indices)
    return _batched(lambda x: infinicore.max_pool2d(x, *options), input, 2)


def avg_pool1d(input, kernel_size, stride=None, padding=0, ceil_mode=False, count_include_pad=True):
    """The mean of each window of [N, C, L]."""
    options = (kernel_size, stride, padding, ceil_mode, count_include_pad)
    return _batched(lambda x: infinicore.avg_pool1d(x, *options), input, 1)


def avg_pool2d(
    input, kernel_size, stride=None, padding=0, ceil_mode=False, count_include_pad=True, divisor_override=None
):
    """The mean of each window of [N, C, H, W]; `divisor_override` takes the place of the count."""
    options = (kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)
    return _batched(lambda x: infinicore.avg_pool2d(x, *options), input, 2)


def adaptive_avg_pool1d(input, output_size):
    """Means of windows such that `output_size` of them cover L."""
    size = (1, output_size if isinstance(output_size, int) else output_size[0])
    return infinicore.adaptive_avg_pool2d(input.unsqueeze(-2), size).squeeze(-2)


def adaptive_avg_pool2d(input, output_size):
    """Means of windows such that `output_size` (an int or a pair; None keeps a size) of them cover the image."""
    return _batched(lambda x: infinicore.adaptive_avg_pool2d(x, _adaptive(x, output_size)), input, 2)


def adaptive_max_pool2d(input, output_size, return_indices=False):
    """Largest elements of windows such that `output_size` of them cover the image."""

    def pool(x):
        return infinicore.adaptive_max_pool2d(x, _adaptive(x, output_size), return_indices)

    return _batched(pool, input, 2)


def _adaptive(x, output_size):
    pair = (output_size, output_size) if isinstance(output_size, int) or output_size is None else tuple(output_size)
    return tuple(own if size is None else size for own, size in zip(x.shape[-2:], pair))


def pixel_shuffle(input, upscale_factor):
    """[..., C r^2, H, W] to [..., C, H r, W r] (Shi et al., arXiv 1609.05158)."""
    *front, channels, height, width = input.shape
    r = upscale_factor
    if r < 1 or channels % (r * r):
        raise ValueError(f"`upscale_factor` {r} squared must divide the {channels} channels of `input`")
    x = input.reshape(-1, channels // (r * r), r, r, height, width).permute(0, 1, 4, 2, 5, 3)
    return x.reshape(*front, channels // (r * r), height * r, width * r)


def pixel_unshuffle(input, downscale_factor):
    """[..., C, H r, W r] to [..., C r^2, H, W]: the inverse of `pixel_shuffle`."""
    *front, channels, height, width = input.shape
    r = downscale_factor
    if r < 1 or height % r or width % r:
        raise ValueError(f"`downscale_factor` {r} must divide height and width of `input`, got shape {input.shape}")
    x = input.reshape(-1, channels, height // r, r, width // r, r).permute(0, 1, 3, 5, 2, 4)
    return x.reshape(*front, channels * r * r, height // r, width // r)


def pad(input, pad, mode="constant", value=None):
    """`input` with `pad` = (left, right, top, bottom, ...) elements more, from the last dim on.

    `mode` says what they are: "constant" (`value`), "reflect", "replicate" or "circular".
    """
    pad = [int(p) for p in pad]
    if len(pad) % 2 or len(pad) > 2 * input.ndim:
        raise ValueError(f"`pad` must hold two sizes for up to {input.ndim} dims, got {pad}")
    if mode == "constant":
        return infinicore.pad(input, pad, value=0.0 if value is None else value)
    if mode not in ("reflect", "replicate", "circular"):
        raise ValueError(f"`mode` must be 'constant', 'reflect', 'replicate' or 'circular', got {mode!r}")
    for position in range(len(pad) // 2):
        before, after = pad[2 * position : 2 * position + 2]
        dim = input.ndim - 1 - position
        if before or after:
            input = infinicore.index_select(input, dim, _border(mode, input.shape[dim], before, after))
    return input


def _border(mode, size, before, after):
    """Which elements of a dim its padded form shows."""
    largest = {"reflect": size - 1, "circular": size, "replicate": math.inf if size else 0}[mode]
    if max(before, after) > largest or before + size + after < 1:
        raise ValueError(f"`pad` {(before, after)} does not fit a dim of size {size} in mode {mode!r}")
    wanted = range(-before, size + after)
    if mode == "replicate":
        return infinicore.tensor([min(max(i, 0), size - 1) for i in wanted])
    if mode == "circular":
        return infinicore.tensor([i % size for i in wanted])
    return infinicore.tensor([abs(i) if i < size else 2 * (size - 1) - i for i in wanted])
