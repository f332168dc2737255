"""What products need on every GPU since sm_80: copies to shared memory that go on meanwhile, reads of several values of
it, products of what a thread holds, and of what a warp holds on its matrix units (PTX ISA 8.0, sections in brackets).

All names are for use inside jitted functions, in kernels for GPUs only. Addresses of shared memory are the 32-bit ones
of its own space.
"""

import struct

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from .ptx import F32, _statement, asm
from .tiles import _vector
from .vector import I32, Vector, call_llvm, literal_of

F64, I64 = ir.DoubleType(), ir.IntType(64)


def _copy(nbytes, cache):
    text = f"cp.async.{cache}.shared.global [$0], [$1], {nbytes}, no;"
    return _statement(
        f"copy_{nbytes}",
        "{\n.reg .pred no;\nsetp.eq.u32 no, $2, 0;\n" + text + "\n}",
        "rlr",
        f"""copy_{nbytes}(to, address, valid): start to copy {nbytes} bytes to a shared address; zeros if `valid` is 0
        (cp.async, 9.7.8.24.3.1).""",
    )


copy_4, copy_8, copy_16 = _copy(4, "ca"), _copy(8, "ca"), _copy(16, "cg")
commit_copies = _statement(
    "commit_copies", "cp.async.commit_group;", "", "What this thread started to copy since is a group (commit_group)."
)


@intrinsic(prefer_literal=True)
def wait_copies(typingctx, groups):
    """Wait until all groups of copies of this thread but the last `groups`, a literal, are there (wait_group)."""
    count = literal_of(groups)
    if count is None:
        return None

    def codegen(context, builder, sig, args):
        kind = ir.FunctionType(ir.VoidType(), [])
        text = f"cp.async.wait_group {count};"
        builder.call(ir.InlineAsm(kind, text, "~{memory}", side_effect=True), [])
        return context.get_dummy_value()

    return types.void(groups), codegen


def _lanes(builder, vector):
    return [builder.extract_element(vector, ir.Constant(I32, i)) for i in range(vector.type.count)]


@intrinsic(prefer_literal=True)
def load_shared(typingctx, at, T, width, count, step):
    """`count` times `width` neighbouring elements of type T, `step` bytes apart, from a shared address on, as a vector.

    The last three are literals; `width` elements are at a multiple of their bytes, 16 at most.
    """
    width_of, count_of, step_of = map(literal_of, (width, count, step))
    if None in (width_of, count_of, step_of):
        return None
    dtype = T.instance_type

    def codegen(context, builder, sig, args):
        at = builder.trunc(context.cast(builder, args[0], sig.args[0], types.int64), I32)
        element, letter = {types.float32: (F32, "f"), types.float64: (F64, "d"), types.uint32: (I32, "r")}[dtype]
        kind = f"{'u' if letter == 'r' else 'f'}{dtype.bitwidth}"
        found = []
        for i in range(count_of):
            registers = ", ".join(f"${k}" for k in range(width_of))
            text = f"ld.shared.{f'v{width_of}.' if width_of > 1 else ''}{kind} "
            text += f"{{{registers}}}" if width_of > 1 else registers
            text += f", [${width_of}+{i * step_of}];"
            result = ir.LiteralStructType([element] * width_of) if width_of > 1 else element
            constraints = ",".join([f"={letter}"] * width_of + ["r", "~{memory}"])
            statement = ir.InlineAsm(ir.FunctionType(result, [I32]), text, constraints, side_effect=True)
            value = builder.call(statement, [at])
            found += [builder.extract_value(value, k) for k in range(width_of)] if width_of > 1 else [value]
        return _vector(builder, found)

    return Vector(dtype, width_of * count_of)(at, T, width, count, step), codegen


@intrinsic
def settled(typingctx, at):
    """A shared address that the compiler takes as it is: places a known number of bytes behind it need no addition."""

    def codegen(context, builder, sig, args):
        at = builder.trunc(context.cast(builder, args[0], sig.args[0], types.int64), I32)
        return builder.zext(asm(builder, "mov.b32 $0, $1;", "=r,r", [at], I32), I64)

    return types.int64(at), codegen


@intrinsic(prefer_literal=True)
def load_quads(typingctx, at, count, step, bits):
    """`count` (a literal) times four float32, `step` bytes apart, from a global address on, as a vector.

    Addresses are multiples of 16. Zeros where the bit number i of `bits` is not set: nothing is read there.
    """
    count_of = literal_of(count)
    if count_of is None:
        return None

    def codegen(context, builder, sig, args):
        at, step, bits = (context.cast(builder, args[i], sig.args[i], types.int64) for i in (0, 2, 3))
        text = "{\n.reg .pred p;\nsetp.ne.b64 p, $5, 0;\n"
        text += "".join(f"mov.f32 ${k}, 0f00000000;\n" for k in range(4))
        text += "@p ld.global.v4.f32 {$0, $1, $2, $3}, [$4];\n}"
        kind, found = ir.FunctionType(ir.LiteralStructType([F32] * 4), [I64, I64]), []
        for i in range(count_of):
            wanted = builder.and_(bits, ir.Constant(I64, 1 << i))
            value = builder.call(ir.InlineAsm(kind, text, "=&f,=&f,=&f,=&f,l,l", side_effect=True), [at, wanted])
            found += [builder.extract_value(value, k) for k in range(4)]
            at = builder.add(at, step)
        return _vector(builder, found)

    return Vector(types.float32, 4 * count_of)(at, count, step, bits), codegen


def shared_stores(width, offsets):
    """A function (at, v) that stores `width` lanes of v in turn, so many bytes behind a shared address each."""

    @intrinsic
    def store_shared(typingctx, at, v):
        def codegen(context, builder, sig, args):
            at = builder.trunc(context.cast(builder, args[0], sig.args[0], types.int64), I32)
            lanes = _lanes(builder, args[1])
            size, letter = v.dtype.bitwidth, "f" if v.dtype.bitwidth == 32 else "d"
            registers = ", ".join(f"${k + 1}" for k in range(width))
            values = f"{{{registers}}}" if width > 1 else registers
            kind = ir.FunctionType(ir.VoidType(), [I32] + [lanes[0].type] * width)
            constraints = ",".join(["r"] + [letter] * width + ["~{memory}"])
            for i, offset in enumerate(offsets):
                text = f"st.shared.{f'v{width}.' if width > 1 else ''}f{size} [$0+{offset}], {values};"
                one = ir.InlineAsm(kind, text, constraints, side_effect=True)
                builder.call(one, [at, *lanes[i * width : (i + 1) * width]])
            return context.get_dummy_value()

        return types.void(at, v), codegen

    return store_shared


@intrinsic(prefer_literal=True)
def outer_product(typingctx, sums, column, row, turning):
    """sums[i * n + j] + column[i] * row[j], each with one rounding, for vectors; `row` has n lanes.

    `turning` (a literal): rows are multiplied from left to right and from right to left in turn, so that each product
    shares an operand with the one before.
    """
    wanted = literal_of(turning)
    if wanted is None:
        return None

    def codegen(context, builder, sig, args):
        totals, left, right = (_lanes(builder, v) for v in args[:3])
        found, n = [None] * len(totals), len(right)
        for i, one in enumerate(left):
            for j in reversed(range(n)) if wanted and i % 2 else range(n):
                at = i * n + j
                found[at] = call_llvm(builder, "llvm.fma", totals[at].type, [one, right[j], totals[at]])
        return _vector(builder, found)

    return sums(sums, column, row, turning), codegen


@intrinsic
def row_product(typingctx, row, matrix):
    """The sums over i of row[i] * matrix[i * n + j], a multiply-add for each; `matrix` has n times as many lanes."""
    n = matrix.lanes // row.lanes

    def codegen(context, builder, sig, args):
        left, right = (_lanes(builder, v) for v in args)
        found = [builder.fmul(left[0], value) for value in right[:n]]
        for i, value in enumerate(right[n:], n):
            found[i % n] = call_llvm(builder, "llvm.fma", value.type, [left[i // n], value, found[i % n]])
        return _vector(builder, found)

    return Vector(row.dtype, n)(row, matrix), codegen


@intrinsic
def multiply_doubles(typingctx, sums, a, b):
    """sums + a b of a warp for 8 of k, in float64 on the matrix units of sm_90 (mma.m16n8k8, 9.7.13.4.10).

    Thread number 4 g + t holds rows g + 8 i of a (lanes i) at k = t, then those at k = t + 4, and columns g + 8 j of b
    likewise; of each tile of 16 rows and 8 columns of the result four lanes: columns 2 t and 2 t + 1 of row g, then
    those of row g + 8. Tiles of the same rows follow one another.
    """

    def codegen(context, builder, sig, args):
        totals, left, right = (_lanes(builder, v) for v in args)
        rows, columns, out = len(left) // 2, len(right) // 2, []
        text = (
            "mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64 "
            "{$0, $1, $2, $3}, {$8, $9, $10, $11}, {$12, $13}, {$4, $5, $6, $7};"
        )
        kind = ir.FunctionType(ir.LiteralStructType([F64] * 4), [F64] * 10)
        statement = ir.InlineAsm(kind, text, ",".join(["=d"] * 4 + ["d"] * 10), side_effect=False)
        for i in range(0, rows, 2):
            for j in range(columns):
                values = totals[len(out) : len(out) + 4]
                values += [left[i], left[i + 1], left[rows + i], left[rows + i + 1], right[j], right[columns + j]]
                found = builder.call(statement, values, attrs=("convergent",))
                out += [builder.extract_value(found, k) for k in range(4)]
        return _vector(builder, out)

    return sums(sums, a, b), codegen


@intrinsic
def both(typingctx, a, b):
    """The lanes of two vectors, one after the other."""

    def codegen(context, builder, sig, args):
        return _vector(builder, _lanes(builder, args[0]) + _lanes(builder, args[1]))

    return Vector(a.dtype, a.lanes + b.lanes)(a, b), codegen


@intrinsic(prefer_literal=True)
def some_lanes(typingctx, v, number, count):
    """The lanes `count` * `number` and following of a vector; `count` is a literal, `number` is not."""
    width = literal_of(count)
    if width is None or width == v.lanes:
        return None

    def codegen(context, builder, sig, args):
        which = builder.trunc(context.cast(builder, args[1], sig.args[1], types.int64), I32)
        cases = [builder.append_basic_block(f"lanes{i}") for i in range(v.lanes // width)]
        end = builder.append_basic_block("taken")
        choice = builder.switch(which, cases[-1])
        found = []
        for i, case in enumerate(cases):
            if i < len(cases) - 1:
                choice.add_case(ir.Constant(I32, i), case)
            builder.position_at_end(case)
            lanes = [builder.extract_element(args[0], ir.Constant(I32, width * i + k)) for k in range(width)]
            found.append(_vector(builder, lanes))
            builder.branch(end)
        builder.position_at_end(end)
        out = builder.phi(found[0].type)
        for value, case in zip(found, cases):
            out.add_incoming(value, case)
        return out

    return Vector(v.dtype, width)(v, types.unliteral(number), count), codegen


@intrinsic
def words(typingctx, v):
    """The bits of a vector of 16-bit integers as 32-bit words."""

    def codegen(context, builder, sig, args):
        return builder.bitcast(args[0], ir.VectorType(I32, v.lanes // 2))

    return Vector(types.uint32, v.lanes // 2)(v), codegen


@intrinsic
def multiply_halves(typingctx, sums, a, a_below, b, T):
    """sums + a b of a warp for 32 of k, of 16-bit floats, on the matrix units (mma.m16n8k16, 9.7.13.4.8).

    Thread number 4 g + t holds words, two elements each: places 8 t to 8 t + 7 of k of the rows g and g + 8 of a, and
    of column g of b; of the result columns 2 t and 2 t + 1 of row g, then those of row g + 8.
    """
    kind = {"ic_bfloat16": "bf16", "ic_float16": "f16"}[T.instance_type.name]

    def codegen(context, builder, sig, args):
        totals, upper, lower, right = (_lanes(builder, v) for v in args[:4])
        text = (
            f"mma.sync.aligned.m16n8k16.row.col.f32.{kind}.{kind}.f32 "
            "{$0, $1, $2, $3}, {$8, $9, $10, $11}, {$12, $13}, {$4, $5, $6, $7};"
        )
        shape = ir.FunctionType(ir.LiteralStructType([F32] * 4), [F32] * 4 + [I32] * 6)
        statement = ir.InlineAsm(shape, text, ",".join(["=f"] * 4 + ["f"] * 4 + ["r"] * 6), side_effect=False)
        for i in (0, 2):  # the units' order of k does not matter, if it is the same for a and b
            values = [*totals, upper[i], lower[i], upper[i + 1], lower[i + 1], right[i], right[i + 1]]
            found = builder.call(statement, values, attrs=("convergent",))
            totals = [builder.extract_value(found, k) for k in range(4)]
        return _vector(builder, totals)

    return sums(sums, a, a_below, b, T), codegen


@intrinsic(prefer_literal=True)
def multiply_bytes(typingctx, sums, a, b, signed):
    """sums + a b of a warp for 32 of k, of bytes, on the matrix units (mma.m16n8k32, 9.7.13.4.10): int32.

    Thread number 4 g + t holds words of four bytes: quad t of k of the rows g and g + 8 of a, quad t + 4 of these, and
    both quads of column g of b; of the result columns 2 t and 2 t + 1 of row g, then those of row g + 8. Those of b are
    signed, and those of a where the literal `signed` is 1.
    """
    choice = literal_of(signed)
    if choice is None:
        return None

    def codegen(context, builder, sig, args):
        text = (
            f"mma.sync.aligned.m16n8k32.row.col.s32.{'s8' if choice else 'u8'}.s8.s32 "
            "{$0, $1, $2, $3}, {$8, $9, $10, $11}, {$12, $13}, {$4, $5, $6, $7};"
        )
        shape = ir.FunctionType(ir.LiteralStructType([I32] * 4), [I32] * 10)
        statement = ir.InlineAsm(shape, text, ",".join(["=r"] * 4 + ["r"] * 10), side_effect=False)
        values = [value for v in args[:3] for value in _lanes(builder, v)]
        found = builder.call(statement, values, attrs=("convergent",))
        return _vector(builder, [builder.extract_value(found, k) for k in range(4)])

    return sums(sums, a, b, signed), codegen


@intrinsic
def digits(typingctx, v):
    """Four float32 between -2^22 and 2^22, rounded to integers, as 65536 a + 256 b + c with a, b, c from -128 to 127:
    a word of the bytes a of all four, one of b, and one of c.
    """

    def codegen(context, builder, sig, args):
        def each(kind, value):
            return ir.Constant(ir.VectorType(kind, 4), [ir.Constant(kind, value)] * 4)

        # 1.5 * 2^23 + v has v in its lowest bits; half a digit more, bytes are digits plus 128
        bits = builder.bitcast(builder.fadd(args[0], each(F32, 12582912.0)), ir.VectorType(I32, 4))
        bits = builder.xor(builder.add(bits, each(I32, 0x808080 - 0x4B400000)), each(I32, 0x808080))
        own = builder.bitcast(bits, ir.VectorType(ir.IntType(8), 16))
        found = []
        for byte in (2, 1, 0):
            places = ir.Constant(ir.VectorType(I32, 4), [ir.Constant(I32, 4 * i + byte) for i in range(4)])
            found.append(builder.bitcast(builder.shuffle_vector(own, own, places), I32))
        return _vector(builder, found)

    return Vector(types.uint32, 3)(v), codegen


def twice(value, name):
    """The bits of a word of a number of a type of 16 bits, twice."""
    if name == "ic_bfloat16":
        bits = struct.unpack("I", struct.pack("f", value))[0] >> 16
    else:
        bits = struct.unpack("H", struct.pack("e", value))[0]
    return bits << 16 | bits


def _masked(builder, value, mask, base, inverted=False):
    """value & mask | base in one instruction (lop3, 9.7.7.6): of `and` and `or` with two constants ptxas makes two."""
    table = 0xAE if inverted else 0xEA  # of ~value, or value
    text = f"lop3.b32 $0, $1, $2, $3, {table};"
    return asm(builder, text, "=r,r,r,r", [value, ir.Constant(I32, mask), ir.Constant(I32, base)], I32)


@intrinsic(prefer_literal=True)
def spread_bytes(typingctx, word, zero, T):
    """The four bytes of a word minus `zero` (a literal), as 16-bit floats in two words; all are exact.

    Bytes become the low bits of floats of a fixed exponent. bfloat16 has one bit too few for that: the highest one
    decides what is subtracted, and `zero` is 128, unless bytes are below 128.
    """
    level = literal_of(zero)
    if level is None:
        return None
    name = T.instance_type.name

    def codegen(context, builder, sig, args):
        found = []
        for choice in (0x4140, 0x4342):
            halves = asm(builder, f"prmt.b32 $0, $1, 0, {choice};", "=r,r", [args[0]], I32)
            found.append(_spread(builder, halves, level, name))
        return _vector(builder, found)

    return Vector(types.uint32, 2)(types.uint32, zero, T), codegen


def _spread(builder, word, level, name):
    """The lower bytes of both halves of a word minus `level` as floats."""
    narrow = name == "ic_bfloat16"
    minus = ir.Constant(I32, twice((-128.0 if narrow else -1024.0) - level, name))
    if narrow and level == 128:
        minus = _masked(builder, word, 0x800080, 0xC300C300, inverted=True)
    value = _masked(builder, word, 0x7F007F if narrow else 0xFF00FF, twice(128.0 if narrow else 1024.0, name))
    text = f"fma.rn.{'bf16' if narrow else 'f16'}x2 $0, $1, $2, $3;"
    return asm(builder, text, "=r,r,r,r", [value, ir.Constant(I32, twice(1.0, name)), minus], I32)


@intrinsic(prefer_literal=True)
def spread_even_bytes(typingctx, word, zero, T):
    """As `spread_bytes`, but bytes 0 and 2 in one word, 1 and 3 in the other: a shift for all of them."""
    level = literal_of(zero)
    if level is None:
        return None
    name = T.instance_type.name

    def codegen(context, builder, sig, args):
        moved = builder.lshr(args[0], ir.Constant(I32, 8))
        return _vector(builder, [_spread(builder, word, level, name) for word in (args[0], moved)])

    return Vector(types.uint32, 2)(types.uint32, zero, T), codegen


@intrinsic(prefer_literal=True)
def lifted(typingctx, v, exponent):
    """Words of bfloat16 times 2^exponent (a literal), those of the second half of a vector times 1/16 of that."""
    power = literal_of(exponent)
    if power is None:
        return None

    def codegen(context, builder, sig, args):
        found, minus_zero = _lanes(builder, args[0]), ir.Constant(I32, 0x80008000)
        for i, word in enumerate(found):
            by = ir.Constant(I32, twice(2.0 ** (power - 4 * (2 * i >= len(found))), "ic_bfloat16"))
            text = "fma.rn.bf16x2 $0, $1, $2, $3;"
            found[i] = asm(builder, text, "=r,r,r,r", [word, by, minus_zero], I32)
        return _vector(builder, found)

    return v(v, exponent), codegen


@intrinsic
def even_first(typingctx, v):
    """16-bit elements of two words each (a vector of an even number) so that those of even places come first."""

    def codegen(context, builder, sig, args):
        found, values = [], _lanes(builder, args[0])
        for low, high in zip(values[::2], values[1::2]):
            for choice in ("0x5410", "0x7632"):
                found.append(asm(builder, f"prmt.b32 $0, $1, $2, {choice};", "=r,r,r", [low, high], I32))
        return _vector(builder, found)

    return v(v), codegen


@intrinsic
def two_halves(typingctx, word):
    """The two float16 of a word, each twice, as float32: (low, low, high, high)."""

    def codegen(context, builder, sig, args):
        pair = builder.bitcast(args[0], ir.VectorType(ir.HalfType(), 2))
        low, high = (builder.fpext(v, F32) for v in _lanes(builder, pair))
        return _vector(builder, [low, low, high, high])

    return Vector(types.float32, 4)(types.uint32), codegen
