"""Pooling on GPUs: a thread takes a few neighbouring results, or elements of a gradient, of a plane.

Windows are constants of a kernel (K: elements, S: steps, G: gaps, of depth, height and width), so that their loops are
unrolled and loads do not wait for one another; loads that would miss the plane read its first element instead.
Gradients are asked for by the elements that get them: each adds those of the windows that meet it, in their order, so
that sums are the same each time and need no memory of their own.
"""

from numba import types

from ...blocks.pooling import POOL
from ...build import jit
from ...cpu.conv.pooling import cell_of_depth, largest, share, tap_offset, tap_steps, three
from ...lang.ptx import from_lane, thread, threads
from ...lang.simd import bitcast, convert, fill, load, ptr, select, store, vmax, vmin, vpick
from ..block import write
from ..gemm.wgmma import ratio
from .columns import places_from, within

I32, U32, I64 = types.int32, types.uint32, types.int64


@jit.inline
def places_of(first, sizes, N, VOLUME):
    """(depths, rows, columns) of N neighbouring places of a plane of these sizes from `first` on."""
    _, rows, columns = sizes
    row, column = places_from(first, columns, N)
    if not VOLUME:
        return fill(0, I32, N), row, column
    layer = bitcast(bitcast(row, U32) // rows, I32)
    return layer, row - layer * rows, column


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
def starts(args, places, S_D, S_H, S_W):
    """Where the windows at these places begin, in each dim: it may be in the padding."""
    o, i, j = places
    pad = three(args, POOL.padding, True)
    return o * S_D - pad[0], i * S_H - pad[1], j * S_W - pad[2]


@jit.inline
def max_pool(args, lo, hi, T, I, VOLUME, N, K_D, K_H, K_W, S_D, S_H, S_W, G_D, G_H, G_W):
    """N maxima of windows for each of [lo, hi), and which taps of their windows they are."""
    sizes, results = three(args, POOL.size, VOLUME), three(args, POOL.out, VOLUME)
    D, H, W = sizes
    places, vectors = results[0] * results[1] * results[2], load(args, POOL.vectors)
    for index in range(lo, hi):
        plane = index // vectors
        first = (index - plane * vectors) * N
        x = ptr(load(args, POOL.x), T) + plane * D * H * W
        front, top, left = starts(args, places_of(first, results, N, VOLUME), S_D, S_H, S_W)
        where = fill(-1, I32, N)
        best = vpick(x, where, where > 0)
        for n in range(K_D):
            for k in range(K_H):
                layer, row = front + n * G_D, top + k * G_H
                meets = within(layer, D) & within(row, H)
                for m in range(K_W):
                    column = left + m * G_W
                    inside = meets & within(column, W)
                    value = vpick(x, (layer * H + row) * W + column, inside)
                    more = (where < 0) | (value > best) | ((value != value) & (best == best))
                    best = select(inside & more, value, best)
                    where = select(inside & more, (n * K_H + k) * K_W + m, where)
        write(ptr(load(args, POOL.y), T) + plane * places, first, best, places - first)
        write(ptr(load(args, POOL.chosen), I) + plane * places, first, convert(where, I), places - first)
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
def adaptive_max_long(args, lo, hi, T, I, VOLUME, TEAM):
    """The same, a result for TEAM lanes of a warp, which take elements of a cell in turn, from row to row."""
    D, H, W = three(args, POOL.size, VOLUME)
    OD, OH, OW = three(args, POOL.out, VOLUME)
    count = load(args, POOL.vectors)
    unit = lo * (threads() // TEAM) + thread() // TEAM
    plane, o, i, j = place_of(min(unit, count - 1), (OD, OH, OW))
    f, f_past = share(o, OD, D) if VOLUME else (0, 1)
    (a, a_past), (b, b_past) = share(i, OH, H), share(j, OW, W)
    x, high, wide = ptr(load(args, POOL.x), T) + plane * D * H * W, a_past - a, b_past - b
    size, first, lane = (f_past - f) * high * wide, (f * H + a) * W + b, I64(thread() % TEAM)
    best, where = load(x, first), I32(first)
    for begin in range(lane, size, 4 * TEAM):
        for k in range(4):  # on their way at once; what is behind the cell is its last element
            at = min(begin + k * TEAM, size - 1)
            row = ratio(at, wide)
            layer = ratio(row, high) if VOLUME else 0
            place = I32(first + (layer * H + (row - layer * high)) * W + (at - row * wide))
            value = load(x, place)
            if value > best or (value != value and best == best):
                best, where = value, place
    for apart in (1, 2, 4, 8, 16):
        if apart < TEAM:
            value, place = from_lane(best, apart), from_lane(where, apart)
            same = value == best or (value != value and best != best)
            if value > best or (value != value and best == best) or (same and place < where):
                best, where = value, place
    if lane == 0 and unit < count:
        store(ptr(load(args, POOL.y), T), unit, best)
        store(ptr(load(args, POOL.chosen), I), unit, where)
    return 0


@jit.inline
def max_positions(args, lo, hi, T, I, VOLUME):
    """Positions [lo, hi) of type T in their planes (y) of the maxima whose taps are in `chosen`."""
    _, H, W = three(args, POOL.size, VOLUME)
    stride, steps = three(args, POOL.stride, True), tap_steps(args, VOLUME)
    for index in range(lo, hi):
        _, o, i, j = place_of(index, three(args, POOL.out, VOLUME))
        front, top, left = starts(args, (o, i, j), stride[0], stride[1], stride[2])
        tap = I64(load(ptr(load(args, POOL.chosen), I), index))
        store(ptr(load(args, POOL.y), T), index, (front * H + top) * W + left + tap_offset(tap, steps, VOLUME))
    return 0


@jit.inline
def tap_at(x, back, past, K, S, G):
    """(window, tap, whether there are such) that meets places x of a dim: the last window, or so many before it.

    x counts from where the first of the `past` windows begins.
    """
    window = bitcast(bitcast(x, U32) // S, I32) - back
    far = x - window * S
    tap = bitcast(bitcast(far, U32) // G, I32)
    return window, tap, within(window, past) & (tap < K) & (tap * G == far)


@jit.inline
def max_pool_backward(args, lo, hi, T, I, VOLUME, A, N, K_D, K_H, K_W, S_D, S_H, S_W, G_D, G_H, G_W):
    """N elements of the gradient of the planes (x) for each of [lo, hi), from that of the maxima (y) and their taps."""
    sizes, results = three(args, POOL.size, VOLUME), three(args, POOL.out, VOLUME)
    pad, vectors, size = three(args, POOL.padding, True), load(args, POOL.vectors), sizes[0] * sizes[1] * sizes[2]
    for index in range(lo, hi):
        plane = index // vectors
        first, total = (index - plane * vectors) * N, fill(0.0, A, N)
        f, a, b = places_of(first, sizes, N, VOLUME)
        g = ptr(load(args, POOL.y), T) + plane * results[0] * results[1] * results[2]
        taps = ptr(load(args, POOL.chosen), I) + plane * results[0] * results[1] * results[2]
        for u in range(((K_D - 1) * G_D + S_D) // S_D):
            o, n, deep = tap_at(f + pad[0], u, results[0], K_D, S_D, G_D)
            for v in range(((K_H - 1) * G_H + S_H) // S_H):
                i, k, high = tap_at(a + pad[1], v, results[1], K_H, S_H, G_H)
                for w in range(((K_W - 1) * G_W + S_W) // S_W):
                    j, m, wide = tap_at(b + pad[2], w, results[2], K_W, S_W, G_W)
                    meets, at = deep & high & wide, (o * results[1] + i) * results[2] + j
                    chosen = convert(vpick(taps, at, meets), I32) == (n * K_H + k) * K_W + m
                    total = total + select(meets & chosen, vpick(g, at, meets), 0.0)
        write(ptr(load(args, POOL.x), T) + plane * size, first, total, size - first)
    return 0


@jit.inline
def lengths(start, kernel, size, pad, counted):
    """How many elements of windows from `start` on count: those inside, with `counted` those of the padding too."""
    if counted:
        return vmin(start + kernel, size + pad) - start
    return vmin(start + kernel, size) - vmax(start, 0)


@jit.inline
def divisors(args, places, sizes, A, N, K_D, K_H, K_W, S_D, S_H, S_W):
    """What the sums of the windows at these places are divided by."""
    if load(args, POOL.divisor) != 0:
        return fill(load(args, POOL.divisor), A, N)
    counted, pad = load(args, POOL.counted) != 0, three(args, POOL.padding, True)
    front, top, left = starts(args, places, S_D, S_H, S_W)
    count = lengths(front, K_D, sizes[0], pad[0], counted) * lengths(top, K_H, sizes[1], pad[1], counted)
    return convert(count * lengths(left, K_W, sizes[2], pad[2], counted), A)


@jit.inline
def mean_pool(args, lo, hi, T, VOLUME, A, N, K_D, K_H, K_W, S_D, S_H, S_W, G_D, G_H, G_W):
    """N means of windows for each of [lo, hi)."""
    sizes, results = three(args, POOL.size, VOLUME), three(args, POOL.out, VOLUME)
    D, H, W = sizes
    count, vectors = results[0] * results[1] * results[2], load(args, POOL.vectors)
    for index in range(lo, hi):
        plane = index // vectors
        first, total = (index - plane * vectors) * N, fill(0.0, A, N)
        x, places = ptr(load(args, POOL.x), T) + plane * D * H * W, places_of(first, results, N, VOLUME)
        front, top, left = starts(args, places, S_D, S_H, S_W)
        for n in range(K_D):
            for k in range(K_H):
                layer, row = front + n, top + k
                meets = within(layer, D) & within(row, H)
                for m in range(K_W):
                    inside = meets & within(left + m, W)
                    total = total + vpick(x, (layer * H + row) * W + left + m, inside)
        total = total / divisors(args, places, sizes, A, N, K_D, K_H, K_W, S_D, S_H, S_W)
        write(ptr(load(args, POOL.y), T) + plane * count, first, total, count - first)
    return 0


@jit.inline
def mean_pool_backward(args, lo, hi, T, VOLUME, A, N, K_D, K_H, K_W, S_D, S_H, S_W, G_D, G_H, G_W):
    """N elements of the gradient of the planes (x) for each of [lo, hi), from that of the means (y)."""
    sizes, results = three(args, POOL.size, VOLUME), three(args, POOL.out, VOLUME)
    pad, vectors, size = three(args, POOL.padding, True), load(args, POOL.vectors), sizes[0] * sizes[1] * sizes[2]
    for index in range(lo, hi):
        plane = index // vectors
        first, total = (index - plane * vectors) * N, fill(0.0, A, N)
        f, a, b = places_of(first, sizes, N, VOLUME)
        g = ptr(load(args, POOL.y), T) + plane * results[0] * results[1] * results[2]
        for u in range((K_D + S_D - 1) // S_D):
            o, _, deep = tap_at(f + pad[0], u, results[0], K_D, S_D, 1)
            for v in range((K_H + S_H - 1) // S_H):
                i, _, high = tap_at(a + pad[1], v, results[1], K_H, S_H, 1)
                for w in range((K_W + S_W - 1) // S_W):
                    j, _, wide = tap_at(b + pad[2], w, results[2], K_W, S_W, 1)
                    meets = deep & high & wide
                    value = vpick(g, (o * results[1] + i) * results[2] + j, meets)
                    by = divisors(args, (o, i, j), sizes, A, N, K_D, K_H, K_W, S_D, S_H, S_W)
                    total = total + select(meets, value / by, 0.0)
        write(ptr(load(args, POOL.x), T) + plane * size, first, total, size - first)
    return 0


@jit.inline
def cell_means(args, lo, hi, T, VOLUME, A):
    """Results [lo, hi) of means of cells that share out planes."""
    D, H, W = three(args, POOL.size, VOLUME)
    OD, OH, OW = three(args, POOL.out, VOLUME)
    for index in range(lo, hi):
        plane, o, i, j = place_of(index, (OD, OH, OW))
        f, f_past, _ = cell_of_depth(args, o, D, OD, True, VOLUME)
        (a, a_past), (b, b_past) = share(i, OH, H), share(j, OW, W)
        x, total = ptr(load(args, POOL.x), T) + plane * D * H * W, A(0)
        for n in range(f, f_past):
            for k in range(a, a_past):
                for m in range(b, b_past):
                    total += A(load(x, (n * H + k) * W + m))
        store(ptr(load(args, POOL.y), T), index, total / A((f_past - f) * (a_past - a) * (b_past - b)))
    return 0


@jit.inline
def meets(x, out, size):
    """[first, past) of the cells, of `out` that share out `size`, that hold place x."""
    return ratio(x * out, size), ratio((x + 1) * out + size - 1, size)


@jit.inline
def width_of(i, out, size):
    """The size of cell i of `out` that share out `size`."""
    return ratio((i + 1) * size + out - 1, out) - ratio(i * size, out)


@jit.inline
def cell_means_backward(args, lo, hi, T, VOLUME, A):
    """Elements [lo, hi) of the gradient of the planes (x) from that of the means of cells (y)."""
    D, H, W = three(args, POOL.size, VOLUME)
    OD, OH, OW = three(args, POOL.out, VOLUME)
    for index in range(lo, hi):
        plane, f, a, b = place_of(index, (D, H, W))
        o_first, o_past = meets(f, OD, D) if VOLUME else (0, 1)
        (i_first, i_past), (j_first, j_past), total = meets(a, OH, H), meets(b, OW, W), A(0)
        for o in range(o_first, o_past):
            for i in range(i_first, i_past):
                g = ptr(load(args, POOL.y), T) + ((plane * OD + o) * OH + i) * OW
                size = (width_of(o, OD, D) if VOLUME else 1) * width_of(i, OH, H)
                for j in range(j_first, j_past):
                    total += A(load(g, j)) / A(size * width_of(j, OW, W))
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
            if load(places, i) == place:
                total += load(g, i)
        store(ptr(load(args, POOL.x), T), index, total)
    return 0
