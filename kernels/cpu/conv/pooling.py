"""Pooling over windows of planes or volumes [D, H, W]: maxima with their places, means, and the gradients of both.

Two dims are a volume of depth 1 (one dim: also of height 1), which a kernel without VOLUME knows when it is compiled:
loops over depth vanish. A unit is a plane or volume, so gradients are summed without conflicts: in sums on the thread's
scratch, which are rounded once into the result. Windows of one row are taken LANES at a time, with those that reach
beyond its ends one by one.
"""

from numba import types

from ...blocks.pooling import POOL
from ...build import isa, jit
from ...lang.by_type import by_type
from ...lang.rows import fill_row
from ...lang.shuffle import even, interleave, odd
from ...lang.simd import (
    convert,
    fill,
    load,
    ptr,
    ramp,
    reduce_max,
    reduce_min,
    select,
    stack,
    store,
    vload,
    vload_first,
    vpick,
    vstore_first,
)
from ..gemm.microkernel import lanes_of, sum_ptr
from ..norm.rows import row_sum

LANES = isa.lanes()
PAIR = 2 * LANES
TAPS = 256  # of a window
TAPS_BYTES = 8 * TAPS


@by_type
def windows_row(x, at, step, valid):
    """Elements at, at + step, ... of LANES windows, as far as the `valid` elements of the row reach; step 1 or 2."""

    def implementation(x, at, step, valid):
        if step == 1:
            return vload(x, at, LANES) if valid >= LANES else vload_first(x, at, LANES, valid)
        return even(vload(x, at, PAIR) if valid >= PAIR else vload_first(x, at, PAIR, valid))

    return implementation


@jit.inline
def windows_apart(x, at, step, valid):
    """The same for any step, a lane after the other."""
    places = ramp(0, types.int32, LANES) * step
    return vpick(x + at, places, places < valid)


@jit.inline
def together(left, windows, step, reach, W):
    """How many of the next `windows`, the first of which begins at `left`, are taken at once: those whose elements, up
    to `reach` behind their first, all lie in a row of W.
    """
    if left < 0 or left + reach >= W:
        return types.int64(0)
    return min(LANES, windows, (W - 1 - reach - left) // step + 1)


@jit.inline
def three(args, field, VOLUME):
    """A field of depth, height and width; without VOLUME the first is the constant 1."""
    return load(args, field) if VOLUME else 1, load(args, field + 1), load(args, field + 2)


@jit.inline
def corner(args, o, i, j, VOLUME):
    """Where window (o, i, j) begins, which may be in the padding."""
    front = o * load(args, POOL.stride) - load(args, POOL.padding) if VOLUME else 0
    top = i * load(args, POOL.stride + 1) - load(args, POOL.padding + 1)
    return front, top, j * load(args, POOL.stride + 2) - load(args, POOL.padding + 2)


@jit.inline
def inside(start, count, dilation, size):
    """The taps [first, past) of a window from `start` on that lie inside [0, size); most windows need no division."""
    first, past = types.int64(0), count
    if start < 0:
        first = (dilation - 1 - start) // dilation
    if start + (count - 1) * dilation >= size:
        past = (size - 1 - start) // dilation + 1
    return first, past


@jit.inline
def largest(x, at, counts, steps, where, weights):
    """(the largest of a block of elements, its place), NaN if one is, of equal ones the first.

    The block begins at `at` and has `counts` elements in each dim, `steps` apart; the place of the first is `where`,
    and those of neighbours differ by `weights`.
    """
    best, place = load(x, at), where
    for n in range(counts[0]):
        for k in range(counts[1]):
            for m in range(counts[2]):
                value = load(x, at + n * steps[0] + k * steps[1] + m * steps[2])
                if value > best or (value != value and best == best):
                    best, place = value, where + n * weights[0] + k * weights[1] + m * weights[2]
    return best, place


@jit.inline
def larger_at(best, where, value, place):
    """The larger of `best` and `value`, NaN if one is, and its place."""
    better = (value > best) | ((value != value) & (best == best))
    return select(better, value, best), select(better, place, where)


@jit.inline
def largest_beside(row, x, at, valid, step, taps, window, steps):
    """(the largest elements of LANES windows, their taps): of `taps` (first and past in depth and height) alone.

    `row` is `windows_row` or `windows_apart`, the first tap would lie `at`; its row has `valid` elements from there on.
    """
    f, f_past, a, a_past = taps
    c, d, e = steps
    best, where = row(x, at + f * c + a * d, step, valid), fill((f * window[1] + a) * window[2], types.int32, LANES)
    for n in range(f, f_past):
        for k in range(a, a_past):
            for m in range(window[2]):
                value = row(x, at + n * c + k * d + m * e, step, valid - m * e)
                best, where = larger_at(best, where, value, (n * window[1] + k) * window[2] + m)
    return best, where


@jit.inline
def max_window(x, args, o, i, j, VOLUME):
    """The largest element of a window, which may reach beyond the plane, and its tap."""
    D, H, W = three(args, POOL.size, VOLUME)
    KD, KH, KW = three(args, POOL.window, VOLUME)
    c, d, e = three(args, POOL.dilation, VOLUME)
    front, top, left = corner(args, o, i, j, VOLUME)
    f, f_past = inside(front, KD, c, D) if VOLUME else (0, 1)
    a, a_past = inside(top, KH, d, H)
    b, b_past = inside(left, KW, e, W)
    at = ((front + f * c) * H + top + a * d) * W + left + b * e
    counts, steps = (f_past - f, a_past - a, b_past - b), (c * H * W, d * W, e)
    return largest(x, at, counts, steps, (f * KH + a) * KW + b, (KH * KW, KW, 1))


@jit.inline
def max_pool(args, lo, hi, T, I, VOLUME):
    """Maxima of the windows of planes [lo, hi), and which tap of its window each one is."""
    D, H, W = three(args, POOL.size, VOLUME)
    OD, OH, OW = three(args, POOL.out, VOLUME)
    KD, KH, KW = three(args, POOL.window, VOLUME)
    c, d, e = three(args, POOL.dilation, VOLUME)
    w_stride, window, steps = load(args, POOL.stride + 2), (KD, KH, KW), (c * H * W, d * W, e)
    for plane in range(lo, hi):
        x = ptr(load(args, POOL.x), T) + plane * D * H * W
        for row in range(OD * OH):
            o, i = (row // OH, row % OH) if VOLUME else (0, row)
            y_at = (plane * OD * OH + row) * OW
            y, places = ptr(load(args, POOL.y), T) + y_at, ptr(load(args, POOL.chosen), I) + y_at
            front, top, left = corner(args, o, i, 0, VOLUME)
            f, f_past = inside(front, KD, c, D) if VOLUME else (0, 1)
            a, a_past = inside(top, KH, d, H)
            j = 0
            while j < OW:
                beside = together(left, OW - j, w_stride, (KW - 1) * e, W)
                if beside > 1:
                    at, valid, taps = (front * H + top) * W + left, W - left, (f, f_past, a, a_past)
                    if w_stride <= 2:
                        best, where = largest_beside(windows_row, x, at, valid, w_stride, taps, window, steps)
                    else:
                        best, where = largest_beside(windows_apart, x, at, valid, w_stride, taps, window, steps)
                    vstore_first(y, j, best, beside)
                    vstore_first(places, j, convert(where, I), beside)
                    j, left = j + beside, left + beside * w_stride
                else:
                    best, tap = max_window(x, args, o, i, j, VOLUME)
                    store(y, j, best)
                    store(places, j, tap)
                    j, left = j + 1, left + w_stride
    return 0


@jit.inline
def max_pool_2(args, lo, hi, T, I):
    """As `max_pool`, for windows of 2 x 2 that tile the plane: no padding, stride 2; edges by masks."""
    _, H, W = three(args, POOL.size, False)
    _, OH, OW = three(args, POOL.out, False)
    for plane in range(lo, hi):
        x = ptr(load(args, POOL.x), T) + plane * H * W
        y, places = ptr(load(args, POOL.y), T) + plane * OH * OW, ptr(load(args, POOL.chosen), I) + plane * OH * OW
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
def max_positions(args, lo, hi, T, I, VOLUME):
    """Positions of type T in their planes (y) of the maxima whose taps are in `chosen`."""
    D, H, W = three(args, POOL.size, VOLUME)
    OD, OH, OW = three(args, POOL.out, VOLUME)
    steps, w_stride = tap_steps(args, VOLUME), load(args, POOL.stride + 2)
    for row in range(lo * OD * OH, hi * OD * OH):
        o, i = (row // OH % OD, row % OH) if VOLUME else (0, row % OH)
        y, taps = ptr(load(args, POOL.y), T) + row * OW, ptr(load(args, POOL.chosen), I) + row * OW
        front, top, left = corner(args, o, i, 0, VOLUME)
        first = (front * H + top) * W + left
        for j in range(OW):
            store(y, j, first + j * w_stride + tap_offset(types.int64(load(taps, j)), steps, VOLUME))
    return 0


@jit.inline
def tap_steps(args, VOLUME):
    """What `tap_offset` needs: height and width of a window, and the steps between its taps in each dim."""
    _, H, W = three(args, POOL.size, VOLUME)
    _, KH, KW = three(args, POOL.window, VOLUME)
    c, d, e = three(args, POOL.dilation, VOLUME)
    return KH, KW, c * H * W, d * W, e


@jit.inline
def tap_offset(tap, steps, VOLUME):
    """How far a tap lies from the first one of its window."""
    KH, KW, c, d, e = steps
    k = tap // KW
    if VOLUME:
        return k // KH * c + k % KH * d + tap % KW * e
    return k * d + tap % KW * e


# ---- gradients ---------------------------------------------------------------------------------


@by_type
def round_into(y, sums, size):
    """y[i] = sums[i], rounded."""
    width = lanes_of(sums.dtype)

    def implementation(y, sums, size):
        for i in range(0, size, width):
            vstore_first(y, i, vload_first(sums, i, width, size - i), size - i)

    return implementation


@jit.inline
def sums_of(args, thread, T):
    """The sums of one plane of a thread."""
    return sum_ptr(load(args, POOL.scratch) + thread * load(args, POOL.thread_bytes), T)


@jit.inline
def max_pool_backward(args, lo, hi, thread, T, I, VOLUME):
    """The gradient of planes [lo, hi) (x) from that of the maxima (y) and their places."""
    D, H, W = three(args, POOL.size, VOLUME)
    OD, OH, OW = three(args, POOL.out, VOLUME)
    KD, KH, KW = three(args, POOL.window, VOLUME)
    sums, size, w_stride = sums_of(args, thread, T), D * H * W, load(args, POOL.stride + 2)
    offsets, count, steps = ptr(stack(TAPS_BYTES), types.int64), KD * KH * KW, tap_steps(args, VOLUME)
    few = count <= TAPS  # a look instead of a division for each element
    for tap in range(count if few else 0):
        store(offsets, tap, tap_offset(tap, steps, VOLUME))
    for plane in range(lo, hi):
        fill_row(sums, size, 0)
        for row in range(OD * OH):
            o, i = (row // OH, row % OH) if VOLUME else (0, row)
            y_at = (plane * OD * OH + row) * OW
            g, places = ptr(load(args, POOL.y), T) + y_at, ptr(load(args, POOL.chosen), I) + y_at
            front, top, left = corner(args, o, i, 0, VOLUME)
            first = (front * H + top) * W + left
            for j in range(OW):
                tap = types.int64(load(places, j))
                if few:
                    at = first + j * w_stride + load(offsets, tap)
                else:
                    at = first + j * w_stride + tap_offset(tap, steps, VOLUME)
                store(sums, at, load(sums, at) + load(g, j))
        round_into(ptr(load(args, POOL.x), T) + plane * size, sums, size)
    return 0


@jit.inline
def max_pool_2_backward(args, lo, hi, T, I):
    """As `max_pool_backward`, for windows of 2 x 2 that tile the plane; the rest of it gets zeros."""
    _, H, W = three(args, POOL.size, False)
    _, OH, OW = three(args, POOL.out, False)
    for plane in range(lo, hi):
        x = ptr(load(args, POOL.x), T) + plane * H * W
        g, places = ptr(load(args, POOL.y), T) + plane * OH * OW, ptr(load(args, POOL.chosen), I) + plane * OH * OW
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
def share(i, out, size):
    """[first, past) of cell i of `out` cells that share out `size`."""
    return i * size // out, ((i + 1) * size + out - 1) // out


@jit.inline
def cell(i, along, size, out, ADAPTIVE):
    """[first, past) of window i inside the plane, and its length inside the padded plane.

    `along` is the `axis`; with ADAPTIVE windows share out the plane.
    """
    if ADAPTIVE:
        first, past = share(i, out, size)
        return first, past, past - first
    kernel, stride, pad = along
    start = i * stride - pad
    past = min(start + kernel, size + pad)
    return max(0, start), min(past, size), past - start


@jit.inline
def axis(args, d):
    """The kernel, its stride and padding in dim d."""
    return load(args, POOL.window + d), load(args, POOL.stride + d), load(args, POOL.padding + d)


@jit.inline
def cell_of_depth(args, o, D, OD, ADAPTIVE, VOLUME):
    """`cell` of the depth."""
    if not VOLUME:
        return 0, 1, 1
    return cell(o, axis(args, 0), D, OD, ADAPTIVE)


@jit.inline
def divisor_of(counted, divisor, count, whole):
    """The divisor of a mean of `count` elements, with the padding `whole` ones."""
    if divisor != 0:
        return divisor
    return whole if counted != 0 else count


@jit.inline
def mean_pool(args, lo, hi, T, ADAPTIVE, VOLUME):
    """Means of the windows of planes [lo, hi); with ADAPTIVE, of cells that share out the plane."""
    D, H, W = three(args, POOL.size, VOLUME)
    OD, OH, OW = three(args, POOL.out, VOLUME)
    h_axis, w_axis = axis(args, 1), axis(args, 2)
    counted, fixed, before, scale = load(args, POOL.counted), load(args, POOL.divisor), types.int64(0), 0.0
    for plane in range(lo, hi):
        x = ptr(load(args, POOL.x), T) + plane * D * H * W
        for row in range(OD * OH):
            o, i = (row // OH, row % OH) if VOLUME else (0, row)
            y = ptr(load(args, POOL.y), T) + (plane * OD * OH + row) * OW
            f, f_past, deep = cell_of_depth(args, o, D, OD, ADAPTIVE, VOLUME)
            a, a_past, high = cell(i, h_axis, H, OH, ADAPTIVE)
            j = 0
            while j < OW:
                b, b_past, wide = cell(j, w_axis, W, OW, ADAPTIVE)
                left = j * w_axis[1] - w_axis[2]
                beside = 0 if ADAPTIVE else together(left, OW - j, w_axis[1], w_axis[0] - 1, W)
                if beside > 1:
                    at, counts = (f * H + a) * W + left, (f_past - f, a_past - a, w_axis[0])
                    if w_axis[1] <= 2:
                        sums = sum_beside(windows_row, x, at, W - left, w_axis[1], counts, (H * W, W), T)
                    else:
                        sums = sum_beside(windows_apart, x, at, W - left, w_axis[1], counts, (H * W, W), T)
                    count = (f_past - f) * (a_past - a) * w_axis[0]
                    sums = sums / float(divisor_of(counted, fixed, count, deep * high * wide))
                    vstore_first(y, j, sums, beside)
                    j += beside
                    continue
                total = 0.0
                for n in range(f, f_past):
                    total = add_block(total, x, (n * H + a) * W + b, a_past - a, b_past - b, W, T)
                count = (f_past - f) * (a_past - a) * (b_past - b)
                divisor = divisor_of(counted, fixed, count, deep * high * wide)
                if divisor != before:  # most windows are alike
                    before, scale = divisor, 1.0 / float(divisor)
                store(y, j, total * scale)
                j += 1
    return 0


@jit.inline
def sum_beside(row, x, at, valid, step, counts, steps, T):
    """The sums of LANES windows, the first of which begins `at`; `row` as for `largest_beside`."""
    sums = fill(0, T, LANES)
    for n in range(counts[0]):
        for k in range(counts[1]):
            for m in range(counts[2]):
                sums = sums + row(x, at + n * steps[0] + k * steps[1] + m, step, valid - m)
    return sums


@jit.inline
def add_block(total, x, at, rows, columns, stride, T):
    """`total` plus the sum of a block of a plane."""
    if columns == stride:  # whole rows are contiguous
        return total + row_sum(x + at, rows * columns, 0.0, T)
    for i in range(rows):
        for j in range(columns):
            total += load(x, at + i * stride + j)
    return total


@jit.inline
def mean_pool_backward(args, lo, hi, thread, T, ADAPTIVE, VOLUME):
    """The gradient of planes [lo, hi) (x) from that of the means (y)."""
    D, H, W = three(args, POOL.size, VOLUME)
    OD, OH, OW = three(args, POOL.out, VOLUME)
    h_axis, w_axis = axis(args, 1), axis(args, 2)
    counted, fixed, before, scale = load(args, POOL.counted), load(args, POOL.divisor), types.int64(0), 0.0
    sums, size = sums_of(args, thread, T), D * H * W
    for plane in range(lo, hi):
        fill_row(sums, size, 0)
        for row in range(OD * OH):
            o, i = (row // OH, row % OH) if VOLUME else (0, row)
            g = ptr(load(args, POOL.y), T) + (plane * OD * OH + row) * OW
            f, f_past, deep = cell_of_depth(args, o, D, OD, ADAPTIVE, VOLUME)
            a, a_past, high = cell(i, h_axis, H, OH, ADAPTIVE)
            for j in range(OW):
                b, b_past, wide = cell(j, w_axis, W, OW, ADAPTIVE)
                count = (f_past - f) * (a_past - a) * (b_past - b)
                divisor = divisor_of(counted, fixed, count, deep * high * wide)
                if divisor != before:
                    before, scale = divisor, 1.0 / float(divisor)
                one = load(g, j) * scale
                for n in range(f, f_past):
                    block = sums + (n * H + a) * W + b
                    for k in range(a_past - a):
                        for m in range(b_past - b):
                            store(block, k * W + m, load(block, k * W + m) + one)
        round_into(ptr(load(args, POOL.x), T) + plane * size, sums, size)
    return 0


# ---- positions ---------------------------------------------------------------------------------


@jit.inline
def largest_in_lanes(x, at, counts, steps):
    """`largest` of a block whose rows fill vectors, and its place in x: every lane keeps its own, the first of equals.

    The last vector of a row ends with it; what it has twice has one place. [16, 64, 1024] to 4 cells takes 239 us,
    one element after the other 1,544 (one core of Emerald Rapids).
    """
    best, where = vload(x, at, LANES), ramp(at, types.int32, LANES)
    for n in range(counts[0]):
        for k in range(counts[1]):
            row = at + n * steps[0] + k * steps[1]
            for m in range(0, counts[2], LANES):
                start = row + min(m, counts[2] - LANES)
                best, where = larger_at(best, where, vload(x, start, LANES), ramp(start, types.int32, LANES))
    hit = (best == reduce_max(best)) | (best != best)  # the second of NaN alone, and then the first is of none
    place = types.int64(reduce_min(select(hit, where, fill(2**31 - 1, types.int32, LANES))))
    return load(x, place), place


@jit.inline
def adaptive_max(args, lo, hi, T, I, VOLUME):
    """Maxima of cells that share out planes [lo, hi), and their positions of type I (`chosen`)."""
    D, H, W = three(args, POOL.size, VOLUME)
    OD, OH, OW = three(args, POOL.out, VOLUME)
    for plane in range(lo, hi):
        x = ptr(load(args, POOL.x), T) + plane * D * H * W
        for row in range(OD * OH):
            o, i = (row // OH, row % OH) if VOLUME else (0, row)
            y_at, steps = (plane * OD * OH + row) * OW, (H * W, W, 1)
            f, f_past = share(o, OD, D) if VOLUME else (0, 1)
            a, a_past = share(i, OH, H)
            for j in range(OW):
                b, b_past = share(j, OW, W)
                first, counts = (f * H + a) * W + b, (f_past - f, a_past - a, b_past - b)
                if counts[2] >= LANES and D * H * W < 2**31:
                    best, where = largest_in_lanes(x, first, counts, steps)
                else:
                    best, where = largest(x, first, counts, steps, first, steps)
                store(ptr(load(args, POOL.y), T), y_at + j, best)
                store(ptr(load(args, POOL.chosen), I), y_at + j, where)
    return 0


@jit.inline
def positions_backward(args, lo, hi, thread, T, I):
    """The gradient of planes [lo, hi) (x) of W elements from that of OW chosen ones (y) and their positions."""
    size, count, sums = load(args, POOL.size + 2), load(args, POOL.out + 2), sums_of(args, thread, T)
    for plane in range(lo, hi):
        g, places = ptr(load(args, POOL.y), T) + plane * count, ptr(load(args, POOL.chosen), I) + plane * count
        fill_row(sums, size, 0)
        for i in range(count):
            at = load(places, i)
            store(sums, at, load(sums, at) + load(g, i))
        round_into(ptr(load(args, POOL.x), T) + plane * size, sums, size)
    return 0
