"""`vmap`: a function of single samples, for batches of them."""

import functools

from ..core.tensor_cy import TensorBase
from ..dispatch.batching import Level
from ..dispatch.functions import unwatch, watch
from ..dispatch.generator import no_draws
from ..dispatch.trees import map_tensors, tensors_in
from ..tensor.tensor import FUNCTIONS

_RANDOMNESS = ("error", "different", "same")
_DRAWS = "`func` of `vmap` draws random numbers: choose `randomness='different'` or 'same'"


def _dims(value, dim, name="in_dims"):
    """A dim (or None) for each tensor of `value`, in order, as `dim` gives them: one for all, or a tree of them."""
    if isinstance(value, (tuple, list, dict)):
        parts = list(value.values()) if isinstance(value, dict) else value
        if isinstance(dim, dict) and isinstance(value, dict):
            if dim.keys() != value.keys():
                raise ValueError(f"`{name}` of `vmap` must name {list(value)}, the keys of its dict, got {list(dim)}")
            dims = [dim[key] for key in value]
        elif isinstance(dim, (tuple, list)):
            dims = dim
        else:
            dims = [dim] * len(parts)
        if len(dims) != len(parts):
            raise ValueError(f"`{name}` of `vmap` has {len(dims)} entries for {len(parts)} of a {type(value).__name__}")
        return [d for part, one in zip(parts, dims) for d in _dims(part, one, name)]
    if isinstance(value, TensorBase):
        return [dim]
    if dim is not None and name == "in_dims":
        raise ValueError(f"`in_dims` of `vmap` is {dim} for an argument that is no tensor, but {type(value).__name__}")
    return []


def _front(x, dim):
    """`x` with the dim of the samples first."""
    if not x.shape_:
        raise ValueError(f"`in_dims` of `vmap` is {dim} for a tensor without dims: None says that all samples share it")
    return x.movedim(dim, 0)


def _out(value, level, dim):
    """The batch of a result, its samples along `dim`."""
    if dim is None:
        if level.touches((value,)):
            raise ValueError("`out_dims` of `vmap` is None for a result that differs from sample to sample")
        return level.shared(value)
    batch = level.expanded(value)
    return batch if dim == 0 else batch.movedim(0, dim)


def _mapped(args, dims, function):
    """`args` with `function(x, dim)` for each tensor that has samples along a dim."""
    following = iter(dims)
    return map_tensors(args, lambda x: x if (dim := next(following)) is None else function(x, dim))


def _once(func, args, dims, kwargs, out_dims, size):
    """`func` of all samples at once."""
    level = Level(size)
    inside = _mapped(args, dims, lambda x, dim: level.sample(_front(x, dim)))
    watch(level)
    try:
        result = func(*inside, **kwargs)
    finally:
        unwatch(level)
    return _joined_to([result], out_dims, lambda one, dim: _out(one[0], level, dim))


def _each(func, args, dims, kwargs, out_dims, size):
    """`func` of one sample after the other."""
    results = [func(*_mapped(args, dims, lambda x, dim, i=i: x.select(dim, i)), **kwargs) for i in range(size)]
    return _joined_to(results, out_dims, lambda each, dim: each[0] if dim is None else FUNCTIONS["stack"](each, dim))


def _joined_to(results, dims, join):
    """One result in the form of those of samples: `join(tensors, dim)` for each tensor."""
    following = iter(_dims(results[0], dims, "out_dims"))
    columns = iter(list(zip(*map(tensors_in, results))))
    if not isinstance(results[0], (TensorBase, tuple, list, dict)):
        raise ValueError(f"the function of `vmap` must return tensors, got {type(results[0]).__name__}")
    return map_tensors(results[0], lambda _: join(list(next(columns)), next(following)))


def vmap(func, in_dims=0, out_dims=0, randomness="error", *, chunk_size=None):
    """`func`, written for single samples, for batches: `in_dims` says which dim of each argument counts the samples.

    None: the argument is the same for all. Arguments and results may be tuples, lists and dicts of tensors, `in_dims`
    and `out_dims` numbers or trees of them; results have their samples along `out_dims`. The function runs once: each
    operator computes all samples together, by a rule, or sample by sample where it has none. It may not look at values
    (`item`, `if`) that differ from sample to sample. Gradients go through, also those of `infinicore.func` inside of
    it, which are of each sample on its own.

    `randomness`: "error" refuses random numbers in `func`, "same" draws them once for all samples, and "different" for
    each, for which the function is called sample by sample. `chunk_size`: how many samples at a time (None: all).
    """
    if randomness not in _RANDOMNESS:
        raise ValueError(f"`randomness` of `vmap` must be one of {', '.join(_RANDOMNESS)}, got {randomness!r}")
    if chunk_size is not None and (type(chunk_size) is not int or chunk_size < 1):
        raise ValueError(f"`chunk_size` of `vmap` must be 1 or more, or None, got {chunk_size!r}")

    @functools.wraps(func)
    def batched(*args, **kwargs):
        if isinstance(in_dims, (tuple, list)) and len(in_dims) != len(args):
            raise ValueError(f"`in_dims` of `vmap` has {len(in_dims)} entries for {len(args)} arguments")
        dims = _dims(args, in_dims)
        tensors = tensors_in(args)
        sizes = {_front(x, d).shape_[0] for x, d in zip(tensors, dims) if d is not None}
        if len(sizes) > 1:
            raise ValueError(f"`in_dims` of `vmap` name dims of different sizes: {sorted(sizes)}")
        if not sizes:
            raise ValueError("`in_dims` of `vmap` must name a dim of at least one tensor")
        size = sizes.pop()
        if randomness == "different" and size:
            return _each(func, args, dims, kwargs, out_dims, size)
        with no_draws(_DRAWS if randomness == "error" else None):
            if chunk_size is None or chunk_size >= size:
                return _once(func, args, dims, kwargs, out_dims, size)
            results = []
            for start in range(0, size, chunk_size):
                count = min(chunk_size, size - start)
                chunk = _mapped(args, dims, lambda x, dim, at=start, count=count: x.narrow(dim, at, count))
                results.append(_once(func, chunk, dims, kwargs, out_dims, count))
        return _joined_to(
            results, out_dims, lambda parts, dim: parts[0] if dim is None else FUNCTIONS["cat"](parts, dim)
        )

    return batched
