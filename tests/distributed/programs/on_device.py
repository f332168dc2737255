"""Training on another device, divided in every way, beside one process there: losses and parameters within 1e-5."""

import infinicore.distributed as dist
import numpy as np
from data_parallel_models import GPT2, LLAMA, ROWS, batches
from devices import device, put

import infinicore as ic
from infinicore import nn, optim
from infinicore.models import from_config

group = dist.init()
R, N = group.rank, group.size
STEPS = 5


def pair(ids):
    """Inputs and targets."""
    ids = ids.astype(np.int64)
    return put(ids[:, :-1].copy()), put(ids[:, 1:].copy())


def close(a, b, what):
    np.testing.assert_allclose(a, b, rtol=0, atol=1e-5, err_msg=f"{what}, rank {R}")


def made(config, seed):
    ic.manual_seed(seed)
    return from_config(config).to(device())


def trained(config, what, divide):
    """`divide(module)`: (what is trained, what has a state dict of whole parameters, this rank's rows of a batch)."""
    reference = made(config, 0)
    model, whole, rows = divide(made(config, 0))
    adams = [optim.AdamW(m.parameters(), lr=1e-2, eps=1e-4) for m in (reference, model)]
    for step, ids in enumerate(batches(STEPS, N)):
        expected = reference.loss(*pair(ids))
        expected.backward()
        loss = model.loss(*pair(ids[rows]))
        if loss.tracked:
            loss.backward()
        total = dist.all_reduce(loss.detach().reshape(1).clone(), "avg").item()
        close(total, expected.item(), f"{what}, step {step}")
        for adam in adams:
            adam.step()
            adam.zero_grad()
    state = whole()
    for name, p in reference.named_parameters():
        close(state[name].detach().cpu().numpy(), p.detach().cpu().numpy(), f"{what}: {name}")


mine = slice(R * ROWS, R * ROWS + ROWS)


def replicas(module):
    module = dist.DistributedDataParallel(module, bucket_mb=0.02, first_bucket_mb=0.005)
    assert all(p.device is device() for p in module.parameters())
    return module, module.module.state_dict, mine


def shards(stage):
    def divide(module):
        model = dist.ZeroDataParallel(module, stage=stage, bucket_mb=0.02)
        assert all(p.device is device() for p in model.parameters())
        return model, model.state_dict, mine

    return divide


def layers(module):
    mesh = dist.Mesh(tp=2, dp=-1)
    own = dist.parallelize(module, mesh)
    assert all(p.device is device() for p in own.parameters())
    model = own if mesh.dp.size == 1 else dist.DistributedDataParallel(own, mesh.dp)
    count = N * ROWS // mesh.dp.size
    return model, lambda: dist.whole_state_dict(own, mesh), slice(mesh.dp.rank * count, (mesh.dp.rank + 1) * count)


class Staged:
    """A pipeline, whose `loss` has gone backward when it returns."""

    def __init__(self, module, mesh):
        self.pipeline = dist.Pipeline(module, mesh, 2)
        self.parameters = self.pipeline.parameters

    def loss(self, *batch):
        return self.pipeline.step(*batch)


def stages(module):
    mesh = dist.Mesh(pp=2, dp=-1)
    model, count = Staged(module, mesh), N * ROWS // mesh.dp.size
    rows = slice(mesh.dp.rank * count, (mesh.dp.rank + 1) * count)
    return model, lambda: dist.whole_state_dict(model.pipeline.module, mesh), rows


trained(GPT2, "data parallel", replicas)
trained(LLAMA, "data parallel", replicas)
for stage in (1, 2, 3):
    trained(GPT2, f"ZeRO {stage}", shards(stage))
trained(GPT2, "tensor parallel", layers)
trained(GPT2, "pipeline", stages)
norm = nn.SyncBatchNorm(3).to(device())
x = np.random.default_rng(0).standard_normal((N, 4, 3), dtype=np.float32)
y = norm(put(x[R].copy())).detach().cpu().numpy()
wanted = (x[R] - x.mean((0, 1))) / np.sqrt(x.var((0, 1)) + 1e-5)
close(y, wanted, "batch norm over ranks")
print(f"rank {R} of {N}: done")
