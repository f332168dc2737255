"""Decompositions, inverses and determinants of batches of matrices: LAPACK's through NumPy, or of small matrices by
kernels of our own (`_systems`, `_spectra`), and derivatives.

LAPACK computes on the host, in float32 or float64. Derivatives are those of Giles ("An extended collection of matrix
derivative results", 2008) and Walter and Lehmann (arXiv 1009.6112) with PyTorch's conventions.
"""

import numpy as np

from ..table.registry import COMPLEX, alias, op
from ._layout import check
from ._spectra import (
    eigenvalues,
    has_own,
    is_reflected,
    pseudo_inverse,
    reflected,
    singular_values,
)
from ._systems import cholesky, determinants, is_own, solved
from .copy import copy_into

_WIDE = ("float32", "float64")
_TOLERANCE = {"float32": (2e-4, 2e-5), "float64": (1e-9, 1e-10)}


def check_matrices(call, x, name="A", square=True):
    """Refuse what is no matrix, or no square one, or none of numbers that LAPACK has."""
    check(call, x, name)
    shape = x.shape_
    if len(shape) < 2 or (square and shape[-1] != shape[-2]):
        raise ValueError(
            f"`{name}` of `{call.op.name}` must be [..., {'N, N' if square else 'M, N'}], got shape {shape}"
        )


def _t(x):
    return x.transpose(-1, -2)


def _h(f, x):
    """The last two dims exchanged, and conjugated."""
    return f.conj(_t(x))


def adjoint_of(f, x):
    """The last two dims exchanged: without a copy where the elements are real."""
    return _h(f, x) if x.dtype.kind == "c" else _t(x)


def eye_of(f, x, size):
    """The identity in the dtype and on the device of `x`."""
    return f.from_array(np.eye(size, dtype=x.dtype.numpy), x.device)


def _well_conditioned(rng, *shape):
    """Square matrices whose singular values lie between 1 and 2, all of them apart."""
    n = shape[-1]
    u, v = (np.linalg.qr(rng.standard_normal(shape))[0] for _ in range(2))
    return u * np.linspace(1, 2, n) @ v


def _squares(rng):
    for shape in ((1, 1), (3, 3), (2, 1, 4, 4), (17, 17), (0, 0), (0, 3, 3)):
        yield (_well_conditioned(rng, *shape) if np.prod(shape) else np.zeros(shape),), {}


def positive(rng):
    """Symmetric matrices with eigenvalues from 1 to 2."""
    for (x,), _ in _squares(rng):
        q = np.linalg.qr(x)[0] if x.size else x
        yield (q * np.linspace(1, 2, x.shape[-1]) @ q.swapaxes(-1, -2),), {}


def _rectangles(rng):
    for shape in ((4, 4), (5, 3), (3, 5), (2, 6, 4), (2, 0, 3)):
        n = max(shape[-2:])
        yield (_well_conditioned(rng, *shape[:-2], n, n)[..., : shape[-2], : shape[-1]],), {}


# ---- inverses, solutions, determinants ---------------------------------------------------------


@op(dtypes=(*_WIDE, *COMPLEX), ref=np.linalg.inv, samples=_squares, tolerance=_TOLERANCE)
def linalg_inv(call, A):
    """The inverses of matrices [..., N, N]. Raises ValueError where one has none."""
    check_matrices(call, A)
    if is_own(A):
        return solved(call, A, call.out(A.shape_, A.dtype), eye=True)
    return call.lapack(np.linalg.inv, A)


alias(linalg_inv, "inverse")


@linalg_inv.grad("A")
def _(f, g, out):
    return f.neg(f.matmul(f.matmul(_t(out), g), _t(out)))


def _solve_samples(rng):
    for (a,), _ in _squares(rng):
        for columns in (1, 5):
            yield (a, rng.standard_normal((*a.shape[:-1], columns))), {}


@op(dtypes=(*_WIDE, *COMPLEX), ref=np.linalg.solve, samples=_solve_samples, tolerance=_TOLERANCE, step=True)
def lapack_solve(call, A, B):
    """X [..., N, K] with A X = B, for A [..., N, N] and B of the same batch: what `linalg_solve` is written with."""
    check_matrices(call, A)
    check_matrices(call, B, "B", square=False)
    if A.shape_[:-1] != B.shape_[:-1] or A.dtype is not B.dtype:
        raise ValueError(
            f"`B` of `{call.op.name}` must be {A.dtype.name} [..., N, K] beside `A` {A.shape_}, got "
            f"{B.dtype.name} {B.shape_}"
        )
    if is_own(A):
        x = call.out(B.shape_, B.dtype)
        copy_into(call, x, B)
        return solved(call, A, x)
    return call.lapack(np.linalg.solve, A, B)


@lapack_solve.grad("A", "B")
def _(f, g, A, out, need):
    to_b = f.lapack_solve(_t(A), g)
    return f.neg(f.matmul(to_b, _t(out))) if "A" in need else None, to_b


@op(dtypes=(*_WIDE, *COMPLEX), ref=np.linalg.det, samples=_squares, tolerance=_TOLERANCE)
def linalg_det(call, A):
    """The determinants [...] of matrices [..., N, N]."""
    check_matrices(call, A)
    if is_own(A) and A.numel_:
        return determinants(call, A, call.out(A.shape_[:-2], A.dtype))
    return call.lapack(lambda a: np.asarray(np.linalg.det(a), a.dtype), A)


alias(linalg_det, "det")


@linalg_det.grad("A")
def _(f, g, A, out):
    scale = f.unsqueeze(f.unsqueeze(g, -1), -1)
    if not any(np.ravel(f.eq(out, 0.0).tolist())):
        return f.mul(f.mul(scale, f.unsqueeze(f.unsqueeze(out, -1), -1)), _t(f.linalg_inv(A)))
    # the cofactors: each is a product of all singular values but one, also where one of them is 0
    u, s, vh = f.linalg_svd(A, False)
    n = A.shape_[-1]
    others = f.where(f.gt(eye_of(f, s, n), 0.0), 1.0, f.unsqueeze(s, -2).expand(*s.shape_, n))
    turned = f.linalg_det(u.detach()) * f.linalg_det(vh.detach())
    turned = f.unsqueeze(f.unsqueeze(turned, -1), -1)
    return f.mul(scale * turned, f.matmul(f.conj(u) * f.unsqueeze(f.prod(others, -1), -2), f.conj(vh)))


def _slogdet_ref(A):
    return tuple(np.asarray(x) for x in np.linalg.slogdet(A))


@op(
    dtypes=(*_WIDE, *COMPLEX), ref=_slogdet_ref, samples=_squares, tolerance=_TOLERANCE, outputs=("out", "logabsdet"),
    fields=("sign", "logabsdet"), gradient="convention",
)  # fmt: skip
def linalg_slogdet(call, A):
    """(sign, logarithm of the magnitude) of the determinants of matrices [..., N, N]; (0, -inf) of singular ones."""
    check_matrices(call, A)
    if is_own(A) and A.numel_:
        batch = A.shape_[:-2]
        return determinants(call, A, call.out(batch, A.dtype), call.out(batch, A.dtype, key="logabsdet"))
    return call.lapack(lambda a: tuple(np.asarray(x) for x in np.linalg.slogdet(a)), A)


alias(linalg_slogdet, "slogdet")


@linalg_slogdet.grad("A")
def _(f, g, g_logabsdet, A, out):
    scale = g_logabsdet
    if A.dtype.kind == "c" and g is not None:  # that of a real matrix is constant
        turned = f.mul(f.imag(f.mul(f.conj(g), out)), -1j)
        scale = turned if scale is None else f.add(turned, scale)
    if scale is None:
        return None
    return f.mul(f.unsqueeze(f.unsqueeze(scale, -1), -1), _h(f, f.linalg_inv(A)))


# ---- of symmetric matrices ---------------------------------------------------------------------


@op(
    dtypes=(*_WIDE, *COMPLEX), ref=np.linalg.cholesky, samples=positive, tolerance=_TOLERANCE, gradient="convention"
)  # fmt: skip
def linalg_cholesky(call, A, *, upper=False):
    """L with L L^T = A for symmetric positive definite A [..., N, N], of which the lower triangle is read.

    `upper` gives L^T, and reads the upper triangle. Raises ValueError where A is not positive definite. The gradient
    is symmetric.
    """
    check_matrices(call, A)
    if is_own(A):
        y = call.out(A.shape_, A.dtype)
        low = call.empty(A.shape_, A.dtype) if upper else y
        copy_into(call, low, A)
        cholesky(call, low, upper)
        if upper:
            copy_into(call, y, _t(low))
        return y
    swap = (lambda a: a.swapaxes(-1, -2).conj()) if upper else (lambda a: a)
    return call.lapack(lambda a: swap(np.linalg.cholesky(swap(a))), A)


alias(linalg_cholesky, "cholesky")


@linalg_cholesky.grad("A")
def _(f, g, out, upper):
    low, g = (_h(f, out), _h(f, g)) if upper else (out, g)
    inner = f.tril(f.matmul(_h(f, low), g))
    inner = inner - inner * eye_of(f, inner, inner.shape_[-1]) * 0.5
    inverse = f.linalg_inv(low)
    full = f.matmul(f.matmul(_h(f, inverse), inner), inverse)
    return (full + _h(f, full)) * 0.5


def _eigh_ref(A, UPLO="L"):
    return tuple(np.linalg.eigh(A, UPLO))


def _vector_free(rng):
    """Samples whose eigenvectors have a sign by themselves: that of one number."""
    yield (np.array([[2.0]]),), {}
    yield (np.zeros((0, 3, 3)),), {}


def _eigh_grad_samples(rng):
    for (x,), _ in positive(rng):
        if x.size > 1:
            yield (x,), {}


def _check_uplo(call, UPLO):
    if UPLO not in ("L", "U"):
        raise ValueError(f"`UPLO` of `{call.op.name}` must be 'L' or 'U', the triangle that is read, got {UPLO!r}")


@op(
    dtypes=(*_WIDE, *COMPLEX), ref=_eigh_ref, samples=_vector_free, grad_samples=_eigh_grad_samples,
    tolerance=_TOLERANCE, outputs=("out", "vectors"), fields=("eigenvalues", "eigenvectors"), gradient="convention",
)  # fmt: skip
def linalg_eigh(call, A, UPLO="L"):
    """(eigenvalues [..., N] in rising order, eigenvectors in columns [..., N, N]) of symmetric matrices.

    `UPLO` names the triangle that is read. Vectors have no sign of their own, and their gradients need eigenvalues
    that differ, and are symmetric.
    """
    check_matrices(call, A)
    _check_uplo(call, UPLO)
    if has_own(A):
        s, y = call.out(A.shape_[:-1], A.dtype), call.out(A.shape_, A.dtype, key="vectors")
        eigenvalues(call, A, UPLO == "U", s, y)
        return s, y
    return call.lapack(lambda a: tuple(np.linalg.eigh(a, UPLO)), A)


@linalg_eigh.grad("A")
def _(f, g, g_vectors, out, vectors):
    n = vectors.shape_[-1]
    one = eye_of(f, vectors, n)
    inner = None if g is None else one * f.unsqueeze(g, -2)
    if g_vectors is not None:
        gaps = f.unsqueeze(out, -2) - f.unsqueeze(out, -1)
        turned = f.matmul(_h(f, vectors), g_vectors) * (1.0 - one) / (gaps + one)
        inner = turned if inner is None else inner + turned
    found = f.matmul(f.matmul(vectors, inner), _h(f, vectors))
    return (found + _h(f, found)) * 0.5


@op(
    dtypes=(*_WIDE, *COMPLEX),
    ref=np.linalg.eigvalsh,
    samples=positive,
    grad_samples=_eigh_grad_samples,
    tolerance=_TOLERANCE,
    gradient="convention",
)
def linalg_eigvalsh(call, A, UPLO="L"):
    """The eigenvalues [..., N] of symmetric matrices [..., N, N] in rising order; `UPLO` names the triangle read."""
    check_matrices(call, A)
    _check_uplo(call, UPLO)
    if has_own(A):
        s = call.out(A.shape_[:-1], A.dtype)
        eigenvalues(call, A, UPLO == "U", s)
        return s
    return call.lapack(lambda a: np.linalg.eigvalsh(a, UPLO), A)


@linalg_eigvalsh.grad("A")
def _(f, g, A, UPLO):
    vectors = f.linalg_eigh(A, UPLO)[1]
    return f.matmul(vectors * f.unsqueeze(g, -2), _h(f, vectors))


# ---- of any matrices ---------------------------------------------------------------------------


def _qr_ref(A, mode="reduced"):
    return tuple(np.linalg.qr(A, mode))


def _qr_samples(rng):
    for args, _ in _rectangles(rng):
        yield args, {}
    yield (rng.standard_normal((5, 3)),), {"mode": "complete"}


@op(
    dtypes=(*_WIDE, *COMPLEX), ref=_qr_ref, samples=_qr_samples, grad_samples=_rectangles, tolerance=_TOLERANCE,
    outputs=("out", "R"), fields=("Q", "R"), gradient="convention",
)  # fmt: skip
def linalg_qr(call, A, mode="reduced"):
    """(Q, R) with A = Q R, orthogonal columns in Q and R upper triangular, for A [..., M, N].

    With K = min(M, N), `mode` "reduced" gives Q [..., M, K] and R [..., K, N], "complete" Q [..., M, M] and
    R [..., M, N], "r" an empty Q and R. Gradients are those of "reduced", and of "complete" where M <= N.
    """
    check_matrices(call, A, square=False)
    if mode not in ("reduced", "complete", "r"):
        raise ValueError(f"`mode` of `{call.op.name}` must be 'reduced', 'complete' or 'r', got {mode!r}")
    if is_reflected(A):
        batch, (rows, columns) = A.shape_[:-2], A.shape_[-2:]
        size = rows if mode == "complete" else min(rows, columns)
        q = call.out((0,) if mode == "r" else (*batch, rows, size), A.dtype)
        r = call.out((*batch, size, columns), A.dtype, key="R")
        reflected(call, A, None if mode == "r" else q, r)
        return q, r

    def compute(a):
        if mode == "r":
            return np.empty(0, a.dtype), np.linalg.qr(a, "r")
        return tuple(np.linalg.qr(a, mode))

    return call.lapack(compute, A)


@linalg_qr.grad("A")
def _(f, g, g_R, A, out, R, mode):
    m, n = A.shape_[-2:]
    if mode == "r" or (mode == "complete" and m > n):
        raise NotImplementedError(f"`mode` {mode!r} of `linalg_qr` has no derivative for {m} x {n}: use 'reduced'")
    zeros = lambda x: f.mul(x, 0.0)
    g, g_R = zeros(out) if g is None else g, zeros(R) if g_R is None else g_R
    if m >= n:
        return _qr_backward(f, g, g_R, out, R)
    head, tail = g_R.narrow(-1, 0, m), g_R.narrow(-1, m, n - m)
    first = _qr_backward(f, g + f.matmul(A.narrow(-1, m, n - m), _h(f, tail)), head, out, R.narrow(-1, 0, m))
    return f.cat([first, f.matmul(out, tail)], -1)


def _qr_backward(f, g_q, g_r, q, r):
    """The gradient of A = q r with at least as many rows as columns."""
    inner = f.tril(f.matmul(r, _h(f, g_r)) - f.matmul(_h(f, g_q), q))
    inner = inner + _h(f, inner)
    inner = inner - inner * eye_of(f, inner, inner.shape_[-1]) * 0.5
    return f.matmul(g_q + f.matmul(q, inner), _h(f, f.linalg_inv(r)))


def _svd_ref(A, full_matrices=True):
    return tuple(np.linalg.svd(A, full_matrices))


def _svd_samples(rng):
    yield (np.array([[2.0]]),), {}
    yield (np.zeros((2, 0, 3)),), {"full_matrices": False}


def _svd_grad_samples(rng):
    for args, _ in _rectangles(rng):
        if args[0].size:
            yield args, {"full_matrices": False}


@op(
    dtypes=(*_WIDE, *COMPLEX), ref=_svd_ref, samples=_svd_samples, grad_samples=_svd_grad_samples, tolerance=_TOLERANCE,
    outputs=("out", "S", "Vh"), fields=("U", "S", "Vh"), gradient="convention",
)  # fmt: skip
def linalg_svd(call, A, full_matrices=True):
    """(U, S, Vh) with A = U diag(S) Vh for A [..., M, N]; the singular values S [..., K] fall, K = min(M, N).

    U is [..., M, M] and Vh [..., N, N], or without `full_matrices` [..., M, K] and [..., K, N]. Pairs of vectors
    have no sign of their own; their gradients need singular values that differ, and are those without `full_matrices`.
    """
    check_matrices(call, A, square=False)
    if has_own(A):
        batch, (rows, columns) = A.shape_[:-2], A.shape_[-2:]
        least = min(rows, columns)
        u = call.out((*batch, rows, rows if full_matrices else least), A.dtype)
        s = call.out((*batch, least), A.dtype, key="S")
        vh = call.out((*batch, columns if full_matrices else least, columns), A.dtype, key="Vh")
        singular_values(call, A, s, u, vh)
        return u, s, vh
    return call.lapack(lambda a: tuple(np.linalg.svd(a, full_matrices)), A)


@linalg_svd.grad("A")
def _(f, g, g_S, g_Vh, out, S, Vh):
    k = S.shape_[-1]
    m, n = out.shape_[-2], Vh.shape_[-1]
    u, vh = out.narrow(-1, 0, k), Vh.narrow(-2, 0, k)
    g_u, g_vh = None if g is None else g.narrow(-1, 0, k), None if g_Vh is None else g_Vh.narrow(-2, 0, k)
    one, s, row = eye_of(f, S, k), f.unsqueeze(S, -1), f.unsqueeze(S, -2)
    gaps = (row - s) * (row + s) + one
    inner = None if g_S is None else one * f.unsqueeze(g_S, -2)
    skew = lambda x: (x - _h(f, x)) * (1.0 - one) / gaps
    join = lambda a, b: b if a is None else a + b
    if g_u is not None:
        turned = f.matmul(_h(f, u), g_u)
        inner = join(inner, skew(turned) * row)
        if turned.dtype.kind == "c":  # pairs of vectors have a phase
            inner = inner + one * (turned - _h(f, turned)) / (2.0 * row)
    if g_vh is not None:
        inner = join(inner, s * skew(f.matmul(vh, _h(f, g_vh))))
    found = f.matmul(f.matmul(u, inner.to(dtype=u.dtype)), vh)
    if g_u is not None and m > k:  # what of the gradient lies outside of the columns of u
        scaled = g_u / row
        found = found + f.matmul(scaled - f.matmul(u, f.matmul(_h(f, u), scaled)), vh)
    if g_vh is not None and n > k:
        scaled = g_vh / s
        found = found + f.matmul(u, scaled - f.matmul(f.matmul(scaled, _h(f, vh)), vh))
    return found


def _singular_ref(A):
    return np.linalg.svd(A, compute_uv=False)


@op(
    dtypes=(*_WIDE, *COMPLEX), ref=_singular_ref, samples=_rectangles, tolerance=_TOLERANCE, gradient="convention"
)  # fmt: skip
def linalg_svdvals(call, A):
    """The singular values [..., min(M, N)] of matrices [..., M, N], the largest first."""
    check_matrices(call, A, square=False)
    if has_own(A):
        s = call.out((*A.shape_[:-2], min(A.shape_[-2:])), A.dtype)
        singular_values(call, A, s)
        return s
    return call.lapack(_singular_ref, A)


@linalg_svdvals.grad("A")
def _(f, g, A):
    u, _, vh = f.linalg_svd(A, False)
    return f.matmul(u * f.unsqueeze(g, -2), vh)


def tolerances(call, A, atol, rtol):
    """`atol` and `rtol`, numbers or tensors that broadcast to the batch of A, as numbers or arrays [..., 1]."""
    found = []
    for name, x in (("atol", atol), ("rtol", rtol)):
        if hasattr(x, "strides_"):
            at = A.shape_[:-2]
            if len(x.shape_) > len(at) or any(n not in (1, m) for n, m in zip(x.shape_[::-1], at[::-1])):
                raise ValueError(
                    f"`{name}` of `{call.op.name}` must broadcast to the batch {at} of `A`, got {x.shape_}"
                )
            x = np.array(x.tolist(), np.float64).reshape(x.shape_)[..., None]
        elif x is not None and not hasattr(x, "__float__"):
            raise TypeError(f"`{name}` of `{call.op.name}` must be a number or a tensor, got {type(x).__name__}")
        found.append(x)
    return found


def least(A, values, atol, rtol):
    """The bound [..., 1] up to which singular values [..., K] of matrices A count as 0."""
    if rtol is None:
        rtol = np.where(np.greater(0.0 if atol is None else atol, 0), 0.0, max(A.shape[-2:]) * np.finfo(A.dtype).eps)
    return np.maximum(0.0 if atol is None else atol, rtol * values.max(-1, keepdims=True, initial=0))


def _pinv_ref(A, *, atol=None, rtol=None, hermitian=False):
    if hermitian:
        low = np.tril(A, -1)
        A = low + low.swapaxes(-1, -2).conj() + np.real(A) * np.eye(A.shape[-1], dtype=low.real.dtype)
    u, s, vh = np.linalg.svd(A, False)
    if not s.size:
        return np.zeros((*A.shape[:-2], A.shape[-1], A.shape[-2]), A.dtype)
    inverse = np.divide(1, s, out=np.zeros_like(s), where=s > least(A, s, atol, rtol))
    return np.asarray(vh.swapaxes(-1, -2).conj() * inverse[..., None, :] @ u.swapaxes(-1, -2).conj(), A.dtype)


def _pinv_samples(rng):
    yield from _rectangles(rng)
    low = rng.standard_normal((5, 2)) @ rng.standard_normal((2, 4))
    yield (low,), {"rtol": 1e-3}


@op(
    dtypes=(*_WIDE, *COMPLEX), ref=_pinv_ref, samples=_pinv_samples, grad_samples=_rectangles, tolerance=_TOLERANCE,
    gradient="convention",
)  # fmt: skip
def linalg_pinv(call, A, *, atol=None, rtol=None, hermitian=False):
    """The pseudo-inverses [..., N, M] of matrices [..., M, N] (Moore and Penrose).

    Singular values up to max(atol, rtol * the largest) count as 0; `rtol` is max(M, N) times the dtype's epsilon, or 0
    beside a positive `atol`; both are numbers or tensors [...]. `hermitian` says that A is symmetric: the upper
    triangle is not read. The derivative holds where the rank does not change.
    """
    check_matrices(call, A, square=bool(hermitian))
    atol, rtol = tolerances(call, A, atol, rtol)
    if has_own(A) and not hermitian and not isinstance(atol, np.ndarray) and not isinstance(rtol, np.ndarray):
        y = call.out((*A.shape_[:-2], *A.shape_[:-3:-1]), A.dtype)
        pseudo_inverse(call, A, y, atol, rtol)
        return y
    return call.lapack(lambda a: _pinv_ref(a, atol=atol, rtol=rtol, hermitian=hermitian), A)


@linalg_pinv.grad("A")
def _(f, g, A, out, hermitian):
    if hermitian:
        low = f.tril(A, -1)
        A = low + _h(f, low) + f.real(A) * eye_of(f, A, A.shape_[-1])
    p, gt = out, _h(f, g)
    pt, ap, pa = _h(f, p), f.matmul(A, p), f.matmul(p, A)
    first = f.matmul(gt - f.matmul(ap, gt), f.matmul(p, pt))
    second = f.matmul(f.matmul(pt, p), gt - f.matmul(gt, pa))
    return first + second - f.matmul(f.matmul(pt, g), pt)


# ---- eigenvalues of any square matrix ------------------------------------------------------------


def _complex_eig(function):
    """NumPy's `eig` or `eigvals` with complex results, also where all are real."""

    def compute(a):
        found = function(a)
        made = np.result_type(a.dtype, np.complex64)
        return tuple(x.astype(made) for x in found) if isinstance(found, tuple) else found.astype(made)

    return compute


def _alone(rng):
    yield (np.array([[2.0]]),), {}


@op(
    dtypes=(*_WIDE, *COMPLEX), ref=_complex_eig(np.linalg.eig), samples=_alone, tolerance=_TOLERANCE,
    outputs=("out", "vectors"), fields=("eigenvalues", "eigenvectors"), gradient="convention",
)  # fmt: skip
def linalg_eig(call, A):
    """(eigenvalues [..., N], eigenvectors in columns [..., N, N]) of square matrices, both complex.

    Vectors have length 1 and no phase of their own; their gradients need eigenvalues that differ.
    """
    check_matrices(call, A)
    return call.lapack(_complex_eig(np.linalg.eig), A)


@linalg_eig.grad("A")
def _(f, g, g_vectors, out, vectors):
    one = eye_of(f, vectors, vectors.shape_[-1])
    turned = _h(f, vectors)
    inner = None if g is None else one * f.unsqueeze(g, -2)
    if g_vectors is not None:
        inside = f.matmul(turned, g_vectors)
        lengths = f.unsqueeze(f.real(f.diagonal(inside, 0, -2, -1)), -2)
        gaps = f.conj(f.unsqueeze(out, -2) - f.unsqueeze(out, -1))
        moved = (inside - f.matmul(turned, vectors) * lengths) * (1.0 - one) / (gaps + one)
        inner = moved if inner is None else inner + moved
    return f.lapack_solve(turned, f.matmul(inner, turned))


@op(
    dtypes=(*_WIDE, *COMPLEX), ref=_complex_eig(np.linalg.eigvals), samples=_alone, tolerance=_TOLERANCE,
    gradient="convention",
)  # fmt: skip
def linalg_eigvals(call, A):
    """The eigenvalues [..., N] of square matrices, complex, in no order."""
    check_matrices(call, A)
    return call.lapack(_complex_eig(np.linalg.eigvals), A)


@linalg_eigvals.grad("A")
def _(f, g, A):
    vectors = f.linalg_eig(A)[1]
    turned = _h(f, vectors)
    return f.lapack_solve(turned, f.unsqueeze(g, -1) * turned)
