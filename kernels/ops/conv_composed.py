"""Convolutions that are written with those of 1 and 2 dims: of volumes, and transposed ones.

The taps along the depth of a volume become channels, so that one product of 2 dims does all of the work. On GPUs copies
into planes would take most of the time where channels are few: there volumes are summed up as they lie.
"""

import math

import numpy as np

from ..table.composite import composite
from ._layout import check
from ._window import integers
from .conv import _TOLERANCE, _conv_ref, _place, planes_of

# ---- volumes ---------------------------------------------------------------------------------------


def _ranks(f, input, weight, dims):
    for name, x in (("input", input), ("weight", weight)):
        check(f, x, name)
    if len(weight.shape_) != dims + 2 or len(input.shape_) not in (dims + 1, dims + 2):
        raise ValueError(
            f"`{f.op.name}` needs an input of {dims + 1} or {dims + 2} dims and a weight of {dims + 2}, got "
            f"{input.shape_} and {weight.shape_}"
        )


def _as_they_lie(input, outputs, inputs=0):
    """Whether a convolution of volumes with so many channels of results in a group makes no planes of them.

    Sums of one launch take some 18 multiply-adds a picosecond of an H200, whatever the dtype; what planes and columns
    move of memory, and the product's time, grow with the channels of the input alone. Where `inputs` channels of 16-bit
    floats are enough for the matrix units, they go there as they lie.
    """
    most = 64 if inputs >= 8 and input.dtype.itemsize == 2 else 16 * input.dtype.itemsize
    return input.device.type != "cpu" and input.dtype.kind == "f" and outputs <= most


def _conv3d_samples(rng):
    yield _place(rng, (2, 3, 4, 5, 6), (4, 3, 2, 3, 3), (4,), padding=1)
    yield _place(rng, (4, 5, 4, 6), (6, 2, 3, 2, 1), stride=(2, 1, 2), padding=(1, 0, 1), dilation=(2, 1, 1), groups=2)
    yield _place(rng, (1, 2, 4, 3, 3), (2, 2, 2, 3, 1), padding="same")


@composite(ref=_conv_ref, samples=_conv3d_samples, tolerance=_TOLERANCE, amp="lower")
def conv3d(f, input, weight, bias=None, stride=1, padding=0, dilation=1, groups=1):
    """Cross-correlation of `input` [N, C, D, H, W] or [C, D, H, W] with `weight` [M, C / groups, KD, KH, KW].

    Options as of `conv2d`, an integer or three of them.
    """
    _ranks(f, input, weight, 3)
    stride, dilation = integers(f, stride, "stride", 3, 1), integers(f, dilation, "dilation", 3, 1)
    if len(input.shape_) == 4:
        return f.conv3d(input.unsqueeze(0), weight, bias, stride, padding, dilation, groups).squeeze(0)
    outputs = weight.shape_[0] // max(1, integers(f, groups, "groups", 1, 1)[0])
    if _as_they_lie(input, outputs, weight.shape_[1]):
        return f.conv_volumes(input, weight, bias, stride, padding, dilation, groups)
    taps = weight.shape_[2]
    if isinstance(padding, str):
        flat = padding
        if padding == "same" and any(s != 1 for s in stride):
            raise ValueError(f"`padding='same'` of `conv3d` needs stride 1, got {stride}: give integers")
        total = dilation[0] * (taps - 1) if padding == "same" else 0
        before, after = total // 2, total - total // 2
    else:
        before, *flat = integers(f, padding, "padding", 3, 0)
        after = before
    if before or after:
        input = f.pad(input, (0, 0, 0, 0, before, after))
    n, depth = input.shape_[0], input.shape_[2]
    layers = (depth - dilation[0] * (taps - 1) - 1) // stride[0] + 1
    if layers < 1 or taps < 1:
        raise ValueError(
            f"`conv3d` needs an input, with its padding, as deep as the kernel with its dilation, got depth {depth}, "
            f"kernel {taps}, dilation {dilation[0]}"
        )
    planes = planes_of(f, input, taps, layers, stride[0], dilation[0])
    flat_weight = weight.reshape(weight.shape_[0], -1, *weight.shape_[3:])
    y = f.conv2d(planes, flat_weight, bias, stride[1:], flat, dilation[1:], groups)
    return f.rearrange(y.reshape(n, layers, *y.shape_[1:]).transpose(1, 2))


# ---- transposed ------------------------------------------------------------------------------------


def _transposed_ref(input, weight, bias=None, stride=1, padding=0, output_padding=0, groups=1, dilation=1):
    """By taps: each adds its product to the places that it reaches."""
    dims, single = weight.ndim - 2, input.ndim == weight.ndim - 1
    x = input[None] if single else input
    each = lambda v: (int(v),) * dims if np.ndim(v) == 0 else tuple(int(i) for i in v)
    stride, padding, extra, dilation = map(each, (stride, padding, output_padding, dilation))
    kernel = weight.shape[2:]
    sizes = [(n - 1) * s + d * (k - 1) + 1 for n, s, d, k in zip(x.shape[2:], stride, dilation, kernel)]
    per = weight.shape[1]
    y = np.zeros((x.shape[0], groups * per, *(n + e for n, e in zip(sizes, extra))))
    grouped = x.reshape(x.shape[0], groups, -1, *x.shape[2:])
    w = weight.reshape(groups, -1, *weight.shape[1:])
    for tap in np.ndindex(*kernel):
        part = np.einsum("ngc...,gcm->ngm...", grouped, w[(..., *tap)]).reshape(x.shape[0], -1, *x.shape[2:])
        at = [slice(t * d, t * d + (n - 1) * s + 1, s) for t, d, n, s in zip(tap, dilation, x.shape[2:], stride)]
        y[(slice(None), slice(None), *at)] += part
    cut = [slice(p, n + e - p) for p, n, e in zip(padding, sizes, extra)]
    y = y[(slice(None), slice(None), *cut)]
    y = y if bias is None else y + bias.reshape(-1, *(1,) * dims)
    return y[0] if single else y


def _options(f, input, weight, bias, dims, stride, padding, output_padding, groups, dilation):
    """The options as tuples, and the sizes of the result, all checked."""
    _ranks(f, input, weight, dims)
    (groups,) = integers(f, groups, "groups", 1, 1)
    named = {"stride": (stride, 1), "padding": (padding, 0), "output_padding": (output_padding, 0)}
    named["dilation"] = (dilation, 1)
    stride, padding, extra, dilation = (integers(f, v, name, dims, least) for name, (v, least) in named.items())
    if any(e >= max(s, d) for e, s, d in zip(extra, stride, dilation)):
        raise ValueError(
            f"`output_padding` of `{f.op.name}` must be smaller than `stride` or `dilation`, got {extra}, {stride} and "
            f"{dilation}"
        )
    channels = input.shape_[-dims - 1]
    if channels != weight.shape_[0] or channels % groups:
        raise ValueError(
            f"`{f.op.name}` needs a weight [C, M / groups, *kernel] with C a multiple of groups, got input "
            f"{input.shape_}, weight {weight.shape_} and groups {groups}"
        )
    if bias is not None and bias.shape_ != (groups * weight.shape_[1],):
        raise ValueError(f"`bias` of `{f.op.name}` must have shape {(groups * weight.shape_[1],)}, got {bias.shape_}")
    space = zip(input.shape_[-dims:], weight.shape_[2:], stride, padding, extra, dilation)
    sizes = tuple((n - 1) * s - 2 * p + d * (k - 1) + e + 1 for n, k, s, p, e, d in space)
    if min(sizes) < 1:
        raise ValueError(f"`{f.op.name}` has a result without elements, of size {sizes}: use less `padding`")
    return stride, padding, extra, groups, dilation, sizes


def _transpose(f, input, weight, bias, dims, *options):
    """The gradient of the input of a convolution."""
    stride, padding, extra, groups, dilation, sizes = _options(f, input, weight, bias, dims, *options)
    lead = (*input.shape_[: -dims - 1], groups * weight.shape_[1])
    if all(e < s for e, s in zip(extra, stride)):
        y = f.conv_input_backward(input, weight, (*lead, *sizes), stride, padding, dilation, groups)
    else:  # no convolution skips so much: all places, then those asked for
        whole = tuple(n + 2 * p - e for n, p, e in zip(sizes, padding, extra))
        y = f.conv_input_backward(input, weight, (*lead, *whole), stride, 0, dilation, groups)
        y = f.pad(y, [side for p, e in zip(padding[::-1], extra[::-1]) for side in (-p, e - p)])
    return y if bias is None else y + bias.reshape(-1, *(1,) * dims)


def _samples(dims):
    def samples(rng):
        space = (5, 4, 3)[:dims]
        yield _place(rng, (2, 3, *space), (3, 4, *(3, 2, 2)[:dims]), (4,), stride=2, padding=1, output_padding=1)
        yield _place(rng, (4, *space), (4, 2, *(2, 3, 1)[:dims]), groups=2, dilation=2)
        yield _place(rng, (1, 2, *space), (2, 1, *(2, 2, 2)[:dims]), dilation=2, output_padding=1, padding=1)
        yield _place(rng, (2, 2, *space), (2, 3, *(2, 2, 2)[:dims]), (3,), stride=2)

    return samples


@composite(ref=_transposed_ref, samples=_samples(1), tolerance=_TOLERANCE, amp="lower")
def conv_transpose1d(f, input, weight, bias=None, stride=1, padding=0, output_padding=0, groups=1, dilation=1):
    """As `conv_transpose2d`, of `input` [N, C, L] or [C, L] and `weight` [C, M / groups, K]."""
    return _transpose(f, input, weight, bias, 1, stride, padding, output_padding, groups, dilation)


@composite(ref=_transposed_ref, samples=_samples(2), tolerance=_TOLERANCE, amp="lower")
def conv_transpose2d(f, input, weight, bias=None, stride=1, padding=0, output_padding=0, groups=1, dilation=1):
    """The gradient of the input of `conv2d` as a map of its own: `input` [N, C, H, W] or [C, H, W] becomes larger.

    `weight` is [C, M / groups, KH, KW], `bias` [M]. The result is [N, M, OH, OW] with OH = (H - 1) stride - 2 padding +
    dilation (KH - 1) + output_padding + 1; options are an integer or two. Raises ValueError for sizes that do not
    match and for an `output_padding` that is not below stride or dilation.
    """
    return _transpose(f, input, weight, bias, 2, stride, padding, output_padding, groups, dilation)


@composite(ref=_transposed_ref, samples=_samples(3), tolerance=_TOLERANCE, amp="lower")
def conv_transpose3d(f, input, weight, bias=None, stride=1, padding=0, output_padding=0, groups=1, dilation=1):
    """As `conv_transpose2d`, of `input` [N, C, D, H, W] or [C, D, H, W] and `weight` [C, M / groups, KD, KH, KW]."""
    options = (stride, padding, output_padding, groups, dilation)
    stride, padding, extra, groups, dilation, sizes = _options(f, input, weight, bias, 3, *options)
    if _as_they_lie(input, weight.shape_[1]):
        return _transpose(f, input, weight, bias, 3, *options)
    lead, (c, depth, h, w) = input.shape_[:-4], input.shape_[-4:]
    n, (taps, *kernel) = math.prod(lead), weight.shape_[2:]
    planes = input.reshape(n, c, depth, h, w).transpose(1, 2).reshape(n * depth, c, h, w)
    flat = weight.reshape(c, -1, *kernel)
    y = f.conv_transpose2d(planes, flat, None, stride[1:], padding[1:], extra[1:], groups, dilation[1:])
    y = y.reshape(n, depth, groups * weight.shape_[1], taps, *y.shape_[2:])
    if (stride[0], padding[0], extra[0], dilation[0]) == (taps, 0, 0, 1):  # a layer has one tap: nothing to add up
        result = f.rearrange(y.transpose(1, 2))
        result = result.reshape(*lead, groups * weight.shape_[1], *sizes)
        return result if bias is None else result + bias.reshape(-1, 1, 1, 1)
    # Along the depth: each tap's layers, with zeros between them, moved to where the tap reaches.
    moved = f.pad(y.unsqueeze(2), (0, 0) * 4 + (0, stride[0] - 1)).flatten(1, 2)
    result, reach = None, (depth - 1) * stride[0] + 1
    for k in range(taps):
        first = k * dilation[0] - padding[0]
        layers = f.pad(moved[:, :reach, :, k], (0, 0) * 3 + (first, sizes[0] - first - reach))
        result = layers if result is None else result + layers
    result = result.transpose(1, 2)
    result = f.rearrange(result) if bias is None else result + bias.reshape(-1, 1, 1, 1)
    return result.reshape(*lead, *result.shape_[1:])
