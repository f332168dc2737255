"""What one rank reads of a checkpoint: files that look as if they held nothing but its part of each tensor.

So layers are read, converted and packed as in one process. Rows that follow each other stay where the file is mapped;
other parts are copied out, one tensor at a time. What no rank needs is not read, and the ranks of a node share the
system's cache of the file: it is read once.
"""

import copy
from math import prod
from typing import NamedTuple

import numpy as np

from ..distributed.divide import parallelize, shares
from ..io.gguf import FLOATS
from .stages import is_here


class Cut(NamedTuple):
    """The parts [first, stop) of a stored tensor along `dim`, in stored elements."""

    dim: int
    ranges: tuple[tuple[int, int], ...]


class PartFile:
    """A file of tensors, of which some are cut: `cuts` maps their names to a `Cut`."""

    def __init__(self, file, cuts):
        self._file, self._cuts = file, cuts
        self.path, self.metadata = file.path, file.metadata
        self.entries = {name: _part_of(entry, cuts.get(name)) for name, entry in file.entries.items()}

    def __getattr__(self, name):  # `raw`, `tensor` and the like read by what is defined here
        found = getattr(type(self._file), name)
        return found.__get__(self)

    def _place(self, name):
        """(bytes before dim, elements along it, bytes of one) of a cut tensor's view as three dims."""
        entry, dim = self._file.entries[name], self._cuts[name].dim
        outer, size = prod(entry.shape[:dim]), entry.shape[dim]
        return outer, size, entry.nbytes // max(1, outer * size)

    def bytes_of(self, name):
        """The bytes of this rank's part, on the mapped file where they lie in one piece."""
        data, cut = self._file.bytes_of(name), self._cuts.get(name)
        if cut is None:
            return data
        outer, size, item = self._place(name)
        if outer == 1 and len(cut.ranges) == 1:
            ((first, stop),) = cut.ranges
            return data[first * item : stop * item]
        view = data.reshape(outer, size, item)
        part = np.concatenate([view[:, first:stop] for first, stop in cut.ranges], axis=1).reshape(-1)
        self._file.release(name)
        return part

    def release(self, name, first=0, nbytes=None):
        """As that of the file; what was copied out is released already."""
        cut = self._cuts.get(name)
        if cut is None:
            self._file.release(name, first, nbytes)
            return
        outer, _, item = self._place(name)
        if outer == 1 and len(cut.ranges) == 1:
            begin = cut.ranges[0][0] * item
            self._file.release(name, begin + first, self.entries[name].nbytes - first if nbytes is None else nbytes)

    def entry(self, name):
        return self.entries[name]


def _part_of(entry, cut):
    """The entry of a part: as many bytes as it has, at the place of the whole."""
    if cut is None:
        return entry
    size, shape = entry.shape[cut.dim], list(entry.shape)
    shape[cut.dim] = sum(stop - first for first, stop in cut.ranges)
    nbytes = entry.nbytes // size * shape[cut.dim]
    return entry._replace(shape=tuple(shape), stop=entry.start + nbytes)


def divide(model, mesh, *, exact, whole=(), **rows):
    """Divide a model whose parameters are unset among `mesh.tp`: see `LanguageModel.divide`.

    `whole` are patterns of its plan that each rank keeps as they are.
    """
    if mesh.tp.size == 1:
        return
    plan = model.divide(mesh.tp, exact=exact, **rows)
    plan = {at: job for at, job in plan.items() if at not in whole and ("*" in at or is_here(model, f"{at}.weight"))}
    parallelize(model, mesh, plan, values=False)


def part_of_checkpoint(checkpoint, found, layout, model, transposed):
    """The checkpoint as this rank of `model` reads it; `found` maps names of the model to those that are stored."""
    known, cuts = shares(model), {}
    for name, stored in found.items():
        path, _, last = name.rpartition(".")
        share = known.get(name) or (known.get(f"{path}.weight") if path in layout.layers else None)
        if share is None:
            continue
        entry, rank = checkpoint.where[stored].entries[stored], model.tensor_group.rank
        if path in layout.layers and last != "bias":
            cut = _cut_of_slot(layout.scheme, last, layout.layers[path][0], share, rank, entry, stored)
        else:
            flip = name.endswith(transposed) and len(entry.shape) == 2
            cut = Cut(1 - share.dim if flip else share.dim, tuple(share.ranges(rank)))
        if cut is not None:
            cuts[stored] = cut
    part = copy.copy(checkpoint)
    files = {id(file): PartFile(file, cuts) for file in checkpoint.files}
    part.where = {name: files[id(file)] for name, file in checkpoint.where.items()}
    return part


def _cut_of_slot(scheme, suffix, shape, share, rank, entry, stored):
    """The `Cut` of one of the tensors that a quantised layer is stored as, None if it does not depend on the rows."""
    n, k = shape
    ((first, stop),) = share.ranges(rank)
    if first % scheme.rows or (stop % scheme.rows and stop != n):
        raise NotImplementedError(
            f"tensor {stored!r} is stored in blocks of {scheme.rows} rows, and rank {rank} of {share.ranks} needs rows "
            f"{first} to {stop}: use fewer ranks"
        )
    which = scheme.slots(n, k)[suffix].shapes.index(entry.shape)
    begin, end = (scheme.slots(at, k)[suffix].shapes[which] for at in (first, stop))
    for dim, (a, b) in enumerate(zip(begin, end)):
        if a != b:
            return Cut(dim, ((a, b),))
    return None


def part_of_gguf(file, found, model):
    """The same of a GGUF file, whose matrices are stored by rows."""
    known, cuts = shares(model), {}
    for name, stored in found.items():
        share, entry = known.get(name), file.entries[stored]
        if share is not None:
            if share.dim != 0 and entry.kind not in FLOATS:
                raise NotImplementedError(
                    f"{file.path}: tensor {stored!r} of {entry.kind} cannot be cut along its rows"
                )
            cuts[stored] = Cut(share.dim, tuple(share.ranges(model.tensor_group.rank)))
    return PartFile(file, cuts)
