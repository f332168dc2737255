"""Samples on grids: derivatives by differences, and histograms of points in several dims."""

import builtins
import math

import numpy as np

from ..table.composite import composite
from ._layout import check, check_dim, product

# ---- differences ---------------------------------------------------------------------------------


def _gradient_ref(x, spacing=None, dim=None, edge_order=1):
    spacing = [1.0] if spacing is None else [spacing] if isinstance(spacing, (int, float)) else list(spacing)
    found = np.gradient(x, *spacing, axis=dim, edge_order=edge_order)
    return tuple(found) if isinstance(found, (list, tuple)) else (found,)


def _gradient_samples(rng):
    yield (rng.standard_normal(7),), {}
    yield (rng.standard_normal((4, 5)),), {"spacing": 0.5, "edge_order": 2}
    yield (rng.standard_normal((4, 5)),), {"spacing": (np.array([0.0, 1.0, 1.5, 3.0]),), "dim": 0}


def _slopes(f, x, dim, h, edge_order):
    """The derivative along one dim at points `h` apart: a number, or distances [n - 1]."""
    n = x.shape_[dim]
    steps = f.sub(x.narrow(dim, 1, n - 1), x.narrow(dim, 0, n - 1))
    if hasattr(h, "strides_"):
        h = h.reshape(-1, *(1,) * (len(x.shape_) - dim - 1))
    slope = f.div(steps, h)
    before, after = slope.narrow(dim, 0, n - 2), slope.narrow(dim, 1, n - 2)
    if hasattr(h, "strides_"):
        one, two = h.narrow(0, 0, n - 2), h.narrow(0, 1, n - 2)
        inner = (before * two + after * one) / (one + two)
        share = one / (one + two)
    else:
        inner, share = (before + after) * 0.5, None
    first, last = slope.narrow(dim, 0, 1), slope.narrow(dim, n - 2, 1)
    if edge_order == 2:
        left, right = (0.5, 0.5) if share is None else (share.narrow(0, 0, 1), 1.0 - share.narrow(0, n - 3, 1))
        first = first - (slope.narrow(dim, 1, 1) - first) * left
        last = last + (last - slope.narrow(dim, n - 3, 1)) * right
    return f.cat([first, inner, last], dim)


@composite(ref=_gradient_ref, samples=_gradient_samples, tolerance={"bfloat16": (5e-2, 8e-2), "float16": (5e-3, 1e-2)})
def gradient(f, input, *, spacing=None, dim=None, edge_order: int = 1):
    """The derivatives of samples along each of `dim` (all by default), a tuple: second-order differences inside, and of
    `edge_order` 1 or 2 at the ends.

    `spacing` is the distance of samples (1): a number, a sequence of one for each dim, or of vectors of coordinates.
    """
    check(f, input, "input", integers=True)
    x = input if input.dtype.is_floating_point else input.to(dtype="float32")
    dims = range(len(x.shape_)) if dim is None else dim if isinstance(dim, (tuple, list)) else (dim,)
    dims = [check_dim(d, len(x.shape_)) for d in dims]
    if len(set(dims)) < len(dims):
        raise ValueError(f"`dim` of `gradient` must name each dim once, got {dim}")
    if spacing is None or isinstance(spacing, (int, float)):
        spacing = [1.0 if spacing is None else spacing] * len(dims)
    elif hasattr(spacing, "strides_"):
        spacing = [spacing]
    if len(spacing) != len(dims):
        raise ValueError(f"`spacing` of `gradient` must have {len(dims)} entries, one for each dim, got {len(spacing)}")
    if edge_order not in (1, 2) or any(x.shape_[d] <= edge_order for d in dims):
        raise ValueError(
            f"`edge_order` of `gradient` must be 1 or 2, and sizes above it, got {edge_order} and shape {x.shape_}"
        )
    found = []
    for d, h in zip(dims, spacing):
        if hasattr(h, "strides_"):
            if h.shape_ != (x.shape_[d],):
                raise ValueError(f"`spacing` of `gradient` for dim {d} must be [{x.shape_[d]}], got {h.shape_}")
            h = f.sub(h[1:], h[:-1])
        found.append(_slopes(f, x, d, h, edge_order))
    return tuple(found)


# ---- histograms ----------------------------------------------------------------------------------


def _histogramdd_ref(x, bins, *, range=None, weight=None, density=False):
    rows = x.reshape(-1, x.shape[-1])
    ends = None if range is None else [range[i : i + 2] for i in builtins.range(0, len(range), 2)]
    hist, edges = np.histogramdd(rows, bins, ends, density, None if weight is None else weight.reshape(-1))
    return hist, tuple(edges)


def _histogramdd_samples(rng):
    yield (rng.uniform(0, 1, (40, 2)), [3, 4]), {"range": [0.0, 1.0, -1.0, 2.0]}


@composite(
    dtypes=("float32", "float64"), ref=_histogramdd_ref, samples=_histogramdd_samples, gradient=None,
    fields=("hist", "bin_edges"),
)  # fmt: skip
def histogramdd(f, input, bins, *, range=None, weight=None, density: bool = False):
    """(hist, bin_edges) of points, the last dim of `input` [..., D]: counts, or sums of `weight` [...], in D dims.

    `bins` is a number for all dims, or for each; or edges, one vector for each. `range` [2 D] has the ends of equal
    bins, by default those of the points; with `density` the volume is 1.
    """
    check(f, input, "input")
    points = input.reshape(-1, input.shape_[-1])
    count = points.shape_[1]
    bins = [bins] * count if isinstance(bins, int) else list(bins)
    if len(bins) != count:
        raise ValueError(f"`bins` of `histogramdd` must have {count} entries, one for each dim, got {len(bins)}")
    place, inside, edges = None, None, []
    for d, own in enumerate(bins):
        x = f.rearrange(points[:, d])
        ends = None if range is None else tuple(range[2 * d : 2 * d + 2])
        if not hasattr(own, "strides_"):
            low, high = _ends(f, x, ends)
            own = f.from_array(np.linspace(low, high, own + 1), x.device).to(dtype=x.dtype)
        edges.append(own)
        n = own.shape_[0] - 1
        at = f.sub(f.searchsorted(own, x, right=True), 1)
        at = f.where(f.eq(x, own[-1]), n - 1, at)
        shown = f.logical_and(f.ge(at, 0), f.lt(at, n))
        inside = shown if inside is None else f.logical_and(inside, shown)
        at = f.where(shown, at, 0)
        place = at if place is None else place * n + at
    shape = [e.shape_[0] - 1 for e in edges]
    share = inside.to(dtype=points.dtype) if weight is None else f.where(inside, weight.reshape(-1), 0.0)
    hist = f.scatter_add(points.new_zeros(product(shape)), 0, place, share).reshape(shape)
    if density:
        hist = hist / f.sum(hist)
        for d, own in enumerate(edges):
            hist = hist / f.sub(own[1:], own[:-1]).reshape(-1, *(1,) * (count - d - 1))
    return hist, tuple(edges)


def _ends(f, x, ends):
    if ends is None:
        ends = (float(f.amin(x).item()), float(f.amax(x).item())) if x.numel_ else (0.0, 1.0)
    low, high = ends
    if not (math.isfinite(low) and math.isfinite(high)) or low > high:
        raise ValueError(f"`range` of `histogramdd` must be finite and rising, got {low} to {high}")
    return (low, high) if low < high else (low - 0.5, high + 0.5)
