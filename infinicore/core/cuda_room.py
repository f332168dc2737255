"""Addresses of a GPU behind which memory comes and goes: what is there for a moment keeps its place."""

import collections
import threading

from ..kernels.cuda import driver

_AHEAD = 2  # rooms that are still worked with, beyond which the host waits for the GPU instead of taking new memory


class Pages:
    """The memory of all rooms of a GPU, kept for reuse by size: rooms of a model are mostly of one size."""

    def __init__(self, backend):
        self.backend, self.unit = backend, driver.page_bytes(backend.gpu.index)
        self._free, self._leaving, self._lock = {}, collections.deque(), threading.RLock()

    def take(self, size):
        """A piece that nobody works with any more, or a new one; MemoryError where there is none.

        The host may be far ahead of the GPU, which then still works with rooms that are released.
        """
        with self._lock:
            self.reap()
            free = self._free.get(size)
            if not free and len(self._leaving) > _AHEAD:
                self._leaving[-1 - _AHEAD][1].synchronize()
                self.reap()
                free = self._free.get(size)
            if free:
                return free.pop()
            try:
                return driver.create_pages(size, self.backend.gpu.index)
            except driver.DriverError as error:
                if error.code != driver.OUT_OF_MEMORY:
                    raise
            self.backend.pool.trim()  # waits for all work
            self.reap()
            free = self._free.get(size)
            if free:
                return free.pop()
            for pages in (one for kept in self._free.values() for one in kept):
                driver.free_pages(pages)
            self._free.clear()
            try:
                return driver.create_pages(size, self.backend.gpu.index)
            except driver.DriverError as error:
                if error.code != driver.OUT_OF_MEMORY:
                    raise
                raise MemoryError(
                    f"parameters of {size} bytes do not fit into the memory of {self.backend.device}: divide the model "
                    "into smaller units, or among more ranks"
                ) from None

    def leave(self, room, mark):
        """What is behind a room may be taken when a mark has passed, unless it is held before."""
        with self._lock:
            self._leaving.append((room, mark))

    def reap(self):
        """Take what is not worked with any more."""
        waiting, self._leaving = self._leaving, collections.deque()
        for room, mark in waiting:
            if room.mark is not mark:  # it was held again
                continue
            if mark.query():
                room.empty()
            else:
                self._leaving.append((room, mark))

    def give(self, pages, size):
        """Keep a piece for the next room of its size."""
        self._free.setdefault(size, []).append(pages)


class Room:
    """Address space for `nbytes`, at `address`. Between `hold` and `release` there is memory."""

    def __init__(self, backend, kept, nbytes):
        self._backend, self._kept = backend, kept
        self.size = -(-max(1, nbytes) // kept.unit) * kept.unit
        self.address, self.pages, self.mark = driver.reserve(self.size), None, None

    def hold(self):
        """It is about to be written to."""
        self.mark = None
        if self.pages is None:
            self._backend.enter()
            self.pages = self._kept.take(self.size)
            driver.map_pages(self.address, self.size, self.pages, self._backend.gpu.index)
            self._backend.pool.count(self.size)

    def release(self):
        """The current stream needs it no longer when it has done what it has so far."""
        if self.pages is not None and self.mark is None:
            self._backend.enter()
            self.mark = self._backend.event()
            self.mark.record(self._backend.stream)
            self._kept.leave(self, self.mark)

    def empty(self):
        """Give the memory to others."""
        pages, self.pages, self.mark = self.pages, None, None
        driver.unmap_pages(self.address, self.size)
        self._backend.pool.count(-self.size)
        self._kept.give(pages, self.size)

    def __del__(self):
        if driver is None or getattr(self, "address", None) is None:
            return
        self._backend.enter()
        if self.pages is not None:
            driver.call("cuCtxSynchronize")
            self.empty()
        driver.free_reserved(self.address, self.size)
