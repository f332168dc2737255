"""Worker processes of a DataLoader: what runs in one, and the pool that the parent talks to.

Parent and worker share a pipe and `prefetch_factor` blocks of memory. The parent sends tasks, at most as many as
there are blocks; the worker puts a result into the task's block and sends 17 bytes. So the worker never waits for
room in the pipe, and the two cannot wait for each other.
"""

import contextlib
import itertools
import multiprocessing
import os
import pickle
import random
import signal
import struct
import time
import traceback
import warnings
import weakref
from dataclasses import dataclass
from multiprocessing import connection

import numpy as np

from ..dispatch.generator import fork_rng, manual_seed
from .collate import default_collate, default_convert
from .sampler import mix
from .transfer import SharedBlock

_MESSAGE = struct.Struct("<cQQ")  # status, size of the head, bytes of the block in use
_BATCH, _END, _ERROR = b"b", b"e", b"x"
_PATIENCE = 5.0  # seconds that a worker has to end by itself
END = object()  # what a fetcher gives at the end of an iterable dataset
_info = None


@dataclass(kw_only=True, slots=True, frozen=True)
class WorkerInfo:
    """Which worker this is: `id` of `num_workers`, its `seed` in this epoch, and its copy of the `dataset`."""

    id: int
    num_workers: int
    seed: int
    dataset: object


def get_worker_info():
    """The `WorkerInfo` of the worker process that this is called in; None in any other process."""
    return _info


@contextlib.contextmanager
def seeded(seed):
    """Inside, `random`, `numpy.random` and the default generator start from `seed`; after it all continue as before."""
    before, before_numpy = random.getstate(), np.random.get_state()
    try:
        with fork_rng(seed):
            _seed_all(seed)
            yield
    finally:
        random.setstate(before)
        np.random.set_state(before_numpy)


def _seed_all(seed):
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)


def stream_seed(seed, worker):
    """The seed of an iterable dataset's stream in one worker (0: in the main process too)."""
    return mix(seed, worker)


class Fetcher:
    """Makes batches of a dataset, the same ones in a worker and in the main process.

    A batch's random numbers follow from the epoch's seed and the batch's number alone, not from the worker that makes
    it; of an iterable dataset each worker has a stream of its own.
    """

    def __init__(self, dataset, collate_fn, iterable, batched, drop_last):
        self.dataset, self.collate_fn = dataset, collate_fn
        self.iterable, self.batched, self.drop_last = iterable, batched, drop_last
        self._deterministic = getattr(dataset, "deterministic", False) and collate_fn is None
        self._items = self._epoch_seed = None

    def start(self, seed):
        """Begin an epoch, whose random numbers follow from `seed`."""
        self._epoch_seed, self._items = seed, None

    def fetch(self, number, what):
        """Batch `number`: of the indices `what`, or of an iterable dataset the next `what` samples.

        `END` at the end of an iterable dataset.
        """
        if self._deterministic:
            return self._fetch(what)
        seed = mix(self._epoch_seed, number)
        if _info is not None:  # nobody else draws in a worker: 0.1 ms less than saving and restoring
            manual_seed(seed)
            _seed_all(seed)
            return self._fetch(what)
        with seeded(seed):
            return self._fetch(what)

    def _fetch(self, what):
        if self.iterable:
            return self._next(what)
        if not self.batched:
            return (self.collate_fn or default_convert)(self.dataset[what])
        if self.collate_fn is None and hasattr(self.dataset, "get_batch"):
            return self.dataset.get_batch(what)
        if hasattr(self.dataset, "__getitems__"):
            samples = self.dataset.__getitems__(what)
        else:
            samples = [self.dataset[index] for index in what]
        return (self.collate_fn or default_collate)(samples)

    def _next(self, size):
        if self._items is None:
            self._items = iter(self.dataset)
        samples = list(itertools.islice(self._items, size if self.batched else 1))
        if not samples or (self.drop_last and len(samples) < size):
            return END
        if not self.batched:
            return (self.collate_fn or default_convert)(samples[0])
        return (self.collate_fn or default_collate)(samples)


def _portable(error, worker_id):
    """An exception that can be pickled, with this process's traceback as a note."""
    text = "".join(traceback.format_exception(error)).rstrip()
    note = f"Raised in DataLoader worker {worker_id} (process {os.getpid()}):\n{text}"
    try:
        copy = pickle.loads(pickle.dumps(error))
        if type(copy) is not type(error) or str(copy) != str(error):
            raise TypeError
    except Exception:  # whatever a class of somebody else does
        copy = RuntimeError(f"{type(error).__name__}: {error}")
    copy.__notes__ = [*getattr(error, "__notes__", ()), note]
    return copy, copy.__notes__


class _Worker:
    """What a worker process runs: tasks from a pipe, results into blocks."""

    def __init__(self, pipe, blocks, fetcher, worker_id, num_workers, init_fn):
        self.pipe, self.blocks, self.fetcher = pipe, blocks, fetcher
        self.id, self.num_workers, self.init_fn = worker_id, num_workers, init_fn
        self.problem = None  # what `init_fn` raised
        self.steps = itertools.count()

    def start_epoch(self, seed):
        global _info
        first = _info is None
        own = (seed + self.id) & (1 << 63) - 1
        _info = WorkerInfo(id=self.id, num_workers=self.num_workers, seed=own, dataset=self.fetcher.dataset)
        self.fetcher.start(stream_seed(seed, self.id) if self.fetcher.iterable else seed)
        self.steps = itertools.count()
        _seed_all(own)  # for what runs outside of batches
        manual_seed(own)
        if first and self.init_fn is not None:
            try:
                self.init_fn(self.id)
            except Exception as error:
                self.problem = _portable(error, self.id)

    def work(self, slot, number, what):
        """One task; its answer."""
        block = self.blocks[slot]
        if self.problem is not None:
            return _MESSAGE.pack(_ERROR, *block.write(self.problem))
        try:
            result = self.fetcher.fetch(next(self.steps) if self.fetcher.iterable else number, what)
            if result is END:
                return _MESSAGE.pack(_END, 0, 0)
            return _MESSAGE.pack(_BATCH, *block.write(result))
        except Exception as error:
            return _MESSAGE.pack(_ERROR, *block.write(_portable(error, self.id)))

    def run(self, parent_lives):
        """Work until the parent says `stop`, closes the pipe or is gone."""
        with contextlib.suppress(EOFError, ConnectionError):
            while True:
                while not self.pipe.poll(_PATIENCE):
                    if not parent_lives():
                        return
                kind, *rest = self.pipe.recv()
                if kind == "stop":
                    return
                if kind == "epoch":
                    self.start_epoch(*rest)
                else:
                    self.pipe.send_bytes(self.work(*rest))


def _run(inherited, parent, *args):
    """The main function of a worker process; `inherited` are copies of pipe ends that belong to its parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what an interrupt means
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a handler that the parent has set is not for its workers
    for other in inherited:  # a pipe ends when all copies of the other end are closed
        other.close()
    if parent is None:  # not forked
        alive = multiprocessing.parent_process().is_alive
    else:
        alive = lambda: os.getppid() == parent
    _Worker(*args).run(alive)


def _shutdown(owner, processes, pipes, blocks):
    """End the workers of a pool; also called when the pool is forgotten."""
    if os.getpid() != owner:  # a fork has a copy of the pool, not its processes
        return
    for pipe in pipes:
        pipe.close()
    limit = time.monotonic() + _PATIENCE
    for process in processes:
        process.join(max(0.0, limit - time.monotonic()))
    for end in ("terminate", "kill"):
        for process in processes:
            if process.is_alive():
                getattr(process, end)()
                process.join(1.0)
    for block in itertools.chain.from_iterable(blocks):
        block.close()


class WorkerPool:
    """The worker processes of a loader. Tasks of one worker are answered in their order."""

    def __init__(self, fetcher, num_workers, prefetch_factor, init_fn=None, context=None):
        if context is None:
            context = "fork" if "fork" in multiprocessing.get_all_start_methods() else None
        if context is None or isinstance(context, str):
            context = multiprocessing.get_context(context)
        self.num_workers, self.prefetch_factor = num_workers, prefetch_factor
        self._processes, self._pipes, self._blocks = [], [], []
        self._sent, self._received = [0] * num_workers, [0] * num_workers
        lists = self._processes, self._pipes, self._blocks
        self._finalizer = weakref.finalize(self, _shutdown, os.getpid(), *lists)
        for worker in range(num_workers):
            self._start(context, fetcher, worker, init_fn)

    def _start(self, context, fetcher, worker, init_fn):
        forks = context.get_start_method() == "fork"
        ours, theirs = context.Pipe()
        blocks = [SharedBlock() for _ in range(self.prefetch_factor)]
        self._pipes.append(ours)
        self._blocks.append(blocks)
        process = context.Process(
            target=_run,
            args=(
                list(self._pipes) if forks else [],
                os.getpid() if forks else None,
                *(theirs, blocks, fetcher, worker, self.num_workers, init_fn),
            ),
            name=f"DataLoader worker {worker}",
            daemon=True,
        )
        with warnings.catch_warnings():
            # Newer Pythons warn of any fork beside threads; a worker touches no thread of its parent.
            warnings.simplefilter("ignore", DeprecationWarning)
            process.start()
        theirs.close()
        self._processes.append(process)

    @property
    def alive(self):
        """Whether the workers have not been ended."""
        return self._finalizer.alive

    def start_epoch(self, seed):
        """Tell all workers; what an earlier epoch has left is thrown away."""
        for worker in range(self.num_workers):
            while self._received[worker] < self._sent[worker]:
                self._answer(worker, 0)
            self._send(worker, ("epoch", seed))

    def send(self, worker, number, what):
        """Give a worker a task. At most `prefetch_factor` may be under way."""
        self._send(worker, ("task", self._sent[worker] % self.prefetch_factor, number, what))
        self._sent[worker] += 1

    def _send(self, worker, message):
        try:
            self._pipes[worker].send(message)
        except ConnectionError:
            raise self._death(worker) from None

    def _answer(self, worker, timeout):
        """(status, block, its two sizes) of a worker's oldest task."""
        pipe, process = self._pipes[worker], self._processes[worker]
        if not connection.wait([pipe, process.sentinel], timeout or None):
            process.terminate()  # it hangs, so it would not end by itself
            self.close()
            raise RuntimeError(
                f"DataLoader worker {worker} (process {process.pid}) gave no batch within `timeout` {timeout} s; "
                "allow more time, or use more workers or a faster dataset"
            )
        try:
            if not pipe.poll():
                raise EOFError
            status, *sizes = _MESSAGE.unpack(pipe.recv_bytes())
        except (EOFError, ConnectionError):
            raise self._death(worker) from None
        slot = self._received[worker] % self.prefetch_factor
        self._received[worker] += 1
        return status, self._blocks[worker][slot], sizes

    def receive(self, worker, timeout, skip=False):
        """(True, result) of a worker's oldest task; (False, None) if its iterable dataset is at its end.

        Raises what the task raised, and RuntimeError for a worker that ended or took longer than `timeout` seconds
        (0: no limit). With `skip` the result is not read, and None.
        """
        status, block, sizes = self._answer(worker, timeout)
        if status == _END or (skip and status == _BATCH):
            return status == _BATCH, None
        result = block.read(*sizes)
        if status == _ERROR:
            error, error.__notes__ = result
            raise error
        return True, result

    def _death(self, worker):
        process = self._processes[worker]
        process.join(_PATIENCE)
        code = process.exitcode
        how = (
            f"was ended by {signal.Signals(-code).name}" if code is not None and code < 0 else f"ended with code {code}"
        )
        self.close()
        return RuntimeError(
            f"DataLoader worker {worker} (process {process.pid}) {how} while it had work; if memory ran out, use fewer "
            "workers or smaller batches"
        )

    def close(self):
        """End the workers: those at work after their batch, or after 5 seconds."""
        for worker, pipe in enumerate(self._pipes):
            if self.alive and self._received[worker] == self._sent[worker]:
                with contextlib.suppress(OSError):
                    pipe.send(("stop",))
        self._finalizer()
