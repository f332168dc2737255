"""Ring attention beside attention of the whole, forward and backward, and `context_parallel` around a user's module."""

import infinicore.distributed as dist
import numpy as np
from infinicore.distributed.context import own_part
from refusals import refused

import infinicore as ic
from infinicore import nn
from infinicore.models import from_config

group = dist.init()
R, N = group.rank, group.size
sdpa = nn.functional.scaled_dot_product_attention
TOLERANCE = {"float64": 1e-12, "float32": 5e-6}


def close(a, b, what, atol):
    a, b = (x.detach().to("float64").numpy() for x in (a, b))
    np.testing.assert_allclose(a, b, rtol=0, atol=atol, err_msg=f"{what}, rank {R}")


def drawn(seed, *shapes, dtype="float64"):
    rng = np.random.default_rng(seed)
    return [ic.from_numpy(rng.standard_normal(shape)).to(dtype) for shape in shapes]


def attended(x, g, function, heads, shared, **options):
    """The result and the gradient of packed queries, keys and values, views of one product as in models."""
    x = x.clone()
    x.requires_grad = True
    q, k, v = (part.transpose(1, 2) for part in x.split([heads, shared, shared], dim=2))
    y = function(q, k, v, enable_gqa=heads != shared, **options).transpose(1, 2)
    y.backward(g)
    return y.detach(), x.grad


def ring(dtype, length, heads=4, shared=2, window=None, **options):
    """In 16 bits, the ring is at most twice as far from float64 as attention of the whole is.

    That is rounded once where products are computed in float32; the ring's parts are, and what they are joined to.
    """
    packed, g = drawn(1, (2, length, heads + 2 * shared, 8), (2, length, heads, 8), dtype=dtype)
    mine, seen = (own_part(packed, 1, group), own_part(g, 1, group)), dict(options)
    if window:
        i = np.arange(length)
        seen["attn_mask"] = ic.from_numpy(i > i[:, None] - window)
        options["window"] = window
    found = attended(*mine, dist.ring_attention, heads, shared, **options)
    whole = attended(packed, g, sdpa, heads, shared, **seen)
    exact = attended(packed.to("float64"), g.to("float64"), sdpa, heads, shared, **seen)
    what = f"{dtype}, {length} tokens, {heads} over {shared} heads, window {window}, {options}"
    for name, x, y, z in zip(("result", "gradient"), found, whole, exact):
        rounding = (y.to("float64") - z).abs().max().item()
        atol = TOLERANCE.get(dtype, 2 * rounding)
        close(x, own_part(z, 1, group), f"{name} of {what}", atol)


class Block(nn.Module):
    """A user's own: attention by the function of PyTorch's name, positions from a table."""

    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(16, 48, dtype="float64"), nn.Linear(16, 16, dtype="float64")

    def forward(self, x, table):
        q, k, v = (self.qkv(x + table).view(*x.shape[:2], 3, 2, 8)).permute(2, 0, 3, 1, 4).unbind(0)
        return self.out(sdpa(q, k, v, is_causal=True).transpose(1, 2).reshape(x.shape))


def own_module():
    ic.manual_seed(0)
    model, length = Block(), 8 * N
    x, table, target = drawn(2, (2, length, 16), (length, 16), (2, length, 16))
    expected = nn.functional.mse_loss(model(x, table), target)
    expected.backward()
    gradients = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    mesh = dist.Mesh(cp=-1)
    ddp = dist.DistributedDataParallel(model, mesh.group("dp", "cp"))
    with dist.context_parallel(
        mesh, buffers=(x, table, target), buffer_seq_dims=(1, 0, -2), no_restore_buffers=(target,)
    ):
        assert x.shape == (2, 8, 16) and table.shape == (8, 16)
        y = ddp(x, table)
        loss = nn.functional.mse_loss(y, target)
        loss.backward()
        (joined,) = dist.context_parallel_unshard(mesh, (y,), (1,))
    assert x.shape == (2, length, 16) and target.shape == (2, 8, 16)
    close(joined, model(x, table), "the whole result", 1e-12)
    close(dist.all_reduce(loss.detach().reshape(1), "avg"), expected.reshape(1), "loss", 1e-12)
    for p, g in zip(model.parameters(), gradients):
        close(p.grad, g, "gradient", 1e-12)


MISTRAL = {
    "model_type": "mistral", "vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "rms_norm_eps": 1e-5, "sliding_window": 6,
    "max_position_embeddings": 32, "rope_theta": 10000.0, "tie_word_embeddings": False,
}  # fmt: skip


def windows():
    """A model with a sliding window, each layer computed again in backward; logits of the whole; what is refused."""
    mesh, length = dist.Mesh(cp=-1), 29
    ids = np.random.default_rng(7).integers(0, 97, (2, length))
    (weights,) = drawn(8, (2, length, 97))
    models = []
    for _ in range(2):
        ic.manual_seed(0)
        models.append(from_config(MISTRAL, dtype="float64"))
        models[-1].gradient_checkpointing = True
    reference, own = models[0], dist.parallelize(models[1], mesh)
    refused(RuntimeError, "nothing averages them", own, ids, labels=ids)
    refused(ValueError, "lacks", dist.DistributedDataParallel, own, mesh.dp)
    ddp = dist.DistributedDataParallel(own, mesh.group("dp", "cp"))
    for loss in (lambda model: model(ids, labels=ids), lambda model: (model(ids) * weights).sum()):
        values = []
        for model in (reference, ddp):
            model.zero_grad()
            values.append(loss(model))
            values[-1].backward()
        close(values[1].reshape(1), values[0].reshape(1), "loss", 1e-9)
        for (name, p), q in zip(reference.named_parameters(), own.parameters()):
            close(q.grad, p.grad, name, 1e-9)
    with ic.amp.autocast("cpu", dtype=ic.bfloat16):
        close(ddp(ids, labels=ids).reshape(1), reference(ids, labels=ids).reshape(1), "loss in bfloat16", 2e-2)
    assert own.eval()(ids).shape == (2, length, 97)


def recorded():
    """A recorded pass replays the ring, forward and backward."""
    mesh = dist.Mesh(cp=-1)
    ic.manual_seed(0)
    own = dist.parallelize(from_config(MISTRAL, dtype="float64"), mesh)
    model = dist.DistributedDataParallel(own, mesh.group("dp", "cp"))

    def run(ids, targets):
        loss = model.loss(ids, targets)
        loss.backward()
        return loss

    replayed, rng, found = ic.recorded(run), np.random.default_rng(9), {run: []}
    found[replayed] = []
    for _ in range(4):
        batch = [ic.from_numpy(rng.integers(0, 97, (2, 8 * N))) for _ in range(2)]
        for function, values in found.items():
            model.zero_grad(set_to_none=False)
            values.append(function(*batch).reshape(1).clone())
            values += [p.grad.clone() for p in own.parameters()]
    for one, other in zip(*found.values(), strict=True):
        close(other, one, "replay", 1e-12)


def dropout():
    """Half of the probabilities are dropped, others doubled: the mean of results is that without."""
    (whole,) = drawn(4, (64, 2, 8 * N, 4), dtype="float32")
    x = own_part(whole, 2, group)
    ones = ic.ones(*x.shape)
    y = dist.ring_attention(x, x, ones, is_causal=True, dropout_p=0.5)
    total = dist.all_reduce(ic.stack([y.sum(), (y != 1).sum().to("float32")])).numpy()
    assert abs(total[0] / whole.numel() - 1) < 0.05 and total[1] > 0.8 * whole.numel(), total
    x.requires_grad = True
    ic.manual_seed(5)
    y = dist.ring_attention(x, x, x, is_causal=True, dropout_p=0.5)
    y.sum().backward()
    # along x the result is a function of the masks that the seed draws: a difference quotient of the same seed
    step, direction = 1e-3, own_part(drawn(6, whole.shape, dtype="float32")[0], 2, group)
    ends = []
    for sign in (1, -1):
        ic.manual_seed(5)
        z = x.detach() + sign * step * direction
        ends.append(dist.ring_attention(z, z, z, is_causal=True, dropout_p=0.5).to("float64").sum())
    numbers = [(ends[0] - ends[1]) / (2 * step), (x.grad * direction).to("float64").sum()]
    quotient, product = dist.all_reduce(ic.stack(numbers)).numpy()
    assert abs(quotient - product) < 1e-2 * abs(quotient) + 0.5, (quotient, product)


def errors():
    x = ic.zeros(1, 2, 4 if R == 0 else 7, 8)
    refused(ValueError, "`context_parallel` divides sequences so", dist.ring_attention, x, x, x, is_causal=True)
    refused(ValueError, "`length` 3", dist.ring_attention, x, x, x, is_causal=True, length=3)
    y = ic.zeros(1, 2 + R, 4, 8)
    refused(ValueError, "size) of key and value", dist.ring_attention, y, y, y)
    y = ic.zeros(1, 2, 4, 8)
    refused(ValueError, "enable_gqa", dist.ring_attention, y, y.narrow(1, 0, 1), y.narrow(1, 0, 1))
    refused(ValueError, "`window`", dist.ring_attention, y, y, y, window=3)
    refused(ValueError, "as many tokens", dist.ring_attention, y, x.narrow(2, 0, 3), x.narrow(2, 0, 3))
    y.requires_grad = True
    out = dist.ring_attention(y, y, y)
    refused(NotImplementedError, "second derivative", ic.autograd.grad, out.sum(), y, create_graph=True)
    short = dist.context_parallel(group, buffers=(ic.zeros(1, 2 * N - 1),), buffer_seq_dims=(1,))
    refused(ValueError, f"at least {2 * N} tokens", short.__enter__)
    with dist.context_parallel(group):
        refused(NotImplementedError, "attn_mask", sdpa, x, x, x, ic.zeros(1, 1, 1, 1))


for dtype in ("float64", "float32", "bfloat16", "float16"):
    ring(dtype, 8 * N, is_causal=True)
for length in (2 * N, 8 * N + 3, 37):  # pieces of one token; of different sizes
    ring("float64", length, is_causal=True)
    ring("float64", length, is_causal=False, scale=0.3)
for window in (1, 5, 6 * N, 100):
    ring("float64", 8 * N + 1, window=window, is_causal=True)
ring("float64", 300, heads=3, shared=3, is_causal=True)
own_module()
windows()
recorded()
dropout()
errors()
print(f"rank {R} of {N}: done")
