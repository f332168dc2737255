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


PERMUTED = {
    "a number in front": lambda t, x, row, column: 1.0 / x,
    "a number behind": lambda t, x, row, column: x * 2.0,
    "a row in front": lambda t, x, row, column: row + x,
    "a column in front": lambda t, x, row, column: column - x,
    "a row-major tensor behind": lambda t, x, row, column: x + x.contiguous(),
    "a row-major tensor in front": lambda t, x, row, column: x.contiguous() + x,
    "a condition": lambda t, x, row, column: t.where(x > 0, row, 0.0),
    "limits": lambda t, x, row, column: t.clamp(x, -0.5, 0.5),
    "one limit": lambda t, x, row, column: t.clamp(x, min=0.1),
    "flipped": lambda t, x, row, column: t.flip(x, (0, 2)),
    "flipped rows": lambda t, x, row, column: t.flip(x, (1,)),
    "with gaps": lambda t, x, row, column: 1.0 - x[:, :, 1:3],
}


@pytest.mark.parametrize("name", PERMUTED)
def test_results_of_permuted_tensors_have_the_layout_of_pytorch(name, rng):
    torch = pytest.importorskip("torch")
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in ((4, 5, 6), (5,), (6, 1, 1))]
    found = []
    for lib in (ic, torch):
        x, row, column = (lib.from_numpy(a) for a in arrays)
        for _ in range(2):  # the second call of these layouts is a known one
            y = PERMUTED[name](lib, x.permute(2, 0, 1), row, column)
        found.append(y)
    np.testing.assert_allclose(found[0].numpy(), found[1].numpy(), rtol=1e-6)
    assert tuple(found[0].stride()) == tuple(found[1].stride())
