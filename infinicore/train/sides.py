"""What differs between training in one process and by the ranks of a mesh; the Trainer's loop is the same for both."""

import contextlib
import math

from infinicore import nn

from .. import distributed
from ..data import DistributedSampler, LoaderPart
from ..dispatch.generator import get_rng_state
from ..distributed.objects import broadcast_object
from ..distributed.parallel import ParallelModel, Portion, descend
from ..nn.utils.size import product_weights
from .checkpoint import (
    drop_old,
    find,
    is_sharded,
    latest,
    load_checkpoint,
    naming_older,
    path_of,
    restore,
    save_checkpoint,
    states_of,
)


def side_of(model):
    """The side of a model that a Trainer was given."""
    return Ranks(model) if isinstance(model, ParallelModel) else OneProcess(model)


class OneProcess:
    """A model that this process has whole."""

    leads, ranks = True, 1
    shared_random = staticmethod(contextlib.nullcontext)

    def __init__(self, model):
        self.module, self._sharded = model, False

    @property
    def product_weights(self):
        """Weights of the whole model that a token is multiplied by."""
        return product_weights(self.module)

    @property
    def parameters(self):
        """How many numbers the whole model has."""
        return sum(p.numel() for p in self.module.parameters())

    @property
    def replays(self):
        """Whether a pass can be recorded and replayed."""
        return all(p.hooks is None for p in self.module.parameters())

    def divide(self, name, loader):
        """What gives the batches of `loader` that this process computes; `name` is its argument's."""
        return loader

    def portion(self, found, counts):
        """(batch, its `Portion`) of what a divided loader gave; `counts(batch)` is (weight, size)."""
        return found, Portion(1.0, 1.0, counts(found)[1], True)

    def forward(self, batch, loss, within):
        """The loss of a batch, without gradients."""
        with within():
            return loss(self.module, batch)

    def backward(self, batch, loss, *, divisor, scaler, within, sync):
        """The loss of a batch; the gradients of it / `divisor` are added to those of the batches before."""
        value = self.forward(batch, loss, within)
        descend(value, divisor, scaler)
        return value

    def mean(self, value, portion):
        """The loss of a whole batch, from that of what each rank has of it."""
        return value

    def first(self, value):
        """Over all ranks: the first value that is not None. (`sum`, `most`: the sum and the largest number.)"""
        return value

    sum = most = first

    def clip(self, bound):
        """Bound the norm of the gradients, unless it is not finite; returns it."""
        parameters = list(self.module.parameters())
        nn.utils.clip.check_whole(parameters)
        norm = nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None]).item()
        if math.isfinite(norm):
            nn.utils.clip_grads_with_norm_(parameters, bound, norm)
        return norm

    def latest(self, folder):
        """The newest checkpoint in a folder, or None."""
        return latest(folder)

    def save(self, folder, step, optimizer, keep, parts):
        """Write a checkpoint; returns its path. A run that ranks began stays in their format, for any mesh."""
        if not self._sharded:
            return save_checkpoint(folder, step, self.module, optimizer, keep=keep, **parts)
        extra = {"own": states_of(step, parts), "mesh": None, "random": get_rng_state()}
        path = distributed.save_checkpoint(path_of(folder, step), self.module, optimizer, extra=extra)
        drop_old(folder, step, keep)
        return path

    def load(self, path, optimizer, parts):
        """Bring model, optimizer and `parts` back to a checkpoint; returns its step."""
        path = find(path)
        self._sharded = is_sharded(path)
        return load_checkpoint(path, self.module, optimizer, **parts)


class Ranks:
    """A `ParallelModel`, of which each rank has a part."""

    def __init__(self, model):
        self.model, self.module, self.world = model, model.module, model.mesh.world
        self.leads, self.ranks = self.world.rank == 0, self.world.size
        self.product_weights = model.product_weights
        self.parameters = model.numel
        self.shared_random, self.backward, self.clip = model.shared_random, model.backward, model.clip_grad_norm_
        here = all(p.storage.backend.shares_memory for p in model.parameters())  # else gradients pass through the host
        self.replays = model.zero == 0 and model.pipeline is None and (here or self.ranks == 1)
        self.mean, self.sum, self.most, self.first = model.mean, model.sum, model.most, model.first

    def divide(self, name, loader):
        """The rows of the batches of `loader` that this rank computes. ValueError where they are too few for all."""
        part, replicas, micro = LoaderPart(loader, self.model.rows), self.model.mesh.dp.size, self.model.micro_batches
        if isinstance(loader.sampler, DistributedSampler):
            raise ValueError(f"`{name}` has a DistributedSampler, and batches are divided here: leave it out")
        if name != "train_data" or loader.batch_size is None:
            return part
        fewest = loader.batch_size
        if self.model.pipeline is not None and not loader.drop_last and hasattr(loader.sampler, "__len__"):
            fewest = len(loader.sampler) % fewest or fewest
        if min(fewest, loader.batch_size) < replicas * micro:
            raise ValueError(
                f"`{name}` has batches of {fewest} rows, too few for {replicas} replicas and {micro} micro-batches "
                f"each: give at least {replicas * micro}, or set `drop_last`"
            )
        return part

    def portion(self, found, counts):
        """(batch, its `Portion`) of what a divided loader gave; `counts(batch)` is (weight, size) of this rank's."""
        rows, batch = found
        return batch, self.model.portion(*counts(batch)) if rows else self.model.portion(0, 0)

    def forward(self, batch, loss, within):
        """The loss of what this rank has of a batch, without gradients."""
        return self.model.forward(batch, loss, within=within)

    def latest(self, folder):
        """The newest checkpoint in a folder, or None, as the first rank sees it."""
        return broadcast_object(latest(folder) if self.leads else None, 0, self.world)

    def save(self, folder, step, optimizer, keep, parts):
        """Write a checkpoint, every rank a part; returns its path."""
        path = self.model.save_checkpoint(path_of(folder, step), optimizer, states_of(step, parts))
        if self.leads:
            drop_old(folder, step, keep)
        return path

    def load(self, path, optimizer, parts):
        """Bring model, optimizer and `parts` back to a checkpoint of any mesh; returns its step."""
        path = broadcast_object(find(path) if self.leads else None, 0, self.world)
        if not is_sharded(path):
            raise ValueError(
                f"{path} was saved by one process, and this is a job of {self.ranks} ranks: go on with one process, or "
                "begin anew in another folder"
            )
        with naming_older(path):
            states = self.model.load_checkpoint(path, optimizer)
        return restore(path, states, parts)
