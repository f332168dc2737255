"""From the derivative rules of the op table to nodes of the graph.

A recorded call becomes an `OpNode`: it keeps the tensors that the rules of its row name, and calls the rules in
backward. The rule of an elementwise op is rendered into one kernel, as the op itself is; where gradients of gradients
are wanted, the same rule is called with tensors.
"""

import functools
import types

import numpy as np

from .. import dispatch
from ..core import launch as core_launch
from ..core import layout, node
from ..core.node_cy import GRAD, Node, Saved, attach, edge, released
from ..core.record_cy import ElementwiseCall, ElementwiseRecorder, needs_conjugates
from ..core.tensor_cy import TensorBase
from ..kernels.lang import scalar_math
from ..kernels.ops import elementwise as _rules
from ..kernels.table.registry import FLOATS, Op


class _Functions:
    """All ops by name: the `f` of rules. They record their calls by this file, and are made above it."""

    def __getattr__(self, name):
        try:
            found = _entered[name]
        except KeyError:
            raise AttributeError(f"there is no op `{name}`") from None
        setattr(self, name, found)  # found at once from now on
        return found


functions, _entered = _Functions(), {}


def enter(made):
    """Let rules call the functions of a dict, which may make them as they are asked for."""
    global _entered
    _entered = made


def _is_one(g):
    """Whether a gradient of one element is 1; while a graph is recorded, only backward's own start is known to be."""
    storage, version = node.state.seed
    if g.storage is storage and storage.version == version:
        return True
    return g.storage.backend.shares_memory and core_launch.recording() is None and g.item() == 1.0


functions.is_one, functions.from_array = _is_one, dispatch.from_array
functions.check_fits, functions.result_type = dispatch.check_fits, dispatch.result_type

# ---- views -------------------------------------------------------------------------------------


class _OfView(Node):
    """What nodes of views share: they are made anew once their base was written to."""

    __slots__ = ("base_node", "inverse")

    def current(self, x):
        return self if self.base_node is x.base.node else _renew_view(x)


class ViewNode(_OfView):
    """A view: `inverse` turns its gradient into that of the tensor it shows."""

    __slots__ = ()

    def backward(self, gradients, into):
        return (self.inverse(gradients[0]),)


class PiecesNode(_OfView):
    """Views that share a tensor out: `inverse` joins their gradients, None where nothing flows."""

    __slots__ = ()

    def backward(self, gradients, into):
        return (self.inverse(gradients),)


class WrittenNode(Node):
    """A tensor of which a part was overwritten: that part's gradient goes to what was written, the rest to the old.

    `base` has shape and strides of the tensor, `part` shape, strides and offset of the part in its memory.
    """

    __slots__ = ("base", "part")

    def _laid_out(self, dtype, device):
        """New memory in the layout of the tensor, and the part of it that was overwritten."""
        low, high = layout.extent(*self.base)
        whole = dispatch.view(dispatch.empty((high - low + 1,), dtype, None, device), *self.base, -low)
        return whole, dispatch.view(whole, *self.part)

    def backward(self, gradients, into):
        g = gradients[0]
        if core_launch.mode() & GRAD:
            return self._differentiable(g)
        old, part = self._laid_out(g.dtype, g.device)
        dispatch.copy_into(old, g)
        new = None if self.edges[1] is None else dispatch.contiguous_copy(part)
        part.fill_(0)
        return old, new

    def _differentiable(self, g):
        """The same by operations that have derivatives."""
        keep, part = self._laid_out(dispatch.as_dtype("bool"), g.device)
        keep.fill_(True)
        part.fill_(False)
        numbers, part = self._laid_out(dispatch.as_dtype("int64"), g.device)  # of the elements, in row-major order
        dispatch.copy_into(numbers, dispatch.from_array(np.arange(g.numel_).reshape(g.shape_), g.device))
        new = functions.index_select(g.reshape(-1), 0, dispatch.contiguous_copy(part).reshape(-1))
        return functions.where(keep, g, 0.0), new.reshape(part.shape_)


class OverwrittenNode(Node):
    """A tensor that was overwritten as a whole: zeros for what it was made of before, as in PyTorch."""

    __slots__ = ()

    def backward(self, gradients, into):
        g = gradients[0]
        return blank(g.shape_, g), None if self.edges[1] is None else g


class MovedNode(Node):
    """A copy on another device: its gradient goes back to the device `source`."""

    __slots__ = ("source",)

    def backward(self, gradients, into):
        return (moved(gradients[0], self.source),)


def moved(x, device, wait=True):
    """A copy of `x` on another device, with a place in the graph; `wait` is that of `transfer`."""
    dispatch.refuse_recording("moving a tensor to another device", "move it before, or after the replay")
    t = dispatch.to_device(x if x.contiguous_ else dispatch.contiguous_copy(x), device, wait)
    if x.tracked and core_launch.mode() & GRAD:
        made = MovedNode("to", (edge(x),), ((t.shape_, t.dtype),))
        made.source = x.device
        attach(t, made)
    return t


def view(x, shape, strides, offset=0, inverse=None):
    """A view of `x` with a place in the graph; `inverse` defaults to the inverse of any strided view."""
    t = dispatch.view(x, shape, strides, offset)
    if core_launch.mode() & GRAD:
        t.base = x if x.base is None else x.base
        if x.tracked:
            _attach_view(t, x, inverse or functools.partial(unstrided, x.shape_, x.strides_, shape, strides, offset))
    return t


def _attach_view(t, x, inverse):
    made = ViewNode("view", (edge(x),), ((t.shape_, t.dtype),))
    made.inverse, made.base_node = inverse, t.base.node
    attach(t, made)


def pieces(x, views, inverse):
    """Views of `x` as the results of one node."""
    if core_launch.mode() & GRAD:
        for t in views:
            t.base = x if x.base is None else x.base
        if x.tracked:
            made = PiecesNode("split", (edge(x),), tuple((t.shape_, t.dtype) for t in views))
            made.inverse, made.base_node = inverse, views[0].base.node
            for i, t in enumerate(views):
                attach(t, made, i)
    return views


def blank(shape, like, dtype=None):
    """Zeros of `shape` where `like` lies, which values like it are written to: under `vmap`, of each sample."""
    dtype, of_samples = dtype or like.dtype, getattr(like.storage.owner, "blank", None)
    return dispatch.empty(shape, dtype, None, like.device).zero_() if of_samples is None else of_samples(shape, dtype)


def unstrided(shape, strides, view_shape, view_strides, offset, g):
    """The gradient of a tensor of `shape`, `strides` from that of a strided view of it: zeros and the view's own.

    Elements of the tensor that are the same memory share what comes for it, as in PyTorch.
    """
    low, high = layout.extent(shape, strides)
    first, last = layout.extent(view_shape, view_strides)
    if first <= last:  # it may reach beyond the tensor, to where nothing wants a gradient
        low, high = min(low, offset + first), max(high, offset + last)
    of_view, own = _places(view_shape, view_strides, offset - low), _places(shape, strides, -low)
    memory = dispatch.empty((high - low + 1,), g.dtype, None, g.device).zero_()
    memory = functions.index_add(memory, 0, dispatch.from_array(of_view, g.device), g.reshape(-1))
    counts = np.bincount(own, minlength=high - low + 1)
    if counts.max(initial=0) > 1:
        shares = dispatch.from_array(1.0 / np.maximum(counts, 1), g.device)
        memory = functions.mul(memory, shares.to(g.dtype))
    return functions.index_select(memory, 0, dispatch.from_array(own, g.device)).reshape(shape)


def _places(shape, strides, first):
    """Where each element of a layout lies in memory: a flat int64 array."""
    places = np.full(shape, first, np.int64)
    for d, (size, stride) in enumerate(zip(shape, strides)):
        places += np.arange(size).reshape(-1, *[1] * (len(shape) - d - 1)) * stride
    return places.reshape(-1)


def _renew_view(x):
    base = x.base
    whole, part = (base.shape_, base.strides_), (x.shape_, x.strides_)
    if base.dtype is x.dtype:
        offset = (x.address - base.address) // base.dtype.itemsize
        inverse = functools.partial(unstrided, *whole, *part, offset)
    else:
        inverse = functools.partial(_of_parts, whole, part, x.address - base.address, base.dtype, x.dtype)
    made = ViewNode("as_strided", (edge(base),), ((x.shape_, x.dtype),))
    made.inverse, made.base_node = inverse, base.node
    attach(x, made)
    return made


def _of_parts(whole, part, offset, base, own, g):
    """The gradient of a tensor from that of a view of it, one of which has the parts of the complex other."""
    real = base if own.kind == "c" else own
    whole, part = (parts(*own) if kind.kind == "c" else own for own, kind in ((whole, base), (part, own)))
    g = functions.view_as_real(g) if own.kind == "c" else g
    g = unstrided(*whole, *part, offset // real.itemsize, g)
    return _as_pairs(g) if base.kind == "c" else g


def parts(shape, strides):
    """(shape, strides) of the real and imaginary parts of complex elements, in a last dim of 2."""
    return (*shape, 2), (*[2 * s for s in strides], 1)


def view_parts(x):
    """A view of a complex tensor as real numbers, with a last dim of 2: its parts."""
    return _retyped(x, *parts(x.shape_, x.strides_), x.dtype.real, _as_pairs)


def _as_pairs(g):
    """A real tensor with a last dim of 2 as a complex one: a view, or a copy where its layout is none."""
    fits = g.strides_[-1] == 1 and not any(s % 2 for s in g.strides_[:-1]) and not g.storage_offset() % 2
    return functions.view_as_complex(g if fits else functions.rearrange(g))


def view_pairs(x, dtype):
    """A view of a real tensor whose last dim has pairs of neighbours as a complex one."""
    strides = tuple(s // 2 for s in x.strides_[:-1])
    return _retyped(x, x.shape_[:-1], strides, dtype, lambda g: functions.view_as_real(g))


def _retyped(x, shape, strides, dtype, inverse):
    t = dispatch.view(x, shape, strides)
    t.dtype = dtype
    if core_launch.mode() & GRAD:
        t.base = x if x.base is None else x.base
        if x.tracked:
            _attach_view(t, x, inverse)
    return t


def keep_old(x, result):
    """Before `x` is overwritten by a `result` computed from it: what the call saved of `x` becomes a copy."""
    for saved in (getattr(result.node, "saved", None) or {}).values():
        if type(saved) is Saved and isinstance(saved.value, TensorBase) and saved.value.storage is x.storage:
            old, saved.value = saved.value, dispatch.contiguous_copy(saved.value)
            saved.version = saved.value.storage.version
            saved.value.node, saved.value.output, saved.value.tracked = old.node, old.output, old.tracked


def write(x, source, name):
    """Overwrite `x` by `source`, whose shape and dtype it has, so that gradients follow: the core of in-place ops."""
    if x.numel_:
        dispatch.writable(x, "self")  # also where a plain copy would do: gradients belong to each place that x shows
    root = x if x.base is None else x.base
    if root.tracked and root.node is None:
        raise ValueError(
            f"`{name}` in place on a leaf of shape {x.shape_} that requires grad would lose its gradient: "
            "use it under `no_grad`, or on a copy"
        )
    if source.tracked and source.node is None:
        source = view(source, source.shape_, source.strides_, 0, lambda g: g)  # so that x does not pass for the leaf
    new, before = edge(source), (x.node, x.output)
    base = x.base
    if base is not None and base.dtype is not x.dtype and (base.tracked or source.tracked):
        raise NotImplementedError(
            f"`{name}` into the parts of a {base.dtype} tensor records no gradients: make a new one with `complex`"
        )
    if base is None:
        old = edge(x)
        dispatch.copy_into(x, source)
        if old is not None and (name == "copy_" or new is None):  # others are made of what x was before
            attach(x, OverwrittenNode(name, (old, new), ((x.shape_, x.dtype),)))
        else:
            x.node, x.output, x.tracked = source.node, source.output, source.tracked
        _keep_retained(x, *before)
        return
    dispatch.copy_into(x, source)
    if base.tracked or source.tracked:
        written(x, new, name)
        _keep_retained(x, *before)


def _keep_retained(x, node, output):
    """After a write: whoever asked for the gradient of `x`, a result, means that of its new values."""
    kept = None if node is None or node.retained is None else node.retained.pop(output, None)
    if kept is not None and x.node is not None:
        x.node.retained = {**(x.node.retained or {}), x.output: kept}


def written(x, new, name):
    """Give the base of a view `x` that was written to its place in the graph; `new` is the edge of what it got."""
    base = x.base
    made = WrittenNode(name, (edge(base), new), ((base.shape_, base.dtype),))
    offset = (x.address - base.address) // base.dtype.itemsize
    made.base, made.part = (base.shape_, base.strides_), (x.shape_, x.strides_, offset)
    attach(base, made)
    _renew_view(x)


class RelaidNode(Node):
    """A tensor that took the layout of a view of itself: `inverse` turns its gradient into that of what it was."""

    __slots__ = ("inverse",)

    def backward(self, gradients, into):
        return (self.inverse(gradients[0]),)


def take_layout(x, t, name):
    """Give `x` the layout of `t`, a view of it, and return it; a write, since calls may have saved `x` as it was."""
    made = None
    if x.tracked:
        recorded = bool(core_launch.mode() & GRAD)
        if recorded != (x.node is not None):
            raise ValueError(
                f"`{name}` takes a leaf that requires grad under `no_grad` alone, and a result that does outside of it "
                "alone: use it on a copy"
            )
        if recorded and x.base is None:
            made = RelaidNode(name, (edge(x),), ((t.shape_, t.dtype),))
            made.inverse = edge(t)[0].inverse
    x.set_layout(x.storage, t.address, x.dtype, x.device, t.shape_, t.strides_, t.numel_, t.contiguous_)
    x.storage.version += 1
    if made is not None:
        attach(x, made)
    elif x.tracked and x.base is not None:
        _renew_view(x)
    return x


# ---- elementwise ops -----------------------------------------------------------------------------


@functools.cache
def _gradient_function(op, name):
    """The rule of an elementwise op for one input as a function, which is rendered into a kernel."""
    rule = op.gradients[name]
    own = Op(name=f"{op.name}_{name}_grad", family="elementwise", function=rule.function, dtypes=FLOATS)
    return dispatch.unwatched(own)


class _TensorMath:
    """The names of `lang/vmath.py` on tensors (and numbers): what a rule means when its own derivative is wanted."""

    def __getattr__(self, name):
        def function(*args):
            names = functions if any(isinstance(x, TensorBase) for x in args) else scalar_math
            return getattr(names, name)(*args)

        return function

    @staticmethod
    def where(condition, input, other):
        if isinstance(condition, TensorBase):
            return functions.where(condition, input, other)
        chosen, left = (input, other) if condition else (other, input)
        return chosen if isinstance(chosen, TensorBase) else left * 0.0 + chosen

    @staticmethod
    def normal_cdf(x):
        return functions.erf(x * 0.7071067811865476) * 0.5 + 0.5


@functools.cache
def _on_tensors(function):
    """A rule as a function of tensors."""
    names = {**vars(_rules), **function.__globals__, "m": _TensorMath()}
    return types.FunctionType(function.__code__, names, function.__name__)


functions.on_tensors = _on_tensors


class ElementwiseNode(ElementwiseCall):
    """A recorded elementwise call, and its way back."""

    __slots__ = ()

    def backward(self, gradients, into):
        saved = self.saved
        if saved is None:
            raise released(self.called)
        values = {k: v.get(self.called) if type(v) is Saved else v for k, v in saved.items()}
        values["g"] = gradients[0]
        turned = gradients[0].dtype.kind == "c" and needs_conjugates(values)
        if turned:
            values["g"] = functions.conj(gradients[0])
        by_ops = core_launch.mode() & GRAD or gradients[0].device.backend.of_samples
        results = []
        for name, shape, dtype, _ in self.wanted:
            rule = self.op.gradients[name]
            if rule.parameters == ("g",) and _is_identity(rule.function):
                result = values["g"]
            elif turned or by_ops or values["g"].dtype.kind == "c":
                result = _on_tensors(rule.function)(*[values[p] for p in rule.parameters])
            else:
                result = _gradient_function(self.op, name)(*[values[p] for p in rule.parameters])
            results.append(fit(functions.conj(result) if turned else result, shape, dtype))
        return results

    def release(self):
        self.saved = None


@functools.cache
def _is_identity(function):
    """Whether a rule is `return g`."""
    return function.__code__.co_code == (lambda g: g).__code__.co_code


def elementwise_recorder(op):
    """The function (inputs, result) that gives the result of an elementwise call its place in the graph."""
    return ElementwiseRecorder(op, ElementwiseNode).record


def fit(g, shape, dtype):
    """A gradient summed over the dims that broadcasting added, in the dtype of its input."""
    if g.shape_ != shape:
        added = len(g.shape_) - len(shape)
        dims = [*range(added), *(d + added for d, n in enumerate(shape) if n == 1 and g.shape_[d + added] != 1)]
        g = functions.sum(g, dims).reshape(shape)
    return g if g.dtype is dtype else functions.cast(g, dtype)
