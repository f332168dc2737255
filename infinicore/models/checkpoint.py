"""Weights from a folder of safetensors files into a model: checked as a whole first, then read one by one."""

import ctypes
from pathlib import Path
from typing import NamedTuple

from ..io import SafetensorsFile
from ..io.json import read_json
from .placement import first_touch

PIECE = 32 << 20  # bytes read at a time: memory holds the model and one piece
_AT_ONCE = 256 << 10  # bytes: a launch for a layout that is new takes 100 us, and copying these 25
FLOATS = ("float32", "bfloat16", "float16", "float64")


class Slot(NamedTuple):
    """What a tensor of a checkpoint may be: one of `shapes` and of `dtypes`; it may be missing if `optional`."""

    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...] = FLOATS
    optional: bool = False


def _shards(folder):
    """The safetensors files of a folder, and the index's claim (tensor to file), if there is an index."""
    index = folder / "model.safetensors.index.json"
    single = folder / "model.safetensors"
    if single.is_file() or not index.is_file():
        if not single.is_file():
            hint = ""
            for other in sorted(folder.glob("*.bin")):
                hint = f"; {other.name} is of a format that is not read, so convert it to safetensors"
            for other in sorted(folder.glob("*.gguf")):
                hint = f"; pass {other} itself"
            raise FileNotFoundError(f"{folder} has neither model.safetensors nor model.safetensors.index.json{hint}")
        return [single], None
    claim = read_json(index, "index").get("weight_map")
    if not isinstance(claim, dict) or not claim or not all(isinstance(v, str) for v in claim.values()):
        raise ValueError(f"{index}: `weight_map` must map tensor names to file names")
    files = sorted(set(claim.values()))
    for file in files:
        if Path(file).name != file:
            raise ValueError(f"{index}: {file!r} is not the name of a file in the same folder")
        if not (folder / file).is_file():
            raise FileNotFoundError(f"{folder / file} is missing, and {index.name} names it")
    return [folder / file for file in files], claim


class Checkpoint:
    """The open weight files of a folder: `where` maps each tensor's name to its file."""

    def __init__(self, folder):
        self.folder = Path(folder)
        paths, claim = _shards(self.folder)
        self.files = [SafetensorsFile(path) for path in paths]
        self.where = {}
        for file in self.files:
            for name in file.entries:
                if name in self.where:
                    raise ValueError(f"tensor {name!r} is in both {self.where[name].path} and {file.path}")
                self.where[name] = file
        lost = [name for name in claim or () if name not in self.where]
        if lost:
            raise ValueError(f"{self.folder / claim[lost[0]]} has no tensor {lost[0]!r}, which the index places there")

    def close(self):
        for file in self.files:
            file.close()

    def bytes_of(self, name):
        """The bytes of a tensor (uint8 array on the mapped file)."""
        return self.where[name].bytes_of(name)

    def resolve(self, expected, canonical, ignored_suffixes, ignored=()):
        """Map each expected name to the checkpoint's own name for it, after checking every tensor.

        `expected` maps names to shapes of float tensors, or to a `Slot`; `canonical(name)` is the expected spelling of
        a checkpoint's name. Raises ValueError with the first names and the count for missing and unexpected tensors,
        and for a tensor of the wrong shape or dtype.
        """
        slots = {name: s if isinstance(s, Slot) else Slot((tuple(s),)) for name, s in expected.items()}
        found, unexpected = {}, []
        for name in self.where:
            if name.endswith(ignored_suffixes) or canonical(name) in ignored:
                continue
            if canonical(name) in expected:
                found[canonical(name)] = name
            else:
                unexpected.append(name)
        missing = [name for name, slot in slots.items() if name not in found and not slot.optional]
        if missing:
            raise ValueError(f"{self.folder} lacks {_list(missing)} that its config.json asks for")
        if unexpected:
            raise ValueError(f"{self.folder} has {_list(unexpected)} that its config.json has no place for")
        for name, slot in slots.items():
            if name in found:
                self._check(found[name], slot)
        return found

    def _check(self, name, slot):
        file = self.where[name]
        entry = file.entries[name]
        if entry.shape not in slot.shapes:
            wanted = " or ".join(str(list(shape)) for shape in dict.fromkeys(slot.shapes))
            raise ValueError(
                f"{file.path}: tensor {name!r} has shape {list(entry.shape)}, and config.json asks for {wanted}"
            )
        if entry.dtype not in slot.dtypes:
            kind = "weights" if slot.dtypes == FLOATS else "it"
            raise ValueError(
                f"{file.path}: tensor {name!r} has dtype {entry.dtype}, and {kind} must be {', '.join(slot.dtypes)}"
            )

    def load(self, jobs, progress=None):
        """Run jobs in the order in which their tensors lie in the files.

        A job has `names`, the tensors that it reads, and `run(checkpoint)`, which yields counts of bytes as they are
        read; it is let go as soon as it is done. `progress(done, total)` is called with bytes.
        """
        jobs = sorted(jobs, key=lambda job: self._place(job.names[0]), reverse=True)
        total = sum(self.where[name].entries[name].nbytes for job in jobs for name in job.names)
        done = 0
        while jobs:
            for nbytes in jobs.pop().run(self):
                done += nbytes
                if progress is not None:
                    progress(done, total)

    def pieces(self, name, unit=1, span=None):
        """(first row, bytes of some rows) of a tensor, piece by piece, in whole multiples of `unit` rows.

        `span` (first, stop) are the rows that are wanted, all of them without it. The pages of a piece leave memory
        when the next one is asked for.
        """
        file = self.where[name]
        entry, data = file.entries[name], file.bytes_of(name)
        rows = entry.shape[0] if entry.shape else 1
        row = entry.nbytes // max(1, rows)
        step = max(1, PIECE // max(1, row * unit)) * unit
        begin, rows = span or (0, rows)
        for first in range(begin, rows, step):
            piece = data[first * row : min(first + step, rows) * row]
            yield first, piece
            file.release(name, first * row, len(piece))

    def _place(self, name):
        file = self.where[name]
        return str(file.path), file.entries[name].start


class Copy:
    """A job for `Checkpoint.load`: copy one tensor into `parameter`, converting its dtype."""

    def __init__(self, name, parameter):
        self.names, self.parameter = [name], parameter

    def run(self, checkpoint, span=None):
        (name,) = self.names
        entry = checkpoint.where[name].entries[name]
        if span is None:
            first_touch(self.parameter)
        for first, piece in checkpoint.pieces(name, span=span):
            part = self.parameter
            if entry.shape:
                part = part.narrow(0, first, len(piece) * entry.shape[0] // max(1, entry.nbytes))
            copy_bytes(part, piece, entry.dtype)
            yield len(piece)


class CopyTransposed:
    """A job for `Checkpoint.load`: copy a matrix stored as [in, out] into a `parameter` of [out, in]."""

    def __init__(self, name, parameter):
        self.names, self.parameter = [name], parameter

    def run(self, checkpoint, span=None):
        (name,) = self.names
        entry = checkpoint.where[name].entries[name]
        source, _kept = as_tensor(checkpoint.bytes_of(name), entry.shape, entry.dtype)
        first, stop = span or (0, entry.shape[1])
        self.parameter[first:stop].copy_(source.T[first:stop])
        checkpoint.where[name].release(name)
        yield entry.nbytes


class Later:
    """A job that is put off (`nn.init.deferred`) until its parameter has memory; the checkpoint stays open for it."""

    by_rows = True

    def __init__(self, checkpoint, job):
        self.checkpoint, self.job = checkpoint, job

    def __call__(self, tensor, span=None):
        """Fill the parameter, or the rows (first, stop) of it."""
        self.job.parameter = tensor
        for _ in self.job.run(self.checkpoint, span):
            pass


def _list(names):
    kind = "tensor" if len(names) == 1 else f"{len(names)} tensors,"
    return f"{kind} {', '.join(repr(n) for n in names[:3])}" + (", ..." if len(names) > 3 else "")


def copy_bytes(tensor, data, dtype):
    """Copy `data` (uint8 array with elements of a dtype name) into a contiguous tensor, converting the dtype."""
    if dtype == tensor.dtype.name and len(data) <= _AT_ONCE and tensor.storage.backend.shares_memory:
        ctypes.memmove(tensor.data_ptr(), data.ctypes.data, len(data))
        return
    source, _kept = as_tensor(data, tensor.shape, dtype)
    tensor.copy_(source)


def as_tensor(data, shape, dtype):
    """(a tensor on the memory of a uint8 array, the array to keep alive meanwhile); `dtype` is a name."""
    import infinicore

    dtype = getattr(infinicore, dtype)
    if data.ctypes.data % dtype.itemsize:
        data = data.copy()  # kernels want elements at natural addresses
    return infinicore.from_blob(data.ctypes.data, shape, dtype=dtype), data
