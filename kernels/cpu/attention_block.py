"""The argument block of attention and the sizes of its tiles.

Plain Python, which both the kernels and the ops that launch them read: no Numba here.
"""

from .. import isa

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
    NUM_SEQS, GROUP, SIZE_QK, SIZE_V,
    SCALE, CAUSAL, WINDOW,  # CAUSAL: 0 no, 1 the last query sees the last key, 2 query i sees key i
    SLOPES, SLOPES_STRIDE,  # ALiBi, or 0
    TILE_ROWS, NUM_TILES,  # query rows of a unit; units for each key/value head
    PART,  # 0 all sequences, 1 those of at most FEW rows, 2 the others
) = range(44)  # fmt: skip

BAD_LENGTH, BAD_BLOCK, BAD_Q_STARTS, BAD_KV_STARTS = 1, 2, 3, 4  # error codes

LANES = isa.lanes()
WIDE_FILE = isa.vector_bytes() == 64 or "neon" in isa.features()  # 32 vector registers, else 16
ROWS = 8 if WIDE_FILE else 4  # tile of sums of a product: ROWS x VECTORS registers
VECTORS = 2
PANEL = VECTORS * LANES

FEW = 16  # rows up to which keys are streamed: a tile costs about as much as this many rows
KEYS = 64  # keys in a tile, at most
TILE = 64  # rows in a tile, at most
# Scratch on the stack: 240 KiB and two small tiles. A head size of 64 touches a third of it.
QUERY_BYTES = SUM_BYTES = 72 * 1024
KEY_BYTES = VALUE_BYTES = 48 * 1024
MAX_SIZE = QUERY_BYTES - 4 * PANEL  # bytes of a head, as float32 or float64


def tile_rows(size_qk, size_v, itemsize):
    """Query rows of a tile; 0 where even a tile of one panel does not fit (more than 576 float32 wide)."""
    size = -(-max(size_qk, size_v) // PANEL) * PANEL
    fitting = QUERY_BYTES // (size * max(4, itemsize))
    return min(TILE, fitting // PANEL * PANEL)
