"""Datasets: samples by index, or one after another; parts and concatenations of them."""

import bisect
import itertools
import math

import numpy as np

from ..dispatch.generator import default_generator
from ..interop.numpy import from_numpy, to_numpy
from ..tensor.tensor import Tensor


class Dataset:
    """Samples by index: a subclass defines `__getitem__(index)` and `__len__()`.

    A dataset that can fetch many samples faster than one by one also defines `get_batch(indices)`, which returns the
    collated batch; `DataLoader` calls it unless it has a `collate_fn`. `__getitems__(indices)`, a list of samples, is
    used in front of `__getitem__`. One that draws no random numbers sets `deterministic = True`: its samples do not
    depend on a seed, and the loader need not set one for each batch.
    """

    deterministic = False

    def __getitem__(self, index):
        raise NotImplementedError(f"`{type(self).__name__}` must define `__getitem__`")

    def __add__(self, other):
        return ConcatDataset([self, other])


class IterableDataset(Dataset):
    """Samples one after another: a subclass defines `__iter__()`.

    With workers each one iterates over a copy of its own; `get_worker_info()` tells them apart, so that each takes
    its share.
    """

    def __iter__(self):
        raise NotImplementedError(f"`{type(self).__name__}` must define `__iter__`")

    def __add__(self, other):
        return ChainDataset([self, other])


class TensorDataset(Dataset):
    """Samples are tuples: row i of each tensor. Raises ValueError where the tensors have different first sizes."""

    deterministic = True

    def __init__(self, *tensors):
        if not tensors:
            raise ValueError("`tensors` of TensorDataset must hold at least one tensor")
        for tensor in tensors:
            if not isinstance(tensor, Tensor):
                raise TypeError(f"`tensors` must be tensors, got {type(tensor).__name__}; use `infinicore.tensor`")
            if getattr(tensor, "requires_grad", False):
                raise ValueError("`tensors` must not require gradients, which batches lose; use `.detach()`")
            if not tensor.shape_ or tensor.shape_[0] != tensors[0].shape_[0]:
                raise ValueError(
                    f"`tensors` must have one first size, got shapes {tensors[0].shape_} and {tensor.shape_}"
                )
        self.tensors = tensors

    def __getitem__(self, index):
        return tuple(tensor[index] for tensor in self.tensors)

    def __len__(self):
        return self.tensors[0].shape_[0]

    def get_batch(self, indices):
        """Rows of each tensor, as a list of tensors."""
        rows = np.asarray(indices, np.int64)
        return [from_numpy(to_numpy(tensor)[rows]) for tensor in self.tensors]


class StackDataset(Dataset):
    """Samples of several datasets side by side: tuples, or dicts where they are given by name.

    Raises ValueError without any, or where they have different sizes.
    """

    def __init__(self, *args, **kwargs):
        if bool(args) == bool(kwargs):
            raise ValueError(f"StackDataset takes datasets by place or by name, got {len(args)} and {len(kwargs)}")
        self.datasets = kwargs or args
        sizes = [len(dataset) for dataset in self._each()]
        if len(set(sizes)) > 1:
            raise ValueError(f"the datasets of StackDataset must have one size, got {sizes}")
        self.deterministic = all(getattr(dataset, "deterministic", False) for dataset in self._each())

    def _each(self):
        return self.datasets.values() if isinstance(self.datasets, dict) else self.datasets

    def __getitem__(self, index):
        samples = [dataset[index] for dataset in self._each()]
        return dict(zip(self.datasets, samples)) if isinstance(self.datasets, dict) else tuple(samples)

    def __len__(self):
        return len(next(iter(self._each())))


class Subset(Dataset):
    """The samples of `dataset` at `indices` (a sequence or an array of ints)."""

    def __init__(self, dataset, indices):
        self.dataset, self.indices = dataset, indices
        self.deterministic = getattr(dataset, "deterministic", False)
        if hasattr(dataset, "get_batch"):
            self.get_batch = self._get_batch

    def __getitem__(self, index):
        if isinstance(index, list):
            return self.dataset[[self.indices[i] for i in index]]
        return self.dataset[self.indices[index]]

    def __getitems__(self, indices):
        chosen = [self.indices[i] for i in indices]
        if hasattr(self.dataset, "__getitems__"):
            return self.dataset.__getitems__(chosen)
        return [self.dataset[i] for i in chosen]

    def _get_batch(self, indices):
        return self.dataset.get_batch([self.indices[i] for i in indices])

    def __len__(self):
        return len(self.indices)


class ConcatDataset(Dataset):
    """Datasets one behind another. Raises ValueError without any and TypeError for an IterableDataset."""

    def __init__(self, datasets):
        self.datasets = list(datasets)
        if not self.datasets:
            raise ValueError("`datasets` of ConcatDataset must hold at least one dataset")
        if any(isinstance(dataset, IterableDataset) for dataset in self.datasets):
            raise TypeError("`datasets` of ConcatDataset have no IterableDataset; use `ChainDataset`")
        self.cumulative_sizes = list(itertools.accumulate(len(dataset) for dataset in self.datasets))
        self.deterministic = all(getattr(dataset, "deterministic", False) for dataset in self.datasets)

    def __len__(self):
        return self.cumulative_sizes[-1]

    def __getitem__(self, index):
        size = len(self)
        if not -size <= index < size:
            raise IndexError(f"`index` {index} is out of range for a dataset of {size} samples")
        index += size if index < 0 else 0
        which = bisect.bisect_right(self.cumulative_sizes, index)
        return self.datasets[which][index - (self.cumulative_sizes[which - 1] if which else 0)]


class ChainDataset(IterableDataset):
    """Iterable datasets one behind another."""

    def __init__(self, datasets):
        self.datasets = list(datasets)

    def __iter__(self):
        return itertools.chain.from_iterable(self.datasets)

    def __len__(self):
        return sum(len(dataset) for dataset in self.datasets)


def random_split(dataset, lengths, generator=None):
    """Random parts of a dataset that share no sample: a list of `Subset`.

    `lengths` are counts that add up to `len(dataset)`, or fractions that add up to 1: then each part has
    floor(fraction * count) samples, and what is left goes to the first parts, one each. Raises ValueError otherwise.
    """
    total = len(dataset)
    if not lengths or any(n < 0 for n in lengths):
        raise ValueError(f"`lengths` must be counts or fractions of 0 or more, got {list(lengths)}")
    if math.isclose(sum(lengths), 1) and sum(lengths) <= 1 + 1e-9 and not all(isinstance(n, int) for n in lengths):
        # 1e-9: 0.29 * 100 is 28.999999999999996, and 29 samples are meant.
        counts = [math.floor(total * fraction + 1e-9) for fraction in lengths]
        for i in range(total - sum(counts)):
            counts[i % len(counts)] += 1
    else:
        counts = list(lengths)
    if any(not isinstance(n, (int, np.integer)) for n in counts) or sum(counts) != total:
        raise ValueError(
            f"`lengths` {list(lengths)} must be counts that add up to {total}, the samples of `dataset`, "
            "or fractions that add up to 1"
        )
    order = (generator or default_generator()).permutation(total).tolist()
    ends = list(itertools.accumulate(counts))
    return [Subset(dataset, order[end - n : end]) for end, n in zip(ends, counts)]
