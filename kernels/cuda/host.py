"""How the host launches a kernel on a GPU: compiled for the CPU, and called by the core by its address.

The words of the launch and those of the argument block, one after the other, are the kernel's parameters.
"""

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ..blocks.cuda import KERNEL
from ..build import jit
from ..lang.simd import load, ptr, stack, store

INT64 = types.int64
HEAD, MOST = 4, 512  # words of the launch, and of all parameters (`target.py`)
PARAMETERS, SIZE = 1, 2  # CU_LAUNCH_PARAM_BUFFER_POINTER, CU_LAUNCH_PARAM_BUFFER_SIZE
TOO_LONG = 999  # the status of a block that no kernel takes


@intrinsic
def _call_driver(typingctx, launcher, function, grid, threads, shared, stream, extra):
    """cuLaunchKernel(function, grid, 1, 1, threads, 1, 1, shared, stream, NULL, extra)."""

    def codegen(context, builder, sig, values):
        i32, i64 = ir.IntType(32), ir.IntType(64)
        launcher, function, grid, threads, shared, stream, extra = values
        kind = ir.FunctionType(i32, [i64] + [i32] * 7 + [i64] * 3)
        one = ir.Constant(i32, 1)
        grid, threads, shared = (builder.trunc(v, i32) for v in (grid, threads, shared))
        arguments = [function, grid, one, one, threads, one, one, shared, stream, ir.Constant(i64, 0), extra]
        return builder.sext(builder.call(builder.inttoptr(launcher, kind.as_pointer()), arguments), i64)

    return types.int64(*[types.int64] * 7), codegen


@intrinsic
def _set_context(typingctx, function, context):
    """cuCtxSetCurrent(context): a thread may never have launched, or on another GPU. It takes 10 ns where it is."""

    def codegen(context, builder, sig, values):
        kind = ir.FunctionType(ir.IntType(32), [ir.IntType(64)])
        return builder.sext(builder.call(builder.inttoptr(values[0], kind.as_pointer()), [values[1]]), ir.IntType(64))

    return types.int64(types.int64, types.int64), codegen


@jit.inline
def launch(kernel, args, n, count, streams):
    """Launch over n items with a block of `count` words; 0, or 1000 + the driver's error.

    `streams` is the address of the current streams of this thread, one for each GPU.
    """
    k, block = ptr(kernel, INT64), ptr(args, INT64)
    words, per, threads = load(k, KERNEL.words) - HEAD, load(k, KERNEL.per), load(k, KERNEL.threads)
    if words < 0:
        words = count
    skip = load(k, KERNEL.skip)
    if words + HEAD + skip > MOST:
        return TOO_LONG
    buffer, size, extra = stack(8 * 512), stack(8), stack(40)
    parameters = ptr(buffer, INT64) + skip
    store(parameters, 0, n)
    store(parameters, 1, per)
    store(parameters, 2, load(k, KERNEL.error_at))
    store(parameters, 3, load(k, KERNEL.number))
    for i in range(words):
        store(parameters, HEAD + i, load(block, i))
    store(ptr(size, INT64), 0, 8 * (skip + HEAD + words))
    e = ptr(extra, INT64)
    store(e, 0, PARAMETERS)
    store(e, 1, buffer)
    store(e, 2, SIZE)
    store(e, 3, size)
    store(e, 4, 0)
    each = load(k, KERNEL.share) if per == 0 else per * threads
    grid = (n + each - 1) // each
    grid = min(grid, load(k, KERNEL.most))
    stream = load(ptr(streams, INT64), load(k, KERNEL.gpu))
    code = _set_context(load(k, KERNEL.set_context), load(k, KERNEL.context))
    if code != 0:
        return 1000 + code
    code = _call_driver(
        load(k, KERNEL.launcher), load(k, KERNEL.function), grid, threads, load(k, KERNEL.shared), stream, extra
    )
    return 0 if code == 0 else 1000 + code
