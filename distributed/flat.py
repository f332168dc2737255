"""Parameters of ranks that share them, one after another in one piece of memory."""

import itertools
import mmap

import numpy as np

from .. import nn
from ..core import layout, memory
from ..device import CPU
from ..dispatch import copy_into, empty_beside, wrap
from ..tensor.tensor import Tensor
from . import collectives as c

_ALIGN = 64  # bytes between the beginnings of parameters
_RELEASES = hasattr(mmap, "MADV_DONTNEED") and hasattr(mmap.mmap, "madvise")


class Shard(nn.Parameter):
    """What a rank owns of a parameter: some of its elements one after the other, [n], none perhaps."""

    sharded = True


def padded(n, dtype):
    """Elements that `n` of a dtype take in such memory: whole cache lines."""
    step = _ALIGN // dtype.itemsize
    return -(-max(n, 1) // step) * step


def packs(module):
    """Each `PackedLinear` of a module that is in one piece: (pack, its weights, its biases or [])."""
    for pack in module.modules():
        if isinstance(pack, nn.PackedLinear) and pack._weight is not None:
            parts = pack._parts
            yield pack, [part.weight for part in parts], [part.bias for part in parts if part.bias is not None]


def runs(module, parameters):
    """`parameters` in lists that lie one after another: what a `PackedLinear` multiplies by at once; others alone."""
    wanted, together = {id(p) for p in parameters}, {}
    for _, *lists in packs(module):
        for run in lists:
            alike = len({(p.dtype, p.requires_grad) for p in run}) == 1
            if alike and all(id(p) in wanted and id(p) not in together for p in run):
                together |= {id(p): run for p in run}
    found = {}
    for p in parameters:
        run = together.get(id(p), [p])
        found.setdefault(id(run[0]), run)
    return list(found.values())


class Places:
    """Where runs of parameters lie, and which elements each rank owns: [starts[r], starts[r + 1]).

    Gradients of `parameters` meet here, and their averages go to `shards`, which a subclass makes.
    """

    def __init__(self, runs, group):
        self.group, self.dtype = group, runs[0][0].dtype
        self.parameters, self.begins, at = [], [], 0
        for run in runs:
            for p in run:
                self.parameters.append(p)
                self.begins.append(at)
                at += p.numel()
            at = padded(at, self.dtype)
        self.total = max(at, 1)
        self.starts = group.starts(self.total, self.dtype.itemsize)
        self.shapes = [tuple(p.shape) for p in self.parameters]
        self.forget()

    def view(self, flat, i):
        """Parameter `i` in such memory."""
        at, shape = self.begins[i], self.shapes[i]
        return flat[at : at + layout.count(shape)].view(shape)

    def extent(self, i, rank=None):
        """Which elements [first, stop) of parameter `i` a rank (this one) owns."""
        rank, n = self.group.rank if rank is None else rank, layout.count(self.shapes[i])
        first, stop = (min(max(edge - self.begins[i], 0), n) for edge in self.starts[rank : rank + 2])
        return first, stop

    def own(self, mine, i):
        """What this rank's elements have of parameter `i`."""
        first, stop = self.extent(i)
        at = self.begins[i] - self.starts[self.group.rank] if stop > first else -first
        return mine[at + first : at + stop]

    def parts(self, flat):
        """What belongs to each rank."""
        return [flat[a:b] for a, b in itertools.pairwise(self.starts)]

    def forget(self):
        """No gradient has come yet."""
        self.taken, self.gradients, self.work = set(), None, None

    def take(self, i):
        """The gradient of parameter `i` is complete: it moves here."""
        p = self.parameters[i]
        if self.gradients is None:
            self.gradients = empty_beside(p, (self.total,)).zero_()
        copy_into(self.view(self.gradients, i), p.gradient)
        p.gradient = None
        self.taken.add(i)

    def send(self):
        """Start averaging; each rank gets its part."""
        parts = self.parts(self.gradients)
        mine = empty_beside(self.gradients, parts[self.group.rank].shape_)
        self.work = c.reduce_scatter(mine, parts, "avg", self.group, async_op=True)

    def collect(self):
        """Wait for the averages and add them to the gradients of the shards."""
        mine = self.work.wait()
        for i in self.taken:
            shard, g = self.shards[i], self.own(mine, i)
            if shard.gradient is None:
                shard.gradient = g
            else:
                shard.gradient.add_(g)
        self.forget()

    def show_packs(self, module, flat):
        """Let each `PackedLinear` whose parts lie here multiply by this memory, so that it has no copy of its own."""
        where = {id(p): at for p, at in zip(self.parameters, self.begins)}

        def joined(run):
            if not run or any(id(p) not in where for p in run):
                return None
            at, rows = where[id(run[0])], sum(p.shape[0] for p in run)
            shape = (rows, *run[0].shape[1:])
            return flat[at : at + layout.count(shape)].view(shape)

        for pack, weights, biases in list(packs(module)):
            weight, bias = joined(weights), joined(biases)
            if weight is not None and (bias is not None or not biases):
                pack._attach(weight, bias)


def room(count, like):
    """A `Room` for `count` elements of the dtype and device of a tensor."""
    return Room(count, like.dtype) if like.device is CPU else Kept(count, like)


class Kept:
    """A `Room` of another device: its addresses stay, and what is behind them if the device cannot take it away."""

    def __init__(self, count, like):
        self.room = like.storage.backend.room(count * like.dtype.itemsize)
        if self.room is None:
            whole = empty_beside(like, (count,))
            address, owner = whole.address, whole.storage
        else:
            address, owner = self.room.address, self.room
        # as of a `Room`, two storages
        self.seen, self.inner = (wrap(address, (count,), (1,), like.dtype, owner, like.device) for _ in range(2))

    def hold(self):
        """It is about to be written to."""
        if self.room is not None:
            self.room.hold()

    def release(self):
        """Its values are needed no longer."""
        if self.room is not None:
            self.room.release()


class Room:
    """Address space whose pages go back to the system by `release`, and read as zeros until they are written to again.

    So tensors on it may stay wherever they are (in a graph of gradients, in a pack): they are right again when the
    values are back. Where the system cannot do that, memory stays.
    """

    def __init__(self, count, dtype):
        self.nbytes, self.held = count * dtype.itemsize, False
        huge = self.nbytes >= 2 * memory.HUGE_PAGE and hasattr(mmap, "MADV_HUGEPAGE")
        boundary = memory.HUGE_PAGE if huge else mmap.PAGESIZE
        self.pages = mmap.mmap(-1, self.nbytes + boundary, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        base = np.frombuffer(self.pages, np.uint8).ctypes.data
        self._first = -base % boundary
        if huge:
            self.pages.madvise(mmap.MADV_HUGEPAGE, self._first, self.nbytes // boundary * boundary)
        # Two storages: what is gathered again has the values that a graph has saved, so its version stays.
        self.seen, self.inner = (self._tensor(base + self._first, count, dtype) for _ in range(2))

    def _tensor(self, address, count, dtype):
        tensor = Tensor.__new__(Tensor)
        storage = memory.Storage(address, self.nbytes, None, self.pages)
        tensor.set_layout(storage, address, dtype, CPU, (count,), (1,), count, True)
        return tensor

    def hold(self):
        """It is about to be written to."""
        if not self.held:
            memory.count_used(self.nbytes)
            self.held = True

    def release(self):
        """Give the pages back."""
        if self.held:
            if _RELEASES:
                self.pages.madvise(mmap.MADV_DONTNEED, self._first, self.nbytes)
            memory.count_used(-self.nbytes)
            self.held = False

    def __del__(self):
        if getattr(self, "held", False) and memory is not None:
            memory.count_used(-self.nbytes)
