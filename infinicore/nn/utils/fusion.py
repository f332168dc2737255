"""A batch norm in evaluation is a scale and a shift for each channel: these put it into the layer before it."""

import copy

import infinicore

from ..parameter import Parameter

__all__ = ["fuse_conv_bn_eval", "fuse_conv_bn_weights", "fuse_linear_bn_eval", "fuse_linear_bn_weights"]


def _fused(weight, bias, mean, var, eps, gamma, beta, out_dim):
    """Parameters of the layer that gives `(y - mean) / sqrt(var + eps) * gamma + beta` where it gave y."""
    with infinicore.no_grad():
        scale = infinicore.rsqrt(var + eps) * (1.0 if gamma is None else gamma)
        shift = (-mean if bias is None else bias - mean) * scale
        shape = [1] * weight.ndim
        shape[out_dim] = -1
        new = Parameter((weight * scale.reshape(shape)).to(weight.dtype), weight.requires_grad)
        return new, Parameter(shift if beta is None else shift + beta, True if bias is None else bias.requires_grad)


def fuse_conv_bn_weights(conv_w, conv_b, bn_rm, bn_rv, bn_eps, bn_w, bn_b, transpose=False):
    """(weight, bias) of a convolution that does what the given one and a batch norm in evaluation do."""
    return _fused(conv_w, conv_b, bn_rm, bn_rv, bn_eps, bn_w, bn_b, 1 if transpose else 0)


def fuse_linear_bn_weights(linear_w, linear_b, bn_rm, bn_rv, bn_eps, bn_w, bn_b):
    """(weight, bias) of a linear layer that does what the given one and a batch norm in evaluation do."""
    return _fused(linear_w, linear_b, bn_rm, bn_rv, bn_eps, bn_w, bn_b, 0)


def _layer(layer, bn, fuse, **options):
    if layer.training or bn.training:
        raise ValueError("fusing is for evaluation, but one of the modules is in training: call `.eval()` on both")
    if bn.running_mean is None:
        raise ValueError(f"`bn` {bn} keeps no running statistics, so it depends on the batch and cannot be fused")
    statistics = bn.running_mean, bn.running_var, bn.eps, bn.weight, bn.bias
    made = copy.deepcopy(layer)
    made.weight, made.bias = fuse(layer.weight, layer.bias, *statistics, **options)
    return made


def fuse_conv_bn_eval(conv, bn, transpose=False):
    """A copy of `conv` that also does what `bn` does; both are in evaluation. `transpose`: of a transposed one."""
    return _layer(conv, bn, fuse_conv_bn_weights, transpose=transpose)


def fuse_linear_bn_eval(linear, bn):
    """A copy of `linear` that also does what `bn` does; both are in evaluation."""
    channels = bn.num_features
    if linear.out_features != channels and channels != 1:
        raise ValueError(f"`linear` has {linear.out_features} outputs, but `bn` {channels} features: they must agree")
    return _layer(linear, bn, fuse_linear_bn_weights)
