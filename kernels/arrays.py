"""Kernels as plain Numba functions on NumPy arrays: for users' own `@njit` code, and for trying them out.

    from numba import njit
    from infinicore.kernels import arrays

    @njit
    def scores(x, weight, out):
        arrays.rms_norm(x, weight, 1e-6, out)
        arrays.softmax(out, out)

They run the code of `kernels/cpu/` serially, on C-contiguous float32 or float64 arrays; anything else does not
compile. The caller splits the work and gives the output. `out` may be the input.
"""

from llvmlite import ir
from numba import types
from numba.core.errors import TypingError
from numba.extending import intrinsic

from .blocks.gemm import DOT_ROWS
from .blocks.norm import RMS
from .blocks.softmax import ROWS
from .build import jit
from .cpu.array import elementwise
from .cpu.gemm import gemv
from .cpu.gemm.blocking import GROUP
from .cpu.norm import rows as norm
from .cpu.norm import softmax as _softmax
from .lang import vmath
from .lang.simd import bitcast, ptr, stack, store, vload, vload_first, vstore, vstore_first

INT64 = types.int64
LANES = elementwise.LANES
FIELDS = max(len(block) for block in (DOT_ROWS, RMS, ROWS))
BLOCK_BYTES = 8 * FIELDS


@intrinsic
def kind_of(typingctx, array):
    """The element type of an array, as the value that kernels take as `T`."""
    if not isinstance(array, types.Array):
        return None
    if array.layout != "C" or array.dtype not in (types.float32, types.float64):
        raise TypingError(f"kernels on arrays take C-contiguous float32 or float64, got {array}")
    return types.NumberClass(array.dtype)(array), lambda context, builder, sig, args: context.get_dummy_value()


@intrinsic
def address_of(typingctx, array):
    """The address of an array's first element."""

    def codegen(context, builder, sig, args):
        return builder.ptrtoint(context.make_array(array)(context, builder, args[0]).data, ir.IntType(64))

    return types.int64(array), codegen


@jit.inline
def _blank(address):
    """An argument block of zeros at an address (of the caller's stack)."""
    block = ptr(address, INT64)
    for i in range(FIELDS):
        store(block, i, 0)
    return block


@jit.public
def rms_norm(x, weight, eps, out):
    """out = x / sqrt(mean(x^2) + eps) * weight for the rows of x [N, D], weight [D], out [N, D]."""
    if x.shape != out.shape or weight.shape[0] != x.shape[1]:
        raise ValueError("`rms_norm` needs `out` of the shape of `x`, and `weight` of the size of its rows")
    n, d = x.shape
    block = _blank(stack(BLOCK_BYTES))
    store(block, RMS.x, address_of(x))
    store(block, RMS.w, address_of(weight))
    store(block, RMS.y, address_of(out))
    store(block, RMS.size, d)
    store(block, RMS.x_stride, d)
    store(block, RMS.y_stride, d)
    store(block, RMS.eps, bitcast(float(eps), INT64))
    norm.rms_norm(block, 0, n, kind_of(x), kind_of(weight))


@jit.public
def softmax(x, out):
    """out = softmax of each row of x [N, D]."""
    if x.shape != out.shape:
        raise ValueError("`softmax` needs `out` of the shape of `x`")
    n, d = x.shape
    block = _blank(stack(BLOCK_BYTES))
    store(block, ROWS.x, address_of(x))
    store(block, ROWS.y, address_of(out))
    store(block, ROWS.size, d)
    store(block, ROWS.stride, d)
    _softmax.softmax(block, 0, n, kind_of(x))


@jit.public
def linear(x, weight, out):
    """out = x weight^T for x [M, K], weight [N, K], out [M, N]: reads the weight once, best for few rows."""
    m, k = x.shape
    n = weight.shape[0]
    if weight.shape[1] != k or out.shape[0] != m or out.shape[1] != n:
        raise ValueError("`linear` needs x [M, K], weight [N, K] and out [M, N]")
    block = _blank(stack(BLOCK_BYTES))  # no bias, no residual, no batch
    store(block, DOT_ROWS.w, address_of(weight))
    store(block, DOT_ROWS.x, address_of(x))
    store(block, DOT_ROWS.out, address_of(out))
    store(block, DOT_ROWS.rows, n)
    store(block, DOT_ROWS.tokens, m)
    store(block, DOT_ROWS.k, k)
    store(block, DOT_ROWS.w_stride, k)
    store(block, DOT_ROWS.x_stride, k)
    store(block, DOT_ROWS.row_step, 1)
    store(block, DOT_ROWS.token_step, n)
    store(block, DOT_ROWS.alpha, bitcast(1.0, INT64))
    gemv.dot_rows(block, 0, (n + GROUP - 1) // GROUP, kind_of(x), None)


def _map(name, function):
    @jit.public
    def apply(x, out):
        if x.size != out.size:
            raise ValueError("`out` needs the size of `x`")
        source, target = ptr(address_of(x), kind_of(x)), ptr(address_of(out), kind_of(out))
        i, n = 0, x.size
        while i + LANES <= n:
            vstore(target, i, function(vload(source, i, LANES)))
            i += LANES
        if i < n:
            vstore_first(target, i, function(vload_first(source, i, LANES, n - i)), n - i)

    apply.__doc__ = f"out = {name} of each element of x; arrays of one size and type."
    return apply


exp, log, tanh, erf, sigmoid, sin, cos = (
    _map(f.__name__, f) for f in (vmath.exp, vmath.log, vmath.tanh, vmath.erf, vmath.sigmoid, vmath.sin, vmath.cos)
)
