"""Products of a weight with 2 to 128 rows of x (decoding of several sequences), the weight read once, as it lies.

`dot_panels`: lanes run along k, and a tile of sums of some rows of the weight with 2 or 4 of x is added up at the
end. `lane_panels`, for as many rows of x as fill registers: they are the lanes, and each element of the weight is
broadcast from memory, so nothing is added up; while 64 bytes of each row are multiplied, the next ones are copied to
a buffer in the first-level cache, where rows a power of two apart do not evict each other. A weight of 5632 x 2048 in
bfloat16 with 8, 16, 24 and 32 rows: 340, 360, 360 and 425 of 470 GFLOP/s, by packing the weight 180 to 275. Rows of x
are packed once per thread, into the slice of the scratch that belongs to its first item.
"""

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ...blocks.gemm import PANELS
from ...build import jit
from ...lang.by_type import by_type
from ...lang.memory import first_lanes, from_memory, vector_load
from ...lang.simd import address, bitcast, load, ptr, reduce_add, stack, store, vload, vload_first, vstore
from ...lang.vector import I64, element_type, literal_of, splat
from .blocked import batch_offsets
from .blocking import LINE
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
    sum_loop,
    sum_ptr,
    sum_type,
    write,
)
from .pack import pack_panels, transpose_block

TILE_BYTES = 33 * 64  # 32 vectors, and one that is read beyond them
TURN_BYTES = 16 * 64  # a square of sums, transposed
BUFFER_BYTES = 2 * 32 * LINE  # two lines of up to 32 rows
RESULTS = 16  # at least the rows of a tile of dot products, and a vector
STEPS = 4  # elements of a panel at a time in the innermost loop
AHEAD_BYTES = 2048  # how far ahead the weight is asked for, past the end of its rows into the next tile's


def _constant(value):
    return ir.Constant(I64, value)


class _Rows:
    """The rows of the weight that a tile reads: addresses, and what is asked for ahead of them (at compile time)."""

    def __init__(self, builder, base, stride, valid, ahead, end, height):
        """`stride` and `end` (of a row) are in bytes; rows from `valid` on repeat the last one."""
        self.builder, self.end = builder, end
        last = builder.sub(valid, _constant(1))
        self.starts = []
        for i in range(height):
            row = builder.select(builder.icmp_signed("<", _constant(i), last), _constant(i), last)
            self.starts.append(builder.add(base, builder.mul(row, stride)))
        self.jump = builder.sub(builder.sub(ahead, base), end)

    def at(self, i, offset):
        return self.builder.add(self.starts[i], offset)

    def far(self, offset):
        """The offset to ask for while `offset` is read."""
        far = self.builder.add(offset, _constant(AHEAD_BYTES))
        inside = self.builder.icmp_signed("<", far, self.end)
        return self.builder.select(inside, far, self.builder.add(far, self.jump))


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


# ---- lanes along k -------------------------------------------------------------------------------


@intrinsic(prefer_literal=True)
def dot_panel(typingctx, w, w_stride, w_valid, ahead, x, k, sums, T, rows, tokens):
    """The products of `rows` rows of `w` with the panel `x` [steps, tokens] of vectors, over k elements.

    `sums` becomes [rows, tokens] vectors, whose lanes are yet to be added up. `ahead` is the row that is read next.
    The last two arguments are literals.
    """
    literals = [literal_of(v) for v in (rows, tokens)]
    if None in literals or not isinstance(T, types.NumberClass):
        return None
    height, across = literals
    dtype = T.instance_type
    item, count = dtype.bitwidth // 8, lanes_of(dtype)
    many = count * (2 if is_pair(dtype) else 1)  # elements of k in one vector
    total = ir.VectorType(element_type(sum_type(dtype)), count)
    vector = ir.VectorType(element_type(panel_type(dtype)), count)
    size = sum_type(dtype).bitwidth // 8

    def codegen(context, builder, sig, args):
        stride, valid, k = (context.cast(builder, args[i], sig.args[i], types.int64) for i in (1, 2, 5))
        end = builder.mul(k, _constant(item))
        w = _Rows(builder, args[0], builder.mul(stride, _constant(item)), valid, args[3], end, height)

        def products(at, sums, mask=None):
            left = []
            for i in range(height):
                bits = vector_load(context, builder, w.at(i, at[0]), dtype, None, many, mask)
                left.append(builder.bitcast(bits, vector) if is_pair(dtype) else from_memory(builder, dtype, bits))
            new = list(sums)
            for j in range(across):
                right = read(builder, at[1], vector, size, j * count * size)
                for i in range(height):
                    new[i * across + j] = add_products_of(builder, left[i], right, new[i * across + j])
            return new

        def body(at, sums):
            far = w.far(at[0])
            for i in range(height):
                prefetch_line(builder, w.at(i, far))
            return products(at, sums)

        def tail(at, sums):
            return products(at, sums, first_lanes(builder, rest, many))

        rest = builder.srem(k, _constant(many))
        zeros = [ir.Constant(total, [0.0] * count)] * (height * across)
        strides = [many * item, across * count * size]
        at, values = sum_loop(builder, builder.sdiv(k, _constant(many)), [_constant(0), args[4]], strides, zeros, body)
        partial = builder.zext(builder.icmp_signed(">", rest, _constant(0)), I64)
        _, values = sum_loop(builder, partial, at, [0, 0], values, tail)
        for i, value in enumerate(values):
            write(builder, value, args[6], size, i * count * size)
        return context.get_dummy_value()

    return types.void(w, w_stride, w_valid, ahead, x, k, sums, T, rows, tokens), codegen


@by_type
def pack_vectors(panels, x, x_stride, tokens, k, across):
    """Panels of `across` rows of x: one vector of each row in turn, with zeros behind the last."""
    many = lanes_of(x.dtype) * (2 if is_pair(x.dtype) else 1)
    kind = x.dtype if is_pair(x.dtype) else sum_type(x.dtype)

    def implementation(panels, x, x_stride, tokens, k, across):
        steps, to = (k + many - 1) // many, ptr(address(panels), kind)
        for m in range((tokens + across - 1) // across * across):
            row, panel = x + min(m, tokens - 1) * x_stride, to + (m // across * steps * across + m % across) * many
            for s in range(steps):
                vstore(panel, s * across * many, vload_first(row, s * many, many, k - s * many))

    return implementation


@by_type
def add_up(sums, across, results, height, width):
    """results[j, i] = the sum of the lanes of vector (i, j) of `sums`; rows of `results` have RESULTS elements."""
    count = lanes_of(sums.dtype)

    def implementation(sums, across, results, height, width):
        for i in range(height):
            for j in range(width):
                store(results, j * RESULTS + i, reduce_add(vload(sums, (i * across + j) * count, count)))

    return implementation


@jit.inline
def own_panels(args, lo, T):
    """The panels of x of the thread whose first item is `lo`."""
    slice_start = lo // load(args, PANELS.slice_items) * load(args, PANELS.slice_bytes)
    return panel_ptr(load(args, PANELS.scratch) + slice_start, T)


@jit.inline
def dot_panels(args, lo, hi, T, ACT, ROWS, TOKENS):
    """out[m, n] = residual + activation(alpha * w[n] . x[m] + bias[n]) for groups [lo, hi) of ROWS rows of w."""
    N, M, K = load(args, PANELS.rows), load(args, PANELS.tokens), load(args, PANELS.k)
    w_stride, out_stride = load(args, PANELS.w_stride), load(args, PANELS.out_stride)
    given = load(args, PANELS.bias) != 0, load(args, PANELS.residual) != 0
    alpha, panels = bitcast(load(args, PANELS.alpha), types.float64), own_panels(args, lo, T)
    many = lanes(T) * depth(T)
    panel, groups = (K + many - 1) // many * lanes(T) * TOKENS, (N + ROWS - 1) // ROWS
    sums, results = sum_ptr(stack(TILE_BYTES), T), sum_ptr(stack(TURN_BYTES), T)
    packed = -1
    for item in range(lo, hi):
        matrix = item // groups
        n = (item - matrix * groups) * ROWS
        w_offset, x_offset, out_offset = batch_offsets(args, PANELS.batch, matrix)
        w, height = ptr(load(args, PANELS.w), T) + (w_offset + n * w_stride), min(ROWS, N - n)
        if packed != matrix:
            packed = matrix
            pack_vectors(panels, ptr(load(args, PANELS.x), T) + x_offset, load(args, PANELS.x_stride), M, K, TOKENS)
        bias = ptr(load(args, PANELS.bias), T) + n
        for m in range(0, M, TOKENS):
            x = panels + m // TOKENS * panel
            dot_panel(w, w_stride, height, w + height * w_stride, x, K, sums, T, ROWS, TOKENS)
            width = min(TOKENS, M - m)
            add_up(sums, TOKENS, results, height, width)
            for j in range(width):
                at = out_offset + (m + j) * out_stride + n
                y, residual = ptr(load(args, PANELS.out), T) + at, ptr(load(args, PANELS.residual), T) + at
                finish_row(y, results + j * RESULTS, bias, residual, alpha, given, height, ACT)
    return 0


# ---- lanes across rows of x ----------------------------------------------------------------------


@intrinsic(prefer_literal=True)
def lane_panel(typingctx, w, w_stride, w_valid, ahead, x, buffer, tile, lines, T, rows, vectors, count):
    """tile[rows, vectors * count] += `rows` rows of `w` times the panel `x` [elements, vectors * count], over `lines`.

    A line of a row becomes 64 bytes of the panel's type in `buffer`, which holds two lines of each row. `ahead` is
    the row that is read next. The last three arguments are literals: vectors have `count` lanes.
    """
    literals = [literal_of(v) for v in (rows, vectors, count)]
    if None in literals or not isinstance(T, types.NumberClass):
        return None
    height, across, width = literals
    dtype = T.instance_type
    pair, size = is_pair(dtype), panel_type(dtype).bitwidth // 8
    units = LINE // size  # elements of a panel in a line
    many = units * (2 if pair else 1)  # elements of the weight in a line
    step = many * dtype.bitwidth // 8
    apart = panel_type(dtype) != dtype and not pair and across > 1  # whether a line is widened before one is multiplied

    def codegen(context, builder, sig, args):
        stride, valid, lines = (context.cast(builder, args[i], sig.args[i], types.int64) for i in (1, 2, 7))
        one = element_type(panel_type(dtype))
        vector, total = ir.VectorType(one, width), ir.VectorType(element_type(sum_type(dtype)), width)
        stride, end = builder.mul(stride, _constant(dtype.bitwidth // 8)), builder.mul(lines, _constant(step))
        last_row = builder.mul(builder.sub(valid, _constant(1)), stride)
        jump = builder.sub(builder.sub(args[3], args[0]), end)
        tile = args[6]

        def copy(row, to, i):
            bits = vector_load(context, builder, row, dtype, None, many)
            write(builder, bits if pair else from_memory(builder, dtype, bits), to, 64, i * LINE)

        def next_row(row, last):
            return builder.select(builder.icmp_signed("<", row, last), builder.add(row, stride), row)

        def multiply(u, x_at, here, sums):
            right = [read(builder, x_at, vector, size, (u * across + j) * width * size) for j in range(across)]
            for i in range(height):
                left = splat(builder, read(builder, here, one, size, i * LINE + u * size), width)
                for j in range(across):
                    sums[i * across + j] = add_products_of(builder, left, right[j], sums[i * across + j])

        copies = -(-height // units)
        row = args[0]
        for i in range(height):
            copy(row, args[5], i)
            row = next_row(row, builder.add(args[0], last_row))
        values = [read(builder, tile, total, size, n * width * size) for n in range(height * across)]
        half = builder.add(args[5], _constant(LINE * copies * units))
        with _Loop(builder, [_constant(0), args[4], args[5], half, *values]) as outer:
            offset, x_at, here, there, *sums = outer.values
            following = builder.add(offset, _constant(step))
            more = builder.icmp_signed("<", following, end)
            source = builder.select(more, following, offset)  # the last line is copied again, and not read
            far = builder.add(offset, _constant(AHEAD_BYTES))
            far = builder.sub(builder.select(builder.icmp_signed("<", far, end), far, builder.add(far, jump)), source)
            row = builder.add(args[0], source)
            last = builder.add(row, last_row)
            stop = builder.add(here, _constant(LINE))
            if apart:
                for i in range(height):
                    copy(row, there, i)
                    prefetch_line(builder, builder.add(row, far))
                    row = next_row(row, last)
            # All steps of a line in one block of code would be as fast, if the compiler did not then load for many of
            # them first and run out of registers (float32, 32 rows: 120 GFLOP/s, not 219). It does so, too, where lines
            # are widened among the products (bfloat16 without its dot product, 32 rows: 168 GFLOP/s, apart 294).
            with _Loop(builder, [x_at, here, row, there, *sums]) as inner:
                x_at, at, row, to, *sums = inner.values
                for u in range(STEPS):
                    multiply(u, x_at, at, sums)
                    for i in range(u * copies, (u + 1) * copies) if not apart else ():
                        copy(row, to, i)
                        prefetch_line(builder, builder.add(row, far))
                        row = next_row(row, last)
                x_at = builder.add(x_at, _constant(STEPS * across * width * size))
                at, to = builder.add(at, _constant(STEPS * size)), builder.add(to, _constant(STEPS * copies * LINE))
                inner.repeat(builder.icmp_signed("<", at, stop), [x_at, at, row, to, *sums])
            x_at, sums = inner.results[0], inner.results[4:]
            outer.repeat(more, [following, x_at, there, here, *sums])
        for n, value in enumerate(outer.results[4:]):
            write(builder, value, tile, size, n * width * size)
        return context.get_dummy_value()

    return types.void(w, w_stride, w_valid, ahead, x, buffer, tile, lines, T, rows, vectors, count), codegen


@by_type
def line_elements(w):
    """Elements of a row of `w` in one line of the buffer."""
    many = LINE * 8 // panel_type(w.dtype).bitwidth * (2 if is_pair(w.dtype) else 1)
    return lambda w: many


@by_type
def copy_rest(to, w, w_stride, height, rest):
    """One line of each row, of which `rest` elements exist and the others are zero."""
    many = LINE * 8 // panel_type(w.dtype).bitwidth * (2 if is_pair(w.dtype) else 1)

    def implementation(to, w, w_stride, height, rest):
        for i in range(height):
            vstore(to, i * many, vload_first(w, i * w_stride, many, rest))

    return implementation


@jit.inline
def pack_lanes(panels, panel, x, x_stride, x_k, M, K, width, T):
    """Panels [K, width] of x, filled up with zeros to whole lines."""
    pack_panels(panels, panel, x, M, K, x_stride, x_k, width, T)
    steps = (K + depth(T) - 1) // depth(T)
    for p in range((M + width - 1) // width):
        for e in range(steps * width, panel):
            store(panels, p * panel + e, 0)


@jit.inline
def lane_panels(args, lo, hi, T, ACT, ROWS, VECTORS, COUNT):
    """As `dot_panels`, with panels of VECTORS * COUNT rows of x."""
    N, M, K = load(args, PANELS.rows), load(args, PANELS.tokens), load(args, PANELS.k)
    w_stride, out_stride, panels = load(args, PANELS.w_stride), load(args, PANELS.out_stride), own_panels(args, lo, T)
    tile, turned = sum_ptr(stack(TILE_BYTES), T), sum_ptr(stack(TURN_BYTES), T)
    buffer, rest = panel_ptr(stack(BUFFER_BYTES), T), ptr(stack(BUFFER_BYTES), T)
    many = line_elements(rest)
    whole, width, groups = K // many, VECTORS * COUNT, (N + ROWS - 1) // ROWS
    units = many // depth(T) * width  # elements of a panel of x for a line
    panel = (K + many - 1) // many * units
    packed = -1
    for item in range(lo, hi):
        matrix = item // groups
        n = (item - matrix * groups) * ROWS
        w_offset, x_offset, out_offset = batch_offsets(args, PANELS.batch, matrix)
        w, height = ptr(load(args, PANELS.w), T) + (w_offset + n * w_stride), min(ROWS, N - n)
        if packed != matrix:
            packed = matrix
            source, x_stride = ptr(load(args, PANELS.x), T) + x_offset, load(args, PANELS.x_stride)
            pack_lanes(panels, panel, source, x_stride, load(args, PANELS.x_k), M, K, width, T)
        for m in range(0, M, width):
            x = panels + m // width * panel
            for e in range(ROWS * width):
                store(tile, e, 0.0)
            if whole > 0:
                ahead = w + height * w_stride
                lane_panel(w, w_stride, height, ahead, x, buffer, tile, whole, T, ROWS, VECTORS, COUNT)
            if whole * many < K:
                copy_rest(rest, w + whole * many, w_stride, height, K - whole * many)
                x = x + whole * units
                lane_panel(rest, many, height, rest, x, buffer, tile, 1, T, ROWS, VECTORS, COUNT)
            at = out_offset + m * out_stride + n
            store_lanes(args, at, n, tile, turned, width, height, min(width, M - m), T, ACT)
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
