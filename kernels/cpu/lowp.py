"""float16, bfloat16 and float8 as Numba scalar types on the CPU.

Numba has no half-precision type for CPUs. These types are *storage* types: memory holds their bits,
and every load widens to float32 (every store rounds to nearest even). `simd.py` does both, for
scalars and for vectors. float8 follows the OCP 8-bit formats: e4m3fn (no infinity) and e5m2.
"""

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
float8_e4m3 = StorageFloat("ic_float8_e4m3", 8)
float8_e5m2 = StorageFloat("ic_float8_e5m2", 8)

I8, I16, I32 = ir.IntType(8), ir.IntType(16), ir.IntType(32)
F16, F32 = ir.HalfType(), ir.FloatType()


def _like(value, element):
    """The LLVM type `element`, as a vector when `value` is one."""
    if isinstance(value.type, ir.VectorType):
        return ir.VectorType(element, value.type.count)
    return element


def constant(value, element, number):
    """A constant of type `element`, splatted over the lanes of `value`."""
    kind = _like(value, element)
    if isinstance(kind, ir.VectorType):
        return ir.Constant(kind, [number] * kind.count)
    return ir.Constant(kind, number)


def widen(builder, dtype, bits):
    """LLVM IR for `dtype` bits (scalar or vector of integers) -> float32."""
    if dtype is float16 or dtype == float16:
        return builder.fpext(builder.bitcast(bits, _like(bits, F16)), _like(bits, F32))
    if dtype == bfloat16:
        wide = builder.zext(bits, _like(bits, I32))
        return builder.bitcast(builder.shl(wide, constant(bits, I32, 16)), _like(bits, F32))
    if dtype == float8_e5m2:  # the upper byte of a float16
        half = builder.shl(builder.zext(bits, _like(bits, I16)), constant(bits, I16, 8))
        return builder.fpext(builder.bitcast(half, _like(bits, F16)), _like(bits, F32))
    # e4m3fn: exponent bias 7. Placed into float16 (bias 15) the value is 2^-8 of the right one, and
    # subnormals come out right; 0x7f is the only NaN.
    wide = builder.zext(bits, _like(bits, I16))
    sign = builder.shl(builder.and_(wide, constant(bits, I16, 0x80)), constant(bits, I16, 8))
    rest = builder.shl(builder.and_(wide, constant(bits, I16, 0x7F)), constant(bits, I16, 7))
    half = builder.bitcast(builder.or_(sign, rest), _like(bits, F16))
    value = builder.fmul(builder.fpext(half, _like(bits, F32)), constant(bits, F32, 256.0))
    nan = builder.icmp_unsigned("==", builder.and_(bits, constant(bits, I8, 0x7F)), constant(bits, I8, 0x7F))
    return builder.select(nan, constant(bits, F32, float("nan")), value)


def narrow(builder, dtype, value):
    """LLVM IR for float32 (scalar or vector) -> `dtype` bits, rounded to nearest even."""
    if dtype == float16:
        return builder.bitcast(builder.fptrunc(value, _like(value, F16)), _like(value, I16))
    bits = builder.bitcast(value, _like(value, I32))

    def c(number):
        return constant(value, I32, number)

    nan = builder.fcmp_unordered("uno", value, value)
    if dtype == bfloat16:
        odd = builder.and_(builder.lshr(bits, c(16)), c(1))
        rounded = builder.add(bits, builder.add(odd, c(0x7FFF)))
        rounded = builder.select(nan, builder.or_(bits, c(0x400000)), rounded)
        return builder.trunc(builder.lshr(rounded, c(16)), _like(value, I16))
    sign = builder.and_(builder.lshr(bits, c(24)), c(0x80))
    magnitude = builder.and_(bits, c(0x7FFFFFFF))
    if dtype == float8_e5m2:
        bias, mantissa, smallest, nan_code, top, top_code = 15, 2, 2.0**-14, 0x7F, 0x47700000, 0x7C
    else:
        bias, mantissa, smallest, nan_code, top, top_code = 7, 3, 2.0**-6, 0x7F, 0x43E80001, 0x7F
    shift = 23 - mantissa
    odd = builder.and_(builder.lshr(magnitude, c(shift)), c(1))
    rounded = builder.add(magnitude, builder.add(odd, c((1 << (shift - 1)) - 1)))
    normal = builder.sub(builder.lshr(rounded, c(shift)), c((127 - bias) << mantissa))
    # Subnormals: adding 2^(23 - mantissa) * smallest leaves the rounded mantissa in the low bits.
    magic = smallest * 2.0 ** (23 - mantissa)
    absolute = builder.bitcast(magnitude, _like(value, F32))
    sub_bits = builder.bitcast(builder.fadd(absolute, constant(value, F32, magic)), _like(value, I32))
    magic_bits = builder.bitcast(constant(value, F32, magic), _like(value, I32))
    subnormal = builder.sub(sub_bits, magic_bits)
    small = builder.fcmp_ordered("<", absolute, constant(value, F32, smallest))
    code = builder.select(small, subnormal, normal)
    code = builder.select(builder.icmp_unsigned(">=", magnitude, c(top)), c(top_code), code)
    code = builder.select(nan, c(nan_code), code)
    return builder.trunc(builder.or_(code, sign), _like(value, I8))
