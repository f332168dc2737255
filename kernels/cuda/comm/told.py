"""A sum over GPUs without a launch of its own: the product before it tells its rows, the launch behind it hears them.

What goes from rank to rank are the words of `peers.all_reduce_few`, in the same slots and rounds, so a rank whose
launches are joined may meet one whose are not. A product stores its result nowhere but there, in the windows of all
ranks and its own; the launch behind it adds up what it finds in its own, as `all_reduce_few` would, and its first block
writes the sum where that would have. An all-reduce between two products of a token took 4.2 us, with the beginning of
its launch; heard so it takes 2.4 to 3.1 (two H200).

Rounds are counted in the records of pieces. All blocks of a product read the count, and its first one leaves the next
round beside it; all blocks of the launch behind read that, and the first one makes it the count. So no block reads what
another one of its launch writes.
"""

from numba import types

from ...blocks.cuda import PEERS
from ...build import jit
from ...lang.by_type import by_type
from ...lang.memory import as_words, from_words
from ...lang.mma import both
from ...lang.pieces import vpiece
from ...lang.ptx import load_of_system, look_at_pair, nanoseconds, store_to_system, tell_pair, thread
from ...lang.simd import convert, fill, lane, load, ptr, reduce_or, store
from ...lang.vector import literal_of
from .sizes import BROKEN, COUNT, GAVE_UP, RECORD, ROUND, TOLD, TOLD_BYTES

I64, U32 = types.int64, types.uint32
LOW = (1 << 32) - 1
LOOKS = 256  # at words that are missing, before the clock is asked
SHIFT = (TOLD_BYTES // 8).bit_length() - 1  # a piece has 2^SHIFT numbers of eight bytes, which are told as two words
EACH = 4  # words of 32 bits in a vector of 16 bytes, two numbers


@jit.inline
def slots(piece, k, SIZE):
    """Where in a window the slots are that the ranks have in round k of a piece, one after the other."""
    return TOLD + (2 * piece + (k & 1)) * SIZE * (2 * TOLD_BYTES)


@jit.inline
def tell(at, number, k):
    """Store eight bytes of round k to an address of a window."""
    tell_pair(at, (number & LOW) | k << 32, (number >> 32 & LOW) | k << 32)


@jit.inline
def stop_all(args, SIZE):
    """Let the others know, from any thread, that this rank takes part in nothing any more."""
    for r in range(SIZE):
        store_to_system(load(args, PEERS.windows + r) + 8 * BROKEN, 1)


@jit.inline
def next_round(args, number):
    """The round in which number `number` of a tensor is told next."""
    return load(ptr(load(args, PEERS.own), I64), (number >> SHIFT) * RECORD + COUNT) + 1


@jit.inline
def tell_all(args, number, value, k, SIZE):
    """Store number `number` of a tensor, of round k, to the windows of all ranks."""
    place = slots(number >> SHIFT, k, SIZE) + load(args, PEERS.rank) * (2 * TOLD_BYTES)
    place += 16 * (number & ((1 << SHIFT) - 1))
    for r in range(SIZE):
        tell(load(args, PEERS.windows + r) + place, value, k)


@jit.inline
def hand_on(args, source, to, more):
    """Of each piece of the tensor, word `source` of its record and `more` become word `to`; up to as many as threads.

    Its elements have two bytes.
    """
    own, pieces = ptr(load(args, PEERS.own), I64), (2 * load(args, PEERS.count) + TOLD_BYTES - 1) // TOLD_BYTES
    if thread() < pieces:
        store(own, thread() * RECORD + to, load(own, thread() * RECORD + source) + more)


@jit.inline
def number_of(first, apart, size, p):
    """The number with which vector p of a thread begins; one that is not there reads the first."""
    i = first + p * apart
    return (i if i < size else 0) >> 1


def _rounds(pieces):
    """The function that finds in which rounds the vectors of a thread are."""
    last = pieces - 1
    before = _rounds(last) if last else None

    @jit.inline
    def one(own, first, apart, size):
        piece = number_of(first, apart, size, last) >> SHIFT
        return fill(load(ptr(own, I64), piece * RECORD + ROUND), I64, 1)

    @jit.inline
    def rounds(own, first, apart, size):
        return both(before(own, first, apart, size), one(own, first, apart, size))

    return rounds if last else one


def _looks(count, pieces):
    """The function that looks at so many vectors, `pieces` of each rank: a lane has no upper half if it is there."""
    last = count - 1
    before, rank, p = _looks(last, pieces) if last else None, last // pieces, last % pieces

    @jit.inline
    def one(own, ks, first, apart, size, SIZE):
        number, k = number_of(first, apart, size, p), lane(ks, p)
        at = own + slots(number >> SHIFT, k, SIZE) + rank * (2 * TOLD_BYTES) + 16 * (number & ((1 << SHIFT) - 1))
        return both(look_at_pair(at), look_at_pair(at + 16)) ^ k << 32

    @jit.inline
    def looks(own, ks, first, apart, size, SIZE):
        return both(before(own, ks, first, apart, size, SIZE), one(own, ks, first, apart, size, SIZE))

    return looks if last else one


def _late(ranks, lanes):
    """The function that names the first rank of whose lanes some are not there: 1 + r, or 0."""
    last = ranks - 1
    before = _late(last, lanes) if last else None

    @jit.inline
    def late(found):
        code = before(found) if last else 0
        missing = reduce_or(vpiece(found, last, lanes) >> 32) != 0
        return 1 + last if code == 0 and missing else code

    return late


def _sum(ranks, lanes):
    """The function that adds up what the ranks have told, in their order."""
    last = ranks - 1
    before = _sum(last, lanes) if last else None

    @jit.inline
    def total(found, T):
        value = from_words(convert(vpiece(found, last, lanes), U32), T)
        return before(found, T) + value if last else value

    return total


@by_type(prefer_literal=True)
def hear(args, first, apart, size, T, SIZE, PIECES):
    """(the sum over ranks of PIECES vectors of a thread, as words; 0, or a code), as soon as all have told them.

    `first`, `apart` and `size` are in words, as in `lang/pieces.py`.
    """
    ranks, pieces = literal_of(SIZE) or 1, literal_of(PIECES) or 1
    rounds, looks, late = _rounds(pieces), _looks(ranks * pieces, pieces), _late(ranks, EACH * pieces)
    summed = _sum(ranks, EACH * pieces)

    def implementation(args, first, apart, size, T, SIZE, PIECES):
        own, code, turn, since = load(args, PEERS.own), 0, 0, 0
        ks = rounds(own, first, apart, size)
        found = looks(own, ks, first, apart, size, SIZE)
        while reduce_or(found >> 32) != 0:
            turn += 1
            if turn % LOOKS == 0:
                since = nanoseconds() if since == 0 else since
                if load_of_system(own + 8 * BROKEN) != 0:
                    code = GAVE_UP
                    break
                if nanoseconds() - since > load(args, PEERS.timeout):
                    code = late(found)
                    break
            found = looks(own, ks, first, apart, size, SIZE)
        if code != 0:
            stop_all(args, SIZE)
        return as_words(summed(found, T), T), code

    return implementation
