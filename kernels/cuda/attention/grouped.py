"""Attention of few query rows and many keys where query heads share keys: `decode.py` on the matrix units of warps.

The query heads of a key/value head are the 16 rows of a product, so that their arithmetic is hidden behind the keys.
A block has a query token, a key/value head and a part of the keys, of which its warps take 16 each in turn, so that
what lies together is read at about the same time: each brings its own keys to its own places in shared memory, two
steps ahead, and waits for nobody until its keys are done. What the warps have summed up is added up in their order: the
result, where keys are in one part, or else a slot of the workspace, as in `decode.py`, whose `join` adds up the slots.

Where there is much to read, the copy engine brings the keys of a step at once (`attend_bulk_...`), as they lie, and
they are copied to rows that do not meet in banks before they are multiplied. 64 sequences of 4096 keys take 254 us so,
and 266 to 269 where lanes copy 16 bytes each, or the engine boxes of lines of 128 bytes: those come at 4,150 GB/s even
if nothing else is done, and 4 KB at once at 4,450 (H200). Few keys are there sooner by lanes: 512 in 9.1 us, not 11.

`turned_...` are a rotary embedding, `kvcache.write` and the attention of one query token in one launch: a block turns
the queries and the key of its key/value head, and writes that key and value to the cache before it reads others there.
Where keys are in several parts, the blocks of a head all do so, and store the same.
"""

from numba import types

from ...blocks.attention import ATTENTION, BAD_BLOCK, BAD_SLOT, CACHE
from ...blocks.cuda import DECODE
from ...blocks.rope import BAD_POSITION, ROPE
from ...build import jit
from ...cpu.attention.prefill import sequence, visible
from ...cpu.attention.tiles import offset_of, read_index
from ...lang.fragments import corner, corner_across, operand, rows_times, store_two_rows, times_rows
from ...lang.memory import behind
from ...lang.mma import commit_copies, copy_16, load_shared, shared_stores, wait_copies
from ...lang.ptx import (
    WARP,
    ask_for,
    barrier,
    barrier_end,
    barrier_expect,
    barrier_new,
    barrier_wait,
    copy_bytes,
    dynamic_shared,
    fence_async,
    fence_barriers,
    generic,
    thread,
    warp_barrier,
)
from ...lang.ptx import exp2 as exp2_of
from ...lang.shuffle import even, interleave, odd
from ...lang.simd import bitcast, fill, lane, load, ptr, select, store, vload, vload_aligned, vmax, vstore_aligned
from ...lang.tiles import clear_16, columns, exp2, own_sum, pair, row_max, row_sum, spread
from ..block import write
from ..gemm.wgmma import ratio
from .decode import INF, LOG2E, finite
from .rows import owner
from .sizes import GROUPED_BEGUN, GROUPED_KEYS, GROUPED_ROWS, GROUPED_SIZES, GROUPED_WARPS, PAD, SECOND
from .tiles import bring_rows, bring_vector

INT32, I64, F32, F64 = types.int32, types.int64, types.float32, types.float64
ROWS, KEYS, BEGUN, WARPS = GROUPED_ROWS, GROUPED_KEYS, GROUPED_BEGUN, GROUPED_WARPS
AHEAD = BEGUN - 1  # steps that may still be on their way when the oldest is needed
VALUES = KEYS // 2  # scores of a thread
AT = DECODE.WIDTH  # where the blocks of a rotary embedding and of a cache begin, behind that of attention
APART = WARPS * KEYS  # keys from a warp's step to its next one


@jit.inline
def block_of(args, seq, column):
    """The block of a sequence that its table names in a column, whatever it is, or that is its own."""
    table = load(args, ATTENTION.table)
    if table == 0:
        return seq
    entry = seq * load(args, ATTENTION.table_seq) + column * load(args, ATTENTION.table_block)
    return read_index(table, load(args, ATTENTION.table_bytes), entry)


@jit.inline
def column_of(args, key):
    """(column of the table, place in its block) of a key."""
    column, place = 0, key
    if load(args, ATTENTION.table) != 0:
        column = ratio(key, load(args, ATTENTION.block_size))
        place -= column * load(args, ATTENTION.block_size)
    return column, place


def _attend(size, turn=None, bulk=False):
    """The kernel for heads of `size` elements; with `turn`, after a rotary embedding of this kind; with `bulk`, where
    rows follow one another, by the copy engine if addresses are multiples of 16.

    With `turn` all that is read and written lies at multiples of 16 bytes, of one token of one sequence
    (`cuda/fuse.py` sees to that). A kernel that runs for so short a time waits for its own code: with 5,700
    instructions, not 1,700, a token's attention took 13.2 us in a layer of Llama 1B's shape, not 8.0 (H200).
    """
    joined, pitch, lanes, chunks = turn is not None, 2 * size + PAD, size // 2, size // 8
    rows, apart, stages = WARP // chunks, 2 * size if bulk else pitch, BEGUN if bulk else BEGUN + 1
    tensor, stage_bytes, at_once = KEYS * apart, 2 * KEYS * apart, rows * apart  # at_once: what a warp copies at once
    # behind all stages of all warps lie their steps to multiply, if these lie elsewhere, then queries, and barriers
    step_at, step_bytes = WARPS * stages * stage_bytes, 2 * KEYS * pitch if bulk else 0
    queries_at = step_at + WARPS * step_bytes
    barriers_at = queries_at + ROWS * pitch
    times = KEYS // rows  # that a warp copies of a step
    some = min(times, 8)  # at once, as 16 would take 64 registers
    store_rows = shared_stores(4, [i * rows * pitch for i in range(some)])
    lined = 4 * (size + 8)  # bytes of a row of sums in shared memory, so that neighbouring ones begin in other banks

    @jit.inline
    def own_barriers():
        """The shared address of a warp's barriers, which say of each of its stages that it is there."""
        return dynamic_shared() + barriers_at + thread() // WARP * (stages * 8)

    @jit.inline
    def new_barriers():
        """Make a warp's barriers."""
        if thread() % WARP == 0:
            for i in range(stages):
                barrier_new(own_barriers() + 8 * i, 1)
            fence_barriers()
        warp_barrier()

    @jit.inline
    def end_barriers():
        """A warp's barriers are not needed any more, nor what is in shared memory."""
        if thread() % WARP == 0:
            for i in range(stages):
                barrier_end(own_barriers() + 8 * i)
        fence_async()

    @jit.inline
    def bring_bulk(args, block, place, kv_head, count, to, there):
        """Start to copy so many keys and values from a place of a block on, by one lane."""
        if thread() % WARP == 0:
            nbytes = min(count, KEYS) * (2 * size)
            barrier_expect(there, 2 * nbytes)
            k = load(args, ATTENTION.k) + 2 * offset_of(args, ATTENTION.k_strides, block, place, kv_head)
            v = load(args, ATTENTION.v) + 2 * offset_of(args, ATTENTION.v_strides, block, place, kv_head)
            copy_bytes(to, k, nbytes, there)
            copy_bytes(to + tensor, v, nbytes, there)

    @jit.inline
    def spread_rows(here, to, j, bounds):
        """Copy a step from where it came to rows `pitch` bytes apart; values outside of the bounds are zeros then."""
        number, start, stop = thread() % WARP, bounds[0], bounds[1]
        row = number // chunks
        from_keys, own = here + 16 * number, to + row * pitch + 16 * (number - row * chunks)
        own_values = own + KEYS * pitch
        for i in range(0, times, some):
            store_rows(own + i * rows * pitch, load_shared(from_keys + i * at_once, F32, 4, some, at_once))
            values = load_shared(from_keys + tensor + i * at_once, F32, 4, some, at_once)
            store_rows(own_values + i * rows * pitch, values)
        if j < start or stop < j + KEYS:  # 0 times what lies there might be NaN
            for i in range(times):
                if not start <= j + row + i * rows < stop:
                    clear_16(own_values + i * rows * pitch)

    @jit.inline
    def bring(args, block, place, kv_head, j, bounds, to, T):
        """Start to copy the keys and values from `j` on, at a place of a block; zeros outside of the bounds."""
        start, stop = bounds
        row = thread() % WARP // chunks
        at = 16 * (thread() % WARP - row * chunks)
        k = load(args, ATTENTION.k) + 2 * offset_of(args, ATTENTION.k_strides, block, place + row, kv_head) + at
        v = load(args, ATTENTION.v) + 2 * offset_of(args, ATTENTION.v_strides, block, place + row, kv_head) + at
        k_step, v_step = 2 * rows * load(args, ATTENTION.k_strides + 1), 2 * rows * load(args, ATTENTION.v_strides + 1)
        to += row * apart + at
        if joined or (start <= j and j + KEYS <= stop and (k | v | k_step | v_step) & 15 == 0):
            for i in range(times):
                there = I64(start <= j + row + i * rows < stop)
                copy_16(to + i * at_once, k + i * k_step, there)
                copy_16(to + tensor + i * at_once, v + i * v_step, there)
            return
        for i in range(times):
            left = size if start <= j + row + i * rows < stop else 0
            bring_vector(k + i * k_step, left, to + i * at_once, T, T)
            bring_vector(v + i * v_step, left, to + tensor + i * at_once, T, T)

    @jit.inline
    def keep(args, state, ring, seq, in_seq, token, head, left, part, T):
        """Write the sums of a block's warps of the rows from `head` on, of which `left` are there.

        They go to the slot of the part of the keys, or to the result; `ring` are the warps' places in shared memory.
        """
        sums, top, total = state
        row, column, slots = thread() % WARP // 4, 2 * (thread() & 3), load(args, DECODE.slots)
        stats, warp = ptr(generic(ring + ROWS * lined), F32), thread() // WARP
        own, own_stats = generic(ring + warp * stages * stage_bytes), stats + warp * (stages * stage_bytes // 4)
        at = own + row * lined + 4 * column
        store_two_rows(sums, pair(at, at + 8 * lined), pair(I64(size), I64(size)), F32)
        if column == 0:
            store(own_stats, 2 * row, lane(top, 0))
            store(own_stats, 2 * row + 1, lane(total, 0))
            store(own_stats, 2 * row + 16, lane(top, 1))
            store(own_stats, 2 * row + 17, lane(total, 1))
        barrier()
        for item in range(thread(), min(ROWS, left) * chunks, WARPS * WARP):
            row = item // chunks
            place, at = ptr(generic(ring + row * lined), F32), 8 * (item - row * chunks)
            highest, whole, value = F32(-INF), F32(0), fill(0.0, F32, 8)
            for i in range(WARPS):
                highest = max(highest, load(stats, i * (stages * stage_bytes // 4) + 2 * row))
            for i in range(WARPS):
                there = i * (stages * stage_bytes // 4)
                share = exp2_of(load(stats, there + 2 * row) - finite(highest))
                whole += load(stats, there + 2 * row + 1) * share
                value = value + vload(place, there + at, 8) * share
            if slots == 1:
                offset = offset_of(args, ATTENTION.out_strides, seq, in_seq, head + row)
                out = ptr(load(args, ATTENTION.out), T) + offset
                value = value * (F32(0) if whole == F32(0) else F32(1) / whole)
                if joined:
                    vstore_aligned(out, at, value)
                else:
                    write(out, at, value, 8)
            else:
                slot = (token * load(args, DECODE.heads) + head + row) * slots + part
                scratch = ptr(load(args, ATTENTION.scratch), F32)
                vstore_aligned(scratch + slot * size, at, value)
                if at == 0:
                    store(scratch + load(args, DECODE.stats), 2 * slot, highest)
                    store(scratch + load(args, DECODE.stats), 2 * slot + 1, whole)

    @jit.inline
    def over_keys(args, queries, ring, seq, kv_start, kv_head, first, start, stop, T):
        """((sums, largest scores, sums of weights), error) of a warp, of its steps of [start, stop) from `first` on."""
        scale = F32(bitcast(load(args, ATTENTION.scale), F64) * LOG2E)
        sums, top, total = fill(0.0, F32, lanes), fill(-INF, F32, 2), fill(0.0, F32, 2)
        bounds, error, j, steps = (max(start, first), stop), 0, start, (max(0, stop - start) + APART - 1) // APART
        by_bulk = bulk and (load(args, ATTENTION.k) | load(args, ATTENTION.v)) & 15 == 0
        step = dynamic_shared() + step_at + thread() // WARP * step_bytes
        column, place = column_of(args, kv_start + start)
        block = block_of(args, seq, column) if start < stop else 0
        stage = oldest = 0
        for i in range(-BEGUN, steps):
            if i == 0 and not joined:  # queries have come meanwhile, of all threads
                wait_copies(BEGUN)
                barrier()
            here = ring + oldest * stage_bytes
            if i >= 0:
                if by_bulk:
                    barrier_wait(own_barriers() + 8 * oldest, i // stages & 1)
                else:
                    wait_copies(AHEAD)
                warp_barrier()
                oldest = oldest + 1 if oldest < stages - 1 else 0
                if bulk:
                    spread_rows(here, step, start + i * APART, bounds)
                    warp_barrier()
                    here = step
            if j < stop:
                if block < 0 or block >= load(args, ATTENTION.blocks):
                    error, block = BAD_BLOCK, 0
                to = ring + stage * stage_bytes
                if by_bulk:
                    bring_bulk(args, block, place, kv_head, stop - j, to, own_barriers() + 8 * stage)
                else:
                    bring(args, block, place, kv_head, j, bounds, to, T)
                place += APART
                if load(args, ATTENTION.table) != 0 and place >= load(args, ATTENTION.block_size):
                    while place >= load(args, ATTENTION.block_size):
                        column, place = column + 1, place - load(args, ATTENTION.block_size)
                    if j + APART < stop:  # on its way before it is needed
                        block = block_of(args, seq, column)
            commit_copies()
            j += APART
            stage = stage + 1 if stage < stages - 1 else 0
            if i >= 0:
                scores = rows_times(fill(0.0, F32, VALUES), queries, here + corner(T, pitch), T, size, pitch) * scale
                at = columns(VALUES) + INT32(start + i * APART + 2 * (thread() & 3))
                shown = (at >= INT32(bounds[0])) & (at < INT32(stop))
                scores = select(shown, scores, F32(-INF))
                highest = vmax(top, row_max(scores))
                bottom = select(highest > F32(-INF), highest, F32(0))
                keep_of = exp2(top - bottom)
                weights = exp2(scores - spread(bottom, VALUES))
                top, total = highest, total * keep_of + own_sum(weights)
                sums = sums * spread(keep_of, lanes)
                values = here + KEYS * pitch + corner_across(T, pitch)
                sums = times_rows(sums, operand(weights, T), values, T, pitch)
        if stop <= start and not joined:  # the others need what this warp has copied of the queries
            wait_copies(0)
            barrier()
        return (sums, top, row_sum(total)), error

    @jit.inline
    def share(args, lo):
        """((sequence, where its keys begin, key/value head), (query token, in its sequence), keys of this warp, error).

        Keys are (first visible one, start, stop, part).
        """
        kv_heads, parts = load(args, ATTENTION.kv_heads), load(args, DECODE.parts)
        index, warp, shares, token = ratio(lo, parts), thread() // WARP, parts * WARPS, 0
        if not joined:
            token = ratio(index, kv_heads)
            seq, q_start, q_len, kv_start, kv_len, status = owner(args, token)
            in_seq = token - q_start if load(args, ATTENTION.starts) == 0 else token
            _, first, end = visible(args, token - q_start, q_len, kv_len)
        else:
            seq, in_seq = 0, 0
            _, q_len, kv_start, kv_len, status = sequence(args, 0)
            if q_len < 1:  # the token is behind the sequence: padding
                kv_len = 0
            _, first, end = visible(args, 0, q_len, kv_len)
        part, whole = lo - index * parts, first // KEYS * KEYS
        length = ratio(max(0, end - whole) + shares * KEYS - 1, shares * KEYS) * APART
        start = whole + part * length
        keys = first, start + warp * KEYS, min(end, start + length), part
        return (seq, kv_start, index - token * kv_heads), (token, in_seq), keys, status

    @jit.inline
    def attend_rows(args, where, row, keys, g, T):
        """The rows of queries in shared memory, those from number `g` on of a key/value head: an error."""
        seq, kv_start, kv_head = where
        first, start, stop, part = keys
        rings, group = dynamic_shared(), load(args, ATTENTION.group)
        ring, queries = rings + thread() // WARP * stages * stage_bytes, rings + queries_at + corner(T, pitch)
        if bulk:
            new_barriers()
        state, error = over_keys(args, queries, ring, seq, kv_start, kv_head, first, start, stop, T)
        warp_barrier()
        keep(args, state, rings, seq, row[1], row[0], kv_head * group + g, group - g, part, T)
        if bulk:
            end_barriers()
        return error

    @jit.inline
    def attend(args, lo, hi, T):
        where, row, keys, status = share(args, lo)
        if status != 0:
            return status
        base, group, error = dynamic_shared() + queries_at, load(args, ATTENTION.group), 0
        for g in range(0, group, ROWS):
            head = where[2] * group + g
            x = load(args, ATTENTION.q) + 2 * offset_of(args, ATTENTION.q_strides, where[0], row[1], head)
            bring_rows(x, 2 * load(args, ATTENTION.q_strides + 2), group - g, size, base, ROWS, size, pitch, T, T)
            commit_copies()
            error |= attend_rows(args, where, row, keys, g, T)
            barrier()
        return error

    if not joined:
        return attend
    piece, pairs = turn(size // 2)
    pieces = size // 2 // pairs

    @jit.inline
    def ask(args, kv_head):
        """Let the cache have what is needed soon, all at once: else one would be read after the other."""
        cache, row, group = behind(args, AT + ROPE.WIDTH), thread() // chunks, load(args, ATTENTION.group)
        at = 16 * (thread() - row * chunks)
        if row < group:
            ask_for(load(args, AT + ROPE.x) + 2 * (kv_head * group + row) * load(args, AT + ROPE.x_strides + 2) + at)
        elif row == group:
            ask_for(load(args, AT + ROPE.x2) + 2 * kv_head * load(args, AT + ROPE.x2_strides + 2) + at)
        elif row == group + 1:
            ask_for(load(args, AT + ROPE.positions))
            ask_for(load(cache, CACHE.index))
            for place in (ATTENTION.starts, ATTENTION.lens, ATTENTION.table):
                if load(args, place) != 0:
                    ask_for(load(args, place))

    @jit.inline
    def slot_of(cache):
        """(block, place in it) of the slot that the token goes to: block -1 is padding, -2 an error."""
        slot = read_index(load(cache, CACHE.index), load(cache, CACHE.index_bytes), 0)
        size = load(cache, CACHE.block_size)
        if slot < 0 or slot >= load(cache, CACHE.blocks) * size:
            return (-1 if slot < 0 else -2), 0
        block = ratio(slot, size)
        return block, slot - block * size

    @jit.inline
    def turn_and_write(args, kv_head, T, C, P, U):
        """What this block has of the rotary embedding and the cache: an error."""
        cache, group = behind(args, AT + ROPE.WIDTH), load(args, ATTENTION.group)
        block, place = slot_of(cache)
        position = I64(load(ptr(load(args, AT + ROPE.positions), P), 0))
        if position < 0 or position >= load(args, AT + ROPE.rows):
            return BAD_POSITION
        if block == -2:
            return BAD_SLOT + SECOND
        sin = ptr(load(args, AT + ROPE.sin), C) + position * load(args, AT + ROPE.sin_stride)
        cos = ptr(load(args, AT + ROPE.cos), C) + position * load(args, AT + ROPE.cos_stride)
        sign = float(load(args, AT + ROPE.sign))
        for item in range(thread(), (group + 1) * pieces + chunks, WARPS * WARP):
            row = item // pieces
            if row <= group:
                if row < group:
                    head = kv_head * group + row
                    x = load(args, AT + ROPE.x) + 2 * head * load(args, AT + ROPE.x_strides + 2)
                    y = load(args, AT + ROPE.y) + 2 * head * load(args, AT + ROPE.y_strides + 2)
                    to = generic(dynamic_shared() + queries_at + row * pitch)
                else:
                    x = load(args, AT + ROPE.x2) + 2 * kv_head * load(args, AT + ROPE.x2_strides + 2)
                    y = load(args, AT + ROPE.y2) + 2 * kv_head * load(args, AT + ROPE.y2_strides + 2)
                    to = load(cache, CACHE.k_cache) + 2 * offset_of(cache, CACHE.k_cache_strides, block, place, kv_head)
                    to = to if block >= 0 else y
                piece(ptr(x, T), ptr(y, T), ptr(to, T), item - row * pieces, sin, cos, sign)
            elif block >= 0:
                i = 8 * (item - (group + 1) * pieces)
                x = ptr(load(cache, CACHE.v), U) + offset_of(cache, CACHE.v_strides, 0, 0, kv_head)
                to = ptr(load(cache, CACHE.v_cache), U) + offset_of(cache, CACHE.v_cache_strides, block, place, kv_head)
                vstore_aligned(to, i, vload_aligned(x, i, 8))
        return 0

    @jit.inline
    def kernel(args, lo, hi, T, C, P, U):
        ask(args, ratio(lo, load(args, DECODE.parts)))
        where, row, keys, status = share(args, lo)
        error = turn_and_write(args, where[2], T, C, P, U)
        barrier()  # the key and the value are seen by the block
        if error != 0:
            return error
        if status != 0:
            return status + 2 * SECOND
        error = attend_rows(args, where, row, keys, 0, T)
        return 0 if error == 0 else error + 2 * SECOND

    return kernel


def halves(half):
    """(the function that turns a piece of a head with pairs (i, i + half) and stores it twice, pairs of a piece)."""

    @jit.inline
    def piece(x, y, to, at, sin, cos, sign):
        i = 8 * at
        c, s = vload_aligned(cos, i, 8), vload_aligned(sin, i, 8) * sign
        a, b = vload_aligned(x, i, 8), vload_aligned(x, half + i, 8)
        low, high = a * c - b * s, a * s + b * c
        vstore_aligned(y, i, low)
        vstore_aligned(y, half + i, high)
        vstore_aligned(to, i, low)
        vstore_aligned(to, half + i, high)

    return piece, 8


def interleaved(half):
    """The same of pairs (2i, 2i + 1)."""

    @jit.inline
    def piece(x, y, to, at, sin, cos, sign):
        i = 4 * at
        c, s = vload_aligned(cos, i, 4), vload_aligned(sin, i, 4) * sign
        v = vload_aligned(x, 2 * i, 8)
        a, b = even(v), odd(v)
        v = interleave(a * c - b * s, a * s + b * c)
        vstore_aligned(y, 2 * i, v)
        vstore_aligned(to, 2 * i, v)

    return piece, 4


for _size in GROUPED_SIZES:
    globals()[f"attend_{_size}"] = _attend(_size)
    globals()[f"attend_bulk_{_size}"] = _attend(_size, bulk=True)
    globals()[f"turned_halves_{_size}"] = _attend(_size, halves)
    globals()[f"turned_interleaved_{_size}"] = _attend(_size, interleaved)
