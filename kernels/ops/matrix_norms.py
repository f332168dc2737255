"""Norms, ranks and condition numbers under the names of PyTorch's `linalg`."""

import math

import numpy as np

from ..table.composite import composite
from ..table.registry import COMPLEX, INEXACT, op
from ._layout import check, check_dim
from ._spectra import has_own, ranks
from .decompositions import _WIDE, _well_conditioned, check_matrices, least, tolerances


def _vector_norm_ref(x, ord=2, dim=None, keepdim=False, *, dtype=None):
    if dim is None:
        return np.linalg.norm(x.reshape(-1), ord).reshape((1,) * x.ndim if keepdim else ())
    if isinstance(dim, int):
        return np.linalg.norm(x, ord, dim, keepdim)
    return (np.abs(x) ** ord).sum(tuple(dim), keepdims=keepdim) ** (1 / ord)


def _widened(f, x, dtype):
    """x in a dtype that holds its numbers."""
    y = x.to(dtype=dtype)
    if y.dtype is not f.result_type(x.new_empty(1), y.new_empty(1)):
        raise TypeError(f"`dtype` of `{f.op.name}` must be one that {x.dtype} goes into, got {y.dtype}: cast later")
    return y


def _vector_samples(rng):
    x = rng.uniform(0.5, 2, (3, 4, 5)) * rng.choice([-1, 1], (3, 4, 5))
    for ord in (2, 1, 3, -1, 0.5):
        yield (x, ord), {"dim": (0, 2)}
        yield (x, ord, 1, True), {}
    yield (x,), {}
    yield (x, math.inf, -1), {}
    yield (x, 0, -1), {}


def _vector_grad_samples(rng):
    for args, options in _vector_samples(rng):
        if args[1:2] != (0,):
            yield args, options


_NORM = {"float32": (2e-4, 1e-5), "bfloat16": (2e-2, 5e-2), "float16": (3e-3, 1e-2), "float64": (1e-9, 1e-10)}


@composite(
    ref=_vector_norm_ref,
    samples=_vector_samples,
    grad_samples=_vector_grad_samples,
    tolerance=_NORM,
    amp="float32",
    dtypes=INEXACT,
)
def linalg_vector_norm(f, x, ord=2, dim=None, keepdim=False, *, dtype=None):
    """sum(|x|^ord)^(1 / ord) over `dim` (an int, several, or None: all); inf, -inf: largest, smallest magnitude.

    0 counts what is not 0. `dtype` is that in which `x` is taken.
    """
    x = x if dtype is None else _widened(f, x, dtype)
    check(f, x, "x")
    if not isinstance(ord, (int, float)):
        raise TypeError(f"`ord` of `{f.op.name}` must be a number, got {ord!r}")
    return f.norm(x, ord, dim, keepdim)


_MATRIX_NORMS = ("fro", "nuc", math.inf, -math.inf, 1, -1, 2, -2)


def _matrix_norm_ref(A, ord="fro", dim=(-2, -1), keepdim=False, *, dtype=None):
    return np.linalg.norm(A, ord, tuple(dim), keepdim)


def _matrix_norm_samples(rng):
    for ord in _MATRIX_NORMS:
        yield (_well_conditioned(rng, 2, 4, 4)[..., :3], ord), {}
        yield (_well_conditioned(rng, 3, 3)[:, :, None], ord, (1, 0), True), {}


@composite(dtypes=INEXACT, ref=_matrix_norm_ref, samples=_matrix_norm_samples, tolerance=_NORM)
def linalg_matrix_norm(f, A, ord="fro", dim=(-2, -1), keepdim=False, *, dtype=None):
    """A norm of matrices in two dims: "fro", "nuc" (the sum of singular values), 2 and -2 (the largest, the smallest
    one), 1 and -1 (of the sums of magnitudes in columns), inf and -inf (in rows).
    """
    A = A if dtype is None else _widened(f, A, dtype)
    check(f, A, "A")
    if ord not in _MATRIX_NORMS:
        raise ValueError(f"`ord` of `{f.op.name}` must be one of {', '.join(map(str, _MATRIX_NORMS))}, got {ord!r}")
    if not hasattr(dim, "__len__") or len(dim) != 2:
        raise ValueError(f"`dim` of `{f.op.name}` must be two dims, got {dim!r}")
    rows, columns = (check_dim(d, len(A.shape_)) for d in dim)
    if rows == columns or len(A.shape_) < 2:
        raise ValueError(f"`dim` of `{f.op.name}` must be two different dims, got {tuple(dim)} for shape {A.shape_}")
    if ord == "fro":
        return f.norm(A, 2, (rows, columns), keepdim)
    if ord in ("nuc", 2, -2):
        wide = A.float() if A.dtype.itemsize == 2 else A  # LAPACK has no 16-bit numbers
        values = f.linalg_svdvals(f.movedim(wide, (rows, columns), (-2, -1)))
        result = f.sum(values, -1) if ord == "nuc" else (f.amax if ord > 0 else f.amin)(values, -1)
        result = result.to(dtype=A.dtype.real if A.dtype.kind == "c" else A.dtype)
    else:
        first, last = (rows, columns) if abs(ord) == 1 else (columns, rows)
        sums = f.sum(f.abs(A), first, True)
        result = (f.amax if ord > 0 else f.amin)(sums, last, True)
        result = f.squeeze(f.squeeze(result, max(rows, columns)), min(rows, columns)).clone()
    return f.unsqueeze(f.unsqueeze(result, min(rows, columns)), max(rows, columns)).clone() if keepdim else result


def _norm_ref(A, ord=None, dim=None, keepdim=False, *, dtype=None):
    return np.linalg.norm(A.reshape(-1) if ord is None and dim is None else A, ord, dim, keepdim)


def _norm_samples(rng):
    yield (rng.standard_normal((2, 3, 4)),), {}
    yield (rng.standard_normal(5), 3), {}
    yield (_well_conditioned(rng, 4, 4), "nuc"), {}
    yield (rng.standard_normal((2, 3)), 1, 0), {}
    yield (rng.standard_normal((2, 3, 3)), math.inf, (1, 2)), {}


@composite(dtypes=INEXACT, ref=_norm_ref, samples=_norm_samples, tolerance=_NORM)
def linalg_norm(f, A, ord=None, dim=None, keepdim=False, *, dtype=None):
    """`linalg_vector_norm` of one dim or of a vector, `linalg_matrix_norm` of two or of a matrix; without `ord`, the
    root of the sum of all squares.
    """
    check(f, A, "A")
    dims = 1 if isinstance(dim, int) else len(A.shape_) if dim is None else len(dim)
    if ord is None or dims == 1:
        return f.linalg_vector_norm(A, 2 if ord is None else ord, dim, keepdim, dtype=dtype)
    if dims != 2:
        raise ValueError(f"`A` of `{f.op.name}` must have one or two dims where `ord` is given, got shape {A.shape_}")
    return f.linalg_matrix_norm(A, ord, (-2, -1) if dim is None else dim, keepdim, dtype=dtype)


def _rank_ref(A, *, tol=None, atol=None, rtol=None, hermitian=False):
    return np.asarray(np.linalg.matrix_rank(A, tol), np.int64)


def _rank_samples(rng):
    for rank in (1, 2, 3):
        yield (rng.standard_normal((2, 5, rank)) @ rng.standard_normal((2, rank, 4)),), {"tol": 1e-3}
    yield (np.zeros((3, 3)),), {}


@op(dtypes=(*_WIDE, *COMPLEX), ref=_rank_ref, samples=_rank_samples, gradient=None)
def linalg_matrix_rank(call, A, *, tol=None, atol=None, rtol=None, hermitian=False):
    """How many singular values of A [..., M, N] exceed max(atol, rtol * the largest): int64 [...].

    `tol` is another name of `atol`; `rtol` is max(M, N) times the epsilon, or 0 beside an `atol`. `hermitian` says that
    A is symmetric. The bounds are numbers or tensors [...].
    """
    check_matrices(call, A, square=bool(hermitian))
    atol = tol if atol is None else atol
    atol, rtol = tolerances(call, A, atol, rtol)
    if has_own(A) and not hermitian and not isinstance(atol, np.ndarray) and not isinstance(rtol, np.ndarray):
        y = call.out(A.shape_[:-2], "int64")
        ranks(call, A, y, atol, rtol)
        return y

    def rank(a):
        values = np.abs(np.linalg.eigvalsh(a)) if hermitian else np.linalg.svd(a, compute_uv=False)
        return np.asarray((values > least(a, values, atol, rtol)).sum(-1), np.int64)

    return call.lapack(rank, A)


def _cond_samples(rng):
    for p in (None, 2, -2, 1, -1, math.inf, "fro", "nuc"):
        yield (_well_conditioned(rng, 2, 3, 3),), {"p": p}


@composite(dtypes=(*_WIDE, *COMPLEX), ref=np.linalg.cond, samples=_cond_samples, tolerance=_NORM)
def linalg_cond(f, A, p=None):
    """The condition numbers of matrices, norm(A) norm(inv(A)) by the norm `p`; 2, the default, also of other than
    square ones, whose singular values are compared. Infinity of singular ones.
    """
    check_matrices(f, A, square=p not in (None, 2, -2))
    if p in (None, 2, -2):
        values = f.linalg_svdvals(A)
        high, low = values.select(-1, 0), values.select(-1, values.shape_[-1] - 1)
        return f.div(low, high) if p == -2 else f.div(high, low)
    try:
        inverse = f.linalg_inv(A)
    except ValueError:
        if len(A.shape_) == 2:
            return A.new_full((), math.inf, dtype=A.dtype.real)
        return f.stack([f.linalg_cond(a, p) for a in A.unbind(0)], 0)
    return f.linalg_matrix_norm(A, p) * f.linalg_matrix_norm(inverse, p)
