"""The gradients of attention on the matrix units of warps: what `tiles.py` is to the forward pass (`grad.py` has the
formulas).

`queries` has tiles of query rows and goes over the keys, `keys` tiles of keys and goes over the queries of the heads
that share them, so that sums are the same each time. Either scores again, so `keys` has keys down and queries across:
weights are then left operands, and numbers of query rows those of columns, which come through shared memory. Its sums
of large heads are cut into parts of the head, for a block each, since registers are too few.
"""

from numba import types

from ...blocks.cuda import GRAD_TILES as GRAD
from ...build import jit
from ...cpu.attention.tiles import offset_of
from ...lang.fragments import corner, corner_across, flags, operand, rows_times, store_two_rows, times_rows
from ...lang.mma import commit_copies, wait_copies
from ...lang.ptx import barrier, dynamic_shared, thread
from ...lang.simd import bitcast, fill, load, ptr, select
from ...lang.tiles import columns, exp2, load_columns, pair, spread, store_float
from ..gemm.wgmma import ratio
from .sizes import TILES
from .tiles import INF, LOG2E, bring_rows, element_bytes, kept_in_columns, kept_in_rows, masked

INT32, I64, U64, F32, F64 = types.int32, types.int64, types.uint64, types.float32, types.float64


@jit.inline
def weight_and_slope(args, scores, products, minus, delta, kept, DROPOUT):
    """(weights of values, gradients of scores) from scores, products of gradients and values, and numbers of rows."""
    weights = exp2(scores + minus)
    if DROPOUT == 0:
        return weights, weights * (products - delta)
    factor = F32(1.0 / (1.0 - bitcast(load(args, GRAD.dropout), F64)))
    slopes = weights * (select(kept, products * factor, F32(0)) - delta)
    return select(kept, weights * factor, F32(0)), slopes


@jit.inline
def dropped_below(args):
    """Random words below this are dropped."""
    return U64(bitcast(load(args, GRAD.dropout), F64) * 4294967296.0)


def _gradients(tile):
    """(queries, keys): the kernels for tiles of these sizes."""
    rows, step, size, pitch, stages, part = tile.rows, tile.step, tile.size, tile.pitch, tile.stages, tile.part
    values, lanes, some, parts = step // 2, size // 2, part // 2, size // part  # of a thread: scores, sums
    second = rows * pitch  # the other tensor of the block's rows
    stages_at, stage_bytes = 2 * rows * pitch, 2 * step * pitch
    numbers_at, chunk = stages_at + stages * stage_bytes, 64 if tile.bits == 16 else 16  # of k in one piece of code

    @jit.inline
    def bring(args, tensor, strides, own, head, row, limit, length, to, count, T):
        """`count` rows of a head of a tensor."""
        nbytes = element_bytes(T)
        x = load(args, tensor) + nbytes * offset_of(args, strides, own, head, row)
        bring_rows(x, nbytes * load(args, strides + 2), limit - row, length, to, count, size, pitch, T, T)

    @jit.inline
    def both(args, own, others, T):
        """(scores, gradients of weights): a warp's rows times those of a step, of either tensor."""
        scores, products = fill(0.0, F32, values), fill(0.0, F32, values)
        for d in range(0, size, chunk):
            a, b = own + d * element_bytes(T), others + d * element_bytes(T)
            scores = rows_times(scores, a, b, T, chunk, pitch)
            products = rows_times(products, a + second, b + step * pitch, T, chunk, pitch)
        return scores * F32(bitcast(load(args, GRAD.scale), F64) * LOG2E), products

    # ---- queries ----

    @jit.inline
    def bring_keys(args, own, head, key, to, T):
        num_keys = load(args, GRAD.num_keys)
        bring(args, GRAD.k, GRAD.k_strides, own, head, key, num_keys, load(args, GRAD.size_qk), to, step, T)
        to += step * pitch
        bring(args, GRAD.v, GRAD.v_strides, own, head, key, num_keys, load(args, GRAD.size_v), to, step, T)
        commit_copies()

    @jit.inline
    def queries(args, lo, hi, T, MASK, DROPOUT):
        base, tiles, heads = (
            dynamic_shared(),
            load(args, GRAD.tiles),
            load(args, GRAD.group) * load(args, GRAD.kv_heads),
        )
        line = ratio(lo, tiles)
        own, row = ratio(line, heads), (tiles - 1 - (lo - line * tiles)) * rows
        head = line - own * heads
        kv_head, num_rows, num_keys = (
            ratio(head, load(args, GRAD.group)),
            load(args, GRAD.num_rows),
            load(args, GRAD.num_keys),
        )
        size_qk, size_v = load(args, GRAD.size_qk), load(args, GRAD.size_v)
        end = min(num_keys, row + rows) if load(args, GRAD.causal) != 0 else num_keys
        first_row, column = row + (thread() >> 5) * 16, 2 * (thread() & 3)
        my_row = first_row + (thread() >> 2 & 7)
        ends = pair(INT32(num_keys), INT32(num_keys))
        least = num_keys
        if load(args, GRAD.causal) != 0:
            ends = pair(INT32(min(num_keys, my_row + 1)), INT32(min(num_keys, my_row + 9)))
            least = min(num_keys, first_row + 1)
        here, there = line * num_rows + min(my_row, num_rows - 1), line * num_rows + min(my_row + 8, num_rows - 1)
        lse, deltas = ptr(load(args, GRAD.lse), F32), ptr(load(args, GRAD.scratch), F32)
        minus, delta = -pair(load(lse, here), load(lse, there)), pair(load(deltas, here), load(deltas, there))
        natural = F32(bitcast(load(args, GRAD.scale), F64))
        mask, mask_step = load(args, GRAD.mask), load(args, GRAD.mask_strides + 2)
        if MASK != 0:
            mask += MASK * offset_of(args, GRAD.mask_strides, own, head, min(my_row, num_rows - 1))

        bring(args, GRAD.q, GRAD.q_strides, own, head, row, num_rows, size_qk, base, rows, T)
        bring(args, GRAD.g, GRAD.g_strides, own, head, row, num_rows, size_v, base + second, rows, T)
        bring_keys(args, own, kv_head, 0, base + stages_at, T)
        mine = base + (thread() >> 5) * 16 * pitch + corner(T, pitch)
        sums, stage = fill(0.0, F32, lanes), 0
        for key in range(0, end, step):
            place = base + stages_at + stage * stage_bytes
            if stages > 1 and key + step < end:
                stage = 1 - stage
                bring_keys(args, own, kv_head, key + step, base + stages_at + stage * stage_bytes, T)
                wait_copies(1)
            else:
                wait_copies(0)
            barrier()
            scores, products = both(args, mine, place + corner(T, pitch), T)
            at = columns(values) + INT32(key + column)
            if MASK != 0:
                last = INT32(num_keys)
                known = at < spread(
                    pair(last if my_row < num_rows else INT32(0), last if my_row + 8 < num_rows else INT32(0)), values
                )
                scores = masked(scores, mask, at + spread(pair(INT32(0), INT32(8 * mask_step)), values), known, MASK)
            if key + step > least:
                scores = select(at < spread(ends, values), scores, F32(-INF))
            kept = at >= INT32(0)
            if DROPOUT != 0:
                bits = kept_in_rows(
                    line * num_rows + my_row, key, load(args, GRAD.seed), dropped_below(args), step // 8
                )
                kept = flags(bits, values)
            _, slopes = weight_and_slope(
                args, scores, products, spread(minus, values), spread(delta, values), kept, DROPOUT
            )
            sums = times_rows(sums, operand(slopes, T), place + corner_across(T, pitch), T, pitch)
            barrier()
            if stages == 1 and key + step < end:
                bring_keys(args, own, kv_head, key + step, base + stages_at, T)
        nbytes, left = element_bytes(T), size_qk - column
        to = load(args, GRAD.dq) + nbytes * (offset_of(args, GRAD.dq_strides, own, head, my_row) + column)
        below = to + 8 * nbytes * load(args, GRAD.dq_strides + 2)
        counts = pair(left if my_row < num_rows else I64(0), left if my_row + 8 < num_rows else I64(0))
        store_two_rows(sums * natural, pair(to, below), counts, T)
        wait_copies(0)
        barrier()
        return 0

    # ---- keys ----

    @jit.inline
    def bring_queries(args, own, head, row, stage, base, T):
        to, num_rows = base + stages_at + stage * stage_bytes, load(args, GRAD.num_rows)
        bring(args, GRAD.q, GRAD.q_strides, own, head, row, num_rows, load(args, GRAD.size_qk), to, step, T)
        to += step * pitch
        bring(args, GRAD.g, GRAD.g_strides, own, head, row, num_rows, load(args, GRAD.size_v), to, step, T)
        commit_copies()
        if thread() < step:
            lse, delta = F32(INF), F32(0.0)
            if row + thread() < num_rows:
                at = (own * load(args, GRAD.group) * load(args, GRAD.kv_heads) + head) * num_rows + row + thread()
                lse, delta = load(ptr(load(args, GRAD.lse), F32), at), load(ptr(load(args, GRAD.scratch), F32), at)
            numbers = base + numbers_at + stage * 8 * step + 4 * thread()
            store_float(numbers, -lse)
            store_float(numbers + 4 * step, delta)

    @jit.inline
    def store_sums(args, tensor, strides, sums, own, head, key, column, length, T):
        """A thread's two rows of gradients from a column on."""
        num_keys, nbytes, left = load(args, GRAD.num_keys), element_bytes(T), length - column
        to = load(args, tensor) + nbytes * (offset_of(args, strides, own, head, key) + column)
        counts = pair(left if key < num_keys else I64(0), left if key + 8 < num_keys else I64(0))
        store_two_rows(sums, pair(to, to + 8 * nbytes * load(args, strides + 2)), counts, T)

    @jit.inline
    def keys(args, lo, hi, T, MASK, DROPOUT):
        base, tiles, group, kv_heads = (
            dynamic_shared(),
            load(args, GRAD.tiles),
            load(args, GRAD.group),
            load(args, GRAD.kv_heads),
        )
        index = ratio(lo, parts)
        from_column = (lo - index * parts) * part
        line = ratio(index, tiles)
        own, key = ratio(line, kv_heads), (index - line * tiles) * rows
        head, num_rows, num_keys = line - own * kv_heads, load(args, GRAD.num_rows), load(args, GRAD.num_keys)
        size_qk, size_v = load(args, GRAD.size_qk), load(args, GRAD.size_v)
        causal = load(args, GRAD.causal)
        start = key // step * step if causal != 0 else 0
        count = max(0, (num_rows - start + step - 1) // step)  # steps of a head
        first_key, column = key + (thread() >> 5) * 16, 2 * (thread() & 3)
        my_key = first_key + (thread() >> 2 & 7)
        natural = F32(bitcast(load(args, GRAD.scale), F64))
        mask_step = load(args, GRAD.mask_strides + 2)

        bring(args, GRAD.k, GRAD.k_strides, own, head, key, num_keys, size_qk, base, rows, T)
        bring(args, GRAD.v, GRAD.v_strides, own, head, key, num_keys, size_v, base + second, rows, T)
        if count > 0:
            bring_queries(args, own, head * group, start, 0, base, T)
        mine = base + (thread() >> 5) * 16 * pitch + corner(T, pitch)
        key_sums, value_sums, stage = fill(0.0, F32, some), fill(0.0, F32, some), 0
        query_head, row = head * group, start
        for i in range(group * count):
            place, numbers = base + stages_at + stage * stage_bytes, base + numbers_at + stage * 8 * step + 4 * column
            next_head, next_row, more = query_head, row + step, i + 1 < group * count
            if next_row >= num_rows:
                next_head, next_row = query_head + 1, start
            if stages > 1 and more:
                stage = 1 - stage
                bring_queries(args, own, next_head, next_row, stage, base, T)
                wait_copies(1)
            else:
                wait_copies(0)
            barrier()
            scores, products = both(args, mine, place + corner(T, pitch), T)
            at = columns(values) + INT32(row + column)
            if MASK != 0:
                mask = load(args, GRAD.mask) + MASK * offset_of(args, GRAD.mask_strides, own, query_head, row)
                last = INT32(num_rows)
                known = at < spread(
                    pair(last if my_key < num_keys else INT32(0), last if my_key + 8 < num_keys else INT32(0)), values
                )
                places = (columns(values) + INT32(column)) * INT32(mask_step)
                places = places + spread(pair(INT32(my_key), INT32(my_key + 8)), values)
                scores = masked(scores, mask, places, known, MASK)
            if causal != 0 and row < first_key + 16:
                shown = at >= spread(pair(INT32(my_key), INT32(my_key + 8)), values)
                scores = select(shown, scores, F32(-INF))
            kept = at >= INT32(0)
            if DROPOUT != 0:
                at_row = (own * group * kv_heads + query_head) * num_rows + row + column
                bits = kept_in_columns(at_row, first_key, load(args, GRAD.seed), dropped_below(args), step // 8)
                kept = flags(bits, values)
            weights, slopes = weight_and_slope(
                args, scores, products, load_columns(numbers, values), load_columns(numbers + 4 * step, values), kept,
                DROPOUT,
            )  # fmt: skip
            across = place + from_column * element_bytes(T) + corner_across(T, pitch)
            value_sums = times_rows(value_sums, operand(weights, T), across + step * pitch, T, pitch)
            key_sums = times_rows(key_sums, operand(slopes, T), across, T, pitch)
            barrier()
            if stages == 1 and more:
                bring_queries(args, own, next_head, next_row, 0, base, T)
            query_head, row = next_head, next_row
        column += from_column
        store_sums(args, GRAD.dk, GRAD.dk_strides, key_sums * natural, own, head, my_key, column, size_qk, T)
        store_sums(args, GRAD.dv, GRAD.dv_strides, value_sums, own, head, my_key, column, size_v, T)
        wait_copies(0)
        barrier()
        return 0

    return queries, keys


_MADE = [_gradients(tile) for tile in TILES]
queries_16_64, queries_16_128, queries_16_256, queries_32_64, queries_32_128, queries_32_256 = (x for x, _ in _MADE)
keys_16_64, keys_16_128, keys_16_256, keys_32_64, keys_32_128, keys_32_256 = (x for _, x in _MADE)
