"""Products of few rows of 16-bit floats and quantised weights on Hopper: as fast as the weights are read.

A block has some panels of 16 rows of a weight at a time for all of k, so that it reads x once for all of them. Two of
its warps let the copy engine bring them, as they lie, and x, to a ring in shared memory (`cuda/ring.py`); the others
take units of 32 of k in turn, and scales are multiplied with the sums of a unit. One or two rows of x become integers
(`digits.py`). For more of them the weight's integers become 16-bit floats in registers, where 4 bits take an
instruction for two and a shift; they are 128 too large then in bfloat16, which sums of x put right.
`cpu/quant/panels.py` says how weights lie.
"""

from numba import types

from ...blocks.cuda import GATING
from ...blocks.cuda import PACKED_STREAM as BLOCK
from ...blocks.norm import ADD_RMS
from ...build import jit
from ...cpu.quant.panels import LANES, record_bytes
from ...cpu.quant.traits import bits_of, format_of, has_min, is_flat, unit_bytes
from ...lang.by_type import by_type
from ...lang.formats import UNIT
from ...lang.mma import both, even_first, load_shared, multiply_bytes, multiply_halves, spread_nibbles, two_halves
from ...lang.ptx import (
    WARP,
    barrier,
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
from ...lang.simd import address, fill, lane, load, muladd, ptr, store, vload, vstore
from ..gemm.sizes import DIGIT_ROWS, PACKED_WARPS, STREAM_PANELS, STREAM_WARPS, packed_warps, stream_head
from ..gemm.wgmma import ratio
from ..made import gated, normed
from ..ring import (
    FREE,
    X,
    bring_x,
    following,
    free,
    keep,
    let_pass,
    new_ring,
    places_of,
    say_when_others_end,
    stage_of,
    sums_memory,
    total_of,
)
from . import digits
from .digits import two_words
from .parameters import parameters
from .rows import four, integers, level_of_format, ones

F32, U32, I64 = types.float32, types.uint32, types.int64
PARTS = STREAM_WARPS  # of the sums that are added up in the end


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


def _each(one, count):
    """one(sums[i], i, ...) for all of a tuple."""
    last = count - 1
    if last == 0:

        @jit.inline
        def all_(sums, at, x, more, unit, shift, F, T):
            return (one(sums[0], 0, at, x, more, unit, shift, F, T),)

        return all_
    before = _each(one, last)

    @jit.inline
    def all_(sums, at, x, more, unit, shift, F, T):
        return before(sums[:last], at, x, more, unit, shift, F, T) + (
            one(sums[last], last, at, x, more, unit, shift, F, T),
        )

    return all_


fill_pairs = jit.inline(lambda: (fill(0.0, F32, 4), fill(0.0, F32, 4)))
fill_two = jit.inline(lambda: fill(0.0, F32, 2))


def _times(count):
    """x so often, as a tuple."""
    if count == 1:
        return jit.inline(lambda x: (x,))
    before = _times(count - 1)
    return jit.inline(lambda x: (*before(x), x))


@jit.inline
def fetch_x(at, chunk, line, T, F):
    """The words of quads t and t + 4 of a unit of a row of x, in the order in which integers of the weight come."""
    t = thread() % 4
    place = at + line * 128 + 8 * (t & 1)
    a = load_shared(place + ((chunk + (t >> 1) ^ line & 7) << 4), U32, 2, 1, 0)
    b = load_shared(place + ((chunk + 2 + (t >> 1) ^ line & 7) << 4), U32, 2, 1, 0)
    return even_first(both(a, b)) if bits_of(F) == 4 else both(a, b)


@jit.inline
def sum_of(x, T, F):
    """Sums of a unit of x, of the rows of x that a thread has sums of, where weights ask for them."""
    if excess_of(F, T) == 0 and not has_min(F):
        return fill(0.0, F32, 4)
    one = ones(T)
    return multiply_halves(fill(0.0, F32, 4), one, one, x, T)


@by_type
def factors(F, records, unit, shift, row, T):
    """(scales of two neighbouring rows, what sums of x are multiplied with), for the four sums of a thread."""
    form = format_of(F)
    record = record_bytes(form)
    if form.parameters == "half":

        def scales(F, records, unit, shift, row, T):
            word = lane(load_shared(records + (unit >> shift) * record + 2 * row, U32, 1, 1, 0), 0)
            return two_halves(word), fill(0.0, F32, 4)

        return scales
    excess, minimums = float(_excess_of(form, T)), form.has_min

    def both_of(F, records, unit, shift, row, T):
        s0, m0 = parameters(F, I64(generic(records)), unit, shift, row)
        s1, m1 = parameters(F, I64(generic(records)), unit, shift, row + 1)
        if minimums:
            return four(s0, s1), four(m0 - F32(excess) * s0, m1 - F32(excess) * s1)
        return four(s0, s1), fill(0.0, F32, 4)

    return both_of


@jit.inline
def weigh(sums, start, a, b, x, total, by, F, T):
    """`sums` + the product of a unit, whose `factors` these are."""
    sums = muladd(multiply_halves(start, a, b, x, T), by[0], sums)
    return muladd(total, by[1], sums) if has_min(F) else sums


def _product(tokens, bands, make=None, gating=False):
    """The kernel for up to so many rows of x, and panels of 16 rows of the weight; `make` (`cuda/made.py`) makes x, and
    with `gating` a gate of the results of two weights follows.
    """
    behind_product = BLOCK.WIDTH + (0 if make is None else ADD_RMS.WIDTH)
    lined, head, times, warps = 16 * bands + 4, stream_head(tokens, bands), _times(bands), packed_warps(tokens, bands)
    by_digits, first_sums = tokens == DIGIT_ROWS, fill_two if tokens == DIGIT_ROWS else fill_pairs

    @jit.inline
    def one(sums, band, at, x, more, unit, shift, F, T):
        """The sums of a panel (of the first rows of x, of the others) with a unit."""
        planes, params, planes_step, params_step, row = at
        place, line = planes + band * planes_step, unit * (4 if bits_of(F) == 8 else 2) + (thread() % 4 >> 1)
        v = two_words(place, line, row)
        if bits_of(F) == 4:
            a, b = spread_nibbles(lane(v, 0), T), spread_nibbles(lane(v, 1), T)
        else:
            w = two_words(place, line + 2, row)
            a = both(integers(lane(v, 0), F, T), integers(lane(w, 0), F, T))
            b = both(integers(lane(v, 1), F, T), integers(lane(w, 1), F, T))
        if is_flat(F):
            s = multiply_halves(sums[0], a, b, x[0], T)
            return s, (multiply_halves(sums[1], a, b, x[1], T) if tokens > 8 else s)
        records = params + band * params_step
        by = factors(F, records, unit, shift, row, T)
        s = weigh(sums[0], more[0], a, b, x[0], more[2], by, F, T)
        return s, (weigh(sums[1], more[1], a, b, x[1], more[3], by, F, T) if tokens > 8 else s)

    @jit.inline
    def one_of_digits(sums, band, at, x, more, unit, shift, F, T):
        """The same of one or two rows of x as digits."""
        planes, params, planes_step, params_step, row = at
        words = digits.quads(planes + band * planes_step, unit, row, F)
        part = digits.numbers(multiply_bytes(more[0], words, x, 0))
        if is_flat(F):
            return sums + part
        by = digits.factors(F, params + band * params_step, unit, shift, row)
        sums = muladd(part, by[0], sums)
        return muladd(more[1], by[1], sums) if has_min(F) else sums

    every = _each(one_of_digits if by_digits else one, bands)

    @jit.inline
    def unit_of(x_at, first, unit, count, own, F, T):
        """(x of a unit; where its sums begin, for the first rows of x and the others, and the sums of x)."""
        line, chunk = (first + (unit >> 1)) * count, (unit & 1) * 4
        x = fetch_x(x_at, chunk, line + own[0], T, F)
        y = fetch_x(x_at, chunk, line + own[1], T, F) if tokens > 8 else x
        s, t = sum_of(x, T, F), sum_of(y, T, F) if tokens > 8 else fill(0.0, F32, 4)
        if has_min(F) or excess_of(F, T) == 0:
            return (x, y), (fill(0.0, F32, 4), fill(0.0, F32, 4), s, t)
        excess = F32(-excess_of(F, T))
        return (x, y), (s * excess, t * excess, s, t)

    @jit.inline
    def unit_of_digits(x_at, first, unit, count, own, F, T):
        x = load_shared(x_at + (2 * first + unit) * count * digits.ROW_BYTES + own[0], U32, 2, 1, 0)
        return x, digits.prepared(x, F)

    unit_at = unit_of_digits if by_digits else unit_of

    @jit.inline
    def kept(sums, band, own, t, row, count, shift, F, T):
        """Four values of a warp's tile: of two neighbouring rows of the weight, of two of x."""
        place = own + 2 * t * lined + 16 * band + row
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
        place = own + 2 * t * lined + 16 * band + row
        return sums[0] + four_kept(place), (sums[1] + four_kept(place + 8 * lined) if tokens > 8 else sums[1])

    @jit.inline
    def kept_of_digits(sums, band, own, t, row, count, shift, F, T):
        """The same of two neighbouring rows of the weight and a row of x, which every other thread has."""
        found = digits.own_sums(sums)
        if t & 1 == 0 and t >> 1 < count:
            store(own, (t >> 1) * lined + 16 * band + row, lane(found, 0))
            store(own, (t >> 1) * lined + 16 * band + row + 1, lane(found, 1))
        return sums

    @jit.inline
    def added_of_digits(sums, band, own, t, row, count, shift, F, T):
        """Likewise; a part of the digits of c as that many of those of a and b."""
        if t & 1 != 0 or t >> 1 >= count:
            return sums
        place = own + (t >> 1) * lined + 16 * band + row
        return sums + vload(place, 0, 2) * F32(1 / 256)

    keep_all = _each(kept_of_digits if by_digits else kept, bands)
    join = _each(added_of_digits if by_digits else added, bands)

    @jit.inline
    def finish(args, memory, item, second, count, powers, F, T, GATE):
        """The sums of all warps, and what follows them."""
        number, within = place_of(args, item, second, gating)
        share, k = LANES * load(args, BLOCK.share), load(args, BLOCK.k)
        columns, first = load(args, BLOCK.columns0 + number), within * share
        column = first + (0 if number == 0 else load(args, BLOCK.column1 - 1 + number))
        here = min(share, columns - first)
        for i in range(thread(), here * count, warps * WARP):
            token = ratio(i, here)
            at = i - token * here
            total = total_of(memory, tokens, lined, token, at)
            if by_digits:
                total = digits.undone(total, powers[0] if token == 0 else powers[1])
            if is_flat(F):
                panel = load(args, BLOCK.weight0 + number) + (first + at) // LANES * load(args, BLOCK.panel_bytes)
                total *= load(ptr(panel + k // UNIT * unit_bytes(F), F32), at % LANES)
            if load(args, BLOCK.bias) != 0:
                total += load(ptr(load(args, BLOCK.bias), T), column + at)
            store(ptr(load(args, BLOCK.y), T), token * load(args, BLOCK.y_stride) + column + at, total)
            if gating and second != 0:  # this thread has stored the other weight's result, too
                results = ptr(load(args, BLOCK.y), T) + token * load(args, BLOCK.y_stride) + first + at
                a, b = vload(results, 0, 1), vload(results, load(args, BLOCK.columns0), 1)
                value = GATE(b, a) if load(args, behind_product + GATING.gate_first) != 0 else GATE(a, b)
                y = ptr(load(args, behind_product + GATING.y), T)
                vstore(y + token * load(args, behind_product + GATING.y_stride), first + at, value)

    @jit.inline
    def multiply(args, barriers, places, ring, stage_bytes, memory, hi, slabs, params, F, T, HOW, PIECES, GATE):
        """What the other warps do; `places` are those of x as a whole and of its digits."""
        x_whole, x_digits = places
        k, stages, share, count, shift = (
            load(args, BLOCK.k), load(args, BLOCK.stages), load(args, BLOCK.share), load(args, BLOCK.tokens),
            load(args, BLOCK.shift),
        )  # fmt: skip
        warp, g, t, stage, phase = thread() // WARP, thread() % WARP // 4, thread() % 4, 0, 0
        # two rows from here on, so numbered that what a half of a warp reads meets in no bank
        row = 2 * (g & 1 | (g & 2) << 1 | (g & 4) >> 1)
        own, planes, whole = memory + warp % PARTS * tokens * lined, plane_step(slabs, F), load(args, BLOCK.whole) != 0
        own_x = (digits.own_column(count), 0) if by_digits else (min(g, count - 1), min(g + 8, count - 1))
        matrix, item, second, powers = matrix_step(share, slabs, params, F), block(), 0, (0, 0)
        wait_for_others()
        if make is not None:
            make(args, BLOCK.WIDTH, memory, generic(x_whole), count, T, HOW, PIECES, 1)
        elif whole:
            barrier_wait(barriers + X, 0)
        if by_digits:
            powers = digits.begin(memory, x_digits, x_whole, count, k, T)
        while item < hi:
            start, sums = 0, times(first_sums())
            while start < k >> 6:
                here, place = stage_of(barriers, ring, stage_bytes, stage)
                barrier_wait(here, phase)
                if not whole:
                    barrier_wait(here + X, phase)
                at, x_at = (place, place + share * planes, planes, params, row), x_digits if whole else place + matrix
                first = start if whole else 0
                for turn in range((2 * slabs + warps - 1) // warps):
                    unit = turn * warps + warp
                    if unit < 2 * slabs:
                        x, more = unit_at(x_at, first, unit, count, own_x, F, T)
                        sums = every(sums, at, x, more, unit, shift, F, T)
                free(here)
                stage, phase = following(stage, phase, stages)
                start += slabs
            if warps > PARTS:
                if warp >= PARTS:
                    sums = keep_all(sums, own, t, row, count, 0, F, T)
                barrier_of(1, warps * WARP)
                if warp < PARTS:
                    sums = join(sums, own, t, row, count, 0, F, T)
            if warp < PARTS:
                sums = keep_all(sums, own, t, row, count, 0, F, T)
            barrier_of(1, warps * WARP)
            finish(args, memory, item, second, count, powers, F, T, GATE)
            barrier_of(1, warps * WARP)
            item, second = next_of(item, second, gating)

    @jit.inline
    def run(args, hi, F, T, SLABS, PARAMS, HOW, PIECES, GATE):
        whole, count, k, warp = load(args, BLOCK.whole), load(args, BLOCK.tokens), load(args, BLOCK.k), thread() // WARP
        stages, matrix = load(args, BLOCK.stages), matrix_step(load(args, BLOCK.share), SLABS, PARAMS, F)
        barriers, x_whole, ring, stage_bytes = places_of(head, matrix, SLABS, k, count, whole)
        memory, x_digits = sums_memory(), x_whole
        if by_digits:
            x_digits, ring = ring, ring + digits.bytes_of(count, k)
        if thread() == 0:
            new_ring(barriers, stages, warps)
        barrier()
        if warp == warps:
            bring_panels(args, barriers, ring, stage_bytes, hi, SLABS, PARAMS, F, gating)
        elif warp > warps:
            if make is not None:
                say_when_others_end(barriers)
            else:
                bring_x(
                    barriers, x_whole if whole else ring + matrix, stages, stage_bytes, hi, k, SLABS,
                    address(args) + 8 * BLOCK.map_x, load(args, BLOCK.map_x), count, k, whole,
                )  # fmt: skip
        else:
            places = x_whole, x_digits
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


_MAKES = {"normed": normed(PACKED_WARPS * WARP), "gated": gated(PACKED_WARPS * WARP, 2)}
for _bands in STREAM_PANELS:
    globals().update({f"product_{tokens}_{_bands}": _product(tokens, _bands) for tokens in (DIGIT_ROWS, 8, 16)})
    globals().update({f"{name}_2_{_bands}": _product(DIGIT_ROWS, _bands, make) for name, make in _MAKES.items()})
    globals().update({f"gating_{tokens}_{_bands}": _product(tokens, _bands, gating=True) for tokens in (DIGIT_ROWS, 8)})
    globals()[f"normed_gating_2_{_bands}"] = _product(DIGIT_ROWS, _bands, _MAKES["normed"], gating=True)
