"""Kernels of tests: what a tile finds in the words of those before it."""

from infinicore.kernels.blocks import Block
from infinicore.kernels.cuda.array import firsts
from infinicore.kernels.cuda.reduce.sweep import before_tile
from infinicore.kernels.lang.ptx import thread
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
