"""Pooling on GPUs: a thread takes a result, or an element of a gradient; neighbours lie side by side.

Gradients are asked for by the elements that get them: each adds those of the windows that meet it, in their order, so
that sums are the same each time and need no memory of their own.
"""

from numba import types

from ...blocks.pooling import POOL
from ...build import jit
from ...cpu.conv.pooling import (
    axis,
    cell,
    cell_of_depth,
    corner,
    divisor_of,
    largest,
    max_window,
    share,
    tap_offset,
    tap_steps,
    three,
)
from ...lang.simd import load, ptr, store
from ..gemm.wgmma import ratio

I64 = types.int64


@jit.inline
def place_of(index, sizes):
    """(plane, depth, row, column) of an element of planes of these sizes."""
    depth, rows, columns = sizes
    plane = index // (depth * rows * columns)
    rest = index - plane * (depth * rows * columns)
    row = ratio(rest, columns)
    layer = ratio(row, rows)
    return plane, layer, row - layer * rows, rest - row * columns


@jit.inline
def max_pool(args, lo, hi, T, I, VOLUME):
    """Results [lo, hi) of maxima of windows, and which tap of its window each one is."""
    D, H, W = three(args, POOL.size, VOLUME)
    for index in range(lo, hi):
        plane, o, i, j = place_of(index, three(args, POOL.out, VOLUME))
        best, tap = max_window(ptr(load(args, POOL.x), T) + plane * D * H * W, args, o, i, j, VOLUME)
        store(ptr(load(args, POOL.y), T), index, best)
        store(ptr(load(args, POOL.chosen), I), index, tap)
    return 0


@jit.inline
def adaptive_max(args, lo, hi, T, I, VOLUME):
    """Results [lo, hi) of maxima of cells that share out planes, and their positions of type I (`chosen`)."""
    D, H, W = three(args, POOL.size, VOLUME)
    OD, OH, OW = three(args, POOL.out, VOLUME)
    for index in range(lo, hi):
        plane, o, i, j = place_of(index, (OD, OH, OW))
        f, f_past = share(o, OD, D) if VOLUME else (0, 1)
        (a, a_past), (b, b_past) = share(i, OH, H), share(j, OW, W)
        first, steps = (f * H + a) * W + b, (H * W, W, 1)
        x, counts = ptr(load(args, POOL.x), T) + plane * D * H * W, (f_past - f, a_past - a, b_past - b)
        best, where = largest(x, first, counts, steps, first, steps)
        store(ptr(load(args, POOL.y), T), index, best)
        store(ptr(load(args, POOL.chosen), I), index, where)
    return 0


@jit.inline
def max_positions(args, lo, hi, T, I, VOLUME):
    """Positions [lo, hi) of type T in their planes (y) of the maxima whose taps are in `chosen`."""
    _, H, W = three(args, POOL.size, VOLUME)
    for index in range(lo, hi):
        _, o, i, j = place_of(index, three(args, POOL.out, VOLUME))
        front, top, left = corner(args, o, i, j, VOLUME)
        tap = I64(load(ptr(load(args, POOL.chosen), I), index))
        at = (front * H + top) * W + left + tap_offset(tap, tap_steps(args, VOLUME), VOLUME)
        store(ptr(load(args, POOL.y), T), index, at)
    return 0


@jit.inline
def windows_at(x, count, stride, pad, length):
    """[first, past) of the `count` windows that reach over place x of a dim, from their first to their last tap."""
    first = x + pad - length + 1
    return ratio(max(0, first + stride - 1), stride), min(count, ratio(x + pad, stride) + 1)


@jit.inline
def windows_of(args, x, d):
    """The same of dim d."""
    length = (load(args, POOL.window + d) - 1) * load(args, POOL.dilation + d) + 1
    return windows_at(x, load(args, POOL.out + d), load(args, POOL.stride + d), load(args, POOL.padding + d), length)


@jit.inline
def tap_at(args, x, window, d):
    """Which tap of a window meets place x of dim d, or -1."""
    from_first = x - (window * load(args, POOL.stride + d) - load(args, POOL.padding + d))
    gap = load(args, POOL.dilation + d)
    tap = ratio(from_first, gap)
    return tap if tap * gap == from_first else -1


@jit.inline
def max_pool_backward(args, lo, hi, T, I, VOLUME, A):
    """Elements [lo, hi) of the gradient of the planes (x) from that of the maxima (y) and their taps."""
    OD, OH, OW = three(args, POOL.out, VOLUME)
    _, KH, KW = three(args, POOL.window, VOLUME)
    for index in range(lo, hi):
        plane, f, a, b = place_of(index, three(args, POOL.size, VOLUME))
        o_first, o_past = windows_of(args, f, 0) if VOLUME else (0, 1)
        (i_first, i_past), (j_first, j_past) = windows_of(args, a, 1), windows_of(args, b, 2)
        total = A(0)
        for o in range(o_first, o_past):
            n = tap_at(args, f, o, 0) if VOLUME else 0
            for i in range(i_first, i_past):
                k = tap_at(args, a, i, 1)
                at = ((plane * OD + o) * OH + i) * OW
                g, taps = ptr(load(args, POOL.y), T) + at, ptr(load(args, POOL.chosen), I) + at
                for j in range(j_first, j_past):
                    m = tap_at(args, b, j, 2)
                    if n >= 0 and k >= 0 and m >= 0 and I64(load(taps, j)) == (n * KH + k) * KW + m:
                        total += A(load(g, j))
        store(ptr(load(args, POOL.x), T), index, total)
    return 0


@jit.inline
def mean_pool(args, lo, hi, T, ADAPTIVE, VOLUME, A):
    """Results [lo, hi) of means of windows; with ADAPTIVE, of cells that share out the plane."""
    D, H, W = three(args, POOL.size, VOLUME)
    OD, OH, OW = three(args, POOL.out, VOLUME)
    for index in range(lo, hi):
        plane, o, i, j = place_of(index, (OD, OH, OW))
        f, f_past, deep = cell_of_depth(args, o, D, OD, ADAPTIVE, VOLUME)
        a, a_past, high = cell(i, axis(args, 1), H, OH, ADAPTIVE)
        b, b_past, wide = cell(j, axis(args, 2), W, OW, ADAPTIVE)
        x, total = ptr(load(args, POOL.x), T) + plane * D * H * W, A(0)
        for n in range(f, f_past):
            for k in range(a, a_past):
                for m in range(b, b_past):
                    total += A(load(x, (n * H + k) * W + m))
        count = (f_past - f) * (a_past - a) * (b_past - b)
        divisor = divisor_of(load(args, POOL.counted), load(args, POOL.divisor), count, deep * high * wide)
        store(ptr(load(args, POOL.y), T), index, total / A(divisor))
    return 0


@jit.inline
def cells_at(args, x, size, out, d, ADAPTIVE):
    """[first, past) of the windows, or of the cells that share out a dim, that meet place x of dim d."""
    if ADAPTIVE:
        return x * out // size, ((x + 1) * out + size - 1) // size
    return windows_of(args, x, d)


@jit.inline
def mean_pool_backward(args, lo, hi, T, ADAPTIVE, VOLUME, A):
    """Elements [lo, hi) of the gradient of the planes (x) from that of the means (y)."""
    D, H, W = three(args, POOL.size, VOLUME)
    OD, OH, OW = three(args, POOL.out, VOLUME)
    h_axis, w_axis = axis(args, 1), axis(args, 2)
    counted, fixed = load(args, POOL.counted), load(args, POOL.divisor)
    for index in range(lo, hi):
        plane, f, a, b = place_of(index, (D, H, W))
        o_first, o_past = cells_at(args, f, D, OD, 0, ADAPTIVE) if VOLUME else (0, 1)
        i_first, i_past = cells_at(args, a, H, OH, 1, ADAPTIVE)
        j_first, j_past = cells_at(args, b, W, OW, 2, ADAPTIVE)
        total = A(0)
        for o in range(o_first, o_past):
            f_first, f_last, deep = cell_of_depth(args, o, D, OD, ADAPTIVE, VOLUME)
            for i in range(i_first, i_past):
                a_first, a_last, high = cell(i, h_axis, H, OH, ADAPTIVE)
                g = ptr(load(args, POOL.y), T) + ((plane * OD + o) * OH + i) * OW
                for j in range(j_first, j_past):
                    b_first, b_last, wide = cell(j, w_axis, W, OW, ADAPTIVE)
                    count = (f_last - f_first) * (a_last - a_first) * (b_last - b_first)
                    total += A(load(g, j)) / A(divisor_of(counted, fixed, count, deep * high * wide))
        store(ptr(load(args, POOL.x), T), index, total)
    return 0


@jit.inline
def positions_asked(args, lo, hi, T, I):
    """Elements [lo, hi) of the gradient of planes (x) from that of a few chosen ones (y) and their positions."""
    size, count = load(args, POOL.size + 2), load(args, POOL.out + 2)
    for index in range(lo, hi):
        plane = index // size
        place = index - plane * size
        g, places = ptr(load(args, POOL.y), T) + plane * count, ptr(load(args, POOL.chosen), I) + plane * count
        total = load(g, 0) * 0
        for i in range(count):
            if I64(load(places, i)) == place:
                total += load(g, i)
        store(ptr(load(args, POOL.x), T), index, total)
    return 0
