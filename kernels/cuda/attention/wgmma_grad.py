"""The gradients of attention on the matrix units of Hopper, for dense batches: `grad.py` has the formulas.

`queries` has tiles of 128 query rows and goes over the keys, `keys` tiles of 128 keys and goes over the queries of the
heads that share them: sums are cut by shapes alone, so they are the same each time. Either is a block of three
warpgroups as in `wgmma.py`: one that brings rows to shared memory, and two that have 64 rows of the tile each. `keys`
multiplies turned (keys down, queries across), so that weights are left operands in registers; numbers of query rows
are then those of columns, and come through shared memory. Before both, `delta` sums dO * O of each row.
"""

from numba import types

from ...blocks.cuda import FLASH_GRAD as GRAD
from ...build import jit
from ...cpu.attention.tiles import offset_of
from ...lang.fragments import flags
from ...lang.ptx import (
    barrier,
    barrier_arrive,
    barrier_expect,
    barrier_new,
    barrier_wait,
    blocks,
    copy_tile,
    dynamic_shared,
    fence_async,
    fence_barriers,
    from_lane,
    set_registers,
    thread,
)
from ...lang.simd import address, bitcast, fill, load, muladd, ptr, reduce_add, select, store
from ...lang.tiles import (
    ACROSS,
    ROW_MAJOR,
    columns,
    exp2,
    hold,
    load_columns,
    narrow,
    pair,
    settle,
    settle_after,
    spread,
    start,
    store_float,
    store_rows,
)
from ..block import read, vector, width
from ..gemm.wgmma import ratio
from .tiles import bits_of_columns, bits_of_rows, kept_in_columns, kept_in_rows
from .wgmma import INF, LOG2E, WIDTH, descriptor, gather, gathered, tile_in, turn_of

INT32, I64, U64, F32, F64 = types.int32, types.int64, types.uint64, types.float32, types.float64
ROWS, STEP = 128, 64  # of a tile; rows that come at a time
VALUES, STEP_DEPTH = STEP // 2, STEP // 16  # of a thread, in a step; products of 16
TILE_SLAB, SLAB = ROWS * WIDTH * 2, STEP * WIDTH * 2
STAGES, WARPS = 4, 8
DELTA_ROWS = 16
NUMBERS = 8 * STEP  # bytes of the log-sum-exp and delta of a step


@jit.inline
def delta(args, lo, hi, T):
    """The sums of dO * O of 16 rows of [B, H, S], a row for eight threads."""
    rows, heads = load(args, GRAD.num_rows), load(args, GRAD.group) * load(args, GRAD.kv_heads)
    size, index = load(args, GRAD.size_v), lo * DELTA_ROWS + (thread() >> 3)
    there = index < load(args, GRAD.batch) * heads * rows
    line = ratio(index if there else 0, rows)
    row, own = (index if there else 0) - line * rows, ratio(line, heads)
    head = line - own * heads
    g = ptr(load(args, GRAD.g), T) + offset_of(args, GRAD.g_strides, own, head, row)
    out = ptr(load(args, GRAD.out), T) + offset_of(args, GRAD.out_strides, own, head, row)
    sums = vector(g, 0.0)
    for i in range((thread() & 7) * width(g), size, 8 * width(g)):
        sums = muladd(read(g, i, size - i, sums), read(out, i, size - i, sums), sums)
    total = reduce_add(sums)
    for apart in (1, 2, 4):
        total += from_lane(total, apart)
    if there and thread() & 7 == 0:
        store(ptr(load(args, GRAD.scratch), F32), index, total)
    return 0


@jit.inline
def tile_of(args, index, heads):
    """(batch, head, first row) of a tile."""
    head, tile = tile_in(index, load(args, GRAD.tiles), load(args, GRAD.causal))
    own = ratio(head, heads)
    return own, head - own * heads, tile * ROWS


@jit.inline
def new_barriers(base, count, arrivals, releases):
    """Two barriers of a tile's own rows, then two of each stage: rows are there, after so many arrivals, are free."""
    if thread() == 0:
        for i in range(count):
            barrier_new(base + 16 * i, 1 if i == 0 else arrivals)
            barrier_new(base + 16 * i + 8, WARPS if i == 0 else releases)
        fence_barriers()
        fence_async()
    barrier()


@jit.inline
def dropped_below(args):
    """Random words below this are dropped."""
    return U64(bitcast(load(args, GRAD.dropout), F64) * 4294967296.0)


@jit.inline
def with_dropout(args, values, kept, DROPOUT):
    """Values of a thread after dropout, which leaves those of the bits `kept`."""
    if DROPOUT == 0:
        return values
    factor = F32(1.0 / (1.0 - bitcast(load(args, GRAD.dropout), F64)))
    return select(flags(kept, VALUES), values * factor, F32(0))


def _gradients(size):
    """(queries, keys): the kernels for heads of up to `size` elements."""
    slabs, lanes, depth = size // WIDTH, size // 2, size // 16
    tile_bytes, step_bytes = slabs * TILE_SLAB, slabs * SLAB
    stages_at, numbers_at = 2 * tile_bytes, 2 * tile_bytes + STAGES * 2 * step_bytes
    barriers = numbers_at + STAGES * NUMBERS

    @jit.inline
    def bring(args, tensor, strides, map_at, head, own, row, rows, limit, to, full, quick):
        """`rows` rows of a head: start to copy them, or gather them."""
        if quick:
            for first in range(0, rows, STEP):  # maps have boxes of a step
                for slab in range(slabs):
                    at = to + first * WIDTH * 2 + slab * rows * WIDTH * 2
                    copy_tile(at, address(args) + 8 * map_at, slab * WIDTH, row + first, head, own, full)
        elif thread() < rows:
            x = 0
            if row + thread() < limit:
                x = load(args, tensor) + 2 * offset_of(args, strides, own, head, row + thread())
            of_values = map_at == GRAD.map_v or map_at == GRAD.map_g
            gather(x, load(args, GRAD.size_v) if of_values else load(args, GRAD.size_qk), size, to, rows * WIDTH * 2)

    @jit.inline
    def whole(args):
        """Whether the copy engine can read all operands."""
        places = load(args, GRAD.q) | load(args, GRAD.k) | load(args, GRAD.v) | load(args, GRAD.g)
        return load(args, GRAD.gathered) == 0 and places & 15 == 0

    # ---- queries ----

    @jit.inline
    def keys_end(args, row):
        """The end of the keys that a tile of rows sees."""
        end = load(args, GRAD.num_keys)
        return min(end, row + ROWS) if load(args, GRAD.causal) != 0 else end

    @jit.inline
    def bring_keys(args, n, base, quick):
        """All that `queries` reads: by one thread if `quick`, else by a warpgroup."""
        heads = load(args, GRAD.group) * load(args, GRAD.kv_heads)
        used, tiles, turn = INT32(0), INT32(0), INT32(0)  # few registers are left to this warpgroup
        rows, num_keys = load(args, GRAD.num_rows), load(args, GRAD.num_keys)
        pairs = load(args, GRAD.causal)
        while (turn >> pairs << pairs) * blocks() < n:
            index = turn_of(turn, pairs)
            turn = INT32(turn + 1)
            if index >= n:
                continue
            own, head, row = tile_of(args, index, heads)
            full = base + barriers
            barrier_wait(full + 8, tiles & 1 ^ 1)
            tiles = INT32(tiles + 1)
            if quick:
                barrier_expect(full, 2 * tile_bytes)
            bring(args, GRAD.q, GRAD.q_strides, GRAD.map_q, head, own, row, ROWS, rows, base, full, quick)
            bring(args, GRAD.g, GRAD.g_strides, GRAD.map_g, head, own, row, ROWS, rows, base + tile_bytes, full, quick)
            if not quick:
                gathered(full)
            kv_head = ratio(head, load(args, GRAD.group))
            for key in range(0, keys_end(args, row), STEP):
                stage, phase = used & STAGES - 1, used // STAGES & 1 ^ 1
                used = INT32(used + 1)
                full, to = base + barriers + 16 + 16 * stage, base + stages_at + stage * 2 * step_bytes
                barrier_wait(full + 8, phase)
                if quick:
                    barrier_expect(full, 2 * step_bytes)
                bring(args, GRAD.k, GRAD.k_strides, GRAD.map_k, kv_head, own, key, STEP, num_keys, to, full, quick)
                to += step_bytes
                bring(args, GRAD.v, GRAD.v_strides, GRAD.map_v, kv_head, own, key, STEP, num_keys, to, full, quick)
                if not quick:
                    gathered(full)

    @jit.inline
    def bits_of_mask(args, here, below, key, MASK):
        """What the mask says of this thread's scores of the keys from `key` on."""
        if MASK == 0:
            return I64(0)
        column = key + 2 * (thread() & 3)
        return bits_of_rows(here + column, below + column, load(args, GRAD.num_keys) - column, STEP // 8)

    @jit.inline
    def bits_of_dropout(args, place, key, DROPOUT):
        """Which of its weights dropout leaves."""
        if DROPOUT == 0:
            return I64(0)
        return kept_in_rows(place, key, load(args, GRAD.seed), dropped_below(args), STEP // 8)

    @jit.inline
    def weigh(scores, key, last, ends, minus, scale, shown, MASK):
        """The weights of the keys from `key` on."""
        if MASK != 0:
            scores = select(flags(shown, VALUES), scores, F32(-INF))
        if key + STEP > last:
            scores = select(columns(VALUES) + INT32(key) < spread(ends, VALUES), scores, F32(-INF))
        return exp2(muladd(scores, scale, spread(minus, VALUES)))

    @jit.inline
    def query_rows(args, n, base, T, MASK, DROPOUT):
        """A warpgroup's 64 query rows of all tiles."""
        half, warp, lane = (thread() >> 7) - 1, thread() >> 5 & 3, thread() & 31
        heads, num_rows = load(args, GRAD.group) * load(args, GRAD.kv_heads), load(args, GRAD.num_rows)
        natural = F32(bitcast(load(args, GRAD.scale), F64))
        scale = natural * F32(LOG2E)
        query = descriptor(base + half * 64 * WIDTH * 2, 16)
        grad = descriptor(base + tile_bytes + half * 64 * WIDTH * 2, 16)
        used, tiles, turn = 0, 0, 0
        pairs = load(args, GRAD.causal)
        while (turn >> pairs << pairs) * blocks() < n:
            index = turn_of(turn, pairs)
            turn += 1
            if index >= n:
                continue
            own, head, row = tile_of(args, index, heads)
            first_row = row + half * 64
            my_row = first_row + warp * 16 + (lane >> 2)
            line = (own * heads + head) * num_rows
            here, there = line + min(my_row, num_rows - 1), line + min(my_row + 8, num_rows - 1)
            lse, deltas = ptr(load(args, GRAD.lse), F32), ptr(load(args, GRAD.scratch), F32)
            minus, less = -pair(load(lse, here), load(lse, there)), pair(load(deltas, here), load(deltas, there))
            end = keys_end(args, row)
            last = load(args, GRAD.num_keys)
            ends = pair(INT32(last), INT32(last))
            if load(args, GRAD.causal) != 0:
                ends = pair(INT32(min(last, my_row + 1)), INT32(min(last, my_row + 9)))
                last = min(last, first_row + 1)
            ends = ends - INT32(2 * (lane & 3))
            sums = fill(0.0, F32, lanes)
            mask = below = load(args, GRAD.mask)
            if MASK != 0:
                mask += offset_of(args, GRAD.mask_strides, own, head, min(my_row, num_rows - 1))
                below += offset_of(args, GRAD.mask_strides, own, head, min(my_row + 8, num_rows - 1))
            barrier_wait(base + barriers, tiles & 1)
            tiles += 1
            stage, phase = used & STAGES - 1, used // STAGES & 1
            full, place = base + barriers + 16 + 16 * stage, base + stages_at + stage * 2 * step_bytes
            barrier_wait(full, phase)
            k, v = descriptor(place, 16), descriptor(place + step_bytes, 16)
            scores = start(VALUES, query, k, T, depth, ROW_MAJOR, ROW_MAJOR, TILE_SLAB, SLAB)
            products = start(VALUES, grad, v, T, depth, ROW_MAJOR, ROW_MAJOR, TILE_SLAB, SLAB)
            shown = bits_of_mask(args, mask, below, 0, MASK)
            kept = bits_of_dropout(args, line + my_row, 0, DROPOUT)
            weights = weigh(settle(scores, 1), 0, last, ends, minus, scale, shown, MASK)
            products = with_dropout(args, settle(products, 0), kept, DROPOUT)
            slopes = narrow(weights * (products - spread(less, VALUES)), T)
            for key in range(STEP, end, STEP):
                before, turned = full, descriptor(place, SLAB)
                used += 1
                stage, phase = used & STAGES - 1, used // STAGES & 1
                full, place = base + barriers + 16 + 16 * stage, base + stages_at + stage * 2 * step_bytes
                barrier_wait(full, phase)
                k, v = descriptor(place, 16), descriptor(place + step_bytes, 16)
                scores = start(VALUES, query, k, T, depth, ROW_MAJOR, ROW_MAJOR, TILE_SLAB, SLAB)
                products = start(VALUES, grad, v, T, depth, ROW_MAJOR, ROW_MAJOR, TILE_SLAB, SLAB)
                sums = start(sums, slopes, turned, T, STEP_DEPTH, ROW_MAJOR, ACROSS, SLAB, SLAB)
                shown = bits_of_mask(args, mask, below, key, MASK)
                kept = bits_of_dropout(args, line + my_row, key, DROPOUT)
                weights = weigh(settle(scores, 2), key, last, ends, minus, scale, shown, MASK)
                products = with_dropout(args, settle_after(products, 1, bitcast(weights, INT32)), kept, DROPOUT)
                weights = weights * (products - spread(less, VALUES))
                sums = settle(sums, 0)
                hold(slopes)
                slopes = narrow(weights, T)
                if lane == 0:
                    barrier_arrive(before + 8)
            turned = descriptor(place, SLAB)
            sums = settle(start(sums, slopes, turned, T, STEP_DEPTH, ROW_MAJOR, ACROSS, SLAB, SLAB), 0)
            hold(slopes)
            used += 1
            if lane == 0:
                barrier_arrive(full + 8)
            if lane == 0:
                barrier_arrive(base + barriers + 8)
            column = 2 * (lane & 3)
            step = load(args, GRAD.dq_strides + 2)
            at = load(args, GRAD.dq) + 2 * (offset_of(args, GRAD.dq_strides, own, head, my_row) + column)
            left = load(args, GRAD.size_qk) - column
            lefts = pair(left if my_row < num_rows else I64(0), left if my_row + 8 < num_rows else I64(0))
            store_rows(narrow(sums * natural, T), pair(at, at + 16 * step), lefts)

    @jit.inline
    def queries(args, lo, hi, T, MASK, DROPOUT):
        base = dynamic_shared()
        new_barriers(base + barriers, 1 + STAGES, 1, WARPS)
        if thread() < 128:
            set_registers(40)
            if not whole(args):
                bring_keys(args, hi, base, False)
            elif thread() == 0:
                bring_keys(args, hi, base, True)
        else:
            set_registers(232)
            query_rows(args, hi, base, T, MASK, DROPOUT)
        return 0

    # ---- keys ----

    @jit.inline
    def first_query(args, key):
        """The first query row, at a multiple of a step, that sees one of a tile of keys."""
        return key if load(args, GRAD.causal) != 0 else 0

    @jit.inline
    def bring_numbers(args, line, row, at):
        """The numbers of the query rows of a step, by a warp."""
        lse, deltas = ptr(load(args, GRAD.lse), F32), ptr(load(args, GRAD.scratch), F32)
        for i in range(thread() & 31, STEP, 32):
            there = row + i < load(args, GRAD.num_rows)
            store_float(at + 4 * i, load(lse, line + row + i) if there else F32(INF))
            store_float(at + 4 * (STEP + i), load(deltas, line + row + i) if there else F32(0))

    @jit.inline
    def bring_queries(args, n, base, quick):
        """All that `keys` reads: numbers by the second warp, the rest by one thread if `quick`, else by a warpgroup."""
        kv_heads, rows, num_keys = load(args, GRAD.kv_heads), load(args, GRAD.num_rows), load(args, GRAD.num_keys)
        used, tiles, turn = INT32(0), INT32(0), INT32(0)
        copies = not quick or thread() == 0
        pairs = load(args, GRAD.causal)
        while (turn >> pairs << pairs) * blocks() < n:
            index = turn_of(turn, pairs)
            turn = INT32(turn + 1)
            if index >= n:
                continue
            own, kv_head, key = tile_of(args, index, kv_heads)
            full, to = base + barriers, base + tile_bytes
            if copies:
                barrier_wait(full + 8, tiles & 1 ^ 1)
                if quick:
                    barrier_expect(full, 2 * tile_bytes)
                bring(args, GRAD.k, GRAD.k_strides, GRAD.map_k, kv_head, own, key, ROWS, num_keys, base, full, quick)
                bring(args, GRAD.v, GRAD.v_strides, GRAD.map_v, kv_head, own, key, ROWS, num_keys, to, full, quick)
                if not quick:
                    gathered(full)
            tiles = INT32(tiles + 1)
            for head in range(kv_head * load(args, GRAD.group), (kv_head + 1) * load(args, GRAD.group)):
                for row in range(first_query(args, key), rows, STEP):
                    stage, phase = used & STAGES - 1, used // STAGES & 1 ^ 1
                    used = INT32(used + 1)
                    full, to = base + barriers + 16 + 16 * stage, base + stages_at + stage * 2 * step_bytes
                    barrier_wait(full + 8, phase)
                    if thread() >> 5 == 1:
                        line = (own * kv_heads * load(args, GRAD.group) + head) * rows
                        bring_numbers(args, line, row, base + numbers_at + stage * NUMBERS)
                        barrier_arrive(full)
                    if copies:
                        if quick:
                            barrier_expect(full, 2 * step_bytes)
                        bring(args, GRAD.q, GRAD.q_strides, GRAD.map_q, head, own, row, STEP, rows, to, full, quick)
                        to += step_bytes
                        bring(args, GRAD.g, GRAD.g_strides, GRAD.map_g, head, own, row, STEP, rows, to, full, quick)
                        if not quick:
                            gathered(full)

    @jit.inline
    def key_rows(args, n, base, T, MASK, DROPOUT):
        """A warpgroup's 64 keys of all tiles."""
        half, warp, lane = (thread() >> 7) - 1, thread() >> 5 & 3, thread() & 31
        kv_heads, num_keys = load(args, GRAD.kv_heads), load(args, GRAD.num_keys)
        natural = F32(bitcast(load(args, GRAD.scale), F64))
        scale = natural * F32(LOG2E)
        key_tile = descriptor(base + half * 64 * WIDTH * 2, 16)
        value_tile = descriptor(base + tile_bytes + half * 64 * WIDTH * 2, 16)
        used, tiles, turn = INT32(0), INT32(0), INT32(0)
        pairs = load(args, GRAD.causal)
        while (turn >> pairs << pairs) * blocks() < n:
            index = turn_of(turn, pairs)
            turn = INT32(turn + 1)
            if index >= n:
                continue
            own, kv_head, key = tile_of(args, index, kv_heads)
            my_key = key + half * 64 + warp * 16 + (lane >> 2)
            limits = pair(INT32(my_key), INT32(my_key + 8)) - INT32(2 * (lane & 3))
            masked = key + half * 64 + 63 if load(args, GRAD.causal) != 0 else -1
            key_sums, value_sums = fill(0.0, F32, lanes), fill(0.0, F32, lanes)
            barrier_wait(base + barriers, tiles & 1)
            tiles = INT32(tiles + 1)
            for head in range(kv_head * load(args, GRAD.group), (kv_head + 1) * load(args, GRAD.group)):
                for row in range(first_query(args, key), load(args, GRAD.num_rows), STEP):
                    stage, phase = used & STAGES - 1, used // STAGES & 1
                    used = INT32(used + 1)
                    full, place = base + barriers + 16 + 16 * stage, base + stages_at + stage * 2 * step_bytes
                    barrier_wait(full, phase)
                    q, g = descriptor(place, 16), descriptor(place + step_bytes, 16)
                    scores = start(VALUES, key_tile, q, T, depth, ROW_MAJOR, ROW_MAJOR, TILE_SLAB, SLAB)
                    products = start(VALUES, value_tile, g, T, depth, ROW_MAJOR, ROW_MAJOR, TILE_SLAB, SLAB)
                    numbers = base + numbers_at + stage * NUMBERS + 8 * (lane & 3)
                    first, kept = row + 2 * (lane & 3), I64(0)  # of this thread's queries
                    if DROPOUT != 0:
                        line = (own * kv_heads * load(args, GRAD.group) + head) * load(args, GRAD.num_rows)
                        kept = kept_in_columns(
                            line + first, my_key - (lane >> 2), load(args, GRAD.seed), dropped_below(args), STEP // 8
                        )
                    if MASK != 0:
                        at = load(args, GRAD.mask) + offset_of(args, GRAD.mask_strides, own, head, first) + my_key
                        left = load(args, GRAD.num_rows) - first if my_key < num_keys else 0
                        step = load(args, GRAD.mask_strides + 2)
                        shown = bits_of_columns(at, step, left, my_key + 8 < num_keys, STEP // 8)
                        scores = select(flags(shown, VALUES), settle(scores, 1), F32(-INF))
                    else:
                        scores = settle(scores, 1)
                    if row < masked:  # a query sees the keys up to its own place
                        scores = select(columns(VALUES) + INT32(row) >= spread(limits, VALUES), scores, F32(-INF))
                    weights = exp2(muladd(scores, scale, -load_columns(numbers, VALUES)))
                    words = narrow(with_dropout(args, weights, kept, DROPOUT), T)
                    g = descriptor(place + step_bytes, SLAB)
                    products = with_dropout(args, settle(products, 0), kept, DROPOUT)
                    value_sums = start(value_sums, words, g, T, STEP_DEPTH, ROW_MAJOR, ACROSS, SLAB, SLAB)
                    slopes = narrow(weights * (products - load_columns(numbers + 4 * STEP, VALUES)), T)
                    q = descriptor(place, SLAB)
                    key_sums = start(key_sums, slopes, q, T, STEP_DEPTH, ROW_MAJOR, ACROSS, SLAB, SLAB)
                    value_sums = settle(value_sums, 1)
                    hold(words)
                    key_sums = settle(key_sums, 0)
                    hold(slopes)
                    barrier_arrive(full + 8)
            if lane == 0:
                barrier_arrive(base + barriers + 8)
            column, there, next_there = 2 * (lane & 3), my_key < num_keys, my_key + 8 < num_keys
            at = load(args, GRAD.dk) + 2 * (offset_of(args, GRAD.dk_strides, own, kv_head, my_key) + column)
            left = load(args, GRAD.size_qk) - column
            lefts = pair(left if there else I64(0), left if next_there else I64(0))
            ats = pair(at, at + 16 * load(args, GRAD.dk_strides + 2))
            store_rows(narrow(key_sums * natural, T), ats, lefts)
            at = load(args, GRAD.dv) + 2 * (offset_of(args, GRAD.dv_strides, own, kv_head, my_key) + column)
            left = load(args, GRAD.size_v) - column
            lefts = pair(left if there else I64(0), left if next_there else I64(0))
            ats = pair(at, at + 16 * load(args, GRAD.dv_strides + 2))
            store_rows(narrow(value_sums, T), ats, lefts)

    @jit.inline
    def keys(args, lo, hi, T, MASK, DROPOUT):
        base = dynamic_shared()
        # Lanes arrive for themselves where they write and read numbers: another lane's arrival would not order theirs.
        new_barriers(base + barriers, 1 + STAGES, 1 + 32, 32 * WARPS)
        if thread() < 128:
            set_registers(40)
            if not whole(args):
                bring_queries(args, hi, base, False)
            elif thread() == 0 or thread() >> 5 == 1:
                bring_queries(args, hi, base, True)
        else:
            set_registers(232)
            key_rows(args, hi, base, T, MASK, DROPOUT)
        return 0

    return queries, keys


queries_64, keys_64 = _gradients(64)
queries_128, keys_128 = _gradients(128)
