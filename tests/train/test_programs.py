"""Training programs as people write them, run word for word by infinicore and by PyTorch from the same weights."""

from types import SimpleNamespace

import numpy as np
import pytest

import infinicore
from infinicore import autograd, nn, optim

torch = pytest.importorskip("torch")

OURS = SimpleNamespace(
    T=infinicore, nn=nn, F=nn.functional, optim=optim, grad=autograd.grad, Function=autograd.Function
)
THEIRS = SimpleNamespace(
    T=torch, nn=torch.nn, F=torch.nn.functional, optim=torch.optim, grad=torch.autograd.grad,
    Function=torch.autograd.Function,
)  # fmt: skip


class Source:
    """Random tensors of a library, the same for each."""

    def __init__(self, lib):
        self.lib, self.rng = lib.T, np.random.default_rng(0)

    def normal(self, *shape):
        return self.lib.from_numpy(self.rng.standard_normal(shape).astype(np.float32))

    def below(self, most, *shape):
        return self.lib.from_numpy(self.rng.integers(0, most, shape))

    def fill(self, *modules):
        """New weights."""
        for module in modules:
            state = module.state_dict()
            for name, value in state.items():
                if "weight" in name or "bias" in name:
                    array = 0.3 * self.rng.standard_normal(tuple(value.shape))
                    state[name] = self.lib.from_numpy(np.asarray(array, np.float32))
            module.load_state_dict(state)


def wasserstein_gan_with_gradient_penalty(L, s):
    make = L.nn.Sequential(L.nn.Linear(8, 16), L.nn.BatchNorm1d(16), L.nn.ReLU(), L.nn.Linear(16, 4))
    judge = L.nn.Sequential(L.nn.Linear(4, 16), L.nn.LeakyReLU(0.2), L.nn.LayerNorm(16), L.nn.Linear(16, 1))
    s.fill(make, judge)
    makers = L.optim.Adam(make.parameters(), lr=1e-3, betas=(0.5, 0.9))
    judges = L.optim.Adam(judge.parameters(), lr=1e-3, betas=(0.5, 0.9))
    for _ in range(4):
        real, fake, mix = s.normal(10, 4), make(s.normal(10, 8)).detach(), s.normal(10, 1).sigmoid()
        between = (mix * real + (1 - mix) * fake).requires_grad_(True)
        found = judge(between)
        (g,) = L.grad(outputs=found, inputs=between, grad_outputs=L.T.ones_like(found), create_graph=True)
        loss = judge(fake).mean() - judge(real).mean() + 10 * ((g.norm(2, dim=1) - 1) ** 2).mean()
        judges.zero_grad()
        loss.backward()
        judges.step()
        cheat = -judge(make(s.normal(10, 8))).mean()
        makers.zero_grad()
        cheat.backward()
        makers.step()
        yield loss
        yield cheat


def learning_to_learn(L, s):
    net = L.nn.Linear(3, 1)
    s.fill(net)
    outer = L.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(4):
        x, y, (w, b) = s.normal(5, 3), s.normal(5, 1), net.parameters()
        for _ in range(2):
            steps = L.grad(L.F.mse_loss(L.F.linear(x, w, b), y), (w, b), create_graph=True)
            w, b = w - 0.1 * steps[0], b - 0.1 * steps[1]
        loss = L.F.mse_loss(L.F.linear(x, w, b), y)
        outer.zero_grad()
        loss.backward()
        outer.step()
        yield loss


def variational_autoencoder(L, s):
    encoder, decoder = L.nn.Linear(12, 8), L.nn.Sequential(L.nn.Linear(4, 12), L.nn.Sigmoid())
    s.fill(encoder, decoder)
    rule = L.optim.RMSprop([*encoder.parameters(), *decoder.parameters()], lr=1e-2)
    for _ in range(4):
        x = L.T.sigmoid(s.normal(6, 12))
        mean, spread = encoder(x).chunk(2, dim=-1)
        y = decoder(mean + L.T.exp(0.5 * spread) * s.normal(6, 4))
        loss = L.F.binary_cross_entropy(y, x) - 0.05 * L.T.mean(1 + spread - mean.pow(2) - spread.exp())
        rule.zero_grad(set_to_none=True)
        loss.backward()
        rule.step()
        yield loss


def images(L, s):
    class Net(L.nn.Module):
        def __init__(self):
            super().__init__()
            self.conv1, self.norm = L.nn.Conv2d(1, 6, 3, padding=1), L.nn.BatchNorm2d(6)
            self.conv2, self.pool = L.nn.Conv2d(6, 8, 3, stride=2), L.nn.MaxPool2d(2)
            self.out = L.nn.Linear(8 * 3 * 3, 10)

        def forward(self, x):
            x = L.F.relu(self.conv2(self.pool(L.F.relu(self.norm(self.conv1(x))))))
            return L.F.log_softmax(self.out(L.T.flatten(x, 1)), dim=1)

    net = Net()
    s.fill(net)
    rule = L.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-4)
    rate = L.optim.lr_scheduler.StepLR(rule, 2, 0.5)
    for _ in range(4):
        loss = L.F.nll_loss(net(s.normal(4, 1, 14, 14)), s.below(10, 4))
        rule.zero_grad()
        loss.backward()
        yield L.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        rule.step()
        rate.step()
        yield loss
    net.eval()
    with L.T.no_grad():
        yield net(s.normal(2, 1, 14, 14)).max(dim=1).values.sum()


def averaged_weights_and_a_frozen_bias(L, s):
    net, average = (L.nn.Sequential(L.nn.Linear(5, 7), L.nn.Tanh(), L.nn.Linear(7, 3)) for _ in range(2))
    s.fill(net)
    average.load_state_dict(net.state_dict())
    net[0].bias.requires_grad = False
    for p in average.parameters():
        p.requires_grad_(False)
    wanted = [p for p in net.parameters() if p.requires_grad]
    groups = [{"params": [p for p in wanted if p.dim() > 1]}]
    groups += [{"params": [p for p in wanted if p.dim() <= 1], "weight_decay": 0.0, "lr": 5e-3}]
    rule = L.optim.AdamW(groups, lr=1e-2, weight_decay=0.1)
    for _ in range(4):
        loss = L.F.cross_entropy(net(s.normal(6, 5)), s.below(3, 6), label_smoothing=0.1)
        rule.zero_grad()
        loss.backward()
        rule.step()
        with L.T.no_grad():
            for a, p in zip(average.parameters(), net.parameters()):
                a.mul_(0.9).add_(p.detach(), alpha=0.1)
        yield loss
        yield sum(p.abs().sum() for p in average.parameters())


def shared_embedding_with_a_hook(L, s):
    class Net(L.nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.head = L.nn.Embedding(11, 8), L.nn.Linear(8, 11, bias=False)
            self.head.weight = self.embedding.weight
            block = lambda: L.nn.Sequential(L.nn.LayerNorm(8), L.nn.Linear(8, 8), L.nn.GELU())
            self.blocks = L.nn.ModuleList([block() for _ in range(3)])

        def forward(self, x):
            x = self.embedding(x)
            for block in self.blocks:
                x = x + block(x)
            return self.head(x)

    net, seen = Net(), []
    s.fill(net)
    net.embedding.weight.register_hook(lambda g: seen.append(g.abs().sum()))
    rule = L.optim.AdamW(net.parameters(), lr=1e-2)
    for _ in range(4):
        ids = s.below(11, 3, 6)
        loss = L.F.cross_entropy(net(ids[:, :-1]).reshape(-1, 11), ids[:, 1:].reshape(-1))
        rule.zero_grad()
        loss.backward()
        yield L.nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        rule.step()
        yield loss
    assert len(seen) == 4  # once for both uses
    yield from seen


def encoder_with_padding(L, s):
    layer = L.nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, activation="gelu", batch_first=True, norm_first=True)
    net = L.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    s.fill(net)
    padding = L.T.zeros(3, 6, dtype=L.T.bool)
    padding[0, 4:] = True
    y = net(s.normal(3, 6, 16), src_key_padding_mask=padding)
    loss = (y * (~padding).unsqueeze(-1)).pow(2).mean()
    loss.backward()
    yield loss
    for p in net.parameters():
        yield p.grad.abs().sum()


def a_function_of_ones_own(L, s):
    class Clip(L.Function):
        @staticmethod
        def forward(ctx, x, low):
            ctx.save_for_backward(x)
            ctx.low = low
            return x.clamp(min=low)

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return 2 * g * (x > ctx.low).to(g.dtype), None

    x = s.normal(4, 5).requires_grad_()
    y = Clip.apply(x * 2, 0.1).pow(2).sum()
    y.backward()
    yield y
    yield x.grad.sum()


def indices_and_slices(L, s):
    w, memory = s.normal(6, 4).requires_grad_(), L.T.zeros(6, 4)
    memory[1:3] = w[1:3] * 2
    memory[:, 0] += w[:, 1]
    seen, top = memory[L.T.tensor([0, 2, 2])], w.topk(2, dim=-1)
    y = (
        w[w > 0].sum()
        + seen.pow(2).sum()
        + (w[..., None] * w[:, None]).sum()
        + top.values.sum()
        + w.sort(0)[0][0].sum()
    )
    y.backward()
    yield y
    yield w.grad.abs().sum()
    yield top.indices.sum()


PROGRAMS = [
    wasserstein_gan_with_gradient_penalty, learning_to_learn, variational_autoencoder, images,
    averaged_weights_and_a_frozen_bias, shared_embedding_with_a_hook, encoder_with_padding, a_function_of_ones_own,
    indices_and_slices,
]  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_the_same_numbers(program):
    ours, theirs = ([float(x) for x in program(lib, Source(lib))] for lib in (OURS, THEIRS))
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
