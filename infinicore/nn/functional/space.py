"""Padding, and moves between channels and space. Images are [N, C, H, W], also without N."""

import math

import numpy as np

import infinicore

from .checks import integers

__all__ = ["channel_shuffle", "pad", "pixel_shuffle", "pixel_unshuffle"]


def _image(input):
    """The shape of [..., C, H, W]."""
    if input.ndim < 3:
        raise ValueError(f"`input` must be [..., C, H, W], got shape {input.shape}")
    return input.shape


def pixel_shuffle(input, upscale_factor):
    """[..., C r^2, H, W] to [..., C, H r, W r] (Shi et al., arXiv 1609.05158)."""
    *front, channels, height, width = _image(input)
    r = upscale_factor
    if r < 1 or channels % (r * r):
        raise ValueError(f"`upscale_factor` {r} squared must divide the {channels} channels of `input`")
    x = input.reshape(math.prod(front), channels // (r * r), r, r, height, width).permute(0, 1, 4, 2, 5, 3)
    return x.reshape(*front, channels // (r * r), height * r, width * r)


def pixel_unshuffle(input, downscale_factor):
    """[..., C, H r, W r] to [..., C r^2, H, W]: the inverse of `pixel_shuffle`."""
    *front, channels, height, width = _image(input)
    r = downscale_factor
    if r < 1 or height % r or width % r:
        raise ValueError(f"`downscale_factor` {r} must divide height and width of `input`, got shape {input.shape}")
    x = input.reshape(math.prod(front), channels, height // r, r, width // r, r).permute(0, 1, 3, 5, 2, 4)
    return x.reshape(*front, channels * r * r, height // r, width // r)


def channel_shuffle(input, groups):
    """[N, C, *] with the channels of `groups` groups taken in turn (Zhang et al., arXiv 1707.01083)."""
    if input.ndim < 3 or groups < 1 or input.shape_[1] % groups:
        raise ValueError(f"`groups` {groups} must divide the channels of `input` [N, C, *], got shape {input.shape_}")
    n, c, *space = input.shape_
    return input.reshape(n, groups, c // groups, *space).transpose(1, 2).reshape(input.shape_)


def pad(input, pad, mode="constant", value=None):
    """`input` with `pad` = (left, right, top, bottom, ...) elements more, from the last dim on.

    `mode` says what they are: "constant" (`value`), "reflect", "replicate" or "circular".
    """
    pad = integers(pad, "pad")
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
            input = _taken(input, dim, _border(mode, input.shape[dim], before, after))
    return input


def _taken(input, dim, places):
    """The elements of `input` at `places` of a dim, most of which are neighbours: joined from what lies in a row."""
    pieces, start, steps = [], 0, np.diff(places)
    turns = [
        *(np.flatnonzero(np.diff(steps)) + 1).tolist(),
        len(steps),
    ]  # where the next element is not as far as before
    while start < len(places):
        step = int(steps[start]) if start < len(steps) else 1
        stop = next(turn for turn in turns if turn >= start) + 1
        if step not in (-1, 0, 1):
            step, stop = 1, start + 1
        first, count = int(places[start]), stop - start
        if step == 0:
            pieces.append(input.narrow(dim, first, 1).expand(*input.shape[:dim], count, *input.shape[dim + 1 :]))
        else:
            piece = input.narrow(dim, first if step == 1 else first - count + 1, count)
            pieces.append(piece if step == 1 else piece.flip(dim))
        start = stop
    return infinicore.cat(pieces, dim) if pieces else input.narrow(dim, 0, 0)


def _border(mode, size, before, after):
    """Which elements of a dim its padded form shows."""
    first, left = max(-before, 0), size + min(before, 0) + min(after, 0)  # of what negative sides leave of the dim
    largest = {"reflect": size - 1, "circular": left, "replicate": math.inf if size else 0}[mode]
    if max(before, after) > largest or before + size + after < (mode != "circular"):
        raise ValueError(f"`pad` {(before, after)} does not fit a dim of size {size} in mode {mode!r}")
    wanted = np.arange(-before, size + after)
    if mode == "replicate":
        return wanted.clip(0, max(size - 1, 0))
    if mode == "circular":  # only what is left is repeated
        return first + (wanted - first) % max(left, 1)
    return np.where(wanted < size, abs(wanted), 2 * (size - 1) - wanted)
