"""The innermost loops of convolutions, as vector IR: tiles of sums that stay in registers (see gemm/microkernel.py)."""

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ...lang.memory import first_lanes, from_memory, vector_load
from ...lang.vector import I32, I64, literal_of
from ..gemm.microkernel import Tile, add_products_of, is_pair, read, sum_loop, sum_type, write


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
def row_product(typingctx, x, offsets, w, tile, steps, T, rows, vectors):
    """tile[rows, vectors * lanes] = sum over k < `steps` of x[offsets[k] + r] w[k, :] for r < rows.

    `offsets` are in bytes, `w` is [steps, vectors * lanes]; the last two arguments are literals.
    """
    t = _tile(T, rows, vectors)
    if t is None:
        return None

    def codegen(context, builder, sig, args):
        def body(at, sums):
            source = builder.add(args[0], read(builder, at[1], I64, 8))
            return t.outer(builder, lambda i: read(builder, source, t.one, t.size, i * t.size), at[0], sums)

        steps = context.cast(builder, args[4], sig.args[4], types.int64)
        _, sums = sum_loop(builder, steps, [args[2], args[1]], [t.width, 8], t.zeros(), body)
        t.write(builder, sums, args[3])
        return context.get_dummy_value()

    return types.void(x, offsets, w, tile, steps, T, rows, vectors), codegen


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
        _, values = sum_loop(builder, num_rows, [ir.Constant(I64, 0), args[4]], [pitch, length], start, row)
        for value, (p, offset) in zip(values, places):
            write(builder, value, p, t.size, offset)
        return context.get_dummy_value()

    sig = types.void(x, offsets, pitch, num_rows, g, steps, sums, sums_stride, T, rows, vectors)
    return sig, codegen


def _sum_of_lanes(builder, v):
    """The sum of all lanes, half by half."""
    while v.type.count > 1:
        half = v.type.count // 2
        parts = [ir.Constant(ir.VectorType(I32, half), list(range(at, at + half))) for at in (0, half)]
        v = builder.fadd(*(builder.shuffle_vector(v, v, part) for part in parts))
    return builder.extract_element(v, ir.Constant(I32, 0))


@intrinsic(prefer_literal=True)
def tap_dots(typingctx, x, offsets, pitch, num_rows, g, columns, sums, T, rows):
    """sums[r] += sum over `num_rows` and `columns` of x[offsets[r] + row * pitch + column] g[row, column].

    `offsets` and `pitch` are in bytes, g is [num_rows, columns]; the last argument is a literal. The last vector of a
    row is masked in both, so that no neighbour of another row meets a zero (which would make NaN of an infinity).
    """
    t = _tile(T, rows, types.literal(1))
    if t is None:
        return None
    dtype, sum_dtype = T.instance_type, sum_type(T.instance_type)
    item = dtype.bitwidth // 8

    def codegen(context, builder, sig, args):
        pitch, num_rows, columns = (context.cast(builder, args[i], sig.args[i], types.int64) for i in (2, 3, 5))
        sources = [builder.add(args[0], read(builder, args[1], I64, 8, 8 * i)) for i in range(t.height)]
        whole = builder.sdiv(columns, ir.Constant(I64, t.count))
        rest = builder.sub(columns, builder.mul(whole, ir.Constant(I64, t.count)))

        def vector(address, kind, mask=None):
            bits = vector_load(context, builder, address, kind, None, t.count, mask)
            return from_memory(builder, kind, bits)

        def step(at, totals, mask=None):
            value = vector(at[1], dtype, mask)
            return [
                add_products_of(builder, vector(builder.add(source, at[0]), sum_dtype, mask), value, total)
                for source, total in zip(sources, totals)
            ]

        def tail(at, totals):
            return step(at, totals, first_lanes(builder, rest, t.count))

        def row(at, totals):
            behind, totals = sum_loop(builder, whole, at, [t.width, t.count * item], totals, step)
            some = builder.zext(builder.icmp_signed(">", rest, ir.Constant(I64, 0)), I64)
            return sum_loop(builder, some, behind, [0, 0], totals, tail)[1]

        length = builder.mul(columns, ir.Constant(I64, item))
        _, totals = sum_loop(builder, num_rows, [ir.Constant(I64, 0), args[4]], [pitch, length], t.zeros(), row)
        for i, total in enumerate(totals):
            value = _sum_of_lanes(builder, total)
            place = builder.add(args[6], ir.Constant(I64, i * t.size))
            write(builder, builder.fadd(value, read(builder, place, t.total.element, t.size)), place, t.size)
        return context.get_dummy_value()

    return types.void(x, offsets, pitch, num_rows, g, columns, sums, T, rows), codegen
