"""Samples to batches: tensors, arrays and numbers are stacked, containers are walked through."""

from collections.abc import Mapping, MutableMapping, Sequence
from copy import copy

import numpy as np

from ..device import CPU
from ..interop.numpy import from_numpy, to_numpy
from ..tensor.tensor import Tensor


def _stack(arrays, what):
    """One array of equal ones. NumPy copies them: memory only moves, and a worker needs no kernel for it."""
    shape, dtype = arrays[0].shape, arrays[0].dtype
    for array in arrays:
        if array.shape != shape or array.dtype != dtype:
            raise ValueError(
                f"the {what} of a batch must have one shape and dtype, got {shape} {dtype} and {array.shape} "
                f"{array.dtype}; pad or crop them in the dataset, or pass a `collate_fn`"
            )
    return from_numpy(np.stack(arrays))


def _numbers(values):
    """A tensor of Python numbers: bool, int64 or float64, whichever holds them all."""
    array = np.array(values)
    if array.dtype.kind not in "bif":
        raise TypeError(
            f"the numbers of a batch must be bools, int64 or floats, got {str(values)[:80]}; pass a `collate_fn`"
        )
    return from_numpy(array)


def _rebuilt(like, values):
    """A sequence of the type of `like`; a list where that type takes no list."""
    try:
        return type(like)(values)
    except TypeError:
        return values


def _mapping(like, pairs):
    try:
        if isinstance(like, MutableMapping):
            result = copy(like)  # keeps what a subclass adds
            result.update(pairs)
            return result
        return type(like)(pairs)
    except TypeError:
        return pairs


def default_collate(batch):
    """A batch from a list of samples.

    Tensors, NumPy arrays and scalars are stacked along a new first dim; floats become float64, ints int64, bools bool
    tensors; texts and bytes stay as they are. Mappings, namedtuples, tuples and lists are collated field by field
    (tuples and lists give a list). Raises TypeError for other types, and ValueError for samples of different shapes.
    """
    first = batch[0]
    if isinstance(first, Tensor):
        if any(getattr(tensor, "requires_grad", False) for tensor in batch):
            raise ValueError("the tensors of a batch must not require gradients, which copies lose; use `.detach()`")
        return _stack([to_numpy(tensor) for tensor in batch], "tensors")
    if isinstance(first, (np.ndarray, np.generic)) and np.asarray(first).dtype.kind not in "SUO":
        return _stack([np.asarray(array) for array in batch], "arrays")
    if isinstance(first, (bool, int, float)):
        return _numbers(batch)
    if isinstance(first, (str, bytes)):
        return batch
    if isinstance(first, Mapping):
        return _mapping(first, {key: default_collate([sample[key] for sample in batch]) for key in first})
    if isinstance(first, tuple) and hasattr(first, "_fields"):
        return type(first)(*(default_collate(samples) for samples in zip(*batch)))
    if isinstance(first, Sequence):
        lengths = {len(sample) for sample in batch}
        if len(lengths) > 1:
            raise ValueError(
                f"the samples of a batch must have one length, got {sorted(lengths)}; pad them in the dataset, or pass "
                "a `collate_fn`"
            )
        columns = [default_collate(samples) for samples in zip(*batch)]
        return columns if isinstance(first, (tuple, list)) else _rebuilt(first, columns)
    raise TypeError(
        f"samples must hold tensors, arrays, numbers, texts, mappings or sequences, got {type(first).__name__}; "
        "pass a `collate_fn`"
    )


def default_convert(sample):
    """One sample with its arrays as tensors; everything else stays as it is."""
    if isinstance(sample, (np.ndarray, np.generic)) and np.asarray(sample).dtype.kind not in "SUO":
        return from_numpy(np.asarray(sample))
    if isinstance(sample, Mapping):
        return _mapping(sample, {key: default_convert(value) for key, value in sample.items()})
    if isinstance(sample, tuple) and hasattr(sample, "_fields"):
        return type(sample)(*(default_convert(value) for value in sample))
    if isinstance(sample, tuple):
        return [default_convert(value) for value in sample]
    if isinstance(sample, Sequence) and not isinstance(sample, (str, bytes)):
        return _rebuilt(sample, [default_convert(value) for value in sample])
    return sample


# ---- batches that exist ----------------------------------------------------------------------------


def mapped(batch, function):
    """A batch with `function` of each tensor: a tensor, or tuples, lists and mappings of them and of other things."""
    if isinstance(batch, Tensor):
        return function(batch)
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(mapped(x, function) for x in batch))
    if isinstance(batch, (tuple, list)):
        return type(batch)(mapped(x, function) for x in batch)
    if isinstance(batch, dict):
        return {name: mapped(x, function) for name, x in batch.items()}
    return batch


def pinned(batch):
    """A batch in page-locked memory, where there is a GPU."""
    return mapped(batch, lambda x: x.pin_memory() if x.device is CPU else x)


def placed(batch, device):
    """A batch on a device."""
    return mapped(batch, lambda x: x.to(device, non_blocking=True))
