"""The argument block of attention and the sizes of its tiles.

Plain Python, which both the kernels and the ops that launch them read: no Numba here.
"""

from ...build import isa

# Entries of the block. Strides are in elements. An index array is its address, the bytes of an element
# and its stride; a mode of its own where the address is 0.
(
    Q, Q_SEQ, Q_TOKEN, Q_HEAD,
    OUT, OUT_SEQ, OUT_TOKEN, OUT_HEAD,
    K, K_BLOCK, K_TOKEN, K_HEAD,
    V, V_BLOCK, V_TOKEN, V_HEAD,
    NUM_BLOCKS, BLOCK_SIZE,  # blocks that exist, tokens in each
    TABLE, TABLE_BYTES, TABLE_SEQ, TABLE_BLOCK, TABLE_WIDTH,  # TABLE 0: the block of a sequence is its number
    STARTS, STARTS_BYTES, STARTS_STRIDE,  # cu_seqlens_q; 0: every sequence has Q_LEN tokens
    Q_LEN,  # tokens of a sequence, or of all with STARTS
    LENS, LENS_BYTES, LENS_STRIDE,  # keys of each sequence; 0: all have KV_LEN
    LENS_ARE_STARTS,  # LENS are cu_seqlens_k: differences count keys, and without a table they place them
    KV_LEN,
    NUM_SEQS, KV_HEADS, GROUP, SIZE_QK, SIZE_V,
    SCALE, CAUSAL, WINDOW,  # CAUSAL: 0 no, 1 the last query sees the last key, 2 query i sees key i
    SLOPES, SLOPES_STRIDE,  # ALiBi, or 0
    TILE_ROWS, NUM_TILES,  # query rows of a unit; units for each key/value head
    PART,  # 0 all sequences, 1 those of at most FEW rows, 2 the others
    K_SCALE, K_SCALE_BLOCK, K_SCALE_TOKEN, K_SCALE_HEAD,  # float32 factors of int8 keys and values, or 0
    V_SCALE, V_SCALE_BLOCK, V_SCALE_TOKEN, V_SCALE_HEAD,
    UNITS, SCRATCH, SLOT_BYTES,  # decode: shares of the keys, and where those that end within a row leave their sums
) = range(56)  # fmt: skip

BAD_LENGTH, BAD_BLOCK, BAD_Q_STARTS, BAD_KV_STARTS = 1, 2, 3, 4  # error codes

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


def tile_rows(size_qk, size_v, itemsize):
    """Query rows of a tile; 0 where even a tile of one panel does not fit (more than 576 float32 wide)."""
    size = -(-max(size_qk, size_v) // PANEL) * PANEL
    fitting = QUERY_BYTES // (size * max(4, itemsize))
    return min(TILE, fitting // PANEL * PANEL)


def few_width(rows, size_qk, size_v, itemsize):
    """What `rows` streamed rows are padded to, so that their queries and sums fit."""
    size = (max(size_qk, size_v) + PANEL) * max(4, itemsize)
    fitting = [width for width in WIDTHS if width * size <= QUERY_BYTES]
    return next((width for width in fitting if width >= rows), fitting[-1])


def slot_bytes(width, size_v, itemsize):
    """Scratch of one share of keys: sums, maxima and totals of its rows."""
    return width * (-(-size_v // PANEL) * PANEL + 2) * max(4, itemsize)
