"""What a `Tensor` has to do with gradients: PyTorch's attributes and methods."""

import functools
import inspect
import weakref

from .. import autograd, dispatch
from ..core import launch, node
from ..core.node_cy import GRAD, WATCH, Handle, TensorHooks, alias
from ..core.tensor_cy import TensorBase
from .formats import strided


def in_graph(*values):
    """Whether a call with these values is recorded."""
    return launch.mode() & GRAD and launch.tracked(values)


def makes_leaf(function):
    """Give a function that makes a tensor PyTorch's keywords `requires_grad`, `pin_memory` and `layout`."""

    @functools.wraps(function)
    def made(*args, requires_grad=False, pin_memory=False, layout=strided, **kwargs):
        if layout is not strided and layout is not None:
            raise TypeError(f"`layout` must be infinicore.strided, as there are dense tensors alone, got {layout!r}")
        t = function(*args, **kwargs)
        t = t.pin_memory() if pin_memory else t
        return t.requires_grad_() if requires_grad else t

    signature = inspect.signature(function)
    defaults = {"requires_grad": False, "pin_memory": False, "layout": strided}
    extra = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=value) for name, value in defaults.items()]
    made.__signature__ = signature.replace(parameters=[*signature.parameters.values(), *extra])
    return made


def detach(input):
    """The memory of a tensor, outside of the graph."""
    return input.detach()


class Gradients:
    """Members of `Tensor` for autograd."""

    __slots__ = ()

    @property
    def requires_grad(self):
        """Whether gradients flow into this tensor."""
        return bool(self.tracked)

    @requires_grad.setter
    def requires_grad(self, value):
        self.requires_grad_(value)

    def requires_grad_(self, requires_grad=True):
        """Ask for (or no longer for) a gradient of this leaf; returns it."""
        if requires_grad and not self.dtype.differentiable:
            raise TypeError(
                f"only floating-point and complex tensors can require gradients, got {self.dtype}: cast it first"
            )
        if not requires_grad and self.node is not None:
            made = self.node.called
            raise ValueError(f"`requires_grad` of a result of `{made}` cannot be turned off: use `.detach()`")
        self.tracked = bool(requires_grad)
        return self

    @property
    def grad(self):
        """The gradient that `backward` accumulated, or None."""
        return self.gradient

    @grad.setter
    def grad(self, value):
        if value is not None:
            if not isinstance(value, TensorBase):
                raise TypeError(f"`grad` must be a Tensor or None, got {type(value).__name__}")
            if value is self:
                raise ValueError("`grad` must be another tensor than the one whose gradient it is: use a clone")
            if value.shape_ != self.shape_:
                raise ValueError(f"`grad` must have shape {self.shape_}, that of its tensor, got {value.shape_}")
            if value.device is not self.device:
                raise ValueError(f"`grad` must lie on {self.device}, as its tensor, got one on {value.device}")
        self.gradient = value

    @property
    def grad_fn(self):
        """The node of the graph that made this tensor; None for a leaf."""
        return node.edge(self)[0] if self.tracked and self.node is not None else None

    @property
    def is_leaf(self):
        """Whether this tensor was not made by a recorded operation."""
        return self.node is None

    @property
    def data(self):
        """The same memory outside of the graph."""
        return self.detach()

    @data.setter
    def data(self, value):
        if self.node is not None and (value.shape_ != self.shape_ or value.dtype is not self.dtype):
            raise ValueError(
                f"`data` must be {self.dtype} of shape {self.shape_}, got {value.dtype} of shape {value.shape_}"
            )
        self.set_layout(
            value.storage, value.address, value.dtype, value.device, value.shape_, value.strides_, value.numel_,
            value.contiguous_,
        )  # fmt: skip

    @property
    def _version(self):
        """How often the memory was written to through tensors."""
        return self.storage.version

    def detach(self):
        """The same memory outside of the graph."""
        return dispatch.batching.detached(self) if launch.mode() & WATCH else alias(self)

    def detach_(self):
        """Take this tensor out of the graph; returns it. A view, whose base stays in it, is refused."""
        if self.base is not None and self.tracked:
            raise ValueError("`detach_` needs a tensor that is no view of another one: use `.detach()`")
        self.node, self.output, self.tracked = None, 0, False
        return self

    def backward(self, gradient=None, retain_graph=None, create_graph=False, inputs=None):
        """Add the derivative of this tensor to `.grad` of every leaf; `gradient` is needed beyond one element."""
        autograd.backward(self, gradient, retain_graph, create_graph, inputs)

    def register_hook(self, hook):
        """Call `hook(gradient)` when the gradient is known; what it returns replaces it. Returns a removable handle."""
        if not self.tracked:
            raise ValueError("`register_hook` needs a tensor that requires grad, this one does not")
        if self.node is None:
            return Handle(self._hooks().gradient, hook)
        made, output = node.edge(self)

        def pick(gradients):
            g = gradients[output]
            return None if g is None else (*gradients[:output], node.hooked(hook, g), *gradients[output + 1 :])

        return made.register_prehook(pick)

    def register_post_accumulate_grad_hook(self, hook):
        """Call `hook(tensor)` after backward has added to `.grad` of this leaf."""
        if not self.tracked or self.node is not None:
            raise ValueError("`register_post_accumulate_grad_hook` needs a leaf that requires grad")
        return Handle(self._hooks().accumulated, hook)

    def _hooks(self):
        if self.hooks is None:
            self.hooks = TensorHooks()
        return self.hooks

    def retain_grad(self):
        """Keep the gradient of this result in `.grad`, as that of a leaf."""
        if not self.tracked:
            raise ValueError("`retain_grad` needs a tensor that requires grad, this one does not")
        if self.node is not None:
            made, output = node.edge(self)
            made.retained = {**(made.retained or {}), output: weakref.ref(self)}

    @property
    def retains_grad(self):
        """Whether `retain_grad` was called on this result."""
        return self.node is not None and bool(self.node.retained) and self.output in self.node.retained
