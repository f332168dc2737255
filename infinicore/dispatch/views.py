"""The public functions of views: a layout of the op table, and its place in the graph."""

import functools
import inspect
from types import SimpleNamespace

from .. import dispatch
from ..core import launch, layout
from ..core.node_cy import GRAD, Node, attach, edge
from ..core.tensor_cy import TensorBase
from . import derive
from .names import by_own_names, other_names


def make_view(op):
    """The public function of a view, which is the method as well."""
    paragraph = op.function
    signature = inspect.signature(paragraph)
    signature = signature.replace(parameters=list(signature.parameters.values())[1:])
    names = other_names(op)
    others = names.keys()

    def function(input, *args, **kwargs):
        if kwargs and not others.isdisjoint(kwargs):
            (_, *args), kwargs = by_own_names(op, names, (input, *args), kwargs)
        try:
            found = paragraph(layout, input, *args, **kwargs)
        except AttributeError:
            if isinstance(input, TensorBase):
                raise
            raise TypeError(f"`input` of `{op.name}` must be a tensor, got {type(input).__name__}") from None
        if type(found) is list:
            return _pieces(function, input, args, kwargs, found)
        shape, strides, offset, back = found
        if strides is None:
            return derive.functions.rearrange(input).reshape(shape)
        if not input.tracked:
            return derive.view(input, shape, strides, offset)
        if back == ():  # as of a contiguous tensor: elements that are the same memory have a gradient each
            whole = SimpleNamespace(shape_=input.shape_, strides_=layout.contiguous_strides(input.shape_))
            back = derive.unstrided, whole.shape_, whole.strides_, *paragraph(layout, whole, *args, **kwargs)[:3]
        back = (_placed, function, args, kwargs, input.shape_) if back is None else back
        return derive.view(input, shape, strides, offset, functools.partial(*back))

    function.__name__ = function.__qualname__ = op.name
    function.__doc__, function.__signature__ = op.doc, signature
    return launch.make_known_view(op.known, function)


def _pieces(function, input, args, kwargs, found):
    views = [dispatch.view(input, *each) for each in found]
    if not views:
        return ()
    back = None
    if input.tracked:
        back = functools.partial(_joined, function, args, kwargs, input.shape_, input.strides_, found)
    return tuple(derive.pieces(input, views, back))


# ---- gradients ---------------------------------------------------------------------------------


class PlacedNode(Node):
    """Gradients of views that were put in their places: the gradients of these are the same views of what comes."""

    __slots__ = ("again",)

    def backward(self, gradients, into):
        views = self.again(gradients[0])
        views = views if type(views) is tuple else (views,)
        return [None if to is None else g for to, g in zip(self.edges, views)]


def _write(views, gradients, full, again):
    """Write the gradients of views of `full` where the views show, zeros where nothing flows."""
    for part, g in zip(views, gradients):
        if g is None:
            part.fill_(0)
        elif g.device.backend.of_samples:
            part.copy_(g)
        else:
            dispatch.copy_into(part, g)
    if launch.mode() & GRAD and any(g is not None and g.tracked for g in gradients):
        edges = tuple([None if g is None else edge(g) for g in gradients])
        made = PlacedNode("place", edges, ((full.shape_, full.dtype),))
        made.again = again
        attach(full, made)
    return full


def _placed(function, args, kwargs, shape, g):
    """The gradient of a tensor of `shape` from that of one view of it: zeros elsewhere."""
    again = functools.partial(_again, function, args, kwargs)
    full = derive.blank(shape, g)
    return _write([again(full)], [g], full, again)


def _joined(function, args, kwargs, shape, strides, layouts, gradients):
    """The gradient of a tensor from those of views that show it all; None is zeros."""
    if not launch.mode() & GRAD:
        full = _neighbours(shape, strides, layouts, gradients)
        if full is not None:
            return full
    again = functools.partial(_again, function, args, kwargs)
    one = next(g for g in gradients if g is not None)
    of_samples = one.device.backend.of_samples
    full = derive.blank(shape, one) if of_samples else dispatch.empty(shape, one.dtype, None, one.device)
    return _write(again(full), gradients, full, again)


def _again(function, args, kwargs, x):
    """The same views of another tensor."""
    return function(x, *args, **kwargs)


def _neighbours(shape, strides, layouts, gradients):
    """The whole that gradients which lie as their views do are pieces of already; or None.

    Those of attention over a packed projection are.
    """
    first = gradients[0]
    if first is None:
        return None
    item = first.dtype.itemsize
    for (own, steps, offset), g in zip(layouts, gradients):
        if g is None or g.storage is not first.storage or g.dtype is not first.dtype:
            return None
        if g.address != first.address + (offset - layouts[0][2]) * item:
            return None
        if g.strides_ != steps and any(n > 1 and a != b for n, a, b in zip(own, g.strides_, steps)):
            return None
    return dispatch.view(first, shape, strides, -layouts[0][2])
