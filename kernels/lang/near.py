"""What a thread of a GPU has near, and what is far: elements in registers, one for each step of a loop, and memory by
its kind, which LLVM does not see of an address: an access of any memory waits for what is on its way to all of it.
"""

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from .by_type import by_type
from .memory import alignment, from_memory, to_memory
from .ptx import SHARED
from .vector import Pointer, compute_type, literal_of, memory_type

GLOBAL = 1  # the address space


def _place(context, builder, sig, args, space):
    """The pointer to element args[1] of the pointer args[0], of memory of this address space."""
    kind = memory_type(sig.args[0].dtype)
    base = builder.addrspacecast(builder.inttoptr(args[0], kind.as_pointer()), ir.PointerType(kind, addrspace=space))
    return builder.gep(base, [context.cast(builder, args[1], sig.args[1], types.int64)])


def _load(name, space, doc):
    """An intrinsic of (p, index)."""

    def function(typingctx, p, index):
        if not isinstance(p, Pointer):
            return None

        def codegen(context, builder, sig, args):
            value = builder.load(_place(context, builder, sig, args, space))
            value.align = alignment(p.dtype)
            return from_memory(builder, p.dtype, value)

        return compute_type(p.dtype)(p, index), codegen

    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc
    return intrinsic(function)


def _store(name, space, doc):
    """An intrinsic of (p, index, value)."""

    def function(typingctx, p, index, value):
        if not isinstance(p, Pointer):
            return None

        def codegen(context, builder, sig, args):
            number = context.cast(builder, args[2], sig.args[2], compute_type(p.dtype))
            place = _place(context, builder, sig, args, space)
            builder.store(to_memory(builder, p.dtype, number), place).align = alignment(p.dtype)
            return context.get_dummy_value()

        return types.void(p, index, value), codegen

    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc
    return intrinsic(function)


load_near = _load("load_near", SHARED, "As `load`, of shared memory.")
store_near = _store("store_near", SHARED, "As `store`, to shared memory.")
load_far = _load("load_far", GLOBAL, "As `load`, of memory that is not shared.")
store_far = _store("store_far", GLOBAL, "As `store`, to memory that is not shared.")


@intrinsic
def bits_from(typingctx, number, shift):
    """The bits of an unsigned number from bit `shift` on, in a register of its own size, not of 64 bits."""

    def codegen(context, builder, sig, args):
        shift = context.cast(builder, args[1], sig.args[1], sig.args[0])
        return builder.lshr(args[0], shift)

    return number(number, shift), codegen


@intrinsic
def of_sign(typingctx, number):
    """The highest bit of an unsigned number in all of its bits."""

    def codegen(context, builder, sig, args):
        return builder.ashr(args[0], ir.Constant(args[0].type, args[0].type.width - 1))

    return number(number), codegen


@by_type(prefer_literal=True)
def each(count, one, state):
    """(one(state, 0), one(state, 1), ...), `count` (a literal) results in registers: a loop without a loop."""
    number = literal_of(count)
    return None if number is None else _made("count", number, "")


@by_type
def each_of(values, one, state):
    """(one(state, 0, values[0]), one(state, 1, values[1]), ...) for a tuple of values.

    Or for tuples of as many values in a tuple: (one(state, 0, values[0][0], values[1][0], ...), ...).
    """
    if isinstance(values[0], types.BaseTuple):
        return _made("values", len(values[0]), "".join(f", values[{j}][{{k}}]" for j in range(len(values))))
    return _made("values", len(values), ", values[{k}]")


@by_type
def sums_before(values, start):
    """(for each number of a tuple the sum of `start` and those before, that of all), in the type of `start`."""
    steps = "".join(f"    s{k + 1} = KIND(s{k} + values[{k}])\n" for k in range(len(values)))
    sums = "".join(f"s{k}, " for k in range(len(values)))
    return _function(
        f"def made(values, start):\n    s0 = start\n{steps}    return ({sums}), s{len(values)}", KIND=start
    )


def _made(parameters, count, more):
    """A number that is a literal would have `one` compiled anew for each: a kernel of 16 elements took 22 s, now 6."""
    results = "".join(f"one(state, I64({k}){more.format(k=k)}), " for k in range(count))
    return _function(f"def made({parameters}, one, state):\n    return ({results})")


def _function(source, **more):
    scope = {"I64": types.int64, **more}
    exec(source, scope)
    return scope["made"]
