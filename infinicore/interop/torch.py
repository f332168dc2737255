"""The op table on PyTorch's tensors: `from infinicore.interop import torch as ops; ops.rms_norm(x, (64,), w)`.

Every function of `infinicore.nn.functional` and every op of the table is an attribute of this module, with the
signature that it has there. It computes on the memory of torch's CPU tensors, contiguous or strided, and returns torch
tensors of the memory of its results: nothing is copied. Where torch records gradients, its graph gets one node, whose
backward is the op's derivative here. docs/interop.md has an example.
"""

import functools

from .. import autograd
from ..core.tensor_cy import TensorBase
from ..dispatch.functions import FUNCTIONS
from ..dtype import dtype as to_dtype
from ..nn import functional
from ..tensor.creation import from_torch


def _torch():
    try:
        import torch
    except ImportError:
        raise ImportError("`infinicore.interop.torch` needs PyTorch: pip install torch") from None
    return torch


def _map(value, kind, change):
    """`value`, also inside of lists, tuples and dicts, with `change` applied to what is a `kind`."""
    if isinstance(value, kind):
        return change(value)
    if isinstance(value, list):
        return [_map(x, kind, change) for x in value]
    if isinstance(value, tuple):
        return tuple(_map(x, kind, change) for x in value)
    return {k: _map(x, kind, change) for k, x in value.items()} if isinstance(value, dict) else value


def to_torch(tensor):
    """A torch tensor of the memory of a tensor on the CPU, with its strides; of a copy where a stride is negative.

    Gradients do not pass. Raises BufferError for what DLPack cannot take: 8-bit floats, other devices.
    """
    if not isinstance(tensor, TensorBase):
        raise TypeError(f"`tensor` must be a tensor of infinicore, got {type(tensor).__name__}")
    plain = tensor.detach()
    return _torch().from_dlpack(plain.contiguous() if min(plain.strides_, default=0) < 0 else plain)


@functools.cache
def _recorded():
    """The torch.autograd.Function of all ops (torch is imported on first use)."""
    torch = _torch()

    class Recorded(torch.autograd.Function):
        @staticmethod
        def forward(ctx, compute, *tensors):
            leaves = [from_torch(x).requires_grad_(x.requires_grad) for x in tensors]
            with autograd.enable_grad():
                results = compute(leaves)
            outputs = [to_torch(y) for y in results]
            ctx.set_materialize_grads(False)
            ctx.mark_non_differentiable(*[out for y, out in zip(results, outputs) if not y.tracked])
            ctx.leaves, ctx.results, ctx.versions = leaves, results, [(x, x._version) for x in tensors]
            return tuple(outputs)

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx, *gradients):
            if any(x._version != version for x, version in ctx.versions):
                raise RuntimeError("an input of an op of infinicore was changed in place by torch before backward")
            pairs = [(y, from_torch(g)) for y, g in zip(ctx.results, gradients) if g is not None and y.tracked]
            wanted = [x for x in ctx.leaves if x.tracked]
            if not pairs:
                return (None,) * (1 + len(ctx.leaves))
            outputs, seeds = zip(*pairs)
            found = iter(autograd.grad(outputs, wanted, seeds, retain_graph=True, allow_unused=True))
            found = [next(found) if x.tracked else None for x in ctx.leaves]
            return (None, *[g if g is None else to_torch(g) for g in found])

    return Recorded


def _on_torch(function):
    """`function` of our tensors as one of torch's."""

    @functools.wraps(function)
    def call(*args, **kwargs):
        torch = _torch()
        args, kwargs = _map((args, kwargs), torch.dtype, to_dtype)
        tensors = []
        _map((args, kwargs), torch.Tensor, tensors.append)
        shape = None

        def compute(own):
            nonlocal shape
            queue, results = iter(own), []
            one, named = _map((args, kwargs), torch.Tensor, lambda x: next(queue))
            shape = function(*one, **named)
            _map(shape, TensorBase, results.append)
            return results

        if torch.is_grad_enabled() and any(x.requires_grad for x in tensors):
            outputs = _recorded().apply(compute, *tensors)
        else:
            with autograd.no_grad():
                outputs = [to_torch(y) for y in compute([from_torch(x) for x in tensors])]
        queue = iter(outputs)
        return _map(shape, TensorBase, lambda x: next(queue))

    return call


def __getattr__(name):
    function = None if name.startswith("_") else getattr(functional, name, None) or FUNCTIONS.get(name)
    if not callable(function):
        raise AttributeError(f"module 'infinicore.interop.torch' has no attribute {name!r}")
    globals()[name] = found = _on_torch(function)
    return found


def __dir__():
    return sorted({*globals(), *FUNCTIONS.names(), *dir(functional)})
