"""Sizes of products of few rows that both their kernels and plans know; no Numba here."""

STREAM_WARPS = 8  # of `stream.py`: those that multiply, beside two that bring operands
PACKED_WARPS = 16  # the same of `quant/stream.py`
DIGIT_ROWS = 2  # of x that it takes as integers
STREAM_BANDS = (1, 2, 3, 4)  # of 16 rows of the matrix that a block has at a time
STREAM_PANELS = (1, 2, 3, 4, 7)  # the same of quantised weights
STREAM_BYTES = 226 << 10  # of shared memory
STREAM_STAGES = 24  # at most
STREAM_BARRIERS = 32 * STREAM_STAGES  # bytes of these
AHEAD = 2  # steps of the matrix that are on their way before x is there
PACKED_AHEAD = 2  # the same of quantised weights, whose steps are about half as large
_STEP = 32 << 10  # bytes of the matrix that a step brings, about: the copy engine begins 20 copies a microsecond
_PACKED_STEP = 14 << 10  # bytes of quantised weights that a step brings, at least


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


def float_warps(tokens, bands):
    """Those of `quant/floats.py` that multiply: 18 of a block have 96 registers each, 10 of it 168."""
    return STREAM_WARPS if tokens > 8 and bands > 2 else 2 * STREAM_WARPS


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


def digit_bytes(rows, k):
    """Bytes of x as digits, beside it: of up to DIGIT_ROWS rows."""
    return -(-3 * rows * k // 1024) * 1024


def panel_step(k, units_each, band_bytes, panels, warps, rows):
    """Slabs of 64 of k in a step of `panels` of a weight: they divide k, and have whole records of `units_each` units;
    0 where there are none. `band_bytes` are those of 64 of k of a panel; of x so many `rows` come with a step. The
    fewest that give all warps a unit of 32 and the copy engine enough to do: nothing hides what the last step takes.
    """
    whole = [n for n in (4, 8, 16, 32, 64) if k % (64 * n) == 0 and 2 * n % units_each == 0 and n * band_bytes <= _STEP]
    fit = [n for n in whole if n == 4 or n * (panels * band_bytes + 128 * rows) <= 2 * _STEP]
    enough = (n for n in fit if 2 * n >= warps and n * panels * band_bytes >= _PACKED_STEP)
    return next(enough, fit[-1] if fit else 0)
