"""What folders of checkpoints are made of: values as JSON beside their tensors, sums of files, files that stay."""

import os
import zlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from ..tensor.tensor import Tensor


def split(value, path, tensors):
    """`value` with its tensors taken out into `tensors` and named in their place: what JSON can hold."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, Tensor):
        tensors[path] = value.detach().contiguous()
        return {"tensor": path}
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, (str, int)):  # of a list of pairs, so that numbers stay numbers
                raise TypeError(f"{path!r} has the key {key!r} and cannot be saved: keys must be texts or integers")
        return {"dict": [[key, split(v, f"{path}.{key}", tensors)] for key, v in value.items()]}
    if isinstance(value, (list, tuple)):
        kind = "tuple" if isinstance(value, tuple) else "list"
        return {kind: [split(v, f"{path}.{i}", tensors) for i, v in enumerate(value)]}
    if value is None or isinstance(value, (bool, int, float, str)):
        return {"value": value}
    raise TypeError(
        f"a state of type {type(value).__name__} at {path!r} cannot be saved: use tensors, numbers and texts"
    )


def join(node, tensors):
    """What `split` was given."""
    ((kind, value),) = node.items()
    if kind == "tensor":
        return tensors[value]
    if kind == "dict":
        return {key: join(v, tensors) for key, v in value}
    if kind in ("list", "tuple"):
        return {"list": list, "tuple": tuple}[kind](join(v, tensors) for v in value)
    return value


def sync(path):
    """Have a file or folder survive a power cut."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def settle(path):
    """`sync` a file that was just written; returns its `sum_of`, computed while the disk writes."""
    with ThreadPoolExecutor(1) as beside:
        written = beside.submit(sync, path)
        found = sum_of(path)
        written.result()
    return found


def sum_of(path):
    """[size, CRC-32] of a file."""
    size = crc = 0
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            size, crc = size + len(block), zlib.crc32(block, crc)
    return [size, crc]
