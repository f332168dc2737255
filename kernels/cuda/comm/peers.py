"""Sums (and products, extremes, averages) and gathers over the GPUs of one host, which reach one another's memory.

Each rank has a window that all of them can read and write. A block has a piece of the elements, and meets only the
blocks that have the same piece on other ranks, so blocks need not run at the same time:

    rank 0, block b   x -> slot   flag k to all   wait for flags k   part 0 of y = slot of 0 + slot of 1 + ...
    rank 1, block b   x -> slot   flag k to all   wait for flags k   part 1 of y = slot of 0 + slot of 1 + ...

A rank takes the others' parts after a second meeting. A gather is the same without sums: each slot goes where it
belongs. Ranks may give different numbers of elements then, or none, but all launch as many blocks as the longest needs,
so that rounds agree.

Few elements go another way, by `all_reduce_few`: a thread stores its eight bytes to the others' windows as two words,
each half data, half the number of the round, and looks at its own window until it finds the others' words of this
round. So nothing is read across, no flag follows the data, and no thread waits for another one of its block. In a graph
4 KB of two H200 take 3.4 us where flags take 4.9, 64 KB 3.9 and 5.3. More of them, by `all_reduce_packets`, are in
packets of 16 bytes that are stored as a whole, three quarters data. What a product makes and a norm reads needs no
launch in between (`told.py`).

**What is read has been written.** The threads of a block store to their own window and meet at a barrier, which orders
their stores before what thread 0 of a warp does next: it stores the flag with release at system scope, for the GPU of
one other rank to see. Release is cumulative: it covers the stores that came before the barrier too. There, one thread
loads the flag with acquire at system scope, and the threads of its block meet at a barrier before they load the slot:
their loads come after the stores, and no cache has older lines, as an acquire drops these. Words and packets that say
their round need no order: each is stored and loaded as a whole.

**What is written has been read.** Rounds of a block are counted in its record, so that a graph replays one launch for
ever, and take the two slots in turn. A rank stores to the slot of round k + 2 after its round k + 1, in which it has
seen the flags k + 1 of all; a rank stores that flag in a launch after that of its round k, whose loads are over then.
So nobody still reads what round k left, and no meeting is needed at the end. Slots of results follow the same way, and
those of words and packets, which serve in round k + 1 as the flags do. They have slots of their own, as data of another
kind might look like the number of a round.

**All ranks have the same bits.** Elements are taken in the order of ranks everywhere, 16-bit floats in float32, rounded
once.
"""

from numba import types

from ...blocks.comm import AVG
from ...blocks.cuda import PEERS
from ...build import jit
from ...cpu.comm.combine import divided, two
from ...lang.by_type import by_type
from ...lang.mma import both
from ...lang.pieces import vpiece
from ...lang.ptx import (
    WARP,
    barrier,
    load_of_system,
    look_at_packet,
    look_at_pair,
    nanoseconds,
    shared,
    store_to_system,
    tell_packet,
    thread,
    threads,
)
from ...lang.simd import fill, lane, load, packed, ptr, store, unpacked
from ...lang.vector import compute_type
from ..block import read, vector, width, write
from .sizes import (
    BROKEN,
    COUNT,
    GAVE_UP,
    GIVEN,
    MOST_BYTES,
    PACKET_BYTES,
    PACKETS,
    PIECE_BYTES,
    RECORD,
    REDUCED,
    SLOTS,
    TOLD_BYTES,
)
from .told import LOOKS, LOW, slots, stop_all, tell

I64 = types.int64


@jit.inline
def wait(flag, k, peer, broken, timeout):
    """Wait until a flag of this rank's window, whose word `broken` is there too, has come to round k: 0, or a code."""
    code, turn, since = 0, 0, nanoseconds()
    while load_of_system(flag) < k:
        turn += 1
        if turn % LOOKS == 0:
            if load_of_system(broken) != 0:
                code = GAVE_UP
                break
            if nanoseconds() - since > timeout:
                code = 1 + peer
                break
    return code


@jit.inline
def meet(args, b, k, flags, found, SIZE):
    """Tell all ranks that this block has come to a meeting of round k, and wait for theirs: 0, or a code."""
    rank, own, at = load(args, PEERS.rank), load(args, PEERS.own), 8 * (b * RECORD + flags)
    barrier()
    for peer in range(SIZE):
        if thread() == WARP * peer and peer != rank:
            store_to_system(load(args, PEERS.windows + peer) + at + 8 * rank, k)
            code = wait(own + at + 8 * peer, k, peer, own + 8 * BROKEN, load(args, PEERS.timeout))
            if code != 0:
                store(found, 0, code)
    barrier()
    return load(found, 0)


@jit.inline
def give_up(args, SIZE):
    """Let the others know that this rank takes part in nothing any more."""
    for peer in range(SIZE):
        if thread() == WARP * peer:
            store_to_system(load(args, PEERS.windows + peer) + 8 * BROKEN, 1)


@jit.inline
def joined(args, at, i, left, like, T, HOW, SIZE):
    """The elements from `i` on of what all ranks have at the same place of their windows, in the order of the ranks."""
    total = read(ptr(load(args, PEERS.windows) + at, T), i, left, like)
    for r in range(1, SIZE):
        total = two(total, read(ptr(load(args, PEERS.windows + r) + at, T), i, left, like), HOW)
    if HOW == AVG:
        total = divided(total, SIZE)
    return total


@jit.inline
def begin(own, found):
    """0, or a code where some rank takes part in nothing any more; `found` is shared by the block."""
    if thread() == 0:
        store(found, 0, GAVE_UP * (load_of_system(own + 8 * BROKEN) != 0))
    barrier()
    return load(found, 0)


@jit.inline
def all_reduce(args, lo, hi, T, HOW, SIZE):
    """Piece `lo`, of a block. Each of `SIZE` ranks adds up a part of it."""
    own, piece = load(args, PEERS.own), load(args, PEERS.piece)
    left = min(piece, load(args, PEERS.count) - lo * piece)
    x, y = ptr(load(args, PEERS.x), T) + lo * piece, ptr(load(args, PEERS.y), T) + lo * piece
    record, found = ptr(own, I64) + lo * RECORD, ptr(shared(8), I64)
    k, step, like = load(record, COUNT) + 1, threads() * width(x), vector(x, 0)
    given = SLOTS + (k % 2) * MOST_BYTES + lo * PIECE_BYTES
    if begin(own, found) != 0:
        return GAVE_UP

    mine = ptr(own + given, T)
    for i in range(thread() * width(x), left, step):
        write(mine, i, read(x, i, left - i, like), left - i)
    code = meet(args, lo, k, GIVEN, found, SIZE)
    if code != 0:
        give_up(args, SIZE)
        return code
    results = given + 2 * MOST_BYTES
    part = ((left + width(x) - 1) // width(x) + SIZE - 1) // SIZE * width(x)
    mine, first = ptr(own + results, T), load(args, PEERS.rank) * part
    stop = min(left, first + part)
    for i in range(first + thread() * width(x), stop, step):
        write(mine, i, joined(args, given, i, stop - i, like, T, HOW, SIZE), stop - i)
    code = meet(args, lo, k, REDUCED, found, SIZE)
    if code != 0:
        give_up(args, SIZE)
        return code
    for r in range(SIZE):
        theirs, stop = ptr(load(args, PEERS.windows + r) + results, T), min(left, (r + 1) * part)
        for i in range(r * part + thread() * width(x), stop, step):
            write(y, i, read(theirs, i, stop - i, like), stop - i)
    if thread() == 0:
        store(record, COUNT, k)
    return 0


def _bytes(count):
    """The function that makes a vector of zeros, which fills so many bytes with elements of a pointer's type."""

    @by_type
    def zeros(p):
        dtype, lanes = compute_type(p.dtype), 8 * count // max(8, getattr(p.dtype, "bitwidth", 8))
        return lambda p: fill(0, dtype, lanes)

    return zeros


four_bytes, eight_bytes = _bytes(4), _bytes(8)


@jit.inline
def look(at, k, PACKED):
    """(two int64 at an address of this rank's window, whether they are of round k: a packet, else two words)."""
    pair = look_at_packet(at) if PACKED else look_at_pair(at)
    first = lane(pair, 1) if PACKED else lane(pair, 0)
    return pair, ((first ^ k << 32) | (lane(pair, 1) ^ k << 32)) >> 32 == 0


@jit.inline
def look_for(args, at, k, peer, PACKED):
    """(what a rank has told in round k at an address of this rank's window, 0 or a code)."""
    code, turn, since = 0, 0, 0
    pair, found = look(at, k, PACKED)
    while not found:
        turn += 1
        if turn % LOOKS == 0:
            since = nanoseconds() if since == 0 else since
            if load_of_system(load(args, PEERS.own) + 8 * BROKEN) != 0:
                code = GAVE_UP
                break
            if nanoseconds() - since > load(args, PEERS.timeout):
                code = 1 + peer
                break
        pair, found = look(at, k, PACKED)
    return pair, code


@jit.inline
def all_reduce_few(args, lo, hi, T, HOW, SIZE):
    """Piece `lo`, of a block: all tell all of it in words that say of which round they are."""
    own, piece, rank = load(args, PEERS.own), load(args, PEERS.piece), load(args, PEERS.rank)
    left = min(piece, load(args, PEERS.count) - lo * piece)
    x, y = ptr(load(args, PEERS.x), T) + lo * piece, ptr(load(args, PEERS.y), T) + lo * piece
    record, like = ptr(own, I64) + lo * RECORD, eight_bytes(x)
    k, lanes = load(record, COUNT) + 1, width(x) // 2
    begin = slots(lo, k, SIZE)
    if load(ptr(own, I64), BROKEN) != 0:
        return GAVE_UP
    for i in range(thread() * lanes, left, threads() * lanes):
        number, place = packed(read(x, i, left - i, like), T), begin + 16 * (i // lanes)
        for r in range(SIZE):
            if r != rank:
                tell(load(args, PEERS.windows + r) + place + rank * (2 * TOLD_BYTES), number, k)
    barrier()  # all have read the count
    if thread() == 0:
        store(record, COUNT, k)
    for i in range(thread() * lanes, left, threads() * lanes):
        total, code, place = like, 0, own + begin + 16 * (i // lanes)
        for r in range(SIZE):
            value = read(x, i, left - i, like)
            if r != rank:
                pair, missing = look_for(args, place + r * (2 * TOLD_BYTES), k, r, False)
                code = missing if missing != 0 else code
                value = unpacked((lane(pair, 0) & LOW) | lane(pair, 1) << 32, like, T)
            total = value if r == 0 else two(total, value, HOW)
        if code != 0:
            stop_all(args, SIZE)
            return code
        write(y, i, divided(total, SIZE) if HOW == AVG else total, left - i)
    return 0


@jit.inline
def packed_words(x, i, left, four, none, T):
    """(the eight bytes from element i on, the four behind them)."""
    lanes = width(x) // 4
    a, b = read(x, i, left, four), read(x, i + lanes, left - lanes, four)
    c = read(x, i + 2 * lanes, left - 2 * lanes, four)
    return packed(both(a, b), T), packed(both(c, none), T)


@jit.inline
def all_reduce_packets(args, lo, hi, T, HOW, SIZE):
    """The same in packets of 16 bytes, of which twelve are elements, and each is stored and loaded as a whole.

    Types of two and four bytes. Two thirds of what words need go across: 1 MB of two H200 in a graph takes 7.2 us,
    256 KB 4.3 (words 4.5). By flags 1 MB takes 8.1; 7.8 where a rank stores to the other's window and reads its own.
    """
    own, piece, rank = load(args, PEERS.own), load(args, PEERS.piece), load(args, PEERS.rank)
    left = min(piece, load(args, PEERS.count) - lo * piece)
    x, y = ptr(load(args, PEERS.x), T) + lo * piece, ptr(load(args, PEERS.y), T) + lo * piece
    record, four, none, like = ptr(own, I64) + lo * RECORD, four_bytes(x), four_bytes(x), eight_bytes(x)
    k, lanes = load(record, COUNT) + 1, width(x) // 4
    slot = PACKET_BYTES // 12 * 16
    begin, step = PACKETS + (2 * lo + (k & 1)) * SIZE * slot, 3 * lanes * threads()
    if load(ptr(own, I64), BROKEN) != 0:
        return GAVE_UP
    for i in range(thread() * 3 * lanes, left, step):
        low, high = packed_words(x, i, left - i, four, none, T)
        place = begin + rank * slot + 16 * (i // (3 * lanes))
        for r in range(SIZE):
            if r != rank:
                tell_packet(load(args, PEERS.windows + r) + place, low, (high & LOW) | k << 32)
    barrier()  # all have read the count
    if thread() == 0:
        store(record, COUNT, k)
    for i in range(thread() * 3 * lanes, left, step):
        code, place, a, b = 0, own + begin + 16 * (i // (3 * lanes)), like, like
        for r in range(SIZE):
            low, high = packed_words(x, i, left - i, four, none, T)
            if r != rank:
                packet, missing = look_for(args, place + r * slot, k, r, True)
                code, low, high = missing if missing != 0 else code, lane(packet, 0), lane(packet, 1) & LOW
            u, v = unpacked(low, like, T), unpacked(high, like, T)
            a, b = (u, v) if r == 0 else (two(a, u, HOW), two(b, v, HOW))
        if code != 0:
            stop_all(args, SIZE)
            return code
        a, b = (divided(a, SIZE), divided(b, SIZE)) if HOW == AVG else (a, b)
        write_words(y, i, left - i, a, b)
    return 0


@by_type
def write_words(y, i, left, a, b):
    """Store what `packed_words` reads, of two vectors of eight bytes."""
    lanes = a.lanes // 2

    def implementation(y, i, left, a, b):
        write(y, i, vpiece(a, 0, lanes), left)
        write(y, i + lanes, vpiece(a, 1, lanes), left - lanes)
        write(y, i + 2 * lanes, vpiece(b, 0, lanes), left - 2 * lanes)

    return implementation


@jit.inline
def copied(y, x, count, T):
    """Copy elements by the threads of a block."""
    like = fill(0, T, width(x))
    for i in range(thread() * width(x), count, threads() * width(x)):
        write(y, i, read(x, i, count - i, like), count - i)


@jit.inline
def all_gather(args, lo, hi, T, SIZE):
    """Piece `lo` of what every rank gives, of a block. T is an unsigned integer, as elements and addresses allow."""
    own, piece = load(args, PEERS.own), load(args, PEERS.piece)
    record, found = ptr(own, I64) + lo * RECORD, ptr(shared(8), I64)
    k = load(record, COUNT) + 1
    given, first = SLOTS + (k % 2) * MOST_BYTES + lo * PIECE_BYTES, lo * piece
    if begin(own, found) != 0:
        return GAVE_UP

    copied(ptr(own + given, T), ptr(load(args, PEERS.x), T) + first, min(piece, load(args, PEERS.count) - first), T)
    code = meet(args, lo, k, GIVEN, found, SIZE)
    if code != 0:
        give_up(args, SIZE)
        return code
    for r in range(SIZE):
        place, count = load(args, PEERS.windows + 2 * SIZE + r), load(args, PEERS.windows + SIZE + r)
        if place != 0:
            theirs = ptr(load(args, PEERS.windows + r) + given, T)
            copied(ptr(place, T) + first, theirs, min(piece, count - first), T)
    if thread() == 0:
        store(record, COUNT, k)
    return 0
