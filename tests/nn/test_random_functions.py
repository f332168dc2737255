"""Functions that draw numbers, by what they must be whatever the numbers are; activations in place; odd modules."""

import numpy as np
import pytest

import infinicore as ic
import infinicore.nn.functional as F
from infinicore import nn

torch = pytest.importorskip("torch")

from .test_against_torch import copy_state


def test_gumbel_softmax(rng):
    ic.manual_seed(3)
    x = ic.tensor(np.log([[0.1, 0.2, 0.7]] * 2000)).requires_grad_()
    y = F.gumbel_softmax(x, hard=True)
    np.testing.assert_array_equal(np.sort(y.detach(), -1), [[0, 0, 1]] * 2000)
    np.testing.assert_allclose(y.detach().numpy().mean(0), [0.1, 0.2, 0.7], atol=0.03)
    (y * ic.tensor([1.0, 2.0, 3.0]).double()).sum().backward()
    assert np.abs(x.grad).max() > 0 and np.abs(x.grad.sum(-1)).max() < 1e-9  # the soft one's: a softmax's rows add to 0
    soft = F.gumbel_softmax(x.detach(), tau=0.5, dim=0)
    np.testing.assert_allclose(soft.sum(0), 1)


@pytest.mark.parametrize("inplace", [False, True])
def test_rrelu_in_training(inplace, rng):
    x = ic.tensor(rng.standard_normal((50, 40))).requires_grad_()
    input = x.clone() if inplace else x
    y = nn.RReLU(0.2, 0.4, inplace)(input)
    assert (y is input) is inplace
    y.sum().backward()
    slopes, negative = x.grad.numpy(), x.detach().numpy() <= 0
    assert (slopes[~negative] == 1).all() and slopes[negative].min() >= 0.2 and slopes[negative].max() < 0.4
    assert slopes[negative].std() > 0.03
    np.testing.assert_allclose(y.detach(), x.detach().numpy() * slopes)


@pytest.mark.parametrize("module, shape", [(nn.Dropout3d, (6, 50, 2, 3, 2)), (nn.FeatureAlphaDropout, (6, 50, 4))])
def test_whole_channels_are_dropped(module, shape):
    y = module(0.5)(ic.ones(shape)).numpy().reshape(300, -1)
    assert (y == y[:, :1]).all() and len(np.unique(y)) == 2
    assert 100 < (y[:, 0] == y.min()).sum() < 200
    assert (module(0.5).eval()(ic.ones(shape)).numpy() == 1).all()


@pytest.mark.parametrize(
    "name", ["relu_", "elu_", "celu_", "selu_", "leaky_relu_", "hardtanh_", "threshold_", "rrelu_"]
)
def test_in_place(name, rng):
    values, options = rng.standard_normal((3, 4)), {"threshold": 0.1, "value": 2.0} if name == "threshold_" else {}
    grads = []
    for make, module in ((ic.tensor, F), (torch.tensor, torch.nn.functional)):
        x = make(values).requires_grad_()
        y = x * 2.0
        assert getattr(module, name)(y, **options) is y
        (y * y).sum().backward()
        grads.append((y.detach().numpy(), x.grad.numpy()))
    for one, two in zip(*grads):
        np.testing.assert_allclose(one, two, rtol=1e-12)


def test_unpooling_and_fractional_modules(rng):
    x = rng.standard_normal((2, 3, 6, 7))
    y, at = nn.MaxPool2d(2, return_indices=True)(ic.tensor(x))
    z, places = torch.nn.MaxPool2d(2, return_indices=True)(torch.tensor(x))
    ours = nn.MaxUnpool2d(2)(y, at, output_size=(6, 7))
    np.testing.assert_array_equal(ours, torch.nn.MaxUnpool2d(2)(z, places, output_size=(6, 7)))
    draws = rng.uniform(0, 1, (2, 3, 2))
    options = {"output_ratio": 0.5, "return_indices": True}
    ours = nn.FractionalMaxPool2d(2, _random_samples=ic.tensor(draws), **options)(ic.tensor(x))
    theirs = torch.nn.FractionalMaxPool2d(2, _random_samples=torch.tensor(draws), **options)(torch.tensor(x))
    for one, two in zip(ours, theirs):
        np.testing.assert_array_equal(one, two)
    assert nn.FractionalMaxPool2d(2, 3)(ic.tensor(x)).shape == (2, 3, 3, 3)


def test_adaptive_softmax_and_ctc(rng):
    ours, theirs = (m.AdaptiveLogSoftmaxWithLoss(16, 20, [5, 10], div_value=2.0) for m in (nn, torch.nn))
    assert repr(ours) == repr(theirs)
    copy_state(ours, theirs)
    x, target = rng.standard_normal((7, 16)).astype("float32"), np.array([0, 19, 7, 4, 12, 5, 9])
    a, b = ours(ic.tensor(x), ic.tensor(target)), theirs(torch.tensor(x), torch.tensor(target))
    np.testing.assert_allclose(a.output.detach(), b.output.detach(), rtol=1e-5)
    a.loss.backward()
    b.loss.backward()
    for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
        np.testing.assert_allclose(p.grad, q.grad, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(
        ours.log_prob(ic.tensor(x)).detach(), theirs.log_prob(torch.tensor(x)).detach(), rtol=1e-5
    )
    np.testing.assert_array_equal(ours.predict(ic.tensor(x)), theirs.predict(torch.tensor(x)))
    with pytest.raises(ValueError, match="`target_`"):
        ours(ic.tensor(x), ic.tensor(target + 9))
    with pytest.raises(ValueError, match="`cutoffs`"):
        nn.AdaptiveLogSoftmaxWithLoss(4, 5, [3, 2])
    log_p = np.log(rng.uniform(0.1, 1, (6, 2, 4)).astype("float32"))
    labels, sizes = np.array([[1, 2], [3, 0]]), ([6, 4], [2, 1])
    one = nn.CTCLoss(zero_infinity=True)(ic.tensor(log_p), ic.tensor(labels), *sizes)
    two = torch.nn.CTCLoss(zero_infinity=True)(torch.tensor(log_p), torch.tensor(labels), *sizes)
    np.testing.assert_allclose(one, two, rtol=1e-5)
