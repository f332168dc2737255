"""Products of a weight with 2 to 128 rows of x (decoding of several sequences), the weight read once, as it lies.

Here lanes run along k, and a tile of sums of some rows of the weight with 2 or 4 of x is added up at the end; as many
rows of x as fill registers are lanes themselves (`lanes.py`). A weight of 5632 x 2048 in bfloat16 with 8 and 24 rows:
340 and 360 of 470 GFLOP/s, by packing the weight 180 to 275. Rows of x are packed once per thread, into
its scratch; or many threads pack them first, all together, where that takes long.
"""

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ...blocks.gemm import PANELS
from ...build import jit
from ...lang.by_type import by_type
from ...lang.memory import first_lanes, from_memory, vector_load
from ...lang.simd import address, bitcast, load, ptr, stack, vload_first, vstore
from ...lang.vector import I64, element_type, literal_of
from .blocked import batch_offsets
from .blocking import SHARED_K
from .epilogue import finish_row
from .microkernel import (
    add_products_of,
    add_up,
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

TILE_BYTES = 33 * 64  # 32 vectors, and one that is read beyond them
TURN_BYTES = 16 * 64  # a square of sums, transposed
RESULTS = 16  # at least the rows of a tile of dot products, and a vector
AHEAD_BYTES = 2048  # how far ahead the weight is asked for, past the end of its rows into the next tile's


def constant(value):
    return ir.Constant(I64, value)


class _Rows:
    """The rows of the weight that a tile reads: addresses, and what is asked for ahead of them (at compile time)."""

    def __init__(self, builder, base, stride, valid, ahead, end, height):
        """`stride` and `end` (of a row) are in bytes; rows from `valid` on repeat the last one."""
        self.builder, self.end = builder, end
        last = builder.sub(valid, constant(1))
        self.starts = []
        for i in range(height):
            row = builder.select(builder.icmp_signed("<", constant(i), last), constant(i), last)
            self.starts.append(builder.add(base, builder.mul(row, stride)))
        self.jump = builder.sub(builder.sub(ahead, base), end)

    def at(self, i, offset):
        return self.builder.add(self.starts[i], offset)

    def far(self, offset):
        """The offset to ask for while `offset` is read."""
        far = self.builder.add(offset, constant(AHEAD_BYTES))
        inside = self.builder.icmp_signed("<", far, self.end)
        return self.builder.select(inside, far, self.builder.add(far, self.jump))


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
        end = builder.mul(k, constant(item))
        w = _Rows(builder, args[0], builder.mul(stride, constant(item)), valid, args[3], end, height)

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

        rest = builder.srem(k, constant(many))
        zeros = [ir.Constant(total, [0.0] * count)] * (height * across)
        strides = [many * item, across * count * size]
        at, values = sum_loop(builder, builder.sdiv(k, constant(many)), [constant(0), args[4]], strides, zeros, body)
        partial = builder.zext(builder.icmp_signed(">", rest, constant(0)), I64)
        _, values = sum_loop(builder, partial, at, [0, 0], values, tail)
        for i, value in enumerate(values):
            write(builder, value, args[6], size, i * count * size)
        return context.get_dummy_value()

    return types.void(w, w_stride, w_valid, ahead, x, k, sums, T, rows, tokens), codegen


@by_type
def pack_vectors(panels, x, x_stride, tokens, k, across, first, stop):
    """Panels of `across` rows of x: vectors of k from `first` on, of each row in turn, with zeros behind the last."""
    many = lanes_of(x.dtype) * (2 if is_pair(x.dtype) else 1)
    kind = x.dtype if is_pair(x.dtype) else sum_type(x.dtype)

    def implementation(panels, x, x_stride, tokens, k, across, first, stop):
        steps, to = (k + many - 1) // many, ptr(address(panels), kind)
        for m in range((tokens + across - 1) // across * across):
            row, panel = x + min(m, tokens - 1) * x_stride, to + (m // across * steps * across + m % across) * many
            for s in range(first // many, (stop + many - 1) // many):
                vstore(panel, s * across * many, vload_first(row, s * many, many, k - s * many))

    return implementation


@jit.inline
def own_panels(args, thread, T):
    """The panels of x of a thread, or those of all threads."""
    return panel_ptr(load(args, PANELS.scratch) + thread * load(args, PANELS.thread_bytes), T)


@jit.inline
def first_packed(args):
    """The matrix of the batch whose x is packed when a thread begins: that of all threads, or none (-1)."""
    return 0 if load(args, PANELS.thread_bytes) == 0 else -1


@jit.inline
def all_panels(args, lo, hi, T):
    """What packs pieces [lo, hi) of x for all threads: panels, x, its first and its last element of k."""
    panels, x = panel_ptr(load(args, PANELS.scratch), T), ptr(load(args, PANELS.x), T)
    return panels, x, lo * SHARED_K, min(load(args, PANELS.k), hi * SHARED_K)


@jit.inline
def pack_dots(args, lo, hi, T, TOKENS):
    """Pieces [lo, hi) of x for `dot_panels`."""
    panels, x, first, stop = all_panels(args, lo, hi, T)
    M, K, x_stride = load(args, PANELS.tokens), load(args, PANELS.k), load(args, PANELS.x_stride)
    pack_vectors(panels, x, x_stride, M, K, TOKENS, first, stop)
    return 0


@jit.inline
def dot_panels(args, lo, hi, thread, T, ACT, ROWS, TOKENS):
    """out[m, n] = residual + activation(alpha * w[n] . x[m] + bias[n]) for groups [lo, hi) of ROWS rows of w."""
    N, M, K = load(args, PANELS.rows), load(args, PANELS.tokens), load(args, PANELS.k)
    w_stride, out_stride = load(args, PANELS.w_stride), load(args, PANELS.out_stride)
    given = load(args, PANELS.bias) != 0, load(args, PANELS.residual) != 0
    alpha, panels = bitcast(load(args, PANELS.alpha), types.float64), own_panels(args, thread, T)
    many = lanes(T) * depth(T)
    panel, groups = (K + many - 1) // many * lanes(T) * TOKENS, (N + ROWS - 1) // ROWS
    sums, results = sum_ptr(stack(TILE_BYTES), T), sum_ptr(stack(TURN_BYTES), T)
    packed = first_packed(args)
    for item in range(lo, hi):
        matrix = item // groups
        n = (item - matrix * groups) * ROWS
        w_offset, x_offset, out_offset = batch_offsets(args, PANELS.batch, matrix)
        w, height = ptr(load(args, PANELS.w), T) + (w_offset + n * w_stride), min(ROWS, N - n)
        if packed != matrix:
            packed = matrix
            x = ptr(load(args, PANELS.x), T) + x_offset
            pack_vectors(panels, x, load(args, PANELS.x_stride), M, K, TOKENS, 0, K)
        bias = ptr(load(args, PANELS.bias), T) + n
        for m in range(0, M, TOKENS):
            x = panels + m // TOKENS * panel
            dot_panel(w, w_stride, height, w + height * w_stride, x, K, sums, T, ROWS, TOKENS)
            width = min(TOKENS, M - m)
            for j in range(width):
                add_up(sums + j * lanes(T), TOKENS, ROWS, results + j * RESULTS)
                at = out_offset + (m + j) * out_stride + n
                y, residual = ptr(load(args, PANELS.out), T) + at, ptr(load(args, PANELS.residual), T) + at
                finish_row(y, results + j * RESULTS, bias, residual, alpha, given, height, ACT)
    return 0
