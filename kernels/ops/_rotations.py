"""Decompositions of matrices by kernels of our own: singular values, eigenvalues of symmetric ones, Q and R."""

import numpy as np

from ..blocks.linalg import BANDS, DIAGONALS, HOUSEHOLDER, NOT_FINITE, PAD, PSEUDO, RANKS, SINGULAR_VALUES, SYMMETRIC
from ._layout import product
from .copy import row_major

# Sides up to which rotations take less time than LAPACK through NumPy: of symmetric matrices (8: 6 us and 25; 16: 24
# and 41) and of others (16: 16 us and 67; 32: 68 and 138; 64: 606 and 520).
SYMMETRIC_SIDES, SIDES = 16, 32
OWN = 1024  # bytes of a side up to which diagonals do (float32, 128: singular values 0.36 ms and 1.8, eigenvalues 0.29
# and 0.56, with vectors 0.86 and 3.5, 0.49 and 1.1; 256: 1.2 and 4.6, 0.8 and 1.4, 3.2 and 8.8, 1.7 and 2.7)
REFLECTED = 1 << 19  # bytes of a matrix up to which reflections do: half of a second-level cache


def has_own(A):
    """Whether singular values and eigenvalues of matrices [..., M, N] are found by kernels of our own."""
    fits = 0 < max(A.shape_[-2:]) * A.dtype.itemsize <= OWN and A.numel_ > 0
    return A.dtype.kind == "f" and fits and A.storage.backend.shares_memory


def is_small(A):
    """Whether singular values of matrices [..., M, N] are found by rotations."""
    return has_own(A) and max(A.shape_[-2:]) <= SIDES


def is_reflected(A):
    """Whether Q and R of matrices [..., M, N] are made by kernels of our own."""
    fits = 0 < product(A.shape_[-2:]) * A.dtype.itemsize <= REFLECTED and A.numel_ > 0
    return A.dtype.kind == "f" and fits and A.storage.backend.shares_memory


def _unfinished(call, A):
    """The sentence of the error code of rotations."""
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
    batch, (rows, columns) = A.shape_[:-2], A.shape_[-2:]
    least, longer = min(rows, columns), max(rows, columns)
    full = least if y is None else max(y.shape_[-1], z.shape_[-2])
    if longer > SIDES:
        return _by_two_diagonals(call, A, s, y, z, full)
    moved, turned = call.empty((*batch, full, longer), A.dtype), call.empty((*batch, least, least), A.dtype)
    wanted = y is not None
    block = SINGULAR_VALUES(
        a=row_major(call, A), moved=moved, turned=turned, y=y if wanted else turned, s=s, z=z if wanted else turned,
        rows=rows, columns=columns, full=full, vectors=wanted, eps=_eps(A),
    )  # fmt: skip
    work = 32 * least * least * longer
    call.launch("linalg.jacobi.singular_values", {"T": A.dtype.name}, block, product(batch), work, _unfinished(call, A))


def _by_two_diagonals(call, A, s, y, z, full):
    batch, (rows, columns) = A.shape_[:-2], A.shape_[-2:]
    least, longer = min(rows, columns), max(rows, columns)
    moved = call.empty((*batch, _padded(longer) + 5, _padded(least) + 3), A.dtype)
    lefts, bands = call.empty((*batch, least, longer), A.dtype), call.empty((*batch, 2, least), "float64")
    squares, wanted = y is None and A.dtype.name == "float32", y is not None
    short = call.empty((*batch, least, least), A.dtype) if wanted else lefts
    long = call.empty((*batch, full, longer), A.dtype) if wanted else lefts
    block = BANDS(
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
    if size > SYMMETRIC_SIDES:
        return _by_three_diagonals(call, A, upper, s, y)
    moved, turned = call.empty(A.shape_, A.dtype), call.empty(A.shape_, A.dtype)
    wanted = y is not None
    block = SYMMETRIC(
        a=row_major(call, A), moved=moved, turned=turned, y=y if wanted else turned, s=s, size=size,
        upper=bool(upper), vectors=wanted, eps=_eps(A),
    )  # fmt: skip
    call.launch(
        "linalg.jacobi.symmetric", {"T": A.dtype.name}, block, product(batch), 32 * size**3, _unfinished(call, A)
    )


def _by_three_diagonals(call, A, upper, s, y):
    batch, size = A.shape_[:-2], A.shape_[-1]
    wide, wanted = _padded(size), y is not None
    moved, bands = call.empty((*batch, wide + 5, wide), A.dtype), call.empty((*batch, 2, size), "float64")
    basis = call.empty(A.shape_, A.dtype) if wanted else moved
    block = DIAGONALS(
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
    call.launch("linalg.jacobi.pseudo_inverse", {"T": A.dtype.name}, block, product(batch), rows * columns * least)


def ranks(call, A, out, atol, rtol):
    """How many singular values of matrices A exceed bounds that are numbers: out [...] of int64."""
    batch, least = A.shape_[:-2], min(A.shape_[-2:])
    s = call.empty((*batch, least), A.dtype)
    singular_values(call, A, s)
    block = RANKS(s=s, out=out, least=least, **_bounds(A, atol, rtol))
    call.launch("linalg.jacobi.ranks", {"T": A.dtype.name}, block, product(batch), least)
