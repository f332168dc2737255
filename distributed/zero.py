"""ZeRO: data-parallel training in which each rank keeps a part of the optimizer's states and of the gradients."""

import collections
import contextlib
import itertools
import math

from .. import nn
from ..autograd import no_grad
from ..dispatch import copy_into, empty, refuse_recording
from ..dtype import float64
from ..nn.utils import clip_grads_with_norm_, get_total_norm
from . import collectives as c
from .ddp import MB, DistributedDataParallel
from .reducer import padded

_UNDERWAY = 2  # buckets that are reduced while backward fills another: what ZeRO needs beside its shards


class Shard(nn.Parameter):
    """What a rank owns of a parameter: some of its elements one after the other, [n], none perhaps."""

    sharded = True


class Bucket:
    """Parameters of one dtype that lie together, [total]; rank r owns the elements [starts[r], starts[r + 1]).

    Rank r's shard of a parameter are the elements that both have; they are the same memory.
    """

    def __init__(self, parameters, group):
        self.group, self.dtype = group, parameters[0].dtype
        ends = list(itertools.accumulate(padded(p) for p in parameters))
        self.total, begins = ends[-1], [0, *ends[:-1]]
        self.starts = group.starts(self.total, self.dtype.itemsize)
        self.flat = empty((self.total,), self.dtype).zero_()
        first, last = self.starts[group.rank], self.starts[group.rank + 1]
        self.places, self.shards, self.bounds, self.views = {}, [], [], []
        for i, (p, at) in enumerate(zip(parameters, begins)):
            view = self.flat[at : at + p.numel()].view(p.shape)
            copy_into(view, p.detach())
            p.become(view)
            self.views.append((p, view))
            low = min(max(first, at), at + p.numel())
            high = max(min(last, at + p.numel()), low)
            self.places[id(p)] = i, at, p.shape
            self.bounds.append((low - first, high - first))
            self.shards.append(Shard(self.flat[low:high]))
        self.reset()

    def reset(self):
        """No gradient has come yet."""
        self.missing, self.gradients, self.work = set(self.places), None, None

    def parts(self, flat):
        """What belongs to each rank."""
        return [flat[a:b] for a, b in itertools.pairwise(self.starts)]

    def gather(self):
        """Get the elements that others own."""
        parts = self.parts(self.flat)
        return c.all_gather(parts, parts[self.group.rank], self.group, async_op=True)

    def give(self, back=False):
        """Bring parameters that their module has moved (`PackedLinear` does) up to date, or `back` those here."""
        for p, view in self.views:
            if p.address != view.address:
                copy_into(view, p.detach()) if back else copy_into(p, view)

    def take(self, p):
        """A parameter's gradient is complete: it moves here."""
        if self.gradients is None:
            self.gradients = empty((self.total,), self.dtype).zero_()
        _, at, shape = self.places[id(p)]
        copy_into(self.gradients[at : at + p.numel()].view(shape), p.gradient)
        p.gradient = None
        self.missing.discard(id(p))

    def send(self):
        """Start averaging; each rank gets its part."""
        parts = self.parts(self.gradients)
        mine = empty(parts[self.group.rank].shape_, self.dtype)
        self.work = c.reduce_scatter(mine, parts, "avg", self.group, async_op=True)

    def collect(self):
        """Wait for the averages and add them to the gradients of the shards."""
        mine = self.work.wait()
        self.reset()
        for shard, (low, high) in zip(self.shards, self.bounds):
            if shard.gradient is None:
                shard.gradient = mine[low:high]
            else:
                shard.gradient.add_(mine[low:high])


class ShardingReducer:
    """The buckets of a list of parameters, in the order of backward, and hooks on these."""

    def __init__(self, parameters, group, most_bytes):
        self.parameters, self.group, self.buckets = parameters, group, []
        open_ones = {}
        for p in reversed(parameters):
            members = open_ones.setdefault(p.dtype, [])
            members.append(p)
            if sum(map(padded, members)) * p.dtype.itemsize >= most_bytes:
                self.buckets.append(Bucket(open_ones.pop(p.dtype), group))
        self.buckets += [Bucket(members, group) for members in open_ones.values()]
        self.of = {key: bucket for bucket in self.buckets for key in bucket.places}
        self.active, self.underway, self.next = False, collections.deque(), 0
        self.handles = [p.register_post_accumulate_grad_hook(self.arrived) for p in parameters]

    def shard(self, p):
        """This rank's shard of a parameter."""
        bucket = self.of[id(p)]
        return bucket.shards[bucket.places[id(p)][0]]

    def extent(self, p):
        """Which elements of a parameter, [first, stop), its shard on this rank holds."""
        bucket = self.of[id(p)]
        number, at, _ = bucket.places[id(p)]
        first, stop = (bucket.starts[bucket.group.rank] + n - at for n in bucket.bounds[number])
        return first, stop

    def rebuild(self):
        """The order stays: shards are cut by it."""

    def prepare(self, _):
        """A pass begins."""
        late = [i for i, p in enumerate(self.parameters) if self.active and id(p) in self.of[id(p)].missing]
        incomplete = self.active and 0 < len(late) < len(self.parameters)
        while self.underway:
            self.underway.popleft().collect()
        for bucket in self.buckets:
            bucket.reset()
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
        self.of[id(p)].take(p)
        while self.next < len(self.buckets) and not self.buckets[self.next].missing:
            self.buckets[self.next].send()
            self.underway.append(self.buckets[self.next])
            self.next += 1
            while len(self.underway) > _UNDERWAY:
                self.underway.popleft().collect()
        if self.next == len(self.buckets):
            self.active = False
            while self.underway:
                self.underway.popleft().collect()

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
    """`module`, trained as by `DistributedDataParallel`, states (and gradients) divided among the ranks.

    ZeRO (Rajbhandari et al., arXiv 1910.02054). `parameters()` are this rank's shards, 1-d tensors under the names of
    `module`'s parameters, and an elementwise optimizer of them (AdamW, SGD, Lion, ...) keeps states for these alone;
    the next pass collects what others have updated. `stage` 1: within `no_sync()` each rank has whole gradients.
    `stage` 2: every pass averages its gradients and keeps this rank's part alone, in `no_sync()` too. Gradients travel
    in buckets of `bucket_mb` MB while backward goes on, and leave the parameters of `module` (whose `grad` is None) for
    the shards. With P bytes of parameters and optimizer states of K bytes, a rank of N keeps 2 P + K / N (stage 1,
    while it accumulates) or P + (P + K) / N and up to four buckets. Layers that lay their weights out anew (those of
    the Llama family, packed) have them a second time.
    """

    def __init__(self, module, group=None, *, stage=2, bucket_mb=25, broadcast_buffers=True):
        if stage not in (1, 2):
            raise ValueError(f"`stage` must be 1 (optimizer states) or 2 (gradients too), got {stage!r}")
        self._bucket_bytes = bucket_mb * MB
        super().__init__(module, group, bucket_mb=bucket_mb, broadcast_buffers=broadcast_buffers)
        self.stage, self._seen = stage, self.reducer.versions()

    def _reducer(self, parameters, *_):
        return ShardingReducer(parameters, self.group, self._bucket_bytes)

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
        the whole gradients.
        """
        if not norm_type > 0:
            raise ValueError(f"`norm_type` must be above 0, got {norm_type!r}")
        shards = [shard for shard in self.parameters() if shard.gradient is not None]
        filled = [shard.gradient for shard in shards if shard.numel()]
        total = empty((), float64).fill_(float(get_total_norm(filled, norm_type)) if filled else 0.0)
        if math.isinf(norm_type):
            c.all_reduce(total, "max", self.group)
        else:
            with no_grad():
                total.copy_(c.all_reduce(total**norm_type, "sum", self.group) ** (1.0 / norm_type))
        if error_if_nonfinite and not math.isfinite(total.item()):
            raise ValueError(
                f"the norm of order {norm_type} of the gradients is {total.item()}, so they cannot be clipped: look "
                "for the overflow, or set `error_if_nonfinite` to False"
            )
        clip_grads_with_norm_(shards, max_norm, total)
        return total
