"""Units of a model whose parameters are divided among ranks, and when each of them is whole: see `fsdp`."""

import collections
import itertools

from .. import nn
from ..autograd import is_grad_enabled
from ..core import node
from ..dispatch import copy_into, empty_beside, refuse_recording
from ..nn import init
from . import collectives as c
from .ddp import tensors_in
from .flat import Places, Shard, room, runs

_UNDERWAY = 1  # units whose gradients are reduced while backward makes those of the next one


def units_of(module):
    """The units of a module and of those below it, in their order."""
    return [m.__dict__["fsdp_unit"] for m in module.modules() if "fsdp_unit" in m.__dict__]


def passing(module, function, *args, **kwargs):
    """What a function computes with the parameters of a module: whole meanwhile, if `fully_shard` divided it."""
    unit = module.__dict__.get("fsdp_unit")
    if unit is None:
        return function(*args, **kwargs)
    unit.before(module)
    result = None
    try:
        result = function(*args, **kwargs)
    finally:
        unit.after(result)
    return result


def computing(p):
    """The parameter that computes, and gets gradients, for one of which `fully_shard` may have made a shard."""
    home = getattr(p, "home", None)
    return p if home is None else home[0].parameters[home[1]]


class Flat(Places):
    """Parameters of one dtype of a unit: those that compute, on a `Room`, and this rank's elements, `mine`.

    The parameters as they were become the shards, so that who holds them (an optimizer) has these; what computes are
    new ones, `wholes`.
    """

    def __init__(self, runs, group):
        super().__init__(runs, group)
        self.shards, self.room = self.parameters, room(self.total, self.parameters[0])
        self.mine = empty_beside(self.shards[0], (self.starts[group.rank + 1] - self.starts[group.rank],))
        self._take_values()
        self.parameters = [self._divide(i, p) for i, p in enumerate(self.shards)]
        self.version = -1

    def _take_values(self):
        """The values of rank 0, except those that are still to be set."""
        here, group = [not init.is_deferred(p) for p in self.shards], self.group
        if not any(here):
            return
        if group.rank == 0:
            self.room.hold()
            for i, p in enumerate(self.shards):
                if here[i]:
                    copy_into(self.view(self.room.inner, i), p.detach())
        c.scatter(self.mine, self.parts(self.room.inner) if group.rank == 0 else None, 0, group)
        self.room.release()

    def _divide(self, i, p):
        """Make a shard of a parameter; returns the one that computes."""
        whole = nn.Parameter(self.view(self.room.seen, i), p.requires_grad)
        for name in p.__dict__.keys() - whole.__dict__.keys():  # marks; in uncompiled life layouts lie there too
            setattr(whole, name, p.__dict__[name])
        whole.hooks, p.hooks = p.hooks, None  # of gradients: those come to this one
        whole.deferred, p.divided = None, getattr(p, "sharded", False)
        p.__dict__.pop("sharded", None)  # each shard is
        p.gradient = whole.gradient = None
        p.become(self.own(self.mine, i))
        p.__class__ = Shard
        p.home = self, i
        return whole

    def gather(self):
        """Start to get the elements that others own."""
        self.room.hold()
        if self.stale():
            self.version = self.mine.storage.version
            self.room.seen.storage.version += 1  # a graph that saved other values is told
        return c.all_gather(self.parts(self.room.inner), self.mine, self.group, async_op=True)

    def stale(self):
        """Whether shards have been written to since they were gathered."""
        return self.version != self.mine.storage.version

    def write_back(self):
        """What was written to whole parameters, into the shards."""
        copy_into(self.mine, self.parts(self.room.inner)[self.group.rank])
        self.version = self.mine.storage.version


class Unit:
    """The parameters of a module that are gathered together: all below it, except those of units below it."""

    def __init__(self, module, group, reshard_after_forward):
        self.group, self.reshard_after_forward = group, reshard_after_forward
        self.schedule, self.works, self.sync, self.pinned = None, None, True, 0
        self.whole, self.backward, self.depth, self.began = False, False, 0, 0
        self.places = _places(module)
        parameters = list({id(p): p for _, _, p in self.places}.values())
        by_kind = {}
        for run in runs(module, parameters):
            by_kind.setdefault((run[0].dtype, run[0].requires_grad), []).append(run)
        self.flats = [Flat(found, group) for found in by_kind.values()]
        self._swap(True)
        for flat in self.flats:
            flat.show_packs(module, flat.room.seen)
        self._swap(False)
        for flat in self.flats:
            for i, p in enumerate(flat.parameters):
                if p.requires_grad:
                    p.register_post_accumulate_grad_hook(self._hook(flat, i))

    def _hook(self, flat, i):
        def arrived(_):
            if not self.backward:
                raise RuntimeError(
                    f"the parameter of shape {flat.shapes[i]} got a gradient when its unit was not whole: what a "
                    "module of `fully_shard` computes must leave it as a result"
                )
            if self.sync:
                flat.take(i)

        return arrived

    def _swap(self, whole):
        """Which parameters the modules have: those that compute, or the shards."""
        for module, name, p in self.places:
            flat, i = p.home
            module._parameters[name] = (flat.parameters if whole else flat.shards)[i]

    def start(self):
        """Begin to gather."""
        if not self.whole and self.works is None:
            self.works = [flat.gather() for flat in self.flats]

    def gather(self):
        """Make the parameters whole, as the shards are now."""
        self.whole = self.whole and not self._stale()
        if not self.whole:
            self.start()
            self._wait()
            if self._stale():  # it was begun before
                self.start()
                self._wait()
            self.whole = True
            self._swap(True)

    def _stale(self):
        return any(flat.stale() for flat in self.flats)

    def _wait(self):
        works, self.works = self.works or (), None
        for work in works:
            work.wait()

    def reshard(self):
        """Keep the shards alone."""
        if not self.pinned:
            self._wait()
            self._swap(False)
            self.whole = False
            for flat in self.flats:
                flat.room.release()

    def average(self):
        """Average what passes without synchronisation have left."""
        if self.schedule is not None:
            self.schedule.send(self)
            self.schedule.settle()

    # ---- a pass ----

    def before(self, module):
        """The module is about to run."""
        self.depth += 1
        if self.depth > 1 or self.pinned:
            return
        refuse_recording("a module of `fully_shard`", "its parameters come and go; do not record it")
        if self.schedule is None:
            schedule = Schedule(module)
            for unit in schedule.units:
                unit.schedule = unit.schedule or schedule
        self.schedule.enter(self)

    def after(self, result):
        """It has run (or failed: None)."""
        self.depth -= 1
        if self.depth or self.pinned:
            return
        if self.backward:  # activations computed again: backward needs the parameters next
            return
        grad = is_grad_enabled()
        if grad:
            self._watch(result)
        if self.reshard_after_forward or not grad:
            self.reshard()

    def _watch(self, result):
        """Have the parameters whole again when a gradient comes to the results."""
        schedule, order, began = self.schedule, self.schedule.order, self.began
        place = len(order) - 1 - order[::-1].index(self) if self in order else 0
        for made in {x.node for x in tensors_in(result) if x.tracked and x.node is not None}:
            if made.order >= began:  # not what was passed through
                made.register_prehook(lambda _, at=made.order: schedule.enter_backward(self, order, place, began, at))


class Schedule:
    """The units of a root module: who is whole when, and whose turn is next. All ranks do the same in one order."""

    def __init__(self, root):
        self.units = units_of(root)
        self.root, self.order, self.running = self.units[0], [], False
        self.following = dict(itertools.pairwise(self.units))
        self.underway = collections.deque()

    def enter(self, unit):
        """A unit is about to run forward."""
        if self.running and self.finish not in node.state.after:  # a backward pass that failed
            self.abandon()
        again = self.running  # a backward pass that computes activations again
        if unit is self.root and not again:
            if self.order:
                self.following = dict(itertools.pairwise(self.order))
            self.order = []
        unit.gather()
        if not again:
            unit.began = next(node._order)
            self.order.append(unit)
            if unit in self.following:
                self.following[unit].start()

    def enter_backward(self, unit, order, place, began, at):
        """A gradient has come to node `at` of a unit. Younger nodes have run: units that began after it are done."""
        if unit.backward:
            unit.began = min(unit.began, began)
            return
        if not self.running:
            self.running = True
            node.state.after.append(self.finish)
        done = [u for u in self.units if u.backward and u.began > at]
        for u in done:
            u.backward = False
            u.reshard()
        unit.gather()
        unit.backward, unit.began = True, began
        if place:
            order[place - 1].start()
        for u in done:
            self.send(u)

    def send(self, unit):
        """Average what a unit's gradients are."""
        for flat in unit.flats:
            for i, p in enumerate(flat.parameters):  # what passes without synchronisation have left
                if unit.sync and p.gradient is not None:
                    flat.take(i)
            if flat.taken:
                flat.send()
                self.underway.append(flat)
        while len(self.underway) > _UNDERWAY:
            self.underway.popleft().collect()

    def abandon(self):
        """Forget a backward pass that did not end."""
        self.running = False
        for work in [flat.work for flat in self.underway]:
            work.wait()
        self.underway.clear()
        for unit in self.units:
            unit.backward = False
            unit.reshard()
            for flat in unit.flats:
                flat.forget()

    def finish(self):
        """Backward has ended."""
        self.running = False
        for unit in self.units:
            unit.backward = False
            unit.reshard()
        for unit in self.units:
            self.send(unit)
        self.settle()

    def settle(self):
        """Wait for averages."""
        while self.underway:
            self.underway.popleft().collect()


def _places(module):
    """(module, name, parameter) of all that are in no unit yet, after checking them."""
    found, stack, seen = [], [("", module)], set()
    while stack:
        path, own = stack.pop()
        if own in seen or "fsdp_unit" in own.__dict__:
            continue
        seen.add(own)
        if getattr(own, "quantized", None) is not None:
            raise NotImplementedError(f"{path!r} is quantised: `fully_shard` divides parameters, which it has not")
        for name, p in own._parameters.items():
            if p is None:
                continue
            if isinstance(p, Shard):
                raise ValueError(
                    f"`module`: the parameter '{path + name}' is shared with another unit: call `fully_shard` on a "
                    "module that has all that share it, not on these"
                )
            if found and p.device is not found[0][2].device:
                raise ValueError(
                    f"`module` must lie on one device, got '{path + name}' on {p.device} and others on "
                    f"{found[0][2].device}: move it with `.to()` first"
                )
            found.append((own, name, p))
        stack += [(f"{path}{name}.", child) for name, child in reversed(own._modules.items()) if child is not None]
    if not found and not units_of(module):
        raise ValueError("`module` has no parameter that is in no unit yet: there is nothing to divide")
    return found
