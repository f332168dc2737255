"""Normalisation over the last dims, and over groups of channels."""

from numbers import Integral

import infinicore

from .. import functional as F
from .. import init
from ..functional.checks import integers
from ..module import Module
from ..parameter import Parameter


def _shape(normalized_shape):
    shape = (normalized_shape,) if isinstance(normalized_shape, Integral) else tuple(normalized_shape)
    if not shape or not all(isinstance(n, Integral) and n > 0 for n in shape):
        raise ValueError(f"`normalized_shape` must be a positive size or a list of them, got {normalized_shape!r}")
    return integers(shape, "normalized_shape")


class _Scaled(Module):
    """A module with an optional weight (ones at first) and bias (zeros)."""

    def _make(self, shape, weight, bias, device, dtype):
        options = {"dtype": dtype or infinicore.get_default_dtype(), "device": device}
        for name, wanted in (("weight", weight), ("bias", bias)):
            self.register_parameter(name, Parameter(infinicore.empty(shape, **options)) if wanted else None)
        if init.wanted():
            self.reset_parameters()

    def reset_parameters(self):
        """Weight one, bias zero."""
        if self.weight is not None:
            init.ones_(self.weight)
        if self.bias is not None:
            init.zeros_(self.bias)


class RMSNorm(_Scaled):
    """`x / sqrt(mean(x^2) + eps) * weight` over the last dims; the mean is taken in float32, or in float64 of such.

    `eps` is 1e-6 unless given, as in the checkpoints of language models; None, PyTorch's default, is that of the dtype
    the mean is taken in (2^-23; 2^-52 for float64).
    """

    def __init__(self, normalized_shape, eps=1e-6, elementwise_affine=True, device=None, dtype=None):
        super().__init__()
        self.normalized_shape, self.eps = _shape(normalized_shape), eps
        self.elementwise_affine = elementwise_affine
        self._make(self.normalized_shape, elementwise_affine, False, device, dtype)
        del self.bias

    def reset_parameters(self):
        """Weight one."""
        if self.weight is not None:
            init.ones_(self.weight)

    def forward(self, input):
        return F.rms_norm(input, self.normalized_shape, self._own("weight"), self.eps)

    def extra_repr(self):
        return f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"


class LayerNorm(_Scaled):
    """`(x - mean(x)) / sqrt(var(x) + eps) * weight + bias` over the last dims."""

    def __init__(self, normalized_shape, eps=1e-5, elementwise_affine=True, bias=True, device=None, dtype=None):
        super().__init__()
        self.normalized_shape, self.eps = _shape(normalized_shape), eps
        self.elementwise_affine = elementwise_affine
        self._make(self.normalized_shape, elementwise_affine, elementwise_affine and bias, device, dtype)

    def forward(self, input):
        weight, bias = self._own("weight"), self._own("bias")
        return F.layer_norm(input, self.normalized_shape, weight, bias, self.eps)

    def extra_repr(self):
        affine, bias = self.elementwise_affine, self.bias is not None
        return f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={affine}, bias={bias}"


class GroupNorm(_Scaled):
    """Normalisation over each of `num_groups` groups of channels of each sample (Wu and He, arXiv 1803.08494)."""

    def __init__(self, num_groups, num_channels, eps=1e-5, affine=True, device=None, dtype=None, *, bias=True):
        super().__init__()
        if num_channels % num_groups:
            raise ValueError(f"`num_groups` {num_groups} must divide `num_channels` {num_channels}")
        self.num_groups, self.num_channels, self.eps, self.affine = num_groups, num_channels, eps, affine
        self._make((num_channels,), affine, affine and bias, device, dtype)

    def forward(self, input):
        weight, bias = self._own("weight"), self._own("bias")
        return F.group_norm(input, self.num_groups, weight, bias, self.eps)

    def extra_repr(self):
        bias = self.bias is not None
        return f"{self.num_groups}, {self.num_channels}, eps={self.eps}, affine={self.affine}, bias={bias}"


class _BatchNorm(_Scaled):
    """Normalisation of each channel over the samples (Ioffe and Szegedy, arXiv 1502.03167).

    In training the statistics are those of the batch, and the running ones follow them: by `momentum`, or as the mean
    over all batches with momentum None. In evaluation the running ones are used, unless there are none
    (`track_running_stats=False`).
    """

    dims = ()
    _version = 2  # from which on a state has `num_batches_tracked`

    def __init__(
        self,
        num_features,
        eps=1e-5,
        momentum=0.1,
        affine=True,
        track_running_stats=True,
        device=None,
        dtype=None,
        *,
        bias=True,
    ):
        super().__init__()
        self.num_features, self.eps, self.momentum = num_features, eps, momentum
        self.affine, self.track_running_stats = affine, track_running_stats
        options = {"dtype": dtype or infinicore.get_default_dtype(), "device": device}
        mean = infinicore.zeros(num_features, **options) if track_running_stats else None
        self.register_buffer("running_mean", mean)
        self.register_buffer("running_var", infinicore.ones(num_features, **options) if track_running_stats else None)
        count = infinicore.zeros((), dtype=infinicore.int64, device=device) if track_running_stats else None
        self.register_buffer("num_batches_tracked", count)
        self._make((num_features,), affine, affine and bias, device, dtype)

    def _upgrade(self, state_dict, prefix, version):
        name = f"{prefix}num_batches_tracked"
        if (version is None or version < 2) and self.num_batches_tracked is not None:
            state_dict.setdefault(name, self.num_batches_tracked)

    def reset_running_stats(self):
        """Forget the running statistics."""
        if self.track_running_stats:
            init.zeros_(self.running_mean)
            init.ones_(self.running_var)
            self.num_batches_tracked.zero_()

    def reset_parameters(self):
        """Weight one, bias zero, no running statistics."""
        self.reset_running_stats()
        super().reset_parameters()

    def forward(self, input):
        if input.ndim not in self.dims:
            raise ValueError(
                f"`input` of {type(self).__name__} must have {' or '.join(map(str, self.dims))} dims, "
                f"got shape {tuple(input.shape)}"
            )
        stats, momentum = self._buffers, self.momentum
        mean, variance = stats["running_mean"], stats["running_var"]
        if self.training and mean is not None:
            stats["num_batches_tracked"].add_(1)
            if momentum is None:
                momentum = 1.0 / stats["num_batches_tracked"].item()
        weight, bias = self._own("weight"), self._own("bias")
        training = self.training or mean is None
        return F.batch_norm(input, mean, variance, weight, bias, training, momentum or 0.0, self.eps)

    def extra_repr(self):
        return (
            f"{self.num_features}, eps={self.eps}, momentum={self.momentum}, affine={self.affine}, "
            f"bias={self.bias is not None}, track_running_stats={self.track_running_stats}"
        )


class BatchNorm1d(_BatchNorm):
    __doc__ = _BatchNorm.__doc__ + "\n    Inputs are [N, C] or [N, C, L].\n"
    dims = (2, 3)


class BatchNorm2d(_BatchNorm):
    __doc__ = _BatchNorm.__doc__ + "\n    Inputs are [N, C, H, W].\n"
    dims = (4,)


class BatchNorm3d(_BatchNorm):
    __doc__ = _BatchNorm.__doc__ + "\n    Inputs are [N, C, D, H, W].\n"
    dims = (5,)


class _InstanceNorm(_BatchNorm):
    """Normalisation of each channel of each sample (Ulyanov et al., arXiv 1607.08022).

    With `track_running_stats`, running statistics follow by `momentum`, and are used in evaluation.
    """

    def __init__(
        self,
        num_features,
        eps=1e-5,
        momentum=0.1,
        affine=False,
        track_running_stats=False,
        device=None,
        dtype=None,
        *,
        bias=True,
    ):
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype, bias=bias)

    def forward(self, input):
        few, many = self.dims
        if input.ndim not in self.dims:
            raise ValueError(f"`input` must have {few} or {many} dims, got shape {tuple(input.shape)}")
        stats, single = self._buffers, input.ndim == few
        if input.shape[1 - single] != self.num_features and self.affine:
            raise ValueError(
                f"`input` must have {self.num_features} channels, as `num_features` says, got {tuple(input.shape)}"
            )
        own = self.training or stats["running_mean"] is None
        running = (stats["running_mean"], stats["running_var"])
        x = input.unsqueeze(0) if single else input
        momentum = self.momentum or 0.0
        y = F.instance_norm(x, *running, self._own("weight"), self._own("bias"), own, momentum, self.eps)
        return y.squeeze(0) if single else y


class InstanceNorm1d(_InstanceNorm):
    __doc__ = _InstanceNorm.__doc__ + "\n    Inputs are [N, C, L] or [C, L].\n"
    dims = (2, 3)


class InstanceNorm2d(_InstanceNorm):
    __doc__ = _InstanceNorm.__doc__ + "\n    Inputs are [N, C, H, W] or [C, H, W].\n"
    dims = (3, 4)


class InstanceNorm3d(_InstanceNorm):
    __doc__ = _InstanceNorm.__doc__ + "\n    Inputs are [N, C, D, H, W] or [C, D, H, W].\n"
    dims = (4, 5)
