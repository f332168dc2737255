"""ZeRO: data-parallel training in which each rank keeps a part of the optimizer's states and of the gradients."""

import collections
import contextlib
import math

from .. import nn
from ..autograd import is_grad_enabled, no_grad
from ..dispatch import copy_into, empty, empty_beside, refuse_recording
from ..dtype import float64
from ..nn.utils import clip_grads_with_norm_, get_total_norm
from . import collectives as c
from .ddp import MB, DistributedDataParallel
from .flat import Places, Shard, padded, runs
from .fsdp import fully_shard, summon_full_params
from .group import world_group
from .units import units_of

_UNDERWAY = 2  # buckets that are reduced while backward fills another: what ZeRO needs beside its shards


class Bucket(Places):
    """Parameters of one dtype that lie together, [total]; rank r owns the elements [starts[r], starts[r + 1]).

    Rank r's shard of a parameter are the elements that both have; they are the same memory.
    """

    def __init__(self, module, runs, group):
        super().__init__(runs, group)
        self.flat = empty_beside(self.parameters[0], (self.total,)).zero_()
        for i, p in enumerate(self.parameters):
            view = self.view(self.flat, i)
            copy_into(view, p.detach())
            p.become(view)
        self.show_packs(module, self.flat)
        self.number = {id(p): i for i, p in enumerate(self.parameters)}
        self.mine = self.parts(self.flat)[group.rank]
        self.shards = [Shard(self.own(self.mine, i)) for i in range(len(self.parameters))]
        for shard, p in zip(self.shards, self.parameters):
            shard.divided = getattr(p, "sharded", False)

    def gather(self):
        """Get the elements that others own."""
        return c.all_gather(self.parts(self.flat), self.mine, self.group, async_op=True)

    def give(self, back=False):
        """Bring parameters that their module has moved (a pack was made anew) up to date, or `back` those here."""
        for i, p in enumerate(self.parameters):
            view = self.view(self.flat, i)
            if p.address != view.address:
                copy_into(view, p.detach()) if back else copy_into(p, view)

    def has(self, p):
        """Whether the gradient of a parameter has come."""
        return self.number[id(p)] in self.taken

    def complete(self):
        """Whether all have."""
        return len(self.taken) == len(self.parameters)


class ShardingReducer:
    """The buckets of a list of parameters, in the order of backward, and hooks on these."""

    def __init__(self, module, parameters, group, most_bytes):
        self.parameters, self.group, self.buckets = parameters, group, []
        open_ones = {}
        for run in runs(module, parameters)[::-1]:
            kind = run[0].dtype, run[0].device
            members = open_ones.setdefault(kind, [])
            members.append(run)
            count = sum(padded(sum(p.numel() for p in one), one[0].dtype) for one in members)
            if count * kind[0].itemsize >= most_bytes:
                self.buckets.append(Bucket(module, open_ones.pop(kind), group))
        self.buckets += [Bucket(module, members, group) for members in open_ones.values()]
        self.of = {key: bucket for bucket in self.buckets for key in bucket.number}
        self.active, self.underway, self.next = False, collections.deque(), 0
        self.handles = [p.register_post_accumulate_grad_hook(self.arrived) for p in parameters]

    def shard(self, p):
        """This rank's shard of a parameter."""
        bucket = self.of[id(p)]
        return bucket.shards[bucket.number[id(p)]]

    def extent(self, p):
        """Which elements of a parameter, [first, stop), its shard on this rank holds."""
        bucket = self.of[id(p)]
        return bucket.extent(bucket.number[id(p)])

    def rebuild(self):
        """The order stays: shards are cut by it."""

    def prepare(self, _):
        """A pass begins."""
        late = [i for i, p in enumerate(self.parameters) if self.active and not self.of[id(p)].has(p)]
        incomplete = self.active and 0 < len(late) < len(self.parameters)
        while self.underway:
            self.underway.popleft().collect()
        for bucket in self.buckets:
            bucket.forget()
        self.active, self.next = not incomplete, 0
        if incomplete:
            raise RuntimeError(
                f"{len(late)} parameters got no gradient in the last backward pass (numbers {late[:8]} of "
                "`module.parameters()`), so others were not averaged: let every parameter take part in the loss, or "
                "set `requires_grad` of those to False before they are sharded"
            )

    def arrived(self, p):
        """The hook: a gradient is complete."""
        if not self.active:
            return
        bucket = self.of[id(p)]
        bucket.take(bucket.number[id(p)])
        while self.next < len(self.buckets) and self.buckets[self.next].complete():
            self.buckets[self.next].send()
            self.underway.append(self.buckets[self.next])
            self.next += 1
            while len(self.underway) > _UNDERWAY:
                self.underway.popleft().collect()
        if self.next == len(self.buckets):
            self.active = False
            while self.underway:
                self.underway.popleft().collect()

    def average(self):
        """Average whole gradients that backward has left; what no batch has reached counts as 0."""
        for bucket in self.buckets:
            for i, p in enumerate(bucket.parameters):
                if p.gradient is None:
                    p.gradient = empty_beside(p, p.shape_).zero_()
                bucket.take(i)
            bucket.send()
        for bucket in self.buckets:
            bucket.collect()

    def versions(self):
        """How often the shards were written to: a change is alike on all ranks, as all have a shard of everything."""
        return [bucket.flat.storage.version for bucket in self.buckets]

    def gather(self):
        """Make all parameters whole."""
        for work in [bucket.gather() for bucket in self.buckets]:
            work.wait()
        for bucket in self.buckets:
            bucket.give()


class ZeroDataParallel(DistributedDataParallel):
    """`module`, trained as by `DistributedDataParallel`, states, gradients and parameters divided among the ranks.

    ZeRO (Rajbhandari et al., arXiv 1910.02054). `parameters()` are this rank's shards, 1-d tensors under the names of
    `module`'s parameters, and an elementwise optimizer of them (AdamW, SGD, Lion, ...) keeps states for these alone;
    the next pass collects what others have updated. `stage` 1: within `no_sync()` each rank has whole gradients.
    `stage` 2: every pass averages its gradients and keeps this rank's part alone, in `no_sync()` too. Gradients travel
    in buckets of `bucket_mb` MB while backward goes on, and leave the parameters of `module` (whose `grad` is None) for
    the shards. `stage` 3: the parameters of `module` are the shards, and whole only while their block computes: the
    members of its lists and sequences of modules are units of `fully_shard`, and so is all else together. With P bytes
    of parameters and optimizer states of K bytes, a rank of N keeps 2 P + K / N (stage 1, while it accumulates),
    P + (P + K) / N and up to four buckets (stage 2), or (2 P + K) / N and up to five units (stage 3).
    """

    def __new__(cls, module, group=None, *, stage=2, **_):
        return super().__new__(FullyShardedDataParallel if stage == 3 else cls)

    def __init__(self, module, group=None, *, stage=2, bucket_mb=25, broadcast_buffers=True):
        if stage not in (1, 2):
            raise ValueError(
                f"`stage` must be 1 (optimizer states), 2 (gradients too) or 3 (parameters too), got {stage!r}"
            )
        self._bucket_bytes = bucket_mb * MB
        super().__init__(module, group, bucket_mb=bucket_mb, broadcast_buffers=broadcast_buffers)
        self.stage, self._seen = stage, self.reducer.versions()

    def _reducer(self, parameters, *_):
        return ShardingReducer(self.module, parameters, self.group, self._bucket_bytes)

    def named_parameters(self, prefix="", recurse=True, remove_duplicate=True):
        """(dotted name in `module`, shard) of every parameter that requires a gradient."""
        names = {id(p): name for name, p in reversed(list(self.module.named_parameters()))}
        for p in self.reducer.parameters if recurse else ():
            yield (f"{prefix}.{names[id(p)]}" if prefix else names[id(p)]), self.reducer.shard(p)

    def gather(self):
        """Collect what other ranks have updated: `module` is whole then. A pass does it, where a step was taken."""
        if self.reducer.versions() != self._seen:
            self.reducer.gather()
            self._seen = self.reducer.versions()
        return self.module

    def state_dict(self, *args, **kwargs):
        """That of `module`, whole: every rank calls it."""
        return self.gather().state_dict(*args, **kwargs)

    def load_state_dict(self, state_dict, strict=True, assign=False):
        """Load a whole state dict of `module`, the same on every rank."""
        if assign:
            raise ValueError("`assign` must be False: the shards are parts of the parameters' memory")
        found = self.module.load_state_dict(state_dict, strict)
        for bucket in self.reducer.buckets:
            bucket.give(back=True)
        self._seen = self.reducer.versions()
        return found

    def _apply(self, fn):
        raise RuntimeError("a module must have its dtype and device before it is sharded: call `to` on it first")

    def _pass(self, function, args, kwargs):
        refuse_recording("a pass of `ZeroDataParallel`", "gradients move between tensors; do not record it")
        self.gather()
        return super()._pass(function, args, kwargs)

    def no_sync(self):
        """In stage 1, passes within it add to this rank's own, whole gradients; in stage 2 it changes nothing."""
        return super().no_sync() if self.stage == 1 else contextlib.nullcontext()

    def join(self):
        """Not here: ranks must have the same number of batches."""
        raise NotImplementedError("`join` needs whole gradients: use DistributedDataParallel, or batches for all ranks")

    def clip_grad_norm_(self, max_norm, norm_type=2.0, error_if_nonfinite=False):
        """Scale the gradients of all ranks' shards so that their norm together is at most `max_norm`.

        Returns the norm before, a 0-dim tensor of float64, the same on every rank; as `nn.utils.clip_grad_norm_` of
        the whole gradients, also where `parallelize` divided layers.
        """
        if not norm_type > 0:
            raise ValueError(f"`norm_type` must be above 0, got {norm_type!r}")
        shards = [shard for shard in self.parameters() if shard.gradient is not None]
        infinite, totals = math.isinf(norm_type), empty((2,), float64)
        for place, divided in enumerate((True, False)):
            filled = [shard.gradient for shard in shards if shard.numel() and shard.divided is divided]
            norm = float(get_total_norm(filled, norm_type)) if filled else 0.0
            totals[place] = norm if infinite else norm**norm_type
        groups = {layer.group for layer in self.module.modules() if getattr(layer, "shares", None)}  # of `mesh.tp`
        c.all_reduce(totals, "max" if infinite else "sum", self.group)
        for group in groups:
            c.all_reduce(totals[:1], "max" if infinite else "sum", group)
        total = totals.max() if infinite else totals.sum() ** (1.0 / norm_type)
        if error_if_nonfinite and not math.isfinite(total.item()):
            raise ValueError(
                f"the norm of order {norm_type} of the gradients is {total.item()}, so they cannot be clipped: look "
                "for the overflow, or set `error_if_nonfinite` to False"
            )
        clip_grads_with_norm_(shards, max_norm, total)
        return total


class FullyShardedDataParallel(ZeroDataParallel):
    """`ZeroDataParallel` of stage 3: `fully_shard` of the blocks of a module, and of the module."""

    def __init__(self, module, group=None, *, stage=3, bucket_mb=25, broadcast_buffers=True):
        nn.Module.__init__(self)
        if not isinstance(module, nn.Module):
            raise TypeError(f"`module` must be a Module, got {type(module).__name__}")
        self.module, self.group, self.stage = module, world_group(group), stage
        self.broadcast_buffers = broadcast_buffers
        if not units_of(module):
            self._check_alike()
            for block in blocks_of(module):
                fully_shard(block, mesh=self.group)
            fully_shard(module, mesh=self.group)

    def named_parameters(self, prefix="", recurse=True, remove_duplicate=True):
        """(dotted name in `module`, shard) of every parameter that requires a gradient."""
        for name, p in self.module.named_parameters(prefix, True, remove_duplicate) if recurse else ():
            if p.requires_grad:
                yield name, p

    def gather(self):
        """Make `module` whole until its next pass."""
        for unit in units_of(self.module):
            unit.gather()
        return self.module

    def state_dict(self, *args, **kwargs):
        """That of `module`, whole: every rank calls it."""
        with summon_full_params(self.module, writeback=False), no_grad():
            return {name: x.clone() for name, x in self.module.state_dict(*args, **kwargs).items()}

    def load_state_dict(self, state_dict, strict=True, assign=False):
        """Load a whole state dict of `module`, the same on every rank."""
        if assign:
            raise ValueError("`assign` must be False: the shards are parts of the parameters' memory")
        with summon_full_params(self.module):
            return self.module.load_state_dict(state_dict, strict)

    def _pass(self, function, args, kwargs):
        if self.broadcast_buffers and is_grad_enabled():
            self._give(0, parameters=False)
        return function(*args, **kwargs)


def blocks_of(module):
    """Modules that repeat: members of the outermost lists and sequences of several, unless they share parameters."""
    found, stack = [], [module]
    while stack:
        own = stack.pop()
        members = [m for m in own.children() if any(True for _ in m.parameters())]
        if isinstance(own, (nn.ModuleList, nn.Sequential)) and len(members) > 1:
            found += members
        else:
            stack += members[::-1]
    users = collections.Counter(id(p) for m in module.modules() for p in m.parameters(recurse=False))
    return [m for m in dict.fromkeys(found) if all(users[id(p)] == 1 for p in m.parameters())]
