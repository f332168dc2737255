"""Running sums."""

import numpy as np

from ..build import isa
from ..table.registry import ALL, op
from ._layout import check, check_dim, product, rows

_GRAIN = 16384  # elements of a slice: 20 us
_COLUMNS = isa.lanes()  # LANES of cpu/scan.py


def _cumsum_ref(input, dim, dtype=None, reverse=False):
    if not input.ndim:
        return input
    return np.flip(np.cumsum(np.flip(input, dim), dim), dim) if reverse else np.cumsum(input, dim)


def _cumsum_samples(rng):
    for size in (1, 3, 17, 257):
        yield (rng.standard_normal((4, size)), -1), {}
        yield (rng.standard_normal((size, 5)), 0), {"reverse": True}
    yield (rng.standard_normal((3, 5, 70)), 1), {}
    yield (rng.standard_normal((3, 33)), 1), {"reverse": True}
    yield (np.array(1.5), 0), {}


@op(
    dtypes=ALL,
    ref=_cumsum_ref,
    samples=_cumsum_samples,
    tolerance={"float32": (1e-5, 1e-5), "bfloat16": (2e-2, 2e-2), "float16": (2e-3, 2e-3)},
    amp="float32",
)
def cumsum(call, input, dim, dtype=None, reverse=False):
    """Running sums along `dim`: each element is the sum of those up to it (from it on, if `reverse`).

    Integers and bools sum to int64; `dtype` converts the input first. Floats are summed in float64 and rounded
    once; the result has the shape of `input`.
    """
    call.save(input_dtype=getattr(input, "dtype", None))
    if dtype is not None:
        input = input.to(dtype=dtype)
    check(call, input, "input")
    floating = input.dtype.is_floating_point
    shape, dim = input.shape_, check_dim(dim, len(input.shape_))
    y = call.out(shape, input.dtype if floating else "int64", overlap="same")
    if not y.numel_:
        return y
    size, columns = shape[dim] if shape else 1, product(shape[dim + 1 :])
    # the dim itself is contiguous with those behind it
    x, outer, _, stride = rows(input, dim)
    start, step = ((size - 1) * columns, -columns) if reverse else (0, columns)
    kind = "uint8" if x.dtype.name == "bool" else x.dtype.name
    types = {"T": kind, "A": "float64" if floating else "int64", "O": y.dtype.name}
    args = [x.address + start * x.dtype.itemsize, y.address + start * y.dtype.itemsize, size]
    args += [stride, size * columns, step, step]
    if columns == 1:
        call.launch_at("reduce.scan.cumsum_rows", types, args, outer, max(1, _GRAIN // size), (x, y))
    else:
        blocks = -(-columns // _COLUMNS)
        args += [columns, blocks]
        call.launch_at(
            "reduce.scan.cumsum_columns", types, args, outer * blocks, max(1, _GRAIN // (size * _COLUMNS)), (x, y)
        )
    return y


@cumsum.grad("input")
def _(f, g, input_dtype, dim, reverse):
    return f.cumsum(g, dim, reverse=not reverse).to(dtype=input_dtype)
