"""`ParallelModel`: the one place where a mesh and a model become a whole that can be trained.

    module -> layers divided (mesh.tp) -> stages (mesh.pp) -> replicas or shards of what is left (dp, and cp)

Whoever trains it (`infinicore.train.Trainer`) sees parameters, a backward pass, a norm and a state dict, and does not
ask along which axes they are divided.
"""

import contextlib
import math
from typing import NamedTuple

from .. import nn
from ..autograd import no_grad
from ..data.sampler import mix
from ..dispatch import empty
from ..dispatch.generator import fork_rng, get_rng_state, manual_seed, set_rng_state
from ..dtype import float64
from ..nn.utils.clip import clip_grads_with_norm_, get_total_norm
from ..nn.utils.size import product_weights
from . import checkpoint, divide
from . import collectives as c
from .ddp import DistributedDataParallel
from .functional import bounds
from .mesh import AXES, Mesh
from .objects import all_gather_object, broadcast_object
from .pipeline import Pipeline
from .zero import ZeroDataParallel

ZERO_STAGES = (0, 1, 2, 3)


class Portion(NamedTuple):
    """What a rank computes of a batch: its share of the mean loss over `mesh.dp`, and what the whole batch counts.

    `factor` is by what the loss here is multiplied so that the average of gradients is that of the whole batch: 1 where
    all ranks have as much, which `alike` says.
    """

    share: float
    factor: float
    size: int
    alike: bool


class ParallelModel:
    """`module`, made alike on every rank, divided among the ranks of `mesh` and ready to be trained.

    Layers are divided along `mesh.tp` and sequences along `mesh.cp` (`parallelize` with `plan` and
    `sequence_parallel`, which `mesh.sp` also asks for), then stages along `mesh.pp` (`Pipeline` with `micro_batches`,
    `schedule`, `chunks` and `loss`). The rest is the same on all of `mesh.dp` and `mesh.cp`: gradients are averaged
    (`zero` 0), and optimizer states (1), gradients (2) and parameters (3) divided (`ZeroDataParallel`). In a pipeline
    gradients stay whole until the last micro-batch, with `zero` 2 as with 1; with `zero` 3 each micro-batch gathers and
    averages for itself.

    Optimizers are made of `parameters()`; `module` is what this rank has. Random numbers are those of one process
    within `shared_random()` (the order of the data); outside, each replica and each stage has its own, and the ranks
    that divide layers have the same. Raises ValueError, TypeError, NotImplementedError for what cannot be divided so.
    """

    def __init__(
        self, module, mesh, *, zero=0, micro_batches=1, schedule="1f1b", chunks=1, sequence_parallel=False, plan=None,
        loss=None,
    ):  # fmt: skip
        _check(module, mesh, zero, micro_batches)
        self.mesh, self.module, self.zero, self.pipeline = mesh, module, zero, None
        # under all names: a stage may have a tied one under the second
        self.shapes = {name: tuple(p.shape) for name, p in module.named_parameters(remove_duplicate=False)}
        self.numel = sum(p.numel() for p in module.parameters())
        self.product_weights, self.micro_batches = product_weights(module), micro_batches
        self._shared_random = broadcast_object(get_rng_state(), 0, mesh.world)
        replicas = mesh.group("dp", "cp")  # what has the same parameters
        if mesh.tp.size > 1 or mesh.cp.size > 1:
            divide.parallelize(module, mesh, plan, sequence_parallel=sequence_parallel)
        if mesh.pp.size > 1:
            self.pipeline = Pipeline(module, mesh, micro_batches, schedule, chunks, loss)
        self.model = module
        if zero:
            self.model = ZeroDataParallel(module, replicas, stage=1 if self.pipeline and zero < 3 else zero)
        elif self.pipeline is not None:
            self.model = self.pipeline
        elif replicas.size > 1:
            self.model = DistributedDataParallel(module, replicas)
        divided = divide.shares(module)
        shards = dict(self.model.named_parameters()) if zero else {}
        self._named = {name: shards.get(name, p) for name, p in module.named_parameters()}
        self._owned = [self._named[name] for name, p in module.named_parameters() if self._owns(p, divided.get(name))]
        self.reseed()

    def _owns(self, p, share):
        """Whether this rank is the one that counts what it has of a parameter."""
        copies = self.mesh.tp.size if share is None else share.copies
        return (
            self.mesh.tp.rank % copies == 0
            and (self.zero > 0 or self.mesh.group("dp", "cp").rank == 0)
            and getattr(p, "staged", None) != "again"
        )

    # ---- as a module ----

    def named_parameters(self):
        """(name in the module, what this rank trains of it): whole, a part of a layer, or a shard."""
        yield from self._named.items()

    def parameters(self):
        """What this rank trains."""
        yield from self._named.values()

    # ---- passes ----

    def backward(self, batch, loss, *, divisor=1.0, scaler=None, within=contextlib.nullcontext, sync=True):
        """Add the gradients of the loss of `batch` / `divisor`; returns the loss of what this rank has of it.

        `loss(model, batch)`, a mean, is computed `within()`; in a pipeline it is that of the `Pipeline`, of
        (inputs, targets). `scaler` is a `GradScaler` or None. Without `sync` gradients may stay this rank's own: the
        next pass with it joins all of them.
        """
        if self.pipeline is not None:
            scale = (1.0 if scaler is None else scaler.get_scale()) / divisor
            whole = self.zero in (1, 2)  # gradients, until all micro-batches are through
            with self.pipeline.no_sync() if whole or not (sync or self.zero) else contextlib.nullcontext():
                value = self.forward(batch, loss, within=within, scale=scale)
            if sync and whole:
                self.model.reducer.average()
            return value
        with contextlib.nullcontext() if sync or self.model is self.module else self.model.no_sync():
            value = self.forward(batch, loss, within=within)
            descend(value, divisor, scaler)
        return value

    def forward(self, batch, loss, *, within=contextlib.nullcontext, scale=1.0):
        """The loss alone; under `no_grad` of any number of rows. (A pipeline goes backward too, by `scale`.)"""
        if self.pipeline is None:
            with within():
                return loss(self.model, batch)
        if self.zero in (1, 2):
            self.model.gather()
        if not isinstance(batch, (tuple, list)) or len(batch) != 2:
            raise ValueError(f"a batch must be (inputs, targets) for a pipeline, got {type(batch).__name__}")
        return self.pipeline.step(*batch, scale=scale, within=within)

    def rows(self, count):
        """Which rows of a batch of `count` this rank computes, [first, stop)."""
        return bounds(count, self.mesh.dp.rank, self.mesh.dp.size)

    def portion(self, weight, size):
        """The `Portion` of a batch of which this rank has `weight` (what a mean divides by) and `size` (to report)."""
        if self.mesh.dp.size == 1:
            return Portion(1.0, 1.0, size, True)
        mine = empty((2,), float64)
        mine.numpy()[:] = weight, size
        found = c.all_gather(empty((self.mesh.dp.size, 2), float64), mine, self.mesh.dp).numpy()
        whole, sizes = found.sum(0).tolist()
        share = weight / whole if whole else 1 / len(found)
        alike = bool((found[:, 0] == weight).all())
        return Portion(share, 1.0 if alike else share * len(found), int(sizes), alike)

    # ---- what all ranks agree on ----

    def mean(self, value, portion):
        """The mean over the whole batch of what each rank has of it; the same bits on every rank."""
        first = self.mesh.rank_of(dp=self.mesh.dp.rank, tp=0, pp=0, cp=0) == self.mesh.world.rank
        return self.sum(value * portion.share if first and portion.share else 0.0)

    def sum(self, value):
        """The sum over all ranks."""
        return c.all_reduce(empty((1,), float64).fill_(value), "sum", self.mesh.world).item()

    def most(self, value):
        """The largest over all ranks."""
        return c.all_reduce(empty((1,), float64).fill_(value), "max", self.mesh.world).item()

    def first(self, value):
        """What the first rank has that has not None."""
        return next((x for x in all_gather_object(value, self.mesh.world) if x is not None), None)

    def grad_norm(self):
        """The 2-norm of all gradients, over all axes; what several ranks have alike counts once."""
        gradients = [p.gradient for p in self._owned if p.gradient is not None and p.numel()]
        norm = get_total_norm(gradients).item() if gradients else 0.0
        return math.sqrt(self.sum(norm * norm))

    def clip_grad_norm_(self, max_norm):
        """Scale all gradients so that their norm is at most `max_norm`, if it is finite; returns what it was."""
        norm = self.grad_norm()
        if math.isfinite(norm):
            clip_grads_with_norm_([p for p in self.parameters() if p.gradient is not None], max_norm, norm)
        return norm

    # ---- random numbers ----

    @contextlib.contextmanager
    def shared_random(self):
        """Within it, the default generator is one that all ranks have alike, as one process would."""
        with fork_rng():
            set_rng_state(self._shared_random)
            try:
                yield
            finally:
                self._shared_random = get_rng_state()

    def reseed(self):
        """Let each replica, stage and part of a sequence draw its own random numbers from here on.

        Ranks of one `tp` group draw the same.
        """
        if self.mesh.dp.size * self.mesh.pp.size * self.mesh.cp.size == 1:
            set_rng_state(self._shared_random)
        else:
            numbers = self._shared_random["seed"], *self._shared_random["counter"]
            manual_seed(mix(*numbers, self.mesh.dp.rank, self.mesh.pp.rank, self.mesh.cp.rank) >> 1)

    # ---- state ----

    @no_grad()
    def state_dict(self):
        """That of the whole module, the same on every rank; all call it."""
        if self.zero in (1, 2):
            self.model.gather()
        return divide.whole_state_dict(self.module, self.mesh)

    def save_checkpoint(self, path, optimizer=None, extra=None):
        """`infinicore.distributed.save_checkpoint` of this model, with what `load_checkpoint` here needs."""
        extra = {"own": extra, "mesh": dict(self.mesh.sizes), "random": self._shared_random}
        return checkpoint.save_checkpoint(path, self.model, optimizer, self.mesh, extra)

    def load_checkpoint(self, path, optimizer=None):
        """Bring model, optimizer and random states back, from any mesh; returns what `extra` was."""
        extra = checkpoint.load_checkpoint(path, self.model, optimizer, self.mesh)
        self._shared_random = extra["random"]
        if any(extra["mesh"][axis] != self.mesh.sizes[axis] for axis in AXES):
            self.reseed()
        return extra["own"]


def descend(loss, divisor, scaler=None):
    """Add the gradients of `loss` / `divisor`, times the factor of a `GradScaler`."""
    loss = loss / divisor if divisor != 1.0 else loss
    (loss if scaler is None else scaler.scale(loss)).backward()


def _check(module, mesh, zero, micro_batches):
    if not isinstance(module, nn.Module):
        raise TypeError(f"`module` must be a Module, got {type(module).__name__}")
    if not isinstance(mesh, Mesh):
        raise TypeError(f"`mesh` must be a Mesh, got {type(mesh).__name__}")
    if zero not in ZERO_STAGES or isinstance(zero, bool):
        raise ValueError(f"`zero` must be one of {', '.join(map(str, ZERO_STAGES))}, got {zero!r}")
    if micro_batches != 1 and mesh.pp.size == 1:
        raise ValueError(
            f"`micro_batches` is {micro_batches!r}, and `mesh` has no pipeline: give it `pp`, or accumulate gradients"
        )
    if mesh.sizes["cp"] > 1 and not hasattr(module, "context_parallel"):
        raise NotImplementedError(
            f"`mesh` has cp {mesh.sizes['cp']}, and {type(module).__name__} does not divide sequences: give dp, tp, pp"
        )
