"""Functions of the C library on every lane of vectors."""

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from ..build import isa
from .simd import Vector

F32, F64 = types.float32, types.float64
PREFIX = "__nv_" if isa.is_gpu() else ""  # NVIDIA's library has the same functions


def _on_every_lane(kind, name, skipped=0):
    """The code of an intrinsic that calls `name` (of float64; of float32 it ends in f) with its arguments' lanes."""

    def codegen(context, builder, sig, args):
        args = args[skipped:]
        vector = isinstance(kind, Vector)
        element = args[0].type.element if vector else args[0].type
        full = PREFIX + name + ("f" if (kind.dtype if vector else kind) == F32 else "")
        signature = ir.FunctionType(element, [element] * len(args))
        function = cgutils.get_or_insert_function(builder.module, signature, full)
        if not vector:
            return builder.call(function, args)
        out = ir.Constant(args[0].type, ir.Undefined)
        for i in range(kind.lanes):
            at = ir.Constant(ir.IntType(32), i)
            one = builder.call(function, [builder.extract_element(a, at) for a in args])
            out = builder.insert_element(out, one, at)
        return out

    return codegen


@intrinsic(prefer_literal=True)
def libm(typingctx, name, x):
    """The C library's function `name` on every lane (or on a scalar)."""
    return x(name, x), _on_every_lane(x, name.literal_value, 1)


def _of_two(name, doc):
    @intrinsic
    def function(typingctx, x, y):
        if isinstance(x, Vector) and x == y and x.dtype in (F32, F64):
            return x(x, y), _on_every_lane(x, name)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc
    return function


pow = _of_two("pow", "x ** y on every lane.")
fmod = _of_two("fmod", "x - n y on every lane, n the quotient without its fraction; exact.")
atan2 = _of_two("atan2", "The angle of the point (y, x) on every lane.")
hypot = _of_two("hypot", "sqrt(x^2 + y^2) on every lane.")
nextafter = _of_two("nextafter", "The next number from x towards y on every lane.")
