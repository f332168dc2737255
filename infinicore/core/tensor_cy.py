"""Memory and the base of `Tensor`: blocks, the pool that recycles them, storage, layout.

Plain Python; `tensor_cy.pxd` turns the classes into C structs in the compiled life.
"""

import mmap
import os
import threading

import numpy as np

HUGE_PAGE = 2 << 20  # blocks of at least two of these are mapped on huge-page boundaries
_POOL_LIMIT = 128 << 20  # bytes that the pool keeps for reuse, or half of the most that was in use


class Block:
    """A piece of memory: address, size, the Python object that owns it, and the arena that it belongs to, if any."""

    def __init__(self, address, size, owner):
        self.address = address
        self.size = size
        self.owner = owner
        self.arena = None


_small = [[] for _ in range(17)]  # free blocks of up to 4096 bytes, by multiples of 256
_large = {}  # size -> free blocks
_cached = 0  # bytes of all free blocks
_used = 0  # bytes of all blocks in use, and the most of them so far
_peak = 0


def size_class(nbytes):
    """Sizes are rounded to 256 bytes, above 4 KB to an eighth of a power of two."""
    if nbytes <= 4096:
        return (nbytes + 255) & ~255 if nbytes else 256
    step = 1  # of 64 bits: a shifted literal is a C int when compiled, too short for a size of 16 GiB
    step <<= (nbytes - 1).bit_length() - 3
    return (nbytes + step - 1) // step * step


def _new_block(size):
    """Fresh memory, 64-byte aligned; large blocks on huge pages where the system has them."""
    try:
        if size >= 2 * HUGE_PAGE and hasattr(mmap, "MADV_HUGEPAGE"):
            pages = mmap.mmap(-1, size + HUGE_PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            owner = np.frombuffer(pages, np.uint8)
            boundary = HUGE_PAGE
            # Whole huge pages: a last one would take 2 MB for a few KB (120 MB for the 1.1B model in 4 bits).
            pages.madvise(mmap.MADV_HUGEPAGE, -owner.ctypes.data % HUGE_PAGE, size // HUGE_PAGE * HUGE_PAGE)
        else:
            owner = np.empty(size + 64, np.uint8)
            boundary = 64
    except (MemoryError, OSError, ValueError, OverflowError):
        raise MemoryError(f"a tensor of {size} bytes does not fit into memory") from None
    address = owner.ctypes.data
    return Block((address + boundary - 1) // boundary * boundary, size, owner)


def take_block(nbytes):
    """A block of at least `nbytes`, recycled if one of its size class is free."""
    size = size_class(nbytes)
    if _arenas:
        arena = getattr(_own, "arena", None)
        if arena is not None:
            return arena.take(size)
    return _take(size)


def _take(size):
    """A block of a size class from the pool."""
    global _cached, _used, _peak
    _used += size
    if _used > _peak:
        _peak = _used
    free = _small[size >> 8] if size <= 4096 else _large.get(size)
    if free:
        _cached -= size
        return free.pop()
    return _new_block(size)


def give_block(block):
    """Return a block to the pool; what was not asked for the longest goes to the system when the pool is full."""
    global _cached, _used
    if block.arena is not None and not block.arena.closed:
        block.arena.give(block)
        return
    block.arena = None
    size = block.size
    _used -= size
    if size <= 4096:
        if _cached + size <= _POOL_LIMIT:
            _cached += size
            _small[size >> 8].append(block)
        return
    limit = max(_POOL_LIMIT, _peak // 2)
    if size > limit:
        return
    while _cached + size > limit and _large:
        _evict()
    if _cached + size > limit:
        return
    _cached += size
    free = _large.pop(size, None)
    if free is None:
        free = []
        free = _large.pop(size, free)  # making it, the garbage collector may have come here
    free.append(block)
    _large[size] = free  # last in the order of eviction


def _evict():
    """Give one block of the size that was returned the longest ago back to the system."""
    global _cached
    size = next(iter(_large))
    free = _large[size]
    if free:
        free.pop()
        _cached -= size
    if not free:
        del _large[size]


_arenas = []  # of the recordings that threads are making
_own = threading.local()  # `arena`: that of this thread


class Arena:
    """The memory of a graph: what its recording allocated, which only that recording may use again.

    So a replay finds each result where the recording had it, in as much memory as the calls took when they ran.
    `backend` is that of the recording.
    """

    def __init__(self, backend):
        self.backend = backend
        self.free = {}
        self.blocks = []  # all that it ever took
        self.nbytes = 0
        self.closed = False

    def take(self, size):
        free = self.free.get(size)
        if free:
            return free.pop()
        block = _take(size)
        block.arena = self
        self.blocks.append(block)
        self.nbytes += size
        return block

    def give(self, block):
        self.free.setdefault(block.size, []).append(block)

    def spans(self):
        """(address, bytes) of all memory of the backend that the recording had."""
        return [(block.address, block.size) for block in self.blocks]

    def close(self):
        """Give the memory back, at once or when the tensors in it are gone."""
        self.closed = True
        for free in self.free.values():
            for block in free:
                give_block(block)
        self.free, self.blocks = {}, []


def open_arena(backend):
    """From now on this thread allocates from an arena of its own."""
    _own.arena = backend.arena()
    _arenas.append(_own.arena)


def arena_of(backend):
    """The arena of the recording that this thread makes on a backend, or None."""
    arena = getattr(_own, "arena", None) if _arenas else None
    return arena if arena is not None and arena.backend is backend else None


def beside_arena(function, *args):
    """The result of a call that allocates from the pool, for values that the host writes once: no replay makes them."""
    arena, _own.arena = getattr(_own, "arena", None), None
    try:
        return function(*args)
    finally:
        _own.arena = arena


def leave_arena():
    """Allocate from the pool again; returns the arena."""
    arena, _own.arena = _own.arena, None
    _arenas.remove(arena)
    return arena


def outside(keep):
    """What a graph must hold of the tensors (and other objects) of a launch: all memory that is not of its arena."""
    arena, found = _own.arena, []
    for x in keep:
        if isinstance(x, TensorBase):
            block = x.storage.owner if x.storage.block is None else x.storage.block  # a GPU's blocks are owners
            if getattr(block, "arena", None) is not arena:
                found.append(x.storage)
        elif isinstance(x, (tuple, list)):
            found.extend(outside(x))
        elif x is not None:
            found.append(x)
    return found


def trim():
    """Give all free blocks back to the system; returns their bytes."""
    global _cached, _peak
    released = _cached
    _peak = _used
    for free in _small:
        free.clear()
    _large.clear()
    _cached = 0
    return released


def cached_bytes():
    """Bytes that the pool keeps for reuse."""
    return _cached


def used_bytes(reset_peak=False):
    """(bytes of all tensors, the most of them since the start or the last reset)."""
    global _peak
    peak = _peak
    if reset_peak:
        _peak = _used
    return _used, peak


def count_used(nbytes):
    """Count memory of tensors that is not the pool's: taken, or (below 0) given back."""
    global _used, _peak
    _used += nbytes
    if _used > _peak:
        _peak = _used


class Storage:
    """Memory that tensors share: a block of the pool, or foreign memory that `owner` keeps alive.

    `backend` is that of the device whose memory it is.
    """

    def __init__(self, address, nbytes, block, owner, backend=None):
        self.backend = _host if backend is None else backend
        self.address = address
        self.nbytes = nbytes
        self.block = block
        self.owner = owner
        self.version = 0  # counts writes; a tensor saved for backward remembers it

    def __del__(self):
        # Not Cython's `__dealloc__`: the garbage collector may have cleared the block by then, and the pool
        # would hold freed memory. A finaliser runs before anything is cleared.
        if self.block is not None and _POOL_LIMIT is not None:  # None: the interpreter goes down
            give_block(self.block)


_host = None  # the backend of the CPU


def set_host(backend):
    """Name the backend of the memory that `allocate` gives."""
    global _host
    _host = backend


def allocate(nbytes):
    """New storage of `nbytes`, uninitialised."""
    block = take_block(nbytes)
    storage = Storage.__new__(Storage)  # past `__init__`, whose argument parsing costs 0.1 us
    storage.backend = _host
    storage.address = block.address
    storage.nbytes = nbytes
    storage.block = block
    storage.owner = None
    storage.version = 0
    return storage


class TensorBase:
    """Storage, dtype and layout of a tensor, and its place in the graph of gradients.

    `shape_` and `strides_` are plain tuples. `tracked` says that gradients flow here, `node` made it (None: a leaf) as
    its result number `output`, `gradient` is `.grad`, `base` the tensor that this one is a view of, and `hooks` what
    the user registered.
    """

    def set_layout(self, storage, address, dtype, device, shape, strides, numel, contiguous):
        self.storage = storage
        self.address = address
        self.dtype = dtype
        self.device = device
        self.shape_ = shape
        self.strides_ = strides
        self.numel_ = numel
        self.contiguous_ = contiguous


def _take_turns():
    """Let one thread at a time change the pool: for the uncompiled life, as the GIL does it for compiled code.

    A block comes back when its last reference goes, also in the midst of this: then it waits in a list.
    """
    lock, returned, inside = threading.RLock(), [], False
    give = give_block

    def in_turn(function):
        def call(*args):
            nonlocal inside
            with lock:
                nested, inside = inside, True
                try:
                    result = function(*args)
                    while returned and not nested:
                        give(returned.pop())
                finally:
                    inside = nested
            return result

        return call

    def after_fork():
        nonlocal lock, inside
        lock, inside = threading.RLock(), False

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=after_fork)
    give_later = in_turn(returned.append)
    Arena.close = in_turn(Arena.close)
    globals().update(take_block=in_turn(take_block), give_block=give_later, trim=in_turn(trim))


if not __file__.endswith((".so", ".pyd")):  # compiled, the GIL takes turns, and these are fields of the C struct
    _take_turns()
    for _name, _value in (("tracked", False), ("output", 0)):
        setattr(TensorBase, _name, _value)
    for _name in ("gradient", "node", "base", "hooks"):
        setattr(TensorBase, _name, None)
