"""Dropout layers: what they zero, what they keep, modes, seeds and gradients."""

import numpy as np
import pytest

import infinicore as ic
import infinicore.nn.functional as F
from infinicore import nn


@pytest.fixture(autouse=True)
def seed():
    ic.manual_seed(1)


def test_dropout():
    x = ic.ones(200, 300).requires_grad_()
    layer = nn.Dropout(0.3)
    y = layer(x)
    values = y.detach().numpy()
    assert set(np.unique(values)) == {0.0, np.float32(1 / 0.7)}
    assert (values == 0).mean() == pytest.approx(0.3, abs=0.01)
    y.sum().backward()
    assert (x.grad.numpy() == values).all()
    assert (layer(x).detach().numpy() != values).any()  # another mask each time
    ic.manual_seed(1)
    assert (nn.Dropout(0.3)(x).detach().numpy() == values).all()
    assert layer.eval()(x) is x and F.dropout(x, 0.3, training=False) is x
    assert not F.dropout(x, 1.0).detach().numpy().any() and F.dropout(x, 0.0) is x


def test_the_third_argument_says_whether_to_train():
    x = ic.ones(200, 300)
    assert F.dropout(x, 0.3, False) is x and ic.dropout(x, 0.3, False) is x
    a = ic.dropout(x, 0.3, True).numpy()
    assert (a == 0).mean() == pytest.approx(0.3, abs=0.01)
    ic.manual_seed(1)
    assert (F.dropout(x, 0.3, True).numpy() == a).all()
    with pytest.raises(TypeError, match=r"`train`.*int"):
        ic.dropout(x, 0.3, 12345)
    with pytest.raises(ValueError, match="`p`"):
        ic.dropout(x, 1.5, False)


@pytest.mark.parametrize("layer, shape", [(nn.Dropout1d, (40, 50, 3)), (nn.Dropout2d, (40, 50, 3, 2))])
def test_channels(layer, shape):
    x = ic.ones(*shape).requires_grad_()
    y = layer(0.25)(x)
    values = y.detach().numpy().reshape(40, 50, -1)
    assert (values == values[..., :1]).all()
    assert (values[..., 0] == 0).mean() == pytest.approx(0.25, abs=0.04)
    assert set(np.unique(values)) == {0.0, np.float32(1 / 0.75)}
    y.sum().backward()
    assert (x.grad.numpy() == y.detach().numpy()).all()
    assert layer(0.25)(ic.ones(*shape[1:])).shape == shape[1:]
    with pytest.raises(ValueError, match="dims"):
        layer(0.25)(ic.ones(3))


def test_alpha_dropout_keeps_mean_and_variance():
    x = F.selu(ic.randn(300, 300))
    y = nn.AlphaDropout(0.2)(x)
    assert float(y.mean()) == pytest.approx(float(x.mean()), abs=0.02)
    assert y.numpy().std() == pytest.approx(x.numpy().std(), rel=0.03)
    lowest = y.numpy().min()
    assert (y.numpy() == lowest).mean() == pytest.approx(0.2, abs=0.01)


@pytest.mark.parametrize("layer", [nn.Dropout, nn.AlphaDropout])
def test_in_place(layer):
    x = ic.ones(50).requires_grad_()
    a = x * 1.0
    b = layer(0.5, inplace=True)(a)
    assert b is a
    b.sum().backward()
    kept = b.detach().numpy() != b.detach().numpy().min()
    assert ((x.grad.numpy() != 0) == kept).all()


@pytest.mark.parametrize("p", [-0.1, 1.5])
def test_wrong_probability(p):
    with pytest.raises(ValueError, match="probability"):
        nn.Dropout(p)
    with pytest.raises(ValueError, match="probability"):
        F.dropout(ic.ones(2), p)


def test_dropout_inside_attention():
    attention = nn.MultiheadAttention(8, 2, dropout=0.5, batch_first=True)
    x = ic.randn(2, 6, 8)
    for need_weights in (False, True):
        first, second = (attention(x, x, x, need_weights=need_weights)[0].detach().numpy() for _ in range(2))
        assert (first != second).any()
    attention.eval()
    for need_weights in (False, True):
        first, second = (attention(x, x, x, need_weights=need_weights)[0].detach().numpy() for _ in range(2))
        assert (first == second).all()


def test_dropout_is_not_recorded():
    """A graph would replay one mask for ever."""
    ic.start_graph_recording()
    try:
        with pytest.raises(NotImplementedError, match="graph"):
            F.dropout(ic.ones(3))
    finally:
        ic.stop_graph_recording()
