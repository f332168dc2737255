"""Functions of the C library on every lane of vectors."""

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from ..build import isa
from .simd import Vector

F32, F64 = types.float32, types.float64
PREFIX = "__nv_" if isa.is_gpu() else ""  # NVIDIA's library has the same functions


def _called(module, function):
    """A function that calls another one, which compilers would inline wherever it is called."""
    name = "infinicore_rare_" + function.name
    if name in module.globals:
        return module.globals[name]
    outer = ir.Function(module, function.function_type, name)
    outer.linkage = "internal"
    outer.attributes.add("noinline")
    builder = ir.IRBuilder(outer.append_basic_block())
    builder.ret(builder.call(function, outer.args))
    return outer


def _on_every_lane(kind, name, skipped=0, rare=False):
    """The code of an intrinsic that calls `name` (of float64; of float32 it ends in f) with its arguments' lanes.

    Where it is `rare`, GPUs call it out of line: eight sines in line made a rule a function of its own, whose results
    go through memory, and that took 181 us for the sines of 64 Mi bfloat16, which memory allows in 63.
    """

    def codegen(context, builder, sig, args):
        args = args[skipped:]
        vector = isinstance(kind, Vector)
        element = args[0].type.element if vector else args[0].type
        full = PREFIX + name + ("f" if (kind.dtype if vector else kind) == F32 else "")
        signature = ir.FunctionType(element, [element] * len(args))
        function = cgutils.get_or_insert_function(builder.module, signature, full)
        if rare and PREFIX:
            function = _called(builder.module, function)
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


@intrinsic(prefer_literal=True)
def rare_libm(typingctx, name, x):
    """The same for a way that few vectors go."""
    return x(name, x), _on_every_lane(x, name.literal_value, 1, rare=True)


def _of_two(name, doc, rare=False):
    @intrinsic
    def function(typingctx, x, y):
        if isinstance(x, Vector) and x == y and x.dtype in (F32, F64):
            return x(x, y), _on_every_lane(x, name, rare=rare)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc
    return function


pow = _of_two("pow", "x ** y on every lane.")
rare_pow = _of_two("pow", "The same for a way that few vectors go.", rare=True)
fmod = _of_two("fmod", "x - n y on every lane, n the quotient without its fraction; exact.")
rare_fmod = _of_two("fmod", "The same for a way that few vectors go.", rare=True)
atan2 = _of_two("atan2", "The angle of the point (y, x) on every lane.")
hypot = _of_two("hypot", "sqrt(x^2 + y^2) on every lane.")
nextafter = _of_two("nextafter", "The next number from x towards y on every lane.")
