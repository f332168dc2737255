"""Gradients of a model averaged over ranks while backward still computes others: buckets, in the order of backward."""

from ..core import launch as core_launch
from ..core import node
from ..dispatch import copy_into, empty, empty_beside
from ..dtype import uint8
from . import collectives as c
from .objects import broadcast_object
from .work import done

_ALIGN = 64  # bytes between the beginnings of gradients


class Bucket:
    """Gradients of one dtype and device that travel together: a part of the flat memory, and each one's place in it."""

    def __init__(self, flat, members, views):
        self.flat, self.members, self.views = flat, members, views
        self.reset()

    def reset(self):
        """Nothing has come yet."""
        self.missing, self.work, self.small = set(self.members), None, None


class Reducer:
    """The buckets of a list of parameters, and hooks on these.

    The memory of all gradients of a dtype and device is allocated once, where all ranks of a node reach it (on GPUs:
    anywhere); cutting it into other buckets allocates nothing.
    """

    def __init__(self, parameters, group, first_bytes, most_bytes, compression):
        self.parameters, self.group, self.compression = parameters, group, compression
        self.limits = first_bytes, most_bytes
        self.place = {id(p): i for i, p in enumerate(parameters)}
        self.memory, self.order, self.used = {}, [], set()
        self.active, self.started, self.rebuilt, self.expects = False, False, False, False
        for kind in dict.fromkeys((p.dtype, p.device) for p in parameters):
            total = sum(padded(p) for p in parameters if (p.dtype, p.device) == kind)
            self.memory[kind] = group.empty((total,), *kind)
        self.buckets, self.at = [], {}
        self.cut(list(range(len(parameters)))[::-1])
        self.handles = [p.register_post_accumulate_grad_hook(self._hook()) for p in parameters]

    def _hook(self):
        def hook(parameter):
            self.arrived(parameter)

        hook.replays = True  # it only launches while it is recorded
        return hook

    def cut(self, order):
        """Make buckets of parameters (their numbers) in this order: a small first one, so that sending begins early."""
        held = {i: self.parameters[i].gradient for i in self.at if self._is_view(i)}
        for i, gradient in held.items():  # what was accumulated stays
            self.parameters[i].gradient = gradient.clone()
        open_ones, used, self.buckets, self.at = {}, dict.fromkeys(self.memory, 0), [], {}
        for i in order:
            p = self.parameters[i]
            kind = p.dtype, p.device
            members = open_ones.setdefault(kind, [])
            members.append(i)
            limit = self.limits[0] if not self.buckets else self.limits[1]
            if sum(padded(self.parameters[j]) for j in members) * p.dtype.itemsize >= limit:
                self._close(open_ones.pop(kind), used)
        for members in open_ones.values():
            self._close(members, used)

    def _close(self, members, used):
        first, views = self.parameters[members[0]], {}
        kind = first.dtype, first.device
        start = at = used[kind]
        for i in members:
            p = self.parameters[i]
            views[i] = p._hooks().place = self.memory[kind][at : at + p.numel()].view(p.shape)
            at += padded(p)
        used[kind] = at
        bucket = Bucket(self.memory[kind][start:at], members, views)
        bucket.flat.zero_()  # the gaps between gradients count for nothing, but must be numbers
        self.buckets.append(bucket)
        self.at |= dict.fromkeys(members, bucket)

    def _is_view(self, i):
        gradient = self.parameters[i].gradient
        return gradient is not None and gradient.address == self.at[i].views[i].address

    # ---- a backward pass ----

    def prepare(self, unused):
        """A pass begins; `unused` are the numbers of parameters that will get no gradient, None: not known."""
        if self.active and self.started:
            missing = [i for i in range(len(self.parameters)) if i not in self.used]
            self.finish_early()
            raise RuntimeError(
                f"{len(missing)} parameters got no gradient in the last backward pass (numbers {missing[:8]} of "
                "`parameters()`), so others were not averaged: give `find_unused_parameters=True`, or let every "
                "parameter take part in the loss"
            )
        self.finish_early()
        for bucket in self.buckets:
            bucket.reset()
        self.started = False
        self.next, self.active, self.used, self.expects = 0, True, set(), unused is not None
        self.touched = set(range(len(self.parameters))) - set(unused or ())
        for i in unused or ():
            self.ready(i)

    def finish_early(self):
        """Forget a pass that did not end."""
        for bucket in self.buckets:
            if bucket.work is not None:
                bucket.work.wait()
        self.active = False

    def arrived(self, parameter):
        """The hook: a gradient is complete."""
        if self.active:
            self.started = True
            i = self.place[id(parameter)]
            if not self.rebuilt:
                self.order.append(i)
            self.ready(i)

    def ready(self, i):
        """Put a gradient (or a zero) into its bucket; send buckets that are full, in their order."""
        bucket, p = self.at[i], self.parameters[i]
        self.used.add(i)
        if i not in bucket.missing:
            self.active = False
            raise RuntimeError(
                f"parameter {i} of `parameters()` got a second gradient in one pass: call the model once for each "
                "backward pass, and the first ones within `no_sync()`"
            )
        if p.gradient is None:
            bucket.views[i].zero_()
        elif not self._is_view(i):
            copy_into(bucket.views[i], p.gradient)
            if _is_new(p):
                p.gradient = bucket.views[i]
        bucket.missing.discard(i)
        while self.next < len(self.buckets) and not self.buckets[self.next].missing:
            self.send(self.buckets[self.next])
            self.next += 1
        if self.next == len(self.buckets):
            self.finish()

    def send(self, bucket):
        """Start averaging a bucket; the last one of a graph, beside which nothing is computed, at once."""
        beside = bucket is not self.buckets[-1] or core_launch.recording() is None
        if self.compression is None or bucket.flat.dtype.itemsize <= 2:
            work = c.all_reduce(bucket.flat, "avg", self.group, async_op=beside)
        else:
            bucket.small = empty_beside(bucket.flat, bucket.flat.shape_, self.compression)
            bucket.small.copy_(bucket.flat)
            work = c.all_reduce(bucket.small, "avg", self.group, async_op=beside)
        bucket.work = work if beside else done(None)

    def finish(self):
        """Wait for all buckets; gradients are averages from here on."""
        self.active = False
        taken = self._taken() if self.expects else None
        for bucket in self.buckets:
            bucket.work.wait()
            if bucket.small is not None:
                bucket.flat.copy_(bucket.small)
                bucket.small = None
            for i in bucket.members:
                p = self.parameters[i]
                if taken is not None and not taken[i] and p.gradient is None:
                    continue  # no rank used it
                if _is_new(p):
                    p.gradient = bucket.views[i]
                elif p.gradient is not None and not self._is_view(i):
                    copy_into(p.gradient, bucket.views[i])

    def _taken(self):
        """Which parameters any rank used."""
        flags = empty((len(self.parameters),), uint8).zero_()
        host = flags.numpy()
        host[list(self.touched)] = 1
        c.all_reduce(flags, "max", self.group, async_op=True).wait()
        return host.copy()

    def shadow(self):
        """Take part in the averages of ranks that still have data, with nothing to add."""
        for bucket in self.buckets:
            bucket.flat.zero_()
            self.send(bucket)
        if self.expects:
            self.touched = set()
            self._taken()
        for bucket in self.buckets:
            bucket.work.wait()
            bucket.reset()

    def rebuild(self):
        """After the first pass: buckets in the order in which gradients came, the first rank's for all."""
        if self.rebuilt or not self.order or self.active:
            return
        seen = list(dict.fromkeys(self.order))
        seen += [i for i in range(len(self.parameters)) if i not in set(seen)]
        self.rebuilt = True
        self.cut(broadcast_object(seen, 0, self.group))


def _is_new(p):
    """Whether a parameter may get other memory for its gradient: in a recorded pass if it had none before."""
    notes = node.state.notes
    noted = notes is not None and notes.leaves.get(id(p))
    return core_launch.recording() is None or bool(noted and noted[1] is None)


def padded(p):
    """Elements of a parameter's place in a bucket: whole cache lines."""
    step = _ALIGN // p.dtype.itemsize
    return -(-max(p.numel(), 1) // step) * step
