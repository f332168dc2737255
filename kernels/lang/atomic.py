"""What kernels need to meet other threads and processes: ordered memory, a pause, and calls of C functions."""

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


def _fetch(operation):
    """The intrinsic that changes an int64 in one step, ordered with all else, and returns what was there before."""

    @intrinsic
    def fetch(typingctx, p, index, value):
        if not isinstance(p, Pointer) or p.dtype != types.int64:
            return None

        def codegen(context, builder, sig, args):
            index, value = (context.cast(builder, args[i], sig.args[i], types.int64) for i in (1, 2))
            return builder.atomic_rmw(operation, gep(context, builder, args[0], p.dtype, index), value, "seq_cst")

        return types.int64(p, index, value), codegen

    return fetch


fetch_add, fetch_and, fetch_or = _fetch("add"), _fetch("and"), _fetch("or")


@intrinsic
def replace(typingctx, p, index, expected, value):
    """Store `value` where the int64 at `index` is `expected`, in one step; what was there before."""
    if not isinstance(p, Pointer) or p.dtype != types.int64:
        return None

    def codegen(context, builder, sig, args):
        index, expected, value = (context.cast(builder, args[i], sig.args[i], types.int64) for i in (1, 2, 3))
        place = gep(context, builder, args[0], p.dtype, index)
        return builder.extract_value(builder.cmpxchg(place, expected, value, "seq_cst", "seq_cst"), 0)

    return types.int64(p, index, expected, value), codegen


@intrinsic
def lowest_bit(typingctx, bits):
    """The place of the lowest 1 in an int64 that is not 0."""

    def codegen(context, builder, sig, args):
        bits = context.cast(builder, args[0], sig.args[0], types.int64)
        return builder.cttz(bits, ir.Constant(ir.IntType(1), 1))

    return types.int64(bits), codegen


@intrinsic(prefer_literal=True)
def address_of(typingctx, name):
    """The address of the symbol `name`, which who loads the code knows (`build/elf.py`)."""
    if not isinstance(name, types.StringLiteral):
        return None

    def codegen(context, builder, sig, args):
        kind = ir.FunctionType(_NOTHING, [])
        return builder.ptrtoint(cgutils.get_or_insert_function(builder.module, kind, name.literal_value), I64)

    return types.int64(name), codegen


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


@intrinsic
def call_kernel(typingctx, kernel, args, lo, hi, thread):
    """Let the kernel at an address do the slice [lo, hi) of its work: its code, 0 or that of an error.

    `thread` is the number of the thread in this launch. Kernels without scratch of their own take three arguments and
    do not see the fourth: it travels in a register.
    """

    def codegen(context, builder, sig, args):
        values = [context.cast(builder, v, t, types.int64) for v, t in zip(args, sig.args)]
        kind = ir.FunctionType(I64, [I64] * 4)
        return builder.call(builder.inttoptr(values[0], kind.as_pointer()), values[1:])

    return types.int64(kernel, args, lo, hi, thread), codegen
