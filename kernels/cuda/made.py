"""x of a product of few rows, made on the way: by each block anew, while its part of the matrix comes.

It lies in shared memory as a whole, as `cuda/ring.py` would have it there, and is what the launch would have made that
the product takes the place of (`cuda/fuse.py`), to the last bit; the first block writes it, for others. A thread asks
for all that it reads at once, since nothing else hides how long that takes.
"""

from numba import types

from ..blocks.cuda import GATED
from ..blocks.norm import ADD_RMS
from ..build import jit
from ..lang.by_type import by_type
from ..lang.memory import as_words, from_words
from ..lang.mma import both
from ..lang.pieces import inside_held, vload_held, vload_pieces, vpiece, vstore_pieces
from ..lang.ptx import WARP, barrier_of, block, from_lane, thread
from ..lang.simd import bitcast, fill, load, ptr, reduce_add, select, store, vload_aligned, vstore_aligned
from ..lang.vector import literal_of
from ..lang.wide import inverse_root, quotient
from .comm.sizes import COUNT, ROUND
from .comm.told import hand_on, hear

F32, F64, U32 = types.float32, types.float64, types.uint32
WORDS, EACH = 4, 8  # of 32 bits in a vector of 16 bytes, and elements; places and sizes here are in words


@jit.inline
def place_of(x, row, i, rows):
    """Where words i to i + 3 of a row of x lie, of so many rows."""
    line = (i >> 5) * rows + row
    return ptr(x + line * 128 + (((i >> 2 ^ line) & 7) << 4), U32)


@jit.inline
def row_of(args, address, stride, row):
    """The words of a row of a tensor whose address and stride (in elements) have these places in a block."""
    return ptr(load(args, address) + 2 * row * load(args, stride), U32)


def _keep(pieces):
    """The function that keeps so many vectors of a thread."""
    last = pieces - 1
    before = _keep(last) if last else None

    @jit.inline
    def keep(x, row, rows, first, apart, size, v):
        if last:
            before(x, row, rows, first, apart, size, v)
        i = first + last * apart
        if i < size:
            vstore_aligned(place_of(x, row, i, rows), 0, vpiece(v, last, WORDS))

    return keep


@by_type
def keep(x, row, rows, first, apart, size, v):
    """Store a row's vectors from word `first` on, `apart` words from one another, to shared memory."""
    store_all = _keep(v.lanes // WORDS)
    return lambda x, row, rows, first, apart, size, v: store_all(x, row, rows, first, apart, size, v)


def _fetch(pieces):
    """The function that reads so many vectors back."""
    last = pieces - 1
    before = _fetch(last) if last else None

    @jit.inline
    def one(x, row, rows, first, apart, size):
        i = first + last * apart
        if i < size:  # other places are written by others meanwhile
            return vload_aligned(place_of(x, row, i, rows), 0, WORDS)
        return fill(0, U32, WORDS)

    @jit.inline
    def fetch(x, row, rows, first, apart, size):
        return both(before(x, row, rows, first, apart, size), one(x, row, rows, first, apart, size))

    return fetch if last else one


def normed(members, told=None):
    """The function with which so many threads make y, the RMS norm of a + b = total, or (where b is none) of a: 0.

    TEAM threads with PIECES vectors each add up in the order of `norm/rows.py`; all of them multiply. Where a is a sum
    over SIZE GPUs that is still to be heard (`comm/told.py`), the block PEERS begins `told` words behind that of the
    norm, and what goes wrong is a code.
    """

    @by_type(prefer_literal=True)
    def sums(args, at, memory, x, row, rows, T, TEAM, PIECES, SIZE):
        """Of a row, a + b to shared memory, and for each warp the sum of its squares to `memory`."""
        pieces = literal_of(PIECES)

        def implementation(args, at, memory, x, row, rows, T, TEAM, PIECES, SIZE):
            first, apart, size = WORDS * thread(), WORDS * TEAM, load(args, at + ADD_RMS.size) >> 1
            a, added = row_of(args, at + ADD_RMS.a, at + ADD_RMS.a_stride, row), load(args, at + ADD_RMS.b) != 0
            b, code = row_of(args, at + ADD_RMS.b, at + ADD_RMS.b_stride, row) if added else a, 0
            more = vload_held(b, first, apart, size, WORDS, pieces)
            if told is None:
                v = vload_held(a, first, apart, size, WORDS, pieces)
            else:
                peers = args + (at + told)
                v, code = hear(peers, first, apart, size, T, SIZE, pieces)
                if block() == 0:
                    vstore_pieces(a, first, apart, size, v, pieces)
                    hand_on(peers, ROUND, COUNT, 0)
            if added:
                v = as_words(from_words(v, T) + from_words(more, T), T)
                if block() == 0:
                    total = row_of(args, at + ADD_RMS.total, at + ADD_RMS.total_stride, row)
                    vstore_pieces(total, first, apart, size, v, pieces)
            keep(x, row, rows, first, apart, size, v)
            f = select(inside_held(2 * first, 2 * apart, 0, 2 * size, EACH, pieces), from_words(v, T), 0.0)
            squares = reduce_add(f * f)
            for lanes_apart in (1, 2, 4, 8, 16):
                squares = squares + from_lane(squares, lanes_apart)
            if thread() % WARP == 0:
                store(memory, row * (TEAM // WARP) + thread() // WARP, squares)
            return code

        return implementation

    @by_type(prefer_literal=True)
    def make(args, at, memory, x, rows, T, TEAM, PIECES, SIZE):
        pieces = max(1, -(-(literal_of(TEAM) or 0) * (literal_of(PIECES) or 0) // members))
        fetch = _fetch(pieces)

        def implementation(args, at, memory, x, rows, T, TEAM, PIECES, SIZE):
            size, eps = load(args, at + ADD_RMS.size) >> 1, bitcast(load(args, at + ADD_RMS.eps), F64)
            first, apart, warps, code = WORDS * thread(), WORDS * members, TEAM // WARP, 0
            w = vload_pieces(ptr(load(args, at + ADD_RMS.w), U32), first, apart, size, WORDS, pieces)
            if thread() < TEAM:
                for row in range(rows):
                    code |= sums(args, at, memory, x, row, rows, T, TEAM, PIECES, SIZE)
            barrier_of(1, members)
            for row in range(rows):
                squares = load(memory, row * warps + thread() % warps)
                for warps_apart in (1, 2, 4, 8, 16):
                    if warps_apart < warps:
                        squares = squares + from_lane(squares, warps_apart)
                scale = F32(inverse_root(F64(squares) * quotient(1.0, float(2 * size)) + eps))
                y = as_words(from_words(fetch(x, row, rows, first, apart, size), T) * scale * from_words(w, T), T)
                keep(x, row, rows, first, apart, size, y)
                if block() == 0:
                    to = row_of(args, at + ADD_RMS.y, at + ADD_RMS.y_stride, row)
                    vstore_pieces(to, first, apart, size, y, pieces)
            barrier_of(1, members)
            return code

        return implementation

    return make


def gated(members, pieces):
    """The function with which so many threads make y = RULE(up, gate), so many vectors of each at once: 0."""

    @jit.inline
    def make(args, at, memory, x, rows, T, RULE, PIECES, SIZE):
        apart, size = WORDS * members, load(args, at + GATED.size) >> 1
        for row in range(rows):
            up, gate = (
                row_of(args, at + GATED.up, at + GATED.up_stride, row),
                row_of(args, at + GATED.gate, at + GATED.gate_stride, row),
            )
            for first in range(WORDS * thread(), size, pieces * apart):
                u = vload_pieces(up, first, apart, size, WORDS, pieces)
                g = vload_pieces(gate, first, apart, size, WORDS, pieces)
                y = as_words(RULE(from_words(u, T), from_words(g, T)), T)
                keep(x, row, rows, first, apart, size, y)
                if block() == 0:
                    vstore_pieces(row_of(args, at + GATED.y, at + GATED.y_stride, row), first, apart, size, y, pieces)
        barrier_of(1, members)
        return 0

    return make
