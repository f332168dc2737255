"""Running sums."""

import numpy as np

from ..table.registry import ALL
from ._rules import scan


@scan(
    start=0,
    ref=np.cumsum,
    dtypes=ALL,
    tolerance={"float32": (1e-5, 1e-5), "bfloat16": (2e-2, 2e-2), "float16": (2e-3, 2e-3)},
    amp="float32",
)
def cumsum(a, b):
    """Running sums along `dim`: each element is the sum of those up to it (from it on, if `reverse`).

    Integers and bools sum to int64; `dtype` converts the input first, and the result has it. Floats are summed in
    float64 and rounded once; the result has the shape of `input`.
    """
    return a + b


@cumsum.grad("input")
def _(f, g, input_dtype, dim, reverse):
    return f.cumsum(g, dim, reverse=not reverse).to(dtype=input_dtype)
