"""What NVIDIA's GPUs do for the rest of the house: the `Backend` of a GPU."""

import threading

from ..kernels.build import load as cpu_load
from ..kernels.cuda import driver, load, plans, policy
from . import launch, memory
from .backend import Backend
from .graph import Graph

_current = threading.local()  # `gpu`: the one whose context this thread has entered


class _Block:
    """Memory of a storage, which goes back to the pool with it; `stream` is the one that it was taken for."""

    __slots__ = ("address", "pool", "size", "stream")

    def __init__(self, pool, address, size, stream):
        self.pool, self.address, self.size, self.stream = pool, address, size, stream

    def __del__(self):
        self.pool.give(self)


class Pool:
    """Device memory, kept for reuse by stream and size.

    Work of one stream runs in order, so what is given back is taken again at once by what comes later in its stream.
    Where there are several streams, another one may still read it: it waits for a mark in each of them.
    """

    def __init__(self, gpu):
        self.gpu = gpu
        self.streams = [0]
        self.used = self.peak = self.cached = 0
        self._free = {}  # (stream, size) -> addresses
        self._waiting = []  # (marks, stream, size, address)
        self._lock = threading.RLock()

    def take(self, nbytes, stream):
        """A `_Block` of at least `nbytes` for work of a stream."""
        size = memory.size_class(nbytes)
        with self._lock:
            if self._waiting:
                self._reap()
            free = self._free.get((stream, size))
            address = free.pop() if free else None
            if address is not None:
                self.cached -= size
        if address is None:
            address = self._allocate(nbytes, size)
        with self._lock:
            self.used += size
            self.peak = max(self.peak, self.used)
        return _Block(self, address, size, stream)

    def _allocate(self, nbytes, size):
        """New memory; when there is none, what is kept goes back to the driver first."""
        for last in (False, True):
            try:
                return driver.allocate(size)
            except driver.DriverError as error:
                if error.code != driver.OUT_OF_MEMORY:
                    raise
                if last:
                    free, total = self.gpu.memory()
                    raise MemoryError(
                        f"a tensor of {nbytes} bytes does not fit into the memory of cuda:{self.gpu.index}: "
                        f"{free} of {total} bytes are free, and tensors take {self.used}"
                    ) from None
                self.trim()

    def give(self, block):
        """Keep the memory of a block for the next one that asks for as much."""
        if driver is None:  # the interpreter goes down
            return
        with self._lock:
            self.used -= block.size
            marks = []
            for stream in self.streams if len(self.streams) > 1 else ():
                if stream != block.stream:
                    mark = driver.Event(timing=False)
                    mark.record(stream)
                    marks.append(mark)
            self._waiting.append((marks, block.stream, block.size, block.address))
            if not marks:
                self._reap()

    def _reap(self):
        """Let memory that no stream works with any more be taken."""
        waiting, self._waiting = self._waiting, []
        for marks, stream, size, address in waiting:
            if all(mark.query() for mark in marks):
                self.cached += size
                self._free.setdefault((stream, size), []).append(address)
            else:
                self._waiting.append((marks, stream, size, address))

    def trim(self):
        """Give what is free back to the driver, when all work is done; returns its bytes."""
        with self._lock:
            self.gpu.enter()
            driver.call("cuCtxSynchronize")
            self._reap()
            free, self._free, released, self.cached = self._free, {}, self.cached, 0
        for addresses in free.values():
            for address in addresses:
                driver.free(address)
        return released

    def stats(self, reset_peak=False):
        """Bytes of tensors, the most of them so far, and those that are kept for reuse."""
        found = {"used": self.used, "peak": self.peak, "cached": self.cached}
        if reset_peak:
            self.peak = self.used
        return found


class CudaGraph(Graph):
    """Recorded launches as a CUDA graph: one call of the driver replays them all."""

    def __init__(self, records, arena, backend):
        self._backend, self._executable = backend, None
        super().__init__(records, arena)

    def _prepare(self):
        """Nothing: `run` makes the graph when it is first asked for, and again after `replace`."""

    def replace(self, place, value):
        """Put another number into an argument block."""
        super().replace(place, value)
        self._drop()

    def _drop(self):
        executable, self._executable = self._executable, None
        if executable is not None:
            driver.destroy_graph(executable)

    def __del__(self):
        if driver is not None:
            self._drop()
        super().__del__()

    def run(self):
        """Replay every launch, in order. What goes wrong is raised when the host waits."""
        backend = self._backend
        backend.enter()
        if self._executable is None:
            self._executable = backend.capture(self.rows())
        driver.launch_graph(self._executable, backend.stream)


class GpuBackend(Backend):
    """What does not need a GPU to be there: names of kernels, and plans. `kernels` are a `load.Kernels`."""

    def kernel(self, name, types):
        """The handle of the kernel `<folder>.<file>.<function>` for these types and constants."""
        return self.kernels.kernel(name, types)

    def elementwise(self, op, inputs, compute, output):
        """The handle of an elementwise kernel; dtypes are names."""
        return self.kernels.elementwise(op, inputs, compute, output, strided=False)

    def strided(self, op, inputs, compute, output, sizes, steps, itemsizes):
        """(handle, values before the addresses of operands, values behind them) of an elementwise launch."""
        handle = self.kernels.elementwise(op, inputs, compute, output, strided=True)
        return handle, [], [len(sizes), *sizes, *(s for own in steps for s in own)]

    def split(self, kernel, units, unit_size):
        """(n, grain) of a launch: an item of a GPU's own kernel is one unit, else as on the CPU."""
        if not policy.is_own(kernel):
            return super().split(kernel, units, unit_size)
        return (units[0] * units[1] if type(units) is tuple else units), 1

    def plan(self, problem):
        """The `Plan` of a problem (`kernels/problems`)."""
        key = type(problem), problem
        found = self.plans.get(key)
        if found is None:
            with cpu_load.on(self.kernels):
                found = self.keep(key, plans.plan(problem))
        return found


class Cuda(GpuBackend):
    """One NVIDIA GPU. Launches and copies follow one another in its current stream."""

    shares_memory = False

    def __init__(self, device):
        self.gpu = driver.Gpu(device.index)
        super().__init__(device)
        self.enter()
        self.pool = Pool(self.gpu)
        self.kernels = load.Kernels(self.gpu)
        self._errors = {}  # name of a kernel -> sentences
        self._capturing = None  # the stream that graphs are made in

    def enter(self):
        """Let this thread use the GPU."""
        if getattr(_current, "gpu", None) is not self.gpu:
            self.gpu.enter()
            _current.gpu = self.gpu

    # ---- memory ----

    def allocate(self, nbytes):
        """A new `Storage` of uninitialised memory."""
        self.enter()
        block = self.pool.take(nbytes, self.stream)
        return memory.Storage(block.address, nbytes, None, block, self)

    def copy(self, to, at, nbytes, source=None):
        """Copy bytes from address `at` of the backend `source` (None: host memory) to address `to` of this one."""
        self.enter()
        (driver.copy_to_device if source is None else driver.copy_on_device)(to, at, nbytes, self.stream)

    def read(self, to, at, nbytes):
        """Copy bytes from address `at` to host memory; they are there when it returns."""
        self.enter()
        driver.copy_to_host(to, at, nbytes, self.stream)
        self.synchronize()

    # ---- streams ----

    @property
    def stream(self):
        """The handle of the current stream, into which launches and copies go; 0 is the default one."""
        return self.kernels.stream.value

    @stream.setter
    def stream(self, handle):
        self.kernels.stream.value = handle

    def new_stream(self, priority=0):
        """The handle of a new stream."""
        self.enter()
        handle = driver.create_stream(priority)
        self.pool.streams.append(handle)
        return handle

    def event(self, timing=False):
        """A mark that streams can take, with `record(stream)`, `query`, `synchronize`, `wait`, `elapsed`."""
        self.enter()
        return driver.Event(timing)

    def synchronize(self, stream=None):
        """Wait for the launches and copies of a stream (None: the current one).

        Raises what a kernel found wrong since the last time.
        """
        self.enter()
        driver.synchronize(self.stream if stream is None else stream)
        found = self.kernels.take_error()
        if found is not None:
            name, code = found
            sentence = self._errors.get(name, {}).get(code) or f"a kernel failed with code {code}"
            raise ValueError(f"{sentence} (found by the kernel `{name}` on {self.device})")

    def synchronize_all(self):
        """Wait for all streams."""
        self.enter()
        driver.call("cuCtxSynchronize")
        self.synchronize()

    # ---- launches ----

    def launch(self, handle, values, n, grain, keep, errors, places=(), tensors=None):
        """Launch, or record; always 0: what goes wrong is raised when the host waits."""
        self.enter()
        if errors:
            self._errors[self.kernels.name_of(handle)] = errors
        return launch.launch(handle, values, n, grain, keep, errors, places, tensors)

    def graph(self, records, arena):
        """What replays recorded launches."""
        return CudaGraph(records, arena, self)

    def capture(self, rows):
        """The handle of an executable graph of launches: (kernel, address of its block, words of it, n)."""
        if self._capturing is None:
            self._capturing = driver.create_stream()
        before, self.stream = self.stream, self._capturing
        try:
            with driver.Capture(self._capturing) as capture:
                for kernel, args, count, n in rows:
                    launch.call_foreign(kernel, args, count, n)
        finally:
            self.stream = before
        return capture.executable
