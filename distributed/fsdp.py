"""ZeRO 3 by PyTorch's names (FSDP2): `fully_shard` divides a module's parameters, whole only while it computes."""

import contextlib
import functools

from .. import nn
from ..autograd import no_grad
from . import collectives as c
from .ddp import averages_context
from .deferred import fill_shards
from .group import Group, world_group
from .mesh import Mesh
from .units import Unit, passing, units_of

_METHODS = ("loss", "hidden", "hidden_loss", "logits", "states")  # of language models, beside `forward`


class FSDPModule:
    """What a module becomes by `fully_shard`: its class is another one, with these methods beside its own."""

    def unshard(self, async_op=False):
        """Make this unit's parameters whole until its next pass, or `reshard`; with `async_op`, begin to."""
        unit = self.fsdp_unit
        unit.start() if async_op else unit.gather()

    def reshard(self):
        """Keep this unit's shards alone."""
        self.fsdp_unit.reshard()

    def set_requires_gradient_sync(self, requires_gradient_sync, *, recurse=True):
        """Whether backward averages gradients; if not, each rank adds up whole ones, for the next that does."""
        for unit in self._units(recurse):
            unit.sync = bool(requires_gradient_sync)

    def set_reshard_after_forward(self, reshard_after_forward, recurse=True):
        """As the argument of `fully_shard`."""
        for unit in self._units(recurse):
            unit.reshard_after_forward = bool(reshard_after_forward)

    def _units(self, recurse):
        return units_of(self) if recurse else [self.fsdp_unit]

    def _apply(self, fn):
        raise RuntimeError("a module must have its dtype and device before `fully_shard`: call `to` on it first")


def fully_shard(module, *, mesh=None, reshard_after_forward=None):
    """Divide the parameters of `module` among the ranks of dp and cp of `mesh` (or a group), in place; returns it.

    As torch.distributed.fsdp.fully_shard (FSDP2; Zhao et al., arXiv 2304.11277; ZeRO 3, Rajbhandari et al., arXiv
    1910.02054): call it on each block, then on the root. Each call makes a unit of the parameters that are in none yet,
    which are gathered before its forward and again before its backward pass, while what comes before still computes,
    and released after. Between passes `parameters()` are shards, 1-d tensors of this rank's elements, the objects that
    were the parameters before; an elementwise optimizer works on them. Gradients are averaged over the ranks, divided.
    `reshard_after_forward=False` keeps a unit whole until its backward pass is over; so does the root unless it says
    otherwise. Values and buffers are those of rank 0. All ranks call it alike, and run the same units in one order.
    Parameters that several modules have must be in one unit. Raises ValueError for those that are not.
    """
    if not isinstance(module, nn.Module):
        raise TypeError(f"`module` must be a Module, got {type(module).__name__}")
    if isinstance(module, FSDPModule):
        raise ValueError("`module` is divided already: call `fully_shard` once on each module, blocks before the root")
    if not isinstance(mesh, (Mesh, Group, type(None))):
        raise TypeError(f"`mesh` must be a Mesh, a Group or None, got {type(mesh).__name__}")
    group = mesh.group("dp", "cp") if isinstance(mesh, Mesh) else world_group(mesh)
    averages_context(module, group)
    above = bool(units_of(module))  # the root, as far as one can tell
    keep = above if reshard_after_forward is None else not reshard_after_forward
    with no_grad():
        unit = Unit(module, group, not keep)
        own = type(module)
        module.__class__ = type(f"FSDP{own.__name__}", (FSDPModule, own), {"__module__": own.__module__})
        module.__dict__["fsdp_unit"] = unit
        for buffer in module.buffers():
            c.broadcast(buffer, 0, group)
        fill_shards(module)
    module.register_forward_pre_hook(lambda module, _: unit.before(module), prepend=True)
    module.register_forward_hook(lambda _, __, result: unit.after(result), always_call=True)
    for name in _METHODS:
        if callable(getattr(own, name, None)):
            register_fsdp_forward_method(module, name)
    if callable(getattr(own, "generate", None)):
        module.__dict__["generate"] = _if_whole(unit, module.generate)
    return module


def register_fsdp_forward_method(module, method_name):
    """Let a method of a module of `fully_shard` gather its parameters as `forward` does."""
    if not isinstance(module, FSDPModule):
        raise TypeError(f"`module` must be one of `fully_shard`, got {type(module).__name__}")
    module.__dict__[method_name] = functools.partial(passing, module, getattr(module, method_name))


def _if_whole(unit, method):
    """`generate` writes as long as its caller reads, in recorded steps: not while parameters come and go."""

    def run(*args, **kwargs):
        if not unit.pinned:
            raise NotImplementedError(
                "`generate` of a module of `fully_shard` needs whole parameters: call it, and take its tokens, inside "
                "`with infinicore.distributed.summon_full_params(model):`"
            )
        return method(*args, **kwargs)

    return run


@contextlib.contextmanager
def summon_full_params(module, *, writeback=True):
    """Inside, all parameters of a module whose parts are of `fully_shard` are whole; changes stay with `writeback`.

    All ranks enter it alike.
    """
    units = units_of(module)
    for unit in units:
        unit.gather()
        unit.pinned += 1
    try:
        yield module
    finally:
        for unit in units:
            if writeback:
                with no_grad():
                    for flat in unit.flats:
                        flat.write_back()
            unit.pinned -= 1
            unit.reshard()
