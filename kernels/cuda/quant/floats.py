"""Products of 3 to 16 rows of 16-bit floats and quantised weights on Hopper, on the matrix units of warps.

As in `stream.py` a block has some panels of 16 rows of a weight at a time for all of k, in a ring; here its warps take
units of 32 of k in turn, whose integers become 16-bit floats in registers, and scales are multiplied with the sums of a
unit. What counts is instructions: those of integers take two cycles of a scheduler each, and products six, of which
little is at the same time. So integers of 4 bits are multiplied as they lie, an instruction for two of them: a half of
a word with its lowest 4 bits, all others 0, is a subnormal float, q times 2^-133 (bfloat16) or 2^-24 (float16). What a
thread reads is at places that it knows before, and it asks whether the next step is there before this one has ended. Of
14336 x 4096 with 4 bits by 16 rows these two took 13.2 to 12.1 us.

(On the matrix units of warpgroups, whose left operand is 64 rows in registers, 16 rows of int4 took 19.5 us instead of
15.1: such a product takes as long for 16 columns as for 64.)
"""

import math

from numba import types

from ...blocks.cuda import GATING
from ...blocks.cuda import PACKED_STREAM as BLOCK
from ...build import jit
from ...cpu.quant.panels import LANES, record_bytes
from ...cpu.quant.traits import bits_of, format_of, has_min, is_flat, unit_bytes, zero_of
from ...lang.by_type import by_type
from ...lang.formats import UNIT
from ...lang.mma import (
    both,
    even_first,
    lifted,
    load_shared,
    multiply_halves,
    settled,
    shared_stores,
    spread_even_bytes,
    twice,
    two_halves,
)
from ...lang.ptx import (
    WARP,
    barrier_of,
    barrier_wait,
    barriers_over,
    block,
    generic,
    thread,
    wait_for_others,
)
from ...lang.shuffle import even, odd
from ...lang.simd import (
    address,
    fill,
    lane,
    load,
    muladd,
    ptr,
    vload,
    vload_first,
    vstore_aligned,
    vstore_first,
)
from ..gemm.sizes import STREAM_PANELS, STREAM_WARPS, float_warps, stream_head
from ..ring import APART, X, bring_x, following, free, new_ring, places_of, stage_of, sums_at
from .parameters import parameters
from .rows import four, level_of_format
from .stream import bring_panels, each, maps_of, matrix_step, next_of, place_of, plane_step, scales_at, times_of

F32, U8, U32, I64 = types.float32, types.uint8, types.uint32, types.int64
HALF = 8 * 128  # bytes from the first eight rows of x to the others, in 64 of k


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
# small that such elements count, are added up again without (`careful`); what is below 2^-112 counts as 0. Integers in
# the high halves of bytes stay there, 16 times as large, and their x is multiplied with 1/16 of that. float16 needs
# nothing of this, but would not have the 1/16 exactly: its high halves are shifted.

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
    """Whether a result may be of elements of x that are too large, or too small, for that."""
    size = abs(value)
    return not size < F32(math.inf) or 0 < size < F32(SMALL)


@jit.inline
def careful(args, number, row, token, F, T):
    """A result of integers of 4 bits, added up one by one, without what follows sums."""
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
        u = v >> U32(4)
        low = both(v & U32(0x000F000F), v >> U32(8) & U32(0x000F000F))
        found = both(low, both(u & U32(0x000F000F), u >> U32(8) & U32(0x000F000F)))
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
    return (lambda x, F, T: lifted(x, LIFT, T)) if _is_lifted(format_of(F), T) else (lambda x, F, T: x)


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


# ---- what follows the sums -----------------------------------------------------------------------
# A warp keeps the sums of 16 rows of the weight and 8 of x as its threads have them, a tile: 16 bytes each, which meet
# in no bank. (Kept as a matrix, of which a thread then added up four neighbouring rows of the weight, they took 0.5 us
# more of 18.8, of 14336 x 4096 with 8 bits by 16 rows.)

TILE = 16 * WARP  # bytes
keep, put = shared_stores(4, [0]), shared_stores(1, [0])


@jit.inline
def tile_at(memory, tile):
    """Where a thread's sums of a tile lie."""
    return memory + tile * TILE + thread() % WARP * 16


@jit.inline
def own_row():
    """The first of a thread's two rows of a panel, so numbered that what a half of a warp reads meets in no bank."""
    g = thread() % WARP // 4
    return 2 * (g & 1 | (g & 2) << 1 | (g & 4) >> 1)


@jit.inline
def store_two(y, at, value, left):
    """Two neighbouring results, in one word where memory allows it, of which `left` are there."""
    if left >= 2 and address(y + at) & 3 == 0:
        vstore_aligned(y + at, 0, value)
    else:
        vstore_first(y, at, value, left)


def finisher(tokens, bands, parts, gating):
    """(the function that asks for a thread's scales of a tile, the one that adds up what so many `parts` have kept of
    it, and what follows).
    """
    halves = 1 + (tokens > 8)
    tiles = bands * halves

    @jit.inline
    def place(args, item, second, tile):
        """(number of the weight, the first of a thread's rows of it, how many rows of the item are left from there)."""
        number, within = place_of(args, item, second, gating)
        share, at = LANES * load(args, BLOCK.share), LANES * (tile // halves) + own_row()
        return number, within * share + at, min(share, load(args, BLOCK.columns0 + number) - within * share) - at

    @jit.inline
    def own_scales(args, item, second, tile, F):
        """Where all of a row share one: memory would be waited for when the sums are there."""
        number, row, left = place(args, item, second, tile)
        if is_flat(F) and tile < tiles and left > 0:
            return vload(ptr(scales_at(args, number, row, F), F32), row % LANES, 2)
        return fill(0.0, F32, 2)

    @jit.inline
    def rounded(args, number, row, left, token, value, second, F, T, GATE):
        """The results of two rows of the weight and a row of x."""
        columns = load(args, BLOCK.columns0)
        column = row + (0 if number == 0 else load(args, BLOCK.column1 - 1 + number))
        y = ptr(load(args, BLOCK.y), T) + token * load(args, BLOCK.y_stride)
        if load(args, BLOCK.bias) != 0:
            value = value + vload_first(ptr(load(args, BLOCK.bias), T), column, 2, left)
        store_two(y, column, value, left)
        if gating and second != 0:  # this thread has stored the other weight's results, too
            a, b = vload_first(y, row, 2, left), vload_first(y, columns + row, 2, left)
            value = GATE(b, a) if load(args, BLOCK.WIDTH + GATING.gate_first) != 0 else GATE(a, b)
            y = ptr(load(args, BLOCK.WIDTH + GATING.y), T) + token * load(args, BLOCK.WIDTH + GATING.y_stride)
            store_two(y, row, value, left)

    @jit.inline
    def rounded_all(args, number, row, left, token, count, total, scales, second, F, T, GATE):
        """The results of a thread's sums of a tile."""
        first, other = even(total), odd(total)
        if is_flat(F):
            first, other = first * scales, other * scales
        rounded(args, number, row, left, token, first, second, F, T, GATE)
        if token + 2 < count:
            rounded(args, number, row, left, token + 2, other, second, F, T, GATE)

    @jit.inline
    def finish(args, memory, item, second, count, tile, scales, F, T, GATE):
        number, row, left = place(args, item, second, tile)
        token = own_token() + 8 * (tile % halves)
        if tile < tiles and left > 0 and token < count:
            total, at = fill(0.0, F32, 4), tile_at(memory, tile)
            for part in range(parts):
                total = total + load_shared(at + part * (tiles * TILE), F32, 4, 1, 0)
            total = total * undone(F, T)
            rounded_all(args, number, row, left, token, count, total, scales, second, F, T, GATE)
            if not is_lifted(F, T):
                return
            first, other = is_unsure(lane(total, 0)) or is_unsure(lane(total, 1)), is_unsure(lane(total, 2))
            if first or other or is_unsure(lane(total, 3)):
                for i in range(4):
                    own, its = min(row + i // 2, row + left - 1), min(token + 2 * (i & 1), count - 1)
                    put(at + 4 * i, fill(careful(args, number, own, its, F, T), F32, 1))
                total = load_shared(at, F32, 4, 1, 0)
                rounded_all(args, number, row, left, token, count, total, scales, second, F, T, GATE)

    return own_scales, finish


# ---- products ------------------------------------------------------------------------------------


@jit.inline
def weigh(sums, start, a, b, x, total, by, F, T):
    """`sums` + the product of a unit, whose `factors` these are."""
    sums = muladd(multiply_halves(start, a, b, x, T), by[0], sums)
    return muladd(total, by[1], sums) if has_min(F) else sums


fill_pairs = jit.inline(lambda: (fill(0.0, F32, 4), fill(0.0, F32, 4)))


def _product(tokens, bands, gating=False):
    """The kernel for up to so many rows of x, and panels of 16 rows of the weight; with `gating` a gate of the results
    of two weights follows.
    """
    head, warps, times, halves = (
        stream_head(tokens, bands),
        float_warps(tokens, bands),
        times_of(bands),
        1 + (tokens > 8),
    )
    parts, members = STREAM_WARPS, warps * WARP
    own_scales, finish = finisher(tokens, bands, parts, gating)
    two = bands * halves > warps  # tiles that a warp finishes

    @jit.inline
    def one(sums, band, at, x, more, unit, shift, F, T):
        """The sums of a panel (of the first rows of x, of the others) with a unit."""
        words, other, records, planes_step, params_step, row = at
        a, b = operands(words + band * planes_step, other + band * planes_step, F, T)
        if is_flat(F):
            s = multiply_halves(sums[0], a, b, x[0], T)
            return s, (multiply_halves(sums[1], a, b, x[1], T) if tokens > 8 else s)
        by = factors(F, records + band * params_step, unit, shift, row, T)
        s = weigh(sums[0], more[0], a, b, x[0], more[2], by, F, T)
        return s, (weigh(sums[1], more[1], a, b, x[1], more[3], by, F, T) if tokens > 8 else s)

    every = each(one, bands)

    @jit.inline
    def unit_of(at, own, words, F, T):
        """(x of a unit; where its sums begin, for the first rows of x and the others, and the sums of x)."""
        x = fetch_x(at, own, F, T)
        y = fetch_x(at + HALF, own, F, T) if tokens > 8 else x
        s, t = sum_of(x, words, F, T), sum_of(y, words, F, T) if tokens > 8 else fill(0.0, F32, 4)
        if has_min(F):
            return (x, y), (fill(0.0, F32, 4), fill(0.0, F32, 4), s, t)
        return (x, y), (s, t, s, t)

    @jit.inline
    def add_unit(sums, at, unit, F, T):
        """The sums of all panels with a unit of a step."""
        place, x_at, planes, params, share, shift, row, words, x_words, x_by = at
        x, more = unit_of(x_at + (unit >> 1) * (tokens * 128), x_words, x_by, F, T)
        panel, records = place + unit * unit_bytes(F), near(F, place + share * planes, unit, shift, row)
        at = settled(panel + words), settled(panel + 256 + (words ^ 32)), records, planes, params, row
        return every(sums, at, x, more, unit, shift, F, T)

    @jit.inline
    def kept(sums, band, own, x, more, unit, shift, F, T):
        """A warp's sums of a panel."""
        keep(own + halves * band * TILE, sums[0])
        if tokens > 8:
            keep(own + (halves * band + 1) * TILE, sums[1])
        return sums

    @jit.inline
    def added(sums, band, own, x, more, unit, shift, F, T):
        """What another warp has kept is added to these."""
        first = sums[0] + load_shared(own + halves * band * TILE, F32, 4, 1, 0)
        if tokens <= 8:
            return first, sums[1]
        return first, sums[1] + load_shared(own + (halves * band + 1) * TILE, F32, 4, 1, 0)

    keep_all, join = each(kept, bands), each(added, bands)

    @jit.inline
    def multiply(args, barriers, x_whole, ring, stage_bytes, hi, slabs, params, F, T, GATE):
        """What the warps do that multiply."""
        k, stages, share, count, shift = (
            load(args, BLOCK.k), U32(load(args, BLOCK.stages)), load(args, BLOCK.share), load(args, BLOCK.tokens),
            load(args, BLOCK.shift),
        )  # fmt: skip
        warp, row, x_begin, stage, phase = thread() // WARP, own_row(), load(args, BLOCK.map_x), U32(0), U32(0)
        memory, planes, whole = sums_at(), plane_step(slabs, F), load(args, BLOCK.whole)
        matrix = matrix_step(share, slabs, params, F)
        there, behind = 0, 0 if whole != 0 else X  # whether a step is known to be there; where x's barrier is
        x_first = x_whole if whole != 0 else ring + matrix
        x_step, x_stage = (tokens * 128, 0) if whole != 0 else (0, stage_bytes)
        own, words, x_words = tile_at(memory, warp % parts * (halves * bands)), own_words(row, F), own_x()
        x_by = correction(F, T, k >> 40)
        item, second = block(), 0
        wait_for_others()
        if whole != 0:
            barrier_wait(barriers + X, 0)
        while item < hi:
            scales = own_scales(args, item, second, warp, F)
            more_scales = own_scales(args, item, second, warp + warps, F) if two else scales
            start, unit, sums = U32(0), warp, times(fill_pairs())
            while start < U32(k >> 6):
                here, place = stage_of(barriers, ring, stage_bytes, stage)
                if there == 0:
                    barrier_wait(here, phase)
                    barrier_wait(here + behind, phase)
                x_at = x_first + start * x_step + stage * x_stage
                at = place, x_at, planes, params, share, shift, row, words, x_words, x_by
                if 2 * slabs % warps == 0:
                    for turn in range(2 * slabs // warps):
                        sums = add_unit(sums, at, warp + turn * warps, F, T)
                else:
                    while unit < 2 * slabs:
                        sums = add_unit(sums, at, unit, F, T)
                        unit += warps
                    unit -= 2 * slabs
                stage, phase = following(stage, phase, stages)
                there = barriers_over(barriers + APART * stage, barriers + APART * stage + behind, phase)
                free(here, x_begin)
                start = U32(start + slabs)
            if warps > parts:
                if warp >= parts:
                    sums = keep_all(sums, own, 0, 0, 0, 0, F, T)
                barrier_of(1, members)
                if warp < parts:
                    sums = join(sums, own, 0, 0, 0, 0, F, T)
            if warp < parts:
                sums = keep_all(sums, own, 0, 0, 0, 0, F, T)
            barrier_of(1, members)
            finish(args, memory, item, second, count, warp, scales, F, T, GATE)
            if two:
                finish(args, memory, item, second, count, warp + warps, more_scales, F, T, GATE)
            item, second = next_of(item, second, gating)
            if item < hi:
                barrier_of(1, members)

    @jit.inline
    def run(args, hi, F, T, SLABS, PARAMS, GATE):
        whole, k, warp = load(args, BLOCK.whole), load(args, BLOCK.k), thread() // WARP
        stages, matrix = load(args, BLOCK.stages), matrix_step(load(args, BLOCK.share), SLABS, PARAMS, F)
        barriers, x_whole, ring, stage_bytes = places_of(head, matrix, SLABS, k, tokens, whole)
        maps = maps_of(args, F)
        new_ring(barriers, stages, warps, 0, load(args, BLOCK.map_x), maps)
        if warp == warps:
            bring_panels(args, barriers, ring, stage_bytes, hi, SLABS, PARAMS, F, gating)
        elif warp > warps:
            bring_x(
                barriers, x_whole if whole else ring + matrix, stages, stage_bytes, hi, k, SLABS,
                address(args) + 8 * BLOCK.map_x, load(args, BLOCK.map_x), load(args, BLOCK.tokens), tokens, k, whole,
            )  # fmt: skip
        else:
            multiply(args, barriers, x_whole, ring, stage_bytes, hi, SLABS, PARAMS, F, T, GATE)
        return 0

    @jit.inline
    def product(args, lo, hi, F, T, SLABS, PARAMS):
        """A step has SLABS times 64 of k, and PARAMS bytes of parameters of each panel."""
        return run(args, hi, F, T, SLABS, PARAMS, None)

    @jit.inline
    def gating_product(args, lo, hi, F, T, SLABS, PARAMS, GATE):
        return run(args, hi, F, T, SLABS, PARAMS, GATE)

    return gating_product if gating else product


for _bands in STREAM_PANELS:
    globals().update({f"product_{tokens}_{_bands}": _product(tokens, _bands) for tokens in (8, 16)})
    globals()[f"gating_8_{_bands}"] = _product(8, _bands, gating=True)
