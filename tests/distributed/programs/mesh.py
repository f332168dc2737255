"""Training on meshes (`meshes.py`) beside one process: losses, norms and parameters of ten steps.

In float64 within 1e-9, where rounding does not hide a gradient that is wrong; in float32 within 1e-5.
"""

import contextlib
import functools
import sys
import time

import infinicore.distributed as dist
import numpy as np
from meshes import FEW, Case, every, parse

import infinicore as ic
from infinicore import nn, optim
from infinicore.models import from_config

group = dist.init()
LENGTH = 18  # the whole context, and what 4 ranks of `cp` do not divide
NONE = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
CONFIGS = {
    "gpt2": {"model_type": "gpt2", "n_head": 8, "n_embd": 32, "n_positions": LENGTH, "vocab_size": 97, **NONE},
    "llama": {
        "model_type": "llama", "vocab_size": 97, "hidden_size": 32, "intermediate_size": 49, "num_attention_heads": 8,
        "num_key_value_heads": 4, "head_dim": 4, "rms_norm_eps": 1e-5, "max_position_embeddings": LENGTH,
        "rope_theta": 10000.0, "tie_word_embeddings": True,
    },
    "odd": {"model_type": "gpt2", "n_head": 5, "n_embd": 100, "n_positions": LENGTH, "vocab_size": 50257, **NONE},
}  # fmt: skip
STEPS = {"odd": 2}  # else 10
ATOL = {"float64": 1e-9, "float32": 1e-5}
# By 1e-2 the last bits of a Llama of 6 layers grow to 3e-7 in ten steps, in one process, too; so they stay below 1e-13.
RATE = 3e-3


def model_of(case):
    """A new model: the same on every rank."""
    config = dict(CONFIGS[case.model])
    config["num_hidden_layers" if case.model == "llama" else "n_layer"] = max(2, case.pp - 2)
    ic.manual_seed(0)
    return from_config(config, dtype=case.dtype)


def rows_of(case):
    """Rows of a batch of all ranks together: a row at least for each micro-batch of each replica."""
    return 2 if case.model == "odd" else max(16, 8 * case.dp)


def batches(case):
    """(ids, targets) of each backward pass of all ranks together: as many labels of each row count."""
    vocabulary, rng = CONFIGS[case.model]["vocab_size"], np.random.default_rng(0)
    for _ in range(STEPS.get(case.model, 10) * case.accumulate):
        ids = rng.integers(0, vocabulary, (rows_of(case), LENGTH + 1))
        targets = ids[:, 1:].copy()
        for row in targets:
            row[rng.permutation(LENGTH)[:5]] = -100
        yield ids[:, :-1].copy(), targets


def groups_of(items, count):
    """Lists of `count` items."""
    items = list(items)
    return [items[at : at + count] for at in range(0, len(items), count)]


@functools.cache
def alone(case):
    """(losses, norms, parameters) of one process; `case` has what these depend on."""
    if group.rank:
        return dist.broadcast_object(None, 0)
    model, losses, norms = model_of(case), [], []
    adam = optim.AdamW(model.parameters(), lr=RATE, eps=1e-4)
    for batch in groups_of(batches(case), case.accumulate):
        total = 0.0
        for ids, targets in batch:
            loss = model.loss(ic.from_numpy(ids), ic.from_numpy(targets)) / case.accumulate
            loss.backward()
            total += loss.item()
        losses.append(total)
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), 0.5).item())
        adam.step()
        adam.zero_grad()
    return dist.broadcast_object((losses, norms, {k: x.numpy() for k, x in model.state_dict().items()}), 0)


@functools.cache
def mesh_of(**sizes):
    """Groups stay until the process ends."""
    return dist.Mesh(**sizes)


class Trained:
    """The model of a case, and how it takes a step."""

    def __init__(self, case):
        self.case = case
        self.mesh = mesh = mesh_of(dp=case.dp, tp=case.tp, pp=case.pp, cp=case.cp, sp=case.sp)
        data, whole = mesh.group("dp", "cp"), model_of(case)
        if case.pp > 1 and case.zero:
            self.model = dist.ParallelModel(
                whole, mesh, zero=case.zero, micro_batches=case.micro, sequence_parallel=bool(case.sequence)
            )
            self.own, self.adam = whole, optim.AdamW(self.model.parameters(), lr=RATE, eps=1e-4)
            return
        self.own = dist.parallelize(whole, mesh, sequence_parallel=bool(case.sequence))
        if case.pp > 1:
            self.model = dist.Pipeline(self.own, mesh, case.micro)
        elif case.zero:
            self.model = dist.ZeroDataParallel(self.own, data, stage=case.zero, bucket_mb=0.02)
        else:
            self.model = dist.DistributedDataParallel(self.own, data, bucket_mb=0.02)
        self.adam = optim.AdamW(self.model.parameters(), lr=RATE, eps=1e-4)

    def step(self, batch):
        """(loss, norm) of a step."""
        case, mesh, total = self.case, self.mesh, 0.0
        passes = 1 if case.pp > 1 else case.micro
        parts = []
        for ids, targets in batch:
            each = ids.shape[0] // mesh.dp.size
            mine = slice(mesh.dp.rank * each, (mesh.dp.rank + 1) * each)
            micro = [np.array_split(x[mine], passes) for x in (ids, targets)]
            parts += [tuple(map(ic.from_numpy, one)) for one in zip(*micro)]
        together = isinstance(self.model, dist.ParallelModel)
        for number, part in enumerate(parts, 1):
            if together:
                loss = self.model.backward(part, None, divisor=len(parts), sync=number == len(parts))
                total += loss.item() / len(parts)
                continue
            with contextlib.nullcontext() if number == len(parts) else self.model.no_sync():
                if case.pp > 1:
                    loss = self.model.step(*part) / len(parts)
                else:
                    loss = self.model.loss(*part) / len(parts)
                    loss.backward()
            total += loss.item()
        if case.pp > 1 and not together:
            for p in self.model.parameters():
                p.grad.copy_(p.grad / len(parts))
        clip = self.model.clip_grad_norm_ if case.zero else functools.partial(dist.clip_grad_norm_, self.own, mesh)
        norm = float(clip(0.5))
        self.adam.step()
        self.adam.zero_grad()
        return dist.all_reduce(ic.tensor([total], dtype=ic.float64), "avg", mesh.dp).item(), norm

    def state(self):
        """The whole model."""
        if isinstance(self.model, dist.ParallelModel):
            return {name: x.numpy() for name, x in self.model.state_dict().items()}
        if self.case.zero:
            self.model.gather()
        return {name: x.numpy() for name, x in dist.whole_state_dict(self.own, self.mesh).items()}


def check(case):
    """Train, and compare."""
    layers, replicas = max(2, case.pp - 2) + 2, max(2, case.dp)  # what the model and the batches depend on
    like = Case(replicas, pp=layers, accumulate=case.accumulate, model=case.model, dtype=case.dtype)
    losses, norms, parameters = alone(like)
    trained, atol = Trained(case), ATOL[case.dtype]
    steps = [trained.step(batch) for batch in groups_of(batches(case), case.accumulate)]
    found = trained.state()
    expected = zip(losses, norms, strict=True)
    np.testing.assert_allclose(steps, list(expected), rtol=0, atol=atol, err_msg=f"{case}: losses and norms")
    for name, x in parameters.items():
        np.testing.assert_allclose(found[name], x, rtol=0, atol=atol, err_msg=f"{case}: {name}, rank {group.rank}")


def chosen(what, *numbers):
    """The cases of the command line: "few", "every PART PARTS", or some by their texts."""
    if what == "few":
        return [case for case in FEW if case.ranks == group.size]
    if what == "every":
        part, parts = map(int, numbers)
        return list(every(group.size))[part::parts]
    return map(parse, (what, *numbers))


wrong = None
for case in chosen(*sys.argv[1:]):
    begin = time.monotonic()
    try:
        check(case)
    except AssertionError as error:  # after the last step: the others are there, too
        wrong = error
    if group.rank == 0:
        print(f"{case}: {time.monotonic() - begin:.1f} s", flush=True)
    if any(dist.all_gather_object(wrong is not None)):
        break
print(f"rank {group.rank}: {wrong or 'done'}", flush=True)
sys.exit(wrong is not None)
