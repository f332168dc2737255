"""Tile registers of Intel's AMX, as kernels use them: their shapes, and products of blocks of 32 x 32 sums.

Intel's "64 and IA-32 Architectures Software Developer's Manual", volume 1, chapter 18: eight registers of 16 rows of 64
bytes; `tdpbf16ps` adds to 16 x 16 float32 sums the products of 16 rows of 32 bfloat16 with 16 rows of 16 pairs, and
`tdpbssd` to int32 those of 16 rows of 64 bytes with 16 rows of 16 quads. A pair, or a quad, is neighbours of k.
"""

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from ..build import jit
from .lowp import bfloat16, float16_pairs
from .rows import fill_row
from .simd import address, ptr, stack, store
from .vector import I8, I64, literal_of

HALF = 16  # rows of a tile, and the 4-byte columns of one
ROW = 64  # bytes of a row of a tile
CONFIG_BYTES = 64
PRODUCTS = {bfloat16: "tdpbf16ps", float16_pairs: "tdpfp16ps", types.int8: "tdpbssd"}


def call_tiles(builder, name, *arguments):
    """Call an intrinsic of AMX: integers of Python are numbers of tiles, values are addresses and strides."""
    values = [ir.Constant(I8, x) if isinstance(x, int) else x for x in arguments]
    kind = ir.FunctionType(ir.VoidType(), [value.type for value in values])
    builder.call(cgutils.get_or_insert_function(builder.module, kind, f"llvm.x86.{name}"), values)


def pointer(builder, at, offset=0):
    return builder.inttoptr(builder.add(at, ir.Constant(I64, offset)), I8.as_pointer())


@intrinsic
def load_shapes(typingctx, config):
    """Give the tile registers of this thread the shapes at an address, and the system's leave to use them."""

    def codegen(context, builder, sig, args):
        call_tiles(builder, "ldtilecfg", pointer(builder, context.cast(builder, args[0], sig.args[0], types.int64)))
        return context.get_dummy_value()

    return types.void(config), codegen


@intrinsic
def release(typingctx):
    """Let go of the tile registers, so that the system need not save them."""

    def codegen(context, builder, sig, args):
        call_tiles(builder, "tilerelease")
        return context.get_dummy_value()

    return types.void(), codegen


def _corners(builder, at, stride, rows, columns):
    """(tile, address) of each of `rows` x `columns` tiles of sums whose rows are `stride` bytes apart."""
    for i in range(rows):
        below = builder.add(at, builder.mul(stride, ir.Constant(I64, HALF * i)))
        for j in range(columns):
            yield 2 * i + j, pointer(builder, below, ROW * j)


def _add_products(builder, product, a, a_row, a_below, b, b_row, rows, columns):
    """Load tiles of `a` and `b`, and add their products to the sums."""
    for i in range(rows):
        at = builder.add(a, a_below) if i else a
        call_tiles(builder, "tileloadd64", 4 + i, pointer(builder, at), a_row)
    for j in range(columns):
        call_tiles(builder, "tileloadd64", 6 + j, pointer(builder, b, ROW * j), b_row)
    for i in range(rows):
        for j in range(columns):
            call_tiles(builder, product, 2 * i + j, 4 + i, 6 + j)


def _loop(builder, steps, pointers, strides, body):
    """`for _ in range(steps)`: `body(pointers)`, which then advance by `strides`."""
    entry, one = builder.block, ir.Constant(I64, 1)
    loop, done = builder.append_basic_block("k.loop"), builder.append_basic_block("k.done")
    builder.cbranch(builder.icmp_signed(">", steps, ir.Constant(I64, 0)), loop, done)
    builder.position_at_end(loop)
    left, *at = (builder.phi(I64) for _ in range(1 + len(pointers)))
    body(at)
    rest = builder.sub(left, one)
    following = [rest, *(builder.add(place, stride) for place, stride in zip(at, strides))]
    for phi, start, value in zip([left, *at], [steps, *pointers], following):
        phi.add_incoming(start, entry)
        phi.add_incoming(value, builder.block)
    builder.cbranch(builder.icmp_signed(">", rest, ir.Constant(I64, 0)), loop, done)
    builder.position_at_end(done)


@intrinsic(prefer_literal=True)
def tile_sums(typingctx, T, a, a_strides, b, b_strides, last, term, term_stride, to, stride, steps, rest, high, across):
    """to[16 high, 16 across] = term + the products of `steps` tiles of `a` and `b`, and if `rest` of one more, `last`.

    `a_strides`: from one row of a tile of `a` to the next, from a tile to the one below, and to that of the next step;
    `b_strides`: from one row of pairs to the next, and to the next step. `last` are two addresses, whose tiles are 16
    rows of 64 bytes, and rows as of `b`. Strides are in bytes; `high` and `across`, literals, are 1 or 2.

    A step loads its tiles first. Nine products with 16 threads did 5,358 and 5,594 GFLOP/s so (geometric means of two
    rounds), 4,402 and 5,148 where a tile is loaded just before its first product, and 3,940 and 4,342 where those of
    `a` are loaded before each of their products.
    """
    literals = [literal_of(v) for v in (high, across)]
    if None in literals or not isinstance(T, types.NumberClass):
        return None
    rows, columns = literals
    product = PRODUCTS[T.instance_type]

    def codegen(context, builder, sig, args):
        def integer(index):
            return context.cast(builder, args[index], sig.args[index], types.int64)

        def step(a, b, a_row, a_below):
            _add_products(builder, product, a, a_row, a_below, b, b_row, rows, columns)

        a, b, term, to = args[1], args[3], args[6], args[8]
        a_row, a_below, a_step = cgutils.unpack_tuple(builder, args[2], 3)
        b_row, b_step = cgutils.unpack_tuple(builder, args[4], 2)
        last_a, last_b = cgutils.unpack_tuple(builder, args[5], 2)
        below, stride, steps, rest = (integer(k) for k in (7, 9, 10, 11))
        for tile, at in _corners(builder, term, below, rows, columns):
            call_tiles(builder, "tileloadd64", tile, at, below)
        _loop(builder, steps, (a, b), (a_step, b_step), lambda at: step(*at, a_row, a_below))
        with builder.if_then(builder.icmp_signed(">", rest, ir.Constant(I64, 0))):
            step(last_a, last_b, ir.Constant(I64, ROW), ir.Constant(I64, HALF * ROW))
        for tile, at in _corners(builder, to, stride, rows, columns):
            call_tiles(builder, "tilestored64", tile, at, stride)
        return context.get_dummy_value()

    sig = types.void(T, a, a_strides, b, b_strides, last, term, term_stride, to, stride, steps, rest, high, across)
    return sig, codegen


@intrinsic(prefer_literal=True)
def tile_sums_at(typingctx, T, a, b, b_row, offsets, to, stride, steps, high, across):
    """to[16 high, 16 across] = the products of `steps` tiles of `a`, two of 1 KB a step, and of `b` + offsets[step].

    Rows of pairs of `b` are `b_row` bytes apart, rows of sums `stride`; `offsets` are bytes, in 64 bits each.
    """
    literals = [literal_of(v) for v in (high, across)]
    if None in literals or not isinstance(T, types.NumberClass):
        return None
    rows, columns = literals
    product = PRODUCTS[T.instance_type]

    def codegen(context, builder, sig, args):
        b_row, stride, steps = (context.cast(builder, args[k], sig.args[k], types.int64) for k in (3, 6, 7))
        row, tile_bytes, word = (ir.Constant(I64, n) for n in (ROW, HALF * ROW, 8))

        def step(at):
            offset = builder.load(builder.inttoptr(at[1], I64.as_pointer()))
            b = builder.add(args[2], offset)
            _add_products(builder, product, at[0], row, tile_bytes, b, b_row, rows, columns)

        for i in range(rows):
            for j in range(columns):
                call_tiles(builder, "tilezero", 2 * i + j)
        _loop(builder, steps, (args[1], args[4]), (ir.Constant(I64, 2 * HALF * ROW), word), step)
        for tile, at in _corners(builder, args[5], stride, rows, columns):
            call_tiles(builder, "tilestored64", tile, at, stride)
        return context.get_dummy_value()

    return types.void(T, a, b, b_row, offsets, to, stride, steps, high, across), codegen


@jit.inline
def full_shapes(config):
    """Write the configuration of tiles of full shape."""
    fill_row(config, 64, 0)
    store(config, 0, 1)  # the palette: eight tiles of 1 KB
    for tile in range(8):
        store(config, 16 + 2 * tile, ROW)  # bytes of a row (16 bits each)
        store(config, 48 + tile, HALF)  # rows


@jit.inline
def begin():
    """Give all tiles of this thread their full shape."""
    config = ptr(stack(CONFIG_BYTES), types.uint8)
    full_shapes(config)
    load_shapes(address(config))
