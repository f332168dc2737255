"""The one parallel loop of the house, and the replay of recorded launches.

A kernel is serial: it does the slice [lo, hi) of its work. `drive` splits [0, n) into slices and lets the workers of
`pool.py` do them. How many parts a launch gets is decided in `infinicore/core` from the launch's grain and the thread
count in `kernels/cpu/threads.py`.
"""

from ..blocks.driver import RECORD
from ..build import jit
from ..lang.atomic import call_kernel
from ..lang.simd import load
from . import pool


@jit.inline
def drive(kernel, args, n, parts):
    """Run [0, n) as `parts` says (`blocks/pool.py`); an error code if any slice returned one."""
    return pool.split(kernel, args, n, parts, 0, 0, 0)


@jit.inline
def work(own):
    """What a thread of the pool does."""
    return pool.work(own)


@jit.inline
def replay(args, lo, hi):
    """Run records [lo, hi) of a graph."""
    for i in range(lo, hi):
        record = args + RECORD.WIDTH * i
        kernel, block = load(record, RECORD.kernel), load(record, RECORD.args)
        n, parts = load(record, RECORD.n), load(record, RECORD.parts)
        if parts <= 1:
            status = call_kernel(kernel, block, 0, n, 0)
        else:
            ahead, end = load(record, RECORD.ahead), load(record, RECORD.ahead_end)
            status = pool.split(kernel, block, n, parts, ahead, load(record, RECORD.ahead_step), end)
        if status != 0:
            return status + 1000 * i
    return 0


@jit.inline
def replay_serial(args, lo, hi):
    """As `replay`, for a graph without parallel launches: needs no threads started."""
    for i in range(lo, hi):
        record = args + RECORD.WIDTH * i
        kernel, block, n = load(record, RECORD.kernel), load(record, RECORD.args), load(record, RECORD.n)
        status = call_kernel(kernel, block, 0, n, 0)
        if status != 0:
            return status + 1000 * i
    return 0
