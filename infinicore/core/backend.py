"""What a device does for the rest of the house: memory, copies, kernels, launches, plans, graphs.

One object a device. A storage carries its backend, and everything that allocates, launches or reads values goes through
it; so a second device is a second object, and nothing above this file asks which one it has.
"""

import ctypes
import functools
import threading
import time

import numpy as np

from .. import kernels
from ..kernels.blocks.elementwise import WALK
from ..kernels.build import jit, render
from ..kernels.cpu import machine, plans, policy
from . import launch, memory
from .graph import Graph, raise_for

__all__ = ["Backend", "Mirror", "raise_for"]

LONG_ROW = 256  # elements, from which on a kernel of its own reads what is one number for a row
# Results that may go past the caches: a vector of them fills 16 bytes.
_NONTEMPORAL = "float16", "bfloat16", *(f"{kind}{bits}" for kind in ("float", "int", "uint") for bits in (16, 32, 64))
KEPT = 8192  # plans of a backend; beyond, it starts afresh
SPARE = 1 << 20  # bytes that a result may keep with its own: to copy it is one more thing to wait for
_pieces = threading.local()  # backend -> a few bytes of `stage`


class Backend:
    """The CPU, and the base of other devices, which replace what they do in another way.

    `device` is the device that tensors of this backend name; `shares_memory` says that the host may read and write
    its memory by address; rows of a matrix that are a multiple of `row_bytes` long are multiplied as they lie.
    """

    shares_memory = True
    row_bytes = 1
    of_samples = False  # whether its tensors stand for samples of a batch (`dispatch/batching.py`)
    has_windows = False  # whether devices of other processes can reach memory of `window`
    identity = None  # of the hardware among those of its kind that a machine has; None: it is the machine's
    reports_at_once = True  # whether a launch returns what its kernel found wrong; else it is told when the host waits
    holds_acts = False  # whether its graphs hold what is done by `act`
    captures = False  # whether this thread makes a graph of what goes into streams, where no mark is ever passed
    numbers_in_block = False  # whether elementwise kernels take numbers ("number float32") in the argument block

    def __init__(self, device):
        self.device = device
        self.plans = {}  # (threads, problem) -> Plan; elementwise calls keep theirs here too

    def __repr__(self):
        return f"{type(self).__name__}({self.device})"

    # ---- memory ----

    def allocate(self, nbytes):
        """A new `Storage` of uninitialised memory."""
        return memory.allocate(nbytes)

    def arena(self):
        """What a recording allocates from."""
        return memory.Arena(self)

    def free_bytes(self):
        """Bytes of memory that tensors can still take; None: not known."""
        return None

    def copy(self, to, at, nbytes, source=None):
        """Copy bytes from address `at` of the backend `source` (None: host memory) to address `to` of this one.

        The bytes are there when the next launch of this backend runs; see `read` for the way back.
        """
        launch.deed()
        ctypes.memmove(to, at, nbytes)

    def read(self, to, at, nbytes):
        """Copy bytes from address `at` of this backend to host memory; they are there when it returns."""
        launch.deed()
        ctypes.memmove(to, at, nbytes)

    def read_number(self, at, kind=ctypes.c_int64):
        """The number of this ctypes kind at address `at`, through a few bytes that the thread keeps for it."""
        piece = _pieces.__dict__.get(self)
        if piece is None:
            piece = _pieces.__dict__[self] = self.stage(8)
        self.read(piece.address, at, ctypes.sizeof(kind))
        return kind.from_address(piece.address).value

    def first_rows(self, y, count):
        """The first `count` rows of a new tensor.

        Of another device's they are copied where they need less than half of its memory, and more than 1 MiB is kept.
        """
        rows = launch.view_tensor(y, (count, *y.shape_[1:]), y.strides_)
        if self.shares_memory or 2 * count >= y.shape_[0] or y.storage.nbytes <= SPARE:
            return rows
        own = launch.new_tensor(rows.shape_, y.dtype, y.device)
        self.copy(own.address, rows.address, rows.numel_ * y.dtype.itemsize, self)
        return own

    def copy_later(self, to, at, nbytes):
        """Begin to copy from host memory of `stage` to address `to`: behind what the current stream has so far."""
        self.copy(to, at, nbytes)

    def read_later(self, to, at, nbytes):
        """Begin to copy from address `at` to host memory of `stage`."""
        self.read(to, at, nbytes)

    def stage(self, nbytes):
        """Host memory for `copy_later` and `read_later`: what owns it, with its `address`.

        Where it has `marks`, it is taken again only when these have passed.
        """
        return memory.allocate(nbytes)

    def lock_pages(self, at, nbytes):
        """Let host memory at this address, which stays as long as the process, serve as `stage`; whether it does."""
        return True

    def room(self, nbytes):
        """Addresses behind which memory comes (`hold`) and goes (`release`); None where memory stays."""
        return None

    def hand_out(self):
        """Memory of this backend is about to be given to another library by its address."""

    def enter(self):
        """Let this thread's calls of a driver mean this device; launches see to that by themselves."""

    # ---- streams: the CPU has one, whose launches have ended when they return ----

    stream = 0  # the handle of the current one

    def new_stream(self, priority=0):
        """The handle of a new stream."""
        return 0

    def side_stream(self, priority=0):
        """The handle of a stream that lasts, for work on memory that somebody holds until it is done."""
        return 0

    def drop_stream(self, handle):
        """End a stream of `new_stream`, when its work is done."""

    def event(self, timing=False):
        """A mark that streams can take."""
        return Event()

    def synchronize(self, stream=None):
        """Wait for all launches and copies of a stream (None: the current one)."""

    def reach(self, mark):
        """Wait for what a stream had when it took a mark (`event`)."""
        mark.synchronize()

    def synchronize_all(self):
        """Wait for all streams."""

    def act(self, do, owner=None):
        """Do what puts work of others into streams, or makes streams wait, also in graphs of devices that hold that.

        There `do()` is called again when the graph is made, and must not ask how far a stream has got; the methods
        `before_replay` and `after_replay` of its `owner` are called around each replay.
        """
        if launch.recording() is not None:
            raise NotImplementedError(
                f"graphs of {self.device} hold no work of others: call it outside of the recording"
            )
        do()

    # ---- kernels ----

    def kernel(self, name, types):
        """The handle of the kernel `<folder>.<file>.<function>` for these types and constants."""
        return kernels.kernel(name, **types)

    def sized_kernel(self, name, types, unit_size):
        """The same for units of this size: a device may have several kernels of a name."""
        return self.kernel(name, types)

    def has_kernel(self, address):
        """Whether a kernel lies at this address."""
        return address in jit._addresses.values()

    def elementwise(self, op, inputs, compute, output):
        """The handle of an elementwise kernel; dtypes are names."""
        source = render.elementwise(op, inputs, compute, output)
        return jit.load_kernel("-".join([op.name, *inputs, output]), source)

    @functools.cached_property
    def cache_bytes(self):
        """Up to how many bytes operands and results of a call stay in the caches."""
        return machine.cache_bytes()

    def stored_as(self, output, moved):
        """How an elementwise kernel stores results of the dtype `output` where a call moves so many bytes.

        What the caches have no room for goes past them, so that its lines are not read before: on two cores of a Zen 3
        `x + y` of 64 Mi float32 took 33 to 46 ms and takes 24 to 32 (`docs/benchmarks/two-cores.md`).
        """
        through = moved > self.cache_bytes and output in _NONTEMPORAL
        return f"nontemporal {output}" if through else output

    def strided(self, op, inputs, compute, output, sizes, steps, itemsizes):
        """(handle, values before the operands' addresses, values behind them) of an elementwise launch on any layout.

        `sizes` are those of the dims, `steps` the strides of each operand, the output last, in elements.
        """
        single, through = 0, output.startswith("nontemporal ")
        long = len(sizes) > 1 or through
        if long and sizes[-1] >= LONG_ROW and not any(d.startswith("complex") for d in (*inputs, output)):
            for i, (name, dtype) in enumerate(zip(op.parameters, inputs)):
                single |= (steps[i][-1] == 0 and name != "condition" and dtype in render.SINGLE) << i
        dense = all(own[-1] == 1 or single >> i & 1 for i, own in enumerate(steps))
        if through and not (dense and sizes[-1] >= LONG_ROW):
            output = output.removeprefix("nontemporal ")
        names = tuple([f"single {dtype}" if single >> i & 1 else dtype for i, dtype in enumerate(inputs)])
        kernel = self.elementwise(op, names, compute, output)
        head = WALK(kernel=kernel, count=len(steps), ndim=len(sizes), single=single)[0]
        tail = [*itemsizes, *sizes, *(s for own in steps for s in own)]
        return self.kernel("array.elementwise.walk", {}), head, tail

    def split(self, kernel, units, unit_size):
        """(n, grain) of a launch: the items of the kernel that make up these units, and how many are worth a thread."""
        return policy.split(kernel, units, unit_size)

    def plan(self, problem):
        """The `Plan` of a problem (`kernels/problems`) for the current thread count."""
        key = launch.threads(), type(problem), problem  # the type: tuples of two types may be equal
        found = self.plans.get(key)
        return self.keep(key, plans.plan(problem, key[0])) if found is None else found

    def keep(self, key, plan):
        """Keep a plan, and return it; when there are too many, all others are forgotten."""
        if len(self.plans) >= KEPT:
            self.plans.clear()
        self.plans[key] = plan
        return plan

    # ---- launches ----

    # (handle, values of the block, n, grain, keep, errors, places and tensors of a plan) -> error code, or 0
    launch = staticmethod(launch.launch)

    def expect(self, errors):
        """Note sentences of error codes, [(handle of a kernel, {code: sentence})], where they are not told at once."""

    def launches(self, handle):
        """Whether a kernel of this name runs here. (Handles of a GPU's kernels are odd, as no address of code is.)"""
        return not handle & 1

    def graph(self, records, arena):
        """What replays recorded launches: `Graph`."""
        return Graph(records, arena)


class Event:
    """A mark in the launches of the CPU: a time."""

    at = None

    def record(self, stream):
        """Take the time."""
        self.at = time.perf_counter()

    def query(self):
        """Whether everything before the mark has ended."""
        return True

    def synchronize(self):
        """Wait until everything before the mark has ended."""

    def wait(self, stream):
        """Let a stream wait for the mark."""

    def elapsed(self, other):
        """Milliseconds from this mark to another one."""
        return (other.at - self.at) * 1e3


class Mirror:
    """Values that the host and a device exchange, also in the replays of a graph; they begin as zeros.

    `tensor` lies on the device, `host` is a NumPy array of its values: call `flush()` after writing to it, and
    `fetch()` before reading what the device wrote. On the CPU both are the same memory, and nothing has to be done.
    """

    def __init__(self, tensor):
        self.tensor = tensor
        self._backend = tensor.storage.backend
        self._flushed, self._noted = None, None
        if self._backend.shares_memory:
            self.host = tensor.numpy()
            self.host[...] = 0
            self.flush = self.fetch = _nothing
        else:
            self.host = np.zeros(tensor.shape_, tensor.dtype.numpy)
            self.flush()

    def flush(self):
        """Bring the host's values of now to the device, behind what its stream has so far."""
        if self._flushed is None:  # two that take turns: most often nothing has to be waited for
            self._flushed = [_Aside(self) for _ in range(2)]
        self._flushed.reverse()
        aside = self._flushed[0]
        aside.mark.synchronize()
        aside.values[...] = self.host
        self._backend.copy_later(self.tensor.address, aside.memory.address, self.host.nbytes)
        aside.mark.record(self._backend.stream)

    def fetch(self):
        """Bring the device's values to the host."""
        self._backend.read(self.host.ctypes.data, self.tensor.address, self.host.nbytes)

    def note(self):
        """Begin to bring the device's values of now to the host, to where `noted()` finds them."""
        if self._noted is None:
            self._noted = _Aside(self)
        self._backend.read_later(self._noted.memory.address, self.tensor.address, self.host.nbytes)
        self._noted.mark.record(self._backend.stream)

    def noted(self):
        """An array of the values of the last `note()`, when they are there; the next one changes it."""
        self._backend.reach(self._noted.mark)
        return self._noted.values


class _Aside:
    """Memory of the host that a device reads and writes by itself, for the values of a `Mirror`, and a mark behind
    what does so.
    """

    def __init__(self, mirror):
        backend, shape, dtype = mirror._backend, mirror.host.shape, mirror.host.dtype
        self.memory, self.mark = backend.stage(max(1, mirror.host.nbytes)), backend.event()
        if hasattr(self.memory, "marks"):  # it may be dropped while the device still reads or writes it
            self.memory.marks.append(self.mark)
        there = (ctypes.c_char * mirror.host.nbytes).from_address(self.memory.address)
        self.values = np.frombuffer(there, dtype).reshape(shape)


def _nothing():
    """What `flush` and `fetch` have to do where host and device share memory."""
