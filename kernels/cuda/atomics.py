"""What many threads do to the same elements of memory, whatever the others do to them meanwhile.

Integers are exact in any order, and so are extremes; sums and products of floats are rounded in the order in which
threads come, which changes from run to run.
"""

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ..build import jit
from ..lang.by_type import by_type
from ..lang.memory import element_bytes, from_memory, gep, to_memory
from ..lang.simd import address, bitcast, lane, load, ptr
from ..lang.vector import Pointer, compute_type, is_float

U32, U64, I64 = types.uint32, types.uint64, types.int64


def _of_words(p):
    """Whether memory has an instruction that adds to elements of a pointer."""
    return p.dtype in (types.int32, types.uint32, types.int64, types.uint64, types.float32, types.float64)


@intrinsic
def add_word(typingctx, p, index, value):
    """Add to an element of 32 or 64 bits (atom.add)."""
    if not isinstance(p, Pointer) or not _of_words(p):
        return None

    def codegen(context, builder, sig, args):
        index = context.cast(builder, args[1], sig.args[1], types.int64)
        value = context.cast(builder, args[2], sig.args[2], p.dtype)
        how = "fadd" if is_float(p.dtype) else "add"
        builder.atomic_rmw(how, gep(context, builder, args[0], p.dtype, index), value, "monotonic")
        return context.get_dummy_value()

    return types.void(p, index, value), codegen


@intrinsic
def replace_word(typingctx, p, index, expected, value):
    """Store `value` where an integer of 32 or 64 bits is `expected`; what was there before (atom.cas)."""
    if not isinstance(p, Pointer) or p.dtype not in (types.uint32, types.uint64):
        return None

    def codegen(context, builder, sig, args):
        index = context.cast(builder, args[1], sig.args[1], types.int64)
        expected, value = (context.cast(builder, args[k], sig.args[k], p.dtype) for k in (2, 3))
        place = gep(context, builder, args[0], p.dtype, index)
        return builder.extract_value(builder.cmpxchg(place, expected, value, "monotonic", "monotonic"), 0)

    return p.dtype(p, index, expected, value), codegen


@intrinsic
def element_in(typingctx, p, word, shift):
    """The element, as p has them, that lies in a word of memory from bit `shift` on, widened as `load` does."""

    def codegen(context, builder, sig, args):
        shift = context.cast(builder, args[2], sig.args[2], sig.args[1])
        bits, size = builder.lshr(args[1], shift), 8 * element_bytes(p.dtype)
        if size < args[1].type.width:
            bits = builder.trunc(bits, ir.IntType(size))
        kind = ir.FloatType() if p.dtype == types.float32 else ir.DoubleType() if p.dtype == types.float64 else None
        return from_memory(builder, p.dtype, bits if kind is None else builder.bitcast(bits, kind))

    return compute_type(p.dtype)(p, word, shift), codegen


@intrinsic
def word_with(typingctx, p, word, shift, value):
    """The same word with `value` in place of that element, rounded as `store` does."""

    def codegen(context, builder, sig, args):
        kind, size = args[1].type, 8 * element_bytes(p.dtype)
        shift = context.cast(builder, args[2], sig.args[2], sig.args[1])
        value = to_memory(builder, p.dtype, context.cast(builder, args[3], sig.args[3], compute_type(p.dtype)))
        bits = builder.bitcast(value, ir.IntType(size))
        if size == kind.width:
            return bits
        mask = builder.shl(ir.Constant(kind, (1 << size) - 1), shift)
        return builder.or_(builder.and_(args[1], builder.not_(mask)), builder.shl(builder.zext(bits, kind), shift))

    return word(p, word, shift, value), codegen


@by_type
def _word_of(p, index):
    """(pointer to words, number of the word of an element, where its bits begin there)."""
    size = element_bytes(p.dtype)
    if size == 8:
        return lambda p, index: (ptr(address(p), U64), index, 0)
    if size == 4:
        return lambda p, index: (ptr(address(p), U32), index, 0)

    def narrow(p, index):
        at = address(p) + index * size
        return ptr(at & -4, U32), 0, (at & 3) * 8

    return narrow


@jit.inline
def update(p, index, v, join):
    """p[index] = join(p[index], v), tried again where another thread was faster; nothing is stored that is the same.

    What is read first may be older than what other threads have stored meanwhile, which the exchange finds out; where
    `v` leaves it as it is, it would leave that as it is, too.
    """
    words, at, shift = _word_of(p, index)
    old = load(words, at)
    new = word_with(p, old, shift, join(element_in(p, old, shift), v))
    while new != old:
        found = replace_word(words, at, old, new)
        if found == old:
            break
        old = found
        new = word_with(p, old, shift, join(element_in(p, old, shift), v))


@jit.inline
def update_four(p, index, v, join):
    """The same of four neighbours of 16 bits by one exchange of 64, where they lie in such a word."""
    if address(p + index) & 7 != 0:
        update(p, index, lane(v, 0), join)
        update(p, index + 1, lane(v, 1), join)
        update(p, index + 2, lane(v, 2), join)
        update(p, index + 3, lane(v, 3), join)
        return
    words, going = ptr(address(p + index), U64), True
    old = load(words, 0)
    while going:
        new = word_with(p, old, 0, join(element_in(p, old, 0), lane(v, 0)))
        new = word_with(p, new, 16, join(element_in(p, old, 16), lane(v, 1)))
        new = word_with(p, new, 32, join(element_in(p, old, 32), lane(v, 2)))
        new = word_with(p, new, 48, join(element_in(p, old, 48), lane(v, 3)))
        found = replace_word(words, 0, old, new) if new != old else old
        going, old = found != old, found


@jit.inline
def _sum(a, b):
    return a + b


@by_type
def add_to(p, index, v):
    """p[index] += v."""
    if _of_words(p):
        return lambda p, index, v: add_word(p, index, v)
    return lambda p, index, v: update(p, index, v, _sum)


# ---- extremes ------------------------------------------------------------------------------------


def _extreme(how):
    """The intrinsic that makes an integer of 32 or 64 bits the larger or smaller of itself and a value (atom.max)."""

    @intrinsic
    def change(typingctx, p, index, value):
        if not isinstance(p, Pointer) or not isinstance(p.dtype, types.Integer) or not _of_words(p):
            return None

        def codegen(context, builder, sig, args):
            index = context.cast(builder, args[1], sig.args[1], types.int64)
            value = context.cast(builder, args[2], sig.args[2], p.dtype)
            name = how if p.dtype.signed else f"u{how}"
            builder.atomic_rmw(name, gep(context, builder, args[0], p.dtype, index), value, "monotonic")
            return context.get_dummy_value()

        return types.void(p, index, value), codegen

    return change


_raise_word, _lower_word = _extreme("max"), _extreme("min")


@jit.inline
def larger_of(a, b):
    return b if b > a or b != b else a


@jit.inline
def smaller_of(a, b):
    return b if b < a or b != b else a


def _toward(join, upwards):
    """What `raise_to` and `lower_to` choose by the type of elements.

    The bits of floats that are not negative are ordered as integers, those of negative ones the other way round as
    integers without a sign. So an instruction does what a loop of exchanges would: one for each sign. NaN is written
    as the bits that are beyond all others in both orders, and stays where it is, whatever bits it has there.
    """
    word, other = (_raise_word, _lower_word) if upwards else (_lower_word, _raise_word)

    def choose(p, index, v):
        if not _of_words(p):
            return lambda p, index, v: update(p, index, v, join)
        if not is_float(p.dtype):
            return lambda p, index, v: word(p, index, v)
        S, U = (types.int32, U32) if p.dtype == types.float32 else (I64, U64)
        nan = U((1 << (p.dtype.bitwidth - 1)) - 1) if upwards else U((1 << p.dtype.bitwidth) - 1)

        def of_float(p, index, v):
            old = load(p, index)
            if old == old and join(old, v) != old:
                if v != v and upwards:
                    word(ptr(address(p), S), index, bitcast(nan, S))
                elif v != v:
                    other(ptr(address(p), U), index, nan)
                elif bitcast(v, S) >= 0:
                    word(ptr(address(p), S), index, bitcast(v, S))
                else:
                    other(ptr(address(p), U), index, bitcast(v, U))

        return of_float

    return choose


raise_to = by_type(_toward(larger_of, True))
lower_to = by_type(_toward(smaller_of, False))
