"""Waiting for another process: spin, then yield, then sleep, then give up."""

from numba import types

from ...blocks.comm import BROKEN, GONE, LATE, WAITING
from ...build import jit
from ...lang.atomic import call_c, load_acquire, pause, store_release
from ...lang.simd import address, load, ptr, stack, store

I64 = types.int64
YIELDS = 64  # before the first sleep
SHORT, LONG = 50_000, 1_000_000  # ns of a sleep: the first ones, and from the 64th on
LOOK = 32  # sleeps between two looks at the clock and the process
MONOTONIC = 1  # clock


@jit.inline
def now():
    """Nanoseconds of a clock that only goes forward."""
    time = ptr(stack(16), I64)
    call_c("clock_gettime", (MONOTONIC, address(time)))
    return load(time, 0) * 1_000_000_000 + load(time, 1)


@jit.inline
def report(args, code, peer):
    """Note which rank was waited for, let the others know that this one gives up, and return the code."""
    store(ptr(load(args, WAITING.report), I64), 0, peer)
    broken = load(args, WAITING.broken)
    if broken != 0:
        store_release(ptr(broken, I64), 0, load(args, WAITING.rank) + 1)
    return code


@jit.inline
def idle(args, peer, turn, started):
    """One turn of waiting for `peer`: 0, or the code of an error. `started` is memory of 8 bytes."""
    spin = load(args, WAITING.spin)
    if turn < spin:
        pause()
        return 0
    if turn < spin + YIELDS:
        call_c("sched_yield", (0,))
        return 0
    slept = turn - spin - YIELDS
    if slept == 0:
        store(started, 0, now())
    time = ptr(stack(16), I64)
    store(time, 0, 0)
    store(time, 1, SHORT if slept < 64 else LONG)
    call_c("nanosleep", (address(time), 0))
    broken = load(args, WAITING.broken)
    if broken != 0:
        who = load_acquire(ptr(broken, I64), 0)
        if who != 0:
            store(ptr(load(args, WAITING.report), I64), 0, who - 1)
            return BROKEN
    if slept % LOOK == LOOK - 1:
        if now() - load(started, 0) > load(args, WAITING.timeout):
            return report(args, LATE, peer)
        pids = load(args, WAITING.pids)
        if pids != 0 and peer >= 0:
            pid = load(ptr(pids, I64), peer)
            if pid != 0 and call_c("kill", (pid, 0)) != 0:
                return report(args, GONE, peer)
    return 0


@jit.inline
def wait_for(args, flags, step, wanted):
    """Wait until the flag of every rank, `step` numbers apart, has reached `wanted`: 0, or the code of an error."""
    started = ptr(stack(8), I64)
    for peer in range(load(args, WAITING.size)):
        turn = 0
        while load_acquire(flags, peer * step) < wanted:
            code = idle(args, peer, turn, started)
            # who gave up may have published first: what it called tells more
            if code != 0 and load_acquire(flags, peer * step) < wanted:
                return code
            turn += 1
    return 0
