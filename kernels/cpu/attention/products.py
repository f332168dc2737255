"""The two products of a tile of attention: by vectors, or by tile registers where bfloat16 has them (`gemm/amx.py`).

Words as of `tiles.py`: an int32 is a pair of bfloat16. Keys [key, word] and transposed queries [word, row] are what a
step of tiles reads, and so are values [pair of keys, element]; only the weights are turned to [row, pair].
"""

from numba import types

from ...build import rates
from ...lang.by_type import by_type
from ...lang.lowp import bfloat16, float16_pairs
from ...lang.rows import clear
from ...lang.shuffle import transpose_tile
from ...lang.simd import address, load, ptr, stack, vload, vstore
from ...lang.tile_registers import HALF, ROW, begin, release, tile_sums
from ..gemm.amx import LINE_BYTES, PAIRS
from .sizes import KEYS, LANES, PANEL, ROWS, TILE, VECTORS
from .tiles import score_tile, value_tile

CHOICES = rates.choices()
INT32, UINT32, F32, I64 = types.int32, types.uint32, types.float32, types.int64
# The words that tile registers multiply (`tiles.py: PAIRED`), and as what.
KINDS = {INT32: bfloat16} if CHOICES.tiles else {}
KINDS |= {UINT32: float16_pairs} if CHOICES.float16_tiles else {}
TURNED_BYTES = 4 * TILE * KEYS // 2


@by_type
def score_tiles(keys, key_stride, queries, width, words, scale, scores, count):
    """scores[i, r] = scale * sum over d < words of keys[i, d] * queries[d, r] for i < count, r < width.

    Rows of scores up to the next multiple of 16 may be written too.
    """
    kind = KINDS.get(keys.dtype)
    if kind is None:

        def by_vectors(keys, key_stride, queries, width, words, scale, scores, count):
            for i in range(0, count, ROWS):
                for c in range(0, width, PANEL):
                    at = scores + (i * width + c)
                    score_tile(keys + i * key_stride, key_stride, queries + c, width, words, scale, at, ROWS, VECTORS)

        return by_vectors

    def by_tiles(keys, key_stride, queries, width, words, scale, scores, count):
        nothing, none = ptr(stack(LINE_BYTES), F32), (I64(0), I64(0))
        clear(nothing, 2 * HALF)
        steps, factor = key_stride // PAIRS, F32(scale)
        a_strides, b_strides = (4 * key_stride, 4 * HALF * key_stride, I64(ROW)), (4 * width, 4 * PAIRS * width)
        for i in range(0, count, 2 * HALF):
            a = address(keys + i * key_stride)
            for c in range(0, width, PANEL):
                at, b = scores + (i * width + c), queries + c
                if count - i > HALF:
                    tile_sums(kind, a, a_strides, b, b_strides, none, nothing, 0, at, 4 * width, steps, 0, 2, 2)
                else:
                    tile_sums(kind, a, a_strides, b, b_strides, none, nothing, 0, at, 4 * width, steps, 0, 1, 2)
        for i in range(0, count * width, LANES):
            vstore(scores, i, vload(scores, i, LANES) * factor)

    return by_tiles


@by_type
def row_tiles(left, stride, count, right, right_stride, depth, sums):
    """sums[i, :] += sum over words k < `depth` of left[i, k] * right[k, :] for i < count, by tile registers.

    `depth` is a multiple of 16. Rows of `left` and of sums up to the next multiple of 16 exist, and hold anything.
    """
    kind = KINDS.get(left.dtype)
    if kind is None:
        return lambda left, stride, count, right, right_stride, depth, sums: None

    def implementation(left, stride, count, right, right_stride, depth, sums):
        none, steps, row = (I64(0), I64(0)), depth // PAIRS, 4 * right_stride
        a_strides, b_strides = (4 * stride, 4 * HALF * stride, I64(ROW)), (4 * right_stride, 4 * PAIRS * right_stride)
        for i in range(0, count, 2 * HALF):
            a = address(left + i * stride)
            for c in range(0, right_stride, PANEL):
                at, b = sums + (i * right_stride + c), right + c
                if count - i > HALF:
                    tile_sums(kind, a, a_strides, b, b_strides, none, at, row, at, row, steps, 0, 2, 2)
                else:
                    tile_sums(kind, a, a_strides, b, b_strides, none, at, row, at, row, steps, 0, 1, 2)

    return implementation


@by_type
def value_tiles(weights, width, values, value_stride, count, pair, decay, sums):
    """sums[r, :] = decay[r] * sums[r, :] + sum over keys k < count of weights[k, r] * values[k, :] for r < width.

    `pair` is how many keys a word holds. Words of weights and values up to the next multiple of 16 may be zeroed.
    """
    kind, word = KINDS.get(values.dtype), values.dtype
    if kind is None:

        def by_vectors(weights, width, values, value_stride, count, pair, decay, sums):
            steps = (count + pair - 1) // pair
            for i in range(0, value_stride, PANEL):
                for c in range(0, width, ROWS):
                    value_tile(
                        weights + c, 1, width, values + i, value_stride, steps, None, decay + c,
                        sums + (c * value_stride + i), value_stride, ROWS, VECTORS,
                    )  # fmt: skip

        return by_vectors

    def by_tiles(weights, width, values, value_stride, count, pair, decay, sums):
        steps = (count + 2 * PAIRS - 1) // (2 * PAIRS)
        deep, turned = PAIRS * steps, ptr(stack(TURNED_BYTES), word)
        for q in range((count + 1) // 2, deep):
            clear(weights + q * width, width)
            clear(values + q * value_stride, value_stride)
        for c in range(0, width, HALF):
            for q in range(0, deep, PAIRS):
                transpose_tile(turned + (c * deep + q), deep, weights + (q * width + c), width, LANES)
        for r in range(width):
            kept = load(decay, r)
            if kept != 1.0:
                for i in range(0, value_stride, LANES):
                    at = r * value_stride + i
                    vstore(sums, at, vload(sums, at, LANES) * kept)
        row_tiles(turned, deep, width, values, value_stride, deep, sums)

    return by_tiles


@by_type
def by_tiles(words):
    """Whether tile registers multiply words of this type."""
    tiled = words.dtype in KINDS
    return lambda words: tiled


@by_type
def begin_tiles(T):
    """Make tile registers ready, if products of T use them."""
    if T.instance_type in KINDS.values():
        return lambda T: begin()
    return lambda T: None


@by_type
def end_tiles(T):
    """Let go of what `begin_tiles` made ready."""
    if T.instance_type in KINDS.values():
        return lambda T: release()
    return lambda T: None
