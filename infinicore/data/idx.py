"""The IDX format (MNIST's): a big-endian header of type and sizes, then the elements; also compressed by gzip."""

import gzip
import math
import zlib
from pathlib import Path

import numpy as np

from ..interop.numpy import from_numpy
from .dataset import TensorDataset

_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_GZIP = b"\x1f\x8b"
_DEFLATE_LIMIT = 1032  # bytes that one compressed byte can stand for, at most
_CHUNK = 1 << 20


def _read(file, count):
    """At most `count` bytes, in pieces: what a header claims is not allocated before it is there."""
    pieces = []
    while count > 0 and (piece := file.read(min(count, _CHUNK))):
        pieces.append(piece)
        count -= len(piece)
    return b"".join(pieces)


def _parse(path, file, limit):
    header = _read(file, 4)
    if len(header) < 4 or header[:2] != b"\0\0" or header[2] not in _TYPES or header[3] == 0:
        raise ValueError(f"{path} is no IDX file: it begins with {header.hex(' ')!r}, not 00 00, a type and a rank")
    dtype, rank = np.dtype(_TYPES[header[2]]), header[3]
    sizes = _read(file, 4 * rank)
    if len(sizes) < 4 * rank:
        raise ValueError(f"{path} is truncated: it ends inside of the {rank} sizes of its header")
    shape = tuple(np.frombuffer(sizes, ">u4").tolist())
    expected = math.prod(shape) * dtype.itemsize
    if expected > limit:
        raise ValueError(f"{path} is truncated: its sizes {shape} take {expected} bytes, more than it can hold")
    data = _read(file, expected + 1)
    if len(data) != expected:
        problem = "is truncated" if len(data) < expected else "has bytes behind its end"
        found = len(data) if len(data) < expected else f"{expected} and more"
        raise ValueError(f"{path} {problem}: its sizes {shape} take {expected} bytes, and it has {found}")
    return np.frombuffer(data, dtype).reshape(shape)


def read_idx(path):
    """The tensor of an IDX file, plain or compressed by gzip: uint8, int8, int16, int32, float32 or float64.

    Raises FileNotFoundError, and ValueError for a file that is no IDX file, truncated, or longer than it says.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"there is no IDX file {path}")
    size = path.stat().st_size
    with open(path, "rb") as file:
        compressed = file.read(2) == _GZIP
        file.seek(0)
        if not compressed:
            return from_numpy(_parse(path, file, size))
        try:
            with gzip.GzipFile(fileobj=file) as plain:
                return from_numpy(_parse(path, plain, size * _DEFLATE_LIMIT))
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise ValueError(f"{path} is a damaged gzip file: {error}") from None


def _find(folder, name):
    names = [name, name.replace("-idx", ".idx")]
    for place in (folder, folder / "MNIST" / "raw", folder / "raw"):
        for candidate in [f"{n}{end}" for n in names for end in ("", ".gz")]:
            if (place / candidate).is_file():
                return place / candidate
    raise FileNotFoundError(f"{folder} has no {name} or {name}.gz; download the four files of MNIST into it")


def mnist(folder, train=True):
    """MNIST, or a set of its format, as a TensorDataset: images [N, 1, H, W] float32 from 0 to 1, labels [N] int64.

    `folder` holds the files train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-... (for `train=False`), plain or
    as .gz. Raises FileNotFoundError, and ValueError for files that are damaged or do not belong together.
    """
    folder, part = Path(folder), "train" if train else "t10k"
    paths = _find(folder, f"{part}-images-idx3-ubyte"), _find(folder, f"{part}-labels-idx1-ubyte")
    images, labels = (read_idx(path).numpy() for path in paths)
    if images.ndim != 3 or images.dtype != np.uint8 or labels.ndim != 1 or labels.dtype != np.uint8:
        raise ValueError(
            f"{paths[0]} and {paths[1]} must hold [N, H, W] and [N] bytes, got {images.shape}, {labels.shape}"
        )
    if len(images) != len(labels):
        raise ValueError(f"{paths[0]} has {len(images)} images and {paths[1]} {len(labels)} labels: they do not match")
    pixels = images[:, None].astype(np.float32)
    pixels /= 255
    return TensorDataset(from_numpy(pixels), from_numpy(labels.astype(np.int64)))
