"""What GPUs have and vectors of LLVM do not: places of threads, barriers, shared memory, exchange within a warp, and
single instructions. All inline PTX of the house is here (PTX ISA 8.0, sections named in brackets).

All names are for use inside jitted functions, in kernels for GPUs only.
"""

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from .vector import I8, I32, I64, Vector, literal_of

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


@intrinsic
def from_lane(typingctx, v, apart):
    """The value of the thread whose number in the warp differs by the bits of `apart`; all threads of a warp ask.

    `v` is a number, or a vector of one lane.
    """

    def codegen(context, builder, sig, args):
        value, vector = args[0], isinstance(v, Vector)
        if vector:
            value = builder.extract_element(value, ir.Constant(I32, 0))
        boolean = value.type == ir.IntType(1)
        if boolean:
            value = builder.zext(value, I32)
        by = builder.trunc(context.cast(builder, args[1], sig.args[1], types.int64), I32)
        kind = ir.FunctionType(I32, [I32] * 4)
        exchange = cgutils.get_or_insert_function(builder.module, kind, "llvm.nvvm.shfl.sync.bfly.i32")
        every, clamp = ir.Constant(I32, -1), ir.Constant(I32, WARP - 1)
        words = [builder.call(exchange, [every, word, by, clamp]) for word in _words(builder, value)]
        value = _number(builder, words, value.type)
        if boolean:
            value = builder.trunc(value, ir.IntType(1))
        if vector:
            value = builder.insert_element(ir.Constant(args[0].type, ir.Undefined), value, ir.Constant(I32, 0))
        return value

    return types.unliteral(v)(types.unliteral(v), apart), codegen


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


def _float32(name, text, constraints, count, doc):
    """An intrinsic of `count` float32 numbers, or vectors of them, that is one instruction."""

    def code(context, builder, sig, args):
        return _by_lanes(builder, args, lambda values: asm(builder, text, constraints, values, F32))

    def one(typingctx, x):
        return x(x), code

    def two(typingctx, x, y):
        return x(x, y), code

    function = intrinsic(one if count == 1 else two)
    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc
    return function


exp2 = _float32("exp2", "ex2.approx.f32 $0, $1;", "=f,f", 1, "2^x within 2 ulp, subnormals included (ex2, 9.7.3.21).")
divide = _float32("divide", "div.full.f32 $0, $1, $2;", "=f,f,f", 2, "x / y within 2 ulp (div, 9.7.3.8).")
