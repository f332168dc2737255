"""What units of quantised weights and of x are as 16-bit floats, for products on the matrix units of warps.

Integers of 4 bits are multiplied as they lie, an instruction for two of them: a half of a word with its lowest 4 bits,
all others 0, is a subnormal float, q times 2^-133 (bfloat16) or 2^-24 (float16), as `q << 4` is, 16 times as large.
"""

import math

from numba import types

from ...blocks.cuda import PACKED_STREAM as BLOCK
from ...build import jit
from ...cpu.quant.panels import LANES, record_bytes
from ...cpu.quant.traits import bits_of, format_of, has_min, unit_bytes, zero_of
from ...lang.by_type import by_type
from ...lang.formats import UNIT
from ...lang.mma import (
    both,
    even_first,
    lifted,
    load_shared,
    multiply_halves,
    settled,
    spread_even_bytes,
    twice,
    two_halves,
)
from ...lang.ptx import WARP, generic, thread
from ...lang.shuffle import even, odd
from ...lang.simd import fill, lane, load, ptr
from .parameters import parameters
from .rows import four, level_of_format

F32, U8, U32, I64 = types.float32, types.uint8, types.uint32, types.int64


def _excess_of(form, T):
    """By how much the numbers that are multiplied are larger than q - zero, or q where there are minimums."""
    return form.zero - (level_of_format(form, T) if form.bits == 8 else 0)


@by_type
def excess_of(F, T):
    """The same, in kernels."""
    excess = _excess_of(format_of(F), T)
    return lambda F, T: excess


# ---- integers that are subnormal floats ----------------------------------------------------------
# bfloat16 has the exponents of float32: for products that float32 has exactly, x is multiplied with 2^LIFT, which is
# right for elements from 2^-105 to below 2^32. Larger ones end as infinity or NaN: results that are not finite, or so
# small that small elements count, are added up again without (`careful`); what is below 2^-112 counts as 0. Integers in
# the high halves of bytes stay there, and their x is multiplied with 1/16 of that. float16 needs nothing of this, but
# would not have the 1/16 exactly: its high halves are shifted.

LIFT, SMALL = 96, 2.0**-90


def _is_lifted(form, T):
    return form.bits == 4 and T.instance_type.name == "ic_bfloat16"


@by_type
def is_lifted(F, T):
    """Whether x is multiplied with a power of 2 first."""
    value = _is_lifted(format_of(F), T)
    return lambda F, T: value


@by_type
def undone(F, T):
    """What sums of products are multiplied with in the end."""
    form, bf16 = format_of(F), T.instance_type.name == "ic_bfloat16"
    by = 1.0 if form.bits == 8 else 2.0 ** (133 - LIFT if bf16 else 24)
    return lambda F, T: F32(by)


@jit.inline
def is_unsure(value):
    """Whether a result may be of elements of x that are too large for that, or too small."""
    size = abs(value)
    return not size < F32(math.inf) or 0 < size < F32(SMALL)


@jit.inline
def careful(args, number, row, token, F, T):
    """A row of x times one of a weight of 4 bits, added up one by one."""
    k, shift, within = load(args, BLOCK.k), load(args, BLOCK.shift), row % LANES
    panel = load(args, BLOCK.weight0 + number) + row // LANES * load(args, BLOCK.panel_bytes)
    x, total = ptr(load(args, BLOCK.map_x), T) + token * k, F32(0)
    for i in range(k):
        unit, quad = i // UNIT, i >> 2 & 7
        scale, minimum = parameters(F, panel + k // UNIT * unit_bytes(F), unit, shift, within)
        byte = load(ptr(panel + unit * unit_bytes(F) + 4 * (LANES * (quad & 3) + within) + (i & 3), U8), 0)
        q = (I64(byte) >> 4 * (quad >> 2) & 15) - zero_of(F)
        total += F32(load(x, i)) * (F32(q) * F32(scale) + F32(minimum))
    return total


# ---- operands ------------------------------------------------------------------------------------
# A warp has units of the same number modulo 4, so that the turns of lines (`copy_tile`) are the same for all of them.


@jit.inline
def own_words(row, F):
    """Where the words of a thread's two rows of quad t of its warp's units lie, one after the other, in those of a
    panel; of 8 bits quad t + 4 lies 256 bytes behind, its place ^ 32.
    """
    t, warp = thread() % 4, thread() // WARP
    line, chunk, before = t >> 1, (t & 1) * 4 + (row >> 2), (warp & 3) * 2 if bits_of(F) == 4 else (warp & 1) * 4
    return line * 128 + (row & 2) * 4 + ((chunk ^ before + line) << 4)


@by_type
def operands(at, other, F, T):
    """The integers of a unit of a panel as floats, of two neighbouring rows: of quads t and (at `other`) t + 4."""
    form = format_of(F)

    def as_they_lie(at, other, F, T):
        v = load_shared(at, U32, 2, 1, 0)
        w = v >> U32(8)
        low = both(v & U32(0x000F000F), w & U32(0x000F000F))
        found = both(low, both(v & U32(0x00F000F0), w & U32(0x00F000F0)))
        return even(found), odd(found)

    def shifted(at, other, F, T):
        v = load_shared(at, U32, 2, 1, 0)
        w = v >> U32(4)
        low = both(v & U32(0x000F000F), v >> U32(8) & U32(0x000F000F))
        found = both(low, both(w & U32(0x000F000F), w >> U32(8) & U32(0x000F000F)))
        return even(found), odd(found)

    level = level_of_format(form, T)

    def eight_bits(at, other, F, T):
        v, w = load_shared(at, U32, 2, 1, 0), load_shared(other, U32, 2, 1, 0)
        a = both(spread_even_bytes(lane(v, 0), level, T), spread_even_bytes(lane(w, 0), level, T))
        return a, both(spread_even_bytes(lane(v, 1), level, T), spread_even_bytes(lane(w, 1), level, T))

    return eight_bits if form.bits == 8 else as_they_lie if _is_lifted(form, T) else shifted


@jit.inline
def own_x():
    """Where a thread's words of x lie in 64 of k, of which its warp's units are the same half.

    Column g of a product is such a row of x that what a half of a warp reads meets in no bank.
    """
    t, g = thread() % 4, thread() % WARP // 4
    row, chunk = 2 * (g & 3) + (g >> 2), (thread() // WARP & 1) * 4 + (t >> 1)
    return row * 128 + 8 * (t & 1) + ((chunk ^ row) << 4)


@jit.inline
def own_token():
    """The row of x of the first of a thread's two columns; that of the other is 2 more."""
    return 4 * (thread() & 1) + (thread() >> 1 & 1)


@by_type
def factored(x, F, T):
    """Words of x times what they are multiplied with first."""
    return (lambda x, F, T: lifted(x, LIFT)) if _is_lifted(format_of(F), T) else (lambda x, F, T: x)


@jit.inline
def fetch_x(at, own, F, T):
    """The words of quads t and t + 4 of a unit of a row of x, in the order in which integers of the weight come."""
    x = even_first(both(load_shared(at + own, U32, 2, 1, 0), load_shared(at + (own ^ 32), U32, 2, 1, 0)))
    return factored(x, F, T)


@by_type
def correction(F, T, zero):
    """Words that x is multiplied with for what a product begins with: -excess; 1 where groups have minimums, of which
    the excess is a part then. `zero` is 0, which ptxas must not know: it would make them anew for each product.
    """
    form = format_of(F)
    value = 1 if form.has_min else -_excess_of(form, T)
    if form.bits == 8:
        first = second = twice(float(value), T.instance_type.name)
    else:
        bits = (0x8000 if value < 0 else 0) * 0x10001
        first, second = (bits | abs(value) * by * 0x10001 for by in (1, 16 if _is_lifted(form, T) else 1))

    def words(F, T, zero):
        a = both(fill(first + (zero >> 1), U32, 1), fill(first + (zero >> 2), U32, 1))
        b = both(fill(second + (zero >> 3), U32, 1), fill(second + (zero >> 4), U32, 1))
        c = both(fill(first + (zero >> 5), U32, 1), fill(first + (zero >> 6), U32, 1))
        d = both(fill(second + (zero >> 7), U32, 1), fill(second + (zero >> 8), U32, 1))
        return both(a, b), both(c, d)

    return words


@jit.inline
def sum_of(x, words, F, T):
    """Sums of a unit of x times these, of the rows of x that a thread has sums of, where weights ask for them."""
    if excess_of(F, T) == 0 and not has_min(F):
        return fill(0.0, F32, 4)
    return multiply_halves(fill(0.0, F32, 4), words[0], words[1], x, T)


@by_type
def near(F, records, unit, shift, row):
    """Where the parameters of a unit are to be looked for: those of a thread's rows, or all of the first panel."""
    form = format_of(F)
    record = record_bytes(form)
    if form.parameters == "half":
        return lambda F, records, unit, shift, row: settled(records + (unit >> shift) * record + 2 * row)
    return lambda F, records, unit, shift, row: records


@by_type
def factors(F, at, unit, shift, row, T):
    """(scales of two neighbouring rows, what sums of x are multiplied with), for the four sums of a thread."""
    form = format_of(F)
    if form.parameters == "half":

        def scales(F, at, unit, shift, row, T):
            return two_halves(lane(load_shared(at, U32, 1, 1, 0), 0)), fill(0.0, F32, 4)

        return scales
    excess, minimums = float(_excess_of(form, T)), form.has_min

    def both_of(F, at, unit, shift, row, T):
        s0, m0 = parameters(F, I64(generic(at)), unit, shift, row)
        s1, m1 = parameters(F, I64(generic(at)), unit, shift, row + 1)
        if minimums:
            return four(s0, s1), four(m0 - F32(excess) * s0, m1 - F32(excess) * s1)
        return four(s0, s1), fill(0.0, F32, 4)

    return both_of
