"""Hooks of modules: functions that users hang before and after `forward` and its derivative.

A module without hooks never gets here; see `Module.__call__`.
"""

import functools
from collections import OrderedDict

from ..autograd import Function
from ..core.node_cy import Handle
from ..tensor.creation import zeros_like
from ..tensor.tensor import Tensor

KINDS = (
    "forward_pre",
    "forward",
    "backward_pre",
    "backward",
    "state_dict_pre",
    "state_dict",
    "load_pre",
    "load_post",
)


class Hooks:
    """The hooks of one module (or of all modules), by kind: number of the handle to hook."""

    def __init__(self):
        for kind in KINDS:
            setattr(self, kind, OrderedDict())
        self.options = {}  # number of the handle -> (with_kwargs, always_call)
        self.any = False  # whether there ever was one

    def add(self, kind, hook, prepend=False, with_kwargs=False, always_call=False):
        """Register; returns the handle."""
        table = getattr(self, kind)
        handle = Handle(table, hook)
        self.any = True
        if prepend:
            table.move_to_end(handle.id, last=False)
        if with_kwargs or always_call:
            self.options[handle.id] = (with_kwargs, always_call)
        return handle

    def of(self, kind):
        """(hook, with_kwargs, always_call) in the order of calls."""
        return [(hook, *self.options.get(number, (False, False))) for number, hook in getattr(self, kind).items()]


EVERY = Hooks()  # of all modules


def registered(module):
    """Whether a call of this module runs hooks as things are now."""
    return any(getattr(own, kind) for own in (EVERY, module._hooks) if own is not None for kind in KINDS[:4])


def hooked(module):
    """Whether a call of this module may run hooks; its work can be a part of another call's only if not."""
    return module._hooks is not None or EVERY.any


def register_module_forward_pre_hook(hook):
    """Call `hook(module, args)` before the `forward` of every module; returns a handle with `remove()`."""
    return EVERY.add("forward_pre", hook)


def register_module_forward_hook(hook, *, with_kwargs=False, always_call=False):
    """Call `hook(module, args, output)` after the `forward` of every module; returns a handle with `remove()`."""
    return EVERY.add("forward", hook, with_kwargs=with_kwargs, always_call=always_call)


def register_module_full_backward_pre_hook(hook):
    """Call `hook(module, grad_output)` before the derivative of every module; returns a handle with `remove()`."""
    return EVERY.add("backward_pre", hook)


def register_module_full_backward_hook(hook):
    """Call `hook(module, grad_input, grad_output)` after the derivative of every module; returns a handle."""
    return EVERY.add("backward", hook)


class Hooked:
    """The part of `Module` that takes hooks."""

    _hooks = None  # `Hooks`, from the first registration on

    def _hook(self, kind, hook, **options):
        if self._hooks is None:
            object.__setattr__(self, "_hooks", Hooks())
        return self._hooks.add(kind, hook, **options)

    def register_forward_pre_hook(self, hook, *, prepend=False, with_kwargs=False):
        """Call `hook(module, args)` before `forward`; what it returns replaces the arguments.

        With `with_kwargs` it is `hook(module, args, kwargs)` and returns None or both. Returns a handle with
        `remove()`.
        """
        return self._hook("forward_pre", hook, prepend=prepend, with_kwargs=with_kwargs)

    def register_forward_hook(self, hook, *, prepend=False, with_kwargs=False, always_call=False):
        """Call `hook(module, args, output)` after `forward`; what it returns replaces the output.

        With `with_kwargs` it is `hook(module, args, kwargs, output)`; with `always_call` it is called after an error
        too. Returns a handle with `remove()`.
        """
        return self._hook("forward", hook, prepend=prepend, with_kwargs=with_kwargs, always_call=always_call)

    def register_full_backward_pre_hook(self, hook, prepend=False):
        """Call `hook(module, grad_output)` before the derivative of this module; what it returns replaces them."""
        return self._hook("backward_pre", hook, prepend=prepend)

    def register_full_backward_hook(self, hook, prepend=False):
        """Call `hook(module, grad_input, grad_output)` after the derivative of this module.

        Both are tuples, None where an argument is no tensor, and zeros where it wants no gradient; what the hook
        returns replaces `grad_input`.
        """
        return self._hook("backward", hook, prepend=prepend)

    def register_state_dict_pre_hook(self, hook):
        """Call `hook(module, prefix, keep_vars)` before `state_dict` looks at this module."""
        return self._hook("state_dict_pre", hook)

    def register_state_dict_post_hook(self, hook):
        """Call `hook(module, state_dict, prefix, local_metadata)` after `state_dict` has looked at this module.

        It changes the dict in place and returns None.
        """
        return self._hook("state_dict", functools.partial(_in_place, hook))

    def _register_state_dict_hook(self, hook):
        """As `register_state_dict_post_hook`, of a hook that may return another dict: PyTorch's older form."""
        return self._hook("state_dict", hook)

    def register_load_state_dict_pre_hook(self, hook):
        """Call `hook(module, state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs)`
        before `load_state_dict` looks at this module; `state_dict` is a copy that it may change."""
        return self._hook("load_pre", hook)

    def _register_load_state_dict_pre_hook(self, hook, with_module=False):
        """As `register_load_state_dict_pre_hook`, of a hook without its first argument unless `with_module`."""
        return self._hook("load_pre", hook if with_module else functools.partial(_without_module, hook))

    def register_load_state_dict_post_hook(self, hook):
        """Call `hook(module, incompatible_keys)` when this module and those below are loaded.

        It may change the two lists.
        """
        return self._hook("load_post", hook)


def _in_place(hook, *args):
    if hook(*args) is not None:
        raise ValueError("a hook after `state_dict` must return None: change the dict in place")


def _without_module(hook, module, *args):
    return hook(*args)


def entry(method):
    """For a method that others call in place of `forward`: it runs the module's hooks as a call of the module does."""

    @functools.wraps(method)
    def function(self, *args, **kwargs):
        if not hooked(self):
            return method(self, *args, **kwargs)
        return call(self, args, kwargs, functools.partial(method, self))

    return function


def call(module, args, kwargs, forward=None):
    """`module.forward` (or `forward`) with all its hooks, in PyTorch's order: those of every module first."""
    own = module._hooks or Hooks()
    forward = module.forward if forward is None else forward
    for hook, with_kwargs, _ in EVERY.of("forward_pre") + own.of("forward_pre"):
        args, kwargs = _before(hook, with_kwargs, module, args, kwargs)
    boundary = None
    if EVERY.backward or EVERY.backward_pre or own.backward or own.backward_pre:
        boundary = _Boundary(module, own)
        args = boundary.inputs(args)
    called, output = set(), None
    try:
        output = forward(*args, **kwargs)
        for number, (hook, with_kwargs, _) in enumerate(EVERY.of("forward") + own.of("forward")):
            called.add(number)
            result = hook(module, args, kwargs, output) if with_kwargs else hook(module, args, output)
            output = output if result is None else result
    except Exception:
        for number, (hook, with_kwargs, always) in enumerate(EVERY.of("forward") + own.of("forward")):
            if always and number not in called:
                try:
                    hook(module, args, kwargs, output) if with_kwargs else hook(module, args, output)
                except Exception:
                    pass  # the first error is the one to tell
        raise
    return output if boundary is None else boundary.outputs(output)


def _before(hook, with_kwargs, module, args, kwargs):
    """The arguments after one hook."""
    if not with_kwargs:
        result = hook(module, args)
        if result is None:
            return args, kwargs
        return (result if isinstance(result, tuple) else (result,)), kwargs
    result = hook(module, args, kwargs)
    if result is None:
        return args, kwargs
    if not (isinstance(result, tuple) and len(result) == 2):
        raise ValueError(
            f"a forward pre-hook with kwargs of {type(module).__name__} must return None or (args, kwargs), "
            f"got {type(result).__name__}"
        )
    return result


class _Boundary:
    """Identities around a module in the graph of gradients: where its backward hooks see what passes."""

    def __init__(self, module, own):
        self.module, self.pre = module, EVERY.of("backward_pre") + own.of("backward_pre")
        self.post = EVERY.of("backward") + own.of("backward")
        self.grad_output = None
        self.has_inputs, self.length = False, 0

    def inputs(self, args):
        """The arguments, those that want gradients through an identity."""
        self.length, self.places = len(args), ()
        self.places, wanted = _wanting(args)
        if not wanted or not self.post:
            return args
        self.has_inputs = True
        self.given = tuple(x.detach() if isinstance(x, Tensor) else None for x in args)
        return _replaced(args, self.places, _through(self._leave, wanted))

    def outputs(self, output):
        """The results, those that carry gradients through an identity."""
        results = output if isinstance(output, (tuple, list)) else (output,)
        places, wanted = _wanting(results)
        if not wanted:
            return output
        self.out_places, self.out_length = places, len(results)
        results = _replaced(results, places, _through(self._enter, wanted))
        return results if isinstance(output, (tuple, list)) else results[0]

    def _enter(self, gradients):
        """At the results: hooks before the derivative, and those after it where no input wants a gradient."""
        grads = _spread(gradients, self.out_places, self.out_length)
        for hook, *_ in self.pre:
            grads = _changed(grads, hook(self.module, grads))
        self.grad_output = grads
        if not self.has_inputs:
            for hook, *_ in self.post:
                hook(self.module, (None,) * self.length, grads)
        return tuple(grads[place] for place in self.out_places)

    def _leave(self, gradients):
        """At the inputs: hooks after the derivative; none of a result that is no tensor and no tuple of them."""
        if self.grad_output is None:
            return gradients
        grads = _spread(gradients, self.places, self.length)
        grads = tuple(zeros_like(x) if g is None and isinstance(x, Tensor) else g for g, x in zip(grads, self.given))
        for hook, *_ in self.post:
            grads = _changed(grads, hook(self.module, grads, self.grad_output))
        return tuple(grads[place] for place in self.places)


def _changed(grads, new):
    """The gradients after a hook gave `new`, or None."""
    if new is None:
        return grads
    new = new if isinstance(new, tuple) else (new,)
    if len(new) != len(grads):
        raise ValueError(f"a backward hook must return as many gradients as it got, {len(grads)}, got {len(new)}")
    return new


def _wanting(values):
    """(places, tensors) of the values that want gradients."""
    found = [(i, x) for i, x in enumerate(values) if isinstance(x, Tensor) and x.requires_grad]
    return tuple(i for i, _ in found), tuple(x for _, x in found)


def _replaced(values, places, new):
    out = list(values)
    for place, value in zip(places, new):
        out[place] = value
    return type(values)(out) if type(values) in (tuple, list) else type(values)(*out)


def _spread(gradients, places, length):
    out = [None] * length
    for place, gradient in zip(places, gradients):
        out[place] = gradient
    return tuple(out)


def _through(receive, tensors):
    """The tensors behind an identity whose gradients pass through `receive`."""
    found = _Identity.apply(receive, *tensors)
    return found if isinstance(found, tuple) else (found,)


class _Identity(Function):
    @staticmethod
    def forward(ctx, receive, *inputs):
        ctx.receive = receive
        ctx.set_materialize_grads(False)
        return tuple(x.view_as(x) for x in inputs)

    @staticmethod
    def backward(ctx, *gradients):
        return None, *ctx.receive(gradients)
