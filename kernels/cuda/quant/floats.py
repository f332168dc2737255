"""Products of 3 to 16 rows of 16-bit floats and quantised weights on Hopper, on the matrix units of warps.

As in `stream.py` a block has some panels of 16 rows of a weight at a time for all of k, in a ring; here its warps take
units of 32 of k in turn, whose integers become 16-bit floats in registers, and scales are multiplied with the sums of a
unit. What counts is instructions: those of integers take two cycles of a scheduler each, and products six, of which
little is at the same time. So 4 bits take an instruction for two and a shift (they are 128 too large then in bfloat16,
which a product of x with that number puts right), and what a thread reads is at places that it knows before.

(On the matrix units of warpgroups, whose left operand is 64 rows in registers, 16 rows of int4 took 19.5 us instead of
15.1: such a product takes as long for 16 columns as for 64.)
"""

from numba import types

from ...blocks.cuda import PACKED_STREAM as BLOCK
from ...build import jit
from ...cpu.quant.panels import LANES, record_bytes
from ...cpu.quant.traits import bits_of, format_of, has_min, is_flat, unit_bytes
from ...lang.by_type import by_type
from ...lang.mma import (
    both,
    even_first,
    load_shared,
    multiply_halves,
    settled,
    spread_even_bytes,
    spread_nibbles,
    twice,
    two_halves,
)
from ...lang.ptx import (
    WARP,
    barrier,
    barrier_of,
    barrier_wait,
    block,
    generic,
    thread,
    wait_for_others,
)
from ...lang.simd import address, fill, lane, load, muladd
from ..gemm.sizes import STREAM_PANELS, STREAM_WARPS, float_warps, stream_head
from ..ring import X, bring_x, following, free, keep, new_ring, places_of, stage_of, sums_memory
from .parameters import parameters
from .rows import four, level_of_format
from .stream import ask_for_scales, bring_panels, each, finisher, matrix_step, next_of, plane_step, times_of

F32, U32, I64 = types.float32, types.uint32, types.int64
HALF = 8 * 128  # bytes from the first eight rows of x to the others, in 64 of k


def _excess_of(form, T):
    """By how much the numbers that are multiplied are larger than q - zero, or q where there are minimums."""
    if form.bits == 4:
        return form.zero + (128 if T.instance_type.name == "ic_bfloat16" else 0)
    return form.zero - level_of_format(form, T)


@by_type
def excess_of(F, T):
    """The same, in kernels."""
    excess = _excess_of(format_of(F), T)
    return lambda F, T: excess


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

    def four_bits(at, other, F, T):
        v = load_shared(at, U32, 2, 1, 0)
        return spread_nibbles(lane(v, 0), T), spread_nibbles(lane(v, 1), T)

    level = level_of_format(form, T)

    def eight_bits(at, other, F, T):
        v, w = load_shared(at, U32, 2, 1, 0), load_shared(other, U32, 2, 1, 0)
        a = both(spread_even_bytes(lane(v, 0), level, T), spread_even_bytes(lane(w, 0), level, T))
        return a, both(spread_even_bytes(lane(v, 1), level, T), spread_even_bytes(lane(w, 1), level, T))

    return four_bits if form.bits == 4 else eight_bits


@jit.inline
def own_x():
    """Where a thread's words of x lie in 64 of k, of which its warp's units are the same half."""
    t, g = thread() % 4, thread() % WARP // 4
    chunk = (thread() // WARP & 1) * 4 + (t >> 1)
    return g * 128 + 8 * (t & 1) + ((chunk ^ g) << 4)


@jit.inline
def fetch_x(at, own):
    """The words of quads t and t + 4 of a unit of a row of x, in the order in which integers of the weight come."""
    return even_first(both(load_shared(at + own, U32, 2, 1, 0), load_shared(at + (own ^ 32), U32, 2, 1, 0)))


@by_type
def correction(F, T):
    """Words that x is multiplied with for what a product begins with: -excess; 1 where groups have minimums, of which
    the excess is a part then.
    """
    form = format_of(F)
    value = twice(1.0 if form.has_min else -float(_excess_of(form, T)), T.instance_type.name)
    return lambda F, T: fill(value, U32, 4)


@jit.inline
def sum_of(x, F, T):
    """Sums of a unit of x times this, of the rows of x that a thread has sums of, where weights ask for them."""
    if excess_of(F, T) == 0 and not has_min(F):
        return fill(0.0, F32, 4)
    words = correction(F, T)
    return multiply_halves(fill(0.0, F32, 4), words, words, x, T)


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
    lined, head, warps, times = (
        LANES * bands + 4,
        stream_head(tokens, bands),
        float_warps(tokens, bands),
        times_of(bands),
    )
    parts, members = STREAM_WARPS, warps * WARP
    finish = finisher(tokens, lined, parts, members, gating)

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
    def unit_of(at, own, F, T):
        """(x of a unit; where its sums begin, for the first rows of x and the others, and the sums of x)."""
        x = fetch_x(at, own)
        y = fetch_x(at + HALF, own) if tokens > 8 else x
        s, t = sum_of(x, F, T), sum_of(y, F, T) if tokens > 8 else fill(0.0, F32, 4)
        if has_min(F):
            return (x, y), (fill(0.0, F32, 4), fill(0.0, F32, 4), s, t)
        return (x, y), (s, t, s, t)

    @jit.inline
    def kept(sums, band, own, t, row, count, shift, F, T):
        """Four values of a warp's tile: of two neighbouring rows of the weight, of two of x."""
        place = own + 2 * t * lined + LANES * band + row
        keep(place, 0, lined, 1, sums[0])
        if tokens > 8:
            keep(place, 8 * lined, lined, 1, sums[1])
        return sums

    @jit.inline
    def four_kept(place):
        return both(
            both(fill(load(place, 0), F32, 1), fill(load(place, lined), F32, 1)),
            both(fill(load(place, 1), F32, 1), fill(load(place, lined + 1), F32, 1)),
        )  # fmt: skip

    @jit.inline
    def added(sums, band, own, t, row, count, shift, F, T):
        """What another warp has kept is added to these."""
        place = own + 2 * t * lined + LANES * band + row
        return sums[0] + four_kept(place), (sums[1] + four_kept(place + 8 * lined) if tokens > 8 else sums[1])

    keep_all, join = each(kept, bands), each(added, bands)

    @jit.inline
    def multiply(args, barriers, x_whole, ring, stage_bytes, hi, slabs, params, F, T, GATE):
        """What the warps do that multiply."""
        k, stages, share, count, shift = (
            load(args, BLOCK.k), load(args, BLOCK.stages), load(args, BLOCK.share), load(args, BLOCK.tokens),
            load(args, BLOCK.shift),
        )  # fmt: skip
        warp, g, t, stage, phase = thread() // WARP, thread() % WARP // 4, thread() % 4, 0, 0
        # two rows from here on, so numbered that what a half of a warp reads meets in no bank
        row = 2 * (g & 1 | (g & 2) << 1 | (g & 4) >> 1)
        memory, planes, whole = sums_memory(), plane_step(slabs, F), load(args, BLOCK.whole)
        own, words, x_words = memory + warp % parts * tokens * lined, own_words(row, F), own_x()
        matrix, item, second = matrix_step(share, slabs, params, F), block(), 0
        wait_for_others()
        if whole != 0:
            barrier_wait(barriers + X, 0)
        while item < hi:
            ask_for_scales(args, item, second, gating, F)
            start, unit, sums = 0, warp, times(fill_pairs())
            while start < k >> 6:
                here, place = stage_of(barriers, ring, stage_bytes, stage)
                barrier_wait(here, phase)
                if whole == 0:
                    barrier_wait(here + X, phase)
                x_at = x_whole + start * (tokens * 128) if whole != 0 else place + matrix
                while unit < 2 * slabs:
                    x, more = unit_of(x_at + (unit >> 1) * (tokens * 128), x_words, F, T)
                    panel, records = place + unit * unit_bytes(F), near(F, place + share * planes, unit, shift, row)
                    at = settled(panel + words), settled(panel + 256 + (words ^ 32)), records, planes, params, row
                    sums = every(sums, at, x, more, unit, shift, F, T)
                    unit += warps
                unit -= 2 * slabs
                free(here)
                stage, phase = following(stage, phase, stages)
                start += slabs
            if warps > parts:
                if warp >= parts:
                    sums = keep_all(sums, own, t, row, count, 0, F, T)
                barrier_of(1, members)
                if warp < parts:
                    sums = join(sums, own, t, row, count, 0, F, T)
            if warp < parts:
                sums = keep_all(sums, own, t, row, count, 0, F, T)
            barrier_of(1, members)
            finish(args, memory, item, second, count, (0, 0), F, T, GATE)
            barrier_of(1, members)
            item, second = next_of(item, second, gating)

    @jit.inline
    def run(args, hi, F, T, SLABS, PARAMS, GATE):
        whole, k, warp = load(args, BLOCK.whole), load(args, BLOCK.k), thread() // WARP
        stages, matrix = load(args, BLOCK.stages), matrix_step(load(args, BLOCK.share), SLABS, PARAMS, F)
        barriers, x_whole, ring, stage_bytes = places_of(head, matrix, SLABS, k, tokens, whole)
        if thread() == 0:
            new_ring(barriers, stages, warps)
        barrier()
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
