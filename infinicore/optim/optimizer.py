"""The base of optimizers: parameter groups, state, hooks, and state dicts in PyTorch's structure."""

import copy
import warnings
from collections import defaultdict

import numpy as np

from ..autograd import enable_grad
from ..core.node_cy import Handle
from ..device import CPU
from ..dispatch import empty
from ..dtype import float32
from ..interop.numpy import from_numpy
from ..tensor.tensor import FUNCTIONS as ops
from ..tensor.tensor import Tensor

_NO_OPTIONS = {"self", "params", "master_weights", "__class__"}


def check_not_negative(**values):
    """Refuse numbers that are negative, or NaN."""
    for name, value in values.items():
        if not value >= 0:
            raise ValueError(f"`{name}` must be at least 0, got {value}")


def options(arguments):
    """The options of groups from the arguments of an optimizer's constructor (its `locals()`), checked where they mean
    the same for all: `lr`, `betas`, `eps`, `weight_decay`, and the switches that would change what a step means."""
    found = {name: value for name, value in arguments.items() if name not in _NO_OPTIONS}
    lr = found["lr"]
    if isinstance(lr, Tensor) and lr.numel() != 1:
        raise ValueError(f"`lr` must be a number or a tensor of one element, got shape {lr.shape_}")
    check_not_negative(lr=float(lr))
    for name in ("eps", "weight_decay"):
        if name in found and not isinstance(found[name], (tuple, list)):
            check_not_negative(**{name: found[name]})
    if "betas" in found:
        found["betas"] = _betas(found["betas"])
    for name in ("capturable", "differentiable"):
        if found.get(name):
            raise NotImplementedError(
                f"`{name}` must be False, got {found[name]}: steps are fused and are not recorded"
            )
    return found


def _betas(betas):
    if len(betas) != 2:
        raise ValueError(f"`betas` must be a pair of numbers, got {betas}")
    if isinstance(betas[0], Tensor) != isinstance(betas[1], Tensor):
        raise ValueError(f"`betas` must be two numbers or two tensors, got {betas}")
    for i, beta in enumerate(betas):
        if not 0.0 <= beta < 1.0:
            raise ValueError(f"`betas[{i}]` must be at least 0 and below 1, got {beta}")
    return tuple(map(float, betas))


class Optimizer:
    """What every optimizer has. `params` are parameters, or dicts of a group's parameters and options.

    `defaults` are the options of groups that do not name them. A subclass implements `_step()`, which updates the
    parameters that have a gradient. Where the class says `takes_grad_scale`, a `GradScaler` sets `grad_scale` for a
    step, which then multiplies gradients by `_scale()`; otherwise it divides the gradients before the step.
    """

    takes_grad_scale = False
    takes_complex = True  # as pairs of real numbers, which is how PyTorch steps them
    elementwise = False  # whether a part of a parameter is updated as it would be within the whole

    def __init__(self, params, defaults):
        if isinstance(params, Tensor):
            raise TypeError("`params` must be a list of parameters or of dicts, got a tensor: put it in a list")
        self.defaults = defaults
        self.state = defaultdict(dict)
        self.param_groups = []
        self.grad_scale = None
        self._reset()
        groups = list(params)
        if not groups:
            raise ValueError("`params` must hold at least one parameter, got none: is the module empty?")
        if not isinstance(groups[0], dict):
            groups = [{"params": groups}]
        for group in groups:
            self.add_param_group(group)

    def _reset(self):
        """What is no part of the state: hooks, and what subclasses keep between steps."""
        self._pre_hooks, self._post_hooks = {}, {}
        self._load_pre_hooks, self._load_post_hooks = {}, {}
        self._state_pre_hooks, self._state_post_hooks = {}, {}

    def __getstate__(self):
        return {"defaults": self.defaults, "state": self.state, "param_groups": self.param_groups}

    def __setstate__(self, state):
        self.__dict__.update(state)
        self.grad_scale = None
        self._reset()

    def __repr__(self):
        lines = [type(self).__name__ + " ("]
        for i, group in enumerate(self.param_groups):
            lines.append(f"Parameter Group {i}")
            lines += [f"    {key}: {group[key]}" for key in sorted(group) if key != "params"]
        return "\n".join([*lines, ")"])

    # ---- groups ----

    def add_param_group(self, param_group):
        """Add a dict of `params` (a parameter, or a list of them or of (name, parameter)) and of its own options."""
        if not isinstance(param_group, dict):
            raise TypeError(f"`param_group` must be a dict, got {type(param_group).__name__}")
        params = param_group["params"]
        if isinstance(params, set):
            raise TypeError("`params` must be a list, got a set, whose order changes from run to run")
        params = [params] if isinstance(params, Tensor) else list(params)
        names = [p[0] for p in params if isinstance(p, tuple)]
        if names and len(names) != len(params):
            raise ValueError(f"`params` must have names for all {len(params)} parameters or for none, got {len(names)}")
        params = [p[1] if isinstance(p, tuple) else p for p in params]
        for p in params:
            if not isinstance(p, Tensor):
                raise TypeError(f"`params` must hold tensors, got {type(p).__name__}")
            if not p.dtype.differentiable:
                raise TypeError(f"`params` must hold tensors of floats, got {p.dtype}")
            if p.dtype.is_complex and not self.takes_complex:
                raise TypeError(f"`params` of {type(self).__name__} must hold tensors of real numbers, got {p.dtype}")
            if getattr(p, "sharded", False) and not self.elementwise:
                raise ValueError(
                    f"`params` holds shards of parameters, and {type(self).__name__} needs whole ones: use an "
                    "elementwise optimizer such as AdamW, or DistributedDataParallel"
                )
            if not p.is_leaf:
                raise ValueError("`params` must hold leaf tensors, got the result of a computation: detach it")
        own = {id(p) for p in params}
        if len(own) != len(params):
            warnings.warn("`params` names a parameter twice, which will be updated twice", stacklevel=3)
        for group in self.param_groups:
            if not own.isdisjoint(map(id, group["params"])):
                raise ValueError("`params` must be in one group, but a parameter is in another one already")
            if ("param_names" in group) != bool(names):
                raise ValueError("`params` must have names in all groups or in none")
        group = {**param_group, "params": params}
        if names:
            group["param_names"] = names
        for name, value in self.defaults.items():
            group.setdefault(name, value)
        self.param_groups.append(group)
        self._changed()

    def _changed(self):
        """Groups or states were replaced: forget what was derived from them."""

    def zero_grad(self, set_to_none=True):
        """Drop the gradients of all parameters; with `set_to_none=False`, fill them with zeros."""
        for group in self.param_groups:
            for p in group["params"]:
                if set_to_none:
                    p.gradient = None
                elif p.grad is not None:
                    gradient = p.grad.detach()
                    gradient.zero_()
                    p.grad = gradient

    # ---- steps ----

    def step(self, closure=None):
        """Update the parameters from their gradients; those without one rest.

        `closure` computes the loss and its gradients again, and its result is returned.
        """
        if self._pre_hooks:
            for hook in tuple(self._pre_hooks.values()):
                hook(self, (closure,), {})
        loss = None
        if closure is not None:
            with enable_grad():
                loss = closure()
        self._step()
        if self._post_hooks:
            for hook in tuple(self._post_hooks.values()):
                hook(self, (closure,), {})
        return loss

    def _step(self):
        raise NotImplementedError(f"`{type(self).__name__}` must implement `_step`")

    def _scale(self):
        """The factor that gradients are multiplied with."""
        return 1.0 if self.grad_scale is None else 1.0 / float(self.grad_scale)

    def register_step_pre_hook(self, hook):
        """Call `hook(optimizer, args, kwargs)` before each step. Returns a handle with `remove()`."""
        return Handle(self._pre_hooks, hook)

    def register_step_post_hook(self, hook):
        """Call `hook(optimizer, args, kwargs)` after each step. Returns a handle with `remove()`."""
        return Handle(self._post_hooks, hook)

    def register_state_dict_pre_hook(self, hook):
        """Call `hook(optimizer)` before `state_dict`. Returns a handle with `remove()`."""
        return Handle(self._state_pre_hooks, hook)

    def register_state_dict_post_hook(self, hook):
        """Call `hook(optimizer, state_dict)`; what it returns, unless None, is the state dict."""
        return Handle(self._state_post_hooks, hook)

    def register_load_state_dict_pre_hook(self, hook):
        """Call `hook(optimizer, state_dict)` before loading; what it returns, unless None, is loaded."""
        return Handle(self._load_pre_hooks, hook)

    def register_load_state_dict_post_hook(self, hook):
        """Call `hook(optimizer)` after a state dict was loaded. Returns a handle with `remove()`."""
        return Handle(self._load_post_hooks, hook)

    # ---- state dicts ----

    def state_dict(self):
        """{"state": {index: {name: tensor or number}}, "param_groups": [options with "params": indices]}.

        Parameters are numbered in the order of the groups, as in PyTorch. Tensors are those of the state, not copies.
        """
        for hook in tuple(self._state_pre_hooks.values()):
            hook(self)
        index, groups = {}, []
        for group in self.param_groups:
            for p in group["params"]:
                index.setdefault(id(p), len(index))
            options = {name: value for name, value in group.items() if name != "params"}
            groups.append({**options, "params": [index[id(p)] for p in group["params"]]})
        state = {index.get(id(p), p): values for p, values in self.state.items()}
        result = {"state": state, "param_groups": groups}
        for hook in tuple(self._state_post_hooks.values()):
            changed = hook(self, result)
            result = result if changed is None else changed
        return result

    def load_state_dict(self, state_dict):
        """Take over a state dict, PyTorch's too if its tensors are NumPy arrays or tensors of ours.

        States are copied, in the dtype of their parameter (float32 beside master weights); the options of groups are
        replaced by those of `state_dict`. ValueError where groups or shapes differ.
        """
        state_dict = dict(state_dict)
        for hook in tuple(self._load_pre_hooks.values()):
            changed = hook(self, state_dict)
            state_dict = state_dict if changed is None else changed
        saved = state_dict["param_groups"]
        sizes, own = [len(g["params"]) for g in saved], [len(g["params"]) for g in self.param_groups]
        if sizes != own:
            raise ValueError(f"`state_dict` must have groups of {own} parameters, as the optimizer has, got {sizes}")
        by_index = {}
        for old, group in zip(saved, self.param_groups):
            by_index.update(zip(old["params"], group["params"]))
        state = defaultdict(dict)
        for key, values in state_dict["state"].items():
            if key in by_index:
                p = by_index[key]
                state[p] = {name: self._loaded(p, name, value) for name, value in values.items()}
            else:
                state[key] = copy.deepcopy(values)
        groups = []
        for old, group in zip(saved, self.param_groups):
            options = {name: copy.deepcopy(value) for name, value in old.items() if name != "params"}
            if "param_names" in group:
                options.setdefault("param_names", group["param_names"])
            for name, value in self.defaults.items():  # what an older state dict does not know yet
                options.setdefault(name, value)
            groups.append({**options, "params": group["params"]})
        self.state, self.param_groups = state, groups
        self._changed()
        for hook in tuple(self._load_post_hooks.values()):
            hook(self)

    def _loaded(self, p, name, value):
        """A state of the parameter `p` from a state dict: a copy, in the dtype that steps take."""
        if name == "step" and isinstance(value, (int, float)):
            value = np.array(value)
        if not isinstance(value, (Tensor, np.ndarray, np.generic)):
            return copy.deepcopy(value)
        value = value.detach() if isinstance(value, Tensor) else from_numpy(np.array(value))
        self._check_state(p, name, value)
        if name == "step":
            return value.to(CPU, float32, copy=True).contiguous()
        target = self._state_dtype(p) if value.dtype.differentiable else value.dtype
        if p.dtype.is_complex and not value.dtype.is_complex:  # a number of its own, which PyTorch does not cast either
            target = value.dtype
        return value.to(p.device, target, copy=True).contiguous()

    def _check_state(self, p, name, value):
        """Refuse a state of another shape than a step takes."""
        shape = () if name == "step" else p.shape_
        if value.shape_ != shape:
            raise ValueError(f"`{name}` in `state_dict` must have shape {shape}, as its parameter, got {value.shape_}")

    def _state_dtype(self, p):
        return p.dtype


def real_pairs(x):
    """A complex tensor as its memory of real numbers, a view; any other as it is."""
    return ops["view_as_real"](x) if x.dtype.is_complex else x


def zeros(shape, dtype, value=0.0, device=CPU):
    """A new tensor filled with a number."""
    t = empty(tuple(shape), dtype, None, device)
    t.fill_(value)
    return t
