# cython: nonecheck=True
"""The graph of gradients: nodes, the tensors that they save, and edges between them.

Dispatch makes nodes while a program runs; `infinicore.autograd` walks them. A node is older than every node that uses
its results, so decreasing `order` is an order to run them in, without counting dependencies first.

Plain Python; `node_cy.pxd` turns the classes of what every call of a training step makes into C structs in the compiled
life, where None in place of a tensor stays an AttributeError (`nonecheck`).
"""

import itertools
import threading
import weakref
from pathlib import Path

from . import launch_cy as launch

_order = itertools.count()

GRAD, WATCH, INFERENCE = 1, 2, 4  # bits of `launch.mode()`


class Notes:
    """What the replay of a function must do besides its launches.

    `leaves` whose gradients backward changed, with what these were: id -> (leaf, gradient or None). `draws` of seeds
    for kernels, by value: seed -> (generator, its state).
    """

    __slots__ = ("draws", "leaves")

    def __init__(self):
        self.leaves, self.draws = {}, {}


class _State(threading.local):
    """What a thread does besides computing.

    `saving` holds hooks for saved tensors (`no_saving` why there may be none, or None), `trace` says whether nodes note
    where they were made and `check_nan` whether backward stops at a NaN of theirs, `notes` are those of a function that
    is being recorded, or None. `seed` is the storage of the 1 that backward last started from by itself,
    and its version then. `after` are functions that the backward pass now running calls when all else is done.
    """

    def __init__(self):
        self.after = []
        self.check_nan = True
        self.notes = None
        self.seed = None, 0
        self.no_saving = None
        self.saving = []  # (pack, unpack) pairs, the last one applies
        self.trace = False


state = _State()


_OWN = (Path(__file__).parent, Path(__file__).parent.parent / "dispatch")


def _stack():
    """Where the program is that makes a node; compiled code is not on the stack."""
    import traceback

    stack = traceback.extract_stack()
    while len(stack) > 1 and Path(stack[-1].filename).parent in _OWN:
        stack.pop()
    return stack


class Node:
    """One recorded call. `edges` say where the gradient of each input goes: (node, its output), (leaf, -1) or None.

    `called` is the name of the op, `outputs` the (shape, dtype) of each result. `backward(gradients, into)` turns the
    gradients of the results (None where nothing flows) into those of the edges.
    """

    def __init__(self, called, edges, outputs):
        self.called, self.edges, self.outputs = called, edges, outputs
        self.order = next(_order)
        self.prehooks = self.hooks = self.retained = None
        self.where = _stack() if state.trace else None

    def backward(self, gradients, into):
        raise NotImplementedError(
            f"`{self.called}` has no derivative: compute it under `no_grad`, or detach its inputs"
        )

    def current(self, x):
        """This node, or for a view whose base was written to since, one that comes from the base as it is now."""
        return self

    def release(self):
        """Drop what was saved: the node has run, and the graph is not retained."""

    @property
    def next_functions(self):
        """The edges under PyTorch's name, as pairs of (node, its output); what leads to a leaf has it as `variable`."""
        edges = ((None, 0) if to is None else to for to in self.edges)
        return tuple((AccumulateGrad(to), 0) if output == -1 else (to, output) for to, output in edges)

    def name(self):
        """What PyTorch would call it."""
        return "".join(part.capitalize() for part in self.called.split("_")) + "Backward0"

    def register_hook(self, hook):
        """Call `hook(grad_inputs, grad_outputs)` after this node ran; what it returns replaces grad_inputs."""
        self.hooks = {} if self.hooks is None else self.hooks
        return Handle(self.hooks, hook)

    def register_prehook(self, hook):
        """Call `hook(grad_outputs)` before this node runs; what it returns replaces them."""
        self.prehooks = {} if self.prehooks is None else self.prehooks
        return Handle(self.prehooks, hook)

    def __repr__(self):
        return f"<{self.name()}>"


class AccumulateGrad:
    """Where the gradient of a leaf, `variable`, goes, for those who walk a graph; two of one leaf are equal."""

    __slots__ = ("variable",)
    next_functions = ()

    def __init__(self, variable):
        self.variable = variable

    def name(self):
        """What PyTorch calls it."""
        return "torch::autograd::AccumulateGrad"

    def __eq__(self, other):
        return isinstance(other, AccumulateGrad) and other.variable is self.variable

    def __hash__(self):
        return id(self.variable)

    def __repr__(self):
        return "<AccumulateGrad>"


class Handle:
    """What registering a hook returns: `remove()` takes the hook back; it is a context manager too."""

    _numbers = itertools.count()

    def __init__(self, hooks, hook):
        if not callable(hook):
            raise TypeError(f"`hook` must be callable, got {type(hook).__name__}")
        self.id = next(Handle._numbers)
        self._hooks = hooks
        hooks[self.id] = hook

    def remove(self):
        """Take the hook back; doing it twice is no error."""
        self._hooks.pop(self.id, None)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.remove()


def hooked(hook, g):
    """What a hook on a tensor makes of its gradient: a tensor like it, or the gradient itself."""
    result = hook(g)
    if result is None:
        return g
    like = getattr(result, "shape_", None), getattr(result, "dtype", None)
    if like != (g.shape_, g.dtype):
        got = type(result).__name__ if like[0] is None else f"{like[1]} of shape {like[0]}"
        error = TypeError if like[0] is None else ValueError
        raise error(f"`hook` must return None or a gradient like its own, {g.dtype} of shape {g.shape_}, got {got}")
    return result


class TensorHooks:
    """What users hang on a tensor: hooks on its gradient, and after it was accumulated.

    `place` is memory that a new gradient is written to, if its rule can do so; it must be free by then.
    """

    __slots__ = ("accumulated", "gradient", "place")
    used = False  # whether there ever was one

    def __init__(self):
        self.gradient, self.accumulated, self.place = {}, {}, None
        TensorHooks.used = True


class Saved:
    """A tensor kept for backward, by value or packed by the user's hooks, and its version when it was saved."""

    def __init__(self, value, node=None, output=0):
        self.node, self.output = (None if node is None else weakref.ref(node)), output
        self.version, self.unpack = value.storage.version, None
        if state.saving:
            pack, self.unpack = state.saving[-1]
            before = launch.set_mode(launch.mode() & ~GRAD)
            try:
                value = pack(value)
            finally:
                launch.set_mode(before)
        self.value = value

    def get(self, name):
        """The tensor; ValueError if it was written to since."""
        value = self.value
        if self.unpack is not None:
            value = self.unpack(value)
            if getattr(value, "shape_", None) is None:
                raise TypeError(f"`unpack_hook` must return the tensor that was packed, got {type(value).__name__}")
        elif value.storage.version != self.version:
            raise ValueError(
                f"a tensor of shape {value.shape_} that `{name}` saved for backward was changed in place since "
                f"(version {value.storage.version}, saved at {self.version}): use an operation out of place or a clone"
            )
        if self.node is not None and launch.mode() & GRAD:  # a result, needed with its place in the graph
            value = alias(value)
            value.node, value.output, value.tracked = self.node(), self.output, True
        return value


def released(name):
    """The error of a node that runs a second time."""
    return ValueError(
        f"`{name}` runs backward a second time, but what it saved was released: pass retain_graph=True the first time"
    )


def alias(x):
    """Another tensor of the same memory, outside of the graph."""
    return launch.view_tensor(x, x.shape_, x.strides_, 0)


def edge(x):
    """Where the gradient of a tensor goes: (node, output), (leaf, -1), or None."""
    if not x.tracked:
        return None
    node = x.node
    if node is None:
        return x, -1
    return node if x.base is None else node.current(x), x.output


def attach(x, node, output=0):
    """Make `x` the result number `output` of a node."""
    x.node, x.output, x.tracked = node, output, True
