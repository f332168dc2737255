"""Systems of equations by elimination: what solutions, inverses and determinants have in common."""

from ..blocks.linalg import CHOLESKY, DETERMINANTS, EXCHANGED, LU, OUT_OF_RANGE, SINGULAR, STEPS, STRIP, TRIANGULAR
from ._layout import product
from .copy import copy_into

OWN = 256  # rows up to which our elimination takes at most LAPACK's time (256: 0.15 ms, 8: 1.5 us instead of 20)


def is_own(A):
    """Whether matrices [..., N, N] are eliminated by kernels of our own, on devices whose threads are worth as much."""
    return A.dtype.kind == "f" and A.shape_[-1] <= OWN and A.storage.backend.shares_memory


def factor(call, lu, pivots, errors=None):
    """L and U of matrices in their place, with the exchanges of rows; without `errors`, also of singular ones."""
    rows, columns = lu.shape_[-2:]
    panels = call.empty((*lu.shape_[:-2], STEPS * rows), lu.dtype)
    block = LU(a=lu, pivots=pivots, panels=panels, rows=rows, columns=columns, singular=errors is None)
    count, work = product(lu.shape_[:-2]) if lu.numel_ else 0, rows * columns * min(rows, columns) // 4
    call.launch("linalg.factor.lu_factor", {"T": lu.dtype.name}, block, count, work, errors)


def factors_of(call, A, singular=None):
    """(LU, pivots) of matrices A [..., N, N] as intermediate results; `singular` is an error, or they may be."""
    lu, pivots = call.empty(A.shape_, A.dtype), call.empty(A.shape_[:-1], "int32")
    copy_into(call, lu, A)
    factor(call, lu, pivots, singular and {SINGULAR: singular})
    return lu, pivots


def cholesky(call, y, upper):
    """The factors L of symmetric matrices in their place, of which one triangle is read."""
    size = y.shape_[-1]
    panels = call.empty((*y.shape_[:-2], STEPS * size), y.dtype)
    errors = {SINGULAR: f"`{call.op.name}` has no result for a matrix of {y.shape_}: matrix is not positive definite"}
    block, count = CHOLESKY(a=y, panels=panels, size=size, upper=bool(upper)), product(y.shape_[:-2]) if y.numel_ else 0
    call.launch("linalg.factor.cholesky", {"T": y.dtype.name}, block, count, size**3 // 4, errors)


def exchange(call, x, pivots, back=False, eye=False):
    """Exchange the rows of matrices x [..., N, K] as `pivots` say, or undo it; of `eye`, those of the identity."""
    size, columns = x.shape_[-2:]
    steps, kind = pivots.shape_[-1], x.dtype
    if kind.kind == "c":  # rows of pairs
        columns, kind = 2 * columns, kind.real
    block = EXCHANGED(x=x, pivots=pivots, size=size, columns=columns, steps=steps, back=bool(back), eye=eye)
    strips = -(-columns // STRIP)
    count = product(x.shape_[:-2]) * strips if x.numel_ else 0
    errors = {OUT_OF_RANGE: f"`pivots` of `{call.op.name}` must be from 1 to {size}, the number of rows"}
    call.launch("linalg.factor.exchanged", {"T": kind.name}, block, count, size * min(columns, STRIP), errors)


def triangular(call, a, x, upper, unit):
    """Solve a X = x in place, for triangular matrices a."""
    size, columns = x.shape_[-2:]
    block = TRIANGULAR(a=a, x=x, size=size, columns=columns, upper=bool(upper), unit=bool(unit))
    count = product(x.shape_[:-2]) if x.numel_ else 0
    call.launch("linalg.factor.solve_triangular", {"T": x.dtype.name}, block, (count, columns), size * size // 2)


def solved(call, A, x, eye=False):
    """Solve A X = x in place; of `eye`, x becomes the inverse."""
    singular = f"`{call.op.name}` has no result for a matrix of {A.shape_}: singular matrix"
    lu, pivots = factors_of(call, A, singular)
    exchange(call, x, pivots, eye=eye)
    triangular(call, lu, x, upper=False, unit=True)
    triangular(call, lu, x, upper=True, unit=False)
    return x


def determinants(call, A, y, logarithms=None):
    """The determinants y of A, or their signs, and the logarithms of their magnitudes."""
    lu, pivots = factors_of(call, A)
    logs = logarithms is not None
    also = logarithms if logs else y
    block = DETERMINANTS(a=lu, pivots=pivots, y=y, logarithms=also, size=A.shape_[-1], logs=logs)
    call.launch("linalg.factor.determinants", {"T": y.dtype.name}, block, y.numel_, 32 * A.shape_[-1])
    return (y, logarithms) if logs else y
