"""Thread policy: how many threads kernels use, and how they are started.

Threads are Numba's OpenMP workers, started by the first launch that is worth splitting. They spin
for a moment after a region (`GOMP_SPINCOUNT=10000`: a launch costs 1.8 us on a quiet machine and at
most 55 us beside a process that holds one of two cores; endless spinning costs milliseconds there,
passive waiting 50 us always). A forked child runs serially: OpenMP's workers do not survive a fork.
"""

import functools
import os

from . import jit

forked = False  # whether this process is the child of one that may have had workers

_STUB = '''"""Rendered from the driver `{name}`."""

from infinicore.kernels.cpu import driver


def kernel({arguments}):
    return driver.{name}({arguments})
'''


def available_cpus():
    """CPUs that this process may use: affinity mask and cgroup quota."""
    try:
        count = len(os.sched_getaffinity(0))
    except AttributeError:  # macOS
        count = os.cpu_count() or 1
    try:
        with open("/sys/fs/cgroup/cpu.max") as file:
            quota, period = file.read().split()
        if quota != "max":
            count = min(count, max(1, int(quota) // int(period)))
    except (OSError, ValueError):
        pass
    return count


def default_threads():
    """The thread count at start: `INFINICORE_NUM_THREADS`, else every CPU this process may use."""
    given = os.environ.get("INFINICORE_NUM_THREADS")
    if given is None:
        return available_cpus()
    if not given.isdigit() or int(given) < 1:
        raise ValueError(f"`INFINICORE_NUM_THREADS` must be a positive integer, got {given!r}")
    return int(given)


def load_driver(name, arguments):
    """The address of a function of `cpu/driver.py`."""
    return jit.load_kernel(f"driver.{name}", _STUB.format(name=name, arguments=arguments))


@functools.cache
def driver():
    """The address of `drive`, with the workers started. Takes about half a second, once."""
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    import numba

    if "NUMBA_THREADING_LAYER" not in os.environ:
        # TBB's wheel is optional and workqueue is neither re-entrant nor thread-safe.
        numba.config.THREADING_LAYER_PRIORITY = ["omp", "tbb", "workqueue"]
    if "NUMBA_NUM_THREADS" not in os.environ:
        numba.config.NUMBA_NUM_THREADS = limit()
    from numba.core.registry import cpu_target
    from numba.core.runtime import rtsys
    from numba.np.ufunc.parallel import _launch_threads

    # Cached parallel code refers to symbols that these two register; without them it crashes.
    _launch_threads()
    rtsys.initialize(cpu_target.target_context)
    return load_driver("drive", "fn, args, n, parts")


def limit():
    """The most threads that a launch can use in this process."""
    if forked:
        return 1
    return max(default_threads(), available_cpus())
