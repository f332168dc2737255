"""First and second derivatives of convolutions and pools against differences, and a small net trained beside torch."""

import numpy as np
import pytest

import infinicore as ic
from infinicore.autograd import gradcheck, gradgradcheck


def tensors(rng, *shapes):
    return tuple(ic.from_numpy(rng.standard_normal(shape)).requires_grad_() for shape in shapes)


CONVOLUTIONS = [
    ("conv2d", ((1, 2, 4, 5), (4, 2, 3, 2), (4,)), {"stride": (1, 2), "padding": 1}),
    ("conv2d", ((2, 4, 5, 5), (4, 2, 2, 2)), {"groups": 2, "dilation": 2, "padding": 1, "stride": 2}),
    ("conv1d", ((2, 7), (2, 2, 2), (2,)), {"padding": "same"}),
]


@pytest.mark.parametrize("name, shapes, options", CONVOLUTIONS)
def test_convolutions(name, shapes, options, rng):
    function, given = lambda *args: getattr(ic, name)(*args, **options), tensors(rng, *shapes)
    assert gradcheck(function, given)
    assert gradgradcheck(function, given)


POOLS = [
    ("max_pool2d", (2,), {}),
    ("max_pool2d", (3, 2, 1), {}),
    ("avg_pool2d", (3, 2, 1), {"count_include_pad": False}),
    ("adaptive_avg_pool2d", ((2, 3),), {}),
    ("adaptive_max_pool2d", ((2, 3),), {}),
    ("max_pool3d", (2, 1, (0, 1, 0)), {}),
    ("avg_pool3d", (2, (1, 2, 1), 1), {"ceil_mode": True}),
    ("adaptive_avg_pool3d", ((2, 1, 3),), {}),
    ("adaptive_max_pool1d", (4,), {}),
]


@pytest.mark.parametrize("name, args, options", POOLS)
def test_pools(name, args, options, rng):
    given = tensors(rng, {"1": (2, 3, 7), "2": (1, 2, 5, 6), "3": (1, 2, 3, 3, 4)}[name[-2]])
    function = lambda x: getattr(ic, name)(x, *args, **options)
    assert gradcheck(function, given)
    assert gradgradcheck(lambda x: function(x) * function(x), given)


def test_only_what_is_asked_for(rng):
    x, w, b = tensors(rng, (2, 3, 6, 6), (4, 3, 3, 3), (4,))
    ic.conv2d(x.detach(), w.detach(), b).sum().backward()
    assert x.grad is None and w.grad is None
    np.testing.assert_array_equal(b.grad.numpy(), 32.0)


def test_a_net_learns_as_with_torch(rng):
    """Convolution, batch norm, maxima, convolution, maxima, linear: ten steps of SGD, the same losses and weights."""
    torch = pytest.importorskip("torch")
    functional = torch.nn.functional
    shapes = (8, 1, 3, 3), (8,), (8,), (16, 8, 3, 3), (16,), (10, 16 * 5 * 5), (10,)
    values = [rng.standard_normal(shape).astype(np.float32) * 0.3 for shape in shapes]
    images, labels = rng.standard_normal((8, 1, 28, 28)).astype(np.float32), rng.integers(0, 10, 8)

    def net(f, weights, x, means, variances):
        w1, gain, shift, w2, b2, w3, b3 = weights
        h = f.batch_norm(f.conv2d(x, w1), means, variances, gain, shift, training=True)
        h = f.max_pool2d(f.relu(h), 2)
        h = f.max_pool2d(f.relu(f.conv2d(h, w2, b2)), 2)
        return f.linear(h.flatten(1), w3, b3)

    ours, theirs = [ic.from_numpy(v.copy()).requires_grad_() for v in values], [torch.tensor(v) for v in values]
    for p in theirs:
        p.requires_grad_()
    running = [(ic.zeros(8), ic.ones(8)), (torch.zeros(8), torch.ones(8))]
    x, y, losses = ic.from_numpy(images), ic.from_numpy(labels), []
    for _ in range(10):
        one = ic.cross_entropy(net(ic, ours, x, *running[0]), y)
        two = functional.cross_entropy(
            net(functional, theirs, torch.from_numpy(images), *running[1]), torch.from_numpy(labels)
        )
        losses.append((float(one.detach().numpy()), two.item()))
        for p, g in zip(ours, ic.autograd.grad(one, ours)):
            p.data.copy_(p.detach() - g * 0.05)
        with torch.no_grad():
            for p, g in zip(theirs, torch.autograd.grad(two, theirs)):
                p -= 0.05 * g
    found, wanted = np.array(losses).T
    assert found[-1] < 0.5 * found[0]
    np.testing.assert_allclose(found, wanted, rtol=2e-5)
    np.testing.assert_allclose(running[0][1].numpy(), running[1][1].numpy(), rtol=1e-5)
