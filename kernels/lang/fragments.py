"""Products of 16 rows of a warp with rows in shared memory, on the matrix units of every GPU since sm_80.

Rows of 16-bit floats or of float32 lie `pitch` bytes apart: an odd multiple of 16, so that neither rows nor columns
meet in a bank. What a thread holds of a result is as in `tiles.py`, of 16 rows: value number i lies in row lane / 4 +
8 * (i >> 1 & 1), column 8 * (i >> 2) + 2 * (lane & 3) + (i & 1).

16-bit floats are multiplied by mma.m16n8k16, float32 by mma.m16n8k8 of TF32 (PTX ISA 8.0, 9.7.13.4): a number is the
sum of two of 11 bits each, and of the four products of two such sums the three largest are added up, so that what is
left out is 2^-22 of the product.

All names are for use inside jitted functions, in kernels for GPUs only. Addresses of shared memory are the 32-bit
ones of its own space.
"""

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from .by_type import by_type
from .lowp import StorageFloat
from .memory import alignment, gep, to_memory
from .ptx import F32, _statement, asm, thread
from .tiles import _lanes, _vector, narrow
from .vector import I32, I64, Vector, literal_of

_KINDS = {"ic_bfloat16": "bf16", "ic_float16": "f16"}
_HALVES = ir.LiteralStructType([I32] * 4)

store_16 = _statement(
    "store_16",
    "st.shared.v4.b32 [$0], {$1, $2, $3, $4};",
    "rrrrr",
    "Store four words at a shared address, a multiple of 16.",
)


@by_type
def corner(T, pitch):
    """From the first row of an operand of `rows_times` to what this thread reads, in bytes."""
    if isinstance(T.instance_type, StorageFloat):
        return lambda T, pitch: (thread() & 15) * pitch + (thread() >> 4 & 1) * 16
    return lambda T, pitch: (thread() >> 2 & 7) * pitch + (thread() & 3) * 4


@by_type
def corner_across(T, pitch):
    """The same of the right operand of `times_rows`."""
    if isinstance(T.instance_type, StorageFloat):
        return lambda T, pitch: (thread() & 15) * pitch + (thread() >> 4 & 1) * 16
    return lambda T, pitch: 2 * (thread() & 3) * pitch + (thread() >> 2 & 7) * 4


@by_type
def operand(values, T):
    """Values of a result as the left operand of `times_rows`."""
    if isinstance(T.instance_type, StorageFloat):
        return lambda values, T: narrow(values, T)
    return lambda values, T: values


def _at(builder, address, offset):
    return builder.add(address, ir.Constant(I32, offset)) if offset else address


def _load_halves(builder, at, turned):
    """Four tiles of 8 x 8 16-bit values, of which each thread has a word of two (ldmatrix, 9.7.13.4.15)."""
    text = f"ldmatrix.sync.aligned.m8n8.x4{'.trans' if turned else ''}.shared.b16 {{$0, $1, $2, $3}}, [$4];"
    statement = ir.InlineAsm(ir.FunctionType(_HALVES, [I32]), text, "=r,=r,=r,=r,r,~{memory}", side_effect=True)
    found = builder.call(statement, [at], attrs=("convergent",))
    return [builder.extract_value(found, i) for i in range(4)]


def _load_float(builder, at):
    statement = ir.InlineAsm(ir.FunctionType(F32, [I32]), "ld.shared.f32 $0, [$1];", "=f,r,~{memory}", side_effect=True)
    return builder.call(statement, [at])


def _multiply(builder, sums, left, right, shape, kind):
    """Four sums of a thread with the product of words of the left operand and of the right one."""
    words = len(left) + len(right)
    places = [
        ", ".join(f"${i}" for i in range(*span)) for span in ((0, 4), (8, 8 + len(left)), (8 + len(left), 8 + words))
    ]
    text = f"mma.sync.aligned.{shape}.row.col.f32.{kind}.{kind}.f32 "
    text += f"{{{places[0]}}}, {{{places[1]}}}, {{{places[2]}}}, {{$4, $5, $6, $7}};"
    function = ir.FunctionType(ir.LiteralStructType([F32] * 4), [F32] * 4 + [I32] * words)
    statement = ir.InlineAsm(function, text, ",".join(["=f"] * 4 + ["f"] * 4 + ["r"] * words), side_effect=False)
    found = builder.call(statement, [*sums, *left, *right], attrs=("convergent",))
    return [builder.extract_value(found, i) for i in range(4)]


def _split(builder, values):
    """(high words, low words) of float32 numbers: two TF32 numbers whose sum they are."""
    high = [asm(builder, "cvt.rna.tf32.f32 $0, $1;", "=r,f", [v], I32) for v in values]
    low = [builder.bitcast(builder.fsub(v, builder.bitcast(h, F32)), I32) for v, h in zip(values, high)]
    return high, low


def _multiply_floats(builder, sums, left, values):
    """The same for 8 of k of float32; `left` is split.

    The units cut sums off where float32 rounds them, so they get sums of 8 of k only: adding all of 256 there, results
    were wrong by 3e-6 of their size.
    """
    high, low = _split(builder, values)
    found = [ir.Constant(F32, 0.0)] * 4
    for a, b in ((left[1], high), (left[0], low), (left[0], high)):
        found = _multiply(builder, found, a, b, "m16n8k8", "tf32")
    return [builder.fadd(total, more) for total, more in zip(sums, found)]


@intrinsic(prefer_literal=True)
def rows_times(typingctx, sums, a, b, T, size, pitch):
    """sums + a b^T for `size` of k: 16 rows of `a` and as many of `b` as sums have columns, at shared addresses.

    `size`, a multiple of 16, and `pitch` are literals; the addresses are those of `corner`.
    """
    depth, apart = literal_of(size), literal_of(pitch)
    if depth is None or apart is None:
        return None
    dtype = T.instance_type

    def codegen(context, builder, sig, args):
        totals = _lanes(builder, args[0])
        left, right = (
            builder.trunc(context.cast(builder, v, t, types.int64), I32) for v, t in zip(args[1:3], sig.args[1:3])
        )
        tiles = len(totals) // 4
        if dtype == types.float32:
            for k in range(0, 4 * depth, 32):
                places = [k, k + 8 * apart, k + 16, k + 8 * apart + 16]
                own = _split(builder, [_load_float(builder, _at(builder, left, place)) for place in places])
                for j in range(tiles):
                    values = [_load_float(builder, _at(builder, right, 8 * apart * j + k + x)) for x in (0, 16)]
                    totals[4 * j : 4 * j + 4] = _multiply_floats(builder, totals[4 * j : 4 * j + 4], own, values)
            return _vector(builder, totals)
        for k in range(0, 2 * depth, 32):
            own = _load_halves(builder, _at(builder, left, k), False)
            for j in range(0, tiles, 2):
                found = _load_halves(builder, _at(builder, right, 8 * apart * j + k), False)
                for i in (0, 1):
                    place = slice(4 * (j + i), 4 * (j + i) + 4)
                    pair = [found[i], found[i + 2]]
                    totals[place] = _multiply(builder, totals[place], own, pair, "m16n8k16", _KINDS[dtype.name])
        return _vector(builder, totals)

    return sums(sums, types.int64, types.int64, T, size, pitch), codegen


@intrinsic(prefer_literal=True)
def times_rows(typingctx, sums, a, b, T, pitch):
    """sums + a b: `a` is an `operand` of 16 rows, `b` the shared address (`corner_across`) of a row for each of k."""
    apart = literal_of(pitch)
    if apart is None:
        return None
    dtype = T.instance_type

    def codegen(context, builder, sig, args):
        totals, left = _lanes(builder, args[0]), _lanes(builder, args[1])
        right = builder.trunc(context.cast(builder, args[2], sig.args[2], types.int64), I32)
        tiles = len(totals) // 4
        if dtype == types.float32:
            for k in range(len(left) // 4):  # the units' order of k does not matter: here 0, 2, 4, 6, 1, 3, 5, 7
                own = _split(builder, [left[4 * k + i] for i in (0, 2, 1, 3)])
                for j in range(tiles):
                    places = [8 * apart * k + 32 * j + x for x in (0, apart)]
                    values = [_load_float(builder, _at(builder, right, place)) for place in places]
                    totals[4 * j : 4 * j + 4] = _multiply_floats(builder, totals[4 * j : 4 * j + 4], own, values)
            return _vector(builder, totals)
        for k in range(len(left) // 4):
            own = left[4 * k : 4 * k + 4]
            for j in range(0, tiles, 2):
                found = _load_halves(builder, _at(builder, right, 16 * apart * k + 16 * j), True)
                for i in (0, 1):
                    place = slice(4 * (j + i), 4 * (j + i) + 4)
                    pair = found[2 * i : 2 * i + 2]
                    totals[place] = _multiply(builder, totals[place], own, pair, "m16n8k16", _KINDS[dtype.name])
        return _vector(builder, totals)

    return sums(sums, a, types.int64, T, pitch), codegen


@intrinsic
def pick_pairs(typingctx, p, step, indices, mask):
    """16-bit elements at int32 `indices`, and `step` behind them in the upper halves, as words; 0 where the mask is
    false: there element 0 is read, which must exist.
    """

    def codegen(context, builder, sig, args):
        step, found = context.cast(builder, args[1], sig.args[1], types.int64), []
        for index, wanted in zip(_lanes(builder, args[2]), _lanes(builder, args[3])):
            index = builder.sext(builder.select(wanted, index, ir.Constant(I32, 0)), I64)
            halves = []
            for at in (index, builder.add(index, step)):
                half = builder.load(gep(context, builder, args[0], p.dtype, at))
                half.align = 2
                halves.append(builder.zext(half, I32))
            word = builder.or_(halves[0], builder.shl(halves[1], ir.Constant(I32, 16)))
            found.append(builder.select(wanted, word, ir.Constant(I32, 0)))
        return _vector(builder, found)

    return Vector(types.uint32, indices.lanes)(p, step, indices, mask), codegen


@intrinsic
def multiply_columns(typingctx, sums, a, upper, lower, T):
    """sums + a b for 16 of k, of 16-bit floats: four words of `a` for each 16 rows, two of b for each 8 columns.

    Of k the thread has four, two in a word of `upper`, two of `lower`; which ones does not matter if `a` has the same.
    Sums are those of all columns of the first 16 rows, then of the next ones.
    """
    kind = _KINDS[T.instance_type.name]

    def codegen(context, builder, sig, args):
        totals, left, above, below = (_lanes(builder, v) for v in args[:4])
        for i in range(len(left) // 4):
            for j, right in enumerate(zip(above, below)):
                place = slice(4 * (i * len(above) + j), 4 * (i * len(above) + j) + 4)
                totals[place] = _multiply(
                    builder, totals[place], left[4 * i : 4 * i + 4], list(right), "m16n8k16", kind
                )
        return _vector(builder, totals)

    return sums(sums, a, upper, lower, T), codegen


@intrinsic(prefer_literal=True)
def store_apart(typingctx, at, values, step):
    """Store float32 values at a shared address and every `step` bytes (a literal) behind it."""
    apart = literal_of(step)
    if apart is None:
        return None

    def codegen(context, builder, sig, args):
        at = builder.trunc(context.cast(builder, args[0], sig.args[0], types.int64), I32)
        kind = ir.FunctionType(ir.VoidType(), [I32, F32])
        for i, value in enumerate(_lanes(builder, args[1])):
            statement = ir.InlineAsm(kind, "st.shared.f32 [$0], $1;", "r,f,~{memory}", side_effect=True)
            builder.call(statement, [_at(builder, at, i * apart), value])
        return context.get_dummy_value()

    return types.void(types.int64, values, step), codegen


@intrinsic(prefer_literal=True)
def flags(typingctx, word, lanes):
    """Bit number i of an int64, for each of so many lanes (a literal)."""
    count = literal_of(lanes)
    if count is None:
        return None

    def codegen(context, builder, sig, args):
        word = context.cast(builder, args[0], sig.args[0], types.int64)
        halves = [builder.trunc(builder.lshr(word, ir.Constant(I64, n)), I32) for n in (0, 32)]
        found = []
        for i in range(count):
            bit = builder.and_(halves[i // 32], ir.Constant(I32, 1 << i % 32 if i % 32 < 31 else -(1 << 31)))
            found.append(builder.icmp_unsigned("!=", bit, ir.Constant(I32, 0)))
        return _vector(builder, found)

    return Vector(types.boolean, count)(types.int64, lanes), codegen


@intrinsic
def store_two_rows(typingctx, values, at, left, T):
    """Store the values of two rows at their addresses, as T, the `left` first elements of each.

    `at` and `left`, vectors of two lanes, are those of the thread's first column.
    """
    dtype = T.instance_type

    def codegen(context, builder, sig, args):
        lanes, nbytes = _lanes(builder, args[0]), dtype.bitwidth // 8
        for row, (where, count) in enumerate(zip(_lanes(builder, args[1]), _lanes(builder, args[2]))):
            even = builder.icmp_unsigned(
                "==", builder.and_(where, ir.Constant(I64, 2 * nbytes - 1)), ir.Constant(I64, 0)
            )
            for j in range(len(lanes) // 4):
                pair = lanes[4 * j + 2 * row : 4 * j + 2 * row + 2]
                both = builder.icmp_signed(">", count, ir.Constant(I64, 8 * j + 1))
                place = builder.add(where, ir.Constant(I64, 8 * j * nbytes))
                with builder.if_else(builder.and_(even, both)) as (whole, apart):
                    with whole:
                        bits = to_memory(builder, dtype, _vector(builder, pair))
                        to = gep(context, builder, place, dtype, ir.Constant(I64, 0), 2)
                        builder.store(bits, to).align = 2 * nbytes
                    with apart:
                        for i in (0, 1):
                            with builder.if_then(builder.icmp_signed(">", count, ir.Constant(I64, 8 * j + i))):
                                to = gep(context, builder, place, dtype, ir.Constant(I64, i))
                                builder.store(to_memory(builder, dtype, pair[i]), to).align = alignment(dtype)
        return context.get_dummy_value()

    return types.void(values, at, left, T), codegen
