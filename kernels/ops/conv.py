"""Convolutions (cross-correlations, as in PyTorch) of 1 and 2 dims, few channels of 3, and their derivatives.

A convolution of 1 dim is one of images of height 1. The gradients of the input and of the weight are rows of their
own, whose derivatives are convolutions again, so gradients of any order are fast.
"""

import numpy as np

from ..problems.conv import Convolution
from ..problems.window import Window
from ..table.registry import op
from ._layout import check
from ._window import count_windows, integers
from .copy import fill

# 16-bit results round once; before, a sum of k products rounds as sqrt(k) float32 additions.
_TOLERANCE = {"float32": (1e-5, 1e-4), "float64": (1e-12, 1e-12), "bfloat16": (1e-2, 4e-2), "float16": (2e-3, 4e-3)}


# ---- options -----------------------------------------------------------------------------------


def _paddings(call, padding, kernel, stride, dilation):
    """Padding (before, behind) the input, each for each dim."""
    dims = len(kernel)
    if not isinstance(padding, str):
        both = integers(call, padding, "padding", dims, 0)
        return both, both
    if padding == "valid":
        return (0,) * dims, (0,) * dims
    if padding != "same":
        raise ValueError(f"`padding` of `{call.op.name}` must be integers, 'same' or 'valid', got {padding!r}")
    if any(s != 1 for s in stride):
        raise ValueError(f"`padding='same'` of `{call.op.name}` needs stride 1, got {stride}: give integers")
    totals = [d * (k - 1) for d, k in zip(dilation, kernel)]
    return tuple(t // 2 for t in totals), tuple(t - t // 2 for t in totals)


def _problem(call, gradient, dtype, x_shape, w_shape, stride, padding, dilation, groups):
    """(the `Convolution` of [N, C, *] with [M, C / groups, *], the shape of its result); one dim has height 1."""
    dims = len(w_shape) - 2
    name = call.op.name
    stride, dilation = integers(call, stride, "stride", dims, 1), integers(call, dilation, "dilation", dims, 1)
    (groups,) = integers(call, groups, "groups", 1, 1)
    (n, c, *x), (m, per_group, *kernel) = x_shape, w_shape
    if m % groups or c != per_group * groups:
        raise ValueError(
            f"`{name}` needs a weight [M, C / groups, *kernel] with M a multiple of groups, got input "
            f"{tuple(x_shape)}, weight {tuple(w_shape)} and groups {groups}"
        )
    if min(kernel) < 1:
        raise ValueError(f"`weight` of `{name}` must have a kernel of at least one element, got {tuple(w_shape)}")
    before, behind = _paddings(call, padding, kernel, stride, dilation)
    window = Window(tuple(kernel), stride, before, dilation)
    y = count_windows(call, x, window, behind)
    shape = (n, m, *y)
    if dims == 1:
        window = Window((1, *kernel), (1, *stride), (0, *before), (1, *dilation))
        x, y = (1, *x), (1, *y)
    return Convolution(gradient, dtype.name, n, c, m, groups, tuple(x), y, window), shape


def _check_pair(call, first, second):
    for name, x in (first, second):
        check(call, x, name)
    if first[1].dtype is not second[1].dtype:
        raise TypeError(
            f"`{call.op.name}` needs one dtype, got {first[1].dtype.name} for `{first[0]}` and {second[1].dtype.name} "
            f"for `{second[0]}`: cast one of them with `.to()`"
        )


def _convolve(call, input, weight, bias, stride, padding, dilation, groups, dims):
    """The body of `conv1d`, `conv2d` and `conv_volumes`."""
    name = call.op.name
    _check_pair(call, ("input", input), ("weight", weight))
    if len(weight.shape_) != dims + 2 or len(input.shape_) not in (dims + 1, dims + 2):
        raise ValueError(
            f"`{name}` needs an input of {dims + 1} or {dims + 2} dims and a weight of {dims + 2}, got "
            f"{input.shape_} and {weight.shape_}"
        )
    single = len(input.shape_) == dims + 1
    x_shape = (1, *input.shape_) if single else input.shape_
    problem, shape = _problem(call, None, input.dtype, x_shape, weight.shape_, stride, padding, dilation, groups)
    if bias is not None:
        _check_pair(call, ("input", input), ("bias", bias))
        if bias.shape_ != shape[1:2]:
            raise ValueError(f"`bias` of `{name}` must have shape {shape[1:2]}, got {bias.shape_}")
        bias, problem = bias.contiguous(), problem._replace(bias=True)
    y = call.out(shape[1:] if single else shape, input.dtype)
    if y.numel_:
        call.run(problem, x=input.contiguous(), weight=weight.contiguous(), bias=bias, y=y)
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
    space, taps = "dhw"[:dims], "ijk"[:dims]
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


def _volumes_samples(rng):
    yield _place(rng, (2, 3, 4, 5, 6), (4, 3, 2, 3, 3), (4,), padding=1)
    yield _place(rng, (4, 5, 4, 6), (6, 2, 3, 2, 1), stride=(2, 1, 2), padding=(1, 0, 1), dilation=(2, 1, 1), groups=2)


@op(ref=_conv_ref, samples=_volumes_samples, tolerance=_TOLERANCE, amp="lower", step=True)
def conv_volumes(call, input, weight, bias=None, stride=1, padding=0, dilation=1, groups=1):
    """`conv3d` element by element, in one launch: what it is written with on GPUs where channels are few."""
    return _convolve(call, input, weight, bias, stride, padding, dilation, groups, 3)


@op(tolerance=_TOLERANCE, amp="lower")
def conv_input_backward(call, grad, weight, input_shape, stride=1, padding=0, dilation=1, groups=1):
    """The gradient of the input, of `input_shape`, from that of the result of a convolution of 1 to 3 dims.

    A transposed convolution: `grad` [N, M, *], `weight` [M, C / groups, *]; options as of the convolution.
    """
    _check_pair(call, ("grad", grad), ("weight", weight))
    input_shape = tuple(input_shape)
    problem = _backward(call, "input", grad, input_shape, weight.shape_, stride, padding, dilation, groups)
    y = call.out(input_shape, grad.dtype)
    if y.numel_:
        call.run(problem, x=grad.contiguous(), weight=weight.contiguous(), bias=None, y=y)
    return y


@op(tolerance=_TOLERANCE, amp="lower")
def conv_weight_backward(call, grad, input, weight_shape, stride=1, padding=0, dilation=1, groups=1):
    """The gradient of the weight, of `weight_shape`, from that of the result of a convolution of 1 or 2 dims.

    `grad` [N, M, *], `input` [N, C, *]; options as of the convolution. Places are summed in float32 (float64 for
    float64) in an order that the sizes alone determine, so the result does not depend on the number of threads.
    """
    _check_pair(call, ("grad", grad), ("input", input))
    weight_shape = tuple(weight_shape)
    problem = _backward(call, "weight", grad, input.shape_, weight_shape, stride, padding, dilation, groups)
    y = call.out(weight_shape, grad.dtype)
    if y.numel_ and grad.numel_:
        call.run(problem, x=input.contiguous(), g=grad.contiguous(), dw=y)
    else:
        fill(call, y, 0)
    return y


def _backward(call, gradient, grad, x_shape, w_shape, stride, padding, dilation, groups):
    """The problem of a gradient of a convolution whose result has the shape of `grad`."""
    dims = len(w_shape) - 2
    most = 3 if gradient == "input" else 2
    if not 0 < dims <= most or len(x_shape) not in (dims + 1, dims + 2):
        raise ValueError(
            f"`{call.op.name}` needs an input of 3 to {most + 2} dims and a weight of as many, got {x_shape} and "
            f"{w_shape}"
        )
    single = len(x_shape) == dims + 1
    x_shape = (1, *x_shape) if single else x_shape
    problem, shape = _problem(call, gradient, grad.dtype, x_shape, w_shape, stride, padding, dilation, groups)
    shape = shape[1:] if single else shape
    if grad.shape_ != shape:
        raise ValueError(f"`grad` of `{call.op.name}` must have the shape of the result, {shape}, got {grad.shape_}")
    return problem


# ---- derivatives -------------------------------------------------------------------------------


def _weight_rule(f, g, input, weight, *options):
    """The gradient of a weight; of volumes by the planes that each layer of results meets."""
    if weight.ndim < 5:
        return f.conv_weight_backward(g, input, weight.shape, *options)
    stride, padding, dilation, groups = (_each(option) for option in options)
    if padding == "same":
        totals = [d * (k - 1) for d, k in zip(dilation, weight.shape[2:])]
        input = f.pad(input, [side for t in totals[::-1] for side in (t // 2, t - t // 2)])
    elif padding != "valid":
        input = f.pad(input, [p for p in padding[::-1] for _ in (0, 1)])
    g, input = (x if x.ndim == 5 else x.unsqueeze(0) for x in (g, input))
    planes = planes_of(f, input, weight.shape[2], g.shape[2], stride[0], dilation[0])
    g = g.transpose(1, 2).flatten(0, 1)
    flat = (weight.shape[0], weight.shape[1] * weight.shape[2], *weight.shape[3:])
    dw = f.conv_weight_backward(g, planes, flat, stride[1:], 0, dilation[1:], groups[0])
    return dw.reshape(weight.shape)


def _each(option):
    """An option of three dims as a tuple."""
    return option if isinstance(option, str) else (option,) * 3 if np.ndim(option) == 0 else tuple(option)


def planes_of(f, input, taps, layers, stride, dilation):
    """[N layers, C taps, H, W]: the planes of an input [N, C, D, H, W] that each layer of results meets."""
    reach = (layers - 1) * stride + 1
    rows = [input[:, :, k * dilation : k * dilation + reach : stride].transpose(1, 2) for k in range(taps)]
    n, c, _, h, w = input.shape
    return f.stack(rows, 3).reshape(n * layers, c * taps, h, w)


def _conv_rule(f, g, input, weight, stride, padding, dilation, groups, need):
    options = stride, padding, dilation, groups
    dims = [d for d in range(g.ndim) if d != g.ndim - weight.ndim + 1]
    return (
        f.conv_input_backward(g, weight, input.shape, *options) if "input" in need else None,
        _weight_rule(f, g, input, weight, *options) if "weight" in need else None,
        f.sum(g, dims) if "bias" in need else None,
    )


conv1d.grad("input", "weight", "bias")(_conv_rule)
conv2d.grad("input", "weight", "bias")(_conv_rule)
conv_volumes.grad("input", "weight", "bias")(_conv_rule)


def _convolution(f, input, weight, *options):
    return (f.conv1d, f.conv2d, f.conv_volumes)[weight.ndim - 3](input, weight, None, *options)


@conv_input_backward.grad("grad", "weight")
def _(f, g, grad, weight, stride, padding, dilation, groups, need):
    options = stride, padding, dilation, groups
    return (
        _convolution(f, g, weight, *options) if "grad" in need else None,
        _weight_rule(f, grad, g, weight, *options) if "weight" in need else None,
    )


@conv_weight_backward.grad("grad", "input")
def _(f, g, grad, input, stride, padding, dilation, groups, need):
    options = stride, padding, dilation, groups
    return (
        _convolution(f, input, g, *options) if "grad" in need else None,
        f.conv_input_backward(grad, g, input.shape, *options) if "input" in need else None,
    )
