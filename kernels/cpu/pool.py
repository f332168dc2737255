"""The workers of a process: threads that wait for launches and do slices of them, beside whoever launches.

A launch is a job of one slice a thread, or of several. Its caller takes a free place for it, sets a bit for each slice,
tells the workers 1 .. threads - 1, and does slices itself: its own, then those that nobody has begun. So it never waits
for a worker that has begun nothing, such as one that the system has taken from its CPU, and without workers (in a
forked child) it does all. Who clears a bit has the slice, and the job stays where it is until all its slices are done:
what a late worker reads is either of the job whose bit it has cleared, or not used. Several threads may launch at the
same time, and a slice may launch: each takes a place of its own, and without a free one runs alone.

A kernel is told the number of its thread: 0 is the caller, others are workers. Scratch is that of a thread, not of a
slice, so that it is in the thread's cache whatever slices it gets (with 16 threads products are 3 to 8 % faster so). A
launch has scratch for its own threads alone: a worker with another number, which another launch has woken, puts the
slice back.

A worker has a box, which callers count up by 2; its lowest bit says that the worker sleeps and has to be woken. It
looks into its box for a moment before it sleeps (`SPIN`).

Meanwhile it asks for the first lines that it will read in the next launch of a graph that streams, so that memory is
not idle while threads wait for each other, and for the small launches between.
"""

from numba import types

from ..blocks import pool as at
from ..build import jit
from ..lang.atomic import (
    address_of,
    call_c,
    call_kernel,
    fetch_add,
    fetch_and,
    fetch_or,
    load_acquire,
    lowest_bit,
    pause,
    replace,
    store_release,
)
from ..lang.memory import LINE_BYTES
from ..lang.simd import address, load, prefetch, ptr, stack, store

I8, I64 = types.int8, types.int64
BITS = 64  # slices that a word has bits for
SPIN = 10_000  # turns, some 100 us
CALLER_SPIN = 1_000  # the worker that it waits for may want its CPU
TURN_BYTES = 1024  # that are asked for between two looks into a box
YIELDS = 64  # of a caller that waits for the last slices, before it sleeps in turns of 50 us
_WAIT, _WAKE = 128, 129  # FUTEX_WAIT_PRIVATE, FUTEX_WAKE_PRIVATE (linux/futex.h)


@jit.inline
def _job(pool, place):
    return ptr(address(pool) + 8 * (at.FIRST_JOB + at.JOB * place), I64)


@jit.inline
def _box(pool, worker):
    return ptr(address(pool) + 8 * (at.FIRST_BOX + at.LINE * worker), I64)


@jit.inline
def _run(job, part, own):
    """Do a slice whose bit thread `own` has cleared."""
    n = load(job, at.N)
    step = (n + load(job, at.PARTS) - 1) // load(job, at.PARTS)
    lo = part * step
    hi = min(n, lo + step)
    if lo < hi:
        code = call_kernel(load(job, at.KERNEL), load(job, at.ARGS), lo, hi, own)
        if code != 0:
            store(job, at.STATUS, code)
    fetch_add(job, at.DONE, 1)


@jit.inline
def _take(job, own):
    """Clear the bit of a slice that nobody has begun, of thread `own` if it can be: its number, or -1."""
    each = load(job, at.EACH)  # of this job or of the next one: a number that leads nowhere else than to bits
    for part in range(own * each, min(own * each + each, at.SLICES)):
        word, bit = part // BITS, I64(1) << (part % BITS)
        if load_acquire(job, word) & bit != 0 and fetch_and(job, word, ~bit) & bit != 0:
            return part
    for word in range(at.SLICES // BITS):
        bits = load_acquire(job, word)
        while bits != 0:
            place = lowest_bit(bits)
            bit = I64(1) << place
            if fetch_and(job, word, ~bit) & bit != 0:
                return word * BITS + place
            bits = load_acquire(job, word)
    return -1


@jit.inline
def _help(job, own):
    """Do slices until all have been begun; returns how many."""
    part, done = _take(job, own), 0
    while part >= 0:
        if own >= load(job, at.THREADS):  # another job has come to this place, which has no scratch for this thread
            fetch_or(job, part // BITS, I64(1) << (part % BITS))
            return done
        _run(job, part, own)
        part, done = _take(job, own), done + 1
    return done


@jit.inline
def _ahead(pool, job, own):
    """Where the first bytes begin, and end, that thread `own` reads in the next launch that streams."""
    step = load(job, at.AHEAD_STEP)
    here = load(job, at.AHEAD) + own * step
    return here, min(here + min(step, load(pool, at.AHEAD_BYTES)), load(job, at.AHEAD_END))


@jit.inline
def _fetch(here):
    """Ask for the lines of `TURN_BYTES` from `here` on, which need not exist; returns where the next ones begin."""
    for offset in range(0, TURN_BYTES, LINE_BYTES):
        prefetch(ptr(here, I8), offset)
    return here + TURN_BYTES


@jit.inline
def _sleep_short():
    time = ptr(stack(16), I64)
    store(time, 0, 0)
    store(time, 1, 1_000)  # ns; the system makes 50,000 of it
    call_c("nanosleep", (address(time), 0))


@jit.inline
def _wait_for(box, seen, futex, here, end):
    """Wait until `box` differs from `seen`; at first, ask for memory from `here` to `end`."""
    for _ in range(SPIN):
        if load_acquire(box, 0) != seen:
            return
        if here < end:
            here = _fetch(here)
        else:
            pause()
    if replace(box, 0, seen, seen | 1) != seen:
        return
    # A futex compares 32 bits, which on little-endian machines lie first.
    while load_acquire(box, 0) == seen | 1:
        if futex != 0:
            call_c("syscall", (futex, address(box), _WAIT, (seen | 1) & 0xFFFFFFFF, 0, 0, 0))
        else:
            _sleep_short()
    fetch_and(box, 0, ~I64(1))


@jit.inline
def work(own):
    """Worker number `own`, from 1 on, to the end of the process."""
    pool = ptr(address_of("infinicore_pool"), I64)
    box = _box(pool, own)
    futex, seen = load(pool, at.FUTEX), I64(0)
    while futex >= 0:
        here = end = I64(0)
        for place in range(at.JOBS):
            job = _job(pool, place)
            if own < load(job, at.THREADS) and _help(job, own) > 0:
                here, end = _ahead(pool, job, own)
        _wait_for(box, seen, futex, here, end)
        seen = load_acquire(box, 0) & ~I64(1)
    return 0


@jit.inline
def _begin(pool):
    """A free place for a job, or -1."""
    for place in range(at.JOBS):
        job = _job(pool, place)
        if load_acquire(job, at.TAKEN) == 0 and replace(job, at.TAKEN, 0, 1) == 0:
            return place
    return -1


@jit.inline
def _tell(pool, threads):
    """Count up the boxes of the workers 1 .. threads - 1, and wake those that sleep."""
    futex = load(pool, at.FUTEX)
    for worker in range(1, threads):
        box = _box(pool, worker)
        if fetch_add(box, 0, 2) & 1 != 0 and futex != 0:
            call_c("syscall", (futex, address(box), _WAKE, 1, 0, 0, 0))


@jit.inline
def split(kernel, args, n, parts, ahead, step, end):
    """Run [0, n) on several threads, as `parts` says (`blocks/pool.py`); an error code if any slice returned one.

    `ahead`, `step` and `end` are those of a record (`blocks/driver.py`).
    """
    pool = ptr(address_of("infinicore_pool"), I64)
    place = _begin(pool)
    if place < 0:
        return call_kernel(kernel, args, 0, n, 0)
    job = _job(pool, place)
    threads, each = parts % at.SHARED, max(1, parts // at.SHARED)
    parts = threads * each
    store(job, at.EACH, each)
    store(job, at.THREADS, threads)
    store(job, at.KERNEL, kernel)
    store(job, at.ARGS, args)
    store(job, at.N, n)
    store(job, at.PARTS, parts)
    store(job, at.STATUS, 0)
    store(job, at.DONE, 0)
    store(job, at.AHEAD, ahead)
    store(job, at.AHEAD_STEP, step)
    store(job, at.AHEAD_END, end)
    for word in range((parts + BITS - 1) // BITS):
        count = parts - word * BITS
        store_release(job, word, I64(-1) if count >= BITS else (I64(1) << count) - 1)
    _tell(pool, threads)
    _help(job, 0)
    here, end = _ahead(pool, job, 0)
    turn = 0
    while load_acquire(job, at.DONE) < parts:
        if here < end:
            here = _fetch(here)
        elif turn < CALLER_SPIN:
            pause()
        elif turn < CALLER_SPIN + YIELDS:
            call_c("sched_yield", (0,))
        else:
            _sleep_short()
        turn += 1
        _help(job, 0)  # a slice that a thread of another job has put back
    status = load(job, at.STATUS)
    store_release(job, at.TAKEN, 0)
    return status
