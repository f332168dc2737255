"""Attention of few query rows: keys and values stream from memory once, in shares of one size for every thread.

All the keys that the sequences see lie end to end, head by head, in cuts of CUT keys; unit u of `units` takes the
cuts from u / `units` of them to (u + 1) / `units`. So threads finish together whatever the lengths are, and a long
sequence keeps all of them busy (Dao et al., "Flash-Decoding", 2023). A unit that begins or ends within a row's
keys leaves maxima, totals and sums in its slots of the scratch, and `merge` adds up the rows that were cut.
"""

from numba import types
from numba.extending import intrinsic

from ...blocks.attention import ATTENTION
from ...build import jit
from ...lang.rows import clear
from ...lang.simd import address, bitcast, fill, load, ptr, stack, store, vload, vstore
from ..gemm.microkernel import depth, fetch, itemsize, lanes, panel_ptr, panel_type, sum_ptr, sum_type
from .few import LINE, WORDS, bias_few, fold_add, hide_few, in_halves, score_few, softmax_few, weigh_few
from .prefill import find_rows, row_slope, sequence, visible, write_row
from .sizes import CUT, FEW, FEW_KEYS, KEY_BYTES, LANES, PANEL, QUERY_BYTES, STREAM, SUM_BYTES, VALUE_BYTES
from .tiles import INF, LOG2E, exp2_below, offset_of, pack_row, row_scale

F32, F64, I32, I64 = types.float32, types.float64, types.int32, types.int64

LONG = 8  # cuts of a head from which on the first keys of the next one are fetched early (2,048 keys: 1 to 4 %)
SCORE_BYTES = 8 * FEW * STREAM
ROW_BYTES = 8 * 2 * max(FEW, LANES)  # one number for each row (two registers where factors are kept)
TABLE_BYTES = 8 * 4 * STREAM


@intrinsic
def in_place(typingctx, T, C):
    """Whether rows of a cache of `C` are multiplied as they lie in memory, as words of `T` or pairs of its elements."""
    if not isinstance(T, types.NumberClass) or not isinstance(C, types.NumberClass):
        return None
    dtype = T.instance_type
    value = C.instance_type == dtype and (panel_type(dtype) == types.int32 or sum_type(dtype) == dtype)
    return types.boolean(T, C), lambda context, builder, sig, args: context.get_constant(types.boolean, value)


# ---- a chunk of keys ---------------------------------------------------------------------------


@jit.inline
def find_chunk(args, seq, kv_head, token, count, rows, C):
    """Addresses of `count` keys, values and their factors from a token on; an error code.

    `rows` is a table of four times STREAM. The last key and value stand for those that are missing.
    """
    status = find_rows(args, ATTENTION.k, ATTENTION.k_strides, kv_head, seq, token, count, itemsize(C), rows)
    if status != 0:
        return status
    find_rows(args, ATTENTION.v, ATTENTION.v_strides, kv_head, seq, token, count, itemsize(C), rows + STREAM)
    for i in range(count, STREAM):
        store(rows, i, load(rows, count - 1))
        store(rows, STREAM + i, load(rows, STREAM + count - 1))
    if load(args, ATTENTION.k_scales) != 0:
        find_rows(args, ATTENTION.k_scales, ATTENTION.k_scale_strides, kv_head, seq, token, count, 4, rows + 2 * STREAM)
        find_rows(args, ATTENTION.v_scales, ATTENTION.v_scale_strides, kv_head, seq, token, count, 4, rows + 3 * STREAM)
    return 0


@jit.inline
def fetch_rows(rows, count, size, C):
    """Ask for the cache lines of rows of `size` elements."""
    for i in range(count):
        row = ptr(load(rows, i), C)
        for j in range(0, size, LINE // itemsize(C)):
            fetch(row, j)


@jit.inline
def stage(rows, ahead, factors, count, size, words, stride, C):
    """Copy rows of a cache into words, and let `rows` point to the copies; fetches what comes next."""
    for i in range(count):
        fetch_rows(ahead + i, 1, size, C)
        pack_row(words + i * stride, ptr(load(rows, i), C), size, row_scale(factors, i, C))
        store(rows, i, address(words + i * stride))
    for i in range(count, STREAM):
        store(rows, i, load(rows, count - 1))


@jit.inline
def score_chunk(rows, ahead, count, queries, words, scale, scores, R, WIDTH):
    """Scores [key, row] of `count` keys, with -inf up to a multiple of FEW_KEYS; fetches the keys that come next."""
    for i in range(0, count, FEW_KEYS):
        score_few(rows + i, ahead + i, queries, words, scale, scores + i * WIDTH, R, WIDTH)
    for i in range(count, (count + FEW_KEYS - 1) // FEW_KEYS * FEW_KEYS):
        for r in range(WIDTH):
            store(scores, i * WIDTH + r, -INF)


# ---- rows --------------------------------------------------------------------------------------


@jit.inline
def load_queries(args, seq, kv_head, first_row, rows, q_start, words, halves, queries, staging, T, WIDTH):
    """Query rows as words, as `score_few` takes them (in `halves`, or not), padded to WIDTH rows with zeros."""
    q, group, size = ptr(load(args, ATTENTION.q), T), load(args, ATTENTION.group), load(args, ATTENTION.size_qk)
    for r in range(WIDTH):
        if r < rows:
            token = (first_row + r) // group
            head = kv_head * group + (first_row + r - token * group)
            pack_row(staging, q + offset_of(args, ATTENTION.q_strides, seq, q_start + token, head), size, 1.0)
        else:
            clear(staging, words)
        for k in range(0, words, WORDS):
            for i in range(WORDS):
                odd = k // WORDS % 2 if halves else 0  # which half of 2 WORDS words these are
                source = k - odd * WORDS + 2 * i + odd if halves else k + i
                store(queries, k * WIDTH + r * WORDS + i, load(staging, source))


@jit.inline
def load_rows(args, kv_head, first_row, rows, q_len, kv_len, positions, starts, ends, slopes, keys, WIDTH):
    """Of every lane: its row's position, visible keys and ALiBi slope, and which key of a register it holds."""
    group = load(args, ATTENTION.group)
    for i in range(max(WIDTH, LANES)):
        row = first_row + min(i % WIDTH, rows - 1)
        token = row // group
        position, start, end = visible(args, token, q_len, kv_len)
        store(positions, i, position)
        store(starts, i, start)
        store(ends, i, end)
        store(slopes, i, row_slope(args, kv_head * group + (row - token * group)))
        store(keys, i, i // WIDTH)


@jit.inline
def finish(args, seq, kv_head, first_row, rows, q_start, slot, tops, totals, sums, stride, T, WIDTH):
    """Store rows: divided by their totals, or, for a share of their keys, as they are into a slot of the scratch."""
    for column in range(0, WIDTH, LANES):
        vstore(totals, column, fold_add(vload(totals, column, LANES), WIDTH))
    if slot < 0:
        for r in range(rows):
            write_row(args, seq, q_start, first_row + r, kv_head, sums + r * stride, load(totals, r), T)
        return
    out = sum_ptr(load(args, ATTENTION.scratch) + slot * load(args, ATTENTION.slot_bytes), T)
    for r in range(rows):
        store(out, r, load(tops, r))
        store(out, WIDTH + r, load(totals, r))
        for i in range(0, stride, LANES):
            vstore(out, 2 * WIDTH + r * stride + i, vload(sums, r * stride + i, LANES))


@jit.inline
def row_range(args, first_row, rows, q_len, kv_len):
    """(first key, end) of the keys that any of these rows sees."""
    group = load(args, ATTENTION.group)
    _, first, _ = visible(args, first_row // group, q_len, kv_len)
    _, _, end = visible(args, (first_row + rows - 1) // group, q_len, kv_len)
    return first, end


@jit.inline
def count_rows(args, seq):
    """(query rows of a key/value head, query tokens, keys, error code) of a sequence; no rows if it is not ours."""
    _, q_len, _, kv_len, status = sequence(args, seq)
    rows = q_len * load(args, ATTENTION.group)
    if load(args, ATTENTION.part) == 1 and rows > FEW:
        rows = 0
    return rows, q_len, kv_len, status


@jit.inline
def begin_of(args, seq, kv_head, room, rows, C, WIDTH):
    """Addresses of the first keys of a sequence's head, for the lines to be asked for."""
    all_rows, q_len, kv_len, status = count_rows(args, seq)
    _, _, kv_start, _, _ = sequence(args, seq)
    first, end = row_range(args, 0, max(1, min(WIDTH, all_rows)), q_len, kv_len)
    count = min(room, end - first)
    if status == 0 and count > 0:
        find_chunk(args, seq, kv_head, kv_start + first, count, rows, C)


@jit.inline
def attend_rows(args, seq, kv_head, first_row, rows, lo, hi, slot, next_seq, next_head, T, C, WIDTH):
    """Rows first_row ... + rows (at most WIDTH) against the cuts [lo, hi) of the keys that they see.

    `slot`: where to leave the sums of these cuts in the scratch; -1: these are all, store the result. `next_seq` and
    `next_head` say whose keys this thread reads after these (-1: unknown).
    """
    q_start, q_len, kv_start, kv_len, _ = sequence(args, seq)
    size_qk, size_v, group = load(args, ATTENTION.size_qk), load(args, ATTENTION.size_v), load(args, ATTENTION.group)
    unit = WORDS * depth(T)
    words = (size_qk + unit - 1) // unit * WORDS
    key_stride = (words + LANES - 1) // LANES * LANES
    value_stride = ((size_v + depth(T) - 1) // depth(T) + LANES - 1) // LANES * LANES
    stride = (size_v + PANEL - 1) // PANEL * PANEL
    scale = bitcast(load(args, ATTENTION.scale), F64) * LOG2E
    queries, sums = panel_ptr(stack(QUERY_BYTES), T), sum_ptr(stack(SUM_BYTES), T)
    keys, values = panel_ptr(stack(KEY_BYTES), T), panel_ptr(stack(VALUE_BYTES), T)
    score_address = stack(SCORE_BYTES)
    scores, weights = sum_ptr(score_address, T), panel_ptr(score_address, T)
    tops, totals, decay = sum_ptr(stack(ROW_BYTES), T), sum_ptr(stack(ROW_BYTES), T), sum_ptr(stack(ROW_BYTES), T)
    slopes, positions = sum_ptr(stack(ROW_BYTES), T), ptr(stack(ROW_BYTES), I32)
    starts, ends, lane_keys = ptr(stack(ROW_BYTES), I32), ptr(stack(ROW_BYTES), I32), ptr(stack(ROW_BYTES), I32)
    here, ahead = ptr(stack(TABLE_BYTES), I64), ptr(stack(TABLE_BYTES), I64)

    first, end = row_range(args, first_row, rows, q_len, kv_len)
    _, _, least_end = visible(args, first_row // group, q_len, kv_len)
    _, last_first, _ = visible(args, (first_row + rows - 1) // group, q_len, kv_len)
    j, end = first + lo * CUT, min(end, first + hi * CUT)
    halves = in_halves(T, C) and size_qk % (2 * WORDS) == 0
    direct_k = halves or (in_place(T, C) and size_qk % unit == 0)
    direct_v = in_halves(T, C) or in_place(T, C)
    room, word_bytes = STREAM, 4 * LANES // lanes(T)
    if not direct_k:
        room = min(room, KEY_BYTES // (word_bytes * key_stride))
    if not direct_v:
        room = min(room, VALUE_BYTES // (word_bytes * value_stride))

    count = min(room, end - j)
    if count > 0:
        status = find_chunk(args, seq, kv_head, kv_start + j, count, here, C)
        if status != 0:
            return status
        fetch_rows(here, count, size_qk, C)
        fetch_rows(here + STREAM, count, size_v, C)
    load_queries(args, seq, kv_head, first_row, rows, q_start, words, halves, queries, keys, T, WIDTH)
    load_rows(args, kv_head, first_row, rows, q_len, kv_len, positions, starts, ends, slopes, lane_keys, WIDTH)
    clear(sums, WIDTH * stride)
    clear(totals, max(WIDTH, LANES))
    for i in range(0, max(WIDTH, LANES), LANES):
        vstore(tops, i, fill(-INF, T, LANES))
    while j < end:
        following = min(room, end - j - count)
        if following > 0:
            status = find_chunk(args, seq, kv_head, kv_start + j + count, following, ahead, C)
            if status != 0:
                return status
        elif next_seq >= 0:
            begin_of(args, next_seq, next_head, room, ahead, C, WIDTH)
        soon = ahead if following > 0 or next_seq >= 0 else here
        if not direct_k:
            stage(here, soon, here + 2 * STREAM, count, size_qk, keys, key_stride, C)
        if not direct_v:
            stage(here + STREAM, soon + STREAM, here + 3 * STREAM, count, size_v, values, value_stride, C)
        soon_k, soon_v = soon if direct_k else here, (soon if direct_v else here) + STREAM
        if halves:
            score_chunk(here, soon_k, count, queries, words, scale, scores, C, WIDTH)
        else:
            score_chunk(here, soon_k, count, queries, words, scale, scores, F32, WIDTH)
        padded = (count + FEW_KEYS - 1) // FEW_KEYS * FEW_KEYS * WIDTH
        if load(args, ATTENTION.slopes) != 0:
            bias_few(scores, positions, slopes, lane_keys, j, padded, T, WIDTH)
        if j < last_first or j + count > least_end:
            hide_few(scores, starts, ends, lane_keys, j, padded, WIDTH)
        softmax_few(scores, weights, tops, totals, decay, padded, T, WIDTH)
        if in_halves(T, C):
            weigh_few(weights, here + STREAM, soon_v, count, size_v, decay, sums, stride, C, WIDTH)
        else:
            weigh_few(weights, here + STREAM, soon_v, count, size_v, decay, sums, stride, F32, WIDTH)
        here, ahead = ahead, here
        j, count = j + count, following
    finish(args, seq, kv_head, first_row, rows, q_start, slot, tops, totals, sums, stride, T, WIDTH)
    return 0


# ---- units -------------------------------------------------------------------------------------


@jit.inline
def count_cuts(args, first_row, rows, q_len, kv_len):
    """Cuts of the keys that these rows see; rows without keys have one, too: they become zeros."""
    first, end = row_range(args, first_row, rows, q_len, kv_len)
    return max(1, (end - first + CUT - 1) // CUT)


@jit.inline
def last_sequence(args):
    """The number of sequences, with the tokens after the last one where there may be some."""
    return load(args, ATTENTION.num_seqs) + (1 if load(args, ATTENTION.starts) != 0 else 0)


@jit.inline
def count_head(args, WIDTH):
    """(cuts of one key/value head over all sequences, error code)."""
    total = 0
    for seq in range(last_sequence(args)):
        all_rows, q_len, kv_len, status = count_rows(args, seq)
        if status != 0:
            return 0, status
        for row in range(0, all_rows, WIDTH):
            total += count_cuts(args, row, min(WIDTH, all_rows - row), q_len, kv_len)
    return total, 0


@jit.inline
def share(args, unit, total):
    """(first cut, end) of a unit's share of all cuts."""
    units = load(args, ATTENTION.units)
    return unit * total // units, (unit + 1) * total // units


@jit.inline
def decode(args, lo, hi, T, C, WIDTH):
    """Units [lo, hi): each its share of the cuts of all heads."""
    per_head, status = count_head(args, WIDTH)
    total = per_head * load(args, ATTENTION.kv_heads)
    for unit in range(lo, hi):
        begin, stop = share(args, unit, total)
        if begin == stop:
            continue
        for kv_head in range(begin // per_head, (stop - 1) // per_head + 1):
            place = kv_head * per_head
            for seq in range(last_sequence(args)):
                all_rows, q_len, kv_len, _ = count_rows(args, seq)
                for row in range(0, all_rows, WIDTH):
                    rows = min(WIDTH, all_rows - row)
                    cuts = count_cuts(args, row, rows, q_len, kv_len)
                    first, last = max(begin - place, 0), min(stop - place, cuts)
                    if first < last:
                        slot = -1 if last - first == cuts else 2 * unit + (1 if first == 0 else 0)
                        next_seq, next_head = -1, kv_head
                        if place + cuts < stop and all_rows <= WIDTH and cuts >= LONG:
                            next_seq = seq + 1
                            if next_seq == last_sequence(args):
                                next_seq, next_head = 0, kv_head + 1
                        failed = attend_rows(
                            args, seq, kv_head, row, rows, first, last, slot, next_seq, next_head, T, C, WIDTH
                        )
                        status = max(status, failed)
                    place += cuts
    return status


@jit.inline
def merge_rows(args, seq, kv_head, first_row, rows, unit, end, total, T, WIDTH):
    """Add up the shares of rows that `unit` began and the units after it went on with, up to the cut `end`."""
    q_start, _, _, _, _ = sequence(args, seq)
    stride = (load(args, ATTENTION.size_v) + PANEL - 1) // PANEL * PANEL
    sums, factors = sum_ptr(stack(SUM_BYTES), T), sum_ptr(stack(ROW_BYTES), T)
    for r in range(rows):
        clear(sums, stride)
        top, weight = -INF, 0.0
        for i in range(unit, load(args, ATTENTION.units)):
            begin, stop = share(args, i, total)
            if begin >= end:
                break
            slot = 2 * i + (1 if i == unit else 0)
            part = sum_ptr(load(args, ATTENTION.scratch) + slot * load(args, ATTENTION.slot_bytes), T)
            if begin == stop or load(part, r) == -INF:
                continue
            now = max(top, load(part, r))
            vstore(factors, 0, exp2_below(fill(top - now, T, LANES)))
            vstore(factors, LANES, exp2_below(fill(load(part, r) - now, T, LANES)))
            kept, factor, top = load(factors, 0), load(factors, LANES), now
            weight = weight * kept + load(part, WIDTH + r) * factor
            for j in range(0, stride, LANES):
                x = vload(part, 2 * WIDTH + r * stride + j, LANES)
                vstore(sums, j, vload(sums, j, LANES) * kept + x * factor)
        write_row(args, seq, q_start, first_row + r, kv_head, sums, weight, T)


@jit.inline
def merge(args, lo, hi, T, WIDTH):
    """Finish the rows whose keys were cut between units: those that begin in units [lo, hi)."""
    per_head, status = count_head(args, WIDTH)
    total = per_head * load(args, ATTENTION.kv_heads)
    for unit in range(lo, hi):
        begin, stop = share(args, unit, total)
        if begin == stop or status != 0:
            continue
        kv_head = (stop - 1) // per_head
        place = kv_head * per_head
        for seq in range(last_sequence(args)):
            all_rows, q_len, kv_len, _ = count_rows(args, seq)
            for row in range(0, all_rows, WIDTH):
                rows = min(WIDTH, all_rows - row)
                cuts = count_cuts(args, row, rows, q_len, kv_len)
                if begin <= place < stop < place + cuts:
                    merge_rows(args, seq, kv_head, row, rows, unit, place + cuts, total, T, WIDTH)
                place += cuts
    return status
