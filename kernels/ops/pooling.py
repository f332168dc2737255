"""Pooling over windows of 1 to 3 dims of space, [N, C, *] or without N: maxima and means.

Each function here declares an op for every number of dims; what they do is the same.
"""

import functools
import itertools

import numpy as np

from ..problems.pooling import Pool
from ..problems.reduce import Reduce
from ..problems.window import Window
from ..table.registry import FLOATS, INTEGERS, op
from ._layout import check, product
from ._window import count_windows, integers, read_window
from .reduce import mean

_TOLERANCE = {"bfloat16": (1e-2, 1e-3)}
_SPACE = {1: "L", 2: "H, W", 3: "D, H, W"}
_LARGE = 64  # elements of a cell from which a mean is a reduction of dims
_SIZES = {1: "an integer", 2: "an integer or two", 3: "an integer or three"}


def _declare(name, dims, **row):
    """The row of the op `<name><dims>d`, whose docstring may mention {space} and {sizes}."""

    def declare(paragraph):
        paragraph.__name__ = f"{name}{dims}d"
        paragraph.__doc__ = paragraph.__doc__.format(space=_SPACE[dims], sizes=_SIZES[dims])
        return op(**row)(paragraph)

    return declare


# ---- options -----------------------------------------------------------------------------------


def _planes(call, input, dims, channels="always"):
    """(leading dims, sizes of a plane) of an input with `dims` dims of space behind one or two others.

    Of the sizes, that of a batch may be 0, and that of the channels too where `channels` are needed "never", or only
    "in batches".
    """
    check(call, input, "input")
    shape = input.shape_
    if len(shape) not in (dims + 1, dims + 2):
        raise ValueError(f"`input` of `{call.op.name}` must have {dims + 1} or {dims + 2} dims, got shape {shape}")
    needed = channels == "always" or (channels == "in batches" and len(shape) == dims + 2)
    if 0 in shape[-dims - needed :]:
        raise ValueError(f"`input` of `{call.op.name}` must have no size of 0 but that of its batch, got shape {shape}")
    return shape[:-dims], shape[-dims:]


def _results(call, size, window, ceil_mode):
    """Windows along each dim."""
    found = count_windows(call, size, window, ceil_mode=ceil_mode)
    for n, count, k, s, p, d in zip(size, found, *window):
        if 2 * p > d * (k - 1) + 1:
            raise ValueError(
                f"`padding` of `{call.op.name}` must be at most half of the window, got {window.padding} and kernel "
                f"{window.kernel}"
            )
        # Taps of a window that begins before the input meet it at (i * s - p) % d, if at all.
        for i in range(min(count, -(-p // s)) if d > n else 0):
            if (i * s - p) % d >= n:
                raise ValueError(
                    f"window {i} of `{call.op.name}` holds padding only, with size {size}, kernel {window.kernel}, "
                    f"padding {window.padding}, dilation {window.dilation}: use less dilation"
                )
    if product(window.kernel) >= 2**31:
        raise ValueError(f"`kernel_size` of `{call.op.name}` must have fewer than 2**31 elements, got {window.kernel}")
    return found


# ---- references and samples --------------------------------------------------------------------


def _windows(input, window, count, value):
    """Windows [..., places, taps] of an array, padded with `value`, and the index of each element (-1: padding)."""
    dims = len(count)
    size = input.shape[-dims:]
    index = np.arange(product(size)).reshape(size)
    behind = [max(0, (n - 1) * s + d * (k - 1) + 1 - x - p) for n, x, k, s, p, d in zip(count, size, *window)]
    pads = list(zip(window.padding, behind))
    x = np.pad(input, [(0, 0)] * (input.ndim - dims) + pads, constant_values=value)
    index = np.pad(index, pads, constant_values=-1)
    spans = [d * (k - 1) + 1 for d, k in zip(window.dilation, window.kernel)]
    steps = [slice(None, (n - 1) * s + 1, s) for n, s in zip(count, window.stride)]
    steps += [slice(None, None, d) for d in window.dilation]
    found = []
    for a in (x, index):
        axes = tuple(range(a.ndim - dims, a.ndim))
        view = np.lib.stride_tricks.sliding_window_view(a, spans, axis=axes)
        view = view[(*[slice(None)] * (a.ndim - dims), *steps)]
        found.append(view.reshape(*view.shape[:-dims], -1))
    return found


def _counts(size, window, ceil_mode):
    found = []
    for n, k, s, p, d in zip(size, *window):
        count = (n + 2 * p - d * (k - 1) - 1 + (s - 1 if ceil_mode else 0)) // s + 1
        found.append(count - (ceil_mode and (count - 1) * s >= n + p))
    return found


def _listed(value, dims):
    return (value,) * dims if np.ndim(value) == 0 else tuple(value)


def _window_of(dims, kernel, stride, padding, dilation=1):
    options = (kernel, kernel if stride is None else stride, padding, dilation)
    return Window(*(tuple(int(v) for v in _listed(value, dims)) for value in options))


def _max_pool_ref(dims):
    def ref(input, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False, return_indices=False):
        window = _window_of(dims, kernel_size, stride, padding, dilation)
        x, index = _windows(input, window, _counts(input.shape[-dims:], window, ceil_mode), -np.inf)
        best = x.argmax(-1)
        y = np.take_along_axis(x, best[..., None], -1)[..., 0]
        positions = np.take_along_axis(np.broadcast_to(index, x.shape), best[..., None], -1)[..., 0]
        return (y, positions) if return_indices else y

    return ref


def _avg_pool_ref(dims):
    def ref(input, kernel_size, stride=None, padding=0, ceil_mode=False, count_include_pad=True, divisor_override=None):
        window = _window_of(dims, kernel_size, stride, padding)
        count = _counts(input.shape[-dims:], window, ceil_mode)
        x, index = _windows(input, window, count, 0.0)
        divisor = (index >= 0).sum(-1)
        if count_include_pad:
            lengths = []
            for n, c, k, s, p, _ in zip(input.shape[-dims:], count, *window):
                start = np.arange(c) * s - p
                lengths.append(np.minimum(start + k, n + p) - start)
            divisor = functools.reduce(np.multiply.outer, lengths)
        return x.sum(-1) / (divisor_override or divisor)

    return ref


def _adaptive_ref(function, dims):
    def ref(input, output_size, return_indices=False):
        size = input.shape[-dims:]
        cells = [n if v is None else int(v) for v, n in zip(_listed(output_size, dims), size)]
        y, places = (np.empty((*input.shape[:-dims], *cells), kind) for kind in (input.dtype, np.int64))
        index = np.broadcast_to(np.arange(product(size)).reshape(size), input.shape)
        for cell in itertools.product(*map(range, cells)):
            part = tuple(slice(i * n // c, -(-(i + 1) * n // c)) for i, n, c in zip(cell, size, cells))
            x, at = (a[(..., *part)].reshape(*a.shape[:-dims], -1) for a in (input, index))
            y[(..., *cell)] = function(x, axis=-1)
            places[(..., *cell)] = np.take_along_axis(at, x.argmax(-1)[..., None], -1)[..., 0]
        return (y, places) if return_indices else y

    return ref


def _distinct(rng, shape):
    """Values without ties, exact in every float: multiples of 1/4 (256 of them, shuffled for each plane)."""
    n = product(shape)
    return (np.stack([rng.permutation(256) for _ in range(-(-n // 256))]).reshape(-1)[:n].reshape(shape) - 128) / 4


def _normal(rng, shape):
    return rng.standard_normal(shape)


def _samples(values, rows):
    """`samples` of (shape, size of windows or results, options)."""

    def samples(rng):
        for shape, size, options in rows:
            yield (values(rng, shape), size), options

    return samples


# ---- maxima ------------------------------------------------------------------------------------

_MAX_SAMPLES = {
    1: [((2, 3, 50), 3, {"stride": 2, "padding": 1}), ((3, 12), 4, {"ceil_mode": True, "stride": 3})],
    2: [
        ((2, 3, 8, 10), 2, {}),
        ((1, 2, 7, 37), 3, {"stride": 1, "padding": 1}),
        ((3, 9, 40), (3, 2), {"stride": (2, 1), "padding": (1, 0), "dilation": (1, 2)}),
        ((1, 2, 9, 75), 3, {"stride": 2, "ceil_mode": True, "return_indices": True}),
        ((2, 1, 5, 5), 2, {"return_indices": True}),
    ],
    3: [
        ((2, 2, 4, 6, 9), 2, {}),
        ((1, 4, 5, 38), 3, {"stride": 1, "padding": 1, "return_indices": True}),
        ((2, 5, 6, 40), (2, 3, 2), {"stride": (1, 2, 2), "padding": (1, 0, 1), "dilation": (2, 1, 2)}),
        ((1, 2, 4, 5, 7), 3, {"stride": 2, "ceil_mode": True}),
    ],
}
_MAX_GRAD_SAMPLES = {
    1: [((2, 3, 9), 3, {"stride": 2, "padding": 1})],
    2: [((1, 2, 4, 6), 2, {}), ((2, 5, 7), 3, {"stride": 2, "padding": 1})],
    3: [((1, 2, 3, 4, 5), 2, {"stride": 1, "padding": (1, 0, 1)})],
}


def _max_pool(dims):
    @_declare(
        "max_pool",
        dims,
        dtypes=(*FLOATS, *INTEGERS),
        ref=_max_pool_ref(dims),
        samples=_samples(_distinct, _MAX_SAMPLES[dims]),
        grad_samples=_samples(_distinct, _MAX_GRAD_SAMPLES[dims]),
        outputs=("out", "indices"),
    )
    def row(call, input, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False, return_indices=False):
        """The maximum of each window of `input` [N, C, {space}] or [C, {space}]; NaN counts as the maximum.

        `kernel_size`, `stride` (None: the kernel's), `padding` (of minus infinity) and `dilation` are {sizes}.
        With `ceil_mode` the last windows may reach beyond the padding. With `return_indices`, a pair with the int64
        positions of the (first) maxima in their planes.
        """
        lead, size = _planes(call, input, dims)
        window = read_window(call, dims, kernel_size, stride, padding, dilation)
        cells = _results(call, size, window, ceil_mode)
        y = call.out((*lead, *cells), input.dtype)
        places = call.empty(y.shape_, "uint8" if product(window.kernel) <= 256 else "int32")
        if call.training:
            call.save(places=places, size=input.shape_, window=window)
        problem = Pool("max", input.dtype.name, places.dtype.name, product(lead), size, cells, window)
        call.run(problem, x=input.contiguous(), y=y, chosen=places)
        if not return_indices:
            return y
        indices = call.out(y.shape_, "int64", key="indices")
        call.run(problem._replace(what="positions", dtype="int64"), y=indices, chosen=places)
        return y, indices

    @row.grad("input")
    def _(f, g, places, size, window, create_graph):
        if create_graph:
            return f.positions_backward(g, f.max_pool_positions(places, size, window), size, dims)
        return f.max_pool_backward(g, places, size, window)


@op(gradient=None)
def max_pool_backward(call, grad, places, input_shape, window):
    """The gradient of the input of a `max_pool` from that of the result and the tap of each maximum (saved by it).

    `window` is (kernel, stride, padding, dilation), each an integer for each dim.
    """
    check(call, grad, "grad")
    y = call.out(input_shape, grad.dtype)
    problem = _problem("max_backward", y, grad, len(window[0]), places=places.dtype.name, window=Window(*window))
    call.run(problem, x=y, y=grad.contiguous(), chosen=places)
    return y


def _problem(what, x, y, dims, **options):
    """The `Pool` of the planes of x and the results y, whose planes are the last `dims` dims."""
    options.setdefault("places", None)
    return Pool(what, y.dtype.name, planes=product(x.shape_[:-dims]), x=x.shape_[-dims:], y=y.shape_[-dims:], **options)


@op(dtypes=("uint8", "int32"), gradient=None, step=True)
def max_pool_positions(call, places, input_shape, window):
    """int64 positions in their planes of maxima, whose taps `places` holds; `window` as of `max_pool_backward`."""
    check(call, places, "places")
    dims, shape = len(window[0]), places.shape_
    y = call.out(shape, "int64")
    sizes = product(shape[:-dims]), tuple(input_shape[-dims:]), shape[-dims:]
    call.run(Pool("positions", "int64", places.dtype.name, *sizes, Window(*window)), y=y, chosen=places.contiguous())
    return y


@op(step=True)
def positions_backward(call, grad, positions, input_shape, dims=2):
    """The gradient of planes of which elements at int64 `positions` (of the shape of `grad`) were chosen.

    The planes are the last `dims` dims of `input_shape`; elements chosen several times get the sum.
    """
    check(call, grad, "grad")
    y = call.out(input_shape, grad.dtype)
    sizes = (product(y.shape_[-dims:]),), (product(grad.shape_[-dims:]),)
    problem = Pool("positions_backward", grad.dtype.name, "int64", product(grad.shape_[:-dims]), *sizes)
    call.run(problem, x=y, y=grad.contiguous(), chosen=positions.contiguous())
    return y


@positions_backward.grad("grad")
def _(f, g, positions, dims):
    planes = product(positions.shape[:-dims])
    return f.gather(g.reshape(planes, -1), 1, positions.reshape(planes, -1)).reshape(positions.shape)


# ---- means -------------------------------------------------------------------------------------

_AVG_SAMPLES = {
    1: [
        ((2, 3, 21), 4, {"stride": 3, "padding": 2}),
        ((3, 22), 4, {"ceil_mode": True, "count_include_pad": False, "padding": 1}),
    ],
    2: [((2, 3, 8, 10), 2, {})],
    3: [((2, 3, 4, 5, 8), 2, {}), ((1, 3, 4, 5), (3, 2, 5), {"padding": (1, 1, 0)})],
}
for _dims, _shape, _size in ((2, (2, 7, 9), (3, 2)), (3, (2, 5, 7, 9), (2, 3, 2))):
    _AVG_SAMPLES[_dims] += [
        (_shape, _size, {"stride": 2, "padding": 1, **extra})
        for extra in (
            {},
            {"ceil_mode": True},
            {"count_include_pad": False, "ceil_mode": True},
            {"divisor_override": 5},
        )
    ]


def _mean_options(call, count_include_pad, divisor_override):
    divisor = 0 if divisor_override is None else integers(call, divisor_override, "divisor_override", 1, -(2**31))[0]
    if divisor_override is not None and not divisor:
        raise ValueError(f"`divisor_override` of `{call.op.name}` must be an integer but 0, got {divisor_override!r}")
    return {"counted": bool(count_include_pad), "divisor": divisor}


def _avg_pool(call, dims, input, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override=None):
    """The body of means of windows."""
    lead, size = _planes(call, input, dims)
    window = read_window(call, dims, kernel_size, stride, padding)
    y = call.out((*lead, *_results(call, size, window, ceil_mode)), input.dtype)
    options = _mean_options(call, count_include_pad, divisor_override)
    if call.training:
        call.save(size=input.shape_, kernel=window.kernel)
    call.run(_problem("mean", input, y, dims, window=window, **options), x=input.contiguous(), y=y)
    return y


def _avg_row(dims):
    return _declare(
        "avg_pool", dims, ref=_avg_pool_ref(dims), samples=_samples(_normal, _AVG_SAMPLES[dims]), tolerance=_TOLERANCE
    )


@_avg_row(1)
def avg_pool1d(call, input, kernel_size, stride=None, padding=0, ceil_mode=False, count_include_pad=True):
    """The mean of each window of `input` [N, C, L] or [C, L]; the rest as for `avg_pool2d`."""
    return _avg_pool(call, 1, input, kernel_size, stride, padding, ceil_mode, count_include_pad)


@avg_pool1d.grad("input")
def _(f, g, size, kernel, stride, padding, ceil_mode, count_include_pad):
    return f.avg_pool_backward(g, size, kernel, stride, padding, ceil_mode, count_include_pad)


def _avg_pools(dims):
    @_avg_row(dims)
    def row(
        call, input, kernel_size, stride=None, padding=0, ceil_mode=False, count_include_pad=True, divisor_override=None
    ):
        """The mean of each window of `input` [N, C, {space}] or [C, {space}].

        `kernel_size`, `stride` (None: the kernel's) and `padding` (of zeros) are {sizes}. The sum is divided by
        `divisor_override`, else by the elements of the window inside the input, and with `count_include_pad` its
        padding.
        """
        options = kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override
        return _avg_pool(call, dims, input, *options)

    @row.grad("input")
    def _(f, g, size, kernel, stride, padding, ceil_mode, count_include_pad, divisor_override):
        return f.avg_pool_backward(g, size, kernel, stride, padding, ceil_mode, count_include_pad, divisor_override)

    return row


avg_pool2d, avg_pool3d = _avg_pools(2), _avg_pools(3)


@op()
def avg_pool_backward(
    call, grad, input_shape, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override=None
):
    """The gradient of the input of an `avg_pool`, of `input_shape`; `kernel_size` has an integer for each dim."""
    check(call, grad, "grad")
    window = read_window(call, len(kernel_size), kernel_size, stride, padding)
    y = call.out(input_shape, grad.dtype)
    options = _mean_options(call, count_include_pad, divisor_override)
    problem = _problem("mean_backward", y, grad, len(kernel_size), window=window, **options)
    call.run(problem, x=y, y=grad.contiguous())
    return y


@avg_pool_backward.grad("grad")
def _(f, g, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override):
    dims, options = len(kernel_size), (kernel_size, stride, padding, ceil_mode, count_include_pad)
    return (
        f.avg_pool1d(g, *options)
        if dims == 1
        else (f.avg_pool2d, f.avg_pool3d)[dims - 2](g, *options, divisor_override)
    )


# ---- cells that share out the input --------------------------------------------------------------

_CELL_SAMPLES = {
    1: [((2, 3, 10), 4, {}), ((3, 7), (9,), {}), ((2, 5), None, {})],
    2: [
        *(((2, 3, 7, 10), size, {}) for size in (3, (1, 1), (5, None), (9, 4))),
        ((3, 8, 8), 4, {}),
    ],
    3: [((2, 3, 4, 7, 10), (2, None, 3), {}), ((2, 3, 4, 5), 1, {}), ((2, 3, 5, 2), (4, 2, 3), {})],
}


def _cells(call, output_size, size):
    """The sizes of the result; None keeps that of the input."""
    dims = len(size)
    values = tuple(output_size) if isinstance(output_size, (tuple, list)) else (output_size,) * dims
    if len(values) == dims:
        values = [n if value is None else value for value, n in zip(values, size)]
    return integers(call, values, "output_size", dims, 1)


def _equal(size, cells):
    """Whether cells of one size make up a plane."""
    return all(n and length % n == 0 for length, n in zip(size, cells))


def _cell_means(call, x, y, lead, size, cells):
    """Means of equal cells are those of dims (4096 cells of 256: 30 us, by windows 270)."""
    shape = (*lead, *[k for length, n in zip(size, cells) for k in (n, length // n)])
    strides = tuple(product(shape[d + 1 :]) for d in range(len(shape)))
    call.run(Reduce(mean.rule, x.dtype.name, shape, strides, tuple(range(len(lead) + 1, len(shape), 2))), x=x, y=y)
    return y


def _adaptive_pools(dims):
    @_declare(
        "adaptive_avg_pool",
        dims,
        ref=_adaptive_ref(np.mean, dims),
        samples=_samples(_normal, _CELL_SAMPLES[dims]),
        tolerance=_TOLERANCE,
    )
    def means(call, input, output_size):
        """Means of `output_size` ({sizes}; None keeps a size) cells of `input` [N, C, {space}] or [C, {space}].

        Cell i of n covers [floor(i L / n), ceil((i + 1) L / n)) of a dim of size L: cells overlap where n does not
        divide L.
        """
        lead, size = _planes(call, input, dims, "in batches" if dims == 3 else "never")
        y = call.out((*lead, *_cells(call, output_size, size)), input.dtype)
        if call.training:
            call.save(size=input.shape_)
        cells = y.shape_[len(lead) :]
        if product(size) >= _LARGE * product(cells) and _equal(size, cells):
            return _cell_means(call, input.contiguous(), y, lead, size, cells)
        call.run(_problem("mean", input, y, dims), x=input.contiguous(), y=y)
        return y

    @means.grad("input")
    def _(f, g, size):
        return f.adaptive_avg_pool_backward(g, size, dims)

    @_declare(
        "adaptive_max_pool",
        dims,
        ref=_adaptive_ref(np.max, dims),
        samples=_samples(
            _distinct, [(*row[:2], {"return_indices": k > 0}) for k, row in enumerate(_CELL_SAMPLES[dims])]
        ),
        grad_samples=_samples(_distinct, [((1, 2, 5, 7, 3)[: 2 + dims], (2, 3, 2)[:dims], {})]),
        outputs=("out", "indices"),
    )
    def maxima(call, input, output_size, return_indices=False):
        """Maxima of cells of `input` [N, C, {space}] or [C, {space}] as of `adaptive_avg_pool2d`.

        With `return_indices`, a pair with their int64 positions in their planes.
        """
        lead, size = _planes(call, input, dims, "in batches")
        y = call.out((*lead, *_cells(call, output_size, size)), input.dtype)
        positions = call.out(y.shape_, "int64", key="indices") if return_indices else call.empty(y.shape_, "int64")
        if call.training:
            call.save(positions=positions, size=input.shape_)
        call.run(_problem("max", input, y, dims, places="int64"), x=input.contiguous(), y=y, chosen=positions)
        return (y, positions) if return_indices else y

    @maxima.grad("input")
    def _(f, g, positions, size):
        return f.positions_backward(g, positions, size, dims)


@op()
def adaptive_avg_pool_backward(call, grad, input_shape, dims=2):
    """The gradient of the input of an `adaptive_avg_pool` of `dims` dims, of `input_shape`."""
    check(call, grad, "grad")
    y = call.out(input_shape, grad.dtype)
    call.run(_problem("mean_backward", y, grad, dims), x=y, y=grad.contiguous())
    return y


@adaptive_avg_pool_backward.grad("grad")
def _(f, g, grad, dims):
    pool = (f.adaptive_avg_pool1d, f.adaptive_avg_pool2d, f.adaptive_avg_pool3d)[dims - 1]
    return pool(g, tuple(grad.shape[-dims:]))


for _dims in (1, 2, 3):
    _max_pool(_dims)
    _adaptive_pools(_dims)
