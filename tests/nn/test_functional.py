"""Functions and modules against their definitions."""

import numpy as np
import pytest

import infinicore
import infinicore.nn.functional as F
from infinicore import nn


@pytest.fixture
def x(rng):
    return infinicore.from_numpy(rng.standard_normal((2, 5, 8)).astype(np.float32))


def close(ours, expected, tol=1e-5):
    ours = ours.detach() if isinstance(ours, infinicore.Tensor) else ours
    np.testing.assert_allclose(np.asarray(ours), expected, rtol=tol, atol=tol)


def silu(v):
    return v / (1 + np.exp(-v))


def test_linear(x, rng):
    weight, bias = rng.standard_normal((3, 8)).astype(np.float32), rng.standard_normal(3).astype(np.float32)
    w, b = infinicore.from_numpy(weight), infinicore.from_numpy(bias)
    close(F.linear(x, w), x.numpy() @ weight.T)
    close(F.linear(x, w, b, alpha=2.0), 2 * x.numpy() @ weight.T + bias)
    layer = nn.Linear(8, 3, bias=True)
    layer.load_state_dict({"weight": w, "bias": b})
    close(layer(x), x.numpy() @ weight.T + bias)
    layer.alpha = 0.5
    close(layer(x), 0.5 * x.numpy() @ weight.T + bias)
    assert nn.Linear(2, 2, bias=False).bias is None and nn.Linear(2, 2).bias.shape == (2,)
    with pytest.raises(ValueError, match="in_features"):
        nn.Linear(-1, 2)


def test_activations(x):
    v = x.numpy()
    close(F.silu(x), silu(v))
    close(F.swiglu(x, x + 1.0), v * silu(v + 1))
    close(F.silu_and_mul(x), silu(v[..., :4]) * v[..., 4:])
    close(F.gelu(x, approximate="tanh"), 0.5 * v * (1 + np.tanh(0.79788456 * (v + 0.044715 * v**3))))
    with pytest.raises(ValueError, match="approximate"):
        F.gelu(x, approximate="cubic")
    y = x.clone()
    assert F.silu(y, inplace=True) is y
    close(y, silu(v))


def test_norms(x):
    v = x.numpy()
    layer = nn.RMSNorm(8, eps=1e-3)
    close(layer(x), v / np.sqrt((v**2).mean(-1, keepdims=True) + 1e-3))
    layer = nn.LayerNorm(8)
    nn.init.constant_(layer.bias, 0.5)
    centred = v - v.mean(-1, keepdims=True)
    close(layer(x), centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) + 0.5)
    close(nn.LayerNorm(8, elementwise_affine=False)(x), centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5))
    with pytest.raises(ValueError, match="normalized_shape"):
        F.rms_norm(x, (7,), infinicore.ones(7))
    with pytest.raises(ValueError, match="normalized_shape"):
        nn.RMSNorm((2, 0))


def test_softmax(x):
    e = np.exp(x.numpy())
    close(F.softmax(x, 1), e / e.sum(1, keepdims=True))
    assert F.softmax(x, -1, dtype=infinicore.float64).dtype is infinicore.float64
    close(F.causal_softmax(x).numpy().sum(-1), np.ones((2, 5)))
    assert F.causal_softmax(x).numpy()[0, 0, 4] == 0


@pytest.mark.parametrize("name", ["softmax", "log_softmax", "softmin"])
@pytest.mark.parametrize("shape, dim", [((), 0), ((3,), 0), ((3, 4), 1), ((2, 3, 4), 0), ((2, 3, 4, 2), 1)])
def test_softmax_without_a_dim(name, shape, dim, rng):
    """The dim that PyTorch takes, with a warning; of the modules too."""
    x, f = infinicore.from_numpy(np.asarray(rng.standard_normal(shape))), getattr(F, name)
    module = {"softmax": nn.Softmax, "log_softmax": nn.LogSoftmax, "softmin": nn.Softmin}[name]
    for call in (f, module()):
        with pytest.warns(UserWarning, match="`dim`"):
            result = call(x)
        np.testing.assert_array_equal(result.numpy(), f(x, dim).numpy())


@pytest.mark.parametrize("dtype, eps", [("float64", 2.0**-52), ("float32", 2.0**-23), ("float16", 2.0**-23)])
def test_rms_norm_without_eps(dtype, eps):
    """None is PyTorch's: that of the dtype the mean is taken in; left out, it is InfiniCore's."""
    x = infinicore.full((2, 4), 1e-3, dtype=infinicore.dtype(dtype))
    tolerance = 1e-3 if dtype == "float16" else 1e-5
    for call, value in (
        (lambda: F.rms_norm(x, (4,), eps=None), eps), (lambda: F.rms_norm(x, (4,)), 1e-5),
        (lambda: nn.RMSNorm(4, eps=None, dtype=x.dtype)(x), eps), (lambda: nn.RMSNorm(4, dtype=x.dtype)(x), 1e-6),
    ):  # fmt: skip
        close(call().detach().to(infinicore.float64), np.full((2, 4), 1e-3 / np.sqrt(1e-6 + value)), tolerance)


def test_embedding():
    table = nn.Embedding(5, 3)
    ids = infinicore.tensor([[0, 4], [2, 2]])
    assert (table(ids).detach().numpy() == table.weight.detach().numpy()[ids.numpy()]).all()
    with pytest.raises(ValueError):
        table(infinicore.tensor([5]))
    limited = nn.Embedding(5, 3, max_norm=0.5)
    nn.init.constant_(limited.weight, 1.0)
    close(limited(ids), np.full((2, 2, 3), 0.5 / np.sqrt(3)))
    close(limited.weight.detach()[1], np.ones(3))  # not asked for
    with pytest.raises(ValueError, match="padding_idx"):
        nn.Embedding(5, 3, padding_idx=5)


@pytest.mark.parametrize("rotary", [8, 4])
def test_rope(rng, rotary):
    rope = nn.RoPE(16, 100.0, 8, rotary_dim=rotary)
    x = rng.standard_normal((5, 2, 8)).astype(np.float32)
    positions = np.array([0, 3, 15, 1, 2])
    half = rotary // 2
    angles = positions[:, None, None] / 100.0 ** (np.arange(half) * 2 / rotary)
    expected = x.copy()
    a, b = x[..., :half], x[..., half:rotary]
    expected[..., :half] = a * np.cos(angles) - b * np.sin(angles)
    expected[..., half:rotary] = a * np.sin(angles) + b * np.cos(angles)
    ids = infinicore.from_numpy(positions)
    out = infinicore.empty((5, 2, 8))
    close(rope(infinicore.tensor(x), ids, out=out), expected)
    states = infinicore.tensor(x)
    assert rope(states, ids) is states  # in place
    close(states, expected)
    q, k = rope.rope(infinicore.tensor(x), infinicore.tensor(x[:, :1]), ids)
    close(q, expected)
    close(k, expected[:, :1])
    assert not rope.state_dict()
    with pytest.raises(ValueError):
        rope(infinicore.tensor(x), infinicore.tensor([0, 1, 2, 3, 16]))


def test_rope_interleaved(rng):
    rope = nn.RoPE(16, 100.0, 4)
    x = rng.standard_normal((2, 1, 4)).astype(np.float32)
    angles = np.arange(2)[:, None, None] / 100.0 ** (np.arange(2) / 2)
    expected = np.empty_like(x)
    expected[..., 0::2] = x[..., 0::2] * np.cos(angles) - x[..., 1::2] * np.sin(angles)
    expected[..., 1::2] = x[..., 0::2] * np.sin(angles) + x[..., 1::2] * np.cos(angles)
    close(rope(infinicore.tensor(x), infinicore.tensor([0, 1]), algo=F.RopeAlgo.GPT_J), expected)


@pytest.mark.parametrize(
    "arguments",
    [{"head_dim": 3}, {"head_dim": 4, "rotary_dim": 6}, {"head_dim": 4, "rotary_dim": 0}],
)
def test_rope_errors(arguments):
    with pytest.raises(ValueError):
        nn.RoPE(16, 100.0, **arguments)
    with pytest.raises(NotImplementedError, match="mrope"):
        nn.RoPE(16, 100.0, 4, mrope_section=[1, 1])


def test_random_sample():
    logits = infinicore.tensor([0.0, 5.0, 1.0, -1.0])
    assert F.random_sample(logits, 0.5, 0.9, 1, 1.0).item() == 1  # top-k 1: the largest
    assert F.random_sample(logits, 0.999999, 1.0, 4, 1.0).dtype is infinicore.int32


def test_flash_attention(rng):
    q, k, v = (rng.standard_normal((2, 2, n, 4)).astype(np.float32) for n in (3, 6, 6))
    out = F.flash_attention(*map(infinicore.from_numpy, (q, k, v)), infinicore.tensor([6, 4])).numpy()
    for batch, length in enumerate((6, 4)):
        scores = q[batch] @ k[batch, :, :length].transpose(0, 2, 1) / 2
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        close(out[batch], weights / weights.sum(-1, keepdims=True) @ v[batch, :, :length])
