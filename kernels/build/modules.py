"""Code of modules, all in one file of the cache, for processes that come later.

Python looks for a module in the folders of its package, compares the states of two files and reads one. For the 180
modules of a process that generates this takes 12 ms, 6 more for the 95 of NumPy and of `tokenizers`, and many times as
long where files lie on another machine. Here it is a look at the state of the source, which must be as it was when its
code was kept. Whatever is not found like that, Python loads as ever, and when the process ends, its code is kept too.
"""

import atexit
import collections
import contextlib
import importlib.util
import marshal
import mmap
import os
import sys
import zlib
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader

from . import host

_PACKAGES = (__name__.partition(".")[0] + ".", "numpy.", "tokenizers.")  # whose modules every program of ours loads
_COMPILED = "_cy"  # modules with this end may have an extension beside the source: Python chooses

# What is kept of a module: its source, the folder in which Python would find it, time and size of the source then,
# where its bytecode lies, whether it is a package; and of its code the place in the file, and a checksum.
_Row = collections.namedtuple("_Row", "source folder time size cached is_package start stop checksum")


class _Loader(SourceFileLoader):
    """As Python's, but for where code comes from."""

    def __init__(self, name, source, code):
        super().__init__(name, source)
        self._code = code

    def get_code(self, name):
        code, self._code = self._code, None  # the module may be loaded again, and have changed
        return super().get_code(name) if code is None else marshal.loads(code)


class _Finder:
    """Finds modules of `_PACKAGES` whose code is kept: an entry of `sys.meta_path`."""

    def __init__(self, path):
        self._path, self._rows, self._codes = path, {}, b""
        try:
            with open(path, "rb") as file:
                data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
            size, checksum = (int.from_bytes(data[at : at + 8], "little") for at in (0, 8))
            if zlib.crc32(data[16 : 16 + size]) == checksum:
                self._rows = marshal.loads(data[16 : 16 + size])
                self._codes = data[16 + size :]
        except (OSError, ValueError, EOFError):
            pass

    def find_spec(self, name, path=None, target=None):
        row = self._rows.get(name)
        if row is None:
            return None
        source, folder, time, size, cached, is_package, start, stop, checksum = row
        try:
            status = os.stat(source)
        except OSError:
            return None
        if (status.st_mtime_ns, status.st_size) != (time, size) or folder not in (path or ()):
            return None
        code = self._codes[start:stop]
        if zlib.crc32(code) != checksum:  # damaged: to be kept anew
            del self._rows[name]
            return None
        spec = ModuleSpec(name, _Loader(name, source, code), origin=source)
        spec.cached, spec.has_location = cached, True
        if is_package:
            spec.submodule_search_locations = [os.path.dirname(source)]
        return spec

    def keep(self):
        """Keep the code of modules that were loaded otherwise."""
        if sys.dont_write_bytecode:
            return
        rows = {name: _Row(*row) for name, row in self._rows.items()}
        fresh = [name for name, module in list(sys.modules.items()) if _is_fresh(name, module, rows.get(name))]
        if not fresh:
            return
        kept = {name: (row, bytes(self._codes[row.start : row.stop])) for name, row in rows.items()}
        for name in fresh:
            with contextlib.suppress(OSError, ImportError, SyntaxError):  # the source has gone, or changes just now
                kept[name] = _code_of(name, sys.modules[name].__spec__)
        at, rows = 0, {}
        for name, (row, code) in kept.items():
            rows[name] = tuple(row._replace(start=at, stop=at + len(code), checksum=zlib.crc32(code)))
            at += len(code)
        index = marshal.dumps(rows)
        head = len(index).to_bytes(8, "little") + zlib.crc32(index).to_bytes(8, "little")
        host.write(self._path, b"".join([head, index, *(code for _, code in kept.values())]))


def _is_fresh(name, module, row):
    """Whether Python has loaded a module of `_PACKAGES` from its own files, and its code is not kept in `row`.

    (A dozen modules are loaded before anything can be found here.)
    """
    spec = getattr(module, "__spec__", None)
    ours = name.startswith(_PACKAGES) and not name.endswith(_COMPILED) and spec is not None and spec.name == name
    if not ours or type(spec.loader) is not SourceFileLoader:
        return False
    with contextlib.suppress(OSError):
        status = os.stat(spec.origin)
        return row is None or (row.source, row.time, row.size) != (spec.origin, status.st_mtime_ns, status.st_size)
    return False


def _code_of(name, spec):
    """(row, code) of a module whose code is not kept yet."""
    status = os.stat(spec.origin)  # before the code is read: if the file changes meanwhile, the row is of no use
    is_package, folder = spec.parent == name, os.path.dirname(spec.origin)
    folder = os.path.dirname(folder) if is_package else folder
    row = _Row(spec.origin, folder, status.st_mtime_ns, status.st_size, spec.cached, is_package, 0, 0, 0)
    return row, marshal.dumps(spec.loader.get_code(name))


def find_kept():
    """From now on, load modules of `_PACKAGES` whose code is kept, and at the end keep what was not."""
    form = [sys.implementation.cache_tag, importlib.util.MAGIC_NUMBER.hex(), str(sys.flags.optimize), *_Row._fields]
    finder = _Finder(host.notes_at("modules", " ".join(form)).with_suffix(".bin"))
    sys.meta_path.insert(sys.meta_path.index(PathFinder) if PathFinder in sys.meta_path else 0, finder)
    atexit.register(finder.keep)
