"""Weights from a folder of safetensors files into a model: checked as a whole first, then copied one by one."""

import json
from pathlib import Path

from ..io import SafetensorsFile

_PIECE = 32 << 20  # bytes copied at a time: memory holds the model and one piece
_FLOATS = ("float32", "bfloat16", "float16", "float64")


def read_json(path, what):
    """An object from a JSON file; `what` says in errors what the file is for."""
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"there is no {what} {path}")
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not valid JSON: {str(error)[:200]}") from None
    if not isinstance(table, dict):
        raise ValueError(f"{path} must hold a JSON object, got a {type(table).__name__}")
    return table


def _shards(folder):
    """The safetensors files of a folder, and the index's claim (tensor to file), if there is an index."""
    index = folder / "model.safetensors.index.json"
    single = folder / "model.safetensors"
    if single.is_file() or not index.is_file():
        if not single.is_file():
            other = sorted(p.name for p in folder.glob("*.bin")) + sorted(p.name for p in folder.glob("*.gguf"))
            hint = f"; {other[0]} is of a format that is not read, so convert it to safetensors" if other else ""
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

        `expected` maps names to shapes; `canonical(name)` is the expected spelling of a checkpoint's name. Raises
        ValueError with the first names and the count for missing and unexpected tensors, and for a tensor of the
        wrong shape or dtype.
        """
        found, unexpected = {}, []
        for name in self.where:
            if name.endswith(ignored_suffixes) or canonical(name) in ignored:
                continue
            if canonical(name) in expected:
                found[canonical(name)] = name
            else:
                unexpected.append(name)
        missing = [name for name in expected if name not in found]
        if missing:
            raise ValueError(f"{self.folder} lacks {_list(missing)} that its config.json asks for")
        if unexpected:
            raise ValueError(f"{self.folder} has {_list(unexpected)} that its config.json has no place for")
        for name, shape in expected.items():
            self._check(found[name], shape)
        return found

    def _check(self, name, shape):
        file = self.where[name]
        entry = file.entries[name]
        if entry.shape != tuple(shape):
            raise ValueError(
                f"{file.path}: tensor {name!r} has shape {list(entry.shape)}, and config.json asks for {list(shape)}"
            )
        if entry.dtype not in _FLOATS:
            raise ValueError(
                f"{file.path}: tensor {name!r} has dtype {entry.dtype}, and weights must be {', '.join(_FLOATS)}"
            )

    def load(self, found, parameters, progress=None):
        """Copy tensors into `parameters` (name to Tensor), converting dtypes, in the order they lie in the files.

        Each byte is read once, and its page is released as soon as it is copied. `progress(done, total)` is
        called with bytes.
        """
        order = sorted(found.items(), key=lambda item: (str(self.where[item[1]].path), self._start(item[1])))
        total = sum(self.where[name].entries[name].nbytes for _, name in order)
        done = 0
        for ours, name in order:
            for nbytes in self._copy(name, parameters[ours]):
                done += nbytes
                if progress is not None:
                    progress(done, total)

    def _copy(self, name, parameter):
        """Copy one tensor in pieces; yields the bytes of each piece."""
        file = self.where[name]
        entry, data = file.entries[name], file.bytes_of(name)
        row = entry.nbytes // max(1, entry.shape[0] if entry.shape else 1)
        step = max(1, _PIECE // max(1, row))
        for first in range(0, entry.shape[0] if entry.shape else 1, step):
            part = parameter.narrow(0, first, min(step, entry.shape[0] - first)) if entry.shape else parameter
            piece = data[first * row : (first + step) * row]
            copy_bytes(part, piece, entry.dtype)
            file.release(name, first * row, len(piece))
            yield len(piece)

    def _start(self, name):
        return self.where[name].entries[name].start


def _list(names):
    kind = "tensor" if len(names) == 1 else f"{len(names)} tensors,"
    return f"{kind} {', '.join(repr(n) for n in names[:3])}" + (", ..." if len(names) > 3 else "")


def copy_bytes(tensor, data, dtype):
    """Copy `data` (uint8 array with elements of a dtype name) into a contiguous tensor, converting the dtype."""
    import infinicore

    dtype = getattr(infinicore, dtype)
    if data.ctypes.data % dtype.itemsize:
        data = data.copy()  # kernels want elements at natural addresses
    tensor.copy_(infinicore.from_blob(data.ctypes.data, tensor.shape, dtype=dtype))
