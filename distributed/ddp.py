"""Data-parallel training: every rank has the whole model and a part of each batch; gradients are averaged."""

import contextlib

from .. import nn
from ..autograd import is_grad_enabled, no_grad
from ..core import launch as core_launch
from ..core import node
from ..core.tensor_cy import TensorBase
from ..data.collate import placed
from ..device import Device
from ..dispatch import as_dtype, empty, refuse_recording
from ..dtype import int64
from . import collectives as c
from .deferred import materialize_module
from .group import world_group
from .objects import all_gather_object
from .reducer import Reducer

MB = 1 << 20


class Averaging:
    """Who averages gradients over ranks, but for what happens within `no_sync`."""

    _sync = True

    @contextlib.contextmanager
    def no_sync(self):
        """Within it, passes add to this rank's own, whole gradients; the first one after it averages the sums."""
        before, self._sync = self._sync, False
        try:
            yield
        finally:
            self._sync = before


class DistributedDataParallel(Averaging, nn.Module):
    """`module`, whose gradients are averaged over the ranks of `group` during backward.

    As torch.nn.parallel.DistributedDataParallel (Li et al., arXiv 2006.15704). Parameters and buffers of rank 0 are
    given to all at the start, buffers before each training pass too (`broadcast_buffers`). Gradients travel in buckets,
    a first one of `first_bucket_mb` and others of `bucket_mb` MB, while backward computes those of earlier layers;
    after the first pass the buckets follow the order in which gradients came. `compression="bfloat16"` halves what
    travels, and rounds it. `find_unused_parameters` looks for parameters that do not take part in a pass; without it,
    such a pass is an error at the next one. Gradients are parts of the buckets' memory.

    PyTorch's other arguments are taken, too: `process_group` and `bucket_cap_mb` are `group` and `bucket_mb`; inputs
    are brought to the one device in `device_ids`; `output_device`, `static_graph` and `gradient_as_bucket_view` change
    nothing here.
    """

    _inputs_on = None  # the device that inputs are brought to

    def __init__(
        self,
        module,
        group=None,
        *,
        bucket_mb=25,
        first_bucket_mb=1,
        find_unused_parameters=False,
        broadcast_buffers=True,
        compression=None,
        process_group=None,
        bucket_cap_mb=None,
        device_ids=None,
        output_device=None,
        static_graph=False,
        gradient_as_bucket_view=True,
    ):
        super().__init__()
        if not isinstance(module, nn.Module):
            raise TypeError(f"`module` must be a Module, got {type(module).__name__}")
        group = process_group if group is None else group
        bucket_mb = bucket_mb if bucket_cap_mb is None else bucket_cap_mb
        self._inputs_on = _only(device_ids)
        for name, size in (("bucket_mb", bucket_mb), ("first_bucket_mb", first_bucket_mb)):
            if not isinstance(size, (int, float)) or not size > 0:
                raise ValueError(f"`{name}` must be above 0, got {size!r}")
        if compression is not None and getattr(compression, "name", compression) not in ("bfloat16", "float16"):
            raise ValueError(f"`compression` must be 'bfloat16', 'float16' or None, got {compression!r}")
        self.module = materialize_module(module)
        self.group, self.find_unused, self.broadcast_buffers = (
            world_group(group),
            find_unused_parameters,
            broadcast_buffers,
        )
        averages_context(module, self.group)
        parameters = [p for p in module.parameters() if p.requires_grad]
        if not parameters:
            raise ValueError("`module` has no parameter that requires a gradient: there is nothing to average")
        self._check_alike()
        self._give(0)
        compression = None if compression is None else as_dtype(compression)
        self._joining = None
        self.reducer = self._reducer(parameters, first_bucket_mb * MB, bucket_mb * MB, compression)

    def _reducer(self, parameters, first_bytes, most_bytes, compression):
        """What averages gradients, None where there is one rank."""
        return Reducer(parameters, self.group, first_bytes, most_bytes, compression) if self.group.size > 1 else None

    def _check_alike(self):
        """The ranks must have the same model."""
        mine = [(name, p.shape_, p.dtype.name, p.requires_grad) for name, p in self.module.named_parameters()]
        for rank, theirs in enumerate(all_gather_object(mine, self.group)):
            if theirs != mine:
                at = next((i for i, (a, b) in enumerate(zip(mine, theirs)) if a != b), min(len(mine), len(theirs)))
                here, there = (x[at] if at < len(x) else "nothing" for x in (mine, theirs))
                raise ValueError(
                    f"`module` differs between ranks: rank {self.group.rank} has {here}, rank {rank} {there}"
                )

    def _give(self, src, parameters=True):
        """Parameters (and buffers) of a rank, for all."""
        tensors = [*(self.module.parameters() if parameters else ()), *self.module.buffers()]
        with no_grad():
            for x in tensors:
                c.broadcast(x.detach(), src, self.group)

    def forward(self, *args, **kwargs):
        """`module(...)`; the backward pass of what it returns averages gradients."""
        if self._inputs_on is not None:
            args, kwargs = placed((args, kwargs), self._inputs_on)
        return self._pass(self.module, args, kwargs)

    def loss(self, *args, **kwargs):
        """The same of `module.loss(...)`, where the module has one (as language models have)."""
        return self._pass(self.module.loss, args, kwargs)

    def _pass(self, function, args, kwargs):
        syncs = self.reducer is not None and self._sync and is_grad_enabled()
        if self.reducer is not None and core_launch.recording() is not None:
            # replays write to the places that gradients have now, also those of passes without sums
            self.reducer.rebuilt = True
        if syncs and self._joining is not None:
            self._joining.present()
        if syncs and core_launch.recording() is None and self._joining is None:
            self.reducer.rebuild()
        if syncs and self.broadcast_buffers and self._joining is None:
            self._give(0, parameters=False)
        result = function(*args, **kwargs)
        if syncs:
            if self.find_unused:
                refuse_recording(
                    "`find_unused_parameters`", "it looks at each pass anew; leave it out, or do not record"
                )
            self.reducer.prepare(self._unused(result) if self.find_unused else None)
        return result

    def _unused(self, result):
        """Numbers of the parameters from which no way leads to the results."""
        seen, stack = set(), [node.edge(x) for x in tensors_in(result) if x.tracked]
        leaves = set()
        while stack:
            to = stack.pop()
            if to is None:
                continue
            target, output = to
            if output == -1:
                leaves.add(id(target))
            elif target not in seen:
                seen.add(target)
                stack.extend(target.edges)
        return [i for i, p in enumerate(self.reducer.parameters) if id(p) not in leaves]

    def join(self):
        """Within it, ranks may have different numbers of batches: `with model.join(): for batch in data: ...`"""
        return Join(self)


def _only(device_ids):
    """The one device that a rank's inputs are brought to, or None."""
    if not device_ids:
        return None
    if len(device_ids) > 1:
        raise ValueError(f"`device_ids` must name one device, a rank has no more, got {list(device_ids)}")
    return Device(device_ids[0] if not isinstance(device_ids[0], int) else f"cuda:{device_ids[0]}")


def averages_context(module, group):
    """Say that gradients will be averaged over `group`; ValueError where that leaves out ranks that share sequences."""
    context = getattr(module, "context_part", None)
    if context is None or context.group.size == 1:
        return
    missing = set(context.group.ranks) - set(group.ranks)
    if missing:
        raise ValueError(
            f'`group` must have all ranks of `cp` as well, and lacks {sorted(missing)}: pass `mesh.group("dp", "cp")`'
        )
    module.averaged = True


class Join:
    """Who has no more data takes part with zeros until all are done; then all take the model of who did the most steps.

    Averages are over all ranks of the group. Every training pass must be synchronised, and buffers are given from rank
    to rank at the end only.
    """

    def __init__(self, model):
        if not isinstance(model, DistributedDataParallel):
            raise TypeError(f"`model` must be a DistributedDataParallel, got {type(model).__name__}")
        self.model, self.steps = model, 0

    def _count(self, here):
        flag = empty((1,), int64).fill_(int(here))
        return c.all_reduce(flag, "sum", self.model.group).item()

    def present(self):
        """This rank still has data."""
        self.steps += 1
        self._count(True)

    def __enter__(self):
        if self.model.reducer is not None:
            self.model._joining = self
        return self

    def __exit__(self, kind, error, trace):
        model = self.model
        model._joining = None
        if model.reducer is None or error is not None:
            return
        with no_grad():
            while self._count(False):
                model.reducer.expects = model.find_unused
                model.reducer.shadow()
            steps = all_gather_object(self.steps, model.group)
            model._give(steps.index(max(steps)))


def tensors_in(value):
    """The tensors in a result."""
    if isinstance(value, TensorBase):
        yield value
    elif isinstance(value, dict):
        for x in value.values():
            yield from tensors_in(x)
    elif isinstance(value, (tuple, list)):
        for x in value:
            yield from tensors_in(x)
