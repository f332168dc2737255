"""What GPUs have and vectors of LLVM do not: places of threads, barriers, shared memory, exchange within a warp, and
single instructions. All inline PTX of the house is here, in `mma.py`, `fragments.py`, `products.py` and `tiles.py`
(PTX ISA 8.0, sections named in brackets).

All names are for use inside jitted functions, in kernels for GPUs only.
"""

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from .vector import I8, I32, I64, Vector, literal_of, splat

F32, I16 = ir.FloatType(), ir.IntType(16)
SHARED = 3  # the address space
WARP = 32


def asm(builder, text, constraints, args, result):
    """One statement of inline PTX that has no effect but its result."""
    kind = ir.FunctionType(result, [a.type for a in args])
    return builder.call(ir.InlineAsm(kind, text, constraints, side_effect=False), args)


def _register(name, doc):
    @intrinsic
    def function(typingctx):
        def codegen(context, builder, sig, args):
            kind = ir.FunctionType(I32, [])
            symbol = f"llvm.nvvm.read.ptx.sreg.{name}"
            return builder.zext(builder.call(cgutils.get_or_insert_function(builder.module, kind, symbol), []), I64)

        return types.int64(), codegen

    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc
    return function


thread = _register("tid.x", "The number of this thread in its block.")
threads = _register("ntid.x", "How many threads a block has.")
block = _register("ctaid.x", "The number of this thread's block.")
blocks = _register("nctaid.x", "How many blocks the launch has.")


@intrinsic
def barrier(typingctx):
    """Wait for all threads of the block; what they wrote before is seen by all."""

    def codegen(context, builder, sig, args):
        kind = ir.FunctionType(ir.VoidType(), [])
        builder.call(cgutils.get_or_insert_function(builder.module, kind, "llvm.nvvm.barrier0"), [])
        return context.get_dummy_value()

    return types.void(), codegen


@intrinsic(prefer_literal=True)
def shared(typingctx, nbytes):
    """The address of `nbytes` (a literal) that the threads of a block share, 16-byte aligned."""
    size = literal_of(nbytes)
    if size is None:
        return None

    def codegen(context, builder, sig, args):
        name = builder.module.get_unique_name("shared")
        memory = ir.GlobalVariable(builder.module, ir.ArrayType(I8, size), name, addrspace=SHARED)
        memory.linkage, memory.align = "internal", 16
        memory.initializer = ir.Constant(memory.value_type, ir.Undefined)
        generic = builder.addrspacecast(memory, ir.ArrayType(I8, size).as_pointer())
        return builder.ptrtoint(generic, I64)

    return types.int64(nbytes), codegen


def _words(builder, value):
    """A number of 32 or 64 bits as 32-bit words."""
    bits = value.type.width if isinstance(value.type, ir.IntType) else 64 if value.type == ir.DoubleType() else 32
    number = builder.bitcast(value, ir.IntType(bits))
    if bits <= 32:
        return [builder.zext(number, I32) if bits < 32 else number]
    return [builder.trunc(builder.lshr(number, ir.Constant(number.type, 32 * k)), I32) for k in range(2)]


def _number(builder, words, kind):
    """The number of LLVM type `kind` in 32-bit words."""
    bits = kind.width if isinstance(kind, ir.IntType) else 64 if kind == ir.DoubleType() else 32
    value = words[0]
    if bits < 32:
        value = builder.trunc(value, ir.IntType(bits))
    if len(words) == 2:
        low, high = (builder.zext(w, I64) for w in words)
        value = builder.or_(low, builder.shl(high, ir.Constant(I64, 32)))
    return builder.bitcast(value, kind)


def _exchange(name, mode, clamp, doc):
    """An intrinsic of (v, by): numbers (or lanes of vectors) of another thread of the warp (shfl.sync, 9.7.8.6)."""

    def code(context, builder, sig, args):
        by = builder.trunc(context.cast(builder, args[1], sig.args[1], types.int64), I32)
        kind = ir.FunctionType(I32, [I32] * 4)
        exchange = cgutils.get_or_insert_function(builder.module, kind, f"llvm.nvvm.shfl.sync.{mode}.i32")
        every, last = ir.Constant(I32, -1), ir.Constant(I32, clamp)

        def one(values):
            (value,) = values
            boolean = value.type == ir.IntType(1)
            number = builder.zext(value, I32) if boolean else value
            words = [builder.call(exchange, [every, word, by, last]) for word in _words(builder, number)]
            number = _number(builder, words, number.type)
            return builder.trunc(number, ir.IntType(1)) if boolean else number

        return _by_lanes(builder, args[:1], one)

    @intrinsic
    def function(typingctx, v, by):
        return types.unliteral(v)(types.unliteral(v), by), code

    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc
    return function


from_lane = _exchange(
    "from_lane",
    "bfly",
    WARP - 1,
    """The value of the thread whose number in the warp differs by the bits of `by`; all threads of a warp ask.

    `v` is a number or a vector.
    """,
)
from_below = _exchange(
    "from_below", "up", 0, "The same of the thread `by` places below in the warp; the first ones keep theirs."
)
from_place = _exchange("from_place", "idx", WARP - 1, "The same of the thread number `by` of the warp.")


@intrinsic
def peek(typingctx, address):
    """The int64 at an address of memory that other blocks write meanwhile, as a whole (ld.relaxed, 9.7.9.8)."""

    def codegen(context, builder, sig, args):
        at = context.cast(builder, args[0], sig.args[0], types.int64)
        kind = ir.FunctionType(I64, [I64])
        text = "ld.relaxed.gpu.b64 $0, [$1];"
        return builder.call(ir.InlineAsm(kind, text, "=l,l,~{memory}", side_effect=True), [at])

    return types.int64(address), codegen


@intrinsic
def post(typingctx, address, value):
    """Store an int64 that other blocks read meanwhile (st.relaxed, 9.7.9.12)."""

    def codegen(context, builder, sig, args):
        values = [context.cast(builder, v, t, types.int64) for v, t in zip(args, sig.args)]
        kind = ir.FunctionType(ir.VoidType(), [I64, I64])
        text = "st.relaxed.gpu.b64 [$0], $1;"
        builder.call(ir.InlineAsm(kind, text, "l,l,~{memory}", side_effect=True), values)
        return context.get_dummy_value()

    return types.void(address, value), codegen


_BIT = """setp.lt.s32 p, bits, 0;
vote.sync.ballot.b32 {found}, p, -1;
@!p not.b32 {found}, {found};
add.u32 bits, bits, bits;
"""  # those whose highest bit is as this thread's


def _votes(count):
    """The votes on the lowest bits of $1, from the highest of them on, joined with $0 by pairs: 4.5 instructions each.

    Bits that were tested where they are would all become predicates at once (R2P), 3.8 instructions each, for which
    ptxas does not find registers in kernels that have others.
    """
    found, text = ("found", "other"), f"mov.b32 $0, -1;\nshl.b32 bits, $1, {32 - count};\n"
    for k in range(count):
        text += _BIT.format(found=found[k % 2])
        if k % 2:
            text += "lop3.b32 $0, $0, found, other, 0x80;\n"
    return text + ("and.b32 $0, $0, found;\n" if count % 2 else "")


@intrinsic(prefer_literal=True)
def alike_bits(typingctx, number, bits):
    """Bits of the threads of the warp that have the same number of so many bits (a literal), by a vote on each bit.

    `match.any` would take a turn for each of 32 numbers that differ (vote.sync, 9.7.12.7).
    """
    count = literal_of(bits)
    if count is None:
        return None

    def codegen(context, builder, sig, args):
        value = builder.trunc(context.cast(builder, args[0], sig.args[0], types.int64), I32)
        text = f"// votes\n{{\n.reg .pred p;\n.reg .b32 bits, found, other;\n{_votes(count)}}}"
        kind = ir.FunctionType(I32, [I32])
        found = builder.call(ir.InlineAsm(kind, text, "=&r,r", side_effect=True), [value], attrs=("convergent",))
        return builder.zext(found, I64)

    return types.int64(number, bits), codegen


@intrinsic
def voted(typingctx, condition):
    """Bits of the threads of the warp for which a condition is true (vote.ballot, 9.7.12.7)."""

    def codegen(context, builder, sig, args):
        kind = ir.FunctionType(I32, [I32, ir.IntType(1)])
        ballot = cgutils.get_or_insert_function(builder.module, kind, "llvm.nvvm.vote.ballot.sync")
        value = context.cast(builder, args[0], sig.args[0], types.boolean)
        return builder.zext(builder.call(ballot, [ir.Constant(I32, -1), value]), I64)

    return types.int64(condition), codegen


@intrinsic
def atomic_add(typingctx, address, value):
    """Add to the int64 at an address, whatever other threads add there meanwhile (atom.add, 9.7.12.4)."""

    def codegen(context, builder, sig, args):
        at, number = (context.cast(builder, arg, kind, types.int64) for arg, kind in zip(args, sig.args))
        builder.atomic_rmw("add", builder.inttoptr(at, I64.as_pointer()), number, "monotonic")
        return context.get_dummy_value()

    return types.void(address, value), codegen


@intrinsic
def atomic_count(typingctx, address):
    """Add 1 to the int32 at an address of shared memory, whatever other threads add meanwhile (atom.add, 9.7.12.4)."""

    def codegen(context, builder, sig, args):
        at = builder.inttoptr(context.cast(builder, args[0], sig.args[0], types.int64), I32.as_pointer())
        at = builder.addrspacecast(at, ir.PointerType(I32, addrspace=SHARED))  # of any memory it would be a branch
        builder.atomic_rmw("add", at, ir.Constant(I32, 1), "monotonic")
        return context.get_dummy_value()

    return types.void(address), codegen


@intrinsic
def atomic_place(typingctx, address):
    """The same, and what was there before: who asks first is the first."""

    def codegen(context, builder, sig, args):
        at = builder.inttoptr(context.cast(builder, args[0], sig.args[0], types.int64), I32.as_pointer())
        at = builder.addrspacecast(at, ir.PointerType(I32, addrspace=SHARED))
        return builder.zext(builder.atomic_rmw("add", at, ir.Constant(I32, 1), "monotonic"), I64)

    return types.int64(address), codegen


def _asking(name, text, doc, operand):
    """An intrinsic without or with the address of an int64 as its operand that asks for what changes by itself."""

    def code(context, builder, sig, args):
        values = [context.cast(builder, v, kind, types.int64) for v, kind in zip(args, sig.args)]
        statement = ir.InlineAsm(
            ir.FunctionType(I64, [I64] * len(values)), text, "=l,l,~{memory}" if operand else "=l,~{memory}", True
        )
        return builder.call(statement, values)

    def with_operand(typingctx, at):
        return types.int64(at), code

    def without(typingctx):
        return types.int64(), code

    function = intrinsic(with_operand if operand else without)
    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc
    return function


load_of_system = _asking(
    "load_of_system",
    "ld.acquire.sys.u64 $0, [$1];",
    "The int64 at an address, to which others store by `store_to_system`: what they stored before is seen from then on "
    "(ld, 9.7.8.8).",
    True,
)


def _telling(name, text, doc):
    """An intrinsic that stores two int64 at an address of another GPU's memory."""

    def function(typingctx, address, low, high):
        def codegen(context, builder, sig, args):
            values = [context.cast(builder, v, t, types.int64) for v, t in zip(args, sig.args)]
            kind = ir.FunctionType(ir.VoidType(), [I64] * 3)
            builder.call(ir.InlineAsm(kind, text, "l,l,l,~{memory}", side_effect=True), values)
            return context.get_dummy_value()

        return types.void(address, low, high), codegen

    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc
    return intrinsic(function)


def _looking(name, text, doc):
    """An intrinsic that loads two int64 at an address to which another GPU stores."""

    def function(typingctx, address):
        def codegen(context, builder, sig, args):
            at = context.cast(builder, args[0], sig.args[0], types.int64)
            kind = ir.FunctionType(ir.LiteralStructType([I64] * 2), [I64])
            found = builder.call(ir.InlineAsm(kind, text, "=l,=l,l,~{memory}", side_effect=True), [at])
            pair = ir.Constant(ir.VectorType(I64, 2), ir.Undefined)
            for i in range(2):
                pair = builder.insert_element(pair, builder.extract_value(found, i), ir.Constant(I32, i))
            return pair

        return Vector(types.int64, 2)(address), codegen

    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc
    return intrinsic(function)


tell_pair = _telling(
    "tell_pair",
    "st.relaxed.sys.global.v2.b64 [$0], {$1, $2};",
    "Store two int64 at an address of another GPU's memory, each as a whole (st.relaxed.sys, 9.7.9.12).",
)
look_at_pair = _looking(
    "look_at_pair",
    "ld.relaxed.sys.global.v2.b64 {$0, $1}, [$2];",
    "The two int64 at an address, to which another GPU stores by `tell_pair` (ld.relaxed.sys, 9.7.9.8).",
)
tell_packet = _telling(
    "tell_packet",
    "{\n.reg .b128 packet;\nmov.b128 packet, {$1, $2};\nst.relaxed.sys.global.b128 [$0], packet;\n}",
    "Store two int64 at an address of another GPU's memory, both as one whole (PTX 8.4: st.relaxed.sys of .b128).",
)
look_at_packet = _looking(
    "look_at_packet",
    "{\n.reg .b128 packet;\nld.relaxed.sys.global.b128 packet, [$2];\nmov.b128 {$0, $1}, packet;\n}",
    "The two int64 at an address, to which another GPU stores by `tell_packet`: of one and the same store.",
)
nanoseconds = _asking("nanoseconds", "mov.u64 $0, %globaltimer;", "A clock (10.26); it may step by 1 us.", False)


@intrinsic
def count_bits(typingctx, number):
    """How many bits of an integer are set."""

    def codegen(context, builder, sig, args):
        value = context.cast(builder, args[0], sig.args[0], types.int64)
        kind = ir.FunctionType(I64, [I64])
        return builder.call(cgutils.get_or_insert_function(builder.module, kind, "llvm.ctpop.i64"), [value])

    return types.int64(number), codegen


# ---- single instructions, on every lane ---------------------------------------------------------------


def _by_lanes(builder, values, one):
    """Vectors (or numbers) made by `one(values of a lane)`."""
    if not isinstance(values[0].type, ir.VectorType):
        return one(values)
    lanes = [
        one([builder.extract_element(v, ir.Constant(I32, i)) for v in values]) for i in range(values[0].type.count)
    ]
    out = ir.Constant(ir.VectorType(lanes[0].type, len(lanes)), ir.Undefined)
    for i, value in enumerate(lanes):
        out = builder.insert_element(out, value, ir.Constant(I32, i))
    return out


def narrow_bfloat16(builder, value):
    """The bits of float32 numbers rounded to bfloat16: one instruction for two (cvt, 9.7.9.21)."""
    if not isinstance(value.type, ir.VectorType):
        return asm(builder, "cvt.rn.bf16.f32 $0, $1;", "=h,f", [value], I16)
    count = value.type.count
    if count == 1:
        one = narrow_bfloat16(builder, builder.extract_element(value, ir.Constant(I32, 0)))
        return builder.insert_element(ir.Constant(ir.VectorType(I16, 1), ir.Undefined), one, ir.Constant(I32, 0))
    pairs = ir.Constant(ir.VectorType(I32, count // 2), ir.Undefined)
    for i in range(0, count, 2):
        low, high = (builder.extract_element(value, ir.Constant(I32, k)) for k in (i, i + 1))
        pair = asm(builder, "cvt.rn.bf16x2.f32 $0, $1, $2;", "=r,f,f", [high, low], I32)
        pairs = builder.insert_element(pairs, pair, ir.Constant(I32, i // 2))
    return builder.bitcast(pairs, ir.VectorType(I16, count))


def halves_below_zero(builder, value):
    """-1 where lanes of 16 bits are negative, else 0: one instruction for two (prmt, 9.7.9.7)."""
    pairs = builder.bitcast(value, ir.VectorType(I32, value.type.count // 2))
    text = f"prmt.b32 $0, $1, 0, {0xBB99};"
    masks = _by_lanes(builder, [pairs], lambda one: asm(builder, text, "=r,r", one, I32))
    return builder.bitcast(masks, value.type)


def _float32(name, text, constraints, count, doc):
    """An intrinsic of `count` float32 numbers, or vectors (the second may be a number), that is one instruction."""

    def code(context, builder, sig, args):
        if isinstance(sig.args[0], Vector) and not isinstance(sig.args[-1], Vector):
            number = context.cast(builder, args[1], sig.args[1], types.float32)
            args = [args[0], splat(builder, number, sig.args[0].lanes)]
        return _by_lanes(builder, args, lambda values: asm(builder, text, constraints, values, F32))

    def one(typingctx, x):
        return x(x), code

    def two(typingctx, x, y):
        return x(x, types.unliteral(y)), code

    function = intrinsic(one if count == 1 else two)
    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc
    return function


exp2 = _float32("exp2", "ex2.approx.f32 $0, $1;", "=f,f", 1, "2^x within 2 ulp, subnormals included (ex2, 9.7.3.21).")
exp2_small = _float32(
    "exp2_small", "ex2.approx.ftz.f32 $0, $1;", "=f,f", 1, "The same, subnormals being 0: one instruction, not four."
)
log2 = _float32("log2", "lg2.approx.f32 $0, $1;", "=f,f", 1, "log2(x), within 2^-22 near 1 (lg2, 9.7.3.20).")
log2_normal = _float32(
    "log2_normal", "lg2.approx.ftz.f32 $0, $1;", "=f,f", 1, "The same, subnormals being 0: one instruction, not four."
)
square_root = _float32(
    "square_root", "sqrt.approx.ftz.f32 $0, $1;", "=f,f", 1, "sqrt(x) within 2^-23, subnormals being 0 (9.7.3.15)."
)


def _float64(name, text, doc):
    """An intrinsic of float64 numbers, or vectors of them, that is one instruction."""

    def codegen(context, builder, sig, args):
        return _by_lanes(builder, args, lambda values: asm(builder, text, "=d,d", values, ir.DoubleType()))

    def one(typingctx, x):
        return x(x), codegen

    one.__name__ = one.__qualname__ = name
    function = intrinsic(one)
    function.__doc__ = doc
    return function


reciprocal_wide = _float64(
    "reciprocal_wide",
    "rcp.approx.ftz.f64 $0, $1;",
    "1 / x of float64 numbers within 2^-19, subnormal ones being 0: one instruction (rcp.approx.ftz.f64, 9.7.3.14).",
)
inverse_root_wide = _float64(
    "inverse_root_wide",
    "rsqrt.approx.ftz.f64 $0, $1;",
    "1 / sqrt(x) of float64 numbers within 2^-19, subnormal ones being 0: one instruction (9.7.3.18).",
)


reciprocal = _float32(
    "reciprocal", "rcp.approx.ftz.f32 $0, $1;", "=f,f", 1, "1 / x within 1 ulp, subnormals being 0 (rcp, 9.7.3.13)."
)

quotient = _float32(
    "quotient", "div.full.f32 $0, $1, $2;", "=f,f,f", 2, "x / y within 2 ulp, whatever they are: six instructions "
    "(div, 9.7.3.8)."
)  # fmt: skip
product = _float32(
    "product", "mul.rn.f32 $0, $1, $2;", "=f,f,f", 2, "x * y, rounded by itself: x * y + z becomes one instruction "
    "(mul, 9.7.3.4)."
)  # fmt: skip
sum_of_two = _float32("sum_of_two", "add.rn.f32 $0, $1, $2;", "=f,f,f", 2, "x + y, as `product` (add, 9.7.3.3).")


# ---- Hopper: copies of tiles to shared memory, barriers that count their bytes, products of tiles ------
# Addresses of shared memory are the 32-bit ones of its own space.


def _statement(name, text, kinds, doc):
    """An intrinsic that is one statement of inline PTX with effects: integers of 32 ("r") or 64 bits ("l")."""

    def code(context, builder, sig, args):
        values = [
            builder.trunc(v, I32) if kind == "r" else v
            for kind, v in zip(kinds, (context.cast(builder, v, t, types.int64) for v, t in zip(args, sig.args)))
        ]
        kind = ir.FunctionType(ir.VoidType(), [v.type for v in values])
        constraints = ",".join([*kinds, "~{memory}"])
        builder.call(ir.InlineAsm(kind, text, constraints, side_effect=True), values, attrs=("convergent",))
        return context.get_dummy_value()

    # numba asks for the very parameters of a function
    parameters = ", ".join("abcdefg"[: len(kinds)])
    scope = {"types": types, "code": code}
    exec(f"def {name}(typingctx, {parameters}):\n    return types.void({parameters}), code", scope)
    function = intrinsic(scope[name])
    function.__doc__ = doc
    return function


store_to_system = _statement(
    "store_to_system",
    "st.release.sys.u64 [$0], $1;",
    "ll",
    "Store an int64 for all GPUs to see, behind what this thread stored or knows to be stored before (st, 9.7.8.11).",
)

_WAIT = """{
.reg .pred p;
WAIT${:uid}:
mbarrier.try_wait.parity.shared::cta.b64 p, [$0], $1;
@!p bra WAIT${:uid};
}"""
_WAIT_FOR_EITHER = """{
.reg .pred p, q;
EITHER${:uid}:
mbarrier.test_wait.parity.shared::cta.b64 p, [$0], $2;
mbarrier.test_wait.parity.shared::cta.b64 q, [$1], $2;
or.pred p, p, q;
@!p bra EITHER${:uid};
}"""
_LOAD = (
    "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [$0], [$1, {$2, $3, $4, $5}], [$6];"
)

barrier_new = _statement(
    "barrier_new",
    "mbarrier.init.shared::cta.b64 [$0], $1;",
    "rr",
    "Make the 8 bytes at a shared address a barrier for so many arrivals (mbarrier.init, 9.7.12.15).",
)
barrier_end = _statement(
    "barrier_end",
    "mbarrier.inval.shared::cta.b64 [$0];",
    "r",
    "A barrier becomes memory again (mbarrier.inval).",
)
barrier_wait = _statement(
    "barrier_wait", _WAIT, "rr", "Wait until the phase of this parity of a barrier is over (mbarrier.try_wait)."
)
barrier_wait_either = _statement(
    "barrier_wait_either",
    _WAIT_FOR_EITHER,
    "rrr",
    "Wait until the phase of this parity of one of two barriers is over (mbarrier.test_wait).",
)


@intrinsic
def barriers_over(typingctx, first, second, phase):
    """1 if the phases of this parity of two barriers are over, else 0 (mbarrier.test_wait)."""
    text = "{\n.reg .pred p, q;\n// OVER\nmbarrier.test_wait.parity.shared::cta.b64 p, [$1], $3;\n"
    text += "mbarrier.test_wait.parity.shared::cta.b64 q, [$2], $3;\nand.pred p, p, q;\nselp.b32 $0, 1, 0, p;\n}"

    def codegen(context, builder, sig, args):
        args = [builder.trunc(context.cast(builder, a, kind, types.int64), I32) for a, kind in zip(args, sig.args)]
        statement = ir.InlineAsm(ir.FunctionType(I32, [I32] * 3), text, "=r,r,r,r,~{memory}", side_effect=True)
        return builder.zext(builder.call(statement, args), I64)

    return types.int64(first, second, phase), codegen


barrier_arrive = _statement(
    "barrier_arrive", "mbarrier.arrive.shared::cta.b64 _, [$0];", "r", "Arrive at a barrier (mbarrier.arrive)."
)
barrier_expect = _statement(
    "barrier_expect",
    "mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0], $1;",
    "rr",
    "Arrive at a barrier whose phase lasts until so many bytes have come, too (mbarrier.arrive.expect_tx).",
)
fence_async = _statement(
    "fence_async",
    "fence.proxy.async;",
    "",
    "What this thread wrote comes before what copies and products of tiles read (membar, 9.7.12.4).",
)
barrier_of = _statement(
    "barrier_of", "bar.sync $0, $1;", "rr", "Wait for so many threads at the barrier of this number, 1 to 15 (bar)."
)
barrier_tell = _statement(
    "barrier_tell", "bar.arrive $0, $1;", "rr", "Count at the barrier of this number for so many threads, go on (bar)."
)
warp_barrier = _statement("warp_barrier", "bar.warp.sync -1;", "", "Wait for the threads of the warp (bar.warp.sync).")
copy_tile = _statement(
    "copy_tile",
    _LOAD,
    "rlrrrrr",
    """copy_tile(to, map, i, j, k, l, barrier): start to copy the box at these places of the tensor that the map (a
    generic address) describes to shared memory; the barrier counts its bytes (cp.async.bulk.tensor, 9.7.8.24.9).""",
)
copy_tile_once = _statement(
    "copy_tile_once",
    "{\n.reg .b64 once;\ncreatepolicy.fractional.L2::evict_first.b64 once, 1.0;\n"
    + _LOAD.replace("bytes [$0]", "bytes.L2::cache_hint [$0]")[:-1]
    + ", once;\n}",
    "rlrrrrr",
    "The same of what is not read again soon, which the second-level cache then keeps less than all else.",
)
copy_bytes = _statement(
    "copy_bytes",
    "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [$0], [$1], $2, [$3];",
    "rlrr",
    """copy_bytes(to, address, count, barrier): start to copy so many bytes to a shared address, all multiples of 16;
    the barrier counts them (cp.async.bulk, 9.7.8.24.5).""",
)
fetch_map = _statement(
    "fetch_map",
    "prefetch.tensormap [$0];",
    "l",
    "Let the copy engine read the map at a generic address before it is asked to copy by it (prefetch, 9.7.8.17).",
)
ask_for = _statement(
    "ask_for",
    "prefetch.global.L1 [$0];",
    "l",
    "Let the first-level cache have what lies at an address, which is read later (prefetch, 9.7.8.17).",
)
wait_for_others = _statement(
    "wait_for_others",
    "griddepcontrol.wait;",
    "",
    """Wait until the launches before this one, which it may have begun beside (`Shape.early`), have ended and what they
    wrote is seen (griddepcontrol, 9.7.12.13).""",
)
copy_tile_to_both = _statement(
    "copy_tile_to_both",
    "{\n.reg .b16 both;\nmov.b16 both, 3;\n"
    + _LOAD.replace("bytes [$0]", "bytes.multicast::cluster [$0]")[:-1]
    + ", both;\n}",
    "rlrrrrr",
    "The same to this place in both blocks of a cluster, whose barriers at that place count the bytes.",
)
cluster_barrier = _statement(
    "cluster_barrier",
    "barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;",
    "",
    "Wait for all threads of the blocks of a cluster (barrier.cluster).",
)
fence_barriers = _statement(
    "fence_barriers",
    "fence.mbarrier_init.release.cluster;",
    "",
    "New barriers are there for the cluster's blocks (fence).",
)
barrier_arrive_in = _statement(
    "barrier_arrive_in",
    "{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, $0, $1;\nmbarrier.arrive.shared::cluster.b64 _, [there];\n}",
    "rr",
    "Arrive at the barrier at this shared address of the cluster's block of this number (mapa, mbarrier.arrive).",
)
store_byte, store_short = (
    _statement(
        name,
        f"{{\n.reg .b16 h;\ncvt.u16.u32 h, $1;\nst.shared.b{bits} [$0], h;\n}}",
        "rr",
        f"Store {bits} bits at a shared address.",
    )
    for name, bits in (("store_byte", 8), ("store_short", 16))
)
store_word = _statement("store_word", "st.shared.b32 [$0], $1;", "rr", "Store 32 bits at a shared address.")


@intrinsic
def rounded_tf32(typingctx, bits):
    """The bits of a float32 rounded to TF32 (cvt.rna, 9.7.9.21)."""

    def codegen(context, builder, sig, args):
        value = builder.bitcast(builder.trunc(context.cast(builder, args[0], sig.args[0], types.int64), I32), F32)
        return builder.zext(asm(builder, "cvt.rna.tf32.f32 $0, $1;", "=r,f", [value], I32), I64)

    return types.int64(bits), codegen


@intrinsic(prefer_literal=True)
def set_registers(typingctx, count):
    """A thread of this warpgroup has so many registers (a literal, a multiple of 8) from here on (setmaxnreg).

    The block begins with 168 for each of three warpgroups: two may have what the third gives.
    """
    wanted = literal_of(count)
    if wanted is None:
        return None

    def codegen(context, builder, sig, args):
        text = f"setmaxnreg.{'dec' if wanted < 168 else 'inc'}.sync.aligned.u32 {wanted};"
        kind = ir.FunctionType(ir.VoidType(), [])
        builder.call(ir.InlineAsm(kind, text, "~{memory}", side_effect=True), [], attrs=("convergent",))
        return context.get_dummy_value()

    return types.void(count), codegen


def _dynamic(builder):
    """The block's dynamic memory."""
    name = "dynamic_shared"
    memory = builder.module.globals.get(name)
    if memory is None:
        memory = ir.GlobalVariable(builder.module, ir.ArrayType(I8, 0), name, addrspace=SHARED)
        memory.linkage, memory.align = "external", 1024
    return memory


@intrinsic
def dynamic_shared(typingctx):
    """The shared address of the block's dynamic memory (`Shape.shared`), a multiple of 1024."""

    def codegen(context, builder, sig, args):
        return builder.zext(builder.ptrtoint(_dynamic(builder), I32), I64)

    return types.int64(), codegen


@intrinsic
def dynamic_memory(typingctx):
    """The same as an address like others, for `ptr`."""

    def codegen(context, builder, sig, args):
        generic = builder.addrspacecast(_dynamic(builder), ir.ArrayType(I8, 0).as_pointer())
        return builder.ptrtoint(generic, I64)

    return types.int64(), codegen


@intrinsic
def generic(typingctx, at):
    """The address by which pointers reach what lies at a shared address."""

    def codegen(context, builder, sig, args):
        at = builder.trunc(context.cast(builder, args[0], sig.args[0], types.int64), I32)
        there = builder.inttoptr(at, ir.PointerType(I8, addrspace=SHARED))
        return builder.ptrtoint(builder.addrspacecast(there, I8.as_pointer()), I64)

    return types.int64(at), codegen
