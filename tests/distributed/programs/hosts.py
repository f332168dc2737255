"""Two ranks on each of two hosts: who reaches whom how, and training of every kind; `forever` only all-reduces."""

import sys

import data_parallel_models
import infinicore.distributed as dist
import numpy as np

import infinicore as ic
from infinicore.models import from_config

CONFIG = data_parallel_models.GPT2
group = dist.init()
assert (group.size, group.nodes, len(set(group.hosts))) == (4, 2, 2), group.hosts
if len(sys.argv) > 1:
    print(f"rank {group.rank} begins", flush=True)
    while dist.all_reduce(ic.ones(1000))[0].item() == 4.0:
        pass

IDS = np.random.default_rng(0).integers(0, 97, (4, 9))


def pair(ids):
    """Inputs and targets."""
    return ic.from_numpy(ids[:, :-1].copy()), ic.from_numpy(ids[:, 1:].copy())


def train(model, step):
    """Two steps."""
    adam = ic.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-4)
    for _ in range(2):
        adam.zero_grad()
        step(model)
        adam.step()
    return model


def fresh():
    ic.manual_seed(0)
    return from_config(CONFIG, dtype="float64")


whole = train(fresh(), lambda model: model.loss(*pair(IDS)).backward()).state_dict()


def compare(own, mesh, what):
    """All parameters equal those of one process."""
    state = dist.whole_state_dict(own, mesh)
    for name, x in whole.items():
        np.testing.assert_allclose(state[name].numpy(), x.numpy(), rtol=0, atol=1e-9, err_msg=f"{what}: {name}")


# layers divided within each host, batches among hosts
mesh = dist.Mesh(tp=2, dp=2)
assert mesh.tp.transport == "shared memory", "neighbours are on one host"
assert mesh.dp.transport == group.transport == "MPI messages"
own = dist.parallelize(fresh(), mesh)
rows = IDS[2 * mesh.dp.rank :][:2]
train(dist.DistributedDataParallel(own, mesh.dp), lambda model: model.loss(*pair(rows)).backward())
compare(own, mesh, "tensor- and data-parallel")

# a pipeline from host to host, batches within each
mesh = dist.Mesh(dp=2, pp=2)
assert (mesh.dp.transport, mesh.pp.transport) == ("shared memory", "MPI messages")
pipeline = dist.Pipeline(fresh(), mesh, micro_batches=2)
rows = IDS[2 * mesh.dp.rank :][:2]
train(pipeline, lambda model: model.step(*pair(rows)))
compare(pipeline.module, mesh, "pipeline")
print(f"rank {group.rank}: done", flush=True)
