"""Groups of ranks, and the start: `init()` makes the group of all."""

import math
import os
import time

from .. import config
from ..context import set_num_threads
from ..core import launch as core_launch
from ..core import layout, memory
from ..device import CPU, take_gpu, usable
from ..dispatch import as_dtype, empty
from ..kernels.cpu import threads
from ..tensor.tensor import Tensor
from . import debug, world
from .gpu import GpuLinks
from .staging import Staged
from .transport import CHANNELS, Messages, SharedMemory, slices
from .work import Background, Courier, done

_state = {"world": None, "settings": None}


class Group:
    """Ranks that communicate: all of them call each collective, in one order.

    `ranks` are their numbers in the world, `rank` is this process's place among them, `size` how many there are,
    `hosts` where each runs, `place` the number of this one among those on its host, and `transport` says how bytes
    travel ("shared memory", "MPI messages", or "a single process").
    """

    def __init__(self, comm, name, ranks, timeout, transport, checks):
        self.name, self.ranks, self.comm = name, tuple(ranks), comm
        self.rank, self.size = (comm.rank, comm.size) if comm is not None else (0, 1)
        self.links, self.transport, self.checks = None, world.SINGLE, checks
        self.settings = timeout, transport, checks
        self._background, self._courier, self._starts, self._staged = None, None, {}, {}
        self.known = {}  # (op, elements, dtype) of small all-reduces -> function of the tensor, or None
        if self.size == 1:
            self.hosts, self.nodes, self.place = (world.host(),), 1, 0
            return
        MPI = world.mpi()
        about = comm.allgather((world.host(), tuple(sorted(os.sched_getaffinity(0))), core_launch.threads()))
        self.hosts = tuple(host for host, _, _ in about)
        self.place = self.hosts[: self.rank].count(world.host())
        node = comm.Split_type(MPI.COMM_TYPE_SHARED)
        shared = node.size == self.size
        self.nodes = len(set(comm.allgather(node.allgather(self.rank)[0])))
        node.Free()
        here = [entry for entry in about if entry[0] == world.host()]
        # ranks that share CPUs give them away early: a rank that spins keeps the one that it waits for from running
        crowded = len(here) > len({cpu for _, cpus, _ in here for cpu in cpus})
        if transport == "messages" or not comm.allreduce(shared, MPI.LAND):
            self.links = Messages(self, comm, timeout, crowded)
        else:
            self.links = SharedMemory(self, comm, timeout, crowded)
        self.transport = self.links.name
        self.comms = [comm.Dup() for _ in range(CHANNELS)] if checks is not None else []

    def __repr__(self):
        return f"Group({self.name}: rank {self.rank} of {self.size}, ranks {list(self.ranks)}, {self.transport})"

    def starts(self, n, item):
        """Where the parts begin of `n` elements that the ranks reduce, each one of them."""
        found = self._starts.get((n, item))
        if found is None:
            if len(self._starts) >= 4096:
                self._starts.clear()
            found = self._starts[n, item] = slices(n, self.size, item)
        return found

    def links_of(self, x):
        """What carries the elements of a tensor: `links`, or those of its device, if the host cannot reach it."""
        return self.links_on(x.device) if not x.storage.backend.shares_memory else self.links

    def links_on(self, device):
        """The same of tensors on a device that the host cannot reach."""
        found = self._staged.get(device)
        if found is None:
            kind = GpuLinks if device.backend.has_windows else Staged
            found = self._staged[device] = kind(self, device)
        return found

    def empty(self, shape, dtype=None, device=CPU):
        """A new uninitialised tensor in memory that all ranks of a node reach: an all-reduce of it copies nothing.

        Every rank of the group calls this alike. The memory stays until the process ends. Where ranks run on
        several nodes, or little memory can be shared (`/dev/shm`), it is an ordinary tensor, and so on GPUs.
        """
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        dtype = as_dtype("float32" if dtype is None else dtype)
        device, count = usable(device), math.prod(shape)
        if device is not CPU:
            return empty(shape, dtype, None, device)
        if not isinstance(self.links, SharedMemory) or not self.links.has_room(count * dtype.itemsize):
            return empty(shape, dtype)
        owner = self.links.heap(count * dtype.itemsize)
        storage = memory.Storage(owner.address, count * dtype.itemsize, None, owner)
        tensor = Tensor.__new__(Tensor)
        tensor.set_layout(storage, owner.address, dtype, CPU, shape, layout.contiguous_strides(shape), count, True)
        return tensor

    def background(self):
        """The thread that communicates beside this one, made when it is first asked for."""
        if self._background is None:
            self._background = Background(self, "collectives")
        return self._background

    def transfer(self, what, moves, keep, wait=True, ready=None):
        """Messages between this rank and others: (kind, peer, address, bytes) each; their `Work`, unless `wait`.

        They must not begin before `ready()`, if it is given.
        """
        idle = self._courier is None or self._courier.idle()
        if core_launch.recording() is not None or (wait and idle):
            self.links.transfer(what, moves, keep, 0, tag=2)
            return None if wait else done(None)
        task, note = (what, moves, keep), None
        if idle and (ready is None or ready()):  # what finds room is gone at once, without another thread
            note = self.links.note(task)
            if self.links.progress(*task, note, time.monotonic()):
                return done(None)
        if self._courier is None:
            self._courier = Courier(self, "messages")
        work = self._courier.add((task, note, None if note is not None else ready))
        return work.wait() if wait else work

    def split(self, ranks_by_group, name):
        """The group among lists of ranks of this one (which are all its ranks) that this process is in.

        Every rank of this group calls it with the same lists.
        """
        flat = sorted(r for ranks in ranks_by_group for r in ranks)
        if flat != list(range(self.size)):
            raise ValueError(f"`ranks_by_group` must hold each of the {self.size} ranks once, got {ranks_by_group}")
        number = next(i for i, ranks in enumerate(ranks_by_group) if self.rank in ranks)
        ranks = ranks_by_group[number]
        if self.comm is None:
            return self
        comm = self.comm.Split(number, ranks.index(self.rank))
        return Group(comm, name, [self.ranks[r] for r in ranks], *self.settings)


def _divide_threads(comm):
    """Ranks that may run on the same CPUs have an equal part of them as threads, unless the user says otherwise."""
    mine = world.host(), tuple(sorted(os.sched_getaffinity(0)))
    alike = comm.allgather(mine).count(mine)
    if alike > 1 and not os.environ.get("INFINICORE_NUM_THREADS"):
        set_num_threads(max(1, threads.default_threads() // alike))


def init(timeout=None, transport=None, debug_mode=None):
    """Start communication, once; returns the `Group` of all processes. A process that was started alone is one rank.

    From here on "cuda" is this rank's own GPU: those of a machine are given out by turns (`Group.place`).

    `timeout`: seconds after which waiting for another rank is an error (`INFINICORE_COMM_TIMEOUT`, 600). `transport`:
    "auto", or "messages" for MPI's messages also on one node (`INFINICORE_COMM_TRANSPORT`). `debug_mode`: compare what
    ranks call before each collective, and name the lines where they differ (`INFINICORE_COMM_DEBUG`).
    """
    given = timeout, transport, debug_mode
    if _state["world"] is not None:
        if any(x is not None for x in given) and given != _state["settings"]:
            raise ValueError(f"`init` was called before with {_state['settings']}, and now with {given}: call it once")
        return _state["world"]
    timeout = config.get("INFINICORE_COMM_TIMEOUT") if timeout is None else timeout
    transport = config.get("INFINICORE_COMM_TRANSPORT") if transport is None else transport
    if not isinstance(timeout, (int, float)) or not timeout > 0:
        raise ValueError(f"`timeout` must be a number of seconds above 0, got {timeout!r}")
    if transport not in ("auto", "messages"):
        raise ValueError(f"`transport` must be 'auto' or 'messages', got {transport!r}")
    checks = config.get("INFINICORE_COMM_DEBUG") == "1" if debug_mode is None else bool(debug_mode)
    MPI = world.mpi()
    comm = None if MPI is None else MPI.COMM_WORLD.Dup()
    ranks = range(1 if comm is None else comm.size)
    if comm is not None:
        _divide_threads(comm)
    _state["world"] = Group(comm, "world", ranks, timeout, transport, debug.Checks if checks else None)
    _state["settings"] = given
    take_gpu(_state["world"].place)
    if comm is not None:
        world.note_gpus(comm, _state["world"].place)
    _tell_modules()
    return _state["world"]


def _tell_modules():
    """Let `nn.SyncBatchNorm` reach the ranks."""
    from ..nn.modules.sync import register_ranks
    from .functional import all_reduce

    register_ranks(get_world_size, lambda x, group: all_reduce(x, "sum", group))


def is_initialized():
    """Whether `init` was called."""
    return _state["world"] is not None


def world_group(group=None):
    """`group`, or the group of all processes, which `init` makes if it was not called."""
    if group is None:
        return _state["world"] or init()
    if not isinstance(group, Group):
        raise TypeError(f"`group` must be a Group, got {type(group).__name__}")
    return group


def get_rank(group=None):
    """The rank of this process in a group."""
    return world_group(group).rank


def get_world_size(group=None):
    """How many ranks a group has."""
    return world_group(group).size


def new_group(ranks):
    """The group of these ranks of the world, or None where this process is none of them. Every process calls it."""
    everyone = world_group()
    ranks = list(ranks)
    if not ranks or len(set(ranks)) != len(ranks) or not set(ranks) <= set(range(everyone.size)):
        raise ValueError(f"`ranks` must be different ranks of the {everyone.size} of this job, got {ranks}")
    rest = [r for r in range(everyone.size) if r not in ranks]
    found = everyone.split([ranks, rest] if rest else [ranks], f"ranks {ranks}")
    return found if everyone.rank in ranks else None
