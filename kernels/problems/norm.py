"""Problems of norms."""

from typing import NamedTuple


class ChunkSums(NamedTuple):
    """The sums of parts [chunks, columns] of the gradients of a weight, and of a bias, in floats of type `compute`.

    `dtype` is that of the gradients `dw` and `db`; the parts are `parts_w` and `parts_b`.
    """

    compute: str
    dtype: str
    chunks: int
    columns: int


class NormBackward(NamedTuple):
    """The gradients of a norm over `rows` rows of `size` elements: of its input, its weight and its bias.

    Strides are those of rows. `weight` and `bias` are dtypes of their gradients (None: not wanted); `weighted` says
    that there is a weight, `center` that a mean is taken off, `residual_stride` is None without a residual to add.
    """

    dtype: str
    rows: int
    size: int
    g_stride: int
    x_stride: int
    residual_stride: int | None
    weight: str | None
    bias: str | None
    center: bool
    eps: float


class SoftmaxColumns(NamedTuple):
    """Softmax along the dim of `size` of `x` [outer, size, columns], or its logarithm, into a row-major `y`.

    Outer slices are `stride` elements apart. `backward`: `y` is the gradient of the input, from that of the result,
    `g`, whose slices are `g_stride` apart, and the result `x`.
    """

    dtype: str
    outer: int
    size: int
    columns: int
    stride: int
    logarithm: bool
    backward: bool = False
    g_stride: int = 0


class LogSumExp(NamedTuple):
    """The logarithms of the sums of exponentials along the dim of `size` of row-major `x` [outer, size, columns]."""

    dtype: str
    outer: int
    size: int
    columns: int
