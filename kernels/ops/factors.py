"""Triangular systems and LU factors, with kernels of our own."""

import numpy as np

from ..blocks.linalg import SINGULAR
from ..table.registry import COMPLEX, op
from ._layout import check, check_index
from ._systems import exchange, factor, triangular
from .copy import copy_into
from .decompositions import _TOLERANCE, _WIDE, _solve_samples, _squares, _t, check_matrices, eye_of


def _triangular_ref(A, B, *, upper, unitriangular=False):
    a = np.triu(A) if upper else np.tril(A)
    if unitriangular:
        a = a * (1 - np.eye(A.shape[-1])) + np.eye(A.shape[-1])
    return np.linalg.solve(a, B)


def _triangular_samples(rng):
    for upper, unit in ((True, False), (False, False), (True, True), (False, True)):
        for (a, b), _ in _solve_samples(rng):
            yield (a / 4 + np.eye(a.shape[-1]), b), {"upper": upper, "unitriangular": unit}
    yield (np.eye(40) + rng.uniform(0, 0.1, (40, 40)), rng.standard_normal((40, 70))), {"upper": True}


@op(dtypes=_WIDE, ref=_triangular_ref, samples=_triangular_samples, tolerance=_TOLERANCE, step=True)
def triangular_solution(call, A, B, *, upper, unitriangular=False):
    """X [..., N, K] with A X = B, for triangular A [..., N, N] and B of the same batch; the other triangle is not read.

    `unitriangular` takes 1 for the diagonal, and does not read it either. A 0 there gives infinities.
    """
    check_matrices(call, A)
    check(call, B, "B")
    if len(B.shape_) < 2 or A.shape_[:-1] != B.shape_[:-1] or A.dtype is not B.dtype:
        raise ValueError(
            f"`B` of `{call.op.name}` must be {A.dtype.name} [..., N, K] beside `A` {A.shape_}, got {B.dtype.name} "
            f"{B.shape_}"
        )
    x, a = call.out(B.shape_, B.dtype), A.contiguous()
    copy_into(call, x, B)
    triangular(call, a, x, upper, unitriangular)
    return x


@triangular_solution.grad("A", "B")
def _(f, g, A, out, upper, unitriangular, need):
    to_b = f.triangular_solution(_t(A), g, upper=not upper, unitriangular=unitriangular)
    if "A" not in need:
        return None, to_b
    to_a = f.neg(f.matmul(to_b, _t(out)))
    edge = int(bool(unitriangular))
    return f.triu(to_a, edge) if upper else f.tril(to_a, -edge), to_b


def _lu_ref(A, *, pivot=True):
    lu, steps = A.copy(), min(A.shape[-2:])
    pivots = np.zeros((*A.shape[:-2], steps), np.int32)
    for at in np.ndindex(*A.shape[:-2]):
        a = lu[at]
        for k in range(steps):
            p = k + np.argmax(np.abs(a[k:, k].real) + np.abs(a[k:, k].imag))  # LAPACK's size of a complex number
            pivots[(*at, k)] = p + 1
            a[[k, p]] = a[[p, k]]
            a[k + 1 :, k] /= a[k, k]
            a[k + 1 :, k + 1 :] -= np.outer(a[k + 1 :, k], a[k, k + 1 :])
    return lu, pivots


def _complex_lu(a):
    lu, pivots = _lu_ref(a)
    if (np.diagonal(lu, axis1=-2, axis2=-1) == 0).any():
        raise np.linalg.LinAlgError("singular matrix")
    return lu, pivots


def _lu_samples(rng):
    yield from _squares(rng)
    yield (rng.standard_normal((2, 7, 40)),), {}
    yield (rng.standard_normal((9, 4)),), {}


def _lu_grad_samples(rng):
    yield from _squares(rng)
    yield (rng.standard_normal((2, 3, 5)),), {}
    yield (rng.standard_normal((5, 3)),), {}


@op(
    dtypes=(*_WIDE, *COMPLEX), ref=_lu_ref, samples=_lu_samples, grad_samples=_lu_grad_samples,
    tolerance={"float32": (2e-3, 1e-4)}, outputs=("out", "pivots"), fields=("LU", "pivots"),
)  # fmt: skip
def linalg_lu_factor(call, A, *, pivot: bool = True):
    """(LU, pivots int32) of A [..., M, N] by elimination: U on and above the diagonal, L (with ones there) below it.

    In step k, row k was exchanged with row pivots[k], counted from 1. Raises ValueError for a matrix with a 0 in the
    diagonal of U.
    """
    check_matrices(call, A, square=False)
    if not pivot:
        raise NotImplementedError(f"`pivot` of `{call.op.name}` must be True: without exchanged rows, LU is not stable")
    rows, columns = A.shape_[-2:]
    if A.dtype.kind == "c":
        return call.lapack(_complex_lu, A)
    lu = call.out(A.shape_, A.dtype, overlap="same")
    if A.address != lu.address:
        copy_into(call, lu, A)
    pivots = call.out((*A.shape_[:-2], min(rows, columns)), "int32", key="pivots")
    factor(call, lu, pivots, {SINGULAR: f"`A` of `{call.op.name}` is singular: elimination found a column of zeros"})
    return lu, pivots


@linalg_lu_factor.grad("A")
def _(f, g, out, pivots):
    # A = P L [U, V] with V = L^-1 P^T A'', or A = P [L; M] U with M = (P^T A)'' U^-1: the square part, and the rest
    rows, columns = out.shape_[-2:]
    k, rest = min(rows, columns), []
    square, inner = (x.narrow(-2, 0, k).narrow(-1, 0, k) for x in (out, g))
    low = f.tril(square, -1) + eye_of(f, out, k)
    to_low, to_up = f.tril(inner, -1), f.triu(inner)
    if columns > k:
        rest = [f.triangular_solution(_t(low), g.narrow(-1, k, columns - k), upper=True, unitriangular=True)]
        to_low = to_low - f.tril(f.matmul(rest[0], _t(out.narrow(-1, k, columns - k))), -1)
    if rows > k:
        rest = [_t(f.triangular_solution(square, _t(g.narrow(-2, k, rows - k)), upper=True))]
        to_up = to_up - f.triu(f.matmul(_t(out.narrow(-2, k, rows - k)), rest[0]))
    inner = f.tril(f.matmul(_t(low), to_low), -1) + f.triu(f.matmul(to_up, _t(f.triu(square))))
    left = f.triangular_solution(_t(low), inner, upper=True, unitriangular=True)
    turned = f.cat([_t(f.triangular_solution(square, _t(left), upper=True)), *rest], -1 if columns > k else -2)
    return f.exchange_rows(turned, pivots, True)


def _exchange_ref(input, pivots, back=False):
    x = input.copy()
    for k, p in list(enumerate(pivots))[:: -1 if back else 1]:
        x[[k, p - 1]] = x[[p - 1, k]]
    return x


def _exchange_samples(rng):
    yield (rng.standard_normal((4, 3)), np.array([3, 2, 4, 4], np.int32)), {}
    yield (rng.standard_normal((5, 40)), np.array([5, 3, 3], np.int32), True), {}


@op(dtypes=(*_WIDE, *COMPLEX), ref=_exchange_ref, samples=_exchange_samples, step=True)
def exchange_rows(call, input, pivots, back: bool = False):
    """Matrices [..., N, K] with row k exchanged with row pivots[..., k] (counted from 1), for k = 0, 1, ...

    That is what elimination did to the rows of A in `linalg_lu_factor`; `back` undoes it.
    """
    check_matrices(call, input, "input", square=False)
    check_index(call, pivots, "pivots")
    rows = input.shape_[-2]
    if pivots.dtype.name != "int32" or pivots.shape_[:-1] != input.shape_[:-2] or pivots.shape_[-1] > rows:
        raise ValueError(
            f"`pivots` of `{call.op.name}` must be int32 [..., K] with K up to {rows} beside `input` {input.shape_}, "
            f"got {pivots.dtype.name} {pivots.shape_}"
        )
    x, places = call.out(input.shape_, input.dtype, overlap="same"), pivots.contiguous()
    if x.address != input.address:
        copy_into(call, x, input)
    exchange(call, x, places, back)
    return x


@exchange_rows.grad("input")
def _(f, g, pivots, back):
    return f.exchange_rows(g, pivots, not back)
