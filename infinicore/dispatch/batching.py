"""One call for a whole batch: what `vmap` runs on.

Within `vmap` a function gets sample tensors. Each stands for one sample of a batch: its layout is that of a sample in
the batch's memory, so views of it are layouts as of any tensor, and say which elements of every sample are meant.
Operators are watched: `Level.around` computes each for all samples at once, by a rule of `batch_rules.py`, by the
operators that it is written with, or, where it has neither, sample by sample. Nothing else can be done with a sample
tensor: it names a device whose backend refuses to be read and written, since values differ from sample to sample.
"""

import contextlib

from ..core import launch as core_launch
from ..core import layout
from ..core.node_cy import WATCH, alias
from ..core.tensor_cy import Storage, TensorBase
from ..device import Device
from . import derive
from . import functions as calls
from .batch_rules import Unknown, rule_of
from .trees import map_tensors

f = derive.functions


class _Samples:
    """The backend of sample tensors: that of the device where their batches lie, but for what touches their values."""

    shares_memory, of_samples = False, True

    def __init__(self, device, real):
        self.device, self.real = device, real

    def __getattr__(self, name):
        return getattr(self.real, name)

    def launch(self, kernel, values, n, grain, keep, *rest):
        """As of the batch's device, for tensors that all samples share."""
        if any(isinstance(x, TensorBase) and type(x.storage.owner) is _Batch for x in keep):
            self.read()
        return self.real.launch(kernel, values, n, grain, keep, *rest)

    def hand_out(self):
        """Refuse: the memory is that of all samples."""
        self.read()

    def read(self, *_):
        """Refuse."""
        raise Unknown(
            "a function under `vmap` cannot look at the values of its samples (`item`, `if`, `numpy`), which differ: "
            "use `where`, and operators that make new tensors"
        )


_places = {}  # device -> the device of sample tensors of batches there, which has its name


def _place(device):
    if device.backend.of_samples:
        return device
    found = _places.get(device)
    if found is None:
        found = _places[device] = object.__new__(Device)
        found.type, found.index = device.type, device.index
        found._backend = _Samples(found, device.backend)
    return found


def _on(x, device):
    """`x` with another device's name: the same memory, and the same place in the graph."""
    if x.device is device:
        return x
    t = derive.view(x, x.shape_, x.strides_, 0, _same)
    t.device = device
    return t


def _same(g):
    return g


class _Batch:
    """What owns the storage of a sample tensor: the tensor of all samples, along dim 0."""

    __slots__ = ("level", "tensor")

    def __init__(self, level, tensor):
        self.level, self.tensor = level, tensor

    def blank(self, shape, dtype):
        """A sample tensor of zeros."""
        return self.level.sample(derive.blank((self.level.size, *shape), self.tensor, dtype))


class Level:
    """One run of a function under `vmap`, for `size` samples: a watcher of the calls in it.

    `in_backward`: of those in backward too, whose gradients may be sample tensors then.
    """

    def __init__(self, size, in_backward=False):
        self.size, self.in_backward = size, in_backward

    # ---- tensors ----

    def sample(self, batch):
        """The tensor that stands for one sample of a batch [size, ...]."""
        shape, strides = batch.shape_[1:], batch.strides_[1:]
        place, memory = _place(batch.device), batch.storage
        storage = Storage(memory.address, memory.nbytes, None, _Batch(self, batch), place.backend)
        t = core_launch.view_tensor(batch, shape, strides)
        t.set_layout(
            storage, batch.address, batch.dtype, place, shape, strides, layout.count(shape),
            layout.is_contiguous(shape, strides),
        )  # fmt: skip
        return t

    def batched(self, x):
        """The batch [size, ...] that a sample tensor or a view of one stands for; None for what all samples share."""
        owner = x.storage.owner
        if type(owner) is not _Batch or owner.level is not self:
            return None
        if x.tracked:
            raise NotImplementedError("a tensor under `vmap` has no `.grad`: use `infinicore.func.grad` instead")
        batch = owner.tensor
        offset = x.address - batch.address
        if x.dtype is not batch.dtype:
            if batch.dtype.kind != "c" or x.dtype is not batch.dtype.real:
                raise Unknown(f"`vmap` cannot see a batch of {batch.dtype} as {x.dtype}: cast it instead")
            batch = f.view_as_real(batch)
        elif not offset and x.shape_ == batch.shape_[1:] and x.strides_ == batch.strides_[1:]:
            return batch
        shape, strides = (self.size, *x.shape_), (batch.strides_[0], *x.strides_)
        return derive.view(batch, shape, strides, offset // x.dtype.itemsize)

    def shared(self, x):
        """What all samples share, as the rules take it: on the device of the batches."""
        return _on(x, x.device.backend.real.device) if self._lifted(x) else x

    def _lifted(self, x):
        return x.device.backend.of_samples and type(x.storage.owner) is not _Batch

    def expanded(self, x):
        """The batch of `x`, which repeats what all samples share."""
        batch = self.batched(x)
        return self.shared(x).expand((self.size, *x.shape_)) if batch is None else batch

    def either(self, x):
        """The batch of a sample tensor, else `x` itself, which all samples share."""
        batch = self.batched(x)
        return self.shared(x) if batch is None else batch

    def aligned(self, x, ndim):
        """`either`, where the samples of a batch have `ndim` dims: those missing have size 1 and come first."""
        batch, missing = self.batched(x), ndim - len(x.shape_)
        if batch is None or missing <= 0:
            return self.shared(x) if batch is None else batch
        return batch.reshape((self.size, *(1,) * missing, *x.shape_))

    def touches(self, values):
        """Whether one of the tensors among `values` differs from sample to sample."""
        for x in core_launch.tensors(values):
            owner = x.storage.owner
            if type(owner) is _Batch and owner.level is self:
                return True
        return False

    # ---- calls ----

    def around(self, op, run, args, kwargs):
        """Compute a call for all samples."""
        if not self.touches((*args, *kwargs.values())):
            return run(*map_tensors(args, self.shared), **map_tensors(kwargs, self.shared))
        rule = rule_of(op)
        result = NotImplemented if rule is None else rule(self, op, run, args, kwargs)
        if result is NotImplemented:
            return self._composed(op, run, args, kwargs)
        return map_tensors(result, self.sample)

    def _composed(self, op, run, args, kwargs):
        """A call of an op that has no rule: by the operators it is written with, or for one sample after the other."""
        if op.family == "composite":
            place = next(x.device for x in core_launch.tensors((*args, *kwargs.values())) if self.touches((x,)))
            lift = lambda x: x if self.touches((x,)) else _on(x, place)
            try:
                with self.watching():
                    return run(*map_tensors(args, lift), **map_tensors(kwargs, lift))
            except Unknown:
                pass
        return self._each(op, run, args, kwargs)

    def _each(self, op, run, args, kwargs):
        if any(kwargs.get(name) is not None for name in op.outputs):
            raise NotImplementedError(f"`out` of `{op.name}` under `vmap`: leave it out, and return the result")
        results = []
        if not self.size:
            raise Unknown(f"`{op.name}` under `vmap` runs on one sample after the other, and there is none")
        for i in range(self.size):
            part = lambda x, i=i: self.shared(x) if (batch := self.batched(x)) is None else batch.select(0, i)
            results.append(run(*map_tensors(args, part), **map_tensors(kwargs, part)))
        return self._stacked(op, results)

    def _stacked(self, op, results):
        first = results[0]
        if isinstance(first, tuple):
            parts = [self._stacked(op, list(part)) for part in zip(*results)]
            return type(first)(*parts) if hasattr(first, "_fields") else tuple(parts)
        if not isinstance(first, TensorBase):
            if any(x != first for x in results):
                raise Unknown(f"the result of `{op.name}` differs from sample to sample, and is no tensor: {first!r}")
            return first
        if any(x.shape_ != first.shape_ for x in results):
            shapes = sorted({x.shape_ for x in results})
            raise Unknown(f"results of `{op.name}` under `vmap` must have one shape, got {shapes}: use `where` instead")
        return self.sample(f.stack(results))

    @contextlib.contextmanager
    def watching(self):
        """Look at calls also within `around`."""
        state = calls._watchers
        stack, mode = state.stack, core_launch.mode()
        state.stack = [*(x for x in stack if x is not self), self]
        core_launch.set_mode(mode | WATCH)
        try:
            yield
        finally:
            state.stack = stack
            core_launch.set_mode(core_launch.mode() & ~WATCH | mode & WATCH)

    @contextlib.contextmanager
    def paused(self):
        """Let the levels around this one look at the calls on its batches."""
        state = calls._watchers
        stack, mode = state.stack, core_launch.mode()
        state.stack = [x for x in stack if x is not self]
        if not state.stack:
            core_launch.set_mode(mode & ~WATCH)
        try:
            yield
        finally:
            state.stack = stack
            core_launch.set_mode(core_launch.mode() & ~WATCH | mode & WATCH)


def innermost():
    """The level of the function that runs in this thread under `vmap`; None outside of one."""
    if not core_launch.mode() & WATCH:
        return None
    return next((x for x in reversed(calls.watchers()) if isinstance(x, Level)), None)


def tracked(x):
    """Whether gradients flow into `x`, or into the batch that it stands for."""
    while type(x.storage.owner) is _Batch:
        x = x.storage.owner.tensor
    return bool(x.tracked)


def detached(x):
    """`x` outside of the graph, and the batch that it stands for."""
    owner = x.storage.owner
    return owner.level.sample(detached(owner.level.batched(x))) if type(owner) is _Batch else alias(x)


def write(x, source):
    """`x.copy_(source)` for tensors of which one is a sample tensor; whether one is."""
    for level in reversed(calls.watchers()):
        if isinstance(level, Level) and level.touches((x, source)):
            to = level.batched(x)
            if to is None:
                raise Unknown(
                    "under `vmap`, samples cannot be written to a tensor that all of them share: make it of a sample, "
                    "as `zeros_like(x)` or `x.new_zeros(...)`"
                )
            with level.paused():
                to.copy_(level.aligned(source, len(x.shape_)))
            return True
    return False
