"""Sizes of the tiles of attention, and how its scratch memory is cut.

Plain Python, which both the kernels and the plans that launch them read: no Numba here.
"""

from ...build import isa

LANES = isa.lanes()
WIDE_FILE = isa.vector_bytes() == 64 or "neon" in isa.features()  # 32 vector registers, else 16
ROWS = 8 if WIDE_FILE else 4  # tile of sums of a product: ROWS x VECTORS registers
VECTORS = 2
PANEL = VECTORS * LANES

FEW = 16  # rows up to which keys are streamed: a tile costs about as much as this many rows
WIDTHS = (4, 8, 16)  # what a number of streamed rows is padded to
FEW_KEYS = 8  # keys scored at a time: whole registers of scores, and pairs of them
FEW_ROWS, FEW_SUMS = (8, 16) if WIDE_FILE else (4, 8)  # rows, and registers of sums, of a product with values
STREAM = 64  # keys that are scored, weighed and added at a time: the next ones are on their way meanwhile
CUT = 64  # shares of the keys are multiples of this many

KEYS = 64  # keys in a tile, at most
TILE = 64  # rows in a tile, at most
# Scratch on the stack: 240 KiB and two small tiles. A head size of 64 touches a third of it.
QUERY_BYTES = SUM_BYTES = 72 * 1024
KEY_BYTES = VALUE_BYTES = 48 * 1024
MAX_SIZE = QUERY_BYTES // WIDTHS[0] - 8 * PANEL  # bytes of a head, as float32 or float64


def _up(value, unit):
    return -(-value // unit) * unit


def tile_rows(size_qk, size_v, word):
    """Query rows of a tile; 0 where even a tile of one panel does not fit (more than 576 float32 wide).

    `word` are the bytes of a sum, here and below: 4, or 8 for float64.
    """
    size = _up(max(size_qk, size_v), PANEL)
    fitting = QUERY_BYTES // (size * word)
    return min(TILE, fitting // PANEL * PANEL)


def few_width(rows, size_qk, size_v, word):
    """What `rows` streamed rows are padded to, so that their queries and sums fit."""
    size = (max(size_qk, size_v) + PANEL) * word
    fitting = [width for width in WIDTHS if width * size <= QUERY_BYTES]
    return next((width for width in fitting if width >= rows), fitting[-1])


def slot_bytes(width, size_v, word):
    """Scratch of one share of keys: sums, maxima and totals of its rows."""
    return width * (_up(size_v, PANEL) + 2) * word


# ---- training ----------------------------------------------------------------------------------


def _strides(size, pair):
    """(words of a row that is read along its elements, elements of a row that is read across)."""
    return _up(-(-size // pair), LANES), _up(size, PANEL)


def _offsets(word, **sizes):
    """({area: its offset in bytes}, the end) of areas of so many words."""
    offsets, at = {}, 0
    for name, size in sizes.items():
        offsets[name] = at
        at += _up(size * word, 64)
    return offsets, _up(at, 4096) + 64  # at a distance of a power of two threads would use the same lines of caches


def forward_areas(num_keys, size_qk, size_v, word, pair):
    """The areas of a thread's scratch and its bytes, for words of so many bytes that hold `pair` elements."""
    (qk, _), (_, v_row) = _strides(size_qk, pair), _strides(size_v, pair)
    keys = _up(num_keys, KEYS)
    return _offsets(
        word, key_words=keys * qk, value_words=keys // pair * v_row, staging=LANES * qk, query_words=TILE * qk,
        sums=TILE * v_row,
    )  # fmt: skip


def backward_areas(num_rows, num_keys, group, size_qk, size_v, word, pair):
    """As `forward_areas`, for the backward pass."""
    (qk, qk_row), (v, v_row) = _strides(size_qk, pair), _strides(size_v, pair)
    rows, keys = _up(num_rows, TILE), KEYS if group == 1 else _up(num_keys, KEYS)
    return _offsets(
        word, key_words=KEYS * qk, value_words=KEYS * v, staging=LANES * max(qk, v), query_words=rows * qk,
        grad_words=rows * v, key_rows=KEYS // pair * qk_row, query_rows=rows // pair * qk_row,
        grad_rows=rows // pair * v_row, row_lse=rows, row_delta=rows, dq_sums=rows * qk_row, dk_sums=keys * qk_row,
        dv_sums=keys * v_row,
    )  # fmt: skip


def part_elements(num_rows, size_qk):
    """Elements of the gradient of one head's queries in a chunk's sums."""
    return _up(num_rows, TILE) * _up(size_qk, PANEL)
