"""A part of a row in the registers of a thread: some vectors of it, equally far apart, as one long vector.

The threads of a warp (or block) each begin at a vector of their own, so that together they read contiguous memory.
"""

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from .memory import element_bytes, from_memory, to_memory, vector_load, vector_store
from .vector import I32, I64, Pointer, Vector, compute_type, literal_of


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
