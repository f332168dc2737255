"""Products of one or two rows of 16-bit floats and quantised weights on Hopper: as fast as the weights are read.

A block has some panels of 16 rows of a weight at a time for all of k, so that it reads x once for all of them. Two of
its warps let the copy engine bring them, as they lie, and x, to a ring in shared memory (`cuda/ring.py`); the others
take units of 32 of k in turn. x becomes integers (`digits.py`), and scales are multiplied with the sums of a unit.
`cpu/quant/panels.py` says how weights lie. What brings weights is also that of more rows (`floats.py`).
"""

from numba import types

from ...blocks.cuda import GATING
from ...blocks.cuda import PACKED_STREAM as BLOCK
from ...blocks.norm import ADD_RMS
from ...build import jit
from ...cpu.quant.panels import LANES
from ...cpu.quant.traits import has_min, is_flat, unit_bytes
from ...lang.formats import UNIT
from ...lang.mma import load_shared, multiply_bytes
from ...lang.ptx import (
    WARP,
    ask_for,
    barrier_expect,
    barrier_of,
    barrier_wait,
    block,
    blocks,
    copy_tile_once,
    generic,
    thread,
    wait_for_others,
)
from ...lang.simd import (
    address,
    fill,
    lane,
    load,
    muladd,
    ptr,
    store,
    vload,
    vload_aligned,
    vload_first,
    vstore_first,
)
from ..gemm.sizes import DIGIT_ROWS, PACKED_WARPS, STREAM_PANELS, STREAM_WARPS, stream_head
from ..gemm.wgmma import ratio
from ..made import gated, normed
from ..ring import (
    FREE,
    X,
    bring_x,
    following,
    free,
    let_pass,
    new_ring,
    places_of,
    say_when_others_end,
    stage_of,
    sums_memory,
)
from . import digits

F32, U32 = types.float32, types.uint32
PARTS = STREAM_WARPS  # of the sums that are added up in the end
MEMBERS = PACKED_WARPS * WARP


@jit.inline
def weight_of(args, item):
    """(number of the weight that an item belongs to, the item's number in it)."""
    if item >= load(args, BLOCK.items2):
        return 2, item - load(args, BLOCK.items2)
    if item >= load(args, BLOCK.items1):
        return 1, item - load(args, BLOCK.items1)
    return 0, item


@jit.inline
def plane_step(slabs, F):
    """Bytes of the integers of a panel in a step."""
    return 2 * slabs * unit_bytes(F)


@jit.inline
def matrix_step(share, slabs, params, F):
    """Bytes of all that a step has of the weight."""
    return share * plane_step(slabs, F) + (share * params + 1023 & -1024)


@jit.inline
def maps_of(args, F, given=True):
    """Where the maps of the first weight, of its parameters (0: there are none), and of x, if it is `given`, lie."""
    at = address(args)
    return at + 8 * BLOCK.map_w0, 0 if is_flat(F) else at + 8 * BLOCK.map_p0, at + 8 * BLOCK.map_x if given else 0


@jit.inline
def place_of(args, item, second, gating):
    """The same of what a block does next: where a gate follows, an item of two weights, one after the other."""
    return (second, item) if gating else weight_of(args, item)


@jit.inline
def next_of(item, second, gating):
    """(the item, whether it is the turn of the second weight) after these."""
    return (item, 1) if gating and second == 0 else (item + blocks(), 0)


@jit.inline
def bring_panels(args, barriers, ring, stage_bytes, hi, slabs, params, F, gating):
    """What one warp does: it brings panels, step by step."""
    k, stages, share = load(args, BLOCK.k), load(args, BLOCK.stages), load(args, BLOCK.share)
    begun, stage, phase, planes, item, second = 0, 0, 1, plane_step(slabs, F), block(), 0
    if thread() % WARP == 0:
        while item < hi:
            number, within = place_of(args, item, second, gating)
            maps = address(args) + 8 * (BLOCK.map_w0 + 32 * number)
            for step in range(ratio(k, 64 * slabs)):
                here, to = stage_of(barriers, ring, stage_bytes, stage)
                barrier_wait(here + FREE, phase)
                let_pass(barriers, begun, stages, load(args, BLOCK.ahead))
                barrier_expect(here, share * (planes + params))
                copy_tile_once(to, maps, 0, step * (planes >> 7), within * share, 0, here)
                if not is_flat(F):
                    copy_tile_once(to + share * planes, maps + 128, 0, 0, step, within * share, here)
                begun += 1
                stage, phase = following(stage, phase, stages)
            item, second = next_of(item, second, gating)


# ---- what follows the sums -----------------------------------------------------------------------


@jit.inline
def scales_at(args, number, row, F):
    """The address of the scales of a weight's rows, from the first of a panel on, where all of a row share one."""
    panel = load(args, BLOCK.weight0 + number) + row // LANES * load(args, BLOCK.panel_bytes)
    return panel + load(args, BLOCK.k) // UNIT * unit_bytes(F)


@jit.inline
def ask_for_scales(args, item, second, gating, F):
    """Let these be in the cache when the sums are there: memory would be waited for."""
    number, within = place_of(args, item, second, gating)
    share = load(args, BLOCK.share)
    if is_flat(F) and thread() < share and (within * share + thread()) * LANES < load(args, BLOCK.columns0 + number):
        ask_for(scales_at(args, number, (within * share + thread()) * LANES, F))


def finisher(lined, gating, behind):
    """The function that adds up the sums of warps, four rows of the weight for a thread at a time, and what follows.

    PARTS warps have sums of all rows of an item, of a row of x `lined` floats behind those of the one before; a gate
    begins `behind` words behind the block.
    """

    @jit.inline
    def finish(args, memory, item, second, count, powers, F, T, GATE):
        number, within = place_of(args, item, second, gating)
        share = LANES * load(args, BLOCK.share)
        columns, first = load(args, BLOCK.columns0 + number), within * share
        column = first + (0 if number == 0 else load(args, BLOCK.column1 - 1 + number))
        quads = min(share, columns - first) + 3 >> 2
        for i in range(thread(), quads * count, MEMBERS):
            token = ratio(i, quads)
            at = 4 * (i - token * quads)
            left, place = columns - first - at, token * load(args, BLOCK.y_stride)
            total = fill(0.0, F32, 4)
            for part in range(PARTS):
                total = total + vload_aligned(memory, (part * DIGIT_ROWS + token) * lined + at, 4)
            total = digits.undone(total, powers[0] if token == 0 else powers[1])
            if is_flat(F):
                total = total * vload_aligned(ptr(scales_at(args, number, first + at, F), F32), at % LANES, 4)
            if load(args, BLOCK.bias) != 0:
                total = total + vload_first(ptr(load(args, BLOCK.bias), T), column + at, 4, left)
            vstore_first(ptr(load(args, BLOCK.y), T), place + column + at, total, left)
            if gating and second != 0:  # this thread has stored the other weight's results, too
                results, more = ptr(load(args, BLOCK.y), T) + place, load(args, BLOCK.columns0)
                a, b = vload_first(results, first + at, 4, left), vload_first(results, more + first + at, 4, left)
                at_gate = BLOCK.WIDTH + behind
                value = GATE(b, a) if load(args, at_gate + GATING.gate_first) != 0 else GATE(a, b)
                y = ptr(load(args, at_gate + GATING.y), T)
                vstore_first(y, token * load(args, at_gate + GATING.y_stride) + first + at, value, left)

    return finish


# ---- one or two rows -----------------------------------------------------------------------------


def each(one, count):
    """The function that does one(sums[i], i, ...) for all of a tuple."""
    last = count - 1
    if last == 0:

        @jit.inline
        def all_(sums, at, x, more, unit, shift, F, T):
            return (one(sums[0], 0, at, x, more, unit, shift, F, T),)

        return all_
    before = each(one, last)

    @jit.inline
    def all_(sums, at, x, more, unit, shift, F, T):
        return before(sums[:last], at, x, more, unit, shift, F, T) + (
            one(sums[last], last, at, x, more, unit, shift, F, T),
        )

    return all_


def times_of(count):
    """The function that makes a tuple of x, so often."""
    if count == 1:
        return jit.inline(lambda x: (x,))
    before = times_of(count - 1)
    return jit.inline(lambda x: (*before(x), x))


def _product(bands, make=None, gating=False):
    """The kernel for so many panels of 16 rows of the weight; `make` (`cuda/made.py`) makes x, and with `gating` a gate
    of the results of two weights follows.
    """
    lined, head, times = LANES * bands + 4, stream_head(DIGIT_ROWS, bands), times_of(bands)
    behind = 0 if make is None else ADD_RMS.WIDTH
    finish = finisher(lined, gating, behind)

    @jit.inline
    def one(sums, band, at, x, more, unit, shift, F, T):
        """The sums of two rows of a panel with a unit."""
        planes, params, planes_step, params_step, row = at
        words = digits.quads(planes + band * planes_step, unit, row, F)
        part = digits.numbers(multiply_bytes(more[0], words, x, 0))
        if is_flat(F):
            return sums + part
        by = digits.factors(F, params + band * params_step, unit, shift, row)
        sums = muladd(part, by[0], sums)
        return muladd(more[1], by[1], sums) if has_min(F) else sums

    every = each(one, bands)

    @jit.inline
    def kept(sums, band, own, t, row, count, shift, F, T):
        """Sums of two neighbouring rows of the weight and a row of x, which every other thread has."""
        found = digits.own_sums(sums)
        if t & 1 == 0 and t >> 1 < count:
            store(own, (t >> 1) * lined + LANES * band + row, lane(found, 0))
            store(own, (t >> 1) * lined + LANES * band + row + 1, lane(found, 1))
        return sums

    @jit.inline
    def added(sums, band, own, t, row, count, shift, F, T):
        """What another warp has kept is added to these: a part of the digits of c as that many of those of a and b."""
        if t & 1 != 0 or t >> 1 >= count:
            return sums
        return sums + vload(own + ((t >> 1) * lined + LANES * band + row), 0, 2) * F32(1 / 256)

    keep_all, join = each(kept, bands), each(added, bands)

    @jit.inline
    def begin_of_x(args):
        """The address of x; 0 where it is made here."""
        return load(args, BLOCK.map_x) if make is None else 0

    @jit.inline
    def multiply(args, barriers, places, ring, stage_bytes, memory, hi, slabs, params, F, T, HOW, PIECES, GATE):
        """What the other warps do; `places` are those of x and of its digits."""
        x, x_digits = places
        x_begin = begin_of_x(args)
        k, stages, share, count, shift = (
            load(args, BLOCK.k), load(args, BLOCK.stages), load(args, BLOCK.share), load(args, BLOCK.tokens),
            load(args, BLOCK.shift),
        )  # fmt: skip
        warp, g, t, stage, phase = thread() // WARP, thread() % WARP // 4, thread() % 4, 0, 0
        # two rows from here on, so numbered that what a half of a warp reads meets in no bank
        row = 2 * (g & 1 | (g & 2) << 1 | (g & 4) >> 1)
        own, planes = memory + warp % PARTS * DIGIT_ROWS * lined, plane_step(slabs, F)
        own_column, item, second = digits.own_column(count), block(), 0
        wait_for_others()
        if make is not None:
            make(args, BLOCK.WIDTH, memory, generic(x), count, T, HOW, PIECES, 1)
        else:
            barrier_wait(barriers + X, 0)
        powers = digits.begin(memory, x_digits, x, count, k, T)
        while item < hi:
            ask_for_scales(args, item, second, gating, F)
            start, sums = 0, times(fill(0.0, F32, 2))
            while start < k >> 6:
                here, place = stage_of(barriers, ring, stage_bytes, stage)
                barrier_wait(here, phase)
                at = place, place + share * planes, planes, params, row
                for turn in range((2 * slabs + PACKED_WARPS - 1) // PACKED_WARPS):
                    unit = turn * PACKED_WARPS + warp
                    if unit < 2 * slabs:
                        own_x = x_digits + (2 * start + unit) * count * digits.ROW_BYTES + own_column
                        words = load_shared(own_x, U32, 2, 1, 0)
                        sums = every(sums, at, words, digits.prepared(words, F), unit, shift, F, T)
                free(here, x_begin)
                stage, phase = following(stage, phase, stages)
                start += slabs
            if warp >= PARTS:
                sums = keep_all(sums, own, t, row, count, 0, F, T)
            barrier_of(1, MEMBERS)
            if warp < PARTS:
                sums = join(sums, own, t, row, count, 0, F, T)
                sums = keep_all(sums, own, t, row, count, 0, F, T)
            barrier_of(1, MEMBERS)
            finish(args, memory, item, second, count, powers, F, T, GATE)
            barrier_of(1, MEMBERS)
            item, second = next_of(item, second, gating)

    @jit.inline
    def run(args, hi, F, T, SLABS, PARAMS, HOW, PIECES, GATE):
        count, k, warp = load(args, BLOCK.tokens), load(args, BLOCK.k), thread() // WARP
        stages, matrix = load(args, BLOCK.stages), matrix_step(load(args, BLOCK.share), SLABS, PARAMS, F)
        barriers, x, x_digits, stage_bytes = places_of(head, matrix, SLABS, k, count, True)
        memory, ring = sums_memory(), x_digits + digits.bytes_of(count, k)
        new_ring(barriers, stages, PACKED_WARPS, 0, begin_of_x(args), maps_of(args, F, make is None))
        if warp == PACKED_WARPS:
            bring_panels(args, barriers, ring, stage_bytes, hi, SLABS, PARAMS, F, gating)
        elif warp > PACKED_WARPS:
            if make is not None:
                say_when_others_end(barriers)
            else:
                bring_x(
                    barriers, x, stages, stage_bytes, hi, k, SLABS, address(args) + 8 * BLOCK.map_x,
                    load(args, BLOCK.map_x), count, count, k, 1,
                )  # fmt: skip
        else:
            places = x, x_digits
            multiply(args, barriers, places, ring, stage_bytes, memory, hi, SLABS, PARAMS, F, T, HOW, PIECES, GATE)
        return 0

    @jit.inline
    def product(args, lo, hi, F, T, SLABS, PARAMS, HOW=0, PIECES=0, GATE=None):
        """A step has SLABS times 64 of k, and PARAMS bytes of parameters of each panel."""
        return run(args, hi, F, T, SLABS, PARAMS, HOW, PIECES, GATE)

    @jit.inline
    def gating_product(args, lo, hi, F, T, SLABS, PARAMS, GATE):
        return run(args, hi, F, T, SLABS, PARAMS, 0, 0, GATE)

    return gating_product if gating and make is None else product


_MAKES = {"normed": normed(MEMBERS), "gated": gated(MEMBERS, 2)}
for _bands in STREAM_PANELS:
    globals()[f"product_2_{_bands}"] = _product(_bands)
    globals()[f"gating_2_{_bands}"] = _product(_bands, gating=True)
    globals().update({f"{name}_2_{_bands}": _product(_bands, make) for name, make in _MAKES.items()})
    globals()[f"normed_gating_2_{_bands}"] = _product(_bands, _MAKES["normed"], gating=True)
