"""Samplers: the order in which a dataset is read, with a position that can be saved and restored."""

import itertools
import operator

import numpy as np

from ..dispatch.generator import Generator, default_generator

_BLOCK = 65536  # indices drawn at a time, so that long orders take no memory
_MASK = (1 << 64) - 1


def mix(*numbers):
    """A seed of 64 bits from ints (splitmix64; Steele, Lea and Flood, OOPSLA 2014): neighbours give unrelated ones."""
    seed = 0
    for number in numbers:
        seed = (seed ^ number) + 0x9E3779B97F4A7C15 & _MASK
        seed = (seed ^ seed >> 30) * 0xBF58476D1CE4E5B9 & _MASK
        seed = (seed ^ seed >> 27) * 0x94D049BB133111EB & _MASK
        seed ^= seed >> 31
    return seed


def checked_generator(generator):
    """`generator`, or the default one; TypeError for what is none."""
    if generator is None:
        return default_generator()
    if not isinstance(generator, Generator):
        raise TypeError(f"`generator` must be an infinicore.Generator, got {type(generator).__name__}")
    return generator


def _positive(value, name):
    try:
        number = operator.index(value)
    except TypeError:
        number = 0
    if number < 1 or isinstance(value, bool):
        raise ValueError(f"`{name}` must be an int of 1 or more, got {value!r}")
    return number


class Sampler:
    """Gives the indices of one epoch each time it is iterated over.

    A subclass defines `__iter__` and, where it can, `__len__`. One whose order is random also defines `state_dict()`,
    called right after `iter()`, and `load_state_dict(state)`, after which the next `iter()` gives that order again.
    """

    def __iter__(self):
        raise NotImplementedError(f"`{type(self).__name__}` must define `__iter__`")

    def state_dict(self):
        """What `load_state_dict` needs to give the current epoch's order again; {} if it is always the same."""
        return {}

    def load_state_dict(self, state):
        """Continue from a state of `state_dict`."""


class _IndexSampler(Sampler):
    """A sampler whose order follows from one seed per epoch; a subclass defines `_blocks(seed)`, arrays of indices."""

    def __init__(self, generator=None):
        checked_generator(generator)
        self.generator = generator
        self._progress = None  # [seed, indices given] of the epoch under way
        self._resume = None

    def _new_seed(self):
        return checked_generator(self.generator).integers(1 << 63)

    def __iter__(self):
        self._progress = self._resume or [self._new_seed(), 0]
        self._resume = None
        return self._walk(self._progress)

    def _walk(self, progress):
        skip = progress[1]
        for block in self._blocks(progress[0]):
            if skip >= len(block):
                skip -= len(block)
                continue
            for index in block[skip:].tolist():
                progress[1] += 1
                yield index
            skip = 0
        if self._progress is progress:
            self._progress = None

    def state_dict(self):
        """The epoch's seed (None between epochs), the indices given of it, and the generator's state if it has one."""
        seed, position = self._resume or self._progress or (None, 0)
        state = {"seed": seed, "position": position}
        if self.generator is not None:
            state["generator"] = self.generator.get_state()
        return state

    def load_state_dict(self, state):
        """The next `iter()` gives the rest of the epoch that `state` was taken from."""
        self._progress = None
        self._resume = None if state["seed"] is None else [state["seed"], state["position"]]
        if self.generator is not None and "generator" in state:
            self.generator.set_state(state["generator"])


class SequentialSampler(_IndexSampler):
    """0 to n - 1, in order."""

    def __init__(self, data_source):
        super().__init__()
        self.data_source = data_source

    def _new_seed(self):
        return 0

    def _blocks(self, _):
        size = len(self)
        return (np.arange(start, min(start + _BLOCK, size)) for start in range(0, size, _BLOCK))

    def __len__(self):
        return len(self.data_source)


class RandomSampler(_IndexSampler):
    """A new random order each epoch; with `replacement`, each index is drawn on its own.

    `num_samples` (default: the dataset's length) may be more than the length: further permutations follow.
    """

    def __init__(self, data_source, replacement=False, num_samples=None, generator=None):
        super().__init__(generator)
        self.data_source, self.replacement = data_source, bool(replacement)
        self._num_samples = None if num_samples is None else _positive(num_samples, "num_samples")

    @property
    def num_samples(self):
        """Indices of an epoch."""
        return len(self.data_source) if self._num_samples is None else self._num_samples

    def _blocks(self, seed):
        generator, size, left = Generator(seed), len(self.data_source), self.num_samples
        if size == 0 and left:
            raise ValueError(f"`num_samples` {left} cannot be drawn from an empty dataset")
        while left:
            if self.replacement:
                block = generator.integers(0, size, min(left, _BLOCK))
            else:
                block = generator.permutation(size)[:left]
            left -= len(block)
            yield block

    def __len__(self):
        return self.num_samples


class SubsetRandomSampler(_IndexSampler):
    """The given indices in a new random order each epoch."""

    def __init__(self, indices, generator=None):
        super().__init__(generator)
        self.indices = indices

    def _blocks(self, seed):
        yield np.asarray(self.indices, np.int64)[Generator(seed).permutation(len(self.indices))]

    def __len__(self):
        return len(self.indices)


class WeightedRandomSampler(_IndexSampler):
    """`num_samples` indices, index i with a probability proportional to `weights[i]`.

    Without `replacement` each index comes at most once: as if drawn one by one (exponential keys; Efraimidis and
    Spirakis, 2006). Raises ValueError for weights below 0, all 0, not finite, or too few that are above 0.
    """

    def __init__(self, weights, num_samples, replacement=True, generator=None):
        super().__init__(generator)
        self.weights = np.asarray(weights, np.float64)
        self.num_samples, self.replacement = _positive(num_samples, "num_samples"), bool(replacement)
        valid = self.weights.ndim == 1 and np.isfinite(self.weights).all() and (self.weights >= 0).all()
        if not valid or not self.weights.any():
            raise ValueError("`weights` must be one dim of finite numbers of 0 or more, and not all of them 0")
        if not self.replacement and np.count_nonzero(self.weights) < self.num_samples:
            raise ValueError(
                f"`num_samples` {self.num_samples} without replacement needs as many `weights` above 0, "
                f"got {np.count_nonzero(self.weights)}"
            )

    def _blocks(self, seed):
        random = Generator(seed)._numpy
        if not self.replacement:
            with np.errstate(divide="ignore"):
                keys = random.standard_exponential(len(self.weights)) / self.weights
            yield np.argsort(keys, kind="stable")[: self.num_samples]
            return
        sums = np.cumsum(self.weights)
        last = np.flatnonzero(self.weights)[-1]  # rounding must not reach the zeros behind it
        for start in range(0, self.num_samples, _BLOCK):
            values = random.random(min(_BLOCK, self.num_samples - start)) * sums[-1]
            yield np.minimum(np.searchsorted(sums, values, side="right"), last)

    def __len__(self):
        return self.num_samples


class DistributedSampler(_IndexSampler):
    """One rank's share of a dataset; all ranks get equally many indices.

    Rank r of R takes every R-th index from the r-th on. Where R does not divide the length, the order is padded with
    its own beginning (the fewest indices that make it divisible), or with `drop_last` cut. `set_epoch(epoch)` before
    each epoch gives a new order, the same on all ranks; without it every epoch has the order of epoch 0.
    """

    def __init__(self, dataset, num_replicas, rank, shuffle=True, seed=0, drop_last=False):
        super().__init__()
        self.dataset, self.num_replicas = dataset, _positive(num_replicas, "num_replicas")
        if not 0 <= rank < self.num_replicas:
            raise ValueError(f"`rank` must be from 0 to {self.num_replicas - 1}, got {rank}")
        self.rank, self.shuffle, self.seed, self.drop_last = rank, shuffle, seed, drop_last
        self.epoch = 0

    @property
    def num_samples(self):
        """Indices of each rank."""
        size = len(self.dataset)
        return size // self.num_replicas if self.drop_last else -(-size // self.num_replicas)

    @property
    def total_size(self):
        """Indices of all ranks."""
        return self.num_samples * self.num_replicas

    def set_epoch(self, epoch):
        """Choose the order of the next epoch."""
        self.epoch = epoch

    def _new_seed(self):
        return self.epoch

    def _blocks(self, epoch):
        size = len(self.dataset)
        order = Generator(mix(self.seed, epoch)).permutation(size) if self.shuffle else np.arange(size)
        yield np.resize(order, self.total_size)[self.rank :: self.num_replicas]

    def load_state_dict(self, state):
        """The next `iter()` gives the rest of the epoch that `state` was taken from."""
        super().load_state_dict(state)
        if state["seed"] is not None:
            self.epoch = state["seed"]

    def __len__(self):
        return self.num_samples


class BatchSampler(Sampler):
    """Lists of `batch_size` indices of another sampler (or any iterable); the last may be shorter, or is dropped."""

    def __init__(self, sampler, batch_size, drop_last=False):
        self.sampler, self.batch_size, self.drop_last = sampler, _positive(batch_size, "batch_size"), bool(drop_last)

    def __iter__(self):
        return self._batches(iter(self.sampler))  # the sampler draws its order now, not at the first batch

    def _batches(self, indices):
        while batch := list(itertools.islice(indices, self.batch_size)):
            if len(batch) < self.batch_size and self.drop_last:
                return
            yield batch

    def state_dict(self):
        """The state of the sampler inside."""
        return self.sampler.state_dict() if hasattr(self.sampler, "state_dict") else {}

    def load_state_dict(self, state):
        """Give it to the sampler inside."""
        if hasattr(self.sampler, "load_state_dict"):
            self.sampler.load_state_dict(state)

    def __len__(self):
        size = len(self.sampler)
        return size // self.batch_size if self.drop_last else -(-size // self.batch_size)
