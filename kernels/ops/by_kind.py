"""What ops whose own kernels are for real floats mean of integers, bools and complex tensors, in terms of other ops."""

import itertools

from ._layout import product
from ._window import read_window
from .conv import _problem, conv1d, conv2d
from .conv_composed import conv3d
from .elementwise import ceil, floor, round_
from .gather import index_add
from .linear import linear
from .pairs import trunc
from .places import scatter_reduce
from .pooling import avg_pool1d, avg_pool2d, avg_pool3d
from .scatter import scatter_add

for _row in (floor, ceil, round_, trunc):

    @_row.on("iu")
    def _(f, input):
        return f.rearrange(input)


@linear.on("ciu")
def _(f, input, weight, bias=None, *, alpha=1.0, activation=None, residual=None):
    if activation is not None or residual is not None:
        raise TypeError("`activation` and `residual` of `linear` need real floats: apply them to its result")
    y = f.matmul(input, weight.transpose(-1, -2), alpha=alpha)
    return y if bias is None else f.add(y, bias)


# ---- convolutions of integers --------------------------------------------------------------------


class _Named:
    """What checks ask of a call: its op."""

    def __init__(self, op):
        self.op = op


def _of_taps(op, dims):
    """Let a convolution of integers be the sum of a product for each element of the kernel, exact as in 64 bits."""

    def form(f, input, weight, bias=None, stride=1, padding=0, dilation=1, groups=1):
        if weight.ndim != dims + 2 or input.ndim not in (dims + 1, dims + 2):
            raise ValueError(
                f"`{op.name}` needs an input of {dims + 1} or {dims + 2} dims and a weight of {dims + 2}, got "
                f"{tuple(input.shape)} and {tuple(weight.shape)}"
            )
        for name, x in (("weight", weight), ("bias", bias)):
            if x is not None and x.dtype is not input.dtype:
                raise TypeError(
                    f"`{op.name}` needs one dtype, got {input.dtype} for `input` and {x.dtype} for `{name}`"
                )
        x = input if input.ndim == dims + 2 else input.unsqueeze(0)
        options = stride, padding, dilation, groups
        problem, shape = _problem(_Named(op), None, input.dtype, x.shape, weight.shape, *options)
        if bias is not None and tuple(bias.shape) != shape[1:2]:
            raise ValueError(f"`bias` of `{op.name}` must have shape {shape[1:2]}, got {tuple(bias.shape)}")
        if dims == 1:
            x, weight = x.unsqueeze(2), weight.unsqueeze(2)
        window, size = problem.window, problem.y
        sides = []
        for n, count, k, s, p, d in zip(problem.x, size, *window):
            sides = [p, max(0, (count - 1) * s + d * (k - 1) + 1 - n - p), *sides]
        x, y = f.pad(x, sides), None
        weight = weight.reshape(problem.groups, -1, *weight.shape[1:])
        for tap in itertools.product(*map(range, window.kernel)):
            spans = [
                slice(at * d, at * d + (count - 1) * s + 1, s)
                for at, d, s, count in zip(tap, window.dilation, window.stride, size)
            ]
            columns = x[(..., *spans)].reshape(x.shape[0], problem.groups, -1, product(size))
            part = f.matmul(weight[(..., *tap)].unsqueeze(0), columns)
            y = part if y is None else f.add(y, part)
        y = y.reshape(shape)
        if bias is not None:
            y = f.add(y, bias.reshape(-1, *[1] * dims))
        return y if input.ndim == dims + 2 else y.squeeze(0)

    op.on("iu")(form)


for _dims, _row in enumerate((conv1d, conv2d, conv3d), start=1):
    _of_taps(_row, _dims)


# ---- means of windows of integers ------------------------------------------------------------------


def _of_halves(op, dims):
    """Let a mean of windows of int64 be their sum, of upper and lower 32 bits as float64s, divided as integers."""

    def form(
        f, input, kernel_size, stride=None, padding=0, ceil_mode=False, count_include_pad=True, divisor_override=None
    ):
        if input.dtype.name != "int64":
            raise TypeError(f"`input` of `{op.name}` must hold floats or int64, got {input.dtype.name}: cast it")
        pool = f.avg_pool3d if dims == 3 else f.avg_pool2d
        x, (kernel, stride, padding, _) = input, read_window(_Named(op), dims, kernel_size, stride, padding)
        if dims == 1:
            x, kernel, stride, padding = x.unsqueeze(-2), (1, *kernel), (1, *stride), (0, *padding)

        def sums(part, padding):
            y = pool(part.to(dtype="float64"), kernel, stride, padding, ceil_mode, divisor_override=1)
            return y.to(dtype="int64")

        upper, lower = f.bitwise_right_shift(x, 32), f.bitwise_and(x, 2**32 - 1)
        y, divisor = f.add(f.mul(sums(upper, padding), 2**32), sums(lower, padding)), divisor_override
        if divisor is None:
            ones = x.new_ones(x.shape)
            if count_include_pad:  # which counts padding, but not what lies beyond it
                ones = f.pad(ones, [n for p in reversed(padding) for n in (p, p)], value=1)
            divisor = sums(ones, 0 if count_include_pad else padding)
            divisor = divisor[(..., *map(slice, y.shape[-len(kernel) :]))]
        y = f.div(y, divisor, rounding_mode="trunc")
        return y.squeeze(-2) if dims == 1 else y

    op.on("iu")(form)


for _dims, _row in enumerate((avg_pool1d, avg_pool2d, avg_pool3d), start=1):
    _of_halves(_row, _dims)


# ---- bools: a sum says whether any is true, a product, whether all are ------------------------------


def _of_bits(op):
    """Let a reduction by index of bools be that of 0 and 1, of which any number but 0 is true."""

    def form(f, *args, **kwargs):
        def number(x):
            if isinstance(x, float):
                return x != 0  # a factor counts as a bool, too
            return x.to(dtype="int64") if hasattr(x, "strides_") and x.dtype.kind == "b" else x

        y = getattr(f, op.name)(*map(number, args), **{name: number(x) for name, x in kwargs.items()})
        return f.ne(y, 0)

    op.on("b")(form)


for _row in (index_add, scatter_add, scatter_reduce):
    _of_bits(_row)
