"""The kernels beside copy engines (`kernels/cuda/comm/copies.py`), compiled for the CPU: a grid of one thread."""

import ctypes

from infinicore.kernels.build import jit, render
from infinicore.kernels.cpu.comm.waiting import now
from infinicore.kernels.cuda.comm import copies, peers
from infinicore.kernels.lang.atomic import call_c, load_acquire, store_release
from infinicore.kernels.lang.simd import ptr
from numba import types


@jit.inline
def first():
    """The number of the one thread, or block."""
    return 0


@jit.inline
def alone():
    """How many there are."""
    return 1


@jit.inline
def _load(at):
    call_c("sched_yield", ())  # there are more streams than CPUs
    return load_acquire(ptr(at, types.int64), 0)


@jit.inline
def _store(at, value):
    store_release(ptr(at, types.int64), 0, value)


def stand_in(replace):
    """Give the kernels what the CPU has in place of what GPUs have, by `replace(module, name, value)`."""
    for module, name, other in (
        (copies, "thread", first), (copies, "threads", alone), (copies, "block", first), (copies, "blocks", alone),
        (copies, "STEP", 1), (copies, "warp_barrier", first),
        (copies, "load_of_system", _load), (copies, "store_to_system", _store),
        (peers, "load_of_system", _load), (peers, "nanoseconds", now),
    ):  # fmt: skip
        replace(module, name, other)


class Kernel:
    """One of these kernels: `run(values, items)` gives its code."""

    kept = {}

    def __init__(self, name, parameters):
        handle = jit.load_kernel(f"emulated.{name}", render.stub(name, parameters, "cuda"))
        self.function = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * 3)(handle & ~1)

    def run(self, values, items):
        args = (ctypes.c_int64 * len(values))(*values)
        return self.function(ctypes.addressof(args), 0, items)

    @classmethod
    def of(cls, name, parameters):
        key = (name, *parameters.items())
        if key not in cls.kept:
            cls.kept[key] = cls(name, parameters)
        return cls.kept[key]
