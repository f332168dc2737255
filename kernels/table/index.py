"""The op table as a dict that loads the files of `kernels/ops` when their ops are asked for.

All of these files take 35 ms to load, and a program calls few of their ops: generation needs a third of them. So what
must be known of all ops (in which file they are, which are methods of tensors) is written to an index once, beside the
compiled kernels, and read by the processes that come later. It belongs to the sizes and times of the files: who
changes one, or adds one, has a new index in the next process. Without one, all files are loaded.
"""

import importlib
import json
import sys
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from ..build import disk, host

_OPS = __package__.removesuffix("table") + "ops"


class Row(NamedTuple):
    """What is known of an op whose file is not loaded: `file` is its name, `first` the name of its first parameter,
    `ufunc` that of NumPy's function which it is. `elsewhere` names the files that say what it means for tensors of
    some kinds (`Op.on`), by the kind. A `step` is an op without a public name.
    """

    file: str | None
    family: str
    result: str
    first: str
    ufunc: str | None
    elsewhere: dict[str, str]
    step: bool


def row_of(op, file=None, elsewhere=None):
    """The row of an op that is loaded."""
    ufunc = op.ref.__name__ if isinstance(op.ref, np.ufunc) else None
    if ufunc is not None and getattr(np, ufunc, None) is not op.ref:  # one of SciPy's
        ufunc = None
    return Row(file, op.family, op.result, op.parameters[0], ufunc, elsewhere or {}, op.step)


class _Later:
    """Stands for a form that a file declares which is not loaded, until it is called."""

    __slots__ = ("file", "kind", "op")

    def __init__(self, op, kind, file):
        self.op, self.kind, self.file = op, kind, file

    def __call__(self, *args, **kwargs):
        load(self.file)
        return self.op.kind_forms[self.kind](*args, **kwargs)


def load(file):
    """Load one file of `kernels/ops`."""
    importlib.import_module(f"{_OPS}.{file}")


class Table(Mapping):
    """Ops by name. To look one up loads its file; whoever goes through all of them loads all.

    `loaded` are those whose files are loaded, `aliases` other names of public functions and methods: {other: op's}.
    """

    def __init__(self):
        self.loaded = {}
        self.aliases = {}
        self._rows = {}
        self._whole = set()  # names of those of `loaded` of whose files no line is left to run
        self._files = None  # while the index is made: the file of each op, and of each (op, kind) that is declared

    def add(self, op):
        """Enter a new op. Raises ValueError if there is one of this name."""
        row = self._rows.get(op.name)
        if op.name in self.loaded or (row and f"{_OPS}.{row.file}" not in sys.modules):
            raise ValueError(f"op `{op.name}` is declared twice")
        self.loaded[op.name] = op
        if self._files is not None:
            self._files[op.name] = next(_files_at_work())
        if row:
            op.kind_forms.update({kind: _Later(op, kind, file) for kind, file in row.elsewhere.items()})

    def formed(self, op, kinds):
        """Take note of what an op means for some kinds of tensors (`Op.on`)."""
        if self._files is not None:
            self._files.update(dict.fromkeys([(op.name, kind) for kind in kinds], next(_files_at_work())))

    def __getitem__(self, name):
        row = None if name in self._whole else self._rows.get(name)
        if row:
            load(row.file)  # waits where another thread is at it: derivatives and forms stand below an op
            if row.file not in _files_at_work():
                self._whole.add(name)
        return self.loaded[name]

    def __contains__(self, name):
        return name in self._rows or name in self.loaded

    def __iter__(self):  # in the order of the files, behind which are the ops that a program has declared
        yield from self._rows
        yield from [name for name in list(self.loaded) if name not in self._rows]  # another thread may load a file

    def __len__(self):
        return len({*self._rows, *list(self.loaded)})

    def is_step(self, name):
        """Whether this is the name of an op that is a step of others alone."""
        row = self._rows.get(name) or self.loaded.get(name)
        return row is not None and row.step

    def rows(self):
        """What is known of each public op, aliases included: {name: `Row`}."""
        own = {name: self._rows.get(name) or row_of(self.loaded[name]) for name in self if not self.is_step(name)}
        return own | {name: own[other] for name, other in list(self.aliases.items())}

    def open(self):
        """Read the index, or load all files and write it."""
        stamp, path = _stamp(), host.notes_at("ops")
        found = json.loads(host.kept(path) or "{}")
        if found.get("stamp") == stamp:
            self.aliases.update(found["aliases"])
            self._rows = {name: Row(*row) for name, row in found["rows"].items()}
            return
        self._rows = self._made(stamp)
        host.keep(path, json.dumps({"stamp": stamp, "aliases": self.aliases, "rows": self._rows}))

    def _made(self, stamp):
        """The rows, after all files were loaded."""
        self._files = {}
        for file, *_ in stamp:
            if file.startswith("ops/") and not file.startswith("ops/_"):
                load(file.removeprefix("ops/").removesuffix(".py"))
        files, self._files = self._files, None
        rows = {}
        for name in sorted(self.loaded, key=files.get):
            op, file = self.loaded[name], files[name]
            elsewhere = {kind: files[name, kind] for kind in op.kind_forms if files[name, kind] != file}
            rows[name] = row_of(op, file, elsewhere)
        return rows


def _files_at_work():
    """The names of the files of `kernels/ops` that this thread is loading, the innermost first."""
    frame = sys._getframe(1)
    while frame := frame.f_back:
        name = frame.f_globals.get("__name__") or ""  # code that `exec` runs may have none
        if frame.f_code.co_name == "<module>" and name.startswith(f"{_OPS}."):
            yield name.removeprefix(f"{_OPS}.")


def _stamp():
    """Name, time and size of each file that says what the ops are."""
    return [[name, *status] for name, status in sorted(disk.files().items()) if name.startswith(("ops/", "table/"))]
