"""Sizes of products of few rows that both their kernels and plans know; no Numba here."""

STREAM_WARPS = 8  # of `stream.py`: those that multiply, beside two that bring operands
PACKED_WARPS = {8: 16, 16: 8}  # of `quant/stream.py`, by the rows of x that there may be
STREAM_BANDS = (1, 2, 3, 4)  # of 16 rows of the matrix that a block has at a time
STREAM_PANELS = (1, 2, 3, 4, 7)  # the same of quantised weights
STREAM_BYTES = 226 << 10  # of shared memory
STREAM_STAGES = 24  # at most
STREAM_BARRIERS = 32 * STREAM_STAGES  # bytes of these
AHEAD = 2  # steps of the matrix that are on their way before x is there
PACKED_AHEAD = 1  # of quantised weights: a token of Llama 8B's shape in int4 takes 2,043 us so, 2,063 with two (H200)
_STEP = 32 << 10  # bytes of the matrix that a step brings, about: the copy engine begins 20 copies a microsecond


def share_of(rows, most, unit, blocks):
    """How many of so many rows, whole units, a block has at a time, `most` at most: all blocks have about as many."""
    found, least = [], -(-rows // (blocks * most))
    for turns in range(least, least + 4):
        share = -(-rows // (blocks * turns * unit)) * unit
        found.append((turns * share, turns, share))
    return min(found)[2]


def stream_head(tokens, bands):
    """Bytes of the barriers and of the sums of all warps, which lie before the ring."""
    return -(-(STREAM_BARRIERS + 4 * STREAM_WARPS * tokens * (16 * bands + 4)) // 1024) * 1024


def rounded(nbytes):
    """In whole patterns of the swizzle."""
    return -(-nbytes // 1024) * 1024


def whole_bytes(rows, k):
    """Bytes of x, where it lies beside the ring; 0 where steps bring it."""
    nbytes = rounded(2 * rows * k)
    return nbytes if nbytes <= _STEP and k <= 64 * 256 else 0


def stages_of(room, stage):
    """How many stages fit."""
    return min(STREAM_STAGES, room // stage)


def stream_ring(head, share, rows, k):
    """(slabs of 64 of k in a step, stages) of the ring for `share` rows of the matrix and `rows` of x at a time.

    What the last band reads behind its rows lies in shared memory, too.
    """
    slabs, whole = max(4, min(_STEP // (128 * share), k // 64) // 4 * 4), whole_bytes(rows, k)
    stage = rounded(slabs * 128 * (share + (0 if whole else rows)))
    return slabs, stages_of(STREAM_BYTES - head - whole - 1024, stage)


def panel_step(k, units_each, band_bytes, panels, tokens, rows):
    """Slabs of 64 of k in a step of `panels` of a weight: they divide k, and have whole records of `units_each` units;
    0 where there are none. `band_bytes` are those of 64 of k of a panel; of `tokens` rows of x `rows` come with a step.
    """
    least = PACKED_WARPS[8 if tokens <= 8 else 16] // 2  # that give all warps a unit
    for slabs in (64, 32, 16, 8, 4):
        small = slabs * panels * band_bytes <= _STEP and slabs * (panels * band_bytes + 128 * rows) <= 3 * _STEP // 2
        if k % (64 * slabs) == 0 and 2 * slabs % units_each == 0 and (small or slabs <= least):
            return slabs
    return 0
