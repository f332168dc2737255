"""Two Numba types for kernels, pointers and vectors, and the LLVM IR that they share."""

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.datamodel.models import PrimitiveModel
from numba.extending import register_model

from . import lowp

I1, I8, I32, I64 = ir.IntType(1), ir.IntType(8), ir.IntType(32), ir.IntType(64)


class Pointer(types.Type):
    """The address of elements of `dtype`; pointer arithmetic counts elements."""

    def __init__(self, dtype):
        self.dtype = dtype
        super().__init__(f"ptr<{dtype}>")


BLOCK = Pointer(types.int64)  # the argument block of a kernel


class Vector(types.Type):
    """`lanes` values of `dtype` in one register (or several: LLVM splits what is too wide)."""

    def __init__(self, dtype, lanes):
        self.dtype, self.lanes = dtype, lanes
        super().__init__(f"vec<{dtype}x{lanes}>")

    @property
    def key(self):
        return self.name


def element_type(dtype):
    """The LLVM type of one lane in a register."""
    if isinstance(dtype, types.Boolean):
        return I1
    if dtype == types.float32:
        return ir.FloatType()
    if dtype == types.float64:
        return ir.DoubleType()
    if isinstance(dtype, types.Complex):
        return ir.LiteralStructType([element_type(dtype.underlying_float)] * 2)
    return ir.IntType(dtype.bitwidth)


def memory_type(dtype):
    """The LLVM type of one element in memory (a bool is a byte)."""
    return I8 if isinstance(dtype, types.Boolean) else element_type(dtype)


def compute_type(dtype):
    """The type that values of `dtype` have after a load."""
    return types.float32 if isinstance(dtype, lowp.StorageFloat) else dtype


def is_float(dtype):
    return dtype in (types.float32, types.float64)


@register_model(Pointer)
class _PointerModel(PrimitiveModel):
    def __init__(self, dmm, fe_type):
        super().__init__(dmm, fe_type, I64)


@register_model(Vector)
class _VectorModel(PrimitiveModel):
    def __init__(self, dmm, fe_type):
        super().__init__(dmm, fe_type, ir.VectorType(element_type(fe_type.dtype), fe_type.lanes))


def suffix(kind):
    """The mangled type name in the name of an LLVM intrinsic."""
    if isinstance(kind, ir.VectorType):
        return f"v{kind.count}{suffix(kind.element)}"
    names = {"float": "f32", "double": "f64", "half": "f16"}
    return names.get(str(kind), str(kind))


def call_llvm(builder, name, result, args, overload=None, fastmath=()):
    """Call the LLVM intrinsic `name.<overload>`; the overload is the result type unless given."""
    full = f"{name}.{suffix(overload or result)}"
    kind = ir.FunctionType(result, [a.type for a in args])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, full), args, fastmath=fastmath)


def splat(builder, value, lanes):
    kind = ir.VectorType(value.type, lanes)
    one = builder.insert_element(ir.Constant(kind, ir.Undefined), value, ir.Constant(I32, 0))
    return builder.shuffle_vector(one, one, ir.Constant(ir.VectorType(I32, lanes), [0] * lanes))


def literal_of(kind):
    return kind.literal_value if isinstance(kind, types.Literal) else None
