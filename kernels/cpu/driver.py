"""The one parallel loop of the house, and the replay of recorded launches.

A kernel is serial: it does the slice [lo, hi) of its work. `drive` splits [0, n) into `parts` and
calls the kernel's address for each, on Numba's OpenMP threads. How many parts a launch gets is
decided in `infinicore/core` from the launch's grain and the thread count in `kernels/cpu/threads.py`.
"""

from llvmlite import ir
from numba import prange, types
from numba.extending import intrinsic

from ..blocks.driver import RECORD
from ..build import jit
from ..lang.simd import load, ptr, stack, store

INT64 = types.int64


@intrinsic
def call_kernel(typingctx, kernel, args, lo, hi):
    """Call the kernel at an address."""

    def codegen(context, builder, sig, values):
        i64 = ir.IntType(64)
        values = [context.cast(builder, v, t, types.int64) for v, t in zip(values, sig.args)]
        kind = ir.FunctionType(i64, [i64, i64, i64])
        return builder.call(builder.inttoptr(values[0], kind.as_pointer()), values[1:])

    return types.int64(kernel, args, lo, hi), codegen


@jit.parallel
def drive(kernel, args, n, parts):
    """Run [0, n) in `parts` slices; an error code if any slice returned one."""
    step = (n + parts - 1) // parts
    # A slot on the stack, not a reduction variable: that one would need Numba's memory runtime.
    status = stack(8)
    store(ptr(status, INT64), 0, 0)
    for part in prange(parts):
        lo = part * step
        hi = min(n, lo + step)
        if lo < hi:
            code = call_kernel(kernel, args, lo, hi)
            if code != 0:
                store(ptr(status, INT64), 0, code)
    return load(ptr(status, INT64), 0)


@jit.inline
def replay(args, lo, hi):
    """Run records [lo, hi) of a graph."""
    for i in range(lo, hi):
        record = args + RECORD.WIDTH * i
        kernel, block = load(record, RECORD.kernel), load(record, RECORD.args)
        n, parts = load(record, RECORD.n), load(record, RECORD.parts)
        if parts <= 1:
            status = call_kernel(kernel, block, 0, n)
        else:
            status = drive(kernel, block, n, parts)
        if status != 0:
            return status + 1000 * i
    return 0


@jit.inline
def replay_serial(args, lo, hi):
    """As `replay`, for a graph without parallel launches: needs no threads started."""
    for i in range(lo, hi):
        record = args + RECORD.WIDTH * i
        status = call_kernel(load(record, RECORD.kernel), load(record, RECORD.args), 0, load(record, RECORD.n))
        if status != 0:
            return status + 1000 * i
    return 0
