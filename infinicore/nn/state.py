"""The state of a module tree by dotted names: what `state_dict` gives and `load_state_dict` takes."""

from collections import OrderedDict, namedtuple

from ..tensor.tensor import Tensor
from .parameter import Parameter

_EXTRA = "_extra_state"


class IncompatibleKeys(namedtuple("IncompatibleKeys", ["missing_keys", "unexpected_keys"])):
    """What `load_state_dict` found: names that it lacked, and names that are none of the module's."""

    __slots__ = ()

    def __repr__(self):
        return super().__repr__() if self.missing_keys or self.unexpected_keys else "<All keys matched successfully>"


class State:
    """The part of `Module` that saves and loads."""

    def get_extra_state(self):
        """What `state_dict` keeps under `_extra_state` besides tensors; override it, with `set_extra_state`."""
        raise NotImplementedError(f"{type(self).__name__} has no extra state: define `get_extra_state`")

    def set_extra_state(self, state):
        """Take what `get_extra_state` gave; override it."""
        raise NotImplementedError(f"{type(self).__name__} takes no extra state: define `set_extra_state`")

    def _has_extra_state(self):
        return type(self).get_extra_state is not State.get_extra_state

    def _save_to_state_dict(self, destination, prefix, keep_vars):
        """Put the tensors of this module, without those below, into `destination`."""
        for name, parameter in self._parameters.items():
            if parameter is not None:
                destination[prefix + name] = parameter if keep_vars else parameter.detach()
        for name, buffer in self._buffers.items():
            if buffer is not None and name not in self._transient_buffers:
                destination[prefix + name] = buffer if keep_vars else buffer.detach()
        if self._has_extra_state():
            destination[prefix + _EXTRA] = self.get_extra_state()

    def state_dict(self, *, destination=None, prefix="", keep_vars=False):
        """An ordered dict of dotted names to the parameters and persistent buffers.

        The tensors share memory with the module's and carry no gradients; with `keep_vars` they are the module's own.
        """
        destination = OrderedDict() if destination is None else destination
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
                result = hook(self, destination, prefix, {})
                if result is not None:
                    destination = result
        return destination

    def load_state_dict(self, state_dict, strict=True, assign=False):
        """Copy tensors into this module's by name; returns (missing_keys, unexpected_keys).

        With `assign` the given tensors take the place of the module's own (shape alone must agree). Nothing is changed
        unless everything fits. Raises TypeError for a value that is no Tensor, ValueError for a shape or dtype that
        differs and, if `strict`, for missing or unexpected names.
        """
        if not hasattr(state_dict, "keys"):
            raise TypeError(f"`state_dict` must be a dict of names to tensors, got {type(state_dict).__name__}")
        given = OrderedDict(state_dict)
        plan, missing, errors = [], [], []
        known = set()
        for path, module in list(self.named_modules(remove_duplicate=False)):
            prefix = path + "." if path else ""
            if module._hooks is not None:
                for hook in list(module._hooks.load_pre.values()):
                    hook(module, given, prefix, {}, strict, missing, [], errors)
            _collect(module, prefix, given, plan, missing, known)
        unexpected = [name for name in given if name not in known]
        if errors:
            raise ValueError("`state_dict` does not fit: " + "; ".join(errors))
        if strict and (missing or unexpected):
            _refuse(missing, unexpected)
        for name, _, _, _, own in plan:
            if own is not None:
                _check_fits(name, given[name], own, assign)
        for name, module, table, key, own in plan:
            _place(module, table, key, own, given[name], assign)
        result = IncompatibleKeys(missing, unexpected)
        for module in self.modules():
            if module._hooks is not None:
                for hook in list(module._hooks.load_post.values()):
                    hook(module, result)
        if strict and (result.missing_keys or result.unexpected_keys):  # a hook found more
            _refuse(result.missing_keys, result.unexpected_keys)
        return result


def _collect(module, prefix, given, plan, missing, known):
    """Note where the tensors of one module come from: (name, module, table, key, own tensor)."""
    for table in ("_parameters", "_buffers"):
        for key, own in getattr(module, table).items():
            name = prefix + key
            if own is None or (table == "_buffers" and key in module._transient_buffers):
                continue
            known.add(name)
            if name in given:
                plan.append((name, module, table, key, own))
            else:
                missing.append(name)
    if module._has_extra_state():
        known.add(prefix + _EXTRA)
        if prefix + _EXTRA in given:
            plan.append((prefix + _EXTRA, module, None, None, None))
        else:
            missing.append(prefix + _EXTRA)


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


def _check_fits(name, value, own, assign):
    if not isinstance(value, Tensor):
        raise TypeError(f"`state_dict[{name!r}]` must be a Tensor, got {type(value).__name__}")
    if tuple(value.shape) != tuple(own.shape):
        raise ValueError(
            f"`state_dict[{name!r}]` has shape {tuple(value.shape)}, but the module's has {tuple(own.shape)}"
        )
    if value.dtype != own.dtype and not assign:
        raise ValueError(
            f"`state_dict[{name!r}]` has dtype {value.dtype}, but the module's has {own.dtype}; "
            "convert one of them with `.to(dtype)`"
        )
