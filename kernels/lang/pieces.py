"""A part of a row in the registers of a thread: some vectors of it, equally far apart, as one long vector.

The threads of a warp (or block) each begin at a vector of their own, so that together they read contiguous memory.
"""

import functools

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from .memory import alignment, element_bytes, from_memory, gep, to_memory, vector_load, vector_store
from .vector import I32, I64, Pointer, Vector, compute_type, literal_of, memory_type


def _pieces(context, builder, sig, args, count):
    """(number of the piece, its first element, whether that is inside of the row) for each piece."""
    first, apart, size = (context.cast(builder, v, t, types.int64) for v, t in zip(args, sig))
    for k in range(count):
        at = builder.add(first, builder.mul(apart, ir.Constant(I64, k)))
        yield k, at, builder.icmp_signed("<", at, size)


def _align(p, lanes):
    return min(16, lanes * element_bytes(p.dtype))


@intrinsic(prefer_literal=True)
def vload_pieces(typingctx, p, first, apart, size, lanes, pieces):
    """`lanes` elements from `first`, `first + apart`, ... on: `pieces` times so many, widened to their compute type.

    Pieces from element `size` on are zeros; the others lie at multiples of 16 bytes, and element 0 is there. Nothing
    is a branch: a piece that is not there reads element 0.
    """
    each, count = literal_of(lanes), literal_of(pieces)
    if not isinstance(p, Pointer) or each is None or count is None:
        return None

    def codegen(context, builder, sig, args):
        out, zero = ir.Constant(ir.VectorType(context.get_value_type(compute_type(p.dtype)), each * count), None), None
        for k, at, inside in _pieces(context, builder, sig.args[1:4], args[1:4], count):
            at = builder.select(inside, at, ir.Constant(I64, 0))
            value = vector_load(context, builder, args[0], p.dtype, at, each, align=_align(p, each))
            value = from_memory(builder, p.dtype, value)
            zero = ir.Constant(value.type, None)
            value = builder.select(inside, value, zero)
            for j in range(each):
                one = builder.extract_element(value, ir.Constant(I32, j))
                out = builder.insert_element(out, one, ir.Constant(I32, k * each + j))
        return out

    return Vector(compute_type(p.dtype), each * count)(p, first, apart, size, lanes, pieces), codegen


@intrinsic(prefer_literal=True)
def vstore_pieces(typingctx, p, first, apart, size, value, pieces):
    """Store the vector that `vload_pieces` would read there."""
    count = literal_of(pieces)
    if not isinstance(p, Pointer) or not isinstance(value, Vector) or count is None:
        return None
    each = value.lanes // count

    def codegen(context, builder, sig, args):
        for k, at, inside in _pieces(context, builder, sig.args[1:4], args[1:4], count):
            lanes = ir.Constant(ir.VectorType(I32, each), list(range(k * each, (k + 1) * each)))
            part = builder.shuffle_vector(args[4], args[4], lanes)
            with builder.if_then(inside):
                bits = to_memory(builder, p.dtype, part)
                vector_store(context, builder, args[0], p.dtype, at, bits, align=_align(p, each))
        return context.get_dummy_value()

    return types.void(p, first, apart, size, value, pieces), codegen


@intrinsic(prefer_literal=True)
def vpiece(typingctx, v, number, lanes):
    """The piece of a number (a literal) of such a vector."""
    which, each = literal_of(number), literal_of(lanes)
    if not isinstance(v, Vector) or which is None or each is None:
        return None

    def codegen(context, builder, sig, args):
        places = ir.Constant(ir.VectorType(I32, each), list(range(which * each, (which + 1) * each)))
        return builder.shuffle_vector(args[0], args[0], places)

    return Vector(v.dtype, each)(v, number, lanes), codegen


@intrinsic(prefer_literal=True)
def inside_pieces(typingctx, first, apart, size, lanes, pieces):
    """Which lanes of such a vector are elements of the row."""
    each, count = literal_of(lanes), literal_of(pieces)
    if each is None or count is None:
        return None

    def codegen(context, builder, sig, args):
        out = ir.Constant(ir.VectorType(ir.IntType(1), each * count), ir.Undefined)
        for k, _, inside in _pieces(context, builder, sig.args[:3], args[:3], count):
            for j in range(each):
                out = builder.insert_element(out, inside, ir.Constant(I32, k * each + j))
        return out

    return Vector(types.boolean, each * count)(first, apart, size, lanes, pieces), codegen


# ---- rows that begin anywhere -------------------------------------------------------------------
# A pointer p is to a multiple of 16 bytes (or of `lanes` elements), and of what follows it the elements [low, high) are
# the row, low < lanes. Pieces may have any places, also negative ones.


def _loads(p, first, apart, high, lanes, pieces, place):
    """What an intrinsic returns that loads pieces from where `place(builder, number, at, inside)` says."""
    each, count = literal_of(lanes), literal_of(pieces)
    if not isinstance(p, Pointer) or each is None or count is None:
        return None

    def codegen(context, builder, sig, args):
        found = []
        for k, at, inside in _pieces(context, builder, sig.args[1:4], args[1:4], count):
            at = place(builder, k, at, inside)
            value = vector_load(context, builder, args[0], p.dtype, at, each, align=_align(p, each))
            found.append(from_memory(builder, p.dtype, value))
        return _queue(builder, found)

    return Vector(compute_type(p.dtype), each * count)(p, first, apart, high, lanes, pieces), codegen


@intrinsic(prefer_literal=True)
def vload_span(typingctx, p, first, apart, high, lanes, pieces):
    """As `vload_pieces`, of such a row: of pieces that overlap it all lanes are read, and for others those at p."""

    def place(builder, k, at, inside):
        zero = ir.Constant(I64, 0)
        return builder.select(builder.and_(inside, builder.icmp_signed(">=", at, zero)), at, zero)

    return _loads(p, first, apart, high, lanes, pieces, place)


@intrinsic(prefer_literal=True)
def vgather_span(typingctx, p, first, apart, low, high, lanes, pieces):
    """The same element by element, wherever p is; for lanes outside of [low, high) element `low` is read."""
    each, count = literal_of(lanes), literal_of(pieces)
    if not isinstance(p, Pointer) or each is None or count is None:
        return None

    def codegen(context, builder, sig, args):
        low, high = (context.cast(builder, args[k], sig.args[k], types.int64) for k in (3, 4))
        kind = ir.VectorType(memory_type(p.dtype), each)
        found = []
        for _, at, _ in _pieces(context, builder, (*sig.args[1:3], sig.args[4]), (*args[1:3], args[4]), count):
            value = ir.Constant(kind, ir.Undefined)
            for j in range(each):
                place = builder.add(at, ir.Constant(I64, j))
                place = builder.select(_between(builder, place, low, high), place, low)
                one = builder.load(gep(context, builder, args[0], p.dtype, place))
                one.align = alignment(p.dtype)
                value = builder.insert_element(value, one, ir.Constant(I32, j))
            found.append(from_memory(builder, p.dtype, value))
        return _queue(builder, found)

    return Vector(compute_type(p.dtype), each * count)(p, first, apart, low, high, lanes, pieces), codegen


@intrinsic(prefer_literal=True)
def vstore_span(typingctx, p, first, apart, low, high, left, lined, value, pieces):
    """Store the lanes of such a vector that lie in [low, high), of each piece only the `left` first ones.

    Whole pieces are stored at once, if p is `lined` up.
    """
    count = literal_of(pieces)
    if not isinstance(p, Pointer) or not isinstance(value, Vector) or count is None:
        return None
    each = value.lanes // count

    def codegen(context, builder, sig, args):
        low, high, left = (context.cast(builder, args[k], sig.args[k], types.int64) for k in (3, 4, 5))
        lined = context.cast(builder, args[6], sig.args[6], types.boolean)
        lined = builder.and_(lined, builder.icmp_signed(">=", left, ir.Constant(I64, each)))
        for k, at, _ in _pieces(context, builder, (*sig.args[1:3], sig.args[4]), (*args[1:3], args[4]), count):
            lanes = ir.Constant(ir.VectorType(I32, each), list(range(k * each, (k + 1) * each)))
            bits = to_memory(builder, p.dtype, builder.shuffle_vector(args[7], args[7], lanes))
            end = builder.add(at, ir.Constant(I64, each))
            whole = builder.and_(builder.icmp_signed(">=", at, low), builder.icmp_signed("<=", end, high))
            with builder.if_else(builder.and_(whole, lined)) as (then, otherwise):
                with then:
                    vector_store(context, builder, args[0], p.dtype, at, bits, align=_align(p, each))
                with otherwise:
                    for j in range(each):
                        place = builder.add(at, ir.Constant(I64, j))
                        there = builder.icmp_signed("<", ir.Constant(I64, j), left)
                        with builder.if_then(builder.and_(there, _between(builder, place, low, high))):
                            one = builder.extract_element(bits, ir.Constant(I32, j))
                            out = builder.store(one, gep(context, builder, args[0], p.dtype, place))
                            out.align = alignment(p.dtype)
        return context.get_dummy_value()

    return types.void(p, first, apart, low, high, left, lined, value, pieces), codegen


@intrinsic(prefer_literal=True)
def span_places(typingctx, first, apart, T, step, lanes, pieces):
    """The places of such lanes as integers of type T; within a piece they are `step` (a literal) apart."""
    inner, each, count = literal_of(step), literal_of(lanes), literal_of(pieces)
    if None in (inner, each, count):
        return None
    dtype = T.instance_type

    def codegen(context, builder, sig, args):
        first, apart = (context.cast(builder, v, t, dtype) for v, t in zip(args[:2], sig.args[:2]))
        one = first.type
        out = ir.Constant(ir.VectorType(one, each * count), ir.Undefined)
        for k in range(count):
            at = builder.add(first, builder.mul(apart, ir.Constant(one, k)))
            for j in range(each):
                place = builder.add(at, ir.Constant(one, j * inner))
                out = builder.insert_element(out, place, ir.Constant(I32, k * each + j))
        return out

    return Vector(dtype, each * count)(first, apart, T, step, lanes, pieces), codegen


def _between(builder, place, low, high):
    return builder.and_(builder.icmp_signed(">=", place, low), builder.icmp_signed("<", place, high))


def _queue(builder, vectors):
    """Vectors one after the other."""
    each = vectors[0].type.count
    out = ir.Constant(ir.VectorType(vectors[0].type.element, each * len(vectors)), ir.Undefined)
    for k, value in enumerate(vectors):
        for j in range(each):
            one = builder.extract_element(value, ir.Constant(I32, j))
            out = builder.insert_element(out, one, ir.Constant(I32, k * each + j))
    return out


# ---- rows that threads hold -----------------------------------------------------------------------
# As above, and the pieces of all threads follow one another without gaps: `count` of each thread, `apart` being all
# threads' lanes, where one less would not hold the row. So only the first piece can begin before the row, and only the
# last two can end behind it: nothing is asked of the others.


def _of_row(builder, k, count, place, low, high):
    """Whether a place of piece k is one of the row."""
    tests = [builder.icmp_signed(">=", place, low)] if k == 0 else []
    tests += [builder.icmp_signed("<", place, high)] if k >= count - 2 else []
    return functools.reduce(builder.and_, tests, ir.Constant(ir.IntType(1), 1))


@intrinsic(prefer_literal=True)
def vload_held(typingctx, p, first, apart, high, lanes, pieces):
    """As `vload_span`, of such pieces."""

    def place(builder, k, at, inside):
        return builder.select(inside, at, ir.Constant(I64, 0)) if k == literal_of(pieces) - 1 else at

    return _loads(p, first, apart, high, lanes, pieces, place)


@intrinsic(prefer_literal=True)
def vgather_held(typingctx, p, first, apart, low, high, lanes, pieces):
    """The same element by element, wherever p is; for lanes outside of the row element `low` is read."""
    each, count = literal_of(lanes), literal_of(pieces)
    if not isinstance(p, Pointer) or each is None or count is None:
        return None

    def codegen(context, builder, sig, args):
        first, apart, low, high = (context.cast(builder, v, t, types.int64) for v, t in zip(args[1:5], sig.args[1:5]))
        found = []
        for k in range(count):
            value = ir.Constant(ir.VectorType(memory_type(p.dtype), each), ir.Undefined)
            at = builder.add(first, builder.mul(apart, ir.Constant(I64, k)))
            for j in range(each):
                place = builder.add(at, ir.Constant(I64, j))
                place = builder.select(_of_row(builder, k, count, place, low, high), place, low)
                one = builder.load(gep(context, builder, args[0], p.dtype, place))
                one.align = alignment(p.dtype)
                value = builder.insert_element(value, one, ir.Constant(I32, j))
            found.append(from_memory(builder, p.dtype, value))
        return _queue(builder, found)

    return Vector(compute_type(p.dtype), each * count)(p, first, apart, low, high, lanes, pieces), codegen


@intrinsic(prefer_literal=True)
def inside_held(typingctx, first, apart, low, high, lanes, pieces):
    """Which lanes of such a vector are elements of the row."""
    each, count = literal_of(lanes), literal_of(pieces)
    if each is None or count is None:
        return None

    def codegen(context, builder, sig, args):
        first, apart, low, high = (context.cast(builder, v, t, types.int32) for v, t in zip(args[:4], sig.args[:4]))
        out = ir.Constant(ir.VectorType(ir.IntType(1), each * count), ir.Undefined)
        for k in range(count):
            at = builder.add(first, builder.mul(apart, ir.Constant(I32, k)))
            for j in range(each):
                inside = _of_row(builder, k, count, builder.add(at, ir.Constant(I32, j)), low, high)
                out = builder.insert_element(out, inside, ir.Constant(I32, k * each + j))
        return out

    return Vector(types.boolean, each * count)(first, apart, low, high, lanes, pieces), codegen


@intrinsic(prefer_literal=True)
def vstore_held(typingctx, p, first, apart, low, high, value, pieces):
    """Store the lanes of such a vector that are elements of the row."""
    count = literal_of(pieces)
    if not isinstance(p, Pointer) or not isinstance(value, Vector) or count is None:
        return None
    each = value.lanes // count

    def codegen(context, builder, sig, args):
        first, apart, low, high = (context.cast(builder, v, t, types.int64) for v, t in zip(args[1:5], sig.args[1:5]))
        for k in range(count):
            at = builder.add(first, builder.mul(apart, ir.Constant(I64, k)))
            lanes = ir.Constant(ir.VectorType(I32, each), list(range(k * each, (k + 1) * each)))
            bits = to_memory(builder, p.dtype, builder.shuffle_vector(args[5], args[5], lanes))
            ends = builder.add(at, ir.Constant(I64, each - 1))
            whole = [_of_row(builder, k, count, place, low, high) for place in (at, ends)]
            with builder.if_else(builder.and_(*whole)) as (then, otherwise):
                with then:
                    vector_store(context, builder, args[0], p.dtype, at, bits, align=_align(p, each))
                with otherwise:
                    for j in range(each):
                        place = builder.add(at, ir.Constant(I64, j))
                        with builder.if_then(_of_row(builder, k, count, place, low, high)):
                            one = builder.extract_element(bits, ir.Constant(I32, j))
                            out = builder.store(one, gep(context, builder, args[0], p.dtype, place))
                            out.align = alignment(p.dtype)
        return context.get_dummy_value()

    return types.void(p, first, apart, low, high, value, pieces), codegen
