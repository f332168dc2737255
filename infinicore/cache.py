"""The cache of compiled kernels, seen from above: what lies in it, and how to fill it before it is needed.

Where kernels lie and how they are written is `kernels/cache.py`. The command is `infinicore cache`.
"""

from dataclasses import dataclass
from pathlib import Path

from .kernels import cache as _files


@dataclass(kw_only=True, slots=True, frozen=True)
class Entry:
    """One compiled kernel: its name, machine directory, size in bytes, and time of compilation (Unix seconds)."""

    name: str
    machine: str
    path: Path
    nbytes: int
    time: float


def root():
    """The cache directory of this user (`INFINICORE_CACHE_DIR`)."""
    return _files.root()


def machine():
    """The name of this machine type's directory below `root()`."""
    return _files.directory().name


def entries():
    """The compiled kernels of every machine type that shares this cache, sorted by machine and name."""
    found = [
        Entry(name=path.stem.rpartition("-")[0], machine=path.parent.name, path=path, nbytes=nbytes, time=when)
        for path, nbytes, when in _files.entries()
    ]
    return sorted(found, key=lambda entry: (entry.machine, entry.name))


def clear():
    """Delete every compiled kernel; returns how many there were, and their size in bytes."""
    return _files.clear()
