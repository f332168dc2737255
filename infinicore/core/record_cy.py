# cython: nonecheck=True
"""Recorded calls: what is kept of a call of an op, and its way back.

Plain Python; `record_cy.pxd` turns the classes into C structs in the compiled life, and says that `t` is a tensor.
"""

import numpy as np

from . import launch_cy as launch
from .node_cy import GRAD, Node, Saved, alias, attach, edge, released
from .tensor_cy import TensorBase

# ---- complex numbers -----------------------------------------------------------------------------


def needs_conjugates(values):
    """Whether rules for a holomorphic function must be turned into those of PyTorch's convention for complex ones.

    A rule gives g f'(z), linear in g; the gradient of a real loss along the real and the imaginary part is
    g conj(f'(z)), which is the conjugate of what the rule gives for conj(g). Where f' is real, both are the same.
    `values` are what the rules may ask for, by name.
    """
    return any([_is_complex(x) for name, x in values.items() if name != "g" and name[:2] != "g_"])


def _is_complex(x):
    if isinstance(x, TensorBase):
        return x.dtype.kind == "c"
    return (isinstance(x, (list, tuple)) and any(map(_is_complex, x))) or isinstance(x, (complex, np.complexfloating))


def _any_complex(gradients):
    return any([g is not None and g.dtype.kind == "c" for g in gradients])


def _conjugate(g, functions):
    """A gradient, or several in a list, conjugated."""
    if isinstance(g, list):
        return [_conjugate(x, functions) for x in g]
    return g if g is None or g.dtype.kind != "c" else functions.conj(g)


# ---- elementwise ops -----------------------------------------------------------------------------


class ElementwiseCall(Node):
    """A recorded elementwise call: `saved` maps names to what the rules need, `wanted` has of the input of each edge
    its name, shape, dtype and device.
    """


class ElementwiseRecorder:
    """Records calls of one elementwise op, as nodes of a `kind`."""

    def __init__(self, op, kind):
        self.op, self.kind = op, kind
        self.asked = {}  # which inputs are tracked, as bits -> what `_asked` says

    def record(self, inputs, out):
        """Give the result of a call, some of whose inputs are tracked, its place in the graph."""
        op = self.op
        if op.gradient is None or not out.dtype.differentiable:
            return
        tracked = 0
        for i, x in enumerate(inputs):
            if isinstance(x, TensorBase):
                t = x
                if t.tracked:
                    tracked |= 1 << i
        if tracked not in self.asked:
            self.asked[tracked] = self._asked(tracked)
        asked, outputs = self.asked[tracked], ((out.shape_, out.dtype),)
        if asked is None:
            attach(out, Node(op.name, tuple([edge(x) for x in inputs if isinstance(x, TensorBase)]), outputs))
            return
        edges, wanted, saved = [], [], {}
        for i, name in asked[0]:
            t = inputs[i]
            edges.append(edge(t))
            wanted.append((name, t.shape_, t.dtype, t.device))
        for i, name in asked[1]:
            x = inputs[i]
            saved[name] = Saved(x) if isinstance(x, TensorBase) else x
        made = self.kind(op.name, tuple(edges), outputs)
        made.op, made.wanted, made.saved = op, wanted, saved
        attach(out, made)
        if asked[2]:
            saved["out"] = Saved(alias(out), made, 0)

    def _asked(self, tracked):
        """(number, name) of the inputs that want a gradient and of those that their rules ask for, and whether these
        ask for the result; None without such rules.
        """
        names, gradients = self.op.parameters, self.op.gradients
        wanted = [(i, name) for i, name in enumerate(names) if tracked >> i & 1]
        if any([name not in gradients for _, name in wanted]):
            return None
        needed = {parameter for _, name in wanted for parameter in gradients[name].parameters}
        return wanted, [(i, name) for i, name in enumerate(names) if name in needed], "out" in needed


# ---- all others ----------------------------------------------------------------------------------


class Need:
    """What calls of a row that want the gradients of certain inputs have in common."""

    def __init__(self, op, names):
        self.names, self.rules, self.saved = frozenset(names), [], ()
        for name in names:
            rule = op.gradients.get(name)
            if rule is None:
                self.rules = None
                return
            if rule not in self.rules:
                self.rules.append(rule)
        asked = {p for rule in self.rules for p in rule.parameters}
        of_results = {"g_" + name for name in op.outputs}
        self.several, self.into = bool(asked & of_results), "into" in asked
        self.outputs = [(i, name) for i, name in enumerate(op.outputs) if name in asked]
        self.saved = tuple(asked - of_results - {"f", "g", "need", "create_graph", "into", *op.outputs})


class OpNode(Node):
    """A recorded call of a row: `saved` maps names to what the rules need, `slots` has the input of each edge."""

    def backward(self, gradients, into):
        saved, need, functions, op = self.saved, self.need, self.recorder.functions, self.recorder.op
        if saved is None:
            raise released(self.called)
        values = {}
        for name, value in saved.items():
            values[name] = _get(value, self.called)
        values["g"], values["f"], values["need"] = gradients[0], functions, need.names
        values["create_graph"] = bool(launch.mode() & GRAD)
        if need.several:
            values.update(zip(["g_" + name for name in op.outputs], gradients))
        offered = {}
        turned = _any_complex(gradients) and op.gradient != "convention" and needs_conjugates(values)
        if turned:
            values.update({k: _conjugate(x, functions) for k, x in values.items() if k == "g" or k[:2] == "g_"})
        if need.into:
            values["into"] = _nothing if turned else self._place(into, offered)
        found = {}
        for rule in need.rules:
            result = rule.function(*[values[p] for p in rule.parameters])
            result = result if len(rule.names) > 1 else (result,)
            found.update(zip(rule.names, [_conjugate(x, functions) for x in result] if turned else result))
        results = []
        for name, position, shape, dtype in self.slots:
            g = found.get(name)
            if position is not None and g is not None:
                g = g[position]
            # float32, where what the gradient goes to is wider than the input, stays so
            if g is not None and not (name in offered and g is offered[name]):
                if g.shape_ != shape:
                    raise ValueError(
                        f"the derivative of `{self.called}` gave shape {g.shape_} for `{name}` of shape {shape}"
                    )
                if g.dtype is not dtype:
                    g = functions.cast(g, dtype)
            results.append(g)
        return results

    def _place(self, into, offered):
        """The rules' `into`; it notes in `offered` what memory they were given."""
        edges = {slot[0]: to for slot, to in zip(self.slots, self.edges)}

        def place(name):
            found = into(edges.get(name))
            if found is not None:
                offered[name] = found[0]
            return found

        return place

    def release(self):
        self.saved = None


def _nothing(name):
    """The `into` that lends nothing."""


def _get(value, name):
    """What was kept, as it was given; `name` is the op's."""
    if type(value) is Saved:
        return value.get(name)
    if type(value) is list:
        return [_get(v, name) for v in value]
    return value


def _keep(value):
    """What is kept of a value: a tensor, or those of a list or tuple, as `Saved`."""
    if isinstance(value, TensorBase):
        return Saved(value)
    if isinstance(value, (list, tuple)) and any([isinstance(v, TensorBase) for v in value]):
        return [Saved(v) if isinstance(v, TensorBase) else v for v in value]
    return value


class Recorder:
    """Records calls of one row, whose rules call `functions`."""

    def __init__(self, op, functions):
        self.op, self.functions, self.names, self.defaults = op, functions, op.parameters, op.defaults
        self.needs = {}  # names of inputs that want a gradient -> Need

    def record(self, kept, args, kwargs, result):
        """Give the results of a call their place in the graph; `kept` is what its paragraph saved."""
        op = self.op
        if op.gradient is None:
            return
        values = dict(zip(self.names, args))
        if kwargs:
            values.update(kwargs)
        slots, edges, wanted = [], [], []
        for name, x in values.items():
            if isinstance(x, TensorBase):
                t = x
                if t.tracked:
                    wanted.append(name)
                    slots.append((name, None, t.shape_, t.dtype))
                    edges.append(edge(t))
            elif type(x) is list or type(x) is tuple:
                for i, v in enumerate(x):
                    if isinstance(v, TensorBase) and v.tracked:
                        wanted.append(name)
                        slots.append((name, i, v.shape_, v.dtype))
                        edges.append(edge(v))
        key = tuple(wanted)
        need = self.needs.get(key)
        if need is None:
            need = self.needs[key] = Need(op, key)
        results = result if type(result) is tuple else (result,)
        outputs = [(y.shape_, y.dtype) for y in results]
        if need.rules is None:
            made = Node(op.name, edges, outputs)
        else:
            made = call = OpNode(op.name, edges, outputs)
            call.recorder, call.need, call.slots = self, need, slots
            if kept:
                values.update(kept)
            saved = {}
            for name in need.saved:
                if name in values:
                    saved[name] = _keep(values[name])
                elif name in self.defaults:
                    saved[name] = self.defaults[name]
            for i, name in need.outputs:
                if i < len(results):
                    floating = results[i].dtype.differentiable
                    saved[name] = Saved(alias(results[i]), made if floating else None, i)
            call.saved = saved
        for i, y in enumerate(results):
            if y.dtype.differentiable:
                attach(y, made, i)
