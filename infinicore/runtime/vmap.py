"""`vmap`: a function of single samples, for batches of them."""

import functools

from ..core.tensor_cy import TensorBase
from ..tensor.tensor import FUNCTIONS


def _mapped(value, dim):
    """(size of the dim, slices of `value` along it), a pair for each tensor; None where `dim` is None."""
    if isinstance(value, (tuple, list)):
        dims = dim if isinstance(dim, (tuple, list)) else [dim] * len(value)
        inner = [_mapped(v, d) for v, d in zip(value, dims)]
        sizes = {n for n, _ in inner if n is not None}
        if len(sizes) > 1:
            raise ValueError(f"`in_dims` of `vmap` name dims of different sizes: {sorted(sizes)}")
        return (sizes or {None}).pop(), lambda i: type(value)([part(i) for _, part in inner])
    if dim is None:
        return None, lambda i: value
    if isinstance(value, dict):
        size, part = _mapped(list(value.values()), [dim[k] for k in value] if isinstance(dim, dict) else dim)
        return size, lambda i: dict(zip(value, part(i)))
    if not isinstance(value, TensorBase):
        raise ValueError(f"`in_dims` of `vmap` is {dim} for an argument that is no tensor, but {type(value).__name__}")
    slices = FUNCTIONS["unbind"](value, dim)
    return len(slices), lambda i: slices[i]


def _stacked(results, dim):
    first = results[0]
    if isinstance(first, (tuple, list)):
        dims = dim if isinstance(dim, (tuple, list)) else [dim] * len(first)
        return type(first)([_stacked(list(part), d) for part, d in zip(zip(*results), dims)])
    if isinstance(first, dict):
        return {k: _stacked([one[k] for one in results], dim[k] if isinstance(dim, dict) else dim) for k in first}
    if not isinstance(first, TensorBase):
        raise ValueError(f"the function of `vmap` must return tensors, got {type(first).__name__}")
    return first if dim is None else FUNCTIONS["stack"](results, dim)


def vmap(func, in_dims=0, out_dims=0, randomness="different", *, chunk_size=None):
    """`func`, written for single samples, for batches: `in_dims` says which dim of each argument counts the samples.

    None: the argument is the same for all. Results are stacked along `out_dims`. Gradients go through. The function is
    called once for each sample, so it saves writing, not time; `chunk_size` changes nothing. Random numbers differ from
    sample to sample, so `randomness` must be "different".
    """
    if randomness != "different":
        raise NotImplementedError(f"`randomness` of `vmap` must be 'different', got {randomness!r}")

    @functools.wraps(func)
    def batched(*args, **kwargs):
        dims = list(in_dims) if isinstance(in_dims, (tuple, list)) else [in_dims] * len(args)
        if len(dims) != len(args):
            raise ValueError(f"`in_dims` of `vmap` has {len(dims)} entries for {len(args)} arguments")
        count, part = _mapped(list(args), dims)
        if not count:
            raise ValueError("`vmap` needs at least one sample along `in_dims`, got none")
        return _stacked([func(*part(i), **kwargs) for i in range(count)], out_dims)

    return batched
