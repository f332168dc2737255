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
from .microkernel import HAS_FMA, prefetch_line, read, sum_loop, write
from .vector import I8, I32, call_llvm, literal_of, splat

I16, F32 = ir.IntType(16), ir.FloatType()
AHEAD = 4096  # bytes that a streamed weight is asked for in advance
INT8_DOT = isa.has_int8_dot()
_NAMES = isa.features()
_BYTES = 4 * LANES
INTS, FLOATS = ir.VectorType(I32, LANES), ir.VectorType(F32, LANES)


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
        return _call(builder, f"llvm.x86.avx512.vpdpbusd.{8 * _BYTES}", INTS, [total, w, x])
    halves, bytes_ = ir.VectorType(I16, 2 * LANES), ir.VectorType(I8, _BYTES)
    pairs = {64: "avx512.pmaddw.d.512", 32: "avx2.pmadd.wd", 16: "sse2.pmadd.wd"}[_BYTES]
    if small and (_BYTES == 32 or "avx512bw" in _NAMES):
        quarter = {64: "avx512.pmaddubs.w.512", 32: "avx2.pmadd.ub.sw"}[_BYTES]
        sums = _call(builder, f"llvm.x86.{quarter}", halves, [builder.bitcast(v, bytes_) for v in (w, x)])
        return builder.add(total, _call(builder, f"llvm.x86.{pairs}", INTS, [sums, _everywhere(halves, 1)]))
    if "sse2" in _NAMES and (_BYTES < 64 or "avx512bw" in _NAMES):
        w, x = builder.bitcast(w, halves), builder.bitcast(x, halves)
        eight = _everywhere(halves, 8)
        even = builder.and_(w, _everywhere(halves, 255)), builder.ashr(builder.shl(x, eight), eight)
        odd = builder.lshr(w, eight), builder.ashr(x, eight)
        for a, b in (even, odd):
            total = builder.add(total, _call(builder, f"llvm.x86.{pairs}", INTS, [a, b]))
        return total
    for byte in range(4):
        left = _everywhere(INTS, 24 - 8 * byte)
        a = builder.lshr(builder.shl(w, left), _everywhere(INTS, 24))
        b = builder.ashr(builder.shl(x, left), _everywhere(INTS, 24))
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
    return builder.bitcast(found, INTS)


def unit_quads(builder, form, base, offset=0):
    """The 8 quads of a unit as int32 vectors of 4 bytes, from its planes at the address `base` + `offset`."""
    quads, shift = [None] * QUADS, 0
    for bits in form.planes:  # as many vectors as bits; bits of the plane go to bits `shift`... of the result
        vectors = [read(builder, base, INTS, 4, offset + i * _BYTES) for i in range(bits)]
        offset += bits * _BYTES
        mask = _everywhere(INTS, 0x01010101 * ((1 << bits) - 1 << shift))
        for quad in range(QUADS):
            value, left = vectors[quad % bits], shift - quad // bits * bits
            if left < 0:
                value = builder.lshr(value, _everywhere(INTS, -left))
            elif left > 0:
                value = builder.shl(value, _everywhere(INTS, left))
            value = value if bits == 8 else builder.and_(value, mask)
            quads[quad] = value if quads[quad] is None else builder.or_(quads[quad], value)
        shift += bits
    if form.table is not None:
        quads = [_look_up(builder, quad, form.table) for quad in quads]
    return quads


# ---- tiles -------------------------------------------------------------------------------------


def fma(builder, a, b, total):
    if HAS_FMA:
        return call_llvm(builder, "llvm.fma", total.type, [a, b, total])
    return builder.fadd(total, builder.fmul(a, b))


def _splat_at(builder, base, kind, offset):
    return splat(builder, read(builder, base, kind, 4, offset), LANES)


def _ask_for(builder, base, nbytes):
    for line in range(0, nbytes, 64):
        prefetch_line(builder, base, AHEAD + line)


@intrinsic(prefer_literal=True)
def integer_tile(typingctx, x, x_scales, corrections, w, s, m, totals, units, F, rows):
    """totals[rows, LANES] += activations times one panel of weights, over `units` units; `rows` is a literal.

    Before `units` stand addresses; `s` and `m` have the weight's scales and minimums as float32 [unit, groups, LANES].
    """
    height = literal_of(rows)
    if height is None or not isinstance(F, types.NumberClass):
        return None
    form = format_of(F)
    groups, small = form.groups, form.bits < 8 and form.table is None

    def add_group(builder, at, group, quads, sums):
        """The sums with the products of one group added."""
        at_x, at_scales, at_corrections, _, at_s, at_m = at
        kind = F32 if form.has_min else I32
        fixes = [_splat_at(builder, at_corrections, kind, 4 * (group * height + i)) for i in range(height)]
        parts = [_everywhere(INTS, 0)] * height if form.has_min else list(fixes)
        for quad in range(group * QUADS // groups, (group + 1) * QUADS // groups):
            for i in range(height):
                four = _splat_at(builder, at_x, I32, 4 * (quad * height + i))
                parts[i] = dot_bytes(builder, parts[i], quads[quad], four, small)
        scale = read(builder, at_s, FLOATS, 4, group * _BYTES)
        least = read(builder, at_m, FLOATS, 4, group * _BYTES) if form.has_min else None
        for i, total in enumerate(sums):
            scales = builder.fmul(scale, _splat_at(builder, at_scales, F32, 4 * i))
            total = fma(builder, builder.sitofp(parts[i], FLOATS), scales, total)
            yield fma(builder, least, fixes[i], total) if form.has_min else total

    def codegen(context, builder, sig, args):
        def body(at, sums):
            _ask_for(builder, at[3], form.unit_bytes)
            quads = unit_quads(builder, form, at[3])
            for group in range(groups):
                sums = list(add_group(builder, at, group, quads, sums))
            return sums

        strides = [UNIT * height, 4 * height, 4 * height * groups, form.unit_bytes, groups * _BYTES, groups * _BYTES]
        starts = [read(builder, args[6], FLOATS, 4, i * _BYTES) for i in range(height)]
        _, sums = sum_loop(builder, args[7], args[:6], strides, starts, body)
        for i, value in enumerate(sums):
            write(builder, value, args[6], 4, i * _BYTES)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 8, F, rows), codegen


@intrinsic(prefer_literal=True)
def flat_tile(typingctx, x, corrections, w, totals, units, rows):
    """totals[rows, LANES] (int32) = corrections[rows] + activations times a panel of bytes: one group in all."""
    height = literal_of(rows)
    if height is None:
        return None

    def codegen(context, builder, sig, args):
        def body(at, sums):
            _ask_for(builder, at[1], QUADS * _BYTES)
            for quad in range(QUADS):
                right = read(builder, at[1], INTS, 4, quad * _BYTES)
                four = [_splat_at(builder, at[0], I32, 4 * (quad * height + i)) for i in range(height)]
                sums = [dot_bytes(builder, total, right, x, False) for total, x in zip(sums, four)]
            return sums

        first = [_splat_at(builder, args[1], I32, 4 * i) for i in range(height)]
        _, sums = sum_loop(builder, args[4], [args[0], args[2]], [UNIT * height, QUADS * _BYTES], first, body)
        for i, value in enumerate(sums):
            write(builder, value, args[3], 4, i * _BYTES)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 5, rows), codegen


def unit_floats(builder, form, base):
    """Yield (k, value(q) - zero as float32) for the 32 elements of a unit, one row of the panel in each lane."""
    if form.planes == (4,) and LANES == 16:  # a table in one register, which looks at 4 bits of each lane
        table = form.table or range(16)
        entries = ir.Constant(FLOATS, [float(v - form.zero) for v in table])
        for i in range(4):
            vector = read(builder, base, INTS, 4, i * _BYTES)
            for nibble in range(8):
                index = builder.lshr(vector, _everywhere(INTS, 4 * nibble)) if nibble else vector
                value = _call(builder, "llvm.x86.avx512.permvar.sf.512", FLOATS, [entries, index])
                yield 4 * (i + 4 * (nibble % 2)) + nibble // 2, value
        return
    for i, quad in enumerate(unit_quads(builder, form, base)):
        for byte in range(4):
            bits = builder.lshr(quad, _everywhere(INTS, 8 * byte)) if byte else quad
            if form.float8 is not None:
                small = builder.trunc(bits, ir.VectorType(I8, LANES))
                yield 4 * i + byte, lowp.widen(builder, getattr(lowp, form.float8), small)
                continue
            value = builder.and_(bits, _everywhere(INTS, 255)) if byte < 3 else bits
            yield 4 * i + byte, builder.sitofp(builder.sub(value, _everywhere(INTS, form.zero)), FLOATS)


@intrinsic(prefer_literal=True)
def float_tile(typingctx, x, w, s, m, totals, units, F, rows):
    """totals[rows, LANES] += activations (float32 [unit, 32, rows]) times one panel of weights, over `units` units.

    The weight's integers, or small floats, become float32 in registers. `rows` is a literal.
    """
    height = literal_of(rows)
    if height is None or not isinstance(F, types.NumberClass):
        return None
    form = format_of(F)
    groups = form.groups
    ways = max(1, 4 // height)  # sums of a row side by side: each waits 4 cycles for the one before

    def codegen(context, builder, sig, args):
        def body(at, sums):
            _ask_for(builder, at[1], form.unit_bytes)
            scale = [read(builder, at[2], FLOATS, 4, group * _BYTES) for group in range(groups)]
            least = [read(builder, at[3], FLOATS, 4, group * _BYTES) for group in range(groups) if form.has_min]
            parts = {}
            for k, value in unit_floats(builder, form, at[1]):
                group = k // form.group
                if form.has_min:
                    value = fma(builder, value, scale[group], least[group])
                for i in range(height):
                    one = _splat_at(builder, at[0], F32, 4 * (k * height + i))
                    key = (group, i, k % ways)
                    parts[key] = fma(builder, value, one, parts[key]) if key in parts else builder.fmul(value, one)
            for (group, i, _), part in parts.items():
                new = builder.fadd(part, sums[i]) if form.has_min else fma(builder, part, scale[group], sums[i])
                sums = [*sums[:i], new, *sums[i + 1 :]]
            return sums

        starts = [read(builder, args[4], FLOATS, 4, i * _BYTES) for i in range(height)]
        strides = [4 * UNIT * height, form.unit_bytes, groups * _BYTES, groups * _BYTES]
        _, sums = sum_loop(builder, args[5], args[:4], strides, starts, body)
        for i, value in enumerate(sums):
            write(builder, value, args[4], 4, i * _BYTES)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 6, F, rows), codegen
