"""Training on another device, divided in every way, beside one process there: losses and parameters within 1e-5.

Arguments: the device, and names of `CASES` (default: all). With `windows` among them, the second device stands for
GPUs that reach one another (`devices.give_windows`).
"""

import shutil
import sys
import tempfile
import time
from pathlib import Path

import infinicore.distributed as dist
import numpy as np
from data_parallel_models import GPT2, LLAMA, ROWS, batches
from devices import device, give_windows, put
from infinicore.distributed.ring import places, ring_attention

import infinicore as ic
from infinicore import nn, optim
from infinicore.data import DataLoader, TensorDataset
from infinicore.models import from_config
from infinicore.train import Trainer

group = dist.init()
R, N = group.rank, group.size
if "windows" in sys.argv:
    give_windows(R)
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


def resumed(options, axes):
    """A `ParallelModel` goes on from its checkpoint as it went on before."""
    ic.manual_seed(0)
    model = dist.ParallelModel(made(GPT2, 0), dist.Mesh(**axes), **options)
    adam, ids = optim.AdamW(model.parameters(), lr=1e-2), batches(1, N)[0]
    first, stop = model.rows(len(ids))

    def step():
        loss = model.backward(pair(ids[first:stop]), lambda module, batch: module.loss(*batch))
        model.clip_grad_norm_(0.5)
        adam.step()
        adam.zero_grad()
        return loss.item()

    step()
    path = Path(folder, "-".join(f"{key}{value}" for key, value in (options | axes).items()))
    model.save_checkpoint(path, adam)
    expected = step()
    model.load_checkpoint(path, adam)
    close(step(), expected, f"{options}, {axes}")


def ring():
    """Sequences of which each rank has a part."""
    rng = np.random.default_rng(0)
    whole = [rng.standard_normal((1, 2, 16, 4)).astype("float32") for _ in range(3)]
    here = places(16, R, N)
    parts = [put(x[:, :, here].copy()).requires_grad_() for x in whole]
    y = ring_attention(*parts, group, is_causal=True)
    y.sum().backward()
    every = [ic.from_numpy(x).requires_grad_() for x in whole]
    wanted = nn.functional.scaled_dot_product_attention(*every, is_causal=True)
    wanted.sum().backward()
    close(y.detach().cpu().numpy(), wanted.detach().numpy()[:, :, here], "ring attention")
    for mine, theirs in zip(parts, every):
        close(mine.grad.cpu().numpy(), theirs.grad.numpy()[:, :, here], "its gradients")


def normed():
    """Batch norm over the samples of all ranks."""
    norm = nn.SyncBatchNorm(3).to(device())
    x = np.random.default_rng(0).standard_normal((N, 4, 3), dtype=np.float32)
    y = norm(put(x[R].copy())).detach().cpu().numpy()
    close(y, (x[R] - x.mean((0, 1))) / np.sqrt(x.var((0, 1)) + 1e-5), "batch norm over ranks")


def recorded():
    """Replays of a pass whose buckets travel beside it, and of one whose small bucket is summed where it is."""
    if device().type != "cuda" or not group.links_on(device()).records():
        return
    rng = np.random.default_rng(0)
    for kind in (None, "bfloat16"):
        nets = []
        for _ in range(2):
            ic.manual_seed(0)
            nets.append(nn.Sequential(nn.Linear(64, 700), nn.Tanh(), nn.Linear(700, 900), nn.Tanh(), nn.Linear(900, 8)))
        reference, model = (net.to(device()) for net in nets)
        model = dist.DistributedDataParallel(model, bucket_mb=1.5, first_bucket_mb=0.01, compression=kind)
        sgd = [optim.SGD(m.parameters(), lr=0.1) for m in (reference, model)]

        def passed(m, x, y):
            loss = nn.functional.mse_loss(m(x), y)
            loss.backward()
            return loss

        replayed = ic.recorded(lambda x, y, m=model: passed(m, x, y))
        for step in range(STEPS):
            x, y = (rng.standard_normal((N, 16, size), dtype=np.float32) for size in (64, 8))
            passed(reference, *(put(a.reshape(-1, a.shape[-1])) for a in (x, y)))
            replayed(put(x[R].copy()), put(y[R].copy()))
            for mine, theirs in zip(model.parameters(), reference.parameters()):
                a, b = (p.grad.cpu().numpy() for p in (mine, theirs))
                np.testing.assert_allclose(a, b, rtol=0, atol=(1e-5 if kind is None else 1e-2) * np.abs(b).max())
            for one in sgd:
                one.step()
                one.zero_grad()


def by_trainer():
    """Steps that the Trainer is asked to record, where graphs hold them, are those that it does not."""
    if not group.links_on(device()).records():
        return
    ids, found = np.concatenate(batches(6, N)).astype(np.int64), []
    data = TensorDataset(ic.from_numpy(ids[:, :-1].copy()), ic.from_numpy(ids[:, 1:].copy()))
    for recorded in (False, True):
        model = dist.ParallelModel(made(GPT2, 0), dist.Mesh(dp=-1))
        adam, loader = optim.AdamW(model.parameters(), lr=1e-2, eps=1e-4), DataLoader(data, N * ROWS)
        run = Trainer(model, adam, loader, epochs=2, clip=0.5, log_every=1, progress=False, recorded=recorded)
        losses = [row["loss"] for row in run.fit()]
        found.append((losses, [p.detach().cpu().numpy() for p in model.parameters()]))
        assert (run._replay is not None) == recorded
    np.testing.assert_array_equal(found[0][0], found[1][0])
    for one, other in zip(*(parameters for _, parameters in found), strict=True):
        np.testing.assert_array_equal(one, other)


folder = dist.broadcast_object(tempfile.mkdtemp() if R == 0 else None)
CASES = {
    "dp": lambda: trained(GPT2, "data parallel", replicas),
    "zero3": lambda: trained(GPT2, "ZeRO 3", shards(3)),
    "tp": lambda: trained(GPT2, "tensor parallel", layers),
    "pp": lambda: trained(GPT2, "pipeline", stages),
    "zero1": lambda: trained(GPT2, "ZeRO 1", shards(1)),
    "zero2": lambda: trained(GPT2, "ZeRO 2", shards(2)),
    "again": lambda: resumed({}, {"dp": -1}),
    "again-zero2": lambda: resumed({"zero": 2}, {"dp": -1}),
    "again-zero3": lambda: resumed({"zero": 3}, {"tp": 2, "dp": -1}),
    "again-cp": lambda: resumed({}, {"cp": -1}),
    "again-pp": lambda: resumed({"micro_batches": 2, "zero": 1}, {"pp": 2, "dp": -1}),
    "ring": ring,
    "llama": lambda: trained(LLAMA, "data parallel", replicas),
    "norm": normed,
    "recorded": recorded,
    "trainer": by_trainer,
}
for name, case in CASES.items():
    if name in (CASES.keys() & sys.argv[2:] or CASES):
        began = time.perf_counter()
        case()
        if R == 0:
            print(f"{name}: {time.perf_counter() - began:.1f} s", flush=True)
dist.barrier()
if R == 0:
    shutil.rmtree(folder)
print(f"rank {R} of {N}: done")
