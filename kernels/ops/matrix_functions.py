"""Powers, exponentials, logarithms of determinants and products of matrices; decompositions by their old names."""

import functools
import itertools
import math
from numbers import Integral

import numpy as np

from ..table.composite import composite
from ..table.registry import COMPLEX, INEXACT, NUMERIC, alias
from ._layout import check
from .decompositions import (
    _TOLERANCE,
    _WIDE,
    _pinv_ref,
    _rectangles,
    _t,
    _well_conditioned,
    check_matrices,
    eye_of,
    positive,
)
from .factors import _lu_ref


def _logdet_ref(input):
    sign, log = np.linalg.slogdet(input)
    return np.where(sign < 0, np.nan, log)


@composite(dtypes=(*_WIDE, *COMPLEX), ref=_logdet_ref, samples=positive, tolerance=_TOLERANCE)
def logdet(f, input):
    """The logarithms of the determinants of matrices [..., N, N]: NaN of negative ones, -inf of 0; complex of
    complex ones."""
    check_matrices(f, input, "input")
    sign, log = f.linalg_slogdet(input)
    if sign.dtype.kind == "c":
        return f.add(f.log(sign), log)
    return f.where(f.lt(sign, 0.0), math.nan, log)


def _power_samples(rng):
    for n in (0, 1, 2, 5):
        yield (_well_conditioned(rng, 2, 3, 3), n), {}


@composite(
    ref=np.linalg.matrix_power, samples=_power_samples,
    tolerance={"float32": (2e-4, 2e-4), "bfloat16": (5e-2, 0.5), "float16": (1e-2, 0.1)},
    grad_samples=lambda rng: ((args, options) for args, options in _power_samples(rng) if args[1]), dtypes=INEXACT
)  # fmt: skip
def linalg_matrix_power(f, A, n):
    """The product of `n` times A [..., N, N]; a negative `n` means the inverse (not in 16 bits), 0 the identity."""
    check_matrices(f, A)
    if isinstance(n, bool) or not isinstance(n, Integral):
        raise TypeError(f"`n` of `{f.op.name}` must be an integer, got {n!r}")
    if n == 0:
        return f.rearrange(eye_of(f, A, A.shape_[-1]).expand(*A.shape_))
    square, n = f.linalg_inv(A) if n < 0 else f.mul(A, 1.0), abs(n)
    result = None
    while n:
        if n & 1:
            result = square if result is None else f.matmul(result, square)
        n >>= 1
        square = f.matmul(square, square) if n else square
    return result


alias(linalg_matrix_power, "matrix_power")

# Pade approximant of degree 13, and the norm up to which it is exact to float64 (Higham, SIAM J. Matrix Anal. 26).
_PADE = (
    64764752532480000, 32382376266240000, 7771770303897600, 1187353796428800, 129060195264000, 10559470521600,
    670442572800, 33522128640, 1323241920, 40840800, 960960, 16380, 182, 1,
)  # fmt: skip
_PADE_NORM = 5.371920351148152


def _exp_ref(A):
    y, term = np.zeros(A.shape), np.broadcast_to(np.eye(A.shape[-1]), A.shape)
    for k in range(1, 80):
        y, term = y + term, term @ A / k
    return y


def _exp_samples(rng):
    for shape in ((1, 1), (3, 3), (2, 4, 4), (0, 2, 2)):
        yield (rng.standard_normal(shape),), {}
    yield (3 * rng.standard_normal((4, 4)),), {}


@composite(dtypes=INEXACT, ref=_exp_ref, samples=_exp_samples, tolerance={"float32": (2e-4, 2e-4)})
def linalg_matrix_exp(f, A):
    """The matrix exponentials of A [..., N, N], by scaling and squaring (Higham 2005); of 16-bit floats in float32."""
    check_matrices(f, A)
    if A.dtype.itemsize == 2:
        return f.linalg_matrix_exp(A.float()).to(dtype=A.dtype)
    norm = float(f.amax(f.sum(f.abs(A.detach()), -2)).item()) if A.numel_ else 0.0
    if not math.isfinite(norm):
        return f.mul(A, math.nan)
    times = max(0, math.ceil(math.log2(norm / _PADE_NORM))) if norm else 0
    a = A * 2.0**-times
    one, a2 = eye_of(f, A, A.shape_[-1]), f.matmul(a, a)
    a4 = f.matmul(a2, a2)
    a6 = f.matmul(a2, a4)
    b = [float(c) / _PADE[0] for c in _PADE]
    half = lambda k: f.matmul(a6, a6 * b[k + 12] + a4 * b[k + 10] + a2 * b[k + 8]) if k < 2 else None
    odd = f.matmul(a, half(1) + a6 * b[7] + a4 * b[5] + a2 * b[3] + one * b[1])
    even = half(0) + a6 * b[6] + a4 * b[4] + a2 * b[2] + one * b[0]
    result = f.linalg_solve(even - odd, even + odd)
    for _ in range(times):
        result = f.matmul(result, result)
    return result


alias(linalg_matrix_exp, "matrix_exp")


def _chain_samples(rng):
    for sizes in ((3, 7), (2, 9, 3), (10, 2, 30, 4, 5), (1, 40, 2, 3)):
        yield ([rng.standard_normal(s) for s in itertools.pairwise(sizes)],), {}
    yield ([rng.standard_normal(s) for s in ((5,), (5, 9), (9, 4), (4,))],), {}


def _chain_ref(tensors):
    result = tensors[0]
    for x in tensors[1:]:
        result = result @ x
    return result


@functools.lru_cache(256)
def _cuts(sizes):
    """{(i, j): after which one to cut the product of matrices i to j} of these heights and the last one's width."""
    count, cut = len(sizes) - 1, {}
    cost = {(i, i): 0 for i in range(count)}
    for length in range(1, count):
        for i in range(count - length):
            j = i + length
            cost[i, j], cut[i, j] = min(
                (cost[i, k] + cost[k + 1, j] + sizes[i] * sizes[k + 1] * sizes[j + 1], k) for k in range(i, j)
            )
    return cut


@composite(
    ref=_chain_ref,
    samples=_chain_samples,
    tolerance={"bfloat16": (5e-2, 1.0), "float16": (1e-2, 2e-1)},
    dtypes=NUMERIC,
)
def linalg_multi_dot(f, tensors):
    """The product of several matrices, in the order that takes the fewest operations; the first and the last may be
    vectors (a row, a column).
    """
    tensors = list(tensors)
    if not tensors:
        raise ValueError(f"`tensors` of `{f.op.name}` must hold at least one matrix, got none")
    for x in tensors:
        check(f, x, "tensors")
    if len(tensors) < 2:
        return f.mul(tensors[0], 1.0)
    row, column = len(tensors[0].shape_) == 1, len(tensors[-1].shape_) == 1
    tensors[0] = tensors[0].unsqueeze(0) if row else tensors[0]
    tensors[-1] = tensors[-1].unsqueeze(1) if column else tensors[-1]
    if any(len(x.shape_) != 2 for x in tensors):
        raise ValueError(f"`tensors` of `{f.op.name}` must be matrices, got {[x.shape_ for x in tensors]}")
    count, cut = len(tensors), _cuts((tensors[0].shape_[0], *(x.shape_[1] for x in tensors)))

    def product(i, j):
        return tensors[i] if i == j else f.matmul(product(i, cut[i, j]), product(cut[i, j] + 1, j))

    result = product(0, count - 1)
    kept = [size for size, gone in zip(result.shape_, (row, column)) if not gone]
    return result.reshape(kept)


def _cut_qr_ref(input, some=True):
    return tuple(np.linalg.qr(input, "reduced" if some else "complete"))


@composite(dtypes=_WIDE, ref=_cut_qr_ref, samples=_rectangles, tolerance=_TOLERANCE, fields=("Q", "R"))
def qr(f, input, some=True):
    """`linalg_qr` by PyTorch's old name: reduced, or without `some` complete."""
    return tuple(f.linalg_qr(input, "reduced" if some else "complete"))


def _one_by_one(rng):
    yield (np.array([[2.0]]),), {}


@composite(
    dtypes=(*_WIDE, *COMPLEX), ref=lambda input, some=True, compute_uv=True: tuple(np.linalg.svd(input)),
    samples=_one_by_one,
    tolerance=_TOLERANCE, fields=("U", "S", "V"),
)  # fmt: skip
def svd(f, input, some=True, compute_uv=True):
    """(U, S, V) with input = U diag(S) V^T, by PyTorch's old name: `linalg_svd` gives V^T, and `some` cuts both to K.

    Without `compute_uv`, U and V are zeros.
    """
    check_matrices(f, input, "input", square=False)
    if compute_uv:
        u, s, vh = f.linalg_svd(input, not some)
        return u, s, _t(f.conj(vh)).contiguous()
    m, n = input.shape_[-2:]
    zeros = [input.new_zeros((*input.shape_[:-2], size, size)) for size in (m, n)]
    return zeros[0], f.linalg_svdvals(input), zeros[1]


@composite(
    dtypes=(*_WIDE, *COMPLEX), ref=lambda input, rcond=1e-15: _pinv_ref(input, rtol=rcond), samples=_rectangles,
    tolerance=_TOLERANCE,
)  # fmt: skip
def pinverse(f, input, rcond=1e-15):
    """`linalg_pinv`, with singular values up to `rcond` times the largest for 0."""
    check_matrices(f, input, "input", square=False)
    return f.linalg_pinv(input, rtol=rcond)


# ---- factors by their old names ------------------------------------------------------------------


def _lu_samples(rng):
    yield (rng.standard_normal((2, 4, 4)),), {}
    yield (rng.standard_normal((5, 3)),), {}


@composite(
    dtypes=_WIDE, ref=_lu_ref, samples=_lu_samples, tolerance={"float32": (2e-3, 1e-4)},
)  # fmt: skip
def lu(f, A, pivot: bool = True, get_infos: bool = False):
    """(LU, pivots), or with `get_infos` (LU, pivots, info), of A [..., M, N]: `linalg_lu_factor` by its old name."""
    found = tuple(f.linalg_lu_factor_ex(A, pivot=pivot))
    return found if get_infos else found[:2]


def _unpack_ref(LU_data, LU_pivots, unpack_data=True, unpack_pivots=True):
    m, k = LU_data.shape[-2], min(LU_data.shape[-2:])
    rows = np.arange(m)
    for i, p in enumerate(LU_pivots):
        rows[[i, p - 1]] = rows[[p - 1, i]]
    return np.eye(m)[np.argsort(rows)], np.tril(LU_data[:, :k], -1) + np.eye(m, k), np.triu(LU_data[:k])


def _unpack_samples(rng):
    for shape in ((4, 4), (5, 3), (3, 5)):
        yield _lu_ref(rng.standard_normal(shape)), {}


@composite(dtypes=(*_WIDE, *COMPLEX), ref=_unpack_ref, samples=_unpack_samples, fields=("P", "L", "U"))
def lu_unpack(f, LU_data, LU_pivots, unpack_data: bool = True, unpack_pivots: bool = True):
    """(P, L, U) of the factors that `linalg_lu_factor` gives of A = P L U; what is not unpacked is an empty tensor."""
    check_matrices(f, LU_data, "LU_data", square=False)
    if LU_pivots.dtype.name != "int32":
        raise TypeError(f"`LU_pivots` of `lu_unpack` must be int32, got {LU_pivots.dtype.name}")
    m, k = LU_data.shape_[-2], min(LU_data.shape_[-2:])
    empty = LU_data.detach().new_zeros(0)
    turned, low, up = empty, empty.clone(), empty.clone()
    if unpack_data:
        low = f.tril(LU_data.narrow(-1, 0, k), -1) + f.from_array(
            np.eye(m, k, dtype=LU_data.dtype.numpy), LU_data.device
        )
        up = f.triu(LU_data.narrow(-2, 0, k))
    if unpack_pivots:
        turned = f.exchange_rows(eye_of(f, LU_data, m).expand(*LU_data.shape_[:-2], m, m), LU_pivots, True)
    return turned, low, up


def _old_triangular_ref(b, A, upper=True, transpose=False, unitriangular=False):
    a = np.triu(A) if upper else np.tril(A)
    if unitriangular:
        a = a - np.diag(np.diag(a)) + np.eye(len(a))
    return np.linalg.solve(a.T if transpose else a, b), A


def _old_triangular_samples(rng):
    a, b = _well_conditioned(rng, 4, 4) / 4 + np.eye(4), rng.standard_normal((4, 2))
    yield (b, a), {}
    yield (b, a, False, True, True), {}


@composite(
    dtypes=(*_WIDE, *COMPLEX), ref=_old_triangular_ref, samples=_old_triangular_samples, tolerance=_TOLERANCE,
    fields=("solution", "cloned_coefficient"),
)  # fmt: skip
def triangular_solve(f, b, A, upper: bool = True, transpose: bool = False, unitriangular: bool = False):
    """(X with A X = b, a copy of A) for triangular A, or with `transpose` A^T X = b: `linalg_solve_triangular` by its
    old name, with the arguments the other way around.
    """
    check_matrices(f, A)
    a = _t(A) if transpose else A
    x = f.linalg_solve_triangular(a, b, upper=bool(upper) != bool(transpose), unitriangular=unitriangular)
    return x, f.rearrange(A)
