"""Attention on the matrix units of Hopper: tiles of 128 query rows of a head, for as many blocks as there are
multiprocessors, which take tile after tile.

A block has three warpgroups. The first one brings the tile's queries and, 128 at a time, keys and values to shared
memory: by the copy engine, or, where it cannot read their layout, element by element. The others have 64 rows each:
scores in registers, from which weights become the left operand of the product with the values. While a group weighs
the scores of a tile of keys, the units work on its product with the values before and on the other group's scores
(the two take turns to start their products; Shah et al., FlashAttention-3, arXiv 2407.08608).

Operands lie in shared memory in slabs of 64 elements of a head: rows of 128 bytes, swizzled.
"""

from numba import types

from ...blocks.attention import BAD_BLOCK
from ...blocks.cuda import FLASH
from ...build import jit
from ...cpu.attention.prefill import find_run, sequence, visible
from ...cpu.attention.tiles import offset_of
from ...lang.fragments import flags
from ...lang.ptx import (
    barrier,
    barrier_arrive,
    barrier_expect,
    barrier_new,
    barrier_of,
    barrier_tell,
    barrier_wait,
    block,
    blocks,
    copy_tile,
    dynamic_shared,
    fence_async,
    fence_barriers,
    from_place,
    set_registers,
    store_short,
    thread,
)
from ...lang.simd import address, bitcast, fill, lane, load, muladd, ptr, select, store, vmax
from ...lang.tiles import (
    ACROSS,
    ROW_MAJOR,
    clear_16,
    columns,
    exp2,
    hold,
    narrow,
    own_sum,
    pair,
    row_max,
    row_sum,
    settle,
    spread,
    start,
    store_rows,
)
from ...lang.vmath import log
from ..gemm.wgmma import ratio
from .tiles import bits_of_rows, kept_in_rows

INT32, I64, U16, U64, F32, F64 = types.int32, types.int64, types.uint16, types.uint64, types.float32, types.float64
INF = float("inf")
LOG2E = 1.4426950408889634
ROWS, KEYS, WIDTH = 128, 128, 64  # of a tile, of a step, of a slab
SLAB = KEYS * WIDTH * 2
SCORES, KEY_STEPS = KEYS // 2, KEYS // 16  # of a thread; of a product, 16 keys each
WARPS = 8  # with scores
STAGES = {64: 4, 128: 2}  # of keys and values, by the size of a head
TURNS, CLEAR = 2, 4  # numbers of barriers, of two groups each


@jit.inline
def descriptor(place, slab):
    """What the units know of an operand: 1024 bytes from eight rows to the next, `slab` to the next 64 columns."""
    return (place >> 4 & 0x3FFF) | (1 << 62) | (64 << 32) | ((slab >> 4) << 16)


@jit.inline
def gather(x, length, size, to, slab):
    """A row of 64 elements of each slab by this thread: `length` elements from address x (0: none), then zeros."""
    row = thread()
    for i in range(size):
        value = U16(0)
        if x != 0 and i < length:
            value = load(ptr(x, U16), i)
        store_short(to + (i >> 6) * slab + row * 128 + (((i >> 3 & 7) ^ (row & 7)) << 4) + (i & 7) * 2, I64(value))


@jit.inline
def gathered(full):
    """What the threads of a warpgroup have gathered is there."""
    fence_async()
    barrier_of(1, 128)
    if thread() == 0:
        barrier_arrive(full)


@jit.inline
def turn_of(turn, pairs):
    """The tile number `turn` of this block; with `pairs` it has two that follow one another, a long and a short one."""
    return (((turn >> pairs) * blocks() + block()) << pairs) + (turn & pairs)


@jit.inline
def tile_in(index, tiles, pairs):
    """(head of all, tile) of a number: with `pairs` the last tile, the first, the last but one, the second, ..."""
    head = ratio(index, tiles)
    tile = index - head * tiles
    if pairs != 0:
        tile = tile >> 1 if tile & 1 else tiles - 1 - (tile >> 1)
    return head, tile


@jit.inline
def tile_of(args, index):
    """(sequence, head, first row, first query token, query tokens, first key, keys, error) of a tile."""
    heads = load(args, FLASH.group) * load(args, FLASH.kv_heads)
    head, tile = tile_in(index, load(args, FLASH.tiles), load(args, FLASH.pairs))
    if load(args, FLASH.starts) == 0:
        seq = ratio(head, heads)
        q_start, q_len, kv_start, kv_len, status = sequence(args, seq)
        return seq, head - seq * heads, tile * ROWS, q_start, q_len, kv_start, kv_len, status
    for seq in range(load(args, FLASH.num_seqs) + 1):
        q_start, q_len, kv_start, kv_len, status = sequence(args, seq)
        if status != 0:
            return 0, 0, 0, 0, 0, 0, 0, status
        own = (q_len + ROWS - 1) // ROWS
        if tile < own:
            return seq, head, tile * ROWS, q_start, q_len, kv_start, kv_len, 0
        tile -= own
    return 0, 0, 0, 0, 0, 0, 0, 0


@jit.inline
def steps_of(args, row, q_len, kv_len):
    """(first step of 128 keys that rows from `row` on see, last + 1, keys that they see)."""
    if row >= q_len:
        return 0, 0, 0
    _, first, _ = visible(args, row, q_len, kv_len)
    _, _, end = visible(args, min(row + ROWS, q_len) - 1, q_len, kv_len)
    if end <= first:
        return 0, 0, 0
    return first // KEYS, (end + KEYS - 1) // KEYS, end


def _attend(size):
    """The kernel for heads of up to `size` elements."""
    slabs, stages = size // WIDTH, STAGES[size]
    tensor_bytes = slabs * SLAB
    stage_bytes = 2 * tensor_bytes
    barriers = tensor_bytes + stages * stage_bytes
    lanes, depth = size // 2, size // 16

    # barriers: queries are there, are free; then of each stage: keys are there, free, values are there, free
    @jit.inline
    def keys_barrier(base, stage):
        return base + barriers + 16 + 32 * stage

    @jit.inline
    def bring_rows(args, tensor, strides, map_at, seq, kv_head, token, end, to, full, quick):
        """Keys or values of a step, from a token on; an error code."""
        error = 0
        if quick:
            box = load(args, FLASH.box)
            count = ratio(min(end - token, KEYS) + box - 1, box)
            barrier_expect(full, count * box * slabs * WIDTH * 2)
            for i in range(count):
                own, place, run = find_run(args, seq, token + i * box)
                if run < 0:
                    own, place, error = 0, 0, BAD_BLOCK
                own = min(own, load(args, FLASH.blocks) - 1)  # sequences without a table may lie in one block
                at = to + i * box * WIDTH * 2
                for slab in range(slabs):
                    copy_tile(at + slab * SLAB, address(args) + 8 * map_at, slab * WIDTH, place, kv_head, own, full)
            return error
        x = 0
        if token + thread() < end:
            own, place, run = find_run(args, seq, token + thread())
            if run < 0:
                error = BAD_BLOCK
            else:
                x = load(args, tensor) + 2 * offset_of(args, strides, own, place, kv_head)
        length = load(args, FLASH.size_qk) if map_at == FLASH.map_k else load(args, FLASH.size_v)
        gather(x, length, size, to, SLAB)
        gathered(full)
        return error

    @jit.inline
    def bring_queries(args, seq, head, row, q_start, q_len, base, quick):
        """The rows of a tile."""
        full = base + barriers
        in_seq, token = (0, q_start + row) if load(args, FLASH.starts) != 0 else (seq, row)
        if quick:
            barrier_expect(full, tensor_bytes)
            for slab in range(slabs):
                copy_tile(base + slab * SLAB, address(args) + 8 * FLASH.map_q, slab * WIDTH, token, head, in_seq, full)
            return
        x = 0
        if row + thread() < q_len:
            x = load(args, FLASH.q) + 2 * offset_of(args, FLASH.q_strides, in_seq, token + thread(), head)
        gather(x, load(args, FLASH.size_qk), size, base, SLAB)
        gathered(full)

    @jit.inline
    def bring(args, n, base, quick):
        """All that a block reads, by one thread if `quick`, else by a warpgroup; an error code."""
        used, tiles, turn, error = INT32(0), INT32(0), INT32(0), INT32(0)  # few registers are left to this warpgroup
        pairs = load(args, FLASH.pairs)
        while (turn >> pairs << pairs) * blocks() < n:
            index = turn_of(turn, pairs)
            turn = INT32(turn + 1)
            if index >= n:
                continue
            seq, head, row, q_start, q_len, kv_start, kv_len, status = tile_of(args, index)
            if status != 0:
                error = INT32(status)
                continue
            first, last, _ = steps_of(args, row, q_len, kv_len)
            if first == last:
                continue
            barrier_wait(base + barriers + 8, tiles & 1 ^ 1)
            tiles = INT32(tiles + 1)
            bring_queries(args, seq, head, row, q_start, q_len, base, quick)
            kv_head, end = ratio(head, load(args, FLASH.group)), kv_start + kv_len
            token = INT32(kv_start + first * KEYS)
            for _ in range(INT32(last - first)):
                stage, phase = used & stages - 1, used // stages & 1 ^ 1
                bar, to = keys_barrier(base, stage), base + tensor_bytes + stage * stage_bytes
                barrier_wait(bar + 8, phase)
                wrong = bring_rows(
                    args, FLASH.k, FLASH.k_strides, FLASH.map_k, seq, kv_head, token, end, to, bar, quick
                )
                barrier_wait(bar + 24, phase)
                bring_rows(
                    args, FLASH.v, FLASH.v_strides, FLASH.map_v, seq, kv_head, token, end, to + tensor_bytes, bar + 16,
                    quick,
                )  # fmt: skip
                if wrong != 0:
                    error = INT32(wrong)
                token, used = INT32(token + KEYS), INT32(used + 1)
        return I64(error)

    @jit.inline
    def weigh(scores, top, total, scale):
        """(weights of scores, largest score so far, sum of weights, what earlier ones keep)."""
        highest = vmax(top, row_max(scores))
        base = select(highest > -INF, highest * scale, 0.0)
        keep = exp2(top * scale - base)
        weights = exp2(muladd(scores, scale, spread(-base, SCORES)))
        return weights, highest, total * keep + own_sum(weights), keep

    @jit.inline
    def seen(scores, key, begins, ends):
        """Scores of the keys from `key` on, -inf where a row does not see one."""
        at = columns(SCORES) + INT32(key)
        mask = (at < spread(ends, SCORES)) & (at >= spread(begins, SCORES))
        return select(mask, scores, F32(-INF))

    @jit.inline
    def clear(place, first):
        """Zero the values behind the last key: 0 times what is there might be NaN."""
        for i in range(thread() & 127, (KEYS - first) * 8, 128):
            for slab in range(slabs):
                clear_16(place + slab * SLAB + first * WIDTH * 2 + i * 16)
        fence_async()
        barrier_of(CLEAR + (thread() >> 7) - 1, 128)

    @jit.inline
    def bits_of_mask(args, here, below, key, kv_len, MASK):
        """What the mask says of this thread's scores of the keys from `key` on."""
        if MASK == 0:
            return I64(0)
        column = key + 2 * (thread() & 3)
        return bits_of_rows(here + column, below + column, kv_len - column, KEYS // 8)

    @jit.inline
    def bits_of_dropout(args, place, key, DROPOUT):
        """Which of its weights dropout leaves."""
        if DROPOUT == 0:
            return I64(0)
        limit = U64(bitcast(load(args, FLASH.dropout), F64) * 4294967296.0)
        return kept_in_rows(place, key, load(args, FLASH.seed), limit, KEYS // 8)

    @jit.inline
    def write(args, sums, top, total, scale, seq, head, row, q_start, q_len, T):
        """Divide a thread's two rows by their sums of weights, store them, and the log-sum-exp if it is wanted."""
        inverse = select(total == F32(0), F32(0), fill(1.0, F32, 2) / total)
        inverse = inverse * F32(1.0 / (1.0 - bitcast(load(args, FLASH.dropout), F64)))
        words = narrow(sums * spread(inverse, lanes), T)
        in_seq, token = (0, q_start + row) if load(args, FLASH.starts) != 0 else (seq, row)
        column = 2 * (thread() & 3)
        left = load(args, FLASH.size_v) - column
        at = load(args, FLASH.out) + 2 * (offset_of(args, FLASH.out_strides, in_seq, token, head) + column)
        next_at = at + 16 * load(args, FLASH.out_strides + 1)
        store_rows(words, pair(at, next_at), pair(left if row < q_len else I64(0), left if row + 8 < q_len else I64(0)))
        if load(args, FLASH.lse) != 0 and thread() & 3 == 0:
            lse = select(total == F32(0), F32(INF), log(total) * F32(LOG2E) + top * scale)
            heads = load(args, FLASH.group) * load(args, FLASH.kv_heads)
            to = ptr(load(args, FLASH.lse), F32) + (seq * heads + head) * q_len
            if row < q_len:
                store(to, row, lane(lse, 0))
            if row + 8 < q_len:
                store(to, row + 8, lane(lse, 1))

    # What a warp's threads have in common comes from the first of them (`from_place`), so that ptxas knows it:
    # descriptors are then made in registers of the warp, and not by way of those of threads while the units wait.
    # With no branch before the wait for products either (`settle_after`), 4 x 16 x 4096 causal took 467 us, before 555.
    @jit.inline
    def attend_rows(args, n, base, T, MASK, DROPOUT):
        """A warpgroup's 64 rows of all tiles; an error code."""
        half, warp, own = from_place(thread() >> 7, 0) - 1, thread() >> 5 & 3, thread() & 31
        scale = F32(bitcast(load(args, FLASH.scale), F64) * LOG2E)
        queries = descriptor(base + half * 64 * WIDTH * 2, 16)
        stage, phase, q_phase, turn, error = 0, 0, 0, 0, 0
        if half == 1:  # the first group begins
            barrier_tell(TURNS, 256)
        pairs, heads = load(args, FLASH.pairs), load(args, FLASH.group) * load(args, FLASH.kv_heads)
        while (turn >> pairs << pairs) * blocks() < n:
            index = turn_of(turn, pairs)
            turn += 1
            if index >= n:
                continue
            seq, head, row, q_start, q_len, _, kv_len, status = tile_of(args, index)
            row, q_len, kv_len = from_place(row, 0), from_place(q_len, 0), from_place(kv_len, 0)
            if from_place(status, 0) != 0:
                error = status
                continue
            step, last, _ = steps_of(args, row, q_len, kv_len)
            step, last = from_place(INT32(step), 0), from_place(INT32(last), 0)
            first_row = row + half * 64
            my_row = first_row + warp * 16 + (own >> 2)
            sums, top, total = fill(0.0, F32, lanes), fill(-INF, F32, 2), fill(0.0, F32, 2)
            if step < last:
                _, begin, end = visible(args, my_row, q_len, kv_len)
                _, next_begin, next_end = visible(args, my_row + 8, q_len, kv_len)
                _, _, least_end = visible(args, first_row, q_len, kv_len)
                _, most_begin, _ = visible(args, first_row + 63, q_len, kv_len)
                shift = 2 * (own & 3)
                begins = pair(INT32(begin - shift), INT32(next_begin - shift))
                ends = pair(INT32(end - shift), INT32(next_end - shift))
                bar = keys_barrier(base, stage)
                place = from_place(INT32(base + tensor_bytes + stage * stage_bytes), 0)
                barrier_wait(base + barriers, q_phase)
                q_phase ^= 1
                place_of_row = (seq * heads + head) * q_len + my_row
                here = below = load(args, FLASH.mask)
                if MASK != 0:
                    here += offset_of(args, FLASH.mask_strides, seq, head, min(my_row, q_len - 1))
                    below += offset_of(args, FLASH.mask_strides, seq, head, min(my_row + 8, q_len - 1))
                shown = bits_of_mask(args, here, below, step * KEYS, kv_len, MASK)
                kept = bits_of_dropout(args, place_of_row, step * KEYS, DROPOUT)
                barrier_wait(bar, phase)
                scores = settle(
                    start(SCORES, queries, descriptor(place, 16), T, depth, ROW_MAJOR, ROW_MAJOR, SLAB, SLAB), 0
                )
                if own == 0:
                    barrier_arrive(bar + 8)
                if step * KEYS + KEYS > least_end or step * KEYS < most_begin:
                    scores = seen(scores, step * KEYS, begins, ends)
                if MASK != 0:
                    scores = select(flags(shown, SCORES), scores, F32(-INF))
                weights, top, total, keep = weigh(scores, top, total, scale)
                if DROPOUT != 0:
                    weights = select(flags(kept, SCORES), weights, F32(0))
                words = narrow(weights, T)
                step += 1
                while step < last:
                    values, v_bar, v_phase = descriptor(place + tensor_bytes, SLAB), bar + 16, phase
                    stage += 1
                    if stage == stages:
                        stage, phase = 0, phase ^ 1
                    bar = keys_barrier(base, stage)
                    place = from_place(INT32(base + tensor_bytes + stage * stage_bytes), 0)
                    barrier_wait(bar, phase)
                    barrier_of(TURNS + half, 256)
                    scores = start(SCORES, queries, descriptor(place, 16), T, depth, ROW_MAJOR, ROW_MAJOR, SLAB, SLAB)
                    barrier_wait(v_bar, v_phase)
                    sums = start(sums, words, values, T, KEY_STEPS, ROW_MAJOR, ACROSS, SLAB, SLAB)
                    barrier_tell(TURNS + 1 - half, 256)
                    shown = bits_of_mask(args, here, below, step * KEYS, kv_len, MASK)
                    kept = bits_of_dropout(args, place_of_row, step * KEYS, DROPOUT)
                    scores = settle(scores, 1)
                    if own == 0:
                        barrier_arrive(bar + 8)
                    if step * KEYS + KEYS > least_end or step * KEYS < most_begin:
                        scores = seen(scores, step * KEYS, begins, ends)
                    if MASK != 0:
                        scores = select(flags(shown, SCORES), scores, F32(-INF))
                    weights, top, total, keep = weigh(scores, top, total, scale)
                    if DROPOUT != 0:
                        weights = select(flags(kept, SCORES), weights, F32(0))
                    sums = settle(sums, 0)
                    hold(words)
                    words = narrow(weights, T)
                    if own == 0:
                        barrier_arrive(v_bar + 8)
                    sums = sums * spread(keep, lanes)
                    step += 1
                if own == 0:  # the next queries may come
                    barrier_arrive(base + barriers + 8)
                barrier_wait(bar + 16, phase)
                if last * KEYS > kv_len:
                    clear(place + tensor_bytes, kv_len - (last - 1) * KEYS)
                values = descriptor(place + tensor_bytes, SLAB)
                sums = settle(start(sums, words, values, T, KEY_STEPS, ROW_MAJOR, ACROSS, SLAB, SLAB), 0)
                hold(words)
                if own == 0:
                    barrier_arrive(bar + 24)
                stage += 1
                if stage == stages:
                    stage, phase = 0, phase ^ 1
            write(args, sums, top, row_sum(total), scale, seq, head, my_row, q_start, q_len, T)
        return error

    @jit.inline
    def attend(args, lo, hi, T, MASK, DROPOUT):
        base = dynamic_shared()
        if thread() == 0:
            barrier_new(base + barriers, 1)
            barrier_new(base + barriers + 8, WARPS)
            for i in range(2 * stages):
                barrier_new(base + barriers + 16 + 16 * i, 1)
                barrier_new(base + barriers + 24 + 16 * i, WARPS)
            fence_barriers()
            fence_async()
        barrier()
        error = 0
        if from_place(thread() >> 7, 0) == 0:
            set_registers(72)
            whole = (load(args, FLASH.q) | load(args, FLASH.k) | load(args, FLASH.v)) & 15 == 0
            if load(args, FLASH.gathered) == 0 and whole:
                if thread() == 0:
                    error = bring(args, hi, base, True)
            else:
                error = bring(args, hi, base, False)
        else:
            set_registers(216)
            error = attend_rows(args, hi, base, T, MASK, DROPOUT)
        return error

    return attend


attend_64, attend_128 = _attend(64), _attend(128)
