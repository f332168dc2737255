"""Tensor-parallel training beside one process: losses and parameters within 1e-5, and what is refused.

In float64 within 1e-9: there, rounding does not hide a gradient that is wrong, or make AdamW divide noise by noise.
"""

import infinicore.distributed as dist
import numpy as np
from refusals import refused

import infinicore as ic
from infinicore import nn, optim
from infinicore.models import from_config

group = dist.init()
R, N = group.rank, group.size
mesh = dist.Mesh(tp=2, dp=-1)
LENGTH = 8
GPT2 = {
    "model_type": "gpt2", "n_layer": 2, "n_head": 2, "n_embd": 32, "n_positions": 16, "vocab_size": 97,
    "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0,
}  # fmt: skip
QWEN = {
    "model_type": "qwen3", "vocab_size": 97, "hidden_size": 32, "intermediate_size": 49, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "rms_norm_eps": 1e-5,
    "max_position_embeddings": 16, "rope_theta": 10000.0, "tie_word_embeddings": False,
}  # fmt: skip


def pair(ids):
    """Inputs and targets."""
    return ic.from_numpy(ids[:, :-1].copy()), ic.from_numpy(ids[:, 1:].copy())


def close(a, b, what, atol=1e-9):
    np.testing.assert_allclose(a, b, rtol=0, atol=atol, err_msg=f"{what}, rank {R}")


def language(config, accumulate, sequence_parallel, dtype="float64", seed=0):
    ic.manual_seed(0)
    reference = from_config(config, dtype=dtype)
    ic.manual_seed(R if seed is None else seed)  # else the ranks begin with other values
    own = dist.parallelize(from_config(config, dtype=dtype), mesh, sequence_parallel=sequence_parallel)
    if seed is None:
        state = dist.whole_state_dict(own, mesh)
        every = dist.all_gather_object({name: x.numpy() for name, x in state.items()})
        assert all((every[0][name] == each[name]).all() for each in every for name in state)
        return
    model = own if mesh.dp.size == 1 else dist.DistributedDataParallel(own, mesh.dp)
    # The gradient of a key's bias is 0, as softmax does not see it: `eps` keeps AdamW from dividing rounding by itself.
    adams = [optim.AdamW(m.parameters(), lr=1e-2, eps=1e-4) for m in (reference, model)]
    rng, rows, atol = np.random.default_rng(0), 2, 1e-9 if dtype == "float64" else 1e-5
    what = f"{config['model_type']}, accumulation {accumulate}, sequence parallel {sequence_parallel}"
    for step in range(10):
        total = expected = 0.0
        for micro in range(accumulate):
            ids = rng.integers(0, 97, (mesh.dp.size * rows, LENGTH + 1)).astype(np.int64)
            (reference.loss(*pair(ids)) / accumulate).backward()
            expected += reference.loss(*pair(ids)).item() / accumulate
            loss = model.loss(*pair(ids[mesh.dp.rank * rows :][:rows]))
            (loss / accumulate).backward()
            total += dist.all_reduce(loss.detach().reshape(1).clone(), "avg").item() / accumulate
        close(total, expected, f"{what}, step {step}", atol)
        norms = [nn.utils.clip_grad_norm_(reference.parameters(), 0.5), dist.clip_grad_norm_(own, mesh, 0.5)]
        close(norms[1].item(), norms[0].item(), f"{what}, step {step}: norm", 100 * atol)
        for adam in adams:
            adam.step()
            adam.zero_grad()
    whole = dist.whole_state_dict(own, mesh)
    for name, x in reference.state_dict().items():
        close(whole[name].numpy(), x.detach().numpy(), f"{what}: {name}", atol)
    ids = np.arange(10)[None]
    close(own.eval()(ids).detach().numpy(), reference.eval()(ids).detach().numpy(), f"{what}: logits", 10 * atol)
    try:
        nn.utils.clip_grad_norm_(own.parameters(), 0.5)
    except ValueError as error:
        assert "divided among ranks" in str(error)
    else:
        raise AssertionError("the norm of a rank's parts was taken for that of all")
    prompt = [1, 2, 3]
    texts = [m.generate(prompt, max_new_tokens=8, ignore_eos=True).finish()[0].token_ids for m in (own, reference)]
    assert texts[0] == texts[1], (what, texts)


class Plain(nn.Module):
    """A user's own, of sizes that two ranks do not divide."""

    def __init__(self):
        super().__init__()
        self.table, self.up, self.down = nn.Embedding(11, 7), nn.Linear(7, 13), nn.Linear(13, 5)

    def forward(self, ids):
        return self.down(ic.relu(self.up(self.table(ids))))


def plain():
    ic.manual_seed(0)
    reference, own = Plain(), Plain()
    own.load_state_dict(reference.state_dict())
    dist.parallelize(own, mesh, {"table": "vocab", "up": "column", "down": "row"})
    assert own.up.weight.shape[0] in (6, 7) and own.table.weight.shape[0] in (5, 6)
    for model in (reference, own):
        sgd = optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            model.zero_grad()
            (model(ic.tensor([[0, 5, 10, 3]])) ** 2).sum().backward()
            sgd.step()
    for name, x in dist.whole_state_dict(own, mesh).items():
        close(x.numpy(), reference.state_dict()[name].numpy(), name, 1e-5)


def errors():
    refused(ValueError, "num_key_value_heads", dist.parallelize, from_config({**GPT2, "n_head": 1}), mesh)
    refused(ValueError, "no such", dist.parallelize, Plain(), mesh, {"middle": "row"})
    refused(TypeError, "Linear", dist.parallelize, Plain(), mesh, {"table": "row"})
    refused(ValueError, "partial", dist.parallelize, Plain(), mesh, {"up": "column"}, sequence_parallel=True)
    logits = ic.zeros(2, 48 if mesh.tp.rank == 0 else 49)
    loss = dist.vocab_parallel_cross_entropy
    refused(ValueError, "index", loss, logits, ic.tensor([1, 97]), 97, group=mesh.tp)


for config in (GPT2, QWEN):
    for accumulate, sequence_parallel in ((1, False), (3, True)):
        language(config, accumulate, sequence_parallel)
language(GPT2, 3, False, "float32")
language({**GPT2, "n_head": 3, "n_embd": 30}, 1, False)  # two heads and one
language(GPT2, 1, False, seed=None)
plain()
errors()
print(f"rank {R} of {N}: done")
