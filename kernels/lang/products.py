"""Products of tiles on the matrix units of Hopper whose operands lie in shared memory, for any type the units have.

A warpgroup's sums of 64 x n are n / 2 lanes of 32 bits in each of its threads: float32, or int32 for integers. Both
operands lie in swizzled rows of 128 bytes, of k, or, of 16-bit floats, across it; what follows is the same for all
types, which differ in how many of k a row has. Sections in brackets are those of PTX ISA 8.0.

All names are for use inside jitted functions, in kernels for sm_90a only.
"""

from typing import NamedTuple

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from .memory import from_memory
from .ptx import F32
from .vector import I32, I64, Vector, literal_of, memory_type


class _Kind(NamedTuple):
    """How the units call a type of operands, how many of k they take at a time, and the type of sums."""

    name: str
    depth: int
    sums: types.Type = types.float32


KINDS = {
    "float32": _Kind("tf32", 8),
    "ic_bfloat16": _Kind("bf16", 16),
    "ic_float16": _Kind("f16", 16),
    "ic_float8_e4m3": _Kind("e4m3", 32),
    "int8": _Kind("s8", 32, types.int32),
}
ROW = 128  # bytes of k of an operand
PROMOTED = 192  # lanes for sums of e4m3 and, beside them, of what is added up at a time: all columns, or 128


def _kind(T):
    return KINDS[T.instance_type.name]


def _letter(kind):
    """How constraints of inline PTX call a register of an LLVM type."""
    return "f" if kind == F32 else "r"


def _statement(builder, result, text, constraints, args, **options):
    kind = ir.FunctionType(result, [a.type for a in args])
    return builder.call(ir.InlineAsm(kind, text, f"{constraints},~{{memory}}", side_effect=True), args, **options)


def _vector(builder, kind, values):
    out = ir.Constant(kind, ir.Undefined)
    for i in range(kind.count):
        out = builder.insert_element(out, builder.extract_value(values, i), ir.Constant(I32, i))
    return out


def _change(builder, sums, text, more=(), constraints=""):
    """A statement that changes the lanes of a vector in registers; `$2n` is the first of `more`."""
    n, kind = sums.type.count, sums.type.element
    lanes = [builder.extract_element(sums, ir.Constant(I32, i)) for i in range(n)]
    tied = ",".join([f"={_letter(kind)}"] * n + [str(i) for i in range(n)])
    result = ir.LiteralStructType([kind] * n)
    found = _statement(builder, result, text, tied + constraints, [*lanes, *more], attrs=("convergent",))
    return _vector(builder, sums.type, found)


@intrinsic(prefer_literal=True)
def no_sums(typingctx, T, lanes):
    """So many zeros (a literal), to which products of `T` are added."""
    count = literal_of(lanes)
    if count is None:
        return None
    kind = Vector(_kind(T).sums, count)

    def codegen(context, builder, sig, args):
        return ir.Constant(context.get_value_type(kind), None)

    return kind(T, lanes), codegen


def _products(operation, registers, right, scale, more, steps):
    """Lines for the four products of 128 bytes of k; the first adds to the registers if the predicate `scale` is true.

    `right` is what columns lie behind the second descriptor, and `steps` are those of 32 bytes of k for both, in units
    of 16 bytes; `more` are the operands behind.
    """
    lines = ["mov.b64 da, $A;", f"add.s64 db, $B, {right};", "wgmma.fence.sync.aligned;"]
    for k in range(4):
        operands = ", ".join(["da", "db", "yes" if k else scale, *map(str, more)])
        lines.append(f"{operation} {{{', '.join(registers)}}}, {operands};")
        if k < 3:
            lines += [f"add.s64 da, da, {steps[0]};", f"add.s64 db, db, {steps[1]};"]
    return [*lines, "wgmma.commit_group.sync.aligned;"]


def _text(kind, n, across):
    """The statement of `multiply_tiles` for n sums of a thread."""
    more = () if kind.sums == types.int32 else (1, 1, *across) if kind.depth == 16 else (1, 1)
    steps = [128 if x else 2 for x in across]
    lines = ["{", ".reg .b64 da, db;", ".reg .pred yes, no;", "setp.eq.u32 yes, 0, 0;", "setp.ne.u32 no, 0, 0;"]
    total = "s32" if kind.sums == types.int32 else "f32"
    name = f"wgmma.mma_async.sync.aligned.m64n{{}}k{kind.depth}.{total}.{kind.name}.{kind.name}"
    if kind.name == "e4m3":
        columns = 2 * n if 2 * n <= PROMOTED else 128
        part = [f"part{i}" for i in range(columns // 2)]
        lines.append(f".reg .f32 {', '.join(part)};")
        for first in range(0, 2 * n, columns):
            lines += _products(name.format(columns), part, first * ROW // 16, "no", more, steps)
            lines.append("wgmma.wait_group.sync.aligned 0;")
            lines += [f"add.f32 ${i}, ${i}, {x};" for i, x in enumerate(part, first // 2)]
    else:
        lines += _products(name.format(2 * n), [f"${i}" for i in range(n)], 0, "yes", more, steps)
        lines.append("wgmma.wait_group.sync.aligned 1;")
    return "\n".join([*lines, "}"]).replace("$A", f"${2 * n}").replace("$B", f"${2 * n + 1}")


@intrinsic(prefer_literal=True)
def multiply_tiles(typingctx, sums, a, b, T, a_across, b_across):
    """sums + a b of a warpgroup for 128 bytes of k, as started; all but the last such product are done (wgmma, 9.7.14).

    `sums` are the n / 2 lanes that a thread has of a tile of 64 x n, a and b matrix descriptors of operands of `T`, in
    rows of k, or, of 16-bit floats, across it (literals 1). Of float32 the units see the 19 bits of TF32. Of e4m3 they
    add with 14 bits, so what they make of 128 of k is added to float32 sums, and is done. (With barriers that let two
    warpgroups take turns, as attention has them, 8192^3 took 979 us instead of 968.)
    """
    across = literal_of(a_across), literal_of(b_across)
    if None in across:
        return None
    text = _text(_kind(T), sums.lanes, across)

    def codegen(context, builder, sig, args):
        places = [context.cast(builder, v, t, types.int64) for v, t in zip(args[1:3], sig.args[1:3])]
        return _change(builder, args[0], text, places, ",l,l")

    return sums(sums, a, b, T, a_across, b_across), codegen


@intrinsic
def finish_products(typingctx, sums):
    """The sums when all products that were started are done (wgmma.wait_group)."""

    def codegen(context, builder, sig, args):
        return _change(builder, args[0], "wgmma.wait_group.sync.aligned 0;")

    return sums(sums), codegen


@intrinsic
def store_sums(typingctx, sums, piece, at, turn):
    """Store the 64 columns number `piece` of a warp's 16 rows of sums at a shared address, 256 bytes a row.

    The 32 bytes number j of row i lie at place j ^ (i & 7), so that neither rows nor columns meet in a bank; `turn` is
    32 * (i & 7) of this thread's rows, and `at` its place in the first one.
    """

    def codegen(context, builder, sig, args):
        value, turn = args[0], builder.trunc(context.cast(builder, args[3], sig.args[3], types.int64), I32)
        at = builder.trunc(context.cast(builder, args[2], sig.args[2], types.int64), I32)
        piece = builder.trunc(context.cast(builder, args[1], sig.args[1], types.int64), I32)
        letter = _letter(value.type.element)
        end = builder.append_basic_block("stored")
        cases = [builder.append_basic_block(f"piece{p}") for p in range(sums.lanes // 32)]
        choice = builder.switch(piece, cases[-1])
        for p, case in enumerate(cases):
            if p < len(cases) - 1:
                choice.add_case(ir.Constant(I32, p), case)
            builder.position_at_end(case)
            for j in range(8):
                where = builder.add(at, builder.xor(turn, ir.Constant(I32, 32 * j)))
                for low in (0, 2):  # this row, and the eighth after it
                    pair = [builder.extract_element(value, ir.Constant(I32, 32 * p + 4 * j + low + i)) for i in (0, 1)]
                    text = f"st.shared.v2.b32 [$0+{1024 * low}], {{$1, $2}};"
                    _statement(builder, ir.VoidType(), text, f"r,{letter},{letter}", [where, *pair])
            builder.branch(end)
        builder.position_at_end(end)
        return context.get_dummy_value()

    return types.void(sums, piece, at, turn), codegen


@intrinsic(prefer_literal=True)
def store_pairs(typingctx, words, first, at, turn):
    """Store 128 columns of a warp's 16 rows, two 16-bit values a word from word `first` (a literal) on, at a shared
    address, 256 bytes a row.

    The 16 bytes number j of row i lie at place j ^ (i & 7); `turn` is 16 * (i & 7) of this thread's rows, and `at` its
    place in the first one.
    """
    start = literal_of(first)
    if start is None:
        return None

    def codegen(context, builder, sig, args):
        at, turn = (builder.trunc(context.cast(builder, args[i], sig.args[i], types.int64), I32) for i in (2, 3))
        for j in range(16):
            where = builder.add(at, builder.xor(turn, ir.Constant(I32, 16 * j)))
            for low in (0, 1):  # this row, and the eighth after it
                word = builder.extract_element(args[0], ir.Constant(I32, start + 2 * j + low))
                text = f"st.shared.b32 [$0+{2048 * low}], $1;"
                _statement(builder, ir.VoidType(), text, "r,r", [where, word])
        return context.get_dummy_value()

    return types.void(words, first, at, turn), codegen


@intrinsic
def add_columns(typingctx, sums, at, most, T):
    """The sums of a thread plus what belongs to their columns: `at` is the address of the first two of type `T`, of 16
    bits, and `most` how many bytes behind it the last ones lie that are there.
    """
    dtype = T.instance_type

    def codegen(context, builder, sig, args):
        out, (at, most) = args[0], (context.cast(builder, args[i], sig.args[i], types.int64) for i in (1, 2))
        kind = ir.VectorType(memory_type(dtype), 2)
        for j in range(sums.lanes // 4):
            offset = ir.Constant(I64, 16 * j)
            offset = builder.select(builder.icmp_signed("<", offset, most), offset, most)
            pair = builder.load(builder.inttoptr(builder.add(at, offset), kind.as_pointer()), align=4)
            pair = from_memory(builder, dtype, pair)
            for i in range(4):
                lane, place = builder.extract_element(pair, ir.Constant(I32, i & 1)), ir.Constant(I32, 4 * j + i)
                out = builder.insert_element(out, builder.fadd(builder.extract_element(out, place), lane), place)
        return out

    return sums(sums, at, most, T), codegen


@intrinsic
def times_rows(typingctx, sums, one, two):
    """The sums as float32 times a number for the first of this thread's two rows, and one for the second."""
    count, kind = sums.lanes, Vector(types.float32, sums.lanes)

    def codegen(context, builder, sig, args):
        value = args[0]
        if sums.dtype != types.float32:
            value = builder.sitofp(value, context.get_value_type(kind))
        out = ir.Constant(value.type, ir.Undefined)
        for i in range(count):
            lane = builder.fmul(builder.extract_element(value, ir.Constant(I32, i)), args[1 + (i >> 1 & 1)])
            out = builder.insert_element(out, lane, ir.Constant(I32, i))
        return out

    return kind(sums, types.float32, types.float32), codegen


@intrinsic
def load_sums(typingctx, at, T):
    """Four sums, of 32 bits as `T` has them in registers, at a shared address, 16-byte aligned."""
    kind = Vector(types.int32 if T.instance_type == types.int32 else types.float32, 4)

    def codegen(context, builder, sig, args):
        at = builder.trunc(context.cast(builder, args[0], sig.args[0], types.int64), I32)
        result = context.get_value_type(kind)
        many, letter = ir.LiteralStructType([result.element] * 4), f"={_letter(result.element)},"
        text = "ld.shared.v4.b32 {$0, $1, $2, $3}, [$4];"
        return _vector(builder, result, _statement(builder, many, text, f"{4 * letter}r", [at]))

    return kind(at, T), codegen
