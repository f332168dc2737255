"""Normalisation over the last dims."""

import infinicore

from .. import functional as F
from .. import init
from ..module import Module
from ..parameter import Parameter


def _shape(normalized_shape):
    shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
    if not shape or not all(isinstance(n, int) and n > 0 for n in shape):
        raise ValueError(f"`normalized_shape` must be a positive size or a list of them, got {normalized_shape!r}")
    return shape


class RMSNorm(Module):
    """`x / sqrt(mean(x^2) + eps) * weight` over the last dim; the mean is taken in float32."""

    def __init__(self, normalized_shape, eps=1e-6, elementwise_affine=True, device=None, dtype=None):
        super().__init__()
        self.normalized_shape, self.eps = _shape(normalized_shape), eps
        if len(self.normalized_shape) != 1:
            raise ValueError(f"`normalized_shape` of RMSNorm must be one size, got {list(self.normalized_shape)}")
        if not elementwise_affine:
            raise NotImplementedError("`elementwise_affine` must be True for RMSNorm")
        options = {"dtype": dtype or infinicore.float32, "device": device}
        self.weight = Parameter(infinicore.empty(self.normalized_shape, **options))
        if init.wanted():
            init.ones_(self.weight)

    def forward(self, input):
        return F.rms_norm(input, self.normalized_shape, self.weight, self.eps)

    def extra_repr(self):
        return f"{self.normalized_shape}, eps={self.eps}"


class LayerNorm(Module):
    """`(x - mean(x)) / sqrt(var(x) + eps) * weight + bias` over the last dims."""

    def __init__(self, normalized_shape, eps=1e-5, elementwise_affine=True, bias=True, device=None, dtype=None):
        super().__init__()
        self.normalized_shape, self.eps = _shape(normalized_shape), eps
        options = {"dtype": dtype or infinicore.float32, "device": device}
        self.weight = self.bias = None
        if elementwise_affine:
            self.weight = Parameter(infinicore.empty(self.normalized_shape, **options))
            if bias:
                self.bias = Parameter(infinicore.empty(self.normalized_shape, **options))
        if init.wanted():
            self.reset_parameters()

    def reset_parameters(self):
        """Weight one, bias zero."""
        if self.weight is not None:
            init.ones_(self.weight)
        if self.bias is not None:
            init.zeros_(self.bias)

    def forward(self, input):
        return F.layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)

    def extra_repr(self):
        return f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.weight is not None}"
