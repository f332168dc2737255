"""Problems of reductions, scans, sorting and sampling. Layouts are shapes and strides in elements."""

from typing import NamedTuple


class Reduce(NamedTuple):
    """`x` reduced over `dims` (from the front, rising) by a rule (`table/rules.py`), into a row-major `y`."""

    rule: object
    dtype: str
    shape: tuple
    strides: tuple
    dims: tuple


class Ends(NamedTuple):
    """The smallest and the largest element of `x` over `dims`, into row-major `low` and `high`.

    `alone` are the rules of either, `together` two rules of the same states, which have both.
    """

    alone: tuple
    together: tuple
    dtype: str
    shape: tuple
    strides: tuple
    dims: tuple


class Variance(NamedTuple):
    """The variance of floats `x` over `dims`, into a row-major `y`: squares about the mean, summed, over `degrees`.

    `rule` (or None) is one by which it is a reduction, for where elements of a result lie apart; `mean` one with the
    same states whose results are the means, where these are wanted, too, in a row-major `mean`.
    """

    rule: object
    dtype: str
    shape: tuple
    strides: tuple
    dims: tuple
    degrees: float
    mean: object = None


class Position(NamedTuple):
    """The first position of the largest or smallest element of `x` along `dims`, and its value if that is wanted.

    `dims` is one dim, or all of a row-major tensor.
    """

    dtype: str
    shape: tuple
    strides: tuple
    dims: tuple
    largest: bool
    values: bool


class Scan(NamedTuple):
    """A running state by a rule along a dim of `size`, for `outer` slices `stride` apart, of `columns` neighbours."""

    rule: object
    dtype: str
    outer: int
    size: int
    columns: int
    stride: int
    reverse: bool


class Running(NamedTuple):
    """Running extremes `values` of a row-major `x` [outer, size, columns] along the dim in the middle; `indices`."""

    dtype: str
    outer: int
    size: int
    columns: int
    largest: bool


class Sort(NamedTuple):
    """The `wanted` first elements of `rows` sorted rows of `size`: their indices, and if wanted their `values`."""

    dtype: str
    rows: int
    size: int
    stride: int
    wanted: int
    descending: bool
    values: bool


# Ranks that follow from how many elements are numbers: the lower middle of all, or the first NaN; that of the numbers.
MEDIAN, NANMEDIAN = -1, -2


class Select(NamedTuple):
    """The elements with `count` `ranks` in each of `rows` sorted rows of `size`: their `values` and `indices`.

    Or, without that tensor, with the same `rank` in each, which may be MEDIAN or NANMEDIAN for floats.
    """

    dtype: str
    rows: int
    size: int
    stride: int
    count: int
    rank: int | None = None


class Modes(NamedTuple):
    """The most frequent element of each of `rows` of `size`, the smallest of several, and the last place it has.

    NaN are different from one another. Tensors: x; `values` and int64 `indices`.
    """

    dtype: str
    rows: int
    size: int
    stride: int


class Sample(NamedTuple):
    """A token drawn from each of `rows` rows of `size` logits, after a history of `history_length` tokens."""

    rows: int
    size: int
    stride: int
    history_length: int
    history_stride: int
    bias_stride: int
