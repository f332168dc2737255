"""Permutations of lanes: halves, even and odd lanes, folds, and square tiles transposed in registers."""

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from ..build import isa, jit
from .memory import element_bytes, gep
from .simd import select
from .vector import I32, Pointer, Vector, is_float, literal_of, memory_type


def _permute(builder, a, b, lanes):
    """The chosen lanes of a and b joined: LLVM's shufflevector."""
    return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(I32, len(lanes)), list(lanes)))


def _unary(name, doc, choose):
    """An intrinsic of one vector that keeps half of its lanes."""

    @intrinsic
    def function(typingctx, v):
        if not isinstance(v, Vector):
            return None

        def codegen(context, builder, sig, args):
            return _permute(builder, args[0], args[0], choose(v.lanes))

        return Vector(v.dtype, v.lanes // 2)(v), codegen

    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc
    return function


low = _unary("low", "The first half of the lanes.", lambda n: range(n // 2))
high = _unary("high", "The second half of the lanes.", lambda n: range(n // 2, n))
even = _unary("even", "Lanes 0, 2, 4, ...", lambda n: range(0, n, 2))
odd = _unary("odd", "Lanes 1, 3, 5, ...", lambda n: range(1, n, 2))


@intrinsic
def interleave(typingctx, a, b):
    """a[0], b[0], a[1], b[1], ...: the inverse of `even` and `odd`."""
    if not isinstance(a, Vector) or a != b:
        return None

    def codegen(context, builder, sig, args):
        lanes = [i + k * a.lanes for i in range(a.lanes) for k in (0, 1)]
        return _permute(builder, *args, lanes)

    return Vector(a.dtype, 2 * a.lanes)(a, b), codegen


@intrinsic(prefer_literal=True)
def turned(typingctx, v, by):
    """v[by], v[by + 1], ..., v[by - 1]: lane i becomes lane i - by; `by` is a literal."""
    steps = literal_of(by)
    if steps is None or not isinstance(v, Vector):
        return None

    def codegen(context, builder, sig, args):
        return _permute(builder, args[0], args[0], [(i + steps) % v.lanes for i in range(v.lanes)])

    return v(v, by), codegen


@intrinsic(prefer_literal=True)
def picked(typingctx, v, first, step, count):
    """`count` lanes of a vector from `first` on, `step` apart; all three are literals."""
    chosen = [literal_of(x) for x in (first, step, count)]
    if None in chosen or not isinstance(v, Vector):
        return None

    def codegen(context, builder, sig, args):
        start, apart, n = chosen
        return _permute(builder, args[0], args[0], range(start, start + n * apart, apart))

    return Vector(v.dtype, chosen[2])(v, first, step, count), codegen


@intrinsic(prefer_literal=True)
def repeated(typingctx, v, times, each):
    """The lanes of a vector, each `each` times, all of it `times` times; both are literals."""
    chosen = [literal_of(x) for x in (times, each)]
    if None in chosen or not isinstance(v, Vector):
        return None

    def codegen(context, builder, sig, args):
        return _permute(builder, args[0], args[0], [k // chosen[1] for k in range(v.lanes * chosen[1])] * chosen[0])

    return Vector(v.dtype, v.lanes * chosen[0] * chosen[1])(v, times, each), codegen


def _of_many(name, doc, places):
    """An intrinsic that makes one vector of a tuple of them: `places(lanes, how many)` are (vector, lane) in turn."""

    @intrinsic
    def function(typingctx, vectors):
        if not isinstance(vectors, types.UniTuple) or not isinstance(vectors.dtype, Vector):
            return None
        v, count = vectors.dtype, len(vectors)

        def codegen(context, builder, sig, args):
            parts = cgutils.unpack_tuple(builder, args[0], count)
            out = ir.Constant(ir.VectorType(parts[0].type.element, v.lanes * count), ir.Undefined)
            for i, (k, j) in enumerate(places(v.lanes, count)):
                one = builder.extract_element(parts[k], ir.Constant(I32, j))
                out = builder.insert_element(out, one, ir.Constant(I32, i))
            return out

        return Vector(v.dtype, v.lanes * count)(vectors), codegen

    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc
    return function


dealt = _of_many(
    "dealt", "The first lanes of all vectors of a tuple, then the second ones, ...: `picked` lanes put back.",
    lambda lanes, count: [(k, j) for j in range(lanes) for k in range(count)],
)  # fmt: skip
queued = _of_many(
    "queued", "The vectors of a tuple one after the other.",
    lambda lanes, count: [(k, j) for k in range(count) for j in range(lanes)],
)  # fmt: skip


@intrinsic(prefer_literal=True)
def turned_around(typingctx, v, each):
    """The lanes of each part of `each` (a literal) from the last to the first."""
    n = literal_of(each)
    if n is None or not isinstance(v, Vector):
        return None

    def codegen(context, builder, sig, args):
        return _permute(builder, args[0], args[0], [i - i % n + n - 1 - i % n for i in range(v.lanes)])

    return v(v, each), codegen


@intrinsic
def reverse(typingctx, v):
    """The lanes from the last to the first."""
    if not isinstance(v, Vector):
        return None

    def codegen(context, builder, sig, args):
        return _permute(builder, args[0], args[0], range(v.lanes - 1, -1, -1))

    return v(v), codegen


def _across(name, doc, symbol):
    """An intrinsic that folds a vector in halves to its largest or smallest lane."""

    @intrinsic
    def function(typingctx, v):
        if not isinstance(v, Vector):
            return None

        def codegen(context, builder, sig, args):
            (value,) = args
            count, bad = v.lanes, None
            floating = is_float(v.dtype)
            signed = floating or getattr(v.dtype, "signed", False)
            compare = builder.fcmp_ordered if floating else builder.icmp_signed if signed else builder.icmp_unsigned
            while count > 1:
                if floating and bad is None and count <= isa.lanes():  # one test of a register, not one per round
                    mask = builder.bitcast(builder.fcmp_unordered("uno", value, value), ir.IntType(count))
                    bad = builder.icmp_unsigned("!=", mask, ir.Constant(mask.type, 0))
                count //= 2
                a = _permute(builder, value, value, range(count))
                b = _permute(builder, value, value, range(count, 2 * count))
                value = builder.select(compare(symbol, a, b), a, b)
                if floating and bad is None:
                    value = builder.select(builder.fcmp_unordered("uno", a, a), a, value)
            value = builder.extract_element(value, ir.Constant(I32, 0))
            return value if bad is None else builder.select(bad, ir.Constant(value.type, float("nan")), value)

        return v.dtype(v), codegen

    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc
    return function


# `simd.reduce_max` also orders -0 below 0, for 50 instructions instead of 15.
largest = _across("largest", "The largest lane, NaN if one is.", ">")
smallest = _across("smallest", "The smallest lane, NaN if one is.", "<")


@jit.inline
def larger(a, b):
    """The larger of each pair of lanes, NaN if one is. `vmax` also orders -0 below 0: twice the instructions."""
    return select(a != a, a, select(a > b, a, b))


@jit.inline
def smaller(a, b):
    """The smaller of each pair of lanes, NaN if one is."""
    return select(a != a, a, select(a < b, a, b))


@intrinsic(prefer_literal=True)
def transpose_tile(typingctx, target, target_stride, source, source_stride, size):
    """target[i, j] = source[j, i] for a tile of `size` x `size` (a literal power of two); unit columns.

    log2(size) rounds of shuffles on `size` vectors: exchanging bit k of the row index with bit k of
    the lane index in round k.
    """
    if not isinstance(target, Pointer) or not isinstance(size, types.Literal):
        return None
    count, dtype = size.literal_value, target.dtype

    def codegen(context, builder, sig, args):
        kind = ir.VectorType(memory_type(dtype), count)
        i64 = ir.IntType(64)

        def row(base, stride, i):
            at = gep(context, builder, base, dtype, builder.mul(stride, ir.Constant(i64, i)))
            return builder.bitcast(at, kind.as_pointer())

        target_stride = context.cast(builder, args[1], sig.args[1], types.int64)
        source_stride = context.cast(builder, args[3], sig.args[3], types.int64)
        rows = []
        for i in range(count):
            value = builder.load(row(args[2], source_stride, i))
            value.align = element_bytes(dtype)
            rows.append(value)
        bit = 1
        while bit < count:
            lower = [((j & bit) and count + j - bit) or j for j in range(count)]
            upper = [((j & bit) and count + j) or j + bit for j in range(count)]
            for i in range(count):
                if not i & bit:
                    a, b = rows[i], rows[i + bit]
                    rows[i] = _permute(builder, a, b, lower)
                    rows[i + bit] = _permute(builder, a, b, upper)
            bit *= 2
        for i in range(count):
            builder.store(rows[i], row(args[0], target_stride, i)).align = element_bytes(dtype)
        return context.get_dummy_value()

    plain = [types.unliteral(t) for t in (target, target_stride, source, source_stride)]
    return types.void(*plain, size), codegen
