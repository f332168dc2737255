"""Convolutions (cross-correlations, as in PyTorch) of 1 and 2 dims, and their derivatives.

A convolution of 1 dim is one of images of height 1. The gradients of the input and of the weight are rows of their
own, whose derivatives are convolutions again, so gradients of any order are fast.
"""

import operator

import numpy as np

from ..table.registry import op
from ._conv import Shape, product, weight_sums
from ._layout import check
from .copy import fill

# 16-bit results round once; before, a sum of k products rounds as sqrt(k) float32 additions.
_TOLERANCE = {"float32": (1e-5, 1e-4), "float64": (1e-12, 1e-12), "bfloat16": (1e-2, 4e-2), "float16": (2e-3, 4e-3)}


# ---- options -----------------------------------------------------------------------------------


def sizes(call, value, name, dims, least):
    """An option that is one integer for all dims, or one for each, as a tuple."""
    try:
        values = (operator.index(value),) * dims
    except TypeError:
        try:
            values = tuple(operator.index(v) for v in value)
        except TypeError:
            values = ()
    if len(values) == 1:
        values *= dims
    if len(values) != dims or min(values) < least:
        raise ValueError(
            f"`{name}` of `{call.op.name}` must be an integer of at least {least}, or {dims} of them, got {value!r}"
        )
    return values


def _paddings(call, padding, kernel, stride, dilation):
    """(before, after) of each dim."""
    dims = len(kernel)
    if not isinstance(padding, str):
        return [(p, p) for p in sizes(call, padding, "padding", dims, 0)]
    if padding == "valid":
        return [(0, 0)] * dims
    if padding != "same":
        raise ValueError(f"`padding` of `{call.op.name}` must be integers, 'same' or 'valid', got {padding!r}")
    if any(s != 1 for s in stride):
        raise ValueError(f"`padding='same'` of `{call.op.name}` needs stride 1, got {stride}: give integers")
    totals = [d * (k - 1) for d, k in zip(dilation, kernel)]
    return [(t // 2, t - t // 2) for t in totals]


def _shape(call, x_shape, w_shape, stride, padding, dilation, groups):
    """The `Shape` of a convolution of [N, C, *] with [M, C / groups, *]; height 1 where there is one dim."""
    dims = len(w_shape) - 2
    name = call.op.name
    stride, dilation = sizes(call, stride, "stride", dims, 1), sizes(call, dilation, "dilation", dims, 1)
    (groups,) = sizes(call, groups, "groups", 1, 1)
    (n, c, *x), (m, per_group, *kernel) = x_shape, w_shape
    if m % groups or c != per_group * groups:
        raise ValueError(
            f"`{name}` needs a weight [M, C / groups, *kernel] with M a multiple of groups, got input "
            f"{tuple(x_shape)}, weight {tuple(w_shape)} and groups {groups}"
        )
    if min(kernel) < 1:
        raise ValueError(f"`weight` of `{name}` must have a kernel of at least one element, got {tuple(w_shape)}")
    paddings = _paddings(call, padding, kernel, stride, dilation)
    y = []
    for size, k, s, (before, after), d in zip(x, kernel, stride, paddings, dilation):
        room = size + before + after - d * (k - 1) - 1
        if room < 0:
            raise ValueError(
                f"`{name}` needs an input, with its padding, as large as the kernel with its dilation, got input "
                f"{tuple(x_shape)}, kernel {tuple(kernel)}, padding {padding!r}, dilation {dilation}"
            )
        y.append(room // s + 1)
    before = tuple(p[0] for p in paddings)
    one = (1,) * (2 - dims)
    return Shape(
        n=n,
        c=c,
        m=m,
        groups=groups,
        x=(*one, *x),
        y=(*one, *y),
        kernel=(*one, *kernel),
        stride=(*one, *stride),
        padding=(*(0,) * (2 - dims), *before),
        dilation=(*one, *dilation),
    )


def _check_pair(call, first, second):
    for name, x in (first, second):
        check(call, x, name)
    if first[1].dtype is not second[1].dtype:
        raise TypeError(
            f"`{call.op.name}` needs one dtype, got {first[1].dtype.name} for `{first[0]}` and {second[1].dtype.name} "
            f"for `{second[0]}`: cast one of them with `.to()`"
        )


# ---- launches ----------------------------------------------------------------------------------


def _correlate(call, shape, back, x, weight, y, bias):
    """y = the convolution of x, or with `back` the gradient of the input from that of the result; all contiguous."""
    plan = product(shape, back, call.threads, y.dtype.name)
    panels = call.scratch(plan.panel_bytes)
    scratch = call.scratch(plan.scratch)
    kind = y.dtype.name
    keep = x, weight, y, bias, panels, scratch
    args = [weight.address, panels.address, *plan.weight_args]
    call.launch_at("conv.forward.pack_weight", {"T": kind}, args, plan.panel_items, plan.panel_grain, keep)
    args = [x.address, panels.address, y.address, 0 if bias is None else bias.address, scratch.address, *plan.args]
    call.launch_at(plan.kernel, {"T": kind, **plan.constants}, args, plan.items, plan.grain, keep)


def _convolve(call, input, weight, bias, stride, padding, dilation, groups, dims):
    """The body of `conv1d` and `conv2d`."""
    name = call.op.name
    _check_pair(call, ("input", input), ("weight", weight))
    if len(weight.shape_) != dims + 2 or len(input.shape_) not in (dims + 1, dims + 2):
        raise ValueError(
            f"`{name}` needs an input of {dims + 1} or {dims + 2} dims and a weight of {dims + 2}, got "
            f"{input.shape_} and {weight.shape_}"
        )
    single = len(input.shape_) == dims + 1
    x_shape = (1, *input.shape_) if single else input.shape_
    shape = _shape(call, x_shape, weight.shape_, stride, padding, dilation, groups)
    if bias is not None:
        _check_pair(call, ("input", input), ("bias", bias))
        if bias.shape_ != (shape.m,):
            raise ValueError(f"`bias` of `{name}` must have shape ({shape.m},), got {bias.shape_}")
        bias = bias.contiguous()
    result = (shape.m, *shape.y[2 - dims :])
    y = call.out(result if single else (shape.n, *result), input.dtype)
    if y.numel_:
        _correlate(call, shape, False, input.contiguous(), weight.contiguous(), y, bias)
    return y


def _place(rng, *shapes, **options):
    return tuple(rng.standard_normal(shape) for shape in shapes), options


def _conv2d_samples(rng):
    yield _place(rng, (2, 3, 9, 11), (16, 3, 3, 3), (16,), padding=1)
    yield _place(rng, (3, 5, 7, 40), (9, 5, 2, 3), stride=(1, 2), padding=(1, 2))
    yield _place(rng, (2, 8, 12, 12), (12, 2, 3, 3), (12,), stride=2, padding=1, dilation=2, groups=4)
    yield _place(rng, (1, 6, 8, 8), (6, 1, 3, 3), padding="same", groups=6)
    yield _place(rng, (2, 4, 5, 6), (33, 4, 1, 1))
    yield _place(rng, (3, 6, 5), (4, 3, 4, 2), padding="same")


def _conv1d_samples(rng):
    yield _place(rng, (2, 3, 30), (5, 3, 4), (5,), padding=2, stride=2)
    yield _place(rng, (6, 17), (6, 2, 3), groups=3, dilation=3)


def _conv_ref(input, weight, bias=None, stride=1, padding=0, dilation=1, groups=1):
    """By windows: a sum over the taps."""
    dims, single = weight.ndim - 2, input.ndim == weight.ndim - 1
    pair = lambda v: (int(v),) * dims if np.ndim(v) == 0 else tuple(int(i) for i in v)
    stride, dilation, kernel = pair(stride), pair(dilation), weight.shape[2:]
    if padding == "same":
        totals = [d * (k - 1) for d, k in zip(dilation, kernel)]
        pads = [(t // 2, t - t // 2) for t in totals]
    else:
        pads = [(p, p) for p in ((0,) * dims if padding == "valid" else pair(padding))]
    x = np.pad(input[None] if single else input, [(0, 0), (0, 0), *pads])
    spans = [d * (k - 1) + 1 for d, k in zip(dilation, kernel)]
    windows = np.lib.stride_tricks.sliding_window_view(x, spans, axis=tuple(range(2, 2 + dims)))
    steps = [slice(None, None, s) for s in stride] + [slice(None, None, d) for d in dilation]
    windows = windows[(slice(None), slice(None), *steps)]
    n, c = windows.shape[:2]
    windows = windows.reshape(n, groups, c // groups, *windows.shape[2:])
    grouped = weight.reshape(groups, -1, *weight.shape[1:])
    space, taps = "hw"[:dims], "ij"[:dims]
    y = np.einsum(f"ngc{space}{taps},gmc{taps}->ngm{space}", windows, grouped)
    y = y.reshape(n, weight.shape[0], *y.shape[3:])
    if bias is not None:
        y = y + bias.reshape(-1, *(1,) * dims)
    return y[0] if single else y


# ---- rows --------------------------------------------------------------------------------------


@op(ref=_conv_ref, samples=_conv2d_samples, tolerance=_TOLERANCE, amp="lower")
def conv2d(call, input, weight, bias=None, stride=1, padding=0, dilation=1, groups=1):
    """Cross-correlation of `input` [N, C, H, W] or [C, H, W] with `weight` [M, C / groups, KH, KW], plus `bias` [M].

    The result is [N, M, OH, OW], with OH = (H + 2 padding - dilation (KH - 1) - 1) // stride + 1. `stride`, `padding`
    and `dilation` are an integer or two; `padding` is also 'valid' (none) or 'same' (OH = H, for stride 1; of an odd
    number of rows, the greater half lies behind). 16-bit floats are summed in float32 and rounded once. Raises
    ValueError for sizes that do not match, TypeError for dtypes that differ.
    """
    return _convolve(call, input, weight, bias, stride, padding, dilation, groups, 2)


@op(ref=_conv_ref, samples=_conv1d_samples, tolerance=_TOLERANCE, amp="lower")
def conv1d(call, input, weight, bias=None, stride=1, padding=0, dilation=1, groups=1):
    """Cross-correlation of `input` [N, C, L] or [C, L] with `weight` [M, C / groups, K]; the rest as for `conv2d`."""
    return _convolve(call, input, weight, bias, stride, padding, dilation, groups, 1)


@op(tolerance=_TOLERANCE, amp="lower")
def conv_input_backward(call, grad, weight, input_shape, stride=1, padding=0, dilation=1, groups=1):
    """The gradient of the input, of `input_shape`, from that of the result of a convolution of 1 or 2 dims.

    A transposed convolution: `grad` [N, M, *], `weight` [M, C / groups, *]; options as of the convolution.
    """
    _check_pair(call, ("grad", grad), ("weight", weight))
    input_shape = tuple(input_shape)
    shape = _backward_shape(call, grad, input_shape, weight.shape_, stride, padding, dilation, groups)
    y = call.out(input_shape, grad.dtype)
    if y.numel_:
        _correlate(call, shape, True, grad.contiguous(), weight.contiguous(), y, None)
    return y


@op(tolerance=_TOLERANCE, amp="lower")
def conv_weight_backward(call, grad, input, weight_shape, stride=1, padding=0, dilation=1, groups=1):
    """The gradient of the weight, of `weight_shape`, from that of the result of a convolution of 1 or 2 dims.

    `grad` [N, M, *], `input` [N, C, *]; options as of the convolution. Places are summed in float32 (float64 for
    float64) in an order that the sizes alone determine, so the result does not depend on the number of threads.
    """
    _check_pair(call, ("grad", grad), ("input", input))
    weight_shape = tuple(weight_shape)
    shape = _backward_shape(call, grad, input.shape_, weight_shape, stride, padding, dilation, groups)
    y = call.out(weight_shape, grad.dtype)
    if not y.numel_:
        return y
    if not grad.numel_:
        fill(call, y, 0)
        return y
    x, g = input.contiguous(), grad.contiguous()
    plan = weight_sums(shape, call.threads, y.dtype.name)
    sums, scratch = call.scratch(plan.sums_bytes), call.scratch(plan.scratch)
    kind, keep = {"T": y.dtype.name}, (x, g, y, sums, scratch)
    args = [x.address, g.address, sums.address, *plan.args]
    args[4] = scratch.address
    call.launch_at("conv.grad.weight_sums", {**kind, **plan.constants}, args, plan.items, plan.grain, keep)
    args = [sums.address, y.address, *plan.join_args]
    call.launch_at("conv.grad.join_parts", kind, args, plan.join_items, plan.join_grain, keep)
    return y


def _backward_shape(call, grad, x_shape, w_shape, stride, padding, dilation, groups):
    """The `Shape` of a convolution whose result has the shape of `grad`."""
    dims = len(w_shape) - 2
    if dims not in (1, 2) or len(x_shape) not in (dims + 1, dims + 2):
        raise ValueError(
            f"`{call.op.name}` needs an input of 3 or 4 dims and a weight of as many, got {x_shape} and {w_shape}"
        )
    single = len(x_shape) == dims + 1
    shape = _shape(call, (1, *x_shape) if single else x_shape, w_shape, stride, padding, dilation, groups)
    result = (shape.m, *shape.y[2 - dims :]) if single else (shape.n, shape.m, *shape.y[2 - dims :])
    if grad.shape_ != result:
        raise ValueError(f"`grad` of `{call.op.name}` must have the shape of the result, {result}, got {grad.shape_}")
    return shape


# ---- derivatives -------------------------------------------------------------------------------


def _conv_rule(f, g, input, weight, stride, padding, dilation, groups, need):
    options = stride, padding, dilation, groups
    dims = [d for d in range(g.ndim) if d != g.ndim - weight.ndim + 1]
    return (
        f.conv_input_backward(g, weight, input.shape, *options) if "input" in need else None,
        f.conv_weight_backward(g, input, weight.shape, *options) if "weight" in need else None,
        f.sum(g, dims) if "bias" in need else None,
    )


conv1d.grad("input", "weight", "bias")(_conv_rule)
conv2d.grad("input", "weight", "bias")(_conv_rule)


def _convolution(f, input, weight, *options):
    return (f.conv1d if weight.ndim == 3 else f.conv2d)(input, weight, None, *options)


@conv_input_backward.grad("grad", "weight")
def _(f, g, grad, weight, stride, padding, dilation, groups, need):
    options = stride, padding, dilation, groups
    return (
        _convolution(f, g, weight, *options) if "grad" in need else None,
        f.conv_weight_backward(grad, g, weight.shape, *options) if "weight" in need else None,
    )


@conv_weight_backward.grad("grad", "input")
def _(f, g, grad, input, stride, padding, dilation, groups, need):
    options = stride, padding, dilation, groups
    return (
        _convolution(f, input, g, *options) if "grad" in need else None,
        f.conv_input_backward(grad, g, input.shape, *options) if "input" in need else None,
    )
