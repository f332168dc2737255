"""The most frequent elements of sorted rows: the longest runs of equal ones, of several the first.

A warp or a block has a row, or a part of it; of parts a second launch finds the best. The last element of each run
finds where this began by bisection, so that none waits for those before: a scan of runs and what went with it were a
dozen launches (8192 rows of 64 of float32: 262 us, PyTorch 76; H200).
"""

from numba import types

from ...blocks.reduce import MODES
from ...build import jit
from ...cpu.reduce.modes import take
from ...lang.ptx import thread, threads
from ...lang.simd import load, ptr, store
from ..block import across

I64 = types.int64
PLACE = (1 << 32) - 1  # of a word: how far behind its beginning a run ends, and PLACE - where


@jit.inline
def beginning(x, i):
    """Where the run that element `i` ends began; NaN is a run of its own."""
    value, low, high = load(x, i), I64(0), I64(i)
    if i == 0 or load(x, i - 1) != value:
        return I64(i)
    while low < high:
        middle = (low + high) >> 1
        if load(x, middle) < value:
            low = middle + 1
        else:
            high = middle
    return low


@jit.inline
def larger(a, b):
    return max(a, b)


@jit.inline
def modes(args, lo, hi, T, E, TEAM, CUT):
    """As many parts of rows as a block has teams; of `CUT` ones, the words go to `best`."""
    size, parts, part = load(args, MODES.size), load(args, MODES.parts), load(args, MODES.part)
    count = load(args, MODES.rows) * parts
    unit = lo * (threads() // TEAM) + thread() // TEAM
    own = min(unit, count - 1)
    row = own // parts
    start = (own - row * parts) * part
    x, end, best = ptr(load(args, MODES.ordered), T) + row * size, min(size, start + part), I64(0)
    for i in range(start + thread() % TEAM, end, TEAM):
        if i + 1 == size or load(x, i + 1) != load(x, i):
            best = max(best, ((i - beginning(x, i)) << 32) | (PLACE - i))
    best = across(best, larger, TEAM)
    if thread() % TEAM == 0 and unit < count:
        if CUT:
            store(ptr(load(args, MODES.best), I64), unit, best)
        else:
            take(args, row, PLACE - (best & PLACE), E)
    return 0


@jit.inline
def join(args, lo, hi, E):
    """A row, of the words of its parts."""
    parts, best = load(args, MODES.parts), I64(0)
    words = ptr(load(args, MODES.best), I64) + lo * parts
    for i in range(thread(), parts, threads()):
        best = max(best, load(words, i))
    best = across(best, larger, threads())
    if thread() == 0:
        take(args, lo, PLACE - (best & PLACE), E)
    return 0
