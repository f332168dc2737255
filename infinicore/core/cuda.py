"""What NVIDIA's GPUs do for the rest of the house: the `Backend` of a GPU."""

import threading

from ..kernels.build import load as cpu_load
from ..kernels.cpu import plans as cpu_plans
from ..kernels.cuda import driver, load
from . import launch, memory
from .backend import Backend

_SMALL = 1 << 20  # blocks up to here come out of chunks of this size
_current = threading.local()  # `gpu`: the one whose context this thread has entered


class _Block:
    """Memory of a storage, which goes back to the pool with it."""

    __slots__ = ("address", "pool", "size")

    def __init__(self, pool, address, size):
        self.pool, self.address, self.size = pool, address, size

    def __del__(self):
        self.pool.give(self.address, self.size)


class Pool:
    """Device memory, kept for reuse by size. What is given back is taken again by work that is later in the stream."""

    def __init__(self, gpu):
        self.gpu = gpu
        self.free = {}  # size -> addresses
        self.used = self.peak = self.cached = 0
        self._lock = threading.RLock()

    def take(self, nbytes):
        """(address, size) of at least `nbytes`."""
        size = memory.size_class(nbytes)
        with self._lock:
            self.used += size
            self.peak = max(self.peak, self.used)
            free = self.free.get(size)
            if free:
                self.cached -= size
                return free.pop(), size
        try:
            try:
                return driver.allocate(size), size
            except driver.DriverError as error:
                if error.code != driver.OUT_OF_MEMORY:
                    raise
                self.trim()
                return driver.allocate(size), size
        except driver.DriverError as error:
            self.used -= size
            if error.code != driver.OUT_OF_MEMORY:
                raise
            free, total = self.gpu.memory()
            raise MemoryError(
                f"a tensor of {nbytes} bytes does not fit into the memory of cuda:{self.gpu.index}: {free} of {total} "
                f"bytes are free, and tensors take {self.used}"
            ) from None

    def give(self, address, size):
        """Keep memory for the next one that asks for as much."""
        with self._lock:
            self.used -= size
            self.cached += size
            self.free.setdefault(size, []).append(address)

    def trim(self):
        """Give what is free back to the driver; returns its bytes."""
        with self._lock:
            freed, self.free, bytes_freed, self.cached = self.free, {}, self.cached, 0
        if freed:
            self.gpu.enter()
            driver.call("cuCtxSynchronize")
            for addresses in freed.values():
                for address in addresses:
                    driver.free(address)
        return bytes_freed


class Cuda(Backend):
    """One NVIDIA GPU. Launches and copies follow one another in its current stream."""

    shares_memory = False

    def __init__(self, device):
        self.gpu = driver.Gpu(device.index)
        super().__init__(device)
        self.enter()
        self.pool = Pool(self.gpu)
        self.kernels = load.Kernels(self.gpu)
        self._errors = {}  # number of a kernel's handle -> sentences

    def enter(self):
        """Let this thread use the GPU."""
        if getattr(_current, "gpu", None) is not self.gpu:
            self.gpu.enter()
            _current.gpu = self.gpu

    # ---- memory ----

    def allocate(self, nbytes):
        """A new `Storage` of uninitialised memory."""
        self.enter()
        address, size = self.pool.take(nbytes)
        return memory.Storage(address, nbytes, None, _Block(self.pool, address, size), self)

    def copy(self, to, at, nbytes, source=None):
        """Copy bytes from address `at` of the backend `source` (None: host memory) to address `to` of this one."""
        self.enter()
        stream = self.kernels.stream.value
        (driver.copy_to_device if source is None else driver.copy_on_device)(to, at, nbytes, stream)

    def read(self, to, at, nbytes):
        """Copy bytes from address `at` to host memory; they are there when it returns."""
        self.enter()
        driver.copy_to_host(to, at, nbytes, self.kernels.stream.value)
        self.synchronize()

    def synchronize(self):
        """Wait for all launches and copies. Raises what a kernel found wrong since the last time."""
        self.enter()
        driver.synchronize(self.kernels.stream.value)
        found = self.kernels.take_error()
        if found is not None:
            name, code = found
            sentence = self._errors.get(name, {}).get(code, f"failed with code {code}")
            raise ValueError(f"{sentence} (found by the kernel `{name}` on {self.device})")

    # ---- kernels ----

    def kernel(self, name, types):
        """The handle of the kernel `<folder>.<file>.<function>` for these types and constants."""
        return self.kernels.kernel(name, types)

    def elementwise(self, op, inputs, compute, output):
        """The handle of an elementwise kernel; dtypes are names."""
        return self.kernels.elementwise(op, inputs, compute, output, strided=False)

    def strided(self, op, inputs, compute, output, sizes, steps, itemsizes):
        """(handle, values before the operands' addresses, values behind them) of an elementwise launch on any layout."""
        handle = self.kernels.elementwise(op, inputs, compute, output, strided=True)
        return handle, [], [len(sizes), *sizes, *(s for own in steps for s in own)]

    def plan(self, problem):
        """The `Plan` of a problem (`kernels/problems`)."""
        key = type(problem), problem
        found = self.plans.get(key)
        if found is None:
            with cpu_load.on(self.kernels):
                found = self.keep(key, cpu_plans.plan(problem, _SLOTS))
        return found

    # ---- launches ----

    def launch(self, handle, values, n, grain, keep, errors, places=(), tensors=None):
        """Launch, or record; always 0: what goes wrong is raised when the host waits."""
        self.enter()
        if errors:
            self._errors[self.kernels.name_of(handle)] = errors
        return launch.launch(handle, values, n, grain, keep, errors, places, tensors)


_SLOTS = 1024  # what takes slots of a workspace gets so many
