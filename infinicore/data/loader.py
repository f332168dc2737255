"""The DataLoader: batches of a dataset, made here or by worker processes, with a position that can be saved."""

import collections
import itertools
import operator

from .collate import pinned
from .dataset import IterableDataset
from .sampler import BatchSampler, RandomSampler, SequentialSampler, checked_generator
from .worker import END, Fetcher, WorkerPool, stream_seed

_VERSION = 1


def _whole(value, name, low):
    try:
        number = operator.index(value)
    except TypeError:
        number = low - 1
    if number < low or isinstance(value, bool):
        raise ValueError(f"`{name}` must be an int of {low} or more, got {value!r}")
    return number


class DataLoader:
    """Iterates over the batches of a dataset, with the arguments of PyTorch's.

    Order and contents do not depend on `num_workers`: batch k has its own random numbers, drawn from the epoch's seed
    and k, and each epoch's seed is drawn from `generator` (default: the default generator), as is its order. Workers
    are forked where the system can, compute with one thread, and keep `prefetch_factor` (default 2) batches ready.
    An error in a worker is raised here with the worker's traceback as a note; a worker that dies is a RuntimeError.
    With `pin_memory`, tensors of a batch lie in page-locked memory where there is a GPU, from which
    `to("cuda", non_blocking=True)` copies while the host goes on.

    `state_dict()` between two batches says where the run is; a loader of the same dataset and arguments that gets it
    by `load_state_dict` gives exactly the batches that remain of the epoch. Later epochs draw from the generator:
    the state holds that of `generator`, and `infinicore.get_rng_state` that of the default one. An iterable dataset
    is read and thrown away up to the position.
    """

    def __init__(
        self,
        dataset,
        batch_size=1,
        shuffle=None,
        sampler=None,
        batch_sampler=None,
        num_workers=0,
        collate_fn=None,
        pin_memory=False,
        drop_last=False,
        timeout=0,
        worker_init_fn=None,
        multiprocessing_context=None,
        generator=None,
        *,
        prefetch_factor=None,
        persistent_workers=False,
    ):
        self.num_workers = _whole(num_workers, "num_workers", 0)
        if timeout < 0:
            raise ValueError(f"`timeout` must be 0 (none) or more seconds, got {timeout}")
        if self.num_workers == 0 and (prefetch_factor is not None or persistent_workers):
            raise ValueError("`prefetch_factor` and `persistent_workers` need `num_workers` of 1 or more, got 0")
        self.prefetch_factor = 2 if prefetch_factor is None else _whole(prefetch_factor, "prefetch_factor", 1)
        self.dataset, self.collate_fn, self.pin_memory, self.timeout = dataset, collate_fn, pin_memory, timeout
        self.persistent_workers, self.worker_init_fn = bool(persistent_workers), worker_init_fn
        self.multiprocessing_context = multiprocessing_context
        checked_generator(generator)
        self.generator = generator
        self._iterable = isinstance(dataset, IterableDataset)
        self._choose_order(batch_size, shuffle, sampler, batch_sampler, drop_last)
        self._pool = None
        self._epoch, self._state, self._resume = 0, None, None

    def _choose_order(self, batch_size, shuffle, sampler, batch_sampler, drop_last):
        if self._iterable and (shuffle or sampler is not None or batch_sampler is not None):
            raise ValueError(
                "an IterableDataset has its own order: `shuffle`, `sampler` and `batch_sampler` must be unset"
            )
        if sampler is not None and shuffle:
            raise ValueError("`sampler` decides the order, so `shuffle` must be unset")
        if batch_sampler is not None:
            if batch_size != 1 or shuffle or sampler is not None or drop_last:
                raise ValueError(
                    "`batch_sampler` decides about batches, so `batch_size`, `shuffle`, `sampler` and `drop_last` "
                    "must be unset"
                )
            batch_size = None
        elif batch_size is None:
            if drop_last:
                raise ValueError("`batch_size` None gives single samples, so `drop_last` must be unset")
        else:
            batch_size = _whole(batch_size, "batch_size", 1)
        if not self._iterable and sampler is None and batch_sampler is None:
            kind = RandomSampler if shuffle else SequentialSampler
            sampler = kind(self.dataset, generator=self.generator) if shuffle else kind(self.dataset)
        if not self._iterable and batch_size is not None:
            batch_sampler = BatchSampler(sampler, batch_size, drop_last)
        self.batch_size, self.drop_last = batch_size, bool(drop_last)
        self.sampler, self.batch_sampler = sampler, batch_sampler
        self._batched = batch_size is not None or batch_sampler is not None
        self._order = batch_sampler if batch_sampler is not None else sampler  # None for an iterable dataset

    @property
    def epoch(self):
        """The number of the epoch under way, else of the next one, from 0."""
        return self._epoch if self._state is None else self._state["epoch"]

    def __len__(self):
        if self._order is not None:
            return len(self._order)
        size = len(self.dataset)
        if self.batch_size is None:
            return size
        return size // self.batch_size if self.drop_last else -(-size // self.batch_size)

    # ---- position ----

    def _order_state(self):
        return self._order.state_dict() if hasattr(self._order, "state_dict") else {}

    def state_dict(self):
        """The position as a dict that JSON can hold: epoch, batches given of it, seeds, state of `generator`."""
        if self._resume is not None:
            return dict(self._resume)
        if self._state is not None:
            return dict(self._state)
        state = {"version": _VERSION, "epoch": self._epoch, "batches": 0, "seed": None, "sampler": self._order_state()}
        if self.generator is not None:
            state["generator"] = self.generator.get_state()
        return state

    def load_state_dict(self, state):
        """Continue from a state of `state_dict` at the next `iter()`. Raises ValueError for anything else."""
        if not isinstance(state, dict) or state.get("version") != _VERSION:
            raise ValueError(f"`state` must be what `DataLoader.state_dict` gives, got {str(state)[:80]}")
        missing = {"epoch", "batches", "seed", "sampler"} - state.keys()
        if missing:
            raise ValueError(f"`state` of a DataLoader lacks {', '.join(sorted(missing))}")
        self._epoch, self._state = state["epoch"], None
        self._resume = dict(state)

    def _begin(self):
        """Draw or restore what the epoch follows from; its state and an iterator over its indices."""
        resumed, self._resume = self._resume, None
        if self._state is not None:  # an epoch was left before its end
            self._epoch = self._state["epoch"] + 1
        if resumed is not None:
            if self.generator is not None and "generator" in resumed:
                self.generator.set_state(resumed["generator"])
            if hasattr(self._order, "load_state_dict"):
                self._order.load_state_dict(resumed["sampler"])
        state = {"version": _VERSION, "epoch": self._epoch, "batches": 0}
        if resumed is not None and resumed["seed"] is not None:
            state["seed"], state["batches"] = resumed["seed"], resumed["batches"]
        else:
            state["seed"] = checked_generator(self.generator).integers(1 << 63)
        indices = None if self._order is None else iter(self._order)
        state["sampler"] = self._order_state()
        if self.generator is not None:
            state["generator"] = self.generator.get_state()
        return state, indices

    # ---- batches ----

    def __iter__(self):
        state, indices = self._begin()
        self._state = state
        return self._epoch_of(state, indices)

    def _epoch_of(self, state, indices):
        seed, skip = state["seed"], state["batches"]
        if self.num_workers:
            batches = self._from_workers(state, indices, skip)
        elif self._iterable:
            batches = self._iterated(seed, skip)
        else:
            batches = self._mapped(seed, indices, skip)
        try:
            for batch in batches:
                state["batches"] += 1
                yield pinned(batch) if self.pin_memory else batch
        finally:
            batches.close()
        if self._state is state:
            self._epoch, self._state = state["epoch"] + 1, None

    def _fetcher(self):
        return Fetcher(self.dataset, self.collate_fn, self._iterable, self._batched, self.drop_last)

    def _mapped(self, seed, indices, skip):
        fetcher = self._fetcher()
        fetcher.start(seed)
        for number, what in itertools.islice(enumerate(indices), skip, None):
            yield fetcher.fetch(number, what)

    def _iterated(self, seed, skip):
        fetcher = self._fetcher()
        fetcher.start(stream_seed(seed, 0))
        for number in itertools.count():
            batch = fetcher.fetch(number, self.batch_size)
            if batch is END:
                return
            if number >= skip:
                yield batch

    # ---- workers ----

    def _from_workers(self, state, indices, skip):
        pool = self._pool
        if pool is None or not pool.alive:
            options = self.num_workers, self.prefetch_factor, self.worker_init_fn, self.multiprocessing_context
            pool = WorkerPool(self._fetcher(), *options)
            self._pool = pool if self.persistent_workers else None
        try:
            pool.start_epoch(state["seed"])
            results = self._iterated_by(pool, skip) if self._iterable else self._mapped_by(pool, indices, skip)
            for batch in results:
                yield batch
                if pool is self._pool and self._state is not state:
                    raise RuntimeError(
                        "this iterator of the DataLoader ended when a newer one took its workers over; with "
                        "`persistent_workers` use one iterator at a time"
                    )
        finally:
            if pool is not self._pool:
                pool.close()

    def _mapped_by(self, pool, indices, skip):
        """Batch k comes from worker k % num_workers: answers are taken in the order of the tasks."""
        tasks = itertools.islice(enumerate(indices), skip, None)
        ready = self.num_workers * self.prefetch_factor
        order = collections.deque()
        for worker, task in zip(itertools.cycle(range(self.num_workers)), itertools.islice(tasks, ready)):
            pool.send(worker, *task)
            order.append(worker)
        while order:
            worker = order.popleft()
            _, batch = pool.receive(worker, self.timeout)
            for task in itertools.islice(tasks, 1):
                pool.send(worker, *task)
                order.append(worker)
            yield batch

    def _iterated_by(self, pool, skip):
        """Workers give their batches in turn; one that is at its end leaves the round."""
        active = collections.deque(range(self.num_workers))
        for worker in list(active) * self.prefetch_factor:
            pool.send(worker, None, self.batch_size)
        while active:
            worker = active.popleft()
            more, batch = pool.receive(worker, self.timeout, skip=skip > 0)
            if not more:
                continue
            pool.send(worker, None, self.batch_size)
            active.append(worker)
            if skip:
                skip -= 1
            else:
                yield batch
