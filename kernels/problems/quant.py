"""Problems of quantised weights."""

from typing import NamedTuple


class WeightLayout(NamedTuple):
    """How a device keeps the weight [n, k] of a format, whose groups have the shift `shift`: its plan is a `Layout`."""

    format: str
    n: int
    k: int
    shift: int


class Layout(NamedTuple):
    """The bytes of a packed weight, and how many of its rows are packed together."""

    nbytes: int
    rows: int


class Factor(NamedTuple):
    """One weight [n, k] of a product, the tensor "weight0", "weight1", ...; its inputs lie in the order "order0", ...
    (None: in that of x).
    """

    format: str
    n: int
    shift: int
    order: int | None


class QuantizedProduct(NamedTuple):
    """y = x [rows, k] times each of the weights, transposed, side by side, plus a bias (or None).

    `rounded` says that activations may be rounded to integers of 8 bits, 32 neighbours of a row (or all of it, where
    the weight has one scale per row) with one scale; weights of float8 never ask for that.
    """

    dtype: str
    rows: int
    k: int
    rounded: bool
    weights: tuple[Factor, ...]
