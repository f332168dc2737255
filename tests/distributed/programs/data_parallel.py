"""Data-parallel training beside one process that has every rank's rows: losses and parameters within 1e-5."""

import contextlib

import infinicore.distributed as dist
import numpy as np
from data_parallel_models import GPT2, LLAMA, ROWS, batches, pair

import infinicore as ic
from infinicore import nn, optim
from infinicore.models import from_config

group = dist.init()
R, N = group.rank, group.size


def step_loss(model, ids):
    return model.loss(*pair(ids))


def mean_loss(model, loss):
    """Over all ranks."""
    x = loss.detach().reshape(1).clone()
    return dist.all_reduce(x, "avg").item()


def close(a, b, what, atol=1e-5):
    np.testing.assert_allclose(a, b, rtol=0, atol=atol, err_msg=f"{what}, rank {R}")


def same_parameters(model, reference, what, atol=1e-5):
    for (name, p), q in zip(model.named_parameters(), reference.parameters()):
        close(p.detach().numpy(), q.detach().numpy(), f"{what}: {name}", atol)


def language(config, accumulate, record):
    ic.manual_seed(0)
    reference = from_config(config)
    ic.manual_seed(R)  # ranks begin with other values, and take those of rank 0
    own = from_config(config)
    model = dist.DistributedDataParallel(own, bucket_mb=0.02, first_bucket_mb=0.005)
    assert N == 1 or len(model.reducer.buckets) > 2
    # The gradient of a key's bias is 0, as softmax does not see it: `eps` keeps AdamW from dividing rounding by itself.
    adams = [optim.AdamW(m.parameters(), lr=1e-2, eps=1e-4) for m in (reference, model)]
    passes = ic.recorded(lambda ids, labels: _backward(model.loss(ids, labels), accumulate)) if record else None
    for step in range(10):
        total = 0.0
        expected = 0.0
        for micro, ids in enumerate(batches(10 * accumulate, N)[step * accumulate : (step + 1) * accumulate]):
            loss = step_loss(reference, ids)
            (loss / accumulate).backward()
            expected += loss.item() / accumulate
            mine = ids[R * ROWS : (R + 1) * ROWS]
            if record:
                loss = passes(*pair(mine))
            elif micro < accumulate - 1:
                with model.no_sync():
                    loss = step_loss(model, mine)
                    (loss / accumulate).backward()
            else:
                loss = step_loss(model, mine)
                (loss / accumulate).backward()
            total += mean_loss(model, loss) / accumulate
        close(total, expected, f"{config['model_type']}, accumulation {accumulate}, step {step}")
        for adam in adams:
            adam.step()
            adam.zero_grad()
    same_parameters(own, reference, config["model_type"])
    return model


def _backward(loss, accumulate):
    (loss / accumulate).backward()
    return loss


class Branches(nn.Module):
    """Parts of which a batch may use one or the other, and one that nobody uses; with a buffer."""

    def __init__(self):
        super().__init__()
        self.left, self.right, self.never = nn.Linear(4, 3), nn.Linear(4, 3), nn.Linear(4, 3)
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x, left):
        return self.norm((self.left if left else self.right)(x))


def unused():
    if N == 1:
        return
    ic.manual_seed(R)
    own = Branches()
    model = dist.DistributedDataParallel(own, find_unused_parameters=True)
    rng = np.random.default_rng(R)
    for step in range(3):
        x = ic.from_numpy(rng.standard_normal((6, 4), dtype=np.float32))
        own.zero_grad()
        (model(x, left=(R == 0)) ** 2).sum().backward()
        assert own.never.weight.grad is None
        for p in (own.left.weight, own.right.weight, own.norm.weight):
            every = dist.all_gather(ic.empty((N, *p.shape)), p.grad)
            assert (every == every[0]).all().item() and step >= 0
    plain = dist.DistributedDataParallel(Branches())
    (plain(x, True) ** 2).sum().backward()
    try:
        plain(x, True)
    except RuntimeError as error:
        assert "find_unused_parameters" in str(error)
    else:
        raise AssertionError("unused parameters were not noticed")


def linear(compression=None):
    """Rank r has gradient r + 1 everywhere: the average is known."""
    own = nn.Linear(300, 7, bias=False)
    model = dist.DistributedDataParallel(own, compression=compression)
    model(ic.full((1, 300), R + 1.0)).sum().backward()
    close(own.weight.grad.numpy(), np.full((7, 300), (N + 1) / 2), f"average, compression {compression}", 1e-5)


def joined():
    """Ranks with different numbers of batches end with the model of who had the most."""
    own = nn.Linear(4, 2)
    model = dist.DistributedDataParallel(own)
    sgd = optim.SGD(model.parameters(), lr=0.1)
    start = own.weight.detach().numpy().copy()
    with model.join():
        for _ in range(2 + R):
            own.zero_grad()
            model(ic.ones(3, 4)).sum().backward()
            sgd.step()
    every = dist.all_gather(ic.empty((N, 2, 4)), own.weight.detach())
    assert (every == every[0]).all().item()
    for step in range(1 + N):  # the gradient is 3 everywhere, and counts as often as ranks still have data
        start -= 0.1 * 3.0 * sum(2 + r > step for r in range(N)) / N
    close(own.weight.detach().numpy(), start, "join")


def kept():
    """What was accumulated before buckets are rebuilt stays."""
    own = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
    model = dist.DistributedDataParallel(own)
    for _ in range(3):
        model(ic.full((1, 3), R + 1.0)).sum().backward()
    reference = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
    reference.load_state_dict(own.state_dict())
    for _ in range(3):
        for r in range(N):
            (reference(ic.full((1, 3), r + 1.0)).sum() / N).backward()
    for p, q in zip(own.parameters(), reference.parameters()):
        close(p.grad.numpy(), q.grad.numpy(), "three passes without zero_grad", 1e-4)


class Layers(nn.Module):
    """Gradients come in the order of registration, in which the first buckets are not, but later ones are."""

    def __init__(self):
        super().__init__()
        self.last, self.middle, self.first = nn.Linear(9, 3), nn.Linear(7, 9), nn.Linear(5, 7)

    def forward(self, x):
        return self.last(self.middle(ic.tanh(self.first(x))))


def replayed():
    """Recorded passes of two sizes, one after the other, whose gradients are kept for some steps; in the buckets.

    Each third one adds the gradients of the two before it.
    """
    rng = np.random.default_rng(0)
    own, reference = Layers(), Layers()
    model = dist.DistributedDataParallel(own, bucket_mb=1e-4, first_bucket_mb=1e-4)
    reference.load_state_dict(own.state_dict())

    def run(x, sync):
        with contextlib.nullcontext() if sync else model.no_sync():
            return _backward(model(x).square().mean(), 1)

    passes = ic.recorded(run)
    for step in range(36):
        x, sync = rng.standard_normal((N, 4 if step % 6 == 5 else 2, 5), dtype=np.float32), step % 3 == 2
        passes(ic.from_numpy(x[R].copy()), sync)
        for rows in x:
            (reference(ic.from_numpy(rows.copy())).square().mean() / N).backward()
        if not sync:
            continue
        for p, q in zip(own.parameters(), reference.parameters()):
            close(p.grad.numpy(), q.grad.numpy(), f"gradients of replays, step {step}")
        if step < 18 or step % 9 == 8:
            for m in (own, reference):
                m.zero_grad()
    for _ in range(3):
        own.zero_grad()
        passes(ic.from_numpy(x[R].copy()), True)
    if N > 1:
        memory = {m.storage.address for m in model.reducer.memory.values()}
        assert {p.grad.storage.address for p in own.parameters()} == memory, "gradients are copied out of buckets"


for config in (GPT2, LLAMA):
    for accumulate in (1, 3):
        language(config, accumulate, record=False)
language(LLAMA, 1, record=True)
unused()
linear()
linear("bfloat16")
joined()
kept()
replayed()
print(f"rank {R} of {N}: done")
