"""Repacked weights on disk, beside the compiled kernels: packed by the first load of a checkpoint, mapped by the next.

An entry is one file: 8 bytes with the length of a JSON header, the header, and the tensors, each from a multiple of
4096 bytes on. The header repeats the whole key, so that an entry answers for nothing but what it was made from.
Entries are written to a temporary name and renamed: processes may share the folder, and an interrupted one leaves
nothing. Off unless `INFINICORE_WEIGHT_CACHE=1`: entries are as large as the models.

    key = weight_cache.key(paths, format="int4", version=1, group=32)
    tensors = weight_cache.load(key)
    if tensors is None:
        tensors = pack(...)
        weight_cache.store(key, tensors)
"""

import json
import mmap
import os
import warnings
from pathlib import Path

import numpy as np

from .. import config, dispatch
from ..dtype import uint8
from ..kernels.build import disk, isa
from ..kernels.build.host import digest

_ALIGNMENT = 4096  # a page: mapped tensors begin on one
_PIECE = 16 << 20
_HEADER_LIMIT = 64 << 20


def enabled():
    """Whether `INFINICORE_WEIGHT_CACHE` (or `--cache-weights`) asks for the cache."""
    return config.get("INFINICORE_WEIGHT_CACHE") == "1"


def key(paths, *, format, version, **options):
    """What an entry depends on, as a dict of plain values.

    `paths`: the source files, whose path, size and time of change count; `format` and `version`: the name and the
    number of the layout that the tensors are packed in (a new layout takes a new number); `options`: what else was
    asked for, as plain values. The vector length of this CPU counts too, as panels follow from it.
    """
    sources = []
    for path in paths:
        path = Path(path).resolve()
        status = path.stat()
        sources.append([str(path), status.st_size, status.st_mtime_ns])
    return {"sources": sources, "format": format, "version": version, "lanes": isa.lanes(), "options": options}


def folder():
    """Where entries lie."""
    return disk.weights_folder()


def _identity(key):
    """A digest of what stays the same when the source is written anew."""
    what = [[source[0] for source in key["sources"]], key["format"], key["lanes"], key["options"]]
    return digest(json.dumps(what, sort_keys=True), 8)


def path_of(key):
    """The file of an entry: its name says the source, the rest is a digest."""
    source = Path(key["sources"][0][0])
    name = source.parent.name if source.stem.startswith("model") else source.stem
    safe = "".join(c if c.isalnum() or c in "._" else "_" for c in name)[:60]
    rest = digest(json.dumps(key, sort_keys=True), 4)
    return folder() / f"{safe}-{key['format']}-{_identity(key)}-{rest}{disk.WEIGHTS_SUFFIX}"


def load(key):
    """The tensors of an entry (name to uint8 tensor) on the mapped file, or None if it is missing or damaged.

    Memory is shared with the file's pages in the system's cache until it is written to; writes stay in this process.
    """
    path = path_of(key)
    try:
        file = open(path, "rb")  # noqa: SIM115  closed below
    except OSError:
        return None
    try:
        with file:
            layout = _layout(file, key)
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        warnings.warn(f"{path} is not used, and packed again: {error}", RuntimeWarning, stacklevel=2)
        path.unlink(missing_ok=True)
        return None
    if hasattr(mmap, "MADV_WILLNEED"):
        mapped.madvise(mmap.MADV_WILLNEED)
    bytes_ = np.frombuffer(mapped, np.uint8)
    return {
        name: dispatch.wrap(bytes_.ctypes.data + start, (nbytes,), (1,), uint8, bytes_)
        for name, (start, nbytes) in layout.items()
    }


def _layout(file, key):
    """The places of the tensors, {name: (start, bytes)}, from a header that is checked against the key and the size."""
    size = os.fstat(file.fileno()).st_size
    length = int.from_bytes(file.read(8), "little")
    if not 2 <= length <= min(size - 8, _HEADER_LIMIT):
        raise ValueError(f"its header would have {length} bytes in a file of {size}")
    header = json.loads(file.read(length))
    if header["key"] != json.loads(json.dumps(key)):
        raise ValueError("it was made from something else")
    if header["size"] != size:
        raise ValueError(f"it has {size} bytes, and its header says {header['size']}")
    layout = {}
    for name, (start, nbytes) in header["tensors"].items():
        if not (isinstance(start, int) and isinstance(nbytes, int) and 8 + length <= start <= start + nbytes <= size):
            raise ValueError(f"its tensor {name!r} lies outside of the file")
        layout[name] = start, nbytes
    return layout


def store(key, tensors):
    """Write an entry: `tensors` maps names to contiguous tensors, whose bytes are kept; returns whether it was written.

    Entries of the same source from before it changed are deleted. A folder that cannot be written only warns.
    """
    for name, tensor in tensors.items():
        if not tensor.is_contiguous():
            raise ValueError(f"`tensors` must be contiguous, but {name!r} has strides {tuple(tensor.stride())}")
    path, (header, size) = path_of(key), _header(key, tensors)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _write(path, header, size, tensors)
    except OSError as error:
        warnings.warn(
            f"repacked weights cannot be stored in {path.parent} ({error.strerror or error}), so every load packs them "
            f"again; free {size / 1e9:.1f} GB or set `INFINICORE_CACHE_DIR` to another folder",
            RuntimeWarning,
            stacklevel=2,
        )
        return False
    for other in path.parent.glob(f"*-{_identity(key)}-*{disk.WEIGHTS_SUFFIX}"):
        if other != path:
            other.unlink(missing_ok=True)
    return True


def _pages(nbytes):
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


def _header(key, tensors):
    """(the header, padded with spaces to the page where tensors begin; the size of the file)."""
    places, size = {}, 0
    for name, tensor in tensors.items():
        places[name] = size, tensor.nbytes
        size += _pages(tensor.nbytes)
    entry = {"key": key, "size": size, "tensors": places}
    begin = _pages(len(json.dumps(entry)) + 16 * (len(places) + 2))  # numbers grow by `begin`, hence in digits
    entry["size"] += begin
    entry["tensors"] = {name: (begin + start, nbytes) for name, (start, nbytes) in places.items()}
    return json.dumps(entry).encode().ljust(begin - 8), begin + size


def _write(path, header, size, tensors):
    import tempfile  # 3 ms, of which loading has no use

    handle, temporary = tempfile.mkstemp(prefix=".", suffix=disk.WEIGHTS_SUFFIX, dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(len(header).to_bytes(8, "little") + header)
            for tensor in tensors.values():
                _write_tensor(file, tensor)
            file.truncate(size)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _write_tensor(file, tensor):
    """The bytes of a tensor, and zeros up to the next page."""
    nbytes = tensor.nbytes
    if nbytes:
        data = memoryview(dispatch.wrap(tensor.address, (nbytes,), (1,), uint8, tensor).numpy())
        for first in range(0, nbytes, _PIECE):
            file.write(data[first : first + _PIECE])
    file.seek(-nbytes % _ALIGNMENT, os.SEEK_CUR)
