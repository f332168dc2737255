"""Steps of training on a mesh, as `infinicore plan` counts them: `planned.py JOB ANSWER`, two JSON files.

The answer has the seconds of the fastest step and the bytes of the fullest rank at most. What ranks share counts once.
"""

import contextlib
import json
import sys
import time
from pathlib import Path

import infinicore.distributed as dist
import numpy as np

import infinicore as ic
from infinicore.models import from_config

job = json.loads(Path(sys.argv[1]).read_text())
group, axes, micro = dist.init(), job["mesh"], job["micro_batches"]
mesh = dist.Mesh(**axes)
model = from_config(job["config"])
rng = np.random.default_rng(group.rank)
ids = rng.integers(0, 1000, (job["batch"] // mesh.dp.size, job["sequence"] + 1))
x, y = ic.from_numpy(ids[:, :-1].copy()), ic.from_numpy(ids[:, 1:].copy())
if mesh.tp.size > 1:
    model = dist.parallelize(model, mesh)
if mesh.pp.size > 1:
    model = dist.Pipeline(model, mesh, micro, example=(x, y))
elif mesh.dp.size > 1:
    model = (dist.ZeroDataParallel if job["zero"] else dist.DistributedDataParallel)(model, mesh.dp)
adam = ic.optim.AdamW(model.parameters(), lr=1e-4)


def step():
    if mesh.pp.size > 1:
        model.step(x, y)
    else:
        rows = len(ids) // micro
        for part in range(micro):
            last = part + 1 == micro or mesh.dp.size == 1
            with contextlib.nullcontext() if last else model.no_sync():
                here = slice(part * rows, (part + 1) * rows)
                (model.loss(x[here], y[here]) / micro).backward()
    adam.step()
    adam.zero_grad()


def memory():
    """Bytes of this process at most."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    peak, shared = (1024 * int(status[name].split()[0]) for name in ("VmHWM", "RssShmem"))
    return peak - shared + shared // group.size


times = []
for _ in range(job["steps"]):
    dist.barrier()
    begin = time.perf_counter()
    step()
    dist.barrier()
    times.append(time.perf_counter() - begin)
fullest = max(dist.all_gather_object(memory()))
if group.rank == 0:
    Path(sys.argv[2]).write_text(json.dumps({"seconds": min(times[2:]), "bytes": fullest}))
