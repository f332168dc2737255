"""The precision checker: what every module computes in a run, in numbers; where two runs part.

`check_precision` writes a row of statistics for each output of each module, for the gradient that reaches it, and for
the gradient of each parameter; `compare` finds the first row in which two such runs differ.
"""

import contextlib
import hashlib
import json
import math
from pathlib import Path

import numpy as np

from ..core.tensor_cy import TensorBase
from ..dispatch import functions

_FIRST = 6  # elements shown
_KEY = ("step", "kind", "module", "op", "call", "output")


def _number(value):
    """A number as JSON has it: NaN and infinities as texts."""
    value = float(value)
    return value if math.isfinite(value) else str(value)


def statistics(tensor):
    """A dict of a tensor: dtype, shape, min, max and mean of the finite elements (None without any), how many are NaN
    and infinite, the first elements, and the MD5 sum of its bytes in row-major order."""
    array = tensor.detach().cpu().contiguous().numpy()
    row = {"dtype": tensor.dtype.name, "shape": list(tensor.shape), "nan": 0, "inf": 0}
    flat = array.reshape(-1)
    wide = flat if flat.dtype.kind in "biu" else flat.astype(np.float64)
    if wide.dtype.kind == "f":
        finite = np.isfinite(wide)
        if not finite.all():
            row["nan"] = int(np.isnan(wide).sum())
            row["inf"] = int(wide.size - finite.sum()) - row["nan"]
            wide = wide[finite]
    for name in ("min", "max", "mean"):
        row[name] = _number(getattr(wide, name)()) if wide.size else None
    row["first"] = [_number(x) for x in flat[:_FIRST]]
    row["md5"] = hashlib.md5(array.tobytes(), usedforsecurity=False).hexdigest()
    return row


class check_precision:
    """Watch a model: `with train.check_precision(model, "run.jsonl") as check: ...`, then `print(check.table())`.

    Each call of a module adds a row for each tensor that it returns ("output"); with `gradients`, backward adds the
    gradient that reaches it ("gradient") and, when it is complete, that of each parameter ("parameter"); with `ops`,
    each call of the op table in the forward pass adds one too ("op", named by the module that it was called in). Rows
    are dicts: step, kind, module, type, op, call (which of several calls), output (which of several tensors) and
    `statistics`; they are in `rows`, and in the file `path` as JSON lines. `tensors` names a folder for .npy files of
    all the tensors, which makes `compare` exact. `raise_on_nan` ends the run at the first NaN with a ValueError that
    names the module. `step()` begins the next step. What `checkpoint` runs again adds nothing.

    Values are copied to NumPy: a step takes several times as long. Numbers are not changed by watching.
    """

    in_backward = True

    def __init__(self, model, path=None, *, gradients=True, ops=False, tensors=None, raise_on_nan=False):
        self.model, self.path = model, None if path is None else Path(path)
        self.gradients, self.ops, self.raise_on_nan = gradients, ops, raise_on_nan
        self.tensors = None if tensors is None else Path(tensors)
        self.rows, self.steps = [], 0
        self._counts, self._handles, self._paths = {}, [], [""]
        self._file, self._in_node = None, 0

    def __enter__(self):
        if self._handles:
            raise ValueError("this check is running: make a new one with train.check_precision(model)")
        if self.tensors is not None:
            self.tensors.mkdir(parents=True, exist_ok=True)
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open(self.path, "w", encoding="utf-8")
        for path, module in self.model.named_modules():
            self._handles.append(module.register_forward_pre_hook(self._entering(path), prepend=True))
            self._handles.append(module.register_forward_hook(self._leaving(path), always_call=True))
        if self.gradients:
            for name, parameter in self.model.named_parameters():
                if parameter.requires_grad:
                    self._handles.append(parameter.register_post_accumulate_grad_hook(self._parameter(name)))
        functions.watch(self, innermost=True)
        return self

    def __exit__(self, *error):
        functions.unwatch(self)
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        if self._file is not None:
            self._file.close()
            self._file = None

    def step(self):
        """Rows that follow belong to the next step."""
        self.steps += 1
        self._counts.clear()

    # ---- looking ----

    def around(self, op, run, args, kwargs):
        """Look at a call of the op table."""
        result = run(*args, **kwargs)
        if self.ops and not self._in_node:
            self._look("op", self._paths[-1], None, result, op.name)
        return result

    def around_node(self, made, run, gradients, into):
        """Look away while a derivative is computed: what runs again there was seen."""
        self._in_node += 1
        try:
            return run(gradients, into)
        finally:
            self._in_node -= 1

    def _entering(self, path):
        def hook(module, args):
            self._paths.append(path)

        return hook

    def _leaving(self, path):
        def hook(module, args, output):
            if len(self._paths) > 1:
                self._paths.pop()
            if output is not None and not self._in_node:
                self._look("output", path, module, output)

        return hook

    def _parameter(self, name):
        def hook(parameter):
            with self._watching_nothing():
                self._add("parameter", name, None, "", 0, 0, parameter.grad)

        return hook

    def _look(self, kind, path, module, result, op=""):
        """Add rows for the tensors of a result, and hang hooks on them for their gradients."""
        counted = self.steps, kind, path, op
        call = self._counts[counted] = self._counts.get(counted, -1) + 1
        with self._watching_nothing():
            for number, tensor in enumerate(_tensors(result)):
                self._add(kind, path, module, op, call, number, tensor)
                if self.gradients and kind == "output" and tensor.requires_grad:
                    handle = tensor.register_hook(self._gradient(path, module, call, number))
                    if tensor.is_leaf:  # those of results end with the graph
                        self._handles.append(handle)

    def _gradient(self, path, module, call, number):
        step = self.steps

        def hook(gradient):
            if self._handles:  # else backward runs after the end of the check
                with self._watching_nothing():
                    self._add("gradient", path, module, "", call, number, gradient, step)

        return hook

    @contextlib.contextmanager
    def _watching_nothing(self):
        """While numbers are taken: no row for a cast or a copy of our own."""
        ops, self.ops = self.ops, False
        try:
            yield
        finally:
            self.ops = ops

    def _add(self, kind, path, module, op, call, output, tensor, step=None):
        row = {"step": self.steps if step is None else step, "kind": kind, "module": path}
        row.update(type="" if module is None else type(module).__name__, op=op, call=call, output=output)
        row.update(statistics(tensor))
        if self.tensors is not None:
            name = f"{len(self.rows):06d}.npy"
            array = tensor.detach().cpu().contiguous().numpy()
            np.save(self.tensors / name, array if array.dtype.kind in "biuf" else array.astype(np.float32))
            row["file"] = str((self.tensors / name).resolve())
        self.rows.append(row)
        if self._file is not None:
            self._file.write(json.dumps(row) + "\n")
            self._file.flush()  # whatever happens next, the rows that led to it are on disk
        if self.raise_on_nan and row["nan"]:
            elements = f"{row['nan']} of {math.prod(row['shape'])}"
            error = ValueError(
                f"{_where(row)} at step {row['step']} holds NaN ({elements} elements): see the rows before it"
            )
            error._module = (module, None)  # the sentence names the module: `Module.__call__` need not
            raise error

    # ---- reports ----

    def table(self, limit=None):
        """The rows as text."""
        head = ["step", "what", "dtype", "shape", "min", "max", "mean", "nan", "inf", "md5"]
        lines = [head]
        for row in self.rows[:limit]:
            shape = "x".join(map(str, row["shape"])) or "1"
            lines.append([
                str(row["step"]), _where(row), row["dtype"], shape, *(_short(row[k]) for k in ("min", "max", "mean")),
                str(row["nan"]), str(row["inf"]), row["md5"][:8],
            ])  # fmt: skip
        widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
        return "\n".join("  ".join(c.ljust(w) for c, w in zip(line, widths)).rstrip() for line in lines)


def _short(value):
    return "-" if value is None else value if isinstance(value, str) else f"{value:.6g}"


def _where(row):
    """Words for what a row is about."""
    name = f"`{row['module']}`" if row["module"] else "the model"
    name += f" ({row['type']})" if row["type"] else ""
    part = f", tensor {row['output']}" if row["output"] else ""
    part += f", call {row['call']}" if row["call"] else ""
    if row["kind"] == "op":
        return f"`{row['op']}` in {name}{part}"
    if row["kind"] == "parameter":
        return f"the gradient of parameter {name}"
    return f"the {'output' if row['kind'] == 'output' else 'gradient of the output'} of {name}{part}"


def _tensors(value):
    if isinstance(value, TensorBase):
        if value.numel():
            yield value
    elif isinstance(value, (list, tuple)):
        for v in value:
            yield from _tensors(v)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))


# ---- two runs ------------------------------------------------------------------------------------


class Comparison:
    """What `compare` found: `differences` are (row of a, row of b, why) in the order of the first run.

    One of the rows is None where only one run has it. True if there are none.
    """

    def __init__(self, compared, identical, differences):
        self.compared, self.identical, self.differences = compared, identical, differences

    def __bool__(self):
        return not self.differences

    @property
    def first(self):
        """The dotted path of the first module (or parameter, or op's module) that differs; None if none does."""
        if not self.differences:
            return None
        a, b, _ = self.differences[0]
        return (a or b)["module"]

    def __str__(self):
        text = f"{self.compared} rows compared, {self.identical} equal to the last bit, {len(self.differences)} differ"
        if self.differences:
            a, b, why = self.differences[0]
            row = a or b
            text += f"; the first is {_where(row)} at step {row['step']}: {why}"
        return text

    def table(self, limit=20):
        """The differences as text."""
        lines = [f"step {(a or b)['step']}  {_where(a or b)}: {why}" for a, b, why in self.differences[:limit]]
        return "\n".join([str(self), *lines])


def _rows(run):
    """The rows of a run: of a `check_precision`, a path, or a list."""
    if isinstance(run, check_precision):
        return run.rows
    if isinstance(run, list):
        return run
    path, rows = Path(run), []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            row = json.loads(line)
            tuple(row[key] for key in (*_KEY, "dtype", "shape", "md5"))
        except (ValueError, KeyError, TypeError):
            raise ValueError(f"{path} is no file of check_precision: line {number} is {line[:80]!r}") from None
        rows.append(row)
    return rows


def compare(run_a, run_b, rtol=1e-3, atol=1e-5):
    """Compare two runs (a `check_precision`, its rows, or the path of its file) row by row: a `Comparison`.

    Rows with the same MD5 sum are equal. Others differ if shapes do, the counts of NaN and infinity, or a value by more
    than `atol + rtol * |b|`: all elements where both runs saved tensors, else min, max, mean and the first elements.
    Dtypes may differ, so that a run in bfloat16 can be held to one in float32.
    """
    rows_b = {tuple(row[key] for key in _KEY): row for row in _rows(run_b)}
    identical, differences, compared = 0, [], 0
    for a in _rows(run_a):
        b = rows_b.pop(tuple(a[key] for key in _KEY), None)
        if b is None:
            differences.append((a, None, "only the first run has it"))
            continue
        compared += 1
        if a["md5"] == b["md5"] and a["dtype"] == b["dtype"] and a["shape"] == b["shape"]:
            identical += 1
            continue
        why = _difference(a, b, rtol, atol)
        if why:
            differences.append((a, b, why))
    differences += [(None, b, "only the second run has it") for b in rows_b.values()]
    return Comparison(compared, identical, differences)


def _difference(a, b, rtol, atol):
    """Why two rows differ, or None."""
    for key in ("shape", "nan", "inf"):
        if a[key] != b[key]:
            return f"{key} {a[key]} and {b[key]}"
    if a.get("file") and b.get("file"):
        x, y = np.load(a["file"]).astype(np.float64), np.load(b["file"]).astype(np.float64)
        close = np.isclose(x, y, rtol=rtol, atol=atol, equal_nan=True)
        if close.all():
            return None
        place = tuple(int(i) for i in np.argwhere(~close)[0])
        return f"{int((~close).sum())} of {close.size} elements, first {x[place]:.9g} and {y[place]:.9g} at {place}"
    pairs = [(key, a[key], b[key]) for key in ("min", "max", "mean")]
    pairs += [(f"element {i}", u, v) for i, (u, v) in enumerate(zip(a["first"], b["first"]))]
    for name, u, v in pairs:
        if (u is None) != (v is None):
            return f"{name} {_short(u)} and {_short(v)}"
        if u is not None and not np.isclose(float(u), float(v), rtol=rtol, atol=atol, equal_nan=True):
            return f"{name} {float(u):.9g} and {float(v):.9g}"
    return None
