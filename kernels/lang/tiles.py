"""Products of tiles on the matrix units of Hopper with operands in registers, and what a thread holds of their results.

A warpgroup's result of 64 rows has, in a thread, two rows (r = 16 * warp + lane / 4, and r + 8) and two neighbouring
columns of each eight: value number i lies in row i >> 1 & 1, column 8 * (i >> 2) + 2 * (lane & 3) + (i & 1). Numbers of
rows are vectors of two lanes. A product starts, and other work goes on until `settle`: nothing may touch its result or
its operands in registers before (wgmma, 9.7.14).

All names are for use inside jitted functions, in kernels for sm_90a only.
"""

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from .ptx import F32, _statement, asm, narrow_bfloat16
from .vector import I32, I64, Vector, literal_of

ROW_MAJOR, ACROSS = 0, 1  # where an operand lies in rows of k, or in rows across it
_KINDS = {"ic_bfloat16": "bf16", "ic_float16": "f16"}
PAIR = Vector(types.float32, 2)

clear_16 = _statement("clear_16", "st.shared.v2.b64 [$0], {0, 0};", "r", "Zero 16 bytes at a shared address.")


@intrinsic
def store_float(typingctx, at, value):
    """Store a float32 at a shared address."""

    def codegen(context, builder, sig, args):
        at = builder.trunc(context.cast(builder, args[0], sig.args[0], types.int64), I32)
        kind = ir.FunctionType(ir.VoidType(), [I32, F32])
        statement = ir.InlineAsm(kind, "st.shared.f32 [$0], $1;", "r,f,~{memory}", side_effect=True)
        builder.call(statement, [at, args[1]])
        return context.get_dummy_value()

    return types.void(at, types.float32), codegen


@intrinsic(prefer_literal=True)
def load_columns(typingctx, at, lanes):
    """The float32 numbers of the columns of so many values (a literal), from the shared address of a thread's first."""
    count = literal_of(lanes)
    if count is None:
        return None

    def codegen(context, builder, sig, args):
        at = builder.trunc(context.cast(builder, args[0], sig.args[0], types.int64), I32)
        kind, found = ir.FunctionType(ir.LiteralStructType([F32] * 2), [I32]), []
        for i in range(0, count, 4):
            text = f"ld.shared.v2.f32 {{$0, $1}}, [$2+{8 * i}];"
            both = builder.call(ir.InlineAsm(kind, text, "=f,=f,r,~{memory}", side_effect=True), [at])
            found += [builder.extract_value(both, k) for k in (0, 1)] * 2
        return _vector(builder, found)

    return Vector(types.float32, count)(at, lanes), codegen


def _lanes(builder, value):
    return [builder.extract_element(value, ir.Constant(I32, i)) for i in range(value.type.count)]


def _vector(builder, lanes):
    out = ir.Constant(ir.VectorType(lanes[0].type, len(lanes)), ir.Undefined)
    for i, value in enumerate(lanes):
        out = builder.insert_element(out, value, ir.Constant(I32, i))
    return out


def _changed(builder, value, text, more=(), fresh=0):
    """A statement that changes the lanes of a vector in registers, or makes `fresh` ones; `$2n` (or `$n`) is `more`."""
    lanes = _lanes(builder, value) if not fresh else []
    n = fresh or len(lanes)
    tied = ",".join(["=f"] * n + [str(i) for i in range(len(lanes))] + ["r" if v.type == I32 else "l" for v in more])
    kind = ir.FunctionType(ir.LiteralStructType([F32] * n), [v.type for v in (*lanes, *more)])
    call = builder.call(
        ir.InlineAsm(kind, text, f"{tied},~{{memory}}", side_effect=True), [*lanes, *more], attrs=("convergent",)
    )
    return _vector(builder, [builder.extract_value(call, i) for i in range(n)])


@intrinsic(prefer_literal=True)
def start(typingctx, sums, a, b, T, k, a_layout, b_layout, a_slab, b_slab):
    """Start sums + a b for 16 `k` of k, as one group. `sums` is a vector of n / 2 lanes, or n / 2 for sums of zero.

    `a` is a vector of words in registers, or, as `b`, a matrix descriptor of shared memory in swizzled rows of 128
    bytes: of k (`ROW_MAJOR`), 64 of k in a slab, or across it (`ACROSS`). The bytes of a slab are a literal.
    """
    steps, across = literal_of(k), (literal_of(a_layout), literal_of(b_layout))
    slabs = literal_of(a_slab), literal_of(b_slab)
    lanes = sums.lanes if isinstance(sums, Vector) else literal_of(sums)
    if None in (steps, lanes, *across, *slabs):
        return None
    words, kind = isinstance(a, Vector), _KINDS[T.instance_type.name]
    first = 2 * lanes if isinstance(sums, Vector) else lanes
    right = first + (a.lanes if words else 1)
    registers = ", ".join(f"${i}" for i in range(lanes))
    shape = f"wgmma.mma_async.sync.aligned.m64n{2 * lanes}k16.f32.{kind}.{kind}"
    # Of a descriptor the low word alone changes; sums of 64 bits, through carries, held up the first product.
    lines = ["{", ".reg .b64 da, db;", ".reg .b32 la, ha, lb, hb, lo;", ".reg .pred p;"]
    lines += [f"mov.b64 {{lb, hb}}, ${right};"] + ([] if words else [f"mov.b64 {{la, ha}}, ${first};"])
    lines.append("wgmma.fence.sync.aligned;")
    for i in range(steps):
        at = [128 * i if x else 2 * (i & 3) + (i >> 2) * (slab >> 4) for x, slab in zip(across, slabs)]
        lines.append(f"setp.ne.u32 p, {int(i > 0 or isinstance(sums, Vector))}, 0;")
        if words:
            left = "{" + ", ".join(f"${first + 4 * i + j}" for j in range(4)) + "}"
        else:
            left = "da"
            lines += [f"add.u32 lo, la, {at[0]};", "mov.b64 da, {lo, ha};"]
        lines += [f"add.u32 lo, lb, {at[1]};", "mov.b64 db, {lo, hb};"]
        turned = f"{across[1]}" if words else f"{across[0]}, {across[1]}"
        lines.append(f"{shape} {{{registers}}}, {left}, db, p, 1, 1, {turned};")
    text = "\n".join([*lines, "wgmma.commit_group.sync.aligned;", "}"])

    def codegen(context, builder, sig, args):
        place = context.cast(builder, args[2], sig.args[2], types.int64)
        more = _lanes(builder, args[1]) if words else [context.cast(builder, args[1], sig.args[1], types.int64)]
        fresh = 0 if isinstance(sums, Vector) else lanes
        return _changed(builder, args[0], text, [*more, place], fresh)

    result = Vector(types.float32, lanes)
    return result(sums, a, b, T, k, a_layout, b_layout, a_slab, b_slab), codegen


@intrinsic(prefer_literal=True)
def settle(typingctx, sums, pending):
    """The sums when all products but the `pending` last ones are done (wgmma.wait_group)."""
    count = literal_of(pending)
    if count is None:
        return None

    def codegen(context, builder, sig, args):
        return _changed(builder, args[0], f"wgmma.wait_group.sync.aligned {count};")

    return sums(sums, pending), codegen


@intrinsic(prefer_literal=True)
def settle_after(typingctx, sums, pending, words):
    """As `settle`, but what `words` need (of numbers that are not negative) is computed before.

    ptxas takes the wait for free, and would compute them behind it. So the wait stands behind a trap that never comes,
    of which ptxas knows nothing: no bits of such numbers are all ones. The branch has its price: behind it ptxas takes
    the threads of a warp for scattered, and makes descriptors by way of their registers.
    """
    count = literal_of(pending)
    if count is None:
        return None

    def codegen(context, builder, sig, args):
        n, lanes = sums.lanes, _lanes(builder, args[2])
        lines = ["{", ".reg .pred p;", ".reg .b32 all;", f"mov.b32 all, ${2 * n};"]
        lines += [f"or.b32 all, all, ${2 * n + i};" for i in range(1, len(lanes))]
        lines += ["setp.eq.u32 p, all, -1;", "@p trap;", f"wgmma.wait_group.sync.aligned {count};", "}"]
        return _changed(builder, args[0], "\n".join(lines), lanes)

    return sums(sums, pending, words), codegen


@intrinsic
def hold(typingctx, words):
    """Keep words in their registers until here: a product reads them."""

    def codegen(context, builder, sig, args):
        lanes = _lanes(builder, args[0])
        kind = ir.FunctionType(ir.VoidType(), [I32] * len(lanes))
        builder.call(ir.InlineAsm(kind, "", ",".join(["r"] * len(lanes)), side_effect=True), lanes)
        return context.get_dummy_value()

    return types.void(words), codegen


@intrinsic
def pair(typingctx, x, y):
    """The numbers of two rows."""
    kind = types.unliteral(x)

    def codegen(context, builder, sig, args):
        return _vector(builder, [context.cast(builder, v, t, kind) for v, t in zip(args, sig.args)])

    return Vector(kind, 2)(x, y), codegen


@intrinsic(prefer_literal=True)
def spread(typingctx, rows, lanes):
    """The number of its row, for each of so many values (a literal)."""
    count = literal_of(lanes)
    if count is None:
        return None

    def codegen(context, builder, sig, args):
        both = _lanes(builder, args[0])
        return _vector(builder, [both[i >> 1 & 1] for i in range(count)])

    return Vector(rows.dtype, count)(rows, lanes), codegen


@intrinsic(prefer_literal=True)
def columns(typingctx, lanes):
    """The columns of so many values (a literal), of the first thread of four."""
    count = literal_of(lanes)
    if count is None:
        return None

    def codegen(context, builder, sig, args):
        return ir.Constant(ir.VectorType(I32, count), [8 * (i >> 2) + (i & 1) for i in range(count)])

    return Vector(types.int32, count)(lanes), codegen


def _folded(builder, value, join):
    """The values of each row joined in four chains."""
    found, lanes = [], _lanes(builder, value)
    for row in range(2):
        own = [x for i, x in enumerate(lanes) if i >> 1 & 1 == row]
        chains = own[:4]
        for i, x in enumerate(own[4:]):
            chains[i % 4] = join(chains[i % 4], x)
        while len(chains) > 1:
            chains = [join(x, y) for x, y in zip(chains[::2], chains[1::2])]
        found.append(chains[0])
    return found


def _larger(builder):
    kind = ir.FunctionType(F32, [F32, F32])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.maximum.f32")
    return lambda x, y: builder.call(function, [x, y])


def _joined(builder, rows, join):
    """The numbers of rows joined over the four threads that have them."""
    kind = ir.FunctionType(F32, [I32, F32, I32, I32])
    exchange = cgutils.get_or_insert_function(builder.module, kind, "llvm.nvvm.shfl.sync.bfly.f32")
    for apart in (1, 2):
        by = ir.Constant(I32, -1), ir.Constant(I32, apart), ir.Constant(I32, 31)
        rows = [join(x, builder.call(exchange, [by[0], x, *by[1:]])) for x in rows]
    return _vector(builder, rows)


@intrinsic
def row_max(typingctx, values):
    """The largest value of each row; NaN if one is."""

    def codegen(context, builder, sig, args):
        join = _larger(builder)
        return _joined(builder, _folded(builder, args[0], join), join)

    return PAIR(values), codegen


@intrinsic
def own_sum(typingctx, values):
    """The sums over a thread's own values of each row."""

    def codegen(context, builder, sig, args):
        return _vector(builder, _folded(builder, args[0], builder.fadd))

    return PAIR(values), codegen


@intrinsic
def row_sum(typingctx, rows):
    """The sums of such sums over the threads of a row."""

    def codegen(context, builder, sig, args):
        return _joined(builder, _lanes(builder, args[0]), builder.fadd)

    return PAIR(rows), codegen


@intrinsic
def exp2(typingctx, x):
    """2^x of a vector within 2 ulp, subnormals as zeros: one instruction (ex2, 9.7.3.21)."""

    def codegen(context, builder, sig, args):
        text = "ex2.approx.ftz.f32 $0, $1;"
        return _vector(builder, [asm(builder, text, "=f,f", [v], F32) for v in _lanes(builder, args[0])])

    return x(x), codegen


@intrinsic
def narrow(typingctx, values, T):
    """float32 values rounded to T, as the words of the left operand of a product."""
    dtype, count = T.instance_type, values.lanes

    def codegen(context, builder, sig, args):
        if _KINDS[dtype.name] == "bf16":
            return builder.bitcast(narrow_bfloat16(builder, args[0]), ir.VectorType(I32, count // 2))
        return _vector(builder, _halves(builder, _lanes(builder, args[0])))

    return Vector(types.int32, count // 2)(values, T), codegen


def _halves(builder, lanes):
    text = "cvt.rn.f16x2.f32 $0, $1, $2;"
    return [asm(builder, text, "=r,f,f", [lanes[i + 1], lanes[i]], I32) for i in range(0, len(lanes), 2)]


@intrinsic
def store_rows(typingctx, words, at, left):
    """Store the words of two rows of 16-bit values at their addresses, the `left` first elements of each.

    `at` and `left` are those of the thread's first column. A row whose address is no multiple of 4 takes two accesses
    for a word.
    """

    def codegen(context, builder, sig, args):
        lanes = _lanes(builder, args[0])
        for row, (where, count) in enumerate(zip(_lanes(builder, args[1]), _lanes(builder, args[2]))):
            own = [word for i, word in enumerate(lanes) if i & 1 == row]
            even = builder.icmp_signed("==", builder.and_(where, ir.Constant(I64, 3)), ir.Constant(I64, 0))
            with builder.if_else(even) as (whole, halves):
                for branch, text in (
                    (whole, "st.global.b32 [$0+{0}], $1;"),
                    (halves, "{{\n.reg .b16 l, h;\nmov.b32 {{l, h}}, $1;\nst.global.b16 [$0+{0}], l;\n"
                     "st.global.b16 [$0+{0}+2], h;\n}}"),
                ):  # fmt: skip
                    with branch:
                        for j, word in enumerate(own):
                            with builder.if_then(builder.icmp_signed(">", count, ir.Constant(I64, 8 * j))):
                                kind = ir.FunctionType(ir.VoidType(), [I64, I32])
                                statement = ir.InlineAsm(kind, text.format(16 * j), "l,r,~{memory}", side_effect=True)
                                builder.call(statement, [where, word])
        return context.get_dummy_value()

    return types.void(words, at, left), codegen
