"""Register tiles of products with quantised weights, as vector IR; `formats.py` says how weights lie.

The integer tile multiplies unsigned weights of 8 bits with signed activations of 8 bits, four neighbours along k at a
time (`vpdpbusd`: four times the float32 rate), sums a group exactly in int32 and scales it in float32. A format's zero
point costs nothing: the sum of a group starts at -zero * (sum of its activations).

Activations come in tiles of `rows` rows: quads [unit, 8, rows] int32, scales [unit, rows] float32, corrections
[unit, groups, rows] (int32, what a sum starts at; or float32, what the minimum of a group is multiplied with).
"""

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from .. import isa
from . import lowp
from .blocking import LANES
from .formats import FORMATS, QUADS, UNIT
from .microkernel import HAS_FMA, _sum_loop, prefetch_line, read, write
from .vector import I8, I32, I64, call_llvm, literal_of, splat

I16, F32 = ir.IntType(16), ir.FloatType()
AHEAD = 2048  # bytes that a streamed weight is asked for in advance
INT8_DOT = isa.has_int8_dot()
_NAMES = isa.features()
_BYTES = 4 * LANES
_INTS, _FLOATS = ir.VectorType(I32, LANES), ir.VectorType(F32, LANES)


def format_of(F):
    """The `Format` that a type parameter of a kernel names."""
    return FORMATS[F.instance_type.name]


def _call(builder, name, result, args):
    kind = ir.FunctionType(result, [a.type for a in args])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), args)


def _everywhere(kind, value):
    return ir.Constant(kind, [value] * kind.count)


# ---- four products of bytes --------------------------------------------------------------------


def dot_bytes(builder, total, w, x, small):
    """total + sum of the 4 products of the bytes of each lane: unsigned in `w`, signed in `x`, int32 vectors.

    With `small`, no byte of `w` exceeds 127, so that two products fit 16 bits.
    """
    if INT8_DOT:
        return _call(builder, f"llvm.x86.avx512.vpdpbusd.{8 * _BYTES}", _INTS, [total, w, x])
    halves, bytes_ = ir.VectorType(I16, 2 * LANES), ir.VectorType(I8, _BYTES)
    pairs = {64: "avx512.pmaddw.d.512", 32: "avx2.pmadd.wd", 16: "sse2.pmadd.wd"}[_BYTES]
    if small and (_BYTES == 32 or "avx512bw" in _NAMES):
        quarter = {64: "avx512.pmaddubs.w.512", 32: "avx2.pmadd.ub.sw"}[_BYTES]
        sums = _call(builder, f"llvm.x86.{quarter}", halves, [builder.bitcast(v, bytes_) for v in (w, x)])
        return builder.add(total, _call(builder, f"llvm.x86.{pairs}", _INTS, [sums, _everywhere(halves, 1)]))
    if "sse2" in _NAMES and (_BYTES < 64 or "avx512bw" in _NAMES):
        w, x = builder.bitcast(w, halves), builder.bitcast(x, halves)
        eight = _everywhere(halves, 8)
        even = builder.and_(w, _everywhere(halves, 255)), builder.ashr(builder.shl(x, eight), eight)
        odd = builder.lshr(w, eight), builder.ashr(x, eight)
        for a, b in (even, odd):
            total = builder.add(total, _call(builder, f"llvm.x86.{pairs}", _INTS, [a, b]))
        return total
    for byte in range(4):
        left = _everywhere(_INTS, 24 - 8 * byte)
        a = builder.lshr(builder.shl(w, left), _everywhere(_INTS, 24))
        b = builder.ashr(builder.shl(x, left), _everywhere(_INTS, 24))
        total = builder.add(total, builder.mul(a, b))
    return total


# ---- planes to bytes ---------------------------------------------------------------------------


def _look_up(builder, index, table):
    """The byte of `table` (16 entries) for each byte of `index`, int32 vectors."""
    bytes_ = ir.VectorType(I8, _BYTES)
    index = builder.bitcast(index, bytes_)
    name = {64: "avx512.pshuf.b.512", 32: "avx2.pshuf.b", 16: "ssse3.pshuf.b.128"}[_BYTES]
    if {64: "avx512bw", 32: "avx2", 16: "ssse3"}[_BYTES] in _NAMES:
        entries = ir.Constant(bytes_, list(table) * (_BYTES // 16))
        found = _call(builder, f"llvm.x86.{name}", bytes_, [entries, index])
    elif "neon" in _NAMES:
        found = _call(builder, "llvm.aarch64.neon.tbl1.v16i8", bytes_, [ir.Constant(bytes_, list(table)), index])
    else:  # halve the table bit by bit
        values = [_everywhere(bytes_, v) for v in table]
        for bit in range(4):
            on = builder.icmp_unsigned("!=", builder.and_(index, _everywhere(bytes_, 1 << bit)), _everywhere(bytes_, 0))
            values = [builder.select(on, b, a) for a, b in zip(values[::2], values[1::2])]
        found = values[0]
    return builder.bitcast(found, _INTS)


def unit_quads(builder, form, base, offset=0):
    """The 8 quads of a unit as int32 vectors of 4 bytes, from its planes at the address `base` + `offset`."""
    quads, shift = [None] * QUADS, 0
    for bits in form.planes:  # as many vectors as bits; bits of the plane go to bits `shift`... of the result
        vectors = [read(builder, base, _INTS, 4, offset + i * _BYTES) for i in range(bits)]
        offset += bits * _BYTES
        mask = _everywhere(_INTS, 0x01010101 * ((1 << bits) - 1 << shift))
        for quad in range(QUADS):
            value, left = vectors[quad % bits], shift - quad // bits * bits
            if left < 0:
                value = builder.lshr(value, _everywhere(_INTS, -left))
            elif left > 0:
                value = builder.shl(value, _everywhere(_INTS, left))
            value = value if bits == 8 else builder.and_(value, mask)
            quads[quad] = value if quads[quad] is None else builder.or_(quads[quad], value)
        shift += bits
    if form.table is not None:
        quads = [_look_up(builder, quad, form.table) for quad in quads]
    return quads


@intrinsic
def expand_unit(typingctx, bytes_, planes, F):
    """Write the 8 quads of the unit at `planes` as whole bytes to the address `bytes_`."""
    if not isinstance(F, types.NumberClass):
        return None

    def codegen(context, builder, sig, args):
        for i, quad in enumerate(unit_quads(builder, format_of(F), args[1])):
            write(builder, quad, args[0], 4, i * _BYTES)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, F), codegen


# ---- tiles -------------------------------------------------------------------------------------


def _fma(builder, a, b, total):
    if HAS_FMA:
        return call_llvm(builder, "llvm.fma", total.type, [a, b, total])
    return builder.fadd(total, builder.fmul(a, b))


def _splat_at(builder, base, kind, offset):
    return splat(builder, read(builder, base, kind, 4, offset), LANES)


def _strides(builder, base, stride, many):
    return [builder.add(base, builder.mul(stride, ir.Constant(I64, j))) for j in range(many)]


def _ask_for(builder, base, nbytes):
    for line in range(0, nbytes, 64):
        prefetch_line(builder, base, AHEAD + line)


@intrinsic(prefer_literal=True)
def integer_tile(typingctx, x, x_scales, corrections, w, w_stride, s, m, s_stride, totals, units, F, rows, vectors, whole):
    """totals[rows, vectors * LANES] += activations times `vectors` panels of weights, over `units` units.

    The first nine are addresses, or distances in bytes between panels; `s` and `m` have the scales and minimums of the
    weights as float32 [unit, groups, LANES]. Literals: `whole` says that planes are expanded to bytes already.
    """
    literals = [literal_of(v) for v in (rows, vectors, whole)]
    if None in literals or not isinstance(F, types.NumberClass):
        return None
    height, across, bytes_already = literals
    form = format_of(F)
    groups = UNIT // form.group
    stored = FORMATS["q8_0"] if bytes_already else form
    small = form.bits < 8 and form.table is None

    def codegen(context, builder, sig, args):
        x, x_scales, corrections, w, w_stride, s, m, s_stride, totals, units = args[:10]
        panels, scales = _strides(builder, w, w_stride, across), _strides(builder, s, s_stride, across)
        minimums = _strides(builder, m, s_stride, across) if form.has_min else []

        def body(at, sums):
            at_x, at_scales, at_corrections = at[:3]
            at_w, at_s, at_m = at[3 : 3 + across], at[3 + across : 3 + 2 * across], at[3 + 2 * across :]
            if not bytes_already:
                for panel in at_w:
                    _ask_for(builder, panel, form.unit_bytes)
            quads = [unit_quads(builder, stored, panel) for panel in at_w]
            sums = list(sums)
            for group in range(groups):
                first = [_splat_at(builder, at_corrections, F32 if form.has_min else I32, 4 * (group * height + i)) for i in range(height)]
                parts = [_everywhere(_INTS, 0) if form.has_min else first[i // across] for i in range(height * across)]
                for quad in range(group * QUADS // groups, (group + 1) * QUADS // groups):
                    for i in range(height):
                        four = _splat_at(builder, at_x, I32, 4 * (quad * height + i))
                        for j in range(across):
                            at_part = i * across + j
                            parts[at_part] = dot_bytes(builder, parts[at_part], quads[j][quad], four, small)
                scale = [read(builder, at, _FLOATS, 4, group * _BYTES) for at in at_s]
                least = [read(builder, at, _FLOATS, 4, group * _BYTES) for at in at_m]
                for i in range(height):
                    row_scale = _splat_at(builder, at_scales, F32, 4 * i)
                    for j in range(across):
                        at_part = i * across + j
                        value = builder.sitofp(parts[at_part], _FLOATS)
                        total = _fma(builder, value, builder.fmul(scale[j], row_scale), sums[at_part])
                        sums[at_part] = _fma(builder, least[j], first[i], total) if form.has_min else total
            return sums

        starts = [read(builder, totals, _FLOATS, 4, i * _BYTES) for i in range(height * across)]
        pointers = [x, x_scales, corrections, *panels, *scales, *minimums]
        unit_bytes = stored.unit_bytes
        strides = [UNIT * height, 4 * height, 4 * height * groups, *[unit_bytes] * across]
        strides += [groups * _BYTES] * (len(scales) + len(minimums))
        _, sums = _sum_loop(builder, units, pointers, strides, starts, body)
        for i, value in enumerate(sums):
            write(builder, value, totals, 4, i * _BYTES)
        return context.get_dummy_value()

    sig = types.void(*[types.int64] * 10, F, rows, vectors, whole)
    return sig, codegen


@intrinsic(prefer_literal=True)
def flat_tile(typingctx, x, corrections, w, w_stride, totals, units, ahead, rows, vectors):
    """totals[rows, vectors * LANES] (int32) = corrections[rows] + activations times panels of bytes: one group in all.

    For weights with one scale per row and activations with one scale per row; exact up to 65536 of k. With the
    literal `ahead`, weights are asked for in advance.
    """
    literals = [literal_of(v) for v in (rows, vectors, ahead)]
    if None in literals:
        return None
    height, across, stream = literals

    def codegen(context, builder, sig, args):
        x, corrections, w, w_stride, totals, units = args[:6]

        def body(at, sums):
            sums = list(sums)
            for j, panel in enumerate(at[1:]):
                if stream:
                    _ask_for(builder, panel, QUADS * _BYTES)
            for quad in range(QUADS):
                right = [read(builder, panel, _INTS, 4, quad * _BYTES) for panel in at[1:]]
                for i in range(height):
                    four = _splat_at(builder, at[0], I32, 4 * (quad * height + i))
                    for j in range(across):
                        sums[i * across + j] = dot_bytes(builder, sums[i * across + j], right[j], four, False)
            return sums

        first = [_splat_at(builder, corrections, I32, 4 * (i // across)) for i in range(height * across)]
        strides = [UNIT * height, *[QUADS * _BYTES] * across]
        _, sums = _sum_loop(builder, units, [x, *_strides(builder, w, w_stride, across)], strides, first, body)
        for i, value in enumerate(sums):
            write(builder, value, totals, 4, i * _BYTES)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 6, ahead, rows, vectors), codegen


@intrinsic(prefer_literal=True)
def float_tile(typingctx, x, w, s, m, totals, units, F, rows):
    """totals[rows, LANES] += activations (float32 [unit, 32, rows]) times one panel of weights, over `units` units.

    The weight's integers, or small floats, are converted in registers: for few rows, and any activations.
    """
    height = literal_of(rows)
    if height is None or not isinstance(F, types.NumberClass):
        return None
    form = format_of(F)
    groups = UNIT // form.group

    def value_of(builder, quad, byte):
        """Byte `byte` of each lane as the float that it stands for, without zero point and scale."""
        bits = builder.lshr(quad, _everywhere(_INTS, 8 * byte)) if byte else quad
        if form.float8:
            small = builder.trunc(bits, ir.VectorType(I8, LANES))
            return lowp.widen(builder, getattr(lowp, form.float8), small)
        value = builder.and_(bits, _everywhere(_INTS, 255)) if byte < 3 else bits
        return builder.sitofp(builder.sub(value, _everywhere(_INTS, form.zero)), _FLOATS)

    def codegen(context, builder, sig, args):
        x, w, s, m, totals, units = args[:6]

        def body(at, sums):
            at_x, at_w, at_s = at[:3]
            _ask_for(builder, at_w, form.unit_bytes)
            quads, sums = unit_quads(builder, form, at_w), list(sums)
            for group in range(groups):
                scale = read(builder, at_s, _FLOATS, 4, group * _BYTES)
                least = read(builder, at[3], _FLOATS, 4, group * _BYTES) if form.has_min else None
                for quad in range(group * QUADS // groups, (group + 1) * QUADS // groups):
                    for byte in range(4):
                        value = builder.fmul(value_of(builder, quads[quad], byte), scale)
                        value = builder.fadd(value, least) if form.has_min else value
                        for i in range(height):
                            one = _splat_at(builder, at_x, F32, 4 * ((4 * quad + byte) * height + i))
                            sums[i] = _fma(builder, value, one, sums[i])
            return sums

        starts = [read(builder, totals, _FLOATS, 4, i * _BYTES) for i in range(height)]
        pointers = [x, w, s] + ([m] if form.has_min else [])
        strides = [4 * UNIT * height, form.unit_bytes] + [groups * _BYTES] * (len(pointers) - 2)
        _, sums = _sum_loop(builder, units, pointers, strides, starts, body)
        for i, value in enumerate(sums):
            write(builder, value, totals, 4, i * _BYTES)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 6, F, rows), codegen
