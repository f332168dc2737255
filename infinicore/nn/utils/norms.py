"""Weight and spectral norm by hooks, as PyTorch had them first; `parametrizations` has them as parametrizations."""

import infinicore

from .. import functional as F
from ..parameter import Parameter

__all__ = ["norm_but", "power_step", "remove_spectral_norm", "remove_weight_norm", "spectral_norm", "weight_norm"]


def norm_but(v, dim):
    """The 2-norm over all dims but `dim`, which stay with size 1; of everything, 0-dim, where `dim` is None or -1."""
    if dim is None or dim == -1:
        return infinicore.norm(v)
    return infinicore.norm(v, 2, [d for d in range(v.ndim) if d != dim % v.ndim], True)


def power_step(matrix, u, v, steps, eps):
    """`u` and `v` nearer to the singular vectors of the largest singular value, in place."""
    with infinicore.no_grad():
        for _ in range(steps):
            u.copy_(F.normalize(infinicore.matmul(matrix, v), dim=0, eps=eps))
            v.copy_(F.normalize(infinicore.matmul(matrix.T, u), dim=0, eps=eps))


def as_matrix(weight, dim):
    """`weight` [*] as a matrix whose rows are `dim`."""
    return (weight if dim == 0 else weight.movedim(dim, 0)).flatten(1) if weight.ndim > 1 else weight.reshape(-1, 1)


def _hook_of(module, kind, name):
    for key, hook in list(module._hooks.forward_pre.items() if module._hooks is not None else ()):
        if isinstance(hook, kind) and hook.name == name:
            return key, hook
    raise ValueError(f"`name` {name!r} of {type(module).__name__} has no {kind.what}")


class _WeightNorm:
    what = "weight norm"

    def __init__(self, name, dim):
        self.name, self.dim = name, dim

    def value(self, module):
        g, v = (getattr(module, f"{self.name}_{part}") for part in "gv")
        return v * (g / norm_but(v, self.dim))

    def __call__(self, module, args):
        object.__setattr__(module, self.name, self.value(module))


def weight_norm(module, name="weight", dim=0):
    """Replace the parameter `name` by its norm `<name>_g` and direction `<name>_v`; returns the module.

    Norms are over all dims but `dim`, or over everything with None (Salimans and Kingma, arXiv 1602.07868).
    """
    weight = module._parameters.get(name)
    if weight is None:
        raise ValueError(f"`name` {name!r} is no parameter of {type(module).__name__}")
    hook = _WeightNorm(name, dim)
    module._forget(name)
    with infinicore.no_grad():
        module.register_parameter(f"{name}_g", Parameter(norm_but(weight.detach(), dim)))
        module.register_parameter(f"{name}_v", Parameter(weight.detach().clone()))
    hook(module, None)
    module.register_forward_pre_hook(hook)
    return module


def remove_weight_norm(module, name="weight"):
    """Make `name` a plain parameter again; returns the module."""
    key, hook = _hook_of(module, _WeightNorm, name)
    value = hook.value(module).detach()
    for part in (name, f"{name}_g", f"{name}_v"):
        module._forget(part)
    del module._hooks.forward_pre[key]
    module.register_parameter(name, Parameter(value))
    return module


class _SpectralNorm:
    what = "spectral norm"

    def __init__(self, name, steps, dim, eps):
        self.name, self.steps, self.dim, self.eps = name, steps, dim, eps

    def value(self, module, moves):
        weight = getattr(module, f"{self.name}_orig")
        u, v = getattr(module, f"{self.name}_u"), getattr(module, f"{self.name}_v")
        matrix = as_matrix(weight, self.dim)
        if moves:
            power = matrix.detach()
            with infinicore.no_grad():
                for _ in range(self.steps):
                    v.copy_(F.normalize(infinicore.matmul(power.T, u), dim=0, eps=self.eps))
                    u.copy_(F.normalize(infinicore.matmul(power, v), dim=0, eps=self.eps))
            u, v = u.clone(), v.clone()
        return weight / (u * infinicore.matmul(matrix, v)).sum()

    def __call__(self, module, args):
        object.__setattr__(module, self.name, self.value(module, module.training))


def spectral_norm(module, name="weight", n_power_iterations=1, eps=1e-12, dim=None):
    """Divide the parameter `name` by its largest singular value, which each step of training follows.

    `<name>_orig` is trained, buffers `<name>_u` and `<name>_v` are the singular vectors (Miyato et al., arXiv
    1802.05957). `dim` has the rows of the matrix: 1 of transposed convolutions, else 0. Returns the module.
    """
    weight = module._parameters.get(name)
    if weight is None:
        raise ValueError(f"`name` {name!r} is no parameter of {type(module).__name__}")
    if n_power_iterations < 1:
        raise ValueError(f"`n_power_iterations` must be above 0, got {n_power_iterations}")
    dim = int(type(module).__name__.startswith("ConvTranspose")) if dim is None else dim
    hook = _SpectralNorm(name, n_power_iterations, dim, eps)
    module._forget(name)
    module.register_parameter(f"{name}_orig", weight)
    with infinicore.no_grad():
        for part, size in zip("uv", as_matrix(weight.detach(), dim).shape_):
            start = F.normalize(infinicore.randn(size, dtype=weight.dtype, device=weight.device), dim=0, eps=eps)
            module.register_buffer(f"{name}_{part}", start)
        object.__setattr__(module, name, weight.detach())
    module.register_forward_pre_hook(hook)
    return module


def remove_spectral_norm(module, name="weight"):
    """Make `name` a plain parameter again; returns the module."""
    key, hook = _hook_of(module, _SpectralNorm, name)
    with infinicore.no_grad():
        value = hook.value(module, False).detach()
    for part in (name, f"{name}_u", f"{name}_v", f"{name}_orig"):
        module._forget(part)
    del module._hooks.forward_pre[key]
    module.register_parameter(name, Parameter(value))
    return module
