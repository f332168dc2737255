"""Attention with online softmax: where its operands lie, and prefill, by tiles of query rows.

`decode.py` has the kernel for few query rows, which streams the keys. One argument block says where
queries, keys and values lie; dense batches, packed sequences of unequal lengths, static caches and paged
caches are different blocks for the same code. Keys and values live in blocks of `block_size` tokens: the block
of token j of a sequence is the sequence itself (dense tensors, static caches), or what its row of the block
table says at j // `block_size`.

The query rows of a key/value head are all pairs (token, query head of its group), tokens first, so that
keys and values are read once for the whole group. A unit of work is one tile of such rows. Lengths,
starts and tables are read here, not in Python: a recorded launch follows their new contents, and the
number of units depends on shapes only (units beyond the last tile do nothing).

Scores are float32 (float64 for float64) in units of log2: scale and slopes carry log2(e).
"""

from numba import types

from ...blocks.attention import ATTENTION, BAD_BLOCK, BAD_KV_STARTS, BAD_LENGTH, BAD_Q_STARTS
from ...build import jit
from ...lang.rows import clear
from ...lang.shuffle import transpose_tile
from ...lang.simd import bitcast, fill, load, ptr, stack, store, vload, vstore, vstore_first
from ..gemm.microkernel import depth, itemsize, lanes, sum_ptr
from .products import begin_tiles, end_tiles, score_tiles, value_tiles
from .sizes import (
    FEW,
    KEY_BYTES,
    KEYS,
    LANES,
    PANEL,
    QUERY_BYTES,
    ROWS,
    SUM_BYTES,
    TILE,
    VALUE_BYTES,
)
from .tiles import (
    INF,
    LOG2E,
    bias_tile,
    mask_tile,
    offset_of,
    pack_row,
    pack_two_rows,
    read_index,
    row_scale,
    softmax_rows,
    word_ptr,
)

I32, I64, F32, F64 = types.int32, types.int64, types.float32, types.float64

NO_WINDOW = 1 << 30
SCORE_BYTES = 8 * (KEYS + ROWS) * TILE
ROW_BYTES = 8 * TILE  # one number for each row of a tile
TABLE_BYTES = 8 * KEYS  # one address for each key of a tile


@jit.inline
def sequence(args, seq):
    """(first query token, query tokens, first key token, keys, error code) of a sequence.

    Sequence `num_seqs` stands for the tokens after the last one: padding, without keys.
    """
    q_start, q_len = 0, load(args, ATTENTION.q_len)
    starts = load(args, ATTENTION.starts)
    if starts != 0:
        nbytes, stride, total = load(args, ATTENTION.starts_bytes), load(args, ATTENTION.starts_stride), q_len
        q_start = read_index(starts, nbytes, seq * stride)
        end = total if seq == load(args, ATTENTION.num_seqs) else read_index(starts, nbytes, (seq + 1) * stride)
        q_len = end - q_start
        if q_start < 0 or q_len < 0 or end > total or (seq == 0 and q_start != 0):
            return 0, 0, 0, 0, BAD_Q_STARTS
    if seq == load(args, ATTENTION.num_seqs):
        return q_start, q_len, 0, 0, 0
    kv_start, kv_len = 0, load(args, ATTENTION.kv_len)
    lens = load(args, ATTENTION.lens)
    table = load(args, ATTENTION.table)
    room = load(args, ATTENTION.block_size)
    if table != 0:
        room *= load(args, ATTENTION.table_width)
    if lens != 0:
        nbytes, stride = load(args, ATTENTION.lens_bytes), load(args, ATTENTION.lens_stride)
        if load(args, ATTENTION.lens_are_starts) != 0:
            first = read_index(lens, nbytes, seq * stride)
            kv_len = read_index(lens, nbytes, (seq + 1) * stride) - first
            if first < 0 or kv_len < 0 or (seq == 0 and first != 0):
                return 0, 0, 0, 0, BAD_KV_STARTS
            if table == 0:
                kv_start = first
        else:
            kv_len = read_index(lens, nbytes, seq * stride)
    if kv_len < 0 or kv_start + kv_len > room:
        return 0, 0, 0, 0, BAD_LENGTH
    return q_start, q_len, kv_start, kv_len, 0


@jit.inline
def find_run(args, seq, token):
    """(block, place in it, tokens from there to its end) of a token; -1 tokens: error."""
    block, size = seq, load(args, ATTENTION.block_size)
    table = load(args, ATTENTION.table)
    if table != 0:
        column = token // size
        token -= column * size
        entry = seq * load(args, ATTENTION.table_seq) + column * load(args, ATTENTION.table_block)
        block = read_index(table, load(args, ATTENTION.table_bytes), entry)
        if block < 0 or block >= load(args, ATTENTION.blocks):
            return 0, 0, -1
    return block, token, size - token


@jit.inline
def find_rows(args, tensor, strides, kv_head, seq, token, count, nbytes, rows):
    """The addresses of `count` keys from a token on, in elements of `nbytes`; an error code.

    `tensor` and `strides` are the fields of keys, of values, or of their factors.
    """
    base = load(args, tensor) + offset_of(args, strides, 0, 0, kv_head) * nbytes
    step = offset_of(args, strides, 0, 1, 0) * nbytes
    done = 0
    while done < count:
        block, place, run = find_run(args, seq, token + done)
        if run < 0:
            return BAD_BLOCK
        run = min(run, count - done)
        row = base + offset_of(args, strides, block, 0, 0) * nbytes + place * step
        for i in range(run):
            store(rows, done + i, row + i * step)
        done += run
    return 0


@jit.inline
def visible(args, token, q_len, kv_len):
    """(position, first visible key, end of the visible keys) of query token `token`."""
    causal, window = load(args, ATTENTION.causal), load(args, ATTENTION.window)
    position = token if causal == 2 else token + kv_len - q_len
    end = kv_len
    if causal != 0:
        end = max(0, min(kv_len, position + 1))
    first = 0
    if window > 0:
        first = min(end, max(0, position - window + 1))
    return position, first, end


@jit.inline
def row_slope(args, head):
    """The ALiBi slope of a head in units of log2; 0 without."""
    slopes = load(args, ATTENTION.slopes)
    if slopes == 0:
        return 0.0
    return load(ptr(slopes, F32), head * load(args, ATTENTION.slopes_stride)) * LOG2E


@jit.inline
def write_row(args, seq, q_start, row, kv_head, sums, total, T):
    """Divide a row's sums by its total (0 if it saw no key) and store them."""
    group, size = load(args, ATTENTION.group), load(args, ATTENTION.size_v)
    token = row // group
    head = kv_head * group + (row - token * group)
    out = ptr(load(args, ATTENTION.out), T) + offset_of(args, ATTENTION.out_strides, seq, q_start + token, head)
    factor = 1.0 / total if total != 0.0 else 0.0
    i = 0
    while i + LANES <= size:
        vstore(out, i, vload(sums, i, LANES) * factor)
        i += LANES
    if i < size:
        vstore_first(out, i, vload(sums, i, LANES) * factor, size - i)


# ---- tiles -------------------------------------------------------------------------------------


@jit.inline
def load_query_tile(args, seq, kv_head, first_row, rows, q_start, width, queries, staging, stride, T):
    """Query rows as words, transposed to [word, row], with zero rows up to `width`."""
    q, group, size = ptr(load(args, ATTENTION.q), T), load(args, ATTENTION.group), load(args, ATTENTION.size_qk)
    for start in range(0, width, LANES):
        for i in range(LANES):
            row = first_row + start + i
            token = row // group
            head = kv_head * group + (row - token * group)
            if start + i < rows:
                source = q + offset_of(args, ATTENTION.q_strides, seq, q_start + token, head)
                pack_row(staging + i * stride, source, size, 1.0)
            else:
                clear(staging + i * stride, stride)
        for i in range(0, stride, LANES):
            transpose_tile(queries + (i * width + start), width, staging + i, stride, LANES)


@jit.inline
def load_rows_info(args, kv_head, first_row, rows, q_len, kv_len, width, positions, slopes, T):
    """Position and ALiBi slope of every row of a tile; rows beyond the last repeat it."""
    group = load(args, ATTENTION.group)
    for i in range(width):
        row = first_row + min(i, rows - 1)
        token = row // group
        position, _, _ = visible(args, token, q_len, kv_len)
        store(positions, i, position)
        store(slopes, i, row_slope(args, kv_head * group + (row - token * group)))


@jit.inline
def load_tile(k_at, v_at, k_scales, v_scales, count, keys, key_stride, values, value_stride, size_qk, size_v, C):
    """Copy keys and values into words."""
    for i in range(count):
        pack_row(keys + i * key_stride, ptr(load(k_at, i), C), size_qk, row_scale(k_scales, i, C))
    for i in range(0, count, 2):
        odd = i + 1 == count
        other = i if odd else i + 1
        pack_two_rows(
            values, value_stride, i // 2, ptr(load(v_at, i), C), ptr(load(v_at, other), C), 0 if odd else -1, size_v,
            row_scale(v_scales, i, C), row_scale(v_scales, other, C),
        )  # fmt: skip


@jit.inline
def attend_tile(args, seq, kv_head, first_row, rows, T, C):
    """Rows first_row ... + rows (at most `tile_rows`) as one tile against tiles of keys."""
    q_start, q_len, kv_start, kv_len, _ = sequence(args, seq)
    size_qk, size_v, group = load(args, ATTENTION.size_qk), load(args, ATTENTION.size_v), load(args, ATTENTION.group)
    scale = bitcast(load(args, ATTENTION.scale), F64) * LOG2E
    causal, window = load(args, ATTENTION.causal), load(args, ATTENTION.window)
    words = (size_qk + depth(T) - 1) // depth(T)
    key_stride = (words + LANES - 1) // LANES * LANES
    value_stride = (size_v + PANEL - 1) // PANEL * PANEL
    width = (rows + PANEL - 1) // PANEL * PANEL
    word_bytes = 4 * LANES // lanes(T)
    room = min(KEY_BYTES // (word_bytes * key_stride), VALUE_BYTES // (word_bytes * value_stride))
    num_keys = min(KEYS, room // ROWS * ROWS)

    queries, keys = word_ptr(stack(QUERY_BYTES), T), word_ptr(stack(KEY_BYTES), T)
    values = word_ptr(stack(VALUE_BYTES), T)
    score_address = stack(SCORE_BYTES)
    scores, weights = sum_ptr(score_address, T), word_ptr(score_address, T)
    sums, tops, totals = sum_ptr(stack(SUM_BYTES), T), sum_ptr(stack(ROW_BYTES), T), sum_ptr(stack(ROW_BYTES), T)
    decay, slopes, positions = sum_ptr(stack(ROW_BYTES), T), sum_ptr(stack(ROW_BYTES), T), ptr(stack(ROW_BYTES), I32)
    k_at, v_at = ptr(stack(TABLE_BYTES), I64), ptr(stack(TABLE_BYTES), I64)
    k_scales, v_scales = ptr(stack(TABLE_BYTES), I64), ptr(stack(TABLE_BYTES), I64)

    load_query_tile(args, seq, kv_head, first_row, rows, q_start, width, queries, keys, key_stride, T)
    load_rows_info(args, kv_head, first_row, rows, q_len, kv_len, width, positions, slopes, T)
    clear(sums, width * value_stride)
    clear(totals, width)
    for i in range(0, width, LANES):
        vstore(tops, i, fill(-INF, T, LANES))
    first_position, first, _ = visible(args, first_row // group, q_len, kv_len)
    last_position, _, end = visible(args, (first_row + rows - 1) // group, q_len, kv_len)

    for j in range(first, end, num_keys):
        count = min(num_keys, end - j)
        token, k_steps, v_steps = kv_start + j, ATTENTION.k_scale_strides, ATTENTION.v_scale_strides
        status = find_rows(args, ATTENTION.k, ATTENTION.k_strides, kv_head, seq, token, count, itemsize(C), k_at)
        if status != 0:
            return status
        find_rows(args, ATTENTION.v, ATTENTION.v_strides, kv_head, seq, token, count, itemsize(C), v_at)
        if load(args, ATTENTION.k_scales) != 0:
            find_rows(args, ATTENTION.k_scales, k_steps, kv_head, seq, token, count, 4, k_scales)
            find_rows(args, ATTENTION.v_scales, v_steps, kv_head, seq, token, count, 4, v_scales)
        load_tile(
            k_at, v_at, k_scales, v_scales, count, keys, key_stride, values, value_stride, size_qk, size_v, C
        )  # fmt: skip
        score_tiles(keys, key_stride, queries, width, words, scale, scores, count)
        if load(args, ATTENTION.slopes) != 0:
            bias_tile(scores, positions, slopes, j, count, width, T)
        if (causal != 0 and j + count - 1 > first_position) or (window > 0 and j <= last_position - window):
            mask_tile(scores, positions, j, count, width, causal != 0, window if window > 0 else NO_WINDOW)
        if count % 2 != 0:
            for c in range(0, width, LANES):
                vstore(scores, count * width + c, fill(-INF, T, LANES))
        for column in range(0, width, LANES):
            softmax_rows(scores, weights, scores, False, tops, totals, decay, count, width, column)
        value_tiles(weights, width, values, value_stride, count, depth(T), decay, sums)
    for r in range(rows):
        write_row(args, seq, q_start, first_row + r, kv_head, sums + r * value_stride, load(totals, r), T)
    return 0


# ---- units -------------------------------------------------------------------------------------


@jit.inline
def find_tile_of(args, tile):
    """(sequence, tile within it, error code) of a tile of a key/value head; sequence -1 beyond the last."""
    tile_rows, group = load(args, ATTENTION.tile_rows), load(args, ATTENTION.group)
    if load(args, ATTENTION.starts) == 0:
        per_sequence = (load(args, ATTENTION.q_len) * group + tile_rows - 1) // tile_rows
        seq = tile // per_sequence
        return seq, tile - seq * per_sequence, 0
    for seq in range(load(args, ATTENTION.num_seqs) + 1):
        _, q_len, _, _, status = sequence(args, seq)
        if status != 0:
            return -1, 0, status
        tiles = (q_len * group + tile_rows - 1) // tile_rows
        if tile < tiles:
            return seq, tile, 0
        tile -= tiles
    return -1, 0, 0


@jit.inline
def find_unit(args, unit):
    """(sequence or -1, kv head, first row, rows, error code): kv head by kv head, the tiles of all sequences."""
    num_tiles, tile_rows = load(args, ATTENTION.num_tiles), load(args, ATTENTION.tile_rows)
    kv_head = unit // num_tiles
    tile = unit - kv_head * num_tiles
    # Causal tiles grow longer towards the end: in turn from both ends, threads get equal shares.
    tile = tile // 2 if tile % 2 == 0 else num_tiles - 1 - tile // 2
    seq, tile, status = find_tile_of(args, tile)
    if seq < 0:
        return -1, 0, 0, 0, status
    _, q_len, _, _, status = sequence(args, seq)
    all_rows, first_row, part = q_len * load(args, ATTENTION.group), tile * tile_rows, load(args, ATTENTION.part)
    if part == 2 and all_rows <= FEW:
        return -1, 0, 0, 0, status
    return seq, kv_head, first_row, min(tile_rows, all_rows - first_row), status


@jit.inline
def prefill(args, lo, hi, T, C):
    """Units [lo, hi), tile by tile."""
    status = 0
    begin_tiles(T)
    for unit in range(lo, hi):
        seq, kv_head, first_row, rows, status = find_unit(args, unit)
        if status == 0 and seq >= 0:
            status = attend_tile(args, seq, kv_head, first_row, rows, T, C)
        if status != 0:
            break
    end_tiles(T)
    return status
