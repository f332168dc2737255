"""Dot products of neighbours in a lane, as LLVM IR: of two bfloat16 (`vdpbf16ps`), and of four bytes (`vpdpbusd`).

For CPUs that have them (`isa.has_bf16_dot`, `has_int8_dot`). Whether they are used is a choice (`build/rates.py`).
"""

from llvmlite import ir
from numba.core import cgutils

from .lowp import BFLOAT
from .vector import I32


def _call(builder, name, total, operands, kind):
    vectors = [builder.bitcast(x, kind) for x in operands]
    function = ir.FunctionType(total.type, [total.type, kind, kind])
    name = f"llvm.x86.{name}.{32 * total.type.count}"
    return builder.call(cgutils.get_or_insert_function(builder.module, function, name), [total, *vectors])


def dot_pairs(builder, total, a, b):
    """`total`, float32 lanes, plus both products of the bfloat16 pairs in the lanes of `a` and `b`."""
    return _call(builder, "avx512bf16.dpbf16ps", total, (a, b), ir.VectorType(BFLOAT, 2 * total.type.count))


def dot_quads(builder, total, a, b):
    """`total`, int32 lanes, plus the 4 products of the bytes of each lane: unsigned in `a`, signed in `b`."""
    return _call(builder, "avx512.vpdpbusd", total, (a, b), ir.VectorType(I32, total.type.count))
