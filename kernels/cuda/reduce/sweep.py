"""Long rows sorted by their digits, least significant first, 8 bits a pass: each pass reads and writes a row once.

One launch counts all digits of all keys (`count`). Then a pass is a launch of tiles (`move`), each of which a block
holds in registers. Its counts go to memory as soon as it has them. Then the threads of a warp find who has the same
digit by votes, and elements go to shared memory in the order of their digits, so that what goes to neighbouring places
is written together. Where they go is what the row has of smaller digits, and what the tiles before have of this one: a
thread for each digit looks back from tile to tile, until one has told the sum of all before it as well, and tells its
own. A pass of float32 is 106 instructions an element, 16 bytes of it and its place, and half of the threads that a
multiprocessor has room for; before, three launches were 270 instructions, 20 bytes and a quarter of the threads.
(Adinets and Merrill: Onesweep, a faster least significant digit radix sort for GPUs, 2022.)

Elements move as they are, and keys are made where they are compared. Where they were are 32-bit integers between
passes, which the first pass makes and the last one widens.
"""

from numba import types

from ...blocks.cuda import RADIX
from ...build import jit
from ...lang.near import bits_from, each, each_of, load_far, load_near, store_far, store_near
from ...lang.ptx import (
    WARP,
    alike_bits,
    atomic_count,
    barrier,
    count_bits,
    dynamic_memory,
    from_below,
    peek,
    post,
    thread,
    warp_barrier,
)
from ...lang.simd import address, load, ptr
from ..atomics import add_word
from .keys import above_key, key_at
from .sizes import SWEEP_BYTES, SWEEP_THREADS

I32, I64, U32 = types.int32, types.int64, types.uint32
DIGITS, WARPS = 256, SWEEP_THREADS // WARP
HALF, CLEARED = WARPS // 2, DIGITS // WARP  # warps that have a thread for each digit; counters that a thread clears
# where they begin in shared memory, behind the elements of a tile
ORDER, COUNTED = SWEEP_BYTES, 2 * SWEEP_BYTES
BEGINS = COUNTED + 4 * WARPS * DIGITS
PARTS = BEGINS + 4 * DIGITS
AHEAD = 8  # elements of a thread on their way at once
LOW, NOWHERE = (1 << 32) - 1, -(1 << 32)


@jit.inline
def digit_from(key, mask, shift):
    return U32((U32(bits_from(key, shift)) ^ U32(mask)) & U32(DIGITS - 1))


@jit.inline
def digit_at(keys, bits):
    """The digit of an element, where `keys` says how keys are made: (infinity, mask, shift, E, KIND)."""
    infinity, mask, shift, E, KIND = keys
    return digit_from(key_at(bits, infinity, E, KIND), mask, shift)


@jit.inline
def keys_of(args, shift, E, KIND):
    """How keys are made, and where the digit that begins at bit `shift` is in registers."""
    return E(load(args, RADIX.infinity)), E(load(args, RADIX.mask)), shift + above_key(E), E, KIND


@jit.inline
def row_of(item, each_row):
    """(row, number in it) of an item; a quotient takes as long as two elements of a tile."""
    if item < each_row:
        return 0, item
    row = I64(U32(item) // U32(each_row))
    return row, item - row * each_row


# ---- how many elements of rows have each digit ---------------------------------------------------------


@jit.inline
def key_whole(state, k):
    """The key of an element of a chunk that has all of them."""
    source, apart, (infinity, _, _, E, KIND) = state
    return key_at(load_far(source, k * apart), infinity, E, KIND)


@jit.inline
def key_within(state, k):
    """The key of an element of a chunk."""
    source, i, stop, step, (infinity, _, _, E, KIND) = state
    return key_at(load_far(source, min(i + k * SWEEP_THREADS, stop - 1) * step), infinity, E, KIND)


@jit.inline
def count_all(state, k, key):
    """Count each digit of a key."""
    counts, (_, mask, shift, _, _), digits = state
    for digit in range(digits):
        atomic_count(address(counts + (digit * DIGITS + I64(digit_from(key, mask, shift + 8 * digit)))))
    return 0


@jit.inline
def count_within(state, k, key):
    """The same, if the chunk has it."""
    of_all, i, stop = state
    if i + k * SWEEP_THREADS < stop:
        count_all(of_all, k, key)
    return 0


@jit.inline
def count(args, lo, hi, E, KIND, DIGIT_COUNT):
    """Add how often each digit stands in chunk `lo` of all rows' chunks, of `room` elements each, to the totals."""
    row, chunk = row_of(lo, load(args, RADIX.tiles))
    step, counts = load(args, RADIX.step), ptr(dynamic_memory(), I32)
    first = chunk * load(args, RADIX.room)
    stop = min(load(args, RADIX.size), first + load(args, RADIX.room))
    source = ptr(load(args, RADIX.source), E) + row * load(args, RADIX.stride)
    keys = keys_of(args, 0, E, KIND)
    for k in range(thread(), DIGIT_COUNT * DIGITS, SWEEP_THREADS):
        store_near(counts, k, 0)
    barrier()
    for i in range(first + thread(), stop, AHEAD * SWEEP_THREADS):
        if i - thread() + AHEAD * SWEEP_THREADS <= stop:
            own = each(AHEAD, key_whole, (source + i * step, SWEEP_THREADS * step, keys))
            each_of(own, count_all, (counts, keys, DIGIT_COUNT))
        else:
            own = each(AHEAD, key_within, (source, i, stop, step, keys))
            each_of(own, count_within, ((counts, keys, DIGIT_COUNT), i, stop))
    barrier()
    totals = ptr(load(args, RADIX.totals), I32)
    for k in range(thread(), DIGIT_COUNT * DIGITS, SWEEP_THREADS):
        here = load_near(counts, k)
        if here != 0:
            add_word(totals, row * (DIGIT_COUNT * DIGITS) + k, here)
    return 0


# ---- a pass ----------------------------------------------------------------------------------------------


@jit.inline
def whole(state, k):
    """An element of a tile that has all of them."""
    source, first, step, _ = state
    return load_far(source, (first + k * WARP) * step)


@jit.inline
def within(state, k):
    """An element of a tile that ends before."""
    source, first, step, size = state
    return load_far(source, min(first + k * WARP, size - 1) * step)


@jit.inline
def digit_of(keys, k, bits):
    return digit_at(keys, bits)


@jit.inline
def digit_within(state, k, bits):
    """The same; behind the end of the tile the last digit, so that nothing stands behind these."""
    first, size, keys = state
    digit = digit_at(keys, bits)
    return digit if first + k * WARP < size else U32(DIGITS - 1)


@jit.inline
def clear(counts, k):
    store_near(counts, thread() % WARP + k * WARP, I32(0))
    return 0


@jit.inline
def count_one(counts, k, digit):
    atomic_count(address(counts + digit))
    return 0


@jit.inline
def place_one(state, k, digit):
    """Where an element belongs in the sorted tile: behind those of its digit of this warp that stand before it."""
    counts, before = state
    same, at = U32(alike_bits(digit, 8)), load_near(counts, digit)
    mine = U32(same & before)
    warp_barrier()
    if mine == 0:
        store_near(counts, digit, at + I32(count_bits(same)))
    warp_barrier()
    return I32(at + I32(count_bits(mine)))


@jit.inline
def put(memory, k, place, value):
    store_near(memory, place, value)
    return 0


@jit.inline
def number(first, k):
    return I32(first + k * WARP)


@jit.inline
def told(words, tile):
    """The word of a tile for a digit."""
    return peek(words + max(tile, 0) * (8 * DIGITS))


@jit.inline
def joined(found, word, flag):
    """`found`, (sum, tile, whether it goes on, whether that was the last one), with the word of the next tile before.

    Words of passes before are less than `flag`, and there is nothing to know of them.
    """
    total, tile, going, last = found
    if going and word >= flag:
        return total + (word & LOW), tile - 1, word < flag + (LOW + 1), word >= flag + (LOW + 1)
    return total, tile, False, last


@jit.inline
def before_tile(words, tile, flag):
    """How many elements of the tiles before this one have a digit, whose word of tile 0 is at `words`.

    Four words are on their way at once: where all blocks begin together, each looks far back.
    """
    found = I64(0), tile - 1, True, False
    while not found[3]:
        tile = found[1]
        a, b, c, d = told(words, tile), told(words, tile - 1), told(words, tile - 2), told(words, tile - 3)
        found = joined((found[0], tile, True, False), a, flag)
        found = joined(joined(joined(found, b, flag), c, flag), d, flag)
    return found[0]


@jit.inline
def tell(args, row, tile, total, before, last):
    """Store what a tile has of this thread's digit, or (`last`) with those before."""
    flag = (load(args, RADIX.shift) // 4 + 1 + I64(last)) << 32
    at = (row * load(args, RADIX.tiles) + tile) * DIGITS + thread()
    post(load(args, RADIX.counts) + 8 * at, flag | (total + before))


@jit.inline
def running(v, parts):
    """The sum of an int32 of the threads before this one in its half of the block. All threads have met then."""
    upto, warp = v, thread() // WARP
    for apart in (1, 2, 4, 8, 16):
        below = from_below(upto, apart)
        if thread() % WARP >= apart:
            upto += below
    if thread() % WARP == WARP - 1:
        store_near(parts, warp, upto)
    barrier()
    before = upto - v
    for k in range(warp & ~(HALF - 1), warp):
        before += load_near(parts, k)
    return before


@jit.inline
def places_of_digits(args, row, tile, counts, memory):
    """From counts of warps to where their digits begin in the tile. Returns (how many have this thread's digit, where
    that begins); behind the digits' threads are those who store the sum of smaller digits of the row.
    """
    v, digit = I32(0), thread() & (DIGITS - 1)
    if thread() < DIGITS:
        for k in range(WARPS):
            v += load_near(counts, k * DIGITS + digit)
        tell(args, row, tile, I64(v), 0, tile == 0)
    else:
        at = (row * load(args, RADIX.digits) + load(args, RADIX.shift) // 8) * DIGITS + digit
        v = load_far(ptr(load(args, RADIX.totals), I32), at)
    begin = running(v, ptr(memory + PARTS, I32))
    if thread() < DIGITS:
        at = begin
        for k in range(WARPS):
            here = load_near(counts, k * DIGITS + digit)
            store_near(counts, k * DIGITS + digit, at)
            at += here
    else:
        store_near(ptr(memory + BEGINS, I32), digit, begin)
    barrier()
    return v, begin


@jit.inline
def find_shifts(args, row, tile, found, memory):
    """How much further elements of each digit stand in the row than in the sorted tile."""
    total, begin = found
    if thread() < DIGITS:
        before = I64(0)
        if tile > 0:
            words = load(args, RADIX.counts) + (row * load(args, RADIX.tiles) * DIGITS + thread()) * 8
            before = before_tile(words, tile, (load(args, RADIX.shift) // 4 + 1) << 32)
            tell(args, row, tile, I64(total), before, True)
        shifts = ptr(memory + BEGINS, I32)
        store_near(shifts, thread(), load_near(shifts, thread()) + I32(before) - begin)


@jit.inline
def put_order(memory, k, place, value):
    """Behind the elements: the same address, and a constant."""
    store_near(memory, I64(place) + ORDER // 4, value)
    return 0


@jit.inline
def settled(state, k):
    """(an element of the sorted tile, where it was, where it goes)."""
    (x, order, shifts), keys = state
    bits, place = load_near(x, k * SWEEP_THREADS), load_near(order, ORDER // 4 + k * SWEEP_THREADS)
    return bits, place, I64(load_near(shifts, digit_at(keys, bits))) + k * SWEEP_THREADS


@jit.inline
def write_one(state, k):
    """An element of the sorted tile, and where it was, to its place in the row."""
    (to, order_to), from_tile = state
    bits, place, at = settled(from_tile, k)
    store_far(to, at, bits)
    store_far(order_to, at, place)
    return 0


@jit.inline
def write_within(state, k):
    """The same, where the tile has it and the results do: `ends` of values and places, counted from this thread on."""
    (to, order_to), from_tile, left, (values_end, end) = state
    if k * SWEEP_THREADS < left:
        bits, place, at = settled(from_tile, k)
        if at < values_end:
            store_far(to, at, bits)
        if at < end:
            store_far(order_to, at, place)
    return 0


@jit.inline
def move(args, lo, hi, E, KIND, I, K, FIRST, LAST):
    """The K elements for each thread of tile `lo` of all rows' tiles, to their places by this digit, or (`LAST`) to the
    results, where I is wider.
    """
    row, tile = row_of(lo, load(args, RADIX.tiles))
    memory, row_size, first = dynamic_memory(), load(args, RADIX.size), tile * (K * SWEEP_THREADS)
    keys = keys_of(args, load(args, RADIX.shift), E, KIND)
    size, step = min(K * SWEEP_THREADS, row_size - first), 1
    if FIRST:
        step = load(args, RADIX.step)
    source = ptr(load(args, RADIX.source), E) + row * load(args, RADIX.stride) + first * step
    counts = ptr(memory + COUNTED, I32)
    mine = counts + thread() // WARP * DIGITS
    own = thread() // WARP * (K * WARP) + thread() % WARP
    if size == K * SWEEP_THREADS:
        bits = each(K, whole, (source, own, step, size))
        digits = each_of(bits, digit_of, keys)
    else:
        bits = each(K, within, (source, own, step, size))
        digits = each_of(bits, digit_within, (own, size, keys))
    each(CLEARED, clear, mine)
    warp_barrier()
    each_of(digits, count_one, mine)
    barrier()
    found = places_of_digits(args, row, tile, counts, memory)
    places = each_of(digits, place_one, (mine, U32((1 << thread() % WARP) - 1)))
    each_of((places, bits), put, ptr(memory, E))
    if FIRST:
        numbers = each(K, number, first + own)
    else:
        from_order = ptr(load(args, RADIX.order), I32) + row * row_size + first
        numbers = each(K, whole, (from_order, own, 1, size))  # behind the last tile, there is room for them
    each_of((places, numbers), put_order, ptr(memory, I32))
    find_shifts(args, row, tile, found, memory)
    barrier()
    near = ptr(memory, E) + thread(), ptr(memory, I32) + thread(), ptr(memory + BEGINS, I32)
    values, indices, wanted, all_wanted = load(args, RADIX.to), load(args, RADIX.order_to), row_size, True
    if LAST:
        values, indices, wanted = load(args, RADIX.values), load(args, RADIX.indices), load(args, RADIX.wanted)
        all_wanted = wanted == row_size and values != 0
    i, end = row * wanted + thread(), wanted - thread()
    to = ptr(values, E) + i, ptr(indices, I) + i
    if size == K * SWEEP_THREADS and all_wanted:
        each(K, write_one, (to, (near, keys)))
    else:
        ends = end if values != 0 else NOWHERE, end
        each(K, write_within, (to, (near, keys), size - thread(), ends))
    return 0
