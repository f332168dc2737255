"""Register tiles of products with quantised weights, as vector IR; `panels.py` says how weights lie.

The integer tile multiplies unsigned weights of 8 bits with signed activations of 8 bits, four neighbours along k at a
time (`vpdpbusd`: four times the float32 rate), sums a group exactly in int32 and scales it in float32. A format's zero
point costs nothing: the sum of a group starts at -zero * (sum of its activations).

Activations come in tiles of `rows` rows: quads [unit, 8, words, rows] int32, scales [unit, rows] float32, corrections
[unit, groups, rows] (int32, what a sum starts at; or float32, what the minimum of a group is multiplied with).

A quad of activations is a word of 4 bytes. Where the CPU has no such instruction, integers of 16 bits are multiplied in
pairs (`vpmaddwd`, twice the float32 rate): a quad is two words, the elements 0 and 2, and 1 and 3. Weights of less than
8 bits stay bytes there (`vpmaddubsw`), and their sums stay 16 bits wide as long as they fit: three times that rate.
"""

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from ...build import isa, rates
from ...lang import convert, lowp
from ...lang.dots import dot_quads
from ...lang.vector import I8, I32, I64, call_llvm, literal_of, splat
from ..gemm.blocking import LANES
from ..gemm.microkernel import HAS_FMA, prefetch_line, read, sum_loop, write
from . import panels
from .panels import BYTE_PAIRS, PAIRS, QUADS, UNIT
from .traits import format_of

I16, F32 = ir.IntType(16), ir.FloatType()
AHEAD = 4096  # bytes that a streamed weight is asked for in advance
BYTE_DOTS = rates.choices().byte_dots
_NAMES = isa.features()
_BYTES = 4 * LANES
INTS, FLOATS = ir.VectorType(I32, LANES), ir.VectorType(F32, LANES)
HALVES, SMALL = ir.VectorType(I16, 2 * LANES), ir.VectorType(I8, _BYTES)


def _call(builder, name, result, args):
    kind = ir.FunctionType(result, [a.type for a in args])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), args)


def _everywhere(kind, value):
    return ir.Constant(kind, [value] * kind.count)


# ---- four products of bytes --------------------------------------------------------------------


def _multiply_pairs(builder, a, b):
    """The sums of the 2 products of the 16-bit integers of each lane."""
    name = {64: "avx512.pmaddw.d.512", 32: "avx2.pmadd.wd", 16: "sse2.pmadd.wd"}[_BYTES]
    return _call(builder, f"llvm.x86.{name}", INTS, [a, b])


def _elements(builder, quad):
    """The unsigned elements 0 and 2, and 1 and 3, of each lane of a quad, as integers of 16 bits."""
    quad = builder.bitcast(quad, HALVES)
    return builder.and_(quad, _everywhere(HALVES, 255)), builder.lshr(quad, _everywhere(HALVES, 8))


def dot_bytes(builder, total, w, x):
    """total + sum of the 4 products of the bytes of each lane: unsigned in `w`, signed in `x`, int32 vectors."""
    if BYTE_DOTS:
        return dot_quads(builder, total, w, x)
    if PAIRS:
        x, eight = builder.bitcast(x, HALVES), _everywhere(HALVES, 8)
        signed = builder.ashr(builder.shl(x, eight), eight), builder.ashr(x, eight)
        for a, b in zip(_elements(builder, w), signed):
            total = builder.add(total, _multiply_pairs(builder, a, b))
        return total
    for byte in range(4):
        left = _everywhere(INTS, 24 - 8 * byte)
        a = builder.lshr(builder.shl(w, left), _everywhere(INTS, 24))
        b = builder.ashr(builder.shl(x, left), _everywhere(INTS, 24))
        total = builder.add(total, builder.mul(a, b))
    return total


def _multiply_bytes(builder, w, x):
    """The sums, saturated to 16 bits, of pairs of products of unsigned bytes of `w` with signed bytes of `x`."""
    name = {64: "avx512.pmaddubs.w.512", 32: "avx2.pmadd.ub.sw"}[_BYTES]
    return _call(builder, f"llvm.x86.{name}", HALVES, [builder.bitcast(v, SMALL) for v in (w, x)])


def _add(builder, parts, terms):
    return [builder.add(part, term) for part, term in zip(parts, terms)]


def add_quads(builder, form, quads, x, parts):
    """`parts`, a vector for each row, plus the products of `quads` with `x(quad, word)`, words of each row.

    They are int32, or of 16 bits where `form` is small and multiplied by byte pairs.
    """
    for q, quad in enumerate(quads):
        if panels.words(form) == 2:
            for word, w in enumerate(_elements(builder, quad)):
                terms = [_multiply_pairs(builder, w, builder.bitcast(v, HALVES)) for v in x(q, word)]
                parts = _add(builder, parts, terms)
        elif panels.is_small(form) and BYTE_PAIRS:
            parts = _add(builder, parts, [_multiply_bytes(builder, quad, v) for v in x(q, 0)])
        else:
            parts = [dot_bytes(builder, part, quad, v) for part, v in zip(parts, x(q, 0))]
    return parts


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
    for bits in panels.planes(form):  # as many vectors as bits; bits of the plane go to bits `shift`... of the result
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


def multiply(builder, form, x, quads, parts, ask=False):
    """`parts`, an int32 vector for each row, plus the products of a group's quads with the activations at `x`.

    `quads` is a list of vectors, or an address where they lie one after another and how many (an int, or a value);
    `ask` for those ahead, where that is a weight in memory.
    """
    if not (panels.is_small(form) and BYTE_PAIRS):
        return _multiply_run(builder, form, x, quads, parts, ask)
    count = len(quads) if isinstance(quads, list) else quads[1]
    most = 32767 // (2 * 127 * ((1 << form.bits) - 1))  # quads whose sums fit 16 bits
    for start in range(0, count, most):
        many = min(most, count - start)
        if isinstance(quads, list):
            some = quads[start : start + many]
        else:
            some = builder.add(quads[0], ir.Constant(I64, start * _BYTES)), many
        at = builder.add(x, ir.Constant(I64, 4 * start * len(parts)))
        sums = _multiply_run(builder, form, at, some, [_everywhere(HALVES, 0)] * len(parts))
        parts = _add(builder, parts, [_multiply_pairs(builder, v, _everywhere(HALVES, 1)) for v in sums])
    return parts


def _multiply_run(builder, form, x, quads, parts, ask=False):
    """As `multiply`, by `add_quads`: of addresses in a loop, of as many quads at a time as there are registers for."""
    height = len(parts)

    def of_rows(x):
        return lambda quad, word: [
            splat_at(builder, x, I32, 4 * ((quad * panels.words(form) + word) * height + i)) for i in range(height)
        ]

    def body(at, parts):
        if ask:
            _ask_for(builder, at[1], at_once * _BYTES)
        vectors = [read(builder, at[1], INTS, 4, quad * _BYTES) for quad in range(at_once)]
        return add_quads(builder, form, vectors, of_rows(at[0]), parts)

    if isinstance(quads, list):
        return add_quads(builder, form, quads, of_rows(x), parts)
    at_once = 1 if in_loop(height) else QUADS
    w, count = quads
    count = ir.Constant(I64, count) if isinstance(count, int) else count
    steps = builder.udiv(count, ir.Constant(I64, at_once))
    strides = [4 * at_once * panels.words(form) * height, at_once * _BYTES]
    return sum_loop(builder, steps, [x, w], strides, parts, body)[1]


def in_loop(height):
    """Whether quads are multiplied one at a time: without dot products, LLVM sums those of many rows in trees.

    It runs out of registers then: 184 GOP/s of Q8_0 and 280 of 4 bits, in a loop 216 and 313.
    """
    return PAIRS and height > 2


def fma(builder, a, b, total):
    if HAS_FMA:
        return call_llvm(builder, "llvm.fma", total.type, [a, b, total])
    return builder.fadd(total, builder.fmul(a, b))


def splat_at(builder, base, kind, offset):
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
    groups, as_bytes = form.groups, panels.planes(form) == (8,) and form.table is None

    def add_group(builder, at, group, quads, sums):
        """The sums with the products of one group added."""
        at_x, at_scales, at_corrections, _, at_s, at_m = at
        kind = F32 if form.has_min else I32
        fixes = [splat_at(builder, at_corrections, kind, 4 * (group * height + i)) for i in range(height)]
        parts = [_everywhere(INTS, 0)] * height if form.has_min else list(fixes)
        first, many = group * QUADS // groups, QUADS // groups
        x = builder.add(at_x, ir.Constant(I64, 4 * first * panels.words(form) * height))
        if isinstance(quads, list):
            some = quads[first : first + many]
        else:
            some = builder.add(quads, ir.Constant(I64, first * _BYTES)), many
        parts = multiply(builder, form, x, some, parts)
        scale = read(builder, at_s, FLOATS, 4, group * _BYTES)
        least = read(builder, at_m, FLOATS, 4, group * _BYTES) if form.has_min else None
        for i, total in enumerate(sums):
            scales = builder.fmul(scale, splat_at(builder, at_scales, F32, 4 * i))
            total = fma(builder, builder.sitofp(parts[i], FLOATS), scales, total)
            yield fma(builder, least, fixes[i], total) if form.has_min else total

    def codegen(context, builder, sig, args):
        def body(at, sums):
            _ask_for(builder, at[3], panels.unit_bytes(form))
            quads = at[3]
            if not (as_bytes and in_loop(height)):
                quads = unit_quads(builder, form, at[3])
            if not as_bytes and in_loop(height):
                for i, quad in enumerate(quads):
                    write(builder, quad, unpacked, 4, i * _BYTES)
                quads = unpacked
            for group in range(groups):
                sums = list(add_group(builder, at, group, quads, sums))
            return sums

        strides = [UNIT * panels.words(form) * height, 4 * height, 4 * height * groups, panels.unit_bytes(form)]
        strides += [groups * _BYTES] * 2
        starts = [read(builder, args[6], FLOATS, 4, i * _BYTES) for i in range(height)]
        unpacked = builder.ptrtoint(cgutils.alloca_once(builder, INTS, size=QUADS), I64)
        _, sums = sum_loop(builder, args[7], args[:6], strides, starts, body)
        for i, value in enumerate(sums):
            write(builder, value, args[6], 4, i * _BYTES)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 8, F, rows), codegen


@intrinsic(prefer_literal=True)
def flat_tile(typingctx, x, corrections, w, totals, units, F, rows):
    """totals[rows, LANES] (int32) = corrections[rows] + activations times a panel of bytes: one group in all."""
    height = literal_of(rows)
    if height is None or not isinstance(F, types.NumberClass):
        return None
    form = format_of(F)

    def codegen(context, builder, sig, args):
        starts = [splat_at(builder, args[1], I32, 4 * i) for i in range(height)]
        quads = builder.mul(args[4], ir.Constant(I64, QUADS))
        sums = multiply(builder, form, args[0], (args[2], quads), starts, ask=True)
        for i, value in enumerate(sums):
            write(builder, value, args[3], 4, i * _BYTES)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 5, F, rows), codegen


def unit_floats(builder, form, base):
    """Yield (k, value(q) - zero as float32) for the 32 elements of a unit, one row of the panel in each lane."""
    if panels.planes(form) == (4,) and "avx512f" in _NAMES:  # a register is a table for 4 bits of each lane
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
                yield 4 * i + byte, convert.widen(builder, getattr(lowp, form.float8), small)
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
            _ask_for(builder, at[1], panels.unit_bytes(form))
            scale = [read(builder, at[2], FLOATS, 4, group * _BYTES) for group in range(groups)]
            least = [read(builder, at[3], FLOATS, 4, group * _BYTES) for group in range(groups) if form.has_min]
            parts = {}
            for k, value in unit_floats(builder, form, at[1]):
                group = k // form.group
                if form.has_min:
                    value = fma(builder, value, scale[group], least[group])
                for i in range(height):
                    one = splat_at(builder, at[0], F32, 4 * (k * height + i))
                    key = (group, i, k % ways)
                    parts[key] = fma(builder, value, one, parts[key]) if key in parts else builder.fmul(value, one)
            for (group, i, _), part in parts.items():
                new = builder.fadd(part, sums[i]) if form.has_min else fma(builder, part, scale[group], sums[i])
                sums = [*sums[:i], new, *sums[i + 1 :]]
            return sums

        starts = [read(builder, args[4], FLOATS, 4, i * _BYTES) for i in range(height)]
        strides = [4 * UNIT * height, panels.unit_bytes(form), groups * _BYTES, groups * _BYTES]
        _, sums = sum_loop(builder, args[5], args[:4], strides, starts, body)
        for i, value in enumerate(sums):
            write(builder, value, args[4], 4, i * _BYTES)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 6, F, rows), codegen
