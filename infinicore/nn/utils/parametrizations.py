"""Parametrizations that PyTorch has: weight norm and spectral norm."""

import infinicore

from .. import functional as F
from ..module import Module
from .norms import as_matrix, norm_but, power_step
from .parametrize import register_parametrization

__all__ = ["spectral_norm", "weight_norm"]


class _WeightNorm(Module):
    def __init__(self, dim):
        super().__init__()
        self.dim = -1 if dim is None else dim

    def forward(self, weight_g, weight_v):
        return weight_v * (weight_g / norm_but(weight_v, self.dim))

    def right_inverse(self, weight):
        return norm_but(weight, self.dim), weight


def weight_norm(module, name="weight", dim=0):
    """`module.<name>` as a norm (`original0`) times a direction (`original1`); see `nn.utils.weight_norm`."""
    return register_parametrization(module, name, _WeightNorm(dim), unsafe=True)


class _SpectralNorm(Module):
    def __init__(self, weight, n_power_iterations, dim, eps):
        super().__init__()
        self.n_power_iterations, self.dim, self.eps = n_power_iterations, dim, eps
        if weight.ndim > 1:
            matrix = as_matrix(weight, dim)
            u, v = (
                F.normalize(infinicore.randn(n, dtype=weight.dtype, device=weight.device), dim=0, eps=eps)
                for n in matrix.shape_
            )
            self.register_buffer("_u", u)
            self.register_buffer("_v", v)
            power_step(matrix, u, v, 15, eps)

    def forward(self, weight):
        if weight.ndim == 1:
            return F.normalize(weight, dim=0, eps=self.eps)
        matrix = as_matrix(weight, self.dim)
        if self.training:
            power_step(matrix.detach(), self._u, self._v, self.n_power_iterations, self.eps)
        u, v = self._u.clone(), self._v.clone()
        return weight / (u * infinicore.matmul(matrix, v)).sum()

    def right_inverse(self, value):
        return value


def spectral_norm(module, name="weight", n_power_iterations=1, eps=1e-12, dim=None):
    """`module.<name>` divided by its largest singular value; see `nn.utils.spectral_norm`."""
    weight = getattr(module, name)
    if n_power_iterations < 1:
        raise ValueError(f"`n_power_iterations` must be above 0, got {n_power_iterations}")
    dim = int(type(module).__name__.startswith("ConvTranspose")) if dim is None else dim
    with infinicore.no_grad():
        parametrization = _SpectralNorm(weight.detach(), n_power_iterations, dim, eps)
    return register_parametrization(module, name, parametrization)
