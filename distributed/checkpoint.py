"""Checkpoints of a model that is divided among ranks: every rank writes a part, and any other mesh can read them.

A checkpoint is a folder with a file of tensors for each rank, and `index.json`, which says of every tensor by its name
which pieces of it lie where. What several ranks have alike is written by one of them. The folder is written under a
temporary name and renamed when all of it is on disk.

A piece is (dim, ranges, flat): `ranges` along `dim` of the whole tensor (dim None: all of it), joined, and of their
elements those in `flat`, [first, stop) (None: all). Layers of tensor parallelism have ranges, shards of ZeRO are flat.
"""

import itertools
import json
import math
import os
import shutil
from pathlib import Path
from typing import NamedTuple

from .. import nn
from ..autograd import no_grad
from ..dispatch import empty
from ..dispatch.generator import get_rng_state, set_rng_state
from ..dtype import dtype
from ..io import load_file, save_file
from ..io.folder import join, settle, split, sum_of, sync
from ..io.safetensors import SafetensorsFile
from . import divide
from .ddp import DistributedDataParallel
from .group import world_group
from .objects import all_gather_object, broadcast_object
from .pipeline import Pipeline
from .zero import ZeroDataParallel

_INDEX = "index.json"
_VERSION = 1
WHOLE = (None, None, None)


class DamagedError(ValueError):
    """Files of a checkpoint are not as they were written."""


class _Own(NamedTuple):
    """What a rank has of a tensor: the shape of the whole, which piece, and where it lies here."""

    shape: tuple
    piece: tuple
    tensor: object


class _Layout:
    """Names of a model's tensors, and what of each this rank has."""

    def __init__(self, model, rank):
        self.model = model
        wrapped = isinstance(model, (DistributedDataParallel, Pipeline))
        self.module = model.module if wrapped else model
        if not isinstance(self.module, nn.Module):
            raise TypeError(f"`model` must be a Module, or what divides one, got {type(model).__name__}")
        divided, self.own, self.names = divide.shares(self.module), {}, {}
        sharded = isinstance(model, ZeroDataParallel) and model.stage < 3
        shards = dict(model.named_parameters()) if sharded else {}
        firsts = {}
        for name, p in self.module.named_parameters(remove_duplicate=False):
            firsts.setdefault(id(p), name)
        self.aliases = {}
        for name, p in self.module.named_parameters(remove_duplicate=False):
            if firsts[id(p)] != name:
                self.aliases[name] = firsts[id(p)]
                continue
            home = getattr(p, "home", None)  # of `fully_shard`
            whole = p.shape if home is None else home[0].shapes[home[1]]
            shape, piece, share = list(whole), WHOLE, divided.get(name)
            if share is not None:
                shape[share.dim] = share.size
                piece = share.dim, tuple(share.ranges(rank)), None
            held = p
            if name in shards:
                held, piece = shards[name], (*piece[:2], model.reducer.extent(p))
            elif home is not None:
                piece = *piece[:2], home[0].extent(home[1])
            self.own[name] = _Own(tuple(shape), piece, held.detach())
            self.names[id(held)] = name
        saved = self.module.state_dict()
        for name, x in self.module.named_buffers():
            if name in saved:
                self.own[name] = _Own(tuple(x.shape), WHOLE, x)

    def changed(self):
        """Values were written to what this rank owns."""
        if isinstance(self.model, ZeroDataParallel) and self.model.stage < 3:
            self.model.reducer.gather()
            self.model.gather()

    def with_states(self, optimizer):
        """The same with the optimizer's states, those of each parameter under its name; and what else it has."""
        found, rest, state = dict(self.own), {}, optimizer.state_dict()
        numbered = list(dict.fromkeys(id(p) for group in optimizer.param_groups for p in group["params"]))
        for number, values in state["state"].items():
            name = self.names[numbered[number]]
            own = self.own[name]
            for key, x in values.items():
                at = f"optimizer.{name}.{key}"
                if hasattr(x, "strides_") and x.shape == own.tensor.shape:
                    found[at] = own._replace(tensor=x)
                elif hasattr(x, "strides_") and own.piece == WHOLE:
                    found[at] = _Own(tuple(x.shape), WHOLE, x)
                else:
                    rest[at] = x
        return found, rest, [{k: v for k, v in g.items() if k != "params"} for g in state["param_groups"]]


@no_grad()
def save_checkpoint(path, model, optimizer=None, mesh=None, extra=None):
    """Write the model, an optimizer of its parameters, and `extra` (numbers, texts, tensors) to the folder `path`.

    `model` is one that `parallelize`, `Pipeline` or `fully_shard` divided, a `ZeroDataParallel`, a
    `DistributedDataParallel` or a plain module; all ranks call it alike, and each writes about as much. `mesh` is
    needed where `mesh.tp` has several ranks. What was there before stays until everything is on disk; where a rank
    cannot write, all raise an OSError that names it, and what was there is as it was.
    """
    world, layout = world_group(), _Layout(model, 0 if mesh is None else mesh.tp.rank)
    own, rest, groups = (layout.own, {}, None) if optimizer is None else layout.with_states(optimizer)
    mine = _chosen({name: (o.piece, o.tensor.nbytes) for name, o in own.items()}, world)
    path = Path(path)
    temporary = path.with_name(f".{path.name}.writing")
    # what a broken-off save has left is gone before any rank makes the folder
    problem = _together(lambda: shutil.rmtree(temporary, ignore_errors=True) if world.rank == 0 else None, world)
    problem = problem or _together(lambda: temporary.mkdir(parents=True, exist_ok=True), world)
    file = f"rank-{world.rank:05d}.safetensors"
    values = {}
    other = split({"rest": rest, "groups": groups, "random": get_rng_state(), "extra": extra}, "state", values)

    sums = []

    def write():
        save_file({**{name: own[name].tensor.contiguous() for name in mine}, **values}, temporary / file)
        sums.append(settle(temporary / file))

    problem = problem or _together(write, world)
    if not problem:
        entries = {
            name: {"shape": own[name].shape, "dtype": own[name].tensor.dtype.name, "piece": own[name].piece}
            for name in mine
        }
        record = {"entries": entries, "other": other, "sum": sums[0], "aliases": layout.aliases}
        records = all_gather_object(record, world)
        problem = _together(lambda: _finish(path, temporary, records) if world.rank == 0 else None, world)
    if problem:
        if world.rank == 0:
            shutil.rmtree(temporary, ignore_errors=True)
        raise OSError(f"the checkpoint {path} could not be written ({problem}): free space there; what was there stays")
    return path


def _chosen(have, world):
    """Names of the tensors that this rank writes: of those who have the same piece, the one with the least so far."""
    load, mine = [0] * world.size, []
    everyone = all_gather_object(have, world)
    holders = {}
    for rank, pieces in enumerate(everyone):
        for name, (piece, nbytes) in pieces.items():
            holders.setdefault((name, piece), []).append((rank, nbytes))
    for (name, _), ranks in holders.items():
        rank, nbytes = min(ranks, key=lambda one: (load[one[0]], one[0]))
        load[rank] += nbytes
        if rank == world.rank:
            mine.append(name)
    return mine


def _together(action, world):
    """Do something on every rank; the first rank's error as a text, for all, or None."""
    try:
        action()
        error = None
    except OSError as failed:
        error = f"rank {world.rank} on {os.uname().nodename}: {failed.strerror or failed}"
    return next((text for text in all_gather_object(error, world) if text), None)


def _finish(path, temporary, records):
    (temporary / _INDEX).write_text(json.dumps({"version": _VERSION, "ranks": records}))
    sync(temporary / _INDEX)
    sync(temporary)
    old = path.with_name(f".{path.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if path.exists():  # two renames, so that it is gone for microseconds only
        os.rename(path, old)
    os.rename(temporary, path)
    sync(path.parent)
    shutil.rmtree(old, ignore_errors=True)


class _Reader:
    """The pieces of a checkpoint. A tensor that was divided otherwise is put together, one at a time."""

    def __init__(self, path):
        self.path = Path(path)
        try:
            found = json.loads((self.path / _INDEX).read_text())
            self.ranks = found["ranks"]
            if found["version"] != _VERSION:
                raise ValueError(f"version {found['version']} is not {_VERSION}")
        except FileNotFoundError:
            raise FileNotFoundError(f"there is no checkpoint in {path}: it has no {_INDEX}") from None
        except (ValueError, KeyError, TypeError) as error:
            raise DamagedError(f"{self.path / _INDEX} is damaged ({error}): use another checkpoint") from error
        self.files, self.pieces, self.aliases = {}, {}, {}
        for rank, record in enumerate(self.ranks):
            self.aliases |= record["aliases"]
            for name, entry in record["entries"].items():
                self.pieces.setdefault(name, []).append((_piece(entry["piece"]), rank, entry))

    def check(self, ranks):
        """Refuse files that are not as they were written."""
        for rank in ranks:
            file = self.path / f"rank-{rank:05d}.safetensors"
            if not file.is_file() or sum_of(file) != self.ranks[rank]["sum"]:
                raise DamagedError(f"{file} is damaged or missing: use another checkpoint")

    def other(self, rank):
        """What a rank saved beside tensors."""
        tensors = load_file(self.path / f"rank-{rank:05d}.safetensors")
        return join(self.ranks[rank]["other"], tensors)

    def _load(self, rank, name):
        if rank not in self.files:
            self.files[rank] = SafetensorsFile(self.path / f"rank-{rank:05d}.safetensors")
        return self.files[rank].tensor(name)

    def find(self, name, own):
        """Pieces of a tensor; ValueError where there is none, or of another shape or dtype."""
        name = name if name in self.pieces else self._other_name(name)
        if name not in self.pieces:
            raise ValueError(f"{self.path} has no {name!r}: it belongs to another model")
        entry = self.pieces[name][0][2]
        if tuple(entry["shape"]) != own.shape or entry["dtype"] != own.tensor.dtype.name:
            raise ValueError(
                f"{self.path}: {name!r} is {entry['dtype']} of shape {tuple(entry['shape'])}, the model's is "
                f"{own.tensor.dtype.name} of shape {own.shape}: it belongs to another model"
            )
        return name

    def _other_name(self, name, others=()):
        """The name of a tied parameter, or of its state, under which it was saved, in a piece or among `others`."""
        for one, other in [*self.aliases.items(), *((b, a) for a, b in self.aliases.items())]:
            if name == one or name.startswith(f"optimizer.{one}."):
                swapped = other + name[len(one) :] if name == one else f"optimizer.{other}" + name[10 + len(one) :]
                if swapped in self.pieces or swapped in others:
                    return swapped
        return name

    def read(self, name, own):
        """Fill what this rank has of a tensor."""
        for piece, rank, _ in self.pieces[name]:
            if piece == own.piece:
                own.tensor.copy_(self._load(rank, name))
                return
        own.tensor.copy_(_part(self._whole(name, own.shape, own.tensor.dtype), own.piece))

    def _whole(self, name, shape, kind):
        whole, parts = empty(tuple(shape), kind), {}
        for (dim, ranges, flat), rank, _ in self.pieces[name]:
            local = list(shape)
            if dim is not None:
                local[dim] = sum(stop - first for first, stop in ranges)
            value = self._load(rank, name)
            if flat is not None:
                target = parts.setdefault((dim, ranges), empty((math.prod(local),), kind))
                target[flat[0] : flat[1]].copy_(value)
            else:
                parts[dim, ranges] = value
        for (dim, ranges), value in parts.items():
            if dim is None:
                whole.copy_(value.view(shape))
                continue
            local = list(shape)
            local[dim] = sum(stop - first for first, stop in ranges)
            value, at = value.view(local), 0
            for first, stop in ranges:
                whole.narrow(dim, first, stop - first).copy_(value.narrow(dim, at, stop - first))
                at += stop - first
        return whole


def _piece(piece):
    """A piece as it was before JSON made lists of it."""
    dim, ranges, flat = piece
    return dim, None if ranges is None else tuple(map(tuple, ranges)), None if flat is None else tuple(flat)


def _part(whole, piece):
    """A piece of a whole tensor."""
    import infinicore

    dim, ranges, flat = piece
    if dim is not None:
        whole = infinicore.cat([whole.narrow(dim, first, stop - first) for first, stop in ranges], dim)
    return whole if flat is None else whole.reshape(-1)[flat[0] : flat[1]]


@no_grad()
def load_checkpoint(path, model, optimizer=None, mesh=None):
    """Bring a model and its optimizer back to a checkpoint of `save_checkpoint`; returns what `extra` was.

    The mesh may be another one than that which saved, also a single process. Random states come back on as many ranks,
    else all take that of the first one. Raises FileNotFoundError where there is none, ValueError for a checkpoint that
    is damaged or belongs to another model; then model and optimizer are as they were.
    """
    world, layout, reader = world_group(), _Layout(model, 0 if mesh is None else mesh.tp.rank), None
    try:
        reader = _Reader(path)
        reader.check(range(world.rank, len(reader.ranks), world.size))
        named = {name: reader.find(name, own) for name, own in layout.own.items()}
        state = None if optimizer is None else _optimizer_state(reader, layout, optimizer)
        error = None
    except (ValueError, FileNotFoundError) as failed:
        error = type(failed), str(failed)
    failed = next((one for one in all_gather_object(error, world) if one), None)
    if failed:
        raise failed[0](failed[1])
    if optimizer is not None:
        optimizer.load_state_dict(state)
    for name, own in layout.own.items():
        reader.read(named[name], own)
    layout.changed()
    alike = len(reader.ranks) == world.size
    set_rng_state(reader.other(world.rank if alike else 0)["random"])
    return broadcast_object(reader.other(0)["extra"], 0, world)


def _optimizer_state(reader, layout, optimizer):
    """The state dict of this rank's parameters."""
    groups, others = optimizer.param_groups, {}
    for rank in range(len(reader.ranks)):
        others |= reader.other(rank)["rest"]
    saved = reader.other(0)["groups"]
    if saved is None:
        raise ValueError(f"{reader.path} holds no state of `optimizer`: it was saved without one")
    if len(saved) != len(groups):
        raise ValueError(f"{reader.path} has {len(saved)} groups of parameters, `optimizer` has {len(groups)}")
    keys = {name.rpartition(".")[2] for name in [*reader.pieces, *others] if name.startswith("optimizer.")}
    numbers, state, options = itertools.count(), {}, []
    for group, values in zip(groups, saved):
        own = []
        for p in group["params"]:
            number, name = next(numbers), layout.names[id(p)]
            own.append(number)
            found = _states(reader, layout.own[name], name, keys, others)
            if found:
                state[number] = found
        options.append({**values, "params": own})
    return {"state": state, "param_groups": options}


def _states(reader, own, name, keys, others):
    """States of one parameter."""
    found = {}
    for key in keys:
        at = f"optimizer.{name}.{key}"
        if at not in reader.pieces and at not in others:
            at = reader._other_name(at, others)
        if at in reader.pieces:
            entry = reader.pieces[at][0][2]
            shape, kind = tuple(entry["shape"]), dtype(entry["dtype"])
            if shape == own.shape:
                target = own._replace(tensor=empty(tuple(own.tensor.shape), kind))
            else:
                target = _Own(shape, WHOLE, empty(shape, kind))
            reader.read(at, target)
            found[key] = target.tensor
        elif at in others:
            found[key] = others[at]
    return found
