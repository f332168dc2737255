"""Weights used where they lie: parameters on the mapped files of a checkpoint, which the system's cache of files holds.

A parameter needs no copy where the file has it in the model's dtype, and in one piece what the model has in one piece:
files of Hugging Face and GGUF files have gate and up side by side, so all but query, key and value of a 16-bit model
stay where they are. The mapping is private: whoever writes to a weight gets pages of his own. On small pages, decoding
is up to 8 % slower than on the huge pages of a copy, so a process that lives long is better off with one.
"""

import ctypes
import mmap
import threading
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from .. import dispatch, nn
from ..device import CPU
from ..kernels.cpu import machine

_MADV_POPULATE_READ = 22  # linux/mman.h, from Linux 5.14 on; an error elsewhere
_LEAST_BYTES = 1 << 20  # what is smaller is copied as fast


class Place(NamedTuple):
    """Where the values of a parameter lie in the file at `path`, and the name of their dtype."""

    path: str
    start: int
    stop: int
    dtype: str


def use(model, places):
    """Let parameters of `model` lie where `places` (name to `Place`) says; returns the names of those that do.

    None do on machines with several NUMA nodes, where each thread is to have its part near by.
    """
    if len(machine.numa_nodes()) > 1:
        return set()
    maps, used = {}, set()
    for names, tensor, take in _wholes(model):
        there = [places.get(name) for name in names]
        if _fits(there, tensor):
            take(_on_file(maps, there[0], tensor))
            used.update(names)
    return used


def _wholes(model):
    """(names of parameters that are one piece of memory, the tensor of it, who takes another one)."""
    parts = set()
    for path, module in model.named_modules():
        if isinstance(module, nn.PackedLinear) and module.packed_weight is not None:
            names = [f"{path}.{part}.weight" for part in module.part_names]
            parts.update(names)
            yield names, module.packed_weight, module.take_weight
    for name, parameter in model.named_parameters():
        if name not in parts:
            yield [name], parameter, parameter.become


def _fits(there, tensor):
    """Whether a tensor can lie at these places as it is."""
    if None in there or tensor.device is not CPU or tensor.nbytes < _LEAST_BYTES or not tensor.is_contiguous():
        return False
    first = there[0]
    aligned = first.start % tensor.dtype.itemsize == 0 and first.dtype == tensor.dtype.name
    joined = all((a.path, a.dtype, a.stop) == (b.path, b.dtype, b.start) for a, b in pairwise(there))
    return aligned and joined and there[-1].stop - first.start == tensor.nbytes


def _map_pages(memory):
    """Have the pages of a mapped file at hand, where they fit: the first prompt of a 1.1B model meets 40,000 others.

    Beside the rest of loading, on another CPU (0.1 s for 2.2 GB): the first token came in 0.72 s instead of 0.92.
    """
    if memory.nbytes < (machine.free_bytes() or 0) // 2:
        place, size = ctypes.c_void_p(memory.ctypes.data), ctypes.c_size_t(memory.nbytes)
        ctypes.CDLL(None).madvise(place, size, _MADV_POPULATE_READ)


def _on_file(maps, place, tensor):
    """A tensor like this one on the mapped file."""
    if place.path not in maps:
        with open(place.path, "rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        maps[place.path] = np.frombuffer(mapped, np.uint8)
        if hasattr(mmap, "MADV_WILLNEED"):
            mapped.madvise(mmap.MADV_WILLNEED)
            threading.Thread(target=_map_pages, args=(maps[place.path],), daemon=True).start()
    memory = maps[place.path]
    return dispatch.wrap(memory.ctypes.data + place.start, tensor.shape, tensor.stride(), tensor.dtype, memory)
