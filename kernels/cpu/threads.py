"""Thread policy: how many threads kernels use, and how they are started.

Workers are threads of our own (`pool.py`), started by the first launch that is worth splitting. They look for more work
for a moment: endless spinning costs milliseconds where others want the CPUs. A launch of two empty slices costs 0.25 us
more than a call, and 5 to 20 where the worker sleeps (with OpenMP's threads through Numba 1.7 and 330). A forked child
runs serially: threads do not survive a fork.
"""

import ctypes
import functools
import os
import platform
import sys
import threading

from ..blocks.pool import AHEAD_BYTES, FUTEX, LINE, SLICES, WORDS
from ..build import elf, jit, rates
from .machine import available_cpus, second_level_bytes

MOST = 64  # threads that may be asked for on a machine of fewer CPUs: more only wait, and thousands cannot be started
_FUTEX = {"x86_64": 202, "aarch64": 98}  # the number of the call of the system
# A thread that waits asks for what a quarter of its second-level cache holds. TinyLlama in bfloat16, decoded beside
# what a loop in C reads: 16 cores of Emerald Rapids (2 MB each) 0.88 to 0.91, by an eighth and a half of the cache 0.83
# to 0.87 and 0.89 to 0.90, without 0.76 to 0.79; two of Zen 4 (1 MB each) 0.94 to 1.00, without 0.85 to 0.93.
_AHEAD = 4
_forked = False  # whether this process is the child of one that may have had workers
_workers = 0  # threads that have been started
_starting = threading.Lock()

_STUB = '''"""Rendered from the driver `{name}`."""

from infinicore.kernels.cpu import driver
from infinicore.kernels.lang.vector import BLOCK


def kernel({arguments}):
    return driver.{name}({arguments})
'''


def _survey():
    from .measure.survey import survey  # which takes Numba

    return survey()


rates.surveyed_by(available_cpus, _survey)


def after_fork():
    """In a child: run serially from now on."""
    global _forked
    _forked = True


def default_threads():
    """The thread count at start: `INFINICORE_NUM_THREADS`, else every CPU this process may use."""
    given, cpus = os.environ.get("INFINICORE_NUM_THREADS"), min(SLICES, available_cpus())
    if not given:
        return cpus
    most = max(MOST, cpus)
    if not given.isdecimal() or len(given) > 9 or not 1 <= int(given) <= most:
        raise ValueError(
            f"`INFINICORE_NUM_THREADS` must be between 1 and {most} ({cpus} CPUs are available here), got {given!r}"
        )
    return int(given)


@functools.cache
def load_driver(name, arguments):
    """The address of a function of `cpu/driver.py`."""
    return jit.load_kernel(f"driver.{name}", _STUB.format(name=name, arguments=arguments))


@functools.cache
def driver():
    """The address of `drive`."""
    _pool()
    return load_driver("drive", "kernel, args, n, parts")


@functools.cache
def _pool():
    """The memory of `cpu/pool.py`, which stays until the process ends."""
    c = ctypes.CDLL(None)
    c.aligned_alloc.restype, c.aligned_alloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t] * 2
    words = (ctypes.c_int64 * WORDS).from_address(c.aligned_alloc(8 * LINE, 8 * WORDS))
    ctypes.memset(words, 0, 8 * WORDS)
    words[FUTEX] = _FUTEX.get(platform.machine(), 0) if sys.platform == "linux" else 0
    words[AHEAD_BYTES] = second_level_bytes() // _AHEAD
    elf.provided["infinicore_pool"] = ctypes.addressof(words)
    return words


def teams():
    """From how much work on a launch is worth 2, 4, 8, ... threads, in sixteenths of its grain."""
    return rates.teams()


def set_team(count):
    """Have the workers that launches of `count` threads wake: one less, besides the thread that launches."""
    global _workers
    with _starting:
        missing = range(_workers + 1, 1 if _forked else count)
        if not missing:
            return
        driver()
        create, work = ctypes.CDLL(None).pthread_create, ctypes.c_void_p(load_driver("work", "own"))
        import signal  # here: its enumerations take 0.6 ms, and small models start no workers

        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # signals are for Python's threads
        try:
            for own in missing:
                if create(ctypes.byref(ctypes.c_ulong()), None, work, ctypes.c_void_p(own)) != 0:
                    break  # a limit of the system: those that are there do all the work
                _workers = own
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


@functools.cache
def _most():
    return max(default_threads(), min(SLICES, available_cpus()))


def limit():
    """The most threads that a launch can use in this process."""
    return 1 if _forked else _most()
