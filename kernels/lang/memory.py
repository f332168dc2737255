"""Pointers, loads and stores of kernels; part of `simd.py`, which has the documentation."""

import operator

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import intrinsic, lower_builtin

from ..build import isa
from . import convert, lowp
from .vector import (
    I8,
    I32,
    I64,
    Pointer,
    Vector,
    compute_type,
    literal_of,
    memory_type,
    splat,
    suffix,
)

LINE_BYTES = 64  # of a line of the caches


@intrinsic
def ptr(typingctx, address, T):
    """The pointer at an integer `address` to elements of type `T`."""
    if not isinstance(T, types.NumberClass):
        return None

    def codegen(context, builder, sig, args):
        return context.cast(builder, args[0], sig.args[0], types.int64)

    return Pointer(T.instance_type)(address, T), codegen


@intrinsic
def address(typingctx, p):
    """The integer address of a pointer."""
    return types.int64(p), lambda context, builder, sig, args: args[0]


@infer_global(operator.add)
class _PointerAdd(AbstractTemplate):
    def generic(self, args, kws):
        if len(args) == 2 and isinstance(args[0], Pointer) and isinstance(args[1], types.Integer):
            return signature(args[0], args[0], types.int64)


@lower_builtin(operator.add, Pointer, types.Integer)
def _pointer_add(context, builder, sig, args):
    size = element_bytes(sig.args[0].dtype)
    return builder.add(args[0], builder.mul(args[1], ir.Constant(I64, size)))


@intrinsic
def behind(typingctx, p, count):
    """p + count, as LLVM knows that it points into the same memory: where that is a kernel's parameter, what is read
    there comes from the constant bank. (The address of the sum of two integers could be any.)"""
    if not isinstance(p, Pointer):
        return None

    def codegen(context, builder, sig, args):
        index = context.cast(builder, args[1], sig.args[1], types.int64)
        return builder.ptrtoint(gep(context, builder, args[0], p.dtype, index), I64)

    return p(p, count), codegen


def element_bytes(dtype):
    return 1 if isinstance(dtype, types.Boolean) else dtype.bitwidth // 8


def alignment(dtype):
    """What the addresses of elements are multiples of: their size, 8 of larger ones, and that of a part of complex."""
    return min(8, element_bytes(dtype) // (2 if isinstance(dtype, types.Complex) else 1))


def gep(context, builder, pointer, dtype, index=None, lanes=None):
    """The typed LLVM pointer to element `index`, or to a vector that starts there."""
    kind = memory_type(dtype)
    base = builder.inttoptr(pointer, kind.as_pointer())
    if index is not None:
        base = builder.gep(base, [index])
    return builder.bitcast(base, ir.VectorType(kind, lanes).as_pointer()) if lanes else base


def from_memory(builder, dtype, value):
    """Memory bits -> register value."""
    if isinstance(dtype, types.Boolean):
        zero = ir.Constant(value.type, None)
        return builder.icmp_unsigned("!=", value, zero)
    if isinstance(dtype, lowp.StorageFloat):
        return convert.widen(builder, dtype, value)
    return value


def to_memory(builder, dtype, value):
    """Register value -> memory bits."""
    if isinstance(dtype, types.Boolean):
        kind = ir.VectorType(I8, value.type.count) if isinstance(value.type, ir.VectorType) else I8
        return builder.zext(value, kind)
    if isinstance(dtype, lowp.StorageFloat):
        return convert.narrow(builder, dtype, value)
    return value


@intrinsic
def from_words(typingctx, words, T):
    """A vector of the elements of 16 bits that lie in 32-bit words."""
    dtype = T.instance_type
    if not isinstance(words, Vector) or words.dtype.bitwidth != 32 or element_bytes(dtype) != 2:
        return None

    def codegen(context, builder, sig, args):
        bits = builder.bitcast(args[0], ir.VectorType(memory_type(dtype), 2 * words.lanes))
        return from_memory(builder, dtype, bits)

    return Vector(compute_type(dtype), 2 * words.lanes)(words, T), codegen


@intrinsic
def as_words(typingctx, v, T):
    """A vector, rounded to elements of type `T` of 16 bits, in 32-bit words."""
    dtype = T.instance_type
    if not isinstance(v, Vector) or v.dtype != compute_type(dtype) or element_bytes(dtype) != 2:
        return None

    def codegen(context, builder, sig, args):
        return builder.bitcast(to_memory(builder, dtype, args[0]), ir.VectorType(I32, v.lanes // 2))

    return Vector(types.uint32, v.lanes // 2)(v, T), codegen


@intrinsic
def load(typingctx, p, index):
    """Element `index`, widened to its compute type."""
    if not isinstance(p, Pointer):
        return None

    def codegen(context, builder, sig, args):
        index = context.cast(builder, args[1], sig.args[1], types.int64)
        value = builder.load(gep(context, builder, args[0], p.dtype, index))
        value.align = alignment(p.dtype)
        return from_memory(builder, p.dtype, value)

    return compute_type(p.dtype)(p, index), codegen


@intrinsic
def store(typingctx, p, index, value):
    """Store a scalar as element `index`."""
    if not isinstance(p, Pointer):
        return None
    wanted = compute_type(p.dtype)

    def codegen(context, builder, sig, args):
        index = context.cast(builder, args[1], sig.args[1], types.int64)
        value = context.cast(builder, args[2], sig.args[2], wanted)
        out = builder.store(to_memory(builder, p.dtype, value), gep(context, builder, args[0], p.dtype, index))
        out.align = alignment(p.dtype)
        return context.get_dummy_value()

    return types.void(p, index, value), codegen


def vector_load(context, builder, p, dtype, index, lanes, mask=None, fill=0, align=None):
    where = gep(context, builder, p, dtype, index, lanes)
    kind = ir.VectorType(memory_type(dtype), lanes)
    if mask is None:
        value = builder.load(where)
        value.align = align or alignment(dtype)
        return value
    name = f"llvm.masked.load.{suffix(kind)}.p0"
    align = ir.Constant(I32, alignment(dtype))
    passthru = ir.Constant(kind, [fill] * lanes)
    function = ir.FunctionType(kind, [where.type, I32, mask.type, kind])
    return builder.call(cgutils.get_or_insert_function(builder.module, function, name), [where, align, mask, passthru])


def vector_store(context, builder, p, dtype, index, value, mask=None, align=None):
    where = gep(context, builder, p, dtype, index, value.type.count)
    if mask is None:
        builder.store(value, where).align = align or alignment(dtype)
        return
    name = f"llvm.masked.store.{suffix(value.type)}.p0"
    align = ir.Constant(I32, alignment(dtype))
    function = ir.FunctionType(ir.VoidType(), [value.type, where.type, I32, mask.type])
    builder.call(cgutils.get_or_insert_function(builder.module, function, name), [value, where, align, mask])


def first_lanes(builder, count, lanes):
    """The mask of the first `count` lanes."""
    ramp = ir.Constant(ir.VectorType(I64, lanes), list(range(lanes)))
    return builder.icmp_signed("<", ramp, splat(builder, count, lanes))


@intrinsic(prefer_literal=True)
def vload(typingctx, p, index, lanes):
    """`lanes` elements from element `index` on, widened to their compute type."""
    count = literal_of(lanes)
    if not isinstance(p, Pointer) or count is None:
        return None

    def codegen(context, builder, sig, args):
        index = context.cast(builder, args[1], sig.args[1], types.int64)
        return from_memory(builder, p.dtype, vector_load(context, builder, args[0], p.dtype, index, count))

    return Vector(compute_type(p.dtype), count)(p, index, lanes), codegen


@intrinsic(prefer_literal=True)
def vload_first(typingctx, p, index, lanes, valid):
    """As `vload`, but only the first `valid` lanes are read; the others are zero."""
    count = literal_of(lanes)
    if not isinstance(p, Pointer) or count is None:
        return None

    def codegen(context, builder, sig, args):
        index = context.cast(builder, args[1], sig.args[1], types.int64)
        mask = first_lanes(builder, context.cast(builder, args[3], sig.args[3], types.int64), count)
        return from_memory(builder, p.dtype, vector_load(context, builder, args[0], p.dtype, index, count, mask))

    return Vector(compute_type(p.dtype), count)(p, index, lanes, valid), codegen


@intrinsic(prefer_literal=True)
def vload_apart(typingctx, p, index, apart, lanes, valid):
    """As `vload`, of elements that lie `apart`; lanes from `valid` on are those of the last one."""
    count = literal_of(lanes)
    if not isinstance(p, Pointer) or count is None:
        return None

    def codegen(context, builder, sig, args):
        index, apart, valid = (context.cast(builder, args[k], sig.args[k], types.int64) for k in (1, 2, 4))
        out = ir.Constant(ir.VectorType(memory_type(p.dtype), count), ir.Undefined)
        for k in range(count):
            there = builder.icmp_signed("<", ir.Constant(I64, k), valid)
            index = builder.select(there, builder.add(index, apart), index) if k else index
            value = builder.load(gep(context, builder, args[0], p.dtype, index))
            value.align = alignment(p.dtype)
            out = builder.insert_element(out, value, ir.Constant(I32, k))
        return from_memory(builder, p.dtype, out)

    return Vector(compute_type(p.dtype), count)(p, index, apart, lanes, valid), codegen


@intrinsic
def vpick(typingctx, p, indices, mask):
    """The elements at the int32 lanes of `indices` where the mask is true, 0 elsewhere; element 0 must be there.

    No lane is a branch: those that are masked off read element 0.
    """
    if not isinstance(p, Pointer) or not isinstance(indices, Vector):
        return None

    def codegen(context, builder, sig, args):
        kind = ir.VectorType(memory_type(p.dtype), indices.lanes)
        out, nothing = ir.Constant(kind, ir.Undefined), ir.Constant(kind.element, None)
        for k in range(indices.lanes):
            at = ir.Constant(I32, k)
            index, wanted = builder.extract_element(args[1], at), builder.extract_element(args[2], at)
            index = builder.sext(builder.select(wanted, index, ir.Constant(index.type, 0)), I64)
            value = builder.load(gep(context, builder, args[0], p.dtype, index))
            value.align = alignment(p.dtype)
            out = builder.insert_element(out, builder.select(wanted, value, nothing), at)
        return from_memory(builder, p.dtype, out)

    return Vector(compute_type(p.dtype), indices.lanes)(p, indices, mask), codegen


@intrinsic
def vput(typingctx, p, indices, value, mask):
    """Store the lanes of a vector for which the mask is true at the int32 lanes of `indices`."""
    if not isinstance(p, Pointer) or not isinstance(value, Vector):
        return None

    def codegen(context, builder, sig, args):
        bits = to_memory(builder, p.dtype, args[2])
        for k in range(value.lanes):
            at = ir.Constant(I32, k)
            with builder.if_then(builder.extract_element(args[3], at)):
                index = builder.sext(builder.extract_element(args[1], at), I64)
                place = gep(context, builder, args[0], p.dtype, index)
                builder.store(builder.extract_element(bits, at), place).align = alignment(p.dtype)
        return context.get_dummy_value()

    return types.void(p, indices, value, mask), codegen


@intrinsic(prefer_literal=True)
def vload_aligned(typingctx, p, index, lanes):
    """As `vload`, from an address that is a multiple of the vector's bytes: one access on a GPU."""
    count = literal_of(lanes)
    if not isinstance(p, Pointer) or count is None:
        return None

    def codegen(context, builder, sig, args):
        index = context.cast(builder, args[1], sig.args[1], types.int64)
        align = min(16, count * element_bytes(p.dtype))
        return from_memory(builder, p.dtype, vector_load(context, builder, args[0], p.dtype, index, count, align=align))

    return Vector(compute_type(p.dtype), count)(p, index, lanes), codegen


@intrinsic
def vstore_aligned(typingctx, p, index, value):
    """As `vstore`, to an address that is a multiple of the vector's bytes."""
    if not isinstance(p, Pointer) or not isinstance(value, Vector):
        return None

    def codegen(context, builder, sig, args):
        index = context.cast(builder, args[1], sig.args[1], types.int64)
        align = min(16, value.lanes * element_bytes(p.dtype))
        vector_store(context, builder, args[0], p.dtype, index, to_memory(builder, p.dtype, args[2]), align=align)
        return context.get_dummy_value()

    return types.void(p, index, value), codegen


@intrinsic
def vstore_nontemporal(typingctx, p, index, value):
    """As `vstore`, past the caches, whose lines are not read before: for whole lines, which other threads see after
    `fence`. The address is a multiple of the vector's bytes, or of 64.
    """
    if not isinstance(p, Pointer) or not isinstance(value, Vector):
        return None

    def codegen(context, builder, sig, args):
        index = context.cast(builder, args[1], sig.args[1], types.int64)
        bits = to_memory(builder, p.dtype, args[2])
        where = gep(context, builder, args[0], p.dtype, index, value.lanes)
        stored = builder.store(bits, where)
        stored.align = min(LINE_BYTES, value.lanes * element_bytes(p.dtype))
        stored.set_metadata("nontemporal", builder.module.add_metadata([ir.Constant(I32, 1)]))
        return context.get_dummy_value()

    return types.void(p, index, value), codegen


@intrinsic
def fence(typingctx):
    """Other threads see what was stored before this, also by `vstore_nontemporal`, before what is stored behind it."""

    def codegen(context, builder, sig, args):
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), codegen


@intrinsic
def vstore(typingctx, p, index, value):
    """Store the lanes of a vector from element `index` on (rounding to a storage type)."""
    if not isinstance(p, Pointer) or not isinstance(value, Vector):
        return None

    def codegen(context, builder, sig, args):
        index = context.cast(builder, args[1], sig.args[1], types.int64)
        bits = to_memory(builder, p.dtype, args[2])
        vector_store(context, builder, args[0], p.dtype, index, bits)
        return context.get_dummy_value()

    return types.void(p, index, value), codegen


@intrinsic
def vstore_first(typingctx, p, index, value, valid):
    """As `vstore`, for the first `valid` lanes only."""
    if not isinstance(p, Pointer) or not isinstance(value, Vector):
        return None

    def codegen(context, builder, sig, args):
        index = context.cast(builder, args[1], sig.args[1], types.int64)
        mask = first_lanes(builder, context.cast(builder, args[3], sig.args[3], types.int64), value.lanes)
        bits = to_memory(builder, p.dtype, args[2])
        vector_store(context, builder, args[0], p.dtype, index, bits, mask)
        return context.get_dummy_value()

    return types.void(p, index, value, valid), codegen


@intrinsic(prefer_literal=True)
def stack(typingctx, nbytes):
    """The address of `nbytes` (a literal) of 64-byte aligned scratch on the stack of the kernel."""
    size = literal_of(nbytes)
    if size is None:
        return None

    def codegen(context, builder, sig, args):
        with builder.goto_entry_block():
            slot = builder.alloca(ir.ArrayType(I8, size))
            slot.align = 64
        return builder.ptrtoint(slot, I64)

    return types.int64(nbytes), codegen


@intrinsic
def prefetch(typingctx, p, index):
    """Ask for the cache line of element `index` (read, all levels)."""

    def codegen(context, builder, sig, args):
        if isa.is_gpu():
            return context.get_dummy_value()
        index = context.cast(builder, args[1], sig.args[1], types.int64)
        where = builder.bitcast(gep(context, builder, args[0], p.dtype, index), I8.as_pointer())
        kind = ir.FunctionType(ir.VoidType(), [where.type, I32, I32, I32])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        builder.call(function, [where, ir.Constant(I32, 0), ir.Constant(I32, 3), ir.Constant(I32, 1)])
        return context.get_dummy_value()

    return types.void(p, index), codegen


# ---- vectors of eight bytes as one number ---------------------------------------------------------------


@intrinsic
def packed(typingctx, v, T):
    """An int64 of what a vector of eight bytes is in memory, as elements of type T."""
    dtype = T.instance_type

    def codegen(context, builder, sig, args):
        return builder.bitcast(to_memory(builder, dtype, args[0]), I64)

    return types.int64(v, T), codegen


@intrinsic
def unpacked(typingctx, number, like, T):
    """The vector, like another one, that `packed` made such a number of."""
    dtype = T.instance_type

    def codegen(context, builder, sig, args):
        number = context.cast(builder, args[0], sig.args[0], types.int64)
        bits = builder.bitcast(number, ir.VectorType(memory_type(dtype), like.lanes))
        return from_memory(builder, dtype, bits)

    return like(number, like, T), codegen
