"""The state of a module tree by dotted names: what `state_dict` gives and `load_state_dict` takes."""

import warnings
from collections import OrderedDict, namedtuple

from ..tensor.tensor import Tensor
from .parameter import Parameter

_EXTRA = "_extra_state"
_LOSSY = {("f", "b"), ("f", "i"), ("f", "u"), ("c", "b"), ("c", "i"), ("c", "u"), ("c", "f")}  # (of the value, here)
_ASSIGN = "assign_to_params_buffers"  # PyTorch's name in the metadata that a module's own loading gets


class IncompatibleKeys(namedtuple("IncompatibleKeys", ["missing_keys", "unexpected_keys"])):
    """What `load_state_dict` found: names that it lacked, and names that are none of the module's."""

    __slots__ = ()

    def __repr__(self):
        return super().__repr__() if self.missing_keys or self.unexpected_keys else "<All keys matched successfully>"


class State:
    """The part of `Module` that saves and loads."""

    _version = 1  # of what a class keeps: in the metadata of its state dict

    def get_extra_state(self):
        """What `state_dict` keeps under `_extra_state` besides tensors; override it, with `set_extra_state`."""
        raise NotImplementedError(f"{type(self).__name__} has no extra state: define `get_extra_state`")

    def set_extra_state(self, state):
        """Take what `get_extra_state` gave; override it."""
        raise NotImplementedError(f"{type(self).__name__} takes no extra state: define `set_extra_state`")

    def _save_to_state_dict(self, destination, prefix, keep_vars):
        """Put the tensors of this module, without those below, into `destination`."""
        for name, parameter in self._parameters.items():
            if parameter is not None:
                destination[prefix + name] = parameter if keep_vars else parameter.detach()
        for name, buffer in self._buffers.items():
            if buffer is not None and name not in self._transient_buffers:
                destination[prefix + name] = buffer if keep_vars else buffer.detach()
        if type(self).get_extra_state is not State.get_extra_state:
            destination[prefix + _EXTRA] = self.get_extra_state()

    def state_dict(self, *args, destination=None, prefix="", keep_vars=False):
        """An ordered dict of dotted names to the parameters and persistent buffers.

        The tensors share memory with the module's and carry no gradients; with `keep_vars` they are the module's own.
        Its attribute `_metadata` has the version of each module's class.
        """
        if args:
            warnings.warn("`state_dict` takes its arguments by name", FutureWarning, stacklevel=2)
            given = (*args, *(destination, prefix, keep_vars)[len(args) :])
            destination, prefix, keep_vars = given
        if destination is None:
            destination = OrderedDict()
            destination._metadata = OrderedDict()
        metadata = {"version": self._version}
        if hasattr(destination, "_metadata"):
            destination._metadata[prefix[:-1]] = metadata
        hooks = self._hooks
        if hooks is not None:
            for hook in list(hooks.state_dict_pre.values()):
                hook(self, prefix, keep_vars)
        self._save_to_state_dict(destination, prefix, keep_vars)
        for name, child in self._modules.items():
            if child is not None:
                child.state_dict(destination=destination, prefix=f"{prefix}{name}.", keep_vars=keep_vars)
        if hooks is not None:
            for hook in list(hooks.state_dict.values()):
                result = hook(self, destination, prefix, metadata)
                if result is not None:
                    destination = result
        return destination

    def load_state_dict(self, state_dict, strict=True, assign=False):
        """Copy tensors into this module's by name; returns (missing_keys, unexpected_keys).

        Values become floats of the module's dtype. With `assign` the given tensors take the place of the module's own
        (shape alone must agree). Nothing is changed unless everything fits, but where a class has its own
        `_load_from_state_dict`, or a hook looks at what was loaded. Raises TypeError for a value that is no Tensor,
        ValueError for a shape that differs, floats for integers and, if `strict`, for missing or unexpected names.
        """
        if not hasattr(state_dict, "keys"):
            raise TypeError(f"`state_dict` must be a dict of names to tensors, got {type(state_dict).__name__}")
        loading = _Loading(getattr(state_dict, "_metadata", None), assign)
        loading.visit(self, OrderedDict(state_dict), "")
        keys = loading.keys
        if loading.errors:
            raise ValueError("`state_dict` does not fit: " + "; ".join(loading.errors))
        if strict and (keys.missing_keys or keys.unexpected_keys):
            _refuse(keys.missing_keys, keys.unexpected_keys)
        loading.place()
        return keys

    def _load_from_state_dict(
        self, state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
    ):
        """Take this module's tensors, without those below, from `state_dict`, which it may change.

        What a class overrides to read what it has written in another form; it may call this one. What is wrong goes
        into the three lists.
        """
        lists = strict, missing_keys, unexpected_keys, error_msgs
        for entry in _entries(self, state_dict, prefix, local_metadata, *lists):
            _place(*entry)

    def _upgrade(self, state_dict, prefix, version):
        """Bring what an older version of the class has written (None: nobody knows) to this one's names."""


class _Loading:
    """One call of `load_state_dict`: what is to be placed, and what does not fit."""

    def __init__(self, metadata, assign):
        self.metadata, self.assign = metadata or {}, assign
        self.keys, self.errors, self.waiting = IncompatibleKeys([], []), [], []

    def visit(self, module, state, prefix):
        """Plan for a module and those below; each sees a dict of the names from its own on, as in PyTorch."""
        metadata = dict(self.metadata.get(prefix[:-1], {})) | ({_ASSIGN: True} if self.assign else {})
        arguments = state, prefix, metadata, True, *self.keys, self.errors
        if type(module)._load_from_state_dict is State._load_from_state_dict:
            self.waiting += _entries(module, *arguments)
        else:  # which may do anything with the module's tensors: those of before are to be there
            self.place()
            module._load_from_state_dict(*arguments)
        parts = {}
        for name, value in state.items():
            if name.startswith(prefix):
                parts.setdefault(name[len(prefix) :].partition(".")[0], OrderedDict())[name] = value
        for name, child in list(module._modules.items()):
            if child is not None:
                below = f"{prefix}{name}."
                part = parts.get(name, {}).items()
                self.visit(child, OrderedDict((key, value) for key, value in part if key.startswith(below)), below)
        if module._hooks is not None and module._hooks.load_post:
            self.place()
            for hook in list(module._hooks.load_post.values()):
                if hook(module, self.keys) is not None:
                    raise ValueError("a hook after `load_state_dict` must return None: change its lists in place")

    def place(self):
        """Put into the modules what waits for it."""
        waiting, self.waiting = self.waiting, []
        for entry in waiting:
            _place(*entry)


def _entries(module, given, prefix, metadata, strict, missing, unexpected, errors):
    """What goes where in one module: (module, table, key, own tensor, value, assign); fills the three lists."""
    if module._hooks is not None:
        for hook in list(module._hooks.load_pre.values()):
            hook(module, given, prefix, metadata, strict, missing, unexpected, errors)
    module._upgrade(given, prefix, metadata.get("version"))
    assign, found, known = metadata.get(_ASSIGN, False), [], set()
    for table in ("_parameters", "_buffers"):
        for key, own in getattr(module, table).items():
            name = prefix + key
            if own is None or (table == "_buffers" and key in module._transient_buffers):
                continue
            known.add(key)
            if name in given:
                value, wrong = _fitting(name, given[name], own, assign)
                errors.extend([wrong] if wrong else [])
                found.append((module, table, key, own, value, assign))
            elif strict:
                missing.append(name)
    if type(module).set_extra_state is not State.set_extra_state:
        known.add(_EXTRA)
        if prefix + _EXTRA in given:
            found.append((module, None, None, None, given[prefix + _EXTRA], assign))
        elif strict:
            missing.append(prefix + _EXTRA)
    for name in given if strict else ():
        if name.startswith(prefix):
            first, dot, _ = name[len(prefix) :].partition(".")
            if first not in (module._modules if dot else known):
                unexpected.append(name)
    return [] if errors else found


def _place(module, table, key, own, value, assign):
    if table is None:
        module.set_extra_state(value)
    elif not assign:
        own.detach().copy_(value)
    elif table == "_parameters":
        same = isinstance(value, Parameter) and value.requires_grad == own.requires_grad
        module._parameters[key] = value if same else Parameter(value.detach(), own.requires_grad)
    else:
        module._buffers[key] = value


def _refuse(missing, unexpected):
    parts = [f"lacks {_some(missing)}"] * bool(missing) + [f"has unexpected {_some(unexpected)}"] * bool(unexpected)
    raise ValueError(f"`state_dict` {' and '.join(parts)}; pass strict=False to load what matches")


def _some(names):
    return ", ".join(repr(name) for name in names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _fitting(name, value, own, assign):
    """(the value as it fits the module's own tensor, what is wrong or None)."""
    if not isinstance(value, Tensor):
        raise TypeError(f"`state_dict[{name!r}]` must be a Tensor, got {type(value).__name__}")
    if not own.ndim and value.ndim == 1 and value.numel() == 1:  # as PyTorch once wrote tensors of 0 dims
        value = value[0]
    if tuple(value.shape) != tuple(own.shape):
        return value, f"`state_dict[{name!r}]` has shape {tuple(value.shape)}, but the module's has {tuple(own.shape)}"
    kinds = value.dtype.kind, own.dtype.kind
    if kinds in _LOSSY and not assign:
        return value, (
            f"`state_dict[{name!r}]` has dtype {value.dtype}, but the module's has {own.dtype}; "
            "convert one of them with `.to(dtype)`"
        )
    return value, None
