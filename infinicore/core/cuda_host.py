"""Page-locked memory of the host: GPUs copy from it while the host goes on, and twice as fast as from other memory."""

import threading

from ..kernels.cuda import driver
from . import memory


class Pinned:
    """A piece of it, which goes back to the pool when nobody holds it; `marks` are of copies that may still read it."""

    __slots__ = ("address", "marks", "size")

    def __init__(self, address, size):
        self.address, self.size = address, size
        self.marks = _lent[address] = []

    def __del__(self):
        if driver is not None:  # else the interpreter goes down
            _give(self)


_lock = threading.RLock()
# Marks of pieces that somebody holds: address -> marks. Of garbage that refers to itself Python ends the objects in any
# order, so marks would end before the piece that they belong to, and be asked afterwards.
_lent = {}
_kept = {}  # size -> (address, marks); the driver takes 0.1 ms and more to lock pages, so pieces are kept
_size_class = memory.size_class  # by name: at the end of the interpreter, modules lose theirs


def take(nbytes):
    """A `Pinned` of at least `nbytes`. Raises what the driver says; MemoryError where it has no more."""
    size = _size_class(max(1, nbytes))
    with _lock:
        kept = _kept.get(size, ())
        for i, (address, marks) in enumerate(kept):
            if all(mark.query() for mark in marks):
                del kept[i]
                return Pinned(address, size)
    try:
        return Pinned(driver.allocate_host(size), size)
    except driver.DriverError as error:
        if error.code != driver.OUT_OF_MEMORY:
            raise
        raise MemoryError(
            f"{nbytes} bytes of page-locked memory cannot be had: use less, or `pin_memory=False`"
        ) from None


def _give(piece):
    with _lock:
        _kept.setdefault(piece.size, []).append((piece.address, _lent.pop(piece.address)))
