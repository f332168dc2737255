"""The innermost loops of convolutions, as vector IR: tiles of sums that stay in registers (see gemm/microkernel.py)."""

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ...lang.vector import I64, element_type, literal_of, splat
from ..gemm.microkernel import add_products_of, is_pair, lanes_of, panel_type, read, sum_loop, sum_type, write


class Tile:
    """A tile of `height` rows of `across` vectors of sums, at compile time; `size` are the bytes of an element."""

    def __init__(self, dtype, height, across):
        self.height, self.across = height, across
        self.count, self.size = lanes_of(dtype), panel_type(dtype).bitwidth // 8
        self.width = across * self.count * self.size  # bytes of a row
        self.one = element_type(panel_type(dtype))
        self.vector = ir.VectorType(self.one, self.count)
        self.total = ir.VectorType(element_type(sum_type(dtype)), self.count)

    def zeros(self):
        return [ir.Constant(self.total, [0.0] * self.count)] * (self.height * self.across)

    def outer(self, builder, left, right, sums):
        """`sums` plus the products of `left(row)`, a value for each row, with the vectors at the address `right`."""
        vectors = [read(builder, right, self.vector, self.size, j * self.count * self.size) for j in range(self.across)]
        new = []
        for i in range(self.height):
            value = splat(builder, left(i), self.count)
            for j, vector in enumerate(vectors):
                new.append(add_products_of(builder, value, vector, sums[i * self.across + j]))
        return new

    def write(self, builder, sums, address):
        for index, value in enumerate(sums):
            write(builder, value, address, self.size, index * self.count * self.size)


def _tile(T, rows, vectors):
    """The `Tile` for a type and two literals, or None."""
    height, across = literal_of(rows), literal_of(vectors)
    if height is None or across is None or not isinstance(T, types.NumberClass):
        return None
    return Tile(T.instance_type, height, across)


@intrinsic(prefer_literal=True)
def offset_product(typingctx, a, b, offsets, tile, steps, T, rows, vectors):
    """tile[rows, vectors * lanes] = sum over `steps` of the outer products of a[k, rows] and b[offsets[k] : ].

    `offsets` are in bytes; the last two arguments are literals.
    """
    t = _tile(T, rows, vectors)
    if t is None:
        return None

    def codegen(context, builder, sig, args):
        def body(at, sums):
            source = builder.add(args[1], read(builder, at[1], I64, 8))
            return t.outer(builder, lambda i: read(builder, at[0], t.one, t.size, i * t.size), source, sums)

        steps = context.cast(builder, args[4], sig.args[4], types.int64)
        _, sums = sum_loop(builder, steps, [args[0], args[2]], [t.height * t.size, 8], t.zeros(), body)
        t.write(builder, sums, args[3])
        return context.get_dummy_value()

    return types.void(a, b, offsets, tile, steps, T, rows, vectors), codegen


@intrinsic(prefer_literal=True)
def place_product(typingctx, x, places, offsets, w, tile, steps, T, rows, vectors):
    """tile[rows, vectors * lanes] = sum over k < `steps` of x[places[r] + offsets[k]] w[k, :], both in bytes.

    `w` is [steps, vectors * lanes]; the last two arguments are literals.
    """
    t = _tile(T, rows, vectors)
    if t is None:
        return None

    def codegen(context, builder, sig, args):
        sources = [builder.add(args[0], read(builder, args[1], I64, 8, 8 * i)) for i in range(t.height)]

        def body(at, sums):
            offset = read(builder, at[1], I64, 8)
            return t.outer(
                builder, lambda i: read(builder, builder.add(sources[i], offset), t.one, t.size), at[0], sums
            )

        steps = context.cast(builder, args[5], sig.args[5], types.int64)
        _, sums = sum_loop(builder, steps, [args[3], args[2]], [t.width, 8], t.zeros(), body)
        t.write(builder, sums, args[4])
        return context.get_dummy_value()

    return types.void(x, places, offsets, w, tile, steps, T, rows, vectors), codegen


@intrinsic(prefer_literal=True)
def tap_product(typingctx, x, offsets, pitch, num_rows, g, steps, sums, sums_stride, T, rows, vectors):
    """sums[r, :] += sum over `num_rows` and `steps` of x[offsets[r] + row * pitch + step] g[row, step, :].

    `offsets` and `pitch` are in bytes, `sums_stride` in elements; g is [num_rows, steps, vectors * lanes]. A step of
    bfloat16 is a pair of neighbours. The last two arguments are literals.
    """
    t = _tile(T, rows, vectors)
    if t is None:
        return None
    align = 2 if is_pair(T.instance_type) else t.size

    def codegen(context, builder, sig, args):
        def integer(index):
            return context.cast(builder, args[index], sig.args[index], types.int64)

        pitch, num_rows, steps = integer(2), integer(3), integer(5)
        sums_stride = builder.mul(integer(7), ir.Constant(I64, t.size))
        sources = [builder.add(args[0], read(builder, args[1], I64, 8, 8 * i)) for i in range(t.height)]

        def step(at, sums):
            return t.outer(builder, lambda i: read(builder, builder.add(sources[i], at[0]), t.one, align), at[1], sums)

        def row(at, sums):
            _, sums = sum_loop(builder, steps, at, [t.size, t.width], sums, step)
            return sums

        rows = [builder.add(args[6], builder.mul(sums_stride, ir.Constant(I64, i))) for i in range(t.height)]
        places = [(p, j * t.count * t.size) for p in rows for j in range(t.across)]
        start = [read(builder, p, t.total, t.size, offset) for p, offset in places]
        length = builder.mul(steps, ir.Constant(I64, t.width))
        values = rows_loop(builder, num_rows, [ir.Constant(I64, 0), args[4]], [pitch, length], start, row)
        for value, (p, offset) in zip(values, places):
            write(builder, value, p, t.size, offset)
        return context.get_dummy_value()

    sig = types.void(x, offsets, pitch, num_rows, g, steps, sums, sums_stride, T, rows, vectors)
    return sig, codegen


def rows_loop(builder, times, pointers, strides, totals, body):
    """As `sum_loop`, with strides that are values; the new totals."""
    entry = builder.block
    loop, done = builder.append_basic_block("rows.loop"), builder.append_basic_block("rows.done")
    builder.cbranch(builder.icmp_signed(">", times, ir.Constant(I64, 0)), loop, done)
    builder.position_at_end(loop)
    carried = []
    for start in [ir.Constant(I64, 0), *pointers, *totals]:
        phi = builder.phi(start.type)
        phi.add_incoming(start, entry)
        carried.append(phi)
    split = 1 + len(pointers)
    new = body(carried[1:split], carried[split:])
    following = [builder.add(p, s) for p, s in zip(carried[:split], [ir.Constant(I64, 1), *strides])]
    for phi, value in zip(carried, [*following, *new]):
        phi.add_incoming(value, builder.block)
    last = builder.block
    builder.cbranch(builder.icmp_signed("<", following[0], times), loop, done)
    builder.position_at_end(done)
    results = []
    for before, after in zip(totals, new):
        phi = builder.phi(before.type)
        phi.add_incoming(before, entry)
        phi.add_incoming(after, last)
        results.append(phi)
    return results
