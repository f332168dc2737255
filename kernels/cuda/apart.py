"""Vectors of neighbouring columns, of rows that lie apart: how they are read and written is asked once for all rows, so
that loads are not branches.
"""

from ..build import jit
from ..lang.simd import address, vload, vload_aligned, vload_first, vstore_aligned, vstore_first


@jit.inline
def aligned(x, stride):
    """Whether all rows begin at multiples of 16 bytes."""
    return (address(x) | (address(x + stride) - address(x))) & 15 == 0


@jit.inline
def lined(x, stride, left, W):
    """Whether they have whole vectors there, too."""
    return left >= W and aligned(x, stride)


@jit.inline
def lined_row(x, i, left, W):
    """W neighbours from element i on, at a multiple of 16 bytes."""
    return vload_aligned(x, i, W)


@jit.inline
def whole_row(x, i, left, W):
    """The same, wherever they are."""
    return vload(x, i, W)


@jit.inline
def any_row(x, i, left, W):
    """The same, of which `left` are there."""
    return vload_first(x, i, W, left)


@jit.inline
def put_lined(y, i, v, left):
    vstore_aligned(y, i, v)


@jit.inline
def put_any(y, i, v, left):
    vstore_first(y, i, v, left)
