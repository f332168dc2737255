"""The argument block of attention for training, and how its scratch memory is cut.

Plain Python, which both the kernels and the ops that launch them read: no Numba here.
"""

import functools

from .block import KEYS, LANES, PANEL, TILE

# Entries of the block. Strides are in elements, of the batch, the head and the row; last dims are contiguous.
(
    Q, Q_BATCH, Q_HEAD, Q_ROW,
    K, K_BATCH, K_HEAD, K_ROW,
    V, V_BATCH, V_HEAD, V_ROW,
    OUT, OUT_BATCH, OUT_HEAD, OUT_ROW,
    GRAD, GRAD_BATCH, GRAD_HEAD, GRAD_ROW,  # gradient of the result
    DQ, DQ_BATCH, DQ_HEAD, DQ_ROW,
    DK, DK_BATCH, DK_HEAD, DK_ROW,
    DV, DV_BATCH, DV_HEAD, DV_ROW,
    MASK, MASK_BATCH, MASK_HEAD, MASK_ROW,  # 0: none
    MASK_BYTES,  # of an element: 1 for bools, else floats of the dtype of sums
    LSE,  # contiguous [B, H, S]: log2 of the sum of 2^score, or 0 (forward: not wanted)
    BATCH, KV_HEADS, GROUP, NUM_ROWS, NUM_KEYS, SIZE_QK, SIZE_V,
    SCALE, CAUSAL,  # row i sees the keys up to i
    DROPOUT, SEED,  # the probability of zero (bits of a float64), the seed
    CHUNKS,  # units of work for each batch and key/value head
    SCRATCH, SLICE_BYTES, SLICE_ITEMS,  # the slice of a unit is that of the first unit of its launch part
    PARTS,  # backward with several chunks: gradients of the queries, one sum for each chunk
    # Offsets of the areas of a slice, in bytes. Keys and values as words, room to turn rows, queries turned;
    KEY_WORDS, VALUE_WORDS, STAGING, QUERY_WORDS,
    # in the backward pass also gradients of the result, keys, queries and gradients to be read across, statistics
    # of rows, and sums. The forward pass has its sums for one tile in the place of GRAD_WORDS.
    GRAD_WORDS, KEY_ROWS, QUERY_ROWS, GRAD_ROWS, ROW_LSE, ROW_DELTA, DQ_SUMS, DK_SUMS, DV_SUMS,
) = range(67)  # fmt: skip

SUMS = GRAD_WORDS

_MIN_UNITS = 32  # of the backward pass: below, keys are cut into chunks of at least _MIN_BLOCKS tiles
_MIN_BLOCKS = 4


def _up(value, unit):
    return -(-value // unit) * unit


def _strides(size, pair):
    """(words of a row that is read along its elements, elements of a row that is read across)."""
    return _up(-(-size // pair), LANES), _up(size, PANEL)


def _offsets(sizes, word):
    """(offsets in bytes of areas of so many words, their end)."""
    offsets, at = [], 0
    for size in sizes:
        offsets.append(at)
        at += _up(size * word, 64)
    return tuple(offsets), _up(at, 4096) + 64  # slices of a power of two would meet in the same cache lines


@functools.lru_cache(maxsize=1024)
def forward_areas(num_keys, size_qk, size_v, word, pair):
    """Offsets KEY_WORDS to SUMS and the bytes of a slice, for words of so many bytes that hold `pair` elements."""
    (qk, _), (_, v_row) = _strides(size_qk, pair), _strides(size_v, pair)
    keys = _up(num_keys, KEYS)
    return _offsets((keys * qk, keys // pair * v_row, LANES * qk, TILE * qk, TILE * v_row), word)


@functools.lru_cache(maxsize=1024)
def backward_areas(num_rows, num_keys, group, size_qk, size_v, word, pair):
    """Offsets KEY_WORDS to DV_SUMS and the bytes of a slice."""
    (qk, qk_row), (v, v_row) = _strides(size_qk, pair), _strides(size_v, pair)
    rows, keys = _up(num_rows, TILE), KEYS if group == 1 else _up(num_keys, KEYS)
    sizes = (
        KEYS * qk, KEYS * v, LANES * max(qk, v), rows * qk, rows * v, KEYS // pair * qk_row, rows // pair * qk_row,
        rows // pair * v_row, rows, rows, rows * qk_row, keys * qk_row, keys * v_row,
    )  # fmt: skip
    return _offsets(sizes, word)


def part_elements(num_rows, size_qk):
    """Elements of the gradient of one head's queries in a chunk's sums."""
    return _up(num_rows, TILE) * _up(size_qk, PANEL)


def backward_chunks(heads, num_keys):
    """Chunks that the keys of each of `heads` (batch times key/value heads) are cut into.

    It does not depend on the number of threads, so that results do not either.
    """
    blocks = -(-num_keys // KEYS)
    return max(1, min(blocks // _MIN_BLOCKS, -(-_MIN_UNITS // max(1, heads))))
