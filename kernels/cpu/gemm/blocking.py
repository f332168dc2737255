"""Sizes of the blocked matrix product: register tiles, panels, cache blocks, and the cut into tiles.

Plain Python, which both kernels and the plans that launch them read: no Numba here.
"""

from typing import NamedTuple

from ...build import isa, rates

LANES = isa.lanes()
_WIDE_FILE = isa.vector_bytes() == 64 or "neon" in isa.features()  # 32 vector registers, else 16

# A register tile of sums: 14 x 2 vectors leave room for 2 vectors of B and one of A among 32.
ROWS = 14 if _WIDE_FILE else 6 if LANES == 8 else 4
SHORT_ROWS = 4 if _WIDE_FILE else 3 if LANES == 8 else 2  # of the tile for the last rows of a matrix
VECTORS = 2

GROUP = 8  # rows of a matrix at a time, by dot products with a few vectors (gemv.py)
# Dot products: 8 rows with 2 vectors, 4 with 4; half as many rows where registers are few.
PAIR_ROWS, QUAD_ROWS = (8, 4) if _WIDE_FILE else (4, 2)

# Products of a weight with 2 to 256 rows of x (skinny.py, lanes.py): rows of the weight in a tile, by rows of x.
DOT_TILES = {2: 6, 4: 6} if _WIDE_FILE else {2: 4, 4: 2}
MOST_DOTS = 64 if _WIDE_FILE else 16  # rows of x by dot products, unless they fill lanes
# Rows of x as lanes. On AVX2 128 rows of float32 and bfloat16 do 143 and 145 GFLOP/s, by blocked products 151 and 156.
# There these are faster for 64 rows of float32, too, if the weight stays in a cache: one thread, weights of 128 x 784
# to 1024 x 784 again and again 59 to 74 and by lanes 48 to 60, new ones each time 45 to 48 and 43 to 47; of 768 x 3072
# and 2048 x 2048 44 to 54 and 50 to 60. With 24 to 64 rows of float64 22 to 30, and by lanes 22 to 26.
LEAST_LANES, MOST_LANES, MOST_LANES_64 = 13, 128 if _WIDE_FILE else 64, 128 if _WIDE_FILE else 16
_NEAR_LANES, _NEAR_WEIGHT = MOST_LANES if _WIDE_FILE else 48, 1 << 20  # rows of float32 by so many elements
# The same where dot products would wait for x: from so many rows on, by tiles of (rows of the weight, vectors of x),
# with the time that each takes for a vector: two threads of Emerald Rapids did 16, 32, 48 and 64 rows of float32 at
# 146, 184, 210 and 202 GFLOP/s by tiles of 1, 2, 3 and 4 vectors, by dot products at 83 to 97. Fewer rows fill several
# vectors where 2 or 4 lanes have neighbours in k of one row (DEPTHS), which one broadcast serves: bfloat16 with 12, 20
# and 24 rows at 250, 238 and 268 GFLOP/s, by whole vectors of rows at 189, 183 and 215. One thread with 6 rows of
# float32, 2048 x 2048: 0.83 ms, by dot products 1.21; with 4 rows those are faster: 0.71 and 1.3.
# More rows than MOST_LANES, where they fill their vectors but for a tenth: bfloat16 by 11264 x 2048 with 192 and 256
# rows at 299 and 297 GFLOP/s, by blocked products 254 and 275; 512 rows 269 and 286.
LEAST_WAITING, MOST_WAITING, WAITING_TILES = 5, 256, {(24, 1): 1.3, (14, 2): 1.2, (8, 3): 1.0, (6, 4): 1.05}
DEPTHS = (1, 2, 4)
STEPS = 4  # broadcasts of a row of the weight in the innermost loop: a line has as many, or a multiple
LINE = 64  # bytes of each row of the weight at a time

# Tile registers (amx.py): rows of two tiles, and the k that a step of theirs covers.
TILE_ROWS, TILE_DEPTH = 32, 32
LEAST_TILED = 8  # rows of x from which tiles are faster than vectors
MOST_FEW = 128  # rows of x up to which the weight is read as it lies (amx.py: few_rows)

# Cache blocks. A long k pays most: sums stay in registers and C is touched once (K = 2048 in one
# piece: 109 GFLOP/s a core, in pieces of 256: 100). Panels stream from the second-level cache. On Emerald Rapids, whose
# virtual cores may share one with somebody else, small blocks are better. One thread there did of the peak, measured
# just before and after (medians of five processes, in turn; PyTorch 0.87, 0.80, 0.81, 0.76), 512 x 2048 x 5632, 1024^3,
# 2048^3 and 512 x 2048 x 2048: 0.79, 0.82, 0.80, 0.79; with pieces, A and B twice, twice and four times as large 0.79,
# 0.79, 0.85, 0.75, and with pieces half as large 0.71, 0.82, 0.78, 0.80; 16 threads 1,183, 1,125 and 1,139 GFLOP/s.
_K_BYTES = 2048 if isa.multiplies_faster_than_it_reads() else 8192  # of one row of a panel block
_A_BYTES = 256 << 10 if isa.multiplies_faster_than_it_reads() else 512 << 10
_B_BYTES = 1 << 20 if isa.multiplies_faster_than_it_reads() else 4 << 20
# The same for tile registers, beside 2 MB of second-level cache: 2048^3 on one core of Emerald Rapids 972 GFLOP/s, with
# panels of half the length 744 to 781, with blocks of A of half the size 897; 4096^3 861, 811 to 837, 831.
_TILE_K_BYTES = 4096
_TILE_A_BYTES = 512 << 10
_TILE_B_BYTES = 4 << 20
_PART_ROWS = 4096  # of a tile, where its partial sums need memory of their own

PARALLEL_WORK = 1 << 20  # multiply-adds x 2 of float32 that take some 10 us: worth a thread

# From so many threads on, and so much work for each, A is packed once for all of them (`shared_blocks`).
LEAST_SHARING, _SHARED_WORK = 4, 4 * PARALLEL_WORK
_SHARED_TILES = 8  # for each thread, if tiles do not get too small
# Rows of a block, where pieces of k have full length: fewer pack B too often (half as many do not, where products take
# longer: by vectors, and of a k that is cut), more fill a cache.
_SHARED_ROWS = 128, 256
_SHARED_LEAST = 512, 1024  # columns of a large A's product, and rows that are packed at a time at least
_LARGE = 1 << 21  # elements of such an A
_SHARED_B_BYTES = 32 << 20  # of a B that the third-level cache keeps
SHARED_BYTES = 64 << 20  # of A that are packed at a time
# Rows of x as panels are shared likewise, from so many elements on: some 25 us of packing by one thread. Pieces have
# `SHARED_K` of k. 64 rows of float32 by 2048 x 2048 with 16 threads: 964 to 1,100 GFLOP/s, before 496 to 874; 64 rows
# by 128 x 784 would take longer, 146 to 192 GFLOP/s, not 199 to 230.
SHARED_X, SHARED_K = 1 << 16, 128
_NEAR_X = 1 << 20  # bytes of panels of x that stay in a second-level cache


def pairs(dtype):
    """Whether a dtype (by name) is multiplied as bfloat16 pairs."""
    return dtype == "bfloat16" and rates.choices().pairs


def tiles(dtype):
    """Whether a dtype (by name) is multiplied by tile registers."""
    return (dtype == "bfloat16" and rates.choices().tiles) or (dtype == "float16" and rates.choices().float16_tiles)


def operand(dtype):
    """The type that a dtype's operands have in products by tile registers, if it is multiplied by them."""
    return "float16_pairs" if dtype == "float16" and tiles(dtype) else dtype


def in_vectors(dtype):
    """The type that they have where vectors multiply what is too little for tile registers."""
    return "bfloat16_wide" if pairs(dtype) and not rates.choices().vector_pairs else dtype


def depth(dtype):
    """Elements of k that blocked products of a dtype have in an element of a panel."""
    return 2 if pairs(dtype) or tiles(dtype) else 1


def byte_tiles():
    """Whether integers of 8 bits are multiplied by tile registers."""
    return rates.choices().byte_tiles


def lies_in_tiles(m, k, stride, k_stride, dtype):
    """Whether tile registers read A[m, k] as it lies: rows of whole lines, and enough of them."""
    whole_lines = k_stride == 1 and stride % TILE_DEPTH == 0 and k % 2 == 0
    return tiles(dtype) and whole_lines and m >= TILE_ROWS


def lanes(dtype):
    """Sums of products of a dtype in one vector register."""
    return LANES // 2 if dtype == "float64" else LANES


def across(dtype):
    """Columns of a register tile, and of a panel of B."""
    return VECTORS * lanes(dtype)


def lane_tile(m, dtype, contiguous, weight):
    """The tile of products with m rows of x as lanes (lanes.py), which are `contiguous` or not, by so many elements.

    (rows of the weight, vectors of x, lanes of one, lanes that one row of x has side by side), or None where too many
    lanes would be left over. bfloat16 pairs with 16, 24 and 32 rows: 360, 320 and 425 GFLOP/s by lanes, 340, 360 and
    370 by dot products. Where multiply-adds outrun the second-level cache, dot products wait for x, which they read
    again for each 6 rows of the weight: float32 with 12, 24 and 48 rows 102, 121 and 133 GFLOP/s.
    """
    full = lanes(dtype)
    if isa.multiplies_faster_than_it_reads() and not pairs(dtype):
        if not LEAST_WAITING <= m <= max(MOST_LANES, MOST_WAITING):
            return None
        depths = [depth for depth in DEPTHS if depth == 1 or (contiguous and STEPS * depth <= full)]
        tiles = [(*tile, full, depth) for tile in WAITING_TILES for depth in depths]
        tiles = [tile for tile in tiles if tile[3] == 1 or m * tile[3] <= tile[1] * full]  # deep ones have one panel
        best = min(tiles, key=lambda tile: _cost(m, *tile))
        return best if m <= MOST_LANES or 10 * full * _cost(m, *best) <= 11 * m * WAITING_TILES[best[:2]] else None
    near = dtype == "float32" and weight <= _NEAR_WEIGHT
    if m > (MOST_LANES_64 if dtype == "float64" else _NEAR_LANES if near else MOST_LANES):
        return None
    count = full // 2 if m <= full and full >= 8 else full
    width = VECTORS * count
    return (ROWS, VECTORS, count, 1) if LEAST_LANES <= m and 10 * m >= 9 * (-(-m // width) * width) else None


def _cost(m, rows, vectors, count, depth):
    """What m rows of x cost by such a tile, for each row of the weight."""
    return -(-m * depth // (vectors * count)) * vectors / depth * WAITING_TILES[rows, vectors]


def rows_of(dtype):
    """Rows of a group of packed rows of A."""
    return TILE_ROWS if tiles(dtype) else ROWS


def rows_group(steps):
    """Elements of such a group for vectors: behind its steps is space to fill up the last vector."""
    return (steps + 1) * ROWS


def tiles_group(steps):
    """Elements, pairs, of such a group for tile registers: whole tiles."""
    return (steps + TILE_DEPTH // 2 - 1) // (TILE_DEPTH // 2) * (TILE_DEPTH // 2) * TILE_ROWS


def group(dtype, k):
    """Elements of such a group with all of k."""
    return tiles_group(-(-k // 2)) if tiles(dtype) else rows_group(-(-k // depth(dtype)))


def panel_bytes(dtype):
    """Bytes of a panel's element: a float32 or float64, or a pair of 16 bits."""
    return 8 if dtype == "float64" else 4


def _up(value, unit):
    return -(-value // unit) * unit


class Blocks(NamedTuple):
    """How a product is cut: `items` tiles over all matrices of the batch, blocks within a tile."""

    grid: tuple[int, int]
    tile: tuple[int, int]
    mc: int
    kc: int
    nc: int
    b_offset: int  # of the block of B in a thread's scratch; A lies at 0
    part_offset: int  # of the float32 partial sums; 0 when they live in C
    thread_bytes: int  # of the scratch
    scratch: int  # bytes of all threads
    items: int
    grain: int


def _piece_bytes(dtype):
    """Bytes of a row's piece of k, at most."""
    return _TILE_K_BYTES if tiles(dtype) else _K_BYTES


def _pieces(k, dtype):
    """(how many pieces k is cut into, steps of each), whatever the number of threads, so that sums stay the same."""
    steps = max(1, -(-k // depth(dtype)))
    count = -(-steps * panel_bytes(dtype) // _piece_bytes(dtype))
    return count, _up(-(-steps // count), lanes(dtype))


def _grid(m, n, threads, columns, tiled):
    """The grid of at most `threads` tiles that finishes first: products, plus packing of A and B."""
    best, high, short = None, *((TILE_ROWS, TILE_ROWS // 2) if tiled else (ROWS, SHORT_ROWS))
    packing = 64 if tiled else 8  # products that cost as much as packing one element
    for grid_m in range(1, threads + 1):
        tile_m = _up(-(-m // grid_m), high)
        tile_n = _up(-(-n // (threads // grid_m)), columns)
        rows = min(m, tile_m)
        rows = rows // high * high + _up(rows % high, short)  # of the largest tile, as they are multiplied
        cost = rows * tile_n + packing * (tile_m * (1 + tile_n // 1024) + tile_n)
        if best is None or cost < best[0]:
            best = cost, tile_m, tile_n
    return best[1:]


def split_length(m, n, k):
    """The length of the parts of a long k, where C is too small to keep threads busy; 0: do not cut it.

    It does not depend on the number of threads, so that results do not either.
    """
    if k < 8192 or k < 32 * max(m, n) or m * n > 1 << 16 or (min(m, n) <= 16 and max(m, n) > 64):
        return 0
    return _up(-(-k // min(16, k // 4096)), 64)


def blocks(m, n, k, batch, threads, dtype, packed=False, own_sums=None):
    """The `Blocks` of a batch of products [m, k] x [k, n]; `packed` when B comes in panels.

    `own_sums` says that partial sums cannot lie in C: it is of 16 bits, or holds what the product is added to.
    """
    own_sums = dtype in ("float16", "bfloat16") if own_sums is None else own_sums
    columns, pair, size, tiled = across(dtype), depth(dtype), panel_bytes(dtype), tiles(dtype)
    high, (a_bytes, b_bytes) = rows_of(dtype), (_TILE_A_BYTES, _TILE_B_BYTES) if tiled else (_A_BYTES, _B_BYTES)
    work = 2 * m * n * max(k, 1) * (2 if dtype == "float64" else 1) // (8 if tiled else pair)
    if batch >= 2 * threads or work < 2 * PARALLEL_WORK:
        tile_m, tile_n = _up(m, high), _up(n, columns)
    else:
        tile_m, tile_n = _grid(m, n, threads, columns, tiled)
    pieces, steps = _pieces(k, dtype)
    partial = pieces > 1 and own_sums
    if partial:
        tile_m = min(tile_m, _up(_PART_ROWS, high))
    grid = -(-m // tile_m), -(-n // tile_n)
    mc = min(tile_m, max(1, a_bytes // (steps * size * high)) * high)
    nc = min(tile_n, max(1, b_bytes // (steps * size * columns)) * columns)
    nc = _up(-(-tile_n // -(-tile_n // nc)), columns)
    b_offset = _up(mc * (steps + 1) * size, 64)
    end = b_offset if packed else b_offset + _up(nc * steps * size, 64)
    thread_bytes = _up(end + (tile_m * nc * size if partial else 0), 64)  # a sum takes what a panel's element does
    items = grid[0] * grid[1] * batch
    return Blocks(
        grid=grid,
        tile=(tile_m, tile_n),
        mc=mc,
        kc=steps * pair,
        nc=nc,
        b_offset=b_offset,
        part_offset=end if partial else 0,
        thread_bytes=thread_bytes,
        scratch=min(threads, items) * thread_bytes,
        items=items,
        grain=-PARALLEL_WORK * grid[0] * grid[1] // max(1, work),
    )


def shares(m, n, k, threads, dtype):
    """Whether so many threads pack A of a product together: for few columns that takes longer than it saves, and of
    very long rows too few fit.
    """
    work = 2 * m * n * k * (2 if dtype == "float64" else 1) // (4 if tiles(dtype) else 1)
    least_columns, least_rows = _SHARED_LEAST
    few = n < least_columns and m * k > _LARGE
    fits = panel_bytes(dtype) * group(dtype, k) * min(m, least_rows) <= SHARED_BYTES * rows_of(dtype)
    return threads >= LEAST_SHARING and min(m, n) >= TILE_ROWS and work >= threads * _SHARED_WORK and fits and not few


def shares_x(m, k, matrices, threads):
    """Whether so many threads pack the rows of x together that meet a weight as panels."""
    return threads >= LEAST_SHARING and matrices == 1 and m * k >= SHARED_X


def lane_piece(m, k, dtype):
    """Elements of k that have a sum of their own in products of many rows by lanes; 0: whatever suits these.

    With it sums are those of blocked products, to the bit, so that these may serve many threads: they did 256 rows of
    float32 by 2304 x 768 and 2048 x 2048 at 1,176 and 1,037 GFLOP/s with 16 threads, lanes at 952 and 865, which with
    one thread are faster, 131 and 115 GFLOP/s. Each thread reads all rows of x, 2 MB, and second-level caches hold as
    much.
    """
    alike = m > MOST_LANES and not tiles(dtype) and k % (LINE // panel_bytes(dtype)) == 0
    return _pieces(k, dtype)[1] if alike and isa.multiplies_faster_than_it_reads() else 0


def shared_grain(grain, items, panels, threads):
    """Items of a slice that meets `panels` bytes: two slices for each thread where these come from afar each time."""
    return grain if panels <= _NEAR_X else max(grain, items // (2 * threads))


def shared_blocks(m, n, k, threads, dtype, own_sums):
    """The `Blocks` of a product whose A is packed already, or is read as it lies: small tiles, several for each thread.

    Cores of a machine that others use, too, differ: of 16 of an Emerald Rapids one did 540, others up to 2,400 GFLOP/s
    in tile registers, and a tile for each took as long as the slowest. 512 x 2048 x 2048 in bfloat16 took there 1,167
    us by 16 tiles of 256 x 256, 990 by 64 of 128 x 128, 949 by 128 of 256 x 32 with A packed before; with B packed
    before, too, 1,445: what other cores have just written comes slowly. Tiles beside one another share A, which stays
    in the second-level cache; where k is cut, or B does not stay in the third-level cache, tiles are larger if enough
    are left, lest either comes too often: 512 x 2048 x 5632 and 4096^3 in bfloat16 at 1.01 and 1.04 x PyTorch, with
    small ones 0.77 and 0.92.
    """
    columns, pair, size, high = across(dtype), depth(dtype), panel_bytes(dtype), rows_of(dtype)
    pieces, steps = _pieces(k, dtype)
    partial = pieces > 1 and own_sums
    least, most = _SHARED_ROWS
    least = least if tiles(dtype) and pieces == 1 else least // 2
    panels, most = -(-n // columns), max(1, most * _piece_bytes(dtype) // (steps * size * high)) * high
    bands = -(-m // most)  # of rows
    while panels * bands < _SHARED_TILES * threads and m >= 2 * bands * least:
        bands *= 2
    mc = tile_m = _up(-(-m // bands), high)
    if pieces > 1 or (bands > 4 and panels * steps * columns * size > _SHARED_B_BYTES):
        together = 1
        while together < 4 and -(-m // mc) * -(-panels // (2 * together)) >= _SHARED_TILES // 2 * threads:
            together *= 2
        panels, columns = -(-panels // together), columns * together
        while together == 4 and tile_m < 4 * mc and -(-m // (2 * tile_m)) * panels >= _SHARED_TILES * threads:
            tile_m *= 2
    bands = -(-m // tile_m)
    items = bands * panels
    part_offset = _up(columns * steps * size, 64)
    thread_bytes = part_offset + (_up(tile_m * columns * size, 64) if partial else 0)
    return Blocks(
        grid=(bands, panels),
        tile=(tile_m, columns),
        mc=mc,
        kc=steps * pair,
        nc=columns,
        b_offset=0,
        part_offset=part_offset if partial else 0,
        thread_bytes=thread_bytes,
        scratch=min(threads, items) * thread_bytes,
        items=items,
        grain=-1,
    )
