"""Linear algebra that is written with other ops: systems, norms, powers, ranks, distances. The names are PyTorch's."""

import math

import numpy as np

from ..table.composite import composite
from ..table.registry import COMPLEX, INEXACT
from ._layout import check, check_dim
from ._spectra import is_reflected, is_small
from .decompositions import (
    _TOLERANCE,
    _WIDE,
    _pinv_ref,
    _rectangles,
    _t,
    _well_conditioned,
    adjoint_of,
    check_matrices,
    eye_of,
)
from .factors import _lu_ref


def _together(f, *matrices):
    """Matrices with one batch, to which theirs broadcast."""
    try:
        batch = np.broadcast_shapes(*[x.shape_[:-2] for x in matrices])
    except ValueError:
        shapes = " and ".join(str(x.shape_) for x in matrices)
        raise ValueError(f"`{f.op.name}` needs batches that broadcast, got shapes {shapes}") from None
    return [x.expand(*batch, *x.shape_[-2:]) for x in matrices]


def _fits(f, a, b):
    if a.shape_[-1] != b.shape_[-2] or a.dtype is not b.dtype:
        raise ValueError(
            f"`A` and `B` of `{f.op.name}` must be of one dtype and match, got {a.shape_} {a.dtype.name} and "
            f"{b.shape_} {b.dtype.name}"
        )


# ---- systems -----------------------------------------------------------------------------------


def _solve_ref(A, B, *, left=True):
    if B.ndim == 1 or B.shape == A.shape[:-1]:
        return np.linalg.solve(A, B[..., None])[..., 0]
    if left:
        return np.linalg.solve(A, B)
    return np.linalg.solve(A.swapaxes(-1, -2), B.swapaxes(-1, -2)).swapaxes(-1, -2)


def _system_samples(rng):
    yield (_well_conditioned(rng, 3, 3), rng.standard_normal(3)), {}
    yield (_well_conditioned(rng, 2, 4, 4), rng.standard_normal((2, 4))), {}
    yield (_well_conditioned(rng, 4, 4), rng.standard_normal((2, 4, 5))), {}
    yield (_well_conditioned(rng, 3, 1, 4, 4), rng.standard_normal((2, 5, 4))), {"left": False}


@composite(dtypes=(*_WIDE, *COMPLEX), ref=_solve_ref, samples=_system_samples, tolerance=_TOLERANCE)
def linalg_solve(f, A, B, *, left=True):
    """X with A X = B, or without `left` X A = B, for A [..., N, N] and B [..., N, K]; batch dims broadcast.

    B [N], or B of the shape of A without its last dim, holds vectors. Raises ValueError for a singular A.
    """
    check_matrices(f, A)
    check(f, B, "B")
    if len(B.shape_) == 1 or B.shape_ == A.shape_[:-1]:
        if not left:
            raise ValueError(f"`left` of `{f.op.name}` must be True where `B` holds vectors, got shape {B.shape_}")
        return f.squeeze(f.linalg_solve(A, B.unsqueeze(-1)), -1).clone()
    if not left:
        return _t(f.linalg_solve(_t(A), _t(B))).contiguous()
    check_matrices(f, B, "B", square=False)
    _fits(f, A, B)
    return f.lapack_solve(*_together(f, A, B))


def _triangular_ref(A, B, *, upper, left=True, unitriangular=False):
    a = np.triu(A) if upper else np.tril(A)
    if unitriangular:
        a = a * (1 - np.eye(A.shape[-1])) + np.eye(A.shape[-1])
    if left:
        return np.linalg.solve(a, B)
    return np.linalg.solve(a.swapaxes(-1, -2), B.swapaxes(-1, -2)).swapaxes(-1, -2)


def _triangular_samples(rng):
    for options in ({"upper": True}, {"upper": False, "unitriangular": True}):
        yield (np.eye(4) + _well_conditioned(rng, 4, 4) / 4, rng.standard_normal((2, 4, 5))), options
        yield (np.eye(3) + _well_conditioned(rng, 2, 3, 3) / 4, rng.standard_normal((4, 3))), {**options, "left": False}


@composite(dtypes=(*_WIDE, *COMPLEX), ref=_triangular_ref, samples=_triangular_samples, tolerance=_TOLERANCE)
def linalg_solve_triangular(f, A, B, *, upper, left=True, unitriangular=False):
    """X with A X = B, or without `left` X A = B, for triangular A [..., N, N]; batch dims broadcast.

    The other triangle is not read, nor is the diagonal with `unitriangular`, which takes it for 1.
    """
    check_matrices(f, A)
    check(f, B, "B")
    check_matrices(f, B, "B", square=False)
    if not left:
        x = f.linalg_solve_triangular(_t(A), _t(B), upper=not upper, unitriangular=unitriangular)
        return _t(x).contiguous()
    _fits(f, A, B)
    return f.triangular_solution(*_together(f, A, B), upper=upper, unitriangular=unitriangular)


def _lu_solve_ref(b, LU_data, LU_pivots, left=True, adjoint=False):
    if not left:
        return _lu_solve_ref(b.T, LU_data, LU_pivots, True, not adjoint).T
    low, up = np.tril(LU_data, -1) + np.eye(LU_data.shape[-1]), np.triu(LU_data)
    rows = np.arange(len(b))
    for k, p in enumerate(LU_pivots):
        rows[[k, p - 1]] = rows[[p - 1, k]]
    if adjoint:
        return np.linalg.solve((low @ up)[np.argsort(rows)].T, b)
    return np.linalg.solve(up, np.linalg.solve(low, b[rows]))


def _lu_solve_samples(rng):
    lu, pivots = _lu_ref(_well_conditioned(rng, 5, 5))
    yield (rng.standard_normal((5, 3)), lu, pivots), {}
    yield (rng.standard_normal((5, 3)), lu, pivots), {"adjoint": True}
    yield (rng.standard_normal((3, 5)), lu, pivots), {"left": False}


@composite(dtypes=(*_WIDE, *COMPLEX), ref=_lu_solve_ref, samples=_lu_solve_samples, tolerance=_TOLERANCE)
def lu_solve(f, b, LU_data, LU_pivots, *, left: bool = True, adjoint: bool = False):
    """X with A X = b, for b [..., N, K] and the factors of A that `linalg_lu_factor` gives; batch dims broadcast.

    `adjoint` solves A^H X = b, and `left=False` X A = b for b [..., K, N].
    """
    check_matrices(f, LU_data, "LU_data")
    check_matrices(f, b, "b", square=False)
    if not left:
        turned = f.lu_solve(adjoint_of(f, b), LU_data, LU_pivots, adjoint=not adjoint)
        return adjoint_of(f, turned).contiguous()
    _fits(f, LU_data, b)
    if LU_pivots.shape_ != LU_data.shape_[:-1]:
        raise ValueError(f"`LU_pivots` of `lu_solve` must have shape {LU_data.shape_[:-1]}, got {LU_pivots.shape_}")
    factors, b = _together(f, LU_data, b)
    pivots = f.rearrange(LU_pivots.expand(*factors.shape_[:-1]))
    if adjoint:
        factors = adjoint_of(f, factors)
        lower = f.triangular_solution(factors, b, upper=False)
        turned = f.triangular_solution(factors, lower, upper=True, unitriangular=True)
        return f.exchange_rows(turned, pivots, True)
    turned = f.exchange_rows(b, pivots)
    lower = f.triangular_solution(factors, turned, upper=False, unitriangular=True)
    return f.triangular_solution(factors, lower, upper=True)


def _linalg_lu_samples(rng):
    (b, lu, pivots), _ = next(_lu_solve_samples(rng))
    yield (lu, pivots, b), {}


@composite(
    dtypes=(*_WIDE, *COMPLEX), ref=lambda LU, pivots, B: _lu_solve_ref(B, LU, pivots), samples=_linalg_lu_samples,
    tolerance=_TOLERANCE,
)  # fmt: skip
def linalg_lu_solve(f, LU, pivots, B, *, left: bool = True, adjoint: bool = False):
    """`lu_solve` with its arguments in the order of `linalg`."""
    return f.lu_solve(B, LU, pivots, left=left, adjoint=adjoint)


def _cholesky_solve_ref(B, L, upper=False):
    return np.linalg.solve(L.conj().T @ L if upper else L @ L.conj().T, B)


def _cholesky_samples(rng):
    low = np.tril(_well_conditioned(rng, 4, 4)) + 2 * np.eye(4)
    yield (rng.standard_normal((4, 3)), low), {}
    yield (rng.standard_normal((4, 3)), low.T), {"upper": True}


@composite(dtypes=(*_WIDE, *COMPLEX), ref=_cholesky_solve_ref, samples=_cholesky_samples, tolerance=_TOLERANCE)
def cholesky_solve(f, B, L, upper=False):
    """X with A X = B [..., N, K], for A = L L^H with a Cholesky factor L [..., N, N] (`upper`: A = L^H L)."""
    check_matrices(f, L, "L")
    check_matrices(f, B, "B", square=False)
    first, second = (adjoint_of(f, L), L) if upper else (L, adjoint_of(f, L))
    return f.linalg_solve_triangular(second, f.linalg_solve_triangular(first, B, upper=False), upper=True)


def _factor_samples(rng):
    for (_, low), options in _cholesky_samples(rng):
        yield (low,), options


@composite(
    dtypes=(*_WIDE, *COMPLEX), ref=lambda L, upper=False: _cholesky_solve_ref(np.eye(len(L)), L, upper),
    samples=_factor_samples, tolerance=_TOLERANCE,
)  # fmt: skip
def cholesky_inverse(f, L, upper=False):
    """The inverse of A = L L^H with a Cholesky factor L [..., N, N] (`upper`: A = L^H L)."""
    check_matrices(f, L, "L")
    return f.cholesky_solve(eye_of(f, L, L.shape_[-1]).expand(*L.shape_), L, upper)


def _lstsq_ref(A, B, rcond=None, *, driver=None):
    b = B[..., None] if B.ndim == A.ndim - 1 else B
    x = _pinv_ref(A, rtol=rcond) @ b
    m, n = A.shape[-2:]
    s = np.linalg.svd(A, compute_uv=False)
    rank = (s > (max(m, n) * np.finfo(A.dtype).eps if rcond is None else rcond) * s.max(-1, keepdims=True)).sum(-1)
    known = driver in ("gelsd", "gelss")
    full = (known or driver == "gels") and m > n and (rank == n).all()
    left = (np.abs(A @ x - b) ** 2).sum(-2) if full else np.zeros(0)
    return (
        x[..., 0] if B.ndim == A.ndim - 1 else x,
        left,
        rank.astype(np.int64) if driver != "gels" else np.zeros(0, np.int64),
        s if known else np.zeros(0),
    )


def _lstsq_samples(rng):
    for (a,), _ in _rectangles(rng):
        if a.size:
            yield (a, rng.standard_normal((*a.shape[:-1], 2))), {"driver": "gelsd"}
    yield (rng.standard_normal((5, 1)) @ rng.standard_normal((1, 3)), rng.standard_normal((5, 2))), {"rcond": 1e-4}


def _lstsq_gels_samples(rng):
    for args, options in _lstsq_samples(rng):
        if args[0].shape[-2] >= args[0].shape[-1] and "driver" in options:
            yield args, {"driver": "gels"}


def _by_reflections(f, A, b, rcond):
    """The X of least |A X - b| by Q and R, if no singular value of A is `rcond` times the largest, or less; else None.

    What tells is the size of R and of its inverse, whose product is at least the ratio of the extreme ones.
    """
    q, r = f.linalg_qr(A)
    n, columns = A.shape_[-1], b.shape_[-1]
    sides = f.cat([f.matmul(_t(q), b), eye_of(f, A, n).expand(*A.shape_[:-2], n, n)], -1)
    x = f.triangular_solution(r, sides, upper=True)
    bound = f.mul(f.norm(r, 2, (-2, -1)), f.norm(x.narrow(-1, columns, n), 2, (-2, -1)))
    if not f.all(f.lt(f.mul(bound, rcond), 1.0)):
        return None
    return f.rearrange(x.narrow(-1, 0, columns))


@composite(
    dtypes=(*_WIDE, *COMPLEX), ref=_lstsq_ref, samples=_lstsq_samples, grad_samples=_lstsq_gels_samples,
    tolerance=_TOLERANCE, fields=("solution", "residuals", "rank", "singular_values"),
)  # fmt: skip
def linalg_lstsq(f, A, B, rcond=None, *, driver=None):
    """The X of least |A X - B|, and of those the smallest: (solution, residuals, rank, singular_values).

    A [..., M, N], B [..., M, K] or [..., M]. Singular values up to `rcond` (max(M, N) times the epsilon) times the
    largest count as 0. All drivers compute the same X here, and differ as PyTorch's in what is given beside it:
    "gelsy", the default, the rank alone; "gels" the residuals alone; "gelsd" and "gelss" all. The others are empty.
    Residuals are the squares |A X - B|^2 of the columns, where M > N and (but for "gels") all ranks are N.
    """
    check_matrices(f, A, square=False)
    check(f, B, "B")
    if driver not in (None, "gels", "gelsy", "gelsd", "gelss"):
        raise ValueError(f"`driver` of `{f.op.name}` must be 'gels', 'gelsy', 'gelsd' or 'gelss', got {driver!r}")
    vectors = len(B.shape_) == len(A.shape_) - 1
    b = B.unsqueeze(-1) if vectors else B
    m, n = A.shape_[-2:]
    if len(b.shape_) < 2 or b.shape_[-2] != m:
        raise ValueError(f"`B` of `{f.op.name}` must have the {m} rows of `A`, got shape {B.shape_}")
    known, found = driver in ("gelsd", "gelss"), None
    if not known and m >= n and not A.tracked and is_reflected(A) and not is_small(A):
        found = _by_reflections(f, A, b, float(np.finfo(A.dtype.numpy).eps) * m if rcond is None else rcond)
    if found is not None:
        x, values, rank = found, A.new_zeros(0), A.new_full(A.shape_[:-2], n, dtype="int64")
    elif rcond is None and A.numel_ and not A.tracked:  # one decomposition serves all
        u, values, vh = f.linalg_svd(A, False)
        kept = f.gt(values, f.mul(f.amax(values, -1, True), max(m, n) * float(np.finfo(A.dtype.numpy).eps)))
        rank = f.sum(kept, -1)
        shares = f.unsqueeze(f.where(kept, f.reciprocal(values), 0.0), -1)
        x = f.matmul(adjoint_of(f, vh), f.mul(shares, f.matmul(adjoint_of(f, u), b)))
    else:
        x = f.matmul(f.linalg_pinv(A, rtol=rcond), b)
        values = f.linalg_svdvals(A.detach())
        rank = f.linalg_matrix_rank(A.detach(), rtol=rcond)
    full = driver == "gels" or (known and all(r == n for r in np.ravel(rank.tolist())))
    left = f.sum(f.square(f.abs(f.matmul(A, x) - b)), -2) if m > n and full else values.new_zeros(0)
    solution = f.squeeze(x, -1).clone() if vectors else x
    rank = rank.new_zeros(0) if driver == "gels" else rank
    return solution, left, rank, values if known else values.new_zeros(0)


# ---- factors and products by their own names ---------------------------------------------------


def _lu_parts_ref(A, *, pivot=True):
    lu, pivots = _lu_ref(A)
    k = min(A.shape[-2:])
    low = np.tril(lu[..., :k], -1) + np.eye(A.shape[-2], k)
    turn = np.zeros((*A.shape[:-2], A.shape[-2], A.shape[-2]))
    for at in np.ndindex(*A.shape[:-2]):
        order = list(range(A.shape[-2]))
        for i, p in enumerate(pivots[at]):
            order[i], order[p - 1] = order[p - 1], order[i]
        turn[(*at, order, range(A.shape[-2]))] = 1
    return turn, low, np.triu(lu[..., :k, :])


def _lu_parts_samples(rng):
    for shape in ((3, 3), (2, 4, 4), (5, 3)):
        yield (rng.standard_normal(shape),), {}


@composite(
    dtypes=(*_WIDE, *COMPLEX), ref=_lu_parts_ref, samples=_lu_parts_samples, tolerance={"float32": (2e-3, 1e-4)},
    fields=("P", "L", "U"),
)  # fmt: skip
def linalg_lu(f, A, *, pivot=True):
    """(P, L, U) with A = P L U for A [..., M, N]: a permutation, ones on the diagonal of L, U upper triangular.

    With K = min(M, N), L is [..., M, K] and U [..., K, N].
    """
    check_matrices(f, A, square=False)
    lu, pivots = f.linalg_lu_factor(A, pivot=pivot)
    m, k = A.shape_[-2], min(A.shape_[-2:])
    low = f.tril(lu.narrow(-1, 0, k), -1) + f.from_array(np.eye(m, k, dtype=A.dtype.numpy), A.device)
    turned = f.exchange_rows(eye_of(f, A, m).expand(*A.shape_[:-2], m, m), pivots, True)
    return turned, low, f.triu(lu.narrow(-2, 0, k))


def _vecdot_samples(rng):
    yield (rng.standard_normal((2, 3, 5)), rng.standard_normal((3, 5))), {}
    yield (rng.standard_normal((4, 3)), rng.standard_normal((4, 1))), {"dim": 0}


@composite(
    ref=lambda x, y, *, dim=-1: (x * y).sum(dim), samples=_vecdot_samples,
    tolerance={"float32": (1e-5, 1e-5), "bfloat16": (2e-2, 5e-2), "float16": (5e-3, 1e-2)}, dtypes=INEXACT
)  # fmt: skip
def linalg_vecdot(f, x, y, *, dim=-1):
    """The sums of the products of two tensors, the first conjugated, which broadcast, along `dim`."""
    for name, t in (("x", x), ("y", y)):
        check(f, t, name)
    alike = x.shape_ == y.shape_ and x.dtype is y.dtype and x.dtype.name in _WIDE
    if alike and x.contiguous_ and y.contiguous_ and len(x.shape_) > 1 and dim in (-1, len(x.shape_) - 1):
        return f.matmul(x.unsqueeze(-2), y.unsqueeze(-1)).reshape(x.shape_[:-1])  # one pass: half of the time
    return f.sum(f.conj(x) * y, dim)


def _tensorinv_samples(rng):
    yield (_well_conditioned(rng, 6, 6).reshape(2, 3, 6),), {}
    yield (_well_conditioned(rng, 6, 6).reshape(6, 3, 2),), {"ind": 1}


@composite(dtypes=(*_WIDE, *COMPLEX), ref=np.linalg.tensorinv, samples=_tensorinv_samples, tolerance=_TOLERANCE)
def linalg_tensorinv(f, A, ind=2):
    """The inverse of A under `tensordot(A, B, ind)`: the sizes of its first `ind` dims and of the others multiply to
    the same number, and the two groups change places.
    """
    check(f, A, "A")
    first, last = A.shape_[:ind], A.shape_[ind:]
    if ind < 1 or math.prod(first) != math.prod(last):
        raise ValueError(f"`ind` of `{f.op.name}` must split the sizes {A.shape_} into two equal products, got {ind}")
    return f.linalg_inv(A.reshape(math.prod(first), -1)).reshape(*last, *first)


def _tensorsolve_samples(rng):
    yield (_well_conditioned(rng, 6, 6).reshape(2, 3, 6), rng.standard_normal((2, 3))), {}
    yield (_well_conditioned(rng, 6, 6).reshape(2, 6, 3), rng.standard_normal((2, 3))), {"dims": (1,)}


@composite(
    dtypes=(*_WIDE, *COMPLEX), ref=lambda A, B, dims=None: np.linalg.tensorsolve(A, B, dims), tolerance=_TOLERANCE,
    samples=_tensorsolve_samples,
)  # fmt: skip
def linalg_tensorsolve(f, A, B, dims=None):
    """X with `tensordot(A, X, X.ndim)` = B, where A has the dims of B and then those of X, of as many elements.

    `dims` of A are moved behind its others first.
    """
    check(f, A, "A")
    check(f, B, "B")
    if dims is not None:
        moved = [check_dim(d, len(A.shape_), "dims") for d in dims]
        A = A.permute(*(d for d in range(len(A.shape_)) if d not in moved), *moved)
    rest = A.shape_[len(B.shape_) :]
    if not math.prod(A.shape_[: len(B.shape_)]) == B.numel_ == math.prod(rest):
        raise ValueError(
            f"`A` of `{f.op.name}` must be dims of {B.numel_} elements, twice, for `B` {B.shape_}, got {A.shape_}"
        )
    return f.linalg_solve(A.reshape(B.numel_, -1), B.reshape(-1)).reshape(rest)
