"""GGUF, the file format of llama.cpp: metadata, a table of tensors, and their bytes, which are memory-mapped.

Specification: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3, little-endian.

The header is read by this file and not by `gguf.GGUFReader`, which trusts what it reads: a lying array length makes it
loop for ever, and a lying offset gives short arrays. It also keeps a NumPy view for every element: a vocabulary of
152,000 tokens with its merges takes it 6.4 s, and this reader 0.08 s. Here every count and size is compared with the
bytes that the file has before anything is allocated, and each problem is one sentence that names the file.
"""

import os
import struct
from math import prod
from typing import NamedTuple

import numpy as np

from .kinds import MAGIC
from .mapped import MappedFile

_VERSIONS = (2, 3)
_DEFAULT_ALIGNMENT = 32
_MOST_DIMS = 4  # as in ggml
_DEEPEST_ARRAY = 4

# Value types of metadata by code: (format of `struct`, NumPy dtype).
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_LEAST_VALUE = {_STRING: 8, _ARRAY: 12} | {code: struct.calcsize(c) for code, c in _SCALARS.items()}
_LEAST_PAIR, _LEAST_TENSOR = 8 + 4 + 1, 8 + 4 + 8 + 4 + 8  # bytes

# Types of tensors: code, elements and bytes of a block.
_FLOATS = {"F32": (0, 1, 4), "F16": (1, 1, 2), "BF16": (30, 1, 2), "F64": (28, 1, 8)}
_BLOCKS = {
    "Q4_0": (2, 32, 18),
    "Q4_1": (3, 32, 20),
    "Q5_0": (6, 32, 22),
    "Q5_1": (7, 32, 24),
    "Q8_0": (8, 32, 34),
    "Q2_K": (10, 256, 84),
    "Q3_K": (11, 256, 110),
    "Q4_K": (12, 256, 144),
    "Q5_K": (13, 256, 176),
    "Q6_K": (14, 256, 210),
    "IQ4_NL": (20, 32, 18),
    "MXFP4": (39, 32, 17),
}
TYPES = {code: (name, block, size) for name, (code, block, size) in (_FLOATS | _BLOCKS).items()}
FLOATS = {"F32": "float32", "F16": "float16", "BF16": "bfloat16", "F64": "float64"}  # and our names of them
_NOT_READ = {
    9: "Q8_1", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 21: "IQ3_S", 22: "IQ2_S",
    23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0", 40: "NVFP4",
}  # fmt: skip


class Entry(NamedTuple):
    """One tensor of a file: its type (GGUF's name), its shape (rows first), and where its bytes lie in the file."""

    kind: str
    shape: tuple[int, ...]
    start: int
    stop: int

    @property
    def nbytes(self):
        return self.stop - self.start


class _Header:
    """The bytes of a file from front to back; `at` is the next one. Every reading is checked against the size."""

    def __init__(self, path, data):
        self.path, self.data, self.size, self.at = path, data, len(data), 0

    def error(self, words):
        return ValueError(f"{self.path} is damaged or no GGUF file: {words}")

    def need(self, nbytes, what):
        """Raise ValueError unless this many bytes are left."""
        if nbytes > self.size - self.at:
            raise self.error(f"{what} takes {nbytes} bytes at byte {self.at}, and the file ends at byte {self.size}")

    def scalar(self, code, what):
        self.need(struct.calcsize(code), what)
        value = struct.unpack_from("<" + code, self.data, self.at)[0]
        if code == "?" and self.data[self.at] > 1:
            raise self.error(f"{what} is a bool with the value {self.data[self.at]}")
        self.at += struct.calcsize(code)
        return value

    def string(self, what):
        length = self.scalar("Q", what)
        self.need(length, what)
        raw = self.data[self.at : self.at + length]
        self.at += length
        try:
            return raw.decode()
        except UnicodeDecodeError:
            raise self.error(f"{what} is not UTF-8 text") from None

    def value(self, code, what, depth=0):
        """A value of metadata; arrays are NumPy arrays, or lists of texts or of arrays."""
        if code in _SCALARS:
            return self.scalar(_SCALARS[code], what)
        if code == _STRING:
            return self.string(what)
        if code != _ARRAY or depth == _DEEPEST_ARRAY:
            raise self.error(f"{what} has the value type {code}, which is none of the format")
        code, count = self.scalar("I", what), self.scalar("Q", what)
        if code not in _LEAST_VALUE:
            raise self.error(f"{what} is an array of the value type {code}, which is none of the format")
        self.need(count * _LEAST_VALUE[code], f"{what}, an array of {count} values,")
        if code == _STRING:
            return self._strings(count, what)
        if code == _ARRAY:
            return [self.value(_ARRAY, what, depth + 1) for _ in range(count)]
        dtype = np.dtype("<" + _SCALARS[code])
        array = np.frombuffer(self.data, np.uint8 if code == 7 else dtype, count, self.at)
        self.at += array.nbytes
        if code == 7 and (array > 1).any():
            raise self.error(f"{what} is an array of bool with the value {int(array.max())}")
        return array.astype(dtype.newbyteorder("="))  # a copy: nothing holds on to the file

    def _strings(self, count, what):
        """As `string`, for many, in one loop."""
        data, at, size, found = self.data, self.at, self.size, []
        length_at = struct.Struct("<Q").unpack_from
        try:
            for _ in range(count):
                (length,) = length_at(data, at)
                at += 8
                if length > size - at:
                    self.at = at
                    self.need(length, what)
                found.append(data[at : at + length].decode())
                at += length
        except struct.error:
            self.at = at
            self.need(8, what)
        except UnicodeDecodeError:
            raise self.error(f"{what} holds a text that is not UTF-8") from None
        self.at = at
        return found


def _read_metadata(header, count):
    metadata = {}
    for i in range(count):
        name = header.string(f"the name of metadata value {i + 1} of {count}")
        if name in metadata:
            raise header.error(f"the metadata value {name[:100]!r} occurs twice")
        what = f"the metadata value {name[:100]!r}"
        metadata[name] = header.value(header.scalar("I", what), what)
    return metadata


def _read_entry(header, name):
    """(type code, shape rows first, offset in the data section) of one row of the table of tensors."""
    what = f"tensor {name[:100]!r}"
    num_dims = header.scalar("I", what)
    if not 1 <= num_dims <= _MOST_DIMS:
        raise header.error(f"{what} has {num_dims} dims, and 1 to {_MOST_DIMS} are possible")
    shape = tuple(header.scalar("Q", what) for _ in range(num_dims))[::-1]
    code, offset = header.scalar("I", what), header.scalar("Q", what)
    if code not in TYPES:
        if code in _NOT_READ:
            raise NotImplementedError(
                f"{header.path}: {what} is of type {_NOT_READ[code]}, which is not supported; use a file with weights "
                f"of {', '.join(kind for kind, _, _ in TYPES.values())}"
            )
        raise header.error(f"{what} is of type {code}, which is none of the format")
    return code, shape, offset


def _place(header, name, code, shape, offset, base, alignment):
    """The checked `Entry` of a tensor; `base` is where the data section begins."""
    what = f"tensor {name[:100]!r}"
    kind, block, size = TYPES[code]
    if min(shape) < 1:
        raise header.error(f"{what} has shape {list(shape)}, without elements")
    if shape[-1] % block:
        raise header.error(f"{what} has rows of {shape[-1]} elements, not a multiple of the {block} in a {kind} block")
    if offset % alignment:
        raise header.error(f"{what} lies at offset {offset}, not a multiple of the alignment {alignment}")
    nbytes = prod(shape) // block * size
    if base + offset + nbytes > header.size:
        raise ValueError(
            f"{header.path} is truncated: {what} ends at byte {base + offset + nbytes} and the file has {header.size}, "
            "so copy or download it again"
        )
    return Entry(kind=kind, shape=shape, start=base + offset, stop=base + offset + nbytes)


def _check_overlap(header, entries):
    last = None
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].start, item[1].stop)):
        if last is not None and entry.start < entries[last].stop:
            raise header.error(f"tensor {name[:100]!r} overlaps tensor {last[:100]!r}")
        last = name


def _read_header(path, data):
    """(metadata, entries), everything checked."""
    header = _Header(path, data)
    if bytes(data[:4]) != MAGIC:
        raise ValueError(f"{path} is no GGUF file: it begins with {bytes(data[:4])!r}, not with {MAGIC!r}")
    header.at = 4
    version = header.scalar("I", "the version")
    if version not in _VERSIONS:
        words = "big-endian" if version & 0xFFFF == 0 else f"of version {version}"
        raise NotImplementedError(f"{path} is a GGUF file {words}, and little-endian ones of versions 2 and 3 are read")
    num_tensors, num_values = header.scalar("Q", "the count of tensors"), header.scalar("Q", "the count of metadata")
    header.need(
        num_values * _LEAST_PAIR + num_tensors * _LEAST_TENSOR, f"{num_values} values and {num_tensors} tensors"
    )
    metadata = _read_metadata(header, num_values)
    rows = {}
    for i in range(num_tensors):
        name = header.string(f"the name of tensor {i + 1} of {num_tensors}")
        if name in rows:
            raise header.error(f"tensor {name[:100]!r} occurs twice")
        rows[name] = _read_entry(header, name)
    alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1):
        raise header.error(f"`general.alignment` must be a power of two, got {str(alignment)[:100]}")
    base = -(-header.at // alignment) * alignment
    entries = {name: _place(header, name, *row, base, alignment) for name, row in rows.items()}
    _check_overlap(header, entries)
    return metadata, entries


class GGUFFile(MappedFile):
    """A memory-mapped file: `metadata` (name to value), `entries` (name to `Entry`), and the bytes of each tensor.

    Arrays of metadata are NumPy arrays, or lists of texts. Raises FileNotFoundError if there is no such file,
    ValueError if it is damaged, and NotImplementedError for a version or a type of tensor that is not read.
    """

    kind = "GGUF"

    def __init__(self, path):
        super().__init__(path)
        with open(self.path, "rb") as file:
            if os.fstat(file.fileno()).st_size < len(MAGIC):
                raise ValueError(f"{self.path} is no GGUF file: it has fewer than {len(MAGIC)} bytes")
            self._map_file(file)
        self.metadata, self.entries = _read_header(self.path, self._map)

    def raw(self, name):
        """The bytes of a tensor as a uint8 tensor on the mapped file (no copy): read it, never write to it."""
        return _on_array(self.bytes_of(name), (self.entry(name).nbytes,), "uint8")

    def floats(self, name):
        """A tensor of floats as it is stored, on the mapped file (no copy): read it, never write to it."""
        entry, data = self.entry(name), self.bytes_of(name)
        if data.ctypes.data % 8:
            data = data.copy()  # kernels want elements at natural addresses
        return _on_array(data, entry.shape, FLOATS[entry.kind])

    def tensor(self, name):
        """A float32 tensor with the values of a tensor of any type."""
        import infinicore

        entry = self.entry(name)
        if entry.kind in FLOATS:
            return self.floats(name).to(infinicore.float32, copy=True)
        rows = (prod(entry.shape[:-1]), entry.shape[-1])
        return infinicore.gguf_dequantize(self.raw(name), entry.kind, rows).view(entry.shape)


def _on_array(data, shape, dtype):
    """A contiguous tensor of the memory of an array."""
    from ..core import layout
    from ..dispatch import wrap
    from ..dtype import dtype as as_dtype

    return wrap(data.ctypes.data, shape, layout.contiguous_strides(shape), as_dtype(dtype), data)
