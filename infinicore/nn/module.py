"""Modules: trees of parameters, with PyTorch's names and behaviour."""

from collections import OrderedDict, namedtuple

from ..tensor import Tensor
from .parameter import Parameter

IncompatibleKeys = namedtuple("IncompatibleKeys", ["missing_keys", "unexpected_keys"])

_TABLES = ("_parameters", "_buffers", "_modules")


class Module:
    """Base of all modules: assign `Parameter`s and modules to attributes, and write `forward`."""

    def __init__(self):
        # Plain attributes, set without __setattr__, which needs them.
        self.__dict__.update(
            _parameters=OrderedDict(),
            _buffers=OrderedDict(),
            _modules=OrderedDict(),
            _transient_buffers=set(),
            training=True,
        )

    def forward(self, *args, **kwargs):
        raise NotImplementedError(f"{type(self).__name__} has no `forward`: define it in the subclass")

    def __call__(self, *args, **kwargs):
        return self.forward(*args, **kwargs)

    # ---- attributes ----

    def __setattr__(self, name, value):
        tables = self.__dict__.get("_parameters")
        if isinstance(value, (Parameter, Module)) and tables is None:
            raise AttributeError(f"call super().__init__() in {type(self).__name__} before assigning `{name}`")
        if isinstance(value, Parameter):
            self._forget(name)
            self.register_parameter(name, value)
        elif isinstance(value, Module):
            self._forget(name)
            self.add_module(name, value)
        elif tables is not None and name in self._parameters:
            if value is not None:
                kind = type(value).__name__
                raise TypeError(f"`{name}` is a parameter: assign an infinicore.nn.Parameter or None, not a {kind}")
            self._parameters[name] = None
        elif tables is not None and name in self._modules and value is None:
            self._modules[name] = None
        elif tables is not None and name in self._buffers and (value is None or isinstance(value, Tensor)):
            self._buffers[name] = value
        else:
            object.__setattr__(self, name, value)

    def __getattr__(self, name):
        for table in _TABLES:
            found = self.__dict__.get(table)
            if found is not None and name in found:
                return found[name]
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __delattr__(self, name):
        if any(name in self.__dict__[table] for table in _TABLES):
            self._forget(name)
        else:
            object.__delattr__(self, name)

    def __dir__(self):
        return [*super().__dir__(), *self._parameters, *self._buffers, *self._modules]

    def _forget(self, name):
        self.__dict__.pop(name, None)
        for table in _TABLES:
            self.__dict__[table].pop(name, None)
        self._transient_buffers.discard(name)

    def _check_name(self, name):
        if not isinstance(name, str):
            raise TypeError(f"`name` must be a string, got {name!r}")
        if not name or "." in name:
            raise KeyError(f"`name` must not be empty or contain a dot, got {name!r}")

    def register_parameter(self, name, param):
        """Add a parameter; `None` reserves the name."""
        self._check_name(name)
        if param is not None and not isinstance(param, Parameter):
            raise TypeError(f"`param` must be an infinicore.nn.Parameter or None, got {type(param).__name__}")
        self._parameters[name] = param

    def register_buffer(self, name, tensor, persistent=True):
        """Add a tensor that is no parameter; it is in `state_dict()` unless `persistent` is False."""
        self._check_name(name)
        if tensor is not None and not isinstance(tensor, Tensor):
            raise TypeError(f"`tensor` must be a Tensor or None, got {type(tensor).__name__}")
        self._forget(name)
        self._buffers[name] = tensor
        if not persistent:
            self._transient_buffers.add(name)

    def add_module(self, name, module):
        """Add a child module; `None` reserves the name."""
        self._check_name(name)
        if module is not None and not isinstance(module, Module):
            raise TypeError(f"`module` must be an infinicore.nn.Module or None, got {type(module).__name__}")
        self._modules[name] = module

    register_module = add_module

    # ---- walking the tree ----

    def named_children(self):
        for name, module in self._modules.items():
            if module is not None:
                yield name, module

    def children(self):
        for _, module in self.named_children():
            yield module

    def named_modules(self, memo=None, prefix="", remove_duplicate=True):
        """This module and all below it, each once, with dotted names."""
        memo = set() if memo is None else memo
        if self in memo:
            return
        if remove_duplicate:
            memo.add(self)
        yield prefix, self
        for name, module in self.named_children():
            yield from module.named_modules(memo, f"{prefix}.{name}" if prefix else name, remove_duplicate)

    def modules(self):
        for _, module in self.named_modules():
            yield module

    def _named_members(self, table, prefix, recurse, remove_duplicate):
        seen = set()
        modules = self.named_modules(prefix=prefix, remove_duplicate=remove_duplicate) if recurse else [(prefix, self)]
        for path, module in modules:
            for name, member in getattr(module, table).items():
                if member is None or id(member) in seen:
                    continue
                if remove_duplicate:
                    seen.add(id(member))
                yield f"{path}.{name}" if path else name, member

    def named_parameters(self, prefix="", recurse=True, remove_duplicate=True):
        yield from self._named_members("_parameters", prefix, recurse, remove_duplicate)

    def parameters(self, recurse=True):
        for _, parameter in self.named_parameters(recurse=recurse):
            yield parameter

    def named_buffers(self, prefix="", recurse=True, remove_duplicate=True):
        yield from self._named_members("_buffers", prefix, recurse, remove_duplicate)

    def buffers(self, recurse=True):
        for _, buffer in self.named_buffers(recurse=recurse):
            yield buffer

    def get_submodule(self, target):
        """The module at a dotted path ("" is this one)."""
        module = self
        for name in target.split(".") if target else ():
            module = module._modules.get(name)
            if module is None:
                raise AttributeError(f"`target` {target!r}: there is no module {name!r} on the way")
        return module

    def get_parameter(self, target):
        """The parameter at a dotted path."""
        path, _, name = target.rpartition(".")
        found = self.get_submodule(path)._parameters.get(name)
        if found is None:
            raise AttributeError(f"`target` {target!r} is no parameter")
        return found

    # ---- modes ----

    def train(self, mode=True):
        """Set training mode here and below; returns self."""
        if not isinstance(mode, bool):
            raise ValueError(f"`mode` must be True or False, got {mode!r}")
        for module in self.modules():
            module.training = mode
        return self

    def eval(self):
        """Set evaluation mode here and below; returns self."""
        return self.train(False)

    def apply(self, fn):
        """Call `fn` on every module below, then on this one; returns self."""
        for child in self.children():
            child.apply(fn)
        fn(self)
        return self

    def _apply(self, fn):
        """Replace every parameter and buffer by `fn` of it; a tensor that is shared stays shared."""
        self._replace_tensors(fn, {})
        return self

    def _replace_tensors(self, fn, done):
        for child in self.children():
            child._replace_tensors(fn, done)
        for name, parameter in self._parameters.items():
            if parameter is not None:
                if id(parameter) not in done:  # keeps the old one alive: ids of dead objects come again
                    done[id(parameter)] = (parameter, Parameter(fn(parameter)))
                self._parameters[name] = done[id(parameter)][1]
        for name, buffer in self._buffers.items():
            if buffer is not None:
                self._buffers[name] = fn(buffer)

    def to(self, *args, device=None, dtype=None):
        """Convert floating-point parameters and buffers to a dtype (in place); returns self.

        Takes what PyTorch takes: `to(dtype)`, `to(device)`, `to(device, dtype)`, `to(tensor)`. The only device of
        this version is the CPU.
        """
        device, dtype = _target(args, device, dtype)
        from ..device import usable

        usable(device)
        if dtype is None:
            return self
        if not dtype.is_floating_point:
            raise TypeError(f"`dtype` must be a floating-point dtype, got {dtype}")
        return self._apply(lambda t: t.to(dtype) if t.dtype.is_floating_point and t.dtype is not dtype else t)

    def cpu(self):
        return self

    def float(self):
        return self.to("float32")

    def double(self):
        return self.to("float64")

    def half(self):
        return self.to("float16")

    def bfloat16(self):
        return self.to("bfloat16")

    def requires_grad_(self, requires_grad=True):
        """Accepted for compatibility when switching gradients off; this version computes none."""
        if requires_grad:
            raise NotImplementedError("`requires_grad_` needs derivatives, which this version does not compute")
        return self

    # ---- state ----

    def state_dict(self, *, destination=None, prefix="", keep_vars=False):
        """An ordered dict of dotted names to the parameters and persistent buffers themselves (no copies)."""
        destination = OrderedDict() if destination is None else destination
        for name, parameter in self._parameters.items():
            if parameter is not None:
                destination[prefix + name] = parameter
        for name, buffer in self._buffers.items():
            if buffer is not None and name not in self._transient_buffers:
                destination[prefix + name] = buffer
        for name, child in self.named_children():
            child.state_dict(destination=destination, prefix=f"{prefix}{name}.", keep_vars=keep_vars)
        return destination

    def load_state_dict(self, state_dict, strict=True):
        """Copy tensors into this module's by name; returns (missing_keys, unexpected_keys).

        Nothing is changed unless everything fits. Raises TypeError for a value that is no Tensor, ValueError for a
        shape or dtype that differs and, if `strict`, for missing or unexpected names.
        """
        own = self.state_dict()
        missing = [name for name in own if name not in state_dict]
        unexpected = [name for name in state_dict if name not in own]
        if strict and (missing or unexpected):
            parts = [f"lacks {_some(missing)}"] * bool(missing) + [f"has unexpected {_some(unexpected)}"] * bool(
                unexpected
            )
            raise ValueError(f"`state_dict` {' and '.join(parts)}; pass strict=False to load what matches")
        for name, value in state_dict.items():
            if name in own:
                _check_fits(name, value, own[name])
        for name, value in state_dict.items():
            if name in own:
                own[name].copy_(value)
        return IncompatibleKeys(missing, unexpected)

    def extra_repr(self):
        """What the module's line in `repr` says; override it."""
        return ""

    def __repr__(self):
        children = [f"({name}): " + repr(child).replace("\n", "\n  ") for name, child in self.named_children()]
        if not children:
            return f"{type(self).__name__}({self.extra_repr()})"
        return f"{type(self).__name__}(\n  " + "\n  ".join(children) + "\n)"


def _some(names):
    return ", ".join(repr(name) for name in names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _check_fits(name, value, own):
    if not isinstance(value, Tensor):
        raise TypeError(f"`state_dict[{name!r}]` must be a Tensor, got {type(value).__name__}")
    if tuple(value.shape) != tuple(own.shape):
        raise ValueError(
            f"`state_dict[{name!r}]` has shape {tuple(value.shape)}, but the module's has {tuple(own.shape)}"
        )
    if value.dtype != own.dtype:
        raise ValueError(
            f"`state_dict[{name!r}]` has dtype {value.dtype}, but the module's has {own.dtype}; "
            "convert one of them with `.to(dtype)`"
        )


def _target(args, device, dtype):
    """(device, dtype) from the arguments of `to`."""
    from ..device import TYPES, Device
    from ..dtype import DType
    from ..dtype import dtype as as_dtype

    for value in args:
        if isinstance(value, Tensor):
            device, dtype = value.device, value.dtype
        elif isinstance(value, Device) or (isinstance(value, str) and value.partition(":")[0] in TYPES):
            device = value
        elif value is not None:
            dtype = value
    return device, dtype if dtype is None or isinstance(dtype, DType) else as_dtype(dtype)
