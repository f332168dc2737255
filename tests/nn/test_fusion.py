"""A batch norm fused into the layer before it computes the same."""

import pytest

import infinicore
from infinicore import nn
from infinicore.nn import utils


def _bn(kind, channels):
    bn = kind(channels)
    for tensor in (bn.weight, bn.bias, bn.running_mean):
        tensor.data.copy_(infinicore.randn(channels))
    bn.running_var.copy_(infinicore.rand(channels) + 0.5)
    return bn.eval()


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("transposed", [False, True])
def test_convolution(transposed, bias):
    infinicore.manual_seed(0)
    layer = (nn.ConvTranspose2d if transposed else nn.Conv2d)(3, 5, 3, bias=bias).eval()
    bn, x = _bn(nn.BatchNorm2d, 5), infinicore.randn(2, 3, 6, 6)
    fused = utils.fuse_conv_bn_eval(layer, bn, transpose=transposed)
    assert fused is not layer and fused.weight.requires_grad
    assert infinicore.allclose(fused(x), bn(layer(x)), rtol=1e-4, atol=1e-5)


def test_linear():
    infinicore.manual_seed(0)
    layer, bn, x = nn.Linear(4, 6).eval(), _bn(nn.BatchNorm1d, 6), infinicore.randn(3, 4)
    assert infinicore.allclose(utils.fuse_linear_bn_eval(layer, bn)(x), bn(layer(x)), rtol=1e-4, atol=1e-5)


def test_wrong_modules_are_refused():
    layer, bn = nn.Linear(4, 6), _bn(nn.BatchNorm1d, 6)
    with pytest.raises(ValueError, match="in training"):
        utils.fuse_linear_bn_eval(layer, bn)
    with pytest.raises(ValueError, match="no running statistics"):
        utils.fuse_linear_bn_eval(layer.eval(), nn.BatchNorm1d(6, track_running_stats=False).eval())
    with pytest.raises(ValueError, match="must agree"):
        utils.fuse_linear_bn_eval(layer, _bn(nn.BatchNorm1d, 5))
