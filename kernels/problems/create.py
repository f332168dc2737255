"""Problems of new elements. Strides are in elements."""

from typing import NamedTuple


class Triangle(NamedTuple):
    """One side of a diagonal of `count` rows of matrices, `x_stride` apart, and zeros on the other, row-major."""

    itemsize: int
    count: int
    rows: int
    columns: int
    x_stride: int
    diagonal: int
    upper: int


class OneHot(NamedTuple):
    """Rows of zeros and a one, at the place that an `index` of this dtype says: int64 y [count, classes]."""

    index: str
    count: int
    classes: int
