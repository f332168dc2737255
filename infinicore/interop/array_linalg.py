"""The `linalg` of the array API standard over the framework's."""

from ..core import layout
from ..dispatch.functions import FUNCTIONS
from ..dtype import promote_types
from .array_reductions import sum


def _pair(x1, x2):
    """Two tensors in their common dtype."""
    common = promote_types(x1.dtype, x2.dtype)
    return x1.to(common), x2.to(common)


def matmul(x1, x2, /):
    """The products of matrices."""
    return FUNCTIONS["matmul"](*_pair(x1, x2))


def matrix_transpose(x, /):
    """With the last two dims exchanged."""
    if x.ndim < 2:
        raise ValueError(f"`x` of `matrix_transpose` must have at least 2 dims, got {x.ndim}")
    return FUNCTIONS["swapaxes"](x, -1, -2)


def tensordot(x1, x2, /, *, axes=2):
    """Sums of products over the last `axes` dims of `x1` and the first of `x2`, or over two lists of dims."""
    return FUNCTIONS["tensordot"](*_pair(x1, x2), axes)


def vecdot(x1, x2, /, *, axis=-1):
    """Sums of products along `axis`, which counts from the end."""
    return FUNCTIONS["linalg_vecdot"](*_pair(x1, x2), dim=axis)


def outer(x1, x2, /):
    """The products of every element of one vector with every one of another."""
    return FUNCTIONS["outer"](*_pair(x1, x2))


def cross(x1, x2, /, *, axis=-1):
    """Cross products of vectors of 3 along `axis`."""
    x1, x2 = FUNCTIONS["broadcast_tensors"](*_pair(x1, x2))
    return FUNCTIONS["cross"](x1, x2, axis)


def diagonal(x, /, *, offset=0):
    """The diagonals of matrices."""
    return FUNCTIONS["diagonal"](x, offset, -2, -1)


def trace(x, /, *, offset=0, dtype=None):
    """The sums of the diagonals of matrices."""
    return sum(diagonal(x, offset=offset), axis=-1, dtype=dtype)


def _same(name):
    compute = FUNCTIONS[f"linalg_{name}"]

    def function(x, /):
        return compute(x)

    function.__name__, function.__doc__ = name, f"`{name}` of matrices in the last two dims."
    return function


det, eig, eigh, eigvals, eigvalsh, inv, slogdet, svdvals = map(
    _same, ("det", "eig", "eigh", "eigvals", "eigvalsh", "inv", "slogdet", "svdvals")
)


def cholesky(x, /, *, upper=False):
    """The triangular factor of positive definite matrices."""
    return FUNCTIONS["linalg_cholesky"](x, upper=upper)


def qr(x, /, *, mode="reduced"):
    """Orthogonal and triangular factors (Q, R)."""
    return FUNCTIONS["linalg_qr"](x, mode)


def svd(x, /, *, full_matrices=True):
    """Singular vectors and values (U, S, Vh)."""
    return FUNCTIONS["linalg_svd"](x, full_matrices)


def solve(x1, x2, /):
    """The solutions of x1 y = x2; `x2` is a vector if it has one dim, and otherwise matrices."""
    x1, x2 = _pair(x1, x2)
    return (
        FUNCTIONS["linalg_solve"](x1, x2[:, None])[..., 0]
        if x2.ndim == 1
        else FUNCTIONS["linalg_solve"](
            x1,
            FUNCTIONS["broadcast_to"](x2, (*layout.broadcast_shapes(x1.shape_[:-2], x2.shape_[:-2]), *x2.shape_[-2:])),
        )
    )


def matrix_power(x, n, /):
    """The product of `n` equal matrices."""
    return FUNCTIONS["linalg_matrix_power"](x, n)


def matrix_rank(x, /, *, rtol=None):
    """How many singular values exceed `rtol` times the largest."""
    return FUNCTIONS["linalg_matrix_rank"](x, rtol=rtol)


def pinv(x, /, *, rtol=None):
    """The pseudo-inverse, without singular values below `rtol` times the largest."""
    return FUNCTIONS["linalg_pinv"](x, rtol=rtol)


def matrix_norm(x, /, *, keepdims=False, ord="fro"):
    """The norms of matrices."""
    return FUNCTIONS["linalg_matrix_norm"](x, ord, (-2, -1), keepdims)


def vector_norm(x, /, *, axis=None, keepdims=False, ord=2):
    """The norms of vectors along `axis` (an int, a tuple, or all)."""
    if axis == ():
        return FUNCTIONS["linalg_vector_norm"](x.unsqueeze(-1), ord, -1)
    return FUNCTIONS["linalg_vector_norm"](x, ord, axis, keepdims)
