"""Attention for training: the forward pass with a log-sum-exp of each row, and its derivative.

FlashAttention-2 (Dao, arXiv 2307.08691): scores are made again from queries, keys and the log-sum-exp, tile by
tile, and never stored. With S = scale * Q K^T, P = exp(S - lse) and D = rowsum(dO * O):

    dV = P^T dO    dP = dO V^T    dS = scale * P * (dP - D)    dQ = dS K    dK = dS^T Q

A unit of work is a batch and key/value head, or a chunk of its keys (backward; of its query rows in the forward
pass) where there are few of them. A unit packs what it reads into words (see `tiles.py`): each operand
serves products along its elements and across them. Query heads that share keys follow one another, and their
sums for keys and values stay in memory. Sums are float32 (float64 for float64), in an order that depends on
shapes alone. Scores are in units of log2.
"""

from numba import types

from ...blocks.attention import GRAD
from ...build import jit
from ...lang.rows import clear
from ...lang.simd import (
    bitcast,
    fill,
    load,
    ptr,
    reduce_add,
    select,
    stack,
    store,
    vload,
    vload_first,
    vstore,
    vstore_first,
)
from ...lang.vmath import log
from ..gemm.microkernel import depth, sum_ptr
from .grad_tiles import (
    add_mask,
    clear_unseen,
    derive_panels,
    drop_tile,
    hide_later,
    pack_columns,
    pack_keys,
    pack_rows,
    score_tiles,
    softmax_panels,
    turn_rows,
    write_rows,
)
from .products import begin_tiles, by_tiles, end_tiles, row_tiles, value_tiles
from .sizes import KEYS, LANES, PANEL, ROWS, TILE, VECTORS
from .tiles import INF, LOG2E, offset_of, value_tile, word_ptr

F64 = types.float64
TILED_KEYS = 32  # that tile registers multiply values with at a time
ROW_BYTES = 8 * TILE  # one number for each row of a tile
SCORE_BYTES = 8 * (KEYS + ROWS) * TILE
ONES_BYTES = 8 * (ROWS + LANES)
WORD_BYTES = SCORE_BYTES // 4  # of a tile of pairs


@jit.inline
def row_address(args, tensor, strides, batch, head, row, T):
    """The pointer to a row of a tensor; `tensor` and `strides` are its fields of the block."""
    return ptr(load(args, tensor), T) + offset_of(args, strides, batch, head, row)


@jit.inline
def row_stride(args, strides):
    """The stride of the rows of a tensor."""
    return offset_of(args, strides, 0, 0, 1)


@jit.inline
def scratch_of(args, thread):
    """The address of a thread's scratch."""
    return load(args, GRAD.scratch) + thread * load(args, GRAD.thread_bytes)


@jit.inline
def words_at(args, base, area, T):
    """The words of an area of the scratch; `area` is its field of the block."""
    return word_ptr(base + load(args, area), T)


@jit.inline
def sums_at(args, base, area, T):
    """The float32 or float64 numbers of an area of the scratch."""
    return sum_ptr(base + load(args, area), T)


@jit.inline
def strides(args, T):
    """(words of a key, of a value; elements of a row of keys, of values) in packed memory."""
    size, size_v, pair = load(args, GRAD.size_qk), load(args, GRAD.size_v), depth(T)
    words = ((size + pair - 1) // pair + LANES - 1) // LANES * LANES
    words_v = ((size_v + pair - 1) // pair + LANES - 1) // LANES * LANES
    return words, words_v, (size + PANEL - 1) // PANEL * PANEL, (size_v + PANEL - 1) // PANEL * PANEL


@jit.inline
def tile_scores(args, keys, key_stride, queries, batch, head, row, rows, key, count, width, scores, T):
    """Scores of a tile in units of log2, masked; those of one key more are -inf if their number is odd."""
    causal, offset = load(args, GRAD.causal) != 0, row - key
    words = (load(args, GRAD.size_qk) + depth(T) - 1) // depth(T)
    factor = bitcast(load(args, GRAD.scale), F64) * LOG2E
    score_tiles(keys, key_stride, queries, width, words, factor, scores, count, causal, offset)
    if load(args, GRAD.mask) != 0:
        hidden, stride = load(args, GRAD.mask_bytes) == 1, row_stride(args, GRAD.mask_strides)
        first = offset_of(args, GRAD.mask_strides, batch, head, row) + key
        bias = sum_ptr(load(args, GRAD.mask) + first * load(args, GRAD.mask_bytes), T)
        add_mask(scores, hidden, bias, stride, rows, count, width, T)
    if causal and count - 1 > offset:
        hide_later(scores, width, count, offset)
    if count % 2 != 0:
        for c in range(0, width, LANES):
            vstore(scores, count * width + c, fill(-INF, T, LANES))


@jit.inline
def tile_factors(args, factors, batch, head, row, key, count, width, T):
    """Whether there is dropout, and its factors for a tile."""
    probability = bitcast(load(args, GRAD.dropout), F64)
    if probability == 0.0:
        return False
    heads = load(args, GRAD.kv_heads) * load(args, GRAD.group)
    place = (batch * heads + head) * load(args, GRAD.num_rows) + row
    drop_tile(factors, place, key, count, width, load(args, GRAD.seed), probability, T)
    return True


# ---- forward -----------------------------------------------------------------------------------


@jit.inline
def forward_tile(args, batch, kv_head, head, row, base, T):
    """Result and log-sum-exp of the rows from `row` on, against the packed keys and values of the head."""
    num_rows, num_keys, causal = load(args, GRAD.num_rows), load(args, GRAD.num_keys), load(args, GRAD.causal) != 0
    size, size_v = load(args, GRAD.size_qk), load(args, GRAD.size_v)
    words, _, _, value_stride = strides(args, T)
    keys, values = words_at(args, base, GRAD.key_words, T), words_at(args, base, GRAD.value_words, T)
    staging, queries = words_at(args, base, GRAD.staging, T), words_at(args, base, GRAD.query_words, T)
    sums = sums_at(args, base, GRAD.sums, T)
    score_address = stack(SCORE_BYTES)
    scores, weights = sum_ptr(score_address, T), word_ptr(score_address, T)
    factors, decay = sum_ptr(stack(SCORE_BYTES), T), sum_ptr(stack(ROW_BYTES), T)
    tops, totals = sum_ptr(stack(ROW_BYTES), T), sum_ptr(stack(ROW_BYTES), T)

    rows = min(TILE, num_rows - row)
    width = (rows + PANEL - 1) // PANEL * PANEL
    source = row_address(args, GRAD.q, GRAD.q_strides, batch, head, row, T)
    pack_columns(queries, source, row_stride(args, GRAD.q_strides), rows, width, size, staging, words)
    clear(sums, width * value_stride)
    clear(totals, width)
    for c in range(0, width, LANES):
        vstore(tops, c, fill(-INF, T, LANES))
    end = min(num_keys, row + rows) if causal else num_keys
    if by_tiles(weights):  # which take whole tiles of values, of keys that are hidden too
        end = min(num_keys, (end + TILED_KEYS - 1) // TILED_KEYS * TILED_KEYS)
    for key in range(0, end, KEYS):
        count, offset = min(KEYS, end - key), row - key
        tile_scores(args, keys + key * words, words, queries, batch, head, row, rows, key, count, width, scores, T)
        dropping = tile_factors(args, factors, batch, head, row, key, count, width, T)
        softmax_panels(scores, weights, factors, dropping, tops, totals, decay, count, width, causal, offset)
        if by_tiles(weights):
            clear_unseen(weights, width, count, causal, offset)
            value_tiles(weights, width, values + key // 2 * value_stride, value_stride, count, 2, decay, sums)
            continue
        for c in range(0, width, ROWS):
            seen = max(0, min(count, offset + c + ROWS)) if causal else count
            steps = (seen + depth(T) - 1) // depth(T)
            for i in range(0, value_stride, PANEL):
                value_tile(
                    weights + c, 1, width, values + (key // depth(T) * value_stride + i), value_stride, steps, None,
                    decay + c, sums + (c * value_stride + i), value_stride, ROWS, VECTORS,
                )  # fmt: skip
    for r in range(rows):
        total, line = load(totals, r), sums + r * value_stride
        factor = 1.0 / total if total != 0.0 else 0.0
        for i in range(0, value_stride, LANES):
            vstore(line, i, vload(line, i, LANES) * factor)
    out = row_address(args, GRAD.out, GRAD.out_strides, batch, head, row, T)
    write_rows(out, row_stride(args, GRAD.out_strides), sums, value_stride, rows, size_v)
    if load(args, GRAD.lse) != 0:
        heads = load(args, GRAD.kv_heads) * load(args, GRAD.group)
        lse = sum_ptr(load(args, GRAD.lse), T) + ((batch * heads + head) * num_rows + row)
        for c in range(0, rows, LANES):
            # of a row without keys: infinity, with which every probability becomes 0
            total, top = vload(totals, c, LANES), vload(tops, c, LANES)
            value = select(top == -INF, INF, top + log(total) * LOG2E)
            vstore_first(lse, c, value, rows - c)


@jit.inline
def forward(args, lo, hi, thread, T):
    """Units [lo, hi): a chunk of the tiles of query rows of one batch and key/value head."""
    chunks, kv_heads, group = load(args, GRAD.chunks), load(args, GRAD.kv_heads), load(args, GRAD.group)
    base = scratch_of(args, thread)
    tiles, num_keys = (load(args, GRAD.num_rows) + TILE - 1) // TILE, load(args, GRAD.num_keys)
    words, _, _, value_stride = strides(args, T)
    keys, values = words_at(args, base, GRAD.key_words, T), words_at(args, base, GRAD.value_words, T)
    begin_tiles(T)
    for unit in range(lo, hi):
        item, chunk = unit // chunks, unit % chunks
        batch, kv_head = item // kv_heads, item % kv_heads
        k = row_address(args, GRAD.k, GRAD.k_strides, batch, kv_head, 0, T)
        v = row_address(args, GRAD.v, GRAD.v_strides, batch, kv_head, 0, T)
        k_step, v_step = row_stride(args, GRAD.k_strides), row_stride(args, GRAD.v_strides)
        pack_keys(keys, words, k, k_step, num_keys, load(args, GRAD.size_qk))
        padded = (num_keys + TILED_KEYS - 1) // TILED_KEYS * TILED_KEYS
        pack_rows(values, value_stride, v, v_step, num_keys, padded, load(args, GRAD.size_v), T)
        for i in range(chunk, tiles * group, chunks):
            tile = i // group
            # Causal tiles grow longer towards the end: in turn from both ends, chunks get equal shares.
            tile = tile // 2 if tile % 2 == 0 else tiles - 1 - tile // 2
            forward_tile(args, batch, kv_head, kv_head * group + i % group, tile * TILE, base, T)
    end_tiles(T)
    return 0


# ---- backward ----------------------------------------------------------------------------------


@jit.inline
def load_statistics(args, batch, head, lse, delta, T):
    """The log-sum-exp of all rows of a head and D = rowsum(dO * O), times the scale; rows of padding weigh nothing."""
    num_rows, size_v, scale = load(args, GRAD.num_rows), load(args, GRAD.size_v), bitcast(load(args, GRAD.scale), F64)
    heads = load(args, GRAD.kv_heads) * load(args, GRAD.group)
    saved = sum_ptr(load(args, GRAD.lse), T) + (batch * heads + head) * num_rows
    for row in range(num_rows):
        out = row_address(args, GRAD.out, GRAD.out_strides, batch, head, row, T)
        grad = row_address(args, GRAD.g, GRAD.g_strides, batch, head, row, T)
        total = fill(0.0, T, LANES)
        i = 0
        while i + LANES <= size_v:
            total = total + vload(out, i, LANES) * vload(grad, i, LANES)
            i += LANES
        if i < size_v:
            total = total + vload_first(out, i, LANES, size_v - i) * vload_first(grad, i, LANES, size_v - i)
        store(delta, row, reduce_add(total) * scale)
        store(lse, row, load(saved, row))
    for row in range(num_rows, (num_rows + TILE - 1) // TILE * TILE):
        store(delta, row, 0.0)
        store(lse, row, INF)


@jit.inline
def pack_head(args, batch, head, base, T):
    """Queries and gradients of the result of one head as words, both ways, tile by tile."""
    num_rows = load(args, GRAD.num_rows)
    words, words_v, stride, stride_v = strides(args, T)
    staging = words_at(args, base, GRAD.staging, T)
    queries, grads = words_at(args, base, GRAD.query_words, T), words_at(args, base, GRAD.grad_words, T)
    query_rows = words_at(args, base, GRAD.query_rows, T)
    grad_rows = words_at(args, base, GRAD.grad_rows, T)
    for row in range(0, num_rows, TILE):
        rows = min(TILE, num_rows - row)
        width = (rows + PANEL - 1) // PANEL * PANEL
        for which in range(2):
            # one call for both, which halves the code
            tensor = GRAD.q if which == 0 else GRAD.g
            steps = GRAD.q_strides if which == 0 else GRAD.g_strides
            source, step = row_address(args, tensor, steps, batch, head, row, T), row_stride(args, steps)
            size = load(args, GRAD.size_qk) if which == 0 else load(args, GRAD.size_v)
            across = stride if which == 0 else stride_v
            along = words if which == 0 else words_v
            packed = (query_rows if which == 0 else grad_rows) + row // depth(T) * across
            turned = (queries if which == 0 else grads) + row * along
            pack_rows(packed, across, source, step, rows, width, size, T)
            turn_rows(turned, width, packed, across, source, step, rows, size, staging, along, T)


@jit.inline
def add_products(left, row_stride, step, right, stride, steps, sums, T):
    """sums[i, :] += sum over k < steps of left[i, k] * right[k, :] for ROWS rows, `stride` columns."""
    ones = sum_ptr(stack(ONES_BYTES), T)
    for i in range(0, ROWS, LANES):
        vstore(ones, i, fill(1.0, T, LANES))
    for i in range(0, stride, PANEL):
        value_tile(left, row_stride, step, right + i, stride, steps, None, ones, sums + i, stride, ROWS, VECTORS)


@jit.inline
def backward_tile(args, batch, head, row, key, base, dq, dk, dv, T):
    """What the rows from `row` on and the packed keys from `key` on add to dQ, dK and dV."""
    num_rows, causal, pair = load(args, GRAD.num_rows), load(args, GRAD.causal) != 0, depth(T)
    words, words_v, stride, stride_v = strides(args, T)
    keys, values = words_at(args, base, GRAD.key_words, T), words_at(args, base, GRAD.value_words, T)
    key_rows = words_at(args, base, GRAD.key_words if pair == 1 and words == stride else GRAD.key_rows, T)
    queries = words_at(args, base, GRAD.query_words, T) + row * words
    grads = words_at(args, base, GRAD.grad_words, T) + row * words_v
    query_rows = words_at(args, base, GRAD.query_rows, T) + row // pair * stride
    grad_rows = words_at(args, base, GRAD.grad_rows, T) + row // pair * stride_v
    lse, delta = sums_at(args, base, GRAD.row_lse, T) + row, sums_at(args, base, GRAD.row_delta, T) + row
    score_address, product_address = stack(SCORE_BYTES), stack(SCORE_BYTES)
    scores, products = sum_ptr(score_address, T), sum_ptr(product_address, T)
    # Pairs are written beside the scores that they are made of, other words in their place.
    prob_address = stack(WORD_BYTES) if pair == 2 else score_address
    grad_address = stack(WORD_BYTES) if pair == 2 else product_address
    pair_address = stack(WORD_BYTES) if pair == 2 else product_address
    probs, ds = word_ptr(prob_address, T), word_ptr(grad_address, T)
    ds_pairs, factors = word_ptr(pair_address, T), sum_ptr(stack(SCORE_BYTES), T)

    rows, count, offset = min(TILE, num_rows - row), min(KEYS, load(args, GRAD.num_keys) - key), row - key
    width = (rows + PANEL - 1) // PANEL * PANEL
    tile_scores(args, keys, words, queries, batch, head, row, rows, key, count, width, scores, T)
    inner = (load(args, GRAD.size_v) + pair - 1) // pair
    scale = bitcast(load(args, GRAD.scale), F64)
    score_tiles(values, words_v, grads, width, inner, scale, products, count, causal, offset)
    dropping = tile_factors(args, factors, batch, head, row, key, count, width, T)
    if by_tiles(probs) and causal and offset < count:  # what no row sees is not written
        clear(probs, count * width // 2)
        clear(ds, count * width // 2)
        clear(ds_pairs, (count + 1) // 2 * width)
    derive_panels(
        scores, products, factors, dropping, probs, ds, ds_pairs, lse, delta, count, width, causal, offset
    )  # fmt: skip
    across = width // pair
    if by_tiles(probs):
        row_tiles(probs, across, count, grad_rows, stride_v, across, dv)
        row_tiles(ds, across, count, query_rows, stride, across, dk)
        for c in range(0, width, LANES):
            vstore(factors, c, fill(1.0, T, LANES))
        value_tiles(ds_pairs, width, key_rows, stride, count, 2, factors, dq)
        return
    for i in range(0, count, ROWS):
        first = max(0, i - offset) if causal else 0
        if first < width:
            place, steps = i * across + first // pair, (width - first) // pair
            g, q = grad_rows + first // pair * stride_v, query_rows + first // pair * stride
            add_products(probs + place, across, 1, g, stride_v, steps, dv + i * stride_v, T)
            add_products(ds + place, across, 1, q, stride, steps, dk + i * stride, T)
    for r in range(0, width, ROWS):
        seen = min(count, offset + r + ROWS) if causal else count
        if seen > 0:
            add_products(ds_pairs + r, 1, width, key_rows, stride, (seen + pair - 1) // pair, dq + r * stride, T)


@jit.inline
def backward_head(args, batch, kv_head, member, chunk, base, dq, T):
    """One query head against a chunk of the keys: dQ into `dq`, and dK and dV after the last head of the group."""
    num_rows, num_keys, group = load(args, GRAD.num_rows), load(args, GRAD.num_keys), load(args, GRAD.group)
    size, size_v = load(args, GRAD.size_qk), load(args, GRAD.size_v)
    words, words_v, stride, stride_v = strides(args, T)
    keys, values = words_at(args, base, GRAD.key_words, T), words_at(args, base, GRAD.value_words, T)
    key_rows = words_at(args, base, GRAD.key_rows, T)
    lse, delta = sums_at(args, base, GRAD.row_lse, T), sums_at(args, base, GRAD.row_delta, T)
    head = kv_head * group + member
    load_statistics(args, batch, head, lse, delta, T)
    pack_head(args, batch, head, base, T)
    clear(dq, (num_rows + TILE - 1) // TILE * TILE * stride)
    for key in range(chunk * KEYS, num_keys, load(args, GRAD.chunks) * KEYS):
        count, kept = min(KEYS, num_keys - key), key if group > 1 else 0
        dk = sums_at(args, base, GRAD.dk_sums, T) + kept * stride
        dv = sums_at(args, base, GRAD.dv_sums, T) + kept * stride_v
        if member == 0:
            clear(dk, KEYS * stride)
            clear(dv, KEYS * stride_v)
        k, k_step = row_address(args, GRAD.k, GRAD.k_strides, batch, kv_head, key, T), row_stride(args, GRAD.k_strides)
        v, v_step = row_address(args, GRAD.v, GRAD.v_strides, batch, kv_head, key, T), row_stride(args, GRAD.v_strides)
        pack_keys(keys, words, k, k_step, count, size)
        pack_keys(values, words_v, v, v_step, count, size_v)
        if depth(T) == 2 or words != stride:  # else keys serve both kinds of products as they are
            pack_rows(key_rows, stride, k, k_step, count, (count + 1) // 2 * 2, size, T)
        for row in range(key if load(args, GRAD.causal) != 0 else 0, num_rows, TILE):
            backward_tile(args, batch, head, row, key, base, dq + row * stride, dk, dv, T)
        if member == group - 1:
            k = row_address(args, GRAD.dk, GRAD.dk_strides, batch, kv_head, key, T)
            v = row_address(args, GRAD.dv, GRAD.dv_strides, batch, kv_head, key, T)
            write_rows(k, row_stride(args, GRAD.dk_strides), dk, stride, count, size)
            write_rows(v, row_stride(args, GRAD.dv_strides), dv, stride_v, count, size_v)


@jit.inline
def backward(args, lo, hi, thread, T):
    """Units [lo, hi): a chunk of the keys of one batch and key/value head."""
    chunks, kv_heads, group = load(args, GRAD.chunks), load(args, GRAD.kv_heads), load(args, GRAD.group)
    base = scratch_of(args, thread)
    num_rows, size = load(args, GRAD.num_rows), load(args, GRAD.size_qk)
    _, _, stride, _ = strides(args, T)
    part = (num_rows + TILE - 1) // TILE * TILE * stride
    heads = load(args, GRAD.batch) * kv_heads * group
    begin_tiles(T)
    for unit in range(lo, hi):
        item, chunk = unit // chunks, unit % chunks
        batch, kv_head = item // kv_heads, item % kv_heads
        for member in range(group):
            dq = sums_at(args, base, GRAD.dq_sums, T)
            if chunks > 1:
                dq = sum_ptr(load(args, GRAD.parts), T) + (chunk * heads + item * group + member) * part
            backward_head(args, batch, kv_head, member, chunk, base, dq, T)
            if chunks == 1:
                out = row_address(args, GRAD.dq, GRAD.dq_strides, batch, kv_head * group + member, 0, T)
                write_rows(out, row_stride(args, GRAD.dq_strides), dq, stride, num_rows, size)
    end_tiles(T)
    return 0


@jit.inline
def join_parts(args, lo, hi, T):
    """dQ of the heads [lo, hi) of [B * H] from the sums of the chunks of keys; arguments as of `backward`."""
    chunks, num_rows, size = load(args, GRAD.chunks), load(args, GRAD.num_rows), load(args, GRAD.size_qk)
    heads = load(args, GRAD.kv_heads) * load(args, GRAD.group)
    _, _, stride, _ = strides(args, T)
    part = (num_rows + TILE - 1) // TILE * TILE * stride
    for head in range(lo, hi):
        sums = sum_ptr(load(args, GRAD.parts), T) + head * part
        for chunk in range(1, chunks):
            more = sums + chunk * load(args, GRAD.batch) * heads * part
            for i in range(0, num_rows * stride, LANES):
                vstore(sums, i, vload(sums, i, LANES) + vload(more, i, LANES))
        batch = head // heads
        out = row_address(args, GRAD.dq, GRAD.dq_strides, batch, head - batch * heads, 0, T)
        write_rows(out, row_stride(args, GRAD.dq_strides), sums, stride, num_rows, size)
    return 0
