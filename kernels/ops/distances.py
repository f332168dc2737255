"""Distances between rows."""

import math

import numpy as np

from ..blocks.linalg import DISTANCES, ROWS
from ..table.composite import composite
from ..table.registry import op
from ._layout import check, check_alike
from .copy import row_major
from .decompositions import _t
from .matrix_norms import _NORM


def _cdist_ref(x1, x2, p=2.0, compute_mode=None):
    d = np.abs(x1[..., :, None, :] - x2[..., None, :, :])
    if p == 0:
        return (d != 0).sum(-1).astype(x1.dtype)
    return d.max(-1) if p == math.inf else (d**p).sum(-1) ** (1 / p)


def _cdist_samples(rng):
    for p in (2.0, 1.0, 3.0, math.inf):
        yield (rng.standard_normal((3, 4)), rng.standard_normal((5, 4))), {"p": p}
    yield (rng.standard_normal((2, 1, 30, 3)), rng.standard_normal((3, 26, 3))), {}


_MODES = ("use_mm_for_euclid_dist_if_necessary", "use_mm_for_euclid_dist", "donot_use_mm_for_euclid_dist")


@composite(
    ref=_cdist_ref, samples=_cdist_samples, amp="float32",
    tolerance={"float32": (2e-4, 1e-3), "bfloat16": (2e-2, 3e-2), "float16": (5e-3, 5e-3)},
)  # fmt: skip
def cdist(f, x1, x2, p=2.0, compute_mode=_MODES[0]):
    """The distances by the norm `p` of all rows of x1 [..., P, M] and x2 [..., R, M]: [..., P, R]; batches broadcast.

    By `compute_mode`, Euclidean ones come from a product of matrices, where P or R exceeds 25, always, or never: that
    is fast, and less exact where two rows nearly agree.
    """
    for name, x in (("x1", x1), ("x2", x2)):
        check(f, x, name)
    check_alike("cdist", x1, x2=x2)
    if compute_mode not in _MODES:
        raise ValueError(f"`compute_mode` of `cdist` must be one of {', '.join(_MODES)}, got {compute_mode!r}")
    if p < 0 or len(x1.shape_) < 2 or len(x2.shape_) < 2 or x1.shape_[-1] != x2.shape_[-1]:
        raise ValueError(
            f"`cdist` needs [..., P, M] and [..., R, M] and `p` of 0 or more, got {x1.shape_}, {x2.shape_} and {p}"
        )
    if not x1.shape_[-1]:
        return f.sum(x1.unsqueeze(-2) - x2.unsqueeze(-3), -1)  # points of no coordinates are nowhere apart
    many = max(x1.shape_[-2], x2.shape_[-2]) > 25
    if p != 2 or compute_mode == _MODES[2] or (compute_mode == _MODES[0] and not many):
        return f.norm(x1.unsqueeze(-2) - x2.unsqueeze(-3), p, -1)
    a, b = (x if x.dtype.name == "float64" else x.to(dtype="float32") for x in (x1, x2))
    rows, columns = f.sum(a * a, -1, True), f.sum(b * b, -1, True)
    if not (x1.tracked or x2.tracked):  # the squares are part of the product: 3 passes over the result in place of 8
        left = f.cat([a * -2.0, rows, rows.new_full(rows.shape_, 1.0)], -1)
        squares = f.matmul(left, _t(f.cat([b, columns.new_full(columns.shape_, 1.0), columns], -1)))
        return f.sqrt(f.maximum(squares, 0.0)).to(dtype=x1.dtype)
    squares = rows + _t(columns) - f.matmul(a, _t(b)) * 2.0
    none = f.le(squares, 0.0)  # not of NaN
    return f.where(none, 0.0, f.sqrt(f.where(none, 1.0, squares))).to(dtype=x1.dtype)


def _pdist_ref(input, p=2.0):
    return _cdist_ref(input, input, p)[np.triu_indices(len(input), 1)]


def _pdist_samples(rng):
    for p in (2.0, 1.0, 3.0):
        yield (rng.standard_normal((5, 4)),), {"p": p}
    yield (rng.standard_normal((1, 4)),), {}


_PAIRS = {0: "different", 1: "sizes", 2: "euclidean", math.inf: "largest"}  # kernels by norm


@op(ref=_pdist_ref, samples=_pdist_samples, tolerance=_NORM, amp="float32")
def pdist(call, input, p=2.0):
    """The distances by the norm `p` of each two rows of `input` [N, M], (0, 1), (0, 2), ...: [N (N - 1) / 2]."""
    check(call, input, "input")
    if len(input.shape_) != 2 or p < 0:
        raise ValueError(f"`pdist` needs `input` [N, M] and `p` of 0 or more, got shape {input.shape_} and {p}")
    rows, size = input.shape_
    y = call.out((max(0, rows * (rows - 1) // 2),), input.dtype)
    block = DISTANCES(x=row_major(call, input), y=y, rows=rows, size=size, power=p)
    units = rows * -(-rows // ROWS) if y.numel_ else 0
    name = _PAIRS.get(p, "powers")
    call.launch(f"linalg.distances.{name}", {"T": input.dtype.name}, block, units, ROWS * (size + 16) // 2)
    return y


@pdist.grad("input")
def _(f, g, input, p, out):
    """Each pair pulls at both of its rows; where they are equal, at neither."""
    if p == 0:
        return f.mul(input, 0.0)
    rows = input.shape_[0]
    first, second = (f.from_array(np.ascontiguousarray(i), input.device) for i in np.triu_indices(rows, 1))
    apart = f.sub(f.index_select(input, 0, first), f.index_select(input, 0, second))
    g, distance = f.unsqueeze(g, -1), f.unsqueeze(out, -1)
    if p == math.inf:
        slope = f.where(f.eq(f.abs(apart), distance), f.sign(apart), 0.0)
    elif p == 1:
        slope = f.sign(apart)
    else:
        there = f.ne(apart, 0.0)
        sizes, distance = f.where(there, f.abs(apart), 1.0), f.where(f.ne(distance, 0.0), distance, 1.0)
        slope = apart / distance if p == 2 else f.where(there, f.sign(apart) * f.pow(sizes / distance, p - 1), 0.0)
    slope = f.mul(slope, g)
    back = f.index_select_backward
    return f.sub(back(slope, 0, first, rows), back(slope, 0, second, rows))
