"""Thread policy: how many threads kernels use, and how they are started.

Threads are Numba's OpenMP workers, started by the first launch that is worth splitting. They spin
for a moment after a region (`GOMP_SPINCOUNT=10000`: a launch costs 1.8 us on a quiet machine and at
most 55 us beside a process that holds one of two cores; endless spinning costs milliseconds there,
passive waiting 50 us always). A forked child runs serially: OpenMP's workers do not survive a fork.
"""

import functools
import os

from ..build import jit
from .machine import available_cpus

MOST = 64  # threads that may be asked for on a machine of fewer CPUs: more only wait, and thousands cannot be started
_forked = False  # whether this process is the child of one that may have had workers

_STUB = '''"""Rendered from the driver `{name}`."""

from infinicore.kernels.cpu import driver
from infinicore.kernels.lang.vector import BLOCK


def kernel({arguments}):
    return driver.{name}({arguments})
'''


def after_fork():
    """In a child: run serially from now on."""
    global _forked
    _forked = True


def default_threads():
    """The thread count at start: `INFINICORE_NUM_THREADS`, else every CPU this process may use."""
    given, cpus = os.environ.get("INFINICORE_NUM_THREADS"), available_cpus()
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
    """The address of `drive`, with the workers started. Takes about half a second, once."""
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    import numba
    from numba.core.registry import cpu_target
    from numba.core.runtime import rtsys
    from numba.np.ufunc import parallel

    if "NUMBA_THREADING_LAYER" not in os.environ:
        # TBB's wheel is optional and workqueue is neither re-entrant nor thread-safe.
        numba.config.THREADING_LAYER_PRIORITY = ["omp", "tbb", "workqueue"]
    if "NUMBA_NUM_THREADS" not in os.environ and not parallel._is_initialized:
        # Numba's own count, made when it was imported, knows nothing of the cgroup's quota.
        numba.config.NUMBA_NUM_THREADS = parallel.NUM_THREADS = limit()
    # Cached parallel code refers to symbols that these two register; without them it crashes.
    parallel._launch_threads()
    rtsys.initialize(cpu_target.target_context)
    return load_driver("drive", "fn, args, n, parts")


def set_team(count):
    """Let parallel launches of this Python thread wake `count` workers, not all that may be started.

    A launch waits for its whole team, for workers without a part too: on 2 CPUs, a launch of two parts takes 14 us
    with a team of 2, and 84 us with one of 8.
    """
    from numba.np.ufunc import parallel

    parallel._set_num_threads(min(count, parallel.NUM_THREADS))


@functools.cache
def _most():
    return max(default_threads(), available_cpus())


def limit():
    """The most threads that a launch can use in this process."""
    return 1 if _forked else _most()
