"""Ranks in trouble: `trouble.py KIND`."""

import os
import signal
import sys
import time

import infinicore.distributed as dist

import infinicore as ic

kind = sys.argv[1]
group = dist.init(debug_mode=kind.startswith("debug") or None)
rank = group.rank
x = ic.ones(50_000)
if kind == "killed":  # by a signal, while the others wait for it in the midst of messages
    for i in range(10_000):
        if rank == 1 and i == 20:
            os.kill(os.getpid(), signal.SIGKILL)
        dist.all_reduce(x, "avg")
elif kind == "gone":  # it ends as if nothing were wrong, and nobody ends the job
    if rank == 1:
        os._exit(0)
    dist.all_reduce(x)
elif kind == "raises":
    if rank == 1:
        raise KeyError("a mistake of rank 1")
    dist.all_reduce(x)
elif kind == "differs":
    dist.all_reduce(x if rank else ic.ones(50_001))
elif kind == "objects":
    dist.all_gather_object(rank) if rank else dist.broadcast_object(rank)
elif kind == "lateobjects":
    if rank == 1:
        time.sleep(30)
    dist.broadcast_object(rank, 1)
elif kind == "debugobjects":  # of three, the one that differs is named
    dist.gather_object(rank, 2 if rank == 1 else 0)
elif kind == "debugorder":
    for size in (3, 4) if rank != 2 else (4, 3):
        dist.all_reduce(ic.ones(size))
elif kind == "debugdtype":
    dist.all_reduce(ic.ones(3, dtype="float64" if rank == 2 else "float32"))
elif kind == "offsets":  # parts of the window that do not lie over one another
    dist.all_reduce(group.empty((20_000,)).zero_()[rank * 64 : rank * 64 + 10_000])
elif kind == "debug":
    if rank:
        dist.all_reduce(x)
    else:
        dist.broadcast(x, 0)
elif kind == "late":  # beyond the timeout
    if rank == 1:
        time.sleep(30)
    dist.all_reduce(x)
elif kind == "sleeps":  # who waits for long takes no CPU
    dist.barrier()
    if rank == 0:
        time.sleep(2.0)
    before = time.process_time()
    dist.all_reduce(x)
    assert rank == 0 or time.process_time() - before < 0.5, time.process_time() - before
    print("slept")
