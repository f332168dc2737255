"""Pooling over windows of planes [P, H, W]: maxima with their places, means, and the gradients of both.

A unit is a plane, so gradients are summed without conflicts: in a plane of sums on the thread's scratch, which is
rounded once into the result. Windows of one row are taken LANES at a time where their step is 1 or 2, with the edges
(windows that reach beyond the plane) one by one.

Arguments: 0 x, 1 y, 2 places of the maxima (bytes or int32), 3-4 H, W, 5-6 OH, OW, 7-8 kernel, 9-10 stride,
11-12 padding, 13-14 dilation, 15 scratch, 16 its bytes and 17 planes per thread, 18 whether the padding counts in a
mean, 19 divisor of a mean, or 0 for the size of the window.
"""

from numba import types
from numba.extending import overload

from ...build import isa, jit
from ...lang.shuffle import even, interleave, odd
from ...lang.simd import convert, fill, load, ptr, select, stack, store, vload, vload_first, vstore_first
from ..gemm.microkernel import lanes_of, sum_ptr
from ..norm.rows import row_mean

LANES = isa.lanes()
PAIR = 2 * LANES
TAPS = 256  # of a window
TAPS_BYTES = 8 * TAPS


def windows_row(x, at, step):
    """Elements at, at + step, ... of LANES windows; step 1 or 2."""
    raise NotImplementedError("`windows_row` is for jitted code")


@overload(windows_row)
def _windows_row(x, at, step):
    def implementation(x, at, step):
        if step == 1:
            return vload(x, at, LANES)
        return even(vload(x, at, PAIR))

    return implementation


@jit.inline
def inside(start, count, dilation, size):
    """The taps [first, past) of a window from `start` on that lie inside [0, size)."""
    first = max(0, (dilation - 1 - start) // dilation)
    past = min(count, (size - 1 - start) // dilation + 1)
    return first, past


@jit.inline
def max_window(x, places, y, at, i, j, args):
    """One window, which may reach beyond the plane. NaN is the maximum; of equal ones the first."""
    H, W, KH, KW = load(args, 3), load(args, 4), load(args, 7), load(args, 8)
    d, e = load(args, 13), load(args, 14)
    top, left = i * load(args, 9) - load(args, 11), j * load(args, 10) - load(args, 12)
    a, a_past = inside(top, KH, d, H)
    b, b_past = inside(left, KW, e, W)
    best, where = load(x, (top + a * d) * W + left + b * e), a * KW + b
    for k in range(a, a_past):
        for m in range(b, b_past):
            value = load(x, (top + k * d) * W + left + m * e)
            if value > best or (value != value and best == best):
                best, where = value, k * KW + m
    store(y, at, best)
    store(places, at, where)


@jit.inline
def max_pool(args, lo, hi, T, I):
    """Maxima of the windows of planes [lo, hi), and which tap of its window each one is."""
    H, W, OH, OW = load(args, 3), load(args, 4), load(args, 5), load(args, 6)
    KH, KW, d, e = load(args, 7), load(args, 8), load(args, 13), load(args, 14)
    h_stride, w_stride, h_pad, w_pad = load(args, 9), load(args, 10), load(args, 11), load(args, 12)
    for plane in range(lo, hi):
        x = ptr(load(args, 0), T) + plane * H * W
        y, places = ptr(load(args, 1), T) + plane * OH * OW, ptr(load(args, 2), I) + plane * OH * OW
        for i in range(OH):
            top, j = i * h_stride - h_pad, 0
            whole = top >= 0 and top + (KH - 1) * d < H and w_stride <= 2
            while j < OW:
                left = j * w_stride - w_pad
                # the vectors of a step of 2 read one element behind their last window
                last = left + (LANES - 1) * w_stride + (KW - 1) * e + w_stride - 1
                if whole and left >= 0 and j + LANES <= OW and last < W:
                    first = top * W + left
                    best = windows_row(x, first, w_stride)
                    where = fill(0, types.int32, LANES)
                    for k in range(KH):
                        for m in range(KW):
                            value = windows_row(x, first + k * d * W + m * e, w_stride)
                            better = (value > best) | ((value != value) & (best == best))
                            best, where = select(better, value, best), select(better, k * KW + m, where)
                    vstore_first(y, i * OW + j, best, LANES)
                    vstore_first(places, i * OW + j, convert(where, I), LANES)
                    j += LANES
                else:
                    max_window(x, places, y, i * OW + j, i, j, args)
                    j += 1
    return 0


@jit.inline
def max_pool_2(args, lo, hi, T, I):
    """As `max_pool`, for windows of 2 x 2 that tile the plane: no padding, stride 2; edges by masks."""
    H, W, OH, OW = load(args, 3), load(args, 4), load(args, 5), load(args, 6)
    for plane in range(lo, hi):
        x = ptr(load(args, 0), T) + plane * H * W
        y, places = ptr(load(args, 1), T) + plane * OH * OW, ptr(load(args, 2), I) + plane * OH * OW
        for i in range(OH):
            row = x + 2 * i * W
            for j in range(0, OW, LANES):
                left = 2 * (OW - j)
                a, b = vload_first(row, 2 * j, PAIR, left), vload_first(row, W + 2 * j, PAIR, left)
                best, where = even(a), fill(0, types.int32, LANES)
                best, where = larger_at(best, where, odd(a), 1)
                best, where = larger_at(best, where, even(b), 2)
                best, where = larger_at(best, where, odd(b), 3)
                vstore_first(y, i * OW + j, best, OW - j)
                vstore_first(places, i * OW + j, convert(where, I), OW - j)
    return 0


@jit.inline
def larger_at(best, where, value, place):
    """The larger of `best` and `value`, NaN if one is, and its place."""
    better = (value > best) | ((value != value) & (best == best))
    return select(better, value, best), select(better, place, where)


@jit.inline
def max_positions(args, lo, hi, I):
    """int64 positions in their planes of the maxima: args as of `max_pool`, 0 the positions to write."""
    W, OH, OW, KW = load(args, 4), load(args, 5), load(args, 6), load(args, 8)
    for plane in range(lo, hi):
        out = ptr(load(args, 0), types.int64) + plane * OH * OW
        places = ptr(load(args, 2), I) + plane * OH * OW
        for i in range(OH):
            top = i * load(args, 9) - load(args, 11)
            for j in range(OW):
                tap = types.int64(load(places, i * OW + j))
                h = top + tap // KW * load(args, 13)
                store(out, i * OW + j, h * W + j * load(args, 10) - load(args, 12) + tap % KW * load(args, 14))
    return 0


# ---- gradients ---------------------------------------------------------------------------------


def clear(sums, size):
    """sums[:size] = 0."""
    raise NotImplementedError("`clear` is for jitted code")


@overload(clear)
def _clear(sums, size):
    width, kind = lanes_of(sums.dtype), sums.dtype

    def implementation(sums, size):
        for i in range(0, size, width):
            vstore_first(sums, i, fill(0, kind, width), size - i)

    return implementation


def round_into(y, sums, size):
    """y[i] = sums[i], rounded."""
    raise NotImplementedError("`round_into` is for jitted code")


@overload(round_into)
def _round_into(y, sums, size):
    width = lanes_of(sums.dtype)

    def implementation(y, sums, size):
        for i in range(0, size, width):
            vstore_first(y, i, vload_first(sums, i, width, size - i), size - i)

    return implementation


@jit.inline
def max_pool_backward(args, lo, hi, T, I):
    """The gradient of planes [lo, hi) (0) from that of the maxima (1) and their places (2)."""
    H, W, OH, OW, KW = load(args, 3), load(args, 4), load(args, 5), load(args, 6), load(args, 8)
    h_stride, w_stride, h_pad, w_pad = load(args, 9), load(args, 10), load(args, 11), load(args, 12)
    d, e = load(args, 13), load(args, 14)
    sums = sum_ptr(load(args, 15) + lo // load(args, 17) * load(args, 16), T)
    offsets, count = ptr(stack(TAPS_BYTES), types.int64), load(args, 7) * KW
    few = count <= TAPS  # a look instead of a division for each element
    for tap in range(count if few else 0):
        store(offsets, tap, tap // KW * d * W + tap % KW * e)
    for plane in range(lo, hi):
        g, places = ptr(load(args, 1), T) + plane * OH * OW, ptr(load(args, 2), I) + plane * OH * OW
        clear(sums, H * W)
        for i in range(OH):
            row = (i * h_stride - h_pad) * W - w_pad
            for j in range(OW):
                tap = types.int64(load(places, i * OW + j))
                if few:
                    at = row + j * w_stride + load(offsets, tap)
                else:
                    at = row + j * w_stride + tap // KW * d * W + tap % KW * e
                store(sums, at, load(sums, at) + load(g, i * OW + j))
        round_into(ptr(load(args, 0), T) + plane * H * W, sums, H * W)
    return 0


@jit.inline
def max_pool_2_backward(args, lo, hi, T, I):
    """As `max_pool_backward`, for windows of 2 x 2 that tile the plane; the rest of it gets zeros."""
    H, W, OH, OW = load(args, 3), load(args, 4), load(args, 5), load(args, 6)
    for plane in range(lo, hi):
        x = ptr(load(args, 0), T) + plane * H * W
        g, places = ptr(load(args, 1), T) + plane * OH * OW, ptr(load(args, 2), I) + plane * OH * OW
        for i in range(OH):
            for j in range(0, OW, LANES):
                value = vload_first(g, i * OW + j, LANES, OW - j)
                where = convert(vload_first(places, i * OW + j, LANES, OW - j), types.int32)
                upper = interleave(select(where == 0, value, 0.0), select(where == 1, value, 0.0))
                lower = interleave(select(where == 2, value, 0.0), select(where == 3, value, 0.0))
                vstore_first(x, 2 * i * W + 2 * j, upper, 2 * (OW - j))
                vstore_first(x, (2 * i + 1) * W + 2 * j, lower, 2 * (OW - j))
            if 2 * OW < W:
                store(x, 2 * i * W + W - 1, 0.0)
                store(x, (2 * i + 1) * W + W - 1, 0.0)
        for j in range(2 * OH * W, H * W):
            store(x, j, 0.0)
    return 0


# ---- means -------------------------------------------------------------------------------------


@jit.inline
def mean_range(start, kernel, size, padded):
    """[first, past) of a window inside the plane, and its length inside the padded plane."""
    past = min(start + kernel, padded)
    return max(0, start), min(past, size), past - start


@jit.inline
def adaptive_range(i, out, size):
    """[first, past) of cell i of `out` cells that share out `size`."""
    return i * size // out, ((i + 1) * size + out - 1) // out


@jit.inline
def cell(args, i, axis, size, out, ADAPTIVE):
    """[first, past) of window i along an axis, and its length for a divisor that counts the padding."""
    if ADAPTIVE:
        first, past = adaptive_range(i, out, size)
        return first, past, past - first
    kernel, start = load(args, 7 + axis), i * load(args, 9 + axis) - load(args, 11 + axis)
    return mean_range(start, kernel, size, size + load(args, 11 + axis))


@jit.inline
def scale_of(args, rows, columns, whole):
    """One over the divisor of a mean."""
    count = whole if load(args, 18) != 0 else rows * columns
    if load(args, 19) != 0:
        count = load(args, 19)
    return 1.0 / float(count)


@jit.inline
def mean_pool(args, lo, hi, T, ADAPTIVE):
    """Means of the windows of planes [lo, hi); with ADAPTIVE, of cells that share out the plane."""
    H, W, OH, OW = load(args, 3), load(args, 4), load(args, 5), load(args, 6)
    for plane in range(lo, hi):
        x, y = ptr(load(args, 0), T) + plane * H * W, ptr(load(args, 1), T) + plane * OH * OW
        for i in range(OH):
            a, a_past, height = cell(args, i, 0, H, OH, ADAPTIVE)
            for j in range(OW):
                b, b_past, width = cell(args, j, 1, W, OW, ADAPTIVE)
                total = sum_of(x, a * W + b, a_past - a, b_past - b, W, T)
                store(y, i * OW + j, total * scale_of(args, a_past - a, b_past - b, height * width))
    return 0


@jit.inline
def sum_of(x, at, rows, columns, stride, T):
    """The sum of a block of a plane."""
    total = 0.0
    if columns == stride:  # whole rows are contiguous
        return row_mean(x + at, rows * columns, T) * float(rows * columns)
    for i in range(rows):
        for j in range(columns):
            total += load(x, at + i * stride + j)
    return total


@jit.inline
def mean_pool_backward(args, lo, hi, T, ADAPTIVE):
    """The gradient of planes [lo, hi) (0) from that of the means (1)."""
    H, W, OH, OW = load(args, 3), load(args, 4), load(args, 5), load(args, 6)
    sums = sum_ptr(load(args, 15) + lo // load(args, 17) * load(args, 16), T)
    for plane in range(lo, hi):
        g = ptr(load(args, 1), T) + plane * OH * OW
        clear(sums, H * W)
        for i in range(OH):
            a, a_past, height = cell(args, i, 0, H, OH, ADAPTIVE)
            for j in range(OW):
                b, b_past, width = cell(args, j, 1, W, OW, ADAPTIVE)
                part = load(g, i * OW + j) * scale_of(args, a_past - a, b_past - b, height * width)
                for k in range(a, a_past):
                    for m in range(b, b_past):
                        store(sums, k * W + m, load(sums, k * W + m) + part)
        round_into(ptr(load(args, 0), T) + plane * H * W, sums, H * W)
    return 0


# ---- adaptive maxima ---------------------------------------------------------------------------


@jit.inline
def adaptive_max(args, lo, hi, T):
    """Maxima of cells that share out planes [lo, hi), and their int64 positions (2)."""
    H, W, OH, OW = load(args, 3), load(args, 4), load(args, 5), load(args, 6)
    for plane in range(lo, hi):
        x, y = ptr(load(args, 0), T) + plane * H * W, ptr(load(args, 1), T) + plane * OH * OW
        places = ptr(load(args, 2), types.int64) + plane * OH * OW
        for i in range(OH):
            a, a_past = adaptive_range(i, OH, H)
            for j in range(OW):
                b, b_past = adaptive_range(j, OW, W)
                where = a * W + b
                best = load(x, where)
                for k in range(a, a_past):
                    for m in range(b, b_past):
                        value = load(x, k * W + m)
                        if value > best or (value != value and best == best):
                            best, where = value, k * W + m
                store(y, i * OW + j, best)
                store(places, i * OW + j, where)
    return 0


@jit.inline
def positions_backward(args, lo, hi, T):
    """The gradient of planes [lo, hi) (0) from that of chosen elements (1) and their int64 positions (2)."""
    size, count = load(args, 3) * load(args, 4), load(args, 5) * load(args, 6)
    sums = sum_ptr(load(args, 15) + lo // load(args, 17) * load(args, 16), T)
    for plane in range(lo, hi):
        g, places = ptr(load(args, 1), T) + plane * count, ptr(load(args, 2), types.int64) + plane * count
        clear(sums, size)
        for i in range(count):
            at = load(places, i)
            store(sums, at, load(sums, at) + load(g, i))
        round_into(ptr(load(args, 0), T) + plane * size, sums, size)
    return 0
