"""Kernels of GPUs, compiled for the CPU with other functions in place of what GPUs alone have: a block of one thread.

`ROUNDS` are those beside copy engines (`kernels/cuda/comm/copies.py`): a grid of one thread.
"""

import ctypes
import functools
import importlib
import sys
import types as python
from pathlib import Path

from infinicore.kernels.build import disk, jit, render
from infinicore.kernels.build.host import digest
from infinicore.kernels.cpu.comm.waiting import now
from infinicore.kernels.cuda.comm import copies, peers
from infinicore.kernels.lang.atomic import call_c, load_acquire, store_release
from infinicore.kernels.lang.simd import ptr
from numba import types


class StandIns:
    """Kernels of modules where names mean other things.

    What Numba has compiled of a function stays with it, whatever the names in it mean later. So the others are in
    modules loaded once more, with functions of their own: when they were in the modules themselves for as long as a
    test ran, kernels of many threads (`gpu/threads.py`) that the process compiled later had code of one thread in them,
    and kept it in the cache for other processes.
    """

    def __init__(self, file, *replaced):
        """`replaced` are (module, name, what it means here); `file` is the caller's, of which code depends."""
        again = _loaded_again(dict.fromkeys(module.__name__ for module, *_ in replaced))
        for module, name, other in replaced:
            assert hasattr(module, name)
            setattr(again[module.__name__], name, other)
        self._files, self._name = (__file__, file), f"stand_ins_of_{Path(file).stem}"
        self.modules = {name.rpartition(".")[2]: module for name, module in again.items()}
        assert self._name not in sys.modules
        sys.modules[self._name] = package = python.ModuleType(self._name)
        vars(package).update(self.modules)

    @functools.cached_property
    def _digest(self):
        texts = [Path(file).read_text() for file in self._files]
        return digest("".join(disk.library_digest(text) + text for text in texts), 6)

    def source(self, name, parameters):
        """The rendered source of a kernel, with these modules in place of the others."""
        imported = f"from {self._name} import {', '.join(self.modules)}  # {self._digest}"
        return f"{render.stub(name, parameters, 'cuda')}\n\n{imported}\n"

    def kernel(self, name, parameters):
        """The kernel as a function of (address of its block, lo, hi), which gives its code."""
        handle = jit.load_kernel(f"emulated.{name}", self.source(name, parameters))
        return ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * 3)(handle & ~1)


def _loaded_again(names):
    """Modules of these names beside those that there are, by their names; they import one another."""
    before = {name: sys.modules.pop(name) for name in names}
    parents = {name: (sys.modules[name.rpartition(".")[0]], name.rpartition(".")[2]) for name in names}
    try:
        for place in parents.values():
            delattr(*place)
        return {name: importlib.import_module(name) for name in names}
    finally:
        sys.modules.update(before)
        for name, place in parents.items():
            setattr(*place, before[name])


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


ROUNDS = StandIns(
    __file__, (copies, "thread", first), (copies, "threads", alone), (copies, "block", first),
    (copies, "blocks", alone), (copies, "STEP", 1), (copies, "warp_barrier", first),
    (copies, "load_of_system", _load), (copies, "store_to_system", _store),
    (peers, "load_of_system", _load), (peers, "nanoseconds", now),
)  # fmt: skip


class Kernel:
    """One of `ROUNDS`: `run(values, items)` gives its code."""

    kept = {}

    def __init__(self, name, parameters):
        self.function = ROUNDS.kernel(name, parameters)

    def run(self, values, items):
        args = (ctypes.c_int64 * len(values))(*values)
        return self.function(ctypes.addressof(args), 0, items)

    @classmethod
    def of(cls, name, parameters):
        key = (name, *parameters.items())
        if key not in cls.kept:
            cls.kept[key] = cls(name, parameters)
        return cls.kept[key]
