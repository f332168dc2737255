"""Problems of matrix products."""

from typing import NamedTuple

# Whether float32 operands of matrix products may be rounded to TF32 (10 bits of mantissa) where a device multiplies
# those faster: `backends.cuda.matmul.allow_tf32`.
_allowed = {"tf32": False}

SKINNY = 16  # rows of A (columns of B) up to which B (A) is read once, as it lies, by dot products
FEW = 4  # the same where B lies in rows of N, by sums of rows


def allow_tf32(allowed):
    """Let products that are described from now on round float32 operands to TF32, or not."""
    _allowed["tf32"] = bool(allowed)


def allows_tf32(dtype="float32"):
    """Whether products of a dtype may round their operands to TF32."""
    return dtype == "float32" and _allowed["tf32"]


class Product(NamedTuple):
    """c = residual + activation(alpha * a b + bias) for matrices a [..., m, k] and b [..., k, n]; c is row-major.

    Batch dims broadcast; an `a` of one dim is a row, such a `b` a column. Strides are in elements. `result` is the
    dtype of c and of the residual, which is row-major too: `dtype`, float32 beside 16-bit operands, or int32 for exact
    sums of int8. `bias` is [n], `activation` an elementwise op of one input. `accumulate` says that the residual may be
    c itself; `packed`, that b is in the panels of `PackWeight`, whatever its strides; `tf32`, that float32 operands may
    be rounded to TF32.

    `scales`, of two matrices of int8 or float8: the sums, as float32, are multiplied with `a_scales` and `b_scales`,
    float32 tensors, whose elements are so far apart from row to row and from column to column (0: one for all). The
    result and the bias are then floats of one dtype.
    """

    dtype: str
    a_shape: tuple
    a_strides: tuple
    b_shape: tuple
    b_strides: tuple
    result: str
    alpha: float = 1.0
    bias: bool = False
    activation: object = None
    residual: bool = False
    accumulate: bool = False
    packed: bool = False
    tf32: bool = False
    scales: tuple[int, int] | None = None

    def matrices(self):
        """The `Matrices` that are multiplied."""
        (a_shape, a_strides), (b_shape, b_strides) = (self.a_shape, self.a_strides), (self.b_shape, self.b_strides)
        if len(a_shape) == 1:
            a_shape, a_strides = (1, *a_shape), (0, *a_strides)
        if len(b_shape) == 1:
            b_shape, b_strides = (*b_shape, 1), (*b_strides, 1)
        (m, k), n, rank = a_shape[-2:], b_shape[-1], max(len(a_shape), len(b_shape))
        outer = [
            [(1, 0)] * (rank - len(shape)) + list(zip(shape[:-2], strides[:-2]))
            for shape, strides in ((a_shape, a_strides), (b_shape, b_strides))
        ]
        batch, step = [], m * n
        for (s, a), (t, b) in zip(*map(reversed, outer)):
            size = t if s == 1 else s
            batch.append((size, 0 if s == 1 else a, 0 if t == 1 else b, step))
            step *= size
        return Matrices(m, n, k, *a_strides[-2:], *b_strides[-2:], tuple(reversed(batch)))


class Matrices(NamedTuple):
    """[m, k] times [k, n]; `batch` holds (size, strides of a, b, c) of each dim of a batch, outermost first."""

    m: int
    n: int
    k: int
    a_stride: int
    a_k: int
    b_k: int
    b_stride: int
    batch: tuple


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
