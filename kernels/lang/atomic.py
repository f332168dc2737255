"""What kernels need to meet other processes: ordered loads and stores, a pause, and calls of C functions."""

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from ..build import isa
from .memory import gep
from .vector import I32, I64, Pointer

_NOTHING = ir.VoidType()


@intrinsic
def load_acquire(typingctx, p, index):
    """The int64 at `index`; what its writer stored before it is visible from then on."""
    if not isinstance(p, Pointer) or p.dtype != types.int64:
        return None

    def codegen(context, builder, sig, args):
        index = context.cast(builder, args[1], sig.args[1], types.int64)
        return builder.load_atomic(gep(context, builder, args[0], p.dtype, index), "acquire", 8)

    return types.int64(p, index), codegen


@intrinsic
def store_release(typingctx, p, index, value):
    """Store an int64 behind everything that this thread stored before."""
    if not isinstance(p, Pointer) or p.dtype != types.int64:
        return None

    def codegen(context, builder, sig, args):
        index = context.cast(builder, args[1], sig.args[1], types.int64)
        value = context.cast(builder, args[2], sig.args[2], types.int64)
        builder.store_atomic(value, gep(context, builder, args[0], p.dtype, index), "release", 8)
        return context.get_dummy_value()

    return types.void(p, index, value), codegen


@intrinsic
def pause(typingctx):
    """Tell the CPU that this is a loop that waits."""

    def codegen(context, builder, sig, args):
        if "neon" in isa.features():
            kind, name, values = ir.FunctionType(_NOTHING, [I32]), "llvm.aarch64.hint", [ir.Constant(I32, 1)]
        else:
            kind, name, values = ir.FunctionType(_NOTHING, []), "llvm.x86.sse2.pause", []
        builder.call(cgutils.get_or_insert_function(builder.module, kind, name), values)
        return context.get_dummy_value()

    return types.void(), codegen


def _integers(context, builder, kind, value):
    """The elements of a tuple of integers as int64."""
    return [
        context.cast(builder, element, source, types.int64)
        for element, source in zip(cgutils.unpack_tuple(builder, value, len(kind)), kind)
    ]


def _status(builder, result):
    """A C `int` as int64: the upper half of its register means nothing."""
    return builder.sext(builder.trunc(result, I32), I64)


@intrinsic(prefer_literal=True)
def call_c(typingctx, name, arguments):
    """The `int` that the C library's function `name` returns for a tuple of integers and addresses."""
    if not isinstance(name, types.StringLiteral):
        return None

    def codegen(context, builder, sig, args):
        values = _integers(context, builder, sig.args[1], args[1])
        kind = ir.FunctionType(I64, [I64] * len(values))
        function = cgutils.get_or_insert_function(builder.module, kind, name.literal_value)
        return _status(builder, builder.call(function, values))

    return types.int64(name, arguments), codegen


@intrinsic
def call_at(typingctx, function, arguments):
    """The `int` that the C function at an address returns for a tuple of integers and addresses.

    Integers and pointers travel in registers and stack slots of 8 bytes, of which the callee reads what it needs.
    """

    def codegen(context, builder, sig, args):
        values = _integers(context, builder, sig.args[1], args[1])
        kind = ir.FunctionType(I64, [I64] * len(values))
        address = context.cast(builder, args[0], sig.args[0], types.int64)
        return _status(builder, builder.call(builder.inttoptr(address, kind.as_pointer()), values))

    return types.int64(function, arguments), codegen
