"""float16, bfloat16 and float8 as Numba scalar types on the CPU.

Numba has no half-precision type for CPUs. These types are *storage* types: memory holds their bits,
and every load widens to float32 (every store rounds to nearest even): `convert.py`, for scalars and for
vectors. float8 follows the OCP 8-bit formats: e4m3fn (no infinity) and e5m2.
"""

import functools

from llvmlite import ir
from numba import types
from numba.core.datamodel.models import PrimitiveModel
from numba.extending import register_model


class StorageFloat(types.Number):
    """A floating-point format of 8 or 16 bits that is stored as an integer and computed as float32."""

    def __init__(self, name, bitwidth):
        super().__init__(name)
        self.bitwidth = bitwidth


@register_model(StorageFloat)
class _StorageFloatModel(PrimitiveModel):
    def __init__(self, dmm, fe_type):
        super().__init__(dmm, fe_type, ir.IntType(fe_type.bitwidth))


float16 = StorageFloat("ic_float16", 16)
bfloat16 = StorageFloat("ic_bfloat16", 16)
float16_pairs = StorageFloat("ic_float16_pairs", 16)  # the same, which tile registers multiply in pairs
bfloat16_wide = StorageFloat("ic_bfloat16_wide", 16)  # which is multiplied as float32, whatever the CPU has
bfloat16_exact = StorageFloat("ic_bfloat16_exact", 16)  # of values that are bfloat16 already: nothing is rounded
float8_e4m3 = StorageFloat("ic_float8_e4m3", 8)
float8_e5m2 = StorageFloat("ic_float8_e5m2", 8)


class QuantizedFormat(types.Number):
    """A format of quantised weights (a name in `formats.FORMATS`), as a type parameter of kernels."""


@functools.cache
def quantized(name):
    """The `QuantizedFormat` of a name."""
    return QuantizedFormat(name)


class _BFloat(ir.types.Type):
    """LLVM's `bfloat`, which llvmlite lacks; only signatures of instructions mention it."""

    null = "0.0"

    def _to_string(self):
        return "bfloat"

    def __eq__(self, other):
        return isinstance(other, _BFloat)

    def __hash__(self):
        return hash(_BFloat)


BFLOAT = _BFloat()
I8, I16, I32 = ir.IntType(8), ir.IntType(16), ir.IntType(32)
F16, F32 = ir.HalfType(), ir.FloatType()


def like(value, element):
    """The LLVM type `element`, as a vector when `value` is one."""
    if isinstance(value.type, ir.VectorType):
        return ir.VectorType(element, value.type.count)
    return element


def constant(value, element, number):
    """A constant of type `element`, splatted over the lanes of `value`."""
    kind = like(value, element)
    if isinstance(kind, ir.VectorType):
        return ir.Constant(kind, [number] * kind.count)
    return ir.Constant(kind, number)
