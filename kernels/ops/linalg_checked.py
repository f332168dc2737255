"""Decompositions that say what failed in a number for each matrix instead of an error: `linalg_*_ex`; and L D L^T."""

import functools
import math

import numpy as np

from ..table.composite import composite
from ..table.registry import COMPLEX, op
from ._layout import check
from .decompositions import _TOLERANCE, _WIDE, _squares, _well_conditioned, check_matrices, positive
from .factors import _lu_ref


def _not_positive(a):
    """The order of the first leading minor that is not positive."""
    for k in range(1, len(a) + 1):
        try:
            np.linalg.cholesky(a[:k, :k])
        except np.linalg.LinAlgError:
            return k
    return 0


def _zero_pivot(a):
    """The place of the first 0 on the diagonal of U, counted from 1."""
    with np.errstate(all="ignore"):
        lu = _lu_ref(np.array(a, np.complex128 if np.iscomplexobj(a) else np.float64))[0]
    zeros = np.flatnonzero(~(np.abs(np.diagonal(lu)) > 0))
    return int(zeros[0]) + 1 if len(zeros) else 0


def _checked(f, compute, A, others, place, check_errors):
    """(*results of `compute(A, *others)`, info): of matrices without a result NaN, and their place in info."""
    info = A.new_zeros(A.shape_[:-2], dtype="int32")
    as_tuple = lambda y: tuple(y) if isinstance(y, tuple) else (y,)
    try:
        return (*as_tuple(compute(A, *others)), info)
    except ValueError:
        if check_errors:
            raise
    batch, found, codes = A.shape_[:-2], [], []
    flat = [x.reshape(-1, *x.shape_[len(batch) :]) for x in (A, *others)]
    eye = f.from_array(np.eye(A.shape_[-1], dtype=A.dtype.numpy), A.device)
    for i in range(math.prod(batch)):
        own = [x[i] for x in flat]
        try:
            found.append(as_tuple(compute(*own)))
            codes.append(0)
        except ValueError:
            nan = lambda x: x * math.nan if x.dtype.differentiable else x
            found.append(tuple(nan(x) for x in as_tuple(compute(eye, *own[1:]))))
            codes.append(place(np.array(own[0].tolist())))
    results = [f.stack(list(part)).reshape(*batch, *part[0].shape_) for part in zip(*found)]
    return (*results, f.from_array(np.array(codes, np.int32), A.device).reshape(batch))


def _no_info(function, count=1):
    def ref(A, *others, **options):
        found = function(A, *others)
        return (*(found if count > 1 else (found,)), np.zeros(A.shape[:-2], np.int32))

    return ref


@composite(
    dtypes=(*_WIDE, *COMPLEX), ref=_no_info(np.linalg.inv), samples=_squares, tolerance=_TOLERANCE,
    fields=("inverse", "info"),
)  # fmt: skip
def linalg_inv_ex(f, A, *, check_errors: bool = False):
    """(inverse, info) of A [..., N, N]: info [...] is 0, or the place of a 0 on the diagonal of U in A = P L U, counted
    from 1, and the inverse NaN; with `check_errors`, that is a ValueError.
    """
    check_matrices(f, A)
    return _checked(f, f.linalg_inv, A, (), _zero_pivot, check_errors)


@composite(
    dtypes=(*_WIDE, *COMPLEX), ref=_no_info(np.linalg.cholesky), samples=positive, tolerance=_TOLERANCE,
    fields=("L", "info"),
)  # fmt: skip
def linalg_cholesky_ex(f, A, *, upper: bool = False, check_errors: bool = False):
    """(L, info) of `linalg_cholesky`: info [...] is 0, or the order of the first leading minor of A that is not
    positive, and L NaN; with `check_errors`, that is a ValueError.
    """
    check_matrices(f, A)
    return _checked(f, lambda a: f.linalg_cholesky(a, upper=upper), A, (), _not_positive, check_errors)


def _system_samples(rng):
    yield (_well_conditioned(rng, 3, 3), rng.standard_normal((3, 2))), {}
    yield (_well_conditioned(rng, 2, 4, 4), rng.standard_normal((2, 4, 1))), {}


@composite(
    dtypes=(*_WIDE, *COMPLEX), ref=_no_info(np.linalg.solve), samples=_system_samples, tolerance=_TOLERANCE,
    fields=("result", "info"),
)  # fmt: skip
def linalg_solve_ex(f, A, B, *, left: bool = True, check_errors: bool = False):
    """(result, info) of `linalg_solve`: info [...] as that of `linalg_inv_ex`, the result NaN where it is not 0."""
    check_matrices(f, A)
    check(f, B, "B")
    solve = lambda a, *b: f.linalg_solve(a, *b, left=left)
    vectors = len(B.shape_) == 1 or B.shape_ == A.shape_[:-1]
    b = B.unsqueeze(-1) if vectors and left else B
    batch = np.broadcast_shapes(A.shape_[:-2], b.shape_[:-2])
    a, b = A.expand(*batch, *A.shape_[-2:]), b.expand(*batch, *b.shape_[-2:])
    result, info = _checked(f, solve, a, (b,), _zero_pivot, check_errors)
    return (result.squeeze(-1).clone() if vectors and left else result), info


@composite(
    dtypes=(*_WIDE, *COMPLEX), ref=_no_info(_lu_ref, 2), samples=_squares, tolerance={"float32": (2e-3, 1e-4)},
    fields=("LU", "pivots", "info"),
)  # fmt: skip
def linalg_lu_factor_ex(f, A, *, pivot: bool = True, check_errors: bool = False):
    """(LU, pivots, info) of `linalg_lu_factor`: info [...] as that of `linalg_inv_ex`, LU NaN where it is not 0."""
    check_matrices(f, A, square=False)
    return _checked(f, lambda a: f.linalg_lu_factor(a, pivot=pivot), A, (), _zero_pivot, check_errors)


# ---- L D L^T -------------------------------------------------------------------------------------

_ALPHA = (1 + math.sqrt(17)) / 8  # balances the growth of a step of one and of two (Bunch and Kaufman, 1977)


def _magnitude(x):
    """LAPACK's size of a complex number."""
    return np.abs(x.real) + np.abs(x.imag)


def _turned(x, hermitian):
    return x.conj().T if hermitian else x.T


def _ldl_one(a, hermitian):
    """LD, pivots and info of one symmetric or Hermitian matrix, whose lower triangle is read, with Bunch and Kaufman's
    pivots: a negative one twice marks a 2 x 2 block of D.
    """
    n, pivots, info, k = len(a), np.zeros(len(a), np.int32), 0, 0
    whole = np.tril(a) + _turned(np.tril(a, -1), hermitian)
    while k < n:
        at, step = k, 1
        size, below = _magnitude(whole[k, k]), _magnitude(whole[k + 1 :, k])
        largest = below.max(initial=0)
        if max(size, largest) == 0:
            info = info or k + 1
            pivots[k] = k + 1
            k += 1
            continue
        if size < _ALPHA * largest:
            row = k + 1 + int(below.argmax())
            rest = _magnitude(np.delete(whole[row, k:], row - k)).max(initial=0)
            if size * rest < _ALPHA * largest * largest:
                at = row
                step = 1 if _magnitude(whole[row, row]) >= _ALPHA * rest else 2
        last = k + step - 1
        whole[k:, [last, at]] = whole[k:, [at, last]]
        whole[[last, at], k:] = whole[[at, last], k:]
        block = whole[k : last + 1, k : last + 1]
        rows = whole[last + 1 :, k : last + 1].copy()
        factors = np.linalg.solve(block.T, rows.T).T
        whole[last + 1 :, last + 1 :] -= factors @ _turned(rows, hermitian)
        whole[last + 1 :, k : last + 1] = factors
        pivots[k : last + 1] = at + 1 if step == 1 else -(at + 1)
        k = last + 1
    return np.tril(whole), pivots, info


def _ldl_ref(A, hermitian=False):
    batch = A.shape[:-2]
    found = [_ldl_one(A[at], hermitian) for at in np.ndindex(*batch)]
    return (
        np.array([x for x, _, _ in found], A.dtype).reshape(A.shape),
        np.array([p for _, p, _ in found], np.int32).reshape(A.shape[:-1]),
        np.array([i for _, _, i in found], np.int32).reshape(batch),
    )


def _symmetric(rng):
    for shape in ((4, 4), (2, 5, 5)):
        x = rng.standard_normal(shape)
        yield (x + x.swapaxes(-1, -2),), {}


@op(
    dtypes=(*_WIDE, *COMPLEX), ref=_ldl_ref, samples=_symmetric, tolerance={"float32": (2e-3, 1e-3)},
    gradient="missing", outputs=("out", "pivots", "info"), fields=("LD", "pivots", "info"),
)  # fmt: skip
def linalg_ldl_factor_ex(call, A, *, hermitian: bool = False, check_errors: bool = False):
    """(LD, pivots, info) of `linalg_ldl_factor`; info [...] is 0, or the place of a 0 on the diagonal of D, from 1."""
    check_matrices(call, A)
    LD, pivots, info = call.lapack(lambda a: _ldl_ref(a, hermitian), A)
    if check_errors and any(np.ravel(info.tolist())):
        raise ValueError(f"`A` of `{call.op.name}` is singular: D has a 0 on its diagonal")
    return LD, pivots, info


@composite(
    dtypes=(*_WIDE, *COMPLEX), ref=lambda A: _ldl_ref(A)[:2], samples=_symmetric, tolerance={"float32": (2e-3, 1e-3)},
    gradient="missing", fields=("LD", "pivots"),
)  # fmt: skip
def linalg_ldl_factor(f, A, *, hermitian: bool = False):
    """(LD, pivots int32) of symmetric A [..., N, N] = P L D L^T P^T, or with `hermitian` P L D L^H P^T, of which the
    lower triangle is read.

    D, with blocks of 1 x 1 and 2 x 2 on its diagonal, and L below it stand in LD. Row k was exchanged with row
    pivots[k], counted from 1; where two that follow are negative, they are a block, whose second row was exchanged.
    """
    return tuple(f.linalg_ldl_factor_ex(A, hermitian=hermitian, check_errors=True))[:2]


def _ldl_solve_one(ld, pivots, b, hermitian):
    n, d, k = len(ld), np.diag(np.diagonal(ld)), 0
    low = np.tril(ld, -1) + np.eye(n)
    moves = []
    while k < n:
        step = 1 if pivots[k] > 0 else 2
        last, at = k + step - 1, abs(pivots[k]) - 1
        if step == 2:
            d[last, k] = ld[last, k]
            d[k, last] = np.conj(ld[last, k]) if hermitian else ld[last, k]
            low[last, k] = 0
        moves.append((k, last, at))
        k = last + 1
    # the columns of L of earlier steps are not exchanged by later ones: step by step
    x = b.copy()
    for k, last, at in moves:
        x[[last, at]] = x[[at, last]]
        x[last + 1 :] -= low[last + 1 :, k : last + 1] @ x[k : last + 1]
    x = np.linalg.solve(d, x)
    for k, last, at in reversed(moves):
        x[k : last + 1] -= _turned(low[last + 1 :, k : last + 1], hermitian) @ x[last + 1 :]
        x[[last, at]] = x[[at, last]]
    return x


def _ldl_solve_ref(LD, pivots, B, *, hermitian=False):
    batch = np.broadcast_shapes(LD.shape[:-2], B.shape[:-2])
    LD, B = (np.broadcast_to(x, (*batch, *x.shape[-2:])) for x in (LD, B))
    pivots = np.broadcast_to(pivots, (*batch, pivots.shape[-1]))
    found = [_ldl_solve_one(LD[at], pivots[at], B[at], hermitian) for at in np.ndindex(*batch)]
    return np.array(found, B.dtype).reshape(*batch, *B.shape[-2:])


def _ldl_solve_samples(rng):
    for (a,), _ in _symmetric(rng):
        yield (*_ldl_ref(a)[:2], rng.standard_normal((*a.shape[:-1], 3))), {}


@op(dtypes=(*_WIDE, *COMPLEX), ref=_ldl_solve_ref, samples=_ldl_solve_samples, tolerance={"float32": (5e-3, 2e-3)})
def linalg_ldl_solve(call, LD, pivots, B, *, hermitian: bool = False):
    """X [..., N, K] with A X = B, for what `linalg_ldl_factor` gives of A; batch dims broadcast. The derivative is that
    by B.
    """
    check_matrices(call, LD, "LD")
    check_matrices(call, B, "B", square=False)
    if pivots.shape_ != LD.shape_[:-1] or B.shape_[-2] != LD.shape_[-1] or B.dtype is not LD.dtype:
        raise ValueError(
            f"`LD` [..., N, N], `pivots` [..., N] and `B` [..., N, K] of `{call.op.name}` must match, got {LD.shape_}, "
            f"{pivots.shape_} and {B.shape_} {B.dtype.name}"
        )
    return call.lapack(functools.partial(_ldl_solve_ref, hermitian=hermitian), LD, pivots, B)


@linalg_ldl_solve.grad("B")
def _(f, g, LD, pivots, B, hermitian):
    turned = f.conj(LD) if hermitian and LD.dtype.kind == "c" else LD  # of A^T
    return f.sum_to_size(f.linalg_ldl_solve(turned, pivots, g, hermitian=hermitian), B.shape_)
