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
from numba.core.datamodel.models import PrimitiveModel
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import intrinsic, lower_builtin, lower_cast, register_model

from . import lowp

I1, I8, I32, I64 = ir.IntType(1), ir.IntType(8), ir.IntType(32), ir.IntType(64)


class Pointer(types.Type):
    """The address of elements of `dtype`; pointer arithmetic counts elements."""

    def __init__(self, dtype):
        self.dtype = dtype
        super().__init__(f"ptr<{dtype}>")


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


def _suffix(kind):
    """The mangled type name in the name of an LLVM intrinsic."""
    if isinstance(kind, ir.VectorType):
        return f"v{kind.count}{_suffix(kind.element)}"
    names = {"float": "f32", "double": "f64", "half": "f16"}
    return names.get(str(kind), str(kind))


def call_llvm(builder, name, result, args, overload=None):
    """Call the LLVM intrinsic `name.<overload>`; the overload is the result type unless given."""
    full = f"{name}.{_suffix(overload or result)}"
    kind = ir.FunctionType(result, [a.type for a in args])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, full), args)


def splat(builder, value, lanes):
    kind = ir.VectorType(value.type, lanes)
    one = builder.insert_element(ir.Constant(kind, ir.Undefined), value, ir.Constant(I32, 0))
    return builder.shuffle_vector(one, one, ir.Constant(ir.VectorType(I32, lanes), [0] * lanes))


def _literal(kind):
    return kind.literal_value if isinstance(kind, types.Literal) else None


# ---- pointers and memory -----------------------------------------------------------------------


@intrinsic
def ptr(typingctx, address, T):
    """The pointer at an integer `address` to elements of type `T`."""
    if not isinstance(T, types.NumberClass):
        return None

    def codegen(context, builder, sig, args):
        return context.cast(builder, args[0], sig.args[0], types.int64)

    return Pointer(T.instance_type)(address, T), codegen


@intrinsic
def address(typingctx, p):
    """The integer address of a pointer."""
    return types.int64(p), lambda context, builder, sig, args: args[0]


@infer_global(operator.add)
class _PointerAdd(AbstractTemplate):
    def generic(self, args, kws):
        if len(args) == 2 and isinstance(args[0], Pointer) and isinstance(args[1], types.Integer):
            return signature(args[0], args[0], types.int64)


@lower_builtin(operator.add, Pointer, types.Integer)
def _pointer_add(context, builder, sig, args):
    size = _element_bytes(sig.args[0].dtype)
    return builder.add(args[0], builder.mul(args[1], ir.Constant(I64, size)))


def _element_bytes(dtype):
    return 1 if isinstance(dtype, types.Boolean) else dtype.bitwidth // 8


def _gep(context, builder, pointer, dtype, index=None, lanes=None):
    """The typed LLVM pointer to element `index`, or to a vector that starts there."""
    kind = memory_type(dtype)
    base = builder.inttoptr(pointer, kind.as_pointer())
    if index is not None:
        base = builder.gep(base, [index])
    return builder.bitcast(base, ir.VectorType(kind, lanes).as_pointer()) if lanes else base


def _from_memory(builder, dtype, value):
    """Memory bits -> register value."""
    if isinstance(dtype, types.Boolean):
        zero = ir.Constant(value.type, None)
        return builder.icmp_unsigned("!=", value, zero)
    if isinstance(dtype, lowp.StorageFloat):
        return lowp.widen(builder, dtype, value)
    return value


def _to_memory(builder, dtype, value):
    """Register value -> memory bits."""
    if isinstance(dtype, types.Boolean):
        kind = ir.VectorType(I8, value.type.count) if isinstance(value.type, ir.VectorType) else I8
        return builder.zext(value, kind)
    if isinstance(dtype, lowp.StorageFloat):
        return lowp.narrow(builder, dtype, value)
    return value


@intrinsic
def load(typingctx, p, index):
    """Element `index`, widened to its compute type."""
    if not isinstance(p, Pointer):
        return None

    def codegen(context, builder, sig, args):
        index = context.cast(builder, args[1], sig.args[1], types.int64)
        value = builder.load(_gep(context, builder, args[0], p.dtype, index))
        value.align = _element_bytes(p.dtype)
        return _from_memory(builder, p.dtype, value)

    return compute_type(p.dtype)(p, index), codegen


@intrinsic
def store(typingctx, p, index, value):
    """Store a scalar as element `index`."""
    if not isinstance(p, Pointer):
        return None
    wanted = compute_type(p.dtype)

    def codegen(context, builder, sig, args):
        index = context.cast(builder, args[1], sig.args[1], types.int64)
        value = context.cast(builder, args[2], sig.args[2], wanted)
        out = builder.store(_to_memory(builder, p.dtype, value), _gep(context, builder, args[0], p.dtype, index))
        out.align = _element_bytes(p.dtype)
        return context.get_dummy_value()

    return types.void(p, index, value), codegen


def _vector_load(context, builder, p, dtype, index, lanes, mask=None, fill=0):
    where = _gep(context, builder, p, dtype, index, lanes)
    kind = ir.VectorType(memory_type(dtype), lanes)
    if mask is None:
        value = builder.load(where)
        value.align = _element_bytes(dtype)
        return value
    name = f"llvm.masked.load.{_suffix(kind)}.p0"
    align = ir.Constant(I32, _element_bytes(dtype))
    passthru = ir.Constant(kind, [fill] * lanes)
    function = ir.FunctionType(kind, [where.type, I32, mask.type, kind])
    return builder.call(cgutils.get_or_insert_function(builder.module, function, name), [where, align, mask, passthru])


def _vector_store(context, builder, p, dtype, index, value, mask=None):
    where = _gep(context, builder, p, dtype, index, value.type.count)
    if mask is None:
        builder.store(value, where).align = _element_bytes(dtype)
        return
    name = f"llvm.masked.store.{_suffix(value.type)}.p0"
    align = ir.Constant(I32, _element_bytes(dtype))
    function = ir.FunctionType(ir.VoidType(), [value.type, where.type, I32, mask.type])
    builder.call(cgutils.get_or_insert_function(builder.module, function, name), [value, where, align, mask])


def _first_lanes(builder, count, lanes):
    """The mask of the first `count` lanes."""
    ramp = ir.Constant(ir.VectorType(I64, lanes), list(range(lanes)))
    return builder.icmp_signed("<", ramp, splat(builder, count, lanes))


@intrinsic(prefer_literal=True)
def vload(typingctx, p, index, lanes):
    """`lanes` elements from element `index` on, widened to their compute type."""
    count = _literal(lanes)
    if not isinstance(p, Pointer) or count is None:
        return None

    def codegen(context, builder, sig, args):
        index = context.cast(builder, args[1], sig.args[1], types.int64)
        return _from_memory(builder, p.dtype, _vector_load(context, builder, args[0], p.dtype, index, count))

    return Vector(compute_type(p.dtype), count)(p, index, lanes), codegen


@intrinsic(prefer_literal=True)
def vload_first(typingctx, p, index, lanes, valid):
    """As `vload`, but only the first `valid` lanes are read; the others are zero."""
    count = _literal(lanes)
    if not isinstance(p, Pointer) or count is None:
        return None

    def codegen(context, builder, sig, args):
        index = context.cast(builder, args[1], sig.args[1], types.int64)
        mask = _first_lanes(builder, context.cast(builder, args[3], sig.args[3], types.int64), count)
        return _from_memory(builder, p.dtype, _vector_load(context, builder, args[0], p.dtype, index, count, mask))

    return Vector(compute_type(p.dtype), count)(p, index, lanes, valid), codegen


@intrinsic
def vstore(typingctx, p, index, value):
    """Store the lanes of a vector from element `index` on (rounding to a storage type)."""
    if not isinstance(p, Pointer) or not isinstance(value, Vector):
        return None

    def codegen(context, builder, sig, args):
        index = context.cast(builder, args[1], sig.args[1], types.int64)
        bits = _to_memory(builder, p.dtype, args[2])
        _vector_store(context, builder, args[0], p.dtype, index, bits)
        return context.get_dummy_value()

    return types.void(p, index, value), codegen


@intrinsic
def vstore_first(typingctx, p, index, value, valid):
    """As `vstore`, for the first `valid` lanes only."""
    if not isinstance(p, Pointer) or not isinstance(value, Vector):
        return None

    def codegen(context, builder, sig, args):
        index = context.cast(builder, args[1], sig.args[1], types.int64)
        mask = _first_lanes(builder, context.cast(builder, args[3], sig.args[3], types.int64), value.lanes)
        bits = _to_memory(builder, p.dtype, args[2])
        _vector_store(context, builder, args[0], p.dtype, index, bits, mask)
        return context.get_dummy_value()

    return types.void(p, index, value, valid), codegen


@intrinsic(prefer_literal=True)
def stack(typingctx, nbytes):
    """The address of `nbytes` (a literal) of 64-byte aligned scratch on the stack of the kernel."""
    size = _literal(nbytes)
    if size is None:
        return None

    def codegen(context, builder, sig, args):
        with builder.goto_entry_block():
            slot = builder.alloca(ir.ArrayType(I8, size))
            slot.align = 64
        return builder.ptrtoint(slot, I64)

    return types.int64(nbytes), codegen


@intrinsic
def prefetch(typingctx, p, index):
    """Ask for the cache line of element `index` (read, all levels)."""

    def codegen(context, builder, sig, args):
        index = context.cast(builder, args[1], sig.args[1], types.int64)
        where = builder.bitcast(_gep(context, builder, args[0], p.dtype, index), I8.as_pointer())
        kind = ir.FunctionType(ir.VoidType(), [where.type, I32, I32, I32])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        builder.call(function, [where, ir.Constant(I32, 0), ir.Constant(I32, 3), ir.Constant(I32, 1)])
        return context.get_dummy_value()

    return types.void(p, index), codegen


# ---- making and changing vectors ---------------------------------------------------------------


@intrinsic(prefer_literal=True)
def fill(typingctx, value, T, lanes):
    """A vector of `lanes` times the scalar `value`, as the compute type of `T`."""
    count = _literal(lanes)
    if count is None or not isinstance(T, types.NumberClass):
        return None
    dtype = compute_type(T.instance_type)
    plain = types.unliteral(value)

    def codegen(context, builder, sig, args):
        number = context.cast(builder, args[0], sig.args[0], dtype)
        return splat(builder, number, count)

    return Vector(dtype, count)(plain, T, lanes), codegen


def _convert(context, builder, value, source, target):
    """One vector or scalar of LLVM values from Numba type `source` to `target`."""
    if source == target:
        return value
    goal = lowp._like(value, element_type(target))
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
        name = "llvm.fptosi.sat" if target.signed else "llvm.fptoui.sat"
        full = f"{name}.{_suffix(goal)}.{_suffix(value.type)}"
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
def bitcast(typingctx, v, T):
    """The bits of `v` (vector or scalar) read as elements of type `T` of the same width."""
    target = T.instance_type
    result = Vector(target, v.lanes) if isinstance(v, Vector) else target

    def codegen(context, builder, sig, args):
        return builder.bitcast(args[0], lowp._like(args[0], element_type(target)))

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
    position = _literal(index)
    if position is None:
        return None

    def codegen(context, builder, sig, args):
        return builder.extract_element(args[0], ir.Constant(I32, position))

    return v.dtype(v, index), codegen


@intrinsic(prefer_literal=True)
def ramp(typingctx, start, T, lanes):
    """`start, start + 1, ...` over the lanes, of integer type `T`."""
    count, dtype = _literal(lanes), T.instance_type

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
            extra = [ir.Constant(I1, 0)] if target == "llvm.abs" else []
            kind = ir.FunctionType(args[0].type, [args[0].type] + [I1] * len(extra))
            full = f"{target}.{_suffix(args[0].type)}"
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
            return call_llvm(builder, target, args[0].type, args)

        return kind(types.unliteral(a), types.unliteral(b)), codegen

    function.__name__ = function.__qualname__ = name
    return function


# minimum and maximum propagate NaN, as PyTorch's do.
vmax = _pairwise("vmax", "llvm.maximum", "llvm.smax", "llvm.umax")
vmin = _pairwise("vmin", "llvm.minimum", "llvm.smin", "llvm.umin")


@intrinsic
def fma(typingctx, a, b, c):
    """`a * b + c` with one rounding; scalars are splatted."""
    kind = next((t for t in (a, b, c) if isinstance(t, Vector)), types.unliteral(a))

    def codegen(context, builder, sig, args):
        if isinstance(kind, Vector):
            args = _operands(context, builder, sig, args, kind)
        else:
            args = [context.cast(builder, v, t, kind) for v, t in zip(args, sig.args)]
        return call_llvm(builder, "llvm.fma", args[0].type, args)

    return kind(*[types.unliteral(t) for t in (a, b, c)]), codegen


@intrinsic
def muladd(typingctx, a, b, c):
    """`a * b + c`, fused where the hardware can (`fma` is a slow library call elsewhere); scalars are splatted."""
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
            full = f"llvm.vector.reduce.{target}.{_suffix(args[0].type)}"
            if is_float(v.dtype) and identity is not None:
                kind = ir.FunctionType(element, [element, args[0].type])
                function = cgutils.get_or_insert_function(builder.module, kind, full)
                # reassoc: a tree of shuffles instead of a chain of scalar additions
                return builder.call(function, [ir.Constant(element, identity), args[0]], fastmath=("reassoc",))
            kind = ir.FunctionType(element, [args[0].type])
            return builder.call(cgutils.get_or_insert_function(builder.module, kind, full), args)

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
