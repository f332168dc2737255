"""`fully_shard` beside one process: modules of users, what is frozen, computed again, divided by tensors; refusals."""

import infinicore.distributed as dist
import numpy as np
from data_parallel_models import GPT2, LLAMA, ROWS, batches, pair

import infinicore as ic
from infinicore import nn, optim
from infinicore.models import from_config, from_pretrained

group = dist.init()
R, N = group.rank, group.size


def close(a, b, what, atol=1e-9):
    np.testing.assert_allclose(a, b, rtol=0, atol=atol, err_msg=f"{what}, rank {R}")


def same(model, reference, what, atol=1e-9):
    with dist.summon_full_params(model):
        for (name, p), q in zip(model.named_parameters(), reference.parameters()):
            close(p.detach().numpy(), q.detach().numpy(), f"{what}: {name}", atol)
    assert sum(p.numel() for p in model.parameters()) < sum(p.numel() for p in reference.parameters())


def shard(model, mesh=None, **options):
    for block in getattr(model.decoder, model.decoder.pieces[1]):
        dist.fully_shard(block, mesh=mesh, **options)
    return dist.fully_shard(model, mesh=mesh)


def train(model, reference, steps, what, atol=1e-9, rank=R, ranks=N, clip=None, accumulate=1, sync=True):
    adams = [optim.AdamW([p for p in m.parameters() if p.requires_grad], lr=1e-2, eps=1e-4) for m in (reference, model)]
    every = batches(steps * accumulate, ranks)
    for step in range(steps):
        for micro in range(accumulate):
            ids = every[step * accumulate + micro]
            expected = reference.loss(*pair(ids))
            (expected / accumulate).backward()
            if not sync:
                model.set_requires_gradient_sync(micro == accumulate - 1)
            loss = model.loss(*pair(ids[rank * ROWS :][:ROWS]))
            (loss / accumulate).backward()
            mean = dist.all_reduce(loss.detach().reshape(1).clone(), "avg").item()
            close(mean, expected.item(), f"{what}, step {step}", atol)
        if clip is not None:
            close(clip(0.5), nn.utils.clip_grad_norm_(reference.parameters(), 0.5).item(), f"{what}, norm", atol)
        for adam in adams:
            adam.step()
            adam.zero_grad()


def language():
    """Built without values; activations computed again; gradients that add up without synchronisation; text."""
    for config in (GPT2, LLAMA):
        ic.manual_seed(0)
        reference = from_config(config, dtype="float64")
        ic.manual_seed(R)
        model = dist.deferred_init(from_config, config, dtype="float64")
        model.gradient_checkpointing = True
        if R == 0:
            ic.manual_seed(0)
        model = shard(model)
        same(model, reference, "built")
        train(model, reference, 3, f"{config['model_type']}", accumulate=2, sync=False)
        same(model, reference, config["model_type"])
        ids = np.arange(6).reshape(1, 6)
        model.eval(), reference.eval()
        with ic.no_grad():
            close(model(ids).numpy(), reference(ids).numpy(), "evaluation")
        refused(NotImplementedError, "summon_full_params", lambda: model.generate([1, 2, 3]))
        with dist.summon_full_params(model):
            texts = [[t.token_id for t in m.generate([1, 2, 3], max_new_tokens=4)] for m in (model, reference)]
        assert texts[0] == texts[1], texts
        assert all(p.ndim == 1 for p in model.parameters())
        state = dist.whole_state_dict(model, dist.Mesh(dp=-1))
        assert all((state[name] == x).all().item() for name, x in reference.state_dict().items() if N == 1)


class Own(nn.Module):
    """Outputs of several kinds, a frozen block, a block that runs twice, one that does not always run."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 10), nn.Tanh(), nn.Linear(10, 8)) for _ in range(4))
        self.norm = nn.BatchNorm1d(8, affine=False)
        self.head = nn.Linear(8, 3)
        self.blocks[1].requires_grad_(False)
        self.skip = False

    def forward(self, x):
        for number, block in enumerate(self.blocks):
            if not (self.skip and number == 2):
                x = x + block(x)
        return {"y": self.head(self.norm(self.blocks[0](x))), "x": x}


def own_module():
    ic.manual_seed(0)
    reference = Own().double()
    ic.manual_seed(R)
    model = Own().double()
    if R == 0:
        model.load_state_dict(reference.state_dict())
    early = optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)  # made before: goes on with shards
    model = dist.ZeroDataParallel(model, stage=3)
    assert [type(m).__name__ for m in model.module.children()] == ["ModuleList", "BatchNorm1d", "Linear"]
    sgd = optim.SGD([p for p in reference.parameters() if p.requires_grad], lr=0.1)
    rng = np.random.default_rng(0)
    for step in range(6):
        model.module.skip = reference.skip = step % 3 == 1
        x = rng.standard_normal((4, 8)).astype(np.float64)
        results = [m(ic.from_numpy(x)) for m in (reference, model)]  # the same rows: BatchNorm sees its own alone
        for found in results:
            (found["y"].square().sum() + found["x"].sum()).backward()
        close(results[1]["y"].detach().numpy(), results[0]["y"].detach().numpy(), f"own module, step {step}")
        for optimizer in (sgd, early):
            optimizer.step()
            optimizer.zero_grad()
    for name, x in model.state_dict().items():
        close(x.numpy(), reference.state_dict()[name].numpy(), name)
    model.load_state_dict({name: x * 2 for name, x in reference.state_dict().items()})
    close(model.state_dict()["head.weight"].numpy(), 2 * reference.head.weight.detach().numpy(), "loaded")


def mixed():
    """bfloat16 by autocast, beside DistributedDataParallel."""
    models = []
    for wrap in (lambda m: dist.DistributedDataParallel(m), lambda m: shard(m)):
        ic.manual_seed(0)
        model = wrap(from_config(LLAMA))
        adam = optim.AdamW(model.parameters(), lr=1e-3)
        for ids in batches(3, N):
            with ic.autocast():
                loss = model.loss(*pair(ids[R * ROWS :][:ROWS]))
            loss.backward()
            adam.step()
            adam.zero_grad()
        models.append(loss.item())
    close(models[0], models[1], "autocast", 1e-5)


def tensors():
    """With tensor and sequence parallelism: 2 x 2 ranks; clipping over both."""
    mesh = dist.Mesh(tp=2, dp=-1)
    for config, sequence in ((GPT2, False), (LLAMA | {"num_key_value_heads": 2}, True)):
        ic.manual_seed(0)
        reference = from_config(config, dtype="float64")
        ic.manual_seed(R)
        model = dist.deferred_init(from_config, config, dtype="float64")
        model = dist.parallelize(model, mesh, sequence_parallel=sequence)
        model = shard(model, mesh)
        clip = lambda norm: dist.clip_grad_norm_(model, mesh, norm).item()
        train(model, reference, 4, f"tp, {sequence}", rank=mesh.dp.rank, ranks=mesh.dp.size, clip=clip, accumulate=3)
        state = dist.whole_state_dict(model, mesh)
        for name, x in reference.state_dict().items():
            close(state[name].numpy(), x.numpy(), name)


def deferred():
    """Models of files and of numbers, whose ranks take their parts as they come."""
    reference = from_pretrained(dtype="float32")
    model = dist.deferred_init(from_pretrained, dtype="float32")
    model = dist.ZeroDataParallel(model.train(), stage=3)
    state = model.state_dict()
    assert all((state[name].numpy() == x.numpy()).all() for name, x in reference.state_dict().items())
    for config in (GPT2, LLAMA | {"num_key_value_heads": 2, "attention_bias": True}):
        ic.manual_seed(0)
        reference = from_config(config).state_dict()
        for axes, divide in (
            ({"tp": N}, dist.parallelize),
            ({"pp": N}, lambda m, mesh: dist.Pipeline(m, mesh, 2).module),
        ):
            mesh = dist.Mesh(**axes)
            ic.manual_seed(0 if R == 0 else None)
            model = divide(dist.deferred_init(from_config, config), mesh)
            state = dist.whole_state_dict(dist.materialize_module(model), mesh)
            assert state.keys() <= reference.keys()
            assert all((state[name].numpy() == x.numpy()).all() for name, x in reference.items() if name in state), axes


def refused(kind, words, action):
    try:
        action()
    except kind as error:
        assert words in str(error), error
    else:
        raise AssertionError(f"not refused: {words}")


def refusals():
    tied = from_config(GPT2)
    dist.fully_shard(tied.lm_head)
    refused(ValueError, "shared with another unit", lambda: dist.fully_shard(tied))
    model = shard(from_config(GPT2))
    refused(ValueError, "divided already", lambda: dist.fully_shard(model))
    refused(RuntimeError, "before `fully_shard`", lambda: model.to("bfloat16"))
    refused(ValueError, "whole ones", lambda: optim.Adafactor(model.parameters()))
    refused(TypeError, "`mesh`", lambda: dist.fully_shard(nn.Linear(2, 2), mesh=3))
    refused(ValueError, "`stage`", lambda: dist.ZeroDataParallel(nn.Linear(2, 2), stage=4))
    waiting = dist.deferred_init(from_config, GPT2)
    refused(RuntimeError, "deferred_init", lambda: waiting.loss(*pair(batches(1, 1)[0])))
    ids = pair(batches(1, 1)[0])
    loss = model.loss(*ids)
    adam = optim.SGD(model.parameters(), lr=0.1)
    model.loss(*ids).backward()
    adam.step()
    refused(ValueError, "changed in place", loss.backward)  # values that the graph has not seen
    model.loss(*ids).backward()  # and goes on


if N == 4:
    tensors()
else:
    language()
    own_module()
    mixed()
    deferred()
    refusals()
print(f"rank {R} of {N}: done")
