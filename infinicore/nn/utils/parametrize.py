"""Parameters that are functions of others: `module.weight` becomes what modules make of `original`.

As in PyTorch, the originals and the modules are children of the module's own `parametrizations`, so `state_dict` has
`parametrizations.weight.original` and what the modules themselves hold.
"""

import contextlib
import copy

import infinicore

from ...tensor.tensor import Tensor
from ..modules.container import ModuleDict, ModuleList
from ..parameter import Parameter

__all__ = [
    "ParametrizationList",
    "cached",
    "is_parametrized",
    "register_parametrization",
    "remove_parametrizations",
    "type_before_parametrizations",
]

_cache = None  # of `cached()`: (id of a list of parametrizations, name) -> its value


@contextlib.contextmanager
def cached():
    """Compute each parametrized tensor once inside."""
    global _cache
    outer, _cache = _cache, {} if _cache is None else _cache
    try:
        yield
    finally:
        _cache = outer


class ParametrizationList(ModuleList):
    """The modules of one tensor, and its originals: `original`, or `original0`, `original1`, ... of several."""

    def __init__(self, modules, original, unsafe=False):
        super().__init__(modules)
        self.unsafe = unsafe
        value = original
        with infinicore.no_grad():
            for module in reversed(self):
                if hasattr(module, "right_inverse"):
                    with contextlib.suppress(NotImplementedError):  # without an inverse, the tensor is the original
                        value = module.right_inverse(value)
        self.is_tensor = isinstance(value, Tensor)
        values = [value] if self.is_tensor else list(value)
        if not all(isinstance(v, Tensor) for v in values):
            raise ValueError("`right_inverse` must return a tensor or several of them")
        self.ntensors = len(values)
        for name, v in zip(self._names(), values):
            if isinstance(original, Parameter) and v.dtype.is_floating_point:
                first = original if self.is_tensor and v is original else Parameter(v.detach(), original.requires_grad)
                self.register_parameter(name, first)
            else:
                self.register_buffer(name, v.detach())

    def _names(self):
        return ["original"] if self.is_tensor else [f"original{i}" for i in range(self.ntensors)]

    def originals(self):
        """The tensors that the modules start from."""
        return [getattr(self, name) for name in self._names()]

    def right_inverse(self, value):
        """Set the originals to what gives `value`."""
        with infinicore.no_grad():
            for module in reversed(self):
                if not hasattr(module, "right_inverse"):
                    raise NotImplementedError(f"{type(module).__name__} has no `right_inverse`: set the originals")
                value = module.right_inverse(value)
            for own, new in zip(self.originals(), [value] if self.is_tensor else value):
                own.detach().copy_(new)

    def forward(self):
        x = self[0](*self.originals())
        for module in list(self)[1:]:
            x = module(x)
        return x


def _value(parametrized, name):
    found = parametrized.parametrizations[name]
    if _cache is None:
        return found()
    key = id(found), name
    if key not in _cache:
        _cache[key] = found()
    return _cache[key]


def _of_its_own_class(module):
    """Give the module a class of its own, which can have properties."""
    cls = type(module)
    if "_parametrized" in cls.__dict__:
        return

    def stop(self):
        raise NotImplementedError("a parametrized module cannot be pickled: keep its `state_dict`")

    own = {"_parametrized": cls, "__reduce__": stop, "__deepcopy__": _copied}
    module.__class__ = type(f"Parametrized{cls.__name__}", (cls,), own)


def _copied(module, memo):
    new = memo[id(module)] = module.__class__.__new__(module.__class__)
    new.__dict__.update({key: copy.deepcopy(value, memo) for key, value in module.__dict__.items()})
    return new


def _property(name):
    return property(
        lambda self: _value(self, name), lambda self, value: self.parametrizations[name].right_inverse(value)
    )


def register_parametrization(module, tensor_name, parametrization, *, unsafe=False):
    """Make `module.<tensor_name>` what `parametrization` (a module) makes of the original; returns the module.

    Several follow one another, and a second one changes the value. A method `right_inverse` of theirs says how to
    assign to the attribute; that of the first one finds its originals, and may return several tensors. Unless
    `unsafe`, shape and dtype must not change.
    """
    parametrization.train(module.training)
    if is_parametrized(module, tensor_name):
        found = module.parametrizations[tensor_name]
        if not unsafe:
            _check(getattr(module, tensor_name), parametrization, tensor_name)
        found.append(parametrization)
        found.unsafe |= unsafe
        return module
    original = module._parameters.get(tensor_name)
    original = module._buffers.get(tensor_name) if original is None else original
    if original is None:
        raise ValueError(f"`tensor_name` {tensor_name!r} is no parameter, buffer or parametrized tensor of the module")
    found = ParametrizationList([parametrization], original, unsafe)
    if not unsafe:
        with infinicore.no_grad():
            value = found()
        _same(original, value, tensor_name)
    if "parametrizations" not in module._modules:
        module.parametrizations = ModuleDict()
        _of_its_own_class(module)
    module._forget(tensor_name)
    setattr(type(module), tensor_name, _property(tensor_name))
    module.parametrizations[tensor_name] = found
    return module


def _check(before, parametrization, name):
    with infinicore.no_grad():
        _same(before, parametrization(before), name)


def _same(before, after, name):
    if not isinstance(after, Tensor) or after.shape_ != before.shape_ or after.dtype is not before.dtype:
        got = f"{after.dtype} {after.shape_}" if isinstance(after, Tensor) else type(after).__name__
        raise ValueError(
            f"`parametrization` must keep dtype and shape of `{name}`, {before.dtype} {before.shape_}, got {got}: "
            "pass unsafe=True to allow it"
        )


def is_parametrized(module, tensor_name=None):
    """Whether a module, or one of its tensors, is parametrized."""
    found = module._modules.get("parametrizations")
    if not isinstance(found, ModuleDict):
        return False
    return len(found) > 0 if tensor_name is None else tensor_name in found


def remove_parametrizations(module, tensor_name, leave_parametrized=True):
    """Make `module.<tensor_name>` a plain parameter again: its present value, or the original; returns the module."""
    if not is_parametrized(module, tensor_name):
        raise ValueError(f"`tensor_name` {tensor_name!r} is not parametrized")
    found = module.parametrizations[tensor_name]
    if not leave_parametrized and not found.is_tensor:
        raise ValueError(f"`leave_parametrized` must be True: `{tensor_name}` has {found.ntensors} originals")
    original = found.originals()[0]
    with infinicore.no_grad():
        value = getattr(module, tensor_name).detach().clone() if leave_parametrized else original.detach()
    delattr(type(module), tensor_name)
    del module.parametrizations[tensor_name]
    if not len(module.parametrizations):
        module._forget("parametrizations")
        module.__class__ = type(module)._parametrized
    if isinstance(original, Parameter):
        same = found.is_tensor and original.shape_ == value.shape_
        if same:
            original.detach().copy_(value)
        module.register_parameter(tensor_name, original if same else Parameter(value, original.requires_grad))
    else:
        module.register_buffer(tensor_name, value)
    return module


def type_before_parametrizations(module):
    """The class that a module had before."""
    return getattr(type(module), "_parametrized", type(module))
