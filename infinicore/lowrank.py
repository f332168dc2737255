"""The largest singular values and vectors of matrices by random projections: `svd_lowrank`, `pca_lowrank`."""

from .core.tensor_cy import TensorBase
from .dispatch.generator import default_generator
from .interop.numpy import from_numpy
from .tensor.tensor import FUNCTIONS


def _checked(A, q, niter, name):
    if not isinstance(A, TensorBase):
        raise TypeError(f"`A` of `{name}` must be a tensor, got {type(A).__name__}")
    if len(A.shape_) < 2:
        raise ValueError(f"`A` of `{name}` must be [..., M, N], got shape {A.shape_}")
    if not 0 <= q <= min(A.shape_[-2:]):
        raise ValueError(f"`q` of `{name}` must be from 0 to {min(A.shape_[-2:])}, the smaller side of A, got {q}")
    if niter < 0:
        raise ValueError(f"`niter` of `{name}` must not be negative, got {niter}")


def _basis(A, q, niter):
    """Orthonormal columns [..., M, q] that nearly hold the range of A: algorithm 4.4 of Halko, Martinsson and Tropp
    (SIAM Review 53, 2011).
    """
    normals = from_numpy(default_generator().normals((A.shape_[-1], q)), device=A.device).to(A.dtype)
    qr = FUNCTIONS["linalg_qr"]
    basis = qr(A @ normals)[0]
    for _ in range(niter):
        basis = qr(A @ qr(A.mT @ basis)[0])[0]
    return basis


def svd_lowrank(A, q=6, niter=2, M=None):
    """(U [..., M, q], S [..., q], V [..., N, q]) with A (or A - M) close to U diag(S) V^T, the largest values first.

    `q` should be a little more than the rank looked for, `niter` steps of subspace iteration make it sharper; random
    numbers are those of `manual_seed`. Raises ValueError where `q` exceeds a side of A.
    """
    _checked(A, q, niter, "svd_lowrank")
    A = A if M is None else A - M
    turned = A.shape_[-2] < A.shape_[-1]
    A = A.mT if turned else A
    basis = _basis(A, q, niter)
    U, S, Vh = FUNCTIONS["linalg_svd"](basis.mT @ A, False)
    U, V = basis @ U, Vh.mT
    return (V, S, U) if turned else (U, S, V)


def pca_lowrank(A, q=None, center=True, niter=2):
    """Principal components of the rows of A [..., M, N]: `svd_lowrank` of A less the means of its columns.

    `center=False` leaves the means in; `q` is min(6, M, N) by default. `A @ V[:, :k]` are the first k components.
    """
    q = min(6, *A.shape_[-2:]) if q is None else q
    _checked(A, q, niter, "pca_lowrank")
    return svd_lowrank(A - A.mean(-2, True) if center else A, q, niter)
