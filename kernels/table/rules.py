"""Rules of reductions and scans: what they compute, for every device, and in plain NumPy.

A rule is Python on elements, with the names of `lang/scalar_math.py` as `m`. A device renders it into its kernels;
called with arrays, the same functions are the rule's own oracle (`evaluate`).
"""

import functools

import numpy as np

from .registry import FLOATS, Op, names_of

_WIDE = {"bfloat16": "float32", "float16": "float32", "bool": "uint8"}  # bools are bytes, which order as they should


class Reduction:
    """A running state: `element` gives that of one element, `joined` makes one of two, `finished` a result of the last.

    `starts` are the parts of the state of nothing, where infinity stands for the ends of integer types. The state has
    the dtype that elements are computed in, unless `state` (then the result has it as well), or `integers` for those
    that are no floats, names another one. `absorbed(state, a, b)`, if any, is a faster way to join three. `counts`: the
    last parameter of `finished` is how many elements there were.
    """

    __slots__ = ("_types", "absorbed", "element", "finished", "integers", "joined", "name", "starts", "state")

    def __init__(self, element, start, state=None, integers=None):
        self.name, self.element = element.__name__.rstrip("_"), element
        self.starts = start if isinstance(start, tuple) else (start,)
        self.state, self.integers = state, integers
        self.joined = self.absorbed = self.finished = None
        self._types = {}

    def __repr__(self):
        return f"Reduction({self.name})"

    @property
    def parts(self):
        """How many numbers a state has."""
        return len(self.starts)

    @property
    def counts(self):
        return self.finished is not None and len(names_of(self.finished)) > self.parts

    def join(self, function):
        """Declare how two states become one: `function(a, b)`."""
        self.joined = function
        return function

    def absorb(self, function):
        """Declare a faster way to join three states, the last two those of elements: `function(state, a, b)`."""
        self.absorbed = function
        return function

    def finish(self, function):
        """Declare how a state becomes a result: `function(*parts)`, or with the number of elements as `count` last."""
        self.finished = function
        return function

    def types(self, dtype):
        """Dtypes (of elements in memory, as the rule sees them, of states, of results) for an input of `dtype`."""
        found = self._types.get(dtype)
        if found is None:
            value = _WIDE.get(dtype, dtype)
            stored = "uint8" if dtype == "bool" else dtype
            state = self.state or (self.integers if dtype not in FLOATS else None)
            if state == "int64" and dtype not in FLOATS:
                value = state
            found = self._types[dtype] = stored, value, state or value, state or stored
        return found

    def evaluate(self, x, axis=None, keepdims=False):
        """The reduction of a NumPy array by the rule itself."""
        x = np.asarray(x)
        axes = tuple(range(x.ndim)) if axis is None else tuple(np.atleast_1d(axis) % max(1, x.ndim))[: x.ndim]
        others = [d for d in range(x.ndim) if d not in axes]
        kept = [x.shape[d] for d in others]
        rows = x.transpose(*axes, *others).reshape(-1, *kept)
        _, value, state, result = (np.dtype(name) for name in self.types(x.dtype.name))
        info = np.iinfo(state) if state.kind in "iu" else None
        starts = [(info.max if s > 0 else info.min) if info and np.isinf(s) else s for s in self.starts]
        nothing = [np.full((1, *kept), s, state) for s in starts]
        with np.errstate(all="ignore"):
            parts = self._tuple(self.element(rows.astype(value)))
            parts = [np.concatenate([s, np.broadcast_to(p, rows.shape).astype(state)]) for s, p in zip(nothing, parts)]
            while len(parts[0]) > 1:
                half = len(parts[0]) // 2
                a, b = ([p[k * half : (k + 1) * half] for p in parts] for k in (0, 1))
                joined = self._tuple(self.joined(*(tuple(s) if self.parts > 1 else s[0] for s in (a, b))))
                parts = [np.concatenate([j, p[2 * half :]]) for j, p in zip(joined, parts)]
            parts = [p[0] for p in parts]
            if self.finished is not None:
                parts = [self.finished(*parts, *([float(len(rows))] if self.counts else []))]
        shape = [1 if d in axes else n for d, n in enumerate(x.shape)] if keepdims else kept
        return np.asarray(parts[0]).astype(result).reshape(shape)

    def _tuple(self, value):
        return value if self.parts > 1 else (value,)


class Scan:
    """A running state along a dim: `joined(state, element)` is the next one, and the result there.

    It must be associative, with `start` as what changes nothing: GPUs join the states of parts.
    """

    __slots__ = ("joined", "name", "start")

    def __init__(self, joined, start):
        self.name, self.joined, self.start = joined.__name__.rstrip("_"), joined, start

    def __repr__(self):
        return f"Scan({self.name})"

    @staticmethod
    def types(dtype):
        """Dtypes (of elements in memory, of the state in a loop, of the result) for an input of `dtype`."""
        floating = dtype in FLOATS
        stored = "uint8" if dtype == "bool" else dtype
        return stored, "float64" if floating else "int64", dtype if floating else "int64"

    def evaluate(self, x, axis=0, reverse=False):
        """The scan of a NumPy array by the rule itself."""
        x = np.asarray(x)
        _, state, result = (np.dtype(name) for name in self.types(x.dtype.name))
        rows = np.moveaxis(np.flip(x, axis) if reverse else x, axis, 0).astype(state) if x.ndim else x.reshape(1)
        out, total = np.empty(rows.shape, state), np.full(rows.shape[1:], self.start, state)
        for i, row in enumerate(rows):
            out[i] = total = self.joined(total, row)
        out = np.moveaxis(out, 0, axis) if x.ndim else out[0]
        return (np.flip(out, axis) if reverse and x.ndim else out).astype(result)


class RuleOp(Op):
    """A row of the table whose definition is a rule; `join`, `absorb` and `finish` complete it."""

    def __init__(self, *, rule, **fields):
        super().__init__(**fields)
        self.rule = rule

    def join(self, function):
        return self.rule.join(function)

    def absorb(self, function):
        return self.rule.absorb(function)

    def finish(self, function):
        return self.rule.finish(function)


def reduction_rule(start, state=None, integers=None):
    """Declare a rule that is no op of its own."""
    return functools.partial(Reduction, start=start, state=state, integers=integers)
