"""Products of a weight with 5 to 256 rows of x, which are the lanes of registers; the weight is read once, as it lies.

Each element of the weight is broadcast from memory, so nothing is added up (or 2 or 4 neighbours are, which are then
added up at the end). While 64 bytes of each row are multiplied, the next ones are copied to a buffer in the first-level
cache, where rows a power of two apart do not evict each other. A weight of 5632 x 2048 in bfloat16 with 16 and 32 rows:
360 and 425 of 470 GFLOP/s, by packing the weight 180 to 275. `blocking.lane_tile` has the tiles.
"""

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ...blocks.gemm import PANELS
from ...build import jit
from ...lang.by_type import by_type
from ...lang.memory import from_memory, vector_load
from ...lang.simd import bitcast, load, ptr, stack, store, vload_first, vstore
from ...lang.vector import I32, element_type, literal_of, splat
from .blocked import batch_offsets
from .blocking import LINE, STEPS
from .epilogue import finish_row
from .microkernel import (
    add_products_of,
    depth,
    is_pair,
    lanes,
    lanes_of,
    panel_ptr,
    panel_type,
    prefetch_line,
    read,
    sum_ptr,
    sum_type,
    sums_of_neighbours,
    write,
)
from .pack import pack_panels, transpose_block
from .skinny import AHEAD_BYTES, TILE_BYTES, TURN_BYTES, all_panels, constant, first_packed, own_panels

BUFFER_BYTES = 4 * 32 * LINE  # two lines of up to 32 rows, of up to 128 bytes each
SUMS_BYTES = 96 << 10  # of the tiles that share a piece of x
TILES_BYTES = SUMS_BYTES + TILE_BYTES  # what one tile needs at least
NEAR_BYTES = 768 << 10  # of panels of x, float32, that stay in the second-level cache beside what streams through it
PIECE = 1024  # elements of k that are added up on their own: one long sum of float32 loses digits


def _is_split(dtype, group):
    """Whether lines have 32 elements: the even ones, then the odd ones. Two instructions make these of 64 bytes of
    bfloat16, and four would if they stayed in their order: the units that multiply do those, too.
    """
    return group > 1 and dtype.bitwidth == 16 and getattr(dtype, "name", "") == "ic_bfloat16" and not is_pair(dtype)


def _elements(dtype, group):
    """Elements of a row of the weight in one line of the buffer."""
    many = LINE * 8 // panel_type(dtype).bitwidth * (2 if is_pair(dtype) else 1)
    return 2 * many if _is_split(dtype, group) else many


class _Loop:
    """A loop that runs at least once: `values` inside it, `repeat` as the last thing inside, `results` behind it."""

    def __init__(self, builder, starts):
        self.builder, self.starts = builder, starts

    def __enter__(self):
        builder, entry = self.builder, self.builder.block
        self.block, self.done = builder.append_basic_block("loop"), builder.append_basic_block("done")
        builder.branch(self.block)
        builder.position_at_end(self.block)
        self.values = [builder.phi(start.type) for start in self.starts]
        for phi, start in zip(self.values, self.starts):
            phi.add_incoming(start, entry)
        return self

    def repeat(self, again, values):
        self.results = values
        for phi, value in zip(self.values, values):
            phi.add_incoming(value, self.builder.block)
        self.builder.cbranch(again, self.block, self.done)

    def __exit__(self, *failure):
        self.builder.position_at_end(self.done)


@intrinsic(prefer_literal=True)
def lane_panel(typingctx, w, w_stride, w_valid, ahead, x, buffer, tile, lines, T, rows, vectors, count, deep):
    """tile[rows, vectors * count] += `rows` rows of `w` times the panel `x` [steps, vectors * count], over `lines`.

    A line of a row becomes elements of the panel's type in `buffer`, which holds two lines of each row. `ahead` is
    the row that is read next. The last four arguments are literals: vectors have `count` lanes, of which `deep`
    neighbours have neighbours in k of one row of x, and are broadcast together.
    """
    literals = [literal_of(v) for v in (rows, vectors, count, deep)]
    if None in literals or not isinstance(T, types.NumberClass):
        return None
    height, across, width, group = literals
    dtype = T.instance_type
    pair, size = is_pair(dtype), panel_type(dtype).bitwidth // 8
    many = _elements(dtype, group)
    units = many // (2 if pair else 1) // group  # steps of a panel in a line
    step, line = many * dtype.bitwidth // 8, units * group * size  # bytes of a line, and in the buffer
    # Whether a line is copied before one is multiplied, or a part of it with each step.
    apart = not pair and across > 1 and (panel_type(dtype) != dtype or group > 1)

    def codegen(context, builder, sig, args):
        stride, valid, lines = (context.cast(builder, args[i], sig.args[i], types.int64) for i in (1, 2, 7))
        one = element_type(panel_type(dtype))
        vector, total = ir.VectorType(one, width), ir.VectorType(element_type(sum_type(dtype)), width)
        stride, end = builder.mul(stride, constant(dtype.bitwidth // 8)), builder.mul(lines, constant(step))
        last_row = builder.mul(builder.sub(valid, constant(1)), stride)
        jump = builder.sub(builder.sub(args[3], args[0]), end)
        tile = args[6]

        def copy(row, to, i):
            if _is_split(dtype, group):
                words = read(builder, row, ir.VectorType(I32, many // 2), dtype.bitwidth // 8)
                even = builder.shl(words, splat(builder, I32(16), many // 2))
                odd = builder.and_(words, splat(builder, I32(-0x10000), many // 2))
                write(builder, even, to, 64, i * line)
                write(builder, odd, to, 64, i * line + line // 2)
                return
            bits = vector_load(context, builder, row, dtype, None, many)
            write(builder, bits if pair else from_memory(builder, dtype, bits), to, 64, i * line)

        def next_row(row, last):
            return builder.select(builder.icmp_signed("<", row, last), builder.add(row, stride), row)

        def broadcast(here, offset):
            if group == 1:
                return splat(builder, read(builder, here, one, size, offset), width)
            few = read(builder, here, ir.VectorType(one, group), size, offset)
            lanes = [lane % group for lane in range(width)]
            return builder.shuffle_vector(few, few, ir.Constant(ir.VectorType(I32, width), lanes))

        def multiply(u, x_at, here, sums):
            right = [read(builder, x_at, vector, size, (u * across + j) * width * size) for j in range(across)]
            for i in range(height):
                left = broadcast(here, i * line + u * group * size)
                for j in range(across):
                    sums[i * across + j] = add_products_of(builder, left, right[j], sums[i * across + j])

        copies = -(-height // units)
        row = args[0]
        for i in range(height):
            copy(row, args[5], i)
            row = next_row(row, builder.add(args[0], last_row))
        values = [ir.Constant(total, [0.0] * width)] * (height * across)
        half = builder.add(args[5], constant(line * copies * units))
        with _Loop(builder, [constant(0), args[4], args[5], half, *values]) as outer:
            offset, x_at, here, there, *sums = outer.values
            following = builder.add(offset, constant(step))
            more = builder.icmp_signed("<", following, end)
            source = builder.select(more, following, offset)  # the last line is copied again, and not read
            far = builder.add(offset, constant(AHEAD_BYTES))
            far = builder.sub(builder.select(builder.icmp_signed("<", far, end), far, builder.add(far, jump)), source)
            row = builder.add(args[0], source)
            last = builder.add(row, last_row)
            stop = builder.add(here, constant(line))
            if apart:
                for i in range(height):
                    copy(row, there, i)
                    prefetch_line(builder, builder.add(row, far))
                    row = next_row(row, last)
            # All steps of a line in one block of code would be as fast, if the compiler did not then load for many of
            # them first and run out of registers (float32, 32 rows: 120 GFLOP/s, not 219). It does so, too, where
            # lines are widened among the products (bfloat16 without its dot product, 32 rows: 168 GFLOP/s, apart 294),
            # or rows of x share vectors (float32, 16 rows: 137, apart 186).
            with _Loop(builder, [x_at, here, row, there, *sums]) as inner:
                x_at, at, row, to, *sums = inner.values
                for u in range(STEPS):
                    multiply(u, x_at, at, sums)
                    for i in range(u * copies, (u + 1) * copies) if not apart else ():
                        copy(row, to, i)
                        prefetch_line(builder, builder.add(row, far))
                        row = next_row(row, last)
                x_at = builder.add(x_at, constant(STEPS * across * width * size))
                at = builder.add(at, constant(STEPS * group * size))
                to = builder.add(to, constant(STEPS * copies * line))
                inner.repeat(builder.icmp_signed("<", at, stop), [x_at, at, row, to, *sums])
            x_at, sums = inner.results[0], inner.results[4:]
            outer.repeat(more, [following, x_at, there, here, *sums])
        for n, value in enumerate(outer.results[4:]):
            before = read(builder, tile, total, size, n * width * size)
            write(builder, builder.fadd(before, value), tile, size, n * width * size)
        return context.get_dummy_value()

    sig = types.void(w, w_stride, w_valid, ahead, x, buffer, tile, lines, T, rows, vectors, count, deep)
    return sig, codegen


@intrinsic(prefer_literal=True)
def add_neighbours(typingctx, tile, rows, vectors, count, deep):
    """tile[rows, vectors * count / deep] = the sums of `deep` neighbours of tile[rows, vectors * count]; literals."""
    literals = [literal_of(v) for v in (rows, vectors, count, deep)]
    if None in literals:
        return None
    height, across, width, group = literals
    dtype = tile.dtype
    size, kind = dtype.bitwidth // 8, ir.VectorType(element_type(dtype), width)

    def codegen(context, builder, sig, args):
        tokens = across * width // group
        for i in range(height):
            values = [read(builder, args[0], kind, size, (i * across + j) * width * size) for j in range(across)]
            for _ in range(group.bit_length() - 1):
                values = sums_of_neighbours(builder, values)
            for j, value in enumerate(values):  # a half that is too much is overwritten by the next row
                write(builder, value, args[0], size, (i * tokens + j * width) * size)
        return context.get_dummy_value()

    return types.void(tile, rows, vectors, count, deep), codegen


@by_type(prefer_literal=True)
def line_elements(w, deep):
    """Elements of a row of `w` in one line of the buffer; `deep` is a literal."""
    many = _elements(w.dtype, literal_of(deep) or 1)
    return lambda w, deep: many


@by_type(prefer_literal=True)
def copy_rest(to, w, w_stride, height, rest, deep):
    """One line of each row, of which `rest` elements exist and the others are zero."""
    many = _elements(w.dtype, literal_of(deep) or 1)

    def implementation(to, w, w_stride, height, rest, deep):
        for i in range(height):
            vstore(to, i * many, vload_first(w, i * w_stride, many, rest))

    return implementation


@jit.inline
def pack_lanes(panels, panel, x, x_stride, x_k, M, K, width, first, stop, T):
    """Panels [K, width] of x from k = `first` on, filled up with zeros to whole lines behind the last."""
    pack_panels(panels + first // depth(T) * width, panel, x + first * x_k, M, stop - first, x_stride, x_k, width, T)
    if stop == K:
        steps = (K + depth(T) - 1) // depth(T)
        for p in range((M + width - 1) // width):
            for e in range(steps * width, panel):
                store(panels, p * panel + e, 0)


@intrinsic(prefer_literal=True)
def store_groups(typingctx, to, step, vector, deep):
    """Store groups of `deep` (a literal) neighbours of a vector, `step` elements apart."""
    group = literal_of(deep)
    if group is None:
        return None
    dtype = to.dtype
    size = dtype.bitwidth // 8

    def codegen(context, builder, sig, args):
        step = context.cast(builder, args[1], sig.args[1], types.int64)
        step, at, value = builder.mul(step, constant(size)), args[0], args[2]
        for first in range(0, value.type.count, group):
            lanes = ir.Constant(ir.VectorType(I32, group), list(range(first, first + group)))
            write(builder, builder.shuffle_vector(value, value, lanes), at, size)
            at = builder.add(at, step)
        return context.get_dummy_value()

    return types.void(to, step, vector, deep), codegen


@intrinsic(prefer_literal=True)
def every_other(typingctx, a, b, odd):
    """The even (or odd, a literal 1) elements of two vectors, one behind the other."""
    first = literal_of(odd)
    if first is None:
        return None

    def codegen(context, builder, sig, args):
        chosen = list(range(first, 2 * a.lanes, 2))
        return builder.shuffle_vector(args[0], args[1], ir.Constant(ir.VectorType(I32, a.lanes), chosen))

    return a(a, b, odd), codegen


@by_type(prefer_literal=True)
def store_line(to, step, row, k, left, width, deep):
    """Store a line of a row of x from k on, of which `left` elements exist, in the order of the weight's lines."""
    count, group = lanes_of(row.dtype), literal_of(deep) or 1
    many = _elements(row.dtype, group)
    half = many // 2

    def in_order(to, step, row, k, left, width, deep):
        for e in range(0, many, count):
            store_groups(to + e * width, step, vload_first(row, k + e, count, max(0, left - e)), deep)

    def split(to, step, row, k, left, width, deep):
        for e in range(0, half, count):
            a = vload_first(row, k + 2 * e, count, max(0, left - 2 * e))
            b = vload_first(row, k + 2 * e + count, count, max(0, left - 2 * e - count))
            store_groups(to + e * width, step, every_other(a, b, 0), deep)
            store_groups(to + (half + e) * width, step, every_other(a, b, 1), deep)

    return split if _is_split(row.dtype, group) else in_order


@jit.inline
def pack_groups(panels, panel, x, x_stride, M, K, width, first, stop, deep):
    """As `pack_lanes`, panels [K / deep, width, deep]; `deep` is a literal."""
    many = line_elements(x, deep)
    for start in range(0, M, width):
        to = panels + start // width * panel
        for i in range(width):
            row = x + min(start + i, M - 1) * x_stride
            for k in range(first, stop, many):
                store_line(to + (k * width + i * deep), width * deep, row, k, K - k, width, deep)


@jit.inline
def pack_x(panels, panel, x, args, first, stop, width, T, DEEP):
    """Panels of all rows of x, of the elements [first, stop) of k."""
    M, K, x_stride = load(args, PANELS.tokens), load(args, PANELS.k), load(args, PANELS.x_stride)
    if DEEP > 1:
        pack_groups(panels, panel, x, x_stride, M, K, width, first, stop, DEEP)
    else:
        pack_lanes(panels, panel, x, x_stride, load(args, PANELS.x_k), M, K, width, first, stop, T)


@by_type
def sum_bytes(T):
    """Bytes of a sum of products, and of an element of a panel of x that is no pair."""
    size = sum_type(T.instance_type).bitwidth // 8
    return lambda T: size


@jit.inline
def panel_size(line, K, width, T):
    """Elements of a panel of x for a line of elements of the weight, and those of the whole panel."""
    units = line // depth(T) * width
    return units, (K + line - 1) // line * units


@jit.inline
def pack_all(args, lo, hi, T, VECTORS, COUNT, DEEP):
    """Pieces [lo, hi) of x for `lane_panels`."""
    panels, x, first, stop = all_panels(args, lo, hi, T)
    width = VECTORS * COUNT // DEEP
    _, panel = panel_size(line_elements(x, DEEP), load(args, PANELS.k), width, T)
    pack_x(panels, panel, x, args, first, stop, width, T, DEEP)
    return 0


@jit.inline
def lane_panels(args, lo, hi, thread, T, ACT, ROWS, VECTORS, COUNT, DEEP):
    """As `dot_panels`, with panels of VECTORS * COUNT / DEEP rows of x.

    A piece of k of all panels stays in the second-level cache while several groups of ROWS rows of the weight are
    multiplied with it, where all of k would not: 128 rows of bfloat16 by 2048 x 5632 at 286 GFLOP/s, a group at a time
    174.
    """
    N, M, K = load(args, PANELS.rows), load(args, PANELS.tokens), load(args, PANELS.k)
    w_stride, out_stride = load(args, PANELS.w_stride), load(args, PANELS.out_stride)
    panels = own_panels(args, thread, T)
    sums, turned = sum_ptr(stack(TILES_BYTES), T), sum_ptr(stack(TURN_BYTES), T)
    buffer, rest = panel_ptr(stack(BUFFER_BYTES), T), ptr(stack(BUFFER_BYTES), T)
    many = line_elements(rest, DEEP)
    whole, width, groups = K // many, VECTORS * COUNT // DEEP, (N + ROWS - 1) // ROWS
    units, panel = panel_size(many, K, width, T)
    size, across = ROWS * VECTORS * COUNT, (M + width - 1) // width
    near = NEAR_BYTES // sum_bytes(T) // (across * width)  # of k
    together, piece, given = 1, PIECE // many, load(args, PANELS.piece) // many
    if given != 0 or near < K:
        together = max(1, SUMS_BYTES // (sum_bytes(T) * size * across))
        piece = given if given != 0 else min(piece, max(1, near // many))
    packed, first = first_packed(args), lo
    while first < hi:
        matrix = first // groups
        count = min(together, hi - first, (matrix + 1) * groups - first)
        n = (first - matrix * groups) * ROWS
        w_offset, x_offset, out_offset = batch_offsets(args, PANELS.batch, matrix)
        w = ptr(load(args, PANELS.w), T) + (w_offset + n * w_stride)
        if packed != matrix:
            packed = matrix
            pack_x(panels, panel, ptr(load(args, PANELS.x), T) + x_offset, args, 0, K, width, T, DEEP)
        for e in range(count * across * size):
            store(sums, e, 0.0)
        for line in range(0, whole, piece):
            lines = min(piece, whole - line)
            for group in range(count):
                height = min(ROWS, N - n - group * ROWS)
                here = w + (group * ROWS * w_stride + line * many)
                if group + 1 < count:
                    ahead = here + ROWS * w_stride
                elif line + lines < whole:
                    ahead = w + (line + lines) * many
                else:
                    ahead = w + (group * ROWS + height) * w_stride
                for m in range(across):
                    part, tile = panels + (m * panel + line * units), sums + (group * across + m) * size
                    lane_panel(here, w_stride, height, ahead, part, buffer, tile, lines, T, ROWS, VECTORS, COUNT, DEEP)
        for group in range(count):
            height = min(ROWS, N - n - group * ROWS)
            if whole * many < K:
                copy_rest(rest, w + (group * ROWS * w_stride + whole * many), w_stride, height, K - whole * many, DEEP)
            for m in range(across):
                tile = sums + (group * across + m) * size
                if whole * many < K:
                    part = panels + (m * panel + whole * units)
                    lane_panel(rest, many, height, rest, part, buffer, tile, 1, T, ROWS, VECTORS, COUNT, DEEP)
                if DEEP > 1:
                    add_neighbours(tile, ROWS, VECTORS, COUNT, DEEP)
                at = out_offset + m * width * out_stride + n + group * ROWS
                tokens = min(width, M - m * width)
                store_lanes(args, at, n + group * ROWS, tile, turned, width, height, tokens, T, ACT)
        first += count
    return 0


@jit.inline
def store_lanes(args, at, n, tile, turned, width, height, tokens, T, ACT):
    """Finish and store the sums [height, tokens] of a tile [.., width], transposed."""
    given, count = (load(args, PANELS.bias) != 0, load(args, PANELS.residual) != 0), lanes(T)
    alpha, out_stride = bitcast(load(args, PANELS.alpha), types.float64), load(args, PANELS.out_stride)
    bias, y = ptr(load(args, PANELS.bias), T) + n, ptr(load(args, PANELS.out), T) + at
    residual = ptr(load(args, PANELS.residual), T) + at
    for i in range(0, height, count):
        for m in range(0, tokens, count):
            transpose_block(turned, count, tile + (i * width + m), width, height - i)
            for j in range(min(count, tokens - m)):
                to, below = y + ((m + j) * out_stride + i), residual + ((m + j) * out_stride + i)
                finish_row(to, turned + j * count, bias + i, below, alpha, given, min(count, height - i), ACT)
