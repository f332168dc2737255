"""LLVM IR from storage floats (`lowp.py`) to float32 and back, for scalars and for vectors."""

from llvmlite import ir
from numba.core import cgutils

from ..build import isa
from .lowp import (
    BFLOAT,
    F16,
    F32,
    I16,
    I32,
    bfloat16,
    bfloat16_exact,
    bfloat16_wide,
    constant,
    float16,
    float16_pairs,
    like,
)
from .ptx import narrow_bfloat16

# name: exponent bias, bits of mantissa, code of NaN, code of overflow, and the float32 bits from which on
# a magnitude overflows (halfway beyond the largest value; e4m3fn has no infinity, so it becomes NaN)
_FORMATS = {
    "ic_float16": (15, 10, 0x7E00, 0x7C00, 0x477FF000),
    "ic_float8_e5m2": (15, 2, 0x7F, 0x7C, 0x47700000),
    "ic_float8_e4m3": (7, 3, 0x7F, 0x7F, 0x43E80001),
}


def _has_float16():
    """Whether the CPU converts float16; else LLVM would call a function that processes do not have."""
    return "f16c" in isa.features() or "neon" in isa.features()


_REGISTER = 16  # float32 of a register of AVX-512
_SUBNORMAL = 0x20  # of the classes of `vfpclassps`


def _has_bfloat16(kind):
    """Whether vectors of this LLVM type are whole registers, and the CPU rounds them to bfloat16."""
    return isinstance(kind, ir.VectorType) and kind.count % _REGISTER == 0 and "avx512bf16" in isa.features()


def widen(builder, dtype, bits):
    """LLVM IR for `dtype` bits (scalar or vector of integers) -> float32."""
    if dtype in (bfloat16, bfloat16_wide, bfloat16_exact):
        wide = builder.zext(bits, like(bits, I32))
        return builder.bitcast(builder.shl(wide, constant(bits, I32, 16)), like(bits, F32))
    if dtype in (float16, float16_pairs) and _has_float16():
        return builder.fpext(builder.bitcast(bits, like(bits, F16)), like(bits, F32))
    # Exponent and mantissa are moved to their places in a float32, and a product corrects the bias;
    # it also turns subnormals into normal numbers.
    bias, mantissa, nan_code, top_code, _ = _FORMATS[dtype.name]

    def c(number):
        return constant(bits, I32, number)

    wide = builder.zext(bits, like(bits, I32))
    magnitude = builder.and_(wide, c((1 << (dtype.bitwidth - 1)) - 1))
    sign = builder.shl(builder.lshr(wide, c(dtype.bitwidth - 1)), c(31))
    placed = builder.bitcast(builder.shl(magnitude, c(23 - mantissa)), like(bits, F32))
    value = builder.fmul(placed, constant(bits, F32, 2.0 ** (127 - bias)))
    code = builder.or_(builder.bitcast(value, like(bits, I32)), sign)
    nan = builder.icmp_unsigned(">" if top_code != nan_code else ">=", magnitude, c(top_code))
    if top_code != nan_code:
        infinite = builder.icmp_unsigned("==", magnitude, c(top_code))
        code = builder.select(infinite, builder.or_(sign, c(0x7F800000)), code)
    code = builder.select(nan, builder.or_(sign, c(0x7FC00000)), code)
    return builder.bitcast(code, like(bits, F32))


def narrow(builder, dtype, value):
    """LLVM IR for float32 (scalar or vector) -> `dtype` bits, rounded to nearest even."""
    if dtype == bfloat16_exact:
        bits = builder.bitcast(value, like(value, I32))
        return builder.trunc(builder.lshr(bits, constant(value, I32, 16)), like(value, I16))
    if dtype in (bfloat16, bfloat16_wide):
        return _narrow_bfloat16(builder, value)
    if dtype in (float16, float16_pairs) and _has_float16():
        return builder.bitcast(builder.fptrunc(value, like(value, F16)), like(value, I16))
    bits = builder.bitcast(value, like(value, I32))

    def c(number):
        return constant(value, I32, number)

    nan = builder.fcmp_unordered("uno", value, value)
    bias, mantissa, nan_code, top_code, top = _FORMATS[dtype.name]
    smallest = 2.0 ** (1 - bias)
    width = dtype.bitwidth
    sign = builder.shl(builder.lshr(bits, c(31)), c(width - 1))
    magnitude = builder.and_(bits, c(0x7FFFFFFF))
    shift = 23 - mantissa
    odd = builder.and_(builder.lshr(magnitude, c(shift)), c(1))
    rounded = builder.add(magnitude, builder.add(odd, c((1 << (shift - 1)) - 1)))
    normal = builder.sub(builder.lshr(rounded, c(shift)), c((127 - bias) << mantissa))
    # Subnormals: adding 2^(23 - mantissa) * smallest leaves the rounded mantissa in the low bits.
    magic = constant(value, F32, smallest * 2.0 ** (23 - mantissa))
    absolute = builder.bitcast(magnitude, like(value, F32))
    shifted = builder.bitcast(builder.fadd(absolute, magic), like(value, I32))
    subnormal = builder.sub(shifted, builder.bitcast(magic, like(value, I32)))
    small = builder.fcmp_ordered("<", absolute, constant(value, F32, smallest))
    code = builder.select(small, subnormal, normal)
    code = builder.select(builder.icmp_unsigned(">=", magnitude, c(top)), c(top_code), code)
    code = builder.select(nan, c(nan_code), code)
    return builder.trunc(builder.or_(code, sign), like(value, ir.IntType(width)))


def _narrow_bfloat16(builder, value):
    """LLVM IR for float32 -> bfloat16 bits.

    The instruction takes a fifth to a third off the time of an addition, exp and the like of 16-bit floats, but makes
    zeros of subnormal numbers; where a vector has some, integers round it.
    """
    if isa.is_gpu():
        return narrow_bfloat16(builder, value)
    if not _has_bfloat16(value.type):
        return _rounded_by_integers(builder, value)
    registers, found = [], ir.Constant(ir.IntType(_REGISTER), 0)
    for first in range(0, value.type.count, _REGISTER):
        lanes = ir.Constant(ir.VectorType(I32, _REGISTER), list(range(first, first + _REGISTER)))
        own = builder.shuffle_vector(value, value, lanes)
        kind = ir.FunctionType(ir.VectorType(ir.IntType(1), _REGISTER), [own.type, I32])
        classes = cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.avx512.fpclass.ps.512")
        mask = builder.call(classes, [own, ir.Constant(I32, _SUBNORMAL)])
        found = builder.or_(found, builder.bitcast(mask, ir.IntType(_REGISTER)))
        kind = ir.FunctionType(ir.VectorType(BFLOAT, _REGISTER), [own.type])
        convert = cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.avx512bf16.cvtneps2bf16.512")
        registers.append(builder.bitcast(builder.call(convert, [own]), ir.VectorType(I16, _REGISTER)))
    while len(registers) > 1:
        lanes = ir.Constant(ir.VectorType(I32, 2 * registers[0].type.count), list(range(2 * registers[0].type.count)))
        registers = [builder.shuffle_vector(a, b, lanes) for a, b in zip(registers[::2], registers[1::2])]
    before = builder.block
    with builder.if_then(builder.icmp_unsigned("!=", found, ir.Constant(found.type, 0)), likely=False):
        by_integers, there = _rounded_by_integers(builder, value), builder.block
    rounded = builder.phi(by_integers.type)
    rounded.add_incoming(registers[0], before)
    rounded.add_incoming(by_integers, there)
    return rounded


def _rounded_by_integers(builder, value):
    """LLVM IR for float32 -> bfloat16 bits, rounded to nearest even; NaN stays NaN."""
    bits = builder.bitcast(value, like(value, I32))

    def c(number):
        return constant(value, I32, number)

    nan = builder.fcmp_unordered("uno", value, value)
    odd = builder.and_(builder.lshr(bits, c(16)), c(1))
    rounded = builder.add(bits, builder.add(odd, c(0x7FFF)))
    rounded = builder.select(nan, builder.or_(bits, c(0x400000)), rounded)
    return builder.trunc(builder.lshr(rounded, c(16)), like(value, I16))
