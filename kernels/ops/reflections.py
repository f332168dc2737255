"""Products of Householder's reflections, as `geqrf` leaves them (LAPACK Users' Guide, 5.4)."""

import numpy as np

from ..table.composite import composite
from ..table.registry import COMPLEX, alias, op
from ._layout import check
from .decompositions import _TOLERANCE, _WIDE, _rectangles, adjoint_of, check_matrices


def _geqrf_ref(A):
    k = min(A.shape[-2:])
    if not A.size:
        return A, np.zeros((*A.shape[:-2], k), A.dtype)
    raw = [np.linalg.qr(a, "raw") for a in A.reshape(-1, *A.shape[-2:])]
    a = np.array([h.T for h, _ in raw], A.dtype).reshape(A.shape)
    return a, np.array([tau for _, tau in raw], A.dtype).reshape(*A.shape[:-2], k)


@op(
    dtypes=(*_WIDE, *COMPLEX), ref=_geqrf_ref, samples=_rectangles, tolerance=_TOLERANCE, outputs=("out", "tau"),
    fields=("a", "tau"), gradient="missing",
)  # fmt: skip
def geqrf(call, input):
    """(a, tau) of the QR decomposition of `input` [..., M, N] as LAPACK keeps it.

    R stands on and above the diagonal of `a`; column i below it, with a 1 on it, is v of the reflection
    I - tau[i] v v^H. `linalg_householder_product` and `ormqr` make Q of them.
    """
    check_matrices(call, input, "input", square=False)
    return call.lapack(_geqrf_ref, input)


def _reflected(f, A, tau, other, backwards):
    """H_1 ... H_k times `other`, or with `backwards` its adjoint, H_k^H ... H_1^H, times it."""
    m, k = A.shape_[-2], tau.shape_[-1]
    columns = f.tril(A, -1) + f.from_array(np.eye(m, A.shape_[-1], dtype=A.dtype.numpy), A.device)
    tau = f.conj(tau) if backwards and tau.dtype.kind == "c" else tau
    for i in range(k) if backwards else reversed(range(k)):
        v = columns.narrow(-1, i, 1)
        other = other - f.matmul(v * tau.narrow(-1, i, 1).unsqueeze(-1), f.matmul(adjoint_of(f, v), other))
    return other


def _check_reflections(f, A, tau, name):
    check_matrices(f, A, name, square=False)
    check(f, tau, "tau")
    if tau.shape_[:-1] != A.shape_[:-2] or not tau.shape_ or tau.shape_[-1] > A.shape_[-1]:
        raise ValueError(
            f"`tau` of `{f.op.name}` must be [..., K] beside `{name}` [..., M, N] with K <= N, got {tau.shape_} and "
            f"{A.shape_}"
        )


def _product_ref(A, tau):
    m, n = A.shape[-2:]
    q = np.broadcast_to(np.eye(m), (*A.shape[:-2], m, m))
    for i in range(tau.shape[-1]):
        v = np.tril(A, -1)[..., i] + np.eye(m, n)[:, i]
        q = q - tau[..., i, None, None] * (q @ v[..., None]) * v[..., None, :].conj()
    return q[..., :n]


def _reflections(rng):
    for shape in ((5, 3), (2, 4, 4)):
        yield _geqrf_ref(rng.standard_normal(shape)), {}


@composite(dtypes=(*_WIDE, *COMPLEX), ref=_product_ref, samples=_reflections, tolerance=_TOLERANCE)
def linalg_householder_product(f, A, tau):
    """The first N columns [..., M, N] of the product of the reflections in A [..., M, N], M >= N, with `tau` [..., K]:
    Q, where they are from `geqrf`.
    """
    _check_reflections(f, A, tau, "A")
    if A.shape_[-2] < A.shape_[-1]:
        raise ValueError(f"`A` of `{f.op.name}` must have at least as many rows as columns, got shape {A.shape_}")
    eye = f.from_array(np.eye(*A.shape_[-2:], dtype=A.dtype.numpy), A.device)
    return f.rearrange(_reflected(f, A, tau, eye.expand(*A.shape_), False))


alias(linalg_householder_product, "orgqr")


def _ormqr_ref(input, tau, other, left=True, transpose=False):
    m = input.shape[-2]
    square = np.concatenate([input, np.zeros((*input.shape[:-1], m))], -1)[..., :m]
    q = _product_ref(square, tau)
    q = q.conj().swapaxes(-1, -2) if transpose else q
    return q @ other if left else other @ q


def _ormqr_samples(rng):
    for (a, tau), _ in _reflections(rng):
        m = a.shape[-2]
        yield (a, tau, rng.standard_normal((*a.shape[:-2], m, 2))), {}
        yield (a, tau, rng.standard_normal((*a.shape[:-2], m, 2))), {"transpose": True}
        yield (a, tau, rng.standard_normal((*a.shape[:-2], 3, m)), False), {}


@composite(dtypes=(*_WIDE, *COMPLEX), ref=_ormqr_ref, samples=_ormqr_samples, tolerance=_TOLERANCE)
def ormqr(f, input, tau, other, left: bool = True, transpose: bool = False):
    """Q `other`, or without `left` `other` Q, with the M x M matrix Q of all reflections in `input` [..., M, K], or its
    adjoint; Q itself is not made.
    """
    _check_reflections(f, input, tau, "input")
    check_matrices(f, other, "other", square=False)
    if other.shape_[-2 if left else -1] != input.shape_[-2]:
        raise ValueError(
            f"`other` of `ormqr` must have {input.shape_[-2]} {'rows' if left else 'columns'}, got shape {other.shape_}"
        )
    if left:
        return _reflected(f, input, tau, other, transpose)
    return adjoint_of(f, _reflected(f, input, tau, adjoint_of(f, other), not transpose)).contiguous()
