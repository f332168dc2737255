"""Modules: trees of parameters, with PyTorch's names and behaviour."""

from collections import OrderedDict

from ..device import TYPES, Device, gpu, usable
from ..dtype import DType
from ..dtype import dtype as as_dtype
from ..tensor.formats import rank_of
from ..tensor.tensor import Tensor
from . import hooks
from .parameter import Buffer, Parameter
from .state import State

_TABLES = ("_parameters", "_buffers", "_modules")
_KINDS = (
    ("_parameters", "parameter", "an infinicore.nn.Parameter"),
    ("_modules", "module", "an infinicore.nn.Module"),
    ("_buffers", "buffer", "a Tensor"),
)
_NAMED_ERRORS = (ValueError, TypeError, IndexError, NotImplementedError)  # to these the module's path is added


class Module(State, hooks.Hooked):
    """Base of all modules: assign `Parameter`s and modules to attributes, and write `forward`."""

    call_super_init = False  # PyTorch's: whether the classes behind this one in the MRO get `__init__`'s arguments

    def __init__(self, *args, **kwargs):
        if not self.call_super_init and (args or kwargs):
            raise TypeError(f"`Module.__init__` takes no arguments, got {[*args, *kwargs]}: leave them out")
        # Plain attributes, set without __setattr__, which needs them.
        self.__dict__.update(
            _parameters=OrderedDict(),
            _buffers=OrderedDict(),
            _modules=OrderedDict(),
            _transient_buffers=set(),
            training=True,
        )
        if self.call_super_init:
            super().__init__(*args, **kwargs)

    def forward(self, *args, **kwargs):
        raise NotImplementedError(f"{type(self).__name__} has no `forward`: define it in the subclass")

    def __call__(self, *args, **kwargs):
        try:
            if not hooks.hooked(self):
                return self.forward(*args, **kwargs)
            return hooks.call(self, args, kwargs)
        except _NAMED_ERRORS as error:
            _name_module(error, self)
            raise

    # ---- attributes ----

    def __setattr__(self, name, value):
        tables = self.__dict__.get("_parameters")
        if isinstance(value, (Parameter, Module, Buffer)) and tables is None:
            raise AttributeError(f"call super().__init__() in {type(self).__name__} before assigning `{name}`")
        if isinstance(value, Parameter):
            self._forget(name, but="_parameters")
            self.register_parameter(name, value)
        elif tables is not None and self._replaces(name, value):
            return
        elif isinstance(value, Module):
            self._forget(name, but="_modules")
            self.add_module(name, value)
        elif isinstance(value, Buffer):
            self._forget(name, but="_buffers")
            self.register_buffer(name, value, value.persistent)
        else:
            object.__setattr__(self, name, value)

    def _replaces(self, name, value):
        """Put None in the place of a registered name, a module for a module, a tensor for a buffer; whether it was one.

        A `Buffer` says itself whether it is persistent.
        """
        for table, what, kind in _KINDS:
            if name in self.__dict__[table]:
                fits = {"_modules": Module, "_buffers": Tensor}.get(table, ())
                if value is not None and not isinstance(value, fits):
                    raise TypeError(f"`{name}` is a {what}: assign {kind} or None, not a {type(value).__name__}")
                if isinstance(value, Buffer):
                    self.register_buffer(name, value, value.persistent)
                else:
                    self.__dict__[table][name] = value
                return True
        return False

    def __getattr__(self, name):
        tables = self.__dict__
        if "_modules" in tables:
            if name in tables["_modules"]:
                return tables["_modules"][name]
            if name in tables["_parameters"]:
                return tables["_parameters"][name]
            if name in tables["_buffers"]:
                return tables["_buffers"][name]
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def _own(self, name):
        """A parameter: 0.1 us from the table, where the attribute takes 0.6. Also what was assigned in its place."""
        try:
            return self._parameters[name]
        except KeyError:
            return getattr(self, name)

    def __delattr__(self, name):
        if any(name in self.__dict__[table] for table in _TABLES):
            self._forget(name)
        else:
            object.__delattr__(self, name)

    def __dir__(self):
        names = [*super().__dir__(), *self._parameters, *self._buffers, *self._modules]
        return [name for name in names if not name[:1].isdigit()]  # "0" of a list is no attribute to write

    def _forget(self, name, but=None):
        """Drop what `name` is; its place in the table `but` is kept for what comes next."""
        self.__dict__.pop(name, None)
        for table in _TABLES:
            if table != but:
                self.__dict__[table].pop(name, None)
        self._transient_buffers.discard(name)

    def _check_name(self, name, table):
        if not isinstance(name, str):
            raise TypeError(f"`name` must be a string, got {name!r}")
        if not name or "." in name:
            raise KeyError(f"`name` must not be empty or contain a dot, got {name!r}")
        if name not in self.__dict__[table] and hasattr(self, name):
            raise KeyError(f"`name` {name!r} is an attribute of {type(self).__name__} already, choose another")

    def register_parameter(self, name, param):
        """Add a parameter; `None` reserves the name."""
        self._check_name(name, "_parameters")
        if param is not None and not isinstance(param, Parameter):
            raise TypeError(f"`param` must be an infinicore.nn.Parameter or None, got {type(param).__name__}")
        self._parameters[name] = param

    def register_buffer(self, name, tensor, persistent=True):
        """Add a tensor that is no parameter; it is in `state_dict()` unless `persistent` is False."""
        if tensor is not None and not isinstance(tensor, Tensor):
            raise TypeError(f"`tensor` must be a Tensor or None, got {type(tensor).__name__}")
        self._check_name(name, "_buffers")
        self._forget(name, but="_buffers")
        self._buffers[name] = tensor
        if not persistent:
            self._transient_buffers.add(name)

    def add_module(self, name, module):
        """Add a child module; `None` reserves the name."""
        self._check_name(name, "_modules")
        if module is not None and not isinstance(module, Module):
            raise TypeError(f"`module` must be an infinicore.nn.Module or None, got {type(module).__name__}")
        self._modules[name] = module

    register_module = add_module

    # ---- walking the tree ----

    def named_children(self):
        """(name, module) of the modules right below, each once."""
        seen = set()
        for name, module in self._modules.items():
            if module is not None and module not in seen:
                seen.add(module)
                yield name, module

    def children(self):
        """The modules right below, each once."""
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
        for name, module in self._modules.items():
            if module is not None:
                yield from module.named_modules(memo, f"{prefix}.{name}" if prefix else name, remove_duplicate)

    def modules(self, remove_duplicate=True):
        """This module and all below it, each once unless `remove_duplicate` is False."""
        for _, module in self.named_modules(remove_duplicate=remove_duplicate):
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
        """(dotted name, parameter) here and below; a shared one comes once, under its first name."""
        yield from self._named_members("_parameters", prefix, recurse, remove_duplicate)

    def parameters(self, recurse=True):
        """The parameters here and below, each once."""
        for _, parameter in self.named_parameters(recurse=recurse):
            yield parameter

    def named_buffers(self, prefix="", recurse=True, remove_duplicate=True):
        """(dotted name, buffer) here and below."""
        yield from self._named_members("_buffers", prefix, recurse, remove_duplicate)

    def buffers(self, recurse=True):
        """The buffers here and below, each once."""
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

    def set_submodule(self, target, module, strict=False):
        """Put a module at a dotted path, with `strict` in the place of one that is there."""
        if not isinstance(module, Module):
            raise ValueError(f"`module` must be an infinicore.nn.Module, got {type(module).__name__}")
        path, _, name = target.rpartition(".")
        if not name:
            raise ValueError("`target` must be the dotted path of a module, got ''")
        parent = self.get_submodule(path)
        if not isinstance(getattr(parent, name, None if strict else module), Module):
            raise AttributeError(f"`target` {target!r}: there is no module {name!r} to replace")
        parent.__setattr__(name, module)

    def get_parameter(self, target):
        """The parameter at a dotted path."""
        path, _, name = target.rpartition(".")
        found = self.get_submodule(path)._parameters.get(name)
        if found is None:
            raise AttributeError(f"`target` {target!r} is no parameter")
        return found

    def get_buffer(self, target):
        """The buffer at a dotted path."""
        path, _, name = target.rpartition(".")
        found = self.get_submodule(path)._buffers.get(name)
        if found is None:
            raise AttributeError(f"`target` {target!r} is no buffer")
        return found

    # ---- modes ----

    def train(self, mode=True):
        """Set training mode here and below; returns self."""
        if not isinstance(mode, bool):
            raise ValueError(f"`mode` must be True or False, got {mode!r}")
        self.training = mode
        for child in self.children():
            child.train(mode)
        return self

    def eval(self):
        """Set evaluation mode here and below; returns self."""
        return self.train(False)

    def requires_grad_(self, requires_grad=True):
        """Say of every parameter here and below whether it wants a gradient; returns self."""
        for parameter in self.parameters():
            parameter.requires_grad_(requires_grad)
        return self

    def zero_grad(self, set_to_none=True):
        """Drop the gradients of all parameters here and below (or fill them with zeros)."""
        for parameter in self.parameters():
            if parameter.grad is not None:
                if set_to_none:
                    parameter.grad = None
                else:
                    parameter.grad.detach().zero_()

    def apply(self, fn):
        """Call `fn` on every module below, then on this one; returns self."""
        for child in self.children():
            child.apply(fn)
        fn(self)
        return self

    def _apply(self, fn):
        """Replace the values of every parameter and buffer by `fn` of them; the parameters stay the same objects."""
        self._replace_tensors(fn, {})
        return self

    def _replace_tensors(self, fn, done):
        for child in self.children():
            child._replace_tensors(fn, done)
        for parameter in self._parameters.values():
            if parameter is not None and id(parameter) not in done:
                done[id(parameter)] = (parameter, parameter)
                parameter.become(fn(parameter.detach()))
                if parameter.grad is not None:
                    parameter.grad = fn(parameter.grad.detach())
        for name, buffer in self._buffers.items():
            if buffer is not None:
                if id(buffer) not in done:  # keeps the old one alive: ids of dead objects come again
                    done[id(buffer)] = (buffer, fn(buffer))
                self._buffers[name] = done[id(buffer)][1]

    def to(self, *args, device=None, dtype=None, non_blocking=False, memory_format=None):
        """Bring parameters and buffers to a device, and those of floats to a dtype (in place); returns self.

        Takes what PyTorch takes: `to(dtype)`, `to(device)`, `to(device, dtype)`, `to(tensor)`; a `memory_format` is for
        tensors of as many dims as it has.
        """
        if len(args) > 1 and isinstance(args[-1], bool):
            args = args[:-1]  # `non_blocking`
        device, dtype = _target(args, device, dtype)
        if dtype is not None and dtype.kind not in "fc":
            raise TypeError(f"`dtype` must be a floating-point or complex dtype, got {dtype}")
        target = None if device is None else usable(device)

        def placed(t):
            own = dtype if dtype is not None and t.dtype.kind in "fc" else t.dtype
            if memory_format is not None and t.ndim == rank_of(memory_format):
                t = t.contiguous(memory_format)
            return t if (target is None or t.device is target) and own is t.dtype else t.to(target or t.device, own)

        return self._apply(placed)

    def type(self, dst_type):
        """Convert all parameters and buffers to a dtype, integers too; returns self."""
        _, dtype = _target((dst_type,), None, None)
        return self._apply(lambda t: t.to(dtype))

    def cpu(self):
        """Bring parameters and buffers to the CPU (in place); returns self."""
        return self.to("cpu")

    def cuda(self, device=None):
        """Bring parameters and buffers to a GPU (None: the current one, or the first)."""
        return self.to(gpu() if device is None else device if not isinstance(device, int) else f"cuda:{device}")

    def to_empty(self, *, device, recurse=True):
        """Bring parameters and buffers to a device without their values; returns self."""
        return self._apply(lambda t: t.new_empty(t.shape, device=device))

    def share_memory(self):
        """Itself: processes of `DataLoader` send copies."""
        return self

    def compile(self, *args, **options):
        """Nothing: kernels are compiled already (`infinicore.compile`)."""

    def float(self):
        """Floating-point parameters and buffers as float32; returns self."""
        return self.to("float32")

    def double(self):
        """Floating-point parameters and buffers as float64; returns self."""
        return self.to("float64")

    def half(self):
        """Floating-point parameters and buffers as float16; returns self."""
        return self.to("float16")

    def bfloat16(self):
        """Floating-point parameters and buffers as bfloat16; returns self."""
        return self.to("bfloat16")

    # ---- text ----

    def extra_repr(self):
        """What the module's line in `repr` says; override it."""
        return ""

    def _name(self):
        return type(self).__name__

    def __repr__(self):
        extra = self.extra_repr()
        children = [f"({name}): " + repr(child).replace("\n", "\n  ") for name, child in self._modules.items()]
        return tree(self._name(), extra.split("\n") if extra else [], children)


def tree(name, extra, children):
    """The text of a module: its name, its own lines, and those of its children."""
    if len(extra) == 1 and not children:
        return f"{name}({extra[0]})"
    lines = "".join(f"\n  {line}" for line in [*extra, *children])
    return f"{name}({lines}\n)" if lines else f"{name}()"


def _name_module(error, caller):
    """Say in the error's sentence which module below `caller` it comes from."""
    known = getattr(error, "_module", None)
    if known is None:
        sentence = error.args[0] if len(error.args) == 1 and isinstance(error.args[0], str) else None
        error._module = (caller, sentence)
        return
    inner, sentence = known
    path = next((path for path, module in caller.named_modules() if module is inner), None)
    if path and sentence is not None:
        error.args = (f"{sentence}, in module `{path}` ({type(inner).__name__})",)


def _target(args, device, dtype):
    """(device, dtype) from the arguments of `to`."""
    for value in args:
        if isinstance(value, Tensor):
            device, dtype = value.device, value.dtype
        elif isinstance(value, Device) or (isinstance(value, str) and value.partition(":")[0] in TYPES):
            device = value
        elif value is not None:
            if dtype is not None:
                raise TypeError(f"`to` takes a device, a dtype or both, got {args}")
            dtype = value
    return device, dtype if dtype is None or isinstance(dtype, DType) else as_dtype(dtype)
