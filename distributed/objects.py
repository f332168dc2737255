"""Collectives on Python objects, which travel pickled: for what is small and rare. Ranks trust each other's pickles."""

import builtins

from ..dispatch import refuse_recording
from .collectives import _peer
from .group import world_group


def _comm(group, name, **peer):
    """What carries the objects of a call, once all ranks have come to it: MPI alone would wait for ever, and busily."""
    refuse_recording(f"`{name}`", "exchange objects before")
    if group.size > 1:
        what = f"{name}({', '.join(f'{key}={rank}' for key, rank in peer.items())})" if peer else name
        if group.checks is not None:
            group.checks.compare(group, name, tuple(f"{key}={rank}" for key, rank in peer.items()), 0)
        group.links.barrier(what, 0)
    return group.comm


def broadcast_object(value, src=0, group=None):
    """What `value` is on rank `src`, on every rank."""
    group = world_group(group)
    _peer(src, "src", group)
    comm = _comm(group, "broadcast_object", src=src)
    return value if comm is None else comm.bcast(value, src)


def all_gather_object(value, group=None):
    """The list of every rank's `value`, on every rank."""
    group = world_group(group)
    comm = _comm(group, "all_gather_object")
    return [value] if comm is None else comm.allgather(value)


def gather_object(value, dst=0, group=None):
    """The list of every rank's `value` on rank `dst`; None elsewhere."""
    group = world_group(group)
    _peer(dst, "dst", group)
    comm = _comm(group, "gather_object", dst=dst)
    return [value] if comm is None else comm.gather(value, dst)


def scatter_object(values=None, src=0, group=None):
    """Element r of the list `values`, which rank `src` has, on rank r."""
    group = world_group(group)
    _peer(src, "src", group)
    if group.rank == src and (not isinstance(values, (list, tuple)) or len(values) != group.size):
        raise ValueError(f"`values` must be a list of {group.size} objects on rank `src`, got {values!r}")
    comm = _comm(group, "scatter_object", src=src)
    return values[0] if comm is None else comm.scatter(values if group.rank == src else None, src)


def agree(group, function):
    """What `function()` returns, on every rank; if it raises on one, its error is raised on all."""
    value, error = None, None
    try:
        value = function()
    except Exception as found:
        error = found
    told = None if error is None else (type(error).__name__, str(error))
    failed = [one for one in all_gather_object(told, group) if one is not None]
    if error is not None:
        raise error
    if failed:
        name, text = failed[0]
        kind = getattr(builtins, name, RuntimeError)
        raise (kind if isinstance(kind, type) and issubclass(kind, Exception) else RuntimeError)(text)
    return value
