"""Weights used where they lie: parameters on the mapped files of a checkpoint, which the system's cache of files holds.

A parameter needs no copy where the file has it in the model's dtype. Gate and up are side by side there, so they stay
one piece; query, key and value of large models are multiplied one by one then (1.1B: a copy of them takes 0.3 s where
memory is new to the machine, and two products more for each layer some microseconds). GGUF files of Llama have rows of
query and key in another order, so there the three are copied. The mapping is private: whoever writes to a weight gets
pages of his own. On small pages, decoding may be up to 8 % slower than on the huge pages of a copy (two cores of Zen 4;
16 of Emerald Rapids read both as fast), so a process that lives long may be better off with one.
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
_LEAST_APART = 1 << 22  # of several tensors together, which then take a product each


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
    for names, tensors, take in _wholes(model):
        there = [places.get(name) for name in names]
        pieces = [there] if len(tensors) == 1 else [[place] for place in there]
        if all(_fits(places, tensor) for places, tensor in zip(pieces, tensors)) and not used.intersection(names):
            take([_on_file(maps, places[0], tensor) for places, tensor in zip(pieces, tensors)])
            used.update(names)
    return used


def _wholes(model):
    """(names of parameters that go together, the tensors that they are, who takes others for these).

    The parts of a `PackedLinear` come as one tensor, and again as one for each.
    """
    parts = set()
    for path, module in model.named_modules():
        if isinstance(module, nn.PackedLinear) and (whole := module.packed_weight) is not None:
            layers = [module.get_submodule(part) for part in module.part_names]
            names = [f"{path}.{part}.weight" for part in module.part_names]
            parts.update(names)
            yield names, [whole], lambda tensors, module=module: module.take_weight(*tensors)
            if whole.nbytes >= _LEAST_APART:
                yield names, [layer.weight for layer in layers], module.take_apart
    for name, parameter in model.named_parameters():
        if name not in parts:
            yield [name], [parameter], lambda tensors, parameter=parameter: parameter.become(*tensors)


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
