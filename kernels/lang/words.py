"""Vectors of integers in words of 32 bits: those that begin anywhere, and halves of words."""

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from ..build import isa
from .memory import element_bytes, gep, vector_load
from .ptx import halves_below_zero
from .vector import I32, I64, Pointer, Vector, literal_of, memory_type


@intrinsic(prefer_literal=True)
def vload_words(typingctx, p, index, lanes):
    """As `vload` of unsigned integers, in words of 32 bits: elements of 8 or 16 bits may begin within one.

    Reads the words that the elements lie in and nothing else (one load for each word, where `vload` has one for each
    element).
    """
    count = literal_of(lanes)
    if not isinstance(p, Pointer) or count is None or count * element_bytes(p.dtype) % 4:
        return None
    words = count * element_bytes(p.dtype) // 4

    def codegen(context, builder, sig, args):
        index = context.cast(builder, args[1], sig.args[1], types.int64)
        if element_bytes(p.dtype) >= 4:
            return vector_load(context, builder, args[0], p.dtype, index, count)
        at = builder.ptrtoint(gep(context, builder, args[0], p.dtype, index), I64)
        mask = ir.Constant(I64, -4)
        first, last = builder.and_(at, mask), builder.and_(builder.add(at, ir.Constant(I64, 4 * words - 1)), mask)
        shift = builder.shl(builder.trunc(builder.and_(at, ir.Constant(I64, 3)), I32), ir.Constant(I32, 3))
        found = []
        for k in range(words + 1):
            where = builder.add(first, ir.Constant(I64, 4 * k)) if k < words else last
            found.append(builder.load(builder.inttoptr(where, I32.as_pointer())))
            found[-1].align = 4
        kind = ir.FunctionType(I32, [I32] * 3)
        funnel = cgutils.get_or_insert_function(builder.module, kind, "llvm.fshr.i32")
        out = ir.Constant(ir.VectorType(I32, words), ir.Undefined)
        for k in range(words):
            word = builder.call(funnel, [found[k + 1], found[k], shift])
            out = builder.insert_element(out, word, ir.Constant(I32, k))
        return builder.bitcast(out, ir.VectorType(memory_type(p.dtype), count))

    return Vector(p.dtype, count)(p, index, lanes), codegen


@intrinsic
def below_zero(typingctx, v):
    """-1 where lanes of int16 are negative, else 0.

    On GPUs, compilers would make a comparison and a selection for each lane of what says the same in LLVM.
    """
    if not isinstance(v, Vector) or v.dtype != types.int16:
        return None

    def codegen(context, builder, sig, args):
        (value,) = args
        if isa.is_gpu() and v.lanes % 2 == 0:
            return halves_below_zero(builder, value)
        return builder.ashr(value, ir.Constant(value.type, [15] * v.lanes))

    return v(v), codegen
