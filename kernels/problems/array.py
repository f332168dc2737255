"""Problems of copies, and of elements and rows by index. Strides are in elements."""

from typing import NamedTuple

# Whether sums of floats are to be the same in every run where a device adds faster in the order in which its threads
# come: `use_deterministic_algorithms`.
_asked = {"ordered": False}


def keep_order(wanted):
    """Let sums that are described from now on be the same in every run, or not."""
    _asked["ordered"] = bool(wanted)


def keeps_order():
    """Whether sums are to be the same in every run."""
    return _asked["ordered"]


class Copy(NamedTuple):
    """Elements of `itemsize` bytes from one layout to another of the same shape: y, x."""

    shape: tuple
    y_strides: tuple
    x_strides: tuple
    itemsize: int


class Elements(NamedTuple):
    """`kernel` (gather, scatter, scatter_add, _multiply, _larger, _smaller) between t and v by an `index` along `dim`.

    `t`, `v` and `i` are dtypes; `shape` and `t_strides` are those of t, `own` and `strides` those of the index, in
    whose shape v has `v_strides`. `ordered` says that what is joined is to be the same in every run; `wrap`, of gather,
    that negative indices count from the end.
    """

    kernel: str
    t: str
    v: str
    i: str
    dim: int
    shape: tuple
    t_strides: tuple
    own: tuple
    strides: tuple
    v_strides: tuple
    ordered: bool = False
    wrap: bool = False


class GatherRows(NamedTuple):
    """y[o, k] = x[o, index[k] - first] for contiguous y [outer, indices, length], rows and outer ones of x by strides.

    `bits` and `index` are dtypes, `step` is the stride of the index. `wrap` is added to negative indices; those that
    are not from `first` to `end` - 1 then are wrong, or with `zeros` give rows of zeros.
    """

    bits: str
    index: str
    step: int
    indices: int
    outer: int
    length: int
    row_stride: int
    outer_stride: int
    first: int
    end: int
    zeros: int = 0
    wrap: int = 0


class AddRows(NamedTuple):
    """t[o, index[n]] += scale * v[o, n] for contiguous t [outer, rows, length] and v [outer, indices, length].

    Rows with equal indices are added in their order and rounded once; `step` is the stride of `index`.
    """

    dtype: str
    index: str
    step: int
    indices: int
    outer: int
    rows: int
    length: int
    scale: float


class PutRows(NamedTuple):
    """t[o, index[n]] = v[o, n], or += where `add`, for contiguous t [outer, rows, length] and an int64 index [count].

    v has `v_strides` (of outer ones, rows and columns). Indices are within the rows. Of equal ones the last one counts,
    on GPUs any; sums are as those of AddRows.
    """

    t: str
    v: str
    add: bool
    outer: int
    count: int
    length: int
    rows: int
    v_strides: tuple


class BinCounts(NamedTuple):
    """How many of `size` contiguous x of a float dtype lie in each of `bins` equal intervals: int64 y [bins].

    From `low` to `high`, which plans leave open (the bits of a float64).
    """

    dtype: str
    size: int
    bins: int


class FirstOfRuns(NamedTuple):
    """The first elements y of the runs of equal ones of a contiguous x [size], and their `count`: int64 of one element.

    y has room for all; what stands behind the first `count` is not said.
    """

    dtype: str
    size: int
