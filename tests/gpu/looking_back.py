"""Kernels of tests: what a tile finds in the words of those before it, and threads that wait for one another."""

from infinicore.kernels.blocks import Block
from infinicore.kernels.build.jit import inline
from infinicore.kernels.cuda.array import firsts
from infinicore.kernels.cuda.reduce.sweep import before_tile
from infinicore.kernels.lang.ptx import barrier, thread
from infinicore.kernels.lang.simd import load, ptr, store
from numba import types

import infinicore as ic

WORDS = Block("words found | tile flag")
RUN_WORDS = Block("words found | tile")


@ic.cuda.kernel(WORDS, writes=["found"])
def look_back(args, lo, hi):
    found = ptr(load(args, WORDS.found), types.int64)
    for i in range(lo, hi):
        store(found, i, before_tile(load(args, WORDS.words) + 8 * i, load(args, WORDS.tile), load(args, WORDS.flag)))
    return 0


@ic.cuda.kernel(RUN_WORDS, item="block", threads=32, writes=["found"])
def look_back_at_runs(args, lo, hi):
    found = firsts.before_tile(load(args, RUN_WORDS.words), load(args, RUN_WORDS.tile))
    store(ptr(load(args, RUN_WORDS.found), types.int64), thread(), found)
    return 0


NEIGHBOURS = Block("room found")


@inline
def _next(args, lo):
    """(where this thread writes, where the next one does, where this one tells what it finds), 64 words a block."""
    room, found = load(args, NEIGHBOURS.room) + 512 * lo, load(args, NEIGHBOURS.found) + 512 * lo
    return ptr(room, types.int64), (thread() + 1) & 63, ptr(found, types.int64)


@ic.cuda.kernel(NEIGHBOURS, item="block", threads=64, writes=["found"])
def neighbours(args, lo, hi):
    room, other, found = _next(args, lo)
    store(room, thread(), types.int64(thread()))
    barrier()
    store(found, thread(), load(room, other))
    return 0


@ic.cuda.kernel(NEIGHBOURS, item="block", threads=64, writes=["found"])
def neighbours_at_once(args, lo, hi):
    """The same, wrong: nobody waits for the next thread."""
    room, other, found = _next(args, lo)
    store(room, thread(), types.int64(thread()))
    store(found, thread(), load(room, other))
    return 0


@ic.cuda.kernel(NEIGHBOURS, item="block", threads=64, writes=["found"])
def half_of_them_wait(args, lo, hi):
    if thread() < 32:
        barrier()
    return 0
