"""Decompositions of matrices by kernels of our own: singular values, eigenvalues of symmetric ones, Q and R."""

import numpy as np

from ..blocks.linalg import HOUSEHOLDER, NOT_FINITE, PAD, PSEUDO, RANKS, SINGULAR_VALUES, SYMMETRIC
from ._layout import product
from .copy import row_major

# Bytes of a side up to which values take less time than by LAPACK through NumPy. In float32, singular values and
# eigenvalues of 8 x 8: 5 us and 3, by LAPACK 25; of 128 x 128: 0.36 and 0.29 ms (1.8 and 0.56), with vectors 0.86 and
# 0.49 (3.5 and 1.1); of 256 x 256: 1.2 and 0.8 ms (4.6 and 1.4), with vectors 3.2 and 1.7 (8.8 and 2.7).
OWN = 1024
SMALL = 32  # sides up to which singular values are the same with and without vectors, to the bit
REFLECTED = 1 << 19  # bytes of a matrix up to which reflections do: half of a second-level cache


def has_own(A):
    """Whether singular values and eigenvalues of matrices [..., M, N] are found by kernels of our own."""
    fits = 0 < max(A.shape_[-2:]) * A.dtype.itemsize <= OWN and A.numel_ > 0
    return A.dtype.kind == "f" and fits and A.storage.backend.shares_memory


def is_small(A):
    """Whether singular values of matrices [..., M, N] take hardly more time than Q and R."""
    return has_own(A) and max(A.shape_[-2:]) <= SMALL


def is_reflected(A):
    """Whether Q and R of matrices [..., M, N] are made by kernels of our own."""
    fits = 0 < product(A.shape_[-2:]) * A.dtype.itemsize <= REFLECTED and A.numel_ > 0
    return A.dtype.kind == "f" and fits and A.storage.backend.shares_memory


def _unfinished(call, A):
    """The sentence of the error code."""
    return {NOT_FINITE: f"`{call.op.name}` has no result for a matrix of {A.shape_} that holds NaN or infinity"}


def _eps(A):
    return float(np.finfo(A.dtype.numpy).eps)


def _padded(size):
    return -(-size // PAD) * PAD


def _least(A):
    """What counts as 0 beside the diagonal, in matrices of elements up to 1: much less than rounding leaves."""
    return _eps(A) / 64 if A.dtype.name == "float32" else _eps(A)


def singular_values(call, A, s, y=None, z=None):
    """The singular values s [..., K] of A [..., M, N]; with y and z, the vectors [..., M, K or M], [..., K or N, N]."""
    full = min(A.shape_[-2:]) if y is None else max(y.shape_[-1], z.shape_[-2])
    batch, (rows, columns) = A.shape_[:-2], A.shape_[-2:]
    least, longer = min(rows, columns), max(rows, columns)
    moved = call.empty((*batch, _padded(longer) + 5, _padded(least) + 3), A.dtype)
    lefts, bands = call.empty((*batch, least, longer), A.dtype), call.empty((*batch, 2, least), "float64")
    squares, wanted = y is None and A.dtype.name == "float32" and longer > SMALL, y is not None
    short = call.empty((*batch, least, least), A.dtype) if wanted else lefts
    long = call.empty((*batch, full, longer), A.dtype) if wanted else lefts
    block = SINGULAR_VALUES(
        a=row_major(call, A), moved=moved, lefts=lefts, short=short, long=long, bands=bands,
        y=y if wanted else lefts, s=s, z=z if wanted else lefts, rows=rows, columns=columns, full=full,
        vectors=wanted, squares=squares, least=float(np.finfo(np.float64).eps) if squares else _least(A),
    )  # fmt: skip
    work = 8 * least * least * longer
    call.launch(
        "linalg.spectra.singular_values", {"T": A.dtype.name}, block, product(batch), work, _unfinished(call, A)
    )


def eigenvalues(call, A, upper, s, y=None):
    """The eigenvalues s [..., N] of symmetric matrices A [..., N, N]; with y, the vectors in its columns."""
    batch, size = A.shape_[:-2], A.shape_[-1]
    wide, wanted = _padded(size), y is not None
    moved, bands = call.empty((*batch, wide + 5, wide), A.dtype), call.empty((*batch, 2, size), "float64")
    basis = call.empty(A.shape_, A.dtype) if wanted else moved
    block = SYMMETRIC(
        a=row_major(call, A), moved=moved, basis=basis, bands=bands, y=y if wanted else moved, s=s, size=size,
        upper=bool(upper), vectors=wanted, least=_least(A),
    )  # fmt: skip
    call.launch(
        "linalg.spectra.symmetric", {"T": A.dtype.name}, block, product(batch), 4 * size**3, _unfinished(call, A)
    )


def reflected(call, A, q, r):
    """Q [..., M, any number up to M] and R [..., the same number, N] of A; without q, R alone."""
    batch, (rows, columns) = A.shape_[:-2], A.shape_[-2:]
    turned = call.empty((*batch, columns, rows), A.dtype)
    scales = call.empty((*batch, 2 * min(rows, columns)), A.dtype)
    basis = turned if q is None else call.empty((*batch, q.shape_[-1], rows), A.dtype)
    block = HOUSEHOLDER(
        x=row_major(call, A), turned=turned, scales=scales, basis=basis, q=turned if q is None else q, r=r, rows=rows,
        columns=columns, wide=0 if q is None else q.shape_[-1], height=r.shape_[-2],
    )  # fmt: skip
    work = 2 * rows * columns * min(rows, columns)
    call.launch("linalg.reflections.householder", {"T": A.dtype.name}, block, product(batch), work)


def _bounds(A, atol, rtol):
    """`atol` and `rtol` as numbers, by default as `least` has them."""
    if rtol is None:
        rtol = 0.0 if atol is not None and atol > 0 else max(A.shape_[-2:]) * _eps(A)
    return {"atol": 0.0 if atol is None else float(atol), "rtol": float(rtol)}


def pseudo_inverse(call, A, out, atol, rtol):
    """The pseudo-inverses out [..., N, M] of matrices A, by bounds that are numbers."""
    batch, (rows, columns) = A.shape_[:-2], A.shape_[-2:]
    least = min(rows, columns)
    s, shares = call.empty((*batch, least), A.dtype), call.empty((*batch, least), A.dtype)
    y, z = call.empty((*batch, rows, least), A.dtype), call.empty((*batch, least, columns), A.dtype)
    singular_values(call, A, s, y, z)
    block = PSEUDO(
        y=y, s=s, z=z, shares=shares, out=out, rows=rows, columns=columns, least=least, **_bounds(A, atol, rtol)
    )
    call.launch("linalg.spectra.pseudo_inverse", {"T": A.dtype.name}, block, product(batch), rows * columns * least)


def ranks(call, A, out, atol, rtol):
    """How many singular values of matrices A exceed bounds that are numbers: out [...] of int64."""
    batch, least = A.shape_[:-2], min(A.shape_[-2:])
    s = call.empty((*batch, least), A.dtype)
    singular_values(call, A, s)
    block = RANKS(s=s, out=out, least=least, **_bounds(A, atol, rtol))
    call.launch("linalg.spectra.ranks", {"T": A.dtype.name}, block, product(batch), least)
