"""The safetensors format: an 8-byte length, a JSON header, and the bytes of the tensors one after another.

A file is memory-mapped and nothing of it is trusted: the header's size, every dtype, shape and offset
are checked before the first tensor is touched, and each problem is one sentence that names the file.
"""

import json
import os
from math import prod
from typing import NamedTuple

import numpy as np

from .mapped import MappedFile

# Header names of dtypes and ours. The narrower ones of newer writers (F4, F6, F8_E8M0) are not read.
DTYPES = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "U16": "uint16",
    "I16": "int16",
    "F16": "float16",
    "BF16": "bfloat16",
    "U32": "uint32",
    "I32": "int32",
    "F32": "float32",
    "U64": "uint64",
    "I64": "int64",
    "F64": "float64",
    "C64": "complex64",
    "F8_E4M3": "float8_e4m3",
    "F8_E5M2": "float8_e5m2",
}
ITEMSIZE = {name: 8 if "64" in name else 4 if "32" in name else 2 if "16" in name else 1 for name in DTYPES}
_HEADER_LIMIT = 100_000_000  # bytes; the limit of the format's reference implementation


class Entry(NamedTuple):
    """One tensor of a file: its dtype (our name), its shape, and where its bytes lie in the file."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int

    @property
    def nbytes(self):
        return self.stop - self.start


def _is_size(value):
    return type(value) is int and value >= 0


def _no_duplicates(pairs):
    table = dict(pairs)
    if len(table) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the name {twice!r} occurs twice in its header")
    return table


def _entry(path, name, row, base):
    """Check one row of the header; `base` is where the data begins."""
    if not isinstance(row, dict) or not {"dtype", "shape", "data_offsets"} <= row.keys():
        raise ValueError(f"{path}: the header entry of tensor {name!r} must have dtype, shape and data_offsets")
    dtype, shape, offsets = row["dtype"], row["shape"], row["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise ValueError(
            f"{path}: tensor {name!r} has dtype {dtype!r}, which is not one of {', '.join(DTYPES)}; "
            "convert the checkpoint to one of them"
        )
    if not isinstance(shape, list) or len(shape) > 64 or not all(_is_size(n) for n in shape):
        raise ValueError(f"{path}: tensor {name!r} has shape {str(shape)[:100]}, not a list of sizes")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(_is_size(n) for n in offsets):
        raise ValueError(f"{path}: tensor {name!r} has data_offsets {offsets!r}, not [begin, end]")
    begin, end = offsets
    expected = prod(shape) * ITEMSIZE[dtype]
    if end - begin != expected:
        raise ValueError(
            f"{path}: tensor {name!r} of shape {shape} and dtype {dtype} takes {expected} bytes, "
            f"and its data_offsets {offsets} hold {end - begin}"
        )
    return Entry(dtype=DTYPES[dtype], shape=tuple(shape), start=base + begin, stop=base + end)


def _check_layout(path, entries, base, size):
    """The tensors must tile the data section exactly: no overlap, no hole, nothing past the end."""
    expected = base
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].start, item[1].stop)):
        if entry.stop > size:
            raise ValueError(
                f"{path}: tensor {name!r} ends at byte {entry.stop} and the file has {size}; "
                "the file is truncated, so copy or download it again"
            )
        if entry.start != expected:
            problem = "overlaps the one before it" if entry.start < expected else "leaves a hole before it"
            raise ValueError(f"{path}: tensor {name!r} starts at byte {entry.start}, not {expected}, so it {problem}")
        expected = entry.stop
    if expected != size:
        raise ValueError(
            f"{path}: the header describes {expected} bytes and the file has {size}; "
            "the file is damaged, so copy or download it again"
        )


def _read_header(path, file, size):
    """(entries, metadata), everything checked."""
    if size < 8:
        raise ValueError(f"{path} is no safetensors file: it has {size} bytes and a header takes at least 8")
    length = int.from_bytes(file.read(8), "little")
    if length > _HEADER_LIMIT or length > size - 8:
        raise ValueError(
            f"{path} is truncated or no safetensors file: its header claims {length} bytes, "
            f"and {min(size - 8, _HEADER_LIMIT)} are possible"
        )
    try:
        header = json.loads(file.read(length), object_pairs_hook=_no_duplicates)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged or no safetensors file: {str(error)[:200]}") from None
    if not isinstance(header, dict):
        raise ValueError(f"{path} is no safetensors file: its header is a {type(header).__name__}, not an object")
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise ValueError(f"{path}: `__metadata__` must map names to texts")
    entries = {name: _entry(path, name, row, 8 + length) for name, row in header.items()}
    _check_layout(path, entries, 8 + length, size)
    return entries, metadata


class SafetensorsFile(MappedFile):
    """A memory-mapped file: `entries` (name to `Entry`), `metadata`, and the bytes of each tensor.

    Raises FileNotFoundError if there is no such file and ValueError if it is damaged.
    """

    kind = "safetensors"

    def __init__(self, path):
        super().__init__(path)
        with open(self.path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            self.entries, self.metadata = _read_header(self.path, file, size)
            self._map_file(file)

    def tensor(self, name, device=None):
        """A tensor with a copy of the data, on `device` (None: the current one), to which it goes straight."""
        import infinicore

        entry = self.entry(name)
        tensor = infinicore.empty(entry.shape, dtype=getattr(infinicore, entry.dtype), device=device)
        if entry.nbytes:
            data = self.bytes_of(name)
            tensor.storage.backend.copy(tensor.address, data.ctypes.data, entry.nbytes)
        return tensor


def _bytes_view(tensor):
    """The bytes of a contiguous tensor as a writable uint8 array (no copy)."""
    import ctypes

    nbytes = tensor.numel() * tensor.dtype.itemsize
    array = np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(tensor.data_ptr()))
    return array


def load_file(path, device=None):
    """Read a file into a dict of tensors on a device (None: the current one), names in the file's order.

    Errors: see `SafetensorsFile`.
    """
    with SafetensorsFile(path) as file:
        found = {}
        for name in file.entries:
            found[name] = file.tensor(name, device)
            file.release(name)
        return found


class SafetensorsWriter:
    """Writes a file tensor by tensor, in any order, for models that memory does not hold.

    `entries` maps names to (dtype name, shape). The file appears under `path` when the `with` block ends, and not at
    all if it fails: it is written under a temporary name. Raises TypeError for a dtype that the format has not.
    """

    def __init__(self, path, entries, metadata=None):
        names = {ours: theirs for theirs, ours in DTYPES.items()}
        header, offset = {}, 0
        if metadata:
            header["__metadata__"] = {str(k): str(v) for k, v in metadata.items()}
        for name, (dtype, _) in entries.items():
            if dtype not in names:
                raise TypeError(f"`tensors[{name!r}]` has dtype {dtype}, which safetensors cannot hold")
        # Widest elements first keeps every tensor aligned, as the format's writers do.
        for name, (dtype, shape) in sorted(entries.items(), key=lambda item: (-ITEMSIZE[names[item[1][0]]], item[0])):
            stop = offset + prod(shape) * ITEMSIZE[names[dtype]]
            header[name] = {"dtype": names[dtype], "shape": list(shape), "data_offsets": [offset, stop]}
            offset = stop
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        self.path, self.nbytes = path, 8 + len(text) + offset
        self._text, self._temporary, self._file = text, f"{path}.{os.getpid()}.tmp", None
        header.pop("__metadata__", None)
        self._places = {name: [8 + len(text) + at for at in row["data_offsets"]] for name, row in header.items()}
        self._missing = {name: stop - start for name, (start, stop) in self._places.items()}

    def __enter__(self):
        self._file = open(self._temporary, "wb")
        self._file.write(len(self._text).to_bytes(8, "little") + self._text)
        self._file.truncate(self.nbytes)
        return self

    def write(self, name, tensor):
        """Write all of a tensor."""
        self.write_bytes(name, 0, _bytes_view(tensor.detach().cpu().contiguous()) if tensor.numel() else b"")

    def write_bytes(self, name, first, data):
        """Write a part of a tensor, from byte `first` of it on: a uint8 array or bytes."""
        start, stop = self._places[name]
        if first + len(data) > stop - start:
            raise ValueError(f"`data` of {first + len(data)} bytes for tensor {name!r} of {stop - start}")
        self._file.seek(start + first)
        self._file.write(data)
        self._missing[name] -= len(data)

    def __exit__(self, kind, *_):
        try:
            self._file.close()
            if kind is None:
                lost = [name for name, nbytes in self._missing.items() if nbytes]
                if lost:
                    raise ValueError(f"{self.path}: tensor {lost[0]!r} lacks {self._missing[lost[0]]} bytes")
                os.replace(self._temporary, self.path)
        finally:
            if os.path.exists(self._temporary):
                os.unlink(self._temporary)


def save_file(tensors, path, metadata=None):
    """Write a dict of tensors to `path` (through a temporary name, so a reader never sees half a file).

    `metadata` maps texts to texts. Raises TypeError for a name or a value of another type.
    """
    entries = {name: (tensor.dtype.name, tuple(tensor.shape)) for name, tensor in tensors.items()}
    with SafetensorsWriter(path, entries, metadata) as writer:
        for name, tensor in tensors.items():
            writer.write(name, tensor)
