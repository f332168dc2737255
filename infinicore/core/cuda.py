"""What NVIDIA's GPUs do for the rest of the house: the `Backend` of a GPU."""

import itertools
import threading

from ..kernels.build import load as cpu_load
from ..kernels.cuda import driver, fuse, load, overlap, plans, policy, render
from . import cuda_host, cuda_room, launch, memory
from .backend import Backend
from .graph import Graph, unrecorded


class _Block:
    """Memory of a storage, which goes back to the pool with it, or to the `arena` of the graph that it belongs to.

    `stream` is the one that it was taken for.
    """

    __slots__ = ("address", "arena", "pool", "size", "stream")

    def __init__(self, pool, address, size, stream, arena=None):
        self.pool, self.address, self.size, self.stream, self.arena = pool, address, size, stream, arena

    def __del__(self):
        if self.arena is None or self.arena.closed:
            self.pool.give(self)
        else:
            self.arena.keep(self)


class GpuArena(memory.Arena):
    """The memory of a CUDA graph: what its recording gives back, only that recording takes again.

    Launches of a recording follow one another in a stream, so memory is free as soon as it is given back. What the
    recording allocates on the host is the base's part.
    """

    def __init__(self, backend):
        super().__init__(backend)
        self._kept = {}  # size -> blocks
        self._spans = []  # (address, bytes) of all that it ever took there

    def take_there(self, nbytes):
        """A block of at least `nbytes` on the GPU."""
        size = memory.size_class(nbytes)
        kept = self._kept.get(size)
        if kept:
            return kept.pop()
        found = self.backend.pool.take(nbytes, self.backend.stream)
        found.arena = self
        self.nbytes += size
        self._spans.append((found.address, size))
        return found

    def spans(self):
        """(address, bytes) of all memory of the GPU that the recording had."""
        return self._spans

    def keep(self, block):
        """Let the recording have a block again. It is a new object: an object's finaliser runs only once."""
        if driver is None:  # the interpreter goes down
            return
        again = _Block(block.pool, block.address, block.size, block.stream, self)
        self._kept.setdefault(block.size, []).append(again)

    def close(self):
        """Give the memory back, at once or when the tensors in it are gone."""
        super().close()
        self._kept = {}


class Pool:
    """Device memory, kept for reuse by stream and size.

    Work of one stream runs in order, so what is given back is taken again at once by what comes later in its stream.
    Where there are several streams, another one may still read it: it waits for a mark in each of them.
    """

    def __init__(self, gpu):
        self.gpu = gpu
        self.streams = [0]
        self.used = self.peak = self.cached = 0
        self.retried = self.refused = 0  # allocations that had to empty the cache first, and those that failed then
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
            if free:
                address = free.pop()
                self.cached -= size
            else:
                address = self.allocate(nbytes, size)
            self.used += size
            if self.used > self.peak:
                self.peak = self.used
        return _Block(self, address, size, stream)

    def allocate(self, nbytes, size):
        """New memory; when there is none, what is kept goes back to the driver first."""
        self.gpu.enter()
        for last in (False, True):
            try:
                return driver.allocate(size)
            except driver.DriverError as error:
                if error.code != driver.OUT_OF_MEMORY:
                    raise
                if last:
                    self.refused += 1
                    free, total = self.gpu.memory()
                    raise MemoryError(
                        f"a tensor of {nbytes} bytes does not fit into the memory of cuda:{self.gpu.index}: "
                        f"{free} of {total} bytes are free, and tensors take {self.used}"
                    ) from None
                self.retried += 1
                self.trim()

    def give(self, block):
        """Keep the memory of a block for the next one that asks for as much."""
        if driver is None:  # the interpreter goes down
            return
        with self._lock:
            self.used -= block.size
            if len(self.streams) == 1:
                self.cached += block.size
                self._free.setdefault((0, block.size), []).append(block.address)
                return
            marks = []
            self.gpu.enter()  # the thread that drops a tensor may be any
            for stream in self.streams:
                if stream != block.stream:
                    mark = driver.Event(timing=False)
                    mark.record(stream)
                    marks.append(mark)
            stream = block.stream if block.stream in self.streams else 0  # it may be gone, with its work done
            self._waiting.append((marks, stream, block.size, block.address))
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

    def forget(self, stream):
        """Take a stream, whose work is done, out of account; what was kept for it goes to the default one."""
        with self._lock:
            self.streams.remove(stream)
            self._reap()
            for of, size in [key for key in self._free if key[0] == stream]:
                self._free.setdefault((0, size), []).extend(self._free.pop((of, size)))

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

    def count(self, nbytes):
        """Count memory of tensors that is not from here."""
        with self._lock:
            self.used += nbytes
            self.peak = max(self.peak, self.used)

    def stats(self, reset_peak=False):
        """Bytes of tensors, the most of them so far, and those kept for reuse; how often memory was short."""
        found = {name: getattr(self, name) for name in ("used", "peak", "cached", "retried", "refused")}
        if reset_peak:
            self.peak = self.used
        return found


def _follow(backend, stream, later):
    """Let the stream `later`, of any GPU, wait for what `stream` of a GPU has so far."""
    backend.enter()
    mark = driver.Event(timing=False)
    mark.record(stream)
    mark.wait(later)


_ACT = 1  # stands for the kernel in a record of `Cuda.act`


class CudaGraph(Graph):
    """Recorded launches as a CUDA graph: one call of the driver replays them all."""

    def __init__(self, records, arena, backend):
        self._backend, self._executable = backend, None
        acts = [keep for kernel, *_, keep, _ in records if kernel == _ACT]
        self._acts = [act for act, _ in acts]
        self._owners = list(dict.fromkeys(owner for _, owner in acts if owner is not None))
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
            self._executable = backend.capture(list(self.rows()), self._acts)
        for owner in self._owners:
            owner.before_replay()
        driver.launch_graph(self._executable, backend.stream)
        for owner in self._owners:
            owner.after_replay()


class GpuBackend(Backend):
    """What does not need a GPU to be there: names of kernels, and plans. `kernels` are a `load.Kernels`."""

    numbers_in_block = True
    row_bytes = 16  # the copy engine reads such rows only

    def kernel(self, name, types):
        """The handle of the kernel `<folder>.<file>.<function>` for these types and constants."""
        return self.kernels.kernel(name, types)

    def launches(self, handle):
        """Whether it is one of this GPU's kernels."""
        return handle == _ACT or self.kernels.has(handle)

    def sized_kernel(self, name, types, unit_size):
        """The same; of kernels of rows the one whose threads hold rows of this size."""
        return self.kernels.sized_kernel(name, unit_size, types)

    def elementwise(self, op, inputs, compute, output):
        """The handle of an elementwise kernel; dtypes are names."""
        return self.kernels.elementwise(op, inputs, compute, output)

    def stored_as(self, output, moved):
        """As they are: a GPU writes whole lines."""
        return output

    def strided(self, op, inputs, compute, output, sizes, steps, itemsizes):
        """(handle, values before the addresses of operands, values behind them) of an elementwise launch."""
        layout = render.rows_layout(inputs, output, sizes, steps)
        handle = self.kernels.elementwise(op, inputs, compute, output, layout)
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

    shares_memory = reports_at_once = False
    has_windows = holds_acts = True

    def __init__(self, device):
        self.gpu, self._index = driver.Gpu(device.index), device.index
        super().__init__(device)
        self.enter()
        self.pool = Pool(self.gpu)
        self.kernels = load.Kernels(self.gpu)
        self._errors = {}  # name of a kernel -> sentences
        self._pages = None  # of rooms
        self._capturing, self._captor = None, None  # the stream that graphs are made in, and the thread that makes one

    @property
    def identity(self):
        """Which GPU of the machine it is, whatever number processes give it."""
        return self.gpu.identity

    def enter(self):
        """Let this thread's calls of the driver mean this GPU; launches see to that by themselves."""
        self.gpu.enter()

    # ---- memory ----

    def arena(self):
        """What a recording allocates from."""
        return GpuArena(self)

    def free_bytes(self):
        """Bytes of memory that tensors can still take."""
        self.enter()
        return self.gpu.memory()[0] + self.pool.cached

    def allocate(self, nbytes):
        """A new `Storage` of uninitialised memory."""
        arena = memory.arena_of(self)
        block = self.pool.take(nbytes, launch.stream(self._index)) if arena is None else arena.take_there(nbytes)
        return memory.Storage(block.address, nbytes, None, block, self)

    def copy(self, to, at, nbytes, source=None):
        """Copy bytes from address `at` of the backend `source` (None: host memory) to address `to` of this one."""
        launch.deed()
        self.enter()
        if source is None:
            driver.copy_to_device(to, at, nbytes, self.stream)
            if driver.is_pinned(at):  # of other memory the driver has made a copy by now
                driver.synchronize(self.stream)
        elif source is self:
            driver.copy_on_device(to, at, nbytes, self.stream)
        else:  # after what the other GPU computes, which may not write there before the copy is done
            _follow(source, source.stream, self.stream)
            self.enter()
            driver.copy_on_device(to, at, nbytes, self.stream)
            _follow(self, self.stream, source.stream)

    def copy_later(self, to, at, nbytes):
        """Begin to copy from page-locked memory of the host, which keeps its values until the stream has done so."""
        launch.deed()
        self.enter()
        driver.copy_to_device(to, at, nbytes, self.stream)

    def read_later(self, to, at, nbytes):
        """Begin to copy to page-locked memory of the host; the bytes are there when the stream has done so."""
        launch.deed()
        self.enter()
        driver.copy_to_host(to, at, nbytes, self.stream)

    def stage(self, nbytes):
        """A piece of page-locked memory, also for a thread that has not used the GPU yet."""
        self.enter()
        return cuda_host.take(nbytes)

    def lock_pages(self, at, nbytes):
        """Lock pages of the host, which others may share, as long as the process lasts; whether the driver can."""
        self.enter()
        return driver.lock_host(at, nbytes)

    def read(self, to, at, nbytes):
        """Copy bytes from address `at` to host memory; they are there when it returns."""
        launch.deed()
        self.enter()
        driver.copy_to_host(to, at, nbytes, self.stream)
        self.synchronize()

    def room(self, nbytes):
        """Addresses behind which memory comes and goes."""
        self.enter()
        if self._pages is None:
            self._pages = cuda_room.Pages(self)
        return cuda_room.Room(self, self._pages, nbytes)

    # ---- memory that GPUs of other processes reach ----

    def window(self, nbytes):
        """(address of zeros that stay as long as the process, what `open_window` takes elsewhere)."""
        self.enter()
        address = self.pool.allocate(nbytes, nbytes)
        driver.clear(address, nbytes)
        return address, driver.export(address)

    def open_window(self, handle):
        """The address here of the window of another process of this host; RuntimeError where GPUs do not reach it."""
        self.enter()
        return driver.open_export(handle)

    # ---- streams ----

    @property
    def stream(self):
        """The handle of this thread's current stream, into which launches and copies go; 0 is the default one."""
        return launch.stream(self.gpu.index)

    @stream.setter
    def stream(self, handle):
        launch.set_stream(self.gpu.index, handle)

    def new_stream(self, priority=0):
        """The handle of a new stream."""
        self.enter()
        handle = driver.create_stream(priority)
        self.pool.streams.append(handle)
        return handle

    def side_stream(self, priority=0):
        """The handle of a new stream that the pool of memory knows nothing of: a free block need not wait for it."""
        self.enter()
        return driver.create_stream(priority)

    def follow(self, stream):
        """Let the current stream wait for what one of another library has so far."""
        _follow(self, stream, self.stream)

    def drop_stream(self, handle):
        """End a stream of `new_stream`, when its work is done."""
        self.enter()
        driver.synchronize(handle)
        self.pool.forget(handle)
        driver.destroy_stream(handle)

    def let_follow(self, stream):
        """Let a stream of another library wait for what the current one has so far."""
        _follow(self, self.stream, stream)

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
        self._raise_found()

    def reach(self, mark):
        """Wait for what a stream had when it took a mark, as `synchronize`."""
        self.enter()
        mark.synchronize()
        self._raise_found()

    def _raise_found(self):
        """Raise what a kernel found wrong since the last time."""
        found = self.kernels.take_error()
        if found is not None:
            name, code = found
            sentence = self._errors.get(name, {}).get(code) or f"a kernel failed with code {code}"
            if isinstance(sentence, Exception):
                raise sentence
            raise ValueError(f"{sentence} (found by the kernel `{name}` on {self.device})")

    def synchronize_all(self):
        """Wait for all streams."""
        self.enter()
        driver.call("cuCtxSynchronize")
        self.synchronize()

    # ---- launches ----

    def launch(self, handle, values, n, grain, keep, errors, places=(), tensors=None):
        """Launch, or record; always 0: what goes wrong is raised when the host waits."""
        if errors:
            self.expect([(handle, errors)])
        return launch.launch(handle, values, n, grain, keep, errors, places, tensors)

    def expect(self, errors):
        """Note the sentences of error codes, which the next wait for these kernels may have to tell."""
        for handle, sentences in errors:
            self._errors[self.kernels.name_of(handle)] = sentences

    @property
    def captures(self):
        """Whether this thread makes a graph of what goes into the current stream, where no mark is ever passed."""
        return self._captor == threading.get_ident()

    def act(self, do, owner=None):
        """Do what puts work of others into streams, or makes streams wait; a recording's graph has it, too.

        What `do()` puts into the current stream when the graph is made, and into streams that follow it, is part of it.
        """
        launch.deed()
        with unrecorded():
            do()
        records = launch.recording()
        if records is not None:
            records.append((_ACT, (), 1, 1, 0, (do, owner), None))

    def graph(self, records, arena):
        """What replays recorded launches."""
        return CudaGraph(records, arena, self)

    def capture(self, rows, acts=()):
        """The handle of an executable graph of launches: (kernel, address of its block, words of it, n).

        `acts` are what rows of `act` stand for, one after the other.
        """
        if self._capturing is None:
            self._capturing = driver.create_stream()
        joined, blocks = [], []
        for is_act, group in itertools.groupby(rows, lambda row: row[0] == _ACT):
            part = list(group)
            found, kept = (part, None) if is_act else fuse.joined(part, self.kernels, self._errors)
            joined += found
            blocks.append(kept)
        beside, left = () if acts else overlap.beside(joined, self.kernels), iter(acts)
        before, self.stream, self._captor = self.stream, self._capturing, threading.get_ident()
        try:
            with driver.Capture(self._capturing, beside) as capture:
                for kernel, args, count, n in joined:
                    if kernel == _ACT:
                        next(left)()
                    else:
                        launch.call_foreign(kernel, args, count, n)
        finally:
            self.stream, self._captor = before, None
        del blocks  # of joined launches, which the capture has copied
        return capture.executable
