"""Pooling over windows of [N, C, L] and [N, C, H, W], or without N: maxima and means."""

import itertools

import numpy as np

from ..table.registry import op
from ._layout import check, product
from .conv import sizes

_GRAIN = 1 << 14  # elements of planes read: some 10 us
_TOLERANCE = {"bfloat16": (1e-2, 1e-3)}


# ---- options -----------------------------------------------------------------------------------


def _results(call, x, kernel, stride, padding, dilation, ceil_mode):
    """Windows along each dim. With `ceil_mode`, also one that reaches beyond the padding, if it begins before it."""
    found = []
    for size, k, s, p, d in zip(x, kernel, stride, padding, dilation):
        if 2 * p > d * (k - 1) + 1:
            raise ValueError(
                f"`padding` of `{call.op.name}` must be at most half of the window, got {padding} and kernel {kernel}"
            )
        room = size + 2 * p - d * (k - 1) - 1
        count = (room + (s - 1 if ceil_mode else 0)) // s + 1
        if ceil_mode and (count - 1) * s >= size + p:
            count -= 1
        if count < 1 or (room < 0 and not ceil_mode) or size < 1:
            raise ValueError(
                f"`{call.op.name}` needs an input, with its padding, as large as the window, got size {tuple(x)}, "
                f"kernel {kernel}, padding {padding}, dilation {dilation}"
            )
        if d > 1:
            for i in range(count):
                if not any(0 <= i * s - p + j * d < size for j in range(k)):
                    raise ValueError(
                        f"window {i} of `{call.op.name}` holds padding only, with size {tuple(x)}, kernel {kernel}, "
                        f"padding {padding}, dilation {dilation}: use less dilation"
                    )
        found.append(count)
    return found


def _planes(call, input, dims):
    """(leading dims, sizes of a plane) of an input with `dims` dims of space behind one or two others."""
    check(call, input, "input")
    shape = input.shape_
    if len(shape) not in (dims + 1, dims + 2):
        raise ValueError(f"`input` of `{call.op.name}` must have {dims + 1} or {dims + 2} dims, got shape {shape}")
    return shape[:-dims], shape[-dims:]


def _block(x_size, y_size, kernel=(1, 1), stride=(1, 1), padding=(0, 0), dilation=(1, 1)):
    """The argument block behind the addresses; one dim becomes rows of height 1."""
    values = []
    for pair, rest in (x_size, 1), (y_size, 1), (kernel, 1), (stride, 1), (padding, 0), (dilation, 1):
        values += [rest, *pair] if len(pair) == 1 else [*pair]
    return values


def _launch(call, kernel, types, tensors, block, planes, scratch_item=0, options=()):
    """Launch a kernel over planes: `tensors` are the first three arguments; a plane of sums per thread if asked."""
    size = block[0] * block[1]
    args = [0 if t is None else t.address for t in tensors] + block
    keep = [*tensors]
    if scratch_item:
        slice_bytes = -(-(size * scratch_item) // 64) * 64 + 64
        per_thread = -(-planes // call.threads)
        scratch = call.scratch(-(-planes // per_thread) * slice_bytes)
        keep.append(scratch)
        args += [scratch.address, slice_bytes, per_thread]
    else:
        args += [0, 0, 0]
    args += options
    work = size + block[2] * block[3] * block[4] * block[5]
    call.launch_at(f"conv.pooling.{kernel}", types, args, planes, max(1, _GRAIN // max(1, work)), tuple(keep))


def _sum_item(dtype):
    return 8 if dtype.itemsize == 8 else 4


# ---- maxima ------------------------------------------------------------------------------------


def _max_pool(call, input, kernel_size, stride, padding, dilation, ceil_mode, return_indices, dims):
    lead, size = _planes(call, input, dims)
    kernel = sizes(call, kernel_size, "kernel_size", dims, 1)
    stride = kernel if stride is None else sizes(call, stride, "stride", dims, 1)
    padding, dilation = sizes(call, padding, "padding", dims, 0), sizes(call, dilation, "dilation", dims, 1)
    result = (*lead, *_results(call, size, kernel, stride, padding, dilation, ceil_mode))
    y = call.out(result, input.dtype)
    places = call.empty(result, "uint8" if product(kernel) <= 256 else "int32")
    window = kernel, stride, padding, dilation
    if call.training:
        call.save(places=places, size=input.shape_, window=window)
    x, planes = input.contiguous(), product(lead)
    block = _block(size, result[-dims:], *window)
    types = {"T": input.dtype.name, "I": places.dtype.name}
    name = "max_pool_2" if _tiles(size, result[-dims:], window) else "max_pool"
    _launch(call, name, types, (x, y, places), block, planes)
    if not return_indices:
        return y
    indices = call.out(result, "int64", key="indices")
    _launch(call, "max_positions", {"I": types["I"]}, (indices, None, places), block, planes)
    return y, indices


def _tiles(x_size, y_size, window):
    """Whether windows of 2 x 2 tile the plane."""
    inside = all(2 * y <= x for x, y in zip(x_size, y_size))
    return window == ((2, 2), (2, 2), (0, 0), (1, 1)) and inside


def _windows(input, kernel, stride, padding, dilation, count, value):
    """Windows [..., places, taps] of an array, padded with `value`, and the index of each element (-1: padding)."""
    dims = len(kernel)
    size = input.shape[-dims:]
    index = np.arange(product(size)).reshape(size)
    behind = [
        max(0, (n - 1) * s + d * (k - 1) + 1 - x - p)
        for n, s, d, k, x, p in zip(count, stride, dilation, kernel, size, padding)
    ]
    pads = list(zip(padding, behind))
    x = np.pad(input, [(0, 0)] * (input.ndim - dims) + pads, constant_values=value)
    index = np.pad(index, pads, constant_values=-1)
    spans = [d * (k - 1) + 1 for d, k in zip(dilation, kernel)]
    steps = [slice(None, (n - 1) * s + 1, s) for n, s in zip(count, stride)] + [slice(None, None, d) for d in dilation]
    found = []
    for a in (x, index):
        axes = tuple(range(a.ndim - dims, a.ndim))
        view = np.lib.stride_tricks.sliding_window_view(a, spans, axis=axes)
        view = view[(*[slice(None)] * (a.ndim - dims), *steps)]
        found.append(view.reshape(*view.shape[:-dims], -1))
    return found


def _counts(size, kernel, stride, padding, dilation, ceil_mode):
    found = []
    for n, k, s, p, d in zip(size, kernel, stride, padding, dilation):
        count = (n + 2 * p - d * (k - 1) - 1 + (s - 1 if ceil_mode else 0)) // s + 1
        found.append(count - (ceil_mode and (count - 1) * s >= n + p))
    return found


def _as_pair(value, dims):
    return (int(value),) * dims if np.ndim(value) == 0 else tuple(int(v) for v in value)


def _max_pool_ref(dims):
    def ref(input, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False, return_indices=False):
        kernel, padding, dilation = (_as_pair(v, dims) for v in (kernel_size, padding, dilation))
        stride = kernel if stride is None else _as_pair(stride, dims)
        count = _counts(input.shape[-dims:], kernel, stride, padding, dilation, ceil_mode)
        x, index = _windows(input, kernel, stride, padding, dilation, count, -np.inf)
        best = x.argmax(-1)
        y = np.take_along_axis(x, best[..., None], -1)[..., 0]
        positions = np.take_along_axis(np.broadcast_to(index, x.shape), best[..., None], -1)[..., 0]
        return (y, positions) if return_indices else y

    return ref


def _distinct(rng, *shape):
    """Values without ties, exact in every float: multiples of 1/4 (256 of them, shuffled for each plane)."""
    n = product(shape)
    return (np.stack([rng.permutation(256) for _ in range(-(-n // 256))]).reshape(-1)[:n].reshape(shape) - 128) / 4


def _max_pool2d_samples(rng):
    yield (_distinct(rng, 2, 3, 8, 10), 2), {}
    yield (_distinct(rng, 1, 2, 7, 37), 3), {"stride": 1, "padding": 1}
    yield (_distinct(rng, 3, 9, 40), (3, 2)), {"stride": (2, 1), "padding": (1, 0), "dilation": (1, 2)}
    yield (_distinct(rng, 1, 2, 9, 75), 3), {"stride": 2, "ceil_mode": True, "return_indices": True}
    yield (_distinct(rng, 2, 1, 5, 5), 2), {"return_indices": True}


def _max_pool1d_samples(rng):
    yield (_distinct(rng, 2, 3, 50), 3), {"stride": 2, "padding": 1}
    yield (_distinct(rng, 3, 12), 4), {"ceil_mode": True, "stride": 3}


def _pool_grad_samples(rng):
    yield (_distinct(rng, 1, 2, 4, 6), 2), {}
    yield (_distinct(rng, 2, 5, 7), 3), {"stride": 2, "padding": 1}


def _pool1d_grad_samples(rng):
    yield (_distinct(rng, 2, 3, 9), 3), {"stride": 2, "padding": 1}


@op(
    ref=_max_pool_ref(2),
    samples=_max_pool2d_samples,
    grad_samples=_pool_grad_samples,
    outputs=("out", "indices"),
)
def max_pool2d(call, input, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False, return_indices=False):
    """The maximum of each window of `input` [N, C, H, W] or [C, H, W]; NaN counts as the maximum.

    `kernel_size`, `stride` (None: the kernel's), `padding` (of minus infinity) and `dilation` are an integer or two.
    With `ceil_mode` the last windows may reach beyond the padding. With `return_indices`, a pair with the int64
    positions of the (first) maxima in their planes.
    """
    return _max_pool(call, input, kernel_size, stride, padding, dilation, ceil_mode, return_indices, 2)


@op(
    ref=_max_pool_ref(1),
    samples=_max_pool1d_samples,
    grad_samples=_pool1d_grad_samples,
    outputs=("out", "indices"),
)
def max_pool1d(call, input, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False, return_indices=False):
    """The maximum of each window of `input` [N, C, L] or [C, L]; the rest as for `max_pool2d`."""
    return _max_pool(call, input, kernel_size, stride, padding, dilation, ceil_mode, return_indices, 1)


@op(gradient=None)
def max_pool_backward(call, grad, places, input_shape, window):
    """The gradient of the input of a `max_pool` from that of the result and the tap of each maximum (saved by it).

    `window` is (kernel, stride, padding, dilation), each an integer for each dim.
    """
    check(call, grad, "grad")
    y = call.out(input_shape, grad.dtype)
    dims = len(window[0])
    block = _block(y.shape_[-dims:], grad.shape_[-dims:], *window)
    types = {"T": grad.dtype.name, "I": places.dtype.name}
    tensors, planes = (y, grad.contiguous(), places), product(grad.shape_[:-dims])
    if _tiles(y.shape_[-dims:], grad.shape_[-dims:], window):
        _launch(call, "max_pool_2_backward", types, tensors, block, planes)
    else:
        _launch(call, "max_pool_backward", types, tensors, block, planes, _sum_item(y.dtype))
    return y


@op(dtypes=("uint8", "int32"), gradient=None)
def max_pool_positions(call, places, input_shape, window):
    """int64 positions in their planes of maxima, whose taps `places` holds; `window` as of `max_pool_backward`."""
    check(call, places, "places")
    dims = len(window[0])
    y = call.out(places.shape_, "int64")
    block = _block(input_shape[-dims:], places.shape_[-dims:], *window)
    planes = product(places.shape_[:-dims])
    _launch(call, "max_positions", {"I": places.dtype.name}, (y, None, places.contiguous()), block, planes)
    return y


@op()
def positions_backward(call, grad, positions, input_shape, dims=2):
    """The gradient of planes of which elements at int64 `positions` (of the shape of `grad`) were chosen.

    The planes are the last `dims` dims of `input_shape`; elements chosen several times get the sum.
    """
    check(call, grad, "grad")
    y = call.out(input_shape, grad.dtype)
    block = _block((product(y.shape_[-dims:]),), (product(grad.shape_[-dims:]),))
    tensors = y, grad.contiguous(), positions.contiguous()
    planes = product(grad.shape_[:-dims])
    _launch(call, "positions_backward", {"T": grad.dtype.name}, tensors, block, planes, _sum_item(y.dtype))
    return y


@positions_backward.grad("grad")
def _(f, g, positions, dims):
    planes = product(positions.shape[:-dims])
    return f.gather(g.reshape(planes, -1), 1, positions.reshape(planes, -1)).reshape(positions.shape)


def _max_pool_rule(f, g, places, size, window, create_graph):
    if create_graph:
        positions = f.max_pool_positions(places, size, window)
        return f.positions_backward(g, positions, size, len(window[0]))
    return f.max_pool_backward(g, places, size, window)


max_pool1d.grad("input")(_max_pool_rule)
max_pool2d.grad("input")(_max_pool_rule)


# ---- means -------------------------------------------------------------------------------------


def _avg_window(call, kernel_size, stride, padding, dims):
    kernel = sizes(call, kernel_size, "kernel_size", dims, 1)
    stride = kernel if stride is None else sizes(call, stride, "stride", dims, 1)
    return kernel, stride, sizes(call, padding, "padding", dims, 0), (1,) * dims


def _divisor(call, count_include_pad, divisor_override):
    if divisor_override is not None and divisor_override <= 0:
        raise ValueError(f"`divisor_override` of `{call.op.name}` must be positive, got {divisor_override}")
    return int(bool(count_include_pad)), divisor_override or 0


def _avg_pool(call, input, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override, dims):
    lead, size = _planes(call, input, dims)
    window = _avg_window(call, kernel_size, stride, padding, dims)
    result = (*lead, *_results(call, size, *window, ceil_mode))
    options = _divisor(call, count_include_pad, divisor_override)
    y = call.out(result, input.dtype)
    if call.training:
        call.save(size=input.shape_, kernel=window[0])
    types = {"T": input.dtype.name, "ADAPTIVE": False}
    block = _block(size, result[-dims:], *window)
    _launch(call, "mean_pool", types, (input.contiguous(), y, None), block, product(lead), options=options)
    return y


def _avg_pool_ref(dims):
    def ref(input, kernel_size, stride=None, padding=0, ceil_mode=False, count_include_pad=True, divisor_override=None):
        kernel, padding = _as_pair(kernel_size, dims), _as_pair(padding, dims)
        stride = kernel if stride is None else _as_pair(stride, dims)
        ones = (1,) * dims
        count = _counts(input.shape[-dims:], kernel, stride, padding, ones, ceil_mode)
        x, index = _windows(input, kernel, stride, padding, ones, count, 0.0)
        divisor = (index >= 0).sum(-1)
        if count_include_pad:
            inside = []
            for n, k, s, p, c in zip(input.shape[-dims:], kernel, stride, padding, count):
                start = np.arange(c) * s - p
                inside.append(np.minimum(start + k, n + p) - start)
            divisor = inside[0] if dims == 1 else np.outer(*inside)
        return x.sum(-1) / (divisor_override or divisor)

    return ref


def _avg_pool2d_samples(rng):
    yield (rng.standard_normal((2, 3, 8, 10)), 2), {}
    options = {"stride": 2, "padding": 1}
    for extra in ({}, {"ceil_mode": True}, {"count_include_pad": False, "ceil_mode": True}, {"divisor_override": 5}):
        yield (rng.standard_normal((2, 7, 9)), (3, 2)), {**options, **extra}


def _avg_pool1d_samples(rng):
    yield (rng.standard_normal((2, 3, 21)), 4), {"stride": 3, "padding": 2}
    yield (rng.standard_normal((3, 22)), 4), {"ceil_mode": True, "count_include_pad": False, "padding": 1}


@op(ref=_avg_pool_ref(2), samples=_avg_pool2d_samples, tolerance=_TOLERANCE)
def avg_pool2d(
    call, input, kernel_size, stride=None, padding=0, ceil_mode=False, count_include_pad=True, divisor_override=None
):
    """The mean of each window of `input` [N, C, H, W] or [C, H, W].

    `kernel_size`, `stride` (None: the kernel's) and `padding` (of zeros) are an integer or two. The sum is divided by
    `divisor_override`, else by the elements of the window inside the input, and with `count_include_pad` its padding.
    """
    return _avg_pool(call, input, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override, 2)


@op(ref=_avg_pool_ref(1), samples=_avg_pool1d_samples, tolerance=_TOLERANCE)
def avg_pool1d(call, input, kernel_size, stride=None, padding=0, ceil_mode=False, count_include_pad=True):
    """The mean of each window of `input` [N, C, L] or [C, L]; the rest as for `avg_pool2d`."""
    return _avg_pool(call, input, kernel_size, stride, padding, ceil_mode, count_include_pad, None, 1)


@op()
def avg_pool_backward(
    call, grad, input_shape, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override=None
):
    """The gradient of the input of an `avg_pool`, of `input_shape`; `kernel_size` has an integer for each dim."""
    check(call, grad, "grad")
    dims = len(kernel_size)
    window = _avg_window(call, kernel_size, stride, padding, dims)
    options = _divisor(call, count_include_pad, divisor_override)
    y = call.out(input_shape, grad.dtype)
    block = _block(y.shape_[-dims:], grad.shape_[-dims:], *window)
    types, planes = {"T": grad.dtype.name, "ADAPTIVE": False}, product(grad.shape_[:-dims])
    tensors = y, grad.contiguous(), None
    _launch(call, "mean_pool_backward", types, tensors, block, planes, _sum_item(y.dtype), options)
    return y


@avg_pool1d.grad("input")
def _(f, g, size, kernel, stride, padding, ceil_mode, count_include_pad):
    return f.avg_pool_backward(g, size, kernel, stride, padding, ceil_mode, count_include_pad)


@avg_pool2d.grad("input")
def _(f, g, size, kernel, stride, padding, ceil_mode, count_include_pad, divisor_override):
    return f.avg_pool_backward(g, size, kernel, stride, padding, ceil_mode, count_include_pad, divisor_override)


@avg_pool_backward.grad("grad")
def _(f, g, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override):
    options = kernel_size, stride, padding, ceil_mode, count_include_pad
    return f.avg_pool1d(g, *options) if len(kernel_size) == 1 else f.avg_pool2d(g, *options, divisor_override)


# ---- cells that share out the input --------------------------------------------------------------


def _cells(call, output_size, size):
    """The sizes of the result; None keeps that of the input."""
    values = output_size if isinstance(output_size, (tuple, list)) else (output_size,) * 2
    if len(values) != 2:
        raise ValueError(f"`output_size` of `{call.op.name}` must be an integer or two, got {output_size!r}")
    found = [n if value is None else value for value, n in zip(values, size)]
    if 0 in size:
        raise ValueError(f"`{call.op.name}` needs planes with elements, got size {tuple(size)}")
    return sizes(call, found, "output_size", 2, 1)


def _cell_ranges(size, count):
    return [(i * size // count, -(-(i + 1) * size // count)) for i in range(count)]


def _adaptive_ref(function):
    def ref(input, output_size, return_indices=False):
        H, W = input.shape[-2:]
        OH, OW = (n if v is None else int(v) for v, n in zip(_listed(output_size), (H, W)))
        y, places = np.empty((*input.shape[:-2], OH, OW)), np.empty((*input.shape[:-2], OH, OW), np.int64)
        ranges = itertools.product(enumerate(_cell_ranges(H, OH)), enumerate(_cell_ranges(W, OW)))
        for (i, (a, a_past)), (j, (b, b_past)) in ranges:
            part = input[..., a:a_past, b:b_past]
            y[..., i, j] = function(part, axis=(-2, -1))
            best = part.reshape(*part.shape[:-2], -1).argmax(-1)
            places[..., i, j] = (a + best // (b_past - b)) * W + b + best % (b_past - b)
        return (y, places) if return_indices else y

    return ref


def _listed(value):
    return value if isinstance(value, (tuple, list)) else (value, value)


def _adaptive_avg_samples(rng):
    for size in (3, (1, 1), (5, None), (9, 4)):
        yield (rng.standard_normal((2, 3, 7, 10)), size), {}
    yield (rng.standard_normal((3, 8, 8)), 4), {}


@op(ref=_adaptive_ref(np.mean), samples=_adaptive_avg_samples, tolerance=_TOLERANCE)
def adaptive_avg_pool2d(call, input, output_size):
    """Means of `output_size` (an integer or two; None keeps a size) cells of `input` [N, C, H, W] or [C, H, W].

    Cell i of n covers [floor(i H / n), ceil((i + 1) H / n)): cells overlap where n does not divide H.
    """
    lead, size = _planes(call, input, 2)
    cells = _cells(call, output_size, size)
    y = call.out((*lead, *cells), input.dtype)
    if call.training:
        call.save(size=input.shape_)
    types, block = {"T": input.dtype.name, "ADAPTIVE": True}, _block(size, cells)
    _launch(call, "mean_pool", types, (input.contiguous(), y, None), block, product(lead), options=(0, 0))
    return y


@op()
def adaptive_avg_pool_backward(call, grad, input_shape):
    """The gradient of the input of `adaptive_avg_pool2d`, of `input_shape`."""
    check(call, grad, "grad")
    y = call.out(input_shape, grad.dtype)
    types, block = {"T": grad.dtype.name, "ADAPTIVE": True}, _block(y.shape_[-2:], grad.shape_[-2:])
    tensors, planes = (y, grad.contiguous(), None), product(grad.shape_[:-2])
    _launch(call, "mean_pool_backward", types, tensors, block, planes, _sum_item(y.dtype), (0, 0))
    return y


@adaptive_avg_pool2d.grad("input")
def _(f, g, size):
    return f.adaptive_avg_pool_backward(g, size)


@adaptive_avg_pool_backward.grad("grad")
def _(f, g, grad):
    return f.adaptive_avg_pool2d(g, tuple(grad.shape[-2:]))


def _adaptive_max_samples(rng):
    for size, indices in ((3, False), ((5, None), True), ((1, 4), False)):
        yield (_distinct(rng, 2, 3, 7, 10), size), {"return_indices": indices}


def _adaptive_max_grad_samples(rng):
    yield (_distinct(rng, 1, 2, 5, 7), (2, 3)), {}


@op(
    ref=_adaptive_ref(np.max),
    samples=_adaptive_max_samples,
    grad_samples=_adaptive_max_grad_samples,
    outputs=("out", "indices"),
)
def adaptive_max_pool2d(call, input, output_size, return_indices=False):
    """Maxima of cells as of `adaptive_avg_pool2d`; with `return_indices` a pair with their int64 positions."""
    lead, size = _planes(call, input, 2)
    cells = _cells(call, output_size, size)
    y = call.out((*lead, *cells), input.dtype)
    positions = call.out(y.shape_, "int64", key="indices") if return_indices else call.empty(y.shape_, "int64")
    if call.training:
        call.save(positions=positions, size=input.shape_)
    block = _block(size, cells)
    tensors = input.contiguous(), y, positions
    _launch(call, "adaptive_max", {"T": input.dtype.name}, tensors, block, product(lead))
    return (y, positions) if return_indices else y


@adaptive_max_pool2d.grad("input")
def _(f, g, positions, size):
    return f.positions_backward(g, positions, size)
