"""Memory formats: which strides `channels_last` gives, and which calls keep them, beside PyTorch."""

import numpy as np
import pytest

import infinicore as ic

X = np.arange(2 * 3 * 4 * 5, dtype=np.float32).reshape(2, 3, 4, 5)
CALLS = {
    "to": lambda t, x: x.to(memory_format=t.channels_last),
    "contiguous": lambda t, x: x.contiguous(memory_format=t.channels_last),
    "clone": lambda t, x: x.clone(memory_format=t.channels_last),
    "and a dtype": lambda t, x: x.to(t.float64, memory_format=t.channels_last),
    "double": lambda t, x: x.double(memory_format=t.channels_last),
    "empty": lambda t, x: t.empty(2, 3, 4, 5, memory_format=t.channels_last).copy_(x),
    "zeros_like": lambda t, x: t.zeros_like(x, memory_format=t.channels_last),
    "kept by clone": lambda t, x: x.to(memory_format=t.channels_last).clone(memory_format=t.preserve_format),
    "kept by empty_like": lambda t, x: t.zeros_like(x.permute(0, 2, 3, 1), memory_format=t.preserve_format),
    "kept by arithmetic": lambda t, x: (x.contiguous(memory_format=t.channels_last) * 2 + 1).exp2().relu(),
    "back": lambda t, x: x.to(memory_format=t.channels_last).contiguous(),
    "three dims": lambda t, x: x[..., None].contiguous(memory_format=t.channels_last_3d),
    "one channel": lambda t, x: x[:, :1].contiguous(memory_format=t.channels_last),
}


@pytest.mark.parametrize("name", CALLS)
def test_strides(name):
    torch = pytest.importorskip("torch")
    got, wanted = CALLS[name](ic, ic.from_numpy(X)), CALLS[name](torch, torch.from_numpy(X))
    large = [d for d, n in enumerate(wanted.shape) if n != 1]
    assert [got.stride(d) for d in large] == [wanted.stride(d) for d in large]
    np.testing.assert_array_equal(got.numpy(), wanted.numpy())


def test_modules_and_gradients():
    torch = pytest.importorskip("torch")
    found = []
    for lib in (ic, torch):
        conv = lib.nn.Sequential(lib.nn.Conv2d(3, 2, 2), lib.nn.BatchNorm2d(2)).to(memory_format=lib.channels_last)
        for p in conv.parameters():
            p.data.fill_(0.5)
        x = lib.from_numpy(X.copy()).to(memory_format=lib.channels_last).requires_grad_()
        assert conv[0].weight.is_contiguous(memory_format=lib.channels_last) and not conv[0].weight.is_contiguous()
        y = conv(x)
        (y * y * y).sum().backward()
        found.append((y.detach().numpy(), x.grad.numpy(), conv[0].weight.grad.numpy()))
    for a, b in zip(*found):
        np.testing.assert_allclose(a, b, rtol=2e-3, atol=2e-3)


def test_refused():
    x = ic.from_numpy(X)
    with pytest.raises(ValueError, match=r"`memory_format` infinicore.channels_last is for 4 dims, got 3"):
        x[0].contiguous(memory_format=ic.channels_last)
    with pytest.raises(TypeError, match="`memory_format` must be a memory format"):
        x.to(memory_format="channels_last")
