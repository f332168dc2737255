"""Models whose parameters get their values when ranks have divided them: no rank ever holds a whole one."""

import itertools

from ..autograd import no_grad
from ..core import launch as core_launch
from ..dispatch import empty
from ..nn import init
from ..random import get_rng_state, set_rng_state
from . import collectives as c
from .flat import Shard
from .objects import broadcast_object


def deferred_init(function, *args, **kwargs):
    """`function(*args, **kwargs)`, a function that makes a module, whose parameters have no values and memory yet.

    As torchdistx.deferred_init. They get them in `fully_shard` (of the root), where rank 0 makes one parameter after
    the other and gives each rank its part (of `from_pretrained`, each rank reads its own), or in `materialize_module`:
    the numbers that the default generator would have given at once, if nothing is drawn in between. Until then, to call
    the module is an error. What waits is `nn.init`, and the files of Hugging Face folders; parameters that are made
    from tensors have their values. Whatever else `function` writes to the others is lost.
    """
    with init.deferred() as log:
        module = function(*args, **kwargs)
    module.__dict__["deferred"] = log
    log.guards = [m.register_forward_pre_hook(_refuse) for m in (module, *module.children())]
    return module


def _refuse(*_):
    raise RuntimeError("the module is of `deferred_init`: call `fully_shard` or `materialize_module` on it first")


def _logs(module):
    """What waits of a module, or of modules below that `deferred_init` made; from now on it waits no more."""
    for made in list(module.modules()):
        log = made.__dict__.pop("deferred", None)
        if log is not None:
            for guard in log.guards:
                guard.remove()
            yield log
            for p, _, _ in log.entries:
                p.deferred = None


@no_grad()
def materialize_module(module):
    """Give the parameters of a module of `deferred_init` their values, in this process; returns it."""
    for log in _logs(module):
        for p, part, fill in log.entries:
            fill(_part(p, part))
    return module


def _waiting(module):
    return [m.__dict__["deferred"] for m in module.modules() if "deferred" in m.__dict__]


def put_parts_off(module, parts, rank):
    """Parameters were replaced by parts, {id: (parameter, part, `Share` or None)}: those of `rank` wait from now on.

    A rank makes the whole of one at a time, and keeps its part.
    """
    for log in _waiting(module):
        entries = []
        for key, found in itertools.groupby(log.entries, key=lambda entry: id(entry[0])):
            found = list(found)
            if key in parts:
                p, own, share = parts[key]
                layout = 0, tuple(own.shape), tuple(own.stride())
                found = [(own, layout, _whole_first((tuple(p.shape), p.dtype), found, share, rank))]
                p.deferred, own.deferred = None, log
            entries += found
        log.entries = entries


def _whole_first(like, entries, share, rank):
    def fill(part):
        whole = empty(*like)
        for _, place, fill in entries:
            fill(_part(whole, place))
        if share is None:
            part.copy_(whole)
        else:
            share.take(part, whole, rank)

    return fill


@no_grad()
def materialize_kept(module, group):
    """`materialize_module` on ranks that have each dropped a part: numbers are drawn for all, as by rank 0."""
    if _waiting(module):
        set_rng_state(broadcast_object(get_rng_state(), 0, group))
    kept = {id(p) for p in module.parameters()}
    for log in _logs(module):
        for p, part, fill in log.entries:
            if id(p) in kept:
                fill(_part(p, part))
            elif not getattr(fill, "by_rows", False):
                fill(_part(empty(tuple(p.shape), p.dtype), part))


def _part(p, part):
    offset, shape, strides = part
    return core_launch.view_tensor(p, shape, strides, offset)


def fill_shards(module):
    """The same of a module whose parameters are shards: no rank holds more than one whole parameter."""
    for log in _logs(module):
        for _, found in itertools.groupby(log.entries, key=lambda entry: id(entry[0])):
            entries = list(found)
            if isinstance(entries[0][0], Shard):
                _fill(entries[0][0], entries)
            else:  # replaced since (a head that was tied): drawn all the same, for what follows
                for p, part, fill in entries:
                    fill(_part(p, part))


def _fill(p, entries):
    """One parameter: rank 0 makes it whole, where it computes, and gives each rank its part.

    From a file each rank reads the rows that it needs, if they lie there as they are wanted.
    """
    flat, i = p.home
    group, whole, parts, read = flat.group, flat.parameters[i].detach(), None, entries[-1][2]
    if getattr(read, "by_rows", False) and whole.ndim:
        first, stop = flat.extent(i)
        if stop > first:
            flat.room.hold()
            row = whole.numel() // whole.shape[0]
            read(whole, (first // row, -(-stop // row)))
            p.detach().copy_(whole.view(-1)[first:stop])
        flat.room.release()
        return
    if group.rank == 0:
        flat.room.hold()
        for _, part, fill in entries:
            fill(_part(whole, part))
        row = whole.view(-1)
        parts = [row[slice(*flat.extent(i, rank))] for rank in range(group.size)]
    c.scatter(p.detach(), parts, 0, group)
    flat.room.release()
