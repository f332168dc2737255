"""The way back through an activation (formulas: `kernels/cpu/gemm/epilogue.py`): a part of some rows for a block."""

from ...blocks.gemm import ACTIVATION_GRAD
from ...build import jit
from ...cpu.gemm.microkernel import sum_ptr
from ...lang.ptx import thread, threads
from ...lang.simd import address, load, ptr, vload_aligned, vstore_aligned
from ..block import read, vector, width, write


@jit.inline
def backward(args, lo, hi, T, SLOPE):
    """Part `lo`: of a chunk of rows of out = SLOPE(g, before), as many columns as the threads have 16 bytes of.

    The sums of a chunk's columns, the bias's gradient, stay in registers until they are whole. Parts follow from the
    shape alone.
    """
    rows, columns = load(args, ACTIVATION_GRAD.rows), load(args, ACTIVATION_GRAD.columns)
    stride, chunk_rows = load(args, ACTIVATION_GRAD.stride), load(args, ACTIVATION_GRAD.chunk_rows)
    g, before = ptr(load(args, ACTIVATION_GRAD.g), T), ptr(load(args, ACTIVATION_GRAD.before), T)
    out, sums = ptr(load(args, ACTIVATION_GRAD.out), T), sum_ptr(load(args, ACTIVATION_GRAD.sums), T)
    lanes = width(g)
    across = (columns + threads() * lanes - 1) // (threads() * lanes)
    chunk = lo // across
    j = ((lo - chunk * across) * threads() + thread()) * lanes
    if j < columns:
        left, total = columns - j, vector(g, 0.0)
        i, stop = chunk * chunk_rows, min(rows, (chunk + 1) * chunk_rows)
        places = address(g + j) | address(before + j) | address(out + j) | address(ptr(0, T) + stride)
        if left >= lanes and (places | address(ptr(0, T) + columns)) & 15 == 0:
            while i + 1 < stop:  # two rows are on their way
                a, b = vload_aligned(g + i * stride, j, lanes), vload_aligned(g + (i + 1) * stride, j, lanes)
                c = vload_aligned(before + i * columns, j, lanes)
                d = vload_aligned(before + (i + 1) * columns, j, lanes)
                a, b = SLOPE(a, c), SLOPE(b, d)
                vstore_aligned(out + i * columns, j, a)
                vstore_aligned(out + (i + 1) * columns, j, b)
                total = total + a + b
                i += 2
        while i < stop:
            value = SLOPE(read(g + i * stride, j, left, total), read(before + i * columns, j, left, total))
            write(out + i * columns, j, value, left)
            total = total + value
            i += 1
        write(sums + chunk * load(args, ACTIVATION_GRAD.step), j, total, left)
    return 0
