"""Backward: gradients flow from results to leaves, node by node, without recursion.

A node is younger than the nodes that its inputs come from, so taking the youngest node that has a gradient is a
topological order (a heap of orders, no counting of dependencies). Gradients are added in place only into memory that
the engine allocated itself: rules may return their argument, a view of it, or one tensor twice.
"""

import heapq
import sys

from .. import dispatch, kernels
from ..core import launch, node
from ..core.node_cy import GRAD, WATCH
from ..core.tensor_cy import TensorBase
from ..dispatch import derive, functions
from ..dtype import float32

_F = derive.functions
_add = dispatch.unwatched(kernels.OPS["add"])


def _exclusive(t, alone):
    """Whether nobody but the caller refers to a tensor, and nobody else to its memory.

    `alone` is how often a tensor and its storage are then referred to, as seen from here; None asks for that.
    """
    counts = sys.getrefcount(t), sys.getrefcount(t.storage)
    if alone is None:
        return counts
    return t.base is None and t.storage.block is not None and counts[0] <= alone[0] and counts[1] <= alone[1]


def _variable():
    """The counts of a tensor that only one variable of the caller refers to; interpreters count calls differently."""
    t = dispatch.empty((1,), float32)
    counts = _exclusive(t, None)
    return counts


def _argument():
    """The same for a tensor that is an argument of the caller, and a variable of the caller's caller."""
    t = dispatch.empty((1,), float32)
    counts = _passed_on(t)
    return counts


def _passed_on(t):
    return _exclusive(t, None)


_VARIABLE, _ARGUMENT = _variable(), _argument()


def _nothing(to):
    """The `into` that lends nothing."""


class Backward:
    """One run of the engine."""

    def __init__(self, create_graph, retain_graph, inputs=None):
        self.create_graph, self.retain = create_graph, retain_graph
        self.heap, self.sums = [], {}  # sums: node -> gradients of its results so far
        self.inputs = None if inputs is None else {key(x) for x in inputs}
        self.captured = {}  # key of an input -> its gradient
        self.needed = None
        self.lent = {}  # (id of a target, output) -> its gradient so far, which the running rule may be adding to
        self.expected = {}  # id of a leaf with hooks -> [it, how many gradients are to come, their sum, if it is ours]
        self.placed = {}  # id of a leaf -> its place, with a gradient that is still on its way through a cast
        self.notes = node.state.notes
        self.seeds = set()  # ids of the storages of the caller's gradients, which may be those of a leaf's `.grad`

    def run(self, roots):
        """Walk from `roots`, pairs of (tensor, gradient)."""
        edges = [node.edge(x) for x, _ in roots]
        self.seeds = {id(g.storage) for _, g in roots}
        if self.inputs is not None:
            self.needed = _needed(edges, self.inputs)
        before = launch.mode()
        launch.set_mode(before | GRAD if self.create_graph else before & ~GRAD)
        paused = [w for w in functions.watchers() if not w.in_backward]
        for watcher in paused:
            functions.unwatch(watcher)
        outer, node.state.after = node.state.after, []
        try:
            if node.TensorHooks.used:
                self.expect(edges)
            for to, (_, g) in zip(edges, roots):
                self.send(to, g, False)
            while self.heap:
                self.step(heapq.heappop(self.heap)[1])
            for leaf, _, g, owned in list(self.expected.values()):  # some of what was expected did not come
                if g is not None:
                    self.arrive(leaf, g, owned)
            for function in node.state.after:
                function()
        finally:
            node.state.after = outer
            for watcher in paused:
                functions.watch(watcher)
            launch.set_mode(before)

    def step(self, made):
        """Run one node."""
        gradients = self.sums.pop(made)
        if made.prehooks:
            for hook in list(made.prehooks.values()):
                result = hook(tuple(gradients))
                if result is not None:
                    gradients = list(result) if isinstance(result, (tuple, list)) else [result]
        for output, reference in (made.retained or {}).items():
            kept, g = reference(), gradients[output]
            if kept is not None and g is not None:
                kept.gradient = g if kept.gradient is None else _F.add(kept.gradient, g)
        if self.inputs is not None:
            for output, g in enumerate(gradients):
                if (id(made), output) in self.inputs:
                    self.captured[id(made), output] = g
            if made not in self.needed:
                return
        into = _nothing if made.hooks else self.into  # hooks see, and may change, what the node alone gives
        if launch.mode() & WATCH:
            results = functions.watched_node(made, gradients, into)
        else:
            results = made.backward(gradients, into)
        if made.hooks:
            for hook in list(made.hooks.values()):
                changed = hook(tuple(results), tuple(gradients))
                results = results if changed is None else changed
        if made.where is not None and node.state.check_nan:
            _check_finite(made, results)
        if not self.retain:
            made.release()
        fresh = not made.prehooks and not made.hooks and not made.retained
        del gradients
        results = list(results)[::-1]
        lent, self.lent = self.lent, {}
        for to in made.edges:
            g = results.pop()
            if g is None or to is None:
                continue
            if lent and lent.get((id(to[0]), to[1])) is g:  # the rule has added it
                if to[1] == -1 and id(to[0]) in self.expected:
                    self.gather(to[0], None, False)
                continue
            # before `g` is an argument as well
            owned = fresh and not self.create_graph and _exclusive(g, _VARIABLE)
            self.send(to, g, owned)

    def expect(self, edges):
        """Count the gradients that leaves with hooks will get: their hooks see the sum, as PyTorch's do."""
        stack, seen = list(edges), set()
        while stack:
            to = stack.pop()
            if to is None:
                continue
            target, output = to
            if output != -1:
                if target not in seen:
                    seen.add(target)
                    stack.extend(target.edges)
            elif target.hooks is not None:
                self.expected.setdefault(id(target), [target, 0, None, False])[1] += 1

    def send(self, to, g, owned):
        """Add a gradient to what an edge leads to; `owned`: nobody else uses its memory."""
        target, output = to
        if output == -1:
            if self.inputs is not None and (id(target), -1) not in self.inputs:
                return
            if id(target) in self.expected:
                self.gather(target, g, owned)
            else:
                self.arrive(target, g, owned)
            return
        if self.needed is not None and target not in self.needed and (id(target), output) not in self.inputs:
            return
        gradients = self.sums.get(target)
        if gradients is None:
            gradients = self.sums[target] = [None] * len(target.outputs)
            heapq.heappush(self.heap, (-target.order, target))
        held = gradients[output]
        if held is None:
            gradients[output] = g
        else:
            gradients[output] = None  # so that only `held` refers to it
            gradients[output] = self.add(held, g, owned)

    def add(self, held, g, owned):
        """Their sum, in place where nobody else uses one of the two."""
        if not self.create_graph and held.dtype is g.dtype:
            if held.contiguous_ and _exclusive(held, _ARGUMENT):
                return _add(held, g, out=held)
            if owned and g.contiguous_:
                return _add(g, held, out=g)
        return _F.add(held, g)

    def into(self, to):
        """For rules that write gradients themselves: (memory, whether to add to it), or None.

        The gradient so far, to add to, if nobody else uses its memory; or float32 memory where a 16-bit input was cast
        from float32; or the place that a leaf's first gradient has, also behind such a cast.
        """
        if to is None or self.create_graph:
            return None
        target, output = to
        if output == -1:
            held = target.gradient
            if self.inputs is not None:
                return None
            if target.hooks is not None:
                return self._into_expected(target)
            if held is None or held.tracked:
                return None
            if self.notes is not None:
                self.notes.leaves.setdefault(id(target), (target, held))
        else:
            gradients = self.sums.get(target)
            if gradients is None or gradients[output] is None:
                if target.called == "cast" and target.outputs[0][1].itemsize == 2 and target.wanted[0][2] is float32:
                    place = self._behind(target)
                    if place is None:
                        place = dispatch.empty(target.outputs[0][0], float32, None, target.wanted[0][3])
                    return place, False
                return None
            held, gradients[output] = gradients[output], None
            alone, gradients[output] = _exclusive(held, _VARIABLE), held
            if not alone and not (target.called == "cast" and self.placed.get(id(target.edges[0][0])) is held):
                return None
        if not held.contiguous_ or id(held.storage) in self.seeds:
            return None
        self.lent[id(target), output] = held
        return held, True

    def _into_expected(self, leaf):
        """`into` of a leaf with hooks."""
        entry = self.expected.get(id(leaf))
        if entry is None:
            return None
        if entry[2] is None:
            free = leaf.hooks.place is not None and leaf.gradient is None and id(leaf) not in self.placed
            return (leaf.hooks.place, False) if free else None
        if not entry[3] or not entry[2].contiguous_:
            return None
        self.lent[id(leaf), -1] = entry[2]
        return entry[2], True

    def _behind(self, made):
        """The place of the first gradient of the leaf that a cast was made of, which passes it on; None if it has none.

        Under autocast, all weights of a model that is trained on several ranks are such leaves.
        """
        to = made.edges[0]
        if to is None or to[1] != -1 or made.hooks or made.prehooks or made.retained or self.inputs is not None:
            return None
        leaf = to[0]
        entry = self.expected.get(id(leaf))
        if leaf.hooks is None or entry is None or entry[2] is not None:
            return None
        if leaf.hooks.place is None or leaf.gradient is not None or id(leaf) in self.placed:
            return None
        self.placed[id(leaf)] = leaf.hooks.place
        return leaf.hooks.place

    def gather(self, leaf, g, owned):
        """A gradient has reached a leaf with hooks, which run when the last one has. None: a rule has added it."""
        entry = self.expected[id(leaf)]
        entry[1] -= 1
        if entry[2] is None:
            entry[2:] = g, owned or g is leaf.hooks.place
        elif g is not None:
            if entry[3] and not self.create_graph and entry[2].dtype is g.dtype:
                _add(entry[2], g, out=entry[2])
            else:
                entry[2:] = _F.add(entry[2], g), not self.create_graph
        if not entry[1]:
            del self.expected[id(leaf)]
            self.arrive(leaf, *entry[2:])

    def arrive(self, leaf, g, owned):
        """The gradient of a leaf, or a part of it."""
        hooks = leaf.hooks
        if hooks is not None:
            for hook in list(hooks.gradient.values()):
                g, owned = node.hooked(hook, g), False
        if self.inputs is not None:
            held = self.captured.get((id(leaf), -1))
            self.captured[id(leaf), -1] = g if held is None else _F.add(held, g)
            return
        held = leaf.gradient
        if self.notes is not None:
            self.notes.leaves.setdefault(id(leaf), (leaf, held))
        if held is None:
            if self.create_graph or (owned and g.contiguous_):
                leaf.gradient = g
            else:
                leaf.gradient = dispatch.contiguous_copy(g)
        elif self.create_graph or id(held.storage) in self.seeds:  # others may still read a seed
            leaf.gradient = _F.add(held, g)
        else:
            leaf.gradient = _add(held, g, out=held)
        if hooks is not None:
            for hook in list(hooks.accumulated.values()):
                hook(leaf)


def key(x):
    """What stands for a tensor's edge in sets (tensors compare by element)."""
    target, output = node.edge(x)
    return id(target), output


def _needed(roots, inputs):
    """The nodes on the way from `roots` to `inputs` (keys), among them nodes of inputs that lie on such a way."""
    reached, stack = {}, [to[0] for to in roots if to is not None and to[1] != -1]
    while stack:
        made = stack.pop()
        if made not in reached:
            reached[made] = False
            stack.extend(to[0] for to in made.edges if to is not None and to[1] != -1)
    for made in sorted(reached, key=lambda n: n.order):
        reached[made] = any(
            to is not None and ((id(to[0]), to[1]) in inputs or (to[1] != -1 and reached[to[0]])) for to in made.edges
        )
    return {made for made, on_the_way in reached.items() if on_the_way}


def _check_finite(made, results):
    """For anomaly detection: refuse a NaN, and show where the node was made."""
    for g in results:
        if isinstance(g, TensorBase) and g.numel_ and bool(_F.any(_F.ne(g, g))):
            lines = [f'  File "{f.filename}", line {f.lineno}, in {f.name}' for f in made.where]
            place = next((f for f in reversed(made.where) if "infinicore" not in f.filename), made.where[-1])
            note = "\n".join(lines)
            error = ValueError(
                f"the derivative of `{made.called}` gave NaN; it was called in {place.filename}, line {place.lineno}: "
                f"{place.line}"
            )
            error.add_note("The call was made here:\n" + note)
            raise error
