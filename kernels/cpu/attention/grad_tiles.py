"""Tiles of attention for training: packing, masks, dropout, and what becomes of a tile of scores.

As in `tiles.py`, a tile of scores has keys down and query rows across the lanes, so that neither the
softmax nor its derivative adds across lanes. Tiles begin at multiples of 64 rows and keys, and hold a panel of
rows (two registers) at a time. Where the mask is causal, a panel sees the keys up to its last row: what lies
beyond is not computed, and never read.
"""

from numba import types

from ...build import jit
from ...lang.by_type import by_type
from ...lang.philox import philox
from ...lang.rows import clear
from ...lang.shuffle import transpose_tile
from ...lang.simd import address, fill, ptr, ramp, select, stack, vload, vload_first, vstore, vstore_first
from ..gemm.microkernel import depth, sum_ptr
from . import products
from .products import by_tiles
from .sizes import LANES, PANEL, ROWS, VECTORS
from .tiles import (
    INF,
    LOG2E,
    PAIRED,
    as_words,
    exp2_below,
    pack_row,
    pack_two_rows,
    pair_words,
    score_tile,
    softmax_rows,
)

INT32, U64 = types.int32, types.uint64
BIAS_BYTES = 8 * LANES * LANES


# ---- packing -----------------------------------------------------------------------------------


@jit.inline
def pack_keys(words, stride, source, source_stride, count, size):
    """Rows as words, with zero rows up to a multiple of ROWS."""
    for i in range(count):
        pack_row(words + i * stride, source + i * source_stride, size, 1.0)
    for i in range(count, (count + ROWS - 1) // ROWS * ROWS):
        clear(words + i * stride, stride)


@jit.inline
def pack_rows(rows, stride, source, source_stride, count, padded, size, T):
    """Rows to be read across, in pairs where words are pairs, with zero rows up to `padded` (even)."""
    for i in range(0, padded, 2):
        if i >= count:
            clear(rows + i // depth(T) * stride, stride)
            clear(rows + (i + 1) // depth(T) * stride, stride)
        else:
            odd = i + 1 == count
            first = source + i * source_stride
            second = first if odd else source + (i + 1) * source_stride
            pack_two_rows(rows, stride, i // 2, first, second, 0 if odd else -1, size, 1.0, 1.0)
            if odd and depth(T) == 1:
                clear(rows + (i + 1) * stride, stride)


@jit.inline
def pack_columns(words, source, source_stride, count, width, size, staging, stride):
    """Rows as words, transposed to [word, row], with zeros up to `width` rows."""
    for start in range(0, width, LANES):
        for i in range(LANES):
            if start + i < count:
                pack_row(staging + i * stride, source + (start + i) * source_stride, size, 1.0)
            else:
                clear(staging + i * stride, stride)
        for i in range(0, stride, LANES):
            transpose_tile(words + (i * width + start), width, staging + i, stride, LANES)


@jit.inline
def turn_rows(words, width, rows, row_stride, source, source_stride, count, size, staging, stride, T):
    """As `pack_columns`, of rows that `pack_rows` has packed: they are not read again, unless they are pairs."""
    if depth(T) == 1:
        for start in range(0, width, LANES):
            for i in range(0, stride, LANES):
                transpose_tile(words + (i * width + start), width, rows + (start * row_stride + i), row_stride, LANES)
    else:
        pack_columns(words, source, source_stride, count, width, size, staging, stride)


@jit.inline
def write_rows(out, out_stride, sums, stride, count, size):
    """Round rows of sums and store them."""
    for r in range(count):
        row, source = out + r * out_stride, sums + r * stride
        i = 0
        while i + LANES <= size:
            vstore(row, i, vload(source, i, LANES))
            i += LANES
        if i < size:
            vstore_first(row, i, vload(source, i, LANES), size - i)


# ---- scores ------------------------------------------------------------------------------------


@jit.inline
def seen_keys(causal, column, count, offset):
    """How many of a tile's `count` keys the panel of rows at `column` sees; `offset` is first row - first key."""
    if causal:
        return max(0, min(count, offset + column + PANEL))
    return count


@jit.inline
def score_tiles(keys, key_stride, queries, width, words, factor, scores, count, causal, offset):
    """Products of a tile of keys with a tile of queries, where a panel sees any of ROWS keys; all by tile registers."""
    if by_tiles(keys):
        products.score_tiles(keys, key_stride, queries, width, words, factor, scores, count)
        return
    for c in range(0, width, PANEL):
        seen = seen_keys(causal, c, count, offset)
        for i in range(0, seen, ROWS):
            score_tile(
                keys + i * key_stride, key_stride, queries + c, width, words, factor, scores + (i * width + c),
                ROWS, VECTORS,
            )  # fmt: skip


@jit.inline
def hide_later(scores, width, count, offset):
    """-inf for the keys after a row, in the tiles on the diagonal."""
    for c in range(0, width, PANEL):
        seen = seen_keys(True, c, count, offset)
        for column in range(c, c + PANEL, LANES):
            position = ramp(offset + column, INT32, LANES)
            for j in range(max(0, offset + column + 1), seen):
                x = vload(scores, j * width + column, LANES)
                vstore(scores, j * width + column, select(position < j, -INF, x))


@jit.inline
def add_mask(scores, hidden, bias, stride, rows, count, width, T):
    """Mask a tile of scores; rows beyond the last repeat it.

    At the address of `bias`, [row, key] with rows `stride` apart, are numbers to add to the scores, or, with `hidden`,
    bools: True for what is visible.
    """
    tile, turned = sum_ptr(stack(BIAS_BYTES), T), sum_ptr(stack(BIAS_BYTES), T)
    visible = ptr(address(bias), types.boolean)
    for column in range(0, width, LANES):
        for j in range(0, count, LANES):
            valid = min(LANES, count - j)
            for i in range(LANES):
                at = min(column + i, rows - 1) * stride + j
                if hidden:
                    value = select(vload_first(visible, at, LANES, valid), fill(0.0, T, LANES), -INF)
                else:
                    value = vload_first(bias, at, LANES, valid) * LOG2E
                vstore(tile, i * LANES, value)
            transpose_tile(turned, LANES, tile, LANES, LANES)
            for i in range(valid):
                at = (j + i) * width + column
                vstore(scores, at, vload(scores, at, LANES) + vload(turned, i * LANES, LANES))


@jit.inline
def drop_tile(factors, row, first_key, count, width, seed, probability, T):
    """factors[key, row]: 0 with a probability, else 1 / (1 - probability).

    A number of Philox belongs to the row `row` + i of [B * H * S] and to the key, four keys to a counter; so it
    depends on the seed and the place alone.
    """
    kept = 1.0 / (1.0 - probability)
    limit = U64(probability * 4294967296.0)
    for column in range(0, width, LANES):
        place = ramp(row + column, U64, LANES)
        for j in range(0, count, 4):
            numbers = philox(place, (first_key + j) // 4, seed)
            for i in range(4):
                vstore(factors, (j + i) * width + column, select(numbers[i] < limit, fill(0.0, T, LANES), kept))


# ---- softmax -----------------------------------------------------------------------------------


@jit.inline
def softmax_panels(scores, weights, factors, dropping, tops, totals, decay, count, width, causal, offset):
    """`softmax_rows` of all rows of a tile, each panel over the keys that it sees."""
    for c in range(0, width, PANEL):
        seen = seen_keys(causal, c, count, offset)
        for column in range(c, c + PANEL, LANES):
            softmax_rows(scores, weights, factors, dropping, tops, totals, decay, seen, width, column)


@jit.inline
def clear_unseen(weights, width, count, causal, offset):
    """Zero the words of weights, pairs of keys, that `softmax_panels` has not written."""
    for c in range(0, width, PANEL):
        for pair in range((seen_keys(causal, c, count, offset) + 1) // 2, (count + 1) // 2):
            clear(weights + (pair * width + c), PANEL)


@by_type
def store_block(probs, grads, grad_pairs, j, column, width, p, s):
    """Store two rows (keys j, j + 1) of two registers each of probabilities `p` and score gradients `s`.

    Words of pairs are stored as pairs of neighbouring rows of queries, and score gradients also as pairs of keys;
    others are stored as they are, once.
    """
    word = probs.dtype
    if word not in PAIRED:

        def plain(probs, grads, grad_pairs, j, column, width, p, s):
            at = j * width + column
            vstore(probs, at, p[0])
            vstore(probs, at + LANES, p[1])
            vstore(probs, at + width, p[2])
            vstore(probs, at + width + LANES, p[3])
            vstore(grads, at, s[0])
            vstore(grads, at + LANES, s[1])
            vstore(grads, at + width, s[2])
            vstore(grads, at + width + LANES, s[3])

        return plain

    def words(probs, grads, grad_pairs, j, column, width, p, s):
        half = width // 2
        at = j * half + column // 2
        vstore(probs, at, as_words(p[0], p[1], word))
        vstore(probs, at + half, as_words(p[2], p[3], word))
        vstore(grads, at, as_words(s[0], s[1], word))
        vstore(grads, at + half, as_words(s[2], s[3], word))
        vstore(grad_pairs, half * j + column, pair_words(s[0], s[2], word))
        vstore(grad_pairs, half * j + column + LANES, pair_words(s[1], s[3], word))

    return words


@jit.inline
def derive_panels(
    scores, products, factors, dropping, probs, grads, grad_pairs, lse, delta, count, width, causal, offset
):  # fmt: skip
    """P = 2^(scores - lse) and dS = P * (dP - delta) of a tile, from scores and `products` = dP.

    `probs` and `grads` may be `scores` and `products`. With `factors` Z: P Z and P (dP Z - delta). An odd tile
    needs one more row of scores, of -inf, and of products.
    """
    for c in range(0, width, PANEL):
        seen = seen_keys(causal, c, count, offset)
        log0, log1 = vload(lse, c, LANES), vload(lse, c + LANES, LANES)
        delta0, delta1 = vload(delta, c, LANES), vload(delta, c + LANES, LANES)
        for j in range(0, seen, 2):
            at = j * width + c
            p0 = exp2_below(vload(scores, at, LANES) - log0)
            p1 = exp2_below(vload(scores, at + LANES, LANES) - log1)
            p2 = exp2_below(vload(scores, at + width, LANES) - log0)
            p3 = exp2_below(vload(scores, at + width + LANES, LANES) - log1)
            d0, d1 = vload(products, at, LANES), vload(products, at + LANES, LANES)
            d2, d3 = vload(products, at + width, LANES), vload(products, at + width + LANES, LANES)
            if dropping:
                z0, z1 = vload(factors, at, LANES), vload(factors, at + LANES, LANES)
                z2, z3 = vload(factors, at + width, LANES), vload(factors, at + width + LANES, LANES)
                s = p0 * (d0 * z0 - delta0), p1 * (d1 * z1 - delta1), p2 * (d2 * z2 - delta0), p3 * (d3 * z3 - delta1)
                p = p0 * z0, p1 * z1, p2 * z2, p3 * z3
            else:
                s = p0 * (d0 - delta0), p1 * (d1 - delta1), p2 * (d2 - delta0), p3 * (d3 - delta1)
                p = p0, p1, p2, p3
            store_block(probs, grads, grad_pairs, j, c, width, p, s)
