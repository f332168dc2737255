"""The part of a `DataLoader`'s batches that one of several ranks computes."""

import collections
import copy

from ..core.tensor_cy import TensorBase
from .loader import DataLoader


def rows_of(batch):
    """The rows of a batch: the first dim of its first tensor."""
    if isinstance(batch, dict):
        batch = tuple(batch.values())
    if isinstance(batch, (tuple, list)) and batch:
        return rows_of(batch[0])
    if not isinstance(batch, TensorBase) or not batch.shape:
        raise ValueError(f"a batch must begin with a tensor of rows to be divided, got {type(batch).__name__}")
    return batch.shape[0]


def take(batch, first, stop):
    """Rows [first, stop) of every tensor of a batch."""
    if isinstance(batch, dict):
        return {key: take(value, first, stop) for key, value in batch.items()}
    if isinstance(batch, (tuple, list)):
        return type(batch)(take(value, first, stop) for value in batch)
    return batch[first:stop] if isinstance(batch, TensorBase) and batch.shape else batch


class _Order:
    """The lists of indices of a loader, of each of them a part; `rows` has what was cut and is not yet a batch."""

    def __init__(self, order, bounds):
        self.order, self.bounds, self.rows = order, bounds, collections.deque()

    def __iter__(self):
        self.rows.clear()
        return self._parts(iter(self.order))

    def _parts(self, lists):
        for indices in lists:
            first, stop = self.bounds(len(indices))
            self.rows.append(stop - first)
            yield indices[first:stop] or indices[:1]

    def __len__(self):
        return len(self.order)

    def state_dict(self):
        """That of the order inside, which is alike on all ranks."""
        return self.order.state_dict() if hasattr(self.order, "state_dict") else {}

    def load_state_dict(self, state):
        """Give it to the order inside."""
        if hasattr(self.order, "load_state_dict"):
            self.order.load_state_dict(state)


class LoaderPart:
    """(rows, batch) for each batch of `loader`: the rows that `bounds(rows of the batch)`, [first, stop), says.

    Batches together are those of the loader, and only what is in the part is read (of an iterable dataset all is).
    Where the part is empty `rows` is 0 and the batch is one row, so that all ranks compute alike. The state is that of
    the loader, whatever the part: a run goes on with another number of ranks.
    """

    def __init__(self, loader, bounds):
        if not isinstance(loader, DataLoader) or not loader._batched:
            kind = "one of single samples" if isinstance(loader, DataLoader) else type(loader).__name__
            raise ValueError(f"`loader` must be a DataLoader with batches to be divided among ranks, got {kind}")
        self.loader, self.bounds = copy.copy(loader), bounds
        if loader._order is not None:
            self.loader._order = _Order(loader._order, bounds)

    def __len__(self):
        return len(self.loader)

    def __iter__(self):
        batches, order = iter(self.loader), self.loader._order
        return self._cut(batches) if order is None else self._counted(batches, order, self.loader._state["batches"])

    @staticmethod
    def _counted(batches, order, skipped):
        for batch in batches:
            while skipped:
                order.rows.popleft()
                skipped -= 1
            yield order.rows.popleft(), batch

    def _cut(self, batches):
        for batch in batches:
            first, stop = self.bounds(rows_of(batch))
            yield stop - first, take(batch, first, stop) if stop > first else take(batch, 0, 1)

    def state_dict(self):
        """The position of the loader."""
        return self.loader.state_dict()

    def load_state_dict(self, state):
        """Continue from a position of a loader of the same dataset and arguments."""
        self.loader.load_state_dict(state)
