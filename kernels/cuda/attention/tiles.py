"""Attention on the matrix units of warps, of every GPU since sm_80: masks, dropout, ALiBi, int8 caches, float32,
heads of up to 256 elements, and any layout.

A block has up to 128 query rows of a head, a warp 16 of them. Queries lie in shared memory; keys and values come 64
rows at a time, the next keys while the values before are multiplied. A warp's scores never leave its registers, where
their weights become the left operand of the product with the values (Dao, FlashAttention-2, arXiv 2307.08691).

Where rows are few, several warps have the same ones, each a part of the keys of a step (`Tile.groups`); in the end they
join their sums in shared memory, and each has some columns of the result.

Scores are in units of log2; sums are float32. int8 keys and values are multiplied as the integers that they are;
scores take the factors of keys, weights those of values.
"""

from numba import types

from ...blocks.attention import BAD_BLOCK
from ...blocks.cuda import ATTENTION_TILES as TILED
from ...build import jit
from ...cpu.attention.prefill import find_run, row_slope, sequence, visible
from ...cpu.attention.tiles import offset_of
from ...lang.by_type import by_type
from ...lang.fragments import (
    corner,
    corner_across,
    flags,
    operand,
    rows_times,
    store_16,
    store_apart,
    store_two_rows,
    times_rows,
)
from ...lang.lowp import StorageFloat
from ...lang.mma import commit_copies, copy_16, load_shared, wait_copies
from ...lang.philox import philox
from ...lang.ptx import barrier, dynamic_shared, from_lane, thread, threads
from ...lang.simd import bitcast, convert, fill, lane, load, muladd, ptr, ramp, select, store, vabs, vmax, vpick
from ...lang.tiles import columns, exp2, load_columns, own_sum, pair, row_max, row_sum, spread, store_float
from ...lang.vmath import log
from ..block import read
from ..gemm.wgmma import ratio
from .sizes import FEW_TILES, TILES

INT32, I64, U8, U16, U64, F32, F64, BOOL = (
    types.int32,
    types.int64,
    types.uint8,
    types.uint16,
    types.uint64,
    types.float32,
    types.float64,
    types.boolean,
)
INF = float("inf")
LOG2E = 1.4426950408889634
FIRST, EVEN = 0x1111111111111111, 0x3333333333333333  # one bit, and two, of each four
BOOLS, FLOATS = 1, 4  # what masks are of, by the bytes of an element; 0: there is none


# ---- rows to shared memory -----------------------------------------------------------------------------


@by_type
def word_lanes(values, T):
    """16 bytes of values, as T, in words."""
    if isinstance(T.instance_type, StorageFloat):
        return lambda values, T: operand(values, T)
    return lambda values, T: bitcast(values, INT32)


@by_type
def bring_vector(x, left, to, T, C):
    """Start to copy 16 bytes, as T, of elements C at address x, of which `left` are there; zeros behind them."""
    lanes, same = 128 // T.instance_type.bitwidth, T == C

    def implementation(x, left, to, T, C):
        if left <= 0:
            copy_16(to, x, 0)
        elif same and left >= lanes and x & 15 == 0:
            copy_16(to, x, 1)
        else:
            words = word_lanes(convert(read(ptr(x, C), 0, left, fill(0.0, F32, lanes)), F32), T)
            store_16(to, I64(lane(words, 0)), I64(lane(words, 1)), I64(lane(words, 2)), I64(lane(words, 3)))

    return implementation


@by_type
def element_bytes(T):
    nbytes = T.instance_type.bitwidth // 8
    return lambda T: nbytes


@jit.inline
def bring_rows(x, step, count, length, to, rows, size, pitch, T, C):
    """The rows at x, x + step, ... of which `count` are there, with `length` elements; zeros behind them."""
    lanes = 16 // element_bytes(T)
    chunks = size // lanes
    for i in range(thread(), rows * chunks, threads()):
        row = i // chunks
        chunk = i - row * chunks
        left = length - chunk * lanes if row < count else 0
        bring_vector(x + row * step + chunk * lanes * element_bytes(C), left, to + row * pitch + 16 * chunk, T, C)


@jit.inline
def bring_keys(args, tensor, strides, seq, head, token, end, length, to, rows, size, pitch, T, C):
    """Keys or values from a token on, of which the last is before `end`; an error code."""
    nbytes = element_bytes(C)
    if load(args, TILED.table) == 0:
        x = load(args, tensor) + offset_of(args, strides, seq, token, head) * nbytes
        bring_rows(x, load(args, strides + 1) * nbytes, end - token, length, to, rows, size, pitch, T, C)
        return 0
    error, lanes = 0, 16 // element_bytes(T)
    chunks = size // lanes
    for i in range(thread(), rows * chunks, threads()):
        row = i // chunks
        chunk = i - row * chunks
        x, left = load(args, tensor), 0
        if token + row < end:
            block, place, run = find_run(args, seq, token + row)
            if run < 0:
                error = BAD_BLOCK
            else:
                x += (offset_of(args, strides, block, place, head) + chunk * lanes) * nbytes
                left = length - chunk * lanes
        bring_vector(x, left, to + row * pitch + 16 * chunk, T, C)
    return error


@jit.inline
def bring_factors(args, tensor, strides, seq, head, token, end, to, rows):
    """The factors of int8 keys or values."""
    if thread() < rows:
        factor = F32(0.0)
        if token + thread() < end:
            block, place, run = find_run(args, seq, token + thread())
            if run >= 0:
                factor = load(ptr(load(args, tensor), F32), offset_of(args, strides, block, place, head))
        store_float(to + 4 * thread(), factor)


# ---- masks and dropout ---------------------------------------------------------------------------------


@jit.inline
def masked(scores, mask, at, there, MASK):
    """Scores with what the mask says at these elements of it, where they are `there`."""
    if MASK == BOOLS:
        return select(vpick(ptr(mask, BOOL), at, there), scores, F32(-INF))
    if MASK == FLOATS:
        return muladd(vpick(ptr(mask, F32), at, there), F32(LOG2E), scores)
    return scores


@jit.inline
def bits_of_rows(here, below, left, tiles):
    """Bits of this thread's values: what two rows of bools, from these addresses on, say of the `left` keys there."""
    bits = I64(0)
    if left >= 8 * tiles and (here | below) & 1 == 0:
        for j in range(tiles):
            a, b = I64(load(ptr(here, U16), 4 * j)), I64(load(ptr(below, U16), 4 * j))
            bits |= (a & 1 | a >> 7 & 2 | (b & 1) << 2 | b >> 5 & 8) << (4 * j)
        return bits
    for j in range(tiles):
        for i in range(2):
            if 8 * j + i < left:
                a, b = I64(load(ptr(here, U8), 8 * j + i)), I64(load(ptr(below, U8), 8 * j + i))
                bits |= (a | b << 2) << (4 * j + i)
    return bits


@jit.inline
def bits_of_columns(at, step, left, below, tiles):
    """The same where keys lie down: `at` is the address for this thread's first query and key, `step` the bytes to the
    next query, `left` how many are there, and `below` whether the eighth key after it is.
    """
    bits = I64(0)
    for j in range(tiles):
        for i in range(2):
            if 8 * j + i < left:
                x = ptr(at + (8 * j + i) * step, U8)
                a, b = I64(load(x, 0)), I64(load(x, 8)) if below else I64(0)
                bits |= (a | b << 2) << (4 * j + i)
    return bits


@jit.inline
def kept_in_columns(place, key, seed, limit, tiles):
    """Bits of this thread's values that dropout leaves, where keys, from `key` of its warp on, lie down.

    `place` is that of this thread's first query. Four threads share four keys of two queries, twice: each makes one of
    these four numbers of Philox, and then all take their bit of each.
    """
    g, own, found = thread() >> 2 & 7, I64(0), I64(0)
    group = (key + (g & 2) * 4 + (g & 4)) >> 2
    for j in range(tiles):
        own |= four_kept(place + 8 * j + (g & 1), group, seed, limit) << (4 * j)
    for c in range(4):
        word = from_lane(own, 4 * (g & 3 ^ c))
        found |= (word >> (g & 3) & FIRST) << c
    return found


@jit.inline
def four_kept(place, group, seed, limit):
    """Four bits: which of the keys 4 `group` and following keep their weight in row `place` of [B * H * S]."""
    words = philox(ramp(place, U64, 1), group, seed)
    bits = I64(0)
    for i in range(4):
        if lane(words[i], 0) >= limit:
            bits |= 1 << i
    return bits


@jit.inline
def kept_in_rows(place, key, seed, limit, tiles):
    """Bits of this thread's values that dropout leaves: of rows `place` and `place` + 8, keys from `key` on.

    Four keys have one number of Philox, and two threads share them: each makes those of one of the two rows.
    """
    odd, own = thread() & 1, I64(0)
    for j in range(tiles):
        own |= four_kept(place + 8 * odd, (key >> 2) + 2 * j + (thread() >> 1 & 1), seed, limit) << (4 * j)
    other = from_lane(own, 1)
    first, second = (other, own) if odd != 0 else (own, other)
    return (first >> (2 * odd) & EVEN) | (second >> (2 * odd) & EVEN) << 2


# ---- the kernel ----------------------------------------------------------------------------------------


@jit.inline
def tile_of(args, index, rows):
    """(sequence, head, first row, first query token, query tokens, first key, keys, error) of a tile."""
    heads = load(args, TILED.group) * load(args, TILED.kv_heads)
    tiles, lines = load(args, TILED.tiles), load(args, TILED.lines)
    if lines != 0:  # all run at once: those of the second half, the shortest first, beside the longest ones
        half = (tiles * lines + 1) // 2
        index = index if index < half else tiles * lines - 1 - (index - half)
        place = ratio(index, lines)
        index = (index - place * lines) * tiles + place
    head = ratio(index, tiles)
    tile = tiles - 1 - (index - head * tiles)  # where prompts are causal, the longest ones first
    if load(args, TILED.starts) == 0:
        seq = ratio(head, heads)
        q_start, q_len, kv_start, kv_len, status = sequence(args, seq)
        return seq, head - seq * heads, tile * rows, q_start, q_len, kv_start, kv_len, status
    for seq in range(load(args, TILED.num_seqs) + 1):
        q_start, q_len, kv_start, kv_len, status = sequence(args, seq)
        if status != 0:
            return 0, 0, 0, 0, 0, 0, 0, status
        own = (q_len + rows - 1) // rows
        if tile < own:
            return seq, head, tile * rows, q_start, q_len, kv_start, kv_len, 0
        tile -= own
    return 0, 0, 0, 0, 0, 0, 0, 0


def _attend(tile):
    """The kernel for tiles of these sizes."""
    rows, keys, size, pitch = tile.rows, tile.step, tile.size, tile.pitch
    groups, warps, part = tile.groups, rows // 16, keys // tile.groups
    lanes, values = size // 2, part // 2  # of a thread's sums, and scores
    own_lanes = lanes // groups  # of its results
    key_place, value_place = rows * pitch, (rows + keys) * pitch
    factors = (rows + 2 * keys) * pitch
    chunk = min(size, 64)  # of k in one piece of code

    @jit.inline
    def score(queries, place, T):
        """The products of a warp's queries and the keys in shared memory."""
        scores = fill(0.0, F32, values)
        for d in range(0, size, chunk):
            at = d * element_bytes(T)
            scores = rows_times(scores, queries + at, place + at, T, chunk, pitch)
        return scores

    @jit.inline
    def place_of_warp():
        """(number of this warp's rows in the tile, of its keys in a step)."""
        return (thread() >> 5) % warps, (thread() >> 5) // warps

    @jit.inline
    def seen_scores(seen, queries, place, scale, T):
        """The scores of a warp's keys, if its rows see one of them."""
        if seen:
            return score(queries, place, T) * scale
        return fill(0.0, F32, values)

    @jit.inline
    def with_values(seen, sums, weights, right, T):
        """Sums and the weighted values of these keys."""
        if seen:
            return times_rows(sums, operand(weights, T), right, T, pitch)
        return sums

    @jit.inline
    def joined(at, sums, top, total):
        """The sums of this thread's columns, the largest scores and the sums of weights of all warps with its rows."""
        sums_at, stats_at, own = at, at + groups * warps * 128 * lanes, thread() & 31
        barrier()
        store_apart(sums_at + (thread() >> 5) * (128 * lanes) + 4 * own, sums, 128)
        store_apart(stats_at + (thread() >> 5) * 512 + 4 * own, top, 128)
        store_apart(stats_at + (thread() >> 5) * 512 + 256 + 4 * own, total, 128)
        barrier()
        mine, group = place_of_warp()
        highest = top
        for other in range(groups):
            highest = vmax(highest, load_shared(stats_at + (other * warps + mine) * 512 + 4 * own, F32, 1, 2, 128))
        bottom = select(highest > F32(-INF), highest, F32(0))
        found, weights = fill(0.0, F32, own_lanes), fill(0.0, F32, 2)
        for other in range(groups):
            warp = other * warps + mine
            place = stats_at + warp * 512 + 4 * own
            keep = exp2(load_shared(place, F32, 1, 2, 128) - bottom)
            weights = muladd(load_shared(place + 256, F32, 1, 2, 128), keep, weights)
            place = sums_at + warp * (128 * lanes) + group * (128 * own_lanes) + 4 * own
            found = muladd(load_shared(place, F32, 1, own_lanes, 128), spread(keep, own_lanes), found)
        return found, highest, weights

    if groups == 1:

        @jit.inline
        def place_of_warp():
            return thread() >> 5, 0

        @jit.inline
        def seen_scores(seen, queries, place, scale, T):
            return score(queries, place, T) * scale

        @jit.inline
        def with_values(seen, sums, weights, right, T):
            return times_rows(sums, operand(weights, T), right, T, pitch)

        @jit.inline
        def joined(at, sums, top, total):
            return sums, top, total

    @jit.inline
    def write(args, sums, top, total, seq, head, row, q_start, q_len, T):
        """Divide a thread's two rows by their sums of weights, store them, and the log-sum-exp if it is wanted."""
        inverse = select(total == F32(0), F32(0), fill(1.0, F32, 2) / total)
        inverse = inverse * F32(1.0 / (1.0 - bitcast(load(args, TILED.dropout), F64)))
        in_seq, token = (0, q_start + row) if load(args, TILED.starts) != 0 else (seq, row)
        _, group = place_of_warp()
        column = 2 * (thread() & 3) + group * (2 * own_lanes)
        left = load(args, TILED.size_v) - column
        nbytes = element_bytes(T)
        at = load(args, TILED.out) + nbytes * (offset_of(args, TILED.out_strides, in_seq, token, head) + column)
        below = at + 8 * nbytes * load(args, TILED.out_strides + 1)
        counts = pair(left if row < q_len else I64(0), left if row + 8 < q_len else I64(0))
        store_two_rows(sums * spread(inverse, own_lanes), pair(at, below), counts, T)
        if load(args, TILED.lse) != 0 and thread() & 3 == 0 and group == 0:
            lse = select(total == F32(0), F32(INF), log(total) * F32(LOG2E) + top)
            heads = load(args, TILED.group) * load(args, TILED.kv_heads)
            to = ptr(load(args, TILED.lse), F32) + (seq * heads + head) * q_len
            if row < q_len:
                store(to, row, lane(lse, 0))
            if row + 8 < q_len:
                store(to, row + 8, lane(lse, 1))

    @jit.inline
    def attend(args, lo, hi, T, C, SCALED, MASK, DROPOUT):
        base, error = dynamic_shared(), 0
        seq, head, row, q_start, q_len, kv_start, kv_len, status = tile_of(args, lo, rows)
        if status != 0 or row >= q_len:
            return status
        kv_head, group = ratio(head, load(args, TILED.group)), load(args, TILED.group)
        size_qk, size_v, end = load(args, TILED.size_qk), load(args, TILED.size_v), kv_start + kv_len
        own_rows, own_keys = place_of_warp()
        first_row, own, shift = row + own_rows * 16, thread() & 31, own_keys * part
        my_row, column = first_row + (own >> 2), 2 * (own & 3)
        _, start, _ = visible(args, row, q_len, kv_len)
        _, _, stop = visible(args, min(row + rows, q_len) - 1, q_len, kv_len)
        key = start // keys * keys
        position, begin, limit = visible(args, my_row, q_len, kv_len)
        _, next_begin, next_limit = visible(args, my_row + 8, q_len, kv_len)
        _, _, least = visible(args, first_row, q_len, kv_len)
        _, most, last = visible(args, first_row + 15, q_len, kv_len)
        scale, slope = F32(bitcast(load(args, TILED.scale), F64) * LOG2E), F32(row_slope(args, head))
        sums, top, total = fill(0.0, F32, lanes), fill(-INF, F32, 2), fill(0.0, F32, 2)

        in_seq, token = (0, q_start + row) if load(args, TILED.starts) != 0 else (seq, row)
        nbytes = element_bytes(T)
        x = load(args, TILED.q) + nbytes * offset_of(args, TILED.q_strides, in_seq, token, head)
        bring_rows(x, nbytes * load(args, TILED.q_strides + 1), q_len - row, size_qk, base, rows, size, pitch, T, T)
        queries = base + own_rows * 16 * pitch + corner(T, pitch)
        place, heads = base + key_place, group * load(args, TILED.kv_heads)
        mask_row, mask_step = load(args, TILED.mask), load(args, TILED.mask_strides + 2)
        if MASK != 0:
            mask_row += MASK * offset_of(args, TILED.mask_strides, seq, head, min(my_row, q_len - 1))
        if key < stop:
            error = bring_keys(
                args,
                TILED.k,
                TILED.k_strides,
                seq,
                kv_head,
                kv_start + key,
                end,
                size_qk,
                place,
                keys,
                size,
                pitch,
                T,
                C,
            )
        commit_copies()
        while key < stop:
            if SCALED != 0:
                bring_factors(
                    args, TILED.k_scales, TILED.k_scale_strides, seq, kv_head, kv_start + key, end, base + factors, keys
                )
            wait_copies(0)
            barrier()
            wrong = bring_keys(
                args, TILED.v, TILED.v_strides, seq, kv_head, kv_start + key, end, size_v, base + value_place, keys,
                size, pitch, T, C,
            )  # fmt: skip
            if SCALED != 0:
                bring_factors(
                    args, TILED.v_scales, TILED.v_scale_strides, seq, kv_head, kv_start + key, end,
                    base + factors + 4 * keys, keys,
                )  # fmt: skip
            commit_copies()
            seen = key + shift < last
            scores = seen_scores(seen, queries, place + shift * pitch + corner(T, pitch), scale, T)
            if SCALED != 0:
                scores = scores * load_columns(base + factors + 4 * (shift + column), values)
            wait_copies(0)
            barrier()
            if key + keys < stop:
                wrong |= bring_keys(
                    args, TILED.k, TILED.k_strides, seq, kv_head, kv_start + key + keys, end, size_qk, place, keys,
                    size, pitch, T, C,
                )  # fmt: skip
            commit_copies()
            error |= wrong
            at = columns(values) + INT32(key + shift + column)
            if slope != 0:
                apart = vabs(at - spread(pair(INT32(position), INT32(position + 8)), values))
                scores = muladd(convert(apart, F32), -slope, scores)
            if MASK != 0:
                there = at < spread(
                    pair(INT32(kv_len if my_row < q_len else 0), INT32(kv_len if my_row + 8 < q_len else 0)), values
                )
                scores = masked(
                    scores, mask_row, at + spread(pair(INT32(0), INT32(8 * mask_step)), values), there, MASK
                )
            if key + keys > least or key < most:
                shown = (at < spread(pair(INT32(limit), INT32(next_limit)), values)) & (
                    at >= spread(pair(INT32(begin), INT32(next_begin)), values)
                )
                scores = select(shown, scores, F32(-INF))
            highest = vmax(top, row_max(scores))
            bottom = select(highest > F32(-INF), highest, F32(0))
            keep = exp2(top - bottom)
            weights = exp2(scores - spread(bottom, values))
            top, total = highest, total * keep + own_sum(weights)
            if DROPOUT != 0:
                probability = bitcast(load(args, TILED.dropout), F64)
                bits = kept_in_rows(
                    (seq * heads + head) * q_len + my_row, key + shift, load(args, TILED.seed),
                    U64(probability * 4294967296.0), part // 8,
                )  # fmt: skip
                weights = select(flags(bits, values), weights, F32(0))
            if SCALED != 0:
                weights = weights * load_columns(base + factors + 4 * (keys + shift + column), values)
            sums = sums * spread(keep, lanes)
            right = base + value_place + shift * pitch + corner_across(T, pitch)
            sums = with_values(seen, sums, weights, right, T)
            key += keys
        sums, top, total = joined(place, sums, top, row_sum(total))
        write(args, sums, top, total, seq, head, my_row, q_start, q_len, T)
        wait_copies(0)
        barrier()
        return error

    return attend


attend_16_64, attend_16_128, attend_16_256, attend_32_64, attend_32_128, attend_32_256 = map(_attend, TILES)
attend_32_64_few, attend_32_128_few = map(_attend, FEW_TILES)
