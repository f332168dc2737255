"""A file of tensors that stays on disk: memory-mapped, read in place, its pages given back as they are used up."""

import mmap
from pathlib import Path

import numpy as np


class MappedFile:
    """Base of `SafetensorsFile` and `GGUFFile`: `entries` maps names to records with `start`, `stop` and `nbytes`.

    A subclass reads the header and sets `entries`, then calls `_map_file`. Nothing of a header is trusted: it is
    checked as a whole against the file's size before the first tensor is touched.
    """

    kind = "file"

    def __init__(self, path):
        self.path = Path(path)
        if not self.path.is_file():
            raise FileNotFoundError(f"there is no {self.kind} file {self.path}")

    def _map_file(self, file):
        self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        """Unmap the file, unless an array from `bytes_of` is still in use: then it goes with that."""
        try:
            self._map.close()
        except BufferError:
            pass

    def entry(self, name):
        """The record of a tensor; KeyError with the file's name if it has none."""
        try:
            return self.entries[name]
        except KeyError:
            raise KeyError(f"{self.path} has no tensor {name!r}") from None

    def bytes_of(self, name):
        """The bytes of a tensor as a read-only uint8 array on the mapped file (no copy)."""
        entry = self.entry(name)
        return np.frombuffer(self._map, np.uint8, entry.nbytes, entry.start)

    def release(self, name, first=0, nbytes=None):
        """Tell the system that these bytes of a tensor are read: their pages leave the process's memory."""
        entry = self.entry(name)
        page = mmap.PAGESIZE
        stop = entry.stop if nbytes is None else min(entry.stop, entry.start + first + nbytes)
        # Outwards at the front, where everything is read already; inwards at the end.
        start, stop = (entry.start + first) // page * page, stop // page * page
        if stop > start and hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED, start, stop - start)
