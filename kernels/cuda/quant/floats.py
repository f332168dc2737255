"""Products of 3 to 16 rows of 16-bit floats and quantised weights on Hopper, on the matrix units of warps.

As in `stream.py` a block has some panels of 16 rows of a weight at a time for all of k, in a ring; here its warps take
units of 32 of k in turn, whose integers become 16-bit floats in registers, and scales are multiplied with the sums of a
unit. What counts is instructions: those of integers take two cycles of a scheduler each, and products six, of which
little is at the same time. So integers of 4 bits are multiplied as they lie (`operands.py`), what a thread reads is at
places that it knows before, and it asks whether the next step is there before this one has ended: by 16 rows 14336 x
4096 with 4 bits takes 11.9 us, where it took 13.2.

(On the matrix units of warpgroups, whose left operand is 64 rows in registers, 16 rows of int4 took 19.5 us instead of
15.1: such a product takes as long for 16 columns as for 64.)
"""

from numba import types

from ...blocks.cuda import GATING
from ...blocks.cuda import PACKED_STREAM as BLOCK
from ...build import jit
from ...cpu.quant.panels import LANES
from ...cpu.quant.traits import has_min, is_flat, unit_bytes
from ...lang.mma import load_shared, multiply_halves, settled, shared_stores
from ...lang.ptx import WARP, barrier_of, barrier_wait, barriers_over, block, thread, wait_for_others
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
from .operands import (
    careful,
    correction,
    factors,
    fetch_x,
    is_lifted,
    is_unsure,
    near,
    operands,
    own_token,
    own_words,
    own_x,
    sum_of,
    undone,
)
from .stream import bring_panels, each, maps_of, matrix_step, next_of, place_of, plane_step, scales_at, times_of

F32, U32 = types.float32, types.uint32
HALF = 8 * 128  # bytes from the first eight rows of x to the others, in 64 of k


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
        """The results of a thread's sums of a tile: of two rows of the weight and two of x."""
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
            unsure = is_unsure(lane(total, 0)) or is_unsure(lane(total, 1))
            if unsure or is_unsure(lane(total, 2)) or is_unsure(lane(total, 3)):
                for i in range(4):
                    own, of = min(row + i // 2, row + left - 1), min(token + 2 * (i & 1), count - 1)
                    put(at + 4 * i, fill(careful(args, number, own, of, F, T), F32, 1))
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
        new_ring(barriers, stages, warps, 0, load(args, BLOCK.map_x), maps_of(args, F))
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
