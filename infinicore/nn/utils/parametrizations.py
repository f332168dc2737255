"""Parametrizations that PyTorch has: weight norm, spectral norm, orthogonal matrices."""

import infinicore

from .. import functional as F
from ..module import Module
from .norms import as_matrix, norm_but, power_step
from .parametrize import register_parametrization

__all__ = ["orthogonal", "spectral_norm", "weight_norm"]


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


_MAPS = ("matrix_exp", "cayley", "householder")


class _Orthogonal(Module):
    """A matrix with orthonormal columns (rows, if it is wider than high) of any matrix X of its shape.

    The square maps take the lower triangle of X less its adjoint, A, to exp(A) or (I - A/2)^-1 (I + A/2); "householder"
    takes columns below the diagonal for reflectors, whose product's columns have the signs of the diagonal. `base`,
    with `use_trivialization`, is multiplied on the left, so that X begins at zero (Lezcano-Casado, arXiv 1909.09501).
    """

    def __init__(self, weight, orthogonal_map, use_trivialization):
        super().__init__()
        self.shape, self.orthogonal_map = weight.shape, orthogonal_map
        if use_trivialization:
            self.register_buffer("base", None)

    def forward(self, x):
        wide = x.shape[-2] < x.shape[-1]
        q = self._mapped(x.mT if wide else x)
        if "base" in self._buffers:
            q = self.base @ q
        return q.mT if wide else q

    def _mapped(self, x):
        rows, columns = x.shape[-2:]
        if self.orthogonal_map == "householder":
            a = x.tril(-1)
            q = infinicore.linalg.householder_product(a, 2.0 / (1.0 + (a * a).sum(-2)))
            return q * x.detach().diagonal(dim1=-2, dim2=-1).to(infinicore.int32).unsqueeze(-2)
        a = F.pad(x.tril(), (0, rows - columns))
        a = a - a.mH
        if self.orthogonal_map == "matrix_exp":
            return infinicore.matrix_exp(a)[..., :columns]
        one = infinicore.eye(rows, dtype=a.dtype, device=a.device)
        return infinicore.linalg.solve(one - 0.5 * a, one + 0.5 * a)[..., :columns]

    def right_inverse(self, value):
        with infinicore.no_grad():
            return self._started(value) if "base" in self._buffers else self._inverted(value)

    def _started(self, value):
        """Make the columns of `value`, completed to a square of orthonormal ones, the base; X that maps to one."""
        q = value.mT if value.shape[-2] < value.shape[-1] else value
        rows, columns = q.shape[-2:]
        more = infinicore.randn(*q.shape[:-1], rows - columns, dtype=q.dtype, device=q.device)
        q = infinicore.cat([q, more], -1)
        self.base = q.clone() if _orthonormal(q) else _orthogonalised(q)
        x = infinicore.zeros_like(value)
        x.diagonal(dim1=-2, dim2=-1).fill_(-1.0)  # reflectors of zeros are -I each
        return x

    def _inverted(self, value):
        if self.orthogonal_map != "householder":
            raise NotImplementedError(
                f"`weight` cannot be set under the map {self.orthogonal_map!r} with use_trivialization=False, as its "
                "inverse has no closed form: leave `use_trivialization` True"
            )
        wide = value.shape[-2] < value.shape[-1]
        a, tau = infinicore.geqrf(value.mT if wide else value)
        signs = a.diagonal(dim1=-2, dim2=-1)
        signs.copy_(infinicore.where(tau == 0.0, -signs.sign(), signs.sign()))
        return a.mT if wide else a


def _orthonormal(q):
    one = infinicore.eye(q.shape[-1], dtype=q.dtype, device=q.device)
    return bool((q.mH @ q - one).abs().max().item() <= 10 * q.shape[-2] * infinicore.finfo(q.dtype).eps)


def _orthogonalised(q):
    """The factor Q of q = QR with a positive diagonal of R."""
    found, r = infinicore.linalg.qr(q)
    return found * r.diagonal(dim1=-2, dim2=-1).sgn().unsqueeze(-2)


def orthogonal(module, name="weight", orthogonal_map=None, *, use_trivialization=True):
    """`module.<name>` [..., n, k] as a matrix with orthonormal columns, or rows where n < k; see `_Orthogonal`.

    `orthogonal_map` is "matrix_exp", "cayley" or "householder"; by default the first for square and complex matrices,
    else the last.
    """
    weight = getattr(module, name, None)
    if not isinstance(weight, infinicore.Tensor) or weight.ndim < 2:
        got = getattr(weight, "shape", weight)
        raise ValueError(f"`module` must have a tensor {name!r} of 2 dims or more, got {got}")
    if orthogonal_map is None:
        square = weight.shape[-2] == weight.shape[-1] or weight.is_complex()
        orthogonal_map = "matrix_exp" if square else "householder"
    if orthogonal_map not in _MAPS or (orthogonal_map == "householder" and weight.is_complex()):
        raise ValueError(
            f"`orthogonal_map` must be one of {', '.join(_MAPS)} (the last of real tensors), got {orthogonal_map!r}"
        )
    parametrization = _Orthogonal(weight, orthogonal_map, use_trivialization)
    return register_parametrization(module, name, parametrization, unsafe=True)
