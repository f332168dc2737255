"""Vectors of LLVM as a Numba type: explicit SIMD in kernels that are plain Python.

`Vector(dtype, lanes)` values come from loads and splats, and take the ordinary operators, so an
elementwise rule such as `x * m.sigmoid(x)` compiles unchanged for 16 lanes. Nothing depends on the
auto-vectoriser: there are no alias checks (in-place is as fast), no width heuristics, no scalar
tails (the last lanes are masked), and NaN and infinity keep their IEEE meaning.

Memory is addressed by `Pointer(dtype)`, made by `ptr(address, T)`; `p + k` steps `k` elements.
Storage types (float16, bfloat16, float8, see `lowp.py`) widen to float32 in every load and round in
every store.  `T` is a Numba type passed as a value, e.g. `simd.float32` or `lowp.bfloat16`.

All names here are for use inside jitted functions.
"""

import operator

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import intrinsic, lower_builtin, lower_cast

from . import lowp
from .memory import (  # noqa: F401  (this file is where kernels take them from)
    address,
    fence,
    load,
    packed,
    prefetch,
    ptr,
    stack,
    store,
    unpacked,
    vload,
    vload_aligned,
    vload_apart,
    vload_first,
    vpick,
    vput,
    vstore,
    vstore_aligned,
    vstore_first,
    vstore_nontemporal,
)
from .vector import I1, I32, Pointer, Vector, call_llvm, compute_type, element_type, is_float, literal_of, splat, suffix  # noqa: F401

# ---- making and changing vectors ---------------------------------------------------------------


@intrinsic(prefer_literal=True)
def fill(typingctx, value, T, lanes):
    """A vector of `lanes` times the scalar `value`, as the compute type of `T`."""
    count = literal_of(lanes)
    if count is None or not isinstance(T, types.NumberClass):
        return None
    dtype = compute_type(T.instance_type)
    plain = types.unliteral(value)

    def codegen(context, builder, sig, args):
        number = context.cast(builder, args[0], sig.args[0], dtype)
        return splat(builder, number, count)

    return Vector(dtype, count)(plain, T, lanes), codegen


def _saturated(builder, value, goal):
    """Vectors of floats as int32. LLVM's `fptosi.sat` takes them one by one without AVX-512: 1.0 ns each, so 0.2."""
    splat = lambda kind, number: ir.Constant(kind, [ir.Constant(kind.element, number)] * kind.count)
    low, high = splat(value.type, -(2.0**31)), splat(value.type, 2.0**31)
    under, over = builder.fcmp_ordered("<", value, low), builder.fcmp_ordered(">=", value, high)
    outside = builder.or_(builder.fcmp_unordered("uno", value, value), builder.or_(under, over))
    inside = builder.fptosi(builder.select(outside, splat(value.type, 0.0), value), goal)  # NaN becomes 0
    at_least = builder.select(under, splat(goal, -(2**31)), inside)
    return builder.select(over, splat(goal, 2**31 - 1), at_least)


def _convert(context, builder, value, source, target):
    """One vector or scalar of LLVM values from Numba type `source` to `target`."""
    if source == target:
        return value
    goal = lowp.like(value, element_type(target))
    if isinstance(target, types.Boolean):
        zero = ir.Constant(value.type, None)
        return (
            builder.fcmp_unordered("une", value, zero) if is_float(source) else builder.icmp_signed("!=", value, zero)
        )
    if isinstance(source, types.Boolean):
        return builder.uitofp(value, goal) if is_float(target) else builder.zext(value, goal)
    if is_float(source) and is_float(target):
        return builder.fpext(value, goal) if target.bitwidth > source.bitwidth else builder.fptrunc(value, goal)
    if is_float(source):
        # Saturating, so that NaN and values out of range never meet LLVM's undefined behaviour.
        if isinstance(goal, ir.VectorType) and target.signed and target.bitwidth == 32:
            return _saturated(builder, value, goal)
        name = "llvm.fptosi.sat" if target.signed else "llvm.fptoui.sat"
        full = f"{name}.{suffix(goal)}.{suffix(value.type)}"
        kind = ir.FunctionType(goal, [value.type])
        return builder.call(cgutils.get_or_insert_function(builder.module, kind, full), [value])
    if is_float(target):
        return builder.sitofp(value, goal) if source.signed else builder.uitofp(value, goal)
    if target.bitwidth > source.bitwidth:
        return builder.sext(value, goal) if source.signed else builder.zext(value, goal)
    return builder.trunc(value, goal) if target.bitwidth < source.bitwidth else value


@intrinsic
def convert(typingctx, v, T):
    """The lanes of `v` as the compute type of `T`; float to integer truncates and saturates."""
    if not isinstance(v, Vector) or not isinstance(T, types.NumberClass):
        return None
    target = compute_type(T.instance_type)

    def codegen(context, builder, sig, args):
        return _convert(context, builder, args[0], v.dtype, target)

    return Vector(target, v.lanes)(v, T), codegen


@intrinsic
def convert_modulo(typingctx, v, T):
    """As `convert`, but floats beyond a narrow or unsigned integer count modulo 2^bits, as in PyTorch: -3.0 is 253."""
    if not isinstance(v, Vector) or not isinstance(T, types.NumberClass):
        return None
    target = compute_type(T.instance_type)
    wide = None
    if is_float(v.dtype) and isinstance(target, types.Integer):
        wide = types.int32 if target.bitwidth < 32 else types.int64 if target == types.uint32 else None

    def codegen(context, builder, sig, args):
        if wide is None:
            return _convert(context, builder, args[0], v.dtype, target)
        return _convert(context, builder, _convert(context, builder, args[0], v.dtype, wide), wide, target)

    return Vector(target, v.lanes)(v, T), codegen


@intrinsic
def bitcast(typingctx, v, T):
    """The bits of `v` (vector or scalar) read as elements of type `T` of the same width."""
    target = T.instance_type
    result = Vector(target, v.lanes) if isinstance(v, Vector) else target

    def codegen(context, builder, sig, args):
        return builder.bitcast(args[0], lowp.like(args[0], element_type(target)))

    return result(types.unliteral(v), T), codegen


@intrinsic
def select(typingctx, mask, a, b):
    """`a` where the mask is true, else `b`; scalars are splatted."""
    kind = a if isinstance(a, Vector) else b
    if not isinstance(mask, Vector) or not isinstance(kind, Vector):
        return None

    def codegen(context, builder, sig, args):
        one, two = (
            v if isinstance(t, Vector) else splat(builder, context.cast(builder, v, t, kind.dtype), kind.lanes)
            for v, t in zip(args[1:], sig.args[1:])
        )
        return builder.select(args[0], one, two)

    return kind(mask, types.unliteral(a), types.unliteral(b)), codegen


@intrinsic(prefer_literal=True)
def lane(typingctx, v, index):
    """Lane `index` (a literal) of a vector, as a scalar."""
    position = literal_of(index)
    if position is None:
        return None

    def codegen(context, builder, sig, args):
        return builder.extract_element(args[0], ir.Constant(I32, position))

    return v.dtype(v, index), codegen


@intrinsic(prefer_literal=True)
def ramp(typingctx, start, T, lanes):
    """`start, start + 1, ...` over the lanes, of integer type `T`."""
    count, dtype = literal_of(lanes), T.instance_type

    def codegen(context, builder, sig, args):
        base = splat(builder, context.cast(builder, args[0], sig.args[0], dtype), count)
        return builder.add(base, ir.Constant(base.type, list(range(count))))

    return Vector(dtype, count)(types.unliteral(start), T, lanes), codegen


# ---- arithmetic --------------------------------------------------------------------------------

_ARITHMETIC = {
    operator.add: ("fadd", "add"),
    operator.sub: ("fsub", "sub"),
    operator.mul: ("fmul", "mul"),
    operator.truediv: ("fdiv", None),
    operator.floordiv: (None, "udiv"),  # of unsigned integers alone, for which it is the quotient towards 0
    operator.and_: (None, "and_"),
    operator.or_: (None, "or_"),
    operator.xor: (None, "xor"),
    operator.lshift: (None, "shl"),
    operator.rshift: (None, "ashr"),
}
_COMPARE = {
    operator.lt: "<",
    operator.le: "<=",
    operator.gt: ">",
    operator.ge: ">=",
    operator.eq: "==",
    operator.ne: "!=",
}


def _binary_types(args):
    """(vector type, casted argument types) of a binary operation with at least one vector."""
    if len(args) != 2 or not any(isinstance(a, Vector) for a in args):
        return None
    kind = args[0] if isinstance(args[0], Vector) else args[1]
    for a in args:
        if isinstance(a, Vector) and a != kind:
            return None
        if not isinstance(a, (Vector, types.Number, types.Boolean)):
            return None
    return kind


def _operands(context, builder, sig, args, kind):
    out = []
    for value, t in zip(args, sig.args):
        if not isinstance(t, Vector):
            value = splat(builder, context.cast(builder, value, t, kind.dtype), kind.lanes)
        out.append(value)
    return out


def _register_binary(op, names):
    @infer_global(op)
    class _Template(AbstractTemplate):
        def generic(self, args, kws):
            kind = _binary_types(args)
            if kind is None or names[0 if is_float(kind.dtype) else 1] is None:
                return None
            if op is operator.floordiv and kind.dtype.signed:
                return None
            return signature(kind, *[a if isinstance(a, Vector) else types.unliteral(a) for a in args])

    def lower(context, builder, sig, args):
        kind = sig.return_type
        name = names[0 if is_float(kind.dtype) else 1]
        if name == "ashr" and not getattr(kind.dtype, "signed", False):
            name = "lshr"
        a, b = _operands(context, builder, sig, args, kind)
        return getattr(builder, name)(a, b)

    _lower_pairs(op, lower)


def _register_compare(op, symbol):
    @infer_global(op)
    class _Template(AbstractTemplate):
        def generic(self, args, kws):
            kind = _binary_types(args)
            if kind is not None:
                mask = Vector(types.boolean, kind.lanes)
                return signature(mask, *[a if isinstance(a, Vector) else types.unliteral(a) for a in args])

    def lower(context, builder, sig, args):
        kind = next(t for t in sig.args if isinstance(t, Vector))
        a, b = _operands(context, builder, sig, args, kind)
        if is_float(kind.dtype):
            if symbol == "!=":
                return builder.fcmp_unordered("une", a, b)
            return builder.fcmp_ordered(symbol, a, b)
        signed = getattr(kind.dtype, "signed", False)
        return (builder.icmp_signed if signed else builder.icmp_unsigned)(symbol, a, b)

    _lower_pairs(op, lower)


def _lower_pairs(op, lower):
    lower_builtin(op, Vector, Vector)(lower)
    for scalar in (types.Number, types.Boolean):
        lower_builtin(op, Vector, scalar)(lower)
        lower_builtin(op, scalar, Vector)(lower)


for _op, _names in _ARITHMETIC.items():
    _register_binary(_op, _names)
for _op, _symbol in _COMPARE.items():
    _register_compare(_op, _symbol)


@infer_global(operator.neg)
class _Negate(AbstractTemplate):
    def generic(self, args, kws):
        if len(args) == 1 and isinstance(args[0], Vector):
            return signature(args[0], args[0])


@lower_builtin(operator.neg, Vector)
def _negate(context, builder, sig, args):
    return builder.fneg(args[0]) if is_float(sig.return_type.dtype) else builder.neg(args[0])


@infer_global(operator.invert)
class _Invert(AbstractTemplate):
    def generic(self, args, kws):
        if len(args) == 1 and isinstance(args[0], Vector):
            return signature(args[0], args[0])


@lower_builtin(operator.invert, Vector)
def _invert(context, builder, sig, args):
    return builder.not_(args[0])


def _unary(name, llvm_float, llvm_integer=None):
    """An intrinsic of one vector or scalar that maps to one LLVM intrinsic."""

    @intrinsic
    def function(typingctx, x):
        dtype = x.dtype if isinstance(x, Vector) else x
        target = llvm_float if is_float(dtype) else llvm_integer
        if target is None:
            return None

        def codegen(context, builder, sig, args):
            if target == "llvm.abs" and not dtype.signed:
                return args[0]  # which LLVM would take for a signed one: |200| of 8 bits were 56
            extra = [ir.Constant(I1, 0)] if target == "llvm.abs" else []
            kind = ir.FunctionType(args[0].type, [args[0].type] + [I1] * len(extra))
            full = f"{target}.{suffix(args[0].type)}"
            return builder.call(cgutils.get_or_insert_function(builder.module, kind, full), [args[0], *extra])

        return x(x), codegen

    function.__name__ = function.__qualname__ = name
    return function


vabs = _unary("vabs", "llvm.fabs", "llvm.abs")
vsqrt = _unary("vsqrt", "llvm.sqrt")
vfloor = _unary("vfloor", "llvm.floor")
vceil = _unary("vceil", "llvm.ceil")
vtrunc = _unary("vtrunc", "llvm.trunc")
vround = _unary("vround", "llvm.roundeven")


# nsz: of 0.0 and -0.0 either may be the larger, as in PyTorch. Then x86 takes three instructions for a maximum that
# keeps NaN, else six (AVX-512) or five (AVX2).
_ANY_ZERO = ("nsz",)


def _pairwise(name, llvm_float, llvm_signed, llvm_unsigned):
    @intrinsic
    def function(typingctx, a, b):
        kind = a if isinstance(a, Vector) else b if isinstance(b, Vector) else None
        if kind is None and types.unliteral(a) == types.unliteral(b):
            kind = types.unliteral(a)
        if kind is None:
            return None
        dtype = kind.dtype if isinstance(kind, Vector) else kind
        signed = getattr(dtype, "signed", False)
        target = llvm_float if is_float(dtype) else llvm_signed if signed else llvm_unsigned

        def codegen(context, builder, sig, args):
            if isinstance(kind, Vector):
                args = _operands(context, builder, sig, args, kind)
            return call_llvm(builder, target, args[0].type, args, fastmath=_ANY_ZERO if is_float(dtype) else ())

        return kind(types.unliteral(a), types.unliteral(b)), codegen

    function.__name__ = function.__qualname__ = name
    return function


# minimum and maximum propagate NaN, as PyTorch's do.
vmax = _pairwise("vmax", "llvm.maximum", "llvm.smax", "llvm.umax")
vmin = _pairwise("vmin", "llvm.minimum", "llvm.smin", "llvm.umin")


@intrinsic
def muladd(typingctx, a, b, c):
    """`a * b + c`, with one rounding where the hardware can, else with two; scalars are splatted."""
    kind = next((t for t in (a, b, c) if isinstance(t, Vector)), types.unliteral(a))

    def codegen(context, builder, sig, args):
        if isinstance(kind, Vector):
            args = _operands(context, builder, sig, args, kind)
        else:
            args = [context.cast(builder, v, t, kind) for v, t in zip(args, sig.args)]
        return call_llvm(builder, "llvm.fmuladd", args[0].type, args)

    return kind(*[types.unliteral(t) for t in (a, b, c)]), codegen


def _reduction(name, float_name, integer_name, identity=None):
    @intrinsic
    def function(typingctx, v):
        if not isinstance(v, Vector):
            return None
        target = float_name if is_float(v.dtype) else integer_name
        if target in ("smax", "smin") and not getattr(v.dtype, "signed", False):
            target = "u" + target[1:]

        def codegen(context, builder, sig, args):
            element = element_type(v.dtype)
            full = f"llvm.vector.reduce.{target}.{suffix(args[0].type)}"
            if is_float(v.dtype) and identity is not None:
                kind = ir.FunctionType(element, [element, args[0].type])
                function = cgutils.get_or_insert_function(builder.module, kind, full)
                # reassoc: a tree of shuffles instead of a chain of scalar additions
                return builder.call(function, [ir.Constant(element, identity), args[0]], fastmath=("reassoc",))
            kind = ir.FunctionType(element, [args[0].type])
            function = cgutils.get_or_insert_function(builder.module, kind, full)
            return builder.call(function, args, fastmath=_ANY_ZERO if is_float(v.dtype) else ())

        return v.dtype(v), codegen

    function.__name__ = function.__qualname__ = name
    return function


reduce_add = _reduction("reduce_add", "fadd", "add", -0.0)
reduce_max = _reduction("reduce_max", "fmaximum", "smax")
reduce_min = _reduction("reduce_min", "fminimum", "smin")
reduce_mul = _reduction("reduce_mul", "fmul", "mul", 1.0)
reduce_or = _reduction("reduce_or", None, "or")
reduce_and = _reduction("reduce_and", None, "and")


@lower_cast(Vector, Vector)
def _vector_cast(context, builder, fromty, toty, value):
    return _convert(context, builder, value, fromty.dtype, toty.dtype)
