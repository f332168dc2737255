"""The innermost loops of convolutions, as vector IR: tiles of sums that stay in registers (see gemm/microkernel.py)."""

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ...lang.vector import I64, literal_of
from ..gemm.microkernel import Tile, is_pair, read, sum_loop, write


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
        _, values = sum_loop(builder, num_rows, [ir.Constant(I64, 0), args[4]], [pitch, length], start, row)
        for value, (p, offset) in zip(values, places):
            write(builder, value, p, t.size, offset)
        return context.get_dummy_value()

    sig = types.void(x, offsets, pitch, num_rows, g, steps, sums, sums_stride, T, rows, vectors)
    return sig, codegen
