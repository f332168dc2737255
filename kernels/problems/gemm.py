"""Problems of matrix products."""

from typing import NamedTuple

SKINNY = 16  # rows of A (columns of B) up to which B (A) is read once, as it lies, by dot products
FEW = 4  # the same where B lies in rows of N, by sums of rows


class Product(NamedTuple):
    """c[m, n] = residual + activation(alpha * a[m, k] b[k, n] + bias[n]); c is row-major, as is the residual.

    Strides are in elements: of `a` along m and k, of `b` along k and n. `batch` holds (size, strides of a, b, c) of
    the dims of a batch, outermost first. `result` is the dtype of c and the residual: `dtype`, float32 beside 16-bit
    operands, or int32 for exact sums of int8. `activation` is an elementwise op of one input. `accumulate` says that
    the residual may be c itself; `packed`, that b are the panels of `PackWeight`, whatever its strides.
    """

    dtype: str
    m: int
    n: int
    k: int
    a_strides: tuple
    b_strides: tuple
    batch: tuple
    result: str
    alpha: float
    bias: bool = False
    activation: object = None
    residual: bool = False
    accumulate: bool = False
    packed: bool = False


class PackWeight(NamedTuple):
    """The weight [n, k], with these strides, in the order in which products read it: the workspace `panels`."""

    dtype: str
    n: int
    k: int
    strides: tuple


class ActivationGrad(NamedTuple):
    """out = g * activation'(before) for matrices [rows, columns]; `bias`: and the sums of its columns.

    `stride` is that of the rows of g; the others are row-major.
    """

    dtype: str
    rows: int
    columns: int
    stride: int
    activation: object
    bias: bool
