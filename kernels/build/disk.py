"""The disk cache of compiled kernels: one object file per kernel, one directory per machine type.

An entry is `<name>-<key>.o`: a line with the symbol and a digest, and the object code; beside it lies
the rendered source, for reading. The directory's name covers CPU, features, Python, Numba and
llvmlite, so code for another machine is never loaded; the key covers the source text and the helpers that
it is compiled with, however indirectly. Entries are written to a temporary name and renamed: many processes
may share the directory, and take turns at an entry (`host.turn`) instead of each compiling it. An entry that is
damaged, or another one's under this name, is dropped and compiled again.
"""

import functools
import json
import os
import platform
import re
import sys
import warnings
from pathlib import Path

from . import host, isa
from .host import digest, root, version


@functools.cache
def directory():
    """The cache directory of this type of machine (not yet created)."""
    what = [platform.machine(), isa.feature_string(), sys.implementation.cache_tag]
    what += [version("numba"), version("llvmlite")]
    return root() / f"{isa.cpu_name()}-{digest(' '.join(what), 6)}"


_FORMAT = "3"  # of entries: part of the key, so that versions that share a directory leave each other's alone
_texts = {}  # a file of `kernels/` -> what else the kernels that import it are known by
_KERNELS = Path(__file__).parents[1]
_IMPORT = re.compile(r"^\s*from (\.+[\w.]*|infinicore\.kernels[\w.]*) import (\([^)]*\)|[^\n#]*)", re.MULTILINE)


@functools.cache
def files():
    """(time, size) of each file of `kernels/`, by its path from there with slashes: one walk, which takes 1.5 ms."""
    found, folders = {}, [("", _KERNELS)]
    while folders:
        inside, folder = folders.pop()
        for entry in os.scandir(folder):
            if entry.name.endswith(".py"):
                status = entry.stat()
                found[inside + entry.name] = status.st_mtime_ns, status.st_size
            elif entry.name != "__pycache__" and entry.is_dir():
                folders.append((f"{inside}{entry.name}/", entry.path))
    return found


def _imported(text, package):
    """Files of `kernels/` that a source text imports; `package` names the folders that it lies in, one in another."""
    wanted = set()
    for module, names in _IMPORT.findall(text):
        rest = module.lstrip(".")
        above = len(module) - len(rest) - 1
        if above > len(package):  # beyond `kernels/`
            continue
        folder = package[: len(package) - above] if above >= 0 else ()
        base = "/".join([*folder, *filter(None, rest.removeprefix("infinicore.kernels").split("."))])
        wanted.add(f"{base}.py")
        wanted.update(f"{base}/{name}.py".lstrip("/") for name in re.findall(r"\w+", names))
    return wanted


class _Helpers:
    """(digest of a file of kernel helpers, what it imports) for each: read from the cache where the file is as it was
    then. To read and search 60 files, as generation does, takes 6 ms.
    """

    def __init__(self):
        self._path, self._new = host.notes_at("files"), False
        self._known = json.loads(host.kept(self._path) or "{}")

    def __call__(self, name):
        status = list(files()[name])
        known = self._known.get(name)
        if known is None or known[:2] != status:
            data = (_KERNELS / name).read_bytes()
            imported = sorted(_imported(data.decode(), name.split("/")[:-1]))
            known = self._known[name] = [*status, digest(name.encode() + data), imported]
            self._new = True
        return known[2], known[3]

    def save(self):
        """Keep what is new for other processes."""
        if self._new:
            self._new = False
            host.keep(self._path, json.dumps(self._known))


_helpers = functools.cache(_Helpers)


@functools.cache
def _behind(name):
    """Digests of a file of kernel helpers, if there is such a file, and of all that it imports."""
    seen, todo, helper = {}, [name], _helpers()
    while todo:
        name = todo.pop()
        if name not in seen and name in files():
            seen[name], imports = helper(name)
            todo += imports
    helper.save()
    return frozenset(seen.values())


def _library(source):
    """Digests of all files that this kernel source is compiled with, directly or through others, in any folder."""
    wanted = [*_imported(source, []), "build/jit.py", "build/isa.py"]
    return frozenset().union(*map(_behind, wanted))


def library_digest(source):
    """A digest of them all."""
    return digest("".join(sorted(_library(source))))


def also_by(file, text):
    """Let what `text()` gives be a part of the key of each kernel that is compiled with a file of `kernels/`."""
    _texts[file] = text


def path_of(name, source):
    """Where the kernel `name` with this source text lies."""
    library = _library(source)
    more = [text() for file, text in _texts.items() if _helpers()(file)[0] in library]
    key = digest("".join([_FORMAT, digest("".join(sorted(library))), source, *more]), 10)
    return directory() / f"{name}-{key}.o"


def _digest(path, symbol, code):
    """Of an entry and its place: code under another kernel's name would read arguments that are not there."""
    place = f"{path.parent.name}/{path.name} {symbol}\n"
    return digest(place.encode() + code)


def read(path):
    """(symbol, object code), or None if the entry is missing, damaged, or of another name or machine."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    head, _, code = data.partition(b"\n")
    symbol, _, found = head.decode("utf-8", "replace").partition(" ")
    if found == _digest(path, symbol, code):
        return symbol, code
    try:
        path.unlink()
    except OSError:
        pass
    return None


@functools.cache
def _warn_unwritable(reason):
    warnings.warn(
        f"compiled kernels cannot be stored in {directory()} ({reason}), so every process compiles "
        "them again; free some space or set `INFINICORE_CACHE_DIR` to a writable directory",
        RuntimeWarning,
        stacklevel=2,
    )


def write(path, symbol, code, source):
    """Store an entry and its source atomically; a cache that cannot be written only warns, once."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _replace(path, f"{symbol} {_digest(path, symbol, code)}\n".encode() + code)
        _replace(path.with_suffix(".py"), source.encode())
    except OSError as error:
        _warn_unwritable(error.strerror or str(error))


def _replace(path, data):
    import tempfile

    handle, temporary = tempfile.mkstemp(prefix=".", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def entries():
    """The cached kernels of every machine type: (path, bytes, seconds since the epoch)."""
    return _files(root().glob("*/*.o"))


WEIGHTS_SUFFIX = ".weights"


def weights_folder():
    """Where repacked weights lie: beside the kernels, and written by what packs them."""
    return root() / "weights"


def weight_entries():
    """The repacked weights: (path, bytes, seconds since the epoch)."""
    return _files(weights_folder().glob(f"[!.]*{WEIGHTS_SUFFIX}"))


def _files(paths):
    found = []
    for path in sorted(paths):
        try:
            status = path.stat()
        except OSError:  # another process has deleted it
            continue
        found.append((path, status.st_size, status.st_mtime))
    return found


def clear_weights():
    """Delete all repacked weights; returns (entries, bytes) removed."""
    count = size = 0
    for path, nbytes, _ in weight_entries():
        count, size = count + 1, size + nbytes
        path.unlink(missing_ok=True)
    for path in weights_folder().glob(f".*{WEIGHTS_SUFFIX}"):  # what a killed process has left
        path.unlink(missing_ok=True)
    return count, size


def clear():
    """Delete every entry; returns (entries, bytes) removed."""
    count = size = 0
    for path, nbytes, _ in entries():
        count, size = count + 1, size + nbytes
        for file in (path, path.with_suffix(".py")):
            file.unlink(missing_ok=True)
    for pattern in ("*/*.lock", "*-*.lock", "*-*.txt", "*-*.json", "*-*.bin"):  # locks, notes, code of modules
        for path in root().glob(pattern):
            path.unlink(missing_ok=True)
    for folder in root().glob("*/"):
        try:
            folder.rmdir()
        except OSError:
            pass
    return count, size
